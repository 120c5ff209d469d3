//! This chassis' rows in the southbound database: Chassis, Encap, Chassis_Private.

use crate::input::model::Input;
use crate::input::settings::{Settings, bridge};
use crate::openflow::features::Features;
use crate::plan::Plan;
use crate::plan::once::Once;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs, sb};
use ovsdb_rs::client::Transaction;
use std::collections::BTreeSet;

/// What this controller can do, as northd looks for it in `Chassis:other_config`.
const FEATURES: [&str; 10] = [
    "ct-commit-nat-v2",
    "ct-commit-to-zone",
    "ct-next-zone",
    "ct-no-masked-label",
    "ct-state-save",
    "fdb-timestamp",
    "ls-dpg-column",
    "mac-binding-timestamp",
    "ovn-ct-lb-related",
    "port-up-notif",
];

/// What it can do where the switch can.
const CT_LABEL_FLUSH: &str = "ct-label-flush";
const SAMPLE_WITH_REGISTERS: &str = "ovn-sample-with-registers";

/// What else may stand there; anything else a controller of another version left behind.
const OTHERS: [&str; 24] = [
    CT_LABEL_FLUSH,
    SAMPLE_WITH_REGISTERS,
    crate::rows::claims::ASKED,
    crate::rows::claims::ORDERLY,
    crate::rows::ha_peers::PUBLISHED,
    crate::rows::ha_peers::STATE,
    crate::rows::uplinks::PUBLISHED,
    "datapath-type",
    "iface-types",
    "is-interconn",
    "is-remote",
    "is-vtep",
    "ovn-bridge-mappings",
    "ovn-chassis-mac-mappings",
    "ovn-cms-options",
    "ovn-enable-lflow-cache",
    "ovn-evpn-local-ip",
    "ovn-evpn-vxlan-ports",
    "ovn-limit-lflow-cache",
    "ovn-memlimit-lflow-cache-kb",
    "ovn-monitor-all",
    "ovn-trim-limit-lflow-cache",
    "ovn-trim-timeout-ms",
    "ovn-trim-wmark-perc-lflow-cache",
];

/// What a chassis' rows follow from, besides those that are there.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    /// The local database.
    pub ovs: &'a ovs::Database,
    /// What it says of this chassis.
    pub settings: &'a Settings,
    /// Networks that this chassis does not reach.
    pub lost: &'a BTreeSet<Str>,
    /// External ports that others are asked for.
    pub asked: &'a BTreeSet<Uuid>,
    /// What the switch can do; none while it was not heard.
    pub features: Option<Features>,
}

/// `before` is what stands there: until the switch was heard, what it could do before holds.
fn other_config(here: &Here<'_>, before: Option<&Map<Str, Str>>) -> Map<Str, Str> {
    let Here { ovs, settings, lost, asked, features } = *here;
    let mut m: Map<Str, Str> = FEATURES.iter().map(|f| ((*f).into(), "true".into())).collect();
    let could = |key: &str| before.and_then(|b| b.get(key)).is_some_and(|v| &**v == "true");
    let can = |key: &'static str, is: fn(Features) -> bool| {
        (key.into(), features.map_or_else(|| could(key), is).to_string().into())
    };
    m.extend([can(CT_LABEL_FLUSH, |f| f.ct_label_flush), can(SAMPLE_WITH_REGISTERS, |f| f.sample_with_registers)]);
    m.insert(crate::rows::claims::ORDERLY.into(), "true".into());
    m.insert("is-interconn".into(), settings.interconnection.to_string().into());
    for (k, v) in &settings.other {
        m.insert(k.clone(), v.clone());
    }
    m.entry("ovn-enable-lflow-cache".into()).or_insert_with(|| "true".into());
    // What is not set, or not any more, is told as empty.
    for key in [
        "ovn-bridge-mappings",
        "ovn-cms-options",
        "ovn-chassis-mac-mappings",
        "ovn-limit-lflow-cache",
        "ovn-memlimit-lflow-cache-kb",
        "ovn-trim-limit-lflow-cache",
        "ovn-trim-wmark-perc-lflow-cache",
        "ovn-trim-timeout-ms",
        "ovn-evpn-vxlan-ports",
        "ovn-evpn-local-ip",
    ] {
        m.entry(key.into()).or_insert_with(|| "".into());
    }
    if !lost.is_empty() {
        let names: Vec<&str> = lost.iter().map(|n| &**n).collect();
        m.insert(crate::rows::uplinks::PUBLISHED.into(), names.join(",").into());
    }
    if !asked.is_empty() {
        let ids: Vec<String> = asked.iter().map(Uuid::to_string).collect();
        m.insert(crate::rows::claims::ASKED.into(), ids.join(",").into());
    }
    m.insert("ovn-monitor-all".into(), settings.monitor_all.to_string().into());
    if let Some(root) = ovs.open_vswitch.values().next() {
        let types: Vec<&str> = root.iface_types.iter().map(|t| &**t).collect();
        m.insert("iface-types".into(), types.join(",").into());
    }
    let kind = bridge(ovs, &settings.bridge).map(|(_, b)| b.datapath_type.clone());
    m.insert("datapath-type".into(), kind.or_else(|| settings.datapath_type.clone()).unwrap_or_default());
    m
}

/// Writes the chassis' rows, and remembers what was said about them.
#[derive(Debug, Default)]
pub struct Writer {
    said: Once,
}

impl Writer {
    /// Puts into the plan what differs from what is wanted.
    pub fn reconcile(&mut self, input: &Input, here: &Here<'_>, plan: &mut Plan) {
        let (sb, settings) = (&input.sb, here.settings);
        let found = input.chassis(&settings.system_id).and_then(|id| Some((id, sb.chassis.get(&id)?)));
        let other = other_config(here, found.map(|(_, c)| &c.other_config));
        let name = &settings.system_id;
        let encaps = self.usable(sb, settings);
        if !encaps.is_empty() {
            private(input, settings, found.map(|(id, _)| id), plan);
        }
        let wish = (settings.hostname.clone(), other.clone(), encaps.clone(), settings.transport_zones.clone());
        let part = plan.part(format!("Chassis {name}"), format!("{wish:?}"));
        let zones = settings.transport_zones.iter().cloned().collect::<Set<Str>>();
        if encaps.is_empty() {
            // A chassis that nobody can reach is none (the column has one at least).
            remove(sb, settings, &mut part.txn);
            self.said.end();
            return;
        }
        let Some((id, row)) = found else {
            let encaps: Set<Uuid> = encaps.iter().map(|e| encap(e, sb, settings, &mut part.txn)).collect();
            part.txn.comment(&format!("ovn-controller: registering chassis '{name}'"));
            let columns = [
                sb::Chassis::name(name),
                sb::Chassis::hostname(&settings.hostname),
                sb::Chassis::encaps(&encaps),
                sb::Chassis::other_config(&other),
                sb::Chassis::transport_zones(&zones),
            ];
            part.txn.insert_row(columns);
            self.said.end();
            return;
        };
        let mut columns = Vec::new();
        if row.hostname != settings.hostname {
            columns.push(sb::Chassis::hostname(&settings.hostname));
        }
        if row.transport_zones != zones {
            columns.push(sb::Chassis::transport_zones(&zones));
        }
        // What others may set is left alone; what nobody knows goes.
        let mut merged = row.other_config.clone();
        merged.retain(|key, _| {
            let known = FEATURES.contains(&&**key) || OTHERS.contains(&&**key);
            if !known && self.said.say(format!("Removing unsupported key \"{key}\" from chassis record.")) {
                tracing::warn!(target: "chassis", "Removing unsupported key \"{key}\" from chassis record.");
            }
            let ours = key.starts_with("isthmus-");
            known && (!ours || other.contains_key(key))
        });
        merged.extend(other);
        if merged != row.other_config {
            columns.push(sb::Chassis::other_config(&merged));
        }
        let ids: Set<Uuid> = encaps.iter().map(|e| encap(e, sb, settings, &mut part.txn)).collect();
        if ids != row.encaps {
            columns.push(sb::Chassis::encaps(&ids));
        }
        if !columns.is_empty() {
            part.txn.update_row(id, columns);
        }
        self.said.end();
    }

    /// The encapsulations that no other chassis has.
    fn usable(&mut self, sb: &sb::Database, settings: &Settings) -> Vec<(Str, Str)> {
        let me = &settings.system_id;
        let mut out = Vec::new();
        for (kind, ip) in &settings.encaps {
            let other = sb.encap.values().find(|e| e.r#type == *kind && e.ip == *ip && e.chassis_name != *me);
            let Some(other) = other else {
                out.push((kind.clone(), ip.clone()));
                continue;
            };
            let text = format!(
                "'{}' already has encap ip '{ip}' and type '{kind}', cannot duplicate on '{me}'",
                other.chassis_name
            );
            if self.said.say(text.clone()) {
                tracing::warn!(target: "chassis", kind = daemon::kind(&text), "{text}");
            }
        }
        out
    }
}

/// An Encap row: one that is there, brought up to date, or a new one.
fn encap((kind, ip): &(Str, Str), sb: &sb::Database, settings: &Settings, txn: &mut Transaction) -> Uuid {
    let csum: Str = settings.encap_csum.to_string().into();
    let mut options: Map<Str, Str> = Map::from([("csum".into(), csum)]);
    if settings.encap_default.as_ref() == Some(ip) {
        options.insert("is_default".into(), "true".into());
    }
    let own = |e: &sb::Encap| e.r#type == *kind && e.ip == *ip && e.chassis_name == settings.system_id;
    if let Some((id, row)) = sb.encap.iter().find(|(_, e)| own(e)) {
        if row.options != options {
            txn.update_row(*id, [sb::Encap::options(&options)]);
        }
        return *id;
    }
    let columns = [
        sb::Encap::r#type(kind),
        sb::Encap::ip(ip),
        sb::Encap::chassis_name(&settings.system_id),
        sb::Encap::options(&options),
    ];
    txn.insert_row(columns)
}

fn private(input: &Input, settings: &Settings, chassis: Option<Uuid>, plan: &mut Plan) {
    let name = &settings.system_id;
    let txn = &mut plan.part(format!("Chassis_Private {name}"), chassis).txn;
    match input.chassis_private(name) {
        None => {
            txn.insert_row([sb::ChassisPrivate::name(name), sb::ChassisPrivate::chassis(&chassis)]);
        }
        Some((id, row)) if chassis.is_some() && row.chassis != chassis => {
            txn.update_row(id, [sb::ChassisPrivate::chassis(&chassis)]);
        }
        Some(_) => {}
    }
}

/// Takes the chassis out of the southbound database, at `exit`.
pub fn remove(sb: &sb::Database, settings: &Settings, txn: &mut Transaction) {
    for (id, _) in sb.chassis.iter().filter(|(_, c)| c.name == settings.system_id) {
        txn.delete("Chassis", *id);
    }
    for (id, _) in sb.chassis_private.iter().filter(|(_, c)| c.name == settings.system_id) {
        txn.delete("Chassis_Private", *id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_chassis_that_nobody_can_reach_is_none() {
        let uuid = Uuid::from_u128;
        let mut db = sb::Database::default();
        for (n, name, ip) in [(1, "hv1", "192.168.0.1"), (2, "hv2", "192.168.0.2")] {
            let e =
                sb::Encap { r#type: "geneve".into(), ip: ip.into(), chassis_name: name.into(), ..Default::default() };
            db.encap.insert(uuid(10 + n), Arc::new(e));
            let c = sb::Chassis { name: name.into(), encaps: [uuid(10 + n)].into(), ..Default::default() };
            db.chassis.insert(uuid(n), Arc::new(c));
            db.chassis_private
                .insert(uuid(20 + n), Arc::new(sb::ChassisPrivate { name: name.into(), ..Default::default() }));
        }
        let operations = |ips: &[&str]| {
            let encaps = ips.iter().map(|ip| (Str::from("geneve"), Str::from(*ip))).collect();
            let s = Settings { system_id: "hv2".into(), encaps, ..Settings::default() };
            let mut plan = Plan::new(Arc::new(sb::Database::schema()));
            let input = Input::new(db.clone(), crate::input::model::Local::default());
            let (ovs, lost) = (ovs::Database::default(), BTreeSet::new());
            let asked = BTreeSet::new();
            let here = Here { ovs: &ovs, settings: &s, lost: &lost, asked: &asked, features: None };
            Writer::default().reconcile(&input, &here, &mut plan);
            let all = crate::plan::Attempts::default().choose(plan, std::time::Instant::now());
            all.iter()
                .map(|o| format!("{} {}", o["op"].as_str().unwrap(), o["table"].as_str().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(operations(&["192.168.0.1"]), ["delete Chassis", "delete Chassis_Private"]);
        let shared = operations(&["192.168.0.1", "192.168.0.3"]);
        assert!(
            shared.contains(&"insert Encap".to_string()) && !shared.iter().any(|o| o.contains("delete")),
            "{shared:?}"
        );
    }
}
