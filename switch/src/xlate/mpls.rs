//! Labels of MPLS: pushed, popped and set (OpenFlow 1.5 section 7.2.6, RFC 3032).
//!
//! A label that is pushed or popped changes where all headers are, and which of them are seen: the packet's bytes change at
//! once, and its fields are read again. Such walks are not cached.

use crate::buf::PacketBuf;
use crate::drops::DropReason;
use crate::extract::{self, BOTTOM_OF_STACK, LABEL_FIELDS, LABELS, PACKET_WORDS, label_count};
use crate::xlate::{Kind, Observer, Xlate, prereq_ok};
use openflow_rs::action::{ControllerAction, MplsAction, PacketInReason, is_mpls};
use openflow_rs::{FieldId as F, FlowKey, Prereq};

/// The labels of an IP packet that says nothing else: explicit nulls of IPv4 and IPv6 (RFC 3032 section 2.1).
const IPV4_NULL: u128 = 0;
const IPV6_NULL: u128 = 2;
/// The time to live of a first label on what is no IP.
const TTL: u128 = 64;

/// The entry that a packet's first label begins with: its traffic class is the low three bits of the packet's DSCP, as in
/// Open vSwitch (ovs-actions(7)), and its time to live that of IP.
pub(super) fn first_entry(key: &FlowKey) -> u128 {
    let label = if key.get(F::EthType) == 0x86dd { IPV6_NULL } else { IPV4_NULL };
    let (class, ttl) = match (prereq_ok(key, Prereq::Ip), key.get(F::IpTtl)) {
        (true, 0) => (key.get(F::IpDscp) & 7, TTL),
        (true, ttl) => (key.get(F::IpDscp) & 7, ttl),
        (false, _) => (0, TTL),
    };
    label << 12 | class << 9 | BOTTOM_OF_STACK | ttl
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Executes an action on labels; false ends the list.
    pub(super) fn mpls(&mut self, m: MplsAction) -> bool {
        let there = prereq_ok(&self.packet.key, Prereq::Mpls);
        match m {
            MplsAction::Push(kind) => return self.push_label(kind),
            MplsAction::Pop(kind) => return self.pop_label(kind),
            _ if !there => {}
            MplsAction::SetLabel(n) => self.packet.key.set(F::MplsLabel, n.into()),
            MplsAction::SetTc(n) => self.packet.key.set(F::MplsTc, n.into()),
            MplsAction::SetTtl(n) => self.packet.key.set(F::MplsTtl, n.into()),
            MplsAction::DecTtl => match self.packet.key.get(F::MplsTtl) {
                ttl @ 2.. => self.packet.key.set(F::MplsTtl, ttl - 1),
                _ => {
                    let reason = PacketInReason::InvalidTtl;
                    self.controller(&ControllerAction { reason, ..Default::default() });
                    self.because(DropReason::TtlExceeded);
                    return false;
                }
            },
        }
        true
    }

    fn push_label(&mut self, kind: u16) -> bool {
        let n = label_count(&self.packet.key);
        if n >= LABELS {
            return self.too_many_labels("push");
        }
        let entry = match n {
            0 => first_entry(&self.packet.key),
            _ => self.packet.key.get(F::MplsLse) & !BOTTOM_OF_STACK,
        };
        self.changes_headers(|x| {
            let l3 = x.packet.headers.l3;
            extract::push_label(&mut x.packet.buf, l3, kind, entry as u32)
        });
        self.observer.datapath(|| pushed(entry, kind));
        true
    }

    fn pop_label(&mut self, kind: u16) -> bool {
        let n = label_count(&self.packet.key);
        if n == 0 {
            return true;
        }
        let last = LABEL_FIELDS.last().map_or(0, |f| self.packet.key.get(*f));
        if n == LABELS && last & BOTTOM_OF_STACK == 0 {
            return self.too_many_labels("pop");
        }
        self.changes_headers(|x| {
            let l3 = x.packet.headers.l3;
            extract::pop_label(&mut x.packet.buf, l3, kind);
            true
        });
        self.observer.datapath(|| format!("pop_mpls(eth_type={kind:#x})"));
        true
    }

    /// As in Open vSwitch, nothing more is done with such a packet, and nothing of it leaves.
    pub(super) fn too_many_labels(&mut self, what: &str) -> bool {
        self.observer.tell(Kind::Warning, || format!("{what}_mpls: the packet has more than {LABELS} labels"));
        self.because(DropReason::TooManyLabels);
        false
    }

    /// Changes the packet's headers, and reads its fields again.
    pub(super) fn changes_headers(&mut self, change: impl FnOnce(&mut Self) -> bool) {
        self.observer.side_effect();
        if !self.commit() {
            return;
        }
        self.keep_labels();
        if !change(self) {
            return self.because(DropReason::NoBuffer);
        }
        let mut read = FlowKey::new();
        // Tags that were pushed are seen, however many are looked at in packets that come.
        let pushed = [F::VlanTci, F::Vlan1Tci].iter().filter(|f| self.packet.key.get(**f) != 0).count();
        let tags = self.backer.underlay.local.tags().max(pushed);
        self.packet.headers = extract::extract(self.packet.buf.data(), tags, &mut read);
        let words = |k: &mut FlowKey| k.0[PACKET_WORDS].copy_from_slice(&read.0[PACKET_WORDS]);
        words(&mut self.packet.key);
        words(&mut self.packet.base);
    }
}

/// `push_mpls(…)` in the words of ovs-dpctl(8).
pub(crate) fn pushed(entry: u128, kind: u16) -> String {
    debug_assert!(is_mpls(kind));
    format!("push_mpls({},eth_type={kind:#x})", entry_text(entry))
}

/// An entry in the words of ovs-dpctl(8).
pub(crate) fn entry_text(entry: u128) -> String {
    let (label, tc, bos, ttl) = (entry >> 12, entry >> 9 & 7, entry >> 8 & 1, entry & 0xff);
    format!("label={label},tc={tc},ttl={ttl},bos={bos}")
}
