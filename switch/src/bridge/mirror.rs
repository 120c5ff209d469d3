//! Mirrors: copies of what ports receive and send, for somebody who looks on (ovs-vswitchd.conf.db(5), table Mirror).

use crate::bridge::{Bridge, Port, VlanMode};
use crate::buf::PacketBuf;
use crate::drops::DropReason;
use crate::xlate::Xlate;
use openflow_rs::{FieldId as F, PortNo};
use std::collections::BTreeSet;

/// Mirrors of a bridge, at most, as in Open vSwitch.
pub const MOST_MIRRORS: usize = 32;

/// Where copies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorOutput {
    /// A port.
    Port(PortNo),
    /// All ports of a VLAN (RSPAN).
    Vlan(u16),
}

/// What is copied, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Name.
    pub name: String,
    /// All that any port receives or sends.
    pub all: bool,
    /// What these receive.
    pub sources: BTreeSet<PortNo>,
    /// What these send.
    pub destinations: BTreeSet<PortNo>,
    /// Only packets of these VLANs; empty is all.
    pub vlans: BTreeSet<u16>,
    /// Where copies go.
    pub output: MirrorOutput,
    /// The longest copy, in bytes.
    pub snaplen: Option<usize>,
}

impl Bridge {
    /// Sets the bridge's mirrors; of more than [`MOST_MIRRORS`] the first ones.
    pub fn set_mirrors(&mut self, mut mirrors: Vec<Mirror>) {
        mirrors.truncate(MOST_MIRRORS);
        if self.mirrors != mirrors {
            self.mirrors = mirrors;
            self.epoch += 1;
        }
    }

    /// The bridge's mirrors.
    pub fn mirrors(&self) -> &[Mirror] {
        &self.mirrors
    }

    /// Whether a port gets what goes to all: not where copies go, nor a member that another stands for.
    pub(crate) fn floods_to(&self, no: PortNo) -> bool {
        !self.is_mirror_output(no) && !self.is_behind(no)
    }

    /// Whether a port is where a mirror's copies go: the learning switch neither takes from it nor gives to it.
    pub(crate) fn is_mirror_output(&self, no: PortNo) -> bool {
        self.mirrors.iter().any(|m| m.output == MirrorOutput::Port(no))
    }
}

impl<P: PacketBuf> Xlate<'_, P> {
    /// Takes a packet in at its port, and through the tables from there.
    pub(crate) fn arrive(&mut self) {
        let no = PortNo(self.key.get(F::InPort) as u16);
        self.key.set(F::ActsetOutput, PortNo::UNSET.0.into());
        let port = self.sw.bridges.get(self.bridge).and_then(|b| b.ports.get(&no));
        if port.is_some_and(|p| p.config & (Port::DOWN | Port::NO_RECV) != 0) {
            return self.because(DropReason::PortConfig);
        }
        self.copy(no, true);
        if !self.slow_protocol(no) {
            self.run_table(0);
        }
    }

    /// Copies what a port receives or sends to the mirrors that want it and have no copy yet.
    pub(crate) fn copy(&mut self, no: PortNo, received: bool) {
        let Some(b) = self.sw.bridges.get(self.bridge).filter(|b| !b.mirrors.is_empty()) else { return };
        let tci = self.key.get(F::VlanTci) as u16;
        let vlan = match b.ports.get(&no).map(|p| &p.vlan) {
            // What leaves an access port untagged is of its VLAN.
            Some(VlanMode::Access(v) | VlanMode::Dot1qTunnel { vlan: v, .. }) => *v,
            Some(mode) => mode.ingress(tci).unwrap_or(tci & 0xfff),
            None => tci & 0xfff,
        };
        let wants = |m: &Mirror| {
            let ports = if received { &m.sources } else { &m.destinations };
            (m.all || ports.contains(&no)) && (m.vlans.is_empty() || m.vlans.contains(&vlan))
        };
        let mut list = Vec::new();
        for (i, m) in b.mirrors.iter().enumerate() {
            if self.mirrored >> i & 1 == 0 && wants(m) {
                // Mirrors with the same place for copies share one copy.
                for (j, other) in b.mirrors.iter().enumerate() {
                    self.mirrored |= u32::from(other.output == m.output) << j;
                }
                list.push(m.clone());
            }
        }
        if list.is_empty() {
            return;
        }
        // Which copies were made before decides, too.
        self.stretch_ends();
        let last = std::mem::take(&mut self.last);
        for m in list {
            match m.output {
                MirrorOutput::Port(p) if p == no => {}
                MirrorOutput::Port(p) if m.snaplen.is_some() => self.copy_short(p, m.snaplen.unwrap_or_default()),
                MirrorOutput::Port(p) => self.emit(p),
                MirrorOutput::Vlan(v) => self.copy_to_vlan(v, vlan),
            }
        }
        self.last = last;
        self.stretch_ends();
    }

    fn copy_short(&mut self, port: PortNo, n: usize) {
        self.shortened(n, |x| x.emit(port));
    }

    fn copy_to_vlan(&mut self, vlan: u16, of: u16) {
        // A copy within the packet's own VLAN would be a loop.
        if vlan == of {
            return;
        }
        let Some(b) = self.sw.bridges.get(self.bridge) else { return };
        let ports: Vec<PortNo> =
            b.ports.values().filter(|p| p.vlan.carries(vlan) && b.floods_to(p.no)).map(|p| p.no).collect();
        let came = self.key.get(F::VlanTci);
        for p in ports {
            self.emit_vlan(p, vlan, came);
        }
    }
}
