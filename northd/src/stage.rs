//! The stages of the logical pipelines with the table numbers of OVN 26.03.

/// A direction through a logical datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pipeline {
    /// From a port to the datapath.
    Ingress,
    /// From the datapath to a port.
    Egress,
}

impl Pipeline {
    /// The name in `Logical_Flow.pipeline`.
    pub fn name(self) -> &'static str {
        match self {
            Pipeline::Ingress => "ingress",
            Pipeline::Egress => "egress",
        }
    }
}

macro_rules! stages {
    ($($variant:ident = $name:literal, $pipeline:ident, $table:literal;)*) => {
        /// A stage of a logical switch's (`Ls`) or router's (`Lr`) pipeline.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Stage {
            $(#[doc = concat!("`", $name, "`, table ", $table, ".")] $variant,)*
        }

        impl Stage {
            /// All stages.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant),*];

            /// The name in `Logical_Flow.external_ids:stage-name`.
            pub fn name(self) -> &'static str {
                match self { $(Stage::$variant => $name,)* }
            }

            /// The pipeline.
            pub fn pipeline(self) -> Pipeline {
                match self { $(Stage::$variant => Pipeline::$pipeline,)* }
            }

            /// The table number.
            pub fn table(self) -> u8 {
                match self { $(Stage::$variant => $table,)* }
            }

            /// The stage of this name.
            pub fn from_name(name: &str) -> Option<Stage> {
                match name { $($name => Some(Stage::$variant),)* _ => None }
            }
        }
    };
}

stages! {
    LsInCheckPortSec = "ls_in_check_port_sec", Ingress, 0;
    LsInApplyPortSec = "ls_in_apply_port_sec", Ingress, 1;
    LsInMirror = "ls_in_mirror", Ingress, 2;
    LsInLookupFdb = "ls_in_lookup_fdb", Ingress, 3;
    LsInPutFdb = "ls_in_put_fdb", Ingress, 4;
    LsInPreAcl = "ls_in_pre_acl", Ingress, 5;
    LsInPreLb = "ls_in_pre_lb", Ingress, 6;
    LsInPreStateful = "ls_in_pre_stateful", Ingress, 7;
    LsInAclHint = "ls_in_acl_hint", Ingress, 8;
    LsInAclEval = "ls_in_acl_eval", Ingress, 9;
    LsInAclSample = "ls_in_acl_sample", Ingress, 10;
    LsInAclAction = "ls_in_acl_action", Ingress, 11;
    LsInQos = "ls_in_qos", Ingress, 12;
    LsInCtExtract = "ls_in_ct_extract", Ingress, 13;
    LsInLbAffCheck = "ls_in_lb_aff_check", Ingress, 14;
    LsInLb = "ls_in_lb", Ingress, 15;
    LsInLbAffLearn = "ls_in_lb_aff_learn", Ingress, 16;
    LsInPreHairpin = "ls_in_pre_hairpin", Ingress, 17;
    LsInNatHairpin = "ls_in_nat_hairpin", Ingress, 18;
    LsInHairpin = "ls_in_hairpin", Ingress, 19;
    LsInAclAfterLbEval = "ls_in_acl_after_lb_eval", Ingress, 20;
    LsInAclAfterLbSample = "ls_in_acl_after_lb_sample", Ingress, 21;
    LsInAclAfterLbAction = "ls_in_acl_after_lb_action", Ingress, 22;
    LsInPreNetworkFunction = "ls_in_pre_network_function", Ingress, 23;
    LsInStateful = "ls_in_stateful", Ingress, 24;
    LsInNetworkFunction = "ls_in_network_function", Ingress, 25;
    LsInArpNdPreLookup = "ls_in_arp_nd_pre_lookup", Ingress, 26;
    LsInArpRsp = "ls_in_arp_rsp", Ingress, 27;
    LsInDhcpOptions = "ls_in_dhcp_options", Ingress, 28;
    LsInDhcpResponse = "ls_in_dhcp_response", Ingress, 29;
    LsInDnsLookup = "ls_in_dns_lookup", Ingress, 30;
    LsInDnsResponse = "ls_in_dns_response", Ingress, 31;
    LsInExternalPort = "ls_in_external_port", Ingress, 32;
    LsInL2Lkup = "ls_in_l2_lkup", Ingress, 33;
    LsInL2Unknown = "ls_in_l2_unknown", Ingress, 34;
    LsOutLookupFdb = "ls_out_lookup_fdb", Egress, 0;
    LsOutPutFdb = "ls_out_put_fdb", Egress, 1;
    LsOutPreAcl = "ls_out_pre_acl", Egress, 2;
    LsOutPreLb = "ls_out_pre_lb", Egress, 3;
    LsOutPreStateful = "ls_out_pre_stateful", Egress, 4;
    LsOutAclHint = "ls_out_acl_hint", Egress, 5;
    LsOutAclEval = "ls_out_acl_eval", Egress, 6;
    LsOutAclSample = "ls_out_acl_sample", Egress, 7;
    LsOutAclAction = "ls_out_acl_action", Egress, 8;
    LsOutMirror = "ls_out_mirror", Egress, 9;
    LsOutQos = "ls_out_qos", Egress, 10;
    LsOutPreNetworkFunction = "ls_out_pre_network_function", Egress, 11;
    LsOutStateful = "ls_out_stateful", Egress, 12;
    LsOutNetworkFunction = "ls_out_network_function", Egress, 13;
    LsOutCheckPortSec = "ls_out_check_port_sec", Egress, 14;
    LsOutApplyPortSec = "ls_out_apply_port_sec", Egress, 15;
    LrInAdmission = "lr_in_admission", Ingress, 0;
    LrInLookupNeighbor = "lr_in_lookup_neighbor", Ingress, 1;
    LrInLearnNeighbor = "lr_in_learn_neighbor", Ingress, 2;
    LrInIpInput = "lr_in_ip_input", Ingress, 3;
    LrInDhcpRelayReq = "lr_in_dhcp_relay_req", Ingress, 4;
    LrInUnsnat = "lr_in_unsnat", Ingress, 5;
    LrInPostUnsnat = "lr_in_post_unsnat", Ingress, 6;
    LrInDefrag = "lr_in_defrag", Ingress, 7;
    LrInCtExtract = "lr_in_ct_extract", Ingress, 8;
    LrInLbAffCheck = "lr_in_lb_aff_check", Ingress, 9;
    LrInDnat = "lr_in_dnat", Ingress, 10;
    LrInLbAffLearn = "lr_in_lb_aff_learn", Ingress, 11;
    LrInEcmpStateful = "lr_in_ecmp_stateful", Ingress, 12;
    LrInNdRaOptions = "lr_in_nd_ra_options", Ingress, 13;
    LrInNdRaResponse = "lr_in_nd_ra_response", Ingress, 14;
    LrInIpRoutingPre = "lr_in_ip_routing_pre", Ingress, 15;
    LrInIpRouting = "lr_in_ip_routing", Ingress, 16;
    LrInIpRoutingEcmp = "lr_in_ip_routing_ecmp", Ingress, 17;
    LrInPolicy = "lr_in_policy", Ingress, 18;
    LrInPolicyEcmp = "lr_in_policy_ecmp", Ingress, 19;
    LrInDhcpRelayRespChk = "lr_in_dhcp_relay_resp_chk", Ingress, 20;
    LrInDhcpRelayResp = "lr_in_dhcp_relay_resp", Ingress, 21;
    LrInArpResolve = "lr_in_arp_resolve", Ingress, 22;
    LrInChkPktLen = "lr_in_chk_pkt_len", Ingress, 23;
    LrInLargerPkts = "lr_in_larger_pkts", Ingress, 24;
    LrInGwRedirect = "lr_in_gw_redirect", Ingress, 25;
    LrInNetworkId = "lr_in_network_id", Ingress, 26;
    LrInArpRequest = "lr_in_arp_request", Ingress, 27;
    LrInEcmpStatefulEgr = "lr_in_ecmp_stateful_egr", Ingress, 28;
    LrOutChkDnatLocal = "lr_out_chk_dnat_local", Egress, 0;
    LrOutUndnat = "lr_out_undnat", Egress, 1;
    LrOutPostUndnat = "lr_out_post_undnat", Egress, 2;
    LrOutSnat = "lr_out_snat", Egress, 3;
    LrOutPostSnat = "lr_out_post_snat", Egress, 4;
    LrOutEgrLoop = "lr_out_egr_loop", Egress, 5;
    LrOutDelivery = "lr_out_delivery", Egress, 6;
}
