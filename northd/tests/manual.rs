//! Every column of the northbound schema and every option of ovn-nb(5) is read by the compiler, or says why not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovn_schema::nb;
use std::path::Path;

/// Columns that are none of northd's: those of the database server's own configuration.
const SERVER: [&str; 2] = ["Connection", "SSL"];

/// Columns that northd does not read, and why.
const UNREAD: &[(&str, &str, &str)] = &[
    ("NB_Global", "connections", "the database server's"),
    ("NB_Global", "ssl", "the database server's"),
    ("NB_Global", "sb_cfg_timestamp", "written only"),
    ("NB_Global", "hv_cfg_timestamp", "written only"),
];

/// The compiler's sources without comments.
fn sources() -> String {
    fn add(dir: &Path, out: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                for line in std::fs::read_to_string(path).unwrap().lines() {
                    out.push_str(line.split("//").next().unwrap_or_default());
                    out.push('\n');
                }
            }
        }
    }
    let mut out = String::new();
    add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut out);
    out
}

/// Whether a field of this name is looked at anywhere.
fn has_field(sources: &str, name: &str) -> bool {
    let name = if ["match", "type"].contains(&name) { format!("r#{name}") } else { name.to_ascii_lowercase() };
    sources.match_indices(&format!(".{name}")).any(|(i, m)| {
        let next = sources[i + m.len()..].chars().next().unwrap_or(' ');
        !next.is_alphanumeric() && next != '_'
    })
}

#[test]
fn every_column_is_read() {
    let sources = sources();
    let schema = nb::Database::schema();
    let mut unread = Vec::new();
    for (table, ts) in schema.tables.iter().filter(|(t, _)| !SERVER.contains(&t.as_str())) {
        for column in ts.columns.iter().map(|c| c.name.as_str()) {
            let listed = UNREAD.iter().any(|(t, c, _)| *t == table && *c == column);
            let read = has_field(&sources, column);
            assert!(!(listed && read), "{table} {column} is read after all");
            if !listed && !read {
                unread.push(format!("{table} {column}"));
            }
        }
    }
    assert!(unread.is_empty(), "columns that nobody reads: {unread:#?}");
}

#[test]
fn every_option_is_read() {
    let sources = sources();
    let mut unread = Vec::new();
    let lines = include_str!("options.txt").lines();
    for line in lines.clone() {
        let (option, why) = line.split_once(" | ").map_or((line, None), |(o, w)| (o, Some(w)));
        let name = option.rsplit(' ').next().unwrap();
        let read = sources.contains(&format!("\"{name}\""));
        assert!(!(read && why.is_some_and(|w| w.starts_with("has no effect"))), "{option} is read after all");
        if !read && why.is_none() {
            unread.push(option);
        }
    }
    assert!(lines.count() > 250);
    assert!(unread.is_empty(), "options that nobody reads: {unread:#?}");
}
