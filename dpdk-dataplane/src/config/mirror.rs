//! Mirrors (`Mirror`), with ports by name.

use super::vlans;
use openflow_rs::Match;
use ovn_schema::{Uuid, ovs};
use packet::VlanId;

/// Where a mirror sends copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorTarget {
    /// To this port.
    Port(String),
    /// To this VLAN.
    Vlan(VlanId),
}

/// A mirror.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorSpec {
    /// The row.
    pub uuid: Uuid,
    /// Name.
    pub name: String,
    /// `select_all`: all packets of all ports.
    pub all: bool,
    /// Ports whose received packets are mirrored.
    pub sources: Vec<String>,
    /// Ports whose sent packets are mirrored.
    pub destinations: Vec<String>,
    /// Only packets of these VLANs; empty: of all.
    pub vlans: Vec<VlanId>,
    /// Only packets that match; none: all.
    pub filter: Option<Match>,
    /// Where copies go; none: the mirror does nothing.
    pub output: Option<MirrorTarget>,
    /// Copies are cut to so many bytes.
    pub snaplen: Option<usize>,
}

pub(super) fn mirror(db: &ovs::Database, uuid: Uuid, m: &ovs::Mirror) -> MirrorSpec {
    // The switch mirrors interfaces: those of a bond are each selected.
    let interfaces = |ports: &ovn_schema::Set<Uuid>| {
        let interfaces = ports.iter().filter_map(|id| db.port.get(id)).flat_map(|p| p.interfaces.iter());
        interfaces.filter_map(|id| db.interface.get(id)).map(|i| i.name.to_string()).collect::<Vec<String>>()
    };
    let text = m.filter.as_ref().filter(|f| !f.is_empty());
    let filter = text.map(|f| f.parse::<Match>());
    if let Some(Err(e)) = &filter {
        tracing::warn!(target: "bridge", "mirror {}: filter: {e}; the mirror is off", m.name);
    }
    let off = matches!(filter, Some(Err(_)));
    let out = m.output_port.map(|id| interfaces(&[id].into_iter().collect()).into_iter().next());
    MirrorSpec {
        uuid,
        name: m.name.to_string(),
        all: m.select_all,
        sources: interfaces(&m.select_src_port),
        destinations: interfaces(&m.select_dst_port),
        vlans: vlans(&m.select_vlan),
        filter: filter.and_then(Result::ok),
        output: match (out, m.output_vlan) {
            _ if off => None,
            (Some(port), _) => port.map(MirrorTarget::Port),
            (None, vlan) => vlan.and_then(|v| v.try_into().ok()).map(MirrorTarget::Vlan),
        },
        // The largest one is none.
        snaplen: m.snaplen.and_then(|n| usize::try_from(n).ok()).filter(|n| *n < usize::from(u16::MAX)),
    }
}
