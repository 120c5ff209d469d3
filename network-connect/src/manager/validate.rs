//! Whether networks can be connected.

use super::{Reason, Refusal, Settings};
use crate::address::{Family, Subnet};
use crate::resource::{Network, Spec};
use std::collections::BTreeMap;
use std::sync::Arc;

type Networks = BTreeMap<u32, Arc<Network>>;

/// Looks at a resource as if there were no other.
///
/// # Errors
/// The first thing that is in the way.
pub fn alone(spec: &Spec, networks: &Networks, settings: &Settings) -> Result<(), Refusal> {
    for range in spec.ranges.iter().map(|r| r.cidr) {
        let conflict = |with: String| {
            let text = format!("spec.connectSubnets: {range} overlaps with {with}");
            Err((Reason::ConnectSubnetConflict, text))
        };
        let overlap = |with: &[Subnet]| with.iter().copied().find(|s| s.overlaps(range));
        if let Some(s) = overlap(&settings.services) {
            return conflict(format!("{s}, the cluster's services"));
        }
        if let Some(s) = overlap(&settings.masquerade) {
            return conflict(format!("{s}, the gateways' masquerade addresses"));
        }
        for network in networks.values() {
            if let Some(s) = overlap(&network.subnets) {
                return conflict(format!("{s}, pods of network {}", network.name));
            }
            if let Some(s) = overlap(&network.inner) {
                return conflict(format!("{s}, join or transit addresses of network {}", network.name));
            }
        }
    }
    apart(networks)?;
    families(spec, networks)
}

/// No two networks have addresses in common. Subnets contain each other or have nothing in common, so that in order of their
/// addresses a conflict is one with the last that is not contained itself.
fn apart(networks: &Networks) -> Result<(), Refusal> {
    let mut all: Vec<(Subnet, &Network)> =
        networks.values().flat_map(|n| n.subnets.iter().map(move |s| (*s, &**n))).collect();
    all.sort_by_key(|(s, n)| (*s, n.id));
    let mut last: Option<(Subnet, &Network)> = None;
    for (subnet, network) in all {
        match last {
            Some((wide, other)) if wide.contains(subnet) => {
                if other.id != network.id {
                    let text = format!(
                        "network {} with {wide} and network {} with {subnet} overlap and cannot be connected",
                        other.name, network.name
                    );
                    return Err((Reason::OverlappingNetworkSubnets, text));
                }
            }
            _ => last = Some((subnet, network)),
        }
    }
    Ok(())
}

/// Networks of one family cannot be connected with those of the other, and need a range of theirs.
fn families(spec: &Spec, networks: &Networks) -> Result<(), Refusal> {
    let has = |n: &Network, family| n.subnets.iter().any(|s| s.family() == family);
    let only = |family: Family, other: Family| networks.values().find(|n| has(n, family) && !has(n, other));
    let (v4, v6) = (only(Family::V4, Family::V6), only(Family::V6, Family::V4));
    let mismatch = |text: String| Err((Reason::IpFamilyMismatch, text));
    match (v4, v6) {
        (Some(a), Some(b)) => {
            mismatch(format!("network {} has IPv4 alone and network {} has IPv6 alone", a.name, b.name))
        }
        (Some(n), None) if spec.range(Family::V4).is_none() => {
            mismatch(format!("spec.connectSubnets: network {} has IPv4 alone, and there is no IPv4 CIDR", n.name))
        }
        (None, Some(n)) if spec.range(Family::V6).is_none() => {
            mismatch(format!("spec.connectSubnets: network {} has IPv6 alone, and there is no IPv6 CIDR", n.name))
        }
        _ => Ok(()),
    }
}
