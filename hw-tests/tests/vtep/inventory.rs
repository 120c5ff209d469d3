//! The same on a real switch that an inventory names: a hypervisor of the lab gets a real interface, the controller the
//! switch's real database. The switch has to be configured as docs/vtep.md says (steps 1 and 2), with one server behind it.
//!
//! ```text
//! ISTHMUS_INVENTORY=tor.json cargo test -p hw-tests --test vtep a_switch_of_the_inventory
//!
//! {"switch": "tor9", "database": "tcp:192.0.2.1:6640", "tunnel_ip": "192.0.2.31", "logical_switch": "blue",
//!  "interface": "eth1", "address": "192.0.2.11/24", "server": "10.0.0.102"}
//! ```

use crate::{HOSTS, Network, ONE, possible};
use anyhow::{Context, Result, ensure};
use hw_tests::lab::{Lab, run, until};
use hw_tests::network::programs;
use serde::Deserialize;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A real switch and how to reach it.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Inventory {
    /// The name of its `Physical_Switch`.
    switch: String,
    /// Its hardware_vtep database.
    database: String,
    /// Its tunnel endpoint.
    tunnel_ip: String,
    /// The `Logical_Switch` that the server's VLAN is bound to.
    logical_switch: String,
    /// This machine's interface towards it; it is given to the lab for the time of the test.
    interface: String,
    /// The address that this machine has in the underlay, with the prefix length.
    address: String,
    /// The server's address, in 10.0.0.0/24.
    server: String,
}

/// The controller in this machine's own network, from where the switch's database is reached.
struct Controller(Child);

impl Controller {
    fn start(n: &Network, inventory: &Inventory) -> Result<Controller> {
        let dir = n.lab.machine_dir("central");
        let child = Command::new(n.program("vtep-controller"))
            .env("OVS_RUNDIR", &dir)
            .env("OVN_RUNDIR", &dir)
            .env("OVS_SYSLOG_METHOD", "null")
            .arg(format!("--vtep-db={}", inventory.database))
            .arg(format!("--ovnsb-db={}", n.socket("central", "ovnsb_db.sock")))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Controller(child))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Inventory {
    fn list(&self) -> Result<String> {
        let db = format!("--db={}", self.database);
        run("vtep-ctl", &[&db, "--timeout=10", "list-remote-macs", &self.logical_switch])
    }

    fn knows(&self, mac: &str, ip: &str) -> Result<()> {
        until(&format!("{mac} at {ip} in {}", self.switch), Duration::from_secs(30), || {
            let list = self.list()?;
            ensure!(list.lines().any(|l| l.contains(mac) && l.contains(&format!("/{ip}"))), "{list}");
            Ok(())
        })
    }

    fn scenario(&self, lab: &str) -> Result<()> {
        let lab = Lab::new(lab, &std::env::temp_dir().join(lab))?;
        let mut n = Network { lab, bin: programs()?, foreign: &["hv1"], tor2: None };
        for m in ["central", "hv1", "vm1"] {
            n.lab.machine(m)?;
        }
        run("ip", &["link", "set", &self.interface, "down"])?;
        run("ip", &["link", "set", &self.interface, "netns", &n.lab.namespace("hv1"), "name", "under0"])
            .with_context(|| format!("interface {} of the inventory", self.interface))?;
        let result = self.checks(&mut n);
        // The interface comes back under its own name.
        n.lab.kill("hv1", "switch");
        let back = ["link", "set", "under0", "down", "netns", "1", "name", self.interface.as_str()];
        let back = n.lab.ip("hv1", &back);
        result.and(back.map(|_| ()))
    }

    fn checks(&self, n: &mut Network) -> Result<()> {
        n.lab.ip("hv1", &["link", "set", "under0", "up", "mtu", "1600"])?;
        n.lab.link(("vm1", "eth0"), ("hv1", "v-vm1"))?;
        let (vm, mac, ip) = HOSTS[0];
        n.lab.ip("vm1", &["link", "set", "eth0", "address", mac])?;
        n.lab.ip("vm1", &["addr", "add", &format!("{ip}/24"), "broadcast", "10.0.0.255", "dev", "eth0"])?;
        n.central()?;
        n.hypervisor("hv1", &self.address)?;
        let (physical, logical) =
            (format!("vtep-physical-switch={}", self.switch), format!("vtep-logical-switch={}", self.logical_switch));
        n.nbctl(&[
            "ls-add",
            "real",
            "--",
            "lsp-add",
            "real",
            vm,
            "--",
            "lsp-set-addresses",
            vm,
            &format!("{mac} {ip}"),
        ])?;
        n.nbctl(&[
            "lsp-add",
            "real",
            "real-tor",
            "--",
            "lsp-set-type",
            "real-tor",
            "vtep",
            "--",
            "lsp-set-addresses",
            "real-tor",
            "unknown",
            "--",
            "lsp-set-options",
            "real-tor",
            &physical,
            &logical,
        ])?;
        let mut controller = Controller::start(n, self)?;
        let endpoint = self.address.split('/').next().unwrap_or_default();
        self.knows(mac, endpoint)?;
        let encap = n.sbctl(&["--bare", "--columns=ip", "find", "Encap", &format!("chassis_name={}", self.switch)])?;
        ensure!(encap.split_whitespace().any(|e| e == self.tunnel_ip), "the switch says that its tunnel IP is {encap}");
        n.ping("vm1", &self.server)?;
        // A packet that is for many reaches the server once, if it answers those at all.
        let answers = n.answers("vm1", "10.0.0.255").unwrap_or_default();
        ensure!(answers.get(&self.server).is_none_or(|n| *n == 1), "{answers:?}");
        until("the server's MAC southbound", Duration::from_secs(30), || {
            let fdb = n.sbctl(&["--bare", "--columns=mac", "list", "FDB"])?;
            ensure!(!fdb.trim().is_empty(), "FDB is empty");
            Ok(())
        })?;
        // A controller that is killed changes nothing; the next one goes on.
        let before = self.list()?;
        drop(controller);
        n.ping("vm1", &self.server)?;
        ensure!(self.list()? == before, "a crash changed the switch's tables");
        controller = Controller::start(n, self)?;
        let id = nix::unistd::Pid::from_raw(controller.0.id() as i32);
        let socket = n.lab.machine_dir("central").join(format!("vtep-controller.{id}.ctl")).display().to_string();
        until("the controller is active again", Duration::from_secs(20), || {
            let status = run("ovs-appctl", &["-t", &socket, "debug/status"])?;
            ensure!(status.contains(" active"), "{status}");
            Ok(())
        })?;
        run("ovs-appctl", &["-t", &socket, "exit"])?;
        until("clean tables after exit", Duration::from_secs(20), || {
            let list = self.list()?;
            ensure!(!list.contains(mac), "{list}");
            Ok(())
        })
    }
}

#[test]
fn a_switch_of_the_inventory() {
    let Some(path) = std::env::var_os("ISTHMUS_INVENTORY") else {
        needs::skip_always("ISTHMUS_INVENTORY names no inventory of a real switch");
        return;
    };
    let text = std::fs::read_to_string(&path).expect("inventory");
    let inventory: Inventory = serde_json::from_str(&text).expect("inventory");
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if possible()
        && let Err(e) = inventory.scenario("isreal")
    {
        panic!("{e:#}");
    }
}

/// The scenario itself, on a switch that is none: the kernel's, in a namespace at the end of a cable.
#[test]
fn the_inventory_scenario_itself() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !possible() {
        return;
    }
    let result = (|| -> Result<()> {
        let mut lab = Lab::new("isfake", &std::env::temp_dir().join("isfake"))?;
        lab.machine("tor")?;
        lab.machine("server")?;
        let ns = lab.namespace("tor");
        run("ip", &["link", "add", "isfake0", "type", "veth", "peer", "name", "u0", "netns", &ns])?;
        for (program, args) in
            [("ethtool", &["-K", "isfake0", "tx", "off"][..]), ("ip", &["link", "set", "isfake0", "up"])]
        {
            run(program, args)?;
        }
        lab.exec("tor", "ethtool", &["-K", "u0", "tx", "off"])?;
        lab.ip("tor", &["link", "set", "u0", "up", "mtu", "1600"])?;
        lab.ip("tor", &["addr", "add", "192.168.50.32/24", "dev", "u0"])?;
        lab.link(("server", "eth0"), ("tor", "p0"))?;
        lab.ip("server", &["addr", "add", "10.0.0.102/24", "dev", "eth0"])?;
        lab.exec("server", "sysctl", &["-w", "net.ipv4.icmp_echo_ignore_broadcasts=0"])?;
        let dir = lab.machine_dir("tor");
        let _switch = crate::kernel::Switch::start(&ns, &dir, "tor9", "192.168.50.32", "p0", "blue");
        until("the switch's database", Duration::from_secs(10), || Ok(std::fs::metadata(dir.join("vtep.sock"))?))?;
        let inventory = Inventory {
            switch: "tor9".into(),
            database: format!("unix:{}", dir.join("vtep.sock").display()),
            tunnel_ip: "192.168.50.32".into(),
            logical_switch: "blue".into(),
            interface: "isfake0".into(),
            address: "192.168.50.11/24".into(),
            server: "10.0.0.102".into(),
        };
        inventory.scenario("isreal")
    })();
    // Where the scenario failed the cable may be left.
    let _ = run("ip", &["link", "del", "isfake0"]);
    if let Err(e) = result {
        panic!("{e:#}");
    }
}
