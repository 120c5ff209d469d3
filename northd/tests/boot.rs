//! What machines are to load by network: from the `external_ids` of DHCP options to those of port bindings, where controllers find it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use northd::Compiler;
use northd::model::{Cell, Key, RowKey, Value};
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::sync::Arc;

fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(1 << 100 | n)
}

#[test]
fn a_port_has_what_its_dhcp_options_say_but_for_what_it_says_itself() {
    let mut db = nb::Database::default();
    db.nb_global.insert(id(1), Arc::default());
    let four = map(&[("boot:efi-x64", "x64.efi"), ("boot:ipxe", "menu.ipxe"), ("owner", "ops")]);
    let six = map(&[("boot:efi-x64-http", "http://b/x64.efi")]);
    for (n, cidr, external_ids) in [(10, "10.0.0.0/24", four), (11, "fd00::/64", six)] {
        let row = nb::DhcpOptions { cidr: cidr.into(), external_ids, ..Default::default() };
        db.dhcp_options.insert(id(n), Arc::new(row));
    }
    let port = nb::LogicalSwitchPort {
        name: "bm1".into(),
        r#type: "external".into(),
        addresses: [Str::from("02:00:00:00:00:01 10.0.0.4 fd00::4")].into(),
        dhcpv4_options: Some(id(10)),
        dhcpv6_options: Some(id(11)),
        external_ids: map(&[("dhcpv4-boot:ipxe", "mine.ipxe")]),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(20), Arc::new(port));
    let switch = nb::LogicalSwitch { name: "s".into(), ports: [id(20)].into(), ..Default::default() };
    db.logical_switch.insert(id(30), Arc::new(switch));
    let mut compiler = Compiler::new(db, sb::Database::default());
    compiler.run();
    let outputs = compiler.engine().outputs();
    let key = Key::Row(RowKey::new(sb::TableId::PortBinding, "bm1"));
    let Value::Row(columns) = outputs.values(outputs.id(&key).unwrap()).pop().unwrap() else { panic!("no row") };
    let Some((_, Cell::Data(ids))) = columns.0.iter().find(|(n, _)| *n == "external_ids") else { panic!("no column") };
    let ids = ids.to_json().to_string();
    for pair in [
        r#"["dhcpv4-boot:efi-x64","x64.efi"]"#,
        r#"["dhcpv4-boot:ipxe","mine.ipxe"]"#,
        r#"["dhcpv6-boot:efi-x64-http","http://b/x64.efi"]"#,
    ] {
        assert!(ids.contains(pair), "{pair} in {ids}");
    }
    assert!(!ids.contains("owner") && !ids.contains("menu.ipxe"), "{ids}");
}
