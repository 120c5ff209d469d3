//! Transit routers and their ports (ovn-ic-nb(5), `Transit_Router`).

use super::{V, is_remote, zone_of};
use crate::model::Read;
use crate::output::{Datapath, Key, Kind, Port, RouterPort, Transit, Value};
use ovn_schema::{Str, Uuid};

/// Puts out a transit router: its datapath, the logical router that stands for it here, and the ports of both.
pub fn router(id: Uuid, v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    let icnb = &v.read(Read::TransitRouter(id)).icnb;
    let Some(tr) = icnb.db.transit_router.get(&id) else { return };
    v.emit(Key::Datapath(Transit::Router(id)), Value::Datapath(Datapath { row: id, vxlan: false }));
    let transit = Transit::Router(id);
    let datapath = v.read(Read::IcDatapath(transit.clone())).icsb.datapath(&transit);
    v.emit(Key::Router(tr.name.clone()), Value::Router(datapath.map(|d| d.tunnel_key)));
    for trp in tr.ports.iter().filter_map(|p| icnb.db.transit_router_port.get(p)) {
        let remote = is_remote(&trp.chassis, v);
        let row = v.read(Read::IcPort(trp.name.clone())).icsb.port(&trp.name);
        let row = row.filter(|p| p.transit_switch == tr.name);
        if !remote {
            let value = Port {
                zone: zone.row,
                of: tr.name.clone(),
                row: id,
                kind: Kind::Router,
                address: trp.mac.clone(),
                gateway: Str::default(),
                router: None,
                shared: false,
            };
            v.emit(Key::Port(trp.name.clone()), Value::Port(Box::new(value)));
        }
        // The zone of its chassis gives a port its key.
        if let Some(row) = row.filter(|p| (p.availability_zone != zone.row) == remote) {
            let value = RouterPort {
                mac: trp.mac.clone(),
                networks: trp.networks.clone(),
                chassis: trp.chassis.clone(),
                key: row.tunnel_key,
            };
            v.emit(Key::RouterPort(tr.name.clone(), trp.name.clone()), Value::RouterPort(Box::new(value)));
        }
    }
}
