//! What runs inside a machine of the lab. Each prints what it saw as one JSON object at its end.

use crate::hold;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The machine's monotonic clock in microseconds: the same in all namespaces.
pub fn clock() -> u64 {
    let t = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()));
    t.0 as u64 * 1_000_000 + t.1 as u64 / 1000
}

/// What the agents do.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Agent {
    /// Send a numbered datagram at each interval for a while, or until asked to end (SIGTERM).
    UdpSend {
        /// To whom.
        to: SocketAddr,
        /// Microseconds between datagrams.
        #[arg(long, default_value_t = 5000)]
        interval: u64,
        /// Seconds.
        #[arg(long)]
        seconds: f64,
        /// The source port.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Receive numbered datagrams for a while, or until asked to end (SIGTERM), and note when each came and from whom.
    UdpReceive {
        /// The port.
        port: u16,
        /// Seconds.
        #[arg(long)]
        seconds: f64,
    },
    /// Send datagrams at a rate, each of another connection: to one port after the other, then to the next address. Prints
    /// how many seconds that took.
    UdpOpen {
        /// The first address.
        to: Ipv4Addr,
        /// How many datagrams a second.
        #[arg(long)]
        rate: u32,
        /// How many connections.
        #[arg(long)]
        count: u32,
        /// How often all of them.
        #[arg(long, default_value_t = 1)]
        rounds: u32,
    },
    /// Answer datagrams, forever.
    UdpEcho {
        /// The port.
        port: u16,
        /// A word to put in front of answers.
        #[arg(long, default_value = "")]
        word: String,
    },
    /// Ask an echo server once; prints its answer.
    UdpAsk {
        /// Whom.
        to: SocketAddr,
    },
    /// Take a transfer and count its bytes.
    TcpReceive {
        /// The port.
        port: u16,
        /// Seconds after which to give up.
        #[arg(long)]
        seconds: f64,
    },
    /// Send bytes over one connection for a while, at a steady rate.
    TcpSend {
        /// To whom.
        to: SocketAddr,
        /// Seconds.
        #[arg(long)]
        seconds: f64,
    },
    /// Send frames that make no sense: random bytes, and the beginnings of known protocols with random or no ends.
    Garbage {
        /// The interface.
        interface: String,
        /// How many.
        #[arg(long, default_value_t = 5000)]
        count: u64,
    },
    /// Send datagrams of random bytes.
    UdpGarbage {
        /// To whom.
        to: SocketAddr,
        /// How many.
        #[arg(long, default_value_t = 5000)]
        count: u64,
    },
    /// Tell every client the address by which it is seen, over UDP and TCP, forever.
    HoldServe {
        /// The port.
        port: u16,
        /// A word to put behind answers.
        #[arg(long, default_value = "")]
        word: String,
    },
    /// Hold many connections over UDP and TCP, and tell what became of them.
    Hold {
        /// To whom.
        to: SocketAddr,
        /// How many of each.
        #[arg(long, default_value_t = 100)]
        count: u16,
        /// The first source port.
        #[arg(long, default_value_t = 20000)]
        port: u16,
        /// Milliseconds between questions of a connection.
        #[arg(long, default_value_t = 100)]
        every: u64,
        /// Seconds.
        #[arg(long)]
        seconds: f64,
        /// Source addresses, one connection after the other.
        #[arg(long, value_delimiter = ',')]
        from: Vec<IpAddr>,
        /// Each question is a new connection, which the server of the first has to answer.
        #[arg(long)]
        anew: bool,
        /// Tells each connection's story.
        #[arg(long)]
        stories: bool,
    },
    /// Get an address by DHCP and give it to the interface.
    Dhcp {
        /// The interface.
        interface: String,
    },
}

/// Datagrams that arrived: number and time in microseconds of [`clock`].
#[derive(Serialize, Deserialize, Debug, Default, Clone)]
pub struct Arrivals {
    /// Number and time.
    pub datagrams: Vec<(u64, u64)>,
    /// From whom, and how many.
    pub sources: BTreeMap<String, u64>,
}

/// A transfer's end.
#[derive(Serialize, Deserialize, Debug, Default, Clone)]
pub struct Transfer {
    /// Bytes.
    pub bytes: u64,
    /// The longest time without progress, in microseconds.
    pub longest_stall: u64,
    /// It ended as it should.
    pub complete: bool,
    /// The connection's far end.
    pub peer: String,
}

/// A lease.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// The default router.
    pub router: Option<Ipv4Addr>,
    /// The MTU.
    pub mtu: Option<u16>,
    /// Seconds.
    pub lease: u32,
}

/// Runs an agent and prints what it saw.
///
/// # Errors
/// Where its sockets fail.
pub fn run(agent: &Agent) -> Result<()> {
    match agent {
        Agent::UdpSend { to, interval, seconds, port } => udp_send(*to, *interval, *seconds, *port),
        Agent::UdpReceive { port, seconds } => print(&udp_receive(*port, *seconds)?),
        Agent::UdpOpen { to, rate, count, rounds } => {
            println!("{:.3}", udp_open(*to, *rate, *count, *rounds)?.as_secs_f64());
            Ok(())
        }
        Agent::UdpEcho { port, word } => udp_echo(*port, word),
        Agent::UdpAsk { to } => {
            println!("{}", udp_ask(*to)?);
            Ok(())
        }
        Agent::TcpReceive { port, seconds } => print(&tcp_receive(*port, *seconds)?),
        Agent::TcpSend { to, seconds } => print(&tcp_send(*to, *seconds)?),
        Agent::Garbage { interface, count } => garbage(interface, *count),
        Agent::UdpGarbage { to, count } => udp_garbage(*to, *count),
        Agent::HoldServe { port, word } => hold::serve(*port, word),
        Agent::Hold { to, count, port, every, seconds, from, anew, stories } => {
            let (every, time) = (Duration::from_millis(*every), Duration::from_secs_f64(*seconds));
            let (count, port, from, anew, stories) = (*count, *port, from.clone(), *anew, *stories);
            print(&hold::hold(hold::Plan { to: *to, from, anew, count, port, every, time, stories })?)
        }
        Agent::Dhcp { interface } => print(&dhcp(interface)?),
    }
}

fn print<T: Serialize>(value: &T) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

fn udp_send(to: SocketAddr, interval: u64, seconds: f64, port: u16) -> Result<()> {
    let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let (s, stop) = (UdpSocket::bind((any, port))?, asked_to_end()?);
    let start = clock();
    let end = start + (seconds * 1e6) as u64;
    for n in 0u64.. {
        let due = start + n * interval;
        if due >= end || stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_micros(due.saturating_sub(clock())));
        // A host that cannot be reached for a moment is what this measures.
        let _ = s.send_to(&n.to_be_bytes(), to);
    }
    Ok(())
}

/// Becomes true when somebody asks for the end (SIGTERM).
fn asked_to_end() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, asked.clone())?;
    Ok(asked)
}

fn udp_receive(port: u16, seconds: f64) -> Result<Arrivals> {
    let (s, stop) = (UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?, asked_to_end()?);
    s.set_read_timeout(Some(Duration::from_millis(50)))?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut out = Arrivals::default();
    let mut buf = [0; 64];
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        if let Ok((8, from)) = s.recv_from(&mut buf) {
            let n = u64::from_be_bytes([buf[0], buf[1], buf[2], buf[3], buf[4], buf[5], buf[6], buf[7]]);
            out.datagrams.push((n, clock()));
            *out.sources.entry(from.ip().to_canonical().to_string()).or_default() += 1;
        }
    }
    Ok(out)
}

/// Connections that go to one address.
const PORTS: u32 = 50_000;

fn udp_open(to: Ipv4Addr, rate: u32, count: u32, rounds: u32) -> Result<Duration> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7000))?;
    let (start, all) = (Instant::now(), u64::from(count) * u64::from(rounds));
    let mut sent = 0u64;
    while sent < all {
        // A thread that had to wait does not make up for more than a few milliseconds.
        let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        for n in sent..due.min(all) {
            let n = (n % u64::from(count)) as u32;
            let address = Ipv4Addr::from(u32::from(to) + n / PORTS);
            // A full queue is the receiver's affair.
            let _ = socket.send_to(&[0; 8], (address, (10_000 + n % PORTS) as u16));
        }
        sent = sent.max(due);
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(start.elapsed())
}

fn udp_echo(port: u16, word: &str) -> Result<()> {
    let s = UdpSocket::bind(("0.0.0.0", port))?;
    let mut buf = [0; 2048];
    loop {
        if let Ok((n, from)) = s.recv_from(&mut buf) {
            let mut answer = format!("{word} {} ", from.ip()).into_bytes();
            answer.extend_from_slice(&buf[..n]);
            let _ = s.send_to(&answer, from);
        }
    }
}

fn udp_ask(to: SocketAddr) -> Result<String> {
    let s = UdpSocket::bind("0.0.0.0:0")?;
    s.set_read_timeout(Some(Duration::from_millis(700)))?;
    let mut buf = [0; 2048];
    for _ in 0..3 {
        s.send_to(b"hello", to)?;
        if let Ok((n, _)) = s.recv_from(&mut buf) {
            return Ok(String::from_utf8_lossy(&buf[..n]).into_owned());
        }
    }
    bail!("{to} does not answer")
}

fn tcp_receive(port: u16, seconds: f64) -> Result<Transfer> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    let (mut c, peer) = listener.accept()?;
    c.set_read_timeout(Some(Duration::from_secs_f64(seconds)))?;
    let mut t = Transfer { peer: peer.ip().to_string(), ..Transfer::default() };
    let mut last = clock();
    let mut buf = vec![0; 65536];
    loop {
        match c.read(&mut buf) {
            Ok(0) => {
                t.complete = true;
                return Ok(t);
            }
            Ok(n) => {
                let now = clock();
                t.longest_stall = t.longest_stall.max(now - last);
                last = now;
                t.bytes += n as u64;
            }
            Err(_) => return Ok(t),
        }
    }
}

fn tcp_send(to: SocketAddr, seconds: f64) -> Result<Transfer> {
    let mut c = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    c.set_nodelay(true)?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let chunk = [7u8; 4096];
    let mut t = Transfer { peer: to.ip().to_string(), ..Transfer::default() };
    while Instant::now() < end {
        c.write_all(&chunk)?;
        t.bytes += chunk.len() as u64;
        std::thread::sleep(Duration::from_millis(5));
    }
    c.shutdown(std::net::Shutdown::Write)?;
    t.complete = true;
    Ok(t)
}

/// A sequence of numbers that is the same in every run (Marsaglia's xorshift64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, n: usize) -> impl Iterator<Item = u8> + '_ {
        (0..n).map(|_| self.next() as u8)
    }
}

/// The beginnings of frames: EtherType and what follows up to a place where a parser has to look at a length.
const BEGINNINGS: &[&[u8]] = &[
    &[0x08, 0x00, 0x45, 0, 0, 60, 0, 1, 0, 0, 64, 6],
    &[0x08, 0x00, 0x45, 0, 0, 60, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 1, 11, 10, 0, 1, 13, 0, 68, 0, 67],
    &[0x08, 0x00, 0x4f, 0, 0, 20, 0, 1, 0x20, 0, 64, 1],
    &[0x08, 0x00, 0x41, 0, 0xff, 0xff],
    &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1],
    &[0x08, 0x06, 0, 1, 8, 0, 255, 255, 0, 2],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 58, 255],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0xff, 0xff, 0, 255],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 44, 255],
    &[0x81, 0x00, 0, 100, 0x08, 0x00, 0x45],
    &[0x81, 0x00, 0, 100, 0x81, 0x00],
    &[0x88, 0xa8, 0, 1],
    &[],
];

fn garbage(interface: &str, count: u64) -> Result<()> {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};
    use std::os::fd::AsRawFd;
    let device = nix::ifaddrs::getifaddrs()?
        .filter(|a| a.interface_name == interface)
        .find_map(|a| a.address?.as_link_addr().copied())
        .with_context(|| format!("no interface {interface}"))?;
    let s = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None)?;
    let mut noise = Noise(0x1234_5678_9abc_def1);
    for n in 0..count {
        let mut frame: Vec<u8> = if n % 2 == 0 { vec![0xff; 6] } else { noise.bytes(6).collect() };
        frame.extend(noise.bytes(6));
        frame.extend(BEGINNINGS[n as usize % BEGINNINGS.len()]);
        let rest = noise.next() as usize % if n % 7 == 0 { 1400 } else { 80 };
        frame.extend(noise.bytes(rest));
        // A full queue is no matter: there are more where this came from.
        let _ = sendto(s.as_raw_fd(), &frame, &device, MsgFlags::empty());
        if n % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn udp_garbage(to: SocketAddr, count: u64) -> Result<()> {
    let s = UdpSocket::bind("0.0.0.0:0")?;
    let mut noise = Noise(0x0fed_cba9_8765_4321);
    for n in 0..count {
        let size = noise.next() as usize % 200;
        let mut data: Vec<u8> = noise.bytes(size).collect();
        // Half of them begin as Geneve (RFC 8926) and VXLAN (RFC 7348) do.
        for (to, from) in data.iter_mut().zip([n as u8 % 64, 0, 0x65, 0x58]).filter(|_| n % 2 == 0) {
            *to = from;
        }
        let _ = s.send_to(&data, to);
        if n % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// DISCOVER, REQUEST and the interface's configuration (RFC 2131). Replies are asked for as broadcasts, so that a
/// machine without an address hears them.
fn dhcp(interface: &str) -> Result<Lease> {
    let mac = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
    let mac: packet::Mac = mac.trim().parse()?;
    let s = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    s.set_broadcast(true)?;
    s.bind_device(Some(interface.as_bytes()))?;
    s.bind(&SocketAddr::from(([0, 0, 0, 0], 68)).into())?;
    s.set_read_timeout(Some(Duration::from_secs(1)))?;
    let s: UdpSocket = s.into();
    let xid = (clock() as u32).to_be_bytes();
    let offer = exchange(&s, &message(1, xid, mac, &[]), xid, 2).context("no DHCP offer")?;
    let mut wanted = vec![50, 4];
    wanted.extend(offer.address.octets());
    let server = offer.server.context("the offer names no server")?;
    wanted.extend([54, 4]);
    wanted.extend(server.octets());
    let ack = exchange(&s, &message(3, xid, mac, &wanted), xid, 5).context("no DHCP acknowledgement")?;
    let lease = Lease { address: ack.address, prefix: ack.prefix, router: ack.router, mtu: ack.mtu, lease: ack.lease };
    let ip = |args: &[&str]| crate::lab::run("ip", args);
    ip(&["addr", "replace", &format!("{}/{}", lease.address, lease.prefix), "dev", interface])?;
    if let Some(mtu) = lease.mtu {
        ip(&["link", "set", interface, "mtu", &mtu.to_string()])?;
    }
    if let Some(r) = lease.router {
        ip(&["route", "replace", "default", "via", &r.to_string()])?;
    }
    Ok(lease)
}

fn message(kind: u8, xid: [u8; 4], mac: packet::Mac, options: &[u8]) -> Vec<u8> {
    let mut m = vec![0; 236];
    m[..4].copy_from_slice(&[1, 1, 6, 0]);
    m[4..8].copy_from_slice(&xid);
    m[10] = 0x80;
    m[28..34].copy_from_slice(&mac[..]);
    m.extend([99, 130, 83, 99, 53, 1, kind]);
    m.extend(options);
    m.extend([55, 4, 1, 3, 26, 51, 255]);
    m
}

struct Reply {
    address: Ipv4Addr,
    prefix: u8,
    router: Option<Ipv4Addr>,
    mtu: Option<u16>,
    server: Option<Ipv4Addr>,
    lease: u32,
}

fn exchange(s: &UdpSocket, m: &[u8], xid: [u8; 4], kind: u8) -> Result<Reply> {
    let mut buf = [0; 1500];
    for _ in 0..5 {
        s.send_to(m, "255.255.255.255:67")?;
        while let Ok((n, _)) = s.recv_from(&mut buf) {
            if let Some(r) = parse(&buf[..n], xid, kind) {
                return Ok(r);
            }
        }
    }
    bail!("no answer")
}

fn parse(b: &[u8], xid: [u8; 4], kind: u8) -> Option<Reply> {
    if b.first() != Some(&2) || b.get(4..8)? != xid {
        return None;
    }
    let four = |v: &[u8]| <[u8; 4]>::try_from(v).ok();
    let mut r =
        Reply { address: four(b.get(16..20)?)?.into(), prefix: 24, router: None, mtu: None, server: None, lease: 0 };
    let mut at = 240;
    let mut right = false;
    while let (Some(code), Some(len)) = (b.get(at), b.get(at + 1)) {
        let v = b.get(at + 2..at + 2 + usize::from(*len))?;
        match code {
            255 => break,
            1 => r.prefix = u32::from_be_bytes(four(v)?).count_ones() as u8,
            3 => r.router = four(v.get(..4)?).map(Ipv4Addr::from),
            26 => r.mtu = v.try_into().ok().map(u16::from_be_bytes),
            51 => r.lease = u32::from_be_bytes(four(v)?),
            53 => right = v == [kind],
            54 => r.server = four(v).map(Ipv4Addr::from),
            _ => {}
        }
        at += 2 + v.len();
    }
    right.then_some(r)
}
