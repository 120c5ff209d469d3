//! Gateways that know each other's connections (docs/ha.md): two switches with the flows of a gateway that translates
//! addresses, on devices of their own.

mod common;

use common::{Namespace, Switch, able, eventually, inside, run};
use gateway_ha::sync::{Connection, Record, State, Tuple, VERSION};
use nix::sys::signal::Signal;
use packet::{Headers, Mac, build};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Source and destination of a frame.
type Ends = (Ipv4Addr, u16, Ipv4Addr, u16);

fn ends(frame: &[u8]) -> Option<Ends> {
    let h = Headers::parse(frame)?;
    let ip = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
    let port = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let l4 = h.l4?;
    Some((ip(h.l3 + 12)?, port(l4)?, ip(h.l3 + 16)?, port(l4 + 2)?))
}

/// A gateway: clients behind `in`, the outside behind `out`. Both ports' frames are in capture files.
struct Gateway {
    switch: Switch,
    name: &'static str,
    zone: u16,
}

impl Gateway {
    /// `zone`: its number of the zone `lr_snat`, which differs between chassis.
    fn new(ns: &Namespace, name: &'static str, zone: u16) -> Gateway {
        let g = Gateway { switch: Switch::test_bed(ns), name, zone };
        g.switch.vsctl(&format!("set open . external_ids:system-id={name}"));
        g.switch.vsctl(&format!("add-br br-int -- set bridge br-int external_ids:ct-zone-lr_snat={zone}"));
        for (port, n) in [("in", 1), ("out", 2)] {
            let pcap = g.switch.path(&format!("{port}.pcap"));
            g.switch.vsctl(&format!(
                "add-port br-int {port} -- set interface {port} options:tx_pcap={pcap} ofport_request={n}"
            ));
        }
        g.flows();
        g
    }

    fn flows(&self) {
        let zone = self.zone;
        for flow in [
            format!("in_port=1,ip,actions=ct(commit,zone={zone},nat(src={OUTSIDE}),table=1)"),
            format!("in_port=2,ip,actions=ct(zone={zone},nat,table=2)"),
            "table=1,ip,actions=2".into(),
            "table=2,ct_state=+trk+est,ip,actions=1".into(),
        ] {
            // After a start the bridge comes a moment later.
            eventually(&flow, SOON, || self.switch.try_ofctl(&["add-flow", "br-int", &flow]).map(drop));
        }
    }

    /// Tells and hears other gateways; the port of each is given.
    fn peers(&self, listen: &str, all: &str) {
        self.switch.vsctl(&format!("set open . external_ids:isthmus-ha-listen={listen}"));
        self.switch.vsctl(&format!("set bridge br-int other_config:ha-peers=\"{all}\""));
    }

    /// The frames that left by a port: addresses and ports.
    fn sent(&self, port: &str) -> Vec<Ends> {
        let all = std::fs::read(self.switch.path(&format!("{port}.pcap"))).unwrap_or_default();
        let (mut at, mut found) = (24, Vec::new());
        while let Some(n) = all.get(at + 8..at + 12) {
            let n = u32::from_ne_bytes(n.try_into().expect("four bytes")) as usize;
            found.extend(all.get(at + 16..at + 16 + n).and_then(ends));
            at += 16 + n;
        }
        found
    }

    /// The frame that leaves by `out` when one comes in by `port`.
    fn passes(&self, port: &str, frame: &[u8], out: &str) -> Ends {
        let before = self.sent(out).len();
        let hex: String = frame.iter().map(|b| format!("{b:02x}")).collect();
        self.switch.appctl(&["netdev-dummy/receive", port, &hex]).expect("receive");
        let mut found = None;
        eventually(&format!("a frame by {out} of {}", self.name), SOON, || {
            found = self.sent(out).get(before).copied();
            found.map(drop).ok_or_else(|| self.connections().join("\n"))
        });
        found.expect("a frame")
    }

    /// A client's packet goes out; returns the port that it got.
    fn opens(&self, client: u8) -> u16 {
        let out = self.passes("in", &datagram((Ipv4Addr::new(10, 0, 0, client), 1000), (SERVER, 53)), "out");
        assert_eq!((out.0, out.2, out.3), (OUTSIDE, SERVER, 53));
        out.1
    }

    /// The server's answer to a port comes back to a client.
    fn answers(&self, port: u16, client: u8) {
        let back = self.passes("out", &datagram((SERVER, 53), (OUTSIDE, port)), "in");
        assert_eq!(back, (SERVER, 53, Ipv4Addr::new(10, 0, 0, client), 1000));
    }

    /// Its connections, without their zone and times.
    fn connections(&self) -> Vec<String> {
        let mut text = String::new();
        // After a start commands come a moment later than their socket.
        eventually("dpctl/dump-conntrack", SOON, || {
            text = self.switch.appctl(&["dpctl/dump-conntrack"])?;
            Ok(())
        });
        let mut all: Vec<String> = text.lines().map(|l| l.replace(&format!(",zone={}", self.zone), "")).collect();
        all.sort();
        all
    }

    fn show(&self) -> String {
        let mut text = String::new();
        // After a start commands come a moment later than their socket.
        eventually("ha/show", SOON, || {
            text = self.switch.appctl(&["ha/show"])?;
            Ok(())
        });
        text
    }

    /// Waits until `Bridge:status` says this of a peer.
    fn says(&self, key: &str, wanted: &str) {
        eventually(&format!("{} of {}: {wanted}", key, self.name), SOON, || {
            let text = self.switch.try_vsctl(&format!("--if-exists get bridge br-int status:\"{key}\""))?;
            if text.contains(wanted) { Ok(()) } else { Err(text) }
        });
    }

    fn shows(&self, part: &str) {
        eventually(&format!("{}: {part}", self.name), SOON, || {
            let text = self.show();
            if text.contains(part) { Ok(()) } else { Err(text) }
        });
    }

    fn has(&self, wanted: &[String]) {
        eventually(&format!("the connections of {}", self.name), SOON, || {
            let found = self.connections();
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{}\n---- wanted\n{}", found.join("\n"), wanted.join("\n")))
            }
        });
    }
}

fn datagram(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    build::udp(b, a, (from.0.into(), from.1), (to.0.into(), to.1), 64, b"some").expect("one family")
}

/// A gateway dies. The other one goes on with its connections: same addresses, same ports, established; new ones do not
/// get the ports of old ones. When the dead one is back it has what the other has meanwhile, before it speaks BFD.
#[test]
fn connections_survive_their_gateway() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("ha");
    let (mut a, b) = (Gateway::new(&ns, "gw1", 7), Gateway::new(&ns, "gw2", 9));
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7002");
    b.peers("ptcp:7002:127.0.0.1", "gw1=tcp:127.0.0.1:7001");
    a.shows("to it: connected; lag ");
    a.shows("from it: connected");
    let first = a.opens(1);
    let second = a.opens(2);
    assert_eq!(first, 1000, "the port is free");
    assert_ne!(second, first, "two clients use the same port");
    a.answers(second, 2);
    b.has(&a.connections());
    assert!(b.show().contains("; 2 connections,"), "{}", b.show());
    b.says("ha-from:gw1", "in-step");
    a.says("ha-to:gw2", "ms");

    a.switch.crash();
    b.answers(second, 2);
    b.answers(first, 1);
    let third = b.opens(3);
    assert!(third != first && third != second, "{third} is another client's");
    b.shows("not connected");
    b.says("ha-from:gw1", "silent");
    b.says("ha-to:gw1", "silent");

    let before = b.connections();
    a.switch.start_test_bed(&ns);
    a.flows();
    a.has(&before);
    assert!(a.show().contains("; 3 connections,"), "{}", a.show());
    a.says("ha-from:gw2", "in-step");
    // And back: what the second gateway opened survives it.
    a.answers(third, 3);
}

/// What flows learned of clients, such as the backend of each, is told as connections are; also to a gateway whose flows
/// come after its peer's.
#[test]
fn learned_flows_survive_their_gateway() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hl");
    let (mut a, b) = (Gateway::new(&ns, "gw1", 7), Gateway::new(&ns, "gw2", 9));
    let teach = |g: &Gateway| {
        let learn =
            "learn(table=9,cookie=0x77,idle_timeout=600,eth_type=0x800,NXM_OF_IP_SRC[],load:0x2->NXM_NX_REG0[0..15])";
        let flow = format!("in_port=1,ip,actions={learn},ct(commit,zone={},nat(src={OUTSIDE}),table=1)", g.zone);
        eventually("the flow that learns", SOON, || g.switch.try_ofctl(&["add-flow", "br-int", &flow]).map(drop));
    };
    let knows = |g: &Gateway, client: u8| {
        eventually(&format!("client {client} at {}", g.name), SOON, || {
            let all = g.switch.try_ofctl(&["dump-flows", "br-int", "table=9"])?;
            let wanted = format!("nw_src=10.0.0.{client} actions=");
            let there = all.lines().any(|l| l.contains(&wanted) && l.contains("idle_timeout=600"));
            if there { Ok(()) } else { Err(all) }
        });
    };
    [&a, &b].into_iter().for_each(teach);
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7002");
    b.peers("ptcp:7002:127.0.0.1", "gw1=tcp:127.0.0.1:7001");
    a.shows("to it: connected; lag ");
    b.shows("to it: connected; lag ");
    a.opens(1);
    knows(&a, 1);
    knows(&b, 1);
    a.switch.crash();
    b.opens(2);
    a.switch.start_test_bed(&ns);
    a.flows();
    a.shows("from it: connected");
    teach(&a);
    knows(&a, 1);
    knows(&a, 2);
}

/// An orderly restart keeps connections without any peer; a crash does not bring back what an earlier stop saved.
#[test]
fn an_orderly_restart_keeps_connections() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hr");
    let mut a = Gateway::new(&ns, "gw1", 7);
    let port = a.opens(1);
    a.answers(port, 1);
    let before = a.connections();
    a.switch.stop();
    a.switch.start_test_bed(&ns);
    a.flows();
    assert_eq!(a.connections(), before);
    a.answers(port, 1);
    a.switch.crash();
    a.switch.start_test_bed(&ns);
    assert_eq!(a.connections(), Vec::<String>::new());
}

/// Certificates like those that ovs-pki makes: a common name, no other names.
fn certificates(dir: &Path, names: &[&str]) {
    let openssl = |words: &str| {
        let args: Vec<String> = words.split(' ').map(|w| w.replace("DIR", &dir.display().to_string())).collect();
        run("openssl", &args.iter().map(String::as_str).collect::<Vec<_>>(), &[]).expect("openssl")
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout DIR/ca-key.pem -out DIR/ca.pem -days 10 -subj /CN=ca");
    for n in names {
        openssl(&format!("req -newkey rsa:2048 -nodes -keyout DIR/{n}-key.pem -out DIR/{n}.csr -subj /CN={n}"));
        openssl(&format!(
            "x509 -req -in DIR/{n}.csr -CA DIR/ca.pem -CAkey DIR/ca-key.pem -CAcreateserial -out DIR/{n}.pem -days 10"
        ));
    }
}

/// A peer is known by its certificate. One with another's name is refused, and said once; the gateway's own peer is heard
/// meanwhile.
#[test]
fn peers_show_certificates() {
    if !able(&["ovs-vsctl", "openssl"]) {
        return;
    }
    let ns = Namespace::new("ht");
    let dir = tempfile::tempdir().expect("folder");
    certificates(dir.path(), &["gw1", "gw2", "gw3"]);
    let (a, b, c) = (Gateway::new(&ns, "gw1", 7), Gateway::new(&ns, "gw2", 9), Gateway::new(&ns, "gw2", 9));
    for (g, certificate) in [(&a, "gw1"), (&b, "gw2"), (&c, "gw3")] {
        let file = |n: &str| dir.path().join(n).display().to_string();
        let (key, own) = (file(&format!("{certificate}-key.pem")), file(&format!("{certificate}.pem")));
        g.switch.vsctl(&format!("set-ssl {key} {own} {}", file("ca.pem")));
    }
    a.peers("pssl:7001:127.0.0.1", "gw2=ssl:127.0.0.1:7002");
    b.peers("pssl:7002:127.0.0.1", "gw1=ssl:127.0.0.1:7001");
    // It calls itself gw2 as well, but its certificate is another's.
    c.peers("pssl:7003:127.0.0.1", "gw1=ssl:127.0.0.1:7001");
    a.shows("to it: connected");
    a.shows("from it: connected");
    let port = a.opens(1);
    a.answers(port, 1);
    b.has(&a.connections());
    let refused = "it calls itself \"gw2\", and was taken for \"gw3\"";
    eventually("the refusal", SOON, || {
        let log = std::fs::read_to_string(a.switch.path("stderr")).unwrap_or_default();
        if log.contains(refused) { Ok(()) } else { Err(log) }
    });
    assert_eq!(c.connections(), Vec::<String>::new());
    a.shows("from it: connected");
}

/// Configurations that cannot work are said in the log, and stop nothing else.
#[test]
fn wrong_configurations_are_named() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hw");
    let a = Gateway::new(&ns, "gw1", 7);
    assert_eq!(a.show(), "no peers (Bridge other_config:ha-peers)\n");
    a.peers("tcp:1.2.3.4:5", "gw2");
    eventually("warnings", SOON, || {
        let log = std::fs::read_to_string(a.switch.path("stderr")).unwrap_or_default();
        let all = ["isthmus-ha-listen=tcp:1.2.3.4:5: not a passive", "\"gw2\" is not CHASSIS=ssl:ADDRESS:PORT"];
        if all.iter().all(|t| log.contains(t)) { Ok(()) } else { Err(log) }
    });
    let port = a.opens(1);
    a.answers(port, 1);
}

/// A standby that stands still for long delays nobody; when it goes on, it has what happened meanwhile.
#[test]
fn a_standby_that_stands_still_is_told_later() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hs");
    let (a, b) = (Gateway::new(&ns, "gw1", 7), Gateway::new(&ns, "gw2", 9));
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7002");
    b.peers("ptcp:7002:127.0.0.1", "gw1=tcp:127.0.0.1:7001");
    a.shows("to it: connected; lag ");
    let first = a.opens(1);
    b.has(&a.connections());
    b.switch.signal(Signal::SIGSTOP);
    let second = a.opens(2);
    a.answers(first, 1);
    a.shows("to it: not connected");
    a.says("ha-from:gw2", "silent");
    let third = a.opens(3);
    a.answers(second, 2);
    b.switch.signal(Signal::SIGCONT);
    b.has(&a.connections());
    a.shows("to it: connected");
    b.answers(third, 3);
}

/// A gateway stands still, another one goes on with its connections, and then it goes on as if nothing had been: both take
/// themselves for active, and packets come to one and to the other. Nothing is lost, and no connection gets another port.
#[test]
fn both_take_themselves_for_active() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("h2");
    let (a, b) = (Gateway::new(&ns, "gw1", 7), Gateway::new(&ns, "gw2", 9));
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7002");
    b.peers("ptcp:7002:127.0.0.1", "gw1=tcp:127.0.0.1:7001");
    a.shows("to it: connected; lag ");
    b.shows("to it: connected; lag ");
    let ports: Vec<u16> = (1..=4).map(|client| a.opens(client)).collect();
    b.has(&a.connections());
    for round in 0..3u8 {
        a.switch.signal(Signal::SIGSTOP);
        // For less time than after which the stream would be closed, and for more.
        std::thread::sleep(Duration::from_millis(if round == 0 { 0 } else { 2500 }));
        for (port, client) in ports.iter().zip(1..) {
            b.answers(*port, client);
        }
        a.switch.signal(Signal::SIGCONT);
        for (port, client) in ports.iter().zip(1..) {
            a.answers(*port, client);
            b.answers(*port, client);
            a.answers(*port, client);
        }
    }
    a.shows("to it: connected");
    b.shows("to it: connected");
    b.has(&a.connections());
    assert_eq!(a.connections().len(), ports.len());
    assert_eq!((a.opens(1), b.opens(1)), (ports[0], ports[0]));
}

/// A peer of a later release: kinds of records that this one does not know are skipped, and what it does not know at the
/// end of others.
#[test]
fn a_peer_of_a_later_release() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hl");
    let a = Gateway::new(&ns, "gw1", 7);
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7002");
    eventually("the listener", SOON, || {
        inside(&ns, || TcpStream::connect("127.0.0.1:7001").map(drop).map_err(|e| e.to_string()))
            .join()
            .expect("thread")
    });
    let later = |r: &Record| {
        let mut bytes = Vec::new();
        r.encode(&mut bytes);
        // Names end where their record does.
        if !matches!(r, Record::Hello(..) | Record::Zone(..)) {
            bytes.extend([7; 5]);
            let length = (bytes.len() - 3) as u16;
            bytes[1..3].copy_from_slice(&length.to_le_bytes());
        }
        bytes.extend([200, 3, 0, 1, 2, 3]);
        bytes
    };
    let hello = Record::Hello(VERSION + 1, 1, "gw2".into());
    let records =
        [hello, Record::Zone(3, "lr_snat".into()), Record::Begin, Record::Put(0, of_a_peer()), Record::End(1)];
    let frames = records.iter().map(later).chain([vec![5, 2, 0, 1, 2]]).collect();
    let why = tell(&ns, "http://127.0.0.1:7001", frames);
    assert!(why.contains("shorter than its fields"), "nothing else was wrong: {why}");
    a.answers(4321, 9);
}

/// Hands a stream's bytes on until either end is gone.
fn hand_on(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// The stream is cut all the time, in the middle of whatever is under way: nothing is lost, and nothing comes twice.
#[test]
fn a_stream_that_is_cut_all_the_time() {
    const PIECE: Duration = Duration::from_millis(300);
    const CUTS: u32 = 12;
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hx");
    let (a, b) = (Gateway::new(&ns, "gw1", 7), Gateway::new(&ns, "gw2", 9));
    let (calm, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (quiet, counted) = (calm.clone(), cuts.clone());
    // It ends with the process.
    drop(inside(&ns, move || {
        let listener = TcpListener::bind("127.0.0.1:7103").expect("listener");
        for stream in listener.incoming() {
            let (Ok(near), Ok(far)) = (stream, TcpStream::connect("127.0.0.1:7002")) else { continue };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                std::thread::spawn(move || hand_on(from, to));
            }
            let (quiet, counted) = (quiet.clone(), counted.clone());
            std::thread::spawn(move || {
                std::thread::sleep(PIECE);
                if !quiet.load(Ordering::Relaxed) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
                }
            });
        }
    }));
    b.peers("ptcp:7002:127.0.0.1", "gw1=tcp:127.0.0.1:7001");
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7103");
    let mut client = 0u8;
    eventually("cuts", SOON * 3, || {
        client += 1;
        let port = a.opens(client % 200);
        a.answers(port, client % 200);
        let n = cuts.load(Ordering::Relaxed);
        if n < CUTS { Err(format!("{n}")) } else { Ok(()) }
    });
    calm.store(true, Ordering::Relaxed);
    b.has(&a.connections());
    a.shows("to it: connected");
    assert!(b.show().contains("conflicts: 0, refused: 0"), "{}", b.show());
}

/// As the service's frames are.
#[derive(Clone, PartialEq, prost::Message)]
struct Frame {
    #[prost(bytes = "vec", tag = "1")]
    records: Vec<u8>,
}

/// Tells a gateway these frames as a peer; returns why it ended the stream.
fn tell(ns: &Namespace, at: &'static str, frames: Vec<Vec<u8>>) -> String {
    use futures::StreamExt;
    let told = inside(ns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let channel = tonic::transport::Endpoint::from_static(at).connect().await.expect("connected");
            let mut grpc = tonic::client::Grpc::new(channel);
            grpc.ready().await.expect("ready");
            // The stream stays open behind them.
            let all = futures::stream::iter(frames.into_iter().map(|records| Frame { records }));
            let request = tonic::Request::new(all.chain(futures::stream::pending()));
            let path = tonic::codegen::http::uri::PathAndQuery::from_static("/isthmus.ha.v1.Connections/Tell");
            let codec = tonic_prost::ProstCodec::<Frame, Frame>::default();
            let mut answers = grpc.streaming(request, path, codec).await.expect("answers").into_inner();
            loop {
                match tokio::time::timeout(SOON, answers.message()).await.expect("an end") {
                    Ok(Some(_)) => {}
                    Ok(None) => return "closed".to_owned(),
                    Err(s) => return s.message().to_owned(),
                }
            }
        })
    });
    told.join().expect("a peer")
}

/// A connection of a peer, whose zone has the number 3 there: client 9, which got port 4321.
fn of_a_peer() -> Connection {
    let address = |a: Ipv4Addr| u128::from(u32::from(a));
    let client = Ipv4Addr::new(10, 0, 0, 9);
    let original = Tuple { src: address(client), dst: address(SERVER), sport: 1000, dport: 53, ..Tuple::default() };
    let reply = Tuple { src: address(SERVER), dst: address(OUTSIDE), sport: 53, dport: 4321, ..Tuple::default() };
    // Phase 8: UDP that both ends have sent.
    let state = State { phase: 8, replied: true, ..State::default() };
    Connection { zone: 3, proto: 17, original, reply, translates: 1, state, ..Connection::default() }
}

/// A peer that sends rubbish is closed, and so is one that is no peer at all. What it told before stays, as if it had
/// died; this gateway's own connections are not touched.
#[test]
fn a_peer_that_sends_rubbish() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("hb");
    let a = Gateway::new(&ns, "gw1", 7);
    a.peers("ptcp:7001:127.0.0.1", "gw2=tcp:127.0.0.1:7002");
    let port = a.opens(1);
    eventually("the listener", SOON, || a.switch.appctl(&["ha/show"]).map(drop));
    let connects =
        || inside(&ns, || TcpStream::connect("127.0.0.1:7001").map_err(|e| e.to_string())).join().expect("thread");
    eventually("the listener", SOON, || connects().map(drop));
    for rubbish in
        [vec![0u8; 100_000], b"GET / HTTP/1.0\r\n\r\n".to_vec(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish".to_vec()]
    {
        let mut s = connects().expect("connected");
        // It may be closed before all has been written.
        let _ = s.write_all(&rubbish);
    }
    let bytes = |all: &[Record]| {
        let mut out = Vec::new();
        all.iter().for_each(|r| r.encode(&mut out));
        out
    };
    let hello = Record::Hello(VERSION, 1, "gw2".into());
    assert!(tell(&ns, "http://127.0.0.1:7001", vec![bytes(&[Record::Begin])]).contains("HELLO"));
    let other = Record::Hello(VERSION, 1, "gw9".into());
    assert!(tell(&ns, "http://127.0.0.1:7001", vec![bytes(&[other])]).contains("ha-peers"));
    let told = of_a_peer();
    let slots = [0, u32::MAX];
    let mut first = vec![hello, Record::Zone(3, "lr_snat".into()), Record::Begin];
    first.extend(slots.map(|s| Record::Put(s, told)));
    let why = tell(&ns, "http://127.0.0.1:7001", vec![bytes(&first), vec![5, 2, 0, 1, 2]]);
    assert!(why.contains("shorter than its fields"), "{why}");
    a.shows("from it: not connected");
    a.answers(port, 1);
    a.answers(4321, 9);
}
