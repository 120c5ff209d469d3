//! The recorded situations, read from their archives.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The folder of the recorded situations; where there is none, the test is skipped.
pub fn golden() -> Option<PathBuf> {
    let shared = std::env::var_os("ISTHMUS_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let dir = shared.join("reference/golden");
    if !dir.is_dir() {
        needs::skip("../shared/reference/golden is absent");
        return None;
    }
    Some(dir)
}

/// The databases of each snapshot of a case: (snapshot and zone, northbound, southbound).
pub fn snapshots(archive: &Path) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let bytes = std::fs::read(archive).unwrap();
    let tar = zstd::decode_all(&bytes[..]).unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for entry in tar::Archive::new(&tar[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.ends_with(".db") && !name.contains("conf") && !name.starts_with("ic-") {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(path, content);
        }
    }
    let mut out = Vec::new();
    for (path, nb) in &files {
        let Some(stem) = path.strip_suffix("nb.db") else { continue };
        if let Some(sb) = files.get(&format!("{stem}sb.db")) {
            let parts: Vec<&str> = stem.split('/').collect();
            out.push((parts[parts.len() - 2..].join("/"), nb.clone(), sb.clone()));
        }
    }
    out
}

/// The archives, in the order of their names.
pub fn archives(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "zst"))
        .collect();
    all.sort();
    all
}
