//! Inputs to begin with: a few of each kind, and more out of the golden data where it is there.

use openflow_rs::message::Message;
use serde_json::{Value, json};

/// A schema with every kind of column.
pub fn schema() -> Value {
    json!({"name": "D", "version": "1.0.0", "tables": {
        "Root": {"isRoot": true, "indexes": [["name"]], "maxRows": 6, "columns": {
            "name": {"type": "integer"}, "text": {"type": {"key": {"type": "string", "maxLength": 5}}},
            "real": {"type": {"key": {"type": "real", "minReal": -1.5, "maxReal": 9e9}, "min": 0}},
            "word": {"type": {"key": {"type": "string", "enum": ["set", ["a", "b"]]}, "min": 0, "max": 2}},
            "kids": {"type": {"key": {"type": "uuid", "refTable": "Kid"}, "min": 0, "max": "unlimited"}},
            "map": {"type": {"key": "integer", "value": {"type": "uuid", "refTable": "Kid"}, "min": 0, "max": 3}},
            "pals": {"type": {"key": {"type": "uuid", "refTable": "Kid", "refType": "weak"}, "min": 0, "max": 9}},
            "ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
            "eph": {"type": "boolean", "ephemeral": true}, "fixed": {"type": "integer", "mutable": false}}},
        "Kid": {"columns": {"k": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 9}}},
            "sub": {"type": {"key": {"type": "uuid", "refTable": "Kid"}, "min": 0, "max": 2}}}}}})
}

const KID: &str = "00000000-0000-4000-8000-000000000001";

fn operations() -> Vec<Value> {
    vec![
        json!({"op": "insert", "table": "Kid", "uuid-name": "k", "uuid": KID, "row": {"k": 3}}),
        json!({"op": "insert", "table": "Root", "row": {"name": 1, "text": "x", "real": 2.5, "word": ["set", ["a", "b"]],
            "kids": ["set", [["named-uuid", "k"]]], "map": ["map", [[1, ["uuid", KID]]]], "pals": ["uuid", KID],
            "ids": ["map", [["a", "b"], ["c", "d"]]], "eph": true, "fixed": 7}}),
        json!({"op": "select", "table": "Root", "where": [["name", "==", 1], ["ids", "includes", ["map", [["a", "b"]]]]],
            "columns": ["name", "_uuid"]}),
        json!({"op": "update", "table": "Root", "where": [["real", "<", 3]], "row": {"text": "y"}}),
        json!({"op": "mutate", "table": "Root", "where": [["word", "excludes", "c"]], "mutations": [["name", "*=", 3],
            ["ids", "delete", ["set", ["a"]]], ["ids", "insert", ["map", [["z", "z"]]]], ["name", "%=", 2]]}),
        json!({"op": "wait", "table": "Root", "timeout": 0, "where": [], "columns": ["name"], "until": "==",
            "rows": [{"name": 1}]}),
        json!({"op": "delete", "table": "Kid", "where": [["_uuid", "==", ["uuid", KID]]]}),
        json!({"op": "comment", "comment": "c"}),
        json!({"op": "commit", "durable": true}),
        json!({"op": "assert", "lock": "l"}),
        json!({"op": "abort"}),
    ]
}

/// Requests.
pub fn ovsdb_json() -> Vec<Vec<u8>> {
    let all = operations();
    let request = |ops: &[Value]| {
        let mut params = vec![json!("D")];
        params.extend_from_slice(ops);
        json!({"id": 0, "method": "transact", "params": params}).to_string()
    };
    let mut out: Vec<String> = all.iter().map(|o| request(std::slice::from_ref(o))).collect();
    out.push(request(&all[..2]));
    out.push(request(&all[..5]));
    out.push(request(&all[..2]) + &request(&all[3..5]) + &request(&all[6..7]));
    out.into_iter().map(String::into_bytes).collect()
}

/// Schemas.
pub fn ovsdb_schema() -> Vec<Vec<u8>> {
    vec![schema().to_string().into_bytes()]
}

/// Files, with their checksums left out: [`with_checksums`] puts them in.
pub fn ovsdb_file() -> Vec<Vec<u8>> {
    let row = json!({"name": 1, "ids": ["map", [["a", "b"]]], "kids": ["uuid", KID]});
    let first = json!({"Root": {"00000000-0000-4000-8000-000000000002": row}, "Kid": {KID: {"k": 1}}, "_date": 1});
    let second = json!({"Root": {"00000000-0000-4000-8000-000000000002": {"ids": ["map", [["a", "c"]]], "name": 4}},
        "_is_diff": true, "_comment": "x"});
    let third = json!({"Root": {"00000000-0000-4000-8000-000000000002": null}, "Kid": {KID: null}});
    vec![[schema(), first, second, third].map(|v| v.to_string()).join("\n").into_bytes()]
}

/// A file whose records are the lines of `input`.
pub fn with_checksums(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in input.split(|b| *b == b'\n') {
        match serde_json::from_slice(line) {
            Ok(v) => out.extend(ovsdb_rs::file::write_record(&v)),
            // No record at all is an input too.
            Err(_) => out.extend_from_slice(line),
        }
    }
    out
}

fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|s| s.as_bytes().to_vec()).collect()
}

/// Some lines of golden files.
fn golden_lines(suffix: &str) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for archive in golden::archives().into_iter().step_by(25) {
        let Ok(case) = golden::read(&archive) else { continue };
        for (_, bytes) in case.snapshots.iter().flatten().filter(|(n, _)| n.ends_with(suffix)) {
            let text = String::from_utf8_lossy(bytes);
            out.extend(text.lines().step_by(17).map(|s| s.as_bytes().to_vec()));
            if out.len() > 600 {
                return out;
            }
        }
    }
    out
}

/// A column of the recorded southbound databases' logical flows.
fn logical_flows(column: &str) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for archive in golden::archives().into_iter().step_by(25) {
        let Ok(case) = golden::read(&archive) else { continue };
        for (_, bytes) in case.snapshots.iter().flatten().filter(|(n, _)| *n == "sb.db") {
            let Ok(content) = ovsdb_rs::file::parse(bytes) else { continue };
            let (Some(schema), Some(rows)) =
                (content.schema.tables.get("Logical_Flow"), content.tables.get("Logical_Flow"))
            else {
                continue;
            };
            let value = |r: &ovsdb_rs::Row| Some(r.get(schema, column)?.scalar()?.as_str()?.as_bytes().to_vec());
            out.extend(rows.values().step_by(29).filter_map(value));
        }
        if out.len() > 600 {
            break;
        }
    }
    out
}

/// Matches of logical flows.
pub fn expressions() -> Vec<Vec<u8>> {
    let mut out = texts(&[
        "1",
        "ip4.src == 10.0.0.0/24 && tcp.dst == {80, 443, 1000/0xff00}",
        "!(inport == \"a\" || eth.dst[40]) && ip6.dst == fe80::1/ffff::",
        "0 < ip.ttl <= 5 && ct_mark.blocked == 1 && ip4.src == $set && inport == @group",
    ]);
    out.extend(logical_flows("match"));
    out
}

/// Actions of logical flows.
pub fn actions() -> Vec<Vec<u8>> {
    let mut out = texts(&[
        "next;",
        "reg0[0..3] = 7; ct_commit { ct_mark.blocked = 1; }; ct_lb_mark(backends=10.0.0.1:80,10.0.0.2:80);",
        "arp { eth.dst = ff:ff:ff:ff:ff:ff; output; }; put_dhcp_opts(offerip = 10.0.0.2, router = 10.0.0.1);",
    ]);
    out.extend(logical_flows("actions"));
    out
}

/// Flows as text.
pub fn flow_text() -> Vec<Vec<u8>> {
    let mut out = texts(&[
        "table=0,priority=100,in_port=1,ip,nw_src=10.0.0.0/8 actions=ct(table=1,zone=NXM_NX_REG0[0..15],nat(src=1.2.3.4))",
        "group_id=1,type=select,selection_method=dp_hash,bucket=bucket_id:0,weight:100,actions=output:1",
        "meter=1 pktps burst bands= type=drop rate=100 burst_size=10",
        "learn(table=2,hard_timeout=10,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0x1->NXM_NX_REG1[],output:NXM_OF_IN_PORT[])",
        "table=1,packet_type=(1,0x894f),nsh_mdtype=1,nsh_c1=0x7/0xf actions=dec_nsh_ttl,decap(),move:NXOXM_NSH_C1[]->NXM_NX_REG1[]",
        "table=1,ip actions=encap(nsh(md_type=2,tlv(0x1000,10,0x123456))),encap(ethernet),decap(packet_type(ns=1,type=0x800))",
    ]);
    out.extend(golden_lines(".flows"));
    out
}

/// OpenFlow messages: those that text can be turned into.
pub fn openflow() -> Vec<Vec<u8>> {
    let mut out = vec![vec![6, 0, 0, 8, 0, 0, 0, 1], vec![6, 5, 0, 8, 0, 0, 0, 2], vec![4, 2, 0, 9, 0, 0, 0, 3, 7]];
    for text in flow_text().into_iter().take(200) {
        let Ok(flow) = openflow_rs::text::parse_flow(&String::from_utf8_lossy(&text)) else { continue };
        out.push(Message::FlowMod(flow).encode(openflow_rs::Version::Of15, 1));
    }
    out
}

/// Packets.
pub fn packets() -> Vec<Vec<u8>> {
    use packet::build;
    let (a, b) = (packet::Mac([2, 0, 0, 0, 0, 1]), packet::Mac([2, 0, 0, 0, 0, 2]));
    let (x, y) = ("10.0.0.1".parse(), "10.0.0.2".parse());
    let (Ok(x), Ok(y)) = (x, y) else { return Vec::new() };
    let (ll, other) = (a.link_local(), b.link_local());
    let mut geneve = Vec::new();
    packet::tunnel::Geneve::put(&mut geneve, packet::Vni::of_low_bits(7), false, &[(0x102, 0x80, vec![0, 1, 0, 2])]);
    vec![
        build::arp_request(a, x, y),
        build::arp_reply(a, x, b, y),
        build::nd_ns(a, ll, other),
        build::nd_na(a, ll, b, other, 0x60),
        geneve,
        vec![0x0c, 0, 0, 3, 0, 0, 7, 0],
        vec![0x88, 0x48, 1, 2, 0, 0, 7, 0],
        packet::srv6::header(&[1, 2], 0x800).unwrap_or_default(),
        packet::nsh::Nsh { md_type: 1, ..Default::default() }.with(&[]).unwrap_or_default(),
        vec![0; 64],
    ]
}

/// BFD control packets (RFC 5880 section 4.1).
pub fn bfd() -> Vec<Vec<u8>> {
    let plain = [0x20, 0xc0, 3, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0x27, 0x10, 0, 0, 0x27, 0x10, 0, 0, 0, 0];
    let mut secret = plain.to_vec();
    secret[1] |= 4;
    secret[3] += 9;
    secret.extend([1, 9, 1, b's', b'e', b'c', b'r', b'e', b't']);
    vec![plain.to_vec(), secret]
}

/// The datapath that packets to the controller are on.
pub const DATAPATH: u8 = 5;

/// A southbound database with names for DNS.
pub fn southbound() -> controller::input::model::Input {
    use ovn_schema::{Map, Set, Uuid, sb};
    let mut db = sb::Database::default();
    let dp = Uuid::from_u128(1);
    let row = sb::DatapathBinding { tunnel_key: DATAPATH.into(), ..Default::default() };
    db.datapath_binding.insert(dp, row.into());
    let records = [("vm1.ovn.org", "10.0.0.4 aef0::4"), ("4.0.0.10.in-addr.arpa", "vm1.ovn.org"), ("a", "1.2.3.4")];
    let records: Map<_, _> = records.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    db.dns.insert(Uuid::from_u128(2), sb::Dns { datapaths: Set::from([dp]), records, ..Default::default() }.into());
    controller::input::model::Input::new(db, controller::input::model::Local::default())
}

/// What the fuzzer takes for a packet to the controller.
fn to_controller(opcode: u8, data: &[u8], frame: Option<Vec<u8>>) -> Vec<u8> {
    let mut out = vec![opcode, data.len() as u8];
    out.extend_from_slice(data);
    out.extend(frame.unwrap_or_default());
    out
}

/// Where the result goes: a field and a bit.
fn result_bit() -> Vec<u8> {
    let mut d = controller::encode::of::field_header(openflow_rs::FieldId::XxReg0).to_vec();
    d.extend(99u32.to_be_bytes());
    d
}

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn udp(src: (&str, u16), dst: (&str, u16), payload: &[u8]) -> Option<Vec<u8>> {
    let end = |(ip, port): (&str, u16)| Some((ip.parse().ok()?, port));
    packet::build::udp(packet::Mac([0x33; 6]), packet::Mac(HOST), end(src)?, end(dst)?, 64, payload)
}

/// DHCP (RFC 2131): each kind of message, with the options that a port's configuration puts into the flow.
pub fn dhcp() -> Vec<Vec<u8>> {
    let mut data = result_bit();
    data.extend([10, 0, 0, 4]);
    data.extend([
        51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 1, 54, 4, 10, 0, 0, 1, 67, 2, b'x', b'y',
    ]);
    let message = |kind: u8, more: &[u8]| {
        let mut m = vec![0u8; 236];
        (m[0], m[1], m[2]) = (1, 1, 6);
        m.extend([99, 130, 83, 99, 53, 1, kind]);
        m.extend(more);
        m.push(255);
        let frame = udp(("0.0.0.0", 68), ("255.255.255.255", 67), &m);
        to_controller(controller::encode::opcode::PUT_DHCP_OPTS, &data, frame)
    };
    let asks: [&[u8]; 4] = [&[], &[50, 4, 10, 0, 0, 4], &[54, 4, 10, 0, 0, 1, 50, 4, 10, 0, 0, 5], &[82, 3, 1, 1, 7]];
    (1..9).flat_map(|kind| asks.iter().map(move |a| (kind, *a))).map(|(k, a)| message(k, a)).collect()
}

/// DHCPv6 (RFC 8415).
pub fn dhcpv6() -> Vec<Vec<u8>> {
    let mut data = result_bit();
    data.extend([0, 5, 0, 16, 0xae, 0xf0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    data.extend([0, 2, 0, 6, 0, 0, 0, 0x10, 0, 1]);
    let client: &[u8] = &[0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 9];
    let association: &[u8] = &[0, 3, 0, 12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    let message = |kind: u8, options: &[&[u8]]| {
        let body = [&[kind, 1, 2, 3], &options.concat()[..]].concat();
        let frame = udp(("fe80::9", 546), ("ff02::1:2", 547), &body);
        to_controller(controller::encode::opcode::PUT_DHCPV6_OPTS, &data, frame)
    };
    (1..14).flat_map(|k| [message(k, &[client, association]), message(k, &[association]), message(k, &[])]).collect()
}

/// DNS (RFC 1035).
pub fn dns() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for name in ["vm1.ovn.org", "VM1.OVN.org", "4.0.0.10.in-addr.arpa", "a", "unknown.example", ""] {
        for kind in [1u16, 28, 12, 255, 15] {
            let mut m = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            for l in name.split('.').filter(|l| !l.is_empty()) {
                m.push(l.len() as u8);
                m.extend(l.bytes());
            }
            m.push(0);
            m.extend(kind.to_be_bytes());
            m.extend([0, 1]);
            let opcode = controller::encode::opcode::DNS_LOOKUP;
            out.push(to_controller(opcode, &result_bit(), udp(("10.0.0.9", 4000), ("8.8.8.8", 53), &m)));
            // EDNS (RFC 6891) comes as one more record.
            m[11] = 1;
            m.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
            out.push(to_controller(opcode, &result_bit(), udp(("fd00::9", 4000), ("fd00::53", 53), &m)));
        }
    }
    out
}

/// Whatever else flows send to the controller: each opcode with each kind of packet.
pub fn packet_ins() -> Vec<Vec<u8>> {
    let mut data = result_bit();
    data.extend([134, 0, 0, 0, 255, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut frames = packets();
    let tcp = [0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let solicitation = [133, 0, 0, 0, 0, 0, 0, 0];
    for (src, dst, proto, payload) in [
        ("10.0.0.9", "10.0.0.1", 6, &tcp[..]),
        ("fd00::9", "fd00::1", 6, &tcp),
        ("10.0.0.9", "10.0.0.1", 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
        ("10.0.0.9", "10.0.0.1", 132, &tcp),
        ("fe80::9", "ff02::2", 58, &solicitation),
    ] {
        let (Ok(src), Ok(dst)) = (src.parse(), dst.parse()) else { continue };
        frames.extend(packet::build::ip_packet(
            packet::Mac([0x33; 6]),
            packet::Mac(HOST),
            src,
            dst,
            proto,
            64,
            payload,
        ));
    }
    frames.extend(udp(("10.0.0.9", 4000), ("10.0.0.1", 99), b"data"));
    (0..32)
        .flat_map(|o| frames.iter().map(move |f| (o, f)))
        .map(|(o, f)| to_controller(o, &data, Some(f.clone())))
        .collect()
}

/// Devices as DPDK names them (`options:dpdk-devargs`).
pub fn devargs() -> Vec<Vec<u8>> {
    texts(&[
        "0000:03:00.0",
        "03:00.0,representor=[3],dv_flow_en=1",
        "0000:03:00.1,representor=c1pf[0]vf[12-12]",
        "0000:03:00.0,representor=pf0sf88",
        "0000:03:00.0,representor=[0-3,7],representor=vf1",
        "net_tap0,iface=t,mac=fixed",
        "class=eth,mac=00:53:00:00:00:01",
    ])
}

pub fn lacp() -> Vec<Vec<u8>> {
    use packet::lacp::{Info, compose};
    let one = |n: u8| Info {
        sys_priority: 7,
        sys_id: packet::Mac([2, 0, 0, 0, 0, n]),
        key: 1,
        port_priority: 9,
        port_id: 1,
        state: n,
    };
    vec![compose(one(0x3d), one(0x05)), compose(one(0xc7), Info::default())]
}

pub fn bpdu() -> Vec<Vec<u8>> {
    use packet::bpdu::{Bpdu, Config, Rapid, Role, compose};
    let config = Config { change: true, root: 1 << 63, cost: 19, port: 0x8001, ..Config::default() };
    let rapid = Rapid { config, role: Role::Root, proposal: false, learning: true, forwarding: true, agreement: true };
    [Bpdu::Config(config), Bpdu::Notification, Bpdu::Rapid(rapid)]
        .iter()
        .map(|b| compose(packet::Mac([2; 6]), b))
        .collect()
}

pub fn ccm() -> Vec<Vec<u8>> {
    use packet::ccm::{ADDRESS, ASSOCIATION, Ccm, compose};
    let association = ASSOCIATION;
    let m = Ccm {
        defect: true,
        interval: 0,
        sequence: 1,
        point: 1,
        association,
        interval_ms: 300,
        long_point: 2,
        down: true,
    };
    [None, Some(7)].map(|tag| compose(ADDRESS, packet::Mac([2; 6]), tag, &m)).to_vec()
}

pub fn lldp() -> Vec<Vec<u8>> {
    use packet::VlanId;
    use packet::lldp::{Assignment, BRIDGE, Element, Id, Lldpdu, VIRTUAL_SWITCH, compose};
    let unit = Lldpdu {
        chassis: Id::chassis(packet::Mac([2; 6])),
        port: Id::interface("eth1"),
        ttl: 120,
        system_name: "gw1".into(),
        capabilities: Some((BRIDGE, BRIDGE)),
        element: Some(Element { kind: VIRTUAL_SWITCH, state: 0, vlan: VlanId::NONE, system: [1; 10] }),
        assignments: vec![Assignment { status: 2, vlan: VlanId::of_tci(7), isid: 70 }],
        ..Lldpdu::default()
    };
    vec![compose(packet::Mac([2; 6]), &unit)]
}

pub fn ha_records() -> Vec<Vec<u8>> {
    use gateway_ha::sync::{Connection, Record, State, VERSION};
    let v4 = Connection { zone: 7, proto: 6, translates: 1, ..Connection::default() };
    let v6 = Connection { v6: true, proto: 17, was_receivers: true, ..v4 };
    let all = [
        Record::Hello(VERSION, 1, "gw2".into()),
        Record::Zone(7, "lr_snat".into()),
        Record::Begin,
        Record::Put(1, v4),
        Record::Put(2, v6),
        Record::End(2),
        Record::State(1, State { mark: 1, ..State::default() }),
        Record::Close(2),
        Record::Fence(3),
    ];
    let encoded = |r: &Record| {
        let mut bytes = Vec::new();
        r.encode(&mut bytes);
        bytes
    };
    let mut seeds: Vec<Vec<u8>> = all.iter().map(encoded).collect();
    seeds.push(seeds.concat());
    seeds
}
