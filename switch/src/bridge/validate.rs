//! Validation of flows, groups and meters, with the errors that Open vSwitch sends (OpenFlow 1.5 section 7.5.4,
//! ovs-actions(7)).
//!
//! Prerequisites are checked against the packet as earlier actions leave it: after a push, VLAN fields can be set.

use crate::bridge::{Bridge, N_TABLES};
use crate::conntrack::flag;
use openflow_rs::OfError as E;
use openflow_rs::action::{
    Action, CtAction, LearnAction, LearnDst, LearnSrc, MplsAction, PacketType, SampleAction, ZoneSpec,
};
use openflow_rs::flow_match::{ETH_IPV4, ETH_IPV6};
use openflow_rs::message::TlvTableMod;
use openflow_rs::wire::DecodeError;
use openflow_rs::{
    FieldId as F, FlowMod, FlowModCommand, Group, GroupId, GroupMod, GroupModCommand, GroupType, Match, Message,
    MeterConfig, MeterId, PortNo, Prereq, Subfield, TableId,
};

/// The greatest number of a group (OFPG_MAX).
const MOST_GROUPS: u32 = 0xffff_ff00;
/// The greatest number of a meter, as in Open vSwitch's userspace datapath.
pub const MOST_METERS: u32 = 262_144;
/// The greatest number of a bucket.
const MOST_BUCKETS: u32 = 0xffff_ff00;

type Check = Result<(), DecodeError>;

/// `OFPBAC_MATCH_INCONSISTENT`.
fn inconsistent(what: impl std::fmt::Display) -> DecodeError {
    E::ActionMatchInconsistent.because(format!("{what}: the flow's match does not imply its prerequisites"))
}

fn argument(detail: impl Into<String>) -> DecodeError {
    E::ActionBadArgument.because(detail)
}

/// What is known of the packet while its actions are checked in order.
struct Walk<'a> {
    bridge: &'a Bridge,
    matches: Match,
    table: TableId,
    /// Prerequisites are not asked for.
    lenient: bool,
    /// A group or meter that does not exist; this error counts if there is no other.
    missing: Check,
}

/// Whether flows can write a field.
pub fn is_writable(f: F) -> bool {
    !read_only(f)
}

/// Fields that no action may write.
fn read_only(f: F) -> bool {
    matches!(
        f,
        F::EthType
            | F::IpProto
            | F::IpFrag
            | F::ConjId
            | F::DpHash
            | F::PacketType
            | F::ActsetOutput
            | F::TcpFlags
            | F::MplsBos
            | F::NshMdtype
            | F::NshNp
            | F::TunGtpuFlags
            | F::TunGtpuMsgtype
            | F::CtState
            | F::CtZone
            | F::CtNwProto
            | F::CtNwSrc
            | F::CtNwDst
            | F::CtIpv6Src
            | F::CtIpv6Dst
            | F::CtTpSrc
            | F::CtTpDst
    )
}

/// Checks that a change is not one of a table that is the switch's own.
///
/// # Errors
/// OFPBRC_EPERM.
pub fn check_table(m: &Message) -> Check {
    if let Message::FlowMod(f) = m { own_table(f) } else { Ok(()) }
}

fn own_table(f: &FlowMod) -> Check {
    match f.table {
        TableId::INTERNAL => Err(E::RequestNotPermitted.because("table 254 is the switch's own; tables are 0 to 253")),
        _ => Ok(()),
    }
}

/// Checks a flow-mod before it changes anything.
pub(crate) fn flow(bridge: &Bridge, f: &FlowMod) -> Check {
    let deletes = matches!(f.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
    own_table(f)?;
    if f.table.index() >= N_TABLES && !(deletes && f.table == TableId::ALL) {
        return Err(E::FlowModBadTable.because(format!(
            "table {} does not exist; tables are 0 to {}",
            f.table,
            N_TABLES - 1
        )));
    }
    if f.flags.0 & !0x1f != 0 {
        return Err(E::FlowModBadFlags.because(format!("flags {:#x}: unknown", f.flags.0)));
    }
    mapped(bridge, f.matches.fields().into_iter().map(|(f, ..)| f))?;
    if deletes {
        return Ok(());
    }
    if f.buffer_id != u32::MAX {
        return Err(E::RequestBufferUnknown.because("no packet is buffered here"));
    }
    // Errors that hold for every flow count before errors of this flow.
    bucket(&f.actions)?;
    let mut w = Walk { bridge, matches: f.matches.clone(), table: f.table, lenient: f.lenient, missing: Ok(()) };
    w.list(&f.actions)?;
    let conjunctions = f.actions.iter().filter(|a| matches!(a, Action::Conjunction { .. })).count();
    let others = f.actions.iter().filter(|a| !matches!(a, Action::Conjunction { .. } | Action::Note(_))).count();
    if conjunctions > 0 && others > 0 {
        return Err(E::ActionBadConjunction.because("conjunction stands alone, or beside notes"));
    }
    w.missing
}

/// Whether an action can be in an action set.
fn settable(a: &Action) -> bool {
    matches!(
        a,
        Action::SetField { .. }
            | Action::SetTunnel { .. }
            | Action::Load { .. }
            | Action::Move { .. }
            | Action::SetQueue(_)
            | Action::PopVlan
            | Action::Mpls(_)
            | Action::Encap(_)
            | Action::Decap(_)
            | Action::DecNshTtl
            | Action::PushVlan(_)
            | Action::DecTtl(_)
            | Action::Ct(_)
            | Action::CtClear
            | Action::Resubmit { .. }
            | Action::Output { .. }
            | Action::Group(_)
    )
}

/// Whether an error is about a group or meter that does not exist.
pub(crate) fn refers(e: &DecodeError) -> bool {
    E::ActionBadOutGroup.is(e) || E::MeterModInvalidMeter.is(e)
}

/// Checks a bucket's actions. What they refer to may not exist yet.
pub(crate) fn bucket(list: &[Action]) -> Check {
    for a in list {
        match a {
            Action::Learn(l) => table(l.table)?,
            Action::SetField { field: f, .. }
            | Action::Load { dst: Subfield { field: f, .. }, .. }
            | Action::Move { dst: Subfield { field: f, .. }, .. }
                if read_only(*f) || matches!(f, F::CtMark | F::CtLabel) =>
            {
                return Err(E::ActionBadSetArgument.because(format!("{} cannot be set", f.def().name)));
            }
            Action::Pop(dst) if read_only(dst.field) => {
                return Err(E::ActionBadSetArgument.because(format!("{} cannot be set", dst.field.def().name)));
            }
            Action::SetField { field, value, .. } => set_to(*field, *value)?,
            Action::Load { value, dst } => loadable(*value, dst)?,
            _ => {}
        }
    }
    Ok(())
}

/// Checks the value of a field: `arp_op` is wider on the wire than its values.
fn fits(f: F, value: u128) -> Check {
    if f.presence().is_some() || value & !f.full_mask() == 0 {
        return Ok(());
    }
    Err(E::ActionBadSetArgument.because(format!("{value:#x}: {} has {} bits", f.def().name, f.bits())))
}

/// Checks what `set_field` gives a field.
fn set_to(f: F, value: u128) -> Check {
    match f {
        F::VlanVid if value & 0x1000 == 0 => {
            Err(E::ActionBadSetArgument.because("vlan_vid is set with its bit 12 (OFPVID_PRESENT)"))
        }
        F::TunFlags if value & !1 != 0 => Err(E::ActionBadSetArgument.because("tun_flags has one flag, oam")),
        _ => fits(f, value),
    }
}

fn loadable(value: u64, dst: &Subfield) -> Check {
    fits(dst.field, u128::from(value).checked_shl(dst.ofs).unwrap_or(0))
}

/// Checks a group that is added or changed.
pub(crate) fn group(g: &Group) -> Check {
    if g.id > GroupId(MOST_GROUPS) {
        return Err(E::GroupModInvalidGroup.because(format!("group {} is a reserved number", g.id)));
    }
    if g.group_type == GroupType::Indirect && g.buckets.len() != 1 {
        return Err(E::GroupModInvalidGroup.because(format!("group {}: an indirect group has one bucket", g.id)));
    }
    let known = matches!(g.selection.name.as_str(), "" | "hash" | "dp_hash");
    if !known || !g.selection.name.is_empty() && g.group_type != GroupType::Select {
        return Err(E::PropertyBadValue.because(format!("group {}: selection_method {}", g.id, g.selection.name)));
    }
    let mut ids: Vec<u32> = g.buckets.iter().map(|b| b.id).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|w| w.first() == w.last()) {
        return Err(E::GroupModBadBucket.because(format!("group {}: two buckets of the same bucket_id", g.id)));
    }
    Ok(())
}

/// Checks a meter that is added or changed.
pub(crate) fn meter(m: &MeterConfig) -> Check {
    let is_virtual = matches!(m.id, MeterId::CONTROLLER | MeterId::SLOWPATH);
    if m.id == MeterId(0) || m.id > MeterId(MOST_METERS) && !is_virtual {
        return Err(E::MeterModInvalidMeter.because(format!("meter {}: expected 1 to {MOST_METERS}", m.id)));
    }
    let units = m.flags & (MeterConfig::KBPS | MeterConfig::PKTPS);
    if units == 0 || units == MeterConfig::KBPS | MeterConfig::PKTPS {
        return Err(E::MeterModBadFlags.because(format!("meter {}: either kbps or pktps", m.id)));
    }
    if m.flags & !0xf != 0 {
        return Err(E::MeterModBadFlags.because(format!("meter {}: unknown flags {:#x}", m.id, m.flags)));
    }
    if let Some(b) = m.bands.iter().find(|b| b.band_type != 1) {
        return Err(E::MeterModBadBand
            .because(format!("meter {}: there are no bands of type {}, only those that drop", m.id, b.band_type)));
    }
    if m.bands.iter().any(|b| b.rate == 0) {
        return Err(E::MeterModBadRate.because(format!("meter {}: a rate of 0", m.id)));
    }
    Ok(())
}

/// Checks that `tun_metadata` fields are in the option map.
fn mapped(bridge: &Bridge, fields: impl Iterator<Item = F>) -> Check {
    for f in fields {
        if f.presence().is_some() {
            let n = f as u16 - F::TunMetadata0 as u16;
            if !bridge.tlv.iter().any(|m| m.index == n) {
                return Err(E::FlowModInvalidTlvField.because(format!("tun_metadata{n} is not in the option map")));
            }
        }
    }
    Ok(())
}

/// Number of fields for tunnel options, and the longest option in bytes (RFC 8926 section 3.5).
const OPTION_FIELDS: u16 = 8;
const LONGEST_OPTION: u8 = 124;
/// Bytes that all options of a bridge may have, as in Open vSwitch.
const OPTION_SPACE: usize = 256;

/// Checks a change of the option map.
pub(crate) fn option_map(bridge: &Bridge, t: &TlvTableMod) -> Check {
    if t.command > 2 {
        return Err(E::OptionMapBadCommand.because(format!("there is no command {} for the option map", t.command)));
    }
    for m in &t.maps {
        if m.len > LONGEST_OPTION || m.len % 4 != 0 {
            return Err(E::OptionMapBadOptionLength
                .because(format!("an option has a multiple of 4 bytes, {LONGEST_OPTION} at most, and not {}", m.len)));
        }
        if m.index >= OPTION_FIELDS {
            return Err(E::OptionMapBadField.because(format!("there is no tun_metadata{}", m.index)));
        }
    }
    if t.command != 0 {
        return Ok(());
    }
    let space: usize = bridge.tlv.iter().chain(&t.maps).map(|m| usize::from(m.len)).sum();
    if space > OPTION_SPACE {
        return Err(E::OptionMapFull.because(format!("the options have {space} bytes, more than {OPTION_SPACE}")));
    }
    for (i, m) in t.maps.iter().enumerate() {
        let mut others = bridge.tlv.iter().chain(t.maps.iter().take(i));
        if others.clone().any(|o| o.index == m.index) {
            return Err(E::OptionMapAlreadyMapped.because(format!("tun_metadata{} is mapped already", m.index)));
        }
        if others.any(|o| (o.class, o.kind) == (m.class, m.kind)) {
            return Err(E::OptionMapDuplicate
                .because(format!("the option of class {:#x}, type {:#x} is mapped already", m.class, m.kind)));
        }
    }
    Ok(())
}

/// Checks the groups, meters and ports that the actions of a packet-out refer to.
pub(crate) fn packet_out(bridge: &Bridge, list: &[Action]) -> Check {
    let w = Walk { bridge, matches: Match::new(), table: TableId::FIRST, lenient: false, missing: Ok(()) };
    list.iter().try_for_each(|a| match a {
        Action::Output { port, .. } => w.port(*port),
        Action::Group(g) if !bridge.groups.contains_key(g) => {
            Err(E::ActionBadOutGroup.because(format!("group {g} does not exist")))
        }
        Action::Meter(m) if !bridge.meters.contains_key(m) => {
            Err(E::MeterModInvalidMeter.because(format!("meter {m} does not exist")))
        }
        Action::Clone(v) | Action::WriteActions(v) => packet_out(bridge, v),
        _ => Ok(()),
    })
}

/// Checks a change of a group's buckets.
pub(crate) fn buckets(old: &Group, m: &GroupMod) -> Check {
    let (at, id) = (m.command_bucket_id, old.id);
    let has = |n: u32| old.buckets.iter().any(|b| b.id == n);
    if m.command == GroupModCommand::InsertBucket
        && let Some(b) = m.group.buckets.iter().find(|b| has(b.id))
    {
        return Err(E::GroupModBucketExists.because(format!("group {id}: bucket {} exists", b.id)));
    }
    if at <= MOST_BUCKETS && !has(at) {
        return Err(E::GroupModUnknownBucket.because(format!("group {id}: there is no bucket {at}")));
    }
    Ok(())
}

/// Actions as they are executed, if they differ from what was sent: a value longer than a tunnel option is cut to its
/// first bytes, as in Open vSwitch, and a mask of all bits is dropped.
pub(crate) fn cut(bridge: &Bridge, list: &[Action]) -> Option<Vec<Action>> {
    let one = |a: &Action| match a {
        Action::SetField { field, value, mask, old } => {
            field.presence()?;
            let n = *field as u16 - F::TunMetadata0 as u16;
            let len = bridge.tlv.iter().find(|m| m.index == n).map(|m| u32::from(m.len))?;
            let more = (openflow_rs::wire::oxm::value_len(*field, *value, *mask) as u32).saturating_sub(len) * 8;
            let cut = mask.map(|m| m >> more).filter(|m| *m != openflow_rs::ones(len * 8));
            (more > 0 || cut != *mask).then(|| Action::SetField {
                field: *field,
                value: value >> more,
                mask: cut,
                old: *old,
            })
        }
        Action::Clone(v) => cut(bridge, v).map(Action::Clone),
        Action::WriteActions(v) => cut(bridge, v).map(Action::WriteActions),
        _ => None,
    };
    let changed: Vec<(usize, Action)> = list.iter().enumerate().filter_map(|(i, a)| Some((i, one(a)?))).collect();
    if changed.is_empty() {
        return None;
    }
    let mut list = list.to_vec();
    for (i, a) in changed {
        list.iter_mut().skip(i).take(1).for_each(|x| *x = a.clone());
    }
    Some(list)
}

/// A match as flows get it, if it differs from what was sent: an option without a value only has to be there.
pub(crate) fn without_values(bridge: &Bridge, m: &Match) -> Option<Match> {
    let empty = bridge.tlv.iter().filter(|t| t.len == 0).filter_map(|t| crate::tunnel::metadata_field(t.index));
    let matched: Vec<F> = empty.filter(|f| m.get(*f).1 != 0).collect();
    let mut out = m.clone();
    for f in &matched {
        out.clear(*f);
        out.require(*f);
    }
    (!matched.is_empty()).then_some(out)
}

fn table(n: TableId) -> Check {
    if n == TableId::ALL { Err(E::FlowModBadTable.because("table 255 does not exist")) } else { Ok(()) }
}

impl Walk<'_> {
    /// As in Open vSwitch, values and lengths that are wrong are told before prerequisites that are missing, wherever in the
    /// list they stand.
    fn list(&mut self, list: &[Action]) -> Check {
        let mut missing = Ok(());
        for a in list {
            match self.one(a) {
                Err(e) if E::ActionMatchInconsistent.is(&e) => missing = missing.and(Err(e)),
                Err(e) if missing.is_ok() || E::ActionBadSetArgument.is(&e) || E::ActionBadSetLength.is(&e) => {
                    return Err(e);
                }
                _ => {}
            }
        }
        missing
    }

    fn has(&self, p: Prereq) -> bool {
        let fragment = || {
            let (v, m) = self.matches.get(F::IpFrag);
            v & m & 2 != 0
        };
        match p {
            Prereq::Tcp | Prereq::Udp | Prereq::Sctp => self.lenient || self.matches.satisfies(p) && !fragment(),
            p => self.lenient || self.matches.satisfies(p),
        }
    }

    /// Fields of tunnels' options are as wide as the options.
    fn fits(&self, s: &Subfield) -> Check {
        let Some(n) = s.field.presence().map(|_| s.field as u16 - F::TunMetadata0 as u16) else { return Ok(()) };
        mapped(self.bridge, std::iter::once(s.field))?;
        let bits = self.bridge.tlv.iter().find(|m| m.index == n).map_or(0, |m| u32::from(m.len) * 8);
        if s.ofs + s.n_bits <= bits {
            return Ok(());
        }
        Err(E::ActionBadSetLength.because(format!("{s}: the option has {bits} bits")))
    }

    fn readable(&self, s: &Subfield) -> Check {
        self.fits(s)?;
        if self.has(s.field.def().prereq) && !self.lacks(s.field) {
            Ok(())
        } else {
            Err(inconsistent(s.field.def().name))
        }
    }

    fn writable(&self, s: &Subfield) -> Check {
        let f = s.field;
        mapped(self.bridge, std::iter::once(f))?;
        if read_only(f) || matches!(f, F::CtMark | F::CtLabel) {
            return Err(E::ActionBadSetArgument.because(format!("{} cannot be set", f.def().name)));
        }
        if self.has(f.def().prereq) && !self.lacks(f) { Ok(()) } else { Err(inconsistent(f.def().name)) }
    }

    /// Whether it is a field of an Ethernet header, and the packet has none.
    fn lacks(&self, f: F) -> bool {
        f.is_link() && !self.lenient && self.matches.lacks_ethernet()
    }

    /// The same of some bits of a field.
    fn writable_bits(&self, s: &Subfield) -> Check {
        self.writable(s).and_then(|()| self.fits(s))
    }

    fn port(&self, p: PortNo) -> Check {
        let reserved = matches!(
            p,
            PortNo::IN_PORT
                | PortNo::TABLE
                | PortNo::NORMAL
                | PortNo::FLOOD
                | PortNo::ALL
                | PortNo::CONTROLLER
                | PortNo::LOCAL
        );
        if p.0 < 0xff00 || reserved {
            Ok(())
        } else {
            Err(E::ActionBadOutPort.because(format!("port {p} cannot be sent to")))
        }
    }

    fn one(&mut self, a: &Action) -> Check {
        match a {
            Action::Output { port, .. } => self.port(*port),
            Action::OutputTrunc { port, max_len } => {
                if *max_len < 14 {
                    return Err(argument("max_len is at least 14"));
                }
                if matches!(*port, PortNo::TABLE | PortNo::NORMAL | PortNo::FLOOD | PortNo::ALL | PortNo::ANY) {
                    return Err(E::ActionBadOutPort.because(format!("port {port} cannot be sent truncated packets")));
                }
                self.port(*port)
            }
            Action::OutputReg { src, .. } => self.readable(src),
            Action::Resubmit { ct: true, .. } if !self.matches.tracked() => Err(inconsistent("resubmit(ct)")),
            Action::Group(g) if !self.bridge.groups.contains_key(g) => {
                self.miss(E::ActionBadOutGroup.because(format!("group {g} does not exist; add it before the flow")))
            }
            Action::Meter(m) if !self.bridge.meters.contains_key(m) => {
                self.miss(E::MeterModInvalidMeter.because(format!("meter {m} does not exist; add it before the flow")))
            }
            Action::SetField { field, value, .. } => {
                set_to(*field, *value).and_then(|()| self.writable(&Subfield::full(*field)))
            }
            // Elsewhere they are written in `ct`; what is popped into them is forgotten soon.
            Action::Pop(dst) if matches!(dst.field, F::CtMark | F::CtLabel) => Ok(()),
            Action::Load { value, dst } => loadable(*value, dst).and_then(|()| self.writable_bits(dst)),
            Action::Pop(dst) => self.writable_bits(dst),
            Action::Move { src, dst } => self.readable(src).and_then(|()| self.writable_bits(dst)),
            Action::Push(s) => self.readable(s),
            Action::PushVlan(_) | Action::Mpls(MplsAction::Push(_)) if self.lacks(F::EthType) => Err(inconsistent(a)),
            Action::PushVlan(t) => {
                if !matches!(t, 0x8100 | 0x88a8) {
                    return Err(argument(format!("push_vlan:{t:#x}: expected 0x8100 or 0x88a8")));
                }
                let inner = self.matches.get(F::Vlan1Tci);
                if inner.0 & inner.1 & 0x1000 != 0 {
                    return Err(E::ActionBadTag.because("push_vlan: a packet has two tags at most"));
                }
                self.inner(self.matches.get(F::VlanTci));
                self.matches.clear(F::VlanTci);
                self.matches.set_masked(F::VlanTci, 0x1000, 0x1000);
                Ok(())
            }
            Action::PopVlan => {
                if !self.has(Prereq::Vlan) {
                    return Err(inconsistent("pop_vlan"));
                }
                if self.lenient && self.matches.get(F::VlanTci).1 == 0 {
                    return Ok(());
                }
                self.matches.clear(F::VlanTci);
                let (tci, mask) = self.matches.get(F::Vlan1Tci);
                self.matches.set_masked(F::VlanTci, tci, mask);
                self.inner((0, 0));
                Ok(())
            }
            Action::Mpls(MplsAction::Push(kind)) => {
                self.becomes(*kind);
                Ok(())
            }
            Action::Mpls(_) if !self.has(Prereq::Mpls) => Err(inconsistent(a)),
            Action::Mpls(MplsAction::Pop(kind)) => {
                self.becomes(*kind);
                Ok(())
            }
            Action::Encap(e) => {
                self.becomes_type(e.packet_type());
                Ok(())
            }
            Action::Decap(_) => {
                self.taken_out();
                Ok(())
            }
            Action::DecNshTtl if !self.has(Prereq::Nsh) => Err(inconsistent(a)),
            Action::DecTtl(_) if !self.has(Prereq::Ip) => Err(inconsistent("dec_ttl")),
            Action::FinTimeout { .. } if !self.has(Prereq::Tcp) => Err(inconsistent("fin_timeout")),
            Action::Clone(v) => self.inside(|w| w.list(v)),
            Action::WriteActions(v) => self.set(v),
            Action::Ct(c) => self.ct(c),
            Action::Learn(l) => self.learn(l),
            Action::Multipath(m) => self.writable_bits(&m.dst),
            Action::Bundle(b) => b.dst.as_ref().map_or(Ok(()), |d| self.writable_bits(d)),
            Action::Sample(s) => sample(s),
            Action::GotoTable(t) if *t <= self.table => Err(E::InstructionBadTable
                .because(format!("goto_table:{t}: from table {} it goes forward only", self.table))),
            Action::DeleteField(f) if f.presence().is_none() => {
                Err(argument(format!("{} cannot be deleted", f.def().name)))
            }
            Action::DeleteField(f) => mapped(self.bridge, std::iter::once(*f)),
            _ => Ok(()),
        }
    }

    /// The packet has another header before it.
    fn becomes_type(&mut self, kind: PacketType) {
        let kept = self.matches.exact(F::EthType).map(|t| t as u16);
        match kind.ethertype() {
            // Of what is in the header nothing else was known.
            None => {
                self.matches.clear(F::PacketType);
                self.matches.set(F::PacketType, 0);
                self.matches.leave_out_ethernet();
                self.matches.clear(F::EthSrc);
                self.matches.clear(F::EthDst);
                if let Some(t) = kept {
                    self.matches.set(F::EthType, t.into());
                }
            }
            Some(_) => {
                self.forget_headers();
                self.matches.set(F::PacketType, kind.0.into());
            }
        }
    }

    /// The packet's first header is taken away. What is behind another one than Ethernet is only known when it is.
    fn taken_out(&mut self) {
        let ethernet = !self.matches.lacks_ethernet();
        let kept = self.matches.exact(F::EthType).filter(|_| ethernet);
        if ethernet {
            for f in [F::EthSrc, F::EthDst, F::VlanTci, F::Vlan1Tci] {
                self.matches.clear(f);
            }
        } else {
            self.forget_headers();
        }
        let kind = kept.map_or(PacketType(u32::MAX), |t| PacketType::of(t as u16));
        self.matches.clear(F::PacketType);
        self.matches.set(F::PacketType, kind.0.into());
    }

    /// Nothing is known of the packet's headers.
    fn forget_headers(&mut self) {
        let (state, mask) = self.matches.get(F::CtState);
        self.matches = Match::new().with_masked(F::CtState, state, mask);
    }

    /// The packet is of this EtherType from here on, of which nothing else is known.
    fn becomes(&mut self, kind: u16) {
        let mut known = Match::new();
        for f in [F::EthSrc, F::EthDst, F::VlanTci, F::Vlan1Tci, F::CtState] {
            let (value, mask) = self.matches.get(f);
            known.set_masked(f, value, mask);
        }
        known.set(F::EthType, kind.into());
        self.matches = known;
    }

    /// Something that is named is not there.
    fn miss(&mut self, e: DecodeError) -> Check {
        if self.missing.is_ok() {
            self.missing = Err(e);
        }
        Ok(())
    }

    /// The tag behind the first one becomes this.
    fn inner(&mut self, (tci, mask): (u128, u128)) {
        self.matches.clear(F::Vlan1Tci);
        self.matches.set_masked(F::Vlan1Tci, tci, mask);
    }

    /// An action set: not every action can be in it, and whether a packet has a tag or a time to live when it is carried out
    /// is not known.
    fn set(&mut self, list: &[Action]) -> Check {
        self.inside(|w| {
            list.iter().try_for_each(|a| match a {
                a if !settable(a) => Err(E::ActionBadType.because(format!("{a} is not for an action set"))),
                Action::DecTtl(_) => Ok(()),
                Action::PopVlan if !w.has(Prereq::Vlan) => Ok(()),
                Action::SetField { field: F::CtMark | F::CtLabel, .. } => Ok(()),
                Action::Move { src, dst } if matches!(dst.field, F::CtMark | F::CtLabel) => w.readable(src),
                a => w.one(a),
            })
        })
    }

    /// Checks a list behind which the packet is what it was.
    fn inside(&mut self, body: impl FnOnce(&mut Self) -> Check) -> Check {
        let outside = self.matches.clone();
        let result = body(self);
        self.matches = outside;
        result
    }

    fn ct(&mut self, c: &CtAction) -> Check {
        if !self.has(Prereq::Ip) {
            return Err(inconsistent("ct"));
        }
        let (state, mask) = self.matches.get(F::CtState);
        if c.commit && state & mask & u128::from(flag::INV) != 0 {
            return Err(inconsistent("ct(commit)"));
        }
        if c.force && !c.commit {
            return Err(argument("ct(force) needs commit"));
        }
        if !c.exec.is_empty() && !c.commit {
            return Err(argument("ct(exec) needs commit"));
        }
        if let ZoneSpec::Field(f) = &c.zone {
            self.readable(f)?;
            if f.n_bits != 16 {
                return Err(E::ActionBadSetLength.because("a zone has 16 bits"));
            }
        }
        let (tcp, udp) = (self.has(Prereq::Tcp), self.has(Prereq::Udp));
        if c.alg == 21 && !tcp || c.alg == 69 && !udp {
            return Err(inconsistent("alg"));
        }
        if let Some(n) = &c.nat {
            if (n.src || n.dst) && !c.commit {
                return Err(argument("nat(src) and nat(dst) need commit"));
            }
            let kind = self.matches.exact(F::EthType);
            let wrong = n.range.addr.is_some_and(|(a, _)| kind != Some(if a.is_ipv4() { ETH_IPV4 } else { ETH_IPV6 }));
            if wrong {
                return Err(inconsistent("nat"));
            }
        }
        for a in &c.exec {
            match a {
                Action::SetField { field: F::CtMark | F::CtLabel, .. } => {}
                Action::Load { dst, .. } | Action::Move { dst, .. } if matches!(dst.field, F::CtMark | F::CtLabel) => {
                    if let Action::Move { src, .. } = a {
                        self.readable(src)?;
                    }
                }
                _ => return Err(argument("ct(exec) sets ct_mark and ct_label only")),
            }
        }
        Ok(())
    }

    fn learn(&self, l: &LearnAction) -> Check {
        table(l.table)?;
        let mut learned = Match::new();
        for s in &l.specs {
            if let LearnSrc::Field(f) = &s.src {
                self.readable(f)?;
            }
            if let LearnDst::Match(d) | LearnDst::Load(d) = &s.dst {
                self.fits(d)?;
            }
            match &s.dst {
                LearnDst::Match(d) => {
                    if !learned.satisfies(d.field.def().prereq) {
                        return Err(inconsistent(format!("learn: {}", d.field.def().name)));
                    }
                    let value = match &s.src {
                        LearnSrc::Imm(v, _) => *v,
                        LearnSrc::Field(_) => 0,
                    };
                    let mask = openflow_rs::ones(d.n_bits) << d.ofs;
                    learned.set_masked(d.field, value << d.ofs, mask);
                }
                LearnDst::Load(d) => {
                    if read_only(d.field) {
                        return Err(
                            E::ActionBadSetArgument.because(format!("learn: {} cannot be set", d.field.def().name))
                        );
                    }
                    if !learned.satisfies(d.field.def().prereq) {
                        return Err(inconsistent(format!("learn: {}", d.field.def().name)));
                    }
                }
                LearnDst::Output => {}
            }
        }
        Ok(())
    }
}

fn sample(s: &SampleAction) -> Check {
    if s.probability == 0 { Err(argument("sample: a probability of 0 samples nothing")) } else { Ok(()) }
}
