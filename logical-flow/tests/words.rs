//! Errors are those of Debian's ovn-trace, word for word.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use logical_flow::evaluate::NoNames;
use logical_flow::{action, expr};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Matches; those that ovn-trace takes, ours takes.
const MATCHES: &[&str] = &[
    "ip4.src == foo",
    "ip4 && tcp || udp",
    "tcp.dst == 70000",
    "inport=p1",
    "inport",
    "reg0",
    "!reg0 == 1",
    "!(ip4)",
    "!ip4",
    "ip4 == 0",
    "ip.proto != 6",
    "!(ip.proto == 6)",
    "eth.type < 5",
    "eth.type[0..3] == 1",
    "reg0[5..3] == 1",
    "reg0[3..40] == 1",
    "reg0[x] == 1",
    "reg0[0x1] == 1",
    "inport[0] == 1",
    "inport == 5",
    r#"ip4.src == "a""#,
    "foo",
    "foo == 1",
    "foo(1)",
    "is_chassis_resident(p1)",
    r#"is_chassis_resident("p1""#,
    "(ip4",
    "ip4)",
    "ip4 ip6",
    "",
    "ip4 &&",
    "0 < tcp.dst > 5",
    "1 == tcp.dst == 2",
    "tcp.dst < {1, 2}",
    "tcp.dst < 1/1",
    "ip4.src == $nope",
    "inport == @nope",
    r#"ip4.src == {1.2.3.4, "a"}"#,
    r#"inport == {"a", 1}"#,
    "ip4.src == 1.2.3",
    "ip4.src == 10.0.0.1/33",
    "tcp.dst == 0x",
    "tcp.dst == 01",
    "tcp.dst == 99999999999999999999",
    "tcp.dst == 0xg",
    r#"ip4.src == "abc"#,
    "a # b",
    "ip4 & tcp",
    "ip4 | tcp",
    "$",
    "$1",
    "ip4 /* x",
    "ip4 / tcp",
    "1 <",
    "ip4 < 1",
    "ip.ttl < 5",
    "tcp.flags < 5",
    "ct.est < 1",
    "tcp.dst == ",
    "tcp.dst 5",
    "ip6.src == 1",
    "eth.src == 10.0.0.1",
    "eth.dst == fe80::1",
    "tcp.dst == 1.2.3.4",
    "reg0[0..3] == 100",
    "reg0 == 1/0x3",
    "{1} == reg0",
    "reg0 == {}",
    "reg0 == {1",
    "1",
    "2",
    "(((1",
    "!1",
    "! !ip4",
    "!!(ct.est)",
    "ip.first_frag == 0",
    "!eth.bcast",
    "ip4.src == 1.2.3.4.5",
    "vlan.tci < 5",
    "nd < 1",
    "icmp4.type == {8,256}",
    "5",
    "ip4[1]",
    "ip.proto[0..7] == 6",
    "ip.proto[0..3] == 6",
];

/// Actions; those that ovn-trace takes, ours takes. Left out is what 23.03 does not know (`^NAME`, zones of `ct_next`),
/// and what only a chassis knows: how many tables there are, and the names of DHCP options.
const ACTIONS: &[&str] = &[
    "foo;",
    "next",
    "next(",
    "next(pipeline=foo);",
    "next(table=x);",
    "next(0x5);",
    "ct_snat(1.2.3.4, 0x10);",
    "ct_lb_mark(backends=1.2.3.4:0x50);",
    "next(foo=1);",
    "ip4.src = 1",
    "reg0 = foo;",
    "reg0 = ip4.src",
    "reg0 = inport;",
    "inport = reg0;",
    "reg0 = eth.src;",
    "reg0 <-> eth.src;",
    "reg0 <-> inport;",
    "ip.proto = 6;",
    "ip4 = 1;",
    "ip.ttl++;",
    "ip.ttl;",
    "reg0--;",
    "reg0[0..3] = 100;",
    "tcp.dst = 70000;",
    "inport = 5;",
    r#"reg0 = "a";"#,
    "reg0 = ;",
    "drop",
    "drop; next;",
    "next; drop;",
    "output",
    "push(reg0",
    "push(5);",
    "pop(ip.proto);",
    "ct_commit { reg0 = 1; };",
    "ct_commit { ct_mark = 1 };",
    "ct_commit { ct_mark = 1; next; };",
    "ct_dnat(foo);",
    "ct_snat(1.2.3.4, 0);",
    "ct_snat(1.2.3.4, 5-3);",
    "ct_snat(1.2.3.4, 5-",
    "ct_snat(1.2.3.4",
    "ct_lb_mark(foo);",
    "ct_lb_mark(backends=foo);",
    "ct_lb_mark(backends=[1.2.3.4]:80);",
    "ct_lb_mark(backends=fe80::1:80);",
    "ct_lb_mark(backends=1.2.3.4:99999);",
    "ct_lb_mark(backends=[fe80::1:80);",
    "ct_lb_mark(backends=1.2.3.4; hash_fields=x);",
    "clone { next; }",
    "clone { next }",
    "clone next;",
    "arp { foo; };",
    "icmp4 { output; }",
    "get_arp(reg0, inport);",
    "get_arp(inport);",
    "get_arp(inport, eth.src);",
    "put_arp(inport, arp.spa);",
    "reg0 = lookup_arp(inport, arp.spa, arp.sha);",
    "reg0[0] = put_dhcp_opts();",
    r#"reg0[0] = put_nd_ra_opts(addr_mode = "slaac");"#,
    "reg0[0] = dns_lookup(1);",
    "reg0 = dns_lookup();",
    "reg0[0] = check_pkt_larger(x);",
    "log(foo);",
    "log(verdict=foo);",
    "log(verdict=allow, severity=bar);",
    "log();",
    "set_queue(99999);",
    "set_queue(x);",
    "set_meter(0);",
    "bind_vport(x, inport);",
    r#"bind_vport("x", reg0);"#,
    "fwd_group(childports=x);",
    "select(1);",
    "reg0[0..7] = select(1, 2);",
    "reg0 = select(1);",
    "reg0 = select(1=0, 2);",
    "reg0 = select(x);",
    "trigger_event(foo=1);",
    "handle_svc_check(reg0);",
    "1;",
    ";",
    "next;;",
    "/* x",
    "ct_commit;",
    "ct_clear(;",
    "eth.src[0..3] = 5",
    "eth.src = 00:00;",
    "reject { output; };",
    "ct_mark = 1;",
];

/// What ovn-trace expects there is not what it takes.
const CLEARER: &[(&str, &str)] = &[
    ("reg0[0] = check_pkt_larger(x);", "Syntax error at `x' expecting small integer."),
    ("set_queue(x);", "Syntax error at `x' expecting small integer."),
];

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn quoted(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out + "\""
}

/// What ovn-trace says of each text that it refuses.
fn trace(dir: &Path) -> HashMap<String, String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let (db, socket) = (file("sb.db"), format!("unix:{}", file("sb.sock")));
    output("ovsdb-tool", &["create", &db, "/usr/share/ovn/ovn-sb.ovsschema"]);
    let server = Command::new("ovsdb-server")
        .args([&db, &format!("--remote=p{socket}"), &format!("--unixctl={}", file("ctl"))])
        .stderr(Stdio::null())
        .spawn();
    let _server = Server(server.unwrap());
    let start = Instant::now();
    while !dir.join("sb.sock").exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "ovsdb-server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ids = r#"["map",[["logical-switch","11111111-1111-1111-1111-111111111111"],["name","sw"]]]"#;
    let mut request = format!(
        r#"["OVN_Southbound",{{"op":"insert","table":"Datapath_Binding","uuid-name":"d","row":{{"tunnel_key":1,"external_ids":{ids}}}}},{{"op":"insert","table":"Port_Binding","row":{{"logical_port":"p1","tunnel_key":1,"datapath":["named-uuid","d"]}}}}"#
    );
    let flows = MATCHES.iter().map(|m| (0, *m, "next;")).chain(ACTIONS.iter().map(|a| (1, "1", *a)));
    for (priority, (table, m, a)) in flows.enumerate() {
        request += &format!(
            r#",{{"op":"insert","table":"Logical_Flow","row":{{"logical_datapath":["named-uuid","d"],"pipeline":"ingress","table_id":{table},"priority":{priority},"match":{},"actions":{}}}}}"#,
            quoted(m),
            quoted(a)
        );
    }
    output("ovsdb-client", &["transact", &socket, &(request + "]")]);
    let said = output("ovn-trace", &[&format!("--db={socket}"), "sw", "inport==\"p1\""]);
    let warning = |line: &str| {
        let (_, text) = line.split_once("|WARN|")?;
        let split = text.split_once(": parsing expression failed (");
        let (text, error) = split.or_else(|| text.split_once(": parsing actions failed ("))?;
        Some((text.to_string(), error.strip_suffix(')')?.to_string()))
    };
    said.lines().filter_map(warning).collect()
}

#[test]
fn errors_are_ovn_s() {
    if !needs::installed(&["/usr/share/ovn/ovn-sb.ovsschema", "ovn-trace"]) {
        return;
    }
    let dir = std::env::temp_dir().join(format!("logical-flow-words-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let theirs = trace(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    assert!(theirs.len() > 150, "ovn-trace refused only {} of the texts", theirs.len());
    let matches = MATCHES.iter().map(|m| (m, expr::parse(m).and_then(|e| e.evaluate(&NoNames)).map(drop)));
    let actions = ACTIONS.iter().map(|a| (a, action::parse(a).map(drop)));
    let mut different = Vec::new();
    for (text, ours) in matches.chain(actions) {
        let ours = ours.err().map(|e| e.text);
        let clearer = CLEARER.iter().find(|(t, _)| t == text).map(|(_, e)| (*e).to_string());
        if ours.as_ref() != clearer.as_ref().or(theirs.get(*text)) {
            different.push(format!("{text}\n  ovn-trace {:?}\n  ours      {ours:?}", theirs.get(*text)));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
