//! Namespaces, links and processes of a lab on one machine. Everything that a lab made is gone when it is dropped; with
//! `ISTHMUS_LAB_LOGS` set in the environment, its directory with logs and databases stays.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A lab.
#[derive(Debug)]
pub struct Lab {
    name: String,
    dir: PathBuf,
    namespaces: Vec<String>,
    processes: BTreeMap<String, Child>,
    keep: bool,
    stop: Arc<AtomicBool>,
}

/// The lab is to end: nothing is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Runs a program and gives its output.
///
/// # Errors
/// Where it cannot be run or fails; with what it said.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let out =
        Command::new(program).args(args).stdin(Stdio::null()).output().with_context(|| format!("run {program}"))?;
    finish(program, args, &out)
}

fn finish(program: &str, args: &[&str], out: &Output) -> Result<String> {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!("{program} {}: {} {}", args.join(" "), text.trim(), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(text)
}

impl Lab {
    /// A lab whose namespaces begin with `name`; what a lab of that name left behind is removed first.
    ///
    /// # Errors
    /// Where this is not root, or the directory cannot be made.
    pub fn new(name: &str, dir: &Path) -> Result<Lab> {
        if !nix::unistd::Uid::effective().is_root() {
            bail!("a lab makes network namespaces, so it has to run as root");
        }
        if dir.exists() {
            std::fs::remove_dir_all(dir)?;
        }
        std::fs::create_dir_all(dir)?;
        let lab = Lab {
            name: name.into(),
            dir: dir.into(),
            namespaces: Vec::new(),
            processes: BTreeMap::new(),
            keep: false,
            stop: Arc::default(),
        };
        for ns in existing(&lab.name) {
            remove_namespace(&ns);
        }
        Ok(lab)
    }

    /// Leaves everything as it is when the lab is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Ends whatever is under way when this becomes true.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// # Errors
    /// Where the lab is to end.
    fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Waits for a while.
    ///
    /// # Errors
    /// Where the lab is to end.
    pub fn pause(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.go_on()?;
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
        }
        self.go_on()
    }

    /// The full name of a machine's namespace.
    pub fn namespace(&self, machine: &str) -> String {
        format!("{}-{machine}", self.name)
    }

    /// A machine's directory.
    pub fn machine_dir(&self, machine: &str) -> PathBuf {
        self.dir.join(machine)
    }

    /// Makes a machine: a namespace with a directory.
    ///
    /// # Errors
    /// Where the namespace cannot be made.
    pub fn machine(&mut self, machine: &str) -> Result<()> {
        let ns = self.namespace(machine);
        run("ip", &["netns", "add", &ns])?;
        self.namespaces.push(ns.clone());
        std::fs::create_dir_all(self.machine_dir(machine))?;
        run("ip", &["-n", &ns, "link", "set", "lo", "up"])?;
        // Its kernel sees what comes by a switch's ports as well, and would answer there for addresses of internal ports.
        self.ip_exec(&ns, "sh", &["-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore"])?;
        Ok(())
    }

    /// Joins two machines by a link; its ends get these names.
    ///
    /// # Errors
    /// Where the link cannot be made.
    pub fn link(&self, a: (&str, &str), b: (&str, &str)) -> Result<()> {
        let (na, nb) = (self.namespace(a.0), self.namespace(b.0));
        run("ip", &["link", "add", a.1, "netns", &na, "type", "veth", "peer", "name", b.1, "netns", &nb])?;
        for (ns, dev) in [(&na, a.1), (&nb, b.1)] {
            // A virtual link hands packets over before their checksums are filled in; a switch that is not the kernel's
            // would send them on as they are.
            let _ = self.ip_exec(ns, "ethtool", &["-K", dev, "tx", "off", "tso", "off", "gso", "off", "gro", "off"]);
            run("ip", &["-n", ns, "link", "set", dev, "up"])?;
        }
        Ok(())
    }

    fn ip_exec(&self, ns: &str, program: &str, args: &[&str]) -> Result<String> {
        let mut all = vec!["netns", "exec", ns, program];
        all.extend(args);
        run("ip", &all)
    }

    /// `ip ARGS` inside a machine.
    ///
    /// # Errors
    /// Where it fails.
    pub fn ip(&self, machine: &str, args: &[&str]) -> Result<String> {
        let ns = self.namespace(machine);
        let mut all = vec!["-n", ns.as_str()];
        all.extend(args);
        run("ip", &all)
    }

    /// Runs a program inside a machine to its end.
    ///
    /// # Errors
    /// Where it fails.
    pub fn exec(&self, machine: &str, program: &str, args: &[&str]) -> Result<String> {
        self.go_on()?;
        let out = self.command(machine, program).args(args).stdin(Stdio::null()).output()?;
        finish(program, args, &out)
    }

    /// A program to run inside a machine, with the machine's directories.
    pub fn command(&self, machine: &str, program: &str) -> Command {
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &self.namespace(machine), program]);
        let dir = self.machine_dir(machine);
        for key in [
            "OVS_RUNDIR",
            "OVN_RUNDIR",
            "OVS_LOGDIR",
            "OVN_LOGDIR",
            "OVS_DBDIR",
            "OVN_DBDIR",
            "OVS_SYSCONFDIR",
            "OVN_SYSCONFDIR",
        ] {
            c.env(key, &dir);
        }
        // DPDK's own.
        c.env("RUNTIME_DIRECTORY", &dir);
        c.env("OVS_SYSLOG_METHOD", "null");
        c
    }

    /// Starts a program inside a machine; its output goes to `KEY.out` in the machine's directory.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn(&mut self, machine: &str, key: &str, program: &str, args: &[&str]) -> Result<()> {
        self.go_on()?;
        let file = File::create(self.machine_dir(machine).join(format!("{key}.out")))?;
        let child = self
            .command(machine, program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {program} on {machine}"))?;
        self.processes.insert(format!("{machine}/{key}"), child);
        Ok(())
    }

    /// Starts Debian's Open vSwitch in a machine, `switch`, with a database server, `ovsdb`, of databases of these schemas,
    /// which stay as they are where they exist; the server too where it runs.
    ///
    /// # Errors
    /// Where a database cannot be made or a program does not start.
    pub fn open_vswitch(&mut self, machine: &str, schemas: &[&str]) -> Result<()> {
        let dir = self.machine_dir(machine);
        let path = |f: &str| dir.join(f).display().to_string();
        let mut args = vec![format!("--remote=punix:{}", path("db.sock")), format!("--unixctl={}", path("ovsdb.ctl"))];
        for schema in schemas {
            let file = path(&format!("{schema}.db"));
            if !Path::new(&file).exists() {
                run("ovsdb-tool", &["create", &file, &format!("/usr/share/openvswitch/{schema}.ovsschema")])?;
            }
            args.push(file);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if !self.is_running(machine, "ovsdb") {
            self.spawn(machine, "ovsdb", "ovsdb-server", &args)?;
        }
        until("the local database", Duration::from_secs(5), || Ok(std::fs::metadata(dir.join("db.sock"))?))?;
        self.vswitchd(machine)
    }

    /// Starts Debian's ovs-vswitchd, `switch`, on the database of its machine.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn vswitchd(&mut self, machine: &str) -> Result<()> {
        let dir = self.machine_dir(machine);
        let ctl = format!("--unixctl={}", dir.join("vswitchd.ctl").display());
        self.spawn(machine, "switch", "ovs-vswitchd", &[&ctl, &format!("unix:{}", dir.join("db.sock").display())])
    }

    /// What a program printed so far.
    pub fn output(&self, machine: &str, key: &str) -> String {
        std::fs::read_to_string(self.machine_dir(machine).join(format!("{key}.out"))).unwrap_or_default()
    }

    /// Sends a signal to a program, by its process's number.
    pub fn signal(&mut self, machine: &str, key: &str, signal: Signal) {
        if let Some(c) = self.processes.get(&format!("{machine}/{key}")) {
            let _ = kill(Pid::from_raw(c.id() as i32), signal);
        }
    }

    /// Waits for a program's end; kills it after the limit.
    pub fn wait(&mut self, machine: &str, key: &str, limit: Duration) -> bool {
        let Some(mut c) = self.processes.remove(&format!("{machine}/{key}")) else { return false };
        let end = Instant::now() + limit;
        loop {
            match c.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if Instant::now() < end && !self.stop.load(Ordering::Relaxed) => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                _ => {
                    let _ = c.kill();
                    let _ = c.wait();
                    return false;
                }
            }
        }
    }

    /// Ends a program at once, as a crash would.
    pub fn kill(&mut self, machine: &str, key: &str) {
        if let Some(mut c) = self.processes.remove(&format!("{machine}/{key}")) {
            let _ = c.kill();
            let _ = c.wait();
        }
    }

    /// The process's number of a program.
    pub fn pid(&self, machine: &str, key: &str) -> Option<u32> {
        self.processes.get(&format!("{machine}/{key}")).map(Child::id)
    }

    /// Whether a program still runs.
    pub fn is_running(&mut self, machine: &str, key: &str) -> bool {
        self.processes.get_mut(&format!("{machine}/{key}")).is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }
}

/// The namespaces of labs of this name.
fn existing(name: &str) -> Vec<String> {
    let list = run("ip", &["netns", "list"]).unwrap_or_default();
    let prefix = format!("{name}-");
    list.lines()
        .filter_map(|l| l.split_whitespace().next())
        .filter(|n| n.starts_with(&prefix))
        .map(String::from)
        .collect()
}

/// How long a program may take to end that was killed: the kernel takes back its memory first.
const END: Duration = Duration::from_secs(5);

/// Ends what runs in a namespace and removes it.
fn remove_namespace(ns: &str) {
    let running = || -> Vec<i32> {
        let list = run("ip", &["netns", "pids", ns]).unwrap_or_default();
        list.lines().filter_map(|l| l.trim().parse().ok()).collect()
    };
    let end = Instant::now() + END;
    loop {
        let pids = running();
        if pids.is_empty() || Instant::now() >= end {
            break;
        }
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = run("ip", &["netns", "del", ns]);
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        for c in self.processes.values_mut() {
            let _ = c.kill();
        }
        for c in self.processes.values_mut() {
            let _ = c.wait();
        }
        for ns in &self.namespaces {
            remove_namespace(ns);
        }
        if std::env::var_os("ISTHMUS_LAB_LOGS").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Waits until a condition holds.
///
/// # Errors
/// Where it does not within the limit; with the last reason.
pub fn until<T>(what: &str, limit: Duration, mut f: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match f() {
            Ok(v) => return Ok(v),
            Err(e) if e.is::<Interrupted>() => return Err(e),
            Err(e) if Instant::now() >= end => return Err(e.context(format!("{what}: not within {limit:?}"))),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
