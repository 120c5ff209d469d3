//! A stream to a peer: it is opened again whenever it ends, and begins with a dump each time.

use super::grpc::{Frame, call};
use super::{Common, SenderKey, tls};
use crate::pmd::conn_sync::Batch;
use gateway_ha::sync::{Decoder, Outgoing, Record, Reply};
use std::time::Duration;
use switch::conntrack::Zone;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Batches that wait for the network.
const BATCHES: usize = 64;
/// Without an answer for so long the peer counts as gone.
const SILENCE: Duration = Duration::from_secs(3);

/// Has the peer told nothing more when the stream ends, however it ends.
struct Told<'a>(&'a Common, &'a str);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.pmd.silence_connections(self.1.to_owned());
        self.0.status.set(self.1, |p| (p.told, p.lag) = (false, None));
    }
}

/// Tells a peer, for ever.
pub(super) async fn run(common: Common, peer: String, key: SenderKey) {
    let mut said = None;
    loop {
        let why = match once(&common, &peer, &key).await {
            Ok(()) => "the peer closed the stream".to_owned(),
            Err(e) => e,
        };
        common.status.set(&peer, |p| p.error = Some(why.clone()));
        if said.as_ref() != Some(&why) {
            tracing::info!(target: "ha", "{peer} ({}): {why}; trying again every {RETRY:?}", key.remote);
            said = Some(why);
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn once(common: &Common, peer: &str, key: &SenderKey) -> Result<(), String> {
    let (frames, to_peer) = mpsc::channel(2);
    let mut state = Outgoing::new(&key.own, common.boot, peer);
    let gone = |_| "the stream has ended".to_owned();
    frames.send(Frame::of([state.hello()])).await.map_err(gone)?;
    let tls = tls(key.tls.as_ref()).map_err(|e| e.to_string())?;
    let mut answers = call(peer, &key.remote, tls, to_peer).await?;
    let (to, mut batches) = mpsc::channel::<Batch>(BATCHES);
    let mut to = Some(to);
    let mut decoder = Decoder::default();
    let mut told = None;
    let mut heard = Instant::now();
    loop {
        let now = || common.pmd.clock.now();
        tokio::select! {
            biased;
            answer = timeout_at(heard + SILENCE, answers.message()) => {
                let answer = answer.map_err(|_| format!("no answer for {SILENCE:?}"))?;
                heard = Instant::now();
                let Some(f) = answer.map_err(|s| s.message().to_owned())? else { return Ok(()) };
                decoder.push(&f.records);
                let mut wanted = Vec::new();
                while let Some(r) = decoder.record().map_err(|e| e.to_string())? {
                    match (state.take(&r, now()), to.take()) {
                        (Reply::Wrong, _) => return Err(format!("the peer calls itself otherwise: {r:?}")),
                        (Reply::Start, Some(to)) => {
                            let zones = key.zones.iter().map(|(name, n)| Record::Zone(*n, name.clone()));
                            frames.send(Frame::of(zones)).await.map_err(gone)?;
                            told = Some(Told(common, peer));
                            let numbers = key.zones.values().map(|n| Zone(*n)).collect();
                            if !common.pmd.tell_connections(peer.to_owned(), numbers, to).await? {
                                return Err("this switch has as many peers as it can tell".into());
                            }
                            tracing::info!(target: "ha", "{peer} ({}): connected", key.remote);
                            common.status.set(peer, |p| (p.told, p.error, p.dumps_sent) = (true, None, p.dumps_sent + 1));
                        }
                        (Reply::Again, _) if told.is_some() => {
                            common.pmd.tell_connections_again(peer.to_owned());
                            common.status.set(peer, |p| p.dumps_sent += 1);
                        }
                        (Reply::Want(slot), unused) => {
                            to = unused;
                            wanted.push(slot);
                        }
                        (Reply::Fenced(_), _) => common.status.set(peer, |p| (p.lag, p.lags) = (state.lag, state.lags)),
                        (_, unused) => to = unused,
                    }
                }
                if !wanted.is_empty() && told.is_some() {
                    common.pmd.tell_slots_again(peer.to_owned(), wanted);
                }
            }
            Some(b) = batches.recv() => {
                let at = now();
                b.fences.iter().for_each(|n| state.fence(*n, at));
                common.status.set(peer, |p| (p.sent, p.lag) = (p.sent + b.records as u64, state.lag_at(at)));
                frames.send(Frame { records: b.bytes }).await.map_err(gone)?;
            }
        }
    }
}
