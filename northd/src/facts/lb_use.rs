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
use ovn_schema::{Map, Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The virtual addresses of a load balancer, of a group or of a datapath.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balanced {
    /// Whether any virtual address is written, be it a bad one.
    pub any: bool,
    /// Whether backends are used on their own chassis only.
    pub distributed: bool,
    /// The virtual addresses.
    pub addresses: BTreeSet<Address>,
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
    /// The virtual addresses.
    pub fn ips(&self) -> BTreeSet<IpAddr> {
        self.addresses.iter().filter_map(|a| a.ip).collect()
    }

    /// The virtual addresses for which a router answers ARP requests.
    pub fn answered(&self, router: &Router) -> BTreeSet<IpAddr> {
        let reachable = |ip: IpAddr| router.ports.iter().any(|p| p.ip_in_network_of(ip).is_some());
        let answers = |a: &Address, ip: IpAddr| match a.responder {
            Responder::All => true,
            Responder::None => false,
            Responder::Reachable => reachable(ip),
        };
        self.addresses.iter().filter_map(|a| a.ip.filter(|ip| answers(a, *ip))).collect()
    }
}

/// Derives [`Fact::Balanced`] of a load balancer.
pub fn addresses(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lb) = ctx.lb(uuid) else { return };
    let balanced =
        Balanced { any: !lb.row.vips.is_empty(), distributed: lb.distributed, addresses: Address::all(lb).collect() };
    ctx.derive(Fact::Balanced(Arc::new(balanced)));
}

/// Derives [`Fact::Balanced`] of a group.
pub fn group(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LoadBalancerGroup>(uuid) else { return };
    let parts = row.load_balancer.iter().filter_map(|l| ctx.lb_addresses(*l)).collect();
    let mut all = united(parts);
    if all.distributed {
        // What a router gets by a group leaves its gateway ports as they are.
        Arc::make_mut(&mut all).distributed = false;
    }
    ctx.derive(Fact::Balanced(all));
}

/// Derives [`Fact::Balanced`] of a switch or router.
pub fn of_datapath(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let (lbs, groups) = if let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) {
        (&row.load_balancer, &row.load_balancer_group)
    } else if let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) {
        (&row.load_balancer, &row.load_balancer_group)
    } else {
        return;
    };
    let mut parts: Vec<_> = lbs.iter().filter_map(|l| ctx.lb_addresses(*l)).collect();
    parts.extend(groups.iter().filter_map(|g| ctx.lb_group(*g)));
    ctx.derive(Fact::Balanced(united(parts)));
}

/// The virtual addresses of several parts in one list; a single part is shared, not copied.
fn united(parts: Vec<&Arc<Balanced>>) -> Arc<Balanced> {
    if let [only] = parts[..] {
        return only.clone();
    }
    let mut all = Balanced::default();
    for part in parts {
        all.any |= part.any;
        all.distributed |= part.distributed;
        all.addresses.extend(part.addresses.iter().cloned());
    }
    Arc::new(all)
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
        if ctx.nb::<nb::LoadBalancerGroup>(user).is_some() {
            parts.extend(ctx.lb_users(user));
        }
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

/// The virtual addresses of a datapath without load balancers: none.
pub fn none() -> &'static Arc<Balanced> {
    static NONE: std::sync::OnceLock<Arc<Balanced>> = std::sync::OnceLock::new();
    NONE.get_or_init(Arc::default)
}

impl<'a> Ctx<'_, 'a> {
    /// The virtual addresses of a datapath, none where it has no load balancers.
    pub fn vips(&mut self, datapath: Uuid) -> &'a Balanced {
        self.balanced(datapath).unwrap_or(none())
    }
}
