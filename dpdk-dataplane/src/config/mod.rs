//! What the Open_vSwitch database asks for (ovs-vswitchd.conf.db(5)), parsed once, here.

mod dpdk;
mod tunnel;

pub use dpdk::{dpdk_arguments, packets, sleep_max, worker_processors};

use crate::ports::bfd::BfdSpec;
use crate::ports::bond::BondSpec;
use crate::ports::bond::lacp::LacpSpec;
use crate::export::ipfix::{self, CollectorSet};
use crate::openflow::Limit;
use crate::ports::qos::policer::Rate;
use crate::qos::{self, Egress};
use dpdk_rs::PortConfig;
use openflow_rs::connection::OUR_VERSIONS;
use ovn_schema::{Map, Str, Uuid, ovs};
use ovsdb_rs::tls::TlsFiles;
use packet::Mac;
use std::collections::BTreeMap;
use std::time::Duration;
use switch::{PriorityTags, Spread, TableConfig, TunnelConfig, TunnelKind, VlanMode};
use tunnel::{bfd, tunnel, without_effect};

/// A bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct BridgeSpec {
    /// Row.
    pub uuid: Uuid,
    /// Name.
    pub name: String,
    /// Datapath id.
    pub datapath_id: u64,
    /// Address of the bridge's own port.
    pub mac: Mac,
    /// Without a controller's flows it drops everything.
    pub secure: bool,
    /// Age at which learned addresses are forgotten.
    pub mac_age: Duration,
    /// Learned addresses at most.
    pub mac_limit: usize,
    /// The OpenFlow versions that it speaks, a bit each.
    pub versions: u32,
    /// Its controllers.
    pub controllers: Vec<ControllerSpec>,
    /// Its collector sets, by number.
    pub collectors: BTreeMap<u32, CollectorSet>,
    /// What is said of its tables.
    pub tables: BTreeMap<u8, TableConfig>,
    /// Its mirrors.
    pub mirrors: Vec<MirrorSpec>,
    /// Ports, in the order in which they get numbers.
    pub ports: Vec<PortSpec>,
    /// Which of them are bonds.
    pub bonds: Vec<BondSpec>,
}

/// A mirror: as the engine has it, with ports by name.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorSpec {
    /// Row.
    pub uuid: Uuid,
    /// Name.
    pub name: String,
    /// All packets of all ports.
    pub all: bool,
    /// What these receive.
    pub sources: Vec<String>,
    /// What these send.
    pub destinations: Vec<String>,
    /// Only packets of these VLANs.
    pub vlans: Vec<u16>,
    /// The port that copies go to, else the VLAN; neither: the mirror does nothing.
    pub output: Result<Option<String>, u16>,
    /// The longest copy.
    pub snaplen: Option<usize>,
}

/// A controller that the switch connects to, or waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerSpec {
    /// Row.
    pub uuid: Uuid,
    /// Connection method.
    pub target: String,
    /// It gets asynchronous messages from the start.
    pub primary: bool,
    /// Silence after which it is asked for a sign of life; zero: never.
    pub probe: Duration,
    /// The longest time between two attempts.
    pub max_backoff: Duration,
    /// How fast it gets packets.
    pub limit: Option<Limit>,
    /// For `ssl:`.
    pub tls: Option<TlsFiles>,
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
    /// A DPDK device: `dpdk-devargs`.
    Dpdk(String),
    /// A vhost-user socket.
    VhostClient(String),
}

/// A port: one interface.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSpec {
    /// The Interface row.
    pub interface: Uuid,
    /// Name.
    pub name: String,
    /// What is behind it, or what is wrong with its row.
    pub kind: Result<Kind, String>,
    /// Its type is `tap`: the device may be somebody else's.
    pub tap: bool,
    /// What of its row has no effect, while the rest has.
    pub complaint: Option<String>,
    /// VLANs.
    pub vlan: VlanMode,
    /// Tags for priorities alone.
    pub priority_tags: PriorityTags,
    /// It gets nothing from other such ports.
    pub protected: bool,
    /// The number asked for.
    pub request: Option<u16>,
    /// The number that the row holds.
    pub last: Option<u16>,
    /// The address asked for.
    pub mac: Option<Mac>,
    /// The largest payload asked for.
    pub mtu: Option<u32>,
    /// How a DPDK device is set up.
    pub setup: PortConfig,
    /// BFD, if enabled.
    pub bfd: Option<BfdSpec>,
    /// `pmd-rxq-affinity`: queues, and the processors that receive from them.
    pub affinity: Vec<(u16, usize)>,
    /// What it takes in at most.
    pub ingress: Rate,
    /// What it gives out at most, or why the QoS that it asks for cannot be had.
    pub egress: Result<Egress, String>,
}

/// Parses `aa:bb:cc:dd:ee:ff`.
pub fn parse_mac(s: &str) -> Option<Mac> {
    let parts: Vec<u8> = s.split(':').map(|p| u8::from_str_radix(p, 16)).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

fn get<'a>(m: &'a Map<Str, Str>, key: &str) -> Option<&'a str> {
    m.get(key).map(|v| &**v)
}

pub(crate) fn number<T: std::str::FromStr>(m: &Map<Str, Str>, key: &str) -> Result<Option<T>, String> {
    match get(m, key) {
        None => Ok(None),
        Some(v) => v.trim().parse().map(Some).map_err(|_| format!("{key}={v}: expected a number")),
    }
}

/// An address that is the same after a restart, and unlikely the same for two bridges.
fn own_mac(id: Uuid) -> Mac {
    let b = id.as_bytes();
    [0x02 | (b[0] & 0xfc), b[1], b[2], b[3], b[4], b[5]]
}

fn mac_number(m: Mac) -> u64 {
    m.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

/// The bridges that the database asks for, by name.
pub fn bridges(db: &ovs::Database) -> Vec<BridgeSpec> {
    let Some(root) = db.open_vswitch.values().next() else { return Vec::new() };
    let mut v: Vec<BridgeSpec> =
        root.bridges.iter().filter_map(|id| db.bridge.get(id).map(|b| bridge(db, *id, b))).collect();
    v.sort_by(|a, b| a.name.cmp(&b.name));
    refuse_twins(&mut v);
    v
}

/// Of ports that want the same tunnel, or the same device, one can have it: the one that has it, else the first.
fn refuse_twins(bridges: &mut [BridgeSpec]) {
    let same = |a: &Kind, b: &Kind| match (a, b) {
        (Kind::Tunnel(a), Kind::Tunnel(b)) => {
            let what = |t: &TunnelConfig| (t.kind, t.udp_port, t.remote, t.local, t.key);
            what(a) == what(b)
        }
        (Kind::Dpdk(a), Kind::Dpdk(b)) | (Kind::VhostClient(a), Kind::VhostClient(b)) => a == b,
        _ => false,
    };
    let mut had: Vec<(Kind, String)> = Vec::new();
    for running in [true, false] {
        for p in bridges.iter_mut().flat_map(|b| &mut b.ports).filter(|p| p.last.is_some() == running) {
            let Ok(kind @ (Kind::Tunnel(_) | Kind::Dpdk(_) | Kind::VhostClient(_))) = &p.kind else { continue };
            let twin = had.iter().find(|(k, _)| same(k, kind)).map(|(k, name)| (k, name.clone()));
            p.kind = match twin {
                None => {
                    had.push((kind.clone(), p.name.clone()));
                    continue;
                }
                Some((Kind::Tunnel(_), twin)) => Err(format!(
                    "could not add network device {} to ofproto (File exists); {twin} is such a tunnel",
                    p.name
                )),
                Some((Kind::Dpdk(d) | Kind::VhostClient(d), twin)) => {
                    Err(format!("'{}' is trying to use device '{d}' which is already in use by '{twin}'", p.name))
                }
                Some(_) => continue,
            };
        }
    }
}

fn bridge(db: &ovs::Database, uuid: Uuid, b: &ovs::Bridge) -> BridgeSpec {
    let mac = get(&b.other_config, "hwaddr").and_then(parse_mac).unwrap_or_else(|| own_mac(uuid));
    let wanted = get(&b.other_config, "datapath-id")
        .and_then(|s| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok())
        .filter(|d| *d != 0);
    let mut ports = Vec::new();
    let queues = db.open_vswitch.values().next().and_then(|r| queues_of(&r.other_config, "n-dpdk-rxqs"));
    for p in b.ports.iter().filter_map(|id| db.port.get(id)) {
        for id in p.interfaces.iter() {
            let Some(i) = db.interface.get(id) else { continue };
            let mut s = port(*id, i, p, mac, &b.name);
            if let (Some(n), Ok(Kind::Dpdk(_) | Kind::VhostClient(_))) = (queues, &s.kind) {
                s.setup.rx_queues = queues_of(&i.options, "n_rxq").unwrap_or(n);
            }
            s.egress = qos::egress(db, p);
            ports.push(s);
        }
    }
    ports.sort_by(|a, b| {
        (a.request.is_none(), a.last.is_none(), &a.name).cmp(&(b.request.is_none(), b.last.is_none(), &b.name))
    });
    let limit = |key, default| number(&b.other_config, key).ok().flatten().unwrap_or(default);
    let mut controllers: Vec<ControllerSpec> =
        b.controller.iter().filter_map(|id| db.controller.get(id).map(|c| controller(db, *id, c))).collect();
    controllers.sort_by(|a, b| a.target.cmp(&b.target));
    BridgeSpec {
        uuid,
        versions: versions(b),
        collectors: ipfix::sets(db, uuid),
        tables: b.flow_tables.iter().filter_map(|(n, id)| table(*n, db.flow_table.get(id)?)).collect(),
        mirrors: b.mirrors.iter().filter_map(|id| db.mirror.get(id).map(|m| mirror(db, *id, m))).collect(),
        controllers,
        name: b.name.to_string(),
        datapath_id: wanted.unwrap_or(mac_number(mac)),
        mac,
        secure: b.fail_mode.as_deref() == Some("secure"),
        mac_age: Duration::from_secs(limit("mac-aging-time", 300)),
        mac_limit: limit("mac-table-size", 8192) as usize,
        bonds: b.ports.iter().filter_map(|id| bond(db, *id, mac)).collect(),
        ports,
    }
}

/// What a port with several interfaces, or with LACP, asks for.
fn bond(db: &ovs::Database, row: Uuid, bridge_mac: Mac) -> Option<BondSpec> {
    let p = db.port.get(&row)?;
    let (o, lacp) = (&p.other_config, p.lacp.as_deref().filter(|l| *l != "off"));
    if p.interfaces.len() < 2 && lacp.is_none() {
        return None;
    }
    // A value that cannot be is passed over, with a warning.
    fn said<T: std::str::FromStr>(of: &str, m: &Map<Str, Str>, key: &str) -> Option<T> {
        number(m, key).unwrap_or_else(|e| {
            tracing::warn!(target: "bond", "{of}: other_config:{e}; it is left out");
            None
        })
    }
    let mut rows: Vec<&ovs::Interface> =
        p.interfaces.iter().filter_map(|id| db.interface.get(id).map(|i| &**i)).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let ids = |i: &&ovs::Interface| {
        ["lacp-port-id", "lacp-port-priority"].map(|k| said(&i.name, &i.other_config, k).filter(|n| *n != 0))
    };
    let flag = |key: &str| get(o, key) == Some("true");
    let ms = |v: i64| Duration::from_millis(v.max(0) as u64);
    Some(BondSpec {
        row,
        name: p.name.to_string(),
        members: rows.iter().map(|i| (i.name.to_string(), ids(i))).collect(),
        key: rows.iter().find_map(|i| said(&i.name, &i.other_config, "lacp-aggregation-key")),
        spread: match p.bond_mode.as_deref() {
            Some("balance-slb") => Spread::Source,
            Some("balance-tcp") => Spread::Transport,
            _ => Spread::Active,
        },
        delays: [ms(p.bond_updelay), ms(p.bond_downdelay)],
        primary: get(o, "bond-primary").map(String::from),
        // Less than a second is a second; 0 is never.
        rebalance: match said(&p.name, o, "bond-rebalance-interval") {
            Some(0) => None,
            Some(n) => Some(Duration::from_millis(n).max(Duration::from_secs(1))),
            None => Some(Duration::from_secs(10)),
        },
        basis: said(&p.name, o, "bond-hash-basis").unwrap_or(0),
        all_active: flag("all-members-active") || flag("all-slaves-active"),
        miimon: (get(o, "bond-detect-mode") == Some("miimon"))
            .then(|| Duration::from_millis(said(&p.name, o, "bond-miimon-interval").unwrap_or(200).max(100))),
        last: p.bond_active_slave.as_deref().and_then(parse_mac),
        lacp: lacp.map(|l| LacpSpec {
            active: l == "active",
            fast: get(o, "lacp-time") == Some("fast"),
            sys_id: get(o, "lacp-system-id").and_then(parse_mac).unwrap_or(bridge_mac),
            sys_priority: said(&p.name, o, "lacp-system-priority").filter(|n| *n != 0).unwrap_or(65534),
            fallback: flag("lacp-fallback-ab"),
        }),
    })
}

/// The versions of column `protocols`, all of ours where it is empty.
fn versions(b: &ovs::Bridge) -> u32 {
    let bit = |p: &Str| match &**p {
        "OpenFlow10" => 1 << 1,
        "OpenFlow11" => 1 << 2,
        "OpenFlow12" => 1 << 3,
        "OpenFlow13" => 1 << 4,
        "OpenFlow14" => 1 << 5,
        "OpenFlow15" => 1 << 6,
        _ => 0,
    };
    if b.protocols.is_empty() { OUR_VERSIONS } else { b.protocols.iter().fold(0, |v, p| v | bit(p)) }
}

/// A table's limit and name. Prefixes are not needed: lookups find what is common to flows by themselves.
fn table(n: i64, t: &ovs::FlowTable) -> Option<(u8, TableConfig)> {
    let n = u8::try_from(n).ok()?;
    let group = |g: &Str| match g.parse() {
        Ok(s) => Some(s),
        Err(e) => {
            tracing::warn!(target: "bridge", "Flow_Table of table {n}: groups: {g}: {e}; it is left out");
            None
        }
    };
    let config = TableConfig {
        name: t.name.as_deref().map(String::from),
        limit: t.flow_limit.and_then(|l| usize::try_from(l).ok()),
        evict: t.overflow_policy.as_deref() == Some("evict"),
        evict_openflow: false,
        groups: t.groups.iter().filter_map(group).collect(),
    };
    Some((n, config))
}

fn mirror(db: &ovs::Database, uuid: Uuid, m: &ovs::Mirror) -> MirrorSpec {
    // A port's interfaces are what packets come and go by.
    let interfaces = |ports: &ovn_schema::Set<Uuid>| {
        let interfaces = ports.iter().filter_map(|id| db.port.get(id)).flat_map(|p| p.interfaces.iter());
        interfaces.filter_map(|id| db.interface.get(id)).map(|i| i.name.to_string()).collect::<Vec<String>>()
    };
    let out = m.output_port.map(|id| interfaces(&[id].into_iter().collect()).into_iter().next());
    MirrorSpec {
        uuid,
        name: m.name.to_string(),
        all: m.select_all,
        sources: interfaces(&m.select_src_port),
        destinations: interfaces(&m.select_dst_port),
        vlans: m.select_vlan.iter().map(|v| *v as u16).collect(),
        output: match (out, m.output_vlan) {
            (Some(port), _) => Ok(port),
            (None, Some(v)) => Err(v as u16),
            (None, None) => Ok(None),
        },
        snaplen: m.snaplen.and_then(|n| usize::try_from(n).ok()),
    }
}

fn controller(db: &ovs::Database, uuid: Uuid, c: &ovs::Controller) -> ControllerSpec {
    let ms = |v: Option<i64>, default| Duration::from_millis(v.and_then(|v| u64::try_from(v).ok()).unwrap_or(default));
    let ssl = db.open_vswitch.values().next().and_then(|r| db.ssl.get(&r.ssl?));
    ControllerSpec {
        uuid,
        target: c.target.to_string(),
        primary: c.r#type.as_deref() != Some("service") && c.enable_async_messages != Some(false),
        probe: ms(c.inactivity_probe, 5000),
        max_backoff: ms(c.max_backoff, 8000),
        limit: c.controller_rate_limit.and_then(|n| u32::try_from(n).ok()).map(|rate| Limit {
            rate,
            burst: c.controller_burst_limit.and_then(|n| u32::try_from(n).ok()).unwrap_or(rate / 4).max(25),
        }),
        tls: ssl.map(|s| TlsFiles {
            private_key: (&*s.private_key).into(),
            certificate: (&*s.certificate).into(),
            ca_cert: Some((&*s.ca_cert).into()),
            bootstrap: s.bootstrap_ca_cert,
        }),
    }
}

fn port(uuid: Uuid, i: &ovs::Interface, p: &ovs::Port, bridge_mac: Mac, bridge: &str) -> PortSpec {
    let small = |n: Option<i64>| n.and_then(|n| u16::try_from(n).ok()).filter(|n| (1..0xff00).contains(n));
    let mac = i.mac.as_deref().and_then(parse_mac);
    let bfd = bfd(&i.name, &i.bfd, mac.unwrap_or(bridge_mac));
    let mut kind = kind(i, bridge);
    if let Ok(Kind::Tunnel(t)) = &mut kind {
        t.bfd = bfd.map(|b| b.packets());
    }
    let mtu = i.mtu_request.and_then(|m| u32::try_from(m).ok());
    PortSpec {
        tap: &*i.r#type == "tap" && &*i.name != bridge,
        interface: uuid,
        setup: setup(i, &kind, mtu),
        name: i.name.to_string(),
        complaint: complaint(i, &kind),
        bfd: bfd.filter(|_| matches!(kind, Ok(Kind::Tunnel(_)))),
        kind,
        vlan: vlan(p),
        priority_tags: match get(&p.other_config, "priority-tags") {
            Some("always" | "true") => PriorityTags::Always,
            Some("if-nonzero") => PriorityTags::IfNonzero,
            _ => PriorityTags::Never,
        },
        protected: p.protected,
        request: small(i.ofport_request),
        last: small(i.ofport),
        mac,
        affinity: affinity(i),
        ingress: qos::ingress(i),
        egress: Ok(Egress::Free),
        mtu,
    }
}

/// `other_config:pmd-rxq-affinity`: queue and processor, `0:3,1:7`. One that is none is left out, with a warning.
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

/// A number of queues; 0 is no number.
fn queues_of(m: &Map<Str, Str>, key: &str) -> Option<u16> {
    number(m, key).ok().flatten().filter(|n| *n > 0)
}

/// Queues and descriptors (ovs-vswitchd.conf.db(5), `options:n_rxq` and what follows there).
fn setup(i: &ovs::Interface, kind: &Result<Kind, String>, mtu: Option<u32>) -> PortConfig {
    let default = PortConfig::default();
    if !matches!(kind, Ok(Kind::Dpdk(_) | Kind::VhostClient(_))) {
        return default;
    }
    // What cannot be is complained of (`complaint`).
    let descriptors = |key, default| descriptors(&i.options, key).ok().flatten().unwrap_or(default);
    PortConfig {
        rx_queues: queues_of(&i.options, "n_rxq").unwrap_or(default.rx_queues),
        tx_queues: queues_of(&i.options, "n_txq").unwrap_or(default.tx_queues),
        rx_descriptors: descriptors("n_rxq_desc", default.rx_descriptors),
        tx_descriptors: descriptors("n_txq_desc", default.tx_descriptors),
        mtu: mtu.and_then(|m| u16::try_from(m).ok()),
        rx_checksums: matches!(kind, Ok(Kind::Dpdk(_))),
    }
}

/// What of an interface's options has no effect, while the others have.
fn complaint(i: &ovs::Interface, kind: &Result<Kind, String>) -> Option<String> {
    let what = match kind {
        Ok(Kind::Tunnel(t)) => without_effect(t, &i.options),
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
    what.or_else(|| descriptors().filter(|_| device)).map(|w| format!("{}: {w}", i.name))
}

/// A number of descriptors, if one is said.
fn descriptors(options: &Map<Str, Str>, key: &str) -> Result<Option<u16>, ()> {
    match number::<u16>(options, key) {
        Ok(Some(n)) if !n.is_power_of_two() || n > 4096 => Err(()),
        Ok(n) => Ok(n),
        Err(_) => Err(()),
    }
}

fn vlan(p: &ovs::Port) -> VlanMode {
    let trunks: Vec<u16> = p.trunks.iter().map(|v| *v as u16).collect();
    let tag = p.tag.map(|t| t as u16);
    match (p.vlan_mode.as_deref(), tag) {
        (Some("access"), t) => VlanMode::Access(t.unwrap_or(0)),
        (Some("native-tagged"), t) => VlanMode::NativeTagged(t.unwrap_or(0), trunks),
        (Some("native-untagged"), t) => VlanMode::NativeUntagged(t.unwrap_or(0), trunks),
        (Some("dot1q-tunnel"), t) => VlanMode::Dot1qTunnel {
            vlan: t.unwrap_or(0),
            customers: p.cvlans.iter().map(|v| *v as u16).collect(),
            tpid: match get(&p.other_config, "qinq-ethtype") {
                Some("802.1q") => packet::ethertype::VLAN,
                _ => packet::ethertype::QINQ,
            },
        },
        (Some(_), _) | (None, None) => VlanMode::Trunk(trunks),
        (None, Some(t)) => VlanMode::Access(t),
    }
}

/// Bytes of the path of a socket (unix(7)).
const LONGEST_SOCKET: usize = 107;

fn kind(i: &ovs::Interface, bridge: &str) -> Result<Kind, String> {
    let option = |key: &str| {
        let said = get(&i.options, key).filter(|v| !v.is_empty()).map(String::from);
        said.ok_or_else(|| format!("{}: options:{key} is missing", i.name))
    };
    match &*i.r#type {
        // The bridge's own port is internal, whatever its row says.
        _ if &*i.name == bridge => Ok(Kind::Internal),
        "" | "system" => Ok(Kind::System),
        "internal" | "tap" => Ok(Kind::Internal),
        "patch" => match get(&i.options, "peer") {
            None => Err(format!("{}: patch type requires valid 'peer' argument", i.name)),
            Some(peer) if peer == &*i.name => Err(format!("{}: patch peer must not be self", i.name)),
            Some(peer) => Ok(Kind::Patch(peer.into())),
        },
        "geneve" => tunnel(TunnelKind::Geneve, "geneve", &i.options).map_err(|e| format!("{}: {e}", i.name)),
        "vxlan" => tunnel(TunnelKind::Vxlan, "vxlan", &i.options).map_err(|e| format!("{}: {e}", i.name)),
        "dpdk" => match get(&i.options, "dpdk-devargs").filter(|v| !v.is_empty()) {
            Some(devargs) => Ok(Kind::Dpdk(devargs.into())),
            None => Err(format!(
                "'{}' is missing 'options:dpdk-devargs'. The old 'dpdk<port_id>' names are not supported",
                i.name
            )),
        },
        "dpdkvhostuserclient" => {
            let path = option("vhost-server-path")?;
            match path.len() {
                0..=LONGEST_SOCKET => Ok(Kind::VhostClient(path)),
                n => {
                    Err(format!("{}: vhost-server-path has {n} bytes; a socket's has {LONGEST_SOCKET} at most", i.name))
                }
            }
        }
        // Open vSwitch's words, and what they mean.
        other => Err(format!(
            "could not open network device {} (Address family not supported by protocol); there is no type {other}",
            i.name
        )),
    }
}

/// Flows that the cache holds at most (`other_config:flow-limit`, at least 1); none: as many as it has room for.
pub fn flow_limit(other_config: &Map<Str, Str>) -> Option<usize> {
    number(other_config, "flow-limit").ok().flatten().map(|n: usize| n.max(1))
}

/// How long flows stay in the cache without packets (`other_config:max-idle`, in milliseconds, at least 500).
pub fn max_idle(other_config: &Map<Str, Str>) -> std::time::Duration {
    match number(other_config, "max-idle") {
        Ok(Some(n)) => std::time::Duration::from_millis(500.max(n)),
        _ => switch::MAX_IDLE,
    }
}

/// Tags of packets that are looked at: `other_config:vlan-limit`, of which 0 is as many as there can be.
pub fn tags(other_config: &Map<Str, Str>) -> usize {
    match number(other_config, "vlan-limit") {
        Ok(Some(0)) => switch::extract::TAGS,
        Ok(Some(n)) => n,
        _ => 1,
    }
}
