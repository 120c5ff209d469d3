//! Changes of one input each, and any sequence of them.

use crate::chassis::Chassis;
use crate::rows::*;
use controller::input::model::Vif;
use ovn_schema::{Map, sb};
use proptest::prelude::*;

pub const SWITCHES: usize = 4;
pub const PORTS: usize = 6;

/// A change of one of the inputs.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Datapath(usize, bool),
    /// A port of a switch: absent, unbound, here, elsewhere, or a container of another.
    Port(usize, u8),
    Patch(usize, usize, bool),
    Flow(usize, u8),
    Group(u8),
    Neighbour(usize, u8),
    Forwarding(usize, u8),
    Multicast(usize, bool),
    Members(u8),
    Global(u8),
    /// An interface: absent, without a number yet, or there.
    Plug(usize, u8),
    Tunnel(u16),
    /// A port of a provider network, and whether its patch port has a number.
    Localnet(usize, u8, bool),
    /// Who is in the group of gateways.
    Gateways(u8),
    /// Which chassis are alive, whether this one is still starting, and whether ports change hands.
    Alive(u8),
    /// The encapsulations of this chassis.
    Encaps(u8),
    /// A row of names: of which datapaths, and what it says.
    Names(usize, u8, u8),
    /// The other chassis: how many addresses it has, and what else it says.
    Peer(u8),
    /// What the operator wants of tunnels.
    Tunnelling(u8),
    /// A health check of a port, and what it says.
    Check(usize, u8),
    /// A next hop behind a port.
    NextHop(usize, bool),
    /// A BFD session of a port: absent, for any next hop, one of another family, or needed by nobody.
    Session(usize, u8),
    /// A prefix of a port, absent or tracked by another one.
    Advertised(usize, u8),
    /// A mirror: absent, or to which kind of sink.
    Mirror(u8),
    /// What came so far is derived.
    Derive,
}

impl Chassis {
    pub fn step(&mut self, s: Step) {
        match s {
            // The last one is a router.
            Step::Datapath(n, there) if n == SWITCHES - 1 => {
                let external_ids = Map::from([(text("logical-router"), text("x"))]);
                self.set(datapath(n), there.then(|| sb::DatapathBinding { external_ids, ..switch(n) }));
            }
            Step::Datapath(n, there) => self.set(datapath(n), there.then(|| switch(n))),
            Step::Port(n, kind) => {
                let mut p = port(n % SWITCHES, &format!("vm{n}"), n as i64 + 10);
                match kind {
                    2 => p.chassis = Some(ME),
                    3 => p.chassis = Some(OTHER),
                    4 => p.parent_port = Some(text("vm0")),
                    5 => drop(p.options.insert(text("requested-chassis"), text("hv2"))),
                    6 => (p.r#type, p.chassis) = (text("l2gateway"), Some(ME)),
                    7 | 8 => {
                        p.r#type = text(if kind == 7 { "chassisredirect" } else { "external" });
                        p.ha_chassis_group = Some(id(12, 0));
                        p.options.insert(text("distributed-port"), text("vm3"));
                    }
                    9 => (p.r#type, p.virtual_parent) = (text("virtual"), Some(text("vm0"))),
                    10 => p.r#type = text("localport"),
                    11 => {
                        // One with all that a machine's port may bring, reported down.
                        (p.chassis, p.up) = (Some(ME), Some(false));
                        p.mac = [text("02:00:00:00:00:01 10.0.0.1")].into();
                        p.mirror_rules = [id(13, 0)].into();
                        let pairs = [
                            ("ct-zone-limit", "5"),
                            ("qdisc_queue_id", "3"),
                            ("qos_physical_network", "phys"),
                            ("qos_min_rate", "7"),
                        ];
                        p.options.extend(pairs.map(|(k, v)| (text(k), text(v))));
                    }
                    12 => (p.chassis, p.up, p.encap) = (Some(ME), Some(true), Some(id(14, 0))),
                    15 => p.chassis = Some(id(22, 99)),
                    13 => p.additional_chassis = [ME].into(),
                    14 => {
                        (p.r#type, p.chassis) = (text("l3gateway"), Some(ME));
                        p.mac = [text("02:00:00:00:00:02 10.0.0.2/24")].into();
                        p.options.extend(["ipv6_prefix", "dynamic-routing"].map(|o| (text(o), text("true"))));
                        p.nat_addresses = [text("02:00:00:00:00:02 10.0.0.2 is_chassis_resident(\"vm1\")")].into();
                        p.options.insert(text("peer"), text("vm2"));
                    }
                    // A distributed port of a router, and a redirect port of the next one.
                    16 => {
                        p.r#type = text("patch");
                        p.mac = [text("02:00:00:00:00:03 10.0.0.3/24")].into();
                        p.options.insert(text("peer"), text("vm2"));
                        p.options.insert(text("chassis-redirect-port"), text(format!("cr-vm{n}")));
                        p.options.extend(["ipv6_prefix", "ipv6_prefix_delegation"].map(|o| (text(o), text("true"))));
                    }
                    17 => {
                        p.logical_port = text(format!("cr-vm{}", (n + 1) % PORTS));
                        (p.r#type, p.chassis) = (text("chassisredirect"), Some(ME));
                        p.options.insert(text("dynamic-routing"), text("true"));
                        p.options.insert(text("dynamic-routing-redistribute-local-only"), text("true"));
                    }
                    // A gateway port that the other chassis has claimed.
                    18 => {
                        (p.r#type, p.chassis) = (text("chassisredirect"), Some(OTHER));
                        p.ha_chassis_group = Some(id(12, 0));
                        p.options.insert(text("distributed-port"), text("vm3"));
                    }
                    _ => {}
                }
                self.set(id(2, n), (kind > 0).then_some(p));
            }
            Step::Patch(a, b, there) => {
                let key = (a * SWITCHES + b) as i64 + 50;
                self.set(id(5, a * SWITCHES + b), there.then(|| patch(a, b, key)));
            }
            Step::Flow(n, kind) => {
                let (m, actions) = match kind {
                    1 => (format!("inport == \"vm{}\"", n % PORTS), "next;".to_string()),
                    2 => ("ip4.src == $as".to_string(), "ct_lb_mark(backends=10.0.0.1:80,10.0.0.2:80);".to_string()),
                    6 => (
                        format!("ip4.dst == {{$as, 10.1.0.7}} && (ip4.src == $as) && tcp.dst == {{80, {n}}}"),
                        "drop;".to_string(),
                    ),
                    7 => ("inport == @pg && ip4.src == $as".to_string(), "drop;".to_string()),
                    3 => (
                        format!("outport == @pg && ip4.src == {{10.0.0.1, 10.0.0.{n}}} && tcp.dst == {{80, 443}}"),
                        "drop;".to_string(),
                    ),
                    4 => (
                        format!("is_chassis_resident(\"vm{}\")", n % PORTS),
                        format!("outport = \"vm{}\"; output;", n % PORTS),
                    ),
                    _ => ("ip".to_string(), "set_meter(1000); next;".to_string()),
                };
                let grouped = n % 3 == 0;
                let owner = if grouped { id(9, 0) } else { datapath(n % SWITCHES) };
                self.set(id(3, n), (kind > 0).then(|| flow(owner, grouped, n, &m, &actions)));
            }
            Step::Group(bits) => {
                let datapaths = (0..SWITCHES).filter(|n| bits >> n & 1 == 1).map(datapath).collect();
                self.set(id(9, 0), (bits > 0).then_some(sb::LogicalDpGroup { datapaths }));
            }
            Step::Neighbour(n, mac) => self.set(id(6, n), (mac > 0).then(|| neighbour(n, mac))),
            Step::Forwarding(n, port) => {
                let row = sb::Fdb {
                    mac: text(format!("02:00:00:00:01:{n:02x}")),
                    dp_key: (n % SWITCHES) as i64 + 1,
                    port_key: i64::from(port),
                    ..Default::default()
                };
                self.set(id(7, n), (port > 0).then_some(row));
            }
            Step::Multicast(n, there) => {
                let ports = (0..PORTS).filter(|p| p % SWITCHES == n).map(|p| id(2, p)).collect();
                let row =
                    sb::MulticastGroup { datapath: datapath(n), name: text("_MC_flood"), tunnel_key: 0x8000, ports };
                self.set(id(8, n), there.then_some(row));
            }
            Step::Members(bits) => {
                let ports = (0..PORTS).filter(|p| bits >> p & 1 == 1).map(|p| text(format!("vm{p}"))).collect();
                self.set(id(10, 0), (bits > 0).then(|| sb::PortGroup { name: text("1_pg"), ports }));
                // Sets of none to seventy members, so that they are in one part or in several.
                let each = if bits & 1 == 1 { 9 } else { 1 };
                let of = |b: u8| (0..each).map(move |k| text(format!("10.1.{k}.{b}")));
                let addresses = (0..8u8).filter(|b| bits >> b & 1 == 1).flat_map(of).collect();
                self.set(
                    id(11, 0),
                    (bits > 1).then(|| sb::AddressSet { name: text("as"), addresses, ..Default::default() }),
                );
            }
            Step::Global(n) => {
                let on = if n % 2 == 0 { "true" } else { "false" };
                let options = Map::from([(text("always_tunnel"), text(on))]);
                self.set(
                    id(0, 0),
                    Some(sb::SbGlobal { nb_cfg: n.into(), options, ipsec: n % 3 == 0, ..Default::default() }),
                );
            }
            Step::Plug(n, kind) => self.change_local(|l| match kind {
                0 => drop(l.vifs.remove(&*format!("vm{n}"))),
                1 => drop(l.vifs.insert(text(format!("vm{n}")), Vif { ofport: None, ..vif(n as u16 + 1) })),
                _ => drop(l.vifs.insert(text(format!("vm{n}")), vif(n as u16 + 1))),
            }),
            Step::Tunnel(n) => self.change_local(|l| l.tunnels = (n > 0).then(|| tunnel(n)).into_iter().collect()),
            Step::Localnet(n, kind, plugged) => {
                let (name, mut options) = (format!("ln{n}"), Map::from([(text("network_name"), text("phys"))]));
                let mut row = port(n, &name, 200);
                if kind == 2 {
                    drop(options.insert(text("localnet_learn_fdb"), text("true")));
                    (row.tag, row.tunnel_key) = (Some(5), 201);
                }
                (row.r#type, row.options) = (text("localnet"), options);
                self.set(id(15, n), (kind > 0).then_some(row));
                self.change_local(|l| match plugged {
                    true => drop(l.localnets.insert(text(name), 77)),
                    false => drop(l.localnets.remove(&*name)),
                });
            }
            Step::Gateways(bits) => {
                for (n, chassis) in [(0, ME), (1, OTHER)] {
                    let row = sb::HaChassis { chassis: Some(chassis), priority: n as i64 + 1, ..Default::default() };
                    self.set(id(16, n), (bits >> n & 1 == 1).then_some(row));
                }
                let members = (0..2).filter(|n| bits >> n & 1 == 1).map(|n| id(16, n)).collect();
                let ref_chassis = if bits & 4 == 4 { [OTHER].into() } else { [ME].into() };
                let group =
                    sb::HaChassisGroup { name: text("g"), ha_chassis: members, ref_chassis, ..Default::default() };
                self.set(id(12, 0), (bits > 0).then_some(group));
            }
            Step::Alive(bits) => self.change_local(|l| {
                l.gateways.alive = (bits & 1 == 1).then(|| text("hv2")).into_iter().collect();
                l.gateways.starting = bits & 2 == 2;
                let ports =
                    |bit: u8| (0..PORTS).filter(|_| bits & bit == bit).map(|n| text(format!("vm{n}"))).collect();
                (l.gateways.lingering, l.gateways.hushed) = (ports(4), ports(8));
            }),
            Step::Encaps(n) => {
                let mut me = (*self.input.sb.chassis[&ME]).clone();
                me.encaps = (0..usize::from(n)).map(|e| id(14, e)).collect();
                for e in 0..2 {
                    let options = Map::from([(text("is_default"), text(if e == 1 { "true" } else { "false" }))]);
                    let ip = text(format!("192.0.2.{e}"));
                    let row = sb::Encap { ip, options, r#type: text("geneve"), ..Default::default() };
                    self.set(id(14, e), (e < usize::from(n)).then_some(row));
                }
                self.set(ME, Some(me));
            }
            Step::Names(n, of, what) => {
                let datapaths = (0..SWITCHES).filter(|d| of >> d & 1 == 1).map(datapath).collect();
                let records = Map::from([(text("vm.example"), text(format!("10.0.0.{what}")))]);
                let row = sb::Dns { datapaths, records, ..Default::default() };
                self.set(id(17, n), (what > 0).then_some(row));
            }
            Step::Peer(kind) => {
                let mut c = peer(2).0;
                c.encaps = (0..usize::from(kind % 3)).map(|e| id(21, e)).collect();
                for e in 0..2 {
                    let encap = sb::Encap { ip: text(format!("198.51.100.{}", e + usize::from(kind))), ..peer(2).1 };
                    self.set(id(21, e), c.encaps.contains(&id(21, e)).then_some(encap));
                }
                match kind {
                    0 | 2 => drop(c.other_config.insert(text("isthmus-orderly"), text("true"))),
                    3 => drop(c.other_config.insert(text("is-remote"), text("true"))),
                    4 => c.transport_zones = [text("z")].into(),
                    5 => c.other_config.extend(["is-vtep", "vtep-bfd"].map(|k| (text(k), text("true")))),
                    _ => {}
                }
                self.set(OTHER, (kind < 6).then_some(c));
            }
            Step::Tunnelling(kind) => self.change_local(|l| {
                l.tunnelling = tunnelling(usize::from(kind % 3), if kind > 2 { &["z"] } else { &[] });
                l.tunnelling.interconnection = kind == 1;
                l.tunnelling.flow_based = kind == 4;
            }),
            Step::Check(n, kind) => {
                let mut row = check(&format!("vm{n}"), (kind > 2).then_some("online"));
                if kind == 2 {
                    (row.r#type, row.protocol) = (Some(text("network-function")), Some(text("icmp")));
                    (row.logical_input_port, row.mac) = (text("vm2"), text("02:00:00:00:00:03"));
                }
                self.set(id(18, n), (kind > 0).then_some(row));
            }
            Step::NextHop(n, there) => {
                let row = sb::EcmpNexthop { port: id(2, n), nexthop: text("10.0.0.9"), ..Default::default() };
                self.set(id(19, n), there.then_some(row));
            }
            Step::Session(n, kind) => {
                let row = sb::Bfd {
                    logical_port: text(format!("vm{n}")),
                    dst_ip: text(if kind == 2 { "fd00::9" } else { "10.0.0.9" }),
                    src_port: 49152 + n as i64,
                    disc: n as i64 + 1,
                    status: text(if kind == 3 { "admin_down" } else { "down" }),
                    ..Default::default()
                };
                self.set(id(23, n), (kind > 0).then_some(row));
            }
            Step::Advertised(n, kind) => {
                let row = sb::AdvertisedRoute {
                    datapath: datapath(n % SWITCHES),
                    logical_port: id(2, n),
                    ip_prefix: text(format!("10.0.{n}.0/24")),
                    tracked_port: (kind > 1).then_some(id(2, kind as usize)),
                    ..Default::default()
                };
                self.set(id(24, n), (kind > 0).then_some(row));
            }
            Step::Mirror(kind) => {
                let row =
                    sb::Mirror { r#type: text(["lport", "gre", "local"][kind as usize % 3]), ..mirror("192.0.2.9") };
                self.set(id(13, 0), (kind < 3).then_some(row));
            }
            Step::Derive => drop(self.settle()),
        }
    }
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let b = any::<bool>;
    let one = prop_oneof![
        (0..SWITCHES, b()).prop_map(|(n, t)| Step::Datapath(n, t)),
        (0..PORTS, 0..19u8).prop_map(|(n, k)| Step::Port(n, k)),
        (0..PORTS, 0..19u8).prop_map(|(n, k)| Step::Port(n, k)),
        (0..SWITCHES, 0..3u8, b()).prop_map(|(n, k, p)| Step::Localnet(n, k, p)),
        (0..8u8).prop_map(Step::Gateways),
        (0..7u8).prop_map(Step::Peer),
        (0..5u8).prop_map(Step::Tunnelling),
        (0..16u8).prop_map(Step::Alive),
        (0..3u8).prop_map(Step::Encaps),
        (0..2usize, 0..16u8, 0..3u8).prop_map(|(n, d, w)| Step::Names(n, d, w)),
        (0..SWITCHES, 0..SWITCHES, b()).prop_map(|(a, c, t)| Step::Patch(a, c, t)),
        (0..12usize, 0..8u8).prop_map(|(n, k)| Step::Flow(n, k)),
        (0..16u8).prop_map(Step::Group),
        (0..4usize, 0..3u8).prop_map(|(n, m)| Step::Neighbour(n, m)),
        (0..4usize, 0..3u8).prop_map(|(n, p)| Step::Forwarding(n, p)),
        (0..SWITCHES, b()).prop_map(|(n, t)| Step::Multicast(n, t)),
        any::<u8>().prop_map(Step::Members),
        (0..4u8).prop_map(Step::Global),
        (0..PORTS, 0..3u8).prop_map(|(n, k)| Step::Plug(n, k)),
        (0..3u16).prop_map(|n| Step::Tunnel(n * 100)),
        (0..PORTS, 0..4u8).prop_map(|(n, k)| Step::Check(n, k)),
        (0..PORTS, b()).prop_map(|(n, t)| Step::NextHop(n, t)),
        (0..PORTS, 0..4u8).prop_map(|(n, k)| Step::Session(n, k)),
        (0..PORTS, 0..4u8).prop_map(|(n, k)| Step::Advertised(n, k)),
        (0..4u8).prop_map(Step::Mirror),
        Just(Step::Derive),
    ];
    proptest::collection::vec(one, 1..80)
}
