//! FRR's daemons on a machine of a lab.

use crate::lab::{Lab, run, until};
use anyhow::Result;
use std::time::Duration;

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts daemons with their configurations, zebra first; those that run already go on. A daemon's socket tells that it is ready:
/// `zserv.api` of zebra, `bfdd.sock` of bfdd, that of the others for vtysh.
///
/// # Errors
/// Where one does not start.
pub fn start(lab: &mut Lab, machine: &str, daemons: &[(&str, &str)]) -> Result<()> {
    let dir = lab.machine_dir(machine);
    let path = |f: &str| dir.join(f).display().to_string();
    for (d, config) in daemons {
        std::fs::write(dir.join(format!("{d}.conf")), config)?;
    }
    // FRR gives up root, and needs its files all the same.
    run("chown", &["-R", "frr:frrvty", &dir.display().to_string()])?;
    for (d, _) in daemons {
        if lab.is_running(machine, d) {
            continue;
        }
        let mut args = vec!["-f".into(), path(&format!("{d}.conf")), "-i".into(), path(&format!("{d}.pid"))];
        args.extend(["-z".into(), path("zserv.api"), "--vty_socket".into(), dir.display().to_string()]);
        args.extend(["-P".into(), "0".into(), "--log".into(), "stdout".into()]);
        let socket = match *d {
            "zebra" => path("zserv.api"),
            "bfdd" => {
                args.extend(["--bfdctl".into(), path("bfdd.sock")]);
                path("bfdd.sock")
            }
            d => path(&format!("{d}.vty")),
        };
        // One that was killed leaves its socket.
        let _ = std::fs::remove_file(&socket);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        lab.spawn(machine, d, &format!("/usr/lib/frr/{d}"), &args)?;
        until(d, PATIENCE, || Ok(std::fs::metadata(&socket)?))?;
    }
    Ok(())
}

/// What a daemon says to a command.
///
/// # Errors
/// Where it does not answer.
pub fn ask(lab: &Lab, machine: &str, daemon: &str, command: &str) -> Result<String> {
    let dir = lab.machine_dir(machine).display().to_string();
    lab.exec(machine, "vtysh", &["--vty_socket", &dir, "-d", daemon, "-c", command])
}
