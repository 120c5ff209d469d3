//! A zone's half: the rows that its northbound database should have.
//!
//! ```text
//! layer 0  Connect(name)      a resource with its networks       ► Router, Problem
//!       0  Locals             the zone's nodes
//!       0  Node(name)         a node
//!       │   └──► 1 At(name, node)        links of layer 3 networks there   ► Port, Route, Problem
//!       └──┬──► 1 Link(name, network)    policies; layer 2: the link       ► Policy, Port, Route, Problem
//!          └──► 1 Services(name)         services of all networks          ► Group, Acl, Addresses
//! ```

pub mod keys;
mod links;
pub mod northbound;
pub mod plan;
pub mod rows;
mod services;

use crate::address::Subnet;
use crate::manager::allocate::{self, Subnets};
use crate::resource::connect::{ROUTER_KEY, SUBNETS, Spec};
use crate::resource::{Changed, Network, Owner, Resources};
use incremental::{Derivation, View};
use northbound::Northbound;
use ovn_schema::Str;
use rows::{Key, Value};
use std::sync::Arc;

/// What everything is derived from.
#[derive(Default)]
pub struct Input {
    /// The resources.
    pub resources: Resources,
    /// The northbound database.
    pub nb: Northbound,
    /// The zone's name.
    pub zone: String,
    /// Where services have their addresses.
    pub services: Vec<Subnet>,
}

/// A thing that a unit of the derivation can look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// A resource.
    Resource(Changed),
    /// Whether there is a logical router of a name.
    Router(Str),
    /// Whether there is a logical switch of a name.
    Switch(Str),
    /// The control plane protection.
    Protection,
    /// The load balancers of a network's services.
    Balancers(Str),
}

/// The name of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A `ClusterNetworkConnect`.
    Connect(Str),
    /// The zone's nodes.
    Locals,
    /// A node.
    Node(Str),
    /// A network of a `ClusterNetworkConnect`.
    Link(Str, u32),
    /// A `ClusterNetworkConnect` on a node.
    At(Str, Str),
    /// The services of a `ClusterNetworkConnect`.
    Services(Str),
}

/// A resource with its networks, as far as they are there.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// The specification.
    pub spec: Arc<Spec>,
    /// The networks.
    pub members: Vec<Member>,
}

/// A joined network.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name in annotations.
    pub owner: Owner,
    /// What it has of `connectSubnets`.
    pub subnets: Subnets,
    /// The network.
    pub network: Arc<Network>,
    /// The router that it is joined by.
    pub router: Str,
}

/// A node of the zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// Its name.
    pub name: Str,
    /// Its number.
    pub id: u32,
    /// Whether the zone is named after it.
    pub first: bool,
}

/// What a unit derives for others.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Of [`Unit::Connect`].
    Joined(Joined),
    /// Of [`Unit::Locals`].
    Locals(Vec<Local>),
}

/// The derivation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zone;

/// The view that units of this derivation have.
pub(crate) type V<'a> = View<'a, Zone>;

impl Derivation for Zone {
    type Input = Input;
    type Read = Read;
    type Unit = Unit;
    type Fact = Fact;
    type Key = Key;
    type Value = Value;

    fn layers(&self) -> usize {
        2
    }

    fn layer(&self, unit: &Unit) -> usize {
        match unit {
            Unit::Connect(_) | Unit::Locals | Unit::Node(_) => 0,
            Unit::Link(..) | Unit::At(..) | Unit::Services(_) => 1,
        }
    }

    fn roots(&self) -> Vec<Unit> {
        vec![Unit::Locals]
    }

    fn present(&self, input: &Input) -> Vec<Unit> {
        let connects = input.resources.connects().map(|(name, _)| Unit::Connect(name.clone()));
        connects.chain(input.resources.nodes().map(|(name, _)| Unit::Node(name.clone()))).collect()
    }

    fn decided(&self, input: &Input, thing: &Read) -> Vec<(Unit, bool)> {
        match thing {
            Read::Resource(Changed::Connect(name)) => {
                vec![(Unit::Connect(name.clone()), input.resources.connect_named(name).is_some())]
            }
            Read::Resource(Changed::Node(name)) => {
                vec![(Unit::Node(name.clone()), input.resources.node_named(name).is_some())]
            }
            _ => Vec::new(),
        }
    }

    fn run(&self, unit: &Unit, v: &mut V<'_>) {
        match unit {
            Unit::Connect(name) => connect(name, v),
            Unit::Locals => locals(v),
            Unit::Node(node) => {
                let all = v.read(Read::Resource(Changed::Connects)).resources.connects();
                let names: Vec<Str> = all.map(|(name, _)| name.clone()).collect();
                names.into_iter().for_each(|name| v.spawn(Unit::At(name, node.clone())));
            }
            Unit::Link(name, network) => links::link(name, *network, v),
            Unit::At(name, node) => links::at(name, node, v),
            Unit::Services(name) => services::services(name, v),
        }
    }
}

/// Puts out what is in the way.
pub(crate) fn problem(name: &Str, v: &mut V<'_>, text: impl Into<Str>) {
    v.emit(Key::Problem(name.clone(), text.into()), Value::Problem);
}

/// Whether a node belongs to the zone.
fn is_local(zone: &str, name: &str, of: Option<&String>) -> bool {
    name == zone || of.is_some_and(|of| of == zone)
}

/// The zone's nodes that have a number.
fn locals(v: &mut V<'_>) {
    let input = v.read(Read::Resource(Changed::Zones));
    let ours = input.resources.nodes().filter(|(name, n)| is_local(&input.zone, name, n.zone.as_ref()));
    let local = |(name, n): (&Str, &Arc<crate::resource::Node>)| {
        Some(Local { name: name.clone(), id: n.id?, first: **name == *input.zone })
    };
    v.derive(Fact::Locals(ours.filter_map(local).collect()));
}

/// The zone's nodes.
pub(crate) fn locals_of<'a>(v: &mut V<'a>) -> &'a [Local] {
    match v.fact(&Unit::Locals) {
        Some(Fact::Locals(locals)) => locals,
        _ => &[],
    }
}

/// A resource with its networks.
pub(crate) fn joined<'a>(name: &Str, v: &mut V<'a>) -> Option<&'a Joined> {
    match v.fact(&Unit::Connect(name.clone())) {
        Some(Fact::Joined(joined)) => Some(joined),
        _ => None,
    }
}

fn connect(name: &Str, v: &mut V<'_>) {
    let input = v.read(Read::Resource(Changed::Connect(name.clone())));
    let Some(connect) = input.resources.connect_named(name) else { return };
    let spec = match &connect.spec {
        Ok(spec) => spec.clone(),
        Err(e) => return problem(name, v, e.to_string()),
    };
    let annotations = &connect.meta.annotations;
    let (held, problems) = allocate::read(annotations.get(SUBNETS));
    problems.into_iter().for_each(|p| problem(name, v, p));
    if held.is_empty() {
        return problem(name, v, format!("metadata.annotations[{SUBNETS}] has no network yet"));
    }
    let key = annotations.get(ROUTER_KEY).map(|text| (text, text.parse::<u32>()));
    let key = match key {
        Some((_, Ok(key))) => key,
        Some((text, Err(_))) => {
            return problem(name, v, format!("metadata.annotations[{ROUTER_KEY}]: {text:?} is not a number"));
        }
        None => return problem(name, v, format!("metadata.annotations[{ROUTER_KEY}] is not there yet")),
    };
    let mut members = Vec::new();
    for (owner, subnets) in held {
        let network = v.read(Read::Resource(Changed::Network(owner.id))).resources.network(owner.id);
        let Some(network) = network.filter(|n| n.owner() == Some(owner)) else {
            // It is on its way, or it is gone and the annotation will follow.
            continue;
        };
        let router: Str = network.router().into();
        if v.read(Read::Router(router.clone())).nb.router(&router).is_none() {
            problem(name, v, format!("network {}: the logical router {router} is not there yet", network.name));
            continue;
        }
        v.spawn(Unit::Link(name.clone(), owner.id));
        members.push(Member { owner, subnets, network: network.clone(), router });
    }
    let protection = v.read(Read::Protection).nb.protection();
    v.emit(Key::Router(name.clone()), Value::Router(Some(key), protection));
    if spec.services {
        v.spawn(Unit::Services(name.clone()));
    }
    v.derive(Fact::Joined(Joined { spec, members }));
}
