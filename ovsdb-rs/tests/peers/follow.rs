//! Relays and backups, of ours and of Debian's server.

use crate::servers::{DEBIAN, Peer, debian};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const OURS: &str = env!("CARGO_BIN_EXE_ovsdb");
const SCHEMA: &str = "/usr/share/openvswitch/vtep.ovsschema";

fn source(program: &str, root: &Path) -> Peer {
    let dir = root.join("source");
    std::fs::create_dir_all(&dir).unwrap();
    let db = create(&dir);
    Peer::start(program, &dir, &[db])
}

fn create(dir: &Path) -> String {
    let db = dir.join("vtep.db");
    assert!(Command::new("ovsdb-tool").arg("create").arg(&db).arg(SCHEMA).status().unwrap().success());
    db.display().to_string()
}

fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(v) = f() {
            return v;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn dump(peer: &Peer) -> String {
    String::from_utf8(peer.run("ovsdb-client -f csv dump $DB hardware_vtep").stdout).unwrap()
}

fn same(a: &Peer, b: &Peer) {
    until("the same content", || (dump(a).len() > 100 && dump(a) == dump(b)).then_some(()));
}

const NB: &str = "/usr/share/ovn/ovn-nb.ovsschema";
const NBCTL: &str = "ovn-nbctl --db=$DB --no-leader-only";

fn northbound(program: &str, root: &Path) -> Peer {
    let dir = root.join("source");
    std::fs::create_dir_all(&dir).unwrap();
    let db = dir.join("nb.db");
    assert!(Command::new("ovsdb-tool").arg("create").arg(&db).arg(NB).status().unwrap().success());
    let source = Peer::start(program, &dir, &[db.display().to_string()]);
    source.output("ovn-nbctl init -- ls-add ls0 -- lsp-add ls0 p0");
    source
}

fn relay(program: &str, source: &Peer, root: &Path) -> Peer {
    let dir = root.join("relay");
    std::fs::create_dir_all(&dir).unwrap();
    let remote = format!("unix:{}", source.dir.join("db.sock").display());
    let relay = Peer::start(program, &dir, &[format!("relay:OVN_Northbound:{remote}")]);
    relay.output("ovsdb-client --no-leader-only wait $DB OVN_Northbound connected");
    relay
}

fn same_nb(a: &Peer, b: &Peer) {
    let dump = |p: &Peer| p.run("ovsdb-client --no-leader-only -f csv dump $DB OVN_Northbound").stdout;
    until("the same content", || (dump(a).len() > 100 && dump(a) == dump(b)).then_some(()));
}

fn relay_of(program: &str) {
    if !debian() || !Path::new(NB).exists() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let mut source = northbound(program, root.path());
    let relay = relay(OURS, &source, root.path());
    same_nb(&source, &relay);
    let show = "ovsdb-client -f csv --no-headings dump $DB _Server Database name model connected leader";
    assert!(relay.output(show).contains("true,false,relay,OVN_Northbound"), "{}", relay.output(show));

    // Changes pass through, and are there when the answer is.
    for i in 2..12 {
        relay.output(&format!("{NBCTL} ls-add ls{i}"));
        assert!(relay.output(&format!("{NBCTL} ls-list")).contains(&format!("(ls{i})")));
    }
    same_nb(&source, &relay);
    let o = relay.run(&format!("{NBCTL} lsp-add ls2 p0"));
    assert!(!o.status.success() && String::from_utf8_lossy(&o.stderr).contains("p0"), "{o:?}");

    // The source restarts: the relay's clients see neither an interruption nor rows again.
    relay.output(
        "ovsdb-client --no-leader-only --detach --pidfile=m.pid -vconsole:off -f csv \
         monitor $DB OVN_Northbound Logical_Switch '!initial,name' > m.out 2>&1",
    );
    source.kill();
    until("the loss is noticed", || relay.output(show).contains("false,false,relay").then_some(()));
    let select = r#"["OVN_Northbound",{"op":"select","table":"Logical_Switch","where":[],"columns":["name"]}]"#;
    let late = r#"["OVN_Northbound",{"op":"insert","table":"Logical_Switch","row":{"name":"late"}}]"#;
    let late = std::thread::scope(|scope| {
        // A change waits until the source is there again; what is there can be read meanwhile.
        let late = scope.spawn(|| relay.run(&format!("ovsdb-client --no-leader-only -t 20 transact $DB '{late}'")));
        let rows = relay.run(&format!("ovsdb-client --no-leader-only -t 5 transact $DB '{select}'"));
        assert!(String::from_utf8_lossy(&rows.stdout).contains("ls11"), "{rows:?}");
        std::thread::sleep(Duration::from_millis(500));
        source.restart();
        late.join().unwrap()
    });
    assert!(late.status.success(), "{}", String::from_utf8_lossy(&late.stderr));
    same_nb(&source, &relay);
    until("the change is told", || relay.output("cat m.out").contains("late").then_some(()));
    let told = relay.output("cat m.out; kill $(cat m.pid)");
    assert!(!told.contains("ls1"), "{told}");
}

#[test]
fn relays_our_server() {
    relay_of(OURS);
}

#[test]
fn relays_debians_server() {
    relay_of(DEBIAN);
}

/// Debian's relay can be fed by ours.
#[test]
fn debians_relay_follows_our_server() {
    if !debian() || !Path::new(NB).exists() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let source = northbound(OURS, root.path());
    let relay = relay(DEBIAN, &source, root.path());
    relay.output(&format!("{NBCTL} ls-add ls2"));
    same_nb(&source, &relay);
}

/// A backup of `program`'s server by `backup`'s.
fn backup_of(program: &str, backup: &str) {
    if !debian() || !Path::new(SCHEMA).exists() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let mut source = source(program, root.path());
    source.output("vtep-ctl --db=$DB add-ps ps1 -- add-port ps1 p1 -- add-ls ls1 -- add-lr lr1");
    let dir = root.path().join("backup");
    std::fs::create_dir_all(&dir).unwrap();
    let db = create(&dir);
    let remote = format!("unix:{}", source.dir.join("db.sock").display());
    let mut backup = Peer::start(backup, &dir, &[db.clone(), format!("--sync-from={remote}")]);
    same(&source, &backup);
    let replicating = format!("state: backup\nreplicating: {remote}\ndatabase: hardware_vtep\n");
    assert_eq!(backup.control("ovsdb-server/sync-status"), replicating);
    let o = backup.run("vtep-ctl --db=$DB --timeout=5 add-ls mine");
    assert!(String::from_utf8_lossy(&o.stderr).contains("read only"), "{o:?}");
    source.output("vtep-ctl --db=$DB add-ls ls2 -- del-ls ls1 -- bind-ls ps1 p1 7 ls2");
    same(&source, &backup);

    // The active server is gone for a while and changes meanwhile.
    source.kill();
    source.restart();
    source.output("vtep-ctl --db=$DB add-ls ls3 -- del-lr lr1");
    same(&source, &backup);

    // The backup takes over, restarts, and is what the old active server follows.
    let last = dump(&source);
    source.kill();
    backup.control("ovsdb-server/disconnect-active-ovsdb-server");
    assert_eq!(backup.control("ovsdb-server/sync-status"), "state: active\n");
    assert_eq!(dump(&backup), last);
    backup.arguments.truncate(1);
    backup.kill();
    backup.restart();
    assert_eq!(dump(&backup), last, "what was replicated is on disk");
    backup.output("vtep-ctl --db=$DB add-ls ls4 -- del-ls ls2 || vtep-ctl --db=$DB add-ls ls4");
    source.restart();
    source.control(&format!("ovsdb-server/set-active-ovsdb-server unix:{}", backup.dir.join("db.sock").display()));
    source.control("ovsdb-server/connect-active-ovsdb-server");
    same(&backup, &source);
}

#[test]
fn backs_up_our_server() {
    backup_of(OURS, OURS);
}

#[test]
fn backs_up_debians_server() {
    backup_of(DEBIAN, OURS);
}

#[test]
fn debians_server_backs_ours_up() {
    backup_of(OURS, DEBIAN);
}

/// Tables that are left out keep what they had.
#[test]
fn a_backup_leaves_excluded_tables_alone() {
    if !debian() || !Path::new(SCHEMA).exists() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let source = source(OURS, root.path());
    source.output("vtep-ctl --db=$DB add-ls theirs -- add-lr theirs");
    let dir = root.path().join("backup");
    std::fs::create_dir_all(&dir).unwrap();
    let db = create(&dir);
    let backup = Peer::start(OURS, &dir, &[db]);
    backup.output("vtep-ctl --db=$DB add-ls mine -- add-lr mine");
    let remote = format!("unix:{}", source.dir.join("db.sock").display());
    backup.control("ovsdb-server/set-sync-exclude-tables hardware_vtep:Logical_Router");
    backup.control(&format!("ovsdb-server/set-active-ovsdb-server {remote}"));
    backup.control("ovsdb-server/connect-active-ovsdb-server");
    until("replicated", || backup.output("vtep-ctl --db=$DB list-ls").contains("theirs").then_some(()));
    assert!(!backup.output("vtep-ctl --db=$DB list-ls").contains("mine"));
    assert_eq!(backup.output("vtep-ctl --db=$DB --columns=name --bare list logical_router").trim(), "mine");
    let status = backup.control("ovsdb-server/sync-status");
    assert!(status.ends_with("exclude: hardware_vtep:Logical_Router\n"), "{status}");
}

/// A server whose configuration file serves `vtep.db`, with `settings`, on `db.sock`.
fn configured(root: &Path, name: &str, settings: &str) -> Peer {
    let dir = root.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    create(&dir);
    configure(&dir, settings);
    Peer::start(OURS, &dir, &[format!("--config-file={}", dir.join("config.json").display())])
}

fn configure(dir: &Path, settings: &str) {
    let (socket, db) = (dir.join("db.sock"), dir.join("vtep.db"));
    let text = format!(
        r#"{{"remotes": {{"punix:{}": {{}}}}, "databases": {{"{}": {settings}}}}}"#,
        socket.display(),
        db.display()
    );
    std::fs::write(dir.join("config.json"), text).unwrap();
}

fn follows(source: &str, is: bool) -> String {
    format!(
        r#"{{"service-model": "active-backup", "backup": {is}, "source": {{"{source}": {{"max-backoff": 1000}}}}}}"#
    )
}

/// Two servers exchange their roles by what their configuration files say; a file that is wrong changes nothing.
#[test]
fn a_configuration_file_makes_backups_and_takes_them_back() {
    if !debian() || !Path::new(SCHEMA).exists() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let [a_socket, b_socket] = ["a", "b"].map(|n| format!("unix:{}", root.path().join(n).join("db.sock").display()));
    let a = configured(root.path(), "a", "{}");
    let b = configured(root.path(), "b", &follows(&a_socket, true));
    a.output("vtep-ctl --db=$DB add-ls ls1");
    same(&a, &b);
    assert_eq!(a.control("ovsdb-server/sync-status"), "state: active\n");
    assert!(!b.run("vtep-ctl --db=$DB --timeout=5 add-ls mine").status.success(), "a backup takes no changes");
    let refused = b.run("ovs-appctl -t $PWD/server.ctl ovsdb-server/disconnect-active-ovsdb-server");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("use ovsdb-server/reload instead"), "{refused:?}");

    configure(&b.dir, &follows(&a_socket, false));
    b.control("ovsdb-server/reload");
    configure(&a.dir, &follows(&b_socket, true));
    a.control("ovsdb-server/reload");
    b.output("vtep-ctl --db=$DB add-ls ls2");
    same(&a, &b);
    assert_eq!(b.control("ovsdb-server/sync-status"), "database: hardware_vtep\nstate: active\n");

    // Neither words that nobody knows nor a database that is not there end what is served.
    for settings in [r#"{"service-model": "nosuch"}"#, r#"{}, "nowhere.db": {}"#] {
        configure(&b.dir, settings);
        let failed = b.run("ovs-appctl -t $PWD/server.ctl ovsdb-server/reload");
        assert!(!failed.status.success(), "{failed:?}");
        b.output("vtep-ctl --db=$DB list-ls");
    }
    let log = b.output("cat server.log");
    assert!(log.contains("'nosuch' is not a valid service model"), "{log}");
    assert!(log.contains("failed to open database 'nowhere.db'"), "{log}");
}
