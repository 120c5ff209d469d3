//! Packets that go to controllers: why, with how much of them, and how they come back.

use crate::rig::{A, NOW, one, send, udp, via};
use openflow_rs::*;
use packet::build;
use switch::{Event, Outputs};

#[test]
fn pause_and_resume() {
    let mut s = one(&[
        "table=0 actions=set_field:0x9->reg3,push:NXM_NX_REG3[],resubmit(,1),output:3",
        "table=1 actions=controller(userdata=00.01.02,pause),pop:NXM_NX_REG4[],resubmit(,2)",
        "table=2,reg3=0x9,reg4=0x9 actions=output:2",
    ]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let mut out = send(&mut s, 1, &p);
    assert!(out.packets.is_empty());
    let Some(Event::PacketIn { packet_in, .. }) = out.events.pop() else { panic!("{:?}", out.events) };
    assert_eq!((packet_in.userdata.as_slice(), packet_in.table), (&[0u8, 1, 2][..], TableId(0)));
    let bytes = Message::Resume(*packet_in).encode(Version::Of15, 1);
    let Ok((_, Message::Resume(back))) = Message::decode(&bytes) else { panic!("resume") };
    let mut out = Outputs::default();
    s.resume(&back, &Vec::new(), NOW, &mut out).expect("resumes");
    assert_eq!(out.packets.iter().map(|o| o.0).collect::<Vec<_>>(), [2, 3].map(via));
    assert!(s.resume::<Vec<u8>>(&Default::default(), &Vec::new(), NOW, &mut out).is_err());
}

/// Where a clone pauses its packet for a controller, the actions behind the clone are not carried out, as in Open
/// vSwitch.
#[test]
fn a_pause_within_a_clone_ends_what_is_behind_it() {
    let mut s = one(&[
        "table=0 actions=clone(controller(pause),output:2),output:3",
        "table=0,priority=40000,in_port=2 actions=clone(output:1),output:3",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    assert_eq!((out.packets.len(), out.events.len()), (0, 1), "{:?}", out.events);
    let out = send(&mut s, 2, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    assert_eq!(out.packets.iter().map(|o| o.0).collect::<Vec<_>>(), [1, 3].map(via));
}

/// A packet-in of a table-miss flow (priority 0, matches all) has the reason "no match", and the whole packet.
#[test]
fn misses_say_so() {
    let mut s = one(&["priority=1,arp actions=CONTROLLER:20", "priority=0 actions=CONTROLLER:20"]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let arp = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    for (q, reason) in [(p, action::PacketInReason::NoMatch), (arp, action::PacketInReason::Action)] {
        let out = send(&mut s, 1, &q);
        let [Event::PacketIn { packet_in, .. }] = &out.events[..] else { panic!("{:?}", out.events) };
        assert_eq!((packet_in.reason, &packet_in.packet), (reason, &q));
    }
}
