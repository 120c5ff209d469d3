//! Recorded flow tables, and what this controller makes of the same databases.

use controller::encode::tables;
use controller::input::interfaces::Interfaces;
use controller::input::model::{Input, Local};
use controller::input::settings::{Identity, Settings};
use controller::units::flows::{ChassisFlows, Key, Value};
use controller::units::presence::Presence;
use incremental::Engine;
use openflow_rs::FlowMod;
use ovn_schema::{ovs, sb};
use std::collections::{BTreeMap, BTreeSet};

/// What was recorded of a chassis.
pub struct Snapshot<'a> {
    pub files: &'a BTreeMap<String, Vec<u8>>,
    pub hv: String,
}

fn text(bytes: Option<&Vec<u8>>) -> String {
    String::from_utf8_lossy(bytes.map_or(&[], |b| b.as_slice())).into_owned()
}

impl Snapshot<'_> {
    fn local(&self, sb: &sb::Database) -> Option<Local> {
        let content = ovsdb_rs::file::parse(self.files.get(&format!("{}.conf.db", self.hv))?).ok()?;
        let db = ovs::Database::load(&content).ok()?;
        let root = db.open_vswitch.values().next()?;
        let mut local = Local { chassis_name: root.external_ids.get("system-id")?.clone(), ..Local::default() };
        local.chassis = sb.chassis.iter().find(|(_, c)| c.name == local.chassis_name).map(|(id, _)| *id);
        local.hostname = local.chassis.and_then(|c| sb.chassis.get(&c)).map(|c| c.hostname.clone()).unwrap_or_default();
        let (id, br_int) = db.bridge.iter().find(|(_, b)| &*b.name == "br-int")?;
        let mut interfaces = Interfaces::default();
        for (uuid, p) in &db.port {
            let change = ovn_schema::Change { uuid: *uuid, old: None, new: Some(p.clone()) };
            interfaces.changed(&ovs::AnyChange::Port(change), false);
        }
        let vifs = interfaces.look(&db, (*id, br_int));
        local.vifs = vifs.into_iter().filter_map(|(name, vif)| Some((name, vif?))).collect();
        local.collectors = controller::rows::switch_config::collectors(&db, *id);
        (local.localnets, local.tunnels) = (interfaces.localnets(), interfaces.tunnels());
        for line in text(self.files.get(&format!("{}.zones", self.hv))).lines() {
            if let Some((name, n)) = line.rsplit_once(' ') {
                local.zones.insert(name.into(), n.parse().ok()?);
            }
        }
        let settings = Settings::read(&db, &Identity::default());
        local.encap_ips = settings.map(|s| s.encap_ips()).unwrap_or_default();
        // Where nothing is recorded of sessions, all are up.
        local.gateways.alive = sb.chassis.values().map(|c| c.name.clone()).collect();
        local.southbound = true;
        Some(local)
    }
}

/// A flow with what differs from run to run taken out: cookies, conjunction numbers, group numbers.
fn comparable(f: &FlowMod, groups: &BTreeMap<u32, String>) -> String {
    let actions = openflow_rs::text::actions_to_string(&f.actions);
    let mut line = format!("table={}, priority={},{} actions={actions}", f.table, f.priority, f.matches);
    // The longest numbers first: group 1 is no part of group 10.
    for (id, content) in groups.iter().rev() {
        line = line.replace(&format!("group:{id}"), &format!("group:[{content}]"));
    }
    let line = without_number(&line, "conj_id=");
    let line = without_number(&line, "conjunction(");
    without_number(&line, "cookie=0x")
}

/// Replaces the digits behind each occurrence of a word by `N`.
fn without_number(line: &str, word: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(word) {
        let end = at + word.len();
        out.push_str(&rest[..end]);
        out.push('N');
        rest = rest[end..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    out + rest
}

fn group_texts(dump: &str) -> BTreeMap<u32, String> {
    let mut out = BTreeMap::new();
    for line in dump.lines() {
        if let Some((id, content)) = line.trim().strip_prefix("group_id=").and_then(|l| l.split_once(',')) {
            out.insert(id.parse().unwrap(), content.to_string());
        }
    }
    out
}

fn derived(input: &Input) -> (Vec<FlowMod>, BTreeMap<u32, String>) {
    let mut engine = Engine::new(ChassisFlows::default());
    engine.update(input, [], |changes| {
        let (mut flows, mut groups) = (Vec::new(), BTreeMap::new());
        for c in changes {
            match c.key {
                Key::Meter(_) | Key::Connections(_) | Key::Problem(_) => {}
                Key::Flow(t, p, m) => {
                    flows.push(FlowMod::add(*t, *p, 0, m.unpack().unwrap(), controller::units::flows::merge(&c.after)))
                }
                Key::Group(id) => {
                    if let Some(Value::Group(g)) = c.after.first() {
                        let text = openflow_rs::text::group_to_string(g);
                        groups.extend(group_texts(&text));
                        assert!(groups.contains_key(&id.0), "{text}");
                    }
                }
            }
        }
        (flows, groups)
    })
}

/// How a flow table compares.
pub struct Outcome {
    pub missing: Vec<String>,
    pub extra: Vec<String>,
    pub same: usize,
}

pub fn compare(snapshot: &Snapshot<'_>) -> Option<Outcome> {
    let sb_content = ovsdb_rs::file::parse(snapshot.files.get("sb.db")?).ok()?;
    let db = sb::Database::load(&sb_content).ok()?;
    let local = snapshot.local(&db)?;
    local.chassis?;
    let mut input = Input::new(db, Local::default());
    input.local = local.clone();
    Presence::default().settle(&mut input, &[]);
    let (ours, our_groups) = derived(&input);
    let their_groups = group_texts(&text(snapshot.files.get(&format!("{}.groups", snapshot.hv))));
    let ours: BTreeSet<String> = ours.iter().map(|f| comparable(f, &our_groups)).collect();
    let mut theirs = BTreeSet::new();
    for line in text(snapshot.files.get(&format!("{}.flows", snapshot.hv))).lines() {
        if !line.contains("actions=") {
            continue;
        }
        let f: FlowMod = match openflow_rs::text::parse_flow(line.trim()) {
            Ok(f) => f,
            Err(e) => {
                theirs.insert(format!("{line}: {e}"));
                continue;
            }
        };
        // What the switch learned by itself is not the controller's.
        if f.table == tables::CHK_LB_HAIRPIN_REPLY || f.table == tables::CHK_LB_AFFINITY && !line.contains("learn") {
            continue;
        }
        theirs.insert(comparable(&f, &their_groups));
    }
    Some(Outcome {
        missing: theirs.difference(&ours).cloned().collect(),
        extra: ours.difference(&theirs).cloned().collect(),
        same: ours.intersection(&theirs).count(),
    })
}

/// A recorded table's name (case, snapshot, chassis) with how it compares.
pub type Compared = (String, Outcome);

/// All tables of a case.
pub fn case(archive: &std::path::Path) -> Vec<Compared> {
    let case = golden::read(archive).unwrap();
    let mut out = Vec::new();
    for (n, files) in case.snapshots.iter().enumerate() {
        for hv in files.keys().filter_map(|k| k.strip_suffix(".flows")) {
            if let Some(o) = compare(&Snapshot { files, hv: hv.to_string() }) {
                out.push((format!("{}/{n}/{hv}", case.name), o));
            }
        }
    }
    out
}
