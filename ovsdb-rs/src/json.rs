//! JSON as it goes over the wire: framing, direct writing of data, sorted text for error messages.

use crate::{Atom, Datum};
use serde_json::Value;
use std::fmt::Write;

/// How deep arrays and objects may be nested, as in serde_json.
const DEEPEST: usize = 127;

/// Finds where one JSON text ends and the next begins in a stream that has no separators (RFC 7047 section 4).
#[derive(Debug, Default)]
pub struct Framer {
    buffer: Vec<u8>,
    /// How much of the buffer was looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// Room for what is received next, in bytes: most messages come with one read.
const ROOM: usize = 2048;
/// Texts up to this length are copied out of the buffer, which stays; of longer ones the buffer itself is handed out.
const SHORT: usize = 16 << 10;

impl Framer {
    /// The buffer to append what was received to; it has room.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.reserve(ROOM);
        &mut self.buffer
    }

    /// How many bytes wait for the end of their text.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the next whole JSON object or array.
    ///
    /// # Errors
    /// Where anything but white space stands between texts.
    pub fn next_text(&mut self) -> Result<Option<Vec<u8>>, crate::Error> {
        while let Some(b) = self.buffer.get(self.seen).copied() {
            if self.in_string && !self.escaped {
                // Most text is within strings: on to what means something there.
                let rest = self.buffer.get(self.seen..).unwrap_or_default();
                self.seen += memchr::memchr2(b'"', b'\\', rest).map_or(rest.len(), |i| i + 1);
                match self.buffer.get(self.seen.saturating_sub(1)) {
                    Some(b'"') => self.in_string = false,
                    Some(b'\\') => self.escaped = true,
                    _ => {}
                }
                continue;
            }
            self.seen += 1;
            if self.in_string {
                self.escaped = false;
                continue;
            }
            match b {
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.depth > DEEPEST {
                        return Err(crate::Error::syntax("JSON is nested too deeply"));
                    }
                }
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        let end = std::mem::take(&mut self.seen);
                        if end <= SHORT {
                            return Ok(Some(self.buffer.drain(..end).collect()));
                        }
                        let rest = self.buffer.split_off(end);
                        return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
                    }
                }
                b'"' if self.depth > 0 => self.in_string = true,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.depth == 0 => return Err(crate::Error::syntax("expected a JSON object on the stream")),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// The text of a JSON value with the members of objects sorted, as ovsdb-server shows it in errors.
pub fn canonical(v: &Value) -> String {
    let mut out = String::new();
    write_canonical(v, &mut out);
    out
}

fn write_canonical(v: &Value, out: &mut String) {
    match v {
        Value::Object(o) => {
            let mut members: Vec<_> = o.iter().collect();
            members.sort_by(|a, b| a.0.cmp(b.0));
            out.push('{');
            for (i, (k, v)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(k, out);
                out.push(':');
                write_canonical(v, out);
            }
            out.push('}');
        }
        Value::Array(a) => {
            out.push('[');
            for (i, v) in a.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(v, out);
            }
            out.push(']');
        }
        Value::Number(n) => match n.as_i64() {
            Some(i) => {
                let _ = write!(out, "{i}");
            }
            None => write_real(n.as_f64().unwrap_or_default(), out),
        },
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// Writes a string with its quotes, as serde_json does.
pub fn write_string(s: &str, out: &mut String) {
    out.push('"');
    let mut plain = 0;
    for (i, b) in s.bytes().enumerate().filter(|(_, b)| *b < 0x20 || matches!(b, b'"' | b'\\')) {
        // What is escaped is one byte long, so both ends lie between characters.
        out.push_str(s.get(plain..i).unwrap_or_default());
        plain = i + 1;
        match b {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            _ => {
                let _ = write!(out, "\\u{b:04x}");
            }
        }
    }
    out.push_str(s.get(plain..).unwrap_or_default());
    out.push('"');
}

fn write_real(r: f64, out: &mut String) {
    if r.fract() == 0.0 && r.abs() < 9e15 {
        let _ = write!(out, "{}", r as i64);
    } else {
        let _ = write!(out, "{}", serde_json::Number::from_f64(r).map_or_else(|| "0".to_string(), |n| n.to_string()));
    }
}

impl Atom {
    /// Appends the JSON form, as [`Atom::to_json`] would give it.
    pub fn write_json(&self, out: &mut String) {
        match self {
            Atom::Integer(i) => {
                let _ = write!(out, "{i}");
            }
            Atom::Real(r) => write_real(r.0, out),
            Atom::Boolean(b) => out.push_str(if *b { "true" } else { "false" }),
            Atom::String(s) => write_string(s, out),
            Atom::Uuid(u) => {
                let mut text = uuid::Uuid::encode_buffer();
                out.push_str("[\"uuid\",\"");
                out.push_str(u.hyphenated().encode_lower(&mut text));
                out.push_str("\"]");
            }
        }
    }
}

impl Datum {
    /// Appends the JSON form, as [`Datum::to_json`] would give it.
    pub fn write_json(&self, out: &mut String) {
        match self {
            Datum::Scalar(a) => a.write_json(out),
            Datum::Set(atoms) => {
                out.push_str("[\"set\",[");
                for (i, a) in atoms.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    a.write_json(out);
                }
                out.push_str("]]");
            }
            Datum::Map(pairs) => {
                out.push_str("[\"map\",[");
                for (i, (k, v)) in pairs.iter().enumerate() {
                    out.push_str(if i > 0 { ",[" } else { "[" });
                    k.write_json(out);
                    out.push(',');
                    v.write_json(out);
                    out.push(']');
                }
                out.push_str("]]");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn strings_as_serde_json_writes_them(s in "[\\x00-\\x20\"\\\\a\u{7f}é😀]{0,20}") {
            let mut out = String::new();
            write_string(&s, &mut out);
            prop_assert_eq!(out, serde_json::to_string(&s).unwrap());
        }
    }

    #[test]
    fn texts_are_cut_whatever_the_chunks() {
        let stream = br#"{"a":"}\"{"}[1,[2]] {"b":{}}"#;
        for size in 1..stream.len() {
            let mut f = Framer::default();
            let mut texts = Vec::new();
            for chunk in stream.chunks(size) {
                f.buffer().extend_from_slice(chunk);
                while let Some(t) = f.next_text().unwrap() {
                    texts.push(serde_json::from_slice::<Value>(&t).unwrap());
                }
            }
            assert_eq!(texts, [json!({"a": "}\"{"}), json!([1, [2]]), json!({"b": {}})]);
        }
        let mut f = Framer::default();
        f.buffer().extend_from_slice(b"GET /");
        assert!(f.next_text().is_err());
    }

    #[test]
    fn written_as_built() {
        let d = Datum::map(vec![(Atom::String("a\"\n".into()), Atom::Real(crate::Real(1.5)))]);
        let mut s = String::new();
        d.write_json(&mut s);
        assert_eq!(serde_json::from_str::<Value>(&s).unwrap(), d.to_json());
        assert_eq!(canonical(&json!({"b": 1.0, "a": [true, null]})), r#"{"a":[true,null],"b":1}"#);
    }
}
