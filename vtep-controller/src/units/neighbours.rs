//! IP addresses that a switch knows beside the MACs it learned (`Ucast_Macs_Local.ipaddr`): routers are told of them, as
//! if they had asked by ARP, and other switches can answer for them.

use super::{Fact, Home, RouterPort, Unit, V, warn};
use crate::address;
use crate::model::{Read, TorId};
use crate::output::Module::Vtep;
use crate::output::{Key, Neighbour, Value};
use ovn_schema::{Str, Uuid, sb, vtep};
use std::net::{IpAddr, Ipv4Addr};

/// The routers' ports at a datapath.
pub fn routers(datapath: Uuid, v: &mut V<'_>) {
    let sb = &v.read(Read::PortsOf(datapath)).sb;
    let ends: Vec<Uuid> =
        sb.ports_of(datapath).filter(|(_, p)| matches!(&*p.r#type, "patch" | "l3gateway")).map(|(id, _)| id).collect();
    let mut out = Vec::new();
    for end in ends {
        let end = v.read(Read::Sb(sb::TableId::PortBinding, end)).sb.db.port_binding.get(&end);
        let Some(peer) = end.and_then(|p| p.options.get("peer")) else { continue };
        let Some((_, far)) = v.read(Read::PortNamed(peer.clone())).sb.port(peer) else { continue };
        let networks = far.mac.iter().flat_map(|a| address::networks(a)).collect();
        out.push(RouterPort { name: peer.clone(), router: far.datapath, networks });
    }
    v.derive(Fact::Routers(out));
}

/// A switch knows a MAC's IP address: so do the routers in whose networks it is. One that a router has itself is not
/// for others to claim.
pub fn learned(place: &Str, tor: TorId, id: Uuid, local: &vtep::UcastMacsLocal, mac: &Str, home: &Home, v: &mut V<'_>) {
    if local.ipaddr.is_empty() || !home.learn_addresses {
        return;
    }
    let Ok(ip) = local.ipaddr.parse::<IpAddr>() else {
        let text = format!("{place}: Ucast_Macs_Local {id}: ipaddr ({}) is no IP address; it is ignored", local.ipaddr);
        warn(v, Vtep, text);
        return;
    };
    let Some(Fact::Routers(routers)) = v.fact(&Unit::Routers(home.row)) else { return };
    for r in routers.iter().filter(|r| serves(r, ip)) {
        let value = Neighbour { mac: mac.clone(), router: r.router, tor };
        v.emit(Key::Neighbour(r.name.clone(), ip.to_string().into()), Value::Neighbour(value));
    }
}

/// Whether an address is one of a router's neighbours.
fn serves(r: &RouterPort, ip: IpAddr) -> bool {
    r.networks.iter().any(|n| n.contains(ip)) && r.networks.iter().all(|n| n.ip() != ip)
}

/// The IPv4 address that the switch knows which learned an entry of `FDB`.
pub fn address_of(fdb: &sb::Fdb, mac: &Str, v: &mut V<'_>) -> Option<Str> {
    let tors = &v.read(Read::LocalsWith(mac.clone())).tors;
    let known = tors.iter().flat_map(|t| t.locals_with(mac).map(|l| (t.id, l))).filter(|(_, l)| !l.ipaddr.is_empty());
    for (tor, local) in known {
        let Some(Fact::Locals(homes)) = v.fact(&Unit::Locals(tor, local.logical_switch)) else { continue };
        let here = homes.iter().any(|h| (h.datapath, h.port) == (fdb.dp_key, fdb.port_key));
        if let Some(ip) = local.ipaddr.parse::<Ipv4Addr>().ok().filter(|_| here) {
            return Some(ip.to_string().into());
        }
    }
    None
}
