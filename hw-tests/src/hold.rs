//! Many connections at once, held through the failure of a gateway: what became of each.

use anyhow::Result;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How long a datagram's answer may take until it is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a question may go without an answer until its connection counts as silent.
const SILENT: Duration = Duration::from_secs(30);
/// Bytes of an answer over TCP: the address that the server sees.
const ANSWER: usize = 32;

/// What became of the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that had an answer.
    pub answered: u64,
    /// TCP connections that were reset or closed.
    pub resets: u64,
    /// Connections whose address or port the server saw change.
    pub changed: u64,
    /// Connections that had no answer to a question.
    pub silent: u64,
    /// The longest time between a question and its answer, in microseconds.
    pub longest_stall: u64,
    /// What went wrong first.
    pub trouble: Option<String>,
}

type Shared = Arc<Mutex<Held>>;

fn note(all: &Shared, f: impl FnOnce(&mut Held)) {
    f(&mut all.lock().unwrap_or_else(PoisonError::into_inner));
}

fn address(of: SocketAddr) -> [u8; ANSWER] {
    let mut bytes = [b' '; ANSWER];
    bytes.iter_mut().zip(of.to_string().bytes()).for_each(|(to, b)| *to = b);
    bytes
}

/// What a server says once it listens.
pub const SERVES: &str = "serves";

/// Says [`SERVES`], and tells every client what address it is seen by, over UDP and TCP, for ever.
///
/// # Errors
/// The port is taken, or the system allows too few sockets.
#[tokio::main(flavor = "current_thread")]
pub async fn serve(port: u16) -> Result<()> {
    many_sockets()?;
    let (udp, tcp) = (UdpSocket::bind(("0.0.0.0", port)).await?, TcpListener::bind(("0.0.0.0", port)).await?);
    println!("{SERVES}");
    std::io::stdout().flush()?;
    tokio::spawn(async move {
        let mut buf = [0; 64];
        loop {
            if let Ok((_, from)) = udp.recv_from(&mut buf).await {
                // A client may have gone.
                let _ = udp.send_to(&address(from), from).await;
            }
        }
    });
    loop {
        let (mut stream, from) = tcp.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            while stream.read_u8().await.is_ok() && stream.write_all(&address(from)).await.is_ok() {}
        });
    }
}

/// When a connection asks: all the time, or at the beginning and at the end only.
#[derive(Clone)]
struct Times {
    every: Duration,
    idle: bool,
    over: watch::Receiver<bool>,
}

impl Times {
    /// Waits until the next question; true if it is the last one.
    async fn is_last(&mut self) -> bool {
        let every = if self.idle { Duration::MAX } else { self.every };
        // The sender lives as long as the connections do.
        timeout(every, self.over.wait_for(|o| *o)).await.is_ok()
    }
}

/// Allows this process as many sockets as the system does.
fn many_sockets() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// What a client holds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// To whom.
    pub to: SocketAddr,
    /// How many connections of TCP, and of UDP.
    pub count: u16,
    /// The first source port.
    pub port: u16,
    /// How often a connection asks.
    pub every: Duration,
    /// How long they are held at most.
    pub time: Duration,
}

/// What it says once each connection has had its first answer.
pub const OPEN: &str = "all are open";

/// Opens connections of TCP and as many of UDP, says [`OPEN`], and holds them until it is asked to end (SIGTERM). Every
/// second one says nothing between its first question and its last.
///
/// # Errors
/// The system allows too few sockets, or no signals.
#[tokio::main(flavor = "current_thread")]
pub async fn hold(Plan { to, count, port, every, time }: Plan) -> Result<Held> {
    many_sockets()?;
    let mut asked = signal(SignalKind::terminate())?;
    let (all, (end, over), mut tasks) = (Shared::default(), watch::channel(false), JoinSet::new());
    for i in 0..count {
        let times = Times { every, idle: i % 2 == 1, over: over.clone() };
        let from = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port + i));
        tasks.spawn(by_tcp(from, to, times.clone(), all.clone()));
        tasks.spawn(by_udp(from, to, times, all.clone()));
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
    let s = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    s.set_reuse_address(true)?;
    s.set_nonblocking(true)?;
    s.set_tcp_nodelay(true)?;
    s.bind(&from.into())?;
    Ok(TcpSocket::from_std_stream(s.into()).connect(to).await?)
}

async fn by_tcp(from: SocketAddr, to: SocketAddr, mut times: Times, all: Shared) {
    let start = Instant::now();
    let trouble = |what: String| {
        note(&all, |h| {
            h.trouble.get_or_insert(format!("{from} after {:?}: {what}", start.elapsed()));
        })
    };
    let mut stream = match open(from, to).await {
        Ok(s) => s,
        Err(e) => return trouble(format!("connect: {e:#}")),
    };
    note(&all, |h| h.opened += 1);
    let (mut first, mut last) = (None, false);
    loop {
        let (asked, mut answer) = (Instant::now(), [0; ANSWER]);
        let exchange = async {
            stream.write_u8(1).await?;
            stream.read_exact(&mut answer).await
        };
        match timeout(SILENT, exchange).await {
            Ok(Ok(_)) => answered(&all, &mut first, answer, asked),
            Ok(Err(e)) => {
                trouble(format!("TCP: {e}"));
                return note(&all, |h| h.resets += 1);
            }
            Err(_) => {
                trouble("TCP: no answer".into());
                return note(&all, |h| h.silent += 1);
            }
        }
        if last {
            return;
        }
        last = times.is_last().await;
    }
}

fn answered(all: &Shared, first: &mut Option<[u8; ANSWER]>, answer: [u8; ANSWER], asked: Instant) {
    let before = first.replace(answer);
    let stall = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
    note(all, |h| {
        h.answered += u64::from(before.is_none());
        h.changed += u64::from(before.is_some_and(|f| f != answer));
        h.longest_stall = h.longest_stall.max(stall);
    });
}

async fn by_udp(from: SocketAddr, to: SocketAddr, mut times: Times, all: Shared) {
    let Ok(socket) = UdpSocket::bind(from).await else { return };
    if socket.connect(to).await.is_err() {
        return;
    }
    note(&all, |h| h.opened += 1);
    let (mut first, mut last) = (None, false);
    loop {
        let (asked, mut answer) = (Instant::now(), [0; ANSWER]);
        loop {
            // A neighbour that is not known yet is an error of a datagram, not of the connection.
            let _ = socket.send(&[1]).await;
            if let Ok(Ok(ANSWER)) = timeout(AGAIN, socket.recv(&mut answer)).await {
                break;
            }
            if asked.elapsed() > SILENT {
                return note(&all, |h| {
                    h.silent += 1;
                    h.trouble.get_or_insert(format!("{from}: UDP: no answer"));
                });
            }
        }
        answered(&all, &mut first, answer, asked);
        if last {
            return;
        }
        last = times.is_last().await;
    }
}
