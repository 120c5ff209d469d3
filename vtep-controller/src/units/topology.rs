//! What people configured in a hardware_vtep database.

use super::{Fact, Switch, Topology, V, info, warn};
use crate::model::{Read, Tor, TorId};
use crate::output::Module::Gateway;
use ovn_schema::vtep;
use std::collections::BTreeSet;

/// Collects switches with their addresses and bindings, and says what the switches complain about.
pub fn topology(id: TorId, v: &mut V<'_>) {
    let Some(tor) = v.read(Read::Topology(id)).tor(id) else { return };
    let mut out =
        Topology { logical: tor.db.logical_switch.values().map(|s| s.name.clone()).collect(), ..Topology::default() };
    if let Some((row, global)) = tor.db.global.iter().next() {
        (out.global, out.config) = (Some(*row), global.other_config.clone());
    }
    let mut rows: Vec<_> = tor.db.physical_switch.iter().collect();
    rows.sort_by(|a, b| (&a.1.name, a.0).cmp(&(&b.1.name, b.0)));
    for (row, ps) in rows {
        if out.switches.contains_key(&ps.name) {
            warn(
                v,
                Gateway,
                format!(
                    "{}: Physical_Switch {row} has the name ({}) of another one and is ignored; rename one of them",
                    tor.name, ps.name
                ),
            );
            continue;
        }
        let mut switch =
            Switch { row: *row, ips: ps.tunnel_ips.clone(), config: ps.other_config.clone(), ..Switch::default() };
        ports(tor, ps, &mut switch, v);
        for fault in &ps.switch_fault_status {
            warn(v, Gateway, format!("{}: Physical_Switch {} reports the fault {fault}", tor.name, ps.name));
        }
        out.switches.insert(ps.name.clone(), switch);
    }
    v.derive(Fact::Topology(out));
}

fn ports(tor: &Tor, ps: &vtep::PhysicalSwitch, switch: &mut Switch, v: &mut V<'_>) {
    let mut bound = BTreeSet::new();
    let mut ports: Vec<_> = ps.ports.iter().filter_map(|p| Some((p, tor.db.physical_port.get(p)?))).collect();
    ports.sort_by(|a, b| (&a.1.name, a.0).cmp(&(&b.1.name, b.0)));
    for (row, port) in ports {
        let mut here = BTreeSet::new();
        for (vlan, ls) in &port.vlan_bindings {
            let Some(logical) = tor.db.logical_switch.get(ls) else { continue };
            if !bound.insert((port.name.clone(), *vlan)) {
                warn(
                    v,
                    Gateway,
                    format!(
                        "{}: VLAN {vlan} of port {} of Physical_Switch {} is bound twice; the binding in Physical_Port {row} to logical switch {} is ignored",
                        tor.name, port.name, ps.name, logical.name
                    ),
                );
                continue;
            }
            if !here.insert(*ls) {
                info(
                    v,
                    Gateway,
                    format!(
                        "{}: port {} of Physical_Switch {} has several VLANs in logical switch {}",
                        tor.name, port.name, ps.name, logical.name
                    ),
                );
            }
            switch.logical.insert(logical.name.clone(), *ls);
        }
        for fault in &port.port_fault_status {
            warn(
                v,
                Gateway,
                format!("{}: port {} of Physical_Switch {} reports the fault {fault}", tor.name, port.name, ps.name),
            );
        }
    }
}
