//! Packets without end from one port, and what others get meanwhile.

use crate::wire::encode;
use crate::world::{World, plug};
use crate::{Figures, cloud, median};
use anyhow::{Context, Result, bail};
use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Match};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Packets a second.
const RATE: u64 = 100_000;
/// The action that learns a neighbour (ovn-controller's `put_arp`), and the one that answers DHCP.
const PUT_ARP: u8 = 1;
const PUT_DHCP_OPTS: u8 = 2;

fn metadata(datapath: u64, port: u64) -> Match {
    Match::new().with(FieldId::Metadata, datapath.into()).with(FieldId::Reg14, port.into())
}

/// A neighbour's packet, another one each time.
fn hostile(n: u64, datapath: u64, port: u64) -> Vec<u8> {
    let b = n.to_be_bytes();
    let mac = [0x0e, 1, b[4], b[5], b[6], b[7]];
    let ip = Ipv4Addr::new(11, b[5], b[6], b[7]);
    let packet = packet::build::arp_request(packet::Mac(mac), ip, Ipv4Addr::new(10, 0, 0, 1));
    let userdata = vec![0, 0, 0, PUT_ARP, 0, 0, 0, 0];
    let metadata = metadata(datapath, port).with(FieldId::Reg0, u32::from(ip).into());
    encode(PacketIn {
        total_len: packet.len() as u32,
        packet,
        metadata,
        userdata,
        cookie: 1,
        table: 10,
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
        table: 30,
        ..PacketIn::default()
    };
    Some((encode(p), mark))
}

/// The user data of a flow that answers DHCP of a tenant.
fn dhcp(dump: &str) -> Option<Vec<u8>> {
    let of = |l: &str| -> Option<Vec<u8>> {
        let hex = l.split("userdata=").nth(1)?.split([',', ')']).next()?.to_string();
        let bytes: Vec<u8> = hex.split('.').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
        (bytes.get(..4)? == [0, 0, 0, PUT_DHCP_OPTS]).then_some(bytes)
    };
    dump.lines().find_map(of)
}

/// How long each of some DHCP requests waits for its answer.
async fn ask(w: &World, n: u32, keys: (u64, u64), userdata: &[u8]) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for i in 0..20 {
        let (packet, mark) = discovery(n + i, keys.0, keys.1, userdata, [0x0a, 0, 0, 1, 0, 0]).context("no packet")?;
        let begin = Instant::now();
        w.wire.give(packet).await;
        let took = loop {
            if let Some(at) = w.wire.answered(&mark) {
                break at.saturating_duration_since(begin);
            }
            if begin.elapsed() > Duration::from_secs(10) {
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
    if alone.iter().all(|t| *t > 9.0) {
        bail!("DHCP is not answered");
    }
    f.insert((30, "DHCP, nothing else going on", "ms"), median(&mut alone) * 1e3);
    let spare = cloud::port(0, 0, 2 * cloud::LOCAL_PORTS - 1);
    f.insert((31, "a claim, nothing else going on", "ms"), claim(w, &spare).await? * 1e3);
    let (over, offered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let before = w.wire.taken();
    let (wire, o, count) = (w.wire.clone(), over.clone(), offered.clone());
    let storm = tokio::task::spawn_blocking(move || {
        let begin = Instant::now();
        let mut n = 0;
        while !o.load(Ordering::Relaxed) {
            let due = begin.elapsed().as_micros() as u64 * RATE / 1_000_000;
            while n < due {
                wire.offer(&hostile(n, bad.0, bad.1));
                n += 1;
            }
            count.store(n, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut under = ask(w, 1000, good, &userdata).await?;
    let spare = cloud::port(1, 0, 2 * cloud::LOCAL_PORTS - 1);
    let claimed = claim(w, &spare).await?;
    let took = begin.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    storm.await?;
    under.sort_by(f64::total_cmp);
    f.insert((32, "flood: packets offered a second", ""), offered.load(Ordering::Relaxed) as f64 / took);
    f.insert((33, "flood: packets taken a second", ""), (w.wire.taken() - before) as f64 / took);
    f.insert((34, "flood: DHCP of another port, median", "ms"), median(&mut under) * 1e3);
    f.insert((35, "flood: DHCP of another port, longest", "ms"), under.last().copied().unwrap_or(f64::NAN) * 1e3);
    f.insert((36, "flood: a claim", "ms"), claimed * 1e3);
    let rows = w.sb_rows("MAC_Binding", json!([]), json!(["ip"])).await?.len();
    f.insert((37, "flood: rows that it made", ""), rows as f64);
    Ok(())
}
