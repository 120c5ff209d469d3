//! What a walk through recorded OVN tables costs, in nanoseconds of the thread's processor time:
//! `cargo bench -p switch --bench tables`, with parts of names for some of the tables only. The packets are aimed at the
//! flows as those of `make compare-switch` are, and those that pass most lookups are taken. Nothing is cached, so every
//! packet walks.
//!
//! A table's walks are timed once with connections as the packets before left them, and once with a connection table
//! that is emptied between rounds, so that what opens a connection does so each time; then both with guides for walks.
//!
//! Callgrind counts the instructions: `TABLES_PACKETS=64 valgrind --tool=callgrind --toggle-collect='*Switch*walk*' tables-… NAME`.
//! Without the golden data the bench says so.

#[path = "common/time.rs"]
mod time;

#[path = "../tests/lab/packets.rs"]
#[expect(dead_code, reason = "answers and mutations are the comparison's")]
mod packets;
#[path = "../tests/lab/walk.rs"]
#[expect(dead_code, reason = "varied packets are the comparison's")]
mod walk;

use openflow_rs::message::{CtFlush, TlvMap, TlvTableMod};
use openflow_rs::mods::GroupModCommand;
use openflow_rs::text::{parse_flow, parse_group};
use openflow_rs::{FieldId, FlowMod, Group, GroupMod, Message, PortNo};
use rand::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use switch::conntrack::Flush;
use switch::{BridgeId, DeviceId, Outputs, Port, PortKind, Switch};

/// Ports of the bridge, from 1.
const PORTS: u16 = 18;
/// Tables measured, each of another recorded situation.
const TABLES: usize = 6;
/// Packets aimed at a table, and how many of them are taken.
const AIMED: usize = 4000;
const TAKEN: usize = 64;
/// Packets of one measurement, if `TABLES_PACKETS` says nothing else, and measurements, of which the least counts.
const PACKETS: usize = 16_384;
const TIMES: usize = 5;

/// A recorded table.
#[derive(Default)]
struct Recorded {
    name: String,
    flows: Vec<FlowMod>,
    groups: Vec<Group>,
}

impl Recorded {
    fn tracks(&self) -> bool {
        self.flows.iter().any(|f| f.actions.iter().any(|a| matches!(a, openflow_rs::Action::Ct(_))))
    }

    /// A switch with this table, caching nothing.
    fn switch(&self) -> (Switch, BridgeId) {
        let mut s = Switch::new(100_000);
        s.set_cache(false);
        let b = s.add_bridge("br-int", 1);
        for n in 1..=PORTS {
            s.add_port(b, Port::new(PortNo(n), &format!("p{n}"), PortKind::Device(DeviceId(n.into())))).expect("port");
        }
        // OVN's Geneve option.
        let map = TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
        let mut list = vec![Message::TlvTableMod(TlvTableMod { command: 0, maps: vec![map] })];
        list.extend(self.groups.iter().map(|g| Message::GroupMod(GroupMod::new(GroupModCommand::Add, g.clone()))));
        list.extend(self.flows.iter().cloned().map(Message::FlowMod));
        for m in &list {
            // Of some situations the flows were recorded without their groups; flows that name those are left out.
            let _ = s.apply(b, m, Duration::ZERO);
        }
        (s, b)
    }
}

/// The recorded tables that track connections: of each situation the biggest, the biggest first.
fn recorded() -> Vec<Recorded> {
    let mut all: BTreeMap<String, Recorded> = BTreeMap::new();
    for (name, text) in golden::files(&[".flows", ".groups"]).unwrap_or_default() {
        let Some((base, kind)) = name.rsplit_once('.') else { continue };
        let r = all.entry(base.to_string()).or_default();
        r.name = base.to_string();
        let lines = |mark: &'static str| text.lines().filter(move |l| l.contains(mark));
        if kind == "flows" {
            r.flows = lines("actions=").map(|l| parse_flow(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
        } else {
            r.groups = lines("group_id=").map(|l| parse_group(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
        }
    }
    let mut biggest: BTreeMap<String, Recorded> = BTreeMap::new();
    for r in all.into_values().filter(Recorded::tracks) {
        let situation = r.name.split('/').next().unwrap_or_default().to_string();
        let e = biggest.entry(situation).or_default();
        if r.flows.len() > e.flows.len() {
            *e = r;
        }
    }
    let mut list: Vec<Recorded> = biggest.into_values().collect();
    list.sort_by_key(|r| std::cmp::Reverse(r.flows.len()));
    list
}

fn lookups(s: &Switch, b: BridgeId) -> u64 {
    s.bridge(b).map_or(0, |b| b.table_stats.iter().map(|t| t.0).sum())
}

/// Packets that pass many lookups, each with its port, and how many lookups the packets pass together.
fn deep(r: &Recorded) -> (Vec<(DeviceId, Vec<u8>)>, u64) {
    let mut rng = StdRng::seed_from_u64(1);
    let tables = walk::Tables::new(&r.flows, &r.groups);
    let (mut s, b) = r.switch();
    let mut list = Vec::new();
    for _ in 0..AIMED {
        let key = walk::aim(&tables, PORTS, &mut rng);
        let port = match key.get(FieldId::InPort) as u16 {
            p if (1..=PORTS).contains(&p) => p,
            _ => continue,
        };
        let p = packets::of_key(&key, &mut rng);
        let before = lookups(&s, b);
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(u32::from(port)), p.clone())], Duration::from_secs(1), &mut out);
        // Floods and copies would hide what a walk is.
        if out.packets.len() == 1 && out.events.is_empty() {
            list.push((lookups(&s, b) - before, DeviceId(port.into()), p));
        }
    }
    list.sort_by_key(|(n, ..)| std::cmp::Reverse(*n));
    list.truncate(TAKEN);
    (list.iter().map(|(_, port, p)| (*port, p.clone())).collect(), list.iter().map(|(n, ..)| n).sum())
}

/// Nanoseconds a packet, and lookups a packet.
fn measure(s: &mut Switch, b: BridgeId, packets: &[(DeviceId, Vec<u8>)], fresh: bool) -> (f64, f64) {
    let all = Flush::Filter(CtFlush::default());
    let wanted = std::env::var("TABLES_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(PACKETS);
    let rounds = (wanted / packets.len()).max(1);
    let mut out = Outputs::default();
    let mut now = Duration::from_secs(2);
    let mut least = Duration::MAX;
    let mut n = 0;
    for _ in 0..TIMES {
        let before = lookups(s, b);
        // Copies of the packets are counted too; the clock is too coarse to leave them out.
        let start = time::processor_time();
        for _ in 0..rounds {
            if fresh {
                s.conntrack.lock().flush(&all);
            }
            now += Duration::from_micros(100);
            s.process(&mut packets.to_vec(), now, &mut out);
            out.packets.clear();
            out.events.clear();
        }
        least = least.min(time::processor_time().saturating_sub(start));
        n = lookups(s, b) - before;
    }
    let packets = (rounds * packets.len()) as f64;
    (least.as_nanos() as f64 / packets, n as f64 / packets)
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let chosen = |r: &Recorded| only.is_empty() || only.iter().any(|o| r.name.contains(o));
    for r in recorded().into_iter().filter(chosen).take(TABLES) {
        let (packets, _) = deep(&r);
        if packets.is_empty() {
            println!("tables {}: no packet leaves", r.name);
            continue;
        }
        let (mut s, b) = r.switch();
        for (guides, fresh) in [(false, false), (false, true), (true, false), (true, true)] {
            s.set_segments(guides);
            let (t, n) = measure(&mut s, b, &packets, fresh);
            let what = if fresh { "new connections" } else { "connections as they are" };
            let what = if guides { format!("{what}, guided") } else { what.into() };
            println!(
                "tables {} ({} flows), {what}: {t:.0} ns a packet, {n:.1} lookups, {:.0} ns for each",
                r.name,
                r.flows.len(),
                t / n
            );
        }
    }
}
