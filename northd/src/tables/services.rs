//! Meters, mirrors, DNS records.

use crate::context::Ctx;
use crate::model::{Columns, RowKey};
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::collections::{BTreeMap, BTreeSet};

/// `Meter` with its bands: those of the northbound database, and one for each access list that logs through a fair one.
pub fn meters(ctx: &mut Ctx<'_, '_>) {
    let mut fair: BTreeMap<Str, Uuid> = BTreeMap::new();
    for u in ctx.nb_table::<nb::Meter>() {
        let Some(row) = ctx.nb::<nb::Meter>(u) else { continue };
        meter(ctx, &row.name, row);
        if row.fair == Some(true) {
            fair.insert(row.name.clone(), u);
        }
    }
    if fair.is_empty() {
        return;
    }
    for a in ctx.nb_table::<nb::Acl>() {
        let Some(acl) = ctx.nb::<nb::Acl>(a) else { continue };
        if !acl.log {
            continue;
        }
        let Some(u) = acl.meter.as_ref().and_then(|m| fair.get(m)) else { continue };
        if let Some(row) = ctx.nb::<nb::Meter>(*u) {
            meter(ctx, &fair_meter_name(&row.name, a), row);
        }
    }
}

/// The name of an access list's own copy of a fair meter.
pub fn fair_meter_name(meter: &str, acl: Uuid) -> String {
    format!("{meter}__{acl}")
}

fn meter(ctx: &mut Ctx<'_, '_>, name: &str, row: &nb::Meter) {
    let mut bands = Vec::new();
    let mut wanted = BTreeSet::new();
    for b in &row.bands {
        if let Some(band) = ctx.nb::<nb::MeterBand>(*b) {
            wanted.insert((band.rate, band.burst_size));
        }
    }
    for (rate, burst) in wanted {
        let key = RowKey::new(sb::TableId::MeterBand, format!("{name}/{rate}/{burst}"));
        let columns = Columns::new().data("action", &Str::from("drop")).data("rate", &rate).data("burst_size", &burst);
        ctx.row(key.clone(), columns);
        bands.push(key);
    }
    let columns = Columns::new().data("name", &Str::from(name)).data("unit", &row.unit).refs("bands", bands);
    ctx.row(RowKey::new(sb::TableId::Meter, name), columns);
}

/// `Mirror`.
pub fn mirrors(ctx: &mut Ctx<'_, '_>) {
    for u in ctx.nb_table::<nb::Mirror>() {
        let Some(row) = ctx.nb::<nb::Mirror>(u) else { continue };
        let columns = Columns::new()
            .data("name", &row.name)
            .data("filter", &row.filter)
            .data("index", &row.index)
            .data("sink", &row.sink)
            .data("type", &row.r#type)
            .data("external_ids", &row.external_ids);
        ctx.row(RowKey::new(sb::TableId::Mirror, &row.name), columns);
    }
}

/// `DNS`: one row, of the same UUID, for each northbound one that some switch uses.
pub fn dns(ctx: &mut Ctx<'_, '_>) {
    let mut switches: BTreeMap<Uuid, BTreeSet<Uuid>> = BTreeMap::new();
    for u in ctx.nb_table::<nb::LogicalSwitch>() {
        let Some(datapath) = ctx.datapath(u) else { continue };
        for d in &datapath.dns {
            switches.entry(*d).or_default().insert(u);
        }
    }
    for (u, switches) in switches {
        let Some(row) = ctx.nb::<nb::Dns>(u) else { continue };
        let mut records: Map<Str, Str> = Map::new();
        for (name, value) in &row.records {
            records.insert(name.clone(), value.to_ascii_lowercase().into());
        }
        let owned = crate::context::flag(&row.options, "ovn-owned");
        let options: Map<Str, Str> = Map::from([("ovn-owned".into(), owned.to_string().into())]);
        let columns = Columns::new()
            .data("records", &records)
            .data("options", &options)
            .refs("datapaths", switches.into_iter().map(RowKey::datapath).collect());
        ctx.row(RowKey::new(sb::TableId::Dns, u.to_string()), columns);
    }
}
