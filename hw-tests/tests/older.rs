//! Databases of OVN 23.03, as its packages installed them, under our northd and controller: what they lack is said once, and
//! the rest is written and realised.

mod common;

use common::{Guard, able};
use hw_tests::lab::{Lab, run, until};
use ovsdb_rs::DatabaseSchema;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
const ONE: &str = "one";

/// Tables of the southbound database that northd does not read.
const NOT_READ: [&str; 3] = ["Connection", "SSL", "Controller_Event"];

/// A switch with a port, and a router: addresses, an ACL with two lists, a load balancer and NAT.
const NETWORK: &str = "ls-add sw -- lsp-add sw p1 -- lsp-set-addresses p1 02:00:00:00:00:01\\ 10.0.0.1 \
    -- lr-add r -- lrp-add r rp 02:00:00:00:00:ff 10.0.0.254/24 -- lsp-add sw sr -- lsp-set-type sr router \
    -- lsp-set-options sr router-port=rp -- lsp-set-addresses sr router \
    -- acl-add sw to-lport 1000 ip4.src=={10.0.0.7,10.0.0.9}&&tcp.dst=={80,443} allow-related \
    -- lb-add lb 192.0.2.1:80 10.0.0.1:80 tcp -- ls-lb-add sw lb -- lr-nat-add r snat 192.0.2.2 10.0.0.0/24";

struct Old {
    lab: Lab,
    bin: std::path::PathBuf,
}

impl Old {
    fn path(&self, file: &str) -> String {
        self.lab.machine_dir(ONE).join(file).display().to_string()
    }

    fn exec(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        self.lab.exec(ONE, program, args)
    }

    fn program(&self, name: &str) -> String {
        self.bin.join(name).display().to_string()
    }

    /// Serves a database of the installed schema, which stays as it is where it exists.
    fn serve(&mut self, key: &str) {
        let (db, ctl) = (self.path(&format!("{key}.db")), format!("--unixctl={}", self.path(&format!("{key}.ctl"))));
        if !std::path::Path::new(&db).exists() {
            run("ovsdb-tool", &["create", &db, &format!("/usr/share/ovn/ovn-{key}.ovsschema")]).expect("database");
        }
        let remote = format!("--remote=punix:{}", self.path(&format!("{key}.sock")));
        self.lab.spawn(ONE, key, "ovsdb-server", &[&remote, &ctl, &db]).expect("ovsdb-server");
        let socket = self.path(&format!("{key}.sock"));
        until("the socket", SOON, || Ok(std::fs::metadata(&socket)?)).expect("socket");
    }

    /// Writes the network to a northbound database.
    fn network(&self, socket: &str) {
        let db = format!("--db=unix:{}", self.path(socket));
        // A blank in a word is written as `\ `.
        let joined = NETWORK.replace("\\ ", "\u{1}");
        let words: Vec<String> = joined.split_whitespace().map(|w| w.replace('\u{1}', " ")).collect();
        let args: Vec<&str> =
            [db.as_str(), "--timeout=5"].into_iter().chain(words.iter().map(String::as_str)).collect();
        until("the network", SOON, || self.exec("ovn-nbctl", &args)).expect("ovn-nbctl");
    }

    /// The logical flows of a southbound database, with how often each is there.
    fn flows(&self, socket: &str) -> anyhow::Result<BTreeMap<(u64, String), usize>> {
        let remote = format!("unix:{}", self.path(socket));
        let query = r#"["OVN_Southbound",{"op":"select","table":"Logical_Flow","where":[],"columns":["pipeline","table_id","priority","match","actions"]}]"#;
        let text = self.exec("ovsdb-client", &["transact", &remote, query])?;
        let rows: serde_json::Value = serde_json::from_str(&text)?;
        let mut out = BTreeMap::new();
        for row in rows[0]["rows"].as_array().into_iter().flatten() {
            *out.entry((row["table_id"].as_u64().unwrap_or_default(), row.to_string())).or_default() += 1;
        }
        Ok(out)
    }

    /// What a program said that a database lacks, each with how often.
    fn lacks(&self, key: &str) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        for line in self.lab.output(ONE, key).lines().filter(|l| l.ends_with("(database needs upgrade?)")) {
            *out.entry(line.rsplit('|').next().unwrap_or_default().to_string()).or_default() += 1;
        }
        out
    }
}

/// What the installed schema lacks of ours, in Open vSwitch's words.
fn missing(ours: &DatabaseSchema, file: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).expect("schema");
    let theirs: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut out = BTreeSet::new();
    for (table, t) in &ours.tables {
        let there = &theirs["tables"][table]["columns"];
        if there.is_null() {
            out.insert(format!("{} database lacks {table} table (database needs upgrade?)", ours.name));
            continue;
        }
        for c in t.columns.iter().filter(|c| there.get(&c.name).is_none()) {
            let (db, column) = (&ours.name, &c.name);
            out.insert(format!("{table} table in {db} database lacks {column} column (database needs upgrade?)"));
        }
    }
    out
}

#[test]
fn databases_of_23_03_get_what_they_can_hold() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "ovs-vswitchd", "ovsdb-server", "ovsdb-client"]) {
        return;
    }
    let mut lab = Lab::new("isold", &std::env::temp_dir().join("isthmus-old")).expect("lab");
    lab.machine(ONE).expect("machine");
    let mut o = Old { lab, bin: hw_tests::network::programs().expect("programs") };
    o.serve("nb");
    o.serve("sb");
    let (nb, sb) = (o.path("nb.sock"), o.path("sb.sock"));
    let args = [
        format!("--ovnnb-db=unix:{nb}"),
        format!("--ovnsb-db=unix:{sb}"),
        format!("--unixctl={}", o.path("northd.ctl")),
    ];
    let northd = o.program("northd");
    o.lab.spawn(ONE, "northd", &northd, &args.each_ref().map(String::as_str)).expect("northd");
    // The same network in databases of our own schemas.
    let args = [format!("--embed={}", o.path("new")), format!("--unixctl={}", o.path("new.ctl"))];
    o.lab.spawn(ONE, "new", &northd, &args.each_ref().map(String::as_str)).expect("northd");
    o.network("nb.sock");
    o.network("new/ovnnb_db.sock");

    // The chassis, with Debian's Open vSwitch and its database.
    o.lab.open_vswitch(ONE, &["vswitch"]).expect("Open vSwitch");
    let local = format!("--db=unix:{}", o.path("db.sock"));
    let remote = format!("external_ids:ovn-remote=\"unix:{sb}\"");
    o.exec("ovs-vsctl", &[&local, "--no-wait", "init"]).expect("ovs-vsctl");
    let set = ["set", "Open_vSwitch", ".", "external_ids:system-id=one", "external_ids:ovn-encap-type=geneve"];
    let set = [&[local.as_str()][..], &set, &["external_ids:ovn-encap-ip=127.0.0.1", &remote]].concat();
    let set = [&set[..], &["external_ids:ovn-bridge-datapath-type=netdev"]].concat();
    o.exec("ovs-vsctl", &set).expect("ovs-vsctl");
    let (controller, db) = (o.program("controller"), format!("unix:{}", o.path("db.sock")));
    o.lab.spawn(ONE, "controller", &controller, &[&db]).expect("controller");
    until("br-int", SOON, || o.exec("ovs-vsctl", &[&local, "br-exists", "br-int"])).expect("br-int");
    let port = ["add-port", "br-int", "p1", "--", "set", "Interface", "p1", "type=internal"];
    let port = [&[local.as_str()][..], &port, &["external_ids:iface-id=p1", "mac=\"02:00:00:00:00:01\""]].concat();
    o.exec("ovs-vsctl", &port).expect("add-port");

    // Everything that the old schema allows is there, and nothing else.
    let both = until("the flows", SOON, || {
        let (old, new) = (o.flows("sb.sock")?, o.flows("new/ovnsb_db.sock")?);
        let fit: BTreeMap<_, _> = new.iter().filter(|((table, _), _)| *table <= 32).collect();
        anyhow::ensure!(
            fit.len() > 200 && old.iter().collect::<BTreeMap<_, _>>() == fit,
            "{} {}",
            old.len(),
            fit.len()
        );
        Ok((old, new))
    });
    let (old, new) = both.unwrap_or_else(|e| panic!("{e:#}\n{}", o.lab.output(ONE, "northd")));
    let log = o.lab.output(ONE, "northd");
    let left_out: Vec<&str> = log.lines().filter(|l| l.contains(" is left out: ")).collect();
    let too_high: Vec<&&str> = left_out.iter().filter(|l| l.contains("of Logical_Flow")).collect();
    let count = |f: &BTreeMap<_, usize>| f.values().sum::<usize>();
    assert_eq!(too_high.len(), count(&new) - count(&old), "{log}");
    assert!(too_high.iter().all(|l| l.contains("is not in the valid range 0 to 32")), "{log}");

    // The controller binds the port and has the chassis' flows installed.
    let nbctl = format!("--db=unix:{nb}");
    until("realised", SOON, || o.exec("ovn-nbctl", &[&nbctl, "--timeout=3", "--wait=hv", "sync"]))
        .unwrap_or_else(|e| panic!("{e:#}\n{}", o.lab.output(ONE, "controller")));
    until("up", SOON, || {
        let state = o.exec("ovn-nbctl", &[&nbctl, "lsp-get-up", "p1"])?;
        anyhow::ensure!(state.trim() == "up", "{state}");
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{e:#}\n{}", o.lab.output(ONE, "controller")));
    // The logical switch answers for the router: a flow of a table that fits.
    o.lab.ip(ONE, &["addr", "add", "10.0.0.1/24", "dev", "p1"]).expect("address");
    o.lab.ip(ONE, &["link", "set", "p1", "up"]).expect("up");
    until("the router's address", SOON, || {
        // Nothing answers the ping itself: the old database has no room for the table that would deliver it.
        let _ = o.exec("ping", &["-c", "1", "-W", "1", "10.0.0.254"]);
        let neighbours = o.lab.ip(ONE, &["neigh", "show", "10.0.0.254"])?;
        anyhow::ensure!(neighbours.contains("02:00:00:00:00:ff"), "{neighbours}");
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{e:#}\n{}", o.lab.output(ONE, "controller")));

    // A server that comes back with the same schema is no news.
    o.lab.kill(ONE, "sb");
    std::fs::remove_file(&sb).expect("socket");
    o.serve("sb");
    o.exec("ovn-nbctl", &[&nbctl, "--timeout=5", "ls-add", "later"]).expect("ovn-nbctl");
    until("realised again", SOON, || o.exec("ovn-nbctl", &[&nbctl, "--timeout=3", "--wait=hv", "sync"]))
        .unwrap_or_else(|e| panic!("{e:#}\n{}", o.lab.output(ONE, "northd")));

    // What is missing was said, once.
    let mut sb_schema = ovn_schema::sb::Database::schema();
    sb_schema.tables.retain(|name, _| !NOT_READ.contains(&name.as_str()));
    let mut expected = missing(&ovn_schema::nb::Database::schema(), "/usr/share/ovn/ovn-nb.ovsschema");
    let southbound = missing(&sb_schema, "/usr/share/ovn/ovn-sb.ovsschema");
    let desc = "Logical_Flow table in OVN_Southbound database lacks flow_desc column (database needs upgrade?)";
    assert!(southbound.contains(desc) && !expected.is_empty());
    expected.extend(southbound.iter().cloned());
    let said = o.lacks("northd");
    assert_eq!(said.keys().cloned().collect::<BTreeSet<_>>(), expected);
    let conf = missing(&ovn_schema::ovs::Database::schema(), "/usr/share/openvswitch/vswitch.ovsschema");
    let by_controller = o.lacks("controller");
    assert!(by_controller.contains_key(desc));
    assert!(by_controller.keys().all(|l| southbound.contains(l) || conf.contains(l)), "{by_controller:#?}");
    assert!(said.values().chain(by_controller.values()).all(|n| *n == 1), "{said:#?} {by_controller:#?}");
    assert!(o.lacks("new").is_empty());
    for key in ["northd", "controller"] {
        assert!(o.lab.is_running(ONE, key), "{}", o.lab.output(ONE, key));
    }
}
