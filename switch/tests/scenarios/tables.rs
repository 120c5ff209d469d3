//! Flow tables, groups and meters: changes of flows, room in tables, learned flows, action sets.

use crate::rig::{A, B, NOW, ip, load, one, send, udp, via};
use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use packet::build;
use std::time::Duration;
use switch::{BridgeId, Outputs, Switch};

/// A modification keeps a flow's cookie unless it brings one, and its hard timeout begins anew.
#[test]
fn a_modification_keeps_the_cookie() {
    let mut s = one(&["cookie=5,hard_timeout=10,udp actions=output:2"]);
    let mut f = parse_flow("cookie=7,udp actions=output:3").expect("flow");
    f.command = FlowModCommand::Modify;
    let later = NOW + Duration::from_secs(8);
    let cookies = |s: &Switch| s.bridge(BridgeId(0)).expect("bridge").flows().map(|r| r.cookie).collect::<Vec<_>>();
    s.apply(BridgeId(0), &Message::FlowMod(f.clone()), later).expect("modified");
    assert_eq!(cookies(&s), [5]);
    f.new_cookie = Some(7);
    s.apply(BridgeId(0), &Message::FlowMod(f), later).expect("modified");
    assert_eq!(cookies(&s), [7]);
    let tick = |s: &mut Switch, seconds| {
        s.tick(NOW + Duration::from_secs(seconds), &mut Outputs::<Vec<u8>>::default());
        cookies(s).len()
    };
    assert_eq!((tick(&mut s, 17), tick(&mut s, 18)), (1, 0));
}

#[test]
fn a_flow_of_no_table_goes_into_the_first() {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    let now = Duration::from_secs(1);
    let mut f = openflow_rs::text::parse_flow("priority=7,udp actions=drop").expect("flow");
    f.table = TableId::ALL;
    s.apply(b, &openflow_rs::Message::FlowMod(f.clone()), now).expect("as in Open vSwitch");
    assert_eq!(
        s.bridge(b).expect("bridge").flows().map(|r| (r.table, r.priority)).collect::<Vec<_>>(),
        [(TableId::FIRST, 7)]
    );
    f.command = openflow_rs::FlowModCommand::Modify;
    let mut other = openflow_rs::text::parse_flow("table=5,priority=7,udp actions=drop").expect("flow");
    s.apply(b, &openflow_rs::Message::FlowMod(other.clone()), now).expect("another table");
    f.actions = openflow_rs::text::parse_flow("actions=output:2").expect("flow").actions;
    s.apply(b, &openflow_rs::Message::FlowMod(f), now).expect("changed in all tables");
    assert!(s.bridge(b).expect("bridge").flows().all(|r| r.to_flow_mod().actions.len() == 1));
    other.command = openflow_rs::FlowModCommand::Delete;
    other.table = TableId::ALL;
    s.apply(b, &openflow_rs::Message::FlowMod(other), now).expect("all go");
    assert_eq!(s.bridge(b).expect("bridge").flows().count(), 0);
}

/// Vacancy events (OpenFlow 1.4 section 7.3.5.17): after "vacancy down" only "vacancy up" is told, and the other way
/// round.
#[test]
fn tables_tell_when_their_room_falls_and_rises() {
    let mut s = one(&[]);
    let limit = |n| {
        let config = switch::TableConfig { limit: n, ..Default::default() };
        std::collections::BTreeMap::from([(TableId(1), config)])
    };
    s.with_tables(BridgeId(0), |b| b.set_table_config(limit(Some(10)), NOW));
    s.with_tables(BridgeId(0), |b| b.watch_vacancy(TableId(1), Some([20, 80])));
    let mut told = Vec::new();
    let mut change = |s: &mut Switch, flow: &str, add: bool| {
        let mut f = parse_flow(flow).expect("flow");
        f.command = if add { openflow_rs::FlowModCommand::Add } else { openflow_rs::FlowModCommand::Delete };
        s.apply(BridgeId(0), &Message::FlowMod(f), NOW).expect("applies");
        s.with_tables(BridgeId(0), |b| {
            told.extend(b.vacancy_changes().iter().map(|c| (c.table.0, c.up, b.vacancy(TableId(1)))))
        });
        std::mem::take(&mut told)
    };
    for round in 0..2 {
        for n in 1..=10 {
            let wanted = if n == 9 { vec![(1, false, 10)] } else { vec![] };
            assert_eq!(change(&mut s, &format!("table=1,in_port={n} actions=drop"), true), wanted, "{round}: flow {n}");
        }
        for n in 1..=10 {
            let wanted = if n == 9 { vec![(1, true, 90)] } else { vec![] };
            assert_eq!(
                change(&mut s, &format!("table=1,in_port={n} actions=drop"), false),
                wanted,
                "{round}: flow {n}"
            );
        }
    }
    // The database's configuration of the table leaves what a controller has asked for; a table without a limit is empty.
    s.with_tables(BridgeId(0), |b| b.set_table_config(limit(None), NOW));
    assert_eq!(
        s.bridge(BridgeId(0))
            .map(|b| (b.vacancy(TableId(1)), b.table_config(TableId(1)).and_then(|c| c.vacancy).map(|v| v.down))),
        Some((100, Some(20)))
    );
    s.with_tables(BridgeId(0), |b| b.watch_vacancy(TableId::ALL, None));
    assert_eq!(change(&mut s, "table=1,in_port=1 actions=drop", true), []);
}

#[test]
fn learn_then_use() {
    let mut s = one(&[
        "table=0,in_port=1 actions=learn(table=1,idle_timeout=5,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0x1->NXM_NX_REG0[3],output:NXM_OF_IN_PORT[])",
        "table=0,in_port=2 actions=resubmit(,1)",
    ]);
    send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    let back = build::udp(A, B, (ip("10.0.0.2"), 2), (ip("10.0.0.1"), 1), 64, b"").expect("udp");
    assert_eq!(send(&mut s, 2, &back).packets.len(), 1);
    let mut out: Outputs<Vec<u8>> = Outputs::default();
    s.tick(NOW + Duration::from_secs(20), &mut out);
    assert_eq!(s.bridge(BridgeId(0)).expect("bridge").flows().count(), 2, "the learned flow went");
}

#[test]
fn groups_meters_and_limits() {
    let mut s = one(&[]);
    let group = |t: &str| Message::GroupMod(GroupMod::new(GroupModCommand::Add, parse_group(t).expect("group")));
    let meter = MeterMod {
        command: MeterModCommand::Add,
        meter: parse_meter("meter=1 pktps stats bands=type=drop rate=2").expect("meter"),
    };
    s.apply(BridgeId(0), &group("group_id=1,type=select,selection_method=dp_hash,bucket=bucket_id:0,weight:100,actions=output:2,bucket=bucket_id:1,weight:100,actions=output:3"), NOW).expect("group");
    s.apply(BridgeId(0), &group("group_id=2,type=ff,bucket=bucket_id:0,watch_port:2,actions=output:2,bucket=bucket_id:1,watch_port:3,actions=output:3"), NOW).expect("group");
    s.apply(BridgeId(0), &Message::MeterMod(meter), NOW).expect("meter");
    load(
        &mut s,
        BridgeId(0),
        &[
            "in_port=1,udp actions=group:1",
            "in_port=1,arp actions=group:2",
            "in_port=2 actions=meter:1,output:3",
            "in_port=3 actions=resubmit(,0)",
        ],
    );
    let mut hits = [0; 4];
    for i in 0..64 {
        let p = udp("10.0.0.1", 1000 + i, "10.0.0.2", 2);
        let first = send(&mut s, 1, &p).packets;
        assert_eq!(first, send(&mut s, 1, &p).packets, "a flow sticks to its bucket");
        hits[first[0].0.device().index()] += 1;
    }
    assert!(hits[2] > 10 && hits[3] > 10, "{hits:?}");
    let arp = build::arp_request(A, "10.0.0.1".parse().expect("address"), "10.0.0.2".parse().expect("address"));
    assert_eq!(send(&mut s, 1, &arp).packets[0].0, via(2));
    s.bridge_mut(BridgeId(0)).and_then(|b| b.ports.get_mut(&PortNo(2))).expect("port").link.up = false;
    assert_eq!(send(&mut s, 1, &arp).packets[0].0, via(3), "fails over");
    let passed: usize = (0..5).map(|_| send(&mut s, 2, &arp).packets.len()).sum();
    assert_eq!(passed, 2);
    send(&mut s, 3, &arp);
    assert_eq!(s.drops.get(switch::DropReason::TooDeep), 1);
    let bad = [
        Message::FlowMod(parse_flow("table=9 actions=output:1").expect("flow")),
        Message::FlowMod(parse_flow("actions=group:99").expect("flow")),
    ];
    assert_eq!(s.apply_bundle(BridgeId(0), &bad, NOW).expect_err("no such group").0, 1);
    assert!(!s.bridge(BridgeId(0)).expect("bridge").table_sizes().contains_key(&TableId(9)), "nothing of it stays");
}

/// A packet that a meter drops in a resubmit is dropped for the actions behind the resubmit too. In a clone, only the
/// copy is dropped.
#[test]
fn metered_packets_are_gone() {
    let mut s = one(&[]);
    let meter = parse_meter("meter=1 pktps bands=type=drop rate=1").expect("meter");
    s.apply(BridgeId(0), &Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter }), NOW).expect("taken");
    load(
        &mut s,
        BridgeId(0),
        &[
            "in_port=1 actions=resubmit(,1),output:2",
            "in_port=2 actions=clone(meter:1,output:1),output:3",
            "table=1,actions=meter:1,output:3",
        ],
    );
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    assert_eq!(send(&mut s, 1, &p).packets.len(), 2);
    assert_eq!(send(&mut s, 1, &p).packets, []);
    assert_eq!(send(&mut s, 2, &p).packets, [(via(3), p.clone())]);
}

/// A bucket is an action set: of several outputs the last one counts, and a bucket without an output does nothing.
#[test]
fn buckets_are_action_sets() {
    let mut s = one(&[]);
    for (id, actions) in [
        (1, "actions=output:2,set_field:02:00:00:00:00:77->eth_src,output:3,exit"),
        (2, "actions=set_field:02:00:00:00:00:77->eth_src"),
    ] {
        let g = parse_group(&format!("group_id={id},type=indirect,bucket={actions}")).expect("group");
        s.apply(BridgeId(0), &Message::GroupMod(GroupMod::new(GroupModCommand::Add, g)), NOW).expect("taken");
    }
    load(&mut s, BridgeId(0), &["in_port=1 actions=group:1,group:2,output:2"]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let mut q = p.clone();
    q[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
    for _ in 0..3 {
        assert_eq!(send(&mut s, 1, &p).packets, [(via(3), q.clone()), (via(2), p.clone())]);
    }
}

/// A clone carries out its own copy of the action set. `exit` ends the walk without the action set, also that outside
/// a clone.
#[test]
fn clones_and_exits_mind_the_action_set() {
    let mut s = one(&[
        "in_port=1,udp,tp_dst=2 actions=resubmit(,1)",
        "in_port=1,udp,tp_dst=3 actions=clone(exit),output:3",
        "in_port=1,udp,tp_dst=4 actions=resubmit(,2)",
        "table=1,actions=clone(output:3),write_actions(output:2),goto_table:3",
        "table=2,actions=write_actions(output:2),goto_table:4",
        "table=3,actset_output=2 actions=clone(set_field:5->reg1)",
        "table=4,actions=exit",
    ]);
    let to = |s: &mut Switch, port| -> Vec<u32> {
        send(s, 1, &udp("10.0.0.1", 1, "10.0.0.2", port)).packets.iter().map(|p| p.0.device().0).collect()
    };
    for _ in 0..3 {
        assert_eq!(to(&mut s, 2), [3, 2, 2], "the clone of table 3 sends too");
        assert_eq!(to(&mut s, 3), [] as [u32; 0]);
        assert_eq!(to(&mut s, 4), [] as [u32; 0]);
    }
}

/// Flows that are listed part by part are all of them, each once, of whatever number the parts are.
#[test]
fn flows_are_listed_part_by_part() {
    let flows: Vec<String> = (0..60)
        .map(|i| {
            format!("table={},priority={},ip,nw_dst=10.0.{i}.0/{} actions=output:2", i % 7 * 3, 5 + i % 2, 24 + i % 4)
        })
        .collect();
    let s = one(&flows.iter().map(String::as_str).collect::<Vec<_>>());
    let b = s.bridge(BridgeId(0)).expect("bridge");
    for (table, n) in [(TableId::ALL, 60), (TableId(3), 9), (TableId(1), 0), (TableId(18), 8)] {
        for most in [1, 2, 9, 59, 60, 61] {
            let (mut all, mut next) = (Vec::new(), Some((0, 0)));
            while let Some(from) = next {
                let (part, then) = b.rules_from(table, from, most);
                assert!(part.len() <= most);
                all.extend(part);
                next = then;
            }
            let whole = b.rules(table);
            assert_eq!((all.len(), whole.len()), (n, n), "{table:?}, {most}");
            assert!(all.iter().zip(&whole).all(|(a, b)| std::sync::Arc::ptr_eq(a, b)), "{table:?}, {most}");
        }
    }
}

/// Numbers of flows that use groups and meters follow from the flows, however these come and go; flows go with what they use.
#[test]
fn flows_go_with_their_groups_and_meters() {
    let mut s = one(&[]);
    let id = BridgeId(0);
    let apply = |s: &mut Switch, m: Message| s.apply(id, &m, NOW).expect("applies");
    let group = |n: u32| GroupMod {
        command: GroupModCommand::Add,
        command_bucket_id: 0,
        group: parse_group(&format!("group_id={n},type=all,bucket=output:2")).expect("group"),
    };
    let meter = |n: u32| MeterMod {
        command: MeterModCommand::Add,
        meter: parse_meter(&format!("meter={n},pktps,bands=type=drop rate=9")).expect("meter"),
    };
    (1..=3).for_each(|n| apply(&mut s, Message::GroupMod(group(n))));
    (1..=3).for_each(|n| apply(&mut s, Message::MeterMod(meter(n))));
    let flow = |t: &str| Message::FlowMod(parse_flow(t).expect("flow"));
    let flows = [
        "table=0,priority=1 actions=group:1",
        "table=1,priority=2 actions=group:1,clone(group:2),group:1",
        "table=2,send_flow_rem,priority=3 actions=meter:1,write_actions(group:2)",
        "table=3,send_flow_rem,priority=4 actions=meter:2,group:3",
        "table=4,priority=5 actions=meter:2,output:2",
        "table=5,priority=6 actions=output:2",
    ];
    flows.iter().for_each(|f| apply(&mut s, flow(f)));
    let counts = |s: &Switch| {
        let b = s.bridge(id).expect("bridge");
        (
            [1, 2, 3].map(|g| b.flows_of_group(GroupId(g))),
            [1, 2, 3].map(|m| b.flows_of_meter(MeterId(m))),
            b.flows().count(),
        )
    };
    assert_eq!(counts(&s), ([2, 2, 1], [1, 2, 0], 6));
    // A flow in the place of another one, other actions, a bundle, and packets sent in it.
    apply(&mut s, flow("table=0,priority=1 actions=group:2"));
    assert_eq!(counts(&s), ([1, 3, 1], [1, 2, 0], 6));
    let modify = |t: &str, command| Message::FlowMod(FlowMod { command, ..parse_flow(t).expect("flow") });
    apply(&mut s, modify("table=0 actions=meter:3,group:1", FlowModCommand::Modify));
    assert_eq!(counts(&s), ([2, 2, 1], [1, 2, 1], 6));
    let list = [flow("table=6 actions=group:3"), modify("table=4 actions=drop", FlowModCommand::Delete)];
    s.apply_bundle(id, &list, NOW).expect("bundle");
    assert_eq!(counts(&s), ([2, 2, 2], [1, 1, 1], 6));
    s.apply_bundle(id, &[flow("table=7 actions=group:1"), flow("table=99 actions=group:9")], NOW)
        .expect_err("no group 9");
    assert_eq!(counts(&s), ([2, 2, 2], [1, 1, 1], 6));
    // They go with what they use.
    let delete = |n| GroupMod { command: GroupModCommand::Delete, ..group(n) };
    apply(&mut s, Message::GroupMod(delete(1)));
    assert_eq!(counts(&s), ([0, 1, 2], [1, 1, 0], 4));
    let delete = |n| MeterMod { command: MeterModCommand::Delete, ..meter(n) };
    apply(&mut s, Message::MeterMod(delete(2)));
    assert_eq!(counts(&s), ([0, 1, 1], [1, 0, 0], 3), "as in Open vSwitch");
    let mut all = delete(1);
    all.meter.id = MeterId::ALL;
    apply(&mut s, Message::MeterMod(all));
    assert_eq!(counts(&s), ([0, 0, 1], [0, 0, 0], 2));
    let mut out = Outputs::<Vec<u8>>::default();
    s.tick(NOW, &mut out);
    let reasons: Vec<u8> = out
        .events
        .iter()
        .filter_map(|e| if let switch::Event::FlowRemoved { removed, .. } = e { Some(removed.reason) } else { None })
        .collect();
    assert_eq!(reasons, [4, 4]);
    let mut all = GroupMod { command: GroupModCommand::Delete, ..group(1) };
    all.group.id = GroupId::ALL;
    apply(&mut s, Message::GroupMod(all));
    assert_eq!(counts(&s), ([0, 0, 0], [0, 0, 0], 1));
}
