//! What follows from rows does not depend on the order in which they came.

use crate::chassis::Chassis;
use crate::rows::{ME, OTHER, id, port, start, text};
use crate::steps::{SWITCHES, Step, steps};
use ovn_schema::sb;
use proptest::prelude::*;

#[test]
fn a_gateway_watches_those_whom_it_serves() {
    let (db, local) = start();
    let mut c = Chassis::new(db, local);
    c.step(Step::Datapath(0, true));
    c.step(Step::Gateways(3));
    c.set(id(2, 0), Some(sb::PortBinding { chassis: Some(ME), ..port(0, "vm0", 1) }));
    c.settle();
    let watched = |c: &Chassis| c.presence.watched.iter().copied().collect::<Vec<_>>();
    assert_eq!(watched(&c), [OTHER], "the other member");
    let far = sb::PortBinding { chassis: Some(id(22, 99)), ..port(0, "far", 2) };
    c.set(id(2, 1), Some(far.clone()));
    c.settle();
    assert_eq!(watched(&c), [OTHER], "the group serves nothing here");
    c.set(
        id(2, 2),
        Some(sb::PortBinding {
            r#type: text("chassisredirect"),
            ha_chassis_group: Some(id(12, 0)),
            ..port(0, "cr-out", 3)
        }),
    );
    c.settle();
    assert_eq!(watched(&c), [OTHER, id(22, 99)]);
    let second = sb::PortBinding { logical_port: text("far2"), tunnel_key: 9, ..far };
    c.set(id(2, 3), Some(second));
    c.set(id(2, 1), None::<sb::PortBinding>);
    c.settle();
    assert_eq!(watched(&c), [OTHER, id(22, 99)], "another of its ports is there");
    c.set(id(2, 3), None::<sb::PortBinding>);
    c.settle();
    assert_eq!(watched(&c), [OTHER]);
    assert!(c.differs_from_fresh().is_empty());
}

/// What is known of Ethernet addresses is not learned anew from a provider network, once its port is to learn.
#[test]
fn a_provider_network_that_begins_to_learn() {
    let (db, local) = start();
    let mut c = Chassis::new(db, local);
    for s in
        [Step::Datapath(0, true), Step::Port(0, 1), Step::Localnet(0, 1, true), Step::Forwarding(0, 1), Step::Derive]
    {
        c.step(s);
    }
    let before = c.tables.len().0;
    c.step(Step::Localnet(0, 2, true));
    c.settle();
    assert!(c.differs_from_fresh().is_empty());
    c.step(Step::Localnet(0, 1, true));
    c.settle();
    assert_eq!(c.tables.len().0, before);
    assert!(c.differs_from_fresh().is_empty());
}

/// The most of the network: all datapaths in a ring, and a group of ports.
fn connected() -> Chassis {
    let (db, local) = start();
    let mut c = Chassis::new(db, local);
    for n in 0..SWITCHES {
        c.step(Step::Datapath(n, true));
        c.step(Step::Patch(n, (n + 1) % SWITCHES, true));
        c.step(Step::Patch((n + 1) % SWITCHES, n, true));
    }
    c.step(Step::Group(15));
    c
}

/// A router port of a provider network that becomes another kind of port in place.
#[test]
fn an_attached_router_port_that_becomes_another_kind() {
    let mut c = connected();
    for s in [Step::Port(2, 11), Step::Localnet(0, 1, true), Step::Port(4, 14), Step::Derive, Step::Port(4, 1)] {
        c.step(s);
    }
    c.settle();
    assert_eq!(c.differs_from_fresh(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_gives_what_a_fresh_start_gives(steps in steps()) {
        let mut c = connected();
        for s in steps {
            c.step(s);
        }
        c.settle();
        let differs = c.differs_from_fresh();
        prop_assert!(differs.is_empty(), "{:#?}", differs);
    }
}
