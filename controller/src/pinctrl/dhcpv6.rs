//! DHCPv6 (RFC 8415): replies from the options that a flow carries.

use super::dhcp::set_result;
use openflow_rs::message::PacketIn;
use packet::build::with_payload;
use packet::dhcpv6::kind::*;
use packet::dhcpv6::option::*;
use packet::dhcpv6::{SUCCESS, association, duid_ll, options, put};
use packet::{Headers, ipproto};

/// OVN's own: the boot file for clients that are not iPXE.
const BOOT_FILE_ALT: u16 = 254;
/// Flags of the FQDN option (RFC 4704 section 4.1).
const SERVER_UPDATES: u8 = 1;
const OVERRIDDEN: u8 = 2;
const NO_UPDATE: u8 = 4;

/// The packet with a reply in its place and the result bit set; none where it is no request that can be answered. `data`: the
/// result's field and bit, the options. Addresses and ports stay the request's; the next stage turns them round.
pub(super) fn reply(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (result, configured) = data.split_at_checked(8)?;
    let configured = options(configured);
    let h = Headers::parse(&p.packet)?;
    if h.is_ipv4() || h.proto != ipproto::UDP {
        return None;
    }
    let message = p.packet.get(h.payload..h.l3_end)?;
    let (head, asked) = message.split_at_checked(4)?;
    let asked = options(asked);
    let find = |code| asked.iter().find(|(c, _)| *c == code).map(|(_, v)| *v);
    let server = duid_ll(configured.iter().find(|(c, _)| *c == SERVER_ID)?.1);
    // What names a server is for that one (RFC 8415 section 16).
    if find(SERVER_ID).is_some_and(|s| s != server) {
        return None;
    }
    let kind = match head[0] {
        SOLICIT => ADVERTISE,
        REQUEST | CONFIRM | RENEW | REBIND | RELEASE | DECLINE | INFORMATION_REQUEST => REPLY,
        _ => return None,
    };
    let client = find(CLIENT_ID);
    let association_id = find(IA_NA).and_then(|v| v.get(..4));
    if head[0] != INFORMATION_REQUEST {
        let lacks = [("Client id", client), ("IA NA", association_id)].into_iter().find(|(_, o)| o.is_none());
        if let Some((option, _)) = lacks {
            tracing::warn!(target: "pinctrl", "DHCPv6 option - {option} not present in the DHCPv6 packet");
            return None;
        }
    }
    let ipxe = find(USER_CLASS).is_some_and(|v| v.get(2..6) == Some(b"iPXE"));
    let mut m = vec![kind, head[1], head[2], head[3]];
    if let Some(id) = client {
        put(&mut m, CLIENT_ID, id);
    }
    if head[0] == RELEASE {
        put(&mut m, SERVER_ID, &server);
        put(&mut m, STATUS, &SUCCESS);
    } else {
        for (code, value) in &configured {
            match *code {
                SERVER_ID => put(&mut m, SERVER_ID, &server),
                IA_ADDR => {
                    if let Some(id) = association_id {
                        put(&mut m, IA_NA, &association(id, value));
                    }
                }
                // RFC 3646 section 4, with a length octet in front and a zero behind the name.
                DOMAIN_SEARCH => put(&mut m, DOMAIN_SEARCH, &[&[value.len() as u8], *value, &[0]].concat()),
                BOOT_FILE if ipxe => put(&mut m, BOOT_FILE, value),
                BOOT_FILE_ALT if !ipxe => put(&mut m, BOOT_FILE, value),
                BOOT_FILE | BOOT_FILE_ALT => {}
                FQDN => {
                    if let Some(flags) = find(FQDN).and_then(<[u8]>::first) {
                        // The server updates no names (N), and says so to who wanted it to (O; RFC 4704 section 4.1).
                        let answer = NO_UPDATE | if flags & SERVER_UPDATES != 0 { OVERRIDDEN } else { 0 };
                        put(&mut m, FQDN, &[&[answer], *value].concat());
                    }
                }
                code => put(&mut m, code, value),
            }
        }
    }
    let mut out = p.clone();
    out.packet = with_payload(&p.packet, &h, &m)?;
    set_result(&mut out.metadata, result)?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::FieldId;
    use packet::build;
    use std::net::Ipv6Addr;

    fn message(kind: u8, extra: &[(u16, &[u8])]) -> PacketIn {
        let mut m = vec![kind, 1, 2, 3];
        for (code, value) in extra {
            put(&mut m, *code, value);
        }
        let (a, b) = ("fe80::1".parse().unwrap(), "ff02::1:2".parse().unwrap());
        let packet =
            build::udp(packet::Mac([0x33; 6]), packet::Mac([2, 0, 0, 0, 0, 9]), (a, 546), (b, 547), 1, &m).unwrap();
        PacketIn { packet, ..PacketIn::default() }
    }

    fn data() -> Vec<u8> {
        let mut d = crate::of::field_header(FieldId::XxReg0).to_vec();
        d.extend(99u32.to_be_bytes());
        put(&mut d, IA_ADDR, &"aef0::4".parse::<Ipv6Addr>().unwrap().octets());
        put(&mut d, SERVER_ID, &[0, 0, 0, 0x10, 0, 1]);
        put(&mut d, 23, &"aef0::1".parse::<Ipv6Addr>().unwrap().octets());
        d
    }

    fn parts(p: &PacketIn) -> (u8, Vec<(u16, Vec<u8>)>) {
        let h = Headers::parse(&p.packet).unwrap();
        assert!(packet::checksum::l4_ok(&p.packet, &h));
        let m = &p.packet[h.payload..h.l3_end];
        (m[0], options(&m[4..]).into_iter().map(|(c, v)| (c, v.to_vec())).collect())
    }

    #[test]
    fn solicitations_and_requests_get_the_ports_address() {
        let id: (u16, &[u8]) = (CLIENT_ID, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 9]);
        let ia: (u16, &[u8]) = (IA_NA, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        for (asked, answered) in [(SOLICIT, ADVERTISE), (REQUEST, REPLY), (RENEW, REPLY)] {
            let o = reply(&message(asked, &[id, ia]), &data()).unwrap();
            let (kind, list) = parts(&o);
            assert_eq!(kind, answered);
            let value = |code| &list.iter().find(|(c, _)| *c == code).unwrap().1;
            assert_eq!(value(CLIENT_ID), id.1);
            assert_eq!(value(SERVER_ID)[4..], [0, 0, 0, 0x10, 0, 1]);
            assert_eq!(value(IA_NA)[..4], [0, 0, 0, 7]);
            assert_eq!(value(IA_NA)[16..32], "aef0::4".parse::<Ipv6Addr>().unwrap().octets());
            assert_eq!(o.metadata.get(FieldId::XxReg0).0, 1 << 99);
        }
        let (_, list) = parts(&reply(&message(INFORMATION_REQUEST, &[]), &data()).unwrap());
        assert!(list.iter().any(|(c, _)| *c == 23) && list.iter().all(|(c, _)| *c != IA_NA));
        assert!(reply(&message(SOLICIT, &[ia]), &data()).is_none(), "who asks must say who it is");
        assert!(reply(&message(REQUEST, &[id, ia, (SERVER_ID, &[9])]), &data()).is_none(), "another server was chosen");
        for cut in 0..data().len() {
            let _ = reply(&message(SOLICIT, &[id, ia]), &data()[..cut]);
        }
    }
}
