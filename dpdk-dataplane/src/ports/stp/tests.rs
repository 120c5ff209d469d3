//! Bridges on a virtual clock, with wires between their ports.

use super::*;
use crate::ports::mesh::{Numbers, Wire, as_received, assert_no_loop, other_end};

/// Bridges, and which port of which is wired to which.
struct Lab {
    bridges: Vec<Tree>,
    wires: Vec<Wire>,
    flushes: Vec<usize>,
    now: Duration,
}

fn settings(n: u64) -> TreeSettings {
    let [hello, max_age, forward_delay] = [2, 20, 15].map(Duration::from_secs);
    TreeSettings { id: 0x8000 << 48 | n, hello, max_age, forward_delay }
}

impl Lab {
    /// Bridges with addresses 1 and so on; each wire has the cost of its ways, and gets the next port of both.
    fn new(n: usize, wires: &[(usize, usize, u32)]) -> Lab {
        let bridges = (1..=n).map(|i| Tree::new(settings(i as u64), Duration::ZERO)).collect();
        let mut lab = Lab { bridges, wires: Vec::new(), flushes: vec![0; n], now: Duration::ZERO };
        for (a, b, cost) in wires.iter().copied() {
            let mut port = |i: usize| {
                let n = lab.bridges[i].ports.len() as u16;
                lab.bridges[i].add_port(0x8001 + n, cost, Duration::ZERO)
            };
            let ends = ((a, port(a)), (b, port(b)));
            lab.wires.push(ends);
        }
        for w in 0..lab.wires.len() {
            lab.set_wire(w, true);
        }
        lab
    }

    fn set_wire(&mut self, w: usize, up: bool) {
        let (a, b) = self.wires[w];
        for (bridge, port) in [a, b] {
            self.bridges[bridge].set_link(port, up, self.now);
        }
        self.carry();
    }

    /// Carries messages until there are none.
    fn carry(&mut self) {
        for _ in 0..1000 {
            let mut sent = Vec::new();
            for (i, b) in self.bridges.iter_mut().enumerate() {
                for o in b.take() {
                    match o {
                        TreeOutput::Send(port, m) => sent.push(((i, port), m)),
                        TreeOutput::Flush => self.flushes[i] += 1,
                    }
                }
            }
            if sent.is_empty() {
                return;
            }
            for (from, m) in sent {
                let other = other_end(self.wires.iter(), from);
                let m = as_received(&m);
                if let Some((b, p)) = other {
                    self.bridges[b].receive(p, &m, self.now);
                }
            }
        }
        panic!("messages without end");
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.now += Duration::from_millis(250);
            self.bridges.iter_mut().for_each(|b| b.run(self.now));
            self.carry();
            self.check_loops();
        }
    }

    /// The wires over which packets go, as pairs of bridges.
    fn active(&self) -> Vec<usize> {
        let forwards = |(b, p): (usize, usize)| self.bridges[b].ports[p].state == StpState::Forwarding;
        (0..self.wires.len()).filter(|w| forwards(self.wires[*w].0) && forwards(self.wires[*w].1)).collect()
    }

    /// At no time is there a loop over which packets go.
    fn check_loops(&self) {
        assert_no_loop(self.bridges.len(), self.active().into_iter().map(|w| self.wires[w]), self.now);
    }

    fn reaches_all(&self) -> bool {
        self.active().len() == self.bridges.len() - 1
    }

    fn state(&self, b: usize, p: usize) -> (Role, StpState) {
        (self.bridges[b].role(p), self.bridges[b].ports[p].state)
    }
}

#[test]
fn a_port_listens_and_learns_before_it_forwards() {
    let mut lab = Lab::new(2, &[(0, 1, 19)]);
    assert_eq!(lab.state(0, 0), (Role::Designated, StpState::Listening));
    lab.pass(14);
    assert_eq!(lab.state(0, 0).1, StpState::Listening);
    lab.pass(2);
    assert_eq!((lab.state(0, 0).1, lab.state(1, 0)), (StpState::Learning, (Role::Root, StpState::Learning)));
    lab.pass(15);
    assert_eq!((lab.state(0, 0).1, lab.state(1, 0).1), (StpState::Forwarding, StpState::Forwarding));
    assert_eq!((lab.bridges[1].root, lab.bridges[1].root_cost), (settings(1).id, 19));
    // Topology changes end, and hellos go on.
    lab.pass(60);
    let (flushes, sent) = (lab.flushes.clone(), lab.bridges[0].ports[0].counts[0]);
    lab.pass(20);
    assert_eq!((lab.flushes.clone(), lab.bridges[0].ports[0].counts[0]), (flushes, sent + 10));
}

/// A ring of three: the port farthest from the root blocks; when another wire breaks, it takes over and addresses are
/// forgotten everywhere.
#[test]
fn a_ring_is_cut_and_mended() {
    let mut lab = Lab::new(3, &[(0, 1, 19), (1, 2, 19), (2, 0, 19)]);
    lab.pass(60);
    assert!(lab.reaches_all());
    assert_eq!(lab.state(2, 0), (Role::Alternate, StpState::Blocking));
    assert_eq!(lab.state(1, 1), (Role::Designated, StpState::Forwarding));
    lab.pass(60);
    lab.flushes = vec![0; 3];
    lab.set_wire(2, false);
    lab.pass(60);
    assert!(lab.reaches_all());
    assert_eq!(lab.state(2, 0), (Role::Root, StpState::Forwarding));
    assert_eq!(lab.bridges[2].root_cost, 38);
    assert!(lab.flushes.iter().all(|n| *n > 0), "{:?}", lab.flushes);
    lab.set_wire(2, true);
    lab.pass(60);
    assert_eq!((lab.reaches_all(), lab.state(2, 0).1), (true, StpState::Blocking));
}

/// The root goes silent: its messages age, and another becomes the root.
#[test]
fn another_root_is_chosen_when_the_first_is_silent() {
    let mut lab = Lab::new(3, &[(0, 1, 19), (1, 2, 19), (2, 0, 19)]);
    lab.pass(60);
    lab.wires.retain(|((a, _), (b, _))| *a != 0 && *b != 0);
    lab.pass(60);
    let root = settings(2).id;
    assert_eq!((lab.bridges[1].root, lab.bridges[2].root), (root, root));
    assert!(lab.bridges[1].is_root());
}

/// Costs decide: of two ways to the root the cheaper one is taken, and a change of the cost changes it.
#[test]
fn the_cheaper_way_is_taken() {
    let mut lab = Lab::new(2, &[(0, 1, 100), (0, 1, 19)]);
    lab.pass(60);
    assert_eq!((lab.bridges[1].root_port, lab.bridges[1].root_cost), (Some(1), 19));
    let now = lab.now;
    lab.bridges[1].set_cost(1, 200, now);
    lab.pass(60);
    assert_eq!((lab.bridges[1].root_port, lab.bridges[1].root_cost), (Some(0), 100));
    assert!(lab.reaches_all());
}

/// IEEE 802.1D-1998 figure 8-1 in spirit: meshes of all sizes end as trees that reach all bridges, without a loop at any
/// time, whatever wires go and come.
#[test]
fn meshes_become_trees() {
    let mut numbers = Numbers(7);
    for size in 2..8 {
        let wires = numbers.wires(size);
        let mut lab = Lab::new(size, &wires);
        lab.pass(120);
        assert!(lab.reaches_all(), "{size} bridges: {:?} of {wires:?}", lab.active());
        for _ in 0..4 {
            // Wires besides the line go and come.
            if wires.len() >= size {
                let w = size - 1 + numbers.below(wires.len() - size + 1);
                lab.set_wire(w, false);
                lab.pass(20);
                lab.set_wire(w, true);
                lab.pass(20);
            }
            // Operators change priorities of bridges and of ports.
            let (b, now) = (numbers.below(size), lab.now);
            let (priority, address) = ((numbers.below(16) as u64) << 60, b as u64 + 1);
            let id = priority | address;
            let [hello, max_age, forward_delay] = [2, 20, 4 + numbers.below(12) as u64].map(Duration::from_secs);
            lab.bridges[b].set_settings(TreeSettings { id, hello, max_age, forward_delay }, now);
            let p = numbers.below(lab.bridges[b].ports.len());
            let port = (numbers.below(16) as u16) << 12 | lab.bridges[b].ports[p].id & 0xff;
            lab.bridges[b].set_id(p, port, now);
            lab.carry();
            lab.pass(numbers.below(60) as u64);
        }
        lab.pass(120);
        assert!(lab.reaches_all(), "{size} bridges: {:?} of {wires:?}", lab.active());
        let least = lab.bridges.iter().map(|b| b.settings().id).min();
        assert!(lab.bridges.iter().all(|b| Some(b.root) == least), "the best is the root");
    }
}

/// Ports whose parts stay as they are forward on while settings change.
#[test]
fn settings_change_without_a_pause() {
    let mut lab = Lab::new(2, &[(0, 1, 19)]);
    lab.pass(60);
    let change = |lab: &mut Lab, id, delay| {
        let [hello, max_age, forward_delay] = [2, 20, delay].map(Duration::from_secs);
        let now = lab.now;
        lab.bridges[0].set_settings(TreeSettings { id, hello, max_age, forward_delay }, now);
        lab.carry();
        lab.pass(5);
        assert!(lab.reaches_all(), "{id:x}");
    };
    change(&mut lab, 0x8000 << 48 | 1, 7);
    assert_eq!(lab.bridges[1].times.forward_delay, Duration::from_secs(7), "others hear of it");
    change(&mut lab, 0x1000 << 48 | 1, 7);
    assert_eq!(lab.bridges[1].root, 0x1000 << 48 | 1);
    let now = lab.now;
    lab.bridges[0].set_id(0, 0x4001, now);
    lab.pass(5);
    assert!(lab.reaches_all());
    assert_eq!(lab.bridges[1].ports[0].designated_port, 0x4001);
    // The other one becomes the root, over the same wire.
    change(&mut lab, 0xf000 << 48 | 1, 7);
    lab.pass(30);
    assert_eq!(lab.bridges[0].root, settings(2).id);
}
