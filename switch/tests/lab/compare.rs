//! Every recorded table in both switches, and packets aimed at its flows.
//!
//! `COMPARE_STEP=1` takes every table (`make compare-switch`), otherwise a sample; `COMPARE_FIRST=N` is the first table of
//! it, so that several runs can share the work; `COMPARE_PACKETS=N` says how many packets each gets, `COMPARE_ONLY=TEXT`
//! which tables (made small where they disagree), `COMPARE_SEED=N` where chance starts, `COMPARE_SHOW=N` how many differences are shown.

use crate::grammar::NAT_PORTS;
use crate::ovs::{Ovs, PORTS, option_map};
use crate::packets;
use crate::walk::{Tables, aim};
use openflow_rs::action::PacketInReason;
use openflow_rs::message::{FlowStatsRequest, PacketIn};
use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use rand::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use switch::conntrack::Connection;
use switch::{BridgeId, DeviceId, DropReason, Event, Outputs, Port, PortKind, Switch};

/// Tables left out: these make packets pass Open vSwitch's resubmit limit, and what it then does differs from run to run.
const EXCEPT: &str = "resubmit-overfl";
/// Where we drop packets that Open vSwitch lets go on untracked, as new or as invalid: docs/compatibility.md says why.
const ON_PURPOSE: [DropReason; 6] = [
    DropReason::FragmentOverlap,
    DropReason::NatExhausted,
    DropReason::ConntrackFull,
    DropReason::ZoneLimit,
    // Behind these limits, what Open vSwitch still sends differs from run to run.
    DropReason::TooDeep,
    DropReason::TooManyResubmits,
];
/// Looks for packet-ins that are missing, 10 ms apart.
const LATER: usize = 100;
/// Milliseconds between two packets.
const PACE: u64 = 20;
/// Answers to answers, at most.
const ROUNDS: usize = 3;
/// Packets of a burst at most, and of one run of it: from four of a flow on its steps are decoded first.
const BURST: usize = 32;
const RUN: usize = 12;
/// Bytes of a frame that dummy devices send.
const LONGEST: usize = 1500;

/// A recorded table.
#[derive(Default)]
pub struct Case {
    pub name: String,
    pub flows: Vec<FlowMod>,
    pub groups: Vec<Group>,
    pub meters: Vec<MeterConfig>,
}

impl Case {
    fn read(&mut self, kind: &str, text: &str) {
        match kind {
            "flows" => {
                let lines = text.lines().filter(|l| l.contains("actions="));
                self.flows = lines.map(|l| parse_flow(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
            }
            "groups" => {
                let lines = text.lines().filter(|l| l.starts_with(" group_id="));
                self.groups = lines.map(|l| parse_group(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
            }
            _ => {
                let parts = text.split("\n\n").filter_map(|m| m.find("meter=").and_then(|i| m.get(i..)));
                self.meters = parts.map(|m| parse_meter(m).unwrap_or_else(|e| panic!("{m}: {e}"))).collect();
            }
        }
    }

    /// Leaves one bucket to each group that selects by hash: which one a packet takes is each switch's own affair.
    pub fn settle_groups(&mut self, rng: &mut StdRng) {
        for g in self.groups.iter_mut().filter(|g| g.group_type == GroupType::Select && g.buckets.len() > 1) {
            let b = g.buckets.swap_remove(rng.random_range(0..g.buckets.len()));
            g.buckets = vec![b];
        }
    }

    /// All as messages, in an order that loads.
    pub fn messages(&self) -> Vec<Message> {
        let mut list: Vec<Message> = self
            .meters
            .iter()
            .map(|m| Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter: m.clone() }))
            .collect();
        list.extend(self.groups.iter().map(|g| Message::GroupMod(GroupMod::new(GroupModCommand::Add, g.clone()))));
        list.extend(self.flows.iter().cloned().map(Message::FlowMod));
        list
    }
}

/// The recorded tables.
pub fn cases() -> Vec<Case> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for (name, text) in golden::files(&[".flows", ".groups", ".meters"]).unwrap_or_default() {
        let Some((base, kind)) = name.rsplit_once('.') else { continue };
        let case = cases.entry(base.to_string()).or_default();
        case.name = base.to_string();
        case.read(kind, &text);
    }
    cases.into_values().filter(|c| !c.flows.is_empty() && !c.name.contains(EXCEPT)).collect()
}

/// What a comparison came to.
#[derive(Default)]
pub struct Count {
    pub flows: usize,
    /// Flows that this Open vSwitch does not take.
    pub refused: usize,
    pub packets: usize,
    pub sent: usize,
    pub packet_ins: usize,
    pub connections: usize,
    pub hit: usize,
    /// Packets that Open vSwitch forgets behind a pause within `clone`.
    pub cut: usize,
    /// Packets that only we drop, on purpose.
    pub dropped: usize,
    /// Packets that Open vSwitch drops behind six recirculations.
    pub deep: usize,
    pub bad: Vec<String>,
}

impl Count {
    /// Adds what another table gave, but for what disagrees there.
    pub fn add(&mut self, c: &Count) {
        self.flows += c.flows;
        self.refused += c.refused;
        self.packets += c.packets;
        self.sent += c.sent;
        self.packet_ins += c.packet_ins;
        self.connections += c.connections;
        self.hit += c.hit;
        self.cut += c.cut;
        self.dropped += c.dropped;
        self.deep += c.deep;
    }
}

/// A message as `ovs-ofctl` would show it.
fn shown(m: &Message) -> String {
    match m {
        Message::FlowMod(f) => text::flow_to_string(f),
        Message::GroupMod(g) => text::group_to_string(&g.group),
        m => format!("{m:?}"),
    }
}

/// Whether a connection has a number that its switch chose for it.
fn renumbered(c: &Connection) -> bool {
    match c.original.proto {
        1 | 58 => c.original.sport != c.reply.sport,
        _ => c.original.sport != c.reply.dport && !NAT_PORTS.contains(&c.reply.dport),
    }
}

pub fn hex(p: &[u8]) -> String {
    p.iter().map(|b| format!("{b:02x}")).collect()
}

/// Our switch beside Open vSwitch.
pub struct Pair<'a> {
    pub ovs: &'a mut Ovs,
    pub ours: Switch,
    pub bridge: BridgeId,
    now: Duration,
    /// We drop the packet on purpose.
    dropped: bool,
    /// Open vSwitch recirculated the packet too often.
    deep: bool,
    /// How often the packet has been resumed.
    resumed: u32,
    /// A meter has dropped: of a packet, or of a clone alone, for which Open vSwitch may take the packet.
    metered: bool,
    /// A fragment may wait where flows clone, or go on behind a `ct`.
    held: bool,
    /// Nothing of what is below happened to the packet, nor was it paused.
    calm: bool,
    /// Ours has given a connection another ICMP id, as Open vSwitch never does, or looked for a free port, which is another
    /// one there: from here on the two differ.
    renumbered: bool,
    /// One of the two went on with a packet where the other did not: counters and connections may differ.
    strayed: bool,
    pub count: Count,
    /// Flows' counters are compared.
    pub counters: bool,
    /// Flows compare lengths of packets.
    pub lengths: bool,
    /// Flows clone packets.
    pub clones: bool,
    /// Flows go on behind a `ct`.
    pub behind: bool,
    /// What Open vSwitch refuses, ours gets as well, and must refuse with the same error.
    pub errors: bool,
    /// Looks for packet-ins that are missing.
    pub patience: usize,
    /// Packets that both got, those together that ours got at once.
    pub log: Vec<Vec<(u16, Vec<u8>)>>,
    name: String,
}

impl<'a> Pair<'a> {
    pub fn new(ovs: &'a mut Ovs, name: &str) -> Pair<'a> {
        ovs.clear();
        let (ours, bridge) = our_switch();
        Pair {
            ovs,
            ours,
            bridge,
            now: Duration::from_secs(1000),
            dropped: false,
            deep: false,
            metered: false,
            held: false,
            calm: false,
            resumed: 0,
            renumbered: false,
            strayed: false,
            count: Count::default(),
            counters: true,
            lengths: false,
            clones: false,
            behind: false,
            errors: false,
            patience: LATER,
            log: Vec::new(),
            name: name.into(),
        }
    }

    /// Notes what flows do of which it makes something else.
    pub fn learn_of(&mut self, flows: &[FlowMod]) {
        let any = |is: fn(&Action) -> bool| flows.iter().any(|f| f.actions.iter().any(is));
        // It translates both outcomes, and counts packets in both.
        self.lengths = any(|a| matches!(a, Action::CheckPktLarger { .. }));
        self.clones = any(|a| matches!(a, Action::Clone(_)));
        let ct = |a: &Action| matches!(a, Action::Ct(_));
        self.behind = flows.iter().any(|f| f.actions.iter().rev().skip(1).any(ct));
    }

    fn bad(&mut self, text: String) {
        self.count.bad.push(format!("{}: {text}", self.name));
    }

    /// Gives both the same messages. What Open vSwitch refuses, ours does not get; gives those that both took.
    pub fn load(&mut self, list: &[Message]) -> Vec<usize> {
        let refused: BTreeMap<usize, (u16, u16)> =
            self.ovs.apply(list).into_iter().map(|(i, t, c)| (i, (t, c))).collect();
        let mut taken = Vec::new();
        for (i, m) in list.iter().enumerate() {
            if let Some((error_type, code)) = refused.get(&i) {
                if !self.errors {
                    println!("{}: not taken with {error_type}, {code}: {}", self.name, shown(m));
                    continue;
                }
                let ours = self.take(m).map_err(|e| e.numbers());
                if ours != Err((*error_type, *code)) {
                    self.bad(format!("they refuse with {error_type}, {code}, ours is {ours:?}: {}", shown(m)));
                }
                continue;
            }
            match self.take(m) {
                Ok(()) => taken.push(i),
                Err(e) => self.bad(format!("only we refuse {}: {e}", shown(m))),
            }
        }
        self.count.refused += refused.len();
        taken
    }

    /// Gives ours a message as it comes over the wire.
    fn take(&mut self, m: &Message) -> Result<(), openflow_rs::wire::DecodeError> {
        let (_, m) = Message::decode(&m.encode(Version::Of15, 1))?;
        self.ours.apply(self.bridge, &m, self.now)
    }

    /// Lets time pass in both.
    pub fn pass(&mut self, ms: u64) {
        self.ovs.warp(ms);
        self.now += Duration::from_millis(ms);
    }

    /// One packet through both; gives what came out of ours.
    pub fn packet(&mut self, port: u16, p: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.burst(&[(port, p.to_vec())])
    }

    /// Packets through both, through ours at once.
    pub fn burst(&mut self, burst: &[(u16, Vec<u8>)]) -> Vec<(u16, Vec<u8>)> {
        let cast = |p: &[u8]| if p[0] & 1 != 0 { "multicast" } else { "unicast" };
        let told = |(port, p): &(u16, Vec<u8>)| format!("port {port} {} packet {}", cast(p), hex(p));
        let what = burst.iter().map(told).collect::<Vec<_>>().join("\n  ");
        self.pass(PACE);
        self.count.packets += burst.len();
        self.log.push(burst.to_vec());
        for (port, p) in burst {
            self.ovs.receive(*port, p);
        }
        let mut out = Outputs::default();
        let dropped = |s: &Switch| ON_PURPOSE.iter().map(|r| s.drops.get(*r)).sum::<u64>();
        let before = dropped(&self.ours);
        let mut ours = burst.iter().map(|(port, p)| (DeviceId(u32::from(*port)), p.clone())).collect();
        self.ours.process(&mut ours, self.now, &mut out);
        // Where a datagram is gone because its fragments overlap, they may be the beginning of another there.
        let fragment = |p: &[u8]| packet::Headers::parse(p).is_some_and(|h| h.fragment);
        let fragments = burst.iter().any(|(_, p)| fragment(p));
        let overlapped = fragments && self.ours.drops.get(DropReason::FragmentOverlap) != 0;
        // Behind a meter that drops, flows go on to count there.
        let meters = self.ours.bridge(self.bridge).into_iter().flat_map(|b| b.meters());
        self.metered = meters.flat_map(|m| m.dropped).any(|(packets, _)| packets != 0);
        self.strayed |= self.metered;
        // It may take a fragment out of what is behind a clone with the `ct` where it waits.
        self.held = fragments && (self.behind || self.clones);
        self.counters &= !self.held;
        self.dropped = overlapped || dropped(&self.ours) != before;
        self.renumbered |= self.ours.conntrack.lock().export().any(|c| renumbered(&c));
        self.strayed |= self.renumbered;
        self.outcome(out, &what)
    }

    fn outcome(&mut self, out: Outputs<Vec<u8>>, what: &str) -> Vec<(u16, Vec<u8>)> {
        // A dummy device pads to the least Ethernet length.
        let pad = |mut p: Vec<u8>| {
            p.resize(p.len().max(60), 0);
            packets::forget_no_sum(&mut p);
            p
        };
        let mut mine: Vec<(u16, Vec<u8>)> =
            out.packets.into_iter().map(|(to, p)| (to.device().0 as u16, pad(p))).collect();
        let mut theirs: Vec<(u16, Vec<u8>)> = self.ovs.sent().into_iter().map(|(d, p)| (d, pad(p))).collect();
        // Those that its other threads send may come a little later.
        for _ in 0..self.patience {
            if theirs.len() >= mine.len() || mine.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            theirs.extend(self.ovs.sent().into_iter().map(|(d, p)| (d, pad(p))));
        }
        let all = mine.clone();
        self.calm = false;
        if self.renumbered {
            self.ovs.packet_ins();
            return all;
        }
        self.count.sent += mine.len();
        mine.sort();
        theirs.sort();
        // After a pause within `clone`, Open vSwitch 3.1 does nothing more with the packet; we go on behind the clone.
        let pauses =
            out.events.iter().any(|e| matches!(e, Event::PacketIn { packet_in: p, .. } if p.continuation.is_some()));
        let cut = pauses && mine.len() > theirs.len() && theirs.iter().all(|x| mine.contains(x));
        // Groups of ports are walked through clones.
        self.counters &= !(pauses && (self.clones || what.contains("multicast")));
        let deep = self.ovs.too_deep();
        self.strayed |= cut || self.dropped || deep;
        self.deep = deep;
        self.calm = !pauses && !cut && !self.dropped && !deep;
        if deep && theirs.iter().all(|x| mine.contains(x)) {
            self.count.deep += 1;
        } else if cut {
            self.count.cut += 1;
        } else if self.dropped && mine.is_empty()
            || (self.metered || self.held) && theirs.iter().all(|x| mine.contains(x))
        {
            self.count.dropped += 1;
        } else if mine != theirs {
            let (a, b): (Vec<_>, Vec<_>) = (
                mine.iter().filter(|x| !theirs.contains(x)).collect(),
                theirs.iter().filter(|x| !mine.contains(x)).collect(),
            );
            let list = |v: Vec<&(u16, Vec<u8>)>| {
                v.iter().map(|(d, p)| format!("{d}:{}", hex(p))).collect::<Vec<_>>().join(" ")
            };
            let text = format!("{what}\n  only ours   {}\n  only theirs {}", list(a), list(b));
            self.bad(text);
        }
        let mine: Vec<PacketIn> = out
            .events
            .into_iter()
            .filter_map(|e| match e {
                // A controller that has not asked for these gets none there.
                Event::PacketIn { packet_in: p, .. } if p.reason == PacketInReason::InvalidTtl => None,
                Event::PacketIn { packet_in, .. } => Some(packets::forget_ports_of_later_fragment(*packet_in)),
                _ => None,
            })
            .collect();
        let mut theirs = self.ovs.packet_ins();
        // Those of a packet that goes on behind a pause may come a little later.
        for _ in 0..self.patience {
            if theirs.len() >= mine.len() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            theirs.extend(self.ovs.packet_ins());
        }
        if std::mem::take(&mut self.dropped) && mine.is_empty() {
            theirs.clear();
        }
        self.packet_ins(mine, theirs, what);
        all
    }

    fn packet_ins(&mut self, mine: Vec<PacketIn>, mut theirs: Vec<PacketIn>, what: &str) {
        let unsaid = Unsaid { pauses: self.lengths, all: self.resumed > 0 };
        self.count.packet_ins += mine.len();
        let mut paused = false;
        for p in mine {
            let mut shown = plain(&p, unsaid);
            match theirs.iter().position(|q| plain(q, unsaid) == shown) {
                Some(i) => {
                    let q = theirs.remove(i);
                    paused |= p.continuation.is_some();
                    if p.continuation.is_some() {
                        self.resume(&p, &q, what);
                    }
                }
                None if self.deep => {}
                // It did nothing more behind the pause.
                None if paused && theirs.is_empty() => {
                    self.count.cut += 1;
                    self.strayed = true;
                }
                None => {
                    // What differs is easier to see beside the likeliest of theirs.
                    if let Some(i) = theirs.iter().position(|q| q.table == p.table && q.userdata == p.userdata) {
                        shown = format!("{shown}\n         theirs {}", plain(&theirs.remove(i), unsaid));
                    }
                    self.bad(format!("{what}\n  packet-in {shown}"));
                }
            }
        }
        for q in theirs {
            self.bad(format!("{what}\n  packet-in only theirs {}", plain(&q, unsaid)));
        }
    }

    fn resume(&mut self, mine: &PacketIn, theirs: &PacketIn, what: &str) {
        let refused = self.ovs.apply(&[Message::Resume(theirs.clone())]);
        // Some of its own that have an action set, Open vSwitch 3.1 does not take.
        if !refused.is_empty() {
            self.strayed = true;
            self.count.cut += 1;
            return;
        }
        let mut out = Outputs::default();
        if let Err(e) = self.ours.resume(mine, &Vec::new(), self.now, &mut out) {
            self.bad(format!("{what}\n  resume: {e:?}"));
        }
        self.resumed += 1;
        self.outcome(out, &format!("{what}, resumed"));
        self.resumed -= 1;
    }

    /// Compares what is left in the tables.
    pub fn finish(mut self) -> Count {
        let mut theirs: BTreeMap<(TableId, u16, String), (u64, String)> = BTreeMap::new();
        for f in self.ovs.flows() {
            let actions = text::actions_to_string(&f.flow.actions);
            theirs.insert((f.flow.table, f.flow.priority, f.flow.matches.to_string()), (f.packets, actions));
        }
        let q = FlowStatsRequest { table: TableId::ALL, ..Default::default() };
        let mine = self
            .ours
            .bridge(self.bridge)
            .map(|b| switch::bridge::flow_stats(&b.rules(q.table), &q, self.now))
            .unwrap_or_default();
        self.count.flows += mine.len();
        let mut bad = Vec::new();
        // Which of several flows of the same priority a packet hits is open; together they must agree.
        let mut excess: BTreeMap<(TableId, u16), i64> = BTreeMap::new();
        let mut differing: Vec<((TableId, u16), String)> = Vec::new();
        for f in mine {
            let key = (f.flow.table, f.flow.priority, f.flow.matches.to_string());
            self.count.hit += usize::from(f.packets > 0);
            match theirs.remove(&key) {
                None => bad.push(format!("flow only ours {key:?}")),
                Some((_, a)) if a != text::actions_to_string(&f.flow.actions) => {
                    bad.push(format!("flow {key:?}: actions {a}"));
                }
                Some((n, _)) if n != f.packets => {
                    *excess.entry((key.0, key.1)).or_default() += f.packets as i64 - n as i64;
                    differing.push(((key.0, key.1), format!("flow {key:?}: {} packets, theirs {n}", f.packets)));
                }
                _ => {}
            }
        }
        if self.counters && !self.lengths && !self.strayed {
            differing.retain(|(at, _)| excess.get(at).is_some_and(|n| *n != 0));
            bad.extend(differing.into_iter().map(|(_, text)| text));
        }
        bad.extend(theirs.keys().map(|k| format!("flow only theirs {k:?}")));
        let theirs = self.ovs.connections();
        let mut mine: Vec<String> = self.ours.conntrack.lock().dump(None, None).lines().map(String::from).collect();
        mine.sort();
        self.count.connections += mine.len();
        // What a FIN or an RST has opened and is translated shows it there if it passes its zone once more.
        let ended =
            |c: &str| ["CLOSING", "TIME_WAIT"].map(|s| format!("{}state={s})", c.split("state=").next().unwrap_or(c)));
        for c in mine.iter_mut().filter(|c| c.contains("state=")) {
            if !theirs.contains(c)
                && let Some(there) = ended(c).into_iter().find(|e| theirs.contains(e))
            {
                *c = there;
            }
        }
        if !self.strayed {
            bad.extend(mine.iter().filter(|c| !theirs.contains(c)).map(|c| format!("connection only ours   {c}")));
            bad.extend(theirs.iter().filter(|c| !mine.contains(c)).map(|c| format!("connection only theirs {c}")));
        }
        for b in bad {
            self.bad(b);
        }
        self.count
    }
}

/// Of which packet-ins the cookie is not compared.
#[derive(Clone, Copy)]
struct Unsaid {
    pauses: bool,
    all: bool,
}

/// A packet-in as text, without what each switch numbers for itself. Which flow a pause is said to come from behind a
/// comparison of lengths is left out too: Open vSwitch translates both outcomes, each as a list of its own.
/// Behind a pause, it may have forgotten which flow goes on.
fn plain(p: &PacketIn, unsaid: Unsaid) -> String {
    let cookie = if unsaid.all || unsaid.pauses && p.continuation.is_some() { 0 } else { p.cookie };
    format!(
        "table {} cookie {cookie:#x} {:?} of {} bytes, paused {}, userdata {} {} packet {}",
        p.table,
        p.reason,
        p.total_len,
        p.continuation.is_some(),
        hex(&p.userdata),
        p.metadata,
        hex(&p.packet)
    )
}

/// Chooses packets: of several, the one that hits most flows that none has hit before, or that comes out.
struct Chooser {
    tables: Tables,
    /// Where they are tried.
    trial: Switch,
    bridge: BridgeId,
    hit: usize,
    good: Vec<FlowKey>,
}

/// Packets tried for each that is taken.
const TRIALS: usize = 12;

impl Chooser {
    fn new(flows: &[FlowMod], groups: &[Group], list: &[Message]) -> Chooser {
        let (mut trial, bridge) = our_switch();
        for m in list {
            // What cannot be loaded has been told of already.
            let _ = trial.apply(bridge, m, Duration::ZERO);
        }
        Chooser { tables: Tables::new(flows, groups), trial, bridge, hit: 0, good: Vec::new() }
    }

    fn next(&mut self, rng: &mut StdRng) -> (u16, Vec<u8>) {
        let mut best: Option<(usize, u16, Vec<u8>, FlowKey)> = None;
        for _ in 0..TRIALS {
            let key = match self.good.choose(rng) {
                Some(k) if rng.random_ratio(1, 2) => self.tables.varied(k, PORTS, rng),
                _ => aim(&self.tables, PORTS, rng),
            };
            let port = match key.get(FieldId::InPort) as u16 {
                p if (1..=PORTS).contains(&p) => p,
                _ => rng.random_range(1..=PORTS),
            };
            let p = packets::of_key(&key, rng);
            let p = if rng.random_ratio(1, 8) { packets::mutated(&p, rng) } else { p };
            let mut out = Outputs::default();
            self.trial.process(&mut vec![(DeviceId(u32::from(port)), p.clone())], Duration::ZERO, &mut out);
            let hit = self.trial.bridge(self.bridge).map_or(0, |b| b.flows().filter(|f| f.counters().0 > 0).count());
            let score =
                4 * hit.saturating_sub(self.hit) + usize::from(!out.packets.is_empty() || !out.events.is_empty());
            self.hit = hit;
            if best.as_ref().is_none_or(|b| score > b.0) {
                best = Some((score, port, p, key));
            }
        }
        let (score, port, p, key) = best.unwrap_or_default();
        if score > 0 {
            self.good.push(key);
        }
        (port, p)
    }
}

pub fn our_switch() -> (Switch, BridgeId) {
    let mut s = Switch::new(100_000);
    let bridge = s.add_bridge("br0", 1);
    for n in 1..=PORTS {
        s.add_port(bridge, Port::new(PortNo(n), &format!("p{n}"), PortKind::Device(DeviceId(n.into())))).expect("port");
    }
    s.apply(bridge, &option_map(), Duration::ZERO).expect("option map");
    (s, bridge)
}

/// Runs one table with so many packets and the answers to them; shows what is left of it when it is made small, if it
/// disagrees and that is wanted.
pub fn compare(ovs: &mut Ovs, case: &mut Case, n: usize, small: bool, rng: &mut StdRng) -> Count {
    case.settle_groups(rng);
    let mut pair = Pair::new(ovs, &case.name);
    run(&mut pair, case, n, rng);
    let packets = std::mem::take(&mut pair.log);
    let count = pair.finish();
    if small && !count.bad.is_empty() {
        crate::random::show_small(ovs, case, packets);
    }
    count
}

/// Gives a table to a pair, and packets with the answers to them.
pub fn run(pair: &mut Pair<'_>, case: &Case, n: usize, rng: &mut StdRng) {
    let list = case.messages();
    let taken = pair.load(&list);
    let flows: Vec<FlowMod> = taken
        .iter()
        .filter_map(|i| match list.get(*i) {
            Some(Message::FlowMod(f)) => Some(f.clone()),
            _ => None,
        })
        .collect();
    let mut chooser = Chooser::new(&flows, &case.groups, &list);
    // Open vSwitch 3.1 tracks SCTP without its ports, and takes what is its own answer for one once it has been translated.
    let tracks = flows.iter().any(|f| text::actions_to_string(&f.actions).contains("ct("));
    pair.learn_of(&flows);
    let (mut sent, mut calm) = (0, Vec::new());
    while sent < n {
        let (port, p) = chooser.next(rng);
        if tracks && (packets::own_answer(&p) || packet::Headers::parse(&p).is_some_and(|h| h.proto == 132)) {
            sent += 1;
            continue;
        }
        if packets::nameless(&p) || packets::other_version(&p) || packets::endless(&p) {
            sent += 1;
            continue;
        }
        let mut next = vec![(port, p.clone())];
        // The packet, what is answered to what came of it, and what is answered to that; then the packet again.
        for round in 0..ROUNDS {
            let mut answers = Vec::new();
            for (port, p) in std::mem::take(&mut next) {
                sent += 1;
                let out = pair.packet(port, &p);
                if pair.calm {
                    calm.push((port, p));
                }
                answers.extend(out.into_iter().take(2).filter_map(|(d, q)| Some((d, packets::answer(&q, rng)?))));
            }
            next = answers;
            if round == 1 && rng.random_ratio(1, 3) {
                next.push((port, p.clone()));
            }
        }
    }
    for _ in 0..n.div_ceil(BURST).min(calm.len()) {
        let burst = burst(&calm, rng);
        pair.burst(&burst);
        if !pair.calm {
            break;
        }
    }
}

/// Packets like these, several of each one behind the other: with other source addresses, and more bytes than the packet
/// inside has.
fn burst(of: &[(u16, Vec<u8>)], rng: &mut StdRng) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    while all.len() < BURST {
        let Some((port, p)) = of.choose(rng) else { break };
        let n = rng.random_range(1..=RUN);
        let alike = rng.random_ratio(1, 2);
        for _ in 0..n {
            let mut p = p.clone();
            if !alike && rng.random_ratio(1, 3) {
                p[11] ^= rng.random_range(0..4);
            }
            if rng.random_ratio(1, 4) {
                p.resize((p.len() + rng.random_range(0..20)).min(LONGEST.max(p.len())), 0);
            }
            all.push((*port, p));
        }
    }
    all.truncate(BURST);
    all
}

pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn recorded_tables_agree() {
    let mut cases = cases();
    if cases.is_empty() {
        return;
    }
    let Some(mut ovs) = Ovs::start() else { return };
    let (step, n, seed) = (setting("COMPARE_STEP", 60), setting("COMPARE_PACKETS", 60), setting("COMPARE_SEED", 1));
    let only = std::env::var("COMPARE_ONLY").unwrap_or_default();
    let (mut total, mut tables, mut agree) = (Count::default(), 0, 0);
    let (first, step) = if only.is_empty() { (setting("COMPARE_FIRST", 0), step) } else { (0, 1) };
    let mut show = setting("COMPARE_SHOW", 12);
    for case in cases.iter_mut().filter(|c| c.name.contains(&only)).skip(first).step_by(step) {
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let c = compare(&mut ovs, case, n, !only.is_empty(), &mut rng);
        tables += 1;
        agree += usize::from(c.bad.is_empty());
        total.add(&c);
        for b in c.bad.iter().take(show) {
            println!("{b}");
        }
        show = show.saturating_sub(c.bad.len());
        total.bad.extend(c.bad);
    }
    println!(
        "compare-switch: {agree} of {tables} tables agree; {} flows, {} of them hit, {} more not taken by this Open vSwitch; {} packets in, {} out, {} packet-ins, {} connections; {} cut off at a pause, {} dropped by us alone on purpose, {} recirculated too often; {} differences",
        total.flows,
        total.hit,
        total.refused,
        total.packets,
        total.sent,
        total.packet_ins,
        total.connections,
        total.cut,
        total.dropped,
        total.deep,
        total.bad.len()
    );
    assert!(total.sent > 0 && total.packet_ins > 0 || !only.is_empty(), "nothing came out");
    assert!(total.bad.is_empty(), "{} differences", total.bad.len());
}
