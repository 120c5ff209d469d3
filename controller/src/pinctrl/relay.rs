//! The checks of a DHCPv4 relay (`dhcp_relay_req_chk`, `dhcp_relay_resp_chk`; RFC 1542, RFC 2131): requests get the relay's address
//! on their way to the server, and replies the client's on their way back.

use super::dhcp::{COOKIE, FIXED, MESSAGE_TYPE, NETMASK, REQUESTED_IP, SERVER_ID, options, set_result};
use openflow_rs::message::PacketIn;
use packet::{Headers, checksum, ipproto};
use std::net::Ipv4Addr;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const OFFER: u8 = 2;
const ACK: u8 = 5;
const ROUTER: u8 = 3;
/// Places in a message (RFC 2131 section 2).
const HOPS: usize = 3;
const CIADDR: usize = 12;
const YIADDR: usize = 16;
const GIADDR: usize = 24;
const CHADDR: usize = 28;

/// A message in a packet.
struct Message<'a> {
    h: Headers,
    bytes: &'a [u8],
    options: Vec<(u8, &'a [u8])>,
}

impl<'a> Message<'a> {
    /// The message, where it is one of this operation from or for a client on Ethernet.
    fn parse(p: &'a [u8], operation: u8) -> Option<Message<'a>> {
        let h = Headers::parse(p)?;
        if !h.is_ipv4() || h.proto != ipproto::UDP || h.fragment {
            return None;
        }
        let bytes = p.get(h.l4? + 8..h.l3_end)?;
        let known = bytes.get(..3)? == [operation, 1, 6] && bytes.get(FIXED..FIXED + 4)? == COOKIE;
        let options = options(bytes.get(FIXED + 4..)?);
        known.then_some(Message { h, bytes, options })
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        packet::be32(self.bytes, at).unwrap_or(0).into()
    }

    fn option(&self, code: u8) -> Option<&'a [u8]> {
        self.options.iter().find(|(c, _)| *c == code).map(|(_, v)| *v)
    }

    fn option_address(&self, code: u8) -> Option<Ipv4Addr> {
        self.option(code).and_then(|v| <[u8; 4]>::try_from(v).ok()).map(Ipv4Addr::from)
    }

    fn kind(&self) -> Option<u8> {
        self.option(MESSAGE_TYPE)?.first().copied().filter(|k| *k != 0)
    }

    /// What logs say of it.
    fn describe(&self) -> String {
        const NAMES: [&str; 9] = ["", "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM"];
        let name = self.kind().and_then(|k| NAMES.get(usize::from(k))).unwrap_or(&"UNKNOWN");
        let mac = packet::mac_at(self.bytes, CHADDR).unwrap_or_default().map(|b| format!("{b:02x}")).join(":");
        format!("MSG_TYPE:{name} MAC:{mac} XID:{}", packet::be32(self.bytes, 4).unwrap_or(0))
    }
}

/// The addresses of relay and server in the user data, behind the result's place.
fn addresses(data: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    Some((packet::be32(data, 8)?.into(), packet::be32(data, 12)?.into()))
}

/// The client's request, to go on to the server. None where it is not to be relayed.
pub(super) fn request(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (relay, server) = addresses(data)?;
    let m = Message::parse(&p.packet, REQUEST)?;
    if !m.address(GIADDR).is_unspecified() {
        tracing::debug!(target: "pinctrl", "DHCP_RELAY_REQ_CHK: giaddr is already set");
        return None;
    }
    m.kind()?;
    let asked = m.option_address(REQUESTED_IP).unwrap_or_else(|| m.address(CIADDR));
    let text = m.describe();
    tracing::info!(target: "pinctrl", "DHCP_RELAY_REQ_CHK:: {text} REQ_IP:{asked} GIADDR:{relay} SERVER_ADDR:{server}");
    let (mut out, start) = (p.clone(), m.h.l4? + 8);
    let hops = [m.bytes[HOPS], m.bytes[HOPS + 1]];
    let more = [m.bytes[HOPS].saturating_add(1), m.bytes[HOPS + 1]];
    // An odd place: the sum goes over the word that it is in.
    let (word, moved) = ([m.bytes[HOPS - 1], hops[0]], [m.bytes[HOPS - 1], more[0]]);
    *out.packet.get_mut(start + HOPS)? = more[0];
    out.packet.get_mut(start + GIADDR..start + GIADDR + 4)?.copy_from_slice(&relay.octets());
    udp_sum(&mut out.packet, &m.h, &word, &moved)?;
    udp_sum(&mut out.packet, &m.h, &[0; 4], &relay.octets())?;
    set_result(&mut out.metadata, data.get(..8)?)?;
    Some(out)
}

/// The server's reply, to go on to the client. None where it is not to be relayed.
pub(super) fn response(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (relay, server) = addresses(data)?;
    let m = Message::parse(&p.packet, REPLY)?;
    let (yours, said) = (m.address(YIADDR), m.option_address(SERVER_ID)?);
    let kind = m.kind()?;
    if m.address(GIADDR) != relay || said != server {
        tracing::debug!(target: "pinctrl", "DHCP_RELAY_RESP_CHK: giaddr or server identifier mismatch");
        return None;
    }
    let text = format!("{} YIADDR:{yours} GIADDR:{relay} SERVER_ADDR:{said}", m.describe());
    if matches!(kind, OFFER | ACK) {
        let mask = m.option_address(NETMASK).map_or(0, u32::from);
        if u32::from(yours) & mask != u32::from(relay) & mask {
            tracing::info!(target: "pinctrl", "DHCP_RELAY_RESP_CHK:: Allocated ip adress and giaddr are not in same subnet. {text}");
            return None;
        }
        if m.option_address(ROUTER).is_some_and(|r| r != relay) {
            tracing::info!(target: "pinctrl", "DHCP_RELAY_RESP_CHK:: Router ip adress and giaddr are not same. {text}");
        }
    }
    tracing::info!(target: "pinctrl", "DHCP_RELAY_RESP_CHK:: {text}");
    let mut out = p.clone();
    // The client does not answer ARP for its address yet, unless it asks for broadcasts.
    let to = if m.bytes[10] & 0x80 != 0 { Ipv4Addr::BROADCAST } else { yours };
    let mac = packet::mac_at(m.bytes, CHADDR)?;
    let at = m.h.l3 + 16;
    let before: [u8; 4] = p.packet.get(at..at + 4)?.try_into().ok()?;
    out.packet.get_mut(..6)?.copy_from_slice(&mac);
    out.packet.get_mut(at..at + 4)?.copy_from_slice(&to.octets());
    checksum::set_ipv4(&mut out.packet, m.h.l3);
    udp_sum(&mut out.packet, &m.h, &before, &to.octets())?;
    set_result(&mut out.metadata, data.get(..8)?)?;
    Some(out)
}

/// Brings the UDP checksum up to date with a change; one that is not there stays away.
fn udp_sum(p: &mut [u8], h: &Headers, from: &[u8], to: &[u8]) -> Option<()> {
    let at = h.l4? + 6;
    let old = packet::be16(p, at)?;
    if old != 0 {
        let new = checksum::update(old, from, to);
        p.get_mut(at..at + 2)?.copy_from_slice(&if new == 0 { 0xffff } else { new }.to_be_bytes());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of;
    use openflow_rs::FieldId;
    use packet::build;

    /// User data: the result in a bit of `reg9`, relay and server.
    fn data() -> Vec<u8> {
        let mut d = of::field_header(FieldId::Reg9).to_vec();
        d.extend([0, 0, 0, 7, 192, 168, 1, 1, 172, 16, 1, 1]);
        d
    }

    fn message(operation: u8, change: impl Fn(&mut Vec<u8>), options: &[u8]) -> PacketIn {
        let mut m = vec![0; FIXED];
        m[..4].copy_from_slice(&[operation, 1, 6, 0]);
        m[CHADDR..CHADDR + 6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        change(&mut m);
        m.extend(COOKIE);
        m.extend(options);
        m.push(255);
        let (from, to) = (Ipv4Addr::new(172, 16, 1, 1).into(), Ipv4Addr::new(192, 168, 1, 1).into());
        let packet = build::udp([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], (from, 67), (to, 67), 64, &m).unwrap();
        PacketIn { packet, ..PacketIn::default() }
    }

    fn body(p: &PacketIn) -> (Vec<u8>, Headers) {
        let h = Headers::parse(&p.packet).unwrap();
        assert!(checksum::l4_ok(&p.packet, &h));
        (p.packet[h.l4.unwrap() + 8..].to_vec(), h)
    }

    #[test]
    fn a_request_gets_the_relays_address() {
        let out = request(&message(REQUEST, |_| {}, &[53, 1, 1]), &data()).unwrap();
        let (m, _) = body(&out);
        assert_eq!((m[HOPS], &m[GIADDR..GIADDR + 4]), (1, &[192, 168, 1, 1][..]));
        assert_eq!(out.metadata.get(FieldId::Reg9), (0x80, 0x80));
        assert!(request(&message(REQUEST, |m| m[GIADDR] = 1, &[53, 1, 1]), &data()).is_none(), "relayed before");
        assert!(request(&message(REQUEST, |_| {}, &[]), &data()).is_none(), "of no kind");
        assert!(request(&message(REPLY, |_| {}, &[53, 1, 1]), &data()).is_none());
    }

    #[test]
    fn a_reply_goes_to_the_client() {
        let relayed = |m: &mut Vec<u8>| {
            m[GIADDR..GIADDR + 4].copy_from_slice(&[192, 168, 1, 1]);
            m[YIADDR..YIADDR + 4].copy_from_slice(&[192, 168, 1, 9]);
        };
        const OFFERED: [u8; 15] = [53, 1, 2, 54, 4, 172, 16, 1, 1, 1, 4, 255, 255, 255, 0];
        let out = response(&message(REPLY, relayed, &OFFERED), &data()).unwrap();
        let (_, h) = body(&out);
        assert_eq!(
            (&out.packet[..6], &out.packet[h.l3 + 16..h.l3 + 20]),
            (&[2, 0, 0, 0, 0, 9][..], &[192, 168, 1, 9][..])
        );
        let broadcast = |m: &mut Vec<u8>| {
            relayed(m);
            m[10] = 0x80;
        };
        let out = response(&message(REPLY, broadcast, &OFFERED), &data()).unwrap();
        assert_eq!(out.packet[h.l3 + 16..h.l3 + 20], [255; 4]);
        let elsewhere = |m: &mut Vec<u8>| {
            relayed(m);
            m[YIADDR + 2] = 7;
        };
        assert!(response(&message(REPLY, elsewhere, &OFFERED), &data()).is_none(), "of another network");
        assert!(
            response(&message(REPLY, relayed, &[53, 1, 2, 54, 4, 172, 16, 1, 2]), &data()).is_none(),
            "another server"
        );
        assert!(response(&message(REPLY, |_| {}, &OFFERED), &data()).is_none(), "for another relay");
    }
}
