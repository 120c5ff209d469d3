//! What comes out of the switch beside counters: packets, and events for the control plane.

use crate::conntrack::reassembly::Suspended;
use crate::drops::DropReason;
use crate::ids::{BridgeId, Target};
use crate::tunnel::Outer;
use openflow_rs::message::{FlowRemoved, PacketIn};
use openflow_rs::{FlowKey, Match, PortNo};
use packet::Headers;
use std::net::IpAddr;
use std::sync::Arc;

/// Whether a packet-in is of a packet that no flow, or only the one that matches everything, had an answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// A flow says so.
    No,
    /// The flow that matches everything with priority 0 says so, which OpenFlow 1.3 calls the table-miss flow.
    Flow,
    /// No flow matched. Such packets are for OpenFlow 1.0 to 1.2 alone.
    NoFlow,
}

/// An event for the control plane.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet for a controller.
    PacketIn {
        /// Bridge.
        bridge: BridgeId,
        /// Controller connection id.
        controller: u16,
        /// The packet.
        packet_in: Box<PacketIn>,
        /// Whether it is there as no other flow matched it.
        miss: Miss,
    },
    /// A packet for collectors.
    Sample {
        /// Bridge.
        bridge: BridgeId,
        /// The packet.
        sample: Box<Sample>,
    },
    /// Where an observed packet went.
    Passage {
        /// Bridge that it came into.
        bridge: BridgeId,
        /// What was seen.
        passage: Box<Passage>,
    },
    /// A packet of a slow protocol (LACP) for a bond; it never reaches the tables.
    Slow {
        /// Bridge.
        bridge: BridgeId,
        /// The bond's member.
        port: PortNo,
        /// The frame.
        packet: Vec<u8>,
    },
    /// A BPDU for a bridge's spanning tree; it never reaches the tables.
    Bpdu {
        /// Bridge.
        bridge: BridgeId,
        /// The port that it came by.
        port: PortNo,
        /// The frame.
        packet: Vec<u8>,
    },
    /// A flow with the flag `send_flow_rem` was removed.
    FlowRemoved {
        /// Bridge.
        bridge: BridgeId,
        /// The flow.
        removed: Box<FlowRemoved>,
    },
    /// A tunnel's next hop must be resolved; the packet can be sent then ([`crate::Switch::send_held`]).
    NeighbourWanted(IpAddr, Box<HeldPacket>),
    /// A packet for a port's maintenance point; it never reaches the tables.
    Ccm {
        /// Bridge.
        bridge: BridgeId,
        /// Port.
        port: PortNo,
        /// The frame, without a tunnel's headers.
        packet: Vec<u8>,
    },
    /// A packet passed a limit of translation, and is dropped. At most one a minute is told of.
    LimitPassed {
        /// The bridge that the packet was in.
        bridge: BridgeId,
        /// The limit.
        reason: DropReason,
        /// The port that it came by, and what else its bytes do not say.
        metadata: Match,
        /// The packet.
        packet: Vec<u8>,
    },
    /// LLDP of a port's neighbour; it never reaches the tables.
    Lldp {
        /// Bridge.
        bridge: BridgeId,
        /// Port.
        port: PortNo,
        /// The frame, without a tunnel's headers.
        packet: Vec<u8>,
    },
}

/// Outputs of the switch; the caller reuses it and empties it between batches.
#[derive(Debug)]
pub struct Outputs<P> {
    /// Packets, and where each leaves.
    pub packets: Vec<(Target, P)>,
    /// Events.
    pub events: Vec<Event>,
    /// BFD packets for ports' sessions, without a tunnel's headers; they never reach the tables.
    pub bfd: Vec<(BridgeId, PortNo, P)>,
    /// A fragment that a flow put by until its datagram is complete. The switch takes it at once.
    pub(crate) held: Option<HeldFragment<P>>,
    /// The same while the flow is carried out.
    pub(crate) left: Option<P>,
}

/// A fragment for reassembly, how it goes on, and why it is dropped if nothing of it is sent.
#[derive(Debug)]
pub(crate) struct HeldFragment<P> {
    pub(crate) packet: P,
    pub(crate) rest: Arc<Suspended>,
    pub(crate) why: Option<DropReason>,
}

impl<P> Default for Outputs<P> {
    fn default() -> Self {
        Outputs { packets: Vec::new(), events: Vec::new(), bfd: Vec::new(), held: None, left: None }
    }
}

/// A packet that leaves by a tunnel as soon as its next hop has an Ethernet address.
#[derive(Clone, Debug)]
pub struct HeldPacket {
    pub(crate) bridge: BridgeId,
    /// The tunnel.
    pub(crate) port: PortNo,
    pub(crate) packet: Vec<u8>,
    /// What its bytes say.
    pub(crate) base: FlowKey,
    /// The same, with what decides about the tunnel's headers.
    pub(crate) key: FlowKey,
    pub(crate) queue: Option<u16>,
}

/// A packet that a `sample` action chose.
#[derive(Clone, Debug)]
pub struct Sample {
    /// `Flow_Sample_Collector_Set` of the bridge.
    pub collector_set: u32,
    /// Observation domain.
    pub domain: u32,
    /// Observation point.
    pub point: u32,
    /// Where the packet came from.
    pub in_port: PortNo,
    /// The port that the flow names ([`PortNo::ANY`]: none).
    pub sampling_port: PortNo,
    /// Sampled on egress.
    pub egress: bool,
    /// Its first bytes.
    pub head: Vec<u8>,
    /// Where its headers are.
    pub headers: Headers,
    /// Its length.
    pub len: usize,
    /// The tunnel that it came by.
    pub outer: Option<Outer>,
    /// It represents so many packets.
    pub weight: u32,
}

/// An observed packet and where it went, for exporters (sFlow, IPFIX, NetFlow).
#[derive(Clone, Debug)]
pub struct Passage {
    /// Where it came from.
    pub in_port: PortNo,
    /// As it came.
    pub packet: Glimpse,
    /// The tunnel that it came by.
    pub outer: Option<Outer>,
    /// It went to all ports.
    pub flooded: bool,
    /// The ports that it left by, of any bridge, and what it was then.
    pub outputs: Vec<Departure>,
}

/// A packet that left.
#[derive(Clone, Debug)]
pub struct Departure {
    /// By a port of this bridge.
    pub bridge: BridgeId,
    /// The port.
    pub port: PortNo,
    /// As it left, without a tunnel's headers.
    pub packet: Glimpse,
    /// The tunnel that it left by, or was to: without a route its sender is not known.
    pub outer: Option<Outer>,
}

/// The first bytes of a packet, and its length.
#[derive(Clone, Debug)]
pub struct Glimpse {
    /// Its first bytes.
    pub head: Vec<u8>,
    /// Its length.
    pub len: usize,
}

/// Bytes kept of an observed packet: the most that sFlow reports.
const GLIMPSE: usize = 256;

impl Glimpse {
    pub(crate) fn of(data: &[u8]) -> Glimpse {
        Glimpse { head: data.get(..GLIMPSE).unwrap_or(data).to_vec(), len: data.len() }
    }
}
