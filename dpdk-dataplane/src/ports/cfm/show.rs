//! `cfm/show` (ovs-vswitchd(8), "CFM Commands").

use super::MaintenancePoint;
use std::fmt::Write;
use std::time::Duration;

impl MaintenancePoint {
    /// Its state, without the line that names it.
    pub fn text(&self, now: Duration) -> String {
        let (s, status) = (&self.spec, self.status());
        let state = |up: bool| if up { "up" } else { "down" };
        let ms = |at: Duration| at.saturating_sub(now).as_millis();
        let mut out = format!("MPID {}:", s.point);
        out += if s.extended { " extended" } else { "" };
        out += if self.forced.is_some() { " fault_override\n" } else { "\n" };
        if !status.faults.is_empty() {
            let _ = writeln!(out, "  fault: {}", status.faults);
        }
        let health = status.health.map_or("undefined".into(), |n| n.to_string());
        let _ = writeln!(
            out,
            "  average health: {health}\n  opstate: {}\n  remote_opstate: {}\n  interval: {}ms",
            state(!s.down),
            state(self.remote_up),
            s.interval.as_millis()
        );
        let _ = writeln!(out, "  next CCM tx: {}ms\n  next fault check: {}ms", ms(self.next_send), ms(self.next_look));
        for (point, p) in &self.peers {
            let (heard, state) = (p.heard, state(!p.down));
            let _ = writeln!(out, "Remote MPID {point}\n  recv since check: {heard}\n  opstate: {state}");
        }
        out
    }
}
