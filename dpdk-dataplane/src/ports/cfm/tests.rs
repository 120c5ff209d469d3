//! Two ports on a virtual clock, with a wire between them that may lose what it carries.

use super::points::{CfmAction, CfmPoints};
use super::*;
use openflow_rs::PortNo;
use packet::Mac;
use switch::BridgeId;

const PORT: PortNo = PortNo(1);

fn spec(point: u64) -> CfmSpec {
    CfmSpec {
        point,
        code: 0,
        interval: Duration::from_millis(300),
        extended: true,
        demand: false,
        down: false,
        vlan: CcmVlan::Fixed(VlanId::NONE),
        priority: 0,
        check_key: false,
        source: Mac([2, 0, 0, 0, 0, point as u8]),
    }
}

struct Lab {
    sides: [CfmPoints; 2],
    /// What each said last.
    last: [Option<CfmStatus>; 2],
    /// Whether messages from each side arrive.
    carries: [bool; 2],
    /// Packets that each port receives in a millisecond.
    traffic: u64,
    received: u64,
    ms: u64,
    warnings: usize,
}

impl Lab {
    fn new(specs: [CfmSpec; 2]) -> Lab {
        let mut lab = Lab {
            sides: Default::default(),
            last: [None, None],
            carries: [true; 2],
            traffic: 0,
            received: 0,
            ms: 0,
            warnings: 0,
        };
        for (i, s) in specs.into_iter().enumerate() {
            lab.set(i, Some(s));
        }
        lab
    }

    fn set(&mut self, side: usize, spec: Option<CfmSpec>) {
        self.sides[side].set(BridgeId(0), PORT, spec, self.received, Duration::from_millis(self.ms));
        if spec.is_none() {
            self.last[side] = None;
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            (self.ms, self.received) = (self.ms + 1, self.received + self.traffic);
            let (now, received) = (Duration::from_millis(self.ms), self.received);
            // An answer leaves in the same moment.
            for i in [0, 1, 0, 1] {
                if self.sides[i].due().is_none_or(|t| t > now) {
                    continue;
                }
                for a in self.sides[i].poll(now, |_, _| received) {
                    match a {
                        CfmAction::Send(BridgeId(0), PORT, f) if self.carries[i] => {
                            self.sides[1 - i].receive(BridgeId(0), PORT, &f, now)
                        }
                        CfmAction::Send(..) => {}
                        CfmAction::Status(_, _, s) => self.last[i] = Some(s),
                        CfmAction::Warn(..) => self.warnings += 1,
                    }
                }
            }
        }
    }

    fn says(&self, side: usize) -> (String, Vec<u64>, Option<u8>, u64) {
        let s = self.last[side].clone().expect("a status");
        (s.faults.to_string(), s.peers, s.health, s.flaps)
    }
}

fn ok(peer: u64, health: Option<u8>, flaps: u64) -> (String, Vec<u64>, Option<u8>, u64) {
    (String::new(), vec![peer], health, flaps)
}

#[test]
fn a_wire_that_breaks_is_found_within_three_intervals_and_a_half() {
    let mut lab = Lab::new([spec(1), spec(2)]);
    lab.pass(1050);
    assert_eq!(lab.says(0), ok(2, None, 0));
    lab.pass(9000);
    assert_eq!((lab.says(0), lab.says(1)), (ok(2, Some(100), 0), ok(1, Some(100), 0)));
    lab.carries = [false; 2];
    // Messages that came just after a look count until the one behind the next.
    lab.pass(1050);
    lab.pass(1050);
    for side in 0..2 {
        let (faults, peers, _, flaps) = lab.says(side);
        assert_eq!((faults.as_str(), peers, flaps), ("recv", vec![], 1));
        assert!(!lab.last[side].as_ref().is_some_and(CfmStatus::forwards));
    }
    lab.carries = [true; 2];
    lab.pass(2200);
    assert_eq!((lab.says(0).3, lab.says(1).0), (2, String::new()));
    // Loss that leaves some messages is health, not a fault.
    for _ in 0..100 {
        lab.carries[1] = !lab.carries[1];
        lab.pass(300);
    }
    assert_eq!((lab.says(0).0, lab.says(0).3), (String::new(), 2));
    assert!(lab.says(0).2.is_some_and(|h| (40..60).contains(&h)), "{:?}", lab.says(0));
}

#[test]
fn who_hears_nobody_says_so_and_the_other_believes_it() {
    let mut lab = Lab::new([spec(1), spec(2)]);
    lab.pass(2000);
    lab.carries[1] = false;
    lab.pass(4000);
    assert_eq!((lab.says(0).0.as_str(), lab.says(1).0.as_str()), ("recv", "rdi"));
    lab.carries[1] = true;
    lab.pass(3000);
    assert_eq!(
        (lab.says(0), lab.says(1)),
        ((String::new(), vec![2], lab.says(0).2, 2), (String::new(), vec![1], lab.says(1).2, 2))
    );
}

#[test]
fn states_of_peers_and_changes_of_settings_are_followed() {
    let mut lab = Lab::new([spec(1), CfmSpec { down: true, ..spec(2) }]);
    lab.pass(2000);
    let seen = lab.last.clone().map(|s| s.map(|s| (s.faults.is_empty(), s.remote_up, s.forwards())));
    assert_eq!(seen, [Some((true, Some(false), false)), Some((true, Some(true), true))]);
    lab.set(1, Some(spec(2)));
    lab.pass(2000);
    assert!(lab.last[0].as_ref().is_some_and(|s| s.forwards() && s.remote_up == Some(true)));
    assert_eq!(lab.warnings, 0);
    lab.set(1, Some(CfmSpec { code: 3, interval: Duration::from_millis(100), ..spec(2) }));
    lab.pass(3000);
    assert_eq!((lab.warnings, lab.says(0).0.as_str()), (2, ""), "each complains once, and no path is at fault");
    lab.set(0, None);
    assert_eq!(lab.sides[0].due().map(|_| ()), None::<()>);
    lab.pass(1000);
    assert_eq!(lab.says(1).0, "recv");
}

/// Points that are the same, of another association, or too many.
#[test]
fn odd_messages_are_faults() {
    let mut lab = Lab::new([spec(7), spec(7)]);
    lab.pass(1100);
    assert_eq!(lab.says(0).0, "loopback");
    let mut p = MaintenancePoint::new(spec(1), Duration::ZERO);
    let mut m = Ccm {
        defect: false,
        interval: 0,
        sequence: 1,
        point: 2,
        association: [1; 48],
        interval_ms: 300,
        long_point: 2,
        down: false,
    };
    assert!(p.receive(&m, Duration::ZERO).is_some() && p.receive(&m, Duration::ZERO).is_none());
    m.association = ccm::ASSOCIATION;
    for n in 0..300 {
        m.long_point = 1000 + n;
        p.receive(&m, Duration::ZERO);
    }
    p.poll(|| 0, Duration::from_secs(2));
    assert_eq!((p.status().faults.to_string().as_str(), p.status().peers.len()), ("maid overflow", 256));
    p.force(Some(true));
    assert_eq!(p.status().faults.to_string(), "override");
    assert!(p.text(Duration::from_secs(2)).starts_with("MPID 1: extended fault_override\n  fault: override\n"));
    p.force(Some(false));
    assert!(p.status().faults.is_empty());
}

/// In demand mode packets stand for messages, for a hundred intervals.
#[test]
fn packets_stand_for_messages_in_demand_mode() {
    let demand = |n| CfmSpec { demand: true, ..spec(n) };
    let mut lab = Lab::new([demand(1), demand(2)]);
    lab.pass(5000);
    (lab.carries[1], lab.traffic) = (false, 1);
    lab.pass(20_000);
    assert_eq!((lab.says(0).0.as_str(), lab.says(0).2), ("", Some(0)));
    lab.pass(12_000);
    assert_eq!(lab.says(0).0, "recv", "a hundred intervals without a message");
    lab.carries[1] = true;
    lab.pass(4000);
    assert_eq!(lab.says(0).0, "");
    (lab.carries[1], lab.traffic) = (false, 0);
    lab.pass(4000);
    assert_eq!(lab.says(0).0, "recv", "nothing comes at all");
}

/// Messages of the standard: addresses, tags, points of two bytes.
#[test]
fn messages_are_those_of_the_manual() {
    let mut p = MaintenancePoint::new(
        CfmSpec { extended: false, code: 4, priority: 5, down: false, ..spec(0x1234) },
        Duration::ZERO,
    );
    let first = p.poll(|| 0, Duration::ZERO).expect("at once");
    assert_eq!((first.get(..6), first.get(12..16)), (Some(&ccm::ADDRESS[..]), Some(&[0x81, 0, 0xa0, 0][..])));
    let m = ccm::parse(&first).expect("a message");
    assert_eq!((m.point, m.interval, m.long_point, m.sequence), (0x1234, 4, 0, 1));
    assert_eq!(p.poll(|| 0, Duration::from_millis(299)), None);
    p.configure(CfmSpec { vlan: CcmVlan::Random, ..spec(1) }, 0, Duration::from_millis(299));
    let tags: Vec<_> = (1..20)
        .filter_map(|n| p.poll(|| 0, Duration::from_millis(299 + 300 * n)))
        .map(|f| (f[..6].to_vec(), packet::be16(&f, 14)))
        .collect();
    assert!(tags.iter().all(|(to, _)| *to == ccm::ADDRESS_EXTENDED[..]));
    assert!(tags.windows(2).filter(|w| w[0].1 != w[1].1).count() > 15, "{tags:?}");
}
