//! Packets aimed at flows: a walk through the tables that chooses a flow in each, and notes what the packet must be to
//! get there.
//!
//! A bit of the key is either decided or free. Choosing a flow decides the free bits that it matches; where no action
//! has written the bit before, the packet has to bring it along. Connection fields become free behind `ct`: whether the
//! connection then is as chosen is up to the packets before.

use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey, FlowMod, Group, GroupId, PortNo, Subfield, TableId, WORDS, ones};
use rand::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const CT_WORDS: std::ops::Range<usize> = 39..48;
const STEPS: u32 = 300;

/// Fields whose values are collected, to fill what is left free.
const POOLED: [F; 15] = [
    F::EthSrc,
    F::EthDst,
    F::IpSrc,
    F::IpDst,
    F::Ipv6Src,
    F::Ipv6Dst,
    F::ArpOp,
    F::ArpSha,
    F::TcpSrc,
    F::TcpDst,
    F::NdTarget,
    F::IpProto,
    F::VlanTci,
    F::EthType,
    F::Icmpv6Type,
];

/// A flow table to aim at.
pub struct Tables {
    flows: BTreeMap<TableId, Vec<FlowMod>>,
    groups: BTreeMap<GroupId, Group>,
    pool: BTreeMap<F, Vec<u128>>,
}

fn nested<'a>(list: &'a [Action], out: &mut Vec<&'a Action>) {
    for a in list {
        out.push(a);
        match a {
            Action::Clone(v) | Action::WriteActions(v) => nested(v, out),
            Action::Ct(c) => nested(&c.exec, out),
            _ => {}
        }
    }
}

/// Fields that hold the same kind of value.
fn alike(f: F) -> F {
    match f {
        F::EthSrc | F::EthDst | F::ArpSha | F::ArpTha | F::NdSll | F::NdTll => F::EthSrc,
        F::IpSrc | F::IpDst | F::ArpSpa | F::ArpTpa => F::IpSrc,
        F::Ipv6Src | F::Ipv6Dst | F::NdTarget => F::Ipv6Src,
        F::TcpSrc | F::TcpDst | F::UdpSrc | F::UdpDst | F::SctpSrc | F::SctpDst => F::TcpSrc,
        f => f,
    }
}

impl Tables {
    /// Sorts flows and groups, and collects the values that they name.
    pub fn new(flows: &[FlowMod], groups: &[Group]) -> Tables {
        let mut pool: BTreeMap<F, BTreeSet<u128>> = BTreeMap::new();
        let mut by_table: BTreeMap<TableId, Vec<FlowMod>> = BTreeMap::new();
        for f in flows {
            for (id, v, m) in f.matches.fields() {
                if m == id.full_mask() || alike(id) != id || m.count_ones() > 8 {
                    pool.entry(alike(id)).or_default().insert(v);
                }
            }
            let mut list = Vec::new();
            nested(&f.actions, &mut list);
            for a in list {
                if let Action::SetField { field, value, mask: None, .. } = a {
                    pool.entry(alike(*field)).or_default().insert(*value);
                }
            }
            by_table.entry(f.table).or_default().push(f.clone());
        }
        Tables {
            flows: by_table,
            groups: groups.iter().map(|g| (g.id, g.clone())).collect(),
            pool: pool.into_iter().map(|(k, v)| (k, v.into_iter().collect())).collect(),
        }
    }

    /// A key that differs from another in a few fields.
    pub fn varied(&self, key: &FlowKey, ports: u16, rng: &mut StdRng) -> FlowKey {
        let mut k = key.clone();
        for _ in 0..rng.random_range(1..4) {
            let f = *POOLED.choose(rng).expect("some");
            match f {
                F::EthType | F::VlanTci => k.set(F::InPort, rng.random_range(1..=ports).into()),
                f => k.set(f, self.value(f, rng)),
            }
        }
        k
    }

    /// A value that the flows name for such a field, or any.
    pub fn value(&self, f: F, rng: &mut StdRng) -> u128 {
        match self.pool.get(&alike(f)).and_then(|v| v.choose(rng)) {
            Some(v) if rng.random_ratio(19, 20) => *v,
            _ => match f {
                F::EthSrc => 0x0200_0000_0000 | rng.random_range(0..4),
                F::IpSrc | F::IpDst => 0x0a00_0000 + rng.random_range(0..4),
                F::Ipv6Src | F::Ipv6Dst | F::NdTarget => 0xfd00 << 112 | rng.random_range(0..4u128),
                F::TcpSrc | F::TcpDst => rng.random_range(1..65536),
                f => rng.random::<u128>() & ones(f.bits()),
            },
        }
    }
}

/// A walk that goes on.
#[derive(Clone)]
struct State {
    cur: FlowKey,
    known: [u64; WORDS],
    touched: [u64; WORDS],
    stack: Vec<u128>,
    table: TableId,
}

/// The packet that a walk wants.
pub struct Aim<'a> {
    tables: &'a Tables,
    rng: &'a mut StdRng,
    first: FlowKey,
    wanted: [u64; WORDS],
    steps: u32,
}

/// Aims at some flows; gives the key of the packet, ingress port included.
pub fn aim(tables: &Tables, ports: u16, rng: &mut StdRng) -> FlowKey {
    let mut a = Aim { tables, rng, first: FlowKey::new(), wanted: [0; WORDS], steps: 0 };
    let mut s = State {
        cur: FlowKey::new(),
        known: [u64::MAX; WORDS],
        touched: [0; WORDS],
        stack: Vec::new(),
        table: TableId::FIRST,
    };
    s.known[switch::extract::PACKET_WORDS].fill(0);
    let d = F::InPort.def();
    s.known[d.word] &= !((ones(d.bits) as u64) << d.shift);
    a.table(&mut s, TableId::FIRST);
    a.fill(ports);
    a.first
}

impl Aim<'_> {
    fn table(&mut self, s: &mut State, table: TableId) {
        self.steps += 1;
        if self.steps > STEPS {
            return;
        }
        let Some(list) = self.tables.flows.get(&table) else { return };
        let fits = |f: &&FlowMod| {
            f.matches.words().iter().all(|w| {
                let i = usize::from(w.word);
                (w.value ^ s.cur.0[i]) & w.mask & s.known[i] == 0
            })
        };
        let mut best: Vec<&FlowMod> = list.iter().filter(fits).collect();
        // Mostly a flow that says something, as the packet may well not fall through to the last one.
        best.sort_by_key(|f| std::cmp::Reverse(f.priority));
        let n = best.len();
        let pick = if self.rng.random_ratio(1, 3) {
            self.rng.random_range(0..n.clamp(1, 3))
        } else {
            self.rng.random_range(0..n.max(1))
        };
        let Some(f) = best.get(pick) else { return };
        for w in f.matches.words() {
            let i = usize::from(w.word);
            let bits = w.mask & !s.known[i];
            s.cur.0[i] = s.cur.0[i] & !bits | w.value & bits;
            s.known[i] |= bits;
            let bring = bits & !s.touched[i];
            self.first.0[i] = self.first.0[i] & !bring | w.value & bring;
            self.wanted[i] |= bring;
        }
        let before = std::mem::replace(&mut s.table, table);
        let actions = f.actions.clone();
        self.actions(s, &actions);
        s.table = before;
    }

    /// Decides the free bits of a field.
    fn decide(&mut self, s: &mut State, f: F) {
        let mut known = FlowKey(s.known);
        let free = !known.get(f) & f.full_mask();
        if free == 0 {
            return;
        }
        let v = self.tables.value(f, self.rng) & free;
        let touched = FlowKey(s.touched).get(f);
        s.cur.set_masked(f, v, free);
        known.set_masked(f, u128::MAX, free);
        s.known = known.0;
        let bring = free & !touched;
        self.first.set_masked(f, v, bring);
        let mut wanted = FlowKey(self.wanted);
        wanted.set_masked(f, u128::MAX, bring);
        self.wanted = wanted.0;
    }

    fn write(&mut self, s: &mut State, f: F, value: u128, mask: u128) {
        s.cur.set_masked(f, value, mask);
        for bits in [&mut s.known, &mut s.touched] {
            let mut k = FlowKey(*bits);
            k.set_masked(f, u128::MAX, mask);
            *bits = k.0;
        }
    }

    fn write_sub(&mut self, s: &mut State, d: &Subfield, v: u128) {
        self.write(s, d.field, v << d.ofs, ones(d.n_bits) << d.ofs);
    }

    fn read(&mut self, s: &mut State, d: &Subfield) -> u128 {
        self.decide(s, d.field);
        s.cur.get_sub(d)
    }

    fn actions(&mut self, s: &mut State, list: &[Action]) {
        for a in list {
            match a {
                Action::SetField { field, value, mask, .. } => self.write(s, *field, *value, mask.unwrap_or(u128::MAX)),
                Action::Load { value, dst } => self.write_sub(s, dst, u128::from(*value)),
                Action::Move { src, dst } => {
                    let v = self.read(s, src);
                    self.write_sub(s, dst, v);
                }
                Action::Push(d) => {
                    let v = self.read(s, d);
                    s.stack.push(v);
                }
                Action::Pop(d) => {
                    let v = s.stack.pop().unwrap_or(0);
                    self.write_sub(s, d, v);
                }
                Action::Resubmit { table, port, .. } => {
                    let real = s.cur.get(F::InPort);
                    if *port != PortNo::IN_PORT {
                        s.cur.set(F::InPort, port.0.into());
                    }
                    let t = if *table == TableId::CURRENT { s.table } else { *table };
                    self.table(s, t);
                    s.cur.set(F::InPort, real);
                }
                Action::GotoTable(t) => self.table(s, *t),
                Action::Clone(v) => {
                    let mut copy = s.clone();
                    self.actions(&mut copy, v);
                }
                Action::Group(g) => {
                    let buckets = self.tables.groups.get(g).map(|g| g.buckets.clone()).unwrap_or_default();
                    if let Some(b) = buckets.choose(self.rng) {
                        let mut copy = s.clone();
                        self.actions(&mut copy, &b.actions);
                    }
                }
                Action::Ct(c) => {
                    let mut copy = s.clone();
                    for w in CT_WORDS {
                        copy.known[w] = 0;
                        copy.touched[w] = u64::MAX;
                    }
                    if c.nat.is_some() {
                        for f in [F::IpSrc, F::IpDst, F::Ipv6Src, F::Ipv6Dst, F::TcpSrc, F::TcpDst] {
                            let w = f.def().word;
                            // Where it is translated to shows in the tables; a packet that fits as it is will do too.
                            if self.rng.random_ratio(1, 4) {
                                copy.touched[w] = u64::MAX;
                            }
                        }
                    }
                    if let Some(t) = c.table {
                        self.table(&mut copy, t);
                    }
                }
                Action::CtClear => {
                    for w in CT_WORDS {
                        (s.cur.0[w], s.known[w], s.touched[w]) = (0, u64::MAX, u64::MAX);
                    }
                }
                Action::DecTtl(_) => {
                    self.decide(s, F::IpTtl);
                    let v = s.cur.get(F::IpTtl).saturating_sub(1);
                    self.write(s, F::IpTtl, v, 0xff);
                }
                _ => {}
            }
        }
    }

    /// Decides what no flow asked for.
    fn fill(&mut self, ports: u16) {
        let wanted = FlowKey(self.wanted);
        let free = |f: F| wanted.get(f) == 0;
        if free(F::InPort) {
            self.first.set(F::InPort, self.rng.random_range(1..=ports).into());
        }
        if free(F::EthType) {
            let kinds = [0x800, 0x800, 0x800, 0x86dd, 0x86dd, 0x806];
            self.first.set(F::EthType, *kinds.choose(self.rng).expect("some"));
        }
        let ip = matches!(self.first.get(F::EthType), 0x800 | 0x86dd);
        if ip && free(F::IpProto) {
            let icmp = if self.first.get(F::EthType) == 0x800 { 1 } else { 58 };
            self.first.set(F::IpProto, *[6, 6, 17, 17, 132, icmp].choose(self.rng).expect("some"));
        }
        if ip && free(F::IpTtl) {
            self.first.set(F::IpTtl, *[64, 64, 64, 255, 2, 1, 0].choose(self.rng).expect("some"));
        }
        for f in POOLED {
            let missing = !wanted.get(f) & f.full_mask();
            let tcp_flags = [0x002, 0x012, 0x010, 0x018, 0x011, 0x004];
            match f {
                F::EthType | F::IpProto | F::VlanTci => {}
                F::ArpOp if free(f) => self.first.set(f, self.rng.random_range(1..=2)),
                F::ArpOp => {}
                F::Icmpv6Type => {
                    if free(f) && matches!(self.first.get(F::IpProto), 1 | 58) {
                        let v4 = self.first.get(F::IpProto) == 1;
                        let kinds: &[u128] =
                            if v4 { &[8, 8, 0, 3, 11] } else { &[128, 128, 129, 135, 136, 133, 134, 1, 2] };
                        self.first.set(f, *kinds.choose(self.rng).expect("some"));
                    }
                    if free(F::TcpFlags) {
                        self.first.set(F::TcpFlags, *tcp_flags.choose(self.rng).expect("some"));
                    }
                }
                f if missing != 0 => {
                    let of = match (f, self.first.get(F::EthType)) {
                        // What shares a place is told apart by the kind of packet.
                        (F::ArpSha | F::IpSrc | F::IpDst, 0x86dd) => continue,
                        (F::Ipv6Src | F::Ipv6Dst | F::NdTarget, t) if t != 0x86dd => continue,
                        (F::ArpSha, t) if t != 0x806 => continue,
                        (F::TcpSrc | F::TcpDst, _) if !matches!(self.first.get(F::IpProto), 6 | 17 | 132) => continue,
                        (f, _) => f,
                    };
                    let v = self.tables.value(of, self.rng);
                    self.first.set_masked(f, v, missing);
                }
                _ => {}
            }
        }
        // Sources are not multicast, but for a few packets that are wrong.
        if self.rng.random_ratio(29, 30) && free(F::EthSrc) {
            let v = self.first.get(F::EthSrc);
            self.first.set(F::EthSrc, v & !(1 << 40));
        }
    }
}
