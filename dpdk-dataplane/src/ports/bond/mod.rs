//! Bonds: which members are used, which is the active one, and how load is spread (ovs-vswitchd.conf.db(5), "Bonding
//! Configuration" of Port). Links, PDUs and times come in; the switch's plan and packets go out.

pub mod lacp;

use crate::config::bond::BondSpec;
use lacp::{Lacp, LacpPort};
use openflow_rs::PortNo;
use packet::{Mac, VlanId};
use std::time::Duration;
use switch::bond::{BUCKETS, SLOW_ADDRESS, SLOW_PROTOCOLS};
use switch::{BridgeId, Spread, Switch};

/// How often bonds are advanced; changes of links do not wait for that.
const STEP: Duration = Duration::from_millis(100);
/// Bytes of an interval by which the load of two members may differ before any is moved: a megabit a second for ten
/// seconds.
const ALIKE: u64 = 1_250_000;

/// A member as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    /// The port.
    pub port: PortNo,
    /// Its name.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Number and priority for LACP.
    pub id: LacpPort,
}

/// A member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its configuration.
    pub spec: MemberSpec,
    /// It is used.
    pub enabled: bool,
    /// Its link and LACP allow that it is used.
    pub may_enable: bool,
    /// When `enabled` follows `may_enable`.
    pub change_at: Option<Duration>,
}

/// A running bond.
#[derive(Clone, Debug)]
pub struct Bond {
    /// Its bridge.
    pub bridge: BridgeId,
    /// Its configuration.
    pub spec: BondSpec,
    /// Its members.
    pub members: Vec<Member>,
    /// The active one.
    pub active: Option<PortNo>,
    /// LACP, if it is enabled.
    pub lacp: Option<Lacp>,
    /// By hash: the member that sends, and how many bytes it has sent of late.
    pub buckets: Vec<(Option<PortNo>, u64)>,
    /// When load is next balanced.
    pub rebalance_at: Duration,
    /// When links are next looked at.
    look_at: Duration,
    seen_up: Vec<PortNo>,
}

/// The state of a bond, for the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BondStatus {
    /// The address of the active member.
    pub active: Option<Mac>,
    /// Whether each member's LACP partner speaks; empty without LACP.
    pub current: Vec<(String, bool)>,
}

/// The bonds of a switch.
#[derive(Debug, Default)]
pub struct Bonds {
    /// All of them.
    pub list: Vec<Bond>,
    /// Answers to received packets, to be sent.
    answers: Vec<(BridgeId, PortNo, Vec<u8>)>,
    next: Duration,
}

impl Bond {
    fn new(bridge: BridgeId, spec: BondSpec, members: Vec<MemberSpec>, now: Duration) -> Bond {
        let buckets = vec![(None, 0); BUCKETS];
        let rebalance_at = now + spec.rebalance.unwrap_or_default();
        let (members_now, look_at, seen_up) = (Vec::new(), now, Vec::new());
        let mut b = Bond {
            bridge,
            spec,
            members: members_now,
            active: None,
            lacp: None,
            buckets,
            rebalance_at,
            look_at,
            seen_up,
        };
        b.configure(b.spec.clone(), members, now);
        b
    }

    fn configure(&mut self, spec: BondSpec, members: Vec<MemberSpec>, now: Duration) {
        if spec.rebalance != self.spec.rebalance {
            self.rebalance_at = now + spec.rebalance.unwrap_or_default();
        }
        let mut old = std::mem::take(&mut self.members);
        for is in members {
            let before = old.iter().position(|m| m.spec.port == is.port).map(|i| old.swap_remove(i));
            let new = |is| Member { spec: is, enabled: false, may_enable: false, change_at: None };
            self.members.push(match before {
                Some(m) => Member { spec: is, ..m },
                None => new(is),
            });
        }
        let ids: Vec<_> = self.members.iter().map(|m| (m.spec.port, m.spec.id)).collect();
        let key = spec.key.unwrap_or(ids.first().map_or(0, |(_, id)| id.number));
        self.lacp = spec.lacp.clone().map(|s| match self.lacp.take() {
            Some(mut l) => {
                l.configure(s, key, &ids, now);
                l
            }
            None => Lacp::new(s, key, &ids, now),
        });
        self.spec = spec;
    }

    /// Whether LACP is enabled and has found a partner.
    fn negotiated(&self) -> bool {
        self.lacp.as_ref().is_some_and(|l| l.negotiated)
    }

    fn member(&self, port: PortNo) -> Option<&Member> {
        self.members.iter().find(|m| m.spec.port == port)
    }

    fn enabled(&self) -> impl Iterator<Item = PortNo> {
        self.members.iter().filter(|m| m.enabled).map(|m| m.spec.port)
    }

    /// A member by its name.
    pub fn by_name(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|m| m.spec.name == name)
    }

    /// Enables or disables a member, until its link changes.
    pub fn enable(&mut self, port: PortNo, on: bool) {
        if let Some(m) = self.members.iter_mut().find(|m| m.spec.port == port) {
            (m.enabled, m.change_at) = (on, None);
        }
        self.choose();
    }

    /// The members whose links were up when that was looked at last.
    fn look(&mut self, now: Duration, up: impl Fn(PortNo) -> bool) -> Vec<PortNo> {
        if self.spec.miimon.is_none() || now >= self.look_at {
            self.look_at = now + self.spec.miimon.unwrap_or_default();
            self.seen_up = self.members.iter().map(|m| m.spec.port).filter(|p| up(*p)).collect();
        }
        self.seen_up.clone()
    }

    /// Follows links: `up` says which are. Members are enabled and disabled after their delays.
    fn follow(&mut self, now: Duration, up: impl Fn(PortNo) -> bool) {
        for m in &mut self.members {
            let link = up(m.spec.port);
            if let Some(l) = &mut self.lacp {
                l.carrier(m.spec.port, link, now);
            }
            m.may_enable = link && self.lacp.as_ref().is_none_or(|l| l.may_use(m.spec.port));
        }
        let none = self.members.iter().all(|m| !m.enabled);
        let [updelay, downdelay] = self.spec.delays;
        for m in &mut self.members {
            if m.may_enable == m.enabled {
                m.change_at = None;
                continue;
            }
            let delay = match m.may_enable {
                // A member that flaps is better than none.
                true if none => Duration::ZERO,
                true => updelay,
                false => downdelay,
            };
            let at = *m.change_at.get_or_insert(now + delay);
            if now >= at || delay.is_zero() {
                (m.enabled, m.change_at) = (m.may_enable, None);
            }
        }
        self.choose();
    }

    /// Chooses the active member, and new members for hashes whose own is disabled.
    fn choose(&mut self) {
        let usable = |p: &PortNo| self.member(*p).is_some_and(|m| m.enabled);
        let primary = self.spec.primary.as_ref().and_then(|n| self.by_name(n)).map(|m| m.spec.port);
        let last = self.members.iter().find(|m| Some(m.spec.mac) == self.spec.last).map(|m| m.spec.port);
        let choices = [primary, self.active, last, self.enabled().next()];
        self.active = choices.into_iter().flatten().find(usable);
        let enabled: Vec<PortNo> = self.enabled().collect();
        for (n, (member, _)) in self.buckets.iter_mut().enumerate() {
            if member.is_none_or(|m| !enabled.contains(&m)) {
                *member = enabled.get(n % enabled.len().max(1)).copied();
            }
        }
    }

    /// How packets are spread now: `balance-tcp` needs LACP, or falls back to active-backup.
    fn spread(&self) -> Spread {
        match (self.spec.spread, &self.lacp) {
            (Spread::Transport, l) if !self.negotiated() && l.as_ref().is_some_and(|l| l.spec.fallback) => {
                Spread::Active
            }
            (s, _) => s,
        }
    }

    /// The plan for the switch.
    fn plan(&self) -> switch::Bond {
        let spread = self.spread();
        // Without LACP's consent the other end has no aggregation.
        let useless = spread == Spread::Transport && !self.negotiated();
        let active = self.active.filter(|_| !useless);
        let takes: Vec<PortNo> = if self.negotiated() {
            // The other end knows of the bond, and may send by any member that LACP lets it, whatever the mode.
            self.members.iter().filter(|m| m.enabled || m.may_enable).map(|m| m.spec.port).collect()
        } else if spread == Spread::Active {
            active.into_iter().collect()
        } else {
            self.enabled().filter(|_| !useless).collect()
        };
        switch::Bond {
            name: self.spec.name.clone(),
            members: self.members.iter().map(|m| m.spec.port).collect(),
            spread,
            basis: self.spec.basis,
            active,
            takes,
            buckets: self.buckets.iter().map(|(m, _)| m.filter(|_| !useless)).collect(),
            lacp: self.lacp.is_some(),
            all_active: self.negotiated() || self.spec.all_active && self.lacp.is_none(),
            reflects: spread == Spread::Source && !self.negotiated(),
        }
    }

    /// Moves hashes from members that send much to those that send little. `bytes` is what each hash has sent since the
    /// last time.
    fn rebalance(&mut self, bytes: &[u64]) {
        // Older load counts half each time.
        for ((_, sum), new) in self.buckets.iter_mut().zip(bytes) {
            *sum = *sum / 2 + new;
        }
        let enabled: Vec<PortNo> = self.enabled().collect();
        for _ in 0..BUCKETS {
            let load = |p: &PortNo| self.buckets.iter().filter(|(m, _)| m == &Some(*p)).map(|(_, n)| n).sum::<u64>();
            let loads: Vec<(u64, PortNo)> = enabled.iter().map(|p| (load(p), *p)).collect();
            let (Some((most, from)), Some((least, to))) = (loads.iter().max(), loads.iter().min()) else { return };
            let over = most - least;
            if over < ALIKE.max(least / 32) {
                return;
            }
            // The hash that brings both loads nearest to each other; one that would only reverse them stays.
            let (from, to) = (Some(*from), Some(*to));
            let movable = self.buckets.iter_mut().filter(|(m, n)| *m == from && *n > 0 && *n < over);
            let Some(best) = movable.min_by_key(|(_, n)| n.abs_diff(over / 2)) else { return };
            if best.1.min(over - best.1) < over / 10 {
                return;
            }
            best.0 = to;
        }
    }
}

impl Bonds {
    /// Sets the bonds of a bridge.
    pub fn configure(
        &mut self,
        bridge: BridgeId,
        wanted: Vec<(BondSpec, Vec<MemberSpec>)>,
        w: &mut Switch,
        now: Duration,
    ) {
        self.list.retain(|b| {
            let stays = b.bridge != bridge || wanted.iter().any(|(s, _)| s.name == b.spec.name);
            if !stays {
                w.remove_bond(bridge, &b.spec.name);
            }
            stays
        });
        for (spec, members) in wanted {
            match self.list.iter_mut().find(|b| b.bridge == bridge && b.spec.name == spec.name) {
                Some(b) => b.configure(spec, members, now),
                None => self.list.push(Bond::new(bridge, spec, members, now)),
            }
        }
        self.wake();
    }

    /// Has bonds be advanced soon, as something has changed.
    pub fn wake(&mut self) {
        self.next = Duration::ZERO;
    }

    /// Takes a packet of a slow protocol (LACP, markers).
    pub fn receive(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], now: Duration) {
        let pdu = frame.get(14..).unwrap_or_default();
        let answer = lacp::marker_response(pdu);
        for b in self.list.iter_mut().filter(|b| b.bridge == bridge) {
            if let (Some(l), Some(answer)) = (&mut b.lacp, &answer) {
                if let Some(m) = l.members.iter_mut().find(|m| m.port == port) {
                    m.counts.markers += 1;
                    self.answers.extend(b.member(port).map(|m| (bridge, port, slow_frame(m.spec.mac, answer))));
                }
                continue;
            }
            if let Some(l) = &mut b.lacp {
                l.receive(port, pdu, now);
            }
        }
        self.wake();
    }

    /// The members of bonds with LACP, and whether LACP lets each be used.
    pub fn lacp(&self) -> impl Iterator<Item = ((BridgeId, PortNo), bool)> {
        let of = |b: &Bond| {
            let (id, ports) = (b.bridge, b.members.iter().map(|m| m.spec.port).collect::<Vec<_>>());
            let usable =
                b.lacp.as_ref().map(|l| ports.into_iter().map(|p| ((id, p), l.may_use(p))).collect::<Vec<_>>());
            usable.unwrap_or_default()
        };
        self.list.iter().flat_map(of)
    }

    /// When [`Bonds::poll`] is to be called next; none without bonds.
    pub fn next_due(&self) -> Option<Duration> {
        if self.answers.is_empty() { (!self.list.is_empty()).then_some(self.next) } else { Some(Duration::ZERO) }
    }

    /// Whether bonds are due to be advanced.
    pub fn due(&self, now: Duration) -> bool {
        !self.list.is_empty() && now >= self.next
    }

    /// Advances all bonds to `now`, and gives the switch their plans. Gives packets to send, with their ports.
    pub fn poll(&mut self, w: &mut Switch, now: Duration) -> Vec<(BridgeId, PortNo, Vec<u8>)> {
        let mut out = std::mem::take(&mut self.answers);
        if !self.due(now) {
            return out;
        }
        self.next = now + STEP;
        for b in &mut self.list {
            let (id, before) = (b.bridge, b.active);
            let pdus = b.lacp.as_mut().map(|l| l.poll(now)).unwrap_or_default();
            // LACP's verdict does not count here: it follows from this.
            let carries = |p: &switch::Port| switch::is_live(&p.link, [p.bfd, p.cfm], None);
            let up = |p: PortNo| w.bridge(id).and_then(|b| b.ports.get(&p)).is_some_and(carries);
            let looked = b.look(now, up);
            b.follow(now, |p| looked.contains(&p));
            for (port, pdu) in pdus {
                let mac = b.member(port).map(|m| m.spec.mac).unwrap_or_default();
                out.push((id, port, slow_frame(mac, &pdu)));
            }
            if let Some(every) = b.spec.rebalance.filter(|_| now >= b.rebalance_at && b.spread() != Spread::Active) {
                b.rebalance_at = now + every;
                b.rebalance(&w.take_bond_bytes(id, &b.spec.name));
            }
            let plan = b.plan();
            let (active, spread) = (plan.active, plan.spread);
            w.set_bond(id, plan);
            // Switches on the other side have to learn the new places of addresses.
            if active.is_some() && before.is_some() && active != before && spread != Spread::Transport {
                out.extend(announcements(w, b));
            }
        }
        out
    }

    /// The state of all bonds.
    pub fn status(&self) -> Vec<(BridgeId, String, BondStatus)> {
        let of = |b: &Bond| {
            let current = b
                .lacp
                .iter()
                .flat_map(|l| &l.members)
                .filter_map(|m| Some((b.member(m.port)?.spec.name.clone(), m.status == lacp::LacpStatus::Current)));
            let active = b.active.and_then(|p| b.member(p)).map(|m| m.spec.mac);
            (b.bridge, b.spec.name.clone(), BondStatus { active, current: current.collect() })
        };
        self.list.iter().map(of).collect()
    }
}

/// A PDU of a slow protocol from a member.
fn slow_frame(from: Mac, pdu: &[u8]) -> Vec<u8> {
    [&SLOW_ADDRESS[..], &from[..], &SLOW_PROTOCOLS.to_be_bytes(), pdu].concat()
}

/// Reverse ARP requests from all addresses that the bridge has learned at other ports, out of the members that now send
/// for them.
fn announcements(w: &Switch, b: &Bond) -> Vec<(BridgeId, PortNo, Vec<u8>)> {
    let Some(bridge) = w.bridge(b.bridge) else { return Vec::new() };
    let plan = b.plan();
    let elsewhere = bridge.macs.iter().filter(|k| !plan.members.contains(&k.port));
    let frame = |k: switch::mac::Known| {
        let mac: Vec<u8> = k.mac.to_be_bytes().into_iter().skip(2).collect();
        let mut p = vec![0xff; 6];
        p.extend_from_slice(&mac);
        if k.vlan != VlanId::NONE {
            p.extend_from_slice(&packet::ethertype::VLAN.to_be_bytes());
            p.extend_from_slice(&k.vlan.get().to_be_bytes());
        }
        p.extend_from_slice(&packet::ethertype::RARP.to_be_bytes());
        // Ethernet, IPv4, request reverse (RFC 903).
        p.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 3]);
        for _ in 0..2 {
            p.extend_from_slice(&mac);
            p.extend_from_slice(&[0; 4]);
        }
        let port = match plan.spread {
            Spread::Active => plan.active,
            _ => plan.buckets.get(switch::bond::bucket(k.mac, k.vlan.get(), plan.basis)).copied().flatten(),
        };
        Some((b.bridge, port?, p))
    };
    elsewhere.filter_map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::bond::LacpSpec;

    const SECOND: Duration = Duration::from_secs(1);

    fn bond(spread: Spread, delays: [u64; 2], primary: Option<&str>) -> Bond {
        let spec = BondSpec {
            row: ovn_schema::Uuid::default(),
            name: "b".into(),
            members: Vec::new(),
            key: None,
            spread,
            delays: delays.map(Duration::from_millis),
            primary: primary.map(String::from),
            rebalance: Some(SECOND * 10),
            basis: 0,
            last: None,
            lacp: None,
            all_active: false,
            miimon: None,
        };
        let member = |n: u16| MemberSpec {
            port: PortNo(n),
            name: format!("u{n}"),
            mac: Mac([2, 0, 0, 0, 0, n as u8]),
            id: LacpPort { number: n, priority: 65535 },
        };
        Bond::new(BridgeId(0), spec, vec![member(1), member(2)], Duration::ZERO)
    }

    #[test]
    fn one_is_active_and_the_other_takes_over() {
        let mut b = bond(Spread::Active, [0, 0], None);
        b.follow(SECOND, |_| false);
        assert_eq!((b.active, b.plan().takes), (None, vec![]));
        b.follow(SECOND, |p| p == PortNo(2));
        assert_eq!((b.active, b.plan().takes), (Some(PortNo(2)), vec![PortNo(2)]));
        b.follow(SECOND, |_| true);
        assert_eq!(b.active, Some(PortNo(2)), "who works goes on");
        b.follow(SECOND, |p| p == PortNo(1));
        assert_eq!(b.active, Some(PortNo(1)));
        let mut b = bond(Spread::Active, [0, 0], Some("u2"));
        b.follow(SECOND, |p| p == PortNo(1));
        b.follow(SECOND, |_| true);
        assert_eq!(b.active, Some(PortNo(2)), "but for the primary one, which is preferred");
        b.enable(PortNo(2), false);
        assert_eq!(b.active, Some(PortNo(1)));
    }

    #[test]
    fn delays_are_kept() {
        let mut b = bond(Spread::Active, [500, 300], None);
        let at = Duration::from_millis;
        b.follow(at(0), |p| p == PortNo(1));
        assert_eq!(b.active, Some(PortNo(1)), "the first does not wait");
        b.follow(at(100), |_| true);
        b.follow(at(500), |_| true);
        assert!(!b.members[1].enabled);
        b.follow(at(550), |p| p == PortNo(1));
        b.follow(at(560), |_| true);
        b.follow(at(700), |_| true);
        assert!(!b.members[1].enabled, "a link that flaps waits anew");
        b.follow(at(1060), |_| true);
        assert!(b.members[1].enabled);
        b.follow(at(2000), |p| p == PortNo(2));
        b.follow(at(2200), |p| p == PortNo(2));
        assert_eq!(b.active, Some(PortNo(1)));
        b.follow(at(2300), |p| p == PortNo(2));
        assert_eq!(b.active, Some(PortNo(2)));
    }

    #[test]
    fn load_moves_to_who_has_less() {
        let mut b = bond(Spread::Source, [0, 0], None);
        b.follow(SECOND, |_| true);
        let on = |b: &Bond, p: u16| b.buckets.iter().filter(|(m, _)| *m == Some(PortNo(p))).count();
        assert_eq!((on(&b, 1), on(&b, 2)), (128, 128));
        // All that the first has to send is in four hashes of its own.
        let mut bytes = vec![0; BUCKETS];
        (0..4).for_each(|n| bytes[2 * n] = 10_000_000);
        b.rebalance(&bytes);
        let load =
            |b: &Bond, p: u16| b.buckets.iter().filter(|(m, _)| *m == Some(PortNo(p))).map(|(_, n)| n).sum::<u64>();
        assert_eq!((load(&b, 1), load(&b, 2)), (20_000_000, 20_000_000));
        let before: Vec<_> = b.buckets.iter().map(|(m, _)| *m).collect();
        b.rebalance(&bytes);
        assert_eq!(before, b.buckets.iter().map(|(m, _)| *m).collect::<Vec<_>>(), "what is even stays");
        // One that is all the load cannot be parted.
        let mut b = bond(Spread::Source, [0, 0], None);
        b.follow(SECOND, |_| true);
        b.rebalance(&(0..BUCKETS).map(|n| u64::from(n == 0) * 50_000_000).collect::<Vec<_>>());
        assert_eq!(on(&b, 1), 128);
        // Whose link goes loses all.
        b.follow(SECOND, |p| p == PortNo(2));
        assert_eq!((on(&b, 1), on(&b, 2)), (0, 256));
    }

    #[test]
    fn balance_tcp_needs_a_partner() {
        let mut b = bond(Spread::Transport, [0, 0], None);
        b.follow(SECOND, |_| true);
        assert_eq!((b.plan().active, b.plan().takes), (None, vec![]));
        assert!(b.plan().buckets.iter().all(Option::is_none));
        let lacp = LacpSpec { active: true, fast: true, sys_id: Mac([2; 6]), sys_priority: 1, fallback: true };
        let spec = BondSpec { lacp: Some(lacp), ..b.spec.clone() };
        let members = b.members.iter().map(|m| m.spec.clone()).collect();
        b.configure(spec, members, SECOND);
        for s in 1..9 {
            b.lacp.as_mut().expect("LACP").poll(SECOND * s);
            b.follow(SECOND * s, |_| true);
        }
        assert_eq!((b.plan().spread, b.plan().takes.len()), (Spread::Active, 1));
    }

    /// Both ends of two links, which speak to each other for some seconds. Of the first end, which links are up.
    fn talk(ends: &mut [Bond; 2], from: u64, seconds: u64, up: &[u16]) {
        for ms in (from * 10..(from + seconds) * 10).map(|n| 100 * n) {
            let now = Duration::from_millis(ms);
            for i in 0..2 {
                let pdus = ends[i].lacp.as_mut().map(|l| l.poll(now)).unwrap_or_default();
                for (port, pdu) in pdus.into_iter().filter(|(p, _)| up.contains(&p.0)) {
                    ends[1 - i].lacp.as_mut().expect("LACP").receive(port, &pdu, now);
                }
            }
            ends.iter_mut().for_each(|e| e.follow(now, |p| up.contains(&p.0)));
        }
    }

    /// The other end of a negotiated bond sends broadcasts by any member, and before this end has waited for it to settle.
    #[test]
    fn a_partner_may_send_anything_by_any_member() {
        for spread in [Spread::Active, Spread::Source, Spread::Transport] {
            let mut ends = [1, 2].map(|n| {
                let b = bond(spread, [3000, 0], None);
                let lacp = LacpSpec { active: true, fast: true, sys_id: Mac([n; 6]), sys_priority: 1, fallback: false };
                let spec = BondSpec { lacp: Some(lacp), ..b.spec };
                Bond::new(BridgeId(0), spec, b.members.into_iter().map(|m| m.spec).collect(), Duration::ZERO)
            });
            let both = vec![PortNo(1), PortNo(2)];
            talk(&mut ends, 0, 10, &[1, 2]);
            let plan = ends[0].plan();
            assert_eq!((plan.takes, plan.all_active, plan.reflects), (both.clone(), true, false), "{spread:?}");
            talk(&mut ends, 10, 5, &[1]);
            assert_eq!(ends[0].plan().takes, both[..1]);
            talk(&mut ends, 15, 2, &[1, 2]);
            let enabled = |b: &Bond| b.enabled().collect::<Vec<_>>();
            assert_eq!((enabled(&ends[0]), ends[0].plan().takes), (both[..1].to_vec(), both.clone()), "{spread:?}");
            talk(&mut ends, 17, 5, &[1, 2]);
            assert_eq!(enabled(&ends[0]), both);
        }
    }
}
