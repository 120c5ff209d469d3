//! Connections survive the loss of their gateway, and its return (docs/ha.md).

mod common;

use common::{Guard, able};
use hw_tests::network::{Cast, Maker, Network};
use hw_tests::survive::{
    Loss, QUESTIONS, drained_and_back, groups, share_by_hand, share_connections, show, start, through,
};

/// Connections of TCP and as many of UDP, of each machine behind SNAT. All machines use the same source ports, so that
/// the gateway has to choose others.
const COUNT: u16 = 60;

/// Holds connections while the gateway is lost in these ways; no connection notices.
fn survive(n: &mut Network, losses: &[Loss]) {
    let all = through(n, groups(COUNT, QUESTIONS), losses).expect("a gateway that is lost");
    let said = ["gw1", "gw2"].map(|g| show(n, g).unwrap_or_else(|e| e.to_string())).join("\n");
    println!("{all:#?}");
    for (g, h) in &all.groups {
        assert_eq!(h.opened, u64::from(g.count) * 2, "{} of {}: {h:?}", g.name, g.machine);
        let wrong = (h.resets, h.changed, h.silent);
        assert_eq!(wrong, (0, 0, 0), "{} of {}: {h:?}\n{said}", g.name, g.machine);
    }
}

#[test]
fn of_a_gateway_that_is_lost_and_comes_back() {
    let _one = Guard::take();
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let mut n = start("issurv", Cast::default()).expect("network");
    share_connections(&n).expect("peers");
    let one_after_the_other = [
        Loss::Kill,
        Loss::Underlay,
        Loss::Uplink,
        Loss::Unseen,
        Loss::Drain,
        Loss::Pause,
        Loss::Suspend,
        Loss::Headless,
    ];
    survive(&mut n, &one_after_the_other);
}

/// Both switches are ours, all else is OVN's: the operator has written who the peers are.
#[test]
fn under_ovn_controller() {
    let _one = Guard::take();
    if !able(&["ovs-vsctl", "ovn-controller", "ovn-northd", "ovsdb-server"]) {
        return;
    }
    let mut n = start("issurvc", Cast::debian_control()).expect("network");
    share_by_hand(&n).expect("peers");
    survive(&mut n, &[Loss::Kill, Loss::Order, Loss::Drain]);
}

/// A gateway is drained into one that OVN controls, or whose switch is Open vSwitch, or both, and gets its ports back.
#[test]
fn a_member_of_the_group_is_of_the_c_stack() {
    let _one = Guard::take();
    if !able(&["ovs-vswitchd", "ovn-controller", "ovn-northd", "ovsdb-server"]) {
        return;
    }
    // OVN 23.03's controller has no room for all tables of a later pipeline: with it northd is of its release.
    let all_but = |ours: &str| {
        let mut cast = Cast::debian_control();
        cast.controllers.remove(ours);
        cast
    };
    let of_c = |machines: &[&str]| machines.iter().map(|m| ((*m).to_owned(), Maker::Debian)).collect();
    for (name, cast) in [
        ("Open vSwitch on gw2", Cast { switches: of_c(&["gw2"]), ..Cast::default() }),
        ("Open vSwitch on gw1", Cast { switches: of_c(&["gw1"]), ..Cast::default() }),
        ("ovn-controller on gw2", all_but("gw1")),
        ("both on gw1", Cast { switches: of_c(&["gw1"]), ..all_but("gw2") }),
    ] {
        let n = start("issurvm", cast).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        drained_and_back(&n).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    }
}
