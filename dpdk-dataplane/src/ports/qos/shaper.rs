//! Shapers: the queues in which packets of a port wait for their turn, each with a guaranteed rate, a greatest rate,
//! and a priority in what is left (ovs-vswitchd.conf.db(5), `linux-htb` and `linux-hfsc` of QoS).
//!
//! ```text
//!  packets ─► queue 0 ─┐ min ≤ rate ≤ max
//!          ─► queue 7 ─┼────────────────────► the port's rate ─► device
//!          ─► queue 9 ─┘
//! ```
//! A queue below its `min-rate` sends whatever the others do. Between its `min-rate` and its `max-rate` it sends as
//! long as the port has rate left: queues of the lowest priority number first, those of one priority in turn, in
//! proportion to their `min-rate` (deficit round robin). This is the kernel's hierarchical token bucket with one level.
//! The caller never waits: packets for which there is no room are dropped and counted.

use crate::config::qos::{Class, LEAST_BURST, Plan};
use crate::token_bucket::TokenBucket;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// The most packets in a queue: the kernel's default (`txqueuelen`).
const LONGEST: usize = 1000;

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// When the queue was made.
    pub created: Duration,
}

#[derive(Debug)]
struct Queue<P> {
    number: u32,
    class: Class,
    min: TokenBucket,
    max: TokenBucket,
    /// Bytes that it may send before others have their turn.
    turn: i64,
    counts: Counts,
    packets: VecDeque<(usize, P)>,
}

impl<P> Queue<P> {
    fn new(number: u32, class: Class, counts: Counts, now: Duration) -> Queue<P> {
        let (min, max) = (TokenBucket::new(class.min, class.burst, now), TokenBucket::new(class.max, class.burst, now));
        let mut q = Queue { number, class, min, max, turn: 0, counts, packets: VecDeque::new() };
        q.turn = q.quantum();
        q
    }

    fn quantum(&self) -> i64 {
        self.class.quantum() as i64
    }
}

/// The shaper of a port.
#[derive(Debug)]
pub struct Shaper<P> {
    plan: Plan,
    root: TokenBucket,
    queues: Vec<Queue<P>>,
    /// Places in `queues`, by number.
    index: HashMap<u32, usize>,
    /// Places of queues that hold packets, by turn.
    ring: VecDeque<usize>,
    held: usize,
    dropped: u64,
}

impl<P> Shaper<P> {
    /// A shaper with the queues of a plan.
    pub fn new(plan: Plan, now: Duration) -> Shaper<P> {
        let mut s = Shaper {
            root: TokenBucket::new(plan.rate, 0, now),
            plan: Plan { kind: plan.kind, rate: 0, queues: BTreeMap::new() },
            queues: Vec::new(),
            index: HashMap::new(),
            ring: VecDeque::new(),
            held: 0,
            dropped: 0,
        };
        s.change(plan, now);
        s
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Changes the plan. Queues that stay keep their packets and counters; packets of others go to the default queue.
    pub fn change(&mut self, plan: Plan, now: Duration) {
        let burst = plan.queues.values().map(|c| c.burst).max().unwrap_or(LEAST_BURST);
        self.root = TokenBucket::new(plan.rate, burst, now);
        let mut old: HashMap<u32, Queue<P>> = self.queues.drain(..).map(|q| (q.number, q)).collect();
        for (number, class) in &plan.queues {
            let before = old.remove(number);
            let counts = before.as_ref().map_or(Counts { created: now, ..Counts::default() }, |q| q.counts);
            let mut q = Queue::new(*number, *class, counts, now);
            q.packets = before.map(|q| q.packets).unwrap_or_default();
            self.queues.push(q);
        }
        self.index = self.queues.iter().enumerate().map(|(i, q)| (q.number, i)).collect();
        self.plan = plan;
        let homeless = old.into_values().flat_map(|q| q.packets).collect::<Vec<_>>();
        if let Some(q) = self.queues.first_mut() {
            q.packets.extend(homeless);
        }
        self.ring =
            (0..self.queues.len()).filter(|i| self.queues.get(*i).is_some_and(|q| !q.packets.is_empty())).collect();
        self.held = self.queues.iter().map(|q| q.packets.len()).sum();
    }

    /// Queues a packet of so many bytes. `room` is how many more packets may wait in all shapers; a queue that is
    /// longer than this gets none of it, so that no queue takes all the room. False: the packet was dropped.
    pub fn put(&mut self, queue: u32, p: P, bytes: usize, room: usize) -> bool {
        let place = self.index.get(&queue).copied().unwrap_or(0);
        let Some(q) = self.queues.get_mut(place) else { return false };
        if q.packets.len() >= LONGEST.min(room) {
            q.counts.dropped += 1;
            self.dropped += 1;
            return false;
        }
        if q.packets.is_empty() {
            self.ring.push_back(place);
        }
        q.packets.push_back((bytes, p));
        self.held += 1;
        true
    }

    /// Whether a queue may send now, and its rank: whether it needs the port's rate (it is beyond its guaranteed one),
    /// and its priority.
    fn standing(&mut self, place: usize, now: Duration) -> Option<(bool, u32)> {
        let q = self.queues.get_mut(place)?;
        // A packet goes whole or not at all, so a bucket with a part of it lets it go, and owes the rest.
        let open = |b: &mut TokenBucket| {
            b.fill(now);
            b.has_any()
        };
        if !open(&mut q.max) {
            return None;
        }
        let sure = open(&mut q.min);
        let priority = q.class.priority;
        (sure || open(&mut self.root)).then_some((!sure, priority))
    }

    /// Takes the packet whose turn it is, and says of which queue it is; none may go now.
    pub fn take(&mut self, now: Duration) -> Option<(u32, P)> {
        let mut best: Option<((bool, u32), usize)> = None;
        for i in 0..self.ring.len() {
            let Some(place) = self.ring.get(i).copied() else { break };
            if let Some(s) = self.standing(place, now)
                && best.is_none_or(|(b, _)| s < b)
            {
                best = Some((s, i));
            }
        }
        let (_, at) = best?;
        let place = *self.ring.get(at)?;
        let q = self.queues.get_mut(place)?;
        let (n, p) = q.packets.pop_front()?;
        let number = q.number;
        q.min.take(n as u64);
        q.max.take(n as u64);
        self.root.fill(now);
        self.root.take(n as u64);
        self.held -= 1;
        q.counts.packets += 1;
        q.counts.bytes += n as u64;
        q.turn -= n as i64;
        if q.turn <= 0 || q.packets.is_empty() {
            q.turn = (q.turn + q.quantum()).min(q.quantum());
            let empty = q.packets.is_empty();
            self.ring.remove(at);
            if !empty {
                self.ring.push_back(place);
            }
        }
        Some((number, p))
    }

    /// How long until a packet may go; `None` if none waits.
    pub fn wait(&mut self, now: Duration) -> Option<Duration> {
        self.root.fill(now);
        let root = self.root.debt();
        let of = |q: &mut Queue<P>| {
            q.min.fill(now);
            q.max.fill(now);
            q.max.debt().max(q.min.debt().min(root))
        };
        let (ring, queues) = (&self.ring, &mut self.queues);
        ring.iter().filter_map(|i| queues.get_mut(*i).map(of)).min()
    }

    /// How many packets wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many packets were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The queues: number, rates, counters.
    pub fn queues(&self) -> impl Iterator<Item = (u32, Class, Counts)> {
        self.queues.iter().map(|q| (q.number, q.class, q.counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn class(min: u64, max: u64, priority: u32) -> Class {
        Class { min, max, burst: 3000, priority }
    }

    fn plan(rate: u64, queues: &[(u32, Class)]) -> Plan {
        Plan { kind: "linux-htb", rate, queues: queues.iter().copied().collect() }
    }

    /// Bytes that each queue sends in a second, all of them always full.
    fn second(s: &mut Shaper<u32>, numbers: &[u32]) -> Vec<u64> {
        let mut sent = HashMap::new();
        // What was saved up goes first.
        for ms in 0..2000u32 {
            let now = MS * (ms + 1);
            for n in numbers {
                while s.put(*n, *n, 1000, 20) {}
            }
            while let Some((_, n)) = s.take(now) {
                *sent.entry(n).or_insert(0) += if ms >= 1000 { 1000 } else { 0 };
            }
        }
        numbers.iter().map(|n| sent.get(n).copied().unwrap_or(0)).collect()
    }

    fn about(is: u64, wanted: u64) -> bool {
        is.abs_diff(wanted) <= wanted / 50 + 3000
    }

    #[test]
    fn a_queue_has_its_most_and_the_port_its_own() {
        let mut s = Shaper::new(plan(1_000_000, &[(0, class(1500, 1_000_000, 0)), (7, class(1500, 200_000, 0))]), MS);
        let sent = second(&mut s, &[7]);
        assert!(about(sent[0], 200_000), "{sent:?}");
        let mut s = Shaper::new(plan(1_000_000, &[(0, class(1500, 1_000_000, 0)), (7, class(1500, 200_000, 0))]), MS);
        let sent = second(&mut s, &[0, 7]);
        assert!(about(sent[0] + sent[1], 1_000_000) && about(sent[1], 200_000), "{sent:?}");
        assert!(s.dropped() > 0);
    }

    #[test]
    fn what_is_sure_is_had_and_the_rest_goes_by_priority() {
        let queues =
            [(0, class(100_000, 1_000_000, 5)), (1, class(300_000, 1_000_000, 5)), (2, class(50_000, 1_000_000, 9))];
        let mut s = Shaper::new(plan(1_000_000, &queues), MS);
        let sent = second(&mut s, &[0, 1, 2]);
        assert!(about(sent[2], 50_000), "the last has what it is sure of: {sent:?}");
        assert!(about(sent.iter().sum(), 1_000_000), "{sent:?}");
        // 550,000 are left, which the two others share one to three.
        assert!(about(sent[0], 237_500) && about(sent[1], 712_500), "{sent:?}");
        // More sure than there is: what is sure counts.
        let queues = [(0, class(600_000, 600_000, 0)), (1, class(600_000, 600_000, 0))];
        let mut s = Shaper::new(plan(1_000_000, &queues), MS);
        let sent = second(&mut s, &[0, 1]);
        assert!(about(sent[0], 600_000) && about(sent[1], 600_000), "{sent:?}");
    }

    #[test]
    fn none_takes_all_the_room() {
        let mut s = Shaper::new(plan(1_000, &[(0, class(1500, 2000, 0)), (1, class(1500, 2000, 0))]), MS);
        let mut room = 1500;
        for _ in 0..5000 {
            room -= usize::from(s.put(0, 0, 1000, room));
        }
        assert_eq!((s.held(), room), (750, 750));
        assert!(s.put(1, 1, 1000, room), "there is room for others");
        assert_eq!(s.dropped(), 4250);
        assert!(s.put(99, 5, 1000, 1500), "a queue that is not there is the default one");
        assert_eq!(s.queues().map(|(_, _, c)| c.dropped).collect::<Vec<_>>(), [4250, 0]);
    }

    #[test]
    fn it_says_how_long_to_wait() {
        let mut s = Shaper::new(plan(1_000_000, &[(0, class(1500, 100_000, 0))]), MS);
        assert_eq!(s.wait(MS), None);
        for _ in 0..10 {
            assert!(s.put(0, 0, 1000, 100));
        }
        let mut now = MS;
        let (mut sent, mut rounds) = (0, 0);
        while sent < 10 {
            sent += std::iter::from_fn(|| s.take(now)).count();
            now += s.wait(now).unwrap_or_default();
            rounds += 1;
        }
        // Three at once and one owed, then one each ten milliseconds.
        assert!(rounds <= 10, "{rounds}");
        assert!(now >= MS * 60 && now <= MS * 75, "{now:?}");
    }

    #[test]
    fn packets_stay_through_a_change() {
        let mut s = Shaper::new(plan(1_000_000, &[(0, class(1500, 1500, 0)), (7, class(1500, 1500, 0))]), MS);
        assert!(s.put(7, 70, 1000, 100) && s.put(7, 71, 1000, 100) && s.put(0, 1, 1000, 100));
        assert_eq!(s.take(MS), Some((7, 70)));
        s.change(plan(1_000_000, &[(0, class(9_000, 9_000, 0))]), MS);
        assert_eq!(s.held(), 2);
        assert_eq!((s.take(MS), s.take(MS), s.take(MS)), (Some((0, 1)), Some((0, 71)), None));
        let before = s.queues().map(|(n, _, c)| (n, c.packets)).collect::<Vec<_>>();
        s.change(plan(5, &[(0, class(9_000, 9_000, 0)), (3, class(1, 1, 1))]), MS * 2);
        assert_eq!(s.queues().map(|(n, _, c)| (n, c.packets)).collect::<Vec<_>>(), [before[0], (3, 0)]);
    }
}
