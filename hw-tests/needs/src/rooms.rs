//! The rooms of a crate, and which of them may use which.
//!
//! A room is a module of the crate's root: a file `src/ROOM.rs`, with what is in `src/ROOM/`. Rooms are listed from the ground up; each
//! may use (`use crate::ROOM::…`, or a path that begins so) the rooms before it and none behind. So there is no circle of rooms,
//! and to understand one room takes only what is below.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that join the rooms and are used by none.
const ROOTS: [&str; 2] = ["lib", "main"];

/// Panics with each import that breaks the order, with rooms that are not in the list, and with names in it that are no rooms.
///
/// # Panics
/// As above, and if the sources cannot be read. This is for tests.
pub fn assert_order(src: impl AsRef<Path>, order: &[&str]) {
    let faults = faults(src.as_ref(), order);
    assert!(faults.is_empty(), "rooms of {}:\n{}", src.as_ref().display(), faults.join("\n"));
}

fn faults(src: &Path, order: &[&str]) -> Vec<String> {
    let floor: BTreeMap<&str, usize> = order.iter().enumerate().map(|(i, r)| (*r, i)).collect();
    let mut faults = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    for file in sources(src) {
        let path = file.strip_prefix(src).unwrap_or(&file);
        let Some(room) = room_of(path).filter(|r| !ROOTS.contains(&r.as_str())) else { continue };
        let Some(own) = floor.get(room.as_str()) else {
            faults.push(format!("{}: room {room} is not in the list", path.display()));
            continue;
        };
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        for (line, used) in used_rooms(&text) {
            if floor.get(used.as_str()).is_some_and(|other| other > own) {
                faults.push(format!("{}:{line}: {room} uses {used}, which is above it", path.display()));
            }
        }
        seen.push(room);
    }
    faults.extend(order.iter().filter(|r| seen.iter().all(|s| s != *r)).map(|r| format!("there is no room {r}")));
    faults
}

/// All `.rs` files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut list = Vec::new();
    for path in entries.map_while(Result::ok).map(|e| e.path()) {
        if path.is_dir() {
            list.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            list.push(path);
        }
    }
    list.sort();
    list
}

fn room_of(path: &Path) -> Option<String> {
    let first = Path::new(path.components().next()?.as_os_str());
    Some(first.file_stem()?.to_string_lossy().into_owned())
}

/// The rooms that a file names, with the number of the line: the first part of each path that begins with `crate::`. What is
/// behind `#[cfg(test)]` does not count: tests may use all.
fn used_rooms(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let code: Vec<&str> = text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
    let end = code.iter().position(|l| l.trim() == "#[cfg(test)]").filter(|at| {
        // A module of tests stands at a file's end; `mod tests;` may stand anywhere.
        code.get(at + 1).is_some_and(|l| l.trim_start().starts_with("mod ") && l.trim_end().ends_with('{'))
    });
    let mut group: Option<i32> = None;
    for (i, line) in code.iter().enumerate().take(end.unwrap_or(code.len())) {
        let mut rest = *line;
        // Names of a group (`use crate::{a, b::c}`) that goes on over lines.
        if let Some(depth) = group {
            group = take_group(rest, depth, &mut |name| found.push((i + 1, name)));
        }
        while let Some(at) = rest.find("crate::") {
            let before = rest.get(..at).and_then(|s| s.chars().last());
            rest = rest.get(at + "crate::".len()..).unwrap_or_default();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            if let Some(names) = rest.strip_prefix('{') {
                group = take_group(names, 1, &mut |name| found.push((i + 1, name)));
                break;
            }
            found.push((i + 1, identifier(rest)));
        }
    }
    found
}

fn identifier(s: &str) -> String {
    s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Finds the names of a group's own level; gives the depth that goes on in the next line, if it does.
fn take_group(s: &str, mut depth: i32, found: &mut impl FnMut(String)) -> Option<i32> {
    let mut begins = true;
    for (at, c) in s.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => begins = true,
            c if c.is_whitespace() => {}
            _ if depth == 1 && begins => {
                found(identifier(s.get(at..).unwrap_or_default()));
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            return None;
        }
    }
    Some(depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_groups_are_found() {
        let text = "//! crate::doc\nuse crate::a::{B, c::D};\nuse crate::{e::{F, g}, h,\n    i::J};\nfn f() { crate::k::l(); $crate::m; }\n\
                    // crate::n\n#[cfg(test)]\nmod tests {\n    use crate::o;\n}\n";
        let names: Vec<_> = used_rooms(text).into_iter().map(|(line, name)| format!("{line}{name}")).collect();
        assert_eq!(names, ["2a", "3e", "3h", "4i", "5k"]);
    }

    #[test]
    fn an_import_upwards_is_a_fault() {
        let src = std::env::temp_dir().join(format!("rooms-{}", std::process::id()));
        fs::create_dir_all(src.join("high")).expect("folder");
        let put = |name: &str, text: &str| fs::write(src.join(name), text).expect("file");
        put("lib.rs", "mod low;\nmod high;\npub use crate::high::part::X;\n");
        put("low.rs", "pub struct A;\n");
        put("high.rs", "mod part;\n");
        put("high/part.rs", "use crate::low::A;\nuse crate::high;\n");
        assert_eq!(faults(&src, &["low", "high"]), Vec::<String>::new());
        put("low.rs", "fn f() -> crate::high::part::X { todo!() }\n");
        assert_eq!(faults(&src, &["low", "high"]), ["low.rs:1: low uses high, which is above it"]);
        assert_eq!(faults(&src, &["low", "none"]).len(), 3);
        fs::remove_dir_all(&src).expect("removed");
    }
}
