//! What the integration bridge's interfaces say does not depend on the order and the groups in which their rows came.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::interfaces::{Interfaces, LOCALNET_ID, PLUGGED_ID, TUNNEL_ID};
use controller::input::model::Vif;
use ovn_schema::{Map, Str, Table, Uuid, ovs};
use ovsdb_rs::Row;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ROWS: usize = 6;

fn id(kind: u8, n: usize) -> Uuid {
    Uuid::from_u128(u128::from(kind) << 64 | n as u128 | 1 << 100)
}

fn pairs(all: &[(&str, &str)]) -> Map<Str, Str> {
    all.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect()
}

/// The local database, and what is known of its interfaces.
#[derive(Default)]
struct Local {
    db: ovs::Database,
    interfaces: Interfaces,
    vifs: BTreeMap<Str, Vif>,
}

impl Local {
    fn set<T: Table>(&mut self, uuid: Uuid, new: Option<&T>) {
        let row = new.map(|r| Row(r.columns().into_iter().map(|(_, d)| d).collect()));
        if let Some(change) = self.db.apply(T::NAME, &T::schema(), uuid, row.as_ref()).unwrap() {
            self.interfaces.changed(&change, false);
        }
    }

    fn look(&mut self) {
        let Some(br) = self.db.bridge.get(&id(1, 0)).cloned() else { return };
        for (name, vif) in self.interfaces.look(&self.db, (id(1, 0), &br)) {
            match vif {
                Some(v) => drop(self.vifs.insert(name, v)),
                None => drop(self.vifs.remove(&name)),
            }
        }
    }

    /// The same rows, all at once.
    fn fill(&mut self, db: &ovs::Database) {
        db.bridge.iter().for_each(|(id, r)| self.set(*id, Some(&**r)));
        db.interface.iter().for_each(|(id, r)| self.set(*id, Some(&**r)));
        db.port.iter().for_each(|(id, r)| self.set(*id, Some(&**r)));
        self.look();
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A port with its interface: in no bridge, in the integration bridge, or in another; what they are, and with which number.
    Port(usize, u8, u8, u16),
    /// The connection to the database is another.
    Restart,
    Look,
}

/// A port and its interface. Those of an even and the next odd number say the same.
fn rows(n: usize, kind: u8, ofport: u16) -> (ovs::Port, ovs::Interface) {
    let name = format!("x{}", n / 2);
    let mut p = ovs::Port { name: format!("p{n}").into(), interfaces: [id(3, n)].into(), ..Default::default() };
    let ofport = (ofport > 0).then(|| i64::from(ofport) + 10 * n as i64);
    let mut i = ovs::Interface { name: format!("p{n}").into(), ofport, ..Default::default() };
    match kind {
        1 => i.external_ids = pairs(&[("iface-id", &name)]),
        2 => i.external_ids = pairs(&[("iface-id", &name), (PLUGGED_ID, "dummy")]),
        3 => p.external_ids = pairs(&[(LOCALNET_ID, &name)]),
        4 => {
            p.external_ids = pairs(&[(TUNNEL_ID, &format!("{name}@192.0.2.9%192.0.2.1"))]);
            i.bfd = pairs(&[("enable", "true")]);
            i.bfd_status = pairs(&[("state", "up"), ("remote_state", "up")]);
        }
        _ => {}
    }
    (p, i)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        8 => (0..ROWS, 0..3u8, 0..5u8, 0..3u16).prop_map(|(n, b, k, o)| Step::Port(n, b, k, o)),
        1 => Just(Step::Restart),
        4 => Just(Step::Look),
    ];
    proptest::collection::vec(one, 1..60)
}

fn step(l: &mut Local, s: Step) {
    match s {
        Step::Port(n, bridge, kind, ofport) => {
            let (p, i) = rows(n, kind, ofport);
            l.set(id(3, n), (bridge > 0).then_some(&i));
            l.set(id(2, n), (bridge > 0).then_some(&p));
            for b in 0..2u8 {
                let mut row = ovs::Bridge::clone(&l.db.bridge[&id(1, b.into())]);
                row.ports.retain(|p| *p != id(2, n));
                if bridge == b + 1 {
                    row.ports = row.ports.iter().copied().chain([id(2, n)]).collect();
                }
                l.set(id(1, b.into()), Some(&row));
            }
        }
        Step::Restart => {
            let db = std::mem::take(&mut l.db);
            l.interfaces.restart();
            l.fill(&db);
        }
        Step::Look => l.look(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_rows_gives_what_a_fresh_start_gives(steps in steps()) {
        let mut l = Local::default();
        for (n, name) in [(0, "br-int"), (1, "br-ex")] {
            l.set(id(1, n), Some(&ovs::Bridge { name: name.into(), ..Default::default() }));
        }
        for s in steps {
            step(&mut l, s);
        }
        l.look();
        let mut fresh = Local::default();
        fresh.fill(&l.db);
        let (is, should) = (&l.interfaces, &fresh.interfaces);
        prop_assert_eq!(is.localnets(), should.localnets());
        prop_assert_eq!(is.tunnels(), should.tunnels());
        prop_assert_eq!(is.sessions(), should.sessions());
        prop_assert_eq!(is.plugged(), should.plugged());
        for n in 0..ROWS {
            prop_assert_eq!(is.port_of(&id(3, n)), should.port_of(&id(3, n)));
        }
        prop_assert_eq!(l.vifs.keys().collect::<Vec<_>>(), fresh.vifs.keys().collect::<Vec<_>>());
        for (name, vif) in &l.vifs {
            let claimants: BTreeSet<Uuid> = is.claimants(name).collect();
            prop_assert_eq!(&claimants, &should.claimants(name).collect());
            // Which of several is chosen is history: that which said so last.
            prop_assert!(claimants.contains(&vif.row));
            if claimants.len() == 1 {
                prop_assert_eq!(vif, &fresh.vifs[name]);
            }
        }
    }
}
