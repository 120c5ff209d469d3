//! `encap`, `decap`, NSH and packet types: text and bytes.

use openflow_rs::text::{flow_to_string, parse_actions, parse_flow, parse_match};
use openflow_rs::wire::{decode_actions, encode_actions};
use openflow_rs::{FieldId, FlowKey, Message, OfError, Version};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes are those of Open vSwitch (its tests/ofp-actions.at).
#[test]
fn actions_have_the_bytes_of_open_vswitch() {
    let cases = [
        ("encap(nsh(md_type=1))", "ffff001800002320002e00000001894f0004010501000000"),
        ("encap(mpls)", "ffff001000002320002e000000018847"),
        ("encap(mpls_mc)", "ffff001000002320002e000000018848"),
        ("encap(ethernet)", "ffff001000002320002e000000000000"),
        (
            "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678)))",
            "ffff002800002320002e00000001894f00040105020000000004021010000a041234567800000000",
        ),
        ("decap()", "ffff001000002320002f00000000fffe"),
        ("decap(packet_type(ns=1,type=0x8847))", "ffff001000002320002f000000018847"),
        ("dec_nsh_ttl", "ffff001000002320003000000000"),
    ];
    for (text, bytes) in cases {
        let actions = parse_actions(text).expect("parses");
        assert_eq!(actions.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        for v in [Version::Of13, Version::Of14, Version::Of15] {
            let mut out = Vec::new();
            encode_actions(&mut out, &actions, v);
            assert!(hex(&out).starts_with(bytes), "{text}: {}", hex(&out));
            assert_eq!(decode_actions(&out, v).expect("decodes"), actions, "{text}");
        }
    }
}

#[test]
fn other_headers_and_properties_have_errors_of_their_own() {
    let cases = [
        ("ffff001000002320002e000000010800", OfError::ActionBadHeaderType),
        ("ffff001800002320002e00000001894f0004030501000000", OfError::ActionUnknownHeaderProperty),
        ("ffff001800002320002e00000001894f0003010501000000", OfError::ActionUnknownHeaderProperty),
        ("ffff001800002320002e0000000188470004010501000000", OfError::ActionUnknownHeaderProperty),
        ("ffff001800002320002e00000001894f0004010201000000", OfError::ActionBadHeaderProperty),
        ("ffff001800002320002e00000001894f0004010503000000", OfError::ActionBadHeaderProperty),
        ("ffff001800002320002e00000001894f0004020810000a04", OfError::ActionBadHeaderProperty),
        ("ffff001800002320002f00000000fffe0000000000000000", OfError::ActionUnknownHeaderProperty),
    ];
    for (bytes, error) in cases {
        let bytes: Vec<u8> = bytes
            .as_bytes()
            .chunks(2)
            .map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("digits"), 16).expect("digits"))
            .collect();
        let e = decode_actions(&bytes, Version::Of13).expect_err("is refused");
        assert!(error.is(&e), "{}: {e}", hex(&bytes));
    }
    for bad in [
        "encap(",
        "encap(x)",
        "encap(nsh(type=1))",
        "encap(nsh(md_type=3))",
        "encap(nsh(tlv(,,)))",
        "encap(mpls(md_type=1))",
        "decap(packet_type(ns=1))",
        "decap(foo=bar)",
    ] {
        assert!(parse_actions(bad).is_err(), "{bad}");
    }
}

#[test]
fn flows_survive_text_and_wire() {
    let flows = [
        " in_port=4,dl_type=0x894f,nsh_mdtype=1,nsh_spi=0x1234,nsh_c1=0x11223344 actions=decap(),decap(),output:2",
        " dl_type=0x894f,nsh_flags=2,nsh_ttl=63,nsh_mdtype=1,nsh_np=3,nsh_spi=0x0,nsh_si=255,nsh_c3=0x7700/0xff00 actions=drop",
        " priority=3,packet_type=(1,0x800),nw_dst=10.11.12.13 actions=encap(ethernet),output:1",
        " packet_type=(1,0x86dd),nw_proto=6,ipv6_dst=1234:5678::/32 actions=drop",
        " packet_type=(1,0x806),arp_tpa=10.11.12.13 actions=drop",
        " packet_type=(1,0x8847),mpls_label=5 actions=decap(packet_type(ns=0,type=0)),output:1",
        " packet_type=(1,0x894f) actions=dec_nsh_ttl,set_field:0x11223344->nsh_c1,set_field:254->nsh_si,output:1",
    ];
    for text in flows {
        let f = parse_flow(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        for v in [Version::Of10, Version::Of13, Version::Of14, Version::Of15] {
            let bytes = Message::FlowMod(f.clone()).encode(v, 7);
            let (_, Message::FlowMod(g)) = Message::decode(&bytes).expect("decodes") else { panic!("{text}") };
            assert_eq!(g.matches, f.matches, "{text} over {v:?}");
            if v == Version::Of15 {
                assert_eq!(
                    flow_to_string(&g)
                        .replace("nw_proto=6,ipv6_dst=1234:5678::/32", "ipv6_dst=1234:5678::/32,nw_proto=6"),
                    flow_to_string(&f)
                );
            }
        }
        assert_eq!(parse_flow(&flow_to_string(&f)).expect("parses again").matches, f.matches, "{text}");
    }
}

/// Moves, pushes and pops name fields of experimenters by headers of 64 bits.
#[test]
fn fields_of_experimenters_are_moved_pushed_and_loaded() {
    for text in [
        "move:NXOXM_NSH_C1[]->NXM_NX_REG0[]",
        "move:NXM_NX_REG0[0..7]->NXOXM_NSH_SI[]",
        "push:NXOXM_NSH_SPI[],pop:NXM_NX_REG1[0..23]",
        "output:NXOXM_NSH_C2[0..15]",
        "move:NXOXM_ET_REG16[]->NXOXM_ET_REG31[]",
        "move:NXOXM_ET_XXREG4[0..63]->OXM_OF_PKT_REG15[]",
        "push:NXOXM_ET_REG17[20..31],pop:NXOXM_ET_REG18[0..11]",
        "output:NXOXM_ET_REG20[0..15]",
        "set_field:0x1/0x3->reg16,set_field:0x7->xxreg5",
        "set_field:2->tun_erspan_ver,set_field:1->tun_erspan_dir,set_field:0x3f->tun_erspan_hwid",
        "move:NXOXM_ET_ERSPAN_IDX[]->NXM_NX_REG0[0..19],set_field:0xfffff->tun_erspan_idx",
    ] {
        let actions = parse_actions(text).expect("parses");
        for v in [Version::Of10, Version::Of13, Version::Of15] {
            let mut out = Vec::new();
            encode_actions(&mut out, &actions, v);
            assert_eq!(decode_actions(&out, v).expect("decodes"), actions, "{text} over {v:?}");
        }
    }
    for text in [
        " reg16=0x1,reg31=0x2/0xff actions=drop",
        " reg20=0xffffffff,reg21=0x5 actions=drop",
        " tun_erspan_ver=1,tun_erspan_idx=0x7/0xff,in_port=3 actions=drop",
        " gtpu_flags=0x30/0xf0,gtpu_msgtype=255,in_port=1 actions=drop",
        " tun_id=0x2,tun_erspan_ver=2,tun_erspan_dir=1,tun_erspan_hwid=0x1/0x1 actions=drop",
    ] {
        let f = parse_flow(text).expect("parses");
        for v in [Version::Of10, Version::Of12, Version::Of13, Version::Of14, Version::Of15] {
            let bytes = Message::FlowMod(f.clone()).encode(v, 7);
            let (_, Message::FlowMod(g)) = Message::decode(&bytes).expect("decodes") else { panic!("{text}") };
            // Before OpenFlow 1.3 each flow-mod resets counters.
            assert_eq!(flow_to_string(&g).replace("reset_counts ", ""), text, "{v:?}");
        }
    }
    // Registers are parts of longer ones.
    let mut key = FlowKey::new();
    key.set(FieldId::XxReg7, 0x1_00000002_00000003_00000004);
    assert_eq!([FieldId::Reg28, FieldId::Reg29, FieldId::Reg30, FieldId::Reg31].map(|f| key.get(f)), [1, 2, 3, 4]);
    assert_eq!((key.get(FieldId::XReg14), key.get(FieldId::XReg15)), (0x1_00000002, 0x3_00000004));
    let load = parse_actions("load:0x77->NXOXM_NSH_C3[8..15]").expect("parses");
    for v in [Version::Of10, Version::Of13, Version::Of15] {
        let mut out = Vec::new();
        encode_actions(&mut out, &load, v);
        let back: Vec<String> = decode_actions(&out, v).expect("decodes").iter().map(ToString::to_string).collect();
        assert_eq!(back, ["set_field:0x7700/0xff00->nsh_c3"], "{v:?}");
    }
}

/// ovs-fields(7), `packet_type`: what matches a packet's headers, without a type, is of packets with Ethernet.
#[test]
fn a_match_of_headers_wants_an_ethernet_header() {
    let of = |s: &str| parse_match(s).expect("a match");
    assert_eq!(of("packet_type=(0,0),ip"), of("ip"));
    assert_ne!(of("packet_type=(0,0)"), of(""));
    let mut key = FlowKey::new();
    key.set(FieldId::EthType, 0x800);
    key.set(FieldId::PacketType, 0x1_0800);
    for (m, fits) in [
        ("", true),
        ("ip", false),
        ("reg0=0", true),
        ("packet_type=(0,0)", false),
        ("packet_type=(1,0x800)", true),
        ("packet_type=(1,0x86dd)", false),
        ("packet_type=(1,0x800),tun_erspan_ver=0", true),
        ("packet_type=(1,0x800),gtpu_flags=0", true),
    ] {
        assert_eq!(of(m).matches(&key), fits, "{m}");
    }
    let (ip, routed) = (of("ip"), of("packet_type=(1,0x800)"));
    assert!(!routed.is_within(&ip) && !ip.is_within(&routed) && routed.is_within(&of("")) && !routed.overlaps(&ip));
    assert!(of("packet_type=(1,0x800),nw_dst=10.0.0.1").is_within(&routed));
    for bad in ["packet_type=1,0x800", "packet_type=(1)", "packet_type=(x,2)"] {
        assert!(parse_match(bad).is_err(), "{bad}");
    }
}
