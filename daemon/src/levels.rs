//! Log levels by module and destination (ovs-appctl(8), "Logging Commands").

use crate::modules;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// How grave a message is; OFF is no message's level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// The process is about to stop.
    Emer,
    /// An error.
    Err,
    /// A warning.
    Warn,
    /// Information.
    Info,
    /// Debugging.
    Dbg,
}

const LEVELS: [Level; 6] = [Level::Off, Level::Emer, Level::Err, Level::Warn, Level::Info, Level::Dbg];

impl Level {
    /// As the log shows it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "OFF",
            Level::Emer => "EMER",
            Level::Err => "ERR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Dbg => "DBG",
        }
    }

    pub(crate) fn of(level: tracing::Level) -> Level {
        match level {
            tracing::Level::ERROR => Level::Err,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            _ => Level::Dbg,
        }
    }

    /// Syslog's severity (RFC 5424 section 6.2.1).
    pub(crate) fn severity(self) -> u8 {
        match self {
            Level::Off | Level::Emer => 1,
            Level::Err => 3,
            Level::Warn => 4,
            Level::Info => 5,
            Level::Dbg => 7,
        }
    }
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Console,
    Syslog,
    File,
}

pub(crate) const DESTINATIONS: [Destination; 3] = [Destination::Console, Destination::Syslog, Destination::File];

impl Destination {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Destination::Console => "console",
            Destination::Syslog => "syslog",
            Destination::File => "file",
        }
    }
}

/// The levels.
#[derive(Debug)]
pub(crate) struct Levels {
    defaults: [Level; 3],
    modules: BTreeMap<String, [Level; 3]>,
    /// Whether modules that come later are rate-limited, and those of which the opposite holds.
    limit_all: bool,
    limit_not: BTreeSet<String>,
}

impl Default for Levels {
    fn default() -> Levels {
        let defaults = [Level::Info; 3];
        Levels {
            defaults,
            modules: modules::known().map(|m| (m.to_string(), defaults)).collect(),
            limit_all: true,
            limit_not: BTreeSet::new(),
        }
    }
}

impl Levels {
    pub(crate) fn declare(&mut self, module: &str) {
        if !self.modules.contains_key(module) {
            self.modules.insert(module.to_string(), self.defaults);
        }
    }

    pub(crate) fn knows(&self, module: &str) -> bool {
        self.modules.contains_key(module)
    }

    pub(crate) fn enabled(&self, module: &str, destination: Destination, level: Level) -> bool {
        level <= self.modules.get(module).unwrap_or(&self.defaults)[destination as usize]
    }

    /// Whether a module's messages are rate-limited.
    pub(crate) fn limited(&self, module: &str) -> bool {
        self.limit_all != self.limit_not.contains(module)
    }

    /// Sets whether messages of one module, or of all (`any`), are rate-limited.
    pub(crate) fn limit(&mut self, name: &str, on: bool) -> Result<(), String> {
        let module = name.to_ascii_lowercase().replace('-', "_");
        if module == "any" {
            self.limit_all = on;
            self.limit_not.clear();
        } else if !self.knows(&module) {
            return Err("unknown module".into());
        } else if on == self.limit_all {
            self.limit_not.remove(&module);
        } else {
            self.limit_not.insert(module);
        }
        Ok(())
    }

    /// Applies words separated by spaces, commas or colons: at most one module, destination and level.
    pub(crate) fn set(&mut self, spec: &str) -> Result<(), String> {
        let (mut module, mut destination, mut level) = (None, None, None);
        for word in spec.split([' ', ',', ':']).filter(|w| !w.is_empty()) {
            let lower = word.to_ascii_lowercase();
            if let Some(d) = DESTINATIONS.iter().find(|d| d.name() == lower) {
                if destination.replace(*d).is_some() {
                    return Err("cannot specify multiple destinations".into());
                }
            } else if let Some(l) = LEVELS.iter().find(|l| l.name().eq_ignore_ascii_case(&lower)) {
                if level.replace(*l).is_some() {
                    return Err("cannot specify multiple levels".into());
                }
            } else if lower == "any" {
                continue;
            } else if self.knows(&lower.replace('-', "_")) {
                if module.replace(lower.replace('-', "_")).is_some() {
                    return Err("cannot specify multiple modules".into());
                }
            } else {
                return Err(format!("no destination, level, or module \"{word}\""));
            }
        }
        let level = level.unwrap_or(Level::Dbg);
        let which: Vec<usize> =
            DESTINATIONS.iter().filter(|d| destination.is_none_or(|x| x == **d)).map(|d| *d as usize).collect();
        for i in which {
            match &module {
                Some(m) => {
                    if let Some(l) = self.modules.get_mut(m) {
                        l[i] = level;
                    }
                }
                None => {
                    self.defaults[i] = level;
                    self.modules.values_mut().for_each(|l| l[i] = level);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn list(&self) -> String {
        let mut s = String::from("                 console    syslog    file\n");
        s.push_str("                 -------    ------    ------\n");
        for (m, [console, syslog, file]) in &self.modules {
            let _ = write!(s, "{m:<16}  {:>4}       {:>4}       {:>4}", console.name(), syslog.name(), file.name());
            s.push_str(if self.limited(m) { "\n" } else { "    (rate limiting disabled)\n" });
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_any_order() {
        let mut l = Levels::default();
        l.set("dbg:jsonrpc,FILE").unwrap();
        assert!(l.enabled("jsonrpc", Destination::File, Level::Dbg));
        assert!(!l.enabled("jsonrpc", Destination::Console, Level::Dbg));
        assert!(!l.enabled("vconn", Destination::File, Level::Dbg));
        l.set("console:off").unwrap();
        assert!(!l.enabled("vconn", Destination::Console, Level::Emer));
        l.set("ANY:file:warn").unwrap();
        assert!(!l.enabled("never_seen", Destination::File, Level::Info));
        assert_eq!(l.set("nosuch:dbg"), Err("no destination, level, or module \"nosuch\"".into()));
        assert_eq!(l.set("dbg warn"), Err("cannot specify multiple levels".into()));
        assert!(l.list().contains("jsonrpc            OFF       INFO       WARN\n"), "{}", l.list());
    }

    #[test]
    fn modules_of_the_field_are_known() {
        let mut l = Levels::default();
        for m in ["dpif", "dpif_netdev", "ofproto-dpif", "vconn", "poll_loop", "pinctrl", "inc_proc_eng", "ofctrl"] {
            l.set(&format!("{m}:dbg")).unwrap();
        }
        assert!(l.list().contains("\ndpif_netdev        DBG        DBG        DBG\n"), "{}", l.list());
    }

    #[test]
    fn limits_are_lifted_and_set_by_module() {
        let mut l = Levels::default();
        assert!(l.limited("vconn"));
        l.limit("vconn", false).unwrap();
        assert!(!l.limited("vconn") && l.limited("main"));
        assert!(l.list().contains("vconn             INFO       INFO       INFO    (rate limiting disabled)\n"));
        l.limit("ANY", false).unwrap();
        assert!(!l.limited("vconn") && !l.limited("never_seen"));
        l.limit("ofproto-dpif", true).unwrap();
        assert!(l.limited("ofproto_dpif") && !l.limited("main"));
        assert_eq!(l.limit("nosuch", true), Err("unknown module".into()));
    }
}
