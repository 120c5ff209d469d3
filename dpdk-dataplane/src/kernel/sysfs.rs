//! Speed, duplex and counters of network devices from /sys/class/net.

use std::path::{Path, PathBuf};

/// Counters of `Interface:statistics` beside packets and bytes: the name there, the kernel's name, and the kernel's
/// name for taps, where the kernel sends what the switch receives.
const COUNTERS: [(&str, &str, &str); 10] = [
    ("collisions", "collisions", "collisions"),
    ("rx_crc_err", "rx_crc_errors", "rx_crc_errors"),
    ("rx_dropped", "rx_dropped", "tx_dropped"),
    ("rx_errors", "rx_errors", "tx_errors"),
    ("rx_frame_err", "rx_frame_errors", "rx_frame_errors"),
    ("rx_missed_errors", "rx_missed_errors", "rx_missed_errors"),
    ("rx_multicast_packets", "multicast", "multicast"),
    ("rx_over_err", "rx_over_errors", "rx_over_errors"),
    ("tx_dropped", "tx_dropped", "rx_dropped"),
    ("tx_errors", "tx_errors", "rx_errors"),
];

/// The folder of a device. `None` if /sys shows another network namespace than that of the process.
fn folder(name: &str, index: u32) -> Option<PathBuf> {
    let folder = Path::new("/sys/class/net").join(name);
    (number(&folder, "ifindex") == Some(index.into())).then_some(folder)
}

fn text(folder: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(folder.join(file)).ok().map(|s| s.trim().to_string())
}

fn number(folder: &Path, file: &str) -> Option<i64> {
    text(folder, file)?.parse().ok()
}

/// Speed in megabits a second, and whether it is full duplex; `None` if the device has no speed or is down.
pub fn speed(name: &str, index: u32) -> Option<(u32, bool)> {
    let folder = folder(name, index)?;
    let speed = number(&folder, "speed").and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)?;
    Some((speed, text(&folder, "duplex").as_deref() == Some("full")))
}

/// Counters of a device beside packets and bytes, as column `statistics` names them.
pub fn counters(name: &str, index: u32, tap: bool) -> impl Iterator<Item = (&'static str, i64)> {
    let folder = folder(name, index);
    COUNTERS.iter().filter_map(move |(ours, plain, turned)| {
        let file = if tap { turned } else { plain };
        Some((*ours, number(&folder.as_ref()?.join("statistics"), file)?))
    })
}
