//! Connection tracking actions.

use super::{Error, Site, calls, operand};
use crate::encode::of;
use logical_flow::action::{Action as Logical, Backend, Backends, Balance, BalanceFlag, Target, Zone};
use openflow_rs::action::{CtAction, ZoneSpec};
use openflow_rs::{Action, Bucket, FieldId, Group, GroupType, NatRange, NatSpec, Subfield};

fn zone_field(f: FieldId) -> ZoneSpec {
    ZoneSpec::Field(Subfield { field: f, ofs: 0, n_bits: 16 })
}

/// The zone of an action that does not name one: a switch's is the port's, a router's depends on the translation.
fn zone(site: &Site<'_>, named: Option<Zone>, router: FieldId) -> ZoneSpec {
    zone_field(match named {
        Some(Zone::Dnat) => of::DNAT_ZONE,
        Some(Zone::Snat) => of::SNAT_ZONE,
        None if site.is_switch => of::PORT_ZONE,
        None => router,
    })
}

fn ct(c: CtAction) -> Action {
    Action::Ct(Box::new(c))
}

pub(super) fn encode(a: &Logical, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let table = Some(site.next_table());
    out.push(match a {
        Logical::CtNext(named) => {
            ct(CtAction { table, zone: zone(site, *named, of::DNAT_ZONE), ..CtAction::default() })
        }
        Logical::CtCommit(exec) => ct(CtAction {
            commit: true,
            zone: zone(site, None, of::DNAT_ZONE),
            nat: Some(NatSpec { src: true, ..NatSpec::default() }),
            exec: commit_exec(exec.as_deref().unwrap_or_default())?,
            ..CtAction::default()
        }),
        Logical::CtCommitToZone(z) => {
            ct(CtAction { commit: true, table, zone: zone(site, Some(*z), of::DNAT_ZONE), ..CtAction::default() })
        }
        Logical::CtCommitNat(named) => ct(CtAction {
            commit: true,
            table,
            zone: zone(site, *named, of::DNAT_ZONE),
            nat: of::nat_existing(),
            ..CtAction::default()
        }),
        Logical::CtDnat { target, common } => translate(site, target.as_ref(), false, *common),
        Logical::CtSnat { target, common } => translate(site, target.as_ref(), true, *common),
        Logical::CtLb(b) => match &b.backends {
            None => ct(CtAction {
                table,
                zone: zone(site, None, of::DNAT_ZONE),
                nat: of::nat_existing(),
                ..CtAction::default()
            }),
            Some(Backends::List(list)) => return balance(list, b, site, out),
            Some(Backends::Template(name)) => {
                return Err(Error::Unsupported(format!("^{name} has no value on this chassis")));
            }
        },
        other => return Err(Error::Unsupported(format!("{other} cannot stand here"))),
    });
    Ok(())
}

fn commit_exec(list: &[Logical]) -> Result<Vec<Action>, Error> {
    let mut out = Vec::new();
    for a in list {
        out.push(match a {
            Logical::Load(to, value) => {
                let s = operand(to)?;
                match value.mask {
                    Some(m) => Action::set_masked(s.field, value.value << s.ofs, m << s.ofs),
                    None => of::set_sub(s, value.value),
                }
            }
            Logical::Move(to, from) => of::copy(operand(from)?, operand(to)?),
            other => return Err(Error::Unsupported(format!("{other} cannot stand in ct_commit"))),
        });
    }
    Ok(out)
}

fn translate(site: &Site<'_>, target: Option<&Target>, source: bool, common: bool) -> Action {
    // Sources have a zone of their own; destinations, on a switch, are translated in the port's zone.
    // Where both share one, it is the destinations', unless the router's zone for sources is given (`snat-ct-zone`).
    let shared = if site.snat_zone_given { of::SNAT_ZONE } else { of::DNAT_ZONE };
    let zone = match (source, common) {
        (true, false) => zone_field(of::SNAT_ZONE),
        (_, true) => zone(site, None, shared),
        (false, false) => zone(site, None, of::DNAT_ZONE),
    };
    let nat = target.map(|t| NatSpec {
        src: source,
        dst: !source,
        range: NatRange { addr: Some((t.ip, t.ip)), port: t.ports },
        random: t.ports.is_some_and(|(lo, hi)| hi > lo),
        ..NatSpec::default()
    });
    ct(CtAction {
        commit: target.is_some(),
        table: Some(site.next_table()),
        zone,
        nat: Some(nat.unwrap_or_default()),
        ..CtAction::default()
    })
}

/// The flags that a load balancer leaves in the connection: natted, and how its source is to be translated.
fn balance_flags(mark: bool, flag: Option<BalanceFlag>) -> Vec<Action> {
    let source: Option<u128> = flag.map(|f| match f {
        BalanceFlag::SkipSnat => 0x4,
        BalanceFlag::ForceSnat => 0x8,
    });
    let field = if mark { FieldId::CtMark } else { FieldId::CtLabel };
    std::iter::once(0x2).chain(source).map(|bit| Action::set_masked(field, bit, bit)).collect()
}

fn balance(list: &[Backend], how: &Balance, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let here = |b: &&Backend| !how.local || b.port_name.as_deref().is_some_and(|p| (site.resident)(p));
    let mut group = Group { group_type: GroupType::Select, ..Group::default() };
    match &how.hash_fields {
        None => group.selection.name = "dp_hash".into(),
        Some(list) => calls::select_by(list, &mut group)?,
    }
    for (n, b) in (0u32..).zip(list.iter().filter(here)) {
        let range = NatRange { addr: Some((b.ip, b.ip)), port: b.port.map(|p| (p, p)) };
        let commit = ct(CtAction {
            commit: true,
            table: Some(site.next_table()),
            zone: zone(site, None, of::DNAT_ZONE),
            nat: Some(NatSpec { dst: true, range, ..NatSpec::default() }),
            exec: balance_flags(how.mark, how.flag),
            ..CtAction::default()
        });
        group.buckets.push(Bucket::new(n, 100, vec![commit]));
    }
    if group.buckets.is_empty() {
        return Ok(());
    }
    out.push(Action::Group((site.group)(group)));
    Ok(())
}
