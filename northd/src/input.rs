//! What the compiler reads: both databases, with the indexes that it looks things up by.

use crate::addresses::Mac;
use crate::sticky_ids::{Note, StickyIds};
use ovn_schema::{Change, DatapathKey, InDatabase, Map, Str, Table, Uuid, nb, sb};
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Tables that others write as well: their rows go when what they are about does (`tables::stale`).
pub const WATCHED: &[sb::TableId] =
    &[sb::TableId::MacBinding, sb::TableId::Fdb, sb::TableId::LearnedRoute, sb::TableId::IgmpGroup];

/// A key of the [`Input`]: what a unit can read, and what can change under it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// A northbound row.
    Nb(Uuid),
    /// Whether a northbound table has a row.
    NbRow(nb::TableId, Uuid),
    /// Which rows a northbound table has.
    NbTable(nb::TableId),
    /// A southbound row.
    Sb(Uuid),
    /// Whether a southbound table has a row.
    SbRow(sb::TableId, Uuid),
    /// Which rows a southbound table has.
    SbTable(sb::TableId),
    /// The logical switch port of this name.
    LspName(Str),
    /// The logical router port of this name.
    LrpName(Str),
    /// The logical switch that a port is in.
    LspOwner(Uuid),
    /// The logical router that a port is in.
    LrpOwner(Uuid),
    /// The logical switch ports that name this router port.
    RouterPort(Str),
    /// The port binding of this name.
    Binding(Str),
    /// The chassis of this name.
    Chassis(Str),
    /// The chassis on the host of this name.
    Host(Str),
    /// The southbound datapath of a northbound switch or router.
    Datapath(Uuid),
    /// The rows of `IGMP_Group` of a northbound switch.
    IgmpGroups(Uuid),
    /// The rows of `Multicast_Group` of a northbound switch or router.
    MulticastGroups(Uuid),
    /// The rows of `Learned_Route` of the logical port of this name.
    LearnedRoutes(Str),
    /// The service monitors of the logical port of this name.
    Monitors(Str),
    /// The logical switch ports whose parent has this name.
    Children(Str),
    /// The logical switch ports with QoS parameters.
    QosPorts,
    /// The ACLs whose connections stay allowed when the ACL is gone.
    PersistentAcls,
    /// What names this load balancer, or this group of them.
    LbUsers(Uuid),
    /// The BFD session of a logical router port with an address.
    Bfd(Str, Str),
    /// The northbound switch or router of the southbound datapath with this tunnel key.
    DatapathKey(DatapathKey),
    /// The neighbour of a logical router port with an address.
    MacBinding(Str, Str),
    /// The ports with this Ethernet address.
    Mac(Mac),
    /// Whether a logical switch port asks for dynamic addresses, or has some.
    Dynamic(Uuid),
}

/// The northbound database, and the southbound one as far as others write it.
#[derive(Debug, Default)]
pub struct Input {
    /// Northbound.
    pub nb: nb::Database,
    /// Southbound.
    pub sb: sb::Database,
    lsp_owner: HashMap<Uuid, BTreeSet<Uuid>>,
    lrp_owner: HashMap<Uuid, BTreeSet<Uuid>>,
    lsp_names: HashMap<Str, Uuid>,
    lrp_names: HashMap<Str, Uuid>,
    router_ports: HashMap<Str, BTreeSet<Uuid>>,
    bindings: HashMap<Str, Uuid>,
    chassis: HashMap<Str, Uuid>,
    hosts: HashMap<Str, BTreeSet<Uuid>>,
    /// By datapath.
    igmp_groups: HashMap<Uuid, BTreeSet<Uuid>>,
    /// By datapath.
    multicast_groups: HashMap<Uuid, BTreeSet<Uuid>>,
    /// By port binding.
    learned_routes: HashMap<Uuid, BTreeSet<Uuid>>,
    datapaths: HashMap<Uuid, Uuid>,
    monitors: HashMap<Str, BTreeSet<Uuid>>,
    children: HashMap<Str, BTreeSet<Uuid>>,
    qos_ports: BTreeSet<Uuid>,
    persistent_acls: BTreeSet<Uuid>,
    bfds: HashMap<(Str, Str), Uuid>,
    numbers: StickyIds,
    datapath_keys: HashMap<DatapathKey, Uuid>,
    mac_bindings: HashMap<(Str, Str), Uuid>,
    macs: HashMap<Mac, BTreeSet<Uuid>>,
    lb_users: HashMap<Uuid, BTreeSet<Uuid>>,
}

impl Input {
    /// An input over these databases, with its indexes built.
    pub fn new(nb: nb::Database, sb: sb::Database) -> Input {
        let mut input = Input::default();
        let mut ignored = Vec::new();
        for (u, r) in &nb.logical_switch {
            input.index_switch(*u, None, Some(r), &mut ignored);
        }
        for (u, r) in &nb.logical_router {
            input.index_router(*u, None, Some(r), &mut ignored);
        }
        for (u, r) in &nb.load_balancer_group {
            own(&mut input.lb_users, *u, &BTreeSet::new(), &r.load_balancer, Read::LbUsers, &mut ignored);
        }
        input.lsp_names = nb.logical_switch_port.iter().map(|(u, r)| (r.name.clone(), *u)).collect();
        input.lrp_names = nb.logical_router_port.iter().map(|(u, r)| (r.name.clone(), *u)).collect();
        for (u, r) in &nb.logical_switch_port {
            input.index_router_port(*u, None, Some(r), &mut ignored);
            input.index_macs(*u, &BTreeSet::new(), &macs_of(Some(r)), &mut ignored);
        }
        for (u, r) in &nb.logical_router_port {
            input.index_macs(*u, &BTreeSet::new(), &r.mac.trim().parse().ok().into_iter().collect(), &mut ignored);
        }
        input.persistent_acls = nb.acl.iter().filter(|(_, a)| is_persistent(a)).map(|(u, _)| *u).collect();
        input.bindings = sb.port_binding.iter().map(|(u, r)| (r.logical_port.clone(), *u)).collect();
        input.chassis = sb.chassis.iter().map(|(u, r)| (r.name.clone(), *u)).collect();
        for (u, r) in &sb.chassis {
            input.hosts.entry(r.hostname.clone()).or_default().insert(*u);
        }
        for (u, datapath) in sb.igmp_group.iter().filter_map(|(u, r)| Some((u, r.datapath?))) {
            input.igmp_groups.entry(datapath).or_default().insert(*u);
        }
        for (u, r) in &sb.multicast_group {
            input.multicast_groups.entry(r.datapath).or_default().insert(*u);
        }
        for (u, r) in &sb.learned_route {
            input.learned_routes.entry(r.logical_port).or_default().insert(*u);
        }
        input.datapaths = sb.datapath_binding.iter().filter_map(|(u, r)| Some((r.nb_uuid?, *u))).collect();
        for (u, r) in &sb.service_monitor {
            input.monitors.entry(r.logical_port.clone()).or_default().insert(*u);
        }
        input.bfds = sb.bfd.iter().map(|(u, r)| ((r.logical_port.clone(), r.dst_ip.clone()), *u)).collect();
        input.datapath_keys = sb.datapath_binding.values().filter_map(|r| Some((r.key(), r.nb_uuid?))).collect();
        input.mac_bindings = sb.mac_binding.iter().map(|(u, r)| ((r.logical_port.clone(), r.ip.clone()), *u)).collect();
        input.nb = nb;
        input.sb = sb;
        input.load_numbers();
        input
    }

    /// How many entries the indexes have.
    pub fn index_entries(&self) -> usize {
        let by_uuid = [&self.lsp_owner, &self.lrp_owner, &self.lb_users].map(HashMap::len);
        let by_name = [&self.lsp_names, &self.lrp_names, &self.bindings, &self.chassis].map(HashMap::len);
        let groups = [&self.router_ports, &self.monitors, &self.children, &self.hosts].map(HashMap::len);
        let rows = [&self.igmp_groups, &self.multicast_groups, &self.learned_routes].map(HashMap::len);
        let pairs = [&self.bfds, &self.mac_bindings].map(HashMap::len);
        let sets = [self.qos_ports.len(), self.persistent_acls.len()];
        let others = [self.datapaths.len(), self.datapath_keys.len(), self.macs.len(), self.numbers.len()];
        [&by_uuid[..], &by_name, &groups, &rows, &pairs, &sets, &others]
            .iter()
            .map(|all| all.iter().sum::<usize>())
            .sum()
    }

    /// The logical switch that has this port; should several claim it, the one that the southbound database has it in.
    pub fn lsp_owner(&self, lsp: Uuid) -> Option<Uuid> {
        self.one_owner(self.lsp_owner.get(&lsp)?, || Some(&self.nb.logical_switch_port.get(&lsp)?.name))
    }

    /// The logical router that has this port; should several claim it, the one that the southbound database has it in.
    pub fn lrp_owner(&self, lrp: Uuid) -> Option<Uuid> {
        self.one_owner(self.lrp_owner.get(&lrp)?, || Some(&self.nb.logical_router_port.get(&lrp)?.name))
    }

    /// How many switches or routers claim a port.
    pub fn owners(&self, port: Uuid) -> usize {
        let count = |all: &HashMap<Uuid, BTreeSet<Uuid>>| all.get(&port).map_or(0, BTreeSet::len);
        count(&self.lsp_owner) + count(&self.lrp_owner)
    }

    fn one_owner<'a>(&'a self, all: &BTreeSet<Uuid>, name: impl FnOnce() -> Option<&'a Str>) -> Option<Uuid> {
        let first = all.first().copied();
        if all.len() < 2 {
            return first;
        }
        let home = || self.sb.datapath_binding.get(&self.binding(name()?)?.1.datapath)?.nb_uuid;
        home().filter(|u| all.contains(u)).or(first)
    }

    /// The logical switch port of this name.
    pub fn lsp_by_name(&self, name: &str) -> Option<Uuid> {
        self.lsp_names.get(name).copied()
    }

    /// The logical router port of this name.
    pub fn lrp_by_name(&self, name: &str) -> Option<Uuid> {
        self.lrp_names.get(name).copied()
    }

    /// The logical switch ports that name a router port.
    pub fn switch_ports_of(&self, lrp: &str) -> Vec<Uuid> {
        self.router_ports.get(lrp).map(|s| s.iter().copied().collect()).unwrap_or_default()
    }

    /// The port binding of this name.
    pub fn binding(&self, name: &str) -> Option<(Uuid, &Arc<sb::PortBinding>)> {
        let uuid = *self.bindings.get(name)?;
        Some((uuid, self.sb.port_binding.get(&uuid)?))
    }

    /// The chassis of this name.
    pub fn chassis(&self, name: &str) -> Option<(Uuid, &Arc<sb::Chassis>)> {
        let uuid = *self.chassis.get(name)?;
        Some((uuid, self.sb.chassis.get(&uuid)?))
    }

    /// The chassis on a host.
    pub fn on_host(&self, host: &str) -> impl Iterator<Item = Uuid> {
        self.hosts.get(host).into_iter().flatten().copied()
    }

    fn of_datapath<'a>(&self, rows: &'a HashMap<Uuid, BTreeSet<Uuid>>, nb_uuid: Uuid) -> &'a BTreeSet<Uuid> {
        static NONE: BTreeSet<Uuid> = BTreeSet::new();
        self.datapaths.get(&nb_uuid).and_then(|d| rows.get(d)).unwrap_or(&NONE)
    }

    /// The rows of `IGMP_Group` of a northbound switch.
    pub fn igmp_groups(&self, nb_uuid: Uuid) -> &BTreeSet<Uuid> {
        self.of_datapath(&self.igmp_groups, nb_uuid)
    }

    /// The rows of `Multicast_Group` of a northbound switch or router.
    pub fn multicast_groups(&self, nb_uuid: Uuid) -> &BTreeSet<Uuid> {
        self.of_datapath(&self.multicast_groups, nb_uuid)
    }

    /// The rows of `Learned_Route` of a logical port.
    pub fn learned_routes(&self, port: &str) -> impl Iterator<Item = Uuid> {
        self.bindings.get(port).and_then(|b| self.learned_routes.get(b)).into_iter().flatten().copied()
    }

    /// The southbound datapath of a northbound switch or router.
    pub fn datapath(&self, nb_uuid: Uuid) -> Option<(Uuid, &Arc<sb::DatapathBinding>)> {
        let uuid = *self.datapaths.get(&nb_uuid)?;
        Some((uuid, self.sb.datapath_binding.get(&uuid)?))
    }

    /// The logical switch ports whose parent has this name.
    pub fn children(&self, parent: &str) -> Vec<Uuid> {
        self.children.get(parent).map(|s| s.iter().copied().collect()).unwrap_or_default()
    }

    /// The BFD session of a logical router port with an address.
    pub fn bfd(&self, port: &Str, address: &Str) -> Option<&Arc<sb::Bfd>> {
        self.sb.bfd.get(self.bfds.get(&(port.clone(), address.clone()))?)
    }

    /// The switches, routers and groups that name a load balancer, or a group of them.
    pub fn lb_users(&self, uuid: Uuid) -> impl Iterator<Item = Uuid> {
        self.lb_users.get(&uuid).into_iter().flatten().copied()
    }

    /// Whether a port other than this one has an Ethernet address.
    pub fn mac_taken(&self, mac: Mac, port: Uuid) -> bool {
        self.macs.get(&mac).is_some_and(|all| all.iter().any(|p| *p != port))
    }

    /// Whether a port with a lower UUID has the same Ethernet address given to it.
    pub fn mac_before(&self, mac: Mac, port: Uuid) -> bool {
        let dynamic = |p: &Uuid| {
            let row = self.nb.logical_switch_port.get(p);
            row.and_then(|r| r.dynamic_addresses.as_ref()).is_some_and(|d| d.starts_with(&mac.to_string()))
        };
        self.macs.get(&mac).is_some_and(|all| all.iter().any(|p| *p < port && dynamic(p)))
    }

    /// Whether a logical switch port asks for dynamic addresses, or has some.
    pub fn has_dynamic(&self, port: Uuid) -> bool {
        is_dynamic(self.nb.logical_switch_port.get(&port).map(|r| &**r))
    }

    /// The northbound switch or router of the southbound datapath with this tunnel key.
    pub fn datapath_by_key(&self, key: DatapathKey) -> Option<Uuid> {
        self.datapath_keys.get(&key).copied()
    }

    /// The Ethernet address of a neighbour of a logical router port.
    pub fn mac_binding(&self, port: &Str, address: &Str) -> Option<Str> {
        let uuid = self.mac_bindings.get(&(port.clone(), address.clone()))?;
        self.sb.mac_binding.get(uuid).map(|r| r.mac.clone())
    }

    /// Reads the numbers that the southbound database has.
    pub fn load_numbers(&mut self) {
        self.numbers = StickyIds::load(&self.sb);
    }

    /// Takes over numbers that were put out or taken back; `first`: there are no others.
    pub fn note_numbers(&mut self, notes: Vec<Note>, first: bool) {
        if first {
            self.numbers = StickyIds::default();
        }
        self.numbers.note(notes);
    }

    /// The numbers of ECMP groups, route tables and policy chains as the last run put them out; before the first run, those of
    /// the southbound database. Reading them is not recorded, and they change with every run: a unit that runs again keeps the
    /// numbers that it has, so its result depends on the order in which things came. A compile from nothing over the rows
    /// that were written gives the same numbers; one over an empty southbound database may number otherwise.
    pub fn numbers(&self) -> &StickyIds {
        &self.numbers
    }

    /// The logical switch ports with QoS parameters.
    pub fn qos_ports(&self) -> &BTreeSet<Uuid> {
        &self.qos_ports
    }

    /// The ACLs whose connections stay allowed when the ACL is gone.
    pub fn persistent_acls(&self) -> &BTreeSet<Uuid> {
        &self.persistent_acls
    }

    /// The service monitors of a logical port.
    pub fn monitors(&self, port: &str) -> Vec<Uuid> {
        self.monitors.get(port).map(|s| s.iter().copied().collect()).unwrap_or_default()
    }

    /// A northbound row.
    pub fn nb_row<T: InDatabase<Database = nb::Database>>(&self, uuid: Uuid) -> Option<&Arc<T>> {
        T::rows(&self.nb).get(&uuid)
    }

    /// Takes note of a northbound change that has been applied to [`Input::nb`], and tells what
    /// reads it concerns.
    pub fn note_nb(&mut self, change: &nb::AnyChange, reads: &mut Vec<Read>) {
        let (table, uuid) = change.key();
        if let nb::AnyChange::NbGlobal(c) = change
            && let (Some(old), Some(new)) = (&c.old, &c.new)
            && counts_only(old, new)
        {
            return; // Nobody reads the counts.
        }
        reads.push(Read::Nb(uuid));
        if membership(change) {
            reads.push(Read::NbRow(table, uuid));
            reads.push(Read::NbTable(table));
        }
        match change {
            nb::AnyChange::LogicalSwitch(c) => {
                self.index_switch(uuid, c.old.as_deref(), c.new.as_deref(), reads);
            }
            nb::AnyChange::LogicalRouter(c) => {
                self.index_router(uuid, c.old.as_deref(), c.new.as_deref(), reads);
            }
            nb::AnyChange::LoadBalancerGroup(c) => {
                let none = BTreeSet::new();
                let lbs = |r: &'_ Option<Arc<nb::LoadBalancerGroup>>| r.as_ref().map(|r| r.load_balancer.clone());
                let (old, new) = (lbs(&c.old), lbs(&c.new));
                let (old, new) = (old.as_ref().unwrap_or(&none), new.as_ref().unwrap_or(&none));
                own(&mut self.lb_users, uuid, old, new, Read::LbUsers, reads);
            }
            nb::AnyChange::Acl(c) => {
                let has = c.new.as_ref().is_some_and(|a| is_persistent(a));
                if c.old.as_ref().is_some_and(|a| is_persistent(a)) != has {
                    if has {
                        self.persistent_acls.insert(uuid);
                    } else {
                        self.persistent_acls.remove(&uuid);
                    }
                    reads.push(Read::PersistentAcls);
                }
            }
            nb::AnyChange::LogicalSwitchPort(c) => {
                let (old, new) = (c.old.as_ref().map(|r| &r.name), c.new.as_ref().map(|r| &r.name));
                rename(&mut self.lsp_names, uuid, old, new, Read::LspName, reads);
                self.index_router_port(uuid, c.old.as_deref(), c.new.as_deref(), reads);
                self.index_macs(uuid, &macs_of(c.old.as_deref()), &macs_of(c.new.as_deref()), reads);
                if is_dynamic(c.old.as_deref()) != is_dynamic(c.new.as_deref()) {
                    reads.push(Read::Dynamic(uuid));
                }
            }
            nb::AnyChange::LogicalRouterPort(c) => {
                let (old, new) = (c.old.as_ref().map(|r| &r.name), c.new.as_ref().map(|r| &r.name));
                rename(&mut self.lrp_names, uuid, old, new, Read::LrpName, reads);
                let mac = |r: &Option<Arc<nb::LogicalRouterPort>>| {
                    r.iter().filter_map(|r| r.mac.trim().parse().ok()).collect()
                };
                self.index_macs(uuid, &mac(&c.old), &mac(&c.new), reads);
            }
            _ => {}
        }
    }

    /// As [`Input::note_nb`], for the southbound database.
    pub fn note_sb(&mut self, change: &sb::AnyChange, reads: &mut Vec<Read>) {
        let (table, uuid) = change.key();
        if table == sb::TableId::LogicalFlow {
            return; // Nobody reads them.
        }
        if let sb::AnyChange::SbGlobal(c) = change
            && let (Some(old), Some(new)) = (&c.old, &c.new)
            && **new == (sb::SbGlobal { nb_cfg: new.nb_cfg, nb_cfg_timestamp: new.nb_cfg_timestamp, ..(**old).clone() })
        {
            return; // Nobody reads the counts.
        }
        reads.push(Read::Sb(uuid));
        if WATCHED.contains(&table) {
            reads.push(Read::SbRow(table, uuid));
        }
        match change {
            sb::AnyChange::PortBinding(c) => {
                let (old, new) = (c.old.as_ref().map(|r| &r.logical_port), c.new.as_ref().map(|r| &r.logical_port));
                rename(&mut self.bindings, uuid, old, new, Read::Binding, reads);
            }
            sb::AnyChange::Chassis(c) => {
                let (old, new) = (c.old.as_ref().map(|r| &r.name), c.new.as_ref().map(|r| &r.name));
                rename(&mut self.chassis, uuid, old, new, Read::Chassis, reads);
                let hosts = (c.old.as_ref().map(|r| &r.hostname), c.new.as_ref().map(|r| &r.hostname));
                regroup(&mut self.hosts, uuid, hosts, Read::Host, reads);
            }
            sb::AnyChange::DatapathBinding(c) => {
                if let Some(nb) = c.old.as_ref().and_then(|r| r.nb_uuid) {
                    if let Some(key) = c.old.as_ref().map(|r| r.key()) {
                        self.datapath_keys.remove(&key);
                        reads.push(Read::DatapathKey(key));
                    }
                    self.datapaths.remove(&nb);
                    reads.push(Read::Datapath(nb));
                }
                if let Some(nb) = c.new.as_ref().and_then(|r| r.nb_uuid) {
                    if let Some(key) = c.new.as_ref().map(|r| r.key()) {
                        self.datapath_keys.insert(key, nb);
                        reads.push(Read::DatapathKey(key));
                    }
                    self.datapaths.insert(nb, uuid);
                    reads.push(Read::Datapath(nb));
                }
            }
            sb::AnyChange::MacBinding(c) => {
                if let Some(old) = &c.old {
                    self.mac_bindings.remove(&(old.logical_port.clone(), old.ip.clone()));
                    reads.push(Read::MacBinding(old.logical_port.clone(), old.ip.clone()));
                }
                if let Some(new) = &c.new {
                    self.mac_bindings.insert((new.logical_port.clone(), new.ip.clone()), uuid);
                    reads.push(Read::MacBinding(new.logical_port.clone(), new.ip.clone()));
                }
            }
            sb::AnyChange::Bfd(c) => {
                if let Some(old) = &c.old {
                    self.bfds.remove(&(old.logical_port.clone(), old.dst_ip.clone()));
                    reads.push(Read::Bfd(old.logical_port.clone(), old.dst_ip.clone()));
                }
                if let Some(new) = &c.new {
                    self.bfds.insert((new.logical_port.clone(), new.dst_ip.clone()), uuid);
                    reads.push(Read::Bfd(new.logical_port.clone(), new.dst_ip.clone()));
                }
            }
            sb::AnyChange::IgmpGroup(c) => {
                let datapath = |r: &Option<Arc<sb::IgmpGroup>>| r.as_ref().and_then(|r| r.datapath);
                let moved = swap(&mut self.igmp_groups, uuid, datapath(&c.old), datapath(&c.new));
                reads.extend(moved.into_iter().filter_map(|d| self.nb_of(d)).map(Read::IgmpGroups));
            }
            sb::AnyChange::MulticastGroup(c) => {
                let datapath = |r: &Option<Arc<sb::MulticastGroup>>| r.as_ref().map(|r| r.datapath);
                let moved = swap(&mut self.multicast_groups, uuid, datapath(&c.old), datapath(&c.new));
                reads.extend(moved.into_iter().filter_map(|d| self.nb_of(d)).map(Read::MulticastGroups));
            }
            sb::AnyChange::LearnedRoute(c) => {
                let port = |r: &Option<Arc<sb::LearnedRoute>>| r.as_ref().map(|r| r.logical_port);
                let moved = swap(&mut self.learned_routes, uuid, port(&c.old), port(&c.new));
                let names = moved.into_iter().filter_map(|p| Some(self.sb.port_binding.get(&p)?.logical_port.clone()));
                reads.extend(names.map(Read::LearnedRoutes));
            }
            sb::AnyChange::ServiceMonitor(c) => {
                for port in c.old.iter().chain(&c.new).map(|r| &r.logical_port) {
                    reads.push(Read::Monitors(port.clone()));
                }
                if let Some(old) = &c.old {
                    leave(&mut self.monitors, &old.logical_port, uuid);
                }
                if let Some(new) = &c.new {
                    self.monitors.entry(new.logical_port.clone()).or_default().insert(uuid);
                }
            }
            _ => {}
        }
        if !keeps_rows(change) {
            reads.push(Read::SbTable(table));
        }
    }

    /// The northbound switch or router of a southbound datapath.
    fn nb_of(&self, datapath: Uuid) -> Option<Uuid> {
        self.sb.datapath_binding.get(&datapath)?.nb_uuid
    }

    fn index_macs(&mut self, uuid: Uuid, old: &BTreeSet<Mac>, new: &BTreeSet<Mac>, reads: &mut Vec<Read>) {
        own(&mut self.macs, uuid, old, new, Read::Mac, reads);
    }

    fn index_router_port(
        &mut self,
        uuid: Uuid,
        old: Option<&nb::LogicalSwitchPort>,
        new: Option<&nb::LogicalSwitchPort>,
        reads: &mut Vec<Read>,
    ) {
        let sides = (old.and_then(router_port), new.and_then(router_port));
        regroup(&mut self.router_ports, uuid, sides, Read::RouterPort, reads);
        let parent = |p: Option<&nb::LogicalSwitchPort>| p.and_then(|p| p.parent_name.clone());
        let (before, after) = (parent(old), parent(new));
        regroup(&mut self.children, uuid, (before.as_ref(), after.as_ref()), Read::Children, reads);
        if before.is_some() && before == after {
            // What a child has or asks for concerns its siblings.
            reads.extend(after.map(Read::Children));
        }
        let (had, has) = (old.is_some_and(has_qos), new.is_some_and(has_qos));
        if had != has {
            if has {
                self.qos_ports.insert(uuid);
            } else {
                self.qos_ports.remove(&uuid);
            }
            reads.push(Read::QosPorts);
        }
    }

    fn index_switch(
        &mut self,
        uuid: Uuid,
        old: Option<&nb::LogicalSwitch>,
        new: Option<&nb::LogicalSwitch>,
        reads: &mut Vec<Read>,
    ) {
        let none = BTreeSet::new();
        let (o, n) = (old.map_or(&none, |r| &r.ports), new.map_or(&none, |r| &r.ports));
        own(&mut self.lsp_owner, uuid, o, n, Read::LspOwner, reads);
        let lbs = |r: Option<&nb::LogicalSwitch>| {
            r.map(|r| r.load_balancer.union(&r.load_balancer_group).copied().collect()).unwrap_or_default()
        };
        own(&mut self.lb_users, uuid, &lbs(old), &lbs(new), Read::LbUsers, reads);
    }

    fn index_router(
        &mut self,
        uuid: Uuid,
        old: Option<&nb::LogicalRouter>,
        new: Option<&nb::LogicalRouter>,
        reads: &mut Vec<Read>,
    ) {
        let none = BTreeSet::new();
        let (o, n) = (old.map_or(&none, |r| &r.ports), new.map_or(&none, |r| &r.ports));
        own(&mut self.lrp_owner, uuid, o, n, Read::LrpOwner, reads);
        let lbs = |r: Option<&nb::LogicalRouter>| {
            r.map(|r| r.load_balancer.union(&r.load_balancer_group).copied().collect()).unwrap_or_default()
        };
        own(&mut self.lb_users, uuid, &lbs(old), &lbs(new), Read::LbUsers, reads);
    }
}

/// Whether two states of the row differ in nothing but the counts by which clients wait.
fn counts_only(old: &nb::NbGlobal, new: &nb::NbGlobal) -> bool {
    fn rest(g: &nb::NbGlobal) -> (&Str, &Map<Str, Str>, &Map<Str, Str>, bool) {
        let nb::NbGlobal { name, options, external_ids, ipsec, .. } = g;
        (name, options, external_ids, *ipsec)
    }
    rest(old) == rest(new)
}

/// Whether connections that an ACL allowed stay allowed when it is gone (`options:persist-established`).
fn is_persistent(acl: &nb::Acl) -> bool {
    &*acl.action == "allow-related" && crate::context::flag(&acl.options, "persist-established")
}

/// Whether a switch port has QoS parameters, and so a queue.
fn has_qos(lsp: &nb::LogicalSwitchPort) -> bool {
    &*lsp.r#type != "router"
        && ["qos_max_rate", "qos_min_rate", "qos_burst"].iter().any(|k| lsp.options.contains_key(*k))
}

/// Takes a row out of an index entry, and the entry out of the index when it was the last row.
fn leave<K: std::hash::Hash + Eq>(sets: &mut HashMap<K, BTreeSet<Uuid>>, name: &K, row: Uuid) {
    if let Some(set) = sets.get_mut(name) {
        set.remove(&row);
        if set.is_empty() {
            sets.remove(name);
        }
    }
}

/// Moves a row from what it is about to what it is about now; returns both where they differ.
fn swap(rows: &mut HashMap<Uuid, BTreeSet<Uuid>>, uuid: Uuid, old: Option<Uuid>, new: Option<Uuid>) -> Vec<Uuid> {
    if old == new {
        return Vec::new();
    }
    old.into_iter().for_each(|o| leave(rows, &o, uuid));
    new.into_iter().for_each(|n| _ = rows.entry(n).or_default().insert(uuid));
    old.into_iter().chain(new).collect()
}

/// Moves a row from one group to another.
fn regroup(
    groups: &mut HashMap<Str, BTreeSet<Uuid>>,
    uuid: Uuid,
    (old, new): (Option<&Str>, Option<&Str>),
    read: fn(Str) -> Read,
    reads: &mut Vec<Read>,
) {
    if old == new {
        return;
    }
    if let Some(name) = old {
        leave(groups, name, uuid);
        reads.push(read(name.clone()));
    }
    if let Some(name) = new {
        groups.entry(name.clone()).or_default().insert(uuid);
        reads.push(read(name.clone()));
    }
}

/// The router port that a switch port of type `router` names.
fn router_port(lsp: &nb::LogicalSwitchPort) -> Option<&Str> {
    if &*lsp.r#type == "router" { lsp.options.get("router-port") } else { None }
}

/// The Ethernet addresses of a switch port.
fn macs_of(lsp: Option<&nb::LogicalSwitchPort>) -> BTreeSet<Mac> {
    let texts = lsp.into_iter().flat_map(|r| r.addresses.iter().chain(&r.dynamic_addresses));
    texts.filter_map(|t| t.split_whitespace().next()?.parse().ok()).collect()
}

fn is_dynamic(lsp: Option<&nb::LogicalSwitchPort>) -> bool {
    let asks = |r: &nb::LogicalSwitchPort| r.addresses.iter().any(|t| crate::facts::ipam::is_dynamic(t));
    lsp.is_some_and(|r| r.dynamic_addresses.is_some() || asks(r))
}

fn own<K: std::hash::Hash + Eq + Ord + Copy>(
    owners: &mut HashMap<K, BTreeSet<Uuid>>,
    owner: Uuid,
    old: &BTreeSet<K>,
    new: &BTreeSet<K>,
    read: fn(K) -> Read,
    reads: &mut Vec<Read>,
) {
    for gone in old.difference(new) {
        leave(owners, gone, owner);
        reads.push(read(*gone));
    }
    for added in new.difference(old) {
        owners.entry(*added).or_default().insert(owner);
        reads.push(read(*added));
    }
}

fn rename(
    names: &mut HashMap<Str, Uuid>,
    uuid: Uuid,
    old: Option<&Str>,
    new: Option<&Str>,
    read: fn(Str) -> Read,
    reads: &mut Vec<Read>,
) {
    if let Some(old) = old {
        if names.get(old) == Some(&uuid) {
            names.remove(old);
        }
        reads.push(read(old.clone()));
    }
    if let Some(new) = new {
        names.insert(new.clone(), uuid);
        if old != Some(new) {
            reads.push(read(new.clone()));
        }
    }
}

macro_rules! either_side_absent {
    ($change:expr, $($variant:ident)*) => {
        match $change { $(nb::AnyChange::$variant(c) => c.old.is_none() || c.new.is_none(),)* }
    };
}

/// Whether a southbound change leaves its table with the rows that it had. Of tables that change seldom each change counts as
/// one of their rows.
fn keeps_rows(change: &sb::AnyChange) -> bool {
    fn stays<T: Table>(c: &Change<T>) -> bool {
        c.old.is_some() && c.new.is_some()
    }
    match change {
        sb::AnyChange::PortBinding(c) => stays(c),
        sb::AnyChange::Chassis(c) => stays(c),
        sb::AnyChange::DatapathBinding(c) => stays(c),
        sb::AnyChange::MacBinding(c) => stays(c),
        sb::AnyChange::Bfd(c) => stays(c),
        sb::AnyChange::IgmpGroup(c) => stays(c),
        sb::AnyChange::MulticastGroup(c) => stays(c),
        sb::AnyChange::LearnedRoute(c) => stays(c),
        _ => false,
    }
}

/// Whether a row came or went.
fn membership(change: &nb::AnyChange) -> bool {
    either_side_absent!(change, Acl AddressSet Bfd ChassisTemplateVar Connection Copp DhcpOptions DhcpRelay Dns ForwardingGroup GatewayChassis HaChassis HaChassisGroup LoadBalancer LoadBalancerGroup LoadBalancerHealthCheck LogicalRouter LogicalRouterPolicy LogicalRouterPort LogicalRouterStaticRoute LogicalSwitch LogicalSwitchPort LogicalSwitchPortHealthCheck Meter MeterBand Mirror MirrorRule Nat NbGlobal NetworkFunction NetworkFunctionGroup NetworkFunctionHealthCheck PortGroup Qos Ssl Sample SampleCollector SamplingApp StaticMacBinding )
}

/// The rows of a northbound table, in the order of their UUIDs.
pub fn sorted<T: Table>(rows: &ovn_schema::Rows<T>) -> Vec<(Uuid, &Arc<T>)> {
    let mut all: Vec<_> = rows.iter().map(|(u, r)| (*u, r)).collect();
    all.sort_unstable_by_key(|(u, _)| *u);
    all
}
