//! The machines and wires of the gateway scenario.
//!
//! ```text
//!    vm1 (web)   vm2 (db)      vm3 (web)
//!       └───┐   ┌───┘             │
//!          hv1                   hv2         gw1         gw2        central (northd, databases)
//!           │                     │           │           │            │
//!  underlay ┴─────────────────────┴───────────┴───────────┘            │    Geneve, BFD
//!  management ─ every machine ─────────────────────────────────────────┘    OVSDB
//!           │                     │           │           │
//!  physical ┴─────────────────────┴───────────┴───────────┴── tor ── ext    VLAN 100
//! ```

use crate::lab::{Lab, run, until};
use crate::programs::Programs;
pub use crate::programs::programs;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Who plays a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Maker {
    /// Isthmus.
    #[default]
    Ours,
    /// The C programs of Debian's packages.
    Debian,
}

/// Who plays which part.
#[derive(Clone, Debug, Default)]
pub struct Cast {
    /// northd and, if it is ours, its embedded databases.
    pub northd: Maker,
    /// The northbound and southbound database servers.
    pub databases: Maker,
    /// Controllers by machine; ours where nothing is said.
    pub controllers: BTreeMap<String, Maker>,
    /// Switches by machine; ours where nothing is said.
    pub switches: BTreeMap<String, Maker>,
}

impl Cast {
    /// All parts by the C programs.
    pub fn debian() -> Cast {
        let switches = CHASSIS.iter().chain(&["tor"]).map(|m| ((*m).to_string(), Maker::Debian)).collect();
        Cast { switches, ..Cast::debian_control() }
    }

    /// Switches are ours, all else is of the C programs.
    pub fn debian_control() -> Cast {
        let controllers = CHASSIS.iter().map(|m| ((*m).to_string(), Maker::Debian)).collect();
        Cast { northd: Maker::Debian, databases: Maker::Debian, controllers, ..Cast::default() }
    }

    /// Who controls a machine.
    pub fn controller(&self, machine: &str) -> Maker {
        self.controllers.get(machine).copied().unwrap_or_default()
    }

    /// Whose a machine's switch is.
    pub fn switch(&self, machine: &str) -> Maker {
        self.switches.get(machine).copied().unwrap_or_default()
    }
}

/// The chassis.
pub const CHASSIS: [&str; 4] = ["hv1", "hv2", "gw1", "gw2"];

/// A virtual machine.
#[derive(Clone, Copy, Debug)]
pub struct Vm {
    /// Its name and logical port.
    pub name: &'static str,
    /// Its hypervisor.
    pub host: &'static str,
    /// Its Ethernet address.
    pub mac: &'static str,
}

/// The virtual machines of `demo.yaml`.
pub const VMS: [Vm; 3] = [
    Vm { name: "vm1", host: "hv1", mac: "02:00:00:00:01:01" },
    Vm { name: "vm2", host: "hv1", mac: "02:00:00:00:02:01" },
    Vm { name: "vm3", host: "hv2", mac: "02:00:00:00:01:02" },
];

/// The external host's address.
pub const EXTERNAL: &str = "172.16.0.254";

/// A running network.
#[derive(Debug)]
pub struct Network {
    /// Its lab.
    pub lab: Lab,
    /// Who plays which part.
    pub cast: Cast,
    programs: Programs,
}

fn index(machine: &str) -> usize {
    CHASSIS.iter().position(|m| *m == machine).map_or(10, |n| n + 11)
}

/// A chassis' address in the underlay.
pub fn underlay_ip(machine: &str) -> String {
    format!("192.168.50.{}", index(machine))
}

const CENTRAL: &str = "192.168.60.10";
const NB_PORT: u16 = 6641;
const SB_PORT: u16 = 6642;

impl Network {
    /// The southbound and northbound databases' remotes as machines reach them.
    pub fn remotes() -> (String, String) {
        (format!("tcp:{CENTRAL}:{NB_PORT}"), format!("tcp:{CENTRAL}:{SB_PORT}"))
    }

    /// Builds the machines and wires and starts everything up to the chassis.
    ///
    /// # Errors
    /// Where something cannot be made or does not start.
    pub fn start(mut lab: Lab, cast: Cast, mut progress: impl FnMut(&str)) -> Result<Network> {
        let programs = Programs::found()?;
        progress("machines and wires");
        wires(&mut lab)?;
        let mut n = Network { lab, cast, programs };
        progress("central: northd and databases");
        n.central()?;
        for m in CHASSIS.iter().chain(&["tor"]) {
            progress(&format!("{m}: switch{}", if *m == "tor" { "" } else { " and controller" }));
            n.switch(m)?;
        }
        n.tor()?;
        for m in CHASSIS {
            n.chassis(m)?;
        }
        for vm in VMS {
            n.plug(vm)?;
        }
        Ok(n)
    }

    /// A program's path.
    pub fn program(&self, name: &str) -> String {
        self.programs.path(name)
    }

    /// Runs isthmusctl on a machine.
    ///
    /// # Errors
    /// Where it fails, with what it said.
    pub fn ctl(&self, machine: &str, args: &[&str]) -> Result<String> {
        let (nb, sb) = Network::remotes();
        let mut all = vec!["--nb", nb.as_str(), "--sb", sb.as_str()];
        all.extend(args);
        self.lab.exec(machine, &self.program("isthmusctl"), &all)
    }

    fn central(&mut self) -> Result<()> {
        let dir = self.lab.machine_dir("central");
        let path = |f: &str| dir.join(f).display().to_string();
        let (nb_listen, sb_listen) = (format!("ptcp:{NB_PORT}:0.0.0.0"), format!("ptcp:{SB_PORT}:0.0.0.0"));
        if self.cast.databases == Maker::Debian {
            for (name, schema, listen) in [("nb", "ovn-nb", &nb_listen), ("sb", "ovn-sb", &sb_listen)] {
                let mut file = format!("/usr/share/ovn/{schema}.ovsschema");
                if self.cast.northd == Maker::Ours {
                    // The server is Debian's, the schema that of OVN 26.03.
                    let database = if name == "nb" { "OVN_Northbound" } else { "OVN_Southbound" };
                    file = path(&format!("{name}.ovsschema"));
                    std::fs::write(&file, run(&self.program("isthmusctl"), &["schema", database])?)?;
                }
                run("ovsdb-tool", &["create", &path(&format!("{name}.db")), &file])?;
                let socket = format!("punix:{}", path(&format!("ovn{name}_db.sock")));
                let ctl = path(&format!("{name}.ctl"));
                let remotes = [format!("--remote={socket}"), format!("--remote={listen}"), format!("--unixctl={ctl}")];
                let db = path(&format!("{name}.db"));
                let args: Vec<&str> = remotes.iter().map(String::as_str).chain([db.as_str()]).collect();
                self.lab.spawn("central", name, "ovsdb-server", &args)?;
            }
            let sock = dir.join("ovnsb_db.sock");
            until("the databases", Duration::from_secs(5), || std::fs::metadata(&sock).map_err(Into::into))?;
        }
        let nb = format!("--ovnnb-db=unix:{}", path("ovnnb_db.sock"));
        let sb = format!("--ovnsb-db=unix:{}", path("ovnsb_db.sock"));
        match (self.cast.northd, self.cast.databases) {
            (Maker::Debian, _) => self.lab.spawn("central", "northd", "ovn-northd", &[&nb, &sb])?,
            (Maker::Ours, Maker::Debian) => {
                self.lab.spawn("central", "northd", &self.program("northd"), &[&nb, &sb])?
            }
            (Maker::Ours, Maker::Ours) => {
                let embed = format!("--embed={}", dir.display());
                // One server serves both databases; it listens on both of the ports that people expect.
                let (nb, sb) = (format!("--listen={nb_listen}"), format!("--listen={sb_listen}"));
                self.lab.spawn("central", "northd", &self.program("northd"), &[&embed, &nb, &sb])?;
            }
        }
        until("northd", Duration::from_secs(10), || {
            let (nb, _) = Network::remotes();
            self.ctl("central", &["--timeout", "1", "db", &nb, "tables", "OVN_Northbound"])
        })?;
        Ok(())
    }

    /// Starts northd and the databases after they ended.
    ///
    /// # Errors
    /// Where they do not start.
    pub fn central_again(&mut self) -> Result<()> {
        self.central()
    }

    /// Starts a machine's switch.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn switch(&mut self, machine: &str) -> Result<()> {
        match self.cast.switch(machine) {
            Maker::Ours => self.programs.switch(&mut self.lab, machine),
            Maker::Debian => self.lab.open_vswitch(machine, &["vswitch"]),
        }
    }

    fn local(&self, machine: &str, args: &[&str]) -> Result<String> {
        self.programs.local(&self.lab, machine, args)
    }

    fn datapath(&self, machine: &str) -> Vec<&'static str> {
        // Open vSwitch without its kernel module.
        if self.cast.switch(machine) == Maker::Debian { vec!["--datapath-type", "netdev"] } else { Vec::new() }
    }

    /// The physical switch: trunks to the chassis, an access port to the external host.
    fn tor(&mut self) -> Result<()> {
        let mut args = vec!["bridge", "br-tor"];
        args.extend(self.datapath("tor"));
        let trunks: Vec<String> = CHASSIS.iter().map(|m| format!("p-{m}")).collect();
        args.extend(trunks.iter().map(String::as_str));
        args.push("p-ext=100");
        self.local("tor", &args)?;
        Ok(())
    }

    fn chassis(&mut self, machine: &str) -> Result<()> {
        let kind = self.datapath(machine);
        for (bridge, device) in [("br-under", "under0"), ("br-phys", "phys0")] {
            let mut args = vec!["bridge", bridge, device];
            args.extend(&kind);
            self.local(machine, &args)?;
        }
        self.address(machine)?;
        let ip = underlay_ip(machine);
        let (_, sb) = Network::remotes();
        let mut args =
            vec!["set", "--name", machine, "--remote", &sb, "--encap-ip", &ip, "--mapping", "physnet1:br-phys"];
        args.extend(&kind);
        self.local(machine, &args)?;
        self.controller(machine)
    }

    /// Gives the underlay's bridge its address.
    ///
    /// # Errors
    /// Where the bridge's interface does not come up.
    pub fn address(&self, machine: &str) -> Result<()> {
        address(&self.lab, machine, &underlay_ip(machine))
    }

    /// Starts a chassis' controller.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn controller(&mut self, machine: &str) -> Result<()> {
        let db = format!("unix:{}", self.lab.machine_dir(machine).join("db.sock").display());
        let program = match self.cast.controller(machine) {
            Maker::Ours => self.program("controller"),
            Maker::Debian => "ovn-controller".into(),
        };
        self.lab.spawn(machine, "controller", &program, &[&db])
    }

    fn plug(&mut self, vm: Vm) -> Result<()> {
        self.programs.plug(&self.lab, vm)
    }

    /// Lets every virtual machine ask for its address.
    ///
    /// # Errors
    /// Where one gets none.
    pub fn addresses(&self) -> Result<()> {
        for vm in VMS {
            until(&format!("{}'s address", vm.name), Duration::from_secs(20), || {
                self.lab.exec(vm.name, &self.agent(), &["agent", "dhcp", "eth0"])
            })?;
        }
        Ok(())
    }

    /// The program that holds the agents.
    pub fn agent(&self) -> String {
        self.program("isthmus-lab")
    }

    /// Applies a description of the logical network.
    ///
    /// # Errors
    /// Where it fails, with what was said.
    pub fn apply(&self, file: &Path) -> Result<String> {
        let file = file.display().to_string();
        self.ctl("central", &["apply", "-f", &file])
    }
}

/// Gives the underlay's bridge of a machine its address.
///
/// # Errors
/// Where the bridge's interface does not come up.
pub fn address(lab: &Lab, machine: &str, ip: &str) -> Result<()> {
    let ip = format!("{ip}/24");
    until("the bridge br-under", Duration::from_secs(10), || {
        lab.ip(machine, &["addr", "replace", &ip, "dev", "br-under"])
    })?;
    lab.ip(machine, &["link", "set", "br-under", "up", "mtu", "1600"])?;
    Ok(())
}

/// The machine `fabric` with an underlay and a management network.
///
/// # Errors
/// Where it cannot be made.
pub fn fabric(lab: &mut Lab) -> Result<()> {
    lab.machine("fabric")?;
    for bridge in ["under", "mgmt"] {
        lab.ip("fabric", &["link", "add", bridge, "type", "bridge"])?;
        lab.ip("fabric", &["link", "set", bridge, "up"])?;
    }
    Ok(())
}

/// Puts a machine on the management network, as `mgmt0`.
///
/// # Errors
/// Where the link cannot be made.
pub fn manage(lab: &Lab, machine: &str, ip: &str) -> Result<()> {
    let far = format!("m-{machine}");
    lab.link((machine, "mgmt0"), ("fabric", &far))?;
    lab.ip("fabric", &["link", "set", &far, "master", "mgmt"])?;
    lab.ip(machine, &["addr", "add", &format!("{ip}/24"), "dev", "mgmt0"])?;
    Ok(())
}

/// Puts a machine on the underlay, as `under0`.
///
/// # Errors
/// Where the link cannot be made.
pub fn underlay(lab: &Lab, machine: &str) -> Result<()> {
    let far = format!("u-{machine}");
    lab.link((machine, "under0"), ("fabric", &far))?;
    lab.ip("fabric", &["link", "set", &far, "master", "under"])?;
    // Room for Geneve around whole packets.
    lab.ip(machine, &["link", "set", "under0", "mtu", "1600"])?;
    lab.ip("fabric", &["link", "set", &far, "mtu", "1600"])?;
    // A bridge takes the smallest MTU of its ports unless it is told.
    lab.ip("fabric", &["link", "set", "under", "mtu", "1600"])?;
    Ok(())
}

/// Machines, an underlay, a management network, and links to the physical switch.
fn wires(lab: &mut Lab) -> Result<()> {
    fabric(lab)?;
    for m in ["central", "tor", "ext"].iter().chain(&CHASSIS) {
        lab.machine(m)?;
    }
    for vm in VMS {
        lab.machine(vm.name)?;
    }
    manage(lab, "central", CENTRAL)?;
    for m in CHASSIS {
        manage(lab, m, &format!("192.168.60.{}", index(m)))?;
        underlay(lab, m)?;
        lab.link((m, "phys0"), ("tor", &format!("p-{m}")))?;
    }
    lab.link(("ext", "eth0"), ("tor", "p-ext"))?;
    lab.ip("ext", &["addr", "add", &format!("{EXTERNAL}/24"), "dev", "eth0"])?;
    for vm in VMS {
        lab.link((vm.name, "eth0"), (vm.host, &format!("v-{}", vm.name)))?;
    }
    Ok(())
}
