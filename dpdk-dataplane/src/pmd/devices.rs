//! Devices of the PMD threads: which thread receives from which queue, what limits a device, and how devices come and
//! go.

use super::{Handle, Jobs, MainPmd, PmdEnded};
use crate::config::qos::{Egress, Plan, Rate};
use crate::pmd::fast::SharedPort;
use crate::ports::netdev::Device;
use crate::ports::qos::policer::Policer;
use crate::ports::qos::shaper::Shaper;
use dpdk_rs::{BURST, Mbuf, Port};
use std::sync::Arc;
use std::time::Duration;
use switch::DeviceId;

/// The speed in megabits a second that is taken for that of a device which does not say its own.
const DEFAULT_SPEED: u32 = 100;

/// How long a device that was taken away may stay in use by a PMD thread, and how often that is looked at.
const RELEASE: Duration = Duration::from_secs(5);
const RELEASE_LOOK: Duration = Duration::from_millis(1);

/// The greatest number that a device may ask for: there is a place for each number below the greatest.
const MOST_WANTED: u32 = 1024;

/// Waits until no PMD thread uses a device that was taken away from them; to be called by the control plane, as packets
/// would wait as well. A thread that does not let go within 5 s is reported: the device is closed when that thread
/// ends.
pub async fn released(port: &Arc<Port>) {
    let wait = async {
        while Arc::strong_count(port) > 1 {
            tokio::time::sleep(RELEASE_LOOK).await;
        }
    };
    if tokio::time::timeout(RELEASE, wait).await.is_err() {
        tracing::error!(target: "dpif_netdev", "a PMD thread keeps device {}", port.name());
    }
}

impl Handle {
    /// Takes a device away from all PMD threads; gives it once none of them uses it.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn remove_device(&self, n: DeviceId) -> Result<Option<Device>, PmdEnded> {
        let device = self.run(move |w| w.remove_device(n)).await?;
        if let Some(d) = &device {
            released(&d.port).await;
        }
        Ok(device)
    }

    /// Lifts a device out of all PMD threads, to set it up anew; gives it once none of them uses it.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn lift_device(&self, n: DeviceId) -> Result<Option<LiftedDevice>, PmdEnded> {
        let lifted = self.run(move |w| w.lift_device(n)).await?;
        if let Some(l) = &lifted {
            released(&l.0.device.port).await;
        }
        Ok(lifted)
    }

    /// Puts another device in the place of one; gives the old one once no thread uses it.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn exchange_device(&self, n: DeviceId, device: Device) -> Result<Option<Device>, PmdEnded> {
        let old = self.run(move |w| w.exchange_device(n, device)).await?;
        if let Some(d) = &old {
            released(&d.port).await;
        }
        Ok(old)
    }
}

/// A device of the main PMD thread.
pub(super) struct DeviceSlot {
    pub device: Device,
    /// It is received from. Before its port is there, packets wait in the device.
    pub polled: bool,
    /// By queue, the thread that receives from it: 0 is the main one.
    threads: Vec<usize>,
    /// It has an address of this host's, though it is no internal port.
    host: bool,
    /// `pmd-rxq-affinity`: queues, and the processors that are to receive from them.
    affinity: Vec<(u16, usize)>,
    /// The queues that the main thread receives from.
    pub own_queues: Vec<u16>,
    pub queue: Vec<Mbuf>,
    pub ingress: Option<Policer>,
    pub egress: EgressLimit,
    /// The kernel has a class for each of its queues, and is told which packets are of which.
    pub classes: bool,
}

/// A device that is out of its place for a while, with its limits and the choice of its threads. The place and the number
/// stay its own.
pub struct LiftedDevice(DeviceSlot);

impl LiftedDevice {
    /// The device.
    pub fn device_mut(&mut self) -> &mut Device {
        &mut self.0.device
    }
}

/// What limits the packets that a device sends.
pub(super) enum EgressLimit {
    Free,
    Police(Box<Policer>),
    Shape(Box<Shaper<Mbuf>>),
}

impl DeviceSlot {
    fn new(device: Device) -> DeviceSlot {
        DeviceSlot {
            device,
            polled: false,
            threads: Vec::new(),
            host: false,
            affinity: Vec::new(),
            own_queues: Vec::new(),
            queue: Vec::new(),
            ingress: None,
            egress: EgressLimit::Free,
            classes: false,
        }
    }

    /// Packets leave through it without a limit, and without being looked at for next hops.
    pub(super) fn sends_directly(&self) -> bool {
        !self.is_host() && matches!(self.egress, EgressLimit::Free)
    }

    /// This host is behind it: next hops may tell it who they are.
    pub(super) fn is_host(&self) -> bool {
        self.device.internal || self.host
    }

    /// Only the main thread may receive from it and send through it.
    fn only_main(&self) -> bool {
        self.is_host() || self.ingress.is_some() || !matches!(self.egress, EgressLimit::Free)
    }
}

impl MainPmd {
    /// Spreads the devices' receive queues over the threads in turn. Devices whose packets the main thread has to look
    /// at (internal ports, and those with limits) stay with it.
    pub fn assign(&mut self) {
        let threads = 1 + self.fast.len();
        let processors: Vec<Option<usize>> =
            std::iter::once(self.processor).chain(self.fast.counters().map(|(p, _)| Some(p))).collect();
        let chosen = |slot: &DeviceSlot, q: u16| {
            let (_, p) = slot.affinity.iter().find(|(queue, _)| *queue == q)?;
            processors.iter().position(|own| *own == Some(*p))
        };
        // Threads that were chosen for a queue get no others, unless that leaves no thread for these.
        let all = self.devices.iter().flatten().filter(|s| s.polled && !s.only_main());
        let taken: Vec<usize> = all.flat_map(|s| s.affinity.iter().filter_map(|(q, _)| chosen(s, *q))).collect();
        let free: Vec<usize> = (0..threads).filter(|t| !self.isolate || !taken.contains(t)).collect();
        let free = if free.is_empty() { (0..threads).collect() } else { free };
        let mut queues = vec![vec![Vec::new(); self.devices.len()]; self.fast.len()];
        let mut next = 0;
        for (i, slot) in self.devices.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            slot.own_queues.clear();
            slot.threads.clear();
            if !slot.polled {
                continue;
            }
            for q in 0..slot.device.port.info().queues[0] {
                let thread = match chosen(slot, q) {
                    _ if slot.only_main() => 0,
                    Some(t) => t,
                    None => {
                        next += 1;
                        free.get((next - 1) % free.len()).copied().unwrap_or(0)
                    }
                };
                slot.threads.push(thread);
                match thread.checked_sub(1).and_then(|l| queues.get_mut(l)?.get_mut(i)) {
                    Some(list) => list.push(q),
                    None => slot.own_queues.push(q),
                }
            }
        }
        let all = self.devices.iter().map(|s| {
            let s = s.as_ref()?;
            Some(SharedPort { port: s.device.port.clone(), queues: Vec::new(), direct: !s.only_main() })
        });
        self.fast.devices(&all.collect::<Vec<_>>(), &queues);
    }

    /// Has these processors receive from a device's queues, where PMD threads run there (`pmd-rxq-affinity`).
    pub fn set_affinity(&mut self, n: DeviceId, affinity: Vec<(u16, usize)>) {
        if let Some(Some(s)) = self.devices.get_mut(n.index())
            && s.affinity != affinity
        {
            s.affinity = affinity;
            self.assign();
        }
    }

    /// Sets whether threads that were chosen for a queue get no others (`pmd-rxq-isolate`).
    pub fn set_isolate(&mut self, on: bool) {
        if std::mem::replace(&mut self.isolate, on) != on {
            self.assign();
        }
    }

    /// The queues of a device, and the thread that receives from each: 0 is the main one, 1 the first fast one.
    pub fn queues(&self, n: DeviceId) -> Vec<(u16, Option<usize>)> {
        let Some(Some(s)) = self.devices.get(n.index()) else { return Vec::new() };
        (0..s.device.port.info().queues[0]).map(|q| (q, s.threads.get(usize::from(q)).copied())).collect()
    }

    /// Takes a device over, and gives its number. [`MainPmd::poll_device`] begins to receive from it.
    pub fn add_device(&mut self, device: Device) -> DeviceId {
        self.add_device_as(device, None)
    }

    /// The same, with this number if it is free.
    pub fn add_device_as(&mut self, device: Device, wanted: Option<DeviceId>) -> DeviceId {
        let wanted = wanted.map(|n| n.0).filter(|n| (1..=MOST_WANTED).contains(n));
        let n = DeviceId(self.switch.numbers.take(wanted));
        if n.index() >= self.devices.len() {
            self.devices.resize_with(n.index() + 1, || None);
        }
        if let Some(place) = self.devices.get_mut(n.index()) {
            *place = Some(DeviceSlot::new(device));
        }
        n
    }

    /// Sets which devices have addresses of this host's beside internal ports.
    pub fn set_hosts(&mut self, devices: Vec<DeviceId>) {
        self.switch.underlay.set_hosts(devices);
        let mut changed = false;
        for (i, slot) in self.devices.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            let host = self.switch.underlay.is_host(DeviceId::at(i));
            changed |= std::mem::replace(&mut slot.host, host) != host;
        }
        if changed {
            self.assign();
        }
    }

    /// Sets the limits of what a device receives and sends; gives the queues that it has then. `mbps` is the speed of its
    /// link in megabits a second, where that is known better than the device itself knows it.
    pub fn police(&mut self, n: DeviceId, ingress: Rate, egress: &Egress, mbps: Option<u32>) -> Option<Plan> {
        let now = self.now();
        let s = self.devices.get_mut(n.index())?.as_mut()?;
        let before = s.only_main();
        if s.ingress.as_ref().is_none_or(|p| p.rate != ingress) {
            s.ingress = Policer::new(ingress, now);
        }
        s.egress = match (egress, std::mem::replace(&mut s.egress, EgressLimit::Free)) {
            (Egress::Free | Egress::Operators, _) => EgressLimit::Free,
            (Egress::Police(rate), EgressLimit::Police(p)) if p.rate == *rate => EgressLimit::Police(p),
            (Egress::Police(rate), _) => {
                Policer::new(*rate, now).map_or(EgressLimit::Free, |p| EgressLimit::Police(Box::new(p)))
            }
            (Egress::Shape(asked), gate) => {
                let mbps = mbps.or_else(|| Some(s.device.port.link().speed).filter(|s| (1..u32::MAX).contains(s)));
                let plan = asked.plan(u64::from(mbps.unwrap_or(DEFAULT_SPEED)) * 125_000);
                EgressLimit::Shape(match gate {
                    EgressLimit::Shape(mut shaper) => {
                        if *shaper.plan() != plan {
                            shaper.change(plan, now);
                        }
                        shaper
                    }
                    _ => Box::new(Shaper::new(plan, now)),
                })
            }
        };
        let plan = match &s.egress {
            EgressLimit::Shape(shaper) => Some(shaper.plan().clone()),
            _ => None,
        };
        if s.only_main() != before {
            self.assign();
        }
        self.find_shaped();
        plan
    }

    /// Sets whether the kernel has a class for each queue of a device.
    pub fn set_classes(&mut self, n: DeviceId, classes: bool) {
        let Some(Some(s)) = self.devices.get_mut(n.index()) else { return };
        if std::mem::replace(&mut s.classes, classes) && !classes {
            s.device.port.set_priority(0);
        }
    }

    fn find_shaped(&mut self) {
        let shaped = |s: &Option<DeviceSlot>| s.as_ref().is_some_and(|s| matches!(s.egress, EgressLimit::Shape(_)));
        self.shaped = self.devices.iter().enumerate().filter(|(_, s)| shaped(s)).map(|(i, _)| i).collect();
    }

    fn slot(&self, n: DeviceId) -> Option<&DeviceSlot> {
        self.devices.get(n.index())?.as_ref()
    }

    /// The rate of the policer of what a device sends, if it has one.
    pub fn policer(&self, n: DeviceId) -> Option<Rate> {
        match &self.slot(n)?.egress {
            EgressLimit::Police(p) => Some(p.rate),
            _ => None,
        }
    }

    /// The queues of a device with QoS.
    pub fn shaper(&self, n: DeviceId) -> Option<&Shaper<Mbuf>> {
        match &self.slot(n)?.egress {
            EgressLimit::Shape(s) => Some(s),
            _ => None,
        }
    }

    /// Packets that a device's limits dropped: received ones, and ones to send.
    pub fn policed(&self, n: DeviceId) -> [u64; 2] {
        let Some(slot) = self.slot(n) else { return [0; 2] };
        let egress = match &slot.egress {
            EgressLimit::Free => 0,
            EgressLimit::Police(p) => p.dropped,
            EgressLimit::Shape(s) => s.dropped(),
        };
        [slot.ingress.as_ref().map_or(0, |p| p.dropped), egress]
    }

    /// Takes a device out of its place, which stays its own.
    fn lift_device(&mut self, n: DeviceId) -> Option<LiftedDevice> {
        let mut slot = self.devices.get_mut(n.index()).and_then(Option::take)?;
        slot.polled = false;
        self.assign();
        self.find_shaped();
        Some(LiftedDevice(slot))
    }

    /// Puts a device back into its place; [`MainPmd::poll_device`] begins to receive from it.
    pub fn put_back(&mut self, n: DeviceId, lifted: LiftedDevice) {
        if let Some(place) = self.devices.get_mut(n.index()) {
            *place = Some(lifted.0);
        }
        self.find_shaped();
    }

    /// Begins to receive from a device.
    pub fn poll_device(&mut self, n: DeviceId) {
        if let Some(Some(s)) = self.devices.get_mut(n.index()) {
            s.polled = true;
        }
        self.assign();
    }

    /// Gives a device back, for another thread to close: once it is [`released`].
    pub fn remove_device(&mut self, n: DeviceId) -> Option<Device> {
        self.switch.numbers.give(n.0);
        Some(self.lift_device(n)?.0.device)
    }

    /// A device by its number.
    pub fn device(&self, n: DeviceId) -> Option<&Device> {
        self.devices.get(n.index())?.as_ref().map(|s| &s.device)
    }

    /// A device, to be changed.
    pub fn device_mut(&mut self, n: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(n.index())?.as_mut().map(|s| &mut s.device)
    }

    /// Puts another device in the place of one, whose packets come from there from now on. Gives the old one back, for
    /// another thread to close once it is [`released`].
    pub fn exchange_device(&mut self, n: DeviceId, device: Device) -> Option<Device> {
        // Packets that came to both are left to the old one.
        for q in 0..device.port.info().queues[0] {
            let mut more = true;
            while more {
                let mut n = 0;
                let broken = device.port.receive(q, |_| n += 1);
                more = n + broken == BURST;
            }
        }
        let slot = self.devices.get_mut(n.index())?.as_mut()?;
        let old = std::mem::replace(&mut slot.device, device);
        self.assign();
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmd;
    use crate::ports::frame::memory;
    use crate::ports::netdev::{self, DeviceSpec};
    use dpdk_rs::PortConfig;

    /// A PMD thread may need milliseconds to let go of a device, one that hangs never does: the loop goes on meanwhile.
    #[tokio::test]
    async fn the_packet_loop_does_not_wait_for_a_device_to_be_released() {
        if !needs::root() {
            return;
        }
        let prefix = format!("isthmus-{}", std::process::id());
        let arguments =
            ["test", "--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--no-telemetry", "--file-prefix", &prefix];
        let pmd::Running { handle, thread, .. } =
            pmd::start(arguments.into_iter().skip(1).map(String::from).collect()).await.expect("DPDK");
        let (name, bus) = ("net_null0".to_string(), "vdev".to_string());
        let spec = DeviceSpec::Dpdk { bus, name, arguments: String::new() };
        let memory = memory().expect("packet memory");
        let device = netdev::open(&handle.eal, memory, &spec, &PortConfig::default()).expect("a device");
        let in_use = device.port.clone();
        let n = handle.run(move |w| w.add_device(device)).await.expect("a number");
        let mut removal = Box::pin(handle.remove_device(n));
        assert!(futures::poll!(&mut removal).is_pending());
        let longest = handle.run(|w| w.counters.longest_job).await.expect("the loop does other things");
        assert!(longest < RELEASE / 2, "the loop waited for {longest:?}");
        assert!(futures::poll!(&mut removal).is_pending(), "the device is given while a thread uses it");
        drop(in_use);
        let removed = removal.await.expect("the thread runs").expect("the device");
        assert_eq!(Arc::strong_count(&removed.port), 1);
        drop(removed);
        pmd::stop(&handle, thread).await;
    }
}
