//! Which devices are read, and what they are to hold of this chassis.

use super::rows::Switch;
use ovn_schema::{Str, Uuid};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What the kernel is to hold, by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// VXLAN devices that are read.
    pub vxlans: BTreeSet<Str>,
    /// Bridges with the neighbours that they are to have.
    pub bridges: BTreeMap<Str, BTreeSet<(IpAddr, Mac)>>,
    /// Advertise devices with the Ethernet addresses that they are to have.
    pub advertise: BTreeMap<Str, BTreeSet<Mac>>,
}

impl Wish {
    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.vxlans.is_empty() && self.bridges.is_empty() && self.advertise.is_empty()
    }

    /// Whether a device is one of these.
    pub fn has(&self, device: &str) -> bool {
        self.vxlans.contains(device) || self.bridges.contains_key(device) || self.advertise.contains_key(device)
    }
}

/// The switches that have a VNI for themselves, and what is wrong with others: of two with one VNI the first counts.
pub fn distinct(switches: &BTreeMap<Uuid, Switch>) -> (BTreeMap<Uuid, &Switch>, Vec<String>) {
    let (mut vnis, mut problems) = (BTreeMap::new(), Vec::new());
    let mut out = BTreeMap::new();
    for (id, s) in switches {
        match vnis.get(&s.vni) {
            None => {
                vnis.insert(s.vni, *id);
                out.insert(*id, s);
            }
            Some(first) => problems.push(format!(
                "Datapath {id} with duplicate VNI {}, which datapath {first} has; give it a dynamic-routing-vni of its own",
                s.vni
            )),
        }
    }
    (out, problems)
}

/// Puts together what switches and what is advertised of them ask for.
pub fn wanted(
    switches: &BTreeMap<Uuid, &Switch>,
    macs: &BTreeSet<(Uuid, Mac)>,
    neighbours: &BTreeSet<(Uuid, IpAddr, Mac)>,
) -> Wish {
    let mut out = Wish::default();
    for (id, s) in switches {
        out.vxlans.extend(s.vxlans.iter().cloned());
        if let Some(bridge) = &s.bridge {
            let own = neighbours.range((*id, FIRST, Mac::ZERO)..).take_while(|(of, ..)| of == id);
            out.bridges.entry(bridge.clone()).or_default().extend(own.map(|(_, ip, mac)| (*ip, *mac)));
        }
        if let Some(device) = &s.advertise {
            let own = macs.range((*id, Mac::ZERO)..).take_while(|(of, _)| of == id);
            out.advertise.entry(device.clone()).or_default().extend(own.map(|(_, mac)| *mac));
        }
    }
    out
}

/// The first address in order.
const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(vni: u32, device: &str) -> Switch {
        Switch {
            vni: packet::Vni::of_low_bits(vni),
            bridge: Some(format!("br-{device}").into()),
            vxlans: BTreeSet::from([format!("vx-{device}").into()]),
            advertise: Some(format!("lo-{device}").into()),
            fdb: true,
            fdb_age: 0,
            local_neighbours_first: false,
        }
    }

    #[test]
    fn each_device_gets_its_own() {
        let id = Uuid::from_u128;
        let all = BTreeMap::from([(id(1), switch(10, "a")), (id(2), switch(20, "b")), (id(3), switch(10, "c"))]);
        let (distinct, problems) = distinct(&all);
        assert_eq!(distinct.keys().copied().collect::<Vec<_>>(), [id(1), id(2)]);
        assert!(problems.len() == 1 && problems[0].contains("duplicate VNI 10"), "{problems:?}");
        let mac = |n: u64| Mac::from_u64(n);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let macs = BTreeSet::from([(id(1), mac(1)), (id(2), mac(2)), (id(3), mac(3))]);
        let neighbours = BTreeSet::from([(id(1), ip("10.0.0.1"), mac(1)), (id(2), ip("fd00::2"), mac(2))]);
        let wish = wanted(&distinct, &macs, &neighbours);
        assert_eq!(wish.advertise["lo-a"], BTreeSet::from([mac(1)]));
        assert_eq!(wish.advertise["lo-b"], BTreeSet::from([mac(2)]));
        assert_eq!(wish.bridges["br-a"], BTreeSet::from([(ip("10.0.0.1"), mac(1))]));
        assert_eq!(wish.bridges["br-b"], BTreeSet::from([(ip("fd00::2"), mac(2))]));
        assert!(wish.has("vx-a") && wish.has("lo-b") && !wish.has("vx-c"));
    }
}
