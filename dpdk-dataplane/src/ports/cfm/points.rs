//! The maintenance points of all ports.

use super::{CfmStatus, MaintenancePoint};
use crate::config::cfm::CfmSpec;
use bfd_rs::Timers;
use openflow_rs::PortNo;
use packet::ccm;
use std::collections::BTreeMap;
use std::time::Duration;
use switch::BridgeId;

/// A port of a bridge.
type Key = (BridgeId, PortNo);

/// Something to do for a point.
#[derive(Debug, PartialEq)]
pub enum CfmAction {
    /// Send this frame out of the port.
    Send(BridgeId, PortNo, Vec<u8>),
    /// The status changed.
    Status(BridgeId, PortNo, CfmStatus),
    /// Something about the port for the log.
    Warn(BridgeId, PortNo, String),
}

fn nanos(t: Duration) -> u64 {
    u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)
}

/// All points.
#[derive(Debug, Default)]
pub struct CfmPoints {
    all: BTreeMap<Key, (MaintenancePoint, Option<CfmStatus>)>,
    /// When each wants to be looked at next, in nanoseconds.
    timers: Timers<Key>,
    /// Points to which something has happened since they were looked at.
    touched: Vec<Key>,
    /// Complaints about messages.
    complaints: Vec<(Key, String)>,
}

impl CfmPoints {
    /// Starts, changes or (without a specification) ends the point of a port, which has received so many packets.
    pub fn set(&mut self, bridge: BridgeId, port: PortNo, spec: Option<CfmSpec>, received: u64, now: Duration) {
        let key = (bridge, port);
        let Some(spec) = spec else {
            self.all.remove(&key);
            self.timers.remove(key);
            return;
        };
        match self.all.get_mut(&key) {
            Some((p, _)) => p.configure(spec, received, now),
            None => drop(self.all.insert(key, (MaintenancePoint::new(spec, now), None))),
        }
        self.touched.push(key);
    }

    /// Forgets a removed bridge, whose number another may get.
    pub fn forget_bridge(&mut self, bridge: BridgeId) {
        let CfmPoints { all, timers, .. } = self;
        all.retain(|key, _| {
            if key.0 == bridge {
                timers.remove(*key);
            }
            key.0 != bridge
        });
    }

    /// Takes a frame that a port received.
    pub fn receive(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], now: Duration) {
        let key = (bridge, port);
        let Some((p, _)) = self.all.get_mut(&key) else { return };
        match ccm::parse(frame) {
            Ok(m) => self.complaints.extend(p.receive(&m, now).map(|text| (key, text))),
            Err(e) => tracing::debug!(target: "cfm", "port {port}: received {e}"),
        }
        if !self.complaints.is_empty() {
            self.touched.push(key);
        }
    }

    /// Has a point, or all, report a fault or none, whatever they find; none: what they find. False if the port has no
    /// point.
    pub fn force(&mut self, port: Option<Key>, fault: Option<bool>) -> bool {
        let mut any = port.is_none();
        for (key, (p, _)) in self.all.iter_mut().filter(|(key, _)| port.is_none_or(|p| p == **key)) {
            p.force(fault);
            self.touched.push(*key);
            any = true;
        }
        any
    }

    /// The ports that have a point, and whether packets may be sent out of each.
    pub fn forwarding(&self) -> impl Iterator<Item = (Key, bool)> {
        self.all.iter().map(|(key, (p, _))| (*key, p.status().forwards()))
    }

    /// All points, in words.
    pub fn show(&self, now: Duration) -> Vec<(BridgeId, PortNo, String)> {
        self.all.iter().map(|((b, p), (point, _))| (*b, *p, point.text(now))).collect()
    }

    /// When [`CfmPoints::poll`] wants to be called next; none without points.
    pub fn due(&self) -> Option<Duration> {
        if !self.touched.is_empty() {
            return Some(Duration::ZERO);
        }
        self.timers.next().map(Duration::from_nanos)
    }

    /// Advances to `now` the points that are due and those that something has happened to. `received` gives the number
    /// of packets that a port has received.
    pub fn poll(&mut self, now: Duration, received: impl Fn(BridgeId, PortNo) -> u64) -> Vec<CfmAction> {
        let mut out: Vec<CfmAction> =
            self.complaints.drain(..).map(|((b, p), text)| CfmAction::Warn(b, p, text)).collect();
        while let Some(key) = self.touched.pop().or_else(|| self.timers.pop(nanos(now))) {
            let Some((p, told)) = self.all.get_mut(&key) else { continue };
            if let Some(frame) = p.poll(|| received(key.0, key.1), now) {
                out.push(CfmAction::Send(key.0, key.1, frame));
            }
            self.timers.set(key, nanos(p.due()));
            let s = p.status();
            if told.as_ref() != Some(&s) {
                *told = Some(s.clone());
                out.push(CfmAction::Status(key.0, key.1, s));
            }
        }
        out
    }
}
