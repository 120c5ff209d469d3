//! What becomes of what the switch produced: events go to protocols, controllers and exporters, packets to devices.

use super::PacketSampler;
use super::devices::{DeviceSlot, EgressLimit};
use super::main::{CollectorInput, ControllerEvent, Counters, MainPmd};
use super::packet_in_limit::Verdict;
use crate::config::qos::class_of_queue;
use crate::ports::frame::{Frame, memory};
use crate::ports::netdev::Device;
use crate::ports::qos::shaper::Shaper;
use dpdk_rs::{BURST, Mbuf};
use openflow_rs::Match;
use openflow_rs::action::Action;
use openflow_rs::message::PacketOut;
use std::time::Duration;
use switch::{BridgeId, DeviceId, DropReason, Event, TraceRequest};

/// The most packets that wait in shapers of all devices: half of the smallest pool of buffers.
const WAITING: usize = 8192;

/// Lines of the trace of a packet that passed a limit which go into the log.
const LIMIT_LINES: usize = 400;

/// Sends packets by a device; those for which it has no room are dropped, and counted.
fn send(device: &mut Device, packets: &mut Vec<Mbuf>, counters: &mut Counters) {
    counters.sent += device.port.transmit(0, packets) as u64;
    counters.full += packets.len() as u64;
    device.full += packets.len() as u64;
    packets.clear();
}

/// A packet's priority, by which the kernel's queues find its class (tc(8)): their number, 1, above that of the class. A
/// queue without a class shares that of queue 0.
fn priority(queue: u32) -> u32 {
    1 << 16 | u32::from(class_of_queue(queue).unwrap_or(1))
}

impl MainPmd {
    /// Handles what the switch produced: events first, as these may produce packets, then packets.
    pub(super) fn deliver(&mut self, now: Duration) {
        self.tell_netflow();
        self.handle_events(now);
        self.transmit(now);
        // A packet may have been the answer that others wait for.
        if self.send_held(now) | self.end_waits(now) {
            self.handle_events(now);
            self.transmit(now);
        }
    }

    /// Lets packets go on that waited for word of their connection from another gateway; whether there were any.
    fn end_waits(&mut self, now: Duration) -> bool {
        let MainPmd { switch, out, .. } = self;
        if switch.awaiting.is_empty() {
            return false;
        }
        match memory().and_then(|m| m.ordinary().allocate()) {
            Some(like) => switch.end_waits(&Frame(like), now, out) > 0,
            None => false,
        }
    }

    fn handle_events(&mut self, now: Duration) {
        // An event may lead to the next: a BFD packet is answered, the answer needs a next hop, the request for that
        // may go to a controller. Events that are left after three rounds wait for the next call.
        for _ in 0..3 {
            if self.out.events.is_empty() && self.out.bfd.is_empty() {
                break;
            }
            let mut heard = !self.out.bfd.is_empty();
            self.out.bfd.iter().for_each(|(bridge, port, _)| self.bfd.prepare(*bridge, *port));
            for (bridge, port, packet) in self.out.bfd.drain(..) {
                self.bfd.receive(bridge, port, packet.0.data(), now);
            }
            for e in std::mem::take(&mut self.out.events) {
                match e {
                    Event::NeighbourWanted(hop, packet) => {
                        self.hold_for_next_hop(hop, packet, now);
                    }
                    Event::Ccm { bridge, port, packet } => {
                        self.cfm.receive(bridge, port, &packet, now);
                        heard = true;
                    }
                    Event::LimitPassed { bridge, reason, metadata, packet } => {
                        self.log_limit(bridge, reason, metadata, packet);
                    }
                    Event::Lldp { bridge, port, packet } => {
                        self.lldp.receive(bridge, port, &packet, now);
                        heard = true;
                    }
                    Event::Slow { bridge, port, packet } => {
                        self.bonds.receive(bridge, port, &packet, now);
                        heard = true;
                    }
                    Event::Bpdu { bridge, port, packet } => {
                        if !self.rapid.receive(bridge, port, &packet) {
                            self.trees.receive(bridge, port, &packet, now);
                        }
                        heard = true;
                    }
                    Event::PacketIn { bridge, ref packet_in, .. } => {
                        let reason = packet_in.reason;
                        match self.limits.judge(bridge, packet_in, now) {
                            Verdict::Pass => drop(self.events.send(ControllerEvent::Event(e))),
                            Verdict::Flood => {
                                if self.floods.try_send(e).is_err() {
                                    self.limits.no_room(bridge, reason);
                                }
                            }
                            Verdict::Drop => {}
                        }
                    }
                    Event::Sample { bridge, sample } => self.export(CollectorInput::Sample(bridge, sample)),
                    Event::Passage { bridge, passage } => {
                        let rate = self.sampler.as_ref().map_or(1, PacketSampler::rate);
                        self.export(CollectorInput::Passage(bridge, rate, passage));
                    }
                    e => drop(self.events.send(ControllerEvent::Event(e))),
                }
            }
            if heard {
                // A change of state is told at once.
                self.run_timers(now);
            }
        }
    }

    /// Explains what would become of a packet. With effects controllers are told what it sends them.
    pub fn trace(&mut self, request: TraceRequest) -> String {
        self.switch.trace(request, &mut self.out.events)
    }

    /// Logs why a packet passed a limit: its way through the tables, as far as [`LIMIT_LINES`].
    fn log_limit(&mut self, bridge: BridgeId, reason: DropReason, metadata: Match, packet: Vec<u8>) {
        let trace = self.trace(TraceRequest { bridge, metadata, packet, names: true, ..Default::default() });
        let name = self.switch.bridge(bridge).map_or("", |b| &b.name);
        let what = switch::limit_text(reason);
        let lines: Vec<&str> = trace.trim_end().lines().collect();
        let text = match lines.split_at_checked(LIMIT_LINES) {
            Some((first, rest @ [.., last])) => format!("{}\n({} more lines)\n{last}", first.join("\n"), rest.len()),
            _ => lines.join("\n"),
        };
        tracing::warn!(target: "ofproto_dpif_xlate", "{what} on bridge {name}; at most one such packet a minute is told of:\n{text}");
    }

    /// Sends the packets that the switch produced.
    fn transmit(&mut self, now: Duration) {
        if self.out.packets.is_empty() && self.shaped.is_empty() {
            return;
        }
        let mut room = WAITING.saturating_sub(self.queued());
        let mut packets = self.out.packets.drain(..);
        while let Some((to, _)) = packets.as_slice().first() {
            let (to, d) = (*to, to.device());
            let mut slot = self.devices.get_mut(d.index()).and_then(Option::as_mut);
            if let Some(slot) = slot.as_mut().filter(|s| s.sends_directly()) {
                let n = packets.as_slice().iter().take_while(|(next, _)| *next == to).count();
                slot.queue.extend(packets.by_ref().take(n).map(|(_, Frame(m))| m));
                continue;
            }
            let (Some((_, Frame(m))), Some(slot)) = (packets.next(), slot) else {
                self.counters.gone += 1;
                continue;
            };
            if slot.is_host() {
                let switch = &self.switch;
                let bridge = || {
                    let port = switch.port_of_device(d).and_then(|(id, _)| switch.bridge(id));
                    port.map(|b| b.name.as_str()).unwrap_or_default().into()
                };
                if let Some((a, mac)) = self.neighbours.snoop(m.data(), now, |a| switch.underlay.is_local(a), bridge) {
                    self.switch.underlay.set_neighbour(a, Some(mac));
                }
            }
            match &mut slot.egress {
                EgressLimit::Free => slot.queue.push(m),
                EgressLimit::Police(p) => {
                    if p.pass(m.len(), now) {
                        slot.queue.push(m);
                    }
                }
                EgressLimit::Shape(s) => {
                    let n = m.len();
                    if s.put(to.queue(), m, n, room) {
                        room -= 1;
                    } else {
                        self.switch.drops.add(switch::DropReason::QueueFull);
                    }
                }
            }
        }
        let MainPmd { shaped, devices, counters, .. } = self;
        for i in shaped.iter() {
            let Some(Some(DeviceSlot { egress: EgressLimit::Shape(s), queue, device, classes, .. })) =
                devices.get_mut(*i)
            else {
                continue;
            };
            let mut last = None;
            for (number, m) in std::iter::from_fn(|| s.take(now)).take(BURST) {
                // The kernel learns the class of a run of packets from the socket that sends them.
                if *classes && last.replace(number) != Some(number) {
                    send(device, queue, counters);
                    device.port.set_priority(priority(number));
                }
                queue.push(m);
            }
        }
        for slot in devices.iter_mut().flatten().filter(|s| !s.queue.is_empty()) {
            send(&mut slot.device, &mut slot.queue, counters);
        }
    }

    /// How many packets wait in shapers of all devices.
    fn queued(&self) -> usize {
        let of = |i: &usize| self.shaper(DeviceId::at(*i)).map_or(0, Shaper::held);
        self.shaped.iter().map(of).sum()
    }

    /// How long until a packet may leave a shaper; `None` if none waits.
    pub(super) fn queues_wait(&mut self, now: Duration) -> Option<Duration> {
        let MainPmd { shaped, devices, .. } = self;
        let waits = shaped.iter().filter_map(|i| match devices.get_mut(*i) {
            Some(Some(DeviceSlot { egress: EgressLimit::Shape(s), .. })) => s.wait(now),
            _ => None,
        });
        waits.min()
    }

    /// Sends a packet of our own through actions.
    pub(super) fn inject(&mut self, bridge: BridgeId, metadata: Match, packet: Vec<u8>, actions: Vec<Action>) {
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

    /// Resumes a packet that was paused for a controller.
    ///
    /// # Errors
    /// The continuation is not one of this switch.
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

    /// Hands over what NetFlow's flows counted. While the exporters have much to do it waits: nothing of it may be lost.
    fn tell_netflow(&mut self) {
        if self.samples.capacity() <= self.samples.max_capacity() / 2 {
            return;
        }
        let list = self.switch.take_netflow();
        if !list.is_empty() {
            self.export(CollectorInput::Netflow(list));
        }
    }

    fn export(&mut self, input: CollectorInput) {
        self.counters.samples_lost += u64::from(self.samples.try_send(input).is_err());
    }
}
