//! Every match and every action of the golden southbound databases parses and prints back to the same text; matches
//! normalise.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use logical_flow::constant::{Integer, integer};
use logical_flow::expr::Environment;
use logical_flow::{Error, action, expr, normal, template, written};
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
    fn address_set(&self, name: &str) -> Option<Vec<Integer>> {
        Some(self.sets.get(name)?.iter().filter_map(|m| integer(m)).collect())
    }
    fn port_group(&self, name: &str) -> Option<Vec<u32>> {
        Some(self.groups.get(name)?.iter().filter_map(|p| self.port(p)).collect())
    }
}

/// What the walk over the golden data finds.
#[derive(Default)]
struct Found {
    seen: HashSet<(String, String)>,
    texts: HashSet<String>,
    /// Texts that the trees alone print.
    canonical: usize,
    errors: Vec<String>,
}

/// What a text prints as, with its layout and without, and whether the latter is the same tree.
type Printed = Result<(String, String, bool), Error>;

impl Found {
    /// Holds a text against what its tree prints, with its layout and without.
    fn prints(&mut self, text: &str, print: &dyn Fn(&str) -> Printed) {
        if !self.texts.insert(text.to_string()) {
            return;
        }
        match print(text) {
            // An ACL that its test gives wrongly on purpose.
            Err(_) if text.contains("inport=p1") => {}
            Err(e) => self.errors.push(format!("{text}: {e}")),
            Ok((exact, plain, again)) => {
                if exact != text {
                    self.errors.push(format!("{text}\n  printed {exact}"));
                }
                // Without its layout the text differs in spaces and comments only.
                if tokens(&plain) != tokens(text) {
                    self.errors.push(format!("{text}\n  printed {plain}"));
                }
                if !again {
                    self.errors.push(format!("{text}\n  printed {plain}, which is another tree"));
                }
                self.canonical += usize::from(plain == text);
            }
        }
    }
}

/// A text without comments and the spaces between tokens.
fn tokens(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut quoted = false;
    while let Some(c) = rest.chars().next() {
        if !quoted && rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |r| r.1);
            continue;
        }
        quoted ^= c == '"';
        if quoted || c != ' ' {
            out.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

fn expression(text: &str) -> Printed {
    let w = written::expression(text)?;
    let plain = w.tree.to_string();
    let again = expr::parse(&plain)? == w.tree;
    Ok((w.to_string(), plain, again))
}

fn actions(text: &str) -> Printed {
    let w = written::actions(text)?;
    let plain = w.tree.to_string();
    let again = action::parse(&plain)? == w.tree;
    Ok((w.to_string(), plain, again))
}

#[test]
fn every_golden_flow_parses_prints_and_normalises() {
    let mut found = Found::default();
    for archive in golden::archives() {
        let case = golden::read(&archive).unwrap();
        for snapshot in &case.snapshots {
            let Some(bytes) = snapshot.get("sb.db") else { continue };
            let db = sb::Database::load(&ovsdb_rs::file::parse(bytes).unwrap()).unwrap();
            check(&db, &case.name, &mut found);
        }
    }
    println!(
        "{} distinct flows of {} texts, {} of these without notes on layout; {} errors",
        found.seen.len(),
        found.texts.len(),
        found.canonical,
        found.errors.len()
    );
    assert!(found.errors.is_empty(), "{}", found.errors.iter().take(40).cloned().collect::<Vec<_>>().join("\n"));
}

fn check(db: &sb::Database, case: &str, found: &mut Found) {
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
    let variables =
        |name: &str| db.chassis_template_var.values().find_map(|r| r.variables.get(name)).map(|v| v.to_string());
    for f in db.logical_flow.values() {
        found.prints(&f.r#match, &expression);
        found.prints(&f.actions, &actions);
        let text = template::expand(&f.r#match, &mut { variables }).into_owned();
        let actions = template::expand(&f.actions, &mut { variables }).into_owned();
        if !found.seen.insert((text.clone(), actions.clone())) {
            continue;
        }
        match expr::parse(&text).and_then(|e| e.evaluate(&env)) {
            // An ACL that its test gives wrongly on purpose.
            Err(_) if text.contains("inport=p1") => {}
            Err(e) if text.contains('^') => assert_eq!(e.text, "Unexpanded template.", "{text}"),
            Err(e) => found.errors.push(format!("{case}: match {text}: {e}")),
            Ok(e) => {
                assert!(!text.contains('^'), "{text}");
                drop(normal::matches(&e));
            }
        }
        if let Err(e) = action::parse(&actions) {
            found.errors.push(format!("{case}: actions {actions}: {e}"));
        }
    }
}
