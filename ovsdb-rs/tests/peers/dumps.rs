//! Recorded databases: what `ovsdb-client` and `ovsdb-tool` read from our server and from Debian's is the same.
//! A sample by default; all of them with `OVSDB_ALL=1`.

use crate::servers::{DEBIAN, Peer, debian};
use std::collections::HashSet;
use std::path::Path;

/// Databases by name and schema that both servers show the same way: no masking is needed.
fn dumped(peer: &Peer, database: &str) -> String {
    peer.output(&format!("ovsdb-client -f csv dump $DB {database}; ovsdb-client get-schema-version $DB {database}"))
}

/// Serves `files` (of databases with different names) with both and compares.
fn compare(root: &Path, files: &[(String, Vec<u8>)]) {
    let [ours, theirs] = [env!("CARGO_BIN_EXE_ovsdb"), DEBIAN].map(|program| {
        let dir = root.join(Path::new(program).file_name().unwrap());
        std::fs::create_dir_all(&dir).unwrap();
        let mut names = Vec::new();
        for (i, (_, bytes)) in files.iter().enumerate() {
            let path = dir.join(format!("{i}.db"));
            std::fs::write(&path, bytes).unwrap();
            names.push(path.display().to_string());
        }
        Peer::start(program, &dir, &names)
    });
    for (name, bytes) in files {
        let database = ovsdb_rs::file::parse(bytes).unwrap().schema.name;
        let (a, b) = (dumped(&ours, &database), dumped(&theirs, &database));
        assert!(a.len() > 100, "{name}: {a}");
        assert!(a == b, "{name}: dumps differ\n{}", first_difference(&a, &b));
    }
}

fn first_difference(a: &str, b: &str) -> String {
    let lines = a.lines().zip(b.lines()).find(|(x, y)| x != y);
    lines.map_or_else(|| "one is longer".to_string(), |(x, y)| format!("ours   {x}\ntheirs {y}"))
}

#[test]
fn recorded_databases_dump_the_same() {
    if !debian() {
        return;
    }
    let every = if std::env::var_os("OVSDB_ALL").is_some() { 1 } else { 23 };
    let root = tempfile::tempdir().unwrap();
    let (mut n, mut batch, mut names) = (0, Vec::new(), HashSet::new());
    for archive in golden::archives().into_iter().step_by(every) {
        let case = golden::read(&archive).unwrap();
        for (i, snapshot) in case.snapshots.iter().enumerate() {
            for (name, bytes) in snapshot.iter().filter(|(n, _)| n.ends_with(".db")) {
                let database = ovsdb_rs::file::parse(bytes).unwrap().schema.name;
                if !names.insert(database.clone()) {
                    compare(root.path(), &batch);
                    batch.clear();
                    names.clear();
                    names.insert(database);
                }
                batch.push((format!("{}/{i}/{name}", case.name), bytes.clone()));
                n += 1;
            }
        }
    }
    if !batch.is_empty() {
        compare(root.path(), &batch);
    }
    println!("{n} databases");
}
