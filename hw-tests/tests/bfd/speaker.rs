//! Our BFD on real sockets: one thread in a namespace that runs [`Sessions`] over a wire of one kind or another.

use bfd_rs::{Change, Datagram, Discard, Outgoing, Sessions, State};
use hw_tests::agent::clock;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A datagram as it came in; what [`Datagram`] borrows from.
#[derive(Clone, Debug)]
pub struct Heard {
    pub source: std::net::IpAddr,
    pub destination: std::net::IpAddr,
    pub port: u16,
    pub interface: u32,
    pub ttl: u8,
    pub payload: Vec<u8>,
}

/// How control packets travel.
pub trait Wire {
    /// Sends one.
    fn send(&mut self, packet: &Outgoing) -> anyhow::Result<()>;
    /// What came in, after a wait of at most this time.
    fn receive(&mut self, wait: Duration) -> anyhow::Result<Vec<Heard>>;
}

/// What the thread tells.
#[derive(Default, Debug)]
pub struct Report {
    /// State and number of changes to or from Up, by discriminator.
    pub sessions: BTreeMap<u32, (State2, u64)>,
    /// Datagrams that were discarded, with the reason of the last.
    pub discarded: (u64, Option<Discard>),
    /// What went wrong with sockets.
    pub error: Option<String>,
}

/// [`State`], for maps with a default.
pub type State2 = Option<State>;

/// A running speaker; it ends when dropped.
pub struct Speaker {
    stop: Arc<AtomicBool>,
    /// While set, nothing is sent and nothing is heard.
    mute: Arc<AtomicBool>,
    report: Arc<Mutex<Report>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Speaker {
    /// Starts one in a namespace; `wire` is made there.
    pub fn start<W: Wire>(
        namespace: &str,
        mut sessions: Sessions,
        wire: impl FnOnce() -> anyhow::Result<W> + Send + 'static,
    ) -> Speaker {
        let (stop, mute, report): (Arc<AtomicBool>, Arc<AtomicBool>, Arc<Mutex<Report>>) = Default::default();
        let path = format!("/run/netns/{namespace}");
        let (s, m, r) = (stop.clone(), mute.clone(), report.clone());
        let thread = std::thread::spawn(move || {
            let run = || -> anyhow::Result<()> {
                let file = std::fs::File::open(&path)?;
                nix::sched::setns(file.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET)?;
                let mut wire = wire()?;
                while !s.load(Ordering::Relaxed) {
                    turn(&mut sessions, &mut wire, m.load(Ordering::Relaxed), &r)?;
                }
                Ok(())
            };
            if let Err(e) = run() {
                r.lock().unwrap_or_else(PoisonError::into_inner).error = Some(format!("{e:#}"));
            }
        });
        Speaker { stop, mute, report, thread: Some(thread) }
    }

    /// Falls silent and deaf, or wakes up.
    pub fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
    }

    /// How many sessions are up, and how often each changed to or from Up.
    pub fn up(&self) -> anyhow::Result<(usize, Vec<u64>)> {
        let r = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(r.error.is_none(), "{:?}", r.error);
        let up = r.sessions.values().filter(|(s, _)| *s == Some(State::Up)).count();
        Ok((up, r.sessions.values().map(|(_, flaps)| *flaps).collect()))
    }

    /// Datagrams that were discarded, with the reason of the last.
    pub fn discarded(&self) -> (u64, Option<Discard>) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).discarded
    }
}

fn turn(sessions: &mut Sessions, wire: &mut impl Wire, mute: bool, report: &Mutex<Report>) -> anyhow::Result<()> {
    let now = clock();
    let due = sessions.deadline().unwrap_or(now + 10_000).saturating_sub(now).min(10_000);
    for h in wire.receive(Duration::from_micros(due.max(100)))? {
        let d = Datagram {
            source: h.source,
            destination: h.destination,
            port: h.port,
            interface: h.interface,
            ttl: h.ttl,
            payload: &h.payload,
        };
        if mute {
            continue;
        }
        let result: Result<Option<Change>, Discard> = sessions.receive(&d, clock());
        if let Err(e) = result {
            let mut r = report.lock().unwrap_or_else(PoisonError::into_inner);
            r.discarded = (r.discarded.0 + 1, Some(e));
        }
    }
    for packet in sessions.poll(clock()).0 {
        if !mute {
            wire.send(&packet)?;
        }
    }
    let mut r = report.lock().unwrap_or_else(PoisonError::into_inner);
    r.sessions = sessions.iter().map(|(n, _, s)| (n, (Some(s.state()), s.flaps()))).collect();
    Ok(())
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
