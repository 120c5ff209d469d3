//! `vlog/set dpif_netdev:dbg`: each flow that is put into the flow cache, in the words of ovs-dpctl(8), as
//! `dpctl/dump-flows` has it.

use super::MainPmd;
use switch::{Installed, Switch};

/// Whether somebody asks for it. While nobody does, this is one look at a byte.
fn wanted() -> bool {
    tracing::enabled!(target: "dpif_netdev", tracing::Level::DEBUG)
}

impl MainPmd {
    /// Has the switch note the flows of this round, if they are to be logged.
    pub(super) fn note_flows(&mut self) {
        if wanted() != self.switch.notes_installed() {
            self.switch.note_installed(wanted());
        }
    }

    /// Logs them.
    pub(super) fn log_flows(&mut self) {
        if self.switch.notes_installed() {
            for f in self.switch.take_installed() {
                tracing::debug!(target: "dpif_netdev", "{}", text(&self.switch, &f));
            }
        }
    }
}

fn text(switch: &Switch, f: &Installed) -> String {
    let (packets, actions) = (&f.flow.packets, switch.tell_actions(&f.flow));
    match &f.old {
        Some(old) => format!("flow_mod: {packets}, old_actions:{}, actions:{actions}", switch.tell_actions(old)),
        None => format!("flow_add: {packets}, actions:{actions}"),
    }
}
