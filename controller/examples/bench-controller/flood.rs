//! Packets without end from one port, and what others get meanwhile.

use crate::wire::encode;
use crate::world::{World, plug};
use crate::{Figures, cloud, median};
use anyhow::{Context, Result, bail};
use controller::encode::{of, opcode};
use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Match, TableId};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Packets a second.
const RATE: u64 = 100_000;
/// How long each kind of broken packets lasts before others ask, in seconds.
const BEFORE: u64 = 1;

/// How long an answer is waited for.
const GIVE_UP: Duration = Duration::from_secs(5);

/// A kind of broken packets, and the lines of the report that it has.
macro_rules! kind {
    ($name:literal) => {
        (
            $name,
            [
                concat!("flood of broken ", $name, ": offered a second"),
                concat!("flood of broken ", $name, ": taken a second"),
                concat!("flood of broken ", $name, ": DHCP of another port, median"),
                concat!("flood of broken ", $name, ": DHCP of another port, longest"),
                concat!("flood of broken ", $name, ": memory that it added"),
            ],
        )
    };
}

/// All kinds, in the order of [`good`].
const KINDS: [(&str, [&str; 5]); 7] =
    [kind!("DHCPv4"), kind!("DHCPv6"), kind!("DNS"), kind!("RA"), kind!("IGMP"), kind!("PUT_ARP"), kind!("ARP")];

fn metadata(datapath: u64, port: u64) -> Match {
    Match::new().with(FieldId::Metadata, datapath.into()).with(FieldId::Reg14, port.into())
}

/// A neighbour's packet, another one each time.
fn hostile(n: u64, datapath: u64, port: u64) -> Vec<u8> {
    let b = n.to_be_bytes();
    let mac = [0x0e, 1, b[4], b[5], b[6], b[7]];
    let ip = Ipv4Addr::new(11, b[5], b[6], b[7]);
    let packet = packet::build::arp_request(packet::Mac(mac), ip, Ipv4Addr::new(10, 0, 0, 1));
    let userdata = vec![0, 0, 0, opcode::PUT_ARP, 0, 0, 0, 0];
    let metadata = metadata(datapath, port).with(FieldId::Reg0, u32::from(ip).into());
    encode(PacketIn {
        total_len: packet.len() as u32,
        packet,
        metadata,
        userdata,
        cookie: 1,
        table: TableId(10),
        ..PacketIn::default()
    })
}

/// A DHCP discovery (RFC 2131), and the mark by which its answer is known.
fn discovery(n: u32, datapath: u64, port: u64, userdata: &[u8], mac: [u8; 6]) -> Option<(Vec<u8>, [u8; 4])> {
    let mark = (0xd15c_0000 | n).to_be_bytes();
    let mut body = vec![1, 1, 6, 0];
    body.extend(mark);
    body.resize(28, 0);
    body.extend(mac);
    body.resize(236, 0);
    body.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let (from, to) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::BROADCAST));
    let packet = packet::build::udp(packet::Mac::BROADCAST, packet::Mac(mac), (from, 68), (to, 67), 64, &body)?;
    let p = PacketIn {
        total_len: packet.len() as u32,
        packet,
        metadata: metadata(datapath, port),
        userdata: userdata.to_vec(),
        continuation: Some(vec![0; 16]),
        cookie: 2,
        table: TableId(30),
        ..PacketIn::default()
    };
    Some((encode(p), mark))
}

/// The user data of a flow that answers DHCP of a tenant.
fn dhcp(dump: &str) -> Option<Vec<u8>> {
    let of = |l: &str| -> Option<Vec<u8>> {
        let hex = l.split("userdata=").nth(1)?.split([',', ')']).next()?.to_string();
        let bytes: Vec<u8> = hex.split('.').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
        (bytes.get(..4)? == [0, 0, 0, opcode::PUT_DHCP_OPTS]).then_some(bytes)
    };
    dump.lines().find_map(of)
}

/// Where a result goes: a bit of a register.
fn place(bit: u32) -> Vec<u8> {
    [&of::field_header(FieldId::XxReg0)[..], &bit.to_be_bytes()].concat()
}

/// What a flow sends to the controller: its code, the code's arguments, the packet.
type Sent = (u8, Vec<u8>, Vec<u8>);

/// A good packet of each kind that comes to the controller.
fn good(dhcp: &[u8]) -> Option<[Sent; KINDS.len()]> {
    let mac = packet::Mac([0x0e, 1, 0, 0, 0, 1]);
    let (group, six) = (packet::Mac([0x33; 6]), |a: &str| a.parse::<Ipv6Addr>().ok().map(IpAddr::V6));
    let four = |a: [u8; 4], port| (IpAddr::from(a), port);
    let mut asks = vec![1, 1, 6];
    asks.resize(236, 0);
    asks.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let asks = packet::build::udp(packet::Mac::BROADCAST, mac, four([0; 4], 68), four([255; 4], 67), 64, &asks)?;
    let solicit = [&[1, 1, 2, 3, 0, 1, 0, 4, 0, 3, 0, 1, 0, 3, 0, 12][..], &[0; 12]].concat();
    let solicit = packet::build::udp(group, mac, (six("fe80::1")?, 546), (six("ff02::1:2")?, 547), 1, &solicit)?;
    let server = [&place(99)[..], &[0, 2, 0, 6, 2, 0, 0, 0, 0, 3]].concat();
    let question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03vm1\x04test\0\0\x01\0\x01";
    let query = packet::build::udp(mac, mac, four([10, 0, 0, 9], 4000), four([8, 8, 8, 8], 53), 64, question)?;
    let (host, routers) = (six("fe80::1")?, six("ff02::2")?);
    let asked = packet::build::ip_packet(group, mac, host, routers, 58, 255, &[133, 0, 0, 0, 0, 0, 0, 0])?;
    let advertisement = [&place(5)[..], &[134, 0, 0, 0, 255, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let (one, group4) = (IpAddr::from([10, 0, 0, 9]), IpAddr::from([239, 0, 0, 1]));
    let report = packet::build::ip_packet(mac, mac, one, group4, 2, 1, &[0x16, 0, 0, 0, 239, 0, 0, 1])?;
    let arp = packet::build::arp_request(mac, Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 1));
    Some([
        (opcode::PUT_DHCP_OPTS, dhcp.get(8..)?.to_vec(), asks),
        (opcode::PUT_DHCPV6_OPTS, server, solicit),
        (opcode::DNS_LOOKUP, place(4), query.clone()),
        (opcode::PUT_ND_RA_OPTS, advertisement, asked),
        (opcode::IGMP, Vec::new(), report),
        (opcode::PUT_ARP, Vec::new(), arp),
        (opcode::ARP, Vec::new(), query),
    ])
}

/// The `n`th broken one of a good packet: octets changed, cut off somewhere, to another next hop. Numbers that look random and are the same
/// in each run (xorshift).
fn broken(good: &Sent, n: u64, datapath: u64, port: u64) -> Vec<u8> {
    let mut state = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (code, data, mut packet) = good.clone();
    // Ethernet addresses stay: flows match them.
    let rest = packet.len() as u64 - 12;
    for _ in 0..next() % 6 {
        let at = 12 + (next() % rest) as usize;
        packet[at] = next() as u8;
    }
    if next().is_multiple_of(4) {
        packet.truncate(12 + (next() % rest) as usize);
    }
    encode(PacketIn {
        total_len: packet.len() as u32,
        packet,
        metadata: metadata(datapath, port).with(FieldId::Reg0, u128::from(next() as u32)),
        userdata: [&[0, 0, 0, code, 0, 0, 0, 0][..], &data].concat(),
        continuation: Some(vec![0; 16]),
        cookie: 1,
        table: TableId(10),
        ..PacketIn::default()
    })
}

/// Packets at [`RATE`] until it is over.
struct Storm {
    over: Arc<AtomicBool>,
    offered: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
    begin: Instant,
    taken: u64,
}

impl Storm {
    fn begin(w: &World, packet: impl Fn(u64) -> Vec<u8> + Send + 'static) -> Storm {
        let (over, offered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (wire, o, count) = (w.wire.clone(), over.clone(), offered.clone());
        let task = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            let mut n = 0;
            while !o.load(Ordering::Relaxed) {
                let due = begin.elapsed().as_micros() as u64 * RATE / 1_000_000;
                while n < due {
                    wire.offer(&packet(n));
                    n += 1;
                }
                count.store(n, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Storm { over, offered, task, begin: Instant::now(), taken: w.wire.taken() }
    }

    /// Ends it: packets a second, offered and taken.
    async fn end(self, w: &World) -> Result<(f64, f64)> {
        let took = self.begin.elapsed().as_secs_f64();
        let taken = w.wire.taken() - self.taken;
        self.over.store(true, Ordering::Relaxed);
        self.task.await?;
        Ok((self.offered.load(Ordering::Relaxed) as f64 / took, taken as f64 / took))
    }
}

/// Broken packets of each kind in turn, from one port, while another asks for its lease.
async fn each_kind(w: &World, dhcp: &[u8], asks: (u64, u64), floods: (u64, u64), f: &mut Figures) -> Result<()> {
    let all = good(dhcp).context("no packets")?;
    for (n, ((_, lines), packet)) in KINDS.iter().zip(all).enumerate() {
        let before = w.controller.memory().1;
        // Made before: the rate is to be the controller's, not this program's.
        let made: Vec<Vec<u8>> = (0..RATE).map(|n| broken(&packet, n, floods.0, floods.1)).collect();
        let storm = Storm::begin(w, move |n| made.get((n % RATE) as usize).cloned().unwrap_or_default());
        tokio::time::sleep(Duration::from_secs(BEFORE)).await;
        let mut took = ask(w, 2000 + 100 * n as u32, asks, dhcp).await?;
        let (offered, taken) = storm.end(w).await?;
        took.sort_by(f64::total_cmp);
        let longest = took.last().copied().unwrap_or(f64::NAN);
        let values = [offered, taken, median(&mut took) * 1e3, longest * 1e3, w.controller.memory().1 - before];
        for (k, ((line, unit), value)) in lines.iter().zip(["", "", "ms", "ms", "MB"]).zip(values).enumerate() {
            f.insert((40 + 5 * n + k, line, unit), value);
        }
    }
    Ok(())
}

/// How long each of some DHCP requests waits for its answer.
async fn ask(w: &World, n: u32, keys: (u64, u64), userdata: &[u8]) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for i in 0..20 {
        let (packet, mark) = discovery(n + i, keys.0, keys.1, userdata, [0x0a, 0, 0, 1, 0, 0]).context("no packet")?;
        w.wire.await_answer(mark);
        let begin = Instant::now();
        w.wire.give(packet).await;
        let took = loop {
            if let Some(at) = w.wire.answered() {
                break at.saturating_duration_since(begin);
            }
            if begin.elapsed() > GIVE_UP {
                break begin.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        all.push(took.as_secs_f64());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(all)
}

/// How long until a port that is plugged in belongs to the chassis.
async fn claim(w: &World, port: &str) -> Result<f64> {
    let begin = Instant::now();
    plug(&w.server, port).await?;
    loop {
        let rows = w.sb_rows("Port_Binding", json!([["logical_port", "==", port]]), json!(["chassis"])).await?;
        if rows.first().is_some_and(|r| r["chassis"][0] == "uuid") {
            return Ok(begin.elapsed().as_secs_f64());
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Ok(begin.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn run(w: &World, f: &mut Figures) -> Result<()> {
    let keys = |rows: Vec<serde_json::Value>| {
        rows.first().map(|r| (r["datapath"].clone(), r["tunnel_key"].as_u64().unwrap_or(0)))
    };
    let find = |port: String| async move {
        let rows =
            w.sb_rows("Port_Binding", json!([["logical_port", "==", port]]), json!(["datapath", "tunnel_key"])).await?;
        let (dp, key) = keys(rows).with_context(|| format!("no port {port}"))?;
        let dp = w.sb_rows("Datapath_Binding", json!([["_uuid", "==", dp]]), json!(["tunnel_key"])).await?;
        anyhow::Ok((dp.first().and_then(|d| d["tunnel_key"].as_u64()).unwrap_or(0), key))
    };
    let userdata = dhcp(&w.dump()?).context("no flow answers DHCP")?;
    let good = find(cloud::port(1, 0, 0)).await?;
    let bad = find("lrp-0-0".into()).await?;
    let mut alone = ask(w, 0, good, &userdata).await?;
    if alone.iter().all(|t| *t >= GIVE_UP.as_secs_f64()) {
        bail!("DHCP is not answered");
    }
    f.insert((30, "DHCP, nothing else going on", "ms"), median(&mut alone) * 1e3);
    let spare = cloud::port(0, 0, 2 * cloud::LOCAL_PORTS - 1);
    f.insert((31, "a claim, nothing else going on", "ms"), claim(w, &spare).await? * 1e3);
    let storm = Storm::begin(w, move |n| hostile(n, bad.0, bad.1));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut under = ask(w, 1000, good, &userdata).await?;
    let spare = cloud::port(1, 0, 2 * cloud::LOCAL_PORTS - 1);
    let claimed = claim(w, &spare).await?;
    let (offered, taken) = storm.end(w).await?;
    under.sort_by(f64::total_cmp);
    f.insert((32, "flood: packets offered a second", ""), offered);
    f.insert((33, "flood: packets taken a second", ""), taken);
    f.insert((34, "flood: DHCP of another port, median", "ms"), median(&mut under) * 1e3);
    f.insert((35, "flood: DHCP of another port, longest", "ms"), under.last().copied().unwrap_or(f64::NAN) * 1e3);
    f.insert((36, "flood: a claim", "ms"), claimed * 1e3);
    let rows = w.sb_rows("MAC_Binding", json!([]), json!(["ip"])).await?.len();
    f.insert((37, "flood: rows that it made", ""), rows as f64);
    each_kind(w, &userdata, good, bad, f).await
}
