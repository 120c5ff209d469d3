//! ovn-northd from Debian's packages beside ours, on the same northbound content: ours with ovsdb-servers of its own as well, and with the
//! databases in itself. `make bench-northd`, or the example `versus [DIVISOR] [pods|tenants] [c|ours|embedded]`; a divisor of 10 makes
//! everything a tenth. Databases are filled first, then the whole stack starts over them. Single changes are made by an `ovn-nbctl` that
//! runs already, and then by a client that stays connected (the median of several). Processor time of a full compile is counted in steps of 10 ms, that of a single change in nanoseconds, by thread.

#[path = "versus/connected.rs"]
mod connected;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Processor time so far, in seconds.
    fn cpu(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().context("stat")?.split(' ').collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((ticks(11) + ticks(12)) / 100.0)
    }

    /// Time that the threads which are there have run so far, in seconds.
    fn ran(&self) -> Result<f64> {
        let mut nanoseconds = 0.0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            // A thread may end meanwhile.
            let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            nanoseconds += text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
        }
        Ok(nanoseconds / 1e9)
    }

    /// Memory at the peak, in MB.
    fn peak(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1024.0)
    }
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).output()?;
    if !out.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8(out.stdout)?)
}

fn map<K: AsRef<str>>(pairs: &[(K, String)]) -> Value {
    json!(["map", pairs.iter().map(|(k, v)| json!([k.as_ref(), v])).collect::<Vec<_>>()])
}

/// Rows to insert in one transaction, by name.
#[derive(Default)]
struct Rows(Vec<Value>);

impl Rows {
    fn add(&mut self, table: &str, name: &str, row: Value) -> Value {
        self.0.push(json!({"op": "insert", "table": table, "uuid-name": name, "row": row}));
        json!(["named-uuid", name])
    }

    /// A switch port and the router port that it is for.
    fn link(&mut self, i: usize, switch: &str, mac: &str, networks: &[String], more: Value) -> (Value, Value) {
        let mut row = json!({"name": format!("lrp-{switch}"), "mac": mac, "networks": ["set", networks]});
        if let (Some(row), Some(more)) = (row.as_object_mut(), more.as_object()) {
            row.extend(more.clone());
        }
        let lrp = self.add("Logical_Router_Port", &format!("lrp{i}"), row);
        let options = map(&[("router-port", format!("lrp-{switch}"))]);
        let row = json!({"name": format!("lsp-{switch}"), "type": "router", "addresses": "router", "options": options});
        (lrp, self.add("Logical_Switch_Port", &format!("lsp{i}"), row))
    }

    fn commit(self, server: &str) -> Result<()> {
        let mut all = vec![json!("OVN_Northbound")];
        all.extend(self.0);
        let mut child = Command::new("ovsdb-client")
            .args(["transact", server])
            .arg(Value::Array(all).to_string())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut text = String::new();
        if let Some(out) = &mut child.stdout {
            std::io::Read::read_to_string(out, &mut text)?;
        }
        if !child.wait()?.success() || text.contains("\"error\"") {
            bail!("transaction: {text}");
        }
        Ok(())
    }
}

fn set(values: Vec<Value>) -> Value {
    json!(["set", values])
}

/// As OVN-Kubernetes lays it out: one router over a switch a node, a gateway router a node, services on all.
fn pods(server: &str, divisor: usize) -> Result<()> {
    let (nodes, ports, services) = (250 / divisor, 50, 500 / divisor);
    let mut r = Rows::default();
    let vips = (0..services).map(|s| {
        let (n, i) = (s % nodes, 10 + s % 40);
        (
            format!("172.30.{}.{}:80", s / 200, s % 200 + 1),
            format!("10.{n}.0.{i}:8080,10.{}.0.{i}:8080", (n + 1) % nodes),
        )
    });
    let lbs = vips.enumerate().map(|(i, vip)| {
        r.add(
            "Load_Balancer",
            &format!("lb{i}"),
            json!({"name": format!("svc-{i}"), "protocol": "tcp", "vips": map(&[vip])}),
        )
    });
    let lbs: Vec<Value> = lbs.collect();
    r.add("Load_Balancer_Group", "all", json!({"name": "all", "load_balancer": set(lbs)}));
    r.add("Logical_Router", "cluster", json!({"name": "cluster"}));
    let joined = json!({"name": "join"});
    r.add("Logical_Switch", "joined", joined);
    r.add("Port_Group", "pods", json!({"name": "pods"}));
    r.commit(server)?;
    let group =
        output("ovn-nbctl", &["--db", server, "--bare", "--columns=_uuid", "find", "Load_Balancer_Group", "name=all"])?;
    let group = json!(["uuid", group.trim()]);
    for n in 0..nodes {
        let mut r = Rows::default();
        let (lrp, up) =
            r.link(0, &format!("n{n}"), &format!("0a:01:00:00:00:{n:02x}"), &[format!("10.{n}.0.1/16")], json!({}));
        let (gw, join) = r.link(
            1,
            &format!("j{n}"),
            &format!("0a:02:00:00:00:{n:02x}"),
            &[format!("100.64.0.{}/16", n + 2)],
            json!({}),
        );
        let (ext, out) =
            r.link(2, &format!("x{n}"), &format!("0a:03:00:00:00:{n:02x}"), &[format!("192.168.{n}.2/24")], json!({}));
        let net = r.add("Logical_Switch_Port", "net", json!({"name": format!("net-{n}"), "type": "localnet", "addresses": "unknown", "options": map(&[("network_name", "p".into())])}));
        r.add("Logical_Switch", "ext", json!({"name": format!("ext-{n}"), "ports": set(vec![out, net])}));
        let nat = r.add(
            "NAT",
            "nat",
            json!({"type": "snat", "logical_ip": format!("10.{n}.0.0/16"), "external_ip": format!("192.168.{n}.2")}),
        );
        let route = r.add(
            "Logical_Router_Static_Route",
            "default",
            json!({"ip_prefix": "0.0.0.0/0", "nexthop": format!("192.168.{n}.1")}),
        );
        r.add(
            "Logical_Router",
            "gr",
            json!({"name": format!("gr-{n}"), "ports": set(vec![gw, ext]), "nat": nat, "static_routes": route,
            "options": map(&[("chassis", format!("node{n}"))]), "load_balancer_group": group.clone()}),
        );
        let mut pods = vec![up];
        for p in 0..ports {
            let address = format!("0a:00:00:{n:02x}:00:{p:02x} 10.{n}.0.{}", p + 10);
            let row = json!({"name": format!("p{n}-{p}"), "addresses": address.clone(), "port_security": address});
            pods.push(r.add("Logical_Switch_Port", &format!("p{p}"), row));
        }
        let acl = r.add("ACL", "acl", json!({"direction": "to-lport", "priority": 1001, "action": "allow-related", "match": format!("ip4.src == 10.{n}.0.1")}));
        r.add("Logical_Switch", "ls", json!({"name": format!("n{n}"), "ports": set(pods.clone()), "acls": acl, "load_balancer_group": group.clone()}));
        r.0.push(json!({"op": "mutate", "table": "Logical_Router", "where": [["name", "==", "cluster"]], "mutations": [["ports", "insert", lrp]]}));
        r.0.push(json!({"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", "join"]], "mutations": [["ports", "insert", join]]}));
        pods.remove(0);
        r.0.push(json!({"op": "mutate", "table": "Port_Group", "where": [["name", "==", "pods"]], "mutations": [["ports", "insert", set(pods)]]}));
        r.commit(server)?;
    }
    let mut r = Rows::default();
    let acl = |r: &mut Rows, i: usize, m: &str, action: &str, priority: i64| {
        r.add(
            "ACL",
            &format!("a{i}"),
            json!({"direction": "to-lport", "priority": priority, "action": action, "match": m}),
        )
    };
    let acls = vec![
        acl(&mut r, 0, "outport == @pods && ip4", "drop", 1000),
        acl(&mut r, 1, "outport == @pods && ip4.src == $pods_ip4 && tcp.dst == 80", "allow-related", 1001),
    ];
    r.0.push(json!({"op": "mutate", "table": "Port_Group", "where": [["name", "==", "pods"]], "mutations": [["acls", "insert", set(acls)]]}));
    r.commit(server)
}

/// A cloud: a router and a switch a tenant, distributed gateway ports on one outer switch, floating addresses, security
/// groups.
fn tenants(server: &str, divisor: usize) -> Result<()> {
    let (tenants, vms) = (200 / divisor, 20);
    let mut r = Rows::default();
    let net = r.add("Logical_Switch_Port", "net", json!({"name": "net", "type": "localnet", "addresses": "unknown", "options": map(&[("network_name", "p".into())])}));
    r.add("Logical_Switch", "public", json!({"name": "public", "ports": net}));
    r.commit(server)?;
    for t in 0..tenants {
        let mut r = Rows::default();
        let (inner, up) =
            r.link(0, &format!("t{t}"), &format!("0a:01:00:00:00:{t:02x}"), &[format!("10.{t}.0.1/24")], json!({}));
        let gc =
            r.add("Gateway_Chassis", "gc", json!({"name": format!("gc-{t}"), "chassis_name": "gw1", "priority": 10}));
        let (dgp, outer) = r.link(
            1,
            &format!("o{t}"),
            &format!("0a:02:00:00:00:{t:02x}"),
            &[format!("172.16.{t}.1/12")],
            json!({"gateway_chassis": gc}),
        );
        let mut nats = vec![r.add(
            "NAT",
            "snat",
            json!({"type": "snat", "logical_ip": format!("10.{t}.0.0/24"), "external_ip": format!("172.16.{t}.1")}),
        )];
        let mut ports = vec![up];
        for v in 0..vms {
            let (mac, ip) = (format!("0a:00:00:{t:02x}:00:{v:02x}"), format!("10.{t}.0.{}", v + 10));
            let address = format!("{mac} {ip}");
            ports.push(r.add(
                "Logical_Switch_Port",
                &format!("v{v}"),
                json!({"name": format!("v{t}-{v}"), "addresses": address.clone(), "port_security": address}),
            ));
            if v < 5 {
                nats.push(r.add(
                    "NAT",
                    &format!("fip{v}"),
                    json!({"type": "dnat_and_snat", "logical_ip": ip, "external_ip": format!("172.16.{t}.{}", v + 10),
                    "external_mac": format!("0a:04:00:{t:02x}:00:{v:02x}"), "logical_port": format!("v{t}-{v}")}),
                ));
            }
        }
        let route = r.add(
            "Logical_Router_Static_Route",
            "default",
            json!({"ip_prefix": "0.0.0.0/0", "nexthop": "172.31.255.254", "output_port": format!("lrp-o{t}")}),
        );
        r.add(
            "Logical_Router",
            "lr",
            json!({"name": format!("r{t}"), "ports": set(vec![inner, dgp]), "nat": set(nats), "static_routes": route}),
        );
        r.add("Logical_Switch", "ls", json!({"name": format!("t{t}"), "ports": set(ports.clone())}));
        ports.remove(0);
        let mut acls = Vec::new();
        for (i, (m, action, priority)) in
            [("ip", "drop", 1000), ("tcp && tcp.dst == 22", "allow-related", 1002), ("icmp4", "allow-related", 1002)]
                .into_iter()
                .enumerate()
        {
            let m = format!("outport == @sg{t} && {m}");
            acls.push(r.add(
                "ACL",
                &format!("a{i}"),
                json!({"direction": "to-lport", "priority": priority, "action": action, "match": m}),
            ));
        }
        r.add("Port_Group", "sg", json!({"name": format!("sg{t}"), "ports": set(ports), "acls": set(acls)}));
        r.0.push(json!({"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", "public"]], "mutations": [["ports", "insert", outer]]}));
        r.commit(server)?;
    }
    Ok(())
}

/// Single changes, as ovn-nbctl makes them.
const PODS: &[(&str, &str)] = &[
    ("port", "lsp-add n1 new -- lsp-set-addresses new 0a:0f:00:00:00:01"),
    ("port removed", "lsp-del new"),
    ("claim", "claim p1-1"),
    ("ACL", "acl-add n1 to-lport 1002 tcp allow"),
    ("LB backend", "set Load_Balancer svc-1 vips:\"172.30.0.2:80\"=\"10.3.0.11:8080\""),
    ("route", "lr-route-add cluster 192.0.2.0/24 10.1.0.9"),
    ("NAT", "lr-nat-add gr-1 snat 192.168.1.2 10.254.0.0/16"),
];

const TENANTS: &[(&str, &str)] = &[
    ("port", "lsp-add t1 new -- lsp-set-addresses new 0a:0f:00:00:00:01"),
    ("port removed", "lsp-del new"),
    ("claim", "claim v1-1"),
    ("ACL", "acl-add sg1 to-lport 1003 udp allow-related"),
    ("FIP", "lr-nat-add r1 dnat_and_snat 172.16.1.99 10.1.0.29"),
    ("route", "lr-route-add r1 192.0.2.0/24 10.1.0.9"),
];

struct Figures {
    full: f64,
    cpu: f64,
    peak: f64,
    /// Processor time and memory of northd and the database servers.
    all_cpu: f64,
    all_peak: f64,
    flows: usize,
    single: Vec<Single>,
}

/// Who compiles, and who holds the databases.
#[derive(Clone, Copy, PartialEq)]
enum Stack {
    /// Debian's ovn-northd and ovsdb-servers.
    C,
    /// Our northd with Debian's ovsdb-servers.
    Ours,
    /// Our northd with the databases in itself.
    Embedded,
}

impl Stack {
    const ALL: [Stack; 3] = [Stack::C, Stack::Ours, Stack::Embedded];

    fn name(self) -> &'static str {
        match self {
            Stack::C => "c",
            Stack::Ours => "ours",
            Stack::Embedded => "embedded",
        }
    }

    /// The remotes of the two databases in a folder.
    fn remotes(dir: &Path) -> [String; 2] {
        ["nb", "sb"].map(|name| format!("unix:{}", dir.join(format!("ovn{name}_db.sock")).display()))
    }

    /// Makes empty databases in a folder, where the server does not do that itself.
    fn create(self, dir: &Path) -> Result<()> {
        for (name, schema) in [("nb", ovn_schema::nb::Database::schema()), ("sb", ovn_schema::sb::Database::schema())] {
            let path = match self {
                Stack::C => PathBuf::from(format!("/usr/share/ovn/ovn-{name}.ovsschema")),
                Stack::Ours => dir.join(format!("{name}.ovsschema")),
                Stack::Embedded => return Ok(()),
            };
            if self == Stack::Ours {
                std::fs::write(&path, schema.to_json().to_string())?;
            }
            let file = dir.join(format!("ovn{name}_db.db"));
            output("ovsdb-tool", &["create", &file.to_string_lossy(), &path.to_string_lossy()])?;
        }
        Ok(())
    }

    /// The database servers, where they are processes of their own.
    fn servers(self, dir: &Path) -> Result<Vec<Running>> {
        let mut all = Vec::new();
        for name in ["nb", "sb"].iter().filter(|_| self != Stack::Embedded) {
            let socket = dir.join(format!("ovn{name}_db.sock"));
            let mut c = Command::new("ovsdb-server");
            c.arg(format!("--remote=punix:{}", socket.display())).arg("--unixctl=none");
            c.arg(dir.join(format!("ovn{name}_db.db"))).stderr(Stdio::null()).env("OVS_RUNDIR", dir);
            all.push(Running(c.spawn()?));
        }
        Ok(all)
    }

    fn northd(self, dir: &Path, more: &[&str]) -> Result<Running> {
        let program = match self {
            Stack::C => PathBuf::from("ovn-northd"),
            _ => std::env::current_exe()?.with_file_name("../northd"),
        };
        let mut c = Command::new(program);
        match self {
            Stack::Embedded => c.arg(format!("--embed={}", dir.display())),
            _ => {
                let [nb, sb] = Stack::remotes(dir);
                c.arg(format!("--ovnnb-db={nb}")).arg(format!("--ovnsb-db={sb}"))
            }
        };
        c.args(more).env("OVN_RUNDIR", dir).env("OVS_RUNDIR", dir).stderr(Stdio::null());
        Ok(Running(c.spawn()?))
    }
}

/// Waits until a server listens on both sockets.
fn listening(dir: &Path) {
    for socket in ["ovnnb_db.sock", "ovnsb_db.sock"].map(|s| dir.join(s)) {
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What one change took, in seconds: until the southbound database had it, of processor time, and of ours deriving what to
/// change.
struct Single {
    took: f64,
    cpu: f64,
    derived: Option<f64>,
    /// The same by a client that is connected, where it makes such a change.
    connected: Option<f64>,
}

/// An `ovn-nbctl` that is connected already.
struct Nbctl(PathBuf);

impl Drop for Nbctl {
    fn drop(&mut self) {
        let _ = Command::new("ovn-appctl").arg("-t").arg(&self.0).arg("exit").status();
    }
}

impl Nbctl {
    fn start(server: &str, dir: &Path) -> Result<Nbctl> {
        let socket = dir.join("nbctl.ctl");
        let mut c = Command::new("ovn-nbctl");
        c.args(["--db", server, "--detach", "--no-chdir", "-u"]).arg(&socket).env("OVN_RUNDIR", dir);
        c.arg(format!("--pidfile={}", dir.join("nbctl.pid").display())).stdout(Stdio::null()).stderr(Stdio::null());
        if !c.status()?.success() {
            bail!("ovn-nbctl does not start");
        }
        Ok(Nbctl(socket))
    }

    fn run(&self, args: &[&str]) -> Result<()> {
        let out = Command::new("ovn-nbctl").args(args).env("OVN_NB_DAEMON", &self.0).output()?;
        if !out.status.success() {
            bail!("ovn-nbctl: {}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(())
    }

    /// Makes a change and waits until the southbound database has it; seconds. What a chassis does is waited for
    /// northbound.
    fn change(&self, sb: &str, chassis: &str, command: &str) -> Result<f64> {
        let start = Instant::now();
        match command.strip_prefix("claim ") {
            Some(port) => {
                let row = json!({"chassis": ["uuid", chassis], "up": true});
                let claim = json!({"op": "update", "table": "Port_Binding", "where": [["logical_port", "==", port]], "row": row});
                output("ovsdb-client", &["transact", sb, &json!(["OVN_Southbound", claim]).to_string()])?;
                self.run(&["-t", "900", "wait-until", "Logical_Switch_Port", port, "up=true"])?;
            }
            None => {
                let mut args = vec!["--wait=sb", "-t", "900"];
                args.extend(command.split(' '));
                self.run(&args)?;
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// A chassis that can do everything; its row's name.
fn chassis(sb: &str) -> Result<String> {
    let mut args =
        vec!["--db", sb, "init", "--", "chassis-add", "ch1", "geneve", "127.0.0.1", "--", "set", "Chassis", "ch1"];
    let features: Vec<String> = [
        "ct-no-masked-label",
        "ct-commit-nat-v2",
        "ct-commit-to-zone",
        "ct-next-zone",
        "ct-state-save",
        "ct-label-flush",
        "ovn-sample-with-registers",
        "mac-binding-timestamp",
        "fdb-timestamp",
        "ls-dpg-column",
        "port-up-notif",
    ]
    .iter()
    .map(|f| format!("other_config:{f}=true"))
    .collect();
    args.extend(features.iter().map(String::as_str));
    output("ovn-sbctl", &args)?;
    Ok(output("ovn-sbctl", &["--db", sb, "--bare", "--columns=_uuid", "find", "Chassis", "name=ch1"])?
        .trim()
        .to_string())
}

/// Fills databases, then starts the whole stack over them.
fn measure(
    stack: Stack,
    dir: &Path,
    fill: impl Fn(&str, usize) -> Result<()>,
    divisor: usize,
    changes: &[(&str, &str)],
) -> Result<Figures> {
    std::fs::create_dir_all(dir)?;
    let ours = stack != Stack::C;
    let remotes = Stack::remotes(dir);
    let [nb, sb] = [&*remotes[0], &*remotes[1]];
    stack.create(dir)?;
    let filling = match stack {
        Stack::Embedded => vec![stack.northd(dir, &["--dry-run"])?],
        _ => stack.servers(dir)?,
    };
    listening(dir);
    output("ovn-nbctl", &["--db", nb, "init"])?;
    let chassis = chassis(sb)?;
    fill(nb, divisor)?;
    drop(filling);
    for name in ["nb", "sb"] {
        // What a server that was killed leaves.
        let _ = std::fs::remove_file(dir.join(format!("ovn{name}_db.sock")));
    }
    let start = Instant::now();
    let servers = stack.servers(dir)?;
    let northd = stack.northd(dir, &[])?;
    listening(dir);
    let nbctl = Nbctl::start(nb, dir)?;
    nbctl.change(sb, &chassis, "sync")?;
    let full = start.elapsed().as_secs_f64();
    let (cpu, peak) = (northd.cpu()?, northd.peak()?);
    let (mut all_cpu, mut all_peak) = (cpu, peak);
    for server in &servers {
        all_cpu += server.cpu()?;
        all_peak += server.peak()?;
    }
    let flows = output(
        "ovsdb-client",
        &[
            "transact",
            sb,
            r#"["OVN_Southbound",{"op":"select","table":"Logical_Flow","where":[],"columns":["_uuid"]}]"#,
        ],
    )?
    .matches("_uuid")
    .count();
    let mut single = Vec::new();
    let control = dir.join(format!("northd.{}.ctl", northd.0.id())).to_string_lossy().into_owned();
    for (_, change) in changes {
        quiet(&northd)?;
        let before = northd.ran()?;
        if ours {
            output("ovn-appctl", &["-t", &control, "stopwatch/reset", "ovnnb_db_run"])?;
        }
        let took = nbctl.change(sb, &chassis, change)?;
        let cpu = northd.ran()? - before;
        let derived = match ours {
            true => longest(&output("ovn-appctl", &["-t", &control, "stopwatch/show", "ovnnb_db_run"])?),
            false => None,
        };
        single.push(Single { took, cpu, derived, connected: None });
    }
    quiet(&northd)?;
    let kinds: Vec<&str> = changes.iter().map(|(kind, _)| *kind).collect();
    let pods = kinds.contains(&"LB backend");
    let medians = connected::Connected::start(nb)?.medians(pods, &kinds)?;
    single.iter_mut().zip(medians).for_each(|(s, median)| s.connected = median);
    Ok(Figures { full, cpu, peak, all_cpu, all_peak, flows, single })
}

/// The longest of a few samples, as a stopwatch shows it; seconds.
fn longest(shown: &str) -> Option<f64> {
    let line = shown.lines().find_map(|l| l.trim().strip_prefix("95th percentile: "))?;
    Some(line.trim_end_matches(" msec").parse::<f64>().ok()? / 1e3)
}

/// Waits until a program has done nothing for a second, so that what follows a change is not taken for the next one.
fn quiet(program: &Running) -> Result<()> {
    let mut before = program.cpu()?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = program.cpu()?;
        if now - before < 0.015 {
            return Ok(());
        }
        before = now;
    }
}

/// What fills a database: the remote, the divisor.
type Fill = fn(&str, usize) -> Result<()>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let asked = |what: &str, all: &[&str]| args.iter().any(|a| a == what) || !args.iter().any(|a| all.contains(&&**a));
    let divisor = args.iter().find_map(|a| a.parse().ok()).unwrap_or(1);
    let dir = std::env::temp_dir().join(format!("northd-versus-{}", std::process::id()));
    for (name, what, fill, changes) in
        [("pods", "250 nodes x 50 ports", pods as Fill, PODS), ("tenants", "200 tenants x 20 VMs", tenants, TENANTS)]
    {
        if !asked(name, &["pods", "tenants"]) {
            continue;
        }
        let mut figures = [const { None }; 3];
        for (stack, figures) in Stack::ALL.iter().zip(&mut figures) {
            if asked(stack.name(), &Stack::ALL.map(Stack::name)) {
                let dir = dir.join(format!("{}-{name}", stack.name()));
                *figures = Some(measure(*stack, &dir, fill, divisor, changes)?);
            }
        }
        println!("{}", report(&format!("{what} (1/{divisor})"), &figures, changes)?);
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The figures of the stacks, and those of C over the others.
fn report(what: &str, all: &[Option<Figures>; 3], changes: &[(&str, &str)]) -> Result<String> {
    let flows = all.iter().map(|f| f.as_ref().map_or("-".to_string(), |f| f.flows.to_string()));
    let mut text = format!("{what}: flows {}\n", flows.collect::<Vec<_>>().join(", "));
    writeln!(text, "| what | C | ours | ratio | embedded | ratio |")?;
    let mut line = |what: &str, of: &dyn Fn(&Figures) -> f64, unit: &str| {
        let least = if unit == "ms" { 0.1 } else { 0.01 };
        let [c, ours, embedded] = all.each_ref().map(|f| f.as_ref().map(of).filter(|n| !n.is_nan()));
        let one = |f: Option<f64>| f.map_or("-".to_string(), |f| format!("{f:.2} {unit}"));
        let ratio = |f: Option<f64>| c.zip(f).map_or("-".to_string(), |(c, f)| format!("{:.1}", c / f.max(least)));
        let (o, e) = (ratio(ours), ratio(embedded));
        writeln!(text, "| {what} | {} | {} | {o} | {} | {e} |", one(c), one(ours), one(embedded))
    };
    line("full compile", &|f| f.full, "s")?;
    line("processor time of northd", &|f| f.cpu, "s")?;
    line("processor time of all", &|f| f.all_cpu, "s")?;
    line("memory of northd at the peak", &|f| f.peak, "MB")?;
    line("memory of all at the peak", &|f| f.all_peak, "MB")?;
    for (i, (name, _)) in changes.iter().enumerate() {
        let of = |f: &Figures, part: fn(&Single) -> f64| f.single.get(i).map_or(0.0, part) * 1e3;
        line(name, &|f| of(f, |s| s.took), "ms")?;
        line(&format!("{name}, processor time of northd"), &|f| of(f, |s| s.cpu), "ms")?;
        line(&format!("{name}, connected client"), &|f| of(f, |s| s.connected.unwrap_or(f64::NAN)), "ms")?;
        line(&format!("{name}, deriving"), &|f| of(f, |s| s.derived.unwrap_or(f64::NAN)), "ms")?;
    }
    Ok(text)
}
