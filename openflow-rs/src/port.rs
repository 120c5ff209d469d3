//! OpenFlow port numbers.

use std::fmt;
use std::str::FromStr;

/// A port of a bridge: 16 bits as Open vSwitch keeps them, widened to 32 on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortNo(pub u16);

impl PortNo {
    /// First reserved number.
    pub const MAX: PortNo = PortNo(0xff00);
    /// No output in the action set.
    pub const UNSET: PortNo = PortNo(0xfff7);
    /// The ingress port.
    pub const IN_PORT: PortNo = PortNo(0xfff8);
    /// The flow tables (packet-out only).
    pub const TABLE: PortNo = PortNo(0xfff9);
    /// Learning-switch processing.
    pub const NORMAL: PortNo = PortNo(0xfffa);
    /// All ports but the ingress port and those with flooding off.
    pub const FLOOD: PortNo = PortNo(0xfffb);
    /// All ports but the ingress port.
    pub const ALL: PortNo = PortNo(0xfffc);
    /// The controller.
    pub const CONTROLLER: PortNo = PortNo(0xfffd);
    /// The bridge's own port.
    pub const LOCAL: PortNo = PortNo(0xfffe);
    /// No port.
    pub const ANY: PortNo = PortNo(0xffff);

    /// Whether a flow that `learn` makes may send to it: a port of the bridge, or one of the reserved ones that are ports.
    pub fn may_be_learned(self) -> bool {
        self.0 < 0xff00 || matches!(self, PortNo::IN_PORT | PortNo::FLOOD | PortNo::LOCAL | PortNo::ALL)
    }

    /// The 32-bit wire form.
    pub fn to_u32(self) -> u32 {
        if self.0 >= 0xff00 { 0xffff_0000 | u32::from(self.0) } else { u32::from(self.0) }
    }

    /// From the 32-bit wire form; `None` for numbers that Open vSwitch does not support.
    pub fn from_u32(v: u32) -> Option<PortNo> {
        match v {
            0..=0xfeff => Some(PortNo(v as u16)),
            0xffff_ff00..=0xffff_ffff => Some(PortNo(v as u16)),
            _ => None,
        }
    }

    /// True for the reserved names.
    pub fn is_reserved(self) -> bool {
        self.0 >= Self::UNSET.0
    }
}

const NAMES: [(&str, PortNo); 9] = [
    ("UNSET", PortNo::UNSET),
    ("IN_PORT", PortNo::IN_PORT),
    ("TABLE", PortNo::TABLE),
    ("NORMAL", PortNo::NORMAL),
    ("FLOOD", PortNo::FLOOD),
    ("ALL", PortNo::ALL),
    ("CONTROLLER", PortNo::CONTROLLER),
    ("LOCAL", PortNo::LOCAL),
    ("ANY", PortNo::ANY),
];

impl fmt::Display for PortNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, p)| p == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for PortNo {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s.eq_ignore_ascii_case("none") {
            return Ok(PortNo::ANY);
        }
        if let Some((_, p)) = NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(s)) {
            return Ok(*p);
        }
        let v: u32 = match s.strip_prefix("0x") {
            Some(h) => u32::from_str_radix(h, 16).map_err(|_| ()),
            None => s.parse().map_err(|_| ()),
        }
        .map_err(|()| format!("\"{s}\" is not a port number; use 0-65279 or a reserved name such as LOCAL"))?;
        if v <= 0xffff {
            Ok(PortNo(v as u16))
        } else {
            PortNo::from_u32(v).ok_or_else(|| format!("port {v} is out of range"))
        }
    }
}
