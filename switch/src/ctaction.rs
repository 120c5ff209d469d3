//! The `ct` action: tracking, translation, and the walk behind it.

use crate::buf::PacketBuf;
use crate::conntrack::{Packet, Request, Tuple, Verdict, flag};
use crate::extract::address;
use crate::xlate::Xlate;
use openflow_rs::action::{CtAction, ZoneSpec};
use openflow_rs::{FieldId as F, FlowKey};
use packet::{Headers, be16, checksum, ipproto};

/// Key words that hold connection fields: ct state and zone, mark, label, original tuple.
const CT_WORDS: std::ops::Range<usize> = 39..48;

/// Where the packet inside an ICMP error is.
struct Inner {
    l3: usize,
    l4: usize,
    tuple: Tuple,
}

fn icmp_fields(p: &[u8], l4: usize) -> (u8, u8, u16) {
    (p.get(l4).copied().unwrap_or(0), p.get(l4 + 1).copied().unwrap_or(0), be16(p, l4 + 4).unwrap_or(0))
}

fn is_error(proto: u8, kind: u8) -> bool {
    proto == ipproto::ICMP && matches!(kind, 3 | 4 | 5 | 11 | 12) || proto == ipproto::ICMPV6 && (1..=4).contains(&kind)
}

fn inner(p: &[u8], h: &Headers, l4: usize) -> Option<Inner> {
    let l3 = l4 + 8;
    let v6 = h.is_ipv6();
    let first = *p.get(l3)?;
    let (proto, at) = if v6 {
        (first >> 4 == 6).then_some(())?;
        (*p.get(l3 + 6)?, l3 + 40)
    } else {
        (first >> 4 == 4).then_some(())?;
        (*p.get(l3 + 9)?, l3 + usize::from(first & 15) * 4)
    };
    let (so, d_o) = if v6 { (8, 24) } else { (12, 16) };
    let mut t = Tuple {
        v6,
        proto,
        src: address(p, l3 + so, v6)?,
        dst: address(p, l3 + d_o, v6)?,
        sport: 0,
        dport: 0,
        icmp_type: 0,
        icmp_code: 0,
    };
    match proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
            t.sport = be16(p, at)?;
            t.dport = be16(p, at + 2)?;
        }
        ipproto::ICMP | ipproto::ICMPV6 => {
            be16(p, at + 4)?;
            let (kind, code, id) = icmp_fields(p, at);
            (t.icmp_type, t.icmp_code, t.sport, t.dport) = (kind, code, id, id);
        }
        _ => {}
    }
    Some(Inner { l3, l4: at, tuple: t })
}

fn store(p: &mut [u8], at: usize, b: &[u8]) {
    if let Some(d) = p.get_mut(at..at + b.len()) {
        d.copy_from_slice(b);
    }
}

pub(crate) fn put_icmp_id(p: &mut [u8], l4: usize, id: u16) {
    if let (Some(old), Some(sum)) = (be16(p, l4 + 4), be16(p, l4 + 2)) {
        store(p, l4 + 4, &id.to_be_bytes());
        store(p, l4 + 2, &checksum::update16(sum, old, id).to_be_bytes());
    }
}

impl<P: PacketBuf> Xlate<'_, P> {
    pub(crate) fn clear_ct(&mut self) {
        for w in CT_WORDS {
            if let Some(x) = self.key.0.get_mut(w) {
                *x = 0;
            }
        }
    }

    /// The packet as the tracker sees it; `None` if it cannot be tracked.
    fn ct_packet(&self) -> Option<(Packet, Option<Inner>)> {
        let p = self.pkt.data();
        let h = &self.h;
        let (src, dst) = h.addresses(p)?;
        if h.later_fragment {
            return None;
        }
        let mut t = Tuple { v6: h.is_ipv6(), proto: h.proto, src, dst, sport: 0, dport: 0, icmp_type: 0, icmp_code: 0 };
        let mut tcp_flags = 0;
        match h.proto {
            ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
                (t.sport, t.dport) = h.ports(p)?;
                if h.proto == ipproto::TCP {
                    tcp_flags = be16(p, h.l4? + 12)? & 0xfff;
                }
            }
            ipproto::ICMP | ipproto::ICMPV6 => {
                let l4 = h.l4?;
                let (kind, code, id) = icmp_fields(p, l4);
                if is_error(h.proto, kind) {
                    let i = inner(p, h, l4)?;
                    return Some((Packet { tuple: i.tuple.reversed(), tcp_flags: 0, error: true }, Some(i)));
                }
                (t.icmp_type, t.icmp_code, t.sport, t.dport) = (kind, code, id, id);
            }
            _ => {}
        }
        Some((Packet { tuple: t, tcp_flags, error: false }, None))
    }

    pub(crate) fn ct(&mut self, c: &CtAction) {
        if !self.commit() {
            return;
        }
        let zone = match &c.zone {
            ZoneSpec::Imm(z) => *z,
            ZoneSpec::Field(f) => self.key.get_sub(f) as u16,
        };
        let now = self.sw.now;
        let req = Request { zone, commit: c.commit, force: c.force, nat: c.nat.as_ref() };
        let (verdict, tuple) = match self.ct_packet() {
            Some((p, i)) => {
                let before = self.rec.as_ref().and_then(|_| self.sw.conntrack.seen(zone, &p.tuple));
                let v = self.sw.conntrack.process(&p, &req, now);
                let after = self.rec.as_ref().and_then(|_| self.sw.conntrack.seen(zone, &p.tuple));
                // Errors, packets that do not fit their connection, and refused commits are looked at each time.
                let odd = p.error || v.state & flag::INV != 0 && after.is_some() || c.commit && after.is_none();
                match &mut self.rec {
                    Some(_) if odd => self.unrepeatable(),
                    Some(r) => r.tracked(zone, &p.tuple, before, after),
                    None => {}
                }
                if let Some(t) = v.translated {
                    self.translate(&t, i.as_ref());
                }
                (v, Some(p.tuple))
            }
            None => (Verdict { state: flag::TRK | flag::INV, ..Default::default() }, None),
        };
        self.note(|| format!("zone {zone}: state {:#x}", verdict.state));
        let mut view = self.key.clone();
        self.fill(&mut view, &verdict, zone, tuple);
        if c.commit && verdict.conn.is_some() && !c.exec.is_empty() {
            let saved = std::mem::replace(&mut self.key, view);
            self.actions(&c.exec);
            view = std::mem::replace(&mut self.key, saved);
            if let Some(id) = verdict.conn {
                self.sw.conntrack.set_mark_label(id, view.get(F::CtMark) as u32, view.get(F::CtLabel));
            }
        }
        if let Some(table) = c.table {
            // The packet goes on in `table` with the connection's fields; what follows the action goes on without them.
            self.fork(view, table);
        }
    }

    fn fork(&mut self, view: FlowKey, table: u8) {
        let depth = std::mem::take(&mut self.depth);
        let saved = (self.key.clone(), self.stack.clone(), self.action_set.clone(), self.table, self.cookie, self.exit);
        self.key = view;
        self.nested += 1;
        if self.nested <= crate::xlate::MAX_DEPTH {
            self.run_table(table);
        } else {
            self.because(crate::DropReason::TooDeep);
        }
        self.nested -= 1;
        (self.key, self.stack, self.action_set, self.table, self.cookie, self.exit) = saved;
        self.depth = depth;
    }

    fn fill(&self, k: &mut FlowKey, v: &Verdict, zone: u16, tuple: Option<Tuple>) {
        for w in CT_WORDS {
            if let Some(x) = k.0.get_mut(w) {
                *x = 0;
            }
        }
        k.set(F::CtState, v.state.into());
        k.set(F::CtZone, zone.into());
        let conn = v.conn.and_then(|id| self.sw.conntrack.get(id));
        if let Some(c) = conn {
            k.set(F::CtMark, c.mark.into());
            k.set(F::CtLabel, c.label);
        }
        if v.state & flag::INV != 0 {
            return;
        }
        let Some(o) = conn.map(|c| c.original).or(tuple) else { return };
        k.set(F::CtNwProto, o.proto.into());
        if o.v6 {
            k.set(F::CtIpv6Src, o.src);
            k.set(F::CtIpv6Dst, o.dst);
        } else {
            k.set(F::CtNwSrc, o.src);
            k.set(F::CtNwDst, o.dst);
        }
        let icmp = matches!(o.proto, 1 | 58);
        k.set(F::CtTpSrc, if icmp { o.icmp_type.into() } else { o.sport.into() });
        k.set(F::CtTpDst, if icmp { o.icmp_code.into() } else { o.dport.into() });
    }

    /// Gives the packet a new tuple; in an ICMP error, the packet inside too.
    fn translate(&mut self, t: &Tuple, inner: Option<&Inner>) {
        let (src, dst) = if t.v6 { (F::Ipv6Src, F::Ipv6Dst) } else { (F::IpSrc, F::IpDst) };
        match inner {
            None => {
                self.key.set(src, t.src);
                self.key.set(dst, t.dst);
                match t.proto {
                    ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
                        self.key.set(F::TcpSrc, t.sport.into());
                        self.key.set(F::TcpDst, t.dport.into());
                    }
                    ipproto::ICMP | ipproto::ICMPV6 => self.set_icmp_id(t.sport),
                    _ => {}
                }
            }
            Some(i) => {
                // The error's own source stays, unless it is the translated peer itself.
                if self.key.get(src) == i.tuple.dst {
                    self.key.set(src, t.src);
                }
                self.key.set(dst, t.dst);
                self.rewrite_inner(&t.reversed(), i);
            }
        }
        self.commit();
    }

    fn set_icmp_id(&mut self, id: u16) {
        let Some(l4) = self.h.l4 else { return };
        put_icmp_id(self.pkt.data_mut(), l4, id);
        if let Some(r) = &mut self.rec {
            r.icmp_id(id);
        }
    }

    fn rewrite_inner(&mut self, t: &Tuple, i: &Inner) {
        let n = if t.v6 { 16 } else { 4 };
        let (so, d_o) = if t.v6 { (8, 24) } else { (12, 16) };
        let h = self.h;
        let p = self.pkt.data_mut();
        store(p, i.l3 + so, &t.src.to_be_bytes()[16 - n..]);
        store(p, i.l3 + d_o, &t.dst.to_be_bytes()[16 - n..]);
        if !t.v6 {
            checksum::set_ipv4(p, i.l3);
        }
        match t.proto {
            ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
                store(p, i.l4, &t.sport.to_be_bytes());
                store(p, i.l4 + 2, &t.dport.to_be_bytes());
            }
            _ => store(p, i.l4 + 4, &t.sport.to_be_bytes()),
        }
        checksum::set_l4(p, &h);
    }
}
