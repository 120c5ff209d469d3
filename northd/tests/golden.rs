//! The compiler against the recorded situations: compiling over a complete southbound database changes nothing.
//!
//! `GOLDEN_CASE=TEXT` prints what differs in the cases whose name has TEXT; `GOLDEN_SUMMARY=1` how many cases agree
//! and what differs most; `GOLDEN_ACCEPT=1` writes `tests/golden_expected.txt` and `docs/compatibility-northd.md`, with the
//! reasons of `tests/golden_reasons.txt`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{archives, golden, snapshots};
use northd::{Compiler, Op};
use ovn_schema::{Uuid, nb, sb};
use ovsdb_rs::Datum;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

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
    let all = northd::sync::columns(db, table, uuid);
    let old: Vec<_> = all.into_iter().filter(|(n, _)| columns.iter().any(|(m, _)| m == n)).collect();
    show(&old)
}

/// What differs, each as (place, text).
fn differences(nb: &[u8], sb: &[u8]) -> Vec<(String, String)> {
    let nb = nb::Database::load(&ovsdb_rs::file::parse(nb).unwrap()).unwrap();
    let sb = sb::Database::load(&ovsdb_rs::file::parse(sb).unwrap()).unwrap();
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
                (table.name().to_string(), format!("missing: {}", show(&northd::sync::columns(db, *table, *uuid))))
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
    out
}

/// Differences of all cases: case → snapshot → differences.
fn all(dir: &Path, only: Option<&str>) -> BTreeMap<String, Vec<(String, String, String)>> {
    let mut cases = BTreeMap::new();
    for archive in archives(dir) {
        let name = archive.file_name().unwrap().to_string_lossy().replace(".tar.zst", "");
        if only.is_some_and(|t| !name.contains(t)) {
            continue;
        }
        let snapshots = snapshots(&archive);
        if snapshots.is_empty() {
            continue;
        }
        let mut out = Vec::new();
        for (snapshot, nb, sb) in snapshots {
            for (place, text) in differences(&nb, &sb) {
                out.push((snapshot.clone(), place, text));
            }
        }
        cases.insert(name, out);
    }
    cases
}

fn places(differences: &[(String, String, String)]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (_, place, _) in differences {
        *counts.entry(place.as_str()).or_default() += 1;
    }
    counts
}

fn summary(cases: &BTreeMap<String, Vec<(String, String, String)>>) {
    let agree = cases.values().filter(|d| d.is_empty()).count();
    println!("{agree} of {} cases agree", cases.len());
    let mut by_place: BTreeMap<&str, (usize, BTreeSet<&str>, BTreeSet<&str>)> = BTreeMap::new();
    for (case, differences) in cases {
        let places = places(differences);
        for (place, n) in &places {
            let e = by_place.entry(place).or_default();
            e.0 += n;
            e.1.insert(case);
            if places.len() == 1 {
                e.2.insert(case);
            }
        }
    }
    let mut rows: Vec<_> = by_place.into_iter().collect();
    rows.sort_by_key(|(_, (_, cases, _))| std::cmp::Reverse(cases.len()));
    for (place, (n, cases, alone)) in rows {
        let first: Vec<_> = alone.iter().chain(&cases).take(2).collect();
        println!("{place:28} {n:5} in {:3} cases, alone in {:3}: {first:?}", cases.len(), alone.len());
    }
}

fn accept(cases: &BTreeMap<String, Vec<(String, String, String)>>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let agree: Vec<&str> = cases.iter().filter(|(_, d)| d.is_empty()).map(|(c, _)| c.as_str()).collect();
    std::fs::write(root.join("tests/golden_expected.txt"), agree.join("\n") + "\n").unwrap();
    let mut page = format!(
        "# northd: what agrees with OVN 26.03\n\nOf the {} recorded situations, {} compile to the same southbound \
         database, word for word, with the same row UUIDs. In the others, these tables and stages differ\n\
         (generated by `GOLDEN_ACCEPT=1 cargo test -p northd --test golden`):\n\n| situation | differs in | because |\n|---|---|---|\n",
        cases.len(),
        agree.len()
    );
    let reasons: BTreeMap<&str, &str> =
        include_str!("golden_reasons.txt").lines().filter_map(|l| l.split_once(" | ")).collect();
    for (case, differences) in cases.iter().filter(|(_, d)| !d.is_empty()) {
        let because = reasons.get(&**case).unwrap_or(&"not looked into");
        let places: Vec<String> = places(differences).iter().map(|(p, n)| format!("{p} ({n})")).collect();
        writeln!(page, "| {case} | {} | {because} |", places.join(", ")).unwrap();
    }
    std::fs::write(root.join("../docs/compatibility-northd.md"), page).unwrap();
}

#[test]
fn compiling_over_a_complete_database_changes_nothing() {
    let Some(dir) = golden() else {
        println!("skipped: ../shared is absent");
        return;
    };
    let only = std::env::var("GOLDEN_CASE").ok();
    let cases = all(&dir, only.as_deref());
    if only.is_some() {
        for (case, differences) in &cases {
            println!("=== {case}: {} differences", differences.len());
            for (snapshot, place, text) in differences {
                println!("{snapshot} {place} {text}");
            }
        }
        return;
    }
    if std::env::var_os("GOLDEN_SUMMARY").is_some() {
        summary(&cases);
    }
    if std::env::var_os("GOLDEN_ACCEPT").is_some() {
        accept(&cases);
    }
    let expected = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden_expected.txt"))
        .unwrap_or_default();
    let broken: Vec<&str> = expected.lines().filter(|c| cases.get(*c).is_some_and(|d| !d.is_empty())).collect();
    assert!(broken.is_empty(), "these cases agreed before: {broken:#?}");
}
