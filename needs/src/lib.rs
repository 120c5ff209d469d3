//! What a test needs of the machine: root, programs of Debian's packages, recorded data.
//!
//! A test that lacks something is *skipped*: it says why, does nothing and returns. The harness of Rust knows no such outcome and
//! counts it as passed, so the name of the test and the reason also go into the file that `ISTHMUS_SKIPPED` names; `scripts/test`
//! takes them off the passed ones and prints them. With `ISTHMUS_STRICT=1` such a test fails instead, for machines that are to
//! have everything.

pub mod idle;
pub mod imports;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

/// Counts the test that runs as skipped.
///
/// # Panics
/// With `ISTHMUS_STRICT=1`.
pub fn skip(why: impl Display) {
    assert!(std::env::var_os("ISTHMUS_STRICT").is_none_or(|v| v != "1"), "skipped under ISTHMUS_STRICT=1: {why}");
    skip_always(why);
}

/// As [`skip`], also under `ISTHMUS_STRICT=1`: the test needs a device that no machine has by itself.
pub fn skip_always(why: impl Display) {
    println!("skipped: {why}");
    let Some(path) = std::env::var_os("ISTHMUS_SKIPPED") else { return };
    let line = line(&why.to_string());
    // One write, so that lines of several tests do not mix.
    let written =
        std::fs::File::options().create(true).append(true).open(&path).and_then(|mut f| f.write_all(line.as_bytes()));
    if let Err(e) = written {
        panic!("{}: {e}", Path::new(&path).display());
    }
}

/// `BINARY TEST: WHY`.
fn line(why: &str) -> String {
    let binary = std::env::current_exe().ok();
    let binary = binary.as_deref().and_then(Path::file_stem).map_or("?".into(), |n| n.to_string_lossy());
    // Cargo puts a hash behind a test binary's name.
    let binary = binary.rsplit_once('-').map_or(&*binary, |(name, _)| name);
    let thread = std::thread::current();
    format!("{binary} {}: {}\n", thread.name().unwrap_or("?"), why.replace('\n', " "))
}

/// Whether the effective user is root; otherwise the test is skipped.
///
/// # Panics
/// As [`skip`].
pub fn root() -> bool {
    let is_root = nix::unistd::Uid::effective().is_root();
    if !is_root {
        skip("network namespaces are made by root only");
    }
    is_root
}

/// Makes a CA (`ca.pem`) and a certificate of it for everybody, named `test` (`test.pem`, `test.key`), in a directory, as
/// `ovs-pki` makes them; where openssl makes none, the test is skipped.
///
/// # Panics
/// As [`skip`], and where the directory cannot be written.
pub fn certificates(dir: &Path) -> bool {
    let openssl = |args: &str| {
        let out = std::process::Command::new("openssl").args(args.split(' ')).current_dir(dir).output();
        out.is_ok_and(|o| o.status.success())
    };
    let extensions = "basicConstraints=CA:FALSE\nsubjectAltName=DNS:test\n";
    std::fs::write(dir.join("v3"), extensions).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let key = "-newkey rsa:2048 -nodes -keyout";
    let made = openssl(&format!("req -x509 -days 2 -subj /CN=ca -out ca.pem {key} ca.key"))
        && openssl(&format!("req -subj /CN=test -out test.csr {key} test.key"))
        && openssl("x509 -req -days 2 -in test.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile v3 -out test.pem");
    if !made {
        skip("openssl makes no certificates here");
    }
    made
}

/// Whether all of these are installed, by name in `PATH` or by path; otherwise the test is skipped.
///
/// # Panics
/// As [`skip`].
pub fn installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |p: &&&str| {
        Path::new(**p).is_absolute() && Path::new(**p).exists()
            || std::env::split_paths(&path).any(|d| d.join(**p).is_file())
    };
    let missing: Vec<&str> = programs.iter().filter(|p| !there(p)).copied().collect();
    if !missing.is_empty() {
        skip(format!("{} not installed (scripts/install test)", missing.join(", ")));
    }
    missing.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// Runs one test of this binary again, with `ISTHMUS_SKIPPED` and `ISTHMUS_STRICT` set.
    fn again(test: &str, skipped: &Path, strict: &str) -> Output {
        let me = std::env::current_exe().expect("this program");
        let command = &mut Command::new(me);
        command.args(["--exact", test]).env("NEEDS_INSIDE", "1");
        command.env("ISTHMUS_SKIPPED", skipped).env("ISTHMUS_STRICT", strict).output().expect("a run")
    }

    #[test]
    fn a_missing_program_is_counted_and_fails_a_strict_run() {
        if std::env::var_os("NEEDS_INSIDE").is_some() {
            assert!(installed(&["sh", "/bin/sh"]), "what every machine has");
            assert!(!installed(&["sh", "no-such-program"]));
            return;
        }
        let file = std::env::temp_dir().join(format!("isthmus-needs-{}", std::process::id()));
        let test = "tests::a_missing_program_is_counted_and_fails_a_strict_run";
        let lax = again(test, &file, "");
        let written = std::fs::read_to_string(&file).expect("the file");
        assert!(lax.status.success(), "{lax:?}");
        assert_eq!(written, format!("needs {test}: no-such-program not installed (scripts/install test)\n"));
        let strict = again(test, &file, "1");
        let unchanged = std::fs::read_to_string(&file).expect("the file");
        std::fs::remove_file(&file).expect("the file");
        assert!(!strict.status.success() && unchanged == written, "{strict:?}");
    }
}
