//! What southbound rows say of a switch that EVPN extends, and of what this chassis advertises there.

use crate::input::model::{Input, is_switch};
use crate::units::binding;
use ovn_schema::options::{bool as bool_option, flag};
use ovn_schema::{Str, Uuid, sb};
use packet::{Mac, Vni};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The options that name a switch's devices: bridge, VXLAN devices, advertise device.
pub const DEVICES: [&str; 3] =
    ["dynamic-routing-bridge-ifname", "dynamic-routing-vxlan-ifname", "dynamic-routing-advertise-ifname"];
/// The longest name of a network device.
const LONGEST_NAME: usize = 15;

/// A switch that EVPN extends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Switch {
    /// Its VXLAN network identifier.
    pub vni: Vni,
    /// The bridge.
    pub bridge: Option<Str>,
    /// The VXLAN devices.
    pub vxlans: BTreeSet<Str>,
    /// The device that Ethernet addresses are advertised by.
    pub advertise: Option<Str>,
    /// Ethernet addresses are advertised (`dynamic-routing-redistribute=fdb`).
    pub fdb: bool,
    /// Seconds after which what packets taught is forgotten (`fdb_age_threshold`); 0: never.
    pub fdb_age: u16,
    /// Neighbours that OVN learned go before those of EVPN (`dynamic-routing-arp-prefer-local`).
    pub local_neighbours_first: bool,
}

/// The VNI of a switch that EVPN extends.
fn vni(d: &sb::DatapathBinding) -> Option<Vni> {
    d.external_ids.get("dynamic-routing-vni")?.parse().ok().filter(|_| is_switch(d))
}

fn devices<'a>(d: &'a sb::DatapathBinding, option: &str) -> impl Iterator<Item = Str> + use<'a> {
    let names = d.external_ids.get(option).into_iter().flat_map(|names| names.split(','));
    names.map(str::trim).filter(|n| (1..=LONGEST_NAME).contains(&n.len())).map(Str::from)
}

/// Options that name devices which the switch needs, and which its row does not have.
pub fn lacks(d: &sb::DatapathBinding) -> impl Iterator<Item = &'static str> + use<'_> {
    let evpn = vni(d).is_some();
    DEVICES.into_iter().filter(move |o| evpn && d.external_ids.get(*o).is_none_or(|names| names.is_empty()))
}

/// Whether Ethernet addresses of a datapath are advertised.
pub fn advertises(d: &sb::DatapathBinding) -> bool {
    let modes = d.external_ids.get("dynamic-routing-redistribute");
    vni(d).is_some() && modes.is_some_and(|m| m.split(',').any(|m| m.trim() == "fdb"))
}

/// Whether a datapath has to be looked through for what is advertised, or no longer is.
pub fn has_options(d: &sb::DatapathBinding) -> bool {
    is_switch(d) && d.external_ids.contains_key("dynamic-routing-redistribute")
}

impl Switch {
    /// What a datapath's row says of it; nothing where EVPN does not extend it.
    pub fn of(d: &sb::DatapathBinding) -> Option<Switch> {
        let [bridge, vxlan, advertise] = DEVICES;
        let age = d.external_ids.get("fdb_age_threshold").and_then(|t| t.parse::<u32>().ok()).unwrap_or(0);
        Some(Switch {
            vni: vni(d)?,
            bridge: devices(d, bridge).next(),
            vxlans: devices(d, vxlan).collect(),
            advertise: devices(d, advertise).next(),
            fdb: advertises(d),
            fdb_age: u16::try_from(age).unwrap_or(u16::MAX),
            local_neighbours_first: flag(&d.external_ids, "dynamic-routing-arp-prefer-local"),
        })
    }
}

/// The port that decides whether a port's addresses are advertised here: the port itself if it is a machine's; its peer
/// if that is a router port of this chassis; the peer's redirect port if the router is distributed. `port` gives a port
/// by name.
pub fn speaker<'a>(
    p: &'a sb::PortBinding,
    mut port: impl FnMut(&Str) -> Option<&'a sb::PortBinding>,
) -> Option<&'a sb::PortBinding> {
    match &*p.r#type {
        "" | "virtual" => Some(p),
        "l3gateway" => port(p.options.get("peer")?),
        "patch" => {
            let peer = port(p.options.get("peer")?)?;
            port(crate::routing::rows::redirect_port(peer)?)
        }
        _ => None,
    }
}

/// Whether a port's addresses may be advertised (`dynamic-routing-advertise`).
pub fn may_be_advertised(p: &sb::PortBinding) -> bool {
    bool_option(&p.options, "dynamic-routing-advertise", true)
}

/// The Ethernet addresses of a port.
pub fn addresses(p: &sb::PortBinding) -> impl Iterator<Item = Mac> + use<'_> {
    p.mac.iter().filter_map(|m| m.split_whitespace().next()?.parse().ok())
}

/// A neighbour that is advertised.
pub fn neighbour(row: &sb::AdvertisedMacBinding) -> Option<(IpAddr, Mac)> {
    Some((row.ip.parse().ok()?, row.mac.parse().ok()?))
}

/// The Ethernet address of an entry that was learned from a machine of this chassis, or from a provider network.
pub fn learned(row: &sb::Fdb, datapath: Uuid, input: &Input) -> Option<Mac> {
    let (_, p) = input.port_by_key(datapath, row.port())?;
    let from_here = match &*p.r#type {
        "" => p.parent_port.as_ref().is_none_or(|n| n.is_empty()) && binding::is_here(p, input, &input.local),
        "localnet" => true,
        _ => false,
    };
    if from_here && may_be_advertised(p) { row.mac.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datapath(ids: &[(&str, &str)]) -> sb::DatapathBinding {
        let external_ids = ids.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        sb::DatapathBinding { r#type: Some("logical-switch".into()), external_ids, ..Default::default() }
    }

    #[test]
    fn a_switch_names_its_devices() {
        let devices = [
            ("dynamic-routing-bridge-ifname", "br-10"),
            ("dynamic-routing-vxlan-ifname", "vxlan-10,vxlan6-10, ,a-name-that-is-too-long"),
            ("dynamic-routing-advertise-ifname", "lo-10"),
        ];
        let more = [("dynamic-routing-vni", "10"), ("dynamic-routing-redistribute", "ip,fdb")];
        let s = Switch::of(&datapath(&[&devices[..], &more[..]].concat())).unwrap();
        assert_eq!((s.vni.get(), s.bridge.as_deref(), s.advertise.as_deref()), (10, Some("br-10"), Some("lo-10")));
        assert_eq!(s.vxlans, BTreeSet::from(["vxlan-10".into(), "vxlan6-10".into()]));
        assert!(s.fdb && s.fdb_age == 0 && !s.local_neighbours_first);
        assert_eq!(Switch::of(&datapath(&devices)), None, "without a VNI it is an ordinary switch");
        for bad in ["16777216", "-1", "x", ""] {
            assert_eq!(Switch::of(&datapath(&[("dynamic-routing-vni", bad)])), None, "{bad:?}");
        }
        let router = sb::DatapathBinding { r#type: Some("logical-router".into()), ..datapath(&more) };
        assert_eq!(Switch::of(&router), None, "a router has none");
    }

    #[test]
    fn what_it_lacks_is_named() {
        let row = |vni: &str| {
            datapath(&[
                ("dynamic-routing-vni", vni),
                ("dynamic-routing-bridge-ifname", "br-10"),
                ("dynamic-routing-vxlan-ifname", ""),
            ])
        };
        let missing: Vec<_> = lacks(&row("10")).collect();
        assert_eq!(missing, ["dynamic-routing-vxlan-ifname", "dynamic-routing-advertise-ifname"]);
        assert_eq!(lacks(&row("16777216")).count(), 0, "no such VNI");
    }
}
