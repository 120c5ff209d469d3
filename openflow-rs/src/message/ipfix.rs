//! Counters of IPFIX exporters: Nicira's statistics NXST_IPFIX_BRIDGE and NXST_IPFIX_FLOW (ovs-ofctl(8),
//! `dump-ipfix-bridge` and `dump-ipfix-flow`), in every version of OpenFlow.

use crate::wire::{NX_VENDOR, Put, Reader, Result};

/// NXST_IPFIX_BRIDGE: the exporter of all packets of a bridge.
pub(super) const BRIDGE: u32 = 3;
/// NXST_IPFIX_FLOW: the exporters of `sample` actions, by collector set.
pub(super) const FLOW: u32 = 4;

/// What an exporter of IPFIX has counted since it was configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpfixStats {
    /// Flow records that were begun.
    pub flows: u64,
    /// Flow records that are being gathered now.
    pub current_flows: u64,
    /// Packets that were sampled.
    pub packets: u64,
    /// Of these, IPv4 with TCP, UDP, SCTP or ICMP.
    pub ipv4: u64,
    /// IPv6 with one of these.
    pub ipv6: u64,
    /// IP packets that cannot be read, or with another protocol.
    pub errors: u64,
    /// Of these, IPv4.
    pub ipv4_errors: u64,
    /// IPv6.
    pub ipv6_errors: u64,
    /// Messages that were sent, one for each collector.
    pub sent: u64,
    /// Messages that could not be sent.
    pub send_errors: u64,
    /// The collector set; 0 for that of a bridge.
    pub collector_set: u32,
}

impl IpfixStats {
    pub(super) fn put(&self, o: &mut Vec<u8>) {
        let s = self;
        let counters = [s.flows, s.current_flows, s.packets, s.ipv4, s.ipv6, s.errors, s.ipv4_errors, s.ipv6_errors];
        counters.into_iter().chain([s.sent, s.send_errors]).for_each(|n| o.p64(n));
        o.p32(s.collector_set);
        o.zeros(4);
    }

    pub(super) fn pull(r: &mut Reader<'_>) -> Result<IpfixStats> {
        let s = IpfixStats {
            flows: r.u64()?,
            current_flows: r.u64()?,
            packets: r.u64()?,
            ipv4: r.u64()?,
            ipv6: r.u64()?,
            errors: r.u64()?,
            ipv4_errors: r.u64()?,
            ipv6_errors: r.u64()?,
            sent: r.u64()?,
            send_errors: r.u64()?,
            collector_set: r.u32()?,
        };
        r.skip(4)?;
        Ok(s)
    }
}

/// The subtype of an experimenter's statistics, where they are those of IPFIX.
pub(super) fn subtype(mut r: Reader<'_>) -> Option<u32> {
    let (vendor, subtype) = (r.u32().ok()?, r.u32().ok()?);
    (vendor == NX_VENDOR && [BRIDGE, FLOW].contains(&subtype)).then_some(subtype)
}

#[cfg(test)]
mod tests {
    use super::super::{Message, MultipartReply, MultipartRequest, Version};
    use super::*;

    #[test]
    fn statistics_are_read_as_they_are_written() {
        let one = IpfixStats {
            flows: 1,
            packets: 3,
            ipv6_errors: 8,
            send_errors: 10,
            collector_set: 11,
            ..Default::default()
        };
        let messages = [
            Message::MultipartRequest(MultipartRequest::IpfixBridge),
            Message::MultipartRequest(MultipartRequest::IpfixFlow),
            Message::MultipartReply { more: false, body: MultipartReply::IpfixBridge(one) },
            Message::MultipartReply { more: false, body: MultipartReply::IpfixFlow(vec![one, IpfixStats::default()]) },
            Message::MultipartReply { more: false, body: MultipartReply::IpfixFlow(vec![]) },
        ];
        for v in [Version::Of10, Version::Of11, Version::Of13, Version::Of15] {
            for m in &messages {
                let bytes = m.encode(v, 7);
                let (_, back) = Message::decode(&bytes).unwrap();
                assert_eq!(&back, m, "{v:?}");
            }
        }
    }
}
