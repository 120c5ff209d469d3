//! Bridges on a virtual clock, with wires between their ports; some may speak the older protocol.

use super::*;
use crate::config::stp::TreeSettings;
use crate::ports::mesh::{Numbers, Wire, as_received, assert_no_loop, other_end};
use crate::ports::stp::{Tree, TreeOutput};
use switch::StpState;

/// A bridge of either protocol.
enum Any {
    Rapid(Rapid802),
    Older(Tree),
}

/// Bridges, and which port of which is wired to which.
struct Lab {
    bridges: Vec<Any>,
    wires: Vec<Wire>,
    up: Vec<bool>,
    flushes: Vec<usize>,
    now: Duration,
}

fn id(n: usize) -> u64 {
    0x8000 << 48 | n as u64
}

fn rapid(n: usize) -> Any {
    let settings = RstpSettings { id: id(n), max_age: 20, forward_delay: 15, hold_count: 6, older: false };
    Any::Rapid(Rapid802::new(settings, Duration::ZERO))
}

fn older(n: usize) -> Any {
    let [hello, max_age, forward_delay] = [2, 20, 15].map(Duration::from_secs);
    Any::Older(Tree::new(TreeSettings { id: id(n), hello, max_age, forward_delay }, Duration::ZERO))
}

impl Any {
    fn add_port(&mut self, cost: u32) -> usize {
        match self {
            Any::Rapid(b) => {
                b.add_port(0x8001 + b.ports.len() as u16, cost, (false, true), Duration::ZERO);
                b.ports.len() - 1
            }
            Any::Older(b) => b.add_port(0x8001 + b.ports.len() as u16, cost, Duration::ZERO),
        }
    }

    fn forwards(&self, i: usize) -> bool {
        match self {
            Any::Rapid(b) => b.ports[i].forwarding,
            Any::Older(b) => b.ports[i].state == StpState::Forwarding,
        }
    }

    fn root(&self) -> u64 {
        match self {
            Any::Rapid(b) => b.root.root,
            Any::Older(b) => b.root,
        }
    }
}

impl Lab {
    fn new(bridges: Vec<Any>, wires: &[(usize, usize, u32)]) -> Lab {
        let n = bridges.len();
        let mut lab = Lab { bridges, wires: Vec::new(), up: Vec::new(), flushes: vec![0; n], now: Duration::ZERO };
        for (a, b, cost) in wires.iter().copied() {
            let ends = ((a, lab.bridges[a].add_port(cost)), (b, lab.bridges[b].add_port(cost)));
            lab.wires.push(ends);
            lab.up.push(false);
        }
        for w in 0..lab.wires.len() {
            lab.set_wire(w, true);
        }
        lab
    }

    fn rapids(n: usize, wires: &[(usize, usize, u32)]) -> Lab {
        Lab::new((1..=n).map(rapid).collect(), wires)
    }

    fn bridge(&self, b: usize) -> &Rapid802 {
        match &self.bridges[b] {
            Any::Rapid(b) => b,
            Any::Older(_) => panic!("an older bridge"),
        }
    }

    fn port(&self, b: usize, p: usize) -> (Role, bool) {
        let p = &self.bridge(b).ports[p];
        (p.role, p.forwarding)
    }

    fn set_wire(&mut self, w: usize, up: bool) {
        let (a, b) = self.wires[w];
        self.up[w] = up;
        for (bridge, port) in [a, b] {
            match &mut self.bridges[bridge] {
                Any::Rapid(b) => b.set_link(port, up),
                Any::Older(b) => b.set_link(port, up, self.now),
            }
        }
        self.carry();
    }

    /// Carries messages until there are none.
    fn carry(&mut self) {
        for _ in 0..1000 {
            let mut sent = Vec::new();
            for (i, b) in self.bridges.iter_mut().enumerate() {
                match b {
                    Any::Rapid(b) => b.take().into_iter().for_each(|o| match o {
                        RapidOutput::Send(port, m) => sent.push(((i, port), m)),
                        RapidOutput::Flush(_) => self.flushes[i] += 1,
                    }),
                    Any::Older(b) => b.take().into_iter().for_each(|o| match o {
                        TreeOutput::Send(port, m) => sent.push(((i, port), m)),
                        TreeOutput::Flush => self.flushes[i] += 1,
                    }),
                }
            }
            // No loop forms between two messages either.
            self.check_loops();
            if sent.is_empty() {
                return;
            }
            for (from, m) in sent {
                let up = self.wires.iter().zip(&self.up).filter(|(_, up)| **up).map(|(wire, _)| wire);
                let to = other_end(up, from);
                let m = as_received(&m);
                let Some((b, p)) = to else { continue };
                match &mut self.bridges[b] {
                    Any::Rapid(b) => b.receive(p, &m),
                    Any::Older(b) => b.receive(p, &m, self.now),
                }
            }
        }
        panic!("messages without end");
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.now += Duration::from_millis(250);
            for b in &mut self.bridges {
                match b {
                    Any::Rapid(b) => b.run(self.now),
                    Any::Older(b) => b.run(self.now),
                }
            }
            self.carry();
        }
    }

    /// The wires over which packets go.
    fn active(&self) -> Vec<usize> {
        let forwards = |(b, p): (usize, usize)| self.bridges[b].forwards(p);
        let carries = |w: &usize| self.up[*w] && forwards(self.wires[*w].0) && forwards(self.wires[*w].1);
        (0..self.wires.len()).filter(carries).collect()
    }

    fn check_loops(&self) {
        assert_no_loop(self.bridges.len(), self.active().into_iter().map(|w| self.wires[w]), self.now);
    }

    fn reaches_all(&self) -> bool {
        self.active().len() == self.bridges.len() - 1
    }
}

/// Two bridges agree within a second, where the older protocol takes thirty.
#[test]
fn a_link_forwards_when_both_sides_have_agreed() {
    let mut lab = Lab::rapids(2, &[(0, 1, 200_000)]);
    assert!(!lab.reaches_all());
    lab.pass(1);
    assert_eq!((lab.port(0, 0), lab.port(1, 0)), ((Role::Designated, true), (Role::Root, true)));
    assert_eq!((lab.bridge(1).root.root, lab.bridge(1).root.cost), (id(1), 200_000));
    // Topology changes end, and hellos go on.
    lab.pass(10);
    let (flushes, sent) = (lab.flushes.clone(), lab.bridge(0).ports[0].counts[0]);
    lab.pass(20);
    assert_eq!((lab.flushes.clone(), lab.bridge(0).ports[0].counts[0]), (flushes, sent + 10));
    assert_eq!(lab.bridge(1).ports[0].counts[2], 0);
}

/// A ring of three: when a wire breaks, the port that blocked takes over at once.
#[test]
fn a_ring_is_cut_and_mended_at_once() {
    let mut lab = Lab::rapids(3, &[(0, 1, 200_000), (1, 2, 200_000), (2, 0, 200_000)]);
    lab.pass(10);
    assert!(lab.reaches_all());
    assert_eq!((lab.port(2, 0), lab.port(1, 1)), ((Role::Alternate, false), (Role::Designated, true)));
    lab.flushes = vec![0; 3];
    lab.set_wire(2, false);
    assert!(lab.reaches_all(), "no second has passed");
    assert_eq!((lab.port(2, 0), lab.bridge(2).root.cost), ((Role::Root, true), 400_000));
    lab.pass(1);
    assert!(lab.flushes.iter().skip(1).all(|n| *n > 0), "{:?}", lab.flushes);
    lab.set_wire(2, true);
    lab.pass(10);
    assert!(lab.reaches_all());
    assert_eq!(lab.port(2, 0), (Role::Alternate, false));
}

/// A neighbour goes silent while its link stays up: three hellos later its messages are forgotten.
#[test]
fn a_silent_root_is_forgotten_within_three_hellos() {
    let mut lab = Lab::rapids(3, &[(0, 1, 200_000), (1, 2, 200_000), (2, 0, 200_000)]);
    lab.pass(10);
    // Nothing that bridge 0 sends or gets arrives any more.
    lab.wires.retain(|((a, _), (b, _))| *a != 0 && *b != 0);
    lab.up.truncate(1);
    lab.pass(9);
    let root = id(2);
    assert_eq!((lab.bridge(1).root.root, lab.bridge(2).root.root), (root, root));
    assert_eq!(lab.port(2, 0), (Role::Root, true));
}

/// A port that hears no bridge is an edge after three seconds, and one that is said to be one at once; both are none as
/// soon as they hear a bridge.
#[test]
fn ports_without_a_bridge_are_edges() {
    let mut lab = Lab::new(vec![rapid(1)], &[]);
    for edge in [(false, true), (true, true), (false, false)] {
        let Any::Rapid(b) = &mut lab.bridges[0] else { panic!("a rapid bridge") };
        b.add_port(0x8001 + b.ports.len() as u16, 200_000, edge, Duration::ZERO);
        b.set_link(b.ports.len() - 1, true);
    }
    let forwarding = |lab: &Lab| lab.bridge(0).ports.iter().map(|p| p.forwarding).collect::<Vec<_>>();
    lab.pass(1);
    assert_eq!(forwarding(&lab), [false, true, false]);
    lab.pass(4);
    assert_eq!(forwarding(&lab), [true, true, false]);
    lab.pass(30);
    assert_eq!(forwarding(&lab), [true; 3], "who may not be found out waits as ever");
    let mut lab = Lab::rapids(2, &[(0, 1, 200_000)]);
    for b in &mut lab.bridges {
        let Any::Rapid(b) = b else { panic!("a rapid bridge") };
        b.set_edge(0, (true, true));
    }
    lab.pass(3);
    assert!(lab.bridges.iter().all(|b| matches!(b, Any::Rapid(b) if !b.ports[0].oper_edge)));
}

/// Two wires between two bridges, and one from a bridge to itself: the other ones block.
#[test]
fn further_wires_are_alternates_and_backups() {
    let mut lab = Lab::rapids(2, &[(0, 1, 200_000), (0, 1, 20_000), (0, 0, 200_000)]);
    lab.pass(10);
    assert!(lab.reaches_all());
    assert_eq!((lab.port(1, 0), lab.port(1, 1)), ((Role::Alternate, false), (Role::Root, true)), "the cheaper one");
    assert_eq!((lab.port(0, 2), lab.port(0, 3)), ((Role::Designated, true), (Role::Backup, false)));
    let Any::Rapid(b) = &mut lab.bridges[1] else { panic!("a rapid bridge") };
    b.set_cost(1, 2_000_000);
    lab.pass(5);
    assert_eq!((lab.port(1, 0), lab.port(1, 1)), ((Role::Root, true), (Role::Alternate, false)));
}

/// Where the other side speaks the older protocol, so does this one, in the older times; and it tries anew when asked.
#[test]
fn older_bridges_are_spoken_to_in_their_way() {
    for bridges in [vec![rapid(1), older(2), rapid(3)], vec![older(1), rapid(2), rapid(3)]] {
        let mut lab = Lab::new(bridges, &[(0, 1, 100), (1, 2, 100), (2, 0, 100)]);
        lab.pass(80);
        assert!(lab.reaches_all(), "{:?}", lab.active());
        assert!(lab.bridges.iter().all(|b| b.root() == id(1)));
        for w in 0..3 {
            lab.set_wire(w, false);
            lab.pass(60);
            assert!(lab.reaches_all(), "without wire {w}: {:?}", lab.active());
            lab.set_wire(w, true);
            lab.pass(80);
            assert!(lab.reaches_all(), "with wire {w} again: {:?}", lab.active());
        }
    }
}

/// Meshes of all sizes, some with older bridges among them, end as trees that reach all bridges, without a loop at any
/// time, whatever wires go and come.
#[test]
fn meshes_become_trees() {
    let mut numbers = Numbers(11);
    for round in 0..24 {
        let size = 2 + round % 6;
        let mixed = round % 3 == 2;
        let bridges = (1..=size).map(|n| if mixed && numbers.below(3) == 0 { older(n) } else { rapid(n) }).collect();
        let wires = numbers.wires(size);
        let mut lab = Lab::new(bridges, &wires);
        let settle = if mixed { 120 } else { 12 };
        lab.pass(settle);
        assert!(lab.reaches_all(), "round {round}: {size} bridges: {:?} of {wires:?}", lab.active());
        for _ in 0..6 {
            // Wires besides the line go and come.
            if wires.len() >= size {
                let w = size - 1 + numbers.below(wires.len() - size + 1);
                lab.set_wire(w, false);
                lab.pass(numbers.below(8) as u64);
                lab.set_wire(w, true);
                lab.pass(numbers.below(8) as u64);
            }
            // Operators prefer a bridge, and change priorities of its ports.
            let b = numbers.below(size);
            if let Any::Rapid(t) = &mut lab.bridges[b] {
                let (priority, address) = ((numbers.below(16) as u64) << 60, b as u64 + 1);
                let id = t.settings().id.min(priority | address);
                let ids = t.ports.iter().map(|p| (numbers.below(16) as u16) << 12 | p.id & 0xfff).collect::<Vec<_>>();
                t.set_settings(RstpSettings { id, ..*t.settings() }, &ids);
            }
            lab.carry();
            lab.pass(numbers.below(8) as u64);
        }
        lab.pass(settle);
        assert!(lab.reaches_all(), "round {round}: {size} bridges: {:?} of {wires:?}", lab.active());
    }
}

/// Ports whose roles stay as they are forward on while settings change.
#[test]
fn settings_change_without_a_pause() {
    let mut lab = Lab::rapids(2, &[(0, 1, 200)]);
    if let Any::Rapid(t) = &mut lab.bridges[0] {
        // To a machine: nobody agrees there.
        t.add_port(0x8009, 200, (false, true), Duration::ZERO);
        t.set_link(1, true);
    }
    lab.pass(60);
    let forwards = |lab: &Lab| [(0, 0), (0, 1), (1, 0)].map(|(b, p)| lab.port(b, p).1);
    assert_eq!(forwards(&lab), [true; 3]);
    let now =
        |id: u64, max_age, forward_delay| RstpSettings { id, max_age, forward_delay, hold_count: 6, older: false };
    for (settings, ids) in [
        (now(id(1), 10, 8), [0x8001, 0x8009]),
        (now(0x1000 << 48 | 1, 10, 8), [0x8001, 0x8009]),
        (now(0x1000 << 48 | 1, 10, 8), [0x4001, 0x2009]),
        (now(0x1000 << 48 | 7, 20, 15), [0x4001, 0x2009]),
    ] {
        if let Any::Rapid(t) = &mut lab.bridges[0] {
            t.set_settings(settings, &ids);
        }
        assert_eq!(forwards(&lab), [true; 3], "{settings:?}");
        for _ in 0..5 {
            lab.carry();
            lab.pass(1);
            assert_eq!(forwards(&lab), [true; 3], "{settings:?}");
        }
        assert_eq!(lab.bridges[1].root(), settings.id);
    }
}
