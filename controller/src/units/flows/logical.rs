//! A logical flow in all local datapaths.

use super::sets::{self, Place};
use super::{
    ChassisFlows, Fact, Key, Named, Purpose, Role, Seen, Unit, Value, cookie, datapath_key, is_local, known,
    local_datapaths, named, port, resident, role_of, row, templated,
};
use crate::input::model::Read;
use crate::{encode, encode::tables};
use logical_flow::action::{Action, Made};
use logical_flow::constant::Integer;
use logical_flow::expr::{Environment, Expr, Operand};
use logical_flow::field::{Field, INPORT, OUTPORT};
use logical_flow::fields::Fields;
use logical_flow::normal::{self, Match as Normal};
use logical_flow::{action, evaluate, expr, template};
use openflow_rs::mods::{MeterBand, MeterConfig};
use openflow_rs::{Group, GroupId, MeterId, PackedActions};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{PortKey, Str, Uuid};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::sync::Arc;

pub(super) fn run(flows: &ChassisFlows, id: Uuid, view: &mut Seen<'_>) {
    let Some(f) = row::<sb::LogicalFlow>(view, TableId::LogicalFlow, id) else { return };
    let own = f.logical_datapath.filter(|dp| is_local(view, *dp));
    let here = f.logical_dp_group.map_or(&[][..], |g| local_datapaths(view, g));
    let mut problem = None;
    let mut slots = Vec::new();
    super::LOGICAL_FLOWS.inc();
    let (text, actions) = (templated(view, &f.r#match), templated(view, &f.actions));
    if template::is_open(&text) || template::is_open(&actions) {
        // The flow is for chassis that have a value for its variables.
        tracing::debug!(target: "lflow", "logical flow {id}: this chassis has no value for a template variable in match \"{text}\", actions \"{actions}\"");
        return;
    }
    match (expr::parse(&text), action::parse(&actions)) {
        (Ok(e), Ok(a)) => {
            for dp in own.iter().chain(here) {
                if let Err(e) = in_datapath(flows, id, f, (&e, &a), *dp, view, &mut slots) {
                    problem = Some(e);
                }
            }
            sets::leave(id, slots, view);
        }
        (Err(e), _) => problem = Some(format!("error parsing match \"{text}\": {e}")),
        (_, Err(e)) => problem = Some(format!("error parsing actions \"{actions}\": {e}")),
    }
    if let Some(p) = problem {
        let text = format!("logical flow {id}: {p}; the flow is left out");
        view.emit(Key::Problem(id), Value::Problem(text.into()));
    }
}

/// The names of a match and of actions, seen through a view.
struct Names<'v, 'a> {
    view: RefCell<&'v mut Seen<'a>>,
    datapath: Uuid,
    purpose: Purpose,
    /// The ports that port groups have named: all of them have something on this chassis.
    members: RefCell<Vec<PortKey>>,
}

impl Names<'_, '_> {
    /// Whether an address set has several members.
    fn has_several(&self, name: &str) -> bool {
        let mut view = self.view.borrow_mut();
        sets::by_name(name, &mut view).is_some_and(|id| sets::has_several(id, &mut view))
    }

    /// A port of the datapath, or one of its multicast groups.
    fn key(&self, name: &str) -> Option<PortKey> {
        let mut view = self.view.borrow_mut();
        if let Some(p) = named(&mut view, name)
            && p.datapath == self.datapath
        {
            return Some(p.key);
        }
        let input = view.read(Read::GroupsOf(self.datapath));
        let group = input.groups_of(self.datapath).find(|(_, g)| &*g.name == name);
        group.map(|(_, g)| g.key())
    }
}

impl Environment for Names<'_, '_> {
    fn port(&self, name: &str) -> Option<u32> {
        self.key(name).map(u32::from)
    }
    fn is_chassis_resident(&self, name: &str) -> bool {
        resident(&mut self.view.borrow_mut(), name, self.purpose)
    }
    fn address_set(&self, name: &str) -> Option<Vec<Integer>> {
        let mut view = self.view.borrow_mut();
        let id = sets::by_name(name, &mut view)?;
        sets::members(id, &mut view)
    }
    fn port_group(&self, name: &str) -> Option<Vec<u32>> {
        let mut view = self.view.borrow_mut();
        let dp =
            view.read(Read::Row(TableId::DatapathBinding, self.datapath)).sb.datapath_binding.get(&self.datapath)?;
        // northd makes one group a datapath, with the datapath's key in front of the name.
        let own: Str = format!("{}_{name}", dp.key()).into();
        let Some((id, g)) = view.read(Read::PortGroup(own.clone())).port_group(&own) else {
            let input = view.read(Read::PortGroup(name.into()));
            // A group without ports in this datapath is known all the same.
            return input.port_group(name).map(|_| Vec::new());
        };
        let here = match view.fact(&Unit::Members(id)) {
            Some(Fact::Members(here)) => here.clone(),
            _ => {
                view.read(Read::Row(TableId::PortGroup, id));
                members(g, &mut view).into()
            }
        };
        let mut members = self.members.borrow_mut();
        let own = here.iter().filter(|(datapath, _)| *datapath == self.datapath).map(|(_, key)| *key);
        let numbers = own.inspect(|key| members.push(*key)).map(u32::from);
        Some(numbers.collect())
    }
}

/// Whether actions answer a request of ARP or ND.
fn answers(list: &[Action]) -> bool {
    let is_op = |to: &Operand| to.field().is_some_and(|(field, _)| field == Field::ArpOp);
    list.iter().any(|a| match a {
        Action::Load(to, value) => is_op(to) && value.value == packet::arp_op::REPLY.into(),
        Action::Make(Made::NdNa | Made::NdNaRouter, _) => true,
        _ => false,
    })
}

fn in_datapath(
    flows: &ChassisFlows,
    id: Uuid,
    f: &sb::LogicalFlow,
    (e, a): (&Expr, &action::Actions),
    dp: Uuid,
    view: &mut Seen<'_>,
    slots: &mut Vec<sets::Slot>,
) -> Result<(), String> {
    let Some(binding) = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, dp) else { return Ok(()) };
    let is_switch = crate::input::model::is_switch(binding);
    let Some(key) = datapath_key(view, dp) else { return Ok(()) };
    let egress = &*f.pipeline == "egress";
    let table = tables::of_stage(egress, f.table_id).ok_or_else(|| format!("table {} is out of range", f.table_id))?;
    if let Some(name) = f.tags.get("in_out_port")
        && !is_related(view, name)
    {
        return Ok(());
    }
    let purpose = if answers(&a.list) { Purpose::Answer } else { Purpose::Serve };
    let names = Names { view: RefCell::new(view), datapath: dp, purpose, members: RefCell::default() };
    let mut terms = Vec::new();
    for p in &a.prerequisites {
        terms.push(evaluate::prerequisite(p).map_err(|e| format!("prerequisite {p}: {e}"))?);
    }
    let refused = |e| format!("match \"{}\": {e}", f.r#match);
    let by_connection = ovn_schema::options::flag(&f.tags, "acl_ct_translation");
    let apart = if by_connection {
        None
    } else {
        logical_flow::sets::apart(e, &terms, &names, &|set| names.has_several(set)).map_err(refused)?
    };
    let (matches, mut asked) = match apart {
        Some(apart) => (apart.common, apart.slots),
        None => {
            terms.insert(0, e.evaluate(&names).map_err(refused)?);
            (normal::matches(&normal::Boolean::And(terms)), Vec::new())
        }
    };
    if matches.is_empty() && asked.is_empty() {
        return Ok(());
    }
    let groups: RefCell<Vec<(GroupId, Group)>> = RefCell::new(Vec::new());
    let meters: RefCell<Vec<MeterConfig>> = RefCell::new(Vec::new());
    let meter = |name: &str| {
        let mut config = meter(&mut names.view.borrow_mut(), name)?;
        config.id = flows.ids.meter(name);
        let id = config.id;
        meters.borrow_mut().push(config);
        Some(id)
    };
    let site = encode::Site {
        egress,
        stage: f.table_id as u8,
        is_switch,
        snat_zone_given: binding.external_ids.contains_key("snat-ct-zone"),
        datapath: key,
        port: &|n| names.key(n),
        resident: &|n| names.is_chassis_resident(n),
        group: &|g| {
            let number = flows.ids.group(&g);
            groups.borrow_mut().push((number, g));
            number
        },
        collects: &|set| super::collects(&mut names.view.borrow_mut(), set),
        tunnel: &|n| tunnel_of(&mut names.view.borrow_mut(), n),
        meter: &meter,
        dhcp_option: &|n, v6| dhcp_option(&mut names.view.borrow_mut(), n, v6),
        controller_meter: f.controller_meter.as_ref().and_then(|n| meter(n)),
        cookie: cookie(id),
        flow: id,
    };
    let actions = encode::actions(&a.list, &site).map_err(|e| format!("actions \"{}\": {e}", f.actions))?;
    let here = names.members.take();
    for (number, mut g) in groups.into_inner() {
        g.id = number;
        view.emit(Key::Group(number), Value::Group(Arc::new(g)));
    }
    for m in meters.into_inner() {
        view.emit(Key::Meter(m.id), Value::Meter(Arc::new(m)));
    }
    let mut matches: Vec<Normal> = if by_connection { matches.into_iter().map(translated).collect() } else { matches };
    if is_switch {
        related(&mut matches, &mut asked, here, dp, egress, view);
    }
    let numbers = matches.iter().map(numbers).chain(asked.iter().map(logical_flow::sets::Slot::conjunctions));
    let place = Place {
        table,
        priority: f.priority as u16,
        datapath: key,
        conjunctions: flows.ids.conjunction(id, dp, numbers.max().unwrap_or(0)),
        flow: id,
        actions: PackedActions::from(&actions[..]),
    };
    place.put(matches, view);
    for slot in asked {
        let sets = slot.sets.iter().filter_map(|name| sets::by_name(name, view)).collect();
        slots.push(sets::Slot { sets, slot, place: place.clone() });
    }
    Ok(())
}

/// The highest number of a conjunction that a match belongs to; 0 for none.
fn numbers(m: &Normal) -> u32 {
    match m {
        Normal::Plain(_) => 0,
        Normal::Conjunction(_, n) => *n,
        Normal::Clause(_, clauses) => clauses.iter().map(|(n, ..)| *n).max().unwrap_or(0),
    }
}

/// A meter by name: a row of the southbound table, or `__string: …` with what `set_meter` says (kilobits per second).
fn meter(view: &mut Seen<'_>, name: &str) -> Option<MeterConfig> {
    let drop = |rate: i64, burst: i64| MeterBand {
        band_type: 1,
        rate: u32::try_from(rate).unwrap_or(u32::MAX),
        burst: u32::try_from(burst).unwrap_or(u32::MAX),
        prec_level: 0,
    };
    let (kilobits, bands) = if let Some(own) = name.strip_prefix("__string: ") {
        let number = |key: &str| own.split([' ', ',']).find_map(|w| w.strip_prefix(key))?.parse().ok();
        (true, vec![drop(number("rate=")?, number("burst_size=").unwrap_or(0))])
    } else {
        let table = &view.read(Read::Table(TableId::Meter)).sb.meter;
        let id = *table.iter().find(|(_, m)| &*m.name == name)?.0;
        let m = row::<sb::Meter>(view, TableId::Meter, id)?;
        let bands = m.bands.iter().filter_map(|b| row::<sb::MeterBand>(view, TableId::MeterBand, *b));
        (&*m.unit == "kbps", bands.map(|b| drop(b.rate, b.burst_size)).collect())
    };
    let unit = if kilobits { MeterConfig::KBPS } else { MeterConfig::PKTPS };
    let burst = if bands.iter().any(|b| b.burst > 0) { MeterConfig::BURST } else { 0 };
    Some(MeterConfig { id: MeterId(0), flags: unit | burst | MeterConfig::STATS, bands })
}

/// The OpenFlow port of the tunnel to a port's chassis.
fn tunnel_of(view: &mut Seen<'_>, name: &str) -> Option<u16> {
    let chassis = port(view, name)?.1.chassis?;
    let me = view.read(Read::Chassis).local.chassis;
    if Some(chassis) == me { None } else { Some(super::tunnel::to(view, chassis)?.ofport) }
}

/// The match with the connection's original ports in place of the packet's own, so that it also holds for fragments, which
/// have none (ovn-nb(5), `acl_ct_translation`).
fn translated(m: Normal) -> Normal {
    let translate = |fields: Fields| {
        if fields.get(Field::IpProto).is_none_or(|(p, _)| !matches!(p, 6 | 17 | 132)) {
            return fields;
        }
        let mut out: Fields = fields
            .into_iter()
            .map(|(field, value)| match field {
                Field::IpProto => (Field::CtNwProto, value),
                Field::TcpSrc | Field::UdpSrc | Field::SctpSrc => (Field::CtTpSrc, value),
                Field::TcpDst | Field::UdpDst | Field::SctpDst => (Field::CtTpDst, value),
                other => (other, value),
            })
            .collect();
        // Tracked, and not invalid.
        let state = out.get(Field::CtState).unwrap_or((0, 0));
        out.insert(Field::CtState, (state.0 | 0x20, state.1 | 0x30));
        out
    };
    match m {
        Normal::Plain(f) => Normal::Plain(translate(f)),
        Normal::Clause(f, c) => Normal::Clause(translate(f), c),
        Normal::Conjunction(f, n) => Normal::Conjunction(translate(f), n),
    }
}

/// Leaves out the matches of ports of a switch that have nothing on this chassis: an input port in the ingress pipeline, an
/// output port in the egress pipeline. Some ports are known to have something `here`.
fn related(
    matches: &mut Vec<Normal>,
    asked: &mut Vec<logical_flow::sets::Slot>,
    here: Vec<PortKey>,
    dp: Uuid,
    egress: bool,
    view: &mut Seen<'_>,
) {
    let register = if egress { OUTPORT } else { INPORT };
    let mut known: FxHashMap<u128, bool> = here.into_iter().map(|key| (u32::from(key).into(), true)).collect();
    let mut keep = |f: &Fields| {
        let Some(key) = f.get(register).map(|(value, _)| value).filter(|k| *k != 0) else { return true };
        *known.entry(key).or_insert_with(|| {
            let key = u32::try_from(key).ok().map(PortKey::from_register);
            let port = key.and_then(|key| view.read(Read::PortByKey(dp, key)).port_by_key(dp, key));
            let name = port.map(|(_, p)| p.logical_port.clone());
            // Multicast groups and ports that are not there are nobody's.
            name.is_none_or(|n| is_related(view, &n))
        })
    };
    matches.retain(|m| {
        let (Normal::Plain(f) | Normal::Clause(f, _) | Normal::Conjunction(f, _)) = m;
        keep(f)
    });
    asked.iter_mut().for_each(|slot| slot.retain(&mut keep));
    asked.retain(|slot| !slot.is_empty());
}

/// The members of a port group, whose row has been read, that packets of this chassis can come from or go to: datapath and key.
pub(super) fn members(g: &sb::PortGroup, view: &mut Seen<'_>) -> Vec<(Uuid, PortKey)> {
    let member = |name: &Str| {
        let port = known(view, name)?;
        may_pass(view, &port, name).then_some((port.datapath, port.key))
    };
    g.ports.iter().filter_map(member).collect()
}

/// Whether packets of this chassis can have the port as their input or output port. Flows for others are left out.
fn is_related(view: &mut Seen<'_>, name: &Str) -> bool {
    known(view, name).is_some_and(|port| may_pass(view, &port, name))
}

fn may_pass(view: &mut Seen<'_>, p: &Named<'_>, name: &Str) -> bool {
    match (p.kind, p.parent) {
        ("", Some(parent)) => view.read(Read::Vif(parent.clone())).local.interface(parent).is_some(),
        // A port that is on every chassis is on those where an interface is plugged in for it.
        ("localport", _) => view.read(Read::Vif(name.clone())).local.interface(name).is_some(),
        ("" | "virtual" | "l2gateway" | "l3gateway" | "mirror", _) => role_of(view, p.id, name) != Role::None,
        // Each gateway is to be ready, whether it serves or not.
        ("chassisredirect", _) => super::may_serve(view, p.id),
        _ => true,
    }
}

fn dhcp_option(view: &mut Seen<'_>, name: &str, v6: bool) -> Option<(u16, String)> {
    let sb = &view.read(Read::DhcpOptions).sb;
    if v6 {
        let o = sb.dhcpv6_options.values().find(|o| &*o.name == name)?;
        return Some((o.code as u16, o.r#type.to_string()));
    }
    let o = sb.dhcp_options.values().find(|o| &*o.name == name)?;
    Some((o.code as u16, o.r#type.to_string()))
}
