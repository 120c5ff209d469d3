//! Follows links, MTUs and bonds of ports, and tells the switch and controllers of changes.

use super::Reconciler;
use super::bridges::police;
use crate::config::port::{Kind, of_host};
use crate::config::qos::Egress;
use crate::kernel::sysfs;
use crate::pmd::Jobs;
use openflow_rs::PortNo;
use std::collections::HashMap;
use switch::{BridgeId, PortKind, PortLink};

/// The MTU of an internal port of a bridge without other ports.
const DEFAULT_MTU: u32 = 1500;

/// The new MTU of an internal port, if it has to change. When the least MTU of the other ports changes from `before` to
/// `least`, the port gets that; at other times it is only cut down to it. So a smaller one that an operator has set
/// stays, as does any where there is no other port.
fn internal_mtu(before: Option<u32>, least: Option<u32>, mtu: u32) -> Option<u32> {
    let wanted = match (before, least) {
        (None, None) => return None,
        (b, l) if b != l => l.unwrap_or(DEFAULT_MTU),
        (_, l) => mtu.min(l.unwrap_or(mtu)),
    };
    (wanted != mtu).then_some(wanted)
}

impl Reconciler {
    /// Gives internal ports without `mtu_request` the least MTU of their bridge's other ports
    /// (ovs-vswitchd.conf.db(5)).
    async fn follow_least_mtu(&mut self) {
        let mut changes = Vec::new();
        for b in self.bridges.values_mut() {
            let with = || b.ports.values().filter(|p| p.no.is_some());
            let own = |p: &&super::RunningPort| of_host(&p.spec.kind) && p.spec.mtu.is_none();
            let least = with().filter(|p| !own(p)).filter_map(|p| p.link.mtu).filter(|n| *n > 0).min();
            for p in with().filter(own) {
                let dummy = p.device.filter(|_| p.spec.kind != Ok(Kind::Internal));
                let wanted = p.link.mtu.and_then(|mtu| internal_mtu(b.least_mtu, least, mtu));
                let wanted = wanted.filter(|_| dummy.is_some() || p.ifindex.is_some());
                changes.extend(wanted.map(|mtu| (p.spec.name.clone(), dummy, mtu)));
            }
            b.least_mtu = least;
        }
        for (name, dummy, mtu) in changes {
            match dummy {
                Some(d) => self.limit_dummy(d, mtu),
                None => drop(self.set_mtu(&name, mtu).await),
            }
        }
    }

    /// Reads the state of bonds, for the database.
    pub(super) async fn update_bonds(&mut self) {
        if self.bridges.values().all(|b| b.spec.bonds.is_empty() && b.bonds.is_empty()) {
            return;
        }
        let Ok(all) = self.pmd.run(|w| w.bonds.status()).await else { return };
        for b in self.bridges.values_mut() {
            let own = all.iter().filter(|(id, _, _)| *id == b.id).map(|(_, name, s)| (name.clone(), s.clone()));
            b.bonds = own.collect();
            let current: HashMap<&String, bool> =
                b.bonds.values().flat_map(|s| s.current.iter().map(|(n, c)| (n, *c))).collect();
            b.ports.values_mut().for_each(|p| p.lacp_current = current.get(&p.spec.name).copied());
        }
    }

    /// Reads the state of spanning trees, for the database.
    pub(super) async fn update_trees(&mut self) {
        let without = |b: &super::RunningBridge| {
            b.spec.stp.is_none() && b.spec.rstp.is_none() && b.stp.is_none() && b.rstp.is_none()
        };
        if self.bridges.values().all(without) {
            return;
        }
        let all = self.pmd.run(|w| {
            let now = w.now();
            let stp = w.trees.list.iter().map(|t| (t.bridge, t.status(now))).collect::<HashMap<_, _>>();
            (stp, w.rapid.list.iter().map(|t| (t.bridge, t.status(now))).collect::<HashMap<_, _>>())
        });
        let Ok((mut stp, mut rapid)) = all.await else { return };
        self.bridges.values_mut().for_each(|b| (b.stp, b.rstp) = (stp.remove(&b.id), rapid.remove(&b.id)));
    }

    /// Reads the state of devices, and tells the switch and controllers of changes.
    pub(super) async fn update_links(&mut self) {
        let devices = self.pmd.look(|w| {
            let ports = w.switch.bridges().flat_map(|(id, b)| b.ports.values().map(move |p| (id, p)));
            let with = ports.filter_map(|(id, p)| match p.kind {
                PortKind::Device(d) | PortKind::Internal(d) => Some(((id, p.no), p.link, &w.device(d)?.port)),
                _ => None,
            });
            with.map(|(k, link, d)| (k, (link, d.link(), d.mtu(), d.info().clone()))).collect::<HashMap<_, _>>()
        });
        let Ok(mut devices) = devices.await else { return };
        let host = self.kernel.snapshot();
        let mut changes: Vec<(BridgeId, PortNo, PortLink)> = Vec::new();
        let (mut addresses, mut requests) = (Vec::new(), Vec::new());
        for b in self.bridges.values_mut() {
            for p in b.ports.values_mut() {
                let Some((no, (known, device, mtu, info))) =
                    p.no.and_then(|no| Some((no, devices.remove(&(b.id, no))?)))
                else {
                    continue;
                };
                let of_kernel = p.ifindex.and_then(|i| Some((i, host.links.get(&p.spec.name)?)));
                p.peer = of_kernel.and_then(|(_, l)| l.peer);
                if let Some((_, l)) = of_kernel {
                    // Somebody has given the device another address: not this switch, which knows it then.
                    let before = p.seen_mac.replace(l.mac);
                    if l.mac != p.mac && before.is_some_and(|seen| seen != l.mac) {
                        p.mac = l.mac;
                        addresses.push((b.id, no, l.mac));
                    }
                    // Or another MTU than the one that is asked for: each time, once.
                    let moved = p.link.mtu.is_some_and(|mtu| mtu != l.mtu);
                    let asked = p.spec.mtu.filter(|asked| moved && *asked != l.mtu && p.error.is_none());
                    requests.extend(asked.map(|mtu| (p.spec.name.clone(), mtu)));
                }
                let link = match of_kernel {
                    Some((index, l)) => {
                        let (mbps, full) = match (l.up, p.link.up, p.link.mbps) {
                            // The speed is read once each time that the link comes up.
                            (true, true, known) if known != 0 => (known, p.link.full_duplex),
                            // A link that is down has no speed; taps have always the same.
                            (_, _, known) => sysfs::speed(&p.spec.name, index).unwrap_or(match p.spec.kind {
                                Ok(Kind::Internal) => (10_000, true),
                                _ => (known, p.link.full_duplex),
                            }),
                        };
                        PortLink {
                            up: l.up,
                            admin_up: l.admin_up,
                            mbps,
                            full_duplex: full,
                            copper: true,
                            mtu: Some(l.mtu),
                        }
                    }
                    None => PortLink {
                        up: device.up,
                        // A dummy has no carrier but that.
                        admin_up: device.up || !matches!(p.spec.kind, Ok(Kind::Dummy { .. })),
                        mbps: if device.up && device.speed != u32::MAX { device.speed } else { 0 },
                        full_duplex: device.full_duplex,
                        copper: false,
                        mtu,
                    },
                };
                if !p.presence.is_lost() {
                    p.info = (!matches!(p.spec.kind, Ok(Kind::Internal | Kind::System))).then_some(info);
                }
                if link != p.link {
                    // The first reading is no change.
                    p.link_resets += i64::from(link.up != p.link.up && p.link != PortLink::default());
                    let faster = link.mbps != p.link.mbps;
                    p.link = link;
                    // Queues may go by the link's speed.
                    if faster && matches!(p.spec.egress, Ok(Egress::Shape(_))) {
                        police(&self.pmd, &self.kernel, p).await;
                    }
                }
                // Compared with what the switch has, not with what it was told: the port may have been made anew.
                if link != known {
                    changes.push((b.id, no, link));
                }
            }
        }
        for (id, no, mac) in addresses {
            self.tell_address(id, no, mac).await;
        }
        for (name, mtu) in requests {
            tracing::info!(target: "netdev", "{name}: somebody has changed its MTU; it becomes mtu_request {mtu} again");
            let _ = self.set_mtu(&name, mtu).await;
        }
        self.follow_least_mtu().await;
        for (bridge, no, link) in changes {
            let port = self.pmd.run(move |w| {
                if let Some(PortKind::Device(d)) =
                    w.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).map(|p| &p.kind)
                    && let Some(d) = w.device(*d)
                {
                    d.port.limit(link.mtu);
                }
                // Ports are described without their MTU.
                let described = |l: PortLink| PortLink { mtu: None, ..l };
                let mut told = false;
                w.switch.set_inputs(bridge, no, |p| {
                    told = described(p.link) != described(link);
                    p.link = link;
                });
                w.bonds.wake();
                let now = w.now();
                w.run_trees(now);
                w.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).filter(|_| told).cloned()
            });
            if let Ok(Some(port)) = port.await {
                self.connections.port_status(bridge, 2, &port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::internal_mtu;

    #[test]
    fn internal_ports_follow_the_least_and_stay_below() {
        // The least MTU before and now, the port's, and the new one.
        let cases = [
            (None, None, 1450, None),
            (None, None, 9000, None),
            (None, Some(1500), 9000, Some(1500)),
            (None, Some(9000), 1500, Some(9000)),
            (Some(9000), Some(9000), 1450, None),
            (Some(1500), Some(1500), 1500, None),
            (Some(1500), Some(1500), 9000, Some(1500)),
            (Some(1500), Some(1400), 1450, Some(1400)),
            (Some(1400), Some(9000), 1400, Some(9000)),
            (Some(9000), None, 9000, Some(1500)),
        ];
        for (before, least, mtu, wanted) in cases {
            assert_eq!(internal_mtu(before, least, mtu), wanted, "{before:?} {least:?} {mtu}");
        }
    }
}
