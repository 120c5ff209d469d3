//! Measurements beside the C stack, in the same topology and the same run: only ratios travel between machines.

use crate::lab::Lab;
use crate::network::{Cast, Network};
use crate::scenario::{Failover, Runner, outage};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// The four outages of a failover in milliseconds: outbound and inbound, at failover and at failback.
type Outages = [u64; 4];

const WHAT: [&str; 4] = ["outbound, failover", "inbound, failover", "outbound, failback", "inbound, failback"];

fn outages(f: &Failover) -> Outages {
    let end = f.revived + 6_000_000;
    let ms = |x: (u64, u64)| x.0 / 1000;
    [
        ms(outage(&f.outbound, f.killed, f.revived)),
        ms(outage(&f.inbound, f.killed, f.revived)),
        ms(outage(&f.outbound, f.revived, end)),
        ms(outage(&f.inbound, f.revived, end)),
    ]
}

/// One failover with these parts and BFD times.
fn once(cast: Cast, yaml: &Path) -> Result<Outages> {
    let lab = Lab::new("isthmus", &std::env::temp_dir().join("isthmus-lab"))?;
    let mut network = Network::start(lab, cast, |_| {})?;
    network.apply(yaml)?;
    let mut seen = Vec::new();
    let mut tell = |c: &crate::scenario::Check| {
        if !c.held {
            seen.push(format!("{}: {}", c.name, c.detail));
        }
    };
    let mut r = Runner::new(&mut network, &mut tell);
    r.steady();
    let f = r.failover();
    match f {
        Some(f) if seen.is_empty() => Ok(outages(&f)),
        _ => bail!("{}", seen.join("; ")),
    }
}

/// A description with other BFD times; none: without any, so that each switch takes its own.
fn with_bfd(base: &str, ms: Option<u32>) -> String {
    base.lines()
        .filter_map(|l| match (l.trim_start().starts_with("bfd-"), ms) {
            (false, _) => Some(l.to_string()),
            (true, None) => None,
            (true, Some(_)) if l.contains("bfd-mult") => Some(l.to_string()),
            (true, Some(ms)) => l.split_once(':').map(|(k, _)| format!("{k}: \"{ms}\"")),
        })
        .map(|l| if l == "options:" && ms.is_none() { "options: {}".to_string() } else { l })
        .collect::<Vec<_>>()
        .join("\n")
        + "\n"
}

fn median(mut list: Vec<u64>) -> u64 {
    list.sort_unstable();
    list.get(list.len() / 2).copied().unwrap_or_default()
}

/// Prints, for each BFD setting and each stack, the median of several runs.
///
/// # Errors
/// Where a run does not get as far as the failover.
pub fn failover(runs: usize) -> Result<()> {
    let base = std::fs::read_to_string("hw-tests/demo.yaml").context("run it from the repository's top")?;
    let dir = std::env::temp_dir();
    for (name, ms) in [("100 ms × 3", Some(100)), ("10 ms × 3", Some(10)), ("default timers", None)] {
        let yaml = dir.join("isthmus-bench.yaml");
        std::fs::write(&yaml, with_bfd(&base, ms))?;
        let mut all: [Vec<Outages>; 2] = Default::default();
        // In turn, so that a change of the machine's speed meets both.
        for n in 0..runs {
            for (who, cast) in [(0, Cast::default()), (1, Cast::debian())] {
                match once(cast, &yaml) {
                    Ok(o) => all[who].push(o),
                    Err(e) => eprintln!("run {n} of {}: {e:#}", ["ours", "the C stack"][who]),
                }
            }
        }
        for (k, what) in WHAT.iter().enumerate() {
            let [ours, theirs] = [&all[0], &all[1]].map(|runs| median(runs.iter().map(|o| o[k]).collect()));
            let ratio = theirs as f64 / ours.max(1) as f64;
            println!("bench-failover BFD {name}: {what}: ours {ours} ms, C stack {theirs} ms, ratio {ratio:.1}");
        }
    }
    std::fs::remove_file(dir.join("isthmus-bench.yaml"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfd_times_are_replaced() {
        let base = "options:\n  bfd-min-tx: \"100\"\n  bfd-mult: \"3\"\nswitches: []\n";
        assert_eq!(with_bfd(base, Some(10)), "options:\n  bfd-min-tx: \"10\"\n  bfd-mult: \"3\"\nswitches: []\n");
        assert_eq!(with_bfd(base, None), "options: {}\nswitches: []\n");
    }
}
