//! Bonds: what a `Port` with several interfaces, or with LACP, asks for.

use super::{get, number};
use ovn_schema::{Map, Str, Uuid, options, ovs};
use packet::Mac;
use std::time::Duration;
use switch::Spread;

/// An interface of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondMember {
    /// Name.
    pub name: String,
    /// `lacp-port-id`; none: the port's number.
    pub lacp_id: Option<u16>,
    /// `lacp-port-priority`; none: the lowest one.
    pub lacp_priority: Option<u16>,
}

/// A bond.
#[derive(Clone, Debug, PartialEq)]
pub struct BondSpec {
    /// The Port row.
    pub row: Uuid,
    /// Name.
    pub name: String,
    /// Its interfaces, ordered by name.
    pub members: Vec<BondMember>,
    /// `lacp-aggregation-key`.
    pub key: Option<u16>,
    /// `bond_mode`.
    pub spread: Spread,
    /// `bond_updelay` and `bond_downdelay`.
    pub delays: [Duration; 2],
    /// `other_config:bond-primary`.
    pub primary: Option<String>,
    /// `other_config:bond-rebalance-interval`; none: load is never moved.
    pub rebalance: Option<Duration>,
    /// `other_config:bond-hash-basis`.
    pub basis: u32,
    /// `bond_active_slave`: the address of the member that was active last.
    pub last: Option<Mac>,
    /// `lacp`.
    pub lacp: Option<LacpSpec>,
    /// `other_config:all-members-active`: broadcasts and multicasts are taken from all members.
    pub all_active: bool,
    /// `other_config:bond-miimon-interval`: how often links are looked at; none: `bond-detect-mode` is carrier.
    pub miimon: Option<Duration>,
}

/// LACP of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LacpSpec {
    /// Active: it sends PDUs without having received any.
    pub active: bool,
    /// `lacp-time` is fast: it wants PDUs every second.
    pub fast: bool,
    /// System id.
    pub sys_id: Mac,
    /// System priority.
    pub sys_priority: u16,
    /// `lacp-fallback-ab`: without a partner, the bond works as active-backup.
    pub fallback: bool,
}

/// The bond of a Port row with several interfaces, or with LACP.
pub(super) fn bond(db: &ovs::Database, row: Uuid, bridge_mac: Mac) -> Option<BondSpec> {
    let p = db.port.get(&row)?;
    let (o, lacp) = (&p.other_config, p.lacp.as_deref().filter(|l| *l != "off"));
    if p.interfaces.len() < 2 && lacp.is_none() {
        return None;
    }
    // A value that cannot be read is left out, with a warning.
    fn said<T: std::str::FromStr>(of: &str, m: &Map<Str, Str>, key: &str) -> Option<T> {
        number(m, key).unwrap_or_else(|e| {
            tracing::warn!(target: "bond", "{of}: other_config:{e}; it is left out");
            None
        })
    }
    let mut rows: Vec<&ovs::Interface> =
        p.interfaces.iter().filter_map(|id| db.interface.get(id).map(|i| &**i)).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let member = |i: &&ovs::Interface| {
        let number = |key| said(&i.name, &i.other_config, key).filter(|n| *n != 0);
        let (lacp_id, lacp_priority) = (number("lacp-port-id"), number("lacp-port-priority"));
        BondMember { name: i.name.to_string(), lacp_id, lacp_priority }
    };
    let flag = |key: &str| options::flag(o, key);
    let ms = |v: i64| Duration::from_millis(v.max(0) as u64);
    Some(BondSpec {
        row,
        name: p.name.to_string(),
        members: rows.iter().map(member).collect(),
        key: rows.iter().find_map(|i| said(&i.name, &i.other_config, "lacp-aggregation-key")),
        spread: match p.bond_mode.as_deref() {
            Some("balance-slb") => Spread::Source,
            Some("balance-tcp") => Spread::Transport,
            _ => Spread::Active,
        },
        delays: [ms(p.bond_updelay), ms(p.bond_downdelay)],
        primary: get(o, "bond-primary").map(String::from),
        // 0 stands for never; other values are at least a second.
        rebalance: match said(&p.name, o, "bond-rebalance-interval") {
            Some(0) => None,
            Some(n) => Some(Duration::from_millis(n).max(Duration::from_secs(1))),
            None => Some(Duration::from_secs(10)),
        },
        basis: said(&p.name, o, "bond-hash-basis").unwrap_or(0),
        all_active: flag("all-members-active") || flag("all-slaves-active"),
        miimon: (get(o, "bond-detect-mode") == Some("miimon"))
            .then(|| Duration::from_millis(said(&p.name, o, "bond-miimon-interval").unwrap_or(200).max(100))),
        last: p.bond_active_slave.as_deref().and_then(|m| m.parse::<Mac>().ok()),
        lacp: lacp.map(|l| LacpSpec {
            active: l == "active",
            fast: get(o, "lacp-time") == Some("fast"),
            sys_id: get(o, "lacp-system-id").and_then(|m| m.parse::<Mac>().ok()).unwrap_or(bridge_mac),
            sys_priority: said(&p.name, o, "lacp-system-priority")
                .filter(|n| *n != 0)
                .unwrap_or(if p.interfaces.len() > 1 { 65534 } else { 65535 }),
            fallback: flag("lacp-fallback-ab"),
        }),
    })
}
