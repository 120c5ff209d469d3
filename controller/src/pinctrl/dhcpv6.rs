//! DHCPv6 (RFC 8415): replies from the options that a flow carries.

use super::boot::Family;
use super::dhcp::{Served, about, set_result};
use openflow_rs::message::PacketIn;
use packet::boot::Client;
use packet::build::with_payload;
use packet::dhcpv6::kind::*;
use packet::dhcpv6::option::*;
use packet::dhcpv6::{SUCCESS, association, duid_ll, kind_name, options, put};
use packet::{Headers, ipproto};
use std::net::Ipv6Addr;

/// OVN's own: the boot file for clients that are not iPXE.
const BOOT_FILE_ALT: u16 = 254;
/// Flags of the FQDN option (RFC 4704 section 4.1).
const SERVER_UPDATES: u8 = 1;
const OVERRIDDEN: u8 = 2;
const NO_UPDATE: u8 = 4;

/// The vendor class of a server that serves HTTP (UEFI specification section 24.7.3): Intel's enterprise number, and the class.
const HTTP_CLASS: &[u8] = b"\0\0\x01\x57\0\x0aHTTPClient";
/// The status of a server that has no prefix to delegate, and no other address (RFC 8415 section 21.13).
const NO_PREFIX: [u8; 2] = [0, 6];
const NO_ADDRESS: [u8; 2] = [0, 2];

/// A reply to a request, where it can be answered. `data`: the result's field and bit, the options. Addresses and ports stay the
/// request's; the next stage turns them round.
pub(super) fn reply(p: &PacketIn, data: &[u8], rules: Option<&Family>) -> Served {
    let message = || {
        let h = Headers::parse(&p.packet)?;
        if h.is_ipv4() || h.proto != ipproto::UDP {
            return None;
        }
        let (head, rest) = p.packet.get(h.payload..h.l3_end)?.split_at_checked(4)?;
        let [kind, id @ ..] = <[u8; 4]>::try_from(head).ok()?;
        Some(Message { headers: h, kind, id, asked: options(rest) })
    };
    let Some(m) = message() else { return Served::unreadable("DHCPv6") };
    let client = Client::v6(&m.asked);
    let [a, b, c] = m.id;
    let asked = format!("DHCPv6 {} xid 0x{a:02x}{b:02x}{c:02x}{}", kind_name(m.kind), about(&client));
    Served { asked, answer: answer(p, data, &m, &client, rules) }
}

/// A request.
struct Message<'a> {
    headers: Headers,
    kind: u8,
    id: [u8; 3],
    asked: Vec<(u16, &'a [u8])>,
}

impl<'a> Message<'a> {
    fn find(&self, code: u16) -> Option<&'a [u8]> {
        self.asked.iter().find(|(c, _)| *c == code).map(|(_, v)| *v)
    }
}

fn answer(
    p: &PacketIn,
    data: &[u8],
    m: &Message<'_>,
    client: &Client,
    rules: Option<&Family>,
) -> Result<(PacketIn, String), String> {
    let (result, configured) = data.split_at_checked(8).ok_or("the flow's user data is cut off")?;
    let configured = options(configured);
    let id = configured.iter().find(|(c, _)| *c == SERVER_ID).ok_or("the flow names no server_id")?;
    let server = duid_ll(id.1);
    // What names a server is for that one (RFC 8415 section 16).
    if m.find(SERVER_ID).is_some_and(|s| s != server) {
        return Err("the client chose another server".into());
    }
    let kind = match m.kind {
        SOLICIT => ADVERTISE,
        REQUEST | CONFIRM | RENEW | REBIND | RELEASE | DECLINE | INFORMATION_REQUEST => REPLY,
        _ => return Err("no reply belongs to it".into()),
    };
    let client_id = m.find(CLIENT_ID);
    let association_id = m.find(IA_NA).and_then(|v| v.get(..4));
    if m.kind != INFORMATION_REQUEST {
        let lacks = [("Client id", client_id), ("IA NA", association_id)].into_iter().find(|(_, o)| o.is_none());
        if let Some((option, _)) = lacks {
            let text = format!("DHCPv6 option - {option} not present in the DHCPv6 packet");
            tracing::warn!(target: "pinctrl", kind = option, "{text}");
            return Err(text);
        }
    }
    let mut out = vec![kind, m.id[0], m.id[1], m.id[2]];
    if let Some(id) = client_id {
        put(&mut out, CLIENT_ID, id);
    }
    let mut said = kind_name(kind).to_string();
    if m.kind == RELEASE {
        put(&mut out, SERVER_ID, &server);
        put(&mut out, STATUS, &SUCCESS);
    } else {
        let (loads, file) = boot(&configured, client, rules);
        said += &told(&mut out, m, &configured, (&server, loads), association_id);
        said += &file;
    }
    let mut reply = p.clone();
    reply.packet = with_payload(&p.packet, &m.headers, &out).ok_or("the reply does not fit into a packet")?;
    set_result(&mut reply.metadata, result).ok_or("the flow names no field for the result")?;
    Ok((reply, said))
}

/// Adds what a client is told, with the server's identifier and what it is to load; the text says which address.
fn told(
    out: &mut Vec<u8>,
    m: &Message<'_>,
    configured: &[(u16, &[u8])],
    (server, mut loads): (&[u8], Vec<u8>),
    association_id: Option<&[u8]>,
) -> String {
    let mut said = String::new();
    for (code, value) in configured {
        match *code {
            SERVER_ID => put(out, SERVER_ID, server),
            IA_ADDR => {
                if let Some(id) = association_id {
                    put(out, IA_NA, &association(id, value));
                    let address = <[u8; 16]>::try_from(*value).map(Ipv6Addr::from);
                    said = address.map(|a| format!(" {a}")).unwrap_or_default();
                }
            }
            // A list of names, each as labels (RFC 3646 section 4). ovn-controller puts a length before the text instead.
            DOMAIN_SEARCH => {
                let text = String::from_utf8_lossy(value);
                let names = text.split(',').map(str::trim).filter(|n| !n.is_empty());
                put(out, DOMAIN_SEARCH, &names.flat_map(packet::dns::name).collect::<Vec<u8>>());
            }
            // Where ovn-controller has it.
            BOOT_FILE | BOOT_FILE_ALT => out.append(&mut loads),
            FQDN => {
                if let Some(flags) = m.find(FQDN).and_then(<[u8]>::first) {
                    // The server updates no names (N), and says so to who wanted it to (O; RFC 4704 section 4.1).
                    let answer = NO_UPDATE | if flags & SERVER_UPDATES != 0 { OVERRIDDEN } else { 0 };
                    put(out, FQDN, &[&[answer], *value].concat());
                }
            }
            code => put(out, code, value),
        }
    }
    out.append(&mut loads);
    // A client that asks for a prefix or for a second address as well learns that there is none, and takes the one that it gets (RFC
    // 8415 section 18.3.9).
    let mut refuse = |code: u16, id: &[u8], status: &[u8]| {
        let mut none = [id, &[0; 8]].concat();
        put(&mut none, STATUS, status);
        put(out, code, &none);
    };
    let of = |code: u16| m.asked.iter().filter(move |(c, _)| *c == code).filter_map(|(_, v)| v.get(..4));
    of(IA_NA).filter(|id| Some(*id) != association_id).for_each(|id| refuse(IA_NA, id, &NO_ADDRESS));
    of(IA_PD).for_each(|id| refuse(IA_PD, id, &NO_PREFIX));
    said
}

/// The options that say what a client is to load (RFC 5970), and the same as text: by the port's rules, or as OVN has it.
fn boot(configured: &[(u16, &[u8])], client: &Client, rules: Option<&Family>) -> (Vec<u8>, String) {
    let mut out = Vec::new();
    let of = |code| configured.iter().find(|(c, _)| *c == code).map(|(_, v)| String::from_utf8_lossy(v).into_owned());
    let rule = rules.and_then(|r| r.file(client));
    let chosen = match rule {
        Some((_, file)) => Some(file.to_string()),
        None => of(if client.ipxe { BOOT_FILE } else { BOOT_FILE_ALT }),
    };
    // Without a second file the only one is for firmware that loads by HTTP, too.
    let http = |f: &String| client.http() && super::boot::is_http(f);
    let Some(text) = chosen.or_else(|| of(BOOT_FILE).filter(http)) else { return (out, String::new()) };
    let mut words = text.split_whitespace();
    let Some(url) = words.next() else { return (out, String::new()) };
    put(&mut out, BOOT_FILE, url.as_bytes());
    let mut parameters = Vec::new();
    for word in words {
        parameters.extend((word.len() as u16).to_be_bytes());
        parameters.extend(word.bytes());
    }
    if !parameters.is_empty() {
        put(&mut out, BOOT_PARAMETERS, &parameters);
    }
    if client.http() && !client.ipxe && super::boot::is_http(url) {
        put(&mut out, VENDOR_CLASS, HTTP_CLASS);
    }
    let rule = rule.map(|(name, _)| format!(" ({name})")).unwrap_or_default();
    (out, format!(", loads {text}{rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::FieldId;
    use packet::build;

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
        let mut d = crate::encode::of::field_header(FieldId::XxReg0).to_vec();
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

    fn replied(p: &PacketIn) -> PacketIn {
        reply(p, &data(), None).answer.unwrap().0
    }

    const ID: (u16, &[u8]) = (CLIENT_ID, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 9]);
    const IA: (u16, &[u8]) = (IA_NA, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);

    fn value(list: &[(u16, Vec<u8>)], code: u16) -> Option<Vec<u8>> {
        list.iter().find(|(c, _)| *c == code).map(|(_, v)| v.clone())
    }

    #[test]
    fn firmware_gets_the_url_of_its_kind() {
        let keys = [("efi-x64-http", "http://[fd00::7]/x64.efi quiet"), ("efi-x64", "tftp://[fd00::7]/x64.efi")];
        let ids = keys.iter().map(|(k, v)| (format!("dhcpv6-boot:{k}").as_str().into(), (*v).into())).collect();
        let rules = super::super::boot::Rules::of(&ids).0.unwrap().v6;
        let ask = |extra: &[(u16, &[u8])]| {
            let (p, said) =
                reply(&message(SOLICIT, &[&[ID, IA], extra].concat()), &data(), Some(&rules)).answer.unwrap();
            (parts(&p).1, said)
        };
        let (list, said) = ask(&[(ARCHITECTURE, &[0, 16]), (VENDOR_CLASS, HTTP_CLASS)]);
        assert_eq!(value(&list, BOOT_FILE), Some(b"http://[fd00::7]/x64.efi".to_vec()));
        assert_eq!(value(&list, BOOT_PARAMETERS), Some(b"\0\x05quiet".to_vec()));
        assert_eq!(value(&list, VENDOR_CLASS), Some(HTTP_CLASS.to_vec()));
        assert_eq!(said, "ADVERTISE aef0::4, loads http://[fd00::7]/x64.efi quiet (efi-x64-http)");
        let (list, _) = ask(&[(ARCHITECTURE, &[0, 7])]);
        assert_eq!(
            (value(&list, BOOT_FILE), value(&list, VENDOR_CLASS)),
            (Some(b"tftp://[fd00::7]/x64.efi".to_vec()), None)
        );
        assert_eq!(value(&ask(&[]).0, BOOT_FILE), None);
    }

    #[test]
    fn a_file_stands_where_it_is_configured() {
        let mut d = data();
        let at = d.len();
        put(&mut d, BOOT_FILE_ALT, b"tftp://b/x");
        // In front of the server's identifier, as northd has it: names are in order.
        let file = d.split_off(at);
        let d = [&d[..8 + 20], &file, &d[8 + 20..]].concat();
        let (_, list) = parts(&reply(&message(SOLICIT, &[ID, IA]), &d, None).answer.unwrap().0);
        assert_eq!(list.iter().map(|(c, _)| *c).collect::<Vec<_>>(), [CLIENT_ID, IA_NA, BOOT_FILE, SERVER_ID, 23]);
    }

    #[test]
    fn search_lists_are_labels_and_prefixes_are_declined() {
        let mut d = data();
        put(&mut d, DOMAIN_SEARCH, b"ovn.org, a.test");
        let asked = message(SOLICIT, &[ID, IA, (IA_PD, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0])]);
        let (_, list) = parts(&reply(&asked, &d, None).answer.unwrap().0);
        assert_eq!(value(&list, DOMAIN_SEARCH), Some(b"\x03ovn\x03org\0\x01a\x04test\0".to_vec()));
        assert_eq!(value(&list, IA_PD), Some([&[0, 0, 0, 8][..], &[0; 8], &[0, 13, 0, 2, 0, 6]].concat()));
    }

    #[test]
    fn of_several_associations_the_first_gets_the_address() {
        let second: (u16, &[u8]) = (IA_NA, &[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        let (_, list) = parts(&reply(&message(SOLICIT, &[ID, IA, second]), &data(), None).answer.unwrap().0);
        let all: Vec<&Vec<u8>> = list.iter().filter(|(c, _)| *c == IA_NA).map(|(_, v)| v).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((&all[0][..4], &all[0][16..32]), (&IA.1[..4], &"aef0::4".parse::<Ipv6Addr>().unwrap().octets()[..]));
        assert_eq!(all[1][..], [&[0, 0, 0, 9][..], &[0; 8], &[0, 13, 0, 2, 0, 2]].concat());
    }

    #[test]
    fn solicitations_and_requests_get_the_ports_address() {
        let id: (u16, &[u8]) = (CLIENT_ID, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 9]);
        let ia: (u16, &[u8]) = (IA_NA, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        for (asked, answered) in [(SOLICIT, ADVERTISE), (REQUEST, REPLY), (RENEW, REPLY)] {
            let o = replied(&message(asked, &[id, ia]));
            let (kind, list) = parts(&o);
            assert_eq!(kind, answered);
            let value = |code| &list.iter().find(|(c, _)| *c == code).unwrap().1;
            assert_eq!(value(CLIENT_ID), id.1);
            assert_eq!(value(SERVER_ID)[4..], [0, 0, 0, 0x10, 0, 1]);
            assert_eq!(value(IA_NA)[..4], [0, 0, 0, 7]);
            assert_eq!(value(IA_NA)[16..32], "aef0::4".parse::<Ipv6Addr>().unwrap().octets());
            assert_eq!(o.metadata.get(FieldId::XxReg0).0, 1 << 99);
        }
        let (_, list) = parts(&replied(&message(INFORMATION_REQUEST, &[])));
        assert!(list.iter().any(|(c, _)| *c == 23) && list.iter().all(|(c, _)| *c != IA_NA));
        let why = |p: PacketIn| reply(&p, &data(), None).answer.unwrap_err();
        assert!(why(message(SOLICIT, &[ia])).contains("Client id not present"), "who asks must say who it is");
        assert!(why(message(REQUEST, &[id, ia, (SERVER_ID, &[9])])).contains("another server"));
        for cut in 0..data().len() {
            let _ = reply(&message(SOLICIT, &[id, ia]), &data()[..cut], None);
        }
    }
}
