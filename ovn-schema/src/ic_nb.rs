//! The interconnection northbound database, OVN_IC_Northbound. Meaning of each column: ovn-ic-nb(5).

use crate::columns::*;

crate::database! {
    name "OVN_IC_Northbound", version "1.4.0", manual "ovn-ic-nb(5)";

    table Connection connection = "Connection" index("target") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        inactivity_probe: Option<i64> = "inactivity_probe" { opt(integer()) };
        is_connected: bool = "is_connected" { one(boolean()) } ephemeral;
        max_backoff: Option<i64> = "max_backoff" { opt(at_least(1000)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        target: Str = "target" { one(string()) };
    }

    table IcNbGlobal ic_nb_global = "IC_NB_Global" root max_rows(1) {
        connections: Set<Uuid> = "connections" { set(strong("Connection")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        nb_ic_cfg: i64 = "nb_ic_cfg" { one(integer()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        sb_ic_cfg: i64 = "sb_ic_cfg" { one(integer()) };
        ssl: Option<Uuid> = "ssl" { opt(strong("SSL")) };
    }

    table Ssl ssl = "SSL" max_rows(1) {
        bootstrap_ca_cert: bool = "bootstrap_ca_cert" { one(boolean()) };
        ca_cert: Str = "ca_cert" { one(string()) };
        certificate: Str = "certificate" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        private_key: Str = "private_key" { one(string()) };
        ssl_ciphers: Str = "ssl_ciphers" { one(string()) };
        ssl_ciphersuites: Str = "ssl_ciphersuites" { one(string()) };
        ssl_protocols: Str = "ssl_protocols" { one(string()) };
    }

    table TransitRouter transit_router = "Transit_Router" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        ports: Set<Uuid> = "ports" { set(strong("Transit_Router_Port")) };
    }

    table TransitRouterPort transit_router_port = "Transit_Router_Port" index("name") {
        chassis: Str = "chassis" { one(string()) };
        mac: Str = "mac" { one(string()) };
        name: Str = "name" { one(string()) };
        networks: Set<Str> = "networks" { set(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        tr_uuid: Uuid = "tr_uuid" { one(uuid()) };
    }

    table TransitSwitch transit_switch = "Transit_Switch" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        ports: Set<Uuid> = "ports" { set(strong("Transit_Switch_Port")) };
    }

    table TransitSwitchPort transit_switch_port = "Transit_Switch_Port" index("name") {
        addresses: Set<Str> = "addresses" { set(string()) };
        chassis: Str = "chassis" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        peer: Str = "peer" { one(string()) };
        r#type: Str = "type" { one(string()) };
    }

}
