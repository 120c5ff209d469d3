//! Objects held against the OpenAPI schema of their definition, as an API server does: types, required fields, enumerations,
//! bounds, and that an immutable field stays. Rules in CEL other than that are not evaluated.

use serde_json::Value;

/// Whether a number keeps to a bound.
type Holds = fn(i64, i64) -> bool;

/// What is wrong with an object that comes after another.
pub fn check(schema: &Value, old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    at("", schema, old, new, &mut wrong);
    wrong
}

fn at(path: &str, schema: &Value, old: Option<&Value>, new: &Value, wrong: &mut Vec<String>) {
    let mut say = |what: String| wrong.push(format!("{}: {what}", path.trim_start_matches('.')));
    let is = match schema["type"].as_str() {
        Some("object") => new.is_object(),
        Some("array") => new.is_array(),
        Some("string") => new.is_string(),
        Some("integer") => new.is_i64() || new.is_u64(),
        _ => true,
    };
    if !is {
        return say(format!("Invalid value: {new} must be of type {}", schema["type"]));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(new)
    {
        say(format!("Unsupported value: {new}"));
    }
    let size = new.as_array().map(Vec::len).or_else(|| new.as_str().map(|s| s.chars().count()));
    let number = new.as_i64().or(size.and_then(|s| i64::try_from(s).ok()));
    let bounds: [(&str, Holds); 6] = [
        ("minimum", |n, bound| n >= bound),
        ("maximum", |n, bound| n <= bound),
        ("minItems", |n, bound| n >= bound),
        ("maxItems", |n, bound| n <= bound),
        ("minLength", |n, bound| n >= bound),
        ("maxLength", |n, bound| n <= bound),
    ];
    for (name, holds) in bounds {
        if let (Some(bound), Some(number)) = (schema[name].as_i64(), number)
            && !holds(number, bound)
        {
            say(format!("Invalid value: {new}: {name} is {bound}"));
        }
    }
    if schema["format"] == "date-time" && !new.as_str().is_some_and(is_time) {
        say(format!("Invalid value: {new} is no time"));
    }
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    for rule in rules.filter(|r| r["rule"] == "self == oldSelf" && old.is_some_and(|old| old != new)) {
        say(format!("Invalid value: {}", rule["message"].as_str().unwrap_or_default()));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if new.get(name).is_none_or(Value::is_null) {
            say(format!("Required value: {name}"));
        }
    }
    if let (Some(properties), Some(map)) = (schema["properties"].as_object(), new.as_object()) {
        for (name, value) in map {
            let old = old.and_then(|o| o.get(name));
            match properties.get(name) {
                Some(schema) => at(&format!("{path}.{name}"), schema, old, value, wrong),
                None => wrong.push(format!("{}.{name}: unknown field", path.trim_start_matches('.'))),
            }
        }
    }
    // Lists whose elements have keys name each once.
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    for (i, value) in new.as_array().into_iter().flatten().enumerate() {
        at(&format!("{path}[{i}]"), &schema["items"], None, value, wrong);
        let same = |other: &Value| {
            keys.is_some_and(|keys| keys.iter().filter_map(Value::as_str).all(|k| other[k] == value[k]))
        };
        if new.as_array().into_iter().flatten().take(i).any(same) {
            wrong.push(format!("{}[{i}]: Duplicate value", path.trim_start_matches('.')));
        }
    }
}

/// A time of RFC 3339 in UTC.
fn is_time(text: &str) -> bool {
    let form = text.bytes().map(|b| if b.is_ascii_digit() { b'0' } else { b });
    form.eq(*b"0000-00-00T00:00:00Z")
}
