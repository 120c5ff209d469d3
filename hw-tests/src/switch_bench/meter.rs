//! How fast a thread forwards: packets for each second of processor time that it had.
//!
//! Where nothing else runs on the processor, a thread that polls has all of it, and this is packets a second. Where other
//! programs take their share, elapsed time says nothing, and this still does.

use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Processor time of a measurement, and the least that it lasts.
const LENGTH: Duration = Duration::from_millis(300);
/// How far the rate may be from what is said.
const DOUBT: f64 = 0.05;
/// How long a measurement may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The threads that forward, by the beginning of their names: ours, Open vSwitch's, testpmd's.
const NAMES: [&str; 3] = ["pmd-", "rte-worker", "lcore-worker"];

/// Processor time that a process's forwarding thread has had (proc(5), `schedstat`).
///
/// # Errors
/// There is no such thread.
pub fn processor_time(pid: u32) -> Result<Duration> {
    for t in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let name = std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
        if NAMES.iter().any(|n| name.starts_with(n)) {
            let s = std::fs::read_to_string(t.path().join("schedstat"))?;
            let ns = s.split_whitespace().next().context("schedstat")?.parse()?;
            return Ok(Duration::from_nanos(ns));
        }
    }
    bail!("process {pid} has no forwarding thread")
}

/// A look at a counter, which happened between two processor times.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The counter.
    pub packets: u64,
    /// Before it was asked for.
    pub from: Duration,
    /// After it was told.
    pub to: Duration,
}

/// Millions of packets for each second between two looks, and the share by which that may be wrong.
pub fn between(a: Look, b: Look) -> (f64, f64) {
    let middle = |l: Look| (l.from + l.to) / 2;
    let used = middle(b).saturating_sub(middle(a)).as_secs_f64();
    let doubt = (a.to.saturating_sub(a.from) + b.to.saturating_sub(b.from)).as_secs_f64() / 2.0;
    (b.packets.saturating_sub(a.packets) as f64 / used / 1e6, doubt / used)
}

/// Measures until the rate is known to a twentieth. Millions of packets for each second.
///
/// # Errors
/// `look`'s, or it takes too long.
pub fn rate(mut look: impl FnMut() -> Result<Look>) -> Result<f64> {
    let begun = Instant::now();
    let first = look()?;
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = look()?;
        let (rate, doubt) = between(first, now);
        if now.from.saturating_sub(first.to) >= LENGTH && doubt < DOUBT {
            return Ok(rate);
        }
        if begun.elapsed() > LIMIT {
            bail!("after {LIMIT:?} the rate is {rate:.3} give or take {:.0} %", doubt * 100.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_doubt() {
        let look =
            |packets, from, to| Look { packets, from: Duration::from_millis(from), to: Duration::from_millis(to) };
        let (rate, doubt) = between(look(0, 0, 0), look(3_000_000, 900, 1100));
        assert!((rate - 3.0).abs() < 1e-9 && (doubt - 0.1).abs() < 1e-9);
        let mut looks = [look(0, 0, 100), look(2_000_000, 1000, 1400), look(6_000_000, 3000, 3100)].into_iter();
        let r = super::rate(|| Ok(looks.next().expect("enough"))).expect("a rate");
        assert!((r - 2.0).abs() < 1e-9, "{r}");
    }
}
