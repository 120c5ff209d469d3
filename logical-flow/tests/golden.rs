//! Every match and every action of the golden southbound databases parses; matches normalise.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use logical_flow::expr::Environment;
use logical_flow::{action, expr, normal, template};
use ovn_schema::sb;
use std::collections::{BTreeMap, HashSet};

struct Everything<'a> {
    sets: &'a BTreeMap<String, Vec<String>>,
    groups: &'a BTreeMap<String, Vec<String>>,
}

impl Environment for Everything<'_> {
    fn port(&self, name: &str) -> Option<u32> {
        Some(name.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b))) % 32767)
    }
    fn is_chassis_resident(&self, _: &str) -> bool {
        true
    }
    fn address_set(&self, name: &str) -> Option<Vec<String>> {
        self.sets.get(name).cloned()
    }
    fn port_group(&self, name: &str) -> Option<Vec<String>> {
        self.groups.get(name).cloned()
    }
}

#[test]
fn every_golden_flow_parses_and_normalises() {
    let mut seen: HashSet<(String, String)> = HashSet::new();
    let mut errors = Vec::new();
    for archive in golden::archives() {
        let case = golden::read(&archive).unwrap();
        for snapshot in &case.snapshots {
            let Some(bytes) = snapshot.get("sb.db") else { continue };
            let db = sb::Database::load(&ovsdb_rs::file::parse(bytes).unwrap()).unwrap();
            let sets = db
                .address_set
                .values()
                .map(|a| (a.name.to_string(), a.addresses.iter().map(|s| s.to_string()).collect()))
                .collect();
            let groups = db
                .port_group
                .values()
                .map(|g| {
                    let name = g.name.split_once('_').map_or(g.name.to_string(), |(_, n)| n.to_string());
                    (name, g.ports.iter().map(|s| s.to_string()).collect())
                })
                .collect();
            let env = Everything { sets: &sets, groups: &groups };
            // Any chassis' values will do.
            let variables = |name: &str| {
                db.chassis_template_var.values().find_map(|r| r.variables.get(name)).map(|v| v.to_string())
            };
            for f in db.logical_flow.values() {
                let text = template::expand(&f.r#match, &mut { variables }).into_owned();
                let actions = template::expand(&f.actions, &mut { variables }).into_owned();
                if !seen.insert((text.clone(), actions.clone())) {
                    continue;
                }
                let unset = |text: &str| text.contains('^');
                if unset(&text) || unset(&actions) {
                    assert!(expr::parse(&text).is_err() || action::parse(&actions).is_err(), "{text} {actions}");
                    continue;
                }
                match expr::parse(&text).and_then(|e| e.evaluate(&env)) {
                    // An ACL that its test gives wrongly on purpose.
                    Err(_) if text.contains("inport=p1") => {}
                    Err(e) => errors.push(format!("{}: match {text}: {e}", case.name)),
                    Ok(e) => drop(normal::matches(&e)),
                }
                if let Err(e) = action::parse(&actions) {
                    errors.push(format!("{}: actions {actions}: {e}", case.name));
                }
            }
        }
    }
    println!("{} distinct flows, {} errors", seen.len(), errors.len());
    assert!(errors.is_empty(), "{}", errors.iter().take(40).cloned().collect::<Vec<_>>().join("\n"));
}
