//! Port groups and the switches that they reach into.

use super::Fact;
use crate::context::Ctx;
use crate::input::Read;
use ovn_schema::{Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};

/// A port group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The name.
    pub name: Str,
    /// Its ACLs.
    pub acls: Vec<Uuid>,
    /// Its ports by switch.
    pub ports: BTreeMap<Uuid, BTreeSet<Str>>,
}

/// Derives [`Fact::PortGroup`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::PortGroup>(uuid) else { return };
    let mut ports: BTreeMap<Uuid, BTreeSet<Str>> = BTreeMap::new();
    for p in &row.ports {
        let Some(switch) = ctx.read(Read::LspOwner(*p)).lsp_owner(*p) else { continue };
        let Some(port) = ctx.lsp(*p) else { continue };
        ports.entry(switch).or_default().insert(port.name.clone());
    }
    let acls = row.acls.iter().copied().collect();
    ctx.derive(Fact::PortGroup(Box::new(Group { name: row.name.clone(), acls, ports })));
}

/// Derives [`Fact::PortGroupsBySwitch`].
pub fn by_switch(ctx: &mut Ctx<'_, '_>) {
    let mut all: BTreeMap<Uuid, Vec<Uuid>> = BTreeMap::new();
    for g in ctx.nb_table::<nb::PortGroup>() {
        if let Some(group) = ctx.port_group(g) {
            for switch in group.ports.keys() {
                all.entry(*switch).or_default().push(g);
            }
        }
    }
    ctx.derive(Fact::PortGroupsBySwitch(all));
}
