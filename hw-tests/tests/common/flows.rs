//! A bridge's flows, looked at again and again while something happens.

use openflow_rs::connection::{OUR_VERSIONS, Receiver, Sender, negotiate};
use openflow_rs::message::{FlowStatsRequest, MultipartReply, MultipartRequest};
use openflow_rs::{Message, PackedActions, PackedMatch, TableId};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

/// A flow as it is compared: table, priority, match and actions.
pub type Flow = (TableId, u16, PackedMatch, PackedActions);

/// The tables of neighbours that routers learn (ovn-architecture(7), OVN 26.03). A machine may ask for its router at any
/// time, and is learned then.
const LEARNED: [TableId; 3] = [TableId(90), TableId(91), TableId(103)];

/// How long until the next look.
const PAUSE: Duration = Duration::from_millis(10);

struct Bridge(Sender<UnixStream>, Receiver<UnixStream>);

impl Bridge {
    async fn connect(at: &Path) -> Bridge {
        let stream = UnixStream::connect(at).await.expect("the bridge's management socket");
        let (tx, rx) = negotiate(stream, OUR_VERSIONS).await.expect("OpenFlow");
        Bridge(tx, rx)
    }

    /// The flows that end only when somebody takes them out: what the switch learned by itself comes and goes.
    async fn dump(&mut self) -> HashSet<Flow> {
        let request = Message::MultipartRequest(MultipartRequest::Flow(FlowStatsRequest::default()));
        let xid = self.0.send(&request).await.expect("request");
        let mut out = HashSet::new();
        loop {
            let m = self.1.recv().await.expect("answer");
            if m.header.xid != xid {
                continue;
            }
            let Ok(Message::MultipartReply { more, body: MultipartReply::Flow(flows) }) = m.message else {
                panic!("no flows: {:?}", m.message)
            };
            let lasting = flows.into_iter().map(|s| s.flow).filter(|f| (f.idle_timeout, f.hard_timeout) == (0, 0));
            out.extend(
                lasting.map(|f| (f.table, f.priority, (&f.matches).into(), PackedActions::from(&f.actions[..]))),
            );
            if !more {
                return out;
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime")
}

/// The flows of a bridge, once they stay as they are for a second.
pub fn settled(at: &Path) -> HashSet<Flow> {
    runtime().block_on(async {
        let (mut bridge, end) = (Bridge::connect(at).await, Instant::now() + Duration::from_secs(60));
        let (mut before, mut since) = (HashSet::new(), Instant::now());
        loop {
            let now = bridge.dump().await;
            if now != before {
                (before, since) = (now, Instant::now());
            } else if since.elapsed() > Duration::from_secs(1) {
                return before;
            }
            assert!(Instant::now() < end, "the flows of {} go on changing", at.display());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

/// Looks at a bridge's flows until it is told to stop.
pub struct Watch {
    all: Arc<HashSet<Flow>>,
    over: Arc<AtomicBool>,
    at: PathBuf,
    thread: JoinHandle<(usize, HashSet<Flow>)>,
}

impl Watch {
    /// Begins with the flows that there are.
    pub fn start(at: PathBuf) -> Watch {
        let (all, over) = (Arc::new(settled(&at)), Arc::new(AtomicBool::new(false)));
        let (a, o, socket) = (all.clone(), over.clone(), at.clone());
        let look = async move {
            let (mut bridge, mut looks, mut missing) = (Bridge::connect(&socket).await, 0, HashSet::new());
            while !o.load(Ordering::Relaxed) {
                let now = bridge.dump().await;
                looks += 1;
                missing.extend(a.difference(&now).cloned());
                tokio::time::sleep(PAUSE).await;
            }
            (looks, missing)
        };
        let thread = std::thread::spawn(move || runtime().block_on(look));
        Watch { all, over, at, thread }
    }

    /// Ends it: no flow of the beginning was missing at any look, and none is missing or too many once all is quiet,
    /// but for neighbours that were learned meanwhile.
    pub fn end(self, what: &str) {
        let (over, at) = (self.over, self.at.display());
        let after = settled(&self.at);
        over.store(true, Ordering::Relaxed);
        let (looks, missing) = self.thread.join().expect("the thread that looks");
        assert!(looks > 10 && self.all.len() > 100, "{what}: {looks} looks at {} flows of {at}", self.all.len());
        assert!(missing.is_empty(), "{what}: missing at some of {looks} looks at {at}: {missing:?}");
        let gone: Vec<&Flow> = self.all.difference(&after).collect();
        let new: Vec<&Flow> = after.difference(&self.all).filter(|f| !LEARNED.contains(&f.0)).collect();
        let same = gone.is_empty() && new.is_empty();
        assert!(same, "{what}: {at} ends otherwise than it began: without {gone:?}, with {new:?}");
    }
}
