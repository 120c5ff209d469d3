//! Holds the controller against recorded situations: `cargo run --release -p controller --example golden-controller -- [DIR [TEXT]]`.
//!
//! DIR is a folder of cases (`NAME.tar.zst`), by default that of the tests; with TEXT only cases whose name has it, with
//! all that differs. A case agrees when all flow tables of all its chassis do. Ends with
//! `golden controller: A of N cases agree`.
#![allow(clippy::unwrap_used, reason = "recorded data that cannot be read is no use")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let archives = match args.next().map(PathBuf::from) {
        Some(dir) if !dir.is_dir() => {
            eprintln!("{}: no such folder", dir.display());
            return ExitCode::FAILURE;
        }
        Some(dir) => golden::archives_in(&dir),
        None => golden::archives(),
    };
    let only = args.next();
    let (mut agree, mut total, mut tables, mut all_tables) = (0, 0, 0, 0);
    for archive in archives {
        if only.as_ref().is_some_and(|o| !archive.to_string_lossy().contains(o)) {
            continue;
        }
        let compared = common::case(&archive);
        if compared.is_empty() {
            continue;
        }
        let differing: Vec<&common::Compared> =
            compared.iter().filter(|(_, o)| !o.missing.is_empty() || !o.extra.is_empty()).collect();
        total += 1;
        agree += usize::from(differing.is_empty());
        all_tables += compared.len();
        tables += compared.len() - differing.len();
        for (name, o) in differing {
            println!("controller: {name}: {} missing, {} extra, {} agree", o.missing.len(), o.extra.len(), o.same);
            if only.is_some() {
                o.missing.iter().for_each(|l| println!("  - {l}"));
                o.extra.iter().for_each(|l| println!("  + {l}"));
            }
        }
    }
    println!("controller: {tables} of {all_tables} flow tables agree");
    println!("golden controller: {agree} of {total} cases agree");
    ExitCode::SUCCESS
}
