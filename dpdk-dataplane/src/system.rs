//! How the machine is: `Open_vSwitch:statistics` (ovs-vswitchd.conf.db(5), `other_config:enable-statistics`).

use ovn_schema::{Map, Str};
use std::collections::HashMap;

/// File systems on disks of the machine's own.
const LOCAL: [&str; 11] = ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "vfat", "xfs", "zfs"];

/// Processors, load, memory and file systems; what the kernel does not tell is left out.
pub fn statistics() -> Map<Str, Str> {
    let mut m: Map<Str, Str> = Map::new();
    let mut put = |key: &str, value: Option<String>| m.extend(value.map(|v| (Str::from(key), Str::from(v.as_str()))));
    put("cpu", std::thread::available_parallelism().ok().map(|n| n.to_string()));
    let read = |file: &str| std::fs::read_to_string(file).ok();
    put("load_average", read("/proc/loadavg").and_then(|t| load(&t)));
    put("memory", read("/proc/meminfo").and_then(|t| memory(&t)));
    put("file_systems", read("/proc/self/mounts").map(|t| file_systems(&t)).filter(|t| !t.is_empty()));
    m
}

/// The first three words of /proc/loadavg.
fn load(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    (words.len() == 3).then(|| words.join(","))
}

/// Kilobytes of memory: all, in use, of that what could be given back, swap, of that in use (proc_meminfo(5)).
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

/// Local file systems that can be written: where, and kilobytes of all and in use.
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
        assert_eq!(file_systems("proc /proc proc rw 0 0\n/dev/x /no/such/place ext4 rw 0 0\n"), "");
    }
}
