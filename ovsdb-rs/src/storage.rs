//! Keeps a database in a standalone file of ovsdb-server's format: each transaction is appended and
//! synced before it is answered; the file is rewritten when it has grown far beyond its content.

use crate::engine::{Change, Database};
use crate::file::{self, Content};
use crate::json::write_string;
use crate::{DatabaseSchema, Error, Row, TableSchema, Uuid};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sha1::{Digest, Sha1};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below this size a file is not rewritten by itself.
const SMALLEST_TO_COMPACT: u64 = 10 << 20;

/// An open database file, locked against other servers.
#[derive(Debug)]
pub struct Storage {
    path: PathBuf,
    file: File,
    _lock: Lock,
    size: u64,
    /// The size after the file was last written as a whole.
    compact_size: u64,
    /// Records that are not written yet.
    pending: Vec<u8>,
    /// A write failed half-way: nothing may be appended after it.
    broken: bool,
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |e| Error::File { path: path.display().to_string(), reason: e.to_string() }
}

/// The files that this process has locked: record locks do not exclude their own process.
static LOCKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

#[derive(Debug)]
struct Lock {
    path: PathBuf,
    /// Held for as long as it is open.
    file: Option<File>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        LOCKED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// Locks a database file as ovsdb-server does: by a record lock on a file beside it.
fn lock(path: &Path) -> Result<Lock, Error> {
    if !LOCKED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_path_buf()) {
        let reason = "already open in this process".to_string();
        return Err(Error::File { path: path.display().to_string(), reason });
    }
    let mut lock = Lock { path: path.to_path_buf(), file: None };
    lock.file = Some(record_lock(path)?);
    Ok(lock)
}

fn record_lock(path: &Path) -> Result<File, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let lock_path = path.with_file_name(format!(".{name}.~lock~"));
    let failed = at(&lock_path);
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&lock_path).map_err(failed)?;
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&whole)).map_err(|_| Error::File {
        path: path.display().to_string(),
        reason: format!("locked by another process; stop that server or remove {}", lock_path.display()),
    })?;
    Ok(file)
}

impl Storage {
    /// Opens a file and reads its content. What a crash has torn at its end is cut off and kept beside it.
    ///
    /// # Errors
    /// Where the file is missing, locked, or no standalone database.
    pub fn open(path: &Path) -> Result<(Storage, Content), Error> {
        let path = fs::canonicalize(path).map_err(at(path))?;
        let lock = lock(&path)?;
        let shown = path.clone();
        let failed = at(&shown);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(&failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(&failed)?;
        let content =
            file::parse(&bytes).map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })?;
        let good = content.good_bytes;
        if let Some(torn) = bytes.get(good as usize..).filter(|t| !t.is_empty()) {
            let mut aside = path.clone().into_os_string();
            aside.push(format!(".torn-at-{good}"));
            fs::write(&aside, torn).map_err(&failed)?;
            file.set_len(good).map_err(&failed)?;
            file.sync_all().map_err(&failed)?;
            tracing::warn!(target: "ovsdb_file",
                "{}: {} bytes after offset {good} are no whole record: cut off, and kept in {}",
                path.display(), torn.len(), aside.to_string_lossy());
        }
        file.seek(SeekFrom::Start(good)).map_err(&failed)?;
        let storage =
            Storage { path, file, _lock: lock, size: good, compact_size: good, pending: Vec::new(), broken: false };
        Ok((storage, content))
    }

    /// Opens a file; where there is none, creates it empty with this schema.
    ///
    /// # Errors
    /// As [`Storage::open`], and where it cannot be created.
    pub fn open_or_create(path: &Path, schema: &DatabaseSchema) -> Result<(Storage, Content), Error> {
        if !path.exists() {
            let failed = at(path);
            if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
                fs::create_dir_all(dir).map_err(&failed)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path).map_err(&failed)?;
            file.write_all(&file::write_record(&schema.to_json())).map_err(&failed)?;
            file.sync_all().map_err(&failed)?;
        }
        Storage::open(path)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a transaction to what [`Storage::commit`] writes.
    pub fn append(&mut self, db: &Database, changes: &[Change], comments: &[String]) {
        if let Some(text) = transaction(db, changes, comments) {
            push_record(&mut self.pending, &text);
        }
    }

    /// Writes and syncs what was appended.
    ///
    /// # Errors
    /// Where the disk fails; then nothing of it counts, and nothing more can be written.
    pub fn commit(&mut self) -> Result<(), Error> {
        if self.broken {
            return Err(Error::File {
                path: self.path.display().to_string(),
                reason: "an earlier write failed; restart the server once the disk is in order".into(),
            });
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let result = self.file.write_all(&self.pending).and_then(|()| self.file.sync_data());
        if let Err(e) = result {
            self.broken = true;
            // The torn record would be cut off at the next start anyway.
            let _ = self.file.set_len(self.size);
            return Err(at(&self.path)(e));
        }
        self.size += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Whether the file has grown so far beyond its content that it should be rewritten.
    pub fn wants_compaction(&self) -> bool {
        self.size >= SMALLEST_TO_COMPACT && self.size >= 4 * self.compact_size
    }

    /// Rewrites the file with nothing but the schema and the present rows.
    ///
    /// # Errors
    /// Where the new file cannot be written; the old one stays then.
    pub fn compact(&mut self, db: &Database) -> Result<(), Error> {
        let mut temporary = self.path.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let failed = at(&temporary);
        let mode = fs::metadata(&self.path).map(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(mode.unwrap_or(0o640));
        let mut file = options.open(&temporary).map_err(&failed)?;
        let bytes = whole(db);
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(&failed)?;
        fs::rename(&temporary, &self.path).map_err(&failed)?;
        if let Some(dir) = self.path.parent() {
            // The rename itself has to outlive a crash.
            File::open(dir).and_then(|d| d.sync_all()).map_err(at(dir))?;
        }
        self.file = file;
        self.size = bytes.len() as u64;
        self.compact_size = self.size;
        self.pending.clear();
        self.broken = false;
        Ok(())
    }
}

fn push_record(out: &mut Vec<u8>, text: &str) {
    let header = format!("OVSDB JSON {} {:x}\n", text.len() + 1, {
        let mut sha = Sha1::new();
        sha.update(text.as_bytes());
        sha.update(b"\n");
        sha.finalize()
    });
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(b'\n');
}

/// The bytes of a file that holds the database and nothing else.
pub fn whole(db: &Database) -> Vec<u8> {
    let mut out = file::write_record(&db.schema().to_json());
    let mut text = String::from("{");
    for t in 0..db.tables() {
        let Some(schema) = db.table_schema(t) else { continue };
        if db.row_count(t) == 0 {
            continue;
        }
        write_string(&schema.name, &mut text);
        text.push_str(":{");
        for (i, r) in db.rows(t).enumerate() {
            let _ = write!(text, "{}\"{}\":", if i > 0 { "," } else { "" }, r.uuid);
            inserted(schema, r.row, &mut text);
        }
        text.push_str("},");
    }
    let _ = write!(text, "\"_comment\":\"compacting database online\",\"_date\":{}}}", milliseconds());
    push_record(&mut out, &text);
    out
}

fn milliseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// The columns of a new row that differ from their defaults.
fn inserted(schema: &TableSchema, row: &Row, out: &mut String) {
    let mut first = true;
    out.push('{');
    for (c, value) in schema.columns.iter().zip(&row.0) {
        if !c.ephemeral && !c.ty.is_default(value) {
            member(&c.name, &mut first, out);
            value.write_json(out);
        }
    }
    out.push('}');
}

fn member(name: &str, first: &mut bool, out: &mut String) {
    if !std::mem::take(first) {
        out.push(',');
    }
    write_string(name, out);
    out.push(':');
}

/// A transaction's record; none where it changed nothing that is kept on disk.
fn transaction(db: &Database, changes: &[Change], comments: &[String]) -> Option<String> {
    let mut tables: BTreeMap<usize, Vec<(Uuid, String)>> = BTreeMap::new();
    for c in changes {
        let schema = db.table_schema(c.table)?;
        let mut text = String::new();
        match (&c.old, &c.new) {
            (_, None) => text.push_str("null"),
            (None, Some(new)) => inserted(schema, new, &mut text),
            (Some(old), Some(new)) => {
                let mut first = true;
                text.push('{');
                for (i, column) in schema.columns.iter().enumerate() {
                    if !column.ephemeral && old.0[i] != new.0[i] {
                        member(&column.name, &mut first, &mut text);
                        old.0[i].diff(&new.0[i], &column.ty).write_json(&mut text);
                    }
                }
                text.push('}');
                if first {
                    continue;
                }
            }
        }
        tables.entry(c.table).or_default().push((c.uuid, text));
    }
    if tables.is_empty() && comments.is_empty() {
        return None;
    }
    let mut out = String::from("{");
    for (t, rows) in tables {
        write_string(&db.table_schema(t)?.name, &mut out);
        out.push_str(":{");
        for (i, (uuid, text)) in rows.into_iter().enumerate() {
            let _ = write!(out, "{}\"{uuid}\":{text}", if i > 0 { "," } else { "" });
        }
        out.push_str("},");
    }
    if !comments.is_empty() {
        out.push_str("\"_comment\":");
        write_string(&comments.join("\n"), &mut out);
        out.push(',');
    }
    let _ = write!(out, "\"_date\":{},\"_is_diff\":true}}", milliseconds());
    Some(out)
}
