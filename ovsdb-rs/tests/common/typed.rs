//! Random transactions on columns of all types, with their limits.

use ovsdb_rs::{DatabaseSchema, Uuid};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Columns of every type: ranges, lengths, enumerations, sizes, sets, maps, one that may not change, one that is not
/// kept, and an index over two columns.
pub fn schema() -> DatabaseSchema {
    DatabaseSchema::from_json(&json!({"name": "D", "version": "1.0.0", "tables": {
        "T": {"isRoot": true, "indexes": [["s", "i"]], "maxRows": 7, "columns": {
            "i": {"type": {"key": {"type": "integer", "minInteger": -5, "maxInteger": 20}}},
            "r": {"type": {"key": {"type": "real", "minReal": -1.5, "maxReal": 100.0}}},
            "b": {"type": "boolean"},
            "s": {"type": {"key": {"type": "string", "maxLength": 4}}},
            "e": {"type": {"key": {"type": "string", "enum": ["set", ["red", "green"]]}, "min": 0, "max": 1}},
            "u": {"type": {"key": "uuid", "min": 0, "max": 2}},
            "is": {"type": {"key": {"type": "integer", "enum": ["set", [0, 1, 2, 3, 5, 8]]}, "min": 0, "max": 3}},
            "rs": {"type": {"key": "real", "min": 0, "max": "unlimited"}},
            "ss": {"type": {"key": {"type": "string", "minLength": 1}, "min": 1, "max": 4}},
            "bs": {"type": {"key": "boolean", "min": 0, "max": 2}},
            "m": {"type": {"key": "string", "value": "string", "min": 0, "max": 3}},
            "mi": {"type": {"key": "integer", "value": {"type": "real", "maxReal": 50.0}, "min": 0, "max": "unlimited"}},
            "fixed": {"type": "integer", "mutable": false},
            "eph": {"type": {"key": "string", "min": 0, "max": 1}, "ephemeral": true}}}}}))
    .unwrap()
}

const COLUMNS: [&str; 14] = ["i", "r", "b", "s", "e", "u", "is", "rs", "ss", "bs", "m", "mi", "fixed", "eph"];

fn uuid() -> impl Strategy<Value = Value> {
    (0..9u128).prop_map(|n| json!(["uuid", Uuid::from_u128(0x3000 + n).to_string()]))
}

fn string() -> impl Strategy<Value = Value> {
    prop::sample::select(vec!["", "a", "bb", "d4dd", "eeeee", "é", "x \"y", "red", "green", "blue"])
        .prop_map(Value::from)
}

fn integer() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![-6i64, -5, -1, 0, 1, 2, 3, 5, 8, 20, 21, i64::MAX]).prop_map(Value::from)
}

fn real() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![-2.0, -1.5, 0.0, 0.5, 0.1, 1.0, 3.0, 2.25, 50.5, 1e300]).prop_map(Value::from)
}

fn set(of: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec(of, 0..4).prop_map(|v| json!(["set", v]))
}

fn map(key: impl Strategy<Value = Value>, value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec((key, value), 0..4).prop_map(|v| json!(["map", v]))
}

/// A value that fits the column more often than not.
fn value(column: &'static str) -> BoxedStrategy<Value> {
    let right = match column {
        "i" | "fixed" => integer().boxed(),
        "r" => real().boxed(),
        "b" => any::<bool>().prop_map(Value::from).boxed(),
        "s" => string().boxed(),
        "e" | "eph" => prop_oneof![string(), set(string())].boxed(),
        "u" => prop_oneof![uuid(), set(uuid())].boxed(),
        "is" => prop_oneof![integer(), set(integer())].boxed(),
        "rs" => set(real()).boxed(),
        "ss" => prop_oneof![string(), set(string())].boxed(),
        "bs" => set(any::<bool>().prop_map(Value::from)).boxed(),
        "m" => map(string(), string()).boxed(),
        _ => map(integer(), real()).boxed(),
    };
    let wrong = prop_oneof![string(), integer(), set(integer()), map(string(), string()), Just(Value::Null)];
    prop_oneof![15 => right, 1 => wrong].boxed()
}

fn row() -> impl Strategy<Value = Value> {
    let pair = prop::sample::select(COLUMNS.to_vec()).prop_flat_map(|c| (Just(c), value(c)));
    prop::collection::vec(pair, 0..5).prop_map(|pairs| {
        let mut row: serde_json::Map<String, Value> = pairs.into_iter().map(|(c, v)| (c.into(), v)).collect();
        row.entry("ss").or_insert_with(|| "a".into());
        Value::Object(row)
    })
}

fn condition() -> impl Strategy<Value = Value> {
    let functions = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">=", "includes", "excludes"]);
    let one = prop::sample::select(COLUMNS.to_vec())
        .prop_flat_map(move |c| (Just(c), functions.clone(), value(c)))
        .prop_map(|(c, f, v)| json!([c, f, v]));
    let row = uuid().prop_map(|u| json!([["_uuid", "==", u]]));
    prop_oneof![row, prop::collection::vec(one, 0..3).prop_map(Value::from), Just(json!([false])), Just(json!([true]))]
}

fn mutation() -> impl Strategy<Value = Value> {
    let mutators = prop::sample::select(vec!["+=", "-=", "*=", "/=", "%=", "insert", "delete", "nope"]);
    let numbers = prop_oneof![integer(), real(), set(integer()), set(string()), set(real())];
    prop::sample::select(COLUMNS.to_vec())
        .prop_flat_map(move |c| (Just(c), mutators.clone(), prop_oneof![value(c), numbers.clone().boxed()]))
        .prop_map(|(c, m, v)| json!([c, m, without_negative_zero(c, m, v)]))
}

/// ovsdb-server takes the zeros for the same value or not, depending on what looks at them; so none becomes negative.
fn without_negative_zero(column: &str, mutator: &str, v: Value) -> Value {
    let reals = ["r", "rs"].contains(&column) && ["*=", "/="].contains(&mutator);
    match v.as_f64().filter(|n| reals && *n <= 0.0) {
        Some(n) => json!(n.abs().max(0.5)),
        None => v,
    }
}

fn columns() -> impl Strategy<Value = Value> {
    prop::sample::subsequence(COLUMNS.to_vec(), 1..6).prop_map(|l| json!(l))
}

/// An operation.
pub fn operation() -> impl Strategy<Value = Value> {
    let op = |name: &'static str| {
        move |v: Value| {
            let mut v = v;
            v["op"] = name.into();
            v["table"] = "T".into();
            v
        }
    };
    prop_oneof![
        6 => (uuid(), row(), any::<bool>()).prop_map(move |(u, mut row, named)| {
            if named {
                row["u"] = json!(["named-uuid", "n"]);
            }
            op("insert")(json!({"uuid": u[1], "uuid-name": "n", "row": row}))
        }),
        4 => (condition(), row()).prop_map(move |(w, row)| op("update")(json!({"where": w, "row": row}))),
        5 => (condition(), prop::collection::vec(mutation(), 1..3))
            .prop_map(move |(w, m)| op("mutate")(json!({"where": w, "mutations": m}))),
        2 => condition().prop_map(move |w| op("delete")(json!({"where": w}))),
        4 => (condition(), columns()).prop_map(move |(w, c)| op("select")(json!({"where": w, "columns": c}))),
        1 => (condition(), columns(), row(), prop::sample::select(vec!["==", "!="])).prop_map(move |(w, c, row, until)| {
            op("wait")(json!({"where": w, "columns": c, "rows": [row], "until": until, "timeout": 0}))
        }),
        1 => prop::sample::select(vec![
            json!({"op": "comment", "comment": "x"}),
            json!({"op": "commit", "durable": true}),
            json!({"op": "commit", "durable": false}),
            json!({"op": "assert", "lock": "nobody"}),
            json!({"op": "abort"}),
        ]),
    ]
}
