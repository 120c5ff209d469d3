//! Our programs, as the scenarios start them on machines of a lab.

use crate::lab::{Lab, until};
use crate::network::Vm;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the programs are: beside this one, or above a test's.
///
/// # Errors
/// Where this program's own place is not known.
pub fn programs() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.parent().context("no program directory")?;
    let above = dir.parent().filter(|_| dir.ends_with("deps"));
    Ok(above.unwrap_or(dir).to_path_buf())
}

/// What a daemon answers to a command at its control socket (JSON-RPC, ovs-appctl(8)).
///
/// # Errors
/// It does not answer, or with an error.
pub fn control(socket: &Path, command: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(serde_json::json!({"method": command, "params": [], "id": 0}).to_string().as_bytes())?;
    let answer = serde_json::Deserializer::from_reader(&stream).into_iter::<serde_json::Value>().next();
    let answer = answer.context("it closed the connection")??;
    match (answer.get("error").and_then(|e| e.as_str()), answer.get("result").and_then(|r| r.as_str())) {
        (Some(e), _) => bail!("{}", e.trim_end()),
        (None, Some(text)) => Ok(text.to_owned()),
        _ => bail!("{answer}"),
    }
}

/// The directory of our programs.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// The programs that were built with this one.
    ///
    /// # Errors
    /// Where this program's own place is not known.
    pub fn found() -> Result<Programs> {
        Ok(Programs(programs()?))
    }

    /// A program's path.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Starts the switch of a machine and waits for its database.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn switch(&self, lab: &mut Lab, machine: &str) -> Result<()> {
        let dir = lab.machine_dir(machine);
        let embed = format!("--embed={}", dir.display());
        lab.spawn(machine, "switch", &self.path("dpdk-dataplane"), &[&embed])?;
        let sock = dir.join("db.sock");
        until("the local database", Duration::from_secs(10), || std::fs::metadata(&sock).map_err(Into::into))?;
        Ok(())
    }

    /// `isthmusctl chassis ARGS` on the local database of a machine.
    ///
    /// # Errors
    /// Where it fails, with what it said.
    pub fn local(&self, lab: &Lab, machine: &str, args: &[&str]) -> Result<String> {
        let ovs = format!("unix:{}", lab.machine_dir(machine).join("db.sock").display());
        let mut all = vec!["chassis", "--ovs", ovs.as_str()];
        all.extend(args);
        lab.exec(machine, &self.path("isthmusctl"), &all)
    }

    /// Makes a machine a chassis of the same name that is its own central node: northd with its databases, the switch with
    /// the device `phys0` on its provider bridge, the controller. `patience`: how long a start may take.
    ///
    /// # Errors
    /// Where a program does not start.
    pub fn gateway(&self, lab: &mut Lab, machine: &str, patience: Duration) -> Result<()> {
        let dir = lab.machine_dir(machine);
        lab.spawn(machine, "northd", &self.path("northd"), &[&format!("--embed={}", dir.display())])?;
        until("northd", patience, || Ok(std::fs::metadata(dir.join("ovnsb_db.sock"))?))?;
        self.switch(lab, machine)?;
        self.local(lab, machine, &["bridge", "br-phys", "phys0"])?;
        let sb = format!("unix:{}", dir.join("ovnsb_db.sock").display());
        let set =
            ["set", "--name", machine, "--remote", &sb, "--encap-ip", "127.0.0.1", "--mapping", "physnet1:br-phys"];
        self.local(lab, machine, &set)?;
        let db = format!("unix:{}", dir.join("db.sock").display());
        lab.spawn(machine, "controller", &self.path("controller"), &["--pidfile", &db])
    }

    /// Plugs a virtual machine into the integration bridge of its hypervisor.
    ///
    /// # Errors
    /// Where the bridge does not appear, or refuses it.
    pub fn plug(&self, lab: &Lab, vm: Vm) -> Result<()> {
        let device = format!("v-{}", vm.name);
        lab.ip(vm.name, &["link", "set", "eth0", "address", vm.mac])?;
        until("the integration bridge", Duration::from_secs(15), || {
            self.local(lab, vm.host, &["plug", &device, vm.name])
        })?;
        Ok(())
    }
}
