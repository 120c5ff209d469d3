//! The worker: one thread that polls all devices, runs packets through the switch to completion, and keeps BFD's time.
//! Everything else asks it for things by jobs, which it does between bursts.

use super::devices::{Gate, Slot};
use super::{Handle, Idle, Job, Picker, run_on, set_priority};
use crate::ports::bfd::{BfdStatus, Monitors, Wish};
use crate::ports::bond::Bonds;
use crate::ports::frame::{Frame, memory, set_memory};
use crate::pmd::fast::{Common, Lanes};
use crate::pmd::packet_in_limit::Limits;
use crate::ports::neighbours::Neighbours;
use crate::ports::qos::shaper::Shaper;
use dpdk_rs::{BURST, Eal, Memory};
use openflow_rs::action::Action;
use openflow_rs::message::PacketOut;
use openflow_rs::{FieldId, Match, PortNo};
use packet::build;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use switch::{BridgeId, Event, Outputs, Switch};
use tokio::sync::{mpsc, oneshot};

/// Connections that are tracked at most, in all zones, if nothing else is said: as many as in Open vSwitch.
const CONNECTIONS: usize = 3_000_000;
/// Connections for which there is room where an operator asks for more (`dpctl/ct-set-maxconns`).
const ROOM: usize = 1 << 24;
/// Connections looked at between two bursts for whether their time is over, and how often: all of them in a second.
const SWEEP: usize = 64;
const SWEEP_EVERY: Duration = Duration::from_micros(16);
/// Jobs between two bursts, and the time after which the rest has to wait for the next one.
const JOBS: usize = 32;
const JOBS_TIME: Duration = Duration::from_micros(200);
/// Samples that wait for the exporters at most; more are dropped, and counted.
const SAMPLES: usize = 4096;
/// Packets that wait in queues of all devices at most: half of the least pool.
const WAITING: usize = 8192;

/// What collectors are to hear of.
#[derive(Debug)]
pub enum Seen {
    /// A packet that a `sample` action chose.
    Sample(BridgeId, Box<switch::Sample>),
    /// A packet that passed; one of so many is observed.
    Passage(BridgeId, u32, Box<switch::Passage>),
}

/// What the worker tells of.
#[derive(Debug)]
pub enum Notice {
    /// An event of the engine for connections: a packet-in or a flow that went.
    Event(Event),
    /// A BFD session's status changed.
    Bfd(BridgeId, PortNo, BfdStatus),
    /// A port began or ceased to carry packets.
    Live(BridgeId, Box<switch::Port>),
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
    /// Zones have limits that the database says: commands do not change any.
    pub zones_of_database: bool,
    /// Other threads that switch packets.
    pub lanes: Lanes,
    pub(super) eal: Eal,
    pub(super) devices: Vec<Option<Slot>>,
    /// Where this thread runs, if that was chosen.
    pub(super) processor: Option<usize>,
    /// Threads that were chosen for some queue have no others.
    pub(super) isolate: bool,
    /// Devices with queues.
    pub(super) shaped: Vec<usize>,
    out: Outputs<Frame>,
    notices: mpsc::UnboundedSender<Notice>,
    samples: mpsc::Sender<Seen>,
    /// Chooses the packets that are observed.
    picker: Option<Picker>,
    jobs: Receiver<Job>,
    started: Instant,
    stop: bool,
    wishes: Vec<Wish>,
    /// What BFD or LACP say of ports may have changed ([`Worker::follow_inputs`]).
    inputs_due: bool,
    next_tick: Duration,
    /// Fragments of datagrams that were too long, IPv4 and IPv6, as last told.
    big: [u64; 2],
    /// Somebody wakes this thread when a device of the kernel has something to read.
    wakes: bool,
}

/// The running worker.
pub struct Running {
    /// Its handle.
    pub handle: Handle,
    /// What it tells of.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// Packets for collectors.
    pub samples: mpsc::Receiver<Seen>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Its parts: the handle, the thread, what it tells of, packets for collectors.
    pub fn split(self) -> (Handle, JoinHandle<()>, mpsc::UnboundedReceiver<Notice>, mpsc::Receiver<Seen>) {
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
    let (sample_tx, samples) = mpsc::channel(SAMPLES);
    // The thread that sets DPDK up is its main thread, the only one with a cache of packets.
    let thread = std::thread::Builder::new().name("worker".into()).spawn(move || {
        let eal = match set_up(&arguments) {
            Ok(eal) => eal,
            Err(e) => return drop(tx.send(Err(e))),
        };
        let mut worker = Worker::new(eal.clone(), jobs, notice_tx, sample_tx);
        if tx.send(Ok(eal)).is_ok() {
            // Where there is nothing to wait with, the worker polls.
            worker.wakes = dpdk_rs::wake(std::thread::current()).is_ok();
            worker.run();
        }
        worker.set_lanes(&[]);
    })?;
    let eal = rx.await??;
    let handle = Handle { jobs: job_tx, thread: thread.thread().clone(), eal };
    Ok(Running { handle, notices, samples, thread })
}

fn set_up(arguments: &[String]) -> anyhow::Result<Eal> {
    let eal = Eal::init(arguments)?;
    let (packets, share) = crate::config::dpdk::packets(arguments);
    let m = Memory::new(&eal, packets, share)?;
    // Memory that is there already belongs to the same environment.
    let _ = set_memory(m);
    set_priority();
    Ok(eal)
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

    /// Has each thread's flow cache hold so many flows at most.
    pub fn limit_flows(&mut self, most: Option<usize>) {
        if self.switch.limit_flows(most) {
            let processors: Vec<usize> = self.lanes.figures().map(|(processor, _)| processor).collect();
            self.set_lanes(&[]);
            self.set_lanes(&processors);
        }
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

    fn new(
        eal: Eal,
        jobs: Receiver<Job>,
        notices: mpsc::UnboundedSender<Notice>,
        samples: mpsc::Sender<Seen>,
    ) -> Worker {
        let mut switch = Switch::new(ROOM);
        switch.conntrack.set_most(CONNECTIONS);
        switch.count_late();
        Worker {
            switch,
            monitors: Monitors::default(),
            bonds: Bonds::default(),
            neighbours: Neighbours::default(),
            sleep_max: Duration::from_micros(200),
            counters: Counters::default(),
            limits: Limits::default(),
            zones_of_database: false,
            lanes: Lanes::default(),
            eal,
            // Number 0 is the datapath's own, as in Open vSwitch.
            devices: vec![None],
            processor: None,
            isolate: true,
            shaped: Vec::new(),
            out: Outputs::default(),
            notices,
            samples,
            picker: None,
            jobs,
            started: Instant::now(),
            stop: false,
            wishes: Vec::new(),
            inputs_due: false,
            next_tick: Duration::ZERO,
            big: [0; 2],
            wakes: false,
        }
    }

    /// The worker's clock.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn run(&mut self) {
        let (mut batch, mut picked): (Vec<(u32, Frame)>, _) = (Vec::new(), Vec::new());
        let mut idle = Idle::default();
        let mut last = self.now();
        let mut swept = last;
        // When the round before ended, if that is as good as now.
        let mut next = None;
        while !self.stop {
            let mut busy = self.do_jobs();
            let now = next.take().filter(|_| !busy).unwrap_or_else(|| self.now());
            self.counters.longest_round = self.counters.longest_round.max(now.saturating_sub(last));
            last = now;
            self.counters.polls += 1;
            let Worker { devices, picker, .. } = self;
            for (i, slot) in devices.iter_mut().enumerate() {
                let Some(slot) = slot.as_mut().filter(|s| s.polled) else { continue };
                let Slot { device, mine, ingress, .. } = slot;
                for queue in mine.iter() {
                    if ingress.is_none() && picker.is_none() {
                        let broken = device.port.receive(*queue, |m| batch.push((i as u32, Frame(m))));
                        self.counters.oversize += broken as u64;
                        continue;
                    }
                    let broken = device.port.receive(*queue, |m| {
                        if ingress.as_mut().is_none_or(|p| p.pass(m.data().len(), now)) {
                            if picker.as_mut().is_some_and(Picker::pick) {
                                picked.push(batch.len());
                            }
                            batch.push((i as u32, Frame(m)));
                        }
                    });
                    self.counters.oversize += broken as u64;
                }
            }
            if !batch.is_empty() {
                busy = true;
                self.counters.received += batch.len() as u64;
                self.process(&mut batch, &mut picked, now);
            }
            busy |= self.lanes.serve(&mut self.switch, now, &mut self.out);
            self.keep_time(now);
            self.deliver(now);
            // A few at a time: all at once would stop packets for milliseconds.
            if now.saturating_sub(swept) >= SWEEP_EVERY {
                swept = now;
                self.switch.conntrack.sweep(SWEEP, now);
            }
            if busy {
                let end = self.now();
                self.counters.busy += end.saturating_sub(now);
                next = Some(end);
            } else {
                self.counters.idle += 1;
            }
            if !busy && idle.is_quiet() && self.wait() {
                self.counters.sleeps += 1;
                continue;
            }
            // What has a time of its own is not slept through.
            let due = self.next_due().saturating_sub(self.now());
            let most = self.queues_wait(now).map_or(self.sleep_max, |t| t.min(self.sleep_max)).min(due);
            self.counters.sleeps += u64::from(idle.pause(busy, most));
        }
    }

    /// Waits until a packet or a job comes, or something is due. False if that cannot be: a device has to be polled, or other threads
    /// have something for this one at any time, or nobody wants this thread to sleep.
    fn wait(&mut self) -> bool {
        if !self.wakes || self.sleep_max.is_zero() || !self.lanes.is_empty() || !self.shaped.is_empty() {
            return false;
        }
        let polled = || self.devices.iter().flatten().filter(|s| s.polled).map(|s| &s.device.port);
        // What comes from here on wakes this thread, and what came before is looked for now.
        if !polled().all(|p| p.arm()) || polled().any(|p| p.ready()) {
            return false;
        }
        std::thread::park_timeout(self.next_due().saturating_sub(self.now()));
        true
    }

    /// When something has to be done without a packet or a job.
    fn next_due(&self) -> Duration {
        [self.monitors.due(), self.bonds.next_due()].into_iter().flatten().fold(self.next_tick, Duration::min)
    }

    /// Observes one of so many packets, or none.
    pub fn observe(&mut self, rate: Option<u32>) {
        self.picker = rate.map(Picker::new);
        self.lanes.observe(rate);
    }

    fn tell(&mut self, seen: Seen) {
        self.counters.samples_lost += u64::from(self.samples.try_send(seen).is_err());
    }

    /// Has the switch take in what was received, in its order; some packets are observed.
    fn process(&mut self, batch: &mut Vec<(u32, Frame)>, picked: &mut Vec<usize>, now: Duration) {
        let mut first = 0;
        for at in picked.drain(..) {
            let mut rest = batch.split_off(at.saturating_sub(first).min(batch.len()));
            self.switch.process(batch, now, &mut self.out);
            let behind = rest.split_off(1.min(rest.len()));
            for (device, p) in rest {
                self.switch.observe(device, p, now, &mut self.out);
            }
            (*batch, first) = (behind, at + 1);
        }
        self.switch.process(batch, now, &mut self.out);
    }

    fn do_jobs(&mut self) -> bool {
        let mut begun = None;
        for _ in 0..JOBS {
            let Ok(job) = self.jobs.try_recv() else { break };
            let start = self.now();
            if begun.is_none() {
                // It may want to know what was counted.
                self.switch.count();
            }
            job(self);
            let end = self.now();
            self.counters.jobs += 1;
            self.counters.longest_job = self.counters.longest_job.max(end.saturating_sub(start));
            if end.saturating_sub(*begun.get_or_insert(start)) > JOBS_TIME {
                break;
            }
        }
        begun.is_some()
    }

    fn keep_time(&mut self, now: Duration) {
        let mut wishes = std::mem::take(&mut self.wishes);
        let Worker { monitors, switch, .. } = self;
        let received = |bridge, port| switch.bridge(bridge).and_then(|b| b.ports.get(&port)).map_or(0, |p| p.stats[0]);
        monitors.poll(now, received, &mut wishes);
        for w in wishes.drain(..) {
            match w {
                Wish::Send(bridge, port, frame, oam) => {
                    let marked = if oam { Match::new().with(FieldId::TunFlags, 1) } else { Match::new() };
                    self.inject(bridge, marked, frame, vec![Action::Output { port, max_len: 0 }]);
                }
                Wish::Status(bridge, port, status) => {
                    self.inputs_due = true;
                    let _ = self.notices.send(Notice::Bfd(bridge, port, status));
                }
            }
        }
        self.wishes = wishes;
        self.inputs_due |= self.bonds.due(now);
        for (bridge, port, frame) in self.bonds.poll(&mut self.switch, now) {
            self.inject(bridge, Match::new(), frame, vec![Action::Output { port, max_len: 0 }]);
        }
        let tick = now >= self.next_tick;
        if std::mem::take(&mut self.inputs_due) || tick {
            self.follow_inputs();
        }
        if tick {
            self.next_tick = now + Duration::from_secs(1);
            self.switch.tick(now, &mut self.out);
            self.tell_big();
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

    /// Tells of datagrams that were too long to be put together, once a second at most.
    fn tell_big(&mut self) {
        let now = self.switch.fragments.counts.map(|c| c.big);
        let before = std::mem::replace(&mut self.big, now);
        for (version, (n, old)) in ["v4", "v6"].into_iter().zip(now.into_iter().zip(before)) {
            if n > old {
                tracing::warn!(target: "ipf", "Unsupported big reassembled {version} packet: {} fragments dropped", n - old);
            }
        }
    }

    /// Tells the switch what BFD and LACP say of each port. All of it each time, and once a second whatever happens: what was not
    /// heard of a port for any reason holds it up for a second at most.
    pub fn follow_inputs(&mut self) {
        let bfd: HashMap<_, _> = self.monitors.forwarding().collect();
        let lacp: HashMap<_, _> = self.bonds.lacp().collect();
        let ports: Vec<(BridgeId, PortNo)> = self
            .switch
            .bridges()
            .flat_map(|(id, b)| b.ports.values().map(move |p| ((id, p.no), p.bfd, p.lacp)))
            .filter(|(at, old_bfd, old_lacp)| (bfd.get(at), lacp.get(at)) != (old_bfd.as_ref(), old_lacp.as_ref()))
            .map(|(at, ..)| at)
            .collect();
        for at in ports {
            let now = (bfd.get(&at).copied(), lacp.get(&at).copied());
            if self.switch.set_inputs(at.0, at.1, |p| (p.bfd, p.lacp) = now)
                && let Some(p) = self.switch.bridge(at.0).and_then(|b| b.ports.get(&at.1))
            {
                let _ = self.notices.send(Notice::Live(at.0, Box::new(p.clone())));
            }
        }
    }

    /// Changes what a controller forbids a port; controllers are told if that is another thing than before.
    pub fn configure_port(&mut self, bridge: BridgeId, no: PortNo, mask: u32, config: u32) {
        let before = self.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).map(|p| p.config);
        self.switch.set_inputs(bridge, no, |p| p.config = p.config & !mask | config);
        if let Some(p) = self.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).filter(|p| Some(p.config) != before)
        {
            let _ = self.notices.send(Notice::Live(bridge, Box::new(p.clone())));
        }
    }

    /// Sends a packet of our own through actions.
    fn inject(&mut self, bridge: BridgeId, metadata: Match, packet: Vec<u8>, actions: Vec<Action>) {
        let now = self.now();
        self.packet_out(bridge, &PacketOut { buffer_id: u32::MAX, metadata, actions, packet }, now);
    }

    /// Executes a packet-out.
    pub fn packet_out(&mut self, bridge: BridgeId, m: &PacketOut, now: Duration) {
        match memory().and_then(|m| m.ordinary().allocate()) {
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
        match memory().and_then(|m| m.ordinary().allocate()) {
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
        // The route whose hop it is may be of another version, and tells by which device a link-local one is reached.
        let underlay = &self.switch.underlay;
        let hop = underlay.routes().find(|r| r.gateway == Some(a));
        let Some(route) = hop.or_else(|| underlay.route(a)) else { return };
        let (mac, source) = (route.source_mac, route.hop_source.unwrap_or(route.source));
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
                if let Some(p) = memory().and_then(|m| m.packet(&request)) {
                    self.out.packets.push((d, Frame(p)));
                }
            }
            switch::Egress::Host(_) => {}
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
        // What an event's packet leads to is an event again: a packet of BFD brings an answer, which asks for its next hop, and the
        // request for that may ask a controller. What is left after three rounds waits for the next call.
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
                    Event::Sample { bridge, sample } => self.tell(Seen::Sample(bridge, sample)),
                    Event::Passage { bridge, passage } => {
                        let rate = self.picker.as_ref().map_or(1, Picker::rate);
                        self.tell(Seen::Passage(bridge, rate, passage));
                    }
                    e => drop(self.notices.send(Notice::Event(e))),
                }
            }
        }
        if self.out.packets.is_empty() && self.shaped.is_empty() {
            return;
        }
        let mut room = WAITING.saturating_sub(self.held());
        let mut packets = self.out.packets.drain(..).peekable();
        while let Some((to, Frame(m))) = packets.next() {
            let (d, queue) = switch::destination(to);
            let Some(Some(slot)) = self.devices.get_mut(d as usize) else {
                self.counters.gone += 1;
                continue;
            };
            if slot.free() {
                slot.queue.push(m);
                while let Some((_, Frame(m))) = packets.next_if(|(next, _)| *next == to) {
                    slot.queue.push(m);
                }
                continue;
            }
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
