//! VLANs of ports, as `NORMAL` treats them.

/// VLANs of a port, for `NORMAL` (ovs-vswitchd.conf.db(5), Port `vlan_mode`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VlanMode {
    /// Tagged; empty is all VLANs.
    Trunk(Vec<u16>),
    /// Untagged in one VLAN.
    Access(u16),
    /// As a trunk, with untagged packets in one VLAN, sent untagged.
    NativeUntagged(u16, Vec<u16>),
    /// As a trunk, with untagged packets in one VLAN, sent tagged.
    NativeTagged(u16, Vec<u16>),
    /// All packets in one VLAN, whatever tags they have (IEEE 802.1ad, `dot1q-tunnel`).
    Dot1qTunnel {
        /// The service VLAN.
        vlan: u16,
        /// The customers' VLANs that are taken; empty is all.
        customers: Vec<u16>,
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
    pub(crate) fn ingress(&self, tci: u16) -> Option<u16> {
        let tag = (tci & 0x1000 != 0 && tci & 0xfff != 0).then_some(tci & 0xfff);
        match (self, tag) {
            (VlanMode::Access(v), None) => Some(*v),
            (VlanMode::Access(_), Some(_)) => None,
            (VlanMode::Dot1qTunnel { vlan, customers, .. }, tag) => {
                (customers.is_empty() || customers.contains(&tag.unwrap_or(0))).then_some(*vlan)
            }
            (VlanMode::Trunk(_), None) => self.carries(0).then_some(0),
            (VlanMode::NativeTagged(n, _) | VlanMode::NativeUntagged(n, _), None) => Some(*n),
            (_, Some(v)) => self.carries(v).then_some(v),
        }
    }

    pub(crate) fn carries(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(v) | VlanMode::Dot1qTunnel { vlan: v, .. } => *v == vlan,
            VlanMode::Trunk(t) => t.is_empty() || t.contains(&vlan),
            VlanMode::NativeTagged(n, t) | VlanMode::NativeUntagged(n, t) => {
                // Untagged packets belong to the native VLAN.
                *n == vlan || vlan != 0 && (t.is_empty() || t.contains(&vlan))
            }
        }
    }

    /// Whether a packet of a VLAN, with this inner VLAN (0: none), may be sent.
    pub(crate) fn admits(&self, vlan: u16, inner: u16) -> bool {
        match self {
            VlanMode::Access(_) => self.carries(vlan) && inner == 0,
            VlanMode::Dot1qTunnel { customers, .. } => {
                self.carries(vlan) && (customers.is_empty() || customers.contains(&inner))
            }
            _ => self.carries(vlan),
        }
    }

    pub(crate) fn sends_untagged(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(_) | VlanMode::Dot1qTunnel { .. } => true,
            VlanMode::NativeUntagged(n, _) => *n == vlan,
            _ => vlan == 0,
        }
    }
}
