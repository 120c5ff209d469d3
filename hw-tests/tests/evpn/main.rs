//! A logical switch in a VXLAN fabric with EVPN (RFC 8365): FRR speaks BGP beside the controller and on a VTEP that is the kernel's own. Over
//! IPv6, where Debian's FRR knows no VTEPs, the test does what a routing daemon does.
//!
//! ```text
//!   vm1, vm2 ── switch ── br-under ════ VXLAN, BGP ════ eth0 ── vxlan-10 ── br-10 ── host
//!             gw1: northd, switch, controller, FRR         far: FRR
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::{Guard, able};
use hw_tests::frr;
use hw_tests::lab::{Lab, until};
use hw_tests::network::Vm;
use hw_tests::programs::Programs;
use std::time::Duration;

/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const VMS: [Vm; 2] = [
    Vm { name: "vm1", host: "gw1", mac: "02:00:00:00:10:11" },
    Vm { name: "vm2", host: "gw1", mac: "02:00:00:00:10:12" },
];
/// The Ethernet address of the host behind the far VTEP.
const HOST: &str = "02:00:00:00:10:50";

/// The addresses of an underlay: the gateway's, the far VTEP's, and the length of their prefix.
#[derive(Clone, Copy)]
struct Underlay {
    gw1: &'static str,
    far: &'static str,
    length: u8,
    /// The UDP port of VTEPs.
    port: u16,
}

const V4: Underlay = Underlay { gw1: "192.0.2.1", far: "192.0.2.2", length: 24, port: 4789 };
const V6: Underlay = Underlay { gw1: "fd00:2::1", far: "fd00:2::2", length: 64, port: 5789 };

struct Site {
    lab: Lab,
    programs: Programs,
    under: Underlay,
}

impl Site {
    fn start(name: &str, under: Underlay) -> Result<Site> {
        let mut lab = Lab::new(name, &std::env::temp_dir().join(format!("isthmus-{name}")))?;
        let programs = Programs::found()?;
        for m in ["gw1", "far", "host", "vm1", "vm2"] {
            lab.machine(m)?;
        }
        lab.link(("gw1", "under0"), ("far", "eth0"))?;
        lab.link(("far", "port0"), ("host", "eth0"))?;
        let dir = lab.machine_dir("gw1");
        lab.spawn("gw1", "northd", &programs.path("northd"), &[&format!("--embed={}", dir.display())])?;
        until("northd", PATIENCE, || Ok(std::fs::metadata(dir.join("ovnsb_db.sock"))?))?;
        programs.switch(&mut lab, "gw1")?;
        programs.local(&lab, "gw1", &["bridge", "br-under", "under0"])?;
        until("the underlay's bridge", PATIENCE, || lab.ip("gw1", &["link", "set", "br-under", "up"]))?;
        let words = if under.gw1.contains(':') { 6 } else { 5 };
        for (machine, device, ip) in [("gw1", "br-under", under.gw1), ("far", "eth0", under.far)] {
            lab.ip(machine, &["addr", "add", &format!("{ip}/{}", under.length), "dev", device, "nodad"][..words])?;
        }
        let sb = format!("unix:{}", dir.join("ovnsb_db.sock").display());
        programs.local(&lab, "gw1", &["set", "--name", "gw1", "--remote", &sb, "--encap-ip", "127.0.0.1"])?;
        let mut site = Site { lab, programs, under };
        let ids =
            format!("external_ids:ovn-evpn-local-ip={} external_ids:ovn-evpn-vxlan-ports={}", under.gw1, under.port);
        site.ovs(&format!("set Open_vSwitch . {ids}"))?;
        site.controller()?;
        site.devices("gw1", 60010, under.gw1)?;
        site.devices("far", under.port, under.far)?;
        site.lab.ip("far", &["link", "set", "port0", "master", "br-10"])?;
        site.lab.ip("host", &["link", "set", "eth0", "address", HOST])?;
        for (vm, n) in [("vm1", 11), ("vm2", 12)] {
            site.lab.link((vm, "eth0"), ("gw1", &format!("v-{vm}")))?;
            site.address(vm, n)?;
        }
        site.address("host", 50)?;
        site.nb("ls-add net")?;
        for (vm, n) in VMS.into_iter().zip([11, 12]) {
            site.nb(&format!("lsp-add net {}", vm.name))?;
            let addresses = format!("addresses=\"{} 10.0.10.{n} fd00:10::{n}\"", vm.mac);
            site.nb(&format!("set logical_switch_port {} {addresses}", vm.name))?;
            site.programs.plug(&site.lab, vm)?;
        }
        Ok(site)
    }

    /// An address in the extended network.
    fn address(&self, machine: &str, n: u8) -> Result<()> {
        self.lab.ip(machine, &["addr", "add", &format!("10.0.10.{n}/24"), "dev", "eth0"])?;
        self.lab.ip(machine, &["addr", "add", &format!("fd00:10::{n}/64"), "dev", "eth0", "nodad"])?;
        Ok(())
    }

    /// The kernel's devices of VNI 10.
    fn devices(&self, machine: &str, port: u16, local: &str) -> Result<()> {
        self.lab.ip(machine, &["link", "add", "br-10", "type", "bridge"])?;
        self.lab.ip(machine, &["link", "set", "br-10", "up"])?;
        self.vxlan(machine, port, local)?;
        self.advertise(machine)
    }

    fn vxlan(&self, machine: &str, port: u16, local: &str) -> Result<()> {
        let port = port.to_string();
        let how = ["type", "vxlan", "id", "10", "dstport", &port, "local", local, "nolearning"];
        self.lab.ip(machine, &[&["link", "add", "vxlan-10"], &how[..]].concat())?;
        self.plug(machine, "vxlan-10")
    }

    /// A link that leads nowhere.
    fn advertise(&self, machine: &str) -> Result<()> {
        self.lab.ip(machine, &["link", "add", "lo-10", "type", "veth", "peer", "name", "nowhere"])?;
        self.lab.ip(machine, &["link", "set", "nowhere", "up"])?;
        self.plug(machine, "lo-10")
    }

    fn plug(&self, machine: &str, device: &str) -> Result<()> {
        self.lab.ip(machine, &["link", "set", device, "master", "br-10", "addrgenmode", "none"])?;
        self.lab.ip(machine, &["link", "set", device, "up"]).map(drop)
    }

    fn controller(&mut self) -> Result<()> {
        let db = format!("unix:{}", self.lab.machine_dir("gw1").join("db.sock").display());
        self.lab.spawn("gw1", "controller", &self.programs.path("controller"), &["--pidfile", &db])
    }

    fn bgp(&mut self, machine: &str) -> Result<()> {
        let (own, other) = match machine {
            "gw1" => ((self.under.gw1, 65001), (self.under.far, 65002)),
            _ => ((self.under.far, 65002), (self.under.gw1, 65001)),
        };
        let config = format!(
            "router bgp {}\n bgp router-id 192.0.2.{}\n no bgp default ipv4-unicast\n no bgp ebgp-requires-policy\n \
             neighbor {2} remote-as {3}\n \
             neighbor {2} timers 1 3\n neighbor {2} timers connect 1\n address-family l2vpn evpn\n  \
             neighbor {2} activate\n  advertise-all-vni\n exit-address-family\n",
            own.1,
            own.1 - 65000,
            other.0,
            other.1
        );
        frr::start(&mut self.lab, machine, &[("zebra", ""), ("bgpd", &config)])
    }

    /// Runs Debian's ovn-nbctl.
    fn nb(&self, words: &str) -> Result<String> {
        self.run("ovn-nbctl", "ovnnb_db.sock", words)
    }

    /// Runs Debian's ovs-vsctl.
    fn ovs(&self, words: &str) -> Result<String> {
        self.run("ovs-vsctl", "db.sock", words)
    }

    /// Words in quotation marks stay together.
    fn run(&self, program: &str, socket: &str, words: &str) -> Result<String> {
        let db = format!("--db=unix:{}", self.lab.machine_dir("gw1").join(socket).display());
        let mut all = vec![db.clone()];
        for (n, part) in words.split('"').enumerate() {
            match (n % 2, all.last_mut()) {
                (1, Some(last)) => last.push_str(&format!("\"{part}\"")),
                _ => all.extend(part.split_whitespace().map(String::from)),
            }
        }
        self.lab.exec("gw1", program, &all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// `ovn-appctl COMMAND` on the controller.
    fn ask(&self, words: &[&str]) -> Result<String> {
        let pid = self.lab.pid("gw1", "controller").context("no controller")?;
        let socket = self.lab.machine_dir("gw1").join(format!("controller.{pid}.ctl"));
        let target = format!("--target={}", socket.display());
        self.lab.exec("gw1", "ovs-appctl", &[&[target.as_str()], words].concat())
    }

    fn pings(&self, from: &str, to: &str) -> Result<()> {
        until(&format!("{from} pings {to}"), PATIENCE, || {
            self.lab.exec(from, "ping", &["-c", "1", "-W", "1", "-n", to]).map(drop)
        })
    }

    /// Asks for the switch to be extended.
    fn extend(&self) -> Result<()> {
        self.nb("set logical_switch net other_config:dynamic-routing-bridge-ifname=br-10")?;
        self.nb("set logical_switch net other_config:dynamic-routing-vxlan-ifname=vxlan-10")?;
        self.nb("set logical_switch net other_config:dynamic-routing-advertise-ifname=lo-10")?;
        self.nb("set logical_switch net other_config:dynamic-routing-redistribute=\"fdb,ip\"")?;
        self.nb("--wait=hv --timeout=60 set logical_switch net other_config:dynamic-routing-vni=10")?;
        Ok(())
    }

    /// What a routing daemon does.
    fn daemon(&self, machine: &str, words: &str) -> Result<()> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (program, words) = words.split_first().context("a program")?;
        self.lab.exec(machine, program, words).map(drop)
    }

    /// Waits until a device of a machine has, or no longer has, an entry with these words.
    fn entry(&self, machine: &str, show: &[&str], words: &[&str], there: bool) -> Result<()> {
        until(&format!("{show:?} of {machine}: {words:?} {there}"), PATIENCE, || {
            let program = show.first().context("a program")?;
            let text = self.lab.exec(machine, program, &show[1..])?;
            let found = text.lines().any(|l| words.iter().all(|w| l.split_whitespace().any(|x| x == *w)));
            ensure!(found == there, "{text}");
            Ok(())
        })
    }

    fn learns(&self, command: &str, words: &[&str], there: bool) -> Result<()> {
        until(&format!("{command}: {words:?} {there}"), PATIENCE, || {
            let text = self.ask(&[command])?;
            let found = text.lines().any(|l| words.iter().all(|w| l.contains(w)));
            ensure!(found == there, "{text}");
            Ok(())
        })
    }
}

const FDB: [&str; 5] = ["bridge", "fdb", "show", "dev", "vxlan-10"];
const NEIGHBOURS: [&str; 7] = ["ip", "neigh", "show", "dev", "br-10", "nud", "noarp"];
const OWN: [&str; 5] = ["bridge", "fdb", "show", "dev", "lo-10"];

fn with_frr() -> Result<()> {
    let mut site = Site::start("isevpn4", V4)?;
    let under = site.under;
    site.extend()?;
    // What is here goes into the devices, whether or not a routing daemon looks.
    site.entry("gw1", &OWN, &[VMS[0].mac, "static"], true)?;
    let neighbour = |n: u8| format!("10.0.10.{n}");
    site.entry("gw1", &NEIGHBOURS, &[&neighbour(11), VMS[0].mac, "NOARP"], true)?;
    site.bgp("gw1")?;
    site.bgp("far")?;
    // By BGP both VTEPs know each other, and the far one knows the machines here.
    site.learns("evpn/remote-vtep-list", &[&format!("IP: {}, port: 4789, vni: 10", under.far)], true)?;
    site.entry("far", &FDB, &[VMS[0].mac, "dst", under.gw1, "extern_learn"], true)?;
    // A broadcast finds the host, which nobody knew; then it is known by BGP.
    site.pings("vm1", "10.0.10.50")?;
    site.pings("vm2", "fd00:10::50")?;
    site.pings("host", "10.0.10.12")?;
    site.learns("evpn/vtep-fdb-list", &[HOST, "vni: 10", "binding_key: 0x80000001"], true)?;
    // A neighbour that BGP tells is answered for by the switch: the host hears no question of vm2.
    site.lab.ip("far", &["neigh", "replace", "10.0.10.50", "lladdr", HOST, "dev", "br-10", "nud", "reachable"])?;
    site.learns("evpn/vtep-arp-list", &[HOST, "IP: 10.0.10.50"], true)?;
    site.pings("vm2", "10.0.10.50")?;

    // A machine that goes is told of, and one that comes.
    site.nb("--wait=hv --timeout=60 lsp-del vm1")?;
    site.entry("gw1", &OWN, &[VMS[0].mac], false)?;
    site.entry("far", &FDB, &[VMS[0].mac, "extern_learn"], false)?;
    site.nb("lsp-add net vm1")?;
    site.nb(&format!("set logical_switch_port vm1 addresses=\"{} 10.0.10.11 fd00:10::11\"", VMS[0].mac))?;
    site.entry("far", &FDB, &[VMS[0].mac, "dst", under.gw1, "extern_learn"], true)?;
    site.pings("host", "10.0.10.11")?;

    // The next controller finds all as it was; traffic goes on without one.
    site.ask(&["exit", "--restart"])?;
    ensure!(site.lab.wait("gw1", "controller", PATIENCE), "the controller does not end well");
    site.pings("host", "10.0.10.11")?;
    site.controller()?;
    site.learns("evpn/vtep-fdb-list", &[HOST, "vni: 10"], true)?;
    site.pings("vm1", "10.0.10.50")?;

    // A VTEP that leaves is forgotten: no flow leads to it.
    site.lab.kill("far", "bgpd");
    site.learns("evpn/vtep-binding-list", &["Remote IP"], false)?;
    site.learns("evpn/vtep-fdb-list", &[HOST], false)?;
    site.bgp("far")?;
    site.pings("vm1", "10.0.10.50")?;

    // Without a VNI, and at its end, the controller takes its own away.
    site.nb("--wait=hv --timeout=60 remove logical_switch net other_config dynamic-routing-vni")?;
    site.entry("gw1", &OWN, &[VMS[1].mac], false)?;
    ensure!(site.ask(&["evpn/remote-vtep-list"])?.trim().is_empty(), "a switch without a VNI has no VTEPs");
    site.nb("--wait=hv --timeout=60 set logical_switch net other_config:dynamic-routing-vni=10")?;
    site.entry("gw1", &OWN, &[VMS[1].mac, "static"], true)?;
    site.ask(&["exit"])?;
    ensure!(site.lab.wait("gw1", "controller", PATIENCE), "the controller does not end well");
    site.entry("gw1", &OWN, &[VMS[1].mac], false)?;
    site.entry("gw1", &NEIGHBOURS, &[&neighbour(12)], false)
}

fn by_hand() -> Result<()> {
    let site = Site::start("isevpn6", V6)?;
    site.extend()?;
    let (gw1, far) = (site.under.gw1, site.under.far);
    // Devices hold all before anybody looks; the far VTEP is a plain one.
    site.daemon("far", &format!("bridge fdb append 00:00:00:00:00:00 dev vxlan-10 dst {gw1}"))?;
    for vm in VMS {
        site.daemon("far", &format!("bridge fdb add {} dev vxlan-10 dst {gw1}", vm.mac))?;
    }
    let flood = |how: &str, to: &str| {
        format!("bridge fdb {how} 00:00:00:00:00:00 dev vxlan-10 dst {to} port 5789 static permanent")
    };
    site.daemon("gw1", &flood("append", far))?;
    site.learns("evpn/vtep-binding-list", &[&format!("Remote IP: {far}, vni: 10, binding_key: 0x80000001")], true)?;
    site.pings("vm1", "10.0.10.50")?;
    site.pings("host", "fd00:10::12")?;

    // An address behind two VTEPs, of which one is there.
    let entry = |how: &str, where_to: &str| format!("bridge fdb {how} {HOST} dev vxlan-10 {where_to} extern_learn");
    site.daemon("gw1", &flood("append", "fd00:2::99"))?;
    site.daemon("gw1", &format!("ip nexthop add id 71 via {far} fdb"))?;
    site.daemon("gw1", "ip nexthop add id 72 via fd00:2::99 fdb")?;
    site.daemon("gw1", "ip nexthop add id 79 group 71,3/72,1 fdb")?;
    site.daemon("gw1", &entry("add", "nhid 79"))?;
    let paths = "paths: [{key=0x80000001, weight=3}, {key=0x80000002, weight=1}]";
    site.learns("evpn/vtep-fdb-list", &[HOST, paths], true)?;
    site.daemon("gw1", "ip nexthop replace id 79 group 71,5 fdb")?;
    site.learns("evpn/vtep-fdb-list", &[HOST, "binding_key: 0x80000001"], true)?;
    site.pings("vm1", "10.0.10.50")?;
    site.daemon("gw1", &entry("del", "nhid 79"))?;
    site.learns("evpn/vtep-fdb-list", &[HOST], false)?;
    site.daemon("gw1", &flood("del", "fd00:2::99"))?;

    // Devices that go and come back, as when the network is set up anew.
    site.daemon("gw1", &entry("add", &format!("dst {far} port 5789")))?;
    site.learns("evpn/vtep-fdb-list", &[HOST], true)?;
    site.lab.ip("gw1", &["link", "del", "vxlan-10"])?;
    site.learns("evpn/remote-vtep-list", &["vni: 10"], false)?;
    site.vxlan("gw1", 60010, gw1)?;
    site.daemon("gw1", &flood("append", far))?;
    site.learns("evpn/remote-vtep-list", &[&format!("IP: {far}, port: 5789, vni: 10")], true)?;
    site.pings("vm2", "10.0.10.50")?;
    site.lab.ip("gw1", &["link", "del", "lo-10"])?;
    site.advertise("gw1")?;
    site.entry("gw1", &OWN, &[VMS[0].mac, "static"], true)?;

    // An address that BGP tells is asked nobody for, and one that it no longer tells is asked for again.
    site.daemon("gw1", &format!("ip neigh replace 10.0.10.77 lladdr {HOST} dev br-10 nud noarp extern_learn"))?;
    site.learns("evpn/vtep-arp-list", &["10.0.10.77"], true)?;
    let _ = site.lab.exec("vm1", "ping", &["-c", "1", "-W", "1", "10.0.10.77"]);
    site.entry("vm1", &["ip", "neigh", "show"], &["10.0.10.77", HOST], true)?;
    site.daemon("gw1", "ip neigh del 10.0.10.77 dev br-10")?;
    site.learns("evpn/vtep-arp-list", &["10.0.10.77"], false)?;

    // The addresses by which this chassis is reached change while it runs.
    site.ovs("set Open_vSwitch . external_ids:ovn-evpn-local-ip=192.0.2.7")?;
    site.learns("evpn/vtep-binding-list", &[far], false)?;
    site.ovs(&format!("set Open_vSwitch . external_ids:ovn-evpn-local-ip=\"10-{gw1},192.0.2.7\""))?;
    site.learns("evpn/vtep-binding-list", &[far], true)?;
    site.pings("host", "10.0.10.11")
}

fn check(more: &[&str], scenario: fn() -> Result<()>) {
    let _one = Guard::take();
    if !able(&[&["ovn-nbctl", "ovs-vsctl", "ovs-appctl"], more].concat()) {
        return;
    }
    if let Err(e) = scenario() {
        panic!("{e:#}");
    }
}

#[test]
fn a_switch_reaches_into_a_fabric_by_bgp() {
    check(&["vtysh", "/usr/lib/frr/bgpd", "/usr/lib/frr/zebra"], with_frr);
}

#[test]
fn a_switch_reaches_into_a_fabric_over_ipv6() {
    check(&[], by_hand);
}
