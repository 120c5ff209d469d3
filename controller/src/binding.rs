//! Which logical ports this chassis claims and releases.

use crate::model::{Input, Local};
use gateway_ha::Member;
use ovn_schema::sb::{self, PortBinding};
use ovn_schema::{ColumnValue, Uuid};
use ovsdb_rs::client::Transaction;

/// Whether this chassis should have the port; none where the port is not for it to decide.
fn wants(p: &PortBinding, input: &Input, local: &Local) -> Option<bool> {
    let me = local.chassis?;
    let named = |chassis: Option<Uuid>| chassis.is_none_or(|c| c == me);
    match &*p.r#type {
        "" => {
            let name = p.parent_port.as_ref().filter(|n| !n.is_empty()).unwrap_or(&p.logical_port);
            let vif = local.vifs.get(name).is_some_and(|v| v.ofport.is_some());
            // A port that is asked for elsewhere may be plugged in here: it moves, or somebody erred.
            Some(vif && named(p.requested_chassis))
        }
        "chassisredirect" | "external" => {
            p.ha_chassis_group?;
            Some(active(p, input, local) == Some(me))
        }
        "l3gateway" | "l2gateway" => {
            let key = if &*p.r#type == "l3gateway" { "l3gateway-chassis" } else { "l2gateway-chassis" };
            Some(p.options.get(key).is_some_and(|c| *c == local.chassis_name))
        }
        _ => None,
    }
}

/// The active chassis of a port with an HA chassis group, as this chassis sees it.
pub fn active(port: &PortBinding, input: &Input, local: &Local) -> Option<Uuid> {
    let g = input.sb.ha_chassis_group.get(&port.ha_chassis_group?)?;
    let holder = port.chassis.and_then(|c| input.sb.chassis.get(&c)).map(|c| &*c.name);
    let member = |h: &Uuid| {
        let h = input.sb.ha_chassis.get(h)?;
        let (id, c) = h.chassis.and_then(|c| input.sb.chassis.get_key_value(&c))?;
        Some((*id, Member { name: c.name.clone(), priority: h.priority }))
    };
    let (ids, members): (Vec<Uuid>, Vec<Member>) = g.ha_chassis.iter().filter_map(member).unzip();
    let active = local.gateways.active(&local.chassis_name, &members, holder)?;
    members.iter().position(|m| m == active).and_then(|i| ids.get(i).copied())
}

/// Claims and releases ports. `installed` says whether the flows of what was claimed before are in the switch, so that
/// ports can be reported up.
pub fn reconcile(input: &Input, local: &Local, installed: bool, txn: &mut Transaction) -> Vec<String> {
    let Some(me) = local.chassis else { return Vec::new() };
    let mut log = Vec::new();
    for (id, p) in &input.sb.port_binding {
        if p.r#type.is_empty() && p.requested_additional_chassis.contains(&me) && p.requested_chassis != Some(me) {
            log.extend(additional(*id, p, me, local, txn));
            continue;
        }
        let Some(want) = wants(p, input, local) else { continue };
        let have = p.chassis == Some(me);
        let name = &p.logical_port;
        // Others let go of a gateway port when it is claimed, so that is done when everything is in place.
        if matches!(&*p.r#type, "chassisredirect" | "external")
            && want != have
            && (local.gateways.starting || !installed && want)
        {
            continue;
        }
        if want && !have {
            match p.chassis.and_then(|c| input.sb.chassis.get(&c)) {
                Some(other) => log
                    .push(format!("Changing chassis for lport {name} from {} to {}.", other.name, local.chassis_name)),
                None => log.push(format!("Claiming lport {name} for this chassis.")),
            }
            log.extend(p.mac.iter().map(|mac| format!("{name}: Claiming {mac}")));
            txn.update("Port_Binding", *id, [("chassis", Some(me).to_datum()), ("up", Some(false).to_datum())]);
        } else if !want && have {
            log.push(format!("Releasing lport {name} from this chassis (sb_readonly=0)"));
            txn.update("Port_Binding", *id, [("chassis", None::<Uuid>.to_datum()), ("up", Some(false).to_datum())]);
        } else if have && installed && p.up != Some(true) {
            log.push(format!("Setting lport {name} up in Southbound"));
            txn.update("Port_Binding", *id, [("up", Some(true).to_datum())]);
        }
    }
    log
}

/// A port that is bound to several chassis at once, as while it migrates: this one is one of the others.
fn additional(id: Uuid, p: &PortBinding, me: Uuid, local: &Local, txn: &mut Transaction) -> Option<String> {
    let want = local.vifs.get(&p.logical_port).is_some_and(|v| v.ofport.is_some());
    let have = p.additional_chassis.contains(&me);
    let (mutator, verb) = match (want, have) {
        (true, false) => ("insert", "Claiming"),
        (false, true) => ("delete", "Releasing"),
        _ => return None,
    };
    txn.mutate(
        sb::TableId::PortBinding.name(),
        id,
        "additional_chassis",
        mutator,
        &ovn_schema::Set::from([me]).to_datum(),
    );
    Some(format!("{verb} lport {} for this additional chassis.", p.logical_port))
}

/// Releases every port that this chassis has, at `exit`.
pub fn release_all(sb: &sb::Database, chassis: Uuid, txn: &mut Transaction) {
    let me = ovn_schema::Set::from([chassis]).to_datum();
    for (id, _) in sb.port_binding.iter().filter(|(_, p)| p.additional_chassis.contains(&chassis)) {
        txn.mutate(sb::TableId::PortBinding.name(), *id, "additional_chassis", "delete", &me);
    }
    for (id, _) in sb.port_binding.iter().filter(|(_, p)| p.chassis == Some(chassis)) {
        txn.update("Port_Binding", *id, [("chassis", None::<Uuid>.to_datum()), ("up", Some(false).to_datum())]);
    }
}
