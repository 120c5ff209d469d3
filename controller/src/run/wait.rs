//! What the loop waits for: events of databases, the switch and the services, ends of transactions, and times.

use super::Controller;
use super::state::{Bridge, Counts, Done, Link};
use crate::input::settings::{Incomplete, Settings};
use crate::openflow::Event as SwitchEvent;
use crate::pinctrl::Report;
use crate::pinctrl::task::Task;
use crate::plan::Failure;
use ovsdb_rs::client::Event;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between looks at the world without an event: while something is on its way, and when nothing is.
const LOOK: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(5);

impl Controller {
    /// When there is something to do without an event. Only what the next look can act on counts: what waits for a switch, a
    /// database or an answer comes with an event.
    pub(super) fn next_timer(&self, now: Instant) -> Instant {
        let limit = now + if self.is_at_rest() { REST } else { LOOK };
        if self.paused {
            return limit;
        }
        let periodic = [self.announcer.next(), self.advertiser.next(), self.aging.next(), self.monitors.next()];
        let periodic = periodic.into_iter().flatten().min();
        let announcements = periodic.filter(|_| self.can_announce());
        let questions = self.monitors.probes.next().filter(|_| self.is_installed());
        let writes = |l: bool, t: Option<Instant>| t.filter(|_| l);
        let (sb_free, ovs_free) = (self.southbound_is_free(), self.local_is_free());
        let all = [
            announcements,
            questions,
            self.takeover.next(now),
            writes(sb_free, self.claims.next()),
            writes(sb_free, self.sb_attempts.next()),
            writes(sb_free, self.learned.next(now)),
            writes(sb_free, self.report_after.filter(|t| *t > now)),
            writes(ovs_free, self.local_attempts.next()),
            // What was asked for came after the last look, perhaps without an event.
            (!self.complete && self.has_wanted()).then_some(now),
        ];
        // Whatever is overdue, nothing is worth more than a look each millisecond.
        all.into_iter().flatten().fold(limit, Instant::min).max(now + Duration::from_millis(1))
    }

    fn southbound_is_free(&self) -> bool {
        self.sb.as_ref().is_some_and(|l| !l.busy && l.client.is_connected())
    }

    fn local_is_free(&self) -> bool {
        !self.ovs.busy && self.ovs.client.is_connected()
    }

    /// Whether all is in place, so that events and the times that are known tell of what there is to do. A gateway looks more often:
    /// what it does follows from others' silence. That a bundle is in force is an event as well.
    fn is_at_rest(&self) -> bool {
        let nothing_waits = self.learned.is_empty() && self.virtual_ports.is_empty() && self.monitors.events.is_empty();
        self.known
            && !self.waits
            && self.is_sent()
            && self.southbound_is_free()
            && self.local_is_free()
            && nothing_waits
            && self.tls_complaint.is_empty()
            && self.sessions.is_empty()
    }

    pub(super) fn finished(&mut self, d: Done) {
        self.look = true;
        let now = Instant::now();
        let (what, said) = match d {
            Done::Local(r) => {
                self.ovs.busy = false;
                ("Open_vSwitch", self.local_attempts.finished(r, now))
            }
            Done::Southbound(number, r) => {
                let Some(l) = self.sb.as_mut().filter(|l| l.number == number) else { return };
                l.busy = false;
                if matches!(r, Err(Failure::Refused(..))) {
                    tracing::info!(target: "main", "OVNSB commit failed, what was refused is tried again later.");
                }
                ("OVN_Southbound", self.sb_attempts.finished(r, now))
            }
        };
        if let Some(text) = said {
            tracing::warn!(target: "main", kind = daemon::kind(&text), "{what}: {text}");
        }
    }

    /// What the local database says of this chassis.
    pub(super) fn settings(&mut self) -> Result<Arc<Settings>, Incomplete> {
        let at = self.interfaces.plumbing();
        match &self.settings {
            Some((then, s)) if *then == at => Ok(s.clone()),
            _ => {
                let s = Arc::new(Settings::read(&self.ovs.db, &self.identity)?);
                self.settings = Some((at, s.clone()));
                Ok(s)
            }
        }
    }

    /// Counts of what changed.
    pub(super) fn counts(&self) -> Counts {
        (self.interfaces.plumbing(), self.input.generation())
    }
}

pub(super) async fn next_event<D>(link: &mut Option<Link<D>>) -> Option<Event> {
    match link {
        Some(l) => l.events.recv().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn next_switch(switch: &mut Option<Bridge>) -> Option<SwitchEvent> {
    match switch {
        Some(b) => b.events.recv().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn next_report(packets: &mut Option<Task>, after: Instant) -> Option<Report> {
    let Some(task) = packets else { return std::future::pending().await };
    tokio::time::sleep_until(after.into()).await;
    task.report().await
}
