//! Which unit runs what, and in which layer: the compiler as a derivation.

use crate::context::Ctx;
use crate::facts::Fact;
use crate::input::{Input, Read};
use crate::model::{Key, Northd, Unit, Value};
use crate::{checks, facts, lifecycle, router, switch, tables};
use incremental::{Derivation, View};

impl Derivation for Northd {
    type Input = Input;
    type Read = Read;
    type Unit = Unit;
    type Fact = Fact;
    type Key = Key;
    type Value = Value;

    fn layers(&self) -> usize {
        11
    }

    fn layer(&self, unit: &Unit) -> usize {
        match unit {
            Unit::Datapath(_) | Unit::RouterRows(_) | Unit::BfdPorts => 1,
            Unit::Global | Unit::Lrp(_) | Unit::Lb(_) | Unit::RouteList(_) | Unit::NatList(_) => 2,
            Unit::DatapathKeys | Unit::QueueIds | Unit::Ipam(_) | Unit::Router(_) | Unit::LbAddresses(_) => 3,
            Unit::Lsp(_) | Unit::LbGroup(_) | Unit::RouteTables(_) | Unit::LearnedList(_) => 4,
            Unit::Switch(_) | Unit::PortGroup(_) | Unit::SwitchChassis(_) | Unit::DatapathLbs(_) => 5,
            Unit::Route(..) | Unit::LearnedRoute(..) => 5,
            Unit::PortGroupsBySwitch | Unit::PortKeys(_) | Unit::Nat(..) | Unit::LbUsers(_) | Unit::RouteGroups(_) => 6,
            Unit::SwitchState(_) | Unit::RouterBfd(_) | Unit::LbUse(_) | Unit::RouterNats(_) => 7,
            Unit::RequestList(_) => 9,
            Unit::Requests(..) => 10,
            _ => 8,
        }
    }

    fn roots(&self) -> Vec<Unit> {
        lifecycle::always()
    }

    fn present(&self, input: &Input) -> Vec<Unit> {
        lifecycle::all(input)
    }

    fn decided(&self, input: &Input, thing: &Read) -> Vec<(Unit, bool)> {
        lifecycle::decided(input, thing)
    }

    fn run(&self, unit: &Unit, view: &mut View<'_, Northd>) {
        self.clock.run(unit, || run(unit, &mut Ctx::new(view)));
    }
}

fn run(unit: &Unit, ctx: &mut Ctx<'_, '_>) {
    match unit {
        Unit::Datapath(u) => facts::datapath(ctx, *u),
        Unit::Global => facts::global::run(ctx),
        Unit::Lrp(u) => facts::lrp::run(ctx, *u),
        Unit::Lb(u) => facts::lb::run(ctx, *u),
        Unit::DatapathKeys => facts::keys::datapaths(ctx),
        Unit::Router(u) => facts::router::run(ctx, *u),
        Unit::NatList(u) => facts::nat::list(ctx, *u),
        Unit::Nat(router, u) => facts::nat::rule(ctx, *router, *u),
        Unit::RouterNats(u) => facts::nat::run(ctx, *u),
        Unit::LbAddresses(u) => facts::lb_use::addresses(ctx, *u),
        Unit::LbGroup(u) => facts::lb_use::group(ctx, *u),
        Unit::DatapathLbs(u) => facts::lb_use::of_datapath(ctx, *u),
        Unit::LbUsers(u) => facts::lb_use::users(ctx, *u),
        Unit::LbUse(u) => facts::lb_use::run(ctx, *u),
        Unit::Lsp(u) => facts::lsp::run(ctx, *u),
        Unit::Switch(u) => facts::switch::run(ctx, *u),
        Unit::PortGroup(u) => facts::port_group::run(ctx, *u),
        Unit::PortGroupsBySwitch => facts::port_group::by_switch(ctx),
        Unit::PortKeys(u) => facts::keys::ports(ctx, *u),
        // Others give them.
        Unit::PortKey(..) | Unit::UsedKey(..) | Unit::NatAnswers(_) | Unit::NatShares(_) | Unit::NatDistributed(_) => {}
        Unit::LbKinds(_)
        | Unit::RouterVips(_)
        | Unit::RouterLbs(_)
        | Unit::RouteShares(..)
        | Unit::NatRepeats(..)
        | Unit::OnlyGateway(_)
        | Unit::SwitchReach(_) => {}
        Unit::RowsOf(..) | Unit::BfdPort(_) => {}
        Unit::SwitchState(u) => facts::switch::state(ctx, *u),
        Unit::SwitchBase(u) => switch::base::run(ctx, *u),
        Unit::LspFlows(u) => switch::port::run(ctx, *u),
        Unit::RequestList(u) => switch::l2_lookup::request_list(ctx, *u),
        Unit::Requests(u, ip) => switch::l2_lookup::requests(ctx, *u, *ip),
        Unit::LspBinding(u) => tables::binding::lsp(ctx, *u),
        Unit::AclFlows(u) => switch::acl::run(ctx, *u),
        Unit::SwitchLbFlows(u) => switch::lb::run(ctx, *u),
        Unit::LbInSwitches(u) => switch::lb::load_balancer(ctx, *u),
        Unit::SwitchGroups(u) => tables::multicast::run(ctx, *u),
        Unit::RouterBase(u) => router::base::run(ctx, *u),
        Unit::LrpFlows(u) => router::port::run(ctx, *u),
        Unit::LrpBinding(u) => tables::binding::lrp(ctx, *u),
        Unit::NatFlow(router, u) => router::nat::rule(ctx, *router, *u),
        Unit::NatFlows(u) => router::nat::run(ctx, *u),
        Unit::RouteTables(u) => facts::route::tables(ctx, *u),
        Unit::RouterRows(u) => facts::router::rows(ctx, *u),
        Unit::RouteList(u) => facts::route::list(ctx, *u),
        Unit::Route(router, u) => facts::route::route(ctx, *router, *u),
        Unit::LearnedList(u) => facts::route::learned_list(ctx, *u),
        Unit::LearnedRoute(port, u) => facts::route::learned(ctx, *port, *u),
        Unit::LearnedFlow(port, u) => router::routes::learned(ctx, *port, *u),
        Unit::RouteGroups(u) => facts::route::groups(ctx, *u),
        Unit::RouteFlow(router, u) => router::routes::alone(ctx, *router, *u),
        Unit::RouteFlows(u) => router::routes::run(ctx, *u),
        Unit::PolicyFlows(u) => router::policy::run(ctx, *u),
        Unit::RouterLbFlows(u) => router::lb::run(ctx, *u),
        Unit::LbInRouters(u) => router::lb::load_balancer(ctx, *u),
        Unit::LbRow(u) => tables::load_balancer::run(ctx, *u),
        Unit::PortGroupRows(u) => tables::port_group::run(ctx, *u),
        Unit::Copy(kind) => tables::copy(ctx, *kind),
        Unit::AddressSet(u) => tables::names::address_set(ctx, *u),
        Unit::StaticMac(u) => tables::names::static_mac(ctx, *u),
        Unit::Ipam(u) => facts::ipam::run(ctx, *u),
        Unit::BfdPorts => facts::bfd::ports(ctx),
        Unit::RouterBfd(u) => tables::bfd::used(ctx, *u),
        Unit::AdvertisedRoutes(u) => {
            tables::advertise::routes(ctx, *u);
            tables::advertise::next_hops(ctx, *u);
        }
        Unit::AdvertisedMacs(u) => tables::advertise::macs(ctx, *u),
        Unit::Watch(table, u) => tables::stale::row(ctx, *table, *u),
        Unit::QueueIds => facts::keys::queues(ctx),
        Unit::SwitchChassis(u) => tables::ha::chassis_of(ctx, *u),
        Unit::HaReferences => tables::ha::references(ctx),
        Unit::NetworkFunction(u) => tables::health::network_function(ctx, *u),
        Unit::NetworkFunctionGroup(u) => switch::network_function::choose(ctx, *u),
        Unit::SwitchCheck(u) => checks::switch(ctx, *u),
        Unit::RouterCheck(u) => checks::router(ctx, *u),
        Unit::MatchCheck(table, u) => checks::matches(ctx, *table, *u),
    }
}
