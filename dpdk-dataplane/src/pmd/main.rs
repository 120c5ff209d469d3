//! The main PMD thread: it owns the switch and all devices, polls these, runs packets to completion, and keeps the time
//! of BFD and LACP. Other threads ask it for things by jobs ([`super::Handle`]), which it does between bursts.

use super::devices::DeviceSlot;
use super::round::{Batch, Round};
use super::{IdleBackoff, Job, PacketSampler, run_on};
use crate::clock::Clock;
use crate::pmd::conn_sync::ConnSync;
use crate::pmd::fast::{FastPmds, PmdSetup};
use crate::pmd::packet_in_limit::PacketInLimits;
use crate::ports::bfd::{BfdSessions, BfdStatus, StatusChange};
use crate::ports::bond::Bonds;
use crate::ports::cfm::CfmStatus;
use crate::ports::cfm::points::CfmPoints;
use crate::ports::frame::Frame;
use crate::ports::lldp::LldpAgents;
use crate::ports::neighbours::Neighbours;
use crate::ports::rstp::bridges::RapidTrees;
use crate::ports::stp::bridges::Trees;
use dpdk_rs::{BURST, Eal};
use openflow_rs::PortNo;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use switch::{BridgeId, DeviceId, Event, Outputs, Switch};
use tokio::sync::mpsc;

/// The most connections that are tracked, in all zones, until an operator says otherwise: as in Open vSwitch.
const CONNECTIONS: usize = 3_000_000;
/// The most connections that an operator may ask for (`dpctl/ct-set-maxconns`); the table is reserved for them.
const ROOM: usize = 1 << 24;
/// How many connections are looked at for expiry in such a time, at least. At this rate a table of 3,000,000 is looked
/// through in about a second.
const SWEEP: usize = 64;
const SWEEP_EVERY: Duration = Duration::from_micros(16);
/// As many times that are looked at where the table would not be looked through in the sweep interval otherwise, at most.
const SWEEP_FASTER: usize = 16;
/// For how many of these times that is made up for after a long round, at most.
const SWEEPS: usize = 8;
/// How long it may take to look through all connections for those that have expired, until an operator says otherwise: as
/// in Open vSwitch.
const SWEEP_INTERVAL: Duration = Duration::from_secs(20);
/// The most jobs between two bursts, and the time after which further jobs wait until the next burst is done.
const JOBS: usize = 32;
const JOBS_TIME: Duration = Duration::from_micros(200);
/// The datapath's type and name.
const DATAPATH: &str = "netdev@ovs-netdev";

/// A packet for collectors of IPFIX, sFlow or NetFlow.
#[derive(Debug)]
pub enum CollectorInput {
    /// A `sample` action chose it.
    Sample(BridgeId, Box<switch::Sample>),
    /// It passed a bridge that is observed. The number says of how many packets one is observed.
    Passage(BridgeId, u32, Box<switch::Passage>),
    /// Packets of NetFlow's flows.
    Netflow(Vec<switch::NetflowCount>),
}

/// What is known of a port's path changed, which the database is to show.
#[derive(Debug)]
pub enum PathChange {
    /// The status of its BFD session.
    Bfd(BridgeId, PortNo, BfdStatus),
    /// The status of its maintenance point.
    Cfm(BridgeId, PortNo, CfmStatus),
}

/// Something that the main PMD thread tells OpenFlow connections.
#[derive(Debug)]
pub enum ControllerEvent {
    /// A packet-in or a removed flow.
    Event(Event),
    /// What a spanning tree has done, for the log.
    Spanning(String),
    /// Controllers configured a port.
    Port(BridgeId, Box<switch::Port>),
    /// Controllers have taken a port down, whose link is still up.
    TakenDown(BridgeId, Box<switch::Port>),
    /// A port began or ceased to carry packets.
    Liveness(BridgeId, Box<switch::Port>),
}

/// Counters of the loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Rounds of the loop.
    pub polls: u64,
    /// Rounds without a packet.
    pub idle: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets dropped as the transmit queue of their device was full.
    pub full: u64,
    /// Received packets of several segments that do not fit into one buffer.
    pub oversize: u64,
    /// Samples dropped as the queue of the exporters was full.
    pub samples_lost: u64,
    /// Packets for devices that have been removed.
    pub gone: u64,
    /// Jobs done.
    pub jobs: u64,
    /// Time spent in rounds that had something to do.
    pub busy: Duration,
    /// When the counters were cleared, by the clock of the loop.
    pub since: Duration,
    /// The longest job.
    pub longest_job: Duration,
    /// The longest round, its jobs included, without sleep.
    pub longest_round: Duration,
}

/// The state of the main PMD thread.
pub struct MainPmd {
    /// The engine.
    pub switch: Switch,
    /// BFD sessions.
    pub bfd: BfdSessions,
    /// Maintenance points.
    pub cfm: CfmPoints,
    /// LLDP agents.
    pub lldp: LldpAgents,
    /// Bonds and LACP.
    pub bonds: Bonds,
    /// Spanning trees.
    pub trees: Trees,
    /// Rapid spanning trees.
    pub rapid: RapidTrees,
    /// Ethernet addresses of tunnels' next hops.
    pub neighbours: Neighbours,
    /// The longest sleep without packets (`pmd-sleep-max`).
    pub sleep_max: Duration,
    /// How long it may take to look through all connections for those that have expired (`dpctl/ct-set-sweep-interval`).
    pub sweep_interval: Duration,
    /// Counters of the loop.
    pub counters: Counters,
    /// Features that commands have turned off.
    pub not_offered: Vec<&'static str>,
    /// The datapath's type and name, as commands show them.
    pub datapath: &'static str,
    /// Limits of packet-ins.
    pub limits: PacketInLimits,
    /// The database sets limits of zones, so commands must not.
    pub zones_of_database: bool,
    /// Connections that other gateways are told of, and tell.
    pub conn_sync: ConnSync,
    /// The other PMD threads.
    pub fast: FastPmds,
    pub(super) eal: Eal,
    pub(super) devices: Vec<Option<DeviceSlot>>,
    /// The processor that was chosen for this thread.
    pub(super) processor: Option<usize>,
    /// Threads that `pmd-rxq-affinity` names get no other queues (`pmd-rxq-isolate`).
    pub(super) isolate: bool,
    /// Numbers of devices with a shaper.
    pub(super) shaped: Vec<usize>,
    pub(super) out: Outputs<Frame>,
    pub(super) path_changes: mpsc::UnboundedSender<PathChange>,
    pub(super) events: mpsc::UnboundedSender<ControllerEvent>,
    pub(super) floods: mpsc::Sender<Event>,
    pub(super) samples: mpsc::Sender<CollectorInput>,
    /// Chooses the received packets that are observed; none: no bridge is observed.
    pub(super) sampler: Option<PacketSampler>,
    jobs: Receiver<Job>,
    clock: Clock,
    pub(super) stop: bool,
    pub(super) bfd_changes: Vec<StatusChange>,
    /// BFD or LACP may have changed whether ports are live ([`MainPmd::update_liveness`]).
    pub(super) liveness_due: bool,
    pub(super) next_tick: Duration,
    /// Fragments of datagrams that were too long, IPv4 and IPv6, when that was last logged.
    pub(super) big: [u64; 2],
    /// Packets for which no address and port was left, as far as was logged.
    pub(super) exhausted: u64,
    /// A thread wakes this one when a device of the kernel has something to read, so it may sleep without a limit.
    pub(super) wakes: bool,
}

/// What the main thread receives in a round.
struct MainRound<'a> {
    pmd: &'a mut MainPmd,
    /// The places in the batch of packets that are observed.
    sampled: &'a mut Vec<usize>,
    now: Duration,
    /// There was more than BFD's packets.
    awake: bool,
}

impl Round for MainRound<'_> {
    fn devices(&self) -> usize {
        self.pmd.devices.len()
    }

    #[inline]
    fn receive(&mut self, (number, place): (usize, usize), batch: &mut Batch) -> bool {
        let (MainPmd { devices, sampler, counters, .. }, now) = (&mut *self.pmd, self.now);
        let Some(slot) = devices.get_mut(number).and_then(Option::as_mut).filter(|s| s.polled) else { return false };
        let DeviceSlot { device, own_queues, ingress, .. } = slot;
        let Some(queue) = own_queues.get(place) else { return false };
        let id = DeviceId::at(number);
        let broken = if ingress.is_none() && sampler.is_none() {
            device.port.receive_into(*queue, batch, |m| (id, Frame(m)))
        } else {
            device.port.receive(*queue, |m| {
                if ingress.as_mut().is_none_or(|p| p.pass(m.data().len(), now)) {
                    if sampler.as_mut().is_some_and(PacketSampler::pick) {
                        self.sampled.push(batch.len());
                    }
                    batch.push((id, Frame(m)));
                }
            })
        };
        counters.oversize += broken as u64;
        true
    }

    fn forward(&mut self, batch: &mut Batch) {
        let n = batch.len();
        self.pmd.counters.received += n as u64;
        self.pmd.process(batch, self.sampled, self.now);
        self.awake |= !self.pmd.is_bfd_alone(n);
        self.pmd.deliver(self.now);
    }

    fn walks(&self) -> u64 {
        self.pmd.switch.walks()
    }
}

impl MainPmd {
    /// Moves this thread to the first of `chosen`, and has another PMD thread run on each of the others. Without any,
    /// this thread goes on alone, on any of `all`.
    pub fn move_to(&mut self, chosen: &[usize], all: &[usize]) {
        let (own_queues, others) = chosen.split_at(1.min(chosen.len()));
        run_on(if own_queues.is_empty() { all } else { own_queues });
        self.processor = own_queues.first().copied();
        self.set_fast_pmds(others);
    }

    /// Limits how many flows the cache of each thread holds; `None`: as many as fit.
    pub fn limit_flows(&mut self, most: Option<usize>) {
        if self.switch.limit_flows(most) {
            let processors: Vec<usize> = self.fast.counters().map(|(processor, _)| processor).collect();
            self.set_fast_pmds(&[]);
            self.set_fast_pmds(&processors);
        }
    }

    pub(super) fn set_fast_pmds(&mut self, processors: &[usize]) {
        let common = PmdSetup { eal: self.eal.clone(), clock: self.clock.clone(), sleep_max: self.sleep_max };
        self.fast.set(processors, &mut self.switch, &common);
        self.assign();
    }

    /// Sets the longest sleep of all PMD threads.
    pub fn set_sleep_max(&mut self, t: Duration) {
        self.sleep_max = t;
        self.fast.sleep_max(t);
    }

    pub(super) fn new(
        eal: Eal,
        jobs: Receiver<Job>,
        (path_changes, events, floods): (
            mpsc::UnboundedSender<PathChange>,
            mpsc::UnboundedSender<ControllerEvent>,
            mpsc::Sender<Event>,
        ),
        samples: mpsc::Sender<CollectorInput>,
        clock: Clock,
    ) -> MainPmd {
        let mut switch = Switch::new(ROOM);
        switch.conntrack.lock().set_most(CONNECTIONS);
        switch.count_late();
        MainPmd {
            switch,
            bfd: BfdSessions::default(),
            cfm: CfmPoints::default(),
            lldp: LldpAgents::default(),
            bonds: Bonds::default(),
            trees: Trees::default(),
            rapid: RapidTrees::default(),
            neighbours: Neighbours::default(),
            sleep_max: Duration::from_micros(200),
            sweep_interval: SWEEP_INTERVAL,
            counters: Counters::default(),
            not_offered: Vec::new(),
            datapath: DATAPATH,
            limits: PacketInLimits::default(),
            zones_of_database: false,
            conn_sync: ConnSync::default(),
            fast: FastPmds::default(),
            eal,
            // Device 0 is the datapath's own port, as in Open vSwitch.
            devices: vec![None],
            processor: None,
            isolate: true,
            shaped: Vec::new(),
            out: Outputs::default(),
            path_changes,
            events,
            floods,
            samples,
            sampler: None,
            jobs,
            clock,
            stop: false,
            bfd_changes: Vec::new(),
            liveness_due: false,
            next_tick: Duration::ZERO,
            big: [0; 2],
            exhausted: 0,
            wakes: false,
        }
    }

    /// The time since the start, by which all of this thread's state counts.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The name of a port; empty for one that is gone.
    pub fn port_name(&self, bridge: BridgeId, port: PortNo) -> &str {
        self.switch.bridge(bridge).and_then(|b| b.ports.get(&port)).map_or("", |p| &p.name)
    }

    /// Whether a word names the datapath, with or without its type: there is one.
    pub fn is_datapath(&self, name: &str) -> bool {
        let (_, short) = self.datapath.split_once('@').unwrap_or_default();
        [self.datapath, short].contains(&name) || [DATAPATH, "ovs-netdev"].contains(&name)
    }

    /// The datapath's type and name, as Open vSwitch has it: `netdev@ovs-netdev`.
    pub fn datapath(&self) -> &str {
        self.datapath
    }

    /// Whether the datapath is one of dummies.
    pub fn of_dummies(&self) -> bool {
        self.datapath != DATAPATH
    }

    pub(super) fn run(&mut self) {
        let (mut batch, mut sampled) = (Batch::new(), Vec::new());
        let mut idle = IdleBackoff::default();
        let mut swept = self.now();
        // When the previous round ended. It saves a look at the clock if no job ran since.
        let mut next = None;
        while !self.stop {
            let jobs_began = self.do_jobs();
            let mut busy = jobs_began.is_some();
            if busy {
                idle.stay();
            }
            let now = match next.take() {
                Some(end) if !busy => end,
                _ => self.now(),
            };
            self.counters.polls += 1;
            self.note_flows();
            // Before packets meet flows that a job has just put in.
            self.conn_sync.poll_learned(&mut self.switch, now);
            // Whether this round's work keeps the thread from sleeping. Jobs do not: they wake it.
            let mut round = MainRound { pmd: self, sampled: &mut sampled, now, awake: false };
            let received = round.packets(&mut batch);
            let mut awake = round.awake;
            busy |= received > 0;
            let served = self.fast.serve(&mut self.switch, now, &mut self.out);
            (busy, awake) = (busy | served, awake | served);
            self.counters.samples_lost += self.fast.take_lost_samples();
            self.log_flows();
            let timers = self.run_timers(now);
            self.deliver(now);
            self.conn_sync.poll(&self.switch.conntrack, now);
            // All at once would stop packets for milliseconds.
            let times = now.saturating_sub(swept).as_nanos() / SWEEP_EVERY.as_nanos();
            if times > 0 {
                swept = now;
                self.sweep(SWEEPS.min(times as usize), now);
            }
            let end = self.now();
            let took = end.saturating_sub(jobs_began.unwrap_or(now));
            self.counters.longest_round = self.counters.longest_round.max(took);
            if busy || timers {
                self.counters.busy += end.saturating_sub(now);
                // Time has passed when it has slept.
                next = awake.then_some(end);
            } else {
                self.counters.idle += 1;
            }
            if awake {
                idle.pause(true, self.sleep_max, Duration::ZERO);
                continue;
            }
            if received >= BURST {
                // More of them may be there.
                continue;
            }
            // Packets of BFD come in groups, one peer's after another's. A sleep gathers the rest of a group, where each
            // packet would wake this thread by itself.
            if received == 0 && idle.is_quiet() && self.wait() {
                self.counters.sleeps += 1;
                continue;
            }
            // The sleep ends before the next deadline.
            let due = self.next_due().saturating_sub(self.now());
            let due = self.queues_wait(now).map_or(due, |t| t.min(due));
            self.counters.sleeps += u64::from(idle.pause(false, self.sleep_max, due));
        }
    }

    /// Looks for connections that have expired, as many as in so many times of [`SWEEP_EVERY`].
    fn sweep(&self, times: usize, now: Duration) {
        let mut ct = self.switch.conntrack.lock();
        let all = ct.slots() as u128 * SWEEP_EVERY.as_nanos();
        let needed = all.div_ceil(self.sweep_interval.as_nanos().max(1)) as usize;
        ct.sweep(needed.clamp(SWEEP, SWEEP_FASTER * SWEEP) * times, now);
    }

    /// Whether `n` packets, which were served last, were BFD's and nothing else. Of a thousand peers some always say something: they do
    /// not keep this thread awake in between.
    fn is_bfd_alone(&self, n: usize) -> bool {
        let Outputs { events, packets, bfd, .. } = &self.out;
        bfd.len() == n && packets.is_empty() && events.is_empty()
    }

    /// Sleeps until a packet, a job or a deadline. False if the thread must not: a device can only be polled, other PMD
    /// threads may have packets for this one at any time, or `pmd-sleep-max` is 0.
    fn wait(&mut self) -> bool {
        if !self.wakes || self.sleep_max.is_zero() || !self.fast.is_empty() || !self.shaped.is_empty() {
            return false;
        }
        let polled = || self.devices.iter().flatten().filter(|s| s.polled).map(|s| &s.device.port);
        let due = self.next_due();
        if due <= self.now() {
            return false;
        }
        // Packets wake this thread from here on; those that came before are looked for now.
        if !polled().all(|p| p.arm()) || polled().any(|p| p.ready()) {
            return false;
        }
        std::thread::park_timeout(due.saturating_sub(self.now()));
        true
    }

    /// The next deadline: what has to be done then needs no packet and no job.
    fn next_due(&self) -> Duration {
        let sync = self.conn_sync.due(&self.switch.conntrack);
        let trees = [self.trees.due(), self.rapid.due()];
        let word = self.switch.awaiting.due();
        [self.bfd.due(), self.cfm.due(), self.lldp.due(), self.bonds.next_due(), sync, word]
            .into_iter()
            .chain(trees)
            .flatten()
            .fold(self.next_tick, Duration::min)
    }

    /// Observes one of so many received packets, or none.
    pub fn observe(&mut self, rate: Option<u32>) {
        self.sampler = rate.map(PacketSampler::new);
        self.fast.observe(rate);
    }

    /// Gives the switch what was received, in its order. Packets at the places `sampled` are observed.
    fn process(&mut self, batch: &mut Batch, sampled: &mut Vec<usize>, now: Duration) {
        let mut first = 0;
        for at in sampled.drain(..) {
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

    /// Does jobs that wait; tells when the first began.
    fn do_jobs(&mut self) -> Option<Duration> {
        let (mut begun, mut counted) = (None, false);
        for _ in 0..JOBS {
            let Ok(job) = self.jobs.try_recv() else { break };
            let start = self.now();
            if job.counts && !std::mem::replace(&mut counted, true) {
                // The job may read counters, which cached flows settle from time to time only.
                self.switch.count();
            }
            (job.run)(self);
            let end = self.now();
            self.counters.jobs += 1;
            self.counters.longest_job = self.counters.longest_job.max(end.saturating_sub(start));
            if end.saturating_sub(*begun.get_or_insert(start)) > JOBS_TIME {
                break;
            }
        }
        begun
    }

    /// Sets the bits of `mask` in a port's configuration (OFPPC_*). Controllers are told of a change.
    pub fn configure_port(&mut self, bridge: BridgeId, no: PortNo, mask: u32, config: u32) {
        let before = self.switch.bridge(bridge).and_then(|b| b.ports.get(&no)).cloned();
        self.switch.set_inputs(bridge, no, |p| p.config = p.config & !mask | config);
        let after = self.switch.bridge(bridge).and_then(|b| b.ports.get(&no));
        if let Some((p, before)) = after.zip(before).filter(|(p, before)| p.config != before.config) {
            if p.link.up && (p.config & !before.config) & switch::Port::DOWN != 0 {
                let _ = self.events.send(ControllerEvent::TakenDown(bridge, Box::new(p.clone())));
            }
            let _ = self.events.send(ControllerEvent::Port(bridge, Box::new(p.clone())));
        }
    }
}
