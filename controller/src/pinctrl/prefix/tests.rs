use super::*;
use crate::input::model::Local;
use ovsdb_rs::DatabaseSchema;
use std::sync::Arc;

const ME: Uuid = Uuid::from_u128(1);
const INNER: Uuid = Uuid::from_u128(12);
const SERVER: &[u8] = &[0, 3, 0, 1, 2, 0, 0, 0, 0, 0x50];
const PROVIDER: Mac = Mac([2, 0, 0, 0, 0, 0x50]);

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn schema() -> Arc<DatabaseSchema> {
    Arc::new(sb::Database::schema())
}

/// A gateway router with a port towards the provider and one that gets a prefix.
fn world(known: Option<&str>, chassis: Uuid) -> Input {
    let mut db = sb::Database::default();
    for key in [7, 8] {
        db.datapath_binding
            .insert(id(key), Arc::new(sb::DatapathBinding { tunnel_key: key as i64, ..Default::default() }));
    }
    let port = |name: &str, datapath: u128, key: i64, mac: &str, options: &[(&str, &str)]| sb::PortBinding {
        logical_port: name.into(),
        datapath: id(datapath),
        tunnel_key: key,
        r#type: "l3gateway".into(),
        chassis: Some(chassis),
        mac: [Str::from(mac)].into_iter().collect(),
        options: options.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        ..Default::default()
    };
    let up =
        port("up", 7, 2, "02:00:00:00:00:01 172.16.1.1/24", &[("peer", "net-up"), ("ipv6_prefix_delegation", "true")]);
    let mut inner = port("inner", 7, 3, "02:00:00:00:00:02 10.0.0.1/24", &[("ipv6_prefix", "true")]);
    inner.options.extend(known.map(|k| (DELEGATED.into(), k.into())));
    for (n, p) in [(11, up), (12, inner), (13, port("net-up", 8, 4, "router", &[("peer", "up")]))] {
        db.port_binding.insert(id(n), Arc::new(p));
    }
    Input::new(db, Local { chassis: Some(ME), ..Local::default() })
}

fn asked(input: &Input) -> Option<Requester> {
    requester(&input.sb.port_binding[&id(11)], &input.sb.port_binding[&INNER], input)
}

struct World {
    all: Prefixes,
    input: Input,
    now: Instant,
}

impl World {
    fn new(known: Option<&str>) -> World {
        let (input, now) = (world(known, ME), Instant::now());
        let mut all = Prefixes::default();
        all.observe(INNER, asked(&input), input.sb.port_binding.get(&INNER).map(|p| &**p), now);
        World { all, input, now }
    }

    /// Waits for the next message.
    fn sent(&mut self) -> Sent {
        self.now = self.now.max(self.all.next().unwrap());
        let mut out = self.all.due(self.now);
        assert_eq!(out.len(), 1);
        Sent::read(out.remove(0))
    }

    fn passed(&self, from: Instant) -> f64 {
        (self.now - from).as_secs_f64()
    }

    fn written(&self) -> Option<String> {
        let mut plan = Plan::new(schema());
        self.all.write(&self.input, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, self.now);
        (!out.is_empty()).then(|| serde_json::to_string(&out).unwrap())
    }

    fn answer(&mut self, to: &Sent, kind: u8, t: (u32, u32), lifetimes: (u32, u32), status: u16) -> Vec<Message> {
        let p = to.answer(kind, t, lifetimes, status);
        self.all.heard(&p, self.now)
    }
}

/// A message of ours.
struct Sent {
    kind: u8,
    transaction: [u8; 3],
    options: Vec<(u16, Vec<u8>)>,
}

impl Sent {
    fn read(m: Message) -> Sent {
        let Message::PacketOut(m) = m else { panic!("{m:?}") };
        let h = Headers::parse(&m.packet).unwrap();
        assert!(packet::checksum::l4_ok(&m.packet, &h));
        assert_eq!(h.ports(&m.packet), Some((CLIENT_PORT, SERVER_PORT)));
        assert_eq!(&m.packet[..6], [0x33, 0x33, 0, 1, 0, 2]);
        let p = &m.packet[h.payload..h.l3_end];
        let list = options(&p[4..]).into_iter().map(|(c, v)| (c, v.to_vec())).collect();
        Sent { kind: p[0], transaction: [p[1], p[2], p[3]], options: list }
    }

    fn find(&self, code: u16) -> Option<&[u8]> {
        self.options.iter().find(|(c, _)| *c == code).map(|(_, v)| &**v)
    }

    fn answer(&self, kind: u8, t: (u32, u32), lifetimes: (u32, u32), status: u16) -> PacketIn {
        let mut m = vec![kind];
        m.extend(self.transaction);
        put(&mut m, CLIENT_ID, self.find(CLIENT_ID).unwrap());
        put(&mut m, SERVER_ID, SERVER);
        let mut a = self.find(IA_PD).unwrap()[..4].to_vec();
        a.extend([t.0, t.1].iter().flat_map(|n| n.to_be_bytes()));
        let mut prefix: Vec<u8> = [lifetimes.0, lifetimes.1].iter().flat_map(|n| n.to_be_bytes()).collect();
        prefix.push(56);
        prefix.extend("2001:db8:3333:100::".parse::<Ipv6Addr>().unwrap().octets());
        put(&mut a, IA_PREFIX, &prefix);
        if status > 0 {
            put(&mut a, STATUS, &status.to_be_bytes());
        }
        put(&mut m, IA_PD, &a);
        let (from, to) = ("fe80::50".parse().unwrap(), Mac([2, 0, 0, 0, 0, 1]).link_local().into());
        let packet = build::udp(Mac([2, 0, 0, 0, 0, 1]), PROVIDER, (from, 547), (to, 546), 255, &m).unwrap();
        let mut p = PacketIn { packet, ..PacketIn::default() };
        p.metadata.set(of::DATAPATH, 7).set(of::INPORT, 2);
        p
    }
}

#[test]
fn a_prefix_is_asked_for_taken_renewed_and_lost() {
    let mut w = World::new(None);
    let solicit = w.sent();
    assert_eq!((solicit.kind, solicit.find(SERVER_ID)), (SOLICIT, None));
    assert_eq!(solicit.find(CLIENT_ID), Some(&duid_ll(&[2, 0, 0, 0, 0, 2])[..]));
    assert_eq!(solicit.find(IA_PD).unwrap().len(), 12, "no wish");
    let out = w.answer(&solicit, ADVERTISE, (100, 200), (300, 400), 0);
    let request = Sent::read(out.into_iter().next().unwrap());
    assert_eq!((request.kind, request.find(SERVER_ID)), (REQUEST, Some(SERVER)));
    assert_ne!(request.transaction, solicit.transaction);
    assert_eq!(w.written(), None, "nothing is granted yet");
    assert!(w.answer(&request, REPLY, (100, 200), (300, 400), 0).is_empty());
    let iaid = packet::be32(solicit.find(IA_PD).unwrap(), 0).unwrap();
    let text = w.written().unwrap();
    assert!(text.contains(&format!("\"{iaid}:2001:db8:3333:100::/56\"")), "{text}");
    // T1: the server is asked, until T2, and then all servers, until the prefix ends.
    let bound = w.now;
    let renew = w.sent();
    assert_eq!((renew.kind, renew.find(SERVER_ID)), (RENEW, Some(SERVER)));
    assert_eq!(w.passed(bound), 100.0);
    assert_eq!(renew.find(IA_PD).unwrap().len(), 12 + 4 + 25);
    w.answer(&renew, REPLY, (100, 200), (300, 400), 0);
    let renewed = w.now;
    let mut kinds = Vec::new();
    loop {
        let s = w.sent();
        assert_eq!(s.find(SERVER_ID).is_some(), s.kind == RENEW);
        if kinds.last() != Some(&(s.kind, 0.0)) && kinds.last().map(|(k, _)| *k) != Some(s.kind) {
            kinds.push((s.kind, w.passed(renewed)));
        }
        if s.kind == SOLICIT {
            assert!(s.find(IA_PD).unwrap().len() > 12, "the same again, if it is to be had");
            break;
        }
    }
    assert_eq!(kinds, [(RENEW, 100.0), (REBIND, 200.0), (SOLICIT, 400.0)]);
}

#[test]
fn times_that_the_server_leaves_open_follow_from_the_lifetime() {
    for (t, lifetimes, renews) in [((0, 0), (300, 400), Some(150.0)), ((0, 0), (FOREVER, FOREVER), None)] {
        let mut w = World::new(None);
        let s = w.sent();
        let r = Sent::read(w.answer(&s, ADVERTISE, t, lifetimes, 0).remove(0));
        w.answer(&r, REPLY, t, lifetimes, 0);
        let bound = w.now;
        match renews {
            Some(seconds) => {
                w.sent();
                assert_eq!(w.passed(bound), seconds);
            }
            None => assert!(w.all.next().unwrap() > bound + Duration::from_secs(86_400)),
        }
    }
}

#[test]
fn who_gets_no_answer_asks_ever_more_rarely() {
    let mut w = World::new(None);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let before = w.now;
        let s = w.sent();
        assert_eq!(s.kind, SOLICIT);
        pauses.push(w.passed(before));
    }
    assert!(pauses[1] < 1.3 && pauses[2] > 1.6 && pauses[11] > 100.0 && pauses[11] < 140.0, "{pauses:?}");
    // A server that advertises and is gone.
    let s = w.sent();
    let mut last = Sent::read(w.answer(&s, ADVERTISE, (0, 0), (300, 400), 0).remove(0));
    let mut requests = 1;
    while last.kind == REQUEST {
        last = w.sent();
        requests += usize::from(last.kind == REQUEST);
    }
    assert_eq!((requests, last.kind), (REQUESTS as usize, SOLICIT));
}

#[test]
fn wrong_answers_change_nothing() {
    let mut w = World::new(None);
    let s = w.sent();
    let good = s.answer(ADVERTISE, (100, 200), (300, 400), 0);
    let mut wrong = vec![
        s.answer(REPLY, (100, 200), (300, 400), 0),
        s.answer(ADVERTISE, (200, 100), (300, 400), 0),
        s.answer(ADVERTISE, (100, 200), (400, 300), 0),
        s.answer(ADVERTISE, (100, 200), (0, 0), 0),
        s.answer(ADVERTISE, (100, 200), (300, 400), 6),
    ];
    let other = Sent { transaction: [0xaa; 3], ..Sent::read(good_message(&w)) };
    wrong.push(other.answer(ADVERTISE, (100, 200), (300, 400), 0));
    let mut elsewhere = good.clone();
    elsewhere.metadata.set(of::INPORT, 9);
    wrong.push(elsewhere);
    wrong.extend((0..good.packet.len()).map(|n| {
        let mut p = good.clone();
        p.packet.truncate(n);
        p
    }));
    for p in wrong {
        assert!(w.all.heard(&p, w.now).is_empty());
        assert_eq!(w.all.clients[&INNER].state, State::Soliciting);
    }
    assert_eq!(w.all.heard(&good, w.now).len(), 1);
}

fn good_message(w: &World) -> Message {
    w.all.clients[&INNER].message(SOLICIT, None, w.now).unwrap()
}

#[test]
fn a_known_prefix_is_wished_for_again_and_a_binding_lost_begins_anew() {
    let mut w = World::new(Some("77:2001:db8:3333:100::/56"));
    let s = w.sent();
    let association = s.find(IA_PD).unwrap();
    assert_eq!((packet::be32(association, 0), association.len()), (Some(77), 12 + 4 + 25));
    let r = Sent::read(w.answer(&s, ADVERTISE, (100, 200), (300, 400), 0).remove(0));
    w.answer(&r, REPLY, (100, 200), (300, 400), 0);
    assert_eq!(w.written(), None, "the row has it");
    let renew = w.sent();
    assert!(w.answer(&renew, REPLY, (0, 0), (0, 0), 3).is_empty());
    assert_eq!(w.sent().kind, SOLICIT);
}

#[test]
fn the_chassis_of_the_port_towards_the_provider_asks() {
    assert!(asked(&world(None, ME)).is_some());
    assert_eq!(asked(&world(None, id(3))), None);
    let mut w = World::new(None);
    w.all.observe(INNER, None, None, w.now);
    assert_eq!(w.all.next(), None);
}
