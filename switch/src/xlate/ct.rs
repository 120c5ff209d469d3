//! The `ct` action: tracking, NAT, and the walk that follows.

use crate::buf::PacketBuf;
use crate::classifier::Origin;
use crate::conntrack::reassembly::{Held, Suspended, Taken};
use crate::conntrack::{ConnId, ConnSnapshot, Packet, Pass, Refusal, Request, Segment, Tuple, Verdict, Zone, flag};
use crate::drops::DropReason;
use crate::extract::{length_holds, put_icmp_id, sctp_chunks_hold, tuple_fields};
use crate::xlate::controller::{Frozen, Wait};
use crate::xlate::quoted::{self, Quoted, icmp_fields, is_error};
use crate::xlate::{CtPass, MAX_DEPTH, Observer, Within, Xlate, selection};
use openflow_rs::action::{Action, CtAction, ZoneSpec};
use openflow_rs::{FieldId as F, FlowKey, TableId};
use packet::{Headers, be16, be32, checksum, ipproto};

/// Key words that hold connection fields: ct state and zone, mark, label, original tuple.
const CT_WORDS: std::ops::Range<usize> = 39..48;

fn invalid() -> Verdict {
    Verdict { state: flag::TRK | flag::INV, ..Default::default() }
}

/// Why a packet is invalid by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unfit {
    /// Its key says so: it is no IP, its lengths do not hold, or its ICMP code is none.
    Malformed,
    /// Wrong checksums, a port of 0, or an ICMP error about a packet that its receiver has not sent.
    Broken,
}

/// A packet as connection tracking sees it, or why it is invalid. `checked`: the checksums are known to be right (updated); `good`: the device has
/// verified the checksum of TCP or UDP.
fn seen(
    p: &[u8],
    h: &Headers,
    windows: bool,
    good: bool,
    checked: &mut bool,
) -> Result<(Packet, Option<Quoted>), Unfit> {
    let (src, dst) = h.addresses(p).ok_or(Unfit::Malformed)?;
    if h.fragment {
        return Err(Unfit::Broken);
    }
    let (kind, code, id) = h.l4.map_or((0, 0, 0), |l4| icmp_fields(p, l4));
    let in_order = match h.proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => h.l4.is_some() && length_holds(p, h),
        ipproto::ICMP | ipproto::ICMPV6 => h.l4.is_some() && (code == 0 || is_error(h.proto, kind)),
        _ => true,
    };
    if !in_order {
        return Err(Unfit::Malformed);
    }
    *checked = *checked || checksums_hold(p, h, good);
    if !*checked {
        return Err(Unfit::Broken);
    }
    let mut t = Tuple { v6: h.is_ipv6(), proto: h.proto, src, dst, sport: 0, dport: 0, icmp_type: 0, icmp_code: 0 };
    let mut tcp_flags = 0;
    let mut segment = None;
    match h.proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
            // Port 0 is reserved (RFC 6335 section 6).
            (t.sport, t.dport) = h.ports(p).filter(|(s, d)| *s != 0 && *d != 0).ok_or(Unfit::Broken)?;
            if let Some(l4) = h.l4.filter(|_| h.proto == ipproto::TCP) {
                tcp_flags = be16(p, l4 + 12).ok_or(Unfit::Malformed)? & 0xfff;
                segment = windows.then(|| tcp_segment(p, h, l4)).flatten();
            }
        }
        ipproto::ICMP | ipproto::ICMPV6 => {
            if is_error(h.proto, kind) {
                let quoted = h.l4.and_then(|l4| Quoted::parse(p, h.is_ipv6(), l4)).ok_or(Unfit::Broken)?;
                let tuple = quoted.reversed(dst).ok_or(Unfit::Broken)?;
                return Ok((Packet { tuple, tcp_flags: 0, segment: None, error: true, broken: false }, Some(quoted)));
            }
            (t.icmp_type, t.icmp_code, t.sport, t.dport) = (kind, code, id, id);
        }
        _ => {}
    }
    Ok((Packet { tuple: t, tcp_flags, segment, error: false, broken: false }, None))
}

/// A datagram that was put together, as connection tracking sees it; `None` if it is invalid.
fn seen_whole(datagram: &[u8], windows: bool) -> Option<Packet> {
    let (p, quoted) = seen(datagram, &Headers::parse(datagram)?, windows, false, &mut false).ok()?;
    // The packet quoted in a fragmented ICMP error cannot be translated.
    quoted.is_none().then_some(p)
}

/// A datagram's pass through a zone, as far as the next ones like it may repeat it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) zone: Zone,
    pub(crate) tuple: Tuple,
    /// Ports, TCP flags, and type and code of ICMP.
    pub(crate) transport: u64,
    /// The connection before and behind it.
    pub(crate) connection: [Option<ConnSnapshot>; 2],
}

impl Passed {
    fn new(zone: Zone, p: &Packet, connection: [Option<ConnSnapshot>; 2]) -> Passed {
        Passed { zone, tuple: p.tuple, transport: transport(p), connection }
    }
}

/// What of a datagram's transport header may decide.
fn transport(p: &Packet) -> u64 {
    let t = &p.tuple;
    let ports = u64::from(t.sport) << 48 | u64::from(t.dport) << 32;
    ports | u64::from(p.tcp_flags) << 16 | u64::from(t.icmp_type) << 8 | u64::from(t.icmp_code)
}

/// The same of a whole datagram, if it is valid and no window counts.
pub(crate) fn transport_of(datagram: &[u8], windows: bool) -> Option<u64> {
    let p = seen_whole(datagram, windows)?;
    (p.segment.is_none() && !p.error).then(|| transport(&p))
}

/// What a datagram's fragments go on with.
pub(crate) struct Joint {
    verdict: Verdict,
    tuple: Option<Tuple>,
    pass: Option<Pass>,
    /// None: the next ones have to be tracked as well.
    pub(crate) passed: Option<Passed>,
    /// The number of the first fragment's [`Suspended`].
    pub(crate) first: u64,
}

impl Joint {
    /// Of a fragment that is invalid by itself.
    fn invalid() -> Joint {
        Joint { verdict: invalid(), tuple: None, pass: None, passed: None, first: 0 }
    }
}

/// `good`: the device has verified the checksum of TCP or UDP.
fn checksums_hold(p: &[u8], h: &Headers, good: bool) -> bool {
    let header = h.is_ipv6() || {
        let n = p.get(h.l3).map_or(0, |b| usize::from(b & 15) * 4);
        p.get(h.l3..h.l3 + n).is_some_and(|b| checksum::of(b) == 0)
    };
    let known = good && matches!(h.proto, ipproto::TCP | ipproto::UDP);
    let chunks = || h.proto != ipproto::SCTP || h.l4.and_then(|l4| p.get(l4..h.l3_end)).is_some_and(sctp_chunks_hold);
    header && (known || checksum::l4_ok(p, h) && chunks())
}

/// Whether actions read fields of the packet's tuple.
fn reads_tuple(list: &[Action]) -> bool {
    list.iter().any(|a| matches!(a, Action::Move { src, .. } if selection::TUPLE.contains(&src.field)))
}

fn tcp_segment(p: &[u8], h: &Headers, l4: usize) -> Option<Segment> {
    let header = usize::from(p.get(l4 + 12)? >> 4) * 4;
    let mut options = p.get(l4 + 20..(l4 + header).min(h.l3_end)).unwrap_or_default();
    let mut scale = None;
    while let Some((kind, rest)) = options.split_first() {
        options = match kind {
            0 => break,
            1 => rest,
            3 => {
                scale = rest.get(1).copied();
                break;
            }
            _ => rest.first().and_then(|n| rest.get(usize::from(*n).saturating_sub(1).max(1)..)).unwrap_or_default(),
        };
    }
    Some(Segment {
        seq: be32(p, l4 + 4)?,
        ack: be32(p, l4 + 8)?,
        window: be16(p, l4 + 14)?,
        len: h.l3_end.saturating_sub(l4 + header) as u32,
        scale,
    })
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Clears the fields of connection tracking and forgets the connection. After a `ct` without a table the fields are
    /// clear and the packet keeps its connection, as in Open vSwitch.
    pub(crate) fn clear_ct(&mut self) {
        if self.packet.key.get(F::CtState) != 0 {
            self.packet.conn = None;
        }
        self.clear_ct_fields();
    }

    fn clear_ct_fields(&mut self) {
        for w in CT_WORDS {
            if let Some(x) = self.packet.key.0.get_mut(w) {
                *x = 0;
            }
        }
    }

    pub(crate) fn ct(&mut self, c: &CtAction) {
        if !self.commit() {
            return;
        }
        let zone = self.zone_of(c);
        if self.packet.headers.fragment && self.packet.headers.ip_ok {
            return self.hold(c, zone);
        }
        if let Some((verdict, tuple, _)) = self.track(c, zone, None) {
            self.tracked(c, zone, &verdict, tuple);
        }
    }

    /// The zone that a `ct` action names.
    pub(crate) fn zone_of(&self, c: &CtAction) -> Zone {
        Zone(match &c.zone {
            ZoneSpec::Imm(z) => *z,
            ZoneSpec::Field(f) => self.packet.key.get_sub(f) as u16,
        })
    }

    /// Freezes a fragment until its datagram is complete.
    fn hold(&mut self, c: &CtAction, zone: Zone) {
        let number = self.backer.fragments.number();
        let rest = self.suspended(c, zone, number);
        self.pipeline.frozen = Some(Frozen { wait: Wait::Fragment(rest), frames: Vec::new() });
    }

    /// Freezes a packet until word of its connection comes.
    #[cold]
    fn await_word(&mut self, c: &CtAction, zone: Zone, tuple: Tuple) {
        self.observer.side_effect();
        let rest = self.suspended(c, zone, 0);
        self.pipeline.frozen = Some(Frozen { wait: Wait::Word(tuple, rest), frames: Vec::new() });
    }

    /// How the walk goes on after a `ct`.
    fn suspended(&self, c: &CtAction, zone: Zone, number: u64) -> Box<Suspended> {
        Box::new(Suspended {
            number,
            resumed: self.pipeline.resumed,
            key: self.packet.key.clone(),
            pass: self.packet.conn,
            ct: Box::new(c.clone()),
            zone,
            bridge: self.pipeline.bridge,
            table: self.pipeline.table,
            cookie: self.pipeline.flow,
            stack: Vec::new(),
            action_set: Vec::new(),
            frames: Vec::new(),
            queue: self.packet.queue,
            tunnel: self.packet.tunnel,
            mirrored: self.packet.mirrored,
        })
    }

    /// Takes a walk up that waits at a `ct`, with the packet as it was then.
    fn take_up(&mut self, rest: &Suspended, pass: Option<Pass>) {
        self.packet.key.clone_from(&rest.key);
        (self.packet.conn, self.packet.queue) = (pass, rest.queue);
        (self.packet.tunnel, self.packet.mirrored) = (rest.tunnel, rest.mirrored);
        (self.pipeline.bridge, self.pipeline.table, self.pipeline.flow) = (rest.bridge, rest.table, rest.cookie);
        (self.pipeline.stack, self.pipeline.action_set) = (rest.stack.clone(), rest.action_set.clone());
    }

    /// A packet goes on that has waited for word of its connection.
    pub(crate) fn end_wait(&mut self, rest: &Suspended) {
        self.take_up(rest, rest.pass);
        (self.pipeline.resumed, self.pipeline.waited) = (rest.resumed, true);
        self.ct(&rest.ct);
        self.go_on(rest.frames.clone());
    }

    /// Hands a frozen fragment to reassembly; if its datagram is complete, all of its fragments go on.
    pub(crate) fn reassemble(&mut self, held: Held) {
        let Some(h) = Headers::parse(&held.bytes) else { return };
        let now = self.backer.now;
        match self.backer.fragments.take(held, &h, now) {
            // It is counted when its datagram is complete or given up.
            Taken::Waits => self.pipeline.sent += 1,
            Taken::Full => self.because(DropReason::FragmentsFull),
            Taken::Big(n) => {
                self.backer.drops.add_many(DropReason::FragmentsBig, n - 1);
                self.because(DropReason::FragmentsBig);
            }
            Taken::Overlap(n) => {
                self.backer.drops.add_many(DropReason::FragmentOverlap, n - 1);
                self.because(DropReason::FragmentOverlap);
            }
            Taken::Invalid(held) => self.resume_invalid(&held),
            Taken::Whole(whole, list) => self.datagram(&whole, &list),
        }
    }

    /// All fragments of a datagram go on.
    pub(crate) fn datagram(&mut self, whole: &[u8], list: &[Held]) {
        // Each of them is counted as it goes on.
        self.pipeline.sent += 1;
        let Some(first) = list.first().map(|held| &held.rest) else { return };
        // The datagram is what its first fragment says, which alone has ports.
        let own = (std::mem::replace(&mut self.packet.key, first.key.clone()), self.packet.conn);
        self.packet.conn = first.pass;
        let tracked = self.track(&first.ct, first.zone, Some(whole));
        let pass = std::mem::replace(&mut self.packet.conn, own.1);
        self.packet.key = own.0;
        // A datagram does not wait.
        let Some((verdict, tuple, passed)) = tracked else { return };
        let joint = Joint { verdict, tuple, passed, pass, first: first.number };
        for held in list {
            self.apart(None, |x| x.release(held, &joint));
        }
    }

    /// Does something with another packet, which has been given a reason to be dropped, or none: it is counted if nothing
    /// of it is sent.
    pub(crate) fn apart(&mut self, why: Option<DropReason>, body: impl FnOnce(&mut Self)) {
        let (sent, drop) = (std::mem::take(&mut self.pipeline.sent), std::mem::replace(&mut self.pipeline.drop, why));
        body(self);
        if self.pipeline.failed {
            // All of the walk is, when it ends.
            self.pipeline.sent = sent;
            return;
        }
        if self.pipeline.sent == 0 {
            self.backer.drops.add(self.pipeline.drop.unwrap_or(DropReason::Action));
        }
        (self.pipeline.sent, self.pipeline.drop) = (sent, drop);
    }

    /// A fragment goes on that is invalid by itself.
    pub(crate) fn resume_invalid(&mut self, held: &Held) {
        self.pipeline.sent += 1;
        self.apart(None, |x| x.release(held, &Joint { pass: held.rest.pass, ..Joint::invalid() }));
    }

    /// Resumes a fragment after its `ct`.
    fn release(&mut self, held: &Held, joint: &Joint) {
        let Some(p) = self.packet.buf.with_bytes(&held.bytes) else { return self.because(DropReason::NoBuffer) };
        let rest = &held.rest;
        let (depth, resubmits) =
            (std::mem::take(&mut self.pipeline.depth), std::mem::take(&mut self.pipeline.resubmits));
        let resumed = std::mem::replace(&mut self.pipeline.resumed, true);
        let (tunnel, mirrored) = (self.packet.tunnel, self.packet.mirrored);
        self.isolated(|x| {
            x.with_packet(p, |x| {
                // Of TCP flags a number does not tell.
                let flags = x.packet.base.get(F::TcpFlags);
                x.take_up(rest, joint.pass);
                x.packet.key.set(F::TcpFlags, flags);
                x.know_protocol(joint);
                let begun = O::resumes(x, rest, joint);
                if let Some(t) = joint.verdict.translated {
                    x.translate(&t, None);
                }
                x.tracked(&rest.ct, rest.zone, &joint.verdict, joint.tuple);
                x.go_on(rest.frames.clone());
                O::resumed(x, begun);
            });
        });
        (self.packet.tunnel, self.packet.mirrored) = (tunnel, mirrored);
        (self.pipeline.depth, self.pipeline.resubmits, self.pipeline.resumed) = (depth, resubmits, resumed);
    }

    /// A later fragment of IPv6 does not say what it is a part of, but its datagram does, which is whole by now. With the
    /// kernel's tracker the datagram goes on, so that flows that want its protocol match all of it; here all fragments do.
    fn know_protocol(&mut self, joint: &Joint) {
        let h = &self.packet.headers;
        if h.later_fragment && h.is_ipv6() {
            let known = self.packet.key.get(F::IpProto);
            let proto = joint.tuple.map_or(known, |t| t.proto.into());
            self.packet.key.set(F::IpProto, proto);
            self.packet.base.set(F::IpProto, proto);
        }
    }

    /// Tracks the packet, or the whole datagram that it is a fragment of, and translates it. None: the packet waits.
    fn track(
        &mut self,
        c: &CtAction,
        zone: Zone,
        whole: Option<&[u8]>,
    ) -> Option<(Verdict, Option<Tuple>, Option<Passed>)> {
        let now = self.backer.now;
        let req = Request { zone, commit: c.commit, force: c.force, nat: c.nat.as_ref() };
        let windows = self.backer.conntrack.lock().windows;
        let seen = match whole {
            None => seen(
                self.packet.buf.data(),
                &self.packet.headers,
                windows,
                self.packet.buf.checksum_good(),
                &mut self.packet.checksums_hold,
            ),
            Some(b) => seen_whole(b, windows).map(|p| (p, None)).ok_or(Unfit::Broken),
        };
        let (p, quoted) = match seen {
            Ok(s) => s,
            Err(why) => {
                self.observer.ct_invalid(zone, &self.packet.key, (why, whole.is_none()));
                self.packet.conn = None;
                return Some((invalid(), None, None));
            }
        };
        if self.packet.conn.is_none() && !p.error {
            self.packet.conn = self.remembered(zone, &p.tuple);
            if self.packet.conn.is_some() {
                self.observer.ct_from_fields();
            }
        }
        // A packet keeps its connection in a zone, as in Open vSwitch, unless flows have changed its tuple or `force`
        // is to reverse the connection.
        let other_way = |x: &Pass| c.force && c.commit && x.reply;
        let same = |x: &Pass| x.zone == zone && (x.tuple == p.tuple || p.error);
        let again = self.packet.conn.filter(|x| same(x) && !other_way(x)).and_then(|pass| {
            let table = self.backer.conntrack.lock();
            Some((pass, table.again(&p, &pass, c.nat.is_some())?))
        });
        if let Some((pass, v)) = again {
            self.packet.conn = Some(Pass { state: v.state, tuple: v.translated.unwrap_or(p.tuple), ..pass });
            self.observer.ct_again(&CtPass {
                packet: &p,
                request: &req,
                verdict: &v,
                before: None,
                after: None,
                conntrack: &self.backer.conntrack.lock(),
                base: &self.packet.base,
            });
            if let (None, Some(t)) = (whole, v.translated) {
                self.translate(&t, quoted.as_ref());
            }
            let same = whole.and_then(|_| self.backer.conntrack.lock().snapshot(pass.id));
            let passed = same.filter(|_| p.segment.is_none()).map(|same| Passed::new(zone, &p, [Some(same); 2]));
            return Some((v, Some(p.tuple), passed));
        }
        let mut conntrack = self.backer.conntrack.lock();
        let may_wait = !O::TRACES && whole.is_none() && !self.pipeline.waited && self.backer.awaiting.has_room();
        if may_wait && conntrack.may_be_told(zone, &p, now) && conntrack.seen(zone, &p.tuple).is_none() {
            drop(conntrack);
            self.await_word(c, zone, p.tuple);
            return None;
        }
        let (v, [before, after]) = conntrack.process_seen(&p, &req, now);
        self.observer.ct(&CtPass {
            packet: &p,
            request: &req,
            verdict: &v,
            before,
            after,
            conntrack: &conntrack,
            base: &self.packet.base,
        });
        drop(conntrack);
        let tuple = v.translated.unwrap_or(p.tuple);
        self.packet.conn = v.conn.map(|id| Pass { zone, id, state: v.state, reply: v.reply, tuple });
        if let (None, Some(t)) = (whole, v.translated) {
            self.translate(&t, quoted.as_ref());
        }
        let odd = p.segment.is_some() || v.state & flag::INV != 0 && after.is_some() || c.commit && after.is_none();
        let passed = (whole.is_some() && !odd).then(|| Passed::new(zone, &p, [before, after]));
        Some((v, Some(p.tuple), passed))
    }

    /// The connection of a packet that was translated before a pause, found by its fields.
    fn remembered(&self, zone: Zone, now: &Tuple) -> Option<Pass> {
        let state = self.packet.key.get(F::CtState) as u32;
        let proto = self.packet.key.get(F::CtNwProto) as u8;
        let here = self.packet.key.get(F::CtZone) == zone.into();
        if state & (flag::SNAT | flag::DNAT) == 0 || proto != now.proto || !here {
            return None;
        }
        let (src, dst) = if now.v6 { (F::CtIpv6Src, F::CtIpv6Dst) } else { (F::CtNwSrc, F::CtNwDst) };
        let mut original = Tuple { src: self.packet.key.get(src), dst: self.packet.key.get(dst), ..*now };
        let (a, b) = (self.packet.key.get(F::CtTpSrc) as u16, self.packet.key.get(F::CtTpDst) as u16);
        if matches!(proto, ipproto::ICMP | ipproto::ICMPV6) {
            (original.icmp_type, original.icmp_code) = (a as u8, b as u8);
        } else {
            (original.sport, original.dport) = (a, b);
        }
        let id = self.backer.conntrack.lock().seen(zone, &original)?.id;
        Some(Pass { zone, id, state, reply: state & flag::RPL != 0, tuple: *now })
    }

    /// Continues with the verdict of connection tracking.
    fn tracked(&mut self, c: &CtAction, zone: Zone, verdict: &Verdict, tuple: Option<Tuple>) {
        if let Some(why) = verdict.refused {
            // As with the kernel's connection tracking, a packet whose connection cannot be made is dropped, and nothing
            // that follows is done with it.
            self.pipeline.exit = true;
            return self.because(match why {
                Refusal::Full => DropReason::ConntrackFull,
                Refusal::ZoneLimit => DropReason::ZoneLimit,
                Refusal::NoPort => DropReason::NatExhausted,
            });
        }
        if self.is_last() {
            return self.tracked_last(c, zone, verdict, tuple);
        }
        let mut view = self.packet.key.clone();
        self.fill(&mut view, verdict, zone, tuple);
        if c.commit && verdict.conn.is_some() && !c.exec.is_empty() {
            let saved = std::mem::replace(&mut self.packet.key, view);
            self.execute(c, verdict, tuple);
            view = std::mem::replace(&mut self.packet.key, saved);
            if let Some(id) = verdict.conn {
                self.set_mark_label(zone, id, &view);
            }
        }
        // A copy goes on in `table` with the connection's fields; the actions that follow see none.
        if let Some(table) = c.table {
            self.fork(Some(view), table);
        }
        self.clear_ct_fields();
    }

    /// The same where nothing follows the action: the packet itself goes on.
    fn tracked_last(&mut self, c: &CtAction, zone: Zone, verdict: &Verdict, tuple: Option<Tuple>) {
        let mut view = std::mem::take(&mut self.packet.key);
        self.fill(&mut view, verdict, zone, tuple);
        self.packet.key = view;
        if let Some(id) = verdict.conn.filter(|_| c.commit && !c.exec.is_empty()) {
            self.execute(c, verdict, tuple);
            let key = std::mem::take(&mut self.packet.key);
            self.set_mark_label(zone, id, &key);
            self.packet.key = key;
        }
        if let Some(table) = c.table {
            self.fork(None, table);
        }
    }

    /// Carries out what makes a connection's mark and label. What it reads of the packet's tuple is what that was before
    /// the translation.
    fn execute(&mut self, c: &CtAction, verdict: &Verdict, tuple: Option<Tuple>) {
        let before = tuple.filter(|_| verdict.translated.is_some() && reads_tuple(&c.exec));
        let translated = before.map(|t| {
            // What is kept of a walk says what it reads of the tuple that it has now.
            self.observer.side_effect();
            let key = self.packet.key.clone();
            let ends = [t.src, t.dst, t.sport.into(), t.dport.into()];
            let said = tuple_fields(t.v6).into_iter().zip(ends).take(if t.is_icmp() { 2 } else { 4 });
            said.for_each(|(f, v)| self.packet.key.set(f, v));
            key
        });
        self.observer.ct_exec_begins();
        self.actions(&c.exec);
        self.observer.ct_exec_done();
        if let Some(mut key) = translated {
            for f in [F::CtMark, F::CtLabel] {
                key.set(f, self.packet.key.get(f));
            }
            self.packet.key = key;
        }
    }

    /// Gives a connection the mark and label that its packet's key has by now.
    fn set_mark_label(&mut self, zone: Zone, id: ConnId, key: &FlowKey) {
        let (mark, label) = (key.get(F::CtMark) as u32, key.get(F::CtLabel));
        self.backer.conntrack.lock().set_mark_label(id, mark, label);
        self.observer.ct_marks(zone, mark, label);
    }

    /// Walks from a table on with another key; `None`: with the packet's own key, which is not needed afterwards.
    fn fork(&mut self, view: Option<FlowKey>, table: TableId) {
        let last = std::mem::replace(&mut self.pipeline.last, view.is_none());
        let depth = std::mem::take(&mut self.pipeline.depth);
        let origin = std::mem::replace(&mut self.pipeline.first_level, self.pipeline.levels);
        let pass = self.packet.conn;
        let saved = (self.pipeline.table, self.pipeline.flow, self.pipeline.exit);
        let within = std::mem::replace(&mut self.pipeline.within, Within::Flow);
        let more = view.map(|v| {
            let key = std::mem::replace(&mut self.packet.key, v);
            (key, self.pipeline.stack.clone(), self.pipeline.action_set.clone(), self.copy_begins())
        });
        (self.pipeline.table, self.pipeline.flow) = (table, Origin::NONE);
        self.pipeline.ct_depth += 1;
        let before = self.observer.translations();
        self.observer.scope_begins();
        if self.pipeline.ct_depth <= MAX_DEPTH {
            self.observer.goes_on((self.pipeline.bridge, table), &self.packet.key);
            self.run_table(table);
            self.observer.came_back();
        } else {
            self.because(DropReason::TooDeep);
        }
        self.observer.scope_ends();
        if more.is_some() {
            self.observer.restores(before);
        }
        self.pipeline.ct_depth -= 1;
        (self.pipeline.table, self.pipeline.flow, self.pipeline.exit) = saved;
        self.pipeline.within = within;
        (self.pipeline.depth, self.pipeline.first_level, self.packet.conn, self.pipeline.last) =
            (depth, origin, pass, last);
        if let Some((key, stack, set, outside)) = more {
            self.copy_ends(outside);
            (self.packet.key, self.pipeline.stack, self.pipeline.action_set) = (key, stack, set);
            self.settle_tags();
        }
    }

    fn fill(&self, k: &mut FlowKey, v: &Verdict, zone: Zone, tuple: Option<Tuple>) {
        for w in CT_WORDS {
            if let Some(x) = k.0.get_mut(w) {
                *x = 0;
            }
        }
        k.set(F::CtState, v.state.into());
        k.set(F::CtZone, zone.into());
        let conn = v.conn.and_then(|id| {
            let table = self.backer.conntrack.lock();
            table.look(id, |c| (c.mark, c.label, c.original))
        });
        if let Some((mark, label, _)) = conn {
            k.set(F::CtMark, mark.into());
            k.set(F::CtLabel, label);
        }
        if v.state & flag::INV != 0 {
            return;
        }
        let Some(o) = conn.map(|(.., original)| original).or(tuple) else { return };
        k.set(F::CtNwProto, o.proto.into());
        if o.v6 {
            k.set(F::CtIpv6Src, o.src);
            k.set(F::CtIpv6Dst, o.dst);
        } else {
            k.set(F::CtNwSrc, o.src);
            k.set(F::CtNwDst, o.dst);
        }
        let icmp = o.is_icmp();
        k.set(F::CtTpSrc, if icmp { o.icmp_type.into() } else { o.sport.into() });
        k.set(F::CtTpDst, if icmp { o.icmp_code.into() } else { o.dport.into() });
    }

    /// Writes a new tuple to the packet; in an ICMP error, to the quoted packet, too.
    fn translate(&mut self, t: &Tuple, quoted: Option<&Quoted>) {
        let (src, dst) = if t.v6 { (F::Ipv6Src, F::Ipv6Dst) } else { (F::IpSrc, F::IpDst) };
        match quoted {
            None => {
                self.packet.key.set(src, t.src);
                self.packet.key.set(dst, t.dst);
                match t.proto {
                    ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
                        self.packet.key.set(F::TcpSrc, t.sport.into());
                        self.packet.key.set(F::TcpDst, t.dport.into());
                    }
                    ipproto::ICMP | ipproto::ICMPV6 => self.set_icmp_id(t.sport),
                    _ => {}
                }
            }
            Some(q) => {
                if let Some(hidden) = quoted::sender(&[q.tuple.reversed(), *t]) {
                    self.packet.key.set(src, hidden);
                }
                self.packet.key.set(dst, t.dst);
                self.keep_bytes();
                let h = self.packet.headers;
                q.rewrite(self.packet.buf.data_mut(), &h, &t.reversed());
                self.commit();
            }
        }
        // Otherwise changes are written together when the packet leaves.
        if O::TRACES {
            self.commit();
        }
    }

    fn set_icmp_id(&mut self, id: u16) {
        let Some(l4) = self.packet.headers.l4 else { return };
        self.keep_bytes();
        put_icmp_id(self.packet.buf.data_mut(), l4, id);
        self.observer.writes_icmp_id(id);
    }
}
