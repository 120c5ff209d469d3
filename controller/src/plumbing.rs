//! What the controller keeps in the local Open_vSwitch database: the integration bridge, tunnels, patch ports.

use crate::model::{Input, Local, Tunnel, Vif, is_vtep};
use crate::settings::{Settings, bridge, interfaces, port_names};
use gateway_ha::Session;
use ovn_schema::{ColumnValue, Map, Set, Str, Uuid, ovs, sb};
use ovsdb_rs::client::Transaction;
use std::collections::{BTreeMap, BTreeSet};

/// Marks ports that are tunnels, with the chassis: `CHASSIS@REMOTE%LOCAL`.
const TUNNEL_ID: &str = "ovn-chassis-id";
const LOCALNET_ID: &str = "ovn-localnet-port";
const L2GATEWAY_ID: &str = "ovn-l2gateway-port";

/// Makes the integration bridge exist. Gives its row where it does.
pub fn ensure_bridge<'a>(
    db: &'a ovs::Database,
    s: &Settings,
    txn: &mut Transaction,
) -> Option<(Uuid, &'a ovs::Bridge)> {
    if let Some(b) = bridge(db, &s.bridge) {
        let mut columns = Vec::new();
        if b.1.fail_mode.as_deref() != Some("secure") {
            columns.push(("fail_mode", Some(Str::from("secure")).to_datum()));
        }
        if let Some(t) = s.datapath_type.as_ref().filter(|t| **t != b.1.datapath_type) {
            columns.push(("datapath_type", t.to_datum()));
        }
        if b.1.other_config.get("disable-in-band").is_none_or(|v| &**v != "true") {
            let mut other = b.1.other_config.clone();
            other.insert("disable-in-band".into(), "true".into());
            columns.push(("other_config", other.to_datum()));
        }
        if !columns.is_empty() {
            txn.update("Bridge", b.0, columns);
        }
        return Some(b);
    }
    let (root, row) = db.open_vswitch.iter().next()?;
    let iface = txn.insert("Interface", [("name", s.bridge.to_datum()), ("type", Str::from("internal").to_datum())]);
    let port = txn.insert("Port", [("name", s.bridge.to_datum()), ("interfaces", Set::from([iface]).to_datum())]);
    let other = Map::<Str, Str>::from([("disable-in-band".into(), "true".into())]);
    let mut columns = vec![
        ("name", s.bridge.to_datum()),
        ("ports", Set::from([port]).to_datum()),
        ("fail_mode", Some(Str::from("secure")).to_datum()),
        ("other_config", other.to_datum()),
    ];
    if let Some(t) = &s.datapath_type {
        columns.push(("datapath_type", t.to_datum()));
    }
    let b = txn.insert("Bridge", columns);
    txn.mutate("Open_vSwitch", *root, "bridges", "insert", &Set::from([b]).to_datum());
    bump(*root, row, txn);
    txn.comment("ovn-controller: creating integration bridge");
    None
}

/// Asks the switch to take over what is written.
fn bump(root: Uuid, row: &ovs::OpenVswitch, txn: &mut Transaction) {
    txn.update("Open_vSwitch", root, [("next_cfg", (row.next_cfg + 1).to_datum())]);
}

/// BFD sessions by the chassis at the other end.
pub type Sessions = BTreeMap<Str, Session>;

/// What the integration bridge's ports say: interfaces, tunnels, patches, sessions.
pub fn observe(db: &ovs::Database, br: &ovs::Bridge, sb: &sb::Database, local: &mut Local) -> Sessions {
    let (mut vifs, mut localnets, mut tunnels) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let mut sessions = Sessions::new();
    let switches: BTreeSet<&Str> = sb.chassis.values().filter(|c| is_vtep(c)).map(|c| &c.name).collect();
    for (_, p, _, i) in interfaces(db, br) {
        let ofport = i.ofport.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        if let Some(id) = i.external_ids.get("iface-id") {
            vifs.insert(id.clone(), Vif { ofport });
        }
        if let (Some(name), Some(n)) = (p.external_ids.get(LOCALNET_ID).or(p.external_ids.get(L2GATEWAY_ID)), ofport) {
            localnets.insert(name.clone(), n);
        }
        if let Some(id) = p.external_ids.get(TUNNEL_ID) {
            let chassis: Str = id.split('@').next().unwrap_or_default().into();
            // A top-of-rack switch watches us; it says nothing of gateways.
            if i.bfd.get("enable").is_some_and(|v| &**v == "true") && !switches.contains(&chassis) {
                let status = |key: &str| i.bfd_status.get(key).map(|s| &**s);
                let session = Session::from_status(status("state"), status("remote_state"));
                let best = sessions.entry(chassis.clone()).or_insert(session);
                *best = session.max(*best);
            }
            if let Some(n) = ofport {
                let remote_ip = i.options.get("remote_ip").cloned().unwrap_or_default();
                tunnels.insert(Tunnel { chassis, kind: i.r#type.clone(), remote_ip, ofport: n });
            }
        }
    }
    local.vifs = vifs;
    local.localnets = localnets;
    local.tunnels = tunnels;
    sessions
}

/// The tunnels that there should be: to every other chassis, by the best encapsulation that both have.
fn wanted_tunnels(input: &Input, s: &Settings) -> BTreeMap<Str, Wanted> {
    let mut out = BTreeMap::new();
    for c in input.sb.chassis.values().filter(|c| c.name != s.system_id) {
        let encaps: Vec<_> = c.encaps.iter().filter_map(|e| input.sb.encap.get(e)).collect();
        let best = s.encaps.iter().find_map(|(kind, ip)| {
            let v4 = ip.contains('.');
            let mut same: Vec<_> = encaps.iter().filter(|e| e.r#type == *kind && e.ip.contains('.') == v4).collect();
            same.sort_by(|a, b| a.ip.cmp(&b.ip));
            same.first().map(|e| (kind.clone(), ip.clone(), e.ip.clone(), e.options.get("csum").cloned()))
        });
        let Some((kind, local_ip, remote_ip, csum)) = best else { continue };
        let id: Str = format!("{}@{remote_ip}%{local_ip}", c.name).into();
        let mut options: Map<Str, Str> =
            Map::from([("remote_ip".into(), remote_ip), ("local_ip".into(), local_ip), ("key".into(), "flow".into())]);
        if &*kind == "geneve"
            && let Some(v) = csum
        {
            options.insert("csum".into(), v);
        }
        out.insert(id, Wanted { chassis: c.name.clone(), kind, options });
    }
    out
}

struct Wanted {
    chassis: Str,
    kind: Str,
    options: Map<Str, Str>,
}

/// The chassis whose tunnels should run BFD: gateways of a group watch each other and those whom they serve, and those
/// watch them (ovn-architecture(7), "High Availability for Distributed Gateways"); and top-of-rack switches that watch
/// their tunnels (`Chassis.other_config:vtep-bfd`, which vtep-controller sets).
fn watched(input: &Input, me: Option<Uuid>) -> BTreeSet<Str> {
    let Some(me) = me else { return BTreeSet::new() };
    let asks = |c: &sb::Chassis| is_vtep(c) && c.other_config.get("vtep-bfd").is_some_and(|v| &**v == "true");
    let mut peers: BTreeSet<Uuid> = input.sb.chassis.iter().filter(|(_, c)| asks(c)).map(|(id, _)| *id).collect();
    for (id, g) in &input.sb.ha_chassis_group {
        let members: BTreeSet<Uuid> = g.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h)?.chassis).collect();
        if members.len() < 2 {
            continue;
        }
        // The datapaths here that the group serves: those from which its ports can be reached are all local.
        let serves =
            input.local.datapaths.iter().any(|dp| input.ports_of(*dp).any(|(_, p)| p.ha_chassis_group == Some(*id)));
        if members.contains(&me) {
            peers.extend(members.iter().chain(&g.ref_chassis));
            if serves {
                let users = input.local.datapaths.iter().flat_map(|dp| input.ports_of(*dp));
                peers.extend(users.filter(|(_, p)| p.r#type.is_empty()).filter_map(|(_, p)| p.chassis));
            }
        } else if serves || g.ref_chassis.contains(&me) {
            peers.extend(members);
        }
    }
    peers.remove(&me);
    peers.iter().filter_map(|p| input.sb.chassis.get(p)).map(|c| c.name.clone()).collect()
}

/// `Interface:bfd` for a watched tunnel, with the times that the operator set in NB_Global.
fn bfd_config(input: &Input, enabled: bool) -> Map<Str, Str> {
    if !enabled {
        return Map::new();
    }
    let mut m: Map<Str, Str> = Map::from([("enable".into(), "true".into()), ("check_tnl_key".into(), "true".into())]);
    if let Some(global) = input.sb.sb_global.values().next() {
        for (option, key) in [
            ("bfd-min-rx", "min_rx"),
            ("bfd-min-tx", "min_tx"),
            ("bfd-mult", "mult"),
            ("bfd-decay-min-rx", "decay_min_rx"),
        ] {
            if let Some(v) = global.options.get(option) {
                m.insert(key.into(), v.clone());
            }
        }
    }
    m
}

/// Brings tunnels into line with the southbound database.
pub fn reconcile_tunnels(
    db: &ovs::Database,
    br: (Uuid, &ovs::Bridge),
    input: &Input,
    s: &Settings,
    me: Option<Uuid>,
    txn: &mut Transaction,
) {
    let mut wanted = wanted_tunnels(input, s);
    let watched = watched(input, me);
    let mut names = port_names(db);
    let mut gone = BTreeSet::new();
    for (pid, p, iid, i) in interfaces(db, br.1) {
        let Some(id) = p.external_ids.get(TUNNEL_ID) else { continue };
        match wanted.remove(id).filter(|w| w.kind == i.r#type) {
            None => {
                gone.insert(pid);
            }
            Some(w) => {
                if w.options != i.options {
                    txn.update("Interface", iid, [("options", w.options.to_datum())]);
                }
                let bfd = bfd_config(input, watched.contains(&w.chassis));
                if bfd != i.bfd {
                    txn.update("Interface", iid, [("bfd", bfd.to_datum())]);
                }
            }
        }
    }
    let mut added = BTreeSet::new();
    for (id, w) in wanted {
        let name = (0..).map(|n| short_name(&w.chassis, n)).find(|n| !names.contains(n)).unwrap_or_default();
        names.insert(name.clone());
        let columns = [
            ("name", name.to_datum()),
            ("type", w.kind.to_datum()),
            ("options", w.options.to_datum()),
            ("bfd", bfd_config(input, watched.contains(&w.chassis)).to_datum()),
        ];
        let iface = txn.insert("Interface", columns);
        let ids = Map::<Str, Str>::from([(TUNNEL_ID.into(), id)]);
        let columns = [
            ("name", name.to_datum()),
            ("interfaces", Set::from([iface]).to_datum()),
            ("external_ids", ids.to_datum()),
        ];
        added.insert(txn.insert("Port", columns));
    }
    change_ports(db, br.0, &added, &gone, txn);
}

/// `ovn-CHASSIS-N`, with the chassis' name cut to what an interface's name may hold.
fn short_name(chassis: &str, n: u32) -> Str {
    let short: String = chassis.chars().take(6).collect();
    format!("ovn-{short}-{n}").into()
}

fn change_ports(db: &ovs::Database, br: Uuid, added: &BTreeSet<Uuid>, gone: &BTreeSet<Uuid>, txn: &mut Transaction) {
    if !gone.is_empty() {
        txn.mutate("Bridge", br, "ports", "delete", &gone.to_datum());
    }
    if !added.is_empty() {
        txn.mutate("Bridge", br, "ports", "insert", &added.to_datum());
    }
    if !(gone.is_empty() && added.is_empty())
        && let Some((root, row)) = db.open_vswitch.iter().next()
    {
        bump(*root, row, txn);
    }
}

/// Joins the integration bridge with the bridges of provider networks, for localnet ports of local datapaths.
pub fn reconcile_patches(
    db: &ovs::Database,
    br: (Uuid, &ovs::Bridge),
    input: &Input,
    local: &Local,
    s: &Settings,
    txn: &mut Transaction,
) {
    // Localnet port → the bridge of its network.
    let mut wanted: BTreeMap<Str, (Str, &'static str)> = BTreeMap::new();
    for dp in &local.datapaths {
        for (_, p) in input.ports_of(*dp) {
            let key = match &*p.r#type {
                "localnet" => LOCALNET_ID,
                "l2gateway" if p.chassis.is_some() && p.chassis == local.chassis => L2GATEWAY_ID,
                _ => continue,
            };
            let Some(network) = p.options.get("network_name") else { continue };
            if let Some(b) = s.mappings.get(network) {
                wanted.insert(p.logical_port.clone(), (b.clone(), key));
            }
        }
    }
    let mut gone: BTreeMap<Uuid, BTreeSet<Uuid>> = BTreeMap::new();
    let mut have: BTreeSet<Str> = BTreeSet::new();
    for (bid, b) in &db.bridge {
        for (pid, p, _, i) in interfaces(db, b) {
            let Some(name) = p.external_ids.get(LOCALNET_ID).or(p.external_ids.get(L2GATEWAY_ID)) else { continue };
            let right = wanted.get(name).is_some_and(|(bridge, _)| {
                let (here, there) = patch_names(&s.bridge, name);
                (*bid == br.0 && p.name == here || b.name == *bridge && p.name == there) && &*i.r#type == "patch"
            });
            if right {
                have.insert(p.name.clone());
            } else {
                gone.entry(*bid).or_default().insert(pid);
            }
        }
    }
    let mut added: BTreeMap<Uuid, BTreeSet<Uuid>> = BTreeMap::new();
    for (name, (other, key)) in &wanted {
        let Some((other_id, _)) = bridge(db, other) else {
            tracing::debug!(target: "patch", "bridge '{other}' not found for localnet port '{name}'");
            continue;
        };
        let (here, there) = patch_names(&s.bridge, name);
        for (bid, own, peer) in [(br.0, &here, &there), (other_id, &there, &here)] {
            if have.contains(own) {
                continue;
            }
            let options = Map::<Str, Str>::from([("peer".into(), peer.clone())]);
            let columns =
                [("name", own.to_datum()), ("type", Str::from("patch").to_datum()), ("options", options.to_datum())];
            let iface = txn.insert("Interface", columns);
            let ids = Map::<Str, Str>::from([((*key).into(), name.clone())]);
            let columns = [
                ("name", own.to_datum()),
                ("interfaces", Set::from([iface]).to_datum()),
                ("external_ids", ids.to_datum()),
            ];
            added.entry(bid).or_default().insert(txn.insert("Port", columns));
        }
    }
    let none = BTreeSet::new();
    for bid in gone.keys().chain(added.keys()).collect::<BTreeSet<_>>() {
        change_ports(db, *bid, added.get(bid).unwrap_or(&none), gone.get(bid).unwrap_or(&none), txn);
    }
}

fn patch_names(br_int: &str, port: &str) -> (Str, Str) {
    (format!("patch-{br_int}-to-{port}").into(), format!("patch-{port}-to-{br_int}").into())
}
