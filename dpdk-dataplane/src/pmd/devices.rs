//! The devices of the worker: which thread receives from which queue, what limits them, and how they come and go.

use super::Worker;
use crate::ports::netdev::Device;
use crate::pmd::fast::{Lanes, Shared};
use crate::config::qos::{Egress, Rate};
use crate::ports::qos::policer::Policer;
use crate::ports::qos::shaper::Shaper;
use dpdk_rs::{BURST, Mbuf};

/// The speed of a device that does not say its own, in megabits a second.
const DEFAULT_SPEED: u32 = 100;

/// A device of the worker.
pub(super) struct Slot {
    pub device: Device,
    /// Its port is there, so it is polled: what comes earlier waits in the device.
    pub polled: bool,
    /// By queue, the thread that receives from it: 0 is this one.
    threads: Vec<usize>,
    /// Queues, and the processors that are to receive from them.
    affinity: Vec<(u16, usize)>,
    /// The queues of this thread.
    pub mine: Vec<u16>,
    pub queue: Vec<Mbuf>,
    pub ingress: Option<Policer>,
    pub egress: Gate,
}

/// What stands before a device's transmit queue.
pub(super) enum Gate {
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

    /// Packets leave through it as they are, with nothing to be learned from them.
    pub(super) fn free(&self) -> bool {
        !self.device.internal && matches!(self.egress, Gate::Free)
    }

    /// Only the worker's thread can receive from it and send through it.
    fn here(&self) -> bool {
        self.device.internal || self.ingress.is_some() || !matches!(self.egress, Gate::Free)
    }
}

impl Worker {
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

    /// Takes a device over; gives its number. It is polled from [`Worker::poll_device`] on.
    pub fn add_device(&mut self, device: Device) -> u32 {
        let slot = Slot::new(device);
        match self.devices.iter().skip(1).position(Option::is_none).map(|i| i + 1) {
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

    /// Has another device in the place of one, whose packets come from there from now on. Gives that back, to be closed.
    pub fn exchange_device(&mut self, n: u32, device: Device) -> Option<Device> {
        // What came to both is the old one's.
        for q in 0..device.port.info().queues[0] {
            let mut more = true;
            while more {
                let mut n = 0;
                let broken = device.port.receive(q, |_| n += 1);
                more = n + broken == BURST;
            }
        }
        let slot = self.devices.get_mut(n as usize)?.as_mut()?;
        let old = std::mem::replace(&mut slot.device, device);
        self.assign();
        if !Lanes::let_go(&old.port) {
            tracing::error!(target: "worker", "a worker keeps device {}", old.port.name());
        }
        Some(old)
    }
}
