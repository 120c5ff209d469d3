//! Going into the background.
//!
//! The parent starts the file that it runs from once more, under the name that it was given itself, with the write end of a pipe as its standard input
//! and [`MARK`] in its environment, and waits for one byte on the pipe: then the child is ready
//! and the parent returns 0. Where the pipe closes without one, the parent returns the child's status.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};

/// Holds the parent's process number in the child.
const MARK: &str = "ISTHMUS_DETACHED_BY";

/// The file that this process runs from. Neither `argv[0]`, which anybody may choose, nor PATH leads there for certain.
const THIS_FILE: &str = "/proc/self/exe";

/// The child's end: tells the parent that the daemon is ready.
#[derive(Debug)]
pub(crate) struct Notify(File);

/// The child's end, where this process is a detached child.
///
/// # Errors
/// Where the system refuses a new session.
pub(crate) fn child() -> io::Result<Option<Notify>> {
    let parent = std::env::var(MARK).ok().and_then(|s| s.parse::<i32>().ok());
    if parent != Some(nix::unistd::getppid().as_raw()) {
        return Ok(None);
    }
    let pipe = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    nix::unistd::dup2_stdin(OpenOptions::new().read(true).open("/dev/null")?)?;
    nix::unistd::setsid()?;
    // Started as THIS_FILE, it would be "exe" in the process table. The kernel keeps 15 bytes.
    std::fs::write("/proc/self/comm", crate::dirs::program_name())?;
    Ok(Some(Notify(pipe)))
}

impl Notify {
    /// Lets the parent return and leaves its terminal.
    ///
    /// # Errors
    /// Where `/dev/null` cannot be opened.
    pub(crate) fn ready(mut self) -> io::Result<()> {
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        nix::unistd::dup2_stdout(&null)?;
        nix::unistd::dup2_stderr(&null)?;
        // The parent may be gone; that is no reason to stop.
        let _ = self.0.write_all(b"r");
        Ok(())
    }
}

/// Starts the background process and waits until it is ready or gone.
///
/// # Errors
/// Where it cannot be started.
pub(crate) fn parent() -> io::Result<ExitCode> {
    let mut args = std::env::args_os();
    let arg0 = args.next().unwrap_or_default();
    let (mut reader, writer) = io::pipe()?;
    let mut child = Command::new(THIS_FILE)
        .arg0(&arg0)
        .args(args)
        .env(MARK, std::process::id().to_string())
        .stdin(Stdio::from(writer))
        .spawn()?;
    let mut byte = [0];
    if reader.read(&mut byte)? == 1 {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    // A child that is gone before it was ready has failed, whatever it returned.
    Ok(ExitCode::from(u8::try_from(code).ok().filter(|c| *c != 0).unwrap_or(1)))
}
