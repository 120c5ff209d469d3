//! The OpenFlow tables of the integration bridge, numbered as OVN 26.03 numbers them
//! (ovn-architecture(7), "Architectural Physical Life Cycle of a Packet").

use openflow_rs::TableId;

/// From physical ports and tunnels to logical ports.
pub const PHY_TO_LOG: TableId = TableId(0);
/// The first table of the logical ingress pipeline.
pub const INGRESS: TableId = TableId(8);
/// How many tables each logical pipeline may have.
pub const PIPELINE_LEN: u8 = 44;
/// Marks packets too large for a tunnel.
pub const LARGE_PACKET_DETECT: TableId = TableId(52);
/// Answers packets too large for a tunnel.
pub const LARGE_PACKET_PROCESS: TableId = TableId(53);
/// Output to ports on other chassis; also where logical `output` leads.
pub const REMOTE_OUTPUT: TableId = TableId(54);
/// Output to remote VTEPs.
pub const REMOTE_VTEP_OUTPUT: TableId = TableId(55);
/// Output to ports on this chassis.
pub const LOCAL_OUTPUT: TableId = TableId(56);
/// Drops packets that would go back where they came from.
pub const CHECK_LOOPBACK: TableId = TableId(57);
/// The first table of the logical egress pipeline.
pub const EGRESS: TableId = TableId(62);
/// Keeps the input port for packets that may go back.
pub const SAVE_INPORT: TableId = TableId(88);
/// From logical ports to physical ones.
pub const LOG_TO_PHY: TableId = TableId(89);
/// `get_arp`, `get_nd`.
pub const MAC_BINDING: TableId = TableId(90);
/// `lookup_arp`, `lookup_nd`.
pub const MAC_LOOKUP: TableId = TableId(91);
/// `chk_lb_hairpin`.
pub const CHK_LB_HAIRPIN: TableId = TableId(92);
/// `chk_lb_hairpin_reply`.
pub const CHK_LB_HAIRPIN_REPLY: TableId = TableId(93);
/// `ct_snat_to_vip`.
pub const CT_SNAT_HAIRPIN: TableId = TableId(94);
/// `get_fdb`.
pub const GET_FDB: TableId = TableId(95);
/// `lookup_fdb`.
pub const LOOKUP_FDB: TableId = TableId(96);
/// `check_in_port_sec`.
pub const CHK_IN_PORT_SEC: TableId = TableId(97);
/// `check_in_port_sec` for ARP and ND.
pub const CHK_IN_PORT_SEC_ND: TableId = TableId(98);
/// `check_out_port_sec`.
pub const CHK_OUT_PORT_SEC: TableId = TableId(99);
/// `chk_ecmp_nh_mac`.
pub const ECMP_NH_MAC: TableId = TableId(100);
/// `chk_ecmp_nh`.
pub const ECMP_NH: TableId = TableId(101);
/// `chk_lb_aff`.
pub const CHK_LB_AFFINITY: TableId = TableId(102);
/// `mac_cache_use`.
pub const MAC_CACHE_USE: TableId = TableId(103);
/// Zones for packets whose input port a tunnel gave.
pub const CT_ZONE_LOOKUP: TableId = TableId(104);
/// `ct_nw_dst`.
pub const CT_ORIG_NW_DST: TableId = TableId(105);
/// `ct_ip6_dst`.
pub const CT_ORIG_IP6_DST: TableId = TableId(106);
/// `ct_tp_dst`.
pub const CT_ORIG_TP_DST: TableId = TableId(107);
/// Broadcasts to every chassis.
pub const FLOOD_REMOTE_CHASSIS: TableId = TableId(108);
/// `ct_state_save`.
pub const CT_STATE_SAVE: TableId = TableId(109);
/// `ct_proto`.
pub const CT_ORIG_PROTO: TableId = TableId(110);
/// `get_remote_fdb`.
pub const GET_REMOTE_FDB: TableId = TableId(111);
/// What packets of VTEPs teach of who is behind them.
pub const LEARN_REMOTE_FDB: TableId = TableId(112);
/// `chk_evpn_arp`.
pub const EVPN_ARP_LOOKUP: TableId = TableId(113);

/// The table of a row's stage, if the pipeline may have that stage.
pub fn of_stage(egress: bool, stage: i64) -> Option<TableId> {
    u8::try_from(stage).ok().filter(|s| *s < PIPELINE_LEN).map(|s| in_pipeline(egress, s))
}

/// The table of a stage of a pipeline.
pub fn in_pipeline(egress: bool, stage: u8) -> TableId {
    let first = if egress { EGRESS } else { INGRESS };
    TableId(first.0 + stage)
}
