//! Statistics of the machine: `Open_vSwitch:statistics` (ovs-vswitchd.conf.db(5), `other_config:enable-statistics`).

use ovn_schema::{Map, Str};
use std::collections::HashMap;
use std::path::Path;

/// Milliseconds of a tick, in which /proc counts processor time.
const TICK: u64 = 10;

/// Types of local file systems.
const LOCAL: [&str; 11] = ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "vfat", "xfs", "zfs"];

/// Processors, load, memory, file systems, and the daemons that have a pidfile in the run directory. A value that
/// cannot be read is left out.
pub fn statistics(rundir: &Path) -> Map<Str, Str> {
    let mut m: Map<Str, Str> = Map::new();
    let mut put = |key: &str, value: Option<String>| m.extend(value.map(|v| (Str::from(key), Str::from(v.as_str()))));
    put("cpu", std::thread::available_parallelism().ok().map(|n| n.to_string()));
    let read = |file: &str| std::fs::read_to_string(file).ok();
    put("load_average", read("/proc/loadavg").and_then(|t| load(&t)));
    put("memory", read("/proc/meminfo").and_then(|t| memory(&t)));
    put("file_systems", read("/proc/self/mounts").map(|t| file_systems(&t)).filter(|t| !t.is_empty()));
    let pidfiles = std::fs::read_dir(rundir).into_iter().flatten().flatten().map(|f| f.path());
    for file in pidfiles.filter(|p| p.extension().is_some_and(|e| e == "pid")) {
        let running = daemon::pidfile::holder(&file).ok().flatten();
        if let (Some(pid), Some(name)) = (running, file.file_stem()) {
            put(&format!("process_{}", name.to_string_lossy()), process(pid));
        }
    }
    m
}

/// /proc/PID/stat (proc_pid_stat(5)): the name, and the fields from the third on.
fn stat(pid: i32) -> Option<(String, Vec<String>)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
    Some((name.into(), rest.split_whitespace().map(String::from).collect()))
}

/// Kilobytes of virtual memory and of resident memory, milliseconds of processor time, crashes that a monitor saw,
/// milliseconds since the monitor and the process were started, and its processor.
fn process(pid: i32) -> Option<String> {
    let (name, words) = stat(pid)?;
    // The manual counts fields from 1; `w` begins with the third.
    let number = |w: &[String], n: usize| w.get(n - 3)?.parse::<u64>().ok();
    let up = std::fs::read_to_string("/proc/uptime").ok()?;
    let up = (up.split_whitespace().next()?.parse::<f64>().ok()? * 1000.0) as u64;
    let age = |w: &[String]| Some(up.saturating_sub(number(w, 22)? * TICK));
    let resident = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = resident.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()).unwrap_or("0");
    let of_processors = (number(&words, 14)? + number(&words, 15)?) * TICK;
    let (mut booted, mut crashes) = (age(&words)?, 0);
    let parent = number(&words, 4)? as i32;
    if let Some((_, w)) = stat(parent).filter(|(n, _)| *n == name)
        && let Some(seen) = std::fs::read(format!("/proc/{parent}/cmdline")).ok().and_then(|t| monitored(&t))
    {
        (booted, crashes) = (age(&w)?, seen);
    }
    let values = [
        number(&words, 23)? / 1024,
        resident.parse().ok()?,
        of_processors,
        crashes,
        booted,
        age(&words)?,
        number(&words, 39)?,
    ];
    Some(values.map(|v| v.to_string()).join(","))
}

/// How many crashes of its process a monitor has seen, which its command line says; none if it is no monitor.
fn monitored(command_line: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(command_line);
    let (_, after) = text.split_once("monitoring pid ")?;
    let crashes = after.split_once('(').and_then(|(_, t)| t.split_once(" crashes"));
    Some(crashes.and_then(|(n, _)| n.parse().ok()).unwrap_or(0))
}

/// The three averages of /proc/loadavg.
fn load(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    (words.len() == 3).then(|| words.join(","))
}

/// Memory in kilobytes: total, used, cached; then swap: total, used (proc_meminfo(5)).
fn memory(text: &str) -> Option<String> {
    let all: HashMap<&str, u64> = text
        .lines()
        .filter_map(|l| {
            let (key, rest) = l.split_once(':')?;
            Some((key, rest.split_whitespace().next()?.parse().ok()?))
        })
        .collect();
    let get = |key: &str| all.get(key).copied();
    let (total, swap) = (get("MemTotal")?, get("SwapTotal")?);
    let used = total.saturating_sub(get("MemFree")?);
    let cached = get("Buffers")? + get("Cached")?;
    let swapped = swap.saturating_sub(get("SwapFree")?);
    Some([total, used, cached, swap, swapped].map(|n| n.to_string()).join(","))
}

/// Writable local file systems: mount point, kilobytes in total and used.
fn file_systems(mounts: &str) -> String {
    let one = |l: &str| {
        let [_, place, kind, options] = l.split(' ').take(4).collect::<Vec<_>>().try_into().ok()?;
        let writable = options.split(',').any(|o| o == "rw");
        if !writable || !LOCAL.contains(&kind) {
            return None;
        }
        let s = nix::sys::statvfs::statvfs(place).ok()?;
        let kilobytes = |blocks: u64| blocks.saturating_mul(s.fragment_size()) / 1024;
        let used = s.blocks().saturating_sub(s.blocks_free());
        Some(format!("{},{},{}", place.replace([' ', ','], "_"), kilobytes(s.blocks()), kilobytes(used)))
    };
    mounts.lines().filter_map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(load("0.10 1.20 3.45 2/511 77\n"), Some("0.10,1.20,3.45".into()));
        let text =
            "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 20 kB\nCached: 200 kB\nSwapTotal: 50 kB\nSwapFree: 40 kB\n";
        assert_eq!(memory(text), Some("1000,700,220,50,10".into()));
        assert_eq!((memory("MemTotal: 1 kB"), load("")), (None, None));
        assert_eq!(monitored(b"ovs-vswitchd: monitoring pid 7 (healthy)\0"), Some(0));
        assert_eq!(monitored(b"x: monitoring pid 9 (3 crashes: pid 7 died, killed (Aborted))\0"), Some(3));
        assert_eq!(monitored(b"ovs-vswitchd\0--monitor\0"), None);
        let own = process(std::process::id().cast_signed()).expect("this process");
        let numbers: Vec<u64> = own.split(',').map(|n| n.parse().expect("a number")).collect();
        assert!(numbers.len() == 7 && numbers[0] > numbers[1] && numbers[1] > 0 && numbers[4] == numbers[5], "{own}");
        assert_eq!(file_systems("proc /proc proc rw 0 0\n/dev/x /no/such/place ext4 rw 0 0\n"), "");
    }
}
