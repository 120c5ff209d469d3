//! What the derivation found, by kind, and in which state of each kind.

use super::{Derive, Key, Value};
use crate::evpn::rows as evpn;
use crate::input::model::{Input, ONLY_FLOWS, Read};
use crate::pinctrl::announce::Address;
use crate::pinctrl::bfd;
use crate::pinctrl::boot::Rules;
use crate::pinctrl::{Snapshot, Told};
use crate::pinctrl::{health, next_hops, prefix};
use crate::plug::Wish;
use crate::routing::rows;
use crate::rows::claims::Step;
use crate::rows::learned;
use crate::rows::mirrors::Copies;
use crate::rows::tunnels::Tunnel;
use incremental::{Change, Engine};
use ovn_schema::sb::TableId;
use ovn_schema::{DatapathKey, Map, PortKey, Set, Str, Uuid, sb};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Another number each time that something of the kind changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Zones that are needed, and requested numbers.
    pub zones: u64,
    /// Limits of connections.
    pub limits: u64,
    /// What is to be done with bindings.
    pub claims: u64,
    /// Patch ports.
    pub patches: u64,
    /// Announced addresses.
    pub addresses: u64,
    /// Queues.
    pub queues: u64,
    /// Tunnels, and which of them are watched.
    pub tunnels: u64,
    /// Ports whose packets are copied.
    pub mirrored: u64,
    /// Ports for which devices are plugged in.
    pub plugs: u64,
    /// Ports that exchange routes, and prefixes.
    pub routes: u64,
    /// Switches that EVPN extends, and what they advertise.
    pub evpn: u64,
}

/// The derivation with what it found.
pub struct Presence {
    engine: Engine<Derive>,
    /// Whose presence it is: the chassis' row, and its encapsulations.
    of: (Option<Uuid>, Option<Set<Uuid>>),
    anchors: BTreeSet<Uuid>,
    ways: BTreeMap<Uuid, BTreeSet<Uuid>>,
    moved: bool,
    /// Groups of chassis that serve local datapaths.
    groups: BTreeSet<Uuid>,
    groups_moved: bool,
    /// Tunnels that there should be, by their marks.
    pub tunnels: BTreeMap<Str, Tunnel>,
    /// The chassis to which they run BFD.
    pub watched: BTreeSet<Uuid>,
    /// Zones that are needed.
    pub zones: BTreeSet<Str>,
    /// The numbers that routers' zones are to have.
    pub requested: BTreeMap<Str, u16>,
    /// How many connections zones may have.
    pub limits: BTreeMap<Str, i64>,
    /// What is to be done with bindings; nothing, most of the time.
    pub steps: BTreeMap<Uuid, Step>,
    /// Bindings whose encapsulation is another than they say.
    pub encapsulations: BTreeSet<Uuid>,
    /// Why ports are not claimed.
    pub unclaimed: BTreeMap<Str, Str>,
    /// Interfaces whose ports this chassis has, whether or not the database says so yet.
    pub bound: BTreeMap<Uuid, Str>,
    /// Of these, which changed and were not looked at since.
    pub bound_anew: BTreeSet<Uuid>,
    /// Ports that need patch ports: their types and provider networks.
    pub patches: BTreeMap<Str, (Str, Option<Str>)>,
    /// Addresses that are announced.
    pub addresses: BTreeSet<Address>,
    /// What routers of this chassis are to know of them and were not told yet; true: only of what they know already.
    pub to_tell: BTreeMap<learned::Key, bool>,
    /// Queues, by provider network and number: port and rates.
    pub queues: BTreeMap<(Str, i64), (Str, Map<Str, Str>)>,
    /// Ports for which this controller plugs devices in.
    pub plugs: BTreeMap<Str, Wish>,
    /// Mirrors and local ports whose packets they copy: the ports' interfaces, and what is copied where.
    pub mirrored: BTreeMap<(Uuid, Str), (Uuid, Copies)>,
    /// Health checks of this chassis, and those that changed and nobody looked at since.
    pub checks: BTreeMap<Uuid, health::Target>,
    /// See [`Presence::checks`].
    pub checks_anew: BTreeSet<Uuid>,
    /// Next hops that this chassis asks, and those that changed and nobody looked at since.
    pub next_hops: BTreeMap<Uuid, next_hops::Question>,
    /// See [`Presence::next_hops`].
    pub next_hops_anew: BTreeSet<Uuid>,
    /// Ports that get prefixes by this chassis, and those that changed and nobody looked at since.
    pub delegations: BTreeMap<Uuid, prefix::Requester>,
    /// See [`Presence::delegations`].
    pub delegations_anew: BTreeSet<Uuid>,
    /// Router ports that exchange routes.
    pub exchanges: BTreeMap<Uuid, rows::Port>,
    /// Prefixes that are advertised.
    pub advertised: BTreeMap<Uuid, rows::Advertised>,
    /// Switches that EVPN extends.
    pub evpn: BTreeMap<Uuid, evpn::Switch>,
    /// Ethernet addresses of this chassis that they advertise.
    pub evpn_macs: BTreeSet<(Uuid, Mac)>,
    /// Neighbours likewise.
    pub evpn_neighbours: BTreeSet<(Uuid, IpAddr, Mac)>,
    /// BFD sessions of this chassis.
    pub sessions: BTreeMap<Uuid, bfd::Wanted>,
    names: BTreeMap<(DatapathKey, Uuid), Arc<sb::Dns>>,
    distributed: BTreeMap<(DatapathKey, PortKey), PortKey>,
    boot: BTreeMap<(DatapathKey, Mac), Arc<Rules>>,
    /// What changed for the packet-in services and they were not told yet; all of it where they are to begin anew.
    told: Vec<Told>,
    anew: bool,
    /// In which state each kind is.
    pub versions: Versions,
    ran: usize,
}

impl Default for Presence {
    fn default() -> Presence {
        Presence {
            engine: Engine::new(Derive),
            of: (None, None),
            anchors: BTreeSet::new(),
            ways: BTreeMap::new(),
            moved: true,
            groups: BTreeSet::new(),
            groups_moved: true,
            tunnels: BTreeMap::new(),
            watched: BTreeSet::new(),
            zones: BTreeSet::new(),
            requested: BTreeMap::new(),
            limits: BTreeMap::new(),
            steps: BTreeMap::new(),
            encapsulations: BTreeSet::new(),
            unclaimed: BTreeMap::new(),
            bound: BTreeMap::new(),
            bound_anew: BTreeSet::new(),
            patches: BTreeMap::new(),
            addresses: BTreeSet::new(),
            to_tell: BTreeMap::new(),
            queues: BTreeMap::new(),
            plugs: BTreeMap::new(),
            mirrored: BTreeMap::new(),
            checks: BTreeMap::new(),
            checks_anew: BTreeSet::new(),
            next_hops: BTreeMap::new(),
            next_hops_anew: BTreeSet::new(),
            delegations: BTreeMap::new(),
            delegations_anew: BTreeSet::new(),
            exchanges: BTreeMap::new(),
            advertised: BTreeMap::new(),
            evpn: BTreeMap::new(),
            evpn_macs: BTreeSet::new(),
            evpn_neighbours: BTreeSet::new(),
            sessions: BTreeMap::new(),
            names: BTreeMap::new(),
            distributed: BTreeMap::new(),
            boot: BTreeMap::new(),
            told: Vec::new(),
            anew: true,
            versions: Versions::default(),
            ran: 0,
        }
    }
}

/// Whether nothing but flows follows from a thing.
fn is_only_for_flows(r: &Read) -> bool {
    match r {
        Read::Row(t, _) | Read::Table(t) => ONLY_FLOWS.contains(t),
        Read::FlowsOf(_) | Read::GroupsOf(_) | Read::Zone(_) | Read::Evpn(_) => true,
        _ => false,
    }
}

impl Presence {
    /// Brings what is here up to date with changes of the input, local datapaths among it. Gives what changed of the input thereby.
    pub fn settle(&mut self, input: &mut Input, changed: &[Read]) -> Vec<Read> {
        let of = (input.local.chassis, input.own_encaps().cloned());
        if self.of != of {
            self.restart();
            self.of = of;
        }
        self.ran = 0;
        // Forwarding entries are advertised by EVPN, and are nobody's business otherwise.
        let advertised = |r: &Read| matches!(r, Read::Row(TableId::Fdb, _)) && !self.evpn.is_empty();
        let mut next: Vec<Read> = changed.iter().filter(|r| !is_only_for_flows(r) || advertised(r)).cloned().collect();
        let mut out = Vec::new();
        while !next.is_empty() || !self.engine.started() {
            self.update(input, next);
            next = Vec::new();
            if std::mem::take(&mut self.moved) {
                let reads = input.set_datapaths(self.reached());
                out.extend_from_slice(&reads);
                next = reads.into_iter().filter(|r| !is_only_for_flows(r)).collect();
            }
            if std::mem::take(&mut self.groups_moved) {
                next.extend(input.set_serving(&self.groups));
            }
        }
        out
    }

    /// Derives everything anew at the next look.
    pub fn restart(&mut self) {
        // Who waits for a version sees another one.
        let v = self.versions;
        let versions = Versions {
            zones: v.zones + 1,
            limits: v.limits + 1,
            claims: v.claims + 1,
            patches: v.patches + 1,
            addresses: v.addresses + 1,
            queues: v.queues + 1,
            tunnels: v.tunnels + 1,
            mirrored: v.mirrored + 1,
            plugs: v.plugs + 1,
            routes: v.routes + 1,
            evpn: v.evpn + 1,
        };
        // Who is told differences is told of what is there no more.
        let bound_anew =
            std::mem::take(&mut self.bound).into_keys().chain(std::mem::take(&mut self.bound_anew)).collect();
        let checks = std::mem::take(&mut self.checks).into_keys();
        let checks_anew = checks.chain(std::mem::take(&mut self.checks_anew)).collect();
        let next_hops = std::mem::take(&mut self.next_hops).into_keys();
        let next_hops_anew = next_hops.chain(std::mem::take(&mut self.next_hops_anew)).collect();
        let delegations = std::mem::take(&mut self.delegations).into_keys();
        let delegations_anew = delegations.chain(std::mem::take(&mut self.delegations_anew)).collect();
        *self = Presence {
            versions,
            bound_anew,
            checks_anew,
            next_hops_anew,
            delegations_anew,
            of: std::mem::take(&mut self.of),
            ..Presence::default()
        };
    }

    /// How many units ran in the last [`Presence::settle`].
    pub fn ran(&self) -> usize {
        self.ran
    }

    /// The local datapaths: those with an anchor, and what is reached from them.
    fn reached(&self) -> BTreeSet<Uuid> {
        let mut out = self.anchors.clone();
        let mut queue: Vec<Uuid> = out.iter().copied().collect();
        while let Some(dp) = queue.pop() {
            queue.extend(self.ways.get(&dp).into_iter().flatten().filter(|to| out.insert(**to)));
        }
        out
    }

    fn update(&mut self, input: &Input, reads: Vec<Read>) {
        let mut engine = std::mem::replace(&mut self.engine, Engine::new(Derive));
        engine.update(input, reads, |changes| changes.for_each(|c| self.take(c)));
        self.ran += engine.stats().ran;
        self.engine = engine;
    }

    fn take(&mut self, c: Change<'_, Key, Value>) {
        let now = c.after.into_iter().next();
        let there = now.is_some();
        let v = &mut self.versions;
        match c.key {
            Key::Anchor(dp) => {
                self.moved = true;
                set(&mut self.anchors, dp, there);
            }
            Key::Way(from, to) => {
                self.moved = true;
                let of = self.ways.entry(*from).or_default();
                set(of, to, there);
                if of.is_empty() {
                    self.ways.remove(from);
                }
            }
            Key::Zone(name) => {
                v.zones += 1;
                set(&mut self.zones, name, there);
            }
            Key::Requested(name) => {
                v.zones += 1;
                let number = now.and_then(|n| if let Value::Number(n) = n { u16::try_from(n).ok() } else { None });
                put(&mut self.requested, name, number);
            }
            Key::Limit(name) => {
                v.limits += 1;
                put(&mut self.limits, name, now.and_then(|n| if let Value::Number(n) = n { Some(n) } else { None }));
            }
            Key::Step(id) => {
                v.claims += 1;
                put(&mut self.steps, id, now.and_then(|n| if let Value::Step(s) = n { Some(s) } else { None }));
            }
            Key::Encapsulation(id) => {
                v.claims += 1;
                set(&mut self.encapsulations, id, there);
            }
            Key::Unclaimed(name) => {
                v.claims += 1;
                put(&mut self.unclaimed, name, now.and_then(Value::text));
            }
            Key::Bound(row) => {
                self.bound_anew.insert(*row);
                put(&mut self.bound, row, now.and_then(Value::text));
            }
            Key::Patch(name) => {
                v.patches += 1;
                let patch = now.and_then(|n| if let Value::Patch(kind, net) = n { Some((kind, net)) } else { None });
                put(&mut self.patches, name, patch);
            }
            Key::Address(a) => {
                v.addresses += 1;
                set(&mut self.addresses, a, there);
            }
            Key::Tells(told) => {
                v.addresses += 1;
                put(&mut self.to_tell, told, now.map(|n| n == Value::Number(1)));
            }
            Key::Queue(network, number) => {
                v.queues += 1;
                let queue = now.and_then(|n| if let Value::Queue(port, q) = n { Some((port, q)) } else { None });
                put(&mut self.queues, &(network.clone(), *number), queue);
            }
            Key::Plug(name) => {
                v.plugs += 1;
                put(&mut self.plugs, name, now.and_then(|n| if let Value::Plug(w) = n { Some(w) } else { None }));
            }
            Key::Serves(group) => {
                self.groups_moved = true;
                set(&mut self.groups, group, there);
            }
            Key::Tunnel(mark) => {
                v.tunnels += 1;
                put(&mut self.tunnels, mark, now.and_then(|n| if let Value::Tunnel(t) = n { Some(t) } else { None }));
            }
            Key::Watched(chassis) => {
                v.tunnels += 1;
                set(&mut self.watched, chassis, there);
            }
            Key::Mirrored(mirror, name) => {
                v.mirrored += 1;
                let copied = now.and_then(|n| if let Value::Mirrored(i, c) = n { Some((i, c)) } else { None });
                put(&mut self.mirrored, &(*mirror, name.clone()), copied);
            }
            Key::Check(id) => {
                self.checks_anew.insert(*id);
                put(&mut self.checks, id, now.and_then(|n| if let Value::Check(t) = n { Some(t) } else { None }));
            }
            Key::NextHop(id) => {
                self.next_hops_anew.insert(*id);
                let question = now.and_then(|n| if let Value::Question(q) = n { Some(q) } else { None });
                put(&mut self.next_hops, id, question);
            }
            Key::Delegation(id) => {
                self.delegations_anew.insert(*id);
                let requester = now.and_then(|n| if let Value::Delegation(r) = n { Some(r) } else { None });
                put(&mut self.delegations, id, requester);
            }
            Key::Evpn(datapath) => {
                v.evpn += 1;
                put(
                    &mut self.evpn,
                    datapath,
                    now.and_then(|n| if let Value::Evpn(s) = n { Some(Arc::unwrap_or_clone(s)) } else { None }),
                );
            }
            Key::EvpnMac(datapath, mac) => {
                v.evpn += 1;
                set(&mut self.evpn_macs, &(*datapath, *mac), there);
            }
            Key::EvpnNeighbour(datapath, ip, mac) => {
                v.evpn += 1;
                set(&mut self.evpn_neighbours, &(*datapath, *ip, *mac), there);
            }
            Key::Lacks(datapath, option) => {
                if there {
                    tracing::warn!(target: "neighbor", kind = *option, "Datapath {datapath} misses {option}");
                }
            }
            Key::Exchange(id) => {
                v.routes += 1;
                put(&mut self.exchanges, id, now.and_then(|n| if let Value::Exchange(p) = n { Some(p) } else { None }));
            }
            Key::Advertised(id) => {
                v.routes += 1;
                put(
                    &mut self.advertised,
                    id,
                    now.and_then(|n| if let Value::Advertised(a) = n { Some(a) } else { None }),
                );
            }
            Key::Session(row) => {
                let wanted = now.and_then(|n| if let Value::Session(w) = n { Some(w) } else { None });
                put(&mut self.sessions, row, wanted.clone());
                self.tell(Told::Session(*row, wanted));
            }
            Key::Names(datapath, row) => {
                let names = now.and_then(|n| if let Value::Names(n) = n { Some(n.0) } else { None });
                put(&mut self.names, &(*datapath, *row), names.clone());
                self.tell(Told::Names(*datapath, *row, names));
            }
            Key::Distributed(datapath, port) => {
                let behind = now.and_then(|n| if let Value::Port(key) = n { Some(key) } else { None });
                put(&mut self.distributed, &(*datapath, *port), behind);
                self.tell(Told::Distributed((*datapath, *port), behind));
            }
            Key::Boot(datapath, machine) => {
                let rules = now.and_then(|n| if let Value::Boot(r) = n { Some(r) } else { None });
                put(&mut self.boot, &(*datapath, *machine), rules.clone());
                self.tell(Told::Boot((*datapath, *machine), rules));
            }
        }
    }

    fn tell(&mut self, told: Told) {
        if !self.anew {
            self.told.push(told);
        }
    }

    /// What the packet-in services are to be told: what changed since the last time, or all of it, as new ones are.
    pub fn news(&mut self, all: bool) -> Vec<Told> {
        let told = std::mem::take(&mut self.told);
        if std::mem::take(&mut self.anew) || all { vec![Told::Anew(self.snapshot())] } else { told }
    }

    /// What the packet-in services know, all of it.
    pub fn snapshot(&self) -> Snapshot {
        let mut out = Snapshot::default();
        for ((datapath, row), names) in &self.names {
            out.take(Told::Names(*datapath, *row, Some(names.clone())));
        }
        for (port, behind) in &self.distributed {
            out.take(Told::Distributed(*port, Some(*behind)));
        }
        for (row, wanted) in &self.sessions {
            out.take(Told::Session(*row, Some(wanted.clone())));
        }
        for (machine, rules) in &self.boot {
            out.take(Told::Boot(*machine, Some(rules.clone())));
        }
        out
    }

    /// What is otherwise than in another, for tests: kinds with what they hold.
    pub fn differences(&self, other: &Presence) -> Vec<String> {
        let all = |p: &Presence| {
            [
                format!("anchors {:?}", p.anchors),
                format!("ways {:?}", p.ways),
                format!("zones {:?}", p.zones),
                format!("requested {:?}", p.requested),
                format!("limits {:?}", p.limits),
                format!("steps {:?}", p.steps),
                format!("encapsulations {:?}", p.encapsulations),
                format!("unclaimed {:?}", p.unclaimed),
                format!("bound {:?}", p.bound),
                format!("patches {:?}", p.patches),
                format!("addresses {:?}", p.addresses),
                format!("queues {:?}", p.queues),
                format!("groups {:?}", p.groups),
                format!("tunnels {:?}", p.tunnels),
                format!("watched {:?}", p.watched),
                format!("mirrored {:?}", p.mirrored),
                format!("plugs {:?}", p.plugs),
                format!("checks {:?}", p.checks),
                format!("next hops {:?}", p.next_hops),
                format!("delegations {:?}", p.delegations),
                format!("exchanges {:?}", p.exchanges),
                format!("advertised {:?}", p.advertised),
                format!("EVPN {:?} {:?} {:?}", p.evpn, p.evpn_macs, p.evpn_neighbours),
                format!("sessions {:?}", p.sessions),
                format!("names {:?}", p.names),
                format!("distributed {:?}", p.distributed),
                format!("boot {:?}", p.boot),
            ]
        };
        all(self).into_iter().zip(all(other)).filter(|(a, b)| a != b).map(|(a, b)| format!("{a} / {b}")).collect()
    }
}

impl Value {
    fn text(self) -> Option<Str> {
        if let Value::Text(t) = self { Some(t) } else { None }
    }
}

fn set<K: Ord + Clone>(of: &mut BTreeSet<K>, key: &K, there: bool) {
    match there {
        true => drop(of.insert(key.clone())),
        false => drop(of.remove(key)),
    }
}

fn put<K: Ord + Clone, V>(of: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
    match value {
        Some(v) => drop(of.insert(key.clone(), v)),
        None => drop(of.remove(key)),
    }
}
