//! Directories, overridable by the environment variables that Open vSwitch and OVN use.

use std::path::{Path, PathBuf};

/// Whose conventions a program follows: they differ in directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open vSwitch: control socket in `$OVS_RUNDIR`.
    Ovs,
    /// OVN: control socket in `$OVN_RUNDIR`.
    Ovn,
}

fn dir(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).filter(|v| !v.is_empty()).map_or_else(|| PathBuf::from(default), PathBuf::from)
}

/// `$OVS_RUNDIR`, by default `/var/run/openvswitch`: pidfiles, sockets of switch and database.
pub fn ovs_rundir() -> PathBuf {
    dir("OVS_RUNDIR", "/var/run/openvswitch")
}

/// `$OVN_RUNDIR`, by default `/var/run/ovn`: control sockets and databases' sockets of OVN.
pub fn ovn_rundir() -> PathBuf {
    dir("OVN_RUNDIR", "/var/run/ovn")
}

/// `$OVS_LOGDIR`, by default `/var/log/openvswitch`.
pub fn ovs_logdir() -> PathBuf {
    dir("OVS_LOGDIR", "/var/log/openvswitch")
}

/// `$OVN_LOGDIR`, else `$OVS_LOGDIR` (OVN logs there), by default `/var/log/ovn`.
pub fn ovn_logdir() -> PathBuf {
    match std::env::var_os("OVN_LOGDIR") {
        Some(d) if !d.is_empty() => PathBuf::from(d),
        _ => dir("OVS_LOGDIR", "/var/log/ovn"),
    }
}

/// `$OVS_SYSCONFDIR/openvswitch`, by default `/etc/openvswitch`.
pub fn ovs_sysconfdir() -> PathBuf {
    dir("OVS_SYSCONFDIR", "/etc").join("openvswitch")
}

/// `$OVN_SYSCONFDIR/ovn`, by default `/etc/ovn`.
pub fn ovn_sysconfdir() -> PathBuf {
    dir("OVN_SYSCONFDIR", "/etc").join("ovn")
}

/// `$OVS_DBDIR`, by default the configuration directory.
pub fn ovs_dbdir() -> PathBuf {
    match std::env::var_os("OVS_DBDIR") {
        Some(d) if !d.is_empty() => PathBuf::from(d),
        _ => ovs_sysconfdir(),
    }
}

/// `$OVN_DBDIR`, by default `/var/lib/ovn`.
pub fn ovn_dbdir() -> PathBuf {
    dir("OVN_DBDIR", "/var/lib/ovn")
}

/// `$OVS_PKGDATADIR`, by default `/usr/share/openvswitch`: schemas.
pub fn ovs_pkgdatadir() -> PathBuf {
    dir("OVS_PKGDATADIR", "/usr/share/openvswitch")
}

/// `$OVN_PKGDATADIR`, by default `/usr/share/ovn`: schemas.
pub fn ovn_pkgdatadir() -> PathBuf {
    dir("OVN_PKGDATADIR", "/usr/share/ovn")
}

impl Family {
    /// The directory of control sockets.
    pub fn rundir(self) -> PathBuf {
        match self {
            Family::Ovs => ovs_rundir(),
            Family::Ovn => ovn_rundir(),
        }
    }

    /// The directory of logs.
    pub fn logdir(self) -> PathBuf {
        match self {
            Family::Ovs => ovs_logdir(),
            Family::Ovn => ovn_logdir(),
        }
    }
}

/// The default remote of the OVN northbound database: `$OVN_NB_DB` or its socket in the run directory.
pub fn default_nb_db() -> String {
    remote("OVN_NB_DB", &ovn_rundir().join("ovnnb_db.sock"))
}

/// The default remote of the OVN southbound database: `$OVN_SB_DB` or its socket in the run directory.
pub fn default_sb_db() -> String {
    remote("OVN_SB_DB", &ovn_rundir().join("ovnsb_db.sock"))
}

/// The default remote of the interconnection northbound database: `$OVN_IC_NB_DB` or its socket in the run directory.
pub fn default_ic_nb_db() -> String {
    remote("OVN_IC_NB_DB", &ovn_rundir().join("ovn_ic_nb_db.sock"))
}

/// The default remote of the interconnection southbound database: `$OVN_IC_SB_DB` or its socket in the run directory.
pub fn default_ic_sb_db() -> String {
    remote("OVN_IC_SB_DB", &ovn_rundir().join("ovn_ic_sb_db.sock"))
}

/// The default remote of the Open_vSwitch database.
pub fn default_ovs_db() -> String {
    format!("unix:{}", ovs_rundir().join("db.sock").display())
}

fn remote(variable: &str, socket: &Path) -> String {
    std::env::var(variable).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| format!("unix:{}", socket.display()))
}

/// The program's name: the last part of `argv[0]`.
pub fn program_name() -> String {
    let arg0 = std::env::args_os().next().unwrap_or_default();
    Path::new(&arg0).file_name().map_or_else(|| "isthmus".to_string(), |n| n.to_string_lossy().into_owned())
}
