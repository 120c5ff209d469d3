//! A rack: a switch that is no OVN, a machine behind it, a boot server, and a chassis that serves the machine's external port.
//!
//! ```text
//!   bm1 (or QEMU's tap0) ──┐
//!                          tor (the kernel's bridge; boot server 10.0.0.2, fd00::2) ── gw1 (northd, switch, controller)
//!                           └── gw2, gw3 (more gateways, where there are: northd is then on a machine of its own)
//! ```

use anyhow::{Context, Result, ensure};
use hw_tests::lab::{Lab, until};
use hw_tests::network::{address, fabric, manage, underlay};
use hw_tests::programs::Programs;
use std::path::PathBuf;
use std::time::Duration;

/// The machine's Ethernet address.
pub const MAC: &str = "02:00:00:00:0b:01";
/// How long a step may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The DHCP options of its port, both ways, without those about booting.
const V4: &str = "server_id=10.0.0.1 server_mac=02:00:00:00:00:01 lease_time=3600 router=10.0.0.1 dns_server=10.0.0.1 \
                  domain_name=\"rack.test\" mtu=1400";
const V6: &str = "server_id=02:00:00:00:00:01 dns_server=fd00::1 domain_search=\"rack.test\"";

/// The rack.
pub struct Rack {
    pub lab: Lab,
    programs: Programs,
    options: [String; 2],
    /// The machine of the northbound database.
    central: &'static str,
}

/// What a gateway of a group dies with.
const GATEWAY: [&str; 2] = ["switch", "controller"];

impl Rack {
    /// Builds it and waits until its chassis serves the machine's port.
    pub fn start() -> Result<Rack> {
        let mut rack = Rack::wired(&["gw1"])?;
        rack.programs.gateway(&mut rack.lab, "gw1", PATIENCE)?;
        rack.network(&["gw1 10"])?;
        Ok(rack)
    }

    /// The same with several gateways, of which the first is preferred to the second and so on, and a central machine.
    pub fn with_gateways(gateways: &[&str]) -> Result<Rack> {
        let mut rack = Rack::wired(gateways)?;
        rack.central = "central";
        let lab = &mut rack.lab;
        lab.machine("central")?;
        fabric(lab)?;
        manage(lab, "central", "192.168.60.10")?;
        let dir = lab.machine_dir("central");
        let (embed, listen) = (format!("--embed={}", dir.display()), "--listen=ptcp:6642:192.168.60.10");
        lab.spawn("central", "northd", &rack.programs.path("northd"), &[&embed, listen])?;
        until("northd", PATIENCE, || Ok(std::fs::metadata(dir.join("ovnsb_db.sock"))?))?;
        for (n, gw) in gateways.iter().enumerate() {
            manage(&rack.lab, gw, &format!("192.168.60.{}", n + 11))?;
            underlay(&rack.lab, gw)?;
            rack.switch(gw)?;
            let (lab, p, ip) = (&rack.lab, &rack.programs, underlay_ip(gw));
            p.local(lab, gw, &["bridge", "br-phys", "phys0"])?;
            p.local(lab, gw, &["bridge", "br-under", "under0"])?;
            address(lab, gw, &ip)?;
            let remote = "tcp:192.168.60.10:6642";
            let set = ["set", "--name", gw, "--remote", remote, "--encap-ip", &ip, "--mapping", "physnet1:br-phys"];
            p.local(lab, gw, &set)?;
            rack.controller(gw)?;
        }
        let members: Vec<String> =
            gateways.iter().rev().enumerate().map(|(n, gw)| format!("{gw} {}", 10 * (n + 1))).rev().collect();
        rack.network(&members.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(rack)
    }

    fn switch(&mut self, gateway: &str) -> Result<()> {
        self.programs.switch(&mut self.lab, gateway)
    }

    fn controller(&mut self, gateway: &str) -> Result<()> {
        let db = format!("unix:{}", self.lab.machine_dir(gateway).join("db.sock").display());
        self.lab.spawn(gateway, "controller", &self.programs.path("controller"), &["--pidfile", &db])
    }

    /// Starts a gateway that was killed.
    pub fn revive(&mut self, gateway: &str) -> Result<()> {
        self.switch(gateway)?;
        address(&self.lab, gateway, &underlay_ip(gateway))?;
        self.controller(gateway)
    }

    /// Ends a gateway's switch and controller as a power cut does.
    pub fn kill(&mut self, gateway: &str) {
        for key in GATEWAY {
            self.lab.kill(gateway, key);
        }
    }

    /// Takes a gateway's wires away; its programs run on.
    pub fn cut(&self, gateway: &str) -> Result<()> {
        for (switch, wire) in [("tor", "p"), ("fabric", "u"), ("fabric", "m")] {
            self.lab.ip(switch, &["link", "set", &format!("{wire}-{gateway}"), "down"])?;
        }
        Ok(())
    }

    /// Takes a gateway's tunnels away, or gives them back; it reaches the machine and the databases.
    pub fn underlay(&self, gateway: &str, state: &str) -> Result<()> {
        self.lab.ip("fabric", &["link", "set", &format!("u-{gateway}"), state])?;
        Ok(())
    }

    /// The machines without their programs.
    fn wired(gateways: &[&str]) -> Result<Rack> {
        let mut lab = Lab::new("isboot", &std::env::temp_dir().join("isthmus-boot"))?;
        let programs = Programs::found()?;
        for m in gateways.iter().chain(&["tor", "bm1"]) {
            lab.machine(m)?;
        }
        lab.ip("tor", &["link", "add", "br0", "type", "bridge"])?;
        for (machine, device) in gateways.iter().map(|gw| (*gw, "phys0")).chain([("bm1", "eth0")]) {
            let far = format!("p-{machine}");
            lab.link((machine, device), ("tor", &far))?;
            lab.ip("tor", &["link", "set", &far, "master", "br0"])?;
        }
        lab.ip("tor", &["link", "set", "br0", "up"])?;
        lab.ip("tor", &["addr", "add", "10.0.0.2/24", "dev", "br0"])?;
        lab.ip("tor", &["addr", "add", "fd00::2/64", "dev", "br0", "nodad"])?;
        lab.ip("bm1", &["link", "set", "eth0", "address", MAC])?;
        // Its kernel takes part in nothing that its clients are to learn.
        lab.exec("bm1", "sh", &["-c", "echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_ra"])?;
        Ok(Rack { lab, programs, options: Default::default(), central: "gw1" })
    }

    /// The logical network; `members` are those of the group that serves it, with their priorities.
    fn network(&mut self, members: &[&str]) -> Result<()> {
        self.nb("ls-add net -- lsp-add net ln -- lsp-set-type ln localnet -- lsp-set-addresses ln unknown")?;
        self.nb("lsp-set-options ln network_name=physnet1")?;
        self.nb("lr-add r -- lrp-add r r-net 02:00:00:00:00:01 10.0.0.1/24 fd00::1/64")?;
        self.nb("set logical_router_port r-net ipv6_ra_configs:address_mode=dhcpv6_stateful ipv6_ra_configs:mtu=1400")?;
        self.nb("lsp-add net net-r -- lsp-set-type net-r router -- lsp-set-addresses net-r router")?;
        self.nb("lsp-set-options net-r router-port=r-net")?;
        self.nb("ha-chassis-group-add g")?;
        for m in members {
            self.nb(&format!("ha-chassis-group-add-chassis g {m}"))?;
        }
        let group = self.nb("--bare --columns=_uuid find ha_chassis_group name=g")?;
        self.options[0] = self.nb("create dhcp_options cidr=10.0.0.0/24")?.trim().to_string();
        self.options[1] = self.nb("create dhcp_options cidr=fd00\\:\\:/64")?.trim().to_string();
        for (row, options) in self.options.iter().zip([V4, V6]) {
            for pair in options.split_whitespace() {
                let (name, value) = pair.split_once('=').context("an option")?;
                self.set(&["set", "dhcp_options", row, &format!("options:{name}={}", quoted(value))])?;
            }
        }
        self.set(&["lsp-add", "net", "bm1"])?;
        self.set(&["lsp-set-addresses", "bm1", &format!("{MAC} 10.0.0.4 fd00::4")])?;
        self.set(&["lsp-set-dhcpv4-options", "bm1", &self.options[0]])?;
        self.set(&["lsp-set-dhcpv6-options", "bm1", &self.options[1]])?;
        self.set(&[
            "set",
            "logical_switch_port",
            "bm1",
            "type=external",
            &format!("ha_chassis_group={}", group.trim()),
        ])?;
        let names = "records={\"bm1.rack.test\"=\"10.0.0.4 fd00::4\",\"4.0.0.10.in-addr.arpa\"=\"bm1.rack.test\"}";
        let dns = self.set(&["create", "dns", names])?;
        self.set(&["set", "logical_switch", "net", &format!("dns_records={}", dns.trim())])?;
        self.set(&["--wait=hv", "--timeout=60", "sync"])?;
        Ok(())
    }

    fn nb(&self, words: &str) -> Result<String> {
        self.set(&words.split(' ').collect::<Vec<_>>())
    }

    /// Runs Debian's ovn-nbctl.
    pub fn set(&self, args: &[&str]) -> Result<String> {
        let db = format!("--db=unix:{}", self.lab.machine_dir(self.central).join("ovnnb_db.sock").display());
        self.lab.exec(self.central, "ovn-nbctl", &[&[db.as_str()], args].concat())
    }

    /// Says what machines of a kind load by DHCPv4.
    pub fn boot(&self, rules: &[(&str, &str)]) -> Result<()> {
        self.rules(&self.options[0], rules)
    }

    /// The same by DHCPv6; by DHCPv4 they get no answer.
    pub fn boot_by_v6(&self, rules: &[(&str, &str)]) -> Result<()> {
        self.set(&["clear", "logical_switch_port", "bm1", "dhcpv4_options"])?;
        self.rules(&self.options[1], rules)
    }

    fn rules(&self, options: &str, rules: &[(&str, &str)]) -> Result<()> {
        for (kind, file) in rules {
            let key = format!("external_ids:{}={}", quoted(&format!("boot:{kind}")), quoted(file));
            self.set(&["set", "dhcp_options", options, &key])?;
        }
        self.set(&["--wait=hv", "--timeout=60", "sync"])?;
        Ok(())
    }

    /// What the chassis' controller says of the machine.
    pub fn trace(&self) -> Result<String> {
        self.trace_of("gw1")
    }

    /// What a gateway's controller says of the machine.
    pub fn trace_of(&self, gateway: &str) -> Result<String> {
        self.lab.exec(gateway, &self.programs.path("isthmusctl"), &["dhcp", "trace", MAC])
    }

    /// Changes a DHCP option of the machine's port, `dhcpv4` or `dhcpv6`.
    pub fn option(&self, family: &str, name: &str, value: &str) -> Result<()> {
        let row = &self.options[usize::from(family == "dhcpv6")];
        self.set(&["set", "dhcp_options", row, &format!("options:{name}={}", quoted(value))])?;
        self.set(&["--wait=hv", "--timeout=60", "sync"])?;
        Ok(())
    }

    /// Serves files by TFTP and HTTP on the boot server.
    pub fn serve(&mut self, files: &[(&str, &[u8])]) -> Result<PathBuf> {
        let dir = self.lab.machine_dir("tor").join("files");
        std::fs::create_dir_all(&dir)?;
        for (name, content) in files {
            std::fs::write(dir.join(name), content)?;
        }
        let root = dir.display().to_string();
        let tftp = format!("--tftp-root={root}");
        let quiet = [
            "--port=0",
            "--keep-in-foreground",
            "--user=root",
            "--conf-file=/dev/null",
            "--pid-file",
            "--log-facility=-",
        ];
        self.lab.spawn("tor", "tftp", "dnsmasq", &[&quiet[..], &["--enable-tftp", &tftp]].concat())?;
        self.lab.spawn("tor", "http", "busybox", &["httpd", "-f", "-v", "-p", "80", "-h", &root])?;
        Ok(dir)
    }

    /// Runs QEMU as the machine until a line stands on its serial console.
    pub fn machine(&mut self, args: &[&str], nic: &str, line: &str, limit: Duration) -> Result<()> {
        self.power_on(args, nic)?;
        self.console(line, limit)
    }

    /// Starts QEMU as the machine.
    pub fn power_on(&mut self, args: &[&str], nic: &str) -> Result<()> {
        // The other machine of this address is off.
        self.lab.ip("bm1", &["link", "set", "eth0", "down"])?;
        for words in ["tuntap add tap0 mode tap", "link set tap0 master br0 up"] {
            self.lab.ip("tor", &words.split(' ').collect::<Vec<_>>())?;
        }
        let (serial, nic) =
            (format!("file:{}", self.serial().display()), format!("virtio-net-pci,netdev=n,mac={MAC}{nic}"));
        let fixed =
            ["-accel", "tcg", "-m", "256", "-display", "none", "-vga", "none", "-monitor", "none", "-no-reboot"];
        let net = ["-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-device", &nic, "-serial", &serial];
        self.lab.spawn("tor", "qemu", "qemu-system-x86_64", &[&fixed[..], &net, args].concat())
    }

    fn serial(&self) -> PathBuf {
        self.lab.machine_dir("tor").join("serial")
    }

    /// Waits until a line stands on the machine's serial console.
    pub fn console(&self, line: &str, limit: Duration) -> Result<()> {
        let read = || String::from_utf8_lossy(&std::fs::read(self.serial()).unwrap_or_default()).into_owned();
        let seen = until("the boot loader's line", limit, || {
            ensure!(read().contains(line), "{line:?} is not there");
            Ok(())
        });
        let said = self.lab.output("tor", "qemu");
        seen.with_context(|| format!("{}\nqemu: {said}\n{}", read(), self.trace().unwrap_or_else(|e| e.to_string())))
    }
}

/// A gateway's address in the underlay: gw1 has 192.168.50.11.
fn underlay_ip(gateway: &str) -> String {
    format!("192.168.50.1{}", gateway.trim_start_matches("gw"))
}

/// A value as ovn-nbctl takes it whatever stands in it.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('"', "\\\""))
}

/// A script of a DHCP client that writes its variables into a file.
pub fn script(rack: &Rack, name: &str) -> Result<(String, PathBuf)> {
    use std::os::unix::fs::PermissionsExt;
    let (script, out) =
        (rack.lab.machine_dir("bm1").join(name), rack.lab.machine_dir("bm1").join(format!("{name}.env")));
    std::fs::write(&script, format!("#!/bin/sh\n{{ echo event=$1; env; }} >> {}\nexit 0\n", out.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok((script.display().to_string(), out))
}

/// The same of a file.
pub fn lines(path: &std::path::Path, wanted: &[&str]) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    has(&text, wanted)
}

/// Whether a text has all of these; an error shows what is there instead.
pub fn has(text: &str, wanted: &[&str]) -> Result<()> {
    for w in wanted {
        ensure!(text.contains(w), "{w:?} is not in\n{text}");
    }
    Ok(())
}
