//! Ports: what is behind each (`Interface`), and its VLANs (`Port`).

use super::bfd::{BfdSpec, bfd};
use super::cfm::{CfmSpec, cfm};
use super::dummy::{self, DummyMode, DummyOptions};
use super::lldp::{LldpSpec, lldp};
use super::qos::{self, Egress, QosError, Rate};
use super::rstp::{self, RstpPortSpec};
use super::stp::{self, StpPortSpec};
use super::tunnel::{TunnelError, tunnel};
use super::{get, number, vlans};
use dpdk_rs::PortConfig;
use ovn_schema::{Map, Str, Uuid, ovs};
use packet::{Mac, VlanId};
use representors::devargs::{Devargs, Malformed};
use std::collections::BTreeMap;
use std::fmt;
use switch::{PriorityTags, TunnelConfig, TunnelKind, VlanMode};

/// Which device of DPDK's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DpdkDevice {
    /// That of `options:dpdk-devargs`.
    Named(Devargs),
    /// The card, or the representor, whose network device this is: a port without `dpdk-devargs`.
    OfLink(String),
}

impl DpdkDevice {
    /// Whether both are the same, in whatever words.
    pub fn is_same(&self, other: &DpdkDevice) -> bool {
        match (self, other) {
            (DpdkDevice::Named(a), DpdkDevice::Named(b)) => a.is_same_device(b),
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for DpdkDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DpdkDevice::Named(d) => d.fmt(f),
            DpdkDevice::OfLink(name) => f.write_str(name),
        }
    }
}

/// What is behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A network device of the kernel.
    System,
    /// A tap device that the kernel gets.
    Internal,
    /// A patch port with this peer.
    Patch(String),
    /// A tunnel.
    Tunnel(Box<TunnelConfig>),
    /// A DPDK device.
    Dpdk(DpdkDevice),
    /// A vhost-user socket.
    VhostClient(String),
    /// A device of this process alone (`--enable-dummy`).
    Dummy {
        /// It is in the place of an internal port.
        internal: bool,
    },
}

/// Why an Interface row cannot be followed; in Open vSwitch's words where it has some. The text stands in column
/// `error`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// There is no such type.
    #[error("could not open network device {port} (Address family not supported by protocol); there is no type {kind}")]
    Type {
        /// The port.
        port: String,
        /// The type.
        kind: String,
    },
    /// A patch port names no peer.
    #[error("{0}: patch type requires valid 'peer' argument")]
    NoPeer(String),
    /// A patch port names itself.
    #[error("{0}: patch peer must not be self")]
    OwnPeer(String),
    /// The options of a tunnel.
    #[error("{port}: {error}")]
    Tunnel {
        /// The port.
        port: String,
        /// What is wrong with them.
        error: TunnelError,
    },
    /// `options:dpdk-devargs`.
    #[error("{port}: options:dpdk-devargs: {error}")]
    Devargs {
        /// The port.
        port: String,
        /// What is wrong with them.
        error: Malformed,
    },
    /// `options:vhost-server-path` is missing.
    #[error("{0}: options:vhost-server-path is missing")]
    NoSocket(String),
    /// `options:vhost-server-path` is too long for a socket.
    #[error("{port}: vhost-server-path has {length} bytes; a socket's has {LONGEST_SOCKET} at most")]
    LongSocket {
        /// The port.
        port: String,
        /// The length in bytes.
        length: usize,
    },
    /// Another port is the same tunnel.
    #[error("could not add network device {port} to ofproto (File exists); {twin} is such a tunnel")]
    TunnelExists {
        /// The port.
        port: String,
        /// The other one.
        twin: String,
    },
    /// Another port has the same device.
    #[error("'{port}' is trying to use device '{device}' which is already in use by '{twin}'")]
    DeviceInUse {
        /// The port.
        port: String,
        /// The device.
        device: String,
        /// The other port.
        twin: String,
    },
}

/// A port: one interface.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSpec {
    /// How it takes part in a spanning tree, if its bridge has one; none: not.
    pub stp: Option<StpPortSpec>,
    /// How it takes part in a rapid spanning tree; none: it does not.
    pub rstp: Option<RstpPortSpec>,
    /// It negotiates with LACP whether it may carry packets (`Port:lacp`).
    pub negotiates: bool,
    /// The Interface row.
    pub interface: Uuid,
    /// Name.
    pub name: String,
    /// What is behind it, or why its row cannot be followed.
    pub kind: Result<Kind, PortError>,
    /// Its type is `tap`: another program may have made the device.
    pub tap: bool,
    /// One machine is behind it (`external_ids:iface-id`), and not a network.
    pub of_machine: bool,
    /// Why a part of its row has no effect.
    pub complaint: Option<String>,
    /// VLAN mode.
    pub vlan: VlanMode,
    /// Whether packets get a tag for their priority alone.
    pub priority_tags: PriorityTags,
    /// It gets no packets from other protected ports.
    pub protected: bool,
    /// It gets all multicast packets of a bridge that snoops (`mcast-snooping-flood`).
    pub mcast_flood: bool,
    /// It gets all reports (`mcast-snooping-flood-reports`).
    pub mcast_flood_reports: bool,
    /// `ofport_request`.
    pub request: Option<u16>,
    /// `ofport` as the row has it.
    pub last: Option<u16>,
    /// The requested address.
    pub mac: Option<Mac>,
    /// `mtu_request`.
    pub mtu: Option<u32>,
    /// Options of a dummy.
    pub dummy: DummyOptions,
    /// Queues, descriptors and MTU of a DPDK device.
    pub setup: PortConfig,
    /// BFD, if enabled.
    pub bfd: Option<BfdSpec>,
    /// Connectivity fault management, if it has a maintenance point.
    pub cfm: Option<CfmSpec>,
    /// LLDP, if enabled.
    pub lldp: Option<LldpSpec>,
    /// `pmd-rxq-affinity`: queues, and the processors that receive from them.
    pub affinity: Vec<(u16, usize)>,
    /// `ingress_policing_*`.
    pub ingress: Rate,
    /// The limits of its QoS row, or why that cannot be followed.
    pub egress: Result<Egress, QosError>,
    /// `Queue:dscp`: what packets of a queue are marked with.
    pub queue_marks: BTreeMap<u16, u8>,
}

/// A bridge, as far as its ports have to know it.
pub(super) struct Owner<'a> {
    pub name: &'a str,
    pub mac: Mac,
    /// Its internal ports are dummies.
    pub dummy: bool,
    /// Its `auto_attach`.
    pub attach: Option<&'a ovs::AutoAttach>,
}

pub(super) fn port(uuid: Uuid, i: &ovs::Interface, p: &ovs::Port, owner: &Owner<'_>, dummies: DummyMode) -> PortSpec {
    let small = |n: Option<i64>| n.and_then(|n| u16::try_from(n).ok()).filter(|n| (1..0xff00).contains(n));
    // The bridge's own port has the bridge's address (`other_config:hwaddr`).
    let own = *i.name == *owner.name;
    let mac = i.mac.as_deref().and_then(|m| m.parse::<Mac>().ok()).filter(|m| !own && unfit(*m).is_none());
    let kind = kind(i, owner, dummies);
    let mtu = i.mtu_request.and_then(|m| u32::try_from(m).ok());
    PortSpec {
        stp: stp::port(p, of_host(&kind)),
        rstp: rstp::port(p, of_host(&kind)),
        negotiates: p.lacp.as_deref().is_some_and(|l| l != "off"),
        tap: &*i.r#type == "tap" && &*i.name != owner.name,
        of_machine: i.external_ids.contains_key("iface-id"),
        interface: uuid,
        setup: setup(i, &kind, mtu),
        name: i.name.to_string(),
        complaint: complaint(i, &kind),
        dummy: if matches!(kind, Ok(Kind::Dummy { .. })) { dummy::options(i) } else { DummyOptions::default() },
        bfd: bfd(&i.name, &i.bfd, mac.unwrap_or(owner.mac), matches!(kind, Ok(Kind::Tunnel(_)))),
        cfm: cfm(&i.name, i.cfm_mpid, &i.other_config, mac.unwrap_or(owner.mac), key_of_flow(i)),
        lldp: lldp(i, owner.attach),
        kind,
        vlan: vlan(p),
        priority_tags: match get(&p.other_config, "priority-tags") {
            Some("always" | "true") => PriorityTags::Always,
            Some("if-nonzero") => PriorityTags::IfNonzero,
            _ => PriorityTags::Never,
        },
        protected: p.protected,
        mcast_flood: get(&p.other_config, "mcast-snooping-flood") == Some("true"),
        mcast_flood_reports: get(&p.other_config, "mcast-snooping-flood-reports") == Some("true"),
        request: small(i.ofport_request),
        last: small(i.ofport),
        mac,
        affinity: affinity(i),
        ingress: qos::ingress(i),
        egress: Ok(Egress::Free),
        queue_marks: BTreeMap::new(),
        mtu,
    }
}

/// Whether the host has the other end: its network stack, or a dummy in its place.
pub(crate) fn of_host(kind: &Result<Kind, PortError>) -> bool {
    matches!(kind, Ok(Kind::Internal | Kind::Dummy { internal: true }))
}

/// Whether flows say which key a tunnel's packets have.
fn key_of_flow(i: &ovs::Interface) -> bool {
    ["key", "in_key"].into_iter().any(|k| get(&i.options, k) == Some("flow"))
}

/// `other_config:pmd-rxq-affinity`: queue and processor, as in `0:3,1:7`. A pair that cannot be read is left out, with
/// a warning.
fn affinity(i: &ovs::Interface) -> Vec<(u16, usize)> {
    let pair = |p: &str| {
        let pair = p.split_once(':').and_then(|(q, c)| Some((q.trim().parse().ok()?, c.trim().parse().ok()?)));
        if pair.is_none() {
            tracing::warn!(target: "bridge", "{}: other_config:pmd-rxq-affinity: {p}: expected a queue and a processor; it is left out", i.name);
        }
        pair
    };
    get(&i.other_config, "pmd-rxq-affinity").into_iter().flat_map(|l| l.split(',')).filter_map(pair).collect()
}

/// A number of queues, at least 1.
pub(super) fn queues_of(m: &Map<Str, Str>, key: &str) -> Option<u16> {
    number(m, key).ok().flatten().filter(|n| *n > 0)
}

/// Queues and descriptors (ovs-vswitchd.conf.db(5), `options:n_rxq` and what follows there).
fn setup(i: &ovs::Interface, kind: &Result<Kind, PortError>, mtu: Option<u32>) -> PortConfig {
    let default = PortConfig::default();
    if !matches!(kind, Ok(Kind::Dpdk(_) | Kind::VhostClient(_))) {
        return default;
    }
    // `complaint` tells of values that cannot be.
    let descriptors = |key| descriptors(&i.options, key).ok().flatten();
    PortConfig {
        rx_queues: queues_of(&i.options, "n_rxq").unwrap_or(default.rx_queues),
        tx_queues: queues_of(&i.options, "n_txq").unwrap_or(default.tx_queues),
        rx_descriptors: descriptors("n_rxq_desc"),
        tx_descriptors: descriptors("n_txq_desc").unwrap_or(default.tx_descriptors),
        mtu: mtu.and_then(|m| u16::try_from(m).ok()),
        rx_checksums: matches!(kind, Ok(Kind::Dpdk(_))),
    }
}

/// Why no device can have an address.
fn unfit(mac: Mac) -> Option<&'static str> {
    match mac {
        Mac::ZERO => Some("cannot set MAC to all zero address"),
        m if m.is_multicast() => Some("cannot set MAC to multicast address"),
        _ => None,
    }
}

/// Why some of an interface's options have no effect.
fn complaint(i: &ovs::Interface, kind: &Result<Kind, PortError>) -> Option<String> {
    let what = match kind {
        Ok(Kind::Dummy { .. }) => dummy::without_effect(&i.options),
        Ok(Kind::Dpdk(_) | Kind::VhostClient(_)) => ["n_rxq", "n_txq"].into_iter().find_map(|key| {
            let wrong = get(&i.options, key).filter(|_| queues_of(&i.options, key).is_none())?;
            Some(format!("{key}={wrong}: expected a number of queues; there is one"))
        }),
        _ => None,
    };
    let descriptors = || {
        let key = ["n_rxq_desc", "n_txq_desc"].into_iter().find(|key| descriptors(&i.options, key).is_err())?;
        Some(format!("{key}={}: expected a power of two up to 4096", get(&i.options, key)?))
    };
    let device = matches!(kind, Ok(Kind::Dpdk(_) | Kind::VhostClient(_)));
    let mac = || Some(format!("mac: {}", unfit(i.mac.as_deref()?.parse().ok()?)?));
    what.or_else(|| descriptors().filter(|_| device)).or_else(mac).map(|w| format!("{}: {w}", i.name))
}

/// A number of descriptors, if one is given.
fn descriptors(options: &Map<Str, Str>, key: &str) -> Result<Option<u16>, ()> {
    match number::<u16>(options, key) {
        Ok(Some(n)) if !n.is_power_of_two() || n > 4096 => Err(()),
        Ok(n) => Ok(n),
        Err(_) => Err(()),
    }
}

fn vlan(p: &ovs::Port) -> VlanMode {
    let trunks = vlans(&p.trunks);
    let tag = p.tag.and_then(|t| VlanId::try_from(t).ok());
    match (p.vlan_mode.as_deref(), tag) {
        (Some("access"), t) => VlanMode::Access(t.unwrap_or_default()),
        (Some("native-tagged"), t) => VlanMode::NativeTagged(t.unwrap_or_default(), trunks),
        (Some("native-untagged"), t) => VlanMode::NativeUntagged(t.unwrap_or_default(), trunks),
        (Some("dot1q-tunnel"), t) => VlanMode::Dot1qTunnel {
            vlan: t.unwrap_or_default(),
            customers: vlans(&p.cvlans),
            tpid: match get(&p.other_config, "qinq-ethtype") {
                Some("802.1q") => packet::ethertype::VLAN,
                _ => packet::ethertype::QINQ,
            },
        },
        (Some(_), _) | (None, None) => VlanMode::Trunk(trunks),
        (None, Some(t)) => VlanMode::Access(t),
    }
}

/// The longest path of a socket, in bytes (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// The types of interfaces that there are, for `Open_vSwitch:iface_types`; those of dummies are apart.
pub(crate) const TYPES: &[&str] = &[
    "dpdk",
    "dpdkvhostuserclient",
    "erspan",
    "geneve",
    "gre",
    "gtpu",
    "internal",
    "ip6erspan",
    "ip6gre",
    "patch",
    "srv6",
    "system",
    "tap",
    "vxlan",
];

fn kind(i: &ovs::Interface, owner: &Owner<'_>, dummies: DummyMode) -> Result<Kind, PortError> {
    let port = || i.name.to_string();
    let option = |key: &str| get(&i.options, key).filter(|v| !v.is_empty()).map(String::from);
    let of_tunnel = |error| PortError::Tunnel { port: port(), error };
    let of_type = |mut kind: Kind| {
        if let Kind::Tunnel(t) = &mut kind {
            t.v6_type = i.r#type.starts_with("ip6");
        }
        kind
    };
    match &*i.r#type {
        // The bridge's own port is internal, whatever its type.
        kind if &*i.name == owner.name || kind == "internal" => {
            Ok(if owner.dummy { Kind::Dummy { internal: true } } else { Kind::Internal })
        }
        kind if dummies.covers(kind) => Ok(Kind::Dummy { internal: false }),
        "" | "system" => Ok(Kind::System),
        "tap" => Ok(Kind::Internal),
        "patch" => match get(&i.options, "peer") {
            None => Err(PortError::NoPeer(port())),
            Some(peer) if peer == &*i.name => Err(PortError::OwnPeer(port())),
            Some(peer) => Ok(Kind::Patch(peer.into())),
        },
        "geneve" => tunnel(TunnelKind::Geneve, "geneve", &i.options).map_err(of_tunnel),
        "vxlan" => tunnel(TunnelKind::Vxlan, "vxlan", &i.options).map_err(of_tunnel),
        "gre" | "ip6gre" => tunnel(TunnelKind::Gre, "gre", &i.options).map(of_type).map_err(of_tunnel),
        "gtpu" => tunnel(TunnelKind::Gtpu, "gtpu", &i.options).map_err(of_tunnel),
        "srv6" => tunnel(TunnelKind::Srv6, "srv6", &i.options).map_err(of_tunnel),
        "erspan" | "ip6erspan" => tunnel(TunnelKind::Erspan, "erspan", &i.options).map(of_type).map_err(of_tunnel),
        "dpdk" => match option("dpdk-devargs").map(|text| Devargs::parse(&text)) {
            None => Ok(Kind::Dpdk(DpdkDevice::OfLink(port()))),
            Some(Ok(d)) => Ok(Kind::Dpdk(DpdkDevice::Named(d))),
            Some(Err(error)) => Err(PortError::Devargs { port: port(), error }),
        },
        "dpdkvhostuserclient" => {
            let path = option("vhost-server-path").ok_or_else(|| PortError::NoSocket(port()))?;
            match path.len() {
                0..=LONGEST_SOCKET => Ok(Kind::VhostClient(path)),
                length => Err(PortError::LongSocket { port: port(), length }),
            }
        }
        kind => Err(PortError::Type { port: port(), kind: kind.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_that_are_told_are_those_that_there_are() {
        let owner = Owner { name: "br0", mac: Mac::ZERO, dummy: false, attach: None };
        let known = |r#type: &str| {
            let i = ovs::Interface { name: "p".into(), r#type: r#type.into(), ..Default::default() };
            !matches!(kind(&i, &owner, DummyMode::default()), Err(PortError::Type { .. }))
        };
        let other = ["bareudp", "dpdkvhostuser", "lisp", "stt", "afxdp", "dummy", "flow"];
        assert!(TYPES.iter().all(|t| known(t)) && !other.iter().any(|t| known(t)));
    }
}
