//! `rstp/*`: the rapid spanning trees of bridges (ovs-vswitchd(8)).

use crate::pmd::MainPmd;
use crate::ports::rstp::bridges::BridgeRapid;
use packet::Mac;
use std::fmt::Write;
use switch::BridgeId;

type Answer = Result<String, String>;

/// The tree of the bridge that is asked for, or those of all.
fn asked(w: &MainPmd, args: &[String]) -> Result<Option<BridgeId>, String> {
    let Some(name) = args.first() else { return Ok(None) };
    let id = w.switch.bridge_by_name(name).filter(|id| w.rapid.list.iter().any(|t| t.bridge == *id));
    id.map(Some).ok_or_else(|| "No such RSTP object".into())
}

pub(super) fn show(w: &mut MainPmd, args: &[String]) -> Answer {
    let (id, now) = (asked(w, args)?, w.now());
    w.run_trees(now);
    let wanted = w.rapid.list.iter().filter(|t| id.is_none_or(|id| id == t.bridge));
    let mut trees: Vec<(&str, &BridgeRapid)> =
        wanted.map(|t| (w.switch.bridge(t.bridge).map_or("", |b| b.name.as_str()), t)).collect();
    trees.sort_by_key(|(name, _)| *name);
    Ok(trees.into_iter().map(|(name, t)| details(name, t)).collect())
}

/// The topology of a bridge has changed, says an operator.
pub(super) fn change(w: &mut MainPmd, args: &[String]) -> Answer {
    let (id, now) = (asked(w, args)?, w.now());
    for t in w.rapid.list.iter_mut().filter(|t| id.is_none_or(|id| id == t.bridge)) {
        t.tree.detect_change();
    }
    w.run_trees(now);
    Ok("OK".into())
}

fn identity(out: &mut String, id: u64, [hello, max_age, forward_delay]: [u32; 3]) {
    let _ = writeln!(
        out,
        "  stp-priority    {}\n  stp-system-id   {}\n  stp-hello-time  {hello}s\n  stp-max-age     {max_age}s\n  stp-fwd-delay   {forward_delay}s",
        id >> 48,
        Mac::from_u64(id & 0xffff_ffff_ffff)
    );
}

fn details(name: &str, t: &BridgeRapid) -> String {
    let mut out = format!("---- {name} ----\nRoot ID:\n");
    identity(&mut out, t.tree.root.root, t.tree.times());
    match t.tree.root_port {
        None => out += "  This bridge is the root\n",
        Some(i) => {
            let name = t.ports.get(i).map_or("", |p| &p.name);
            let _ = writeln!(out, "  root-port       {name}\n  root-path-cost  {}", t.tree.root.cost);
        }
    }
    out += "\nBridge ID:\n";
    let own = t.tree.settings();
    identity(&mut out, own.id, [crate::ports::rstp::HELLO_TIME, own.max_age, own.forward_delay]);
    let _ = writeln!(out, "\n  {:<11}{:<11}{:<11}{:<9}{:<8}", "Interface", "Role", "State", "Cost", "Pri.Nbr");
    out += "  ---------- ---------- ---------- -------- -------\n";
    for (i, (p, state)) in t.ports.iter().zip(&t.tree.ports).enumerate() {
        let (role, words) = t.words(i);
        let _ = writeln!(
            out,
            "  {:<11.10}{role:<11.10}{words:<11.10}{:<9}{}.{}",
            p.name,
            state.path_cost,
            state.id >> 8 & 0xf0,
            state.id & 0xfff
        );
    }
    out.push('\n');
    out
}
