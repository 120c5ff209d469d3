//! What is known of the fabric, as flows are derived from it.

use super::kernel::Tables;
use super::rows::Switch;
use ovn_schema::{DatapathKey, Uuid};
use packet::{Mac, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The UDP port of VXLAN (RFC 7348 section 5), where a device's entry names none.
pub const VXLAN_PORT: u16 = 4789;
/// Keys of VTEPs as logical ports of this chassis: no port binding has one.
const KEYS: std::ops::RangeInclusive<u32> = 0x8000_0001..=0x8000_ffff;

/// A thing that flows of EVPN are derived from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// A switch, by its datapath.
    Domain(Uuid),
    /// All VTEPs of a switch: who gets a broadcast.
    Flood(Uuid),
    /// A VTEP of a switch.
    Vtep(Uuid, IpAddr),
    /// An Ethernet address behind VTEPs.
    Mac(Uuid, Mac),
    /// A neighbour behind VTEPs.
    Neighbour(Uuid, IpAddr),
}

/// A switch that EVPN extends, as flows need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The VXLAN network identifier.
    pub vni: Vni,
    /// The addresses that packets of this chassis come from.
    pub from: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// See [`Switch::fdb_age`].
    pub fdb_age: u16,
    /// See [`Switch::local_neighbours_first`].
    pub local_neighbours_first: bool,
}

impl Domain {
    /// The address from which packets go to another.
    pub fn from(&self, to: IpAddr) -> Option<IpAddr> {
        if to.is_ipv4() { self.from.0.map(IpAddr::from) } else { self.from.1.map(IpAddr::from) }
    }
}

/// A VTEP of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// Its key as a logical port.
    pub key: u32,
    /// The OpenFlow port of the tunnel.
    pub ofport: u16,
}

/// All that is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fabric {
    /// Switches by datapath.
    pub domains: BTreeMap<Uuid, Domain>,
    /// VTEPs by datapath and address.
    pub vteps: BTreeMap<(Uuid, IpAddr), Vtep>,
    /// Ethernet addresses: the keys of the VTEPs behind which each is, with their weights; one at least.
    pub macs: BTreeMap<(Uuid, Mac), Vec<(u32, u16)>>,
    /// Neighbours.
    pub neighbours: BTreeMap<(Uuid, IpAddr), Mac>,
}

/// The keys that are given out: each as long as its VTEP is there, the lowest free one first.
#[derive(Clone, Debug, Default)]
pub struct Keys(BTreeMap<(Vni, IpAddr), u32>);

impl Keys {
    fn keep(&mut self, there: &BTreeSet<(Vni, IpAddr)>) {
        self.0.retain(|of, _| there.contains(of));
        let mut used: BTreeSet<u32> = self.0.values().copied().collect();
        for of in there {
            if self.0.contains_key(of) {
                continue;
            }
            if let Some(key) = KEYS.clone().find(|k| !used.contains(k)) {
                used.insert(key);
                self.0.insert(*of, key);
            }
        }
    }
}

/// This chassis' addresses for EVPN (`external_ids:ovn-evpn-local-ip`): `[VNI-]ADDRESS,…`. One without a VNI is for all
/// VNIs that have none of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalIps {
    default: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    by_vni: BTreeMap<Vni, (Option<Ipv4Addr>, Option<Ipv6Addr>)>,
}

impl LocalIps {
    /// Reads the option, and says what is wrong with it. Of two addresses for one purpose the first counts.
    pub fn parse(text: &str) -> (LocalIps, Vec<String>) {
        let (mut out, mut problems) = (LocalIps::default(), Vec::new());
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let (vni, ip) = match word.split_once('-') {
                Some((vni, ip)) => (Some(vni), ip),
                None => (None, word),
            };
            let number = vni.map(|v| v.parse::<Vni>().ok());
            let (Ok(ip), true) = (ip.parse::<IpAddr>(), number != Some(None)) else {
                problems.push(format!("'ovn-evpn-local-ip' has \"{word}\", which is no [VNI-]ADDRESS; it is left out"));
                continue;
            };
            let place = match number.flatten() {
                Some(vni) => out.by_vni.entry(vni).or_default(),
                None => &mut out.default,
            };
            let taken = match ip {
                IpAddr::V4(ip) => place.0.replace(ip).inspect(|first| place.0 = Some(*first)).is_some(),
                IpAddr::V6(ip) => place.1.replace(ip).inspect(|first| place.1 = Some(*first)).is_some(),
            };
            if taken {
                problems
                    .push(format!("'ovn-evpn-local-ip' has another address for the purpose of \"{word}\" before it"));
            }
        }
        (out, problems)
    }

    fn of(&self, vni: Vni) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let own = self.by_vni.get(&vni).copied().unwrap_or_default();
        (own.0.or(self.default.0), own.1.or(self.default.1))
    }
}

/// What this chassis contributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Its addresses.
    pub ips: LocalIps,
    /// OpenFlow ports of its tunnels, by UDP port.
    pub tunnels: BTreeMap<u16, u16>,
}

impl Fabric {
    /// Puts together what is known, and says what is wrong.
    pub fn of(
        switches: &BTreeMap<Uuid, &Switch>,
        tables: &Tables,
        own: &Own,
        keys: &mut Keys,
    ) -> (Fabric, Vec<String>) {
        let (mut out, mut problems) = (Fabric::default(), Vec::new());
        let remotes = |s: &Switch| s.vxlans.iter().filter_map(|d| tables.vxlans.get(d)).collect::<Vec<_>>();
        let all = switches.values().flat_map(|s| {
            let of = remotes(s).into_iter().flat_map(|r| &r.vteps);
            of.map(|(ip, _)| (s.vni, *ip))
        });
        keys.keep(&all.collect());
        for (id, s) in switches {
            let domain = Domain {
                vni: s.vni,
                from: own.ips.of(s.vni),
                fdb_age: s.fdb_age,
                local_neighbours_first: s.local_neighbours_first,
            };
            for (ip, port) in remotes(s).into_iter().flat_map(|r| &r.vteps) {
                let port = if *port == 0 { VXLAN_PORT } else { *port };
                let Some(ofport) = own.tunnels.get(&port) else {
                    problems.push(format!(
                        "Couldn't find EVPN tunnel for {port} destination port, as VTEP {ip} of VNI {} has it; add the port to external_ids:ovn-evpn-vxlan-ports",
                        s.vni
                    ));
                    continue;
                };
                if domain.from(*ip).is_none() {
                    problems.push(format!(
                        "failed to get local tunnel ip for VNI {}: VTEP {ip} needs one of its family in external_ids:ovn-evpn-local-ip",
                        s.vni
                    ));
                    continue;
                }
                let Some(key) = keys.0.get(&(s.vni, *ip)) else {
                    problems.push(format!("all {} keys of VTEPs are in use; VTEP {ip} has none", KEYS.count()));
                    continue;
                };
                out.vteps.insert((*id, *ip), Vtep { key: *key, ofport: *ofport });
            }
            for (mac, behind) in remotes(s).into_iter().flat_map(|r| &r.macs) {
                let path = |(ip, weight): (&IpAddr, &u16)| Some((out.vteps.get(&(*id, *ip))?.key, *weight));
                let paths: Vec<_> = behind.iter().filter_map(path).collect();
                if !paths.is_empty() {
                    out.macs.insert((*id, *mac), paths);
                }
            }
            if let Some(neighbours) = s.bridge.as_ref().and_then(|b| tables.bridges.get(b)) {
                out.neighbours.extend(neighbours.iter().map(|(ip, mac)| ((*id, *ip), *mac)));
            }
            out.domains.insert(*id, domain);
        }
        (out, problems)
    }

    /// Whether there is such a thing. What floods is there with its switch.
    pub fn has(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Domain(dp) | Entry::Flood(dp) => self.domains.contains_key(dp),
            Entry::Vtep(dp, ip) => self.vteps.contains_key(&(*dp, *ip)),
            Entry::Mac(dp, mac) => self.macs.contains_key(&(*dp, *mac)),
            Entry::Neighbour(dp, ip) => self.neighbours.contains_key(&(*dp, *ip)),
        }
    }

    /// All things that flows are made of.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let floods = self.domains.keys().map(|dp| Entry::Flood(*dp));
        let vteps = self.vteps.keys().map(|(dp, ip)| Entry::Vtep(*dp, *ip));
        let macs = self.macs.keys().map(|(dp, mac)| Entry::Mac(*dp, *mac));
        let neighbours = self.neighbours.keys().map(|(dp, ip)| Entry::Neighbour(*dp, *ip));
        floods.chain(vteps).chain(macs).chain(neighbours)
    }

    /// The VTEPs of a switch.
    pub fn vteps_of(&self, datapath: Uuid) -> impl Iterator<Item = (IpAddr, Vtep)> {
        let all = self.vteps.range((datapath, IpAddr::V4(Ipv4Addr::UNSPECIFIED))..);
        all.take_while(move |((of, _), _)| *of == datapath).map(|((_, ip), v)| (*ip, *v))
    }

    /// What is otherwise than in another.
    pub fn differences(&self, other: &Fabric) -> Vec<Entry> {
        let mut out: Vec<Entry> = differing(&self.domains, &other.domains).map(Entry::Domain).collect();
        for (dp, ip) in differing(&self.vteps, &other.vteps) {
            out.extend([Entry::Vtep(dp, ip), Entry::Flood(dp)]);
        }
        out.extend(differing(&self.domains, &other.domains).map(Entry::Flood));
        out.extend(differing(&self.macs, &other.macs).map(|(dp, mac)| Entry::Mac(dp, mac)));
        out.extend(differing(&self.neighbours, &other.neighbours).map(|(dp, ip)| Entry::Neighbour(dp, ip)));
        out
    }

    fn vni(&self, datapath: &Uuid) -> Vni {
        self.domains.get(datapath).map(|d| d.vni).unwrap_or_default()
    }

    /// `evpn/vtep-binding-list`. `key` gives a datapath's key.
    pub fn list_vteps(&self, key: impl Fn(Uuid) -> DatapathKey) -> String {
        let line = |((dp, ip), v): (&(Uuid, IpAddr), &Vtep)| {
            let (id, vni, dp) = (of_vtep(*dp, v.key), self.vni(dp), key(*dp));
            format!(
                "UUID: {id}, Remote IP: {ip}, vni: {vni}, binding_key: {:#x}, tunnel_ofport: {}, dp_key: {dp}\n",
                v.key, v.ofport
            )
        };
        self.vteps.iter().map(line).collect()
    }

    /// `evpn/vtep-multicast-group-list`.
    pub fn list_floods(&self) -> String {
        let mut out = String::new();
        for (dp, d) in &self.domains {
            let ips: Vec<String> = self.vteps_of(*dp).map(|(ip, _)| ip.to_string()).collect();
            if !ips.is_empty() {
                // Writing to a string does not fail.
                let _ = writeln!(out, "UUID: {dp}, Remote IPs: {}, vni: {}", ips.join(", "), d.vni);
            }
        }
        out
    }

    /// `evpn/vtep-fdb-list`.
    pub fn list_macs(&self, key: impl Fn(Uuid) -> DatapathKey) -> String {
        let line = |((dp, mac), paths): (&(Uuid, Mac), &Vec<(u32, u16)>)| {
            let (vni, dp_key) = (self.vni(dp), key(*dp));
            let rest = match &paths[..] {
                [(one, _)] => format!("binding_key: {one:#x}, dp_key: {dp_key}"),
                all => {
                    let all: Vec<_> = all.iter().map(|(k, w)| format!("{{key={k:#x}, weight={w}}}")).collect();
                    format!("dp_key: {dp_key}, paths: [{}]", all.join(", "))
                }
            };
            format!("UUID: {dp}, MAC: {mac}, vni: {vni}, {rest}\n")
        };
        self.macs.iter().map(line).collect()
    }

    /// `evpn/vtep-arp-list`.
    pub fn list_neighbours(&self, key: impl Fn(Uuid) -> DatapathKey) -> String {
        let line = |((dp, ip), mac): (&(Uuid, IpAddr), &Mac)| {
            format!("UUID: {dp}, VNI: {}, MAC: {mac}, IP: {ip}, dp_key: {}\n", self.vni(dp), key(*dp))
        };
        self.neighbours.iter().map(line).collect()
    }
}

/// The UUID by which a VTEP's flows are known, as it has no row: the VTEP's key, which is their cookie, and the rest of
/// its datapath's UUID.
pub fn of_vtep(datapath: Uuid, key: u32) -> Uuid {
    let (_, b, c, d) = datapath.as_fields();
    Uuid::from_fields(key, b, c, d)
}

/// `evpn/remote-vtep-list`: what the kernel says, with or without a tunnel.
pub fn list_remotes(switches: &BTreeMap<Uuid, &Switch>, tables: &Tables) -> String {
    let mut lines: BTreeSet<(Vni, IpAddr, u16)> = BTreeSet::new();
    for s in switches.values() {
        let vteps = s.vxlans.iter().filter_map(|d| tables.vxlans.get(d)).flat_map(|r| &r.vteps);
        lines.extend(vteps.map(|(ip, port)| (s.vni, *ip, if *port == 0 { VXLAN_PORT } else { *port })));
    }
    lines.into_iter().map(|(vni, ip, port)| format!("IP: {ip}, port: {port}, vni: {vni}\n")).collect()
}

/// The keys whose values differ.
fn differing<'a, K: Ord + Clone, V: PartialEq>(
    a: &'a BTreeMap<K, V>,
    b: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = K> + use<'a, K, V> {
    let gone = a.iter().filter(|(k, v)| b.get(*k) != Some(*v)).map(|(k, _)| k.clone());
    let new = b.keys().filter(|k| !a.contains_key(*k)).cloned();
    gone.chain(new)
}

#[cfg(test)]
mod tests {
    use super::super::difference::Remote;
    use super::*;

    const DP: Uuid = Uuid::from_u128(7);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn switch() -> Switch {
        Switch {
            vni: Vni::of_low_bits(10),
            bridge: Some("br-10".into()),
            vxlans: BTreeSet::from(["vx4".into(), "vx6".into()]),
            advertise: None,
            fdb: false,
            fdb_age: 0,
            local_neighbours_first: false,
        }
    }

    fn tables(v4: &[&str], v6: &[&str]) -> Tables {
        let remote = |ips: &[&str]| Remote {
            vteps: ips.iter().map(|a| (ip(a), 0)).collect(),
            macs: ips.iter().map(|a| (Mac::from_u64(1), [(ip(a), 1)].into())).collect(),
        };
        let vxlans = [("vx4".into(), remote(v4)), ("vx6".into(), remote(v6))].into();
        Tables { read: true, vxlans, bridges: BTreeMap::new() }
    }

    fn own(ips: &str) -> Own {
        Own { ips: LocalIps::parse(ips).0, tunnels: BTreeMap::from([(4789, 5)]) }
    }

    fn keys_of(f: &Fabric) -> Vec<(IpAddr, u32)> {
        f.vteps_of(DP).map(|(ip, v)| (ip, v.key & 0xffff)).collect()
    }

    #[test]
    fn a_vtep_keeps_its_key() {
        let s = switch();
        let switches = BTreeMap::from([(DP, &s)]);
        let mut keys = Keys::default();
        let mut of = |v4: &[&str], v6: &[&str]| {
            let (f, problems) = Fabric::of(&switches, &tables(v4, v6), &own("10.0.0.9,fd00::9"), &mut keys);
            assert!(problems.is_empty(), "{problems:?}");
            f
        };
        let a = of(&["10.0.0.1"], &["fd00::1"]);
        assert_eq!(keys_of(&a), [(ip("10.0.0.1"), 1), (ip("fd00::1"), 2)]);
        let b = of(&["10.0.0.0", "10.0.0.1"], &["fd00::1"]);
        assert_eq!(keys_of(&b), [(ip("10.0.0.0"), 3), (ip("10.0.0.1"), 1), (ip("fd00::1"), 2)]);
        let c = of(&["10.0.0.0"], &["fd00::1"]);
        assert_eq!(keys_of(&c), [(ip("10.0.0.0"), 3), (ip("fd00::1"), 2)]);
        let gone = Entry::Vtep(DP, ip("10.0.0.1"));
        let differences = b.differences(&c);
        assert!(differences.contains(&gone) && differences.contains(&Entry::Flood(DP)) && !c.has(&gone));
        assert!(!differences.contains(&Entry::Vtep(DP, ip("fd00::1"))), "{differences:?}");
        assert_eq!(keys_of(&of(&["10.0.0.7"], &[])), [(ip("10.0.0.7"), 1)], "keys are given out again");
    }

    #[test]
    fn what_lacks_is_said() {
        let s = switch();
        let switches = BTreeMap::from([(DP, &s)]);
        let all = tables(&["10.0.0.1"], &["fd00::1"]);
        let (f, problems) = Fabric::of(&switches, &all, &own("10.0.0.9"), &mut Keys::default());
        assert_eq!(f.vteps.len(), 1);
        assert!(problems.len() == 1 && problems[0].contains("fd00::1") && problems[0].contains("ovn-evpn-local-ip"));
        let no_tunnel = Own { tunnels: BTreeMap::new(), ..own("10.0.0.9,fd00::9") };
        let (f, problems) = Fabric::of(&switches, &all, &no_tunnel, &mut Keys::default());
        assert!(f.vteps.is_empty() && f.macs.is_empty() && problems.len() == 2, "{problems:?}");
        assert!(problems[0].contains("ovn-evpn-vxlan-ports"), "{problems:?}");
    }

    #[test]
    fn an_address_is_for_one_vni_or_for_all() {
        let (ips, problems) = LocalIps::parse("10.0.0.1, 5-10.0.0.5,5-fd00::5,fd00::1,10.0.0.2,x-10.0.0.3,6-nowhere");
        let text = |vni| format!("{:?}", ips.of(Vni::of_low_bits(vni)));
        assert_eq!(text(5), "(Some(10.0.0.5), Some(fd00::5))");
        assert_eq!(text(7), "(Some(10.0.0.1), Some(fd00::1))");
        assert_eq!(problems.len(), 3, "{problems:?}");
    }
}
