//! What `ha/show` and the metrics say.

use super::Owners;
use super::requests::Figures;
use crate::pmd::{Handle, PmdEnded};
use daemon::Metric;
use gateway_ha::sync::Lags;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use switch::conntrack::replica::Owner;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// What is known of a peer.
#[derive(Clone, Debug, Default)]
pub struct PeerStatus {
    /// It is configured here.
    pub configured: bool,
    /// It listens to what this chassis tells.
    pub told: bool,
    /// Why it does not.
    pub error: Option<String>,
    /// How old what it lacks may be.
    pub lag: Option<Duration>,
    /// What that was since the stream was opened.
    pub lags: Lags,
    /// Records sent.
    pub sent: u64,
    /// Dumps that were sent.
    pub dumps_sent: u64,
    /// Its own stream is there.
    pub heard: bool,
    /// When that was opened last.
    pub heard_since: Option<Instant>,
    /// Records received.
    pub received: u64,
    /// Dumps taken, and when the last was complete.
    pub dumps: u64,
    /// When the last dump was complete.
    pub last_dump: Option<Instant>,
    /// Dumps after which the number of connections was another than the peer's.
    pub differences: u64,
    /// When its last fence came: all that it told before is in the table.
    pub last_fence: Option<Instant>,
    /// Its zones that this chassis does not have.
    pub missing_zones: Vec<String>,
}

/// A peer puts a fence up each 100 ms; one of which none comes for so long is not heard.
const SILENCE: Duration = Duration::from_secs(1);

impl PeerStatus {
    /// What this chassis has of the peer's connections: `in-step`, all; `dump`, not all yet; `silent`, nothing is heard.
    fn from(&self) -> &'static str {
        let since = |t: Option<Instant>| t.filter(|t| self.heard_since.is_some_and(|s| *t >= s));
        match (self.heard, since(self.last_dump), since(self.last_fence)) {
            (true, Some(_), Some(fence)) if fence.elapsed() < SILENCE => "in-step",
            (true, None, _) | (true, _, None) => "dump",
            _ => "silent",
        }
    }

    /// What the peer has of this chassis' connections: how old what it lacks may be, by its power of ten; `dump`, not all
    /// yet; `silent`, it is told nothing.
    fn to(&self) -> &'static str {
        match self.lag {
            _ if !self.told => "silent",
            None => "dump",
            Some(t) => match t.as_millis() {
                0 => "1ms",
                1..10 => "10ms",
                10..100 => "100ms",
                100..1000 => "1s",
                _ => "10s",
            },
        }
    }
}

/// What is known of all.
#[derive(Debug, Default)]
pub struct Status {
    peers: Mutex<BTreeMap<String, PeerStatus>>,
    owners: Mutex<Owners>,
    /// Something changed.
    pub(super) changed: Notify,
    /// What `Bridge:status` says of each peer.
    summary: watch::Sender<BTreeMap<String, String>>,
}

impl Status {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PeerStatus>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a peer.
    pub(super) fn set(&self, peer: &str, f: impl FnOnce(&mut PeerStatus)) {
        let mut peers = self.lock();
        let p = peers.entry(peer.to_owned()).or_default();
        let before = (p.from(), p.to());
        f(p);
        let differs = before != (p.from(), p.to());
        drop(peers);
        self.changed.notify_waiters();
        if differs {
            self.refresh();
        }
    }

    /// The keys of `Bridge:status`: `ha-from:PEER`, what is here of its connections, and `ha-to:PEER`, what it has of these.
    pub fn summary(&self) -> watch::Receiver<BTreeMap<String, String>> {
        self.summary.subscribe()
    }

    /// Derives the summary anew: a peer may have fallen silent.
    pub fn refresh(&self) {
        let pairs = |(name, p): (&String, &PeerStatus)| {
            [(format!("ha-from:{name}"), p.from().to_owned()), (format!("ha-to:{name}"), p.to().to_owned())]
        };
        let new: BTreeMap<String, String> = self.lock().iter().filter(|(_, p)| p.configured).flat_map(pairs).collect();
        self.summary.send_if_modified(|old| {
            let differs = *old != new;
            *old = new;
            differs
        });
    }

    /// What is known of a peer.
    pub fn get(&self, peer: &str) -> PeerStatus {
        self.lock().get(peer).cloned().unwrap_or_default()
    }

    /// These peers are configured.
    pub(super) fn keep_peers<'a>(&self, names: impl Iterator<Item = &'a String>) {
        let mut peers = self.lock();
        peers.values_mut().for_each(|p| p.configured = false);
        names.for_each(|n| peers.entry(n.clone()).or_default().configured = true);
        peers.retain(|_, p| p.configured || p.heard);
        drop(peers);
        self.changed.notify_waiters();
        self.refresh();
    }

    /// The number of a peer in the table of connections, as of its start `boot`.
    pub(super) fn owner(&self, peer: &str, boot: u64) -> Option<Owner> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).number(peer, boot)
    }

    /// All peers, with their figures ([`Handle::connection_figures`]).
    async fn all(&self, pmd: &Handle) -> Result<Vec<(String, PeerStatus, Figures)>, PmdEnded> {
        let peers = self.lock().clone();
        let figures = pmd.connection_figures(peers.keys().cloned().collect()).await?;
        Ok(peers.into_iter().zip(figures).map(|((name, p), f)| (name, p, f)).collect())
    }

    /// `ha/show`.
    ///
    /// # Errors
    /// The main PMD thread has ended.
    pub async fn show(&self, pmd: &Handle) -> Result<String, String> {
        let mut out = String::new();
        for (name, p, (behind, counters, held)) in self.all(pmd).await? {
            let _ = writeln!(out, "{name}:");
            let told = match (p.told, &p.error) {
                (true, _) => "connected".to_owned(),
                (false, Some(e)) => format!("not connected: {e}"),
                (false, None) => "not connected".to_owned(),
            };
            let behind = match behind {
                Some(n) => format!("{n} changes behind"),
                None if p.told => "dump under way".into(),
                None => "told nothing".into(),
            };
            let lag = p.lag.map_or("unknown".into(), |t| format!("{:.1} ms", t.as_secs_f64() * 1e3));
            let _ = writeln!(out, "  to it: {told}; lag {lag}, {behind}, {} records, {} dumps", p.sent, p.dumps_sent);
            if p.lags.count() > 0 {
                let ms = |share| format!("{:.2} ms", p.lags.within(share).as_secs_f64() * 1e3);
                let of = [0.5, 0.99, 0.999].map(ms);
                let _ =
                    writeln!(out, "  lags of {} fences: p50 {}, p99 {}, p99.9 {}", p.lags.count(), of[0], of[1], of[2]);
            }
            let heard = if p.heard { "connected" } else { "not connected" };
            let last = p
                .last_dump
                .map_or("no dump yet".into(), |t| format!("last dump {:.0} s ago", t.elapsed().as_secs_f64()));
            let _ = writeln!(
                out,
                "  from it: {heard}; {held} connections, {} records, {} dumps, {last}",
                p.received, p.dumps
            );
            let _ = writeln!(
                out,
                "  conflicts: {}, refused: {}, differences: {}, crossed: {}",
                counters.conflicts, counters.refused, p.differences, counters.crossed
            );
            if !p.missing_zones.is_empty() {
                let _ = writeln!(out, "  zones that are not here: {}", p.missing_zones.join(" "));
            }
        }
        Ok(if out.is_empty() { "no peers (Bridge other_config:ha-peers)\n".into() } else { out })
    }

    /// The metrics.
    pub async fn metrics(&self, pmd: &Handle) -> Vec<Metric> {
        let all = self.all(pmd).await.unwrap_or_default();
        if all.is_empty() {
            return Vec::new();
        }
        let mut lag = Metric::gauge("isthmus_ha_lag_microseconds", "How old what a peer gateway lacks may be.");
        let mut connected = Metric::gauge("isthmus_ha_connected", "Whether a peer gateway is told of connections.");
        let mut held = Metric::gauge("isthmus_ha_connections", "Connections of a peer gateway in the table.");
        let mut records = Metric::counter("isthmus_ha_records_total", "Records to and from a peer gateway.");
        let mut dumps = Metric::counter("isthmus_ha_dumps_total", "Dumps to and from a peer gateway.");
        let mut conflicts =
            Metric::counter("isthmus_ha_conflicts_total", "Connections that a peer gateway and this one both had.");
        let mut crossed = Metric::counter(
            "isthmus_ha_crossed_total",
            "Connections that a peer gateway and this one gave up for each other, and took back.",
        );
        let mut refused =
            Metric::counter("isthmus_ha_refused_total", "Connections of a peer gateway for which there was no room.");
        let mut differences = Metric::counter(
            "isthmus_ha_differences_total",
            "Dumps after which a peer gateway counted other connections than this one.",
        );
        for (name, p, (_, counters, n)) in &all {
            let peer = ("peer", name.as_str());
            if let Some(t) = p.lag {
                lag.add(&[peer], u64::try_from(t.as_micros()).unwrap_or(u64::MAX));
            }
            connected.add(&[peer], p.told.into());
            held.add(&[peer], *n as u64);
            records.add(&[peer, ("direction", "sent")], p.sent);
            records.add(&[peer, ("direction", "received")], p.received);
            dumps.add(&[peer, ("direction", "sent")], p.dumps_sent);
            dumps.add(&[peer, ("direction", "received")], p.dumps);
            conflicts.add(&[peer], counters.conflicts);
            refused.add(&[peer], counters.refused);
            crossed.add(&[peer], counters.crossed);
            differences.add(&[peer], p.differences);
        }
        vec![lag, connected, held, records, dumps, conflicts, crossed, refused, differences]
    }
}
