//! Services of joined networks: every network's switches have the load balancers of all. Where pods are not joined, ACLs
//! keep them apart.

use super::rows::{AclKind, Key, Value, addresses_name};
use super::{Joined, Member, Read, V, joined, locals_of};
use crate::address::{Family, Subnet};
use crate::resource::{Changed, Layer};
use ovn_schema::{Set, Str, Uuid};

/// Derives the group, and the ACLs.
pub fn services(name: &Str, v: &mut V<'_>) {
    let Some(j) = joined(name, v) else { return };
    let (mut balancers, mut switches): (Set<Uuid>, Set<Str>) = Default::default();
    for member in &j.members {
        let network: Str = member.network.name.clone();
        balancers.extend(v.read(Read::Balancers(network.clone())).nb.balancers(&network));
        switches.extend(switches_of(member, v));
    }
    v.emit(Key::Group(name.clone()), Value::Group(balancers, switches.clone()));
    if !j.spec.pods {
        keep_apart(name, j, &switches, v);
    }
}

/// The switches of a network in this zone.
fn switches_of(member: &Member, v: &mut V<'_>) -> Vec<Str> {
    let nodes: Vec<Str> = match member.owner.layer {
        Layer::Two => vec!["".into()],
        Layer::Three => locals_of(v).iter().map(|l| l.name.clone()).collect(),
    };
    let names = nodes.iter().map(|node| Str::from(member.network.switch(node)));
    names.filter(|switch| v.read(Read::Switch(switch.clone())).nb.switch(switch).is_some()).collect()
}

fn any_of(subnets: &[Subnet]) -> String {
    let terms: Vec<String> = subnets.iter().map(|s| format!("{}.dst == {s}", s.family().protocol())).collect();
    terms.join(" || ")
}

/// Where pods are not joined: services pass, and so do pods of the same network; pods of the others are out of reach.
fn keep_apart(name: &Str, j: &Joined, switches: &Set<Str>, v: &mut V<'_>) {
    if j.members.is_empty() {
        return;
    }
    let services = &v.read(Read::Resource(Changed::Connect(name.clone()))).services;
    let mut acl = |kind, priority, matches: String, action, on: Set<Str>| {
        if !on.is_empty() {
            v.emit(Key::Acl(name.clone(), kind), Value::Acl(priority, matches.into(), action, on));
        }
    };
    if !services.is_empty() {
        acl(AclKind::PassService, 500, format!("({})", any_of(services)), "pass", switches.clone());
    }
    for member in &j.members {
        let on = switches.iter().filter(|s| is_of(member, s)).cloned().collect();
        let kind = AclKind::PassSameNetwork(member.network.id);
        acl(kind, 475, any_of(&member.network.subnets), "pass", on);
    }
    let mut sets = Vec::new();
    for family in Family::ALL {
        let all = j.members.iter().flat_map(|m| &m.network.subnets).filter(|s| s.family() == family);
        let all: Set<Str> = all.map(|s| s.to_string().into()).collect();
        // OVN-Kubernetes has a set for each family of the cluster, which are those of its services.
        if !all.is_empty() || services.iter().any(|s| s.family() == family) {
            sets.push((family, all));
        }
    }
    let term =
        |(family, _): &(Family, Set<Str>)| format!("{}.dst == ${}", family.protocol(), addresses_name(name, *family));
    let terms: Vec<String> = sets.iter().map(term).collect();
    let matches = match terms.as_slice() {
        [] => return,
        [one] => format!("{one} && ct.new"),
        several => format!("({}) && ct.new", several.join(" || ")),
    };
    acl(AclKind::DropPod, 450, matches, "drop", switches.clone());
    for (family, all) in sets {
        v.emit(Key::Addresses(name.clone(), family), Value::Addresses(all));
    }
}

/// Whether a switch is one of the network's.
fn is_of(member: &Member, switch: &str) -> bool {
    switch.starts_with(&member.network.switch_prefix())
}
