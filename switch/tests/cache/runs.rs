//! Runs of packets of one flow: into and out of tunnels, with and without tags, of all lengths, as if each came alone.

use super::gateway::{PEER, ROUTER, VIF, flow, gateway, ip};
use super::ops::{in_tunnel, tag, tcp};
use openflow_rs::Message;
use openflow_rs::message::{TlvMap, TlvTableMod};
use packet::{build, checksum};
use std::net::IpAddr;
use std::time::Duration;
use switch::{BridgeId, DeviceId, DropReason, Outputs, PacketBuf, Switch, Target};

const NOW: Duration = Duration::from_secs(10);

/// A packet in a buffer, as a device has it.
#[derive(Clone)]
struct Buffer {
    bytes: Vec<u8>,
    /// How many bytes there are in front.
    room: usize,
    /// Whether a device writes UDP checksums, and what was left to it.
    device: bool,
    left: Option<(usize, usize)>,
}

impl Buffer {
    fn new(bytes: &[u8], room: usize, device: bool) -> Buffer {
        Buffer { bytes: bytes.to_vec(), room, device, left: None }
    }

    /// What is on the wire.
    fn sent(mut self) -> Vec<u8> {
        self.settle_checksum();
        self.bytes
    }
}

impl PacketBuf for Buffer {
    fn data(&self) -> &[u8] {
        &self.bytes
    }

    fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn grow_front(&mut self, n: usize) -> bool {
        let fits = n <= self.room;
        if fits {
            self.room -= n;
            // Whatever was there before.
            self.bytes.splice(0..0, std::iter::repeat_n(0xa5, n));
        }
        fits
    }

    fn shrink_front(&mut self, n: usize) {
        self.settle_checksum();
        let n = n.min(self.bytes.len());
        self.room += n;
        self.bytes.drain(..n);
    }

    fn truncate(&mut self, n: usize) {
        self.settle_checksum();
        self.bytes.truncate(n);
    }

    fn duplicate(&self) -> Option<Buffer> {
        Some(self.clone())
    }

    fn with_bytes(&self, bytes: &[u8]) -> Option<Buffer> {
        Some(Buffer::new(bytes, 200, self.device))
    }

    fn leave_checksum(&mut self, udp: usize, rest: usize) -> bool {
        if self.device {
            self.left = Some((udp, rest));
        }
        self.device
    }

    fn settle_checksum(&mut self) {
        if let Some((udp, rest)) = self.left.take() {
            assert!(checksum::add_udp(&mut self.bytes, udp, rest));
        }
    }
}

/// What packets of a run are: in which tunnel they came, if any, and with how many tags; TCP or UDP, over IPv6 or IPv4.
#[derive(Clone, Copy, Debug)]
struct Kind {
    within: bool,
    tags: usize,
    tcp: bool,
    v6: bool,
}

/// Packets from other ports and hosts, of changing lengths; some have padding behind them.
fn packets(kind: Kind) -> Vec<Vec<u8>> {
    let one = |n: u16| {
        let ends: [IpAddr; 2] = match kind.v6 {
            true => [[0xfd00, 0, 0, 7, 0, 0, 0, n].into(), [0xfd00, 0, 0, 8, 0, 0, 0, 1].into()].map(IpAddr::V6),
            false => [ip(&format!("10.7.0.{}", n + 1)), ip("10.8.0.1")],
        };
        let ([src, dst], ports) = (ends, (1000 + 7 * n, 2000 + n / 8));
        let len = [20, 20, 20, 20, 33, 33, 1, 18, 90, 90][usize::from(n) % 10];
        let mut p = match kind.tcp {
            true => tcp((VIF, PEER), (src, ports.0), (dst, ports.1), 0x10),
            false => build::udp(VIF, PEER, (src, ports.0), (dst, ports.1), 64, &vec![n as u8; len]).expect("inner"),
        };
        (0..kind.tags).for_each(|_| tag(&mut p, 0x8100, 9));
        if kind.within {
            // The outer source port is that of IPv4, and another one for some.
            p = in_tunnel(0x1235, 3 * (n / 16) + 1, &p);
        } else if n % 10 == 6 {
            p.resize(p.len().max(60), 0);
        }
        p
    };
    (0..37).map(one).collect()
}

/// The switch, whose flow sends what comes from device 3 in VLAN 9 or none, and out of the tunnel, on by these actions.
fn switch(cache: bool, options: usize, kind: Kind, actions: &str) -> Switch {
    let mut s = gateway(cache, 40);
    s.underlay.set_neighbour(ip("fd00::2"), Some(PEER));
    let option = |index| TlvMap { class: 0x102, kind: 0x80 + index as u8, len: 8, index };
    let more = TlvTableMod { command: 0, maps: (1..=options as u16).map(option).collect() };
    if options > 0 {
        s.apply(BridgeId(0), &Message::TlvTableMod(more), NOW).expect("options");
    }
    let from = match kind {
        Kind { within: true, .. } => "in_port=10,tun_id=0x1235",
        Kind { tags: 0, .. } => "in_port=3,vlan_tci=0",
        _ => "in_port=3,dl_vlan=9",
    };
    flow(&mut s, BridgeId(0), &format!("table=0,priority=99,{from} actions={actions}"), NOW);
    // The ends of the tunnels are known: what is for them is not flooded.
    for (device, mac, from, to) in [(50, PEER, 2, 1), (60, ROUTER, 1, 2)] {
        let here = build::arp_request(mac, [192, 168, 0, from].into(), [192, 168, 0, to].into());
        s.process(&mut vec![(DeviceId(device), Buffer::new(&here, 0, false))], NOW, &mut Outputs::default());
    }
    s
}

fn sent(out: Outputs<Buffer>) -> Vec<(Target, Vec<u8>)> {
    out.packets.into_iter().map(|(to, p)| (to, p.sent())).collect()
}

/// Ways into tunnels: over IPv4 with a checksum, without one, over IPv6, and with more options than are made ready at once.
const WAYS: [(&str, usize); 6] = [
    ("set_field:192.168.0.2->tun_dst,set_field:0x77->tun_id,set_field:0x8002->tun_metadata0,output:10", 0),
    ("set_field:192.168.0.2->tun_dst,set_field:0x77->tun_id,output:11", 0),
    ("set_field:fd00::2->tun_ipv6_dst,set_field:0x77->tun_id,output:10", 0),
    (
        "set_field:fd00::2->tun_ipv6_dst,set_field:1->tun_metadata1,set_field:2->tun_metadata2,set_field:3->tun_metadata3,output:10",
        3,
    ),
    ("set_field:02:00:00:00:00:0e->eth_dst,output:2", 0),
    ("output:2", 0),
];

#[test]
fn runs_leave_as_packets_that_come_alone() {
    for (way, options) in WAYS {
        for n in 0..32 {
            let kind = Kind { within: n & 1 != 0, tags: n >> 1 & 1, tcp: n >> 2 & 1 != 0, v6: n >> 3 & 1 != 0 };
            let device = n >> 4 != 0;
            // What is in a tunnel keeps its tag, and has no room for another one.
            let pop = if kind.tags > 0 && !kind.within { "pop_vlan," } else { "" };
            // Back to where they came from they go only if that is said.
            let back = || {
                let other = "set_field:0.0.0.0->tun_src,set_field:0.0.0.0->tun_dst";
                format!("{other},{}", way.replace("output:10", "in_port"))
            };
            let actions = format!("{pop}{}", if kind.within { back() } else { way.to_string() });
            let from = DeviceId(if kind.within { 50 } else { 3 });
            let list = packets(kind);
            let (mut alone, mut together) = (Outputs::default(), Outputs::default());
            let mut s = switch(false, options, kind, &actions);
            for p in &list {
                s.process(&mut vec![(from, Buffer::new(p, 200, device))], NOW, &mut alone);
            }
            let mut s = switch(true, options, kind, &actions);
            let begun = s.walks();
            for out in [&mut Outputs::default(), &mut together] {
                let mut batch = list.iter().map(|p| (from, Buffer::new(p, 200, device))).collect();
                s.process(&mut batch, NOW, out);
            }
            let walks = s.walks() - begun;
            let (alone, together) = (sent(alone), sent(together));
            assert_eq!(alone.len(), list.len(), "{actions}, {kind:?}");
            assert!(alone == together, "{actions}, {kind:?}, checksums by a device {device}");
            assert!(walks < 12, "{actions}, {kind:?}: {walks} walks");
        }
    }
}

/// Frames so short that not all of the first words are there are told apart by protocol, options and fragments as well.
#[test]
fn short_frames_of_other_kinds_are_no_run() {
    let kind = Kind { within: false, tags: 0, tcp: false, v6: false };
    let flows = [
        "ip,ip_frag=yes actions=output:2",
        "tcp,ip_frag=no actions=output:2",
        "icmp,ip_frag=no actions=output:1,output:2",
        "udp,ip_frag=no actions=output:1",
    ];
    let ready = |cache| {
        let mut s = switch(cache, 0, kind, "output:1");
        for f in flows {
            flow(&mut s, BridgeId(0), &format!("table=0,priority=100,in_port=3,vlan_tci=0,{f}"), NOW);
        }
        s
    };
    let udp = build::udp(VIF, PEER, (ip("10.7.0.1"), 1000), (ip("10.8.0.1"), 2000), 64, &[7; 4]).expect("UDP");
    // Behind its ports this segment has what would be a length of UDP.
    let mut short = tcp((VIF, PEER), (ip("10.7.0.1"), 1000), (ip("10.8.0.1"), 2000), 0x10);
    short.truncate(54);
    short[16..18].copy_from_slice(&40u16.to_be_bytes());
    short[38..42].copy_from_slice(&[0, 8, 0, 0]);
    let other = |at: usize, to: &[u8]| {
        let mut p = udp.clone();
        p[at..at + to.len()].copy_from_slice(to);
        p
    };
    // Another protocol, a fragment, and a header with options, of which the length is right as well.
    for mut p in [short, other(23, &[1]), other(20, &[0x20, 0]), other(14, &[0x46])] {
        packet::checksum::set_ipv4(&mut p, 14);
        assert!(p.len() < 56, "{} bytes", p.len());
        let list: Vec<&Vec<u8>> = (0..40).map(|n| if n % 10 < 7 { &udp } else { &p }).collect();
        let (mut alone, mut together) = (Outputs::default(), Outputs::default());
        let mut s = ready(false);
        for p in &list {
            s.process(&mut vec![(DeviceId(3), Buffer::new(p, 200, false))], NOW, &mut alone);
        }
        let mut s = ready(true);
        for round in 0..2 {
            together = Outputs::default();
            let mut batch = list.iter().map(|p| (DeviceId(3), Buffer::new(p, 200, false))).collect();
            s.process(&mut batch, NOW, &mut together);
            assert!(round == 0 || s.cache_stats().hits > 0);
        }
        assert!(sent(alone) == sent(together), "{p:x?}");
    }
}

#[test]
fn packets_without_room_are_dropped_and_the_others_of_their_run_leave() {
    for (way, options) in WAYS.into_iter().take(4) {
        for tags in [0, 1] {
            let kind = Kind { within: false, tags, tcp: false, v6: false };
            let actions = format!("{}{way}", if tags > 0 { "pop_vlan," } else { "" });
            let list = packets(kind);
            let mut s = switch(true, options, kind, &actions);
            // Each fifth packet has less room than the headers take.
            let room = |n: usize| if n % 5 == 2 { 40 } else { 200 };
            let mut leave = |room: &dyn Fn(usize) -> usize| {
                let mut out = Outputs::default();
                let mut batch =
                    list.iter().enumerate().map(|(n, p)| (DeviceId(3), Buffer::new(p, room(n), false))).collect();
                s.process(&mut batch, NOW, &mut out);
                s.count();
                (sent(out), s.drops.get(DropReason::NoBuffer))
            };
            let (all, before) = leave(&|_| 200);
            let (some, after) = leave(&room);
            let dropped = after - before;
            let expected: Vec<_> =
                all.into_iter().enumerate().filter(|(n, _)| room(*n) == 200).map(|(_, p)| p).collect();
            assert!(some == expected, "{actions}");
            assert_eq!(dropped, (list.len() - expected.len()) as u64, "{actions}");
        }
    }
}
