#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A kernel, and what it told and nobody read: of ports and of network devices on sockets of their own.
#[derive(Default)]
struct Kernel {
    truth: Inventory,
    told: [VecDeque<Event>; 2],
}

#[derive(Clone, Debug)]
enum Act {
    Device(u8, bool),
    Port(u8, u8, Option<u8>),
    PortGone(u8, u8),
    Link(u8, u8),
    LinkGone(u8),
    Read(bool),
    Lost(bool),
}

fn device(n: u8) -> DeviceName {
    DeviceName { bus: "pci".into(), name: format!("0000:0{n}:00.0") }
}

impl Kernel {
    fn does(&mut self, a: &Act) {
        let (of, event) = match *a {
            Act::Device(d, true) => (0, Event::Device(Device { name: device(d), mode: Some(Mode::Switchdev) })),
            Act::Device(d, false) => (0, Event::DeviceGone(device(d))),
            Act::Port(d, index, link) => {
                let function = Function::Vf { controller: 0, pf: 0, vf: u32::from(index) };
                let ifindex = link.map(u32::from);
                (0, Event::Port(Port { device: device(d), index: index.into(), function, ifindex, address: None }))
            }
            Act::PortGone(d, index) => (0, Event::PortGone(device(d), index.into())),
            Act::Link(n, name) => {
                let name = format!("eth{name}");
                let (address, permanent, port_name, switch_id, parent) = (None, None, None, None, None);
                (1, Event::Link(Link { ifindex: n.into(), name, address, permanent, port_name, switch_id, parent }))
            }
            Act::LinkGone(n) => (1, Event::LinkGone(n.into())),
            Act::Read(_) | Act::Lost(_) => return,
        };
        // A port is of a device that there is.
        if let Event::Port(p) = &event
            && !self.truth.devices.contains_key(&p.device)
        {
            return;
        }
        self.truth.apply(event.clone());
        self.told[of].push_back(event);
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0u8..3, any::<bool>()).prop_map(|(d, t)| Act::Device(d, t)),
        4 => (0u8..3, 0u8..4, prop::option::of(1u8..5)).prop_map(|(d, i, l)| Act::Port(d, i, l)),
        2 => (0u8..3, 0u8..4).prop_map(|(d, i)| Act::PortGone(d, i)),
        4 => (1u8..5, 0u8..6).prop_map(|(n, name)| Act::Link(n, name)),
        2 => (1u8..5).prop_map(Act::LinkGone),
        6 => any::<bool>().prop_map(Act::Read),
        1 => any::<bool>().prop_map(Act::Lost),
    ]
}

/// Reads everything anew where that is needed, as the follower of the kernel does.
fn refresh(i: &mut Inventory, k: &Kernel) {
    if i.is_stale() {
        i.apply(Event::Dump(k.truth.snapshot()));
    }
}

proptest! {
    /// In whatever order the two sockets are read, and whatever is lost: in the end all is known.
    #[test]
    fn all_orders_end_at_the_truth(acts in prop::collection::vec(act(), 0..60)) {
        let (mut k, mut i) = (Kernel::default(), Inventory::default());
        refresh(&mut i, &k);
        for a in &acts {
            k.does(a);
            match *a {
                Act::Read(of) => {
                    if let Some(e) = k.told[usize::from(of)].pop_front() {
                        i.apply(e);
                    }
                }
                // The rest of what waits there comes to nobody.
                Act::Lost(of) if !k.told[usize::from(of)].is_empty() => {
                    k.told[usize::from(of)].clear();
                    i.apply(Event::Overflow);
                }
                _ => {}
            }
            refresh(&mut i, &k);
        }
        for of in [1, 0] {
            while let Some(e) = k.told[of].pop_front() {
                i.apply(e);
                refresh(&mut i, &k);
            }
        }
        prop_assert_eq!(i.snapshot(), k.truth.snapshot());
    }
}

#[test]
fn a_version_counts_changes() {
    let mut i = Inventory::default();
    assert!(i.is_stale());
    assert!(i.apply(Event::Dump(Snapshot::default())), "now it is known that there is nothing");
    assert!(!i.is_stale());
    let d = Device { name: device(1), mode: None };
    assert!(i.apply(Event::Device(d.clone())));
    let v = i.version();
    assert!(!i.apply(Event::Device(d)));
    assert!(!i.apply(Event::PortGone(device(1), 1)));
    assert_eq!(i.version(), v);
    let port =
        Port { device: device(2), index: 1, function: Function::Physical { port: 0 }, ifindex: None, address: None };
    i.apply(Event::Port(port));
    assert!(i.is_stale(), "nobody told of its device");
}
