//! What the flows of a chassis are derived from: the southbound database, and what is known locally.

mod local;

pub use local::{Local, Tunnel, Tunnelling, Vif};

use ovn_schema::sb::{self, AnyChange, Database, TableId};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Whether a chassis is a top-of-rack switch (ovn-sb(5), `Chassis.other_config:is-vtep`).
pub fn is_vtep(c: &sb::Chassis) -> bool {
    ovn_schema::options::flag(&c.other_config, "is-vtep")
}

/// Whether a chassis is one of another availability zone.
pub fn is_remote(c: &sb::Chassis) -> bool {
    ovn_schema::options::flag(&c.other_config, "is-remote")
}

/// Whether a datapath is a logical switch.
pub fn is_switch(d: &sb::DatapathBinding) -> bool {
    d.r#type.as_deref() == Some("logical-switch") || d.external_ids.contains_key("logical-switch")
}

/// The tables that only flows are made of.
pub const ONLY_FLOWS: &[TableId] = &[
    TableId::LogicalFlow,
    TableId::LogicalDpGroup,
    TableId::MulticastGroup,
    TableId::Meter,
    TableId::MeterBand,
    TableId::MacBinding,
    TableId::StaticMacBinding,
    TableId::DhcpOptions,
    TableId::Dhcpv6Options,
    TableId::AddressSet,
    TableId::PortGroup,
    TableId::LoadBalancer,
    TableId::Fdb,
];

/// A thing that a unit of the derivation can look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// A row.
    Row(TableId, Uuid),
    /// Which rows a table has.
    Table(TableId),
    /// The port binding of this logical port.
    PortByName(Str),
    /// Datapath, key, type and parent of this logical port, which no binding changes.
    PortKey(Str),
    /// The port bindings of a datapath.
    PortsOf(Uuid),
    /// Those of them that are no machine's or container's.
    OthersOf(Uuid),
    /// Whether a port binding was reported up or down.
    Up(Uuid),
    /// The multicast groups of a datapath.
    GroupsOf(Uuid),
    /// Whether the logical flows of a datapath, or of a group of datapaths, are for this chassis.
    FlowsOf(Uuid),
    /// The name of the port with this key of a datapath.
    PortByKey(Uuid, PortKey),
    /// The datapath with this key.
    DatapathByKey(DatapathKey),
    /// Which row is the address set of this name.
    AddressSet(Str),
    /// Which row is the port group of this name.
    PortGroup(Str),
    /// Which port groups are of the datapath with this key.
    PortGroupsOf(DatapathKey),
    /// A DHCP option by name.
    DhcpOptions,
    /// The local interface of a logical port.
    Vif(Str),
    /// Whether there is one, be it without a number.
    Plugged(Str),
    /// The patch port of a localnet port.
    Localnet(Str),
    /// The tunnels.
    Tunnels,
    /// What the operator wants of them.
    Tunnelling,
    /// Whether a group of chassis serves local datapaths.
    Serves(Uuid),
    /// Which chassis have machines' ports of a datapath.
    ChassisOf(Uuid),
    /// A zone by name.
    Zone(Str),
    /// Which datapaths are local.
    Datapaths,
    /// Whether a datapath is local.
    Local(Uuid),
    /// `SB_Global:options` and `ipsec`, without the numbers beside them that change all the time.
    Options,
    /// Which sets of collectors take samples.
    Collectors,
    /// Which chassis are alive.
    Alive,
    /// Which gateway ports this chassis serves and does not announce yet.
    Hushed,
    /// This chassis.
    Chassis,
    /// What is known of the fabric.
    Evpn(Box<crate::evpn::Entry>),
}

/// Everything that flows are derived from.
#[derive(Debug, Default)]
pub struct Input {
    /// The southbound database.
    pub sb: Database,
    /// The local state.
    pub local: Local,
    ports: FxHashMap<Str, Uuid>,
    ports_of: FxHashMap<Uuid, BTreeSet<Uuid>>,
    /// Port bindings with a type, by datapath.
    others_of: FxHashMap<Uuid, BTreeSet<Uuid>>,
    /// How many machines' ports of a datapath each chassis has.
    chassis_of: FxHashMap<Uuid, BTreeMap<Uuid, usize>>,
    chassis: FxHashMap<Str, Uuid>,
    privates: FxHashMap<Str, Uuid>,
    groups_of: FxHashMap<Uuid, BTreeSet<Uuid>>,
    flows_of: FxHashMap<Uuid, BTreeSet<Uuid>>,
    dp_groups_of: FxHashMap<Uuid, BTreeSet<Uuid>>,
    address_sets: FxHashMap<Str, Uuid>,
    port_groups: FxHashMap<Str, Uuid>,
    /// Port groups by the key of their datapath.
    port_groups_of: FxHashMap<DatapathKey, BTreeSet<Uuid>>,
    datapaths_by_key: FxHashMap<DatapathKey, Uuid>,
    ports_by_key: FxHashMap<(Uuid, PortKey), Uuid>,
    /// Port bindings by what ties them to a chassis: its row, or one of its encapsulations'.
    tied: FxHashMap<Uuid, BTreeSet<Uuid>>,
    /// Port bindings by the port that they are in.
    children: FxHashMap<Str, BTreeSet<Uuid>>,
    /// Port bindings of kinds that a chassis may have to serve without an interface or a tie.
    floating: BTreeSet<Uuid>,
    macs: FxHashMap<(Str, Str), Uuid>,
    forwarding: FxHashMap<(Str, DatapathKey), Uuid>,
    /// Forwarding entries by the key of their datapath.
    forwarding_of: FxHashMap<DatapathKey, BTreeSet<Uuid>>,
    advertisers: BTreeSet<Uuid>,
    aging: BTreeSet<Uuid>,
    /// Logical ports whose interface is plugged in here and whose row does not come with a local datapath.
    strangers: BTreeSet<Str>,
    versions: FxHashMap<TableId, u64>,
    /// How often something changed that bindings, zones or local rows follow from.
    generation: u64,
    /// How often zones changed.
    zones_generation: u64,
    /// How often it changed which rows are of interest: those of what is local.
    interest: u64,
    /// Groups of chassis that serve local datapaths.
    serving: BTreeSet<Uuid>,
    /// How often `SB_Global:options` changed.
    options_generation: u64,
    /// How often this chassis' rows changed, or those by which another one has its addresses.
    own_rows: u64,
}

fn index<K: std::hash::Hash + Eq + Clone>(
    map: &mut FxHashMap<K, BTreeSet<Uuid>>,
    old: Option<K>,
    new: Option<K>,
    id: Uuid,
) {
    if let Some(k) = old
        && let Some(set) = map.get_mut(&k)
    {
        set.remove(&id);
        if set.is_empty() {
            map.remove(&k);
        }
    }
    if let Some(k) = new {
        map.entry(k).or_default().insert(id);
    }
}

fn rename<K: std::hash::Hash + Eq + Clone>(map: &mut FxHashMap<K, Uuid>, old: Option<&K>, new: Option<&K>, id: Uuid) {
    if let Some(o) = old
        && map.get(o) == Some(&id)
    {
        map.remove(o);
    }
    if let Some(n) = new {
        map.insert(n.clone(), id);
    }
}

/// The datapath's key and the rest of a southbound port group's name, which is that of a northbound one within a datapath.
fn within_datapath(name: &str) -> Option<(DatapathKey, &str)> {
    let (key, rest) = name.split_once('_')?;
    let number = key.parse().ok().filter(|_| key.bytes().all(|b| b.is_ascii_digit()))?;
    Some((DatapathKey(number), rest))
}

/// The names by which matches refer to a southbound port group: its own, and that without the datapath's key in front.
fn port_group_names(name: &Str) -> Vec<Str> {
    let short = within_datapath(name).map(|(_, rest)| rest.into());
    std::iter::once(name.clone()).chain(short).collect()
}

/// What ties a port to a chassis.
fn ties(p: &sb::PortBinding) -> BTreeSet<Uuid> {
    let one = [p.chassis, p.requested_chassis, p.encap].into_iter().flatten();
    let more = [&p.additional_chassis, &p.requested_additional_chassis, &p.additional_encap];
    one.chain(more.into_iter().flatten().copied()).collect()
}

/// Whether all that changed is that a port was reported up or down. No flow follows from that.
fn is_only_up(old: &sb::PortBinding, new: &sb::PortBinding) -> bool {
    old.up != new.up && sb::PortBinding { up: new.up, ..old.clone() } == *new
}

/// Whether a change reports a port up or down, and no more.
fn is_report(change: &AnyChange) -> bool {
    let AnyChange::PortBinding(c) = change else { return false };
    c.old.as_deref().zip(c.new.as_deref()).is_some_and(|(old, new)| is_only_up(old, new))
}

/// Whether a chassis may have to serve a port whose interface is not plugged in there.
fn floats(p: &sb::PortBinding) -> bool {
    matches!(&*p.r#type, "chassisredirect" | "external" | "virtual" | "l2gateway" | "l3gateway" | "vtep")
}

impl Input {
    /// The input for a database that is complete.
    pub fn new(sb: Database, local: Local) -> Input {
        let strangers = local.vifs.keys().cloned().collect();
        let mut input = Input { local, strangers, ..Input::default() };
        let all = [
            changes(&sb.port_binding, AnyChange::PortBinding),
            changes(&sb.multicast_group, AnyChange::MulticastGroup),
            changes(&sb.logical_flow, AnyChange::LogicalFlow),
            changes(&sb.logical_dp_group, AnyChange::LogicalDpGroup),
            changes(&sb.address_set, AnyChange::AddressSet),
            changes(&sb.port_group, AnyChange::PortGroup),
            changes(&sb.datapath_binding, AnyChange::DatapathBinding),
            changes(&sb.mac_binding, AnyChange::MacBinding),
            changes(&sb.fdb, AnyChange::Fdb),
            changes(&sb.chassis, AnyChange::Chassis),
            changes(&sb.chassis_private, AnyChange::ChassisPrivate),
        ];
        input.sb = sb;
        for c in all.into_iter().flatten() {
            input.changed(&c);
        }
        input
    }

    /// Brings the indexes up to date with a change that `sb` has taken over, and names what changed.
    pub fn changed(&mut self, change: &AnyChange) -> Vec<Read> {
        let (table, id) = change.key();
        *self.versions.entry(table).or_default() += 1;
        let concerns = self.concerns(change);
        self.generation += u64::from(concerns && !is_report(change));
        self.own_rows += u64::from(self.is_own(change));
        let mut reads = vec![Read::Row(table, id)];
        match change {
            AnyChange::PortBinding(c) => {
                let (old, new) = (c.old.as_deref(), c.new.as_deref());
                if old.zip(new).is_some_and(|(old, new)| is_only_up(old, new)) {
                    return vec![Read::Up(id)];
                }
                rename(&mut self.ports, old.map(|p| &p.logical_port), new.map(|p| &p.logical_port), id);
                index(&mut self.ports_of, old.map(|p| p.datapath), new.map(|p| p.datapath), id);
                let advertises = |p: &&sb::PortBinding| ovn_schema::options::flag(&p.options, "ipv6_ra_send_periodic");
                match new.filter(advertises) {
                    Some(_) => self.advertisers.insert(id),
                    None => self.advertisers.remove(&id),
                };
                self.tie(id, old, new, &mut reads);
                let other = |p: Option<&sb::PortBinding>| {
                    p.filter(|p| !p.r#type.is_empty()).map(|p| (p.datapath, p.r#type.clone(), p.logical_port.clone()))
                };
                if other(old) != other(new) {
                    let (before, after) = (other(old).map(|o| o.0), other(new).map(|o| o.0));
                    index(&mut self.others_of, before, after, id);
                    reads.extend(before.into_iter().chain(after).map(Read::OthersOf));
                }
                let named = |p: Option<&sb::PortBinding>| {
                    p.map(|p| (p.logical_port.clone(), p.datapath, p.key(), p.r#type.clone(), p.parent_port.clone()))
                };
                if named(old) != named(new) {
                    for p in [old, new].into_iter().flatten() {
                        self.note_stranger(&p.logical_port);
                        reads.push(Read::PortKey(p.logical_port.clone()));
                        reads.push(Read::PortByKey(p.datapath, p.key()));
                    }
                }
                for p in [old, new].into_iter().flatten() {
                    reads.push(Read::PortByName(p.logical_port.clone()));
                    if old.map(|p| p.datapath) != new.map(|p| p.datapath) {
                        reads.push(Read::PortsOf(p.datapath));
                    }
                }
            }
            AnyChange::MulticastGroup(c) => {
                let (old, new) = (c.old.as_ref().map(|g| g.datapath), c.new.as_ref().map(|g| g.datapath));
                index(&mut self.groups_of, old, new, id);
                reads.extend(old.into_iter().chain(new).map(Read::GroupsOf));
            }
            AnyChange::LogicalFlow(c) => {
                let (old, new) =
                    (c.old.as_deref().and_then(Input::owner_of), c.new.as_deref().and_then(Input::owner_of));
                if old != new {
                    index(&mut self.flows_of, old, new, id);
                }
            }
            AnyChange::LogicalDpGroup(c) => {
                let members = |g: Option<&sb::LogicalDpGroup>| g.map(|g| g.datapaths.clone()).unwrap_or_default();
                let (old, new) = (members(c.old.as_deref()), members(c.new.as_deref()));
                for dp in old.symmetric_difference(&new) {
                    index(&mut self.dp_groups_of, old.get(dp).copied(), new.get(dp).copied(), id);
                }
                reads.push(Read::FlowsOf(id));
            }
            AnyChange::AddressSet(c) => {
                let (old, new) = (c.old.as_ref().map(|s| &s.name), c.new.as_ref().map(|s| &s.name));
                if old != new {
                    rename(&mut self.address_sets, old, new, id);
                    reads.extend(old.into_iter().chain(new).cloned().map(Read::AddressSet));
                }
            }
            AnyChange::PortGroup(c) => {
                let name = |g: &Option<std::sync::Arc<sb::PortGroup>>| g.as_ref().map(|g| g.name.clone());
                let (old, new) = (name(&c.old), name(&c.new));
                if old != new {
                    for name in old.iter().flat_map(port_group_names) {
                        rename(&mut self.port_groups, Some(&name), None, id);
                        reads.push(Read::PortGroup(name));
                    }
                    for name in new.iter().flat_map(port_group_names) {
                        rename(&mut self.port_groups, None, Some(&name), id);
                        reads.push(Read::PortGroup(name));
                    }
                    let key = |name: &Option<Str>| name.as_ref().and_then(|n| Some(within_datapath(n)?.0));
                    index(&mut self.port_groups_of, key(&old), key(&new), id);
                    reads.extend(key(&old).into_iter().chain(key(&new)).map(Read::PortGroupsOf));
                }
            }
            AnyChange::DatapathBinding(c) => {
                let key = |d: &Option<std::sync::Arc<sb::DatapathBinding>>| d.as_ref().map(|d| d.key());
                let ages = |d: &sb::DatapathBinding| {
                    ["mac_binding_age_threshold", "fdb_age_threshold"].iter().any(|k| d.external_ids.contains_key(*k))
                };
                match c.new.as_deref().is_some_and(ages) {
                    true => self.aging.insert(id),
                    false => self.aging.remove(&id),
                };
                rename(&mut self.datapaths_by_key, key(&c.old).as_ref(), key(&c.new).as_ref(), id);
                self.interest += u64::from(self.local.datapaths.contains(&id));
                if key(&c.old) != key(&c.new) {
                    reads.extend([key(&c.old), key(&c.new)].into_iter().flatten().map(Read::DatapathByKey));
                }
            }
            AnyChange::SbGlobal(c)
                if c.old.as_ref().map(|g| (&g.options, g.ipsec)) != c.new.as_ref().map(|g| (&g.options, g.ipsec)) =>
            {
                reads.push(Read::Options);
                self.options_generation += 1;
            }
            AnyChange::Chassis(c) => {
                let name = |c: &Option<std::sync::Arc<sb::Chassis>>| c.as_ref().map(|c| c.name.clone());
                rename(&mut self.chassis, name(&c.old).as_ref(), name(&c.new).as_ref(), id);
            }
            AnyChange::ChassisPrivate(c) => {
                let (old, new) = (c.old.as_ref().map(|p| &p.name), c.new.as_ref().map(|p| &p.name));
                rename(&mut self.privates, old, new, id);
            }
            AnyChange::MacBinding(c) => {
                let key = |m: &Option<std::sync::Arc<sb::MacBinding>>| {
                    m.as_ref().map(|m| (m.logical_port.clone(), m.ip.clone()))
                };
                rename(&mut self.macs, key(&c.old).as_ref(), key(&c.new).as_ref(), id);
            }
            AnyChange::Fdb(c) => {
                let key = |f: &Option<std::sync::Arc<sb::Fdb>>| f.as_ref().map(|f| (f.mac.clone(), f.datapath()));
                rename(&mut self.forwarding, key(&c.old).as_ref(), key(&c.new).as_ref(), id);
                let of = |f: &Option<std::sync::Arc<sb::Fdb>>| f.as_ref().map(|f| f.datapath());
                index(&mut self.forwarding_of, of(&c.old), of(&c.new), id);
            }
            AnyChange::DhcpOptions(_) | AnyChange::Dhcpv6Options(_) => reads.push(Read::DhcpOptions),
            _ => {}
        }
        reads.push(Read::Table(table));
        reads
    }

    /// Whether more than flows follows from a change: bindings, zones, what the local database is to have, announcements. Of a port that
    /// has nothing to do with this chassis and its datapaths nothing does.
    pub fn concerns(&self, change: &AnyChange) -> bool {
        let local = &self.local;
        let c = match change {
            AnyChange::PortBinding(c) => c,
            // The others write how far they are.
            AnyChange::ChassisPrivate(c) => {
                return [&c.old, &c.new].into_iter().flatten().any(|p| p.name == local.chassis_name);
            }
            _ => return !ONLY_FLOWS.contains(&change.key().0),
        };
        let encaps = self.own_encaps();
        let mine = |tie: &Uuid| local.chassis == Some(*tie) || encaps.is_some_and(|e| e.contains(tie));
        [&c.old, &c.new].into_iter().flatten().any(|p| {
            local.datapaths.contains(&p.datapath)
                || floats(p)
                || p.options.contains_key("peer")
                || ties(p).iter().any(mine)
                || [&p.logical_port, crate::rows::claims::interface_name(p)].iter().any(|n| local.vifs.contains_key(*n))
        })
    }

    /// Whether a change is of this chassis' rows, or of a row by which another chassis has one of its addresses.
    fn is_own(&self, change: &AnyChange) -> bool {
        let (name, row, ips) = (&self.local.chassis_name, self.local.chassis, &self.local.encap_ips);
        match change {
            AnyChange::Chassis(c) => {
                row == Some(c.uuid) || [&c.old, &c.new].into_iter().flatten().any(|c| c.name == *name)
            }
            AnyChange::ChassisPrivate(c) => [&c.old, &c.new].into_iter().flatten().any(|p| p.name == *name),
            AnyChange::Encap(c) => {
                [&c.old, &c.new].into_iter().flatten().any(|e| e.chassis_name == *name || ips.contains(&e.ip))
            }
            _ => false,
        }
    }

    /// Looks whether the row of a port that is plugged in here has to be asked for by its name.
    fn note_stranger(&mut self, name: &Str) {
        let comes = self.port(name).is_some_and(|(_, p)| self.local.datapaths.contains(&p.datapath));
        let changed = match self.local.vifs.contains_key(name) && !comes {
            true => self.strangers.insert(name.clone()),
            false => self.strangers.remove(name),
        };
        self.interest += u64::from(changed);
    }

    /// The ports that are plugged in here and whose rows do not come with a local datapath.
    pub fn strangers(&self) -> &BTreeSet<Str> {
        &self.strangers
    }

    /// Another number whenever this chassis' rows changed, or those by which another one has its addresses.
    pub fn own_rows(&self) -> u64 {
        self.own_rows
    }

    /// Another number whenever rows of other things than before may be of interest.
    pub fn interest(&self) -> u64 {
        self.interest
    }

    /// Another number whenever `SB_Global:options` changed.
    pub fn options_generation(&self) -> u64 {
        self.options_generation
    }

    /// Whether a group of chassis serves local datapaths.
    pub fn is_served_by(&self, group: &Uuid) -> bool {
        self.serving.contains(group)
    }

    /// Another number whenever zones changed.
    pub fn zones_generation(&self) -> u64 {
        self.zones_generation
    }

    /// Another number whenever something changed that bindings, zones or local rows follow from.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Forgets the database; what is local stays.
    pub fn restart(&mut self) {
        let local = std::mem::take(&mut self.local);
        *self = Input {
            local,
            generation: self.generation + 1,
            zones_generation: self.zones_generation,
            interest: self.interest + 1,
            options_generation: self.options_generation + 1,
            own_rows: self.own_rows + 1,
            ..Input::default()
        };
        self.strangers = self.local.vifs.keys().cloned().collect();
    }

    /// How often a table changed. What follows from a table as a whole is derived anew when this differs.
    pub fn version(&self, table: TableId) -> u64 {
        self.versions.get(&table).copied().unwrap_or(0)
    }

    /// Brings the indexes of what a chassis may have to serve up to date.
    fn tie(&mut self, id: Uuid, old: Option<&sb::PortBinding>, new: Option<&sb::PortBinding>, reads: &mut Vec<Read>) {
        let key = |p: &sb::PortBinding| (p.datapath, p.key());
        rename(&mut self.ports_by_key, old.map(key).as_ref(), new.map(key).as_ref(), id);
        let (before, after) = (old.map(ties).unwrap_or_default(), new.map(ties).unwrap_or_default());
        for to in before.symmetric_difference(&after) {
            index(&mut self.tied, before.get(to).copied(), after.get(to).copied(), id);
        }
        reads.extend(self.count_chassis(old, false));
        reads.extend(self.count_chassis(new, true));
        // Whose interface it has: a container its parent's, a mirror's exit the sink's.
        let parent =
            |p: &sb::PortBinding| Some(crate::rows::claims::interface_name(p).clone()).filter(|n| *n != p.logical_port);
        let (before, after) = (old.and_then(parent), new.and_then(parent));
        if before != after {
            index(&mut self.children, before, after, id);
        }
        match new.is_some_and(floats) {
            true => self.floating.insert(id),
            false => self.floating.remove(&id),
        };
    }

    /// Counts, or no longer counts, where a machine's port is. Names the datapath if its chassis are others now.
    fn count_chassis(&mut self, p: Option<&sb::PortBinding>, there: bool) -> Option<Read> {
        let (p, at) = p.filter(|p| p.r#type.is_empty()).and_then(|p| Some((p, p.chassis?)))?;
        let of = self.chassis_of.entry(p.datapath).or_default();
        let n = of.entry(at).or_default();
        let before = *n;
        *n = if there { before + 1 } else { before.saturating_sub(1) };
        if *n == 0 {
            of.remove(&at);
        }
        let empty = of.is_empty();
        if empty {
            self.chassis_of.remove(&p.datapath);
        }
        let another = if there { before == 0 } else { before == 1 };
        another.then_some(Read::ChassisOf(p.datapath))
    }

    /// The port bindings that this chassis may have to claim, serve or give up: those that are tied to it, those whose interfaces are
    /// plugged in here, and those of kinds that need none. The others of the cloud are not looked at.
    pub fn candidates(&self) -> BTreeSet<Uuid> {
        let local = &self.local;
        let mut out = self.floating.clone();
        for tie in local.chassis.iter().chain(self.own_encaps().into_iter().flatten()) {
            out.extend(self.tied.get(tie).into_iter().flatten());
        }
        out.extend(local.vifs.keys().flat_map(|name| self.ports_in(name)));
        out
    }

    /// Whether a port binding is one of [`Input::candidates`].
    pub fn is_candidate(&self, id: &Uuid) -> bool {
        let Some(p) = self.sb.port_binding.get(id) else { return false };
        let tied = |tie: &Uuid| self.tied.get(tie).is_some_and(|all| all.contains(id));
        let vifs = &self.local.vifs;
        self.floating.contains(id)
            || self.local.chassis.as_ref().is_some_and(tied)
            || self.own_encaps().is_some_and(|e| e.iter().any(tied))
            || vifs.contains_key(&p.logical_port)
            || vifs.contains_key(crate::rows::claims::interface_name(p))
    }

    /// The encapsulations of this chassis' row.
    pub fn own_encaps(&self) -> Option<&BTreeSet<Uuid>> {
        self.local.chassis.and_then(|me| self.sb.chassis.get(&me)).map(|c| &c.encaps)
    }

    /// The port bindings that have the interface of this name: the port itself, its containers, the exits of mirrors.
    pub fn ports_in(&self, name: &Str) -> impl Iterator<Item = Uuid> + use<'_> {
        let inside = self.children.get(name).into_iter().flatten();
        self.ports.get(name).into_iter().chain(inside).copied()
    }

    /// The port bindings of a datapath that are no machine's or container's.
    pub fn others_of(&self, datapath: Uuid) -> impl Iterator<Item = (Uuid, &sb::PortBinding)> {
        let ids = self.others_of.get(&datapath).into_iter().flatten();
        ids.filter_map(|id| Some((*id, &**self.sb.port_binding.get(id)?)))
    }

    /// The chassis that have machines' ports of a datapath.
    pub fn chassis_of(&self, datapath: Uuid) -> impl Iterator<Item = Uuid> {
        self.chassis_of.get(&datapath).into_iter().flat_map(|all| all.keys().copied())
    }

    /// The row of the chassis with this name.
    pub fn chassis(&self, name: &Str) -> Option<Uuid> {
        self.chassis.get(name).copied()
    }

    /// The private row of the chassis with this name.
    pub fn chassis_private(&self, name: &Str) -> Option<(Uuid, &sb::ChassisPrivate)> {
        let id = self.privates.get(name)?;
        Some((*id, self.sb.chassis_private.get(id)?))
    }

    /// Whether the flows of a datapath, or of a group of datapaths, are for this chassis.
    pub fn has_local(&self, owner: Uuid) -> bool {
        let local = &self.local.datapaths;
        local.contains(&owner)
            || self.sb.logical_dp_group.get(&owner).is_some_and(|g| local.iter().any(|d| g.datapaths.contains(d)))
    }

    /// The datapath, or the group of datapaths, that a logical flow is for.
    pub fn owner_of(f: &sb::LogicalFlow) -> Option<Uuid> {
        f.logical_datapath.or(f.logical_dp_group)
    }

    /// A port binding by the keys that packets carry.
    pub fn port_by_key(&self, datapath: Uuid, key: PortKey) -> Option<(Uuid, &sb::PortBinding)> {
        let id = self.ports_by_key.get(&(datapath, key))?;
        Some((*id, self.sb.port_binding.get(id)?))
    }

    /// A port binding by logical port.
    pub fn port(&self, name: &str) -> Option<(Uuid, &sb::PortBinding)> {
        let id = self.ports.get(name)?;
        Some((*id, self.sb.port_binding.get(id)?))
    }

    /// A datapath by its key.
    pub fn datapath(&self, key: DatapathKey) -> Option<Uuid> {
        self.datapaths_by_key.get(&key).copied()
    }

    /// The neighbour that is known behind a router port.
    pub fn mac_binding(&self, port: &Str, ip: &Str) -> Option<(Uuid, &sb::MacBinding)> {
        let id = self.macs.get(&(port.clone(), ip.clone()))?;
        Some((*id, self.sb.mac_binding.get(id)?))
    }

    /// The forwarding entry of an Ethernet address in a datapath.
    pub fn fdb(&self, mac: &Str, datapath: DatapathKey) -> Option<(Uuid, &sb::Fdb)> {
        let id = self.forwarding.get(&(mac.clone(), datapath))?;
        Some((*id, self.sb.fdb.get(id)?))
    }

    /// The forwarding entries of a datapath, by its key.
    pub fn forwarding_of(&self, key: DatapathKey) -> impl Iterator<Item = Uuid> + use<'_> {
        self.forwarding_of.get(&key).into_iter().flatten().copied()
    }

    /// The port bindings of a datapath.
    pub fn ports_of(&self, datapath: Uuid) -> impl Iterator<Item = (Uuid, &sb::PortBinding)> {
        let ids = self.ports_of.get(&datapath).into_iter().flatten();
        ids.filter_map(|id| Some((*id, &**self.sb.port_binding.get(id)?)))
    }

    /// The datapaths whose learned rows age.
    pub fn aging(&self) -> impl Iterator<Item = Uuid> {
        self.aging.iter().copied()
    }

    /// The router ports that advertise themselves unasked.
    pub fn advertisers(&self) -> impl Iterator<Item = (Uuid, &sb::PortBinding)> {
        self.advertisers.iter().filter_map(|id| Some((*id, &**self.sb.port_binding.get(id)?)))
    }

    /// The multicast groups of a datapath.
    pub fn groups_of(&self, datapath: Uuid) -> impl Iterator<Item = (Uuid, &sb::MulticastGroup)> {
        let ids = self.groups_of.get(&datapath).into_iter().flatten();
        ids.filter_map(|id| Some((*id, &**self.sb.multicast_group.get(id)?)))
    }

    /// The groups of datapaths that a datapath is in.
    pub fn dp_groups_of(&self, datapath: Uuid) -> impl Iterator<Item = Uuid> {
        self.dp_groups_of.get(&datapath).into_iter().flatten().copied()
    }

    /// The logical flows of a datapath or of a group of datapaths.
    pub fn flows_of(&self, owner: Uuid) -> impl Iterator<Item = Uuid> {
        self.flows_of.get(&owner).into_iter().flatten().copied()
    }

    /// An address set.
    pub fn address_set(&self, name: &str) -> Option<(Uuid, &sb::AddressSet)> {
        let id = self.address_sets.get(name)?;
        Some((*id, self.sb.address_set.get(id)?))
    }

    /// A port group.
    pub fn port_group(&self, name: &str) -> Option<(Uuid, &sb::PortGroup)> {
        let id = self.port_groups.get(name)?;
        Some((*id, self.sb.port_group.get(id)?))
    }

    /// The port groups of a datapath, by its key.
    pub fn port_groups_of(&self, key: DatapathKey) -> impl Iterator<Item = Uuid> + use<'_> {
        self.port_groups_of.get(&key).into_iter().flatten().copied()
    }

    /// The name of a datapath's zones: its northbound UUID's name as OVN 26.03 keeps it.
    pub fn zone_name(&self, datapath: Uuid, suffix: &str) -> Str {
        let name = self.sb.datapath_binding.get(&datapath).and_then(|d| d.external_ids.get("name"));
        name.map_or_else(|| format!("{datapath}_{suffix}"), |n| format!("{n}_{suffix}")).into()
    }
}

fn changes<T: ovn_schema::Table>(
    rows: &ovn_schema::Rows<T>,
    wrap: fn(ovn_schema::Change<T>) -> AnyChange,
) -> Vec<AnyChange> {
    rows.iter().map(|(uuid, row)| wrap(ovn_schema::Change { uuid: *uuid, old: None, new: Some(row.clone()) })).collect()
}
