//! Messages that change a bridge's tables: which they are, and how the worker carries them out.

use crate::pmd::MainPmd;
use openflow_rs::Message;
use openflow_rs::mods::FlowModCommand;
use openflow_rs::wire::DecodeError;
use switch::{BridgeId, Port};

/// Left out of floods (OFPPC_NO_FLOOD of OpenFlow 1.0).
pub(super) const NO_FLOOD: u32 = 0x10;

/// A message that changes tables, which the worker carries out.
pub(super) fn is_change(m: &Message) -> bool {
    matches!(
        m,
        Message::FlowMod(_)
            | Message::GroupMod(_)
            | Message::MeterMod(_)
            | Message::TlvTableMod(_)
            | Message::CtFlushZone(_)
            | Message::CtFlush(_)
            | Message::PacketOut(_)
            | Message::Resume(_)
            | Message::PortMod(_)
    )
}

/// A change of all flows that a match names.
pub(super) fn sweeps(m: &Message) -> bool {
    matches!(m, Message::FlowMod(f) if matches!(f.command, FlowModCommand::Modify | FlowModCommand::Delete))
}

pub(super) fn apply(w: &mut MainPmd, bridge: BridgeId, m: &Message) -> Result<(), DecodeError> {
    let now = w.now();
    let error = |error_type, code, detail: &str| Err(DecodeError { error_type, code, detail: detail.into() });
    match m {
        Message::PacketOut(p) => {
            if p.buffer_id != u32::MAX {
                return error(1, 8, "no packet is buffered here");
            }
            if let Some(b) = w.switch.bridge(bridge) {
                b.check_packet_out(&p.actions)?;
            }
            w.packet_out(bridge, p, now);
            Ok(())
        }
        Message::Resume(p) => w.resume(p).or_else(|e| error(1, 5, &e.to_string())),
        Message::PortMod(p) => {
            let Some(port) = w.switch.bridge_mut(bridge).and_then(|b| b.ports.get_mut(&p.port)) else {
                return error(7, 0, "no such port");
            };
            if port.hw_addr != p.hw_addr {
                return error(7, 1, "the port has another address");
            }
            if p.mask & NO_FLOOD != 0 {
                port.no_flood = p.config & NO_FLOOD != 0;
            }
            let mask = p.mask & (Port::DOWN | Port::NO_RECV | Port::NO_FWD);
            w.configure_port(bridge, p.port, mask, p.config & mask);
            Ok(())
        }
        m => w.switch.apply(bridge, m, now),
    }
}

/// Whether a secondary controller may not send it.
pub(super) fn is_write(m: &Message) -> bool {
    is_change(m)
        || matches!(
            m,
            Message::SetConfig(_) | Message::TableMod(..) | Message::BundleControl(_) | Message::BundleAdd(_)
        )
}
