//! DHCPv4 (RFC 2131): replies from the options that a flow carries.

use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Match};
use packet::build::with_payload;
use packet::checksum;
use packet::dhcp::kind::*;
use packet::dhcp::option::*;
use packet::dhcp::{BOOTREPLY, BOOTREQUEST, COOKIE, FIXED, Message, options, place};
use std::net::Ipv4Addr;

/// OVN's own: the next server, and the boot file for clients that are not iPXE.
const NEXT_SERVER: u8 = 253;
const BOOT_FILE_ALT: u8 = 254;

/// The packet with a reply in its place and the result bit set; none where it is no request that can be answered, so
/// that it goes on as it is. `data`: the result's field and bit, the offered address, the options.
pub(super) fn reply(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (result, rest) = data.split_at_checked(8)?;
    let (offer, configured) = rest.split_at_checked(4)?;
    let offer = Ipv4Addr::from(<[u8; 4]>::try_from(offer).ok()?);
    let m = Message::parse(&p.packet).filter(|m| m.operation() == BOOTREQUEST)?;
    let configured = options(configured);
    let server = configured.iter().find(|(c, _)| *c == SERVER_ID).and_then(|(_, v)| packet::dhcp::address(v))?;
    let wanted = || m.option_address(REQUESTED_IP).unwrap_or_else(|| m.address(place::CIADDR));
    let kind = match m.kind()? {
        DISCOVER => OFFER,
        INFORM => ACK,
        REQUEST => {
            // "Servers not selected by the DHCPREQUEST message use the message as notification that the client has
            // declined that server's offer" (RFC 2131 section 3.1).
            if m.option_address(SERVER_ID).is_some_and(|s| s != server) {
                return None;
            }
            if wanted() == offer { ACK } else { NAK }
        }
        DECLINE => {
            if wanted() == offer {
                tracing::info!(target: "pinctrl", "DHCPDECLINE from {}, {offer} duplicated", client(&p.packet));
            }
            return None;
        }
        RELEASE => {
            tracing::info!(target: "pinctrl", "DHCPRELEASE {} {}", client(&p.packet), m.address(place::CIADDR));
            return None;
        }
        _ => return None,
    };
    let inform = m.kind() == Some(INFORM);
    let said = match kind {
        OFFER => "OFFER",
        ACK => "ACK",
        _ => "NAK",
    };
    tracing::info!(target: "pinctrl", "DHCP{said} {} {offer}", client(&p.packet));
    let body = answer(&m.fixed, kind, offer, inform, &chosen(&configured, m.option(IPXE).is_some()));
    // "If the BROADCAST bit is set, then the server broadcasts" (RFC 2131 section 4.1); otherwise the reply goes to the
    // address, which the client does not answer ARP for yet: the flow that sends the reply on has its Ethernet address.
    let to = if m.broadcast() { Ipv4Addr::BROADCAST } else { offer };
    // Headers stay the request's but for that; the next stage knows the reply by them and turns them round.
    let mut out = p.clone();
    out.packet = with_payload(&p.packet, &m.headers, &body)?;
    out.packet.get_mut(m.headers.l3 + 16..m.headers.l3 + 20)?.copy_from_slice(&to.octets());
    checksum::set_ipv4(&mut out.packet, m.headers.l3);
    set_result(&mut out.metadata, result)?;
    Some(out)
}

/// Who asks, by its Ethernet address.
fn client(p: &[u8]) -> String {
    packet::mac_at(p, 6).unwrap_or_default().map(|b| format!("{b:02x}")).join(":")
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
    m[0] = BOOTREPLY;
    let yiaddr = if kind == NAK || inform { Ipv4Addr::UNSPECIFIED } else { offer };
    m[place::YIADDR..place::YIADDR + 4].copy_from_slice(&yiaddr.octets());
    // The next server in bootstrap.
    let next = configured.iter().find(|(c, v)| *c == NEXT_SERVER && v.len() == 4).map(|(_, v)| *v);
    match next {
        _ if kind == NAK => m[place::SIADDR..place::SIADDR + 4].fill(0),
        Some(address) if !inform => m[place::SIADDR..place::SIADDR + 4].copy_from_slice(address),
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
    use packet::{Headers, build};
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
        let packet = build::udp(
            packet::Mac::BROADCAST,
            packet::Mac([2, 0, 0, 0, 0, 9]),
            any([0; 4], 68),
            any([255; 4], 67),
            64,
            &m,
        )
        .unwrap();
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
