//! Records on the wire, and the two ends of a stream.

use gateway_ha::sync::codec::Malformed;
use gateway_ha::sync::{
    Connection, Decoder, Effect, Incoming, Outgoing, ProtocolError, Record, Reply, State, Tuple, VERSION,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

fn tuple(v6: bool) -> impl Strategy<Value = Tuple> {
    let address = move || any::<u128>().prop_map(move |a| if v6 { a } else { a & 0xffff_ffff });
    (address(), address(), any::<u16>(), any::<u16>(), any::<u8>(), any::<u8>()).prop_map(
        |(src, dst, sport, dport, icmp_type, icmp_code)| Tuple { src, dst, sport, dport, icmp_type, icmp_code },
    )
}

fn state() -> impl Strategy<Value = State> {
    (any::<[u8; 2]>(), any::<u8>(), any::<bool>(), any::<u32>(), any::<u128>())
        .prop_map(|(ends, phase, replied, mark, label)| State { ends, phase, replied, mark, label })
}

fn connection() -> impl Strategy<Value = Connection> {
    any::<bool>().prop_flat_map(|v6| {
        (
            any::<[u16; 1]>(),
            any::<[u8; 2]>(),
            tuple(v6),
            tuple(v6),
            any::<[bool; 2]>(),
            any::<u32>(),
            any::<u64>(),
            state(),
        )
            .prop_map(
                move |([zone], [proto, translates], original, reply, [was_receivers, orphan], idle, left, state)| {
                    Connection {
                        zone,
                        v6,
                        proto,
                        original,
                        reply,
                        translates,
                        was_receivers,
                        orphan,
                        idle,
                        left,
                        state,
                    }
                },
            )
    })
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (any::<u16>(), any::<u64>(), "[a-z-]{0,40}").prop_map(|(v, b, n)| Record::Hello(v, b, n)),
        (any::<u16>(), "[a-z-]{0,40}").prop_map(|(v, n)| Record::Welcome(v, n)),
        (any::<u16>(), "[a-zäö_-]{0,40}").prop_map(|(v, n)| Record::Zone(v, n)),
        Just(Record::Begin),
        (any::<u32>(), connection()).prop_map(|(s, c)| Record::Put(s, c)),
        (any::<u32>(), state()).prop_map(|(s, c)| Record::State(s, c)),
        any::<u32>().prop_map(Record::Close),
        any::<u64>().prop_map(Record::Fence),
        any::<u32>().prop_map(Record::End),
        Just(Record::Again),
        any::<u32>().prop_map(Record::Want),
        any::<u32>().prop_map(Record::GaveWay),
        (any::<u32>(), any::<Vec<u8>>()).prop_map(|(idle, flow)| Record::Learn(idle, flow)),
    ]
}

fn decoded(d: &mut Decoder) -> Result<Vec<Record>, Malformed> {
    std::iter::from_fn(|| d.record().transpose()).collect()
}

proptest! {
    /// However the stream is cut into frames, the records come out as they went in; later versions may add kinds, and
    /// fields at the end.
    #[test]
    fn records_come_out_as_they_went_in(
        records in proptest::collection::vec((record(), 0u8..3), 0..20),
        cuts in proptest::collection::vec(1usize..50, 1..20),
    ) {
        let mut bytes = Vec::new();
        for (r, later) in &records {
            let start = bytes.len();
            r.encode(&mut bytes);
            // Only names and flows have no length of their own.
            let named = matches!(r, Record::Hello(..) | Record::Welcome(..) | Record::Zone(..) | Record::Learn(..));
            if *later == 1 && !named {
                bytes.extend([1, 2, 3]);
                let length = (bytes.len() - start - 3) as u16;
                bytes[start + 1..start + 3].copy_from_slice(&length.to_le_bytes());
            }
            if *later == 2 {
                bytes.extend([200, 2, 0, 9, 9]);
            }
        }
        let (mut d, mut found, mut at) = (Decoder::default(), Vec::new(), 0);
        for n in cuts.iter().cycle() {
            let end = (at + n).min(bytes.len());
            d.push(&bytes[at..end]);
            found.extend(decoded(&mut d).expect("records"));
            at = end;
            if at == bytes.len() {
                break;
            }
        }
        prop_assert_eq!(found, records.into_iter().map(|(r, _)| r).collect::<Vec<_>>());
    }

    /// Rubbish is an error or waits for more, and never a panic; a stream of it does no more than end.
    #[test]
    fn rubbish_is_no_record(bytes in proptest::collection::vec(any::<u8>(), 0..300), small in any::<bool>()) {
        let mut d = Decoder::default();
        // Most random lengths are far beyond the end: small ones reach the fields.
        let bytes: Vec<u8> = if small { bytes.iter().map(|b| b % 12).collect() } else { bytes };
        d.push(&bytes);
        let mut i = Incoming::new("gw1", None, HashMap::new());
        if let Ok(all) = decoded(&mut d) {
            for r in all {
                if i.take(r).is_err() {
                    break;
                }
            }
        }
    }
}

/// Version 1 on the wire: a release must read what an older one wrote.
#[test]
fn version_1_stays_what_it_is() {
    let tuple = |n: u128| Tuple { src: n, dst: n + 1, sport: 1000, dport: 80, icmp_type: 0, icmp_code: 0 };
    let state = State { ends: [2, 2], phase: 2, replied: true, mark: 1, label: 2 };
    let c = Connection {
        zone: 7,
        v6: false,
        proto: 6,
        original: tuple(0x0a00_0001),
        reply: tuple(0xc000_020a),
        translates: 1,
        was_receivers: true,
        orphan: false,
        idle: 5,
        left: 6,
        state,
    };
    let all = [Record::Hello(1, 2, "gw".into()), Record::Put(3, c), Record::State(3, state), Record::Fence(9)];
    let mut bytes = Vec::new();
    all.iter().for_each(|r| r.encode(&mut bytes));
    let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let wanted = "010c00010002000000000000006777\
                  054800030000000700060601\
                  0100000a0200000ae80350000000\
                  0a0200c00b0200c0e80350000000\
                  050000000202020100000002000000000000000000000000000000\
                  0600000000000000\
                  061c0003000000010202020100000002000000000000000000000000000000\
                  0808000900000000000000";
    assert_eq!(text, wanted);
}

fn greeted(zones: &[(&str, u16)]) -> Incoming {
    let zones = zones.iter().map(|(n, z)| ((*n).to_owned(), *z)).collect();
    let mut i = Incoming::new("gw1", Some("gw2"), zones);
    let hello = i.take(Record::Hello(VERSION, 7, "gw2".into()));
    assert_eq!(hello, Ok(Effect::Answer(Record::Welcome(VERSION, "gw1".into()))));
    assert_eq!((i.peer(), i.boot()), (Some("gw2"), 7));
    i
}

/// Zones are the same by name; connections of a zone that this chassis does not have are left out until it has it.
#[test]
fn zones_are_known_by_name() {
    let mut i = greeted(&[("lr_snat", 4)]);
    for (n, name) in [(9, "lr_snat"), (10, "lr_dnat")] {
        assert_eq!(i.take(Record::Zone(n, name.into())), Ok(Effect::Nothing));
    }
    let of = |zone| Connection { zone, ..Default::default() };
    assert_eq!(i.take(Record::Begin), Ok(Effect::Begin));
    assert_eq!(i.take(Record::Put(1, of(9))), Ok(Effect::Put(1, of(4))));
    assert_eq!(i.take(Record::End(1)), Ok(Effect::End(Some(1))));
    assert_eq!(i.take(Record::Put(2, of(10))), Ok(Effect::Close(2)), "what was there is gone");
    assert_eq!(i.take(Record::End(2)), Ok(Effect::End(None)), "one was left out: numbers do not compare");
    assert_eq!(i.missing().collect::<Vec<_>>(), ["lr_dnat"]);
    let zones = |all: &[(&str, u16)]| all.iter().map(|(n, z)| ((*n).to_owned(), *z)).collect::<HashMap<_, _>>();
    assert_eq!(i.set_zones(zones(&[("lr_snat", 4), ("other", 5)])), None);
    assert_eq!(i.set_zones(zones(&[("lr_snat", 4), ("lr_dnat", 6)])), Some(Record::Again));
    assert_eq!(i.missing().count(), 0);
    assert_eq!(i.take(Record::Put(2, of(10))), Ok(Effect::Put(2, of(6))));
    assert_eq!(i.set_zones(zones(&[("lr_snat", 8), ("lr_dnat", 6)])), Some(Record::Again), "another number");
    assert_eq!(i.take(Record::Put(1, of(11))), Err(ProtocolError::UnknownZone(11)));
}

/// What is no sender, or another chassis than its certificate's, is refused.
#[test]
fn senders_say_who_they_are() {
    let mut i = Incoming::new("gw1", Some("gw2"), HashMap::new());
    assert_eq!(i.take(Record::Begin), Err(ProtocolError::NoHello));
    let other = ProtocolError::OtherName("gw3".into(), "gw2".into());
    assert_eq!(i.take(Record::Hello(1, 7, "gw3".into())), Err(other));
    assert!(greeted(&[]).take(Record::Hello(1, 7, "gw2".into())).is_err());
    assert_eq!(greeted(&[]).take(Record::Again), Err(ProtocolError::WrongWay("AGAIN")));
    assert_eq!(greeted(&[]).take(Record::Want(1)), Err(ProtocolError::WrongWay("WANT")));
}

/// A sender starts when it is welcome, and measures how far behind the peer is.
#[test]
fn senders_wait_for_a_welcome() {
    let mut o = Outgoing::new("gw1", 5, "gw2");
    assert_eq!(o.hello(), Record::Hello(VERSION, 5, "gw1".into()));
    let at = Duration::from_millis;
    assert_eq!(o.take(&Record::Welcome(9, "gw3".into()), at(1)), Reply::Wrong);
    assert_eq!(o.take(&Record::Welcome(9, "gw2".into()), at(1)), Reply::Start, "a later version is welcome");
    for n in 1..=3 {
        o.fence(n, at(n * 10));
    }
    assert_eq!((o.take(&Record::Fence(2), at(25)), o.lag, o.fences()), (Reply::Fenced(2), Some(at(5)), 1));
    assert_eq!((o.lag_at(at(31)), o.lag_at(at(130))), (Some(at(5)), Some(at(100))), "the third is overdue");
    assert_eq!((o.lags.count(), o.lags.within(1.0) > at(15)), (2, true));
    assert_eq!((o.take(&Record::Again, at(26)), o.again), (Reply::Again, 1));
    assert_eq!(o.take(&Record::Want(7), at(27)), Reply::Want(7));
}
