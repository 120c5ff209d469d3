//! More workers: threads that repeat flows of the worker's switch ([`switch::FastPath`]).
//!
//! ```text
//!  device queues ─► lane 1 ─► device queues        packets without a flow, packets for the host, counters
//!                     └────────────────────────────────────────────────────────────────► worker
//!                   flows, devices                                                      (switch, BFD, jobs)
//!                     ◄────────────────────────────────────────────────────────────────────┘
//! ```
//! Lanes wait for nobody: what they give to the worker lies in a list until that takes it. The worker takes some of it in
//! every round, as from a device, and what is too much is dropped and counted.

use crate::frame::Frame;
use crate::worker::Picker;
use dpdk_rs::{BURST, Eal, Mbuf, Port};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use switch::{FastPath, Flow, Outputs, Shown, Sums, Switch, View};
use tokio::sync::oneshot;

/// Packets without a flow that wait for the worker at most.
const WAITING: usize = 4096;
/// BFD's packets may be as many more: no flood of others makes a session end.
const WAITING_BFD: usize = WAITING + 1024;
/// Lists of lanes that the worker takes in a round.
const TAKEN: usize = 8;
/// How often lanes tell what they counted.
const REPORT: Duration = Duration::from_millis(5);
/// How long the worker waits for lanes to let go of a device.
const LEAVE: Duration = Duration::from_secs(5);

/// A device as lanes see it.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Its port.
    pub port: Arc<Port>,
    /// The queues that the lane receives from.
    pub queues: Vec<u16>,
    /// Lanes may send through it; else the worker does, which has to look at its packets.
    pub direct: bool,
}

/// What a lane counts, in the order of [`NAMES`].
#[derive(Clone, Copy)]
enum What {
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

/// Names of figures.
pub const NAMES: [&str; 9] = [
    "polls",
    "idle polls",
    "packets received",
    "packets sent",
    "packets without a flow",
    "packets for full queues",
    "packets longer than a buffer",
    "packets for devices that are gone",
    "nanoseconds busy",
];

/// What a lane counts: it writes, others read.
#[derive(Debug, Default)]
struct Counters([AtomicU64; NAMES.len()]);

impl Counters {
    fn add(&self, what: What, n: usize) {
        if let Some(c) = self.0.get(what as usize) {
            c.store(c.load(Relaxed).wrapping_add(n as u64), Relaxed);
        }
    }

    fn read(&self) -> [u64; NAMES.len()] {
        std::array::from_fn(|i| self.0.get(i).map_or(0, |c| c.load(Relaxed)))
    }
}

/// To a lane.
enum Down {
    Flow(Box<Flow>),
    View(Box<View>),
    Devices(Vec<Option<Shared>>),
    SleepMax(Duration),
    /// Observes one of so many packets, or none.
    Observe(Option<u32>),
    /// Tells of its flows.
    Show(oneshot::Sender<Vec<Shown>>),
    Stop,
}

/// From a lane.
enum Up {
    /// From the lane with this number: the switch has to walk them.
    Missed(u64, Vec<(u32, Frame)>),
    /// The worker has to observe them.
    Picked(Vec<(u32, Frame)>),
    /// The worker has to send them.
    Deliver(Vec<(u32, Frame)>),
    Sums(Box<Sums>),
}

/// A running lane.
struct Running {
    number: u64,
    processor: usize,
    to: Sender<Down>,
    thread: JoinHandle<()>,
    counters: Arc<Counters>,
    /// What they were when they were cleared.
    cleared: [u64; NAMES.len()],
}

/// The lanes of a worker.
pub struct Lanes {
    list: Vec<Running>,
    from: Receiver<Up>,
    up: Sender<Up>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    next: u64,
    /// The view that they have.
    seen: u64,
    flows: Vec<Flow>,
    /// One of so many packets is observed, if any.
    observed: Option<u32>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        let (up, from) = channel();
        Lanes {
            list: Vec::new(),
            from,
            up,
            waiting: Arc::default(),
            lost: Arc::default(),
            next: 1,
            seen: 0,
            flows: Vec::new(),
            observed: None,
        }
    }
}

/// What lanes share with their worker.
pub struct Common {
    /// The environment.
    pub eal: Eal,
    /// The start of the worker's clock.
    pub started: Instant,
    /// Longest sleep.
    pub sleep_max: Duration,
}

impl Lanes {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True without lanes.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The processor of each, and what it counted since that was cleared, in the order of [`NAMES`].
    pub fn figures(&self) -> impl Iterator<Item = (usize, [u64; NAMES.len()])> {
        self.list.iter().map(|l| {
            let now = l.counters.read();
            (l.processor, std::array::from_fn(|i| now[i].wrapping_sub(l.cleared[i])))
        })
    }

    /// Counts from zero.
    pub fn clear_figures(&mut self) {
        self.list.iter_mut().for_each(|l| l.cleared = l.counters.read());
    }

    /// The processors, if a lane has ended by itself: its queues wait for another one.
    pub fn ended(&self) -> Option<Vec<usize>> {
        let ended = self.list.iter().any(|l| l.thread.is_finished());
        ended.then(|| self.list.iter().map(|l| l.processor).collect())
    }

    /// Has a lane on each of these processors, and no others. Those that were there and stay go on.
    pub fn set(&mut self, processors: &[usize], switch: &mut Switch, common: &Common) {
        let (stay, go): (Vec<Running>, Vec<Running>) = std::mem::take(&mut self.list)
            .into_iter()
            .partition(|l| processors.contains(&l.processor) && !l.thread.is_finished());
        self.list = stay;
        for l in go {
            // One that has ended needs no telling.
            let _ = l.to.send(Down::Stop);
            if l.thread.join().is_err() {
                tracing::error!(target: "worker", "the worker of processor {} had ended", l.processor);
            }
        }
        for p in processors {
            if self.list.iter().any(|l| l.processor == *p) {
                continue;
            }
            match self.start(*p, switch.fast_path(), common) {
                Ok(l) => self.list.push(l),
                Err(e) => tracing::error!(target: "worker", "no worker for processor {p}: {e}"),
            }
        }
        self.list.sort_by_key(|l| l.processor);
    }

    fn start(&mut self, processor: usize, lane: FastPath, common: &Common) -> std::io::Result<Running> {
        let (to, from) = channel();
        let number = self.next;
        self.next += 1;
        let counters = Arc::new(Counters::default());
        let thread = Thread {
            number,
            lane,
            from,
            up: self.up.clone(),
            waiting: self.waiting.clone(),
            lost: self.lost.clone(),
            counters: counters.clone(),
            devices: Vec::new(),
            picker: self.observed.map(Picker::new),
            picked: Vec::new(),
            started: common.started,
            sleep_max: common.sleep_max,
        };
        let eal = common.eal.clone();
        let thread = std::thread::Builder::new().name(format!("worker-{processor}")).spawn(move || {
            // Without a place of its own it has no cache of free packets, and is slower.
            let _place = eal.register_thread();
            crate::worker::run_on(&[processor]);
            crate::worker::set_priority();
            thread.run();
        })?;
        Ok(Running { number, processor, to, thread, counters, cleared: Default::default() })
    }

    /// Tells the lanes which devices there are; `queues` are those of each lane, by device.
    pub fn devices(&self, all: &[Option<Shared>], queues: &[Vec<Vec<u16>>]) {
        for (l, queues) in self.list.iter().zip(queues) {
            let of = |(i, d): (usize, &Option<Shared>)| {
                let queues = queues.get(i).cloned().unwrap_or_default();
                d.clone().map(|d| Shared { queues, ..d })
            };
            let _ = l.to.send(Down::Devices(all.iter().enumerate().map(of).collect()));
        }
    }

    /// Asks all lanes for their flows: the processor of each, and where it answers.
    pub fn ask_flows(&self) -> Vec<(usize, oneshot::Receiver<Vec<Shown>>)> {
        let ask = |l: &Running| {
            let (tx, rx) = oneshot::channel();
            let _ = l.to.send(Down::Show(tx));
            (l.processor, rx)
        };
        self.list.iter().map(ask).collect()
    }

    /// Sets the longest sleep.
    pub fn sleep_max(&self, t: Duration) {
        for l in &self.list {
            let _ = l.to.send(Down::SleepMax(t));
        }
    }

    /// Has lanes observe one of so many packets, or none.
    pub fn observe(&mut self, rate: Option<u32>) {
        self.observed = rate;
        for l in &self.list {
            let _ = l.to.send(Down::Observe(rate));
        }
    }

    /// Does what lanes want: walks, packets to send, counters. True if there was something.
    pub fn serve(&mut self, switch: &mut Switch, now: Duration, out: &mut Outputs<Frame>) -> bool {
        let mut any = false;
        for _ in 0..TAKEN {
            let Ok(up) = self.from.try_recv() else { break };
            any = true;
            match up {
                Up::Missed(number, packets) => {
                    self.waiting.fetch_sub(packets.len(), Relaxed);
                    switch.walk_for(packets, now, out, &mut self.flows);
                    let lane = self.list.iter().find(|l| l.number == number);
                    for f in self.flows.drain(..) {
                        let _ = lane.map(|l| l.to.send(Down::Flow(Box::new(f))));
                    }
                }
                Up::Picked(packets) => {
                    self.waiting.fetch_sub(packets.len(), Relaxed);
                    packets.into_iter().for_each(|(d, p)| switch.observe(d, p, now, out));
                }
                Up::Deliver(packets) => out.packets.extend(packets),
                Up::Sums(s) => switch.settle_sums(*s, now),
            }
        }
        if !self.list.is_empty()
            && let Some(view) = switch.view(&mut self.seen)
        {
            for l in &self.list {
                let _ = l.to.send(Down::View(Box::new(view.clone())));
            }
        }
        if self.lost.load(Relaxed) != 0 {
            switch.upcalls_lost(self.lost.swap(0, Relaxed));
        }
        any
    }

    /// Waits until no lane has a device any more; false if one keeps it.
    pub fn let_go(port: &Arc<Port>) -> bool {
        let start = Instant::now();
        while Arc::strong_count(port) > 1 {
            if start.elapsed() > LEAVE {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        true
    }
}

/// A lane's thread.
struct Thread {
    number: u64,
    lane: FastPath,
    from: Receiver<Down>,
    up: Sender<Up>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    counters: Arc<Counters>,
    devices: Vec<Option<(Shared, Vec<Mbuf>)>>,
    picker: Option<Picker>,
    /// Packets that the worker is to observe.
    picked: Vec<(u32, Frame)>,
    started: Instant,
    sleep_max: Duration,
}

/// Whether it is a packet of BFD in a tunnel (RFC 5881, 5883: UDP ports 3784 and 4784), as far as its headers tell.
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

impl Thread {
    fn run(mut self) {
        let mut batch: Vec<(u32, Frame)> = Vec::with_capacity(BURST);
        let mut missed = Vec::new();
        let mut out = Outputs::default();
        let mut idle = crate::worker::Idle::default();
        let mut reported = Duration::ZERO;
        loop {
            while let Ok(d) = self.from.try_recv() {
                let now = self.started.elapsed();
                match d {
                    Down::Flow(f) => self.lane.learn(*f, now),
                    Down::View(v) => self.lane.look(*v),
                    Down::Devices(list) => {
                        self.devices = list.into_iter().map(|d| d.map(|d| (d, Vec::new()))).collect();
                    }
                    Down::SleepMax(t) => self.sleep_max = t,
                    Down::Observe(rate) => self.picker = rate.map(Picker::new),
                    // Who asked may have gone.
                    Down::Show(to) => drop(to.send(self.lane.shown().collect())),
                    Down::Stop => return self.report(),
                }
            }
            let now = self.started.elapsed();
            self.receive(&mut batch);
            self.counters.add(What::Polls, 1);
            self.hand_over_picked();
            let busy = !batch.is_empty();
            if busy {
                self.counters.add(What::Received, batch.len());
                self.lane.process(&mut batch, now, &mut out, &mut missed);
                self.hand_over(&mut missed);
                self.deliver(&mut out);
                self.counters.add(What::Busy, self.started.elapsed().saturating_sub(now).as_nanos() as usize);
            } else {
                self.counters.add(What::Idle, 1);
            }
            if now.saturating_sub(reported) > REPORT {
                reported = now;
                self.report();
            }
            idle.pause(busy, self.sleep_max);
        }
    }

    fn report(&mut self) {
        if let Some(s) = self.lane.sums() {
            // Without a worker there is nobody who wants to know.
            let _ = self.up.send(Up::Sums(Box::new(s)));
        }
    }

    fn receive(&mut self, batch: &mut Vec<(u32, Frame)>) {
        let Thread { devices, picker, picked, .. } = self;
        for (i, d) in devices.iter().enumerate() {
            let Some((d, _)) = d else { continue };
            for q in &d.queues {
                let broken = d.port.receive(*q, |m| {
                    let to = if picker.as_mut().is_some_and(Picker::pick) { &mut *picked } else { &mut *batch };
                    to.push((i as u32, Frame(m)));
                });
                if broken != 0 {
                    self.counters.add(What::Oversize, broken);
                }
            }
        }
    }

    /// Gives the worker what it is to observe.
    fn hand_over_picked(&mut self) {
        if self.picked.is_empty() {
            return;
        }
        let list = std::mem::take(&mut self.picked);
        self.counters.add(What::Received, list.len());
        if self.waiting.load(Relaxed) + list.len() > WAITING {
            self.lost.fetch_add(list.len() as u64, Relaxed);
            return;
        }
        self.waiting.fetch_add(list.len(), Relaxed);
        let _ = self.up.send(Up::Picked(list));
    }

    /// Gives the worker what there is no flow for.
    fn hand_over(&mut self, missed: &mut Vec<(u32, Frame)>) {
        if missed.is_empty() {
            return;
        }
        let waiting = self.waiting.load(Relaxed);
        let mut list = std::mem::take(missed);
        if waiting + list.len() > WAITING {
            let before = list.len();
            let room = WAITING_BFD.saturating_sub(waiting);
            list.retain(|(_, p)| is_bfd(p.0.data()));
            list.truncate(room);
            self.lost.fetch_add((before - list.len()) as u64, Relaxed);
        }
        self.waiting.fetch_add(list.len(), Relaxed);
        self.counters.add(What::Missed, list.len());
        let _ = self.up.send(Up::Missed(self.number, list));
    }

    fn deliver(&mut self, out: &mut Outputs<Frame>) {
        let mut others = Vec::new();
        for (to, Frame(m)) in out.packets.drain(..) {
            match self.devices.get_mut(switch::destination(to).0 as usize) {
                Some(Some((s, queue))) if s.direct => queue.push(m),
                Some(Some(_)) => others.push((to, Frame(m))),
                _ => self.counters.add(What::Gone, 1),
            }
        }
        if !others.is_empty() {
            let _ = self.up.send(Up::Deliver(others));
        }
        for (s, queue) in self.devices.iter_mut().flatten().filter(|(_, q)| !q.is_empty()) {
            let [_, most] = s.port.info().queues;
            self.counters.add(What::Sent, s.port.transmit((self.number % u64::from(most.max(1))) as u16, queue));
            self.counters.add(What::Full, queue.len());
            queue.clear();
        }
    }
}
