//! Writing to the northbound database: one transaction at a time, and what the server refuses.

use crate::zone::plan::Operations;
use crate::zone::rows::Key;
use ovsdb_rs::client::{Client, ClientError};
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// The most rows of one transaction.
pub const ROWS: usize = 2000;

/// How long a refused row is left alone.
const PARKED: Duration = Duration::from_secs(30);

/// How long nothing is sent to a server that could not be asked.
const PAUSE: Duration = Duration::from_millis(500);

/// The state of what is written.
pub struct Writer {
    busy: bool,
    /// The most rows of the next transaction.
    pub limit: usize,
    not_before: Instant,
    /// Rows that were refused: why, and until when they are left alone.
    parked: Vec<(Key, String, Instant)>,
}

/// The end of a transaction.
pub struct Done {
    operations: Vec<Option<Key>>,
    keys: Vec<Key>,
    result: Result<Vec<Json>, ClientError>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer { busy: false, limit: ROWS, not_before: Instant::now(), parked: Vec::new() }
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

    /// Sends operations, which the server refuses where the lock is lost; `done` gets the end.
    pub fn send(
        &mut self,
        client: &Client,
        operations: Operations,
        lock: &str,
        done: impl FnOnce(Done) + Send + 'static,
    ) {
        self.busy = true;
        let mut all = vec![json!({"op": "assert", "lock": lock})];
        all.extend(operations.operations);
        let client = client.clone();
        tokio::spawn(async move {
            let result = client.transact(all).await;
            done(Done { operations: operations.of, keys: operations.keys, result });
        });
    }

    /// Takes the end of a transaction. Gives the keys whose rows may still differ.
    pub fn finished(&mut self, done: Done) -> Vec<Key> {
        self.busy = false;
        let results = match done.result {
            Ok(results) => results,
            Err(e) => {
                tracing::info!("OVN_Northbound: {e}; it will be tried again");
                self.not_before = Instant::now() + PAUSE;
                return done.keys;
            }
        };
        let failed = results.iter().enumerate().find(|(_, r)| r.get("error").is_some_and(|e| !e.is_null()));
        let Some((at, error)) = failed else {
            self.limit = (self.limit * 2).min(ROWS);
            return Vec::new();
        };
        if at == 0 {
            // The lock went; when it returns everything is looked at.
            return done.keys;
        }
        let word = |k: &str| error.get(k).and_then(Json::as_str).unwrap_or_default();
        let why = format!("{}: {}", word("error"), word("details"));
        // An error behind the last operation is one of the whole: only a smaller transaction tells whose.
        let of = done.operations.get(at - 1).cloned().flatten();
        let bad = match (of, done.keys.as_slice()) {
            (Some(key), _) => key,
            (None, [key]) => key.clone(),
            (None, several) => {
                self.limit = (several.len() / 2).max(1);
                return done.keys;
            }
        };
        let seconds = PARKED.as_secs();
        tracing::warn!("{bad} is refused and left alone for {seconds} s: {why}");
        self.parked.push((bad.clone(), why, Instant::now() + PARKED));
        done.keys.into_iter().filter(|key| *key != bad).collect()
    }

    /// Refused rows that get another chance now.
    pub fn unpark(&mut self) -> Vec<Key> {
        let now = Instant::now();
        let due: Vec<Key> = self.parked.iter().filter(|p| p.2 <= now).map(|p| p.0.clone()).collect();
        self.parked.retain(|p| p.2 > now);
        due
    }

    /// What is refused of a resource, and why.
    pub fn refused(&self, connect: &str) -> impl Iterator<Item = String> {
        let of = self.parked.iter().filter(move |(key, ..)| &**key.connect() == connect);
        of.map(|(key, why, _)| format!("{key} is refused: {why}"))
    }
}
