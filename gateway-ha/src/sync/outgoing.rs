//! A stream to a peer, as its sender sees it.

use super::codec::Record;
use super::{Lags, VERSION};
use std::collections::VecDeque;
use std::time::Duration;

/// What follows from a peer's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Nothing.
    Nothing,
    /// The peer listens: zones and a dump follow.
    Start,
    /// The peer wants a dump.
    Again,
    /// The peer wants what is in this slot.
    Want(u32),
    /// The peer has everything until this fence.
    Fenced(u64),
    /// The peer is another chassis than the one that was called.
    Wrong,
}

/// The state of a stream.
#[derive(Debug)]
pub struct Outgoing {
    own: String,
    boot: u64,
    peer: String,
    welcomed: bool,
    /// Fences on their way, with the time at which each was put up.
    fences: VecDeque<(u64, Duration)>,
    /// The time from the last fence until its answer: how old what the peer lacks may be.
    pub lag: Option<Duration>,
    /// What that was for each fence.
    pub lags: Lags,
    /// Dumps that the peer asked for.
    pub again: u64,
}

impl Outgoing {
    /// A stream from this chassis to a peer. `boot` differs after each start.
    pub fn new(own: &str, boot: u64, peer: &str) -> Outgoing {
        let (fences, lags) = (VecDeque::new(), Lags::default());
        Outgoing { own: own.into(), boot, peer: peer.into(), welcomed: false, fences, lag: None, lags, again: 0 }
    }

    /// What is sent first.
    pub fn hello(&self) -> Record {
        Record::Hello(VERSION, self.boot, self.own.clone())
    }

    /// A fence was put up at this time.
    pub fn fence(&mut self, n: u64, now: Duration) {
        self.fences.push_back((n, now));
    }

    /// How old what the peer lacks may be: what it was at the last answer, or longer if that is overdue.
    pub fn lag_at(&self, now: Duration) -> Option<Duration> {
        let waits = self.fences.front().map_or(Duration::ZERO, |(_, at)| now.saturating_sub(*at));
        self.lag.map(|l| l.max(waits))
    }

    /// Fences that the peer has not answered.
    pub fn fences(&self) -> usize {
        self.fences.len()
    }

    /// Takes an answer. What receivers do not send is ignored.
    pub fn take(&mut self, r: &Record, now: Duration) -> Reply {
        match r {
            Record::Welcome(_, name) if *name != self.peer => Reply::Wrong,
            Record::Welcome(..) if !self.welcomed => {
                self.welcomed = true;
                Reply::Start
            }
            Record::Again => {
                self.again += 1;
                Reply::Again
            }
            Record::Want(slot) => Reply::Want(*slot),
            Record::Fence(n) => {
                while let Some((_, at)) = self.fences.front().copied().filter(|(f, _)| f <= n) {
                    self.fences.pop_front();
                    let lag = now.saturating_sub(at);
                    self.lag = Some(lag);
                    self.lags.add(lag);
                }
                Reply::Fenced(*n)
            }
            _ => Reply::Nothing,
        }
    }
}
