//! `inject-pkt`: a packet made from a match, sent as if a local port had sent it (ovn-controller(8)).

use crate::input::model::Input;
use logical_flow::constant::{Integer, integer};
use logical_flow::expr::{self, Environment};
use logical_flow::field::{Field, INPORT};
use logical_flow::fields::Fields;
use logical_flow::normal::{self, Match as Normal};
use openflow_rs::message::PacketOut;
use openflow_rs::{Action, Message, PortNo, TableId};
use packet::{Headers, checksum, ipproto};

/// Names in the match: ports stand for their interfaces' numbers, sets and groups for what they hold.
struct Names<'a>(&'a Input);

impl Environment for Names<'_> {
    fn port(&self, name: &str) -> Option<u32> {
        // A port that is not plugged in here has number 0, which no interface has.
        Some(self.0.local.vifs.get(name).and_then(|v| v.ofport).map_or(0, u32::from))
    }
    fn is_chassis_resident(&self, _: &str) -> bool {
        false
    }
    fn address_set(&self, name: &str) -> Option<Vec<Integer>> {
        Some(self.0.address_set(name)?.1.addresses.iter().filter_map(|a| integer(a)).collect())
    }
    fn port_group(&self, name: &str) -> Option<Vec<u32>> {
        Some(self.0.port_group(name)?.1.ports.iter().filter_map(|p| self.port(p)).collect())
    }
}

/// The message that sends the packet.
///
/// # Errors
/// Where the match does not parse, or its input port is not on this chassis.
pub fn message(text: &str, input: &Input) -> Result<Message, String> {
    let e = expr::parse(text).map_err(|e| format!("Could not parse flow \"{text}\": {e}"))?;
    let e = e.evaluate(&Names(input)).map_err(|e| e.to_string())?;
    let fields = normal::matches(&e).into_iter().find_map(|m| match m {
        Normal::Plain(fields) => Some(fields),
        _ => None,
    });
    let fields = fields.ok_or("the match describes no packet")?;
    let port = get(&fields, INPORT) as u16;
    if port == 0 {
        return Err("ingress port not found on hypervisor.".into());
    }
    let table = Action::Resubmit { port: PortNo::IN_PORT, table: TableId::FIRST, ct: false };
    Ok(Message::PacketOut(PacketOut::new(PortNo(port), compose(&fields), vec![table])))
}

fn get(fields: &Fields, f: Field) -> u128 {
    fields.get(f).map_or(0, |(value, _)| value)
}

fn put(p: &mut Vec<u8>, value: u128, bytes: usize) {
    p.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
}

/// What packets carry that say nothing of their payload: 64 octets that count up.
fn payload(p: &mut Vec<u8>) {
    p.extend(0..64u8);
}

/// A packet that the match describes; what it does not say is 0.
fn compose(f: &Fields) -> Vec<u8> {
    let kind = get(f, Field::EthType);
    let mut p = Vec::with_capacity(160);
    put(&mut p, get(f, Field::EthDst), 6);
    put(&mut p, get(f, Field::EthSrc), 6);
    let tag = get(f, Field::VlanTci);
    if tag & 0x1000 != 0 {
        put(&mut p, 0x8100, 2);
        put(&mut p, tag & !0x1000, 2);
    }
    put(&mut p, kind, 2);
    let l3 = p.len();
    match kind {
        0x0800 => {
            put(&mut p, 0x45, 1);
            put(&mut p, get(f, Field::IpDscp) << 2 | get(f, Field::IpEcn), 1);
            put(&mut p, 0, 4);
            put(&mut p, if get(f, Field::IpFrag) & 1 != 0 { 0x2000 } else { 0 }, 2);
            put(&mut p, get(f, Field::IpTtl), 1);
            put(&mut p, get(f, Field::IpProto), 1);
            put(&mut p, 0, 2);
            put(&mut p, get(f, Field::Ip4Src), 4);
            put(&mut p, get(f, Field::Ip4Dst), 4);
            transport(f, &mut p);
            let total = (p.len() - l3) as u16;
            p[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
            checksum::set_ipv4(&mut p, l3);
        }
        0x86dd => {
            let class = get(f, Field::IpDscp) << 2 | get(f, Field::IpEcn);
            put(&mut p, 6 << 28 | class << 20 | get(f, Field::Ip6Label), 4);
            put(&mut p, 0, 2);
            put(&mut p, get(f, Field::IpProto), 1);
            put(&mut p, get(f, Field::IpTtl), 1);
            put(&mut p, get(f, Field::Ip6Src), 16);
            put(&mut p, get(f, Field::Ip6Dst), 16);
            transport(f, &mut p);
            let length = (p.len() - l3 - 40) as u16;
            p[l3 + 4..l3 + 6].copy_from_slice(&length.to_be_bytes());
        }
        0x0806 | 0x8035 => {
            p.extend_from_slice(&[0, 1, 8, 0, 6, 4]);
            put(&mut p, get(f, Field::ArpOp), 2);
            put(&mut p, get(f, Field::ArpSha), 6);
            put(&mut p, get(f, Field::ArpSpa), 4);
            put(&mut p, get(f, Field::ArpTha), 6);
            put(&mut p, get(f, Field::ArpTpa), 4);
        }
        _ => {}
    }
    if let Some(h) = Headers::parse(&p).filter(|h| h.l4.is_some()) {
        checksum::set_l4(&mut p, &h);
    }
    p
}

fn transport(f: &Fields, p: &mut Vec<u8>) {
    match get(f, Field::IpProto) as u8 {
        ipproto::TCP => {
            put(p, get(f, Field::TcpSrc), 2);
            put(p, get(f, Field::TcpDst), 2);
            put(p, 0, 8);
            let flags = get(f, Field::TcpFlags);
            put(p, 5 << 12 | flags, 2);
            put(p, 0, 6);
            // Segments that open or end a connection carry nothing.
            if flags & 0x7 == 0 {
                payload(p);
            }
        }
        ipproto::UDP => {
            put(p, get(f, Field::UdpSrc), 2);
            put(p, get(f, Field::UdpDst), 2);
            put(p, 8 + 64, 2);
            put(p, 0, 2);
            payload(p);
        }
        132 => {
            put(p, get(f, Field::SctpSrc), 2);
            put(p, get(f, Field::SctpDst), 2);
            put(p, 0, 8);
        }
        ipproto::ICMP => {
            let (kind, code) = (get(f, Field::Icmp4Type), get(f, Field::Icmp4Code));
            put(p, kind, 1);
            put(p, code, 1);
            put(p, 0, 6);
            if matches!((kind, code), (8 | 0, 0)) {
                payload(p);
            }
        }
        ipproto::ICMPV6 => {
            let (kind, code) = (get(f, Field::Icmp6Type), get(f, Field::Icmp6Code));
            put(p, kind, 1);
            put(p, code, 1);
            put(p, 0, 6);
            match (kind, code) {
                (128 | 129, 0) => payload(p),
                (135 | 136, 0) => {
                    put(p, get(f, Field::NdTarget), 16);
                    for (option, address) in [(1, get(f, Field::NdSll)), (2, get(f, Field::NdTll))] {
                        if address != 0 {
                            put(p, option << 8 | 1, 2);
                            put(p, address, 6);
                        }
                    }
                }
                _ => {}
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::{Local, Vif};
    use ovn_schema::{Uuid, sb};
    use std::collections::BTreeMap;

    fn input() -> Input {
        let vif = Vif { ofport: Some(7), version: None, encap_ip: None, mtu: None, row: Uuid::from_u128(1) };
        let local = Local { vifs: BTreeMap::from([("lp1".into(), vif)]), ..Local::default() };
        Input::new(sb::Database::default(), local)
    }

    #[test]
    fn a_match_becomes_a_packet() {
        let text = "inport==\"lp1\" && eth.src==f0:00:00:00:00:01 && eth.dst==f0:00:00:00:00:02 && ip4 && ip.ttl==64 \
                    && ip4.src==192.168.1.2 && ip4.dst==192.168.1.3 && udp && udp.src==53 && udp.dst==4369";
        let Ok(Message::PacketOut(m)) = message(text, &input()) else { panic!("{:?}", message(text, &input())) };
        assert_eq!(m.in_port(), PortNo(7));
        let h = Headers::parse(&m.packet).unwrap();
        assert_eq!((h.ports(&m.packet), m.packet.len()), (Some((53, 4369)), 14 + 20 + 8 + 64));
        assert!(checksum::l4_ok(&m.packet, &h));
        assert_eq!(m.packet.last(), Some(&63));
    }

    #[test]
    fn what_is_not_here_is_refused() {
        assert!(message("inport==\"other\" && ip4", &input()).is_err_and(|e| e.contains("not found on hypervisor")));
        assert!(message("inport=", &input()).is_err());
    }
}
