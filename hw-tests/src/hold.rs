//! Many connections at once, held through the failure of a gateway: what became of each.

use crate::agent::clock;
use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How long a datagram's answer may take until it is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a question may go without an answer until its connection counts as silent.
const SILENT: Duration = Duration::from_secs(30);
/// How long a new connection of one that begins anew each time may take, until another one is opened.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Bytes of an answer: the address that the server sees, and the server's word.
const ANSWER: usize = 64;
/// A question that is answered once. After a greater one the server goes on by itself: see [`question`].
const ONCE: u8 = 1;
/// How often the server says something by itself at most.
const PUSH: Duration = Duration::from_millis(250);
/// How often an idle datagram socket asks: a switch forgets what was silent for 30 s (ovs-vswitchd.conf.db(5),
/// `CT_Timeout_Policy:timeouts`, udp_multiple), with and without a failure.
const IDLE: Duration = Duration::from_secs(10);
/// In so many times the time between two questions of a connection all open one after the other, and end so. Many at
/// once would wait for each other, and TCP would take that for the time of a round trip for as long as it is idle: what
/// is lost later is sent again after three such times.
const TURNS: u32 = 4;
/// How long a connection may say nothing so that switches know it still, with two seconds to spare
/// (ovs-vswitchd.conf.db(5), `CT_Timeout_Policy:timeouts`, udp_multiple).
const KNOWN: Duration = Duration::from_secs(28);

/// In which time connections that ask so often open one after the other, and end so. Who has just not asked waits for that
/// time with its last question.
pub fn turns(every: Duration) -> Duration {
    (every * TURNS).min(KNOWN.saturating_sub(every))
}
/// For how long the server speaks by itself over UDP, which has no end.
const PUSHES: Duration = Duration::from_secs(300);

/// What became of the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that had an answer.
    pub answered: u64,
    /// TCP connections that were reset or closed.
    pub resets: u64,
    /// Connections whose address or port the server saw change, or that another server answered.
    pub changed: u64,
    /// Connections that had no answer to a question.
    pub silent: u64,
    /// The longest time between a question and its answer, in microseconds, once all were open.
    pub longest_stall: u64,
    /// How many datagrams in a row did not come, of those that the server sends by itself and nobody sends again, at most.
    #[serde(default)]
    pub missed: u64,
    /// Whose the longest stall was, and when it ended.
    #[serde(default)]
    pub longest_of: String,
    /// Datagrams that came, once all were open.
    #[serde(default)]
    pub came: u64,
    /// When those were due that did not, or not within 200 ms, in microseconds of the machine's clock: questions that were
    /// asked again, and what the server says by itself.
    #[serde(default)]
    pub lost: Vec<u64>,
    /// What went wrong first.
    pub trouble: Option<String>,
    /// Each connection's, if that was asked for.
    #[serde(default)]
    pub stories: Vec<Story>,
}

/// What became of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// TCP or UDP.
    pub protocol: String,
    /// What it does.
    pub habit: String,
    /// Its own port.
    pub port: u16,
    /// By which address and port the server saw it at first, and at last.
    pub seen: [String; 2],
    /// When answers came, in microseconds of the machine's clock.
    pub answers: Vec<u64>,
    /// How it ended, if not well.
    pub end: Option<String>,
}

impl Held {
    fn end(&mut self, story: Option<usize>, how: &str) {
        if let Some(s) = story.and_then(|i| self.stories.get_mut(i)) {
            s.end = Some(how.into());
        }
    }
}

type Shared = Arc<Mutex<Held>>;

fn note(all: &Shared, f: impl FnOnce(&mut Held)) {
    f(&mut all.lock().unwrap_or_else(PoisonError::into_inner));
}

/// What a client is told: by which address it is seen, and by whom.
fn answer(of: SocketAddr, word: &str) -> [u8; ANSWER] {
    let mut bytes = [b' '; ANSWER];
    bytes.iter_mut().zip(format!("{of} {word}").bytes()).for_each(|(to, b)| *to = b);
    bytes
}

/// Who answered.
fn word(answer: &[u8; ANSWER]) -> [u8; ANSWER] {
    let mut of = *answer;
    of.iter_mut().take_while(|b| **b != b' ').for_each(|b| *b = b' ');
    of
}

/// A question after which the server speaks by itself so often, in steps of [`PUSH`].
fn question(every: Duration) -> u8 {
    u8::try_from(every.as_millis() / PUSH.as_millis()).unwrap_or(u8::MAX).clamp(1, u8::MAX - ONCE) + ONCE
}

/// How often the server speaks by itself after this question.
fn pushes(question: u8) -> Option<Duration> {
    (question > ONCE).then(|| PUSH * u32::from(question - ONCE))
}

/// Octets of datagrams that may wait for a server. With the kernel's 200 kB the server itself would lose some whenever the
/// machine is busy.
const WAITING: usize = 16 << 20;

/// How many connections may open at a time. Above that the kernel answers by SYN cookies, and a connection whose SYN came
/// twice meanwhile, once answered so and once not, is never opened.
const OPENING: u32 = 4096;

/// What a server says once it listens.
pub const SERVES: &str = "serves";

/// Says [`SERVES`], and tells every client what address it is seen by, and a word, over UDP and TCP, for ever.
///
/// # Errors
/// The port is taken, or the system allows too few sockets.
#[tokio::main(flavor = "current_thread")]
pub async fn serve(port: u16, word: &str) -> Result<()> {
    many_sockets()?;
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let udp = Arc::new(UdpSocket::bind(all).await?);
    let tcp = TcpSocket::new_v6()?;
    tcp.set_reuseaddr(true)?;
    tcp.bind(all)?;
    let tcp = tcp.listen(OPENING)?;
    setsockopt(&udp, sockopt::RcvBufForce, &WAITING).context("a larger receive buffer")?;
    println!("{SERVES}");
    std::io::stdout().flush()?;
    let own: Arc<str> = word.into();
    tokio::spawn({
        let own = own.clone();
        async move {
            let mut buf = [0; 64];
            loop {
                let Ok((_, from)) = udp.recv_from(&mut buf).await else { continue };
                let answer = answer(plain(from), &own);
                // A client may have gone.
                let _ = udp.send_to(&answer, from).await;
                if let Some(every) = pushes(buf[0]) {
                    let (udp, end) = (udp.clone(), Instant::now() + PUSHES);
                    tokio::spawn(async move {
                        while Instant::now() < end {
                            sleep(every).await;
                            let _ = udp.send_to(&answer, from).await;
                        }
                    });
                }
            }
        }
    });
    loop {
        let (stream, from) = tcp.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(tell(stream, answer(plain(from), &own)));
    }
}

/// Answers a client until it goes.
async fn tell(mut stream: TcpStream, answer: [u8; ANSWER]) {
    while let Ok(question) = stream.read_u8().await {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
        if let Some(every) = pushes(question) {
            while stream.write_all(&answer).await.is_ok() {
                sleep(every).await;
            }
            return;
        }
    }
}

/// An address of IPv4 as such.
fn plain(a: SocketAddr) -> SocketAddr {
    SocketAddr::new(a.ip().to_canonical(), a.port())
}

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    /// It asks all the time.
    Asks,
    /// It asks at the beginning and at the end only, over UDP also every [`IDLE`].
    Idles,
    /// It asks once; then the other end alone speaks.
    Listens,
    /// It asks all the time, each time as a new connection of the same address.
    Anew,
}

/// When a connection asks.
#[derive(Clone)]
struct Times {
    /// Whose they are.
    name: Arc<str>,
    /// Over UDP.
    udp: bool,
    every: Duration,
    /// How long after the first of them it opens, and asks for the last time.
    turn: Duration,
    /// How often it asks if it is idle.
    idle: Duration,
    habit: Habit,
    over: watch::Receiver<bool>,
    /// The place of its story in [`Held::stories`].
    story: Option<usize>,
}

impl Times {
    /// What it asks.
    fn question(&self) -> u8 {
        if self.habit == Habit::Listens { question(self.every) } else { ONCE }
    }

    /// Waits until the next question; true if it is the last one.
    async fn is_last(&mut self) -> bool {
        let every = match self.habit {
            Habit::Idles => self.idle,
            // The next answer comes by itself.
            Habit::Listens => Duration::ZERO,
            Habit::Asks | Habit::Anew => self.every,
        };
        // The sender lives as long as the connections do.
        let last = timeout(every, self.over.wait_for(|o| *o)).await.is_ok();
        if last && self.habit != Habit::Listens {
            sleep(self.turn).await;
        }
        last
    }
}

/// Allows this process as many sockets as the system does.
fn many_sockets() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// What a client holds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// To whom.
    pub to: SocketAddr,
    /// From which addresses, one after the other; from any if there are none.
    pub from: Vec<IpAddr>,
    /// Each question is a new connection, and has to be answered by the server that answered the first.
    pub anew: bool,
    /// How many connections of TCP, and of UDP.
    pub count: u16,
    /// The first source port.
    pub port: u16,
    /// How often a connection asks.
    pub every: Duration,
    /// How long they are held at most.
    pub time: Duration,
    /// Each connection's story is told.
    pub stories: bool,
}

/// What it says once each connection has had its first answer.
pub const OPEN: &str = "all are open";

/// Opens connections of TCP and as many of UDP, says [`OPEN`], and holds them until it is asked to end (SIGTERM). Of four
/// one is idle (over TCP it says nothing between its first question and its last), and one hears the other end, and says
/// nothing.
///
/// # Errors
/// The system allows too few sockets, or no signals.
#[tokio::main(flavor = "current_thread")]
pub async fn hold(Plan { to, from, anew, count, port, every, time, stories }: Plan) -> Result<Held> {
    many_sockets()?;
    let mut asked = signal(SignalKind::terminate())?;
    let (all, (end, over), mut tasks) = (Shared::default(), watch::channel(false), JoinSet::new());
    let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    for i in 0..count {
        let habit = match i % 4 {
            _ if anew => Habit::Anew,
            1 => Habit::Idles,
            2 => Habit::Listens,
            _ => Habit::Asks,
        };
        let own = from.iter().cycle().nth(i.into()).copied().unwrap_or(any);
        let from = SocketAddr::new(own, if anew { 0 } else { port + i });
        let times = |protocol: &str, idle| {
            let mut story = None;
            if stories {
                let (protocol, habit, port) = (protocol.into(), format!("{habit:?}").to_lowercase(), from.port());
                note(&all, |h| {
                    story = Some(h.stories.len());
                    h.stories.push(Story { protocol, habit, port, ..Story::default() });
                });
            }
            let turn = turns(every) * u32::from(i) / u32::from(count);
            let name = format!("{protocol} {from} {habit:?}").into();
            Times { name, udp: protocol == "UDP", every, turn, idle, habit, over: over.clone(), story }
        };
        let (tcp, udp) = (times("TCP", Duration::MAX), times("UDP", IDLE));
        tasks.spawn(by_tcp(from, to, tcp, all.clone()));
        tasks.spawn(by_udp(from, to, udp, all.clone()));
    }
    let everyone = async {
        let mut said = Instant::now();
        loop {
            let now = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if now.answered >= u64::from(count) * 2 {
                break;
            }
            if said.elapsed() > Duration::from_secs(5) {
                said = Instant::now();
                eprintln!("{}", serde_json::to_string(&now)?);
            }
            sleep(AGAIN).await;
        }
        note(&all, |h| (h.longest_stall, h.missed, h.came, h.lost) = (0, 0, 0, Vec::new()));
        println!("{OPEN}");
        std::io::stdout().flush()?;
        asked.recv().await;
        anyhow::Ok(())
    };
    // Connections that do not open, and an end that nobody asks for, come out as figures.
    if let Ok(r) = timeout(time, everyone).await {
        r?;
    }
    end.send_replace(true);
    while tasks.join_next().await.is_some() {}
    let held = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(held)
}

async fn open(from: SocketAddr, to: SocketAddr) -> Result<TcpStream> {
    let s = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    s.set_reuse_address(true)?;
    s.set_nonblocking(true)?;
    s.set_tcp_nodelay(true)?;
    s.bind(&from.into())?;
    Ok(TcpSocket::from_std_stream(s.into()).connect(to).await?)
}

async fn by_tcp(from: SocketAddr, to: SocketAddr, mut times: Times, all: Shared) {
    let (start, habit) = (Instant::now(), times.habit);
    let trouble = |what: String| {
        note(&all, |h| {
            h.trouble.get_or_insert(format!("{from} {habit:?} after {:?}: {what}", start.elapsed()));
        })
    };
    sleep(times.turn).await;
    // A new connection's SYN may be lost, and is sent again a second later.
    let mut stream = match open(from, to).await {
        Ok(s) => s,
        Err(e) => return trouble(format!("connect: {e:#}")),
    };
    note(&all, |h| h.opened += 1);
    let (mut first, mut last) = (None, false);
    let question = times.question();
    loop {
        let (asked, mut answer) = (Instant::now(), [0; ANSWER]);
        let exchange = async {
            // A connection that was opened a moment before its gateway was lost may not be known to the next one: people
            // try again.
            while habit == Habit::Anew && first.is_some() {
                let attempt = async {
                    stream = open(from, to).await?;
                    stream.write_u8(question).await?;
                    anyhow::Ok(stream.read_exact(&mut answer).await?)
                };
                if let Ok(Ok(_)) = timeout(ATTEMPT, attempt).await {
                    return Ok(ANSWER);
                }
                sleep(AGAIN).await;
            }
            if habit != Habit::Listens || first.is_none() {
                stream.write_u8(question).await?;
            }
            stream.read_exact(&mut answer).await
        };
        match timeout(SILENT, exchange).await {
            Ok(Ok(_)) => answered(&all, &times, &mut first, answer, asked),
            Ok(Err(e)) => {
                trouble(format!("TCP: {e}"));
                return note(&all, |h| {
                    h.resets += 1;
                    h.end(times.story, &e.to_string());
                });
            }
            Err(_) => {
                trouble("TCP: no answer".into());
                return note(&all, |h| {
                    h.silent += 1;
                    h.end(times.story, "no answer");
                });
            }
        }
        if last {
            return;
        }
        last = times.is_last().await;
    }
}

fn answered(all: &Shared, times: &Times, first: &mut Option<[u8; ANSWER]>, answer: [u8; ANSWER], asked: Instant) {
    let (habit, story) = (times.habit, times.story);
    // New connections have other ports.
    let answer = if habit == Habit::Anew { word(&answer) } else { answer };
    let before = first.replace(answer);
    // The other end speaks by itself after that time.
    let due = if before.is_some() { pushes(times.question()) } else { None };
    let mut stall = asked.elapsed().saturating_sub(due.unwrap_or_default());
    let mut missed = 0;
    if let Some(due) = due.filter(|_| times.udp) {
        missed = (stall.as_micros() + due.as_micros() / 2) / due.as_micros();
        stall = Duration::ZERO;
    }
    let stall = u64::try_from(stall.as_micros()).unwrap_or(u64::MAX);
    note(all, |h| {
        h.answered += u64::from(before.is_none());
        if let Some(s) = story.and_then(|i| h.stories.get_mut(i)) {
            s.answers.push(clock());
            s.seen[1] = String::from_utf8_lossy(&answer).trim_end().to_owned();
            if before.is_none() {
                s.seen[0] = s.seen[1].clone();
            }
        }
        if let Some(before) = before.filter(|f| *f != answer) {
            h.changed += 1;
            let text = |a: &[u8]| String::from_utf8_lossy(a).trim_end().to_owned();
            h.trouble.get_or_insert(format!("{habit:?}: {} has become {}", text(&before), text(&answer)));
        }
        let missed = u64::try_from(missed).unwrap_or(u64::MAX);
        h.missed = h.missed.max(missed);
        h.came += u64::from(times.udp);
        let due = due.and_then(|d| u64::try_from(d.as_micros()).ok()).unwrap_or_default();
        h.lost.extend((1..=missed).map(|n| clock().saturating_sub(n * due)));
        if stall > h.longest_stall {
            h.longest_stall = stall;
            h.longest_of = format!("{} at {} s", times.name, clock() / 1_000_000);
        }
    });
}

async fn by_udp(from: SocketAddr, to: SocketAddr, mut times: Times, all: Shared) {
    let habit = times.habit;
    let open = || async {
        let socket = UdpSocket::bind(from).await?;
        socket.connect(to).await?;
        Ok::<_, std::io::Error>(socket)
    };
    sleep(times.turn).await;
    let Ok(mut socket) = open().await else { return };
    note(&all, |h| h.opened += 1);
    let question = times.question();
    let (mut first, mut last) = (None, false);
    loop {
        let (asked, mut answer) = (Instant::now(), [0; ANSWER]);
        if habit == Habit::Anew && first.is_some() {
            match open().await {
                Ok(s) => socket = s,
                Err(_) => return,
            }
        }
        // An answer that comes once the question has been asked again is there twice: it is taken for the next one's.
        loop {
            if habit != Habit::Listens || first.is_none() {
                // A neighbour that is not known yet is an error of a datagram, not of the connection.
                let _ = socket.send(&[question]).await;
            }
            if let Ok(Ok(ANSWER)) = timeout(AGAIN, socket.recv(&mut answer)).await {
                break;
            }
            // One that listens is not late: its server says something four times a second at most.
            if habit != Habit::Listens || first.is_none() {
                note(&all, |h| h.lost.push(clock()));
            }
            if asked.elapsed() > SILENT {
                return note(&all, |h| {
                    h.silent += 1;
                    h.end(times.story, "no answer");
                    h.trouble.get_or_insert(format!("{from} {habit:?}: UDP: no answer"));
                });
            }
        }
        answered(&all, &times, &mut first, answer, asked);
        if last {
            return;
        }
        last = times.is_last().await;
    }
}
