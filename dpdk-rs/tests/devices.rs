//! Ownership and errors on virtual devices: null (a source of empty packets, a sink), ring (what is sent comes back) and af_packet.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dpdk_rs::{Eal, Error, Mbuf, Memory, Pool, Port, PortConfig};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One environment a process, so one test that goes through everything.
#[test]
fn devices() {
    let args =
        ["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf", "-l", "0", "--log-level=lib.eal:error"];
    let args: Vec<String> = args.iter().map(|s| s.to_string()).collect();
    let eal = Eal::init(&args).unwrap();
    assert_eq!(Eal::init(&args).unwrap_err(), Error::Twice);
    let pool = Pool::new(&eal, "test", 4096, 2048).unwrap();
    let all = pool.available();
    packets(&pool);
    assert_eq!(pool.available(), all, "every packet went back");
    null_device(&eal, &pool);
    assert_eq!(pool.available(), all, "every packet went back");
    ring_device(&eal, &pool);
    assert_eq!(pool.available(), all, "every packet went back");
    outlives(&eal);
    let missing =
        Port::attach(&eal, "vdev", "net_af_packet9", "iface=no-such-interface", &pool, &PortConfig::default());
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("no-such-interface") && text.contains("attach"), "{text}");
    let missing = Port::attach(&eal, "pci", "0000:ff:1f.7", "", &pool, &PortConfig::default());
    assert!(missing.is_err());
    sizes(&eal);
    assert!(matches!(Pool::new(&eal, "huge", 40_000_000, 2048), Err(Error::Pool { .. })));
}

fn packets(pool: &Pool) {
    let mut m = pool.packet(&[7; 60]).unwrap();
    assert!(m.grow_front(50));
    m.data_mut()[..50].fill(1);
    m.append(4).unwrap().fill(9);
    assert_eq!((m.len(), m.data()[0], m.data()[50], m.data()[113]), (114, 1, 7, 9));
    let copy = m.copy(pool).unwrap();
    assert!(m.take_front(50) && m.take_back(4) && !m.take_front(61) && !m.take_back(61));
    assert_eq!((m.data(), copy.len()), (&[7u8; 60][..], 114));
    assert!(!m.grow_front(500) && m.append(100_000).is_none() && m.append(4000).is_none());
    m.data_mut()[0] = 8;
    assert_eq!((m.data()[0], copy.data()[50]), (8, 7));
    let mut held: Vec<Mbuf> = std::iter::from_fn(|| pool.allocate()).collect();
    assert!(held.len() > 4000 && pool.allocate().is_none() && m.copy(pool).is_none());
    held.truncate(10);
    assert!(pool.allocate().is_some());
}

fn null_device(eal: &Eal, pool: &Pool) {
    let attach = |name, arguments| Port::attach(eal, "vdev", name, arguments, pool, &PortConfig::default());
    let port = attach("net_null0", "size=64").unwrap();
    // It belongs to this port, which goes on; once that is gone it can be had again.
    for arguments in ["size=64", "", "size=1500"] {
        let text = attach("net_null0", arguments).unwrap_err().to_string();
        assert!(text.contains("in use"), "{text}");
    }
    let other = attach("net_null1", "size=64").unwrap();
    drop(other);
    drop(attach("net_null1", "size=80").unwrap());
    for (name, why) in [("net_nonsense0", "driver"), ("nonsense", "driver"), ("net_null2,=", "driver"), ("", "driver")]
    {
        let text = attach(name, "").unwrap_err().to_string();
        assert!(text.contains(why), "{name}: {text}");
    }
    let mut batch = Vec::new();
    assert_eq!((port.receive(0, |m| batch.push(m)), batch.len()), (0, 32));
    assert!(batch.iter().all(|m| m.len() == 64));
    for _ in 0..3 {
        port.receive(0, |m| batch.push(m));
    }
    assert_eq!(batch.len(), 128);
    assert_eq!(port.transmit(0, &mut batch), 128);
    assert!(batch.is_empty());
    assert_eq!(port.transmit(0, &mut batch), 0);
    assert!(port.statistics().tx_packets >= 128 && port.link().up);
}

/// What is sent comes back, each packet once, whichever threads send and receive; what the ring has no room for stays the sender's.
fn ring_device(eal: &Eal, pool: &Pool) {
    let port = Port::attach(eal, "vdev", "net_ring0", "", pool, &PortConfig::default()).unwrap();
    let mut batch: Vec<Mbuf> = (0..40).map(|n| pool.packet(&[n; 60]).unwrap()).collect();
    assert_eq!((port.transmit(0, &mut batch), batch.len()), (40, 0));
    let mut got = Vec::new();
    port.receive(0, |m| got.push(m));
    assert_eq!(got.len(), 32, "so many at once");
    port.receive(0, |m| got.push(m));
    assert!(got.len() == 40 && got.iter().zip(0..).all(|(m, n)| m.data() == [n; 60]));
    drop(got);
    let mut batch: Vec<Mbuf> = (0..2000).map(|_| pool.packet(&[7; 60]).unwrap()).collect();
    let sent = port.transmit(0, &mut batch);
    assert!(sent < 2000 && batch.len() == 2000 - sent && batch.iter().all(|m| m.data() == [7; 60]), "{sent}");
    drop(batch);
    let mut came = 0;
    for _ in 0..64 {
        port.receive(0, |_| came += 1);
    }
    assert_eq!(came, sent);
    // Two threads send, two receive, all by the same queues.
    const EACH: usize = 3000;
    let (came, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let receiver = || {
        let _place = eal.register_thread().unwrap();
        while came.load(Ordering::Relaxed) < 2 * EACH {
            port.receive(0, |m| {
                let n = u16::from_be_bytes([m.data()[0], m.data()[1]]);
                sum.fetch_add(n.into(), Ordering::Relaxed);
                came.fetch_add(1, Ordering::Relaxed);
            });
            std::thread::yield_now();
        }
    };
    let sender = || {
        let _place = eal.register_thread().unwrap();
        for n in 0..EACH as u16 {
            let bytes = [n.to_be_bytes().as_slice(), &[0; 58]].concat();
            let mut one = Vec::new();
            while one.is_empty() {
                one.extend(pool.packet(&bytes));
            }
            while port.transmit(0, &mut one) == 0 {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(receiver);
            s.spawn(sender);
        }
    });
    assert_eq!((came.load(Ordering::Relaxed), sum.load(Ordering::Relaxed)), (2 * EACH, EACH * (EACH - 1)));
}

/// A packet goes on when every handle of its pool is gone.
fn outlives(eal: &Eal) {
    let pool = Pool::new(eal, "short-lived", 63, 2048).unwrap();
    let mut m = pool.packet(&[3; 60]).unwrap();
    drop(pool);
    m.append(4).unwrap().fill(4);
    assert_eq!((m.len(), m.data()[0], m.data()[63]), (64, 3, 4));
}

/// Larger frames have pools of their own, which are made when they are asked for.
fn sizes(eal: &Eal) {
    let memory = Memory::new(eal, 1023, 11 << 20).unwrap();
    assert_eq!(memory.free().collect::<Vec<_>>(), [(2048, 1023)]);
    assert!(memory.packet(&[1; 2048]).is_some() && memory.packet(&[1; 2049]).is_none());
    let jumbo = memory.for_frames(9022).unwrap();
    assert_eq!((jumbo.available(), memory.free().count()), (1023, 2));
    let long = memory.packet(&[7; 9018]).unwrap();
    let copy = memory.copy(&long).unwrap();
    assert_eq!((copy.data(), jumbo.available()), (&[7; 9018][..], 1021));
    assert!(memory.packet(&[0; 10_241]).is_none());
    assert!(long.copy(memory.ordinary()).is_none() && memory.packet(&[1; 2048]).unwrap().copy(jumbo).is_some());
    // A port sends what it is said to, and drops the rest; a tag does not count.
    let port = Port::attach(eal, "vdev", "net_null3", "size=64", memory.ordinary(), &PortConfig::default()).unwrap();
    assert_eq!(port.mtu(), Some(1500));
    port.limit(Some(9000));
    let mut tagged = [0; 9018];
    (tagged[12], tagged[13]) = (0x81, 0);
    let mut batch: Vec<Mbuf> =
        [&[0; 9014][..], &tagged, &[0; 60], &[0; 9015], &[0; 9018]].iter().map(|b| memory.packet(b).unwrap()).collect();
    assert_eq!((port.transmit(0, &mut batch), batch.len(), port.too_long()), (3, 0, 2));
    drop((long, copy));
    assert_eq!(jumbo.available(), 1023, "every packet went back");
}
