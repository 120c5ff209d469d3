//! Which modules of a crate may import which: a rule that the compiler does not know, read from the sources.
//!
//! A *room* is a module of the crate's root: a folder `src/ROOM/` or a file `src/ROOM.rs`. Paths are found as they are written:
//! `use crate::…` with its braces, `crate::…` within code, and `super::…` as far as it leaves the file's room. What macros make is
//! not seen, nor are names that `lib.rs` re-exports, so rooms should not import those.

use std::path::{Path, PathBuf};

/// What the rooms of a crate may import.
pub struct Rule<'a> {
    /// Every room, and the rooms that it may import beside itself.
    pub rooms: &'a [(&'a str, &'a [&'a str])],
    /// Items (`room::Item`) that only these files, or files of these folders, may import, beside the item's own room.
    pub reserved: &'a [(&'a str, &'a [&'a str])],
}

impl Rule<'_> {
    /// Every breach in the sources in `src`, as text that names the file and the import; also rooms without a rule, and rules
    /// without a room. `lib.rs` and `main.rs` may import everything.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn breaches(&self, src: &Path) -> std::io::Result<Vec<String>> {
        let mut out = Vec::new();
        let mut there = Vec::new();
        for path in sources(src)? {
            let file = path.strip_prefix(src).unwrap_or(&path).to_string_lossy().into_owned();
            let module = module_of(&file);
            let Some(room) = module.first().cloned() else { continue };
            if !there.contains(&room) {
                there.push(room.clone());
            }
            let text = std::fs::read_to_string(&path)?;
            let Some((_, allowed)) = self.rooms.iter().find(|(r, _)| *r == room) else { continue };
            for import in imports(&text, &module) {
                let Some(other) = import.first().filter(|o| **o != room) else { continue };
                let path = import.join("::");
                if self.rooms.iter().any(|(r, _)| r == other) && !allowed.contains(&other.as_str()) {
                    let list = if allowed.is_empty() { "nothing".into() } else { allowed.join(", ") };
                    out.push(format!("{file} imports crate::{path}: {room} may import {list}"));
                }
                let holders =
                    self.reserved.iter().find(|(item, _)| path == *item || path.starts_with(&format!("{item}::")));
                if let Some((item, files)) = holders.filter(|(_, files)| !files.iter().any(|f| file.starts_with(f))) {
                    out.push(format!("{file} imports crate::{path}: {item} is reserved for {}", files.join(", ")));
                }
            }
        }
        out.extend(
            there.iter().filter(|r| !self.rooms.iter().any(|(o, _)| o == *r)).map(|r| format!("{r} has no rule")),
        );
        out.extend(
            self.rooms.iter().filter(|(r, _)| !there.iter().any(|t| t == r)).map(|(r, _)| format!("there is no {r}")),
        );
        Ok(out)
    }
}

/// All `.rs` files of a folder and those beneath, in the order of their names.
fn sources(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut entries = std::fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    let mut out = Vec::new();
    for path in entries {
        if path.is_dir() {
            out.extend(sources(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    Ok(out)
}

/// The module that a file holds, from the crate's root.
fn module_of(file: &str) -> Vec<String> {
    let mut parts: Vec<String> = file.trim_end_matches(".rs").split('/').map(String::from).collect();
    if parts.last().is_some_and(|p| p == "mod") || matches!(parts.as_slice(), [p] if p == "lib" || p == "main") {
        parts.pop();
    }
    parts
}

/// The paths from the crate's root that the text of a module names.
fn imports(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let text = without_comments(text);
    let mut out = Vec::new();
    let begins = |at: usize| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    };
    for (at, _) in text.match_indices("crate::").filter(|(at, _)| begins(*at)) {
        tree(&text[at + "crate::".len()..], &[], &mut out);
    }
    for (at, _) in text.match_indices("super::").filter(|(at, _)| begins(*at)) {
        let (mut rest, mut base) = (&text[at..], module.to_vec());
        while let Some(next) = rest.strip_prefix("super::") {
            base.pop();
            rest = next;
        }
        tree(rest, &base, &mut out);
    }
    out
}

/// Reads a path, or a group of paths in braces, at the beginning of `text`; gives what follows.
fn tree<'a>(text: &'a str, base: &[String], out: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            match rest.strip_prefix('}') {
                Some(after) => return after,
                None if rest.is_empty() => return rest,
                None => {
                    let after = tree(rest, base, out);
                    // `as NAME` is passed over.
                    rest = after.find([',', '}']).map_or("", |end| &after[end..]);
                }
            }
        }
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if name.is_empty() || name == "self" { base.to_vec() } else { [base, &[name.to_string()]].concat() };
    match rest.strip_prefix("::").filter(|_| !name.is_empty()) {
        Some(rest) if rest.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '{') => tree(rest, &path, out),
        _ => {
            out.push(path);
            rest
        }
    }
}

/// The text without line comments.
fn without_comments(text: &str) -> String {
    text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, module: &str) -> Vec<String> {
        let module: Vec<String> = module.split('/').map(String::from).collect();
        let mut all: Vec<String> = imports(text, &module).iter().map(|p| p.join("::")).collect();
        all.sort();
        all
    }

    #[test]
    fn paths_are_found_in_all_forms() {
        let uses = "use crate::{a, b::{self, C, d::E as F}};\nuse std::fmt;\nuse xcrate::no;";
        assert_eq!(paths(uses, "x"), ["a", "b", "b::C", "b::d::E"]);
        let code = "// crate::comment\nfn f(w: &crate::pmd::Main) -> crate::g::H { crate::k::run::<u8>(w) }";
        assert_eq!(paths(code, "x"), ["g::H", "k::run", "pmd::Main"]);
        assert_eq!(paths("use super::z::Y;\nuse super::super::q::R;", "x/y"), ["q::R", "x::z::Y"]);
    }

    #[test]
    fn breaches_name_the_file_and_the_import() {
        let dir = tempfile::tempdir().expect("directory");
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
            std::fs::write(path, text).expect(file);
        };
        write("lib.rs", "pub mod low; pub mod high; use crate::high::X;");
        write("low/mod.rs", "use crate::high::Thing;\nuse crate::low::own::Y;");
        write("high/a.rs", "use crate::low::{own, Tool};");
        write("high/tools.rs", "use crate::low::Tool;");
        write("other.rs", "");
        let rule = Rule {
            rooms: &[("low", &[]), ("high", &["low"]), ("gone", &[])],
            reserved: &[("low::Tool", &["high/tools.rs"])],
        };
        let mut breaches = rule.breaches(dir.path()).expect("sources");
        breaches.sort();
        let expected = [
            "high/a.rs imports crate::low::Tool: low::Tool is reserved for high/tools.rs",
            "low/mod.rs imports crate::high::Thing: low may import nothing",
            "other has no rule",
            "there is no gone",
        ];
        assert_eq!(breaches, expected);
    }
}
