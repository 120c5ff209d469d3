//! The text of `bfd/show` (ovs-vswitchd(8)).

use super::{BfdSession, BfdSessions, micros};
use bfd_rs::{Packet, Timer};
use openflow_rs::PortNo;
use std::time::Duration;
use switch::BridgeId;

impl BfdSessions {
    /// All sessions, in the order of their numbers, as text.
    pub fn show(&self, now: Duration) -> Vec<(BridgeId, PortNo, String)> {
        let mut all: Vec<_> = self.iter().map(|((bridge, port), m)| (*bridge, *port, m.text(now))).collect();
        all.sort_by_key(|(bridge, port, _)| (*bridge, *port));
        all
    }
}

fn flags(p: Option<&Packet>) -> String {
    let all = p.map_or([false; 4], |p| [p.demand, p.control_plane_independent, p.final_, p.poll]);
    let set: Vec<&str> = ["demand", "ctl", "final", "poll"].into_iter().zip(all).filter(|f| f.1).map(|f| f.0).collect();
    if set.is_empty() { "none".into() } else { set.join(" ") }
}

impl BfdSession {
    fn text(&self, now: Duration) -> String {
        let (s, says, heard) = (&self.session, self.session.says(), self.session.heard());
        let status = self.status(now);
        let ms = |us: u32| format!("{}ms", us / 1000);
        let away = |t: Option<Timer>| {
            let (t, now) = (t.unwrap_or(0), micros(now));
            let sign = if t < now { '-' } else { '+' };
            format!("now {sign}{}ms", t.abs_diff(now) / 1000)
        };
        let [gone, next, last] = s.timers().map(away);
        let of = |f: fn(&Packet) -> u32| heard.map_or(0, f);
        // What a peer has said that is not heard any more binds nobody.
        let receives = heard.map_or(says.required_min_rx.into(), |_| s.receive_interval());
        let rows = [
            ("Forwarding", status.forwarding.to_string()),
            ("Detect Multiplier", says.detect_mult.to_string()),
            ("Concatenated Path Down", self.spec.session.concatenated_path_down.to_string()),
            ("TX Interval", format!("Approx {}", ms(s.tx_interval()))),
            ("RX Interval", format!("Approx {}ms", receives / 1000)),
            ("Detect Time", gone),
            ("Next TX Time", next),
            ("Last TX Time", last),
            ("", String::new()),
            ("Local Flags", flags(Some(&says))),
            ("Local Session State", status.state.name().into()),
            ("Local Diagnostic", status.diagnostic.into()),
            ("Local Discriminator", format!("0x{:x}", s.discriminator())),
            ("Local Minimum TX Interval", ms(says.desired_min_tx)),
            ("Local Minimum RX Interval", ms(says.required_min_rx)),
            ("", String::new()),
            ("Remote Flags", flags(heard)),
            ("Remote Session State", status.remote_state.into()),
            ("Remote Diagnostic", status.remote_diagnostic.into()),
            ("Remote Discriminator", format!("0x{:x}", s.remote_discriminator())),
            ("Remote Minimum TX Interval", ms(of(|p| p.desired_min_tx))),
            ("Remote Minimum RX Interval", heard.map_or("1ms".into(), |p| ms(p.required_min_rx))),
            ("Remote Detect Multiplier", of(|p| p.detect_mult.into()).to_string()),
        ];
        let line =
            |(name, value): (&str, String)| if name.is_empty() { "\n".into() } else { format!("  {name}: {value}\n") };
        rows.into_iter().map(line).collect()
    }
}
