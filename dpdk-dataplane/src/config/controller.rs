//! Controllers: connections that a bridge makes or waits for (`Controller`).

use ovn_schema::{Uuid, ovs};
use ovsdb_rs::tls::TlsFiles;
use std::time::Duration;

/// A controller to which the switch connects, or for which it listens.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerSpec {
    /// The row.
    pub uuid: Uuid,
    /// Connection method.
    pub target: String,
    /// It gets asynchronous messages without asking for them.
    pub primary: bool,
    /// `inactivity_probe`: silence after which it is probed; zero: never.
    pub probe: Duration,
    /// The longest time between two attempts.
    pub max_backoff: Duration,
    /// `controller_rate_limit`; none: no limit.
    pub limit: Option<PacketInLimit>,
    /// Key and certificates for `ssl:`.
    pub tls: Option<TlsFiles>,
}

/// A limit of packet-ins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInLimit {
    /// Packets a second.
    pub rate: u32,
    /// The most packets in a burst, and the most that wait.
    pub burst: u32,
}

pub(super) fn controller(db: &ovs::Database, uuid: Uuid, c: &ovs::Controller) -> ControllerSpec {
    let ms = |v: Option<i64>, default| Duration::from_millis(v.and_then(|v| u64::try_from(v).ok()).unwrap_or(default));
    let ssl = db.open_vswitch.values().next().and_then(|r| db.ssl.get(&r.ssl?));
    ControllerSpec {
        uuid,
        target: c.target.to_string(),
        primary: c.r#type.as_deref() != Some("service") && c.enable_async_messages != Some(false),
        probe: ms(c.inactivity_probe, 5000),
        max_backoff: ms(c.max_backoff, 8000),
        limit: c.controller_rate_limit.and_then(|n| u32::try_from(n).ok()).map(|rate| PacketInLimit {
            rate,
            burst: c.controller_burst_limit.and_then(|n| u32::try_from(n).ok()).unwrap_or(rate / 4).max(25),
        }),
        tls: ssl.map(|s| tls_files(s)),
    }
}

/// Key and certificates of the `SSL` row.
pub(super) fn tls_files(s: &ovs::Ssl) -> TlsFiles {
    TlsFiles {
        private_key: (&*s.private_key).into(),
        certificate: (&*s.certificate).into(),
        ca_cert: Some((&*s.ca_cert).into()),
        bootstrap: s.bootstrap_ca_cert,
    }
}
