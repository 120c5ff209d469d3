//! Options that hold for all: `NB_Global`, and what every chassis can do.

use super::Fact;
use crate::context::{Ctx, flag_or};
use crate::model::FlowExtra;
use ovn_schema::{Map, Str, nb, sb};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The highest datapath tunnel key. Whoever asks for it asks the northbound database; in the southbound one OVN writes it with the
/// other options, but not for itself alone.
pub const MAX_KEY: &str = "max_tunid";
/// Options of `NB_Global` that northd writes.
pub const WRITTEN: [&str; 2] = [MAX_KEY, "northd_internal_version"];

/// Options that hold for all datapaths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Global {
    /// `NB_Global.options`, without those that northd writes itself.
    pub options: Map<Str, Str>,
    /// `NB_Global.ipsec`.
    pub ipsec: bool,
    /// Whether some chassis takes part by VXLAN, which limits tunnel keys to 12 bits.
    pub vxlan: bool,
    /// Whether availability zones share switches, and the key space.
    pub zones: bool,
    /// Features that every chassis has.
    pub features: Features,
    /// The actions of a drop flow.
    pub drop: Str,
    /// The text to add where the actions of a flow end without output, so that the packet is dropped.
    pub implicit_drop: Str,
    /// The names of all meters.
    pub meters: BTreeSet<Str>,
    /// Sampling applications: type → id.
    pub sampling: Map<Str, i64>,
    /// `options:ignore_lsp_down`, true by default: ARP and ND replies for a port do not wait until it is up.
    pub ignore_lsp_down: bool,
    /// `options:default_acl_drop`.
    pub default_acl_drop: bool,
    /// `options:use_ct_inv_match`, true by default.
    pub ct_inv_match: bool,
}

/// Features that every chassis has (`Chassis.other_config`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// `ct_state_save`, which keeps the connection state in a register.
    pub ct_state_save: bool,
    /// Committing with translation in one action.
    pub ct_commit_nat: bool,
    /// Going on in another conntrack zone.
    pub ct_next_zone: bool,
    /// Committing to another conntrack zone.
    pub ct_commit_to_zone: bool,
    /// Sampling with what registers hold.
    pub sample_with_registers: bool,
    /// Flushing connections by their label.
    pub ct_label_flush: bool,
}

impl Features {
    const ALL: Features = Features {
        ct_state_save: true,
        ct_commit_nat: true,
        ct_next_zone: true,
        ct_commit_to_zone: true,
        sample_with_registers: true,
        ct_label_flush: true,
    };

    /// Whether connections can be tracked in either zone at will.
    pub fn zones(self) -> bool {
        self.ct_next_zone && self.ct_commit_to_zone
    }

    fn restrict(&mut self, other_config: &Map<Str, Str>) {
        let is = |key: &str| crate::context::flag(other_config, key);
        self.ct_state_save &= is("ct-state-save");
        self.ct_commit_nat &= is("ct-commit-nat-v2");
        self.ct_next_zone &= is("ct-next-zone");
        self.ct_commit_to_zone &= is("ct-commit-to-zone");
        self.sample_with_registers &= is("ovn-sample-with-registers");
        self.ct_label_flush &= is("ct-label-flush");
    }
}

impl Global {
    /// The options of an empty database.
    pub fn none() -> &'static Global {
        static NONE: OnceLock<Global> = OnceLock::new();
        NONE.get_or_init(Global::default)
    }

    /// The Ethernet address that service monitors use.
    pub fn svc_monitor_mac(&self) -> Str {
        self.options.get("svc_monitor_mac").cloned().unwrap_or_default()
    }

    /// The highest datapath tunnel key.
    pub fn max_datapath_key(&self) -> i64 {
        match (self.zones, self.vxlan) {
            (true, _) => 1023,
            (false, true) => 4095,
            (false, false) => 16_711_680,
        }
    }
}

/// Derives [`Fact::Global`].
pub fn run(ctx: &mut Ctx<'_, '_>) {
    let mut global = Global { drop: "drop;".into(), implicit_drop: "/* drop */".into(), ..Global::default() };
    for u in ctx.nb_table::<nb::NbGlobal>() {
        if let Some(row) = ctx.nb::<nb::NbGlobal>(u) {
            global.options = row.options.clone();
            WRITTEN.iter().for_each(|key| drop(global.options.remove(*key)));
            global.ipsec = row.ipsec;
        }
    }
    for u in ctx.nb_table::<nb::Meter>() {
        if let Some(row) = ctx.nb::<nb::Meter>(u) {
            global.meters.insert(row.name.clone());
        }
    }
    for u in ctx.nb_table::<nb::SamplingApp>() {
        if let Some(row) = ctx.nb::<nb::SamplingApp>(u) {
            global.sampling.insert(row.r#type.clone(), row.id);
        }
    }
    global.features = Features::ALL;
    let trust = crate::context::flag(&global.options, "ignore_chassis_features");
    let vxlan_allowed = flag_or(&global.options, "vxlan_mode", true);
    for u in ctx.sb_table::<sb::Chassis>() {
        let Some(chassis) = ctx.sb::<sb::Chassis>(u) else { continue };
        if !trust && !crate::context::flag(&chassis.other_config, "is-remote") {
            global.features.restrict(&chassis.other_config);
        }
        for e in &chassis.encaps {
            if let Some(encap) = ctx.sb::<sb::Encap>(*e) {
                global.vxlan |= vxlan_allowed && &*encap.r#type == "vxlan";
            }
        }
    }
    for u in ctx.nb_table::<nb::LogicalSwitch>() {
        global.zones |= ctx.datapath(u).is_some_and(|d| d.zones);
    }
    drop_sampling(&mut global);
    global.ignore_lsp_down = flag_or(&global.options, "ignore_lsp_down", true);
    global.default_acl_drop = flag_or(&global.options, "default_acl_drop", false);
    global.ct_inv_match = flag_or(&global.options, "use_ct_inv_match", true);
    ctx.derive(Fact::Global(Box::new(global)));
}

/// Sampling of drops: `options:debug_drop_collector_set` and the domain, which a `Sampling_App` overrides.
fn drop_sampling(global: &mut Global) {
    let number = |key: &str| crate::context::number(&global.options, key).filter(|n| *n > 0);
    let domain = global.sampling.get("drop").copied().or_else(|| number("debug_drop_domain_id")).unwrap_or(0);
    if let (Some(set), 0..255) = (number("debug_drop_collector_set"), domain) {
        let text =
            format!("sample(probability=65535,collector_set={set},obs_domain={domain},obs_point=$cookie); /* drop */");
        global.drop = text.as_str().into();
        global.implicit_drop = text.into();
    }
}

/// The meter of a control plane protection entry, where the meter exists.
pub fn copp(entries: &Map<Str, Str>, protocol: &str, global: &Global) -> FlowExtra {
    let meter = entries.get(protocol).filter(|m| global.meters.contains(*m)).cloned();
    FlowExtra { meter, ..FlowExtra::default() }
}
