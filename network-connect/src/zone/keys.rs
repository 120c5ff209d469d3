//! Port keys on a connect router.
//!
//! Zones address each other's ports by their keys, so every zone must come to the same one from the resources alone. With
//! `m` keys for each block of `networkPrefix` (as many as it has addresses, at most 5,000), the port of node `n` in the block
//! of index `i` has key `i·m + n + 1`, as OVN-Kubernetes has it; of a shared block, `n` is the pair's index. OVN allows keys
//! up to 32,767. A block has half as many pairs as addresses, so the upper half of each `m` keys is never used that way:
//! blocks whose own keys are too high have theirs there. What fits nowhere is left to `northd`.

use crate::address::Subnet;
use crate::manager::allocate::Subnets;
use crate::resource::connect::Spec;
use crate::resource::{Layer, Owner};

/// The highest key of a port (ovn-sb(5), `Port_Binding:tunnel_key`).
pub const HIGHEST: u128 = 32_767;

/// The most nodes of a cluster.
const NODES: u128 = 5_000;

/// The key of a port, or why it has none.
///
/// # Errors
/// In words.
pub fn port_key(spec: &Spec, owner: Owner, subnets: &Subnets, node: u32) -> Result<u32, String> {
    let first = subnets.iter().next().ok_or("the network has no subnets")?;
    let range = spec.range(first.family()).ok_or("the subnet's IP family is not one of spec.connectSubnets")?;
    let block = first.within(range.prefix);
    let index = range.cidr.index_of(block).ok_or("the subnet is outside of spec.connectSubnets")?;
    let addresses = 1u128.checked_shl(u32::from(block.host_bits())).unwrap_or(u128::MAX);
    let each = addresses.min(NODES);
    let number = match owner.layer {
        Layer::Three => u128::from(node),
        Layer::Two => block.index_of(first.within(Subnet::pair_prefix(first.family()))).unwrap_or(0),
    };
    key(index, each, addresses / 2, number).ok_or_else(|| {
        format!("keys of ports end at {HIGHEST}, and block {index} of {} with {each} keys each lies behind", range.cidr)
    })
}

fn key(index: u128, each: u128, pairs: u128, number: u128) -> Option<u32> {
    let lower = index.checked_mul(each)?.checked_add(number + 1)?;
    let fits = |key: u128| (key <= HIGHEST).then_some(key).and_then(|key| u32::try_from(key).ok());
    // Blocks of which all own keys fit.
    let own = (HIGHEST + 1) / each;
    if number >= each {
        return None;
    }
    if index < own {
        return fits(lower);
    }
    // The upper halves are free where no block uses them for nodes.
    if pairs * 2 != each {
        return if index == own { fits(lower) } else { None };
    }
    let upper = (index - own).checked_mul(each)?.checked_add(pairs + number + 1)?;
    if index - own < own { fits(upper) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn keys_that_ovn_allows_are_those_of_ovn_kubernetes() {
        // 192.168.0.0/16 in blocks of /24: 256 keys each.
        assert_eq!(key(0, 256, 128, 0), Some(1));
        assert_eq!(key(1, 256, 128, 5), Some(262));
        assert_eq!(key(127, 256, 128, 127), Some(32640));
        // Behind it, upper halves.
        assert_eq!(key(128, 256, 128, 0), Some(129));
        assert_eq!(key(255, 256, 128, 126), Some(32767));
        assert_eq!(key(255, 256, 128, 127), None);
        // fd01::/48 in blocks of /64: 5,000 keys each.
        assert_eq!(key(5, 5000, 1 << 63, 4999), Some(30000));
        assert_eq!(key(6, 5000, 1 << 63, 0), Some(30001));
        assert_eq!(key(6, 5000, 1 << 63, 2767), None);
        assert_eq!(key(7, 5000, 1 << 63, 0), None);
        assert_eq!(key(u128::MAX, 5000, 1 << 63, 0), None);
    }

    #[test]
    fn no_two_ports_have_one_key() {
        for (blocks, each, pairs) in
            [(256u128, 256u128, 128u128), (4096, 16, 8), (16384, 4, 2), (40, 5000, 4096), (40, 4096, 2048)]
        {
            let mut seen = BTreeMap::new();
            for index in 0..blocks {
                for number in 0..pairs.min(each) {
                    if let Some(key) = key(index, each, pairs, number) {
                        assert!((1..=32_767).contains(&key));
                        let other = seen.insert(key, (index, number));
                        assert_eq!(other, None, "key {key} of {index}, {number}");
                    }
                }
            }
            assert!(seen.len() > 25_000.min((blocks * pairs / 2) as usize), "{blocks} {each}: {}", seen.len());
        }
    }
}
