//! A program that runs, and what it takes.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A program that ends with its owner.
pub struct Running(Child);

impl Running {
    /// Starts a daemon whose sockets and logs are in a folder.
    pub fn start(mut c: Command, folder: &Path) -> Result<Running> {
        for key in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR", "OVS_DBDIR"] {
            c.env(key, folder);
        }
        c.env("OVS_SYSLOG_METHOD", "null").args(["-vconsole:off", "--log-file"]);
        let child = c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Running(child.with_context(|| format!("start {:?}", c.get_program()))?))
    }

    /// Seconds that its threads have run.
    pub fn ran(&self) -> f64 {
        // What threads that ended meanwhile have used is in the process' own count (proc(5): utime and stime, in hundredths).
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, a)| a);
        let fields: Vec<f64> = after.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
        (fields.get(11).unwrap_or(&0.0) + fields.get(12).unwrap_or(&0.0)) / 100.0
    }

    /// Seconds that the threads which are there have run, to the nanosecond.
    pub fn threads_ran(&self) -> f64 {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.0.id())) else { return 0.0 };
        let texts = tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok());
        texts.filter_map(|t| t.split(' ').next()?.parse::<f64>().ok()).sum::<f64>() / 1e9
    }

    /// Megabytes: at most so far, and now.
    pub fn memory(&self) -> (f64, f64) {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = |key: &str| {
            let l = text.lines().find_map(|l| l.strip_prefix(key));
            l.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
        };
        (line("VmHWM:"), line("VmRSS:"))
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|s| s.is_some())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
