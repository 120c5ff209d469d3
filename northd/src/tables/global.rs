//! `SB_Global`: what of `NB_Global` concerns controllers.

use crate::addresses::Mac;
use crate::context::Ctx;
use crate::facts::global::{MAX_KEY, WRITTEN};
use crate::model::{Columns, RowKey};
use ovn_schema::{Map, Set, Str, nb, sb};

/// OVN version, southbound schema version, number of actions and minor version: what controllers pin themselves to.
pub const INTERNAL_VERSION: &str = "26.03.90-21.11.0-82.15";

/// The option of `SB_Global` that is not northd's.
const OWN_PROBE: &str = "sbctl_probe_interval";

/// Options of `NB_Global` that northd makes up once, where they are missing.
pub const MADE_ONCE: [&str; 3] = ["mac_prefix", "svc_monitor_mac", "svc_monitor_mac_dst"];

/// The row of `SB_Global`, the address set of service monitors, and options that northd makes up itself.
pub fn run(ctx: &mut Ctx<'_, '_>) {
    let global = ctx.global();
    let mut options = global.options.clone();
    let written = [global.max_datapath_key().to_string(), INTERNAL_VERSION.to_string()];
    options.extend(WRITTEN.iter().zip(written).map(|(key, value)| (Str::from(*key), Str::from(value))));
    if let Some(row) = ctx.nb_table::<nb::NbGlobal>().first().copied() {
        let columns = Columns::new().data("options", &options);
        ctx.nb_columns(nb::TableId::NbGlobal, row, columns);
    }
    for u in ctx.sb_table::<sb::SbGlobal>() {
        let Some(row) = ctx.sb::<sb::SbGlobal>(u) else { continue };
        options.extend(row.options.get_key_value(OWN_PROBE).map(|(k, v)| (k.clone(), v.clone())));
        let rest = |o: &Map<Str, Str>| {
            o.iter().filter(|(k, _)| &***k != MAX_KEY).eq(options.iter().filter(|(k, _)| &***k != MAX_KEY))
        };
        if let Some(present) = row.options.get(MAX_KEY).filter(|_| rest(&row.options)) {
            options.insert(MAX_KEY.into(), present.clone());
        }
    }
    let columns = Columns::new().data("options", &options).data("ipsec", &global.ipsec);
    ctx.row(RowKey::new(sb::TableId::SbGlobal, ""), columns);
    let macs: Set<Str> = ["svc_monitor_mac", "svc_monitor_mac_dst"]
        .iter()
        .filter_map(|k| global.options.get(*k))
        .filter_map(|m| m.parse::<Mac>().ok())
        .map(|m| Str::from(m.to_string()))
        .collect();
    let columns = Columns::new().data("name", &Str::from("svc_monitor_mac")).data("addresses", &macs);
    ctx.row(RowKey::new(sb::TableId::AddressSet, "svc_monitor_mac"), columns);
}
