//! DHCPv4 (RFC 2131): replies from the options that a flow carries.

use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Match};
use packet::{Headers, build, ipproto, mac_at};
use std::net::{IpAddr, Ipv4Addr};

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;

const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The fixed part of a message, before the cookie (RFC 2131 section 2).
const FIXED: usize = 236;

const MESSAGE_TYPE: u8 = 53;
const REQUESTED_IP: u8 = 50;
const SERVER_ID: u8 = 54;
const LEASE_TIME: u8 = 51;
const RENEWAL: u8 = 58;
const REBINDING: u8 = 59;
const END: u8 = 255;
const PAD: u8 = 0;

/// Code, length, value.
fn options(mut b: &[u8]) -> Vec<(u8, &[u8])> {
    let mut out = Vec::new();
    while let [code, rest @ ..] = b {
        match (*code, rest) {
            (END, _) => break,
            (PAD, _) => b = rest,
            (code, [len, rest @ ..]) if rest.len() >= usize::from(*len) => {
                let (value, after) = rest.split_at(usize::from(*len));
                out.push((code, value));
                b = after;
            }
            _ => break,
        }
    }
    out
}

/// The packet with a reply in its place and the result bit set; none where it is no request that can be answered, so
/// that it goes on as it is. `data`: the result's field and bit, the offered address, the options.
pub(super) fn reply(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (result, rest) = data.split_at_checked(8)?;
    let (offer, configured) = rest.split_at_checked(4)?;
    let offer = Ipv4Addr::from(<[u8; 4]>::try_from(offer).ok()?);
    let h = Headers::parse(&p.packet)?;
    if !h.is_ipv4() || h.proto != ipproto::UDP {
        return None;
    }
    let message = p.packet.get(h.payload..h.l3_end)?;
    let fixed: [u8; FIXED] = message.get(..FIXED)?.try_into().ok()?;
    if fixed[0] != 1 || message.get(FIXED..FIXED + 4)? != COOKIE {
        return None;
    }
    let asked = options(message.get(FIXED + 4..)?);
    let find = |code| asked.iter().find(|(c, _)| *c == code).map(|(_, v)| *v);
    let address = |v: &[u8]| <[u8; 4]>::try_from(v).ok().map(Ipv4Addr::from);
    let ciaddr = Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]);
    let configured = options(configured);
    let server = configured.iter().find(|(c, _)| *c == SERVER_ID).and_then(|(_, v)| address(v))?;
    let kind = match *find(MESSAGE_TYPE)?.first()? {
        DISCOVER => OFFER,
        INFORM => ACK,
        REQUEST => {
            // "Servers not selected by the DHCPREQUEST message use the message as notification that the client has
            // declined that server's offer" (RFC 2131 section 3.1).
            if find(SERVER_ID).and_then(address).is_some_and(|s| s != server) {
                return None;
            }
            let wanted = find(REQUESTED_IP).and_then(address).unwrap_or(ciaddr);
            if wanted == offer { ACK } else { NAK }
        }
        DECLINE | RELEASE => return None,
        _ => return None,
    };
    let body = answer(&fixed, kind, offer, ciaddr, server, &configured);
    // "If the BROADCAST bit is set, then the server broadcasts" (RFC 2131 section 4.1); otherwise the reply goes to the
    // address, which the client does not answer ARP for yet: the flow that sends the reply on has its Ethernet address.
    let broadcast = fixed[10] & 0x80 != 0 || kind == NAK;
    let to = if broadcast {
        Ipv4Addr::BROADCAST
    } else if ciaddr.is_unspecified() {
        offer
    } else {
        ciaddr
    };
    // Ethernet addresses, source address and ports stay the request's; the next stage knows the reply by them and
    // turns them round.
    let (eth_dst, client) = (mac_at(&p.packet, 0)?, mac_at(&p.packet, 6)?);
    let (src, _) = h.addresses(&p.packet)?;
    let mut out = p.clone();
    out.packet = build::udp(eth_dst, client, (Ipv4Addr::from(src as u32).into(), 68), (IpAddr::V4(to), 67), 64, &body)?;
    set_result(&mut out.metadata, result)?;
    Some(out)
}

fn answer(
    request: &[u8; FIXED],
    kind: u8,
    offer: Ipv4Addr,
    ciaddr: Ipv4Addr,
    server: Ipv4Addr,
    configured: &[(u8, &[u8])],
) -> Vec<u8> {
    let mut m = request.to_vec();
    m[0] = 2;
    let yiaddr = match kind {
        NAK => Ipv4Addr::UNSPECIFIED,
        _ if !ciaddr.is_unspecified() => ciaddr,
        _ => offer,
    };
    m[16..20].copy_from_slice(&yiaddr.octets());
    // The next server in bootstrap and the boot file (options 253 and 67 of OVN).
    for (code, value) in configured {
        match (*code, value.len()) {
            (253, 4) => m[20..24].copy_from_slice(value),
            (67, n) if n < 128 => m[108..108 + n].copy_from_slice(value),
            _ => {}
        }
    }
    m.extend(COOKIE);
    m.extend([MESSAGE_TYPE, 1, kind]);
    if kind == NAK {
        m.extend([SERVER_ID, 4]);
        m.extend(server.octets());
    } else {
        for (code, value) in configured.iter().filter(|(c, _)| !matches!(c, 67 | 253)) {
            m.extend([*code, value.len() as u8]);
            m.extend(*value);
            // "T1 defaults to (0.5 * duration_of_lease). T2 defaults to (0.875 * ...)" (RFC 2131 section 4.4.5).
            if let (LEASE_TIME, Ok(lease)) = (*code, <[u8; 4]>::try_from(*value)) {
                let lease = u64::from(u32::from_be_bytes(lease));
                for (code, time) in [(RENEWAL, lease / 2), (REBINDING, lease * 7 / 8)] {
                    if !configured.iter().any(|(c, _)| *c == code) {
                        m.extend([code, 4]);
                        m.extend((time as u32).to_be_bytes());
                    }
                }
            }
        }
    }
    m.push(END);
    // BOOTP's least length, which old clients insist on (RFC 1542 section 2.1).
    m.resize(m.len().max(300), PAD);
    m
}

/// Sets the bit that says that the packet was answered. `place`: the field's OpenFlow header and the bit.
pub(super) fn set_result(metadata: &mut Match, place: &[u8]) -> Option<()> {
    let (header, bit) = place.split_at_checked(4)?;
    let field = openflow_rs::wire::oxm::field_of(u32::from_be_bytes(header.try_into().ok()?))?;
    let bit = u32::from_be_bytes(bit.try_into().ok()?);
    if bit >= FieldId::bits(field) {
        return None;
    }
    metadata.set_masked(field, 1 << bit, 1 << bit);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u8, extra: &[u8]) -> PacketIn {
        let mut m = vec![0u8; FIXED];
        (m[0], m[1], m[2]) = (1, 1, 6);
        m[4..8].copy_from_slice(&[1, 2, 3, 4]);
        m.extend(COOKIE);
        m.extend([MESSAGE_TYPE, 1, kind]);
        m.extend(extra);
        m.push(END);
        let any = |a: [u8; 4], p| (IpAddr::from(a), p);
        let packet = build::udp([0xff; 6], [2, 0, 0, 0, 0, 9], any([0; 4], 68), any([255; 4], 67), 64, &m).unwrap();
        PacketIn { packet, ..PacketIn::default() }
    }

    fn data() -> Vec<u8> {
        let mut d = crate::of::field_header(FieldId::XxReg0).to_vec();
        d.extend(99u32.to_be_bytes());
        d.extend([10, 0, 0, 4]);
        d.extend([51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 1, 54, 4, 10, 0, 0, 1]);
        d
    }

    fn kind_of(p: &PacketIn) -> (u8, Ipv4Addr) {
        let h = Headers::parse(&p.packet).unwrap();
        assert!(packet::checksum::l4_ok(&p.packet, &h));
        let m = &p.packet[h.payload..h.l3_end];
        let kind = options(&m[FIXED + 4..]).iter().find(|(c, _)| *c == MESSAGE_TYPE).unwrap().1[0];
        (kind, Ipv4Addr::new(m[16], m[17], m[18], m[19]))
    }

    #[test]
    fn offers_acknowledges_and_refuses() {
        let o = reply(&request(DISCOVER, &[]), &data()).unwrap();
        assert_eq!(kind_of(&o), (OFFER, Ipv4Addr::new(10, 0, 0, 4)));
        assert_eq!(o.metadata.get(FieldId::XxReg0).0, 1 << 99);
        let o = reply(&request(REQUEST, &[50, 4, 10, 0, 0, 4]), &data()).unwrap();
        assert_eq!(kind_of(&o).0, ACK);
        let o = reply(&request(REQUEST, &[50, 4, 10, 0, 0, 5]), &data()).unwrap();
        assert_eq!(kind_of(&o), (NAK, Ipv4Addr::UNSPECIFIED));
        assert!(reply(&request(REQUEST, &[54, 4, 10, 0, 0, 9]), &data()).is_none(), "another server was chosen");
        assert!(reply(&request(RELEASE, &[]), &data()).is_none());
        for cut in 0..data().len() {
            let _ = reply(&request(DISCOVER, &[53]), &data()[..cut]);
        }
    }
}
