//! Whether this chassis reaches the physical networks of its gateway ports: by the links of the bridge's devices, and by
//! next hops that answer ([`crate::pinctrl::probes`]). A gateway that does not is to resign, though its tunnels live
//! ([`gateway_ha::Takeover::observe_uplink`]), unless the others have said that they do not reach the network either.

use crate::input::model::Input;
use crate::input::settings::{Settings, bridge, interfaces};
use crate::pinctrl::probes::{self, Hop, Probes, Question};
use crate::units::flows::provider_output;
use crate::units::presence::Presence;
use ovn_schema::{Str, Uuid, ovs, sb};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// `Chassis:other_config`: the networks of gateway ports that a chassis does not reach, separated by commas.
pub const PUBLISHED: &str = "isthmus-lost-networks";

/// A network that this chassis does not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    network: Str,
    why: Why,
    /// Another gateway has not said that it does not reach it either.
    elsewhere: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// The bridge that has no link.
    Link(Str),
    /// The next hops that do not answer.
    NextHops(Vec<IpAddr>),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost { network, why, elsewhere } = self;
        match why {
            Why::Link(bridge) => write!(f, "bridge {bridge} of network {network} has lost its link; ")?,
            Why::NextHops(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                write!(f, "next hops of network {network} do not answer: {}; ", all.join(", "))?;
            }
        }
        match elsewhere {
            true => write!(f, "this chassis gives its gateway ports to others until it is back"),
            false => write!(f, "no other gateway reaches it either, so this chassis keeps its gateway ports"),
        }
    }
}

/// The networks of gateway ports, as this chassis sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uplinks {
    /// Those that it does not reach, and problems of the option that names next hops.
    pub lost: Vec<Lost>,
    bad: Vec<String>,
}

impl Uplinks {
    /// Whether this chassis is to give its gateway ports to others.
    pub fn resigns(&self) -> bool {
        self.lost.iter().any(|l| l.elsewhere)
    }

    /// The names of networks that it does not reach.
    pub fn networks(&self) -> BTreeSet<Str> {
        self.lost.iter().map(|l| l.network.clone()).collect()
    }

    /// What is to be said that was not said before.
    pub fn news(&self, before: Option<&Uplinks>) -> Vec<String> {
        let lost = self.lost.iter().filter(|l| before.is_none_or(|b| !b.lost.contains(l))).map(ToString::to_string);
        lost.chain(self.bad.iter().filter(|t| before.is_none_or(|b| !b.bad.contains(t))).cloned()).collect()
    }
}

/// A localnet port behind which this chassis may serve a router's gateway port, as others may.
struct Needed<'a> {
    id: Uuid,
    row: &'a sb::PortBinding,
    network: &'a Str,
    bridge: &'a Str,
}

fn needed<'a>(input: &'a Input, here: &'a Presence, s: &'a Settings) -> impl Iterator<Item = Needed<'a>> {
    here.patches.iter().filter(|_| !here.watched.is_empty()).filter_map(|(port, (kind, network))| {
        let network = network.as_ref().filter(|_| &**kind == "localnet")?;
        let bridge = s.mappings.get(network)?;
        let (id, row) = input.port(port)?;
        let serves = groups(input, row.datapath).next().is_some();
        serves.then_some(Needed { id, row, network, bridge })
    })
}

/// The next hops to ask, and how.
pub fn questions(input: &Input, here: &Presence, s: &Settings) -> BTreeMap<Hop, Question> {
    let mut all = BTreeMap::new();
    let Some(chassis) = input.local.chassis else { return all };
    for n in needed(input, here, s) {
        let Some(ofport) = input.local.localnets.get(&n.row.logical_port) else { continue };
        let tag = n.row.tag.and_then(|t| u16::try_from(t).ok()).filter(|t| *t != 0);
        let output = provider_output(n.row, *ofport, tag);
        let question = Question { mac: probes::asking_address(chassis), output };
        all.extend(probes::next_hops(n.row).0.into_iter().map(|ip| ((n.id, ip), question.clone())));
    }
    all
}

/// Looks at the links and the next hops of the networks of gateway ports.
pub fn look(db: &ovs::Database, input: &Input, here: &Presence, s: &Settings, probes: &Probes) -> Uplinks {
    let mut all = Uplinks::default();
    for n in needed(input, here, s) {
        for word in probes::next_hops(n.row).1 {
            let (port, option) = (&n.row.logical_port, probes::OPTION);
            all.bad.push(format!("port {port}: options:{option} has {word}, which is no IP address; it is left out"));
        }
        let silent = probes.lost(n.id);
        let why = match bridge(db, n.bridge) {
            Some((_, br)) if is_down(db, br) => Why::Link(n.bridge.clone()),
            Some(_) if !silent.is_empty() => Why::NextHops(silent),
            _ => continue,
        };
        let elsewhere = others(input, n.row.datapath).any(|c| !has_lost(c, n.network));
        all.lost.push(Lost { network: n.network.clone(), why, elsewhere });
    }
    all
}

/// A chassis has said that it does not reach a network. One that nothing is known of has not.
fn has_lost(chassis: Option<&sb::Chassis>, network: &str) -> bool {
    let said = chassis.and_then(|c| c.other_config.get(PUBLISHED));
    said.is_some_and(|names| names.split(',').any(|n| n == network))
}

/// All devices of a bridge have lost their links. A device of which the switch does not say so has its link.
fn is_down(db: &ovs::Database, br: &ovs::Bridge) -> bool {
    let inner = |i: &ovs::Interface| matches!(&*i.r#type, "internal" | "patch") || i.name == br.name;
    let mut links = interfaces(db, br).filter(|(.., i)| !inner(i)).peekable();
    links.peek().is_some() && links.all(|(.., i)| i.link_state.as_deref() == Some("down"))
}

/// The groups with several members, this chassis among them, that serve gateway ports of routers at a switch.
fn groups(input: &Input, switch: Uuid) -> impl Iterator<Item = &sb::HaChassisGroup> {
    let is_member = |g: &&sb::HaChassisGroup| {
        let mut members = g.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h)?.chassis);
        g.ha_chassis.len() > 1 && members.any(|c| Some(c) == input.local.chassis)
    };
    let gateways = input.ports_of(switch).filter_map(|(_, p)| p.options.get("peer")).filter_map(|peer| {
        let (_, gateway) = input.port(&format!("cr-{peer}"))?;
        input.sb.ha_chassis_group.get(&gateway.ha_chassis_group?).map(|g| &**g)
    });
    gateways.filter(is_member)
}

/// The other members of these groups, as far as their rows are there.
fn others(input: &Input, switch: Uuid) -> impl Iterator<Item = Option<&sb::Chassis>> {
    let members = groups(input, switch).flat_map(|g| g.ha_chassis.iter());
    let chassis =
        members.filter_map(|h| input.sb.ha_chassis.get(h)?.chassis).filter(|c| Some(*c) != input.local.chassis);
    chassis.map(|c| input.sb.chassis.get(&c).map(|c| &**c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use ovn_schema::Map;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

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
        look_at(southbound(members), me, links).resigns()
    }

    fn look_at(db: sb::Database, me: u128, links: &[Option<&str>]) -> Uplinks {
        let localnets = [("public-physical".into(), 3)].into();
        let of = Local { chassis: Some(Uuid::from_u128(me)), localnets, ..Local::default() };
        let input = Input::new(db, of);
        let mut here = Presence::default();
        here.watched.insert(Uuid::from_u128(2));
        here.patches.insert("public-physical".into(), ("localnet".into(), Some("physnet1".into())));
        let s = Settings { mappings: [("physnet1".into(), "br-phys".into())].into(), ..Settings::default() };
        let (mut probes, mut now) = (Probes::default(), Instant::now());
        // Nobody answers.
        for _ in 0..5 {
            probes.observe(questions(&input, &here, &s), now);
            drop(probes.due(now));
            now += Duration::from_secs(1);
        }
        look(&local(links), &input, &here, &s, &probes)
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

    /// The localnet port names these next hops, and chassis 2 says that it has lost these networks.
    fn with_next_hops(hops: &str, lost: &str) -> sb::Database {
        let mut db = southbound(2);
        let port = db.port_binding.values_mut().find(|p| &*p.r#type == "localnet").expect("a localnet port");
        Arc::make_mut(port).options.insert(probes::OPTION.into(), hops.into());
        let mut gw2 = sb::Chassis::default();
        gw2.other_config.insert(PUBLISHED.into(), lost.into());
        db.chassis.insert(Uuid::from_u128(2), Arc::new(gw2));
        db
    }

    #[test]
    fn a_gateway_whose_next_hops_are_silent_resigns_unless_the_others_have_lost_them_too() {
        let up = [Some("up")];
        let u = look_at(with_next_hops("192.0.2.1", ""), ME, &up);
        assert!(u.resigns());
        let said = "next hops of network physnet1 do not answer: 192.0.2.1; this chassis gives its gateway ports to \
                    others until it is back";
        assert_eq!((u.news(None), u.news(Some(&u))), (vec![said.to_owned()], vec![]));
        assert!(look_at(with_next_hops("2001:db8::1", "physnet2"), ME, &up).resigns());
        let kept = look_at(with_next_hops("192.0.2.1", "physnet2,physnet1"), ME, &up);
        assert!(
            !kept.resigns() && kept.networks().len() == 1,
            "it is said, so that another one that gets it back serves"
        );
        assert!(!look_at(with_next_hops("", ""), ME, &up).resigns());
        let bad = look_at(with_next_hops("router", ""), ME, &up);
        assert!(!bad.resigns() && bad.news(None)[0].contains("router, which is no IP address"));
    }
}
