//! Which module of the crate may import which (docs/architecture.md). From the ground up: words, the core that units see, what units
//! make, the derivation that calls them, and what becomes of their outputs.

use needs::imports::Rule;
use std::path::Path;

/// Know nothing of units.
const GROUND: &[&str] = &["addresses", "source_line", "registers", "stage"];
/// What a unit reads and puts out: one thing in six files.
const CORE: &[&str] = &["clock", "context", "facts", "input", "model", "sticky_ids"];
/// Questions to the core that several makers have.
const HELPERS: &[&str] = &["ageing", "checks"];
/// Units of one pipeline: a switch's port makes flows of the router behind it, a router's routes rows of the southbound database.
const MAKERS: &[&str] = &["router", "switch", "tables"];
/// Each may use all before it.
const ABOVE: &[&str] = &["lifecycle", "derivation", "sync", "compiler", "why"];

#[test]
fn modules_import_only_those_beneath_them() {
    let mut rooms: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut below: Vec<&str> = Vec::new();
    for floor in [GROUND, CORE, HELPERS, MAKERS] {
        below.extend(floor);
        rooms.extend(floor.iter().map(|room| (*room, below.clone())));
    }
    for room in ABOVE {
        rooms.push((room, below.clone()));
        below.push(room);
    }
    rooms.push(("bin", below));
    let rooms: Vec<(&str, &[&str])> = rooms.iter().map(|(room, may)| (*room, may.as_slice())).collect();
    let rule = Rule { rooms: &rooms, reserved: &[] };
    let breaches = rule.breaches(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("sources");
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}
