//! Which room of the crate may import which (docs/architecture.md). Nobody knows the loop; what encodes logical actions, and what
//! plans transactions, know nobody.

use needs::imports::Rule;
use std::path::Path;

/// Each with the rooms that it may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("encode", &[]),
    ("plan", &[]),
    // What chassis tell each other, whose interface a port has, what the fabric is: shapes of what is looked at.
    ("input", &["evpn", "rows"]),
    ("openflow", &["units"]),
    ("routing", &["input", "plan", "units"]),
    ("evpn", &["input", "routing", "units"]),
    ("plug", &["input", "plan", "rows"]),
    // Units derive what is written, plugged, announced and told to services; these hold it against what is there.
    ("units", &["encode", "evpn", "input", "pinctrl", "plug", "routing", "rows"]),
    ("rows", &["encode", "input", "openflow", "pinctrl", "plan", "units"]),
    ("pinctrl", &["encode", "input", "openflow", "plan", "rows", "units"]),
    ("run", &["encode", "evpn", "input", "openflow", "pinctrl", "plan", "plug", "routing", "rows", "units"]),
];

#[test]
fn rooms_import_only_those_that_they_may_know() {
    let rule = Rule { rooms: ROOMS, reserved: &[] };
    let breaches = rule.breaches(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("sources");
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}
