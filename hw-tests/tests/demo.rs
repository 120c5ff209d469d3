//! The demo as a program: what `make demo` runs.

mod common;

use common::{Guard, able};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LAB: &str = env!("CARGO_BIN_EXE_isthmus-lab");

fn demo_yaml() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml").display().to_string()
}

fn lab(args: &[&str]) -> Output {
    Command::new(LAB).args(args).stdin(Stdio::null()).output().expect("isthmus-lab runs")
}

/// Nothing of a lab is left: no namespace, no process, no directory.
fn gone(name: &str) {
    let list = Command::new("ip").args(["netns", "list"]).output().expect("ip");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(!list.contains(&format!("{name}-")), "{list}");
    let dir = std::env::temp_dir().join(format!("{name}-lab"));
    assert!(!dir.exists(), "{}", dir.display());
    let dir = dir.display().to_string();
    for p in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let environ = std::fs::read(p.path().join("environ")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&environ);
        assert!(!environ.contains(&dir), "{} still runs", p.path().display());
    }
}

/// Starts the demo, interrupts it as soon as it says `at`, and waits for its end.
fn interrupted(name: &str, at: &str, signal: Signal) {
    let mut child = Command::new(LAB)
        .args(["gateway", "--name", name, "--network", &demo_yaml()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("isthmus-lab runs");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let mut seen = None;
    for line in out.lines().map_while(Result::ok) {
        if seen.is_none() && line.contains(at) {
            seen = Some(Instant::now());
            kill(Pid::from_raw(child.id() as i32), signal).expect("signal");
        }
    }
    let status = child.wait().expect("wait");
    let seen = seen.unwrap_or_else(|| panic!("it never said {at:?}"));
    assert!(!status.success());
    assert!(seen.elapsed() < Duration::from_secs(10), "{:?}", seen.elapsed());
    gone(name);
}

#[test]
fn everything_is_gone_after_an_interruption() {
    let _one = Guard::take();
    if !able(&[]) {
        return;
    }
    // While it is being built, and while it runs.
    interrupted("isint", "hv2: switch", Signal::SIGINT);
    interrupted("isint", "vm1 → vm3", Signal::SIGTERM);
}

#[test]
fn a_mistake_is_reported_with_its_line_and_everything_is_gone() {
    let _one = Guard::take();
    if !able(&[]) {
        return;
    }
    let yaml = std::fs::read_to_string(demo_yaml()).expect("demo.yaml");
    let line = yaml.lines().position(|l| l.contains("10.0.1.11]")).expect("vm1") + 1;
    let file = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(file.path(), yaml.replace("10.0.1.11]", "10.0.1.300]")).expect("write");
    let out = lab(&["gateway", "--name", "iserr", "--steady", "--network", &file.path().display().to_string()]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success());
    assert!(said.contains(&format!("line {line}:")) && said.contains("10.0.1.300"), "{said}");
    gone("iserr");
}

#[test]
fn it_can_be_kept_and_looked_at() {
    let _one = Guard::take();
    if !able(&[]) {
        return;
    }
    let page = tempfile::NamedTempFile::new().expect("file");
    let path = page.path().display().to_string();
    let out = lab(&["gateway", "--name", "iskeep", "--network", &demo_yaml(), "--steady", "--keep", "--page", &path]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let html = std::fs::read_to_string(&path).expect("page");
    assert!(html.contains("<svg") && html.contains("gw1") && !html.contains("http"), "{html}");
    // What it says about looking around works.
    let commands: Vec<&str> = said.lines().filter(|l| l.starts_with("  ")).map(str::trim).collect();
    assert!(commands.len() >= 4, "{said}");
    for c in commands {
        let words: Vec<&str> = c.split(' ').collect();
        if words[0] == "ovs-ofctl" && !able(&["ovs-ofctl"]) {
            continue;
        }
        let count: &[&str] = if c.contains("ping") { &["-c", "2"] } else { &[] };
        let out = Command::new(words[0]).args(&words[1..]).args(count).output().expect(c);
        assert!(out.status.success() && !out.stdout.is_empty(), "{c}: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert!(lab(&["clean", "--name", "iskeep"]).status.success());
    gone("iskeep");
}
