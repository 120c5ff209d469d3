//! Flows as NetFlow tells them apart, whose packets and bytes are counted as those of other flows are: once for each walk, and
//! with the counters of cached flows for the packets that these serve.

use crate::events::Passage;
use crate::ids::BridgeId;
use crate::tunnel::CE;
use openflow_rs::{FieldId as F, PortNo};
use packet::{Headers, be16, ethertype, ipproto};
use std::sync::{Arc, OnceLock};

/// By which ports packets of a flow leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Leaves {
    /// None.
    #[default]
    No,
    /// One.
    By(PortNo),
    /// Several.
    BySeveral,
    /// All.
    ByAll,
}

/// What tells flows of a bridge apart. All of it is of IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NetflowKey {
    /// The port that packets came by.
    pub in_port: PortNo,
    /// Sender and receiver.
    pub addresses: [u32; 2],
    /// Their ports; 0, and type and code, of ICMP; zeros where there are none.
    pub ports: [u16; 2],
    /// Protocol.
    pub proto: u8,
    /// Type of service, without the bits of congestion notification.
    pub tos: u8,
}

/// A flow of a bridge.
#[derive(Debug)]
pub struct NetflowFlow {
    /// The bridge.
    pub bridge: BridgeId,
    /// What tells it apart.
    pub key: NetflowKey,
    /// Flags of TCP that its packets have.
    pub flags: u8,
    leaves: OnceLock<Leaves>,
}

/// Packets of a flow, and their bytes.
#[derive(Clone, Debug)]
pub struct NetflowCount {
    /// The flow.
    pub flow: Arc<NetflowFlow>,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What of an IPv4 packet with this protocol tells its flow apart.
pub(crate) fn fields(proto: u8) -> impl Iterator<Item = F> {
    let of_transport = match proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => &[F::TcpSrc, F::TcpDst][..],
        ipproto::ICMP => &[F::IcmpType, F::IcmpCode],
        _ => &[],
    };
    [F::IpProto, F::IpSrc, F::IpDst, F::IpDscp].into_iter().chain(of_transport.iter().copied())
}

impl NetflowFlow {
    /// The flow of a packet that comes into a bridge; none: it is not IPv4.
    pub(crate) fn of(bridge: BridgeId, in_port: PortNo, p: &[u8], h: &Headers) -> Option<NetflowFlow> {
        if h.ethertype != ethertype::IPV4 || !h.ip_ok {
            return None;
        }
        let (src, dst) = h.addresses(p)?;
        let l4 = h.l4.filter(|_| !h.later_fragment);
        let two = |at: usize| be16(p, at).unwrap_or(0);
        let (ports, flags) = match (h.proto, l4) {
            (ipproto::TCP, Some(at)) => ([two(at), two(at + 2)], p.get(at + 13).copied().unwrap_or(0)),
            (ipproto::UDP | ipproto::SCTP, Some(at)) => ([two(at), two(at + 2)], 0),
            (ipproto::ICMP, Some(at)) => ([0, two(at)], 0),
            _ => ([0, 0], 0),
        };
        let tos = p.get(h.l3 + 1).copied().unwrap_or(0) & !CE;
        let key = NetflowKey { in_port, addresses: [src as u32, dst as u32], ports, proto: h.proto, tos };
        Some(NetflowFlow { bridge, key, flags, leaves: OnceLock::new() })
    }

    /// By which ports its packets leave.
    pub fn leaves(&self) -> Leaves {
        self.leaves.get().copied().unwrap_or_default()
    }

    /// The walk of its packet is done.
    pub(crate) fn left(&self, p: &Passage) {
        let leaves = match p.outputs.as_slice() {
            _ if p.flooded => Leaves::ByAll,
            [] => Leaves::No,
            [d] => Leaves::By(d.port),
            _ => Leaves::BySeveral,
        };
        // It is of one walk alone.
        let _ = self.leaves.set(leaves);
    }

    /// All of it, in three words.
    pub(crate) fn words(&self) -> [u64; 3] {
        let NetflowKey { in_port, addresses: [src, dst], ports: [sport, dport], proto, tos } = self.key;
        let (kind, port) = match self.leaves() {
            Leaves::No => (0, 0),
            Leaves::By(p) => (1, p.0),
            Leaves::BySeveral => (2, 0),
            Leaves::ByAll => (3, 0),
        };
        [
            u64::from(self.flags) << 56
                | kind << 48
                | u64::from(port) << 32
                | (self.bridge.index() as u64 & 0xffff) << 16,
            u64::from(src) << 32 | u64::from(dst),
            u64::from(sport) << 48
                | u64::from(dport) << 32
                | u64::from(proto) << 24
                | u64::from(tos) << 16
                | u64::from(in_port.0),
        ]
    }
}
