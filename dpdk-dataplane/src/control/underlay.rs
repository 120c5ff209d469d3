//! The kernel's tables as the engine's underlay: what tunnels leave by, and which addresses they end at.

use super::Control;
use crate::config::Kind;
use crate::host::{Host, HostRoute};
use std::collections::HashMap;
use std::net::IpAddr;
use switch::{Egress, Route};

impl Control {
    pub(super) async fn apply_host(&mut self) {
        let host = self.mirror.picture();
        // The links that are bridges' internal ports: name of the bridge by index.
        let mut ours: HashMap<u32, String> = HashMap::new();
        let mut live = Vec::new();
        for b in self.bridges.values() {
            for p in b.ports.values() {
                let Some(link) = host.links.get(&p.spec.name) else { continue };
                match (&p.spec.kind, p.no) {
                    (Ok(Kind::Internal), Some(no)) => {
                        ours.insert(link.index, b.spec.name.clone());
                        live.push((b.id, no, link.up));
                    }
                    (Ok(Kind::System), Some(no)) => live.push((b.id, no, link.up)),
                    _ => {}
                }
            }
        }
        for p in self.bridges.values_mut().flat_map(|b| b.ports.values_mut()) {
            let Ok(Kind::Tunnel(t)) = &p.spec.kind else { continue };
            p.egress = t.remote.and_then(|to| egress(&host, to));
        }
        let mut routes: Vec<(u32, Route)> = host.routes.iter().filter_map(|r| route(&host, r, &ours)).collect();
        routes.sort_by_key(|(metric, _)| *metric);
        let routes = routes.into_iter().map(|(_, r)| r).collect();
        let local: Vec<IpAddr> =
            host.addresses.iter().filter(|(link, ..)| ours.contains_key(link)).map(|(_, a, _)| *a).collect();
        let neighbours = host.neighbours;
        let done = self.worker.run(move |w| {
            w.switch.underlay.set_routes(routes);
            for a in local {
                w.switch.underlay.add_local(a);
            }
            for (a, mac) in w.neighbours.set_kernel(neighbours) {
                w.switch.underlay.set_neighbour(a, mac);
            }
            let mut changed = Vec::new();
            for (bridge, no, up) in live {
                let before = w.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).map(|p| p.up);
                if before.is_some_and(|b| b != up) {
                    w.switch.set_live(bridge, no, up);
                    changed.extend(w.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).map(|p| (bridge, p.clone())));
                }
            }
            changed
        });
        for (bridge, port) in done.await.unwrap_or_default() {
            self.connections.port_status(bridge, 2, &port);
        }
    }
}

/// The device of the kernel's route to an address, and whether it is up.
fn egress(host: &Host, to: IpAddr) -> Option<(String, bool)> {
    let fitting = host.routes.iter().filter(|r| same_network(to, r.prefix, r.len));
    let best = fitting.max_by_key(|r| (r.len, std::cmp::Reverse(r.metric)))?;
    host.links.iter().find(|(_, l)| l.index == best.link).map(|(name, l)| (name.clone(), l.up))
}

fn route(host: &Host, r: &HostRoute, ours: &HashMap<u32, String>) -> Option<(u32, Route)> {
    let bridge = ours.get(&r.link)?;
    let link = host.links.values().find(|l| l.index == r.link)?;
    let near = r.gateway.unwrap_or(r.prefix);
    let fits = |a: &IpAddr, len: u8| same_network(*a, near, len);
    let mine: Vec<_> =
        host.addresses.iter().filter(|(l, a, _)| *l == r.link && a.is_ipv4() == near.is_ipv4()).collect();
    let source = r
        .source
        .or_else(|| mine.iter().find(|(_, a, len)| fits(a, *len)).map(|(_, a, _)| *a))
        .or_else(|| mine.first().map(|(_, a, _)| *a))?;
    let egress = Egress::Bridge(bridge.clone());
    let out = Route { prefix: r.prefix, len: r.len, gateway: r.gateway, source, source_mac: link.mac, egress };
    Some((r.metric, out))
}

fn same_network(a: IpAddr, b: IpAddr, len: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            (u32::from(a) ^ u32::from(b)) & mask == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            (u128::from(a) ^ u128::from(b)) & mask == 0
        }
        _ => false,
    }
}
