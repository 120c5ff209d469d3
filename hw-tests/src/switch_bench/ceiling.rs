//! testpmd: what the devices allow where nothing is done with a packet.

use super::meter;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It ended, or ends now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last counters of packets that every second port sent, of so many pairs, in all.
fn sent(text: &str, pairs: usize) -> Option<u64> {
    let port = |n: usize| {
        let at = text.rfind(&format!("statistics for port {} ", 2 * n + 1))?;
        let after = text[at..].split("TX-packets:").nth(1)?;
        after.split_whitespace().next()?.parse::<u64>().ok()
    };
    (0..pairs).map(port).sum()
}

/// Millions of packets a second from files to nowhere.
///
/// # Errors
/// testpmd does not start.
pub fn measure(input: &[PathBuf], dir: &Path) -> Result<f64> {
    let log = dir.join("testpmd.out");
    let out = std::fs::File::create(&log)?;
    // The driver keeps all of a file in packets.
    let (packets, memory) = (262_144 * input.len() - 1, 2048 * input.len());
    let devices = input.iter().enumerate().flat_map(|(n, f)| {
        let source = format!("net_pcap{n},rx_pcap={},infinite_rx=1", f.display());
        ["--vdev".into(), source, "--vdev".into(), format!("net_null{n},no-rx=1")]
    });
    let child = Command::new("dpdk-testpmd")
        .args([
            "--no-huge",
            "-m",
            &memory.to_string(),
            "--no-pci",
            "--no-shconf",
            "--no-telemetry",
            "--file-prefix",
            "isthmus-bench",
        ])
        .args(["-l", "0,1"])
        .args(devices)
        .args(["--", "--forward-mode=io", "--auto-start", "--stats-period=1"])
        .arg(format!("--total-num-mbufs={packets}"))
        .env("RUNTIME_DIRECTORY", dir)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .context("dpdk-testpmd")?;
    let running = Running(child);
    let pid = running.0.id();
    let mut last = 0;
    let count = || {
        // At the moment that the next figures appear. It reads all files before the first.
        for _ in 0..6000 {
            let n = sent(&String::from_utf8_lossy(&std::fs::read(&log)?), input.len()).unwrap_or(0);
            if n > last {
                last = n;
                let time = meter::processor_time(pid)?;
                return Ok(meter::Look { packets: n, from: time, to: time });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("dpdk-testpmd forwards nothing; see {}", log.display())
    };
    meter::rate(count)
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_are_found() {
        let text = "statistics for port 1 ##\n  RX-packets: 0 \n  TX-packets: 1 \n statistics for port 0 \n TX-packets: 9\n \
                    statistics for port 1 \n RX-packets: 5\n TX-packets: 77         TX-errors: 0\n \
                    statistics for port 3 \n TX-packets: 4\n statistics for port 11 \n TX-packets: 1000";
        assert_eq!(super::sent(text, 1), Some(77));
        assert_eq!(super::sent(text, 2), Some(81));
        assert_eq!(super::sent(text, 3), None);
        assert_eq!(super::sent("TX-packets: 4", 1), None);
    }
}
