//! Which bucket of a `select` group a packet takes (OpenFlow 1.5 section 5.10.1).

use crate::classifier::mix;
use crate::xlate::prereq_ok;
use openflow_rs::{FieldId as F, FlowKey, Group};
use packet::ethertype;

/// Fields of a packet's tuple.
pub(crate) const TUPLE: [F; 11] = [
    F::IpSrc,
    F::IpDst,
    F::Ipv6Src,
    F::Ipv6Dst,
    F::IpProto,
    F::TcpSrc,
    F::TcpDst,
    F::UdpSrc,
    F::UdpDst,
    F::SctpSrc,
    F::SctpDst,
];

/// What the choice among the buckets of a group follows from, beside the packet.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Selection {
    /// Fields that are hashed, with their masks; none: addresses, protocol and ports.
    fields: Vec<(F, u128)>,
    basis: u64,
    /// The places of live buckets that have a weight, with the sum of the weights up to each.
    live: Vec<(u32, u64)>,
}

impl Selection {
    /// Of a group with these live buckets.
    pub(crate) fn new(g: &Group, live: &[usize]) -> Selection {
        let fields = if g.selection.name == "hash" { g.selection.fields.clone() } else { Vec::new() };
        let mut sum = 0;
        let live = live.iter().filter_map(|i| {
            let weight = g.buckets.get(*i).map(|b| u64::from(b.weight)).filter(|w| *w != 0)?;
            sum += weight;
            Some((*i as u32, sum))
        });
        Selection { fields, basis: g.selection.param, live: live.collect() }
    }

    /// The place of the bucket that a packet takes; none if no live one has a weight.
    pub(crate) fn bucket(&self, key: &FlowKey) -> Option<usize> {
        self.at(hash(key, &self.fields, self.basis))
    }

    /// The same for a packet with these ends. Only where fields were chosen its `key` is asked for.
    pub(crate) fn bucket_of<'k>(&self, ends: &Ends, key: impl FnOnce() -> &'k FlowKey) -> Option<usize> {
        match self.fields.is_empty() {
            true => self.at(ends.hash(self.basis)),
            false => self.bucket(key()),
        }
    }

    fn at(&self, hash: u64) -> Option<usize> {
        let (_, sum) = self.live.last()?;
        let at = hash % sum;
        let place = self.live.partition_point(|(_, up_to)| *up_to <= at);
        self.live.get(place).map(|(i, _)| *i as usize)
    }

    /// There is a choice: packets with other tuples may take other buckets.
    pub(crate) fn differs(&self) -> bool {
        self.live.len() > 1
    }

    /// Open vSwitch's datapath computes the hash (`dp_hash`), and not translation.
    pub(crate) fn is_of_the_datapath(&self) -> bool {
        self.fields.is_empty()
    }

    /// Nothing is hashed but a packet's addresses, protocol and ports.
    pub(crate) fn is_of_tuple(&self) -> bool {
        self.fields.iter().all(|(f, _)| TUPLE.contains(f))
    }
}

/// A packet's addresses, protocol and ports, or type and code; 0 where it has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) v6: bool,
    pub(crate) addresses: [u128; 2],
    pub(crate) proto: u8,
    pub(crate) ports: [u16; 2],
}

impl Ends {
    fn of(key: &FlowKey) -> Ends {
        let v6 = key.get(F::EthType) == u128::from(ethertype::IPV6);
        let addresses = if v6 { [F::Ipv6Src, F::Ipv6Dst] } else { [F::IpSrc, F::IpDst] };
        Ends {
            v6,
            addresses: addresses.map(|f| key.get(f)),
            proto: key.get(F::IpProto) as u8,
            ports: [F::TcpSrc, F::TcpDst].map(|f| key.get(f) as u16),
        }
    }

    fn hash(&self, basis: u64) -> u64 {
        let h = mix(basis ^ 0x5bd1_e995);
        let add = |h: u64, v: u128| mix(mix(h ^ v as u64) ^ (v >> 64) as u64);
        let [a, b] = self.addresses;
        let h = if self.v6 { add(add(h, a), b) } else { mix(h ^ (a as u64) << 32 ^ b as u64) };
        let [from, to] = self.ports.map(u64::from);
        mix(h ^ u64::from(self.proto) << 32 ^ from << 16 ^ to)
    }
}

/// A hash of some fields, or of addresses, protocol and ports.
pub(crate) fn hash(key: &FlowKey, fields: &[(F, u128)], basis: u64) -> u64 {
    if fields.is_empty() {
        return Ends::of(key).hash(basis);
    }
    let mut h = mix(basis ^ 0x5bd1_e995);
    let there = fields.iter().filter(|(f, _)| prereq_ok(key, f.def().prereq));
    there.map(|(f, mask)| key.get(*f) & mask).for_each(|v| h = mix(mix(h ^ v as u64) ^ (v >> 64) as u64));
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::Bucket;
    use proptest::prelude::*;

    /// The bucket whose share a number falls into, weight by weight.
    fn by_counting(weights: &[(usize, u16)], mut at: u64) -> Option<usize> {
        for (i, weight) in weights {
            if at < u64::from(*weight) {
                return Some(*i);
            }
            at -= u64::from(*weight);
        }
        None
    }

    proptest! {
        #[test]
        fn shares_are_those_of_the_weights(
            buckets in prop::collection::vec((0u16..5, any::<bool>()), 0..9),
            ports in prop::collection::vec(any::<u16>(), 20),
            param in any::<u64>(),
        ) {
            let mut g = Group { buckets: Vec::new(), ..Group::default() };
            g.buckets.extend(buckets.iter().zip(0..).map(|((weight, _), id)| Bucket::new(id, *weight, Vec::new())));
            g.selection.param = param;
            let live: Vec<usize> = (0..buckets.len()).filter(|i| buckets[*i].1).collect();
            let weights: Vec<(usize, u16)> = live.iter().map(|i| (*i, buckets[*i].0)).collect();
            let sum: u64 = weights.iter().map(|(_, w)| u64::from(*w)).sum();
            let selection = Selection::new(&g, &live);
            for port in ports {
                let mut key = FlowKey::new();
                key.set(F::TcpSrc, port.into());
                let wanted = (sum > 0).then(|| by_counting(&weights, hash(&key, &[], param) % sum)).flatten();
                prop_assert_eq!(selection.bucket(&key), wanted);
                prop_assert!(selection.differs() || wanted == weights.iter().find(|(_, w)| *w > 0).map(|(i, _)| *i));
            }
        }
    }
}
