//! The units that the compiler is cut into, and what they put out.

use crate::clock::Clock;
use crate::source_line::SourceLine;
use crate::stage::Stage;
use ovn_schema::{PortKey, Str, Uuid, nb, sb};
use ovsdb_rs::Datum;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

/// The name of a unit. Layers: what a unit of one layer derives, units of the layers below read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Options that hold for all.
    Global,
    /// What of a switch's or router's row concerns all datapaths.
    Datapath(Uuid),
    /// A logical router port, parsed.
    Lrp(Uuid),
    /// A load balancer, parsed.
    Lb(Uuid),
    /// The tunnel keys of all datapaths.
    DatapathKeys,
    /// A logical router with its ports.
    Router(Uuid),
    /// A router's distributed gateway port, where it has one and no other; given by `Router`.
    OnlyGateway(Uuid),
    /// Makes a unit of each NAT rule of a router.
    NatList(Uuid),
    /// A router's NAT rule, parsed.
    Nat(Uuid, Uuid),
    /// A logical router's address translation.
    RouterNats(Uuid),
    /// That earlier rules of a router have the outside address of this one; given by `RouterNats`.
    NatRepeats(Uuid, Uuid),
    /// What ports of a router answer for because of its address translation; given by `RouterNats`.
    NatAnswers(Uuid),
    /// The addresses of a router's ports that it also translates to; given by `RouterNats`.
    NatShares(Uuid),
    /// Whether a router has distributed address translation; given by `RouterNats`.
    NatDistributed(Uuid),
    /// The virtual addresses of a load balancer.
    LbAddresses(Uuid),
    /// The virtual addresses of the load balancers of a group.
    LbGroup(Uuid),
    /// What a load balancer or a group of them says of datapaths that have it; given by `LbAddresses` and `LbGroup`.
    LbKinds(Uuid),
    /// What the load balancers of a switch or router say of it.
    DatapathLbs(Uuid),
    /// What a router's virtual addresses mean for its ports and neighbours; given by `DatapathLbs`.
    RouterVips(Uuid),
    /// A router's load balancers and groups; given by `DatapathLbs`.
    RouterLbs(Uuid),
    /// The switches and routers that name a load balancer, or a group of them.
    LbUsers(Uuid),
    /// The switches and routers that a load balancer is in.
    LbUse(Uuid),
    /// A logical switch port, parsed.
    Lsp(Uuid),
    /// A logical switch.
    Switch(Uuid),
    /// Whom frames of a switch can reach; given by `Switch`.
    SwitchReach(Uuid),
    /// A port group, and which switches its ports are in.
    PortGroup(Uuid),
    /// Which port groups each switch has ports in.
    PortGroupsBySwitch,
    /// The tunnel keys of the ports of a switch or router.
    PortKeys(Uuid),
    /// The tunnel key of a port of this name there; given by `PortKeys`.
    PortKey(Uuid, Str),
    /// Whether a port there has this tunnel key; given by `PortKeys`.
    UsedKey(Uuid, PortKey),
    /// What conntrack is for in a switch: access lists, load balancers.
    SwitchState(Uuid),
    /// The flows that a switch always has, and its own rows.
    SwitchBase(Uuid),
    /// The flows of a switch port.
    LspFlows(Uuid),
    /// Makes a unit of each address that the router behind a switch port has.
    RequestList(Uuid),
    /// The flows of ARP and ND requests for an address of the router behind a switch port.
    Requests(Uuid, IpAddr),
    /// The southbound row of a switch port.
    LspBinding(Uuid),
    /// The access lists of a switch.
    AclFlows(Uuid),
    /// What a switch with load balancers always has.
    SwitchLbFlows(Uuid),
    /// The flows of a load balancer in all its switches.
    LbInSwitches(Uuid),
    /// Multicast groups of a switch.
    SwitchGroups(Uuid),
    /// The flows that a router always has, and its own rows.
    RouterBase(Uuid),
    /// The flows of a router port.
    LrpFlows(Uuid),
    /// The southbound rows of a router port.
    LrpBinding(Uuid),
    /// The flows of a router's NAT rule.
    NatFlow(Uuid, Uuid),
    /// The flows of a router's address translation that no rule has alone.
    NatFlows(Uuid),
    /// The numbers of a router's route tables.
    RouteTables(Uuid),
    /// The rows that a router names.
    RouterRows(Uuid),
    /// Those of one column; given by `RouterRows`.
    RowsOf(Uuid, RouterColumn),
    /// Makes a unit of each static route of a router.
    RouteList(Uuid),
    /// A router's static route, parsed.
    Route(Uuid, Uuid),
    /// Makes a unit of each route that chassis have learned at a router port.
    LearnedList(Uuid),
    /// A route that was learned at a router port, parsed.
    LearnedRoute(Uuid, Uuid),
    /// The flows of a route that was learned at a router port and is alone.
    LearnedFlow(Uuid, Uuid),
    /// The routes of a router that share their traffic.
    RouteGroups(Uuid),
    /// That a router's route shares its traffic; given by `RouteGroups`.
    RouteShares(Uuid, Uuid),
    /// The flows of a router's static route that is alone.
    RouteFlow(Uuid, Uuid),
    /// The flows of a router's other routes: connected ones and those that share their traffic.
    RouteFlows(Uuid),
    /// Policies of a router.
    PolicyFlows(Uuid),
    /// The answers for the virtual addresses of a router.
    RouterLbFlows(Uuid),
    /// The flows of a load balancer in all its routers.
    LbInRouters(Uuid),
    /// The southbound row of a load balancer.
    LbRow(Uuid),
    /// The southbound rows of a port group.
    PortGroupRows(Uuid),
    /// A southbound table that is made in one go.
    Copy(CopyKind),
    /// The southbound row of an address set.
    AddressSet(Uuid),
    /// The southbound row of a static neighbour.
    StaticMac(Uuid),
    /// The dynamic addresses of a switch's ports.
    Ipam(Uuid),
    /// The router ports that have BFD sessions.
    BfdPorts,
    /// That the router port of this name has BFD sessions; given by `BfdPorts`.
    BfdPort(Str),
    /// The BFD sessions that a router's routes and policies depend on.
    RouterBfd(Uuid),
    /// The routes that a router advertises.
    AdvertisedRoutes(Uuid),
    /// The neighbours that a switch advertises.
    AdvertisedMacs(Uuid),
    /// Whether what a row that a chassis has written is about is gone.
    Watch(sb::TableId, Uuid),
    /// The queues of ports with QoS parameters.
    QueueIds,
    /// The chassis that ports of a switch are on.
    SwitchChassis(Uuid),
    /// Which chassis need each HA chassis group.
    HaReferences,
    /// The health check of a network function.
    NetworkFunction(Uuid),
    /// Which network function of a group is in use.
    NetworkFunctionGroup(Uuid),
    /// What is doubtful about a switch.
    SwitchCheck(Uuid),
    /// What is doubtful about a router.
    RouterCheck(Uuid),
    /// What is wrong with the match of a row.
    MatchCheck(nb::TableId, Uuid),
}

impl Unit {
    /// The northbound row that the unit is about; none for those that look at whole tables.
    pub fn subject(&self) -> Option<Uuid> {
        use Unit::*;
        match self {
            Global | DatapathKeys | PortGroupsBySwitch | Copy(_) | Watch(..) | QueueIds | HaReferences | BfdPorts
            | BfdPort(_) => None,
            Datapath(u)
            | Lrp(u)
            | Lb(u)
            | Router(u)
            | OnlyGateway(u)
            | NatList(u)
            | Nat(_, u)
            | RouterNats(u)
            | NatRepeats(_, u)
            | NatAnswers(u)
            | NatShares(u)
            | NatDistributed(u)
            | LbAddresses(u)
            | LbGroup(u)
            | LbKinds(u)
            | DatapathLbs(u)
            | RouterVips(u)
            | RouterLbs(u)
            | LbUsers(u)
            | LbUse(u)
            | Lsp(u)
            | Switch(u)
            | SwitchReach(u)
            | PortGroup(u)
            | PortKeys(u)
            | PortKey(u, _)
            | UsedKey(u, _)
            | SwitchState(u)
            | SwitchBase(u)
            | LspFlows(u)
            | RequestList(u)
            | Requests(u, _)
            | LspBinding(u)
            | AclFlows(u)
            | SwitchLbFlows(u)
            | LbInSwitches(u)
            | SwitchGroups(u)
            | RouterBase(u)
            | LrpFlows(u)
            | LrpBinding(u)
            | NatFlow(_, u)
            | NatFlows(u)
            | RouteTables(u)
            | RouteFlows(u)
            | RouterRows(u)
            | RowsOf(u, _)
            | RouteList(u)
            | Route(_, u)
            | LearnedList(u)
            | LearnedRoute(_, u)
            | LearnedFlow(_, u)
            | RouteGroups(u)
            | RouteShares(_, u)
            | RouteFlow(_, u)
            | PolicyFlows(u)
            | RouterLbFlows(u)
            | LbInRouters(u)
            | LbRow(u)
            | PortGroupRows(u)
            | AddressSet(u)
            | StaticMac(u)
            | Ipam(u)
            | RouterBfd(u)
            | AdvertisedRoutes(u)
            | AdvertisedMacs(u)
            | SwitchChassis(u)
            | NetworkFunction(u)
            | NetworkFunctionGroup(u)
            | SwitchCheck(u)
            | RouterCheck(u)
            | MatchCheck(_, u) => Some(*u),
        }
    }
}

/// A column of `Logical_Router` that may name thousands of rows: each change of one would concern whatever looks at the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouterColumn {
    /// `static_routes`.
    StaticRoutes,
    /// `policies`.
    Policies,
    /// `nat`.
    Nat,
    /// `load_balancer`.
    LoadBalancer,
    /// `load_balancer_group`.
    LoadBalancerGroup,
}

/// What a unit puts out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A logical flow, in the datapaths that are its values.
    Flow(Flow),
    /// A row of another southbound table.
    Row(RowKey),
    /// Columns of a northbound row.
    Nb(nb::TableId, Uuid),
    /// A row that somebody else made and that has to go.
    Stale(sb::TableId, Uuid),
    /// Something that could not be compiled, and why.
    Diagnostic(Str),
}

/// A logical flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The stage.
    pub stage: Stage,
    /// The priority.
    pub priority: u16,
    /// The match.
    pub matches: Str,
    /// The actions.
    pub actions: Str,
    /// What most flows have not.
    pub extra: Option<Box<FlowExtra>>,
}

/// Rare columns of a logical flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowExtra {
    /// `controller_meter`.
    pub meter: Option<Str>,
    /// `tags:in_out_port`.
    pub port: Option<Str>,
    /// `flow_desc`.
    pub description: Option<&'static str>,
    /// `tags:acl_ct_translation`.
    pub ct_translation: bool,
}

/// A southbound row's name that does not depend on its UUID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The table.
    pub table: sb::TableId,
    /// What tells it apart in the table, see [`crate::sync`].
    pub name: Str,
}

impl RowKey {
    /// A row of a table.
    pub fn new(table: sb::TableId, name: impl AsRef<str>) -> RowKey {
        RowKey { table, name: Str::from(name.as_ref()) }
    }

    /// The datapath of a switch or router.
    pub fn datapath(nb_uuid: Uuid) -> RowKey {
        RowKey::new(sb::TableId::DatapathBinding, nb_uuid.to_string())
    }

    /// The switch or router whose datapath this is.
    pub fn as_datapath(&self) -> Option<Uuid> {
        (self.table == sb::TableId::DatapathBinding).then(|| self.name.parse().ok()).flatten()
    }

    /// A port's binding.
    pub fn port(name: &str) -> RowKey {
        RowKey::new(sb::TableId::PortBinding, name)
    }
}

/// A column's value, which may name rows that have no UUID yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// Plain data.
    Data(Datum),
    /// One row or none.
    Refs(Vec<RowKey>),
    /// A map to rows.
    RefMap(Vec<(Str, RowKey)>),
    /// A `Logical_DP_Group` of these datapaths (none: no group).
    Group(Arc<[Uuid]>),
}

/// The columns of a row that the compiler sets; others are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Columns(pub Vec<(&'static str, Cell)>);

impl Columns {
    /// No columns.
    pub fn new() -> Columns {
        Columns::default()
    }

    /// With a column of plain data.
    pub fn data(mut self, column: &'static str, value: &impl ovn_schema::ColumnValue) -> Columns {
        self.0.push((column, Cell::Data(value.to_datum())));
        self
    }

    /// With a reference, or a set of them.
    pub fn refs(mut self, column: &'static str, rows: Vec<RowKey>) -> Columns {
        self.0.push((column, Cell::Refs(rows)));
        self
    }

    /// With any value.
    pub fn cell(mut self, column: &'static str, cell: Cell) -> Columns {
        self.0.push((column, cell));
        self
    }
}

/// A value under a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Of a flow.
    Flow(Placed),
    /// Of a row.
    Row(Arc<Columns>),
    /// Of a diagnostic: a digest of what it is about, where it is said again when that changes.
    Said(u64),
}

/// Where a flow is, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// The northbound switches or routers that it is in.
    pub datapaths: Datapaths,
    /// The northbound row that it is for.
    pub hint: Option<Hint>,
    /// What puts it out.
    pub place: SourceLine,
}

/// The first 32 bits of a row's UUID (`Logical_Flow.external_ids:stage-hint`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hint(NonZeroU32);

impl Hint {
    /// That of a row; none where those bits are all 0.
    pub fn of(row: Uuid) -> Option<Hint> {
        let (first, ..) = row.as_fields();
        NonZeroU32::new(first).map(Hint)
    }
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Northbound switches or routers that a flow is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datapaths {
    /// Just one.
    One(Uuid),
    /// Several, in order. Flows that are in the same ones share the list.
    Many(Arc<[Uuid]>),
}

impl Value {
    /// Where a flow is.
    pub fn datapaths(&self) -> Option<&Datapaths> {
        if let Value::Flow(f) = self { Some(&f.datapaths) } else { None }
    }
}

impl Datapaths {
    /// All of them.
    pub fn all(&self) -> &[Uuid] {
        match self {
            Datapaths::One(u) => std::slice::from_ref(u),
            Datapaths::Many(all) => all,
        }
    }
}

impl From<Uuid> for Datapaths {
    fn from(u: Uuid) -> Datapaths {
        Datapaths::One(u)
    }
}

impl From<&Arc<[Uuid]>> for Datapaths {
    fn from(all: &Arc<[Uuid]>) -> Datapaths {
        match all[..] {
            [u] => Datapaths::One(u),
            _ => Datapaths::Many(all.clone()),
        }
    }
}

impl Ord for Datapaths {
    fn cmp(&self, other: &Datapaths) -> Ordering {
        match (self, other) {
            (Datapaths::Many(a), Datapaths::Many(b)) if Arc::ptr_eq(a, b) => Ordering::Equal,
            _ => self.all().cmp(other.all()),
        }
    }
}

impl PartialOrd for Datapaths {
    fn partial_cmp(&self, other: &Datapaths) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A southbound table that is made in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CopyKind {
    /// `ACL_ID`.
    AclIds,
    /// `BFD`.
    Bfd,
    /// `Chassis_Template_Var`.
    Templates,
    /// `DHCP_Options`, `DHCPv6_Options`: the options that controllers understand.
    Dhcp,
    /// `DNS`.
    Dns,
    /// `Meter` with `Meter_Band`.
    Meters,
    /// `Mirror`.
    Mirrors,
    /// `RBAC_Role`, `RBAC_Permission`.
    Rbac,
    /// `SB_Global`.
    Global,
}

impl CopyKind {
    /// All of them.
    pub const ALL: &'static [CopyKind] = &[
        CopyKind::AclIds,
        CopyKind::Bfd,
        CopyKind::Templates,
        CopyKind::Dhcp,
        CopyKind::Dns,
        CopyKind::Meters,
        CopyKind::Mirrors,
        CopyKind::Rbac,
        CopyKind::Global,
    ];
}

/// A change of a database.
#[derive(Clone, Debug, PartialEq)]
pub enum Op<T> {
    /// A new row; columns that are not named have their default.
    Insert(T, Uuid, Vec<(&'static str, Datum)>),
    /// New values of some columns.
    Update(T, Uuid, Vec<(&'static str, Datum)>),
    /// The row goes.
    Delete(T, Uuid),
}

/// The compiler as a derivation.
#[derive(Default)]
pub struct Northd {
    /// How long units take.
    pub clock: Arc<Clock>,
}
