//! Fast PMD threads: they replay cached flows, open connections as others were opened before ([`switch::FastPath`]), and
//! leave everything else to the main one.
//!
//! ```text
//!  device queues ─► fast PMD thread ─► device queues    upcalls, packets for the host, counters (FromPmd)
//!                         └───────────────────────────────────────────────────────────► main PMD thread
//!                       flows, templates, devices (ToPmd)                               (switch, BFD, jobs)
//!                         ◄───────────────────────────────────────────────────────────────────┘
//! ```
//! A fast thread waits for nobody: what it gives to the main one waits in a channel. The main thread takes some of it
//! in each round, as from a device. What exceeds the limits below is dropped and counted.

use crate::clock::Clock;
use crate::pmd::PacketSampler;
use crate::pmd::round::{Batch, Round, WALKS};
use crate::ports::frame::Frame;
use dpdk_rs::{BURST, Eal, Mbuf, Port};
use openflow_rs::PortNo;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use switch::{
    BridgeId, DeviceId, DumpPart, Event, FastPath, Flow, News, Outputs, Path, Sums, Switch, Target, Ticket, Upcall,
    View,
};
use tokio::sync::oneshot;

/// The most packets that wait for an upcall: they have no flow and no template here, so the main thread has to walk the
/// tables.
const UPCALLS: usize = 4096;
/// Room for BFD packets beyond that, so that no flood of others ends a session.
const UPCALLS_BFD: usize = UPCALLS + 1024;
/// The most samples that wait, among all that does: packets that need a walk have room left.
const SAMPLES: usize = UPCALLS / 2;
/// The most messages that the main thread takes in a round.
const MESSAGES: usize = 8;
/// How often a fast thread sends its counters.
const REPORT: Duration = Duration::from_millis(5);

/// A device as fast threads see it.
#[derive(Clone, Debug)]
pub struct SharedPort {
    /// The port.
    pub port: Arc<Port>,
    /// The queues that the thread receives from.
    pub queues: Vec<u16>,
    /// Fast threads may send through it. Otherwise the main one does, as it has to look at the packets.
    pub direct: bool,
}

/// What a fast thread counts, in the order of [`COUNTER_NAMES`].
#[derive(Clone, Copy)]
enum PmdCounter {
    Polls,
    Idle,
    Received,
    Sent,
    Missed,
    Full,
    Oversize,
    Gone,
    Busy,
}

/// Names of a fast thread's counters.
pub const COUNTER_NAMES: [&str; 9] = [
    "iterations",
    "idle iterations",
    "packets received",
    "packets sent",
    "packets without a flow",
    "packets for full queues",
    "packets longer than a buffer",
    "packets for devices that are gone",
    "nanoseconds busy",
];

/// Counters of one thread, which writes them; others read.
#[derive(Debug, Default)]
struct Counters([AtomicU64; COUNTER_NAMES.len()]);

impl Counters {
    fn add(&self, what: PmdCounter, n: usize) {
        if let Some(c) = self.0.get(what as usize) {
            c.store(c.load(Relaxed).wrapping_add(n as u64), Relaxed);
        }
    }

    fn read(&self) -> [u64; COUNTER_NAMES.len()] {
        std::array::from_fn(|i| self.0.get(i).map_or(0, |c| c.load(Relaxed)))
    }
}

/// From the main thread to a fast one.
enum ToPmd {
    Flow(Box<Flow>),
    /// How connections are opened.
    News(Arc<[News]>),
    /// Upcalls whose packets have been sent.
    Left(Vec<Ticket>),
    View(Box<View>),
    Devices(Vec<Option<SharedPort>>),
    SleepMax(Duration),
    /// Observe one of so many packets, or none.
    Observe(Option<u32>),
    /// Send a part of the cached flows ([`switch::FastPath::dump_part`]).
    Show(usize, Arc<HashSet<Path>>, oneshot::Sender<DumpPart>),
    Stop,
}

/// From a fast thread to the main one.
enum FromPmd {
    /// Upcalls of the thread with this number.
    Missed(u64, Vec<Upcall<Frame>>),
    /// Packets that the main thread has to observe.
    Sampled(Vec<(DeviceId, Frame)>),
    /// Packets that the main thread has to send.
    Deliver(Vec<(Target, Frame)>),
    /// Samples of packets.
    Samples(Vec<Event>),
    /// Packets of BFD sessions.
    Sessions(Vec<(BridgeId, PortNo, Frame)>),
    Sums(Box<Sums>),
}

/// A running fast thread, as the main one sees it.
struct FastPmd {
    number: u64,
    processor: usize,
    to: Sender<ToPmd>,
    thread: JoinHandle<()>,
    counters: Arc<Counters>,
    /// The counters when they were last cleared.
    cleared: [u64; COUNTER_NAMES.len()],
}

/// The fast PMD threads.
pub struct FastPmds {
    list: Vec<FastPmd>,
    from: Receiver<FromPmd>,
    up: Sender<FromPmd>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    lost_samples: Arc<AtomicU64>,
    next: u64,
    /// The number of the view that the threads have.
    seen: u64,
    flows: Vec<Flow>,
    /// By thread: what it is told of its upcalls once their packets have been sent.
    answers: Vec<(u64, ToPmd)>,
    /// One of so many packets is observed, if any.
    observed: Option<u32>,
    ending: Ending,
}

/// Threads that were told to stop, with their processors. The main thread never waits for one: it switches packets.
#[derive(Default)]
struct Ending(Vec<(usize, JoinHandle<()>)>);

impl Ending {
    /// Joins those that have ended.
    fn join_ended(&mut self) {
        for (processor, thread) in self.0.extract_if(.., |(_, t)| t.is_finished()) {
            join(processor, thread);
        }
    }

    /// Waits for all of them.
    fn join_all(&mut self) {
        self.0.drain(..).for_each(|(processor, thread)| join(processor, thread));
    }
}

/// Joins a thread; one that panicked is reported.
fn join(processor: usize, thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!(target: "dpif_netdev", "the PMD thread of processor {processor} has panicked");
    }
}

impl Default for FastPmds {
    fn default() -> FastPmds {
        let (up, from) = channel();
        FastPmds {
            list: Vec::new(),
            from,
            up,
            waiting: Arc::default(),
            lost: Arc::default(),
            lost_samples: Arc::default(),
            next: 1,
            seen: 0,
            flows: Vec::new(),
            answers: Vec::new(),
            observed: None,
            ending: Ending::default(),
        }
    }
}

/// What a fast thread needs to start.
pub struct PmdSetup {
    /// The DPDK environment.
    pub eal: Eal,
    /// The time.
    pub clock: Clock,
    /// The longest sleep without packets.
    pub sleep_max: Duration,
}

impl FastPmds {
    /// How many threads there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The processor of each thread, and its counters since they were cleared, in the order of [`COUNTER_NAMES`].
    pub fn counters(&self) -> impl Iterator<Item = (usize, [u64; COUNTER_NAMES.len()])> {
        self.list.iter().map(|l| {
            let now = l.counters.read();
            (l.processor, std::array::from_fn(|i| now[i].wrapping_sub(l.cleared[i])))
        })
    }

    /// Has counters begin at zero.
    pub fn clear_counters(&mut self) {
        self.list.iter_mut().for_each(|l| l.cleared = l.counters.read());
    }

    /// If a thread has ended by itself (it panicked): the processors of all, for [`FastPmds::set`] to start it anew.
    pub fn ended(&self) -> Option<Vec<usize>> {
        let ended = self.list.iter().any(|l| l.thread.is_finished());
        ended.then(|| self.list.iter().map(|l| l.processor).collect())
    }

    /// Has a thread on each of these processors, and no others. Threads that stay go on undisturbed.
    pub fn set(&mut self, processors: &[usize], switch: &mut Switch, common: &PmdSetup) {
        let (stay, go): (Vec<FastPmd>, Vec<FastPmd>) = std::mem::take(&mut self.list)
            .into_iter()
            .partition(|l| processors.contains(&l.processor) && !l.thread.is_finished());
        self.list = stay;
        for l in go {
            // A thread that has ended by itself does not hear this.
            let _ = l.to.send(ToPmd::Stop);
            self.ending.0.push((l.processor, l.thread));
        }
        self.ending.join_ended();
        // A new thread begins with all that the others have been told.
        self.spread(switch);
        for p in processors {
            if self.list.iter().any(|l| l.processor == *p) {
                continue;
            }
            match self.start(*p, switch.fast_path(), common) {
                Ok(l) => self.list.push(l),
                Err(e) => tracing::error!(target: "dpif_netdev", "no PMD thread for processor {p}: {e}"),
            }
        }
        self.list.sort_by_key(|l| l.processor);
    }

    fn start(&mut self, processor: usize, path: FastPath, common: &PmdSetup) -> std::io::Result<FastPmd> {
        let (to, from) = channel();
        let number = self.next;
        self.next += 1;
        let counters = Arc::new(Counters::default());
        let thread = FastLoop {
            number,
            path,
            from,
            up: self.up.clone(),
            waiting: self.waiting.clone(),
            lost: self.lost.clone(),
            lost_samples: self.lost_samples.clone(),
            counters: counters.clone(),
            devices: Vec::new(),
            sampler: self.observed.map(PacketSampler::new),
            sampled: Vec::new(),
            clock: common.clock.clone(),
            sleep_max: common.sleep_max,
        };
        let eal = common.eal.clone();
        let thread = std::thread::Builder::new().name(format!("pmd-c{processor:02}")).spawn(move || {
            // A thread that DPDK does not know has no cache of free buffers, and is slower.
            let _place = eal.register_thread();
            crate::pmd::run_on(&[processor]);
            crate::pmd::sleep_exactly();
            thread.run();
        })?;
        Ok(FastPmd { number, processor, to, thread, counters, cleared: Default::default() })
    }

    /// Joins threads that have ended since they were told to.
    pub fn join_ended(&mut self) {
        self.ending.join_ended();
    }

    /// Stops all threads and waits for their ends. Only for the end of the main thread: packets would wait as well.
    pub fn stop(&mut self) {
        for l in std::mem::take(&mut self.list) {
            let _ = l.to.send(ToPmd::Stop);
            self.ending.0.push((l.processor, l.thread));
        }
        self.ending.join_all();
    }

    /// Tells the threads which devices there are; `queues` are those of each thread, by device.
    pub fn devices(&self, all: &[Option<SharedPort>], queues: &[Vec<Vec<u16>>]) {
        for (l, queues) in self.list.iter().zip(queues) {
            let of = |(i, d): (usize, &Option<SharedPort>)| {
                let queues = queues.get(i).cloned().unwrap_or_default();
                d.clone().map(|d| SharedPort { queues, ..d })
            };
            let _ = l.to.send(ToPmd::Devices(all.iter().enumerate().map(of).collect()));
        }
    }

    /// The processors of all threads.
    pub fn processors(&self) -> Vec<usize> {
        self.list.iter().map(|l| l.processor).collect()
    }

    /// Asks the thread on a processor for a part of its cached flows ([`switch::FastPath::dump_part`]): where it answers, if
    /// it is there.
    pub fn request_flows(
        &self,
        processor: usize,
        from: usize,
        known: Arc<HashSet<Path>>,
    ) -> Option<oneshot::Receiver<DumpPart>> {
        let (tx, rx) = oneshot::channel();
        let thread = self.list.iter().find(|l| l.processor == processor)?;
        thread.to.send(ToPmd::Show(from, known, tx)).ok()?;
        Some(rx)
    }

    /// Sets the longest sleep.
    pub fn sleep_max(&self, t: Duration) {
        for l in &self.list {
            let _ = l.to.send(ToPmd::SleepMax(t));
        }
    }

    /// Has the threads observe one of so many packets, or none.
    pub fn observe(&mut self, rate: Option<u32>) {
        self.observed = rate;
        for l in &self.list {
            let _ = l.to.send(ToPmd::Observe(rate));
        }
    }

    /// Tells all threads how connections are opened.
    fn spread(&self, switch: &mut Switch) {
        let news = switch.news();
        if news.is_empty() {
            return;
        }
        let news: Arc<[News]> = news.into();
        for l in &self.list {
            let _ = l.to.send(ToPmd::News(news.clone()));
        }
    }

    /// How many samples found no room on the way to the main thread since the last call.
    pub fn take_lost_samples(&self) -> u64 {
        if self.lost_samples.load(Relaxed) == 0 { 0 } else { self.lost_samples.swap(0, Relaxed) }
    }

    /// Handles what the threads sent: upcalls, packets to send, counters. True if there was something. What `out` had
    /// at the last call has been sent by now.
    pub fn serve(&mut self, switch: &mut Switch, now: Duration, out: &mut Outputs<Frame>) -> bool {
        let mut any = false;
        for (number, answer) in self.answers.drain(..) {
            let thread = self.list.iter().find(|l| l.number == number);
            let _ = thread.map(|l| l.to.send(answer));
        }
        let walks = switch.walks();
        for _ in 0..MESSAGES {
            // As many as the packets of a round may.
            if switch.walks() - walks >= WALKS {
                break;
            }
            let Ok(up) = self.from.try_recv() else { break };
            any = true;
            match up {
                FromPmd::Missed(number, packets) => {
                    self.waiting.fetch_sub(packets.len(), Relaxed);
                    let tickets = packets.iter().map(|u| u.ticket).collect();
                    switch.walk_for(packets, now, out, &mut self.flows);
                    let flows = self.flows.drain(..).map(|f| (number, ToPmd::Flow(Box::new(f))));
                    self.answers.extend(flows.chain([(number, ToPmd::Left(tickets))]));
                }
                FromPmd::Sampled(packets) => {
                    self.waiting.fetch_sub(packets.len(), Relaxed);
                    packets.into_iter().for_each(|(d, p)| switch.observe(d, p, now, out));
                }
                FromPmd::Samples(list) => {
                    self.waiting.fetch_sub(list.len(), Relaxed);
                    out.events.extend(list);
                }
                FromPmd::Deliver(packets) => out.packets.extend(packets),
                FromPmd::Sessions(packets) => {
                    self.waiting.fetch_sub(packets.len(), Relaxed);
                    out.bfd.extend(packets);
                }
                FromPmd::Sums(s) => switch.settle_sums(*s, now),
            }
        }
        self.spread(switch);
        if !self.list.is_empty()
            && let Some(view) = switch.view(&mut self.seen)
        {
            for l in &self.list {
                let _ = l.to.send(ToPmd::View(Box::new(view.clone())));
            }
        }
        if self.lost.load(Relaxed) != 0 {
            switch.upcalls_lost(self.lost.swap(0, Relaxed));
        }
        any
    }
}

/// The loop of a fast thread.
struct FastLoop {
    number: u64,
    path: FastPath,
    from: Receiver<ToPmd>,
    up: Sender<FromPmd>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    lost_samples: Arc<AtomicU64>,
    counters: Arc<Counters>,
    devices: Vec<Option<(SharedPort, Vec<Mbuf>)>>,
    sampler: Option<PacketSampler>,
    /// Packets that the main thread is to observe.
    sampled: Vec<(DeviceId, Frame)>,
    clock: Clock,
    sleep_max: Duration,
}

/// Whether a packet is one of BFD in a tunnel (UDP ports 3784 and 4784 of RFC 5881 and 5883), judged by its headers.
fn is_bfd(p: &[u8]) -> bool {
    let port = |h: &packet::Headers, p: &[u8]| h.ports(p).map(|(_, d)| d);
    let Some(outer) = packet::Headers::parse(p) else { return false };
    let len = match (port(&outer, p), p.get(outer.payload)) {
        (Some(packet::tunnel::GENEVE_PORT), Some(b)) => 8 + 4 * usize::from(b & 0x3f),
        (Some(packet::tunnel::VXLAN_PORT), _) => 8,
        _ => return false,
    };
    let inner = p.get(outer.payload + len..).unwrap_or_default();
    packet::Headers::parse(inner).and_then(|h| port(&h, inner)).is_some_and(|p| matches!(p, 3784 | 4784))
}

/// What a fast thread receives in a round.
struct FastRound<'a> {
    pmd: &'a mut FastLoop,
    now: Duration,
    out: &'a mut Outputs<Frame>,
    missed: &'a mut Vec<Upcall<Frame>>,
}

impl Round for FastRound<'_> {
    fn devices(&self) -> usize {
        self.pmd.devices.len()
    }

    /// The main thread does them all.
    fn walks(&self) -> u64 {
        0
    }

    #[inline]
    fn receive(&mut self, (number, place): (usize, usize), batch: &mut Batch) -> bool {
        let FastLoop { devices, sampler, sampled, counters, .. } = &mut *self.pmd;
        let Some(Some((d, _))) = devices.get(number) else { return false };
        let Some(q) = d.queues.get(place) else { return false };
        let id = DeviceId::at(number);
        let broken = match sampler {
            None => d.port.receive_into(*q, batch, |m| (id, Frame(m))),
            Some(sampler) => d.port.receive(*q, |m| {
                let to = if sampler.pick() { &mut *sampled } else { &mut *batch };
                to.push((id, Frame(m)));
            }),
        };
        if broken != 0 {
            counters.add(PmdCounter::Oversize, broken);
        }
        true
    }

    fn forward(&mut self, batch: &mut Batch) {
        let FastRound { pmd, now, out, missed } = self;
        pmd.counters.add(PmdCounter::Received, batch.len());
        pmd.path.process(batch, *now, out, missed);
        pmd.hand_over(missed);
        pmd.deliver(out);
    }
}

impl FastLoop {
    fn run(mut self) {
        let mut batch = Batch::with_capacity(BURST);
        let (mut missed, mut out) = (Vec::new(), Outputs::default());
        let mut idle = crate::pmd::IdleBackoff::default();
        let mut reported = Duration::ZERO;
        loop {
            while let Ok(d) = self.from.try_recv() {
                let now = self.clock.now();
                match d {
                    ToPmd::Flow(f) => self.path.learn(*f, now),
                    ToPmd::News(list) => list.iter().for_each(|n| self.path.follow(n)),
                    ToPmd::Left(list) => list.into_iter().for_each(|t| self.path.left(t)),
                    ToPmd::View(v) => self.path.look(*v),
                    ToPmd::Devices(list) => {
                        self.devices = list.into_iter().map(|d| d.map(|d| (d, Vec::new()))).collect();
                    }
                    ToPmd::SleepMax(t) => self.sleep_max = t,
                    ToPmd::Observe(rate) => self.sampler = rate.map(PacketSampler::new),
                    // The one who asked may have gone.
                    ToPmd::Show(from, known, to) => drop(to.send(self.path.dump_part(from, &known, now))),
                    ToPmd::Stop => return self.report(),
                }
            }
            let now = self.clock.now();
            self.counters.add(PmdCounter::Polls, 1);
            let mut round = FastRound { pmd: &mut self, now, out: &mut out, missed: &mut missed };
            let busy = round.packets(&mut batch) > 0;
            self.hand_over_picked();
            if busy {
                self.counters.add(PmdCounter::Busy, self.clock.now().saturating_sub(now).as_nanos() as usize);
            } else {
                self.counters.add(PmdCounter::Idle, 1);
            }
            if now.saturating_sub(reported) > REPORT {
                reported = now;
                self.report();
            }
            idle.pause(busy, self.sleep_max, Duration::MAX);
        }
    }

    fn report(&mut self) {
        if let Some(s) = self.path.sums() {
            // Once the main thread has ended nobody wants the counters.
            let _ = self.up.send(FromPmd::Sums(Box::new(s)));
        }
    }

    /// Gives the main thread the packets that it is to observe.
    fn hand_over_picked(&mut self) {
        if self.sampled.is_empty() {
            return;
        }
        let list = std::mem::take(&mut self.sampled);
        self.counters.add(PmdCounter::Received, list.len());
        if self.waiting.load(Relaxed) + list.len() > UPCALLS {
            self.lost.fetch_add(list.len() as u64, Relaxed);
            return;
        }
        self.waiting.fetch_add(list.len(), Relaxed);
        let _ = self.up.send(FromPmd::Sampled(list));
    }

    /// Gives the main thread the packets without a flow.
    fn hand_over(&mut self, missed: &mut Vec<Upcall<Frame>>) {
        if missed.is_empty() {
            return;
        }
        let waiting = self.waiting.load(Relaxed);
        let mut list = std::mem::take(missed);
        if waiting + list.len() > UPCALLS {
            let mut room = UPCALLS_BFD.saturating_sub(waiting);
            let mut stays = |u: &Upcall<Frame>| {
                let stays = room > 0 && is_bfd(u.packet.0.data());
                room -= usize::from(stays);
                stays
            };
            let lost: Vec<_> = list.extract_if(.., |u| !stays(u)).collect();
            self.lost.fetch_add(lost.len() as u64, Relaxed);
            lost.into_iter().for_each(|u| self.path.left(u.ticket));
        }
        self.waiting.fetch_add(list.len(), Relaxed);
        self.counters.add(PmdCounter::Missed, list.len());
        let _ = self.up.send(FromPmd::Missed(self.number, list));
    }

    /// Has a list wait for the main thread, as far as there is room for so many in all; returns how many had none.
    fn wait_with<T>(&self, list: &mut Vec<T>, most: usize) -> u64 {
        let room = most.saturating_sub(self.waiting.load(Relaxed));
        let lost = list.len().saturating_sub(room);
        list.truncate(room);
        self.waiting.fetch_add(list.len(), Relaxed);
        lost as u64
    }

    /// Gives the main thread the packets of BFD sessions.
    fn hand_over_bfd(&mut self, list: &mut Vec<(BridgeId, PortNo, Frame)>) {
        if list.is_empty() {
            return;
        }
        self.lost.fetch_add(self.wait_with(list, UPCALLS_BFD), Relaxed);
        let _ = self.up.send(FromPmd::Sessions(std::mem::take(list)));
    }

    /// Gives the main thread the samples of packets.
    fn hand_over_samples(&mut self, list: &mut Vec<Event>) {
        if list.is_empty() {
            return;
        }
        self.lost_samples.fetch_add(self.wait_with(list, SAMPLES), Relaxed);
        let _ = self.up.send(FromPmd::Samples(std::mem::take(list)));
    }

    fn deliver(&mut self, out: &mut Outputs<Frame>) {
        self.hand_over_bfd(&mut out.bfd);
        self.hand_over_samples(&mut out.events);
        let mut others = Vec::new();
        let mut packets = out.packets.drain(..);
        while let Some(to) = packets.as_slice().first().map(|(to, _)| *to) {
            let n = packets.as_slice().iter().take_while(|(next, _)| *next == to).count();
            let same = packets.by_ref().take(n);
            match self.devices.get_mut(to.device().index()) {
                Some(Some((s, queue))) if s.direct => queue.extend(same.map(|(_, Frame(m))| m)),
                Some(Some(_)) => others.extend(same),
                _ => {
                    drop(same.collect::<Vec<_>>());
                    self.counters.add(PmdCounter::Gone, n);
                }
            }
        }
        drop(packets);
        if !others.is_empty() {
            let _ = self.up.send(FromPmd::Deliver(others));
        }
        for (s, queue) in self.devices.iter_mut().flatten().filter(|(_, q)| !q.is_empty()) {
            let [_, most] = s.port.info().queues;
            self.counters.add(PmdCounter::Sent, s.port.transmit((self.number % u64::from(most.max(1))) as u16, queue));
            self.counters.add(PmdCounter::Full, queue.len());
            queue.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The main thread changes its set of threads while it switches packets: a thread that takes its time must not hold
    /// it up.
    #[test]
    fn a_thread_that_goes_on_is_not_waited_for() {
        let (done, joined) = channel();
        let (release, wait) = channel::<()>();
        std::thread::spawn(move || {
            let mut ending = Ending::default();
            ending.0.push((1, std::thread::spawn(move || wait.recv().unwrap_or(()))));
            ending.join_ended();
            let _ = done.send(ending);
        });
        let mut ending = joined.recv_timeout(Duration::from_secs(10)).expect("nobody waits for the thread");
        assert_eq!(ending.0.len(), 1);
        drop(release);
        while !ending.0.is_empty() {
            ending.join_ended();
            std::thread::yield_now();
        }
    }
}
