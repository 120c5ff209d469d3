//! That a daemon which cannot do its work waits: it hardly wakes up, and says why in few lines.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A daemon; it ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Options that name [`useless_files`].
pub const USELESS: [&str; 3] = ["--private-key=key", "--certificate=cert", "--ca-cert=ca"];

/// What a process has taken of the machine.
#[derive(Clone, Copy, Debug)]
struct Taken {
    time: Duration,
    /// How often its threads went to sleep: once for each time that something woke them.
    wakeups: u64,
}

impl Taken {
    /// So far, by all threads (proc_pid_stat(5), proc_pid_status(5)).
    fn by(process: u32) -> Option<Taken> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, in parentheses, may have blanks. Clock ticks are 10 ms long on Linux.
        let fields: Vec<u64> = text.rsplit_once(')')?.1.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        let time = Duration::from_millis((fields.get(11)? + fields.get(12)?) * 10);
        let mut wakeups = 0;
        for task in std::fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten() {
            // A thread may end meanwhile.
            let text = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let line = text.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            wakeups += line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Some(Taken { time, wakeups })
    }
}

/// How often a daemon may wake up in a second that has a few peers to look for.
pub const WAKEUPS: u64 = 15;

/// Looks at a process for a while, and says that it did not wait: it woke up more often than `most` times a second, or took more
/// than 5 % of a processor.
///
/// How often it wakes up is the same on each machine. What a wakeup costs is not: 0.1 ms on most, and 5 ms on a virtual machine whose
/// memory the host has taken away, so the limit of time is there for loops that spin, and what a daemon takes is measured by
/// `make bench-idle`.
///
/// # Errors
/// What it took; it ended.
pub fn quiet(process: u32, most: u64, span: Duration) -> Result<(), String> {
    let before = Taken::by(process);
    std::thread::sleep(span);
    let (Some(before), Some(after)) = (before, Taken::by(process)) else { return Err("it ended".into()) };
    let (time, wakeups) = (after.time.saturating_sub(before.time), after.wakeups.saturating_sub(before.wakeups));
    if time * 20 <= span && wakeups <= most * span.as_secs() {
        return Ok(());
    }
    Err(format!("{time:?} of processor time and {wakeups} wakeups in {span:?}"))
}

/// Runs a program with these options in a directory, where it writes its log, `log`.
///
/// # Panics
/// It ends; after the first three seconds it is not [`quiet`]; it logs thirty lines or more.
pub fn waits(program: &str, dir: &Path, options: &[&str]) {
    let mut command = Command::new(program);
    command.args(options).args(["--unixctl=none", "--log-file=log", "-vconsole:off"]).current_dir(dir);
    command.envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir))).env("OVS_SYSLOG_METHOD", "null");
    let child = command.stderr(Stdio::null()).spawn();
    let mut running = Running(child.unwrap_or_else(|e| panic!("{program}: {e}")));
    std::thread::sleep(Duration::from_secs(3));
    let looked = quiet(running.0.id(), WAKEUPS, Duration::from_secs(10));
    assert!(matches!(running.0.try_wait(), Ok(None)), "it ended");
    let log = std::fs::read_to_string(dir.join("log")).unwrap_or_else(|e| panic!("its log: {e}"));
    looked.unwrap_or_else(|e| panic!("{e} with {options:?}:\n{log}"));
    assert!(log.lines().count() < 30, "{log}");
}

/// The address, with `ssl:`, of a peer that ends every handshake of TLS. It is there as long as the test's process.
///
/// # Panics
/// There is no socket for it.
pub fn peer_without_tls() -> String {
    let peer = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("a TCP socket: {e}"));
    let address = peer.local_addr().unwrap_or_else(|e| panic!("its address: {e}"));
    std::thread::spawn(move || peer.incoming().for_each(drop));
    format!("ssl:{address}")
}

/// Puts files into a directory that hold neither a key nor a certificate; [`USELESS`] names them.
///
/// # Panics
/// The directory cannot be written.
pub fn useless_files(dir: &Path) {
    for name in ["key", "cert", "ca"] {
        std::fs::write(dir.join(name), "no certificate\n").unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    }
}
