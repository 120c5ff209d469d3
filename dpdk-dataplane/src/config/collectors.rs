//! Collectors of IPFIX, sFlow and NetFlow: whom a bridge tells of its packets, and how much (ovs-vswitchd.conf.db(5)).

use ovn_schema::{Set, Str, Uuid, options, ovs};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// UDP ports that collectors listen on where a target names none.
const IPFIX_PORT: u16 = 4739;
const SFLOW_PORT: u16 = 6343;
const NETFLOW_PORT: u16 = 2055;
/// After how long NetFlow tells of a flow that goes on, where the row says nothing.
const NETFLOW_ACTIVE: Duration = Duration::from_secs(600);

/// A collector set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorSet {
    /// Addresses of the collectors.
    pub targets: Vec<SocketAddr>,
    /// `cache_active_timeout`: how long a flow is gathered; zero: each sample is a record.
    pub active: Duration,
    /// `cache_max_flows`: the most flows that are gathered; 0: none.
    pub most: usize,
    /// How often templates are repeated.
    pub template: Duration,
    /// Records tell of tunnels' headers (`enable-tunnel-sampling`).
    pub tunnels: bool,
    /// `virtual_obs_id`: the name of the observer.
    pub observer: Option<String>,
}

/// IPFIX of all packets of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpfixSpec {
    /// The collectors.
    pub set: CollectorSet,
    /// One of so many packets is observed.
    pub sampling: u32,
    /// Observation domain and observation point.
    pub observation: [u32; 2],
    /// Whether received packets, and sent ones, are observed.
    pub directions: [bool; 2],
}

/// A bridge's IPFIX row.
pub fn ipfix(db: &ovs::Database, bridge: &ovs::Bridge) -> Option<IpfixSpec> {
    let row = db.ipfix.get(&bridge.ipfix?)?;
    let number = |v: Option<i64>, default| v.and_then(|v| u32::try_from(v).ok()).unwrap_or(default);
    let on = |key: &str| options::bool(&row.other_config, key, true);
    Some(IpfixSpec {
        set: collector_set(row),
        sampling: number(row.sampling, 400).max(1),
        observation: [number(row.obs_domain_id, 0), number(row.obs_point_id, 0)],
        directions: [on("enable-input-sampling"), on("enable-output-sampling")],
    })
}

/// A bridge's collector sets for `sample` actions, by their numbers.
pub(super) fn collector_sets(db: &ovs::Database, bridge: Uuid) -> BTreeMap<u32, CollectorSet> {
    let rows = db.flow_sample_collector_set.values().filter(|s| s.bridge == bridge);
    rows.filter_map(|s| Some((u32::try_from(s.id).ok()?, collector_set(db.ipfix.get(&s.ipfix?)?)))).collect()
}

fn collector_set(row: &ovs::Ipfix) -> CollectorSet {
    let seconds =
        |v: Option<i64>, default| Duration::from_secs(v.and_then(|v| u64::try_from(v).ok()).unwrap_or(default));
    CollectorSet {
        targets: targets("IPFIX", &row.targets, IPFIX_PORT),
        active: seconds(row.cache_active_timeout, 0),
        most: row.cache_max_flows.and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
        template: seconds(row.template_interval, 600),
        tunnels: options::bool(&row.other_config, "enable-tunnel-sampling", true),
        observer: row.other_config.get("virtual_obs_id").map(|v| v.to_string()).filter(|v| {
            let fits = v.len() < 255;
            if !fits {
                tracing::warn!(target: "bridge", "IPFIX: virtual_obs_id of more than 254 bytes; it is left out");
            }
            fits
        }),
    }
}

/// sFlow of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SflowSpec {
    /// Addresses of the collectors.
    pub targets: Vec<SocketAddr>,
    /// The agent's address.
    pub agent: IpAddr,
    /// How many bytes of a packet a sample has at most.
    pub header: usize,
    /// How often counters are sent.
    pub polling: Duration,
    /// One of so many packets is observed.
    pub sampling: u32,
    /// The bridge's datapath id.
    pub datapath_id: u64,
}

/// Where the address of an sFlow agent comes from, if its row does not give it.
#[derive(Clone, Copy, Debug)]
pub enum AgentAddress<'a> {
    /// It is one of this network device of the host.
    OfDevice(&'a str),
    /// It is the one from which the kernel sends to this collector.
    Towards(SocketAddr),
}

/// A bridge's sFlow row; `address` finds an agent's address that the row does not give as such. `None`, with a warning,
/// where there is none.
pub fn sflow(
    db: &ovs::Database,
    bridge: &ovs::Bridge,
    datapath_id: u64,
    address: impl Fn(AgentAddress<'_>) -> Option<IpAddr>,
) -> Option<SflowSpec> {
    let row = db.sflow.get(&bridge.sflow?)?;
    let number = |v: Option<i64>, default| v.and_then(|v| u32::try_from(v).ok()).unwrap_or(default);
    let targets = targets("sFlow", &row.targets, SFLOW_PORT);
    let agent = match row.agent.as_deref() {
        Some(a) => a.parse().ok().or_else(|| address(AgentAddress::OfDevice(a))),
        None => targets.first().and_then(|t| address(AgentAddress::Towards(*t))),
    };
    if agent.is_none() {
        tracing::warn!(target: "sflow", "bridge {}: no address for the sFlow agent; sFlow is off", bridge.name);
    }
    Some(SflowSpec {
        agent: agent?,
        header: number(row.header, 128).clamp(1, 256) as usize,
        polling: Duration::from_secs(number(row.polling, 30).into()),
        sampling: number(row.sampling, 400).max(1),
        datapath_id,
        targets,
    })
}

/// NetFlow of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetflowSpec {
    /// Addresses of the collectors.
    pub targets: Vec<SocketAddr>,
    /// Type and number of the engine.
    pub engine: [u8; 2],
    /// `active_timeout`: after how long a flow that goes on is reported; none: when it ends.
    pub active: Option<Duration>,
    /// `add_id_to_interface`: numbers of ports begin with that of the engine.
    pub engine_in_ports: bool,
}

/// A bridge's NetFlow row.
pub fn netflow(db: &ovs::Database, bridge: &ovs::Bridge) -> Option<NetflowSpec> {
    let row = db.net_flow.get(&bridge.netflow?)?;
    let byte = |n: Option<i64>| n.and_then(|n| u8::try_from(n).ok()).unwrap_or(0);
    Some(NetflowSpec {
        targets: targets("NetFlow", &row.targets, NETFLOW_PORT),
        engine: [byte(row.engine_type), byte(row.engine_id)],
        active: match row.active_timeout {
            n if n < 0 => None,
            0 => Some(NETFLOW_ACTIVE),
            n => Some(Duration::from_secs(n as u64)),
        },
        engine_in_ports: row.add_id_to_interface,
    })
}

/// Collectors' addresses. One that cannot be read is left out, with a warning.
fn targets(table: &str, list: &Set<Str>, default: u16) -> Vec<SocketAddr> {
    let target = |t: &Str| {
        let alone = || t.trim_matches(['[', ']']).parse().ok().map(|ip| SocketAddr::new(ip, default));
        let found = t.parse().ok().or_else(alone);
        if found.is_none() {
            tracing::warn!(target: "collectors", "{table} target {t}: expected ADDRESS:PORT; it is left out");
        }
        found
    };
    list.iter().filter_map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_with_ports() {
        let list: Set<Str> = ["10.0.0.1:99", "10.0.0.2", "[::1]:5", "here:1"].into_iter().map(Str::from).collect();
        let mut all: Vec<String> = targets("sFlow", &list, 6343).iter().map(ToString::to_string).collect();
        all.sort();
        assert_eq!(all, ["10.0.0.1:99", "10.0.0.2:6343", "[::1]:5"]);
    }
}
