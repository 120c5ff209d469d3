//! Rooms of the crate use rooms below them only: there is no circle (docs/dataplane.md, "Rooms of the switch").

/// From the ground up.
const ORDER: [&str; 15] = [
    "buf",
    "stamps",
    "dependency",
    "drops",
    "extract",
    "tunnel",
    "classifier",
    "conntrack",
    "bridge",
    "events",
    "xlate",
    "trace",
    "flowcache",
    "fastpath",
    "datapath",
];

#[test]
fn rooms_use_what_is_below_them() {
    needs::rooms::assert_order(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), &ORDER);
}
