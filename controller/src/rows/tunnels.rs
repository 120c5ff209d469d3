//! Tunnels to other chassis: which there should be, which of them are watched by BFD, and the ports that are to be made for that.
//!
//! The first two are derived in units ([`crate::units::presence`]), a chassis or a group of gateways each.

use crate::input::interfaces::TUNNEL_ID;
use crate::input::model::{Input, Tunnelling, is_remote};
use crate::input::settings::{Settings, interfaces, port_names};
use crate::plan::Plan;
use crate::rows::plumbing::{change_ports, short_name};
use crate::units::presence::Presence;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs, sb};
use std::collections::{BTreeMap, BTreeSet};

/// A tunnel that there should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    chassis: Str,
    kind: Str,
    options: Map<Str, Str>,
}

/// The tunnels to another chassis, by what marks their ports: none without a common transport zone; from each address to each of the
/// other's, by the best encapsulation that both have.
pub fn to_chassis(input: &Input, c: &sb::Chassis) -> BTreeMap<Str, Tunnel> {
    let (t, mut out) = (&input.local.tunnelling, BTreeMap::new());
    let zones = &c.transport_zones;
    let meets = zones.is_empty() && t.transport_zones.is_empty() || zones.iter().any(|z| t.transport_zones.contains(z));
    // Chassis of other availability zones are for the gateways between zones.
    if t.flow_based || c.name == input.local.chassis_name || !meets || is_remote(c) && !t.interconnection {
        return out;
    }
    let own = own_encaps(input, t);
    let theirs: Vec<_> = c.encaps.iter().filter_map(|e| input.sb.encap.get(e)).collect();
    let pairs = |kind: &Str| {
        let remote = theirs.iter().filter(|e| e.r#type == *kind);
        let local =
            |e: &sb::Encap| own.iter().filter(|(k, _)| k == kind).filter(same_family(&e.ip)).collect::<Vec<_>>();
        remote.flat_map(|e| local(e).into_iter().map(|(_, ip)| (ip.clone(), &**e))).collect::<Vec<_>>()
    };
    let Some((kind, pairs)) = own.iter().map(|(kind, _)| (kind, pairs(kind))).find(|(_, pairs)| !pairs.is_empty())
    else {
        return out;
    };
    for (local_ip, encap) in pairs {
        let id: Str = format!("{}@{}%{local_ip}", c.name, encap.ip).into();
        let mut options = tunnel_options(t, (local_ip, encap.ip.clone()));
        let asked = [
            ("csum", encap.options.get("csum").filter(|c| matches!(&***c, "true" | "false")).cloned()),
            ("dst_port", encap.options.get("dst_port").cloned()),
        ];
        options.extend(asked.into_iter().filter_map(|(k, v)| Some((k.into(), v?))));
        options.extend(ipsec(input, c));
        out.insert(id, Tunnel { chassis: c.name.clone(), kind: kind.clone(), options });
    }
    out
}

/// Whether an address can be reached from another.
fn same_family(remote: &str) -> impl Fn(&&(Str, Str)) -> bool + use<> {
    let v4 = remote.contains('.');
    move |(_, local)| local.contains('.') == v4
}

/// This chassis' encapsulations, the best first: those that its row has, of which another chassis has none.
fn own_encaps(input: &Input, t: &Tunnelling) -> Vec<(Str, Str)> {
    let row = input.local.chassis.and_then(|c| input.sb.chassis.get(&c)).filter(|c| !c.encaps.is_empty());
    let has = |(kind, ip): &&(Str, Str)| {
        row.is_none_or(|c| {
            c.encaps.iter().filter_map(|e| input.sb.encap.get(e)).any(|e| e.r#type == *kind && e.ip == *ip)
        })
    };
    t.encaps.iter().filter(has).cloned().collect()
}

/// What all tunnels are given: both ends, and what the operator wants of each.
fn tunnel_options(t: &Tunnelling, (local, remote): (Str, Str)) -> Map<Str, Str> {
    let mut options: Map<Str, Str> =
        Map::from([("remote_ip".into(), remote), ("local_ip".into(), local), ("key".into(), "flow".into())]);
    let asked = [("tos", t.tos.clone()), ("df_default", t.df.clone())];
    options.extend(asked.into_iter().filter_map(|(k, v)| Some((k.into(), v?))));
    options
}

/// What the daemon that looks after IPsec (ovs-monitor-ipsec) is to know of a tunnel, where the operator wants them encrypted.
fn ipsec(input: &Input, c: &sb::Chassis) -> Map<Str, Str> {
    let Some(global) = input.sb.sb_global.values().next().filter(|g| g.ipsec) else { return Map::new() };
    let asked = global.options.iter().filter(|(k, _)| k.starts_with("ipsec_"));
    let said = asked.filter_map(|(k, v)| match &**k {
        // Packets in UDP whether or not there is address translation on the way: Libreswan's word for it, and strongSwan's.
        "ipsec_encapsulation" | "ipsec_forceencaps" => {
            let on = ["true", "yes"].iter().any(|yes| v.eq_ignore_ascii_case(yes));
            on.then(|| (k.clone(), "yes".into()))
        }
        _ => Some((k.clone(), v.clone())),
    });
    said.chain([("remote_name".into(), c.name.clone())]).collect()
}

/// A tunnel for each kind of encapsulation, whose packets say where they go, with the name of its port.
fn flow_based(input: &Input, s: &Settings) -> BTreeMap<Str, (Tunnel, Option<Str>)> {
    let t = &input.local.tunnelling;
    let kinds: BTreeSet<Str> = own_encaps(input, t).into_iter().map(|(kind, _)| kind).collect();
    let index = s.index.as_deref().unwrap_or_default();
    let one = |kind: Str| {
        let (id, name) = (Str::from(format!("{FLOW} {kind}")), Str::from(format!("ovn{index}-{kind}")));
        let options = tunnel_options(t, (FLOW.into(), FLOW.into()));
        (id, (Tunnel { chassis: FLOW.into(), kind, options }, Some(name)))
    };
    kinds.into_iter().map(one).collect()
}

/// What stands for addresses, and for the chassis, where packets say where they go.
const FLOW: &str = "flow";
/// Tells flow-based tunnels apart.
const TUNNEL_TYPE: &str = "ovn-tunnel-type";

/// What marks the port of a tunnel as ours. `id` is the tunnel's key among those that are wanted.
fn marks(id: &Str, t: &Tunnel) -> Map<Str, Str> {
    if &*t.chassis == FLOW {
        return Map::from([(TUNNEL_ID.into(), FLOW.into()), (TUNNEL_TYPE.into(), t.kind.clone())]);
    }
    Map::from([(TUNNEL_ID.into(), id.clone())])
}

/// The chassis to which tunnels should run BFD for a group of gateways: they watch each other and those whom they serve, and those
/// watch them (ovn-architecture(7), "High Availability for Distributed Gateways"). Those of other zones are among them, who know
/// nothing of the group and would not answer.
pub fn watched(input: &Input, id: Uuid, g: &sb::HaChassisGroup) -> BTreeSet<Uuid> {
    let (Some(me), mut peers) = (input.local.chassis, BTreeSet::new()) else { return BTreeSet::new() };
    let members: BTreeSet<Uuid> = g.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h)?.chassis).collect();
    if members.len() < 2 {
        return peers;
    }
    // It serves datapaths here: those from which its ports can be reached are all local.
    let serves = input.is_served_by(&id);
    if members.contains(&me) {
        peers.extend(members.iter().chain(&g.ref_chassis));
        if serves {
            peers.extend(input.local.datapaths.iter().flat_map(|dp| input.chassis_of(*dp)));
        }
    } else if serves || g.ref_chassis.contains(&me) {
        peers.extend(members);
    }
    peers.remove(&me);
    peers
}

/// `Interface:bfd:min_rx`, in milliseconds, where the operator set no times: a peer's switch sends each 100 ms unless it was
/// told otherwise (ovs-vswitchd.conf.db(5), `min_tx`), so that its death is seen within 300 ms.
const MIN_RX: &str = "100";

/// `Interface:bfd` for a watched tunnel, with the times that the operator set in NB_Global. A chassis that has resigned
/// watches and is watched by nobody.
fn bfd_config(input: &Input, watched: bool) -> Map<Str, Str> {
    if !watched || input.local.gateways.resigned {
        return Map::new();
    }
    let mut m: Map<Str, Str> = Map::from([("enable".into(), "true".into()), ("check_tnl_key".into(), "true".into())]);
    let global = input.sb.sb_global.values().next();
    let keys = [
        ("bfd-min-rx", "min_rx"),
        ("bfd-min-tx", "min_tx"),
        ("bfd-mult", "mult"),
        ("bfd-decay-min-rx", "decay_min_rx"),
    ];
    let set = keys.iter().filter_map(|(option, key)| Some((*key, global?.options.get(*option)?)));
    let times: Map<Str, Str> = set.map(|(key, v)| (key.into(), v.clone())).collect();
    // Who sets one of them chooses: what is left out has Open vSwitch's default.
    match times.is_empty() {
        true => drop(m.insert("min_rx".into(), MIN_RX.into())),
        false => m.extend(times),
    }
    m
}

/// Brings tunnels into line with the southbound database.
pub fn reconcile_tunnels(
    db: &ovs::Database,
    br: (Uuid, &ovs::Bridge),
    input: &Input,
    here: &Presence,
    s: &Settings,
    plan: &mut Plan,
) {
    let mut wanted: BTreeMap<Str, (Tunnel, Option<Str>)> = match s.flow_based {
        true => flow_based(input, s),
        false => here.tunnels.iter().map(|(id, t)| (id.clone(), (t.clone(), None))).collect(),
    };
    let watched: BTreeSet<&Str> =
        here.watched.iter().filter_map(|c| input.sb.chassis.get(c)).map(|c| &c.name).collect();
    let mut names = port_names(db);
    let (none, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for (pid, p, iid, i) in interfaces(db, br.1) {
        let Some(id) = p.external_ids.get(TUNNEL_ID) else { continue };
        let typed: Option<Str> = p.external_ids.get(TUNNEL_TYPE).map(|t| format!("{id} {t}").into());
        let id = typed.as_ref().unwrap_or(id);
        // Older versions left the local address out.
        let short = || wanted.keys().find(|k| k.split('%').next() == Some(id)).cloned();
        let full = if wanted.contains_key(id) { Some(id.clone()) } else { short() };
        let found = full.and_then(|full| Some((wanted.remove(&full)?, full)));
        let Some(((w, _), full)) = found else {
            gone.insert(pid);
            continue;
        };
        let bfd = bfd_config(input, watched.contains(&w.chassis));
        let txn = &mut plan.part(format!("Interface {}", i.name), (&full, &w.kind, &w.options, &bfd)).txn;
        if w.kind != i.r#type {
            txn.update_row(iid, [ovs::Interface::r#type(&w.kind)]);
        }
        if w.options != i.options {
            txn.update_row(iid, [ovs::Interface::options(&w.options)]);
        }
        if bfd != i.bfd {
            txn.update_row(iid, [ovs::Interface::bfd(&bfd)]);
        }
        if full != *id {
            let mut ids = p.external_ids.clone();
            ids.insert(TUNNEL_ID.into(), full);
            txn.update_row(pid, [ovs::Port::external_ids(&ids)]);
        }
    }
    if !gone.is_empty() {
        let txn = &mut plan.part(format!("old tunnels in {}", br.1.name), &gone).txn;
        change_ports(db, br.0, &none, &gone, txn);
    }
    let index = s.index.as_deref().unwrap_or_default();
    for (id, (w, name)) in wanted {
        let free = || (0..).map(|n| short_name(index, &w.chassis, n)).find(|n| !names.contains(n));
        let name = name.or_else(free).unwrap_or_default();
        names.insert(name.clone());
        let txn = &mut plan.part(format!("tunnel {id}"), (&w.kind, &w.options)).txn;
        let columns = [
            ovs::Interface::name(&name),
            ovs::Interface::r#type(&w.kind),
            ovs::Interface::options(&w.options),
            ovs::Interface::bfd(&bfd_config(input, watched.contains(&w.chassis))),
        ];
        let iface = txn.insert_row(columns);
        let ids = marks(&id, &w);
        let columns =
            [ovs::Port::name(&name), ovs::Port::interfaces(&Set::from([iface])), ovs::Port::external_ids(&ids)];
        let added = BTreeSet::from([txn.insert_row(columns)]);
        change_ports(db, br.0, &added, &none, txn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use std::sync::Arc;

    #[test]
    fn deaths_are_seen_soon_unless_the_operator_sets_times() {
        let bfd = |options: &[(&str, &str)]| {
            let mut db = sb::Database::default();
            let options = options.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect();
            db.sb_global.insert(Uuid::from_u128(1), Arc::new(sb::SbGlobal { options, ..Default::default() }));
            let m = bfd_config(&Input::new(db, Local::default()), true);
            let text: Vec<String> = m.iter().map(|(k, v)| format!("{k}={v}")).collect();
            text.join(" ")
        };
        assert_eq!(bfd(&[]), "check_tnl_key=true enable=true min_rx=100");
        assert_eq!(bfd(&[("bfd-min-rx", "2000")]), "check_tnl_key=true enable=true min_rx=2000");
        let chosen = bfd(&[("bfd-min-tx", "1500"), ("bfd-mult", "15")]);
        assert_eq!(chosen, "check_tnl_key=true enable=true min_tx=1500 mult=15", "as ovn-controller");
    }

    /// The options of the tunnel to `hv2`, where the southbound database has these options.
    fn options(ipsec: bool, options: &[(&str, &str)]) -> Map<Str, Str> {
        let (id, encap) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut db = sb::Database::default();
        let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        db.sb_global.insert(id, Arc::new(sb::SbGlobal { ipsec, options, ..Default::default() }));
        let e = sb::Encap { r#type: "geneve".into(), ip: "10.0.0.2".into(), ..Default::default() };
        db.encap.insert(encap, Arc::new(e));
        let c = sb::Chassis { name: "hv2".into(), encaps: [encap].into(), ..Default::default() };
        let tunnelling = Tunnelling { encaps: vec![("geneve".into(), "10.0.0.1".into())], ..Tunnelling::default() };
        let input = Input::new(db, Local { chassis_name: "hv1".into(), tunnelling, ..Local::default() });
        to_chassis(&input, &c).into_values().next().map(|t| t.options).unwrap_or_default()
    }

    #[test]
    fn encrypted_tunnels_name_the_other_end() {
        let asked = [
            ("ipsec_encapsulation", "true"),
            ("ipsec_forceencaps", "false"),
            ("ipsec_dpd-delay", "30s"),
            ("mac_prefix", "0a:00:00"),
        ];
        let get = |o: &Map<Str, Str>| {
            let all = o.iter().filter(|(k, _)| k.starts_with("ipsec") || &***k == "remote_name");
            all.map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(get(&options(true, &asked)), "ipsec_dpd-delay=30s ipsec_encapsulation=yes remote_name=hv2");
        assert_eq!(get(&options(false, &asked)), "");
        assert_eq!(options(false, &asked)["remote_ip"].to_string(), "10.0.0.2");
    }
}
