//! The database of a top-of-rack switch, hardware_vtep. Meaning of each column: vtep(5).

use crate::columns::*;

crate::database! {
    name "hardware_vtep", version "1.7.0", manual "vtep(5)";

    table Acl acl = "ACL" root index("acl_name") {
        acl_entries: Set<Uuid> = "acl_entries" { set(strong("ACL_entry")).sized(1, u32::MAX) };
        acl_fault_status: Set<Str> = "acl_fault_status" { set(string()) } ephemeral;
        acl_name: Str = "acl_name" { one(string()) };
    }

    table AclEntry acl_entry = "ACL_entry" root {
        acle_fault_status: Set<Str> = "acle_fault_status" { set(string()) } ephemeral;
        action: Str = "action" { one(one_of(&["deny", "permit"])) };
        dest_ip: Option<Str> = "dest_ip" { opt(string()) };
        dest_mac: Option<Str> = "dest_mac" { opt(string()) };
        dest_mask: Option<Str> = "dest_mask" { opt(string()) };
        dest_port_max: Option<i64> = "dest_port_max" { opt(integer()) };
        dest_port_min: Option<i64> = "dest_port_min" { opt(integer()) };
        direction: Str = "direction" { one(one_of(&["egress", "ingress"])) };
        ethertype: Option<Str> = "ethertype" { opt(string()) };
        icmp_code: Option<i64> = "icmp_code" { opt(integer()) };
        icmp_type: Option<i64> = "icmp_type" { opt(integer()) };
        protocol: Option<i64> = "protocol" { opt(integer()) };
        sequence: i64 = "sequence" { one(integer()) };
        source_ip: Option<Str> = "source_ip" { opt(string()) };
        source_mac: Option<Str> = "source_mac" { opt(string()) };
        source_mask: Option<Str> = "source_mask" { opt(string()) };
        source_port_max: Option<i64> = "source_port_max" { opt(integer()) };
        source_port_min: Option<i64> = "source_port_min" { opt(integer()) };
        tcp_flags: Option<i64> = "tcp_flags" { opt(integer()) };
        tcp_flags_mask: Option<i64> = "tcp_flags_mask" { opt(integer()) };
    }

    table ArpSourcesLocal arp_sources_local = "Arp_Sources_Local" root {
        locator: Uuid = "locator" { one(strong("Physical_Locator")) };
        src_mac: Str = "src_mac" { one(string()) };
    }

    table ArpSourcesRemote arp_sources_remote = "Arp_Sources_Remote" root {
        locator: Uuid = "locator" { one(strong("Physical_Locator")) };
        src_mac: Str = "src_mac" { one(string()) };
    }

    table Global global = "Global" root max_rows(1) {
        managers: Set<Uuid> = "managers" { set(strong("Manager")) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        switches: Set<Uuid> = "switches" { set(strong("Physical_Switch")) };
    }

    table LogicalBindingStats logical_binding_stats = "Logical_Binding_Stats" {
        bytes_from_local: i64 = "bytes_from_local" { one(integer()) } ephemeral;
        bytes_to_local: i64 = "bytes_to_local" { one(integer()) } ephemeral;
        packets_from_local: i64 = "packets_from_local" { one(integer()) } ephemeral;
        packets_to_local: i64 = "packets_to_local" { one(integer()) } ephemeral;
    }

    table LogicalRouter logical_router = "Logical_Router" root index("name") {
        lr_fault_status: Set<Str> = "LR_fault_status" { set(string()) } ephemeral;
        acl_binding: Map<Str, Uuid> = "acl_binding" { map(string(), strong("ACL")) };
        description: Str = "description" { one(string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        static_routes: Map<Str, Str> = "static_routes" { map(string(), string()) };
        switch_binding: Map<Str, Uuid> = "switch_binding" { map(string(), strong("Logical_Switch")) };
    }

    table LogicalSwitch logical_switch = "Logical_Switch" root index("name") {
        description: Str = "description" { one(string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        replication_mode: Option<Str> = "replication_mode" { opt(one_of(&["service_node", "source_node"])) };
        tunnel_key: Option<i64> = "tunnel_key" { opt(integer()) };
    }

    table Manager manager = "Manager" index("target") {
        inactivity_probe: Option<i64> = "inactivity_probe" { opt(integer()) };
        is_connected: bool = "is_connected" { one(boolean()) } ephemeral;
        max_backoff: Option<i64> = "max_backoff" { opt(at_least(1000)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        target: Str = "target" { one(string()) };
    }

    table McastMacsLocal mcast_macs_local = "Mcast_Macs_Local" root {
        mac: Str = "MAC" { one(string()) };
        ipaddr: Str = "ipaddr" { one(string()) };
        locator_set: Uuid = "locator_set" { one(strong("Physical_Locator_Set")) };
        logical_switch: Uuid = "logical_switch" { one(strong("Logical_Switch")) };
    }

    table McastMacsRemote mcast_macs_remote = "Mcast_Macs_Remote" root {
        mac: Str = "MAC" { one(string()) };
        ipaddr: Str = "ipaddr" { one(string()) };
        locator_set: Uuid = "locator_set" { one(strong("Physical_Locator_Set")) };
        logical_switch: Uuid = "logical_switch" { one(strong("Logical_Switch")) };
    }

    table PhysicalLocator physical_locator = "Physical_Locator" index("encapsulation_type", "dst_ip", "tunnel_key") {
        dst_ip: Str = "dst_ip" { one(string()) } immutable;
        encapsulation_type: Str = "encapsulation_type" { one(one_of(&["vxlan_over_ipv4"])) } immutable;
        tunnel_key: Option<i64> = "tunnel_key" { opt(integer()) };
    }

    table PhysicalLocatorSet physical_locator_set = "Physical_Locator_Set" {
        locators: Set<Uuid> = "locators" { set(strong("Physical_Locator")).sized(1, u32::MAX) } immutable;
    }

    table PhysicalPort physical_port = "Physical_Port" {
        acl_bindings: Map<i64, Uuid> = "acl_bindings" { map(range(0, 4095), strong("ACL")) };
        description: Str = "description" { one(string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        port_fault_status: Set<Str> = "port_fault_status" { set(string()) } ephemeral;
        vlan_bindings: Map<i64, Uuid> = "vlan_bindings" { map(range(0, 4095), strong("Logical_Switch")) };
        vlan_stats: Map<i64, Uuid> = "vlan_stats" { map(range(0, 4095), strong("Logical_Binding_Stats")) } ephemeral;
    }

    table PhysicalSwitch physical_switch = "Physical_Switch" index("name") {
        description: Str = "description" { one(string()) };
        management_ips: Set<Str> = "management_ips" { set(string()) };
        name: Str = "name" { one(string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        ports: Set<Uuid> = "ports" { set(strong("Physical_Port")) };
        switch_fault_status: Set<Str> = "switch_fault_status" { set(string()) } ephemeral;
        tunnel_ips: Set<Str> = "tunnel_ips" { set(string()) };
        tunnels: Set<Uuid> = "tunnels" { set(strong("Tunnel")) };
    }

    table Tunnel tunnel = "Tunnel" {
        bfd_config_local: Map<Str, Str> = "bfd_config_local" { map(string(), string()) };
        bfd_config_remote: Map<Str, Str> = "bfd_config_remote" { map(string(), string()) };
        bfd_params: Map<Str, Str> = "bfd_params" { map(string(), string()) };
        bfd_status: Map<Str, Str> = "bfd_status" { map(string(), string()) } ephemeral;
        local: Uuid = "local" { one(strong("Physical_Locator")) };
        remote: Uuid = "remote" { one(strong("Physical_Locator")) };
    }

    table UcastMacsLocal ucast_macs_local = "Ucast_Macs_Local" root {
        mac: Str = "MAC" { one(string()) };
        ipaddr: Str = "ipaddr" { one(string()) };
        locator: Uuid = "locator" { one(strong("Physical_Locator")) };
        logical_switch: Uuid = "logical_switch" { one(strong("Logical_Switch")) };
    }

    table UcastMacsRemote ucast_macs_remote = "Ucast_Macs_Remote" root {
        mac: Str = "MAC" { one(string()) };
        ipaddr: Str = "ipaddr" { one(string()) };
        locator: Uuid = "locator" { one(strong("Physical_Locator")) };
        logical_switch: Uuid = "logical_switch" { one(strong("Logical_Switch")) };
    }

}
