//! A server as a process, and plain clients of it.

use anyhow::{Context, bail, ensure};
use ovsdb_rs::json::Framer;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A running server; it is killed when dropped.
pub struct Server {
    child: Child,
    dir: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server with a database; gives the time until it answers.
    pub fn start(program: &Path, dir: &Path, db: &Path) -> anyhow::Result<(Server, Duration)> {
        let socket = dir.join("db.sock");
        let _ = std::fs::remove_file(&socket);
        let started = Instant::now();
        let child = Command::new(program)
            .envs(["OVS_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir)))
            .env("OVS_SYSLOG_METHOD", "null")
            .args([format!("--remote=punix:{}", socket.display()), "-vconsole:off".into()])
            .arg(format!("--unixctl={}", dir.join("ctl").display()))
            .arg(db)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let server = Server { child, dir: dir.to_path_buf() };
        while UnixStream::connect(&socket).is_err() {
            ensure!(started.elapsed() < Duration::from_secs(120), "{} does not listen", program.display());
            std::thread::sleep(Duration::from_millis(1));
        }
        let select = json!({"op": "select", "table": "SB_Global", "where": []});
        server.client()?.transact(vec![select])?;
        Ok((server, started.elapsed()))
    }

    /// Connects.
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        UnixStream::connect(self.dir.join("db.sock"))
    }

    /// A client that waits for each answer.
    pub fn client(&self) -> anyhow::Result<Client> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Client { stream, framer: Framer::default() })
    }

    /// Carries out a control command.
    pub fn control(&self, command: &str) -> anyhow::Result<()> {
        let stream = UnixStream::connect(self.dir.join("ctl"))?;
        Client { stream, framer: Framer::default() }.ask(command, json!([])).map(drop)
    }

    /// How long the process has computed.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).context("no times");
        Ok((ticks(11)? + ticks(12)?) / 100.0)
    }

    /// Resident memory in MB.
    pub fn memory(&self) -> anyhow::Result<f64> {
        self.megabytes("VmRSS:")
    }

    /// Resident memory at the peak in MB.
    pub fn peak(&self) -> anyhow::Result<f64> {
        self.megabytes("VmHWM:")
    }

    fn megabytes(&self, what: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|l| l.strip_prefix(what)).with_context(|| format!("no {what}"))?;
        let kilobytes: f64 = line.split_whitespace().next().context("no number")?.parse()?;
        Ok(kilobytes / 1024.0)
    }
}

/// A client that waits for each answer.
pub struct Client {
    stream: UnixStream,
    framer: Framer,
}

impl Client {
    /// Asks and waits; notifications are passed over.
    pub fn ask(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.exchange(method, &Client::text(method, &params))
    }

    /// A request as it goes over the wire.
    pub fn text(method: &str, params: &Value) -> String {
        json!({"id": 1, "method": method, "params": params}).to_string()
    }

    /// Sends a request and waits for its answer.
    pub fn exchange(&mut self, method: &str, text: &str) -> anyhow::Result<Value> {
        self.stream.write_all(text.as_bytes())?;
        let mut chunk = vec![0; 1 << 18];
        loop {
            while let Some(text) = self.framer.next_text()? {
                if !text.starts_with(b"{\"id\":null") && !text.starts_with(b"{\"method") {
                    let mut v: Value = serde_json::from_slice(&text)?;
                    ensure!(v.get("error").is_none_or(Value::is_null), "{method}: {v}");
                    return Ok(v["result"].take());
                }
            }
            match self.stream.read(&mut chunk)? {
                0 => bail!("{method}: the server has closed the connection"),
                n => self.framer.buffer().extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// Carries out a transaction on the southbound database.
    pub fn transact(&mut self, operations: Vec<Value>) -> anyhow::Result<Value> {
        let mut params = vec![json!("OVN_Southbound")];
        params.extend(operations);
        let result = self.ask("transact", Value::Array(params))?;
        let failed = result.as_array().into_iter().flatten().find(|r| r.get("error").is_some());
        ensure!(failed.is_none(), "{failed:?}");
        Ok(result)
    }
}
