//! The units that exist because of what the databases have.

use crate::input::{Input, Read};
use crate::model::CopyKind;
use crate::model::Unit;
use ovn_schema::{Uuid, nb};

/// Northbound tables whose rows have units of their own.
const NORTHBOUND: [nb::TableId; 14] = [
    nb::TableId::LogicalSwitch,
    nb::TableId::LogicalRouter,
    nb::TableId::LogicalSwitchPort,
    nb::TableId::LogicalRouterPort,
    nb::TableId::LoadBalancer,
    nb::TableId::LoadBalancerGroup,
    nb::TableId::PortGroup,
    nb::TableId::AddressSet,
    nb::TableId::StaticMacBinding,
    nb::TableId::NetworkFunction,
    nb::TableId::NetworkFunctionGroup,
    nb::TableId::Acl,
    nb::TableId::Qos,
    nb::TableId::LogicalRouterPolicy,
];

/// The units that there are whatever the databases have.
pub fn always() -> Vec<Unit> {
    let mut all = vec![Unit::Global, Unit::DatapathKeys, Unit::PortGroupsBySwitch, Unit::QueueIds, Unit::HaReferences];
    all.push(Unit::BfdPorts);
    all.extend(CopyKind::ALL.iter().map(|kind| Unit::Copy(*kind)));
    all
}

/// The units of all rows.
pub fn all(input: &Input) -> Vec<Unit> {
    let northbound = NORTHBOUND.iter().flat_map(|t| input.nb.uuids(*t).into_iter().flat_map(|u| of(*t, u)));
    let learned = crate::input::WATCHED.iter().flat_map(|t| input.sb.uuids(*t).into_iter().map(|u| Unit::Watch(*t, u)));
    northbound.chain(learned).collect()
}

/// The units that a thing of the input decides on, and whether they exist.
pub fn decided(input: &Input, thing: &Read) -> Vec<(Unit, bool)> {
    let has = |table: nb::TableId, u: Uuid| input.nb.has(table, u);
    match thing {
        Read::NbRow(table, u) => {
            // A row of another table may have the same name, and units in common.
            let elsewhere = |unit: &Unit| NORTHBOUND.iter().any(|t| has(*t, *u) && of(*t, *u).contains(unit));
            let there = has(*table, *u);
            of(*table, *u).into_iter().map(|unit| (unit.clone(), there || elsewhere(&unit))).collect()
        }
        Read::Nb(u) => {
            let tables = NORTHBOUND.iter().filter(|t| has(**t, *u));
            tables.flat_map(|t| of(*t, *u)).map(|unit| (unit, true)).collect()
        }
        Read::SbRow(table, u) => vec![(Unit::Watch(*table, *u), input.sb.has(*table, *u))],
        _ => Vec::new(),
    }
}

/// The units of a row.
fn of(table: nb::TableId, u: Uuid) -> Vec<Unit> {
    match table {
        nb::TableId::LogicalSwitch => vec![
            Unit::Datapath(u),
            Unit::Switch(u),
            Unit::SwitchState(u),
            Unit::DatapathLbs(u),
            Unit::PortKeys(u),
            Unit::SwitchBase(u),
            Unit::AclFlows(u),
            Unit::SwitchLbFlows(u),
            Unit::SwitchGroups(u),
            Unit::Ipam(u),
            Unit::SwitchChassis(u),
            Unit::AdvertisedMacs(u),
            Unit::SwitchCheck(u),
        ],
        nb::TableId::LogicalRouter => vec![
            Unit::Datapath(u),
            Unit::Router(u),
            Unit::NatList(u),
            Unit::RouterNats(u),
            Unit::DatapathLbs(u),
            Unit::PortKeys(u),
            Unit::RouterBfd(u),
            Unit::AdvertisedRoutes(u),
            Unit::RouterBase(u),
            Unit::NatFlows(u),
            Unit::RouterRows(u),
            Unit::RouteList(u),
            Unit::RouteTables(u),
            Unit::RouteGroups(u),
            Unit::RouteFlows(u),
            Unit::PolicyFlows(u),
            Unit::RouterLbFlows(u),
            Unit::RouterCheck(u),
        ],
        nb::TableId::LogicalSwitchPort => vec![Unit::Lsp(u), Unit::LspFlows(u), Unit::LspBinding(u)],
        nb::TableId::LogicalRouterPort => {
            vec![Unit::Lrp(u), Unit::LrpFlows(u), Unit::LrpBinding(u), Unit::LearnedList(u)]
        }
        nb::TableId::LoadBalancer => vec![
            Unit::Lb(u),
            Unit::LbAddresses(u),
            Unit::LbUsers(u),
            Unit::LbUse(u),
            Unit::LbInSwitches(u),
            Unit::LbInRouters(u),
            Unit::LbRow(u),
        ],
        nb::TableId::LoadBalancerGroup => vec![Unit::LbGroup(u), Unit::LbUsers(u)],
        nb::TableId::PortGroup => vec![Unit::PortGroup(u), Unit::PortGroupRows(u)],
        nb::TableId::AddressSet => vec![Unit::AddressSet(u)],
        nb::TableId::StaticMacBinding => vec![Unit::StaticMac(u)],
        nb::TableId::NetworkFunction => vec![Unit::NetworkFunction(u)],
        nb::TableId::NetworkFunctionGroup => vec![Unit::NetworkFunctionGroup(u)],
        nb::TableId::Acl | nb::TableId::Qos | nb::TableId::LogicalRouterPolicy => vec![Unit::MatchCheck(table, u)],
        _ => Vec::new(),
    }
}
