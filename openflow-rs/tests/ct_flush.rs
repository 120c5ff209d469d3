//! NXT_CT_FLUSH, as Open vSwitch's `ovs-ofctl ct-flush` sends it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use openflow_rs::Version;
use openflow_rs::connection::OUR_VERSIONS;
use openflow_rs::message::{CtFlush, CtTuple, Message};
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// What `ovs-ofctl ct-flush SOCKET ARGS` sends: the message, and its bytes.
async fn sent(args: &[&str]) -> (Message, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("switch");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut child = Command::new("ovs-ofctl")
        .args(["-O", "OpenFlow15", "ct-flush", &format!("unix:{}", socket.display())])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&Message::Hello(Some(OUR_VERSIONS)).encode(Version::Of15, 1)).await.unwrap();
    let mut flush = None;
    loop {
        let mut raw = vec![0; 8];
        stream.read_exact(&mut raw).await.unwrap();
        raw.resize(usize::from(u16::from_be_bytes([raw[2], raw[3]])), 0);
        stream.read_exact(&mut raw[8..]).await.unwrap();
        match Message::decode(&raw).unwrap() {
            (_, Message::Hello(_)) => {}
            (h, Message::BarrierRequest) => {
                stream.write_all(&Message::BarrierReply.encode(Version::Of15, h.xid)).await.unwrap();
                break;
            }
            (_, m) => flush = Some((m, raw)),
        }
    }
    assert!(child.wait().unwrap().success());
    flush.unwrap()
}

fn cases() -> Vec<(&'static [&'static str], CtFlush)> {
    let tuple = |src: Option<&str>, dst: Option<&str>, src_port, dst_port| CtTuple {
        src: src.map(|a| a.parse().unwrap()),
        dst: dst.map(|a| a.parse().unwrap()),
        src_port,
        dst_port,
        ..Default::default()
    };
    vec![
        (&[], CtFlush::default()),
        (&["zone=5"], CtFlush { zone: Some(5), ..Default::default() }),
        (
            &["zone=7", "ct_nw_src=10.1.1.1,ct_nw_dst=10.1.1.2,ct_nw_proto=17,ct_tp_src=1,ct_tp_dst=2"],
            CtFlush {
                proto: 17,
                zone: Some(7),
                original: tuple(Some("10.1.1.1"), Some("10.1.1.2"), Some(1), Some(2)),
                ..Default::default()
            },
        ),
        (
            &["ct_ipv6_src=fc00::1,ct_nw_proto=6,ct_tp_src=1", "ct_ipv6_dst=fc00::2,ct_nw_proto=6,ct_tp_dst=65535"],
            CtFlush {
                proto: 6,
                original: tuple(Some("fc00::1"), None, Some(1), None),
                reply: tuple(None, Some("fc00::2"), None, Some(65535)),
                ..Default::default()
            },
        ),
        (
            &["", "ct_nw_dst=10.1.1.9"],
            CtFlush { reply: tuple(None, Some("10.1.1.9"), None, None), ..Default::default() },
        ),
        (
            &["ct_nw_src=10.1.1.1,ct_nw_dst=10.1.1.2,ct_nw_proto=1,icmp_type=8,icmp_code=0,icmp_id=10"],
            CtFlush {
                proto: 1,
                original: CtTuple {
                    icmp_id: Some(10),
                    icmp_type: Some(8),
                    icmp_code: Some(0),
                    ..tuple(Some("10.1.1.1"), Some("10.1.1.2"), None, None)
                },
                ..Default::default()
            },
        ),
    ]
}

#[test]
fn ovs_ofctl_s_messages_are_read_and_ours_are_the_same() {
    if !needs::installed(&["ovs-ofctl"]) {
        return;
    }
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (args, want) in cases() {
        let (message, raw) = rt.block_on(sent(args));
        assert_eq!(message, Message::CtFlush(want.clone()), "{args:?}: {raw:02x?}");
        let xid = u32::from_be_bytes(raw[4..8].try_into().unwrap());
        let ours = message.encode(Version::Of15, xid);
        // For ICMP, ovs-ofctl adds a reply direction of zeros.
        let theirs = if want.proto == 1 { &raw[..ours.len()] } else { &raw[..] };
        assert_eq!(ours[4..], theirs[4..], "{args:?}");
        assert_eq!(ours.len(), usize::from(u16::from_be_bytes([ours[2], ours[3]])));
    }
}

/// What newer versions add, in the bytes that their header file describes: mark and label, with masks or without.
#[test]
fn marks_and_labels_are_as_newer_versions_lay_them_out() {
    let header = |len: u8| {
        let mut v = vec![6, 4, 0, 24 + len, 0, 0, 0, 1, 0, 0, 0x23, 0x20, 0, 0, 0, 32];
        v.extend([0; 8]);
        v
    };
    let mut plain = header(8 + 24);
    plain.extend([0, 3, 0, 8, 0, 0, 0, 5]);
    plain.extend([0, 5, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
    let mut masked = header(16);
    masked.extend([0, 3, 0, 8, 0, 0, 0, 5, 0, 4, 0, 8, 0, 0, 0, 7]);
    let unknown = {
        let mut v = header(8);
        v.extend([0, 9, 0, 8, 0, 0, 0, 0]);
        v
    };
    let flush = |mark, label| Message::CtFlush(CtFlush { mark, label, ..Default::default() });
    for (bytes, want) in
        [(plain, flush(Some((5, u32::MAX)), Some((9, u128::MAX)))), (masked, flush(Some((5, 7)), None))]
    {
        assert_eq!(Message::decode(&bytes).unwrap().1, want);
        assert_eq!(want.encode(Version::Of15, 1), bytes);
    }
    // OFPBPC_BAD_TYPE
    let e = Message::decode(&unknown).unwrap_err();
    assert_eq!(e.numbers(), (14, 0));
}
