//! The sequence numbers by which a client waits: `NB_Global.nb_cfg` down to the chassis, and back up.

use northd::Op;
use northd::input::Input;
use ovn_schema::{ColumnValue, Str, Uuid, nb, sb};
use ovsdb_rs::Datum;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

fn integer(value: i64) -> Datum {
    value.to_datum()
}

/// A row with its name.
type Named<'a, T> = (Uuid, &'a T);

/// The row of `NB_Global` and that of `SB_Global`.
pub fn globals(input: &Input) -> Option<(Named<'_, nb::NbGlobal>, Named<'_, sb::SbGlobal>)> {
    let (nu, nb) = input.nb.nb_global.iter().next()?;
    let (su, sb) = input.sb.sb_global.iter().next()?;
    Some(((*nu, nb), (*su, sb)))
}

/// One of `NB_Global:options`.
pub fn option(input: &Input, key: &str) -> Option<Str> {
    globals(input)?.0.1.options.get(key).cloned()
}

/// Southbound: takes over `nb_cfg`, to go in with all that it stands for.
pub fn down(input: &Input) -> Option<Op<sb::TableId>> {
    let ((_, nb), (u, sb)) = globals(input)?;
    (nb.nb_cfg != sb.nb_cfg).then(|| {
        let columns = vec![("nb_cfg", integer(nb.nb_cfg)), ("nb_cfg_timestamp", integer(now()))];
        Op::Update(sb::TableId::SbGlobal, u, columns)
    })
}

/// Northbound: `sb_cfg` once the southbound database has all, `hv_cfg` once all chassis have.
pub fn up(input: &Input, in_southbound: i64) -> Option<Op<nb::TableId>> {
    let ((u, nb), (_, sb)) = globals(input)?;
    let mut columns = Vec::new();
    if nb.nb_cfg == in_southbound && nb.nb_cfg_timestamp < sb.nb_cfg_timestamp && nb.sb_cfg != in_southbound {
        columns.push(("nb_cfg_timestamp", integer(sb.nb_cfg_timestamp)));
    }
    if nb.sb_cfg != in_southbound {
        columns.push(("sb_cfg", integer(in_southbound)));
        columns.push(("sb_cfg_timestamp", integer(now())));
    }
    let (mut lowest, mut at) = (in_southbound, 0);
    for row in input.sb.chassis_private.values() {
        let chassis = row.chassis.and_then(|c| input.sb.chassis.get(&c));
        if chassis.is_some_and(|c| northd::context::flag(&c.other_config, "is-remote")) {
            continue;
        }
        if row.nb_cfg < lowest {
            (lowest, at) = (row.nb_cfg, 0);
        }
        if row.nb_cfg == lowest {
            at = at.max(row.nb_cfg_timestamp);
        }
    }
    if nb.hv_cfg != lowest {
        columns.push(("hv_cfg", integer(lowest)));
        columns.push(("hv_cfg_timestamp", integer(if at == 0 { now() } else { at })));
    }
    (!columns.is_empty()).then_some(Op::Update(nb::TableId::NbGlobal, u, columns))
}
