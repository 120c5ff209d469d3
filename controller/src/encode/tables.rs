//! The OpenFlow tables of the integration bridge, numbered as OVN 26.03 numbers them
//! (ovn-architecture(7), "Architectural Physical Life Cycle of a Packet").

/// From physical ports and tunnels to logical ports.
pub const PHY_TO_LOG: u8 = 0;
/// The first table of the logical ingress pipeline.
pub const INGRESS: u8 = 8;
/// How many tables each logical pipeline may have.
pub const PIPELINE_LEN: u8 = 44;
/// Marks packets too large for a tunnel.
pub const LARGE_PACKET_DETECT: u8 = 52;
/// Answers packets too large for a tunnel.
pub const LARGE_PACKET_PROCESS: u8 = 53;
/// Output to ports on other chassis; also where logical `output` leads.
pub const REMOTE_OUTPUT: u8 = 54;
/// Output to remote VTEPs.
pub const REMOTE_VTEP_OUTPUT: u8 = 55;
/// Output to ports on this chassis.
pub const LOCAL_OUTPUT: u8 = 56;
/// Drops packets that would go back where they came from.
pub const CHECK_LOOPBACK: u8 = 57;
/// The first table of the logical egress pipeline.
pub const EGRESS: u8 = 62;
/// Keeps the input port for packets that may go back.
pub const SAVE_INPORT: u8 = 88;
/// From logical ports to physical ones.
pub const LOG_TO_PHY: u8 = 89;
/// `get_arp`, `get_nd`.
pub const MAC_BINDING: u8 = 90;
/// `lookup_arp`, `lookup_nd`.
pub const MAC_LOOKUP: u8 = 91;
/// `chk_lb_hairpin`.
pub const CHK_LB_HAIRPIN: u8 = 92;
/// `chk_lb_hairpin_reply`.
pub const CHK_LB_HAIRPIN_REPLY: u8 = 93;
/// `ct_snat_to_vip`.
pub const CT_SNAT_HAIRPIN: u8 = 94;
/// `get_fdb`.
pub const GET_FDB: u8 = 95;
/// `lookup_fdb`.
pub const LOOKUP_FDB: u8 = 96;
/// `check_in_port_sec`.
pub const CHK_IN_PORT_SEC: u8 = 97;
/// `check_in_port_sec` for ARP and ND.
pub const CHK_IN_PORT_SEC_ND: u8 = 98;
/// `check_out_port_sec`.
pub const CHK_OUT_PORT_SEC: u8 = 99;
/// `chk_ecmp_nh_mac`.
pub const ECMP_NH_MAC: u8 = 100;
/// `chk_ecmp_nh`.
pub const ECMP_NH: u8 = 101;
/// `chk_lb_aff`.
pub const CHK_LB_AFFINITY: u8 = 102;
/// `mac_cache_use`.
pub const MAC_CACHE_USE: u8 = 103;
/// Zones for packets whose input port a tunnel gave.
pub const CT_ZONE_LOOKUP: u8 = 104;
/// `ct_nw_dst`.
pub const CT_ORIG_NW_DST: u8 = 105;
/// `ct_ip6_dst`.
pub const CT_ORIG_IP6_DST: u8 = 106;
/// `ct_tp_dst`.
pub const CT_ORIG_TP_DST: u8 = 107;
/// Broadcasts to every chassis.
pub const FLOOD_REMOTE_CHASSIS: u8 = 108;
/// `ct_state_save`.
pub const CT_STATE_SAVE: u8 = 109;
/// `ct_proto`.
pub const CT_ORIG_PROTO: u8 = 110;
/// `get_remote_fdb`.
pub const GET_REMOTE_FDB: u8 = 111;
/// What packets of VTEPs teach of who is behind them.
pub const LEARN_REMOTE_FDB: u8 = 112;

/// `chk_evpn_arp`.
pub const EVPN_ARP_LOOKUP: u8 = 113;

/// The table of a stage of a pipeline.
pub fn of_stage(egress: bool, stage: i64) -> Option<u8> {
    let stage = u8::try_from(stage).ok().filter(|s| *s < PIPELINE_LEN)?;
    Some(stage + if egress { EGRESS } else { INGRESS })
}
