//! What the switch tells of its cached flows: dumps, the flows of OpenFlow behind them, and the log.

use super::Switch;
use crate::dpctl;
use crate::flowcache::FlowCache;
use crate::flowcache::dump::{DumpPart, Installed, Met, PUSH, Path, Shown};
use crate::trace;
use std::collections::HashSet;
use std::time::Duration;

/// Most sections of flows of which it is known that the log has them.
const MOST_TOLD: usize = 16_384;

impl Switch {
    /// The flows of the cache.
    pub fn cached_flows(&self) -> impl Iterator<Item = Shown> {
        let FlowCache { cache, ct_templates, .. } = &self.flowcache;
        let now = self.backer.now;
        cache.lines(now).map(|f| self.with_example(f)).chain(ct_templates.lines(cache, now))
    }

    /// The flows of the cache from a place on, 0 at first, until there is enough for one go. Those that are exact and
    /// counted as `known` flows are ([`Shown::counted_by`]) are left out.
    pub fn dump_part(&self, from: usize, known: &HashSet<Path>) -> DumpPart {
        let part = self.flowcache.cache.dump(from, known, self.backer.now);
        DumpPart { flows: part.flows.into_iter().map(|f| self.with_example(f)).collect(), ..part }
    }

    /// The flows of packets that find the same in connection tracking, or that groups choose the same for: only their
    /// sections can be told.
    pub fn whole_ways(&self) -> Vec<Shown> {
        self.flowcache.ct_templates.ways(&self.flowcache.cache, self.backer.now).collect()
    }

    /// A flow of a fast path with what this switch knows of its packets.
    pub fn with_example(&self, f: Shown) -> Shown {
        let known = if f.exact || f.moved { None } else { self.flowcache.xcaches.example(f.path) };
        Shown { example: f.example.or(known), ..f }
    }

    /// A flow of this switch's cache, or of a fast path's, in the format of ovs-dpctl(8). Packets and bytes are those
    /// of all flows that share its xlate cache; the time is that of the flow's connection, if it has one.
    pub fn tell_flow(&self, f: &Shown, now: Duration) -> String {
        let paths = std::iter::once(&f.path).chain(&f.more_paths);
        let totals = paths.filter_map(|p| self.flowcache.xcaches.total(p.0, p.1));
        let ([packets, bytes], at) = totals.fold(([0; 2], Duration::ZERO), |(n, last), ([packets, bytes], at)| {
            ([n[0] + packets, n[1] + bytes], last.max(at))
        });
        let used = match f.used.filter(|u| *u > Duration::ZERO).or((packets > 0).then_some(at)) {
            Some(at) => format!("{:.3}s", now.saturating_sub(at).as_secs_f64()),
            None => "never".into(),
        };
        let actions = self.tell_actions(f);
        format!("{}, packets:{packets}, bytes:{bytes}, used:{used}, actions:{actions}", f.packets)
    }

    /// What Open vSwitch's datapath would have in place of a flow: where its packets pass connection tracking or are
    /// hashed, a flow for each way to the next recirculation ([`Shown::is_whole_way`]); else the flow as it is.
    pub fn sections(&mut self, f: &Shown) -> Vec<Shown> {
        trace::sections::of(&mut self.backer, f)
    }

    /// What a flow's packets met in the tables of OpenFlow, in this order; none if the flow is stale.
    pub fn met_by(&self, f: &Shown) -> Option<Vec<Met>> {
        let (place, generation) = f.path;
        if let Some(met) = &f.met {
            self.flowcache.xcaches.total(place, generation)?;
            return Some(met.to_vec());
        }
        Some(self.flowcache.xcaches.counts(place, generation)?.iter().filter_map(Met::of).collect())
    }

    /// What a flow does, in the format of ovs-dpctl(8).
    pub fn tell_actions(&self, f: &Shown) -> String {
        let tell = |text: String, p| text.replacen(PUSH, &dpctl::pushed_headers(&self.backer, p), 1);
        f.pushes.iter().fold(f.actions.clone(), tell)
    }

    /// Whether flows that are put into the cache, or sent to a fast path's, are noted from now on, for
    /// [`Switch::take_installed`]. Those that a fast path makes by itself of a template are not.
    pub fn note_installed(&mut self, on: bool) {
        self.flowcache.cache.installed = on.then(Vec::new);
        self.flowcache.told.clear();
    }

    /// Whether such flows are noted.
    pub fn notes_installed(&self) -> bool {
        self.flowcache.cache.installed.is_some()
    }

    /// The flows that were noted since the last call.
    pub fn take_installed(&mut self) -> Vec<Installed> {
        let list = self.flowcache.cache.installed.as_mut().map(std::mem::take).unwrap_or_default();
        let ways: HashSet<Path> = match list.iter().any(|i| i.flow.exact) {
            true => self.whole_ways().iter().map(Shown::counted_by).collect(),
            false => HashSet::new(),
        };
        let mut out = Vec::new();
        // A flow of one connection is told of as that of all which are like it.
        for mut i in list.into_iter().filter(|i| !(i.flow.exact && ways.contains(&i.flow.path))) {
            i.flow = self.with_example(i.flow);
            if !i.flow.is_whole_way() {
                out.push(i);
                continue;
            }
            if self.flowcache.told.len() >= MOST_TOLD {
                self.flowcache.told.clear();
            }
            for flow in self.sections(&i.flow) {
                let old = self.flowcache.told.insert(flow.packets.clone(), flow.clone());
                if old.as_ref().is_none_or(|o| o.actions != flow.actions) {
                    out.push(Installed { flow, old });
                }
            }
        }
        out
    }
}
