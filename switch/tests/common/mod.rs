//! The recorded situations, read from their archives.

use std::io::Read;
use std::path::PathBuf;

fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("ISTHMUS_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let dir = shared.join("reference/golden");
    dir.is_dir().then_some(dir)
}

/// All files whose name ends in one of `suffixes`, as (archive/path, text).
pub fn golden(suffixes: &[&str]) -> Option<Vec<(String, String)>> {
    let Some(dir) = folder() else {
        eprintln!("skipped: ../shared is absent");
        return None;
    };
    let mut out = Vec::new();
    let mut names: Vec<PathBuf> = std::fs::read_dir(dir).ok()?.filter_map(|e| e.ok().map(|e| e.path())).collect();
    names.sort();
    for path in names.iter().filter(|p| p.to_string_lossy().ends_with(".tar.zst")) {
        let file = std::fs::File::open(path).expect("golden archive opens");
        let mut tar = tar::Archive::new(zstd::Decoder::new(file).expect("zstd stream"));
        for entry in tar.entries().expect("tar") {
            let mut entry = entry.expect("tar entry");
            let name = entry.path().expect("path").to_string_lossy().into_owned();
            if suffixes.iter().any(|s| name.ends_with(s)) {
                let mut text = String::new();
                entry.read_to_string(&mut text).expect("text");
                out.push((name, text));
            }
        }
    }
    Some(out)
}
