//! The cloud: tenants of a router and two switches each, with DHCP, access rules over an address set, and a load balancer. Its southbound
//! database is made by a northd, by default the ovn-northd of the OVN that ours is measured beside.

use crate::process::Running;
use anyhow::{Context, Result, bail};
use ovsdb_rs::{DatabaseSchema, Server};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Switches of a tenant, ports of each, and of these on the chassis that is measured, in the tenants that it serves.
pub const SWITCHES: usize = 2;
pub const PORTS: usize = 25;
pub const LOCAL_PORTS: usize = 5;
/// Tenants with ports on the chassis.
pub const LOCAL_TENANTS: usize = 5;
/// The other chassis.
pub const CHASSIS: usize = 20;

/// A schema's file.
pub fn schema(path: &Path) -> Result<DatabaseSchema> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} (scripts/install test)", path.display()))?;
    Ok(DatabaseSchema::from_json(&serde_json::from_str(&text)?)?)
}

/// Carries operations out, all or none of them.
pub async fn transact(server: &Server, database: &str, operations: Vec<Value>) -> Result<Vec<Value>> {
    let results = server.transact(database, operations).await?;
    if let Some(e) = results.iter().find(|r| r.get("error").is_some_and(|e| !e.is_null())) {
        bail!("{database}: {e}");
    }
    Ok(results)
}

/// Rows of a table, with some columns.
pub async fn rows(server: &Server, database: &str, table: &str, r#where: Value, columns: Value) -> Result<Vec<Value>> {
    let select = json!({"op": "select", "table": table, "where": r#where, "columns": columns});
    let results = transact(server, database, vec![select]).await?;
    Ok(results.first().and_then(|r| r["rows"].as_array()).cloned().unwrap_or_default())
}

pub fn mac(tenant: usize, switch: usize, port: usize) -> String {
    format!("0a:00:{:02x}:{:02x}:{switch:02x}:{port:02x}", tenant >> 8, tenant & 255)
}

pub fn ip(tenant: usize, switch: usize, port: usize) -> String {
    format!("10.{}.{}.{}", tenant >> 7, (tenant & 127) * SWITCHES + switch, port + 10)
}

pub fn port(tenant: usize, switch: usize, port: usize) -> String {
    format!("v{tenant}-{switch}-{port}")
}

fn map(pairs: &[(&str, &str)]) -> Value {
    json!(["map", pairs])
}

fn tenant(t: usize) -> Vec<Value> {
    let mut all = Vec::new();
    let mut add = |table: &str, name: String, row: Value| {
        all.push(json!({"op": "insert", "table": table, "uuid-name": name, "row": row}));
        json!(["named-uuid", name])
    };
    let set = |values: &[Value]| json!(["set", values]);
    let (mut members, mut router) = (Vec::new(), Vec::new());
    let backends: Vec<String> = (0..4).map(|p| format!("{}:8080", ip(t, 0, p))).collect();
    let vip = format!("172.{}.{}.1:80", 16 + (t >> 8), t & 255);
    let lb = add(
        "Load_Balancer",
        "lb".into(),
        json!({"name": format!("lb{t}"), "protocol": "tcp", "vips": map(&[(&vip, &backends.join(","))])}),
    );
    for s in 0..SWITCHES {
        let net = ip(t, s, 0);
        let net = net.rsplit_once('.').map_or("", |n| n.0);
        let gateway = format!("0a:01:{:02x}:{:02x}:{s:02x}:01", t >> 8, t & 255);
        let options = map(&[
            ("lease_time", "3600"),
            ("router", &format!("{net}.1")),
            ("server_id", &format!("{net}.1")),
            ("server_mac", &gateway),
        ]);
        let dhcp = add("DHCP_Options", format!("dhcp{s}"), json!({"cidr": format!("{net}.0/24"), "options": options}));
        let lrp = format!("lrp-{t}-{s}");
        router.push(add(
            "Logical_Router_Port",
            format!("lrp{s}"),
            json!({"name": lrp, "mac": gateway, "networks": format!("{net}.1/24")}),
        ));
        let up = json!({"name": format!("up-{t}-{s}"), "type": "router", "addresses": "router", "options": map(&[("router-port", &lrp)])});
        let mut ports = vec![add("Logical_Switch_Port", format!("up{s}"), up)];
        for p in 0..PORTS {
            let address = format!("{} {}", mac(t, s, p), ip(t, s, p));
            let row =
                json!({"name": port(t, s, p), "addresses": address, "port_security": address, "dhcpv4_options": dhcp});
            let lsp = add("Logical_Switch_Port", format!("p{s}x{p}"), row);
            members.push(lsp.clone());
            ports.push(lsp);
        }
        add(
            "Logical_Switch",
            format!("s{s}"),
            json!({"name": format!("s{t}-{s}"), "ports": set(&ports), "load_balancer": lb}),
        );
    }
    add("Logical_Router", "r".into(), json!({"name": format!("r{t}"), "ports": set(&router), "load_balancer": lb}));
    let addresses: Vec<String> = (0..10).map(|p| ip(t, 1, p)).collect();
    add("Address_Set", "as".into(), json!({"name": format!("as{t}"), "addresses": ["set", addresses]}));
    let mut acls = Vec::new();
    for (n, (m, action)) in [
        (format!("outport == @pg{t} && ip4"), "drop"),
        (format!("outport == @pg{t} && ip4.src == $as{t} && tcp.dst == 22"), "allow-related"),
        (format!("outport == @pg{t} && ip4 && tcp.dst == {{80, 443}}"), "allow-related"),
    ]
    .into_iter()
    .enumerate()
    {
        let row = json!({"direction": "to-lport", "priority": 1000 + n, "action": action, "match": m});
        acls.push(add("ACL", format!("acl{n}"), row));
    }
    add("Port_Group", "pg".into(), json!({"name": format!("pg{t}"), "ports": set(&members), "acls": set(&acls)}));
    all
}

/// Makes the southbound database of a cloud of so many tenants, as a file of `folder`, with a northd and schemas from `schemas`. Returns
/// how many logical flows it has.
pub async fn make(folder: &Path, tenants: usize, northd: &Path, schemas: &Path) -> Result<usize> {
    let server = Server::new();
    for name in ["nb", "sb"] {
        let schema = schema(&schemas.join(format!("ovn-{name}.ovsschema")))?;
        server.add_file(&folder.join(format!("{name}.db")), Some(&schema)).await?;
    }
    server.listen(&format!("punix:{}", folder.join("made.sock").display())).await?;
    for t in 0..tenants {
        transact(&server, "OVN_Northbound", tenant(t)).await?;
    }
    let global = json!({"op": "insert", "table": "NB_Global", "row": {"nb_cfg": 1}});
    transact(&server, "OVN_Northbound", vec![global]).await?;
    let remote = format!("unix:{}", folder.join("made.sock").display());
    let mut northd = Command::new(northd);
    northd.args([format!("--ovnnb-db={remote}"), format!("--ovnsb-db={remote}")]);
    let northd = Running::start(northd, folder)?;
    let end = Instant::now() + Duration::from_secs(1200);
    loop {
        let global = rows(&server, "OVN_Northbound", "NB_Global", json!([]), json!(["sb_cfg"])).await?;
        if global.first().is_some_and(|g| g["sb_cfg"] == 1) {
            break;
        }
        if Instant::now() > end {
            bail!("northd did not compile the cloud in time, see {}", folder.display());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(northd);
    bind(&server, tenants).await?;
    server.compact("OVN_Southbound").await?;
    server.shutdown().await;
    made(folder).await
}

/// How many logical flows a database that was made before has.
pub async fn made(folder: &Path) -> Result<usize> {
    let server = Server::new();
    server.add_file(&folder.join("sb.db"), None).await?;
    let flows = rows(&server, "OVN_Southbound", "Logical_Flow", json!([]), json!(["_uuid"])).await?.len();
    server.shutdown().await;
    Ok(flows)
}

/// Which ports the chassis is to have, at the start or one after the other later on.
pub fn is_local(tenant: usize, port: usize) -> bool {
    tenant < LOCAL_TENANTS && port < 2 * LOCAL_PORTS
}

/// The other chassis, and their ports.
async fn bind(server: &Server, tenants: usize) -> Result<()> {
    let mut operations = Vec::new();
    for n in 0..CHASSIS {
        operations.push(json!({"op": "insert", "table": "Encap", "uuid-name": format!("e{n}"),
            "row": {"type": "geneve", "ip": format!("10.255.0.{}", n + 10), "chassis_name": format!("hv{n}"), "options": map(&[("csum", "true")])}}));
        operations.push(json!({"op": "insert", "table": "Chassis", "uuid-name": format!("c{n}"),
            "row": {"name": format!("hv{n}"), "hostname": format!("hv{n}"), "encaps": ["named-uuid", format!("e{n}")]}}));
    }
    let results = transact(server, "OVN_Southbound", operations).await?;
    let chassis: Vec<Value> = (0..CHASSIS).filter_map(|n| results.get(2 * n + 1).map(|r| r["uuid"].clone())).collect();
    let ports = rows(server, "OVN_Southbound", "Port_Binding", json!([]), json!(["_uuid", "logical_port"])).await?;
    let known: HashMap<&str, &Value> =
        ports.iter().filter_map(|r| Some((r["logical_port"].as_str()?, &r["_uuid"]))).collect();
    for t in 0..tenants {
        let all = (0..SWITCHES).flat_map(|s| (0..PORTS).map(move |p| (s, p))).filter(|(_, p)| !is_local(t, *p));
        let binds = all.map(|(s, p)| {
            json!({"op": "update", "table": "Port_Binding", "where": [["_uuid", "==", known.get(&*port(t, s, p))]],
                "row": {"chassis": chassis.get((t + p) % CHASSIS), "up": true}})
        });
        transact(server, "OVN_Southbound", binds.collect()).await?;
    }
    Ok(())
}
