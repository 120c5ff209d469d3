//! Logical flows: pairing with the rows that exist, and the datapaths of each.

use super::groups::Groups;
use super::{Changes, Op};
use crate::model::{Flow, FlowExtra, Hint, Key, Placed, Value};
use crate::source_line::SourceLine;
use crate::stage::{Pipeline, Stage};
use incremental::Outputs;
use ovn_schema::{Map, Str, Uuid, sb};
use ovsdb_rs::engine::random_uuid;
use ovsdb_rs::{Atom, Datum};
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// What tells flows apart.
type Identity = (Stage, i64, Str, Str);

/// A row that the database has, as far as no output has claimed it.
struct Found {
    uuid: Uuid,
    /// Sorted.
    datapaths: Box<[Uuid]>,
    group: Option<Uuid>,
    meter: Option<Str>,
    tags: Map<Str, Str>,
    description: Option<Str>,
    /// Whether it says where it came from.
    hinted: bool,
}

/// A flow that has no row yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFlow {
    /// The number of the output.
    pub output: u32,
    /// The name that the row is to have.
    pub row: Uuid,
}

/// The rows of the flows, by the number of the output.
#[derive(Default)]
pub struct Flows {
    /// By the number of the output; nil where there is none.
    rows: Vec<Uuid>,
    /// The datapath group that a row names, by the number of the output; nil where it names none.
    groups: Vec<Uuid>,
    found: HashMap<Identity, Vec<Found>>,
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
                    self.found.entry(identity).or_default().push(Found::new(*uuid, row, db));
                }
                None => self.unknown.push(*uuid),
            }
        }
    }

    /// The number of the output that a row stands for.
    pub fn output(&self, row: Uuid) -> Option<u32> {
        let place = self.rows.iter().position(|u| *u == row && !u.is_nil())?;
        u32::try_from(place).ok()
    }

    /// The row of an output.
    pub fn row(&self, output: u32) -> Option<Uuid> {
        self.rows.get(output as usize).copied().filter(|u| !u.is_nil())
    }

    /// The datapath group that an output's row names.
    pub(super) fn group(&self, output: u32) -> Option<Uuid> {
        self.groups.get(output as usize).copied().filter(|u| !u.is_nil())
    }

    /// Whether there is a row that names a group.
    pub(super) fn any_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    fn set_group(&mut self, output: u32, group: Option<Uuid>, groups: &mut Groups) {
        groups.exchange(self.group(output), group);
        put(&mut self.groups, output, group.unwrap_or_default());
    }

    /// The rows of all outputs, in no order.
    pub fn rows(&self) -> impl Iterator<Item = Uuid> {
        self.rows.iter().copied().filter(|u| !u.is_nil())
    }

    /// Deletes those that no output stands for.
    pub fn drop_stale(&mut self, ops: &mut Vec<Op<sb::TableId>>) {
        let stale = std::mem::take(&mut self.found).into_values().flatten().map(|f| f.uuid);
        for uuid in stale.chain(std::mem::take(&mut self.unknown)) {
            ops.push(Op::Delete(sb::TableId::LogicalFlow, uuid));
        }
    }

    /// Writes the flows that changed. What is under a number does not change but for where it is and what it is for: the
    /// rest is part of the key.
    pub(super) fn apply(
        &mut self,
        changes: incremental::Changes<'_, Key, Value>,
        mut members: impl FnMut(&[Value]) -> Arc<[Uuid]>,
        groups: &mut Groups,
        out: &mut Changes,
    ) {
        let ops = &mut out.sb;
        for c in changes {
            let Key::Flow(flow) = c.key else { continue };
            let now = members(&c.after);
            if now.is_empty() {
                if let Some(uuid) = self.row(c.id) {
                    put(&mut self.rows, c.id, Uuid::nil());
                    self.set_group(c.id, None, groups);
                    ops.push(Op::Delete(sb::TableId::LogicalFlow, uuid));
                }
                continue;
            }
            let (uuid, columns) = if let Some(uuid) = self.row(c.id) {
                let mut columns = Vec::new();
                let before = self.group(c.id);
                let here = before.and_then(|g| groups.members_of(g));
                if here != Some(&now) && members(&c.before) != now {
                    let group = (now.len() > 1).then(|| groups.get(&now, ops));
                    columns.extend(datapath_columns(&now, |_| group.unwrap_or_default()));
                    self.set_group(c.id, group, groups);
                }
                if hint(&c.before) != hint(&c.after) {
                    columns.push(("external_ids", external_ids(flow.stage, &c.after)));
                }
                (uuid, columns)
            } else if let Some(found) = self.claim(flow, &now) {
                put(&mut self.rows, c.id, found.uuid);
                let same = *found.datapaths == *now;
                let group = if same { found.group } else { (now.len() > 1).then(|| groups.get(&now, ops)) };
                self.set_group(c.id, group, groups);
                (found.uuid, found.differs(flow, &now, &c.after, group))
            } else {
                let row = random_uuid();
                let group = (now.len() > 1).then(|| groups.get(&now, ops));
                self.set_group(c.id, group, groups);
                out.flows.push(NewFlow { output: c.id, row });
                put(&mut self.rows, c.id, row);
                continue;
            };
            if !columns.is_empty() {
                ops.push(Op::Update(sb::TableId::LogicalFlow, uuid, columns));
            }
        }
    }

    pub(super) fn trim(&mut self) {
        for all in [&mut self.rows, &mut self.groups] {
            while all.last().is_some_and(Uuid::is_nil) {
                all.pop();
            }
            all.shrink_to_fit();
        }
    }

    /// The row in the database that stands for a flow; of several, one that has the same datapaths.
    fn claim(&mut self, flow: &Flow, members: &[Uuid]) -> Option<Found> {
        if self.found.is_empty() {
            return None;
        }
        let identity = (flow.stage, i64::from(flow.priority), flow.matches.clone(), flow.actions.clone());
        let found = self.found.get_mut(&identity)?;
        let i = found.iter().position(|f| *f.datapaths == *members).unwrap_or(0);
        let claimed = (!found.is_empty()).then(|| found.swap_remove(i));
        if found.is_empty() {
            self.found.remove(&identity);
        }
        claimed
    }
}

/// Sets what is at a place; beyond the last one that is something there is nothing.
fn put(all: &mut Vec<Uuid>, place: u32, uuid: Uuid) {
    let place = place as usize;
    if all.len() <= place {
        if uuid.is_nil() {
            return;
        }
        all.resize(place + 1, Uuid::nil());
    }
    if let Some(slot) = all.get_mut(place) {
        *slot = uuid;
    }
}

impl Found {
    fn new(uuid: Uuid, row: &sb::LogicalFlow, db: &sb::Database) -> Found {
        let mut datapaths: Vec<Uuid> = row.logical_datapath.into_iter().collect();
        if let Some(group) = row.logical_dp_group.and_then(|g| db.logical_dp_group.get(&g)) {
            datapaths.extend(&group.datapaths);
        }
        datapaths.sort_unstable();
        datapaths.dedup();
        Found {
            uuid,
            datapaths: datapaths.into(),
            group: row.logical_dp_group,
            meter: row.controller_meter.clone(),
            tags: row.tags.clone(),
            description: row.flow_desc.clone(),
            hinted: ["stage-hint", "source"].iter().any(|k| row.external_ids.contains_key(*k)),
        }
    }

    /// The columns that do not say what they should. What a row says of where it came from stays: of several northbound
    /// rows that a flow is for, OVN keeps the one that it happened to see first.
    fn differs(
        &self,
        flow: &Flow,
        members: &Arc<[Uuid]>,
        values: &[Value],
        group: Option<Uuid>,
    ) -> Vec<(&'static str, Datum)> {
        use ovn_schema::ColumnValue;
        let mut columns = Vec::new();
        if *self.datapaths != **members {
            columns.extend(datapath_columns(members, |_| group.unwrap_or_default()));
        }
        let extra = flow.extra.as_deref();
        let meter = extra.and_then(|e| e.meter.clone());
        if self.meter != meter {
            columns.push(("controller_meter", meter.to_datum()));
        }
        let tags = tags(extra);
        if self.tags != tags {
            columns.push(("tags", tags.to_datum()));
        }
        let description: Option<Str> = extra.and_then(|e| e.description).map(Str::from);
        if self.description != description {
            columns.push(("flow_desc", description.to_datum()));
        }
        if !self.hinted && hint(values).is_some() {
            columns.push(("external_ids", external_ids(flow.stage, values)));
        }
        columns
    }
}

/// The row that a flow is for; of several, always the same one.
fn hint(values: &[Value]) -> Option<Hint> {
    placed(values).filter_map(|p| p.hint).min()
}

fn placed(values: &[Value]) -> impl Iterator<Item = &Placed> {
    values.iter().filter_map(|v| if let Value::Flow(p) = v { Some(p) } else { None })
}

fn datapath_columns(members: &Arc<[Uuid]>, group: impl FnOnce(&Arc<[Uuid]>) -> Uuid) -> [(&'static str, Datum); 2] {
    let uuid = |u| Datum::Scalar(Atom::Uuid(u));
    match members[..] {
        [only] => [("logical_datapath", uuid(only)), ("logical_dp_group", Datum::empty_set())],
        _ => [("logical_datapath", Datum::empty_set()), ("logical_dp_group", uuid(group(members)))],
    }
}

fn text(s: &str) -> Datum {
    Datum::Scalar(string(s))
}

/// The keys and values of `external_ids` and `pipeline` that many flows have, which share them.
struct Shared {
    pipelines: [Datum; 2],
    stages: HashMap<Stage, Atom>,
    keys: [Atom; 3],
}

fn string(s: &str) -> Atom {
    Atom::String(s.into())
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| Shared {
    pipelines: [Pipeline::Ingress, Pipeline::Egress].map(|p| text(p.name())),
    stages: Stage::ALL.iter().map(|s| (*s, string(s.name()))).collect(),
    keys: ["source", "stage-hint", "stage-name"].map(string),
});

/// The text of a place, one string for all.
fn source(place: SourceLine) -> Atom {
    static TEXTS: LazyLock<RwLock<HashMap<SourceLine, Atom>>> = LazyLock::new(RwLock::default);
    if let Some(known) = TEXTS.read().unwrap_or_else(PoisonError::into_inner).get(&place) {
        return known.clone();
    }
    let text = string(&place.text());
    TEXTS.write().unwrap_or_else(PoisonError::into_inner).insert(place, text.clone());
    text
}

fn external_ids(stage: Stage, values: &[Value]) -> Datum {
    let [source_key, hint_key, stage_key] = SHARED.keys.clone();
    let mut ids = Vec::with_capacity(3);
    ids.extend(placed(values).map(|p| p.place).min().map(|p| (source_key, source(p))));
    ids.extend(hint(values).map(|h| (hint_key, Atom::String(h.to_string().into()))));
    ids.extend(SHARED.stages.get(&stage).map(|name| (stage_key, name.clone())));
    Datum::map(ids)
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

/// The rows of new flows; the groups that they name are there.
pub(super) fn rows<'a>(
    outputs: &'a Outputs<Key, Value>,
    mut members: impl FnMut(&[Value]) -> Arc<[Uuid]> + 'a,
    groups: &'a Groups,
) -> impl FnMut(&NewFlow) -> Option<Op<sb::TableId>> + 'a {
    move |new| {
        let Some(Key::Flow(flow)) = outputs.key(new.output) else { return None };
        let values = outputs.values(new.output);
        let columns = insert(flow, &members(&values), &values, |m| groups.find(m).unwrap_or_default());
        Some(Op::Insert(sb::TableId::LogicalFlow, new.row, columns))
    }
}

fn insert(
    flow: &Flow,
    members: &Arc<[Uuid]>,
    values: &[Value],
    group: impl FnOnce(&Arc<[Uuid]>) -> Uuid,
) -> Vec<(&'static str, Datum)> {
    use ovn_schema::ColumnValue;
    let [ingress, egress] = &SHARED.pipelines;
    let pipeline = if flow.stage.pipeline() == Pipeline::Ingress { ingress } else { egress };
    let mut columns = Vec::with_capacity(if flow.extra.is_some() { 10 } else { 7 });
    columns.extend([
        ("pipeline", pipeline.clone()),
        ("table_id", Datum::Scalar(Atom::Integer(flow.stage.table().into()))),
        ("priority", Datum::Scalar(Atom::Integer(flow.priority.into()))),
        ("match", Datum::Scalar(Atom::String(flow.matches.clone()))),
        ("actions", Datum::Scalar(Atom::String(flow.actions.clone()))),
        ("external_ids", external_ids(flow.stage, values)),
    ]);
    if let Some(extra) = flow.extra.as_deref() {
        columns.extend(extra.meter.as_ref().map(|m| ("controller_meter", Datum::Scalar(Atom::String(m.clone())))));
        columns.extend(extra.description.map(|d| ("flow_desc", text(d))));
        let tags = tags(Some(extra));
        columns.extend((!tags.is_empty()).then(|| ("tags", tags.to_datum())));
    }
    columns.extend(datapath_columns(members, group).into_iter().filter(|(_, d)| !d.is_empty()));
    columns
}
