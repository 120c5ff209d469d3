//! `bond/*` and `lacp/*` (ovs-vswitchd(8)).

use crate::pmd::{Command, MainPmd};
use crate::ports::bond::lacp::{Lacp, LacpStatus, state};
use crate::ports::bond::{Bond, Member};
use openflow_rs::PortNo;
use packet::Mac;
use std::fmt::Write;
use std::time::Duration;
use switch::Spread;

type Answer = Result<String, String>;

/// Name, usage, fewest and most arguments.
pub(super) const COMMANDS: &[(&str, &str, usize, usize, Command)] = &[
    ("bond/list", "", 0, 0, list),
    ("bond/show", "[port]", 0, 1, show),
    ("bond/migrate", "port hash member", 3, 3, migrate),
    ("bond/set-active-member", "port member", 2, 2, set_active),
    ("bond/enable-member", "port member", 2, 2, |w, a| enable(w, a, true)),
    ("bond/disable-member", "port member", 2, 2, |w, a| enable(w, a, false)),
    // Names of before 2.17, which scripts have.
    ("bond/set-active-slave", "port slave", 2, 2, set_active),
    ("bond/enable-slave", "port slave", 2, 2, |w, a| enable(w, a, true)),
    ("bond/disable-slave", "port slave", 2, 2, |w, a| enable(w, a, false)),
    ("bond/hash", "mac [vlan] [basis]", 1, 3, hash),
    ("lacp/show", "[port]", 0, 1, show_lacp),
    ("lacp/show-stats", "[port]", 0, 1, show_counts),
];

fn mode(b: &Bond) -> &'static str {
    match b.spec.spread {
        Spread::Active => "active-backup",
        Spread::Source => "balance-slb",
        Spread::Transport => "balance-tcp",
    }
}

fn word(args: &[String], n: usize) -> &str {
    args.get(n).map(String::as_str).unwrap_or_default()
}

/// Whether it has several ports: one alone may negotiate with LACP, too.
fn is_bond(b: &Bond) -> bool {
    b.members.len() > 1
}

/// The bonds that a command names: one, or all. `none` is the error text.
fn chosen<'a>(w: &'a MainPmd, args: &[String], none: &str) -> Result<Vec<&'a Bond>, String> {
    let wanted: Vec<&Bond> = w.bonds.list.iter().filter(|b| args.is_empty() || b.spec.name == word(args, 0)).collect();
    if wanted.is_empty() && !args.is_empty() { Err(none.into()) } else { Ok(wanted) }
}

/// The bond and the port that the first and the last argument name.
fn member<'a>(w: &'a mut MainPmd, args: &[String]) -> Result<(&'a mut Bond, PortNo), String> {
    let bond = w.bonds.list.iter_mut().find(|b| b.spec.name == word(args, 0)).ok_or("no such bond")?;
    let port = bond.by_name(args.last().map(String::as_str).unwrap_or_default()).map(|m| m.spec.port);
    Ok((bond, port.ok_or("no such member")?))
}

fn list(w: &mut MainPmd, _: &[String]) -> Answer {
    let mut out = String::from("bond\ttype\trecircID\tmembers\n");
    for b in w.bonds.list.iter().filter(|b| is_bond(b)) {
        let names: Vec<&str> = b.members.iter().map(|m| m.spec.name.as_str()).collect();
        let _ = writeln!(out, "{}\t{}\t0\t{}", b.spec.name, mode(b), names.join(", "));
    }
    Ok(out)
}

fn show(w: &mut MainPmd, args: &[String]) -> Answer {
    let now = w.now();
    let text = chosen(w, args, "no such bond")?.into_iter().filter(|b| is_bond(b)).map(|b| {
        let ms = |n: usize| b.spec.delays.get(n).map_or(0, |d| d.as_millis());
        let mut out = format!(
            "---- {} ----\nbond_mode: {}\nbond may use recirculation: no, Recirc-ID : -1\nbond-hash-basis: {}\nlb_output action: disabled, bond-id: -1\n",
            b.spec.name,
            mode(b),
            b.spec.basis
        );
        if b.spec.spread == Spread::Source {
            let _ = writeln!(out, "all members active: {}", b.spec.all_active);
        }
        let _ = writeln!(out, "updelay: {} ms\ndowndelay: {} ms", ms(0), ms(1));
        if b.spec.spread != Spread::Active && b.spec.rebalance.is_some() {
            let _ = writeln!(out, "next rebalance: {} ms", b.rebalance_at.saturating_sub(now).as_millis());
        }
        let status = match &b.lacp {
            None => "off",
            Some(l) if l.negotiated => "negotiated",
            Some(_) => "configured",
        };
        let fallback = b.lacp.as_ref().is_some_and(|l| l.spec.fallback);
        let primary = match &b.spec.primary {
            None => "<none>".into(),
            Some(n) if b.by_name(n).is_some() => n.clone(),
            Some(n) => format!("{n} (no such member)"),
        };
        let active = b.members.iter().find(|m| Some(m.spec.port) == b.active);
        let (mac, name) = active.map_or((Mac::ZERO, "none"), |m| (m.spec.mac, m.spec.name.as_str()));
        let _ = writeln!(out, "lacp_status: {status}\nlacp_fallback_ab: {fallback}\nactive-backup primary: {primary}");
        let _ = writeln!(out, "active member mac: {mac}({name})\n");
        b.members.iter().for_each(|m| show_member(b, m, now, &mut out));
        out
    });
    Ok(text.collect())
}

fn show_member(b: &Bond, m: &Member, now: Duration, out: &mut String) {
    let _ = writeln!(out, "member {}: {}", m.spec.name, if m.enabled { "enabled" } else { "disabled" });
    if Some(m.spec.port) == b.active {
        *out += "  active member\n";
    }
    if let Some(at) = m.change_at {
        let delay = if m.enabled { "downdelay" } else { "updelay" };
        let _ = writeln!(out, "  {delay} expires in {} ms", at.saturating_sub(now).as_millis());
    }
    let _ = writeln!(out, "  may_enable: {}", m.may_enable);
    if b.spec.spread != Spread::Active {
        for (hash, (_, bytes)) in
            b.buckets.iter().enumerate().filter(|(_, (p, n))| *p == Some(m.spec.port) && *n >= 1024)
        {
            let _ = writeln!(out, "  hash {hash}: {} kB load", bytes / 1024);
        }
    }
    out.push('\n');
}

fn migrate(w: &mut MainPmd, args: &[String]) -> Answer {
    let (b, port) = member(w, args)?;
    if b.spec.spread != Spread::Source {
        return Err("not an SLB bond".into());
    }
    if !b.members.iter().any(|m| m.spec.port == port && m.enabled) {
        return Err("cannot migrate to disabled member".into());
    }
    let n: usize = word(args, 1).parse().map_err(|_| "bad hash")?;
    let place = b.buckets.get_mut(n % switch::bond::BUCKETS).ok_or("bad hash")?;
    place.0 = Some(port);
    w.bonds.wake();
    Ok("migrated\n".into())
}

fn set_active(w: &mut MainPmd, args: &[String]) -> Answer {
    let (b, port) = member(w, args)?;
    if !b.members.iter().any(|m| m.spec.port == port && m.enabled) {
        return Err("cannot make disabled member active".into());
    }
    if b.active == Some(port) {
        return Ok("no change\n".into());
    }
    b.active = Some(port);
    w.bonds.wake();
    Ok("done\n".into())
}

fn enable(w: &mut MainPmd, args: &[String], on: bool) -> Answer {
    let (b, port) = member(w, args)?;
    b.enable(port, on);
    w.bonds.wake();
    Ok(if on { "enabled\n" } else { "disabled\n" }.into())
}

fn hash(_: &mut MainPmd, args: &[String]) -> Answer {
    let mac = word(args, 0).parse::<Mac>().map_err(|_| "invalid mac")?;
    let vlan = args.get(1).map_or(Ok(0), |v| v.parse().map_err(|_| "invalid vlan"))?;
    let basis = args.get(2).map_or(Ok(0), |v| v.parse().map_err(|_| "invalid basis"))?;
    let mac = mac.iter().fold(0, |v, b| v << 8 | u64::from(*b));
    Ok(format!("{}\n", switch::bond::bucket(mac, vlan, basis)))
}

fn names(bits: u8) -> String {
    let set = state::NAMES.iter().enumerate().filter(|(i, _)| bits >> i & 1 != 0);
    set.map(|(_, n)| *n).collect::<Vec<_>>().join(" ")
}

/// The bonds with LACP that a command names.
fn with_lacp<'a>(w: &'a MainPmd, args: &[String]) -> Result<Vec<(&'a Bond, &'a Lacp)>, String> {
    let none = "no such lacp object";
    let list: Vec<_> = chosen(w, args, none)?.into_iter().filter_map(|b| Some((b, b.lacp.as_ref()?))).collect();
    if list.is_empty() && !args.is_empty() { Err(none.into()) } else { Ok(list) }
}

fn show_lacp(w: &mut MainPmd, args: &[String]) -> Answer {
    let mut out = String::new();
    for (b, l) in with_lacp(w, args)? {
        let s = &l.spec;
        let _ = writeln!(
            out,
            "---- {} ----\n  status: {}{}\n  sys_id: {}\n  sys_priority: {}\n  aggregation key: {}\n  lacp_time: {}",
            b.spec.name,
            if s.active { "active" } else { "passive" },
            if l.negotiated { " negotiated" } else { "" },
            s.sys_id,
            s.sys_priority,
            l.key,
            if s.fast { "fast" } else { "slow" }
        );
        for (i, m) in l.members.iter().enumerate() {
            let status = match m.status {
                LacpStatus::Current => "current",
                LacpStatus::Expired => "expired",
                LacpStatus::Defaulted => "defaulted",
            };
            let attached = if m.attached { "attached" } else { "detached" };
            let name = b.members.iter().find(|x| x.spec.port == m.port).map_or("", |x| x.spec.name.as_str());
            let may = m.is_up() && l.may_use(m.port);
            let _ = writeln!(
                out,
                "\nmember: {name}: {status} {attached}\n  port_id: {}\n  port_priority: {}\n  may_enable: {may}",
                m.id.number, m.id.priority
            );
            for (who, info) in [("actor", l.actor(i).unwrap_or_default()), ("partner", m.partner)] {
                let _ = writeln!(
                    out,
                    "\n  {who} sys_id: {}\n  {who} sys_priority: {}\n  {who} port_id: {}\n  {who} port_priority: {}\n  {who} key: {}\n  {who} state: {}",
                    info.sys_id,
                    info.sys_priority,
                    info.port_id,
                    info.port_priority,
                    info.key,
                    names(info.state)
                );
            }
        }
    }
    Ok(out)
}

fn show_counts(w: &mut MainPmd, args: &[String]) -> Answer {
    let mut out = String::new();
    for (b, l) in with_lacp(w, args)? {
        let _ = writeln!(out, "---- {} statistics ----", b.spec.name);
        for m in &l.members {
            let c = m.counts;
            let name = b.members.iter().find(|x| x.spec.port == m.port).map_or("", |x| x.spec.name.as_str());
            let _ = writeln!(
                out,
                "\nmember: {name}:\n  TX PDUs: {}\n  RX PDUs: {}\n  RX Bad PDUs: {}\n  RX Marker Request PDUs: {}\n  Link Expired: {}\n  Link Defaulted: {}\n  Carrier Status Changed: {}",
                c.sent, c.received, c.bad, c.markers, c.expired, c.defaulted, c.carrier
            );
        }
    }
    Ok(out)
}
