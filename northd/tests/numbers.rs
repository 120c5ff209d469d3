//! A router with a thousand routes in named tables and a thousand policies in chains: the numbers of tables, chains and groups
//! are found in one pass, and a restarted compiler finds those that are in the southbound database.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/written.rs"]
mod written;

use northd::Compiler;
use ovn_schema::{Str, Uuid, nb, sb};
use std::collections::BTreeSet;
use std::sync::Arc;

const MANY: usize = 1000;

fn id(kind: u8, n: usize) -> Uuid {
    Uuid::from_u128(u128::from(kind) << 64 | n as u128 | 1 << 100)
}

fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

/// Every tenth route leads two ways, every tenth policy too, and each chain is one that a policy jumps to.
fn network() -> nb::Database {
    let mut db = nb::Database::default();
    db.nb_global.insert(id(0, 0), Arc::default());
    let lrp = nb::LogicalRouterPort {
        name: text("out"),
        mac: text("0a:00:00:00:00:01"),
        networks: [text("172.20.0.1/16")].into(),
        ..Default::default()
    };
    db.logical_router_port.insert(id(1, 0), Arc::new(lrp));
    let mut lr = nb::LogicalRouter { name: text("lr"), ports: [id(1, 0)].into(), ..Default::default() };
    for n in 0..MANY {
        for way in 0..=usize::from(n % 10 == 0) {
            let route = nb::LogicalRouterStaticRoute {
                ip_prefix: text(format!("10.{}.{}.0/24", n / 250, n % 250)),
                nexthop: text(format!("172.20.0.{}", 9 + way)),
                route_table: text(format!("t{}", n % 5)),
                ..Default::default()
            };
            db.logical_router_static_route.insert(id(2 + way as u8, n), Arc::new(route));
            lr.static_routes.insert(id(2 + way as u8, n));
        }
        let jumps = n < 5;
        let policy = nb::LogicalRouterPolicy {
            priority: 100 + i64::from(jumps),
            r#match: text(format!("ip4.src == 10.{}.{}.0/24", n / 250, n % 250)),
            action: text(if jumps { "jump" } else { "reroute" }),
            chain: (!jumps).then(|| text(format!("c{}", n % 5))),
            jump_chain: jumps.then(|| text(format!("c{n}"))),
            nexthops: (0..=usize::from(n % 10 == 0)).map(|way| text(format!("172.20.0.{}", 9 + way))).collect(),
            ..Default::default()
        };
        db.logical_router_policy.insert(id(4, n), Arc::new(policy));
        lr.policies.insert(id(4, n));
    }
    db.logical_router.insert(id(5, 0), Arc::new(lr));
    db
}

#[test]
fn numbers_of_many_routes_and_policies_stay() {
    let mut c = Compiler::new(network(), sb::Database::default());
    let changes = c.run();
    c.change_sb(|db| written::insert(db, &changes.sb));
    c.run();
    let of = |before: &str| -> BTreeSet<String> {
        let flows = c.input().sb.logical_flow.values();
        let texts = flows.flat_map(|f| [f.r#match.to_string(), f.actions.to_string()]);
        let numbers = texts.filter_map(|t| Some(t.split_once(before)?.1.to_string()));
        numbers.map(|t| t.chars().take_while(char::is_ascii_digit).collect()).collect()
    };
    let five = |first: usize| -> BTreeSet<String> { (first..=5).map(|n| n.to_string()).collect() };
    assert_eq!((of("reg7 == "), of("reg9[16..31] == ")), (five(1), five(0)), "tables; chains, with the main one");
    let (nb, sb) = c.into_databases();
    let again = Compiler::new(nb, sb).run();
    assert!(again.sb.is_empty(), "{:?}", again.sb);
}
