//! `bfd/*` (ovs-vswitchd(8), "BFD Commands").

use super::forced;
use crate::pmd::MainPmd;

pub(super) fn show(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let mut all = w.bfd.show(w.now()).into_iter();
    match args.first() {
        Some(wanted) => all
            .find(|(b, p, _)| w.port_name(*b, *p) == wanted)
            .map(|(.., text)| text)
            .ok_or("no such bfd object".into()),
        None => Ok(all.map(|(b, p, text)| format!("---- {} ----\n{text}", w.port_name(b, p))).collect()),
    }
}

/// Has sessions forward or not, whatever their state; `normal` returns to the state.
pub(super) fn set_forwarding(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let missing = "no such BFD object";
    let (port, forwarding) = forced(w, args, missing)?;
    if w.bfd.force(port, forwarding) { Ok("OK\n".into()) } else { Err(missing.into()) }
}
