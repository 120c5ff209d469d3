//! Connectivity fault management: what `cfm_mpid` and keys `cfm_*` of an `Interface` ask for (ovs-vswitchd.conf.db(5),
//! "Connectivity Fault Management").

use super::{get, number};
use ovn_schema::{Map, Str, options};
use packet::{Mac, VlanId, ccm};
use std::time::Duration;
use switch::CcmPackets;

/// The intervals of IEEE 802.1ag table 21-16, in milliseconds, by their codes; code 0 is reserved.
const INTERVALS: [u32; 7] = [3, 10, 100, 1000, 10_000, 60_000, 600_000];
/// The greatest number of a maintenance point (IEEE 802.1ag section 21.6.4).
const MOST: u64 = 8191;
/// The interval without `cfm_interval`, in milliseconds.
const USUAL: u32 = 1000;

/// The VLAN of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CcmVlan {
    /// This one.
    Fixed(VlanId),
    /// Another one each time.
    Random,
}

/// A maintenance point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CfmSpec {
    /// `cfm_mpid`.
    pub point: u64,
    /// The code of the interval; 0: `interval` has none, which takes extended messages.
    pub code: u8,
    /// The time between two messages.
    pub interval: Duration,
    /// `cfm_extended`.
    pub extended: bool,
    /// `cfm_demand`, which is of extended mode only.
    pub demand: bool,
    /// `cfm_opstate` is `down`.
    pub down: bool,
    /// `cfm_ccm_vlan`.
    pub vlan: CcmVlan,
    /// `cfm_ccm_pcp`.
    pub priority: u8,
    /// Only messages with tunnel key 0 are for it.
    pub check_key: bool,
    /// The address that messages come from.
    pub source: Mac,
}

impl CfmSpec {
    /// Where messages are sent to.
    pub fn address(&self) -> Mac {
        if self.extended { ccm::ADDRESS_EXTENDED } else { ccm::ADDRESS }
    }

    /// Which packets are for it.
    pub fn packets(&self) -> CcmPackets {
        CcmPackets { eth_dst: self.address(), no_key: self.check_key }
    }
}

/// An interface's maintenance point, if it has one; `check_key`: it is a tunnel whose key flows say.
pub(super) fn cfm(name: &str, point: Option<i64>, o: &Map<Str, Str>, source: Mac, check_key: bool) -> Option<CfmSpec> {
    let extended = options::flag(o, "cfm_extended");
    // The column is a signed number; extended points are of eight bytes.
    let point = point? as u64;
    if point == 0 || !extended && point > MOST {
        tracing::warn!(target: "cfm", "{name}: cfm_mpid={point}: expected a number from 1 to {MOST}; CFM is off");
        return None;
    }
    let wanted = number::<u32>(o, "cfm_interval").ok().flatten().filter(|n| *n > 0).unwrap_or(USUAL);
    let place = INTERVALS.iter().rposition(|n| *n <= wanted).unwrap_or(0);
    let listed = INTERVALS.get(place).copied().unwrap_or(USUAL);
    let (code, ms) = match extended && listed != wanted {
        true => (0, wanted.min(u16::MAX.into())),
        false => (place as u8 + 1, listed),
    };
    Some(CfmSpec {
        point,
        code,
        interval: Duration::from_millis(ms.into()),
        extended,
        demand: extended && options::flag(o, "cfm_demand"),
        down: extended && get(o, "cfm_opstate").is_some_and(|s| !s.eq_ignore_ascii_case("up")),
        vlan: match get(o, "cfm_ccm_vlan") {
            Some(v) if v.eq_ignore_ascii_case("random") => CcmVlan::Random,
            _ => CcmVlan::Fixed(number(o, "cfm_ccm_vlan").ok().flatten().unwrap_or_default()),
        },
        priority: number(o, "cfm_ccm_pcp").ok().flatten().filter(|n| *n < 8).unwrap_or(0),
        check_key,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    fn of(point: i64, pairs: &[(&str, &str)]) -> Option<CfmSpec> {
        cfm("p", Some(point), &map(pairs), Mac([2; 6]), false)
    }

    #[test]
    fn intervals_are_those_of_the_standard_or_any_in_extended_mode() {
        let is = |pairs: &[_]| of(1, pairs).map(|s| (s.code, s.interval.as_millis()));
        assert_eq!(is(&[]), Some((4, 1000)));
        for (asked, code, ms) in [("1", 1, 3), ("300", 3, 100), ("9999", 4, 1000), ("700000", 7, 600_000)] {
            assert_eq!(is(&[("cfm_interval", asked)]), Some((code, ms)), "{asked}");
        }
        for (asked, code, ms) in [("300", 0, 300), ("100", 3, 100), ("70000", 0, 65_535), ("0", 4, 1000)] {
            assert_eq!(is(&[("cfm_interval", asked), ("cfm_extended", "true")]), Some((code, ms)), "{asked}");
        }
    }

    #[test]
    fn points_beyond_the_standard_take_extended_mode() {
        assert!(of(0, &[]).is_none() && of(8192, &[]).is_none() && of(-1, &[]).is_none() && of(8191, &[]).is_some());
        let far = of(-1, &[("cfm_extended", "true"), ("cfm_demand", "true"), ("cfm_opstate", "down")]);
        assert!(far.is_some_and(|s| s.point == u64::MAX && s.demand && s.down));
        let near = of(1, &[("cfm_demand", "true"), ("cfm_opstate", "down")]);
        assert!(near.is_some_and(|s| !s.demand && !s.down && s.address() == ccm::ADDRESS));
        assert_eq!(cfm("p", None, &map(&[]), Mac([2; 6]), false), None);
        let tagged = of(1, &[("cfm_ccm_vlan", "random"), ("cfm_ccm_pcp", "3")]);
        assert!(tagged.is_some_and(|s| (s.vlan, s.priority) == (CcmVlan::Random, 3)));
    }
}
