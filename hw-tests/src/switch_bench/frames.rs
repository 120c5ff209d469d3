//! The packets of the measurements, and files of them in libpcap's format.

use anyhow::{Context, Result, bail};
use packet::gre::Gre;
use packet::tunnel::{GENEVE_PORT, Geneve, VXLAN_PORT, Vxlan, VxlanPayload};
use packet::{Headers, Mac, Vni, build, ipproto};
use std::io::{BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Bytes of a frame around a UDP payload.
const AROUND: usize = 42;
/// The number of ESP among IP's protocols (RFC 4303 section 2).
const ESP: u8 = 50;
/// Simple IMIX: sizes of twelve frames in turn. The largest leaves room for a tunnel's headers.
const IMIX: [usize; 12] = [64, 64, 570, 64, 64, 570, 64, 1400, 64, 570, 64, 570];

/// What frames carry; UDP in frames of 64 bytes where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// 64 bytes each.
    Small,
    /// A mix of sizes.
    Imix,
    /// Datagrams in two fragments each, one behind the other.
    Halves,
    /// A datagram of each flow and [`ERRORS`] ICMP errors about what came the other way.
    Errors,
    /// UDP of addresses of IPv6, which stand for those of IPv4 ([`v6`]): 84 bytes.
    V6,
    /// UDP with a wrong checksum.
    Broken,
    /// UDP whose length is wrong.
    Malformed,
    /// TCP segments that acknowledge.
    Tcp,
    /// TCP answers to what nobody asked.
    Stray,
    /// ESP, which has no ports.
    Esp,
    /// SCTP with a chunk of data (RFC 9260 section 3.3.1).
    Sctp,
    /// Requests of ARP, each for another address.
    Arp,
    /// ICMP echoes out, replies back; the identifier is the port of their sender.
    Echo,
}

/// ICMP errors for each datagram: their types and codes (RFC 792).
const ERRORS: [(u8, u8); 7] = [(3, 0), (3, 1), (3, 3), (3, 10), (3, 13), (11, 0), (11, 1)];

/// Bytes of a datagram in its first fragment: Open vSwitch takes none below 1,200 bytes unless it is the last
/// (`ipf-set-min-frag`). A multiple of 8 (RFC 791).
const FIRST: usize = 1208;

impl Content {
    fn size(self, n: usize) -> usize {
        match self {
            Content::V6 => 84,
            Content::Imix => IMIX[n % IMIX.len()],
            Content::Halves => AROUND + FIRST + 192,
            _ => 64,
        }
    }

    /// How many frames a packet is in.
    pub fn frames(self) -> usize {
        match self {
            Content::Halves => 2,
            Content::Errors => 1 + ERRORS.len(),
            _ => 1,
        }
    }
}

/// A fragment of a datagram in an untagged frame, by its place.
fn fragment(p: &[u8], id: u16, second: bool) -> Vec<u8> {
    const HEADERS: usize = 34;
    let (headers, datagram) = p.split_at(HEADERS);
    let (first, rest) = datagram.split_at(FIRST);
    // More fragments, or the offset in words of eight bytes (RFC 791 section 3.1).
    let (part, place) = if second { (rest, FIRST as u16 / 8) } else { (first, 0x2000) };
    let mut p = [headers, part].concat();
    p[16..18].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
    p[18..20].copy_from_slice(&id.to_be_bytes());
    p[20..22].copy_from_slice(&place.to_be_bytes());
    packet::checksum::set_ipv4(&mut p, 14);
    p
}

/// Two ends of a UDP flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Ethernet source and destination.
    pub macs: (Mac, Mac),
    /// Sender.
    pub from: (Ipv4Addr, u16),
    /// Receiver.
    pub to: (Ipv4Addr, u16),
    /// VLAN.
    pub vlan: Option<u16>,
    /// An ICMP echo of this flow asks; else it answers.
    pub asks: bool,
}

/// The address of IPv6 that stands for one of IPv4: hosts of one /24 are of one /64.
pub fn v6(ip: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = ip.octets();
    Ipv6Addr::new(0xfd00, u16::from_be_bytes([a, b]), c.into(), 0, 0, 0, 0, d.into())
}

/// Frame number `n` of a flow.
///
/// # Errors
/// Never: both ends are of one family.
pub fn frame(f: &Flow, content: Content, n: usize) -> Result<Vec<u8>> {
    let address = |ip: Ipv4Addr| if content == Content::V6 { IpAddr::from(v6(ip)) } else { ip.into() };
    let (from, to) = ((address(f.from.0), f.from.1), (address(f.to.0), f.to.1));
    let around = if content == Content::V6 { AROUND + 20 } else { AROUND };
    let payload = vec![0; content.size(n) - around];
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    let other = |proto, header: &[u8]| {
        let rest = vec![0; content.size(n) - 34 - header.len()];
        build::ip_packet(f.macs.1, f.macs.0, from.0, to.0, proto, 64, &[header, &rest].concat())
    };
    let made = match content {
        // Sequence and acknowledgement 1, no options, ACK or SYN and ACK, a window of 8,192 bytes (RFC 9293 section 3.1).
        Content::Tcp | Content::Stray => {
            let flags = if content == Content::Stray { 0x12 } else { 0x10 };
            other(ipproto::TCP, &[&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]].concat())
        }
        Content::Esp => other(ESP, &[]),
        // A tag, a checksum, which is written below, and the first chunk.
        Content::Sctp => {
            other(ipproto::SCTP, &[&ports[..], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0, 18, 0, 0, 0, 1]].concat())
        }
        Content::Arp => Some(build::arp_request(f.macs.0, f.from.0, Ipv4Addr::from(u32::from(f.to.0) + n as u32))),
        Content::Echo => {
            let (kind, id) = if f.asks { (8, from.1) } else { (0, to.1) };
            other(ipproto::ICMP, &[&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1]].concat())
        }
        _ => build::udp(f.macs.1, f.macs.0, from, to, 64, &payload),
    };
    let error =
        (n % content.frames()).checked_sub(1).and_then(|n| ERRORS.get(n)).filter(|_| content == Content::Errors);
    let mut p = match error {
        None => made.context("a packet")?,
        Some((kind, code)) => {
            let about = build::udp(f.macs.0, f.macs.1, to, from, 63, &payload).context("a UDP packet")?;
            build::icmp_error(&about, f.macs.0, from.0, *kind, *code, 0).context("an ICMP error")?
        }
    };
    if content == Content::Sctp
        && let Some(h) = Headers::parse(&p)
    {
        packet::checksum::set_l4(&mut p, &h);
    }
    if content == Content::Malformed {
        p[38..40].copy_from_slice(&[9, 9]);
    }
    if content == Content::Broken {
        // The checksum of UDP, which is not 0.
        p[40..42].copy_from_slice(&[0x12, 0x34]);
    }
    if content == Content::Halves {
        p = fragment(&p, (n / 2) as u16 + 1, n % 2 == 1);
    }
    if let Some(v) = f.vlan {
        p.splice(12..12, [0x81, 0].into_iter().chain(v.to_be_bytes()));
    }
    Ok(p)
}

/// The tunnel between two chassis, and what it says of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel {
    /// Ethernet source and destination.
    pub macs: (Mac, Mac),
    /// Addresses of sender and receiver.
    pub ips: (IpAddr, IpAddr),
    /// The datapath's key.
    pub vni: Vni,
    /// Keys of the logical ports of ingress and egress, where it is OVN's.
    pub ports: Option<(u32, u32)>,
}

/// A frame in OVN's Geneve encapsulation (ovn-architecture(7), "Tunnel Encapsulations").
///
/// # Errors
/// Where the addresses are of two families.
pub fn geneve(t: &Tunnel, inner: &[u8], n: usize) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    let option = |(from, to): (u32, u32)| (0x0102, 0x80, (from << 16 | to).to_be_bytes().to_vec());
    let options: Vec<_> = t.ports.map(option).into_iter().collect();
    Geneve::put(&mut payload, t.vni, false, &options);
    payload.extend_from_slice(inner);
    let p = build::udp(t.macs.1, t.macs.0, (t.ips.0, source(n)), (t.ips.1, GENEVE_PORT), 64, &payload);
    p.context("a UDP packet")
}

/// The tunnel's source port of a flow.
fn source(n: usize) -> u16 {
    49_152 + (n % 16_384) as u16
}

/// A frame in VXLAN (RFC 7348 section 5), between two machines by their Ethernet and IP addresses.
///
/// # Errors
/// Where the addresses are of two families.
pub fn vxlan(macs: (Mac, Mac), ips: (IpAddr, IpAddr), vni: Vni, inner: &[u8], n: usize) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    Vxlan { vni, gpe: false, payload: VxlanPayload::Ethernet, policy: None }.put(&mut payload);
    payload.extend_from_slice(inner);
    let p = build::udp(macs.1, macs.0, (ips.0, source(n)), (ips.1, VXLAN_PORT), 64, &payload);
    p.context("a UDP packet")
}

/// A frame in GRE with a key (RFC 2890), between two machines by their Ethernet and IPv4 addresses.
///
/// # Errors
/// Never for IPv4 tunnels.
pub fn gre((from, to): ((Mac, Ipv4Addr), (Mac, Ipv4Addr)), key: u32, inner: &[u8]) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    Gre { protocol: packet::gre::ETHERNET, key: Some(key), ..Gre::default() }.put(&mut payload, &[inner]);
    let p = build::ip_packet(to.0, from.0, from.1.into(), to.1.into(), packet::ipproto::GRE, 64, &payload);
    p.context("a GRE packet")
}

/// Writes a file.
///
/// # Errors
/// The file system's.
pub fn write(file: &Path, frames: impl IntoIterator<Item = Result<Vec<u8>>>) -> Result<()> {
    let mut f = BufWriter::new(std::fs::File::create(file).with_context(|| file.display().to_string())?);
    for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
        f.write_all(&word.to_le_bytes())?;
    }
    for p in frames {
        let p = p?;
        for word in [0, 0, p.len() as u32, p.len() as u32] {
            f.write_all(&word.to_le_bytes())?;
        }
        f.write_all(&p)?;
    }
    Ok(f.flush()?)
}

/// Reads a file that was written on this machine.
///
/// # Errors
/// It is cut, or no such file.
pub fn read(file: &Path) -> Result<Vec<Vec<u8>>> {
    let all = std::fs::read(file).with_context(|| file.display().to_string())?;
    let Some(mut rest) = all.get(24..) else { bail!("{}: no header", file.display()) };
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<16>() {
        let n = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let Some(p) = after.get(..n) else { bail!("{}: cut", file.display()) };
        frames.push(p.to_vec());
        rest = &after[n..];
    }
    Ok(frames)
}

/// The frame in a Geneve packet.
fn inner(frame: &[u8]) -> Option<&[u8]> {
    let payload = frame.get(Headers::parse(frame)?.l4? + 8..)?;
    payload.get(Geneve::parse(payload)?.len..)
}

/// Whether a frame, or the one in its tunnel, is a packet as [`frame`] makes them: switches also send packets of their
/// own.
pub fn is_traffic(frame: &[u8]) -> bool {
    let Some(h) = Headers::parse(frame) else { return false };
    let h = match h.ports(frame) {
        Some((_, GENEVE_PORT)) => inner(frame).and_then(Headers::parse),
        _ => Some(h),
    };
    let answers = frame.get(12..14) == Some(&[8, 6]) && frame.get(21) == Some(&2);
    answers || h.is_some_and(|h| matches!(h.proto, ipproto::UDP | ipproto::ICMP | ipproto::TCP | ipproto::SCTP | ESP))
}

/// A frame without what each switch may choose: a tunnel's source port (RFC 8926 section 3.3), the identification of an
/// outer header, and the checksums over them. Where the next hop has `several` Ethernet addresses, also which of them
/// it takes: Open vSwitch learns them from received tunnel packets as well.
pub fn comparable(frame: &[u8], several: bool) -> Vec<u8> {
    let mut p = frame.to_vec();
    let Some(h) = Headers::parse(&p) else { return p };
    let (Some(l4), Some((_, GENEVE_PORT | VXLAN_PORT))) = (h.l4, h.ports(&p)) else { return p };
    let of_ipv4 = [h.l3 + 4, h.l3 + 10].into_iter().filter(|_| p[12..14] == [8, 0]);
    for at in of_ipv4.chain([l4, l4 + 6]).collect::<Vec<_>>() {
        p[at..at + 2].fill(0);
    }
    if several {
        p[..6].fill(0);
    }
    p
}

/// Who sent what is in a Geneve packet, of whose receivers each switch chooses one: address and port. Other packets as they
/// are.
pub fn inner_source(frame: &[u8]) -> Vec<u8> {
    let sender = inner(frame).and_then(|frame| {
        let h = Headers::parse(frame)?;
        let ((source, _), (port, _)) = (h.addresses(frame)?, h.ports(frame)?);
        Some([&source.to_be_bytes()[..], &port.to_be_bytes()].concat())
    });
    sender.unwrap_or_else(|| frame.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back() {
        let dir = tempfile::tempdir().expect("directory");
        let flow = Flow {
            macs: (Mac([2; 6]), Mac([4; 6])),
            from: (Ipv4Addr::new(10, 0, 0, 1), 1),
            to: (Ipv4Addr::new(10, 0, 0, 2), 2),
            vlan: Some(7),
            asks: true,
        };
        let frames: Vec<Vec<u8>> = (0..12).map(|n| frame(&flow, Content::Imix, n).expect("frame")).collect();
        let file = dir.path().join("x.pcap");
        write(&file, frames.iter().cloned().map(Ok)).expect("write");
        assert_eq!(read(&file).expect("read"), frames);
        assert_eq!(frames[7].len(), 1404);
    }

    #[test]
    fn the_source_port_of_a_tunnel_does_not_count_and_its_content_does() {
        let t = Tunnel {
            macs: (Mac([2; 6]), Mac([4; 6])),
            ips: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
            vni: Vni::of_low_bits(3),
            ports: Some((1, 2)),
        };
        let frame = |n, vni| {
            comparable(&geneve(&Tunnel { vni: Vni::of_low_bits(vni), ..t }, &[7; 60], n).expect("frame"), false)
        };
        assert_eq!(frame(1, 3), frame(2, 3));
        assert_ne!(frame(1, 3), frame(1, 4));
    }
}
