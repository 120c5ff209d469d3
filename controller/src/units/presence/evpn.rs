//! What switches advertise by EVPN of this chassis.

use super::{Key, Seen, Unit, Value, look, named, row};
use crate::evpn::rows;
use crate::input::model::{Input, Read};
use crate::units::binding;
use ovn_schema::sb::{self, PortBinding, TableId};
use ovn_schema::{DatapathKey, Uuid};

/// Whether Ethernet addresses of a datapath are advertised by EVPN.
pub(super) fn speaks(input: &Input, datapath: &Uuid) -> bool {
    input.sb.datapath_binding.get(datapath).is_some_and(|d| rows::advertises(d))
}

/// Whether what was learned on a datapath is looked at: it is advertised, and the datapath is local. The changes of other entries are not
/// told (see [`super::Presence::settle`]), so nothing may hang on them.
pub(super) fn hears(input: &Input, datapath: &Uuid) -> bool {
    speaks(input, datapath) && input.local.datapaths.contains(datapath)
}

/// The key of a datapath that may have to do with EVPN: most never had.
fn key(input: &Input, datapath: Uuid) -> Option<DatapathKey> {
    input.sb.datapath_binding.get(&datapath).filter(|d| rows::has_options(d)).map(|d| d.key())
}

/// The units that look what a datapath advertises by EVPN, and whether they are needed.
pub(super) fn units(input: &Input, datapath: Uuid) -> impl Iterator<Item = (Unit, bool)> + use<'_> {
    let speaks = speaks(input, &datapath);
    let ports = key(input, datapath).into_iter().flat_map(move |_| input.ports_of(datapath));
    ports.map(move |(id, _)| (Unit::Speaker(id), speaks)).chain(units_of_learned(input, datapath))
}

/// Of these units, those of what was learned on the datapath.
pub(super) fn units_of_learned(input: &Input, datapath: Uuid) -> impl Iterator<Item = (Unit, bool)> + use<'_> {
    let hears = hears(input, &datapath);
    let learned = key(input, datapath).into_iter().flat_map(|k| input.forwarding_of(k));
    learned.map(move |id| (Unit::Learned(id), hears))
}

/// Whether Ethernet addresses of a datapath are advertised; its row is read.
fn is_advertised(view: &mut Seen<'_>, datapath: Uuid) -> bool {
    row::<sb::DatapathBinding>(view, TableId::DatapathBinding, datapath).is_some_and(rows::advertises)
}

/// Who speaks for a port to the fabric, if that is this chassis.
fn here<'a>(view: &mut Seen<'a>, p: &'a PortBinding) -> Option<&'a PortBinding> {
    let speaker = rows::speaker(p, |name| named(view, name))?;
    let input = look(view, speaker);
    binding::is_here(speaker, input, &input.local).then_some(speaker)
}

pub(super) fn speaker(id: Uuid, view: &mut Seen<'_>) {
    let Some(p) = row::<PortBinding>(view, TableId::PortBinding, id) else { return };
    let Some(speaker) = here(view, p).filter(|s| rows::may_be_advertised(s)) else { return };
    if !is_advertised(view, p.datapath) {
        return;
    }
    rows::addresses(speaker).for_each(|mac| view.emit(Key::EvpnMac(p.datapath, mac), Value::Is));
}

pub(super) fn learned(id: Uuid, view: &mut Seen<'_>) {
    let Some(f) = row::<sb::Fdb>(view, TableId::Fdb, id) else { return };
    let Some(dp) = view.read(Read::DatapathByKey(f.datapath())).datapath(f.datapath()) else { return };
    view.read(Read::Local(dp));
    let input = view.read(Read::PortByKey(dp, f.port()));
    if let Some((port, _)) = input.port_by_key(dp, f.port())
        && let Some(p) = row::<PortBinding>(view, TableId::PortBinding, port)
    {
        look(view, p);
    }
    if !is_advertised(view, dp) {
        return;
    }
    if let Some(mac) = rows::learned(f, dp, input).filter(|_| input.local.datapaths.contains(&dp)) {
        view.emit(Key::EvpnMac(dp, mac), Value::Is);
    }
}

pub(super) fn neighbour(id: Uuid, view: &mut Seen<'_>) {
    let Some(a) = row::<sb::AdvertisedMacBinding>(view, TableId::AdvertisedMacBinding, id) else { return };
    let Some(p) = row::<PortBinding>(view, TableId::PortBinding, a.logical_port) else { return };
    let Some((ip, mac)) = rows::neighbour(a).filter(|_| here(view, p).is_some()) else { return };
    view.emit(Key::EvpnNeighbour(a.datapath, ip, mac), Value::Is);
    if is_advertised(view, a.datapath) {
        view.emit(Key::EvpnMac(a.datapath, mac), Value::Is);
    }
}
