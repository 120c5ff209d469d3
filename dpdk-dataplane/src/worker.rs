//! The worker: one thread that polls all devices, runs packets through the switch to completion, and keeps BFD's time.
//! Everything else asks it for things by jobs, which it does between bursts.

use crate::bfd::{BfdStatus, Monitors, Wish};
use crate::bond::Bonds;
use crate::device::Device;
use crate::frame::{Frame, pool, set_pool};
use crate::lanes::{Common, Lanes, Shared};
use crate::limit::Limits;
use crate::neighbour::Neighbours;
use crate::police::{Policer, Rate};
use crate::qos::Egress;
use crate::shape::Shaper;
use dpdk_rs::{BURST, Eal, Mbuf, Pool};
use openflow_rs::action::Action;
use openflow_rs::message::PacketOut;
use openflow_rs::mods::TABLE_ALL;
use openflow_rs::wire::DecodeError;
use openflow_rs::{FieldId, Match, Message, PortNo};
use packet::build;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use switch::classifier::Rule;
use switch::{BridgeId, Event, Outputs, Switch};
use tokio::sync::{mpsc, oneshot};

/// Connections that are tracked at most, in all zones.
const CONNECTIONS: usize = 4_000_000;
/// Polls without packets before the worker sleeps.
const SPIN: u32 = 16;
/// Connections looked at between two bursts for whether their time is over.
const SWEEP: usize = 64;
/// Drafts of a bundle that may be overtaken by other changes before it is done in the worker's thread.
const DRAFTS: usize = 3;
/// Jobs between two bursts, and the time after which the rest has to wait for the next one.
const JOBS: usize = 32;
const JOBS_TIME: Duration = Duration::from_micros(200);
/// The first sleep; it doubles up to [`Worker::sleep_max`].
const SLEEP: Duration = Duration::from_micros(20);
/// Packets that wait in queues of all devices at most: half of the least pool.
const WAITING: usize = 8192;
/// The speed of a device that does not say its own, in megabits a second.
const DEFAULT_SPEED: u32 = 100;
/// Flows that a dump takes from the worker at once, if they are not all of one table.
const RULES: usize = 2000;
/// The room for a packet.
const ROOM: u16 = 2048;

/// A packet for collectors, and its bridge.
pub type Sampled = (BridgeId, Box<switch::Sample>);

/// Something to do in the worker's thread.
pub type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// What the worker tells of.
#[derive(Debug)]
pub enum Notice {
    /// An event of the engine for connections: a packet-in or a flow that went.
    Event(Event),
    /// A BFD session's status changed.
    Bfd(BridgeId, PortNo, BfdStatus),
}

/// Figures of the loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Rounds.
    pub polls: u64,
    /// Rounds without a packet.
    pub idle: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that a device's queue had no room for.
    pub full: u64,
    /// Received packets of several segments that do not fit into one.
    pub oversize: u64,
    /// Samples for which the exporter had no room.
    pub samples_lost: u64,
    /// Packets for devices that are gone.
    pub gone: u64,
    /// Jobs done.
    pub jobs: u64,
    /// Time in rounds that had something to do.
    pub busy: Duration,
    /// Since when all this is counted.
    pub since: Duration,
    /// The longest job.
    pub longest_job: Duration,
    /// The longest time between two rounds' starts.
    pub longest_round: Duration,
}

struct Slot {
    device: Device,
    /// Its port is there, so it is polled: what comes earlier waits in the device.
    polled: bool,
    /// By queue, the thread that receives from it: 0 is this one.
    threads: Vec<usize>,
    /// Queues, and the processors that are to receive from them.
    affinity: Vec<(u16, usize)>,
    /// The queues of this thread.
    mine: Vec<u16>,
    queue: Vec<Mbuf>,
    ingress: Option<Policer>,
    egress: Gate,
}

/// What stands before a device's transmit queue.
enum Gate {
    Free,
    Police(Box<Policer>),
    Shape(Box<Shaper<Mbuf>>),
}

impl Slot {
    fn new(device: Device) -> Slot {
        Slot {
            device,
            polled: false,
            threads: Vec::new(),
            affinity: Vec::new(),
            mine: Vec::new(),
            queue: Vec::new(),
            ingress: None,
            egress: Gate::Free,
        }
    }

    /// Only the worker's thread can receive from it and send through it.
    fn here(&self) -> bool {
        self.device.internal || self.ingress.is_some() || !matches!(self.egress, Gate::Free)
    }
}

/// The worker's state.
pub struct Worker {
    /// The engine.
    pub switch: Switch,
    /// BFD sessions.
    pub monitors: Monitors,
    /// Bonds.
    pub bonds: Bonds,
    /// Next hops.
    pub neighbours: Neighbours,
    /// Longest sleep.
    pub sleep_max: Duration,
    /// Figures.
    pub counters: Counters,
    /// Packet-ins.
    pub limits: Limits,
    /// Other threads that switch packets.
    pub lanes: Lanes,
    eal: Eal,
    devices: Vec<Option<Slot>>,
    /// Where this thread runs, if that was chosen.
    processor: Option<usize>,
    /// Threads that were chosen for some queue have no others.
    isolate: bool,
    /// Devices with queues.
    shaped: Vec<usize>,
    out: Outputs<Frame>,
    notices: mpsc::UnboundedSender<Notice>,
    samples: mpsc::Sender<Sampled>,
    jobs: Receiver<Job>,
    started: Instant,
    stop: bool,
    wishes: Vec<Wish>,
    next_tick: Duration,
}

/// A way to give the worker jobs; clones are the same worker's.
#[derive(Clone)]
pub struct Handle {
    jobs: Sender<Job>,
    /// The DPDK environment.
    pub eal: Eal,
}

impl Handle {
    /// Does something in the worker's thread; none where it has ended.
    pub async fn run<T: Send + 'static>(&self, f: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Option<T> {
        let (tx, rx) = oneshot::channel();
        // A caller that went away does not want the answer.
        self.post(move |w| drop(tx.send(f(w))));
        rx.await.ok()
    }

    /// Applies a bundle: all of it, or nothing, and says then which message failed, from 0, and why. None where the worker
    /// has ended. The work is done in another thread, on a draft of the tables; packets wait only for the exchange.
    pub async fn apply_bundle(
        &self,
        bridge: BridgeId,
        list: Arc<Vec<Message>>,
    ) -> Option<Result<(), (usize, DecodeError)>> {
        for _ in 0..DRAFTS {
            // A bridge that is not there says so below.
            let Some(mut draft) = self.run(move |w| w.switch.draft(bridge).map(|d| (Box::new(d), w.now()))).await?
            else {
                break;
            };
            let changes = list.clone();
            let work = move || draft.0.apply(&changes, draft.1).map(|()| draft.0);
            let draft = match tokio::task::spawn_blocking(work).await.ok()? {
                Ok(draft) => draft,
                Err(e) => return Some(Err(e)),
            };
            let done = self.run(move |w| {
                let now = w.now();
                w.switch.adopt(draft, now)
            });
            let done = done.await?;
            let adopted = done.is_ok();
            // Freeing the tables that were takes time as well.
            tokio::task::spawn_blocking(move || drop(done)).await.ok()?;
            if adopted {
                return Some(Ok(()));
            }
        }
        // Others change the bridge all the time.
        self.run(move |w| {
            let now = w.now();
            w.switch.apply_bundle(bridge, &list, now)
        })
        .await
    }

    /// The flows of a table, or of all, at one time: which that was comes along. Packets do not wait for all of them at once, unless
    /// somebody changes flows meanwhile.
    pub async fn rules(&self, bridge: BridgeId, table: u8) -> Option<(Vec<Arc<Rule>>, Duration)> {
        let (mut list, mut from, mut seen) = (Vec::new(), 0, None);
        while table == TABLE_ALL && from < switch::bridge::N_TABLES {
            let part = self.run(move |w| {
                let b = w.switch.bridge(bridge)?;
                Some((b.version(), b.rules_from(from, RULES), w.now()))
            });
            let (version, (part, next), now) = part.await??;
            if *seen.get_or_insert(version) != version {
                break;
            }
            (from, list) = (next, [list, part].concat());
            if from >= switch::bridge::N_TABLES {
                return Some((list, now));
            }
        }
        self.run(move |w| Some((w.switch.bridge(bridge)?.rules(table), w.now()))).await?
    }

    /// Does something in the worker's thread, at some time.
    pub fn post(&self, f: impl FnOnce(&mut Worker) + Send + 'static) {
        // A worker that has ended does nothing any more.
        let _ = self.jobs.send(Box::new(f));
    }
}

/// The running worker.
pub struct Running {
    /// Its handle.
    pub handle: Handle,
    /// What it tells of.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// Packets for collectors.
    pub samples: mpsc::Receiver<Sampled>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Its parts: the handle, the thread, what it tells of, packets for collectors.
    pub fn split(self) -> (Handle, JoinHandle<()>, mpsc::UnboundedReceiver<Notice>, mpsc::Receiver<Sampled>) {
        (self.handle, self.thread, self.notices, self.samples)
    }
}

/// Stops a worker and closes its devices.
pub async fn stop(handle: &Handle, thread: JoinHandle<()>) {
    // It may have ended already.
    let _ = handle.run(|w| w.stop = true).await;
    let _ = tokio::task::spawn_blocking(move || thread.join()).await;
}

/// Starts the worker with DPDK's arguments.
///
/// # Errors
/// The environment or its memory cannot be had.
pub async fn start(arguments: Vec<String>) -> anyhow::Result<Running> {
    let (tx, rx) = oneshot::channel();
    let (job_tx, jobs) = channel();
    let (notice_tx, notices) = mpsc::unbounded_channel();
    let (sample_tx, samples) = mpsc::channel(crate::ipfix::QUEUE);
    // The thread that sets DPDK up is its main thread, the only one with a cache of packets.
    let thread = std::thread::Builder::new().name("worker".into()).spawn(move || {
        let eal = match set_up(&arguments) {
            Ok(eal) => eal,
            Err(e) => return drop(tx.send(Err(e))),
        };
        let mut worker = Worker::new(eal.clone(), jobs, notice_tx, sample_tx);
        if tx.send(Ok(eal)).is_ok() {
            worker.run();
        }
        worker.set_lanes(&[]);
    })?;
    let eal = rx.await??;
    Ok(Running { handle: Handle { jobs: job_tx, eal }, notices, samples, thread })
}

fn set_up(arguments: &[String]) -> anyhow::Result<Eal> {
    let eal = Eal::init(arguments)?;
    let p = Pool::new(&eal, "packets", crate::config::packets(arguments), ROOM)?;
    // A pool that is there already belongs to the same environment.
    let _ = set_pool(p);
    set_priority();
    Ok(eal)
}

/// Sets the calling thread's priority, and has it sleep exactly.
pub(crate) fn set_priority() {
    // A worker that waits for a processor loses packets and BFD sessions. Without the privilege it stays as it is.
    if let Err(e) = rustix::process::nice(-20) {
        tracing::debug!(target: "worker", "priority: {e}");
    }
    // The kernel would round sleeps of microseconds up by 50.
    if let Err(e) = nix::sys::prctl::set_timerslack(1000) {
        tracing::debug!(target: "worker", "timer slack: {e}");
    }
}

/// The calling thread goes on on one of these processors.
pub(crate) fn run_on(processors: &[usize]) {
    let mut set = nix::sched::CpuSet::new();
    for n in processors {
        // Numbers that the kernel's set cannot hold were not among those of the process.
        let _ = set.set(*n);
    }
    if let Err(e) = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set) {
        tracing::warn!(target: "worker", "processors {processors:?}: {e}; the worker stays where it is");
    }
}

/// A thread that sleeps the longer, the longer it had nothing to do.
#[derive(Debug)]
pub(crate) struct Idle {
    rounds: u32,
    sleep: Duration,
}

impl Default for Idle {
    fn default() -> Idle {
        Idle { rounds: 0, sleep: SLEEP }
    }
}

impl Idle {
    /// After a round that had something to do, or not. True if it slept.
    pub(crate) fn pause(&mut self, busy: bool, most: Duration) -> bool {
        if busy {
            *self = Idle::default();
            return false;
        }
        self.rounds = self.rounds.saturating_add(1);
        let sleeps = self.rounds > SPIN && !most.is_zero();
        if sleeps {
            std::thread::sleep(self.sleep.min(most));
            self.sleep = (self.sleep * 2).min(most);
        }
        sleeps
    }
}

/// The processors that the process may run on, by its main thread, which nobody moves.
pub fn processors() -> Vec<usize> {
    let main = nix::unistd::getpid();
    let Ok(set) = nix::sched::sched_getaffinity(main) else { return vec![0] };
    (0..nix::sched::CpuSet::count()).filter(|n| set.is_set(*n).unwrap_or(false)).collect()
}

impl Worker {
    /// Goes on on these processors: this thread on the first, and a lane on each of the others. Where there is nothing to
    /// choose from, this thread goes on alone, on any of `all`.
    pub fn move_to(&mut self, chosen: &[usize], all: &[usize]) {
        let (mine, others) = chosen.split_at(1.min(chosen.len()));
        run_on(if mine.is_empty() { all } else { mine });
        self.processor = mine.first().copied();
        self.set_lanes(others);
    }

    fn set_lanes(&mut self, processors: &[usize]) {
        let common = Common { eal: self.eal.clone(), started: self.started, sleep_max: self.sleep_max };
        self.lanes.set(processors, &mut self.switch, &common);
        self.assign();
    }

    /// Sets the longest sleep of all threads.
    pub fn set_sleep_max(&mut self, t: Duration) {
        self.sleep_max = t;
        self.lanes.sleep_max(t);
    }

    /// Spreads the devices' queues over the threads, one after the other. Devices whose packets this thread has to look at
    /// (the host's, and those with limits) stay with it.
    pub fn assign(&mut self) {
        let threads = 1 + self.lanes.len();
        let processors: Vec<Option<usize>> =
            std::iter::once(self.processor).chain(self.lanes.figures().map(|(p, _)| Some(p))).collect();
        let chosen = |slot: &Slot, q: u16| {
            let (_, p) = slot.affinity.iter().find(|(queue, _)| *queue == q)?;
            processors.iter().position(|own| *own == Some(*p))
        };
        // Threads that were chosen for a queue have no others, unless that leaves none for those.
        let all = self.devices.iter().flatten().filter(|s| s.polled && !s.here());
        let taken: Vec<usize> = all.flat_map(|s| s.affinity.iter().filter_map(|(q, _)| chosen(s, *q))).collect();
        let free: Vec<usize> = (0..threads).filter(|t| !self.isolate || !taken.contains(t)).collect();
        let free = if free.is_empty() { (0..threads).collect() } else { free };
        let mut queues = vec![vec![Vec::new(); self.devices.len()]; self.lanes.len()];
        let mut next = 0;
        for (i, slot) in self.devices.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            slot.mine.clear();
            slot.threads.clear();
            if !slot.polled {
                continue;
            }
            for q in 0..slot.device.port.info().queues[0] {
                let thread = match chosen(slot, q) {
                    _ if slot.here() => 0,
                    Some(t) => t,
                    None => {
                        next += 1;
                        free.get((next - 1) % free.len()).copied().unwrap_or(0)
                    }
                };
                slot.threads.push(thread);
                match thread.checked_sub(1).and_then(|l| queues.get_mut(l)?.get_mut(i)) {
                    Some(list) => list.push(q),
                    None => slot.mine.push(q),
                }
            }
        }
        let all = self.devices.iter().map(|s| {
            let s = s.as_ref()?;
            Some(Shared { port: s.device.port.clone(), queues: Vec::new(), direct: !s.here() })
        });
        self.lanes.devices(&all.collect::<Vec<_>>(), &queues);
    }

    /// Has a device's queues received from by these processors, where workers run there.
    pub fn set_affinity(&mut self, n: u32, affinity: Vec<(u16, usize)>) {
        if let Some(Some(s)) = self.devices.get_mut(n as usize)
            && s.affinity != affinity
        {
            s.affinity = affinity;
            self.assign();
        }
    }

    /// Whether threads that were chosen for some queue have no others.
    pub fn set_isolate(&mut self, on: bool) {
        if std::mem::replace(&mut self.isolate, on) != on {
            self.assign();
        }
    }

    /// The queues of a device, and the thread that receives from each: 0 is this one, 1 the first lane.
    pub fn queues(&self, n: u32) -> Vec<(u16, Option<usize>)> {
        let Some(Some(s)) = self.devices.get(n as usize) else { return Vec::new() };
        (0..s.device.port.info().queues[0]).map(|q| (q, s.threads.get(usize::from(q)).copied())).collect()
    }

    fn new(
        eal: Eal,
        jobs: Receiver<Job>,
        notices: mpsc::UnboundedSender<Notice>,
        samples: mpsc::Sender<Sampled>,
    ) -> Worker {
        let mut switch = Switch::new(CONNECTIONS);
        switch.count_late();
        Worker {
            switch,
            monitors: Monitors::default(),
            bonds: Bonds::default(),
            neighbours: Neighbours::default(),
            sleep_max: Duration::from_micros(200),
            counters: Counters::default(),
            limits: Limits::default(),
            lanes: Lanes::default(),
            eal,
            devices: Vec::new(),
            processor: None,
            isolate: true,
            shaped: Vec::new(),
            out: Outputs::default(),
            notices,
            samples,
            jobs,
            started: Instant::now(),
            stop: false,
            wishes: Vec::new(),
            next_tick: Duration::ZERO,
        }
    }

    /// The worker's clock.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes a device over; gives its number. It is polled from [`Worker::poll_device`] on.
    pub fn add_device(&mut self, device: Device) -> u32 {
        let slot = Slot::new(device);
        match self.devices.iter().position(Option::is_none) {
            Some(i) => {
                if let Some(d) = self.devices.get_mut(i) {
                    *d = Some(slot);
                }
                i as u32
            }
            None => {
                self.devices.push(Some(slot));
                self.devices.len() as u32 - 1
            }
        }
    }

    /// Limits what a device takes in and gives out.
    pub fn police(&mut self, n: u32, ingress: Rate, egress: &Egress) {
        let now = self.now();
        let Some(Some(s)) = self.devices.get_mut(n as usize) else { return };
        let before = s.here();
        if s.ingress.as_ref().is_none_or(|p| p.rate != ingress) {
            s.ingress = Policer::new(ingress, now);
        }
        s.egress = match (egress, std::mem::replace(&mut s.egress, Gate::Free)) {
            (Egress::Free, _) => Gate::Free,
            (Egress::Police(rate), Gate::Police(p)) if p.rate == *rate => Gate::Police(p),
            (Egress::Police(rate), _) => Policer::new(*rate, now).map_or(Gate::Free, |p| Gate::Police(Box::new(p))),
            (Egress::Shape(asked), gate) => {
                let mbps = Some(s.device.port.link().speed).filter(|s| (1..u32::MAX).contains(s));
                let plan = asked.plan(u64::from(mbps.unwrap_or(DEFAULT_SPEED)) * 125_000);
                Gate::Shape(match gate {
                    Gate::Shape(mut shaper) => {
                        if *shaper.plan() != plan {
                            shaper.change(plan, now);
                        }
                        shaper
                    }
                    _ => Box::new(Shaper::new(plan, now)),
                })
            }
        };
        if s.here() != before {
            self.assign();
        }
        self.find_shaped();
    }

    fn find_shaped(&mut self) {
        let shaped = |s: &Option<Slot>| s.as_ref().is_some_and(|s| matches!(s.egress, Gate::Shape(_)));
        self.shaped = self.devices.iter().enumerate().filter(|(_, s)| shaped(s)).map(|(i, _)| i).collect();
    }

    fn slot(&self, n: u32) -> Option<&Slot> {
        self.devices.get(n as usize)?.as_ref()
    }

    /// What a device gives out at most, if a policer sees to it.
    pub fn policer(&self, n: u32) -> Option<Rate> {
        match &self.slot(n)?.egress {
            Gate::Police(p) => Some(p.rate),
            _ => None,
        }
    }

    /// A device's queues.
    pub fn shaper(&self, n: u32) -> Option<&Shaper<Mbuf>> {
        match &self.slot(n)?.egress {
            Gate::Shape(s) => Some(s),
            _ => None,
        }
    }

    /// Packets that a device's limits dropped: taken in, given out.
    pub fn policed(&self, n: u32) -> [u64; 2] {
        let Some(slot) = self.slot(n) else { return [0; 2] };
        let egress = match &slot.egress {
            Gate::Free => 0,
            Gate::Police(p) => p.dropped,
            Gate::Shape(s) => s.dropped(),
        };
        [slot.ingress.as_ref().map_or(0, |p| p.dropped), egress]
    }

    /// Puts a device in the place that it, or another, had.
    pub fn put_back(&mut self, n: u32, device: Device) {
        if let Some(place) = self.devices.get_mut(n as usize) {
            *place = Some(Slot::new(device));
        }
        self.find_shaped();
    }

    /// Begins to receive from a device.
    pub fn poll_device(&mut self, n: u32) {
        if let Some(Some(s)) = self.devices.get_mut(n as usize) {
            s.polled = true;
        }
        self.assign();
    }

    /// Gives a device back, for another thread to close.
    pub fn remove_device(&mut self, n: u32) -> Option<Device> {
        let device = self.devices.get_mut(n as usize).and_then(Option::take).map(|s| s.device)?;
        self.assign();
        self.find_shaped();
        if !Lanes::let_go(&device.port) {
            tracing::error!(target: "worker", "a worker keeps device {}", device.port.name());
        }
        Some(device)
    }

    /// A device.
    pub fn device(&self, n: u32) -> Option<&Device> {
        self.devices.get(n as usize)?.as_ref().map(|s| &s.device)
    }

    fn run(&mut self) {
        let mut batch: Vec<(u32, Frame)> = Vec::new();
        let mut idle = Idle::default();
        let mut last = self.now();
        while !self.stop {
            let mut busy = self.do_jobs();
            let now = self.now();
            self.counters.longest_round = self.counters.longest_round.max(now.saturating_sub(last));
            last = now;
            self.counters.polls += 1;
            for (i, slot) in self.devices.iter_mut().enumerate() {
                let Some(slot) = slot.as_mut().filter(|s| s.polled) else { continue };
                let Slot { device, mine, ingress, .. } = slot;
                for queue in mine.iter() {
                    let broken = device.port.receive(*queue, |m| {
                        if ingress.as_mut().is_none_or(|p| p.pass(m.data().len(), now)) {
                            batch.push((i as u32, Frame(m)));
                        }
                    });
                    self.counters.oversize += broken as u64;
                }
            }
            if !batch.is_empty() {
                busy = true;
                self.counters.received += batch.len() as u64;
                self.switch.process(&mut batch, now, &mut self.out);
            }
            busy |= self.lanes.serve(&mut self.switch, now, &mut self.out);
            self.keep_time(now);
            self.deliver(now);
            // A few at a time: all at once would stop packets for milliseconds.
            self.switch.conntrack.sweep(SWEEP, now);
            if busy {
                self.counters.busy += self.now().saturating_sub(now);
            } else {
                self.counters.idle += 1;
            }
            let most = self.queues_wait(now).map_or(self.sleep_max, |t| t.min(self.sleep_max));
            self.counters.sleeps += u64::from(idle.pause(busy, most));
        }
    }

    fn do_jobs(&mut self) -> bool {
        let mut any = false;
        let begun = self.now();
        for _ in 0..JOBS {
            if any && self.now().saturating_sub(begun) > JOBS_TIME {
                break;
            }
            let Ok(job) = self.jobs.try_recv() else { break };
            if !any {
                // It may want to know what was counted.
                self.switch.count();
            }
            let start = self.now();
            job(self);
            self.counters.jobs += 1;
            self.counters.longest_job = self.counters.longest_job.max(self.now().saturating_sub(start));
            any = true;
        }
        any
    }

    fn keep_time(&mut self, now: Duration) {
        let mut wishes = std::mem::take(&mut self.wishes);
        self.monitors.poll(now, &mut wishes);
        for w in wishes.drain(..) {
            match w {
                Wish::Send(bridge, port, frame) => {
                    let actions = vec![Action::Output { port, max_len: 0 }];
                    self.inject(bridge, Match::new(), frame, actions);
                }
                Wish::Status(bridge, port, status) => {
                    self.switch.set_live(bridge, port, status.forwarding);
                    let _ = self.notices.send(Notice::Bfd(bridge, port, status));
                }
            }
        }
        self.wishes = wishes;
        for (bridge, port, frame) in self.bonds.poll(&mut self.switch, now) {
            self.inject(bridge, Match::new(), frame, vec![Action::Output { port, max_len: 0 }]);
        }
        if now >= self.next_tick {
            self.next_tick = now + Duration::from_secs(1);
            self.switch.tick(now, &mut self.out);
            if let Some(processors) = self.lanes.ended() {
                self.set_lanes(&processors);
            }
            let (ask, forget) = self.neighbours.age(now);
            for a in forget {
                let kernel = self.neighbours.of_kernel(a);
                self.switch.underlay.set_neighbour(a, kernel);
            }
            for a in ask {
                self.ask(a, now);
            }
        }
    }

    /// Sends a packet of our own through actions.
    fn inject(&mut self, bridge: BridgeId, metadata: Match, packet: Vec<u8>, actions: Vec<Action>) {
        let now = self.now();
        self.packet_out(bridge, &PacketOut { buffer_id: u32::MAX, metadata, actions, packet }, now);
    }

    /// Executes a packet-out.
    pub fn packet_out(&mut self, bridge: BridgeId, m: &PacketOut, now: Duration) {
        match pool().and_then(Pool::allocate) {
            Some(like) => self.switch.packet_out(bridge, m, &Frame(like), now, &mut self.out),
            None => self.switch.drops.add(switch::DropReason::NoBuffer),
        }
    }

    /// Lets a paused packet go on.
    ///
    /// # Errors
    /// The continuation is not this switch's.
    pub fn resume(&mut self, m: &openflow_rs::message::PacketIn) -> Result<(), switch::SwitchError> {
        let now = self.now();
        match pool().and_then(Pool::allocate) {
            Some(like) => self.switch.resume(m, &Frame(like), now, &mut self.out),
            None => {
                self.switch.drops.add(switch::DropReason::NoBuffer);
                Ok(())
            }
        }
    }

    /// Asks the network for a next hop.
    fn ask(&mut self, a: IpAddr, now: Duration) {
        if !self.neighbours.want(a, now) {
            return;
        }
        let Some(route) = self.switch.underlay.route(a) else { return };
        let (mac, source) = (route.source_mac, route.source);
        let request = match (source, a) {
            (IpAddr::V4(s), IpAddr::V4(t)) => build::arp_request(mac, s, t),
            (IpAddr::V6(s), IpAddr::V6(t)) => build::nd_ns(mac, s, t),
            _ => return,
        };
        match route.egress.clone() {
            switch::Egress::Bridge(name) => {
                let Some(b) = self.switch.bridge_by_name(&name) else { return };
                let from = Match::new().with(FieldId::InPort, u128::from(PortNo::LOCAL.0));
                self.inject(b, from, request, vec![Action::Output { port: PortNo::TABLE, max_len: 0 }]);
            }
            switch::Egress::Device(d) => {
                if let Some(p) = pool().and_then(|p| p.packet(&request)) {
                    self.out.packets.push((d, Frame(p)));
                }
            }
        }
    }

    /// Packets that wait in queues of all devices.
    fn held(&self) -> usize {
        let of = |i: &usize| self.shaper(*i as u32).map_or(0, Shaper::held);
        self.shaped.iter().map(of).sum()
    }

    /// How long no packet may leave the queues of devices; none if none waits.
    fn queues_wait(&mut self, now: Duration) -> Option<Duration> {
        let Worker { shaped, devices, .. } = self;
        let waits = shaped.iter().filter_map(|i| match devices.get_mut(*i) {
            Some(Some(Slot { egress: Gate::Shape(s), .. })) => s.wait(now),
            _ => None,
        });
        waits.min()
    }

    /// Brings out what the switch produced: events first, as they may produce packets.
    fn deliver(&mut self, now: Duration) {
        // Two rounds: what an event's packet leads to, a request for a next hop, is an event again.
        for _ in 0..3 {
            if self.out.events.is_empty() {
                break;
            }
            for e in std::mem::take(&mut self.out.events) {
                match e {
                    Event::NeighbourWanted(a) => self.ask(a, now),
                    Event::Bfd { bridge, port, packet, .. } => {
                        self.monitors.receive(bridge, port, &packet, now);
                        // What the packet changed is told at once.
                        self.keep_time(now);
                    }
                    Event::Slow { bridge, port, packet } => {
                        self.bonds.receive(bridge, port, &packet, now);
                        self.keep_time(now);
                    }
                    Event::PacketIn { bridge, ref packet_in, .. }
                        if !self.limits.pass(bridge, packet_in.reason, now) => {}
                    Event::Sample { bridge, sample } => {
                        self.counters.samples_lost += u64::from(self.samples.try_send((bridge, sample)).is_err());
                    }
                    e => drop(self.notices.send(Notice::Event(e))),
                }
            }
        }
        if self.out.packets.is_empty() && self.shaped.is_empty() {
            return;
        }
        let mut room = WAITING.saturating_sub(self.held());
        for (to, Frame(m)) in self.out.packets.drain(..) {
            let (d, queue) = switch::destination(to);
            let Some(Some(slot)) = self.devices.get_mut(d as usize) else {
                self.counters.gone += 1;
                continue;
            };
            if slot.device.internal
                && let Some((a, mac)) = self.neighbours.snoop(m.data(), now)
            {
                self.switch.underlay.set_neighbour(a, Some(mac));
            }
            match &mut slot.egress {
                Gate::Free => slot.queue.push(m),
                Gate::Police(p) => {
                    if p.pass(m.len(), now) {
                        slot.queue.push(m);
                    }
                }
                Gate::Shape(s) => {
                    let n = m.len();
                    if s.put(queue, m, n, room) {
                        room -= 1;
                    } else {
                        self.switch.drops.add(switch::DropReason::QueueFull);
                    }
                }
            }
        }
        for i in &self.shaped {
            if let Some(Some(Slot { egress: Gate::Shape(s), queue, .. })) = self.devices.get_mut(*i) {
                queue.extend(std::iter::from_fn(|| s.take(now)).take(BURST));
            }
        }
        for slot in self.devices.iter_mut().flatten().filter(|s| !s.queue.is_empty()) {
            self.counters.sent += slot.device.port.transmit(0, &mut slot.queue) as u64;
            self.counters.full += slot.queue.len() as u64;
            slot.device.full += slot.queue.len() as u64;
            slot.queue.clear();
        }
    }
}
