//! Whether the links are there by which the gateway ports of this chassis reach the physical network. A gateway that has
//! lost its own is to resign, though its tunnels live ([`gateway_ha::Takeover::observe_uplink`]).

use crate::model::Input;
use crate::presence::Presence;
use crate::settings::{Settings, bridge, interfaces};
use ovn_schema::{Str, Uuid, ovs, sb};
use std::fmt;

/// An uplink that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    network: Str,
    bridge: Str,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost { network, bridge } = self;
        write!(
            f,
            "bridge {bridge} of network {network} has lost its link; this chassis gives its gateway ports to others \
             until it is back"
        )
    }
}

/// The first uplink that is lost, of those that gateway ports of groups with several members need.
pub fn lost(db: &ovs::Database, input: &Input, here: &Presence, s: &Settings) -> Option<Lost> {
    if here.watched.is_empty() {
        return None;
    }
    here.patches.iter().find_map(|(port, (kind, network))| {
        let network = network.as_ref().filter(|_| &**kind == "localnet")?;
        let name = s.mappings.get(network)?;
        let (_, br) = bridge(db, name)?;
        let (_, row) = input.port(port)?;
        (is_down(db, br) && serves_gateways(input, row.datapath))
            .then(|| Lost { network: network.clone(), bridge: name.clone() })
    })
}

/// All devices of a bridge have lost their links. A device of which the switch does not say so has its link.
fn is_down(db: &ovs::Database, br: &ovs::Bridge) -> bool {
    let inner = |i: &ovs::Interface| matches!(&*i.r#type, "internal" | "patch") || i.name == br.name;
    let mut links = interfaces(db, br).filter(|(.., i)| !inner(i)).peekable();
    links.peek().is_some() && links.all(|(.., i)| i.link_state.as_deref() == Some("down"))
}

/// A switch has a router's gateway port that this chassis may serve, as others may.
fn serves_gateways(input: &Input, switch: Uuid) -> bool {
    let is_member = |g: &sb::HaChassisGroup| {
        let mut members = g.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h)?.chassis);
        g.ha_chassis.len() > 1 && members.any(|c| Some(c) == input.local.chassis)
    };
    input.ports_of(switch).filter_map(|(_, p)| p.options.get("peer")).any(|peer| {
        let gateway = input.port(&format!("cr-{peer}"));
        let group = gateway.and_then(|(_, p)| input.sb.ha_chassis_group.get(&p.ha_chassis_group?));
        group.is_some_and(|g| is_member(g))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Local;
    use ovn_schema::Map;
    use std::sync::Arc;

    const ME: u128 = 1;

    /// A public switch with a localnet port and a router's gateway port, which chassis 1 and, if there is one, 2 may serve.
    fn southbound(members: u128) -> sb::Database {
        let (mut db, uuid) = (sb::Database::default(), Uuid::from_u128);
        for n in 1..=members {
            let h = sb::HaChassis { priority: 1, chassis: Some(uuid(n)), ..Default::default() };
            db.ha_chassis.insert(uuid(10 + n), Arc::new(h));
        }
        let ha_chassis = (1..=members).map(|n| uuid(10 + n)).collect();
        db.ha_chassis_group.insert(uuid(20), Arc::new(sb::HaChassisGroup { ha_chassis, ..Default::default() }));
        let (switch, router) = (uuid(30), uuid(31));
        let options = |pairs: &[(&str, &str)]| -> Map<Str, Str> {
            pairs.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect()
        };
        let rows = [
            ("public-physical", switch, "localnet", options(&[("network_name", "physnet1")]), None),
            ("public-edge", switch, "patch", options(&[("peer", "edge-public")]), None),
            ("cr-edge-public", router, "chassisredirect", options(&[]), Some(uuid(20))),
        ];
        for (n, (name, datapath, kind, options, ha_chassis_group)) in (40..).zip(rows) {
            let row = sb::PortBinding {
                logical_port: name.into(),
                datapath,
                r#type: kind.into(),
                options,
                ha_chassis_group,
                ..Default::default()
            };
            db.port_binding.insert(uuid(n), Arc::new(row));
        }
        db
    }

    /// The bridge br-phys with devices of these links.
    fn local(links: &[Option<&str>]) -> ovs::Database {
        let (mut db, uuid) = (ovs::Database::default(), Uuid::from_u128);
        let mut ports = Vec::new();
        let own = [("br-phys".to_owned(), "internal", Some("down"))];
        let devices = links.iter().enumerate().map(|(n, l)| (format!("eth{n}"), "", *l));
        for (n, (name, kind, link)) in (100..).zip(own.into_iter().chain(devices)) {
            let i = ovs::Interface {
                name: name.as_str().into(),
                r#type: kind.into(),
                link_state: link.map(Str::from),
                ..Default::default()
            };
            db.interface.insert(uuid(n), Arc::new(i));
            let p = ovs::Port { name: name.as_str().into(), interfaces: [uuid(n)].into(), ..Default::default() };
            db.port.insert(uuid(1000 + n), Arc::new(p));
            ports.push(uuid(1000 + n));
        }
        let br = ovs::Bridge { name: "br-phys".into(), ports: ports.into_iter().collect(), ..Default::default() };
        db.bridge.insert(uuid(1), Arc::new(br));
        db
    }

    fn is_lost(members: u128, me: u128, links: &[Option<&str>]) -> bool {
        let of = Local { chassis: Some(Uuid::from_u128(me)), ..Local::default() };
        let input = Input::new(southbound(members), of);
        let mut here = Presence::default();
        here.watched.insert(Uuid::from_u128(2));
        here.patches.insert("public-physical".into(), ("localnet".into(), Some("physnet1".into())));
        let s = Settings { mappings: [("physnet1".into(), "br-phys".into())].into(), ..Settings::default() };
        lost(&local(links), &input, &here, &s).is_some()
    }

    #[test]
    fn an_uplink_is_lost_with_the_last_of_its_links() {
        let (up, down) = (Some("up"), Some("down"));
        assert!(is_lost(2, ME, &[down]));
        assert!(is_lost(2, ME, &[down, down]));
        assert!(!is_lost(2, ME, &[down, up]), "the bridge has another link");
        assert!(!is_lost(2, ME, &[None]), "the switch does not know");
        assert!(!is_lost(2, ME, &[]), "a bridge without devices has none to lose");
        assert!(!is_lost(1, ME, &[down]), "nobody else could serve");
        assert!(!is_lost(2, 7, &[down]), "it is no gateway of this port");
    }
}
