//! Branches of a trace: `clone`, both outcomes of `check_pkt_larger`, samples.

use super::Tracer;
use crate::buf::PacketBuf;
use crate::dpctl::without_last_copy;
use crate::xlate::packet::reversible;
use crate::xlate::{Kind, Observer, Xlate};
use openflow_rs::Subfield;
use openflow_rs::action::{Action, SampleAction};

impl<P: PacketBuf> Xlate<'_, P, Tracer> {
    /// `clone` in a trace.
    pub(crate) fn clone_told(&mut self, list: &[Action]) {
        let last = self.observer.last;
        if last || reversible(list) {
            return self.cloned(list, |x| x.actions(list));
        }
        if !self.commit() {
            return;
        }
        let set = self.pipeline.action_set.clone();
        let done = self.branch(|x| {
            x.pipeline.action_set = set;
            x.cloned(list, |x| x.actions(list));
        });
        if !done.is_empty() {
            self.observer.datapath(|| format!("clone({})", done.join(",")));
        }
    }

    /// `check_pkt_larger` in a trace: what follows it in its list runs for both outcomes.
    pub(crate) fn larger_told(&mut self, len: u16, dst: &Subfield, rest: &[Action]) {
        if !self.commit() {
            return;
        }
        let larger = self.wire_len() > usize::from(len);
        let [gt, le] = [true, false].map(|outcome| {
            let events = self.out.events.len();
            let done = self.branch(|x| {
                x.set_sub(dst, outcome.into());
                if rest.is_empty() {
                    x.observer.tell(Kind::Action, || "drop".into());
                }
                x.actions(rest);
                x.finish();
            });
            if outcome != larger {
                // What the packet itself does not do reaches nobody.
                self.out.events.truncate(events);
            }
            if done.is_empty() { "drop".into() } else { done.join(",") }
        });
        self.observer.datapath(|| format!("check_pkt_len(size={len},gt({gt}),le({le}))"));
    }

    /// Runs `body` and restores everything; returns the datapath actions of the branch.
    fn branch(&mut self, body: impl FnOnce(&mut Self)) -> Vec<String> {
        let Some(packet) = self.packet.buf.duplicate() else { return Vec::new() };
        let t = &mut self.observer;
        let (outside, queue) = (std::mem::take(&mut t.datapath), t.queue);
        let before = (self.packet.headers, self.packet.base.clone(), self.packet.checksums_hold);
        self.isolated(body);
        self.packet.buf = packet;
        (self.packet.headers, self.packet.base, self.packet.checksums_hold) = before;
        let t = &mut self.observer;
        t.queue = queue;
        without_last_copy(std::mem::replace(&mut t.datapath, outside))
    }

    /// `sample` in a trace: no packet is chosen.
    pub(crate) fn sample_told(&mut self, s: &SampleAction) {
        let collects = self.backer.bridges.get(self.pipeline.bridge).is_some_and(|b| !b.collectors.is_empty());
        if !collects || !self.commit() {
            return;
        }
        let sampler = self.sampler(s);
        self.observer.datapath(|| sampler.text());
    }
}
