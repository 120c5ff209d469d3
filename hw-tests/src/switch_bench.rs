//! How fast a gateway's switch forwards, ours and Debian's `ovs-vswitchd` with DPDK in turn: the same databases, the same
//! controller and logical network, the same packets, one worker on one processor. Both are there all the time, and one stands
//! still (SIGSTOP) while the other is measured.
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

/// How often new connections are measured in a turn: one time is a quarter of a second.
const ROUNDS: usize = 3;

/// Turns that two switches take at a case, of which the median counts.
const TURNS: usize = 7;

/// A case's outcome for one switch.
#[derive(Debug, Default)]
struct Outcome {
    /// Of each turn, in millions of packets a second.
    rates: Vec<f64>,
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
    /// Another program of our switch that takes Open vSwitch's place.
    pub beside: Option<&'a Path>,
}

impl Plan<'_> {
    fn other(&self) -> &'static str {
        if self.beside.is_some() { "beside" } else { "ovs-dpdk" }
    }
}

/// A switch that is measured, with its gateway, and what was found of it.
struct Contender<'a> {
    name: &'static str,
    machine: Machine,
    /// Its files, and among them all packets of the traffic in both directions, of each port.
    dir: PathBuf,
    files: [Vec<PathBuf>; 2],
    found: &'a mut BTreeMap<String, Outcome>,
}

impl Contender<'_> {
    /// Writes the packets of a kind of traffic, which several cases send.
    fn write(&mut self, t: &Traffic) -> Result<()> {
        for (list, (d, word)) in self.files.iter_mut().zip([(Direction::Out, "out"), (Direction::Back, "back")]) {
            *list = files(&self.machine, t, d, t.packets, &self.dir.join(format!("{}-{word}", t.name)))?;
        }
        Ok(())
    }

    /// Does something while the other switch stands still.
    fn turn<T>(
        &mut self,
        what: &str,
        f: impl FnOnce(&mut Machine, &Path, &[Vec<PathBuf>; 2]) -> Result<T>,
    ) -> Result<T> {
        self.machine.resume();
        let done = f(&mut self.machine, &self.dir, &self.files).with_context(|| format!("{}: {what}", self.name));
        self.machine.suspend();
        done
    }
}

/// Measures the cases that are named in `only`, or whose names contain one of these, or all; prints a line for each.
///
/// # Errors
/// The machine cannot be built, or a switch forwards nothing.
pub fn measure(only: &[String], plan: Plan<'_>) -> Result<bool> {
    let names: Vec<String> = traffic::all().iter().flat_map(|t| &t.cases).map(Case::name).collect();
    // Some names begin as others do.
    let means = |o: &String, name: &str| if names.contains(o) { o == name } else { name.contains(o.as_str()) };
    let wanted = |c: &Case| only.is_empty() || only.iter().any(|o| means(o, &c.name()));
    let dir = std::env::temp_dir().join("isthmus-speed-files");
    let other = (if plan.beside.is_some() { Maker::Ours } else { Maker::Debian }, plan.beside);
    let mut makers = vec![("ours", (Maker::Ours, None)), (plan.other(), other)];
    makers.truncate(if plan.profile.is_some() { 1 } else { 2 });
    let mut all: [BTreeMap<String, Outcome>; 2] = Default::default();
    let memory = if plan.huge.is_some() { HUGE_MEMORY } else { MEMORY };
    for (memory, many) in memory.into_iter().zip([false, true]) {
        let fits = |t: &Traffic| (t.sources > 1) == many && (t.goes_round() || !plan.rings);
        let list: Vec<Traffic> =
            traffic::all().into_iter().filter(|t| fits(t) && t.cases.iter().any(&wanted)).collect();
        if list.is_empty() {
            continue;
        }
        let mut contenders = Vec::new();
        for ((name, program), found) in makers.iter().zip(&mut all) {
            let dir = dir.join(name);
            std::fs::create_dir_all(&dir)?;
            let lab = format!("isthmus-speed-{name}");
            let mut machine = Machine::start(&lab, *program, plan.worker, (memory, plan.huge))
                .with_context(|| format!("the gateway of {name}"))?;
            if many {
                machine.keep_connections(KEPT)?;
            }
            machine.suspend();
            contenders.push(Contender { name, machine, dir, found, files: Default::default() });
        }
        for t in &list {
            for x in contenders.iter_mut().filter(|_| !plan.rings) {
                x.write(t)?;
            }
            for c in t.cases.iter().filter(|c| wanted(c)) {
                compare(&mut contenders, t, c, plan)?;
            }
        }
    }
    if plan.profile.is_some() {
        return Ok(true);
    }
    report(&all, plan.other(), &dir)
}

/// The one in the middle.
fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list.get(list.len() / 2).copied().unwrap_or(f64::NAN)
}

fn report([ours, theirs]: &[BTreeMap<String, Outcome>; 2], other: &str, dir: &Path) -> Result<bool> {
    let mut right = true;
    for (name, a) in ours {
        let Some(b) = theirs.get(name) else { bail!("{name}: not measured with {other}") };
        if let Some(why) = differs(&a.sample, &b.sample, other) {
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
        let ratios: Vec<f64> = a.rates.iter().zip(&b.rates).map(|(a, b)| a / b).collect();
        let (least, most) =
            (ratios.iter().copied().fold(f64::NAN, f64::min), ratios.iter().copied().fold(f64::NAN, f64::max));
        println!(
            "bench-switch {name} ours {:.3} {other} {:.3} ratio {:.2} ({least:.2} to {most:.2}) testpmd {top}",
            median(a.rates.clone()),
            median(b.rates.clone()),
            median(ratios),
        );
    }
    Ok(right)
}

/// Why two sets of packets are not the same.
fn differs(a: &[Vec<u8>], b: &[Vec<u8>], other: &str) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("ours sent {} packets of the sample, {other} {}", a.len(), b.len()));
    }
    let hex = |p: &[u8]| p.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (x, y) = a.iter().zip(b).find(|(x, y)| x != y)?;
    Some(format!("a packet differs:\n  ours {}\n  {other} {}", hex(x), hex(y)))
}

/// Measures a case with each switch in turn, several times: what the machine does meanwhile befalls both.
fn compare(contenders: &mut [Contender<'_>], t: &Traffic, c: &Case, plan: Plan<'_>) -> Result<()> {
    let name = c.name();
    for x in contenders.iter_mut() {
        let o = x.turn(&name, |m, dir, files| match plan.rings {
            true => begin_round(m, t, c).map(|()| Outcome::default()),
            false => begin(m, t, c, dir, files),
        })?;
        x.found.insert(name.clone(), o);
    }
    // A profile is of one turn.
    for _ in 0..if plan.profile.is_some() { 1 } else { TURNS } {
        for x in contenders.iter_mut() {
            let rate = x.turn(&name, |m, _, _| again(m, t, c, plan))?;
            eprintln!("  {name}: {}: {rate:.3} million a second", x.name);
            x.found.entry(name.clone()).or_default().rates.push(rate);
        }
    }
    for x in contenders.iter_mut() {
        let sample = x.turn(&name, |m, dir, _| {
            if plan.rings {
                end_round(m, t, c, dir).map(Some)
            } else {
                m.device(t.sides(c.direction).0, &Device::Null).map(|()| None)
            }
        })?;
        if let (Some(o), Some(sample)) = (x.found.get_mut(&name), sample) {
            o.sample = sample;
        }
    }
    Ok(())
}

/// Has packets of a case come in, and the switch know them.
fn begin(m: &mut Machine, t: &Traffic, c: &Case, dir: &Path, [out, back]: &[Vec<PathBuf>; 2]) -> Result<Outcome> {
    let input = if c.direction == Direction::Out { out } else { back };
    if let Some(actions) = t.plain() {
        m.plain_bridge((t.matches(), actions), &[("in0", "out0")])?;
    }
    m.count_flows(t.is_counted())?;
    m.flush()?;
    let (source, sink) = t.sides(c.direction);
    if !t.fresh {
        prime(m, t, out, back)?;
    }
    let sample = sample(m, t, c, dir)?;
    if !t.fresh {
        // On a busy machine the sample takes longer than connections last of which it has no packets.
        prime(m, t, out, back)?;
    }
    m.device(sink, &Device::Null)?;
    m.device(source, &Device::Endless(input.clone()))?;
    Ok(Outcome { rates: Vec::new(), sample, input: if t.fresh { Vec::new() } else { input.clone() } })
}

/// A switch's turn at a case whose packets come in.
fn again(m: &mut Machine, t: &Traffic, c: &Case, plan: Plan<'_>) -> Result<f64> {
    let ((bridge, a), sink) = t.sides(c.direction);
    if plan.rings {
        let both = || m.progress(&[(bridge, a), sink]);
        let first = both()?;
        until("packets that go round", Duration::from_secs(20), || {
            let n = both()?.packets - first.packets;
            if n < 1000 * ROUND as u64 { bail!("{n} packets") } else { Ok(()) }
        })?;
        if let Some(p) = plan.profile {
            record(m, &p.join(format!("{}-rings.perf", c.name())))?;
        }
        return meter::rate(both);
    }
    // Another device is another configuration, and processors forget: caches fill again first.
    seen(m, t, (bridge, a), 2)?;
    let profile = plan.profile.map(|p| p.join(format!("{}.perf", c.name())));
    if t.fresh {
        let m = &*m;
        return std::thread::scope(|s| {
            let watcher = profile.map(|p| s.spawn(move || record(m, &p)));
            let rate = fresh(m, t, sink);
            // perf(1) watches longer than a measurement takes.
            while watcher.as_ref().is_some_and(|w| !w.is_finished()) {
                fresh(m, t, sink)?;
            }
            watcher.map_or(Ok(()), |w| w.join().unwrap_or_else(|_| bail!("perf's thread panicked")))?;
            rate
        });
    }
    if let Some(p) = profile {
        record(m, &p)?;
    }
    meter::rate(|| m.progress(&[sink]))
}

/// Packets of a case that go round.
fn rounds(m: &Machine, t: &Traffic, c: &Case) -> Result<Vec<Vec<u8>>> {
    (0..t.packets.min(ROUND)).map(|n| t.frame(m, c.direction, n)).collect()
}

/// Has packets go round between two ports, each of which receives what it sent: nobody makes, copies or drops them.
fn begin_round(m: &mut Machine, t: &Traffic, c: &Case) -> Result<()> {
    let ((bridge, a), (_, b)) = t.sides(c.direction);
    let frames = rounds(m, t, c)?;
    m.plain_bridge((t.matches(), t.plain().unwrap_or_default()), &[(a, b), (b, a)])?;
    m.count_flows(t.is_counted())?;
    for port in [a, b] {
        m.device((bridge, port), &Device::Ring)?;
    }
    m.send(&frames, [a, b])
}

/// Ends that. All packets have to be there.
fn end_round(m: &mut Machine, t: &Traffic, c: &Case, dir: &Path) -> Result<Vec<Vec<u8>>> {
    let ((bridge, a), (_, b)) = t.sides(c.direction);
    let mut frames = rounds(m, t, c)?;
    let n = frames.len();
    let (file, end) = (dir.join("seen.pcap"), "out0.1");
    m.device((bridge, end), &Device::Record(file.clone()))?;
    // Open vSwitch drops packets that need its slow path while it takes a new port in.
    m.pause(Duration::from_secs(1))?;
    m.ways(("", "output:OUT"), &[(a, end), (b, end)])?;
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
    Ok(sample)
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

/// Waits until all packets have come in at a side so many more times.
fn seen(m: &Machine, t: &Traffic, (bridge, port): Side, times: usize) -> Result<()> {
    let came = |k: usize| Ok(m.counters((bridge, &machine::beside(port, k)))?.0);
    let before = (0..t.sources).map(came).collect::<Result<Vec<_>>>()?;
    for ((k, share), before) in t.shares(t.packets).enumerate().zip(before) {
        let packets = times * share.count();
        until("packets", Duration::from_secs(180), || {
            let n = came(k)?.saturating_sub(before);
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
fn fresh(m: &Machine, t: &Traffic, sink: Side) -> Result<f64> {
    let mut rates = Vec::new();
    for _ in 0..TRIES * ROUNDS {
        m.flush()?;
        rates.extend(opened(m, t, sink)?);
        if rates.len() == ROUNDS {
            return Ok(median(rates));
        }
    }
    bail!("too many packets pass between two looks to be all of new connections; is the machine busy?")
}

/// The rate of the packets that come next, if they are so few that each opens a connection.
fn opened(m: &Machine, t: &Traffic, sink: Side) -> Result<Option<f64>> {
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
