//! The dataplane's metrics (docs/metrics.md).

use crate::export::ExportCounters;
use crate::ha::status::Status;
use crate::openflow::Connections;
use crate::pmd::{Handle, MainPmd};
use daemon::{Daemon, Metric};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use switch::{DropReason, PortKind};

/// Adds the dataplane's metrics to the daemon's.
pub fn register(d: &Daemon, pmd: &Handle, connections: &Connections, exported: &Arc<ExportCounters>, ha: &Arc<Status>) {
    let (pmd, connections, exported, ha) = (pmd.clone(), connections.clone(), exported.clone(), ha.clone());
    d.metrics().register(move || {
        let (pmd, connections, exported, ha) = (pmd.clone(), connections.clone(), exported.clone(), ha.clone());
        async move {
            let mut all = pmd.read(|w| [engine(w), work(w), ports(w)].concat()).await.unwrap_or_default();
            let lost = Metric::counter(
                "isthmus_openflow_messages_dropped_total",
                "Asynchronous messages dropped because a controller did not read them.",
            );
            all.push(lost.with(&[], connections.dropped()));
            let records = Metric::counter(
                "isthmus_ipfix_records_total",
                "Records sent to collectors of IPFIX, sFlow and NetFlow.",
            );
            all.push(records.with(&[], exported.records.load(Ordering::Relaxed)));
            let failed =
                Metric::counter("isthmus_ipfix_failures_total", "Messages to collectors that could not be sent.");
            all.push(failed.with(&[], exported.failed.load(Ordering::Relaxed)));
            all.extend(ha.metrics(&pmd).await);
            all
        }
    });
}

fn engine(w: &MainPmd) -> Vec<Metric> {
    let s = &w.switch;
    let mut drops = Metric::counter("isthmus_drops_total", "Dropped packets, by reason.");
    for r in DropReason::ALL {
        drops.add(&[("reason", r.name())], s.drops.get(*r));
    }
    let cache = s.cache_stats();
    let lookups = Metric::counter(
        "isthmus_cache_lookups_total",
        "Packets that the flow cache served, and packets that it did not.",
    )
    .with(&[("result", "hit")], cache.hits)
    .with(&[("result", "miss")], cache.misses);
    let walks =
        Metric::counter("isthmus_cache_walks_total", "Walks through the tables, by whether their flow was cached.")
            .with(&[("result", "inserted")], cache.inserted)
            .with(&[("result", "refused")], cache.refused);
    let segments = Metric::counter(
        "isthmus_segment_lookups_total",
        "Table lookups that a known segment answered, without a search of the classifier.",
    )
    .with(&[], cache.segment_lookups);
    let searched = Metric::counter(
        "isthmus_searched_packets_total",
        "Packets whose cached flow was not in the first place looked at, or does not exist.",
    )
    .with(&[], cache.searched);
    let templates = Metric::counter(
        "isthmus_ct_template_packets_total",
        "Packets forwarded by a connection tracking template, without a flow of their own.",
    )
    .with(&[], cache.ct_template_packets);
    let tracked =
        Metric::gauge("isthmus_connections", "Tracked connections.").with(&[], s.conntrack.lock().len() as u64);
    let most = Metric::gauge("isthmus_connections_max", "The most connections that are tracked.")
        .with(&[], s.conntrack.lock().limit() as u64);
    let mut flows = Metric::gauge("isthmus_flows", "OpenFlow flows of a bridge.");
    let mut packet_ins = Metric::counter("isthmus_packet_ins_total", "Packets sent to controllers.");
    for (_, b) in s.bridges() {
        flows.add(&[("bridge", &b.name)], b.flow_count() as u64);
        packet_ins.add(&[("bridge", &b.name)], b.packet_ins);
    }
    let mut limited =
        Metric::counter("isthmus_packet_ins_limited_total", "Packet-ins dropped by the limit, by reason.");
    for (id, reason, _, dropped) in w.limits.show() {
        let bridge = s.bridge(id).map_or("", |b| b.name.as_str());
        limited.add(&[("bridge", bridge), ("reason", reason)], dropped);
    }
    let samples = Metric::counter("isthmus_samples_total", "Packets that sample actions chose.").with(&[], s.samples);
    vec![drops, lookups, walks, segments, searched, templates, tracked, most, flows, packet_ins, limited, samples]
}

fn work(w: &MainPmd) -> Vec<Metric> {
    let c = w.counters;
    let mut busy =
        Metric::counter("isthmus_pmd_seconds_total", "Time of the main PMD thread, by whether it had something to do.");
    busy.add_real(&[("state", "busy")], c.busy.as_secs_f64());
    busy.add_real(&[("state", "idle")], w.now().saturating_sub(c.since).saturating_sub(c.busy).as_secs_f64());
    let rounds = Metric::counter("isthmus_pmd_iterations_total", "Iterations of the main PMD thread's loop.")
        .with(&[("state", "busy")], c.polls - c.idle)
        .with(&[("state", "idle")], c.idle);
    let packets = Metric::counter("isthmus_pmd_packets_total", "Packets that the main PMD thread received and sent.")
        .with(&[("direction", "received")], c.received)
        .with(&[("direction", "sent")], c.sent);
    let lost = Metric::counter("isthmus_pmd_lost_total", "Packets lost at devices, by reason.")
        .with(&[("reason", "queue_full")], c.full)
        .with(&[("reason", "device_gone")], c.gone)
        .with(&[("reason", "oversize")], c.oversize);
    let unsampled = Metric::counter("isthmus_samples_lost_total", "Samples dropped as the exporters' queue was full.")
        .with(&[], c.samples_lost);
    let mut buffers =
        Metric::gauge("isthmus_packet_buffers_free", "Free packet buffers, by the longest frame that fits.");
    for (room, n) in crate::ports::frame::memory().into_iter().flat_map(dpdk_rs::Memory::free) {
        buffers.add(&[("room", &room.to_string())], n.into());
    }
    let mut longest = Metric::gauge(
        "isthmus_pmd_longest_iteration_seconds",
        "The longest iteration of the main PMD thread's loop, without sleep.",
    );
    longest.add_real(&[], c.longest_round.as_secs_f64());
    let mut fast = Metric::counter("isthmus_pmd_fast_total", "Counters of the fast PMD threads.");
    for (processor, counters) in w.fast.counters() {
        for (name, n) in crate::pmd::fast::COUNTER_NAMES.iter().zip(counters) {
            fast.add(&[("processor", &processor.to_string()), ("what", name)], n);
        }
    }
    vec![busy, rounds, packets, lost, unsampled, buffers, longest, fast]
}

fn ports(w: &MainPmd) -> Vec<Metric> {
    let mut packets = Metric::counter("isthmus_port_packets_total", "Packets of a port.");
    let mut bytes = Metric::counter("isthmus_port_bytes_total", "Bytes of a port.");
    let mut dropped = Metric::counter("isthmus_port_dropped_total", "Packets that a port's device dropped.");
    let mut errors = Metric::counter("isthmus_port_errors_total", "Errors of a port's device.");
    let mut up = Metric::gauge("isthmus_port_up", "1 where a port carries packets.");
    for (_, b) in w.switch.bridges() {
        for p in b.ports.values() {
            let label = |d: &'static str| [("bridge", b.name.as_str()), ("port", p.name.as_str()), ("direction", d)];
            for (m, rx, tx) in [(&mut packets, p.stats[0], p.stats[1]), (&mut bytes, p.stats[2], p.stats[3])] {
                m.add(&label("rx"), rx);
                m.add(&label("tx"), tx);
            }
            up.add(&[("bridge", &b.name), ("port", &p.name)], u64::from(p.live()));
            let (PortKind::Device(d) | PortKind::Internal(d)) = &p.kind else { continue };
            let Some(device) = w.device(*d) else { continue };
            let hw = device.port.statistics();
            let [rx_policed, tx_policed] = w.policed(*d);
            dropped.add(&label("rx"), p.stats[4] + rx_policed + hw.rx_missed);
            dropped.add(&label("tx"), p.stats[5] + tx_policed + device.full + device.port.too_long());
            errors.add(&label("rx"), hw.rx_errors);
            errors.add(&label("tx"), hw.tx_errors);
        }
    }
    vec![packets, bytes, dropped, errors, up]
}
