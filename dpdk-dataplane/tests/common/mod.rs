//! Namespaces, dataplanes and Debian's Open vSwitch for tests. Needs root.
#![allow(dead_code, reason = "each test needs a part")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a command; its output, or its complaint.
pub fn run(cmd: &str, args: &[&str], env: &[(&str, &str)]) -> Result<String, String> {
    let out = Command::new(cmd).args(args).envs(env.iter().copied()).output().map_err(|e| format!("{cmd}: {e}"))?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr) + &text(&out.stdout)) }
}

/// Whether the test can run here; counts it as skipped where it cannot.
pub fn able(programs: &[&str]) -> bool {
    let all: Vec<&str> = programs.iter().chain(&["ip", "ping", "ethtool"]).copied().collect();
    needs::root() && needs::installed(&all)
}

/// Waits until something holds.
pub fn eventually(what: &str, limit: Duration, mut f: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + limit;
    loop {
        match f() {
            Ok(()) => return,
            Err(e) if Instant::now() > end => panic!("{what}: {e}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// A network namespace; it goes with its links when dropped.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(name: &str) -> Namespace {
        let name = format!("dp{}-{name}", std::process::id());
        run("ip", &["netns", "add", &name], &[]).expect("namespace");
        let n = Namespace(name);
        n.ip("link set lo up");
        // Its kernel sees what comes by a switch's ports as well, and would answer there for addresses of internal
        // ports.
        let own = "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore";
        run("ip", &["netns", "exec", &n.0, "sh", "-c", own], &[]).expect("arp_ignore");
        n
    }

    pub fn exec(&self, words: &str) -> Result<String, String> {
        let mut args = vec!["netns", "exec", &self.0];
        args.extend(words.split_whitespace());
        run("ip", &args, &[])
    }

    pub fn ip(&self, words: &str) -> String {
        let mut args = vec!["-n", &self.0];
        args.extend(words.split_whitespace());
        run("ip", &args, &[]).unwrap_or_else(|e| panic!("ip {words}: {e}"))
    }

    /// Pings; all of the packets have to come back.
    pub fn ping(&self, to: &str) -> Result<(), String> {
        let out = self.exec(&format!("ping -n -c 2 -i 0.2 -W 1 {to}"))?;
        if out.contains(" 0% packet loss") { Ok(()) } else { Err(out) }
    }

    pub fn reaches(&self, to: &str) {
        eventually(&format!("{} pings {to}", self.0), Duration::from_secs(15), || self.ping(to));
    }

    /// Connects a virtual machine, a namespace of its own, by a veth whose end here has the given name.
    pub fn machine(&self, port: &str, address: &str) -> Namespace {
        let vm = Namespace::new(port);
        self.ip(&format!("link add {port} type veth peer name eth0 netns {}", vm.0));
        vm.ip(&format!("addr add {address} dev eth0"));
        vm.ip("link set eth0 up");
        self.ip(&format!("link set {port} up"));
        vm.exec("ethtool -K eth0 tx off").expect("ethtool");
        vm
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The kernel takes a namespace's links away some time after its name. A veth goes at once when it is named, and
        // with it its end in the switch's namespace, whose name the next machine may take.
        let _ = run("ip", &["-n", &self.0, "link", "del", "eth0"], &[]);
        let _ = run("ip", &["netns", "del", &self.0], &[]);
    }
}

/// Two namespaces joined by a veth named eth0 in both.
pub fn joined(a: &str, b: &str) -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(a), Namespace::new(b));
    a.ip(&format!("link add eth0 type veth peer name eth0 netns {}", b.0));
    for n in [&a, &b] {
        n.ip("link set eth0 mtu 1600 up");
        n.exec("ethtool -K eth0 tx off").expect("ethtool");
    }
    (a, b)
}

/// Debian's daemon with DPDK.
pub const DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// A switch with its own run directory: ours, or Debian's.
pub struct Switch {
    pub dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        // Asked nicely first, so that taps and sockets go.
        if let Some(c) = self.children.last() {
            let _ = run("kill", &[&c.id().to_string()], &[]);
        }
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end && matches!(self.children.last_mut().map(Child::try_wait), Some(Ok(None))) {
            std::thread::sleep(Duration::from_millis(20));
        }
        for c in self.children.iter_mut().rev() {
            let _ = c.kill();
            let _ = c.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default();
            eprintln!("---- log of {}\n{log}", self.dir.path().display());
        }
    }
}

impl Switch {
    /// A run directory in which nothing runs yet.
    fn without_programs() -> Switch {
        Switch { dir: tempfile::tempdir().expect("folder"), children: Vec::new() }
    }

    /// Our dataplane with its database embedded.
    pub fn ours(ns: &Namespace) -> Switch {
        let mut s = Switch::without_programs();
        s.start_ours(ns);
        s
    }

    /// The same with more in its environment.
    pub fn ours_with(ns: &Namespace, env: &[(&str, &str)]) -> Switch {
        let mut s = Switch::without_programs();
        s.run_ours(ns, env, &[]);
        s
    }

    /// Our dataplane with dummy devices in the place of the machine's, and without the kernel's routes.
    pub fn test_bed(ns: &Namespace) -> Switch {
        let mut s = Switch::without_programs();
        s.start_test_bed(ns);
        s
    }

    /// As [`Switch::test_bed`], but that nobody says that the kernel's routes are not to be used.
    pub fn dummies(ns: &Namespace) -> Switch {
        let mut s = Switch::without_programs();
        s.run_ours(ns, &[], &["--enable-dummy=system"]);
        s
    }

    pub fn start_test_bed(&mut self, ns: &Namespace) {
        self.run_ours(ns, &[], &["--enable-dummy=system", "--disable-system-route"]);
    }

    pub fn start_ours(&mut self, ns: &Namespace) {
        self.run_ours(ns, &[], &[]);
    }

    fn run_ours(&mut self, ns: &Namespace, env: &[(&str, &str)], more: &[&str]) {
        let embed = format!("--embed={}", self.dir.path().display());
        let arguments = [&[&*embed, "--unixctl=ctl", "--pidfile", "-vconsole:info"], more].concat();
        self.spawn_with(ns, env!("CARGO_BIN_EXE_dpdk-dataplane"), &arguments, env);
        self.wait_for("ctl");
        self.wait_for("db.sock");
    }

    /// Debian's, with its userspace datapath.
    pub fn debian(ns: &Namespace) -> Switch {
        Switch::of_debian(ns, "ovs-vswitchd", &["--no-wait", "init"])
    }

    /// Debian's with DPDK, without huge pages.
    pub fn debian_dpdk(ns: &Namespace) -> Switch {
        let extra = "other_config:dpdk-extra=\"--legacy-mem --no-huge -m 700 --no-pci --no-shconf\"";
        let words = ["--no-wait", "init", "--", "set", "open", ".", "other_config:dpdk-init=true", extra];
        Switch::of_debian(ns, DPDK, &words)
    }

    fn of_debian(ns: &Namespace, program: &str, set_up: &[&str]) -> Switch {
        let mut s = Switch::without_programs();
        let (conf, sock) = (s.path("conf.db"), s.path("db.sock"));
        run("ovsdb-tool", &["create", &conf, "/usr/share/openvswitch/vswitch.ovsschema"], &[]).expect("database");
        s.spawn(ns, "ovsdb-server", &["--no-chdir", "--pidfile", &format!("--remote=punix:{sock}"), &conf]);
        s.wait_for("db.sock");
        s.command("ovs-vsctl", set_up).expect("ovs-vsctl");
        s.spawn(ns, program, &["--disable-system", "--unixctl=ctl", "--pidfile", &format!("unix:{sock}")]);
        s.wait_for("ctl");
        s
    }

    fn spawn(&mut self, ns: &Namespace, cmd: &str, args: &[&str]) {
        self.spawn_with(ns, cmd, args, &[]);
    }

    fn spawn_with(&mut self, ns: &Namespace, cmd: &str, args: &[&str], env: &[(&str, &str)]) {
        let d = self.dir.path();
        let log = std::fs::File::options().create(true).append(true).open(d.join("stderr")).expect("log");
        let child = Command::new("ip")
            .args(["netns", "exec", &ns.0, cmd])
            .args(args)
            .envs([("OVS_RUNDIR", d), ("OVS_LOGDIR", d), ("OVS_DBDIR", d), ("OVS_SYSCONFDIR", d)])
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("starts");
        self.children.push(child);
    }

    pub fn path(&self, n: &str) -> String {
        self.dir.path().join(n).display().to_string()
    }

    /// Waits for a socket that somebody listens on.
    pub fn wait_for(&self, n: &str) {
        let path = self.path(n);
        eventually(&path, Duration::from_secs(20), || {
            std::os::unix::net::UnixStream::connect(&path).map(drop).map_err(|e| e.to_string())
        });
    }

    /// Kills the switch as a crash would.
    pub fn crash(&mut self) {
        let mut c = self.children.pop().expect("a switch");
        c.kill().expect("kill");
        c.wait().expect("wait");
        let _ = std::fs::remove_file(self.path("ctl"));
    }

    /// Sends a signal to the switch.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let id = self.children.last().expect("a switch").id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id as i32), signal).expect("signal");
    }

    /// Ends the switch as an operator would.
    pub fn stop(&mut self) {
        self.appctl(&["exit"]).expect("exit");
        let mut c = self.children.pop().expect("a switch");
        eventually("the end", Duration::from_secs(20), || match c.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let _ = std::fs::remove_file(self.path("ctl"));
    }

    fn command(&self, cmd: &str, args: &[&str]) -> Result<String, String> {
        let dir = self.dir.path().display().to_string();
        run(cmd, args, &[("OVS_RUNDIR", &dir), ("OVS_LOGDIR", &dir)])
    }

    pub fn try_vsctl(&self, words: &str) -> Result<String, String> {
        let mut args = vec!["--timeout=10"];
        args.extend(words.split_whitespace());
        self.command("ovs-vsctl", &args)
    }

    pub fn vsctl(&self, words: &str) -> String {
        self.try_vsctl(words).unwrap_or_else(|e| panic!("ovs-vsctl {words}: {e}"))
    }

    pub fn try_ofctl(&self, args: &[&str]) -> Result<String, String> {
        let mut v = vec!["-O", "OpenFlow15"];
        v.extend_from_slice(args);
        self.command("ovs-ofctl", &v)
    }

    pub fn ofctl(&self, args: &[&str]) -> String {
        self.try_ofctl(args).unwrap_or_else(|e| panic!("ovs-ofctl {args:?}: {e}"))
    }

    pub fn appctl(&self, args: &[&str]) -> Result<String, String> {
        let ctl = self.path("ctl");
        let mut v = vec!["-t", &ctl];
        v.extend_from_slice(args);
        self.command("ovs-appctl", &v)
    }

    /// Says how it is: what one wants to know where a test failed.
    fn tell(&self) {
        let asked = [
            "ovs/route/show",
            "tnl/neigh/show",
            "tnl/ports/show",
            "dpctl/show -s",
            "dpctl/dump-flows",
            "coverage/show",
        ];
        for q in asked {
            let said = self.appctl(&q.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| e);
            eprintln!("---- {q} of {}\n{said}", self.dir.path().display());
        }
        for bridge in self.try_vsctl("list-br").unwrap_or_default().split_whitespace() {
            for q in ["fdb/show", "dpif/show"] {
                eprintln!("---- {q} {bridge}\n{}", self.appctl(&[q, bridge]).unwrap_or_else(|e| e));
            }
            eprintln!("---- ports of {bridge}\n{}", self.try_ofctl(&["dump-ports", bridge]).unwrap_or_else(|e| e));
        }
    }

    pub fn becomes(&self, query: &str, wanted: &str, limit: Duration) {
        eventually(&format!("{query} = {wanted}"), limit, || {
            let now = self.vsctl(query);
            if now.trim().trim_matches('"') == wanted { Ok(()) } else { Err(now) }
        });
    }
}

/// Runs something on a thread of its own inside a namespace.
pub fn inside<T: Send + 'static>(ns: &Namespace, f: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    let place = std::fs::File::open(format!("/var/run/netns/{}", ns.0)).expect("namespace");
    std::thread::spawn(move || {
        nix::sched::setns(place, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns");
        f()
    })
}

/// Sends frames by a device of a namespace.
pub fn send(ns: &Namespace, device: &str, frames: Vec<Vec<u8>>) {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket};
    use std::os::fd::AsRawFd;
    let device = device.to_string();
    let sent = inside(ns, move || {
        let s = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None).expect("socket");
        let mut all = nix::ifaddrs::getifaddrs().expect("devices");
        let link = |i: nix::ifaddrs::InterfaceAddress| {
            let address = i.address.filter(|_| i.interface_name == device)?;
            (address.family() == Some(AddressFamily::Packet)).then(|| address.as_link_addr().copied())?
        };
        let to = all.find_map(link).expect("the device");
        for f in &frames {
            sendto(s.as_raw_fd(), f, &to, MsgFlags::empty()).expect("sent");
            // A few at a time stay in their order; many are to come fast.
            std::thread::sleep(Duration::from_millis(if frames.len() > 50 { 1 } else { 20 }));
        }
    });
    sent.join().expect("thread");
}
