//! The packet of a walk: its bytes, its key as received and as wanted, and copies that are saved while others are
//! worked on.

use crate::buf::PacketBuf;
use crate::conntrack::Pass;
use crate::drops::DropReason;
use crate::extract;
use crate::ids::Target;
use crate::tunnel::Outer;
use crate::xlate::controller::Wait;
use crate::xlate::{Observer, Xlate};
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey};
use packet::Headers;

/// The packet of a walk.
pub(crate) struct PacketState<P> {
    pub(crate) buf: P,
    /// Where its headers are.
    pub(crate) headers: Headers,
    /// What the packet's bytes say.
    pub(crate) base: FlowKey,
    /// What they are to say when the packet leaves, with the pipeline's metadata.
    pub(crate) key: FlowKey,
    /// The packet's checksums were verified; changes keep them right.
    pub(crate) checksums_hold: bool,
    /// The connection that the packet has in the zone that it passed last.
    pub(crate) conn: Option<Pass>,
    /// The tunnel that the packet came by; it counts while the key tells of one.
    pub(crate) tunnel: Option<Outer>,
    /// Bytes that the flows of this walk do not count: an Ethernet header that the packet came without.
    pub(crate) uncounted: usize,
    /// How many lists (`clone` and the like) are open that go on with the packet as it was before them.
    pub(crate) clone_depth: u32,
    /// What the packet was before the innermost of them, if its bytes have changed since.
    pub(crate) saved_packet: Option<Box<SavedPacket<P>>>,
    /// How many buckets are open: they go on with the packet's labels as they were, but with translated addresses.
    pub(crate) bucket_depth: u32,
    /// What the packet was before the innermost of them, if its labels have changed since.
    pub(crate) labels_before: Option<Box<SavedPacket<P>>>,
    /// The queue of the ports that the packet leaves by.
    pub(crate) queue: Option<u16>,
    /// A bit for each of the bridge's mirrors that has its copy.
    pub(crate) mirrored: u32,
    /// Where the packet itself leaves when the walk has ended.
    pub(crate) target: Option<Target>,
}

impl<P: PacketBuf> PacketState<P> {
    /// A packet whose headers are not parsed yet, and whose keys are empty.
    #[inline(always)]
    pub(super) fn empty(buf: P) -> PacketState<P> {
        PacketState {
            buf,
            headers: Headers::default(),
            base: FlowKey::new(),
            key: FlowKey::new(),
            checksums_hold: false,
            conn: None,
            tunnel: None,
            clone_depth: 0,
            saved_packet: None,
            bucket_depth: 0,
            labels_before: None,
            uncounted: 0,
            queue: None,
            mirrored: 0,
            target: None,
        }
    }

    fn restore(&mut self, k: SavedPacket<P>) {
        (self.buf, self.headers, self.base, self.checksums_hold) = (k.buf, k.headers, k.base, k.checksums_hold);
    }

    /// Writes what the key wants to the packet; false if there is no room for its headers.
    pub(crate) fn write_back(&mut self) -> bool {
        extract::commit(&mut self.buf, &mut self.headers, &mut self.base, &self.key)
    }
}

/// A packet before bytes of it changed that are in no field of the key.
pub(crate) struct SavedPacket<P> {
    buf: P,
    headers: Headers,
    base: FlowKey,
    checksums_hold: bool,
}

/// What is saved of a packet outside a copy of it.
pub(super) struct Outside<P> {
    packet: Option<Box<SavedPacket<P>>>,
    labels: Option<Box<SavedPacket<P>>>,
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Writes pending changes to the packet.
    pub(crate) fn commit(&mut self) -> bool {
        self.observer.commits(&self.packet.base, &self.packet.key);
        if O::TRACES {
            // It has been told.
            self.packet.base.set(F::PktMark, self.packet.key.get(F::PktMark));
        }
        let ok = self.packet.write_back();
        if !ok {
            self.because(DropReason::NoBuffer);
        }
        ok
    }

    /// Executes a list, as `body` does, on a copy of the packet with a copy of its action set, which is executed there.
    pub(crate) fn cloned(&mut self, list: &[Action], body: impl FnOnce(&mut Self)) {
        let (set, mut exit) = (self.pipeline.action_set.clone(), false);
        // As in Open vSwitch: if the list cannot be undone, the packet has its tags written before it, and restored
        // afterwards; else tags are written when it leaves, which matters where it is truncated.
        let apart = !self.is_last() && !O::TRACES && !reversible(list);
        if apart {
            self.settle_tags();
        }
        self.isolated(|x| {
            x.pipeline.action_set = set;
            body(x);
            match &x.pipeline.frozen {
                None => {
                    x.carry_out_set();
                    exit = x.pipeline.exit && !x.pipeline.metered;
                }
                // As in Open vSwitch, a packet that waits for its controller is forgotten behind the clone.
                Some(frozen) => exit = matches!(frozen.wait, Wait::Controller(..)),
            }
        });
        self.pipeline.metered = false;
        if apart {
            self.settle_tags();
        }
        // As in Open vSwitch, `exit` ends what follows the list, too.
        self.pipeline.exit |= exit;
    }

    /// Writes the tags that the packet is to have: where it is cut, they count.
    pub(super) fn settle_tags(&mut self) {
        if !extract::tags(&self.packet.key).eq(extract::tags(&self.packet.base)) {
            self.commit();
        }
    }

    /// Runs `body`, and restores packet and pipeline afterwards.
    pub(crate) fn isolated(&mut self, body: impl FnOnce(&mut Self)) {
        if self.is_last() {
            self.segment_ends();
            self.observer.scope_begins();
            body(self);
            self.thaw();
            self.observer.scope_ends();
            self.segment_ends();
            self.pipeline.action_set.clear();
            self.pipeline.exit = false;
            return;
        }
        let last = std::mem::take(&mut self.pipeline.last);
        let saved = (
            self.packet.key.clone(),
            self.pipeline.stack.clone(),
            std::mem::take(&mut self.pipeline.action_set),
            self.pipeline.bridge,
            self.pipeline.table,
            self.pipeline.flow,
            self.pipeline.exit,
            self.packet.mirrored,
        );
        let (pass, queue) = (self.packet.conn, self.packet.queue);
        let outside = self.copy_begins();
        self.segment_ends();
        let translations = self.observer.translations();
        self.observer.scope_begins();
        body(self);
        self.thaw();
        self.observer.scope_ends();
        self.segment_ends();
        self.observer.restores(translations);
        self.copy_ends(outside);
        let mirrored = self.packet.mirrored;
        let bridge = self.pipeline.bridge;
        let (at, packet) = (&mut self.pipeline, &mut self.packet);
        (packet.key, at.stack, at.action_set, at.bridge, at.table, at.flow, at.exit, packet.mirrored) = saved;
        (packet.conn, packet.queue, at.last) = (pass, queue, last);
        // Mirror copies made within the same bridge stay made.
        if bridge == self.pipeline.bridge {
            self.packet.mirrored |= mirrored;
        }
    }

    /// What follows is done to a copy of the packet, as far as bytes are concerned that are in no field of the key.
    pub(super) fn copy_begins(&mut self) -> Outside<P> {
        self.packet.clone_depth += 1;
        Outside { packet: self.packet.saved_packet.take(), labels: self.packet.labels_before.take() }
    }

    /// The copy is done with: restores these bytes.
    pub(super) fn copy_ends(&mut self, outside: Outside<P>) {
        self.packet.clone_depth -= 1;
        self.packet.labels_before = outside.labels;
        if let Some(k) = std::mem::replace(&mut self.packet.saved_packet, outside.packet) {
            self.packet.restore(*k);
        }
    }

    /// Saves the packet before bytes change that are in no field of the key: they are restored when the copy ends.
    pub(crate) fn keep_bytes(&mut self) {
        if self.packet.clone_depth == 0 || self.packet.saved_packet.is_some() {
            return;
        }
        self.observer.side_effect();
        self.packet.saved_packet = self.saved();
    }

    /// Saves the packet before its labels change: they are restored when the copy ends, or the bucket.
    pub(super) fn keep_labels(&mut self) {
        self.keep_bytes();
        if self.packet.bucket_depth > 0 && self.packet.labels_before.is_none() {
            self.packet.labels_before = self.saved();
        }
    }

    /// The packet as it is now.
    fn saved(&mut self) -> Option<Box<SavedPacket<P>>> {
        let Some(buf) = self.packet.buf.duplicate() else {
            self.because(DropReason::NoBuffer);
            return None;
        };
        let PacketState { headers, base, checksums_hold, .. } = &self.packet;
        Some(Box::new(SavedPacket { buf, headers: *headers, base: base.clone(), checksums_hold: *checksums_hold }))
    }

    /// Runs `body`, and restores the packet's labels afterwards, if anything comes behind it.
    pub(super) fn in_bucket(&mut self, body: impl FnOnce(&mut Self)) {
        if self.is_last() {
            return body(self);
        }
        let outside = self.packet.labels_before.take();
        self.packet.bucket_depth += 1;
        body(self);
        self.packet.bucket_depth -= 1;
        if let Some(k) = std::mem::replace(&mut self.packet.labels_before, outside) {
            self.packet.restore(*k);
        }
    }

    /// Runs `body` on the first `n` bytes of the packet, which is told as one of at most `told` bytes.
    pub(crate) fn shortened(&mut self, (n, told): (usize, usize), body: impl FnOnce(&mut Self)) {
        if !self.commit() {
            return;
        }
        let len = self.packet.buf.data().len();
        self.observer.compares_length(len, n);
        if len <= n {
            return self.not_last(body);
        }
        let Some(mut short) = self.packet.buf.duplicate() else { return self.because(DropReason::NoBuffer) };
        short.truncate(n);
        let whole = std::mem::replace(&mut self.packet.buf, short);
        let checked = std::mem::take(&mut self.packet.checksums_hold);
        self.observer.enters_cut(&self.packet.base, (n, told));
        self.not_last(body);
        self.observer.leaves_packet();
        (self.packet.buf, self.packet.checksums_hold) = (whole, checked);
    }

    /// Runs `body` on the packet's new bytes as on another packet, which is not needed afterwards.
    pub(super) fn anew(&mut self, body: impl FnOnce(&mut Self)) {
        self.packet.key.0.fill(0);
        self.packet.headers =
            extract::extract(self.packet.buf.data(), self.backer.underlay.local.tags(), &mut self.packet.key);
        self.packet.base.clone_from(&self.packet.key);
        self.observer.enters_packet(&self.packet.base);
        (self.packet.conn, self.packet.checksums_hold) = (None, false);
        self.segment_ends();
        body(self);
        self.segment_ends();
        self.observer.leaves_packet();
    }

    /// Runs `body` on another packet.
    pub(crate) fn with_packet(&mut self, p: P, body: impl FnOnce(&mut Self)) {
        if self.is_last() {
            self.packet.buf = p;
            return self.anew(body);
        }
        let mut key = FlowKey::new();
        let h = extract::extract(p.data(), self.backer.underlay.local.tags(), &mut key);
        let pkt = std::mem::replace(&mut self.packet.buf, p);
        let saved = (
            self.packet.headers,
            std::mem::replace(&mut self.packet.base, key.clone()),
            std::mem::replace(&mut self.packet.key, key),
        );
        self.packet.headers = h;
        self.segment_ends();
        self.observer.enters_packet(&self.packet.base);
        let known = (self.packet.conn.take(), std::mem::take(&mut self.packet.checksums_hold));
        let around = (std::mem::take(&mut self.packet.clone_depth), self.packet.saved_packet.take());
        self.not_last(body);
        self.segment_ends();
        (self.packet.conn, self.packet.checksums_hold) = known;
        (self.packet.clone_depth, self.packet.saved_packet) = around;
        self.observer.leaves_packet();
        self.packet.buf = pkt;
        (self.packet.headers, self.packet.base, self.packet.key) = saved;
    }
}

/// Whether the effect of a list on the packet can be undone by restoring fields. Nested clones restore what they
/// change.
pub(crate) fn reversible(list: &[Action]) -> bool {
    let lasts =
        |a: &Action| matches!(a, Action::Ct(_) | Action::Meter(_) | Action::Nat(_) | Action::OutputTrunc { .. });
    !list.iter().any(lasts)
}
