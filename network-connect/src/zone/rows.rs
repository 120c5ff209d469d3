//! What is derived: rows of the northbound database, by keys that name them; and the names and external IDs that
//! OVN-Kubernetes gives them, by which rows of either are found.

use crate::address::Family;
use ovn_schema::{Map, Set, Str, Uuid};
use sha2::{Digest, Sha256};
use std::fmt;
use std::net::IpAddr;

/// The controller that external IDs name.
const CONTROLLER: &str = "ovnkube-network-connect-controller";
/// The kind of owner that external IDs name.
const OWNER: &str = "ClusterNetworkConnect";
const OWNER_CONTROLLER: &str = "k8s.ovn.org/owner-controller";
const OWNER_TYPE: &str = "k8s.ovn.org/owner-type";
const ID: &str = "k8s.ovn.org/id";
const NAME: &str = "k8s.ovn.org/name";
/// What names of load balancer groups begin with.
const GROUP: &str = "cnc_svc_";

/// The side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// On the connect router.
    Connect,
    /// On the network's router.
    Network,
}

/// An ACL where only services are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AclKind {
    /// Traffic to services passes.
    PassService,
    /// Traffic within a network passes.
    PassSameNetwork(u32),
    /// Traffic to pods of other networks is dropped.
    DropPod,
}

impl fmt::Display for AclKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AclKind::PassService => f.write_str("pass-service"),
            AclKind::PassSameNetwork(id) => write!(f, "pass-same-network-{id}"),
            AclKind::DropPod => f.write_str("drop-pod"),
        }
    }
}

impl AclKind {
    fn parse(text: &str) -> Option<AclKind> {
        match text {
            "pass-service" => Some(AclKind::PassService),
            "drop-pod" => Some(AclKind::DropPod),
            other => Some(AclKind::PassSameNetwork(other.strip_prefix("pass-same-network-")?.parse().ok()?)),
        }
    }
}

/// The name of a derived row. Routers come first: other rows belong to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A connect router, by its `ClusterNetworkConnect` as everything else.
    Router(Str),
    /// A load balancer group, and the switches that have it.
    Group(Str),
    /// An address set of the joined networks' subnets.
    Addresses(Str, Family),
    /// An ACL, and the switches that have it.
    Acl(Str, AclKind),
    /// A router port of a network's link; the node is 0 in layer 2 networks.
    Port(Str, u32, u32, Side),
    /// A policy on a network's router towards another network; with the node where it is not the one that the zone is named
    /// after.
    Policy(Str, u32, u32, Family, Option<u32>),
    /// A route on the connect router to a network's subnet on a node; with the subnet where it is not the first of its family.
    Route(Str, u32, u32, Family, Option<Str>),
    /// What keeps rows from being derived, for people.
    Problem(Str, Str),
}

impl Key {
    /// The `ClusterNetworkConnect`.
    pub fn connect(&self) -> &Str {
        match self {
            Key::Router(of) | Key::Group(of) | Key::Addresses(of, _) | Key::Acl(of, _) | Key::Problem(of, _) => of,
            Key::Port(of, ..) | Key::Policy(of, ..) | Key::Route(of, ..) => of,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.connect();
        match self {
            Key::Router(_) => write!(f, "Logical_Router {}", router_name(of)),
            Key::Group(_) => write!(f, "Load_Balancer_Group {}", group_name(of)),
            Key::Addresses(_, family) => write!(f, "Address_Set of {of}, {}", family.short()),
            Key::Acl(_, kind) => write!(f, "ACL {kind} of {of}"),
            Key::Port(_, network, node, side) => {
                let side = if *side == Side::Connect { "connect router" } else { "network's router" };
                write!(f, "Logical_Router_Port of {of} for network {network}, node {node}, on the {side}")
            }
            Key::Policy(_, from, to, family, _) => {
                write!(f, "Logical_Router_Policy of {of} from network {from} to network {to}, {}", family.short())
            }
            Key::Route(_, network, node, family, _) => {
                write!(f, "Logical_Router_Static_Route of {of} to network {network}, node {node}, {}", family.short())
            }
            Key::Problem(_, text) => write!(f, "{of}: {text}"),
        }
    }
}

/// A router port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The router.
    pub router: Str,
    /// `name`.
    pub name: Str,
    /// `mac`.
    pub mac: Str,
    /// `networks`.
    pub networks: Set<Str>,
    /// `peer`.
    pub peer: Option<Str>,
    /// `options:requested-tnl-key`.
    pub key: Option<u32>,
    /// `options:requested-chassis`.
    pub chassis: Option<Str>,
}

/// A derived row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// The router's key, and its control plane protection.
    Router(Option<u32>, Option<Uuid>),
    /// Load balancers, and switches by name.
    Group(Set<Uuid>, Set<Str>),
    /// Addresses.
    Addresses(Set<Str>),
    /// Priority, match, action, and switches by name.
    Acl(i64, Str, &'static str, Set<Str>),
    /// A port.
    Port(Box<Port>),
    /// Router, match and next hop.
    Policy(Str, Str, Str),
    /// Prefix and next hop.
    Route(Str, Str),
    /// Nothing is written.
    Problem,
}

/// The name of the connect router.
pub fn router_name(connect: &str) -> Str {
    format!("connect_router_{connect}").into()
}

/// The name of the load balancer group.
pub fn group_name(connect: &str) -> Str {
    format!("{GROUP}{connect}").into()
}

/// The name of a link's port: `node` is none in layer 2 networks.
pub fn port_name(connect: &str, network: &str, node: Option<&str>, side: Side) -> Str {
    let node = node.map(|n| format!("_{n}")).unwrap_or_default();
    match side {
        Side::Connect => format!("crtor-{connect}_{network}{node}").into(),
        Side::Network => format!("rtocr-{network}{node}_{connect}").into(),
    }
}

/// The MAC address of a port with this address.
pub fn mac(ip: IpAddr) -> Str {
    let bytes: [u8; 4] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let digest = Sha256::digest(ip.to_string().as_bytes());
            [digest[0], digest[1], digest[2], digest[3]]
        }
    };
    let [a, b, c, d] = bytes;
    format!("0a:58:{a:02x}:{b:02x}:{c:02x}:{d:02x}").into()
}

/// The external IDs of a row; `router` is the one that it stands on.
pub fn external_ids(key: &Key, router: &str) -> Map<Str, Str> {
    let of = key.connect().to_string();
    // In the order of the primary ID.
    let parts: Vec<(&str, String)> = match key {
        Key::Group(_) | Key::Problem(..) => return Map::new(),
        Key::Router(_) => vec![(NAME, of)],
        Key::Addresses(_, family) => vec![(NAME, of), ("ip-family", family.short().into())],
        Key::Acl(_, kind) => vec![(NAME, of), ("type", kind.to_string())],
        Key::Port(_, network, node, _) => vec![
            (NAME, of),
            ("network-id", network.to_string()),
            ("node-id", node.to_string()),
            ("router-name", router.into()),
        ],
        Key::Policy(_, from, to, family, node) => {
            let mut parts = vec![
                (NAME, of),
                ("source-network-id", from.to_string()),
                ("destination-network-id", to.to_string()),
                ("ip-family", family.short().into()),
                ("router-name", router.into()),
            ];
            parts.extend(node.map(|node| ("node-id", node.to_string())));
            parts
        }
        Key::Route(_, network, node, family, subnet) => {
            let mut parts = vec![
                (NAME, of),
                ("network-id", network.to_string()),
                ("node-id", node.to_string()),
                ("ip-family", family.short().into()),
            ];
            parts.extend(subnet.as_ref().map(|s| ("subnet", s.to_string())));
            parts
        }
    };
    let mut ids: Map<Str, Str> = parts.iter().map(|(k, v)| ((*k).into(), v.as_str().into())).collect();
    if !matches!(key, Key::Router(_)) {
        let values: Vec<&str> = parts.iter().map(|(_, v)| v.as_str()).collect();
        ids.insert(ID.into(), format!("{CONTROLLER}:{OWNER}:{}", values.join(":")).into());
    }
    ids.insert(OWNER_CONTROLLER.into(), CONTROLLER.into());
    ids.insert(OWNER_TYPE.into(), OWNER.into());
    ids
}

/// The name of an address set: a hash of its primary ID (FNV-1a, 64 bits), since names are short.
pub fn addresses_name(connect: &Str, family: Family) -> Str {
    let ids = external_ids(&Key::Addresses(connect.clone(), family), "");
    let id = ids.get(ID).map_or("", |id| id);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("a{hash}").into()
}

/// A table whose rows have keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `Logical_Router`.
    Router,
    /// `Logical_Router_Port`.
    Port,
    /// `Logical_Router_Policy`.
    Policy,
    /// `Logical_Router_Static_Route`.
    Route,
    /// `ACL`.
    Acl,
    /// `Address_Set`.
    Addresses,
}

/// The key of a row with these external IDs; none where it is not ours.
pub fn key_of(table: Table, ids: &Map<Str, Str>) -> Option<Key> {
    let get = |name: &str| ids.get(name).map(|v| &**v);
    if get(OWNER_CONTROLLER) != Some(CONTROLLER) || get(OWNER_TYPE) != Some(OWNER) {
        return None;
    }
    let of: Str = ids.get(NAME)?.clone();
    let number = |name: &str| get(name)?.parse::<u32>().ok();
    let family = || Family::ALL.into_iter().find(|f| Some(f.short()) == get("ip-family"));
    Some(match table {
        Table::Router => Key::Router(of),
        Table::Addresses => Key::Addresses(of, family()?),
        Table::Acl => Key::Acl(of, AclKind::parse(get("type")?)?),
        Table::Port => {
            let side = if get("router-name") == Some(&router_name(&of)) { Side::Connect } else { Side::Network };
            Key::Port(of, number("network-id")?, number("node-id")?, side)
        }
        Table::Policy => {
            let (from, to) = (number("source-network-id")?, number("destination-network-id")?);
            Key::Policy(of, from, to, family()?, number("node-id"))
        }
        Table::Route => {
            let subnet = ids.get("subnet").cloned();
            Key::Route(of, number("network-id")?, number("node-id")?, family()?, subnet)
        }
    })
}

/// The key of a load balancer group of this name.
pub fn group_key(name: &str) -> Option<Key> {
    name.strip_prefix(GROUP).map(|of| Key::Group(of.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_as_ovn_kubernetes_has_them() {
        assert_eq!(&*port_name("ab", "net", Some("n1"), Side::Connect), "crtor-ab_net_n1");
        assert_eq!(&*port_name("ab", "net", None, Side::Network), "rtocr-net_ab");
        assert_eq!(&*mac("192.168.0.1".parse().unwrap_or(IpAddr::from([0; 4]))), "0a:58:c0:a8:00:01");
        let ids = external_ids(&Key::Port("ab".into(), 7, 3, Side::Connect), "connect_router_ab");
        let id = "ovnkube-network-connect-controller:ClusterNetworkConnect:ab:7:3:connect_router_ab";
        assert_eq!(ids.get(ID).map(|v| &**v), Some(id));
        let ids = external_ids(&Key::Policy("ab".into(), 7, 8, Family::V4, None), "net_ovn_cluster_router");
        let id = "ovnkube-network-connect-controller:ClusterNetworkConnect:ab:7:8:v4:net_ovn_cluster_router";
        assert_eq!(ids.get(ID).map(|v| &**v), Some(id));
    }

    #[test]
    fn keys_read_back() {
        let of: Str = "ab".into();
        let cases = [
            (Table::Router, Key::Router(of.clone()), ""),
            (Table::Addresses, Key::Addresses(of.clone(), Family::V6), ""),
            (Table::Acl, Key::Acl(of.clone(), AclKind::PassSameNetwork(7)), ""),
            (Table::Acl, Key::Acl(of.clone(), AclKind::DropPod), ""),
            (Table::Port, Key::Port(of.clone(), 7, 3, Side::Connect), "connect_router_ab"),
            (Table::Port, Key::Port(of.clone(), 7, 3, Side::Network), "net_ovn_cluster_router"),
            (Table::Policy, Key::Policy(of.clone(), 7, 8, Family::V4, Some(3)), "net_ovn_cluster_router"),
            (Table::Route, Key::Route(of.clone(), 7, 3, Family::V6, Some("fd00::/64".into())), ""),
            (Table::Route, Key::Route(of, 7, 3, Family::V4, None), ""),
        ];
        for (table, key, router) in cases {
            assert_eq!(key_of(table, &external_ids(&key, router)), Some(key));
        }
        assert_eq!(key_of(Table::Router, &Map::from([(NAME.into(), "ab".into())])), None);
    }
}
