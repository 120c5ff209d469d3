//! Random flow tables: matches on all fields with all kinds of masks, all actions, groups and meters.

use crate::compare::Case;
use openflow_rs::action::*;
use openflow_rs::mods::*;
use openflow_rs::*;
use openflow_rs::{FieldId as F, GroupId, MeterId, PortNo};
use rand::prelude::*;
use std::collections::BTreeMap;

/// Tables that flows of the grammar are in; those behind them are for learned flows.
const TABLES: u8 = 6;
/// Ports that flows send to and packets come from.
const LAST_PORT: u16 = 6;
/// How deep actions are nested.
const DEPTH: u32 = 2;
/// Ports that `nat` names.
pub const NAT_PORTS: std::ops::Range<u16> = 2000..2010;

/// What a case may use: each case has its own set, so that rare actions meet each other as well as common ones.
struct Uses {
    ct: bool,
    nat: bool,
    learn: bool,
    groups: bool,
    meters: bool,
    sets: bool,
    pause: bool,
    lengths: bool,
    normal: bool,
    tunnel: bool,
    mpls: bool,
}

/// Writes one case.
pub struct Grammar<'a> {
    rng: &'a mut StdRng,
    uses: Uses,
    groups: Vec<u32>,
    meters: Vec<u32>,
    /// One form of learned flows for each kind of packet: those of a table then never overlap.
    learns: BTreeMap<TableId, LearnAction>,
    table: u8,
}

/// EtherType, IP protocol, ICMP type.
type Kind = (u128, u128, u128);

/// The EtherType of MPLS.
const MPLS: u128 = 0x8847;

const KINDS: [Kind; 18] = [
    (0, 0, 0),
    (0, 0, 0),
    (0x800, 0, 0),
    (0x800, 0, 0),
    (0x800, 6, 0),
    (0x800, 17, 0),
    (0x800, 1, 8),
    (0x800, 1, 0),
    (0x800, 132, 0),
    (0x86dd, 0, 0),
    (0x86dd, 6, 0),
    (0x86dd, 17, 0),
    (0x86dd, 58, 128),
    (0x86dd, 58, 135),
    (0x86dd, 58, 136),
    (0x806, 0, 0),
    (0x8035, 0, 0),
    (0x88b5, 0, 0),
];

/// Fields that no flow of the grammar names by chance: `conj_id` goes with `conjunction`, the others with the packet's kind.
const APART: [F; 15] = [
    F::ConjId,
    F::DpHash,
    F::PacketType,
    F::InPortOxm,
    F::EthType,
    F::IpProto,
    F::ActsetOutput,
    F::NwTos,
    F::CtNwProto,
    F::CtNwSrc,
    F::CtNwDst,
    F::CtIpv6Src,
    F::CtIpv6Dst,
    F::CtTpSrc,
    F::CtTpDst,
];

/// Fields of which Open vSwitch takes a flow's value for the mask as well: a flow that wants 0 matches all packets there.
const MASKED_BY_VALUE: [F; 5] =
    [F::TunErspanVer, F::TunErspanDir, F::TunErspanHwid, F::TunGtpuFlags, F::TunGtpuMsgtype];

fn on_the_wire(f: F) -> bool {
    // Of the tunnels' options only the first is mapped; that the others are refused is no news.
    !f.def().headers.is_empty()
        && !APART.contains(&f)
        && !is_new_register(f)
        && !MASKED_BY_VALUE.contains(&f)
        && (f.presence().is_none() || f == F::TunMetadata0)
}

/// Registers that Open vSwitch 3.1 lacks.
fn is_new_register(f: F) -> bool {
    let name = f.def().name;
    let from = |prefix: &str, first: u32| {
        name.strip_prefix(prefix).and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n >= first)
    };
    from("reg", 16) || from("xreg", 8) || from("xxreg", 4)
}

/// So many bits of a field can be named.
fn width(f: F) -> u32 {
    if f.presence().is_some() { 32 } else { Subfield::width(f) }
}

fn tunnel(f: F) -> bool {
    f.def().name.starts_with("tun_")
}

fn tracked(f: F) -> bool {
    f.def().name.starts_with("ct_")
}

/// Leaves out what would see addresses behind a translation, but in the table that `ct` goes on in: Open vSwitch takes them for
/// what they were before.
fn end_at_translation(list: &mut Vec<Action>) {
    let looks = |a: &Action| matches!(a, Action::Resubmit { .. } | Action::Group(_) | Action::GotoTable(_));
    let end = list.iter().position(looks).map_or(list.len(), |i| i + 1);
    list.truncate(end);
    let mut translated = false;
    list.retain(|a| {
        let keeps = matches!(
            a,
            Action::Ct(_)
                | Action::CtClear
                | Action::Output { .. }
                | Action::OutputTrunc { .. }
                | Action::Controller(_)
                | Action::Note(_)
                | Action::Exit
        );
        let stays = keeps || !translated;
        translated |= matches!(a, Action::Ct(c) if c.nat.is_some());
        stays
    });
}

impl<'a> Grammar<'a> {
    /// A case: its flows, groups and meters.
    pub fn case(name: String, rng: &'a mut StdRng) -> Case {
        let mut one_in = |n: u32| rng.random_ratio(1, n);
        let mut uses = Uses {
            ct: one_in(2),
            nat: one_in(2),
            learn: one_in(4),
            groups: one_in(2),
            meters: one_in(5),
            sets: one_in(3),
            pause: one_in(10),
            lengths: one_in(10),
            normal: one_in(5),
            tunnel: one_in(4),
            mpls: one_in(6),
        };
        // What it learns of labels it does not match.
        uses.learn &= !uses.mpls;
        // Nor do action sets know of a translation there.
        uses.sets &= !(uses.ct && uses.nat);
        let mut g = Grammar { rng, uses, groups: Vec::new(), meters: Vec::new(), learns: BTreeMap::new(), table: 0 };
        let mut case = Case { name, ..Default::default() };
        if g.uses.meters {
            for id in 1..=2 {
                g.meters.push(id);
                case.meters.push(g.meter(id));
            }
        }
        // They lead to the last table, from which nothing leads back to them.
        g.table = TABLES - 2;
        for id in 1..=if g.uses.groups { 3 } else { 0 } {
            let group = g.group(id);
            case.groups.push(group);
            g.groups.push(id);
        }
        for table in 0..TABLES {
            g.table = table;
            let n = g.rng.random_range(2..9);
            for at in 0..n {
                // Of one priority there is one flow, as which of several a packet meets is open.
                let f = g.flow(100 - at * 5);
                case.flows.push(f);
            }
            // What packets meet that meet nothing else.
            for (priority, kind) in [(3, 0x800), (2, 0x86dd), (0, 0)] {
                let m = if kind == 0 { Match::new() } else { Match::new().with(F::EthType, kind) };
                if g.rng.random_ratio(2, 3) {
                    let actions = g.list(&m, DEPTH);
                    case.flows.push(FlowMod::add(TableId(table), priority, 5, m, actions));
                }
            }
            if g.rng.random_ratio(1, 4) {
                g.conjunction(&mut case.flows);
            }
        }
        for (table, l) in std::mem::take(&mut g.learns) {
            if g.rng.random_ratio(1, 2) {
                let actions = vec![g.send()];
                case.flows.push(FlowMod::add(table, l.priority - 1, 0, Match::new(), actions));
            }
        }
        case
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        *list.choose(self.rng).expect("some")
    }

    fn chance(&mut self, of: u32) -> bool {
        self.rng.random_ratio(1, of)
    }

    fn port(&mut self) -> PortNo {
        PortNo(self.rng.random_range(1..=LAST_PORT))
    }

    /// A value of a field: mostly one of a few that others have too.
    fn value(&mut self, f: F) -> u128 {
        if self.chance(12) {
            let known = if f == F::CtState { 0xff } else { ones(width(f)) };
            return self.rng.random::<u128>() & known | if f == F::VlanVid { 0x1000 } else { 0 };
        }
        match f {
            F::EthSrc | F::ArpSha | F::ArpTha | F::NdSll | F::NdTll => 0x0200_0000_0000 + self.rng.random_range(1..5),
            F::EthDst => match self.rng.random_range(0..8) {
                0 => 0xffff_ffff_ffff,
                1 => 0x0100_5e00_0001,
                2 => 0x3333_0000_0001,
                n => 0x0200_0000_0000 + n % 4 + 1,
            },
            F::IpSrc | F::ArpSpa | F::ArpTpa | F::CtNwSrc | F::CtNwDst | F::TunSrc | F::TunDst => {
                0x0a00_0000 + self.rng.random_range(1..5)
            }
            F::IpDst => self.pick(&[0x0a00_0001, 0x0a00_0002, 0x0a00_0003, 0x0a00_0004, 0x0a00_0101, 0xe000_0001]),
            F::Ipv6Src | F::NdTarget | F::CtIpv6Src | F::CtIpv6Dst | F::TunIpv6Src | F::TunIpv6Dst => {
                (0xfd00 << 112) + self.rng.random_range(1..5u128)
            }
            F::Ipv6Dst => {
                self.pick(&[(0xfd00 << 112) + 1, (0xfd00 << 112) + 2, (0xfe80 << 112) + 3, (0xff02 << 112) + 1])
            }
            F::TcpSrc | F::TcpDst | F::UdpSrc | F::UdpDst | F::SctpSrc | F::SctpDst | F::CtTpSrc | F::CtTpDst => {
                self.pick(&[1, 2, 53, 80, 1000, 1024, 40000])
            }
            F::InPort => self.port().0.into(),
            F::VlanTci => 0x1000 | self.rng.random_range(0..4) | self.pick(&[0, 0, 0x2000, 0xe000]),
            F::VlanVid => 0x1000 | self.rng.random_range(0..4),
            F::VlanPcp => self.pick(&[0, 0, 1, 7]),
            F::IpTtl => self.pick(&[0, 1, 2, 64, 255]),
            F::IpDscp => self.pick(&[0, 0, 10, 46]),
            F::IpEcn => self.rng.random_range(0..4),
            F::Ipv6Label => self.pick(&[0, 0, 1, 0xfffff]),
            F::ArpOp => self.rng.random_range(1..4),
            F::IcmpType => self.pick(&[0, 8, 3]),
            F::Icmpv6Type => self.pick(&[128, 129, 135, 136]),
            F::IcmpCode | F::Icmpv6Code => self.pick(&[0, 0, 0, 1]),
            F::TcpFlags => self.pick(&[2, 0x12, 0x10, 0x18, 0x11, 4, 0xfff]),
            F::CtState => 0x20 | self.pick(&[1, 2, 0x0a, 0x10, 4, 0x42, 0x82, 0]),
            F::CtNwProto => self.pick(&[1, 6, 17, 58]),
            f => self.rng.random_range(0..4) & f.full_mask(),
        }
    }

    /// Bits of a field, any of them.
    fn mask(&mut self, f: F) -> u128 {
        let (all, bits) = (ones(width(f)), width(f));
        match self.rng.random_range(0..5) {
            0 => all & !ones(self.rng.random_range(0..bits)),
            1 => ones(self.rng.random_range(1..=bits)),
            2 => 1 << self.rng.random_range(0..bits.min(4)),
            3 => self.rng.random::<u128>() & all,
            _ => all,
        }
    }

    fn may_match(&self, f: F) -> bool {
        on_the_wire(f) && (self.uses.tunnel || !tunnel(f)) && (self.uses.ct || !tracked(f))
    }

    fn any_field(&mut self, m: &Match, fits: impl Fn(F) -> bool) -> F {
        let list: Vec<F> = ALL_FIELDS
            .iter()
            .copied()
            .filter(|f| self.may_match(*f) && fits(*f) && m.satisfies(f.def().prereq))
            .collect();
        let (common, rare): (Vec<F>, Vec<F>) = list.into_iter().partition(|f| {
            !f.def().name.contains("reg") || matches!(f, F::Reg0 | F::Reg1 | F::Reg2 | F::XReg0 | F::XxReg0)
        });
        let from = if common.is_empty() || self.chance(10) && !rare.is_empty() { &rare } else { &common };
        from.choose(self.rng).copied().unwrap_or(F::Reg0)
    }

    fn match_of(&mut self) -> Match {
        let mut m = Match::new();
        let (kind, proto, icmp) = if self.uses.mpls && self.chance(3) { (MPLS, 0, 0) } else { self.pick(&KINDS) };
        if kind != 0 {
            m.set(F::EthType, kind);
        }
        if kind == MPLS && self.chance(2) {
            let last = self.rng.random_range(0..2);
            m.set(F::MplsBos, last);
        }
        if proto != 0 {
            m.set(F::IpProto, proto);
        }
        if proto == 58 || proto == 1 && self.chance(2) {
            m.set(if proto == 58 { F::Icmpv6Type } else { F::IcmpType }, icmp);
            if self.chance(2) {
                m.set(if proto == 58 { F::Icmpv6Code } else { F::IcmpCode }, 0);
            }
        }
        if self.chance(6) {
            match self.rng.random_range(0..3) {
                0 => m.set_masked(F::VlanTci, 0, 0x1fff),
                _ => m.set_masked(F::VlanTci, 0x1000, 0x1000),
            };
        }
        for _ in 0..self.pick(&[0, 0, 1, 1, 1, 2, 2, 3]) {
            let f = self.any_field(&m, |_| true);
            if matches!(f, F::Icmpv6Type | F::IcmpType) && m.get(f).1 != 0 {
                continue;
            }
            let whole = if f.presence().is_some() { ones(32) } else { f.full_mask() };
            let (v, mut mask) = (self.value(f), whole);
            if f == F::IpFrag {
                let (v, mask) = self.pick(&[(0, 3), (1, 1), (1, 3), (2, 2), (0, 2)]);
                m.set_masked(f, v, mask);
                continue;
            }
            if f == F::CtState || f.def().maskable && self.chance(2) {
                mask = self.mask(f);
            }
            if f == F::CtState {
                mask &= v | 0x33;
            }
            // All of a tunnel's option is as wide as the field.
            mask = if mask == whole { f.full_mask() } else { mask };
            m.set_masked(f, v, mask);
        }
        m
    }

    fn flow(&mut self, priority: u16) -> FlowMod {
        let m = if self.chance(6) { Match::new() } else { self.match_of() };
        let actions = self.list(&m, DEPTH);
        let cookie = self.rng.random_range(0..4);
        FlowMod::add(TableId(self.table), priority, cookie, m, actions)
    }

    /// The last action of a flow mostly goes on or sends.
    fn list(&mut self, m: &Match, depth: u32) -> Vec<Action> {
        let mut m = m.clone();
        let mut list: Vec<Action> = Vec::new();
        for _ in 0..self.pick(&[0, 1, 1, 2, 3, 4]) {
            let a = self.action(&m, depth);
            match &a {
                Action::PushVlan(_) => {
                    m.set_masked(F::VlanTci, 0x1000, 0x1000);
                }
                Action::PopVlan => m.clear(F::VlanTci),
                // Nothing else of what was known holds for what is behind a label.
                Action::Mpls(MplsAction::Push(kind) | MplsAction::Pop(kind)) => {
                    m = Match::new().with(F::EthType, (*kind).into());
                }
                _ => {}
            }
            list.push(a);
        }
        match self.rng.random_range(0..12) {
            0 => {}
            1..=6 if self.table + 1 < TABLES => {
                let t = TableId(self.rng.random_range(self.table + 1..TABLES));
                list.push(if depth == DEPTH && self.chance(4) { Action::GotoTable(t) } else { Action::resubmit(t) });
            }
            _ => {
                let a = self.send();
                list.push(a);
            }
        }
        // Instructions have their order.
        list.sort_by_key(|a| match a {
            Action::Meter(_) => 0,
            Action::ClearActions => 2,
            Action::WriteActions(_) => 3,
            Action::WriteMetadata { .. } => 4,
            Action::GotoTable(_) => 5,
            _ => 1,
        });
        list.dedup_by_key(|a| match a {
            Action::Meter(_) => 0,
            Action::ClearActions => 2,
            Action::WriteActions(_) => 3,
            Action::WriteMetadata { .. } => 4,
            Action::GotoTable(_) => 5,
            _ => self.rng.random_range(10..u64::MAX),
        });
        if self.uses.ct && self.uses.nat {
            end_at_translation(&mut list);
        }
        list
    }

    fn send(&mut self) -> Action {
        match self.rng.random_range(0..24) {
            0 => Action::output(PortNo::IN_PORT),
            1 => Action::output(PortNo::CONTROLLER),
            2 | 3 => Action::Controller(Box::new(ControllerAction {
                max_len: self.pick(&[0xffff, 0xffff, 20, 64, 0]),
                reason: self.pick(&[PacketInReason::Action, PacketInReason::NoMatch]),
                userdata: if self.chance(2) { vec![1, 2, 3] } else { Vec::new() },
                pause: self.uses.pause && self.chance(2),
                ..Default::default()
            })),
            // Where tags are taken off behind the cut, an Ethernet header is to be left: dummy ports send no less.
            // Labels that are pushed do not count there before they are written.
            4 | 5 if !self.uses.mpls => {
                Action::OutputTrunc { port: self.port(), max_len: self.pick(&[22, 23, 40, 60, 61, 100, 2000]) }
            }
            6 => {
                let f = self.pick(&[F::Reg0, F::Reg1, F::Reg2, F::Reg3]);
                let src = if self.chance(2) { Subfield::full(f) } else { Subfield { field: f, ofs: 0, n_bits: 3 } };
                Action::OutputReg { src, max_len: 0xffff }
            }
            7 if self.uses.normal => Action::output(self.pick(&[PortNo::NORMAL, PortNo::FLOOD, PortNo::ALL])),
            8 | 9 if !self.groups.is_empty() && self.table + 1 < TABLES => {
                Action::Group(GroupId(*self.groups.choose(self.rng).expect("some")))
            }
            _ => Action::output(self.port()),
        }
    }

    /// Some bits of a field, up to so many.
    fn sub(&mut self, f: F, most: u32) -> Subfield {
        let bits = width(f);
        if bits <= most && self.chance(2) {
            return Subfield::full(f);
        }
        let n = self.rng.random_range(1..=bits.min(most));
        Subfield { field: f, ofs: self.rng.random_range(0..=bits - n), n_bits: n }
    }

    /// A field that actions may write. One in thirty is one that they may not.
    fn target(&mut self, m: &Match) -> F {
        if self.chance(30) {
            return self.any_field(m, |f| f != F::VlanVid);
        }
        self.any_field(m, |f| {
            // What a packet without a tag gets of `vlan_vid` is said in docs/compatibility.md.
            !tracked(f)
                && !matches!(f, F::IpFrag | F::TcpFlags | F::VlanTci)
                && (!tunnel(f) || f != F::TunFlags)
                && (f != F::VlanVid || m.satisfies(Prereq::Vlan))
        })
    }

    fn set(&mut self, m: &Match) -> Action {
        let f = self.target(m);
        let v = self.value(f);
        if f.def().maskable && self.chance(3) {
            let mask = self.mask(f);
            let all = mask == ones(width(f)) && f.presence().is_some();
            if !all {
                return Action::set_masked(f, v, if mask == 0 { 1 } else { mask });
            }
        }
        Action::set(f, v)
    }

    fn action(&mut self, m: &Match, depth: u32) -> Action {
        let ip = m.satisfies(Prereq::Ip);
        let nested = depth > 0;
        if self.uses.mpls && self.chance(5) && m.exact(F::EthType).is_some() {
            return Action::Mpls(self.mpls(m));
        }
        match self.rng.random_range(0..44) {
            0..=8 => self.set(m),
            9..=12 => {
                let f = self.target(m);
                let dst = self.sub(f, 64);
                let value = if self.chance(3) { self.rng.random() } else { self.value(f) as u64 };
                Action::Load { value: value & ones(dst.n_bits) as u64, dst }
            }
            13..=16 => {
                let (a, b) = (self.any_field(m, |f| f != F::TcpFlags), self.target(m));
                let (of_a, of_b) = (width(a), width(b));
                let n = self.rng.random_range(1..=of_a.min(of_b));
                let n = if self.chance(2) { of_a.min(of_b) } else { n };
                Action::Move {
                    src: Subfield { field: a, ofs: self.rng.random_range(0..=of_a - n), n_bits: n },
                    dst: Subfield { field: b, ofs: self.rng.random_range(0..=of_b - n), n_bits: n },
                }
            }
            17 | 18 => {
                let f = self.any_field(m, |_| true);
                Action::Push(self.sub(f, 128))
            }
            19 | 20 => {
                let f = self.target(m);
                Action::Pop(self.sub(f, 128))
            }
            21 if !self.uses.normal => Action::PushVlan(self.pick(&[0x8100, 0x8100, 0x88a8])),
            // Of an empty tag before another one, NORMAL leaves something else.
            21 if m.get(F::VlanTci) == (0, 0x1fff) => Action::PushVlan(0x8100),
            22 if m.satisfies(Prereq::Vlan) => Action::PopVlan,
            23 if ip => Action::DecTtl(self.chance(2).then(|| vec![0])),
            24..=26 => {
                let t = if self.table + 1 < TABLES { self.rng.random_range(self.table + 1..TABLES) } else { 100 };
                let port = if self.chance(5) { self.port() } else { PortNo::IN_PORT };
                Action::Resubmit { port, table: TableId(t), ct: self.uses.ct && self.chance(8) }
            }
            27 | 28 if nested => {
                let mut list = self.list(m, depth - 1);
                list.retain(|a| !matches!(a, Action::Meter(_) | Action::ClearActions | Action::GotoTable(_)));
                list.retain(|a| !matches!(a, Action::WriteActions(_) | Action::WriteMetadata { .. }));
                // There, translation in what is looked up out of a clone reaches what is behind it.
                list.retain(|a| !self.uses.nat || !matches!(a, Action::Resubmit { .. } | Action::Group(_)));
                Action::Clone(list)
            }
            29..=34 if ip && self.uses.ct => self.ct(m),
            40 | 41 if self.uses.ct && self.chance(2) => Action::CtClear,
            29..=33 if self.uses.learn && !self.uses.ct && !self.uses.meters => self.learn(m),
            // Open vSwitch carries an action set out behind it, and once more at the end; what is set behind it in a table
            // that was resubmitted to is undone there.
            35 if self.uses.lengths && !self.uses.sets && depth == DEPTH && self.table == 0 => Action::CheckPktLarger {
                len: self.rng.random_range(50..100),
                dst: Subfield { field: F::Reg0, ofs: self.rng.random_range(0..3), n_bits: 1 },
            },
            36 => self.bundle(),
            37 if self.uses.meters && depth == DEPTH => Action::Meter(MeterId(self.pick(&[1, 2]))),
            38 if self.uses.sets && depth == DEPTH => self.set_actions(m),
            // Behind a pause, Open vSwitch takes the IP source from packets there.
            39 if self.uses.sets && !self.uses.pause && depth == DEPTH => Action::ClearActions,
            40 if self.uses.sets && depth == DEPTH => {
                Action::WriteMetadata { value: self.rng.random_range(0..4), mask: self.pick(&[u64::MAX, 1, 0xff]) }
            }
            41 if self.uses.tunnel => Action::DeleteField(F::TunMetadata0),
            42 => match self.rng.random_range(0..3) {
                0 => Action::Note(vec![1, 2, 3, 4, 5, 6]),
                1 => Action::SetQueue(3),
                _ => Action::PopQueue,
            },
            43 if self.chance(3) => Action::Exit,
            _ => self.send(),
        }
    }

    fn set_actions(&mut self, m: &Match) -> Action {
        let mut list = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            list.push(match self.rng.random_range(0..8) {
                0 if m.satisfies(Prereq::Ip) => Action::DecTtl(None),
                1 => Action::PushVlan(0x8100),
                2 if m.satisfies(Prereq::Vlan) => Action::PopVlan,
                3 if !self.groups.is_empty() && self.table + 1 < TABLES => {
                    Action::Group(GroupId(*self.groups.choose(self.rng).expect("some")))
                }
                4 | 5 => Action::output(self.port()),
                _ => self.set(m),
            });
        }
        Action::WriteActions(list)
    }

    fn bundle(&mut self) -> Action {
        let dst = self.chance(2).then_some(Subfield { field: F::Reg1, ofs: 0, n_bits: 16 });
        let algorithm = self.pick(&[BundleAlgorithm::ActiveBackup, BundleAlgorithm::Hrw]);
        let first = if self.chance(3) { PortNo(40) } else { self.port() };
        let mut members = vec![first];
        if algorithm == BundleAlgorithm::ActiveBackup {
            members.push(self.port());
        }
        let fields = self.pick(&HashFields::ALL).0;
        Action::Bundle(Box::new(BundleAction { fields, basis: 7, algorithm, members, dst }))
    }

    fn ct(&mut self, m: &Match) -> Action {
        let commit = self.chance(2);
        let zone = match self.rng.random_range(0..6) {
            0 => ZoneSpec::Field(Subfield { field: F::Reg3, ofs: 0, n_bits: 16 }),
            n => ZoneSpec::Imm(n as u16 % 3),
        };
        let next = self.table + 1;
        let table =
            (next < TABLES && self.rng.random_ratio(3, 4)).then(|| TableId(self.rng.random_range(next..TABLES)));
        let mut exec = Vec::new();
        if commit && self.chance(2) {
            exec.push(match self.rng.random_range(0..4) {
                0 => Action::set(F::CtMark, self.rng.random_range(0..4)),
                1 => Action::set_masked(F::CtMark, self.rng.random_range(0..4), 3),
                2 => Action::set_masked(F::CtLabel, self.rng.random_range(0..4), 0xff),
                _ => Action::Move {
                    src: Subfield::full(F::Reg0),
                    dst: Subfield { field: F::CtLabel, ofs: 32, n_bits: 32 },
                },
            });
        }
        let nat = (self.uses.nat && self.chance(2)).then(|| self.nat(m, commit));
        Action::Ct(Box::new(CtAction {
            commit,
            force: commit && !self.uses.nat && self.chance(6),
            table,
            zone,
            nat,
            exec,
            alg: 0,
        }))
    }

    fn nat(&mut self, m: &Match, commit: bool) -> NatSpec {
        let mut n = NatSpec::default();
        // Where it says nothing of a new connection, Open vSwitch waits for answers from 0.0.0.0.
        if !commit {
            return n;
        }
        (n.src, n.dst) = if self.chance(2) { (true, false) } else { (false, true) };
        let last = self.rng.random_range(7..10);
        let address: std::net::IpAddr = match m.exact(F::EthType) {
            Some(0x800) => std::net::Ipv4Addr::new(10, 0, 0, last).into(),
            _ => std::net::Ipv6Addr::from((0xfd00 << 112) + u128::from(last)).into(),
        };
        n.range.addr = Some((address, address));
        if self.chance(3) && !matches!(m.exact(F::IpProto), Some(1 | 58)) {
            // One port: which of several is chosen is each switch's own affair.
            let port = self.rng.random_range(NAT_PORTS);
            n.range.port = Some((port, port));
        }
        n
    }

    fn mpls(&mut self, m: &Match) -> MplsAction {
        if m.exact(F::EthType) != Some(MPLS) {
            return MplsAction::Push(MPLS as u16);
        }
        match self.rng.random_range(0..8) {
            0 => MplsAction::Push(MPLS as u16),
            1 => MplsAction::SetLabel(self.rng.random_range(0..4)),
            2 => MplsAction::SetTc(self.rng.random_range(0..8)),
            3 => MplsAction::SetTtl(self.pick(&[0, 1, 64])),
            4 => MplsAction::DecTtl,
            // It takes off all labels where the type is that of none, and writes no type where none is left.
            _ => match m.exact(F::MplsBos) {
                Some(0) => MplsAction::Pop(MPLS as u16),
                Some(_) => MplsAction::Pop(self.pick(&[0x800, 0x800, 0x86dd])),
                None => MplsAction::SetTtl(64),
            },
        }
    }

    fn learn(&mut self, m: &Match) -> Action {
        let kind = [0x800, 0x86dd, 0x806].iter().position(|k| m.exact(F::EthType) == Some(*k)).unwrap_or(3) as u8;
        let table = TableId(TABLES + kind);
        if let Some(l) = self.learns.get(&table) {
            return Action::Learn(Box::new(l.clone()));
        }
        let mut specs = Vec::new();
        let mut learned = Match::new();
        if let Some(k) = m.exact(F::EthType) {
            specs.push(LearnSpec { src: LearnSrc::Imm(k, 16), dst: LearnDst::Match(Subfield::full(F::EthType)) });
            learned.set(F::EthType, k);
        }
        for _ in 0..self.rng.random_range(1..3) {
            let (a, b) = (
                self.any_field(&learned, |f| {
                    // Open vSwitch leaves `ip_dscp` and `ip_ecn` out of the flow: they fill no byte.
                    let part = matches!(f, F::IpDscp | F::IpEcn);
                    !tracked(f) && !tunnel(f) && !f.def().name.starts_with("vlan") && !part
                }),
                self.pick(&[F::EthDst, F::EthSrc, F::Reg0, F::InPort]),
            );
            let n = width(a).min(width(b));
            let same = self.chance(2);
            let (src, dst) = if same { (a, a) } else { (b, a) };
            let n = if same { width(a) } else { n };
            specs.push(LearnSpec {
                src: LearnSrc::Field(Subfield { field: src, ofs: 0, n_bits: n }),
                dst: LearnDst::Match(Subfield { field: dst, ofs: 0, n_bits: n }),
            });
        }
        let f = self.pick(&[F::Reg4, F::Reg5, F::EthSrc]);
        let n = self.rng.random_range(1..=32);
        specs.push(LearnSpec {
            src: if self.chance(2) {
                LearnSrc::Imm(self.rng.random_range(0..2), n)
            } else {
                LearnSrc::Field(Subfield { field: F::EthSrc, ofs: 3, n_bits: n })
            },
            dst: LearnDst::Load(Subfield { field: f, ofs: 0, n_bits: n }),
        });
        specs.push(LearnSpec { src: LearnSrc::Field(Subfield::full(F::InPort)), dst: LearnDst::Output });
        let result = self.chance(3);
        let limit = if self.chance(3) { 2 } else { 0 };
        // Where the limit is reached, Open vSwitch says of the same flow that it cannot be learned once more, but if it is cached.
        let result_dst = (result && limit == 0).then_some(Subfield { field: F::Reg2, ofs: 1, n_bits: 1 });
        let l = LearnAction { table, priority: 500, cookie: 77, limit, result_dst, specs, ..Default::default() };
        self.learns.insert(table, l.clone());
        Action::Learn(Box::new(l))
    }

    /// Flows of a conjunction, of one priority, and the one that it leads to.
    fn conjunction(&mut self, flows: &mut Vec<FlowMod>) {
        let id = u32::from(self.table) * 10 + 1;
        let n: u8 = self.rng.random_range(2..4);
        let kind = self.pick(&[(0x800, 6), (0x86dd, 17)]);
        let base = Match::new().with(F::EthType, kind.0).with(F::IpProto, kind.1);
        let (src, dst) = if kind.0 == 0x800 { (F::IpSrc, F::IpDst) } else { (F::Ipv6Src, F::Ipv6Dst) };
        for clause in 0..n {
            let f = [src, dst, F::InPort][usize::from(clause)];
            let mut seen = Vec::new();
            for _ in 0..2 {
                let v = self.value(f);
                if !seen.contains(&v) {
                    seen.push(v);
                    let a = Action::Conjunction { id, clause, n_clauses: n };
                    flows.push(FlowMod::add(TableId(self.table), 103, 9, base.clone().with(f, v), vec![a]));
                }
            }
        }
        let m = Match::new().with(F::ConjId, id.into()).with(F::EthType, kind.0);
        let actions = self.list(&m, DEPTH);
        flows.push(FlowMod::add(TableId(self.table), 103, 8, m, actions));
    }

    fn group(&mut self, id: u32) -> Group {
        let group_type = self.pick(&[GroupType::All, GroupType::Select, GroupType::Indirect, GroupType::FastFailover]);
        let single = matches!(group_type, GroupType::Indirect | GroupType::Select);
        let n = if single { 1 } else { self.rng.random_range(1..4) };
        let kind = self.pick(&[0x800, 0x86dd, 0x806]);
        let m = Match::new().with(F::EthType, kind);
        let buckets = (0..n)
            .map(|i| {
                let mut actions: Vec<Action> = self.list(&m, 0);
                actions.retain(|a| !matches!(a, Action::GotoTable(_) | Action::PopVlan | Action::Meter(_)));
                let mut b = Bucket::new(i, if group_type == GroupType::Select { 100 } else { 0 }, actions);
                if group_type == GroupType::FastFailover {
                    b.watch_port = if self.chance(3) { PortNo(40) } else { self.port() };
                }
                b
            })
            .collect();
        // By default there, a packet is recirculated with a hash; of one bucket no hash is needed.
        let selection = match group_type {
            GroupType::Select => {
                SelectionMethod { name: "hash".into(), param: 0, fields: vec![(F::EthDst, F::EthDst.full_mask())] }
            }
            _ => SelectionMethod::default(),
        };
        Group { id: GroupId(id), group_type, selection, buckets }
    }

    fn meter(&mut self, id: u32) -> MeterConfig {
        let unit = self.pick(&[MeterConfig::KBPS, MeterConfig::PKTPS]);
        let burst = self.chance(2);
        let flags = unit | MeterConfig::STATS | if burst { MeterConfig::BURST } else { 0 };
        let bands = (0..self.rng.random_range(1..3))
            .map(|_| MeterBand {
                band_type: 1,
                rate: self.rng.random_range(1..40),
                burst: if burst { self.rng.random_range(1..20) } else { 0 },
                prec_level: 0,
            })
            .collect();
        MeterConfig { id: MeterId(id), flags, bands }
    }
}
