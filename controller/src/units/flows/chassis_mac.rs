//! Routers on provider networks: each chassis has an Ethernet address of its own there, so that switches of the network
//! never see a router's address at several places (`external_ids:ovn-chassis-mac-mappings`, ovn-controller(8)).

use super::physical::{Bound, entry, localnet_of, provider_output, set_zones};
use super::{Purpose, Seen, cookie, datapath_key, emit, is_local, port, resident, row};
use crate::encode::of;
use crate::encode::tables as t;
use crate::input::model::Read;
use openflow_rs::{Action, FieldId, Match};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{Str, Uuid};
use std::collections::BTreeMap;

/// The number of the conjunction of all such flows: they share the clause of the other chassis' addresses.
const CONJUNCTION: u32 = 100;

/// A chassis' own address in a network.
fn own(chassis: &sb::Chassis, network: &str) -> Option<u128> {
    let mappings = chassis.other_config.get("ovn-chassis-mac-mappings")?;
    let mac = mappings.split(',').find_map(|m| m.trim().split_once(':').filter(|(n, _)| *n == network))?.1;
    of::ethernet(mac)
}

/// Says which of a chassis' mappings are none.
pub fn check(chassis: &sb::Chassis) {
    let mappings = chassis.other_config.get("ovn-chassis-mac-mappings").map(|m| &**m).unwrap_or_default();
    for entry in mappings.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        if entry.split_once(':').and_then(|(_, mac)| of::ethernet(mac)).is_none() {
            tracing::warn!(target: "physical", "Parsing of ovn-chassis-mac-mappings failed for: \"{entry}\" of chassis {}, the correct format is \"NETWORK1:MAC1,NETWORK2:MAC2\"", chassis.name);
        }
    }
}

/// The Ethernet address of a router port.
fn mac_of(p: &sb::PortBinding) -> Option<u128> {
    of::ethernet(p.mac.first()?.split_whitespace().next()?)
}

/// The other chassis' addresses: one clause of the conjunction, for all networks.
pub(super) fn others(view: &mut Seen<'_>) {
    let me = view.read(Read::Chassis).local.chassis;
    let all: Vec<Uuid> = view.read(Read::Table(TableId::Chassis)).sb.chassis.keys().copied().collect();
    for id in all.into_iter().filter(|id| Some(*id) != me) {
        let Some(c) = row::<sb::Chassis>(view, TableId::Chassis, id) else { continue };
        let mappings = c.other_config.get("ovn-chassis-mac-mappings").map(|m| &**m).unwrap_or_default();
        for mac in mappings.split(',').filter_map(|m| of::ethernet(m.trim().split_once(':')?.1)) {
            let clause = vec![Action::Conjunction { id: CONJUNCTION, clause: 0, n_clauses: 2 }];
            emit(view, t::PHY_TO_LOG, 180, Match::new().with(FieldId::EthSrc, mac), 0, clause);
        }
    }
}

/// The addresses of the router ports that are attached to a switch, with the ports' rows; `here`: also of those whose gateway this chassis is.
fn routers(datapath: Uuid, here: bool, view: &mut Seen<'_>) -> BTreeMap<u128, Uuid> {
    let input = view.read(Read::OthersOf(datapath));
    let attached = input.others_of(datapath).filter(|(_, p)| matches!(&*p.r#type, "patch" | "l3gateway"));
    let attached: Vec<Uuid> = attached.map(|(id, _)| id).collect();
    let peer = |id| row::<sb::PortBinding>(view, TableId::PortBinding, id)?.options.get("peer").cloned();
    let peers: Vec<Str> = attached.into_iter().filter_map(peer).collect();
    let mut out = BTreeMap::new();
    for name in &peers {
        // The gateway's own address is where the router's is.
        if !here && resident(view, &format!("cr-{name}"), Purpose::Serve) {
            continue;
        }
        if let Some((id, p)) = port(view, name)
            && is_local(view, p.datapath)
        {
            out.extend(mac_of(p).map(|mac| (mac, id)));
        }
    }
    out
}

/// The flows of a port to a provider network.
pub(super) fn localnet(b: &Bound<'_>, ofport: u16, tag: Option<u16>, zone: u16, view: &mut Seen<'_>) {
    let Some(network) = b.row.options.get("network_name") else { return };
    let routers = routers(b.row.datapath, true, view);
    if routers.is_empty() {
        return;
    }
    let me = view.read(Read::Chassis).local.chassis;
    if let Some(mac) = me.and_then(|c| row::<sb::Chassis>(view, TableId::Chassis, c)).and_then(|c| own(c, network)) {
        leaving(b, ofport, tag, mac, view);
    }
    // What comes in from another chassis' address comes from the router.
    let Some((router, row)) = routers.first_key_value() else { return };
    let clause = vec![Action::Conjunction { id: CONJUNCTION, clause: 1, n_clauses: 2 }];
    let m = entry(ofport, tag);
    emit(view, t::PHY_TO_LOG, 180, m.clone(), cookie(*row), clause);
    let mut actions: Vec<Action> = tag.map(|_| Action::PopVlan).into_iter().collect();
    actions.extend(set_zones(zone, b.zones));
    actions.push(of::set(of::DATAPATH, b.dp.into()));
    actions.push(of::set(of::INPORT, b.key.into()));
    actions.push(Action::set_masked(of::PORT_ZONE, 0, 0xffff_0000));
    actions.push(Action::set(FieldId::EthSrc, *router));
    actions.push(Action::resubmit(t::INGRESS));
    emit(view, t::PHY_TO_LOG, 180, m.with(FieldId::ConjId, u128::from(CONJUNCTION)), cookie(*row), actions);
}

/// What a router sends into the network has this chassis' address there.
fn leaving(b: &Bound<'_>, ofport: u16, tag: Option<u16>, own: u128, view: &mut Seen<'_>) {
    for router in routers(b.row.datapath, false, view).into_keys() {
        let mut actions = vec![Action::set(FieldId::EthSrc, own)];
        let mut output = provider_output(b.row, ofport, tag);
        let back = output.iter().position(|a| matches!(a, Action::PopVlan)).unwrap_or(output.len());
        output.insert(back, Action::set(FieldId::EthSrc, router));
        actions.extend(output);
        emit(view, t::LOG_TO_PHY, 150, b.toward().with(FieldId::EthSrc, router), cookie(b.id), actions);
    }
}

/// Whether packets for a gateway port go to its gateway over the provider network, and never through a tunnel (ovn-nb(5),
/// `Logical_Router_Port:options:redirect-type`).
pub(super) fn is_bridged(p: &sb::PortBinding) -> bool {
    p.options.get("redirect-type").is_some_and(|v| v.eq_ignore_ascii_case("bridged"))
}

/// A gateway port with `redirect-type=bridged`: the way over the provider network. Where that is not plugged in there is no
/// way, and packets are dropped: a tunnel would bring them past what the provider network does with them.
pub(super) fn bridged(b: &Bound<'_>, view: &mut Seen<'_>) {
    let Some((_, distributed)) = b.row.options.get("distributed-port").and_then(|n| port(view, n)) else { return };
    let Some((_, switch_port)) = distributed.options.get("peer").and_then(|n| port(view, n)) else { return };
    let Some(localnet) = localnet_of(switch_port.datapath, view) else { return };
    let (Some(dp), Some(mac)) = (datapath_key(view, switch_port.datapath), mac_of(distributed)) else { return };
    let actions = vec![
        Action::set(FieldId::EthSrc, mac),
        of::set(of::DATAPATH, dp.into()),
        of::set(of::OUTPORT, localnet.key().into()),
        Action::resubmit(t::LOG_TO_PHY),
    ];
    emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions);
}
