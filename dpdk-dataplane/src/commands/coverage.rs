//! The counters of `coverage/show`: those of the main PMD thread, and dropped packets by reason, by the names that Open
//! vSwitch has for them where it counts the same (its documentation, "Packet Drop Statistics").

use crate::pmd::{Handle, MainPmd, PmdEnded};
use daemon::{Counter, Daemon};
use std::sync::Arc;
use std::time::Duration;
use switch::DropReason;

/// How often the counters are updated.
const PERIOD: Duration = Duration::from_secs(1);
/// Names of the counters beside drops.
const NAMES: [&str; 11] = [
    "packet_received",
    "packet_sent",
    "packet_queue_full",
    "packet_oversize",
    "packet_device_gone",
    "packet_sampled",
    "flow_cache_hit",
    "flow_cache_miss",
    "flow_cache_insert",
    "flow_cache_refuse",
    "pmd_job",
];

/// Open vSwitch's counters of drops, and the reasons that they stand for.
const OF_OPEN_VSWITCH: [(&str, &[DropReason]); 13] = [
    ("drop_action_forwarding_disabled", &[DropReason::StpState]),
    ("drop_action_of_pipeline", &[DropReason::Action, DropReason::TableMiss]),
    ("drop_action_recursion_too_deep", &[DropReason::TooDeep]),
    ("drop_action_too_many_resubmit", &[DropReason::TooManyResubmits]),
    ("drop_action_stack_too_deep", &[DropReason::StackTooDeep]),
    ("drop_action_too_many_mpls_labels", &[DropReason::TooManyLabels]),
    ("drop_action_unsupported_packet_type", &[DropReason::PacketType]),
    ("drop_action_congestion", &[DropReason::TunnelCongestion]),
    ("drop_action_tunnel_routing_failed", &[DropReason::TunnelNoRoute]),
    ("drop_action_tunnel_neigh_cache_miss", &[DropReason::TunnelNoNeighbour]),
    ("drop_action_tunnel_output_no_ethernet", &[DropReason::NotEthernet]),
    ("datapath_drop_meter", &[DropReason::Meter]),
    ("datapath_drop_tunnel_pop_error", &[DropReason::TunnelMalformed]),
];

/// All counters of drops: the reasons that Open vSwitch does not count have names of our own.
fn drops() -> Vec<(String, Vec<DropReason>)> {
    let theirs = OF_OPEN_VSWITCH.iter().map(|(name, reasons)| (name.to_string(), reasons.to_vec()));
    let counted = |r: &DropReason| OF_OPEN_VSWITCH.iter().any(|(_, reasons)| reasons.contains(r));
    let ours = DropReason::ALL.iter().filter(|r| !counted(r) || **r == DropReason::TableMiss);
    theirs.chain(ours.map(|r| (format!("drop_{}", r.name()), vec![*r]))).collect()
}

fn values(w: &MainPmd) -> Vec<u64> {
    let (c, cache) = (w.counters, w.switch.cache_stats());
    let mut v = vec![c.received, c.sent, c.full, c.oversize, c.gone, w.switch.samples];
    v.extend([cache.hits, cache.misses, cache.inserted, cache.refused, c.jobs]);
    v.extend(drops().iter().map(|(_, reasons)| reasons.iter().map(|r| w.switch.drops.get(*r)).sum::<u64>()));
    v
}

/// Adds the counters to the daemon's, and starts to update them.
pub(super) fn register(d: &Daemon, pmd: &Handle) {
    let names = NAMES.iter().map(|n| n.to_string()).chain(drops().into_iter().map(|(name, _)| name));
    // The daemon keeps references to counters for as long as it runs.
    let counters: Vec<&'static Counter> =
        names.map(|n| &*Box::leak(Box::new(Counter::new(Box::leak(n.into_boxed_str()))))).collect();
    d.counters(&counters);
    let counters: Arc<[&'static Counter]> = counters.into();
    d.before_coverage({
        let (pmd, counters) = (pmd.clone(), counters.clone());
        move || {
            let (pmd, counters) = (pmd.clone(), counters.clone());
            async move { update(pmd.read(values).await, &counters) }
        }
    });
    let pmd = pmd.clone();
    tokio::spawn(async move {
        while update(pmd.look(values).await, &counters) {
            tokio::time::sleep(PERIOD).await;
        }
    });
}

/// Takes the counts over; false if the thread that counts has ended.
fn update(now: Result<Vec<u64>, PmdEnded>, counters: &[&'static Counter]) -> bool {
    let Ok(now) = now else { return false };
    // A counter of `coverage/show` never falls, also after `pmd-stats-clear`.
    counters.iter().zip(now).for_each(|(c, n)| c.raise_to(n));
    true
}
