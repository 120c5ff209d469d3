//! Questions to running daemons over their control sockets: `isthmusctl why` to northd, `isthmusctl dhcp trace` to a
//! controller, and those of other commands.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The names under which northd runs.
const NAMES: [&str; 2] = ["ovn-northd", "northd"];
/// The names under which a chassis' controller runs.
const CONTROLLER: [&str; 2] = ["ovn-controller", "controller"];

/// Asks, and prints the answer.
pub async fn run(northd: Option<&str>, table: Option<String>, row: String, limit: Duration) -> Result<()> {
    let arguments: Vec<String> = table.into_iter().chain([row]).collect();
    let northd = Program { names: NAMES, option: "--northd", target: northd };
    print!("{}", northd.ask("why", &arguments, limit).await?);
    Ok(())
}

/// Asks this chassis' controller for the last exchanges of DHCP, of one machine or of all, and prints them.
pub async fn dhcp_trace(controller: Option<&str>, machine: Option<String>, limit: Duration) -> Result<()> {
    let arguments: Vec<String> = machine.iter().cloned().collect();
    let controller = Program { names: CONTROLLER, option: "--controller", target: controller };
    let answer = controller.ask("dhcp/trace", &arguments, limit).await?;
    if answer.is_empty() {
        bail!("{}", nothing(machine.as_deref()));
    }
    print!("{answer}");
    Ok(())
}

/// What the controller of this machine says of ports for which it plugs devices in; nothing where there is none.
pub async fn plugs(limit: Duration) -> Option<String> {
    let controller = Program { names: CONTROLLER, option: "--controller", target: None };
    controller.ask("plug/show", &[], limit).await.ok()
}

/// What it means that a controller has served nobody.
fn nothing(machine: Option<&str>) -> String {
    let who = machine.map_or_else(|| "any machine".to_string(), |m| format!("machine {m}"));
    format!(
        "no request of {who} has reached this chassis' controller: its port must have addresses with that MAC and an IP of its \
         DHCP options, and be bound here; an external port's group must have this chassis active (isthmusctl gateways), and \
         the machine's VLAN must reach the chassis (docs/bare-metal.md)"
    )
}

/// A daemon on this machine.
pub struct Program<'a> {
    /// The names under which it runs.
    pub names: [&'a str; 2],
    /// The option that names another.
    pub option: &'a str,
    /// Its pidfile's name or its control socket, where the option says it.
    pub target: Option<&'a str>,
}

impl Program<'_> {
    /// Runs a command of its control socket.
    pub async fn ask(&self, method: &str, arguments: &[String], limit: Duration) -> Result<String> {
        let socket = self.find(&daemon::dirs::ovn_rundir())?;
        let answer = tokio::time::timeout(limit, ask(&socket, method, arguments)).await;
        answer.with_context(|| format!("{}: no answer within {limit:?}", socket.display()))?
    }

    /// The control socket: the target itself where it is a path, else that of the process in its pidfile.
    fn find(&self, rundir: &Path) -> Result<PathBuf> {
        if let Some(path) = self.target.filter(|t| t.contains('/')) {
            return Ok(path.into());
        }
        let names = self.target.map_or_else(|| self.names.to_vec(), |t| vec![t]);
        for name in &names {
            if let Ok(pid) = std::fs::read_to_string(rundir.join(format!("{name}.pid"))) {
                return Ok(rundir.join(format!("{name}.{}.ctl", pid.trim())));
            }
        }
        let (names, daemon) = (names.join(" or "), self.names[1]);
        let option = self.option;
        bail!(
            "{}: no pidfile of {names}; is {daemon} running? {option} names it or its control socket",
            rundir.display()
        )
    }
}

/// Runs one command over a control socket (JSON-RPC 1.0).
async fn ask(socket: &Path, method: &str, arguments: &[String]) -> Result<String> {
    let mut stream = UnixStream::connect(socket).await.with_context(|| format!("{}", socket.display()))?;
    let request = json!({"id": 0, "method": method, "params": arguments});
    stream.write_all(request.to_string().as_bytes()).await?;
    let mut framer = ovsdb_rs::json::Framer::default();
    let text = loop {
        if let Some(text) = framer.next_text()? {
            break text;
        }
        if stream.read_buf(framer.buffer()).await? == 0 {
            bail!("{}: it hung up", socket.display());
        }
    };
    let reply: Value = serde_json::from_slice(&text).context("the reply is no JSON")?;
    match (reply.get("error").and_then(Value::as_str), reply.get("result").and_then(Value::as_str)) {
        (Some(error), _) => bail!("{}", error.trim_end()),
        (None, Some(result)) => Ok(result.to_string()),
        (None, None) => bail!("unexpected reply {reply}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_pidfile() {
        let dir = tempfile::tempdir().unwrap();
        let find = |rundir: &Path, target| Program { names: NAMES, option: "--northd", target }.find(rundir);
        assert!(find(dir.path(), None).unwrap_err().to_string().contains("northd"));
        std::fs::write(dir.path().join("northd.pid"), "17\n").unwrap();
        assert_eq!(find(dir.path(), None).unwrap(), dir.path().join("northd.17.ctl"));
        assert_eq!(find(dir.path(), Some("/tmp/x.ctl")).unwrap(), Path::new("/tmp/x.ctl"));
        assert!(find(dir.path(), Some("other")).is_err());
    }

    #[tokio::test]
    async fn a_controller_is_asked_for_exchanges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.ctl");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            let n = stream.read(&mut buffer).await.unwrap();
            stream.write_all(br#"{"id":0,"error":null,"result":"one\n"}"#).await.unwrap();
            serde_json::from_slice::<Value>(&buffer[..n]).unwrap()
        });
        let (target, machine) = (path.to_str().unwrap(), vec!["02:00:00:00:00:01".to_string()]);
        let answer = Program { names: CONTROLLER, option: "--controller", target: Some(target) }
            .ask("dhcp/trace", &machine, Duration::from_secs(15))
            .await
            .unwrap();
        assert_eq!(answer, "one\n");
        let request = served.await.unwrap();
        assert_eq!((&request["method"], &request["params"][0]), (&json!("dhcp/trace"), &json!("02:00:00:00:00:01")));
        assert!(nothing(Some("02:00:00:00:00:01")).contains("machine 02:00:00:00:00:01"));
    }
}
