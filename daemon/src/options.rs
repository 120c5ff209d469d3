//! Command-line options that every daemon takes (ovs-vswitchd(8), ovn-northd(8): "Daemon Options",
//! "Logging Options", "PKI Options").

use std::ffi::OsString;
use std::path::PathBuf;

/// The common options; flatten them into a daemon's own `clap` struct and [`parse`] that.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Options {
    /// Create a pidfile (default: NAME.pid in the run directory).
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub pidfile: Option<String>,
    /// With --pidfile, start even if already running.
    #[arg(long)]
    pub overwrite_pidfile: bool,
    /// Run in the background; return once the daemon is ready.
    #[arg(long)]
    pub detach: bool,
    /// Do not change to the root directory when detaching.
    #[arg(long)]
    pub no_chdir: bool,
    /// Accepted for compatibility; a service manager restarts the daemon.
    #[arg(long)]
    pub monitor: bool,
    /// Let the database name sockets for controllers outside the run directory.
    #[arg(long)]
    pub no_self_confinement: bool,
    /// Change to this user (and group) once started.
    #[arg(long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// Log to a file (default: NAME.log in the log directory).
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub log_file: Option<String>,
    /// Set logging levels: MODULE:DESTINATION:LEVEL in any order; alone, everything at DBG.
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, default_missing_value = "dbg",
          action = clap::ArgAction::Append)]
    pub verbose: Vec<String>,
    /// How to send messages to syslog: libc, null, unix:FILE or udp:IP:PORT.
    #[arg(long, value_name = "METHOD", env = "OVS_SYSLOG_METHOD")]
    pub syslog_method: Option<String>,
    /// Also send syslog messages to this UDP port, in RFC 5424's form; the host is a numerical address.
    #[arg(long, value_name = "HOST:PORT")]
    pub syslog_target: Option<String>,
    /// Control socket ("none" for no socket).
    #[arg(short = 'u', long, value_name = "SOCKET")]
    pub unixctl: Option<String>,
    /// Answer GET /metrics (Prometheus text) on this port; without ADDRESS on 127.0.0.1.
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub metrics: Option<String>,
    /// Display version information.
    #[arg(short = 'V', long)]
    pub version: bool,
    /// List the options, one a line, for programs.
    #[arg(short = 'o', long)]
    pub options: bool,
    /// TLS options.
    #[command(flatten)]
    pub tls: TlsOptions,
}

/// Files and limits for TLS.
#[derive(clap::Args, Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// File with the private key.
    #[arg(short = 'p', long, value_name = "FILE")]
    pub private_key: Option<PathBuf>,
    /// File with the certificate for the private key.
    #[arg(short = 'c', long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// File with the peer's CA certificate ("none": do not verify the peer).
    #[arg(short = 'C', long, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// As --ca-cert; where the file is absent, take and keep the CA that the peer presents.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_ca_cert: Option<PathBuf>,
    /// TLS protocols to enable.
    #[arg(long, value_name = "PROTOS")]
    pub ssl_protocols: Option<String>,
    /// TLS 1.2 ciphers to enable.
    #[arg(long, value_name = "CIPHERS")]
    pub ssl_ciphers: Option<String>,
    /// TLS 1.3 ciphersuites to enable.
    #[arg(long, value_name = "SUITES")]
    pub ssl_ciphersuites: Option<String>,
    /// Name to ask servers for (Server Name Indication); default: the host that is connected to.
    #[arg(long, value_name = "NAME")]
    pub ssl_server_name: Option<String>,
}

/// Parses the process's arguments into a daemon's own options; `--options` lists these and ends the process.
pub fn parse<A: clap::Parser>() -> A {
    let arguments = arguments();
    let asked = |a: &OsString| a == "--options" || a == "-o";
    if arguments.iter().skip(1).take_while(|a| *a != "--").any(asked) {
        print!("{}", listed(&A::command()));
        std::process::exit(0);
    }
    A::parse_from(arguments)
}

/// The options as `ovn-northd --options` lists them: the long name and, where there is one, the short one, with `ARG` or
/// `[ARG]` where a value follows.
fn listed(command: &clap::Command) -> String {
    let mut out = String::new();
    let help = clap::Arg::new("help").short('h').long("help").action(clap::ArgAction::Help);
    for arg in command.get_arguments().chain([&help]) {
        let values = arg.get_num_args().unwrap_or_else(|| usize::from(arg.get_action().takes_values()).into());
        let (attached, apart) = match (values.min_values(), values.max_values()) {
            (_, 0) => ("", ""),
            (0, _) => ("=[ARG]", " [ARG]"),
            _ => ("=ARG", " ARG"),
        };
        if let Some(long) = arg.get_long() {
            out.push_str(&format!("--{long}{attached}\n"));
        }
        if let Some(short) = arg.get_short() {
            out.push_str(&format!("-{short}{apart}\n"));
        }
    }
    out
}

/// The process's arguments with `-v[SPEC]`, whose value is attached without `=`, in its long form.
fn arguments() -> Vec<OsString> {
    normalize(std::env::args_os())
}

fn normalize(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut plain = false;
    args.enumerate()
        .map(|(i, arg)| {
            plain |= arg == "--";
            match arg.to_str().and_then(|s| s.strip_prefix("-v")) {
                Some("") if i > 0 && !plain => "--verbose".into(),
                Some(spec) if i > 0 && !plain => format!("--verbose={spec}").into(),
                _ => arg,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        daemon: Options,
        database: Vec<String>,
    }

    fn parse(args: &[&str]) -> Args {
        Args::parse_from(normalize(std::iter::once("prog").chain(args.iter().copied()).map(OsString::from)))
    }

    #[test]
    fn optional_values_attach_as_getopt_does_it() {
        let a =
            parse(&["-vconsole:off", "-v", "--verbose=jsonrpc:dbg", "--pidfile", "--log-file=/x", "--detach", "a.db"]);
        assert_eq!(a.daemon.verbose, ["console:off", "dbg", "jsonrpc:dbg"]);
        assert_eq!(a.daemon.pidfile.as_deref(), Some(""));
        assert_eq!(a.daemon.log_file.as_deref(), Some("/x"));
        assert!(a.daemon.detach);
        assert_eq!(a.database, ["a.db"]);
        let a = parse(&["-p", "key", "-c", "cert", "-C", "ca", "-V"]);
        assert_eq!(a.daemon.tls.ca_cert, Some("ca".into()));
        assert!(a.daemon.version);
        assert_eq!(parse(&["--", "-vx"]).database, ["-vx"]);
    }

    #[test]
    fn options_are_listed_with_what_follows_them() {
        let text = listed(&<Args as clap::CommandFactory>::command());
        let lines: Vec<&str> = text.lines().collect();
        for line in ["--pidfile=[ARG]", "--overwrite-pidfile", "--verbose=[ARG]", "--private-key=ARG", "-p ARG", "-h"] {
            assert!(lines.contains(&line), "{line} in {text}");
        }
        assert!(!text.contains("database"), "{text}");
    }
}
