//! Top-of-rack switches in a logical network: Debian's emulator `ovs-vtep` and the kernel's VXLAN device as switches,
//! hypervisors with our dataplane or Open vSwitch.
//!
//! ```text
//!    vm1      vm2      bm1 (VLAN 100)    bm2
//!     │        │        │                 │
//!    hv1      hv2      tor1 (ovs-vtep)   tor2 (kernel VXLAN, schema 1.3, one service node)
//!     └────────┴────────┴─────────────────┘  underlay: Geneve between hypervisors, VXLAN with the switches
//!    central: northd with databases, vtep-controller
//! ```

mod inventory;
mod kernel;

use anyhow::{Context, Result, bail, ensure};
use hw_tests::lab::{Lab, until};
use hw_tests::network::programs;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Two cores are enough for one lab at a time.
static ONE: Mutex<()> = Mutex::new(());

const TOR1: &str = "192.168.50.31";
const TOR2: &str = "192.168.50.32";
const HOSTS: [(&str, &str, &str); 4] = [
    ("vm1", "02:00:00:00:0a:01", "10.0.0.1"),
    ("vm2", "02:00:00:00:0a:02", "10.0.0.2"),
    ("bm1", "02:00:00:00:0b:01", "10.0.0.101"),
    ("bm2", "02:00:00:00:0b:02", "10.0.0.102"),
];

struct Network {
    lab: Lab,
    bin: PathBuf,
    /// Hypervisors whose switch is Open vSwitch; the others have ours.
    foreign: &'static [&'static str],
    tor2: Option<kernel::Switch>,
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH");
    let given = path.is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()));
    given || std::path::Path::new("/usr/share/openvswitch/scripts").join(program).exists()
}

impl Network {
    fn start(lab: Lab, foreign: &'static [&'static str]) -> Result<Network> {
        let mut n = Network { lab, bin: programs()?, foreign, tor2: None };
        n.wires()?;
        n.central()?;
        for (hv, ip) in [("hv1", "192.168.50.11/24"), ("hv2", "192.168.50.12/24")] {
            n.hypervisor(hv, ip).with_context(|| hv.to_string())?;
        }
        n.emulator()?;
        let dir = n.lab.machine_dir("tor2");
        n.tor2 = Some(kernel::Switch::start(&n.lab.namespace("tor2"), &dir, "tor2", TOR2, "p0", "blue"));
        until("the kernel switch's database", Duration::from_secs(10), || {
            Ok(std::fs::metadata(dir.join("vtep.sock"))?)
        })?;
        n.vtep_controller()?;
        n.logical()?;
        Ok(n)
    }

    fn program(&self, name: &str) -> String {
        self.bin.join(name).display().to_string()
    }

    fn socket(&self, machine: &str, file: &str) -> String {
        format!("unix:{}", self.lab.machine_dir(machine).join(file).display())
    }

    fn wires(&mut self) -> Result<()> {
        let lab = &mut self.lab;
        for m in ["fabric", "central", "hv1", "hv2", "tor1", "tor2"].into_iter().chain(HOSTS.map(|h| h.0)) {
            lab.machine(m)?;
        }
        lab.ip("fabric", &["link", "add", "under", "type", "bridge"])?;
        lab.ip("fabric", &["link", "set", "under", "up", "mtu", "1600"])?;
        for m in ["hv1", "hv2", "tor1", "tor2"] {
            let far = format!("u-{m}");
            lab.link((m, "under0"), ("fabric", &far))?;
            lab.ip("fabric", &["link", "set", &far, "mtu", "1600", "master", "under"])?;
            lab.ip(m, &["link", "set", "under0", "mtu", "1600"])?;
        }
        lab.ip("tor2", &["addr", "add", &format!("{TOR2}/24"), "dev", "under0"])?;
        for ((host, mac, ip), (machine, device)) in
            HOSTS.into_iter().zip([("hv1", "v-vm1"), ("hv2", "v-vm2"), ("tor1", "h-bm1"), ("tor2", "p0")])
        {
            lab.link((host, "eth0"), (machine, device))?;
            lab.ip(host, &["link", "set", "eth0", "address", mac])?;
            lab.ip(host, &["addr", "add", &format!("{ip}/24"), "broadcast", "10.0.0.255", "dev", "eth0"])?;
            lab.exec(host, "sysctl", &["-w", "net.ipv4.icmp_echo_ignore_broadcasts=0"])?;
        }
        Ok(())
    }

    fn central(&mut self) -> Result<()> {
        let embed = format!("--embed={}", self.lab.machine_dir("central").display());
        self.lab.spawn("central", "northd", &self.program("northd"), &[&embed])?;
        until("northd", Duration::from_secs(10), || self.nbctl(&["show"]))?;
        // VNIs of 24 bits, as switches have them, though hypervisors speak VXLAN too.
        self.nbctl(&["set", "NB_Global", ".", "options:vxlan_mode=false"])?;
        Ok(())
    }

    fn nbctl(&self, args: &[&str]) -> Result<String> {
        let db = format!("--db={}", self.socket("central", "ovnnb_db.sock"));
        let mut all = vec![db.as_str(), "--timeout=5"];
        all.extend(args);
        self.lab.exec("central", "ovn-nbctl", &all)
    }

    fn sbctl(&self, args: &[&str]) -> Result<String> {
        let db = format!("--db={}", self.socket("central", "ovnsb_db.sock"));
        let mut all = vec![db.as_str(), "--timeout=5", "--no-leader-only"];
        all.extend(args);
        self.lab.exec("central", "ovn-sbctl", &all)
    }

    fn vtepctl(&self, machine: &str, args: &[&str]) -> Result<String> {
        let file = if machine == "tor2" { "vtep.sock" } else { "db.sock" };
        let db = format!("--db={}", self.socket(machine, file));
        let mut all = vec![db.as_str(), "--timeout=5"];
        all.extend(args);
        self.lab.exec(machine, "vtep-ctl", &all)
    }

    fn chassis(&self, machine: &str, args: &[&str]) -> Result<String> {
        let (sb, ovs) = (self.socket("central", "ovnsb_db.sock"), self.socket(machine, "db.sock"));
        let mut all = vec!["--sb", sb.as_str(), "chassis", "--ovs", ovs.as_str()];
        all.extend(args);
        self.lab.exec(machine, &self.program("isthmusctl"), &all)
    }

    /// The underlay's bridge with its address, as tunnels in user space need it.
    fn underlay(&self, machine: &str, address: &str, kind: &[&str]) -> Result<()> {
        let mut args = vec!["bridge", "br-under", "under0"];
        args.extend(kind);
        self.chassis(machine, &args)?;
        until("the bridge br-under", Duration::from_secs(10), || {
            self.lab.ip(machine, &["addr", "replace", address, "dev", "br-under"])
        })?;
        self.lab.ip(machine, &["link", "set", "br-under", "up", "mtu", "1600"])?;
        Ok(())
    }

    /// A chassis with its one virtual machine; `address` is that of its underlay, with the prefix length.
    fn hypervisor(&mut self, machine: &str, address: &str) -> Result<()> {
        let ip = address.split('/').next().unwrap_or_default();
        let kind: &[&str] = if self.foreign.contains(&machine) {
            self.lab.open_vswitch(machine, &["vswitch"])?;
            &["--datapath-type", "netdev"]
        } else {
            let embed = format!("--embed={}", self.lab.machine_dir(machine).display());
            self.lab.spawn(machine, "switch", &self.program("dpdk-dataplane"), &[&embed])?;
            let sock = self.lab.machine_dir(machine).join("db.sock");
            until("the local database", Duration::from_secs(10), || Ok(std::fs::metadata(&sock)?))?;
            &[]
        };
        self.underlay(machine, address, kind)?;
        let sb = self.socket("central", "ovnsb_db.sock");
        let mut args =
            vec!["set", "--name", machine, "--remote", &sb, "--encap-ip", ip, "--encap-type", "geneve,vxlan"];
        args.extend(kind);
        self.chassis(machine, &args)?;
        let db = self.socket(machine, "db.sock");
        self.lab.spawn(machine, "controller", &self.program("controller"), &[&db])?;
        let vm = if machine == "hv1" { "vm1" } else { "vm2" };
        until("the integration bridge", Duration::from_secs(15), || {
            self.chassis(machine, &["plug", &format!("v-{vm}"), vm])
        })?;
        Ok(())
    }

    /// The emulator's switch: the host is in VLAN 100 behind a trunk.
    fn emulator(&mut self) -> Result<()> {
        self.lab.open_vswitch("tor1", &["vswitch", "vtep"])?;
        self.underlay("tor1", &format!("{TOR1}/24"), &["--datapath-type", "netdev"])?;
        let vsctl = |args: &[&str]| {
            let db = format!("--db={}", self.socket("tor1", "db.sock"));
            let mut all = vec![db.as_str(), "--timeout=10"];
            all.extend(args);
            self.lab.exec("tor1", "ovs-vsctl", &all)
        };
        let netdev = ["--", "set", "Bridge"];
        for bridge in ["tor1", "br-acc"] {
            vsctl(&[&["add-br", bridge][..], &netdev, &[bridge, "datapath_type=netdev"]].concat())?;
        }
        vsctl(&["add-port", "br-acc", "h-bm1", "tag=100"])?;
        vsctl(&["add-port", "br-acc", "acc0", "--", "set", "Interface", "acc0", "type=patch", "options:peer=p0"])?;
        vsctl(&["add-port", "tor1", "p0", "--", "set", "Interface", "p0", "type=patch", "options:peer=acc0"])?;
        self.vtepctl(
            "tor1",
            &["add-ps", "tor1", "--", "set", "Physical_Switch", "tor1", &format!("tunnel_ips={TOR1}")],
        )?;
        self.start_emulator()?;
        until("the emulator's port", Duration::from_secs(20), || {
            let ports = self.vtepctl("tor1", &["list-ports", "tor1"])?;
            ensure!(ports.contains("p0"), "{ports}");
            Ok(())
        })?;
        self.vtepctl("tor1", &["add-ls", "blue", "--", "bind-ls", "tor1", "p0", "100", "blue"])?;
        Ok(())
    }

    fn start_emulator(&mut self) -> Result<()> {
        self.lab.spawn("tor1", "ovs-vtep", "/usr/share/openvswitch/scripts/ovs-vtep", &["tor1"])
    }

    fn vtep_controller(&mut self) -> Result<()> {
        let one = format!("--vtep-db={}", self.socket("tor1", "db.sock"));
        let two = format!("--vtep-db={}", self.socket("tor2", "vtep.sock"));
        let sb = format!("--ovnsb-db={}", self.socket("central", "ovnsb_db.sock"));
        self.lab.spawn("central", "vtep-controller", &self.program("vtep-controller"), &[&one, &two, &sb])
    }

    fn logical(&self) -> Result<()> {
        self.nbctl(&["ls-add", "blue"])?;
        for (vm, mac, ip) in HOSTS.into_iter().take(2) {
            self.nbctl(&["lsp-add", "blue", vm, "--", "lsp-set-addresses", vm, &format!("{mac} {ip}")])?;
        }
        for tor in ["tor1", "tor2"] {
            let port = format!("{tor}-blue");
            let physical = format!("vtep-physical-switch={tor}");
            self.nbctl(&[
                "lsp-add",
                "blue",
                &port,
                "--",
                "lsp-set-type",
                &port,
                "vtep",
                "--",
                "lsp-set-options",
                &port,
                &physical,
                "vtep-logical-switch=blue",
                "--",
                "lsp-set-addresses",
                &port,
                "unknown",
            ])?;
        }
        // The second one knows service nodes only.
        self.nbctl(&[
            "set",
            "Logical_Switch_Port",
            "tor2-blue",
            "options:vtep-replication-mode=service_node",
            "options:vtep-service-nodes=hv1",
        ])?;
        Ok(())
    }

    /// Waits until a switch knows a MAC to be at an endpoint.
    fn knows(&self, tor: &str, mac: &str, ip: &str) -> Result<()> {
        until(&format!("{mac} at {ip} in {tor}"), Duration::from_secs(20), || {
            let list = self.vtepctl(tor, &["list-remote-macs", "blue"])?;
            ensure!(list.lines().any(|l| l.contains(mac) && l.contains(&format!("/{ip}"))), "{list}");
            Ok(())
        })
    }

    /// What a switch knows, once that has both hypervisors and has been the same for a while: BFD, which the step before
    /// turned off, takes a hypervisor out of it for a moment when the machine is busy.
    fn settled(&self, tor: &str) -> Result<String> {
        let mut last = (String::new(), Instant::now());
        until(&format!("{tor} to settle"), Duration::from_secs(60), || {
            let list = self.vtepctl(tor, &["list-remote-macs", "blue"])?;
            if list != last.0 {
                last = (list, Instant::now());
            }
            let whole = ["192.168.50.11", "192.168.50.12"]
                .iter()
                .all(|ip| last.0.lines().any(|l| l.contains("unknown-dst") && l.contains(ip)));
            ensure!(whole && last.1.elapsed() > Duration::from_secs(3), "{}", last.0);
            Ok(())
        })?;
        Ok(last.0)
    }

    fn ping(&self, from: &str, to: &str) -> Result<()> {
        until(&format!("ping from {from} to {to}"), Duration::from_secs(90), || {
            let out = self.lab.exec(from, "ping", &["-c", "3", "-i", "0.2", "-W", "1", to])?;
            ensure!(!out.contains("DUP!"), "duplicates: {out}");
            Ok(())
        })
    }

    /// How many answers each host gives to one packet that is for many.
    fn answers(&self, from: &str, to: &str) -> Result<BTreeMap<String, usize>> {
        let out = self.lab.exec(from, "ping", &["-b", "-w", "2", "-i", "5", "-I", "eth0", to])?;
        let mut answers = BTreeMap::new();
        for line in out.lines().filter(|l| l.contains("bytes from ")) {
            let who = line.split("bytes from ").nth(1).and_then(|r| r.split(':').next()).unwrap_or_default();
            *answers.entry(who.to_string()).or_default() += 1;
        }
        Ok(answers)
    }

    /// A broadcast and a multicast reach everybody, and once.
    fn broadcast(&self, from: &str, expected: &[&str]) -> Result<()> {
        self.once(from, "10.0.0.255", expected)?;
        self.once(from, "224.0.0.1", expected)
    }

    fn once(&self, from: &str, to: &str, expected: &[&str]) -> Result<()> {
        let expected: BTreeMap<String, usize> = expected.iter().map(|ip| ((*ip).to_string(), 1)).collect();
        until(&format!("a packet of {from} to {to} once to each"), Duration::from_secs(30), || {
            let answers = self.answers(from, to)?;
            // A host hears and answers itself, too.
            let own = HOSTS.iter().find(|h| h.0 == from).map(|h| h.2).unwrap_or_default();
            let answers: BTreeMap<String, usize> = answers.into_iter().filter(|(ip, _)| ip != own).collect();
            if answers == expected { Ok(()) } else { bail!("{answers:?}, expected {expected:?}") }
        })
    }

    /// A frame to a MAC that nobody knows reaches these hosts, each once.
    fn unknown(&mut self, from: &str, expected: &[&str]) -> Result<()> {
        const NOBODY: &str = "02:00:00:00:ff:ff";
        self.lab.ip(from, &["neigh", "replace", "10.0.0.250", "lladdr", NOBODY, "dev", "eth0"])?;
        let others: Vec<&str> = HOSTS.iter().map(|h| h.0).filter(|h| *h != from).collect();
        for host in &others {
            let filter = format!("ether dst {NOBODY} and icmp");
            self.lab.spawn(host, "dump", "tcpdump", &["-nn", "-l", "-i", "eth0", "-Q", "in", &filter])?;
        }
        for host in &others {
            until(&format!("tcpdump on {host}"), Duration::from_secs(10), || {
                ensure!(self.lab.output(host, "dump").contains("listening"), "{}", self.lab.output(host, "dump"));
                Ok(())
            })?;
        }
        // Nobody answers, so this fails.
        let _ = self.lab.exec(from, "ping", &["-c", "1", "-W", "2", "10.0.0.250"]);
        let heard: BTreeMap<&str, usize> =
            others.iter().map(|h| (*h, self.lab.output(h, "dump").matches("echo request").count())).collect();
        others.iter().for_each(|h| self.lab.kill(h, "dump"));
        let wanted: BTreeMap<&str, usize> = others.iter().map(|h| (*h, usize::from(expected.contains(h)))).collect();
        ensure!(heard == wanted, "a frame of {from} to an unknown MAC was heard {heard:?} times, not {wanted:?}");
        Ok(())
    }

    fn everything(&mut self) -> Result<()> {
        for tor in ["tor1", "tor2"] {
            for (_, mac, _) in HOSTS.into_iter().take(2) {
                self.knows(tor, mac, if mac.ends_with('1') { "192.168.50.11" } else { "192.168.50.12" })?;
            }
        }
        for (from, to) in [("bm1", "10.0.0.1"), ("vm1", "10.0.0.101"), ("bm1", "10.0.0.2"), ("vm2", "10.0.0.101")] {
            self.ping(from, to)?;
        }
        // Behind the second switch: ARP is answered there from `ipaddr`, its own broadcasts reach one chassis only.
        for (from, to) in [("bm2", "10.0.0.1"), ("bm2", "10.0.0.2"), ("vm1", "10.0.0.102"), ("vm2", "10.0.0.102")] {
            self.ping(from, to)?;
        }
        self.ping("bm1", "10.0.0.102")?;
        self.knows("tor2", HOSTS[2].1, TOR1)?;
        self.knows("tor1", HOSTS[3].1, TOR2)?;
        self.ping("bm2", "10.0.0.101")?;
        self.broadcast("bm1", &["10.0.0.1", "10.0.0.2", "10.0.0.102"])?;
        self.broadcast("vm1", &["10.0.0.2", "10.0.0.101", "10.0.0.102"])?;
        // Machines' MACs are known, so what is unknown can only be behind a switch.
        self.unknown("bm1", &["bm2"])?;
        self.unknown("vm1", &["bm1", "bm2"])?;
        // A service node gets what is for many; hypervisors do not hand on what a switch sent them (docs/vtep.md).
        self.broadcast("bm2", &["10.0.0.1"])?;
        self.moves()?;
        self.watched()?;
        self.crashes()
    }

    /// What `isthmusctl vtep show` tells of the first switch.
    fn show(&self) -> Result<String> {
        let (sb, tor) = (self.socket("central", "ovnsb_db.sock"), self.socket("tor1", "db.sock"));
        self.lab.exec("central", &self.program("isthmusctl"), &["--sb", &sb, "vtep", "--vtep-db", &tor, "show"])
    }

    /// What BFD of the first switch says of the tunnel to a hypervisor.
    fn bfd(&self, hypervisor: &str) -> Result<String> {
        let text = self.show()?;
        let to = format!("to {hypervisor}: BFD ");
        let state = text.lines().find_map(|l| l.split_once(&to)).map(|(_, state)| state.to_string());
        state.with_context(|| format!("no tunnel to {hypervisor}: {text}"))
    }

    /// BFD between the first switch and the hypervisors: one that is dead gets nothing any more that is for many.
    fn watched(&mut self) -> Result<()> {
        self.nbctl(&["set", "NB_Global", ".", "options:vtep-bfd=true", "options:vtep-bfd-min-rx=200"])?;
        for ip in ["192.168.50.11", "192.168.50.12"] {
            until(&format!("BFD with {ip}"), Duration::from_secs(30), || {
                let state = self.bfd(ip)?;
                ensure!(state.starts_with("up"), "{state}");
                Ok(())
            })?;
        }
        let flood = |n: &Network, dead: bool| {
            until("who gets what is for many", Duration::from_secs(30), || {
                let list = n.vtepctl("tor1", &["list-remote-macs", "blue"])?;
                let flood: Vec<&str> = list.lines().filter(|l| l.contains("unknown-dst")).collect();
                let has = |ip: &str| flood.iter().any(|l| l.contains(ip));
                ensure!(has("192.168.50.11") && has("192.168.50.12") != dead, "{list}");
                Ok(())
            })
        };
        flood(self, false)?;
        self.lab.signal("hv2", "switch", nix::sys::signal::Signal::SIGSTOP);
        flood(self, true)?;
        let state = self.bfd("192.168.50.12")?;
        ensure!(state.starts_with("down"), "{state}");
        self.lab.signal("hv2", "switch", nix::sys::signal::Signal::SIGCONT);
        flood(self, false)?;
        self.ping("bm1", "10.0.0.2")?;
        self.nbctl(&["remove", "NB_Global", ".", "options", "vtep-bfd"])?;
        Ok(())
    }

    /// A machine moves from the first switch to a hypervisor and back.
    fn moves(&mut self) -> Result<()> {
        let (_, mac, ip) = HOSTS[2];
        self.lab.ip("bm1", &["link", "set", "eth0", "down"])?;
        self.lab.machine("moved")?;
        self.lab.link(("moved", "eth0"), ("hv2", "v-moved"))?;
        self.lab.ip("moved", &["link", "set", "eth0", "address", mac])?;
        self.lab.ip("moved", &["addr", "add", &format!("{ip}/24"), "dev", "eth0"])?;
        self.nbctl(&["lsp-add", "blue", "moved", "--", "lsp-set-addresses", "moved", &format!("{mac} {ip}")])?;
        self.chassis("hv2", &["plug", "v-moved", "moved"])?;
        self.knows("tor2", mac, "192.168.50.12")?;
        self.ping("bm2", ip)?;
        self.ping("vm1", ip)?;
        self.chassis("hv2", &["unplug", "v-moved"])?;
        self.nbctl(&["lsp-del", "moved"])?;
        self.lab.ip("moved", &["link", "set", "eth0", "down"])?;
        self.lab.ip("bm1", &["link", "set", "eth0", "up"])?;
        self.ping("bm1", "10.0.0.1")?;
        self.knows("tor2", mac, TOR1)?;
        self.ping("vm1", ip)?;
        self.ping("bm2", ip)
    }

    /// The controller and the switch come and go.
    fn crashes(&mut self) -> Result<()> {
        let before = self.settled("tor1")?;
        self.lab.kill("central", "vtep-controller");
        self.ping("bm1", "10.0.0.1")?;
        self.ping("vm2", "10.0.0.102")?;
        let after = self.vtepctl("tor1", &["list-remote-macs", "blue"])?;
        ensure!(after == before, "a crash changed the switch's tables:\n{before}{after}");
        self.vtep_controller()?;
        self.ping("bm1", "10.0.0.2")?;
        // The switch reboots.
        self.lab.kill("tor1", "ovs-vtep");
        self.lab.kill("tor1", "switch");
        self.lab.vswitchd("tor1")?;
        until("the bridge br-under", Duration::from_secs(10), || {
            self.lab.ip("tor1", &["addr", "replace", &format!("{TOR1}/24"), "dev", "br-under"])
        })?;
        self.lab.ip("tor1", &["link", "set", "br-under", "up", "mtu", "1600"])?;
        self.start_emulator()?;
        self.ping("bm1", "10.0.0.1")?;
        self.ping("vm2", "10.0.0.101")?;
        // A signal leaves everything as it is, `exit` nothing.
        let show = self.show()?;
        ensure!(show.contains("VLAN 100: blue, port tor1-blue of blue bound"), "{show}");
        let before = self.settled("tor1")?;
        self.lab.signal("central", "vtep-controller", nix::sys::signal::Signal::SIGTERM);
        self.lab.wait("central", "vtep-controller", Duration::from_secs(20));
        let after = self.vtepctl("tor1", &["list-remote-macs", "blue"])?;
        ensure!(after == before, "a signal changed the switch's tables:\n{before}{after}");
        self.ping("bm1", "10.0.0.1")?;
        self.vtep_controller()?;
        let pid = self.lab.pid("central", "vtep-controller").unwrap_or_default();
        let socket = self.lab.machine_dir("central").join(format!("vtep-controller.{pid}.ctl")).display().to_string();
        until("the controller is active again", Duration::from_secs(20), || {
            let status = self.lab.exec("central", "ovs-appctl", &["-t", &socket, "debug/status"])?;
            ensure!(status.contains(" active"), "{status}");
            Ok(())
        })?;
        self.lab.exec("central", "ovs-appctl", &["-t", &socket, "exit"])?;
        self.lab.wait("central", "vtep-controller", Duration::from_secs(20));
        until("clean tables", Duration::from_secs(10), || {
            let chassis = self.sbctl(&["--bare", "--columns=name", "find", "Chassis", "other_config:is-vtep=true"])?;
            let macs = self.vtepctl("tor2", &["list-remote-macs", "blue"])?;
            ensure!(chassis.trim().is_empty() && !macs.contains("->"), "{chassis} {macs}");
            Ok(())
        })
    }
}

/// Whether a lab can be made here; where it cannot, the test is skipped.
fn possible() -> bool {
    let there = ["vtep-ctl", "ovs-vswitchd", "ovsdb-server", "ovn-nbctl", "bridge", "tcpdump"];
    let emulator = "/usr/share/openvswitch/scripts/ovs-vtep";
    needs::root() && needs::installed(&there) && (installed("ovs-vtep") || needs::installed(&[emulator]))
}

fn scenario(name: &str, foreign: &'static [&'static str], more: &[&str]) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !possible() {
        return;
    }
    let bin = programs().expect("programs");
    for p in ["northd", "controller", "isthmusctl", "vtep-controller"].iter().chain(more) {
        assert!(bin.join(p).exists(), "{p} is not built: run `make test`, or cargo build --workspace --bins");
    }
    let mut lab = Lab::new("isvtep", &std::env::temp_dir().join("isthmus-vtep")).expect("lab");
    if std::env::var_os("KEEP").is_some() {
        lab.keep();
    }
    let mut network = match Network::start(lab, foreign) {
        Ok(n) => n,
        Err(e) => panic!("{name}: {e:#}"),
    };
    if let Err(e) = network.everything() {
        panic!("{name}: {e:#}");
    }
}

#[test]
fn switches_and_hypervisors_with_open_vswitch() {
    scenario("Open vSwitch", &["hv1", "hv2"], &[]);
}

#[test]
fn switches_and_a_hypervisor_with_our_dataplane() {
    scenario("our dataplane on hv1", &["hv2"], &["dpdk-dataplane"]);
}
