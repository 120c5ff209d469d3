//! Reads the golden data: recorded situations of the C daemons, one `NAME.tar.zst` each, in
//! `../shared/reference/golden` beside the repository (or `$ISTHMUS_SHARED/reference/golden`).
//! Where that folder is absent, tests that need it are skipped.

use std::collections::BTreeMap;
use std::io::{Error, Read};
use std::path::{Path, PathBuf};

/// One recorded situation.
#[derive(Debug, Clone)]
pub struct Case {
    /// The file's name without its ending.
    pub name: String,
    /// The snapshots in order; each holds its files by name (`nb.db`, `sb.db`, `hv1.flows`, …).
    pub snapshots: Vec<BTreeMap<String, Vec<u8>>>,
    /// The case's description, `case.json`.
    pub description: serde_json::Value,
}

/// The folder of golden data, if it is there.
pub fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("ISTHMUS_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let golden = shared.join("reference/golden");
    golden.is_dir().then_some(golden)
}

/// The archives, sorted by name; none where the folder is absent: the test is skipped.
pub fn archives() -> Vec<PathBuf> {
    let Some(folder) = folder() else {
        needs::skip("../shared/reference/golden is absent");
        return Vec::new();
    };
    archives_in(&folder)
}

/// The archives of any folder of cases, sorted by name.
pub fn archives_in(folder: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.to_string_lossy().ends_with(".tar.zst"))
        .collect();
    out.sort();
    out
}

/// Reads one archive.
///
/// # Errors
/// Where it cannot be read or is no such archive.
pub fn read(path: &Path) -> Result<Case, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().trim_end_matches(".tar.zst").to_string();
    let mut case = Case { name, snapshots: Vec::new(), description: serde_json::Value::Null };
    let mut archive = tar::Archive::new(zstd::Decoder::new(std::fs::File::open(path)?)?);
    let mut numbered: BTreeMap<usize, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let parts: Vec<String> = path.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        match parts.as_slice() {
            [.., file] if file == "case.json" => case.description = serde_json::from_slice(&bytes)?,
            [.., dir, file] if !file.starts_with('.') => {
                if let Ok(n) = dir.parse::<usize>() {
                    numbered.entry(n).or_default().insert(file.clone(), bytes);
                }
            }
            _ => {}
        }
    }
    case.snapshots = numbered.into_values().collect();
    Ok(case)
}

/// All files whose name ends in one of `suffixes`, as text, with their path within the archives (`NAME/0/hv1.flows`);
/// none where the folder is absent: the test is skipped.
///
/// # Panics
/// Where an archive cannot be read: the data that tests judge by is broken.
pub fn files(suffixes: &[&str]) -> Option<Vec<(String, String)>> {
    let archives = archives();
    if archives.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    for path in archives {
        let text = |e| panic!("{}: {e}", path.display());
        texts(&path, suffixes, &mut out).unwrap_or_else(text);
    }
    Some(out)
}

fn texts(path: &Path, suffixes: &[&str], out: &mut Vec<(String, String)>) -> Result<(), Error> {
    let mut archive = tar::Archive::new(zstd::Decoder::new(std::fs::File::open(path)?)?);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        if suffixes.iter().any(|s| name.ends_with(s)) {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            out.push((name, text));
        }
    }
    Ok(())
}
