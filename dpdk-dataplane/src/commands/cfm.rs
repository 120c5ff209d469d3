//! `cfm/*` (ovs-vswitchd(8), "CFM Commands").

use super::forced;
use crate::pmd::MainPmd;

/// The error where no port of a name has a maintenance point.
const MISSING: &str = "no such CFM object";

pub(super) fn show(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let shown = w.cfm.show(w.now()).into_iter();
    let mut all: Vec<(&str, String)> = shown.map(|(b, p, text)| (w.port_name(b, p), text)).collect();
    if let Some(wanted) = args.first() {
        all.retain(|(name, _)| name == wanted);
        if all.is_empty() {
            return Err(MISSING.into());
        }
    }
    all.sort();
    Ok(all.into_iter().map(|(name, text)| format!("---- {name} ----\n{text}")).collect())
}

/// Has maintenance points report a fault or none, whatever they find; `normal` returns to what they find.
pub(super) fn set_fault(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let (port, fault) = forced(w, args, MISSING)?;
    if w.cfm.force(port, fault) { Ok("OK".into()) } else { Err(MISSING.into()) }
}
