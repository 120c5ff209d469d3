//! Control packets in Geneve tunnels as Open vSwitch sends them (ovs-vswitchd.conf.db(5), Interface `bfd`): each of our
//! addresses is the end of one tunnel.

use crate::speaker::{Heard, Wire};
use anyhow::{Context, Result};
use bfd_rs::{Outgoing, Path};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use packet::{Headers, build};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

/// RFC 8926 section 3.3.
const PORT: u16 = 6081;
/// Without options, Ethernet inside, network 0 (RFC 8926 section 3.4).
const HEADER: [u8; 8] = [0, 0, 0x65, 0x58, 0, 0, 0, 0];

pub struct Geneve {
    /// By the tunnel's number, from 1; a session's interface is the number.
    tunnels: Vec<UdpSocket>,
    peer: Ipv4Addr,
}

impl Geneve {
    pub fn open(addresses: &[Ipv4Addr], peer: Ipv4Addr) -> Result<Geneve> {
        let open = |a: &Ipv4Addr| -> Result<UdpSocket> {
            let s = UdpSocket::bind((*a, PORT)).with_context(|| a.to_string())?;
            s.set_nonblocking(true)?;
            Ok(s)
        };
        Ok(Geneve { tunnels: addresses.iter().map(open).collect::<Result<_>>()?, peer })
    }
}

fn inner(bytes: &[u8], tunnel: u32) -> Option<Heard> {
    let (header, frame) = bytes.split_at_checked(8)?;
    let options = usize::from(header[0] & 0x3f) * 4;
    let frame = frame.get(options..)?;
    let h = Headers::parse(frame)?;
    let (_, port) = h.ports(frame)?;
    let address = |at: usize| -> Option<IpAddr> {
        let b: [u8; 4] = frame.get(h.l3 + at..h.l3 + at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(b).into())
    };
    Some(Heard {
        source: address(12)?,
        destination: address(16)?,
        port,
        interface: tunnel,
        ttl: *frame.get(h.l3 + 8)?,
        payload: frame.get(h.payload..h.l3_end)?.to_vec(),
    })
}

impl Wire for Geneve {
    fn send(&mut self, p: &Outgoing) -> Result<()> {
        let Path::SingleHop(tunnel) = p.ends.path else { return Ok(()) };
        let s = self.tunnels.get(tunnel as usize - 1).context("a tunnel")?;
        let (to, from) = ([0, 0x23, 0x20, 0, 0, 1], [2, 0, 0, 0, 1, tunnel as u8]);
        let ends = ((p.ends.local, p.source_port), (p.ends.remote, p.ends.path.port()));
        let frame = build::udp(packet::Mac(to), packet::Mac(from), ends.0, ends.1, 255, &p.packet.to_bytes())
            .context("a frame")?;
        let _ = s.send_to(&[&HEADER[..], &frame].concat(), SocketAddr::from((self.peer, PORT)));
        Ok(())
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Heard>> {
        let mut fds: Vec<PollFd<'_>> = self.tunnels.iter().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::try_from(wait.as_millis().max(1)).unwrap_or(PollTimeout::ZERO))?;
        let mut out = Vec::new();
        let mut bytes = [0; 2048];
        for (n, s) in self.tunnels.iter().enumerate() {
            while let Ok(length) = s.recv(&mut bytes) {
                out.extend(bytes.get(..length).and_then(|b| inner(b, n as u32 + 1)));
            }
        }
        Ok(out)
    }
}
