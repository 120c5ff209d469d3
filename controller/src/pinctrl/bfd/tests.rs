use super::*;
use crate::input::model::Local;
use openflow_rs::FieldId;
use proptest::prelude::*;
use std::sync::Arc;

const ME: Uuid = Uuid::from_u128(1);
const ROW: Uuid = Uuid::from_u128(9);

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// A router with a gateway port whose redirect port is here, and a session of it.
fn world(change: impl Fn(&mut sb::Bfd), of_port: impl Fn(&mut sb::PortBinding)) -> Input {
    let mut db = sb::Database::default();
    db.datapath_binding.insert(id(7), Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
    let options = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let mut p = sb::PortBinding {
        logical_port: "lrp".into(),
        datapath: id(7),
        tunnel_key: 2,
        r#type: "patch".into(),
        options: options(&[("peer", "lsp")]),
        mac: [Str::from("02:00:00:00:00:01 192.168.0.1/24 172.16.1.1/24 1000::a/64")].into_iter().collect(),
        ..Default::default()
    };
    of_port(&mut p);
    let peer =
        sb::PortBinding { logical_port: "lsp".into(), r#type: "patch".into(), tunnel_key: 3, ..Default::default() };
    let redirect = sb::PortBinding {
        logical_port: "cr-lrp".into(),
        datapath: id(7),
        tunnel_key: 4,
        r#type: "chassisredirect".into(),
        chassis: Some(ME),
        ..Default::default()
    };
    for (n, p) in [(11, p), (12, peer), (13, redirect)] {
        db.port_binding.insert(id(n), Arc::new(p));
    }
    let mut row = sb::Bfd {
        logical_port: "lrp".into(),
        dst_ip: "172.16.1.50".into(),
        src_port: 49152,
        disc: 77,
        min_tx: 1000,
        min_rx: 1000,
        detect_mult: 5,
        status: "down".into(),
        ..Default::default()
    };
    change(&mut row);
    db.bfd.insert(ROW, Arc::new(row));
    Input::new(db, Local { chassis: Some(ME), ..Local::default() })
}

fn asked(input: &Input) -> Option<Wanted> {
    wanted(&input.sb.bfd[&ROW], input)
}

#[test]
fn the_chassis_of_the_port_holds_its_sessions() {
    let none = |_: &mut sb::PortBinding| {};
    let w = asked(&world(|_| {}, none)).unwrap();
    assert_eq!(
        (w.port, w.local),
        ((DatapathKey(7), PortKey(2)), "172.16.1.1".parse().unwrap()),
        "from the next hop's network"
    );
    let w = asked(&world(|r| r.dst_ip = "1000::b".into(), none)).unwrap();
    assert_eq!(w.local, "1000::a".parse::<IpAddr>().unwrap());
    let w = asked(&world(|r| r.dst_ip = "8.8.8.8".into(), none)).unwrap();
    assert_eq!(w.local, "192.168.0.1".parse::<IpAddr>().unwrap());
    let w = asked(&world(|r| r.dst_ip = "fe80::b".into(), none)).unwrap();
    assert_eq!(w.local, "fe80::ff:fe00:1".parse::<IpAddr>().unwrap(), "a link-local one from the port's own");
    assert_eq!(asked(&world(|r| r.dst_ip = "nowhere".into(), none)), None);
    assert_eq!(asked(&world(|_| {}, |p| p.options = Default::default())), None, "a port that leads nowhere");
    assert_eq!(asked(&world(|_| {}, |p| p.mac = Default::default())), None);
    let mut away = world(|_| {}, none);
    away.local.chassis = Some(id(3));
    assert_eq!(asked(&away), None);
    // Of a gateway router the port itself counts, of a distributed one its redirect port.
    let gateway = |chassis| {
        move |p: &mut sb::PortBinding| {
            p.logical_port = "gw".into();
            p.r#type = "l3gateway".into();
            p.chassis = chassis;
        }
    };
    assert!(asked(&world(|r| r.logical_port = "gw".into(), gateway(Some(ME)))).is_some());
    assert_eq!(asked(&world(|r| r.logical_port = "gw".into(), gateway(Some(id(3))))), None);
}

/// A peer on the other side of the port, by its own session.
struct Peer {
    session: Session,
    mac: Mac,
    address: IpAddr,
}

/// Both sides, and a clock.
struct Two {
    ours: Sessions,
    theirs: Peer,
    now: Instant,
    start: Instant,
    states: Vec<State>,
    /// Packets of ours.
    sent: usize,
    muted: bool,
}

const PEER: &str = "172.16.1.50";

impl Two {
    fn new() -> Two {
        let config = Config { desired_min_tx: 300_000, required_min_rx: 300_000, ..Config::default() };
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let theirs = Peer { session: Session::new(config, 5, 0), mac, address: PEER.parse().unwrap() };
        let ours = Sessions::default();
        let start = ours.epoch;
        Two { ours, theirs, now: start, start, states: Vec::new(), sent: 0, muted: false }
    }

    /// Lets milliseconds pass, ten at a time.
    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.now += Duration::from_millis(10);
            let timer = (self.now - self.start).as_micros() as u64;
            let mut out = self.ours.due(self.now);
            let due = self.theirs.session.deadline() <= timer;
            if let (true, Some(p)) = (due, due.then(|| self.theirs.session.poll(timer).0).flatten())
                && !self.muted
            {
                out.extend(self.ours.heard(&self.packet(&p, 255), self.now));
            }
            for m in out {
                self.sent += 1;
                let Message::PacketOut(m) = m else { panic!("{m:?}") };
                let h = Headers::parse(&m.packet).unwrap();
                assert!(packet::checksum::l4_ok(&m.packet, &h));
                let (source, payload) = control_packet(&m.packet).unwrap();
                assert_eq!(source, "172.16.1.1".parse::<IpAddr>().unwrap());
                assert_eq!(h.ports(&m.packet), Some((49152, SINGLE_HOP_PORT)));
                if !self.muted {
                    self.theirs.session.receive(payload, timer).unwrap();
                }
            }
            let states = &mut self.states;
            self.ours.report(self.now, |row, state| {
                assert_eq!(row, ROW);
                states.push(state);
                true
            });
        }
    }

    fn packet(&self, p: &Packet, ttl: u8) -> PacketIn {
        let (from, to) = ((self.theirs.address, 50000), ("172.16.1.1".parse().unwrap(), SINGLE_HOP_PORT));
        let packet = build::udp(Mac([2, 0, 0, 0, 0, 1]), self.theirs.mac, from, to, ttl, &p.to_bytes()).unwrap();
        let mut p =
            PacketIn { packet, userdata: vec![0, 0, 0, crate::encode::opcode::HANDLE_BFD_MSG], ..PacketIn::default() };
        p.metadata.set(of::DATAPATH, 7).set(of::INPORT, 2);
        assert_eq!(p.metadata.get(FieldId::Metadata).0, 7);
        p
    }

    fn want(&mut self, change: impl Fn(&mut sb::Bfd)) {
        let all = asked(&world(change, |_| {})).map(|w| (ROW, w)).into_iter().collect();
        self.ours.observe(&all, self.now);
    }
}

#[test]
fn a_session_comes_up_and_a_silent_peer_is_noticed() {
    let mut t = Two::new();
    t.want(|_| {});
    t.pass(4000);
    assert_eq!(t.states, [State::Up], "on its way there the row stays as it is");
    assert_eq!(t.theirs.session.state(), State::Up);
    t.muted = true;
    // Three of a second each, since the last packet: the greater of what we can receive and what the peer sends.
    t.pass(1900);
    assert_eq!(t.states, [State::Up]);
    t.pass(1500);
    assert_eq!(t.states, [State::Up, State::Down]);
}

#[test]
fn a_peer_that_never_answers_is_down_after_a_while() {
    let mut t = Two::new();
    t.muted = true;
    t.want(|_| {});
    t.pass(4900);
    assert_eq!(t.states, []);
    assert_eq!(t.ours.next().map(|n| n <= t.start + Duration::from_secs(5)), Some(true), "nobody sleeps over it");
    t.pass(200);
    assert_eq!(t.states, [State::Down]);
}

#[test]
fn what_nobody_needs_is_told_once_and_silent_then() {
    let mut t = Two::new();
    t.want(|_| {});
    t.pass(4000);
    t.want(|r| r.status = "admin_down".into());
    let before = t.sent;
    t.pass(6000);
    assert_eq!(t.sent, before + 1);
    assert_eq!(t.theirs.session.remote().0, State::Down, "the peer forgot us");
    assert_eq!((&t.states[..], t.ours.next()), (&[State::Up][..], None));
    t.want(|_| {});
    t.pass(6000);
    assert_eq!(t.states, [State::Up, State::Up]);
}

#[test]
fn changed_times_hold_on_a_running_session() {
    let mut t = Two::new();
    t.want(|_| {});
    t.pass(5000);
    t.want(|r| (r.min_tx, r.min_rx, r.detect_mult) = (100, 100, 3));
    t.pass(3000);
    let heard = t.theirs.session.heard().unwrap();
    assert_eq!((heard.desired_min_tx, heard.required_min_rx, heard.detect_mult), (100_000, 100_000, 3));
    assert_eq!(t.states, [State::Up], "no flap");
    let before = t.sent;
    t.pass(3000);
    // The peer receives each 300 ms, less the jitter of a quarter.
    assert!((9..=14).contains(&(t.sent - before)), "{}", t.sent - before);
    t.muted = true;
    t.pass(1000);
    assert_eq!(t.states, [State::Up, State::Down], "three of 300 ms");
}

#[test]
fn packets_of_others_change_nothing() {
    let mut t = Two::new();
    t.want(|_| {});
    let p = t.theirs.session.says();
    let mut wrong: Vec<PacketIn> = vec![t.packet(&p, 254)];
    wrong.push(t.packet(&Packet { your_discriminator: 78, ..p }, 255));
    let mut elsewhere = t.packet(&p, 255);
    elsewhere.metadata.set(of::INPORT, 3);
    wrong.push(elsewhere);
    let mut short = t.packet(&p, 255);
    short.packet.truncate(50);
    wrong.push(short);
    t.theirs.address = "172.16.1.51".parse().unwrap();
    wrong.push(t.packet(&p, 255));
    for p in wrong {
        t.ours.heard(&p, t.now);
        assert_eq!(t.ours.entries[&ROW].session.state(), State::Down);
        assert_eq!(t.ours.entries[&ROW].session.remote_discriminator(), 0);
    }
}

#[test]
fn the_row_follows_the_session_unless_nobody_needs_it() {
    let written = |found: &mut Found, input: &Input| {
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        let wanted = asked(input).map(|w| (ROW, w)).into_iter().collect();
        found.write(input, &wanted, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, Instant::now());
        out.first().map(|o| o["row"]["status"].as_str().unwrap_or_default().to_string())
    };
    let mut found = Found::default();
    found.told(ROW, State::Up);
    assert_eq!(written(&mut found, &world(|_| {}, |_| {})).as_deref(), Some("up"));
    assert_eq!(written(&mut found, &world(|r| r.status = "up".into(), |_| {})), None);
    assert_eq!(written(&mut found, &world(|r| r.status = "admin_down".into(), |_| {})), None);
    assert_eq!(written(&mut found, &world(|_| {}, |_| {})), None, "what was is forgotten");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Whatever rows come, change and go: the sessions are those that are wanted, as a start would make them, and the loop is told
    /// how each one is in the end.
    #[test]
    fn rows_and_sessions_agree(steps in prop::collection::vec((0u128..4, 0u8..6, 0u64..3000), 1..40)) {
        let base = asked(&world(|_| {}, |_| {})).unwrap();
        let (mut rows, mut all) = (BTreeMap::new(), Sessions::default());
        let (mut now, mut told) = (all.epoch, BTreeMap::new());
        for (row, what, pause) in steps {
            let of_row = Wanted { discriminator: 100 + row as u32, source_port: 50_000 + row as u16, ..base.clone() };
            match what {
                0 => drop(rows.remove(&id(row))),
                1 => drop(rows.insert(id(row), Wanted { admin_down: true, ..of_row })),
                2 => drop(rows.insert(id(row), Wanted { discriminator: 200, ..of_row })),
                n => drop(rows.insert(id(row), Wanted { min_tx: u32::from(n) * 100, ..of_row })),
            }
            all.observe(&rows, now);
            now += Duration::from_millis(pause);
            all.due(now);
            all.report(now, |row, state| { told.insert(row, state); true });
            let there: BTreeMap<Uuid, Wanted> = all.entries.iter().map(|(id, e)| (*id, e.wanted.clone())).collect();
            prop_assert_eq!(&there, &rows);
            for (row, e) in &all.entries {
                prop_assert_eq!(e.session.config(), e.wanted.config());
                prop_assert_eq!(e.session.discriminator(), e.wanted.discriminator);
                prop_assert_eq!(e.session.state() == State::AdminDown, e.wanted.admin_down, "{}", row);
            }
        }
        now += Duration::from_secs(10);
        all.due(now);
        all.report(now, |row, state| { told.insert(row, state); true });
        for (row, e) in all.entries.iter().filter(|(_, e)| !e.wanted.admin_down) {
            prop_assert_eq!(told.get(row), Some(&e.session.state()));
        }
        prop_assert!(all.next().is_none_or(|n| n > now), "nobody is called again and again");
    }
}
