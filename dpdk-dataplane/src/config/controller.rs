//! Controllers: connections that a bridge makes or waits for (`Controller`).

use super::number;
use ovn_schema::{Str, Uuid, options, ovs};
use ovsdb_rs::stream::{DEFAULT_DSCP, DEFAULT_PORT};
use ovsdb_rs::tls::TlsFiles;
use std::net::SocketAddrV4;
use std::time::Duration;

/// OpenFlow's TCP port.
pub const OPENFLOW_PORT: u16 = 6653;

/// A controller to which the switch connects, or for which it listens.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerSpec {
    /// The row.
    pub uuid: Uuid,
    /// Connection method.
    pub target: String,
    /// It only looks and asks (`type`, or else that the switch listens for it): the bridge does not wait for it.
    pub service: bool,
    /// It gets asynchronous messages without asking for them.
    pub async_messages: bool,
    /// `inactivity_probe`: silence after which it is probed; zero: never.
    pub probe: Duration,
    /// `inactivity_probe` as it is set, in whole seconds: the bridge waits for three of these before it fails open.
    pub interval: Duration,
    /// The longest time between two attempts.
    pub max_backoff: Duration,
    /// `controller_rate_limit`; none: no limit.
    pub limit: Option<PacketInLimit>,
    /// `other_config:dscp`: the code point of its packets.
    pub dscp: u8,
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
    let listens = ["ptcp:", "pssl:", "punix:"].iter().any(|p| c.target.starts_with(p));
    let service = match c.r#type.as_deref() {
        Some(kind) => kind != "primary",
        None => listens,
    };
    let interval = match c.inactivity_probe.unwrap_or(5000) {
        0 => Duration::ZERO,
        n => Duration::from_secs((n / 1000).max(1).cast_unsigned()),
    };
    ControllerSpec {
        uuid,
        target: c.target.to_string(),
        service,
        async_messages: !service && c.enable_async_messages != Some(false),
        // Five seconds at least, as in Open vSwitch.
        probe: if interval.is_zero() { interval } else { interval.max(Duration::from_secs(5)) },
        interval,
        max_backoff: ms(c.max_backoff, 8000),
        limit: c.controller_rate_limit.and_then(|n| u32::try_from(n).ok()).map(|rate| PacketInLimit {
            rate,
            burst: c.controller_burst_limit.and_then(|n| u32::try_from(n).ok()).unwrap_or(rate / 4).max(25),
        }),
        dscp: number(&c.other_config, "dscp").ok().flatten().filter(|n| *n < 64).unwrap_or(DEFAULT_DSCP),
        tls: ssl.map(|s| tls_files(s)),
    }
}

/// In-band control of a bridge: whom its hosts reach whatever its flows say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InBandSpec {
    /// Controllers and managers.
    pub remotes: Vec<SocketAddrV4>,
    /// `other_config:in-band-queue`.
    pub queue: Option<u32>,
}

/// The controllers of a bridge and the managers to which connections are made over IPv4, but for those of mode
/// `out-of-band`; managers not by the loopback device.
pub(super) fn in_band(db: &ovs::Database, b: &ovs::Bridge) -> InBandSpec {
    if options::bool(&b.other_config, "disable-in-band", false) {
        return InBandSpec::default();
    }
    let within = |mode: &Option<Str>| mode.as_deref() != Some("out-of-band");
    let controllers = b.controller.iter().filter_map(|id| db.controller.get(id)).filter(|c| within(&c.connection_mode));
    let controllers = controllers.filter_map(|c| remote(&c.target, OPENFLOW_PORT));
    let managers = db.open_vswitch.values().flat_map(|r| r.manager_options.iter()).filter_map(|id| db.manager.get(id));
    let managers = managers.filter(|m| within(&m.connection_mode)).filter_map(|m| remote(&m.target, DEFAULT_PORT));
    let mut remotes: Vec<SocketAddrV4> = controllers.chain(managers.filter(|a| !a.ip().is_loopback())).collect();
    remotes.sort_unstable();
    remotes.dedup();
    InBandSpec { remotes, queue: number(&b.other_config, "in-band-queue").ok().flatten() }
}

/// The address of an active connection method; none if it is no number of IPv4.
fn remote(target: &str, port: u16) -> Option<SocketAddrV4> {
    let (_, address) = target.split_once(':').filter(|(method, _)| matches!(*method, "tcp" | "ssl"))?;
    address.parse().ok().or_else(|| Some(SocketAddrV4::new(address.parse().ok()?, port)))
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
