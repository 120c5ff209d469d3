//! Trees together with how their text was laid out.
//!
//! A tree prints with the spaces that northd puts between tokens. Texts come from people as well: for them, notes on
//! single tokens hold what a tree has no place for, and nothing else: other spaces, comments, optional commas, and
//! other spellings of the same token (`0X0A` for `0xa`).

use crate::lexer::Cursor;
use crate::print::{Print, Printer};
use crate::{Error, action, expr};
use std::fmt::{self, Arguments, Display};

/// What is otherwise than a tree prints by itself, at one token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    /// The number of the token as printed; that of the end is one past the last.
    token: usize,
    /// What is in front of it.
    gap: Box<str>,
    /// How it is spelled; none: as it prints.
    spelling: Option<Box<str>>,
}

/// A tree that prints exactly as its text was.
#[derive(Clone, Debug, PartialEq)]
pub struct Written<T> {
    /// The tree.
    pub tree: T,
    notes: Vec<Note>,
}

/// Parses an expression and keeps its layout.
///
/// # Errors
/// As [`expr::parse`].
pub fn expression(text: &str) -> Result<Written<expr::Expr>, Error> {
    Written::new(expr::parse(text)?, text)
}

/// Parses actions and keeps their layout.
///
/// # Errors
/// As [`action::parse`].
pub fn actions(text: &str) -> Result<Written<action::Actions>, Error> {
    Written::new(action::parse(text)?, text)
}

impl<T: Print> Written<T> {
    fn new(tree: T, text: &str) -> Result<Written<T>, Error> {
        let mut printed: Vec<(&'static str, String)> = Vec::new();
        let mut sink = |gap: &'static str, token: Arguments<'_>| {
            printed.push((gap, token.to_string()));
            Ok(())
        };
        let mut c = Cursor::new(text);
        tree.print(&mut Printer::new(&mut sink)).map_err(|_| Error::new(0, "The tree does not print."))?;
        let mut notes = Vec::new();
        let mut end = 0;
        for (n, (gap, token)) in printed.iter().enumerate() {
            let mut note = |gap: &str, spelling: Option<&str>| {
                notes.push(Note { token: n, gap: gap.into(), spelling: spelling.map(Into::into) });
            };
            // Commas are optional: one may be missing, or stand behind the last item.
            if token == "," && !c.is(",") {
                note("", Some(""));
                continue;
            }
            while c.is(",") && token != "," {
                c.take();
            }
            let spelling = if c.source() == token {
                None
            } else if Cursor::new(token).peek() == c.peek() {
                Some(c.source())
            } else {
                return Err(c.error(format!("`{}' was parsed as `{token}'.", c.source())));
            };
            let written = text.get(end..c.at()).unwrap_or_default();
            if written != *gap || spelling.is_some() {
                note(written, spelling);
            }
            end = c.at() + c.source().len();
            c.take();
        }
        match text.get(end..) {
            None | Some("") => {}
            Some(rest) => notes.push(Note { token: printed.len(), gap: rest.into(), spelling: None }),
        }
        if c.at_end() { Ok(Written { tree, notes }) } else { Err(c.syntax("expecting end of input")) }
    }
}

impl<T: Print> Display for Written<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut notes = self.notes.iter().peekable();
        let mut n = 0;
        let mut sink = |gap: &'static str, token: Arguments<'_>| {
            let note = notes.next_if(|note| note.token == n);
            n += 1;
            let Some(note) = note else {
                f.write_str(gap)?;
                return f.write_fmt(token);
            };
            f.write_str(&note.gap)?;
            match &note.spelling {
                Some(s) => f.write_str(s),
                None => f.write_fmt(token),
            }
        };
        self.tree.print(&mut Printer::new(&mut sink))?;
        notes.next().map_or(Ok(()), |rest| f.write_str(&rest.gap))
    }
}
