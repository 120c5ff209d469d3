//! What is to be written into a database, in parts that stand for themselves, and what became of earlier attempts.
//!
//! All parts go in one transaction while all is well. Where the server refuses one, the part at fault is found (by the place of
//! the failed operation, or by halving) and waits, so that a single bad row holds nothing else up; where the server refuses
//! everything, attempts become rare. What cannot be written is said once.

pub mod once;

use ovn_schema::{ColumnValue, Map, Str, Uuid};
use ovsdb_rs::DatabaseSchema;
use ovsdb_rs::client::{Client, ClientError, Transaction};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thing to be written: a row, or rows that belong together.
#[derive(Debug)]
pub struct Part {
    /// What it is, as messages name it.
    object: String,
    /// A digest of what is wanted of it: when that changes, a refusal of before means nothing.
    wish: u64,
    /// The operations.
    pub txn: Transaction,
    /// What is logged when it is sent.
    pub log: Vec<String>,
}

impl Part {
    /// Brings a map from `have` to `want` by the pairs that differ: what others write into it at the same moment stays.
    pub fn exchange_pairs(
        &mut self,
        (table, row): (&str, Uuid),
        column: &str,
        have: &Map<Str, Str>,
        want: &Map<Str, Str>,
    ) {
        let only_in = |a: &Map<Str, Str>, b: &Map<Str, Str>| -> Map<Str, Str> {
            a.iter().filter(|(k, v)| b.get(*k) != Some(v)).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        let (gone, new) = (only_in(have, want), only_in(want, have));
        self.txn.exchange(table, row, column, &gone.to_datum(), &new.to_datum());
    }
}

/// The parts of the next transaction.
#[derive(Debug)]
pub struct Plan {
    schema: Arc<DatabaseSchema>,
    parts: Vec<Part>,
}

impl Plan {
    /// A plan for a database of this schema.
    pub fn new(schema: Arc<DatabaseSchema>) -> Plan {
        Plan { schema, parts: Vec::new() }
    }

    /// A new part. `wish` is what is wanted of the object, without what differs at each look (times, new UUIDs).
    pub fn part(&mut self, object: impl Into<String>, wish: impl Hash) -> &mut Part {
        let wish = BuildHasherDefault::<DefaultHasher>::default().hash_one(wish);
        let txn = Transaction::new(self.schema.clone());
        self.parts.push(Part { object: object.into(), wish, txn, log: Vec::new() });
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// What would be logged, for tests.
    #[cfg(test)]
    pub fn into_log(self) -> Vec<String> {
        self.parts.into_iter().flat_map(|p| p.log).collect()
    }
}

/// What is known to be in line, and by which state that was found: it is compared again when the state is another.
#[derive(Debug)]
pub struct InLine<S>(Option<S>);

impl<S> Default for InLine<S> {
    fn default() -> InLine<S> {
        InLine(None)
    }
}

impl<S: PartialEq> InLine<S> {
    /// Compares, unless nothing was to be changed the last time and the state is what it was then.
    pub fn unless(&mut self, state: S, plan: &mut Plan, compare: impl FnOnce(&mut Plan)) {
        if self.0.as_ref() == Some(&state) {
            return;
        }
        let before = plan.parts.len();
        compare(plan);
        let is = plan.parts.iter().skip(before).all(|p| p.txn.is_empty());
        self.0 = is.then_some(state);
    }
}

/// A part that was refused.
#[derive(Debug)]
struct Refused {
    wish: u64,
    until: Instant,
    pause: Duration,
    text: String,
}

/// Why a transaction was not carried out.
#[derive(Debug)]
pub enum Failure {
    /// The connection is gone: nobody refused anything.
    Lost,
    /// The server refused it: the failed operation's place where there is one, and the server's words.
    Refused(Option<usize>, String),
}

/// A transaction on its way.
#[derive(Debug)]
struct Sent {
    object: String,
    wish: u64,
    /// The places of its operations.
    places: std::ops::Range<usize>,
}

/// The first and the longest pause before what was refused is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Refusals in a row after which the server is taken to refuse everything.
const PATIENCE: u32 = 8;

/// What became of the attempts to write into a database.
#[derive(Debug, Default)]
pub struct Attempts {
    refused: HashMap<String, Refused>,
    sent: Vec<Sent>,
    /// Parts in the next transaction at most; none: all.
    limit: Option<usize>,
    /// Refusals since the last success.
    failures: u32,
    /// Nothing is sent before.
    pause: Option<Instant>,
}

impl Attempts {
    /// The operations to send now: of all parts but those that wait after a refusal. What is in the plan no more is forgotten.
    pub fn choose(&mut self, plan: Plan, now: Instant) -> Vec<serde_json::Value> {
        let there: HashSet<&str> = plan.parts.iter().map(|p| &*p.object).collect();
        self.refused.retain(|object, _| there.contains(&**object));
        if self.pause.is_some_and(|p| now < p) {
            return Vec::new();
        }
        self.pause = None;
        let held = |p: &Part| self.refused.get(&p.object).is_some_and(|r| r.wish == p.wish && now < r.until);
        let live = plan.parts.into_iter().filter(|p| !p.txn.is_empty() && !held(p));
        let mut operations = Vec::new();
        self.sent.clear();
        for p in live.take(self.limit.unwrap_or(usize::MAX)) {
            for line in &p.log {
                tracing::info!(target: "binding", kind = daemon::kind(line), "{line}");
            }
            let start = operations.len();
            operations.extend(p.txn.into_operations());
            self.sent.push(Sent { object: p.object, wish: p.wish, places: start..operations.len() });
        }
        operations
    }

    /// Takes note of the end of what [`Attempts::choose`] gave. What is to be said about it, if anything.
    pub fn finished(&mut self, result: Result<(), Failure>, now: Instant) -> Option<String> {
        let sent = std::mem::take(&mut self.sent);
        let (place, text) = match result {
            Ok(()) => {
                sent.iter().for_each(|s| drop(self.refused.remove(&s.object)));
                self.limit = self.limit.and_then(|n| n.checked_mul(4));
                self.failures = 0;
                return None;
            }
            Err(Failure::Lost) => return None,
            Err(Failure::Refused(place, text)) => (place, text),
        };
        self.failures += 1;
        if let Some(more) = self.failures.checked_sub(PATIENCE) {
            self.pause = Some(now + (FIRST_PAUSE * (1 << more.min(3))).min(LONGEST_PAUSE));
        }
        let at_fault = match (place, sent.as_slice()) {
            (_, [only]) => Some(only),
            (Some(n), all) => all.iter().find(|s| s.places.contains(&n)),
            (None, _) => None,
        };
        let Some(s) = at_fault else {
            self.limit = Some((sent.len() / 2).max(1));
            return None;
        };
        let before = self.refused.get(&s.object).filter(|r| r.wish == s.wish);
        let pause = before.map_or(FIRST_PAUSE, |r| (r.pause * 2).min(LONGEST_PAUSE));
        let news = before.is_none_or(|r| r.text != text);
        let said = news.then(|| format!("{}: {text}; it will be tried again", s.object));
        self.refused.insert(s.object.clone(), Refused { wish: s.wish, until: now + pause, pause, text });
        said
    }

    /// When something that waits may be tried again.
    pub fn next(&self) -> Option<Instant> {
        let first = self.refused.values().map(|r| r.until).min();
        match (self.pause, first) {
            (Some(p), Some(f)) => Some(p.max(f)),
            (p, f) => p.or(f),
        }
    }

    /// Forgets all, as for a new server.
    pub fn reset(&mut self) {
        *self = Attempts::default();
    }
}

/// Carries out operations and says which of them failed.
///
/// # Errors
/// Where they were not carried out.
pub async fn commit(client: Client, operations: Vec<serde_json::Value>) -> Result<(), Failure> {
    let n = operations.len();
    match client.transact(operations).await {
        Ok(results) => {
            let Some(at) = results.iter().position(|r| r.get("error").is_some()) else { return Ok(()) };
            let field = |name: &str| results.get(at)?.get(name)?.as_str();
            let error = field("error").unwrap_or("error");
            let text = field("details").map_or_else(|| error.to_string(), |d| format!("{error} ({d})"));
            Err(Failure::Refused(Some(at).filter(|at| *at < n), text))
        }
        Err(ClientError::NotConnected | ClientError::Disconnected) => Err(Failure::Lost),
        Err(e) => Err(Failure::Refused(None, e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovn_schema::{ColumnValue, Str, sb};

    fn plan(names: &[&str]) -> Plan {
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        for n in names {
            plan.part(*n, n).txn.insert("Chassis", [("name", Str::from(*n).to_datum())]);
        }
        plan
    }

    /// A server that refuses some, by the place of the operation or at the end of the transaction. Gives what it took, and how
    /// many transactions it saw.
    fn serve(names: &[&str], bad: &[&str], by_place: bool, rounds: u64) -> (HashSet<String>, usize, usize) {
        let (mut a, mut taken, mut seen, mut said) = (Attempts::default(), HashSet::new(), 0, 0);
        let start = Instant::now();
        for round in 0..rounds {
            // The loop runs at each event, here ten times a second.
            let now = start + Duration::from_millis(100 * round);
            let left: Vec<&str> = names.iter().copied().filter(|n| !taken.contains(*n)).collect();
            let operations = a.choose(plan(&left), now);
            if operations.is_empty() {
                continue;
            }
            seen += 1;
            let sent: Vec<String> = operations.iter().map(|o| o["row"]["name"].as_str().unwrap().to_string()).collect();
            let at = sent.iter().position(|s| bad.contains(&&**s));
            let result = match at {
                None => {
                    taken.extend(sent);
                    Ok(())
                }
                Some(at) => Err(Failure::Refused(Some(at).filter(|_| by_place), "no".into())),
            };
            said += usize::from(a.finished(result, now).is_some());
        }
        (taken, seen, said)
    }

    #[test]
    fn one_bad_row_holds_nothing_up() {
        let names: Vec<String> = (0..100).map(|n| format!("p{n}")).collect();
        let names: Vec<&str> = names.iter().map(|n| &**n).collect();
        for by_place in [true, false] {
            let (taken, seen, said) = serve(&names, &["p63"], by_place, 300);
            assert_eq!((taken.len(), said), (99, 1), "by place: {by_place}");
            assert!(seen < 30, "{seen} transactions");
        }
    }

    #[test]
    fn a_server_that_refuses_everything_is_left_alone() {
        let names: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
        let names: Vec<&str> = names.iter().map(|n| &**n).collect();
        for by_place in [true, false] {
            let (taken, seen, _) = serve(&names, &names, by_place, 600);
            assert!(taken.is_empty());
            assert!(seen < 25, "{seen} transactions in a minute");
        }
    }

    #[test]
    fn what_is_in_line_is_compared_when_something_changes() {
        let (mut line, mut compared) = (InLine::default(), 0);
        let mut compare = |state: u8, names: &[&str]| {
            let mut p = plan(&[]);
            line.unless(state, &mut p, |p| {
                compared += 1;
                for n in names {
                    p.part(*n, n).txn.insert("Chassis", [("name", Str::from(*n).to_datum())]);
                }
                // A part without operations is nothing to do.
                p.part("nothing", 1);
            });
            compared
        };
        assert_eq!((compare(1, &["x"]), compare(1, &["x"])), (1, 2), "what is to be done is put into each plan");
        assert_eq!((compare(1, &[]), compare(1, &[]), compare(2, &[])), (3, 3, 4));
    }

    #[test]
    fn what_changed_is_tried_at_once() {
        let (mut a, now) = (Attempts::default(), Instant::now());
        assert!(!a.choose(plan(&["x"]), now).is_empty());
        assert!(a.finished(Err(Failure::Refused(None, "no".into())), now).is_some());
        assert!(a.choose(plan(&["x"]), now).is_empty());
        assert_eq!(a.next(), Some(now + FIRST_PAUSE));
        let mut other = plan(&[]);
        other.part("x", "another wish").txn.insert("Chassis", [("name", Str::from("x").to_datum())]);
        assert!(!a.choose(other, now).is_empty());
        assert!(a.finished(Ok(()), now).is_none());
        assert_eq!(a.next(), None);
    }
}
