//! Keeps a database in a standalone file of ovsdb-server's format: each transaction is appended and
//! synced before it is answered; the file is rewritten when it has grown far beyond its content.

use crate::engine::{Change, Database};
use crate::file::{self, Content};
use crate::json::write_string;
use crate::{DatabaseSchema, Error, Row, TableSchema, Uuid};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sha1::{Digest, Sha1};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes written by one call.
const PIECE: usize = 256 << 10;
/// Files below this size, in bytes, are not compacted by themselves.
const SMALLEST_TO_COMPACT: u64 = 10 << 20;

/// An open database file, locked against other servers.
#[derive(Debug)]
pub struct Storage {
    path: PathBuf,
    file: File,
    _lock: Lock,
    size: u64,
    /// The size in bytes after the last compaction.
    compact_size: u64,
    /// Records that are not written yet, in pieces.
    pending: Vec<Vec<u8>>,
    /// A write failed half-way: nothing may be appended after it.
    broken: bool,
    /// The compaction that runs in the background.
    rewriting: Option<Rewriting>,
}

type Written = Arc<Mutex<Option<Result<(File, u64), Error>>>>;

#[derive(Debug)]
struct Rewriting {
    path: PathBuf,
    written: Written,
    abandoned: Arc<AtomicBool>,
    /// What was written to the old file since the new one was begun.
    since: Vec<u8>,
}

impl Drop for Rewriting {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Release);
        // It has become the database, or is not wanted any more.
        let _ = fs::remove_file(&self.path);
    }
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

/// Removes files that a crash during compaction has left.
fn remove_leftovers(path: &Path) {
    let prefix = format!("{}.tmp", path.file_name().unwrap_or_default().to_string_lossy());
    let files = path.parent().and_then(|d| fs::read_dir(d).ok()).into_iter().flatten().flatten();
    for f in files {
        let name = f.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(&prefix).filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if number.is_some() {
            // It is only in the way.
            let _ = fs::remove_file(f.path());
        }
    }
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
        let content = file::parse_from(io::BufReader::with_capacity(1 << 18, &file))
            .map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })?;
        let good = content.good_bytes;
        file.seek(SeekFrom::Start(good)).map_err(&failed)?;
        let mut torn = Vec::new();
        file.read_to_end(&mut torn).map_err(&failed)?;
        if !torn.is_empty() {
            let mut aside = path.clone().into_os_string();
            aside.push(format!(".torn-at-{good}"));
            fs::write(&aside, &torn).map_err(&failed)?;
            file.set_len(good).map_err(&failed)?;
            file.sync_all().map_err(&failed)?;
            tracing::warn!(target: "ovsdb_file",
                "{}: {} bytes after offset {good} are no whole record: cut off, and kept in {}",
                path.display(), torn.len(), aside.to_string_lossy());
        }
        file.seek(SeekFrom::Start(good)).map_err(&failed)?;
        remove_leftovers(&path);
        let storage = Storage {
            path,
            file,
            _lock: lock,
            size: good,
            compact_size: good,
            pending: Vec::new(),
            broken: false,
            rewriting: None,
        };
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
            if text.len() < PIECE {
                match self.pending.last_mut().filter(|piece| piece.len() < PIECE) {
                    Some(piece) => push_record(piece, &text),
                    None => {
                        let mut piece = Vec::new();
                        push_record(&mut piece, &text);
                        self.pending.push(piece);
                    }
                }
                return;
            }
            // A long one is not copied.
            let mut text = text;
            let header = header(&text);
            text.push('\n');
            self.pending.extend([header.into_bytes(), text.into_bytes()]);
        }
    }

    /// Whether appended transactions wait for [`Storage::commit`].
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
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
        let file = &mut self.file;
        let result = self.pending.iter().try_for_each(|piece| file.write_all(piece)).and_then(|()| file.sync_data());
        if let Err(e) = result {
            self.broken = true;
            // The torn record would be cut off at the next start anyway.
            let _ = self.file.set_len(self.size);
            return Err(at(&self.path)(e));
        }
        for piece in self.pending.drain(..) {
            self.size += piece.len() as u64;
            if let Some(r) = &mut self.rewriting {
                r.since.extend_from_slice(&piece);
            }
        }
        Ok(())
    }

    /// Whether the file has grown so far beyond its content that it should be rewritten.
    pub fn wants_compaction(&self) -> bool {
        self.size >= SMALLEST_TO_COMPACT && self.size >= 2 * self.compact_size && self.rewriting.is_none()
    }

    /// Begins to rewrite the file, in a thread, with nothing but the schema and the present rows; `done` is called
    /// when [`Storage::finish_compaction`] is to be. To be called when nothing waits to be committed.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn begin_compaction(&mut self, db: &Database, done: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let snapshot = Snapshot::of(db);
        let (path, mode) = (self.temporary(), self.mode());
        let abandoned = Arc::new(AtomicBool::new(false));
        let written = Written::default();
        let (target, slot, stop) = (path.clone(), written.clone(), abandoned.clone());
        let thread = std::thread::Builder::new().name("compaction".into()).spawn(move || {
            let result = snapshot.write(&target, mode, &stop);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            if stop.load(Ordering::Acquire) {
                let _ = fs::remove_file(&target);
            }
            done();
        });
        thread.map_err(at(&self.path))?;
        self.rewriting = Some(Rewriting { path, written, abandoned, since: Vec::new() });
        Ok(())
    }

    /// Puts the rewritten file in the old one's place. Nothing happens where none is ready.
    ///
    /// # Errors
    /// Where the new file cannot be written; the old one stays then.
    pub fn finish_compaction(&mut self) -> Result<(), Error> {
        let written =
            self.rewriting.as_ref().and_then(|r| r.written.lock().unwrap_or_else(PoisonError::into_inner).take());
        let Some(written) = written else { return Ok(()) };
        let Some(r) = self.rewriting.take() else { return Ok(()) };
        let (mut file, size) = written?;
        if !r.since.is_empty() {
            file.write_all(&r.since).and_then(|()| file.sync_data()).map_err(at(&r.path))?;
        }
        self.take_over(&r.path, file, size, r.since.len() as u64)
    }

    /// Whether a compaction runs.
    pub fn is_compacting(&self) -> bool {
        self.rewriting.is_some()
    }

    /// Rewrites the file at once with nothing but the schema and the present rows.
    ///
    /// # Errors
    /// Where the new file cannot be written; the old one stays then.
    pub fn compact(&mut self, db: &Database) -> Result<(), Error> {
        self.rewriting = None;
        let temporary = self.temporary();
        let (file, size) = Snapshot::of(db).write(&temporary, self.mode(), &AtomicBool::new(false))?;
        self.take_over(&temporary, file, size, 0)?;
        self.pending.clear();
        self.broken = false;
        Ok(())
    }

    fn temporary(&self) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut temporary = self.path.clone().into_os_string();
        temporary.push(format!(".tmp{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        PathBuf::from(temporary)
    }

    fn mode(&self) -> u32 {
        let mode = fs::metadata(&self.path).map(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()));
        mode.unwrap_or(0o640)
    }

    fn take_over(&mut self, new: &Path, file: File, size: u64, since: u64) -> Result<(), Error> {
        fs::rename(new, &self.path).map_err(at(&self.path))?;
        if let Some(dir) = self.path.parent() {
            // The rename itself has to outlive a crash.
            File::open(dir).and_then(|d| d.sync_all()).map_err(at(dir))?;
        }
        self.file = file;
        self.size = size + since;
        self.compact_size = size;
        Ok(())
    }
}

type SharedRows = Vec<(Uuid, Arc<Row>)>;

/// The rows of a database at one moment; to take it costs a counter for each row.
struct Snapshot {
    schema: Arc<DatabaseSchema>,
    tables: Vec<(Arc<TableSchema>, SharedRows)>,
}

impl Snapshot {
    fn of(db: &Database) -> Snapshot {
        let rows = |t: usize| db.shared_rows(t).map(|(u, r)| (u, r.clone())).collect();
        let tables = (0..db.tables()).filter_map(|t| Some((db.table_schema(t)?.clone(), rows(t))));
        Snapshot { schema: db.schema().clone(), tables: tables.collect() }
    }

    /// Calls `out` with the text of the transaction that inserts all rows, in pieces. False where it was stopped.
    fn each(&self, date: u128, stop: &AtomicBool, mut out: impl FnMut(&str) -> io::Result<()>) -> io::Result<bool> {
        let mut text = String::from("{");
        for (schema, rows) in self.tables.iter().filter(|(_, rows)| !rows.is_empty()) {
            write_string(&schema.name, &mut text);
            text.push_str(":{");
            for (i, (uuid, row)) in rows.iter().enumerate() {
                let _ = write!(text, "{}\"{uuid}\":", if i > 0 { "," } else { "" });
                inserted(schema, row, &mut text);
                if text.len() >= PIECE {
                    if stop.load(Ordering::Acquire) {
                        return Ok(false);
                    }
                    out(&text)?;
                    text.clear();
                }
            }
            text.push_str("},");
        }
        let _ = write!(text, "\"_comment\":\"compacting database online\",\"_date\":{date}}}");
        text.push('\n');
        out(&text)?;
        Ok(true)
    }

    /// Writes and syncs a new file. Its one transaction is made twice, first to know its length and checksum.
    fn write(&self, path: &Path, mode: u32, stop: &AtomicBool) -> Result<(File, u64), Error> {
        let failed = at(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(mode);
        let file = options.open(path).map_err(&failed)?;
        let mut out = io::BufWriter::with_capacity(PIECE, file);
        let schema = file::write_record(&self.schema.to_json());
        let mut size = schema.len() as u64;
        out.write_all(&schema).map_err(&failed)?;
        if self.tables.iter().any(|(_, rows)| !rows.is_empty()) {
            let date = milliseconds();
            let (mut sha, mut length) = (Sha1::new(), 0);
            let note = |piece: &str| {
                sha.update(piece.as_bytes());
                length += piece.len() as u64;
                Ok(())
            };
            let mut whole = self.each(date, stop, note).map_err(&failed)?;
            let header = format!("OVSDB JSON {length} {:x}\n", sha.finalize());
            out.write_all(header.as_bytes()).map_err(&failed)?;
            size += header.len() as u64 + length;
            whole &= self.each(date, stop, |piece| out.write_all(piece.as_bytes())).map_err(&failed)?;
            if !whole {
                return Err(failed(io::Error::other("compaction was given up")));
            }
        }
        let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
        file.sync_all().map_err(&failed)?;
        Ok((file, size))
    }
}

/// The bytes of a file that holds the database and nothing else.
pub fn whole(db: &Database) -> Vec<u8> {
    let snapshot = Snapshot::of(db);
    let mut out = file::write_record(&snapshot.schema.to_json());
    let mut text = String::new();
    let all = snapshot.each(milliseconds(), &AtomicBool::new(false), |piece| {
        text.push_str(piece);
        Ok(())
    });
    if all.is_ok() {
        push_record(&mut out, text.trim_end_matches('\n'));
    }
    out
}

/// The header line of a record.
fn header(text: &str) -> String {
    let mut sha = Sha1::new();
    sha.update(text.as_bytes());
    sha.update(b"\n");
    format!("OVSDB JSON {} {:x}\n", text.len() + 1, sha.finalize())
}

fn push_record(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(header(text).as_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(b'\n');
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
    let mut sorted: Vec<&Change> = changes.iter().collect();
    sorted.sort_by_key(|c| c.table);
    let mut out = String::from("{");
    let mut open = None;
    for c in sorted {
        let schema = db.table_schema(c.table)?;
        let before = out.len();
        if open == Some(c.table) {
            out.push(',');
        } else {
            out.push_str(if open.is_some() { "}," } else { "" });
            write_string(&schema.name, &mut out);
            out.push_str(":{");
        }
        let _ = write!(out, "\"{}\":", c.uuid);
        match (&c.old, &c.new) {
            (_, None) => out.push_str("null"),
            (None, Some(new)) => inserted(schema, new, &mut out),
            (Some(old), Some(new)) => {
                let mut first = true;
                out.push('{');
                for (i, column) in schema.columns.iter().enumerate() {
                    if !column.ephemeral && old.0[i] != new.0[i] {
                        member(&column.name, &mut first, &mut out);
                        old.0[i].diff(&new.0[i], &column.ty).write_json(&mut out);
                    }
                }
                out.push('}');
                if first {
                    out.truncate(before);
                    continue;
                }
            }
        }
        open = Some(c.table);
    }
    if open.is_none() && comments.is_empty() {
        return None;
    }
    out.push_str(if open.is_some() { "}," } else { "" });
    if !comments.is_empty() {
        out.push_str("\"_comment\":");
        write_string(&comments.join("\n"), &mut out);
        out.push(',');
    }
    let _ = write!(out, "\"_is_diff\":true,\"_date\":{}}}", milliseconds());
    Some(out)
}
