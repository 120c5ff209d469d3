//! Roles over TLS, and what the rows that name remotes say of them, beside Debian's server.

use crate::servers::{Peer, debian, masked};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SCHEMA: &str = r#"{"name":"D","version":"1.0.0","tables":{
    "Global":{"isRoot":true,"columns":{
        "connections":{"type":{"key":{"type":"uuid","refTable":"Connection"},"min":0,"max":"unlimited"}}}},
    "Connection":{"columns":{"target":{"type":"string"},"role":{"type":"string"},"read_only":{"type":"boolean"},
        "inactivity_probe":{"type":{"key":"integer","min":0,"max":1}},
        "other_config":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}},
        "max_backoff":{"type":{"key":"integer","min":0,"max":1}},
        "is_connected":{"type":"boolean","ephemeral":true},
        "status":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"},"ephemeral":true}}},
    "SSL":{"isRoot":true,"columns":{"protocols":{"type":"string"},"ciphers":{"type":"string"}}},
    "RBAC_Role":{"isRoot":true,"columns":{"name":{"type":"string"},"permissions":{"type":{"key":"string",
        "value":{"type":"uuid","refTable":"RBAC_Permission","refType":"weak"},"min":0,"max":"unlimited"}}}},
    "RBAC_Permission":{"isRoot":true,"columns":{"table":{"type":"string"},"insert_delete":{"type":"boolean"},
        "authorization":{"type":{"key":"string","min":0,"max":"unlimited"}},
        "update":{"type":{"key":"string","min":0,"max":"unlimited"}}}},
    "Own":{"isRoot":true,"columns":{"name":{"type":"string"},"v":{"type":"integer"},"w":{"type":"integer"},
        "ids":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}}},
    "Map":{"isRoot":true,"columns":{"v":{"type":"integer"},
        "ids":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}}},
    "Any":{"isRoot":true,"columns":{"v":{"type":"integer"}}},
    "Fixed":{"isRoot":true,"columns":{"v":{"type":"integer"}}},
    "Nobody":{"isRoot":true,"columns":{"v":{"type":"integer"}}},
    "Unlisted":{"isRoot":true,"columns":{"v":{"type":"integer"}}}}}"#;

const RULES: &str = r#"["D",
    {"op":"insert","table":"RBAC_Permission","uuid-name":"own","row":{"table":"Own","insert_delete":true,
        "authorization":"name","update":["set",["v","ids"]]}},
    {"op":"insert","table":"RBAC_Permission","uuid-name":"map","row":{"table":"Map","insert_delete":true,
        "authorization":"ids:owner","update":["set",["ids:free","v"]]}},
    {"op":"insert","table":"RBAC_Permission","uuid-name":"any","row":{"table":"Any","insert_delete":true,
        "authorization":"","update":"v"}},
    {"op":"insert","table":"RBAC_Permission","uuid-name":"fixed","row":{"table":"Fixed","insert_delete":false,
        "authorization":"","update":["set",[]]}},
    {"op":"insert","table":"RBAC_Permission","uuid-name":"nobody","row":{"table":"Nobody","insert_delete":true,
        "authorization":["set",[]],"update":"v"}},
    {"op":"insert","table":"RBAC_Role","row":{"name":"chassis","permissions":["map",[["Own",["named-uuid","own"]],
        ["Map",["named-uuid","map"]],["Any",["named-uuid","any"]],["Fixed",["named-uuid","fixed"]],
        ["Nobody",["named-uuid","nobody"]]]]}},
    {"op":"insert","table":"Own","row":{"name":"hv1"}},{"op":"insert","table":"Own","row":{"name":"hv2"}},
    {"op":"insert","table":"Map","row":{"ids":["map",[["owner","hv1"]]]}},
    {"op":"insert","table":"Map","row":{"ids":["map",[["owner","hv2"]]],"v":7}},
    {"op":"insert","table":"Fixed","row":{}},{"op":"insert","table":"Any","row":{}},
    {"op":"insert","table":"Nobody","row":{}},{"op":"insert","table":"Unlisted","row":{}}]"#;

/// Operations, each sent as a transaction by hv1.
const OPERATIONS: &[&str] = &[
    r#"{"op":"select","table":"Unlisted","where":[],"columns":["v"]}"#,
    r#"{"op":"insert","table":"Unlisted","row":{}}"#,
    r#"{"op":"update","table":"Unlisted","where":[],"row":{"v":1}}"#,
    r#"{"op":"mutate","table":"Unlisted","where":[],"mutations":[["v","+=",1]]}"#,
    r#"{"op":"delete","table":"Unlisted","where":[]}"#,
    r#"{"op":"insert","table":"Own","row":{"name":"hv1","v":5}}"#,
    r#"{"op":"insert","table":"Own","row":{"name":"hv2"}}"#,
    r#"{"op":"insert","table":"Own","row":{}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","hv1"]],"row":{"v":2}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","hv1"]],"row":{"w":2}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","hv1"]],"row":{"v":2,"w":2}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","hv2"]],"row":{"v":2}}"#,
    r#"{"op":"update","table":"Own","where":[],"row":{"v":2}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","nobody"]],"row":{"w":2}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","hv1"]],"row":{}}"#,
    r#"{"op":"update","table":"Own","where":[["name","==","hv1"]],"row":{"name":"hv1"}}"#,
    r#"{"op":"mutate","table":"Own","where":[["name","==","hv1"]],"mutations":[["v","+=",1]]}"#,
    r#"{"op":"mutate","table":"Own","where":[["name","==","hv1"]],"mutations":[["w","+=",1]]}"#,
    r#"{"op":"mutate","table":"Own","where":[["name","==","hv2"]],"mutations":[["v","+=",1]]}"#,
    r#"{"op":"mutate","table":"Own","where":[["name","==","hv1"]],"mutations":[["ids","insert",["map",[["a","b"]]]]]}"#,
    r#"{"op":"delete","table":"Own","where":[["name","==","hv2"]]}"#,
    r#"{"op":"delete","table":"Own","where":[["v","==",5]]}"#,
    r#"{"op":"delete","table":"Own","where":[["name","==","nobody"]]}"#,
    r#"{"op":"update","table":"Map","where":[["ids","includes",["map",[["owner","hv1"]]]]],"row":{"v":1}}"#,
    r#"{"op":"update","table":"Map","where":[["v","==",7]],"row":{"v":1}}"#,
    r#"{"op":"mutate","table":"Map","where":[["v","!=",7]],"mutations":[["ids","insert",["map",[["free","x"]]]]]}"#,
    r#"{"op":"mutate","table":"Map","where":[["v","!=",7]],"mutations":[["ids","insert",["map",[["other","x"]]]]]}"#,
    r#"{"op":"mutate","table":"Map","where":[["v","!=",7]],"mutations":[["ids","insert",["map",[["free","x"],["other","x"]]]]]}"#,
    r#"{"op":"mutate","table":"Map","where":[["v","!=",7]],"mutations":[["ids","delete",["set",["free"]]]]}"#,
    r#"{"op":"mutate","table":"Map","where":[["v","!=",7]],"mutations":[["ids","delete",["set",["owner"]]]]}"#,
    r#"{"op":"update","table":"Map","where":[["v","!=",7]],"row":{"ids":["map",[]]}}"#,
    r#"{"op":"insert","table":"Map","row":{"ids":["map",[["owner","hv1"]]]}}"#,
    r#"{"op":"insert","table":"Map","row":{"ids":["map",[["owner","hv2"]]]}}"#,
    r#"{"op":"insert","table":"Any","row":{}}"#,
    r#"{"op":"update","table":"Any","where":[],"row":{"v":3}}"#,
    r#"{"op":"delete","table":"Any","where":[]}"#,
    r#"{"op":"insert","table":"Fixed","row":{}}"#,
    r#"{"op":"update","table":"Fixed","where":[],"row":{"v":3}}"#,
    r#"{"op":"delete","table":"Fixed","where":[]}"#,
    r#"{"op":"insert","table":"Nobody","row":{}}"#,
    r#"{"op":"update","table":"Nobody","where":[],"row":{"v":3}}"#,
    r#"{"op":"delete","table":"Nobody","where":[]}"#,
    r#"{"op":"update","table":"RBAC_Role","where":[],"row":{"name":"x"}}"#,
    r#"{"op":"comment","comment":"x"}"#,
    r#"{"op":"select","table":"Own","where":[["name","==","hv1"]],"columns":["name","v","w","ids"]}"#,
];

fn run(command: &mut Command) {
    let o = command.output().unwrap();
    assert!(o.status.success(), "{command:?}: {}", String::from_utf8_lossy(&o.stderr));
}

/// A CA and certificates like those that ovs-pki makes: a common name, no other names.
pub fn pki(dir: &Path, names: &[&str]) -> PathBuf {
    let openssl = |args: &str| run(Command::new("openssl").current_dir(dir).args(args.split(' ')));
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out cacert.pem -days 10 -subj /O=ovs/CN=switchca");
    std::fs::write(dir.join("ext"), "basicConstraints=CA:false\n").unwrap();
    for n in names {
        openssl(&format!("req -newkey rsa:2048 -nodes -keyout {n}-privkey.pem -out {n}.csr -subj /O=ovs/OU=id/CN={n}"));
        openssl(&format!(
            "x509 -req -in {n}.csr -CA cacert.pem -CAkey ca-key.pem -CAcreateserial -days 10 -extfile ext -out {n}-cert.pem"
        ));
    }
    dir.to_path_buf()
}

/// The options that name the files of [`pki`].
pub fn tls_options(pki: &Path, name: &str) -> Vec<String> {
    let path = |f: String| pki.join(f).display().to_string();
    vec![
        format!("--private-key={}", path(format!("{name}-privkey.pem"))),
        format!("--certificate={}", path(format!("{name}-cert.pem"))),
        format!("--ca-cert={}", path("cacert.pem".into())),
    ]
}

/// A port that nothing listens on at present.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits for a command to print this.
fn wait_for(peer: &Peer, command: &str, wanted: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let o = peer.run(command);
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        if wanted(&text) {
            return text;
        }
        assert!(Instant::now() < until, "{}: {command}: {text}", peer.program.display());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn transact(text: &str) -> String {
    format!("ovsdb-client transact $DB '{}'", text.replace('\n', " "))
}

fn servers(root: &Path, options: &[String]) -> [Peer; 2] {
    let schema = root.join("d.ovsschema");
    std::fs::write(&schema, SCHEMA).unwrap();
    Peer::both(root, |dir| {
        let path = dir.join("d.db");
        run(Command::new("ovsdb-tool").arg("create").arg(&path).arg(&schema));
        let mut out = options.to_vec();
        out.extend([path.display().to_string(), "--remote=db:D,Global,connections".into()]);
        out
    })
}

#[test]
fn roles_prohibit_the_same() {
    if !debian() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let pki = pki(root.path(), &["server", "hv1"]);
    let servers = servers(root.path(), &tls_options(&pki, "server"));
    let answers = servers.each_ref().map(|s| {
        let port = free_port();
        s.output(&transact(RULES));
        s.output(&transact(&format!(
            r#"["D",{{"op":"insert","table":"Connection","uuid-name":"c","row":{{"target":"pssl:{port}:127.0.0.1",
            "role":"chassis"}}}},{{"op":"insert","table":"Global","row":{{"connections":["named-uuid","c"]}}}}]"#
        )));
        let client = format!("ovsdb-client {} ", tls_options(&pki, "hv1").join(" "));
        let remote = format!("ssl:127.0.0.1:{port}");
        wait_for(s, &format!("{client} list-dbs {remote}"), |t| t.contains("_Server"));
        let send = |op: &&str| {
            let o = s.run(&format!("{client} transact {remote} '[\"D\",{op}]'"));
            format!("{op}\n  {}", masked(&String::from_utf8_lossy(&o.stdout), &s.dir))
        };
        OPERATIONS.iter().map(send).collect::<Vec<_>>()
    });
    let prohibited = answers[0].iter().filter(|a| a.contains("RBAC rules for client \\\"hv1\\\"")).count();
    assert!(prohibited > 10, "{answers:#?}");
    let differ = answers[0].iter().zip(&answers[1]).filter(|(ours, theirs)| ours != theirs);
    let differ: Vec<_> = differ.map(|(ours, theirs)| format!("{ours}{theirs}")).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    // Without a certificate nobody gets in.
    for s in &servers {
        let text = s.output("ovsdb-client -f csv --no-headings dump $DB D Connection target");
        let remote = text.lines().last().unwrap().trim_matches('"').replace("pssl:", "");
        let port = remote.split(':').next().unwrap();
        let o = s.run(&format!("openssl s_client -connect 127.0.0.1:{port} -verify_return_error < /dev/null"));
        assert!(!String::from_utf8_lossy(&o.stdout).contains("Verify return code: 0"));
    }
}

#[test]
fn tls_protocols_and_ciphers_are_those_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let pki = pki(root.path(), &["server"]);
    let schema = root.path().join("d.ovsschema");
    std::fs::write(&schema, SCHEMA).unwrap();
    let db = root.path().join("d.db");
    run(Command::new("ovsdb-tool").arg("create").arg(&db).arg(&schema));
    let port = free_port();
    let mut arguments = tls_options(&pki, "server");
    arguments.extend(["--ssl-protocols=TLSv1.2", "--ssl-ciphers=ECDHE-RSA-AES128-GCM-SHA256"].map(String::from));
    arguments.extend([format!("--remote=pssl:{port}:127.0.0.1"), db.display().to_string()]);
    let server = Peer::start(env!("CARGO_BIN_EXE_ovsdb"), root.path(), &arguments);
    let client = |options: &str| {
        let (key, cert) = (pki.join("server-privkey.pem"), pki.join("server-cert.pem"));
        let o = server.run(&format!(
            "openssl s_client -connect 127.0.0.1:{port} -key {} -cert {} {options} < /dev/null",
            key.display(),
            cert.display()
        ));
        String::from_utf8_lossy(&o.stdout).into_owned()
    };
    assert!(client("").contains("ECDHE-RSA-AES128-GCM-SHA256"));
    assert!(client("-tls1_3").contains("Cipher is (NONE)"));
    assert!(client("-tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384").contains("Cipher is (NONE)"));
    let refused = Command::new(env!("CARGO_BIN_EXE_ovsdb")).arg("--ssl-protocols=TLSv1").arg(&db).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only TLSv1.2 and TLSv1.3 are supported"));
}

/// As ovn-ctl starts a server: what TLS may be stands in the database, and changes there.
#[test]
fn tls_protocols_and_ciphers_may_stand_in_the_database() {
    if !debian() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let pki = pki(root.path(), &["server"]);
    let mut options = tls_options(&pki, "server");
    options.extend(["--ssl-protocols=db:D,SSL,protocols", "--ssl-ciphers=db:D,SSL,ciphers"].map(String::from));
    let peers = servers(root.path(), &options);
    for s in &peers {
        let port = free_port();
        s.control(&format!("ovsdb-server/add-remote pssl:{port}:127.0.0.1"));
        let shows = |text: &str, wanted: &str| {
            let (key, cert) = (pki.join("server-privkey.pem"), pki.join("server-cert.pem"));
            let (key, cert) = (key.display(), cert.display());
            let client =
                format!("openssl s_client -connect 127.0.0.1:{port} -key {key} -cert {cert} {text} < /dev/null");
            wait_for(s, &client, |t| t.contains(wanted));
        };
        shows("-tls1_2", "Protocol  : TLSv1.2");
        let row =
            r#"{"op":"insert","table":"SSL","row":{"protocols":"TLSv1.2","ciphers":"ECDHE-RSA-AES128-GCM-SHA256"}}"#;
        s.output(&transact(&format!(r#"["D",{row}]"#)));
        shows("", "Cipher    : ECDHE-RSA-AES128-GCM-SHA256");
        shows("-tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384", "Cipher is (NONE)");
    }
    // What the command line itself says is checked, and that there is such a place.
    drop(peers);
    for (bad, why) in [("TLSv9", "not one of"), ("db:D,SSL,nope", "has no column"), ("db:D,SSL", "invalid syntax")] {
        let db = root.path().join("ours/d.db");
        let mut c = Command::new(env!("CARGO_BIN_EXE_ovsdb"));
        let o = c.arg(format!("--ssl-protocols={bad}")).arg("--unixctl=none").arg(db).output().unwrap();
        let text = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(!o.status.success() && text.contains(why), "{bad}: {text}");
    }
}

/// The packets of remotes carry the Differentiated Services Code Point that their row asks for, or 48.
#[test]
fn dscp_is_that_of_the_row() {
    if !debian() || Command::new("ss").arg("-V").output().is_err() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for s in servers(root.path(), &[]) {
        let (plain, marked, calling) = (free_port(), free_port(), free_port());
        s.output(&transact(&format!(
            r#"["D",{{"op":"insert","table":"Connection","uuid-name":"a","row":{{"target":"ptcp:{plain}:127.0.0.1"}}}},
            {{"op":"insert","table":"Connection","uuid-name":"b","row":{{"target":"ptcp:{marked}:127.0.0.1",
                "other_config":["map",[["dscp","10"]]]}}}},
            {{"op":"insert","table":"Connection","uuid-name":"c","row":{{"target":"tcp:127.0.0.1:{calling}",
                "max_backoff":1000,"other_config":["map",[["dscp","46"]]]}}}},
            {{"op":"insert","table":"Global","row":{{"connections":["set",[["named-uuid","a"],["named-uuid","b"],
                ["named-uuid","c"]]]}}}}]"#
        )));
        let wait = "ovsdb-client --detach --no-chdir -vconsole:off --pidfile";
        for (n, port) in [plain, marked].into_iter().enumerate() {
            wait_for(&s, &format!("ovsdb-client -vconsole:off list-dbs tcp:127.0.0.1:{port}"), |t| {
                t.contains("_Server")
            });
            s.output(&format!("{wait}={n}.pid monitor tcp:127.0.0.1:{port} D Own > /dev/null 2>&1"));
        }
        s.output(&format!("{wait}=2.pid lock ptcp:{calling}:127.0.0.1 l > /dev/null 2>&1"));
        let tos = |filter: &str, value: u8| {
            let show = format!("ss -Htn --tos state established '{filter}'");
            wait_for(&s, &show, |t| t.contains(&format!("tos:{value:#x}")));
        };
        tos(&format!("sport = :{plain}"), 48 << 2);
        tos(&format!("sport = :{marked}"), 10 << 2);
        tos(&format!("dport = :{calling}"), 46 << 2);
        s.output("kill $(cat 0.pid 1.pid 2.pid)");
    }
}

/// A key and a certificate that are exchanged in their files are those of the next connection, in both servers.
#[test]
fn renewed_certificates_are_used() {
    if !debian() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let pki = pki(root.path(), &["server", "renewed"]);
    let options = tls_options(&pki, "server");
    let peers = servers(root.path(), &options);
    let ports = [0, 1].map(|i| {
        let n = free_port();
        peers[i].control(&format!("ovsdb-server/add-remote pssl:{n}:127.0.0.1"));
        n
    });
    let subject = |p: &Peer, n: u16| {
        let (key, cert) = (pki.join("renewed-privkey.pem"), pki.join("renewed-cert.pem"));
        let o = p.run(&format!(
            "openssl s_client -connect 127.0.0.1:{n} -key {} -cert {} < /dev/null",
            key.display(),
            cert.display()
        ));
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        text.lines().find(|l| l.starts_with("subject=")).map(str::to_string)
    };
    let named = |name: &str| Some(format!("subject=O = ovs, OU = id, CN = {name}"));
    for (p, n) in peers.iter().zip(ports) {
        assert_eq!(subject(p, n), named("server"), "{}", p.program.display());
    }
    // A file's time has to differ for ovsdb-server to see it.
    std::thread::sleep(Duration::from_millis(1100));
    for file in ["privkey", "cert"] {
        std::fs::copy(pki.join(format!("renewed-{file}.pem")), pki.join(format!("server-{file}.pem"))).unwrap();
    }
    for (p, n) in peers.iter().zip(ports) {
        let until = Instant::now() + Duration::from_secs(20);
        while subject(p, n) != named("renewed") {
            assert!(Instant::now() < until, "{}: {:?}", p.program.display(), subject(p, n));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn connection_rows_tell_the_same() {
    if !debian() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let servers = servers(root.path(), &[]);
    let shown = servers.each_ref().map(|s| {
        let (listening, calling) = (free_port(), free_port());
        s.output(&transact(&format!(
            r#"["D",{{"op":"insert","table":"Connection","uuid-name":"a","row":{{"target":"ptcp:{listening}:127.0.0.1"}}}},
            {{"op":"insert","table":"Connection","uuid-name":"b","row":{{"target":"tcp:127.0.0.1:{calling}","max_backoff":1000}}}},
            {{"op":"insert","table":"Global","row":{{"connections":["set",[["named-uuid","a"],["named-uuid","b"]]]}}}}]"#
        )));
        let show = "ovsdb-client -f csv --no-headings dump $DB D Connection is_connected status";
        let sorted = |t: &str| {
            let t = t.replace(&listening.to_string(), "PORT");
            let seconds = |l: &str| l.split("sec_since").next().unwrap_or_default().to_string();
            let mut lines: Vec<String> =
                t.lines().map(|l| if l.contains("PORT") { l.to_string() } else { seconds(l) }).collect();
            lines.sort();
            lines.join("\n")
        };
        let before = sorted(&wait_for(s, show, |t| t.contains("bound_port") && t.contains("BACKOFF")));
        let monitor = format!("ovsdb-client --detach --pidfile=a.pid -vconsole:off monitor tcp:127.0.0.1:{listening} D Own");
        s.output(&format!("{monitor} > /dev/null 2>&1"));
        s.output(&format!("{} > /dev/null 2>&1", monitor.replace("a.pid", "b.pid")));
        let lock = format!("ovsdb-client --detach --pidfile=c.pid -vconsole:off lock ptcp:{calling}:127.0.0.1 l");
        s.output(&format!("{lock} > /dev/null 2>&1"));
        let during = sorted(&wait_for(s, show, |t| t.contains("n_connections") && t.contains("ACTIVE")));
        s.output("kill $(cat a.pid b.pid c.pid)");
        let after = sorted(&wait_for(s, show, |t| !t.contains("true")));
        [before, during, after]
    });
    assert_eq!(shown[0], shown[1]);
}
