//! The northbound database, OVN_Northbound: what the cloud asks for. Meaning of each column: ovn-nb(5).

use crate::columns::*;

crate::database! {
    name "OVN_Northbound", version "7.19.0", manual "ovn-nb(5)";

    table Acl acl = "ACL" {
        action: Str = "action" { one(one_of(&["allow", "allow-related", "allow-stateless", "drop", "pass", "reject"])) };
        direction: Str = "direction" { one(one_of(&["from-lport", "to-lport"])) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        label: i64 = "label" { one(range(0, 4294967295)) };
        log: bool = "log" { one(boolean()) };
        r#match: Str = "match" { one(string()) };
        meter: Option<Str> = "meter" { opt(string()) };
        name: Option<Str> = "name" { opt(length(None, Some(63))) };
        network_function_group: Option<Uuid> = "network_function_group" { opt(strong("Network_Function_Group")) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
        sample_est: Option<Uuid> = "sample_est" { opt(strong("Sample")) };
        sample_new: Option<Uuid> = "sample_new" { opt(strong("Sample")) };
        severity: Option<Str> = "severity" { opt(one_of(&["alert", "debug", "info", "notice", "warning"])) };
        tier: i64 = "tier" { one(range(0, 3)) };
    }

    table AddressSet address_set = "Address_Set" root index("name") {
        addresses: Set<Str> = "addresses" { set(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
    }

    table Bfd bfd = "BFD" root index("logical_port", "dst_ip") {
        detect_mult: Option<i64> = "detect_mult" { opt(at_least(1)) };
        dst_ip: Str = "dst_ip" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        logical_port: Str = "logical_port" { one(string()) };
        min_rx: Option<i64> = "min_rx" { opt(integer()) };
        min_tx: Option<i64> = "min_tx" { opt(at_least(1)) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        status: Option<Str> = "status" { opt(one_of(&["admin_down", "down", "init", "up"])) };
    }

    table ChassisTemplateVar chassis_template_var = "Chassis_Template_Var" root index("chassis") {
        chassis: Str = "chassis" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        variables: Map<Str, Str> = "variables" { map(string(), string()) };
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

    table Copp copp = "Copp" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        meters: Map<Str, Str> = "meters" { map(string(), string()) };
        name: Str = "name" { one(string()) };
    }

    table DhcpOptions dhcp_options = "DHCP_Options" root {
        cidr: Str = "cidr" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
    }

    table DhcpRelay dhcp_relay = "DHCP_Relay" root {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        servers: Option<Str> = "servers" { opt(string()) };
    }

    table Dns dns = "DNS" root {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        records: Map<Str, Str> = "records" { map(string(), string()) };
    }

    table ForwardingGroup forwarding_group = "Forwarding_Group" {
        child_port: Set<Str> = "child_port" { set(string()).sized(1, u32::MAX) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        liveness: bool = "liveness" { one(boolean()) };
        name: Str = "name" { one(string()) };
        vip: Str = "vip" { one(string()) };
        vmac: Str = "vmac" { one(string()) };
    }

    table GatewayChassis gateway_chassis = "Gateway_Chassis" index("name") {
        chassis_name: Str = "chassis_name" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
    }

    table HaChassis ha_chassis = "HA_Chassis" {
        chassis_name: Str = "chassis_name" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
    }

    table HaChassisGroup ha_chassis_group = "HA_Chassis_Group" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ha_chassis: Set<Uuid> = "ha_chassis" { set(strong("HA_Chassis")) };
        name: Str = "name" { one(string()) };
    }

    table LoadBalancer load_balancer = "Load_Balancer" root {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        health_check: Set<Uuid> = "health_check" { set(strong("Load_Balancer_Health_Check")) };
        ip_port_mappings: Map<Str, Str> = "ip_port_mappings" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        protocol: Option<Str> = "protocol" { opt(one_of(&["sctp", "tcp", "udp"])) };
        selection_fields: Set<Str> = "selection_fields" { set(one_of(&["eth_dst", "eth_src", "ip_dst", "ip_src", "ipv6_dst", "ipv6_src", "tp_dst", "tp_src"])) };
        vips: Map<Str, Str> = "vips" { map(string(), string()) };
    }

    table LoadBalancerGroup load_balancer_group = "Load_Balancer_Group" root index("name") {
        load_balancer: Set<Uuid> = "load_balancer" { set(weak("Load_Balancer")) };
        name: Str = "name" { one(string()) };
    }

    table LoadBalancerHealthCheck load_balancer_health_check = "Load_Balancer_Health_Check" {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        vip: Str = "vip" { one(string()) };
    }

    table LogicalRouter logical_router = "Logical_Router" root {
        copp: Option<Uuid> = "copp" { opt(weak("Copp")) };
        enabled: Option<bool> = "enabled" { opt(boolean()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        load_balancer: Set<Uuid> = "load_balancer" { set(weak("Load_Balancer")) };
        load_balancer_group: Set<Uuid> = "load_balancer_group" { set(strong("Load_Balancer_Group")) };
        name: Str = "name" { one(string()) };
        nat: Set<Uuid> = "nat" { set(strong("NAT")) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        policies: Set<Uuid> = "policies" { set(strong("Logical_Router_Policy")) };
        ports: Set<Uuid> = "ports" { set(strong("Logical_Router_Port")) };
        static_routes: Set<Uuid> = "static_routes" { set(strong("Logical_Router_Static_Route")) };
    }

    table LogicalRouterPolicy logical_router_policy = "Logical_Router_Policy" {
        action: Str = "action" { one(one_of(&["allow", "drop", "jump", "reroute"])) };
        bfd_sessions: Set<Uuid> = "bfd_sessions" { set(weak("BFD")) };
        chain: Option<Str> = "chain" { opt(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        jump_chain: Option<Str> = "jump_chain" { opt(string()) };
        r#match: Str = "match" { one(string()) };
        nexthop: Option<Str> = "nexthop" { opt(string()) };
        nexthops: Set<Str> = "nexthops" { set(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        output_port: Option<Uuid> = "output_port" { opt(weak("Logical_Router_Port")) };
        priority: i64 = "priority" { one(range(0, 32767)) };
    }

    table LogicalRouterPort logical_router_port = "Logical_Router_Port" index("name") {
        dhcp_relay: Option<Uuid> = "dhcp_relay" { opt(strong("DHCP_Relay")) };
        enabled: Option<bool> = "enabled" { opt(boolean()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        gateway_chassis: Set<Uuid> = "gateway_chassis" { set(strong("Gateway_Chassis")) };
        ha_chassis_group: Option<Uuid> = "ha_chassis_group" { opt(strong("HA_Chassis_Group")) };
        ipv6_prefix: Set<Str> = "ipv6_prefix" { set(string()) };
        ipv6_ra_configs: Map<Str, Str> = "ipv6_ra_configs" { map(string(), string()) };
        mac: Str = "mac" { one(string()) };
        name: Str = "name" { one(string()) };
        networks: Set<Str> = "networks" { set(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        peer: Option<Str> = "peer" { opt(string()) };
        status: Map<Str, Str> = "status" { map(string(), string()) };
    }

    table LogicalRouterStaticRoute logical_router_static_route = "Logical_Router_Static_Route" {
        bfd: Option<Uuid> = "bfd" { opt(weak("BFD")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ip_prefix: Str = "ip_prefix" { one(string()) };
        nexthop: Str = "nexthop" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        output_port: Option<Str> = "output_port" { opt(string()) };
        policy: Option<Str> = "policy" { opt(one_of(&["dst-ip", "src-ip"])) };
        route_table: Str = "route_table" { one(string()) };
        selection_fields: Set<Str> = "selection_fields" { set(one_of(&["eth_dst", "eth_src", "ip_dst", "ip_proto", "ip_src", "ipv6_dst", "ipv6_src", "tp_dst", "tp_src"])) };
    }

    table LogicalSwitch logical_switch = "Logical_Switch" root {
        acls: Set<Uuid> = "acls" { set(strong("ACL")) };
        copp: Option<Uuid> = "copp" { opt(weak("Copp")) };
        dns_records: Set<Uuid> = "dns_records" { set(weak("DNS")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        forwarding_groups: Set<Uuid> = "forwarding_groups" { set(strong("Forwarding_Group")) };
        load_balancer: Set<Uuid> = "load_balancer" { set(weak("Load_Balancer")) };
        load_balancer_group: Set<Uuid> = "load_balancer_group" { set(strong("Load_Balancer_Group")) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        ports: Set<Uuid> = "ports" { set(strong("Logical_Switch_Port")) };
        qos_rules: Set<Uuid> = "qos_rules" { set(strong("QoS")) };
    }

    table LogicalSwitchPort logical_switch_port = "Logical_Switch_Port" index("name") {
        addresses: Set<Str> = "addresses" { set(string()) };
        dhcpv4_options: Option<Uuid> = "dhcpv4_options" { opt(weak("DHCP_Options")) };
        dhcpv6_options: Option<Uuid> = "dhcpv6_options" { opt(weak("DHCP_Options")) };
        dynamic_addresses: Option<Str> = "dynamic_addresses" { opt(string()) };
        enabled: Option<bool> = "enabled" { opt(boolean()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ha_chassis_group: Option<Uuid> = "ha_chassis_group" { opt(strong("HA_Chassis_Group")) };
        health_checks: Set<Uuid> = "health_checks" { set(strong("Logical_Switch_Port_Health_Check")) };
        mirror_rules: Set<Uuid> = "mirror_rules" { set(weak("Mirror")) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        parent_name: Option<Str> = "parent_name" { opt(string()) };
        peer: Option<Str> = "peer" { opt(string()) };
        port_security: Set<Str> = "port_security" { set(string()) };
        tag: Option<i64> = "tag" { opt(range(1, 4095)) };
        tag_request: Option<i64> = "tag_request" { opt(range(0, 4095)) };
        r#type: Str = "type" { one(string()) };
        up: Option<bool> = "up" { opt(boolean()) };
    }

    table LogicalSwitchPortHealthCheck logical_switch_port_health_check = "Logical_Switch_Port_Health_Check" {
        address: Str = "address" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        port: i64 = "port" { one(range(0, 65535)) };
        protocol: Str = "protocol" { one(one_of(&["icmp", "tcp", "udp"])) };
        src_ip: Str = "src_ip" { one(string()) };
        status: Option<Str> = "status" { opt(one_of(&["error", "offline", "online"])) };
    }

    table Meter meter = "Meter" root index("name") {
        bands: Set<Uuid> = "bands" { set(strong("Meter_Band")).sized(1, u32::MAX) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        fair: Option<bool> = "fair" { opt(boolean()) };
        name: Str = "name" { one(string()) };
        unit: Str = "unit" { one(one_of(&["kbps", "pktps"])) };
    }

    table MeterBand meter_band = "Meter_Band" {
        action: Str = "action" { one(one_of(&["drop"])) };
        burst_size: i64 = "burst_size" { one(range(0, 4294967295)) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        rate: i64 = "rate" { one(range(1, 4294967295)) };
    }

    table Mirror mirror = "Mirror" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        filter: Str = "filter" { one(one_of(&["both", "from-lport", "to-lport"])) };
        index: i64 = "index" { one(integer()) };
        mirror_rules: Set<Uuid> = "mirror_rules" { set(strong("Mirror_Rule")) };
        name: Str = "name" { one(string()) };
        sink: Str = "sink" { one(string()) };
        r#type: Str = "type" { one(one_of(&["erspan", "gre", "local", "lport"])) };
    }

    table MirrorRule mirror_rule = "Mirror_Rule" {
        action: Str = "action" { one(one_of(&["mirror", "skip"])) };
        r#match: Str = "match" { one(string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
    }

    table Nat nat = "NAT" {
        allowed_ext_ips: Option<Uuid> = "allowed_ext_ips" { opt(strong("Address_Set")) };
        exempted_ext_ips: Option<Uuid> = "exempted_ext_ips" { opt(strong("Address_Set")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        external_ip: Str = "external_ip" { one(string()) };
        external_mac: Option<Str> = "external_mac" { opt(string()) };
        external_port_range: Str = "external_port_range" { one(string()) };
        gateway_port: Option<Uuid> = "gateway_port" { opt(weak("Logical_Router_Port")) };
        logical_ip: Str = "logical_ip" { one(string()) };
        logical_port: Option<Str> = "logical_port" { opt(string()) };
        r#match: Str = "match" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
        r#type: Str = "type" { one(one_of(&["dnat", "dnat_and_snat", "snat"])) };
    }

    table NbGlobal nb_global = "NB_Global" root max_rows(1) {
        connections: Set<Uuid> = "connections" { set(strong("Connection")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        hv_cfg: i64 = "hv_cfg" { one(integer()) };
        hv_cfg_timestamp: i64 = "hv_cfg_timestamp" { one(integer()) };
        ipsec: bool = "ipsec" { one(boolean()) };
        name: Str = "name" { one(string()) };
        nb_cfg: i64 = "nb_cfg" { one(integer()) };
        nb_cfg_timestamp: i64 = "nb_cfg_timestamp" { one(integer()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        sb_cfg: i64 = "sb_cfg" { one(integer()) };
        sb_cfg_timestamp: i64 = "sb_cfg_timestamp" { one(integer()) };
        ssl: Option<Uuid> = "ssl" { opt(strong("SSL")) };
    }

    table NetworkFunction network_function = "Network_Function" root index("name") index("id") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        health_check: Option<Uuid> = "health_check" { opt(strong("Network_Function_Health_Check")) };
        id: i64 = "id" { one(range(1, 255)) };
        inport: Uuid = "inport" { one(strong("Logical_Switch_Port")) };
        name: Str = "name" { one(string()) };
        outport: Option<Uuid> = "outport" { opt(strong("Logical_Switch_Port")) };
    }

    table NetworkFunctionGroup network_function_group = "Network_Function_Group" root index("name") index("id") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        fallback: Option<Str> = "fallback" { opt(one_of(&["fail-close", "fail-open"])) };
        id: i64 = "id" { one(range(1, 255)) };
        mode: Str = "mode" { one(one_of(&["inline", "vtap"])) };
        name: Str = "name" { one(string()) };
        network_function: Set<Uuid> = "network_function" { set(strong("Network_Function")) };
        network_function_active: Option<Uuid> = "network_function_active" { opt(strong("Network_Function")) };
    }

    table NetworkFunctionHealthCheck network_function_health_check = "Network_Function_Health_Check" index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
    }

    table PortGroup port_group = "Port_Group" root index("name") {
        acls: Set<Uuid> = "acls" { set(strong("ACL")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        ports: Set<Uuid> = "ports" { set(weak("Logical_Switch_Port")) };
    }

    table Qos qos = "QoS" {
        action: Map<Str, i64> = "action" { map(one_of(&["dscp", "mark"]), range(0, 4294967295)) };
        bandwidth: Map<Str, i64> = "bandwidth" { map(one_of(&["burst", "rate"]), range(1, 4294967295)) };
        direction: Str = "direction" { one(one_of(&["from-lport", "to-lport"])) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        r#match: Str = "match" { one(string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
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

    table Sample sample = "Sample" index("metadata") {
        collectors: Set<Uuid> = "collectors" { set(strong("Sample_Collector")) };
        metadata: i64 = "metadata" { one(range(1, 4294967295)) };
    }

    table SampleCollector sample_collector = "Sample_Collector" root index("id") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        id: i64 = "id" { one(range(1, 255)) };
        name: Str = "name" { one(string()) };
        probability: i64 = "probability" { one(range(0, 65535)) };
        set_id: i64 = "set_id" { one(range(1, 4294967295)) };
    }

    table SamplingApp sampling_app = "Sampling_App" root index("type") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        id: i64 = "id" { one(range(1, 255)) };
        r#type: Str = "type" { one(one_of(&["acl-est", "acl-new", "drop"])) };
    }

    table StaticMacBinding static_mac_binding = "Static_MAC_Binding" root index("logical_port", "ip") {
        ip: Str = "ip" { one(string()) };
        logical_port: Str = "logical_port" { one(string()) };
        mac: Str = "mac" { one(string()) };
        override_dynamic_mac: bool = "override_dynamic_mac" { one(boolean()) };
    }

}
