//! `stp/*`: the spanning trees of bridges (ovs-vswitchd(8)).

use crate::config::stp::TreeSettings;
use crate::pmd::MainPmd;
use crate::ports::stp::Role;
use crate::ports::stp::bridges::BridgeTree;
use packet::Mac;
use std::fmt::Write;
use switch::BridgeId;

type Answer = Result<String, String>;

/// The tree of the bridge that is asked for, or those of all.
fn asked(w: &MainPmd, args: &[String]) -> Result<Option<BridgeId>, String> {
    let Some(name) = args.first() else { return Ok(None) };
    let id = w.switch.bridge_by_name(name).filter(|id| w.trees.list.iter().any(|t| t.bridge == *id));
    id.map(Some).ok_or_else(|| "no such stp object".into())
}

pub(super) fn show(w: &mut MainPmd, args: &[String]) -> Answer {
    let (id, now) = (asked(w, args)?, w.now());
    w.run_trees(now);
    let mut trees: Vec<(&str, &BridgeTree)> = w
        .trees
        .list
        .iter()
        .filter(|t| id.is_none_or(|id| id == t.bridge))
        .map(|t| (w.switch.bridge(t.bridge).map_or("", |b| b.name.as_str()), t))
        .collect();
    trees.sort_by_key(|(name, _)| *name);
    Ok(trees.into_iter().map(|(name, t)| details(name, t)).collect())
}

/// The topology of a bridge has changed, says an operator.
pub(super) fn change(w: &mut MainPmd, args: &[String]) -> Answer {
    let (id, now) = (asked(w, args)?, w.now());
    for t in w.trees.list.iter_mut().filter(|t| id.is_none_or(|id| id == t.bridge)) {
        t.tree.detect_change(now);
    }
    w.run_trees(now);
    Ok("OK".into())
}

fn identity(out: &mut String, id: u64, times: &TreeSettings) {
    let _ = writeln!(out, "  stp-priority  {}\n  stp-system-id   {}", id >> 48, Mac::from_u64(id & 0xffff_ffff_ffff));
    let _ = writeln!(
        out,
        "  stp-hello-time  {}s\n  stp-max-age     {}s\n  stp-fwd-delay   {}s",
        times.hello.as_secs(),
        times.max_age.as_secs(),
        times.forward_delay.as_secs()
    );
}

fn details(name: &str, t: &BridgeTree) -> String {
    let mut out = format!("---- {name} ----\nRoot ID:\n");
    let own = *t.tree.settings();
    identity(&mut out, t.tree.root, &own);
    match t.root_port() {
        None => out += "  This bridge is the root\n",
        Some(p) => {
            let _ = writeln!(out, "  root-port       {}\n  root-path-cost  {}", p.name, t.tree.root_cost);
        }
    }
    out += "\nBridge ID:\n";
    identity(&mut out, own.id, &t.tree.times);
    let _ = writeln!(out, "\n  {:<11}{:<11}{:<11}{:<6}{:<8}", "Interface", "Role", "State", "Cost", "Pri.Nbr");
    out += "  ---------- ---------- ---------- ----- -------\n";
    for (i, (p, state)) in
        t.ports.iter().zip(&t.tree.ports).enumerate().filter(|(i, _)| t.tree.role(*i) != Role::Disabled)
    {
        let (role, words) = t.words(i);
        let _ = writeln!(
            out,
            "  {:<11.10}{role:<11.10}{words:<11.10}{:<6}{}.{}",
            p.name,
            state.path_cost,
            state.id >> 8,
            state.id & 0xff
        );
    }
    out.push('\n');
    out
}
