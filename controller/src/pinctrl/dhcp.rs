//! DHCPv4 (RFC 2131): replies from the options that a flow carries.

use super::boot::{self, Family};
use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Match};
use packet::boot::{Client, HTTP_CLIENT, PXE_CLIENT};
use packet::build::with_payload;
use packet::checksum;
use packet::dhcp::kind::*;
use packet::dhcp::option::*;
use packet::dhcp::{BOOTREPLY, BOOTREQUEST, COOKIE, FIXED, Message, options, place};
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// OVN's own: the next server, and the boot file for clients that are not iPXE.
const NEXT_SERVER: u8 = 253;
const BOOT_FILE_ALT: u8 = 254;
/// Octets that every client takes, with IP and UDP (RFC 2131 section 2).
const MIN_SIZE: usize = 576;

/// What became of a request.
#[derive(Debug)]
pub(super) struct Served {
    /// What was asked, for the trace.
    pub asked: String,
    /// The packet with a reply in its place and the result bit set, and what it says; or why there is none.
    pub answer: Result<(PacketIn, String), String>,
}

impl Served {
    /// A packet that cannot be read.
    pub fn unreadable(protocol: &str) -> Served {
        Served { asked: format!("{protocol} ?"), answer: Err("the message is cut off or malformed".into()) }
    }
}

/// What a machine says of how it boots, for the trace.
pub(super) fn about(client: &Client) -> String {
    if !client.boots() {
        return String::new();
    }
    let kind = match client.architecture_name() {
        Some(name) => name.to_string(),
        None => client.architecture.map_or("unknown".into(), |n| format!("arch-{n}")),
    };
    let how = if client.ipxe {
        ", iPXE"
    } else if client.http() {
        ", HTTP"
    } else {
        ""
    };
    format!(" ({kind}{how})")
}

/// A reply to a request, where it can be answered. `data`: the result's field and bit, the offered address, the options.
pub(super) fn reply(p: &PacketIn, data: &[u8], rules: Option<&Family>) -> Served {
    let Some(m) = Message::parse(&p.packet) else { return Served::unreadable("DHCPv4") };
    let client = Client::v4(&m.options);
    let asked = format!("DHCPv4 {} xid {:#010x}{}", m.kind_name(), m.xid(), about(&client));
    Served { asked, answer: answer(p, data, &m, &client, rules) }
}

fn answer(
    p: &PacketIn,
    data: &[u8],
    m: &Message<'_>,
    client: &Client,
    rules: Option<&Family>,
) -> Result<(PacketIn, String), String> {
    let short = || "the flow's user data is cut off".to_string();
    let (result, rest) = data.split_at_checked(8).ok_or_else(short)?;
    let (offer, configured) = rest.split_at_checked(4).ok_or_else(short)?;
    let offer = Ipv4Addr::from(<[u8; 4]>::try_from(offer).map_err(|_| short())?);
    let configured = options(configured);
    let kind = kind_of_reply(p, m, offer, &configured)?;
    let said = match kind {
        OFFER => "OFFER",
        ACK => "ACK",
        _ => "NAK",
    };
    let inform = m.kind() == Some(INFORM);
    tracing::info!(target: "pinctrl", "DHCP{said} {} {offer}", sender(&p.packet));
    let told = chosen(&configured, client, rules);
    let room = m.option(MAX_SIZE).and_then(|v| packet::be16(v, 0)).map_or(MIN_SIZE, |n| usize::from(n).max(MIN_SIZE));
    let body = message(&m.fixed, kind, offer, inform, &told, room);
    // "If the BROADCAST bit is set, then the server broadcasts" (RFC 2131 section 4.1); otherwise the reply goes to the
    // address, which the client does not answer ARP for yet: the flow that sends the reply on has its Ethernet address.
    let to = if m.broadcast() { Ipv4Addr::BROADCAST } else { offer };
    // Headers stay the request's but for that; the next stage knows the reply by them and turns them round.
    let mut out = p.clone();
    let long = || "the reply does not fit into a packet".to_string();
    out.packet = with_payload(&p.packet, &m.headers, &body).ok_or_else(long)?;
    out.packet.get_mut(m.headers.l3 + 16..m.headers.l3 + 20).ok_or_else(long)?.copy_from_slice(&to.octets());
    checksum::set_ipv4(&mut out.packet, m.headers.l3);
    set_result(&mut out.metadata, result).ok_or("the flow names no field for the result")?;
    let file = if kind == NAK { String::new() } else { told.said() };
    Ok((out, format!("{said} {offer}{file}")))
}

/// What kind of reply a request gets; an error says why none, where it is one that ovn-controller warns of in its words.
fn kind_of_reply(p: &PacketIn, m: &Message<'_>, offer: Ipv4Addr, configured: &[(u8, &[u8])]) -> Result<u8, String> {
    let warn = |kind: &'static str, text: String| {
        tracing::warn!(target: "pinctrl", kind, "{text}");
        text
    };
    if m.operation() != BOOTREQUEST {
        return Err(warn("DHCP operation", format!("Invalid opcode in the DHCP packet: {}", m.operation())));
    }
    if !m.is_ethernet() {
        return Err(warn("DHCP hardware", "DHCP: Packet is recieved with unsupported hardware type".into()));
    }
    let wanted = m.option_address(REQUESTED_IP).unwrap_or_else(|| m.address(place::CIADDR));
    match m.kind() {
        None => Err(warn("DHCP type", "Missing DHCP message type".into())),
        Some(DISCOVER) => Ok(OFFER),
        Some(INFORM) => {
            tracing::info!(target: "pinctrl", "DHCPINFORM from {} {}", sender(&p.packet), m.address(place::CIADDR));
            Ok(ACK)
        }
        Some(REQUEST) => {
            let server = configured.iter().find(|(c, _)| *c == SERVER_ID).and_then(|(_, v)| packet::dhcp::address(v));
            // "Servers not selected by the DHCPREQUEST message use the message as notification that the client has
            // declined that server's offer" (RFC 2131 section 3.1).
            if let Some(other) = m.option_address(SERVER_ID).filter(|s| server.is_some_and(|own| own != *s)) {
                return Err(format!("the client chose another server, {other}"));
            }
            if wanted == offer {
                return Ok(ACK);
            }
            warn("DHCP request", format!("DHCPREQUEST requested IP {wanted} does not match offer {offer}"));
            Ok(NAK)
        }
        Some(DECLINE) => {
            if wanted == offer {
                tracing::info!(target: "pinctrl", "DHCPDECLINE from {}, {offer} duplicated", sender(&p.packet));
            }
            Err(format!("no reply belongs to it; the client says that another machine has {wanted}"))
        }
        Some(RELEASE) => {
            tracing::info!(target: "pinctrl", "DHCPRELEASE {} {}", sender(&p.packet), m.address(place::CIADDR));
            Err("no reply belongs to it".into())
        }
        Some(other) => Err(warn("DHCP type", format!("Invalid DHCP message type: {other}"))),
    }
}

/// Who asks, by its Ethernet address.
fn sender(p: &[u8]) -> String {
    packet::mac_at(p, 6).unwrap_or_default().to_string()
}

/// What a client is told.
#[derive(Debug, Default, PartialEq)]
struct Told<'a> {
    /// Code and value, in order; a value of more than 255 octets is several options (RFC 3396).
    options: Vec<(u8, Cow<'a, [u8]>)>,
    /// The next server in bootstrap.
    next: Option<Ipv4Addr>,
    /// The rule by which the boot file was chosen.
    rule: Option<String>,
}

impl Told<'_> {
    fn has(&self, code: u8) -> bool {
        self.options.iter().any(|(c, _)| *c == code)
    }

    /// The boot file, of all its options.
    fn file(&self) -> String {
        let parts = self.options.iter().filter(|(c, _)| *c == BOOT_FILE).flat_map(|(_, v)| v.iter().copied());
        String::from_utf8_lossy(&parts.collect::<Vec<u8>>()).into_owned()
    }

    /// What to load and from where, for the trace.
    fn said(&self) -> String {
        if !self.has(BOOT_FILE) {
            return String::new();
        }
        let rule = self.rule.as_ref().map(|r| format!(" ({r})")).unwrap_or_default();
        let next = self.next.map(|n| format!(" from {n}")).unwrap_or_default();
        format!(", loads {}{next}{rule}", self.file())
    }
}

/// What a client is told: of the files the one for it by the port's rules, or as OVN has it, what iPXE is to load or what loads
/// iPXE, where both are configured (ovn-nb(5), `bootfile_name_alt`).
fn chosen<'a>(configured: &[(u8, &'a [u8])], client: &Client, rules: Option<&Family>) -> Told<'a> {
    let has = |code| configured.iter().any(|(c, _)| *c == code);
    let mut told = Told {
        next: configured.iter().find(|(c, _)| *c == NEXT_SERVER).and_then(|(_, v)| packet::dhcp::address(v)),
        ..Told::default()
    };
    if let Some((rule, file)) = rules.and_then(|r| r.file(client)) {
        told.rule = Some(rule.to_string());
        let apart = if client.ipxe || client.http() { None } else { boot::tftp(file) };
        let (next, file) = apart.map_or((told.next, file), |(server, path)| (Some(server), path));
        told.next = next;
        let parts = file.as_bytes().chunks(usize::from(u8::MAX));
        told.options.extend(parts.map(|part| (BOOT_FILE, Cow::Owned(part.to_vec()))));
    }
    let left_out = match (has(BOOT_FILE), has(BOOT_FILE_ALT)) {
        (true, true) if client.ipxe => Some(BOOT_FILE_ALT),
        (true, true) => Some(BOOT_FILE),
        _ => None,
    };
    for (code, value) in configured.iter().filter(|(c, _)| Some(*c) != left_out) {
        let code = if *code == BOOT_FILE_ALT { BOOT_FILE } else { *code };
        if code != BOOT_FILE || told.rule.is_none() {
            told.options.push((code, Cow::Borrowed(value)));
        }
    }
    // Firmware takes a URL only from who says that it serves HTTP (UEFI specification section 24.7.2).
    if client.http() && !client.ipxe && boot::is_http(&told.file()) && !told.has(VENDOR_CLASS) {
        told.options.push((VENDOR_CLASS, Cow::Borrowed(HTTP_CLIENT.as_bytes())));
    }
    if let Some(r) = rules {
        if !r.vendor_options.is_empty() && client.vendor.starts_with(PXE_CLIENT) {
            if !told.has(VENDOR_CLASS) {
                told.options.push((VENDOR_CLASS, Cow::Borrowed(PXE_CLIENT.as_bytes())));
            }
            told.options.push((VENDOR_OPTIONS, Cow::Owned(r.vendor_options.clone())));
        }
        if !r.ipxe_options.is_empty() && client.ipxe {
            told.options.push((IPXE, Cow::Owned(r.ipxe_options.clone())));
        }
    }
    told
}

/// A reply. `room`: octets that the client takes at most, with IP and UDP.
fn message(request: &[u8; FIXED], kind: u8, offer: Ipv4Addr, inform: bool, told: &Told<'_>, room: usize) -> Vec<u8> {
    let mut m = request.to_vec();
    m[0] = BOOTREPLY;
    let yiaddr = if kind == NAK || inform { Ipv4Addr::UNSPECIFIED } else { offer };
    m[place::YIADDR..place::YIADDR + 4].copy_from_slice(&yiaddr.octets());
    match told.next {
        _ if kind == NAK => m[place::SIADDR..place::SIADDR + 4].fill(0),
        Some(address) if !inform => m[place::SIADDR..place::SIADDR + 4].copy_from_slice(&address.octets()),
        _ => {}
    }
    // Who has an address asks for nothing that belongs to one (RFC 2131 section 3.4).
    let lease = |code: u8| matches!(code, NETMASK | LEASE_TIME | RENEWAL | REBINDING);
    let list: Vec<_> = told.options.iter().filter(|(c, _)| kind != NAK && !(inform && lease(*c))).collect();
    let size: usize = list.iter().map(|(_, v)| 2 + v.len()).sum();
    let fixed = 20 + 8 + FIXED + COOKIE.len() + 3 + 1;
    let (mut options, mut overloaded) = (Vec::new(), 0);
    if fixed + size <= room {
        list.iter().for_each(|(c, v)| put(&mut options, *c, v));
    } else {
        // What does not fit goes into the fields `file` and `sname` (RFC 2132 section 9.3), and on as before where these are full.
        let mut fields = [Vec::new(), Vec::new()];
        let (room, mut least) = (room.saturating_sub(fixed + 3), HashMap::new());
        for (code, value) in list {
            // The parts of one value stay in the order in which clients read the fields (RFC 3396 section 5).
            let from: usize = least.get(code).copied().unwrap_or(0);
            let len = 2 + value.len();
            let fits = |at: usize, used: usize| at >= from && used + len <= [room, 127, 63][at];
            let at =
                (0..3).find(|at| fits(*at, if *at == 0 { options.len() } else { fields[at - 1].len() })).unwrap_or(0);
            least.insert(*code, at);
            put(if at == 0 { &mut options } else { &mut fields[at - 1] }, *code, value);
        }
        for (n, at) in [place::FILE, place::SNAME].into_iter().enumerate() {
            if !fields[n].is_empty() {
                fields[n].push(END);
                let whole = if n == 0 { 128 } else { 64 };
                fields[n].resize(whole, PAD);
                m[at..at + whole].copy_from_slice(&fields[n]);
                overloaded |= 1 << n;
            }
        }
    }
    m.extend(COOKIE);
    m.extend([MESSAGE_TYPE, 1, kind]);
    if overloaded != 0 {
        m.extend([OVERLOAD, 1, overloaded]);
    }
    m.extend(options);
    m.extend([PAD; 4]);
    m.push(END);
    m.extend([PAD; 4]);
    m
}

/// Adds an option of at most 255 octets.
fn put(to: &mut Vec<u8>, code: u8, value: &[u8]) {
    to.extend([code, value.len() as u8]);
    to.extend(value);
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
        let both: [(u8, &'static [u8]); 3] =
            [(BOOT_FILE, b"https://boot/menu.ipxe"), (BOOT_FILE_ALT, b"undionly.kpxe"), (3, b"abcd")];
        let (ipxe, other) = (Client { ipxe: true, ..Client::default() }, Client::default());
        let list = |c: &Client, of: &[(u8, &'static [u8])]| chosen(of, c, None).options;
        assert_eq!(
            list(&ipxe, &both),
            [(BOOT_FILE, Cow::from(&b"https://boot/menu.ipxe"[..])), (3, Cow::from(&b"abcd"[..]))]
        );
        assert_eq!(list(&other, &both), [(BOOT_FILE, Cow::from(&b"undionly.kpxe"[..])), (3, Cow::from(&b"abcd"[..]))]);
        assert_eq!(list(&ipxe, &both[1..])[0], (BOOT_FILE, Cow::from(&b"undionly.kpxe"[..])), "there is no other");
        let long = [b'x'; 200];
        let request = request(DISCOVER, &[]);
        let mut d = data();
        d.extend([BOOT_FILE, 200]);
        d.extend(long);
        let o = replied(&request, &d);
        assert!(o.packet.windows(200).any(|w| w == long), "a long file name stays whole");
    }

    #[test]
    fn who_only_asks_for_options_gets_no_address() {
        let o = replied(&request(INFORM, &[]), &data());
        let (kind, address) = kind_of(&o);
        assert_eq!((kind, address), (ACK, Ipv4Addr::UNSPECIFIED));
        let h = Headers::parse(&o.packet).unwrap();
        let list = options(&o.packet[h.payload + FIXED + 4..]);
        assert!(list.iter().all(|(c, _)| !matches!(*c, LEASE_TIME | NETMASK)), "{list:?}");
    }

    fn replied(p: &PacketIn, data: &[u8]) -> PacketIn {
        reply(p, data, None).answer.unwrap().0
    }

    /// Fixed part and options of a reply.
    fn parts(p: &PacketIn) -> (Vec<u8>, Vec<(u8, Vec<u8>)>) {
        let h = Headers::parse(&p.packet).unwrap();
        let m = &p.packet[h.payload..h.l3_end];
        let list = options(&m[FIXED + 4..]).into_iter().map(|(c, v)| (c, v.to_vec())).collect();
        (m[..FIXED].to_vec(), list)
    }

    fn rules(keys: &[(&str, &str)]) -> Family {
        let ids = keys.iter().map(|(k, v)| (format!("dhcpv4-boot:{k}").as_str().into(), (*v).into())).collect();
        boot::Rules::of(&ids).0.unwrap().v4
    }

    #[test]
    fn firmware_gets_the_file_of_its_kind() {
        let r = rules(&[
            ("efi-x64", "tftp://10.0.0.7/snponly.efi"),
            ("http", "http://10.0.0.7/x64.efi"),
            ("ipxe", "http://10.0.0.7/menu.ipxe"),
            ("option-43", "6=0x08"),
            ("option-175", "176=0x01"),
        ]);
        let ask = |extra: &[u8]| {
            let served = reply(&request(DISCOVER, extra), &data(), Some(&r));
            let (p, said) = served.answer.unwrap();
            (parts(&p), served.asked, said)
        };
        let value = |list: &[(u8, Vec<u8>)], code| list.iter().find(|(c, _)| *c == code).map(|(_, v)| v.clone());
        let pxe = [&[93, 2, 0, 7, 60, 9][..], b"PXEClient"].concat();
        let ((fixed, list), asked, said) = ask(&pxe);
        assert_eq!((value(&list, 67), &fixed[20..24]), (Some(b"snponly.efi".to_vec()), &[10, 0, 0, 7][..]));
        assert_eq!((value(&list, 60), value(&list, 43)), (Some(b"PXEClient".to_vec()), Some(vec![6, 1, 8, 255])));
        assert_eq!(value(&list, 175), None);
        assert!(asked.contains("DISCOVER") && asked.contains("(efi-x64)"), "{asked}");
        assert_eq!(said, "OFFER 10.0.0.4, loads snponly.efi from 10.0.0.7 (efi-x64)");
        let http = [&[93, 2, 0, 16, 60, 10][..], b"HTTPClient"].concat();
        let ((_, list), ..) = ask(&http);
        assert_eq!(value(&list, 67), Some(b"http://10.0.0.7/x64.efi".to_vec()));
        assert_eq!((value(&list, 60), value(&list, 43)), (Some(b"HTTPClient".to_vec()), None));
        let ((_, list), ..) = ask(&[&[93, 2, 0, 7, 77, 4][..], b"iPXE"].concat());
        assert_eq!(value(&list, 67), Some(b"http://10.0.0.7/menu.ipxe".to_vec()));
        assert_eq!((value(&list, 175), value(&list, 60)), (Some(vec![176, 1, 1, 255]), None));
        let ((_, list), ..) = ask(&[]);
        assert_eq!(value(&list, 67), None, "who does not boot loads nothing");
    }

    #[test]
    fn a_url_is_for_firmware_that_loads_by_http_without_any_rule() {
        let mut d = data();
        d.extend([&[BOOT_FILE, 13][..], b"http://b/x.ef"].concat());
        let ask = |extra: &[u8]| parts(&replied(&request(DISCOVER, extra), &d)).1;
        let http = [&[93, 2, 0, 16, 60, 10][..], b"HTTPClient"].concat();
        assert!(ask(&http).iter().any(|(c, v)| *c == 60 && v == b"HTTPClient"));
        assert!(ask(&[]).iter().all(|(c, _)| *c != 60));
    }

    #[test]
    fn what_does_not_fit_goes_into_file_and_name() {
        let mut d = data();
        for code in [66, 67, 150, 151, 152, 153, 154] {
            d.extend([code, 60]);
            d.extend([code; 60]);
        }
        let (fixed, list) = parts(&replied(&request(DISCOVER, &[]), &d));
        let overload = list.iter().find(|(c, _)| *c == OVERLOAD).map(|(_, v)| v[0]);
        assert_eq!(overload, Some(3));
        let mut all: Vec<u8> = list.iter().map(|(c, _)| *c).collect();
        for (at, len) in [(place::FILE, 128), (place::SNAME, 64)] {
            all.extend(options(&fixed[at..at + len]).iter().map(|(c, _)| *c));
        }
        for code in [51, 1, 3, 54, 66, 67, 150, 151, 152, 153, 154] {
            assert_eq!(all.iter().filter(|c| **c == code).count(), 1, "option {code} in {all:?}");
        }
        // A client that takes more gets all in one place.
        let (fixed, list) = parts(&replied(&request(DISCOVER, &[57, 2, 5, 0xdc]), &d));
        assert!(list.iter().all(|(c, _)| *c != OVERLOAD) && fixed[place::SNAME..].iter().all(|b| *b == 0));
    }

    #[test]
    fn long_urls_are_several_options() {
        let url = format!("http://10.0.0.7/{}", "x".repeat(400));
        let r = rules(&[("ipxe", &url)]);
        let p = reply(&request(DISCOVER, &[175, 1, 1, 57, 2, 5, 0xdc]), &data(), Some(&r)).answer.unwrap().0;
        let (_, list) = parts(&p);
        let whole: Vec<u8> = list.iter().filter(|(c, _)| *c == BOOT_FILE).flat_map(|(_, v)| v.clone()).collect();
        assert_eq!(whole, url.as_bytes());
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
        let mut d = crate::encode::of::field_header(FieldId::XxReg0).to_vec();
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
        let o = replied(&request(DISCOVER, &[]), &data());
        assert_eq!(kind_of(&o), (OFFER, Ipv4Addr::new(10, 0, 0, 4)));
        assert_eq!(o.metadata.get(FieldId::XxReg0).0, 1 << 99);
        let o = replied(&request(REQUEST, &[50, 4, 10, 0, 0, 4]), &data());
        assert_eq!(kind_of(&o).0, ACK);
        let o = replied(&request(REQUEST, &[50, 4, 10, 0, 0, 5]), &data());
        assert_eq!(kind_of(&o), (NAK, Ipv4Addr::UNSPECIFIED));
        let why = |r| reply(&r, &data(), None).answer.unwrap_err();
        assert!(why(request(REQUEST, &[54, 4, 10, 0, 0, 9])).contains("another server, 10.0.0.9"));
        assert!(why(request(RELEASE, &[])).contains("no reply belongs"));
        assert!(why(request(DECLINE, &[50, 4, 10, 0, 0, 4])).contains("another machine has 10.0.0.4"));
        for cut in 0..data().len() {
            let _ = reply(&request(DISCOVER, &[53]), &data()[..cut], None);
        }
    }
}
