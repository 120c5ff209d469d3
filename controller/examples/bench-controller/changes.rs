//! Single changes, as ovn-northd writes them.

use crate::world::{World, plug};
use crate::{Figures, cloud, median};
use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The router whose neighbours are many.
async fn router_port(w: &World) -> Result<Value> {
    let rows = w
        .sb_rows("Port_Binding", json!([["logical_port", "==", "lrp-0-0"]]), json!(["datapath", "tunnel_key"]))
        .await?;
    rows.into_iter().next().context("no port lrp-0-0")
}

fn neighbour_mac(n: usize) -> String {
    format!("0e:00:{:02x}:{:02x}:{:02x}:{:02x}", n >> 24 & 255, n >> 16 & 255, n >> 8 & 255, n & 255)
}

fn neighbour_ip(n: usize) -> String {
    format!("100.{}.{}.{}", 64 + (n >> 16), n >> 8 & 255, n & 255)
}

/// Neighbours behind a router of the chassis appear.
pub async fn neighbours(w: &World, macs: usize) -> Result<()> {
    let port = router_port(w).await?;
    for lot in (0..macs).collect::<Vec<_>>().chunks(10_000) {
        let rows = lot.iter().map(|n| {
            json!({"op": "insert", "table": "MAC_Binding", "row":
                {"logical_port": "lrp-0-0", "ip": neighbour_ip(*n), "mac": neighbour_mac(*n), "datapath": port["datapath"]}})
        });
        w.sb(rows.collect()).await?;
    }
    Ok(())
}

/// Replaces a logical flow by one that differs from it.
async fn replace(w: &World, flow: &Value, edit: impl Fn(&mut Value)) -> Result<Value> {
    let mut row = flow.clone();
    edit(&mut row);
    let id = row.as_object_mut().and_then(|o| o.remove("_uuid")).context("no row")?;
    let results = w
        .sb(vec![
            json!({"op": "delete", "table": "Logical_Flow", "where": [["_uuid", "==", id]]}),
            json!({"op": "insert", "table": "Logical_Flow", "row": row}),
        ])
        .await?;
    let new = results.get(1).map(|r| r["uuid"].clone()).context("no new row")?;
    if let Some(o) = row.as_object_mut() {
        o.insert("_uuid".into(), new);
    }
    Ok(row)
}

/// The first logical flow of which this holds.
async fn flow(w: &World, what: &str, is: impl Fn(&str, &str) -> bool) -> Result<Value> {
    let columns = json!([
        "_uuid",
        "logical_datapath",
        "logical_dp_group",
        "pipeline",
        "table_id",
        "priority",
        "match",
        "actions",
        "external_ids",
        "tags"
    ]);
    let rows = w.sb_rows("Logical_Flow", json!([]), columns).await?;
    let text = |r: &Value, k: &str| r[k].as_str().unwrap_or_default().to_string();
    rows.into_iter()
        .find(|r| is(&text(r, "match"), &text(r, "actions")))
        .with_context(|| format!("no logical flow for {what}"))
}

pub async fn all(w: &World, n: usize, f: &mut Figures) -> Result<()> {
    let mut put = |line: usize, what: &'static str, ran: &'static str, mut all: Vec<(f64, f64)>| {
        if all.is_empty() {
            return;
        }
        // The first one may find tables to be made.
        if all.len() > 2 {
            all.remove(0);
        }
        let (mut times, mut used): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
        f.insert((line, what, "ms"), median(&mut times) * 1e3);
        f.insert((line + 1, ran, "ms"), median(&mut used) * 1e3);
        eprintln!("  {what}");
    };
    let only = std::env::var("CHANGE").ok();
    let count = |kind: &str| if only.as_ref().is_none_or(|o| o == kind) { n } else { 0 };
    let spare = (0..cloud::LOCAL_TENANTS).flat_map(|t| (0..cloud::SWITCHES).map(move |s| (t, s)));
    let spare =
        spare.flat_map(|(t, s)| (cloud::LOCAL_PORTS..2 * cloud::LOCAL_PORTS - 1).map(move |p| cloud::port(t, s, p)));
    let mut times = Vec::new();
    for port in spare.take(count("port")) {
        times.push(w.change(&port, plug(&w.server, &port)).await?);
    }
    put(10, "a port is plugged in", "plugging in, processor time", times);

    let mut acl = flow(w, "an ACL", |m, _| m.contains("@pg1 ") && m.contains("tcp.dst == {80, 443}")).await?;
    let mut times = Vec::new();
    for i in 0..count("acl") {
        let other = format!("tcp.dst == {{80, {}}}", 1000 + i);
        let before = acl["match"].as_str().unwrap_or_default().to_string();
        let at = before.find("tcp.dst == {").context("no port in the match")?;
        let end = before.get(at..).and_then(|r| r.find('}')).context("no end")? + at + 1;
        let m = format!("{}{other}{}", before.get(..at).unwrap_or_default(), before.get(end..).unwrap_or_default());
        let mut new = Value::Null;
        times.push(
            w.change("an ACL", async {
                new = replace(w, &acl, |r| r["match"] = json!(m)).await?;
                Ok(())
            })
            .await?,
        );
        acl = new;
    }
    put(12, "an ACL changes", "an ACL, processor time", times);

    let mut times = Vec::new();
    for i in 0..count("address") {
        let address = format!("203.0.113.{}", i + 1);
        let op = json!({"op": "mutate", "table": "Address_Set", "where": [["name", "==", "as2"]], "mutations": [["addresses", "insert", address]]});
        times.push(w.change("an address", async { w.sb(vec![op]).await.map(|_| ()) }).await?);
    }
    put(14, "an address joins a set", "an address, processor time", times);

    let mut times = Vec::new();
    for i in 0..count("mac") {
        let op = json!({"op": "update", "table": "MAC_Binding", "where": [["ip", "==", neighbour_ip(i)]], "row": {"mac": neighbour_mac((1 << 24) + i)}});
        times.push(w.change("a MAC", async { w.sb(vec![op]).await.map(|_| ()) }).await?);
    }
    put(16, "a neighbour's MAC changes", "a neighbour's MAC, processor time", times);

    let port = router_port(w).await?;
    let mut times = Vec::new();
    for i in 0..count("neighbour") {
        let op = json!({"op": "insert", "table": "MAC_Binding", "row": {"logical_port": "lrp-0-0", "ip": format!("198.51.100.{i}"),
            "mac": neighbour_mac((2 << 24) + i), "datapath": port["datapath"]}});
        times.push(w.change("a neighbour", async { w.sb(vec![op]).await.map(|_| ()) }).await?);
    }
    put(18, "a neighbour is learned", "a neighbour, processor time", times);

    let mut lb = flow(w, "a load balancer", |m, a| a.contains("backends=") && m.contains("172.16.3.1")).await?;
    let mut times = Vec::new();
    for i in 0..count("backend") {
        let actions = lb["actions"].as_str().unwrap_or_default().to_string();
        let at = actions.find("backends=").context("no backends")? + "backends=".len();
        let end = actions.get(at..).and_then(|r| r.find([',', ';', ')'])).context("no end")? + at;
        let new = format!(
            "{}10.0.6.{}:8080{}",
            actions.get(..at).unwrap_or_default(),
            50 + i,
            actions.get(end..).unwrap_or_default()
        );
        let mut row = Value::Null;
        times.push(
            w.change("a backend", async {
                row = replace(w, &lb, |r| r["actions"] = json!(new)).await?;
                Ok(())
            })
            .await?,
        );
        lb = row;
    }
    put(20, "a load balancer's backend changes", "a backend, processor time", times);
    Ok(())
}
