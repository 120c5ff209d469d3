//! Which asynchronous messages a connection gets (OpenFlow 1.3 section 7.3.10, 1.5 section 7.3.10).

use super::Version;
use crate::OfError;
use crate::wire::{DecodeError, Put, Reader};

/// A bit for each reason, for connections whose role is equal or primary, and for secondary ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AsyncMasks {
    /// Equal or primary.
    pub primary: u32,
    /// Secondary.
    pub secondary: u32,
}

impl AsyncMasks {
    /// With or without packet-ins whose TTL ended (OFPR_INVALID_TTL); secondary connections get none.
    pub fn of_invalid_ttl(&mut self, wanted: bool) {
        let bit = 1 << 2;
        self.primary = if wanted { self.primary | bit } else { self.primary & !bit };
    }
}

/// Tables' room, for secondary controllers, and the next kind for others.
const TABLE_STATUS: u16 = 8;
/// Requests of others, for secondary controllers.
const REQUEST_FORWARD: u16 = 10;
/// The same for primary ones: the last kind of message that a mask can be about.
const LAST_KIND: u16 = 11;
/// Bits of the reasons that there are.
const REASONS: u32 = 0x3f;

/// The masks of each kind of asynchronous message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncConfig {
    /// Packet-ins, by reason.
    pub packet_in: AsyncMasks,
    /// Port statuses, by reason.
    pub port_status: AsyncMasks,
    /// Flows that went, by reason.
    pub flow_removed: AsyncMasks,
    /// Tables whose room has changed, by reason.
    pub table_status: AsyncMasks,
    /// Changes of groups and meters that others have asked for: 0 groups, 1 meters.
    pub request_forward: AsyncMasks,
}

impl AsyncConfig {
    /// What a connection gets that has not said what it wants: what Open vSwitch sends then.
    pub fn initial(v: Version) -> AsyncConfig {
        let newer = v >= Version::Of14;
        // Timeouts and deletion; since 1.3 deletion of a group, since 1.4 of a meter, and eviction.
        let removed = if newer {
            0b11_1111
        } else if v == Version::Of13 {
            0b1111
        } else {
            0b111
        };
        AsyncConfig {
            // No match and action; later versions say more closely which action.
            packet_in: AsyncMasks { primary: if newer { 0b11_1011 } else { 0b11 }, secondary: 0 },
            port_status: AsyncMasks { primary: 0b111, secondary: 0b111 },
            flow_removed: AsyncMasks { primary: removed, secondary: 0 },
            table_status: AsyncMasks::default(),
            request_forward: AsyncMasks::default(),
        }
    }

    /// The body of [`super::Message::SetAsync`] and [`super::Message::GetAsyncReply`]; of the kinds that only 1.4 and
    /// later know, those that are wanted.
    pub fn body(&self, v: Version) -> Vec<u8> {
        let mut o = Vec::new();
        let kinds = [self.packet_in, self.port_status, self.flow_removed];
        if v >= Version::Of14 {
            let masks = kinds.iter().flat_map(|k| [k.secondary, k.primary]);
            let newer = [(TABLE_STATUS, self.table_status), (REQUEST_FORWARD, self.request_forward)];
            let newer = newer.into_iter().flat_map(|(kind, k)| {
                let kind = usize::from(kind);
                [(kind, k.secondary), (kind + 1, k.primary)]
            });
            for (kind, mask) in masks.enumerate().chain(newer.filter(|(_, mask)| *mask != 0)) {
                o.p16(kind as u16);
                o.p16(8);
                o.p32(mask);
            }
        } else {
            for k in kinds {
                o.p32(k.primary);
                o.p32(k.secondary);
            }
        }
        o
    }

    /// As it is after a body; in 1.4 and later, what is not named there stays as it was.
    ///
    /// # Errors
    /// The body is cut short.
    pub fn changed_by(mut self, body: &[u8], v: Version) -> Result<AsyncConfig, DecodeError> {
        let mut r = Reader::new(body);
        let kinds = [&mut self.packet_in, &mut self.port_status, &mut self.flow_removed];
        if v < Version::Of14 {
            for (k, reasons) in kinds.into_iter().zip([0b111, 0b111, REASONS]) {
                // Reasons that there are not are left out, as in Open vSwitch, which says so when it is asked.
                *k = AsyncMasks { primary: r.u32()? & reasons, secondary: r.u32()? & reasons };
            }
            return Ok(self);
        }
        let mut masks = kinds.into_iter().flat_map(|k| [&mut k.secondary, &mut k.primary]).collect::<Vec<_>>();
        let (forward, tables) = (&mut self.request_forward, &mut self.table_status);
        while !r.is_empty() {
            let (kind, len) = (r.u16()?, r.u16()?);
            if len != 8 {
                return Err(DecodeError::new(OfError::PropertyBadLength, format!("property {kind} has length {len}")));
            }
            if kind > LAST_KIND {
                return Err(DecodeError::new(
                    OfError::AsyncConfigUnsupported,
                    format!("there are no messages of kind {kind}"),
                ));
            }
            let mask = r.u32()?;
            if mask & !REASONS != 0 {
                return Err(DecodeError::new(
                    OfError::AsyncConfigInvalid,
                    format!("messages of kind {kind}: reasons {mask:#x}"),
                ));
            }
            match kind {
                TABLE_STATUS => tables.secondary = mask,
                9 => tables.primary = mask,
                REQUEST_FORWARD => forward.secondary = mask,
                LAST_KIND => forward.primary = mask,
                _ => masks.get_mut(usize::from(kind)).into_iter().for_each(|m| **m = mask),
            }
        }
        Ok(self)
    }
}
