//! MAC_Binding and FDB rows that are in use do not age (ovn-nb(5), `mac_binding_age_threshold` and
//! `fdb_age_threshold`).
//!
//! Northd takes rows out whose time stamps are too old. Flow statistics say which rows packets use: a neighbour from
//! which packets come, or a station that sends, has its time stamp renewed. A neighbour to which packets only go is
//! asked whether it is still there; its answer counts as a packet from it.

use crate::input::model::Input;
use crate::plan::Plan;
use crate::{encode::of, encode::tables};
use openflow_rs::message::{FlowStats, FlowStatsRequest, MultipartRequest, PacketOut};
use openflow_rs::{Action, FieldId, Match, Message, PortNo};
use ovn_schema::sb::{MacBinding, PortBinding};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid, Write, sb};
use packet::Mac;
use packet::build;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Statistics are asked for, and a row's time stamp is renewed, after this many sixteenths of its threshold: that
/// leaves time for a probe, its answer and the next look before the row is too old.
const SIXTEENTHS: u64 = 3;
/// Time stamps that wait to be written at most.
const MOST: usize = 10_000;

/// After how many milliseconds without use rows of a datapath are too old.
fn threshold(input: &Input, datapath: Uuid) -> Option<u64> {
    let ids = &input.sb.datapath_binding.get(&datapath)?.external_ids;
    let seconds = |key: &str| ids.get(key).and_then(|v| v.parse::<u64>().ok()).filter(|n| *n > 0);
    let seconds = seconds("mac_binding_age_threshold").or_else(|| seconds("fdb_age_threshold"))?;
    Some(seconds.saturating_mul(1000))
}

fn pause(threshold: u64) -> u64 {
    threshold.saturating_mul(SIXTEENTHS) / 16
}

/// The table of a row whose time stamp is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Neighbour,
    Station,
}

/// What is known of the use of rows.
#[derive(Debug, Default)]
pub struct Watch {
    asked: Option<Instant>,
    /// How often statistics are asked for; none while no datapath wants its rows to age.
    period: Option<Duration>,
    /// New time stamps, in milliseconds since 1970.
    renewed: BTreeMap<Uuid, (Kind, i64)>,
}

impl Watch {
    /// The statistics to ask for now.
    pub fn due(&mut self, input: &Input, now: Instant) -> Vec<Message> {
        let aging = input.aging().filter(|dp| input.local.datapaths.contains(dp));
        self.period = aging.filter_map(|dp| threshold(input, dp)).map(|t| Duration::from_millis(pause(t))).min();
        if self.next().is_none_or(|next| now < next) {
            if self.period.is_some() {
                self.asked.get_or_insert(now);
            }
            return Vec::new();
        }
        self.asked = Some(now);
        let request = |table| {
            let request = FlowStatsRequest { table, ..FlowStatsRequest::default() };
            Message::MultipartRequest(MultipartRequest::Flow(request))
        };
        [tables::MAC_CACHE_USE, tables::LOOKUP_FDB, tables::MAC_BINDING].map(request).into()
    }

    /// When statistics are due.
    pub fn next(&self) -> Option<Instant> {
        Some(self.asked? + self.period?)
    }

    /// Takes note of statistics. What is to be sent: questions to neighbours. `time` is in milliseconds since 1970.
    pub fn observe(&mut self, flows: &[FlowStats], input: &Input, time: i64) -> Vec<Message> {
        let mut ports = Ports::default();
        let mut out = Vec::new();
        for f in flows {
            match f.flow.table {
                tables::MAC_CACHE_USE if f.idle_age < f.duration_sec => {
                    self.neighbour_speaks(f, &mut ports, input, time);
                }
                tables::LOOKUP_FDB if f.idle_age < f.duration_sec => self.station_speaks(f, input, time),
                tables::MAC_BINDING => {
                    // What was renewed by the same look needs no question.
                    let renewed = |id: &Uuid| self.renewed.contains_key(id);
                    out.extend(probe(f, &mut ports, input, time, &renewed));
                }
                _ => {}
            }
        }
        out
    }

    fn renew(&mut self, id: Uuid, kind: Kind, time: i64) {
        if self.renewed.len() < MOST {
            self.renewed.insert(id, (kind, time));
        }
    }

    fn neighbour_speaks(&mut self, f: &FlowStats, ports: &mut Ports, input: &Input, time: i64) {
        let m = &f.flow.matches;
        let ip = match m.get(FieldId::EthType).0 {
            0x0806 => v4(m.get(FieldId::ArpSpa).0),
            0x0800 => v4(m.get(FieldId::IpSrc).0),
            _ => IpAddr::V6(Ipv6Addr::from(m.get(FieldId::Ipv6Src).0)),
        };
        let Some((id, row, age)) = neighbour(f, of::INPORT, ip, ports, input, time) else { return };
        if age.is_used() && age.is_due() {
            age.log("Updating active", f, row);
            self.renew(id, Kind::Neighbour, time);
        }
    }

    fn station_speaks(&mut self, f: &FlowStats, input: &Input, time: i64) {
        let m = &f.flow.matches;
        let (dp, port) = (of::datapath_in(m), of::port_in(m, of::INPORT));
        let mac: Str = Mac::from_u64(m.get(FieldId::EthSrc).0 as u64).to_string().into();
        let Some((id, row)) = input.fdb(&mac, dp).filter(|(_, r)| r.port() == port) else { return };
        let Some(threshold) = input.datapath(dp).and_then(|dp| threshold(input, dp)) else { return };
        let age = Age { idle: u64::from(f.idle_age) * 1000, since: since(row.timestamp, time), threshold };
        if age.is_used() && age.is_due() {
            self.renew(id, Kind::Station, time);
        }
    }

    /// Puts new time stamps into the plan.
    pub fn write(&mut self, input: &Input, plan: &mut Plan) {
        let have = |id: &Uuid, kind| match kind {
            Kind::Neighbour => input.sb.mac_binding.get(id).map(|m| m.timestamp),
            Kind::Station => input.sb.fdb.get(id).map(|f| f.timestamp),
        };
        self.renewed.retain(|id, (kind, time)| have(id, *kind).is_some_and(|t| t < *time));
        for (id, (kind, time)) in &self.renewed {
            let table = match kind {
                Kind::Neighbour => "MAC_Binding",
                Kind::Station => "FDB",
            };
            let txn = &mut plan.part(format!("{table} {id}:timestamp"), kind).txn;
            match kind {
                Kind::Neighbour => txn.update_row(*id, [MacBinding::timestamp(time)]),
                Kind::Station => txn.update_row(*id, [sb::Fdb::timestamp(time)]),
            }
        }
    }
}

fn v4(value: u128) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(value as u32))
}

fn since(timestamp: i64, time: i64) -> u64 {
    u64::try_from(time.saturating_sub(timestamp)).unwrap_or(0)
}

/// The names of ports by datapath and key, of the datapaths that came up so far.
#[derive(Debug, Default)]
struct Ports(HashMap<DatapathKey, HashMap<PortKey, Str>>);

impl Ports {
    fn name(&mut self, datapath: DatapathKey, key: PortKey, input: &Input) -> Option<Str> {
        let names = self.0.entry(datapath).or_insert_with(|| {
            let ports = input.datapath(datapath).into_iter().flat_map(|dp| input.ports_of(dp));
            ports.map(|(_, p)| (p.key(), p.logical_port.clone())).collect()
        });
        names.get(&key).cloned()
    }
}

/// How old the last use of a row is, and its time stamp, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Age {
    idle: u64,
    since: u64,
    threshold: u64,
}

impl Age {
    fn is_used(self) -> bool {
        self.idle < self.threshold
    }

    fn is_due(self) -> bool {
        self.since >= pause(self.threshold)
    }

    fn log(self, what: &str, f: &FlowStats, row: &MacBinding) {
        let dp = of::datapath_in(&f.flow.matches);
        let Age { idle, since, threshold } = self;
        tracing::debug!(target: "mac_cache", "{what} MAC binding (cookie: 0x{:08x}, datapath-key: {dp}, ip: {}, mac: {}), last update: {since}ms ago, idle age: {idle}ms, threshold: {threshold}ms.", f.flow.cookie, row.ip, row.mac);
    }
}

/// The row that a flow of a neighbour stands for.
fn neighbour<'a>(
    f: &FlowStats,
    port: FieldId,
    ip: IpAddr,
    ports: &mut Ports,
    input: &'a Input,
    time: i64,
) -> Option<(Uuid, &'a MacBinding, Age)> {
    let m = &f.flow.matches;
    let dp = of::datapath_in(m);
    let threshold = threshold(input, input.datapath(dp)?)?;
    let name = ports.name(dp, of::port_in(m, port), input)?;
    let (id, row) = input.mac_binding(&name, &Str::from(ip.to_string()))?;
    Some((id, row, Age { idle: u64::from(f.idle_age) * 1000, since: since(row.timestamp, time), threshold }))
}

/// The question to a neighbour to which packets go, whose row nothing renewed for a while.
fn probe(
    f: &FlowStats,
    ports: &mut Ports,
    input: &Input,
    time: i64,
    renewed: &dyn Fn(&Uuid) -> bool,
) -> Option<Message> {
    let ip = next_hop(&f.flow.matches);
    let (id, row, age) = neighbour(f, of::OUTPORT, ip, ports, input, time)?;
    if age.idle > age.threshold || !age.is_due() || renewed(&id) {
        return None;
    }
    let (_, p) = input.port(&row.logical_port)?;
    if !speaks(p, input) {
        return None;
    }
    let to = row.mac.parse::<Mac>().ok()?;
    let mut words = p.mac.first()?.split_whitespace();
    let from = words.next()?.parse::<Mac>().ok()?;
    let local = words.find_map(|network| on_link(network, ip))?;
    let packet = match (local, ip) {
        (IpAddr::V4(local), IpAddr::V4(ip)) => build::arp(1, to, from, local, to, ip),
        (IpAddr::V6(local), IpAddr::V6(ip)) => solicitation(to, from, local, ip)?,
        _ => return None,
    };
    age.log("Sending ARP/ND request for active", f, row);
    let actions = vec![
        of::set(of::DATAPATH, of::datapath_in(&f.flow.matches).into()),
        of::set(of::OUTPORT, p.key().into()),
        Action::resubmit(tables::LOCAL_OUTPUT),
    ];
    Some(Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions)))
}

/// The address that a flow of [`tables::MAC_BINDING`] is for.
fn next_hop(m: &Match) -> IpAddr {
    match m.get(FieldId::XxReg1) {
        (ip, u128::MAX) => IpAddr::V6(Ipv6Addr::from(ip)),
        _ => v4(m.get(FieldId::Reg0).0),
    }
}

/// The address of `ADDRESS/LENGTH` where another is in the same network.
fn on_link(network: &str, ip: IpAddr) -> Option<IpAddr> {
    let (address, len) = network.split_once('/').map_or((network, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().ok()?;
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let ((own, width), (other, _)) = (bits(address), bits(ip));
    let len: u32 = len.map_or(Some(width), |l| l.parse().ok()).filter(|l| *l <= width)?;
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    (address.is_ipv4() == ip.is_ipv4() && own & mask == other & mask).then_some(address)
}

/// A neighbour solicitation to one neighbour (RFC 4861 section 7.3.1).
fn solicitation(to: Mac, from: Mac, local: Ipv6Addr, ip: Ipv6Addr) -> Option<Vec<u8>> {
    let mut body = vec![135, 0, 0, 0, 0, 0, 0, 0];
    body.extend(ip.octets());
    body.extend([1, 1]);
    body.extend(*from);
    build::ip_packet(to, from, local.into(), ip.into(), packet::ipproto::ICMPV6, 255, &body)
}

/// Whether this chassis speaks for a router port: the port is here, or it is one that every chassis has.
fn speaks(p: &PortBinding, input: &Input) -> bool {
    match p.options.get("chassis-redirect-port") {
        Some(name) => crate::pinctrl::announce::resident(input, name),
        None => &*p.r#type == "patch" || crate::units::binding::is_here(p, input, &input.local),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use openflow_rs::mods::FlowMod;
    use ovn_schema::sb;
    use std::sync::Arc;

    const THRESHOLD: i64 = 16_000;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    /// A router (key 7) whose rows age, with a port (key 2) and a neighbour behind it; and a forwarding entry.
    fn world(timestamp: i64) -> Input {
        let mut db = sb::Database::default();
        let mut dp = sb::DatapathBinding { tunnel_key: 7, ..Default::default() };
        dp.external_ids.insert("mac_binding_age_threshold".into(), "16".into());
        db.datapath_binding.insert(uuid(7), Arc::new(dp));
        let mac = ["02:00:00:00:00:01 10.0.0.1/24 20.0.0.1/24 fd12::1/64".into()].into();
        let (name, r#type): (Str, Str) = ("lrp".into(), "patch".into());
        let p = PortBinding {
            logical_port: name.clone(),
            datapath: uuid(7),
            tunnel_key: 2,
            mac,
            r#type,
            ..Default::default()
        };
        db.port_binding.insert(uuid(2), Arc::new(p));
        for (n, ip) in [(3, "20.0.0.9"), (4, "fd12::2")] {
            let mac = "02:00:00:00:00:09".into();
            let m = MacBinding { logical_port: name.clone(), ip: ip.into(), mac, datapath: uuid(7), timestamp };
            db.mac_binding.insert(uuid(n), Arc::new(m));
        }
        let f = sb::Fdb { mac: "02:00:00:00:00:09".into(), dp_key: 7, port_key: 2, timestamp };
        db.fdb.insert(uuid(5), Arc::new(f));
        Input::new(db, Local { datapaths: [uuid(7)].into(), ..Local::default() })
    }

    fn flow(table: openflow_rs::TableId, idle_age: u32, fields: &[(FieldId, u128)]) -> FlowStats {
        let mut matches = Match::new().with(of::DATAPATH, 7);
        for (f, v) in fields {
            matches.set(*f, *v);
        }
        let flow = FlowMod { table, matches, ..FlowMod::default() };
        FlowStats { flow, duration_sec: 100, idle_age, packets: 1, bytes: 1, ..Default::default() }
    }

    const MAC: u128 = 0x0200_0000_0009;

    fn speaking(idle_age: u32) -> FlowStats {
        let fields =
            [(of::INPORT, 2), (FieldId::EthSrc, MAC), (FieldId::EthType, 0x0800), (FieldId::IpSrc, 0x1400_0009)];
        flow(tables::MAC_CACHE_USE, idle_age, &fields)
    }

    fn spoken_to(idle_age: u32) -> FlowStats {
        flow(tables::MAC_BINDING, idle_age, &[(of::OUTPORT, 2), (FieldId::Reg0, 0x1400_0009)])
    }

    #[test]
    fn who_speaks_is_renewed() {
        let renewed = |f: FlowStats, since: i64| {
            let mut w = Watch::default();
            w.observe(&[f], &world(100_000), 100_000 + since);
            w.renewed.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(renewed(speaking(1), 3000), [(uuid(3), (Kind::Neighbour, 103_000))]);
        assert!(renewed(speaking(1), 2999).is_empty(), "renewed a short while ago");
        assert!(renewed(speaking(16), 15_000).is_empty(), "silent for too long");
        assert!(renewed(speaking(100), 3000).is_empty(), "it never spoke");
        let station = flow(tables::LOOKUP_FDB, 1, &[(of::INPORT, 2), (FieldId::EthSrc, MAC)]);
        assert_eq!(renewed(station, 3000), [(uuid(5), (Kind::Station, 103_000))]);
        let elsewhere = flow(tables::LOOKUP_FDB, 1, &[(of::INPORT, 3), (FieldId::EthSrc, MAC)]);
        assert!(renewed(elsewhere, 3000).is_empty(), "of another port");
    }

    #[test]
    fn new_time_stamps_are_written_until_they_are_there() {
        let mut w = Watch::default();
        w.observe(&[speaking(1)], &world(100_000), 103_000);
        let mut written = |input: &Input| {
            let mut plan = Plan::new(Arc::new(sb::Database::schema()));
            w.write(input, &mut plan);
            crate::plan::Attempts::default().choose(plan, Instant::now()).len()
        };
        assert_eq!((written(&world(100_000)), written(&world(100_000))), (1, 1));
        assert_eq!(written(&world(103_000)), 0);
        assert_eq!(written(&world(100_000)), 0, "forgotten");
    }

    #[test]
    fn who_is_only_spoken_to_is_asked() {
        let asked = |f: FlowStats, since: i64| {
            let out = Watch::default().observe(&[f], &world(100_000), 100_000 + since);
            out.into_iter().next().map(|m| match m {
                Message::PacketOut(p) => p.packet,
                other => panic!("{other:?}"),
            })
        };
        let arp = asked(spoken_to(1), 3000).unwrap();
        assert_eq!(
            (&arp[..6], &arp[28..32], &arp[38..42]),
            (&[2, 0, 0, 0, 0, 9][..], &[20, 0, 0, 1][..], &[20, 0, 0, 9][..])
        );
        assert_eq!(asked(spoken_to(1), 2999), None, "it spoke a short while ago");
        assert_eq!(asked(spoken_to(17), THRESHOLD), None, "nobody speaks to it");
        let both = Watch::default().observe(&[speaking(1), spoken_to(1)], &world(100_000), 103_000);
        assert!(both.is_empty(), "it has just spoken");
        let v6 = u128::from("fd12::2".parse::<Ipv6Addr>().unwrap());
        let ns = asked(flow(tables::MAC_BINDING, 1, &[(of::OUTPORT, 2), (FieldId::XxReg1, v6)]), 3000).unwrap();
        let h = packet::Headers::parse(&ns).unwrap();
        assert_eq!((&ns[..6], h.addresses(&ns).unwrap().1), (&[2, 0, 0, 0, 0, 9][..], v6));
        assert!(packet::checksum::l4_ok(&ns, &h));
    }

    #[test]
    fn statistics_are_asked_for_while_rows_age() {
        let (mut w, start, mut input) = (Watch::default(), Instant::now(), world(0));
        assert!(w.due(&input, start).is_empty());
        assert_eq!(w.next(), Some(start + Duration::from_secs(3)));
        assert_eq!(w.due(&input, start + Duration::from_secs(3)).len(), 3);
        assert_eq!(w.next(), Some(start + Duration::from_secs(6)));
        input.local.datapaths.clear();
        assert!(w.due(&input, start + Duration::from_secs(60)).is_empty());
        assert_eq!(w.next(), None);
    }
}
