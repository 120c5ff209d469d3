//! Frames of our own that leave again and again, with the same headers and the same length: those of BFD sessions. Who sends them
//! keeps the way that the first one took.

use super::exec::{holds, passes, serve};
use super::key::PackedKey;
use super::observer::CacheObserver;
use super::recorder::{Learned, Record, Recorder};
use super::{Cache, FlowCache, entry::Entry};
use crate::buf::PacketBuf;
use crate::events::Outputs;
use crate::xlate::{Backer, Xlate};
use std::time::Duration;

/// The way that frames take, if it is known.
#[derive(Debug, Default)]
pub struct KnownWay(Option<Box<Known>>);

#[derive(Debug)]
struct Known {
    entry: Entry,
    /// Where the packet in the frame ends, and the lengths that entries count.
    end: usize,
    lengths: [usize; 2],
}

impl KnownWay {
    /// Hands over where the way begins, for its memory to be fetched.
    #[inline]
    pub fn near(&self, near: impl Fn(&u32)) {
        self.0.iter().for_each(|k| near(&k.entry.path));
    }

    /// Hands over words of what a frame needs of the way, once its beginning is near.
    #[inline]
    pub fn lines(&self, near: impl Fn(&u64)) {
        self.0.iter().for_each(|k| k.entry.lines(&near));
    }
}

impl<P: PacketBuf> Xlate<'_, P, CacheObserver<'_>> {
    /// Begins to record for one flow alone.
    pub(crate) fn record_alone(&mut self, tunnel: bool) {
        let n = self.packet.buf.data().len();
        let spare = self.observer.flowcache.spare.take();
        self.observer.recorder = Some(Recorder::new(&self.packet.base, n, (tunnel, false), spare));
    }
}

impl FlowCache {
    /// Sends a frame of this way; it comes back if the way is stale, or the frame has another length.
    pub(crate) fn send_again<P: PacketBuf>(
        &mut self,
        way: &KnownWay,
        p: P,
        now: Duration,
        out: &mut Outputs<P>,
    ) -> Result<(), P> {
        let Cache { on, table, views, tallies, .. } = &mut self.cache;
        let Some(k) = way.0.as_ref().filter(|k| *on && table.fresh(&k.entry) && p.data().len() == k.lengths[0]) else {
            return Err(p);
        };
        if !passes(k.entry.checks(), views, &k.lengths, now.as_nanos() as u64) {
            return Err(p);
        }
        serve(&k.entry, k.entry.steps(), p, (k.end, k.lengths), (&[], &mut Vec::new()), out, tallies);
        Ok(())
    }

    /// The way that a recorded walk took with a frame of so many bytes.
    pub(crate) fn known_way(
        &mut self,
        backer: &mut Backer,
        key: &PackedKey,
        len: usize,
        record: Option<Record>,
    ) -> KnownWay {
        self.settle(backer);
        let Some((mut rec, drop)) = record else { return KnownWay(None) };
        let lengths = key.lengths(len);
        // Keys hold all TCP flags only once a received packet wants that.
        let usable =
            rec.exact && rec.held.is_none() && !rec.is_metered() && (!rec.flags_read || self.cache.views.exact_flags());
        let held = backer.conntrack.lock();
        let learned = Learned { ct: &held, bridges: &backer.bridges, now: backer.now };
        let entry = if usable { rec.compile(key, &mut self.xcaches, learned, drop) } else { None };
        let at = backer.now.as_nanos() as u64;
        let entry = entry.filter(|e| holds(e, &held, &self.cache.views, lengths, at));
        std::mem::drop(held);
        self.put_back(rec);
        KnownWay(entry.map(|entry| Box::new(Known { entry, end: key.end, lengths })))
    }
}
