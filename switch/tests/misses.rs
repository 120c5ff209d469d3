//! Packets that no flow of a table matches: where they go, whatever is cached.

use openflow_rs::action::PacketInReason;
use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo, TableId};
use packet::build;
use std::net::IpAddr;
use std::time::Duration;
use switch::{BridgeId, DeviceId, Event, Outputs, Port, PortKind, Switch, TableMiss};

const NOW: Duration = Duration::from_secs(10);

/// Ports 1 to 4; packets of port 2 go on in table 5 by `goto_table`, those of port 3 by `resubmit`.
fn switch() -> Switch {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    for i in 1..=4 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    let flows =
        ["in_port=2 actions=goto_table:5", "in_port=3 actions=resubmit(,5)", "table=7,in_port=1 actions=output:4"];
    for f in flows {
        s.apply(b, &Message::FlowMod(parse_flow(f).expect("flow")), NOW).expect("applies");
    }
    s
}

/// What becomes of a packet that a port receives.
#[derive(Debug, PartialEq)]
enum Fate {
    Dropped,
    Sent,
    /// To controllers, from this table.
    Told(u8),
}

/// What becomes of a packet of each of the ports 1 to 3, sent twice so that the second would be served from the cache.
fn fates(s: &mut Switch) -> [Fate; 3] {
    let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let p = build::udp(packet::Mac([2; 6]), packet::Mac([4; 6]), (from, 7), (to, 8), 64, b"hello").expect("udp");
    [1, 2, 3].map(|device| {
        let [first, second] = [0, 1].map(|_| {
            let mut out = Outputs::default();
            s.process(&mut vec![(DeviceId(device), p.clone())], NOW, &mut out);
            match (&out.packets[..], &out.events[..]) {
                ([], []) => Fate::Dropped,
                ([(to, _)], []) if to.device() == DeviceId(4) => Fate::Sent,
                ([], [Event::PacketIn { packet_in, miss: switch::Miss::NoFlow, controller: 0, .. }]) => {
                    assert_eq!((packet_in.reason, packet_in.cookie), (PacketInReason::NoMatch, 0));
                    Fate::Told(packet_in.table.0)
                }
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(first, second);
        first
    })
}

#[test]
fn they_go_where_controllers_and_tables_say() {
    use Fate::{Dropped, Sent, Told};
    let mut s = switch();
    let drops = s.drops.get(switch::DropReason::TableMiss);
    assert_eq!(fates(&mut s), [Dropped, Dropped, Dropped]);
    assert_eq!(s.drops.get(switch::DropReason::TableMiss), drops + 6);
    s.with_tables(BridgeId(0), |b| b.set_misses_wanted(true));
    assert_eq!(fates(&mut s), [Told(0), Told(5), Dropped], "but behind a resubmit");
    s.set_inputs(BridgeId(0), PortNo(1), |p| p.config = Port::NO_PACKET_IN);
    assert_eq!(fates(&mut s), [Dropped, Told(5), Dropped]);
    s.set_inputs(BridgeId(0), PortNo(1), |p| p.config = 0);
    s.with_tables(BridgeId(0), |b| b.set_table_miss(TableId(5), TableMiss::Drop));
    assert_eq!(fates(&mut s), [Told(0), Dropped, Dropped]);
    s.with_tables(BridgeId(0), |b| b.set_misses_wanted(false));
    assert_eq!(fates(&mut s), [Dropped, Dropped, Dropped]);
    s.with_tables(BridgeId(0), |b| b.set_table_miss(TableId::ALL, TableMiss::Continue));
    assert_eq!(fates(&mut s), [Sent, Told(253), Dropped], "in table 7; and behind the last table");
    s.with_tables(BridgeId(0), |b| b.set_table_miss(TableId(6), TableMiss::Controller));
    assert_eq!(fates(&mut s), [Told(6), Told(6), Dropped]);
    assert_eq!(s.bridge(BridgeId(0)).expect("bridge").table_miss(TableId(6)), TableMiss::Controller);
}
