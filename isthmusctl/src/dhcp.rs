//! `isthmusctl dhcp trace`: asks this chassis' controller what machines asked and were answered.

use crate::why::Program;
use anyhow::{Result, bail};
use std::time::Duration;

/// Asks for the last exchanges, of one machine or of all, and prints them.
pub async fn trace(controller: Option<&str>, machine: Option<String>, limit: Duration) -> Result<()> {
    print!("{}", asked(controller, machine, limit).await?);
    Ok(())
}

async fn asked(controller: Option<&str>, machine: Option<String>, limit: Duration) -> Result<String> {
    let program = Program { names: ["ovn-controller", "controller"], option: "--controller", target: controller };
    let arguments: Vec<String> = machine.iter().cloned().collect();
    let answer = program.ask("dhcp/trace", &arguments, limit).await?;
    if answer.is_empty() {
        let who = machine.map_or_else(|| "any machine".to_string(), |m| format!("machine {m}"));
        bail!(
            "no request of {who} has reached this chassis' controller: its port must have addresses with that MAC and an IP of \
             its DHCP options, and be bound here; an external port's group must have this chassis active (isthmusctl \
             gateways), and the machine's VLAN must reach the chassis (docs/bare-metal.md)"
        );
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_controller_is_asked_for_exchanges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.ctl");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let served = tokio::spawn(async move {
            let mut requests = Vec::new();
            for reply in [&br#"{"id":0,"error":null,"result":"one\n"}"#[..], br#"{"id":0,"error":null,"result":""}"#] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 4096];
                let n = stream.read(&mut buffer).await.unwrap();
                stream.write_all(reply).await.unwrap();
                requests.push(serde_json::from_slice::<Value>(&buffer[..n]).unwrap());
            }
            requests
        });
        let (target, mac) = (path.to_str(), "02:00:00:00:00:01".to_string());
        let limit = Duration::from_secs(15);
        assert_eq!(asked(target, Some(mac.clone()), limit).await.unwrap(), "one\n");
        let nothing = asked(target, Some(mac), limit).await.unwrap_err().to_string();
        assert!(nothing.contains("no request of machine 02:00:00:00:00:01"), "{nothing}");
        let requests = served.await.unwrap();
        assert_eq!(
            (&requests[0]["method"], &requests[0]["params"][0]),
            (&json!("dhcp/trace"), &json!("02:00:00:00:00:01"))
        );
    }
}
