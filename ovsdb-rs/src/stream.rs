//! Connection methods (ovsdb(7)): `unix:`, `tcp:`, `ssl:` and their passive forms `punix:`, `ptcp:`, `pssl:`.

use crate::lazy_writable::LazyWritable;
use crate::tls::Tls;
use crate::{Error, Str};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Any stream.
pub type BoxStream = Box<dyn Stream>;

/// Where to connect to or to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// `unix:FILE`
    Unix(PathBuf),
    /// `tcp:HOST:PORT`
    Tcp(String, u16),
    /// `ssl:HOST:PORT`
    Tls(String, u16),
    /// `punix:FILE`
    PassiveUnix(PathBuf),
    /// `ptcp:[PORT][:IP]`
    PassiveTcp(SocketAddr),
    /// `pssl:[PORT][:IP]`
    PassiveTls(SocketAddr),
}

/// The file of a socket that a connection method names: relative to `$OVS_RUNDIR`, wherever a daemon was started.
pub fn socket_file(path: &Path) -> PathBuf {
    daemon::dirs::ovs_rundir().join(path)
}

/// The port that IANA assigned to OVSDB.
pub const DEFAULT_PORT: u16 = 6640;

impl Remote {
    /// Parses a connection method.
    ///
    /// # Errors
    /// [`Error::Syntax`], saying what forms there are.
    pub fn parse(text: &str) -> Result<Remote, Error> {
        let bad = |why: &str| Error::Syntax(format!("{text}: {why}"));
        let (kind, rest) = text.split_once(':').ok_or_else(|| bad("expected METHOD:ADDRESS"))?;
        match kind {
            "unix" => Ok(Remote::Unix(rest.into())),
            "punix" => Ok(Remote::PassiveUnix(rest.into())),
            "tcp" | "ssl" => {
                let (host, port) = active(rest).ok_or_else(|| bad("expected HOST:PORT"))?;
                Ok(if kind == "tcp" { Remote::Tcp(host, port) } else { Remote::Tls(host, port) })
            }
            "ptcp" | "pssl" => {
                let address = passive(rest).ok_or_else(|| bad("expected [PORT][:IP]"))?;
                Ok(if kind == "ptcp" { Remote::PassiveTcp(address) } else { Remote::PassiveTls(address) })
            }
            _ => Err(bad("the method must be unix, tcp, ssl, punix, ptcp or pssl")),
        }
    }

    /// Parses a list separated by commas.
    ///
    /// # Errors
    /// As [`Remote::parse`].
    pub fn parse_list(text: &str) -> Result<Vec<Remote>, Error> {
        text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(Remote::parse).collect()
    }

    /// Whether it listens.
    pub fn is_passive(&self) -> bool {
        matches!(self, Remote::PassiveUnix(_) | Remote::PassiveTcp(_) | Remote::PassiveTls(_))
    }
}

fn active(text: &str) -> Option<(String, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = if port.is_empty() { DEFAULT_PORT } else { port.strip_prefix(':')?.parse().ok()? };
        return Some((host.to_string(), port));
    }
    match text.rsplit_once(':') {
        Some((host, port)) => Some((host.to_string(), port.parse().ok()?)),
        None if text.is_empty() => None,
        None => Some((text.to_string(), DEFAULT_PORT)),
    }
}

fn passive(text: &str) -> Option<SocketAddr> {
    let (port, ip) = text.split_once(':').unwrap_or((text, ""));
    let port = if port.is_empty() { DEFAULT_PORT } else { port.parse().ok()? };
    let ip = ip.trim_start_matches('[').trim_end_matches(']');
    let ip = match ip {
        "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "::" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        other => other.parse().ok()?,
    };
    Some(SocketAddr::new(ip, port))
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = |h: &str| if h.contains(':') { format!("[{h}]") } else { h.to_string() };
        let address = |a: &SocketAddr| format!("{}:{}", a.port(), host(&a.ip().to_string()));
        match self {
            Remote::Unix(p) => write!(f, "unix:{}", p.display()),
            Remote::Tcp(h, p) => write!(f, "tcp:{}:{p}", host(h)),
            Remote::Tls(h, p) => write!(f, "ssl:{}:{p}", host(h)),
            Remote::PassiveUnix(p) => write!(f, "punix:{}", p.display()),
            Remote::PassiveTcp(a) => write!(f, "ptcp:{}", address(a)),
            Remote::PassiveTls(a) => write!(f, "pssl:{}", address(a)),
        }
    }
}

/// Connects to an active remote.
///
/// # Errors
/// Where the peer cannot be reached, TLS fails or is not configured, or the remote is passive.
pub async fn connect(remote: &Remote, tls: Option<&Tls>) -> io::Result<BoxStream> {
    connect_named(remote, tls).await.map(|(stream, _)| stream)
}

/// As [`connect`]; gives the common name of the peer's certificate too, empty where it showed none.
///
/// # Errors
/// As [`connect`].
pub async fn connect_named(remote: &Remote, tls: Option<&Tls>) -> io::Result<(BoxStream, Str)> {
    dial(remote, tls, DEFAULT_DSCP).await
}

/// Internetwork control, as every OVSDB peer marks its packets unless told otherwise (ovn-nb(5), `Connection:other_config:dscp`).
pub const DEFAULT_DSCP: u8 = 48;

/// Sets the Differentiated Services Code Point (RFC 2474) of what a socket sends.
pub fn mark(stream: &TcpStream, dscp: u8) {
    let field = u32::from(dscp & 0x3f) << 2;
    let socket = socket2::SockRef::from(stream);
    let v6 = stream.local_addr().is_ok_and(|a| a.is_ipv6());
    // An IPv6 socket may carry IPv4.
    let set = socket.set_tos_v4(field).or_else(|e| if v6 { Ok(()) } else { Err(e) });
    let set = set.and_then(|()| if v6 { socket.set_tclass_v6(field) } else { Ok(()) });
    if let Err(e) = set {
        tracing::warn!(target: "socket_util", "cannot set DSCP {dscp}: {e}");
    }
}

/// As [`connect_named`], with this code point.
///
/// # Errors
/// As [`connect`].
pub async fn dial(remote: &Remote, tls: Option<&Tls>, dscp: u8) -> io::Result<(BoxStream, Str)> {
    let tcp = async |host: &str, port: u16| {
        let s = TcpStream::connect((host, port)).await?;
        s.set_nodelay(true)?;
        mark(&s, dscp);
        io::Result::Ok(s)
    };
    match remote {
        Remote::Unix(path) => {
            let socket = UnixStream::connect(socket_file(path)).await?.into_std()?;
            Ok((Box::new(LazyWritable::new(socket)?), Str::default()))
        }
        Remote::Tcp(host, port) => {
            let socket = tcp(host, *port).await?.into_std()?;
            Ok((Box::new(LazyWritable::new(socket)?), Str::default()))
        }
        Remote::Tls(host, port) => {
            let tls = tls.ok_or_else(|| {
                io::Error::other(format!("{remote}: needs --private-key, --certificate and --ca-cert"))
            })?;
            let (host, port) = (host.clone(), *port);
            tls.connect(&host, || tcp(&host, port)).await
        }
        _ => Err(io::Error::other(format!("{remote}: cannot connect to a passive remote"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_files_are_in_the_run_directory() {
        assert_eq!(socket_file(Path::new("/run/x/db.sock")), Path::new("/run/x/db.sock"));
        assert_eq!(socket_file(Path::new("db.sock")), daemon::dirs::ovs_rundir().join("db.sock"));
    }

    #[test]
    fn methods_parse_and_print() {
        for text in ["unix:/a", "tcp:h:1", "ssl:[::1]:6640", "punix:b", "ptcp:0:127.0.0.1", "pssl:6640:[::]"] {
            assert_eq!(Remote::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Remote::parse("ptcp:").unwrap().to_string(), "ptcp:6640:0.0.0.0");
        assert_eq!(Remote::parse_list("tcp:1.2.3.4:5,unix:x").unwrap().len(), 2);
        for text in ["", "unix", "tcp:h:x", "ptcp:1:x", "udp:x:1"] {
            assert!(Remote::parse(text).is_err(), "{text}");
        }
    }
}
