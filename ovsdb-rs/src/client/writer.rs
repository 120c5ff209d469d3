//! Writing rows that have names of their own, *keys*: one transaction at a time, and what the server refuses.

use super::{Client, ClientError, OpFailed, Transaction};
use serde_json::Value;
use std::fmt::{Display, Write as _};
use std::time::{Duration, Instant};

/// How long a refused row is left alone.
const PARKED: Duration = Duration::from_secs(30);

/// How long nothing is sent to a server that could not be asked, or that refused a row that may be right soon.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a row is tried again that may have failed by chance: others write to the same database.
const ATTEMPTS: u32 = 3;

/// The operations of a transaction, and the keys that they are for.
#[derive(Clone, Debug)]
pub struct Batch<K> {
    /// Operations as RFC 7047 has them, as JSON, with commas between them.
    text: String,
    /// For each operation its key; none where it is for several.
    of: Vec<Option<K>>,
    /// All keys, each once.
    keys: Vec<K>,
}

impl<K> Default for Batch<K> {
    fn default() -> Batch<K> {
        Batch { text: String::new(), of: Vec::new(), keys: Vec::new() }
    }
}

impl<K: Clone + PartialEq> Batch<K> {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// All keys, each once.
    pub fn keys(&self) -> &[K] {
        &self.keys
    }

    /// The operations.
    pub fn operations(&self) -> Vec<Value> {
        serde_json::from_str(&format!("[{}]", self.text)).unwrap_or_default()
    }

    fn comma(&mut self) {
        if !self.of.is_empty() {
            self.text.push(',');
        }
    }

    fn add(&mut self, key: &K) {
        if self.keys.last() != Some(key) {
            self.keys.push(key.clone());
        }
    }

    /// Adds an operation for a key. Operations of a key come one after the other.
    pub fn push(&mut self, key: &K, operation: &Value) {
        self.comma();
        // A string takes anything.
        let _ = write!(self.text, "{operation}");
        self.of.push(Some(key.clone()));
        self.add(key);
    }

    /// Adds what a transaction holds, for a key.
    pub fn extend(&mut self, key: &K, transaction: Transaction) {
        if !transaction.is_empty() {
            self.append(transaction, Some(key));
            self.add(key);
        }
    }

    /// A key's part, or some of it, is in what is added for several keys.
    pub fn takes_part(&mut self, key: &K) {
        self.add(key);
    }

    /// Adds what a transaction holds for several keys.
    pub fn extend_all(&mut self, transaction: Transaction) {
        self.append(transaction, None);
    }

    fn append(&mut self, transaction: Transaction, key: Option<&K>) {
        if !transaction.is_empty() {
            self.comma();
            self.of.extend(std::iter::repeat_n(key.cloned(), transaction.len()));
            self.text.push_str(&transaction.into_text());
        }
    }
}

/// A row that the server refused.
#[derive(Clone, Debug)]
struct Parked<K> {
    key: K,
    why: String,
    until: Instant,
}

/// The state of what is written to one database.
#[derive(Debug)]
pub struct Writer<K> {
    /// A transaction is under way.
    busy: bool,
    /// The most rows of a transaction.
    most: usize,
    /// The most rows of the next transaction.
    limit: usize,
    /// How often in a row a transaction of one row failed as a whole.
    failures: u32,
    not_before: Instant,
    parked: Vec<Parked<K>>,
}

/// The end of a transaction, for [`Writer::finished`].
#[derive(Debug)]
pub struct Done<K> {
    of: Vec<Option<K>>,
    keys: Vec<K>,
    /// The first operation that failed, by its place.
    result: Result<Option<(usize, OpFailed)>, ClientError>,
    /// Operations in front of those that have keys.
    offset: usize,
}

/// What came of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<K> {
    /// How many keys were written.
    pub written: usize,
    /// Keys whose rows may still differ.
    pub again: Vec<K>,
    /// Whether a row was refused, which is left alone for a while.
    pub refused: bool,
}

impl<K: Clone + PartialEq + Display + Send + 'static> Writer<K> {
    /// Writes at most so many rows in one transaction.
    pub fn new(most: usize) -> Writer<K> {
        Writer { busy: false, most, limit: most, failures: 0, not_before: Instant::now(), parked: Vec::new() }
    }

    /// The most rows of the next transaction: fewer, where it has to be found out which one is refused.
    pub fn limit(&self) -> usize {
        self.limit
    }

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
        batch: Batch<K>,
        lock: Option<&str>,
        done: impl FnOnce(Done<K>) + Send + 'static,
    ) {
        self.busy = true;
        let offset = usize::from(lock.is_some());
        let text = lock.map_or_else(String::new, |lock| format!("{},", assert_lock(lock))) + &batch.text;
        let (client, of, keys) = (client.clone(), batch.of, batch.keys);
        tokio::spawn(async move {
            let result = client.carry_out_text(text).await;
            done(Done { of, keys, result, offset });
        });
    }

    /// Takes the end of a transaction. `place` names the database in the log.
    pub fn finished(&mut self, place: &str, done: Done<K>) -> Outcome<K> {
        self.busy = false;
        let Done { of, keys, result, offset } = done;
        let again = |again: Vec<K>| Outcome { written: 0, again, refused: false };
        let failed = match result {
            Ok(failed) => failed,
            Err(e) => {
                tracing::info!(target: "ovsdb_idl", "{place}: {e}; it will be tried again");
                self.not_before = Instant::now() + PAUSE;
                return again(keys);
            }
        };
        let Some((at, error)) = failed else {
            self.limit = (self.limit * 2).min(self.most);
            self.failures = 0;
            return Outcome { written: keys.len(), again: Vec::new(), refused: false };
        };
        let Some(at) = at.checked_sub(offset) else {
            // The lock went; when it returns everything is looked at.
            return again(keys);
        };
        // An error behind the last operation is one of the whole: only a smaller transaction tells whose.
        let bad = match (of.get(at).cloned().flatten(), keys.as_slice()) {
            (Some(key), _) => key,
            (None, [key]) if self.failures >= ATTEMPTS => key.clone(),
            (None, [_]) => {
                // Another writer may just have taken the name, or what it refers to; its update is on the way.
                self.failures += 1;
                self.not_before = Instant::now() + PAUSE;
                return again(keys);
            }
            (None, several) => {
                self.limit = (several.len() / 2).max(1);
                return again(keys);
            }
        };
        self.failures = 0;
        let why = format!("{}: {}", error.error, error.details);
        let seconds = PARKED.as_secs();
        tracing::warn!(target: "ovsdb_idl", "{place}: {bad} is refused and left alone for {seconds} s: {why}");
        self.parked.push(Parked { key: bad.clone(), why, until: Instant::now() + PARKED });
        Outcome { written: 0, again: keys.into_iter().filter(|key| *key != bad).collect(), refused: true }
    }

    /// Refused rows that get another chance now.
    pub fn unpark(&mut self) -> Vec<K> {
        let now = Instant::now();
        self.parked.extract_if(.., |p| p.until <= now).map(|p| p.key).collect()
    }

    /// Refused rows, and why.
    pub fn refused(&self) -> impl Iterator<Item = (&K, &str)> {
        self.parked.iter().map(|p| (&p.key, p.why.as_str()))
    }

    /// What people should know.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.refused().map(|(key, why)| format!("{key} is refused: {why}"))
    }
}

/// The operation in front of others that lets them fail where a lock is not held any more.
pub fn assert_lock(lock: &str) -> Value {
    serde_json::json!({"op": "assert", "lock": lock})
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    fn done(keys: &[&'static str], of: &[Option<&'static str>], results: Value) -> Done<&'static str> {
        let result = super::super::first_error(Ok(results.to_string()));
        Done { of: of.to_vec(), keys: keys.to_vec(), result, offset: 1 }
    }

    #[test]
    fn operations_of_values_and_of_transactions_are_one_text() {
        let mut b = Batch::default();
        assert!(b.is_empty());
        b.push(&"a", &json!({"op": "comment", "comment": "1"}));
        b.push(&"a", &json!({"op": "comment", "comment": "2"}));
        let schema = json!({"name": "d", "version": "1.0.0", "tables": {}});
        let schema = std::sync::Arc::new(crate::DatabaseSchema::from_json(&schema).unwrap());
        b.extend(&"nothing to do", Transaction::new(schema.clone()));
        b.takes_part(&"b");
        let mut txn = Transaction::new(schema);
        txn.comment("3");
        txn.comment("4");
        b.extend_all(txn);
        let comments: Vec<Value> = b.operations().iter().map(|o| o["comment"].clone()).collect();
        assert_eq!(comments, ["1", "2", "3", "4"]);
        assert_eq!((b.keys(), b.of.as_slice()), (&["a", "b"][..], [Some("a"), Some("a"), None, None].as_slice()));
    }

    fn failed(outcome: &Outcome<&'static str>) -> (Vec<&'static str>, bool) {
        (outcome.again.clone(), outcome.refused)
    }

    #[test]
    fn a_row_that_is_refused_is_left_alone_and_the_others_are_tried_again() {
        let error = json!({"error": "constraint violation", "details": "d"});
        let mut w = Writer::new(8);
        let o = w.finished("db", done(&["a", "b"], &[Some("a"), Some("b")], json!([{}, {}, error.clone()])));
        assert_eq!(failed(&o), (vec!["a"], true));
        assert_eq!(w.problems().collect::<Vec<_>>(), ["b is refused: constraint violation: d"]);
        assert_eq!(w.unpark(), Vec::<&str>::new());
        // The lock is lost: nobody's fault.
        let o = w.finished("db", done(&["a"], &[Some("a")], json!([error.clone(), null])));
        assert_eq!(failed(&o), (vec!["a"], false));
    }

    #[test]
    fn an_error_of_the_whole_is_narrowed_down() {
        let mut w = Writer::new(8);
        let whole = |n: usize| {
            let mut results = vec![json!({}); n + 1];
            results.push(json!({"error": "constraint violation", "details": "d"}));
            json!(results)
        };
        let keys = ["a", "b", "c", "d"];
        let o = w.finished("db", done(&keys, &keys.map(Some), whole(4)));
        assert_eq!((failed(&o), w.limit()), ((keys.to_vec(), false), 2));
        for _ in 0..ATTEMPTS {
            let o = w.finished("db", done(&["a"], &[Some("a")], whole(1)));
            assert_eq!(failed(&o), (vec!["a"], false));
            assert!(!w.is_free());
        }
        let o = w.finished("db", done(&["a"], &[Some("a")], whole(1)));
        assert_eq!(failed(&o), (vec![], true));
        // Success lets transactions grow again.
        w.finished("db", done(&["b"], &[Some("b")], json!([{}, {}])));
        w.finished("db", done(&["b"], &[Some("b")], json!([{}, {}])));
        let o = w.finished("db", done(&["b"], &[Some("b")], json!([{}, {}])));
        assert_eq!((o.written, w.limit()), (1, 8));
    }
}
