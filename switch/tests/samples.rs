//! Packets of which nothing leaves but samples: whether they count as dropped.

use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::build;
use std::net::IpAddr;
use std::time::Duration;
use switch::{DeviceId, DropReason, Outputs, Port, PortKind, Switch};

const NOW: Duration = Duration::from_secs(10);

/// Of packets of port 1 there are samples only, by `clone` of port 2, behind a connection of port 3, and all of port 4 leave
/// as well. Port 5 drops. Samples of port 6 are for collectors that are not there, those of port 7 are followed by an
/// output to a port that is not.
fn switch() -> Switch {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    for i in 1..=8 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    s.bridge_mut(b).expect("bridge").collectors = vec![1];
    let sample = "sample(probability=65535,collector_set_id=1)";
    let flows = [
        format!("in_port=1 actions={sample}"),
        format!("in_port=2 actions=clone({sample}),load:1->NXM_NX_REG0[]"),
        "in_port=3,udp actions=ct(commit,table=1)".into(),
        format!("table=1,in_port=3,udp actions={sample}"),
        format!("in_port=4 actions={sample},output:8"),
        "in_port=5 actions=drop".into(),
        "in_port=6 actions=sample(probability=65535,collector_set_id=2)".into(),
        format!("in_port=7 actions={sample},output:99"),
    ];
    for f in flows {
        s.apply(b, &Message::FlowMod(parse_flow(&f).expect("flow")), NOW).expect("applies");
    }
    s
}

/// What ten packets of a port count as: samples alone, dropped by flows, for want of a port.
fn counted(s: &mut Switch, device: u32) -> [u64; 3] {
    let reasons = [DropReason::Sampled, DropReason::Action, DropReason::NoSuchPort];
    let before = reasons.map(|r| s.drops.get(r));
    let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let p = build::udp(packet::Mac([2; 6]), packet::Mac([4; 6]), (from, 7), (to, 8), 64, b"hello").expect("udp");
    for _ in 0..10 {
        s.process(&mut vec![(DeviceId(device), p.clone())], NOW, &mut Outputs::default());
    }
    s.tick(NOW, &mut Outputs::<Vec<u8>>::default());
    let after = reasons.map(|r| s.drops.get(r));
    [0, 1, 2].map(|i| after[i] - before[i])
}

/// The actions of the cached flows of a port, as they are told.
fn told(s: &mut Switch, device: u32) -> Vec<String> {
    let shown: Vec<_> = s.cached_flows().filter(|f| f.device == DeviceId(device)).collect();
    let parts: Vec<_> = shown.iter().flat_map(|f| s.sections(f)).collect();
    parts.iter().map(|f| s.tell_actions(f)).collect()
}

#[test]
fn samples_alone_are_drops_where_an_operator_says_so() {
    let userspace = "userspace(pid=0,flow_sample(probability=65535,collector_set_id=1,obs_domain_id=0,obs_point_id=0,";
    for cached in [false, true] {
        let mut s = switch();
        s.set_cache(cached);
        for on in [false, true, false] {
            s.set_sampled_drops(on);
            let only = if on { [0, 10, 0] } else { [10, 0, 0] };
            let want = [only, only, only, [0; 3], [0, 10, 0], [0, 10, 0], [0, 0, 10]];
            for (device, want) in (1..).zip(want) {
                assert_eq!(counted(&mut s, device), want, "port {device}, cached {cached}, explicit {on}");
            }
            let Some(last) = told(&mut s, 1).pop().filter(|_| cached) else { continue };
            assert!(last.starts_with(userspace), "{last}");
            assert_eq!(last.ends_with("),drop"), on, "{last}");
            let behind = told(&mut s, 3).pop().expect("a section behind the connection");
            assert!(behind.starts_with(userspace) && behind.ends_with("),drop") == on, "{behind}");
            assert_eq!(told(&mut s, 5), ["drop"]);
            let left = told(&mut s, 4).pop().expect("a flow");
            assert!(left.ends_with(",8"), "{left}");
        }
    }
}
