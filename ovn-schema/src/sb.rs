//! The southbound database, OVN_Southbound: what northd made of it and what chassis report. Meaning of each column: ovn-sb(5).

use crate::columns::*;

crate::database! {
    name "OVN_Southbound", version "21.11.0", manual "ovn-sb(5)";

    table AclId acl_id = "ACL_ID" root {
        id: i64 = "id" { one(range(0, 32767)) };
    }

    table AddressSet address_set = "Address_Set" root index("name") {
        addresses: Set<Str> = "addresses" { set(string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
    }

    table AdvertisedMacBinding advertised_mac_binding = "Advertised_MAC_Binding" root index("datapath", "logical_port", "ip", "mac") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ip: Str = "ip" { one(string()) };
        logical_port: Uuid = "logical_port" { one(strong("Port_Binding")) };
        mac: Str = "mac" { one(string()) };
    }

    table AdvertisedRoute advertised_route = "Advertised_Route" root index("datapath", "logical_port", "ip_prefix", "tracked_port") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ip_prefix: Str = "ip_prefix" { one(string()) };
        logical_port: Uuid = "logical_port" { one(strong("Port_Binding")) };
        tracked_port: Option<Uuid> = "tracked_port" { opt(strong("Port_Binding")) };
    }

    table Bfd bfd = "BFD" root index("logical_port", "dst_ip", "src_port", "disc") {
        chassis_name: Str = "chassis_name" { one(string()) };
        detect_mult: i64 = "detect_mult" { one(integer()) };
        disc: i64 = "disc" { one(integer()) };
        dst_ip: Str = "dst_ip" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        logical_port: Str = "logical_port" { one(string()) };
        min_rx: i64 = "min_rx" { one(integer()) };
        min_tx: i64 = "min_tx" { one(integer()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        src_port: i64 = "src_port" { one(range(49152, 65535)) };
        status: Str = "status" { one(one_of(&["admin_down", "down", "init", "up"])) };
    }

    table Chassis chassis = "Chassis" root index("name") {
        encaps: Set<Uuid> = "encaps" { set(strong("Encap")).sized(1, u32::MAX) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        hostname: Str = "hostname" { one(string()) };
        name: Str = "name" { one(string()) };
        nb_cfg: i64 = "nb_cfg" { one(integer()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        transport_zones: Set<Str> = "transport_zones" { set(string()) };
        vtep_logical_switches: Set<Str> = "vtep_logical_switches" { set(string()) };
    }

    table ChassisPrivate chassis_private = "Chassis_Private" root index("name") {
        chassis: Option<Uuid> = "chassis" { opt(weak("Chassis")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        nb_cfg: i64 = "nb_cfg" { one(integer()) };
        nb_cfg_timestamp: i64 = "nb_cfg_timestamp" { one(integer()) };
    }

    table ChassisTemplateVar chassis_template_var = "Chassis_Template_Var" root index("chassis") {
        chassis: Str = "chassis" { one(string()) };
        variables: Map<Str, Str> = "variables" { map(string(), string()) };
    }

    table Connection connection = "Connection" index("target") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        inactivity_probe: Option<i64> = "inactivity_probe" { opt(integer()) };
        is_connected: bool = "is_connected" { one(boolean()) } ephemeral;
        max_backoff: Option<i64> = "max_backoff" { opt(at_least(1000)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        read_only: bool = "read_only" { one(boolean()) };
        role: Str = "role" { one(string()) };
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        target: Str = "target" { one(string()) };
    }

    table ControllerEvent controller_event = "Controller_Event" root {
        chassis: Option<Uuid> = "chassis" { opt(weak("Chassis")) };
        event_info: Map<Str, Str> = "event_info" { map(string(), string()) };
        event_type: Str = "event_type" { one(one_of(&["empty_lb_backends"])) };
        seq_num: i64 = "seq_num" { one(integer()) };
    }

    table DhcpOptions dhcp_options = "DHCP_Options" root {
        code: i64 = "code" { one(range(0, 254)) };
        name: Str = "name" { one(string()) };
        r#type: Str = "type" { one(one_of(&["bool", "domains", "host_id", "ipv4", "static_routes", "str", "uint16", "uint32", "uint8"])) };
    }

    table Dhcpv6Options dhcpv6_options = "DHCPv6_Options" root {
        code: i64 = "code" { one(range(0, 254)) };
        name: Str = "name" { one(string()) };
        r#type: Str = "type" { one(one_of(&["domain", "ipv6", "mac", "str"])) };
    }

    table Dns dns = "DNS" root {
        datapaths: Set<Uuid> = "datapaths" { set(strong("Datapath_Binding")).sized(1, u32::MAX) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        records: Map<Str, Str> = "records" { map(string(), string()) };
    }

    table DatapathBinding datapath_binding = "Datapath_Binding" root index("tunnel_key") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        load_balancers: Set<Uuid> = "load_balancers" { set(uuid()) };
        nb_uuid: Option<Uuid> = "nb_uuid" { opt(uuid()) };
        tunnel_key: i64 = "tunnel_key" { one(range(1, 16777215)) };
        r#type: Option<Str> = "type" { opt(one_of(&["logical-router", "logical-switch"])) };
    }

    table EcmpNexthop ecmp_nexthop = "ECMP_Nexthop" root index("nexthop", "port") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        mac: Str = "mac" { one(string()) };
        nexthop: Str = "nexthop" { one(string()) };
        port: Uuid = "port" { one(strong("Port_Binding")) };
    }

    table Encap encap = "Encap" index("type", "ip") {
        chassis_name: Str = "chassis_name" { one(string()) };
        ip: Str = "ip" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        r#type: Str = "type" { one(one_of(&["geneve", "vxlan"])) };
    }

    table Fdb fdb = "FDB" root index("mac", "dp_key") {
        dp_key: i64 = "dp_key" { one(range(1, 16777215)) };
        mac: Str = "mac" { one(string()) };
        port_key: i64 = "port_key" { one(range(1, 16777215)) };
        timestamp: i64 = "timestamp" { one(integer()) };
    }

    table GatewayChassis gateway_chassis = "Gateway_Chassis" index("name") {
        chassis: Option<Uuid> = "chassis" { opt(weak("Chassis")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
    }

    table HaChassis ha_chassis = "HA_Chassis" {
        chassis: Option<Uuid> = "chassis" { opt(weak("Chassis")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        priority: i64 = "priority" { one(range(0, 32767)) };
    }

    table HaChassisGroup ha_chassis_group = "HA_Chassis_Group" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ha_chassis: Set<Uuid> = "ha_chassis" { set(strong("HA_Chassis")) };
        name: Str = "name" { one(string()) };
        ref_chassis: Set<Uuid> = "ref_chassis" { set(weak("Chassis")) };
    }

    table IgmpGroup igmp_group = "IGMP_Group" root index("address", "datapath", "chassis") {
        address: Str = "address" { one(string()) };
        chassis: Option<Uuid> = "chassis" { opt(weak("Chassis")) };
        chassis_name: Str = "chassis_name" { one(string()) };
        datapath: Option<Uuid> = "datapath" { opt(weak("Datapath_Binding")) };
        ports: Set<Uuid> = "ports" { set(weak("Port_Binding")) };
        protocol: Str = "protocol" { one(string()) };
    }

    table IpMulticast ip_multicast = "IP_Multicast" root index("datapath") {
        datapath: Uuid = "datapath" { one(weak("Datapath_Binding")) };
        enabled: Option<bool> = "enabled" { opt(boolean()) };
        eth_src: Str = "eth_src" { one(string()) };
        idle_timeout: Option<i64> = "idle_timeout" { opt(integer()) };
        ip4_src: Str = "ip4_src" { one(string()) };
        ip6_src: Str = "ip6_src" { one(string()) };
        querier: Option<bool> = "querier" { opt(boolean()) };
        query_interval: Option<i64> = "query_interval" { opt(integer()) };
        query_max_resp: Option<i64> = "query_max_resp" { opt(integer()) };
        seq_no: i64 = "seq_no" { one(integer()) };
        table_size: Option<i64> = "table_size" { opt(integer()) };
    }

    table LearnedRoute learned_route = "Learned_Route" root index("datapath", "logical_port", "ip_prefix", "nexthop") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ip_prefix: Str = "ip_prefix" { one(string()) };
        logical_port: Uuid = "logical_port" { one(strong("Port_Binding")) };
        nexthop: Str = "nexthop" { one(string()) };
    }

    table LoadBalancer load_balancer = "Load_Balancer" root {
        datapath_group: Option<Uuid> = "datapath_group" { opt(strong("Logical_DP_Group")) };
        datapaths: Set<Uuid> = "datapaths" { set(strong("Datapath_Binding")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        lr_datapath_group: Option<Uuid> = "lr_datapath_group" { opt(strong("Logical_DP_Group")) };
        ls_datapath_group: Option<Uuid> = "ls_datapath_group" { opt(strong("Logical_DP_Group")) };
        name: Str = "name" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        protocol: Option<Str> = "protocol" { opt(one_of(&["sctp", "tcp", "udp"])) };
        vips: Map<Str, Str> = "vips" { map(string(), string()) };
    }

    table LogicalDpGroup logical_dp_group = "Logical_DP_Group" {
        datapaths: Set<Uuid> = "datapaths" { set(weak("Datapath_Binding")) };
    }

    table LogicalFlow logical_flow = "Logical_Flow" root {
        actions: Str = "actions" { one(string()) };
        controller_meter: Option<Str> = "controller_meter" { opt(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        flow_desc: Option<Str> = "flow_desc" { opt(string()) };
        logical_datapath: Option<Uuid> = "logical_datapath" { opt(strong("Datapath_Binding")) };
        logical_dp_group: Option<Uuid> = "logical_dp_group" { opt(strong("Logical_DP_Group")) };
        r#match: Str = "match" { one(string()) };
        pipeline: Str = "pipeline" { one(one_of(&["egress", "ingress"])) };
        priority: i64 = "priority" { one(range(0, 65535)) };
        table_id: i64 = "table_id" { one(range(0, 34)) };
        tags: Map<Str, Str> = "tags" { map(string(), string()) };
    }

    table MacBinding mac_binding = "MAC_Binding" root index("logical_port", "ip") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        ip: Str = "ip" { one(string()) };
        logical_port: Str = "logical_port" { one(string()) };
        mac: Str = "mac" { one(string()) };
        timestamp: i64 = "timestamp" { one(integer()) };
    }

    table Meter meter = "Meter" root index("name") {
        bands: Set<Uuid> = "bands" { set(strong("Meter_Band")).sized(1, u32::MAX) };
        name: Str = "name" { one(string()) };
        unit: Str = "unit" { one(one_of(&["kbps", "pktps"])) };
    }

    table MeterBand meter_band = "Meter_Band" {
        action: Str = "action" { one(one_of(&["drop"])) };
        burst_size: i64 = "burst_size" { one(range(0, 4294967295)) };
        rate: i64 = "rate" { one(range(1, 4294967295)) };
    }

    table Mirror mirror = "Mirror" root index("name") {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        filter: Str = "filter" { one(one_of(&["both", "from-lport", "to-lport"])) };
        index: i64 = "index" { one(integer()) };
        name: Str = "name" { one(string()) };
        sink: Str = "sink" { one(string()) };
        r#type: Str = "type" { one(one_of(&["erspan", "gre", "local", "lport"])) };
    }

    table MulticastGroup multicast_group = "Multicast_Group" root index("datapath", "tunnel_key") index("datapath", "name") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        name: Str = "name" { one(string()) };
        ports: Set<Uuid> = "ports" { set(weak("Port_Binding")) };
        tunnel_key: i64 = "tunnel_key" { one(range(32768, 65535)) };
    }

    table PortBinding port_binding = "Port_Binding" root index("datapath", "tunnel_key") index("logical_port") {
        additional_chassis: Set<Uuid> = "additional_chassis" { set(weak("Chassis")) };
        additional_encap: Set<Uuid> = "additional_encap" { set(weak("Encap")) };
        chassis: Option<Uuid> = "chassis" { opt(weak("Chassis")) };
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        encap: Option<Uuid> = "encap" { opt(weak("Encap")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        gateway_chassis: Set<Uuid> = "gateway_chassis" { set(strong("Gateway_Chassis")) };
        ha_chassis_group: Option<Uuid> = "ha_chassis_group" { opt(strong("HA_Chassis_Group")) };
        logical_port: Str = "logical_port" { one(string()) };
        mac: Set<Str> = "mac" { set(string()) };
        mirror_port: Option<Str> = "mirror_port" { opt(string()) };
        mirror_rules: Set<Uuid> = "mirror_rules" { set(weak("Mirror")) };
        nat_addresses: Set<Str> = "nat_addresses" { set(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        parent_port: Option<Str> = "parent_port" { opt(string()) };
        port_security: Set<Str> = "port_security" { set(string()) };
        requested_additional_chassis: Set<Uuid> = "requested_additional_chassis" { set(weak("Chassis")) };
        requested_chassis: Option<Uuid> = "requested_chassis" { opt(weak("Chassis")) };
        tag: Option<i64> = "tag" { opt(range(1, 4095)) };
        tunnel_key: i64 = "tunnel_key" { one(range(1, 32767)) };
        r#type: Str = "type" { one(string()) };
        up: Option<bool> = "up" { opt(boolean()) };
        virtual_parent: Option<Str> = "virtual_parent" { opt(string()) };
    }

    table PortGroup port_group = "Port_Group" root index("name") {
        name: Str = "name" { one(string()) };
        ports: Set<Str> = "ports" { set(string()) };
    }

    table RbacPermission rbac_permission = "RBAC_Permission" root {
        authorization: Set<Str> = "authorization" { set(string()) };
        insert_delete: bool = "insert_delete" { one(boolean()) };
        table: Str = "table" { one(string()) };
        update: Set<Str> = "update" { set(string()) };
    }

    table RbacRole rbac_role = "RBAC_Role" root {
        name: Str = "name" { one(string()) };
        permissions: Map<Str, Uuid> = "permissions" { map(string(), weak("RBAC_Permission")) };
    }

    table SbGlobal sb_global = "SB_Global" root max_rows(1) {
        connections: Set<Uuid> = "connections" { set(strong("Connection")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ipsec: bool = "ipsec" { one(boolean()) };
        nb_cfg: i64 = "nb_cfg" { one(integer()) };
        nb_cfg_timestamp: i64 = "nb_cfg_timestamp" { one(integer()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
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

    table ServiceMonitor service_monitor = "Service_Monitor" root index("logical_port", "ip", "port", "protocol") {
        chassis_name: Str = "chassis_name" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ic_learned: bool = "ic_learned" { one(boolean()) };
        ip: Str = "ip" { one(string()) };
        logical_input_port: Str = "logical_input_port" { one(string()) };
        logical_port: Str = "logical_port" { one(string()) };
        mac: Str = "mac" { one(string()) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        port: i64 = "port" { one(range(0, 65535)) };
        protocol: Option<Str> = "protocol" { opt(one_of(&["icmp", "tcp", "udp"])) };
        remote: bool = "remote" { one(boolean()) };
        src_ip: Str = "src_ip" { one(string()) };
        src_mac: Str = "src_mac" { one(string()) };
        status: Option<Str> = "status" { opt(one_of(&["error", "offline", "online"])) };
        r#type: Option<Str> = "type" { opt(one_of(&["load-balancer", "logical-switch-port", "network-function"])) };
    }

    table StaticMacBinding static_mac_binding = "Static_MAC_Binding" root index("logical_port", "ip") {
        datapath: Uuid = "datapath" { one(strong("Datapath_Binding")) };
        ip: Str = "ip" { one(string()) };
        logical_port: Str = "logical_port" { one(string()) };
        mac: Str = "mac" { one(string()) };
        override_dynamic_mac: bool = "override_dynamic_mac" { one(boolean()) };
    }

}
