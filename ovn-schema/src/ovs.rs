//! The local database of a switch, Open_vSwitch. Meaning of each column: ovs-vswitchd.conf.db(5).

use crate::columns::*;

crate::database! {
    name "Open_vSwitch", version "8.8.0", manual "ovs-vswitchd.conf.db(5)";

    table AutoAttach auto_attach = "AutoAttach" {
        mappings: Map<i64, i64> = "mappings" { map(range(0, 16777215), range(0, 4095)) };
        system_description: Str = "system_description" { one(string()) };
        system_name: Str = "system_name" { one(string()) };
    }

    table Bridge bridge = "Bridge" index("name") {
        auto_attach: Option<Uuid> = "auto_attach" { opt(strong("AutoAttach")) };
        controller: Set<Uuid> = "controller" { set(strong("Controller")) };
        datapath_id: Option<Str> = "datapath_id" { opt(string()) } ephemeral;
        datapath_type: Str = "datapath_type" { one(string()) };
        datapath_version: Str = "datapath_version" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        fail_mode: Option<Str> = "fail_mode" { opt(one_of(&["secure", "standalone"])) };
        flood_vlans: Set<i64> = "flood_vlans" { set(range(0, 4095)).sized(0, 4096) };
        flow_tables: Map<i64, Uuid> = "flow_tables" { map(range(0, 254), strong("Flow_Table")) };
        ipfix: Option<Uuid> = "ipfix" { opt(strong("IPFIX")) };
        mcast_snooping_enable: bool = "mcast_snooping_enable" { one(boolean()) };
        mirrors: Set<Uuid> = "mirrors" { set(strong("Mirror")) };
        name: Str = "name" { one(string()) } immutable;
        netflow: Option<Uuid> = "netflow" { opt(strong("NetFlow")) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        ports: Set<Uuid> = "ports" { set(strong("Port")) };
        protocols: Set<Str> = "protocols" { set(one_of(&["OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15"])) };
        rstp_enable: bool = "rstp_enable" { one(boolean()) };
        rstp_status: Map<Str, Str> = "rstp_status" { map(string(), string()) } ephemeral;
        sflow: Option<Uuid> = "sflow" { opt(strong("sFlow")) };
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        stp_enable: bool = "stp_enable" { one(boolean()) };
    }

    table CtTimeoutPolicy ct_timeout_policy = "CT_Timeout_Policy" {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        timeouts: Map<Str, i64> = "timeouts" { map(one_of(&["icmp_first", "icmp_reply", "tcp_close", "tcp_close_wait", "tcp_established", "tcp_fin_wait", "tcp_last_ack", "tcp_retransmit", "tcp_syn_recv", "tcp_syn_sent", "tcp_syn_sent2", "tcp_time_wait", "tcp_unack", "udp_first", "udp_multiple", "udp_single"]), range(0, 4294967295)) };
    }

    table CtZone ct_zone = "CT_Zone" {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        limit: Option<i64> = "limit" { opt(range(0, 4294967295)) };
        timeout_policy: Option<Uuid> = "timeout_policy" { opt(strong("CT_Timeout_Policy")) };
    }

    table Controller controller = "Controller" {
        connection_mode: Option<Str> = "connection_mode" { opt(one_of(&["in-band", "out-of-band"])) };
        controller_burst_limit: Option<i64> = "controller_burst_limit" { opt(at_least(25)) };
        controller_queue_size: Option<i64> = "controller_queue_size" { opt(range(1, 512)) };
        controller_rate_limit: Option<i64> = "controller_rate_limit" { opt(at_least(100)) };
        enable_async_messages: Option<bool> = "enable_async_messages" { opt(boolean()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        inactivity_probe: Option<i64> = "inactivity_probe" { opt(integer()) };
        is_connected: bool = "is_connected" { one(boolean()) } ephemeral;
        local_gateway: Option<Str> = "local_gateway" { opt(string()) };
        local_ip: Option<Str> = "local_ip" { opt(string()) };
        local_netmask: Option<Str> = "local_netmask" { opt(string()) };
        max_backoff: Option<i64> = "max_backoff" { opt(at_least(1000)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        role: Option<Str> = "role" { opt(one_of(&["master", "other", "slave"])) } ephemeral;
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        target: Str = "target" { one(string()) };
        r#type: Option<Str> = "type" { opt(one_of(&["primary", "service"])) };
    }

    table Datapath datapath = "Datapath" {
        capabilities: Map<Str, Str> = "capabilities" { map(string(), string()) };
        ct_zone_default_limit: Option<i64> = "ct_zone_default_limit" { opt(range(0, 4294967295)) };
        ct_zones: Map<i64, Uuid> = "ct_zones" { map(range(0, 65535), strong("CT_Zone")) };
        datapath_version: Str = "datapath_version" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
    }

    table FlowSampleCollectorSet flow_sample_collector_set = "Flow_Sample_Collector_Set" root index("id", "bridge") {
        bridge: Uuid = "bridge" { one(strong("Bridge")) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        id: i64 = "id" { one(range(0, 4294967295)) };
        ipfix: Option<Uuid> = "ipfix" { opt(strong("IPFIX")) };
        local_group_id: Option<i64> = "local_group_id" { opt(range(0, 4294967295)) };
    }

    table FlowTable flow_table = "Flow_Table" {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        flow_limit: Option<i64> = "flow_limit" { opt(at_least(0)) };
        groups: Set<Str> = "groups" { set(string()) };
        name: Option<Str> = "name" { opt(string()) };
        overflow_policy: Option<Str> = "overflow_policy" { opt(one_of(&["evict", "refuse"])) };
        prefixes: Set<Str> = "prefixes" { set(string()).sized(0, 4) };
    }

    table Ipfix ipfix = "IPFIX" {
        cache_active_timeout: Option<i64> = "cache_active_timeout" { opt(range(0, 4200)) };
        cache_max_flows: Option<i64> = "cache_max_flows" { opt(range(0, 4294967295)) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        obs_domain_id: Option<i64> = "obs_domain_id" { opt(range(0, 4294967295)) };
        obs_point_id: Option<i64> = "obs_point_id" { opt(range(0, 4294967295)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        sampling: Option<i64> = "sampling" { opt(range(1, 4294967295)) };
        stats_interval: Option<i64> = "stats_interval" { opt(range(1, 3600)) };
        targets: Set<Str> = "targets" { set(string()) };
        template_interval: Option<i64> = "template_interval" { opt(range(1, 3600)) };
    }

    table Interface interface = "Interface" index("name") {
        admin_state: Option<Str> = "admin_state" { opt(one_of(&["down", "up"])) } ephemeral;
        bfd: Map<Str, Str> = "bfd" { map(string(), string()) };
        bfd_status: Map<Str, Str> = "bfd_status" { map(string(), string()) } ephemeral;
        cfm_fault: Option<bool> = "cfm_fault" { opt(boolean()) } ephemeral;
        cfm_fault_status: Set<Str> = "cfm_fault_status" { set(string()) } ephemeral;
        cfm_flap_count: Option<i64> = "cfm_flap_count" { opt(integer()) };
        cfm_health: Option<i64> = "cfm_health" { opt(range(0, 100)) } ephemeral;
        cfm_mpid: Option<i64> = "cfm_mpid" { opt(integer()) };
        cfm_remote_mpids: Set<i64> = "cfm_remote_mpids" { set(integer()) } ephemeral;
        cfm_remote_opstate: Option<Str> = "cfm_remote_opstate" { opt(one_of(&["down", "up"])) } ephemeral;
        duplex: Option<Str> = "duplex" { opt(one_of(&["full", "half"])) } ephemeral;
        error: Option<Str> = "error" { opt(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        ifindex: Option<i64> = "ifindex" { opt(range(0, 4294967295)) } ephemeral;
        ingress_policing_burst: i64 = "ingress_policing_burst" { one(at_least(0)) };
        ingress_policing_kpkts_burst: i64 = "ingress_policing_kpkts_burst" { one(at_least(0)) };
        ingress_policing_kpkts_rate: i64 = "ingress_policing_kpkts_rate" { one(at_least(0)) };
        ingress_policing_rate: i64 = "ingress_policing_rate" { one(at_least(0)) };
        lacp_current: Option<bool> = "lacp_current" { opt(boolean()) } ephemeral;
        link_resets: Option<i64> = "link_resets" { opt(integer()) } ephemeral;
        link_speed: Option<i64> = "link_speed" { opt(integer()) } ephemeral;
        link_state: Option<Str> = "link_state" { opt(one_of(&["down", "up"])) } ephemeral;
        lldp: Map<Str, Str> = "lldp" { map(string(), string()) };
        mac: Option<Str> = "mac" { opt(string()) };
        mac_in_use: Option<Str> = "mac_in_use" { opt(string()) } ephemeral;
        mtu: Option<i64> = "mtu" { opt(integer()) } ephemeral;
        mtu_request: Option<i64> = "mtu_request" { opt(at_least(1)) };
        name: Str = "name" { one(string()) } immutable;
        ofport: Option<i64> = "ofport" { opt(integer()) };
        ofport_request: Option<i64> = "ofport_request" { opt(range(1, 65279)) };
        options: Map<Str, Str> = "options" { map(string(), string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        statistics: Map<Str, i64> = "statistics" { map(string(), integer()) } ephemeral;
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        r#type: Str = "type" { one(string()) };
    }

    table Manager manager = "Manager" index("target") {
        connection_mode: Option<Str> = "connection_mode" { opt(one_of(&["in-band", "out-of-band"])) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        inactivity_probe: Option<i64> = "inactivity_probe" { opt(integer()) };
        is_connected: bool = "is_connected" { one(boolean()) } ephemeral;
        max_backoff: Option<i64> = "max_backoff" { opt(at_least(1000)) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        target: Str = "target" { one(string()) };
    }

    table Mirror mirror = "Mirror" {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        filter: Option<Str> = "filter" { opt(string()) };
        name: Str = "name" { one(string()) };
        output_port: Option<Uuid> = "output_port" { opt(weak("Port")) };
        output_vlan: Option<i64> = "output_vlan" { opt(range(1, 4095)) };
        select_all: bool = "select_all" { one(boolean()) };
        select_dst_port: Set<Uuid> = "select_dst_port" { set(weak("Port")) };
        select_src_port: Set<Uuid> = "select_src_port" { set(weak("Port")) };
        select_vlan: Set<i64> = "select_vlan" { set(range(0, 4095)).sized(0, 4096) };
        snaplen: Option<i64> = "snaplen" { opt(range(14, 65535)) };
        statistics: Map<Str, i64> = "statistics" { map(string(), integer()) } ephemeral;
    }

    table NetFlow net_flow = "NetFlow" {
        active_timeout: i64 = "active_timeout" { one(at_least(-1)) };
        add_id_to_interface: bool = "add_id_to_interface" { one(boolean()) };
        engine_id: Option<i64> = "engine_id" { opt(range(0, 255)) };
        engine_type: Option<i64> = "engine_type" { opt(range(0, 255)) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        targets: Set<Str> = "targets" { set(string()).sized(1, u32::MAX) };
    }

    table OpenVswitch open_vswitch = "Open_vSwitch" root max_rows(1) {
        bridges: Set<Uuid> = "bridges" { set(strong("Bridge")) };
        cur_cfg: i64 = "cur_cfg" { one(integer()) };
        datapath_types: Set<Str> = "datapath_types" { set(string()) };
        datapaths: Map<Str, Uuid> = "datapaths" { map(string(), strong("Datapath")) };
        db_version: Option<Str> = "db_version" { opt(string()) };
        dpdk_initialized: bool = "dpdk_initialized" { one(boolean()) };
        dpdk_version: Option<Str> = "dpdk_version" { opt(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        iface_types: Set<Str> = "iface_types" { set(string()) };
        manager_options: Set<Uuid> = "manager_options" { set(strong("Manager")) };
        next_cfg: i64 = "next_cfg" { one(integer()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        ovs_version: Option<Str> = "ovs_version" { opt(string()) };
        ssl: Option<Uuid> = "ssl" { opt(strong("SSL")) };
        statistics: Map<Str, Str> = "statistics" { map(string(), string()) } ephemeral;
        system_type: Option<Str> = "system_type" { opt(string()) };
        system_version: Option<Str> = "system_version" { opt(string()) };
    }

    table Port port = "Port" index("name") {
        bond_active_slave: Option<Str> = "bond_active_slave" { opt(string()) };
        bond_downdelay: i64 = "bond_downdelay" { one(integer()) };
        bond_fake_iface: bool = "bond_fake_iface" { one(boolean()) };
        bond_mode: Option<Str> = "bond_mode" { opt(one_of(&["active-backup", "balance-slb", "balance-tcp"])) };
        bond_updelay: i64 = "bond_updelay" { one(integer()) };
        cvlans: Set<i64> = "cvlans" { set(range(0, 4095)).sized(0, 4096) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        fake_bridge: bool = "fake_bridge" { one(boolean()) };
        interfaces: Set<Uuid> = "interfaces" { set(strong("Interface")).sized(1, u32::MAX) };
        lacp: Option<Str> = "lacp" { opt(one_of(&["active", "off", "passive"])) };
        mac: Option<Str> = "mac" { opt(string()) };
        name: Str = "name" { one(string()) } immutable;
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        protected: bool = "protected" { one(boolean()) };
        qos: Option<Uuid> = "qos" { opt(strong("QoS")) };
        rstp_statistics: Map<Str, i64> = "rstp_statistics" { map(string(), integer()) } ephemeral;
        rstp_status: Map<Str, Str> = "rstp_status" { map(string(), string()) } ephemeral;
        statistics: Map<Str, i64> = "statistics" { map(string(), integer()) } ephemeral;
        status: Map<Str, Str> = "status" { map(string(), string()) } ephemeral;
        tag: Option<i64> = "tag" { opt(range(0, 4095)) };
        trunks: Set<i64> = "trunks" { set(range(0, 4095)).sized(0, 4096) };
        vlan_mode: Option<Str> = "vlan_mode" { opt(one_of(&["access", "dot1q-tunnel", "native-tagged", "native-untagged", "trunk"])) };
    }

    table Qos qos = "QoS" root {
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
        queues: Map<i64, Uuid> = "queues" { map(range(0, 4294967295), strong("Queue")) };
        r#type: Str = "type" { one(string()) };
    }

    table Queue queue = "Queue" root {
        dscp: Option<i64> = "dscp" { opt(range(0, 63)) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        other_config: Map<Str, Str> = "other_config" { map(string(), string()) };
    }

    table Ssl ssl = "SSL" max_rows(1) {
        bootstrap_ca_cert: bool = "bootstrap_ca_cert" { one(boolean()) };
        ca_cert: Str = "ca_cert" { one(string()) };
        certificate: Str = "certificate" { one(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        private_key: Str = "private_key" { one(string()) };
    }

    table Sflow sflow = "sFlow" {
        agent: Option<Str> = "agent" { opt(string()) };
        external_ids: Map<Str, Str> = "external_ids" { map(string(), string()) };
        header: Option<i64> = "header" { opt(integer()) };
        polling: Option<i64> = "polling" { opt(integer()) };
        sampling: Option<i64> = "sampling" { opt(integer()) };
        targets: Set<Str> = "targets" { set(string()).sized(1, u32::MAX) };
    }

}
