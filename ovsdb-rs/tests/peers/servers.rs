//! Database servers as processes, ours and Debian's, and commands run against both.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Debian's server.
pub const DEBIAN: &str = "/usr/sbin/ovsdb-server";

/// Whether Debian's server is installed; where it is not, the test is skipped.
pub fn debian() -> bool {
    needs::installed(&[DEBIAN])
}

/// A running server with a folder of its own.
pub struct Peer {
    pub dir: PathBuf,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    child: Option<Child>,
}

impl Peer {
    /// Starts a server that listens on `db.sock` in `dir`.
    pub fn start(program: impl Into<PathBuf>, dir: &Path, arguments: &[String]) -> Peer {
        let program = program.into();
        let mut peer = Peer { dir: dir.to_path_buf(), program, arguments: arguments.to_vec(), child: None };
        peer.restart();
        peer
    }

    /// Ours and Debian's, each in a folder of its own below `root`, with arguments made for the folder.
    pub fn both(root: &Path, arguments: impl Fn(&Path) -> Vec<String>) -> [Peer; 2] {
        [("ours", env!("CARGO_BIN_EXE_ovsdb")), ("theirs", DEBIAN)].map(|(name, program)| {
            let dir = root.join(name);
            std::fs::create_dir_all(&dir).unwrap();
            Peer::start(program, &dir, &arguments(&dir))
        })
    }

    /// Starts it again where it does not run.
    pub fn restart(&mut self) {
        let socket = self.dir.join("db.sock");
        for name in ["db.sock", "server.ctl"] {
            // It may be there after a kill.
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        let mut command = Command::new(&self.program);
        environment(&mut command, &self.dir);
        command.args(["-vconsole:off", "-vfile:info"]);
        command.arg(format!("--log-file={}", self.dir.join("server.log").display()));
        command.arg(format!("--unixctl={}", self.dir.join("server.ctl").display()));
        // A configuration file says the remotes itself.
        if !self.arguments.iter().any(|a| a.starts_with("--config-file")) {
            command.arg(format!("--remote=punix:{}", socket.display()));
        }
        command.args(&self.arguments);
        self.child = Some(command.stderr(Stdio::inherit()).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        for socket in [socket, self.dir.join("server.ctl")] {
            while std::os::unix::net::UnixStream::connect(&socket).is_err() {
                assert!(Instant::now() < until, "{} does not listen", self.program.display());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        if let Some(mut c) = self.child.take() {
            // It may be dead already.
            let _ = c.kill();
            let _ = c.wait();
        }
    }

    /// Runs a shell command with this server's environment.
    pub fn run(&self, command: &str) -> Output {
        let mut c = Command::new("/bin/sh");
        environment(&mut c, &self.dir);
        c.args(["-c", command]).current_dir(&self.dir).stdin(Stdio::null()).output().unwrap()
    }

    /// What a shell command prints; it has to succeed.
    pub fn output(&self, command: &str) -> String {
        let o = self.run(command);
        assert!(o.status.success(), "{command}: {}", String::from_utf8_lossy(&o.stderr));
        String::from_utf8(o.stdout).unwrap()
    }

    /// What a control command prints.
    pub fn control(&self, command: &str) -> String {
        self.output(&format!("ovs-appctl -t {}/server.ctl {command}", self.dir.display()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn environment(c: &mut Command, dir: &Path) {
    let db = format!("unix:{}", dir.join("db.sock").display());
    c.envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR", "OVS_DBDIR", "OVN_DBDIR"].map(|v| (v, dir)));
    c.envs(["DB", "OVN_NB_DB", "OVN_SB_DB", "OVN_IC_NB_DB", "OVN_IC_SB_DB"].map(|v| (v, &db)))
        .env("OVS_SYSLOG_METHOD", "null");
    c.env_remove("OVN_NB_DAEMON").env("CTL", dir.join("server.ctl"));
}

/// Text without how long a wait was.
fn without_waits(text: &str) -> String {
    const BEFORE: &str = "timed out after ";
    let mut parts = text.split(BEFORE);
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |out, part| out + BEFORE + "N" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// Text with what two servers choose differently taken out: UUIDs, folders, times, process numbers.
pub fn masked(text: &str, dir: &Path) -> String {
    // On a busy machine the tools complain of their own slowness.
    let text: String = text.split_inclusive('\n').filter(|l| !l.contains("|timeval|")).collect();
    let text = text.replace(&dir.display().to_string(), "DIR");
    let text = without_waits(&text);
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let uuid = text.get(at..at + 36).filter(|s| s.contains('-') && ovsdb_rs::Uuid::try_parse(s).is_ok());
        if uuid.is_some() {
            out.push_str("<uuid>");
            at += 36;
            continue;
        }
        // 2026-11-21T11:14:21Z
        if text.get(at..at + 20).is_some_and(|s| s.ends_with('Z') && s.as_bytes()[10] == b'T' && s.starts_with("20")) {
            out.push_str("<time>");
            at += 20;
            continue;
        }
        let Some(c) = text[at..].chars().next() else { break };
        out.push(c);
        at += c.len_utf8();
    }
    out
}

/// The lines of a text, sorted.
pub fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}
