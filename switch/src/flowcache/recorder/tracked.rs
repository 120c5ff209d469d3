//! What a walk finds in connection tracking, in groups and by translation: what templates are made of.

use super::{Recorder, tuple};
use crate::conntrack::{ConnSnapshot, Expected, Outcome, Tuple, Zone};
use crate::extract::tuple_fields;
use crate::flowcache::ct_template::{CHOICES, Choice, said, said_quoting};
use crate::flowcache::megaflow::Layer;
use crate::flowcache::{Condition, Step};
use crate::xlate::quoted;
use crate::xlate::selection::Selection;
use openflow_rs::{FieldId as F, FlowKey, GroupId};
use packet::ethertype;

impl Recorder {
    /// The walk is at the packet that a template is of: as it arrived, or out of its tunnel.
    fn is_here(&self) -> bool {
        let arrived = if self.tunnel { Layer::Inner } else { Layer::Received };
        [arrived, Layer::Translated].contains(&self.looked.layer)
    }

    /// Notes that a `select` group chose a bucket for the packet, which has this key. There is a template of packets that
    /// choose by the tuple that they came with.
    pub(crate) fn chooses(&mut self, (group, bucket): (GroupId, usize), selection: Selection, key: &FlowKey) {
        let whole =
            [ethertype::IPV4, ethertype::IPV6].contains(&(key.get(F::EthType) as u16)) && key.get(F::IpFrag) == 0;
        let quotes = quoted::is_error(key.get(F::IpProto) as u8, key.get(F::IcmpType) as u8);
        let own = self.is_here() && self.translated.is_empty() && self.tuple == tuple(key) && !quotes;
        self.looked.only &= own && whole && selection.is_of_tuple() && self.choices.len() < CHOICES;
        if self.looked.only {
            self.looked.field(F::IpProto);
            self.choices.push(Choice { group, selection, bucket });
        }
    }

    /// Notes what a pass through a zone found, for a template. False if there can be no template. `quotes`: it is an ICMP
    /// error, whose tuple is that of the packet that it quotes.
    pub(crate) fn expects(&mut self, zone: Zone, (t, quotes): (&Tuple, bool), outcome: Outcome) -> bool {
        let here = self.is_here();
        let own = if quotes { self.tuple.destination() == t.dst } else { self.tuple == said(t) };
        // Whether it finds the connection that was just opened depends on the translation that was chosen.
        let opened = self.passes.iter().any(|p| p.zone == zone && matches!(p.outcome, Outcome::Opens(_)));
        if !self.looked.only || !here || !own || !t.has_templates() || opened {
            self.looked.only = false;
            return false;
        }
        self.quotes |= quotes;
        if quotes || t.is_icmp() {
            // A question and its answer find something else, and so does an error.
            [F::IpProto, F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.looked.field(f));
        }
        let before = self.passes.iter().rposition(|p| p.zone == zone);
        let same = |i: &usize| !self.passes.iter().skip(*i).any(|p| p.outcome.translates());
        // A missing connection is looked up once per tuple.
        match before.filter(same).filter(|_| !matches!(outcome, Outcome::Has { .. })) {
            Some(_) if matches!(outcome, Outcome::None | Outcome::Unrelated) => return true,
            Some(i) => {
                self.passes.remove(i);
                self.meters.pass_goes(i);
            }
            None => {}
        }
        self.passes.push(Expected { zone, outcome });
        true
    }

    /// Notes that a packet is invalid as its key says. False if it was not so before.
    pub(crate) fn is_malformed(&mut self) -> bool {
        [F::IpProto, F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.looked.field(f));
        self.passes.is_empty() && self.is_here()
    }

    /// Notes that a packet with this key was invalid by itself in a zone, for a template. False if there can be no template.
    pub(crate) fn expects_broken(&mut self, zone: Zone, key: &FlowKey) -> bool {
        let proto = key.get(F::IpProto) as u8;
        let t = Tuple {
            v6: key.get(F::EthType) as u16 == ethertype::IPV6,
            proto,
            icmp_type: key.get(F::IcmpType) as u8,
            icmp_code: key.get(F::IcmpCode) as u8,
            src: 0,
            dst: 0,
            sport: 0,
            dport: 0,
        };
        // Where flows have written a port, one of 0 on arrival says nothing.
        self.looked.only &= self.is_here()
            && key.get(F::IpFrag) == 0
            && t.has_templates()
            && self.tuple == tuple(key)
            && self.passes.iter().all(|p| p.outcome == Outcome::Broken);
        if self.looked.only {
            // Which checksums there are.
            self.looked.field(F::IpProto);
            if t.is_icmp() {
                [F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.looked.field(f));
            }
            self.passes.push(Expected { zone, outcome: Outcome::Broken });
        }
        self.looked.only
    }

    /// Whether packets that match the last pass through a zone are translated in the same way.
    pub(crate) fn expects_translation(&self, zone: Zone) -> bool {
        let last = self.passes.iter().rfind(|p| p.zone == zone);
        last.is_some_and(|p| match &p.outcome {
            Outcome::None | Outcome::Unrelated | Outcome::Broken => false,
            Outcome::Opens(_) | Outcome::Again { .. } => true,
            Outcome::Has { nat, .. } => *nat,
        })
    }

    /// Notes that a pass found the connection of the one before, and asked for its translation as that did not. False if
    /// there can be no template.
    pub(crate) fn expects_again(&mut self, zone: Zone, t: &Tuple, state: u32, translates: bool) -> bool {
        let before = self.passes.last();
        self.looked.only &= self.is_here()
            && self.tuple == said(t)
            && before.is_some_and(|p| p.zone == zone && matches!(p.outcome, Outcome::Has { nat: false, .. }));
        if self.looked.only {
            self.passes.push(Expected { zone, outcome: Outcome::Again { state, translates } });
        }
        self.looked.only
    }

    /// The packet's connection in a zone gets this mark and label.
    pub(crate) fn marked(&mut self, zone: Zone, new: (u32, u128)) {
        let of = |p: &&mut Expected| p.zone == zone && !matches!(p.outcome, Outcome::Again { .. });
        match self.passes.iter_mut().rfind(of).map(|p| &mut p.outcome) {
            Some(Outcome::Opens(c)) => (c.mark, c.label) = new,
            Some(Outcome::Has { mark, label, bits, .. }) => {
                self.looked.only &= (*mark, *label) == new;
                bits.all = true;
            }
            _ => self.looked.only = false,
        }
    }

    /// The packet, which says `base`, is translated.
    pub(crate) fn translate(&mut self, base: &FlowKey, pair: [Tuple; 2]) {
        self.sync(base);
        self.steps.push(Step::Translate { quoting: self.quotes });
        let [_, to] = &pair;
        let fields = tuple_fields(to.v6);
        if self.quotes {
            self.tuple = said_quoting(self.tuple, &pair);
            let [src, dst, ..] = fields;
            quoted::sender(&pair).into_iter().for_each(|hidden| self.has.set(src, hidden));
            self.has.set(dst, to.dst);
        } else {
            self.tuple = said(to);
            for (f, v) in fields.into_iter().zip(self.tuple.0) {
                self.has.set(f, v);
            }
            if to.is_icmp() {
                // It is a part of the translation.
                self.icmp_id = Some(to.sport);
            }
        }
        self.looked.layer = Layer::Translated;
        self.translated.push(pair);
        self.said.push(self.tuple);
    }

    /// Notes the check for a pass through connection tracking; `before` and `after` are the connections of the tuple.
    /// False if the pass changed something.
    pub(crate) fn tracked(
        &mut self,
        zone: Zone,
        tuple: &Tuple,
        before: Option<ConnSnapshot>,
        after: Option<ConnSnapshot>,
    ) -> bool {
        match (before, after) {
            (Some(a), Some(b)) if a == b => {
                self.conditions.push(Condition::Connection(b));
            }
            (None, None) => self.conditions.push(Condition::NoConnection { zone, tuple: *tuple }),
            _ => return false,
        }
        true
    }
}
