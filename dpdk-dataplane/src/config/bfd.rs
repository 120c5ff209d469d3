//! BFD: what column `bfd` of an `Interface` asks for (ovs-vswitchd.conf.db(5)).

use super::{get, number};
use bfd_rs::Config;
use ovn_schema::{Map, Str, options};
use packet::Mac;
use std::net::Ipv4Addr;
use switch::BfdPackets;

/// A BFD session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdSpec {
    /// Times, multiplier, `cpath_down`.
    pub session: Config,
    /// `bfd_local_src_mac`, or the bridge's address.
    pub local_src: Mac,
    /// `bfd_local_dst_mac`: the destination of our packets.
    pub local_dst: Mac,
    /// `bfd_remote_dst_mac`: the destination that packets for us must have; none: any.
    pub remote_dst: Option<Mac>,
    /// `bfd_src_ip`.
    pub src_ip: Ipv4Addr,
    /// `bfd_dst_ip`.
    pub dst_ip: Ipv4Addr,
    /// `decay_min_rx`, in microseconds; none: off.
    pub decay: Option<u32>,
    /// `forwarding_if_rx`.
    pub forwarding_if_rx: bool,
    /// `check_tnl_key`: only packets with tunnel key 0 are for us.
    pub check_key: bool,
    /// The session stays in AdminDown until the bridge's tables are in place: peers of a tunnel send packets as soon as
    /// it is up. Sessions of other ports speak for their link alone.
    pub waits: bool,
    /// `oam`: our packets get the OAM flag of the tunnel's header, where it has one.
    pub oam: bool,
}

/// The default of `bfd_src_ip` (ovs-vswitchd.conf.db(5)). Peers with defaults send to another address.
pub const SOURCE: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

impl BfdSpec {
    /// Which packets are for the session.
    pub fn packets(&self) -> BfdPackets {
        BfdPackets {
            eth_dst: self.remote_dst,
            ip_dst: Some(self.src_ip).filter(|a| *a != SOURCE),
            no_key: self.check_key,
        }
    }
}

/// An interface's BFD, if it is enabled; `src` is the interface's address, `waits` as in [`BfdSpec`].
pub(super) fn bfd(name: &str, c: &Map<Str, Str>, src: Mac, waits: bool) -> Option<BfdSpec> {
    if !options::flag(c, "enable") {
        return None;
    }
    let ms = |key, default: u32| {
        number::<u32>(c, key).ok().flatten().filter(|v| *v > 0).unwrap_or(default).saturating_mul(1000)
    };
    let mac = |key| get(c, key).and_then(|m| m.parse::<Mac>().ok()).filter(|m| *m != Mac::ZERO);
    let ip = |key, default| get(c, key).and_then(|v| v.parse().ok()).unwrap_or(default);
    let flag = |key| options::flag(c, key);
    let min_rx = ms("min_rx", 1000);
    let decay = number::<u32>(c, "decay_min_rx").ok().flatten().filter(|v| *v > 0).map(|v| v.saturating_mul(1000));
    if decay.is_some_and(|d| d < min_rx) {
        tracing::warn!(target: "bfd", "{name}: decay_min_rx cannot be less than {} ms", min_rx / 1000);
    }
    Some(BfdSpec {
        session: Config {
            desired_min_tx: ms("min_tx", 100),
            required_min_rx: min_rx,
            detect_mult: number(c, "mult").ok().flatten().filter(|m| *m > 0).unwrap_or(3),
            admin_down: false,
            control_plane_independent: false,
            concatenated_path_down: flag("cpath_down"),
            // A tunnel is one hop, and failover takes the time that the intervals promise.
            congestion_control: false,
        },
        local_src: mac("bfd_local_src_mac").unwrap_or(src),
        local_dst: mac("bfd_local_dst_mac").unwrap_or(Mac([0x00, 0x23, 0x20, 0, 0, 1])),
        remote_dst: mac("bfd_remote_dst_mac"),
        src_ip: ip("bfd_src_ip", SOURCE),
        dst_ip: ip("bfd_dst_ip", Ipv4Addr::new(169, 254, 1, 0)),
        decay: decay.filter(|d| *d >= min_rx),
        forwarding_if_rx: flag("forwarding_if_rx"),
        check_key: flag("check_tnl_key"),
        waits,
        oam: flag("oam"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn bfd_defaults_are_those_of_the_manual() {
        let b = bfd("tun", &map(&[("enable", "true"), ("min_rx", "200")]), Mac([2; 6]), true).expect("enabled");
        assert_eq!((b.session.desired_min_tx, b.session.required_min_rx, b.session.detect_mult), (100_000, 200_000, 3));
        assert_eq!((b.local_dst, b.remote_dst), (Mac([0, 0x23, 0x20, 0, 0, 1]), None));
        assert_eq!(b.src_ip, Ipv4Addr::new(169, 254, 1, 1));
        assert_eq!(bfd("tun", &map(&[("min_rx", "200")]), Mac([2; 6]), true), None);
        let asked = |on| bfd("tun", &map(&[("enable", on), ("cpath_down", on)]), Mac([2; 6]), true);
        assert!(asked("True").is_some_and(|b| b.session.concatenated_path_down) && asked("yes").is_none());
    }
}
