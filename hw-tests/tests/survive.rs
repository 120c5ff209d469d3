//! Connections survive the death of their gateway, and its return (docs/ha.md).

mod common;

use common::{Guard, able};
use hw_tests::lab::Lab;
use hw_tests::network::{Cast, Network};
use hw_tests::survive::{MACHINES, share_connections, show, through_death, without_floating_ips};
use std::path::Path;

/// Connections of TCP and as many of UDP, of each machine. All machines use the same source ports, so that the gateway
/// has to choose others.
const COUNT: u16 = 100;

#[test]
fn of_a_gateway_that_is_killed_and_comes_back() {
    let _one = Guard::take();
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let dir = std::env::temp_dir().join("isthmus-survive-test");
    let lab = Lab::new("issurv", &dir).expect("lab");
    let mut n = Network::start(lab, Cast::default(), |_| {}).expect("network");
    let yaml = dir.join("survive.yaml");
    without_floating_ips(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml"), &yaml).expect("description");
    n.apply(&yaml).expect("apply");
    n.addresses().expect("addresses");
    share_connections(&n).expect("peers");
    let all = through_death(&mut n, COUNT).expect("a gateway that dies");
    let said = ["gw1", "gw2"].map(|g| show(&n, g).unwrap_or_else(|e| e.to_string()));
    println!("{all:#?}");
    for (m, h) in MACHINES.iter().zip(&all) {
        assert_eq!(h.opened, u64::from(COUNT) * 2, "{m}: {h:?}");
        assert_eq!((h.resets, h.changed, h.silent), (0, 0, 0), "{m}: {h:?}\n{}", said.join("\n"));
    }
}
