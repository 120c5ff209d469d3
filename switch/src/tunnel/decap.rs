//! Packets that came by a tunnel: their headers, and what flows see of them.

use super::{Own, TunnelConfig, TunnelKey, TunnelKind, erspan, metadata_field};
use crate::tunnel::PacketMode;
use openflow_rs::action::PacketType;
use openflow_rs::message::TlvMap;
use openflow_rs::{FieldId as F, FlowKey};
use packet::checksum::Sum;
use packet::gre::{self, Erspan, Gre};
use packet::gtpu::{self, Gtpu};
use packet::tunnel::{Geneve, GeneveOption, Vxlan, VxlanPayload};
use packet::{Headers, checksum, ipproto, srv6};
use std::net::IpAddr;

/// A Geneve option as the value of a field.
#[derive(Clone, Copy, Debug, Default)]
struct TunnelOption {
    class: u16,
    kind: u8,
    len: usize,
    /// Its last 16 bytes.
    value: u128,
}

/// Options of a tunnel packet; most packets have few.
#[derive(Clone, Debug, Default)]
pub struct Options {
    few: [TunnelOption; 4],
    n: usize,
    more: Vec<TunnelOption>,
}

impl Options {
    fn push(&mut self, o: &GeneveOption<'_>) {
        let value = o.data.iter().fold(0, |v, b| v << 8 | u128::from(*b));
        let o = TunnelOption { class: o.class, kind: o.kind, len: o.data.len(), value };
        match self.few.get_mut(self.n) {
            Some(x) => {
                *x = o;
                self.n += 1;
            }
            None => self.more.push(o),
        }
    }

    /// The value of an option of a class, type and length.
    fn get(&self, class: u16, kind: u8, len: usize) -> Option<u128> {
        let all = self.few.iter().take(self.n).chain(&self.more);
        all.into_iter().find(|o| (o.class, o.kind & 0x7f, o.len) == (class, kind & 0x7f, len)).map(|o| o.value)
    }
}

/// A parsed tunnel packet.
#[derive(Clone, Debug)]
pub struct Decapsulated {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// Key.
    pub key: TunnelKey,
    /// Of what type the inner packet is.
    pub packet_type: PacketType,
    /// VXLAN's generic protocol extension was used.
    pub gpe: bool,
    /// VXLAN's group policy: identifier and flags.
    pub policy: Option<(u16, u8)>,
    /// The header of ERSPAN.
    pub erspan: Option<Erspan>,
    /// Flags and type of a message of GTP-U.
    pub gtpu: Option<(u8, u8)>,
    /// Options.
    pub options: Options,
    /// Where the inner frame starts.
    pub inner: usize,
    /// Where it ends.
    pub end: usize,
    /// Outer type of service.
    pub tos: u8,
    /// Outer time to live.
    pub ttl: u8,
    /// OAM flag.
    pub oam: bool,
    /// Source and destination port.
    pub ports: [u16; 2],
}

/// The tunnel header that a packet arrived with, or left with, for exporters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Sender and receiver.
    pub addresses: [IpAddr; 2],
    /// Source and destination port of UDP.
    pub ports: [u16; 2],
    /// Key.
    pub key: TunnelKey,
    /// Type of service.
    pub tos: u8,
}

impl Decapsulated {
    /// A packet of which no more is known than whose it is.
    pub(crate) fn of(kind: TunnelKind, [src, dst]: [IpAddr; 2], key: TunnelKey, port: u16) -> Decapsulated {
        let packet_type = if kind.has_only_ip() { PacketType::IPV4 } else { PacketType::ETHERNET };
        Decapsulated {
            kind,
            src,
            dst,
            key,
            packet_type,
            gpe: false,
            policy: None,
            erspan: None,
            gtpu: None,
            options: Options::default(),
            inner: 0,
            end: 0,
            tos: 0,
            ttl: 0,
            oam: false,
            ports: [0, port],
        }
    }

    /// Whether there is a packet in it.
    fn is_whole(&self) -> bool {
        self.end >= self.inner + if self.packet_type == PacketType::ETHERNET { 14 } else { 1 }
    }

    /// The parts of its header that exporters report.
    pub fn outer(&self) -> Outer {
        Outer { kind: self.kind, addresses: [self.src, self.dst], ports: self.ports, key: self.key, tos: self.tos }
    }
}

impl Outer {
    /// Takes over what the headers of a packet in a tunnel say.
    pub(crate) fn read(&mut self, whole: &[u8]) {
        let Some(h) = Headers::parse(whole) else { return };
        if let Some((src, dst)) = outer_addresses(whole, &h) {
            self.addresses = [src, dst];
            self.tos = outer_tos_ttl(whole, &h).0;
        }
        if let Some((source, port)) = h.ports(whole) {
            self.ports = [source, port];
        }
    }
}

/// The addresses of a packet.
pub fn outer_addresses(p: &[u8], h: &Headers) -> Option<(IpAddr, IpAddr)> {
    let (s, d) = h.addresses(p)?;
    let make =
        |v: u128| if h.is_ipv4() { IpAddr::from((v as u32).to_be_bytes()) } else { IpAddr::from(v.to_be_bytes()) };
    Some((make(s), make(d)))
}

/// Whether the checksums of a packet hold that are outside a tunnel: that of IPv4's header, and that of UDP, unless the
/// sender has left it out (RFC 768; RFC 8200 section 8.1, RFC 6935) or the device has found it right (`good`). The headers
/// are at `l3` and `l4`, and the packet ends at `end`.
#[inline(always)]
pub(crate) fn is_sound(p: &[u8], [l3, l4, end]: [usize; 3], (v6, proto): (bool, u8), good: bool) -> bool {
    const WHOLE: [u8; 2] = [0xff; 2];
    let Some(ip) = p.get(l3..) else { return false };
    let addresses = match (v6, ip.first_chunk::<20>(), ip.first_chunk::<40>()) {
        (false, Some(&[0x45, ref rest @ .., a, b, c, d, e, f, g, h]), _) => {
            let addresses = Sum::default().bytes(&[a, b, c, d, e, f, g, h]);
            // The rest is eleven bytes behind the first one.
            let mut front = [0x45; 12];
            front[1..].copy_from_slice(rest);
            if addresses.plus(Sum::default().bytes(&front)).folded_bytes() != WHOLE {
                return false;
            }
            addresses
        }
        (false, Some(header), _) => {
            let whole = ip.get(..usize::from(header[0] & 0xf) * 4);
            if whole.is_none_or(|h| checksum::of(h) != 0) {
                return false;
            }
            Sum::default().bytes(&header[12..])
        }
        (true, _, Some(header)) => Sum::default().bytes(&header[8..]),
        _ => return false,
    };
    if good || proto != ipproto::UDP {
        return true;
    }
    let Some(udp @ &[_, _, _, _, a, b, c, d, ..]) = p.get(l4..end) else { return false };
    let Some(udp) = udp.get(..usize::from(u16::from_be_bytes([a, b]))) else { return false };
    let sum = addresses.word([0, proto]).word([a, b]).plus(Sum::default().bytes(udp));
    [c, d] == [0, 0] || sum.folded_bytes() == WHOLE
}

/// Parses a tunnel packet. `Ok(None)` if it is none.
///
/// # Errors
/// The header is malformed.
pub(crate) fn decapsulate(p: &[u8], h: &Headers, own: &Own) -> Result<Option<Decapsulated>, Malformed> {
    if h.ip_ok && !h.fragment {
        match h.proto {
            ipproto::GRE => return of_gre(p, h).map(Some),
            IPV4_WITHIN | IPV6_WITHIN if h.is_ipv6() => return of_srv6(p, h),
            _ => {}
        }
    }
    let (Some(l4), Some((source, port))) = (h.l4, h.ports(p)) else { return Ok(None) };
    let Some(kind) = tunnel_kind(p, h, own) else { return Ok(None) };
    let (src, dst) = outer_addresses(p, h).ok_or(Malformed)?;
    let body = p.get(l4 + 8..h.l3_end).ok_or(Malformed)?;
    let (tos, ttl) = outer_tos_ttl(p, h);
    let mut d = Decapsulated {
        inner: l4 + 16,
        end: h.l3_end,
        tos,
        ttl,
        ports: [source, port],
        ..Decapsulated::of(kind, [src, dst], TunnelKey::NONE, port)
    };
    match kind {
        TunnelKind::Geneve => {
            let g = Geneve::parse_with(body, |o| d.options.push(&o)).ok_or(Malformed)?;
            if g.protocol != 0x6558 {
                return Err(Malformed);
            }
            d.key = g.vni.into();
            d.oam = g.oam;
            d.inner = l4 + 8 + g.len;
        }
        TunnelKind::Gtpu => of_gtpu(&mut d, body, l4 + 8)?,
        _ => {
            let v = Vxlan::parse(body).ok_or(Malformed)?;
            (d.key, d.gpe, d.policy) = (v.vni.into(), v.gpe, v.policy);
            if let VxlanPayload::Ethertype(t) = v.payload {
                d.packet_type = PacketType::of(t);
            }
        }
    }
    if d.is_whole() { Ok(Some(d)) } else { Err(Malformed) }
}

/// Reads the header of GTP-U, which begins at `at`. A message without a user's packet is taken as the frame that it
/// came in, for flows to hand it to those who know what it means, as in Open vSwitch.
fn of_gtpu(d: &mut Decapsulated, body: &[u8], at: usize) -> Result<(), Malformed> {
    let g = Gtpu::parse(body).ok_or(Malformed)?;
    (d.key, d.gtpu) = (TunnelKey(g.teid), Some((g.flags, g.message)));
    if g.message != gtpu::USER_PACKET {
        (d.packet_type, d.inner) = (PacketType::ETHERNET, 0);
        return Ok(());
    }
    d.packet_type = match body.get(g.len..g.end).and_then(|p| p.first()).map(|version| version >> 4) {
        Some(4) => PacketType::IPV4,
        Some(6) => PacketType::IPV6,
        _ => return Err(Malformed),
    };
    (d.inner, d.end) = (at + g.len, at + g.end);
    Ok(())
}

/// The outer type of service and time to live.
fn outer_tos_ttl(p: &[u8], h: &Headers) -> (u8, u8) {
    let (tos, ttl) = if h.is_ipv4() {
        (p.get(h.l3 + 1).copied(), p.get(h.l3 + 8).copied())
    } else {
        (packet::be16(p, h.l3).map(|v| (v >> 4) as u8), p.get(h.l3 + 7).copied())
    };
    (tos.unwrap_or(0), ttl.unwrap_or(0))
}

/// IP protocols of IPv4 and IPv6 within IP.
pub(crate) const IPV4_WITHIN: u8 = 4;
pub(crate) const IPV6_WITHIN: u8 = 41;

/// Parses a packet of SRv6 at its last segment; none without a segment routing header.
fn of_srv6(p: &[u8], h: &Headers) -> Result<Option<Decapsulated>, Malformed> {
    // Right behind IPv6's header, as the end of a tunnel has it.
    if p.get(h.l3 + 6) != Some(&srv6::ROUTING) {
        return Ok(None);
    }
    let (src, dst) = outer_addresses(p, h).ok_or(Malformed)?;
    let (ethertype, len) = srv6::parse(p.get(h.l3 + 40..h.l3_end).unwrap_or_default()).ok_or(Malformed)?;
    let (tos, ttl) = outer_tos_ttl(p, h);
    let d = Decapsulated {
        packet_type: PacketType::of(ethertype),
        inner: h.l3 + 40 + len,
        end: h.l3_end,
        tos,
        ttl,
        ..Decapsulated::of(TunnelKind::Srv6, [src, dst], TunnelKey::NONE, 0)
    };
    if d.is_whole() { Ok(Some(d)) } else { Err(Malformed) }
}

/// Parses a packet of GRE.
fn of_gre(p: &[u8], h: &Headers) -> Result<Decapsulated, Malformed> {
    let (src, dst) = outer_addresses(p, h).ok_or(Malformed)?;
    let body = p.get(h.payload..h.l3_end).ok_or(Malformed)?;
    let (header, len) = Gre::parse(body).ok_or(Malformed)?;
    let (tos, ttl) = outer_tos_ttl(p, h);
    let (key, end) = (header.key.unwrap_or(0), h.l3_end);
    let of = |kind, key, len| {
        let inner = h.payload + len;
        Decapsulated { inner, end, tos, ttl, ..Decapsulated::of(kind, [src, dst], TunnelKey(key), 0) }
    };
    let d = match header.protocol {
        gre::ETHERNET => of(TunnelKind::Gre, key, len),
        t if gre::ERSPAN.contains(&t) => {
            let behind = body.get(len..).unwrap_or_default();
            let (erspan, session, more) = Erspan::parse(t, behind).ok_or(Malformed)?;
            Decapsulated { erspan: Some(erspan), ..of(TunnelKind::Erspan, session, len + more) }
        }
        t => Decapsulated { packet_type: PacketType::of(t), ..of(TunnelKind::Gre, key, len) },
    };
    if d.is_whole() { Ok(d) } else { Err(Malformed) }
}

/// Writes the tunnel fields of a key, and the type that packets from this tunnel have for flows.
pub fn to_key(d: &Decapsulated, cfg: &TunnelConfig, tlv: &[TlvMap], key: &mut FlowKey) {
    if cfg.mode == PacketMode::LegacyL3 {
        key.set(F::PacketType, 0);
    }
    key.set(F::TunId, d.key.into());
    match (d.src, d.dst) {
        (IpAddr::V4(s), IpAddr::V4(t)) => {
            key.set(F::TunSrc, u32::from(s).into());
            key.set(F::TunDst, u32::from(t).into());
        }
        (IpAddr::V6(s), IpAddr::V6(t)) => {
            key.set(F::TunIpv6Src, s.into());
            key.set(F::TunIpv6Dst, t.into());
        }
        _ => {}
    }
    key.set(F::TunTos, d.tos.into());
    key.set(F::TunTtl, d.ttl.into());
    key.set(F::TunFlags, u128::from(d.oam));
    if let Some((id, flags)) = d.policy.filter(|_| cfg.policy) {
        key.set(F::TunGbpId, id.into());
        key.set(F::TunGbpFlags, flags.into());
    }
    if let Some((flags, message)) = d.gtpu {
        key.set(F::TunGtpuFlags, flags.into());
        key.set(F::TunGtpuMsgtype, message.into());
    }
    if let Some(header) = d.erspan {
        erspan::to_key(header, key);
    }
    for m in tlv {
        let found = d.options.get(m.class, m.kind, usize::from(m.len));
        if let (Some(v), Some(f)) = (found, metadata_field(m.index)) {
            key.set(f, v);
            if let Some((word, bit)) = f.presence()
                && let Some(w) = key.0.get_mut(word)
            {
                *w |= bit;
            }
        }
    }
}

/// A truncated or wrong tunnel header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed tunnel header")]
pub struct Malformed;

/// The encapsulation of a packet of a tunnel over UDP; none of other packets.
pub(crate) fn tunnel_kind(p: &[u8], h: &Headers, own: &Own) -> Option<TunnelKind> {
    if h.proto != ipproto::UDP || h.fragment {
        return None;
    }
    own.tunnel(h.ports(p)?.1)
}
