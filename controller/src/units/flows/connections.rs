//! Connections that the switch is to forget when what they belong to goes.

use super::{Key, Seen, Value, is_local, row, zone};
use crate::input::model::Read;
use openflow_rs::message::{CtFlush, CtTuple};
use ovn_schema::Uuid;
use ovn_schema::sb::{self, TableId};
use std::fmt;
use std::net::IpAddr;

/// Whose connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Connections {
    /// Those to one backend of a service whose load balancer asks for `options:ct_flush` (ovn-nb(5)).
    Backend(Backend),
    /// Those that came by a next hop whose replies go back there (`ECMP_Nexthop`): the router's zone, and the next hop's Ethernet
    /// address, by which they are marked.
    NextHop(u16, u64),
    /// Those that an access rule with `options:persist-established` let in: its number (`ACL_ID`).
    Rule(u16),
}

/// A backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// The service's address and port; the port is 0 where all ports are served.
    pub vip: (IpAddr, u16),
    /// The backend's.
    pub backend: (IpAddr, u16),
    /// The IP protocol; 0 where all ports are served.
    pub protocol: u8,
}

/// Where the label of a connection holds the next hop's Ethernet address and the access rule's number (OVN's `ct_label.ecmp_reply_eth`
/// and `ct_label` bits 80 to 95).
const NEXT_HOP: u32 = 32;
const RULE: u32 = 80;

impl Connections {
    /// What tells the switch to forget them.
    pub fn flush(&self) -> CtFlush {
        match *self {
            Connections::Backend(b) => {
                let port = |p: u16| (p != 0).then_some(p);
                CtFlush {
                    proto: b.protocol,
                    original: CtTuple { dst: Some(b.vip.0), dst_port: port(b.vip.1), ..CtTuple::default() },
                    reply: CtTuple { src: Some(b.backend.0), src_port: port(b.backend.1), ..CtTuple::default() },
                    ..CtFlush::default()
                }
            }
            Connections::NextHop(zone, mac) => {
                let label = (u128::from(mac) << NEXT_HOP, 0xffff_ffff_ffff << NEXT_HOP);
                CtFlush { zone: Some(zone), label: Some(label), ..CtFlush::default() }
            }
            Connections::Rule(id) => {
                let label = (u128::from(id) << RULE, 0xffff << RULE);
                CtFlush { label: Some(label), ..CtFlush::default() }
            }
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Connections::Backend(b) => {
                let ((vip, vip_port), (backend, port)) = (b.vip, b.backend);
                let protocol = b.protocol;
                write!(
                    f,
                    "Flushing CT for 5-tuple: vip={vip}:{vip_port}, backend={backend}:{port}, protocol={protocol}"
                )
            }
            Connections::NextHop(zone, mac) => {
                write!(f, "Flushing conntrack entries of zone {zone} for ECMP next hop {mac:012x}.")
            }
            Connections::Rule(id) => write!(f, "Flushing conntrack entry for ACL id {id}."),
        }
    }
}

/// The connections of a next hop, while it is known and its router is here.
pub(super) fn next_hop(id: Uuid, view: &mut Seen<'_>) {
    let Some(n) = row::<sb::EcmpNexthop>(view, TableId::EcmpNexthop, id) else { return };
    let Some(mac) = n.mac.parse::<packet::Mac>().ok().map(packet::Mac::to_u64) else { return };
    if !is_local(view, n.datapath) {
        return;
    }
    let name = view.read(Read::Row(TableId::DatapathBinding, n.datapath)).zone_name(n.datapath, "dnat");
    let zone = zone(view, &name);
    if zone != 0 {
        view.emit(Key::Connections(Box::new(Connections::NextHop(zone, mac))), Value::Connections);
    }
}

/// The connections of an access rule, while it is there.
pub(super) fn rule(id: Uuid, view: &mut Seen<'_>) {
    let Some(a) = row::<sb::AclId>(view, TableId::AclId, id) else { return };
    if let Ok(id) = u16::try_from(a.id) {
        view.emit(Key::Connections(Box::new(Connections::Rule(id))), Value::Connections);
    }
}
