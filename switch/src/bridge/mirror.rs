//! Port mirrors: copies of what ports receive and send (ovs-vswitchd.conf.db(5), table Mirror).

use crate::bridge::Bridge;
use openflow_rs::{Match, PortNo};
use packet::VlanId;
use std::collections::BTreeSet;

/// Most mirrors of a bridge, as in Open vSwitch.
pub const MOST_MIRRORS: usize = 32;

/// Where copies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorOutput {
    /// A port.
    Port(PortNo),
    /// All ports of a VLAN (RSPAN).
    Vlan(VlanId),
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
    pub vlans: BTreeSet<VlanId>,
    /// Only packets that match, as they are where they are copied; none: all.
    pub filter: Option<Match>,
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

    /// Whether a port gets flooded packets: not the output of a mirror, nor a member of a bond that another stands for.
    pub(crate) fn floods_to(&self, no: PortNo) -> bool {
        !self.is_mirror_output(no) && !self.is_behind(no)
    }

    /// Whether a port is the output of a mirror: NORMAL neither receives from it nor sends to it.
    pub(crate) fn is_mirror_output(&self, no: PortNo) -> bool {
        self.mirrors.iter().any(|m| m.output == MirrorOutput::Port(no))
    }
}
