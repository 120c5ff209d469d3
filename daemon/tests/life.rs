//! A daemon's life from the outside, under another name as a drop-in link gives it.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    fn new() -> Sandbox {
        let dir = tempfile::tempdir().unwrap();
        let tests = std::env::current_exe().unwrap();
        let idle = tests.parent().unwrap().parent().unwrap().join("examples/idle");
        std::os::unix::fs::symlink(idle, dir.path().join("ovn-idle")).unwrap();
        Sandbox { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new(program);
        for v in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"] {
            c.env(v, self.dir.path());
        }
        c.env("OVS_SYSLOG_METHOD", "null").current_dir(self.dir.path());
        c
    }

    fn start(&self, args: &[&str]) -> Output {
        self.command(self.path("ovn-idle")).args(args).output().unwrap()
    }

    fn pid(&self) -> i32 {
        std::fs::read_to_string(self.path("ovn-idle.pid")).unwrap().strip_suffix('\n').unwrap().parse().unwrap()
    }

    /// Result or error of a command.
    fn ask(&self, method: &str, args: &[&str]) -> Result<String, String> {
        let mut s = UnixStream::connect(self.path(&format!("ovn-idle.{}.ctl", self.pid()))).unwrap();
        let request = serde_json::json!({"id": 0, "method": method, "params": args}).to_string();
        let (a, b) = request.split_at(7);
        s.write_all(a.as_bytes()).unwrap();
        s.write_all(b.as_bytes()).unwrap();
        s.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        s.read_to_string(&mut text).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(reply["id"], 0);
        match reply["error"].as_str() {
            Some(e) => {
                assert!(reply.get("result").is_none());
                Err(e.to_string())
            }
            None => Ok(reply["result"].as_str().unwrap().to_string()),
        }
    }

    fn gone(&self, pid: i32) {
        let until = Instant::now() + Duration::from_secs(10);
        while Path::new(&format!("/proc/{pid}/cwd")).read_link().is_ok() {
            assert!(Instant::now() < until, "process {pid} is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!self.path("ovn-idle.pid").exists());
        assert!(!self.path(&format!("ovn-idle.{pid}.ctl")).exists());
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Ok(text) = std::fs::read_to_string(self.path("ovn-idle.pid")) {
            let _ = Command::new("kill").arg(text.trim()).status();
        }
    }
}

#[test]
fn detached_until_exit() {
    let s = Sandbox::new();
    let out = s.start(&["--detach", "--pidfile", "--log-file", "-vconsole:off", "-vgreeter:file:dbg"]);
    assert!(out.status.success(), "{out:?}");
    assert!(out.stderr.is_empty(), "{out:?}");
    let pid = s.pid();
    assert_eq!(s.ask("greet", &["you"]).unwrap(), "hello you\n");
    assert_eq!(s.ask("greet", &[]).unwrap_err(), "\"greet\" command requires at least 1 arguments\n");
    assert_eq!(s.ask("greet", &["a", "b", "c"]).unwrap_err(), "\"greet\" command takes at most 2 arguments\n");
    let unknown = "\"x\" is not a valid command (use \"list-commands\" to see a list of valid commands)\n";
    assert_eq!(s.ask("x", &[]).unwrap_err(), unknown);
    assert_eq!(s.ask("coverage/read-counter", &["greetings"]).unwrap(), "1\n");
    assert_eq!(s.ask("coverage/read-counter", &["x"]).unwrap_err(), "No such counter\n");
    assert_eq!(s.ask("memory/show", &[]).unwrap(), "greetings:1\n");
    let metrics = s.ask("metrics/show", &[]).unwrap();
    assert!(metrics.contains("\nisthmus_events_total{event=\"greetings\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nisthmus_objects{kind=\"greetings\"} 1\n"), "{metrics}");
    assert!(s.ask("list-commands", &[]).unwrap().contains("\n  greet                   NAME\n"));

    let nowhere = s.start(&["--metrics=nowhere"]);
    assert!(!nowhere.status.success());
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("--metrics=nowhere: expected PORT or ADDRESS:PORT"));
    let again = s.start(&["--detach", "--pidfile"]);
    assert!(!again.status.success());
    let text = String::from_utf8(again.stderr).unwrap();
    assert!(text.ends_with(&format!("ovn-idle.pid: already running as pid {pid}, aborting\n")), "{text}");

    assert_eq!(s.ask("vlog/set", &["greeter:file:warn"]).unwrap(), "");
    s.ask("greet", &["unlogged"]).unwrap();
    std::fs::rename(s.path("ovn-idle.log"), s.path("old.log")).unwrap();
    s.ask("vlog/reopen", &[]).unwrap();
    s.ask("vlog/set", &[]).unwrap();
    s.ask("greet", &["two"]).unwrap();
    let (old, new) = (std::fs::read_to_string(s.path("old.log")).unwrap(), s.path("ovn-idle.log"));
    let new = std::fs::read_to_string(new).unwrap();
    assert!(old.contains("|00001|vlog|INFO|opened log file "), "{old}");
    assert!(old.contains("|greeter|DBG|greeting you\n") && !old.contains("unlogged"), "{old}");
    assert!(new.contains("|greeter|DBG|greeting two\n"), "{new}");

    assert_eq!(s.ask("exit", &[]).unwrap(), "");
    s.gone(pid);
}

#[test]
fn sigterm_and_a_stale_pidfile() {
    let s = Sandbox::new();
    std::fs::write(s.path("ovn-idle.pid"), "1\n").unwrap();
    assert!(s.start(&["--detach", "--pidfile"]).status.success());
    let pid = s.pid();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    s.gone(pid);
    let out = s.start(&["--detach", "--pidfile", "-vbogus", "-vdpif_netdev:dbg"]);
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains("processing \"bogus\": no destination, level, or module \"bogus\""), "{text}");
    assert!(s.ask("vlog/list", &[]).unwrap().contains("\ndpif_netdev        OFF        DBG        DBG\n"));
    let pid = s.pid();
    s.ask("exit", &[]).unwrap();
    s.gone(pid);
    assert_eq!(s.start(&["--version"]).stdout, b"idle 1.0\n");
}

#[test]
fn the_background_process_is_the_same_file_under_the_same_name() {
    use std::os::unix::process::CommandExt;
    let s = Sandbox::new();
    // A program of that name stands in PATH and would be taken by anyone who looks for argv[0] there.
    let other = s.path("ovn-renamed");
    std::fs::write(&other, "#!/bin/sh\necho wrong program >&2\nexit 7\n").unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", s.path("").display(), std::env::var("PATH").unwrap());
    let idle = std::fs::canonicalize(s.path("ovn-idle")).unwrap();
    let mut command = s.command(&idle);
    let out = command.arg0("ovn-renamed").env("PATH", path).args(["--detach", "--pidfile"]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let pid = std::fs::read_to_string(s.path("ovn-renamed.pid")).unwrap().trim().to_string();
    std::fs::rename(s.path("ovn-renamed.pid"), s.path("ovn-idle.pid")).unwrap();
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), idle);
    assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "ovn-renamed\n");
    assert!(std::fs::read(format!("/proc/{pid}/cmdline")).unwrap().starts_with(b"ovn-renamed\0--detach\0"));
    assert!(s.path(&format!("ovn-renamed.{pid}.ctl")).exists());
}

#[test]
fn messages_are_limited_until_that_is_lifted() {
    let s = Sandbox::new();
    assert!(s.start(&["--detach", "--pidfile", "--log-file"]).status.success());
    let count = || std::fs::read_to_string(s.path("ovn-idle.log")).unwrap().matches("|greeter|WARN|complaint").count();
    s.ask("complain", &["100"]).unwrap();
    assert_eq!(count(), 20);
    assert_eq!(s.ask("vlog/disable-rate-limit", &["nosuch"]).unwrap_err(), "unknown module\n");
    s.ask("vlog/disable-rate-limit", &["greeter"]).unwrap();
    s.ask("complain", &["100"]).unwrap();
    assert_eq!(count(), 120);
    s.ask("vlog/enable-rate-limit", &[]).unwrap();
    s.ask("complain", &["100"]).unwrap();
    assert_eq!(count(), 120);
}

#[test]
fn a_panics_text_is_in_the_log() {
    let s = Sandbox::new();
    assert!(s.start(&["--detach", "--pidfile", "--log-file"]).status.success());
    s.ask("panic", &["the sky falls"]).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let text = std::fs::read_to_string(s.path("ovn-idle.log")).unwrap();
        if text.contains("|daemon|EMER|thread ") {
            assert!(text.contains("idle.rs:") && text.contains(": the sky falls\n"), "{text}");
            break;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_signal_of_a_fault_ends_it() {
    use nix::sys::signal::{Signal, kill};
    for signal in [Signal::SIGSEGV, Signal::SIGBUS] {
        let s = Sandbox::new();
        assert!(s.start(&["--detach", "--pidfile"]).status.success());
        let pid = s.pid();
        kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while Path::new(&format!("/proc/{pid}/cwd")).read_link().is_ok() {
            assert!(Instant::now() < until, "{signal} did not end process {pid}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ovs_appctl_speaks_with_it() {
    if !needs::installed(&["ovs-appctl"]) {
        return;
    }
    let s = Sandbox::new();
    assert!(s.start(&["--detach", "--pidfile"]).status.success());
    let pid = s.pid();
    let run = |args: &[&str]| s.command("ovs-appctl").args(["-t", "ovn-idle"]).args(args).output().unwrap();
    assert_eq!(run(&["greet", "a", "b"]).stdout, b"hello a b\n");
    let bad = run(&["vlog/set", "bogus"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(bad.stderr.starts_with(b"no destination, level, or module \"bogus\"\n"));
    assert!(run(&["vlog/list"]).stdout.starts_with(b"                 console    syslog    file\n"));
    assert!(run(&["vlog/disable-rate-limit"]).status.success());
    // Newer clients ask for JSON; a command without values gives its text, and an error stays one.
    let mut c = UnixStream::connect(s.path(&format!("ovn-idle.{pid}.ctl"))).unwrap();
    for (method, params) in [
        ("set-options", "--format=json"),
        ("greet", "a"),
        ("set-options", "--format=yaml"),
        ("set-options", "--format=text"),
        ("greet", "b"),
    ] {
        c.write_all(serde_json::json!({"id": 1, "method": method, "params": [params]}).to_string().as_bytes()).unwrap();
    }
    c.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    c.read_to_string(&mut text).unwrap();
    let replies: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect();
    let [set, greeted, wrong, back, again] = replies.as_slice() else { panic!("{text}") };
    assert_eq!(set["result"], serde_json::json!({"reply-format": "plain", "reply": ""}));
    assert_eq!(greeted["result"], serde_json::json!({"reply-format": "plain", "reply": "hello a"}));
    assert_eq!(wrong["error"], "option format has invalid value yaml\n");
    assert_eq!((&back["result"], &again["result"]), (&"".into(), &"hello b\n".into()));
    assert!(run(&["exit"]).status.success());
    s.gone(pid);
}

#[test]
fn a_syslog_server_gets_messages() {
    let s = Sandbox::new();
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let target = format!("--syslog-target={}", server.local_addr().unwrap());
    assert!(s.start(&["--detach", "--pidfile", "-vgreeter:syslog:dbg", "-vFACILITY:local3", &target]).status.success());
    let pid = s.pid();
    s.ask("greet", &["you"]).unwrap();
    let mut text = [0; 1024];
    let text = loop {
        let n = server.recv(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text[..n]).into_owned();
        if text.contains("greeting") {
            break text;
        }
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    // local3 is 19, debugging 7 (RFC 5424 section 6.2.1).
    assert!(text.starts_with("<159>1 20"), "{text}");
    assert!(text.ends_with(&format!(" {} ovn-idle {pid} greeter - \u{feff}greeting you", host.trim())), "{text}");
    s.ask("exit", &[]).unwrap();
    s.gone(pid);
    let out = s.start(&["--syslog-target=localhost"]);
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && error.contains("syslog target localhost:"), "{error}");
}
