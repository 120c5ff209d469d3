//! What units derive for other units: northbound rows, parsed and put in relation.

pub mod bfd;
pub mod global;
pub mod ipam;
pub mod keys;
pub mod lb;
pub mod lb_use;
pub mod lrp;
pub mod lsp;
pub mod nat;
pub mod port_group;
pub mod route;
pub mod router;
pub mod switch;

use crate::context::Ctx;
use crate::model::{RouterColumn, Unit};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// What a unit derived.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Of [`Unit::Global`].
    Global(Box<global::Global>),
    /// Of [`Unit::Datapath`].
    Datapath(Box<Datapath>),
    /// Of [`Unit::Lrp`].
    Lrp(Arc<lrp::Lrp>),
    /// Of [`Unit::Lb`].
    Lb(Box<lb::Lb>),
    /// Of [`Unit::DatapathKeys`].
    DatapathKeys(BTreeMap<Uuid, DatapathKey>),
    /// Of [`Unit::Router`].
    Router(Box<router::Router>),
    /// Of [`Unit::OnlyGateway`].
    OnlyGateway(Uuid),
    /// Of [`Unit::Nat`].
    Nat(Arc<nat::Nat>),
    /// Of [`Unit::RouterNats`].
    Nats(Box<nat::Nats>),
    /// Of [`Unit::NatRepeats`].
    NatRepeats(nat::Repeats),
    /// Of [`Unit::LbAddresses`], [`Unit::LbGroup`].
    Balanced(Arc<lb_use::Balanced>),
    /// Of [`Unit::LbKinds`], [`Unit::DatapathLbs`].
    Kinds(lb_use::Kinds),
    /// Of [`Unit::RouterVips`].
    RouterVips(Box<lb_use::RouterVips>),
    /// Of [`Unit::RouterLbs`].
    RouterLbs(Vec<Arc<lb_use::Balanced>>),
    /// Of [`Unit::LbUsers`], [`Unit::LbUse`].
    LbUsers(Arc<lb_use::Users>),
    /// Of [`Unit::Lsp`].
    Lsp(Box<lsp::Lsp>),
    /// Of [`Unit::Switch`].
    Switch(Box<switch::Switch>),
    /// Of [`Unit::SwitchReach`].
    SwitchReach(switch::Reach),
    /// Of [`Unit::PortGroup`].
    PortGroup(Box<port_group::Group>),
    /// Of [`Unit::PortGroupsBySwitch`].
    PortGroupsBySwitch(BTreeMap<Uuid, Vec<Uuid>>),
    /// Of [`Unit::PortKey`], [`Unit::UsedKey`].
    PortKey(PortKey),
    /// Of [`Unit::NatAnswers`].
    NatAnswers(Box<nat::Answers>),
    /// Of [`Unit::NatShares`].
    NatShares(BTreeSet<IpAddr>),
    /// Of [`Unit::NatDistributed`].
    NatDistributed,
    /// Of [`Unit::Ipam`]: the dynamic addresses of ports.
    Ipam(BTreeMap<Uuid, Str>),
    /// Of [`Unit::RouteTables`]: the numbers of route tables by name.
    RouteTables(BTreeMap<Str, u16>),
    /// Of [`Unit::RowsOf`].
    Rows(Box<BTreeSet<Uuid>>),
    /// Of [`Unit::Route`] and [`Unit::LearnedRoute`].
    Route(Arc<route::Route>),
    /// Of [`Unit::RouteGroups`].
    RouteGroups(route::Groups),
    /// Of [`Unit::RouteShares`].
    RouteShares,
    /// Of [`Unit::BfdPorts`] where there are any, of [`Unit::BfdPort`].
    BfdPort,
    /// Of [`Unit::RouterBfd`].
    BfdUse(BTreeSet<Uuid>),
    /// Of [`Unit::QueueIds`]: by switch port.
    QueueIds(BTreeMap<Uuid, i64>),
    /// Of [`Unit::SwitchChassis`]: the chassis that ports of a switch are on.
    Chassis(BTreeSet<Uuid>),
    /// Of [`Unit::SwitchState`].
    SwitchState(Box<switch::State>),
}

/// The part of a switch's or router's row that other datapaths depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Datapath {
    /// Its name.
    pub name: Str,
    /// The tunnel key that it asks for.
    pub requested_key: Option<i64>,
    /// Whether it is a transit switch between availability zones (`interconn-ts`).
    pub transit: bool,
    /// Whether the zones are connected by VXLAN (`ic-vxlan_mode`).
    pub zones: bool,
    /// A switch's DNS records.
    pub dns: BTreeSet<Uuid>,
}

macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident($unit:ident) -> $variant:ident $ty:ty;)*) => {
        impl<'a> Ctx<'_, 'a> {
            $($(#[$doc])*
            pub fn $name(&mut self, uuid: Uuid) -> Option<&'a $ty> {
                match self.fact(Unit::$unit(uuid)) {
                    Some(Fact::$variant(f)) => Some(f),
                    _ => None,
                }
            })*
        }
    };
}

accessors! {
    /// What of a switch's or router's row concerns all datapaths; none of a router that is disabled.
    datapath(Datapath) -> Datapath Datapath;
    /// A router port.
    lrp(Lrp) -> Lrp lrp::Lrp;
    /// The same, to keep.
    shared_lrp(Lrp) -> Lrp Arc<lrp::Lrp>;
    /// A load balancer.
    lb(Lb) -> Lb lb::Lb;
    /// A router.
    router(Router) -> Router router::Router;
    /// A router's distributed gateway port, where it has one and no other.
    only_gateway(OnlyGateway) -> OnlyGateway Uuid;
    /// A router's address translation.
    nats(RouterNats) -> Nats nat::Nats;
    /// The virtual addresses of a load balancer.
    lb_addresses(LbAddresses) -> Balanced Arc<lb_use::Balanced>;
    /// The virtual addresses of a group of load balancers.
    lb_group(LbGroup) -> Balanced Arc<lb_use::Balanced>;
    /// What a load balancer or a group says of datapaths that have it.
    lb_kinds(LbKinds) -> Kinds lb_use::Kinds;
    /// What the load balancers of a datapath say of it; none where it has none.
    datapath_kinds(DatapathLbs) -> Kinds lb_use::Kinds;
    /// What a router's virtual addresses mean; none where it has no load balancers.
    router_vips(RouterVips) -> RouterVips lb_use::RouterVips;
    /// A router's load balancers and groups of them.
    router_lbs(RouterLbs) -> RouterLbs Vec<Arc<lb_use::Balanced>>;
    /// The datapaths that name a load balancer, or a group of them.
    lb_users(LbUsers) -> LbUsers Arc<lb_use::Users>;
    /// The datapaths that a load balancer is in.
    lb_use(LbUse) -> LbUsers Arc<lb_use::Users>;
    /// The numbers of a router's route tables; none where it has the main one only.
    route_tables(RouteTables) -> RouteTables BTreeMap<Str, u16>;
    /// A switch port.
    lsp(Lsp) -> Lsp lsp::Lsp;
    /// A switch.
    switch(Switch) -> Switch switch::Switch;
    /// Whom frames of a switch can reach.
    switch_reach(SwitchReach) -> SwitchReach switch::Reach;
    /// A port group.
    port_group(PortGroup) -> PortGroup port_group::Group;
    /// What a router's ports answer for because of its address translation.
    nat_answers(NatAnswers) -> NatAnswers nat::Answers;
    /// The addresses of a router's ports that it also translates to.
    nat_shares(NatShares) -> NatShares BTreeSet<IpAddr>;
    /// What a switch needs conntrack for.
    switch_state(SwitchState) -> SwitchState switch::State;
}

impl<'a> Ctx<'_, 'a> {
    /// The rows that a router names in a column.
    pub fn rows_of(&mut self, router: Uuid, column: RouterColumn) -> &'a BTreeSet<Uuid> {
        static NONE: BTreeSet<Uuid> = BTreeSet::new();
        match self.fact(Unit::RowsOf(router, column)) {
            Some(Fact::Rows(rows)) => rows,
            _ => &NONE,
        }
    }
}

impl Ctx<'_, '_> {
    /// Whether a port has a tunnel key.
    pub fn is_port_key(&mut self, datapath: Uuid, key: PortKey) -> bool {
        self.fact(Unit::UsedKey(datapath, key)).is_some()
    }

    /// The tunnel key of a port.
    pub fn port_key(&mut self, datapath: Uuid, name: &str) -> Option<PortKey> {
        match self.fact(Unit::PortKey(datapath, name.into())) {
            Some(Fact::PortKey(key)) => Some(*key),
            _ => None,
        }
    }
}

/// Derives [`Fact::Datapath`].
pub fn datapath(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let (name, options, dns) = if let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) {
        (&row.name, &row.other_config, row.dns_records.clone())
    } else if let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid).filter(|r| r.enabled != Some(false)) {
        (&row.name, &row.options, BTreeSet::new())
    } else {
        return;
    };
    ctx.derive(Fact::Datapath(Box::new(Datapath {
        name: name.clone(),
        requested_key: keys::requested(options),
        transit: options.contains_key("interconn-ts"),
        zones: options.contains_key("ic-vxlan_mode"),
        dns,
    })));
}
