//! The operations of a transaction as they come, and their results as they go: a long transaction is kept as the
//! text that it came as, of which one operation at a time becomes a tree, and its results are text from the start.

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::{ControlFlow, Range};

/// The operations of a transaction.
#[derive(Debug)]
pub enum Operations {
    /// Parsed.
    Tree(Vec<Value>),
    /// The text as received.
    Text(Text),
}

/// A `transact` request whose operations are not parsed yet.
#[derive(Debug)]
pub struct Text {
    request: Vec<u8>,
    /// Where the parameters stand: an array of the database's name and the operations.
    params: Range<usize>,
    operations: usize,
}

/// A `transact` request, its operations as text.
#[derive(Debug)]
pub(crate) struct Transact {
    pub id: Value,
    pub database: String,
    pub operations: Text,
}

#[derive(serde::Deserialize)]
struct Envelope<'a> {
    id: Value,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: &'a RawValue,
}

/// The first parameter, and how many follow.
struct Counted(String, usize);

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Counted, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Counted;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a database and operations")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut params: A) -> Result<Counted, A::Error> {
                let name = params.next_element()?.ok_or_else(|| A::Error::custom("no database"))?;
                let mut n = 0;
                while params.next_element::<IgnoredAny>()?.is_some() {
                    n += 1;
                }
                Ok(Counted(name, n))
            }
        }
        d.deserialize_seq(Visit)
    }
}

impl Transact {
    /// A request that is a transaction in its usual form; otherwise the text as it was.
    pub(crate) fn recognise(request: Vec<u8>) -> Result<Transact, Vec<u8>> {
        let found = serde_json::from_slice::<Envelope<'_>>(&request).ok().and_then(|e| {
            let Counted(database, operations) = serde_json::from_str(e.params.get()).ok()?;
            let start = (e.params.get().as_ptr() as usize).checked_sub(request.as_ptr() as usize)?;
            let usual = e.method == "transact" && !e.id.is_null();
            usual.then(|| (e.id, database, operations, start..start + e.params.get().len()))
        });
        match found {
            Some((id, database, operations, params)) => {
                Ok(Transact { id, database, operations: Text { request, params, operations } })
            }
            None => Err(request),
        }
    }
}

impl Text {
    /// The whole request.
    pub(crate) fn into_request(self) -> Vec<u8> {
        self.request
    }
}

/// Calls a function with each operation, until it has had enough.
struct Each<F>(F);

impl<'de, F: FnMut(&Value) -> ControlFlow<()>> DeserializeSeed<'de> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&Value) -> ControlFlow<()>> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut params: A) -> Result<(), A::Error> {
        params.next_element::<IgnoredAny>()?;
        let mut wanted = true;
        loop {
            if wanted {
                let Some(operation) = params.next_element::<Value>()? else { return Ok(()) };
                wanted = (self.0)(&operation).is_continue();
            } else if params.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
    }
}

impl Operations {
    /// The number of operations.
    pub fn len(&self) -> usize {
        match self {
            Operations::Tree(list) => list.len(),
            Operations::Text(text) => text.operations,
        }
    }

    /// Whether the transaction has no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `f` with each operation until it returns `Break`.
    ///
    /// # Errors
    /// Where the text is not the JSON that it seemed to be, such as a number beyond all bounds.
    pub fn each(&self, mut f: impl FnMut(&Value) -> ControlFlow<()>) -> serde_json::Result<()> {
        match self {
            Operations::Tree(list) => {
                let _ = list.iter().try_for_each(f);
                Ok(())
            }
            Operations::Text(text) => {
                let params = text.request.get(text.params.clone()).unwrap_or_default();
                Each(&mut f).deserialize(&mut serde_json::Deserializer::from_slice(params))
            }
        }
    }
}

/// The results of a transaction's operations, as JSON.
#[derive(Debug, Default)]
pub struct Results {
    text: String,
    len: usize,
}

impl Results {
    /// Adds the result of the next operation.
    pub fn push(&mut self, result: &Value) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{}{result}", if self.len > 0 { "," } else { "" });
        self.len += 1;
    }

    /// Pads with nulls up to this number of results.
    pub fn pad(&mut self, len: usize) {
        while self.len < len {
            self.push(&Value::Null);
        }
    }

    /// All results as a JSON array.
    pub fn to_json(&self) -> String {
        format!("[{}]", self.text)
    }

    /// The results, separated by commas.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// The results as JSON values.
    pub fn to_values(&self) -> Vec<Value> {
        serde_json::from_str(&self.to_json()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn all(operations: &Operations) -> serde_json::Result<Vec<Value>> {
        let mut out = Vec::new();
        operations.each(|operation| {
            out.push(operation.clone());
            ControlFlow::Continue(())
        })?;
        Ok(out)
    }

    #[test]
    fn text_has_the_operations_of_the_tree() {
        let list = vec![json!({"op": "comment", "comment": "a\"b\u{e9}"}), json!({"op": "commit", "durable": false})];
        let request = json!({"params": ["D", list[0], list[1]], "method": "transact", "id": [1]}).to_string();
        let t = Transact::recognise(request.into_bytes()).unwrap();
        assert_eq!((t.id, t.database.as_str(), t.operations.operations), (json!([1]), "D", 2));
        let operations = Operations::Text(t.operations);
        let mut seen = Vec::new();
        let first = |v: &Value| {
            seen.push(v.clone());
            ControlFlow::Break(())
        };
        operations.each(first).unwrap();
        assert_eq!(seen, list[..1]);
        assert_eq!(all(&operations).unwrap(), list);
    }

    #[test]
    fn what_is_no_usual_transaction_stays_as_it_was() {
        for text in [
            r#"{"id":1,"method":"monitor","params":["D"]}"#,
            r#"{"id":null,"method":"transact","params":["D"]}"#,
            r#"{"id":1,"method":"transact","params":[]}"#,
            r#"{"id":1,"method":"transact","params":[7]}"#,
            r#"{"id":1,"method":"transact","params":["D",}"#,
            r#"{"id":1,"id":2,"method":"transact","params":["D"]}"#,
            r#"{"id":1,"method":"transact"}"#,
        ] {
            assert_eq!(Transact::recognise(text.into()).unwrap_err(), text.as_bytes());
        }
        // What only shows when a value is made of it is found then.
        let t = Transact::recognise(br#"{"id":1,"method":"transact","params":["D",{"a":1e999}]}"#.to_vec()).unwrap();
        assert!(all(&Operations::Text(t.operations)).is_err());
    }

    #[test]
    fn results_are_an_array() {
        let mut r = Results::default();
        r.push(&json!({"count": 1}));
        r.pad(3);
        assert_eq!(r.to_json(), r#"[{"count":1},null,null]"#);
        assert_eq!(r.to_values(), [json!({"count": 1}), Value::Null, Value::Null]);
    }
}
