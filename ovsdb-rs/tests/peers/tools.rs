//! The tools of Open vSwitch and OVN against our server and Debian's, side by side: the same commands in
//! the same order print the same, on standard output and error, and end with the same status.

use crate::servers::{Peer, debian, masked, sorted};
use std::path::Path;

const SCHEMAS: [(&str, &str); 4] = [
    ("conf", "/usr/share/openvswitch/vswitch.ovsschema"),
    ("nb", "/usr/share/ovn/ovn-nb.ovsschema"),
    ("sb", "/usr/share/ovn/ovn-sb.ovsschema"),
    ("vtep", "/usr/share/openvswitch/vtep.ovsschema"),
];

fn files(dir: &Path) -> Vec<String> {
    let create = |(name, schema): (&str, &str)| {
        let path = dir.join(format!("{name}.db"));
        let made = std::process::Command::new("ovsdb-tool").arg("create").arg(&path).arg(schema).status().unwrap();
        assert!(made.success());
        path.display().to_string()
    };
    SCHEMAS.into_iter().map(create).collect()
}

/// Runs each line of `steps` on both; `~` before a line: the order of output lines is the server's own.
fn side_by_side(peers: &[Peer; 2], steps: &str) -> usize {
    let (mut n, mut differences) = (0, Vec::new());
    for line in steps.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (unordered, command) = line.strip_prefix('~').map_or((false, line), |c| (true, c));
        let [ours, theirs] = peers.each_ref().map(|p| {
            let o = p.run(command);
            let text = |b: &[u8]| {
                let t = masked(&String::from_utf8_lossy(b), &p.dir);
                if unordered { sorted(&t) } else { t }
            };
            format!("{}\n--- stderr\n{}--- {}", text(&o.stdout), text(&o.stderr), o.status)
        });
        n += 1;
        if ours != theirs {
            differences.push(format!("==== {command}\n---- ours\n{ours}\n---- theirs\n{theirs}\n"));
        }
    }
    assert!(differences.is_empty(), "{} of {n} differ\n{}", differences.len(), differences.join("\n"));
    n
}

fn scenario(steps: &str) {
    if !debian() || !needs::installed(&SCHEMAS.map(|(_, s)| s)) {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let peers = Peer::both(root.path(), files);
    let version = peers[1].control("version");
    println!("{} commands beside {version}", side_by_side(&peers, steps));
}

#[test]
fn ovsdb_client_sees_no_difference() {
    scenario(include_str!("steps/client.steps"));
}

#[test]
fn ovs_vsctl_and_vtep_ctl_see_no_difference() {
    scenario(include_str!("steps/switch.steps"));
}

#[test]
fn ovn_nbctl_and_ovn_sbctl_see_no_difference() {
    scenario(include_str!("steps/ovn.steps"));
}

/// The schemas of interconnection are in no package that the other tests need; recorded databases carry them.
fn interconnection(dir: &Path) -> Option<Vec<String>> {
    let archives = golden::archives();
    let archive = archives.iter().find(|a| a.to_string_lossy().contains("ovn-ic--"))?;
    let case = golden::read(archive).unwrap();
    let file = |name: &str| {
        let content = case.snapshots.iter().find_map(|s| s.get(name))?;
        let records = ovsdb_rs::file::parse(content).unwrap();
        let schema = dir.join(format!("{name}.ovsschema"));
        std::fs::write(&schema, records.schema.to_json().to_string()).unwrap();
        let path = dir.join(name);
        let made = std::process::Command::new("ovsdb-tool").arg("create").arg(&path).arg(&schema).status().unwrap();
        assert!(made.success());
        Some(path.display().to_string())
    };
    Some(vec![file("ic-nb.db")?, file("ic-sb.db")?])
}

#[test]
fn ovn_ic_nbctl_and_ovn_ic_sbctl_see_no_difference() {
    let root = tempfile::tempdir().unwrap();
    if !debian() || interconnection(root.path()).is_none() {
        return;
    }
    let peers = Peer::both(root.path(), |dir| interconnection(dir).unwrap());
    println!("{} commands", side_by_side(&peers, include_str!("steps/interconnect.steps")));
}

#[test]
fn control_commands_show_no_difference() {
    scenario(include_str!("steps/control.steps"));
}

/// Requests that the tools do not send, as text.
const REQUESTS: &[&str] = &[
    r#"{"id":1,"method":"lock","params":["a"]}"#,
    r#"{"id":2,"method":"steal","params":["b"]}"#,
    r#"{"id":3,"method":"unlock","params":["a"]}"#,
    r#"{"id":4,"method":"lock","params":["b"]}"#,
    r#"{"id":5,"method":"foo","params":[]}"#,
    r#"{"id":6,"method":"monitor_cancel","params":[]}"#,
    r#"{"id":7,"method":"monitor_cancel","params":["x"]}"#,
    r#"{"id":9,"method":"monitor","params":["D","x",{"T":{"columns":["name","name"]}}]}"#,
    r#"{"id":10,"method":"monitor","params":["D","x",[]]}"#,
    r#"{"id":11,"method":"monitor","params":["D","x",{"Q":{}}]}"#,
    r#"{"id":12,"method":"monitor","params":["D","x",{"T":{"columns":["q"]}}]}"#,
    r#"{"id":13,"method":"monitor","params":["D","x",{"T":{"select":{"q":true}}}]}"#,
    r#"{"id":14,"method":"monitor_cond_since","params":["D","x",{"T":[{}]},"zz"]}"#,
    r#"{"id":15,"method":"monitor_cond","params":["D","x",{"T":[{"where":[]}]}]}"#,
    r#"{"id":16,"method":"monitor_cond","params":["D","x",{"T":[{"where":[]}]}]}"#,
    r#"{"id":17,"method":"monitor_cond_change","params":["x","y",{"T":[{"where":[["name","==","a"]]}]}]}"#,
    r#"{"id":18,"method":"monitor_cond_change","params":["x","y",{"T":[{"where":[["name","==","a"]]}]}]}"#,
    r#"{"id":19,"method":"monitor_cond_change","params":["y","y",{"Q":[{"where":[["name","==","a"]]}]}]}"#,
    r#"{"id":20,"method":"monitor_cond_change","params":["y","y",{"T":[{"where":[["nope","==","a"]]}]}]}"#,
    r#"{"id":22,"method":"get_schema","params":[]}"#,
    r#"{"id":23,"method":"get_schema","params":["Q"]}"#,
    r#"{"id":24,"method":"set_db_change_aware","params":[3]}"#,
    r#"{"id":25,"method":"set_db_change_aware","params":[true]}"#,
    r#"{"id":26,"method":"echo","params":[1,{}]}"#,
    r#"{"id":27,"method":"list_dbs","params":[]}"#,
    r#"{"id":28,"method":"lock","params":["a b"]}"#,
    r#"{"id":29,"method":"unlock","params":["nolock"]}"#,
    r#"{"id":30,"method":"transact","params":["Q"]}"#,
    r#"{"id":31,"method":"transact","params":["D","x"]}"#,
    r#"{"id":33,"method":"convert","params":["D",{"name":"E","version":"1.0.0","tables":{}}]}"#,
    r#"{"id":36,"method":"transact","params":["D",{"op":"insert","table":"T","row":{"name":"zz","v":1.0}}]}"#,
    r#"{"id":37,"method":"transact","params":["D",{"op":"insert","table":"T","row":{"name":"zz","v":1.5}}]}"#,
    r#"{"id":38,"method":"transact","params":["D",{"op":"insert","table":"T","row":{"name":"yy","v":99999999999999999999}}]}"#,
    r#"{"id":41,"method":"transact","params":["D",{"op":"wait","table":"T","where":[["name","==","never"]],"columns":["name"],"until":"==","rows":[{"name":"never"}]}]}"#,
    r#"{"id":null,"method":"cancel","params":[41]}"#,
    r#"{"id":null,"method":"cancel","params":[42]}"#,
    r#"{"id":43,"method":"transact","params":["D",{"op":"wait","table":"T","where":[["name","==","never"]],"columns":["name"],"until":"==","rows":[{"name":"never"}],"timeout":50}]}"#,
    r#"{"id":"39","method":"echo","params":["\u00e9\ud83d\ude00"]}"#,
    r#"{"id":[40],"method":"echo","params":[null,true,1e3,-0.5]}"#,
];

/// The answer to one request: what comes within a moment.
fn answer(stream: &mut std::os::unix::net::UnixStream, request: &str) -> String {
    use std::io::{Read, Write};
    if stream.write_all(request.as_bytes()).is_err() {
        return "disconnected".into();
    }
    let (mut text, mut chunk) = (Vec::new(), [0; 65536]);
    loop {
        let n = stream.read(&mut chunk).unwrap_or(0);
        text.extend_from_slice(&chunk[..n]);
        let value: Result<serde_json::Value, _> = serde_json::from_slice(&text);
        match value {
            Ok(v) => return v.to_string(),
            Err(_) if n == 0 => return format!("{} (then silence)", String::from_utf8_lossy(&text)),
            Err(_) => {}
        }
    }
}

#[test]
fn requests_that_no_tool_sends_are_answered_alike() {
    if !debian() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let schema = root.path().join("d.ovsschema");
    let text = r#"{"name":"D","version":"1.0.0","tables":{"T":{"isRoot":true,"columns":{
        "name":{"type":"string"},"v":{"type":"integer"}}}}}"#;
    std::fs::write(&schema, text).unwrap();
    let servers = Peer::both(root.path(), |dir| {
        let path = dir.join("d.db");
        assert!(
            std::process::Command::new("ovsdb-tool").arg("create").arg(&path).arg(&schema).status().unwrap().success()
        );
        vec![path.display().to_string()]
    });
    let mut streams = servers.each_ref().map(|p| {
        let s = std::os::unix::net::UnixStream::connect(p.dir.join("db.sock")).unwrap();
        s.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        s
    });
    let mut differences = String::new();
    for request in REQUESTS {
        let [ours, theirs] = [0, 1].map(|i| masked(&answer(&mut streams[i], request), &servers[i].dir));
        let sorted = |t: &str| {
            serde_json::from_str(t).map_or_else(|_| t.to_string(), |v: serde_json::Value| ovsdb_rs::json::canonical(&v))
        };
        if sorted(&ours) != sorted(&theirs) {
            differences += &format!("{request}\n  ours   {ours}\n  theirs {theirs}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
