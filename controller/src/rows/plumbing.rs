//! What the controller keeps in the local Open_vSwitch database: the integration bridge, patch ports, ports to other vendors' switches.

use crate::input::interfaces::{L2GATEWAY_ID, LOCALNET_ID, TUNNEL_ID};
use crate::input::settings::{Settings, bridge, interfaces};
use crate::plan::Plan;
use crate::plan::once::Once;
use crate::units::presence::Presence;
use gateway_ha::Session;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs};
use ovsdb_rs::client::Transaction;
use std::collections::{BTreeMap, BTreeSet};

/// Makes the integration bridge exist. Gives its row where it does.
pub fn ensure_bridge<'a>(db: &'a ovs::Database, s: &Settings, plan: &mut Plan) -> Option<(Uuid, &'a ovs::Bridge)> {
    let wish = (&s.bridge, &s.datapath_type);
    let txn = &mut plan.part(format!("Bridge {}", s.bridge), wish).txn;
    let secure = Some(Str::from("secure"));
    if let Some(b) = bridge(db, &s.bridge) {
        let mut columns = Vec::new();
        if b.1.fail_mode != secure {
            columns.push(ovs::Bridge::fail_mode(&secure));
        }
        // A bridge without a type is of type system (ovs-vswitchd.conf.db(5)).
        let default = b.1.datapath_type.is_empty().then(|| Str::from("system"));
        if let Some(t) = s.datapath_type.clone().or(default).filter(|t| *t != b.1.datapath_type) {
            columns.push(ovs::Bridge::datapath_type(&t));
        }
        if !ovn_schema::options::flag(&b.1.other_config, "disable-in-band") {
            let mut other = b.1.other_config.clone();
            other.insert("disable-in-band".into(), "true".into());
            columns.push(ovs::Bridge::other_config(&other));
        }
        if !columns.is_empty() {
            txn.update_row(b.0, columns);
        }
        return Some(b);
    }
    let (root, row) = db.open_vswitch.iter().next()?;
    let iface = txn.insert_row([ovs::Interface::name(&s.bridge), ovs::Interface::r#type(&Str::from("internal"))]);
    let port = txn.insert_row([ovs::Port::name(&s.bridge), ovs::Port::interfaces(&Set::from([iface]))]);
    let mut other = Map::<Str, Str>::from([("disable-in-band".into(), "true".into())]);
    if let Some(address) = random_address() {
        // Otherwise the bridge, and with it its datapath's number, changes with the first port that it gets.
        other.insert("hwaddr".into(), address);
    }
    let kind = s.datapath_type.clone().unwrap_or_else(|| "system".into());
    let columns = [
        ovs::Bridge::name(&s.bridge),
        ovs::Bridge::ports(&Set::from([port])),
        ovs::Bridge::fail_mode(&secure),
        ovs::Bridge::datapath_type(&kind),
        ovs::Bridge::other_config(&other),
    ];
    let b = txn.insert_row(columns);
    txn.add_to_row(*root, ovs::OpenVswitch::bridges(&Set::from([b])));
    bump(*root, row, txn);
    txn.comment("ovn-controller: creating integration bridge");
    None
}

/// A random Ethernet address: administered locally, of one station.
fn random_address() -> Option<Str> {
    use std::io::Read;
    let mut b = [0u8; 6];
    std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut b)).ok()?;
    b[0] = b[0] & 0xfc | 2;
    Some(b.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":").into())
}

/// Asks the switch to take over what is written.
fn bump(root: Uuid, row: &ovs::OpenVswitch, txn: &mut Transaction) {
    txn.update_row(root, [ovs::OpenVswitch::next_cfg(&(row.next_cfg + 1))]);
}

/// BFD sessions by the chassis at the other end.
pub type Sessions = BTreeMap<Str, Session>;

/// Marks tunnels to other vendors' switches.
const EVPN_ID: &str = "ovn-evpn-tunnel";

/// The ports of VXLAN to other vendors' switches: one for each UDP port, to whatever address the packet says.
pub fn reconcile_evpn(
    db: &ovs::Database,
    (id, br): (Uuid, &ovs::Bridge),
    s: &Settings,
    said: &mut Once,
    plan: &mut Plan,
) {
    let index = s.index.as_deref().unwrap_or_default();
    let mut wanted: BTreeMap<Str, Map<Str, Str>> = BTreeMap::new();
    for port in &s.evpn_ports {
        if port.parse::<u16>().is_ok_and(|n| n > 0) {
            let flow = |key: &str| (Str::from(key), Str::from("flow"));
            let mut options: Map<Str, Str> = ["local_ip", "remote_ip", "key"].into_iter().map(flow).collect();
            options.insert("dst_port".into(), port.clone());
            wanted.insert(format!("ovn{index}-evpn-{port}").into(), options);
        } else if said.say(format!("evpn {port}")) {
            tracing::warn!(target: "encaps", "Invalid VXLAN port number '{port}'");
        }
    }
    let marked = interfaces(db, br).filter(|(_, p, ..)| ovn_schema::options::flag(&p.external_ids, EVPN_ID));
    for (pid, p, iid, i) in marked {
        let Some(options) = wanted.remove(&p.name) else {
            let txn = &mut plan.part(format!("old port {}", p.name), pid).txn;
            change_ports(db, id, &BTreeSet::new(), &BTreeSet::from([pid]), txn);
            continue;
        };
        if &*i.r#type != "vxlan" || i.options != options {
            let txn = &mut plan.part(format!("Interface {}", i.name), format!("{options:?}")).txn;
            txn.update_row(iid, [ovs::Interface::r#type(&Str::from("vxlan")), ovs::Interface::options(&options)]);
        }
    }
    for (name, options) in wanted {
        let txn = &mut plan.part(format!("port {name}"), format!("{options:?}")).txn;
        let columns = [
            ovs::Interface::name(&name),
            ovs::Interface::r#type(&Str::from("vxlan")),
            ovs::Interface::options(&options),
        ];
        let iface = Set::from([txn.insert_row(columns)]);
        let ids = Map::<Str, Str>::from([(EVPN_ID.into(), "true".into())]);
        let columns = [ovs::Port::name(&name), ovs::Port::interfaces(&iface), ovs::Port::external_ids(&ids)];
        let added = BTreeSet::from([txn.insert_row(columns)]);
        change_ports(db, id, &added, &BTreeSet::new(), txn);
    }
}

/// The tunnels to other vendors' switches: UDP port and OpenFlow port.
pub fn evpn_tunnels(db: &ovs::Database, br: &ovs::Bridge) -> BTreeMap<u16, u16> {
    let marked = interfaces(db, br).filter(|(_, p, ..)| ovn_schema::options::flag(&p.external_ids, EVPN_ID));
    let ports = marked.filter_map(|(.., i)| {
        let port = i.options.get("dst_port")?.parse().ok()?;
        let ofport = i.ofport.and_then(|n| u16::try_from(n).ok()).filter(|n| (1..0xff00).contains(n))?;
        Some((port, ofport))
    });
    ports.collect()
}

/// Takes this controller's tunnels out of bridges that are not its integration bridge (any more). The names of the ports tell
/// whose they are.
pub fn clear_old_tunnels(db: &ovs::Database, s: &Settings, plan: &mut Plan) {
    let prefix = format!("ovn{}-", s.index.as_deref().unwrap_or_default());
    let tunnel =
        |p: &ovs::Port| p.external_ids.contains_key(TUNNEL_ID) || ovn_schema::options::flag(&p.external_ids, EVPN_ID);
    for (id, b) in db.bridge.iter().filter(|(_, b)| b.name != s.bridge) {
        let ports = b.ports.iter().filter_map(|p| Some((*p, db.port.get(p)?)));
        let gone: BTreeSet<Uuid> = ports
            .filter(|(_, p)| p.name.starts_with(&*prefix) && tunnel(p))
            .inspect(|(_, p)| {
                let chassis = p.external_ids.get(TUNNEL_ID).map_or("", |c| c);
                tracing::debug!(target: "encaps", "Clearing old tunnel port \"{}\" ({chassis}) from bridge \"{}\".", p.name, b.name);
            })
            .map(|(id, _)| id)
            .collect();
        if !gone.is_empty() {
            let txn = &mut plan.part(format!("old tunnels in {}", b.name), &gone).txn;
            change_ports(db, *id, &BTreeSet::new(), &gone, txn);
        }
    }
}

/// `ovnINDEX-CHASSIS-N`, with the chassis' name cut to what an interface's name may hold.
pub(crate) fn short_name(index: &str, chassis: &str, n: u32) -> Str {
    let short: String = chassis.chars().take(if index.is_empty() { 6 } else { 5 }).collect();
    format!("ovn{index}-{short}-{n:x}").into()
}

pub(crate) fn change_ports(
    db: &ovs::Database,
    br: Uuid,
    added: &BTreeSet<Uuid>,
    gone: &BTreeSet<Uuid>,
    txn: &mut Transaction,
) {
    if !gone.is_empty() {
        txn.remove_from_row(br, ovs::Bridge::ports(gone));
    }
    if !added.is_empty() {
        txn.add_to_row(br, ovs::Bridge::ports(added));
    }
    if !(gone.is_empty() && added.is_empty())
        && let Some((root, row)) = db.open_vswitch.iter().next()
    {
        bump(*root, row, txn);
    }
}

/// The marks of patch ports; the last two are of versions before.
const PATCH_IDS: [&str; 4] = [LOCALNET_ID, L2GATEWAY_ID, "ovn-l3gateway-port", "ovn-logical-patch-port"];

/// A patch wanted between the integration bridge and another, for a logical port.
struct Patch {
    port: Str,
    mark: &'static str,
    other: Uuid,
}

fn wanted_patches(db: &ovs::Database, here: &Presence, s: &Settings, said: &mut Once) -> Vec<Patch> {
    let mut out = Vec::new();
    for (port, (kind, network)) in &here.patches {
        let mark = if &**kind == "localnet" { LOCALNET_ID } else { L2GATEWAY_ID };
        let Some(network) = network else {
            if said.say(format!("{port} no network")) {
                tracing::error!(target: "patch", "{kind} port '{port}' has no network name.");
            }
            continue;
        };
        match s.mappings.get(network).and_then(|b| bridge(db, b)) {
            Some((other, _)) => out.push(Patch { port: port.clone(), mark, other }),
            // That a chassis has not all networks is normal; that it does not have a gateway port's is an error.
            None if !said.say(format!("{port};{network}")) => {}
            None if mark == LOCALNET_ID => {
                tracing::info!(target: "patch", "bridge not found for {kind} port '{port}' with network name '{network}'; skipping");
            }
            None => {
                tracing::error!(target: "patch", "bridge not found for {kind} port '{port}' with network name '{network}'");
            }
        }
    }
    out
}

/// Joins the integration bridge with the bridges of provider networks, for localnet ports of local datapaths. Ports that are
/// not this bridge's, nor peers of its ports, are another controller's.
pub fn reconcile_patches(
    db: &ovs::Database,
    br: (Uuid, &ovs::Bridge),
    here: &Presence,
    s: &Settings,
    said: &mut Once,
    plan: &mut Plan,
) {
    let mut old: BTreeMap<Str, Uuid> = BTreeMap::new();
    let by_name: BTreeMap<&Str, Uuid> = db.port.iter().map(|(id, p)| (&p.name, *id)).collect();
    for (pid, p, _, i) in interfaces(db, br.1) {
        if PATCH_IDS.iter().any(|id| p.external_ids.contains_key(*id)) {
            old.insert(p.name.clone(), pid);
            let peer = i.options.get("peer").filter(|_| &*i.r#type == "patch");
            old.extend(peer.and_then(|n| Some((n.clone(), *by_name.get(n)?))));
        }
    }
    let none = BTreeSet::new();
    let has = |bridge: Uuid, name: &Str| {
        let ports = db.bridge.get(&bridge).map(|b| &b.ports);
        by_name.get(name).is_some_and(|p| ports.is_some_and(|all| all.contains(p)))
    };
    for patch in wanted_patches(db, here, s, said) {
        let (here, there) = patch_names(&s.bridge, &patch.port);
        for (bid, own, peer) in [(br.0, &here, &there), (patch.other, &there, &here)] {
            if has(bid, own) {
                old.remove(own);
                adopt(db, &by_name, own, peer, &patch, plan);
                continue;
            }
            let txn = &mut plan.part(format!("patch port {own}"), peer).txn;
            let options = Map::<Str, Str>::from([("peer".into(), peer.clone())]);
            let columns = [
                ovs::Interface::name(own),
                ovs::Interface::r#type(&Str::from("patch")),
                ovs::Interface::options(&options),
            ];
            let iface = txn.insert_row(columns);
            let ids = Map::<Str, Str>::from([(patch.mark.into(), patch.port.clone())]);
            let columns =
                [ovs::Port::name(own), ovs::Port::interfaces(&Set::from([iface])), ovs::Port::external_ids(&ids)];
            let added = BTreeSet::from([txn.insert_row(columns)]);
            change_ports(db, bid, &added, &none, txn);
        }
    }
    for (name, port) in old {
        let Some((bid, _)) = db.bridge.iter().find(|(_, b)| b.ports.contains(&port)) else { continue };
        let txn = &mut plan.part(format!("old patch port {name}"), port).txn;
        change_ports(db, *bid, &none, &BTreeSet::from([port]), txn);
    }
}

/// Marks a patch port that is there with the right name and peer, whoever made it: from then on it is this controller's.
fn adopt(db: &ovs::Database, by_name: &BTreeMap<&Str, Uuid>, own: &Str, peer: &Str, patch: &Patch, plan: &mut Plan) {
    let Some((id, p)) = by_name.get(own).and_then(|id| Some((*id, db.port.get(id)?))) else { return };
    let leads = |i: &ovs::Interface| &*i.r#type == "patch" && i.options.get("peer") == Some(peer);
    if p.external_ids.get(patch.mark) == Some(&patch.port)
        || !p.interfaces.iter().filter_map(|i| db.interface.get(i)).any(|i| leads(i))
    {
        return;
    }
    let pair = Map::<Str, Str>::from([(patch.mark.into(), patch.port.clone())]);
    let txn = &mut plan.part(format!("patch port {own}:external_ids"), &patch.port).txn;
    txn.add_to_row(id, ovs::Port::external_ids(&pair));
}

fn patch_names(br_int: &str, port: &str) -> (Str, Str) {
    (format!("patch-{br_int}-to-{port}").into(), format!("patch-{port}-to-{br_int}").into())
}

/// Takes this controller's tunnels and its sign out of the local database, at `exit`.
pub fn remove_all(db: &ovs::Database, br: (Uuid, &ovs::Bridge), s: &Settings, plan: &mut Plan) {
    let ports = br.1.ports.iter().filter_map(|p| Some((*p, db.port.get(p)?)));
    let gone: BTreeSet<Uuid> = ports
        .filter(|(_, p)| [TUNNEL_ID, EVPN_ID].iter().any(|id| p.external_ids.contains_key(*id)))
        .map(|(id, _)| id)
        .collect();
    let txn = &mut plan.part("tunnels", ()).txn;
    txn.comment("ovn-controller: destroying tunnels");
    change_ports(db, br.0, &BTreeSet::new(), &gone, txn);
    if let Some((root, row)) = db.open_vswitch.iter().next() {
        let mut other = row.other_config.clone();
        if other.remove(&*format!("ovn-chassis-idx-{}", s.system_id)).is_some() {
            txn.update_row(*root, [ovs::OpenVswitch::other_config(&other)]);
        }
    }
}
