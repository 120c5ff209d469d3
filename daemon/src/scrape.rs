//! The port that metrics are read from: `GET /metrics` over HTTP (RFC 9112), one request a connection.

use crate::metrics::Metrics;
use anyhow::Context;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// A request's head is no longer than this.
const LONGEST_HEAD: u64 = 16 << 10;
/// What a reader may take, all in all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Readers at a time; more wait.
const READERS: usize = 16;

/// Reads `[ADDRESS:]PORT`; without an address it is 127.0.0.1.
pub(crate) fn parse_address(s: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(port) = s.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    s.parse().with_context(|| format!("--metrics={s}: expected PORT or ADDRESS:PORT, IPv6 in brackets"))
}

/// Listens, and answers as long as the runtime lives; returns the address.
pub(crate) async fn open(address: SocketAddr, metrics: Metrics) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("--metrics={address}: cannot listen"))?;
    let local = listener.local_addr()?;
    let readers = Arc::new(Semaphore::new(READERS));
    tokio::spawn(async move {
        loop {
            let Ok(turn) = readers.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let metrics = metrics.clone();
                    tokio::spawn(async move {
                        // A reader that is slow or goes away is no concern of the daemon's.
                        let _ = tokio::time::timeout(PATIENCE, answer(stream, &metrics)).await;
                        drop(turn);
                    });
                }
                Err(e) => {
                    tracing::warn!(target: "metrics", "accept: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(local)
}

async fn answer(mut stream: TcpStream, metrics: &Metrics) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut input = (&mut stream).take(LONGEST_HEAD);
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if input.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", metrics.show().await),
        ("GET" | "HEAD", _) => ("404 Not Found", "Metrics are at /metrics.\n".to_string()),
        _ => ("405 Method Not Allowed", "Only GET and HEAD are answered.\n".to_string()),
    };
    let kind = if status.starts_with("200") { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain" };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    if method != "HEAD" {
        reply.push_str(&body);
    }
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;

    async fn ask(to: SocketAddr, request: &str) -> String {
        let mut s = TcpStream::connect(to).await.expect("connects");
        s.write_all(request.as_bytes()).await.expect("writes");
        let mut reply = String::new();
        s.read_to_string(&mut reply).await.expect("reads");
        reply
    }

    #[tokio::test]
    async fn readers_are_answered() {
        let m = Metrics::default();
        m.register(|| async { vec![Metric::gauge("isthmus_ports", "Ports.").with(&[], 4)] });
        let at = open(parse_address("0").expect("port"), m).await.expect("listens");
        assert!(at.ip().is_loopback());
        let got = ask(at, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let (head, body) = got.split_once("\r\n\r\n").expect("head and body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())) && body.ends_with("isthmus_ports 4\n"));
        assert!(ask(at, "HEAD /metrics HTTP/1.0\r\n\r\n").await.ends_with("\r\n\r\n"));
        assert!(ask(at, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask(at, "PUT /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        // Neither an endless head nor a lost reader hurts the next one.
        let mut long = TcpStream::connect(at).await.expect("connects");
        let _ = long.write_all(&vec![b'x'; 64 << 10]).await;
        drop(TcpStream::connect(at).await.expect("connects"));
        assert!(ask(at, "GET /metrics HTTP/1.1\r\n\r\n").await.contains("isthmus_ports 4"));
    }

    #[test]
    fn addresses() {
        assert_eq!(parse_address("9100").expect("port").to_string(), "127.0.0.1:9100");
        assert_eq!(parse_address("[::1]:9100").expect("both").to_string(), "[::1]:9100");
        let e = parse_address("localhost").expect_err("no address").to_string();
        assert!(e.contains("--metrics=localhost"), "{e}");
    }
}
