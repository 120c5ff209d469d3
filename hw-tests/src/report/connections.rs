//! The page's part about connections that were open while a gateway failed: each with its answers, and how late the
//! gateways told each other of them.

use super::{Span, escape, ticks};
use crate::hold::Story;
use crate::scenario::Failover;
use std::fmt::Write;

/// Width of the names beside the rows.
const LEFT: f64 = 330.0;
/// Height of a row.
const ROW: i32 = 18;
/// The server speaks by itself every 250 ms; without an answer for longer, a connection stands still.
const STILL: u64 = 400_000;

/// All of it.
pub(super) fn section(f: &Failover, victim: &str) -> String {
    let mut out = String::from(
        "<h2>Connection by connection</h2><p>Each row is a connection that was opened before the kill: its protocol, its own \
         port, what it does, and by which address and port the other end sees it. That is green where it never changed and \
         the connection was not reset. A blue tick is an answer. A connection that \u{201c}listens\u{201d} hears the other \
         end and says nothing. One that \u{201c}idles\u{201d} has no ticks: it asked once before the picture begins, and \
         asks again after it ends.</p>",
    );
    for (name, held) in &f.held {
        let _ = write!(out, "<p><b>{}</b></p>", escape(name));
        out += &rows(&held.stories, f, victim);
    }
    out + &lags(f, victim)
}

fn rows(stories: &[Story], f: &Failover, victim: &str) -> String {
    let span = Span::of(f);
    let bottom = 10 + ROW * stories.len() as i32;
    let mut s = format!("<svg viewBox=\"0 0 1000 {}\" role=\"img\">", bottom + 40);
    for (i, c) in stories.iter().enumerate() {
        let top = 8 + ROW * i as i32;
        let seen = |n: usize| c.seen[n].split(' ').next().unwrap_or_default().to_owned();
        let (first, last) = (seen(0), seen(1));
        let well = c.end.is_none() && first == last;
        let what = match &c.end {
            Some(how) => how.clone(),
            None if well => first,
            None => format!("{first}, then {last}"),
        };
        let _ = write!(
            s,
            "<text class=\"small\" x=\"0\" y=\"{y}\">{} {}, {}</text><text class=\"small {}\" x=\"140\" y=\"{y}\">{}</text>",
            c.protocol,
            c.port,
            c.habit,
            if well { "fine" } else { "bad" },
            escape(&what),
            y = top + 12,
        );
        let still = if c.habit == "idles" { u64::MAX } else { STILL };
        s += &ticks(&c.answers, &span, LEFT, (top, top + ROW - 2), still);
    }
    s + &span.axis(f, victim, LEFT, bottom) + "</svg>"
}

/// How late each gateway's connections were known to the other one, on a scale of powers of ten.
fn lags(f: &Failover, victim: &str) -> String {
    if f.lags.is_empty() {
        return String::new();
    }
    let span = Span::of(f);
    // From a tenth of a millisecond, at the bottom, to a second.
    let y = |ms: f64| 90.0 - 80.0 * ((ms.max(0.1).log10() + 1.0) / 4.0).clamp(0.0, 1.0);
    let mut s = String::from("<svg viewBox=\"0 0 1000 135\" role=\"img\">");
    for (ms, word) in [(1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1000.0, "1 s")] {
        let _ = write!(
            s,
            "<path class=\"grid\" d=\"M{LEFT} {0:.1}H980\"/><text class=\"small\" x=\"{1}\" y=\"{2:.1}\" \
             text-anchor=\"end\">{word}</text>",
            y(ms),
            LEFT - 6.0,
            y(ms) + 4.0
        );
    }
    for (i, g) in ["gw1", "gw2"].into_iter().enumerate() {
        let of = f.lags.iter().filter(|(t, who, _)| who == g && span.has(*t));
        let _ = write!(
            s,
            "<text class=\"small lag{i}\" x=\"0\" y=\"{}\">\u{25cf} {g} tells the other one</text>",
            30 + 18 * i
        );
        for (t, _, ms) in of {
            let _ =
                write!(s, "<circle class=\"lag{i}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>", span.x(*t, LEFT), y(*ms));
        }
    }
    // While one is dead, nobody is there to be told.
    let both = f.lags.iter().filter(|(t, ..)| !(f.killed..f.revived).contains(t));
    let mut all: Vec<f64> = both.map(|l| l.2).collect();
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all.get((all.len().saturating_sub(1) as f64 * share) as usize).copied().unwrap_or_default();
    format!(
        "<h2>How late the other gateway knows</h2><p>The age of what a gateway has of the other one\u{2019}s connections, ten \
         times a second. While both lived, half of the times it was {:.1} ms or less, and {:.1} ms at most. What is younger \
         at the kill may be lost. After the kill the other gateway tells nobody: its dots rise until it has closed the \
         stream, and there are none until {victim} is back.</p>{s}{}</svg>",
        at(0.5),
        at(1.0),
        span.axis(f, victim, LEFT, 95)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Held;

    #[test]
    fn a_connection_that_changed_stands_out() {
        let story = |port, last: &str, end: Option<&str>| Story {
            protocol: "TCP".into(),
            habit: "asks".into(),
            port,
            seen: ["192.0.2.1:5 ext".into(), last.into()],
            answers: vec![1_000_000, 2_000_000, 2_100_000],
            end: end.map(str::to_owned),
        };
        let stories = vec![
            story(1, "192.0.2.1:5 ext", None),
            story(2, "192.0.2.1:6 ext", None),
            story(3, "192.0.2.1:5 ext", Some("reset")),
        ];
        let held = vec![("some".to_owned(), Held { stories, ..Held::default() })];
        // The second one is of the time when gw1 is dead.
        let lags = vec![(1_900_000, "gw1".to_owned(), 0.4), (2_000_000, "gw1".to_owned(), 3.0)];
        let f = Failover { killed: 2_000_000, revived: 3_000_000, held, lags, ..Failover::default() };
        let page = section(&f, "gw1");
        assert_eq!((page.matches("small fine").count(), page.matches("small bad").count()), (1, 2));
        assert!(page.contains("192.0.2.1:5, then 192.0.2.1:6") && page.contains("0.4 ms at most"), "{page}");
        assert_eq!(page.matches("class=\"gap\"").count(), 3, "a silence of a second in each row");
        assert_eq!(page.matches("<circle").count(), 2);
    }
}
