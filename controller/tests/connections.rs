//! Connections of load balancers' backends that went (`options:ct_flush` of ovn-nb(5)).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::model::{Input, Local, Read};
use controller::openflow::install::Tables;
use controller::units::flows::{ChassisFlows, Connections, Ids};
use incremental::Engine;
use ovn_schema::sb::{self, AnyChange};
use ovn_schema::{Change, Map, Str, Uuid};
use std::sync::Arc;

const DATAPATH: Uuid = Uuid::from_u128(2);
const BALANCERS: [Uuid; 2] = [Uuid::from_u128(4), Uuid::from_u128(5)];

fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn balancer(protocol: &str, vip: &str, backends: &str, flush: &str) -> Arc<sb::LoadBalancer> {
    Arc::new(sb::LoadBalancer {
        vips: map(&[(vip, backends)]),
        protocol: Some(protocol.into()),
        datapaths: [DATAPATH].into(),
        options: map(&[("ct_flush", flush)]),
        ..Default::default()
    })
}

struct Chassis {
    input: Input,
    engine: Engine<ChassisFlows>,
    ids: Arc<Ids>,
    tables: Tables,
}

impl Chassis {
    fn new() -> Chassis {
        let mut db = sb::Database::default();
        let switch = sb::DatapathBinding { tunnel_key: 5, ..Default::default() };
        db.datapath_binding.insert(DATAPATH, Arc::new(switch));
        let local = Local { datapaths: [DATAPATH].into(), ..Local::default() };
        let ids: Arc<Ids> = Arc::default();
        let engine = Engine::new(ChassisFlows::new(ids.clone()));
        let mut c = Chassis { input: Input::new(db, local), engine, ids, tables: Tables::default() };
        c.update(Vec::new());
        c
    }

    /// What is flushed, as the log says it.
    fn update(&mut self, reads: Vec<Read>) -> Vec<String> {
        let (tables, ids) = (&mut self.tables, &self.ids);
        let mut forget = self.engine.update(&self.input, reads, |c| tables.apply(c, ids)).forget;
        forget.sort();
        forget.iter().map(ToString::to_string).collect()
    }

    fn set(&mut self, id: Uuid, new: Option<Arc<sb::LoadBalancer>>) -> Vec<String> {
        let old = match &new {
            Some(row) => self.input.sb.load_balancer.insert(id, row.clone()),
            None => self.input.sb.load_balancer.remove(&id),
        };
        let mut reads = self.input.changed(&AnyChange::LoadBalancer(Change { uuid: id, old, new }));
        reads.push(Read::Table(sb::TableId::LoadBalancer));
        self.update(reads)
    }

    /// Makes these datapaths local, and no others.
    fn local(&mut self, datapaths: &[Uuid]) -> Vec<String> {
        let local = Local { datapaths: datapaths.iter().copied().collect(), ..self.input.local.clone() };
        let reads = self.input.set_local(local);
        self.update(reads)
    }
}

#[test]
fn connections_of_backends_that_went_are_flushed() {
    let mut c = Chassis::new();
    let [one, other] = BALANCERS;
    assert!(c.set(one, Some(balancer("tcp", "10.0.0.1", "10.0.1.1,10.0.1.2", "true"))).is_empty());
    let gone = c.set(one, Some(balancer("tcp", "10.0.0.1", "10.0.1.1,10.0.1.3", "true")));
    assert_eq!(gone, ["Flushing CT for 5-tuple: vip=10.0.0.1:0, backend=10.0.1.2:0, protocol=0"]);
    // What another load balancer serves as well stays.
    assert!(c.set(other, Some(balancer("tcp", "10.0.0.1", "10.0.1.3", "true"))).is_empty());
    assert_eq!(c.set(one, None), ["Flushing CT for 5-tuple: vip=10.0.0.1:0, backend=10.0.1.1:0, protocol=0"]);
    assert_eq!(c.set(other, None), ["Flushing CT for 5-tuple: vip=10.0.0.1:0, backend=10.0.1.3:0, protocol=0"]);
    // Ports and protocols; IPv6.
    c.set(one, Some(balancer("udp", "[fd00::1]:80", "[fd00::2]:8080", "true")));
    let gone = c.local(&[]);
    assert_eq!(
        gone,
        ["Flushing CT for 5-tuple: vip=fd00::1:80, backend=fd00::2:8080, protocol=17"],
        "the load balancer is no longer local"
    );
    c.local(&[DATAPATH]);
    // Without the option nothing is flushed.
    c.set(other, Some(balancer("sctp", "10.0.0.9:80", "10.0.1.1:80", "false")));
    assert!(c.set(other, None).is_empty());
}

#[test]
fn what_went_while_nobody_looked_is_flushed_as_well() {
    let mut c = Chassis::new();
    let [one, _] = BALANCERS;
    c.set(one, Some(balancer("tcp", "10.0.0.1:80", "10.0.1.1:80,10.0.1.2:80", "true")));
    // A new connection to the southbound database: everything is derived from the start.
    let before = c.tables.restart();
    c.engine = Engine::new(ChassisFlows::new(c.ids.clone()));
    c.input.sb.load_balancer.insert(one, balancer("tcp", "10.0.0.1:80", "10.0.1.2:80", "true"));
    assert!(c.update(Vec::new()).is_empty());
    let gone: Vec<String> = c.tables.left_behind(&before).iter().map(ToString::to_string).collect();
    assert_eq!(gone, ["Flushing CT for 5-tuple: vip=10.0.0.1:80, backend=10.0.1.1:80, protocol=6"]);
    // A message that names both ends and nothing of the client.
    let flush = c.tables.left_behind(&before)[0].flush();
    assert_eq!((flush.proto, flush.zone, flush.original.src), (6, None, None));
    assert_eq!((flush.original.dst, flush.original.dst_port), (Some("10.0.0.1".parse().unwrap()), Some(80)));
    assert_eq!((flush.reply.src, flush.reply.src_port), (Some("10.0.1.1".parse().unwrap()), Some(80)));
}

/// What is flushed when this change comes.
fn change(c: &mut Chassis, change: AnyChange, table: sb::TableId) -> Vec<String> {
    let mut reads = c.input.changed(&change);
    reads.push(Read::Table(table));
    c.update(reads)
}

#[test]
fn connections_of_access_rules_that_went_are_flushed() {
    let mut c = Chassis::new();
    let id = Uuid::from_u128(6);
    let row = Arc::new(sb::AclId { id: 7 });
    c.input.sb.acl_id.insert(id, row.clone());
    let new = AnyChange::AclId(Change { uuid: id, old: None, new: Some(row.clone()) });
    assert!(change(&mut c, new, sb::TableId::AclId).is_empty());
    c.input.sb.acl_id.remove(&id);
    let old = AnyChange::AclId(Change { uuid: id, old: Some(row), new: None });
    assert_eq!(change(&mut c, old, sb::TableId::AclId), ["Flushing conntrack entry for ACL id 7."]);
    let flush = Connections::Rule(7).flush();
    assert_eq!((flush.zone, flush.label), (None, Some((7 << 80, 0xffff << 80))));
}

#[test]
fn connections_of_next_hops_that_went_or_moved_are_flushed() {
    let mut c = Chassis::new();
    let id = Uuid::from_u128(6);
    let name = c.input.zone_name(DATAPATH, "dnat");
    c.input.local.zones.insert(name.clone(), 9);
    c.update(vec![Read::Zone(name)]);
    let mut last: Option<Arc<sb::EcmpNexthop>> = None;
    let mut set = |c: &mut Chassis, mac: Option<&str>| {
        let row = |m: &str| Arc::new(sb::EcmpNexthop { datapath: DATAPATH, mac: m.into(), ..Default::default() });
        let new = mac.map(row);
        match &new {
            Some(row) => drop(c.input.sb.ecmp_nexthop.insert(id, row.clone())),
            None => drop(c.input.sb.ecmp_nexthop.remove(&id)),
        }
        let old = std::mem::replace(&mut last, new.clone());
        change(c, AnyChange::EcmpNexthop(Change { uuid: id, old, new }), sb::TableId::EcmpNexthop)
    };
    assert!(set(&mut c, Some("")).is_empty(), "nobody knows it yet");
    assert!(set(&mut c, Some("02:00:00:00:00:01")).is_empty());
    let text = |mac: &str| format!("Flushing conntrack entries of zone 9 for ECMP next hop {mac}.");
    assert_eq!(set(&mut c, Some("02:00:00:00:00:02")), [text("020000000001")]);
    assert_eq!(set(&mut c, None), [text("020000000002")]);
    let flush = Connections::NextHop(9, 0x0200_0000_0001).flush();
    assert_eq!((flush.zone, flush.label), (Some(9), Some((0x0200_0000_0001 << 32, 0xffff_ffff_ffff << 32))));
}
