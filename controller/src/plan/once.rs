//! Messages that are said once for as long as their cause lasts.

use std::collections::BTreeSet;

/// What was said, and what the current look at the world found again.
#[derive(Debug, Default)]
pub struct Once {
    said: BTreeSet<String>,
    now: BTreeSet<String>,
}

impl Once {
    /// Whether this is news.
    pub fn say(&mut self, text: String) -> bool {
        let news = !self.said.contains(&text) && !self.now.contains(&text);
        self.now.insert(text);
        news
    }

    /// Ends a look: what it did not find is forgotten, and said when it comes back.
    pub fn end(&mut self) {
        self.said = std::mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_lasts_is_said_once() {
        let mut o = Once::default();
        assert!(o.say("x".into()));
        o.end();
        assert!(!o.say("x".into()));
        o.end();
        o.end();
        assert!(o.say("x".into()), "it came back");
    }
}
