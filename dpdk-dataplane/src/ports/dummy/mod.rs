//! Dummy devices: network devices of this process alone, for test beds without a machine's network (`--enable-dummy`).
//! What a dummy sends goes to a capture file and over its wire; what it receives comes over the wire, or from an
//! operator (`netdev-dummy/receive`). For the packet path it is a device like others ([`dpdk_rs::Software`]).

mod pcap;
mod wire;

use crate::config::dummy::DummyOptions;
use dpdk_rs::Software;
use packet::{Mac, arp_op, build, ethertype};
use pcap::Pcap;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use wire::Wire;

/// Frames that wait to be received; more are dropped.
const WAITING: usize = 1000;
/// The address of the first dummy, if it asks for none; that of each further one is one higher. In Open vSwitch the
/// datapath has a dummy of its own before it.
const FIRST_MAC: u32 = 0xaa55_0001;

/// A dummy device.
#[derive(Debug)]
pub struct Dummy {
    name: String,
    /// There are frames to receive.
    waiting: AtomicBool,
    /// Administratively up.
    up: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mac: Mac,
    options: DummyOptions,
    /// Frames to receive.
    frames: VecDeque<Vec<u8>>,
    /// Captures of what is received, and of what is sent.
    captures: [Option<Arc<Pcap>>; 2],
    /// Those who take what is sent: the connections of the wire.
    peers: Vec<mpsc::Sender<Vec<u8>>>,
    wire: Option<Wire>,
    addresses: Vec<(IpAddr, u8)>,
}

impl Dummy {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> Mac {
        self.state().mac
    }

    /// Gives it another Ethernet address.
    pub fn set_mac(&self, mac: Mac) {
        self.state().mac = mac;
    }

    /// Whether it is administratively up.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Sets whether it is administratively up.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// Its IP addresses, with the lengths of their networks' prefixes.
    pub fn addresses(&self) -> Vec<(IpAddr, u8)> {
        self.state().addresses.clone()
    }

    /// Gives it one more IP address.
    pub fn add_address(&self, address: IpAddr, len: u8) {
        let mut s = self.state();
        if !s.addresses.contains(&(address, len)) {
            s.addresses.push((address, len));
        }
    }

    /// Whether the connection of its wire is up; none if it does not connect to anything.
    pub fn is_connected(&self) -> Option<bool> {
        let s = self.state();
        let active = s.wire.as_ref().is_some_and(|w| w.active);
        active.then(|| s.peers.iter().any(|p| !p.is_closed()))
    }

    /// Follows its options: opens capture files that it does not have open, or that somebody has deleted, and lays its
    /// wire, if that has changed. Gives what could not be done. To be called in a task.
    pub fn configure(self: &Arc<Dummy>, options: &DummyOptions) -> Option<String> {
        let mut s = self.state();
        let old = std::mem::replace(&mut s.options, options.clone());
        let mut failed = None;
        let current = |file: &Option<Arc<Pcap>>, path: &Option<String>| match (file, path) {
            (Some(file), Some(path)) => file.is(path),
            (file, path) => file.is_none() && path.is_none(),
        };
        let [received, sent] = &s.captures;
        if !current(received, &options.received) || !current(sent, &options.sent) {
            s.captures = Default::default();
            let mut open = |path: &Option<String>| {
                let path = path.as_ref()?;
                match Pcap::append(path) {
                    Ok(file) => Some(Arc::new(file)),
                    Err(e) => {
                        failed = Some(format!("{}: capture file {path}: {e}", self.name));
                        None
                    }
                }
            };
            let received = open(&options.received);
            let sent = if options.sent == options.received { received.clone() } else { open(&options.sent) };
            s.captures = [received, sent];
        }
        if old.wire != options.wire {
            s.peers.clear();
            s.wire = None;
            if let Some(method) = &options.wire {
                match Wire::lay(self, method) {
                    Ok(wire) => s.wire = Some(wire),
                    Err(e) => failed = Some(format!("{}: {method}: open failed ({e})", self.name)),
                }
            }
        }
        failed
    }

    fn connected(&self, peer: mpsc::Sender<Vec<u8>>) {
        let mut s = self.state();
        s.peers.retain(|p| !p.is_closed());
        s.peers.push(peer);
    }

    /// Has the device receive a frame.
    pub fn inject(&self, frame: Vec<u8>) {
        self.inject_to(&mut self.state(), frame);
        dpdk_rs::wake_now();
    }

    fn inject_to(&self, s: &mut State, frame: Vec<u8>) {
        self.capture(&s.captures[0], &frame);
        if s.frames.len() < WAITING {
            s.frames.push_back(frame);
            self.waiting.store(true, Ordering::Release);
        }
    }

    fn capture(&self, file: &Option<Arc<Pcap>>, frame: &[u8]) {
        if let Some(Err(e)) = file.as_ref().map(|f| f.write(frame)) {
            tracing::warn!(target: "netdev_dummy", "{}: capture file: {e}; a frame is missing there", self.name);
        }
    }
}

impl Software for Dummy {
    fn ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    fn receive(&self) -> Option<Vec<u8>> {
        let mut s = self.state();
        let frame = s.frames.pop_front();
        self.waiting.store(!s.frames.is_empty(), Ordering::Release);
        frame
    }

    fn send(&self, frame: &[u8]) {
        let mut s = self.state();
        // A peer that does not read misses some.
        s.peers.retain(|p| !matches!(p.try_send(frame.to_vec()), Err(mpsc::error::TrySendError::Closed(_))));
        self.capture(&s.captures[1], frame);
        if let Some(answer) = arp_answer(frame, s.mac, &s.addresses) {
            self.inject_to(&mut s, answer);
        }
    }

    fn up(&self) -> bool {
        self.is_up()
    }
}

/// The answer to a request for one of the addresses; what a kernel behind the device would say.
fn arp_answer(frame: &[u8], mac: Mac, addresses: &[(IpAddr, u8)]) -> Option<Vec<u8>> {
    if packet::be16(frame, 12)? != ethertype::ARP || packet::be16(frame, 20)? != arp_op::REQUEST {
        return None;
    }
    let wanted = Ipv4Addr::from(packet::be32(frame, 38)?);
    addresses.iter().find(|(a, _)| *a == wanted)?;
    let asker = Ipv4Addr::from(packet::be32(frame, 28)?);
    Some(build::arp_reply(mac, wanted, packet::mac_at(frame, 6)?, asker))
}

/// The dummies that there are, by name. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Dummies(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    devices: BTreeMap<String, Arc<Dummy>>,
    /// How many were made.
    numbered: u32,
}

impl Dummies {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a dummy, in place of one of that name, with this address or one of the list's own.
    pub fn make(&self, name: &str, mac: Option<Mac>) -> Arc<Dummy> {
        let mut list = self.list();
        let [a, b, c, d] = (FIRST_MAC + list.numbered).to_be_bytes();
        list.numbered += 1;
        let mac = mac.unwrap_or(Mac([0xaa, 0x55, a, b, c, d]));
        let dummy = Arc::new(Dummy {
            name: name.into(),
            waiting: AtomicBool::new(false),
            up: AtomicBool::new(true),
            state: Mutex::new(State { mac, ..State::default() }),
        });
        list.devices.insert(name.into(), dummy.clone());
        dummy
    }

    /// The dummy of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Dummy>> {
        self.list().devices.get(name).cloned()
    }

    /// Takes a dummy from the list, and closes its files and its wire.
    pub fn remove(&self, name: &str) {
        let removed = self.list().devices.remove(name);
        if let Some(d) = removed {
            d.configure(&DummyOptions::default());
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<(String, Arc<Dummy>)> {
        self.list().devices.iter().map(|(n, d)| (n.clone(), d.clone())).collect()
    }
}
