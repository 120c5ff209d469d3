//! Patch ports on a machine with several controllers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::settings::{Settings, bridge};
use controller::plan::once::Once;
use controller::plan::{Attempts, Plan};
use controller::rows::plumbing::{reconcile_evpn, reconcile_patches};
use controller::units::presence::Presence;
use ovn_schema::{Map, Str, Uuid, ovs};
use std::sync::Arc;
use std::time::Instant;

struct Machine {
    db: ovs::Database,
    next: u128,
}

impl Machine {
    fn id(&mut self) -> Uuid {
        self.next += 1;
        Uuid::from_u128(self.next)
    }

    fn bridge(&mut self, name: &str) {
        let id = self.id();
        self.db.bridge.insert(id, Arc::new(ovs::Bridge { name: name.into(), ..Default::default() }));
    }

    fn patch(&mut self, on: &str, name: &str, peer: &str, mark: &str) {
        let (port, interface) = (self.id(), self.id());
        let map = |k: &str, v: &str| Map::<Str, Str>::from([(k.into(), v.into())]);
        let i = ovs::Interface {
            name: name.into(),
            r#type: "patch".into(),
            options: map("peer", peer),
            ..Default::default()
        };
        self.db.interface.insert(interface, Arc::new(i));
        let p = ovs::Port {
            name: name.into(),
            interfaces: [interface].into(),
            external_ids: map("ovn-localnet-port", mark),
            ..Default::default()
        };
        self.db.port.insert(port, Arc::new(p));
        let row = self.db.bridge.values_mut().find(|b| &*b.name == on).unwrap();
        Arc::make_mut(row).ports.insert(port);
    }

    /// What the controller of `br-int-1` would change.
    fn changes(&self, ports: &[&str]) -> String {
        let patch = |name: &&str| (Str::from(*name), ("localnet".into(), Some("phys".into())));
        let mut here = Presence::default();
        here.patches = ports.iter().map(patch).collect();
        let mappings = [("phys".into(), "br-ex".into())].into();
        let s = Settings { bridge: "br-int-1".into(), mappings, ..Settings::default() };
        let mut plan = Plan::new(Arc::new(ovs::Database::schema()));
        let br = bridge(&self.db, "br-int-1").unwrap();
        reconcile_patches(&self.db, br, &here, &s, &mut Once::default(), &mut plan);
        let all = Attempts::default().choose(plan, Instant::now());
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn those_of_another_controller_stay() {
    let mut m = Machine { db: ovs::Database::default(), next: 0 };
    ["br-int-1", "br-int-2", "br-ex"].iter().for_each(|b| m.bridge(b));
    // The other controller's pair has the same mark, and another bridge.
    m.patch("br-int-2", "patch-br-int-2-to-ln", "patch-ln-to-br-int-2", "ln");
    m.patch("br-ex", "patch-ln-to-br-int-2", "patch-br-int-2-to-ln", "ln");
    assert_eq!(m.changes(&[]), "");
    let wanted = m.changes(&["ln"]);
    assert!(wanted.contains("patch-br-int-1-to-ln") && wanted.contains("patch-ln-to-br-int-1"), "{wanted}");
    assert!(!wanted.contains("br-int-2") && !wanted.contains("\"delete\""), "{wanted}");
    // With the own pair there is nothing to do, and when its port goes, both its ends go and nothing else.
    m.patch("br-int-1", "patch-br-int-1-to-ln", "patch-ln-to-br-int-1", "ln");
    m.patch("br-ex", "patch-ln-to-br-int-1", "patch-br-int-1-to-ln", "ln");
    assert_eq!(m.changes(&["ln"]), "");
    let gone = m.changes(&[]);
    let id = |name: &str| m.db.port.iter().find(|(_, p)| &*p.name == name).unwrap().0.to_string();
    for name in ["patch-br-int-1-to-ln", "patch-ln-to-br-int-1"] {
        assert!(gone.contains(&id(name)), "{name} goes: {gone}");
    }
    for name in ["patch-br-int-2-to-ln", "patch-ln-to-br-int-2"] {
        assert!(!gone.contains(&id(name)), "{name} stays: {gone}");
    }
}

#[test]
fn a_pair_that_somebody_else_made_is_taken_over() {
    let mut m = Machine { db: ovs::Database::default(), next: 0 };
    ["br-int-1", "br-ex"].iter().for_each(|b| m.bridge(b));
    m.patch("br-int-1", "patch-br-int-1-to-ln", "patch-ln-to-br-int-1", "");
    m.patch("br-ex", "patch-ln-to-br-int-1", "patch-br-int-1-to-ln", "");
    for p in m.db.port.values_mut() {
        Arc::make_mut(p).external_ids.clear();
    }
    let marks = m.changes(&["ln"]);
    assert_eq!(marks.matches("ovn-localnet-port").count(), 2, "{marks}");
    assert!(!marks.contains("\"insert\",\"table\":\"Interface\""), "{marks}");
    // One that leads elsewhere is not it.
    for i in m.db.interface.values_mut() {
        Arc::make_mut(i).options.insert("peer".into(), "elsewhere".into());
    }
    assert_eq!(m.changes(&["ln"]), "");
}

#[test]
fn ports_to_other_vendors_switches_follow_the_settings() {
    let mut m = Machine { db: ovs::Database::default(), next: 0 };
    m.bridge("br-int-1");
    let changes = |m: &Machine, ports: &[&str]| {
        let evpn_ports = ports.iter().map(|p| Str::from(*p)).collect();
        let s = Settings { bridge: "br-int-1".into(), evpn_ports, ..Settings::default() };
        let mut plan = Plan::new(Arc::new(ovs::Database::schema()));
        let br = bridge(&m.db, "br-int-1").unwrap();
        reconcile_evpn(&m.db, br, &s, &mut Once::default(), &mut plan);
        let all = Attempts::default().choose(plan, Instant::now());
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let made = changes(&m, &["4789", "wrong"]);
    assert!(made.contains("ovn-evpn-4789") && !made.contains("wrong"), "{made}");
    m.patch("br-int-1", "ovn-evpn-4789", "", "");
    for p in m.db.port.values_mut() {
        Arc::make_mut(p).external_ids = [("ovn-evpn-tunnel".into(), "true".into())].into();
    }
    assert!(changes(&m, &["4789"]).contains("\"dst_port\",\"4789\""), "it becomes what it should be");
    assert!(changes(&m, &[]).contains("\"delete\""));
}
