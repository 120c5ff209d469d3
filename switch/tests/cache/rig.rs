//! A switch under test, and what can be seen of it.

use super::gateway::*;
use super::ops::{Op, changed_flow, packet};
use openflow_rs::text::{parse_flow, parse_group};
use openflow_rs::*;
use packet::build;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use switch::conntrack::Zone;
use switch::{BfdPackets, BridgeId, DeviceId, FastPath, KnownWay, Outputs, Switch};

/// A switch, and perhaps a lane that repeats its flows.
pub struct Rig {
    switch: Switch,
    lane: Option<FastPath>,
    seen: u64,
    /// The ways of frames of our own.
    ways: HashMap<(u16, bool), KnownWay>,
    /// Frames that went one of these without a walk.
    pub again: u64,
    /// What NetFlow was told of each flow: packets and bytes.
    told: BTreeMap<String, (u64, u64)>,
}

impl Rig {
    /// Counters of cached flows are late, until they are asked for. There is little room for connections.
    pub fn new(cache: bool) -> Rig {
        Rig::with_room(cache, 40)
    }

    pub fn with_room(cache: bool, room: usize) -> Rig {
        let mut switch = gateway(cache, room);
        switch.count_late();
        Rig { switch, lane: None, seen: 0, ways: HashMap::new(), again: 0, told: BTreeMap::new() }
    }

    /// What NetFlow was told of flows in all; of cached flows, what has been counted.
    pub fn netflow(&mut self) -> &BTreeMap<String, (u64, u64)> {
        for c in self.switch.take_netflow() {
            let t = self.told.entry(format!("{:?}", c.flow)).or_default();
            *t = (t.0 + c.packets, t.1 + c.bytes);
        }
        &self.told
    }

    /// Without the cache, so that every packet walks.
    pub fn with_segments() -> Rig {
        let mut r = Rig::new(false);
        r.switch.set_segments(true);
        r
    }

    pub fn with_lane() -> Rig {
        let mut r = Rig::new(true);
        r.add_lane();
        r
    }

    /// With so few numbers for masks that they begin anew, again and again.
    pub fn with_few_masks(lane: bool) -> Rig {
        let mut r = Rig::new(true);
        r.switch.number_masks_up_to(3);
        if lane {
            r.add_lane();
        }
        r
    }

    pub fn add_lane(&mut self) {
        self.lane = Some(self.switch.fast_path());
    }

    /// Packets whose flow was not where it was looked for first.
    pub fn searched(&self) -> u64 {
        self.switch.cache_stats().searched + self.lane.as_ref().map_or(0, |l| l.stats().searched)
    }

    /// Packets that templates served.
    pub fn templates(&self) -> u64 {
        self.switch.cache_stats().ct_template_packets + self.lane.as_ref().map_or(0, |l| l.stats().ct_template_packets)
    }

    /// A packet comes in, through the lane if there is one.
    pub fn take(&mut self, (device, p): (u32, Vec<u8>), now: Duration, out: &mut Outputs<Vec<u8>>) {
        let Rig { switch, lane, seen, .. } = self;
        let mut batch = vec![(DeviceId(device), p)];
        let Some(lane) = lane else { return switch.process(&mut batch, now, out) };
        switch.view(seen).into_iter().for_each(|v| lane.look(v));
        let (mut missed, mut flows) = (Vec::new(), Vec::new());
        lane.process(&mut batch, now, out, &mut missed);
        lane.sums().into_iter().for_each(|sums| switch.settle_sums(sums, now));
        let tickets: Vec<_> = missed.iter().map(|u| u.ticket).collect();
        switch.walk_for(missed, now, out, &mut flows);
        flows.into_iter().for_each(|f| lane.learn(f, now));
        switch.news().iter().for_each(|n| lane.follow(n));
        tickets.into_iter().for_each(|t| lane.left(t));
    }
}

impl std::ops::Deref for Rig {
    type Target = Switch;

    fn deref(&self) -> &Switch {
        &self.switch
    }
}

impl std::ops::DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Switch {
        &mut self.switch
    }
}

/// Lets packets come in together, or one by one at the same time.
pub fn arrive(s: &mut Rig, packets: Vec<(u32, Vec<u8>)>, together: bool, now: Duration, last: &mut Vec<u8>) -> String {
    let mut out = Outputs::default();
    if together {
        let mut batch = packets.into_iter().map(|(device, p)| (DeviceId(device), p)).collect();
        s.process(&mut batch, now, &mut out);
    } else {
        packets.into_iter().for_each(|p| s.take(p, now, &mut out));
    }
    if let Some((_, p)) = out.packets.iter().rfind(|(to, _)| to.device() == DeviceId(50)) {
        last.clone_from(p);
    }
    seen(&out)
}

/// What came out.
fn seen(out: &Outputs<Vec<u8>>) -> String {
    format!("{:x?} {:?} {:x?}", out.packets, out.events, out.bfd)
}

/// Applies one operation; what can be seen of it comes back.
pub fn step(s: &mut Rig, op: &Op, now: &mut Duration, last: &mut Vec<u8>) -> String {
    match op {
        Op::Later(n) => {
            *now += Duration::from_secs(*n);
            let mut out: Outputs<Vec<u8>> = Outputs::default();
            s.tick(*now, &mut out);
            format!("{:?}", out.events)
        }
        Op::Flush(z) => format!("{:?}", s.apply(BridgeId(0), &Message::CtFlushZone(*z), *now)),
        Op::Limit(zone, limit) => {
            s.conntrack.lock().set_limit(Some(Zone(*zone)), *limit);
            String::new()
        }
        Op::Port(p, up) => {
            s.set_inputs(BridgeId(0), PortNo(*p), |p| p.link.up = *up);
            String::new()
        }
        Op::Config(p, config) => {
            s.set_inputs(BridgeId(0), PortNo(*p), |p| p.config = *config);
            String::new()
        }
        Op::Rule(n, add) => {
            let f = ["in_port=1,udp", "table=3,udp", "table=5,tcp", "in_port=20,icmp"][usize::from(*n)];
            let mut m = parse_flow(&format!("priority=40,{f},actions=output:3")).expect("flow");
            m.command = if *add { FlowModCommand::Add } else { FlowModCommand::DeleteStrict };
            format!("{:?}", s.apply(BridgeId(0), &Message::FlowMod(m), *now))
        }
        Op::Mirror(bridge, which) => {
            /// What mirrors may copy only.
            const FILTERS: [&str; 4] = ["udp", "tcp,tp_dst=80/0xfff0", "ip,nw_dst=10.0.0.0/30,nw_ttl=64", "dl_vlan=5"];
            let mirror = which.map(|(all, received, short, filter)| {
                let ports = (1..60).map(PortNo).filter(|p| p.0 != 3).collect::<std::collections::BTreeSet<_>>();
                let (sources, destinations) =
                    if received { (ports, Default::default()) } else { (Default::default(), ports) };
                let snaplen = short.then_some(40);
                let output = switch::MirrorOutput::Port(PortNo(3));
                switch::Mirror {
                    name: "m".into(),
                    all,
                    sources,
                    destinations,
                    vlans: Default::default(),
                    filter: FILTERS.get(filter).map(|f| f.parse().expect("match")),
                    output,
                    snaplen,
                }
            });
            s.bridge_mut(BridgeId(*bridge)).expect("bridge").set_mirrors(mirror.into_iter().collect());
            String::new()
        }
        Op::Tags(n) => {
            s.underlay.set_tags(*n);
            String::new()
        }
        Op::Bond(None) => {
            s.remove_bond(BridgeId(1), "b");
            String::new()
        }
        Op::Bond(Some((spread, second, both))) => {
            let members = vec![PortNo(2), PortNo(3)];
            let active = Some(PortNo(2 + u16::from(*second)));
            let sent = s.take_bond_bytes(BridgeId(1), "b");
            let bond = switch::Bond {
                name: "b".into(),
                spread: [switch::Spread::Active, switch::Spread::Source, switch::Spread::Transport]
                    [usize::from(*spread)],
                basis: 0,
                active,
                takes: if *both { members.clone() } else { active.into_iter().collect() },
                buckets: (0..switch::bond::BUCKETS)
                    .map(|n| if *both { members.get(n % 2).copied() } else { active })
                    .collect(),
                lacp: *both,
                all_active: false,
                reflects: *spread == 1,
                members,
            };
            s.set_bond(BridgeId(1), bond);
            format!("{sent:?}")
        }
        Op::Neighbour(known) => {
            s.underlay.set_neighbour(ip("192.168.0.2"), known.then_some(PEER));
            String::new()
        }
        Op::Mark(m) => {
            flow(
                s,
                BridgeId(0),
                &format!(
                    "table=1,priority=2,udp,ct_state=+trk-inv actions=ct(commit,table=2,zone=5,nat(src=172.16.0.1),exec(set_field:{m}->ct_mark))"
                ),
                *now,
            );
            String::new()
        }
        Op::Flow { table, matches, high, actions, add } => {
            let m = changed_flow(*table, *matches, *high, *actions, *add);
            format!("{:?}", s.apply(BridgeId(0), &Message::FlowMod(m), *now))
        }
        Op::Replace(other) => {
            let mut list: Vec<FlowMod> =
                s.bridge(BridgeId(0)).expect("bridge").flows().map(|r| r.to_flow_mod()).collect();
            list.sort_by_key(|f| (f.table, f.priority, f.matches.clone()));
            let conj = |f: &FlowMod| f.actions.iter().any(|a| matches!(a, action::Action::Conjunction { .. }));
            if let Some(f) = other.and_then(|n| list.get_mut(n)).filter(|f| !conj(f)) {
                f.actions = parse_flow("actions=output:3").expect("flow").actions;
            }
            let all = FlowMod { command: FlowModCommand::Delete, table: TableId::ALL, ..Default::default() };
            let list: Vec<Message> = std::iter::once(all).chain(list).map(Message::FlowMod).collect();
            format!("{:?}", s.apply_bundle(BridgeId(0), &list, *now))
        }
        Op::Group(n, swap) => {
            let text = group(*n, *swap);
            let g = GroupMod::new(GroupModCommand::Modify, parse_group(&text).expect("group"));
            format!("{:?}", s.apply(BridgeId(0), &Message::GroupMod(g), *now))
        }
        Op::Forget(table) => {
            let all = FlowMod { command: FlowModCommand::Delete, table: *table, ..Default::default() };
            format!("{:?}", s.apply(BridgeId(0), &Message::FlowMod(all), *now))
        }
        Op::Meter(n, rate, command) => {
            format!("{:?}", s.apply(BridgeId(0), &Message::MeterMod(meter(*command, *n, *rate)), *now))
        }
        Op::Own(port, long) => {
            *now += Duration::from_millis(7);
            let at = (*port, *long);
            let (mut out, way) = (Outputs::default(), s.ways.entry(at).or_default());
            let ends = ((ip("169.254.1.1"), 50_000), (ip("169.254.1.0"), 3784));
            let p =
                build::udp(PEER, ROUTER, ends.0, ends.1, 255, &[7; 40][..if *long { 40 } else { 24 }]).expect("udp");
            match s.switch.send_again(way, p, *now, &mut out) {
                Ok(()) => s.again += 1,
                Err(p) => {
                    let to = Match::new().with(FieldId::TunDst, 0xc0a8_0002).with(FieldId::TunId, 0x1234);
                    let actions = [action::Action::Output { port: PortNo(*port), max_len: 0 }];
                    s.switch.packet_out_again(way, BridgeId(0), (&to, &actions), p, *now, &mut out);
                }
            }
            s.count();
            seen(&out)
        }
        Op::Netflow(bridge, on) => {
            s.bridge_mut(BridgeId(*bridge)).expect("bridge").netflow = *on;
            String::new()
        }
        Op::Session(port, to) => {
            let of = to.map(|n| BfdPackets { ip_dst: Some([10, 9, 0, n].into()), ..BfdPackets::default() });
            let b = s.bridge_mut(BridgeId(0)).expect("bridge");
            b.ports.get_mut(&PortNo(*port)).expect("port").bfd_packets = of;
            b.epoch += 1;
            String::new()
        }
        op => {
            *now += Duration::from_millis(7);
            let Some(p) = packet(op, last) else { return String::new() };
            arrive(s, vec![p], false, *now, last)
        }
    }
}

/// Everything else that can be seen.
pub fn state(s: &Switch) -> String {
    let mut v = vec![format!("{:?} {}", s.drops, s.samples)];
    for b in (0..2).filter_map(|i| s.bridge(BridgeId(i))) {
        v.extend(b.flows().map(|r| format!("{} {} {} {:?}", r.table, r.priority, r.matches, r.counters())));
        v.extend(b.ports.values().map(|p| format!("{} {:?}", p.name, p.stats)));
        v.extend(b.groups().map(|g| format!("{:?}", g.buckets())));
        v.extend(b.meters().map(|m| format!("{} {:?}", m.packets, m.dropped)));
        v.extend(b.table_stats.iter().enumerate().filter(|(_, t)| t.0 != 0).map(|t| format!("{t:?}")));
        v.extend(b.macs.iter().map(|m| format!("{m:?}")));
    }
    v.extend(s.conntrack.lock().export().map(|c| format!("{c:?}")));
    v.sort();
    v.join("\n")
}

/// After each operation, what can be seen is what it is without a flow cache.
pub fn equals_translation(mut with: Rig, list: &[Op]) -> Result<(), TestCaseError> {
    let mut without = Rig::new(false);
    let mut now = [Duration::from_secs(10); 2];
    let mut last = [Vec::new(), Vec::new()];
    for op in list {
        let a = step(&mut with, op, &mut now[0], &mut last[0]);
        let b = step(&mut without, op, &mut now[1], &mut last[1]);
        prop_assert_eq!(a, b, "after {:?}", op);
        with.count();
        prop_assert_eq!(state(&with), state(&without), "after {:?}", op);
        prop_assert_eq!(with.netflow(), without.netflow(), "after {:?}", op);
    }
    // Flows become stale with the next packet.
    with.process(&mut Vec::<(DeviceId, Vec<u8>)>::new(), now[0], &mut Outputs::default());
    super::sections::agree(&mut with).map(drop).map_err(TestCaseError::fail)
}
