//! Log modules of Open vSwitch and OVN.
//!
//! Scripts and test suites set levels of them by name, so every daemon knows them, whether or not it has one that logs.

/// Modules of Open vSwitch's daemons and of the library that OVN's daemons share with them.
pub(crate) const OVS: &str = "
    backtrace bfd bond bridge bundle bundles cfm collectors command_line connmgr conntrack conntrack_tp
    cooperative_multitasking coverage ct_dpif daemon daemon_unix db_ctl_base dns_resolve dp_packet_gso dpdk dpif
    dpif_netdev dpif_netdev_dpcls dpif_netlink dpif_netlink_rtnl dpif_offload dpif_offload_dpdk dpif_offload_dpdk_netdev
    dpif_offload_dummy dpif_offload_tc dpif_offload_tc_netdev entropy fail_open fatal_signal flow hmap in_band ipf ipfix
    jsonrpc lacp learning_switch lldp lldpd lldpd_structs lockfile memory meta_flow native_tnl netdev netdev_afxdp
    netdev_dpdk netdev_dummy netdev_linux netdev_offload netdev_offload_dpdk netdev_offload_tc netdev_vport netflow
    netlink netlink_conntrack netlink_notifier netlink_socket nx_match odp_execute odp_util ofctl ofp_actions ofp_bundle
    ofp_connection ofp_ct ofp_errors ofp_flow ofp_group ofp_match ofp_meter ofp_monitor ofp_msgs ofp_packet ofp_port
    ofp_protocol ofp_queue ofp_table ofp_util ofproto ofproto_dpif ofproto_dpif_mirror ofproto_dpif_monitor
    ofproto_dpif_rid ofproto_dpif_upcall ofproto_dpif_xlate ofproto_xlate_cache ovs_lldp ovs_numa ovs_rcu ovs_replay
    ovs_router ovs_thread ovsdb ovsdb_client ovsdb_cs ovsdb_error ovsdb_file ovsdb_idl ovsdb_jsonrpc_server ovsdb_log
    ovsdb_monitor ovsdb_rbac ovsdb_server ovsdb_util ox_stat pcap pmd_perf poll_loop process raft raft_rpc rconn
    reconnect relay replication route_table rstp rstp_sm sflow sha1 signals socket_util socket_util_unix stopwatch
    storage stp stream stream_fd stream_nossl stream_replay stream_ssl stream_tcp stream_unix svec system_stats tc
    timeval transaction transaction_forward trigger tunnel unixctl userspace_tso util uuid vconn vconn_stream vlog
    vswitchd";

/// Modules of OVN's daemons.
pub(crate) const OVN: &str = "
    acl_ids acl_log actions binding brctl brflowmgr brofctrl chassis controller_lb ct_zone datapath_sync debug
    en_bridge_data en_datapath_logical_router en_datapath_logical_switch en_global_config en_group_ecmp_route en_ic
    en_lb_data en_learned_route_sync en_lflow en_lr_nat en_lr_stateful en_ls_stateful en_meters en_multicast en_northd
    en_pflow en_port_group en_sampling_app en_sync_from_sb en_sync_to_sb encaps evpn_arp evpn_binding evpn_fdb exchange
    expr extend_table features garp_rarp gateway ha_chassis host_if_monitor if_status inc_proc_eng inc_proc_ic
    inc_proc_northd ipam lb ldata lflow lflow_cache lflow_mgr lport mac_binding_aging mac_binding_index mac_cache main
    memory_trim neighbor neighbor_exchange neighbor_exchange_netlink nexthop_exchange northd northd_acl_ids northd_lb
    ofctrl ovn_bfd ovn_controller ovn_ic ovn_netlink_notifier ovn_northd ovn_parallel_hmap ovn_util ovndns ovsport patch
    physical pinctrl port_mirror resource_dep route_exchange route_exchange_netlink statctrl vif_plug vif_plug_dummy
    vif_plug_provider vtep";

/// All of them.
pub(crate) fn known() -> impl Iterator<Item = &'static str> {
    OVS.split_whitespace().chain(OVN.split_whitespace())
}
