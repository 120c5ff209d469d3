//! The rapid spanning tree protocol: `Bridge:rstp_enable`, and keys `rstp-*` of bridges and ports
//! (ovs-vswitchd.conf.db(5)).

use super::stp::between;
use super::{get, number};
use ovn_schema::{options, ovs};
use packet::Mac;

/// The settings of a bridge (IEEE 802.1D-2004 section 17.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstpSettings {
    /// Priority, then the address.
    pub id: u64,
    /// `rstp-max-age`, in seconds.
    pub max_age: u32,
    /// `rstp-forward-delay`, in seconds.
    pub forward_delay: u32,
    /// `rstp-transmit-hold-count`: the most messages of a port in a second.
    pub hold_count: u32,
    /// `rstp-force-protocol-version` is 0: messages are those of the older protocol.
    pub older: bool,
}

impl RstpSettings {
    /// Whether it speaks the rapid protocol (17.20.11).
    pub fn rapid(&self) -> bool {
        !self.older
    }
}

/// How a port takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstpPortSpec {
    /// `rstp-port-num`; none: as it comes.
    pub number: Option<u16>,
    /// `rstp-port-priority`, in multiples of 16.
    pub priority: u8,
    /// `rstp-path-cost`; none: as its speed says.
    pub cost: Option<u32>,
    /// `rstp-port-admin-edge`.
    pub admin_edge: bool,
    /// `rstp-port-auto-edge`.
    pub auto_edge: bool,
    /// `rstp-port-mcheck`.
    pub check: bool,
}

/// Seconds, where nothing is set.
const MAX_AGE: u32 = 20;
const FORWARD_DELAY: u32 = 15;

/// Both, if they go together (IEEE 802.1D-2004 section 17.14).
fn together(max_age: u32, forward_delay: u32) -> Option<(u32, u32)> {
    (2 * (forward_delay - 1) >= max_age).then_some((max_age, forward_delay))
}

/// The settings of a bridge; none: it does not speak the protocol.
pub(super) fn settings(b: &ovs::Bridge, mac: Mac) -> Option<RstpSettings> {
    if !b.rstp_enable {
        return None;
    }
    let o = &b.other_config;
    let id = get(o, "rstp-address").map_or(Some(mac), |m| m.parse().ok()).unwrap_or_else(|| {
        tracing::error!(target: "bridge", "bridge {}: invalid rstp-address, defaulting to {mac}", b.name);
        mac
    });
    let priority = between(&b.name, o, "rstp-priority", [0, 61_440]).unwrap_or(0x8000_u16) & 0xf000;
    let max_age = between(&b.name, o, "rstp-max-age", [6, 40]).unwrap_or(MAX_AGE);
    let forward_delay = between(&b.name, o, "rstp-forward-delay", [4, 30]).unwrap_or(FORWARD_DELAY);
    let (max_age, forward_delay) = together(max_age, forward_delay).unwrap_or_else(|| {
        let max_age = together(max_age, FORWARD_DELAY).map_or(MAX_AGE, |(age, _)| age);
        let forward_delay = together(max_age, forward_delay).map_or(FORWARD_DELAY, |(_, delay)| delay);
        tracing::error!(
            target: "bridge",
            "bridge {}: twice what rstp-forward-delay has above 1 s must not be less than rstp-max-age; taking {forward_delay} s and {max_age} s",
            b.name
        );
        (max_age, forward_delay)
    });
    Some(RstpSettings {
        id: u64::from(priority) << 48 | id.to_u64(),
        max_age,
        forward_delay,
        hold_count: between(&b.name, o, "rstp-transmit-hold-count", [1, 10]).unwrap_or(6),
        older: get(o, "rstp-force-protocol-version") == Some("0"),
    })
}

/// How a port takes part; none: it does not. Bonds and the ports of the host do not.
pub(super) fn port(p: &ovs::Port, internal: bool) -> Option<RstpPortSpec> {
    let o = &p.other_config;
    let single = p.interfaces.len() == 1 && p.lacp.as_deref().is_none_or(|l| l == "off");
    let takes_part = single && !internal && options::bool(o, "rstp-enable", true);
    takes_part.then(|| RstpPortSpec {
        number: between(&p.name, o, "rstp-port-num", [1, 4095]),
        priority: between(&p.name, o, "rstp-port-priority", [0, 240]).unwrap_or(128_u8) & 0xf0,
        cost: number(o, "rstp-path-cost").ok().flatten().filter(|n| (1..=200_000_000).contains(n)),
        admin_edge: options::flag(o, "rstp-port-admin-edge"),
        auto_edge: options::bool(o, "rstp-port-auto-edge", true),
        check: options::flag(o, "rstp-port-mcheck"),
    })
}
