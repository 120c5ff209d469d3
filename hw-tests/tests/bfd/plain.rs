//! Control packets in UDP, as on a link (RFC 5881) or over routers (RFC 5883), IPv4 and IPv6.

use crate::speaker::{Heard, Wire};
use anyhow::{Context, Result};
use bfd_rs::{MULTI_HOP_PORT, Outgoing, Path, SINGLE_HOP_PORT};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

pub struct Plain {
    receivers: Vec<(UdpSocket, u16)>,
    senders: BTreeMap<(SocketAddr, Option<u32>), UdpSocket>,
}

impl Plain {
    /// Listens on both ports in both families.
    pub fn open() -> Result<Plain> {
        let mut receivers = Vec::new();
        for port in [SINGLE_HOP_PORT, MULTI_HOP_PORT] {
            let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            setsockopt(&v4, sockopt::Ipv4PacketInfo, &true)?;
            setsockopt(&v4, sockopt::Ipv4RecvTtl, &true)?;
            let v6 = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
            v6.set_only_v6(true)?;
            v6.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
            setsockopt(&v6, sockopt::Ipv6RecvPacketInfo, &true)?;
            setsockopt(&v6, sockopt::Ipv6RecvHopLimit, &true)?;
            for s in [v4, v6.into()] {
                s.set_nonblocking(true)?;
                receivers.push((s, port));
            }
        }
        Ok(Plain { receivers, senders: BTreeMap::new() })
    }
}

fn interface_name(index: u32) -> Result<String> {
    let name = nix::net::if_::if_nameindex()?;
    let found = name.iter().find(|i| i.index() == index).with_context(|| format!("interface {index}"))?;
    Ok(found.name().to_string_lossy().into_owned())
}

fn sender(p: &Outgoing, from: SocketAddr) -> Result<UdpSocket> {
    let s = Socket::new(Domain::for_address(from), Type::DGRAM, Some(Protocol::UDP))?;
    if let Path::SingleHop(interface) = p.ends.path {
        s.bind_device(Some(interface_name(interface)?.as_bytes()))?;
    }
    if from.is_ipv4() {
        s.set_ttl_v4(255)?
    } else {
        s.set_unicast_hops_v6(255)?
    }
    s.bind(&from.into())?;
    Ok(s.into())
}

fn one(s: &UdpSocket, port: u16) -> Result<Option<Heard>> {
    let mut bytes = [0; 256];
    let mut control = nix::cmsg_space!(nix::libc::in_pktinfo, nix::libc::in6_pktinfo, i32);
    let (n, source, mut h) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let m = match recvmsg::<SockaddrStorage>(s.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty()) {
            Ok(m) => m,
            Err(nix::errno::Errno::EAGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let mut h = Heard { source: none, destination: none, port, interface: 0, ttl: 0, payload: Vec::new() };
        for c in m.cmsgs()? {
            match c {
                ControlMessageOwned::Ipv4PacketInfo(i) => {
                    h.destination = Ipv4Addr::from(u32::from_be(i.ipi_addr.s_addr)).into();
                    h.interface = i.ipi_ifindex as u32;
                }
                ControlMessageOwned::Ipv6PacketInfo(i) => {
                    h.destination = Ipv6Addr::from(i.ipi6_addr.s6_addr).into();
                    h.interface = i.ipi6_ifindex;
                }
                ControlMessageOwned::Ipv4Ttl(t) | ControlMessageOwned::Ipv6HopLimit(t) => h.ttl = t as u8,
                _ => {}
            }
        }
        (m.bytes, m.address, h)
    };
    let source = source.context("a datagram without a sender")?;
    h.source = match (source.as_sockaddr_in(), source.as_sockaddr_in6()) {
        (Some(a), _) => a.ip().into(),
        (_, Some(a)) => a.ip().into(),
        _ => return Ok(None),
    };
    h.payload = bytes[..n].to_vec();
    Ok(Some(h))
}

impl Wire for Plain {
    fn send(&mut self, p: &Outgoing) -> Result<()> {
        let from = SocketAddr::new(p.ends.local, p.source_port);
        let interface = if let Path::SingleHop(i) = p.ends.path { Some(i) } else { None };
        let s = match self.senders.entry((from, interface)) {
            std::collections::btree_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::btree_map::Entry::Vacant(e) => e.insert(sender(p, from)?),
        };
        // A peer that does not listen yet answers with ICMP errors, which come up here.
        let _ = s.send_to(&p.packet.to_bytes(), SocketAddr::new(p.ends.remote, p.ends.path.port()));
        Ok(())
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Heard>> {
        let mut fds: Vec<PollFd<'_>> =
            self.receivers.iter().map(|(s, _)| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(wait.as_millis().max(1)).unwrap_or(PollTimeout::ZERO);
        poll(&mut fds, timeout)?;
        let mut out = Vec::new();
        for (s, port) in &self.receivers {
            while let Some(h) = one(s, *port)? {
                out.push(h);
            }
        }
        Ok(out)
    }
}
