//! The names of ovn-sb(5): fields, subfields and predicates, with prerequisites.

use crate::field::{FLAGS, Field, INPORT, OUTPORT};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole field or `width` bits of it from bit `offset`.
    Field {
        /// The field.
        field: Field,
        /// The lowest bit.
        offset: u8,
    },
    /// A logical port's or multicast group's name, kept as a number in this field.
    Port(Field),
    /// Shorthand for an expression.
    Predicate(&'static str),
    /// A field that only actions can set, through the controller.
    ActionOnly,
}

/// How a value may be compared (ovn-sb(5), "Level of Measurement").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Only for equality.
    Nominal,
    /// Bit by bit.
    Ordinal,
    /// A predicate.
    Boolean,
}

/// A name with its meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Symbol {
    /// The name.
    pub name: &'static str,
    /// What it stands for.
    pub kind: Kind,
    /// The width in bits; 1 for predicates, 0 for ports.
    pub width: u8,
    /// How it may be compared.
    pub level: Level,
    /// An expression that its use implies; empty for none.
    pub prerequisite: &'static str,
    /// Whether actions may write it.
    pub writable: bool,
}

/// The symbol of this name.
pub fn lookup(name: &str) -> Option<&'static Symbol> {
    SYMBOLS.get(name)
}

/// The name of a whole field; of several, the first by alphabet.
pub fn name_of(field: Field) -> &'static str {
    NAMES.get(&field).copied().unwrap_or_default()
}

static NAMES: LazyLock<FxHashMap<Field, &'static str>> = LazyLock::new(|| {
    let mut names: FxHashMap<Field, &'static str> = FxHashMap::default();
    for s in SYMBOLS.values() {
        let field = match s.kind {
            Kind::Field { field, offset: 0 } if s.width == field.width() && !s.name.starts_with('_') => field,
            Kind::Port(field @ Field::Reg(14 | 15)) => field,
            _ => continue,
        };
        let name = names.entry(field).or_insert(s.name);
        *name = (*name).min(s.name);
    }
    names
});

static SYMBOLS: LazyLock<FxHashMap<&'static str, Symbol>> = LazyLock::new(|| {
    let mut t = Table(FxHashMap::default());
    registers(&mut t);
    metadata(&mut t);
    packet(&mut t);
    predicates(&mut t);
    // A predicate is nominal if it tests anything nominal.
    let nominal: Vec<&str> = t.0.values().filter(|s| is_nominal(&t.0, s)).map(|s| s.name).collect();
    for name in nominal {
        if let Some(s) = t.0.get_mut(name) {
            s.level = Level::Nominal;
        }
    }
    t.0
});

fn is_nominal(table: &FxHashMap<&'static str, Symbol>, s: &Symbol) -> bool {
    let Kind::Predicate(expansion) = s.kind else { return s.level == Level::Nominal };
    let mut c = crate::lexer::Cursor::new(expansion);
    while !c.at_end() {
        if let crate::lexer::Token::Id(name) = c.take()
            && table.get(name).is_some_and(|s| is_nominal(table, s))
        {
            return true;
        }
    }
    false
}

struct Table(FxHashMap<&'static str, Symbol>);

impl Table {
    fn add(&mut self, s: Symbol) {
        self.0.insert(s.name, s);
    }
    fn field(&mut self, name: &'static str, field: Field, prerequisite: &'static str, level: Level, writable: bool) {
        let kind = Kind::Field { field, offset: 0 };
        self.add(Symbol { name, kind, width: field.width(), level, prerequisite, writable });
    }
    fn ordinal(&mut self, name: &'static str, field: Field, prerequisite: &'static str) {
        self.field(name, field, prerequisite, Level::Ordinal, true);
    }
    fn nominal(&mut self, name: &'static str, field: Field, prerequisite: &'static str, writable: bool) {
        self.field(name, field, prerequisite, Level::Nominal, writable);
    }
    fn bits(&mut self, name: &'static str, field: Field, lo: u8, hi: u8, prerequisite: &'static str) {
        let kind = Kind::Field { field, offset: lo };
        self.add(Symbol { name, kind, width: hi - lo + 1, level: Level::Ordinal, prerequisite, writable: true });
    }
    fn predicate(&mut self, name: &'static str, expansion: &'static str) {
        let kind = Kind::Predicate(expansion);
        self.add(Symbol { name, kind, width: 1, level: Level::Boolean, prerequisite: "", writable: false });
    }
    fn action_only(&mut self, name: &'static str, width: u8, prerequisite: &'static str) {
        let kind = Kind::ActionOnly;
        self.add(Symbol { name, kind, width, level: Level::Nominal, prerequisite, writable: true });
    }
}

fn registers(t: &mut Table) {
    const REGS: [&str; 10] = ["reg0", "reg1", "reg2", "reg3", "reg4", "reg5", "reg6", "reg7", "reg8", "reg9"];
    for (n, name) in (0u8..).zip(REGS) {
        t.ordinal(name, Field::Reg(n), "");
    }
    for (n, name) in (0u8..).zip(["xreg0", "xreg1", "xreg2", "xreg3", "xreg4"]) {
        t.ordinal(name, Field::XReg(n), "");
    }
    // The ports' registers as numbers, for predicates on their bits.
    t.ordinal("__inport", INPORT, "");
    t.ordinal("__outport", OUTPORT, "");
    t.ordinal("xxreg0", Field::XxReg(0), "");
    t.ordinal("xxreg1", Field::XxReg(1), "");
    for (name, field) in [("inport", INPORT), ("outport", OUTPORT), ("remote_outport", Field::Reg(1))] {
        let kind = Kind::Port(field);
        t.add(Symbol { name, kind, width: 0, level: Level::Nominal, prerequisite: "", writable: true });
    }
}

fn metadata(t: &mut Table) {
    t.ordinal("flags", FLAGS, "");
    // Bits of the flags register as OVN 26.03 assigns them.
    for (name, lo, hi) in [
        ("flags.loopback", 0, 0),
        ("flags.rcv_from_ramp", 1, 1),
        ("flags.force_snat_for_dnat", 2, 2),
        ("flags.force_snat_for_lb", 3, 3),
        ("flags.skip_snat_for_lb", 9, 9),
        ("flags.use_snat_zone", 11, 11),
        ("flags.localnet", 15, 15),
        ("flags.tunnel_rx", 16, 16),
        ("flags.icmp_snat", 17, 17),
        ("flags.from_ctrl", 19, 19),
        ("flags.unsnat_new", 20, 20),
        ("flags.unsnat_not_tracked", 21, 21),
        ("flags.igmp_loopback", 22, 22),
        ("flags.pkt_sampled", 23, 23),
        ("flags.network_id", 28, 31),
    ] {
        t.bits(name, FLAGS, lo, hi, "");
    }
    t.ordinal("ct_mark", Field::CtMark, "");
    for (name, lo, hi) in [
        ("ct_mark.blocked", 0, 0),
        ("ct_mark.natted", 1, 1),
        ("ct_mark.skip_snat", 2, 2),
        ("ct_mark.force_snat", 3, 3),
        ("ct_mark.obs_stage", 4, 5),
        ("ct_mark.allow_established", 6, 6),
        ("ct_mark.obs_collector_id", 16, 23),
        ("ct_mark.ecmp_reply_port", 16, 31),
    ] {
        t.bits(name, Field::CtMark, lo, hi, "");
    }
    t.ordinal("ct_label", Field::CtLabel, "");
    for (name, lo, hi) in [
        ("ct_label.blocked", 0, 0),
        ("ct_label.natted", 1, 1),
        ("ct_label.skip_snat", 2, 2),
        ("ct_label.force_snat", 3, 3),
        ("ct_label.nf", 7, 7),
        ("ct_label.nf_id", 17, 24),
        ("ct_label.ecmp_reply_eth", 32, 79),
        ("ct_label.ecmp_reply_port", 80, 95),
        ("ct_label.acl_id", 80, 95),
        ("ct_label.tun_if_id", 80, 95),
        ("ct_label.label", 96, 127),
        ("ct_label.obs_point_id", 96, 127),
        ("ct_label.obs_unused", 0, 95),
    ] {
        t.bits(name, Field::CtLabel, lo, hi, "");
    }
    t.ordinal("ct_state", Field::CtState, "");
    // ovs-fields(7), ct_state.
    for (name, bit, prerequisite) in [
        ("ct.new", 0, "ct.trk"),
        ("ct.est", 1, "ct.trk"),
        ("ct.rel", 2, "ct.trk"),
        ("ct.rpl", 3, "ct.trk"),
        ("ct.inv", 4, "ct.trk"),
        ("ct.trk", 5, ""),
        ("ct.snat", 6, "ct.trk"),
        ("ct.dnat", 7, "ct.trk"),
    ] {
        t.bits(name, Field::CtState, bit, bit, prerequisite);
    }
    t.nominal("ct_nw_proto", Field::CtNwProto, "ct.trk && ip", false);
    t.nominal("ct_nw_dst", Field::CtNwDst, "ct.trk && ip4", false);
    t.nominal("ct_ip6_dst", Field::CtIp6Dst, "ct.trk && ip6", false);
    t.nominal("ct_tp_dst", Field::CtTpDst, "ct.trk", false);
    t.ordinal("pkt.mark", Field::PktMark, "");
    t.ordinal("metadata", Field::Metadata, "");
    t.ordinal("tun_id", Field::TunId, "");
}

fn packet(t: &mut Table) {
    t.ordinal("eth.src", Field::EthSrc, "");
    t.ordinal("eth.dst", Field::EthDst, "");
    t.nominal("eth.type", Field::EthType, "", false);
    t.ordinal("vlan.tci", Field::VlanTci, "");
    t.bits("vlan.present", Field::VlanTci, 12, 12, "");
    t.bits("vlan.pcp", Field::VlanTci, 13, 15, "vlan.present");
    t.bits("vlan.vid", Field::VlanTci, 0, 11, "vlan.present");
    t.nominal("ip.proto", Field::IpProto, "ip", false);
    t.ordinal("ip.dscp", Field::IpDscp, "ip");
    t.ordinal("ip.ecn", Field::IpEcn, "ip");
    t.nominal("ip.ttl", Field::IpTtl, "ip", true);
    t.ordinal("ip.frag", Field::IpFrag, "ip");
    t.bits("ip.is_frag", Field::IpFrag, 0, 0, "ip");
    t.bits("ip.later_frag", Field::IpFrag, 1, 1, "ip");
    t.ordinal("ip4.src", Field::Ip4Src, "ip4");
    t.ordinal("ip4.dst", Field::Ip4Dst, "ip4");
    t.ordinal("ip6.src", Field::Ip6Src, "ip6");
    t.ordinal("ip6.dst", Field::Ip6Dst, "ip6");
    t.ordinal("ip6.label", Field::Ip6Label, "ip6");
    t.nominal("icmp4.type", Field::Icmp4Type, "icmp4", true);
    t.nominal("icmp4.code", Field::Icmp4Code, "icmp4", true);
    t.nominal("icmp6.type", Field::Icmp6Type, "icmp6", true);
    t.nominal("icmp6.code", Field::Icmp6Code, "icmp6", true);
    t.nominal("arp.op", Field::ArpOp, "arp", true);
    t.ordinal("arp.spa", Field::ArpSpa, "arp");
    t.ordinal("arp.sha", Field::ArpSha, "arp");
    t.ordinal("arp.tpa", Field::ArpTpa, "arp");
    t.ordinal("arp.tha", Field::ArpTha, "arp");
    t.nominal("rarp.op", Field::ArpOp, "rarp", true);
    t.ordinal("rarp.spa", Field::ArpSpa, "rarp");
    t.ordinal("rarp.sha", Field::ArpSha, "rarp");
    t.ordinal("rarp.tpa", Field::ArpTpa, "rarp");
    t.ordinal("rarp.tha", Field::ArpTha, "rarp");
    t.ordinal("nd.target", Field::NdTarget, "nd");
    t.ordinal("nd.sll", Field::NdSll, "nd_ns");
    t.ordinal("nd.tll", Field::NdTll, "nd_na");
    t.ordinal("tcp.src", Field::TcpSrc, "tcp");
    t.ordinal("tcp.dst", Field::TcpDst, "tcp");
    t.ordinal("tcp.flags", Field::TcpFlags, "tcp");
    t.ordinal("udp.src", Field::UdpSrc, "udp");
    t.ordinal("udp.dst", Field::UdpDst, "udp");
    t.ordinal("sctp.src", Field::SctpSrc, "sctp");
    t.ordinal("sctp.dst", Field::SctpDst, "sctp");
    t.action_only("icmp4.frag_mtu", 16, "icmp4");
    t.action_only("icmp6.frag_mtu", 32, "icmp6");
    t.action_only("icmp4.inner_ip4.src", 32, "icmp4");
    t.action_only("icmp4.inner_ip4.dst", 32, "icmp4");
    t.action_only("icmp6.inner_ip6.src", 128, "icmp6");
    t.action_only("icmp6.inner_ip6.dst", 128, "icmp6");
}

fn predicates(t: &mut Table) {
    for (name, expansion) in [
        // Keys of remote VTEPs have the highest bit.
        ("from_evpn_vtep", "__inport[31]"),
        ("to_evpn_vtep", "__outport[31]"),
        ("eth.bcast", "eth.dst == ff:ff:ff:ff:ff:ff"),
        ("eth.mcast", "eth.dst[40]"),
        ("eth.mcastv6", "eth.dst[32..47] == 0x3333"),
        ("ip4", "eth.type == 0x800"),
        ("ip6", "eth.type == 0x86dd"),
        ("ip", "ip4 || ip6"),
        ("ip4.src_mcast", "ip4.src[28..31] == 0xe"),
        ("ip4.mcast", "eth.mcast && ip4.dst[28..31] == 0xe"),
        ("ip6.mcast", "eth.mcastv6 && ip6.dst[120..127] == 0xff"),
        (
            "ip6.mcast_rsvd",
            "ip6.dst == {ff00::, ff01::, ff02::, ff03::, ff04::, ff05::, ff06::, ff07::, \
             ff08::, ff09::, ff0a::, ff0b::, ff0c::, ff0d::, ff0e::, ff0f::}",
        ),
        ("ip6.mcast_all_nodes", "ip6.dst == {ff01::1, ff02::1}"),
        ("ip6.mcast_all_rtrs", "ip6.dst == {ff01::2, ff02::2, ff05::2}"),
        ("ip6.mcast_sol_node", "ip6.dst == ff02::1:ff00:0/104"),
        (
            "ip6.mcast_flood",
            "eth.mcastv6 && (ip6.mcast_rsvd || ip6.mcast_all_nodes || ip6.mcast_all_rtrs || ip6.mcast_sol_node)",
        ),
        ("icmp4", "ip4 && ip.proto == 1"),
        ("icmp6", "ip6 && ip.proto == 58"),
        ("icmp", "icmp4 || icmp6"),
        ("igmp", "ip4.mcast && ip.proto == 2"),
        ("mldv1", "eth.mcastv6 && ip6.src == fe80::/10 && icmp6.type == {130, 131, 132}"),
        ("mldv2", "eth.mcastv6 && ip6.dst == ff02::16 && icmp6.type == 143"),
        ("ip.first_frag", "ip.is_frag && !ip.later_frag"),
        ("arp", "eth.type == 0x806"),
        ("rarp", "eth.type == 0x8035"),
        ("nd", "icmp6.type == {135, 136} && icmp6.code == 0 && ip.ttl == 255"),
        ("nd_ns", "icmp6.type == 135 && icmp6.code == 0 && ip.ttl == 255"),
        ("nd_ns_mcast", "ip6.mcast && icmp6.type == 135 && icmp6.code == 0 && ip.ttl == 255"),
        ("nd_na", "icmp6.type == 136 && icmp6.code == 0 && ip.ttl == 255"),
        ("nd_rs", "icmp6.type == 133 && icmp6.code == 0 && ip.ttl == 255"),
        ("nd_ra", "icmp6.type == 134 && icmp6.code == 0 && ip.ttl == 255"),
        ("tcp", "ip.proto == 6"),
        ("udp", "ip.proto == 17"),
        ("sctp", "ip.proto == 132"),
    ] {
        t.predicate(name, expansion);
    }
}
