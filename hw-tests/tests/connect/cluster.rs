//! Two nodes of a cluster, each a zone of its own as OVN-Kubernetes has them.
//!
//! ```text
//!   p11 p21 p41 p51                        p12 p22 p32 p52
//!    └───┴──┬┴───┘                          └───┴──┬┴───┘
//!          n1  northd with databases,             n2  the same
//!           │  controller, switch                  │
//!  underlay ┴──────────────────────────────────────┴   Geneve
//!
//!  API server ── network-connect: the manager's half, one of each node's zone
//! ```

use crate::api::Api;
use crate::networks::{NETS, NODES, Net, PODS, Pod, socket};
use anyhow::{Context, Result, bail};
use hw_tests::agent::{Arrivals, clock};
use hw_tests::hold::{Held, OPEN, SERVES};
use hw_tests::lab::{Lab, until};
use hw_tests::network::{address, fabric, underlay};
use hw_tests::programs::Programs;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const LIMIT: Duration = Duration::from_secs(30);

const CONNECTS: &str = "/apis/k8s.ovn.org/v1/clusternetworkconnects";
const ATTACHMENTS: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";
const NAMESPACES: &str = "/api/v1/namespaces";
const NODE_RESOURCES: &str = "/api/v1/nodes";

/// A cluster that runs.
pub struct Cluster {
    pub lab: Lab,
    pub api: Api,
    programs: Programs,
    /// They reach the API server, which is in no machine of the lab.
    daemons: Vec<Child>,
    /// Keys of what sends and holds.
    next: u16,
}

/// Numbered datagrams on their way.
pub struct Stream {
    key: String,
    from: Pod,
    to: Pod,
}

/// Connections that are held.
pub struct Connections {
    key: String,
    from: Pod,
}

fn machine(node: u32) -> String {
    format!("n{node}")
}

impl Cluster {
    /// Builds machines and networks and starts everything.
    pub fn start(lab: Lab, api: Api) -> Result<Cluster> {
        let programs = Programs::found()?;
        let mut c = Cluster { lab, api, programs, daemons: Vec::new(), next: 0 };
        fabric(&mut c.lab)?;
        NODES.iter().try_for_each(|n| c.node(*n))?;
        NODES.iter().try_for_each(|n| c.remote_chassis(*n))?;
        PODS.iter().try_for_each(|p| c.pod(*p))?;
        for net in NETS {
            NODES.iter().try_for_each(|n| c.northbound(*n, net.rows(*n)))?;
            c.api.put(ATTACHMENTS, net.attachment());
            let labels = json!({"k8s.ovn.org/primary-user-defined-network": "", "namespace": format!("ns{}", net.id)});
            let metadata = json!({"name": format!("ns{}", net.id), "labels": labels});
            c.api.put(NAMESPACES, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        }
        NODES.iter().for_each(|n| c.add_node(*n));
        c.daemon("manager", &["--role=manager"])?;
        for n in NODES {
            let zone = format!("--zone={}", machine(n));
            let sock = c.lab.machine_dir(&machine(n)).join("ovnnb_db.sock");
            c.daemon(&format!("zone{n}"), &["--role=zone", &zone, &format!("--ovnnb-db=unix:{}", sock.display())])?;
        }
        Ok(c)
    }

    fn node(&mut self, n: u32) -> Result<()> {
        let name = machine(n);
        self.lab.machine(&name)?;
        underlay(&self.lab, &name)?;
        let dir = self.lab.machine_dir(&name);
        let embed = format!("--embed={}", dir.display());
        self.lab.spawn(&name, "northd", &self.programs.path("northd"), &[&embed])?;
        until("northd", LIMIT, || Ok(std::fs::metadata(dir.join("ovnsb_db.sock"))?))?;
        self.programs.switch(&mut self.lab, &name)?;
        self.programs.local(&self.lab, &name, &["bridge", "br-under", "under0"])?;
        let ip = format!("192.168.50.{n}");
        address(&self.lab, &name, &ip)?;
        let sb = format!("unix:{}", dir.join("ovnsb_db.sock").display());
        let set = ["set", "--name", &name, "--remote", &sb, "--encap-ip", &ip, "--interconn"];
        self.programs.local(&self.lab, &name, &set)?;
        let db = format!("unix:{}", dir.join("db.sock").display());
        self.lab.spawn(&name, "controller", &self.programs.path("controller"), &[&db])
    }

    /// The chassis of the other zones, as OVN-Kubernetes makes them.
    fn remote_chassis(&self, n: u32) -> Result<()> {
        let mut operations = Vec::new();
        for other in NODES.into_iter().filter(|o| *o != n) {
            let (name, label) = (machine(other), format!("encap{other}"));
            operations.push(json!({"op": "insert", "table": "Encap", "uuid-name": label, "row": {"type": "geneve",
                "ip": format!("192.168.50.{other}"), "chassis_name": name, "options": ["map", [["csum", "true"]]]}}));
            operations.push(json!({"op": "insert", "table": "Chassis", "row": {"name": name, "hostname": name,
                "encaps": ["named-uuid", label], "other_config": ["map", [["is-remote", "true"]]]}}));
        }
        self.transact(n, "OVN_Southbound", operations)
    }

    fn pod(&mut self, p: Pod) -> Result<()> {
        let name = p.name();
        self.lab.machine(&name)?;
        let device = format!("v-{name}");
        self.lab.link((&name, "eth0"), (&machine(p.node), &device))?;
        self.lab.ip(&name, &["link", "set", "eth0", "address", &p.mac(), "mtu", "1400"])?;
        for a in p.addresses() {
            let nodad: &[&str] = if a.contains(':') { &["nodad"] } else { &[] };
            self.lab.ip(&name, &[&["addr", "add", a.as_str(), "dev", "eth0"], nodad].concat())?;
        }
        for r in p.routers() {
            self.lab.ip(&name, &["route", "add", "default", "via", &r])?;
        }
        until("the integration bridge", LIMIT, || {
            self.programs.local(&self.lab, &machine(p.node), &["plug", &device, &p.port()])
        })?;
        self.lab.spawn(
            &name,
            "serve",
            &self.programs.path("isthmus-lab"),
            &["agent", "hold-serve", "8000", "--word", &name],
        )?;
        until("a server", LIMIT, || self.said(&name, "serve", SERVES))
    }

    fn said(&self, machine: &str, key: &str, what: &str) -> Result<()> {
        let said = self.lab.output(machine, key);
        if said.contains(what) { Ok(()) } else { bail!("{machine}/{key} said {said:?}") }
    }

    fn daemon(&mut self, key: &str, args: &[&str]) -> Result<()> {
        let dir = self.lab.machine_dir(key);
        std::fs::create_dir_all(&dir)?;
        let kubeconfig = dir.join("kubeconfig");
        std::fs::write(&kubeconfig, self.api.kubeconfig())?;
        let child = Command::new(self.programs.path("network-connect"))
            .args(["--kubernetes", "--service-cidr=10.96.0.0/16", "--service-cidr=fd96::/112", "-vconsole:off"])
            .arg(format!("--unixctl={}", dir.join("ctl").display()))
            .arg(format!("--log-file={}", dir.join("log").display()))
            .args(args)
            .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR"].map(|v| (v, &dir)))
            .envs([("OVS_SYSLOG_METHOD", "null".as_ref()), ("KUBECONFIG", kubeconfig.as_os_str())])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.daemons.push(child);
        Ok(())
    }

    fn transact(&self, n: u32, database: &str, operations: Vec<Value>) -> Result<()> {
        let part = if database == "OVN_Northbound" { "nb" } else { "sb" };
        let sock = self.lab.machine_dir(&machine(n)).join(format!("ovn{part}_db.sock"));
        let remote = format!("unix:{}", sock.display());
        let text = Value::Array(operations).to_string();
        let args = ["db", &remote, "transact", database, &text];
        self.lab.exec(&machine(n), &self.programs.path("isthmusctl"), &args).map(drop)
    }

    fn northbound(&self, n: u32, operations: Vec<Value>) -> Result<()> {
        self.transact(n, "OVN_Northbound", operations)
    }

    /// Puts a node's resource.
    pub fn add_node(&self, n: u32) {
        let routed = NETS.iter().filter(|net| net.layer == 3);
        let subnets: serde_json::Map<String, Value> =
            routed.map(|net| (net.name(), json!(net.node_subnets(n)))).collect();
        let annotations = json!({"k8s.ovn.org/node-id": n.to_string(), "k8s.ovn.org/node-chassis-id": machine(n),
            "k8s.ovn.org/zone-name": machine(n), "k8s.ovn.org/node-subnets": Value::Object(subnets).to_string()});
        let metadata = json!({"name": machine(n), "annotations": annotations});
        self.api.put(NODE_RESOURCES, json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
    }

    pub fn remove_node(&self, n: u32) {
        self.api.remove(NODE_RESOURCES, &machine(n));
    }

    /// Puts a `ClusterNetworkConnect`, with its annotations and status as they are where there is one.
    pub fn join(&self, name: &str, selector: Value, subnets: [(&str, u8); 2], connectivity: &[&str]) {
        let mut object = self.api.get(CONNECTS, name);
        if object.is_null() {
            object =
                json!({"apiVersion": "k8s.ovn.org/v1", "kind": "ClusterNetworkConnect", "metadata": {"name": name}});
        }
        let subnets = subnets.map(|(cidr, prefix)| json!({"cidr": cidr, "networkPrefix": prefix}));
        object["spec"] =
            json!({"networkSelectors": [selector], "connectSubnets": subnets, "connectivity": connectivity});
        self.api.put(CONNECTS, object);
    }

    pub fn part(&self, name: &str) {
        self.api.remove(CONNECTS, name);
    }

    pub fn annotation(&self, name: &str) -> String {
        let object = self.api.get(CONNECTS, name);
        let text = object["metadata"]["annotations"]["k8s.ovn.org/network-connect-subnet"].as_str();
        text.unwrap_or_default().to_string()
    }

    /// Waits until a `ClusterNetworkConnect` is there in both zones.
    pub fn ready(&self, name: &str) -> Result<()> {
        until(&format!("{name} is ready"), LIMIT, || {
            let status = self.api.get(CONNECTS, name)["status"].clone();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let is = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
            match status["status"] == "Success" && is("Ready-In-Zone-n1") && is("Ready-In-Zone-n2") {
                true => Ok(()),
                false => bail!("{status}"),
            }
        })
    }

    fn ping(&self, from: Pod, ip: &str, count: &str) -> Result<()> {
        self.lab.exec(&from.name(), "ping", &["-c", count, "-i", "0.1", "-W", "1", ip]).map(drop)
    }

    /// Waits until a pod reaches another by all addresses that both have families for; then none of five pings is lost.
    pub fn reach(&self, from: Pod, to: Pod) -> Result<()> {
        for ip in shared(from, to) {
            let what = format!("{} → {} ({ip})", from.name(), to.name());
            until(&what, LIMIT, || self.ping(from, &ip, "1"))?;
            let out = self.lab.exec(&from.name(), "ping", &["-c", "5", "-i", "0.05", "-W", "1", &ip])?;
            if !out.contains(" 0% packet loss") {
                bail!("{what}: {out}");
            }
        }
        Ok(())
    }

    /// Waits until a pod does not reach another.
    pub fn no_reach(&self, from: Pod, to: Pod) -> Result<()> {
        for ip in shared(from, to) {
            let what = format!("{} must not reach {} ({ip})", from.name(), to.name());
            until(&what, LIMIT, || {
                match self.lab.exec(&from.name(), "ping", &["-c", "2", "-i", "0.1", "-W", "0.5", &ip]) {
                    Ok(out) => bail!("{out}"),
                    Err(_) => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    fn key(&mut self) -> (String, u16) {
        self.next += 1;
        (format!("flow{}", self.next), self.next)
    }

    /// Sends numbered datagrams to a pod, by its first address.
    pub fn stream(&mut self, from: Pod, to: Pod) -> Result<Stream> {
        let (key, n) = self.key();
        let (agent, port) = (self.programs.path("isthmus-lab"), 7000 + n);
        let ip = shared(from, to).into_iter().next().context("no common family")?;
        let receive = ["agent", "udp-receive", &port.to_string(), "--seconds", "600"];
        self.lab.spawn(&to.name(), &key, &agent, &receive)?;
        until("a receiver", LIMIT, || {
            let sockets = self.lab.exec(&to.name(), "cat", &["/proc/net/udp", "/proc/net/udp6"])?;
            if sockets.contains(&format!(":{port:04X} ")) { Ok(()) } else { bail!("it does not listen") }
        })?;
        let send = ["agent", "udp-send", &socket(&ip, port), "--seconds", "600"];
        self.lab.spawn(&from.name(), &key, &agent, &send)?;
        Ok(Stream { key, from, to })
    }

    /// Ends a stream, of which nothing may be missing.
    pub fn whole(&mut self, s: &Stream) -> Result<String> {
        let what = format!("{} → {}", s.from.name(), s.to.name());
        self.lab.signal(&s.from.name(), &s.key, Signal::SIGTERM);
        self.lab.wait(&s.from.name(), &s.key, LIMIT);
        let ended = clock();
        self.lab.pause(Duration::from_millis(500))?;
        self.lab.signal(&s.to.name(), &s.key, Signal::SIGTERM);
        self.lab.wait(&s.to.name(), &s.key, LIMIT);
        let said = self.lab.output(&s.to.name(), &s.key);
        let a: Arrivals = serde_json::from_str(said.trim()).with_context(|| format!("{what}: {said:?}"))?;
        let numbers = || a.datagrams.iter().map(|d| d.0);
        let (first, last) = (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0));
        let all = last + 1 - first;
        if a.datagrams.len() as u64 != all {
            bail!("{what}: {} of {all} datagrams arrived", a.datagrams.len());
        }
        match a.datagrams.last() {
            Some((_, at)) if at + 500_000 > ended => Ok(format!("{what}: all of {all} datagrams")),
            _ => bail!("{what}: nothing arrived in the end ({all} datagrams before)"),
        }
    }

    /// Holds connections of TCP and UDP to an address.
    pub fn hold(&mut self, from: Pod, ip: &str, port: u16) -> Result<Connections> {
        let (key, n) = self.key();
        let own = (20_000 + 100 * n).to_string();
        let to = socket(ip, port);
        let args = ["agent", "hold", &to, "--count", "8", "--port", &own, "--every", "20", "--seconds", "600"];
        self.lab.spawn(&from.name(), &key, &self.programs.path("isthmus-lab"), &args)?;
        until(&format!("connections {} → {ip}", from.name()), LIMIT, || self.said(&from.name(), &key, OPEN))?;
        Ok(Connections { key, from })
    }

    /// Ends connections, none of which may have been reset, changed or silent.
    pub fn held(&mut self, c: &Connections) -> Result<Held> {
        self.lab.signal(&c.from.name(), &c.key, Signal::SIGTERM);
        self.lab.wait(&c.from.name(), &c.key, LIMIT);
        let said = self.lab.output(&c.from.name(), &c.key);
        let held: Held = serde_json::from_str(said.lines().last().unwrap_or_default()).context(said.clone())?;
        if held.answered != 16 || held.resets + held.changed + held.silent != 0 {
            bail!("{}: {held:?}", c.from.name());
        }
        Ok(held)
    }
}

/// The addresses of a pod that another has the family of.
fn shared(from: Pod, to: Pod) -> Vec<String> {
    let has = |net: Net, v6: bool| net.families[usize::from(v6)];
    to.ips().into_iter().filter(|ip| has(from.net, ip.contains(':'))).collect()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.daemons {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
