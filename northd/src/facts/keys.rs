//! Tunnel keys: kept where the southbound database has one, requested, or the lowest free one.

use super::lsp::Kind;
use super::{Datapath, Fact};
use crate::context::{Ctx, number};
use crate::input::Read;
use crate::model::Unit;
use ovn_schema::{DatapathKey, Map, PortKey, Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};

/// Hands out numbers from 1 up.
struct Keys<K> {
    taken: BTreeSet<i64>,
    given: BTreeMap<K, i64>,
    waiting: Vec<K>,
    next: i64,
    max: i64,
}

impl<K: Ord + Clone> Keys<K> {
    fn new(max: i64) -> Keys<K> {
        Keys { taken: BTreeSet::new(), given: BTreeMap::new(), waiting: Vec::new(), next: 1, max }
    }

    /// Takes a key; false where it is taken already or not in 1..=`max`.
    fn take(&mut self, owner: K, key: i64, max: i64) -> bool {
        let free = (1..=max).contains(&key) && self.taken.insert(key);
        if free {
            self.given.insert(owner, key);
        }
        free
    }

    /// Gives the lowest free keys to those that wait; returns those that got none.
    fn settle(&mut self) -> Vec<K> {
        let mut left = Vec::new();
        for owner in std::mem::take(&mut self.waiting) {
            while self.taken.contains(&self.next) {
                self.next += 1;
            }
            if !self.take(owner.clone(), self.next, self.max) {
                left.push(owner);
            }
        }
        left
    }
}

/// The highest keys: 24 bits for a datapath, 15 for a port, of which VXLAN carries 11 beside those of multicast groups
/// (ovn-architecture(7), "Tunnel Encapsulations").
const MOST_DATAPATH: i64 = 0xff_ffff;
const MOST_PORT: i64 = 0x7fff;
const MOST_PORT_VXLAN: i64 = 0x7ff;

/// Who wants a key, with the key that it asks for and the key that it has.
struct Wish<K> {
    owner: K,
    requested: Option<i64>,
    present: Option<i64>,
}

/// Gives keys up to `max`; those that are asked for may be up to `limit`, and those that are there up to `most`: a port or
/// datapath that works keeps its key when an encapsulation with shorter ones comes.
fn assign<K: Ord + Clone>(max: i64, limit: i64, most: i64, wishes: Vec<Wish<K>>) -> (BTreeMap<K, i64>, Vec<K>, Vec<K>) {
    let mut keys = Keys::new(max);
    let mut refused = Vec::new();
    let mut rest = Vec::new();
    // Of several that ask for a key the one that has it keeps it.
    let (has, others): (Vec<_>, Vec<_>) =
        wishes.into_iter().partition(|w| w.requested.is_some() && w.requested == w.present);
    for w in has.into_iter().chain(others) {
        match w.requested {
            Some(key) if keys.take(w.owner.clone(), key, limit) => {}
            asked => {
                if asked.is_some() {
                    refused.push(w.owner.clone());
                }
                rest.push(w);
            }
        }
    }
    for w in rest {
        if !w.present.is_some_and(|key| keys.take(w.owner.clone(), key, most)) {
            keys.waiting.push(w.owner);
        }
    }
    let left = keys.settle();
    (keys.given, refused, left)
}

/// The key that a datapath asks for. Where VXLAN limits keys, larger ones go to switches that join zones only.
fn requested_datapath(ctx: &mut Ctx<'_, '_>, datapath: &Datapath) -> Option<i64> {
    let (key, name) = (datapath.requested_key?, &datapath.name);
    if ctx.global().vxlan && key >= 1 << 12 && !datapath.transit {
        ctx.problem(format!(
            "datapath {name}: the requested tunnel key {key} is incompatible with VXLAN; ask for one below 4096"
        ));
        return None;
    }
    Some(key)
}

/// The key that options ask for.
pub fn requested(options: &Map<Str, Str>) -> Option<i64> {
    number(options, "requested-tnl-key").filter(|k| *k > 0)
}

/// Derives [`Fact::DatapathKeys`].
pub fn datapaths(ctx: &mut Ctx<'_, '_>) {
    let max = ctx.global().max_datapath_key();
    let mut wishes = Vec::new();
    for u in ctx.nb_table::<nb::LogicalSwitch>().into_iter().chain(ctx.nb_table::<nb::LogicalRouter>()) {
        let Some(datapath) = ctx.datapath(u) else { continue };
        wishes.push((u, requested_datapath(ctx, datapath), datapath.name.clone()));
    }
    let names: BTreeMap<Uuid, Str> = wishes.iter().map(|(u, _, n)| (*u, n.clone())).collect();
    let wishes = wishes
        .into_iter()
        .map(|(owner, requested, _)| {
            let present = ctx.read(Read::Datapath(owner)).datapath(owner).map(|(_, d)| d.tunnel_key);
            Wish { owner, requested, present }
        })
        .collect();
    let (given, refused, left) = assign(max, MOST_DATAPATH, MOST_DATAPATH, wishes);
    for u in refused {
        let name = names.get(&u).cloned().unwrap_or_default();
        ctx.problem(format!("datapath {name}: the requested tunnel key is taken or out of range; it gets another"));
    }
    for u in left {
        let name = names.get(&u).cloned().unwrap_or_default();
        ctx.problem(format!("datapath {name}: all datapath tunnel ids exhausted"));
    }
    ctx.derive(Fact::DatapathKeys(given.into_iter().map(|(u, key)| (u, DatapathKey(key))).collect()));
}

/// Publishes each key as a part of the fact: by the port's name, and by the key.
pub fn ports(ctx: &mut Ctx<'_, '_>, datapath: Uuid) {
    let max = if ctx.global().vxlan { MOST_PORT_VXLAN } else { MOST_PORT };
    let mut wishes: Vec<(Str, Option<i64>)> = Vec::new();
    if let Some(router) = ctx.router(datapath) {
        for port in &router.ports {
            wishes.push((port.name.clone(), requested(&port.row.options)));
            if router.is_gateway_port(port) {
                wishes.push((port.cr_name().into(), None));
            }
        }
    } else if let Some(row) = ctx.nb::<nb::LogicalSwitch>(datapath) {
        for p in &row.ports {
            let Some(lsp) = ctx.lsp(*p).filter(|l| l.switch == datapath) else { continue };
            wishes.push((lsp.name.clone(), requested(&lsp.row.options)));
            if lsp.kind == Kind::Router && crate::facts::lsp::switch_redirect(ctx, lsp) {
                wishes.push((format!("cr-{}", lsp.name).into(), None));
            }
        }
        if let Some(switch) = ctx.switch(datapath) {
            wishes.extend(switch.mirrors.keys().map(|(name, _)| (name.clone(), None)));
        }
    } else {
        return;
    }
    let home = ctx.read(Read::Datapath(datapath)).datapath(datapath).map(|(u, _)| u);
    let wishes = wishes
        .into_iter()
        .map(|(owner, requested)| {
            let binding = ctx.read(Read::Binding(owner.clone())).binding(&owner);
            if let Some((u, _)) = binding {
                ctx.read(Read::Sb(u));
            }
            let present = binding.filter(|(_, b)| Some(b.datapath) == home).map(|(_, b)| b.tunnel_key);
            Wish { owner, requested, present }
        })
        .collect();
    let (given, refused, left) = assign(max, max, MOST_PORT, wishes);
    for name in refused {
        ctx.problem(format!("port {name}: the requested tunnel key is taken or over {max}; it gets another"));
    }
    for name in left {
        ctx.problem(format!("port {name}: all port tunnel ids exhausted"));
    }
    for (name, key) in given {
        let key = PortKey(key);
        ctx.give(Unit::PortKey(datapath, name), Fact::PortKey(key));
        ctx.give(Unit::UsedKey(datapath, key), Fact::PortKey(key));
    }
}

/// The highest queue of an interface.
const MAX_QUEUE: i64 = 0xf000;

/// Derives [`Fact::QueueIds`]: the queues of the ports with QoS parameters, kept or the lowest free ones.
pub fn queues(ctx: &mut Ctx<'_, '_>) {
    let (mut given, mut used, mut waiting) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    let ports = ctx.read(Read::QosPorts).qos_ports().clone();
    for u in ports {
        let Some(row) = ctx.nb::<nb::LogicalSwitchPort>(u) else { continue };
        if ctx.read(Read::LspOwner(u)).lsp_owner(u).is_none() {
            continue;
        }
        let binding = ctx.read(Read::Binding(row.name.clone())).binding(&row.name);
        if let Some((b, _)) = binding {
            ctx.read(Read::Sb(b));
        }
        match binding.and_then(|(_, b)| number(&b.options, "qdisc_queue_id")).filter(|q| *q > 0) {
            Some(queue) => {
                used.insert(queue);
                given.insert(u, queue);
            }
            None => waiting.push((u, row.name.clone())),
        }
    }
    let mut next = 1;
    for (u, name) in waiting {
        while used.contains(&next) {
            next += 1;
        }
        if next > MAX_QUEUE {
            ctx.problem(format!("logical switch port {name}: all queue ids exhausted"));
            continue;
        }
        used.insert(next);
        given.insert(u, next);
    }
    ctx.derive(Fact::QueueIds(given));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_before_present_before_free() {
        let wish = |owner, requested, present| Wish { owner, requested, present };
        let (given, refused, left) = assign(
            4,
            4,
            4,
            vec![
                wish('a', None, Some(2)),
                wish('b', Some(2), None),
                wish('c', Some(2), Some(3)),
                wish('d', None, None),
            ],
        );
        assert_eq!(given, [('a', 1), ('b', 2), ('c', 3), ('d', 4)].into());
        assert_eq!((refused, left), (vec!['c'], vec![]));
        let (given, refused, _) = assign(4, 4, 4, vec![wish('a', Some(2), Some(1)), wish('b', Some(2), Some(2))]);
        assert_eq!((given, refused), ([('a', 1), ('b', 2)].into(), vec!['a']));
        let (_, _, left) = assign(1, 1, 1, vec![wish('a', None, None), wish('b', None, None)]);
        assert_eq!(left, ['b']);
    }

    #[test]
    fn what_has_a_key_keeps_it_where_keys_become_shorter() {
        let wish = |owner, requested, present| Wish { owner, requested, present };
        let wishes =
            vec![wish('a', None, Some(3)), wish('b', None, None), wish('c', Some(4), None), wish('d', None, None)];
        let (given, refused, left) = assign(1, 1, 9, wishes);
        assert_eq!((given, refused, left), ([('a', 3), ('b', 1)].into(), vec!['c'], vec!['c', 'd']));
    }
}
