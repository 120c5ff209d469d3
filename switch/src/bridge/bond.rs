//! Bonds: several ports that NORMAL uses as one (ovs-vswitchd.conf.db(5), Port `bond_mode`). The caller decides which
//! members are used; this is what packets do with its plan. Flows that name a member's port mean that port alone.

use crate::bridge::{Bridge, Invalidation};
use crate::classifier::mix;
use openflow_rs::PortNo;

/// Number of hash buckets by which load is spread.
pub const BUCKETS: usize = 256;

/// Slow protocols (IEEE 802.3 annex 57A): the address that LACP is sent to, and the EtherType.
pub const SLOW_ADDRESS: packet::Mac = packet::Mac([0x01, 0x80, 0xc2, 0, 0, 2]);
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
    /// Its ports. Addresses are learned at the first.
    pub members: Vec<PortNo>,
    /// How packets are spread.
    pub spread: Spread,
    /// Seed of all hashes.
    pub basis: u32,
    /// The member that admits broadcasts and multicasts, and that sends everything in active-backup mode.
    pub active: Option<PortNo>,
    /// The members that admit packets.
    pub takes: Vec<PortNo>,
    /// The member that sends, by hash bucket; none if no member is up.
    pub buckets: Vec<Option<PortNo>>,
    /// LACP packets go to the bond, not to the tables.
    pub lacp: bool,
    /// All members admit broadcasts and multicasts.
    pub all_active: bool,
    /// The other end may send packets back: a packet is dropped if its source address was learned at another port.
    pub reflects: bool,
}

/// The bucket of a source address and its VLAN. `vlan` is a plain number, as
/// `bond/hash` takes one of any size.
pub fn bucket(mac: u64, vlan: u16, basis: u32) -> usize {
    (mix(mac ^ u64::from(vlan) << 48 ^ mix(basis.into())) % BUCKETS as u64) as usize
}

/// A bond, and the bytes that its buckets have sent.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) bond: Bond,
    pub(crate) bytes: Vec<u64>,
}

impl Bridge {
    pub(crate) fn state_of(&self, no: PortNo) -> Option<(usize, &State)> {
        self.bonds.iter().enumerate().find(|(_, s)| s.bond.members.contains(&no))
    }

    /// The bond of a port.
    pub(crate) fn bond_of(&self, no: PortNo) -> Option<&Bond> {
        self.state_of(no).map(|(_, s)| &s.bond)
    }

    /// The port that stands for a port's bond, or the port itself.
    pub fn face(&self, no: PortNo) -> PortNo {
        self.bond_of(no).and_then(|b| b.members.first()).copied().unwrap_or(no)
    }

    /// Whether another member of its bond stands for the port.
    pub(crate) fn is_behind(&self, no: PortNo) -> bool {
        !self.bonds.is_empty() && self.face(no) != no
    }

    fn touch(&mut self, bond: &Bond) {
        self.touched.extend(bond.members.iter().map(|m| Invalidation::Live(*m)));
    }

    /// Adds or replaces a bond. Cached flows that depend on it become stale.
    pub(crate) fn set_bond(&mut self, bond: Bond) {
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
        // Membership has changed, which also concerns flows without a dependency on the bond.
        bond.members.iter().for_each(|m| self.forget_port(*m));
        self.epoch += 1;
    }

    /// Removes a bond: its members become plain ports.
    pub(crate) fn remove_bond(&mut self, name: &str) {
        if let Some(i) = self.bonds.iter().position(|s| s.bond.name == name) {
            let gone = self.bonds.remove(i);
            gone.bond.members.iter().for_each(|m| self.forget_port(*m));
            self.epoch += 1;
        }
    }
}
