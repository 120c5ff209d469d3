//! The kernel's next hop objects (`ip nexthop … fdb`), by which an Ethernet address is behind several VTEPs at once (EVPN multihoming,
//! RFC 7432 section 8.4). The netlink crates do not know these messages; this module speaks as much of them as is needed.

use futures::StreamExt;
use rtnetlink::packet_core::{
    DecodeError, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use rtnetlink::proto::{ConnectionHandle, new_connection_with_socket};
use rtnetlink::sys::{AsyncSocket, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

/// RTM_NEWNEXTHOP, RTM_DELNEXTHOP and RTM_GETNEXTHOP of linux/rtnetlink.h.
const NEW: u16 = 104;
const DELETE: u16 = 105;
const GET: u16 = 106;
/// RTNLGRP_NEXTHOP.
const GROUP: u32 = 32;
/// NHA_ID, NHA_GROUP and NHA_GATEWAY of linux/nexthop.h.
const ID: u16 = 1;
const MEMBERS: u16 = 2;
const GATEWAY: u16 = 6;
/// The length of struct nhmsg.
const HEADER: usize = 8;

/// A message about a next hop: its type, and all behind the netlink header.
#[derive(Clone, Debug)]
pub struct Message {
    kind: u16,
    bytes: Vec<u8>,
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }
    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;
    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, DecodeError> {
        Ok(Message { kind: header.message_type, bytes: payload.to_vec() })
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(m: Message) -> NetlinkPayload<Message> {
        NetlinkPayload::InnerMessage(m)
    }
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NextHop {
    /// To one address.
    To(IpAddr),
    /// To some of these, by weight.
    Group(Vec<(u32, u16)>),
}

/// The next hops, by number.
#[derive(Clone, Debug, Default)]
pub struct NextHops(BTreeMap<u32, NextHop>);

impl NextHops {
    /// The addresses that one leads to, with their weights; none where it is not there.
    pub fn paths(&self, id: u32) -> BTreeMap<IpAddr, u16> {
        let to = |id: &u32| match self.0.get(id) {
            Some(NextHop::To(ip)) => Some(*ip),
            // Groups have no groups in them.
            _ => None,
        };
        match self.0.get(&id) {
            Some(NextHop::To(ip)) => BTreeMap::from([(*ip, 1)]),
            Some(NextHop::Group(members)) => {
                members.iter().filter_map(|(id, weight)| Some((to(id)?, *weight))).collect()
            }
            None => BTreeMap::new(),
        }
    }
}

/// A connection that reads them and hears of changes.
pub struct Source {
    handle: ConnectionHandle<Message>,
    messages: futures::channel::mpsc::UnboundedReceiver<(NetlinkMessage<Message>, SocketAddr)>,
}

impl Source {
    /// Connects in the process's network namespace.
    ///
    /// # Errors
    /// There is no netlink socket, or the kernel has no next hop objects (before 5.3).
    pub fn start() -> io::Result<Source> {
        let (mut connection, handle, messages) = new_connection_with_socket::<Message, TokioSocket>(NETLINK_ROUTE)?;
        let socket = connection.socket_mut().socket_mut();
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(GROUP)?;
        tokio::spawn(connection);
        Ok(Source { handle, messages })
    }

    /// Waits until one changes.
    pub async fn changed(&mut self) {
        loop {
            match self.messages.next().await {
                Some((m, _)) => match m.payload {
                    NetlinkPayload::InnerMessage(m) if !matches!(m.kind, NEW | DELETE) => {}
                    _ => return,
                },
                None => std::future::pending().await,
            }
        }
    }

    /// Reads all.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn read(&mut self) -> io::Result<NextHops> {
        let mut request = NetlinkMessage::from(Message { kind: GET, bytes: vec![0; HEADER] });
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        request.finalize();
        let mut answers = self.handle.request(request, SocketAddr::new(0, 0)).map_err(io::Error::other)?;
        let mut out = NextHops::default();
        while let Some(m) = answers.next().await {
            match m.payload {
                NetlinkPayload::InnerMessage(m) => out.0.extend(parse(&m.bytes)),
                NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                _ => {}
            }
        }
        Ok(out)
    }
}

/// Splits attributes (struct nlattr) into type and value. What is cut short ends the list.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_first_chunk::<4>()?;
        let [a, b, c, d] = *header;
        let value = usize::from(u16::from_ne_bytes([a, b])).checked_sub(4)?;
        let out = rest.get(..value)?;
        bytes = rest.get(value.next_multiple_of(4)..).unwrap_or_default();
        // The two highest bits are flags.
        Some((u16::from_ne_bytes([c, d]) & 0x3fff, out))
    })
}

fn parse(message: &[u8]) -> Option<(u32, NextHop)> {
    let (mut id, mut next_hop) = (None, None);
    for (kind, value) in attributes(message.get(HEADER..)?) {
        match kind {
            ID => id = value.try_into().ok().map(u32::from_ne_bytes),
            GATEWAY => next_hop = address(value).map(NextHop::To),
            // struct nexthop_grp: number, weight less 1 (its high byte since 6.12), padding.
            MEMBERS => {
                let member = |m: &[u8; 8]| {
                    let [a, b, c, d, low, high, ..] = *m;
                    (u32::from_ne_bytes([a, b, c, d]), u16::from_be_bytes([high, low]).saturating_add(1))
                };
                next_hop = Some(NextHop::Group(value.as_chunks::<8>().0.iter().map(member).collect()));
            }
            _ => {}
        }
    }
    Some((id?, next_hop?))
}

/// An address of 4 or 16 bytes.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    fn message(attributes: &[Vec<u8>]) -> Vec<u8> {
        [&[0; HEADER][..], &attributes.concat()].concat()
    }

    #[test]
    fn a_group_leads_to_its_members() {
        let one = message(&[attribute(ID, &5u32.to_ne_bytes()), attribute(GATEWAY, &[10, 0, 0, 1])]);
        let v6 = message(&[attribute(ID, &6u32.to_ne_bytes()), attribute(GATEWAY, &[0xfd; 16])]);
        let member = |id: u32, low: u8, high: u8| [&id.to_ne_bytes()[..], &[low, high, 0, 0]].concat();
        let members = [member(5, 99, 0), member(6, 255, 0), member(9, 0, 0)].concat();
        let group = message(&[attribute(ID, &7u32.to_ne_bytes()), attribute(MEMBERS, &members)]);
        let all = NextHops([one, v6, group].iter().filter_map(|m| parse(m)).collect());
        let paths: Vec<u16> = all.paths(7).into_values().collect();
        assert_eq!(paths, [100, 256], "a member that is not there leads nowhere");
        assert_eq!(all.paths(5), BTreeMap::from([("10.0.0.1".parse().unwrap(), 1)]));
        assert!(all.paths(8).is_empty());
    }

    #[test]
    fn bytes_that_are_no_next_hop_are_left_out() {
        let good = message(&[attribute(ID, &5u32.to_ne_bytes()), attribute(GATEWAY, &[10, 0, 0, 1])]);
        for n in 0..good.len() {
            assert_eq!(parse(&good[..n]), None, "{n} bytes");
        }
        assert_eq!(parse(&message(&[attribute(ID, &[1]), attribute(GATEWAY, &[10, 0, 0, 1])])), None);
        assert_eq!(parse(&message(&[vec![2, 0, 1, 0]])), None, "an attribute shorter than its header");
    }
}
