//! Connections survive the loss of their gateway, and its return (docs/ha.md).

mod common;

use common::{Guard, able};
use hw_tests::network::Cast;
use hw_tests::survive::{Loss, share_connections, show, start, through};

/// Connections of TCP and as many of UDP, of each machine behind SNAT. All machines use the same source ports, so that
/// the gateway has to choose others.
const COUNT: u16 = 60;

/// Holds connections while the gateway is lost in these ways; no connection notices.
fn survives(name: &str, losses: &[Loss]) {
    let _one = Guard::take();
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let mut n = start(name, Cast::default()).expect("network");
    share_connections(&n).expect("peers");
    let all = through(&mut n, COUNT, losses).expect("a gateway that is lost");
    let said = ["gw1", "gw2"].map(|g| show(&n, g).unwrap_or_else(|e| e.to_string())).join("\n");
    println!("{all:#?}");
    for (g, h) in &all {
        assert_eq!(h.opened, u64::from(g.count) * 2, "{} of {}: {h:?}", g.name, g.machine);
        let wrong = (h.resets, h.changed, h.silent);
        assert_eq!(wrong, (0, 0, 0), "{} of {}: {h:?}\n{said}", g.name, g.machine);
    }
}

#[test]
fn of_a_gateway_that_is_lost_and_comes_back() {
    survives("issurv", &[Loss::Kill, Loss::Uplink, Loss::Drain]);
}
