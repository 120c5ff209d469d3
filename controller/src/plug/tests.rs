#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::plan::Attempts;
use ovsdb_rs::engine::{Context, Database as Engine, Outcome};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Gives the device that `vif-plug:test` names, where it is there.
#[derive(Clone, Debug, Default)]
struct Scripted(Arc<Mutex<BTreeSet<Str>>>);

impl Provider for Scripted {
    fn device(&self, _: &str, options: &Map<Str, Str>) -> Result<Device, Refusal> {
        let name = options.get("vif-plug:test").ok_or(Refusal::Unknown)?;
        let there = self.0.lock().unwrap().contains(name);
        let options = Map::from([("test-option".into(), "value".into())]);
        let device = Device { name: name.clone(), kind: "internal".into(), options };
        if there { Ok(device) } else { Err(format!("{name} does not exist").into()) }
    }

    fn maintains(&self) -> &'static [&'static str] {
        &["test-option"]
    }
}

/// A switch's database, and a controller that sees it.
struct World {
    engine: Engine,
    db: ovs::Database,
    interfaces: Interfaces,
    wishes: BTreeMap<Str, Wish>,
    devices: Scripted,
    plugs: Plugs,
    log: Vec<String>,
}

impl World {
    fn new() -> World {
        let mut w = World {
            engine: Engine::new(ovs::Database::schema()),
            db: ovs::Database::default(),
            interfaces: Interfaces::default(),
            wishes: BTreeMap::new(),
            devices: Scripted::default(),
            plugs: Plugs::default(),
            log: Vec::new(),
        };
        w.restart();
        let mut plan = w.plan();
        let txn = &mut plan.part("bridge", ()).txn;
        let bridge = txn.insert_row([ovs::Bridge::name(&"br-int".into())]);
        txn.insert_row([ovs::OpenVswitch::bridges(&Set::from([bridge]))]);
        w.write(plan);
        w
    }

    fn plan(&self) -> Plan {
        Plan::new(Arc::new(ovs::Database::schema()))
    }

    fn bridge(&self) -> (Uuid, Arc<ovs::Bridge>) {
        self.db.bridge.iter().map(|(id, b)| (*id, b.clone())).next().unwrap()
    }

    /// Carries a plan out. Gives how many operations it had.
    fn write(&mut self, plan: Plan) -> usize {
        let operations = Attempts::default().choose(plan, Instant::now());
        let Outcome::Executed(done) = self.engine.transact(&operations, &Context::unrestricted()) else { panic!() };
        assert!(!done.failed, "{operations:?}: {:?}", done.results);
        let schema = ovs::Database::schema();
        let tables: Vec<_> = schema.tables.iter().collect();
        for c in done.changes {
            let (name, table) = &tables[c.table];
            if let Some(change) = self.db.apply(name, table, c.uuid, c.new.as_deref()).unwrap() {
                self.interfaces.changed(&change, false);
            }
        }
        operations.len()
    }

    /// A controller that starts, with nothing but the database.
    fn restart(&mut self) {
        self.interfaces = Interfaces::default();
        self.plugs = Plugs::default();
        self.plugs.provide("test", Box::new(self.devices.clone()));
        for (uuid, p) in &self.db.port {
            let change = ovn_schema::Change { uuid: *uuid, old: None, new: Some(p.clone()) };
            self.interfaces.changed(&ovs::AnyChange::Port(change), false);
        }
    }

    /// One look of the controller. Gives how many operations followed; they are lost where the server cannot be reached.
    fn look(&mut self, lost: bool) -> usize {
        let (id, br) = self.bridge();
        self.interfaces.look(&self.db, (id, &br));
        let mut plan = self.plan();
        self.plugs.reconcile(&self.db, (id, &br), (&self.interfaces, &self.wishes), &mut plan);
        if lost {
            return 1;
        }
        let n = self.write(plan);
        let (id, br) = self.bridge();
        self.interfaces.look(&self.db, (id, &br));
        n
    }

    fn settle(&mut self) {
        for _ in 0..12 {
            if self.look(false) == 0 {
                return;
            }
        }
        panic!("it does not come to an end: {:?}", self.log);
    }

    fn device(&mut self, n: u8, there: bool) {
        let mut all = self.devices.0.lock().unwrap();
        let _ = if there { all.insert(device(n)) } else { all.remove(&device(n)) };
    }

    fn wish(&mut self, port: u8, device_: Option<u8>, here: bool) {
        let wish = device_.map(|d| Wish {
            provider: "test".into(),
            here,
            mtu: Some("1400".into()),
            version: None,
            options: Map::from([("vif-plug:test".into(), device(d))]),
        });
        match wish {
            Some(w) => drop(self.wishes.insert(lport(port), w)),
            None => drop(self.wishes.remove(&lport(port))),
        }
    }

    /// Another's port, if its name is free.
    fn stranger(&mut self, name: &Str, lport: Option<&Str>) {
        if self.db.port.values().any(|p| p.name == *name) {
            return;
        }
        let mut plan = self.plan();
        let txn = &mut plan.part("stranger", ()).txn;
        let ids: Map<Str, Str> = lport.map(|l| ("iface-id".into(), l.clone())).into_iter().collect();
        let row = txn.insert_row([ovs::Interface::name(name), ovs::Interface::external_ids(&ids)]);
        let port = txn.insert_row([ovs::Port::name(name), ovs::Port::interfaces(&Set::from([row]))]);
        let id = self.bridge().0;
        change_ports(&self.db, id, &BTreeSet::from([port]), &BTreeSet::new(), txn);
        self.write(plan);
    }

    fn remove(&mut self, which: impl Fn(&ovs::Interface) -> bool) {
        let gone = |p: &ovs::Port| p.interfaces.iter().any(|i| which(&self.db.interface[i]));
        let gone: BTreeSet<Uuid> = self.db.port.iter().filter(|(_, p)| gone(p)).map(|(id, _)| *id).collect();
        let mut plan = self.plan();
        let id = self.bridge().0;
        change_ports(&self.db, id, &BTreeSet::new(), &gone, &mut plan.part("remove", ()).txn);
        self.write(plan);
    }

    fn tamper(&mut self) {
        let mut plan = self.plan();
        for (id, i) in self.db.interface.iter().filter(|(_, i)| i.external_ids.contains_key(PLUGGED_ID)) {
            let mut options = i.options.clone();
            options.remove("test-option");
            options.insert("another's".into(), "kept".into());
            let columns = [ovs::Interface::mtu_request(&Some(9000)), ovs::Interface::options(&options)];
            plan.part(&*i.name, ()).txn.update_row(*id, columns);
        }
        self.write(plan);
    }

    /// What is plugged in: logical port and device.
    fn plugged(&self) -> Vec<(Str, Str)> {
        let own = self.db.interface.values().filter(|i| i.external_ids.contains_key(PLUGGED_ID));
        let mut out: Vec<_> = own.map(|i| (i.external_ids["iface-id"].clone(), i.name.clone())).collect();
        out.sort();
        out
    }

    fn strangers(&self) -> BTreeMap<Str, Arc<ovs::Interface>> {
        let all = self.db.interface.values().filter(|i| !i.external_ids.contains_key(PLUGGED_ID));
        all.map(|i| (i.name.clone(), i.clone())).collect()
    }

    fn error_of(&self, name: &str) -> Option<Str> {
        self.db.interface.values().find(|i| &*i.name == name)?.external_ids.get(ERROR).cloned()
    }
}

fn device(n: u8) -> Str {
    format!("dev{n}").into()
}

fn lport(n: u8) -> Str {
    format!("lp{n}").into()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(Str, Str)> {
    all.iter().map(|(a, b)| (Str::from(*a), Str::from(*b))).collect()
}

#[test]
fn a_device_follows_its_port() {
    let mut w = World::new();
    (0..3).for_each(|d| w.device(d, true));
    w.wish(0, Some(0), true);
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev0")]));
    let i = w.db.interface.values().next().unwrap();
    assert_eq!((&*i.r#type, i.mtu_request, &*i.options["test-option"]), ("internal", Some(1400), "value"));
    w.tamper();
    w.settle();
    let i = w.db.interface.values().next().unwrap();
    assert_eq!((i.mtu_request, i.options.len()), (Some(1400), 2), "what the provider does not maintain is kept");
    // Which one is not known: all stays as it is.
    let named = w.wishes.get_mut(&lport(0)).unwrap().options.clone();
    w.wishes.get_mut(&lport(0)).unwrap().options.clear();
    assert_eq!(w.look(false), 0);
    assert!(w.plugs.problems.is_empty());
    w.wishes.get_mut(&lport(0)).unwrap().options = named;
    // Another device: the port is never without one.
    w.wish(0, Some(1), true);
    assert!(w.look(false) > 0);
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev1")]));
    // Asked for elsewhere as well, it stays; withdrawn, it goes.
    w.wish(0, Some(1), false);
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev1")]));
    w.wish(0, None, true);
    w.settle();
    assert_eq!(w.plugged(), []);
    w.wish(0, Some(1), false);
    w.settle();
    assert_eq!(w.plugged(), [], "what is asked for elsewhere is not plugged in");
}

#[test]
fn two_ports_that_want_one_device() {
    let mut w = World::new();
    (0..2).for_each(|d| w.device(d, true));
    w.wish(1, Some(0), true);
    w.settle();
    w.wish(0, Some(0), true);
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp1", "dev0")]), "who has it keeps it");
    assert!(w.plugs.problems["lp0"].contains("dev0 is plugged in for lport lp1"), "{:?}", w.plugs.problems);
    w.wish(1, Some(1), true);
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev0"), ("lp1", "dev1")]));
    assert!(w.plugs.problems.is_empty());
    // They change places.
    w.wish(0, Some(1), true);
    w.wish(1, Some(0), true);
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev1"), ("lp1", "dev0")]));
}

#[test]
fn a_device_that_goes_leaves_its_row_with_the_reason() {
    let mut w = World::new();
    w.device(0, true);
    w.wish(0, Some(0), true);
    w.settle();
    let row = *w.db.interface.keys().next().unwrap();
    w.device(0, false);
    w.settle();
    assert_eq!(w.error_of("dev0").as_deref(), Some("dev0 does not exist"));
    assert_eq!(
        w.plugs.show(&w.db, &w.interfaces, &w.wishes),
        "lp0: type test, plugged dev0, error: dev0 does not exist\n"
    );
    w.device(0, true);
    w.settle();
    assert_eq!(w.error_of("dev0"), None);
    assert!(w.db.interface.contains_key(&row), "it is the same row");
}

#[test]
fn what_others_plugged_in_is_left_alone() {
    let mut w = World::new();
    (0..2).for_each(|d| w.device(d, true));
    w.stranger(&"vif".into(), Some(&lport(0)));
    w.stranger(&device(1), None);
    w.wish(0, Some(0), true);
    w.wish(1, Some(1), true);
    w.settle();
    assert_eq!(w.plugged(), []);
    assert!(w.plugs.problems["lp0"].starts_with("CMS requested plugging of lport lp0"), "{:?}", w.plugs.problems);
    assert!(w.plugs.problems["lp1"].contains("ovs-vsctl del-port dev1"), "{:?}", w.plugs.problems);
    w.remove(|i| &*i.name == "vif");
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev0")]));
    // A provider that is not there.
    let mut other = w.wishes[&lport(0)].clone();
    other.provider = "nobody".into();
    w.wishes.insert(lport(2), other);
    w.settle();
    let text = &w.plugs.problems["lp2"];
    assert!(text.contains("provider for vif-plug-type: 'nobody' lport lp2"), "{text}");
}

#[test]
fn an_mtu_that_is_none() {
    let mut w = World::new();
    w.device(0, true);
    w.wish(0, Some(0), true);
    w.wishes.get_mut(&lport(0)).unwrap().mtu = Some("big".into());
    w.settle();
    assert_eq!(w.plugged(), pairs(&[("lp0", "dev0")]));
    assert!(w.error_of("dev0").unwrap().contains("vif-plug-mtu-request \"big\""));
}

#[test]
fn what_a_port_asks_for() {
    let (me, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let local = Local { chassis: Some(me), chassis_name: "hv1".into(), ..Local::default() };
    let port = |requested: Option<Uuid>, options: &[(&str, &str)]| {
        let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let p = PortBinding { logical_port: "lp".into(), requested_chassis: requested, options, ..Default::default() };
        Wish::of(&p, &local)
    };
    let kind = ("vif-plug-type", "test");
    let w = port(Some(me), &[kind, ("requested-chassis", "hv1"), ("vif-plug:x:y", "z"), ("other", "")]).unwrap();
    assert!(w.here && w.options.len() == 1);
    assert_eq!(port(Some(me), &[("requested-chassis", "hv1")]), None, "no provider");
    assert_eq!(port(Some(other), &[kind, ("requested-chassis", "hv2")]), None);
    assert!(!port(None, &[kind]).unwrap().here, "it is nobody's to plug in");
    assert!(!port(None, &[kind, ("requested-chassis", "hv1")]).unwrap().here, "northd has not said so yet");
}

#[derive(Clone, Debug)]
enum Event {
    Wish(u8, Option<u8>, bool),
    Device(u8, bool),
    Stranger(u8),
    Claimant(u8),
    NoStrangers,
    Restart,
    Tamper,
    Unplugged(u8),
    Look(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0u8..4, prop::option::weighted(0.8, 0u8..4), prop::bool::weighted(0.9)).prop_map(|(p, d, h)| Event::Wish(p, d, h)),
        3 => (0u8..4, prop::bool::weighted(0.7)).prop_map(|(d, t)| Event::Device(d, t)),
        1 => (0u8..4).prop_map(Event::Stranger),
        1 => (0u8..4).prop_map(Event::Claimant),
        1 => Just(Event::NoStrangers),
        1 => Just(Event::Restart),
        1 => Just(Event::Tamper),
        1 => (0u8..4).prop_map(Event::Unplugged),
        6 => prop::bool::weighted(0.3).prop_map(Event::Look),
    ]
}

proptest! {
    /// Whatever happens, no port has two devices, what others plugged in stays as it is, and in the end all have what they ask for.
    #[test]
    fn all_histories_end_at_what_is_asked_for(events in prop::collection::vec(event(), 1..30)) {
        let mut w = World::new();
        (0..4).for_each(|d| w.device(d, true));
        for e in events {
            w.log.push(format!("{e:?}"));
            match e {
                Event::Wish(p, d, here) => w.wish(p, d, here),
                Event::Device(d, there) => w.device(d, there),
                Event::Stranger(d) => w.stranger(&device(d), None),
                Event::Claimant(p) => w.stranger(&format!("vif{p}").into(), Some(&lport(p))),
                Event::NoStrangers => w.remove(|i| !i.external_ids.contains_key(PLUGGED_ID)),
                Event::Restart => w.restart(),
                Event::Tamper => w.tamper(),
                Event::Unplugged(d) => w.remove(|i| i.name == device(d)),
                Event::Look(lost) => {
                    let strangers = w.strangers();
                    w.look(lost);
                    assert_eq!(strangers, w.strangers());
                }
            }
            let plugged = w.plugged();
            let ports: BTreeSet<_> = plugged.iter().map(|(p, _)| p).collect();
            assert_eq!(ports.len(), plugged.len(), "a port has two devices: {plugged:?}");
        }
        w.settle();
        let plugged: BTreeMap<Str, Str> = w.plugged().into_iter().collect();
        for p in plugged.keys() {
            assert!(w.wishes.contains_key(p), "{p} asks for nothing");
        }
        let there = w.devices.0.lock().unwrap().clone();
        let strange: BTreeSet<Str> = w.strangers().into_keys().collect();
        let claimed = |p: &Str| w.strangers().values().any(|i| i.external_ids.get("iface-id") == Some(p));
        // Each device that is there and free has one of those that may have it, if there are any.
        for d in there.difference(&strange) {
            let asks = w.wishes.iter().filter(|(p, wish)| {
                wish.options["vif-plug:test"] == *d && (plugged.contains_key(*p) || wish.here && !claimed(p))
            });
            let asks: Vec<_> = asks.map(|(p, _)| p).collect();
            let has: Vec<_> = asks.iter().filter(|p| plugged.get(**p) == Some(d)).collect();
            assert_eq!(has.len(), usize::from(!asks.is_empty()), "{d}: {asks:?} of {plugged:?} after {:?}", w.log);
        }
    }
}
