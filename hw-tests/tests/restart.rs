//! A crash, restart or upgrade of a control-plane daemon does not drop a packet, and that of a controller does not take a flow out of
//! the switch, not even for a moment.

mod common;
#[path = "common/flows.rs"]
mod flows;

use common::{Guard, able};
use flows::Watch;
use hw_tests::agent::Arrivals;
use hw_tests::lab::{Lab, until};
use hw_tests::network::{Cast, Network};
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;

const SECONDS: &str = "7";

/// Numbered datagrams between machines on two chassis and from outside through the gateway, while something happens.
fn without_loss(n: &mut Network, what: &str, happens: impl FnOnce(&mut Network)) {
    let agent = n.agent();
    for (port, machine) in [("7002", "vm3"), ("7003", "vm2")] {
        n.lab.spawn(machine, port, &agent, &["agent", "udp-receive", port, "--seconds", "12"]).expect("receiver");
    }
    n.lab.pause(Duration::from_millis(300)).expect("pause");
    for (machine, to) in [("ext", "172.16.0.13:7002"), ("vm1", "10.0.2.12:7003")] {
        n.lab.spawn(machine, "send", &agent, &["agent", "udp-send", to, "--seconds", SECONDS]).expect("sender");
    }
    n.lab.pause(Duration::from_secs(1)).expect("pause");
    happens(n);
    for (port, machine) in [("7002", "vm3"), ("7003", "vm2")] {
        let ended = n.lab.wait(machine, port, Duration::from_secs(60));
        let said = n.lab.output(machine, port);
        assert!(ended, "{what}: {machine}'s receiver: {said}");
        let a: Arrivals = serde_json::from_str(said.trim()).expect("arrivals");
        let numbers: Vec<u64> = a.datagrams.iter().map(|d| d.0).collect();
        let (first, last) = (numbers.iter().min().copied().unwrap_or(0), numbers.iter().max().copied().unwrap_or(0));
        assert!(last > 1300, "{what}: {machine} heard up to {last} of 1400");
        assert_eq!(numbers.len() as u64, last - first + 1, "{what}: {machine} misses some");
    }
}

/// Looks at the flows of these machines' integration bridges, in our switch.
fn watch(n: &Network, machines: &[&str]) -> Vec<Watch> {
    machines.iter().map(|m| Watch::start(n.lab.machine_dir(m).join("br-int.mgmt"))).collect()
}

fn realised(n: &Network) {
    let yaml = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml");
    until("all chassis follow", Duration::from_secs(20), || n.apply(&yaml)).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn control_plane_daemons_come_and_go() {
    let _one = Guard::take();
    if !able(&[]) {
        return;
    }
    let lab = Lab::new("isres", &std::env::temp_dir().join("isthmus-restart")).expect("lab");
    let mut n = Network::start(lab, Cast::default(), |_| {}).expect("network");
    n.apply(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml")).expect("apply");
    n.addresses().expect("addresses");
    for (from, to) in [("ext", "172.16.0.13"), ("vm1", "10.0.2.12")] {
        until(to, Duration::from_secs(20), || n.lab.exec(from, "ping", &["-c", "1", "-W", "1", to])).expect("ping");
    }
    let watches = watch(&n, &["hv1", "gw1", "hv2"]);
    without_loss(&mut n, "controllers crash", |n| {
        for m in ["hv1", "gw1", "hv2"] {
            n.lab.kill(m, "controller");
            n.controller(m).expect("controller");
        }
    });
    realised(&n);
    watches.into_iter().for_each(|w| w.end("controllers crash"));
    let watches = watch(&n, &["gw1", "hv2"]);
    without_loss(&mut n, "controllers restart", |n| {
        for m in ["gw1", "hv2"] {
            let rundir = n.lab.machine_dir(m);
            let ctl = std::fs::read_dir(&rundir).expect("directory").flatten().map(|e| e.path());
            let ctl = ctl
                .filter(|p| p.to_string_lossy().contains("/controller.") && p.extension().is_some_and(|e| e == "ctl"))
                .find(|p| std::os::unix::net::UnixStream::connect(p).is_ok())
                .expect("control socket");
            command(&ctl, "exit", &["--restart"]);
            assert!(n.lab.wait(m, "controller", Duration::from_secs(10)), "{m}: {}", n.lab.output(m, "controller"));
            n.controller(m).expect("controller");
        }
    });
    realised(&n);
    watches.into_iter().for_each(|w| w.end("controllers restart"));
    without_loss(&mut n, "northd with its databases crashes", |n| {
        n.lab.kill("central", "northd");
        n.central_again().expect("northd");
    });
    realised(&n);
    without_loss(&mut n, "northd is stopped and goes on", |n| {
        n.lab.signal("central", "northd", Signal::SIGSTOP);
        n.lab.pause(Duration::from_secs(2)).expect("pause");
        n.lab.signal("central", "northd", Signal::SIGCONT);
    });
    realised(&n);
}

/// A command to a daemon's control socket (JSON-RPC 1.0).
fn command(socket: &Path, method: &str, params: &[&str]) {
    use std::io::{Read, Write};
    let mut s = std::os::unix::net::UnixStream::connect(socket).expect("control socket");
    let request = serde_json::json!({"id": 0, "method": method, "params": params});
    s.write_all(request.to_string().as_bytes()).expect("write");
    let mut answer = [0; 256];
    let n = s.read(&mut answer).expect("read");
    let text = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(text.contains("\"error\":null"), "{text}");
}
