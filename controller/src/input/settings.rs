//! What the local Open_vSwitch database asks of the controller (ovn-controller(8), "Configuration").

use crate::input::model::Tunnelling;
use crate::rows::ha_peers;
use ovn_schema::options::is_on;
use ovn_schema::{Str, Uuid, ovs};
use ovsdb_rs::client::probe_interval;
use ovsdb_rs::tls::TlsFiles;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The configuration in `external_ids` of the table Open_vSwitch; keys may carry `-CHASSIS` to hold for one of several
/// controllers on a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The chassis' name.
    pub system_id: Str,
    /// Where the southbound database is.
    pub remote: String,
    /// Encapsulations, the preferred first: type and address.
    pub encaps: Vec<(Str, Str)>,
    /// `ovn-encap-csum`.
    pub encap_csum: bool,
    /// The integration bridge's name.
    pub bridge: Str,
    /// The integration bridge's datapath type; none: as the switch likes.
    pub datapath_type: Option<Str>,
    /// `ovn-bridge-mappings` with an entry that is not NETWORK:BRIDGE.
    pub bad_mappings: Option<Str>,
    /// Provider networks and their bridges.
    pub mappings: BTreeMap<Str, Str>,
    /// Where the machine says its name is.
    pub hostname: Str,
    /// `ovn-cms-options`.
    pub cms_options: Str,
    /// `ovn-bridge-mappings` and the like as they are, for `Chassis:other_config`.
    pub other: BTreeMap<Str, Str>,
    /// What the switch says of the gateways that it tells its connections, and that tell it theirs.
    pub peers: BTreeMap<Str, ha_peers::PeerState>,
    /// Whether the controller replicates all of the southbound database.
    pub monitor_all: bool,
    /// The silence after which the southbound server is asked for a sign of life.
    pub probe: Option<Duration>,
    /// The operator said so, so that it holds for a Unix socket as well.
    pub probe_asked: bool,
    /// What distinguishes this controller's ports from those of others on this machine (`other_config:ovn-chassis-idx-NAME`);
    /// none until it is written.
    pub index: Option<Str>,
    /// `ovn-encap-ip-default`.
    pub encap_default: Option<Str>,
    /// `ovn-enable-flow-based-tunnels`: one tunnel port leads to all chassis.
    pub flow_based: bool,
    /// `ovn-encap-tos`.
    pub encap_tos: Option<Str>,
    /// `ovn-encap-df_default`.
    pub encap_df: Option<Str>,
    /// `ovn-transport-zones`; none: all.
    pub transport_zones: BTreeSet<Str>,
    /// `ovn-is-interconn`.
    pub interconnection: bool,
    /// `ovn-cleanup-on-exit`.
    pub cleanup_on_exit: bool,
    /// `ct-zone-range`.
    pub zone_range: (u16, u16),
    /// `garp-max-timeout-sec`, where it is not 0.
    pub garp_longest: Option<Duration>,
    /// The longest pause between questions to next hops of symmetric replies (`arp-nd-max-timeout-sec`); 0: they end.
    pub arp_longest: Option<Duration>,
    /// Where the integration bridge is managed (`ovn-bridge-remote`); none: at its socket in the switch's run folder.
    pub bridge_remote: Option<Str>,
    /// By which interfaces logical ports' routing daemons are reached (`dynamic-routing-port-mapping`).
    pub route_interfaces: BTreeMap<Str, Str>,
    /// UDP ports of VXLAN to other vendors' switches (`ovn-evpn-vxlan-ports`).
    pub evpn_ports: Vec<Str>,
    /// The silence after which the switch is asked for a sign of life (`ovn-bridge-remote-probe-interval`, in ms); none: never.
    pub bridge_probe: Option<Duration>,
    /// `ovn-match-northd-version`.
    pub match_northd_version: bool,
    /// How long a lost uplink has to be there again until gateway ports count on it (`isthmus-uplink-hold-down`, in s);
    /// none: uplinks are not looked at.
    pub uplink_hold_down: Option<Duration>,
}

/// What a chassis' name is, where the Open_vSwitch database does not say it (ovn-controller(8)): option `-n`, or the file
/// `system-id-override`.
#[derive(Clone, Debug, Default)]
pub struct Identity(pub Option<Str>);

impl Identity {
    /// The option's, or that of the file in OVN's configuration folder, or in the one above, where ovn-controller has it.
    pub fn find(option: Option<&str>, folder: &std::path::Path) -> Identity {
        let read = |f: &std::path::Path| std::fs::read_to_string(f.join("system-id-override")).ok();
        let file = || read(folder).or_else(|| read(folder.parent()?));
        let name = option.map(str::to_string).or_else(file);
        Identity(name.map(|n| Str::from(n.trim())).filter(|n| !n.is_empty()))
    }
}

/// A machine's name, as gethostname(2) has it.
fn machine_name() -> Option<Str> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|n| Str::from(n.trim()))
}

/// Why there is nothing to do yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incomplete {
    /// The database holds no configuration.
    #[error("the Open_vSwitch table is empty; run ovs-vsctl init")]
    NoRow,
    /// A key is missing.
    #[error(
        "'external_ids:{0}' in the Open_vSwitch table is missing; set it with ovs-vsctl set Open_vSwitch . external_ids:{0}=…"
    )]
    Missing(&'static str),
    /// A value cannot be used.
    #[error("'external_ids:{key}' in the Open_vSwitch table is {value:?}: {reason}")]
    Bad {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        reason: String,
    },
}

/// `KEY=VALUE,…`; what is no pair is left out, and a warning says so where there is one.
fn pairs(text: Option<&str>) -> BTreeMap<Str, Str> {
    let words = text.unwrap_or_default().split([',', ' ']).filter(|w| !w.is_empty());
    words.filter_map(|w| w.split_once('=')).filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.into(), v.into())).collect()
}

impl Settings {
    /// What is known of the integration bridge without a chassis' name.
    pub fn of_bridge(db: &ovs::Database) -> Option<Settings> {
        let ids = &db.open_vswitch.values().next()?.external_ids;
        let bridge = ids.get("ovn-bridge").cloned().unwrap_or_else(|| "br-int".into());
        Some(Settings { bridge, datapath_type: ids.get("ovn-bridge-datapath-type").cloned(), ..Settings::default() })
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`Incomplete`], saying what is to be set.
    pub fn read(db: &ovs::Database, identity: &Identity) -> Result<Settings, Incomplete> {
        let (_, root) = db.open_vswitch.iter().next().ok_or(Incomplete::NoRow)?;
        let ids = &root.external_ids;
        let named = identity.0.as_ref().or_else(|| ids.get("system-id"));
        let system_id = named.filter(|s| !s.is_empty()).ok_or(Incomplete::Missing("system-id"))?.clone();
        let get = |key: &str| {
            let own: Str = format!("{key}-{system_id}").into();
            ids.get(&own).or_else(|| ids.get(key)).cloned()
        };
        let need = |key: &'static str| get(key).filter(|v| !v.is_empty()).ok_or(Incomplete::Missing(key));
        let types = need("ovn-encap-type")?;
        let ips = need("ovn-encap-ip")?;
        let mut encaps = Vec::new();
        for kind in types.split(',').map(str::trim).filter(|t| !t.is_empty()) {
            // One of another version's is left out; the others serve.
            if !matches!(kind, "geneve" | "vxlan") {
                continue;
            }
            for ip in ips.split(',').map(str::trim) {
                if ip.parse::<std::net::IpAddr>().is_err() {
                    let reason = format!("{ip} is not an IP address");
                    return Err(Incomplete::Bad { key: "ovn-encap-ip", value: ips.to_string(), reason });
                }
                encaps.push((kind.into(), ip.into()));
            }
        }
        if encaps.is_empty() {
            let reason = "known types are geneve and vxlan".to_string();
            return Err(Incomplete::Bad { key: "ovn-encap-type", value: types.to_string(), reason });
        }
        // Geneve carries more than VXLAN.
        encaps.sort_by_key(|(kind, _): &(Str, Str)| &**kind != "geneve");
        let (mut mappings, mut bad_mappings) = (BTreeMap::new(), None);
        for pair in get("ovn-bridge-mappings").unwrap_or_default().split(',').filter(|p| !p.trim().is_empty()) {
            match pair.trim().split_once(':') {
                Some((network, bridge)) if !network.is_empty() && !bridge.is_empty() => {
                    mappings.insert(network.into(), bridge.into());
                }
                _ => bad_mappings = get("ovn-bridge-mappings"),
            }
        }
        const OTHER: [&str; 12] = [
            "ovn-evpn-local-ip",
            "ovn-evpn-vxlan-ports",
            "ovn-bridge-mappings",
            "ovn-cms-options",
            "ovn-chassis-mac-mappings",
            "ovn-monitor-all",
            "ovn-enable-lflow-cache",
            "ovn-limit-lflow-cache",
            "ovn-memlimit-lflow-cache-kb",
            "ovn-trim-limit-lflow-cache",
            "ovn-trim-wmark-perc-lflow-cache",
            "ovn-trim-timeout-ms",
        ];
        let mut other: BTreeMap<Str, Str> = OTHER.iter().filter_map(|k| Some(((*k).into(), get(k)?))).collect();
        let ips: Vec<Str> = encaps.iter().map(|(_, ip)| ip.clone()).collect();
        if let Some(at) = get("isthmus-ha-listen").and_then(|l| ha_peers::published(&l, &ips)) {
            other.insert(ha_peers::PUBLISHED.into(), at);
        }
        let name = get("ovn-bridge").unwrap_or_else(|| "br-int".into());
        let peers = bridge(db, &name).map(|(_, br)| ha_peers::states(br)).unwrap_or_default();
        if let Some(text) = ha_peers::described(&peers) {
            other.insert(ha_peers::STATE.into(), text);
        }
        Ok(Settings {
            remote: need("ovn-remote")?.to_string(),
            encaps,
            encap_csum: get("ovn-encap-csum").is_none_or(|v| is_on(&v, true)),
            bridge: name,
            peers,
            datapath_type: get("ovn-bridge-datapath-type"),
            mappings,
            bad_mappings,
            index: root.other_config.get(&*format!("ovn-chassis-idx-{system_id}")).cloned(),
            encap_default: get("ovn-encap-ip-default").filter(|v| !v.is_empty()),
            flow_based: get("ovn-enable-flow-based-tunnels").is_some_and(|v| is_on(&v, false)),
            encap_tos: get("ovn-encap-tos").filter(|v| &**v != "none" && !v.is_empty()),
            encap_df: get("ovn-encap-df_default"),
            transport_zones: list(get("ovn-transport-zones")),
            interconnection: get("ovn-is-interconn").is_some_and(|v| is_on(&v, false)),
            cleanup_on_exit: get("ovn-cleanup-on-exit").is_none_or(|v| is_on(&v, true)),
            zone_range: zone_range(get("ct-zone-range").as_deref()),
            garp_longest: get("garp-max-timeout-sec")
                .and_then(|v| v.parse().ok())
                .filter(|n| *n > 0)
                .map(Duration::from_secs),
            arp_longest: get("arp-nd-max-timeout-sec").and_then(|v| v.parse().ok()).map(Duration::from_secs),
            route_interfaces: pairs(get("dynamic-routing-port-mapping").as_deref()),
            evpn_ports: list(get("ovn-evpn-vxlan-ports")).into_iter().collect(),
            bridge_remote: get("ovn-bridge-remote").filter(|v| !v.is_empty()),
            bridge_probe: get("ovn-bridge-remote-probe-interval")
                .filter(|v| &**v != "0")
                .and_then(|v| probe_interval(Some(&v))),
            match_northd_version: get("ovn-match-northd-version").is_some_and(|v| is_on(&v, false)),
            hostname: get("hostname").or_else(machine_name).unwrap_or_else(|| system_id.clone()),
            cms_options: get("ovn-cms-options").unwrap_or_default(),
            other,
            monitor_all: get("ovn-monitor-all").is_some_and(|v| is_on(&v, false)),
            probe: probe_interval(get("ovn-remote-probe-interval").as_deref()),
            probe_asked: get("ovn-remote-probe-interval").is_some(),
            uplink_hold_down: uplink_hold_down(get("isthmus-uplink-hold-down").as_deref()),
            system_id,
        })
    }
}

impl Settings {
    /// The addresses by which this chassis is reached, in the order of the numbers that flows give them: the default one is
    /// the first.
    pub fn encap_ips(&self) -> Vec<Str> {
        let all: BTreeSet<&Str> = self.encaps.iter().map(|(_, ip)| ip).collect();
        let mut all: Vec<Str> = all.into_iter().cloned().collect();
        if let Some(at) = all.iter().position(|ip| Some(ip) == self.encap_default.as_ref()) {
            all.swap(0, at);
        }
        all
    }

    /// What the operator wants of tunnels.
    pub fn tunnelling(&self) -> Tunnelling {
        Tunnelling {
            encaps: self.encaps.clone(),
            transport_zones: self.transport_zones.clone(),
            interconnection: self.interconnection,
            flow_based: self.flow_based,
            tos: self.encap_tos.clone(),
            df: self.encap_df.clone(),
        }
    }
}

/// `off`, or a number of seconds.
fn uplink_hold_down(text: Option<&str>) -> Option<Duration> {
    const USUAL: Duration = Duration::from_secs(5);
    match text {
        Some("off") => None,
        Some(t) => Some(t.parse().map_or(USUAL, Duration::from_secs)),
        None => Some(USUAL),
    }
}

fn list(text: Option<Str>) -> BTreeSet<Str> {
    text.iter().flat_map(|t| t.split(',')).map(str::trim).filter(|z| !z.is_empty()).map(Str::from).collect()
}

/// `MIN-MAX` of `ct-zone-range`; without it, or where it says nothing sensible, all numbers that there are.
fn zone_range(text: Option<&str>) -> (u16, u16) {
    let parsed = text.and_then(|t| t.split_once('-')).and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.filter(|(a, b): &(u16, u16)| a <= b).map_or((1, u16::MAX), |(a, b)| (a.max(1), b))
}

/// The row of the integration bridge.
pub fn bridge<'a>(db: &'a ovs::Database, name: &str) -> Option<(Uuid, &'a ovs::Bridge)> {
    db.bridge.iter().find(|(_, b)| &*b.name == name).map(|(id, b)| (*id, &**b))
}

/// A bridge's ports with their interfaces.
pub fn interfaces<'a>(
    db: &'a ovs::Database,
    bridge: &'a ovs::Bridge,
) -> impl Iterator<Item = (Uuid, &'a ovs::Port, Uuid, &'a ovs::Interface)> {
    bridge
        .ports
        .iter()
        .filter_map(move |p| Some((*p, &**db.port.get(p)?)))
        .flat_map(move |(pid, p)| p.interfaces.iter().filter_map(move |i| Some((pid, p, *i, &**db.interface.get(i)?))))
}

/// The names of all ports of a switch, so that new ones do not clash.
pub fn port_names(db: &ovs::Database) -> BTreeSet<Str> {
    db.port.values().map(|p| p.name.clone()).collect()
}

/// Key, certificate and CA of the database's SSL table (ovs-vswitchd.conf.db(5)).
pub fn tls(db: &ovs::Database) -> Option<TlsFiles> {
    let row = db.ssl.values().next()?;
    Some(TlsFiles {
        private_key: (&*row.private_key).into(),
        certificate: (&*row.certificate).into(),
        ca_cert: Some(&*row.ca_cert).filter(|f| !f.is_empty()).map(Into::into),
        bootstrap: row.bootstrap_ca_cert,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn read(more: &[(&str, &str)]) -> Settings {
        let base = [
            ("system-id", "hv1"),
            ("ovn-remote", "tcp:h:1"),
            ("ovn-encap-type", "geneve"),
            ("ovn-encap-ip", "1.1.1.1"),
        ];
        let external_ids = base.iter().chain(more).map(|(k, v)| (Str::from(*k), Str::from(*v))).collect();
        let mut db = ovs::Database::default();
        db.open_vswitch.insert(Uuid::from_u128(1), Arc::new(ovs::OpenVswitch { external_ids, ..Default::default() }));
        Settings::read(&db, &Identity::default()).unwrap()
    }

    #[test]
    fn settings_are_on_and_off_in_any_case() {
        let s = read(&[("ovn-monitor-all", "TRUE"), ("ovn-encap-csum", "False"), ("ovn-cleanup-on-exit", "no")]);
        assert!(s.monitor_all && !s.encap_csum && s.cleanup_on_exit);
        assert!(!read(&[("ovn-monitor-all", "yes")]).monitor_all);
    }

    #[test]
    fn a_bridge_elsewhere_is_asked_only_where_that_is_wanted() {
        let s = read(&[("ovn-bridge-remote", "tcp:127.0.0.1:6653")]);
        assert_eq!((s.bridge_remote.as_deref(), s.bridge_probe), (Some("tcp:127.0.0.1:6653"), None));
        let probe = |ms| read(&[("ovn-bridge-remote-probe-interval", ms)]).bridge_probe;
        assert_eq!((probe("0"), probe("7000")), (None, Some(Duration::from_secs(7))));
        assert_eq!(probe("20"), Some(Duration::from_secs(1)), "no shorter than a second");
    }
}
