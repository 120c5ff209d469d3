//! The checks of a DHCPv4 relay (`dhcp_relay_req_chk`, `dhcp_relay_resp_chk`; RFC 1542, RFC 2131): requests get the relay's address
//! on their way to the server, and replies the client's on their way back.

use super::dhcp::set_result;
use openflow_rs::message::PacketIn;
use packet::dhcp::kind::{ACK, OFFER};
use packet::dhcp::option::{NETMASK, REQUESTED_IP, ROUTER, SERVER_ID};
use packet::dhcp::place::{CIADDR, GIADDR, HOPS, YIADDR};
use packet::dhcp::{BOOTREPLY, BOOTREQUEST, Message};
use packet::{Headers, checksum};
use std::net::Ipv4Addr;

/// The message of a packet, where it is one of this operation from or for a client on Ethernet.
fn message(p: &[u8], operation: u8) -> Option<Message<'_>> {
    Message::parse(p).filter(|m| m.operation() == operation && m.is_ethernet())
}

/// What logs say of a message.
fn describe(m: &Message<'_>) -> String {
    let mac = m.client().map(|b| format!("{b:02x}")).join(":");
    format!("MSG_TYPE:{} MAC:{mac} XID:{}", m.kind_name(), m.xid())
}

/// The addresses of relay and server in the user data, behind the result's place.
fn addresses(data: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    Some((packet::be32(data, 8)?.into(), packet::be32(data, 12)?.into()))
}

/// The client's request, to go on to the server. None where it is not to be relayed.
pub(super) fn request(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (relay, server) = addresses(data)?;
    let m = message(&p.packet, BOOTREQUEST)?;
    if !m.address(GIADDR).is_unspecified() {
        tracing::debug!(target: "pinctrl", "DHCP_RELAY_REQ_CHK: giaddr is already set");
        return None;
    }
    m.kind()?;
    let asked = m.option_address(REQUESTED_IP).unwrap_or_else(|| m.address(CIADDR));
    let text = describe(&m);
    tracing::info!(target: "pinctrl", "DHCP_RELAY_REQ_CHK:: {text} REQ_IP:{asked} GIADDR:{relay} SERVER_ADDR:{server}");
    let (mut out, start) = (p.clone(), m.headers.l4? + 8);
    let hops = [m.bytes[HOPS], m.bytes[HOPS + 1]];
    let more = [m.bytes[HOPS].saturating_add(1), m.bytes[HOPS + 1]];
    // An odd place: the sum goes over the word that it is in.
    let (word, moved) = ([m.bytes[HOPS - 1], hops[0]], [m.bytes[HOPS - 1], more[0]]);
    *out.packet.get_mut(start + HOPS)? = more[0];
    out.packet.get_mut(start + GIADDR..start + GIADDR + 4)?.copy_from_slice(&relay.octets());
    udp_sum(&mut out.packet, &m.headers, &word, &moved)?;
    udp_sum(&mut out.packet, &m.headers, &[0; 4], &relay.octets())?;
    set_result(&mut out.metadata, data.get(..8)?)?;
    Some(out)
}

/// The server's reply, to go on to the client. None where it is not to be relayed.
pub(super) fn response(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (relay, server) = addresses(data)?;
    let m = message(&p.packet, BOOTREPLY)?;
    let (yours, said) = (m.address(YIADDR), m.option_address(SERVER_ID)?);
    let kind = m.kind()?;
    if m.address(GIADDR) != relay || said != server {
        tracing::debug!(target: "pinctrl", "DHCP_RELAY_RESP_CHK: giaddr or server identifier mismatch");
        return None;
    }
    let text = format!("{} YIADDR:{yours} GIADDR:{relay} SERVER_ADDR:{said}", describe(&m));
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
    let to = if m.broadcast() { Ipv4Addr::BROADCAST } else { yours };
    let mac = m.client();
    let at = m.headers.l3 + 16;
    let before: [u8; 4] = p.packet.get(at..at + 4)?.try_into().ok()?;
    out.packet.get_mut(..6)?.copy_from_slice(&mac[..]);
    out.packet.get_mut(at..at + 4)?.copy_from_slice(&to.octets());
    checksum::set_ipv4(&mut out.packet, m.headers.l3);
    udp_sum(&mut out.packet, &m.headers, &before, &to.octets())?;
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
    use crate::encode::of;
    use openflow_rs::FieldId;
    use packet::build;
    use packet::dhcp::place::CHADDR;
    use packet::dhcp::{COOKIE, FIXED};

    /// User data: the result in a bit of `reg9`, relay and server.
    fn data() -> Vec<u8> {
        let mut d = of::field_header(FieldId::Reg9).to_vec();
        d.extend([0, 0, 0, 7, 192, 168, 1, 1, 172, 16, 1, 1]);
        d
    }

    fn sample(operation: u8, change: impl Fn(&mut Vec<u8>), options: &[u8]) -> PacketIn {
        let mut m = vec![0; FIXED];
        m[..4].copy_from_slice(&[operation, 1, 6, 0]);
        m[CHADDR..CHADDR + 6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        change(&mut m);
        m.extend(COOKIE);
        m.extend(options);
        m.push(255);
        let (from, to) = (Ipv4Addr::new(172, 16, 1, 1).into(), Ipv4Addr::new(192, 168, 1, 1).into());
        let packet =
            build::udp(packet::Mac([2, 0, 0, 0, 0, 1]), packet::Mac([2, 0, 0, 0, 0, 2]), (from, 67), (to, 67), 64, &m)
                .unwrap();
        PacketIn { packet, ..PacketIn::default() }
    }

    fn body(p: &PacketIn) -> (Vec<u8>, Headers) {
        let h = Headers::parse(&p.packet).unwrap();
        assert!(checksum::l4_ok(&p.packet, &h));
        (p.packet[h.l4.unwrap() + 8..].to_vec(), h)
    }

    #[test]
    fn a_request_gets_the_relays_address() {
        let out = request(&sample(BOOTREQUEST, |_| {}, &[53, 1, 1]), &data()).unwrap();
        let (m, _) = body(&out);
        assert_eq!((m[HOPS], &m[GIADDR..GIADDR + 4]), (1, &[192, 168, 1, 1][..]));
        assert_eq!(out.metadata.get(FieldId::Reg9), (0x80, 0x80));
        assert!(request(&sample(BOOTREQUEST, |m| m[GIADDR] = 1, &[53, 1, 1]), &data()).is_none(), "relayed before");
        assert!(request(&sample(BOOTREQUEST, |_| {}, &[]), &data()).is_none(), "of no kind");
        assert!(request(&sample(BOOTREPLY, |_| {}, &[53, 1, 1]), &data()).is_none());
    }

    #[test]
    fn a_reply_goes_to_the_client() {
        let relayed = |m: &mut Vec<u8>| {
            m[GIADDR..GIADDR + 4].copy_from_slice(&[192, 168, 1, 1]);
            m[YIADDR..YIADDR + 4].copy_from_slice(&[192, 168, 1, 9]);
        };
        const OFFERED: [u8; 15] = [53, 1, 2, 54, 4, 172, 16, 1, 1, 1, 4, 255, 255, 255, 0];
        let out = response(&sample(BOOTREPLY, relayed, &OFFERED), &data()).unwrap();
        let (_, h) = body(&out);
        assert_eq!(
            (&out.packet[..6], &out.packet[h.l3 + 16..h.l3 + 20]),
            (&[2, 0, 0, 0, 0, 9][..], &[192, 168, 1, 9][..])
        );
        let broadcast = |m: &mut Vec<u8>| {
            relayed(m);
            m[10] = 0x80;
        };
        let out = response(&sample(BOOTREPLY, broadcast, &OFFERED), &data()).unwrap();
        assert_eq!(out.packet[h.l3 + 16..h.l3 + 20], [255; 4]);
        let elsewhere = |m: &mut Vec<u8>| {
            relayed(m);
            m[YIADDR + 2] = 7;
        };
        assert!(response(&sample(BOOTREPLY, elsewhere, &OFFERED), &data()).is_none(), "of another network");
        assert!(
            response(&sample(BOOTREPLY, relayed, &[53, 1, 2, 54, 4, 172, 16, 1, 2]), &data()).is_none(),
            "another server"
        );
        assert!(response(&sample(BOOTREPLY, |_| {}, &OFFERED), &data()).is_none(), "for another relay");
    }
}
