//! From the golden southbound and local databases, the flows that OVN's own controller made of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

/// How many of the recorded flow tables, and flows, agree at least.
const TABLES: usize = 781;
const FLOWS: usize = 416_390;

#[test]
fn flows_agree_with_the_golden_tables() {
    let only = std::env::var("GOLDEN_CASE").unwrap_or_default();
    let (mut agree, mut total, mut same, mut differing) = (Vec::new(), 0, 0, Vec::new());
    for archive in golden::archives() {
        if !archive.to_string_lossy().contains(&only) {
            continue;
        }
        for (name, o) in common::case(&archive) {
            total += 1;
            same += o.same;
            if std::env::var_os("GOLDEN_DIFF").is_some() {
                o.missing.iter().for_each(|l| println!("- {name} {}", &l[..l.len().min(900)]));
                o.extra.iter().for_each(|l| println!("+ {name} {}", &l[..l.len().min(900)]));
            }
            if o.missing.is_empty() && o.extra.is_empty() {
                agree.push(name);
            } else {
                differing.push((o.missing.len() + o.extra.len(), name));
            }
        }
    }
    differing.sort();
    println!("{} of {total} flow tables agree; {same} flows agree", agree.len());
    for (n, name) in differing.iter().take(400) {
        println!("  {n} {name}");
    }
    // What agrees must go on to agree; docs/compatibility.md says what the others lack.
    if only.is_empty() && total > 0 {
        assert!(agree.len() >= TABLES, "{} flow tables agree, {TABLES} did", agree.len());
        assert!(same >= FLOWS, "{same} flows agree, {FLOWS} did");
    }
}
