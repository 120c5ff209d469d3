//! Bonds: several ports that NORMAL takes for one (ovs-vswitchd.conf.db(5), Port `bond_mode`). Who decides which members are
//! used is the caller; here is what a packet does with that. Flows that name a member's port mean that port alone.

use crate::bridge::{Bridge, Touched};
use crate::buf::PacketBuf;
use crate::datapath::{BridgeId, Event, Switch};
use crate::drops::DropReason;
use crate::flowcache::depend::Need;
use crate::xlate::{Xlate, mix};
use openflow_rs::{FieldId as F, PortNo};

/// Hashes of packets by which load is spread.
pub const BUCKETS: usize = 256;

/// Slow protocols (IEEE 802.3 annex 57A): the address that LACP is sent to, and the EtherType.
pub const SLOW_ADDRESS: packet::Mac = [0x01, 0x80, 0xc2, 0, 0, 2];
/// See [`SLOW_ADDRESS`].
pub const SLOW_PROTOCOLS: u16 = 0x8809;

/// How packets are spread over members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// All by the active member (`active-backup`).
    #[default]
    Active,
    /// By source address and VLAN (`balance-slb`).
    Source,
    /// By addresses, protocol and ports (`balance-tcp`).
    Transport,
}

/// A bond.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bond {
    /// Name.
    pub name: String,
    /// Its ports. The first stands for the bond where addresses are learned.
    pub members: Vec<PortNo>,
    /// How packets are spread.
    pub spread: Spread,
    /// Part of all hashes.
    pub basis: u32,
    /// The member that broadcasts and multicasts are taken from, and that sends all if nothing is spread.
    pub active: Option<PortNo>,
    /// The members that packets are taken from.
    pub takes: Vec<PortNo>,
    /// By hash, the member that sends; none where no member is up.
    pub buckets: Vec<Option<PortNo>>,
    /// LACP's packets are its own.
    pub lacp: bool,
    /// Broadcasts and multicasts are taken from all members.
    pub all_active: bool,
    /// It looks at where the source address was seen before, as its other end may send back what came from here.
    pub reflects: bool,
}

/// The bucket of a source address and its VLAN.
pub fn bucket(mac: u64, vlan: u16, basis: u32) -> usize {
    (mix(mac ^ u64::from(vlan) << 48 ^ mix(basis.into())) % BUCKETS as u64) as usize
}

/// A bond and what its buckets have sent.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) bond: Bond,
    pub(crate) bytes: Vec<u64>,
}

impl Bridge {
    fn state_of(&self, no: PortNo) -> Option<(usize, &State)> {
        self.bonds.iter().enumerate().find(|(_, s)| s.bond.members.contains(&no))
    }

    /// The bond of a port.
    pub(crate) fn bond_of(&self, no: PortNo) -> Option<&Bond> {
        self.state_of(no).map(|(_, s)| &s.bond)
    }

    /// The port that stands for a port's bond, or the port itself.
    pub(crate) fn face(&self, no: PortNo) -> PortNo {
        self.bond_of(no).and_then(|b| b.members.first()).copied().unwrap_or(no)
    }

    /// Whether it is a member that another stands for.
    pub(crate) fn is_behind(&self, no: PortNo) -> bool {
        !self.bonds.is_empty() && self.face(no) != no
    }

    fn touch(&mut self, bond: &Bond) {
        self.touched.extend(bond.members.iter().map(|m| Touched::Live(*m)));
    }

    /// Puts a bond in place, or in the place of what it was. Cached flows that asked for it become stale.
    fn set_bond(&mut self, bond: Bond) {
        if let Some(i) = self.bonds.iter().position(|s| s.bond.name == bond.name) {
            let Some(s) = self.bonds.get_mut(i).filter(|s| s.bond != bond) else { return };
            let old = std::mem::replace(&mut s.bond, bond.clone());
            self.touch(&old);
            self.touch(&bond);
            if old.members == bond.members && old.lacp == bond.lacp {
                return;
            }
        } else {
            self.bonds.push(State { bond: bond.clone(), bytes: vec![0; BUCKETS] });
        }
        // What its members are for has changed: also for flows that asked for none of them.
        bond.members.iter().for_each(|m| self.macs.forget_port(*m));
        self.epoch += 1;
    }

    /// Takes a bond away: its members are ports of their own.
    fn remove_bond(&mut self, name: &str) {
        if let Some(i) = self.bonds.iter().position(|s| s.bond.name == name) {
            let gone = self.bonds.remove(i);
            gone.bond.members.iter().for_each(|m| self.macs.forget_port(*m));
            self.epoch += 1;
        }
    }
}

impl Switch {
    /// Has a bridge's bond be so.
    pub fn set_bond(&mut self, bridge: BridgeId, bond: Bond) {
        if let Some(b) = self.bridges.get_mut(bridge) {
            b.set_bond(bond);
        }
    }

    /// What each bucket of a bridge's bond has sent since this was asked.
    pub fn take_bond_bytes(&mut self, bridge: BridgeId, name: &str) -> Vec<u64> {
        self.count();
        let state = self.bridges.get_mut(bridge).and_then(|b| b.bonds.iter_mut().find(|s| s.bond.name == name));
        state.map(|s| std::mem::replace(&mut s.bytes, vec![0; BUCKETS])).unwrap_or_default()
    }

    /// Takes a bridge's bond away.
    pub fn remove_bond(&mut self, bridge: BridgeId, name: &str) {
        if let Some(b) = self.bridges.get_mut(bridge) {
            b.remove_bond(name);
        }
    }
}

impl<P: PacketBuf> Xlate<'_, P> {
    /// Hands a packet of LACP to its bond; false if it is none.
    pub(crate) fn slow_protocol(&mut self, no: PortNo) -> bool {
        let Some(b) = self.sw.bridges.get(self.bridge).filter(|b| !b.bonds.is_empty()) else { return false };
        let its = self.key.get(F::EthType) as u16 == SLOW_PROTOCOLS
            && self.pkt.data().get(..6) == Some(&SLOW_ADDRESS)
            && b.bond_of(no).is_some_and(|b| b.lacp);
        if its && !self.dry() {
            self.sent += 1;
            let packet = self.pkt.data().to_vec();
            self.out.events.push(Event::Slow { bridge: self.bridge, port: no, packet });
        }
        its
    }

    /// Whether NORMAL takes a packet from a port, as far as the port's bond is concerned.
    pub(crate) fn bond_takes(&mut self, no: PortNo, vlan: u16, src: u64, dst: u64) -> bool {
        let now = self.sw.now;
        let Some(b) = self.sw.bridges.get(self.bridge) else { return true };
        let Some(bond) = b.bond_of(no) else { return true };
        let face = b.face(no);
        let known = b.macs.lookup(vlan, src, now);
        // What has moved says so of itself: it is no reflection.
        let moved = bond.reflects && known.is_some_and(|p| p != face) && !self.announces_itself();
        let group = dst >> 40 & 1 != 0 && bond.active != Some(no) && !bond.all_active;
        let takes = bond.takes.contains(&no) && !group && !moved;
        let asks = bond.reflects;
        self.needs(Need::Live(self.bridge, no));
        if let (true, Some(r)) = (asks, &mut self.rec) {
            r.condition(crate::flowcache::Condition::Address { bridge: self.bridge, vlan, mac: src, port: known });
        }
        takes
    }

    /// A gratuitous ARP packet.
    fn announces_itself(&self) -> bool {
        let k = &self.key;
        let arp = k.get(F::EthType) == 0x806 && k.get(F::EthDst) == 0xffff_ffff_ffff;
        arp && (k.get(F::ArpOp) == 2 || k.get(F::ArpOp) == 1 && k.get(F::ArpSpa) == k.get(F::ArpTpa))
    }

    /// The port that a packet leaves by: of a bond, the member whose turn it is.
    pub(crate) fn member_for(&mut self, no: PortNo, vlan: u16) -> Option<PortNo> {
        let b = self.sw.bridges.get(self.bridge)?;
        let Some((i, State { bond, .. })) = b.state_of(no) else { return Some(no) };
        let place = match bond.spread {
            Spread::Active => None,
            Spread::Source => Some(bucket(self.key.get(F::EthSrc) as u64, vlan, bond.basis)),
            Spread::Transport => {
                let ip = matches!(self.key.get(F::EthType), 0x800 | 0x86dd);
                let basis = u64::from(bond.basis) << 16 | u64::from(vlan);
                let hash = if ip { self.flow_hash(&[], basis) } else { 0 };
                let macs = (self.key.get(F::EthSrc) ^ self.key.get(F::EthDst)) as u64;
                Some((mix(hash ^ macs) % BUCKETS as u64) as usize)
            }
        };
        let member = match place {
            None => bond.active,
            Some(n) => bond.buckets.get(n).copied().flatten(),
        };
        self.needs(Need::Live(self.bridge, no));
        let n = self.pkt.data().len();
        if let Some(bucket) = place {
            if !self.dry()
                && let Some(x) =
                    self.sw.bridges.get_mut(self.bridge).and_then(|b| b.bonds.get_mut(i)?.bytes.get_mut(bucket))
            {
                *x += n as u64;
            }
            if let Some(r) = &mut self.rec {
                r.bond(self.bridge, i, bucket, n);
            }
        }
        if member.is_none() {
            self.because(DropReason::NoBondMember);
        }
        member
    }
}
