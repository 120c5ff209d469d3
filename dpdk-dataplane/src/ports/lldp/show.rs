//! Agents in words, as `autoattach/*` of ovs-vswitchd(8) has them, and what neighbours say.

use super::{Agent, LldpAgents};
use packet::lldp::Id;
use std::fmt::Write;
use switch::BridgeId;

/// Bytes in hexadecimal, with colons.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

/// A name, or an address where it is one (IEEE 802.1AB tables 8-2 and 8-3).
fn text(id: &Id, address: u8) -> String {
    if id.kind == address { hex(&id.value) } else { String::from_utf8_lossy(&id.value).into_owned() }
}

const CHASSIS_ADDRESS: u8 = 4;
const PORT_ADDRESS: u8 = 3;

/// What has become of a mapping, in Open vSwitch's words.
fn status_name(status: u8) -> &'static str {
    match status {
        2 => "Active",
        3 => "Reject (Generic)",
        4 => "Reject (AA resources unavailable)",
        6 => "Reject (Invalid)",
        8 => "Reject (VLAN resources unavailable)",
        9 => "Reject (Application interaction issue)",
        super::PENDING => "Pending",
        _ => "Undefined",
    }
}

impl LldpAgents {
    /// The agents of a bridge, or of all, by their ports' names.
    fn of(&self, bridge: Option<BridgeId>) -> Vec<&Agent> {
        let wanted = self.all.iter().filter(|(key, _)| bridge.is_none_or(|b| key.0 == b));
        let mut agents: Vec<&Agent> = wanted.map(|(_, a)| a).collect();
        agents.sort_by(|a, b| a.spec.port.cmp(&b.spec.port));
        agents
    }

    /// What agents have counted.
    pub fn statistics(&self, bridge: Option<BridgeId>) -> String {
        let mut out = String::new();
        for a in self.of(bridge) {
            let _ = writeln!(out, "Statistics: {}", a.spec.port);
            let c = &a.counts;
            let counts = [
                ("tx", c.sent),
                ("rx", c.received),
                ("rx discarded", c.discarded),
                ("rx unrecognized", c.unrecognized),
                ("ageout", c.aged),
                ("insert", c.inserted),
                ("delete", c.deleted),
                ("drop", c.dropped),
            ];
            for (name, n) in counts {
                let _ = writeln!(out, "  {name} cnt: {n}");
            }
        }
        out
    }

    /// The neighbours that take part in Auto Attach.
    pub fn servers(&self, bridge: Option<BridgeId>) -> String {
        let mut out = String::new();
        for a in self.of(bridge) {
            let _ = writeln!(out, "LLDP: {}", a.spec.port);
            let units = a.neighbours.values().map(|n| &n.unit);
            for (unit, element) in units.filter_map(|u| Some((u, u.element?))) {
                let description = Some(unit.system_description.as_str()).filter(|d| !d.is_empty());
                let lines = [
                    ("Id", text(&unit.chassis, CHASSIS_ADDRESS)),
                    ("Descr", description.unwrap_or("<None>").into()),
                    ("System Id", hex(&element.system)),
                ];
                for (name, value) in lines {
                    let _ = writeln!(out, "  Auto Attach Primary Server {name}: {value}");
                }
            }
        }
        out
    }

    /// The services whose VLANs are asked for, and what has become of that.
    pub fn services(&self, bridge: Option<BridgeId>) -> String {
        let mut out = String::new();
        for a in self.of(bridge) {
            let _ = writeln!(out, "LLDP: {}", a.spec.port);
            out += "I-SID    VLAN Source      Status  \n-------- ---- ----------- --------\n";
            for (isid, vlan) in &a.spec.mappings {
                let _ = writeln!(out, "{isid:<8} {vlan:<4} {:<11} {:<11}", "Switch", status_name(a.status(*isid)));
            }
        }
        out
    }

    /// What neighbours say of themselves.
    pub fn neighbours(&self, bridge: Option<BridgeId>) -> String {
        let mut out = String::new();
        for a in self.of(bridge) {
            let _ = writeln!(out, "---- {} ----", a.spec.port);
            for unit in a.neighbours.values().map(|n| &n.unit) {
                let lines = [
                    ("chassis", text(&unit.chassis, CHASSIS_ADDRESS)),
                    ("  port", text(&unit.port, PORT_ADDRESS)),
                    ("  port description", unit.port_description.clone()),
                    ("  system", unit.system_name.clone()),
                    ("  system description", unit.system_description.clone()),
                ];
                for (name, value) in lines.iter().filter(|(_, v)| !v.is_empty()) {
                    let _ = writeln!(out, "{name}: {value}");
                }
            }
        }
        out
    }
}
