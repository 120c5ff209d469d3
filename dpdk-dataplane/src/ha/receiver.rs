//! Streams of peers.

use super::grpc::{Frame, PeerIdentity, PeerStream, serve};
use super::{Common, tls};
use crate::config::ha::HaSpec;
use crate::pmd::conn_sync::{News, Remote as Told, taken_connection, taken_state};
use futures::Stream;
use gateway_ha::sync::{Decoder, Effect, Incoming, Record};
use openflow_rs::Message;
use ovsdb_rs::stream::Remote;
use std::io;
use std::time::Duration;
use switch::conntrack::replica::Lack;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// How long a peer may take to show its certificate.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long after a failure to listen it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The most changes in a job of the main PMD thread.
const JOB: usize = 256;
/// Peers that may shake hands at once.
const HANDSHAKES: usize = 16;

/// Listens for peers, for ever.
pub(super) async fn listen(common: Common, at: Remote, spec: HaSpec) {
    let mut said = None;
    loop {
        let why = match once(&common, &at, &spec).await {
            Ok(()) => "the listener has ended".to_owned(),
            Err(e) => e.to_string(),
        };
        if said.as_ref() != Some(&why) {
            tracing::warn!(target: "ha", "{at}: {why}; peers cannot tell their connections");
            said = Some(why);
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn once(common: &Common, at: &Remote, spec: &HaSpec) -> io::Result<()> {
    let (address, secure) = match at {
        Remote::PassiveTcp(a) => (a, None),
        Remote::PassiveTls(a) => {
            let missing = || io::Error::other("pssl needs key and certificates: ovs-vsctl set-ssl");
            (a, Some(tls(spec.tls.as_ref())?.ok_or_else(missing)?))
        }
        _ => return Err(io::Error::other("not a passive connection method")),
    };
    let listener = TcpListener::bind(address).await?;
    tracing::info!(target: "ha", "{at}: listening for peers");
    let (ready, accepted) = mpsc::channel(HANDSHAKES);
    let accept = async {
        loop {
            let (stream, from) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (ready, secure) = (ready.clone(), secure.clone());
            tokio::spawn(async move {
                let (stream, name) = match secure {
                    None => (Box::new(stream) as ovsdb_rs::stream::BoxStream, None),
                    Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                        Ok(Ok((s, name))) => (s, Some(name.to_string())),
                        Ok(Err(e)) => return tracing::warn!(target: "ha", "{from}: {e}"),
                        Err(_) => return tracing::warn!(target: "ha", "{from}: no certificate in {HANDSHAKE:?}"),
                    },
                };
                let peer = PeerIdentity { name, address: from.to_string() };
                // The listener may have ended meanwhile.
                let _ = ready.send(Ok(PeerStream::new(stream, peer))).await;
            });
        }
    };
    let common = common.clone();
    let hear = move |peer: PeerIdentity, frames: Streaming<Frame>| answers(common.clone(), peer, frames);
    tokio::select! {
        r = accept => r,
        r = serve(ReceiverStream::new(accepted), hear) => r.map_err(io::Error::other),
    }
}

/// Hears a peer; what goes back to it comes out.
fn answers(common: Common, peer: PeerIdentity, frames: Streaming<Frame>) -> impl Stream<Item = Result<Frame, Status>> {
    let (to, from) = mpsc::channel(64);
    tokio::spawn(async move {
        let mut heard = None;
        if let Err(e) = hear(&common, &peer, frames, &to, &mut heard).await {
            let name = heard.as_ref().map_or(&peer.address, |h: &Heard| &h.peer);
            tracing::warn!(target: "ha", "{name}: {e}; the stream is closed");
            // It may be gone.
            let _ = to.send(Err(Status::invalid_argument(e))).await;
        }
    });
    ReceiverStream::new(from)
}

/// A peer is heard until this is dropped.
struct Heard {
    common: Common,
    peer: String,
    since: Instant,
}

impl Heard {
    /// Whether no newer stream of the same peer has taken this one's place.
    fn is_newest(&self) -> bool {
        self.common.status.get(&self.peer).heard_since == Some(self.since)
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if self.is_newest() {
            self.common.pmd.lose_connections(self.peer.clone());
            self.common.status.set(&self.peer, |p| p.heard = false);
        }
    }
}

async fn hear(
    common: &Common,
    from: &PeerIdentity,
    mut frames: Streaming<Frame>,
    to: &mpsc::Sender<Result<Frame, Status>>,
    heard: &mut Option<Heard>,
) -> Result<(), String> {
    let mut spec = common.spec.clone();
    let first = spec.borrow_and_update().clone();
    let mut state = Incoming::new(&first.name, from.name.as_deref(), first.named);
    let mut decoder = Decoder::default();
    let (table, mut news) = mpsc::unbounded_channel();
    let mut table = Some(table);
    // What the peer counted at the end of its dump.
    let mut counted = None;
    loop {
        let mut back = Vec::new();
        tokio::select! {
            frame = frames.message() => {
                // An error of the transport is the stream's end like any other.
                let Ok(Some(f)) = frame else { return Ok(()) };
                decoder.push(&f.records);
                let (mut changes, mut fences, mut n) = (Vec::new(), Vec::new(), 0u64);
                while let Some(r) = decoder.record().map_err(|e| e.to_string())? {
                    n += 1;
                    match state.take(r).map_err(|e| e.to_string())? {
                        Effect::Nothing => {}
                        Effect::Answer(r) => {
                            let name = state.peer().unwrap_or_default().to_owned();
                            *heard = Some(begin(common, name, state.boot(), table.take())?);
                            back.push(r);
                        }
                        Effect::Begin => changes.push(Told::Begin),
                        Effect::Put(slot, c) => {
                            changes.push(taken_connection(&c).map_or(Told::Close(slot), |c| Told::Put(slot, c)));
                        }
                        Effect::State(slot, s) => changes.extend(taken_state(&s).map(|s| Told::State(slot, s))),
                        Effect::Close(slot) => changes.push(Told::Close(slot)),
                        Effect::GaveWay(slot) => changes.push(Told::GaveWay(slot)),
                        Effect::Learn(idle, flow) => changes.extend(learned(idle, &flow)),
                        Effect::Fence(n) => fences.push(Record::Fence(n)),
                        Effect::End(n) => {
                            counted = n;
                            changes.push(Told::End);
                        }
                    }
                }
                let Some(h) = heard.as_ref() else { continue };
                // What an earlier stream still brings after a cut is older than what this chassis knows by now.
                if !h.is_newest() {
                    return Ok(());
                }
                while !changes.is_empty() {
                    let rest = changes.split_off(changes.len().min(JOB));
                    common.pmd.take_connections(h.peer.clone(), std::mem::replace(&mut changes, rest)).await?;
                }
                let fenced = !fences.is_empty();
                back.extend(fences);
                let missing: Vec<String> = state.missing().map(str::to_owned).collect();
                common.status.set(&h.peer, |p| {
                    p.received += n;
                    if fenced {
                        p.last_fence = Some(Instant::now());
                    }
                    p.missing_zones = missing;
                });
            }
            Some(n) = news.recv() => {
                let Some(h) = heard.as_ref() else { continue };
                match n {
                    News::Taken(n) => taken(h, n, counted),
                    News::Lacks(lack) => back.extend(asked(lack)),
                }
            }
            Ok(()) = spec.changed() => {
                let now = spec.borrow_and_update().clone();
                if let Some(h) = heard.as_ref()
                    && !is_peer(&now, &h.peer)
                {
                    return Err(format!("{} is no longer in ha-peers", h.peer));
                }
                back.extend(state.set_zones(now.named));
            }
        }
        if !back.is_empty() && to.send(Ok(Frame::of(back))).await.is_err() {
            return Ok(());
        }
    }
}

/// A flow that a peer learned; none if this release does not understand it.
fn learned(idle: u32, flow: &[u8]) -> Option<Told> {
    match Message::decode(flow) {
        Ok((_, Message::FlowMod(f))) => Some(Told::Learn(Box::new(f), Duration::from_millis(idle.into()))),
        other => {
            tracing::debug!(target: "ha", "a learned flow of a peer is left out: {other:?}");
            None
        }
    }
}

/// A dump has been taken: the peer has `n` connections in the table, and counted so many itself.
fn taken(h: &Heard, n: u32, counted: Option<u32>) {
    let differs = counted.is_some_and(|c| c != n);
    tracing::debug!(target: "ha", "{}: dump taken, {n} connections, {counted:?} there", h.peer);
    h.common.status.set(&h.peer, |p| {
        p.dumps += 1;
        p.last_dump = Some(Instant::now());
        p.differences += u64::from(differs);
    });
}

/// What asks a peer for what the table lacks.
fn asked(lack: Lack) -> Vec<Record> {
    match lack {
        Lack::Nothing => Vec::new(),
        Lack::Slots(all) => all.into_iter().map(Record::Want).collect(),
        Lack::Much => vec![Record::Again],
    }
}

fn is_peer(spec: &HaSpec, name: &str) -> bool {
    spec.peers.contains_key(name)
}

fn begin(
    common: &Common,
    peer: String,
    boot: u64,
    table: Option<mpsc::UnboundedSender<News>>,
) -> Result<Heard, String> {
    if !is_peer(&common.spec.borrow(), &peer) {
        return Err(format!("{peer:?} is not in this chassis' ha-peers"));
    }
    let owner = common.status.owner(&peer, boot).ok_or("this switch has as many peers as it can hear, 255")?;
    let since = Instant::now();
    if let Some(table) = table {
        let keeps = common.spec.borrow().name < peer;
        common.pmd.hear_connections(peer.clone(), (owner, keeps), table);
    }
    tracing::info!(target: "ha", "{peer}: tells its connections");
    common.status.set(&peer, |p| (p.heard, p.heard_since) = (true, Some(since)));
    Ok(Heard { common: common.clone(), peer, since })
}
