//! Packets too large for the tunnels that carry them between chassis, where a port that is bound to several makes them leave
//! the provider network: their senders are told (RFC 1191, RFC 8201).

use super::physical::Bound;
use super::tunnel::Way;
use super::{Seen, cookie, emit};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use crate::encode::{note, opcode};
use openflow_rs::action::ControllerAction;
use openflow_rs::{Action, FieldId, Match, Subfield};

/// Ethernet header and checksum, which an interface's MTU does not count.
const FRAME: u16 = 18;
/// `REGBIT_PKT_LARGER` of northd's flows.
const LARGER: u8 = 1;

/// The bytes that a tunnel adds.
fn overhead(way: &Way) -> u16 {
    let outer = if &*way.kind == "vxlan" { 30 } else { 38 };
    outer + if way.v6 { 40 } else { 20 }
}

fn exchange(a: FieldId, b: FieldId) -> [Action; 4] {
    let (a, b) = (Subfield::full(a), Subfield::full(b));
    [Action::Push(a), Action::Push(b), Action::Pop(a), Action::Pop(b)]
}

/// What makes the answer to a packet from the error about it, and delivers it.
fn answer(v6: bool, mtu: u16) -> Vec<Action> {
    let mut out =
        vec![of::set_sub(of::bits(FieldId::Reg9, LARGER.into(), LARGER.into()), 0), of::set_flags(flag::LOOPBACK)];
    out.extend(exchange(of::INPORT, of::OUTPORT));
    out.extend(exchange(FieldId::EthDst, FieldId::EthSrc));
    let (src, dst) = if v6 { (FieldId::Ipv6Src, FieldId::Ipv6Dst) } else { (FieldId::IpSrc, FieldId::IpDst) };
    out.extend(exchange(dst, src));
    out.push(Action::set(FieldId::IpTtl, 255));
    let (kind, code, values) = if v6 {
        (FieldId::Icmpv6Type, FieldId::Icmpv6Code, (2, 0))
    } else {
        (FieldId::IcmpType, FieldId::IcmpCode, (3, 4))
    };
    out.extend([Action::set(kind, values.0), Action::set(code, values.1)]);
    out.push(if v6 { note(1, &u32::from(mtu).to_be_bytes()) } else { note(0, &mtu.to_be_bytes()) });
    out.push(Action::resubmit(t::INGRESS));
    out
}

/// The flows of a port whose interface has this MTU, and whose packets go through these tunnels.
pub(super) fn run(b: &Bound<'_>, mtu: Option<u16>, ways: &[Way], view: &mut Seen<'_>) {
    let most = ways.iter().map(overhead).max().unwrap_or(0);
    let Some(mtu) = mtu.and_then(|m| m.checked_sub(most)).filter(|m| most > 0 && *m > FRAME) else { return };
    for v6 in [false, true] {
        for side in [of::INPORT, of::OUTPORT] {
            let ether = if v6 { 0x86dd } else { 0x0800 };
            let m =
                || Match::new().with(of::DATAPATH, b.dp.into()).with(side, b.key.into()).with(FieldId::EthType, ether);
            let dst = of::bits(FieldId::Reg9, LARGER.into(), LARGER.into());
            let detect = vec![Action::CheckPktLarger { len: mtu, dst }, Action::resubmit(t::LARGE_PACKET_PROCESS)];
            emit(view, t::LARGE_PACKET_DETECT, 100, m(), cookie(b.id), detect);
            let mut userdata = vec![0, 0, 0, opcode::ICMP, 0, 0, 0, 0];
            userdata.extend(of::bytes(&answer(v6, mtu - FRAME)));
            let action = ControllerAction { userdata, pause: true, ..ControllerAction::default() };
            let larger = m().with_masked(FieldId::Reg9, 1 << LARGER, 1 << LARGER);
            emit(view, t::LARGE_PACKET_PROCESS, 100, larger, cookie(b.id), vec![Action::Controller(Box::new(action))]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::{Input, Local, Tunnel, Vif};
    use crate::units::flows::{ChassisFlows, Key};
    use incremental::Engine;
    use ovn_schema::sb::{self, PortBinding};
    use ovn_schema::{Str, Uuid};
    use std::sync::Arc;

    /// The sizes that are checked for a port on two chassis whose switch has a provider network.
    fn checked(mtu: Option<u16>, kind: &str, remote_ip: &str) -> Vec<u16> {
        let uuid = Uuid::from_u128;
        let port = |name: &str, key, kind: &str, chassis: Option<Uuid>| PortBinding {
            logical_port: name.into(),
            datapath: uuid(7),
            tunnel_key: key,
            r#type: kind.into(),
            chassis,
            ..PortBinding::default()
        };
        let mut db = sb::Database::default();
        db.datapath_binding.insert(uuid(7), Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
        let here = PortBinding { additional_chassis: [uuid(2)].into(), ..port("both", 2, "", Some(uuid(1))) };
        let ports = [here, port("there", 3, "", Some(uuid(2))), port("ln", 4, "localnet", None)];
        for (n, p) in (10..).zip(ports) {
            db.port_binding.insert(uuid(n), Arc::new(p));
        }
        for (n, name) in [(1, "hv1"), (2, "hv2")] {
            db.chassis.insert(uuid(n), Arc::new(sb::Chassis { name: name.into(), ..Default::default() }));
        }
        let tunnel = Tunnel {
            chassis: "hv2".into(),
            kind: kind.into(),
            remote_ip: remote_ip.into(),
            local_ip: Str::default(),
            ofport: 9,
        };
        let vif = Vif { ofport: Some(5), version: None, encap_ip: None, mtu, row: uuid(100) };
        let local = Local {
            chassis: Some(uuid(1)),
            chassis_name: "hv1".into(),
            vifs: [("both".into(), vif)].into(),
            localnets: [("ln".into(), 6)].into(),
            tunnels: [tunnel].into(),
            datapaths: [uuid(7)].into(),
            ..Local::default()
        };
        let mut out = Vec::new();
        Engine::new(ChassisFlows::default()).update(&Input::new(db, local), [], |changes| {
            for c in changes {
                if let (Key::Flow(t::LARGE_PACKET_DETECT, 100, _), Some(crate::units::flows::Value::Flow(_, a))) =
                    (c.key, c.after.first())
                    && let Some(Action::CheckPktLarger { len, .. }) = a.unpack().unwrap().first()
                {
                    out.push(*len);
                }
            }
        });
        out
    }

    #[test]
    fn what_a_tunnel_adds_counts() {
        // Of IPv4 and IPv6, from the port and to it.
        assert_eq!(checked(Some(1500), "geneve", "10.0.0.2"), [1442; 4]);
        assert_eq!(checked(Some(1500), "geneve", "fd00::2"), [1422; 4]);
        assert_eq!(checked(Some(1500), "vxlan", "10.0.0.2"), [1450; 4]);
        assert!(checked(None, "geneve", "10.0.0.2").is_empty(), "the switch does not say");
        assert!(checked(Some(60), "geneve", "10.0.0.2").is_empty(), "nothing would be left");
    }

    #[test]
    fn the_answer_names_the_mtu() {
        for (v6, value) in [(false, vec![5, 120]), (true, vec![0, 0, 5, 120])] {
            let answer = answer(v6, 1400);
            let notes: Vec<_> =
                answer.iter().filter_map(|a| if let Action::Note(n) = a { Some(n) } else { None }).collect();
            let (field, rest) = crate::encode::noted(notes[0]).unwrap();
            assert_eq!((field, &rest[..value.len()]), (u16::from(v6), &value[..]));
            assert_eq!(answer.last(), Some(&Action::resubmit(t::INGRESS)));
        }
    }
}
