//! The `log()` action of access lists.

use crate::context::Ctx;
use crate::tables::services::fair_meter_name;
use ovn_schema::{Uuid, nb};

/// The action, with a blank after it; nothing where the list does not log.
pub fn action(ctx: &mut Ctx<'_, '_>, uuid: Uuid, acl: &nb::Acl) -> String {
    if !acl.log {
        return String::new();
    }
    let mut parts = Vec::new();
    if let Some(name) = &acl.name {
        parts.push(format!("name={}", crate::addresses::quoted(name)));
    }
    parts.push(format!("severity={}", acl.severity.as_deref().unwrap_or("info")));
    let verdict = match &*acl.action {
        "drop" => Some("drop"),
        "reject" => Some("reject"),
        "allow" | "allow-related" | "allow-stateless" => Some("allow"),
        "pass" => Some("pass"),
        _ => None,
    };
    parts.extend(verdict.map(|v| format!("verdict={v}")));
    if let Some(meter) = &acl.meter {
        let name = if is_fair(ctx, meter) { fair_meter_name(meter, uuid) } else { meter.to_string() };
        parts.push(format!("meter={}", crate::addresses::quoted(&name)));
    }
    format!("log({}); ", parts.join(", "))
}

fn is_fair(ctx: &mut Ctx<'_, '_>, meter: &str) -> bool {
    let all = ctx.nb_table::<nb::Meter>();
    all.into_iter().any(|u| ctx.nb::<nb::Meter>(u).is_some_and(|m| &*m.name == meter && m.fair == Some(true)))
}
