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

/// Replaces a logical flow by one that differs from it in one column.
async fn replace(w: &World, flow: &mut Value, column: &str, value: String) -> Result<()> {
    let mut row = flow.clone();
    row[column] = json!(value);
    let id = row.as_object_mut().and_then(|o| o.remove("_uuid")).context("no row")?;
    let results = w
        .sb(vec![
            json!({"op": "delete", "table": "Logical_Flow", "where": [["_uuid", "==", id]]}),
            json!({"op": "insert", "table": "Logical_Flow", "row": row}),
        ])
        .await?;
    row["_uuid"] = results.get(1).map(|r| r["uuid"].clone()).context("no new row")?;
    *flow = row;
    Ok(())
}

/// A text with something else between `begin` and the next of `ends`.
fn with(text: &Value, begin: &str, ends: &[char], other: &str) -> Result<String> {
    let text = text.as_str().context("no text")?;
    let (head, rest) = text.split_once(begin).with_context(|| format!("no {begin:?} in {text}"))?;
    let tail =
        rest.find(ends).and_then(|end| rest.get(end..)).with_context(|| format!("no end of {begin:?} in {text}"))?;
    Ok(format!("{head}{begin}{other}{tail}"))
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

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Port,
    Acl,
    Address,
    Mac,
    Neighbour,
    Backend,
}

/// What is changed in one world, as it is now.
struct Now {
    router_port: Value,
    acl: Value,
    balancer: Value,
}

impl Now {
    async fn of(w: &World) -> Result<Now> {
        Ok(Now {
            router_port: router_port(w).await?,
            acl: flow(w, "an ACL", |m, _| m.contains("@pg1 ") && m.contains("tcp.dst == {80, 443}")).await?,
            balancer: flow(w, "a load balancer", |m, a| a.contains("backends=") && m.contains("172.16.3.1")).await?,
        })
    }

    /// Makes one change.
    async fn change(&mut self, w: &World, kind: Kind, i: usize, spare: &str) -> Result<(f64, f64)> {
        let sb = |op: Value| async { w.sb(vec![op]).await.map(|_| ()) };
        match kind {
            Kind::Port => w.change(spare, plug(&w.server, spare)).await,
            Kind::Acl => {
                let m = with(&self.acl["match"], "tcp.dst == {", &['}'], &format!("80, {}", 1000 + i))?;
                w.change("an ACL", replace(w, &mut self.acl, "match", m)).await
            }
            Kind::Address => {
                let address = format!("203.0.113.{}", i + 1);
                let op = json!({"op": "mutate", "table": "Address_Set", "where": [["name", "==", "as2"]], "mutations": [["addresses", "insert", address]]});
                w.change("an address", sb(op)).await
            }
            Kind::Mac => {
                let op = json!({"op": "update", "table": "MAC_Binding", "where": [["ip", "==", neighbour_ip(i)]], "row": {"mac": neighbour_mac((1 << 24) + i)}});
                w.change("a MAC", sb(op)).await
            }
            Kind::Neighbour => {
                let op = json!({"op": "insert", "table": "MAC_Binding", "row": {"logical_port": "lrp-0-0", "ip": format!("198.51.100.{i}"),
                    "mac": neighbour_mac((2 << 24) + i), "datapath": self.router_port["datapath"]}});
                w.change("a neighbour", sb(op)).await
            }
            Kind::Backend => {
                let backends = format!("10.0.6.{}:8080", 50 + i);
                let a = with(&self.balancer["actions"], "backends=", &[',', ';', ')'], &backends)?;
                w.change("a backend", replace(w, &mut self.balancer, "actions", a)).await
            }
        }
    }
}

/// Makes changes of each kind in all worlds in turn, so that what else happens on the machine meets all alike.
pub async fn all(worlds: &[World], n: usize, figures: &mut [Figures]) -> Result<()> {
    let kinds = [
        (Kind::Port, "port", "a port is plugged in", "plugging in, processor time"),
        (Kind::Acl, "acl", "an ACL changes", "an ACL, processor time"),
        (Kind::Address, "address", "an address joins a set", "an address, processor time"),
        (Kind::Mac, "mac", "a neighbour's MAC changes", "a neighbour's MAC, processor time"),
        (Kind::Neighbour, "neighbour", "a neighbour is learned", "a neighbour, processor time"),
        (Kind::Backend, "backend", "a load balancer's backend changes", "a backend, processor time"),
    ];
    let only = std::env::var("CHANGE").ok();
    let mut now = Vec::new();
    for w in worlds {
        now.push(Now::of(w).await?);
    }
    let spare = (0..cloud::LOCAL_TENANTS).flat_map(|t| (0..cloud::SWITCHES).map(move |s| (t, s)));
    let spare: Vec<String> = spare
        .flat_map(|(t, s)| (cloud::LOCAL_PORTS..2 * cloud::LOCAL_PORTS - 1).map(move |p| cloud::port(t, s, p)))
        .collect();
    for (line, (kind, name, what, ran)) in kinds.into_iter().enumerate() {
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        let count = if kind == Kind::Port { n.min(spare.len()) } else { n };
        let mut times = vec![Vec::new(); worlds.len()];
        for i in 0..count {
            let port = spare.get(i).map_or("", String::as_str);
            for ((w, now), times) in worlds.iter().zip(&mut now).zip(&mut times) {
                times.push(now.change(w, kind, i, port).await?);
            }
        }
        for (mut all, f) in times.into_iter().zip(&mut *figures) {
            // The first one may find tables to be made.
            if all.len() > 2 {
                all.remove(0);
            }
            let (mut times, mut used): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
            f.insert((10 + 2 * line, what, "ms"), median(&mut times) * 1e3);
            f.insert((11 + 2 * line, ran, "ms"), median(&mut used) * 1e3);
        }
        eprintln!("  {what}");
    }
    Ok(())
}
