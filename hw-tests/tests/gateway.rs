//! The gateway scenario, by ourselves and in mixed company: every check has to hold.

use hw_tests::lab::Lab;
use hw_tests::network::{Cast, Maker, Network, programs};
use hw_tests::report::table;
use hw_tests::scenario::Runner;
use std::path::Path;
use std::sync::Mutex;

/// Two cores are enough for one lab at a time.
static ONE: Mutex<()> = Mutex::new(());

fn installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()))
}

fn run(name: &str, cast: Cast, needs: &[&str]) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !nix::unistd::Uid::effective().is_root() {
        println!("skipped: {name}: labs make network namespaces, so they need root");
        return;
    }
    if let Some(p) = needs.iter().find(|p| !installed(p)) {
        println!("skipped: {name}: {p} is not installed (scripts/install test)");
        return;
    }
    let bin = programs().expect("programs");
    for p in ["northd", "controller", "dpdk-dataplane", "isthmusctl", "isthmus-lab"] {
        assert!(bin.join(p).exists(), "{p} is not built: run `make test`, or cargo build --workspace --bins");
    }
    let lab = Lab::new("istest", &std::env::temp_dir().join("isthmus-test")).expect("lab");
    let mut network = Network::start(lab, cast, |_| {}).expect("network");
    let yaml = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml");
    network.apply(&yaml).expect("apply");
    let again = network.apply(&yaml).expect("apply again");
    assert!(again.contains("nothing to change"), "{again}");
    let mut tell = |_: &hw_tests::scenario::Check| {};
    let mut runner = Runner::new(&mut network, &mut tell);
    runner.steady();
    runner.failover();
    let checks = runner.checks;
    println!("{name}\n{}", table(&checks));
    assert!(checks.iter().all(|c| c.held), "{name}\n{}", table(&checks));
}

#[test]
fn all_ours() {
    run("all ours", Cast::default(), &[]);
}

#[test]
fn open_vswitch_on_a_hypervisor_and_on_a_gateway() {
    let switches = ["hv2", "gw2"].map(|m| (m.to_string(), Maker::Debian)).into();
    run("Open vSwitch on hv2 and gw2", Cast { switches, ..Cast::default() }, &["ovs-vswitchd", "ovsdb-server"]);
}

#[test]
fn debians_database_server() {
    run("Debian's ovsdb-server", Cast { databases: Maker::Debian, ..Cast::default() }, &["ovsdb-server"]);
}
