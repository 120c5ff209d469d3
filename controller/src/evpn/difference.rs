//! What is between a device's table and what it is to hold, and what others put there.
//!
//! Entries that this controller made are static (NOARP), neither permanent nor learned by a routing daemon (`extern_learn`). Others that
//! are such are taken for its own, as ovn-controller takes them: what a controller left that was killed goes.

use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// An entry of a device: of its forwarding table, or a neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The Ethernet address.
    pub mac: Option<Mac>,
    /// In a forwarding table the VTEP behind which it is, of a neighbour its address.
    pub ip: Option<IpAddr>,
    /// The VTEP's UDP port; 0: the device's.
    pub port: u16,
    /// The next hop object that says where it is.
    pub next_hop: Option<u32>,
    /// The VLAN; what has one was copied by the kernel from an entry without.
    pub vlan: u16,
    /// It needs no resolution (NUD_NOARP).
    pub noarp: bool,
    /// It never goes by itself (NUD_PERMANENT).
    pub permanent: bool,
    /// A routing daemon put it there (NTF_EXT_LEARNED).
    pub external: bool,
}

impl Found {
    fn is_ours(&self) -> bool {
        self.noarp && !self.permanent && !self.external && self.vlan == 0
    }
}

/// What is to be done with a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference<K> {
    /// What is to be added.
    pub add: Vec<K>,
    /// What is to be removed.
    pub remove: Vec<K>,
}

/// Compares what this chassis advertises by a device with what is there. `key` names an entry as the wish does; an entry that it gives
/// no name is nobody's.
pub fn difference<K: Ord + Clone>(
    wanted: &BTreeSet<K>,
    found: &[Found],
    key: impl Fn(&Found) -> Option<K>,
) -> Difference<K> {
    let ours: BTreeSet<K> = found.iter().filter(|f| f.is_ours()).filter_map(key).collect();
    Difference { add: wanted.difference(&ours).cloned().collect(), remove: ours.difference(wanted).cloned().collect() }
}

/// What a VXLAN device says of the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// VTEPs, by address and UDP port (0: the default one).
    pub vteps: BTreeSet<(IpAddr, u16)>,
    /// Ethernet addresses: the VTEPs behind which each is, with their weights.
    pub macs: BTreeMap<Mac, BTreeMap<IpAddr, u16>>,
}

/// Reads the forwarding table of a VXLAN device. A VTEP is named by a permanent entry for all addresses (RFC 8365 section 6.1: the routes
/// of type 3), or by an address behind it. `group` gives the VTEPs of a next hop object.
pub fn remote(found: &[Found], group: impl Fn(u32) -> BTreeMap<IpAddr, u16>) -> Remote {
    let mut out = Remote::default();
    for f in found.iter().filter(|f| f.vlan == 0 && !f.is_ours()) {
        let all = f.mac.is_none_or(|m| m == Mac::ZERO);
        if let Some(ip) = f.ip.filter(|ip| !ip.is_unspecified()) {
            if f.external || all && f.noarp && f.permanent {
                out.vteps.insert((ip, f.port));
            }
            if f.external && !all {
                out.macs.entry(f.mac.unwrap_or_default()).or_default().insert(ip, 1);
            }
        } else if let Some(id) = f.next_hop.filter(|_| f.external && !all) {
            let paths = group(id);
            if !paths.is_empty() {
                out.macs.insert(f.mac.unwrap_or_default(), paths);
            }
        }
    }
    out
}

/// Reads the neighbours of a bridge that a routing daemon put there.
pub fn neighbours(found: &[Found]) -> BTreeMap<IpAddr, Mac> {
    let external = found.iter().filter(|f| f.external && f.noarp && f.vlan == 0);
    external
        .filter_map(|f| Some((f.ip.filter(|ip| !ip.is_unspecified())?, f.mac.filter(|m| *m != Mac::ZERO)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn mac(n: u64) -> Mac {
        Mac::from_u64(n)
    }

    #[test]
    fn a_device_says_who_is_behind_it() {
        let zero = Some(Mac::ZERO);
        let found = [
            Found { mac: zero, ip: ip("10.0.0.1"), noarp: true, permanent: true, ..Found::default() },
            // FRR's entries for all addresses are learned by it.
            Found { mac: zero, ip: ip("fd00::1"), external: true, permanent: true, ..Found::default() },
            Found { mac: Some(mac(5)), ip: ip("10.0.0.2"), external: true, noarp: true, ..Found::default() },
            Found { mac: Some(mac(6)), next_hop: Some(7), external: true, ..Found::default() },
            Found { mac: Some(mac(7)), next_hop: Some(8), external: true, ..Found::default() },
            // Its own address, an entry that the data plane learned, and one of a VLAN.
            Found { mac: Some(mac(8)), permanent: true, ..Found::default() },
            Found { mac: Some(mac(9)), ip: ip("10.0.0.9"), ..Found::default() },
            Found { mac: Some(mac(5)), ip: ip("10.0.0.8"), external: true, vlan: 1, ..Found::default() },
        ];
        let group = |id: u32| match id {
            7 => [(ip("10.0.0.3").unwrap(), 100), (ip("10.0.0.4").unwrap(), 200)].into(),
            _ => BTreeMap::new(),
        };
        let r = remote(&found, group);
        let vteps = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|a| (ip(a).unwrap(), 0));
        assert_eq!(r.vteps, BTreeSet::from(vteps));
        assert_eq!(
            r.macs.keys().copied().collect::<Vec<_>>(),
            [mac(5), mac(6)],
            "a next hop that is not there leads nowhere"
        );
        assert_eq!(r.macs[&mac(6)].values().copied().collect::<Vec<_>>(), [100, 200]);
    }

    #[test]
    fn what_others_made_stays() {
        let static_entry = |n| Found { mac: Some(mac(n)), noarp: true, ..Found::default() };
        let found = [
            static_entry(1),
            static_entry(2),
            Found { vlan: 1, ..static_entry(3) },
            Found { permanent: true, ..static_entry(4) },
            Found { external: true, ..static_entry(5) },
        ];
        let d = difference(&BTreeSet::from([mac(2), mac(6)]), &found, |f| f.mac);
        assert_eq!(d, Difference { add: vec![mac(6)], remove: vec![mac(1)] });
    }

    #[test]
    fn neighbours_are_a_routing_daemons() {
        let found = [
            Found { mac: Some(mac(1)), ip: ip("10.0.0.1"), noarp: true, external: true, ..Found::default() },
            Found { mac: Some(mac(2)), ip: ip("10.0.0.2"), noarp: true, ..Found::default() },
            Found { mac: Some(mac(3)), ip: ip("10.0.0.3"), external: true, ..Found::default() },
        ];
        assert_eq!(neighbours(&found), BTreeMap::from([(ip("10.0.0.1").unwrap(), mac(1))]));
    }
}
