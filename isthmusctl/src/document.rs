//! The description of a logical network, as people write it.

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// A text with its place.
pub type Text = Spanned<String>;

/// A whole network.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Options of NB_Global.
    pub options: BTreeMap<String, String>,
    /// Logical switches.
    pub switches: Vec<Switch>,
    /// Logical routers.
    pub routers: Vec<Router>,
    /// Load balancers.
    pub load_balancers: Vec<LoadBalancer>,
}

/// A logical switch.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name.
    pub name: Text,
    /// Its ports for machines.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// The physical network that it reaches.
    pub physical: Option<Physical>,
    /// What machines are told by DHCP.
    pub dhcp: Option<Dhcp>,
    /// Load balancers by name.
    #[serde(default)]
    pub load_balancers: Vec<Text>,
}

/// A port of a machine.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its name, which the interface on the chassis carries as `iface-id`.
    pub name: Text,
    /// The machine's Ethernet address.
    pub mac: Text,
    /// Its IP addresses.
    #[serde(default)]
    pub ips: Vec<Text>,
    /// Refuse packets with other addresses.
    #[serde(default)]
    pub secure: bool,
}

/// A physical network behind a switch.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Physical {
    /// The network's name, as chassis map it to a bridge.
    pub network: Text,
    /// The VLAN.
    pub vlan: Option<Spanned<u16>>,
}

/// DHCP for IPv4.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Dhcp {
    /// The subnet.
    pub subnet: Text,
    /// The server's and router's address.
    pub router: Text,
    /// The server's Ethernet address.
    pub mac: Text,
    /// Seconds.
    #[serde(default = "hour")]
    pub lease: u32,
    /// The MTU for machines.
    pub mtu: Option<u16>,
    /// Name servers.
    #[serde(default)]
    pub dns: Vec<Text>,
}

fn hour() -> u32 {
    3600
}

/// A logical router.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// Its name.
    pub name: Text,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<RouterPort>,
    /// Static routes.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Address translation.
    #[serde(default)]
    pub nat: Vec<Nat>,
    /// Load balancers by name.
    #[serde(default)]
    pub load_balancers: Vec<Text>,
}

/// A router's port, joined to a switch.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct RouterPort {
    /// Its name.
    pub name: Text,
    /// The switch.
    pub switch: Text,
    /// Its Ethernet address.
    pub mac: Text,
    /// Its addresses with prefix length.
    pub networks: Vec<Text>,
    /// Gateway chassis with priorities, the greatest preferred: makes it a distributed gateway port.
    #[serde(default)]
    pub gateways: BTreeMap<String, i64>,
}

/// A static route.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Where to.
    pub prefix: Text,
    /// By whom.
    pub nexthop: Text,
}

/// A translation.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    /// `snat`, `dnat` or `dnat_and_snat`.
    #[serde(rename = "type")]
    pub kind: Text,
    /// The outer address.
    pub external: Text,
    /// The inner address or network.
    pub logical: Text,
    /// A distributed floating IP's port.
    pub port: Option<Text>,
    /// A distributed floating IP's Ethernet address.
    pub mac: Option<Text>,
}

/// A load balancer.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct LoadBalancer {
    /// Its name.
    pub name: Text,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: Option<Text>,
    /// Backends by address and port.
    pub vips: BTreeMap<String, Vec<String>>,
    /// Seconds for which a client gets the same backend again (`options:affinity_timeout`).
    pub affinity: Option<Spanned<u16>>,
}

/// What is wrong with a description, and where.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct Mistake {
    line: u64,
    text: String,
}

type Checked = Result<(), Mistake>;

fn mistake<T>(at: &Spanned<T>, text: impl Into<String>) -> Mistake {
    Mistake { line: at.referenced.line(), text: text.into() }
}

/// Reads and checks a description.
///
/// # Errors
/// The first mistake, with its line.
pub fn read(text: &str) -> anyhow::Result<Network> {
    let n: Network = serde_saphyr::from_str(text)?;
    n.check()?;
    Ok(n)
}

fn mac(t: &Text) -> Checked {
    let parts: Vec<&str> = t.value.split(':').collect();
    let good = parts.len() == 6 && parts.iter().all(|p| p.len() == 2 && u8::from_str_radix(p, 16).is_ok());
    if good {
        Ok(())
    } else {
        Err(mistake(t, format!("{:?} is not an Ethernet address; write it as 00:00:00:00:00:01", t.value)))
    }
}

fn ip(t: &Text) -> Result<IpAddr, Mistake> {
    t.value.parse().map_err(|_| mistake(t, format!("{:?} is not an IP address", t.value)))
}

fn network(t: &Text) -> Result<IpNetwork, Mistake> {
    let bare = !t.value.contains('/');
    let n: Result<IpNetwork, _> = t.value.parse();
    match n {
        Ok(n) if !bare => Ok(n),
        _ => Err(mistake(t, format!("{:?} is not a network; write it as ADDRESS/LENGTH", t.value))),
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a Text>, what: &str) -> Checked {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for n in names {
        if n.value.is_empty() {
            return Err(mistake(n, format!("a {what}'s name is empty")));
        }
        if let Some(first) = seen.insert(&n.value, n.referenced.line()) {
            return Err(mistake(n, format!("{what} {:?} is described twice, first in line {first}", n.value)));
        }
    }
    Ok(())
}

impl Network {
    fn check(&self) -> Checked {
        unique(self.switches.iter().map(|s| &s.name), "switch")?;
        unique(self.routers.iter().map(|r| &r.name), "router")?;
        unique(self.load_balancers.iter().map(|l| &l.name), "load balancer")?;
        let ports = self.switches.iter().flat_map(|s| s.ports.iter().map(|p| &p.name));
        let router_ports = || self.routers.iter().flat_map(|r| r.ports.iter().map(|p| &p.name));
        unique(ports.chain(router_ports()), "port")?;
        let switches: BTreeSet<&str> = self.switches.iter().map(|s| s.name.value.as_str()).collect();
        let balancers: BTreeSet<&str> = self.load_balancers.iter().map(|l| l.name.value.as_str()).collect();
        let known = |list: &[Text]| match list.iter().find(|l| !balancers.contains(l.value.as_str())) {
            Some(l) => Err(mistake(l, format!("load balancer {:?} is not described", l.value))),
            None => Ok(()),
        };
        for s in &self.switches {
            check_switch(s)?;
            known(&s.load_balancers)?;
        }
        for r in &self.routers {
            check_router(r, &switches)?;
            known(&r.load_balancers)?;
        }
        self.load_balancers.iter().try_for_each(check_balancer)
    }
}

fn check_switch(s: &Switch) -> Checked {
    for p in &s.ports {
        mac(&p.mac)?;
        for a in &p.ips {
            ip(a)?;
        }
    }
    if let Some(d) = &s.dhcp {
        let net = network(&d.subnet)?;
        let router = ip(&d.router)?;
        mac(&d.mac)?;
        if !net.contains(router) {
            return Err(mistake(&d.router, format!("router {router} is outside {net}")));
        }
        for a in &d.dns {
            ip(a)?;
        }
    }
    match &s.physical {
        Some(Physical { vlan: Some(v), .. }) if v.value == 0 || v.value > 4094 => {
            Err(mistake(v, format!("VLAN {} is not between 1 and 4094", v.value)))
        }
        _ => Ok(()),
    }
}

fn check_router(r: &Router, switches: &BTreeSet<&str>) -> Checked {
    let mut networks = Vec::new();
    for p in &r.ports {
        mac(&p.mac)?;
        if !switches.contains(p.switch.value.as_str()) {
            return Err(mistake(&p.switch, format!("switch {:?} is not described", p.switch.value)));
        }
        for n in &p.networks {
            networks.push(network(n)?);
        }
    }
    for route in &r.routes {
        network(&route.prefix)?;
        let hop = ip(&route.nexthop)?;
        if !networks.iter().any(|n| n.contains(hop)) {
            return Err(mistake(
                &route.nexthop,
                format!("next hop {hop} is in no network of router {:?}", r.name.value),
            ));
        }
    }
    for n in &r.nat {
        let external = ip(&n.external)?;
        match n.kind.value.as_str() {
            "snat" => drop(
                n.logical.value.parse::<IpNetwork>().map_err(|_| mistake(&n.logical, "not an address or network"))?,
            ),
            "dnat" | "dnat_and_snat" => drop(ip(&n.logical)?),
            other => return Err(mistake(&n.kind, format!("type {other:?}: known are snat, dnat and dnat_and_snat"))),
        }
        if !networks.iter().any(|net| net.contains(external)) {
            return Err(mistake(&n.external, format!("{external} is in no network of router {:?}", r.name.value)));
        }
        match (&n.port, &n.mac) {
            (Some(_), Some(m)) => mac(m)?,
            (None, None) => {}
            (Some(t), None) => return Err(mistake(t, "a distributed floating IP needs mac beside port")),
            (None, Some(t)) => return Err(mistake(t, "a distributed floating IP needs port beside mac")),
        }
    }
    Ok(())
}

fn check_balancer(l: &LoadBalancer) -> Checked {
    let endpoint = |s: &str| s.parse::<SocketAddr>().is_ok() || s.parse::<IpAddr>().is_ok();
    for (vip, backends) in &l.vips {
        if let Some(bad) = std::iter::once(vip).chain(backends).find(|e| !endpoint(e)) {
            return Err(mistake(
                &l.name,
                format!("load balancer {:?}: {bad:?} is not ADDRESS or ADDRESS:PORT", l.name.value),
            ));
        }
    }
    if let Some(a) = l.affinity.as_ref().filter(|a| a.value == 0) {
        return Err(mistake(a, "affinity 0 is none: leave it out, or say for how many seconds"));
    }
    match &l.protocol {
        Some(p) if !matches!(p.value.as_str(), "tcp" | "udp" | "sctp") => {
            Err(mistake(p, format!("protocol {:?}: known are tcp, udp and sctp", p.value)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let e = |text: &str| read(text).unwrap_err().to_string();
        let bad = "switches:\n  - name: a\n    ports:\n      - name: p\n        mac: zz\n";
        assert!(e(bad).starts_with("line 5: \"zz\" is not an Ethernet address"), "{}", e(bad));
        assert!(
            e("switches:\n  - name: a\n  - name: a\n")
                .contains("line 3: switch \"a\" is described twice, first in line 2")
        );
        assert!(e("switchs: []\n").contains("switchs"));
        let affine = "load_balancers:\n  - name: l\n    vips: {}\n    affinity: 0\n";
        assert!(e(affine).contains("line 4: affinity 0"), "{}", e(affine));
        let route = "routers:\n  - name: r\n    routes:\n      - {prefix: 0.0.0.0/0, nexthop: 1.2.3.4}\n";
        assert!(e(route).contains("line 4: next hop 1.2.3.4 is in no network"), "{}", e(route));
    }
}
