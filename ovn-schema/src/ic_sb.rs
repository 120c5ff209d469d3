//! The interconnection southbound database, OVN_IC_Southbound. Meaning of each column: ovn-ic-sb(5).

use crate::columns::*;

crate::database! {
    name "OVN_IC_Southbound", version "2.7.0", manual "ovn-ic-sb(5)";

    table AddressSet address_set = "Address_Set" root index("name", "availability_zone") {
        addresses: Set<Str> = "addresses" { set(string()) };
        availability_zone: Uuid = "availability_zone" { one(strong("Availability_Zone")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
    }

    table AvailabilityZone availability_zone = "Availability_Zone" root index("name") {
        name: Str = "name" { one(string()) };
        nb_ic_cfg: i64 = "nb_ic_cfg" { one(integer()) };
    }

    table Connection connection = "Connection" index("target") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        inactivity_probe: Option<i64> = "inactivity_probe" { opt(integer()) };
        is_connected: bool = "is_connected" { one(boolean()) } ephemeral;
        max_backoff: Option<i64> = "max_backoff" { opt(at_least(1000)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        target: Str = "target" { one(string()) };
    }

    table DatapathBinding datapath_binding = "Datapath_Binding" root index("nb_ic_uuid", "tunnel_key") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        nb_ic_uuid: Option<Uuid> = "nb_ic_uuid" { opt(uuid()) };
        transit_switch: Str = "transit_switch" { one(string()) };
        tunnel_key: i64 = "tunnel_key" { one(range(1, 16777215)) };
        r#type: Option<Str> = "type" { opt(one_of(&["transit-router", "transit-switch"])) };
    }

    table Encap encap = "Encap" index("type", "ip") {
        gateway_name: Str = "gateway_name" { one(string()) };
        ip: Str = "ip" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        r#type: Str = "type" { one(one_of(&["geneve", "vxlan"])) };
    }

    table Gateway gateway = "Gateway" root index("name") {
        availability_zone: Uuid = "availability_zone" { one(strong("Availability_Zone")) };
        encaps: Set<Uuid> = "encaps" { set(strong("Encap")).sized(1, u32::MAX) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        hostname: Str = "hostname" { one(string()) };
        name: Str = "name" { one(string()) };
    }

    table IcSbGlobal ic_sb_global = "IC_SB_Global" root max_rows(1) {
        connections: Set<Uuid> = "connections" { set(strong("Connection")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        nb_ic_cfg: i64 = "nb_ic_cfg" { one(integer()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        ssl: Option<Uuid> = "ssl" { opt(strong("SSL")) };
    }

    table PortBinding port_binding = "Port_Binding" root index("transit_switch", "tunnel_key") index("logical_port") {
        address: Str = "address" { one(string()) };
        availability_zone: Uuid = "availability_zone" { one(strong("Availability_Zone")) };
        encap: Option<Uuid> = "encap" { opt(weak("Encap")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        gateway: Str = "gateway" { one(string()) };
        logical_port: Str = "logical_port" { one(string()) };
        nb_ic_uuid: Option<Uuid> = "nb_ic_uuid" { opt(uuid()) };
        transit_switch: Str = "transit_switch" { one(string()) };
        tunnel_key: i64 = "tunnel_key" { one(range(1, 32767)) };
        r#type: Option<Str> = "type" { opt(one_of(&["transit-router-port", "transit-switch-port"])) };
    }

    table Route route = "Route" root index("transit_switch", "availability_zone", "route_table", "ip_prefix", "nexthop") {
        availability_zone: Uuid = "availability_zone" { one(strong("Availability_Zone")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ip_prefix: Str = "ip_prefix" { one(string()) };
        nexthop: Str = "nexthop" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        origin: Str = "origin" { one(one_of(&["connected", "connected-dynamic", "loadbalancer", "static"])) };
        route_table: Str = "route_table" { one(string()) };
        transit_switch: Str = "transit_switch" { one(string()) };
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

    table ServiceMonitor service_monitor = "Service_Monitor" root {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ip: Str = "ip" { one(string()) };
        logical_port: Str = "logical_port" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        port: i64 = "port" { one(range(0, 65535)) };
        protocol: Option<Str> = "protocol" { opt(one_of(&["tcp", "udp"])) };
        source_availability_zone: Str = "source_availability_zone" { one(string()) };
        src_ip: Str = "src_ip" { one(string()) };
        src_mac: Str = "src_mac" { one(string()) };
        status: Option<Str> = "status" { opt(one_of(&["error", "offline", "online"])) };
        target_availability_zone: Str = "target_availability_zone" { one(string()) };
        r#type: Option<Str> = "type" { opt(one_of(&["load-balancer"])) };
    }

}
