//! Bundles: what packets among their changes meet.

use openflow_rs::message::PacketOut;
use openflow_rs::mods::{GroupMod, GroupModCommand};
use openflow_rs::text::{parse_actions, parse_flow, parse_group};
use openflow_rs::*;
use std::time::Duration;
use switch::{DeviceId, Outputs, Port, PortKind, Switch};

const NOW: Duration = Duration::from_secs(10);

/// A packet-out goes through the tables as they were made before it, whatever comes behind; who is in the tables when the
/// bundle is done counts for all other packets.
#[test]
fn packet_outs_see_the_tables_of_their_place() {
    let mut s = Switch::new(100);
    let b = s.add_bridge("br0", 1);
    for i in 1..=3 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    let flow = |text: &str| Message::FlowMod(parse_flow(text).expect("flow"));
    s.apply_bundle(b, &[flow("priority=0 actions=drop")], NOW).expect("bundle");
    let packet = [&[2u8; 12][..], &[0x12, 0x34], &[0; 46]].concat();
    let receive = |s: &mut Switch| {
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(1), packet.clone())], NOW, &mut out);
        out.packets.into_iter().map(|p| p.0.device().0).collect::<Vec<_>>()
    };
    assert!(receive(&mut s).is_empty());
    let group = parse_group("group_id=1,type=all,bucket=output:2,bucket=output:3").expect("group");
    let sends = |actions: &str| {
        Message::PacketOut(PacketOut::new(PortNo(1), packet.clone(), parse_actions(actions).expect("actions")))
    };
    let all = Group { id: GroupId::ALL, ..Group::default() };
    let list = [
        sends("table"),
        Message::GroupMod(GroupMod::new(GroupModCommand::Add, group)),
        flow("in_port=1 actions=group:1"),
        sends("table"),
        Message::GroupMod(GroupMod::new(GroupModCommand::Delete, all)),
        flow("in_port=1 actions=output:3"),
        sends("table"),
    ];
    let packets = s.apply_bundle(b, &list, NOW).expect("bundle");
    let mut sent = Vec::new();
    for mut p in packets {
        let mut out = Outputs::default();
        p.tables.as_mut().into_iter().for_each(|t| s.swap_tables(b, t));
        s.packet_out(b, &p.message, &Vec::new(), NOW, &mut out);
        p.tables.as_mut().into_iter().for_each(|t| s.swap_tables(b, t));
        sent.push(out.packets.into_iter().map(|p| p.0.device().0).collect::<Vec<_>>());
        assert_eq!(receive(&mut s), [3], "others meet what is there when all is done");
    }
    assert_eq!(sent, [vec![], vec![2, 3], vec![3]]);
    assert!(s.bridge(b).expect("bridge").groups().next().is_none());
}
