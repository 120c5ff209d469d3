//! A port that sends 100,000 broken packets of each kind: another port's DHCP waits for one of them at most, and nothing grows.

use super::queue::{OF_ONE, Queue};
use super::trace::Trace;
use super::{MAX_HOPS, MAX_PACKETS, PATIENCE, Services, Snapshot};
use crate::encode::of;
use crate::encode::opcode;
use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Message};
use packet::{Headers, Mac, build, dhcp};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

const FLOOD: u32 = 100_000;
const HONEST: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Numbers that look random and are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn sent(port: u32, code: u8, data: &[u8], packet: Vec<u8>) -> PacketIn {
    let userdata = [&[0, 0, 0, code, 0, 0, 0, 0], data].concat();
    let mut p = PacketIn { packet, userdata, continuation: Some(Vec::new()), ..PacketIn::default() };
    p.metadata.set(of::DATAPATH, 1);
    p.metadata.set(of::INPORT, port.into());
    p
}

fn place(bit: u32) -> Vec<u8> {
    [&of::field_header(FieldId::XxReg0)[..], &bit.to_be_bytes()].concat()
}

fn discover(port: u32, mac: Mac) -> PacketIn {
    let mut m = vec![0; dhcp::FIXED];
    m[..3].copy_from_slice(&[1, 1, 6]);
    m.extend(dhcp::COOKIE);
    m.extend([53, 1, 1, 255]);
    let any = |a: [u8; 4], p| (IpAddr::from(a), p);
    let frame = build::udp(Mac::BROADCAST, mac, any([0; 4], 68), any([255; 4], 67), 64, &m).unwrap();
    let data = [&place(99)[..], &[10, 0, 0, 4, 51, 4, 0, 0, 14, 16, 54, 4, 10, 0, 0, 1]].concat();
    sent(port, opcode::PUT_DHCP_OPTS, &data, frame)
}

/// A good packet of each kind, from the port that floods.
fn kinds() -> Vec<(&'static str, PacketIn)> {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let six = |a: &str| a.parse::<Ipv6Addr>().unwrap();
    let (own, all) = (IpAddr::V6(six("fe80::1")), IpAddr::V6(six("ff02::1:2")));
    let solicit = [&[1, 1, 2, 3, 0, 1, 0, 4, 0, 3, 0, 1, 0, 3, 0, 12][..], &[0; 12]].concat();
    let solicit = build::udp(Mac([0x33; 6]), mac, (own, 546), (all, 547), 1, &solicit).unwrap();
    let server = [&place(99)[..], &[0, 2, 0, 6, 2, 0, 0, 0, 0, 3]].concat();
    let question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03vm1\x04test\0\0\x01\0\x01";
    let four = |a: [u8; 4], p| (IpAddr::from(a), p);
    let query = build::udp(mac, mac, four([10, 0, 0, 9], 4000), four([8, 8, 8, 8], 53), 64, question).unwrap();
    let routers = IpAddr::V6(six("ff02::2"));
    let asked =
        build::ip_packet(Mac([0x33; 6]), mac, six("fe80::1").into(), routers, 58, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
    let advertisement = [&place(5)[..], &[134, 0, 0, 0, 255, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let report =
        build::ip_packet(mac, mac, [10, 0, 0, 9].into(), [239, 0, 0, 1].into(), 2, 1, &[0x16, 0, 0, 0, 239, 0, 0, 1]);
    let arp =
        [&[0xff; 6][..], &mac[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac[..], &[10, 0, 0, 9], &[0; 6], &[10, 0, 0, 1]];
    vec![
        ("DHCPv4", discover(1, mac)),
        ("DHCPv6", sent(1, opcode::PUT_DHCPV6_OPTS, &server, solicit)),
        ("DNS", sent(1, opcode::DNS_LOOKUP, &place(4), query.clone())),
        ("RA", sent(1, opcode::PUT_ND_RA_OPTS, &advertisement, asked.unwrap())),
        ("IGMP", sent(1, opcode::IGMP, &[], report.unwrap())),
        ("PUT_ARP", sent(1, opcode::PUT_ARP, &[], arp.concat())),
        ("ARP", sent(1, opcode::ARP, &[], query)),
    ]
}

/// The same packet, broken: octets changed, cut off somewhere, to another next hop.
fn broken(good: &PacketIn, numbers: &mut Numbers) -> PacketIn {
    let mut p = good.clone();
    for _ in 0..numbers.next() % 6 {
        // Ethernet addresses stay: flows match them.
        let at = 12 + numbers.next() as usize % (p.packet.len() - 12);
        p.packet[at] = numbers.next() as u8;
    }
    if numbers.next().is_multiple_of(4) {
        p.packet.truncate(12 + numbers.next() as usize % (p.packet.len() - 12));
    }
    p.metadata.set(FieldId::Reg0, u128::from(numbers.next() as u32));
    p
}

#[test]
fn a_flood_of_broken_packets_delays_its_port_alone_and_nothing_grows() {
    let (trace, known, now) = (Trace::default(), Snapshot::default(), Instant::now());
    let (mut services, mut queue) = (Services::new(trace.clone()), Queue::default());
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for (kind, good) in kinds() {
        for n in 0..FLOOD {
            queue.push(broken(&good, &mut numbers));
            if n % 1000 == 500 {
                // The other port is served at once, or behind one packet of this one.
                queue.push(discover(2, HONEST));
                let leased = (0..2).any(|_| {
                    let p = queue.pop().unwrap();
                    let other = p.metadata.get(of::INPORT).0 == 2;
                    let out = services.handle(p, &known, now);
                    other && out.send.iter().any(|m| matches!(m, Message::Resume(p) if is_offer(p)))
                });
                assert!(leased, "{kind}: the other port waits behind more than one packet");
            } else if n % 3 == 0 {
                queue.pop().map(|p| services.handle(p, &known, now));
            }
            assert!(queue.len() <= OF_ONE + 1, "{kind}: {} packets wait", queue.len());
        }
        assert!(services.waiting.len() <= MAX_HOPS, "{kind}: {} next hops", services.waiting.len());
        assert!(services.waiting.values().all(|w| w.packets.len() <= MAX_PACKETS), "{kind}");
    }
    assert_eq!(services.waiting.len(), MAX_HOPS, "the flood of ARP reached the bound");
    services.expire(now + PATIENCE);
    assert!(services.waiting.is_empty());
    assert!(trace.show(None).lines().count() <= 64, "two machines have 32 exchanges each");
    assert!(trace.show(Some(HONEST)).contains("OFFER 10.0.0.4"), "a flood leaves another machine's exchanges alone");
}

fn is_offer(p: &PacketIn) -> bool {
    let Some(h) = Headers::parse(&p.packet) else { return false };
    p.packet[h.payload..h.l3_end].windows(3).any(|w| w == [53, 1, 2])
}
