//! Multicast snooping (RFC 4541; ovs-vswitchd.conf.db(5), `mcast_snooping_enable`): which ports want which groups, and
//! behind which of them there are multicast routers. `NORMAL` heeds it.

use crate::bridge::{Bridge, Invalidation};
use openflow_rs::PortNo;
use packet::VlanId;
use packet::multicast::{Said, Version};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// How a bridge snoops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnoopingSettings {
    /// After so long without a report, or a query, a port is forgotten.
    pub idle: Duration,
    /// The most groups.
    pub limit: usize,
    /// Packets to groups that nobody asked for go to all ports.
    pub flood_unregistered: bool,
}

/// A port that asked for a group, or behind which a router is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The port; of a bond the one that stands for it.
    pub port: PortNo,
    /// When it last said so.
    pub seen: Duration,
}

#[derive(Clone, Debug)]
struct Group {
    version: Version,
    /// Grows with each report: the group with the least gives way where there is no room.
    used: u64,
    /// Who spoke last comes last.
    members: Vec<Member>,
}

/// What is known of a bridge's groups.
#[derive(Clone, Debug)]
pub struct Snooping {
    settings: SnoopingSettings,
    groups: BTreeMap<(VlanId, IpAddr), Group>,
    /// By VLAN; who asked last comes last.
    routers: Vec<(VlanId, Member)>,
    reports: u64,
    /// Ports that get all multicast packets, in the order in which they became such.
    pub(crate) flood: Vec<PortNo>,
    /// Ports that get all reports, likewise.
    pub(crate) flood_reports: Vec<PortNo>,
}

/// What came of something that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Heard {
    /// It is new: a group, a router, or that a port left its group.
    pub(crate) new: bool,
    /// Packets may go elsewhere now.
    pub(crate) changed: bool,
}

impl Snooping {
    fn new(settings: SnoopingSettings) -> Snooping {
        let (groups, routers) = (BTreeMap::new(), Vec::new());
        Snooping { settings, groups, routers, reports: 0, flood: Vec::new(), flood_reports: Vec::new() }
    }

    /// Takes note of what a port said in a VLAN.
    pub(crate) fn hear(&mut self, said: &Said, vlan: VlanId, port: PortNo, now: Duration) -> Heard {
        let member = Member { port, seen: now };
        match said {
            Said::Query => {
                let known = self.routers.iter().position(|(v, m)| (*v, m.port) == (vlan, port));
                known.map(|i| self.routers.remove(i));
                self.routers.push((vlan, member));
                Heard { new: known.is_none(), changed: known.is_none() }
            }
            Said::Join(address, version) => {
                let key = (vlan, *address);
                let new = !self.groups.contains_key(&key);
                if new && !self.make_room() {
                    return Heard::default();
                }
                self.reports += 1;
                let fresh = Group { version: *version, used: 0, members: Vec::new() };
                let g = self.groups.entry(key).or_insert(fresh);
                (g.version, g.used) = (*version, self.reports);
                let known = g.members.iter().position(|m| m.port == port);
                known.map(|i| g.members.remove(i));
                g.members.push(member);
                Heard { new, changed: known.is_none() }
            }
            // More than one host may be behind such a port: its groups end by their age.
            Said::Leave(_) if self.flood_reports.contains(&port) => Heard::default(),
            Said::Leave(address) => {
                let Some(g) = self.groups.get_mut(&(vlan, *address)) else { return Heard::default() };
                let before = g.members.len();
                g.members.retain(|m| m.port != port);
                let left = g.members.len() != before;
                if g.members.is_empty() {
                    self.groups.remove(&(vlan, *address));
                }
                Heard { new: left, changed: left }
            }
        }
    }

    /// The group whose last report is longest ago gives way. False: there may be no group.
    fn make_room(&mut self) -> bool {
        while self.groups.len() >= self.settings.limit {
            let Some(oldest) = self.groups.iter().min_by_key(|(_, g)| g.used).map(|(k, _)| *k) else { return false };
            self.groups.remove(&oldest);
        }
        true
    }

    /// The ports that want a group; none: nobody asked for it.
    pub(crate) fn members(&self, vlan: VlanId, group: IpAddr) -> Option<impl Iterator<Item = PortNo>> {
        self.groups.get(&(vlan, group)).map(|g| g.members.iter().map(|m| m.port))
    }

    /// The ports with routers behind them, with their VLANs.
    pub(crate) fn routers(&self) -> impl Iterator<Item = (VlanId, PortNo)> {
        self.routers.iter().map(|(v, m)| (*v, m.port))
    }

    pub(crate) fn floods_unregistered(&self) -> bool {
        self.settings.flood_unregistered
    }

    /// Keeps the members of groups (true) and routers (false) that `keep` wants. Whether there were others.
    fn retain(&mut self, keep: impl Fn(&Member) -> bool) -> bool {
        let count = |s: &Snooping| s.routers.len() + s.groups.values().map(|g| g.members.len()).sum::<usize>();
        let before = count(self);
        self.routers.retain(|(_, m)| keep(m));
        self.groups.values_mut().for_each(|g| g.members.retain(&keep));
        self.groups.retain(|_, g| !g.members.is_empty());
        before != count(self)
    }

    /// All ports of groups, in the order of their last reports: group, VLAN, protocol, port.
    pub fn groups(&self) -> Vec<(IpAddr, VlanId, Version, Member)> {
        let mut list: Vec<_> = self.groups.iter().collect();
        list.sort_by_key(|(_, g)| g.used);
        let of = |((vlan, address), g): (&(VlanId, IpAddr), &Group)| {
            let (vlan, address, version) = (*vlan, *address, g.version);
            g.members.iter().map(move |m| (address, vlan, version, *m)).collect::<Vec<_>>()
        };
        list.into_iter().flat_map(of).collect()
    }

    /// All ports with routers behind them, and their VLANs, in the order of the last queries.
    pub fn queriers(&self) -> &[(VlanId, Member)] {
        &self.routers
    }
}

impl Bridge {
    /// Starts, changes or ends snooping; what is known stays while it goes on. With it, these ports get all multicast
    /// packets, or all reports.
    pub fn set_snooping(&mut self, wanted: Option<SnoopingSettings>, flood: &[PortNo], reports: &[PortNo]) {
        let before = self.snooping.as_ref().map(|s| (s.settings, s.flood.clone(), s.flood_reports.clone()));
        let Some(settings) = wanted else {
            self.snooping = None;
            self.epoch += u64::from(before.is_some());
            return;
        };
        let s = self.snooping.get_or_insert_with(|| Snooping::new(settings));
        s.settings = settings;
        for (list, wanted) in [(&mut s.flood, flood), (&mut s.flood_reports, reports)] {
            list.retain(|p| wanted.contains(p));
            let new: Vec<PortNo> = wanted.iter().filter(|p| !list.contains(p)).copied().collect();
            list.extend(new);
        }
        let after = (s.settings, s.flood.clone(), s.flood_reports.clone());
        self.epoch += u64::from(before != Some(after));
    }

    /// What snooping knows; none: the bridge does not snoop.
    pub fn snooping(&self) -> Option<&Snooping> {
        self.snooping.as_ref()
    }

    /// Forgets what snooping knows.
    pub fn flush_snooping(&mut self) {
        self.forget_members(|_| true);
    }

    /// Forgets all learned addresses and groups, as they may be behind other ports after a change of the topology.
    /// Addresses that were put there by hand stay.
    pub fn forget_addresses(&mut self) {
        self.macs.flush();
        self.flush_snooping();
    }

    /// Forgets the addresses and groups that were learned from a port: it is gone, or its VLANs are others.
    pub fn forget_port(&mut self, port: PortNo) {
        self.macs.forget_port(port);
        self.forget_members(|m| m.port == port);
    }

    /// Forgets ports of groups that said nothing for too long.
    pub(crate) fn expire_groups(&mut self, now: Duration) {
        if let Some(idle) = self.snooping.as_ref().map(|s| s.settings.idle) {
            self.forget_members(|m| m.seen + idle <= now);
        }
    }

    fn forget_members(&mut self, which: impl Fn(&Member) -> bool) {
        if self.snooping.as_mut().is_some_and(|s| s.retain(|m| !which(m))) {
            self.touched.push(Invalidation::Multicast);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: SnoopingSettings =
        SnoopingSettings { idle: Duration::from_secs(300), limit: 3, flood_unregistered: true };

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn group(n: u8) -> IpAddr {
        IpAddr::from([239, 0, 0, n])
    }

    fn bridge() -> Bridge {
        let mut b = Bridge::new("br0", 1);
        b.set_snooping(Some(SETTINGS), &[], &[]);
        b
    }

    fn hear(b: &mut Bridge, said: &Said, vlan: u16, port: u16, now: u64) -> Heard {
        b.snooping.as_mut().map(|s| s.hear(said, VlanId::of_tci(vlan), PortNo(port), at(now))).unwrap_or_default()
    }

    fn members(b: &Bridge, vlan: u16, n: u8) -> Option<Vec<u16>> {
        Some(b.snooping.as_ref()?.members(VlanId::of_tci(vlan), group(n))?.map(|p| p.0).collect())
    }

    #[test]
    fn ports_join_leave_and_age() {
        let mut b = bridge();
        let join = |n| Said::Join(group(n), Version::Igmp2);
        assert_eq!(hear(&mut b, &join(1), 5, 1, 0), Heard { new: true, changed: true });
        assert_eq!(hear(&mut b, &join(1), 5, 2, 10), Heard { new: false, changed: true });
        assert_eq!(hear(&mut b, &join(1), 5, 1, 100), Heard { new: false, changed: false }, "a report again");
        assert_eq!((members(&b, 5, 1), members(&b, 6, 1)), (Some(vec![2, 1]), None), "groups belong to a VLAN");
        b.expire_groups(at(310));
        assert_eq!(members(&b, 5, 1), Some(vec![1]), "port 2 is silent for 300 s");
        assert!(hear(&mut b, &Said::Leave(group(1)), 5, 1, 311).changed);
        assert_eq!(members(&b, 5, 1), None, "the last one left");
        assert!(!hear(&mut b, &Said::Leave(group(1)), 5, 1, 311).new);
        b.set_snooping(Some(SETTINGS), &[], &[PortNo(1)]);
        hear(&mut b, &join(1), 5, 1, 312);
        assert!(!hear(&mut b, &Said::Leave(group(1)), 5, 1, 313).changed, "several hosts may be behind it");
        b.forget_port(PortNo(1));
        assert_eq!(members(&b, 5, 1), None);
    }

    #[test]
    fn the_oldest_group_gives_way() {
        let mut b = bridge();
        for n in [1, 2, 3, 1, 4] {
            hear(&mut b, &Said::Join(group(n), Version::Igmp3), 0, 1, u64::from(n));
        }
        let known: Vec<bool> = (1..=4).map(|n| members(&b, 0, n).is_some()).collect();
        assert_eq!(known, [true, false, true, true]);
        b.set_snooping(Some(SnoopingSettings { limit: 0, ..SETTINGS }), &[], &[]);
        assert_eq!(hear(&mut b, &Said::Join(group(9), Version::Igmp3), 0, 1, 9), Heard::default());
    }

    #[test]
    fn ports_keep_the_order_in_which_they_became_flood_ports() {
        let mut b = bridge();
        let order = |b: &Bridge| b.snooping.as_ref().map(|s| s.flood.clone()).unwrap_or_default();
        b.set_snooping(Some(SETTINGS), &[PortNo(2)], &[]);
        b.set_snooping(Some(SETTINGS), &[PortNo(1), PortNo(2), PortNo(3)], &[]);
        assert_eq!(order(&b), [PortNo(2), PortNo(1), PortNo(3)]);
        let epoch = b.epoch;
        b.set_snooping(Some(SETTINGS), &[PortNo(1), PortNo(2), PortNo(3)], &[]);
        assert_eq!(b.epoch, epoch, "nothing has changed: cached flows stay");
        b.set_snooping(Some(SETTINGS), &[PortNo(1), PortNo(3), PortNo(4)], &[]);
        assert_eq!(order(&b), [PortNo(1), PortNo(3), PortNo(4)]);
    }
}
