//! ERSPAN's header as a port's options and flows have it.

use openflow_rs::{FieldId as F, FlowKey};
use packet::gre::Erspan;

/// The options of a port of ERSPAN (ovs-vswitchd.conf.db(5), "Tunnel Options: erspan only"); none is `flow`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ErspanOptions {
    /// Version; without it all else comes from flows as well.
    pub version: Option<u8>,
    /// Index of the mirrored port, in version 1.
    pub index: Option<u32>,
    /// Mirrored as it left, in version 2.
    pub egress: Option<bool>,
    /// Number of the hardware, in version 2.
    pub hardware: Option<u8>,
}

impl Default for ErspanOptions {
    /// Version 1, of no port.
    fn default() -> ErspanOptions {
        ErspanOptions { version: Some(1), index: Some(0), egress: Some(false), hardware: Some(0) }
    }
}

impl ErspanOptions {
    /// The header of a packet with this key; none if flows ask for a version that there is not.
    pub fn header(&self, key: &FlowKey) -> Option<Erspan> {
        match self.version.unwrap_or(key.get(F::TunErspanVer) as u8) {
            1 => Some(Erspan::V1 { index: self.index.unwrap_or(key.get(F::TunErspanIdx) as u32) }),
            2 => Some(Erspan::V2 {
                egress: self.egress.unwrap_or(key.get(F::TunErspanDir) != 0),
                hardware: self.hardware.unwrap_or(key.get(F::TunErspanHwid) as u8),
            }),
            _ => None,
        }
    }
}

/// Writes the fields of a header.
pub(super) fn to_key(header: Erspan, key: &mut FlowKey) {
    match header {
        Erspan::V1 { index } => {
            key.set(F::TunErspanVer, 1);
            key.set(F::TunErspanIdx, index.into());
        }
        Erspan::V2 { egress, hardware } => {
            key.set(F::TunErspanVer, 2);
            key.set(F::TunErspanDir, egress.into());
            key.set(F::TunErspanHwid, hardware.into());
        }
    }
}

/// A header in the words of ovs-dpctl(8).
pub(crate) fn text(header: Erspan) -> String {
    let hex = |v: u32| if v == 0 { "0".into() } else { format!("{v:#x}") };
    match header {
        Erspan::V1 { index } => format!("erspan(ver=1,idx={})", hex(index)),
        Erspan::V2 { egress, hardware } => {
            format!("erspan(ver=2,dir={},hwid={})", u8::from(egress), hex(hardware.into()))
        }
    }
}
