//! Two zones on one machine that `interconnect` joins, and their checks.
//!
//! ```text
//!      vm1                                                                      vm2
//!       │                                                                        │
//!      hv1    gw1a   gw1b   central1                    central2   gw2a   gw2b  hv2
//!       │      │      │     northd, databases           northd,     │      │     │
//!       │      │      │     interconnect with the       databases,  │      │     │
//!       │      │      │     shared databases            interconnect│      │     │
//!       │      │      │        │                           │        │      │     │
//!  underlay ───┴──────┴────────┼───────────────────────────┼────────┴──────┴─────┴     Geneve, BFD
//!  management ─ every machine ─┴───────────────────────────┴                           OVSDB
//! ```

use crate::agent::{Arrivals, clock};
use crate::lab::{Lab, until};
use crate::network::{Vm, address, fabric, manage, underlay};
use crate::programs::Programs;
use crate::scenario::{Built, Failover, Runner, Way, outage, reach, through_failure};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
/// The name of the distributed gateway ports is `lrN-ts1`, N being the zone.
const TRANSIT: &str = "ts1";

/// A chassis of a zone.
#[derive(Clone, Copy, Debug)]
pub struct Chassis {
    /// Its name.
    pub name: &'static str,
    /// Its zone: 1 or 2.
    pub zone: usize,
    /// Whether tunnels from other zones end at it.
    pub gateway: bool,
}

/// A machine of a zone with the addresses it has.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The machine.
    pub vm: Vm,
    /// Its addresses with prefix length.
    pub addresses: &'static [&'static str],
    /// Its routers.
    pub routers: &'static [&'static str],
}

/// Two hypervisors with four gateways.
pub const CHASSIS: [Chassis; 6] = [
    Chassis { name: "hv1", zone: 1, gateway: false },
    Chassis { name: "gw1a", zone: 1, gateway: true },
    Chassis { name: "gw1b", zone: 1, gateway: true },
    Chassis { name: "hv2", zone: 2, gateway: false },
    Chassis { name: "gw2a", zone: 2, gateway: true },
    Chassis { name: "gw2b", zone: 2, gateway: true },
];

/// A virtual machine in each zone.
pub const MACHINES: [Machine; 2] = [
    Machine {
        vm: Vm { name: "vm1", host: "hv1", mac: "02:00:00:01:00:11" },
        addresses: &["10.1.0.11/24"],
        routers: &["10.1.0.1"],
    },
    Machine {
        vm: Vm { name: "vm2", host: "hv2", mac: "02:00:00:02:00:11" },
        addresses: &["10.2.0.11/24"],
        routers: &["10.2.0.1"],
    },
];

/// Zones that run.
#[derive(Debug)]
pub struct Zones {
    /// Their lab.
    pub lab: Lab,
    programs: Programs,
    chassis: Vec<Chassis>,
}

impl Built for Zones {
    fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }

    fn agent(&self) -> String {
        self.programs.path("isthmus-lab")
    }
}

fn central(zone: usize) -> String {
    format!("central{zone}")
}

fn central_ip(zone: usize) -> String {
    format!("192.168.60.{zone}")
}

impl Zones {
    /// Builds machines and wires and starts everything up to the chassis.
    ///
    /// # Errors
    /// Where something cannot be made or does not start.
    pub fn start(lab: Lab, chassis: &[Chassis], machines: &[Machine], mut progress: impl FnMut(&str)) -> Result<Zones> {
        let mut z = Zones { lab, programs: Programs::found()?, chassis: chassis.to_vec() };
        progress("machines and wires");
        z.wires(machines)?;
        for zone in [1, 2] {
            progress(&format!("zone az{zone}: northd, databases, interconnect"));
            z.central(zone)?;
            z.name(zone)?;
        }
        for c in chassis {
            progress(&format!("{}: switch and controller", c.name));
            z.chassis(*c)?;
        }
        for m in machines {
            z.programs.plug(&z.lab, m.vm)?;
        }
        Ok(z)
    }

    fn wires(&mut self, machines: &[Machine]) -> Result<()> {
        fabric(&mut self.lab)?;
        for zone in [1, 2] {
            self.lab.machine(&central(zone))?;
            manage(&self.lab, &central(zone), &central_ip(zone))?;
        }
        for c in &self.chassis {
            self.lab.machine(c.name)?;
            manage(&self.lab, c.name, &format!("192.168.60.{}", self.index(c.name)))?;
            underlay(&self.lab, c.name)?;
        }
        for m in machines {
            let vm = m.vm;
            self.lab.machine(vm.name)?;
            self.lab.link((vm.name, "eth0"), (vm.host, &format!("v-{}", vm.name)))?;
            // Leaves room for Geneve in an underlay of 1500.
            self.lab.ip(vm.name, &["link", "set", "eth0", "mtu", "1442"])?;
            for a in m.addresses {
                // Nobody else has an IPv6 address of ours: it is used at once.
                let nodad: &[&str] = if a.contains(':') { &["nodad"] } else { &[] };
                self.lab.ip(vm.name, &[&["addr", "add", a, "dev", "eth0"], nodad].concat())?;
            }
            for r in m.routers {
                self.lab.ip(vm.name, &["route", "add", "default", "via", r])?;
            }
        }
        Ok(())
    }

    /// The last octet of a chassis' addresses.
    fn index(&self, chassis: &str) -> usize {
        self.chassis.iter().position(|c| c.name == chassis).map_or(250, |n| n + 11)
    }

    /// Starts a zone's northd and interconnect, which serve its databases and, in the first zone, the shared ones.
    ///
    /// # Errors
    /// Where they do not start.
    pub fn central(&mut self, zone: usize) -> Result<()> {
        let m = central(zone);
        let dir = self.lab.machine_dir(&m);
        let listen = |port: u16| format!("--listen=ptcp:{port}:0.0.0.0");
        let embed = format!("--embed={}", dir.display());
        self.lab.spawn(&m, "northd", &self.programs.path("northd"), &[&embed, &listen(6641), &listen(6642)])?;
        let sock = |db: &str| format!("unix:{}", dir.join(format!("ovn{db}_db.sock")).display());
        let own = [format!("--ovnnb-db={}", sock("nb")), format!("--ovnsb-db={}", sock("sb"))];
        let shared = if zone == 1 {
            [embed, listen(6645), listen(6646)].to_vec()
        } else {
            let ip = central_ip(1);
            [format!("--ic-nb-db=tcp:{ip}:6645"), format!("--ic-sb-db=tcp:{ip}:6646")].to_vec()
        };
        let args: Vec<&str> = own.iter().chain(&shared).map(String::as_str).collect();
        self.lab.spawn(&m, "interconnect", &self.programs.path("interconnect"), &args)?;
        until("northd", LIMIT, || match self.dump(zone, "OVN_Northbound", "NB_Global")? {
            rows if rows.is_empty() => bail!("no row in NB_Global"),
            _ => Ok(()),
        })
    }

    /// Kills northd, interconnect and the databases of a zone.
    pub fn kill_central(&mut self, zone: usize) {
        for key in ["interconnect", "northd"] {
            self.lab.kill(&central(zone), key);
        }
    }

    fn name(&self, zone: usize) -> Result<()> {
        let options = json!([
            "map",
            [
                ["ic-route-adv", "true"],
                ["ic-route-learn", "true"],
                ["bfd-min-tx", "100"],
                ["bfd-min-rx", "100"],
                ["bfd-mult", "3"],
            ]
        ]);
        self.northbound(
            zone,
            vec![
                json!({"op": "update", "table": "NB_Global", "where": [], "row": {"name": format!("az{zone}")}}),
                json!({"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["options", "insert", options]]}),
            ],
        )
    }

    fn chassis(&mut self, c: Chassis) -> Result<()> {
        self.programs.switch(&mut self.lab, c.name)?;
        self.programs.local(&self.lab, c.name, &["bridge", "br-under", "under0"])?;
        self.address(c.name)?;
        let (remote, ip) = (format!("tcp:{}:6642", central_ip(c.zone)), self.underlay_ip(c.name));
        let mut args = vec!["set", "--name", c.name, "--remote", &remote, "--encap-ip", &ip];
        if c.gateway {
            args.push("--interconn");
        }
        self.programs.local(&self.lab, c.name, &args)?;
        let db = format!("unix:{}", self.lab.machine_dir(c.name).join("db.sock").display());
        self.lab.spawn(c.name, "controller", &self.programs.path("controller"), &[&db])
    }

    fn underlay_ip(&self, chassis: &str) -> String {
        format!("192.168.50.{}", self.index(chassis))
    }

    fn address(&self, chassis: &str) -> Result<()> {
        address(&self.lab, chassis, &self.underlay_ip(chassis))
    }

    /// The remote of a zone's database, or of a shared one.
    fn remote(zone: usize, database: &str) -> String {
        match database {
            "OVN_Northbound" => format!("tcp:{}:6641", central_ip(zone)),
            "OVN_Southbound" => format!("tcp:{}:6642", central_ip(zone)),
            "OVN_IC_Northbound" => format!("tcp:{}:6645", central_ip(1)),
            _ => format!("tcp:{}:6646", central_ip(1)),
        }
    }

    fn ctl(&self, zone: usize, args: &[&str]) -> Result<String> {
        self.lab.exec(&central(zone), &self.programs.path("isthmusctl"), args)
    }

    fn transact(&self, zone: usize, database: &str, operations: Vec<Value>) -> Result<()> {
        let text = Value::Array(operations).to_string();
        self.ctl(zone, &["db", &Self::remote(zone, database), "transact", database, &text]).map(drop)
    }

    /// Carries out a transaction in a zone's northbound database.
    ///
    /// # Errors
    /// Where it fails, with what was said.
    pub fn northbound(&self, zone: usize, operations: Vec<Value>) -> Result<()> {
        self.transact(zone, "OVN_Northbound", operations)
    }

    /// Carries out a transaction in the interconnection northbound database.
    ///
    /// # Errors
    /// Where it fails, with what was said.
    pub fn shared(&self, operations: Vec<Value>) -> Result<()> {
        self.transact(1, "OVN_IC_Northbound", operations)
    }

    /// The rows of a table, as `isthmusctl db dump` prints them.
    ///
    /// # Errors
    /// Where the database cannot be reached.
    pub fn dump(&self, zone: usize, database: &str, table: &str) -> Result<String> {
        self.ctl(zone, &["--timeout", "2", "db", &Self::remote(zone, database), "dump", database, table])
    }

    /// Waits until a table has a row that holds this text.
    ///
    /// # Errors
    /// Where it has none in time.
    pub fn holds(&self, zone: usize, database: &str, table: &str, text: &str) -> Result<()> {
        until(&format!("{text} in {table} of zone {zone}"), LIMIT, || {
            if self.dump(zone, database, table)?.contains(text) { Ok(()) } else { bail!("it is not there") }
        })
    }

    /// A program's path.
    pub fn program(&self, name: &str) -> String {
        self.programs.path(name)
    }

    /// Commands that look around, a line each.
    pub fn commands(&self) -> String {
        let ctl = format!("ip netns exec {} {}", self.lab.namespace(&central(1)), self.program("isthmusctl"));
        let (nb, sb) = (Self::remote(1, "OVN_Northbound"), Self::remote(1, "OVN_Southbound"));
        let shared = Self::remote(1, "OVN_IC_Southbound");
        format!("  {ctl} ic --ic-sb {shared} show\n  {ctl} --nb {nb} --sb {sb} show\n  {ctl} --sb {sb} gateways\n")
    }

    /// What zones have told each other.
    ///
    /// # Errors
    /// Where the database cannot be reached.
    pub fn show(&self) -> Result<String> {
        self.ctl(1, &["ic", "--ic-sb", &Self::remote(1, "OVN_IC_Southbound"), "show"])
    }

    /// The gateway that serves a zone's port on the transit switch.
    ///
    /// # Errors
    /// Where nobody does.
    pub fn active(&self, zone: usize) -> Result<String> {
        let out = self.ctl(zone, &["--sb", &Self::remote(zone, "OVN_Southbound"), "gateways"])?;
        let port = format!("lr{zone}-{TRANSIT}: served by ");
        let line = out.lines().find_map(|l| l.strip_prefix(&port)).context("no gateway port")?;
        Ok(line.to_string())
    }
}

/// The name of a row within a transaction.
fn label(name: &str) -> String {
    format!("row_{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"))
}

/// Inserts a row that later operations of the transaction refer to by its name.
pub fn insert(table: &str, name: &str, row: Value) -> Value {
    let mut row = row;
    row["name"] = json!(name);
    json!({"op": "insert", "table": table, "uuid-name": label(name), "row": row})
}

/// Puts a row of the transaction into a column of the rows with this name.
pub fn attach(table: &str, name: &str, column: &str, row: &str) -> Value {
    let mutation = json!([column, "insert", ["named-uuid", label(row)]]);
    json!({"op": "mutate", "table": table, "where": [["name", "==", name]], "mutations": [mutation]})
}

/// A port of a switch: inserted, and put into its switch.
pub fn switch_port(switch: &str, name: &str, row: Value) -> [Value; 2] {
    [insert("Logical_Switch_Port", name, row), attach("Logical_Switch", switch, "ports", name)]
}

/// The switch's side of a router's port.
pub fn router_side(switch: &str, router_port: &str) -> [Value; 2] {
    let options = json!(["map", [["router-port", router_port]]]);
    let row = json!({"type": "router", "addresses": "router", "options": options});
    switch_port(switch, &format!("{switch}-{router_port}"), row)
}

/// A port of a router: inserted, and put into its router.
pub fn router_port(router: &str, name: &str, row: Value) -> [Value; 2] {
    [insert("Logical_Router_Port", name, row), attach("Logical_Router", router, "ports", name)]
}

/// The chassis that may serve a router's port, the first preferred.
pub fn gateways(router_port: &str, chassis: &[&str]) -> Vec<Value> {
    let mut out = Vec::new();
    for (n, c) in chassis.iter().enumerate() {
        let name = format!("{router_port}-{c}");
        out.push(insert("Gateway_Chassis", &name, json!({"chassis_name": c, "priority": 20 - 10 * n as i64})));
        out.push(attach("Logical_Router_Port", router_port, "gateway_chassis", &name));
    }
    out
}

/// A switch with a machine and a router, in each zone.
fn networks(z: &Zones) -> Result<()> {
    for (n, m) in (1..).zip(MACHINES) {
        let (ls, lr, port) = (format!("ls{n}"), format!("lr{n}"), format!("lr{n}-ls{n}"));
        let mac = format!("02:00:00:0{n}:00:01");
        let mut operations = vec![insert("Logical_Switch", &ls, json!({})), insert("Logical_Router", &lr, json!({}))];
        let address = format!("{} 10.{n}.0.11", m.vm.mac);
        operations.extend(switch_port(&ls, m.vm.name, json!({"addresses": address})));
        operations.extend(router_port(&lr, &port, json!({"mac": mac, "networks": format!("10.{n}.0.1/24")})));
        operations.extend(router_side(&ls, &port));
        z.northbound(n, operations)?;
    }
    Ok(())
}

/// Joins each zone's router to the transit switch, by a port that one of two gateways serves.
fn join(z: &Zones) -> Result<()> {
    for n in [1, 2] {
        let (lr, port) = (format!("lr{n}"), format!("lr{n}-{TRANSIT}"));
        let row = json!({"mac": format!("02:00:00:0{n}:64:01"), "networks": format!("169.254.100.{n}/24")});
        let mut operations = Vec::from(router_port(&lr, &port, row));
        operations.extend(gateways(&port, &[&format!("gw{n}a"), &format!("gw{n}b")]));
        operations.extend(router_side(TRANSIT, &port));
        z.northbound(n, operations)?;
    }
    Ok(())
}

/// Waits until a zone's router has learned a route to a network of the other zone. The prefix stands as the other zone's
/// router port has it, with the port's own address.
fn learned(z: &Zones, zone: usize, prefix: &str) -> Result<String> {
    let hop = format!("169.254.100.{}", 3 - zone);
    let wanted = [format!("ip_prefix: \"{prefix}\""), format!("nexthop: \"{hop}\""), "ic-learned-route".to_string()];
    until(&format!("route {prefix} in zone {zone}"), LIMIT, || {
        let rows = z.dump(zone, "OVN_Northbound", "Logical_Router_Static_Route")?;
        let mut routes: Vec<String> = Vec::new();
        for line in rows.lines() {
            match routes.last_mut().filter(|_| line.starts_with(' ')) {
                Some(route) => *route += line,
                None => routes.push(String::new()),
            }
        }
        let is = |r: &String| wanted.iter().all(|w| r.contains(w));
        if routes.iter().any(is) { Ok(format!("{prefix} via {hop}")) } else { bail!("it is not there") }
    })
}

impl Runner<'_, Zones> {
    /// Joins the zones: each learns of the other, and machines reach each other.
    pub fn join(&mut self) {
        self.check("each zone registers its gateways", |z| {
            networks(z)?;
            until("zones with gateways", LIMIT, || {
                let shown = z.show()?;
                let missing = ["zone az1", "zone az2", "gw1a", "gw1b", "gw2a", "gw2b"].map(|w| (w, shown.contains(w)));
                match missing.iter().find(|m| !m.1) {
                    Some((what, _)) => bail!("{what} is not registered"),
                    None => Ok("gw1a, gw1b; gw2a, gw2b".into()),
                }
            })
        });
        self.check("a transit switch appears in both zones", |z| {
            z.shared(vec![insert("Transit_Switch", TRANSIT, json!({}))])?;
            for zone in [1, 2] {
                z.holds(zone, "OVN_Northbound", "Logical_Switch", &format!("\"{TRANSIT}\""))?;
            }
            join(z)?;
            Ok(TRANSIT.into())
        });
        for (zone, prefix) in [(1, "10.2.0.1/24"), (2, "10.1.0.1/24")] {
            self.check(&format!("zone {zone} learns the other's network"), |z| learned(z, zone, prefix));
        }
        self.check("machines of two zones: vm1 → vm2", |z| reach(&z.lab, "vm1", "10.2.0.11"));
        self.check("and back: vm2 → vm1", |z| reach(&z.lab, "vm2", "10.1.0.11"));
        self.check("a network that is new in zone 2 is reached from zone 1", |z| {
            add_network(z, 91)?;
            learned(z, 1, "10.91.0.1/24")?;
            reach(&z.lab, "vm1", "10.91.0.1")
        });
    }

    /// Kills the dataplane of the gateway that serves zone 2's port on the transit switch, under traffic, and revives it.
    pub fn gateway_fails(&mut self) -> Option<Failover> {
        let mut seen = None;
        let ok = self.check("failover of an interconnection gateway under traffic", |z| {
            until("gw2a serves", LIMIT, || match z.active(2)? {
                a if a == "gw2a" => Ok(()),
                a => bail!("{a} serves"),
            })?;
            let out = Way { from: "vm1", to: "vm2", address: "10.2.0.11" };
            let back = Way { from: "vm2", to: "vm1", address: "10.1.0.11" };
            let f = through_failure(
                z,
                [out, back],
                "gw2a",
                |z| {
                    z.programs.switch(&mut z.lab, "gw2a")?;
                    z.address("gw2a")
                },
                |_| {},
            )?;
            let detail =
                format!("{} datagrams to zone 2, {} to zone 1", f.outbound.datagrams.len(), f.inbound.datagrams.len());
            seen = Some(f);
            Ok(detail)
        });
        let f = seen.filter(|_| ok)?;
        self.gone_on(&f, ["zone 1 to zone 2:", "zone 2 to zone 1:"]);
        Some(f)
    }

    /// Kills everything of zone 1's central, with the shared databases, and starts it again.
    pub fn central_fails(&mut self) {
        self.check("zone 1's central is killed and comes back: traffic goes on", |z| {
            // Who serves while the shared databases are away cannot be told: what was under way has to end first.
            until("gw2a serves again, and zone 1 knows", LIMIT, || {
                let (nb, sb) = (Zones::remote(1, "OVN_Northbound"), Zones::remote(1, "OVN_Southbound"));
                let shown = z.ctl(1, &["--nb", &nb, "--sb", &sb, "show"])?;
                let known = shown.lines().any(|l| l.contains("(remote)") && l.contains(" on gw2a,"));
                if known && z.active(2)? == "gw2a" { Ok(()) } else { bail!("it does not yet") }
            })?;
            let agent = z.agent();
            z.lab.spawn("vm2", "steady", &agent, &["agent", "udp-receive", "7004", "--seconds", "11"])?;
            std::thread::sleep(Duration::from_millis(200));
            z.lab.spawn("vm1", "steady", &agent, &["agent", "udp-send", "10.2.0.11:7004", "--seconds", "10"])?;
            z.lab.pause(Duration::from_secs(1))?;
            let killed = clock();
            z.kill_central(1);
            z.lab.pause(Duration::from_secs(4))?;
            // Meanwhile something changes in the other zone.
            add_network(z, 92)?;
            z.central(1)?;
            z.lab.wait("vm1", "steady", LIMIT);
            z.lab.wait("vm2", "steady", LIMIT);
            let said = z.lab.output("vm2", "steady");
            let arrived: Arrivals = serde_json::from_str(said.lines().last().context("the receiver said nothing")?)?;
            let (longest, lost) = outage(&arrived, killed, killed + 8_000_000);
            if longest > 1_000_000 {
                bail!("nothing arrived for {} ms, {lost} datagrams lost", longest / 1000);
            }
            Ok(format!("{lost} of {} datagrams lost", arrived.datagrams.len() as u64 + lost))
        });
        self.check("what zone 2 told meanwhile is learned", |z| {
            learned(z, 1, "10.92.0.1/24")?;
            reach(&z.lab, "vm1", "10.92.0.1")
        });
    }
}

/// Gives zone 2's router another network, 10.N.0.0/24.
fn add_network(z: &Zones, n: u8) -> Result<()> {
    let row = json!({"mac": format!("02:00:00:02:{n}:01"), "networks": format!("10.{n}.0.1/24")});
    z.northbound(2, router_port("lr2", &format!("lr2-net{n}"), row).into())
}
