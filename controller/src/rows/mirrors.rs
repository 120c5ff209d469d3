//! Mirrors of logical ports (`Mirror` of ovn-sb(5)) into a tunnel or into a local port, as mirrors of the integration bridge.
//! Those of type `lport` are flows.

use crate::input::interfaces::Interfaces;
use crate::input::settings::interfaces;
use crate::plan::Plan;
use crate::rows::plumbing::change_ports;
use crate::units::presence::Presence;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs, sb};
use ovsdb_rs::client::Transaction;
use std::collections::{BTreeMap, BTreeSet};

/// Marks mirrors and their ports that are this controller's.
const MARK: &str = "ovn-owned";
/// By which an interface is the sink of a local mirror.
const SINK: &str = "mirror-id";

/// What a mirror copies, and where to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copies {
    name: Str,
    /// `gre`, `erspan` or `local`.
    kind: Str,
    filter: Str,
    sink: Str,
    index: i64,
}

impl Copies {
    /// What a row of the southbound database asks for.
    pub fn of(m: &sb::Mirror) -> Copies {
        Copies {
            name: m.name.clone(),
            kind: m.r#type.clone(),
            filter: m.filter.clone(),
            sink: m.sink.clone(),
            index: m.index,
        }
    }
}

/// A mirror and the local ports whose packets it copies.
struct Wanted<'a> {
    row: &'a Copies,
    from: Set<Uuid>,
    to: Set<Uuid>,
}

fn wanted<'a>(plugged: &Interfaces, here: &'a Presence) -> BTreeMap<&'a Str, Wanted<'a>> {
    let mut out: BTreeMap<&Str, Wanted<'_>> = BTreeMap::new();
    for (interface, m) in here.mirrored.values() {
        let Some(port) = plugged.port_of(interface) else { continue };
        let w = out.entry(&m.name).or_insert_with(|| Wanted { row: m, from: Set::new(), to: Set::new() });
        if matches!(&*m.filter, "from-lport" | "both") {
            w.from.insert(port);
        }
        if matches!(&*m.filter, "to-lport" | "both") {
            w.to.insert(port);
        }
    }
    out
}

/// The port of a tunnel that takes copies: type and options.
fn tunnel(m: &Copies) -> (Str, Map<Str, Str>) {
    let kind = if m.sink.contains(':') { format!("ip6{}", m.kind) } else { m.kind.to_string() };
    let key: Str = m.index.to_string().into();
    let mut options = Map::<Str, Str>::from([("remote_ip".into(), m.sink.clone()), ("key".into(), key.clone())]);
    if &*m.kind == "erspan" {
        options.insert("erspan_idx".into(), key);
        options.insert("erspan_ver".into(), "1".into());
    }
    (kind.into(), options)
}

fn mark() -> Map<Str, Str> {
    Map::from([(MARK.into(), "true".into())])
}

/// The local ports that are sinks, by the name that mirrors call them. Of several the first counts.
fn sinks<'a>(db: &'a ovs::Database, br: &'a ovs::Bridge) -> BTreeMap<&'a Str, Uuid> {
    let mut out = BTreeMap::new();
    for (port, _, _, i) in interfaces(db, br) {
        if let Some(id) = i.external_ids.get(SINK) {
            out.entry(id).or_insert(port);
        }
    }
    out
}

/// Brings the bridge's mirrors into line.
pub fn reconcile(
    db: &ovs::Database,
    (id, br): (Uuid, &ovs::Bridge),
    (plugged, here): (&Interfaces, &Presence),
    plan: &mut Plan,
) {
    if here.mirrored.is_empty() && br.mirrors.is_empty() {
        return;
    }
    let mut wanted = wanted(plugged, here);
    let sinks = sinks(db, br);
    wanted.retain(|_, w| &*w.row.kind != "local" || sinks.contains_key(&w.row.sink));
    let rows = br.mirrors.iter().filter_map(|m| Some((*m, db.mirror.get(m)?)));
    for (mid, row) in rows.filter(|(_, m)| ovn_schema::options::flag(&m.external_ids, MARK)) {
        let own = row.output_port.and_then(|p| Some((p, db.port.get(&p)?)));
        let own = own.filter(|(_, p)| ovn_schema::options::flag(&p.external_ids, MARK));
        let part = plan.part(format!("Mirror {}", row.name), wish(wanted.get(&row.name)));
        let txn = &mut part.txn;
        let Some(w) = wanted.remove(&row.name) else {
            let gone = Set::from([mid]);
            txn.remove_from_row(id, ovs::Bridge::mirrors(&gone));
            if let Some((p, _)) = own {
                change_ports(db, id, &BTreeSet::new(), &BTreeSet::from([p]), txn);
            }
            continue;
        };
        let mut columns = Vec::new();
        if w.from != row.select_src_port {
            columns.push(ovs::Mirror::select_src_port(&w.from));
        }
        if w.to != row.select_dst_port {
            columns.push(ovs::Mirror::select_dst_port(&w.to));
        }
        let local = sinks.get(&w.row.sink).filter(|_| &*w.row.kind == "local");
        let output = match (local, own) {
            (Some(sink), own) => {
                if let Some((p, _)) = own {
                    change_ports(db, id, &BTreeSet::new(), &BTreeSet::from([p]), txn);
                }
                *sink
            }
            (None, Some((p, port))) => {
                retune(db, port, w.row, txn);
                p
            }
            (None, None) => new_port(db, id, w.row, txn),
        };
        if row.output_port != Some(output) {
            columns.push(ovs::Mirror::output_port(&Some(output)));
        }
        if !columns.is_empty() {
            txn.update_row(mid, columns);
        }
    }
    for w in wanted.into_values() {
        let txn = &mut plan.part(format!("Mirror {}", w.row.name), wish(Some(&w))).txn;
        let local = sinks.get(&w.row.sink).filter(|_| &*w.row.kind == "local").copied();
        let output = local.unwrap_or_else(|| new_port(db, id, w.row, txn));
        let columns = [
            ovs::Mirror::name(&w.row.name),
            ovs::Mirror::output_port(&Some(output)),
            ovs::Mirror::select_src_port(&w.from),
            ovs::Mirror::select_dst_port(&w.to),
            ovs::Mirror::external_ids(&mark()),
        ];
        let added = Set::from([txn.insert_row(columns)]);
        txn.add_to_row(id, ovs::Bridge::mirrors(&added));
    }
}

fn wish(w: Option<&Wanted<'_>>) -> String {
    w.map_or_else(String::new, |w| format!("{} {} {} {:?} {:?}", w.row.kind, w.row.sink, w.row.index, w.from, w.to))
}

/// The tunnel's interface as the mirror wants it now.
fn retune(db: &ovs::Database, port: &ovs::Port, m: &Copies, txn: &mut Transaction) {
    let Some((id, i)) = port.interfaces.iter().next().and_then(|i| Some((*i, db.interface.get(i)?))) else { return };
    let (kind, options) = tunnel(m);
    if i.r#type != kind {
        txn.update_row(id, [ovs::Interface::r#type(&kind)]);
    }
    if i.options != options {
        txn.update_row(id, [ovs::Interface::options(&options)]);
    }
}

fn new_port(db: &ovs::Database, bridge: Uuid, m: &Copies, txn: &mut Transaction) -> Uuid {
    let name: Str = format!("ovn-{}", m.name).into();
    let (kind, options) = tunnel(m);
    let columns = [ovs::Interface::name(&name), ovs::Interface::r#type(&kind), ovs::Interface::options(&options)];
    let iface = Set::from([txn.insert_row(columns)]);
    let columns = [ovs::Port::name(&name), ovs::Port::interfaces(&iface), ovs::Port::external_ids(&mark())];
    let port = txn.insert_row(columns);
    change_ports(db, bridge, &BTreeSet::from([port]), &BTreeSet::new(), txn);
    port
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::{Input, Local, Vif};
    use std::sync::Arc;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn world(rules: &[(&str, &str, &str)]) -> Input {
        let mut db = sb::Database::default();
        let mut p = sb::PortBinding { logical_port: "lp".into(), chassis: Some(uuid(1)), ..Default::default() };
        for (n, (kind, filter, sink)) in (50..).zip(rules) {
            let m = sb::Mirror {
                name: format!("m{n}").into(),
                r#type: (*kind).into(),
                filter: (*filter).into(),
                sink: (*sink).into(),
                index: 7,
                ..Default::default()
            };
            db.mirror.insert(uuid(n), Arc::new(m));
            p.mirror_rules.insert(uuid(n));
        }
        db.port_binding.insert(uuid(2), Arc::new(p));
        db.datapath_binding.insert(Uuid::nil(), Arc::default());
        let vif = Vif { ofport: Some(1), version: None, encap_ip: None, mtu: None, row: uuid(21) };
        Input::new(db, Local { chassis: Some(uuid(1)), vifs: [("lp".into(), vif)].into(), ..Local::default() })
    }

    /// The integration bridge with the port `lp` and a sink for local mirrors, as the operations of before left it.
    fn switch() -> ovs::Database {
        let mut db = ovs::Database::default();
        let ports = [uuid(20), uuid(30)].into_iter().collect();
        db.bridge.insert(uuid(10), Arc::new(ovs::Bridge { name: "br-int".into(), ports, ..Default::default() }));
        for (port, iface, ids) in [(20, 21, ("iface-id", "lp")), (30, 31, (SINK, "sink"))] {
            let p = ovs::Port { interfaces: [uuid(iface)].into_iter().collect(), ..Default::default() };
            db.port.insert(uuid(port), Arc::new(p));
            let i = ovs::Interface { external_ids: Map::from([(ids.0.into(), ids.1.into())]), ..Default::default() };
            db.interface.insert(uuid(iface), Arc::new(i));
        }
        db
    }

    fn with_mirror(mut db: ovs::Database, name: &str, output: u128, from: &[u128], to: &[u128]) -> ovs::Database {
        let set = |all: &[u128]| all.iter().map(|n| uuid(*n)).collect();
        let m = ovs::Mirror {
            name: name.into(),
            output_port: Some(uuid(output)),
            select_src_port: set(from),
            select_dst_port: set(to),
            external_ids: mark(),
            ..Default::default()
        };
        db.mirror.insert(uuid(40), Arc::new(m));
        let mut b = (*db.bridge[&uuid(10)]).clone();
        b.mirrors.insert(uuid(40));
        db.bridge.insert(uuid(10), Arc::new(b));
        db
    }

    fn operations(db: &ovs::Database, input: &Input) -> Vec<String> {
        let mut plan = Plan::new(Arc::new(ovs::Database::schema()));
        let (mut input, mut here) = (Input::new(input.sb.clone(), input.local.clone()), Presence::default());
        here.settle(&mut input, &[]);
        let (mut plugged, br) = (Interfaces::default(), (uuid(10), &*db.bridge[&uuid(10)]));
        for (id, p) in &db.port {
            let change = ovn_schema::Change { uuid: *id, old: None, new: Some(p.clone()) };
            plugged.changed(&ovs::AnyChange::Port(change), false);
        }
        plugged.look(db, br);
        reconcile(db, br, (&plugged, &here), &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, std::time::Instant::now());
        out.iter().map(|o| format!("{} {}", o["op"].as_str().unwrap(), o["table"].as_str().unwrap())).collect()
    }

    #[test]
    fn a_local_mirror_follows_its_ports_and_its_sink() {
        let both = world(&[("local", "both", "sink")]);
        assert_eq!(operations(&switch(), &both), ["insert Mirror", "mutate Bridge"]);
        assert!(operations(&with_mirror(switch(), "m50", 30, &[20], &[20]), &both).is_empty());
        assert_eq!(operations(&with_mirror(switch(), "m50", 30, &[20], &[]), &both), ["update Mirror"]);
        assert_eq!(operations(&with_mirror(switch(), "m50", 30, &[20], &[20]), &world(&[])), ["mutate Bridge"]);
        assert!(operations(&switch(), &world(&[("local", "both", "elsewhere")])).is_empty());
        assert!(operations(&switch(), &world(&[("lport", "both", "lp2")])).is_empty());
    }

    #[test]
    fn a_remote_mirror_has_a_tunnel() {
        let remote = world(&[("erspan", "from-lport", "fd00::1")]);
        let made = operations(&switch(), &remote);
        assert_eq!(made, ["insert Interface", "insert Port", "mutate Bridge", "insert Mirror", "mutate Bridge"]);
        let (kind, options) = tunnel(&Copies::of(&remote.sb.mirror[&uuid(50)]));
        assert_eq!((&*kind, &*options["erspan_idx"], &*options["key"]), ("ip6erspan", "7", "7"));
    }
}
