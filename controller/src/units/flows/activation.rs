//! Ports that migrate (ovn-nb(5), `options:activation-strategy`): where such a port is an additional one, its interface is shut
//! until the machine says that it runs there, by a packet that the strategy names.

use super::physical::{Bound, enter};
use super::{Seen, cookie, emit};
use crate::encode::of;
use crate::encode::opcode;
use crate::encode::tables as t;
use crate::input::model::Read;
use crate::rows::claims::Role;
use openflow_rs::action::ControllerAction;
use openflow_rs::{Action, FieldId, Match};
use ovn_schema::Str;
use ovn_schema::sb::PortBinding;
use packet::Mac;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Where a port's row names the chassis on which it is active already.
pub const ACTIVATED: &str = "additional-chassis-activated";

/// Whether a port is active on a chassis.
pub fn is_activated(p: &PortBinding, chassis: &str) -> bool {
    p.options.get(ACTIVATED).is_some_and(|list| list.split(',').any(|c| c == chassis))
}

/// The packets by which a machine with these addresses says that it runs here.
fn signs(strategies: &str, addresses: &BTreeSet<Str>) -> Vec<Match> {
    let has = |name: &str| strategies.split(',').any(|s| s.trim() == name);
    let mut out = Vec::new();
    if has("rarp") {
        out.push(Match::new().with(FieldId::EthType, 0x8035));
    }
    for text in addresses {
        let mut words = text.split_whitespace();
        let Some(mac) = words.next().and_then(|w| w.parse::<Mac>().ok()) else { continue };
        let eth = u128::from(mac);
        let ips: Vec<IpAddr> = words.filter_map(|w| w.split('/').next()?.parse().ok()).collect();
        let v4 =
            ips.iter().filter_map(|ip| if let IpAddr::V4(ip) = ip { Some(u128::from(u32::from(*ip))) } else { None });
        for ip in v4.filter(|_| has("garp")) {
            let m = Match::new().with(FieldId::EthType, 0x0806).with(FieldId::EthSrc, eth).with(FieldId::ArpSha, eth);
            out.push(m.with(FieldId::ArpSpa, ip).with(FieldId::ArpTpa, ip));
        }
        let mut v6: Vec<u128> =
            ips.iter().filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(u128::from(*ip)) } else { None }).collect();
        if !v6.is_empty() {
            v6.insert(0, mac.link_local().into());
        }
        for ip in v6.into_iter().filter(|_| has("na")) {
            let m = Match::new().with(FieldId::EthType, 0x86dd).with(FieldId::IpProto, 58);
            let m = m.with(FieldId::Icmpv6Type, 136).with(FieldId::Icmpv6Code, 0).with(FieldId::Ipv6Src, ip);
            out.push(m.with(FieldId::NdTarget, ip).with(FieldId::NdTll, eth));
        }
    }
    out
}

/// Shuts a port's interface, but for the packets that open it.
pub(super) fn run(b: &Bound<'_>, ofport: u16, z: u16, view: &mut Seen<'_>) {
    let additional = super::role(view, b.row) == Role::Additional;
    let local = &view.read(Read::Chassis).local;
    // What this chassis found out itself is read with the row.
    if !additional || is_activated(b.row, &local.chassis_name) || local.activated.contains(&b.id) {
        return;
    }
    let Some(strategies) = b.row.options.get("activation-strategy").filter(|s| !s.is_empty()) else { return };
    let signs = signs(strategies, &b.row.mac);
    if signs.is_empty() {
        return;
    }
    for mut m in signs {
        m.set(FieldId::InPort, u128::from(ofport));
        let mut actions = enter(b, z, view);
        let userdata = vec![0, 0, 0, opcode::ACTIVATION_STRATEGY, 0, 0, 0, 0];
        actions.push(Action::Controller(Box::new(ControllerAction { userdata, ..ControllerAction::default() })));
        actions.push(Action::resubmit(t::INGRESS));
        emit(view, t::PHY_TO_LOG, 1010, m, cookie(b.id), actions);
    }
    let from = Match::new().with(FieldId::InPort, u128::from(ofport));
    emit(view, t::PHY_TO_LOG, 1000, from, cookie(b.id), Vec::new());
    let to = Match::new().with(of::DATAPATH, b.dp.into()).with(of::OUTPORT, b.key.into());
    emit(view, t::LOG_TO_PHY, 1000, to, cookie(b.id), Vec::new());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::{Input, Local, Vif};
    use crate::units::flows::{ChassisFlows, Key, Value};
    use incremental::Engine;
    use ovn_schema::{Uuid, sb};
    use std::sync::Arc;

    #[test]
    fn each_strategy_has_its_packets() {
        let mac: BTreeSet<Str> = ["02:00:00:00:00:01 10.0.0.1 10.0.0.2 fd00::1".into()].into();
        let count = |s: &str| signs(s, &mac).len();
        assert_eq!((count("rarp"), count("garp"), count("na")), (1, 2, 2), "the link-local address counts, too");
        assert_eq!((count("rarp,garp,na"), count("other"), count("")), (5, 0, 0));
        assert_eq!(signs("na", &["02:00:00:00:00:01 10.0.0.1".into()].into()), [], "no IPv6 address");
        let na = &signs("na", &mac)[1];
        assert_eq!(na.get(FieldId::NdTarget).0, u128::from("fd00::1".parse::<std::net::Ipv6Addr>().unwrap()));
        assert_eq!(na.get(FieldId::NdTll).0, 0x0200_0000_0001);
    }

    /// The flows of a port that shut it (priority 1000) and open it (1010).
    fn shut(change: impl FnOnce(&mut PortBinding, &mut Local)) -> (usize, usize) {
        let uuid = Uuid::from_u128;
        let mut p = PortBinding {
            logical_port: "lp".into(),
            datapath: uuid(7),
            tunnel_key: 2,
            mac: ["02:00:00:00:00:01 10.0.0.1".into()].into(),
            chassis: Some(uuid(2)),
            additional_chassis: [uuid(1)].into(),
            ..PortBinding::default()
        };
        p.options.insert("activation-strategy".into(), "rarp".into());
        let vif = Vif { ofport: Some(5), version: None, encap_ip: None, mtu: None, row: uuid(9) };
        let mut local = Local {
            chassis: Some(uuid(1)),
            chassis_name: "hv1".into(),
            vifs: [("lp".into(), vif)].into(),
            datapaths: [uuid(7)].into(),
            ..Local::default()
        };
        change(&mut p, &mut local);
        let mut db = sb::Database::default();
        db.datapath_binding.insert(uuid(7), Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
        db.port_binding.insert(uuid(10), Arc::new(p));
        let (mut closed, mut opens) = (0, 0);
        Engine::new(ChassisFlows::default()).update(&Input::new(db, local), [], |changes| {
            for c in changes {
                match (c.key, c.after.first()) {
                    (Key::Flow(_, 1000, _), Some(Value::Flow(_, a))) if a.is_empty() => closed += 1,
                    (Key::Flow(t::PHY_TO_LOG, 1010, _), _) => opens += 1,
                    _ => {}
                }
            }
        });
        (closed, opens)
    }

    #[test]
    fn a_port_is_shut_until_its_machine_runs_here() {
        let me = Uuid::from_u128(1);
        assert_eq!(shut(|_, _| ()), (2, 1));
        assert_eq!(shut(|p, _| drop(p.options.insert(ACTIVATED.into(), "hv0,hv1".into()))), (0, 0), "it runs here");
        assert_eq!(shut(|p, _| drop(p.options.insert(ACTIVATED.into(), "hv10".into()))), (2, 1), "it runs elsewhere");
        assert_eq!(shut(|_, l| l.activated = [Uuid::from_u128(10)].into()), (0, 0), "it has just said so");
        assert_eq!(shut(|p, _| p.chassis = Some(me)), (0, 0), "it moved here");
        assert_eq!(shut(|p, _| p.options.clear()), (0, 0), "no strategy");
    }
}
