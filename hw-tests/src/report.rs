//! What people see at the end.

use crate::scenario::Check;
use std::fmt::Write;

/// The table for the terminal.
pub fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for c in checks {
        let mark = if c.held { "ok    " } else { "FAILED" };
        let pad = " ".repeat(width - c.name.chars().count());
        let _ = writeln!(out, "{mark}  {}{pad}  {}", c.name, c.detail);
    }
    let held = checks.iter().filter(|c| c.held).count();
    let _ = writeln!(out, "{held} passed, {} failed", checks.len() - held);
    out
}
