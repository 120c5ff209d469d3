//! Log patterns (ovs-appctl(8), "vlog/set PATTERN"): `%A %B %c %D{…} %E %m %N %n %p %P %t %T %%`,
//! each with an optional `-`, `0` and width.

use crate::levels::Level;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a log line says.
pub(crate) struct Record<'a> {
    pub program: &'a str,
    pub sequence: u64,
    pub module: &'a str,
    pub level: Level,
    pub text: &'a str,
    pub now: SystemTime,
    /// Syslog's facility in numbers (RFC 5424 section 6.2.1), where one was set.
    pub facility: Option<u8>,
}

impl Record<'_> {
    /// Syslog's priority value, of a facility where none was set.
    pub fn priority(&self, default: u8) -> u8 {
        self.facility.unwrap_or(default) * 8 + self.level.severity()
    }
}

/// The facility of messages for a syslog server.
const LOCAL0: u8 = 16;

/// This machine's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "-".to_string() } else { name.trim().to_string() }
}

/// The line for a record, without its newline.
pub(crate) fn format(pattern: &str, r: &Record<'_>) -> String {
    let mut out = String::with_capacity(pattern.len() + r.text.len() + 32);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let left = chars.next_if_eq(&'-').is_some();
        let zero = chars.next_if_eq(&'0').is_some();
        let mut width = 0;
        while let Some(d) = chars.peek().and_then(|c| c.to_digit(10)) {
            width = (width * 10 + d as usize).min(1000);
            chars.next();
        }
        let conversion = chars.next().unwrap_or('%');
        let mut argument = String::new();
        if chars.next_if_eq(&'{').is_some() {
            argument = chars.by_ref().take_while(|c| *c != '}').collect();
        }
        let value = match conversion {
            'A' => r.program.to_string(),
            'c' => r.module.to_string(),
            'D' | 'd' => time(if argument.is_empty() { "%Y-%m-%d %H:%M:%S" } else { &argument }, r.now),
            'm' => r.text.to_string(),
            'N' => r.sequence.to_string(),
            'n' => "\n".to_string(),
            'p' => r.level.name().to_string(),
            'P' => std::process::id().to_string(),
            't' | 'T' => thread(conversion == 'T', &argument),
            'B' => r.priority(LOCAL0).to_string(),
            'E' => host(),
            other => other.to_string(),
        };
        let missing = width.saturating_sub(value.chars().count());
        let pad = |fill: char| std::iter::repeat_n(fill, missing).collect::<String>();
        match (left, zero) {
            (true, _) => out.push_str(&(value + &pad(' '))),
            (false, true) => out.push_str(&(pad('0') + &value)),
            (false, false) => out.push_str(&(pad(' ') + &value)),
        }
    }
    out
}

/// The thread's name; `%T` is empty in the main thread and in the runtime's workers, which have no name of their own.
fn thread(parenthesized: bool, fallback: &str) -> String {
    let current = std::thread::current();
    match current.name() {
        Some("main" | "tokio-rt-worker") | None if parenthesized => String::new(),
        Some(name) if parenthesized => format!("({name})"),
        Some(name) => name.to_string(),
        None => fallback.to_string(),
    }
}

/// `strftime` for UTC with the conversions that logs use, and `#` for digits of the second's fraction.
fn time(spec: &str, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let (y, m, d) = date(days as i64);
    let mut fraction = since.subsec_nanos();
    let mut out = String::with_capacity(spec.len() + 8);
    let mut chars = spec.chars();
    while let Some(c) = chars.next() {
        let _ = match (c, c == '%') {
            (_, true) => match chars.next() {
                Some('Y') => write!(out, "{y:04}"),
                Some('m') => write!(out, "{m:02}"),
                Some('d') => write!(out, "{d:02}"),
                Some('e') => write!(out, "{d:2}"),
                Some('H') => write!(out, "{:02}", seconds / 3600),
                Some('M') => write!(out, "{:02}", seconds / 60 % 60),
                Some('S') => write!(out, "{:02}", seconds % 60),
                Some('s') => write!(out, "{}", since.as_secs()),
                Some('T') => write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
                Some('F') => write!(out, "{y:04}-{m:02}-{d:02}"),
                Some(other) => write!(out, "%{other}"),
                None => write!(out, "%"),
            },
            ('#', _) => {
                let digit = fraction / 100_000_000;
                fraction = fraction % 100_000_000 * 10;
                write!(out, "{digit}")
            }
            (c, _) => write!(out, "{c}"),
        };
    }
    out
}

/// Year, month and day of the days since 1970-01-01 (proleptic Gregorian calendar).
fn date(days: i64) -> (i64, i64, i64) {
    // Counted in eras of 400 years that begin on 1 March, so that the leap day comes last.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_default_pattern_is_the_fields_format() {
        let now = UNIX_EPOCH + Duration::from_millis(1_795_234_747_031);
        let r = Record {
            program: "p",
            sequence: 1,
            module: "vlog",
            level: Level::Info,
            text: "hello",
            now,
            facility: None,
        };
        assert_eq!(
            format("%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c|%p|%m", &r),
            "2026-11-21T04:19:07.031Z|00001|vlog|INFO|hello"
        );
        assert_eq!(format("%-6c|%6p|%%", &r), "vlog  |  INFO|%");
        assert_eq!(format("%B", &r), "133");
        assert_eq!(format("%B", &Record { facility: Some(3), ..r }), "29");
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(0), (1970, 1, 1));
    }
}
