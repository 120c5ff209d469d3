//! What the bridges of a switch share and translation works on: ports by device and by name, connections, fragments,
//! the network that tunnels cross, drop counters. (Open vSwitch's `dpif_backer`.) The flow cache is not a part of it.

use super::port_numbers::PortNumbers;
use super::sample::Draws;
use crate::bridge::meter::{MeterNumbers, SharedMeter};
use crate::bridge::{Bridge, Bridges, Port, PortKind};
use crate::conntrack::reassembly::Fragments;
use crate::conntrack::{Awaiting, Conntrack, SharedConntrack};
use crate::drops::DropCounters;
use crate::events::Passage;
use crate::ids::{BridgeId, DeviceId};
use crate::netflow::NetflowCount;
use crate::tunnel::{Decapsulated, PacketMode, Sequence, TunnelConfig, TunnelKey, TunnelKind, Underlay};
use openflow_rs::MeterId;
use openflow_rs::PortNo;
use openflow_rs::action::PacketType;
use packet::VlanId;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

/// A request that the switch refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwitchError {
    /// No such bridge.
    #[error("bridge {0} does not exist")]
    NoBridge(BridgeId),
    /// The port number is taken.
    #[error("port {0} of bridge {1} exists; choose another ofport")]
    PortExists(PortNo, String),
    /// The device belongs to a port.
    #[error("device {0} already belongs to a port")]
    DeviceTaken(DeviceId),
    /// The continuation is not one of this switch.
    #[error("the continuation is not one of this switch; resume only what it paused, unchanged")]
    Continuation,
}

/// Cache of the peers of patch ports and of tunnel ports by outer addresses; cleared whenever ports change.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(crate) patches: BTreeMap<(BridgeId, PortNo), Option<(BridgeId, PortNo)>>,
    /// Tunnel ports by kind, addresses, key and UDP port of packets that came; [`TUNNELS`] at most.
    tunnels: hashbrown::HashMap<TunnelLookup, Option<TunnelEnd>>,
    /// Whether there are tunnel ports at all.
    any_tunnel: Option<bool>,
    /// One of them is of GRE.
    any_gre: Option<bool>,
    /// One of them is of SRv6.
    any_srv6: Option<bool>,
}

type TunnelLookup = (TunnelKind, IpAddr, IpAddr, TunnelKey, u16, (PacketType, bool));
/// A tunnel port.
type TunnelEnd = (BridgeId, PortNo);

/// Places of the cache of tunnel ports: a gateway has one for each chassis, and packets come from all of them in turns.
const TUNNELS: usize = 8192;

/// Most recirculations that have numbers; beyond it all get new ones.
const RECIRCULATIONS: usize = 65_536;

/// The first number in a name.
fn number_in(name: &str) -> Option<u32> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Bridges, and what they share.
#[derive(Debug)]
pub struct Backer {
    pub(crate) bridges: Bridges,
    /// Ports by device; each walk looks its own up, so the hash is a fast one.
    pub(crate) devices: hashbrown::HashMap<DeviceId, (BridgeId, PortNo)>,
    ports_by_name: HashMap<String, (BridgeId, PortNo)>,
    /// Numbers of the datapath's ports. Whoever opens devices takes theirs from here.
    pub numbers: PortNumbers,
    /// Those of its meters.
    meter_numbers: MeterNumbers,
    /// Cached peers of patch ports and tunnels.
    pub(crate) peers: Peers,
    /// Numbers of recirculations that dumps of cached flows told of.
    recirculations: HashMap<u64, u32>,
    next_recirculation: u32,
    /// Numbers of tunnels' packets.
    sequences: HashMap<(BridgeId, PortNo), Sequence>,
    /// Connections. Fast paths open some, too.
    pub conntrack: SharedConntrack,
    /// Fragments that wait to be tracked.
    pub fragments: Fragments,
    /// Packets that wait for word of their connection.
    pub awaiting: Awaiting,
    /// The network that tunnels cross.
    pub underlay: Underlay,
    /// Packets dropped, by reason.
    pub drops: DropCounters,
    /// Packets that `sample` actions saw.
    pub samples: u64,
    /// What ports receive is dropped, as flows are being restored ([`crate::Switch::set_restoring`]).
    pub(crate) restoring: bool,
    /// Packets of which nothing leaves but samples are dropped ones ([`crate::Switch::set_sampled_drops`]).
    pub(crate) sampled_drops: bool,
    /// By which these choose some of them.
    pub(crate) draws: Draws,
    /// The packet at hand is observed.
    pub(crate) observing: bool,
    /// Packets of NetFlow's flows that nobody was told of yet.
    pub(crate) netflow: Vec<NetflowCount>,
    /// While a packet is observed, or counted for NetFlow: where it went, by bridge that it has entered and not left.
    pub(crate) passing: Option<Vec<Passage>>,
    /// The time of the packet or job at hand.
    pub(crate) now: Duration,
    /// Before this time no packet that passes a limit is told of.
    pub(crate) limit_told: Duration,
    /// Moves when a bridge is added or handed out to be changed.
    pub(crate) opened: u64,
    /// The datapath can cut packets (`trunc` of ovs-vswitchd(8)'s `dpif/set-dp-features`). If not, a trace says that
    /// such a flow takes the slow path; nothing else depends on it.
    pub cuts: bool,
    /// Ports of the datapath have the numbers that are in their names, as in test beds.
    pub numbers_by_name: bool,
    /// The datapath puts packets into tunnels as it is told byte for byte (`tnl_push_pop` there). If not, a trace says
    /// what it would be told; nothing else depends on it.
    pub pushes: bool,
}

impl Backer {
    /// Without bridges; `connections` is the capacity of connection tracking.
    pub(crate) fn new(connections: usize) -> Backer {
        Backer {
            bridges: Bridges::default(),
            devices: hashbrown::HashMap::new(),
            ports_by_name: HashMap::new(),
            numbers: PortNumbers::default(),
            meter_numbers: MeterNumbers::default(),
            peers: Peers::default(),
            recirculations: HashMap::new(),
            next_recirculation: 0,
            sequences: HashMap::new(),
            conntrack: SharedConntrack::new(Conntrack::new(connections)),
            fragments: Fragments::default(),
            awaiting: Awaiting::default(),
            underlay: Underlay::default(),
            drops: DropCounters::default(),
            samples: 0,
            restoring: false,
            sampled_drops: false,
            draws: Draws::default(),
            observing: false,
            netflow: Vec::new(),
            passing: None,
            limit_told: Duration::ZERO,
            now: Duration::ZERO,
            opened: 0,
            cuts: true,
            numbers_by_name: false,
            pushes: true,
        }
    }

    /// A version that moves when bridges, ports or tables change. Every summand only grows.
    pub(crate) fn tables_version(&self) -> u64 {
        self.bridges.iter().fold(self.opened, |v, b| v + b.version + b.epoch)
    }

    /// Adds a bridge.
    pub fn add_bridge(&mut self, name: &str, datapath_id: u64) -> BridgeId {
        self.peers = Peers::default();
        self.opened += 1;
        let meter_numbers = self.meter_numbers.clone();
        self.bridges.add(Bridge { meter_numbers, ..Bridge::new(name, datapath_id) })
    }

    /// A bridge.
    pub fn bridge(&self, id: BridgeId) -> Option<&Bridge> {
        self.bridges.get(id)
    }

    /// The bridges. Removed bridges have no name and are left out.
    pub fn bridges(&self) -> impl Iterator<Item = (BridgeId, &Bridge)> {
        self.bridges.numbered().filter(|(_, b)| !b.name.is_empty())
    }

    /// A bridge, to change it: all cached flows become stale. Add and remove ports with [`Backer::add_port`] and
    /// [`Backer::remove_port`] only.
    pub fn bridge_mut(&mut self, id: BridgeId) -> Option<&mut Bridge> {
        self.peers = Peers::default();
        self.opened += 1;
        self.bridges.get_mut(id)
    }

    /// A bridge's number.
    pub fn bridge_by_name(&self, name: &str) -> Option<BridgeId> {
        self.bridges.numbered().find_map(|(id, b)| (b.name == name).then_some(id))
    }

    /// Adds a port.
    ///
    /// # Errors
    /// The bridge is not there, or number or device are taken.
    pub fn add_port(&mut self, bridge: BridgeId, port: Port) -> Result<(), SwitchError> {
        self.peers = Peers::default();
        let b = self.bridges.get_mut(bridge).ok_or(SwitchError::NoBridge(bridge))?;
        if b.ports.contains_key(&port.no) {
            return Err(SwitchError::PortExists(port.no, b.name.clone()));
        }
        if let PortKind::Device(d) | PortKind::Internal(d) = &port.kind {
            if self.devices.contains_key(d) {
                return Err(SwitchError::DeviceTaken(*d));
            }
            self.devices.insert(*d, (bridge, port.no));
        }
        self.ports_by_name.insert(port.name.clone(), (bridge, port.no));
        let numbered = matches!(&port.kind, PortKind::Tunnel(t) if !t.kind.is_udp());
        b.ports.insert(port.no, port);
        b.epoch += 1;
        if numbered {
            self.number_tunnels();
        }
        Ok(())
    }

    /// Removes a port.
    pub fn remove_port(&mut self, bridge: BridgeId, no: PortNo) -> Option<Port> {
        self.peers = Peers::default();
        let b = self.bridges.get_mut(bridge)?;
        let p = b.ports.remove(&no)?;
        let behind: Vec<(VlanId, u64)> =
            b.macs.iter().filter(|k| k.port == no && !k.fixed).map(|k| (k.vlan, k.mac)).collect();
        self.sequences.remove(&(bridge, no));
        b.forget_port(no);
        b.epoch += 1;
        // What was behind the port is no longer where other bridges, which are patched to this one, have seen it.
        for other in &mut self.bridges {
            behind.iter().for_each(|(vlan, mac)| other.macs.forget(*vlan, *mac));
        }
        self.ports_by_name.remove(&p.name);
        if let PortKind::Device(d) | PortKind::Internal(d) = &p.kind {
            self.devices.remove(d);
        }
        if matches!(&p.kind, PortKind::Tunnel(t) if !t.kind.is_udp()) {
            self.number_tunnels();
        }
        Some(p)
    }

    /// The port of a device.
    pub fn port_of_device(&self, device: DeviceId) -> Option<(BridgeId, PortNo)> {
        self.devices.get(&device).copied()
    }

    /// Whether there is a port of this name.
    pub fn has_port(&self, name: &str) -> bool {
        self.ports_by_name.contains_key(name)
    }

    /// The port of a name, or the own port of a bridge.
    pub fn addressed_port(&self, name: &str) -> Option<(BridgeId, PortNo)> {
        self.find_port(name).or_else(|| self.bridge_by_name(name).map(|b| (b, PortNo::LOCAL)))
    }

    /// A port by name, across all bridges.
    pub(crate) fn find_port(&self, name: &str) -> Option<(BridgeId, PortNo)> {
        self.ports_by_name.get(name).copied()
    }

    pub(crate) fn port_live(&self, bridge: BridgeId, no: PortNo) -> bool {
        self.bridges.get(bridge).and_then(|b| b.ports.get(&no)).is_some_and(Port::live)
    }

    pub(crate) fn meter_pass(&self, bridge: BridgeId, id: MeterId, bytes: usize) -> bool {
        self.meter(bridge, id).is_none_or(|m| m.pass(bytes, self.now))
    }

    pub(crate) fn meter(&self, bridge: BridgeId, id: MeterId) -> Option<&SharedMeter> {
        self.bridges.get(bridge)?.meters.get(&id).map(|m| &m.shared)
    }

    /// The tunnel port that a packet arrives at: the one with the most specific options.
    pub(crate) fn tunnel_port(&mut self, d: &Decapsulated) -> Option<TunnelEnd> {
        let asked = (d.kind, d.src, d.dst, d.key, d.ports[1], (d.packet_type, d.gpe));
        if let Some(found) = self.peers.tunnels.get(&asked) {
            return *found;
        }
        let found = self.search_tunnel_port(d);
        if self.peers.tunnels.len() >= TUNNELS {
            self.peers.tunnels.clear();
        }
        self.peers.tunnels.insert(asked, found);
        found
    }

    /// The tunnel port that a packet with this header comes in by; `inner` is its type, if it is known.
    pub fn tunnel_end(
        &mut self,
        kind: TunnelKind,
        ends: [IpAddr; 2],
        (key, port): (TunnelKey, u16),
        inner: Option<PacketType>,
    ) -> Option<TunnelEnd> {
        let mut d = Decapsulated::of(kind, ends, key, port);
        d.packet_type = inner.unwrap_or(d.packet_type);
        self.tunnel_port(&d)
    }

    /// The device of a port.
    pub(crate) fn device_of_port(&self, name: &str) -> Option<DeviceId> {
        let (bridge, no) = self.addressed_port(name)?;
        match self.bridges.get(bridge)?.ports.get(&no)?.kind {
            PortKind::Device(d) | PortKind::Internal(d) => Some(d),
            PortKind::Patch(_) | PortKind::Tunnel(_) => None,
        }
    }

    /// The name of a port of the datapath, by its number: that of a device's port, or the one that all tunnels of a
    /// kind have.
    pub fn datapath_port_name(&self, number: u32) -> Option<String> {
        let ports = |bridge: BridgeId| self.bridges.get(bridge).map(|b| &b.ports);
        if let Some((bridge, no)) = self.devices.get(&DeviceId(number)) {
            return ports(*bridge)?.get(no).map(|p| p.name.clone());
        }
        let mut tunnels = self.bridges.iter().flat_map(|b| b.ports.values()).filter_map(|p| match &p.kind {
            PortKind::Tunnel(t) => Some(t),
            _ => None,
        });
        let t = tunnels.find(|t| self.tunnel_number(t) == number)?;
        let name = t.datapath_port();
        Some(if t.kind.is_udp() { format!("{name}_{}", t.udp_port) } else { name.into() })
    }

    /// The tunnels of all bridges.
    pub(crate) fn tunnels(&self) -> impl Iterator<Item = &TunnelConfig> {
        let ports = self.bridges.iter().flat_map(|b| b.ports.values());
        ports.filter_map(|p| if let PortKind::Tunnel(t) = &p.kind { Some(&**t) } else { None })
    }

    /// The number of the port of the datapath that a tunnel's packets come by, as Open vSwitch numbers those: the UDP
    /// port; for other encapsulations the one that its name has in a test bed, if that is free, else the first that was
    /// free when the first such tunnel came.
    pub fn tunnel_number(&self, t: &TunnelConfig) -> u32 {
        if t.kind.is_udp() {
            return t.udp_port.into();
        }
        self.numbers.tunnel(t.datapath_port()).unwrap_or(0)
    }

    /// The same of the tunnel that is a bridge's port; 0 if it is none.
    pub(crate) fn number_of_tunnel(&self, bridge: BridgeId, no: PortNo) -> u32 {
        match self.bridges.get(bridge).and_then(|b| b.ports.get(&no)).map(|p| &p.kind) {
            Some(PortKind::Tunnel(t)) => self.tunnel_number(t),
            _ => 0,
        }
    }

    /// The number of a recirculation, by what it is told apart by: the same for packets that go on alike.
    pub(crate) fn recirculation(&mut self, identity: u64) -> u32 {
        if self.recirculations.len() >= RECIRCULATIONS {
            self.recirculations.clear();
        }
        let next = &mut self.next_recirculation;
        *self.recirculations.entry(identity).or_insert_with(|| {
            *next = next.checked_add(1).unwrap_or(1);
            *next
        })
    }

    /// Numbers the common ports of tunnels, after a port has come, gone, or changed what it is.
    pub fn number_tunnels(&mut self) {
        let Backer { bridges, devices, numbers, numbers_by_name, .. } = self;
        let names = bridges.iter().flat_map(|b| b.ports.values()).filter_map(|p| match &p.kind {
            PortKind::Tunnel(t) if !t.kind.is_udp() => Some(t.datapath_port()),
            _ => None,
        });
        let wanted = |name: &str| if *numbers_by_name { number_in(name) } else { None };
        numbers.keep_tunnels(&names.collect(), wanted, |n| devices.contains_key(&DeviceId(n)));
    }

    /// Takes over at which UDP ports tunnels end.
    pub(crate) fn listen(&mut self) {
        let ports = self.bridges.iter().flat_map(|b| b.ports.values());
        let tunnels = ports.filter_map(|p| if let PortKind::Tunnel(t) = &p.kind { Some(&**t) } else { None });
        self.underlay.local.listen(tunnels);
    }

    /// Whether there are tunnel ports: without one no tunnel ends here.
    pub(crate) fn has_tunnels(&mut self) -> bool {
        let Backer { bridges, peers, .. } = self;
        let mut ports = bridges.iter().flat_map(|b| b.ports.values());
        *peers.any_tunnel.get_or_insert_with(|| ports.any(|p| matches!(p.kind, PortKind::Tunnel(_))))
    }

    /// Whether there are ports of GRE: without one no packet of it is taken.
    pub(crate) fn has_gre(&mut self) -> bool {
        let Backer { bridges, peers, .. } = self;
        let mut ports = bridges.iter().flat_map(|b| b.ports.values());
        let gre = |p: &Port| matches!(&p.kind, PortKind::Tunnel(t) if t.kind.is_gre());
        *peers.any_gre.get_or_insert_with(|| ports.any(gre))
    }

    /// The same of SRv6.
    pub(crate) fn has_srv6(&mut self) -> bool {
        let Backer { bridges, peers, .. } = self;
        let mut ports = bridges.iter().flat_map(|b| b.ports.values());
        let srv6 = |p: &Port| matches!(&p.kind, PortKind::Tunnel(t) if t.kind == TunnelKind::Srv6);
        *peers.any_srv6.get_or_insert_with(|| ports.any(srv6))
    }

    /// The numbers of a tunnel's packets, from 0 in one that was added anew.
    pub(crate) fn sequence(&mut self, tunnel: (BridgeId, PortNo)) -> Sequence {
        self.sequences.entry(tunnel).or_default().clone()
    }

    fn search_tunnel_port(&self, d: &Decapsulated) -> Option<TunnelEnd> {
        let mut best: Option<(u32, TunnelEnd)> = None;
        for (id, b) in self.bridges.numbered() {
            for p in b.ports.values() {
                let PortKind::Tunnel(c) = &p.kind else { continue };
                let fits = c.kind == d.kind
                    && c.udp_port == d.ports[1]
                    && c.remote.is_none_or(|r| r == d.src)
                    && c.local.is_none_or(|l| l == d.dst)
                    && c.in_key.is_none_or(|k| k == d.key)
                    && c.gpe == d.gpe
                    && c.mode.takes(d.packet_type);
                let score = u32::from(c.in_key.is_some()) * 4
                    + u32::from(c.remote.is_some()) * 2
                    + u32::from(c.local.is_some());
                // Of two ports alike, the one that knows of types comes after the other.
                let score = score * 2 + u32::from(c.mode != PacketMode::Aware);
                if fits && best.as_ref().is_none_or(|(s, _)| score > *s) {
                    best = Some((score, (id, p.no)));
                }
            }
        }
        best.map(|(_, x)| x)
    }
}
