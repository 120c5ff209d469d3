//! The controller's loop: events in, the state brought into line, transactions and flows out.

mod ask;
mod connect;
mod events;
mod evpn;
mod inject;
mod local;
mod observe;
mod output;
pub mod request;
mod routing;
mod southbound;
mod state;
pub mod times;
mod wait;

pub use state::{Controller, Exit, INTERNAL_VERSION, Shared, Status};

use crate::plug::Provider;
use daemon::Daemon;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::sync::Notify;
use wait::{next_event, next_report, next_switch};

impl Controller {
    /// Adds what plugs devices of a kind in (`options:vif-plug-type` of logical ports).
    pub fn provide(&mut self, kind: &'static str, provider: Box<dyn Provider>) {
        self.plugs.provide(kind, provider);
    }

    /// Is notified when devices change that may be plugged in.
    pub fn devices(&self) -> Arc<Notify> {
        self.devices.clone()
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon) {
        let (mut exiting, devices) = (pin!(daemon.exiting()), self.devices.clone());
        let mut devices_changed = pin!(devices.notified());
        loop {
            let wake = self.next_timer(Instant::now());
            let live = !self.paused;
            tokio::select! {
                () = &mut exiting => return,
                Some(r) = self.requests.recv() => {
                    self.look = true;
                    self.answer(r);
                }
                Some(e) = self.ovs.events.recv(), if live => self.local_event(e),
                Some(e) = next_event(&mut self.sb), if live => self.southbound_event(e),
                Some(e) = next_switch(&mut self.switch) => self.switch_event(e),
                Some(r) = next_report(&mut self.packets, self.reports_after) => self.taught(r),
                Some(d) = self.done_rx.recv() => self.finished(d),
                () = &mut devices_changed => {
                    self.look = true;
                    devices_changed.set(devices.notified());
                }
                () = self.routing.changed() => self.look = true,
                () = self.evpn.changed() => self.look = true,
                () = tokio::time::sleep_until(wake.into()) => self.look = true,
            }
            self.drain();
            if !self.paused {
                self.reconcile();
            }
        }
    }

    /// What is there already belongs to the same look at the world. The southbound client may have got rows by now that are in no event
    /// yet: whether all that was asked for is here is known before, and holds for what is drained after it.
    fn drain(&mut self) {
        self.complete = self.has_wanted();
        self.take_events();
        if !self.complete && self.has_wanted() {
            self.complete = true;
            self.take_events();
        }
    }

    fn take_events(&mut self) {
        while let Some(Ok(e)) = (!self.paused).then(|| self.ovs.events.try_recv()) {
            self.local_event(e);
        }
        while let Some(Ok(e)) = self.sb.as_mut().filter(|_| !self.paused).map(|l| l.events.try_recv()) {
            self.southbound_event(e);
        }
        while let Some(Ok(e)) = self.switch.as_mut().map(|b| b.events.try_recv()) {
            self.switch_event(e);
        }
        while let Ok(d) = self.done_rx.try_recv() {
            self.finished(d);
        }
    }

    /// Brings the switch and both databases into line with what is known. Where only rows changed that nothing but flows is made of, it
    /// derives the flows alone.
    fn reconcile(&mut self) {
        if !self.ovs.ready {
            return;
        }
        let look = std::mem::take(&mut self.look) || !self.learned.is_empty();
        if !look && self.derived && self.known {
            if self.reads.is_empty() {
                return;
            }
            let before = (self.presence.versions, self.input.interest());
            self.settle();
            if before == (self.presence.versions, self.input.interest()) {
                self.derive();
                self.report_problems();
                return;
            }
        }
        let settings = match self.settings() {
            Ok(s) => s,
            Err(e) => {
                if self.complaint.as_ref() != Some(&e) {
                    tracing::warn!(target: "main", kind = daemon::kind(&e.to_string()), "{e}");
                    self.complaint = Some(e);
                }
                self.make_bridge();
                return;
            }
        };
        self.complaint = None;
        self.longest_pause = settings.garp_longest;
        self.monitors.next_hop_pause = settings.arp_longest;
        self.observe(&settings);
        self.connect(&settings);
        self.connect_switch(&settings);
        self.choose_rows(&settings);
        self.publish();
        let southbound_ready = self.sb.as_ref().is_some_and(|l| l.ready) && self.version_matches(&settings);
        // What is here is known once the rows of all local datapaths are; until then what was before stays. So it does while the
        // chassis has no row of its own (not yet, not any more, or not under a name that it cannot register): no port is its own then.
        let present = self.input.local.chassis.is_some();
        self.settled &= present;
        self.known =
            southbound_ready && present && (self.settled || self.has_all_rows()) && self.exchange_neighbours(&settings);
        if southbound_ready {
            if self.known {
                if std::mem::take(&mut self.recompute_later) {
                    self.recompute();
                }
                self.assign_zones(&settings);
                self.derive();
                self.settled = present;
                self.exchange_routes(&settings);
            }
            // What routers are to know of announced addresses is written at once.
            self.announce();
            self.write_southbound(&settings);
        }
        self.write_local(&settings, self.known);
        self.waits = !self.is_installed();
        self.report();
    }
}

fn milliseconds() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

#[cfg(test)]
mod tests;
