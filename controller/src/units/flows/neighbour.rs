//! Learned neighbours and forwarding entries.

use super::{Seen, cookie, datapath_key, emit, is_local, named, row};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use crate::input::model::Read;
use openflow_rs::{FieldId, Match};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, PortKey, Uuid};
use std::net::IpAddr;

/// The keys of a port's datapath and of the port, where the port's datapath is local.
fn place(view: &mut Seen<'_>, name: &str) -> Option<(DatapathKey, PortKey)> {
    let p = named(view, name)?;
    if !is_local(view, p.datapath) {
        return None;
    }
    Some((datapath_key(view, p.datapath)?, p.key))
}

/// A neighbour behind a router port.
pub(super) struct Neighbour {
    pub(super) ip: IpAddr,
    /// The Ethernet address, as a number.
    pub(super) mac: u128,
    /// It was learned from packets: its use is counted, so that it ages.
    pub(super) learned: bool,
    pub(super) priority: u16,
}

/// The flows of a neighbour: `get_arp`/`get_nd`, `lookup_arp`/`lookup_nd`; and, for a learned one, those that count its use.
pub(super) fn neighbour(cookie: u32, port: &str, n: &Neighbour, view: &mut Seen<'_>) {
    let Some((dp, key)) = place(view, port) else { return };
    let (mac, priority) = (n.mac, n.priority);
    let base = || Match::new().with(of::DATAPATH, dp.into());
    let found = || of::set_flags(flag::LOOKUP_MAC);
    let (get_register, lookup_register, address, ether) = match n.ip {
        IpAddr::V4(a) => (FieldId::Reg0, FieldId::Reg0, u128::from(u32::from(a)), 0x0806u128),
        IpAddr::V6(a) => (FieldId::XxReg1, FieldId::XxReg0, u128::from(a), 0x86dd),
    };
    let get = base().with(of::OUTPORT, key.into()).with(get_register, address);
    let set_mac = openflow_rs::Action::set(FieldId::EthDst, mac);
    emit(view, t::MAC_BINDING, priority, get, cookie, vec![set_mac, found()]);
    let mut lookup = base().with(of::INPORT, key.into()).with(lookup_register, address);
    lookup.set(FieldId::EthSrc, mac).set(FieldId::EthType, ether);
    if n.ip.is_ipv6() {
        lookup.set(FieldId::IpProto, 58).set(FieldId::Icmpv6Code, 0);
    }
    emit(view, t::MAC_LOOKUP, priority, lookup, cookie, vec![found()]);
    if n.learned {
        let from = || base().with(of::INPORT, key.into()).with(FieldId::EthSrc, mac);
        match n.ip {
            IpAddr::V4(_) => {
                let arp = from().with(FieldId::EthType, 0x0806).with(FieldId::ArpOp, 2).with(FieldId::ArpSpa, address);
                emit(view, t::MAC_CACHE_USE, 100, arp, cookie, Vec::new());
                let data = from().with(FieldId::EthType, 0x0800).with(FieldId::IpSrc, address);
                emit(view, t::MAC_CACHE_USE, 100, data, cookie, Vec::new());
            }
            IpAddr::V6(_) => {
                let data = from().with(FieldId::EthType, 0x86dd).with(FieldId::Ipv6Src, address);
                emit(view, t::MAC_CACHE_USE, 100, data, cookie, Vec::new());
            }
        }
    }
}

/// Its address and Ethernet address, as a row has them.
fn parsed(ip: &str, mac: &str) -> Option<(IpAddr, u128)> {
    Some((ip.parse().ok()?, of::ethernet(mac)?))
}

pub(super) fn mac(id: Uuid, view: &mut Seen<'_>) {
    if let Some(m) = row::<sb::MacBinding>(view, TableId::MacBinding, id) {
        let Some((ip, mac)) = parsed(&m.ip, &m.mac) else { return };
        let n = Neighbour { ip, mac, learned: true, priority: 100 };
        neighbour(cookie(id), &m.logical_port, &n, view);
    }
}

pub(super) fn static_mac(id: Uuid, view: &mut Seen<'_>) {
    if let Some(m) = row::<sb::StaticMacBinding>(view, TableId::StaticMacBinding, id) {
        // A configured neighbour gives way to a learned one unless it says otherwise.
        let priority = if m.override_dynamic_mac { 150 } else { 50 };
        let Some((ip, mac)) = parsed(&m.ip, &m.mac) else { return };
        let n = Neighbour { ip, mac, learned: false, priority };
        neighbour(cookie(id), &m.logical_port, &n, view);
    }
}

pub(super) fn fdb(id: Uuid, view: &mut Seen<'_>) {
    let Some(f) = row::<sb::Fdb>(view, TableId::Fdb, id) else { return };
    let Some(mac) = of::ethernet(&f.mac) else { return };
    let dp = view.read(Read::DatapathByKey(f.datapath())).datapath(f.datapath());
    let Some(dp) = dp.filter(|dp| is_local(view, *dp)) else { return };
    let base = || Match::new().with(of::DATAPATH, f.datapath().into());
    let get = base().with(FieldId::EthDst, mac);
    emit(view, t::GET_FDB, 100, get, cookie(id), vec![of::set(of::OUTPORT, f.port().into())]);
    let lookup = base().with(of::INPORT, f.port().into()).with(FieldId::EthSrc, mac);
    emit(view, t::LOOKUP_FDB, 100, lookup, cookie(id), vec![of::set_flags(flag::LOOKUP_FDB)]);
    // Where the provider network is learned from, machines that are known here are not learned there.
    let port = view.read(Read::PortByKey(dp, f.port())).port_by_key(dp, f.port());
    if port.is_none_or(|(_, p)| !p.r#type.is_empty()) {
        return;
    }
    let localnets = view.read(Read::OthersOf(dp)).others_of(dp).filter(|(_, p)| &*p.r#type == "localnet");
    let localnets: Vec<Uuid> = localnets.map(|(id, _)| id).collect();
    let mut learning = localnets.into_iter().filter_map(|id| row::<sb::PortBinding>(view, TableId::PortBinding, id));
    let learns = |p: &sb::PortBinding| ovn_schema::options::flag(&p.options, "localnet_learn_fdb");
    if learning.any(learns) {
        let from_network = u128::from(flag::FROM_LOCALNET);
        let lookup = base().with(FieldId::EthSrc, mac).with_masked(of::FLAGS, from_network, from_network);
        emit(view, t::LOOKUP_FDB, 100, lookup, cookie(id), vec![of::set_flags(flag::LOOKUP_FDB)]);
    }
}
