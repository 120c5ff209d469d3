//! Flows that flows learned and that end when they are not used, such as those that keep a client at its backend: told
//! to other chassis and taken from them, so that they outlive this one.
//!
//! Each chassis has its own copy, with its own time. What another one tells is a flow and how long ago it was used; the
//! later use counts. So a flow ends once no chassis has used it for its timeout, and nobody has to tell that.

use super::{Bridge, validate};
use crate::classifier::Rule;
use openflow_rs::{FlowMod, FlowModCommand, TableId};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Bridge {
    /// Whether a flow here learns such flows.
    pub(crate) fn learns(&self, f: &FlowMod) -> bool {
        self.users.learns(f.table, f.cookie)
    }

    fn find(&self, table: TableId, f: &FlowMod) -> Option<&Arc<Rule>> {
        self.tables.get(table.index())?.find(&f.matches, f.priority)
    }

    /// How many flows with timeouts there are, learned ones among them.
    pub fn timed_flows(&self) -> usize {
        self.timed.len()
    }

    /// Learned flows with an idle timeout, each with the time of its last use. `places` selects from the list of all
    /// flows with timeouts; places change when flows end.
    pub fn learned(&self, places: Range<usize>) -> impl Iterator<Item = (Arc<Rule>, Duration)> + '_ {
        let there = |r: &Arc<Rule>| {
            let t = self.tables.get(r.table.index());
            t.and_then(|t| t.find(&r.matches, r.priority)).is_some_and(|x| Arc::ptr_eq(x, r))
        };
        let all = self.timed.get(places).unwrap_or_default().iter().filter_map(Weak::upgrade);
        let learned = all.filter(move |r| r.idle_timeout() != 0 && self.users.learns(r.table, r.cookie) && there(r));
        learned.map(|r| {
            let (_, _, used) = r.counters();
            (r, used)
        })
    }

    /// Takes a flow that another chassis learned and last used `idle` ago. False if no flow here learns such flows, or
    /// if its timeout has passed.
    pub fn take_learned(&mut self, f: &FlowMod, idle: Duration, now: Duration) -> bool {
        let lasts = Duration::from_secs(f.idle_timeout.into());
        if f.command != FlowModCommand::Add || !self.learns(f) || idle >= lasts || validate::flow(self, f).is_err() {
            return false;
        }
        let used = now.saturating_sub(idle);
        if let Some(r) = self.find(f.table, f) {
            let (_, _, own) = r.counters();
            if own >= used {
                return true;
            }
            if *r.actions == *f.actions && (r.cookie, r.idle_timeout()) == (f.cookie, f.idle_timeout) {
                r.touch(used);
                return true;
            }
        }
        if self.add_flow(f, now).is_err() {
            return false;
        }
        if let Some(r) = self.find(f.table, f) {
            r.touch(used);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::text::parse_flow;

    const TEACHER: &str = "table=0,priority=1,ip actions=learn(table=9,cookie=0x77,idle_timeout=60,eth_type=0x800,\
                           NXM_OF_IP_SRC[],load:0x2->NXM_NX_REG0[0..15])";

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn learned_flow(backend: u8) -> FlowMod {
        let text = format!(
            "table=9,cookie=0x77,priority=32768,idle_timeout=60,ip,nw_src=10.0.0.1 actions=load:{backend}->NXM_NX_REG0[0..15]"
        );
        parse_flow(&text).expect("a flow")
    }

    fn uses(b: &Bridge) -> Vec<(String, Duration)> {
        b.learned(0..b.timed_flows()).map(|(r, used)| (format!("{:?}", r.actions), used)).collect()
    }

    #[test]
    fn the_later_use_of_a_learned_flow_counts() {
        let mut b = Bridge::new("br0", 1);
        let f = learned_flow(2);
        assert!(!b.take_learned(&f, seconds(1), seconds(100)), "nothing here learns such flows");
        b.flow_mod(&parse_flow(TEACHER).expect("a flow"), seconds(90)).expect("added");
        assert!(uses(&b).is_empty(), "a flow of a controller is not learned");
        assert!(!b.take_learned(&f, seconds(60), seconds(100)), "its time is over");
        assert!(b.take_learned(&f, seconds(10), seconds(100)));
        assert_eq!(uses(&b).len(), 1);
        assert_eq!(uses(&b)[0].1, seconds(90));
        assert!(b.take_learned(&f, seconds(20), seconds(105)), "an earlier use changes nothing");
        assert_eq!(uses(&b)[0].1, seconds(90));
        assert!(b.take_learned(&f, seconds(5), seconds(106)));
        assert_eq!(uses(&b)[0].1, seconds(101));
        // Both chassis have sent the client somewhere: the later one counts.
        let before = uses(&b)[0].0.clone();
        assert!(b.take_learned(&learned_flow(3), seconds(9), seconds(109)));
        assert_eq!(uses(&b), [(before.clone(), seconds(101))]);
        assert!(b.take_learned(&learned_flow(3), seconds(1), seconds(110)));
        assert!(uses(&b).len() == 1 && uses(&b)[0].0 != before && uses(&b)[0].1 == seconds(109));
        b.expire(seconds(168));
        assert_eq!(uses(&b).len(), 1);
        b.expire(seconds(169));
        assert!(uses(&b).is_empty());
    }

    /// Once no flow is left that learns them, such flows are not taken.
    #[test]
    fn what_learns_is_counted() {
        let mut b = Bridge::new("br0", 1);
        let teacher = parse_flow(TEACHER).expect("a flow");
        for _ in 0..2 {
            b.flow_mod(&teacher, seconds(1)).expect("added");
        }
        assert!(b.learns(&learned_flow(2)));
        b.flow_mod(&parse_flow("table=0,priority=1,ip actions=drop").expect("a flow"), seconds(1)).expect("replaced");
        assert!(!b.learns(&learned_flow(2)));
        b.flow_mod(&teacher, seconds(1)).expect("replaced");
        b.flow_mod(&FlowMod { command: FlowModCommand::Delete, ..Default::default() }, seconds(1)).expect("deleted");
        assert!(!b.learns(&learned_flow(2)));
    }
}
