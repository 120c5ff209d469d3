//! The connections to the southbound database and to the integration bridge.

use super::Controller;
use super::state::{Bridge, Link, southbound};
use crate::input::conditions;
use crate::input::settings::{self, Settings};
use crate::openflow::statistics::Statistics;
use crate::openflow::{self, Switch, Target, features};
use crate::pinctrl::task::Task;
use ovn_schema::{Str, sb};
use ovsdb_rs::client::Client;
use ovsdb_rs::stream::Remote;
use ovsdb_rs::tls::{Tls, TlsFiles};
use std::sync::PoisonError;

impl Controller {
    /// Connects to the southbound database, or to another when that changes.
    pub(super) fn connect(&mut self, s: &Settings) {
        let found = settings::tls(&self.ovs.db).or_else(|| self.given.clone());
        // What was taken out of the database goes on to serve the connection that it opened.
        let tls = found.or_else(|| self.tls.clone().filter(|_| self.remote == s.remote));
        if self.remote != s.remote || self.tls != tls {
            // A remote that needs no certificates does not wait for them.
            let needed = tls.clone().filter(|_| s.remote.contains("ssl:"));
            let usable = match self.certificates(needed) {
                Ok(t) => t,
                Err(e) => {
                    // They may be on their way; each look at the world tries again.
                    let text = format!("certificates for {}: {e}", s.remote);
                    if self.tls_complaint != text {
                        tracing::warn!(target: "stream_ssl", kind = daemon::kind(&text), "{text}");
                        self.tls_complaint = text;
                    }
                    return;
                }
            };
            self.tls = tls;
            let asked = conditions::wanted(&self.input, s.monitor_all);
            match southbound(&s.remote, &asked) {
                Ok(c) => {
                    let c = c
                        .tls(usable)
                        .leader_only(false)
                        .probe(s.probe)
                        .probe_local(s.probe_asked)
                        .known(sb::Database::schema());
                    let (client, events) = Client::start(c);
                    let number = self.sb.as_ref().map_or(1, |l| l.number + 1);
                    self.sb =
                        Some(Link { client, events, db: (), ready: false, current: false, busy: false, number, asked });
                    self.sb_attempts.reset();
                }
                Err(e) => tracing::warn!(target: "main", "external_ids:ovn-remote {:?}: {e}", s.remote),
            }
            self.remote.clone_from(&s.remote);
            self.probe = (s.probe, s.probe_asked);
        }
        if self.probe != (s.probe, s.probe_asked)
            && let Some(sb) = &self.sb
        {
            sb.client.set_probe_local(s.probe, s.probe_asked);
            self.probe = (s.probe, s.probe_asked);
        }
    }

    /// Asks for the rows of what is local now.
    pub(super) fn choose_rows(&mut self, s: &Settings) {
        let Some(l) = &mut self.sb else { return };
        let state = Some((self.input.interest(), s.monitor_all, l.number));
        if std::mem::replace(&mut self.in_line.asked, state) == state {
            return;
        }
        let wanted = conditions::wanted(&self.input, s.monitor_all);
        if l.asked != wanted {
            l.client.change_conditions(wanted.clone());
            l.asked = wanted;
            // The answer may be there before this look ends, and is not taken over then.
            self.complete = false;
        }
    }

    /// Whether the southbound copy, once it is there, has the rows of all that is local: they have been taken over.
    pub(super) fn has_all_rows(&self) -> bool {
        self.complete && self.has_wanted()
    }

    /// Whether the southbound client has the rows of all that was asked for, be it in events that nobody has looked at.
    pub(super) fn has_wanted(&self) -> bool {
        self.sb.as_ref().is_none_or(|l| l.client.has_wanted())
    }

    /// Connects to where the integration bridge is managed.
    pub(super) fn connect_switch(&mut self, s: &Settings) {
        let own = || format!("unix:{}", self.rundir.join(format!("{}.mgmt", s.bridge)).display());
        let text = s.bridge_remote.as_ref().map_or_else(own, ToString::to_string);
        let key: Str = format!("{text} {:?}", s.bridge_probe).into();
        if self.switch.as_ref().is_some_and(|b| b.key == key) {
            return;
        }
        let tls = || self.tls.clone().or_else(|| settings::tls(&self.ovs.db)).or_else(|| self.given.clone());
        let certificates = self.certificates(tls().filter(|_| text.starts_with("ssl:")));
        let target = match (Remote::parse(&text), certificates) {
            (Ok(remote), Ok(tls)) => Target { remote, tls, probe: s.bridge_probe },
            (Err(e), _) => return self.complain_switch(format!("external_ids:ovn-bridge-remote {text:?}: {e}")),
            (_, Err(e)) => return self.complain_switch(format!("certificates for {text}: {e}")),
        };
        self.switch_complaint.clear();
        let trace = self.shared.lock().unwrap_or_else(PoisonError::into_inner).trace.clone();
        match Task::start(target.clone(), trace) {
            Ok(task) => self.packets = Some(task),
            Err(e) => return self.complain_switch(format!("no thread for packets from the switch: {e}")),
        }
        self.stale = true;
        let (tell, events) = openflow::events();
        features::start(target.clone(), tell.clone());
        let statistics = Statistics::start(target.clone(), tell.clone());
        self.switch = Some(Bridge { key, flows: Switch::start(target, tell), statistics, events });
        self.features = None;
        self.switch_up = false;
    }

    /// Reads the certificates of these files.
    fn certificates(&self, files: Option<TlsFiles>) -> Result<Option<Tls>, ovsdb_rs::Error> {
        Ok(files.map(Tls::new).transpose()?.map(|t| t.limited(self.limits.clone())))
    }

    /// Says once why there is no way to the switch; the next look tries again.
    fn complain_switch(&mut self, text: String) {
        if self.switch_complaint != text {
            tracing::warn!(target: "rconn", kind = daemon::kind(&text), "{text}");
            self.switch_complaint = text;
        }
    }
}
