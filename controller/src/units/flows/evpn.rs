//! A fabric that EVPN extends switches into: a VTEP is a logical port of the switch, with a key that no row has.
//!
//! | table | what is there |
//! |---|---|
//! | physical to logical | packets of a VTEP enter the switch by its key, and teach who is behind it |
//! | output to VTEPs | packets for a VTEP's key leave by VXLAN; broadcasts go to all |
//! | who is behind VTEPs | Ethernet addresses that a routing daemon told, and those that packets taught |
//! | neighbours | those that a routing daemon told: of routers at the switch, and for the answers that the switch gives itself |

use super::neighbour::{Neighbour, neighbour};
use super::{ChassisFlows, Key, Seen, Value, cookie, datapath_key, emit, port, row};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use crate::evpn::fabric::{Domain, Vtep};
use crate::evpn::{Entry, Fabric};
use crate::input::model::{Read, is_switch};
use openflow_rs::action::{LearnAction, LearnDst, LearnSpec, LearnSrc};
use openflow_rs::{Action, Bucket, FieldId, Group, GroupType, Match, PortNo, Subfield};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid};
use packet::{Mac, Vni};
use std::net::IpAddr;
use std::sync::Arc;

/// The multicast groups that reach VTEPs, too (`_MC_flood`, `_MC_unknown`, `_MC_flood_l2`).
const FLOODED: [PortKey; 3] = [PortKey(0x8000), PortKey(0x8001), PortKey(0x8004)];
/// The field into which the pipeline wants the port behind which an Ethernet address is.
const REMOTE_OUTPORT: FieldId = FieldId::Reg1;
/// Priorities of neighbours: before those that OVN learned (100), or behind all of OVN's.
const FIRST: u16 = 200;
const LAST: u16 = 20;

fn known<'a>(view: &mut Seen<'a>, entry: Entry) -> &'a Fabric {
    &view.read(Read::Evpn(Box::new(entry))).local.fabric
}

fn domain<'a>(view: &mut Seen<'a>, dp: Uuid) -> Option<&'a Domain> {
    known(view, Entry::Domain(dp)).domains.get(&dp)
}

pub(super) fn run(flows: &ChassisFlows, entry: &Entry, view: &mut Seen<'_>) {
    match entry {
        Entry::Domain(_) => {}
        Entry::Flood(dp) => drop(flood(*dp, view)),
        Entry::Vtep(dp, ip) => drop(vtep(*dp, *ip, view)),
        Entry::Mac(dp, mac) => drop(remote(flows, *dp, *mac, view)),
        Entry::Neighbour(dp, ip) => drop(remote_neighbour(*dp, *ip, view)),
    }
}

fn value(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

/// The fields of a tunnel's source and destination.
fn ends(ip: IpAddr) -> (FieldId, FieldId) {
    if ip.is_ipv4() { (FieldId::TunSrc, FieldId::TunDst) } else { (FieldId::TunIpv6Src, FieldId::TunIpv6Dst) }
}

fn set_vni(vni: Vni) -> Action {
    Action::set_masked(FieldId::TunId, vni.into(), Vni::MAX.into())
}

fn toward(dp: DatapathKey, key: impl Into<u128>) -> Match {
    Match::new().with(of::DATAPATH, dp.into()).with(of::OUTPORT, key.into())
}

fn vtep(dp: Uuid, ip: IpAddr, view: &mut Seen<'_>) -> Option<()> {
    let v = *known(view, Entry::Vtep(dp, ip)).vteps.get(&(dp, ip))?;
    let d = domain(view, dp)?;
    let from = value(d.from(ip)?);
    let key = datapath_key(view, dp)?;
    let (src, dst) = ends(ip);
    let mut entry = Match::new().with(FieldId::InPort, v.ofport.into()).with(FieldId::TunId, d.vni.into());
    entry.set(src, value(ip)).set(dst, from);
    let enter = vec![
        Action::set_masked(of::DATAPATH, key.into(), 0xffff_ffff),
        of::set(of::INPORT, v.key.into()),
        Action::resubmit(t::LEARN_REMOTE_FDB),
        Action::resubmit(t::INGRESS),
    ];
    emit(view, t::PHY_TO_LOG, 1050, entry, v.key, enter);

    let leave = [Action::set(src, from), Action::set(dst, value(ip)), set_vni(d.vni)];
    let out = |more: &[Action]| leave.iter().chain(more).cloned().collect();
    let m = || toward(key, v.key);
    emit(view, t::REMOTE_VTEP_OUTPUT, 50, m(), v.key, out(&[of::output(v.ofport)]));
    // OpenFlow does not send a packet out of its input port; hide that port where sending back is wanted.
    let looped = m().with_masked(of::FLAGS, flag::LOOPBACK.into(), flag::LOOPBACK.into());
    let hide = of::set(FieldId::InPort, PortNo::ANY.0.into());
    emit(view, t::REMOTE_VTEP_OUTPUT, 55, looped, v.key, out(&[hide, of::output(v.ofport)]));

    let entered = Match::new().with(of::DATAPATH, key.into()).with(of::INPORT, v.key.into());
    emit(view, t::LEARN_REMOTE_FDB, 100, entered, v.key, vec![learn(d, &v)]);
    Some(())
}

/// Who sent the packet is behind the VTEP by which it came, until it has been silent for long enough. The flow is as
/// those of [`remote`], which replace it; its cookie is the VTEP's own, so that it goes with it.
fn learn(d: &Domain, v: &Vtep) -> Action {
    let copied = |field: FieldId, from: FieldId| LearnSpec {
        src: LearnSrc::Field(Subfield::full(from)),
        dst: LearnDst::Match(Subfield::full(field)),
    };
    let loaded = LearnSpec {
        src: LearnSrc::Field(Subfield::full(of::INPORT)),
        dst: LearnDst::Load(Subfield::full(REMOTE_OUTPORT)),
    };
    Action::Learn(Box::new(LearnAction {
        table: t::GET_REMOTE_FDB,
        hard_timeout: d.fdb_age,
        priority: 150,
        cookie: v.key.into(),
        delete_learned: true,
        specs: vec![copied(of::DATAPATH, of::DATAPATH), copied(FieldId::EthDst, FieldId::EthSrc), loaded],
        ..LearnAction::default()
    }))
}

/// Broadcasts, and packets for addresses that nobody knows: once to each VTEP, and to the ports of this chassis.
fn flood(dp: Uuid, view: &mut Seen<'_>) -> Option<()> {
    let vteps: Vec<_> = known(view, Entry::Flood(dp)).vteps_of(dp).collect();
    let d = domain(view, dp)?;
    let key = datapath_key(view, dp)?;
    let mut actions = vec![set_vni(d.vni)];
    for v4 in [true, false] {
        let mut of_family = vteps.iter().filter(|(ip, _)| ip.is_ipv4() == v4).peekable();
        let Some((first, _)) = of_family.peek() else { continue };
        let (src, dst) = ends(*first);
        if actions.len() > 1 {
            // A tunnel has addresses of one family.
            actions.extend([Action::set(FieldId::TunSrc, 0), Action::set(FieldId::TunDst, 0)]);
        }
        actions.push(Action::set(src, value(d.from(*first)?)));
        for (ip, v) in of_family {
            actions.extend([Action::set(dst, value(*ip)), of::output(v.ofport)]);
        }
    }
    if vteps.is_empty() {
        return None;
    }
    actions.push(Action::resubmit(t::LOCAL_OUTPUT));
    for group in FLOODED {
        emit(view, t::REMOTE_VTEP_OUTPUT, 50, toward(key, group), cookie(dp), actions.clone());
    }
    Some(())
}

/// An Ethernet address behind one VTEP, or behind several, of which a hash of the packet chooses one.
fn remote(flows: &ChassisFlows, dp: Uuid, mac: Mac, view: &mut Seen<'_>) -> Option<()> {
    let paths = known(view, Entry::Mac(dp, mac)).macs.get(&(dp, mac))?;
    let key = datapath_key(view, dp)?;
    let m = || Match::new().with(of::DATAPATH, key.into());
    let action = match &paths[..] {
        [(one, _)] => of::set(REMOTE_OUTPORT, (*one).into()),
        several => {
            let mut group = Group { group_type: GroupType::Select, ..Group::default() };
            group.selection.name = "dp_hash".into();
            for (n, (vtep, weight)) in (0u32..).zip(several) {
                group.buckets.push(Bucket::new(n, *weight, vec![of::set(REMOTE_OUTPORT, (*vtep).into())]));
            }
            group.id = flows.ids.group(&group);
            let id = group.id;
            view.emit(Key::Group(id), Value::Group(Arc::new(group)));
            Action::Group(id)
        }
    };
    emit(view, t::GET_REMOTE_FDB, 150, m().with(FieldId::EthDst, mac.into()), cookie(dp), vec![action]);
    for (vtep, _) in paths {
        let from = m().with(of::INPORT, (*vtep).into()).with(FieldId::EthSrc, mac.into());
        emit(view, t::LEARN_REMOTE_FDB, 150, from, cookie(dp), Vec::new());
    }
    Some(())
}

/// A neighbour behind VTEPs, for routers at the switch and for the switch, which answers in its stead (`chk_evpn_arp`).
fn remote_neighbour(dp: Uuid, ip: IpAddr, view: &mut Seen<'_>) -> Option<()> {
    let mac = *known(view, Entry::Neighbour(dp, ip)).neighbours.get(&(dp, ip))?;
    let priority = if domain(view, dp)?.local_neighbours_first { LAST } else { FIRST };
    let key = datapath_key(view, dp)?;
    let input = view.read(Read::OthersOf(dp));
    let doors = input.others_of(dp).filter(|(_, p)| matches!(&*p.r#type, "patch" | "l3gateway"));
    let doors: Vec<Uuid> = doors.map(|(id, _)| id).collect();
    for id in doors {
        let Some(peer) = row::<sb::PortBinding>(view, TableId::PortBinding, id).and_then(|p| p.options.get("peer"))
        else {
            continue;
        };
        if is_of_router(peer, view) {
            let n = Neighbour { ip, mac: mac.into(), learned: false, priority };
            neighbour(cookie(dp), peer, &n, view);
        }
    }
    let register = if ip.is_ipv4() { FieldId::Reg0 } else { FieldId::XxReg0 };
    let asked = Match::new().with(of::DATAPATH, key.into()).with(register, value(ip));
    let found = vec![Action::set(FieldId::EthDst, mac.into()), of::set_flags(flag::EVPN_LOOKUP)];
    emit(view, t::EVPN_ARP_LOOKUP, priority, asked, cookie(dp), found);
    Some(())
}

fn is_of_router(name: &Str, view: &mut Seen<'_>) -> bool {
    let Some((_, p)) = port(view, name) else { return false };
    let datapath = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath);
    datapath.is_some_and(|d| !is_switch(d))
}
