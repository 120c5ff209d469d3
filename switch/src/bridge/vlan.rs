//! VLANs of ports, as `NORMAL` treats them.

use packet::VlanId;

/// VLANs of a port, for `NORMAL` (ovs-vswitchd.conf.db(5), Port `vlan_mode`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VlanMode {
    /// Tagged; empty is all VLANs.
    Trunk(Vec<VlanId>),
    /// Untagged in one VLAN.
    Access(VlanId),
    /// As a trunk, with untagged packets in one VLAN, sent untagged.
    NativeUntagged(VlanId, Vec<VlanId>),
    /// As a trunk, with untagged packets in one VLAN, sent tagged.
    NativeTagged(VlanId, Vec<VlanId>),
    /// All packets in one VLAN, whatever tags they have (IEEE 802.1ad, `dot1q-tunnel`).
    Dot1qTunnel {
        /// The service VLAN.
        vlan: VlanId,
        /// The customers' VLANs that are taken; empty is all.
        customers: Vec<VlanId>,
        /// The service tag's EtherType.
        tpid: u16,
    },
}

/// Whether packets that are sent untagged keep a tag for their priority (ovs-vswitchd.conf.db(5), Port
/// `other_config:priority-tags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PriorityTags {
    /// No.
    #[default]
    Never,
    /// If it has a priority.
    IfNonzero,
    /// Always.
    Always,
}

impl VlanMode {
    /// The VLAN of a packet that arrives with this tag; `None` if it is not allowed.
    pub(crate) fn ingress(&self, tci: u16) -> Option<VlanId> {
        let tag = (tci & 0x1000 != 0).then_some(VlanId::of_tci(tci)).filter(|v| *v != VlanId::NONE);
        match (self, tag) {
            (VlanMode::Access(v), None) => Some(*v),
            (VlanMode::Access(_), Some(_)) => None,
            (VlanMode::Dot1qTunnel { vlan, customers, .. }, tag) => {
                (customers.is_empty() || customers.contains(&tag.unwrap_or_default())).then_some(*vlan)
            }
            (VlanMode::Trunk(_), None) => self.carries(VlanId::NONE).then_some(VlanId::NONE),
            (VlanMode::NativeTagged(n, _) | VlanMode::NativeUntagged(n, _), None) => Some(*n),
            (_, Some(v)) => self.carries(v).then_some(v),
        }
    }

    pub(crate) fn carries(&self, vlan: VlanId) -> bool {
        match self {
            VlanMode::Access(v) | VlanMode::Dot1qTunnel { vlan: v, .. } => *v == vlan,
            VlanMode::Trunk(t) => t.is_empty() || t.contains(&vlan),
            VlanMode::NativeTagged(n, t) | VlanMode::NativeUntagged(n, t) => {
                // Untagged packets belong to the native VLAN.
                *n == vlan || vlan != VlanId::NONE && (t.is_empty() || t.contains(&vlan))
            }
        }
    }

    /// Whether a packet of a VLAN, with this inner VLAN, may be sent.
    pub(crate) fn admits(&self, vlan: VlanId, inner: VlanId) -> bool {
        match self {
            VlanMode::Access(_) => self.carries(vlan) && inner == VlanId::NONE,
            VlanMode::Dot1qTunnel { customers, .. } => {
                self.carries(vlan) && (customers.is_empty() || customers.contains(&inner))
            }
            _ => self.carries(vlan),
        }
    }

    pub(crate) fn sends_untagged(&self, vlan: VlanId) -> bool {
        match self {
            VlanMode::Access(_) | VlanMode::Dot1qTunnel { .. } => true,
            VlanMode::NativeUntagged(n, _) => *n == vlan,
            _ => vlan == VlanId::NONE,
        }
    }
}
