//! Extracts the key of a packet, and writes a changed key back.

use crate::buf::PacketBuf;
use openflow_rs::action::{ETH_NSH, is_mpls};
use openflow_rs::{FieldId as F, FlowKey};
use packet::nsh::Nsh;
use packet::{Headers, be16, be32, be128, checksum, ethertype, ipproto, mac_at, nd_fields};

fn mac_num(b: &[u8], at: usize) -> u128 {
    mac_at(b, at).map_or(0, |m| m.iter().fold(0, |v, x| v << 8 | u128::from(*x)))
}

/// Fields that the packet itself determines; everything else in a key is pipeline metadata.
pub const PACKET_WORDS: std::ops::Range<usize> = 25..39;

/// The part of these that holds the Ethernet header.
const LINK_WORDS: std::ops::Range<usize> = 25..28;

/// Default number of VLAN tags that are parsed.
pub const TAGS: usize = 2;

/// Fills the packet's part of a key; at most `tags` VLAN tags are parsed. Frames below 14 bytes give zero fields.
pub fn extract(p: &[u8], tags: usize, key: &mut FlowKey) -> Headers {
    key.0[PACKET_WORDS].fill(0);
    let Some(h) = Headers::parse_tags(p, tags) else { return Headers::default() };
    key.set(F::EthDst, mac_num(p, 0));
    key.set(F::EthSrc, mac_num(p, 6));
    key.set(F::EthType, u128::from(h.ethertype));
    if let Some(v) = h.vlans[0] {
        key.set(F::VlanTci, u128::from(v.tci | 0x1000));
        key.set(F::VlanTpid, u128::from(v.tpid));
    }
    if let Some(v) = h.vlans[1] {
        key.set(F::Vlan1Tci, u128::from(v.tci | 0x1000));
        key.set(F::Vlan1Tpid, u128::from(v.tpid));
    }
    match h.ethertype {
        ethertype::IPV4 | ethertype::IPV6 if h.ip_ok => ip(p, &h, key),
        ethertype::IPV6 => odd_ipv6(p, &h, key),
        ethertype::ARP | ethertype::RARP => arp(p, &h, key),
        kind if is_mpls(kind) => labels(p, &h, key),
        ETH_NSH => nsh(p, &h, key),
        _ => {}
    }
    h
}

/// The network service header, if it is sound (RFC 8300 section 2).
fn nsh(p: &[u8], h: &Headers, key: &mut FlowKey) {
    let Some(n) = Nsh::parse(p.get(h.l3..).unwrap_or_default()) else { return };
    let fields = [
        (F::NshFlags, n.flags.into()),
        (F::NshTtl, n.ttl.into()),
        (F::NshMdtype, n.md_type.into()),
        (F::NshNp, n.next.into()),
        (F::NshSpi, n.path),
        (F::NshSi, n.index.into()),
    ];
    fields.into_iter().for_each(|(f, v): (F, u32)| key.set(f, v.into()));
    CONTEXT.into_iter().zip(n.context).for_each(|(f, v)| key.set(f, v.into()));
}

/// The words of the context of NSH's metadata of type 1.
pub(crate) const CONTEXT: [F; 4] = [F::NshC1, F::NshC2, F::NshC3, F::NshC4];

/// Writes the fields of a network service header.
fn commit_nsh(p: &mut [u8], l3: usize, new: &FlowKey) {
    let Some(mut n) = Nsh::parse(p.get(l3..).unwrap_or_default()) else { return };
    (n.flags, n.ttl) = (new.get(F::NshFlags) as u8, new.get(F::NshTtl) as u8);
    (n.path, n.index) = (new.get(F::NshSpi) as u32, new.get(F::NshSi) as u8);
    n.context = CONTEXT.map(|f| new.get(f) as u32);
    n.write(p.get_mut(l3..).unwrap_or_default());
}

/// Puts an Ethernet header without addresses before a packet that has none; false if it lacks headroom.
pub(crate) fn put_stand_in<P: PacketBuf>(p: &mut P, ethertype: u16) -> bool {
    if !p.grow_front(STAND_IN) {
        return false;
    }
    write_front(p, &stand_in(ethertype));
    true
}

/// Bytes of an Ethernet header.
pub(crate) const STAND_IN: usize = 14;

/// An Ethernet header without addresses.
pub(crate) fn stand_in(ethertype: u16) -> [u8; STAND_IN] {
    let mut h = [0; STAND_IN];
    let [.., a, b] = &mut h;
    [*a, *b] = ethertype.to_be_bytes();
    h
}

/// Writes over the first bytes of a packet.
pub(crate) fn write_front<P: PacketBuf>(p: &mut P, bytes: &[u8]) {
    if let Some(front) = p.data_mut().get_mut(..bytes.len()) {
        front.copy_from_slice(bytes);
    }
}

/// Most label stack entries that are parsed, as in Open vSwitch.
pub(crate) const LABELS: usize = 3;
/// Their fields.
pub(crate) const LABEL_FIELDS: [F; LABELS] = [F::MplsLse, F::MplsLse1, F::MplsLse2];
/// The last entry of a stack is marked so (RFC 3032 section 2.1).
pub(crate) const BOTTOM_OF_STACK: u128 = 0x100;

/// Label stack entries, up to the bottom of the stack; 0 behind it.
pub(crate) fn label_stack(p: &[u8], h: &Headers) -> [u32; LABELS] {
    let mut stack = [0; LABELS];
    for (i, to) in stack.iter_mut().enumerate() {
        let Some(entry) = be32(p, h.l3 + 4 * i) else { break };
        *to = entry;
        if u128::from(entry) & BOTTOM_OF_STACK != 0 {
            break;
        }
    }
    stack
}

fn labels(p: &[u8], h: &Headers, key: &mut FlowKey) {
    LABEL_FIELDS.into_iter().zip(label_stack(p, h)).for_each(|(f, entry)| key.set(f, entry.into()));
}

/// How many label stack entries a key has; as many as are parsed, if their last one is not the bottom of the stack.
pub(crate) fn label_count(key: &FlowKey) -> usize {
    if !is_mpls(key.get(F::EthType) as u16) {
        return 0;
    }
    let bottom = LABEL_FIELDS.into_iter().position(|f| key.get(f) & BOTTOM_OF_STACK != 0);
    bottom.map_or(LABELS, |i| i + 1)
}

/// Puts a label stack entry before what is behind the tags, and its EtherType; false if the packet lacks headroom.
pub(crate) fn push_label<P: PacketBuf>(pkt: &mut P, l3: usize, kind: u16, entry: u32) -> bool {
    if pkt.data().len() < l3 || !pkt.grow_front(4) {
        return false;
    }
    let p = pkt.data_mut();
    p.copy_within(4..4 + l3, 0);
    store(p, l3, &entry.to_be_bytes());
    store(p, l3 - 2, &kind.to_be_bytes());
    true
}

/// Takes the outermost label stack entry away; `kind` is the EtherType of what is behind it.
pub(crate) fn pop_label<P: PacketBuf>(pkt: &mut P, l3: usize, kind: u16) {
    let p = pkt.data_mut();
    if p.len() >= l3 + 4 {
        p.copy_within(0..l3, 4);
        store(p, l3 + 2, &kind.to_be_bytes());
        pkt.shrink_front(4);
    }
}

/// The addresses of an IPv6 packet with malformed extension headers, of which nothing else is extracted, as in Open vSwitch.
pub(crate) fn odd_addresses(p: &[u8], h: &Headers) -> Option<(u128, u128)> {
    let fits = be16(p, h.l3 + 4).is_some_and(|n| h.l3 + 40 + usize::from(n) <= p.len());
    if h.ethertype != ethertype::IPV6 || !fits {
        return None;
    }
    Some((be128(p, h.l3 + 8)?, be128(p, h.l3 + 24)?))
}

fn odd_ipv6(p: &[u8], h: &Headers, key: &mut FlowKey) {
    if let Some((src, dst)) = odd_addresses(p, h) {
        key.set(F::Ipv6Src, src);
        key.set(F::Ipv6Dst, dst);
    }
}

fn arp(p: &[u8], h: &Headers, key: &mut FlowKey) {
    let at = h.l3;
    let head = (be16(p, at), be16(p, at + 2), p.get(at + 4), p.get(at + 5));
    if head != (Some(1), Some(0x800), Some(&6), Some(&4)) || p.len() < at + 28 {
        return;
    }
    key.set(F::ArpOp, u128::from(be16(p, at + 6).filter(|v| *v < 256).unwrap_or(0)));
    key.set(F::ArpSha, mac_num(p, at + 8));
    key.set(F::ArpSpa, u128::from(be32(p, at + 14).unwrap_or(0)));
    key.set(F::ArpTha, mac_num(p, at + 18));
    key.set(F::ArpTpa, u128::from(be32(p, at + 24).unwrap_or(0)));
}

fn ip(p: &[u8], h: &Headers, key: &mut FlowKey) {
    let (src, dst) = h.addresses(p).unwrap_or_default();
    let b = |o: usize| u128::from(p.get(h.l3 + o).copied().unwrap_or(0));
    if h.is_ipv4() {
        key.set(F::IpSrc, src);
        key.set(F::IpDst, dst);
        key.set(F::NwTos, b(1));
        key.set(F::IpTtl, b(8));
    } else {
        key.set(F::Ipv6Src, src);
        key.set(F::Ipv6Dst, dst);
        let first = be32(p, h.l3).unwrap_or(0);
        key.set(F::NwTos, u128::from(first >> 20 & 0xff));
        key.set(F::Ipv6Label, u128::from(first & 0xf_ffff));
        key.set(F::IpTtl, b(7));
    }
    // What follows the fragment header of a later fragment is not parsed, as in Open vSwitch.
    let hidden = h.later_fragment && h.is_ipv6();
    key.set(F::IpProto, u128::from(if hidden { ipproto::FRAGMENT } else { h.proto }));
    key.set(F::IpFrag, u128::from(u8::from(h.fragment) | u8::from(h.later_fragment) << 1));
    let Some(l4) = h.l4 else { return };
    match h.proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
            let (s, d) = h.ports(p).unwrap_or_default();
            key.set(F::TcpSrc, u128::from(s));
            key.set(F::TcpDst, u128::from(d));
            if h.proto == ipproto::TCP {
                key.set(F::TcpFlags, u128::from(be16(p, l4 + 12).unwrap_or(0) & 0xfff));
            }
        }
        ipproto::ICMP if h.is_ipv4() => icmp(p, l4, key),
        ipproto::ICMPV6 if h.is_ipv6() => {
            icmp(p, l4, key);
            if let Some((nd, _)) = nd_fields(p, h) {
                key.set(F::NdTarget, nd.target);
                key.set(F::NdSll, nd.sll.map_or(0, |s| s.0.into()));
                key.set(F::NdTll, nd.tll.map_or(0, |s| s.0.into()));
            }
        }
        _ => {}
    }
}

fn icmp(p: &[u8], l4: usize, key: &mut FlowKey) {
    key.set(F::IcmpType, u128::from(p.get(l4).copied().unwrap_or(0)));
    key.set(F::IcmpCode, u128::from(p.get(l4 + 1).copied().unwrap_or(0)));
}

/// Writes the low `n` bytes of a number, and keeps the checksums over them right. The bytes start at an even distance
/// from what the checksums begin with, and their number is even where there are any.
pub(crate) fn put(p: &mut [u8], at: usize, v: u128, n: usize, sums: &[usize]) {
    let (b, mut old) = (v.to_be_bytes(), [0; 16]);
    let (Some(new), Some(old)) = (b.get(16 - n..), old.get_mut(..n)) else { return };
    let Some(field) = p.get_mut(at..at + n) else { return };
    if field == new {
        return;
    }
    old.copy_from_slice(field);
    field.copy_from_slice(new);
    for s in sums {
        if let Some(c) = be16(p, *s)
            && let Some(f) = p.get_mut(*s..*s + 2)
        {
            f.copy_from_slice(&checksum::update(c, old, new).to_be_bytes());
        }
    }
}

/// Applies the differences between `old`, which the packet has, and `new` to the packet. False if it lacks headroom.
pub fn commit<P: PacketBuf>(pkt: &mut P, h: &mut Headers, old: &mut FlowKey, new: &FlowKey) -> bool {
    if old.0[PACKET_WORDS] == new.0[PACKET_WORDS] {
        return true;
    }
    let diff = |id: F| old.get(id) != new.get(id);
    if diff(F::VlanTci) || diff(F::VlanTpid) || diff(F::Vlan1Tci) || diff(F::Vlan1Tpid) {
        let (mut want, mut n) = ([(0, 0); TAGS], 0);
        for (to, tag) in want.iter_mut().zip(tags(new)) {
            *to = tag;
            n += 1;
        }
        if !set_tags(pkt, tags(old).count(), want.get(..n).unwrap_or_default()) {
            return false;
        }
        // What is behind the tags that the key knows is what it was.
        if let Some(fresh) = Headers::parse_tags(pkt.data(), n) {
            *h = fresh;
        }
    }
    // As in Open vSwitch, what is written to packets without an IP protocol or ARP operation is matched later, but not
    // sent; nor what is written to RARP.
    let mpls = is_mpls(h.ethertype);
    let written = mpls || h.ethertype == ETH_NSH || new.get(F::IpProto) != 0 && h.ethertype != ethertype::RARP;
    let p = pkt.data_mut();
    put(p, 0, new.get(F::EthDst), 6, &[]);
    put(p, 6, new.get(F::EthSrc), 6, &[]);
    match h.ethertype {
        ethertype::ARP if written && p.len() >= h.l3 + 28 => {
            for (id, at, n) in
                [(F::ArpOp, 6, 2), (F::ArpSha, 8, 6), (F::ArpSpa, 14, 4), (F::ArpTha, 18, 6), (F::ArpTpa, 24, 4)]
            {
                if diff(id) {
                    put(p, h.l3 + at, new.get(id), n, &[]);
                }
            }
        }
        ethertype::IPV4 | ethertype::IPV6 if written && h.ip_ok => commit_ip(p, h, old, new),
        ETH_NSH => commit_nsh(p, h.l3, new),
        _ if mpls => {
            for (i, f) in LABEL_FIELDS.into_iter().enumerate().take(label_count(old)) {
                put(p, h.l3 + 4 * i, new.get(f), 4, &[]);
            }
        }
        _ => {}
    }
    let done = if written { PACKET_WORDS } else { LINK_WORDS };
    old.0[done.clone()].copy_from_slice(&new.0[done]);
    true
}

fn commit_ip(p: &mut [u8], h: &Headers, old: &FlowKey, new: &FlowKey) {
    let l3 = h.l3;
    let diff = |id: F| old.get(id) != new.get(id);
    // SCTP's checksum is a CRC over its own packet and does not cover addresses.
    let transport: Option<usize> = match (h.l4, h.proto) {
        (Some(l4), ipproto::TCP) => Some(l4 + 16),
        // No checksum stays none, also over IPv6, where some tunnels have none (RFC 6935).
        (Some(l4), ipproto::UDP) if be16(p, l4 + 6) != Some(0) => Some(l4 + 6),
        (Some(l4), ipproto::ICMPV6) if h.is_ipv6() => Some(l4 + 2),
        _ => None,
    };
    let pseudo = transport.as_slice();
    if h.is_ipv4() {
        let header = l3 + 10;
        let sums = [header, transport.unwrap_or_default()];
        let both = sums.get(..1 + pseudo.len()).unwrap_or_default();
        put(p, l3 + 12, new.get(F::IpSrc), 4, both);
        put(p, l3 + 16, new.get(F::IpDst), 4, both);
        // A single byte is summed with its neighbour.
        let b = |p: &[u8], at: usize| u128::from(p.get(at).copied().unwrap_or(0));
        let tos = b(p, l3) << 8 | new.get(F::NwTos);
        put(p, l3, tos, 2, &[header]);
        let ttl = new.get(F::IpTtl) << 8 | b(p, l3 + 9);
        put(p, l3 + 8, ttl, 2, &[header]);
    } else {
        put(p, l3 + 8, new.get(F::Ipv6Src), 16, pseudo);
        put(p, l3 + 24, new.get(F::Ipv6Dst), 16, pseudo);
        if diff(F::NwTos) || diff(F::Ipv6Label) {
            let first = 6u128 << 28 | new.get(F::NwTos) << 20 | new.get(F::Ipv6Label);
            put(p, l3, first, 4, &[]);
        }
        put(p, l3 + 7, new.get(F::IpTtl), 1, &[]);
    }
    let Some(l4) = h.l4 else { return };
    match h.proto {
        ipproto::TCP | ipproto::UDP => {
            put(p, l4, new.get(F::TcpSrc), 2, pseudo);
            put(p, l4 + 2, new.get(F::TcpDst), 2, pseudo);
            if let (ipproto::UDP, Some(at)) = (h.proto, transport)
                && be16(p, at) == Some(0)
            {
                put(p, at, 0xffff, 2, &[]);
            }
        }
        ipproto::SCTP if diff(F::SctpSrc) || diff(F::SctpDst) => {
            let end = if h.fragment { 0 } else { h.l3_end.min(p.len()) };
            let ports = (new.get(F::SctpSrc) << 16 | new.get(F::SctpDst)) as u32;
            let differ = be32(p, l4).map_or(0, |has| has ^ ports);
            checksum::change_sctp(p, l4, end, differ.to_be_bytes());
            put(p, l4, new.get(F::SctpSrc), 2, &[]);
            put(p, l4 + 2, new.get(F::SctpDst), 2, &[]);
        }
        ipproto::ICMP | ipproto::ICMPV6 if h.is_ipv4() == (h.proto == ipproto::ICMP) => {
            let discovers = h.proto == ipproto::ICMPV6 && (diff(F::NdTarget) || diff(F::NdSll) || diff(F::NdTll));
            // While it is what its type says, and once it is so again.
            if discovers {
                nd(p, h, new, l4);
            }
            put(p, l4, new.get(F::IcmpType) << 8 | new.get(F::IcmpCode) & 0xff, 2, &[l4 + 2]);
            if discovers && diff(F::IcmpType) {
                nd(p, h, new, l4);
            }
        }
        _ => {}
    }
}

fn nd(p: &mut [u8], h: &Headers, new: &FlowKey, l4: usize) {
    let Some((found, _)) = nd_fields(p, h) else { return };
    put(p, l4 + 8, new.get(F::NdTarget), 16, &[l4 + 2]);
    for (opt, id) in [(found.sll, F::NdSll), (found.tll, F::NdTll)] {
        if let Some((_, at)) = opt {
            put(p, at, new.get(id), 6, &[l4 + 2]);
        }
    }
}

/// The tags that a key asks for: (TPID, TCI), the outer one first.
pub(crate) fn tags(key: &FlowKey) -> impl Iterator<Item = (u16, u16)> {
    [(F::VlanTci, F::VlanTpid), (F::Vlan1Tci, F::Vlan1Tpid)]
        .map(|(t, p)| (key.get(p) as u16, key.get(t) as u16))
        .into_iter()
        .filter(|(_, tci)| tci & 0x1000 != 0)
        .map(|(tpid, tci)| (if tpid == 0 { ethertype::VLAN } else { tpid }, tci & !0x1000))
}

/// Replaces the packet's `have` tags by `want`; false if it lacks headroom. Inner tags that stay are left as they are,
/// with a drop eligible indicator (IEEE 802.1Q section 9.6), which keys do not have.
pub(crate) fn set_tags<P: PacketBuf>(pkt: &mut P, have: usize, want: &[(u16, u16)]) -> bool {
    let Some(macs) = pkt.data().first_chunk::<12>().copied() else { return true };
    if want.len() > have {
        if !pkt.grow_front((want.len() - have) * 4) {
            return false;
        }
    } else {
        pkt.shrink_front((have - want.len()) * 4);
    }
    let p = pkt.data_mut();
    if let Some(b) = p.first_chunk_mut() {
        *b = macs;
    }
    let fresh = want.len().saturating_sub(have);
    let mut stays = true;
    for (i, (tpid, tci)) in want.iter().enumerate().rev() {
        if let Some(b) = p.get_mut(12 + 4 * i..).and_then(|b| b.first_chunk_mut()) {
            let ([a, b0], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
            stays &= i >= fresh && [b[0], b[1], b[2] & !DEI, b[3]] == [a, b0, c, d];
            if !stays {
                *b = [a, b0, c, d];
            }
        }
    }
    true
}

/// The drop eligible indicator, in the third byte of a tag.
const DEI: u8 = 0x10;

/// The 128-bit address at an offset, for conntrack's inner packets.
pub(crate) fn address(p: &[u8], at: usize, v6: bool) -> Option<u128> {
    if v6 { be128(p, at) } else { be32(p, at).map(u128::from) }
}

pub(crate) fn store(p: &mut [u8], at: usize, b: &[u8]) {
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

/// Whether the lengths in a TCP or UDP header fit into the packet.
pub(crate) fn length_holds(p: &[u8], h: &Headers) -> bool {
    let Some(l4) = h.l4 else { return true };
    let room = h.l3_end.saturating_sub(l4);
    match h.proto {
        ipproto::TCP => p.get(l4 + 12).is_some_and(|b| (20..=room).contains(&(usize::from(b >> 4) * 4))),
        ipproto::UDP => be16(p, l4 + 4).is_some_and(|n| (8..=room).contains(&usize::from(n))),
        _ => true,
    }
}

/// Fields of a packet's tuple: source, destination, both ports.
pub(crate) fn tuple_fields(v6: bool) -> [F; 4] {
    let [src, dst] = if v6 { [F::Ipv6Src, F::Ipv6Dst] } else { [F::IpSrc, F::IpDst] };
    [src, dst, F::TcpSrc, F::TcpDst]
}

/// Whether the chunks of an SCTP packet fill it (RFC 9260 section 3.2): each has a length of four octets or more, and is
/// padded to a multiple of four.
pub(crate) fn sctp_chunks_hold(transport: &[u8]) -> bool {
    let mut at = 12;
    while at < transport.len() {
        match be16(transport, at + 2) {
            Some(n @ 4..) => at += usize::from(n).next_multiple_of(4),
            _ => return false,
        }
    }
    at == transport.len()
}

/// An Ethernet address as text.
pub(crate) fn mac_text(v: u128) -> String {
    packet::Mac::from_u64(v as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::set_tags;

    fn frame(tags: &[(u16, u16)]) -> Vec<u8> {
        let mut f = vec![2; 12];
        tags.iter().for_each(|(tpid, tci)| f.extend([tpid.to_be_bytes(), tci.to_be_bytes()].concat()));
        f.extend([8, 0, 9, 9]);
        f
    }

    #[test]
    fn inner_tags_that_stay_keep_their_drop_eligible_indicator() {
        let (outer, inner) = ((0x88a8, 0x0064), (0x8100, 0xeefe));
        // The tags of a packet, those that it gets, and those that it then has.
        let cases: [(&[_], &[_], &[_]); 5] = [
            (&[(0x8100, 0xfefe)], &[outer, inner], &[outer, (0x8100, 0xfefe)]),
            (&[outer, (0x8100, 0xfefe)], &[inner], &[(0x8100, 0xfefe)]),
            (&[(0x8100, 0xfefe)], &[(0x8100, 0xe001)], &[(0x8100, 0xe001)]),
            (&[(0x88a8, 0x1064), (0x8100, 0xfefe)], &[outer, (0x8100, 1)], &[outer, (0x8100, 1)]),
            (&[(0x88a8, 0x1064), (0x8100, 0xfefe)], &[(0x88a8, 7), inner], &[(0x88a8, 7), (0x8100, 0xfefe)]),
        ];
        for (had, wanted, has) in cases {
            let mut f = frame(had);
            assert!(set_tags(&mut f, had.len(), wanted));
            assert_eq!(f, frame(has), "{had:x?} to {wanted:x?}");
        }
    }
}
