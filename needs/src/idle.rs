//! That a daemon which cannot do its work waits: it takes below 1 % of a processor, and says why in few lines.

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

/// Processor time of a process so far, in clock ticks of 10 ms (proc_pid_stat(5)).
fn ticks(child: &Child) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The name, in parentheses, may have blanks.
    let fields: Vec<u64> = text.rsplit_once(')')?.1.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    Some(fields.get(11)? + fields.get(12)?)
}

/// Runs a program with these options in a directory, where it writes its log, `log`.
///
/// # Panics
/// It ends; after the first three seconds it takes 0.1 s or more of ten; it logs forty lines or more.
pub fn waits(program: &str, dir: &Path, options: &[&str]) {
    let mut command = Command::new(program);
    command.args(options).args(["--unixctl=none", "--log-file=log", "-vconsole:off"]).current_dir(dir);
    command.envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir))).env("OVS_SYSLOG_METHOD", "null");
    let child = command.stderr(Stdio::null()).spawn();
    let mut running = Running(child.unwrap_or_else(|e| panic!("{program}: {e}")));
    std::thread::sleep(Duration::from_secs(3));
    let before = ticks(&running.0);
    std::thread::sleep(Duration::from_secs(10));
    assert!(matches!(running.0.try_wait(), Ok(None)), "it ended");
    let spent = ticks(&running.0).zip(before).map(|(after, before)| after - before);
    let log = std::fs::read_to_string(dir.join("log")).unwrap_or_else(|e| panic!("its log: {e}"));
    assert!(spent.is_some_and(|n| n < 10), "{spent:?} of 1,000 ticks with {options:?}:\n{log}");
    assert!(log.lines().count() < 40, "{log}");
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
