//! `routes/show`: what becomes of each route, and why.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use serde_json::json;

const ROUTES: &str = "Logical_Router_Static_Route";

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_string()).collect()
}

/// Gives a zone's router static routes: prefix, next hop, table.
async fn static_routes(w: &World, zone: usize, routes: &[(&str, &str, &str)]) {
    let insert = |(n, (prefix, nexthop, table)): (usize, &(&str, &str, &str))| {
        let row = json!({"ip_prefix": prefix, "nexthop": nexthop, "route_table": table});
        json!({"op": "insert", "table": ROUTES, "uuid-name": format!("r{n}"), "row": row})
    };
    let mut operations: Vec<_> = routes.iter().enumerate().map(insert).collect();
    let all: Vec<_> = (0..routes.len()).map(|n| json!(["named-uuid", format!("r{n}")])).collect();
    operations.push(json!({"op": "mutate", "table": "Logical_Router", "where": [],
        "mutations": [["static_routes", "insert", ["set", all]]]}));
    w.run(&format!("nb{zone}"), json!(operations)).await;
}

async fn options(w: &World, zone: usize, more: &[(&str, &str)]) {
    let on = [("ic-route-adv", "true"), ("ic-route-learn", "true")];
    let pairs: Vec<_> = on.iter().chain(more).map(|(k, v)| json!([k, v])).collect();
    let name = format!("az{zone}");
    w.set(&format!("nb{zone}"), "NB_Global", ("name", &name), json!({"options": ["map", pairs]})).await;
}

/// What is shown is what is written, and each rule that holds a route back is named.
#[tokio::test(flavor = "multi_thread")]
async fn each_route_has_its_reason() {
    let w = World::new(2).await;
    let daemons: Vec<_> = (1..=2).map(|n| w.start(n, &format!("az{n}"))).collect();
    w.transit_switch("ts1").await;
    for n in 1..=2 {
        w.gateway(n, &format!("gw{n}"), &format!("10.0.0.{n}")).await;
        wait_for!(w.column(&format!("nb{n}"), "Logical_Switch", "name").await, strings(&["ts1"]));
        w.router(n, &format!("lr{n}"), "ts1", &format!("192.168.{n}.1/24"), &format!("gw{n}")).await;
    }
    options(&w, 1, &[("ic-route-denylist", "10.9.0.0/16")]).await;
    let routes = [
        ("0.0.0.0/0", "192.168.1.9", ""),
        ("10.1.0.0/24", "192.168.1.9", ""),
        ("10.2.0.0/24", "192.168.1.9", "blue"),
        ("10.3.0.0/24", "fe80::1", ""),
        ("10.4.0.0/24", "192.168.1.9", ""),
        ("10.9.1.0/24", "192.168.1.9", ""),
        ("169.254.9.0/24", "192.168.1.9", ""),
        ("192.168.1.1/24", "192.168.1.9", ""),
    ];
    static_routes(&w, 1, &routes).await;
    static_routes(&w, 2, &[("10.4.0.0/24", "192.168.2.9", "")]).await;
    let row = w.row("nb1", ROUTES, "ip_prefix", "192.168.1.1/24").await.unwrap()["_uuid"][1].clone();
    let shown = |zone: usize| daemons[zone - 1].ask("routes/show").lines().map(String::from).collect::<Vec<_>>();
    let duplicate = format!(
        "  not told    192.168.1.1/24, network of a router port: duplicate: told already, of route {}",
        row.as_str().unwrap()
    );
    wait_for!(
        shown(1),
        strings(&[
            "router lr1 on ts1",
            "  not told    0.0.0.0/0, static route: ic-route-adv-default is off in NB_Global:options",
            "  told        10.1.0.0/24, static route",
            "  not told    10.2.0.0/24, static route: in route table blue, the port's is <main>",
            "  not told    10.3.0.0/24, static route: link-local next hop",
            "  told        10.4.0.0/24, static route",
            "  not told    10.9.1.0/24, static route: denied: ic-route-denylist of NB_Global has 10.9.0.0/16",
            "  not told    169.254.9.0/24, static route: link-local prefix",
            &duplicate,
            "  told        192.168.1.1/24, static route",
            "  not learned 10.4.0.0/24, static of zone az2, by 169.254.0.2: the router has a static route of its own to it",
            "  learned     192.168.2.1/24, connected of zone az2, by 169.254.0.2",
        ])
    );
    let port = w.row("nb1", "Logical_Router_Port", "name", "lr1-inside").await.unwrap()["_uuid"][1].clone();
    let port = port.as_str().unwrap();
    let suppressed = format!("Duplicate connected route advertisement was suppressed! NB lrp uuid: {port}");
    assert!(daemons[0].warnings().iter().any(|w| w.ends_with(&suppressed)), "{:?}", daemons[0].warnings());
    wait_for!(w.learned(1).await, strings(&["192.168.2.1/24 169.254.0.2"]));
    // The rules of whoever learns.
    options(&w, 2, &[]).await;
    let rules = json!({"options": ["map", [["ic-route-deny-learn", "10.1.0.0/16"]]]});
    w.set("nb2", "Logical_Router_Port", ("name", "lr2-ts1"), rules).await;
    let rules = json!({"options": ["map", [["ic-route-filter-learn", "10.0.0.0/8"]]]});
    w.set("nb2", "Logical_Router", ("name", "lr2"), rules).await;
    wait_for!(
        shown(2),
        strings(&[
            "router lr2 on ts1",
            "  told        10.4.0.0/24, static route",
            "  told        192.168.2.1/24, network of a router port",
            "  not learned 10.1.0.0/24, static of zone az1, by 169.254.0.1: denied: ic-route-deny-learn of the router port \
             has 10.1.0.0/16",
            "  not learned 10.4.0.0/24, static of zone az1, by 169.254.0.1: the router has a static route of its own to it",
            "  not learned 192.168.1.1/24, static of zone az1, by 169.254.0.1: not allowed: ic-route-filter-learn has no \
             prefix that contains it",
        ])
    );
    wait_for!(w.learned(2).await, Vec::<String>::new());
    // A zone that does not learn says so.
    let off = json!({"options": ["map", [["ic-route-adv", "true"]]]});
    w.set("nb1", "NB_Global", ("name", "az1"), off).await;
    wait_for!(
        shown(1).last().cloned(),
        Some(
            "  not learned 192.168.2.1/24, connected of zone az2, by 169.254.0.2: ic-route-learn is off in NB_Global:options"
                .to_string()
        )
    );
    daemons[0].ask("pause");
    wait_for!(shown(1), strings(&["this daemon is not active in its zone: ask the one that is"]));
}
