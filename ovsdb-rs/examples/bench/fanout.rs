//! Updates to many monitoring clients: how many rows arrive each second, and how late.

use crate::server::Server;
use anyhow::{Context, ensure};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// What was measured.
pub struct Fanout {
    pub rows_per_second: f64,
    /// Rows delivered for each second that the server's process computed.
    pub rows_per_cpu_second: f64,
    pub delay_p99: f64,
}

const ROWS: usize = 20;
const TRANSACTIONS: usize = 100;
const PACED: usize = 100;

/// What a client has seen.
enum Seen {
    Connected,
    /// The last row of the flood.
    End,
    /// A row that says when it was sent.
    Paced(Duration),
}

/// Reads what the server sends and looks for words in it.
async fn client(mut stream: UnixStream, started: Instant, bytes: Arc<AtomicU64>, seen: mpsc::UnboundedSender<Seen>) {
    let request = json!({"id": 7, "method": "monitor_cond_since", "params": ["OVN_Southbound", "m",
        {"Address_Set": [{"columns": ["name", "addresses"]}]}, ovsdb_rs::Uuid::nil().to_string()]});
    if stream.write_all(request.to_string().as_bytes()).await.is_err() {
        return;
    }
    let mut buffer = Vec::with_capacity(1 << 16);
    let mut first = true;
    loop {
        match stream.read_buf(&mut buffer).await {
            Ok(n) if n > 0 => bytes.fetch_add(n as u64, Ordering::Relaxed),
            _ => return,
        };
        if std::mem::take(&mut first) {
            let _ = seen.send(Seen::Connected);
        }
        // Most of it holds no word; to look for one must not cost more than to receive it.
        if !buffer.contains(&b'@') {
            buffer.clear();
            continue;
        }
        while let Some(at) = find(&buffer, b"@@") {
            let Some(word) = buffer.get(at..at + 26) else { break };
            let micros = std::str::from_utf8(&word[3..23]).ok().and_then(|t| t.parse().ok()).unwrap_or(0);
            let what = match word[2] {
                b'E' => Seen::End,
                _ => Seen::Paced(started.elapsed().saturating_sub(Duration::from_micros(micros))),
            };
            let _ = seen.send(what);
            buffer.drain(..at + 26);
        }
        if find(&buffer, b"@@").is_none() {
            let keep = buffer.len().min(1);
            buffer.drain(..buffer.len() - keep);
        }
    }
}

fn find(haystack: &[u8], needle: &[u8; 2]) -> Option<usize> {
    haystack.windows(2).position(|w| w == needle)
}

async fn all(seen: &mut mpsc::UnboundedReceiver<Seen>, n: usize) -> anyhow::Result<Vec<Seen>> {
    let mut out = Vec::with_capacity(n);
    while out.len() < n {
        let next = tokio::time::timeout(Duration::from_secs(120), seen.recv()).await;
        out.push(next.with_context(|| format!("only {} of {n} have arrived", out.len()))?.context("all are gone")?);
    }
    Ok(out)
}

/// Measures with so many clients.
pub fn measure(server: &Server, clients: usize) -> anyhow::Result<Fanout> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let started = Instant::now();
    let (bytes, (tx, mut seen)) = (Arc::new(AtomicU64::new(0)), mpsc::unbounded_channel());
    for _ in 0..clients {
        let stream = server.connect()?;
        stream.set_nonblocking(true)?;
        let _guard = runtime.enter();
        runtime.spawn(client(UnixStream::from_std(stream)?, started, bytes.clone(), tx.clone()));
    }
    runtime.block_on(all(&mut seen, clients))?;
    let mut writer = server.client()?;
    let row = |name: String| {
        json!({"op": "insert", "table": "Address_Set", "row": {"name": name, "addresses":
        ["set", (0..10).map(|i| format!("10.0.0.{i}")).collect::<Vec<_>>()]}})
    };

    let (begun, busy) = (Instant::now(), server.cpu_seconds()?);
    for t in 0..TRANSACTIONS {
        writer.transact((0..ROWS).map(|r| row(format!("flood-{t}-{r}"))).collect())?;
    }
    writer.transact(vec![row(format!("@@E{:020}..", 0))])?;
    let ends = runtime.block_on(all(&mut seen, clients))?;
    let (took, busy) = (begun.elapsed(), server.cpu_seconds()? - busy);
    ensure!(ends.iter().all(|s| matches!(s, Seen::End)), "out of order");

    for _ in 0..PACED {
        let now = started.elapsed().as_micros();
        writer.transact(vec![row(format!("@@P{now:020}.."))])?;
        std::thread::sleep(Duration::from_millis(50));
    }
    let paced = runtime.block_on(all(&mut seen, clients * PACED))?;
    let mut delays: Vec<Duration> =
        paced.into_iter().filter_map(|s| if let Seen::Paced(d) = s { Some(d) } else { None }).collect();
    delays.sort_unstable();
    let p99 = delays.get(delays.len() * 99 / 100).context("no delays")?;
    println!("  {} MB read by clients", bytes.load(Ordering::Relaxed) >> 20);
    let rows = (clients * TRANSACTIONS * ROWS) as f64;
    let rows_per_cpu_second = rows / busy.max(0.01);
    Ok(Fanout { rows_per_second: rows / took.as_secs_f64(), rows_per_cpu_second, delay_p99: p99.as_secs_f64() * 1e3 })
}
