//! The gateway whose switch is measured: one machine with northd, a controller and the switch, whose devices are files of
//! packets. What the hypervisor beyond the tunnel and the hosts behind the VLAN would send is in those files.
//!
//! ```text
//!   hv1 (files) ── under0, br-under ══ Geneve ══ br-int ── br-phys, phys0 ── VLAN (files)
//! ```

use super::meter::{self, Look};
use super::traffic::Side;
use crate::lab::{Lab, run, until};
use crate::network::{Maker, programs};
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use packet::{Mac, build};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The gateway's end of the tunnel.
pub const HERE: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0x50, 0x11]), Ipv4Addr::new(192, 168, 50, 11));
/// The hypervisor's.
pub const THERE: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0x50, 0x12]), Ipv4Addr::new(192, 168, 50, 12));
/// The same of IPv6.
pub const HERE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x50, 0, 0, 0, 0, 0, 0x11);
/// The hypervisor's.
pub const THERE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x50, 0, 0, 0, 0, 0, 0x12);
/// Who sends through the plain bridge, and to whom.
pub const PLAIN: (Mac, Mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// The router's port to the VLAN.
pub const ROUTER: Mac = Mac([2, 0, 0, 0, 0xfe, 3]);
/// The next hop in the VLAN.
pub const NEXT: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0x99, 1]), Ipv4Addr::new(172, 16, 0, 254));
/// The machine behind the L2 gateway, and the one on the hypervisor that it talks to.
pub const L2: (Mac, Mac) = (Mac([2, 0, 0, 0, 0x99, 2]), Mac([2, 0, 0, 0, 2, 1]));
/// VLANs of the router and of the L2 gateways.
pub const VLANS: (u16, u16, u16) = (100, 200, 300);
/// The L2 gateways: switch, port, VLAN.
const L2_GATEWAYS: [(&str, &str, u16); 2] = [("wire", "wire-gw", VLANS.1), ("guarded", "guard-gw", VLANS.2)];
/// What the guarded one lets pass, by direction and priority, with the answers.
const ACLS: [[&str; 4]; 4] = [
    ["to-lport", "1001", "outport == \"guard-gw\" && ip4 && (udp || tcp)", "allow-related"],
    ["to-lport", "1000", "outport == \"guard-gw\" && ip", "drop"],
    ["from-lport", "1001", "inport == \"guard-gw\" && ip4.src == 172.31.0.0/16 && udp.src == 53", "allow-related"],
    ["from-lport", "1000", "inport == \"guard-gw\" && ip", "drop"],
];
/// The key of the tunnel that mirrors of the plain bridge leave by, and come by.
pub const MIRROR: u32 = 7;
/// The key of its other tunnels.
pub const OVERLAYS: u32 = 9;
/// Hosts on the hypervisor whose sources are translated; one without translation; one with a floating address.
pub const MACHINES: [(&str, &str, &str); 8] = [
    ("vm1", "inside", "02:00:00:00:01:11 10.0.1.11 fd00:a00:1::b"),
    ("vm2", "inside", "02:00:00:00:01:12 10.0.1.12 fd00:a00:1::c"),
    ("vm3", "inside", "02:00:00:00:01:13 10.0.1.13 fd00:a00:1::d"),
    ("vm4", "inside", "02:00:00:00:01:14 10.0.1.14 fd00:a00:1::e"),
    ("vm5", "inside", "02:00:00:00:01:30 10.0.1.30 fd00:a00:1::1e"),
    ("vm6", "plain", "02:00:00:00:03:11 10.0.3.11 fd00:a00:3::b"),
    ("vm7", "wire", "02:00:00:00:02:01"),
    ("vm8", "guarded", "02:00:00:00:02:01"),
];

const NAME: &str = "gw";
/// The number of every bridge's device.
const OUT: u16 = 10;
/// The number of the first port beside it.
const BESIDE: u16 = 20;
/// MTUs of ports beside each other differ by this: Open vSwitch has a pool of packets for each size of buffers, which are
/// multiples of it.
const STEP: usize = 1024;
/// Zones of connections that controllers choose.
const ZONES: std::ops::Range<u16> = 1..32;
/// What `ovs-vsctl` makes the row of the userspace datapath with, to which zones and their timeouts belong.
pub const ADD_DATAPATH: [&str; 10] = [
    "--",
    "--id=@datapath",
    "create",
    "Datapath",
    "datapath_version=x",
    "--",
    "set",
    "Open_vSwitch",
    ".",
    "datapaths:netdev=@datapath",
];

/// The logical network.
const NETWORK: &str = r#"
switches:
  - {name: inside}
  - {name: plain}
  - {name: wire}
  - {name: guarded}
  - {name: public, physical: {network: physnet1, vlan: 100}}
routers:
  - name: edge
    ports:
      - {name: edge-inside, switch: inside, mac: "02:00:00:00:fe:01", networks: [10.0.1.1/24, 'fd00:a00:1::1/64']}
      - {name: edge-plain, switch: plain, mac: "02:00:00:00:fe:02", networks: [10.0.3.1/24, 'fd00:a00:3::1/64']}
      - {name: edge-public, switch: public, mac: "02:00:00:00:fe:03", networks: [172.16.0.1/24, 'fd00:ac10::1/64'], gateways: {gw: 20}}
    routes:
      - {prefix: 0.0.0.0/0, nexthop: 172.16.0.254}
      - {prefix: '::/0', nexthop: 'fd00:ac10::fe'}
    nat:
      - {type: snat, external: 172.16.0.1, logical: 10.0.1.0/24}
      - {type: dnat_and_snat, external: 172.16.0.30, logical: 10.0.1.30}
      - {type: snat, external: 'fd00:ac10::1', logical: 'fd00:a00:1::/64'}
      - {type: dnat_and_snat, external: 'fd00:ac10::1e', logical: 'fd00:a00:1::1e'}
    load_balancers: [service, balanced]
load_balancers:
  - name: service
    protocol: udp
    vips:
      172.16.0.100:5000: [10.0.1.11:5000]
  - name: balanced
    protocol: udp
    vips:
      172.16.0.101:5000: [10.0.1.11:5000, 10.0.1.12:5000, 10.0.1.13:5000, 10.0.1.14:5000]
"#;

/// A device: what comes in, and where it goes out.
#[derive(Clone, Debug)]
pub enum Device {
    /// Nothing comes, everything is dropped.
    Null,
    /// Files over and over, each through a port of its own.
    Endless(Vec<PathBuf>),
    /// What goes out is written to a file.
    Record(PathBuf),
    /// What goes out comes in again: a ring of DPDK's for each queue, of which a packet's pointer is all that moves.
    Ring,
}

/// The gateway.
pub struct Machine {
    lab: Lab,
    maker: Maker,
    bin: PathBuf,
    /// The switch's program.
    program: PathBuf,
    devices: u32,
    /// Ports beside others.
    beside: Vec<String>,
    /// Keys of logical ports and of datapaths.
    keys: BTreeMap<String, u32>,
}

impl Machine {
    /// A gateway of this name with everything but its devices, with so many megabytes for packets, in hugepages of this
    /// directory if there is one. Without a program the switch is its maker's.
    ///
    /// # Errors
    /// Where something does not start.
    pub fn start(
        name: &str,
        (maker, program): (Maker, Option<&Path>),
        worker: usize,
        memory: (usize, Option<&Path>),
    ) -> Result<Machine> {
        let lab = Lab::new(name, &std::env::temp_dir().join(format!("{name}-lab")))?;
        let bin = programs()?;
        let program = match (program, maker) {
            (Some(p), _) => p.to_path_buf(),
            (None, Maker::Ours) => bin.join("dpdk-dataplane"),
            (None, Maker::Debian) => "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk".into(),
        };
        let mut m = Machine { lab, maker, bin, program, devices: 0, beside: Vec::new(), keys: BTreeMap::new() };
        m.lab.machine(NAME)?;
        m.central().context("northd")?;
        m.switch(name, worker, memory).context("the switch")?;
        m.chassis().context("the chassis")?;
        m.flows()?;
        Ok(m)
    }

    /// The machine's directory.
    pub fn dir(&self) -> PathBuf {
        self.lab.machine_dir(NAME)
    }

    fn path(&self, file: &str) -> String {
        self.dir().join(file).display().to_string()
    }

    fn exec(&self, program: &str, args: &[&str]) -> Result<String> {
        self.lab.exec(NAME, program, args)
    }

    fn ours(&self, name: &str) -> String {
        self.bin.join(name).display().to_string()
    }

    fn nb(&self, args: &[&str]) -> Result<String> {
        let db = format!("--db=unix:{}", self.path("ovnnb_db.sock"));
        self.exec("ovn-nbctl", &[&[db.as_str()], args].concat())
    }

    fn sb(&self, args: &[&str]) -> Result<String> {
        let db = format!("--db=unix:{}", self.path("ovnsb_db.sock"));
        self.exec("ovn-sbctl", &[&[db.as_str()], args].concat())
    }

    fn vs(&self, args: &[&str]) -> Result<String> {
        let db = format!("--db=unix:{}", self.path("db.sock"));
        self.exec("ovs-vsctl", &[&["--timeout=60", db.as_str()], args].concat())
    }

    fn central(&mut self) -> Result<()> {
        let embed = format!("--embed={}", self.dir().display());
        let northd = self.ours("northd");
        self.lab.spawn(NAME, "northd", &northd, &[&embed])?;
        let sock = self.dir().join("ovnsb_db.sock");
        until("northd's databases", Duration::from_secs(30), || std::fs::metadata(&sock).map_err(Into::into))?;
        let file = self.path("network.yaml");
        std::fs::write(&file, NETWORK)?;
        let (nb, sb) = (format!("unix:{}", self.path("ovnnb_db.sock")), format!("unix:{}", self.path("ovnsb_db.sock")));
        self.exec(&self.ours("isthmusctl"), &["--nb", &nb, "--sb", &sb, "apply", "-f", &file])?;
        // Keys that are the same at every start: they are in the packets.
        for (switch, key) in ["inside", "plain", "wire", "public", "guarded"].into_iter().zip(1..) {
            let key = format!("other_config:requested-tnl-key={key}");
            self.nb(&["set", "Logical_Switch", switch, &key])?;
        }
        self.nb(&["set", "Logical_Router", "edge", "options:requested-tnl-key=9"])?;
        for (port, switch, addresses) in MACHINES {
            self.nb(&["lsp-add", switch, port, "--", "lsp-set-addresses", port, addresses])?;
        }
        for (switch, port, vlan) in L2_GATEWAYS {
            let far = L2.0.to_string();
            self.nb(&["lsp-add", switch, port, "--", "lsp-set-addresses", port, &far])?;
            let options = ["network_name=physnet1", "l2gateway-chassis=gw"];
            let set = [&["lsp-set-type", port, "l2gateway", "--", "lsp-set-options", port][..], &options].concat();
            self.nb(&set)?;
            self.nb(&["set", "Logical_Switch_Port", port, &format!("tag_request={vlan}")])?;
        }
        for acl in ACLS {
            self.nb(&[&["acl-add", "guarded"][..], &acl].concat())?;
        }
        // Gratuitous ARPs tell the one of IPv4.
        let (ip, mac) = (super::frames::v6(NEXT.1).to_string(), NEXT.0.to_string());
        self.nb(&["static-mac-binding-add", "edge-public", &ip, &mac])?;
        self.sb(&["chassis-add", "hv1", "geneve", &THERE.1.to_string()])?;
        for (port, _, _) in MACHINES {
            until("port bindings", Duration::from_secs(20), || self.sb(&["lsp-bind", port, "hv1"]))?;
        }
        Ok(())
    }

    fn switch(&mut self, name: &str, worker: usize, (megabytes, huge): (usize, Option<&Path>)) -> Result<()> {
        let (db, sock) = (self.path("conf.db"), self.dir().join("db.sock"));
        run("ovsdb-tool", &["create", &db, "/usr/share/openvswitch/vswitch.ovsschema"])?;
        let (remote, ctl) =
            (format!("--remote=punix:{}", sock.display()), format!("--unixctl={}", self.path("ovsdb.ctl")));
        self.lab.spawn(NAME, "ovsdb", "ovsdb-server", &[&remote, &ctl, &db])?;
        until("the local database", Duration::from_secs(10), || std::fs::metadata(&sock).map_err(Into::into))?;
        let mask = format!("other_config:pmd-cpu-mask={:#x}", 1u64 << worker);
        // Without --legacy-mem Open vSwitch adds --in-memory, which --no-huge excludes. A pool of many hugepages that are not one
        // behind the other needs virtual addresses.
        let pages = huge.map_or("--no-huge".into(), |d| format!("--iova-mode=va --huge-dir {}", d.display()));
        // Files of hugepages have the prefix: there may be another switch.
        let extra = format!(
            "other_config:dpdk-extra=\"--legacy-mem {pages} -m {megabytes} --no-pci --no-shconf --file-prefix {name}\""
        );
        let hwaddr = format!("other_config:hwaddr=\"{}\"", HERE.0);
        self.vs(&[
            "--no-wait",
            "init",
            "--",
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            &extra,
            &mask,
        ])?;
        self.vs(&[
            "--no-wait",
            "add-br",
            "br-under",
            "--",
            "set",
            "bridge",
            "br-under",
            "datapath_type=netdev",
            &hwaddr,
        ])?;
        self.vs(&["--no-wait", "add-br", "br-phys", "--", "set", "bridge", "br-phys", "datapath_type=netdev"])?;
        let (remote, ctl) = (format!("unix:{}", sock.display()), format!("--unixctl={}", self.path("switch.ctl")));
        let program = self.program.display().to_string();
        self.lab.spawn(NAME, "switch", &program, &[&ctl, &remote])?;
        let address = format!("{}/24", HERE.1);
        until("the bridge br-under", Duration::from_secs(30), || {
            self.lab.ip(NAME, &["addr", "replace", &address, "dev", "br-under"])
        })?;
        let address = format!("{HERE6}/64");
        self.lab.ip(NAME, &["addr", "replace", &address, "dev", "br-under", "nodad"])?;
        self.lab.ip(NAME, &["link", "set", "br-under", "up", "mtu", "1600"])?;
        for ip in [IpAddr::from(THERE.1), THERE6.into()] {
            let (ip, mac) = (ip.to_string(), THERE.0.to_string());
            self.lab.ip(NAME, &["neigh", "replace", &ip, "lladdr", &mac, "dev", "br-under", "nud", "permanent"])?;
            // Open vSwitch keeps next hops of its own.
            if self.maker == Maker::Debian {
                self.appctl(&["tnl/arp/set", "br-under", &ip, &mac])?;
            }
        }
        Ok(())
    }

    /// A command to the switch's control socket.
    ///
    /// # Errors
    /// Its.
    pub fn appctl(&self, args: &[&str]) -> Result<String> {
        let target = self.path("switch.ctl");
        self.exec("ovs-appctl", &[&["-t", target.as_str()], args].concat())
    }

    fn chassis(&mut self) -> Result<()> {
        let remote = format!("external_ids:ovn-remote=unix:{}", self.path("ovnsb_db.sock"));
        let ip = format!("external_ids:ovn-encap-ip={}", HERE.1);
        self.vs(&[
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
            "external_ids:system-id=gw",
            "external_ids:ovn-encap-type=geneve",
            "external_ids:ovn-bridge-mappings=physnet1:br-phys",
            "external_ids:ovn-bridge-datapath-type=netdev",
            &remote,
            &ip,
        ])?;
        let (db, controller) = (format!("unix:{}", self.path("db.sock")), self.ours("controller"));
        self.lab.spawn(NAME, "controller", &controller, &[&db])
    }

    /// Waits for the controller's flows, and reads the keys.
    fn flows(&mut self) -> Result<()> {
        until("the gateway port", Duration::from_secs(60), || {
            let c = self.sb(&["--bare", "--columns=chassis", "find", "Port_Binding", "logical_port=cr-edge-public"])?;
            if c.trim().is_empty() { bail!("it has no chassis") } else { Ok(()) }
        })?;
        let count = |lab: &Lab, dir: &Path| -> Result<usize> {
            let bridge = format!("unix:{}", dir.join("br-int.mgmt").display());
            Ok(lab.exec(NAME, "ovs-ofctl", &["-O", "OpenFlow15", "dump-flows", &bridge])?.lines().count())
        };
        let mut last = 0;
        until("flows", Duration::from_secs(60), || {
            let before = std::mem::replace(&mut last, count(&self.lab, &self.dir())?);
            self.lab.pause(Duration::from_secs(1))?;
            if last < 100 || last != before { bail!("{last} flows") } else { Ok(()) }
        })?;
        for (table, name) in [("Port_Binding", "logical_port"), ("Datapath_Binding", "external_ids:name")] {
            let columns = if table == "Port_Binding" { "logical_port,tunnel_key" } else { "external_ids,tunnel_key" };
            let text = self.sb(&["--format=csv", "--no-headings", &format!("--columns={columns}"), "list", table])?;
            for line in text.lines() {
                let key = line.rsplit(',').next().and_then(|k| k.parse().ok());
                let label = match name {
                    "logical_port" => line.split(',').next().map(|n| n.trim_matches('"').to_string()),
                    _ => line
                        .split(|c: char| !c.is_alphanumeric() && c != '-')
                        .skip_while(|w| *w != "name")
                        .find(|w| !w.is_empty() && *w != "name")
                        .map(|n| format!("datapath {n}")),
                };
                if let (Some(l), Some(k)) = (label, key) {
                    self.keys.insert(l, k);
                }
            }
        }
        Ok(())
    }

    /// The tunnel key of a logical port, or of `datapath NAME`.
    ///
    /// # Errors
    /// There is none.
    pub fn key(&self, name: &str) -> Result<u32> {
        self.keys.get(name).copied().with_context(|| format!("{name} has no tunnel key: {:?}", self.keys))
    }

    /// Gives a bridge's port a device, behind which the bridge learns that the hosts there are; where there are several files, all
    /// but the first have ports of their own.
    ///
    /// # Errors
    /// The switch cannot open it.
    pub fn device(&mut self, (bridge, port): Side, device: &Device) -> Result<()> {
        let mine = format!("{port}.");
        for gone in self.beside.extract_if(.., |p| p.starts_with(&mine)).collect::<Vec<_>>() {
            self.vs(&["--if-exists", "del-port", &gone])?;
        }
        let empty = self.empty()?;
        let one = |n: u32, k: usize| match device {
            Device::Null => Some(format!("net_null{n},no-rx=1")),
            Device::Record(f) => Some(format!("net_pcap{n},rx_pcap={},tx_pcap={}", empty.display(), f.display())),
            Device::Ring => Some(format!("net_ring{n}")),
            Device::Endless(files) => {
                files.get(k).map(|f| format!("net_pcap{n},rx_pcap={},infinite_rx=1", f.display()))
            }
        };
        let ports = if let Device::Endless(files) = device { files.len() } else { 1 };
        for k in 0..ports {
            self.devices += 1;
            let Some(args) = one(self.devices, k) else { bail!("{port}: no files") };
            let name = beside(port, k);
            self.vs(&["--if-exists", "del-port", &name])?;
            let number = format!("ofport_request={}", number(&name));
            let options = format!("options:dpdk-devargs=\"{args}\"");
            let mtu = format!("mtu_request={}", 1500 + STEP * k);
            let mut add =
                vec!["add-port", bridge, &name, "--", "set", "Interface", &name, "type=dpdk", &number, &options];
            // Each queue that is sent by comes back as the one received from with the same number, and Open vSwitch's worker sends
            // by the second one.
            add.extend(matches!(device, Device::Ring).then_some("options:n_rxq=2"));
            // Ours takes the packets of all ports from one pool.
            add.extend((k > 0 && self.maker == Maker::Debian).then_some(mtu.as_str()));
            self.vs(&add)?;
            let error = self.vs(&["get", "Interface", &name, "error"])?;
            if error.trim() != "[]" {
                bail!("{name}: {}", error.trim());
            }
            if k > 0 {
                self.beside.push(name);
            }
        }
        for (b, vlan, mac, ip) in [
            ("br-under", None, THERE.0, THERE.1),
            ("br-phys", Some(VLANS.0), NEXT.0, NEXT.1),
            ("br-phys", Some(VLANS.1), L2.0, NEXT.1),
            ("br-phys", Some(VLANS.2), L2.0, NEXT.1),
            ("br-plain", None, PLAIN.1, NEXT.1),
        ] {
            if b == bridge && port != "in0" {
                self.hello(b, vlan, mac, ip)?;
            }
        }
        Ok(())
    }

    fn empty(&self) -> Result<PathBuf> {
        let f = self.dir().join("empty.pcap");
        super::frames::write(&f, [])?;
        Ok(f)
    }

    /// Lets a bridge learn that an address is behind its device.
    fn hello(&self, bridge: &str, vlan: Option<u16>, mac: Mac, ip: Ipv4Addr) -> Result<()> {
        let mut p = build::gratuitous_arp(mac, ip);
        if let Some(v) = vlan {
            p.splice(12..12, [0x81, 0].into_iter().chain(v.to_be_bytes()));
        }
        let hex: String = p.iter().map(|b| format!("{b:02x}")).collect();
        let socket = format!("unix:{}", self.path(&format!("{bridge}.mgmt")));
        let what = format!("in_port={OUT} packet={hex} actions=NORMAL");
        self.exec("ovs-ofctl", &["-O", "OpenFlow13", "packet-out", &socket, &what])?;
        Ok(())
    }

    /// Packets that a port received and sent.
    ///
    /// # Errors
    /// The switch does not say.
    pub fn counters(&self, (bridge, port): (&str, &str)) -> Result<(u64, u64)> {
        let socket = format!("unix:{}", self.path(&format!("{bridge}.mgmt")));
        let text = self.exec("ovs-ofctl", &["-O", "OpenFlow13", "dump-ports", &socket, &number(port).to_string()])?;
        let mut n = text.split("pkts=").skip(1).filter_map(|s| s.split(',').next()?.parse().ok());
        Ok((n.next().context("no counters")?, n.next().context("no counters")?))
    }

    /// Packets that ports sent, by how much processor time of the worker.
    ///
    /// # Errors
    /// The switch does not say.
    pub fn progress(&self, sides: &[Side]) -> Result<Look> {
        let pid = self.pid()?;
        let from = meter::processor_time(pid)?;
        let packets = sides.iter().map(|s| Ok(self.counters(*s)?.1)).sum::<Result<_>>()?;
        Ok(Look { packets, from, to: meter::processor_time(pid)? })
    }

    /// The switch's process.
    ///
    /// # Errors
    /// It does not run.
    pub fn pid(&self) -> Result<u32> {
        self.lab.pid(NAME, "switch").context("the switch does not run")
    }

    /// Has the switch stand still: it takes no processor time then.
    pub fn suspend(&mut self) {
        self.lab.signal(NAME, "switch", Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.lab.signal(NAME, "switch", Signal::SIGCONT);
    }

    /// Forgets all connections.
    ///
    /// # Errors
    /// The switch's.
    pub fn flush(&self) -> Result<()> {
        self.appctl(&["dpctl/flush-conntrack"]).map(drop)
    }

    /// Connections live for so many seconds without packets, whatever their state.
    ///
    /// # Errors
    /// The database's.
    pub fn keep_connections(&self, seconds: u32) -> Result<()> {
        self.vs(&ADD_DATAPATH)?;
        let timeouts = ["udp_first", "udp_single", "udp_multiple"].map(|k| format!("{k}={seconds}"));
        let zones: Vec<String> = ZONES.map(|z| format!("zone={z}")).collect();
        let mut all = Vec::new();
        for z in &zones {
            all.extend(["--", "add-zone-tp", "netdev", z.as_str()]);
            all.extend(timeouts.iter().map(String::as_str));
        }
        self.vs(&all).map(drop)
    }

    /// A bridge with ports and nothing else, whose packets go from one port to another, in each of these pairs, by a flow of
    /// a match and actions, in which `OUT` stands for the latter.
    ///
    /// # Errors
    /// The switch's.
    pub fn plain_bridge(&mut self, flow: (&str, &str), ways: &[(&str, &str)]) -> Result<()> {
        self.vs(&["--may-exist", "add-br", "br-plain", "--", "set", "bridge", "br-plain", "datapath_type=netdev"])?;
        let socket = format!("unix:{}", self.path("br-plain.mgmt"));
        until("br-plain", Duration::from_secs(10), || {
            self.exec("ovs-ofctl", &["-O", "OpenFlow13", "del-flows", &socket])
        })?;
        let meter = "meter=1 kbps burst stats bands=type=drop rate=4000000000 burst_size=4000000000";
        self.exec("ovs-ofctl", &["-O", "OpenFlow13", "del-meters", &socket])?;
        self.exec("ovs-ofctl", &["-O", "OpenFlow13", "add-meter", &socket, meter])?;
        self.exec("ovs-ofctl", &["-O", "OpenFlow15", "del-groups", &socket])?;
        let bucket = |n: u16| format!(",bucket=bucket_id={n},weight=100,actions=output:{OUT}");
        let group =
            format!("group_id=1,type=select,selection_method=dp_hash{}", (1..=4).map(bucket).collect::<String>());
        self.exec("ovs-ofctl", &["-O", "OpenFlow15", "add-group", &socket, &group])?;
        self.tunnels()?;
        self.ways(flow, ways)
    }

    /// The plain bridge's tunnels, and what watches it: a collector, which nobody is.
    fn tunnels(&mut self) -> Result<()> {
        let (key, overlay) = (format!("options:key={MIRROR}"), format!("options:key={OVERLAYS}"));
        let csum = "options:csum=true";
        for (name, number, there, options) in [
            ("gre0", 40, THERE.1.into(), &["type=gre", key.as_str()][..]),
            (
                "erspan0",
                41,
                THERE.1.into(),
                &["type=erspan", "options:key=8", "options:erspan_ver=1", "options:erspan_idx=1"],
            ),
            ("vxlan0", 42, THERE.1.into(), &["type=vxlan", &overlay, csum]),
            ("geneve0", 43, IpAddr::from(THERE6), &["type=geneve", &overlay, csum]),
        ] {
            let (number, remote) = (format!("ofport_request={number}"), format!("options:remote_ip=\"{there}\""));
            let add = ["--may-exist", "add-port", "br-plain", name, "--", "set", "Interface", name, &remote, &number];
            self.vs(&[&add[..], options].concat())?;
        }
        if self.vs(&["--bare", "--columns=id", "find", "Flow_Sample_Collector_Set", "id=1"])?.trim().is_empty() {
            let ipfix = ["--id=@i", "create", "IPFIX", "targets=\"127.0.0.1:4739\"", "--", "--id=@b", "get", "bridge"];
            let set = ["br-plain", "--", "create", "Flow_Sample_Collector_Set", "id=1", "bridge=@b", "ipfix=@i"];
            self.vs(&[&ipfix[..], &set].concat())?;
        }
        let socket = format!("unix:{}", self.path("br-plain.mgmt"));
        for tunnel in [40, 42, 43] {
            let flow = format!("in_port={tunnel} actions=output:{OUT}");
            self.exec("ovs-ofctl", &["-O", "OpenFlow13", "add-flow", &socket, &flow])?;
        }
        self.device(("br-under", "under0"), &Device::Null)
    }

    /// Has NetFlow count the flows of the plain bridge, for a collector that nobody is, or not.
    ///
    /// # Errors
    /// The switch's.
    pub fn count_flows(&self, on: bool) -> Result<()> {
        let create = ["--id=@n", "create", "NetFlow", "targets=\"127.0.0.1:2055\"", "--", "set", "Bridge", "br-plain"];
        match on {
            true => self.vs(&[&create[..], &["netflow=@n"]].concat()),
            false => self.vs(&["--if-exists", "clear", "Bridge", "br-plain", "netflow"]),
        }
        .map(drop)
    }

    /// Changes where packets of the plain bridge go, by a flow of a match and actions, in which `OUT` stands for the second port
    /// of each pair.
    ///
    /// # Errors
    /// The switch's.
    pub fn ways(&self, (matches, actions): (&str, &str), ways: &[(&str, &str)]) -> Result<()> {
        let socket = format!("unix:{}", self.path("br-plain.mgmt"));
        for (from, to) in ways {
            let actions = actions.replace("OUT", &number(to).to_string());
            let flow = format!("{matches}in_port={} actions={actions}", number(from));
            self.exec("ovs-ofctl", &["-O", "OpenFlow13", "add-flow", &socket, &flow])?;
        }
        Ok(())
    }

    /// Sends each of these frames by one of the ports of the plain bridge in turn.
    ///
    /// # Errors
    /// The switch's.
    pub fn send(&self, frames: &[Vec<u8>], ports: [&str; 2]) -> Result<()> {
        let line = |(p, port): (&Vec<u8>, &str)| {
            let hex: String = p.iter().map(|b| format!("{b:02x}")).collect();
            format!("packet-out in_port=controller packet={hex} actions=output:{}\n", number(port))
        };
        let file = self.path("packet-outs");
        std::fs::write(&file, frames.iter().zip(ports.into_iter().cycle()).map(line).collect::<String>())?;
        let socket = format!("unix:{}", self.path("br-plain.mgmt"));
        self.exec("ovs-ofctl", &["-O", "OpenFlow14", "bundle", &socket, &file]).map(drop)
    }

    /// Waits.
    ///
    /// # Errors
    /// Somebody wants it to end.
    pub fn pause(&self, t: Duration) -> Result<()> {
        self.lab.pause(t)
    }
}

/// The port for the file with this number.
pub fn beside(port: &str, k: usize) -> String {
    if k == 0 { port.into() } else { format!("{port}.{k}") }
}

/// The number of a port.
fn number(port: &str) -> u16 {
    match port.rsplit_once('.') {
        Some((_, k)) => BESIDE + k.parse::<u16>().unwrap_or(0),
        None if port == "in0" => OUT + 1,
        None => OUT,
    }
}
