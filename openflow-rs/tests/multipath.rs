//! `multipath`, options of tunnels that only have to be there, and requests that are told to others: text and bytes.

use openflow_rs::action::{Action, learned_flow};
use openflow_rs::message::AsyncConfig;
use openflow_rs::text::{parse_actions, parse_match};
use openflow_rs::wire::{decode_actions, encode_actions};
use openflow_rs::{FieldId, FlowKey, Match, Message, OfError, PortNo, TableId, Version};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    digits.chunks_exact(2).map(|b| b[0] << 4 | b[1]).collect()
}

/// The bytes are those of Open vSwitch (its tests/ofp-actions.at).
#[test]
fn multipath_has_the_bytes_of_open_vswitch() {
    let wire = bytes("ffff 0020 00002320 000a 0000 0032 0000 0000 0000 00000000 0000 001f 00010004");
    let text = "multipath(eth_src,50,modulo_n,1,0,NXM_NX_REG0[])";
    let actions = decode_actions(&wire, Version::Of10).expect("decodes");
    assert_eq!(actions.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    assert_eq!(parse_actions(text).expect("parses"), actions);
    let mut out = Vec::new();
    encode_actions(&mut out, &actions, Version::Of10);
    assert_eq!(out, wire);
    // An algorithm and fields that are not there; a field without room for the links.
    for (at, value) in [(17, 4), (11, 9), (18, 0xff)] {
        let mut wrong = wire.clone();
        wrong[at] = value;
        if at == 18 {
            // One bit of the register.
            wrong[27] = 0;
        }
        let e = decode_actions(&wrong, Version::Of10).expect_err("is refused");
        assert!(OfError::ActionBadArgument.is(&e), "{at}: {e}");
    }
    for wrong in ["multipath(eth_src,50,modulo_n,0,0,reg0)", "multipath(eth_src,50,modulo,1,0,reg0)", "multipath(1)"] {
        assert!(parse_actions(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn options_are_matched_by_presence() {
    let m = parse_match("tun_metadata0,tun_metadata1=0x7").expect("parses");
    assert_eq!(m.to_string(), "tun_metadata0,tun_metadata1=0x7");
    assert_eq!((m.presence(FieldId::TunMetadata0), m.presence(FieldId::TunMetadata2)), (Some(true), None));
    let mut wire = Vec::new();
    openflow_rs::wire::oxm::put_match(&mut wire, &m);
    assert_eq!(openflow_rs::wire::oxm::decode_fields(&wire, false).expect("decodes"), m);
    let mut absent = Match::new();
    absent.set_presence(FieldId::TunMetadata3, false);
    assert_eq!(absent.to_string(), "tun_metadata3=NP");
    assert!(parse_match("tun_id").is_err(), "other fields have values");
}

/// The bytes of the requests are those of Open vSwitch's tests (ofproto.at, "requestforward").
#[test]
fn requests_of_others_are_told_to_those_that_want_them() {
    let body = bytes("0000000800000005 0002000800000002 000400080000001a 000a000800000003");
    let config = AsyncConfig::initial(Version::Of10).changed_by(&body, Version::Of14).expect("decodes");
    assert_eq!((config.request_forward.secondary, config.request_forward.primary), (3, 0));
    let twice = AsyncConfig::initial(Version::Of14).changed_by(&config.body(Version::Of14), Version::Of14);
    assert_eq!(twice.expect("decodes").request_forward, config.request_forward);
    let group = bytes("050f0020 00000002 0000000000000001 00100000 ffffffffffffffff 00000000");
    let (_, inner) = Message::decode(&group).expect("a group");
    let forward = Message::RequestForward(Box::new(inner));
    for (v, head) in
        [(Version::Of14, "0520"), (Version::Of15, "0620"), (Version::Of13, "0404"), (Version::Of10, "0104")]
    {
        let wire = forward.encode(v, 0);
        assert_eq!(wire[..2], bytes(head)[..], "{v:?}");
        let at = if v >= Version::Of14 { 8 } else { 16 };
        assert_eq!((wire[at], wire.len() - at), (v as u8, usize::from(wire[at + 2]) << 8 | usize::from(wire[at + 3])));
    }
    let experimenter = |v| forward.encode(v, 0)[8..16].to_vec();
    assert_eq!(experimenter(Version::Of13), bytes("4f4e4600 0000092e"));
    assert_eq!(experimenter(Version::Of10), bytes("00002320 00000084"));
}

/// The bytes of the configuration are those of Open vSwitch's tests (ofproto.at, "asynchronous message control (OpenFlow
/// 1.4)"); those of the events are of OpenFlow 1.4 sections 7.3.5.17 and 7.4.5.
#[test]
fn tables_tell_of_their_room() {
    use openflow_rs::message::{TableMod, TableStatus};
    let body = bytes(
        "0000000800000005 0001000800000002 0002000800000002 0003000800000005 000400080000001c 0005000800000005 0008000800000018",
    );
    let config = AsyncConfig::initial(Version::Of14).changed_by(&body, Version::Of14).expect("decodes");
    assert_eq!((config.table_status.secondary, config.table_status.primary), (0x18, 0));
    let twice = AsyncConfig::initial(Version::Of14).changed_by(&config.body(Version::Of14), Version::Of14);
    assert_eq!(twice.expect("decodes"), config);
    let change = TableMod { table: TableId(1), config: 8, vacancy: Some([20, 80]) };
    let wire = Message::TableMod(change).encode(Version::Of14, 7);
    assert_eq!(wire, bytes("05110018 00000007 01000000 00000008 0003000814500000"));
    assert_eq!(Message::decode(&wire).expect("decodes").1, Message::TableMod(change));
    let older = Message::TableMod(change).encode(Version::Of13, 7);
    let plain = TableMod { vacancy: None, ..change };
    assert_eq!(Message::decode(&older).expect("decodes").1, Message::TableMod(plain));
    for wrong in ["0003000850140000", "0003000814650000", "0003000600000000", "0009000814500000"] {
        let wire = bytes(&format!("05110018 00000007 01000000 00000008 {wrong}"));
        assert!(Message::decode(&wire).is_err(), "{wrong}");
    }
    let status = TableStatus { reason: 3, desc: bytes("0018010000000008 0002000800000007 0003000814500a00") };
    let wire = Message::TableStatus(status.clone()).encode(Version::Of14, 0);
    assert_eq!((wire[..2].to_vec(), wire.len()), (bytes("051f"), 40));
    assert_eq!(Message::decode(&wire).expect("decodes").1, Message::TableStatus(status));
}

/// A message of another version than was agreed on is refused, and the connection goes on; hellos and echoes may be of any.
#[tokio::test]
async fn messages_keep_to_the_version_that_was_agreed_on() {
    use openflow_rs::OfError;
    use openflow_rs::connection::negotiate;
    let (a, b) = tokio::net::UnixStream::pair().expect("a pair");
    let (one, other) = tokio::join!(negotiate(a, 1 << 1), negotiate(b, 1 << 1 | 1 << 2));
    let ((mut tx, _kept), (_tx, mut rx)) = (one.expect("agrees"), other.expect("agrees"));
    for (m, v) in [
        (Message::FeaturesRequest, Version::Of11),
        (Message::EchoRequest(vec![1]), Version::Of11),
        (Message::BarrierRequest, Version::Of10),
    ] {
        tx.raw(&m.encode(v, 9)).await.expect("sends");
    }
    let first = rx.recv().await.expect("arrives").message.expect_err("another version");
    assert_eq!(first.error, OfError::RequestBadVersion);
    assert_eq!(rx.recv().await.expect("arrives").message, Ok(Message::EchoRequest(vec![1])));
    assert_eq!(rx.recv().await.expect("arrives").message, Ok(Message::BarrierRequest));
}

/// A port's number has 32 bits from OpenFlow 1.1 on (OXM_OF_IN_PORT): a learned flow may send to it all the same. The bytes
/// are those that `ovs-ofctl` sends for the action of Open vSwitch's learn.at, "flapping learn rule".
#[test]
fn learned_flows_send_to_ports_of_32_bits() {
    let head = "ffff0038 00002320 0010 0000 0003 0001 0000000000000123 0000 00 00 0000 0000";
    let wire =
        |header: &str, bits: &str| bytes(&format!("{head} 0030 00000406 0000 00000206 0000 {bits} {header} 0000 0000"));
    let mut key = FlowKey::default();
    key.set(FieldId::InPort, 7);
    for (header, bits, name) in [("80000004", "1020", "OXM_OF_IN_PORT"), ("00000002", "1010", "NXM_OF_IN_PORT")] {
        let wire = wire(header, bits);
        let all = decode_actions(&wire, Version::Of13).expect("decodes");
        let mut out = Vec::new();
        encode_actions(&mut out, &all, Version::Of13);
        assert_eq!(out, wire);
        let [Action::Learn(l)] = &all[..] else { panic!("{all:?}") };
        assert!(all[0].to_string().ends_with(&format!(",output:{name}[])")), "{}", all[0]);
        assert_eq!(learned_flow(l, &key).1, [Action::output(PortNo(7))]);
    }
    assert!(decode_actions(&wire("00000002", "1020"), Version::Of13).is_err(), "of which there are no 32");
}
