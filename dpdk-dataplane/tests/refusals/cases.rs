type Case = (String, u8, Vec<u8>);

/// Nothing of a message of that length but zeros.
fn zeros(n: usize) -> Vec<u8> {
    vec![0; n]
}

/// The messages of a version.
fn cases(version: u8) -> Vec<Case> {
    let mut list: Vec<(&str, u8, Vec<u8>)> = common_cases(version);
    match version {
        OF10 => list.extend(of10()),
        OF13 => list.extend(of13()),
        OF14 => list.extend(of14()),
        _ => list.extend(of15()),
    }
    let mut v: Vec<Case> = list.iter().map(|(n, k, b)| (n.to_string(), *k, b.clone())).collect();
    // Each a little shorter and longer.
    for (name, kind, body) in list.iter().filter(|(_, kind, _)| !matches!(kind, 6 | 10..=12)) {
        for cut in [1usize, 4, 8] {
            if let Some(n) = body.len().checked_sub(cut) {
                v.push((format!("{name}, {cut} bytes less"), *kind, body[..n].to_vec()));
            }
            v.push((format!("{name}, {cut} bytes more"), *kind, [&body[..], &zeros(cut)].concat()));
        }
    }
    v
}

/// Those of all versions.
fn common_cases(version: u8) -> Vec<(&'static str, u8, Vec<u8>)> {
    let mut v = vec![
        ("an unknown type", 99, zeros(0)),
        ("the last type but one", 35, zeros(8)),
        ("a features reply", 6, zeros(24)),
        ("a packet-in", 10, zeros(26)),
        ("a flow removed", 11, zeros(80)),
        ("features", 5, zeros(0)),
        ("the configuration", 7, zeros(0)),
        ("set configuration", 9, hex("0000 0080")),
        ("set configuration, unknown flags", 9, hex("00f0 0080")),
        ("set configuration, reserved fragments", 9, hex("0002 0080")),
        ("set configuration, normal again", 9, hex("0000 0080")),
        ("an unknown experimenter", 4, hex("00abcdef 00000001")),
        ("Nicira, unknown", 4, hex("00002320 00009999")),
        ("Nicira, another unknown", 4, hex("00002320 000000ff 00000000")),
        ("ONF, unknown", 4, hex("4f4e4600 00009999")),
        ("packet-in format 9", 4, hex("00002320 00000010 00000009")),
        ("controller id", 4, hex("00002320 00000014 000000000000 0005")),
        ("flow format 9", 4, hex("00002320 0000000c 00000009")),
        ("flow-mod table id", 4, hex("00002320 0000000f 00 00000000000000")),
        ("TLV table request", 4, hex("00002320 00000019")),
        ("TLV map: unknown command", 4, hex("00002320 00000018 0009 000000000000 0102 80 04 0000 0000")),
        ("TLV map: an odd length", 4, hex("00002320 00000018 0000 000000000000 0102 80 05 0001 0000")),
        ("TLV map: too long", 4, hex("00002320 00000018 0000 000000000000 0102 80 80 0001 0000")),
        ("TLV map: no such field", 4, hex("00002320 00000018 0000 000000000000 0102 80 04 0040 0000")),
        ("TLV map: far beyond", 4, hex("00002320 00000018 0000 000000000000 0102 80 04 ffff 0000")),
        ("TLV map", 4, hex("00002320 00000018 0000 000000000000 0102 80 04 0000 0000")),
        ("TLV map: the field is taken", 4, hex("00002320 00000018 0000 000000000000 0103 80 04 0000 0000")),
        ("TLV map: the option is taken", 4, hex("00002320 00000018 0000 000000000000 0102 80 04 0001 0000")),
        ("TLV map: one field twice", 4, hex("00002320 00000018 0000 000000000000 0104 80 04 0002 0000 0105 80 04 0002 0000")),
        ("TLV map: one option twice", 4, hex("00002320 00000018 0000 000000000000 0104 80 04 0002 0000 0104 80 04 0003 0000")),
        ("TLV map: no length", 4, hex("00002320 00000018 0000 000000000000 0106 80 00 0004 0000")),
        ("TLV map: delete what is not there", 4, hex("00002320 00000018 0001 000000000000 0109 80 04 0005 0000")),
        ("TLV map: delete it", 4, hex("00002320 00000018 0001 000000000000 0102 80 04 0000 0000")),
        ("TLV map: clear", 4, hex("00002320 00000018 0002 000000000000")),
        ("flush a zone", 4, hex("00002320 0000001d 000000000000 0005")),
        ("resume nothing", 4, hex("00002320 0000001c")),
        ("resume rubbish", 4, hex("00002320 0000001c 0063 0008 00000000")),
    ];
    if version >= OF13 {
        v.extend([
            ("role", 24, hex("00000000 00000000 0000000000000000")),
            ("no such role", 24, hex("00000009 00000000 0000000000000000")),
            ("a role of old", 24, hex("00000002 00000000 8000000000000000")),
            ("what is asked for asynchronously", 26, zeros(0)),
            ("a barrier with something in it", 20, zeros(8)),
            ("a table modification, table 254", 17, hex("fe000000 00000000")),
            ("a meter modification, unknown command", 29, hex("0009 0001 00000001 0001 000c 00000064 00000000 00000000")),
            ("a meter, unknown band", 29, hex("0000 0001 00000001 0009 0010 00000064 00000000 00000000")),
            ("a meter, unknown flags", 29, hex("0000 0081 00000001 0001 0010 00000064 00000000 00000000")),
            ("a meter, band too long", 29, hex("0000 0001 00000001 0001 0018 00000064 00000000 00000000")),
            ("a meter, band too short", 29, hex("0000 0001 00000001 0001 0008 00000064 00000000 00000000")),
            ("a meter that marks", 29, hex("0000 0001 00000001 0002 0010 00000064 00000000 01000000")),
            ("a meter", 29, hex("0000 0001 00000001 0001 0010 00000064 00000000 00000000")),
            ("the meter again", 29, hex("0000 0001 00000001 0001 0010 00000064 00000000 00000000")),
            ("no meter's modification", 29, hex("0001 0001 00000009 0001 0010 00000064 00000000 00000000")),
            ("meters go", 29, hex("0002 0001 ffffffff")),
            ("no meter's statistics", 18, hex("0009 0000 00000000 00000009 00000000")),
            ("no meter's configuration", 18, hex("000a 0000 00000000 00000009 00000000")),
            ("no port's statistics", 18, hex("0004 0000 00000000 00000999 00000000")),
            ("no group's statistics", 18, hex("0006 0000 00000000 00000999 00000000")),
            ("no port's queue", 18, hex("0005 0000 00000000 00000999 ffffffff")),
            ("no queue", 18, hex("0005 0000 00000000 00000001 00000077")),
            ("an unknown multipart type", 18, hex("0077 0000 00000000")),
            ("an experimenter's multipart", 18, hex("ffff 0000 00000000 00abcdef 00000001")),
            ("Nicira's multipart, unknown", 18, hex("ffff 0000 00000000 00002320 00000099")),
            ("a description", 18, hex("0000 0000 00000000")),
            ("a description, more to come", 18, hex("0000 0001 00000000")),
            ("a description, unknown flags", 18, hex("0000 0080 00000000")),
            ("tables", 18, hex("0003 0000 00000000")),
            ("group features", 18, hex("0008 0000 00000000")),
            ("meter features", 18, hex("000b 0000 00000000")),
            ("all flows", 18, flow_request("ff", "00000000")),
            ("flows of table 254", 18, flow_request("fe", "00000000")),
            ("flows, an unknown class", 18, flow_request_with("ff", "0001 000c 9999 0004 00000001 00000000")),
            ("flows, an unknown field", 18, flow_request_with("ff", "0001 000c 8000 fe04 00000001 00000000")),
            ("flows, no match type", 18, flow_request_with("ff", "0009 0004 00000000")),
            ("table features, rubbish", 18, hex("000c 0000 00000000 0008 00 00 00000000")),
        ]);
    }
    v
}

fn flow_request(table: &str, _: &str) -> Vec<u8> {
    flow_request_with(table, "0001 0004 00000000")
}

fn flow_request_with(table: &str, matches: &str) -> Vec<u8> {
    hex(&format!(
        "0001 0000 00000000 {table} 000000 ffffffff ffffffff 00000000 0000000000000000 0000000000000000 {matches}"
    ))
}

/// A flow modification of OpenFlow 1.3 and later.
fn flow(command: &str, table: &str, rest: &str) -> Vec<u8> {
    hex(&format!(
        "0000000000000000 0000000000000000 {table} {command} 0000 0000 0001 ffffffff ffffffff ffffffff 0000 0000 {rest}"
    ))
}

/// Without a match.
const ANY: &str = "0001 0004 00000000";

/// Those of 1.3 and later, about flows, groups and packets out.
fn changes() -> Vec<(&'static str, u8, Vec<u8>)> {
    let apply = |actions: &str| {
        let n = hex(actions).len() + 8;
        flow("00", "00", &format!("{ANY} 0004 {n:04x} 00000000 {actions}"))
    };
    let matching = |fields: &str| {
        let n = hex(fields).len() + 4;
        let pad = "00".repeat((8 - n % 8) % 8);
        flow("00", "00", &format!("0001 {n:04x} {fields} {pad}"))
    };
    let out = |rest: &str| hex(&format!("ffffffff {rest}"));
    vec![
        ("a flow, no such command", 14, flow("09", "00", ANY)),
        ("a flow, no such table", 14, flow("00", "ff", ANY)),
        ("a flow, the switch's table", 14, flow("00", "fe", ANY)),
        ("a flow", 14, flow("00", "00", ANY)),
        ("a flow, a standard match", 14, flow("00", "00", "0000 0004 00000000")),
        ("a flow, a match longer than the message", 14, flow("00", "00", "0001 0044 00000000")),
        ("a flow, a match of three bytes", 14, flow("00", "00", "0001 0003 00000000")),
        ("match: an unknown class", 14, matching("1234 0004 00000001")),
        ("match: an unknown field", 14, matching("8000 fe04 00000001")),
        ("match: a field too short", 14, matching("8000 0002 0001")),
        ("match: a field too long", 14, matching("8000 0008 0000000100000002")),
        ("match: a port under a mask", 14, matching("8000 0108 00000001 ffffff00")),
        ("match: a field twice", 14, matching("8000 0004 00000001 8000 0004 00000001")),
        ("match: an address without its type", 14, matching("8000 1604 0a000001")),
        ("match: an address of another type", 14, matching("8000 0a02 86dd 8000 1604 0a000001")),
        ("match: ports without a protocol", 14, matching("8000 0a02 0800 8000 1a02 0050")),
        ("match: bits that the mask has not", 14, matching("8000 0a02 0800 8000 1708 0a0000ff ffffff00")),
        ("match: a mask of ones", 14, matching("8000 0a02 0800 8000 1708 0a000001 ffffffff")),
        ("match: a mask of zeros", 14, matching("8000 0a02 0800 8000 1708 00000000 00000000")),
        ("match: a VLAN beyond", 14, matching("8000 0c02 2001")),
        ("match: a VLAN without its bit", 14, matching("8000 0c02 0005")),
        ("match: a VLAN's priority without a VLAN", 14, matching("8000 0e01 03")),
        ("match: a priority beyond", 14, matching("8000 0c02 1005 8000 0e01 09")),
        ("match: a TOS beyond", 14, matching("8000 0a02 0800 8000 1001 ff")),
        ("match: an operation of ARP beyond", 14, matching("8000 0a02 0806 8000 2a02 0100")),
        ("match: a tunnel's key", 14, matching("8000 4c08 0000000000000001")),
        ("match: a flow label beyond", 14, matching("8000 0a02 86dd 8000 3804 ffffffff")),
        ("match: an experimenter's field", 14, matching("ffff 0008 00abcdef 00000001")),
        ("match: conntrack's state beyond", 14, matching("0001 d304 00000100 ")),
        ("instruction: unknown", 14, flow("00", "00", &format!("{ANY} 0077 0008 00000000"))),
        ("instruction: an experimenter's", 14, flow("00", "00", &format!("{ANY} ffff 0008 00abcdef"))),
        ("instruction: no length", 14, flow("00", "00", &format!("{ANY} 0004 0000 00000000"))),
        ("instruction: longer than the message", 14, flow("00", "00", &format!("{ANY} 0004 0040 00000000"))),
        ("instruction: an odd length", 14, flow("00", "00", &format!("{ANY} 0004 000c 00000000 00000000"))),
        ("instruction: twice", 14, flow("00", "00", &format!("{ANY} 0004 0008 00000000 0004 0008 00000000"))),
        ("instruction: in another order", 14, flow("00", "00", &format!("{ANY} 0001 0008 05000000 0004 0008 00000000"))),
        ("instruction: to no table", 14, flow("00", "00", &format!("{ANY} 0001 0008 ff000000"))),
        ("instruction: to this table", 14, flow("00", "05", &format!("{ANY} 0001 0008 05000000"))),
        ("instruction: to a table, too long", 14, flow("00", "00", &format!("{ANY} 0001 0010 05000000 00000000 00000000"))),
        ("instruction: metadata", 14, flow("00", "00", &format!("{ANY} 0002 0018 00000000 0000000000000005 00000000000000ff"))),
        ("instruction: metadata beyond its mask", 14, flow("00", "00", &format!("{ANY} 0002 0018 00000000 0000000000000fff 00000000000000ff"))),
        ("instruction: a meter that is not there", 14, flow("00", "00", &format!("{ANY} 0006 0008 00000044"))),
        ("instruction: clear with actions", 14, flow("00", "00", &format!("{ANY} 0005 0018 00000000 0000 0010 00000001 ffff 000000000000"))),
        ("action: unknown", 14, apply("0077 0008 00000000")),
        ("action: an experimenter's", 14, apply("ffff 0010 00abcdef 0000000000000000")),
        ("action: Nicira's, unknown", 14, apply("ffff 0010 00002320 00ee 000000000000")),
        ("action: no length", 14, apply("0000 0000 00000001 ffff 000000000000")),
        ("action: too short", 14, apply("0000 0008 00000001")),
        ("action: too long", 14, apply("0000 0018 00000001 ffff 000000000000 0000000000000000")),
        ("action: longer than the instruction", 14, apply("0000 0040 00000001 ffff 000000000000")),
        ("action: output to nowhere", 14, apply("0000 0010 00000000 ffff 000000000000")),
        ("action: output to ANY", 14, apply("0000 0010 ffffffff ffff 000000000000")),
        ("action: output beyond", 14, apply("0000 0010 00010000 ffff 000000000000")),
        ("action: output to a reserved port", 14, apply("0000 0010 ffffff05 ffff 000000000000")),
        ("action: no group", 14, apply("0016 0008 00000999")),
        ("action: pop what is no VLAN", 14, apply("0012 0008 00000000")),
        ("action: push another type", 14, apply("0011 0008 08000000")),
        ("action: set a field that is read", 14, apply("0019 0010 8000 0a02 0800 000000000000")),
        ("action: set an unknown field", 14, apply("0019 0010 8000 fe04 00000001 00000000")),
        ("action: set a field, too short", 14, apply("0019 0010 8000 0604 00000001 00000000")),
        ("action: set a field, no zeros behind", 14, apply("0019 0010 8000 5804 00000001 00000001")),
        ("action: set an address of no packet", 14, apply("0019 0010 8000 1604 0a000001 00000000")),
        ("action: a priority of a VLAN", 14, apply("0019 0010 8000 0e01 09 00000000000000")),
        ("action: a queue", 14, apply("0015 0008 00000005")),
        ("action: resubmit to nowhere", 14, apply("ffff 0010 00002320 000e fff8 ff 000000")),
        ("a group, no such command", 15, hex("0009 00 00 00000001")),
        ("groups go", 15, hex("0002 00 00 fffffffc")),
        ("a packet out", 13, out("fffffffd 0010 000000000000 0000 0010 00000001 ffff 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet out, actions beyond", 13, out("fffffffd 0080 000000000000 0000 0010 00000001 ffff 000000000000 ffffffffffff")),
        ("a packet out, no group", 13, out("fffffffd 0008 000000000000 0016 0008 00000999 ffffffffffff 020000000001 88b5")),
        ("a packet out from nowhere", 13, out("00000000 0000 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet out from a reserved port", 13, out("ffffff05 0000 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet out from ANY", 13, out("ffffffff 0000 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet out from no port", 13, out("00000999 0000 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet that is buffered", 13, hex("00000005 fffffffd 0000 000000000000")),
    ]
}

fn of10() -> Vec<(&'static str, u8, Vec<u8>)> {
    let flow = |wild: &str, command: &str, actions: &str| {
        let m = format!("{wild} 0000 000000000000 000000000000 0000 00 00 0000 00 00 0000 00000000 00000000 0000 0000");
        hex(&format!("{m} 0000000000000000 {command} 0000 0000 0001 ffffffff ffff 0000 {actions}"))
    };
    vec![
        ("a flow", 14, flow("003fffff", "0000", "0000 0008 0001 0000")),
        ("a flow, no such command", 14, flow("003fffff", "0009", "")),
        ("a flow, output to nowhere", 14, flow("003fffff", "0000", "0000 0008 0000 0000")),
        ("a flow, output beyond", 14, flow("003fffff", "0000", "0000 0008 ff05 0000")),
        ("a flow, an unknown action", 14, flow("003fffff", "0000", "0077 0008 0000 0000")),
        ("a flow, a VLAN beyond", 14, flow("003fffff", "0000", "0001 0008 ffff 0000")),
        ("a flow, a priority beyond", 14, flow("003fffff", "0000", "0002 0008 ff00 0000")),
        ("a flow, an action of no length", 14, flow("003fffff", "0000", "0000 0000 0001 0000")),
        ("a flow, a queue of no port", 14, flow("003fffff", "0000", "000b 0010 ff05 000000000000 00000001")),
        ("flows go", 14, flow("003fffff", "0003", "")),
        ("a packet out", 13, hex("ffffffff fffd 0008 0000 0008 0001 0000 ffffffffffff 020000000001 88b5")),
        ("a packet out, actions beyond", 13, hex("ffffffff fffd 0080 0000 0008 0001 0000 ffffffffffff")),
        ("a packet out from nowhere", 13, hex("ffffffff 0000 0008 0000 0008 0001 0000 ffffffffffff 020000000001 88b5")),
        ("a packet out from a reserved port", 13, hex("ffffffff ff05 0008 0000 0008 0001 0000 ffffffffffff 020000000001 88b5")),
        ("a packet that is buffered", 13, hex("00000005 fffd 0000")),
        ("no port's modification", 15, hex("0999 020000000001 00000000 00000000 00000000 00000000")),
        ("another address", 15, hex("0001 020000000001 00000000 00000000 00000000 00000000")),
        ("statistics of no port", 16, hex("0004 0000 0999 000000000000")),
        ("statistics of no queue", 16, hex("0005 0000 0001 0000 00000077")),
        ("unknown statistics", 16, hex("0077 0000")),
        ("an experimenter's statistics", 16, hex("ffff 0000 00abcdef 00000001")),
        ("Nicira's statistics, unknown", 16, hex("ffff 0000 00002320 00000099 00000000")),
        ("a description", 16, hex("0000 0000")),
        ("a barrier with something in it", 18, zeros(8)),
        ("queues of no port", 20, hex("0999 0000")),
        ("no such role", 4, hex("00002320 0000000a 00000009")),
        ("a role", 4, hex("00002320 0000000a 00000000")),
        ("asynchronous messages", 4, hex("00002320 00000013 00000000 00000000 00000000 00000000 00000000 00000000")),
        ("a flow of Nicira's, no such command", 4, hex("00002320 0000000d 0000000000000000 0009 0000 0000 0001 ffffffff ffff 0000 0000 000000000000")),
        ("a flow of Nicira's, rubbish", 4, hex("00002320 0000000d 0000000000000000 0000 0000 0000 0001 ffffffff ffff 0000 0008 000000000000 ffff fe04 00000001")),
    ]
}

fn of13() -> Vec<(&'static str, u8, Vec<u8>)> {
    let mut v = changes();
    v.extend([
        ("no port's modification", 16, hex("00000999 00000000 020000000001 0000 00000000 00000000 00000000 00000000")),
        ("another address", 16, hex("00000001 00000000 020000000001 0000 00000000 00000000 00000000 00000000")),
        ("queues of no port", 22, hex("00000999 00000000")),
        ("asynchronous messages", 28, zeros(24)),
        ("a group", 15, hex("0000 00 00 00000001 0020 0000 ffffffff ffffffff 00000000 0000 0010 00000001 ffff 000000000000")),
        ("the group again", 15, hex("0000 00 00 00000001")),
        ("a group, no such type", 15, hex("0000 09 00 00000002")),
        ("a group, a bucket too long", 15, hex("0000 00 00 00000003 0040 0000 ffffffff ffffffff 00000000")),
        ("a group, a bucket of no length", 15, hex("0000 00 00 00000003 0000 0000 ffffffff ffffffff 00000000")),
        ("a group, a weight", 15, hex("0000 00 00 00000004 0010 0005 ffffffff ffffffff 00000000")),
        ("a group, watching no port", 15, hex("0000 03 00 00000005 0010 0000 00000000 ffffffff 00000000")),
        ("a bundle", 4, hex("4f4e4600 000008fc 00000001 0000 0003")),
    ]);
    v
}

fn of14() -> Vec<(&'static str, u8, Vec<u8>)> {
    vec![
        ("no port's modification", 16, hex("00000999 00000000 020000000001 0000 00000000 00000000")),
        ("a port's property, unknown", 16, hex("00000001 00000000 020000000001 0000 00000000 00000000 0077 0008 00000000")),
        ("a table, unknown property", 17, hex("00 000000 00000000 0077 0008 00000000")),
        ("a table that evicts", 17, hex("00 000000 00000004 0002 0008 00000001")),
        ("a table, unknown configuration", 17, hex("00 000000 00000080")),
        ("queues of 1.3", 22, hex("00000001 00000000")),
        ("asynchronous messages, unknown", 28, hex("0077 0008 00000001")),
        ("asynchronous messages, too long", 28, hex("0000 000c 00000001 00000001 00000000")),
        ("asynchronous messages, unknown reasons", 28, hex("0000 0008 ffffffff")),
        ("asynchronous messages", 28, hex("0000 0008 00000001")),
    ]
}

fn of15() -> Vec<(&'static str, u8, Vec<u8>)> {
    // Packets out of 1.5 say where they come from in a match.
    let mut v: Vec<(&str, u8, Vec<u8>)> = changes().into_iter().filter(|(_, kind, _)| *kind != 13).collect();
    v.extend(of14().into_iter().filter(|(name, ..)| !name.starts_with("a port's")));
    let out = |rest: &str| hex(&format!("ffffffff {rest}"));
    let control = |id: u32, kind: u16, flags: u16| hex(&format!("{id:08x} {kind:04x} {flags:04x}"));
    let add = |id: u32, flags: u16, m: &[u8]| [&hex(&format!("{id:08x} 0000 {flags:04x}")), m].concat();
    let echo = message(OF15, 2, 0x5555, &[]);
    let good = message(OF15, 14, 0x5555, &flow("00", "00", ANY));
    let wrong = message(OF15, 14, 0x5555, &flow("00", "00", &format!("{ANY} 0004 0010 00000000 0016 0008 00000999")));
    v.extend([
        ("a packet out", 13, out("0010 0000 0001 000c 8000 0004 fffffffd 00000000 0000 0010 00000001 ffff 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet out, of more fields", 13, out("0000 0000 0001 0012 8000 0004 fffffffd 8000 0a02 0800 000000000000 ffffffffffff 020000000001 88b5")),
        ("a packet out, of no port", 13, out("0000 0000 0001 0004 00000000 ffffffffffff 020000000001 88b5")),
        ("a packet out from nowhere", 13, out("0000 0000 0001 000c 8000 0004 00000000 00000000 ffffffffffff 020000000001 88b5")),
        ("a packet out, no group", 13, out("0008 0000 0001 000c 8000 0004 fffffffd 00000000 0016 0008 00000999 ffffffffffff 020000000001 88b5")),
        ("a packet out, actions beyond", 13, out("0080 0000 0001 000c 8000 0004 fffffffd 00000000 0016 0008 00000999 ffffffffffff")),
        ("a packet that is buffered", 13, hex("00000005 0000 0000 0001 000c 8000 0004 fffffffd 00000000")),
        ("no port's description", 18, hex("000d 0000 00000000 00000999 00000000")),
        ("no group's description", 18, hex("0007 0000 00000000 00000999 00000000")),
        ("a group", 15, hex("0000 00 00 00000001 0020 0000 ffffffff 0020 0010 00000000 0000 0010 00000001 ffff 000000000000")),
        ("a group's bucket that is reserved", 15, hex("0000 00 00 00000002 0008 0000 ffffffff ffffff05 ")),
        ("a group, actions beyond the bucket", 15, hex("0000 00 00 00000002 0010 0000 ffffffff 0010 0020 00000000 ")),
        ("a group, no such type", 15, hex("0000 09 00 00000002 0000 0000 ffffffff")),
        ("a group, buckets beyond", 15, hex("0000 00 00 00000002 0080 0000 ffffffff")),
        ("a bucket into no group", 15, hex("0003 00 00 00000999 0008 0000 ffffffff 0008 0000 00000005")),
        ("a bucket that is there", 15, hex("0003 00 00 00000001 0008 0000 ffffffff 0008 0000 00000000")),
        ("a bucket behind none", 15, hex("0003 00 00 00000001 0008 0000 00000077 0008 0000 00000005")),
        ("a bucket out of no group", 15, hex("0005 00 00 00000999 0000 0000 00000000")),
        ("a bucket that is not there", 15, hex("0005 00 00 00000001 0000 0000 00000077")),
        ("a bucket's unknown property", 15, hex("0000 00 00 00000006 0010 0000 ffffffff 0010 0000 00000000 0077 0008 00000000")),
        ("a group's unknown property", 15, hex("0000 00 00 00000006 0000 0000 ffffffff 0077 0008 00000000")),
        ("a selection method, unknown", 15, hex("0000 01 00 00000007 0000 0000 ffffffff ffff 0028 0000154d 00000001 00000000 6e6f6e65000000000000000000000000 0000000000000000")),
        ("close no bundle", 33, control(9, 2, 3)),
        ("commit no bundle", 33, control(9, 4, 3)),
        ("discard no bundle", 33, control(9, 6, 3)),
        ("a bundle, a reply", 33, control(9, 1, 3)),
        ("a bundle, unknown flags", 33, control(8, 0, 0x83)),
        ("a bundle, a property", 33, hex("00000007 0000 0003 0077 0008 00000000")),
        ("open a bundle", 33, control(1, 0, 3)),
        ("open it again", 33, control(1, 0, 3)),
        ("open it once more", 33, control(1, 0, 3)),
        ("into it: an echo request", 34, add(1, 3, &echo)),
        ("into it: other flags", 34, add(1, 1, &good)),
        ("open it a third time", 33, control(1, 0, 3)),
        ("into it: what is cut", 34, add(1, 3, &good[..20])),
        ("into it: another number", 34, add(1, 3, &message(OF15, 14, 7, &flow("00", "00", ANY)))),
        ("into it: an unknown type", 34, add(1, 3, &message(OF15, 99, 0x5555, &[]))),
        ("into it: a malformed flow", 34, add(1, 3, &message(OF15, 14, 0x5555, &flow("09", "00", ANY)))),
        ("open a second bundle", 33, control(2, 0, 3)),
        ("into the second: a flow", 34, add(2, 3, &wrong)),
        ("commit the second", 33, control(2, 4, 3)),
        ("commit it again", 33, control(2, 4, 3)),
        ("open a third bundle", 33, control(3, 0, 1)),
        ("close it with other flags", 33, control(3, 2, 3)),
        ("close it", 33, control(3, 2, 1)),
        ("close it again", 33, control(3, 2, 1)),
        ("into the closed one", 34, add(3, 1, &good)),
        ("commit the closed one", 33, control(3, 4, 1)),
        ("into one that is not open", 34, add(55, 3, &good)),
        ("discard that", 33, control(55, 6, 3)),
    ]);
    v
}
