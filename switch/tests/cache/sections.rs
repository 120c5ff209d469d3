//! The sections that a cached flow is told of by are of the same walk: together they send to the same devices, and meet the
//! same flows of OpenFlow.

use super::gateway::{PEER, ROUTER, flow};
use super::ops::{Op, Sum};
use super::rig::{Rig, step};
use packet::build;
use std::collections::HashSet;
use std::time::Duration;
use switch::{BridgeId, Met, Outputs};

/// The devices that datapath actions send to, sorted; `None` where the actions tell of several lengths.
fn devices(actions: &str) -> Option<Vec<u32>> {
    if actions.contains("check_pkt_len(") {
        return None;
    }
    let (mut out, mut rest) = (Vec::new(), actions);
    while !rest.is_empty() {
        // What is within a clone is done as well; other words' arguments are no outputs.
        if let Some(inside) = rest.strip_prefix("clone(") {
            rest = inside;
            continue;
        }
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth < 0 || depth == 0 && c == ','
        });
        let (word, more) = rest.split_at(end.unwrap_or(rest.len()));
        out.extend(word.parse::<u32>().ok());
        rest = more.trim_start_matches([',', ')']);
    }
    out.sort_unstable();
    Some(out)
}

/// What was met, sorted.
fn met(list: Vec<Met>) -> Vec<String> {
    let mut all: Vec<String> = list.iter().map(|m| format!("{m:?}")).collect();
    all.sort();
    all
}

/// Whether all cached flows are told of so; an error says of which not.
pub fn agree(s: &mut Rig) -> Result<usize, String> {
    let flows: Vec<_> = s.cached_flows().filter(|f| f.is_whole_way()).collect();
    for f in &flows {
        let sections = s.sections(f);
        let told: Vec<String> = sections.iter().map(|p| format!("{}, actions:{}", p.packets, p.actions)).collect();
        let whole = s.tell_actions(f);
        let parts: Option<Vec<Vec<u32>>> = sections.iter().map(|p| devices(&p.actions)).collect();
        if let (Some(whole), Some(parts)) = (devices(&whole), parts) {
            let mut parts = parts.concat();
            parts.sort_unstable();
            if whole != parts {
                return Err(format!("{} sends to {whole:?}, its sections to {parts:?}: {told:#?}", f.packets));
            }
        }
        let parts: Vec<Met> = sections.iter().filter_map(|p| s.met_by(p)).flatten().collect();
        let (whole, parts) = (met(s.met_by(f).unwrap_or_default()), met(parts));
        if whole != parts {
            return Err(format!("{} meets {whole:#?}, its sections {parts:#?}: {told:#?}", f.packets));
        }
    }
    Ok(flows.len())
}

#[test]
fn devices_of_actions() {
    assert_eq!(devices("set(ipv4(ttl=2)),4,clone(ct(commit,zone=3),tnl_push(a(1),2),7),3"), Some(vec![3, 4, 7]));
    assert_eq!(devices("drop"), Some(Vec::new()));
    assert_eq!(devices("check_pkt_len(size=9,gt(1),le(2))"), None);
}

/// A packet out of a tunnel is a flow of its own there, with what its tunnel's header said, and with all of its options.
#[test]
fn packets_out_of_tunnels_have_sections() {
    let mut s = Rig::new(true);
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    let to_2 = "table=0,priority=20,in_port=10,tun_id=0x1234,tun_metadata0=0x8002,udp actions=dec_ttl,output:2";
    flow(&mut s, BridgeId(0), to_2, now);
    // Both ends of the tunnel are known: what is for them is not flooded.
    for (device, mac, from, to) in [(50, PEER, 2, 1), (60, ROUTER, 1, 2)] {
        let here = build::arp_request(mac, [192, 168, 0, from].into(), [192, 168, 0, to].into());
        s.take((device, here), now, &mut Outputs::default());
    }
    for sport in 1..4 {
        let op = Op::Tunnelled { vni: 0x1234, sport, len: 0 };
        step(&mut s, &op, &mut now, &mut last);
    }
    let ways: Vec<_> = s.cached_flows().filter(|f| f.is_whole_way()).collect();
    let told: Vec<Vec<String>> = ways
        .iter()
        .map(|f| s.sections(f).iter().map(|p| format!("{} {:?} {}", p.packets, p.bridge, p.actions)).collect())
        .collect();
    let within = |p: &String| {
        p.contains(",tunnel(tun_id=0x1234,src=192.168.0.2,dst=192.168.0.1,geneve({class=0x102,type=0x80,len=4,0x8002}),flags(+key)),in_port(6081),")
            && p.contains(" Some(0) ")
    };
    let around = |p: &String| {
        p.contains("in_port(50),")
            && p.contains("ipv4(dst=192.168.0.1,proto=17,")
            && p.contains("udp(dst=6081)")
            && p.contains("tnl_pop(6081)")
    };
    assert!(told.iter().any(|w| w.iter().any(within) && w.iter().any(around)), "{told:#?}");
    assert_eq!(agree(&mut s).expect("sections"), ways.len());
}

/// A dump in parts has each flow once, and no part is long.
#[test]
fn dumps_come_in_parts() {
    let mut s = Rig::with_room(true, 4000);
    s.set_megaflows(false);
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    flow(&mut s, BridgeId(0), "table=0,priority=20,in_port=1,udp actions=output:2", now);
    for sport in (1000..1500).flat_map(|n| [n, n]) {
        let op = Op::Open { src: 1, sport, dport: 80, ttl: 64, sum: Sum::Right };
        step(&mut s, &op, &mut now, &mut last);
    }
    let (mut told, mut from, mut parts) = (Vec::new(), Some(0), 0);
    while let Some(place) = from {
        let part = s.dump_part(place, &HashSet::new());
        assert!(part.flows.len() < 80, "{} flows in a part", part.flows.len());
        told.extend(part.flows.into_iter().map(|f| f.packets));
        (from, parts) = (part.next, parts + 1);
    }
    let mut all: Vec<String> = s.cached_flows().map(|f| f.packets).collect();
    told.sort();
    all.sort();
    assert_eq!(told, all);
    assert!(all.len() >= 500 && parts > 5, "{} flows in {parts} parts", all.len());
    // Those that another flow stands for are left out.
    let known: HashSet<_> = s.cached_flows().map(|f| f.counted_by()).collect();
    let part = s.dump_part(0, &known);
    assert!(part.flows.is_empty() && !part.alike.is_empty(), "{} flows", part.flows.len());
}
