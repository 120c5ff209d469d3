//! Tunnels: ports, encapsulation, and the underlay.

mod decap;
pub(crate) mod erspan;
mod key;
mod underlay;

pub use decap::{Decapsulated, Malformed, Options, Outer, outer_addresses, to_key};
pub(crate) use decap::{IPV4_WITHIN, IPV6_WITHIN, decapsulate, is_sound, tunnel_kind};
pub use erspan::ErspanOptions;
pub use key::TunnelKey;
pub use underlay::{Egress, Route, RouteRule, Underlay};

use crate::dependency::Dependency;
use openflow_rs::action::PacketType;
use openflow_rs::message::TlvMap;
use openflow_rs::{ALL_FIELDS, FieldId as F, FlowKey};
use packet::gre::{self, Erspan, Gre};
use packet::gtpu::{GTPU_PORT, Gtpu};
use packet::tunnel::{GENEVE_PORT, Geneve, VXLAN_PORT, Vxlan, VxlanPayload};
use packet::{Mac, build, ipproto, srv6};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Encapsulation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TunnelKind {
    /// RFC 8926.
    Geneve,
    /// RFC 7348.
    Vxlan,
    /// RFC 2784, with Ethernet in it.
    Gre,
    /// Mirrored frames in GRE.
    Erspan,
    /// Segment routing over IPv6 (RFC 8986), with IP in it.
    Srv6,
    /// User packets of mobile networks (3GPP TS 29.281), with IP in it.
    Gtpu,
}

/// What packets a tunnel port has (ovs-vswitchd.conf.db(5), `options:packet_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PacketMode {
    /// Ethernet in the tunnel, and for flows.
    #[default]
    LegacyL2,
    /// Without Ethernet in the tunnel, with an empty Ethernet header for flows.
    LegacyL3,
    /// In the tunnel as for flows.
    Aware,
}

impl PacketMode {
    /// Whether a port takes packets of a type from its tunnel.
    pub(crate) fn takes(self, t: PacketType) -> bool {
        match self {
            PacketMode::LegacyL2 => t == PacketType::ETHERNET,
            PacketMode::LegacyL3 => t != PacketType::ETHERNET,
            PacketMode::Aware => true,
        }
    }
}

/// Where the flow label of SRv6's outer header comes from (`options:srv6_flowlabel`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FlowLabel {
    /// The packet inside, if it is one of IPv6.
    #[default]
    Copy,
    /// 0.
    Zero,
    /// A hash of the packet's flow.
    Compute,
}

/// What stands between a packet and the IP header in front of it, and differs from packet to packet.
#[derive(Clone, Debug)]
pub(crate) enum Shim {
    /// UDP.
    Udp {
        /// With a checksum.
        csum: bool,
        /// What the source port is chosen of.
        ports: SourcePorts,
    },
    /// GRE.
    Gre {
        /// With a checksum.
        csum: bool,
        /// The tunnel's, if its packets are numbered.
        sequence: Option<Sequence>,
    },
}

/// The number of a tunnel's next packet, of which all threads take theirs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence(Arc<AtomicU32>);

impl Sequence {
    /// The number of the next packet.
    pub(crate) fn next(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Takes it.
    #[inline]
    pub(crate) fn take(&self) -> u32 {
        self.0.fetch_add(1, Relaxed)
    }
}

impl TunnelKind {
    /// Whether it is GRE, which is no UDP.
    pub fn is_gre(self) -> bool {
        matches!(self, TunnelKind::Gre | TunnelKind::Erspan)
    }

    /// Whether there is IP in it, and nothing else.
    pub(crate) fn has_only_ip(self) -> bool {
        matches!(self, TunnelKind::Srv6 | TunnelKind::Gtpu)
    }

    /// Whether its packets are of UDP.
    pub fn is_udp(self) -> bool {
        matches!(self, TunnelKind::Geneve | TunnelKind::Vxlan | TunnelKind::Gtpu)
    }
}

/// Options of a tunnel port (ovs-vswitchd.conf.db(5), Interface `options`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelConfig {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Peer; `None` is `flow`.
    pub remote: Option<IpAddr>,
    /// Local address; `None`: that of the route, or with `local_of_flow` the one in `tun_src`.
    pub local: Option<IpAddr>,
    /// Flows choose the local address with `tun_src` (`local_ip=flow`). Without it `tun_src` only says where a packet
    /// came from.
    pub local_of_flow: bool,
    /// Key of packets that leave; `None` is `flow`.
    pub key: Option<TunnelKey>,
    /// Packets that leave have a key also where it is 0, which only the header of GRE can be without (`options:key=0`).
    pub keyed: bool,
    /// Key of packets that come; `None` is `flow`.
    pub in_key: Option<TunnelKey>,
    /// What packets it has.
    pub mode: PacketMode,
    /// VXLAN with the generic protocol extension (`exts=gpe`).
    pub gpe: bool,
    /// VXLAN with group policies (`exts=gbp`).
    pub policy: bool,
    /// SRv6's segments; none: the peer.
    pub segments: Vec<Ipv6Addr>,
    /// SRv6's flow label.
    pub flow_label: FlowLabel,
    /// Checksums of outer headers (`options:csum`); none: as [`TunnelConfig::checksums`] has it.
    pub csum: Option<bool>,
    /// Do not fragment.
    pub df: bool,
    /// Outer time to live; 0: 64.
    pub ttl: u8,
    /// That of the packet inside, where it is one of IP, goes before it (`options:ttl=inherit`).
    pub inherits_ttl: bool,
    /// Outer type of service (IPv4) or traffic class (IPv6), without the bits of ECN: these follow the packet inside.
    pub tos: u8,
    /// That of the packet inside goes before it (`options:tos=inherit`).
    pub inherits_tos: bool,
    /// Destination port; 0 for GRE.
    pub udp_port: u16,
    /// GRE or GTP-U with sequence numbers.
    pub sequence: bool,
    /// The header of ERSPAN.
    pub erspan: ErspanOptions,
    /// The mark of packets that leave (`options:egress_pkt_mark`); none: the one that flows give.
    pub mark: Option<u32>,
    /// Its type in the database is `ip6gre` or `ip6erspan`. Only the name differs: every type takes peers of IPv4 and
    /// IPv6.
    pub v6_type: bool,
}

/// Values of the congestion notification bits in a type of service (RFC 3168 section 5): "congestion experienced", and
/// "the transport is capable of it".
pub(crate) const CE: u8 = 3;
const ECT_0: u8 = 2;

impl TunnelConfig {
    /// The fields of the packet inside that the outer header follows.
    pub(crate) fn follows(&self) -> impl Iterator<Item = F> {
        let dscp = self.inherits_tos.then_some(F::IpDscp);
        [F::EthType, F::IpEcn].into_iter().chain(dscp).chain(self.inherits_ttl.then_some(F::IpTtl))
    }

    /// The name of the port of the datapath that packets of all tunnels of this kind come by, as in Open vSwitch.
    pub fn datapath_port(&self) -> &'static str {
        match self.kind {
            TunnelKind::Geneve => "genev_sys",
            TunnelKind::Vxlan => "vxlan_sys",
            TunnelKind::Gre if self.v6_type => "ip6gre_sys",
            TunnelKind::Gre => "gre_sys",
            TunnelKind::Erspan if self.v6_type => "ip6erspan_sys",
            TunnelKind::Erspan => "erspan_sys",
            TunnelKind::Srv6 => "srv6_sys",
            TunnelKind::Gtpu => "gtpu_sys",
        }
    }

    /// Type of service and time to live of the outer header. "Congestion experienced" is not copied to it, but becomes
    /// "capable" (RFC 3168 section 9.1.1): at the tunnel's end the mark means congestion within the tunnel.
    pub(crate) fn tos_ttl(&self, inner: &FlowKey) -> (u8, u8) {
        let ip = matches!(inner.get(F::EthType), 0x0800 | 0x86dd);
        let of = |f: F| if ip { inner.get(f) as u8 } else { 0 };
        let class = if self.inherits_tos && ip { of(F::IpDscp) << 2 } else { self.tos & !CE };
        let ecn = match of(F::IpEcn) {
            CE => ECT_0,
            ecn => ecn,
        };
        let own = if self.ttl == 0 { 64 } else { self.ttl };
        (class | ecn, if self.inherits_ttl && ip { of(F::IpTtl) } else { own })
    }

    /// Whether outer UDP headers over IPv4 or IPv6 have checksums. By default those over IPv6 have
    /// (ovs-vswitchd.conf.db(5), `options:csum`): a receiver refuses datagrams without one (RFC 8200 section 8.1)
    /// unless it knows of the tunnel (RFC 6935).
    pub fn checksums(&self, v4: bool) -> bool {
        self.csum.unwrap_or(!v4)
    }

    /// Whether packets that leave have a key.
    pub fn has_key(&self) -> bool {
        self.keyed || self.key != Some(TunnelKey::NONE)
    }

    /// Whether packets that leave have sequence numbers.
    pub fn has_sequence(&self) -> bool {
        self.sequence || self.kind == TunnelKind::Erspan
    }

    /// The sender that is asked for, if one is, and the receiver of a packet's outer header; none without a receiver.
    fn ends(&self, key: &FlowKey) -> Option<(Option<IpAddr>, IpAddr)> {
        let of = |v4: F, v6: F| match (key.get(v4), key.get(v6)) {
            (0, 0) => None,
            (0, v) => Some(IpAddr::from(v.to_be_bytes())),
            (v, _) => Some(IpAddr::from((v as u32).to_be_bytes())),
        };
        let dst = self.remote.or_else(|| of(F::TunDst, F::TunIpv6Dst))?;
        let src = self.local.or_else(|| of(F::TunSrc, F::TunIpv6Src).filter(|_| self.local_of_flow));
        Some((src.filter(|a| a.is_ipv4() == dst.is_ipv4()), dst))
    }

    /// The key of a packet that leaves.
    fn key_of(&self, key: &FlowKey) -> TunnelKey {
        self.key.unwrap_or(TunnelKey(key.get(F::TunId) as u32))
    }

    /// What is known of a packet's outer header before there is one; none without a receiver.
    pub(crate) fn outer(&self, key: &FlowKey) -> Option<Outer> {
        let (src, dst) = self.ends(key)?;
        let unknown = if dst.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        Some(Outer {
            kind: self.kind,
            addresses: [src.unwrap_or(unknown), dst],
            ports: [0, self.udp_port],
            key: self.key_of(key),
            tos: self.tos_ttl(key).0,
        })
    }

    /// A tunnel with keys and, without `remote`, destinations from flows.
    pub fn new(kind: TunnelKind, remote: Option<IpAddr>) -> Self {
        let udp_port = match kind {
            TunnelKind::Geneve => GENEVE_PORT,
            TunnelKind::Vxlan => VXLAN_PORT,
            TunnelKind::Gtpu => GTPU_PORT,
            TunnelKind::Gre | TunnelKind::Erspan | TunnelKind::Srv6 => 0,
        };
        TunnelConfig {
            kind,
            remote,
            local: None,
            local_of_flow: false,
            key: None,
            keyed: false,
            in_key: None,
            mode: if kind.has_only_ip() { PacketMode::LegacyL3 } else { PacketMode::LegacyL2 },
            gpe: false,
            policy: false,
            segments: Vec::new(),
            flow_label: FlowLabel::Copy,
            csum: None,
            df: true,
            ttl: 64,
            inherits_ttl: false,
            tos: 0,
            inherits_tos: false,
            udp_port,
            sequence: false,
            erspan: ErspanOptions::default(),
            mark: None,
            v6_type: false,
        }
    }
}

/// What decides how packets are parsed: the local addresses at which tunnels end, the UDP ports of tunnels, and the
/// number of VLAN tags. A clone is a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Whether of IPv6, and the address, in order.
    addresses: Arc<Vec<(bool, u128)>>,
    /// UDP ports besides those that Geneve and VXLAN have for themselves (`options:dst_port`).
    ports: Arc<Vec<(u16, TunnelKind)>>,
    tags: usize,
}

impl Default for Own {
    fn default() -> Own {
        Own { addresses: Arc::default(), ports: Arc::default(), tags: crate::extract::TAGS }
    }
}

impl Own {
    /// How many VLAN tags are parsed.
    #[inline]
    pub(crate) fn tags(&self) -> usize {
        self.tags
    }

    /// The encapsulation of packets to a UDP port.
    #[inline(always)]
    pub(crate) fn tunnel(&self, port: u16) -> Option<TunnelKind> {
        match port {
            GENEVE_PORT => Some(TunnelKind::Geneve),
            VXLAN_PORT => Some(TunnelKind::Vxlan),
            // Tunnels at other ports are rare.
            _ => self.ports.iter().find(|(p, _)| *p == port).map(|(_, kind)| *kind),
        }
    }

    /// Takes over the UDP ports of tunnels.
    pub(crate) fn listen<'a>(&mut self, tunnels: impl Iterator<Item = &'a TunnelConfig>) {
        let mut ports: Vec<(u16, TunnelKind)> =
            tunnels.filter(|t| t.kind.is_udp()).map(|t| (t.udp_port, t.kind)).collect();
        ports.sort_unstable_by_key(|(p, kind)| (*p, *kind as u8));
        ports.dedup_by_key(|(p, _)| *p);
        ports.retain(|(p, _)| !matches!(*p, GENEVE_PORT | VXLAN_PORT));
        if *self.ports != ports {
            self.ports = Arc::new(ports);
        }
    }

    /// Whether an address, of IPv6 or IPv4, is among them.
    #[inline]
    pub(crate) fn has(&self, v6: bool, address: u128) -> bool {
        // Hosts have few addresses.
        self.addresses.contains(&(v6, address))
    }
}

/// The field of an index in the map of tunnel options.
pub fn metadata_field(index: u16) -> Option<F> {
    (index < 8).then(|| ALL_FIELDS.get(F::TunMetadata0 as usize + usize::from(index)).copied()).flatten()
}

/// The outer headers of a packet that leaves through a tunnel, and where it leaves, or why it cannot. `needs` is called
/// with each dependency, and `sequence` for the packet's number, if it gets that far.
pub(crate) fn outer_headers(
    cfg: &TunnelConfig,
    key: &FlowKey,
    tlv: &[TlvMap],
    (kind, inner): (PacketType, &[u8]),
    underlay: &Underlay,
    (entropy, sequence, now): (u16, &dyn Fn() -> u32, Duration),
    mut needs: impl FnMut(Dependency),
) -> Result<(Vec<u8>, Egress), Unreachable> {
    let (asked, dst) = cfg.ends(key).ok_or(Unreachable::Destination)?;
    needs(Dependency::Routes);
    let unusable = |r: &&Route| matches!(r.egress, Egress::Host(_));
    let mark = key.get(F::PktMark) as u32;
    let route = underlay.route_from(dst, asked, mark).filter(|r| !unusable(r)).ok_or(Unreachable::Route(dst))?;
    let hop = route.gateway.unwrap_or(dst);
    needs(Dependency::Neighbour(hop));
    let mac = underlay.neighbour(hop).ok_or(Unreachable::Neighbour(hop))?;
    let src = asked.unwrap_or(route.source);
    let (tos, ttl) = cfg.tos_ttl(key);
    let id = cfg.key_of(key);
    if cfg.kind.is_gre() {
        let payload = gre_packet(cfg, key, (id, kind), (sequence, now), inner).ok_or(Unreachable::Erspan(id))?;
        let mut whole = build::ip_packet(mac, route.source_mac, src, dst, ipproto::GRE, ttl, &payload)
            .ok_or(Unreachable::Route(dst))?;
        let headers = whole.len() - inner.len();
        fix_ip(&mut whole, cfg, tos, dst.is_ipv4());
        whole.truncate(headers);
        return Ok((whole, route.egress.clone()));
    }
    if cfg.kind == TunnelKind::Srv6 {
        return srv6_headers(cfg, key, (mac, route.source_mac), (src, dst), kind, (tos, ttl, entropy), inner.len())
            .map(|h| (h, route.egress.clone()));
    }
    let vni = id.vni();
    let mut shim = Vec::with_capacity(64);
    match cfg.kind {
        TunnelKind::Gre | TunnelKind::Erspan | TunnelKind::Srv6 => {}
        TunnelKind::Gtpu => match kind {
            PacketType::IPV4 | PacketType::IPV6 => {
                Gtpu::put(&mut shim, id.0, cfg.sequence.then(|| sequence() as u16), inner.len());
            }
            _ => return Err(Unreachable::PacketType(kind)),
        },
        TunnelKind::Vxlan => {
            let payload = kind.ethertype().map_or(VxlanPayload::Ethernet, VxlanPayload::Ethertype);
            let policy = (key.get(F::TunGbpId) as u16, key.get(F::TunGbpFlags) as u8);
            let policy = Some(policy).filter(|p| cfg.policy && *p != (0, 0));
            if !(Vxlan { vni, gpe: cfg.gpe, payload, policy }).put(&mut shim) {
                return Err(Unreachable::PacketType(kind));
            }
        }
        TunnelKind::Geneve => {
            let options: Vec<(u16, u8, Vec<u8>)> = tlv
                .iter()
                .filter_map(|m| {
                    let f = metadata_field(m.index)?;
                    let (word, bit) = f.presence()?;
                    let (v, n) = (key.get(f), usize::from(m.len).min(8));
                    (key.0.get(word)? & bit != 0).then(|| (m.class, m.kind, v.to_be_bytes()[16 - n..].to_vec()))
                })
                .collect();
            Geneve::put(&mut shim, vni, key.get(F::TunFlags) & 1 != 0, &options);
        }
    }
    let mut payload = shim.clone();
    payload.extend_from_slice(inner);
    let port = underlay.source_ports().of(entropy);
    let mut whole = build::udp(mac, route.source_mac, (src, port), (dst, cfg.udp_port), ttl, &payload)
        .ok_or(Unreachable::Route(dst))?;
    let headers = whole.len() - inner.len();
    fix_outer(&mut whole, cfg, tos, dst.is_ipv4());
    whole.truncate(headers);
    Ok((whole, route.egress.clone()))
}

/// What the source port of the tunnel header is chosen by: a hash of the inner addresses, protocol and ports, by which
/// networks spread flows over paths (RFC 8926 section 3.3, RFC 7348 section 5).
pub(crate) fn entropy(key: &FlowKey) -> u16 {
    let ports = key.get(F::TcpSrc) << 16 | key.get(F::TcpDst);
    let fold = |f: F| (key.get(f) >> 64) as u64 ^ key.get(f) as u64;
    let addresses = (key.get(F::IpSrc) << 32 | key.get(F::IpDst)) as u64;
    let long = fold(F::Ipv6Src).rotate_left(17) ^ fold(F::Ipv6Dst);
    spread(addresses ^ long, (ports << 8 | key.get(F::IpProto)) as u64)
}

/// The same for a packet that is no fragment, with an IP header without options or extensions at `l3`.
#[inline(always)]
pub(crate) fn entropy_of(p: &[u8], l3: usize) -> Option<u16> {
    let ip: &[u8; 24] = p.get(l3..)?.first_chunk()?;
    let word = |at: usize| u64::from(u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]));
    if ip[0] >> 4 == 6 {
        return entropy_v6(p.get(l3..)?);
    }
    let ports = ports(ip[9], ipproto::ICMP, [ip[20], ip[21], ip[22], ip[23]]);
    Some(spread(word(12) << 32 | word(16), ports << 8 | u64::from(ip[9])))
}

#[inline(never)]
fn entropy_v6(ip: &[u8]) -> Option<u16> {
    let head: &[u8; 44] = ip.first_chunk()?;
    let (words, _) = head.get(8..40)?.as_chunks::<8>();
    let &[a, b, c, d] = words else { return None };
    let fold = |a, b| u64::from_be_bytes(a) ^ u64::from_be_bytes(b);
    let ports = ports(head[6], ipproto::ICMPV6, [head[40], head[41], head[42], head[43]]);
    Some(spread(fold(a, b).rotate_left(17) ^ fold(c, d), ports << 8 | u64::from(head[6])))
}

/// The ports with which a header of this protocol begins, or in their place type and code of this version's ICMP.
#[inline(always)]
fn ports(proto: u8, icmp: u8, header: [u8; 4]) -> u64 {
    match (proto, header) {
        (ipproto::TCP | ipproto::UDP | ipproto::SCTP, h) => u32::from_be_bytes(h).into(),
        (p, [kind, code, ..]) if p == icmp => u64::from(kind) << 16 | u64::from(code),
        _ => 0,
    }
}

#[inline(always)]
fn spread(addresses: u64, rest: u64) -> u16 {
    let m = u128::from(addresses ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(u128::from(rest ^ 0xf39c_c060_5ced_c835));
    ((m as u64 ^ (m >> 64) as u64) >> 40) as u16
}

/// The source ports of UDP that tunnels use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourcePorts {
    /// The first.
    pub first: u16,
    /// How many more there are.
    pub more: u16,
}

impl Default for SourcePorts {
    /// The dynamic ports (RFC 6335 section 6).
    fn default() -> SourcePorts {
        SourcePorts { first: 0xc000, more: 0x3fff }
    }
}

impl SourcePorts {
    /// The ports between two, these included.
    pub fn between(a: u16, b: u16) -> SourcePorts {
        SourcePorts { first: a.min(b), more: a.abs_diff(b) }
    }

    /// The last.
    pub fn last(self) -> u16 {
        self.first + self.more
    }

    /// That of a flow with this hash.
    #[inline(always)]
    pub(crate) fn of(self, hash: u16) -> u16 {
        self.first + ((u32::from(hash) * (u32::from(self.more) + 1)) >> 16) as u16
    }
}

/// The outer headers of a packet of SRv6: the path's first segment is the destination (RFC 8754 section 4.1).
fn srv6_headers(
    cfg: &TunnelConfig,
    key: &FlowKey,
    (mac, source_mac): (Mac, Mac),
    (src, dst): (IpAddr, IpAddr),
    kind: PacketType,
    (tos, ttl, entropy): (u8, u8, u16),
    inner: usize,
) -> Result<Vec<u8>, Unreachable> {
    let peer = if let IpAddr::V6(a) = dst { a } else { return Err(Unreachable::Destination) };
    let segments: Vec<u128> = match cfg.segments.first() {
        Some(first) if *first != peer => return Err(Unreachable::Destination),
        Some(_) => cfg.segments.iter().map(|a| u128::from(*a)).collect(),
        None => vec![peer.into()],
    };
    let header = kind.ethertype().and_then(|t| srv6::header(&segments, t)).ok_or(Unreachable::PacketType(kind))?;
    let label = match cfg.flow_label {
        FlowLabel::Copy if kind == PacketType::IPV6 => key.get(F::Ipv6Label) as u32,
        FlowLabel::Copy | FlowLabel::Zero => 0,
        FlowLabel::Compute => u32::from(entropy),
    };
    let mut payload = header;
    let headers = payload.len();
    payload.resize(headers + inner, 0);
    let mut whole =
        build::ip_packet(mac, source_mac, src, dst, srv6::ROUTING, ttl, &payload).ok_or(Unreachable::Route(dst))?;
    fix_ip(&mut whole, cfg, tos, false);
    if let Some([_, a, b, c]) = whole.get_mut(14..18) {
        let [_, x, y, z] = label.to_be_bytes();
        (*a, *b, *c) = (*a & 0xf0 | x & 0x0f, y, z);
    }
    whole.truncate(whole.len() - inner);
    Ok(whole)
}

/// The GRE header and what is in it. A key and sequence numbers are sent where the options have them; ERSPAN has its
/// key within, and always a sequence number. None: ERSPAN has no such header.
fn gre_packet(
    cfg: &TunnelConfig,
    key: &FlowKey,
    (id, kind): (TunnelKey, PacketType),
    (sequence, now): (&dyn Fn() -> u32, Duration),
    inner: &[u8],
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(inner.len() + 32);
    if cfg.kind == TunnelKind::Erspan {
        let erspan = cfg.erspan.header(key).filter(|_| id <= TunnelKey::max(cfg.kind))?;
        let header = Gre { protocol: erspan.protocol(), sequence: Some(sequence()), ..Gre::default() };
        header.put(&mut out, &[&erspan.bytes(id.0, (now.as_micros() / 100) as u32), inner]);
        return Some(out);
    }
    let key = cfg.has_key().then_some(id.0);
    let sequence = cfg.sequence.then(sequence);
    let protocol = kind.ethertype().unwrap_or(gre::ETHERNET);
    Gre { protocol, key, sequence, checksum: cfg.csum == Some(true) }.put(&mut out, &[inner]);
    Some(out)
}

/// Whether the header of a packet that leaves has the time (ERSPAN's second version).
pub(crate) fn is_timed(cfg: &TunnelConfig, key: &FlowKey) -> bool {
    cfg.kind == TunnelKind::Erspan && matches!(cfg.erspan.header(key), Some(Erspan::V2 { .. }))
}

/// Writes what a tunnel's options say of the outer IP header.
fn fix_ip(p: &mut [u8], cfg: &TunnelConfig, tos: u8, v4: bool) {
    if !v4 {
        // RFC 8200 section 3: four bits of version, eight of traffic class, then the flow label.
        if let Some([a, b]) = p.get_mut(14..16) {
            (*a, *b) = (*a & 0xf0 | tos >> 4, *b & 0x0f | tos << 4);
        }
        return;
    }
    if let Some(b) = p.get_mut(15) {
        *b = tos;
    }
    if let Some(b) = p.get_mut(20) {
        *b = if cfg.df { 0x40 } else { 0 };
    }
    packet::checksum::set_ipv4(p, 14);
}

fn fix_outer(p: &mut [u8], cfg: &TunnelConfig, tos: u8, v4: bool) {
    fix_ip(p, cfg, tos, v4);
    let place = if v4 { 40..42 } else { 60..62 };
    if let (false, Some(c)) = (cfg.checksums(v4), p.get_mut(place)) {
        c.fill(0);
    }
}

/// Why a tunnel packet cannot leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// The flow gave no destination.
    Destination,
    /// No route.
    Route(IpAddr),
    /// The next hop is not resolved.
    Neighbour(IpAddr),
    /// The encapsulation has no word for such packets.
    PacketType(PacketType),
    /// Flows ask for a version of ERSPAN that does not exist, or for this session, which does not fit ten bits.
    Erspan(TunnelKey),
}
