//! The gateway scenario, by ourselves and in mixed company: every check has to hold.

mod common;

use common::{Guard, able};
use hw_tests::lab::Lab;
use hw_tests::network::{Cast, Maker, Network};
use hw_tests::report::table;
use hw_tests::scenario::Runner;
use std::path::Path;

fn run(name: &str, cast: Cast, needs: &[&str]) {
    let _one = Guard::take();
    if !able(needs) {
        return;
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
