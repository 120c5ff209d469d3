//! Random transactions.

#[allow(dead_code, reason = "not every test that takes this in uses it")]
pub mod typed;

use ovsdb_rs::{DatabaseSchema, Uuid};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A schema with roots and others, both kinds of references, an index and a row limit.
pub fn schema() -> DatabaseSchema {
    DatabaseSchema::from_json(&json!({"name": "D", "version": "1.0.0", "tables": {
        "Root": {"isRoot": true, "indexes": [["name"]], "maxRows": 6, "columns": {
            "name": {"type": "integer"},
            "kids": {"type": {"key": {"type": "uuid", "refTable": "Kid"}, "min": 0, "max": "unlimited"}},
            "map": {"type": {"key": "integer", "value": {"type": "uuid", "refTable": "Kid"}, "min": 0, "max": 3}},
            "pals": {"type": {"key": {"type": "uuid", "refTable": "Kid", "refType": "weak"}, "min": 0, "max": "unlimited"}},
            "eph": {"type": "integer", "ephemeral": true}}},
        "Kid": {"columns": {"k": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 9}}},
            "sub": {"type": {"key": {"type": "uuid", "refTable": "Kid"}, "min": 0, "max": 2}}}}}}))
    .unwrap()
}

/// One of a few rows, so that operations meet.
fn root() -> impl Strategy<Value = String> {
    (0..8u128).prop_map(|n| Uuid::from_u128(0x1000 + n).to_string())
}

fn kid() -> impl Strategy<Value = String> {
    (0..8u128).prop_map(|n| Uuid::from_u128(0x2000 + n).to_string())
}

fn refs(max: usize) -> impl Strategy<Value = Value> {
    proptest::collection::btree_set(kid(), 0..=max)
        .prop_map(|s| json!(["set", s.into_iter().map(|u| json!(["uuid", u])).collect::<Vec<_>>()]))
}

/// An operation on one of a few rows.
pub fn operation() -> impl Strategy<Value = Value> {
    let is = |u: String| json!([["_uuid", "==", ["uuid", u]]]);
    prop_oneof![
        (root(), 0..9i64, refs(3), refs(3)).prop_map(|(u, n, kids, pals)| json!({"op": "insert", "table": "Root",
            "uuid": u, "row": {"name": n, "kids": kids, "pals": pals, "eph": n}})),
        (kid(), -1..12i64, refs(2))
            .prop_map(|(u, k, sub)| json!({"op": "insert", "table": "Kid", "uuid": u, "row": {"k": k, "sub": sub}})),
        (root(), 0..9i64).prop_map(move |(u, n)| json!({"op": "update", "table": "Root", "where": is(u),
            "row": {"name": n}})),
        (root(), prop_oneof![Just("insert"), Just("delete")], prop_oneof![Just("kids"), Just("pals")], refs(2))
            .prop_map(
                move |(u, m, c, v)| json!({"op": "mutate", "table": "Root", "where": is(u), "mutations": [[c, m, v]]})
            ),
        (root(), 0..4i64, kid()).prop_map(move |(u, k, v)| json!({"op": "mutate", "table": "Root",
            "where": is(u), "mutations": [["map", "insert", ["map", [[k, ["uuid", v]]]]]]})),
        (0..9i64).prop_map(|k| json!({"op": "mutate", "table": "Kid", "where": [["k", "<", k]],
            "mutations": [["k", "+=", 1]]})),
        root().prop_map(move |u| json!({"op": "delete", "table": "Root", "where": is(u)})),
        kid().prop_map(move |u| json!({"op": "delete", "table": "Kid", "where": is(u)})),
    ]
}
