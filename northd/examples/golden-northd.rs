//! Holds the compiler against recorded situations: `cargo run --release -p northd --example golden-northd -- [DIR [TEXT]]`.
//!
//! DIR is a folder of cases (`NAME.tar.zst`), by default that of the tests; with TEXT only cases whose name has it, with
//! all that differs. Ends with `golden northd: A of N cases agree`.

#![allow(clippy::unwrap_used, reason = "recorded data that cannot be read is no use")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/compare.rs"]
mod compare;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next().map(PathBuf::from).or_else(common::golden) else {
        return ExitCode::SUCCESS;
    };
    if !dir.is_dir() {
        eprintln!("{}: no such folder", dir.display());
        return ExitCode::FAILURE;
    }
    let only = args.next();
    let cases = compare::all(&dir, only.as_deref());
    for (case, found) in cases.iter().filter(|(_, c)| !c.differences.is_empty()) {
        let places: Vec<String> =
            compare::places(&found.differences).iter().map(|(p, n)| format!("{p} ({n})")).collect();
        println!("northd: {case}: {}", places.join(", "));
        if only.is_some() {
            for (snapshot, place, text) in &found.differences {
                println!("  {snapshot} {place} {text}");
            }
        }
    }
    let hints = cases.values().filter(|c| c.hints.is_empty()).count();
    println!("golden northd, the northbound rows that flows are for: {hints} of {} cases agree", cases.len());
    let agree = cases.values().filter(|c| c.differences.is_empty()).count();
    println!("golden northd: {agree} of {} cases agree", cases.len());
    ExitCode::SUCCESS
}
