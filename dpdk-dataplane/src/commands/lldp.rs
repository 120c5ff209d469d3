//! `autoattach/*` (ovs-vswitchd(8)), and `lldp/show`: what neighbours say.

use crate::pmd::{Command, MainPmd};
use switch::BridgeId;

/// Name, and what it does.
pub(super) const COMMANDS: &[(&str, Command)] = &[
    ("autoattach/show-isid", |w, args| Ok(w.lldp.services(bridge(w, args)?))),
    ("autoattach/statistics", |w, args| Ok(w.lldp.statistics(bridge(w, args)?))),
    ("autoattach/status", |w, args| Ok(w.lldp.servers(bridge(w, args)?))),
    ("lldp/show", |w, args| Ok(w.lldp.neighbours(bridge(w, args)?))),
];

/// The bridge that is asked for, if one is.
fn bridge(w: &MainPmd, args: &[String]) -> Result<Option<BridgeId>, String> {
    if args.is_empty() { Ok(None) } else { super::bridge(w, args).map(Some) }
}
