//! `ofproto/trace`: a packet's way through the tables, told as Open vSwitch tells it (ovs-vswitchd(8)).
//!
//! A trace changes nothing, unless it is asked to. Behind `ct` the walk starts again with a state that the caller chooses,
//! as it does in Open vSwitch, where that is a recirculation.

mod actions;
mod branches;
mod text;

use crate::buf::PacketBuf;
use crate::conntrack::flag;
use crate::datapath::{BridgeId, Outputs, Switch};
use crate::tunnel::{Egress, TunnelConfig, TunnelKind};
use crate::xlate::{Within, Xlate};
use openflow_rs::action::{Action, CtAction, ZoneSpec};
use openflow_rs::{FieldId as F, FlowKey};
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) use actions::{changes, mac};
pub(crate) use text::Kind;
use text::Node;

/// What to trace.
#[derive(Clone, Debug)]
pub struct TraceRequest {
    /// Where the packet comes in.
    pub bridge: BridgeId,
    /// The fields that its bytes do not say: port, registers, tunnel, connection.
    pub metadata: openflow_rs::Match,
    /// The packet.
    pub packet: Vec<u8>,
    /// Flows are learned, and addresses, as if the packet had come.
    pub effects: bool,
    /// `ct_state` behind each `ct`, in turn; `trk|new` where there is none.
    pub ct_next: Vec<u32>,
    /// What a packet-out does with it; none: it goes to the tables as one that is received.
    pub actions: Option<Vec<Action>>,
}

/// A walk that goes on behind a `ct`.
struct Resume {
    id: u32,
    bridge: BridgeId,
    table: u8,
    key: FlowKey,
    packet: Vec<u8>,
    translates: Option<Translation>,
}

#[derive(Clone, Copy)]
struct Translation {
    /// Of the source, else of the destination.
    source: bool,
    /// The first address and port of its range.
    to: Option<(u128, Option<u16>)>,
}

/// A trace in the making.
#[derive(Default)]
pub(crate) struct Trace {
    /// Flows and addresses are learned.
    pub(crate) effects: bool,
    open: Vec<Node>,
    datapath: Vec<String>,
    /// Nothing follows the action that is told of.
    pub(crate) last: bool,
    /// The queue that the packet is for, as far as that was told.
    queue: u32,
    resume: VecDeque<Resume>,
    recirculations: u32,
    /// It does what the datapath is said not to offer.
    slow: bool,
}

impl Trace {
    fn new(effects: bool) -> Trace {
        Trace { effects, open: vec![Node::default()], last: true, ..Default::default() }
    }

    fn leaf(&mut self, kind: Kind, text: String) {
        if let Some(n) = self.open.last_mut() {
            n.subs.push(Node { kind, text, subs: Vec::new() });
        }
    }

    /// What follows is within this, until [`Trace::up`].
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

    /// Goes back into what was closed last, if that is a flow: what follows belongs to it.
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

impl<P: PacketBuf> Xlate<'_, P> {
    /// Whether this is a trace that changes nothing.
    pub(crate) fn dry(&self) -> bool {
        self.trace.as_ref().is_some_and(|t| !t.effects)
    }

    pub(crate) fn told(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        if let Some(t) = &mut self.trace {
            t.leaf(kind, text());
        }
    }

    /// Tells of what the last action does.
    pub(crate) fn detail(&mut self, text: impl FnOnce() -> String) {
        self.told(Kind::Detail, text);
    }

    /// Tells of what the last action does not do.
    pub(crate) fn warn(&mut self, text: impl FnOnce() -> String) {
        self.told(Kind::Warning, text);
    }

    pub(crate) fn tell_down(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        if let Some(t) = &mut self.trace {
            t.down(kind, text());
        }
    }

    pub(crate) fn tell_up(&mut self) {
        if let Some(t) = &mut self.trace {
            t.up();
        }
    }

    /// Tells of the action set, which belongs to the walk's first flow.
    pub(crate) fn tell_action_set(&mut self) {
        if let Some(t) = &mut self.trace {
            t.reopen();
            t.down(Kind::Table, "--. Executing action set:".into());
        }
    }

    /// Tells what the action set is, or was.
    pub(crate) fn tell_set(&mut self, verb: &str) {
        if self.trace.is_some() {
            let set = crate::xlate::output::ordered_action_set(self.action_set.clone());
            let words: Vec<String> = set.iter().map(ToString::to_string).collect();
            let words = if words.is_empty() { "empty".into() } else { words.join(",") };
            self.detail(|| format!("action set {verb}: {words}"));
        }
    }

    /// Tells of the bridge that the walk is in.
    pub(crate) fn tell_bridge(&mut self) {
        let name = self.sw.bridges.get(self.bridge).map(|b| b.name.clone()).unwrap_or_default();
        self.tell_down(Kind::Bridge, || name);
    }

    /// Tells what the datapath does.
    pub(crate) fn tell_datapath(&mut self, text: impl FnOnce() -> String) {
        if let Some(t) = &mut self.trace {
            t.datapath.push(text());
        }
    }

    /// Tells of the device, and of the queue, that the packet leaves by.
    pub(crate) fn tell_sent(&mut self, target: u32) {
        if let Some(t) = &mut self.trace {
            let (device, queue) = crate::buf::destination(target);
            if std::mem::replace(&mut t.queue, queue) != queue {
                t.datapath.push(if queue == 0 {
                    "set(skb_priority(0))".into()
                } else {
                    format!("set(skb_priority({queue:#x}))")
                });
            }
            t.datapath.push(device.to_string());
        }
    }

    /// Tells that the packet is cut to so many bytes before it is sent next.
    pub(crate) fn tell_cut(&mut self, n: usize) {
        let offered = self.sw.cuts;
        if let Some(t) = &mut self.trace {
            t.datapath.push(format!("trunc({n})"));
            t.slow |= !offered;
        }
    }

    /// Tells what changes of the packet are about to be written to it.
    pub(crate) fn tell_changes(&mut self) {
        if let Some(t) = &mut self.trace {
            actions::changes(&self.base, &self.key, &mut t.datapath);
        }
    }

    /// Tells of a tunnel's headers, and of where the packet leaves.
    pub(crate) fn tell_tunnel(&mut self, cfg: &TunnelConfig, outer: &[u8], egress: &Egress) {
        let v6 = outer.get(12) == Some(&0x86);
        let (at, n) = if v6 { (22, 16) } else { (26, 4) };
        let address = |at: usize| {
            let v = outer.get(at..at + n).unwrap_or_default().iter().fold(0, |v, b| v << 8 | u128::from(*b));
            if v6 { Ipv6Addr::from(v).to_string() } else { Ipv4Addr::from(v as u32).to_string() }
        };
        let (src, dst) = (address(at), address(at + n));
        let mac = |at: usize| {
            let hex: Vec<String> =
                outer.get(at..at + 6).unwrap_or_default().iter().map(|b| format!("{b:02x}")).collect();
            hex.join(":")
        };
        let via = egress.to_string();
        self.detail(|| format!("tunneling to {dst} via {via}"));
        self.detail(|| format!("tunneling from {} {src} to {} {dst}", mac(6), mac(0)));
        let kind = match cfg.kind {
            TunnelKind::Geneve => "geneve",
            TunnelKind::Vxlan => "vxlan",
        };
        let id = self.key.get(F::TunId);
        self.tell_datapath(|| format!("tnl_push({kind}(src={src},dst={dst},vni={id:#x}),out_port({via}))"));
    }

    /// Tells of a next hop whose address is not known.
    pub(crate) fn tell_miss(&mut self, cfg: &TunnelConfig, hop: IpAddr) {
        if self.trace.is_none() {
            return;
        }
        let bridge = self.sw.underlay.route(hop).map(|r| r.egress.to_string()).unwrap_or_default();
        let to = match (cfg.remote, self.key.get(F::TunDst)) {
            (Some(r), _) => r.to_string(),
            (None, 0) => Ipv6Addr::from(self.key.get(F::TunIpv6Dst)).to_string(),
            (None, a) => Ipv4Addr::from(a as u32).to_string(),
        };
        let what = if hop.is_ipv4() { "ARP" } else { "ND" };
        self.detail(|| format!("tunneling to {to} via {bridge}"));
        self.detail(|| format!("neighbor cache miss for {hop} on bridge {bridge}, sending {what} request"));
    }

    /// `ct` in a trace: no connection is made or looked for.
    pub(crate) fn ct_told(&mut self, c: &CtAction) {
        let zone = match &c.zone {
            ZoneSpec::Imm(z) => *z,
            ZoneSpec::Field(f) => self.key.get_sub(f) as u16,
        };
        let mut nested: Vec<Action> = c.nat.iter().map(|n| Action::Nat(Box::new(n.clone()))).collect();
        nested.extend(c.exec.iter().cloned());
        if nested.is_empty() {
            self.told(Kind::Action, || "drop".into());
        }
        let saved = self.key.clone();
        self.actions(&nested);
        let (mark, label) = (self.key.get(F::CtMark), self.key.get(F::CtLabel));
        self.key = saved;
        let text = actions::ct(c, zone, mark, label);
        self.tell_datapath(|| text);
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
            let mut key = self.key.clone();
            key.set(F::CtZone, zone.into());
            let (bridge, packet) = (self.bridge, self.pkt.data().to_vec());
            if let Some(t) = &mut self.trace {
                t.recirculations += 1;
                let id = t.recirculations;
                t.datapath.push(format!("recirc({id:#x})"));
                t.resume.push_back(Resume { id, bridge, table, key, packet, translates });
            }
            self.detail(|| {
                format!("A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table {table}.")
            });
        }
        self.detail(|| "Sets the packet to an untracked state, and clears all the conntrack fields.".into());
        self.clear_ct();
    }
}

impl Switch {
    /// Explains what would become of a packet (`ofproto/trace`).
    pub fn trace(&mut self, request: TraceRequest) -> String {
        let mut out: Outputs<Vec<u8>> = Outputs::default();
        let mut text = String::new();
        let mut next = VecDeque::from(request.ct_next.clone());
        let mut trace = Trace::new(request.effects);

        let mut x = Xlate::new(self, &mut out, request.packet.clone(), request.bridge);
        crate::datapath::overlay(&mut x, &request.metadata);
        x.trace = Some(Box::new(std::mem::take(&mut trace)));
        let _ = writeln!(text, "Flow: {}", text::flow(&x.key, None));
        trace = section(x, request.actions.as_deref().map_or(Start::Received, Start::Sent), &mut text);

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
            let _ = writeln!(text, "{rule}\n\nFlow: {}", text::flow(&r.key, Some(r.id)));
            let mut x = Xlate::new(self, &mut out, r.packet, r.bridge);
            x.key = r.key;
            // The translation belongs to the tracker, not to the actions that follow.
            x.commit();
            x.trace = Some(Box::new(std::mem::take(&mut trace)));
            trace = section(x, Start::Tracked(r.table, r.id), &mut text);
        }
        text
    }
}

/// Where a walk begins.
#[derive(Clone, Copy)]
enum Start<'a> {
    /// In the first table.
    Received,
    /// With a packet-out's actions.
    Sent(&'a [Action]),
    /// Behind a `ct`: the table, and the recirculation's number.
    Tracked(u8, u32),
}

/// One walk, and what is told of it.
fn section(mut x: Xlate<'_, Vec<u8>>, start: Start<'_>, text: &mut String) -> Trace {
    let recirculated = match start {
        Start::Tracked(_, id) => Some(id),
        _ => None,
    };
    let mut before = x.key.clone();
    x.tell_bridge();
    match start {
        Start::Received => x.arrive(),
        Start::Sent(actions) => {
            x.within = Within::PacketOut;
            x.note_set();
            x.actions(actions);
            x.finish();
        }
        Start::Tracked(table, _) => {
            x.tell_down(Kind::Action, || "thaw".into());
            x.told(Kind::Action, || format!("Resuming from table {table}"));
            x.tell_up();
            x.run_table(table);
        }
    }
    let mut trace = x.trace.take().map(|t| *t).unwrap_or_default();
    text::render(&trace.take(), 0, text);
    let queue = x.queue.map(|q| format!("skb_priority={q:#x},"));
    // Where the action set sends to is told with it.
    before.set(F::ActsetOutput, x.key.get(F::ActsetOutput));
    let after = match queue {
        None if x.key == before => "unchanged".into(),
        queue => queue.unwrap_or_default() + &text::flow(&x.key, recirculated),
    };
    let _ = writeln!(text, "\nFinal flow: {after}");
    let _ = writeln!(text, "Megaflow: {}", text::megaflow(&before, &x.key, &x.wildcards, recirculated));
    trace.queue = 0;
    let done = std::mem::take(&mut trace.datapath);
    let done = if done.is_empty() { "drop".into() } else { done.join(",") };
    let _ = writeln!(text, "Datapath actions: {done}");
    if std::mem::take(&mut trace.slow) {
        *text += "This flow is handled by the userspace slow path because it:\n  - Uses action(s) not supported by datapath.\n";
    }
    trace
}

/// Does to a flow what a `nat` with a range would do to the first packet of a connection.
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
/// # Errors
/// Names the flag that there is not.
pub fn parse_ct_state(s: &str) -> Result<u32, String> {
    let flags = s.split([',', '|']).map(str::trim).filter(|f| !f.is_empty());
    flags
        .map(|f| {
            text::STATES
                .iter()
                .find(|(n, _)| *n == f)
                .map(|(_, b)| *b)
                .ok_or(format!("{f}: unknown connection tracking state flag"))
        })
        .sum::<Result<u32, String>>()
}
