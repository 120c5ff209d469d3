//! Numbers of tables, groups and meters.

use std::str::FromStr;

/// A flow table of a bridge (OpenFlow 1.5 section 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct TableId(pub u8);

packet::decimal!(TableId);

impl TableId {
    /// The table that packets enter first.
    pub const FIRST: TableId = TableId(0);
    /// Open vSwitch keeps this one for flows of its own.
    pub const INTERNAL: TableId = TableId(254);
    /// All tables, in deletions and requests.
    pub const ALL: TableId = TableId(255);
    /// In `resubmit`, the table that the packet is in.
    pub const CURRENT: TableId = TableId(255);

    /// Its place in a list of tables.
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// A number.
impl FromStr for TableId {
    type Err = String;

    fn from_str(s: &str) -> Result<TableId, String> {
        number(s)
            .and_then(|n| u8::try_from(n).ok())
            .map(TableId)
            .ok_or_else(|| format!("\"{s}\" is not a table; give a number from 0 to 255"))
    }
}

/// A group of a bridge (OpenFlow 1.5 section 7.3.4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct GroupId(pub u32);

packet::decimal!(GroupId);

impl GroupId {
    /// All groups, in deletions and requests.
    pub const ALL: GroupId = GroupId(0xffff_fffc);
    /// Any group, and no group to watch.
    pub const ANY: GroupId = GroupId(0xffff_ffff);
}

/// A number, `all` or `any`.
impl FromStr for GroupId {
    type Err = String;

    fn from_str(s: &str) -> Result<GroupId, String> {
        match s {
            _ if s.eq_ignore_ascii_case("all") => Ok(GroupId::ALL),
            _ if s.eq_ignore_ascii_case("any") => Ok(GroupId::ANY),
            _ => number(s)
                .map(GroupId)
                .ok_or_else(|| format!("\"{s}\" is not a group; give a number of 32 bits, \"all\" or \"any\"")),
        }
    }
}

/// A meter of a bridge (OpenFlow 1.5 section 7.3.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct MeterId(pub u32);

packet::decimal!(MeterId);

impl MeterId {
    /// The virtual meter of packets that only the daemon can deal with.
    pub const SLOWPATH: MeterId = MeterId(0xffff_fffd);
    /// The virtual meter of packets to controllers.
    pub const CONTROLLER: MeterId = MeterId(0xffff_fffe);
    /// All meters, in deletions and requests.
    pub const ALL: MeterId = MeterId(0xffff_ffff);
}

/// A number, `all`, `controller` or `slowpath`.
impl FromStr for MeterId {
    type Err = String;

    fn from_str(s: &str) -> Result<MeterId, String> {
        match s {
            "all" => Ok(MeterId::ALL),
            "controller" => Ok(MeterId::CONTROLLER),
            "slowpath" => Ok(MeterId::SLOWPATH),
            _ => number(s).map(MeterId).ok_or_else(|| {
                format!("\"{s}\" is not a meter; give a number of 32 bits, \"all\", \"controller\" or \"slowpath\"")
            }),
        }
    }
}

fn number(s: &str) -> Option<u32> {
    let s = s.trim();
    match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let groups = ["7", "0x10", "ALL", "any"].map(|s| s.parse::<GroupId>());
        assert_eq!(groups, [GroupId(7), GroupId(16), GroupId::ALL, GroupId::ANY].map(Ok));
        let meters = ["7", "0x10", "all", "controller", "slowpath"].map(|s| s.parse::<MeterId>());
        assert_eq!(meters, [MeterId(7), MeterId(16), MeterId::ALL, MeterId::CONTROLLER, MeterId::SLOWPATH].map(Ok));
        for bad in ["", "-1", "4294967296", "0x", "some"] {
            assert!(bad.parse::<GroupId>().is_err() && bad.parse::<MeterId>().is_err(), "{bad}");
        }
        assert_eq!(["7", "0xfe", "255"].map(str::parse), [TableId(7), TableId::INTERNAL, TableId::ALL].map(Ok));
        for bad in ["", "-1", "256", "0x100", "all"] {
            assert!(bad.parse::<TableId>().is_err(), "{bad}");
        }
        let texts = [TableId(5).to_string(), GroupId(7).to_string(), MeterId(9).to_string()];
        assert_eq!(texts, ["5", "7", "9"]);
    }
}
