//! The spanning tree protocol: `Bridge:stp_enable`, and keys `stp-*` of bridges and ports (ovs-vswitchd.conf.db(5)).

use super::{get, number};
use ovn_schema::{Map, Str, ovs};
use packet::Mac;
use std::time::Duration;

/// The spanning tree's settings of a bridge (IEEE 802.1D-1998 section 8.10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSettings {
    /// Priority, then the address.
    pub id: u64,
    /// Hello time.
    pub hello: Duration,
    /// Max age.
    pub max_age: Duration,
    /// Forward delay.
    pub forward_delay: Duration,
}

/// How a port takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StpPortSpec {
    /// `stp-port-num`; none: as it comes.
    pub number: Option<u8>,
    /// `stp-port-priority`.
    pub priority: u8,
    /// `stp-path-cost`; none: as its speed says.
    pub cost: Option<u32>,
}

/// A number between bounds, or the usual one where there is none; one out of bounds is told.
pub(super) fn between<T: Copy + PartialOrd + std::str::FromStr + std::fmt::Display>(
    name: &str,
    options: &Map<Str, Str>,
    key: &'static str,
    [least, most]: [T; 2],
) -> Option<T> {
    let text = get(options, key)?;
    let n = text.parse().ok().filter(|n| (least..=most).contains(n));
    if n.is_none() {
        tracing::warn!(target: "bridge", "{name}: {key}={text}: expected a number from {least} to {most}");
    }
    n
}

/// The settings of a bridge's tree; none: it has none.
pub(super) fn settings(b: &ovs::Bridge, mac: Mac) -> Option<TreeSettings> {
    if !b.stp_enable {
        return None;
    }
    let o = &b.other_config;
    let seconds = |key, bounds, usual| Duration::from_secs(between(&b.name, o, key, bounds).unwrap_or(usual));
    let id = get(o, "stp-system-id").map_or(Some(mac), |m| m.parse().ok()).unwrap_or_else(|| {
        tracing::error!(target: "bridge", "bridge {}: invalid stp-system-id, defaulting to {mac}", b.name);
        mac
    });
    let priority = between(&b.name, o, "stp-priority", [0, u16::MAX]).unwrap_or(0x8000);
    Some(TreeSettings {
        id: u64::from(priority) << 48 | id.to_u64(),
        hello: seconds("stp-hello-time", [1, 10], 2),
        max_age: seconds("stp-max-age", [6, 40], 20),
        forward_delay: seconds("stp-forward-delay", [4, 30], 15),
    })
}

/// How a port takes part; none: it does not. Bonds and the ports of the host do not.
pub(super) fn port(p: &ovs::Port, internal: bool) -> Option<StpPortSpec> {
    let o = &p.other_config;
    let single = p.interfaces.len() == 1 && p.lacp.as_deref().is_none_or(|l| l == "off");
    let takes_part = single && !internal && get(o, "stp-enable") != Some("false");
    takes_part.then(|| StpPortSpec {
        number: between(&p.name, o, "stp-port-num", [1, u8::MAX]),
        priority: between(&p.name, o, "stp-port-priority", [0, u8::MAX]).unwrap_or(128),
        cost: number(o, "stp-path-cost").ok().flatten().filter(|n| (1..=65_535).contains(n)),
    })
}
