//! BFD on tunnels (vtep(5), Tunnel): the switch makes the rows, we enable BFD there and read its state.

use super::{Fact, Member, Unit, V, info, options_of, registry_of, warn};
use crate::model::{Read, Tor, TorId};
use crate::output::Module::Vtep;
use crate::output::{Key, Tunnel, Value};
use crate::settings::{Bfd, Places};
use ovn_schema::{Map, Str, options, vtep};
use std::collections::BTreeSet;

/// What a session says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Down,
    /// It does not run, or not yet.
    Unknown,
}

fn state(t: &vtep::Tunnel) -> State {
    let get = |k: &str| t.bfd_status.get(k).map(|v| &**v);
    match (get("enabled"), get("state"), get("forwarding")) {
        (Some("false"), ..) => State::Unknown,
        (_, _, Some("true")) => State::Up,
        (_, Some("up"), None) => State::Up,
        (_, Some("down" | "up"), _) => State::Down,
        _ => State::Unknown,
    }
}

/// Whether BFD says that a tunnel is up; none where it does not run.
pub fn is_up(t: &vtep::Tunnel) -> Option<bool> {
    match state(t) {
        State::Up => Some(true),
        State::Down => Some(false),
        State::Unknown => None,
    }
}

/// Configures the tunnels of a database's switches and derives which endpoints are down.
pub fn tunnels(id: TorId, v: &mut V<'_>) {
    let Some(registry) = registry_of(v) else { return };
    let options = options_of(v);
    let nodes: BTreeSet<&Str> = match v.fact(&Unit::Bindings) {
        Some(Fact::Bindings(b)) => {
            let attached = b.attached.values().flatten().filter(|a| a.tor == id);
            attached.flat_map(|a| &a.replication.nodes).collect()
        }
        _ => BTreeSet::new(),
    };
    let mut out = BTreeSet::new();
    for member in registry.groups.values().flat_map(|g| &g.members).filter(|m| m.tor == id) {
        let places = Places { port: None, switch: &member.config, global: &member.global, options: &options };
        let mut bad = Vec::new();
        let bfd = Bfd::read(&places, &mut bad);
        for text in bad {
            warn(v, Vtep, format!("physical switch ({}): {text}", member.name));
        }
        if bfd.enable
            && let Some(tor) = v.read(Read::Tunnels(id)).tor(id)
        {
            out.extend(switch(tor, member, &bfd, &nodes, v));
        }
    }
    v.derive(Fact::Down(out));
}

/// The endpoints that one switch cannot reach while it reaches others: chassis, and service nodes that are none.
fn switch(tor: &Tor, member: &Member, bfd: &Bfd, nodes: &BTreeSet<&Str>, v: &mut V<'_>) -> BTreeSet<Str> {
    let Some(ps) = tor.db.physical_switch.get(&member.row) else { return BTreeSet::new() };
    let mut params: Map<Str, Str> = bfd.params.clone();
    params.insert("enable".into(), "true".into());
    let (mut down, mut up) = (Vec::new(), false);
    for (id, t) in ps.tunnels.iter().filter_map(|id| Some((*id, tor.db.tunnel.get(id)?))) {
        let Some(ip) = tor.locator_ip(t.remote) else { continue };
        let ours = nodes.contains(ip) || v.read(Read::EncapOf(ip.clone())).sb.is_endpoint(ip);
        if !ours {
            continue;
        }
        let value = Tunnel { params: params.clone(), remote: bfd.remote.clone() };
        v.emit(Key::Tunnel(tor.id, id), Value::Tunnel(value));
        if options::flag(&t.bfd_params, "enable") && !options::bool(&t.bfd_status, "enabled", true) {
            let why = t.bfd_status.get("info").cloned().unwrap_or_default();
            // It may only not have come to it yet.
            let text = format!(
                "{}: Tunnel {id} of Physical_Switch ({}) to {ip} does not run BFD: {why}",
                tor.name, member.name
            );
            info(v, Vtep, text);
        }
        match state(t) {
            State::Up => up = true,
            State::Down => down.push((id, ip.clone(), t)),
            State::Unknown => {}
        }
    }
    for (id, ip, t) in &down {
        let why = t.bfd_status.get("diagnostic").cloned().unwrap_or_default();
        let kept =
            if up { "; it gets no packets that are for many" } else { "; so are all others, and nothing is changed" };
        warn(
            v,
            Vtep,
            format!("{}: Tunnel {id} of Physical_Switch ({}) to {ip} is down ({why}){kept}", tor.name, member.name),
        );
    }
    if up { down.into_iter().map(|(_, ip, _)| ip).collect() } else { BTreeSet::new() }
}
