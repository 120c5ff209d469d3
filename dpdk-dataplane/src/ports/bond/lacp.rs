//! LACP (IEEE 802.1AX-2014 section 6.4). PDUs and times come in, PDUs go out.
//!
//! ```text
//!                a PDU comes                    3 times without one
//!   Defaulted ────────────────► Current ────────────────────────────► Expired
//!       ▲                          ▲                                     │
//!       │                          └──────── a PDU comes ────────────────┤
//!       └──────────────────────────── 3 seconds without one ─────────────┘
//! ```
//! A link that comes up begins as expired, which asks the partner for PDUs every second. Of the members that have a
//! partner, those of the partner with the best priority are attached. A member is used once its partner says that it is
//! in sync.

use crate::config::bond::LacpSpec;
use openflow_rs::PortNo;
pub use packet::lacp::{Info, compose, parse, state};
use std::time::Duration;

const FAST: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(30);
/// Intervals without a PDU after which a partner is silent.
const MISSED: u32 = 3;

/// The state of a member's receive machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LacpStatus {
    /// The partner speaks.
    Current,
    /// The partner has been silent for a short while.
    Expired,
    /// There is no partner.
    Defaulted,
}

/// How a member is known on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LacpPort {
    /// Number.
    pub number: u16,
    /// Priority; the lowest number goes first.
    pub priority: u16,
}

/// Counters of a member (`lacp/show-stats`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// PDUs sent.
    pub sent: u64,
    /// PDUs received.
    pub received: u64,
    /// Packets that are no valid PDU.
    pub bad: u64,
    /// Markers answered.
    pub markers: u64,
    /// Times that it expired.
    pub expired: u64,
    /// Times that it lost its partner.
    pub defaulted: u64,
    /// Times that its link changed.
    pub carrier: u64,
}

/// A member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its port.
    pub port: PortNo,
    /// Number and priority on the wire.
    pub id: LacpPort,
    /// The state of its receive machine.
    pub status: LacpStatus,
    /// It is part of the aggregation.
    pub attached: bool,
    /// What its partner says of itself.
    pub partner: Info,
    /// Counters.
    pub counts: Counts,
    /// Whether its link is up; none: not known yet.
    up: Option<bool>,
    /// When it expires.
    deadline: Duration,
    /// When the next PDU goes out at the latest.
    send_at: Duration,
    /// What the last PDU said of this side.
    said: Option<Info>,
}

/// LACP on a bond.
#[derive(Clone, Debug)]
pub struct Lacp {
    /// The configuration.
    pub spec: LacpSpec,
    /// The aggregation key of all members.
    pub key: u16,
    /// A partner was found.
    pub negotiated: bool,
    /// Members.
    pub members: Vec<Member>,
}

impl Lacp {
    /// LACP with these members: port, number and priority on the wire.
    pub fn new(spec: LacpSpec, key: u16, members: &[(PortNo, LacpPort)], now: Duration) -> Lacp {
        let mut l = Lacp { spec: spec.clone(), key, negotiated: false, members: Vec::new() };
        l.configure(spec, key, members, now);
        l
    }

    /// Changes the configuration; members that stay keep their partners.
    pub fn configure(&mut self, spec: LacpSpec, key: u16, members: &[(PortNo, LacpPort)], now: Duration) {
        (self.spec, self.key) = (spec, key);
        let mut old = std::mem::take(&mut self.members);
        for (port, id) in members {
            let before = old.iter().position(|m| m.port == *port).map(|i| old.swap_remove(i));
            let new = || Member {
                port: *port,
                id: *id,
                status: LacpStatus::Defaulted,
                attached: false,
                partner: Info::default(),
                counts: Counts::default(),
                up: None,
                deadline: Duration::MAX,
                send_at: now,
                said: None,
            };
            self.members.push(Member { id: *id, ..before.unwrap_or_else(new) });
        }
        self.attach();
    }

    /// A member's link went up or down.
    pub fn carrier(&mut self, port: PortNo, up: bool, now: Duration) {
        let Some(m) = self.members.iter_mut().find(|m| m.port == port && m.up != Some(up)) else { return };
        m.counts.carrier += u64::from(m.up.is_some());
        m.up = Some(up);
        m.expire(now);
        self.attach();
    }

    /// A PDU came; its bytes begin behind the Ethernet header.
    pub fn receive(&mut self, port: PortNo, pdu: &[u8], now: Duration) {
        let wait = MISSED * if self.spec.fast { FAST } else { SLOW };
        let Some(i) = self.members.iter().position(|m| m.port == port) else { return };
        let actual = self.actor(i);
        let Some(m) = self.members.get_mut(i) else { return };
        let Some((actor, partner)) = parse(pdu) else {
            m.counts.bad += 1;
            return;
        };
        m.counts.received += 1;
        (m.status, m.partner, m.deadline) = (LacpStatus::Current, actor, now + wait);
        self.attach();
        // The partner has a wrong idea of this side: it is told at once (section 6.4.7, update_NTT).
        if let (true, Some(m)) = (actual != Some(partner), self.members.get_mut(i)) {
            m.send_at = m.send_at.min(now);
        }
    }

    /// Attaches the members of the best partner, and no others.
    fn attach(&mut self) {
        let own = (self.spec.sys_priority, self.spec.sys_id);
        let told = |m: &Member| m.status != LacpStatus::Defaulted && (m.partner.sys_priority, m.partner.sys_id) != own;
        let rank = |m: &Member| {
            // The port priorities of the better system decide (section 6.7.1).
            let partner = (m.partner.sys_priority, m.partner.sys_id);
            let port =
                if partner < own { (m.partner.port_priority, m.partner.port_id) } else { (m.id.priority, m.id.number) };
            (partner.min(own), port)
        };
        let lead = self.members.iter().filter(|m| told(m)).min_by_key(|m| rank(m)).map(|m| m.partner);
        self.negotiated = lead.is_some();
        let fallback = self.spec.fallback;
        for m in &mut self.members {
            m.attached = match lead {
                Some(l) => told(m) && (m.partner.key, m.partner.sys_id) == (l.key, l.sys_id),
                None => fallback && m.status == LacpStatus::Defaulted,
            };
        }
    }

    /// What this side says of a member.
    pub fn actor(&self, i: usize) -> Option<Info> {
        use state as s;
        let m = self.members.get(i)?;
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        Some(Info {
            sys_priority: self.spec.sys_priority,
            sys_id: self.spec.sys_id,
            key: self.key,
            port_priority: m.id.priority,
            port_id: m.id.number,
            state: bit(self.spec.active, s::ACTIVITY)
                | bit(self.spec.fast, s::TIMEOUT)
                | bit(self.members.len() > 1, s::AGGREGATION)
                | bit(m.attached || !self.negotiated, s::SYNC)
                | bit(m.attached || !self.negotiated, s::COLLECTING | s::DISTRIBUTING)
                | bit(m.status == LacpStatus::Defaulted, s::DEFAULTED)
                | bit(m.status == LacpStatus::Expired, s::EXPIRED),
        })
    }

    /// Whether a member may be used.
    pub fn may_use(&self, port: PortNo) -> bool {
        self.members.iter().find(|m| m.port == port).is_some_and(|m| {
            m.attached
                && (m.partner.state & state::SYNC != 0 || self.spec.fallback && m.status == LacpStatus::Defaulted)
        })
    }

    /// Advances to `now`; gives the PDUs to send, with their ports.
    pub fn poll(&mut self, now: Duration) -> Vec<(PortNo, Vec<u8>)> {
        let mut changed = false;
        for m in &mut self.members {
            if now >= m.deadline {
                changed = true;
                match m.status {
                    LacpStatus::Current => {
                        m.counts.expired += 1;
                        m.expire(now);
                    }
                    _ => {
                        m.counts.defaulted += 1;
                        (m.status, m.partner, m.deadline) = (LacpStatus::Defaulted, Info::default(), Duration::MAX);
                    }
                }
            }
        }
        if changed {
            self.attach();
        }
        let mut out = Vec::new();
        for i in 0..self.members.len() {
            let Some(actor) = self.actor(i) else { continue };
            let active = self.spec.active;
            let Some(m) = self.members.get_mut(i) else { continue };
            let speaks =
                m.is_up() && (active || m.status != LacpStatus::Defaulted && m.partner.state & state::ACTIVITY != 0);
            if !speaks || m.said == Some(actor) && now < m.send_at {
                continue;
            }
            let slow = m.status == LacpStatus::Current && m.partner.state & state::TIMEOUT == 0;
            (m.said, m.send_at) = (Some(actor), now + if slow { SLOW } else { FAST });
            m.counts.sent += 1;
            out.push((m.port, compose(actor, m.partner)));
        }
        out
    }
}

impl Member {
    /// The partner is silent, or the link has changed: PDUs are wanted soon (section 6.4.12, EXPIRED).
    fn expire(&mut self, now: Duration) {
        self.status = LacpStatus::Expired;
        self.partner.state = self.partner.state & !state::SYNC | state::TIMEOUT;
        self.deadline = now + MISSED * FAST;
        self.send_at = self.send_at.min(now);
    }

    /// Whether its link is up.
    pub fn is_up(&self) -> bool {
        self.up == Some(true)
    }
}

/// The response to a marker, if `pdu` is one: the same with another type (section 6.5.3.3).
pub fn marker_response(pdu: &[u8]) -> Option<Vec<u8>> {
    // Marker protocol, version 1, marker information, of 16 bytes.
    let mut answer = pdu.get(..MARKER).filter(|p| p.starts_with(&[2, 1, 1, 16]))?.to_vec();
    *answer.get_mut(2)? = 2;
    Some(answer)
}

/// Bytes of a marker.
const MARKER: usize = 110;

#[cfg(test)]
mod tests {
    use super::*;

    fn side(n: u8, active: bool, fast: bool, fallback: bool) -> Lacp {
        let spec = LacpSpec { active, fast, sys_id: packet::Mac([2, 0, 0, 0, 0, n]), sys_priority: 65534, fallback };
        let members = [1, 2].map(|n| (PortNo(n), LacpPort { number: n, priority: 65535 }));
        let mut l = Lacp::new(spec, 1, &members, Duration::ZERO);
        members.iter().for_each(|(p, _)| l.carrier(*p, true, Duration::ZERO));
        l
    }

    /// Two sides on a wire, on which nothing of `cut` passes.
    fn talk(sides: &mut [Lacp; 2], from: u64, seconds: u64, cut: Option<PortNo>) {
        for ms in (from * 1000..(from + seconds) * 1000).step_by(100) {
            let now = Duration::from_millis(ms);
            for i in 0..2 {
                for (port, pdu) in sides[i].poll(now) {
                    if Some(port) != cut {
                        sides[1 - i].receive(port, &pdu, now);
                    }
                }
            }
        }
    }

    fn used(l: &Lacp) -> [bool; 2] {
        [PortNo(1), PortNo(2)].map(|p| l.may_use(p))
    }

    #[test]
    fn two_sides_agree_and_notice_silence() {
        for (first, second) in [(true, true), (true, false), (false, true)] {
            let mut sides = [side(1, first, true, false), side(2, second, true, false)];
            talk(&mut sides, 0, 2, None);
            assert!(sides.iter().all(|s| s.negotiated && used(s) == [true; 2]), "{sides:?}");
            talk(&mut sides, 2, 2, Some(PortNo(2)));
            assert_eq!(used(&sides[0]), [true, true], "a lost PDU or two are borne");
            talk(&mut sides, 4, 2, Some(PortNo(2)));
            assert!(sides.iter().all(|s| used(s) == [true, false]), "{sides:?}");
            talk(&mut sides, 6, 4, Some(PortNo(2)));
            assert_eq!(sides[0].members[1].status, LacpStatus::Defaulted);
            talk(&mut sides, 10, 3, None);
            assert!(sides.iter().all(|s| used(s) == [true; 2]), "{sides:?}");
        }
        let mut silent = [side(1, false, true, false), side(2, false, true, false)];
        talk(&mut silent, 0, 5, None);
        assert!(silent.iter().all(|s| !s.negotiated && s.members.iter().all(|m| m.counts.sent == 0)));
    }

    #[test]
    fn slow_sides_speak_seldom() {
        let mut sides = [side(1, true, false, false), side(2, true, false, false)];
        talk(&mut sides, 0, 100, None);
        assert!(sides.iter().all(|s| used(s) == [true; 2]));
        let sent = sides[0].members[0].counts.sent;
        assert!((4..10).contains(&sent), "{sent}");
        talk(&mut sides, 100, 60, Some(PortNo(1)));
        assert_eq!(used(&sides[0]), [true; 2]);
        talk(&mut sides, 160, 40, Some(PortNo(1)));
        assert_eq!(used(&sides[0]), [false, true]);
    }

    #[test]
    fn one_partner_is_chosen_and_links_count() {
        let mut sides = [side(1, true, true, false), side(2, true, true, false)];
        talk(&mut sides, 0, 2, None);
        // Another system at the second link.
        let now = Duration::from_secs(2);
        let stranger = Info {
            sys_id: packet::Mac([2, 0, 0, 0, 0, 9]),
            sys_priority: 65534,
            key: 1,
            state: 0x3d,
            ..Info::default()
        };
        sides[0].receive(PortNo(2), &compose(stranger, Info::default()), now);
        assert_eq!(used(&sides[0]), [true, false]);
        // Its own packets are no partner's.
        let own = sides[0].actor(0).expect("a member");
        sides[0].receive(PortNo(2), &compose(own, Info::default()), now);
        assert!(!sides[0].members[1].attached);
        sides[0].carrier(PortNo(1), false, now);
        assert_eq!(used(&sides[0]), [false, false]);
    }

    #[test]
    fn without_a_partner_fallback_uses_all() {
        let mut alone = [side(1, true, true, true), side(2, false, true, false)];
        for s in 0..5 {
            alone[0].poll(Duration::from_secs(s));
        }
        assert!(!alone[0].negotiated && used(&alone[0]) == [true; 2]);
        talk(&mut alone, 5, 2, None);
        assert!(alone[0].negotiated && used(&alone[0]) == [true; 2]);
    }

    #[test]
    fn markers_are_answered() {
        let mut marker = vec![0; 112];
        marker[..16].copy_from_slice(&[2, 1, 1, 16, 0, 7, 2, 0, 0, 0, 0, 9, 0xde, 0xad, 0xbe, 0xef]);
        let answer = marker_response(&marker).expect("an answer");
        assert_eq!((answer.len(), &answer[..4], &answer[4..16]), (110, &[2, 1, 2, 16][..], &marker[4..16]));
        assert!(marker_response(&answer).is_none() && marker_response(&marker[..60]).is_none());
        assert!(marker_response(&compose(Info::default(), Info::default())).is_none());
    }

    #[test]
    fn rubbish_is_counted() {
        let mut l = side(1, true, true, false);
        l.receive(PortNo(1), &[2; 200], Duration::ZERO);
        l.receive(PortNo(9), &compose(Info::default(), Info::default()), Duration::ZERO);
        assert_eq!((l.members[0].counts.bad, l.members[0].counts.received), (1, 0));
    }
}
