//! Connections kept over an orderly restart: `conntrack.records` in the run directory. It has the records of a dump
//! ([`gateway_ha::sync::codec`]); the file's time says when it was written.

use crate::config::ha::zone_names;
use crate::pmd::Handle;
use crate::pmd::conn_sync::taken_connection;
use gateway_ha::sync::{Connection, Decoder, Record, VERSION};
use ovn_schema::ovs;
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The most connections that are put into the table in one job.
const JOB: usize = 1024;

fn path(rundir: &Path) -> PathBuf {
    rundir.join("conntrack.records")
}

/// Names of zones by number, of all bridges.
fn names(db: &ovs::Database) -> HashMap<u16, &str> {
    db.bridge.values().flat_map(|b| zone_names(&b.external_ids)).map(|(name, n)| (n, name)).collect()
}

/// Writes all connections of this chassis.
pub async fn save(pmd: &Handle, rundir: &Path, db: &ovs::Database) {
    let Ok(all) = pmd.own_connections().await else { return };
    let path = path(rundir);
    if all.is_empty() {
        // An older file is no longer true.
        let _ = std::fs::remove_file(&path);
        return;
    }
    let mut bytes = Vec::with_capacity(all.len() * 80);
    Record::Hello(VERSION, 0, String::new()).encode(&mut bytes);
    for (n, name) in names(db) {
        Record::Zone(n, name.to_owned()).encode(&mut bytes);
    }
    for (slot, c) in (0u32..).zip(&all) {
        Record::Put(slot, *c).encode(&mut bytes);
    }
    Record::End(u32::try_from(all.len()).unwrap_or(u32::MAX)).encode(&mut bytes);
    let write = || {
        let mut f = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
        f.write_all(&bytes)
    };
    match write() {
        Ok(()) => tracing::info!(target: "ha", "{} connections saved for the next start", all.len()),
        Err(e) => {
            tracing::warn!(target: "ha", "{}: {e}; connections are not kept over the restart", path.display());
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Puts saved connections into the table, as far as their time is not over, and removes the file.
pub async fn restore(pmd: &Handle, rundir: &Path, db: &ovs::Database) {
    let path = path(rundir);
    let Ok(bytes) = std::fs::read(&path) else { return };
    let written = std::fs::metadata(&path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    // Without it a crash would bring back what is old by then.
    let _ = std::fs::remove_file(&path);
    let passed = SystemTime::now().duration_since(written).unwrap_or_default();
    let all = match read(&bytes) {
        Ok(all) => all,
        Err(e) => return tracing::warn!(target: "ha", "{}: {e}; its connections are lost", path.display()),
    };
    let now = names(db);
    let zone = |n| zone_now(&all.zones, &now, n);
    let wanted = all.connections.iter().filter_map(|c| {
        let left = Duration::from_millis(c.left).checked_sub(passed)?;
        Some((taken_connection(&Connection { zone: zone(c.zone)?, ..*c })?, left))
    });
    let wanted: Vec<_> = wanted.collect();
    let mut taken = 0;
    for some in wanted.chunks(JOB) {
        taken += pmd.restore_connections(some.to_vec()).await.unwrap_or(0);
    }
    tracing::info!(target: "ha", "{taken} of {} saved connections are back", all.connections.len());
}

/// The number of a saved zone now: by its name, if it had one. None: the zone is gone.
fn zone_now(saved: &HashMap<u16, String>, now: &HashMap<u16, &str>, n: u16) -> Option<u16> {
    match saved.get(&n) {
        Some(name) => now.iter().find(|(_, other)| *other == name).map(|(n, _)| *n),
        // It had no name, and must not get one's number that has.
        None => (!now.contains_key(&n)).then_some(n),
    }
}

struct Saved {
    zones: HashMap<u16, String>,
    connections: Vec<Connection>,
}

/// What a file can be refused for.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it is not a file of connections")]
    Other,
    #[error(transparent)]
    Malformed(#[from] gateway_ha::sync::codec::Malformed),
    #[error("its end is missing")]
    Cut,
}

fn read(bytes: &[u8]) -> Result<Saved, Refused> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    let mut all = Saved { zones: HashMap::new(), connections: Vec::new() };
    let Some(Record::Hello(..)) = decoder.record()? else { return Err(Refused::Other) };
    while let Some(r) = decoder.record()? {
        match r {
            Record::Zone(n, name) => drop(all.zones.insert(n, name)),
            Record::Put(_, c) => all.connections.push(c),
            Record::End(_) => return Ok(all),
            _ => {}
        }
    }
    Err(Refused::Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_keep_their_names() {
        let saved = HashMap::from([(7, "lr_snat".to_owned()), (8, "gone".to_owned())]);
        let now = HashMap::from([(9, "lr_snat"), (5, "new")]);
        assert_eq!([7, 8, 5, 6].map(|n| zone_now(&saved, &now, n)), [Some(9), None, None, Some(6)]);
    }

    #[test]
    fn a_file_is_whole_or_refused() {
        let mut bytes = Vec::new();
        for r in [Record::Hello(VERSION, 0, String::new()), Record::Put(0, Connection::default()), Record::End(1)] {
            r.encode(&mut bytes);
        }
        assert_eq!(read(&bytes).expect("a file").connections.len(), 1);
        assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(Refused::Cut)));
        assert!(matches!(read(b"some text"), Err(Refused::Other | Refused::Cut)));
        assert!(matches!(read(&bytes[5..]), Err(Refused::Other | Refused::Malformed(_) | Refused::Cut)));
    }
}
