//! DPDK's run-time directories: each process has one, and a killed process leaves its own behind.

use crate::config::dpdk::RUNDIR_PREFIX;
use std::path::{Path, PathBuf};

/// Where DPDK keeps them: `$RUNTIME_DIRECTORY/dpdk` under systemd, `/var/run/dpdk` otherwise.
fn place() -> PathBuf {
    let base = std::env::var_os("RUNTIME_DIRECTORY").map_or_else(|| PathBuf::from("/var/run"), PathBuf::from);
    base.join("dpdk")
}

/// Removes the directories of processes that are gone.
pub fn sweep() {
    sweep_in(&place(), |pid| Path::new("/proc").join(pid.to_string()).exists());
}

/// Removes this process's own directory.
pub fn remove_own() {
    // If this fails, the next start removes it.
    let _ = std::fs::remove_dir_all(place().join(format!("{RUNDIR_PREFIX}{}", std::process::id())));
}

fn sweep_in(dir: &Path, alive: impl Fn(u32) -> bool) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(RUNDIR_PREFIX)?.parse().ok());
        if pid.is_some_and(|p| !alive(p)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_ones_go() {
        let dir = tempfile::tempdir().expect("directory");
        for n in ["isthmus-1", "isthmus-2", "isthmus-x", "rte"] {
            std::fs::create_dir(dir.path().join(n)).expect(n);
        }
        sweep_in(dir.path(), |pid| pid == 1);
        let left = |n: &str| dir.path().join(n).exists();
        assert!(left("isthmus-1") && !left("isthmus-2") && left("isthmus-x") && left("rte"));
    }
}
