//! Limits of flow tables, and eviction: which flow is removed to make room (ovs-vswitchd.conf.db(5), `Flow_Table`;
//! OpenFlow 1.4 section 5.10).

use crate::bridge::{Bridge, meant};
use crate::classifier::Rule;
use openflow_rs::OfError as E;
use openflow_rs::wire::DecodeError;
use openflow_rs::{FlowMod, Subfield, TableId};
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

/// Reason of a flow-removed message (OFPRR_EVICTION).
const EVICTED: u8 = 5;

/// Configuration of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableConfig {
    /// Its name in the database.
    pub name: Option<String>,
    /// The name that a controller gave it; it counts where the database has none.
    pub name_openflow: Option<String>,
    /// Most flows.
    pub limit: Option<usize>,
    /// At the limit, flows with timeouts are evicted.
    pub evict: bool,
    /// A controller has turned eviction on (OFPTC14_EVICTION).
    pub evict_openflow: bool,
    /// Events of its room that a controller has asked for (OFPTC14_VACANCY_EVENTS).
    pub vacancy: Option<Vacancy>,
    /// Flows that match these fields in the same way are a group; the largest group loses a flow first.
    pub groups: Vec<Subfield>,
}

/// Percentages of free room at which controllers are told, and which of the two comes next (OpenFlow 1.4 section
/// 7.3.5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacancy {
    /// It is told when there is less than this.
    pub down: u8,
    /// It is told when there is more than this.
    pub up: u8,
    /// The next event is that of more.
    pub rises: bool,
}

/// A table's room has fallen below, or risen above, what a controller has asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VacancyChange {
    /// The table.
    pub table: TableId,
    /// It has risen.
    pub up: bool,
}

impl Bridge {
    /// Configuration of a table.
    pub fn table_config(&self, table: TableId) -> Option<&TableConfig> {
        self.table_config.get(&table)
    }

    /// Replaces the tables' configuration. What controllers have set is kept, except names of tables that the database
    /// names. Flows beyond a limit are evicted where eviction is on.
    pub fn set_table_config(&mut self, mut config: BTreeMap<TableId, TableConfig>, now: Duration) {
        for (table, old) in &self.table_config {
            if old.evict_openflow || old.vacancy.is_some() || old.name_openflow.is_some() {
                let new = config.entry(*table).or_default();
                (new.evict_openflow, new.vacancy) = (old.evict_openflow, old.vacancy);
                new.name_openflow = old.name_openflow.clone().filter(|_| new.name.is_none());
            }
        }
        self.table_config = config;
        let tables: Vec<(TableId, usize)> =
            self.table_config.iter().filter(|(_, c)| c.evict).filter_map(|(t, c)| Some((*t, c.limit?))).collect();
        for (table, limit) in tables {
            self.evict(table, self.table_len(table).saturating_sub(limit), now);
        }
        self.version += 1;
    }

    /// A controller names a table, or takes its name away.
    pub fn name_table(&mut self, table: TableId, name: &str) {
        self.table_config.entry(table).or_default().name_openflow = (!name.is_empty()).then(|| name.into());
    }

    /// Turns eviction on or off for a controller, in a table or in all.
    pub fn let_evict(&mut self, table: TableId, on: bool) {
        for t in meant(table) {
            self.table_config.entry(t).or_default().evict_openflow = on;
        }
        self.version += 1;
    }

    /// Percent of a table's flows that may still be added; of a table without a limit, all.
    pub fn vacancy(&self, table: TableId) -> u8 {
        let limit = self.table_config(table).and_then(|c| c.limit).filter(|n| *n > 0);
        limit.map_or(100, |most| (most.saturating_sub(self.table_len(table)) * 100 / most) as u8)
    }

    /// Has controllers told when the free room of a table, or of any table, passes one of two percentages; `None` ends
    /// that.
    pub fn watch_vacancy(&mut self, table: TableId, between: Option<[u8; 2]>) {
        for t in meant(table) {
            let now = self.vacancy(t);
            self.table_config.entry(t).or_default().vacancy =
                between.map(|[down, up]| Vacancy { down, up, rises: now < up });
        }
        self.version += 1;
    }

    /// The tables whose room has passed what controllers have asked about since the last call.
    pub fn vacancy_changes(&mut self) -> Vec<VacancyChange> {
        let watched = self.table_config.iter().filter_map(|(t, c)| Some((*t, c.limit.and(c.vacancy)?)));
        let passed = watched.filter(|(t, v)| {
            let now = self.vacancy(*t);
            if v.rises { now > v.up } else { now < v.down }
        });
        let changes: Vec<VacancyChange> = passed.map(|(table, v)| VacancyChange { table, up: v.rises }).collect();
        for c in &changes {
            let of_table = self.table_config.get_mut(&c.table).and_then(|t| t.vacancy.as_mut());
            of_table.into_iter().for_each(|v| v.rises = !v.rises);
        }
        changes
    }

    fn table_len(&self, table: TableId) -> usize {
        self.tables.get(table.index()).map_or(0, |t| t.len())
    }

    /// Evicts a flow for a new one, if the table is full.
    pub(crate) fn evict_for(&mut self, f: &FlowMod, now: Duration) -> Result<(), DecodeError> {
        let Some((limit, evicts)) =
            self.table_config.get(&f.table).and_then(|c| Some((c.limit?, c.evict || c.evict_openflow)))
        else {
            return Ok(());
        };
        let there = self.tables.get(f.table.index()).is_some_and(|t| t.find(&f.matches, f.priority).is_some());
        if there || self.table_len(f.table) < limit || evicts && self.evict(f.table, 1, now) {
            return Ok(());
        }
        Err(E::FlowModTableFull.because(format!("table {} has as many flows as its flow_limit says, {limit}", f.table)))
    }

    /// Evicts `n` flows: each time from the largest group, the one of least importance, then the one that expires
    /// first. It visits all flows of the table. False if fewer have a timeout.
    fn evict(&mut self, table: TableId, n: usize, now: Duration) -> bool {
        let empty = TableConfig::default();
        let c = self.table_config.get(&table).unwrap_or(&empty);
        let mut groups: BTreeMap<Vec<u128>, Vec<Candidate<'_>>> = BTreeMap::new();
        let with_end = self.tables.get(table.index()).into_iter().flat_map(|t| t.iter());
        for (rule, end) in with_end.filter_map(|r| Some((r, end(r)?))) {
            let values = c.groups.iter().map(|s| {
                let (value, mask) = rule.matches.get(s.field);
                (value & mask) >> s.ofs & openflow_rs::ones(s.n_bits)
            });
            let importance = if c.evict_openflow { rule.importance } else { 0 };
            groups.entry(values.collect()).or_default().push(Candidate { order: (importance, end), rule });
        }
        let mut groups: Vec<Vec<Candidate<'_>>> = groups.into_values().collect();
        // The flow to evict first is the last of its group.
        groups.iter_mut().for_each(|g| g.sort_by_key(|c| std::cmp::Reverse(c.order)));
        let mut largest: BinaryHeap<(usize, usize)> = groups.iter().enumerate().map(|(i, g)| (g.len(), i)).collect();
        let mut chosen = Vec::new();
        while chosen.len() < n
            && let Some((_, i)) = largest.pop()
            && let Some(g) = groups.get_mut(i)
        {
            chosen.extend(g.pop().map(|c| c.rule.clone()));
            if !g.is_empty() {
                largest.push((g.len(), i));
            }
        }
        chosen.iter().for_each(|r| self.remove_rule(r, EVICTED, now));
        chosen.len() == n
    }
}

/// A flow that may be evicted.
struct Candidate<'a> {
    /// Importance and time of expiry: the least is evicted first.
    order: (u16, Duration),
    rule: &'a Arc<Rule>,
}

/// When a flow expires if no packet uses it; none without timeouts.
fn end(r: &Rule) -> Option<Duration> {
    let (_, _, used) = r.counters();
    let after = |from: Duration, seconds: u16| (seconds != 0).then(|| from + Duration::from_secs(seconds.into()));
    [after(r.modified(), r.hard_timeout()), after(used, r.idle_timeout())].into_iter().flatten().min()
}
