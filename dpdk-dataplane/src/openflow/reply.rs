//! Answers to multipart requests (OpenFlow 1.5 section 7.3.5).

use super::changes::NO_FLOOD;
use crate::pmd::ipfix_statistics::IpfixStatistics;
use crate::pmd::{MainPmd, custom_counters};
use crate::ports::qos::shaper::Counts;
use openflow_rs::message::table_features::{self, not_permitted};
use openflow_rs::message::{
    DescStats, FlowStats, FlowStatsRequest, GroupFeatures, GroupStats, MeterFeatures, MeterStats, MultipartReply,
    MultipartRequest, PortDesc, PortStats, QUEUE_ALL, QueueStats, TableFeatures, TableStats, Version, port_features,
};
use openflow_rs::{GroupId, GroupType, MeterId, OfError, PortNo, TableId};

use openflow_rs::wire::DecodeError;
use std::collections::BTreeSet;
use std::time::Duration;
use switch::{Bridge, BridgeId, Port, PortKind};

fn age(created: Duration, now: Duration) -> (u32, u32) {
    let d = now.saturating_sub(created);
    (d.as_secs() as u32, d.subsec_nanos())
}

/// Bits of a table's configuration (OFPTC14_*).
pub(super) const EVICTION: u8 = 4;
pub(super) const VACANCY_EVENTS: u8 = 8;
/// A port has no link (OFPPS_LINK_DOWN).
pub(super) const LINK_DOWN: u32 = 1;
/// A port carries packets (OFPPS_LIVE).
pub(super) const LIVE: u32 = 4;

/// A port's description.
pub(super) fn port_desc(p: &Port) -> PortDesc {
    PortDesc {
        port: p.no,
        hw_addr: p.hw_addr,
        name: p.name.clone(),
        config: u32::from(!p.link.admin_up) | if p.no_flood { NO_FLOOD } else { 0 } | p.config,
        // A port that a controller took down has no link, though its device may stay up.
        state: if !p.link.up || p.config & Port::DOWN != 0 { LINK_DOWN } else { 0 } | if p.live() { LIVE } else { 0 },
        curr: port_features(p.link.mbps, p.link.full_duplex, p.link.copper),
        curr_speed: p.link.mbps.saturating_mul(1000),
        max_speed: 0,
    }
}

/// Answers a request, in the main PMD thread.
///
/// # Errors
/// Why the request is refused.
pub(super) fn multipart(
    w: &mut MainPmd,
    bridge: BridgeId,
    q: &MultipartRequest,
    version: Version,
) -> Result<MultipartReply, DecodeError> {
    use MultipartReply as P;
    use MultipartRequest as Q;
    let now = w.now();
    let of14 = version >= Version::Of14;
    let b = w.switch.bridge(bridge).ok_or_else(|| OfError::RequestBadSubtype.because("the bridge is gone"))?;
    Ok(match q {
        Q::Desc => P::Desc(DescStats {
            mfr: "Isthmus".into(),
            hw: "dpdk-dataplane".into(),
            sw: env!("CARGO_PKG_VERSION").into(),
            serial: b.description.1.clone().unwrap_or_else(|| "None".into()),
            dp: b.description.0.clone().unwrap_or_else(|| b.name.clone()),
        }),
        Q::Table => P::Table(tables(b)),
        Q::PortStats(n) => P::PortStats(ports(b, *n).map(|p| port_stats(w, p, now, of14)).collect()),
        Q::PortDesc(n) => P::PortDesc(ports(b, *n).map(port_desc).collect()),
        Q::Queue(port, queue) => P::Queue(queue_stats(w, bridge, *port, *queue, now)?),
        Q::QueueDesc(port, queue) => P::QueueDesc(queues(w, bridge, *port, *queue)?),
        Q::GroupStats(id) => P::GroupStats(group_stats(b, *id, now)),
        Q::GroupDesc(id) => P::GroupDesc(groups(b, *id).map(|g| (*g.group).clone()).collect()),
        Q::GroupFeatures => P::GroupFeatures(GroupFeatures {
            types: 0xf,
            // Select by weight, watch ports and groups.
            capabilities: 0x7,
            max_groups: [0xffff_ff00; 4],
            // All twelve of 1.0; output, set and decrement the TTL of MPLS and IP, push and pop VLANs and labels, set
            // queue, group, set field.
            actions: [if version == Version::Of10 { 0xfff } else { 0x03ff_8001 }; 4],
        }),
        Q::MeterStats(id) => {
            has_meter(b, *id)?;
            P::MeterStats(meter_stats(b, *id, now))
        }
        Q::MeterConfig(id) => {
            has_meter(b, *id)?;
            P::MeterConfig(
                b.meters().filter(|m| *id == MeterId::ALL || m.config.id == *id).map(|m| m.config.clone()).collect(),
            )
        }
        Q::MeterFeatures => P::MeterFeatures(MeterFeatures {
            max_meters: switch::MOST_METERS,
            // Bit 1 is the drop band.
            band_types: 1 << 1,
            capabilities: 0xf,
            max_bands: 8,
        }),
        Q::TableFeatures(body) => {
            if !body.is_empty() {
                name_tables(w, bridge, &TableFeatures::pull_all(body)?, version)?;
            }
            P::TableFeatures(w.switch.bridge(bridge).map(|b| table_features(b, version)).unwrap_or_default())
        }
        // Table descriptions, where 1.4 and later ask for them.
        Q::Other(14, _) if of14 => P::Other(14, table_descriptions(b)),
        // The connection answers these requests itself.
        Q::IpfixBridge | Q::IpfixFlow => return Err(OfError::StatsNotConfigured.because("IPFIX is not asked for here")),
        Q::FlowMonitor(_) => return Err(OfError::RequestBadMultipart.because("a flow monitor is not asked for here")),
        // Dumps of flows are made in a thread of their own.
        Q::Flow(_) | Q::FlowOf10(_) | Q::Aggregate(_) | Q::AggregateOf10(_) => {
            return Err(OfError::RequestBadMultipart.because("flows are not asked for here"));
        }
        Q::Other(k, _) => {
            return Err(OfError::RequestBadMultipart.because(format!("multipart type {k} is not supported")));
        }
    })
}

/// Answers a request for counters of IPFIX exporters; `None`: it is another one.
pub(super) fn ipfix(
    q: &MultipartRequest,
    bridge: BridgeId,
    counters: &IpfixStatistics,
) -> Option<Result<MultipartReply, DecodeError>> {
    let missing = |what: &str| OfError::StatsNotConfigured.because(format!("the bridge has no {what}"));
    Some(match q {
        MultipartRequest::IpfixBridge => {
            counters.of_bridge(bridge).map(MultipartReply::IpfixBridge).ok_or_else(|| missing("IPFIX"))
        }
        MultipartRequest::IpfixFlow => match counters.of_flows(bridge) {
            none if none.is_empty() => Err(missing("Flow_Sample_Collector_Set")),
            all => Ok(MultipartReply::IpfixFlow(all)),
        },
        _ => return None,
    })
}

/// The filter of a request for flows or for their sum.
pub(super) fn flow_filter(q: &MultipartRequest) -> Option<&FlowStatsRequest> {
    use MultipartRequest as Q;
    match q {
        Q::Flow(f) | Q::FlowOf10(f) | Q::Aggregate(f) | Q::AggregateOf10(f) => Some(f),
        _ => None,
    }
}

/// Answers such a request. That takes long for many flows, so it does not run in the main PMD thread.
pub(super) fn flows(q: &MultipartRequest, found: Vec<FlowStats>) -> MultipartReply {
    use MultipartReply as P;
    use MultipartRequest as Q;
    let sum = |get: fn(&FlowStats) -> u64| found.iter().map(get).sum();
    let (packets, bytes, n) = (sum(|s| s.packets), sum(|s| s.bytes), found.len() as u32);
    match q {
        Q::Aggregate(_) => P::Aggregate(packets, bytes, n),
        Q::AggregateOf10(_) => P::AggregateOf10(packets, bytes, n),
        Q::FlowOf10(_) => P::FlowOf10(found),
        _ => P::Flow(found),
    }
}

/// OFPMP_TABLE_DESC: whether flows are evicted, and events of room.
fn table_descriptions(b: &Bridge) -> Vec<u8> {
    (0..switch::bridge::N_TABLES as u8).map(TableId).flat_map(|n| table_desc(b, n)).collect()
}

/// The description of a table (OpenFlow 1.4 section 7.3.5.17).
pub(super) fn table_desc(b: &Bridge, n: TableId) -> Vec<u8> {
    let config = b.table_config(n);
    let evicts = if config.is_some_and(|c| c.evict_openflow) { EVICTION } else { 0 };
    let vacancy = config.and_then(|c| c.vacancy);
    let (tells, len) = if vacancy.is_some() { (VACANCY_EVENTS, 24) } else { (0, 16) };
    // Length, table, configuration; eviction by importance, lifetime and otherwise; vacancy.
    let mut all = vec![0, len, n.0, 0, 0, 0, 0, evicts | tells, 0, 2, 0, 8, 0, 0, 0, 7];
    all.extend(vacancy.into_iter().flat_map(|v| [0, 3, 0, 8, v.down, v.up, b.vacancy(n), 0]));
    all
}

fn tables(b: &Bridge) -> Vec<TableStats> {
    let sizes = b.table_sizes();
    b.table_stats
        .iter()
        .zip((0..).map(TableId))
        .map(|((lookups, matched), table)| TableStats {
            table,
            name: table_name(b, table),
            most: limit(b, table),
            last: table.index() + 1 == switch::bridge::N_TABLES,
            active: sizes.get(&table).copied().unwrap_or(0) as u32,
            lookups: *lookups,
            matched: *matched,
        })
        .collect()
}

/// Features of all tables. They are alike, but that the last one has no way on.
fn table_features(b: &Bridge, v: Version) -> Vec<TableFeatures> {
    let last = switch::bridge::N_TABLES as u8;
    let of = |table: TableId| TableFeatures {
        table,
        command: 0,
        name: table_name(b, table),
        metadata: [u64::MAX; 2],
        most: limit(b, table),
        properties: TableFeatures::properties(v, (table.0 + 1..last).map(TableId), switch::bridge::is_writable),
    };
    (0..last).map(TableId).map(of).collect()
}

/// Does what a request for table features wants: all that can be changed are names.
///
/// # Errors
/// It wants more, or names a table that the database names.
fn name_tables(w: &mut MainPmd, bridge: BridgeId, wanted: &[TableFeatures], v: Version) -> Result<(), DecodeError> {
    let b = w.switch.bridge(bridge).ok_or_else(|| OfError::RequestBadSubtype.because("the bridge is gone"))?;
    let now = table_features(b, v);
    let replaces = wanted.first().is_some_and(|t| t.command == table_features::REPLACE);
    let mut seen = BTreeSet::new();
    for t in wanted {
        let n = t.table;
        let Some(is) = now.get(n.index()).filter(|_| seen.insert(n)) else {
            return Err(not_permitted(format!("table {n} is not there, or named twice")));
        };
        let same = is.agrees(t) || t.command == table_features::MODIFY && t.properties.is_empty() && t.most == is.most;
        if t.command > table_features::MODIFY || !same {
            return Err(not_permitted(format!("table {n}: nothing but its name can be changed")));
        }
        let named = b.table_config(n).is_some_and(|c| c.name.is_some());
        if named && t.name != is.name {
            return Err(not_permitted(format!("table {n} has its name, {}, from the database", is.name)));
        }
    }
    if replaces && seen.len() < now.len() {
        return Err(not_permitted("tables that are left out of a replacement would be disabled, and none can be"));
    }
    let named: Vec<&TableFeatures> =
        wanted.iter().filter(|t| now.get(t.table.index()).is_some_and(|is| is.name != t.name)).collect();
    w.switch.with_tables(bridge, |b| named.iter().for_each(|t| b.name_table(t.table, &t.name)));
    Ok(())
}

/// The most flows of a table.
fn limit(b: &Bridge, n: TableId) -> u32 {
    b.table_config(n).and_then(|c| c.limit).map_or(1_000_000, |l| u32::try_from(l).unwrap_or(u32::MAX))
}

/// A table's name; empty if it has none.
fn table_name(b: &Bridge, n: TableId) -> String {
    let mut name = b.table_config(n).and_then(|c| c.name.clone().or(c.name_openflow.clone())).unwrap_or_default();
    while name.len() > 31 {
        name.pop();
    }
    name
}

/// The ports that a request selects: one, or all.
fn ports(b: &Bridge, n: PortNo) -> impl Iterator<Item = &Port> {
    b.ports.values().filter(move |p| n == PortNo::ANY || p.no == n)
}

/// Refuses a request for a meter that does not exist.
fn has_meter(b: &Bridge, id: MeterId) -> Result<(), DecodeError> {
    let there = id == MeterId::ALL || b.meters().any(|m| m.config.id == id);
    if there { Ok(()) } else { Err(OfError::MeterModUnknownMeter.because(format!("meter {id} does not exist"))) }
}

/// A counter that is not kept (OpenFlow 1.5 section 7.3.5.6).
const UNKNOWN: u64 = u64::MAX;

/// A port's counters, with drops and errors of its device and policers, and if wanted with those that have names, for
/// which a device's driver has to be asked.
fn port_stats(w: &MainPmd, p: &Port, now: Duration, named: bool) -> PortStats {
    let [rx, tx, rx_bytes, tx_bytes, mut rx_dropped, mut tx_dropped] = p.stats;
    let mut errors = [0; 2];
    // Nobody counts drops and errors of dummies.
    if w.of_dummies() {
        [rx_dropped, tx_dropped, errors[0], errors[1]] = [UNKNOWN; 4];
    } else if let PortKind::Device(n) | PortKind::Internal(n) = &p.kind
        && let Some(d) = w.device(*n)
    {
        let ([rx_policed, tx_policed], hw) = (w.policed(*n), d.port.statistics());
        rx_dropped += rx_policed + hw.rx_missed;
        tx_dropped += tx_policed + d.full;
        errors = [hw.rx_errors, hw.tx_errors];
    }
    let counters = [rx, tx, rx_bytes, tx_bytes, rx_dropped, tx_dropped, errors[0], errors[1]];
    let (duration_sec, duration_nsec) = age(p.created, now);
    let custom = if named { custom_counters(w, p) } else { Vec::new() };
    PortStats { port: p.no, counters, duration_sec, duration_nsec, custom }
}

/// The queues that a request selects: of one port or all, by number or all.
///
/// # Errors
/// The port or the queue does not exist.
fn each_queue(
    w: &MainPmd,
    bridge: BridgeId,
    port: PortNo,
    queue: u32,
) -> Result<Vec<(PortNo, u32, Option<Counts>)>, DecodeError> {
    let b = w.switch.bridge(bridge).ok_or_else(|| OfError::RequestBadSubtype.because("the bridge is gone"))?;
    if port != PortNo::ANY && !b.ports.contains_key(&port) {
        return Err(OfError::QueueBadPort.because(format!("port {port} does not exist")));
    }
    let list = ports(b, port);
    let of = |p: &Port| {
        let device = match p.kind {
            PortKind::Device(n) | PortKind::Internal(n) => n,
            _ => return Vec::new(),
        };
        // A dummy has one queue, of which nothing is counted.
        if w.of_dummies() {
            return vec![(p.no, 0, None)];
        }
        let queues = w.shaper(device).into_iter().flat_map(|s| s.queues());
        queues.map(|(n, _, counts)| (p.no, n, Some(counts))).collect::<Vec<_>>()
    };
    let found: Vec<_> = list.flat_map(of).filter(|(_, n, _)| queue == QUEUE_ALL || *n == queue).collect();
    if found.is_empty() && queue != QUEUE_ALL {
        return Err(OfError::QueueBadQueue.because(format!("queue {queue} does not exist")));
    }
    Ok(found)
}

/// The queues that a request selects, each after its port.
pub(super) fn queues(
    w: &MainPmd,
    bridge: BridgeId,
    port: PortNo,
    queue: u32,
) -> Result<Vec<(PortNo, u32)>, DecodeError> {
    Ok(each_queue(w, bridge, port, queue)?.into_iter().map(|(port, n, _)| (port, n)).collect())
}

fn queue_stats(
    w: &MainPmd,
    bridge: BridgeId,
    port: PortNo,
    queue: u32,
    now: Duration,
) -> Result<Vec<QueueStats>, DecodeError> {
    let stats = |(port, queue, counts): (PortNo, u32, Option<Counts>)| {
        let unknown = ([UNKNOWN; 3], (u32::MAX, u32::MAX));
        let known = |c: Counts| ([c.bytes, c.packets, c.dropped], age(c.created, now));
        let ([bytes, packets, errors], (duration_sec, duration_nsec)) = counts.map_or(unknown, known);
        QueueStats { port, queue, bytes, packets, errors, duration_sec, duration_nsec }
    };
    Ok(each_queue(w, bridge, port, queue)?.into_iter().map(stats).collect())
}

fn groups(b: &Bridge, id: GroupId) -> impl Iterator<Item = &switch::bridge::GroupState> {
    b.groups().filter(move |g| id == GroupId::ALL || id == GroupId::ANY || g.group.id == id)
}

fn group_stats(b: &Bridge, id: GroupId, now: Duration) -> Vec<GroupStats> {
    groups(b, id)
        .map(|g| {
            let (duration_sec, duration_nsec) = age(g.created, now);
            let buckets = g.buckets();
            // Of type `all`, each bucket counts each packet of the group.
            let once = |count: fn(&(u64, u64)) -> u64| match g.group.group_type {
                GroupType::All => buckets.iter().map(count).max().unwrap_or(0),
                _ => buckets.iter().map(count).sum(),
            };
            GroupStats {
                id: g.group.id,
                ref_count: b.flows_of_group(g.group.id),
                packets: once(|x| x.0),
                bytes: once(|x| x.1),
                duration_sec,
                duration_nsec,
                buckets,
            }
        })
        .collect()
}

fn meter_stats(b: &Bridge, id: MeterId, now: Duration) -> Vec<MeterStats> {
    b.meters()
        .filter(|m| id == MeterId::ALL || m.config.id == id)
        .map(|m| {
            let (duration_sec, duration_nsec) = age(m.created, now);
            MeterStats {
                id: m.config.id,
                flow_count: b.flows_of_meter(m.config.id),
                packets: m.packets,
                bytes: m.bytes,
                duration_sec,
                duration_nsec,
                bands: m.dropped.clone(),
            }
        })
        .collect()
}
