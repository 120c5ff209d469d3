//! A bridge: ports, flow tables, groups, meters, option map, learned addresses.

pub mod bond;
pub(crate) mod changes;
pub(crate) mod eviction;
pub(crate) mod groups;
pub mod mac;
pub mod meter;
pub mod mirror;
pub(crate) mod transaction;
pub(crate) mod validate;
pub(crate) mod vlan;

pub use groups::GroupState;
pub use vlan::{PriorityTags, VlanMode};

use crate::bridge::changes::Change;
use crate::bridge::mac::MacTable;
use crate::bridge::meter::Meter;
use crate::classifier::{Classifier, Rule};
use crate::tunnel::TunnelConfig;
use openflow_rs::OfError as E;
use openflow_rs::action::{Action, outputs_to_group, outputs_to_port};
use openflow_rs::message::{FlowRemoved, FlowStats, FlowStatsRequest, TlvMap};
use openflow_rs::mods::{FlowFlags, GROUP_ALL, GROUP_ANY, METER_ALL, TABLE_ALL};
use openflow_rs::wire::DecodeError;
use openflow_rs::{FlowMod, FlowModCommand, Group, GroupMod, GroupModCommand, MeterMod, MeterModCommand, PortNo};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of flow tables.
pub const N_TABLES: usize = 254;

/// A bridge's number in its switch.
pub type BridgeId = usize;

/// What is behind a port.
#[derive(Clone, PartialEq, Debug)]
pub enum PortKind {
    /// A device of the caller's numbering.
    Device(u32),
    /// A bridge's own or another port that the host's network stack owns; tunnels end here.
    Internal(u32),
    /// A patch port: the name of its peer.
    Patch(String),
    /// A tunnel.
    Tunnel(Box<TunnelConfig>),
}

/// What becomes of IP fragments (OpenFlow 1.5 section 7.3.2; ovs-ofctl(8), `set-frags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragments {
    /// They pass as if their transport ports, or ICMP type and code, were 0.
    #[default]
    Normal = 0,
    /// They are dropped.
    Drop = 1,
    /// The first fragment's ports are looked at; those of later ones are 0.
    Match = 3,
}

/// State of a port's device. Ports without a device are up and have no speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortLink {
    /// It carries packets.
    pub up: bool,
    /// It is administratively up.
    pub admin_up: bool,
    /// Megabits a second; 0: unknown.
    pub mbps: u32,
    /// Full duplex.
    pub full_duplex: bool,
    /// A device of the kernel reports copper as its medium.
    pub copper: bool,
    /// The largest payload of a frame.
    pub mtu: Option<u32>,
}

impl Default for PortLink {
    fn default() -> PortLink {
        PortLink { up: true, admin_up: true, mbps: 0, full_duplex: false, copper: false, mtu: None }
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// OpenFlow number.
    pub no: PortNo,
    /// Name.
    pub name: String,
    /// What is behind it.
    pub kind: PortKind,
    /// Its VLANs.
    pub vlan: VlanMode,
    /// Whether a tag is sent for a priority alone.
    pub priority_tags: PriorityTags,
    /// Protected ports do not forward to each other.
    pub protected: bool,
    /// Address.
    pub hw_addr: packet::Mac,
    /// Left out of `FLOOD`.
    pub no_flood: bool,
    /// What a controller forbids it: bits of [`Port::DOWN`], [`Port::NO_RECV`] and [`Port::NO_FWD`]. Change it with
    /// [`crate::Switch::set_inputs`].
    pub config: u32,
    /// State of its device. Change it with [`crate::Switch::set_inputs`].
    pub link: PortLink,
    /// Whether its BFD session lets it forward; none: no session is configured.
    pub bfd: Option<bool>,
    /// Whether LACP lets it forward; none: it is no member of a bond with LACP.
    pub lacp: Option<bool>,
    /// When it was added.
    pub created: Duration,
    /// Packets received and sent, bytes received and sent, packets dropped on receiving and sending.
    pub stats: [u64; 6],
}

impl Port {
    /// Neither receives nor sends (OFPPC_PORT_DOWN).
    pub const DOWN: u32 = 1;
    /// What it receives is dropped.
    pub const NO_RECV: u32 = 4;
    /// What is sent to it is dropped.
    pub const NO_FWD: u32 = 0x20;

    /// A trunk port that is up.
    pub fn new(no: PortNo, name: &str, kind: PortKind) -> Port {
        Port {
            no,
            name: name.into(),
            kind,
            vlan: VlanMode::Trunk(Vec::new()),
            priority_tags: PriorityTags::Never,
            protected: false,
            hw_addr: [0; 6],
            no_flood: false,
            config: 0,
            link: PortLink::default(),
            bfd: None,
            lacp: None,
            created: Duration::ZERO,
            stats: [0; 6],
        }
    }

    /// Whether it carries packets: what groups watch, and OpenFlow's OFPPS_LIVE. It is derived, never stored.
    pub fn live(&self) -> bool {
        self.config & Port::DOWN == 0 && is_live(&self.link, self.bfd, self.lacp)
    }
}

/// Whether a port carries packets: its device is administratively up and has a link, and BFD and LACP, where
/// configured, let it forward.
pub fn is_live(link: &PortLink, bfd: Option<bool>, lacp: Option<bool>) -> bool {
    link.admin_up && link.up && bfd != Some(false) && lacp != Some(false)
}

/// A bridge.
#[derive(Debug)]
pub struct Bridge {
    /// Name.
    pub name: String,
    /// Datapath id.
    pub datapath_id: u64,
    /// Ports by number.
    pub ports: BTreeMap<PortNo, Port>,
    /// Shared with transactions of this bridge; a shared table is copied when it is changed.
    pub(crate) tables: Vec<Arc<Classifier>>,
    pub(crate) groups: BTreeMap<u32, GroupState>,
    pub(crate) meters: BTreeMap<u32, Meter>,
    /// Geneve options mapped to `tun_metadata` fields.
    pub tlv: Vec<TlvMap>,
    /// Learned addresses.
    pub macs: MacTable,
    pub(crate) mirrors: Vec<mirror::Mirror>,
    pub(crate) bonds: Vec<bond::State>,
    /// Numbers of the `Flow_Sample_Collector_Set` rows of this bridge.
    pub collectors: Vec<u32>,
    /// An exporter wants some of its packets ([`crate::Switch::observe`]).
    pub observed: bool,
    /// How lookups treat fragments.
    pub fragments: Fragments,
    /// Limits and names of tables.
    pub(crate) table_config: BTreeMap<u8, eviction::TableConfig>,
    /// (lookups, hits) of each table.
    pub table_stats: Vec<(u64, u64)>,
    /// Packets sent to controllers.
    pub packet_ins: u64,
    /// A flow monitor exists: flow updates are recorded.
    pub(crate) watched: bool,
    /// Flow updates since the last drain.
    pub(crate) told: Vec<FlowUpdate>,
    /// Flow-removed messages to send.
    pub(crate) removed: Vec<FlowRemoved>,
    /// Flows with timeouts.
    pub(crate) timed: Vec<Weak<Rule>>,
    /// Changes of flows that the flow cache has not seen yet.
    pub(crate) changes: Vec<Change>,
    /// Changes of groups and ports that it has not seen yet.
    pub(crate) touched: Vec<Invalidation>,
    /// Moves with what makes all cached flows stale: ports and options.
    pub epoch: u64,
    /// Moves whenever flows, groups, meters or options change.
    pub(crate) version: u64,
}

/// A flow that came (`new`), went (`old`), or took another's place (both).
#[derive(Clone, Debug)]
pub struct FlowUpdate {
    /// What was there.
    pub old: Option<Arc<Rule>>,
    /// What is there.
    pub new: Option<Arc<Rule>>,
    /// `old` was modified to `new`; else `new` replaced `old`.
    pub modified: bool,
    /// Why it went (OFPRR_*).
    pub reason: u8,
}

/// What has changed beside flows, and makes cached flows stale that depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Invalidation {
    Group(u32),
    Live(PortNo),
}

/// Whether a flow passes a filter, apart from its match.
fn fits(r: &Rule, q: &FlowStatsRequest) -> bool {
    (r.cookie ^ q.cookie) & q.cookie_mask == 0
        && (q.out_port == PortNo::ANY || outputs_to_port(&r.actions, q.out_port))
        && (q.out_group == GROUP_ANY || outputs_to_group(&r.actions, q.out_group))
}

fn selects(r: &Rule, q: &FlowStatsRequest) -> bool {
    fits(r, q) && r.matches.is_within(&q.matches)
}

/// The flows that pass a filter, with counters, for a flow statistics reply.
pub fn flow_stats(rules: &[Arc<Rule>], q: &FlowStatsRequest, now: Duration) -> Vec<FlowStats> {
    let stats = |r: &Arc<Rule>| {
        let (packets, bytes, used) = r.counters();
        let age = now.saturating_sub(r.created);
        FlowStats {
            flow: r.to_flow_mod(),
            duration_sec: age.as_secs() as u32,
            duration_nsec: age.subsec_nanos(),
            idle_age: now.saturating_sub(used).as_secs() as u32,
            packets,
            bytes,
        }
    };
    rules.iter().filter(|r| selects(r, q)).map(stats).collect()
}

impl Bridge {
    /// An empty bridge: it drops everything.
    pub fn new(name: &str, datapath_id: u64) -> Bridge {
        Bridge {
            name: name.into(),
            datapath_id,
            ports: BTreeMap::new(),
            tables: vec![Arc::default(); N_TABLES],
            groups: BTreeMap::new(),
            meters: BTreeMap::new(),
            tlv: Vec::new(),
            macs: MacTable::default(),
            mirrors: Vec::new(),
            bonds: Vec::new(),
            collectors: Vec::new(),
            observed: false,
            fragments: Fragments::default(),
            table_config: BTreeMap::new(),
            table_stats: vec![(0, 0); N_TABLES],
            packet_ins: 0,
            watched: false,
            told: Vec::new(),
            removed: Vec::new(),
            timed: Vec::new(),
            changes: Vec::new(),
            touched: Vec::new(),
            epoch: 0,
            version: 0,
        }
    }

    /// Resets what controllers set beside flows, and counters: another bridge is to reuse the place.
    pub fn forget(&mut self) {
        self.fragments = Fragments::default();
        self.table_stats = vec![(0, 0); N_TABLES];
        (self.packet_ins, self.observed, self.datapath_id) = (0, false, 0);
        self.record_flow_updates(false);
        self.removed.clear();
        self.timed.clear();
        self.epoch += 1;
    }

    /// A table, to change it.
    fn table_mut(&mut self, n: u8) -> Option<&mut Classifier> {
        self.version += 1;
        self.tables.get_mut(usize::from(n)).map(Arc::make_mut)
    }

    /// Inserts a flow; returns the one that it replaces.
    fn put(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        if rule.idle_timeout | rule.hard_timeout != 0 {
            self.timed.push(Arc::downgrade(&rule));
        }
        let old = self.table_mut(rule.table)?.insert(rule.clone());
        if self.watched {
            self.told.push(FlowUpdate { old: old.clone(), new: Some(rule.clone()), modified: false, reason: 0 });
        }
        self.changes.push(Change { old: old.clone(), new: Some(rule) });
        old
    }

    /// Removes a flow from its table.
    fn take(&mut self, r: &Rule) -> Option<Arc<Rule>> {
        let old = self.table_mut(r.table)?.remove(&r.matches, r.priority)?;
        if self.watched {
            self.told.push(FlowUpdate { old: Some(old.clone()), new: None, modified: false, reason: 2 });
        }
        self.changes.push(Change { old: Some(old.clone()), new: None });
        Some(old)
    }

    /// Starts or stops recording flow updates for [`Bridge::drain_flow_updates`].
    pub fn record_flow_updates(&mut self, on: bool) {
        if self.watched != on {
            self.watched = on;
            self.told.clear();
            // Transactions that are open must record them, too.
            self.version += 1;
        }
    }

    /// Takes the flow updates since the last call, in order.
    pub fn drain_flow_updates(&mut self) -> Vec<FlowUpdate> {
        std::mem::take(&mut self.told)
    }

    /// A port by name.
    pub fn port_by_name(&self, name: &str) -> Option<&Port> {
        self.ports.values().find(|p| p.name == name)
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.tables.iter().flat_map(|t| t.iter())
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = &GroupState> {
        self.groups.values()
    }

    /// All meters.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.meters.values()
    }

    /// Applies a flow-mod.
    ///
    /// # Errors The error to send to the controller; nothing has changed then.
    pub fn flow_mod(&mut self, f: &FlowMod, now: Duration) -> Result<(), DecodeError> {
        let hits = if f.command == FlowModCommand::Add { Vec::new() } else { self.select_mod(f) };
        // As in Open vSwitch: table 255 means table 0 for a new flow, and all tables for a modification. OpenFlow
        // defines "all tables" for deletions only.
        let deletes = matches!(f.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        let first = (!deletes && f.table == TABLE_ALL).then(|| FlowMod { table: 0, ..f.clone() });
        let f = first.as_ref().unwrap_or(f);
        match validate::flow(self, f) {
            // Actions that no flow gets may refer to groups and meters that do not exist.
            Err(e) if hits.is_empty() && validate::refers(&e) && f.command != FlowModCommand::Add && !f.or_add => {}
            result => result?,
        }
        let fitting = validate::cut(self, &f.actions).map(|actions| FlowMod { actions, ..f.clone() });
        let f = fitting.as_ref().unwrap_or(f);
        match f.command {
            FlowModCommand::Add => self.add_flow(f, now),
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => {
                // From OpenFlow 1.1 on, a modification that matches no flow does nothing.
                if hits.is_empty() && f.or_add {
                    return self.add_flow(f, now);
                }
                for old in hits {
                    self.replace_actions(&old, f);
                }
                Ok(())
            }
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => {
                for old in hits {
                    self.remove_rule(&old, 2, now);
                }
                Ok(())
            }
        }
    }

    fn add_flow(&mut self, f: &FlowMod, now: Duration) -> Result<(), DecodeError> {
        let Some(t) = self.tables.get(usize::from(f.table)) else {
            return Err(E::FlowModBadTable.because(format!("table {} does not exist", f.table)));
        };
        if f.flags.has(FlowFlags::CHECK_OVERLAP)
            && t.iter().any(|r| r.priority == f.priority && r.matches != f.matches && r.matches.overlaps(&f.matches))
        {
            return Err(E::FlowModOverlap.because("an overlapping flow of the same priority exists"));
        }
        self.evict_for(f, now)?;
        let Some(t) = self.tables.get(usize::from(f.table)) else { return Ok(()) };
        let mut rule = Rule::new(f, now);
        if let Some(old) = t.find(&f.matches, f.priority)
            && !f.flags.has(FlowFlags::RESET_COUNTS)
        {
            rule.inherit(old);
        }
        self.put(Arc::new(rule));
        Ok(())
    }

    /// Adds or refreshes a learned flow.
    pub(crate) fn learn_flow(&mut self, f: &FlowMod, now: Duration) {
        let same = self.tables.get(usize::from(f.table)).and_then(|t| t.find(&f.matches, f.priority)).filter(|r| {
            *r.actions == *f.actions && r.cookie == f.cookie && r.idle_timeout == f.idle_timeout && r.hard_timeout == 0
        });
        match same {
            Some(r) => r.touch(now),
            // The action was validated: its table exists.
            None => drop(self.add_flow(f, now)),
        }
    }

    fn replace_actions(&mut self, old: &Arc<Rule>, f: &FlowMod) {
        self.put(Arc::new(old.with_actions(f)));
        if let Some(t) = self.told.last_mut().filter(|_| self.watched) {
            t.modified = true;
        }
    }

    fn select_mod(&self, f: &FlowMod) -> Vec<Arc<Rule>> {
        let strict = matches!(f.command, FlowModCommand::ModifyStrict | FlowModCommand::DeleteStrict);
        let q = FlowStatsRequest {
            table: f.table,
            out_port: f.out_port,
            out_group: f.out_group,
            cookie: f.cookie,
            cookie_mask: f.cookie_mask,
            matches: f.matches.clone(),
        };
        self.select(&q, strict.then_some(f.priority))
    }

    /// Flows that pass a filter; with a priority, only those with exactly the filter's match.
    fn select(&self, q: &FlowStatsRequest, strict: Option<u16>) -> Vec<Arc<Rule>> {
        let tables = self.tables_named(q.table);
        match strict {
            Some(p) => tables.filter_map(|t| t.find(&q.matches, p)).filter(|r| fits(r, q)).cloned().collect(),
            None => tables.flat_map(|t| t.iter()).filter(|r| selects(r, q)).cloned().collect(),
        }
    }

    fn tables_named(&self, table: u8) -> impl Iterator<Item = &Arc<Classifier>> {
        let named = move |i: usize| table == TABLE_ALL || i == usize::from(table);
        self.tables.iter().enumerate().filter(move |(i, _)| named(*i)).map(|(_, t)| t)
    }

    /// The flows of a table, or of all, for another thread to look at with [`flow_stats`].
    pub fn rules(&self, table: u8) -> Vec<Arc<Rule>> {
        self.tables_named(table).flat_map(|t| t.iter()).cloned().collect()
    }

    /// The flows of all tables from `table` on, until there are `enough`; and the table to continue with.
    pub fn rules_from(&self, table: usize, enough: usize) -> (Vec<Arc<Rule>>, usize) {
        let (mut list, mut next) = (Vec::new(), table);
        for t in self.tables.iter().skip(table) {
            list.extend(t.iter().cloned());
            next += 1;
            if list.len() >= enough {
                break;
            }
        }
        (list, next)
    }

    /// Moves whenever flows, groups, meters or options change.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn remove_rule(&mut self, r: &Arc<Rule>, reason: u8, now: Duration) {
        if self.take(r).is_none() {
            return;
        }
        if let Some(t) = self.told.last_mut().filter(|_| self.watched) {
            t.reason = reason;
        }
        if r.flags.has(FlowFlags::SEND_FLOW_REM) {
            let (packets, bytes, _) = r.counters();
            let age = now.saturating_sub(r.created);
            self.removed.push(FlowRemoved {
                table: r.table,
                reason,
                priority: r.priority,
                idle_timeout: r.idle_timeout,
                hard_timeout: r.hard_timeout,
                cookie: r.cookie,
                duration_sec: age.as_secs() as u32,
                duration_nsec: age.subsec_nanos(),
                packets,
                bytes,
                matches: r.matches.clone(),
            });
        }
        for a in r.actions.iter() {
            if let Action::Learn(l) = a
                && l.delete_learned
            {
                self.forget_learned(l.table, l.cookie, now);
            }
        }
    }

    /// Removes learned flows once no flow that learns them is left.
    fn forget_learned(&mut self, table: u8, cookie: u64, now: Duration) {
        let still = self.flows().any(|r| {
            r.actions
                .iter()
                .any(|a| matches!(a, Action::Learn(l) if l.delete_learned && l.table == table && l.cookie == cookie))
        });
        if still {
            return;
        }
        let q = FlowStatsRequest { table, cookie, cookie_mask: u64::MAX, ..Default::default() };
        for r in self.select(&q, None) {
            self.remove_rule(&r, 2, now);
        }
    }

    /// Removes the flows that have expired.
    pub fn expire(&mut self, now: Duration) {
        let mut gone = Vec::new();
        // Removed and replaced flows leave the list.
        self.timed.retain(|r| r.strong_count() != 0);
        let timed = self.timed.iter().filter_map(Weak::upgrade).filter(|r| {
            let t = self.tables.get(usize::from(r.table));
            t.and_then(|t| t.find(&r.matches, r.priority)).is_some_and(|x| Arc::ptr_eq(x, r))
        });
        for r in timed {
            let (_, _, used) = r.counters();
            if r.hard_timeout != 0 && r.created + Duration::from_secs(r.hard_timeout.into()) <= now {
                gone.push((r.clone(), 1));
            } else if r.idle_timeout != 0 && used + Duration::from_secs(r.idle_timeout.into()) <= now {
                gone.push((r.clone(), 0));
            }
        }
        for (r, reason) in gone {
            self.remove_rule(&r, reason, now);
        }
        self.macs.expire(now);
    }

    /// Applies a group-mod.
    ///
    /// # Errors The error to send to the controller; nothing has changed then.
    pub fn group_mod(&mut self, m: &GroupMod, now: Duration) -> Result<(), DecodeError> {
        use GroupModCommand as C;
        let id = m.group.id;
        let have = self.groups.contains_key(&id);
        for b in &m.group.buckets {
            validate::bucket(&b.actions)?;
        }
        if matches!(m.command, C::Add | C::Modify | C::AddOrModify) {
            validate::group(&m.group)?;
        }
        match m.command {
            C::Add if have => return Err(E::GroupModExists.because(format!("group {id} exists"))),
            C::InsertBucket if m.command_bucket_id == u32::MAX => {
                return Err(
                    E::GroupModBadBucket.because(format!("group {id}: buckets come behind one, not behind all"))
                );
            }
            C::Modify | C::InsertBucket | C::RemoveBucket if !have => {
                return Err(E::GroupModUnknownGroup.because(format!("group {id} does not exist")));
            }
            C::Delete if id == GROUP_ALL || id == GROUP_ANY => self.delete_groups(None, now),
            C::Delete => self.delete_groups(Some(id), now),
            C::Add | C::Modify | C::AddOrModify => {
                let group = self.fitting(&m.group);
                self.groups.insert(id, GroupState::new(group, now));
            }
            C::InsertBucket | C::RemoveBucket => {
                if let Some(g) = self.groups.get(&id) {
                    validate::buckets(&g.group, m)?;
                }
                self.change_buckets(m);
            }
        }
        self.version += 1;
        self.touched.push(Invalidation::Group(id));
        Ok(())
    }

    fn delete_groups(&mut self, id: Option<u32>, now: Duration) {
        let ids: Vec<u32> = self.groups.keys().copied().filter(|g| id.is_none_or(|i| i == *g)).collect();
        for g in ids {
            self.groups.remove(&g);
            self.touched.push(Invalidation::Group(g));
            let q = FlowStatsRequest { out_group: g, ..Default::default() };
            for r in self.select(&q, None) {
                self.remove_rule(&r, 3, now);
            }
        }
    }

    /// A group with its actions as they are executed.
    fn fitting(&self, g: &Group) -> Group {
        let mut g = g.clone();
        for b in &mut g.buckets {
            if let Some(list) = validate::cut(self, &b.actions) {
                b.actions = list;
            }
        }
        g
    }

    fn change_buckets(&mut self, m: &GroupMod) {
        let new = self.fitting(&m.group).buckets;
        let Some(s) = self.groups.get_mut(&m.group.id) else { return };
        let mut g = (*s.group).clone();
        let at = m.command_bucket_id;
        if m.command == GroupModCommand::InsertBucket {
            let i = match at {
                0xffff_fffd => 0,
                _ => g.buckets.iter().position(|b| b.id == at).map_or(g.buckets.len(), |i| i + 1),
            };
            g.buckets.splice(i..i, new);
        } else {
            match at {
                0xffff_ffff => g.buckets.clear(),
                0xffff_fffd => drop(g.buckets.drain(..1.min(g.buckets.len()))),
                0xffff_fffe => drop(g.buckets.pop()),
                _ => g.buckets.retain(|b| b.id != at),
            }
        }
        *s = GroupState::new(g, s.created);
    }

    /// Applies a meter-mod.
    ///
    /// # Errors The error to send to the controller; nothing has changed then.
    pub fn meter_mod(&mut self, m: &MeterMod, now: Duration) -> Result<(), DecodeError> {
        let id = m.meter.id;
        let have = self.meters.contains_key(&id);
        if m.command != MeterModCommand::Delete {
            validate::meter(&m.meter)?;
        }
        match m.command {
            MeterModCommand::Add if have => return Err(E::MeterModExists.because(format!("meter {id} exists"))),
            MeterModCommand::Modify if !have => {
                return Err(E::MeterModUnknownMeter.because(format!("meter {id} does not exist")));
            }
            MeterModCommand::Add | MeterModCommand::Modify => {
                self.meters.insert(id, Meter::new(m.meter.clone(), now));
            }
            MeterModCommand::Delete if id == METER_ALL => self.meters.clear(),
            MeterModCommand::Delete => drop(self.meters.remove(&id)),
        }
        // Walks through a meter are not cached: nothing becomes stale.
        self.version += 1;
        Ok(())
    }

    /// Validates the actions of a packet-out.
    ///
    /// # Errors The error to send to the controller.
    pub fn check_packet_out(&self, actions: &[Action]) -> Result<(), DecodeError> {
        validate::packet_out(self, actions)
    }

    /// Changes the option map: 0 adds, 1 deletes, 2 clears.
    pub fn tlv_mod(&mut self, command: u16, maps: &[TlvMap]) {
        match command {
            0 => {
                for m in maps {
                    self.tlv.retain(|x| x.index != m.index && (x.class, x.kind) != (m.class, m.kind));
                    self.tlv.push(*m);
                }
            }
            1 => self.tlv.retain(|x| !maps.iter().any(|m| m.index == x.index)),
            _ => self.tlv.clear(),
        }
        self.version += 1;
        self.epoch += 1;
    }

    /// The number of flows of each table that is not empty.
    pub fn table_sizes(&self) -> HashMap<u8, usize> {
        self.tables.iter().enumerate().filter(|(_, t)| !t.is_empty()).map(|(i, t)| (i as u8, t.len())).collect()
    }
}
