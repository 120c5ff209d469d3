//! JSON as it goes over the wire: framing, direct writing of data, sorted text for error messages.

use crate::{Atom, Datum};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

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
    /// Where the object began that is being read, with how deep it is: the outermost one within the text.
    object: Option<(usize, usize)>,
    /// The long ones of these so far.
    long: Vec<Range<usize>>,
}

/// A JSON text, as it was received.
#[derive(Debug, Default)]
pub struct Text {
    /// The text.
    pub bytes: Vec<u8>,
    /// Where its long objects are, in order: those within its outermost value that are within no other such object.
    pub long: Vec<Range<usize>>,
}

/// Objects from this length on are long, in bytes.
const LONG: usize = 4 << 10;
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
        Ok(self.next_with_long()?.map(|t| t.bytes))
    }

    /// The same; also tells where its long objects are, so that whoever reads it need not look for their ends again.
    ///
    /// # Errors
    /// As [`Framer::next_text`].
    pub fn next_with_long(&mut self) -> Result<Option<Text>, crate::Error> {
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
                    if b == b'{' && self.depth > 0 && self.object.is_none() {
                        self.object = Some((self.seen - 1, self.depth));
                    }
                    self.depth += 1;
                    if self.depth > DEEPEST {
                        return Err(crate::Error::syntax("JSON is nested too deeply"));
                    }
                }
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if let Some((start, _)) = self.object.take_if(|(_, depth)| *depth == self.depth)
                        && self.seen - start >= LONG
                    {
                        self.long.push(start..self.seen);
                    }
                    if self.depth == 0 {
                        let (end, long) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.long));
                        if end <= SHORT {
                            return Ok(Some(Text { bytes: self.buffer.drain(..end).collect(), long }));
                        }
                        let rest = self.buffer.split_off(end);
                        return Ok(Some(Text { bytes: std::mem::replace(&mut self.buffer, rest), long }));
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

impl Text {
    /// The text with a placeholder for each long object: `{"":N}`, with its number in [`Text::long`]. No object of the
    /// protocol has a member without a name.
    ///
    /// # Errors
    /// The text is not UTF-8.
    pub fn without_long(&self) -> Result<Cow<'_, str>, std::str::Utf8Error> {
        if self.long.is_empty() {
            return self.part(0..self.bytes.len()).map(Cow::Borrowed);
        }
        let (mut out, mut at) = (String::new(), 0);
        for (n, long) in self.long.iter().enumerate() {
            out.push_str(self.part(at..long.start)?);
            let _ = write!(out, "{PLACEHOLDER}{n}}}");
            at = long.end;
        }
        out.push_str(self.part(at..self.bytes.len())?);
        Ok(Cow::Owned(out))
    }

    fn part(&self, range: Range<usize>) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(self.bytes.get(range).unwrap_or_default())
    }

    /// A part of [`Text::without_long`] as it was received: with its long objects in their places.
    ///
    /// # Errors
    /// A long object is not UTF-8.
    pub fn whole<'a>(&'a self, part: &'a str) -> Result<Cow<'a, str>, std::str::Utf8Error> {
        let long = |text: &str| self.long.get(text.parse::<usize>().ok()?).cloned();
        // All of it may be one long object, which then is not copied.
        let only = part.strip_prefix(PLACEHOLDER).and_then(|p| p.strip_suffix('}')).and_then(long);
        if let Some(range) = only {
            return self.part(range).map(Cow::Borrowed);
        }
        if self.long.is_empty() || !part.contains(PLACEHOLDER) {
            return Ok(Cow::Borrowed(part));
        }
        let (mut out, mut rest) = (String::new(), part);
        while let Some((before, behind)) = rest.split_once(PLACEHOLDER) {
            out.push_str(before);
            match behind.split_once('}').and_then(|(n, after)| Some((long(n)?, after))) {
                Some((range, after)) => {
                    out.push_str(self.part(range)?);
                    rest = after;
                }
                None => {
                    out.push_str(PLACEHOLDER);
                    rest = behind;
                }
            }
        }
        out.push_str(rest);
        Ok(Cow::Owned(out))
    }
}

/// How a placeholder for a long object begins.
const PLACEHOLDER: &str = "{\"\":";

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

    proptest! {
        /// Long objects are found whatever the chunks, each as deep as it may be, and put back where they were.
        #[test]
        fn long_objects_are_put_back(
            values in prop::collection::vec((0u8..6, 0usize..3 * LONG), 0..6),
            chunk in 1usize..9000,
        ) {
            let object = |n: &usize| json!({"a": {"b": "}\"{".repeat(*n / 4)}, "c": [1, {}]});
            let values: Vec<Value> = values.iter().map(|(kind, n)| match kind {
                0 => json!(n),
                1 => json!("{[\"".repeat(*n / 8)),
                2 => json!([[object(n)], object(n)]),
                _ => object(n),
            }).collect();
            let message = json!({"method": "update", "params": values, "id": null, "x": object(&100)});
            let written = message.to_string();
            let mut f = Framer::default();
            let mut texts = Vec::new();
            for part in [&written, &written].into_iter().flat_map(|w| w.as_bytes().chunks(chunk)) {
                f.buffer().extend_from_slice(part);
                while let Some(t) = f.next_with_long().unwrap() {
                    texts.push(t);
                }
            }
            prop_assert_eq!(texts.len(), 2);
            for t in texts {
                let short = t.without_long().unwrap();
                prop_assert_eq!(t.whole(&short).unwrap(), written.as_str());
                let shortened: Value = serde_json::from_str(&short).unwrap();
                let pairs = shortened["params"].as_array().unwrap().iter().zip(&values);
                for (s, v) in pairs {
                    let part = s.to_string();
                    prop_assert_eq!(&serde_json::from_str::<Value>(&t.whole(&part).unwrap()).unwrap(), v);
                    let is_long = v.is_object() && v.to_string().len() >= LONG;
                    prop_assert_eq!(s != v, is_long || v.is_array() && v[1].to_string().len() >= LONG);
                }
            }
        }
    }

    #[test]
    fn a_member_without_a_name_is_left_alone() {
        let mut f = Framer::default();
        f.buffer().extend_from_slice(br#"{"a":[{"":7},{"":"x"}]}"#);
        let t = f.next_with_long().unwrap().unwrap();
        assert_eq!(t.whole(&t.without_long().unwrap()).unwrap(), r#"{"a":[{"":7},{"":"x"}]}"#);
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
