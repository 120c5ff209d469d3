//! What options of ovn-nb(5) that no recorded situation sets lead to: northbound content, and the flows and columns that it must
//! or must not yield. The expectations are what ovn-northd 26.03 put out for the same content.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod balancers;
mod fixtures;
mod nat;
mod routers;
mod rows;
mod switches;

use fixtures::compiled;
use northd::model::Key;

#[test]
fn options_have_their_flows() {
    let mut wrong = Vec::new();
    let cases = [nat::CASES, balancers::CASES, routers::CASES, switches::CASES];
    for (name, change, expected) in cases.into_iter().flatten() {
        let c = compiled(change);
        let flows: Vec<_> = c
            .engine()
            .outputs()
            .iter()
            .filter_map(|(k, _)| if let Key::Flow(f) = k { Some(f) } else { None })
            .collect();
        for (there, stage, priority, matches, actions) in *expected {
            let found = flows.iter().any(|f| {
                f.stage == *stage && f.priority == *priority && &*f.matches == *matches && &*f.actions == *actions
            });
            if found != *there {
                let near: Vec<_> = flows
                    .iter()
                    .filter(|f| f.stage == *stage && f.priority == *priority)
                    .map(|f| format!("\n    {} | {}", f.matches, f.actions))
                    .collect();
                wrong.push(format!("{name}: {} {priority} {matches}: {found}{}", stage.name(), near.concat()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
