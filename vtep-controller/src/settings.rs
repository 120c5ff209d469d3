//! Configuration by keys of the databases, from the narrowest place to the widest:
//!
//! 1. `Logical_Switch_Port.options` of the `vtep` port (northd hands it on as `Port_Binding.options`): `vtep-KEY`;
//! 2. `Physical_Switch.other_config` in hardware_vtep: `ovn-KEY`;
//! 3. `Global.other_config` in hardware_vtep: `ovn-KEY`;
//! 4. `NB_Global.options` (handed on as `SB_Global.options`): `vtep-KEY`.
//!
//! | KEY | value | default |
//! |---|---|---|
//! | `replication-mode` | `source_node` or `service_node` | `source_node` |
//! | `service-nodes` | chassis names or IPv4 addresses, separated by commas | the gateway chassis |
//! | `arp-suppression` | whether `ipaddr` is written | `true` |
//! | `learn-addresses` | whether `ipaddr` of learned MACs becomes known to routers | `true` |
//! | `multicast-groups` | whether groups get rows of their own | `true` |
//! | `bfd` | whether BFD is enabled on tunnels, and tunnels that are down leave replication | `false` |
//! | `bfd-min-rx`, `bfd-min-tx`, `bfd-decay-min-rx` | milliseconds | those of the switch |
//! | `bfd-dst-mac`, `bfd-dst-ip` | what the far end expects (`bfd_config_remote`) | those of the switch |

use ovn_schema::{Map, Str};

/// Where to look, the narrowest place first.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Options of the port's binding.
    pub port: Option<&'a Map<Str, Str>>,
    /// `other_config` of the physical switch.
    pub switch: &'a Map<Str, Str>,
    /// `other_config` of `Global`.
    pub global: &'a Map<Str, Str>,
    /// Options of `SB_Global`.
    pub options: &'a Map<Str, Str>,
}

impl<'a> Places<'a> {
    fn get(&self, key: &str) -> Option<&'a Str> {
        let (northbound, local) = (format!("vtep-{key}"), format!("ovn-{key}"));
        self.port
            .and_then(|p| p.get(northbound.as_str()))
            .or_else(|| self.switch.get(local.as_str()))
            .or_else(|| self.global.get(local.as_str()))
            .or_else(|| self.options.get(northbound.as_str()))
    }

    fn flag(&self, key: &str, default: bool, bad: &mut Vec<String>) -> bool {
        match self.get(key).map(|v| &**v) {
            None => default,
            Some(v) if v.eq_ignore_ascii_case("true") => true,
            Some(v) if v.eq_ignore_ascii_case("false") => false,
            Some(other) => {
                bad.push(format!("{key}={other}: expected true or false; {default} is used"));
                default
            }
        }
    }
}

/// How packets to many are replicated in a logical switch on a physical one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    /// By service nodes rather than by the switch itself.
    pub by_service_node: bool,
    /// The service nodes; empty: the gateway chassis.
    pub nodes: Vec<Str>,
    /// `ipaddr` is written.
    pub arp_suppression: bool,
    /// `ipaddr` of learned MACs is made known to routers.
    pub learn_addresses: bool,
    /// Multicast groups get rows of their own.
    pub groups: bool,
}

impl Replication {
    /// The name that the schema has for it.
    pub fn mode(&self) -> Str {
        if self.by_service_node { "service_node".into() } else { "source_node".into() }
    }

    /// Reads it; what is wrong goes to `bad`.
    pub fn read(places: &Places<'_>, bad: &mut Vec<String>) -> Replication {
        let by_service_node = match places.get("replication-mode").map(|v| &**v) {
            None | Some("source_node") => false,
            Some("service_node") => true,
            Some(other) => {
                bad.push(format!(
                    "replication-mode={other}: expected source_node or service_node; source_node is used"
                ));
                false
            }
        };
        let nodes = places.get("service-nodes").map(|v| v.split(',').map(str::trim).filter(|w| !w.is_empty()));
        Replication {
            by_service_node,
            nodes: nodes.into_iter().flatten().map(Str::from).collect(),
            arp_suppression: places.flag("arp-suppression", true, bad),
            learn_addresses: places.flag("learn-addresses", true, bad),
            groups: places.flag("multicast-groups", true, bad),
        }
    }
}

/// BFD on the tunnels of a physical switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bfd {
    /// Whether it is ours to enable.
    pub enable: bool,
    /// `bfd_params` besides `enable`.
    pub params: Map<Str, Str>,
    /// `bfd_config_remote`.
    pub remote: Map<Str, Str>,
}

impl Bfd {
    /// Reads it; what is wrong goes to `bad`.
    pub fn read(places: &Places<'_>, bad: &mut Vec<String>) -> Bfd {
        let mut bfd = Bfd { enable: places.flag("bfd", false, bad), ..Bfd::default() };
        for (key, column) in [("bfd-min-rx", "min_rx"), ("bfd-min-tx", "min_tx"), ("bfd-decay-min-rx", "decay_min_rx")]
        {
            let Some(v) = places.get(key) else { continue };
            if v.parse::<u32>().is_ok_and(|n| n > 0 || column == "decay_min_rx") {
                bfd.params.insert(column.into(), v.clone());
            } else {
                bad.push(format!("{key}={v}: expected milliseconds; the switch's default is used"));
            }
        }
        for (key, column) in [("bfd-dst-mac", "bfd_dst_mac"), ("bfd-dst-ip", "bfd_dst_ip")] {
            if let Some(v) = places.get(key) {
                bfd.remote.insert(column.into(), v.clone());
            }
        }
        bfd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn the_narrowest_place_counts() {
        let port = map(&[("vtep-replication-mode", "service_node")]);
        let switch = map(&[("ovn-service-nodes", "gw1, 10.0.0.1"), ("ovn-arp-suppression", "maybe")]);
        let global = map(&[("ovn-service-nodes", "gw2"), ("ovn-multicast-groups", "false")]);
        let options = map(&[("vtep-replication-mode", "source_node"), ("vtep-bfd", "true"), ("vtep-bfd-min-rx", "x")]);
        let places = Places { port: Some(&port), switch: &switch, global: &global, options: &options };
        let mut bad = Vec::new();
        let r = Replication::read(&places, &mut bad);
        assert!(r.by_service_node && r.arp_suppression && !r.groups);
        assert_eq!(r.nodes, [Str::from("gw1"), "10.0.0.1".into()]);
        let b = Bfd::read(&Places { port: None, ..places }, &mut bad);
        assert!(b.enable && b.params.is_empty());
        assert_eq!(bad.len(), 2, "{bad:?}");
    }
}
