//! Mirroring to another logical port.

use crate::addresses::quoted;
use crate::context::Ctx;
use crate::facts::lsp::Lsp;
use crate::facts::switch::{Switch, mirror_port};
use crate::model::{Columns, RowKey};
use crate::stage::Stage::*;
use ovn_schema::{Set, Str, nb};

/// The ports that mirrored packets leave a switch by.
pub fn switch(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    for (name, sink) in switch.mirrors.keys() {
        let Some(key) = ctx.port_key(switch.uuid, name) else { continue };
        let columns = Columns::new()
            .data("logical_port", name)
            .refs("datapath", vec![RowKey::datapath(switch.uuid)])
            .data("tunnel_key", &key.0)
            .data("type", &Str::from("mirror"))
            .data("mirror_port", &Some(sink.clone()))
            .data("mac", &Set::<Str>::new());
        ctx.row(RowKey::port(name), columns);
        let matches = format!("outport == {}", quoted(name));
        ctx.flow(switch.uuid, LsOutPreAcl, 65535, matches, "next(pipeline=egress, table=15);");
    }
}

/// The flows of a port whose packets are mirrored.
pub fn port(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let ctx = &mut ctx.about_none();
    for m in &lsp.row.mirror_rules {
        let Some(mirror) = ctx.nb::<nb::Mirror>(*m).filter(|m| &*m.r#type == "lport") else { continue };
        let name: Str = mirror_port(&switch.name, &mirror.sink).into();
        if !switch.mirrors.keys().any(|(n, _)| *n == name) {
            continue;
        }
        let copy = format!("mirror({}); next;", quoted(&name));
        for (stage, filter, side) in [(LsInMirror, "from-lport", "inport"), (LsOutMirror, "to-lport", "outport")] {
            if &*mirror.filter != "both" && &*mirror.filter != filter {
                continue;
            }
            let matches = format!("{side} == {}", lsp.json);
            ctx.flow(switch.uuid, stage, 100, matches.as_str(), copy.as_str());
            for r in &mirror.mirror_rules {
                let Some(rule) = ctx.nb::<nb::MirrorRule>(*r) else { continue };
                let actions = if &*rule.action == "mirror" { copy.as_str() } else { "next;" };
                let matches = format!("{matches} && ({})", rule.r#match);
                ctx.flow(switch.uuid, stage, 100 + rule.priority as u16, matches, actions);
            }
        }
    }
}
