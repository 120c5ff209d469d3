//! Where in the compiler a flow is put out: `Logical_Flow.external_ids:source`.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::{PoisonError, RwLock};

/// A line of the compiler, as a number that holds as long as the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine(u16);

static ALL: RwLock<Vec<&'static Location<'static>>> = RwLock::new(Vec::new());

impl SourceLine {
    /// The number of a line.
    pub fn of(location: &'static Location<'static>) -> SourceLine {
        thread_local! {
            static KNOWN: RefCell<HashMap<usize, SourceLine, rustc_hash::FxBuildHasher>> = RefCell::default();
        }
        // The same line may have several addresses; that costs a number each, no more.
        let address = std::ptr::from_ref(location) as usize;
        KNOWN.with_borrow_mut(|known| *known.entry(address).or_insert_with(|| SourceLine::number(location)))
    }

    fn number(location: &'static Location<'static>) -> SourceLine {
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        let i = all.iter().position(|l| *l == location).unwrap_or_else(|| {
            all.push(location);
            all.len() - 1
        });
        SourceLine(u16::try_from(i).unwrap_or(u16::MAX))
    }

    /// `FILE:LINE`, the file from the crate's sources on.
    pub fn text(self) -> String {
        self.location().map_or_else(String::new, |l| {
            let file = l.file().rsplit_once("src/").map_or(l.file(), |(_, rest)| rest);
            format!("{file}:{}", l.line())
        })
    }

    fn location(self) -> Option<&'static Location<'static>> {
        ALL.read().unwrap_or_else(PoisonError::into_inner).get(usize::from(self.0)).copied()
    }
}

impl Ord for SourceLine {
    fn cmp(&self, other: &SourceLine) -> Ordering {
        if self == other { Ordering::Equal } else { self.location().cmp(&other.location()) }
    }
}

impl PartialOrd for SourceLine {
    fn partial_cmp(&self, other: &SourceLine) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_one_number() {
        let here = |_: u8| SourceLine::of(Location::caller());
        let (first, second) = (here(0), SourceLine::of(Location::caller()));
        assert_eq!(first, here(1));
        assert_ne!(first, second);
        assert!(first.text().starts_with("source_line.rs:"), "{}", first.text());
        assert!(first < second);
    }
}
