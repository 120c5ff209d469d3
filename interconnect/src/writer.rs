//! Writing to one place: one transaction at a time, and what a server refuses.

use crate::output::Key;
use crate::plan::Operations;
use ovsdb_rs::client::{Client, ClientError};
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// The most rows of one transaction: a row takes some KiB while its transaction is made, and nothing is written faster by
/// larger ones.
pub const ROWS: usize = 500;

/// How long a refused row is left alone.
const PARKED: Duration = Duration::from_secs(30);

/// How long nothing is sent to a server that could not be asked, or that refused a row that may be right soon.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a row is tried again that may have failed by chance: zones write to the same database.
const ATTEMPTS: u32 = 3;

/// The state of what is written to one place.
pub struct Writer {
    /// A transaction is under way.
    busy: bool,
    /// The most rows of the next transaction.
    pub limit: usize,
    failures: u32,
    not_before: Instant,
    /// Rows that were refused: why, and until when they are left alone.
    parked: Vec<(Key, String, Instant)>,
}

/// The end of a transaction.
pub struct Done {
    keys: Vec<Key>,
    result: Result<Vec<Json>, ClientError>,
    /// Operations in front of those that have keys.
    offset: usize,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer { busy: false, limit: ROWS, failures: 0, not_before: Instant::now(), parked: Vec::new() }
    }
}

impl Writer {
    /// Whether a transaction can be sent now.
    pub fn is_free(&self) -> bool {
        !self.busy && Instant::now() >= self.not_before
    }

    /// Whether no transaction is under way.
    pub fn is_idle(&self) -> bool {
        !self.busy
    }

    /// Sends operations; `done` gets the end. Under a lock the server refuses all of them where it is lost.
    pub fn send(
        &mut self,
        client: &Client,
        operations: Operations,
        lock: Option<&str>,
        done: impl FnOnce(Done) + Send + 'static,
    ) {
        self.busy = true;
        let mut all: Vec<Json> = lock.iter().map(|lock| json!({"op": "assert", "lock": lock})).collect();
        let offset = all.len();
        all.extend(operations.operations);
        let (client, keys) = (client.clone(), operations.keys);
        tokio::spawn(async move {
            let result = client.transact(all).await;
            done(Done { keys, result, offset });
        });
    }

    /// Takes the end of a transaction. Gives the keys whose rows may still differ.
    pub fn finished(&mut self, place: &str, done: Done) -> Vec<Key> {
        self.busy = false;
        let mut distinct = done.keys.clone();
        distinct.dedup();
        let results = match done.result {
            Ok(results) => results,
            Err(e) => {
                tracing::info!(target: "ovn_ic", "{place}: {e}; it will be tried again");
                self.not_before = Instant::now() + PAUSE;
                return distinct;
            }
        };
        let failed = results.iter().enumerate().find(|(_, r)| r.get("error").is_some_and(|e| !e.is_null()));
        let Some((at, error)) = failed else {
            self.limit = (self.limit * 2).min(ROWS);
            self.failures = 0;
            return Vec::new();
        };
        if at < done.offset {
            // The lock went; when it returns everything is looked at.
            return distinct;
        }
        let why = |k: &str| error.get(k).and_then(Json::as_str).unwrap_or_default().to_string();
        let why = format!("{}: {}", why("error"), why("details"));
        let bad = match (done.keys.get(at - done.offset), distinct.as_slice()) {
            (Some(key), _) => Some(key.clone()),
            (None, [key]) if self.failures >= ATTEMPTS => Some(key.clone()),
            // Another zone may just have taken the key or the name; its update is on the way.
            (None, [_]) => {
                self.failures += 1;
                self.not_before = Instant::now() + PAUSE;
                None
            }
            (None, several) => {
                self.limit = (several.len() / 2).max(1);
                None
            }
        };
        if let Some(key) = &bad {
            self.failures = 0;
            let seconds = PARKED.as_secs();
            tracing::warn!(target: "ovn_ic", "{place}: {key} is refused and left alone for {seconds} s: {why}");
            self.parked.push((key.clone(), why, Instant::now() + PARKED));
        }
        distinct.retain(|k| Some(k) != bad.as_ref());
        distinct
    }

    /// Refused rows that get another chance now.
    pub fn unpark(&mut self) -> Vec<Key> {
        let now = Instant::now();
        let (due, keep) = std::mem::take(&mut self.parked).into_iter().partition(|(_, _, until)| *until <= now);
        self.parked = keep;
        let due: Vec<(Key, String, Instant)> = due;
        due.into_iter().map(|(key, ..)| key).collect()
    }

    /// Why the row of a key is refused.
    pub fn refused(&self, key: &Key) -> Option<&str> {
        self.parked.iter().find(|(parked, ..)| parked == key).map(|(_, why, _)| why.as_str())
    }

    /// What is refused, and why.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.parked.iter().map(|(key, why, _)| format!("{key} is refused: {why}"))
    }
}
