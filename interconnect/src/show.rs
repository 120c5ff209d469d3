//! The answer of `routes/show`: every route that this zone could tell or learn, and why it does or does not.

use crate::model::Input;
use crate::output::{Key, Value};
use crate::plan::Plan;
use crate::units::routes::{Direction, Shown};
use std::fmt::Write;

/// What comes of a route.
enum State {
    /// The row is there, or is being written.
    Done { written: bool },
    /// Why not.
    Not(String),
}

/// One line for each route whose prefix or router begins with `of` (empty: all), under a line for each router and transit
/// switch. `refused` tells why a server refused a row.
pub fn routes(plan: &Plan, input: &Input, of: &str, refused: impl Fn(&Key) -> Option<String>) -> String {
    let (routes, unbound) = plan.routes(input);
    let mut out = String::new();
    let mut place = None;
    for s in routes.iter().filter(|s| s.prefix.starts_with(of) || s.router.starts_with(of)) {
        if place.replace((&s.router, &s.switch)) != Some((&s.router, &s.switch)) {
            let _ = writeln!(out, "router {} on {}", s.router, s.switch);
        }
        let done = match s.direction {
            Direction::Told => "told",
            Direction::Learned => "learned",
        };
        let (word, tail) = match state(s, plan, input, &refused) {
            State::Done { written: true } => (done.to_string(), String::new()),
            State::Done { written: false } => (done.to_string(), " (being written)".to_string()),
            State::Not(why) => (format!("not {done}"), format!(": {why}")),
        };
        let _ = writeln!(out, "  {word:<11} {}, {}{tail}", s.prefix, s.of);
    }
    for router in unbound.iter().filter(|r| r.starts_with(of)) {
        let _ =
            writeln!(out, "router {router}: none of its ports on transit switches is bound in the southbound database");
    }
    out
}

fn state(s: &Shown, plan: &Plan, input: &Input, refused: &impl Fn(&Key) -> Option<String>) -> State {
    let (key, value) = match &s.outcome {
        Err(reason) => return State::Not(reason.to_string()),
        Ok((key, value)) => (key, value),
    };
    if let Some(why) = refused(key) {
        return State::Not(format!("the server refused it: {why}"));
    }
    match plan.wanted(key) {
        Some(Value::Route(first)) if Value::Route(first.clone()) != *value => {
            State::Not(format!("duplicate: told already, of {} {}", first.source.row(), first.row))
        }
        _ => State::Done { written: input.icsb.present.row(key).or_else(|| input.nb.present.row(key)).is_some() },
    }
}
