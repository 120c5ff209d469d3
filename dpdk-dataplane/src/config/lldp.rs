//! LLDP: what `lldp:enable` of an `Interface` and `auto_attach` of its bridge ask for (ovs-vswitchd.conf.db(5), "Auto
//! Attach Configuration").

use ovn_schema::{options, ovs};
use packet::VlanId;

/// An interface that tells its neighbours of itself, and listens to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LldpSpec {
    /// The interface's name.
    pub port: String,
    /// `AutoAttach:system_name`.
    pub system_name: String,
    /// `AutoAttach:system_description`.
    pub system_description: String,
    /// `AutoAttach:mappings`: services, and the VLANs that are asked for.
    pub mappings: Vec<(u32, VlanId)>,
}

/// What an interface says and asks for, if it speaks LLDP.
pub(super) fn lldp(i: &ovs::Interface, attach: Option<&ovs::AutoAttach>) -> Option<LldpSpec> {
    if !options::flag(&i.lldp, "enable") {
        return None;
    }
    let mut spec = LldpSpec { port: i.name.to_string(), ..LldpSpec::default() };
    if let Some(a) = attach {
        (spec.system_name, spec.system_description) = (a.system_name.to_string(), a.system_description.to_string());
        // The column's ranges are those of the numbers.
        let of = |(isid, vlan): (&i64, &i64)| Some((*isid as u32, VlanId::try_from(*vlan).ok()?));
        spec.mappings = a.mappings.iter().filter_map(of).collect();
    }
    Some(spec)
}
