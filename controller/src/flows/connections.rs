//! Connections that the switch is to forget when what they belong to goes.

use openflow_rs::message::{CtFlush, CtTuple};
use std::fmt;
use std::net::IpAddr;

/// The connections to one backend of a service whose load balancer asks for `options:ct_flush` (ovn-nb(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connections {
    /// The service's address and port; the port is 0 where all ports are served.
    pub vip: (IpAddr, u16),
    /// The backend's.
    pub backend: (IpAddr, u16),
    /// The IP protocol; 0 where all ports are served.
    pub protocol: u8,
}

impl Connections {
    /// What tells the switch to forget them, in all zones.
    pub fn flush(&self) -> CtFlush {
        let port = |p: u16| (p != 0).then_some(p);
        CtFlush {
            proto: self.protocol,
            original: CtTuple { dst: Some(self.vip.0), dst_port: port(self.vip.1), ..CtTuple::default() },
            reply: CtTuple { src: Some(self.backend.0), src_port: port(self.backend.1), ..CtTuple::default() },
            ..CtFlush::default()
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((vip, vip_port), (backend, port)) = (self.vip, self.backend);
        write!(f, "vip={vip}:{vip_port}, backend={backend}:{port}, protocol={}", self.protocol)
    }
}
