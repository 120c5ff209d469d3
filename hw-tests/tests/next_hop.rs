//! A gateway whose next hop does not answer gives its ports to one that reaches it (docs/ha.md, "A lost next hop").

mod common;

use common::{Guard, able};
use hw_tests::network::Cast;
use hw_tests::{next_hop, survive};

#[test]
fn a_gateway_that_has_lost_its_next_hop_resigns() {
    let _one = Guard::take();
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovn-nbctl", "ovn-sbctl"]) {
        return;
    }
    let mut n = survive::start("isnexthop", Cast::default()).expect("network");
    next_hop::through(&mut n).expect("the next hop");
}
