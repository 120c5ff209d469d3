//! DHCPv4 (RFC 2131): replies from the options that a flow carries.

use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Match};
use packet::{Headers, checksum, ipproto};
use std::net::Ipv4Addr;

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;

pub(super) const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The fixed part of a message, before the cookie (RFC 2131 section 2).
pub(super) const FIXED: usize = 236;

pub(super) const MESSAGE_TYPE: u8 = 53;
pub(super) const REQUESTED_IP: u8 = 50;
pub(super) const SERVER_ID: u8 = 54;
const LEASE_TIME: u8 = 51;
pub(super) const NETMASK: u8 = 1;
const BOOT_FILE: u8 = 67;
/// By which iPXE says that it is iPXE.
const IPXE: u8 = 175;
/// OVN's own: the next server, and the boot file for clients that are not iPXE.
const NEXT_SERVER: u8 = 253;
const BOOT_FILE_ALT: u8 = 254;
const RENEWAL: u8 = 58;
const REBINDING: u8 = 59;
const END: u8 = 255;
const PAD: u8 = 0;

/// Code, length, value.
pub(super) fn options(mut b: &[u8]) -> Vec<(u8, &[u8])> {
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
        DECLINE => {
            let wanted = find(REQUESTED_IP).and_then(address).unwrap_or(ciaddr);
            if wanted == offer {
                tracing::info!(target: "pinctrl", "DHCPDECLINE from {}, {offer} duplicated", client(&p.packet));
            }
            return None;
        }
        RELEASE => {
            tracing::info!(target: "pinctrl", "DHCPRELEASE {} {ciaddr}", client(&p.packet));
            return None;
        }
        _ => return None,
    };
    let inform = find(MESSAGE_TYPE) == Some(&[INFORM]);
    let said = match kind {
        OFFER => "OFFER",
        ACK => "ACK",
        _ => "NAK",
    };
    tracing::info!(target: "pinctrl", "DHCP{said} {} {offer}", client(&p.packet));
    let body = answer(&fixed, kind, offer, inform, &chosen(&configured, find(IPXE).is_some()));
    // "If the BROADCAST bit is set, then the server broadcasts" (RFC 2131 section 4.1); otherwise the reply goes to the
    // address, which the client does not answer ARP for yet: the flow that sends the reply on has its Ethernet address.
    let to = if fixed[10] & 0x80 != 0 { Ipv4Addr::BROADCAST } else { offer };
    // Headers stay the request's but for that; the next stage knows the reply by them and turns them round.
    let mut out = p.clone();
    out.packet = answer_in_place(&p.packet, &h, &body)?;
    out.packet.get_mut(h.l3 + 16..h.l3 + 20)?.copy_from_slice(&to.octets());
    checksum::set_ipv4(&mut out.packet, h.l3);
    set_result(&mut out.metadata, result)?;
    Some(out)
}

/// Who asks, by its Ethernet address.
fn client(p: &[u8]) -> String {
    packet::mac_at(p, 6).unwrap_or_default().map(|b| format!("{b:02x}")).join(":")
}

/// The request's headers with another payload; IPv4 needs no UDP checksum.
pub(super) fn answer_in_place(request: &[u8], h: &Headers, payload: &[u8]) -> Option<Vec<u8>> {
    let l4 = h.l4?;
    let mut out = request.get(..l4 + 8)?.to_vec();
    out.extend(payload);
    let length = u16::try_from(8 + payload.len()).ok()?;
    out.get_mut(l4 + 4..l4 + 6)?.copy_from_slice(&length.to_be_bytes());
    out.get_mut(l4 + 6..l4 + 8)?.fill(0);
    if h.is_ipv4() {
        let total = u16::try_from(out.len() - h.l3).ok()?;
        out.get_mut(h.l3 + 2..h.l3 + 4)?.copy_from_slice(&total.to_be_bytes());
        checksum::set_ipv4(&mut out, h.l3);
    } else {
        out.get_mut(h.l3 + 4..h.l3 + 6)?.copy_from_slice(&length.to_be_bytes());
        let h = Headers::parse(&out)?;
        checksum::set_l4(&mut out, &h);
    }
    Some(out)
}

/// The options for a client: what iPXE is to load, or what loads it, where both are configured (ovn-nb(5), `bootfile_name_alt`).
fn chosen<'a>(configured: &[(u8, &'a [u8])], ipxe: bool) -> Vec<(u8, &'a [u8])> {
    let has = |code| configured.iter().any(|(c, _)| *c == code);
    let left_out = match (has(BOOT_FILE), has(BOOT_FILE_ALT)) {
        (true, true) if ipxe => Some(BOOT_FILE_ALT),
        (true, true) => Some(BOOT_FILE),
        _ => None,
    };
    let options = configured.iter().filter(|(c, _)| Some(*c) != left_out);
    options.map(|(c, v)| (if *c == BOOT_FILE_ALT { BOOT_FILE } else { *c }, *v)).collect()
}

fn answer(request: &[u8; FIXED], kind: u8, offer: Ipv4Addr, inform: bool, configured: &[(u8, &[u8])]) -> Vec<u8> {
    let mut m = request.to_vec();
    m[0] = 2;
    let yiaddr = if kind == NAK || inform { Ipv4Addr::UNSPECIFIED } else { offer };
    m[16..20].copy_from_slice(&yiaddr.octets());
    // The next server in bootstrap.
    let next = configured.iter().find(|(c, v)| *c == NEXT_SERVER && v.len() == 4).map(|(_, v)| *v);
    match next {
        _ if kind == NAK => m[20..24].fill(0),
        Some(address) if !inform => m[20..24].copy_from_slice(address),
        _ => {}
    }
    m.extend(COOKIE);
    m.extend([MESSAGE_TYPE, 1, kind]);
    // Who has an address asks for nothing that belongs to one (RFC 2131 section 3.4).
    let lease = |code: u8| matches!(code, NETMASK | LEASE_TIME | RENEWAL | REBINDING);
    for (code, value) in configured.iter().filter(|(c, _)| kind != NAK && !(inform && lease(*c))) {
        m.extend([*code, value.len() as u8]);
        m.extend(*value);
    }
    m.extend([PAD; 4]);
    m.push(END);
    m.extend([PAD; 4]);
    m
}

/// Sets the bit that says that the packet was answered. `place`: the field's OpenFlow header and the bit.
pub(super) fn set_result(metadata: &mut Match, place: &[u8]) -> Option<()> {
    write_result(metadata, place, true)
}

/// Writes the bit that says whether the packet was answered.
pub(super) fn write_result(metadata: &mut Match, place: &[u8], answered: bool) -> Option<()> {
    let (header, bit) = place.split_at_checked(4)?;
    let field = openflow_rs::wire::oxm::field_of(u32::from_be_bytes(header.try_into().ok()?))?;
    let bit = u32::from_be_bytes(bit.try_into().ok()?);
    if bit >= FieldId::bits(field) {
        return None;
    }
    metadata.set_masked(field, u128::from(answered) << bit, 1 << bit);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build;
    use std::net::IpAddr;

    #[test]
    fn clients_that_are_not_ipxe_load_the_other_file() {
        let both: [(u8, &[u8]); 3] =
            [(BOOT_FILE, b"https://boot/menu.ipxe"), (BOOT_FILE_ALT, b"undionly.kpxe"), (3, b"abcd")];
        assert_eq!(chosen(&both, true), [(BOOT_FILE, &b"https://boot/menu.ipxe"[..]), (3, b"abcd")]);
        assert_eq!(chosen(&both, false), [(BOOT_FILE, &b"undionly.kpxe"[..]), (3, b"abcd")]);
        assert_eq!(chosen(&both[1..], true)[0], (BOOT_FILE, &b"undionly.kpxe"[..]), "there is no other");
        let long = [b'x'; 200];
        let request = request(DISCOVER, &[]);
        let mut d = data();
        d.extend([BOOT_FILE, 200]);
        d.extend(long);
        let o = reply(&request, &d).unwrap();
        assert!(o.packet.windows(200).any(|w| w == long), "a long file name stays whole");
    }

    #[test]
    fn who_only_asks_for_options_gets_no_address() {
        let o = reply(&request(INFORM, &[]), &data()).unwrap();
        let (kind, address) = kind_of(&o);
        assert_eq!((kind, address), (ACK, Ipv4Addr::UNSPECIFIED));
        let h = Headers::parse(&o.packet).unwrap();
        let list = options(&o.packet[h.payload + FIXED + 4..]);
        assert!(list.iter().all(|(c, _)| !matches!(*c, LEASE_TIME | NETMASK)), "{list:?}");
    }

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
