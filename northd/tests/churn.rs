//! Switches, ports, routes, load balancers and what hangs on them come and go, ten rounds; northd ends where it began.
//! A round has some 700 rows, which are thousands of flows, so that an unoptimized build is through in seconds: a name, an entry of
//! an index or a number that stays behind shows with any number of rows. `make churn` has fifty such networks a round, 10,000 ports.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovsdb_rs::Server;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NORTHBOUND: &str = ovn_schema::nb::Database::NAME;

/// How many times the usual size a round has: `make churn` sets it, for 10,000 a round.
fn times() -> u32 {
    std::env::var("ISTHMUS_CHURN").map_or(1, |n| n.parse().expect("ISTHMUS_CHURN is a number"))
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The databases are served by this process: their history, of 50,000 rows, is no memory of northd's.
async fn serve(dir: &Path) -> Server {
    let server = Server::new();
    for (name, schema) in [("nb", ovn_schema::nb::Database::schema()), ("sb", ovn_schema::sb::Database::schema())] {
        server.add_file(&dir.join(format!("{name}.db")), Some(&schema)).await.unwrap();
    }
    server.listen(&format!("punix:{}", dir.join("db.sock").display())).await.unwrap();
    server
}

fn start(dir: &Path) -> Running {
    let path = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_northd"));
    command.args(["nb", "sb"].map(|db| format!("--ovn{db}-db=unix:{}", path("db.sock"))));
    // With an arena for each thread, how much glibc keeps of what is free depends on which threads happen to run.
    command.arg(format!("--unixctl={}", path("ctl"))).env("MALLOC_ARENA_MAX", "1");
    Running(command.arg(format!("--log-file={}", path("log"))).stderr(Stdio::null()).spawn().unwrap())
}

/// What a control command answers.
fn ask(dir: &Path, command: &str, arguments: &[&str]) -> String {
    let mut stream = UnixStream::connect(dir.join("ctl")).unwrap();
    stream.write_all(json!({"id": 0, "method": command, "params": arguments}).to_string().as_bytes()).unwrap();
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "no reply to {command}");
        text.extend_from_slice(&piece[..n]);
        if let Ok(reply) = serde_json::from_slice::<Value>(&text) {
            return reply["result"].as_str().unwrap().to_string();
        }
    }
}

/// What `memory/show` says that the compiler holds, room that may be anywhere left out.
fn held(dir: &Path) -> Vec<(String, u64)> {
    let shown = ask(dir, "memory/show", &[]);
    let figures = shown.split_whitespace().filter_map(|w| w.split_once(':'));
    let ours = figures.filter(|(name, _)| name.starts_with("northd-") && *name != "northd-room-for-outputs");
    let mut all: Vec<_> = ours.map(|(name, n)| (name.to_string(), n.parse().unwrap())).collect();
    all.sort();
    all
}

/// Resident memory, in KiB (proc_pid_status(5)).
fn resident(child: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

async fn until(what: &str, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !look() {
        assert!(Instant::now() < end, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn carry_out(nb: &Server, operations: Vec<Value>) {
    for result in nb.transact(NORTHBOUND, operations).await.unwrap() {
        assert!(result.get("error").is_none(), "{result}");
    }
}

fn insert(table: &str, name: &str, row: Value) -> Value {
    json!({"op": "insert", "table": table, "uuid-name": name, "row": row})
}

fn named(kind: &str, all: std::ops::Range<u32>) -> Value {
    json!(["set", all.map(|n| json!(["named-uuid", format!("{kind}{n}")])).collect::<Vec<_>>()])
}

/// Switches of 20 ports each, with access lists, groups, addresses and load balancers, on a router with routes of several ways, own
/// route tables, policies and translation.
fn network(round: u32, copy: u32) -> Vec<Value> {
    let name = format!("r{round}_{copy}");
    let mut all = Vec::new();
    for n in 0..200u32 {
        let (a, b) = (n / 20, n % 20 + 10);
        let row = json!({"name": format!("{name}-p{n}"), "addresses": format!("02:00:{round:02x}:00:{a:02x}:{b:02x} 10.{round}.{a}.{b}"),
            "port_security": format!("02:00:{round:02x}:00:{a:02x}:{b:02x} 10.{round}.{a}.{b}")});
        all.push(insert("Logical_Switch_Port", &format!("p{n}"), row));
    }
    for n in 0..10u32 {
        let acl = json!({"direction": "to-lport", "action": "allow-related", "priority": 100 + n, "match": format!("outport == @{name}_g{n} && tcp.dst == {round}")});
        all.push(insert("ACL", &format!("acl{n}"), acl));
        let group = json!({"name": format!("{name}_g{n}"), "ports": named("p", n * 20..n * 20 + 20), "acls": named("acl", n..n + 1)});
        all.push(insert("Port_Group", &format!("group{n}"), group));
        let set = json!({"name": format!("{name}_set{n}"), "addresses": format!("10.{round}.{n}.0/24")});
        all.push(insert("Address_Set", &format!("set{n}"), set));
        let peer = json!({"name": format!("{name}-peer{n}"), "type": "router", "addresses": "router",
            "options": ["map", [["router-port", format!("{name}-lrp{n}")]]]});
        all.push(insert("Logical_Switch_Port", &format!("peer{n}"), peer));
        let port = json!({"name": format!("{name}-lrp{n}"), "mac": format!("02:01:{round:02x}:00:00:{n:02x}"), "networks": format!("10.{round}.{n}.1/24")});
        all.push(insert("Logical_Router_Port", &format!("lrp{n}"), port));
        let vips =
            json!(["map", [[format!("10.{round}.255.{n}:80"), format!("10.{round}.{n}.10:80,10.{round}.{n}.11:80")]]]);
        all.push(insert(
            "Load_Balancer",
            &format!("lb{n}"),
            json!({"name": format!("{name}-lb{n}"), "vips": vips, "protocol": "tcp"}),
        ));
        let mut ports = named("p", n * 20..n * 20 + 20);
        ports[1].as_array_mut().unwrap().push(json!(["named-uuid", format!("peer{n}")]));
        let switch = json!({"name": format!("{name}-s{n}"), "ports": ports, "load_balancer": named("lb", n..n + 1)});
        all.push(insert("Logical_Switch", &format!("s{n}"), switch));
        let nat = json!({"type": "dnat_and_snat", "external_ip": format!("172.16.{round}.{n}"), "logical_ip": format!("10.{round}.{n}.10")});
        all.push(insert("NAT", &format!("nat{n}"), nat));
        let policy = json!({"priority": 10 + n, "match": format!("ip4.src == 10.{round}.{n}.0/24"), "action": "reroute",
            "nexthops": ["set", [format!("10.{round}.0.10"), format!("10.{round}.0.11")]]});
        all.push(insert("Logical_Router_Policy", &format!("policy{n}"), policy));
    }
    for n in 0..60u32 {
        let route = json!({"ip_prefix": format!("192.{}.{round}.0/24", 100 + n / 2), "nexthop": format!("10.{round}.0.{}", 20 + n % 2),
            "route_table": if n < 20 { format!("t{}", n / 2) } else { String::new() }});
        all.push(insert("Logical_Router_Static_Route", &format!("route{n}"), route));
    }
    let router = json!({"name": name, "ports": named("lrp", 0..10), "static_routes": named("route", 0..60),
        "nat": named("nat", 0..10), "policies": named("policy", 0..10), "load_balancer": named("lb", 0..10),
        "options": ["map", [["chassis", "gw"]]]});
    all.push(insert("Logical_Router", "router", router));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_rounds_end_where_they_began() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = serve(dir).await;
    let northd = start(dir);
    let globals = vec![json!({"op": "select", "table": "NB_Global", "where": []})];
    let end = Instant::now() + Duration::from_secs(30);
    while server.transact(NORTHBOUND, globals.clone()).await.unwrap()[0]["rows"] == json!([]) {
        assert!(Instant::now() < end, "no NB_Global");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let nb = &server;
    // The least that there is, 1,000 ms: then the names of what is gone are forgotten.
    let pairs = json!(["map", [["northd_trim_timeout", "1000"]]]);
    let options =
        json!({"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["options", "insert", pairs]]});
    carry_out(nb, vec![options]).await;
    let trims = || ask(dir, "coverage/read-counter", &["northd_trim"]).trim().parse::<u64>().unwrap();
    let outputs = || held(dir).iter().find(|(name, _)| name == "northd-outputs").unwrap().1;
    until("a first trim", || trims() > 0).await;
    let began = held(dir);
    let few = outputs();
    let (mut full, mut third) = (None, 0);
    for round in 1..=10 {
        for copy in 0..times() {
            carry_out(nb, network(round, copy)).await;
        }
        match full {
            None => {
                until("flows", || outputs() > few + 1500 * u64::from(times())).await;
                // All of them: none more in two seconds.
                let mut last = (outputs(), Instant::now());
                until("all flows", || {
                    let now = outputs();
                    if now != last.0 {
                        last = (now, Instant::now());
                    }
                    last.1.elapsed() > Duration::from_secs(2)
                })
                .await;
                full = Some(outputs());
            }
            // Which flows groups of datapaths share depends a little on the addresses: one in a thousand.
            Some(full) => until("as many flows as in the first round", || outputs() + full / 1000 >= full).await,
        }
        let roots = ["Logical_Switch", "Logical_Router", "Load_Balancer", "Port_Group", "Address_Set"];
        carry_out(nb, roots.map(|t| json!({"op": "delete", "table": t, "where": []})).to_vec()).await;
        until("no flows", || outputs() == few).await;
        until(&format!("nothing held, round {round}: {:?}, at first {began:?}", held(dir)), || held(dir) == began)
            .await;
        if round == 3 {
            third = resident(&northd.0);
        }
    }
    let last = resident(&northd.0);
    assert!(last <= third + third / 5, "{last} KiB resident after ten rounds, {third} after three");
}
