//! A transit router and a transit switch of two zones, with real packets: the topology of OVN's multinode test
//! "Transit Router + Transit Switch".
//!
//! ```text
//!   external 192.168.100.10                        zone 2
//!      │ public                                       │
//!     gw (zone 1's)                                  gw (zone 2's)
//!      │ 100.65.0.1 ── tr-gw1 100.65.0.2              │ 100.65.0.5 ── tr-gw2 100.65.0.6
//!      └──────────────────── tr, the transit router ──┘
//!                             │ tr-ts 10.100.200.1, in each zone
//!      ┌──────────────────── ts, the transit switch ──┐
//!    pod10 .10  mgmt .11                            pod20 .20
//! ```

use crate::agent::Transfer;
use crate::lab::until;
use crate::network::Vm;
use crate::scenario::{Built, Runner, reach};
use crate::zones::{Chassis, Machine, Zones, attach, gateways, insert, router_port, router_side, switch_port};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

/// A chassis in each zone; tunnels between zones end at both.
pub const CHASSIS: [Chassis; 2] =
    [Chassis { name: "ch1", zone: 1, gateway: true }, Chassis { name: "ch2", zone: 2, gateway: true }];

/// The machines: one behind zone 1's gateway router, three on the transit switch.
pub const MACHINES: [Machine; 4] = [
    Machine {
        vm: Vm { name: "external", host: "ch1", mac: "00:00:00:00:20:10" },
        addresses: &["192.168.100.10/24", "1000::10/64"],
        routers: &["192.168.100.1", "1000::1"],
    },
    Machine {
        vm: Vm { name: "pod10", host: "ch1", mac: "00:00:00:00:10:10" },
        addresses: &["10.100.200.10/24", "10:200::10/64"],
        routers: &["10.100.200.1", "10:200::1"],
    },
    Machine {
        vm: Vm { name: "mgmt", host: "ch1", mac: "00:00:00:00:10:11" },
        addresses: &["10.100.200.11/24", "10:200::11/64", "172.16.100.2/24"],
        routers: &["10.100.200.1", "10:200::1"],
    },
    Machine {
        vm: Vm { name: "pod20", host: "ch2", mac: "00:00:00:00:10:20" },
        addresses: &["10.100.200.20/24", "10:200::20/64"],
        routers: &["10.100.200.1", "10:200::1"],
    },
];

fn texts(list: &[&str]) -> Value {
    json!(["set", list])
}

/// A port of the transit router, and one of a transit switch.
fn shared(z: &Zones) -> Result<()> {
    let mut operations = vec![insert("Transit_Router", "tr", json!({})), insert("Transit_Switch", "ts", json!({}))];
    for (zone, mac, networks) in [
        (1, "00:00:00:00:30:02", ["100.65.0.2/30", "100:65::2/126"]),
        (2, "00:00:00:00:30:06", ["100.65.0.6/30", "100:65::6/126"]),
    ] {
        let name = format!("tr-gw{zone}");
        let chassis = format!("ch{zone}");
        let row =
            json!({"mac": mac, "networks": texts(&networks), "chassis": chassis, "tr_uuid": ["named-uuid", "row_tr"]});
        operations.push(insert("Transit_Router_Port", &name, row));
        operations.push(attach("Transit_Router", "tr", "ports", &name));
    }
    let to_router = json!({"type": "router", "peer": "tr-ts", "addresses": "00:00:00:00:10:00 10.100.200.1 10:200::1"});
    let machine = |n: u8, chassis: &str| json!({"chassis": chassis, "addresses": format!("00:00:00:00:10:{n} 10.100.200.{n} 10:200::{n}")});
    let ports =
        [("ts-tr", to_router), ("pod10", machine(10, "ch1")), ("pod20", machine(20, "ch2")), ("mgmt", machine(11, ""))];
    for (name, row) in ports {
        operations.push(insert("Transit_Switch_Port", name, row));
        operations.push(attach("Transit_Switch", "ts", "ports", name));
    }
    z.shared(operations)?;
    for zone in [1, 2] {
        for (table, name) in
            [("Logical_Router_Port", format!("tr-gw{zone}")), ("Logical_Switch_Port", "pod10".to_string())]
        {
            z.holds(zone, "OVN_Northbound", table, &format!("\"{name}\""))?;
        }
    }
    Ok(())
}

/// A row without a name, put into a column of the row with a name.
fn part(table: &str, label: &str, row: Value, of: (&str, &str, &str)) -> [Value; 2] {
    let mut new = insert(table, label, row);
    if let Some(columns) = new["row"].as_object_mut() {
        columns.remove("name");
    }
    [new, attach(of.0, of.1, of.2, label)]
}

/// A zone's gateway router with its networks, and its peer, a port of the transit router.
fn zone(z: &Zones, n: usize) -> Result<()> {
    let (chassis, peer) = (format!("ch{n}"), format!("tr-gw{n}"));
    let own = 4 * n - 3;
    let far = own + 1;
    let options = json!(["map", [["chassis", chassis]]]);
    let mut operations = vec![
        insert("Logical_Switch", "public", json!({})),
        insert("Logical_Router", "gw", json!({"options": options})),
    ];
    let networks = [format!("192.168.100.{n}/24"), format!("1000::{n}/64")];
    operations.extend(router_port(
        "gw",
        "gw-public",
        json!({"mac": "00:00:00:00:20:00", "networks": ["set", networks]}),
    ));
    operations.extend(router_side("public", "gw-public"));
    let networks = [format!("100.65.0.{own}/30"), format!("100:65::{own}/126")];
    let mac = format!("00:00:00:00:30:0{own}");
    operations.extend(router_port("gw", "gw-tr", json!({"mac": mac, "networks": ["set", networks], "peer": peer})));
    operations.push(
        json!({"op": "update", "table": "Logical_Router_Port", "where": [["name", "==", peer]], "row": {"peer": "gw-tr"}}),
    );
    let inside = texts(&["10.100.200.1/24", "10:200::1/64"]);
    operations.extend(router_port("tr", "tr-ts", json!({"mac": "00:00:00:00:10:00", "networks": inside})));
    operations.extend(gateways("tr-ts", &[&chassis]));
    let router = ("Logical_Router", "gw");
    for (family, (outer, inner), (prefix, hop)) in [
        ("v4", (format!("100.65.0.{own}"), "192.168.100.0/24"), ("10.100.200.0/24", format!("100.65.0.{far}"))),
        ("v6", (format!("100:65::{own}"), "1000::/64"), ("10:200::/64", format!("100:65::{far}"))),
    ] {
        let row = json!({"type": "snat", "external_ip": outer, "logical_ip": inner});
        operations.extend(part("NAT", &format!("nat_{family}"), row, (router.0, router.1, "nat")));
        let row = json!({"ip_prefix": prefix, "nexthop": hop});
        let of = (router.0, router.1, "static_routes");
        operations.extend(part("Logical_Router_Static_Route", &format!("route_{family}"), row, of));
    }
    z.northbound(n, operations)
}

/// Zone 1's load balancer on the transit switch, a translation for one next hop, and its machine behind the gateway.
fn first(z: &Zones) -> Result<()> {
    let vips = json!(["map", [["172.16.0.5:5656", "10.100.200.10:2324"]]]);
    let mut operations = vec![
        insert("Load_Balancer", "lb0", json!({"protocol": "tcp", "vips": vips})),
        attach("Logical_Switch", "ts", "load_balancer", "lb0"),
    ];
    let row = json!({"type": "snat", "external_ip": "172.16.0.2", "logical_ip": "10.100.200.0/24", "match": "eth.dst == 00:00:00:00:10:11"});
    operations.extend(part("NAT", "nat", row, ("Logical_Router", "tr", "nat")));
    let all = json!(["options", "insert", ["map", [["ct-commit-all", "true"]]]]);
    operations
        .push(json!({"op": "mutate", "table": "Logical_Router", "where": [["name", "==", "tr"]], "mutations": [all]}));
    let addresses = "00:00:00:00:20:10 192.168.100.10 1000::10";
    operations.extend(switch_port("public", "external", json!({"addresses": addresses})));
    z.northbound(1, operations)
}

impl Runner<'_, Zones> {
    /// A transit router joins gateway routers of both zones to a transit switch with machines in both.
    pub fn transit(&mut self) {
        self.check("a transit router and a transit switch appear in both zones", |z| {
            shared(z)?;
            zone(z, 1)?;
            zone(z, 2)?;
            first(z)?;
            Ok("tr, ts".into())
        });
        self.check("machines of two zones on one transit switch: pod10 → pod20", |z| {
            reach(&z.lab, "pod10", "10.100.200.20")
        });
        self.check("by the transit router into the other zone: external → pod20", |z| {
            reach(&z.lab, "external", "10.100.200.20")
        });
        self.check("the same over IPv6", |z| reach(&z.lab, "external", "10:200::20"));
        self.check("by a load balancer of the transit switch, with a route by source: mgmt → pod10", |z| {
            let row = json!({"ip_prefix": "10.100.200.0/24", "nexthop": "10.100.200.11", "policy": "src-ip"});
            let of = ("Logical_Router", "tr", "static_routes");
            z.northbound(1, part("Logical_Router_Static_Route", "back", row, of).into())?;
            z.lab.ip("mgmt", &["route", "replace", "172.16.0.5", "via", "10.100.200.1", "src", "172.16.100.2"])?;
            until("a transfer to the load balancer", Duration::from_secs(30), || transfer(z))
        });
    }
}

/// A transfer from `mgmt` to the load balancer, which its backend has to receive whole.
fn transfer(z: &mut Zones) -> Result<String> {
    let agent = z.agent();
    z.lab.spawn("pod10", "sink", &agent, &["agent", "tcp-receive", "2324", "--seconds", "5"])?;
    std::thread::sleep(Duration::from_millis(300));
    let sent = z.lab.exec("mgmt", &agent, &["agent", "tcp-send", "172.16.0.5:5656", "--seconds", "1"]);
    z.lab.wait("pod10", "sink", Duration::from_secs(10));
    sent?;
    let said = z.lab.output("pod10", "sink");
    let t: Transfer = serde_json::from_str(said.lines().last().unwrap_or_default())?;
    if !t.complete || t.bytes == 0 {
        bail!("it broke after {} bytes", t.bytes);
    }
    Ok(format!("{} KiB", t.bytes / 1024))
}
