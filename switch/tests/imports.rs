//! Rooms of the crate use rooms below them only: there is no circle (docs/dataplane.md, "Rooms of the switch").

/// From the ground up.
const ORDER: [&str; 18] = [
    "buf",
    "ids",
    "stamps",
    "dependency",
    "drops",
    "extract",
    "tunnel",
    "classifier",
    "conntrack",
    "bridge",
    "events",
    "netflow",
    "xlate",
    "dpctl",
    "flowcache",
    "trace",
    "fastpath",
    "datapath",
];

#[test]
fn rooms_use_what_is_below_them() {
    let rooms: Vec<(&str, &[&str])> = ORDER.iter().enumerate().map(|(i, room)| (*room, &ORDER[..i])).collect();
    let rule = needs::imports::Rule { rooms: &rooms, reserved: &[] };
    let breaches = rule.breaches(concat!(env!("CARGO_MANIFEST_DIR"), "/src").as_ref()).expect("sources");
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}
