//! Messages that change a bridge's tables: which they are, and how they are applied.

use crate::pmd::MainPmd;
use openflow_rs::mods::FlowModCommand;
use openflow_rs::wire::DecodeError;
use openflow_rs::{Message, OfError};
use switch::{BridgeId, Port};

/// OFPPC_NO_FLOOD of OpenFlow 1.0: the port is left out of floods.
pub(super) const NO_FLOOD: u32 = 0x10;

/// Whether a message changes tables or sends packets, and so runs in the main PMD thread.
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

/// Whether a message changes all flows that a match selects, which may be many.
pub(super) fn sweeps(m: &Message) -> bool {
    matches!(m, Message::FlowMod(f) if matches!(f.command, FlowModCommand::Modify | FlowModCommand::Delete))
}

/// Whether a message removes connections, which may be many.
pub(super) fn flushes(m: &Message) -> bool {
    matches!(m, Message::CtFlushZone(_) | Message::CtFlush(_))
}

/// Applies a change, in the main PMD thread.
///
/// # Errors
/// Why the message is refused.
pub(super) fn apply(w: &mut MainPmd, bridge: BridgeId, m: &Message) -> Result<(), DecodeError> {
    let now = w.now();
    let error = |error: OfError, detail: &str| Err(error.because(detail));
    match m {
        Message::PacketOut(p) => {
            if p.buffer_id != u32::MAX {
                return error(OfError::RequestBufferUnknown, "no packet is buffered here");
            }
            if let Some(b) = w.switch.bridge(bridge) {
                b.check_packet_out(&p.actions)?;
            }
            w.packet_out(bridge, p, now);
            Ok(())
        }
        Message::Resume(p) => w.resume(p).or_else(|e| error(OfError::RequestNotPermitted, &e.to_string())),
        Message::PortMod(p) => {
            let Some(port) = w.switch.bridge_mut(bridge).and_then(|b| b.ports.get_mut(&p.port)) else {
                return error(OfError::PortModBadPort, "no such port");
            };
            if port.hw_addr != p.hw_addr {
                return error(OfError::PortModBadAddress, "the port has another address");
            }
            if p.mask & NO_FLOOD != 0 {
                port.no_flood = p.config & NO_FLOOD != 0;
            }
            let kept = Port::NO_STP | Port::NO_RECV | Port::NO_RECV_STP | Port::NO_FWD | Port::NO_PACKET_IN;
            let mask = p.mask & (Port::DOWN | kept);
            w.configure_port(bridge, p.port, mask, p.config & mask);
            Ok(())
        }
        m => w.switch.apply(bridge, m, now),
    }
}

/// Whether a message is refused from a secondary controller.
pub(super) fn is_write(m: &Message) -> bool {
    is_change(m) || matches!(m, Message::TableMod(_) | Message::BundleControl(_) | Message::BundleAdd(_))
}
