//! Logical flows: pairing with the rows that exist, and the datapaths of each.

use super::Op;
use super::groups::Groups;
use crate::model::{Flow, FlowExtra, Key, Value};
use crate::stage::Stage;
use incremental::Change;
use ovn_schema::{Map, Str, Uuid, sb};
use ovsdb_rs::{Atom, Datum};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

/// What tells flows apart.
type Identity = (Stage, i64, Str, Str);

/// The rows of the flows, by the number of the output.
#[derive(Default)]
pub struct Flows {
    rows: HashMap<u32, Uuid>,
    found: HashMap<Identity, Vec<Uuid>>,
    unknown: Vec<Uuid>,
}

impl Flows {
    /// Takes note of the flows that the database has.
    pub fn load(&mut self, db: &sb::Database) {
        let ordered: BTreeMap<_, _> = db.logical_flow.iter().collect();
        for (uuid, row) in ordered {
            let stage = row.external_ids.get("stage-name").and_then(|n| Stage::from_name(n));
            let fits = |s: &Stage| i64::from(s.table()) == row.table_id && s.pipeline().name() == &*row.pipeline;
            match stage.filter(fits) {
                Some(stage) => {
                    let identity = (stage, row.priority, row.r#match.clone(), row.actions.clone());
                    self.found.entry(identity).or_default().push(*uuid);
                }
                None => self.unknown.push(*uuid),
            }
        }
    }

    /// The number of the output that a row stands for.
    pub fn output(&self, row: Uuid) -> Option<u32> {
        self.rows.iter().find(|(_, u)| **u == row).map(|(id, _)| *id)
    }

    /// The row of an output.
    pub fn row(&self, output: u32) -> Option<Uuid> {
        self.rows.get(&output).copied()
    }

    /// Deletes those that no output stands for.
    pub fn drop_stale(&mut self, ops: &mut Vec<Op<sb::TableId>>) {
        let stale = std::mem::take(&mut self.found).into_values().flatten();
        for uuid in stale.chain(std::mem::take(&mut self.unknown)) {
            ops.push(Op::Delete(sb::TableId::LogicalFlow, uuid));
        }
    }

    /// Writes the flows that changed.
    pub(super) fn apply(
        &mut self,
        changes: &[Change<'_, Key, Value>],
        mut members: impl FnMut(&[Value]) -> Arc<[Uuid]>,
        groups: &mut Groups,
        db: &sb::Database,
        ops: &mut Vec<Op<sb::TableId>>,
    ) {
        for c in changes {
            let Key::Flow(flow) = c.key else { continue };
            let members = members(&c.after);
            if members.is_empty() {
                if let Some(uuid) = self.rows.remove(&c.id) {
                    ops.push(Op::Delete(sb::TableId::LogicalFlow, uuid));
                }
                continue;
            }
            let present = match self.rows.get(&c.id) {
                Some(uuid) => Some(*uuid),
                None => self.claim(flow, &members, db),
            };
            match present {
                None => {
                    let uuid = Uuid::new_v4();
                    let columns = insert(flow, &members, groups, ops);
                    ops.push(Op::Insert(sb::TableId::LogicalFlow, uuid, columns));
                    self.rows.insert(c.id, uuid);
                }
                Some(uuid) => {
                    self.rows.insert(c.id, uuid);
                    if let Some(columns) = update(flow, &members, db.logical_flow.get(&uuid), groups, db, ops) {
                        ops.push(Op::Update(sb::TableId::LogicalFlow, uuid, columns));
                    }
                }
            }
        }
    }

    /// The row in the database that stands for a flow; of several, one that has the same datapaths.
    fn claim(&mut self, flow: &Flow, members: &[Uuid], db: &sb::Database) -> Option<Uuid> {
        if self.found.is_empty() {
            return None;
        }
        let identity = (flow.stage, i64::from(flow.priority), flow.matches.clone(), flow.actions.clone());
        let found = self.found.get_mut(&identity)?;
        let same = |u: &Uuid| db.logical_flow.get(u).is_some_and(|r| datapaths(r, db) == members);
        let i = found.iter().position(same).unwrap_or(0);
        let uuid = (!found.is_empty()).then(|| found.swap_remove(i));
        if found.is_empty() {
            self.found.remove(&identity);
        }
        uuid
    }
}

/// The datapaths of a flow's row, sorted.
fn datapaths(row: &sb::LogicalFlow, db: &sb::Database) -> Vec<Uuid> {
    let mut all: Vec<Uuid> = row.logical_datapath.into_iter().collect();
    if let Some(group) = row.logical_dp_group.and_then(|g| db.logical_dp_group.get(&g)) {
        all.extend(&group.datapaths);
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn datapath_columns(
    members: &Arc<[Uuid]>,
    groups: &mut Groups,
    ops: &mut Vec<Op<sb::TableId>>,
) -> [(&'static str, Datum); 2] {
    let uuid = |u| Datum::Scalar(Atom::Uuid(u));
    match members[..] {
        [only] => [("logical_datapath", uuid(only)), ("logical_dp_group", Datum::empty_set())],
        _ => [("logical_datapath", Datum::empty_set()), ("logical_dp_group", uuid(groups.get(members, ops)))],
    }
}

fn text(s: &str) -> Datum {
    Datum::Scalar(Atom::String(s.into()))
}

/// The columns `pipeline` and `external_ids` of a stage's flows, which share them.
fn of_stage(stage: Stage) -> (Datum, Datum) {
    use ovn_schema::ColumnValue;
    static ALL: LazyLock<HashMap<Stage, (Datum, Datum)>> = LazyLock::new(|| {
        let of = |s: &Stage| {
            let ids: Map<Str, Str> = Map::from([("stage-name".into(), s.name().into())]);
            (*s, (text(s.pipeline().name()), ids.to_datum()))
        };
        Stage::ALL.iter().map(of).collect()
    });
    ALL.get(&stage).cloned().unwrap_or_else(|| (Datum::empty_set(), Datum::empty_map()))
}

fn tags(extra: Option<&FlowExtra>) -> Map<Str, Str> {
    let mut tags = Map::new();
    if let Some(port) = extra.and_then(|e| e.port.clone()) {
        tags.insert("in_out_port".into(), port);
    }
    if extra.is_some_and(|e| e.ct_translation) {
        tags.insert("acl_ct_translation".into(), "true".into());
    }
    tags
}

fn insert(
    flow: &Flow,
    members: &Arc<[Uuid]>,
    groups: &mut Groups,
    ops: &mut Vec<Op<sb::TableId>>,
) -> Vec<(&'static str, Datum)> {
    use ovn_schema::ColumnValue;
    let extra = flow.extra.as_deref();
    let (pipeline, ids) = of_stage(flow.stage);
    let mut columns = vec![
        ("pipeline", pipeline),
        ("table_id", Datum::Scalar(Atom::Integer(flow.stage.table().into()))),
        ("priority", Datum::Scalar(Atom::Integer(flow.priority.into()))),
        ("match", Datum::Scalar(Atom::String(flow.matches.clone()))),
        ("actions", Datum::Scalar(Atom::String(flow.actions.clone()))),
        ("external_ids", ids),
    ];
    if let Some(extra) = extra {
        columns.extend(extra.meter.as_ref().map(|m| ("controller_meter", text(m))));
        columns.extend(extra.description.map(|d| ("flow_desc", text(d))));
        columns.push(("tags", tags(Some(extra)).to_datum()));
    }
    columns.extend(datapath_columns(members, groups, ops));
    columns.retain(|(_, d)| !d.is_empty());
    columns
}

fn update(
    flow: &Flow,
    members: &Arc<[Uuid]>,
    present: Option<&Arc<sb::LogicalFlow>>,
    groups: &mut Groups,
    db: &sb::Database,
    ops: &mut Vec<Op<sb::TableId>>,
) -> Option<Vec<(&'static str, Datum)>> {
    use ovn_schema::ColumnValue;
    let mut columns = Vec::new();
    if present.is_none_or(|r| datapaths(r, db) != **members) {
        columns.extend(datapath_columns(members, groups, ops));
    }
    if let Some(row) = present {
        let extra = flow.extra.as_deref();
        let meter = extra.and_then(|e| e.meter.clone());
        if row.controller_meter != meter {
            columns.push(("controller_meter", meter.to_datum()));
        }
        let tags = tags(extra);
        if row.tags != tags {
            columns.push(("tags", tags.to_datum()));
        }
        let description: Option<Str> = extra.and_then(|e| e.description).map(Str::from);
        if row.flow_desc != description {
            columns.push(("flow_desc", description.to_datum()));
        }
    }
    (!columns.is_empty()).then_some(columns)
}
