//! How fast a gateway's switch forwards, ours and Debian's `ovs-vswitchd` with DPDK in turn: the same databases, the same
//! controller and logical network, the same packets, one worker on one processor.
//!
//! | module | holds |
//! |---|---|
//! | `frames` | packets and files of them |
//! | `machine` | the gateway |
//! | `traffic` | what each case sends |
//! | `meter` | packets for each second of the worker's processor time |
//! | `ceiling` | testpmd on the same packets |

mod ceiling;
mod frames;
pub(crate) mod machine;
pub(crate) mod meter;
mod traffic;

use crate::lab::until;
use crate::network::Maker;
use anyhow::{Context, Result, bail};
use machine::{Device, Machine};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use traffic::{Case, Direction, Side, Traffic};

/// Packets whose way is compared between the switches before a case counts.
const SAMPLE: usize = 500;
/// Tries of a measurement that a busy machine can spoil.
const TRIES: usize = 5;

/// Megabytes for packets: as a rule, and where a case has more of them than one pool holds.
const MEMORY: [usize; 2] = [4096, 10_240];
/// The same in hugepages.
const HUGE_MEMORY: [usize; 2] = [1100, 10_240];
/// The most packets that go round: one ring holds all of them, so that none is ever full (DPDK's have 1,024 places, of which one
/// stays free). A multiple of the sizes that take turns.
const ROUND: usize = 1020;
/// For how many seconds connections live without packets where so many take a while to come back.
const KEPT: u32 = 3600;

/// How often new connections are measured: one time is a quarter of a second.
const ROUNDS: usize = 9;

/// A case's outcome for one switch.
#[derive(Debug, Default)]
struct Outcome {
    rate: f64,
    /// What left when the sample came in, sorted.
    sample: Vec<Vec<u8>>,
    /// The packets of the measurement, of each port; none of those that a ceiling says nothing of.
    input: Vec<PathBuf>,
}

/// How the measurement is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The processor of the worker.
    pub worker: usize,
    /// Packets go round between two rings, in the cases that leave them as they are; there are no others then.
    pub rings: bool,
    /// Hugepages for packets.
    pub huge: Option<&'a Path>,
    /// Ours alone, with profiles in this directory.
    pub profile: Option<&'a Path>,
}

/// Measures all cases whose names contain one of `only`, or all; prints a line for each.
///
/// # Errors
/// The machine cannot be built, or a switch forwards nothing.
pub fn measure(only: &[String], plan: Plan<'_>) -> Result<bool> {
    let wanted = |c: &Case| only.is_empty() || only.iter().any(|o| c.name().contains(o.as_str()));
    let profile = plan.profile;
    let dir = std::env::temp_dir().join("isthmus-speed-files");
    std::fs::create_dir_all(&dir)?;
    let mut all: [BTreeMap<String, Outcome>; 2] = Default::default();
    for (maker, found) in [Maker::Ours, Maker::Debian].into_iter().zip(&mut all) {
        if maker == Maker::Debian && profile.is_some() {
            break;
        }
        let memory = if plan.huge.is_some() { HUGE_MEMORY } else { MEMORY };
        for (memory, many) in memory.into_iter().zip([false, true]) {
            let fits = |t: &Traffic| (t.sources > 1) == many && (t.is_plain() || !plan.rings);
            let list: Vec<Traffic> =
                traffic::all().into_iter().filter(|t| fits(t) && t.cases.iter().any(&wanted)).collect();
            if list.is_empty() {
                continue;
            }
            let mut m = Machine::start(maker, plan.worker, (memory, plan.huge))?;
            if many {
                m.keep_connections(KEPT)?;
            }
            for t in &list {
                let cases: Vec<&Case> = t.cases.iter().filter(|c| wanted(c)).collect();
                if plan.rings {
                    for c in cases {
                        let o =
                            round(&mut m, t, c, &dir, profile).with_context(|| format!("{maker:?}: {}", c.name()))?;
                        found.insert(c.name(), o);
                    }
                    continue;
                }
                one(&mut m, t, &cases, &dir, found, profile).with_context(|| format!("{maker:?}: {}", t.name))?;
            }
        }
    }
    if profile.is_some() {
        return Ok(true);
    }
    report(&all, &dir)
}

fn report([ours, theirs]: &[BTreeMap<String, Outcome>; 2], dir: &Path) -> Result<bool> {
    let mut right = true;
    for (name, a) in ours {
        let Some(b) = theirs.get(name) else { bail!("{name}: not measured with Open vSwitch") };
        if let Some(why) = differs(&a.sample, &b.sample) {
            println!("bench-switch {name} does not count: {why}");
            right = false;
            continue;
        }
        // Without a ceiling the comparison still counts.
        let top = match a.input.is_empty() {
            true => "-".to_string(),
            false => ceiling::measure(&a.input, dir).map_or_else(
                |e| {
                    eprintln!("  {name}: {e:#}");
                    "-".to_string()
                },
                |t| format!("{t:.2}"),
            ),
        };
        let ratio = a.rate / b.rate;
        println!("bench-switch {name} ours {:.3} ovs-dpdk {:.3} ratio {ratio:.2} testpmd {top}", a.rate, b.rate);
    }
    Ok(right)
}

/// Why two sets of packets are not the same.
fn differs(a: &[Vec<u8>], b: &[Vec<u8>]) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("ours sent {} packets of the sample, Open vSwitch {}", a.len(), b.len()));
    }
    let hex = |p: &[u8]| p.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (x, y) = a.iter().zip(b).find(|(x, y)| x != y)?;
    Some(format!("a packet differs:\n  ours         {}\n  Open vSwitch {}", hex(x), hex(y)))
}

fn one(
    m: &mut Machine,
    t: &Traffic,
    cases: &[&Case],
    dir: &Path,
    found: &mut BTreeMap<String, Outcome>,
    profile: Option<&Path>,
) -> Result<()> {
    let out = files(m, t, Direction::Out, t.packets, &dir.join(format!("{}-out", t.name)))?;
    let back = files(m, t, Direction::Back, t.packets, &dir.join(format!("{}-back", t.name)))?;
    let file = |d: Direction| if d == Direction::Out { &out } else { &back };
    if t.is_plain() {
        m.plain_bridge(&[("in0", "out0")])?;
    }
    m.flush()?;
    for c in cases {
        let (source, sink) = t.sides(c.direction);
        if !t.fresh {
            // Anew for each, as connections without packets go.
            prime(m, t, file(Direction::Out), file(Direction::Back))?;
        }
        let sample = sample(m, t, c, dir)?;
        if !t.fresh {
            // On a busy machine the sample takes longer than connections last of which it has no packets.
            prime(m, t, file(Direction::Out), file(Direction::Back))?;
        }
        m.device(sink, &Device::Null)?;
        let input = file(c.direction).clone();
        let rate = if t.fresh {
            m.flush()?;
            fresh(m, t, c, &input)?
        } else {
            m.device(source, &Device::Endless(input.clone()))?;
            // Another device is another configuration: caches fill again first.
            seen(m, t, source, 2)?;
            if let Some(p) = profile {
                record(m, &p.join(format!("{}.perf", c.name())))?;
            }
            meter::rate(|| m.progress(&[sink]))?
        };
        m.device(source, &Device::Null)?;
        eprintln!("  {}: {rate:.3} million a second", c.name());
        found.insert(c.name(), Outcome { rate, sample, input: if t.fresh { Vec::new() } else { input } });
    }
    Ok(())
}

/// Measures packets that go round between two ports, each of which receives what it sent: nobody makes, copies or drops them.
/// All of them have to be there at the end.
fn round(m: &mut Machine, t: &Traffic, c: &Case, dir: &Path, profile: Option<&Path>) -> Result<Outcome> {
    let ((bridge, a), (_, b)) = t.sides(c.direction);
    let n = t.packets.min(ROUND);
    let mut frames = (0..n).map(|n| t.frame(m, c.direction, n)).collect::<Result<Vec<_>>>()?;
    m.plain_bridge(&[(a, b), (b, a)])?;
    for port in [a, b] {
        m.device((bridge, port), &Device::Ring)?;
    }
    m.send(&frames, [a, b])?;
    let both = || m.progress(&[(bridge, a), (bridge, b)]);
    until("packets that go round", Duration::from_secs(20), || {
        let l = both()?;
        if l.packets < 1000 * n as u64 { bail!("{} packets", l.packets) } else { Ok(()) }
    })?;
    if let Some(p) = profile {
        record(m, &p.join(format!("{}-rings.perf", c.name())))?;
    }
    let rate = meter::rate(both)?;
    eprintln!("  {}: {rate:.3} million a second", c.name());
    let (file, end) = (dir.join("seen.pcap"), "out0.1");
    m.device((bridge, end), &Device::Record(file.clone()))?;
    // Open vSwitch drops packets that need its slow path while it takes a new port in.
    m.pause(Duration::from_secs(1))?;
    m.ways(&[(a, end), (b, end)])?;
    until("all packets", Duration::from_secs(20), || {
        let left = m.counters((bridge, end))?.1;
        if left < n as u64 { bail!("{left} of {n} left") } else { Ok(()) }
    })?;
    m.device((bridge, end), &Device::Null)?;
    let sample = until("all packets", Duration::from_secs(20), || {
        let mut list: Vec<Vec<u8>> = frames::read(&file)?.into_iter().filter(|p| frames::is_traffic(p)).collect();
        list.sort();
        if list.len() != n { bail!("{} of {n} packets left", list.len()) } else { Ok(list) }
    })?;
    for port in [a, b] {
        m.device((bridge, port), &Device::Null)?;
    }
    frames.sort();
    if sample != frames {
        bail!("what went round is not what was sent");
    }
    Ok(Outcome { rate, sample, input: Vec::new() })
}

/// Writes a file for each port with its packets, of all or of so many that are spread over them.
fn files(m: &Machine, t: &Traffic, d: Direction, n: usize, name: &Path) -> Result<Vec<PathBuf>> {
    let write = |(k, share): (usize, _)| {
        let file = name.with_extension(format!("{k}.pcap"));
        frames::write(&file, Iterator::map(share, |n| t.frame(m, d, n)))?;
        Ok(file)
    };
    t.shares(n).enumerate().map(write).collect()
}

/// Both directions at once until every connection has seen packets of both twice; one after the other where pools have no room for
/// the packets of both.
fn prime(m: &mut Machine, t: &Traffic, out: &[PathBuf], back: &[PathBuf]) -> Result<()> {
    let (a, b) = t.sides(Direction::Out);
    // Answers before the first packet of their connection would be strangers to it.
    m.device(b, &Device::Null)?;
    m.device(a, &Device::Endless(out.into()))?;
    seen(m, t, a, 2)?;
    if t.sources > 1 {
        m.device(a, &Device::Null)?;
    }
    m.device(b, &Device::Endless(back.into()))?;
    seen(m, t, b, 2)?;
    m.device(a, &Device::Null)?;
    m.device(b, &Device::Null)
}

/// Waits until all packets have come in at a side so many times.
fn seen(m: &Machine, t: &Traffic, (bridge, port): Side, times: usize) -> Result<()> {
    for (k, share) in t.shares(t.packets).enumerate() {
        let (packets, port) = (times * share.count(), machine::beside(port, k));
        until("packets", Duration::from_secs(180), || {
            let n = m.counters((bridge, &port))?.0;
            if n < packets as u64 { bail!("{n} of {packets}") } else { Ok(()) }
        })?;
    }
    Ok(())
}

/// What leaves for some of the packets, sorted and without what switches may choose.
fn sample(m: &mut Machine, t: &Traffic, c: &Case, dir: &Path) -> Result<Vec<Vec<u8>>> {
    let (source, sink) = t.sides(c.direction);
    let file = dir.join("seen.pcap");
    let n = SAMPLE.min(t.packets);
    let sample = files(m, t, c.direction, n, &dir.join("sample"))?;
    // Over and over: Open vSwitch drops packets that need its slow path while it takes a new port in. Many sources take a while,
    // of which the file shall not tell.
    m.device(source, &Device::Endless(sample))?;
    m.device(sink, &Device::Record(file.clone()))?;
    until("the sample", Duration::from_secs(30), || {
        let left = m.counters(sink)?.1;
        if left < 40 * n as u64 { bail!("{left} packets left") } else { Ok(()) }
    })?;
    // Closing the device writes the file out, and a switch may close it later.
    m.device(sink, &Device::Null)?;
    m.device(source, &Device::Null)?;
    until("the sample", Duration::from_secs(20), || {
        let mut list: Vec<Vec<u8>> =
            frames::read(&file)?.iter().filter(|p| frames::is_traffic(p)).map(|p| t.comparable(p)).collect();
        list.sort();
        list.dedup();
        if list.len() != n { bail!("{}: {} of {n} packets of the sample left", c.name(), list.len()) } else { Ok(list) }
    })
}

/// New connections for each second of processor time: all packets pass, then the table is emptied under them, several times. What
/// counts is the median.
fn fresh(m: &mut Machine, t: &Traffic, c: &Case, input: &[PathBuf]) -> Result<f64> {
    let (source, sink) = t.sides(c.direction);
    m.device(source, &Device::Endless(input.into()))?;
    seen(m, t, source, 2)?;
    let mut rates = Vec::new();
    for _ in 0..TRIES * ROUNDS {
        m.flush()?;
        rates.extend(opened(m, t, sink)?);
        if rates.len() == ROUNDS {
            rates.sort_by(f64::total_cmp);
            return rates.get(ROUNDS / 2).copied().context("no rates");
        }
    }
    bail!("too many packets pass between two looks to be all of new connections; is the machine busy?")
}

/// The rate of the packets that come next, if they are so few that each opens a connection.
fn opened(m: &mut Machine, t: &Traffic, sink: Side) -> Result<Option<f64>> {
    let first = m.progress(&[sink])?;
    let last = until("new connections", Duration::from_secs(120), || {
        let l = m.progress(&[sink])?;
        let n = l.packets.saturating_sub(first.packets);
        if n < t.packets as u64 / 4 { bail!("{n} packets") } else { Ok(l) }
    })?;
    let n = last.packets.saturating_sub(first.packets);
    Ok((n <= t.packets as u64 * 3 / 4).then(|| meter::between(first, last).0))
}

/// Lets perf(1) watch the worker for a while.
fn record(m: &Machine, file: &Path) -> Result<()> {
    let (pid, file) = (m.pid()?.to_string(), file.display().to_string());
    crate::lab::run("perf", &["record", "-q", "-g", "-p", &pid, "-o", &file, "--", "sleep", "4"]).map(drop)
}
