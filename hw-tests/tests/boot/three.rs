//! Three gateways serve a machine: whichever dies, is cut off or loses its preference, another answers soon, and no question has two
//! answers. A client asks for a lease every 50 ms and notes the answers to each DISCOVER.

use super::common::{Guard, able};
use super::rack::{PATIENCE, Rack};
use anyhow::{Context, Result, bail, ensure};
use hw_tests::lab::until;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the client asks.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long a gateway has to be known as it is before another event: sessions are up and proven (docs/ha.md).
const SETTLED: Duration = Duration::from_secs(5);

/// A question: when it was asked, and when answers came.
struct Question {
    asked: Instant,
    answers: Vec<Instant>,
}

type Questions = Arc<Mutex<BTreeMap<u32, Question>>>;

/// A client in the machine's namespace that asks until it is dropped.
struct Client {
    stop: Arc<AtomicBool>,
    questions: Questions,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Client {
    fn start(rack: &Rack) -> Client {
        let (stop, questions): (Arc<AtomicBool>, Questions) = Default::default();
        let path = format!("/run/netns/{}", rack.lab.namespace("bm1"));
        let (s, q) = (stop.clone(), questions.clone());
        let thread = std::thread::spawn(move || {
            let file = std::fs::File::open(path)?;
            nix::sched::setns(file.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET)?;
            ask(&s, &q)
        });
        Client { stop, questions, thread: Some(thread) }
    }

    /// When the first question after a moment was answered, and its number.
    fn answered_after(&self, moment: Instant) -> Result<(Duration, u32)> {
        until("an answer", PATIENCE, || {
            let all = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
            let first = all.iter().filter(|(_, q)| q.asked > moment).find_map(|(n, q)| Some((q.answers.first()?, *n)));
            let (answer, number) = first.context("no question was answered")?;
            Ok((answer.duration_since(moment), number))
        })
    }

    /// The last question that was answered.
    fn last_answered(&self) -> Option<u32> {
        let all = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().find(|(_, q)| !q.answers.is_empty()).map(|(n, _)| *n)
    }

    /// Ends it: how many questions were asked, and how many have no answer; an error if one has two.
    fn end(mut self) -> Result<(usize, usize)> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            t.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
        }
        let all = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        for (n, q) in all.iter() {
            ensure!(q.answers.len() <= 1, "{n:x} has {} answers", q.answers.len());
        }
        Ok((all.len(), all.values().filter(|q| q.answers.is_empty()).count()))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Asks, each time with another number (xid), and hears.
fn ask(stop: &AtomicBool, questions: &Questions) -> Result<()> {
    let s = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    s.set_broadcast(true)?;
    s.bind_device(Some(b"eth0"))?;
    s.bind(&SocketAddr::from(([0, 0, 0, 0], 68)).into())?;
    s.set_read_timeout(Some(Duration::from_millis(5)))?;
    let s: UdpSocket = s.into();
    let (mut next, mut number, mut buf) = (Instant::now(), 0x1000_0000, [0; 1500]);
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now >= next {
            next = now + INTERVAL;
            number += 1;
            let question = Question { asked: now, answers: Vec::new() };
            questions.lock().unwrap_or_else(PoisonError::into_inner).insert(number, question);
            s.send_to(&discover(number), "255.255.255.255:67")?;
        }
        let Ok((n, _)) = s.recv_from(&mut buf) else { continue };
        // BOOTREPLY, with DHCPOFFER as its first option.
        let Some(xid) = packet::be32(&buf[..n], 4) else { continue };
        if buf[0] == 2 && buf[240..243] == [53, 1, 2] {
            let mut all = questions.lock().unwrap_or_else(PoisonError::into_inner);
            match all.get_mut(&xid) {
                Some(q) => q.answers.push(Instant::now()),
                None => bail!("an answer to {xid:x}, which was not asked"),
            }
        }
    }
    Ok(())
}

/// DHCPDISCOVER (RFC 2131), whose reply is to be a broadcast.
fn discover(number: u32) -> Vec<u8> {
    let mut m = vec![0; 236];
    m[..4].copy_from_slice(&[1, 1, 6, 0]);
    m[4..8].copy_from_slice(&number.to_be_bytes());
    m[10] = 0x80;
    m[28..34].copy_from_slice(&[2, 0, 0, 0, 0x0b, 1]);
    m.extend([99, 130, 83, 99, 53, 1, 1, 55, 2, 1, 3, 255]);
    m
}

/// The gateways.
const GATEWAYS: [&str; 3] = ["gw1", "gw2", "gw3"];

/// Something happens: how soon the machine is answered again, and that the one gateway that answers then is this one.
fn event(rack: &mut Rack, what: &str, to: &str, act: impl FnOnce(&mut Rack) -> Result<()>) -> Result<()> {
    std::thread::sleep(SETTLED);
    let client = Client::start(rack);
    client.answered_after(Instant::now()).with_context(|| format!("before: {what}"))?;
    let start = Instant::now();
    act(rack)?;
    // Another answers; until then the one before does, if it can.
    until(&format!("{what}: {to} answers"), PATIENCE, || {
        let number = client.last_answered().context("nothing was answered")?;
        std::thread::sleep(Duration::from_millis(200));
        let who: Vec<&str> = GATEWAYS.into_iter().filter(|gw| answered(rack, gw, number)).collect();
        ensure!(who == [to], "{who:?} answered {number:x}");
        Ok(())
    })?;
    let moved = start.elapsed();
    // What came later than at the end of this is no matter of the event.
    std::thread::sleep(Duration::from_secs(3));
    let longest = longest(&client, start);
    let (asked, unanswered) = client.end().with_context(|| what.to_string())?;
    eprintln!(
        "{what}: {to} answers after at most {moved:.2?}; {asked} questions, {unanswered} without an answer; at most {longest:.2?} \
         between answers"
    );
    Ok(())
}

/// The longest time without an answer from a moment on.
fn longest(client: &Client, start: Instant) -> Duration {
    let all = client.questions.lock().unwrap_or_else(PoisonError::into_inner);
    let mut times: Vec<Instant> = all.values().flat_map(|q| q.answers.clone()).filter(|t| *t >= start).collect();
    times.insert(0, start);
    times.sort();
    times.windows(2).map(|w| w[1] - w[0]).max().unwrap_or_default()
}

/// Whether a gateway has answered a question, as it says.
fn answered(rack: &Rack, gateway: &str, number: u32) -> bool {
    rack.trace_of(gateway)
        .is_ok_and(|t| t.lines().any(|l| l.contains(&format!("xid {number:#x}")) && l.contains("OFFER")))
}

fn three() -> Result<()> {
    let mut rack = Rack::with_gateways(&GATEWAYS)?;
    rack.set(&["set", "nb_global", ".", "options:bfd-min-rx=100", "options:bfd-min-tx=100", "options:bfd-mult=3"])?;
    rack.set(&["--wait=hv", "--timeout=60", "sync"])?;
    let kill = |gw: &'static str| {
        move |r: &mut Rack| {
            r.kill(gw);
            Ok(())
        }
    };
    let priority = |gw: &'static str, priority: &'static str| {
        move |r: &mut Rack| r.set(&["ha-chassis-group-add-chassis", "g", gw, priority]).map(drop)
    };
    event(&mut rack, "gw1 is killed", "gw2", kill("gw1"))?;
    event(&mut rack, "gw2 is killed as well", "gw3", kill("gw2"))?;
    event(&mut rack, "gw2 is back", "gw2", |r| r.revive("gw2"))?;
    event(&mut rack, "gw1 is back", "gw1", |r| r.revive("gw1"))?;
    event(&mut rack, "gw1 loses its tunnels", "gw2", |r| r.underlay("gw1", "down"))?;
    event(&mut rack, "gw1 has them again", "gw1", |r| r.underlay("gw1", "up"))?;
    event(&mut rack, "gw3 is preferred", "gw3", priority("gw3", "40"))?;
    event(&mut rack, "gw2 is preferred", "gw2", priority("gw2", "50"))?;
    event(&mut rack, "the wires of gw2 are cut", "gw3", |r| r.cut("gw2"))
}

#[test]
fn three_gateways_answer_a_machine_one_at_a_time() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl"]) {
        return;
    }
    if let Err(e) = three() {
        panic!("{e:#}");
    }
}
