//! `ofproto/trace`: a packet's walk as text, in Open vSwitch's format (ovs-vswitchd(8)).
//!
//! The tracer is an observer of the walk. A trace changes nothing unless the request asks for effects. With these, flows
//! and addresses are learned, and controllers get what the packet sends them; packets leave in no case. After `ct` a new
//! walk starts with a `ct_state` that the caller chooses, as in Open vSwitch, where this is a recirculation.

mod branches;
mod observer;
pub(crate) mod sections;
mod text;

use crate::bridge::PortKind;
use crate::buf::PacketBuf;
use crate::classifier::Wildcards;
use crate::conntrack::flag;
use crate::dpctl::{actions, names, without_last_copy};
use crate::events::{Event, Outputs};
use crate::ids::{BridgeId, Target};
use crate::tunnel::PacketMode;
use crate::xlate::encap::packet_type;
use crate::xlate::{Backer, Kind, Observer, SlowPath, Within, Xlate};
use openflow_rs::action::{Action, CtAction, PacketType, ZoneSpec};
use openflow_rs::{FieldId as F, FlowKey, PortNo, Subfield, TableId, WORDS, ones};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sections::Again;
use text::Node;

/// What to trace.
#[derive(Clone, Debug, Default)]
pub struct TraceRequest {
    /// Where the packet comes in.
    pub bridge: BridgeId,
    /// The fields that its bytes do not say: port, registers, tunnel, connection.
    pub metadata: openflow_rs::Match,
    /// The packet.
    pub packet: Vec<u8>,
    /// The packet was made of a flow without an EtherType: it counts as 0.
    pub untyped: bool,
    /// Flows and addresses are learned, and controllers are told, as if the packet had been received.
    pub effects: bool,
    /// Ports are told by name.
    pub names: bool,
    /// The queue that the packet has when it comes (`skb_priority`).
    pub queue: Option<u16>,
    /// The packet came by a tunnel, and whether its header had a key; none: it did not.
    pub tunnel_key: Option<bool>,
    /// `ct_state` after each `ct`, in turn; `trk|new` beyond the list.
    pub ct_next: Vec<u32>,
    /// The actions of a packet-out; none: the packet is received.
    pub actions: Option<Vec<Action>>,
}

/// A walk that continues after a `ct`.
struct Resume {
    id: u32,
    bridge: BridgeId,
    table: TableId,
    key: FlowKey,
    packet: Vec<u8>,
    translates: Option<Translation>,
    /// The mirrors that have it.
    mirrored: u32,
    queue: Option<u16>,
    stack: Vec<(u128, u32)>,
    /// Where that is in the walk of a cached flow that is made once more.
    again: Option<sections::Place>,
}

impl Resume {
    /// The walk from here on.
    fn walk<'a>(
        self,
        backer: &'a mut Backer,
        out: &'a mut Outputs<Vec<u8>>,
        tracer: Tracer,
    ) -> (Xlate<'a, Vec<u8>, Tracer>, Start<'static>) {
        let mut x = Xlate::new(backer, out, self.packet, self.bridge, tracer);
        (x.packet.key, x.packet.mirrored, x.pipeline.stack) = (self.key, self.mirrored, self.stack);
        // Connection tracking made this translation, not an action: it gets no line.
        x.packet.write_back();
        (x, Start::Tracked(self.table, self.id))
    }
}

#[derive(Clone, Copy)]
struct Translation {
    /// Of the source, else of the destination.
    source: bool,
    /// The first address and port of its range.
    to: Option<(u128, Option<u16>)>,
}

/// Fields of network and transport headers that actions write.
const WRITTEN: [F; 8] = [F::IpSrc, F::IpDst, F::Ipv6Src, F::Ipv6Dst, F::NwTos, F::IpTtl, F::TcpSrc, F::TcpDst];

/// The observer that writes a trace.
pub(crate) struct Tracer {
    /// Flows and addresses are learned.
    effects: bool,
    /// Ports are told by name.
    names: bool,
    open: Vec<Node>,
    datapath: Vec<String>,
    /// Bits of the key that lookups examined.
    wildcards: Wildcards,
    /// Nothing follows the current action.
    last: bool,
    /// The queue of the last output.
    queue: u32,
    resume: VecDeque<Resume>,
    recirculations: u32,
    /// Why Open vSwitch has each such packet translated.
    slow: BTreeSet<SlowPath>,
    /// The packet came by a tunnel, and whether its header had a key.
    tunnel_key: Option<bool>,
    /// The datapath has to put an empty Ethernet header before the packet, which came without one by a `legacy_l3` port.
    lacks_ethernet: bool,
    /// The walk of a cached flow is made once more.
    again: Option<Box<Again>>,
}

impl Tracer {
    fn new(request: &TraceRequest) -> Tracer {
        Tracer {
            effects: request.effects,
            names: request.names,
            open: vec![Node::default()],
            datapath: Vec::new(),
            wildcards: [0; WORDS],
            last: true,
            queue: request.queue.unwrap_or(0).into(),
            resume: VecDeque::new(),
            recirculations: 0,
            slow: BTreeSet::new(),
            tunnel_key: request.tunnel_key,
            lacks_ethernet: false,
            again: None,
        }
    }

    fn leaf(&mut self, kind: Kind, text: String) {
        if let Some(n) = self.open.last_mut() {
            n.subs.push(Node { kind, text, subs: Vec::new() });
        }
    }

    /// Opens a node: what follows is within it, until [`Tracer::up`].
    fn down(&mut self, kind: Kind, text: String) {
        self.open.push(Node { kind, text, subs: Vec::new() });
    }

    fn up(&mut self) {
        if self.open.len() > 1
            && let Some(n) = self.open.pop()
            && let Some(outer) = self.open.last_mut()
        {
            outer.subs.push(n);
        }
    }

    /// Reopens the node that was closed last, if it is a flow.
    fn reopen(&mut self) {
        let last = self.open.last_mut().and_then(|n| n.subs.pop_if(|n| n.kind == Kind::Table));
        self.open.push(last.unwrap_or_default());
    }

    fn take(&mut self) -> Vec<Node> {
        while self.open.len() > 1 {
            self.up();
        }
        self.open.first_mut().map(|n| std::mem::take(&mut n.subs)).unwrap_or_default()
    }
}

impl Tracer {
    fn examined(&mut self, f: F) {
        let mut bits = FlowKey(self.wildcards);
        bits.unwildcard(f);
        self.wildcards = bits.0;
    }

    /// By what a packet's tunnel said its port was found.
    fn finds_tunnel(&mut self, key: &FlowKey) {
        let ends = [F::TunSrc, F::TunDst, F::TunIpv6Src, F::TunIpv6Dst].into_iter().filter(|f| key.get(*f) != 0);
        ends.chain([F::TunId]).for_each(|f| self.examined(f));
    }

    /// Which protocol an IP packet has counts where its headers are changed.
    fn examines_protocol(&mut self, base: &FlowKey, key: &FlowKey) {
        let changed = WRITTEN.into_iter().any(|f| {
            let bits = if f == F::NwTos { !u128::from(crate::tunnel::CE) } else { u128::MAX };
            (base.get(f) ^ key.get(f)) & bits != 0
        });
        if changed && matches!(key.get(F::EthType), 0x800 | 0x86dd) {
            self.examined(F::IpProto);
        }
    }

    fn examined_part(&mut self, s: &Subfield) {
        let mut bits = FlowKey(self.wildcards);
        bits.set(s.field, bits.get(s.field) | ones(s.n_bits) << s.ofs);
        self.wildcards = bits.0;
    }

    /// Adds the output to a device, and its queue if that changed.
    fn sent(&mut self, target: Target) {
        let queue = target.queue();
        if std::mem::replace(&mut self.queue, queue) != queue {
            self.datapath.push(if queue == 0 {
                "set(skb_priority(0))".into()
            } else {
                format!("set(skb_priority({queue:#x}))")
            });
        }
        self.datapath.push(target.device().to_string());
    }
}

impl<P: PacketBuf> Xlate<'_, P, Tracer> {
    /// A text with names of the bridge's ports, if these are wanted.
    fn named(&self, text: String) -> String {
        self.observer.named(text, self.backer.bridges.get(self.pipeline.bridge))
    }

    /// Executes a list, with a line for each action.
    fn told_list(&mut self, list: &[Action]) {
        let last = self.observer.last;
        for (i, a) in list.iter().enumerate() {
            if self.pipeline.exit || self.pipeline.failed {
                break;
            }
            let told = self.named(a.to_string());
            self.observer.tell(Kind::Action, || told);
            let rest = list.get(i + 1..).unwrap_or_default();
            self.observer.last = last && rest.is_empty();
            if let Action::CheckPktLarger { len, dst } = a {
                self.larger_told(*len, dst, rest);
                break;
            }
            let go_on = self.action(a);
            if self.waits(rest) || !go_on {
                break;
            }
        }
        self.observer.last = last;
    }

    /// A packet without an Ethernet header that comes by a `legacy_l3` port has an empty one for flows.
    fn becomes_ethernet(&mut self) {
        let no = self.own_port();
        let port = self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.ports.get(&no));
        let legacy = port.is_some_and(|p| matches!(&p.kind, PortKind::Tunnel(t) if t.mode == PacketMode::LegacyL3));
        if legacy && packet_type(&self.packet.key) != PacketType::ETHERNET {
            self.packet.key.set(F::PacketType, 0);
            self.observer.lacks_ethernet = true;
        }
    }

    /// `ct` in a trace: no connection is made or looked for.
    pub(crate) fn ct_told(&mut self, c: &CtAction) {
        let zone = self.zone_of(c);
        if let ZoneSpec::Field(s) = &c.zone {
            self.observer.examined_part(s);
        }
        let mut nested: Vec<Action> = c.nat.iter().map(|n| Action::Nat(Box::new(n.clone()))).collect();
        nested.extend(c.exec.iter().cloned());
        if nested.is_empty() {
            self.observer.tell(Kind::Action, || "drop".into());
        }
        let saved = self.packet.key.clone();
        self.actions(&nested);
        let (mark, label) = (self.packet.key.get(F::CtMark), self.packet.key.get(F::CtLabel));
        self.packet.key = saved;
        let text = actions::ct(c, zone, mark, label);
        self.observer.datapath(|| text);
        let translates = c.nat.as_ref().map(|n| Translation {
            source: n.src,
            to: n.range.addr.filter(|_| n.src || n.dst).map(|(lo, _)| {
                let a = match lo {
                    IpAddr::V4(a) => u128::from(u32::from(a)),
                    IpAddr::V6(a) => a.into(),
                };
                (a, n.range.port.map(|p| p.0))
            }),
        });
        if let Some(table) = c.table {
            let mut key = self.packet.key.clone();
            key.set(F::CtZone, zone.into());
            let (bridge, packet) = (self.pipeline.bridge, self.packet.buf.data().to_vec());
            let t = &mut self.observer;
            let (id, goes_on) = match &mut t.again {
                Some(a) => a.goes_on((bridge, table), &key, self.backer),
                None => {
                    t.recirculations += 1;
                    (t.recirculations, None)
                }
            };
            t.datapath.push(format!("recirc({id:#x})"));
            let (key, again) = match goes_on {
                Some((place, behind)) => (behind, Some(place)),
                None => (key, None),
            };
            // Of a walk that is made once more the packets may not have come here, as they have another length.
            if t.again.is_none() || again.is_some() {
                let (mirrored, queue) = (self.packet.mirrored, self.packet.queue);
                let stack = self.pipeline.stack.clone();
                t.resume.push_back(Resume {
                    id,
                    bridge,
                    table,
                    key,
                    packet,
                    translates,
                    mirrored,
                    queue,
                    stack,
                    again,
                });
            }
            self.observer.tell(Kind::Detail, || {
                format!("A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table {table}.")
            });
        }
        self.observer.tell(Kind::Detail, || {
            "Sets the packet to an untracked state, and clears all the conntrack fields.".into()
        });
        self.clear_ct();
    }
}

/// Explains what would become of a packet (`ofproto/trace`).
pub(crate) fn explain(backer: &mut Backer, request: TraceRequest, events: &mut Vec<Event>) -> String {
    let mut out: Outputs<Vec<u8>> = Outputs::default();
    let mut text = String::new();
    let mut next = VecDeque::from(request.ct_next.clone());
    let tracer = Tracer::new(&request);
    let mut x = Xlate::new(backer, &mut out, request.packet.clone(), request.bridge, tracer);
    x.overlay(&request.metadata);
    x.packet.queue = request.queue;
    x.packet.base.set(F::PktMark, x.packet.key.get(F::PktMark));
    if request.untyped {
        x.packet.key.set(F::EthType, 0);
        x.packet.base.set(F::EthType, 0);
    }
    let flow = text::flow(&x.packet.key, x.packet.queue, None) + &text::igmp(&x.packet.key, &request.packet);
    let _ = writeln!(text, "Flow: {}", x.named(flow));
    let mut trace = section(x, request.actions.as_deref().map_or(Start::Received, Start::Sent), &mut text);

    while let Some(mut r) = trace.resume.pop_front() {
        let given = next.pop_front();
        let state = given.unwrap_or(flag::TRK | flag::NEW);
        r.key.set(F::CtState, state.into());
        let rule = "=".repeat(79);
        let names = text::state_names(state);
        let _ = match given {
            Some(_) => write!(text, "\n{rule}\nrecirc({:#x}) - resume conntrack with ct_state={names}\n", r.id),
            None => write!(
                text,
                "\n{rule}\nrecirc({:#x}) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)\n",
                r.id
            ),
        };
        if let Some(t) = r.translates {
            simulate(&mut r.key, t, &mut text);
        }
        trace.wildcards = [0; WORDS];
        let id = r.id;
        let (x, start) = r.walk(backer, &mut out, trace);
        let _ = writeln!(text, "{rule}\n\nFlow: {}", x.named(text::flow(&x.packet.key, None, Some(id))));
        trace = section(x, start, &mut text);
    }
    if request.effects {
        events.append(&mut out.events);
    }
    text
}

/// Where a walk begins.
#[derive(Clone, Copy)]
enum Start<'a> {
    /// In the first table.
    Received,
    /// With a packet-out's actions.
    Sent(&'a [Action]),
    /// Behind a `ct`: the table, and the recirculation's number.
    Tracked(TableId, u32),
}

/// Runs one walk and writes its part of the trace.
fn section(mut x: Xlate<'_, Vec<u8>, Tracer>, start: Start<'_>, text: &mut String) -> Tracer {
    let recirculated = match start {
        Start::Tracked(_, id) => Some(id),
        _ => None,
    };
    let (mut before, queued) = (x.packet.key.clone(), x.packet.queue);
    let failure = run(&mut x, start);
    let (key, mut trace, bridge) = (x.packet.key, x.observer, x.backer.bridges.get(x.pipeline.bridge));
    text::render(&trace.take(), 0, text);
    // `actset_output` is no change of the packet.
    before.set(F::ActsetOutput, key.get(F::ActsetOutput));
    let after = match x.packet.queue {
        queue if queue == queued && key == before => "unchanged".into(),
        queue => trace.named(text::flow(&key, queue, recirculated), bridge),
    };
    let _ = writeln!(text, "\nFinal flow: {after}");
    let mut megaflow = text::megaflow(&before, &key, &trace.wildcards, recirculated, trace.tunnel_key);
    if trace.datapath.iter().any(|a| a.contains("set(skb_priority(")) {
        // What is written counts as examined.
        let queue = queued.filter(|q| *q != 0).map_or("0".into(), |q| format!("{q:#x}"));
        megaflow = megaflow.replacen(',', &format!(",skb_priority={queue},"), 1);
    }
    let _ = writeln!(text, "Megaflow: {}", trace.named(megaflow, bridge));
    trace.queue = 0;
    let done = without_last_copy(std::mem::take(&mut trace.datapath));
    let done = if failure.is_some() { "drop".into() } else { text::whole(done, x.backer.sampled_drops) };
    let done = if trace.names { names::of_datapath(&done, |n| x.backer.datapath_port_name(n)) } else { done };
    let _ = writeln!(text, "Datapath actions: {done}");
    if let Some(why) = failure {
        let _ = writeln!(text, "\nTranslation failed ({why}), packet is dropped.");
    }
    let slow = std::mem::take(&mut trace.slow);
    if failure.is_none() && !slow.is_empty() {
        *text += "This flow is handled by the userspace slow path because it:\n";
        for why in slow {
            let _ = writeln!(text, "  - {}", why.words());
        }
    }
    trace
}

/// Runs one walk. Returns why translation failed, if it did.
fn run(x: &mut Xlate<'_, Vec<u8>, Tracer>, start: Start<'_>) -> Option<&'static str> {
    let (before, events) = (x.packet.key.clone(), x.out.events.len());
    let name = x.backer.bridges.get(x.pipeline.bridge).map(|b| b.name.clone()).unwrap_or_default();
    x.observer.open(Kind::Bridge, || name);
    if matches!(start, Start::Received) {
        x.becomes_ethernet();
    }
    if x.observer.tunnel_key.is_some() {
        x.observer.finds_tunnel(&before);
        // It tells of congestion.
        x.observer.examined(F::TunTos);
    }
    match start {
        Start::Received if !x.take_notice(x.packet.key.get(F::TunTos) as u8) => {
            x.because(crate::drops::DropReason::TunnelCongestion);
        }
        Start::Received => x.arrive(),
        Start::Sent(actions) => {
            x.pipeline.within = Within::PacketOut;
            x.note_set();
            x.copy(PortNo(x.packet.key.get(F::InPort) as u16), true);
            x.actions(actions);
            x.finish();
        }
        Start::Tracked(table, _) => {
            x.observer.open(Kind::Action, || "thaw".into());
            x.observer.tell(Kind::Action, || format!("Resuming from table {table}"));
            x.observer.close();
            x.run_table(table);
        }
    }
    let failure = x.pipeline.failed.then_some(x.pipeline.drop).flatten().and_then(text::failure);
    if x.pipeline.failed {
        x.out.events.truncate(events);
    }
    failure
}

/// Applies a `nat` with a range to a key, as to the first packet of a connection.
fn simulate(key: &mut FlowKey, t: Translation, text: &mut String) {
    let v6 = key.get(F::EthType) == 0x86dd;
    let (src, dst) = if v6 { (F::Ipv6Src, F::Ipv6Dst) } else { (F::IpSrc, F::IpDst) };
    let words = |key: &FlowKey| {
        let address = |f: F| {
            let a = key.get(f);
            if v6 { Ipv6Addr::from(a).to_string() } else { Ipv4Addr::from(a as u32).to_string() }
        };
        let p = if v6 { "ipv6" } else { "nw" };
        format!(
            "{p}_src={},tp_src={},{p}_dst={},tp_dst={}",
            address(src),
            key.get(F::TcpSrc),
            address(dst),
            key.get(F::TcpDst)
        )
    };
    let before = t.to.map(|_| words(key)).unwrap_or_default();
    if let Some((a, port)) = t.to {
        let (f, p) = if t.source { (src, F::TcpSrc) } else { (dst, F::TcpDst) };
        key.set(f, a);
        if let Some(port) = port {
            key.set(p, port.into());
        }
    }
    let after = t.to.map(|_| words(key)).unwrap_or_default();
    let _ =
        write!(text, "Replacing src/dst IP/ports to simulate NAT:\n Initial flow: {before}\n Modified flow: {after}\n");
}

/// Reads `trk,est`, `trk|new` and the like.
///
/// # Errors The unknown flag.
pub fn parse_ct_state(s: &str) -> Result<u32, String> {
    let flags = s.split([',', '|']).map(str::trim).filter(|f| !f.is_empty());
    flags
        .map(|f| {
            crate::dpctl::flow::STATES
                .iter()
                .find(|(n, _)| *n == f)
                .map(|(_, b)| *b)
                .ok_or(format!("{f}: unknown connection tracking state flag"))
        })
        .sum::<Result<u32, String>>()
}
