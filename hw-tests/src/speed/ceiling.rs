//! testpmd: what the devices allow where nothing is done with a packet.

use super::meter;
use anyhow::{Context, Result};
use std::path::Path;
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

/// The last counter of packets that the second port sent.
fn sent(text: &str) -> Option<u64> {
    let at = text.rfind("statistics for port 1")?;
    let after = text[at..].split("TX-packets:").nth(1)?;
    after.split_whitespace().next()?.parse().ok()
}

/// Millions of packets a second from a file to nowhere.
///
/// # Errors
/// testpmd does not start.
pub fn measure(input: &Path, dir: &Path) -> Result<f64> {
    let log = dir.join("testpmd.out");
    let out = std::fs::File::create(&log)?;
    let child = Command::new("dpdk-testpmd")
        .args([
            "--no-huge",
            "-m",
            "2048",
            "--no-pci",
            "--no-shconf",
            "--no-telemetry",
            "--file-prefix",
            "isthmus-bench",
        ])
        .args(["-l", "0,1", "--vdev", &format!("net_pcap0,rx_pcap={},infinite_rx=1", input.display())])
        .args(["--vdev", "net_null0,no-rx=1", "--", "--forward-mode=io", "--auto-start", "--stats-period=1"])
        .arg("--total-num-mbufs=262143")
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
        // At the moment that the next figures appear.
        for _ in 0..500 {
            let n = sent(&String::from_utf8_lossy(&std::fs::read(&log)?)).unwrap_or(0);
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
        let text = "statistics for port 1 ##\n  RX-packets: 0 \n  TX-packets: 1 \n statistics for port 0\n TX-packets: 9\n \
                    statistics for port 1\n RX-packets: 5\n TX-packets: 77         TX-errors: 0";
        assert_eq!(super::sent(text), Some(77));
        assert_eq!(super::sent("TX-packets: 4"), None);
    }
}
