//! What differs between the recorded southbound databases and what the compiler makes of the northbound ones.

use super::common::{archives, snapshots};
use northd::model::{Key, Value};
use northd::{Compiler, Op};
use ovn_schema::{Uuid, nb, sb};
use ovsdb_rs::Datum;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A difference: snapshot, table or stage, text.
pub type Difference = (String, String, String);

fn show(columns: &[(&'static str, Datum)]) -> String {
    let cells: Vec<String> = columns.iter().map(|(n, d)| format!("{n}={}", d.to_json())).collect();
    cells.join(" ")
}

fn flow_text(f: &sb::LogicalFlow) -> String {
    format!("{} | {} | {}", f.priority, f.r#match, f.actions)
}

fn stage(f: &sb::LogicalFlow) -> String {
    f.external_ids.get("stage-name").map(|s| s.to_string()).unwrap_or_default()
}

fn present(db: &sb::Database, table: sb::TableId, uuid: Uuid, columns: &[(&'static str, Datum)]) -> String {
    let all = db.columns(table, uuid).unwrap_or_default();
    let old: Vec<_> = all.into_iter().filter(|(n, _)| columns.iter().any(|(m, _)| m == n)).collect();
    show(&old)
}

/// Differences as (place, text).
type Places = Vec<(String, String)>;

/// What differs, and of which hints.
fn differences(nb: &[u8], sb: &[u8]) -> (Places, Places) {
    let loaded = || {
        let nb =
            nb::Database::load(&ovsdb_rs::file::parse(nb).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        let sb =
            sb::Database::load(&ovsdb_rs::file::parse(sb).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        Ok::<_, String>((nb, sb))
    };
    let (nb, sb) = match loaded() {
        Ok(both) => both,
        Err(e) => return (vec![("unreadable".to_string(), e)], Vec::new()),
    };
    let mut compiler = Compiler::new(nb, sb);
    let changes = compiler.run();
    let db = &compiler.input().sb;
    let mut out = Vec::new();
    for op in &changes.sb {
        let (place, text) = match op {
            Op::Insert(sb::TableId::LogicalDpGroup, ..) => continue,
            Op::Insert(sb::TableId::LogicalFlow, _, columns) => {
                let get = |name: &str| {
                    let d = columns.iter().find(|(n, _)| *n == name).map(|(_, d)| d);
                    d.map(|d| d.scalar().and_then(|a| a.as_str()).map_or(d.to_json().to_string(), str::to_string))
                        .unwrap_or_default()
                };
                let ids = columns.iter().find(|(n, _)| *n == "external_ids").map(|(_, d)| d);
                let stage = ids.and_then(|d| d.get_str("stage-name")).and_then(|a| a.as_str()).unwrap_or_default();
                (stage.to_string(), format!("extra: {} | {} | {}", get("priority"), get("match"), get("actions")))
            }
            Op::Insert(table, _, columns) => (table.name().to_string(), format!("extra: {}", show(columns))),
            Op::Update(table, uuid, columns) => match (table, db.logical_flow.get(uuid)) {
                (sb::TableId::LogicalFlow, Some(f)) => {
                    (stage(f), format!("changed: {} [{}]", flow_text(f), show(columns)))
                }
                _ => (
                    table.name().to_string(),
                    format!("changed: {uuid} {} => {}", present(db, *table, *uuid, columns), show(columns)),
                ),
            },
            Op::Delete(sb::TableId::LogicalFlow, uuid) => {
                let f = &db.logical_flow[uuid];
                (stage(f), format!("missing: {}", flow_text(f)))
            }
            Op::Delete(table, uuid) => {
                (table.name().to_string(), format!("missing: {}", show(&db.columns(*table, *uuid).unwrap_or_default())))
            }
        };
        out.push((place, text));
    }
    for op in &changes.nb {
        if let Op::Update(table, uuid, columns) = op {
            out.push((format!("NB {}", table.name()), format!("changed: {uuid} => {}", show(columns))));
        }
    }
    out.sort();
    (out, hints(&compiler, db))
}

/// The flows whose row names another northbound row than all those that the compiler made it for, by stage.
fn hints(compiler: &Compiler, db: &sb::Database) -> Places {
    let outputs = compiler.engine().outputs();
    let flows = compiler.sync().flows();
    let mut out = Vec::new();
    for (key, values) in outputs.iter() {
        let Key::Flow(flow) = key else { continue };
        let row = outputs.id(key).and_then(|id| flows.row(id)).and_then(|u| db.logical_flow.get(&u));
        let Some(row) = row else { continue };
        let ours: BTreeSet<String> = values
            .filter_map(|v| if let Value::Flow(p) = v { Some(p) } else { None })
            .map(|p| p.hint.map_or_else(|| "none".to_string(), |h| h.to_string()))
            .collect();
        let theirs = row.external_ids.get("stage-hint").map_or("none", |h| h);
        if !ours.contains(theirs) {
            let source = row.external_ids.get("source").map_or("", |s| s);
            out.push((
                format!("{} {source}", flow.stage.name()),
                format!("{} | {theirs} not {ours:?}", flow_text(row)),
            ));
        }
    }
    out
}

/// What differs in a case.
#[derive(Default)]
pub struct Case {
    /// In what the databases say.
    pub differences: Vec<Difference>,
    /// In which northbound rows flows are for.
    pub hints: Vec<Difference>,
}

/// Differences of all cases. A case whose databases cannot be read differs in that.
pub fn all(dir: &Path, only: Option<&str>) -> BTreeMap<String, Case> {
    let cases = archives(dir).into_par_iter().filter_map(|archive| {
        let name = archive.file_name()?.to_string_lossy().replace(".tar.zst", "");
        if only.is_some_and(|t| !name.contains(t)) {
            return None;
        }
        let snapshots = snapshots(&archive);
        if snapshots.is_empty() {
            return None;
        }
        let mut case = Case::default();
        for (snapshot, nb, sb) in snapshots {
            let (differences, hints) = differences(&nb, &sb);
            case.differences.extend(differences.into_iter().map(|(place, text)| (snapshot.clone(), place, text)));
            case.hints.extend(hints.into_iter().map(|(place, text)| (snapshot.clone(), place, text)));
        }
        Some((name, case))
    });
    cases.collect()
}

/// How many differences each table or stage has.
pub fn places(differences: &[Difference]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (_, place, _) in differences {
        *counts.entry(place.as_str()).or_default() += 1;
    }
    counts
}
