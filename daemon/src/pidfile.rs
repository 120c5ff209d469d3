//! The pidfile: the process's number and a newline, locked (fcntl(2)) for the process's life.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Device and number of the pidfiles that this process holds. To open and close one would be to let go of it (fcntl(2)).
static OWN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Why there is no pidfile.
#[derive(Debug, thiserror::Error)]
pub enum PidfileError {
    /// A live process holds it.
    #[error("{}: already running as pid {pid}, aborting", path.display())]
    Running {
        /// The pidfile.
        path: PathBuf,
        /// The process that holds it.
        pid: i32,
    },
    /// The file cannot be made.
    #[error("{}: create failed ({source})", path.display())]
    Create {
        /// The pidfile.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A pidfile that this process holds; it is removed when dropped.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    file: File,
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// The process that holds a pidfile, if one does.
///
/// # Errors
/// Where the file is there and cannot be read.
pub fn holder(path: &Path) -> io::Result<Option<i32>> {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if fs::metadata(path).is_ok_and(|m| own.contains(&(m.dev(), m.ino()))) {
        return Ok(Some(std::process::id().cast_signed()));
    }
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut lock = whole_file(libc::F_WRLCK);
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}

impl Pidfile {
    /// Creates and locks the pidfile of this process.
    ///
    /// # Errors
    /// [`PidfileError::Running`] where a live process holds it, unless `overwrite`.
    pub fn create(path: &Path, overwrite: bool) -> Result<Pidfile, PidfileError> {
        let failed = |source: io::Error| PidfileError::Create { path: path.to_path_buf(), source };
        if !overwrite && let Some(pid) = holder(path).map_err(failed)? {
            return Err(PidfileError::Running { path: path.to_path_buf(), pid });
        }
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(failed)?;
        }
        let mut temporary = path.as_os_str().to_os_string();
        temporary.push(format!(".tmp{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let made = (|| {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
            fcntl(&file, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK))).map_err(|e: Errno| io::Error::from(e))?;
            writeln!(file, "{}", std::process::id())?;
            fs::rename(&temporary, path)?;
            let m = file.metadata()?;
            OWN.lock().unwrap_or_else(PoisonError::into_inner).push((m.dev(), m.ino()));
            Ok(file)
        })();
        match made {
            Ok(file) => Ok(Pidfile { path: path.to_path_buf(), file }),
            Err(e) => {
                let _ = fs::remove_file(&temporary);
                Err(failed(e))
            }
        }
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        // Another process may have overwritten it: then it is not ours to remove.
        let ours = self.file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let there = fs::metadata(&self.path).map(|m| (m.dev(), m.ino())).ok();
        if ours.is_some() && ours == there {
            let _ = fs::remove_file(&self.path);
        }
        OWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|o| Some(*o) != ours);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's list of locks (proc_locks(5)) names files by their numbers.
    #[test]
    fn looking_at_the_own_pidfile_keeps_it() {
        let folder = std::env::temp_dir().join(format!("pidfile-{}", std::process::id()));
        let path = folder.join("x.pid");
        let held = Pidfile::create(&path, false).expect("a pidfile");
        let locked = |number: u64| {
            let list = fs::read_to_string("/proc/locks").expect("locks");
            list.contains(&format!(":{number} "))
        };
        let number = fs::metadata(&path).expect("the file").ino();
        assert!(locked(number));
        assert_eq!(holder(&path).expect("read"), Some(std::process::id().cast_signed()));
        assert!(locked(number), "it is still held");
        drop(held);
        assert!(!path.exists() && !locked(number));
        fs::write(&path, "1\n").expect("a file");
        assert_eq!(holder(&path).expect("read"), None, "nobody holds it");
        fs::remove_dir_all(&folder).expect("gone");
    }
}
