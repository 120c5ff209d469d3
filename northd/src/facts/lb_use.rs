//! Load balancers and the datapaths that they are in, seen from either side.
//!
//! A load balancer's flows are the same in all datapaths of one shape, so they are put out once, with the list of these
//! datapaths. The other way round a datapath needs the virtual addresses only, not where they lead: a changed backend
//! concerns no datapath. Groups stand between both, so that 500 services on 500 datapaths are 1,000 relations.

use super::Fact;
use super::lb::Lb;
use crate::context::{Ctx, flag, flag_or};
use crate::facts::global::copp;
use crate::facts::router::Router;
use crate::input::Read;
use crate::model::{RouterColumn, Unit};
use ovn_schema::{Map, Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The virtual addresses of a load balancer or of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balanced {
    /// The virtual addresses. Groups share those of their load balancers: a service more among thousands copies no address.
    pub addresses: Vec<Arc<Address>>,
    /// Those of them that somebody may ask for, or has a route to.
    sought: Vec<Arc<Address>>,
    /// The addresses alone, sorted, each once.
    ips: Box<[IpAddr]>,
}

/// What load balancers say of the datapaths that they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kinds {
    /// Whether any virtual address is written, be it a bad one.
    pub any: bool,
    /// Whether backends are used on their own chassis only.
    pub distributed: bool,
}

/// What a router's virtual addresses mean for its ports and its neighbours. A virtual address more changes it only where it is
/// a part of it, so that most routers have nothing to do for a new service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterVips {
    /// Those for which the router answers ARP and ND requests.
    pub answered: BTreeSet<IpAddr>,
    /// The variables of templates that stand for such addresses.
    pub variables: BTreeSet<Str>,
    /// The addresses of the router's ports that are virtual addresses too.
    pub shares: BTreeSet<IpAddr>,
    /// Those that the router also translates.
    pub translated: BTreeSet<Arc<Address>>,
    /// Those that neighbouring routers get a route to.
    pub routable: BTreeSet<IpAddr>,
}

/// A virtual address without its backends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The address as a match writes it: plain, or `^VARIABLE` of a template.
    pub text: Str,
    /// The port as a match writes it; none: all ports.
    pub port: Option<Str>,
    /// `protocol`.
    pub protocol: Str,
    /// The address; none where a variable stands for it.
    pub ip: Option<IpAddr>,
    /// Whether the address is an IPv6 one.
    pub v6: bool,
    /// Who answers ARP and ND requests for it.
    pub responder: Responder,
    /// Whether dynamic routing may advertise it (`options:dynamic-routing-advertise`).
    pub advertised: bool,
    /// Whether neighbouring routers get a route to it (`options:add_route`).
    pub routable: bool,
    /// The load balancer.
    pub lb: Uuid,
}

/// Who answers ARP requests for a virtual address (`options:neighbor_responder`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Responder {
    /// Routers with a network that it is in.
    Reachable,
    /// All routers.
    All,
    /// Nobody.
    None,
}

/// The datapaths of a load balancer, by what sets their flows apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Users {
    /// Switches.
    pub switches: Shapes<SwitchShape>,
    /// Routers.
    pub routers: Shapes<RouterShape>,
}

/// All datapaths in order, and those of each shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Shapes<S> {
    /// All datapaths.
    pub all: Arc<[Uuid]>,
    /// The datapaths of each shape.
    pub by_shape: Vec<(S, Arc<[Uuid]>)>,
}

/// What sets the flows of load balancers in a switch apart from those in another.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchShape {
    /// `other_config:enable-stateless-acl-with-lb`.
    pub stateless: bool,
    /// The meter of events.
    pub event: Option<Str>,
    /// The meter of rejections.
    pub reject: Option<Str>,
}

/// What sets the flows of load balancers in a router apart from those in another.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouterShape {
    /// Whether the source is forced (`options:lb_force_snat_ip`).
    pub force_snat: bool,
    /// Whether DNAT and SNAT share a conntrack zone.
    pub common_zone: bool,
    /// The distributed gateway ports: the name and that on the gateway chassis, both in quotes.
    pub gateways: Vec<(Str, Str)>,
    /// The meter of events.
    pub event: Option<Str>,
    /// The meter of rejections.
    pub reject: Option<Str>,
}

impl<S> Default for Shapes<S> {
    fn default() -> Shapes<S> {
        Shapes { all: Arc::from([]), by_shape: Vec::new() }
    }
}

impl<S: Ord + Clone> Shapes<S> {
    fn new(of: BTreeMap<Uuid, S>) -> Shapes<S> {
        let all: Arc<[Uuid]> = of.keys().copied().collect();
        let mut by_shape: BTreeMap<S, Vec<Uuid>> = BTreeMap::new();
        for (u, shape) in of {
            by_shape.entry(shape).or_default().push(u);
        }
        let only = by_shape.len() == 1;
        let share = |list: Vec<Uuid>| if only { all.clone() } else { list.into() };
        let by_shape = by_shape.into_iter().map(|(shape, list)| (shape, share(list))).collect();
        Shapes { all, by_shape }
    }

    fn merge<'a>(parts: impl Iterator<Item = &'a Shapes<S>>) -> Shapes<S>
    where
        S: 'a,
    {
        let mut of = BTreeMap::new();
        for (shape, list) in parts.flat_map(|p| &p.by_shape) {
            of.extend(list.iter().map(|u| (*u, shape.clone())));
        }
        Shapes::new(of)
    }
}

impl Address {
    fn all(lb: &Lb) -> impl Iterator<Item = Address> {
        let responder = match lb.row.options.get("neighbor_responder").map(|m| &**m) {
            Some("all") => Responder::All,
            Some("none") => Responder::None,
            _ if lb.template => Responder::None,
            _ => Responder::Reachable,
        };
        let advertised = flag_or(&lb.row.options, "dynamic-routing-advertise", true);
        let routable = !lb.template && flag(&lb.row.options, "add_route");
        lb.vips.iter().map(move |v| Address {
            text: v.address.clone(),
            port: v.port.clone(),
            protocol: lb.protocol.clone(),
            ip: v.ip,
            v6: v.v6,
            responder,
            advertised,
            routable,
            lb: lb.uuid,
        })
    }
}

impl Balanced {
    fn new(addresses: Vec<Arc<Address>>) -> Balanced {
        let sought = addresses.iter().filter(|a| a.responder != Responder::None || a.routable).cloned().collect();
        let mut ips: Vec<IpAddr> = addresses.iter().filter_map(|a| a.ip).collect();
        ips.sort_unstable();
        ips.dedup();
        Balanced { addresses, sought, ips: ips.into() }
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.ips.binary_search(&ip).is_ok()
    }
}

impl RouterVips {
    fn new(ctx: &mut Ctx<'_, '_>, router: &Router, parts: &[Arc<Balanced>]) -> RouterVips {
        let mut all = RouterVips::default();
        let reachable = |ip: IpAddr| router.ports.iter().any(|p| p.ip_in_network_of(ip).is_some());
        for a in parts.iter().flat_map(|p| &p.sought) {
            match (a.responder, a.ip) {
                (Responder::All, Some(ip)) => _ = all.answered.insert(ip),
                (Responder::Reachable, Some(ip)) if reachable(ip) => _ = all.answered.insert(ip),
                (Responder::All, None) => _ = all.variables.insert(a.text.clone()),
                _ => {}
            }
            all.routable.extend(a.ip.filter(|_| a.routable));
        }
        let has = |ip: &IpAddr| parts.iter().any(|p| p.has(*ip));
        let v4 = router.ports.iter().flat_map(|p| &p.v4).map(|n| IpAddr::from(n.addr));
        let v6 = router.ports.iter().flat_map(|p| &p.v6).map(|n| IpAddr::from(n.addr));
        all.shares = v4.chain(v6).filter(has).collect();
        let nats = ctx.rows_of(router.uuid, RouterColumn::Nat);
        for external in nats.iter().filter_map(|n| ctx.nb::<nb::Nat>(*n)).map(|n| &n.external_ip) {
            if external.parse().is_ok_and(|ip| has(&ip)) {
                let same = parts.iter().flat_map(|p| &p.addresses).filter(|a| a.text == *external);
                all.translated.extend(same.cloned());
            }
        }
        all
    }
}

/// Derives [`Fact::Balanced`] of a load balancer, and gives its [`Fact::Kinds`].
pub fn addresses(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lb) = ctx.lb(uuid) else { return };
    let kinds = Kinds { any: !lb.row.vips.is_empty(), distributed: lb.distributed };
    ctx.give(Unit::LbKinds(uuid), Fact::Kinds(kinds));
    ctx.derive(Fact::Balanced(Arc::new(Balanced::new(Address::all(lb).map(Arc::new).collect()))));
}

/// Derives [`Fact::Balanced`] of a group, and gives its [`Fact::Kinds`].
pub fn group(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LoadBalancerGroup>(uuid) else { return };
    let addresses = row.load_balancer.iter().filter_map(|l| ctx.lb_addresses(*l)).flat_map(|p| &p.addresses);
    let balanced = Balanced::new(addresses.cloned().collect());
    let any = row.load_balancer.iter().any(|l| ctx.lb_kinds(*l).is_some_and(|k| k.any));
    // What a router gets by a group leaves its gateway ports as they are.
    ctx.give(Unit::LbKinds(uuid), Fact::Kinds(Kinds { any, distributed: false }));
    ctx.derive(Fact::Balanced(Arc::new(balanced)));
}

/// Derives [`Fact::Kinds`] of a switch or router, and gives what a router's virtual addresses are and mean. A switch needs no
/// addresses, so that a service more in a group concerns none.
pub fn of_datapath(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let router = ctx.router(uuid);
    let (lbs, groups) = if router.is_some() {
        (ctx.rows_of(uuid, RouterColumn::LoadBalancer), ctx.rows_of(uuid, RouterColumn::LoadBalancerGroup))
    } else if let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) {
        (&row.load_balancer, &row.load_balancer_group)
    } else {
        return;
    };
    if lbs.is_empty() && groups.is_empty() {
        return;
    }
    let kinds = lbs.iter().chain(groups).filter_map(|l| ctx.lb_kinds(*l));
    let both = |a: Kinds, b: &Kinds| Kinds { any: a.any || b.any, distributed: a.distributed || b.distributed };
    let kinds = kinds.fold(Kinds::default(), both);
    ctx.derive(Fact::Kinds(kinds));
    if let Some(router) = router {
        let mut parts: Vec<_> = lbs.iter().filter_map(|l| ctx.lb_addresses(*l)).cloned().collect();
        parts.extend(groups.iter().filter_map(|g| ctx.lb_group(*g)).cloned());
        let means = RouterVips::new(ctx, router, &parts);
        ctx.give(Unit::RouterVips(uuid), Fact::RouterVips(Box::new(means)));
        ctx.give(Unit::RouterLbs(uuid), Fact::RouterLbs(parts));
    }
}

/// Derives [`Fact::LbUsers`] of what names a load balancer or a group.
pub fn users(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let (mut switches, mut routers) = (BTreeMap::new(), BTreeMap::new());
    let by_group = ctx.nb::<nb::LoadBalancerGroup>(uuid).is_some();
    for user in ctx.read(Read::LbUsers(uuid)).lb_users(uuid) {
        if let Some(shape) = switch_shape(ctx, user, by_group) {
            switches.insert(user, shape);
        }
        if let Some(router) = ctx.router(user) {
            let shape = RouterShape {
                force_snat: router.lb_force_snat.any(),
                common_zone: router.common_zone,
                gateways: router.gateway_ports().map(|p| (p.json.clone(), p.cr_json.clone())).collect(),
                event: copp(&router.copp, "event-elb", ctx.global()).meter,
                reject: copp(&router.copp, "reject", ctx.global()).meter,
            };
            routers.insert(user, shape);
        }
        for switch in switches_of(ctx, user) {
            if let Some(shape) = switch_shape(ctx, switch, by_group) {
                switches.insert(switch, shape);
            }
        }
    }
    ctx.derive(Fact::LbUsers(Arc::new(Users { switches: Shapes::new(switches), routers: Shapes::new(routers) })));
}

fn switch_shape(ctx: &mut Ctx<'_, '_>, uuid: Uuid, by_group: bool) -> Option<SwitchShape> {
    let switch = ctx.switch(uuid)?;
    let meter = |of: &Map<Str, Str>, what, ctx: &mut Ctx<'_, '_>| copp(of, what, ctx.global()).meter;
    Some(SwitchShape {
        stateless: !by_group && flag(&switch.config, "enable-stateless-acl-with-lb"),
        event: meter(&switch.copp, "event-elb", ctx),
        reject: meter(&switch.copp, "reject", ctx),
    })
}

/// The switches at a router, where `NB_Global.options:install_ls_lb_from_router` lets them have its load balancers.
fn switches_of(ctx: &mut Ctx<'_, '_>, router: Uuid) -> BTreeSet<Uuid> {
    let mut all = BTreeSet::new();
    if !flag(&ctx.global().options, "install_ls_lb_from_router") {
        return all;
    }
    let Some(row) = ctx.nb::<nb::LogicalRouter>(router) else { return all };
    for p in &row.ports {
        let Some(port) = ctx.nb::<nb::LogicalRouterPort>(*p) else { continue };
        for lsp in ctx.read(Read::RouterPort(port.name.clone())).switch_ports_of(&port.name) {
            all.extend(ctx.read(Read::LspOwner(lsp)).lsp_owner(lsp));
        }
    }
    all
}

/// Derives [`Fact::LbUsers`] of where a load balancer is: what names it, or a group that it is in.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let mut parts: Vec<&Arc<Users>> = Vec::new();
    for user in ctx.read(Read::LbUsers(uuid)).lb_users(uuid) {
        // Of switches and routers nothing has derived users. A group's row is not looked at: it changes with each member.
        parts.extend(ctx.lb_users(user));
    }
    // What is named itself counts where a group names it too.
    parts.extend(ctx.lb_users(uuid));
    parts.retain(|p| !p.switches.all.is_empty() || !p.routers.all.is_empty());
    let all = match parts[..] {
        [only] => only.clone(),
        _ => Arc::new(Users {
            switches: Shapes::merge(parts.iter().map(|p| &p.switches)),
            routers: Shapes::merge(parts.iter().map(|p| &p.routers)),
        }),
    };
    ctx.derive(Fact::LbUsers(all));
}

impl<'a> Ctx<'_, 'a> {
    /// What the load balancers of a datapath say of it.
    pub fn kinds(&mut self, datapath: Uuid) -> Kinds {
        self.datapath_kinds(datapath).copied().unwrap_or_default()
    }

    /// What a router's virtual addresses mean for its ports and its neighbours.
    pub fn vips(&mut self, router: Uuid) -> &'a RouterVips {
        static NONE: std::sync::LazyLock<RouterVips> = std::sync::LazyLock::new(RouterVips::default);
        self.router_vips(router).map_or(&NONE, |v| v)
    }

    /// A router's virtual addresses, all of them: who asks has to do again whatever it does for each one that comes or goes.
    pub fn all_vips(&mut self, router: Uuid) -> impl Iterator<Item = &'a Arc<Address>> {
        self.router_lbs(router).into_iter().flatten().flat_map(|p| &p.addresses)
    }
}
