//! Checksums that devices finish and check, and queues, on a tap device, whose driver has both, and on af_packet, whose driver has
//! none. The test runs itself anew in a network namespace of its own, so it needs root.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dpdk_rs::{Eal, Mbuf, Memory, Pool, Port, PortConfig};
use packet::{Headers, checksum};
use std::process::Command;
use std::time::{Duration, Instant};

const INSIDE: &str = "ISTHMUS_TEST_NAMESPACE";

/// A UDP packet behind so many VLAN tags, over either protocol, with a zero checksum.
fn udp(v6: bool, tags: usize, payload: usize) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    (0..tags).for_each(|n| p.extend([0x81, 0, 0, 5 + n as u8]));
    let n = 8 + payload as u16;
    if v6 {
        p.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        p.extend(n.to_be_bytes());
        p.extend([17, 64]);
        (0..32).for_each(|b| p.push(b));
    } else {
        p.extend([8, 0, 0x45, 0]);
        p.extend((20 + n).to_be_bytes());
        p.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        checksum::set_ipv4(&mut p, 14 + 4 * tags);
    }
    p.extend([0x12, 0x34, 0x17, 0xc1]);
    p.extend(n.to_be_bytes());
    p.extend([0, 0]);
    (0..payload).for_each(|b| p.push((b * 7) as u8));
    p
}

/// The same, with the right checksum.
fn whole(p: &[u8]) -> Vec<u8> {
    let mut p = p.to_vec();
    let h = Headers::parse(&p).unwrap();
    checksum::set_l4(&mut p, &h);
    assert!(checksum::l4_ok(&p, &h));
    p
}

/// The same, with the checksum of all but the last bytes.
fn begun(p: &[u8], rest: usize) -> Vec<u8> {
    let (head, tail) = p.split_at(p.len() - rest);
    let mut q = whole(&[head, &vec![0; rest]].concat());
    q.truncate(head.len());
    q.extend(tail);
    q
}

/// The packets of ours that arrive within a while.
fn arrivals(port: &Port, n: usize) -> Vec<Mbuf> {
    let (mut got, end) = (Vec::new(), Instant::now() + Duration::from_secs(5));
    while got.len() < n && Instant::now() < end {
        for q in 0..port.info().queues[0] {
            port.receive(q, |m| {
                // The kernel talks by itself, too.
                if m.data().starts_with(&[2, 0, 0, 0, 0, 2]) {
                    got.push(m);
                }
            });
        }
    }
    got
}

#[test]
fn offloads() {
    if std::env::var_os(INSIDE).is_none() {
        let me = std::env::current_exe().unwrap();
        let unshared =
            Command::new("unshare").args(["--net", "--"]).arg(me).args(["--nocapture"]).env(INSIDE, "1").status();
        match unshared {
            // 1 is what unshare says where it may not.
            Ok(s) if s.code() == Some(1) => needs::skip("network namespaces are made by root only"),
            Ok(s) => assert!(s.success(), "{s}"),
            Err(e) => needs::skip(format!("unshare: {e}")),
        }
        return;
    }
    let args = "--no-huge -m 128 --no-pci --no-telemetry --no-shconf -l 0 --log-level=lib.eal:error --log-level=pmd.net.tap:critical";
    let eal = Eal::init(&args.split(' ').map(String::from).collect::<Vec<_>>()).unwrap();
    let pool = Pool::new(&eal, "test", 8192, 2048).unwrap();
    let all = pool.available();
    {
        let config =
            PortConfig { rx_queues: 2, tx_queues: 2, rx_checksums: true, mtu: Some(1400), ..Default::default() };
        let tap = Port::attach(&eal, "vdev", "net_tap0", "iface=offload0", &pool, &config).unwrap();
        let peer = Port::attach(&eal, "vdev", "net_af_packet0", "iface=offload0", &pool, &config).unwrap();
        described(&tap, &peer);
        finished(&pool, &tap, &peer);
        checked(&pool, &tap, &peer);
    }
    changed(&eal, &pool);
    assert_eq!(pool.available(), all, "every packet went back");
    taps(&eal);
}

/// Taps that are not DPDK's: frames of all sizes pass both ways, each into a buffer of its size, and what there is no memory for is
/// counted.
fn taps(eal: &Eal) {
    let memory = Memory::new(eal, 2047, 24 << 20).unwrap();
    let tap = Port::tap(&memory, "own0", Some(packet::Mac([2, 0, 0, 0, 0, 1]))).unwrap();
    assert!(Command::new("ip").args(["link", "set", "own0", "up", "mtu", "9000"]).status().unwrap().success());
    let before = |m: &Memory| m.free().collect::<Vec<_>>();
    let ring = "iface=own0,framesz=10240,blocksz=20480,framecnt=256";
    let peer =
        Port::attach(eal, "vdev", "net_af_packet1", ring, memory.for_frames(9022).unwrap(), &PortConfig::default())
            .unwrap();
    peer.limit(Some(9000));
    let all = before(&memory);
    for n in [60, 2048, 2049, 9014] {
        let mut p = vec![n as u8; n];
        p[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        for (from, to) in [(&tap, &peer), (&peer, &tap)] {
            assert_eq!(from.transmit(0, &mut vec![memory.packet(&p).unwrap()]), 1, "{n}");
            let got = arrivals(to, 1);
            assert_eq!(got.first().map(Mbuf::data), Some(p.as_slice()), "{n}");
        }
    }
    assert_eq!(before(&memory), all, "every packet went back");
    // Where every large buffer is in use, a long frame is lost, and the next one comes.
    let frame = |n: usize| [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..], &vec![0; n - 14]].concat();
    let mut batch = vec![memory.packet(&frame(4000)).unwrap(), memory.packet(&frame(60)).unwrap()];
    let all = || std::iter::from_fn(|| memory.packet(&[0; 9000]));
    let mut held: Vec<Mbuf> = all().collect();
    assert!(held.len() > 100 && memory.packet(&[0; 60]).is_some());
    assert_eq!(peer.transmit(0, &mut batch), 2);
    held.extend(all());
    let (mut lost, mut got, end) = (0, 0, Instant::now() + Duration::from_secs(5));
    while got == 0 && Instant::now() < end {
        lost += tap.receive(0, |m| got += usize::from(m.len() == 60));
    }
    assert_eq!((lost, got), (1, 1));
}

fn described(tap: &Port, peer: &Port) {
    let (t, a) = (tap.info(), peer.info());
    assert_eq!((t.driver.as_str(), t.bus.as_str(), t.queues, tap.mtu()), ("net_tap", "vdev", [2, 2], Some(1400)));
    assert!(t.tx_udp && t.tx_ipv4 && t.rx_checksums);
    assert_eq!((a.driver.as_str(), a.queues, a.max_queues), ("net_af_packet", [1, 1], [1, 1]), "as many as it has");
    assert!(!a.tx_udp && !a.tx_ipv4 && !a.rx_checksums);
    assert_eq!(tap.extended_statistics().iter().filter(|(n, _)| n.starts_with("rx_q1_")).count(), 3);
}

/// What is left to the device arrives whole, whether the device finishes it or not.
fn finished(pool: &Pool, tap: &Port, peer: &Port) {
    for (from, to) in [(tap, peer), (peer, tap)] {
        for (v6, tags, payload) in [(false, 0, 100), (true, 0, 101), (false, 1, 1), (true, 2, 1200), (false, 0, 0)] {
            let p = udp(v6, tags, payload);
            let rest = payload.saturating_sub(16);
            let mut m = pool.packet(&begun(&p, rest)).unwrap();
            assert!(m.leave_checksum(payload + 8, rest), "a device does it");
            assert!(m.owes_checksum() && m.copy(pool).unwrap().owes_checksum());
            // Headers may change until it is sent.
            m.data_mut()[14 + 4 * tags + 1] ^= 1;
            let mut expected = p.clone();
            expected[14 + 4 * tags + 1] ^= 1;
            let mut settled = m.copy(pool).unwrap();
            settled.settle();
            assert!(!settled.owes_checksum());
            assert_eq!(settled.data(), whole(&expected));
            assert_eq!(from.transmit(0, &mut vec![m]), 1);
            let got = arrivals(to, 1);
            // The kernel takes the outer tag off what af_packet sees.
            let [got] = got.as_slice() else { panic!("one packet: {}", got.len()) };
            assert_eq!(
                &got.data()[got.len() - payload - 8..],
                &whole(&expected)[p.len() - payload - 8..],
                "{v6} {tags}"
            );
        }
    }
    // What owes nothing stays as it is.
    let p = udp(false, 0, 9);
    assert_eq!(tap.transmit(1, &mut vec![pool.packet(&p).unwrap()]), 1);
    assert_eq!(arrivals(peer, 1)[0].data(), p);
}

/// What the device says of what it receives.
fn checked(pool: &Pool, tap: &Port, peer: &Port) {
    let right = whole(&udp(false, 0, 50));
    let mut wrong = right.clone();
    wrong[60] ^= 1;
    for (p, good) in [(&right, true), (&wrong, false)] {
        assert_eq!(peer.transmit(0, &mut vec![pool.packet(p).unwrap()]), 1);
        let mut got = arrivals(tap, 1);
        let m = got.first_mut().unwrap();
        assert_eq!((m.data(), m.checksum_good()), (p.as_slice(), good));
        m.forget_checksums();
        assert!(!m.checksum_good());
        assert_eq!(tap.transmit(0, &mut vec![pool.packet(p).unwrap()]), 1);
        assert!(!arrivals(peer, 1)[0].checksum_good(), "nobody looked");
    }
}

/// A device is set up anew while it is there.
fn changed(eal: &Eal, pool: &Pool) {
    let config = PortConfig { rx_descriptors: Some(100), ..Default::default() };
    let mut port = Port::attach(eal, "vdev", "net_null7", "size=64", pool, &config).unwrap();
    assert_eq!((port.info().queues, port.info().descriptors[0]), ([1, 1], 100));
    port.reconfigure(pool, &PortConfig { rx_queues: 4, mtu: Some(1000), ..config }).unwrap();
    assert_eq!((port.info().queues, port.info().bus.as_str()), ([4, 1], "vdev"));
    let mut n = 0;
    port.receive(3, |_| n += 1);
    assert_eq!(n, 32);
}
