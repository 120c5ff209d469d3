//! BFD of ports (ovs-vswitchd.conf.db(5), Interface `bfd`): sessions and their packets. The time comes in, packets
//! go out.

mod show;
mod traffic;

use crate::config::bfd::BfdSpec;
use bfd_rs::{Config, Diagnostic, Packet, Session, State, Timer, Timers};
use openflow_rs::PortNo;
use packet::{Headers, build};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use switch::{BridgeId, KnownWay};
use traffic::{Traffic, TrafficSpec};

/// The UDP port of control packets (RFC 5881 section 4).
const PORT: u16 = 3784;

/// The state of a session, for column `bfd_status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdStatus {
    /// The state of this side.
    pub state: State,
    /// Whether packets may be sent this way.
    pub forwarding: bool,
    /// The diagnostic of this side.
    pub diagnostic: &'static str,
    /// The peer's state.
    pub remote_state: &'static str,
    /// The peer's diagnostic.
    pub remote_diagnostic: &'static str,
    /// How often `forwarding` changed.
    pub flaps: u64,
}

impl BfdStatus {
    /// The column `bfd_status`.
    pub fn columns(&self) -> BTreeMap<ovn_schema::Str, ovn_schema::Str> {
        let pairs = [
            ("state", self.state.name().to_string()),
            ("forwarding", self.forwarding.to_string()),
            ("diagnostic", self.diagnostic.to_string()),
            ("remote_state", self.remote_state.to_string()),
            ("remote_diagnostic", self.remote_diagnostic.to_string()),
            ("flap_count", self.flaps.to_string()),
        ];
        pairs.into_iter().map(|(k, v)| (k.into(), v.as_str().into())).collect()
    }
}

/// The most sessions that are looked at in a round: the packets of more would wait for those of a whole second, when
/// many are set up at once, and overflow the devices' queues.
const ROUND: usize = 64;

/// A port of a bridge.
type Key = (BridgeId, PortNo);

/// The session of a port.
#[derive(Debug)]
struct BfdSession {
    spec: BfdSpec,
    session: Session,
    shown: Option<BfdStatus>,
    flaps: u64,
    /// Whether it forwards, if an operator has decided that (`bfd/set-forwarding`).
    forced: Option<bool>,
    /// Whether it forwarded by itself when that was last looked at: a change is a flap.
    found: bool,
    traffic: Traffic,
    /// It is in the list of sessions to which something has happened.
    touched: bool,
    /// The packet that was sent last, in its frame: most of a session's packets are the same.
    sent: Option<(Packet, Vec<u8>)>,
    /// The way that this frame takes.
    way: KnownWay,
}

/// What sessions ask of the switch.
pub trait BfdPorts {
    /// The number of packets that a port has received.
    fn received(&mut self, bridge: BridgeId, port: PortNo) -> u64;
    /// Sends an inner frame out of a port; `oam`: the tunnel's header marks it as OAM. Frames with this way have the same
    /// headers and the same length.
    fn send(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], oam: bool, way: &mut KnownWay);
}

/// A port whose session's status changed.
pub type StatusChange = (BridgeId, PortNo, BfdStatus);

/// All sessions. Each has a number for as long as it lives, by which it is found in no time.
#[derive(Debug, Default)]
pub struct BfdSessions {
    all: Vec<Option<(Key, BfdSession)>>,
    numbers: FxHashMap<Key, u32>,
    /// Numbers that no session has.
    free: Vec<u32>,
    /// When each wants to be looked at next.
    timers: Timers<u32>,
    /// Sessions to which something has happened since they were looked at.
    touched: Vec<u32>,
    /// Bridges whose tables are in place. Sessions of other bridges are held in AdminDown, so that peers do not send
    /// packets to a switch that would drop them.
    ready: HashSet<BridgeId>,
    /// All sessions are held in AdminDown: this gateway does not have its peers' connections yet.
    held: bool,
    discriminator: u32,
}

/// Whether a session may come up: `held` and `ready` as in [`BfdSessions`].
fn may_come_up(held: bool, ready: &HashSet<BridgeId>, bridge: BridgeId, spec: &BfdSpec) -> bool {
    !held && (!spec.waits || ready.contains(&bridge))
}

fn micros(t: Duration) -> u64 {
    t.as_micros() as u64
}

impl BfdSessions {
    /// Starts, changes or (without a specification) ends the session of a port.
    pub fn set(&mut self, bridge: BridgeId, port: PortNo, spec: Option<BfdSpec>, now: Duration) {
        let key = (bridge, port);
        let Some(spec) = spec else { return self.remove(key) };
        let ready = may_come_up(self.held, &self.ready, bridge, &spec);
        let config = Config { admin_down: !ready, ..spec.session };
        match self.get_mut(key) {
            Some(m) => {
                m.spec = spec;
                // The frame may have other headers.
                (m.sent, m.way) = (None, KnownWay::default());
                m.traffic.configure(m.wanted(), now);
                m.configure(ready, now);
            }
            None => {
                // Another one after a restart: the peer's packets for the former session must not match.
                let seed = std::process::id().wrapping_mul(0x9e37_79b9);
                self.discriminator = self.discriminator.wrapping_add(1);
                let number = (seed & 0xffff_0000) | (self.discriminator & 0xffff);
                let session = Session::new(config, number.max(1), micros(now));
                let mut m = BfdSession {
                    spec,
                    session,
                    shown: None,
                    flaps: 0,
                    forced: None,
                    found: false,
                    traffic: Traffic::default(),
                    touched: false,
                    sent: None,
                    way: KnownWay::default(),
                };
                m.traffic.configure(m.wanted(), now);
                self.add(key, m);
            }
        }
        self.touch(key);
    }

    fn add(&mut self, key: Key, m: BfdSession) {
        let n = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() as u32 - 1
        });
        if let Some(place) = self.all.get_mut(n as usize) {
            *place = Some((key, m));
            self.numbers.insert(key, n);
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(n) = self.numbers.remove(&key) else { return };
        self.timers.remove(n);
        self.touched.retain(|t| *t != n);
        if let Some(place) = self.all.get_mut(n as usize) {
            *place = None;
            self.free.push(n);
        }
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut BfdSession> {
        self.all.get_mut(*self.numbers.get(&key)? as usize)?.as_mut().map(|(_, m)| m)
    }

    /// The sessions and their ports, in no order.
    fn iter(&self) -> impl Iterator<Item = &(Key, BfdSession)> {
        self.all.iter().flatten()
    }

    /// Something has happened to a session: it is looked at soon.
    fn touch(&mut self, key: Key) {
        let Some(n) = self.numbers.get(&key).copied() else { return };
        if let Some(Some((_, m))) = self.all.get_mut(n as usize)
            && !std::mem::replace(&mut m.touched, true)
        {
            self.touched.push(n);
        }
    }

    /// The tables of a bridge are in place: its sessions may come up.
    pub fn tables_ready(&mut self, bridge: BridgeId, now: Duration) {
        if !self.ready.insert(bridge) {
            return;
        }
        self.configure_all(now);
    }

    /// Holds all sessions in AdminDown, or lets those of bridges whose tables are in place come up.
    pub fn hold(&mut self, held: bool, now: Duration) {
        if self.held == held {
            return;
        }
        self.held = held;
        self.configure_all(now);
    }

    fn configure_all(&mut self, now: Duration) {
        let BfdSessions { all, touched, ready, held, .. } = self;
        for (n, place) in all.iter_mut().enumerate() {
            let Some((key, m)) = place else { continue };
            m.configure(may_come_up(*held, ready, key.0, &m.spec), now);
            if !std::mem::replace(&mut m.touched, true) {
                touched.push(n as u32);
            }
        }
    }

    /// Forgets a removed bridge, whose number another may get.
    pub fn forget_bridge(&mut self, bridge: BridgeId) {
        self.ready.remove(&bridge);
        let its: Vec<Key> = self.numbers.keys().filter(|k| k.0 == bridge).copied().collect();
        its.into_iter().for_each(|key| self.remove(key));
    }

    /// A frame that a port received will be taken soon: has the processor fetch its session.
    pub fn prepare(&self, bridge: BridgeId, port: PortNo) {
        let n = self.numbers.get(&(bridge, port));
        n.and_then(|n| self.all.get(*n as usize)).into_iter().for_each(dpdk_rs::prefetch_all);
    }

    /// Takes a frame that a port received.
    pub fn receive(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], now: Duration) {
        let Some(m) = self.get_mut((bridge, port)) else { return };
        let Some(h) = Headers::parse(frame) else { return };
        // "If ... the received TTL ... is not 255, the packet MUST be discarded" (RFC 5881 section 5).
        let single_hop = frame.get(h.l3 + if h.is_ipv4() { 8 } else { 7 }) == Some(&255);
        let for_us = m.spec.remote_dst.is_none_or(|d| packet::mac_at(frame, 0) == Some(d));
        let payload = frame.get(h.payload..h.l3_end);
        if let (true, true, Some(p)) = (single_hop, for_us, payload) {
            let before = m.seen();
            match m.session.receive(p, micros(now)) {
                Ok(_) => {
                    m.traffic.heard(now);
                    // Most packets say that all is as it was: nothing is due sooner than it was.
                    if m.news(before) {
                        self.touch((bridge, port));
                    }
                }
                Err(e) => tracing::debug!(target: "bfd", "port {port}: {e}"),
            }
        }
    }

    /// Has a session, or all, forward or not, whatever their state; `None` returns to their state. False if the port
    /// has no session.
    pub fn force(&mut self, port: Option<(BridgeId, PortNo)>, forwarding: Option<bool>) -> bool {
        let its: Vec<Key> = self.numbers.keys().filter(|key| port.is_none_or(|p| p == **key)).copied().collect();
        for key in &its {
            self.get_mut(*key).into_iter().for_each(|m| m.forced = forwarding);
            self.touch(*key);
        }
        port.is_none() || !its.is_empty()
    }

    /// The ports that have a session, and whether packets may be sent out of each: not before the session has come up
    /// once.
    pub fn forwarding(&self) -> impl Iterator<Item = ((BridgeId, PortNo), bool)> {
        self.iter().map(|(key, m)| (*key, m.shown.as_ref().is_some_and(|s| s.forwarding)))
    }

    /// When [`BfdSessions::poll`] wants to be called next; none without sessions.
    pub fn due(&self) -> Option<Duration> {
        if !self.touched.is_empty() {
            return Some(Duration::ZERO);
        }
        self.timers.next().map(Duration::from_micros)
    }

    /// Advances to `now` the sessions that are due and those that something has happened to, 64 at most. Gives how many.
    pub fn poll(&mut self, now: Duration, ports: &mut impl BfdPorts, changes: &mut Vec<StatusChange>) -> usize {
        let BfdSessions { all, touched, timers, .. } = self;
        let mut due = [0; ROUND];
        let mut count = 0;
        let next = || touched.pop().or_else(|| timers.pop(micros(now)));
        for (place, n) in due.iter_mut().zip(std::iter::from_fn(next)) {
            *place = n;
            count += 1;
            all.get(n as usize).into_iter().for_each(dpdk_rs::prefetch_all);
        }
        // Memory is waited for once for all of them, not for each: first the sessions, then what these point to.
        let these = || due.iter().take(count).filter_map(|n| all.get(*n as usize)?.as_ref()).map(|(_, m)| m);
        these().for_each(BfdSession::prefetch);
        these().for_each(|m| m.way.lines(dpdk_rs::prefetch));
        for n in due.into_iter().take(count) {
            let Some(Some((key, m))) = all.get_mut(n as usize) else { continue };
            m.touched = false;
            m.poll(*key, now, ports, changes);
            timers.set(n, m.due(now));
        }
        count
    }
}

impl BfdSession {
    /// Has the processor fetch what a packet needs beside the session itself.
    fn prefetch(&self) {
        self.way.near(dpdk_rs::prefetch);
        let frame = self.sent.as_ref().map(|(_, frame)| frame);
        frame.into_iter().flat_map(|f| f.iter().step_by(64)).for_each(dpdk_rs::prefetch);
    }

    /// When [`BfdSession::poll`] wants to be called next.
    fn due(&self, now: Duration) -> Timer {
        let traffic = self.traffic.next_look(now).map_or(Timer::MAX, micros);
        self.session.deadline().min(traffic)
    }

    /// What decides whether a session has to be looked at.
    fn seen(&self) -> (Timer, State, (State, Diagnostic)) {
        (self.session.deadline(), self.session.state(), self.session.remote())
    }

    /// Whether it has to be looked at sooner than it would be, as this was so before.
    fn news(&self, before: (Timer, State, (State, Diagnostic))) -> bool {
        let now = self.seen();
        now.0 < before.0 || (now.1, now.2) != (before.1, before.2) || self.traffic.watches()
    }

    fn poll(&mut self, (bridge, port): Key, now: Duration, ports: &mut impl BfdPorts, changes: &mut Vec<StatusChange>) {
        self.traffic.set_up(self.session.state() == State::Up, now);
        if self.traffic.due(now) {
            let mult = u64::from(self.spec.session.detect_mult);
            let detection = Duration::from_micros(self.session.receive_interval() * mult);
            self.traffic.look(ports.received(bridge, port), detection, now);
            self.configure(!self.session.config().admin_down, now);
        }
        if self.session.deadline() <= micros(now) {
            let (packet, _) = self.session.poll(micros(now));
            if let Some(p) = packet {
                self.send((bridge, port), p, ports);
            }
        }
        let found = self.forwards(now);
        if self.forced.is_none() && std::mem::replace(&mut self.found, found) != found {
            self.flaps += 1;
        }
        let s = self.status(now);
        if self.shown.as_ref() != Some(&s) {
            self.shown = Some(s.clone());
            changes.push((bridge, port, s));
        }
    }

    /// Sends a control packet: the frame of the one before, if that said the same.
    fn send(&mut self, (bridge, port): Key, p: Packet, ports: &mut impl BfdPorts) {
        let BfdSession { sent, spec, session, way, .. } = self;
        if sent.as_ref().is_none_or(|(before, _)| *before != p) {
            *sent = Some((p, frame(spec, session.discriminator(), &p.to_bytes())));
        }
        if let Some((_, frame)) = sent {
            ports.send(bridge, port, frame, spec.oam, way);
        }
    }

    /// What the session wants to know of the port's packets.
    fn wanted(&self) -> TrafficSpec {
        let time = |us: u32| Duration::from_micros(us.into());
        TrafficSpec {
            min_rx: time(self.spec.session.required_min_rx),
            decay: self.spec.decay.map(time),
            forwards: self.spec.forwarding_if_rx,
        }
    }

    /// Gives the session its intervals, and holds it down until the bridge is ready.
    fn configure(&mut self, ready: bool, now: Duration) {
        let slow = self.traffic.decayed().map(|t| u32::try_from(t.as_micros()).unwrap_or(u32::MAX));
        let required_min_rx = slow.unwrap_or(self.spec.session.required_min_rx);
        let config = Config { admin_down: !ready, required_min_rx, ..self.spec.session };
        self.session.configure(config, micros(now));
    }

    /// Whether packets may be sent this way, by the session and by the packets that the port receives.
    fn forwards(&self, now: Duration) -> bool {
        self.session.forwarding() || self.traffic.vouches(now) && !self.session.path_down()
    }

    fn status(&self, now: Duration) -> BfdStatus {
        let (remote, remote_diagnostic) = self.session.remote();
        BfdStatus {
            state: self.session.state(),
            forwarding: self.forced.unwrap_or_else(|| self.forwards(now)),
            diagnostic: self.session.diagnostic().text(),
            remote_state: remote.name(),
            remote_diagnostic: remote_diagnostic.text(),
            flaps: self.flaps,
        }
    }
}

/// The inner frame of a control packet.
fn frame(spec: &BfdSpec, discriminator: u32, payload: &[u8]) -> Vec<u8> {
    // "The source port MUST be in the range 49152 through 65535" (RFC 5881 section 4).
    let source = 49152 | (discriminator as u16 & 0x3fff);
    let (src, dst) = ((spec.src_ip.into(), source), (spec.dst_ip.into(), PORT));
    build::udp(spec.local_dst, spec.local_src, src, dst, 255, payload).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::bfd::SOURCE;
    use std::net::Ipv4Addr;

    const SPEC: BfdSpec = BfdSpec {
        session: Config {
            desired_min_tx: 100_000,
            required_min_rx: 100_000,
            detect_mult: 3,
            admin_down: false,
            control_plane_independent: false,
            concatenated_path_down: false,
            congestion_control: false,
        },
        local_src: packet::Mac([2, 0, 0, 0, 0, 1]),
        local_dst: packet::Mac([0, 0x23, 0x20, 0, 0, 1]),
        remote_dst: None,
        src_ip: SOURCE,
        dst_ip: Ipv4Addr::new(169, 254, 1, 0),
        decay: None,
        forwarding_if_rx: false,
        check_key: false,
        waits: true,
        oam: false,
    };
    const PORT_1: PortNo = PortNo(1);

    /// A switch that received so many packets, and the frames that it was to send.
    #[derive(Default)]
    struct Sent(u64, Vec<(BridgeId, PortNo, Vec<u8>, bool)>);

    impl BfdPorts for Sent {
        fn received(&mut self, _: BridgeId, _: PortNo) -> u64 {
            self.0
        }

        fn send(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], oam: bool, _: &mut KnownWay) {
            self.1.push((bridge, port, frame.to_vec(), oam));
        }
    }

    /// Lets two switches talk for a while, with the first one's port receiving packets as well, or not; gives the last
    /// status that each told of.
    fn talk_with(sides: &mut [BfdSessions; 2], from: u64, to: u64, heard: bool, data: bool) -> [Option<BfdStatus>; 2] {
        let mut last = [None, None];
        for ms in from..to {
            let (now, packets) = (Duration::from_millis(ms), if data { ms } else { 0 });
            for i in 0..2 {
                let (mut ports, mut changes) = (Sent(packets, Vec::new()), Vec::new());
                sides[i].poll(now, &mut ports, &mut changes);
                for (_, _, frame, _) in ports.1.iter().filter(|_| heard) {
                    sides[1 - i].receive(BridgeId(0), PORT_1, frame, now);
                }
                last[i] = changes.pop().map(|(_, _, s)| s).or(last[i].take());
            }
        }
        last
    }

    fn talk(sides: &mut [BfdSessions; 2], from: u64, to: u64, heard: bool) -> [Option<BfdStatus>; 2] {
        talk_with(sides, from, to, heard, false)
    }

    fn session(m: &BfdSessions) -> &Session {
        &m.iter().find(|(key, _)| *key == (BridgeId(0), PORT_1)).expect("a session").1.session
    }

    fn ready() -> BfdSessions {
        let mut m = BfdSessions::default();
        m.tables_ready(BridgeId(0), Duration::ZERO);
        m
    }

    #[test]
    fn an_idle_port_has_its_peer_slow_down() {
        let mut sides = [ready(), ready()];
        sides[0].set(BridgeId(0), PORT_1, Some(BfdSpec { decay: Some(2_500_000), ..SPEC }), Duration::ZERO);
        sides[1].set(BridgeId(0), PORT_1, Some(SPEC), Duration::ZERO);
        let pace = |m: &BfdSessions| session(m).tx_interval();
        talk_with(&mut sides, 0, 9000, true, true);
        assert_eq!(sides.each_ref().map(pace), [100_000; 2]);
        talk(&mut sides, 9000, 15_000, true);
        assert_eq!(sides.each_ref().map(pace), [100_000, 2_500_000]);
        let busy = talk_with(&mut sides, 15_000, 22_000, true, true);
        assert_eq!((sides.each_ref().map(pace), busy), ([100_000; 2], [None, None]), "and nobody's state changed");
        talk(&mut sides, 22_000, 30_000, true);
        assert_eq!(pace(&sides[1]), 2_500_000);
        sides[0].set(BridgeId(0), PORT_1, Some(SPEC), Duration::from_secs(30));
        talk(&mut sides, 30_000, 34_000, true);
        assert_eq!(pace(&sides[1]), 100_000);
    }

    /// Sessions of many ports send together, some at a time, and each within three quarters and all of its interval.
    #[test]
    fn many_sessions_send_at_few_moments() {
        const PORTS: u16 = 300;
        let mut sides = [ready(), ready()];
        for (side, port) in (0..2).flat_map(|side| (1..=PORTS).map(move |port| (side, port))) {
            sides[side].set(BridgeId(0), PortNo(port), Some(SPEC), Duration::from_micros(u64::from(port) * 333));
        }
        let (mut last, mut moments, mut packets) = (BTreeMap::new(), 0, 0);
        for ms in 0..6000u64 {
            let now = Duration::from_millis(ms);
            for side in 0..2 {
                let mut ports = Sent::default();
                while sides[side].poll(now, &mut ports, &mut Vec::new()) > 0 {}
                if ms >= 5000 {
                    moments += usize::from(!ports.1.is_empty());
                    packets += ports.1.len();
                }
                for (_, port, frame, _) in &ports.1 {
                    sides[1 - side].receive(BridgeId(0), *port, frame, now);
                    let gap = last.insert((side, *port), ms).map(|t| ms - t);
                    assert!(ms < 5000 || gap.is_some_and(|g| (75..=101).contains(&g)), "{port}: {gap:?} ms");
                }
            }
        }
        for m in &sides {
            assert!(m.iter().all(|(_, m)| m.session.state() == State::Up && m.flaps == 1));
        }
        assert!(packets > 2 * 10 * usize::from(PORTS) && moments < 2 * 130, "{packets} packets at {moments} moments");
    }

    #[test]
    fn received_packets_keep_a_path_forwarding_and_so_does_an_operator() {
        let mut sides = [ready(), ready()];
        sides[0].set(BridgeId(0), PORT_1, Some(BfdSpec { forwarding_if_rx: true, ..SPEC }), Duration::ZERO);
        sides[1].set(BridgeId(0), PORT_1, Some(SPEC), Duration::ZERO);
        talk_with(&mut sides, 0, 5000, true, true);
        let seen = |s: [Option<BfdStatus>; 2]| s.map(|s| s.map(|s| (s.state, s.forwarding, s.flaps)));
        let silent = talk_with(&mut sides, 5000, 10_000, false, true);
        assert_eq!(seen(silent), [Some((State::Down, true, 1)), Some((State::Down, false, 2))]);
        assert_eq!(seen(talk(&mut sides, 10_000, 13_000, false)), [Some((State::Down, false, 2)), None]);
        assert!(sides[1].force(None, Some(true)) && !sides[1].force(Some((BridgeId(0), PortNo(2))), Some(true)));
        assert_eq!(seen(talk(&mut sides, 13_000, 13_100, false)), [None, Some((State::Down, true, 2))]);
        assert!(sides[1].force(Some((BridgeId(0), PORT_1)), None));
        assert_eq!(seen(talk(&mut sides, 13_100, 13_200, false)), [None, Some((State::Down, false, 2))]);
    }

    #[test]
    fn sessions_wait_for_tables_come_up_and_go_down() {
        let mut sides = [BfdSessions::default(), BfdSessions::default()];
        sides.iter_mut().for_each(|m| m.set(BridgeId(0), PORT_1, Some(SPEC), Duration::ZERO));
        let state = |s: &Option<BfdStatus>| s.as_ref().map(|s| s.state);
        assert_eq!(talk(&mut sides, 0, 2000, true).each_ref().map(state), [Some(State::AdminDown); 2]);
        sides[0].tables_ready(BridgeId(0), Duration::from_secs(2));
        assert_eq!(
            talk(&mut sides, 2000, 4000, true).each_ref().map(state),
            [Some(State::Down), Some(State::AdminDown)]
        );
        sides[1].tables_ready(BridgeId(0), Duration::from_secs(4));
        let up = talk(&mut sides, 4000, 8000, true);
        assert!(up.iter().flatten().all(|s| s.forwarding && s.flaps == 1 && s.remote_state == "up"), "{up:?}");
        // `cpath_down` tells the other side not to send this way, and changes nothing here.
        let beyond = BfdSpec { session: Config { concatenated_path_down: true, ..SPEC.session }, ..SPEC };
        sides[0].set(BridgeId(0), PORT_1, Some(beyond), Duration::from_secs(8));
        let told = talk(&mut sides, 8000, 8200, true);
        let seen = told.map(|s| s.map(|s| (s.state, s.forwarding, s.diagnostic, s.remote_diagnostic)));
        let (none, path) = ("No Diagnostic", "Concatenated Path Down");
        assert_eq!(seen, [Some((State::Up, true, path, none)), Some((State::Up, false, none, path))]);
        sides[0].set(BridgeId(0), PORT_1, Some(SPEC), Duration::from_millis(8200));
        assert!(talk(&mut sides, 8200, 8400, true)[1].as_ref().is_some_and(|s| s.forwarding && s.flaps == 3));
        let down = talk(&mut sides, 8400, 8800, false);
        assert_eq!(down.each_ref().map(state), [Some(State::Down); 2]);
        assert_eq!(down.each_ref().map(|s| s.as_ref().map(|s| s.flaps)), [Some(2), Some(4)]);
        assert!(down.iter().flatten().all(|s| s.diagnostic == "Control Detection Time Expired"));
    }

    #[test]
    fn frames_are_those_of_the_manual_and_others_are_not_taken() {
        let mut m = BfdSessions::default();
        m.tables_ready(BridgeId(0), Duration::ZERO);
        m.set(BridgeId(0), PORT_1, Some(SPEC), Duration::ZERO);
        let mut ports = Sent::default();
        m.poll(Duration::ZERO, &mut ports, &mut Vec::new());
        let Some((BridgeId(0), PORT_1, frame, false)) = ports.1.first() else { panic!("{:?}", ports.1) };
        let h = Headers::parse(frame).expect("a frame");
        assert_eq!((frame.get(..6), h.proto, frame.get(22)), (Some(&SPEC.local_dst[..]), 17, Some(&255)));
        assert!(h.ports(frame).is_some_and(|(s, d)| s >= 49152 && d == PORT));
        let mut peer = BfdSessions::default();
        peer.tables_ready(BridgeId(0), Duration::ZERO);
        peer.set(BridgeId(0), PORT_1, Some(SPEC), Duration::ZERO);
        let mut far = frame.clone();
        far[22] = 254;
        peer.receive(BridgeId(0), PORT_1, &far, Duration::ZERO);
        peer.receive(BridgeId(0), PortNo(2), frame, Duration::ZERO);
        peer.receive(BridgeId(0), PORT_1, &[0; 40], Duration::ZERO);
        peer.set(BridgeId(0), PORT_1, Some(BfdSpec { remote_dst: Some(packet::Mac([2; 6])), ..SPEC }), Duration::ZERO);
        peer.receive(BridgeId(0), PORT_1, frame, Duration::ZERO);
        assert_eq!(session(&peer).state(), State::Down);
        peer.set(BridgeId(0), PORT_1, Some(BfdSpec { remote_dst: Some(SPEC.local_dst), ..SPEC }), Duration::ZERO);
        peer.receive(BridgeId(0), PORT_1, frame, Duration::ZERO);
        assert_eq!(session(&peer).state(), State::Init);
    }
}
