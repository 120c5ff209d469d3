//! IGMP and MLD: which ports of a switch want which groups (RFC 4541), and queries where the switch is to send them
//! (`IP_Multicast`, ovn-sb(5)). Each chassis says in `IGMP_Group` what it heard on its own ports; northd makes multicast groups
//! of that.
//!
//! What is known of a switch is what its machines said and has not expired. A controller that starts takes over what its
//! chassis' rows say, so that nobody loses a group until the next query.

use crate::encode::of::{self, flag};
use crate::encode::tables;
use crate::input::model::Input;
use crate::plan::Plan;
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{PortKey, Set, Str, Uuid, Write};
use packet::ipproto::IGMP;
use packet::multicast::{Said, Version, read};
use packet::{Mac, build, checksum, ipproto};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The keys of multicast groups that each switch has (northd makes them).
const FLOOD: PortKey = PortKey(0x8000);
const ROUTERS: PortKey = PortKey(0x8002);
const FLOOD_L2: PortKey = PortKey(0x8004);
/// Under which address a row holds the ports behind which multicast routers are.
const ROUTERS_ADDRESS: &str = "mrouters";
/// How long a router that sent a query is taken to be there.
const ROUTER_IDLE: Duration = Duration::from_secs(180);

/// What `IP_Multicast` says of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Config {
    table_size: usize,
    idle: Duration,
    interval: Duration,
    /// Seconds.
    max_response: u64,
    sequence: i64,
    /// Queries: from which Ethernet address and IP addresses.
    querier: Option<(Mac, Vec<IpAddr>)>,
}

#[derive(Debug)]
struct Group {
    version: Version,
    /// By port key: until when the port wants it.
    ports: BTreeMap<PortKey, Instant>,
}

/// A switch on this chassis.
#[derive(Debug)]
struct Switch {
    config: Config,
    groups: BTreeMap<IpAddr, Group>,
    routers: BTreeMap<PortKey, Instant>,
    next_query: Instant,
}

/// All switches that snoop.
#[derive(Debug, Default)]
pub struct Snooping {
    switches: BTreeMap<Uuid, Switch>,
    /// Switches that this run listened to before.
    left: BTreeSet<Uuid>,
    /// Counts changes of what is known.
    changes: u64,
    seen: Option<(u64, u64)>,
    /// The state that the database was last found to have.
    written: Option<[u64; 5]>,
    said: crate::plan::once::Once,
}

fn config(m: &sb::IpMulticast) -> Option<(Config, Option<&'static str>)> {
    if m.enabled != Some(true) {
        return None;
    }
    let seconds = |v: Option<i64>, or: u64| v.and_then(|v| u64::try_from(v).ok()).unwrap_or(or);
    let idle = seconds(m.idle_timeout, 300);
    let mut complaint = None;
    let querier = (m.querier == Some(true)).then(|| {
        let ips: Vec<IpAddr> = [&m.ip4_src, &m.ip6_src].into_iter().filter_map(|a| a.parse().ok()).collect();
        let mac = m.eth_src.parse::<Mac>().ok();
        if ips.is_empty() {
            complaint = Some("IGMP Querier enabled without a valid IPv4 or IPv6 address");
        } else if mac.is_none() {
            complaint = Some("IGMP Querier enabled with invalid ETH src address");
        }
        Some((mac?, ips)).filter(|(_, ips)| !ips.is_empty())
    });
    let c = Config {
        table_size: m.table_size.and_then(|n| usize::try_from(n).ok()).unwrap_or(2048),
        idle: Duration::from_secs(idle),
        interval: Duration::from_secs(seconds(m.query_interval, idle / 2).max(1)),
        max_response: seconds(m.query_max_resp, 1),
        sequence: m.seq_no,
        querier: querier.flatten(),
    };
    Some((c, complaint))
}

impl Snooping {
    /// Takes note of which switches are to be listened to.
    pub fn observe(&mut self, input: &Input, now: Instant) {
        let state = Some((input.version(TableId::IpMulticast), input.interest()));
        if std::mem::replace(&mut self.seen, state) == state {
            return;
        }
        self.changes += 1;
        let mut old = std::mem::take(&mut self.switches);
        for m in input.sb.ip_multicast.values().filter(|m| input.local.datapaths.contains(&m.datapath)) {
            let is_switch =
                input.sb.datapath_binding.get(&m.datapath).is_some_and(|d| crate::input::model::is_switch(d));
            let Some((config, complaint)) = config(m).filter(|_| is_switch) else { continue };
            if let Some(text) = complaint
                && self.said.say(format!("{} {text}", m.datapath))
            {
                tracing::warn!(target: "pinctrl", "{text} (IP_Multicast of datapath {})", m.datapath);
            }
            let s = match old.remove(&m.datapath) {
                Some(mut s) => {
                    if s.config.sequence != config.sequence {
                        // `ovn-sbctl ip-multicast-flush`.
                        s.groups.clear();
                        s.routers.clear();
                    }
                    s.next_query = s.next_query.min(now + config.interval);
                    s.idle_from_now_on(config.idle, now);
                    Switch { config, ..s }
                }
                None => remembered(m.datapath, config, input, now),
            };
            self.left.remove(&m.datapath);
            self.switches.insert(m.datapath, s);
        }
        self.left.extend(old.into_keys());
        self.said.end();
    }

    /// Forgets what expired, and gives the queries that are due.
    pub fn due(&mut self, input: &Input, now: Instant) -> Vec<Message> {
        let mut out = Vec::new();
        for (datapath, s) in &mut self.switches {
            self.changes += u64::from(s.expire(now));
            let Some((mac, ips)) = s.config.querier.as_ref().filter(|_| now >= s.next_query) else { continue };
            s.next_query = now + s.config.interval;
            let Some(dp) = input.sb.datapath_binding.get(datapath) else { continue };
            for packet in ips.iter().filter_map(|ip| query(*mac, *ip, s.config.max_response)) {
                // Every chassis asks its own ports, so nothing goes into tunnels. Listeners on a provider network have
                // nobody else to ask them: without `LOCAL_ONLY` localnet ports are asked too.
                let actions = vec![
                    of::set(of::DATAPATH, dp.key().into()),
                    of::set(of::OUTPORT, FLOOD.into()),
                    Action::resubmit(tables::LOCAL_OUTPUT),
                ];
                out.push(Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions)));
            }
        }
        out
    }

    /// When something expires or a query is due.
    pub fn next(&self) -> Option<Instant> {
        let of = |s: &Switch| {
            let ends = s.groups.values().flat_map(|g| g.ports.values()).chain(s.routers.values()).copied();
            ends.chain(s.config.querier.as_ref().map(|_| s.next_query)).min()
        };
        self.switches.values().filter_map(of).min()
    }

    /// Takes note of what a machine said, and sends it on: reports to the routers, queries to everybody.
    pub fn heard(&mut self, p: &PacketIn, input: &Input, now: Instant) -> Vec<Message> {
        let (datapath, port) = super::place(p);
        let Some(s) = input.datapath(datapath).and_then(|dp| self.switches.get_mut(&dp)) else { return Vec::new() };
        let Some((said, is_query)) = read(&p.packet) else {
            tracing::debug!(target: "pinctrl", "multicast snooping received a malformed packet, which is dropped");
            return Vec::new();
        };
        if is_query && s.asked_by_querier(&p.packet) {
            return Vec::new();
        }
        for one in said {
            self.changes += u64::from(s.take(one, port, now));
        }
        let actions = vec![
            of::set(of::DATAPATH, datapath.into()),
            of::set(of::INPORT, port.into()),
            of::set(of::OUTPORT, if is_query { FLOOD_L2 } else { ROUTERS }.into()),
            // It is not to come here again.
            of::set_flags(flag::SNOOPED),
            Action::resubmit(tables::LARGE_PACKET_DETECT),
        ];
        vec![Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, p.packet.clone(), actions))]
    }

    /// Puts into the plan what the rows of this chassis say otherwise.
    pub fn write(&mut self, input: &Input, plan: &mut Plan) {
        let tables = [TableId::IgmpGroup, TableId::PortBinding, TableId::IpMulticast, TableId::Chassis];
        let versions = tables.map(|t| input.version(t));
        let state = [self.changes, versions[0], versions[1], versions[2], versions[3]];
        let Some(me) = input.local.chassis.filter(|_| self.written != Some(state)) else { return };
        let mut rows: BTreeMap<(Uuid, Str), (Uuid, &sb::IgmpGroup)> = BTreeMap::new();
        let mut clean = true;
        // What is said of other switches is not this run's.
        let mine = |dp: &Uuid| input.local.datapaths.contains(dp) || self.left.contains(dp);
        for (id, g) in input.sb.igmp_group.iter().filter(|(_, g)| g.chassis == Some(me)) {
            match g.datapath.filter(mine) {
                Some(dp) => drop(rows.insert((dp, g.address.clone()), (*id, g))),
                None if g.datapath.is_none() => remove(*id, g, &mut clean, plan),
                None => {}
            }
        }
        for (datapath, s) in &self.switches {
            for (address, protocol, keys) in s.rows() {
                let known = input.ports_of(*datapath).filter(|(_, p)| keys.contains(&p.key()));
                let ports: Set<Uuid> = known.map(|(id, _)| id).collect();
                let before = rows.remove(&(*datapath, Str::from(&*address)));
                if before.is_some_and(|(_, g)| g.ports == ports && *g.protocol == *protocol) {
                    continue;
                }
                clean = false;
                let txn = &mut plan.part(format!("IGMP_Group {address} of datapath {datapath}"), &ports).txn;
                let protocol = Str::from(protocol);
                match before {
                    Some((id, g)) => {
                        txn.exchange_in_row(id, sb::IgmpGroup::ports(&g.ports), sb::IgmpGroup::ports(&ports));
                        if g.protocol != protocol {
                            txn.update_row(id, [sb::IgmpGroup::protocol(&protocol)]);
                        }
                    }
                    None => {
                        let columns = [
                            sb::IgmpGroup::address(&Str::from(&*address)),
                            sb::IgmpGroup::datapath(&Some(*datapath)),
                            sb::IgmpGroup::chassis(&Some(me)),
                            sb::IgmpGroup::chassis_name(&input.local.chassis_name),
                            sb::IgmpGroup::ports(&ports),
                            sb::IgmpGroup::protocol(&protocol),
                        ];
                        txn.insert_row(columns);
                    }
                }
            }
        }
        for (id, g) in rows.into_values() {
            remove(id, g, &mut clean, plan);
        }
        self.written = clean.then_some(state);
    }
}

fn remove(id: Uuid, g: &sb::IgmpGroup, clean: &mut bool, plan: &mut Plan) {
    *clean = false;
    plan.part(format!("IGMP_Group {} {id}", g.address), ()).txn.delete("IGMP_Group", id);
}

/// A switch of which nothing is known but what an earlier run of the controller wrote.
fn remembered(datapath: Uuid, config: Config, input: &Input, now: Instant) -> Switch {
    let mut s = Switch { next_query: now, config, groups: BTreeMap::new(), routers: BTreeMap::new() };
    let mine = |g: &&std::sync::Arc<sb::IgmpGroup>| g.chassis == input.local.chassis && g.datapath == Some(datapath);
    for g in input.sb.igmp_group.values().filter(mine) {
        let keys = g.ports.iter().filter_map(|p| Some(input.sb.port_binding.get(p)?.key()));
        if &*g.address == ROUTERS_ADDRESS {
            s.routers = keys.map(|k| (k, now + ROUTER_IDLE)).collect();
        } else if let Ok(address) = g.address.parse() {
            let version = Version::ALL.iter().find(|(_, n)| **n == *g.protocol).map_or(Version::Igmp3, |(v, _)| *v);
            let ports = keys.map(|k| (k, now + s.config.idle)).collect();
            s.groups.insert(address, Group { version, ports });
        }
    }
    s
}

impl Switch {
    /// Whether a query is that of this switch's querier on another chassis, which a provider network brought: its sender
    /// routes nothing, and the ports here are asked from here.
    fn asked_by_querier(&self, packet: &[u8]) -> bool {
        self.config.querier.as_ref().is_some_and(|(mac, _)| packet.get(6..12) == Some(&mac.0[..]))
    }

    /// Another idle time counts for what is known already too, from when it was last heard of.
    fn idle_from_now_on(&mut self, idle: Duration, now: Instant) {
        let before = self.config.idle;
        if idle == before {
            return;
        }
        for until in self.groups.values_mut().flat_map(|g| g.ports.values_mut()) {
            *until = until.checked_sub(before).unwrap_or(now) + idle;
        }
    }

    /// Forgets what expired. Whether there was any.
    fn expire(&mut self, now: Instant) -> bool {
        let count = |s: &Switch| s.routers.len() + s.groups.values().map(|g| g.ports.len()).sum::<usize>();
        let before = count(self);
        self.routers.retain(|_, until| now < *until);
        self.groups.values_mut().for_each(|g| g.ports.retain(|_, until| now < *until));
        self.groups.retain(|_, g| !g.ports.is_empty());
        before != count(self)
    }

    /// Whether something changed.
    fn take(&mut self, said: Said, port: PortKey, now: Instant) -> bool {
        match said {
            Said::Query => self.routers.insert(port, now + ROUTER_IDLE).is_none(),
            // A port with a router behind it gets everything.
            Said::Join(..) if self.routers.contains_key(&port) => false,
            Said::Join(address, version) => {
                if !self.groups.contains_key(&address) {
                    self.make_room();
                }
                let g = self.groups.entry(address).or_insert_with(|| Group { version, ports: BTreeMap::new() });
                let other = std::mem::replace(&mut g.version, version) != version;
                g.ports.insert(port, now + self.config.idle).is_none() || other
            }
            Said::Leave(address) => {
                let Some(g) = self.groups.get_mut(&address) else { return false };
                let left = g.ports.remove(&port).is_some();
                if g.ports.is_empty() {
                    self.groups.remove(&address);
                }
                left
            }
        }
    }

    /// The groups whose last report is longest ago give way.
    fn make_room(&mut self) {
        while self.groups.len() >= self.config.table_size.max(1) {
            let oldest = self.groups.iter().min_by_key(|(_, g)| g.ports.values().max().copied()).map(|(a, _)| *a);
            let Some(a) = oldest else { return };
            self.groups.remove(&a);
        }
    }

    /// The rows that there should be: address, protocol, ports by key.
    fn rows(&self) -> Vec<(String, &'static str, BTreeSet<PortKey>)> {
        let groups = self.groups.iter();
        let mut out: Vec<_> =
            groups.map(|(a, g)| (a.to_string(), g.version.name(), g.ports.keys().copied().collect())).collect();
        out.push((ROUTERS_ADDRESS.to_string(), "", self.routers.keys().copied().collect()));
        out
    }
}

/// A general query, of IGMPv3 or MLDv2.
fn query(mac: Mac, source: IpAddr, max_response: u64) -> Option<Vec<u8>> {
    match source {
        IpAddr::V4(_) => {
            // Tenths of seconds.
            let tenths = u8::try_from(max_response.saturating_mul(10)).unwrap_or(u8::MAX);
            let mut body = vec![0x11, tenths, 0, 0, 0, 0, 0, 0, 0, tenths, 0, 0];
            let sum = checksum::of(&body).to_be_bytes();
            body[2..4].copy_from_slice(&sum);
            let to = Ipv4Addr::new(224, 0, 0, 1).into();
            let mut p = build::ip_packet(Mac([1, 0, 0x5e, 0, 0, 1]), mac, source, to, IGMP, 1, &body)?;
            // It is not to be fragmented.
            *p.get_mut(20)? = 0x40;
            checksum::set_ipv4(&mut p, 14);
            Some(p)
        }
        IpAddr::V6(_) => {
            let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            // A hop-by-hop header with the router alert (RFC 2711), and the query behind it.
            let mut body = vec![ipproto::ICMPV6, 0, 5, 2, 0, 0, 0, 0, 130, 0, 0, 0];
            body.extend(u16::try_from(max_response.saturating_mul(1000)).unwrap_or(u16::MAX).to_be_bytes());
            body.extend([0; 18]);
            body.extend([0, u8::try_from(max_response).unwrap_or(u8::MAX), 0, 0]);
            // The Ethernet address is ovn-controller's; RFC 2464 would have 33:33:00:00:00:01.
            build::ip_packet(Mac([0x33, 0x33, 0, 0, 0, 0]), mac, source, to.into(), 0, 1, &body)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use std::sync::Arc;

    const ME: Uuid = Uuid::from_u128(1);
    const DP: Uuid = Uuid::from_u128(7);

    fn world(change: impl Fn(&mut sb::IpMulticast), rows: Vec<sb::IgmpGroup>) -> Input {
        let mut db = sb::Database::default();
        let d = sb::DatapathBinding { tunnel_key: 7, r#type: Some("logical-switch".into()), ..Default::default() };
        db.datapath_binding.insert(DP, Arc::new(d));
        for n in 2..5 {
            let p = sb::PortBinding {
                logical_port: format!("p{n}").into(),
                datapath: DP,
                tunnel_key: n,
                ..Default::default()
            };
            db.port_binding.insert(Uuid::from_u128(n as u128), Arc::new(p));
        }
        let mut m = sb::IpMulticast { datapath: DP, enabled: Some(true), ..Default::default() };
        change(&mut m);
        db.ip_multicast.insert(Uuid::from_u128(20), Arc::new(m));
        for (n, g) in (30..).zip(rows) {
            db.igmp_group.insert(Uuid::from_u128(n), Arc::new(g));
        }
        Input::new(db, Local { chassis: Some(ME), datapaths: [DP].into(), ..Local::default() })
    }

    fn igmp(body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        let sum = checksum::of(&body).to_be_bytes();
        body[2..4].copy_from_slice(&sum);
        let (from, to) = ("10.0.0.9".parse().unwrap(), "224.0.0.22".parse().unwrap());
        build::ip_packet(Mac([1, 0, 0x5e, 0, 0, 22]), Mac([2, 0, 0, 0, 0, 9]), from, to, IGMP, 1, &body).unwrap()
    }

    fn mld(body: &[u8]) -> Vec<u8> {
        let body = [&[58, 0, 5, 2, 0, 0, 0, 0][..], body].concat();
        let (from, to) = ("fe80::9".parse().unwrap(), "ff02::16".parse().unwrap());
        build::ip_packet(Mac([0x33, 0x33, 0, 0, 0, 22]), Mac([2, 0, 0, 0, 0, 9]), from, to, 0, 1, &body).unwrap()
    }

    fn hear(s: &mut Snooping, packet: Vec<u8>, port: u128, input: &Input, now: Instant) -> Option<PortKey> {
        let mut p = PacketIn { packet, ..PacketIn::default() };
        p.metadata.set(of::DATAPATH, 7).set(of::INPORT, port);
        let out = s.heard(&p, input, now);
        let Some(Message::PacketOut(p)) = out.first() else { return None };
        p.actions.iter().find_map(|a| match a {
            Action::SetField { field, value, .. } if *field == of::OUTPORT => {
                Some(PortKey::from_register(*value as u32))
            }
            _ => None,
        })
    }

    fn known(s: &Snooping) -> Vec<(String, &'static str, Vec<PortKey>)> {
        let rows = s.switches[&DP].rows().into_iter();
        rows.map(|(a, p, k)| (a, p, k.into_iter().collect())).collect()
    }

    #[test]
    fn reports_of_all_versions_are_learned_and_left() {
        let (input, now) = (world(|_| {}, Vec::new()), Instant::now());
        let mut s = Snooping::default();
        s.observe(&input, now);
        let v3 = |kind| igmp(&[0x22, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0, 239, 0, 0, 3]);
        assert_eq!(hear(&mut s, igmp(&[0x12, 0, 0, 0, 239, 0, 0, 1]), 2, &input, now), Some(ROUTERS));
        hear(&mut s, igmp(&[0x16, 0, 0, 0, 239, 0, 0, 2]), 2, &input, now);
        hear(&mut s, v3(4), 3, &input, now);
        let group = "ff0a::5".parse::<Ipv6Addr>().unwrap().octets();
        hear(&mut s, mld(&[&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group].concat()), 4, &input, now);
        let all = known(&s);
        let names: Vec<(&str, &str)> = all.iter().map(|(a, p, _)| (&**a, *p)).collect();
        let v4 = [("239.0.0.1", "IGMPv1"), ("239.0.0.2", "IGMPv2"), ("239.0.0.3", "IGMPv3")];
        assert_eq!(names, [&v4[..], &[("ff0a::5", "MLDv2"), ("mrouters", "")]].concat());
        hear(&mut s, igmp(&[0x17, 0, 0, 0, 239, 0, 0, 2]), 2, &input, now);
        hear(&mut s, v3(3), 3, &input, now);
        assert_eq!(known(&s).len(), 3, "two were left");
        s.due(&input, now + Duration::from_secs(300));
        assert_eq!(known(&s).len(), 1, "the others expired");
    }

    #[test]
    fn a_query_makes_a_router_whose_port_joins_nothing() {
        let (input, now) = (world(|_| {}, Vec::new()), Instant::now());
        let mut s = Snooping::default();
        s.observe(&input, now);
        let q = query(Mac([2, 0, 0, 0, 0, 9]), "10.0.0.9".parse().unwrap(), 1).unwrap();
        assert_eq!(hear(&mut s, q, 3, &input, now), Some(FLOOD_L2));
        hear(&mut s, igmp(&[0x16, 0, 0, 0, 239, 0, 0, 2]), 3, &input, now);
        assert_eq!(known(&s), [("mrouters".to_string(), "", vec![PortKey(3)])]);
        let mut broken = igmp(&[0x16, 0, 0, 0, 239, 0, 0, 2]);
        *broken.last_mut().unwrap() ^= 1;
        assert_eq!(hear(&mut s, broken, 2, &input, now), None, "its checksum is wrong");
    }

    #[test]
    fn the_table_has_its_size_and_is_flushed_on_demand() {
        let mut s = Snooping::default();
        let (input, now) = (world(|m| m.table_size = Some(2), Vec::new()), Instant::now());
        s.observe(&input, now);
        for n in 1..4u8 {
            let t = now + Duration::from_millis(n.into());
            hear(&mut s, igmp(&[0x16, 0, 0, 0, 239, 0, 0, n]), 2, &input, t);
        }
        let names: Vec<String> = known(&s).into_iter().map(|(a, ..)| a).collect();
        assert_eq!(names, ["239.0.0.2", "239.0.0.3", "mrouters"]);
        let mut flushed = world(|m| m.seq_no = 1, Vec::new());
        let more = flushed.local.datapaths.iter().copied().chain([Uuid::from_u128(99)]).collect();
        drop(flushed.set_datapaths(more));
        s.observe(&flushed, now);
        assert_eq!(known(&s).len(), 1);
    }

    #[test]
    fn queries_go_out_in_time() {
        let input = world(
            |m| {
                (m.querier, m.query_interval) = (Some(true), Some(10));
                (m.eth_src, m.ip4_src, m.ip6_src) = ("02:00:00:00:00:01".into(), "10.0.0.1".into(), "fe80::1".into());
            },
            Vec::new(),
        );
        let (mut s, now) = (Snooping::default(), Instant::now());
        s.observe(&input, now);
        let sent = s.due(&input, now);
        assert_eq!(sent.len(), 2);
        for m in &sent {
            let Message::PacketOut(p) = m else { panic!() };
            assert_eq!(read(&p.packet), Some((vec![Said::Query], true)));
            let flags = p.actions.iter().any(|a| matches!(a, Action::SetField { field, .. } if *field == of::FLAGS));
            assert!(!flags, "localnet ports are asked too: {:?}", p.actions);
            // Another chassis hears it from a provider network: no router is there.
            assert_eq!(hear(&mut s, p.packet.clone(), 3, &input, now), None);
        }
        assert_eq!(known(&s), [("mrouters".to_string(), "", Vec::new())]);
        let other = query(Mac([2, 0, 0, 0, 0, 2]), "10.0.0.2".parse().unwrap(), 1).unwrap();
        assert_eq!(hear(&mut s, other, 3, &input, now), Some(FLOOD_L2));
        assert_eq!(known(&s), [("mrouters".to_string(), "", vec![PortKey(3)])]);
        assert!(s.due(&input, now + Duration::from_secs(9)).is_empty());
        assert_eq!(s.next(), Some(now + Duration::from_secs(10)));
    }

    #[test]
    fn another_idle_time_counts_for_groups_that_are_known() {
        let idle = |seconds| world(move |m| m.idle_timeout = Some(seconds), Vec::new());
        let (mut s, now) = (Snooping::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        s.observe(&idle(300), now);
        hear(&mut s, igmp(&[0x16, 0, 0, 0, 239, 0, 0, 1]), 2, &idle(300), now);
        let mut changes = 0;
        let mut changed = |seconds, at| {
            // Each input differs from the one before also in what it counts as a change.
            changes += 1;
            let mut input = idle(seconds);
            for n in 0..changes {
                drop(input.set_datapaths([DP, Uuid::from_u128(100 + n)].into()));
            }
            s.observe(&input, at);
            assert_eq!(s.next(), Some(after(seconds as u64)));
            s.due(&input, at);
            known(&s).len() - 1
        };
        assert_eq!(changed(20, after(5)), 1);
        assert_eq!(changed(300, after(10)), 1, "longer again");
        assert_eq!(changed(20, after(25)), 0, "nobody said so for longer than that");
    }

    #[test]
    fn a_restart_keeps_what_the_rows_say_and_others_rows_are_left_alone() {
        let row = |chassis: Uuid, address: &str, datapath| sb::IgmpGroup {
            address: address.into(),
            chassis: Some(chassis),
            datapath: Some(datapath),
            ports: [Uuid::from_u128(2)].into_iter().collect(),
            protocol: if address == "mrouters" { "".into() } else { "IGMPv2".into() },
            ..Default::default()
        };
        let rows = vec![
            row(ME, "239.0.0.1", DP),
            row(ME, "mrouters", DP),
            row(ME, "239.0.0.9", Uuid::from_u128(8)),
            row(Uuid::from_u128(2), "239.0.0.8", DP),
        ];
        let (input, now) = (world(|_| {}, rows), Instant::now());
        let mut s = Snooping::default();
        s.observe(&input, now);
        assert_eq!(known(&s).len(), 2);
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        s.write(&input, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, now);
        assert!(out.is_empty(), "{out:?}");
        // The rows of a switch that is not here any more go.
        let mut gone = world(|_| {}, vec![row(ME, "239.0.0.1", DP)]);
        drop(gone.set_datapaths(BTreeSet::new()));
        s.observe(&gone, now);
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        s.write(&gone, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, now);
        assert_eq!((out.len(), &out[0]["op"]), (1, &"delete".into()));
        let off = world(|m| m.enabled = Some(false), vec![row(ME, "239.0.0.1", DP)]);
        let (mut s, mut plan) = (Snooping::default(), Plan::new(Arc::new(sb::Database::schema())));
        s.observe(&off, now);
        s.write(&off, &mut plan);
        assert_eq!(crate::plan::Attempts::default().choose(plan, now).len(), 1);
    }
}
