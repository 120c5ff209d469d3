//! `Learned_Route`: what routing daemons put into the kernel's tables, for each port that learns.

use super::Learner;
use super::difference::Learned;
use crate::input::model::Input;
use crate::plan::Plan;
use ovn_schema::{Str, Uuid, Write, sb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Rows of one transaction at most: what else it has to write does not wait for a full table of the Internet.
const AT_ONCE: usize = 2000;

/// A row, without its number: router, port, prefix and next hop.
type Row = (Uuid, Uuid, Str, Str);

/// A prefix as OVN writes it: without a length where it is a single address.
fn text((address, length): (IpAddr, u8)) -> Str {
    let whole = if address.is_ipv4() { 32 } else { 128 };
    if length == whole { address.to_string().into() } else { format!("{address}/{length}").into() }
}

/// Puts into the plan what rows of ports that learn here differ in from the tables. A table that was not read yet says nothing.
pub fn write(input: &Input, learners: &[Learner], tables: &BTreeMap<u32, BTreeSet<Learned>>, plan: &mut Plan) {
    let mut wanted: BTreeSet<Row> = BTreeSet::new();
    let mut ours: BTreeSet<(Uuid, Uuid)> = BTreeSet::new();
    for l in learners {
        let Some(table) = tables.get(&l.table) else { continue };
        ours.insert((l.datapath, l.port));
        for r in table.iter().filter(|_| l.learns) {
            if l.interface.is_none() || l.interface == r.interface {
                wanted.insert((l.datapath, l.port, text(r.prefix), r.next_hop.to_string().into()));
            }
        }
    }
    let mut left = AT_ONCE;
    let name = |id: &Uuid| input.sb.port_binding.get(id).map_or_else(Str::default, |p| p.logical_port.clone());
    for (id, row) in &input.sb.learned_route {
        if !ours.contains(&(row.datapath, row.logical_port)) {
            continue;
        }
        let key = (row.datapath, row.logical_port, row.ip_prefix.clone(), row.nexthop.clone());
        if !wanted.remove(&key) && left > 0 {
            left -= 1;
            let object = format!("Learned_Route {} by {} of {}", row.ip_prefix, row.nexthop, name(&row.logical_port));
            plan.part(object, false).txn.delete("Learned_Route", *id);
        }
    }
    for (datapath, port, prefix, next_hop) in wanted.into_iter().take(left) {
        let object = format!("Learned_Route {prefix} by {next_hop} of {}", name(&port));
        plan.part(object, true).txn.insert_row([
            sb::LearnedRoute::datapath(&datapath),
            sb::LearnedRoute::logical_port(&port),
            sb::LearnedRoute::ip_prefix(&prefix),
            sb::LearnedRoute::nexthop(&next_hop),
        ]);
    }
}
