//! `isthmusctl apply`.

use crate::{database, document, plan};
use anyhow::{Context, Result, bail};
use ovsdb_rs::client::{Client, Transaction};
use ovsdb_rs::{Atom, Datum, Uuid};
use std::path::Path;
use std::time::{Duration, Instant};

/// Makes the northbound database what a file says.
pub async fn run(nb: &str, file: &Path, dry_run: bool, wait: bool, limit: Duration) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let network = document::read(&text).with_context(|| format!("{}: nothing was applied", file.display()))?;
    let client = database::connect(nb, "OVN_Northbound", &plan::TABLES, limit).await?;
    let schema = client.schema().context("the database has no schema")?;
    let wanted = plan::wanted(&network);
    let mut txn = Transaction::new(schema);
    let lines = client.replica(|r| plan::changes(r, &wanted, &mut txn));
    for l in &lines {
        println!("{} {}", l.sign, l.text);
    }
    if lines.is_empty() {
        println!("nothing to change");
    }
    if dry_run {
        println!("{} changes, none of them made", lines.len());
        return Ok(());
    }
    let (global, cfg) = global(&client);
    let target = cfg + 1;
    if lines.is_empty() {
        return if wait { realised(&client, cfg, limit).await } else { Ok(()) };
    }
    let number = [("nb_cfg", Datum::Scalar(Atom::Integer(target)))];
    match global {
        Some(id) => txn.update("NB_Global", id, number),
        None => drop(txn.insert("NB_Global", number)),
    }
    client.commit(txn).await.context("nothing was applied")?;
    println!("{} changes applied in one transaction", lines.len());
    if wait { realised(&client, target, limit).await } else { Ok(()) }
}

/// The row of NB_Global and its configuration number.
fn global(client: &Client) -> (Option<Uuid>, i64) {
    (client.replica(|r| r.rows("NB_Global").next().map(|(id, _)| *id)), integer(client, "nb_cfg"))
}

fn integer(client: &Client, column: &str) -> i64 {
    client
        .replica(|r| {
            let ts = r.schema()?.tables.get("NB_Global")?;
            r.rows("NB_Global").next()?.1.get(ts, column)?.scalar()?.as_integer()
        })
        .unwrap_or(0)
}

/// Waits until the slowest chassis has the configuration.
async fn realised(client: &Client, target: i64, limit: Duration) -> Result<()> {
    let start = Instant::now();
    let mut compiled = false;
    loop {
        if !compiled && integer(client, "sb_cfg") >= target {
            compiled = true;
            println!("compiled after {:.0?}", start.elapsed());
        }
        if integer(client, "hv_cfg") >= target {
            println!("all chassis have realised it after {:.0?}", start.elapsed());
            return Ok(());
        }
        if start.elapsed() > limit {
            let missing = if compiled {
                "some chassis have not realised it; look at `isthmusctl show`"
            } else {
                "northd has not compiled it; does it run?"
            };
            bail!("applied, but after {limit:?} {missing}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
