//! Two zones that interconnect joins: every check has to hold.

mod common;

use common::{Guard, able};
use hw_tests::lab::Lab;
use hw_tests::report::{table, zones_page};
use hw_tests::scenario::{Check, Runner};
use hw_tests::zones::{self, Zones};
use hw_tests::{network::programs, transit};

/// Whether the lab can be made.
fn can() -> bool {
    let built = programs().expect("programs").join("interconnect").exists();
    able(&[]) && {
        assert!(built, "interconnect is not built: run `make test`, or cargo build --workspace --bins");
        true
    }
}

fn run(
    chassis: &[zones::Chassis],
    machines: &[zones::Machine],
    play: impl FnOnce(&mut Runner<'_, Zones>),
) -> Vec<Check> {
    let lab = Lab::new("iszones", &std::env::temp_dir().join("isthmus-zones-test")).expect("lab");
    let mut zones = Zones::start(lab, chassis, machines, |_| {}).expect("zones");
    let mut tell = |_: &Check| {};
    let mut runner = Runner::new(&mut zones, &mut tell);
    play(&mut runner);
    let checks = runner.checks;
    println!("{}", table(&checks));
    assert!(checks.iter().all(|c| c.held), "{}", table(&checks));
    checks
}

/// A gateway between zones fails and comes back, a zone's central as well; machines of both go on talking.
#[test]
fn gateways_and_a_central_fail() {
    let _one = Guard::take();
    if !can() {
        return;
    }
    let mut failover = None;
    let checks = run(&zones::CHASSIS, &zones::MACHINES, |r| {
        r.join();
        failover = r.gateway_fails();
        r.central_fails();
    });
    let page = zones_page(&checks, failover.as_ref(), &["gw1a".into(), "gw2b".into()]);
    assert!(page.contains("gw2a killed") && page.matches("class=\"active\"").count() == 2, "{page}");
}

/// Machines of two zones on one transit switch, and a transit router between it and gateway routers of both zones.
#[test]
fn a_transit_router_and_a_transit_switch() {
    let _one = Guard::take();
    if can() {
        run(&transit::CHASSIS, &transit::MACHINES, |r| r.transit());
    }
}
