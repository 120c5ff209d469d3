//! The registers of the logical pipeline by name, as ovn-northd names them. Which register means what is a contract between the tables of one
//! pipeline alone: the controller gives `regN` to OpenFlow registers and knows none of these names, but for what it reads itself (`ct_proto()`
//! and others name their registers in the flow). A register that two tables use must not be written in between; so a new one needs a place that
//! is free from its writer to its last reader.
//!
//! A name's text is what flows say. `REGBIT_` is a single bit, `REG_` a field of several.

/// `$name: "register", "what it holds";` for each.
macro_rules! registers {
    ($($(#[doc = $text:literal])+ $name:ident = $register:literal;)+) => {
        $($(#[doc = $text])+ pub const $name: &str = $register;)+
    };
}

// Logical switches, reg0: what one table decides for a later one, a bit each.
registers! {
    /// All bits of `reg0` of a switch at once: a packet that turns back starts without them.
    REG_SWITCH_BITS = "reg0";
    /// Send the packet through conntrack to defragment it (ACLs).
    REGBIT_CONNTRACK_DEFRAG = "reg0[0]";
    /// Commit the connection.
    REGBIT_CONNTRACK_COMMIT = "reg0[1]";
    /// Send the packet through conntrack with address translation (load balancers).
    REGBIT_CONNTRACK_NAT = "reg0[2]";
    /// `put_dhcp_opts` or `put_dhcpv6_opts` made an answer.
    REGBIT_DHCP_OPTS_RESULT = "reg0[3]";
    /// `dns_lookup` made an answer.
    REGBIT_DNS_LOOKUP_RESULT = "reg0[4]";
    /// `put_nd_ra_opts` made an answer (logical routers).
    REGBIT_ND_RA_OPTS_RESULT = "reg0[5]";
    /// A load balancer sends the packet back to its sender.
    REGBIT_HAIRPIN = "reg0[6]";
    /// The packet may open a connection that an ACL allows.
    REGBIT_ACL_HINT_ALLOW_NEW = "reg0[7]";
    /// An ACL may allow the packet without a new connection.
    REGBIT_ACL_HINT_ALLOW = "reg0[8]";
    /// An ACL may drop the packet and nothing else.
    REGBIT_ACL_HINT_DROP = "reg0[9]";
    /// An ACL may drop the packet and mark its established connection as blocked.
    REGBIT_ACL_HINT_BLOCK = "reg0[10]";
    /// `lookup_fdb` knows the sender's address at this port.
    REGBIT_LKUP_FDB = "reg0[11]";
    /// The packet answers one that a load balancer sent back to its sender.
    REGBIT_HAIRPIN_REPLY = "reg0[12]";
    /// The ACL that allowed the packet has a label or samples, which the commit stores.
    REGBIT_ACL_LABEL = "reg0[13]";
    /// The packet came from a remote top-of-rack switch (VTEP).
    REGBIT_FROM_RAMP = "reg0[14]";
    /// Port security drops the packet.
    REGBIT_PORT_SEC_DROP = "reg0[15]";
    /// An ACL allows the packet without conntrack.
    REGBIT_ACL_STATELESS = "reg0[16]";
    /// The packet belongs to, or is related to, an established connection that ACLs allow.
    REGBIT_ACL_HINT_ALLOW_REL = "reg0[17]";
    /// The packet came from a router port.
    REGBIT_FROM_ROUTER_PORT = "reg0[18]";
    /// The packet was a fragment before conntrack put it together.
    REGBIT_IP_FRAG = "reg0[19]";
    /// The ACL that allowed the packet keeps its connections when it goes (`persist-established`).
    REGBIT_ACL_PERSIST_ID = "reg0[20]";
    /// The connection was allowed by an ACL with `persist-established`.
    REGBIT_ACL_HINT_ALLOW_PERSISTED = "reg0[21]";
    /// The network function group that an ACL sends the packet to, and then the function chosen in it.
    REG_NF_ID = "reg0[22..29]";
}

// Logical switches and routers: what conntrack and load balancers know of a packet's destination.
registers! {
    /// The destination before a load balancer changed it, IPv4.
    REG_LB_IPV4 = "reg4";
    /// The same, IPv6.
    REG_LB_IPV6 = "xxreg1";
    /// The destination port before a load balancer changed it.
    REG_LB_PORT = "reg2[0..15]";
    /// The destination port in conntrack's original direction (fragments have none).
    REG_CT_TP_DST = "reg1[0..15]";
    /// The protocol in conntrack's original direction.
    REG_CT_PROTO = "reg1[16..23]";
    /// The backend that a stateless load balancer of a router chose, counted from 0.
    REG_IDX_LB_STATELESS = "reg1[0..15]";
    /// A load balancer with affinity knows the client.
    REGBIT_KNOWN_LB_SESSION = "reg9[6]";
}

// Logical switches: verdicts of ACLs, samples, network functions.
registers! {
    /// An ACL allows the packet.
    REGBIT_ACL_VERDICT_ALLOW = "reg8[16]";
    /// An ACL drops the packet.
    REGBIT_ACL_VERDICT_DROP = "reg8[17]";
    /// An ACL rejects the packet.
    REGBIT_ACL_VERDICT_REJECT = "reg8[18]";
    /// Which ACL stage chose the samples: ingress, ingress after load balancers, egress.
    REG_ACL_OBS_STAGE = "reg8[19..20]";
    /// The tier of ACLs that is looked at.
    REG_ACL_TIER = "reg8[30..31]";
    /// A network function group takes the packet.
    REGBIT_NF_ENABLED = "reg8[21]";
    /// The packet goes in the direction of the connection that the network function saw first.
    REGBIT_NF_ORIG_DIR = "reg8[22]";
    /// The packet goes to the network function's port from the egress pipeline.
    REGBIT_NF_EGRESS_LOOPBACK = "reg8[23]";
    /// Observation point of a sample of new connections.
    REG_OBS_POINT_ID_NEW = "reg3";
    /// Observation point of a sample of established connections.
    REG_OBS_POINT_ID_EST = "reg9";
    /// Collector of a sample of new connections.
    REG_OBS_COLLECTOR_ID_NEW = "reg8[0..7]";
    /// Collector of a sample of established connections.
    REG_OBS_COLLECTOR_ID_EST = "reg8[8..15]";
    /// The number of the ACL that allowed the connection (`Southbound:ACL_ID`).
    REG_ACL_ID = "reg2[16..31]";
    /// OpenFlow port of the tunnel that a network function's packet came by.
    REG_TUN_OFPORT = "reg5[16..31]";
    /// EVPN knows the address that is asked for.
    REGBIT_EVPN_LOOKUP_MAC = "reg9[5]";
}

// Logical routers.
registers! {
    /// The packet was turned back to the router's own address and comes in anew.
    REGBIT_EGRESS_LOOPBACK = "reg9[0]";
    /// The packet is longer than the way out takes.
    REGBIT_PKT_LARGER = "reg9[1]";
    /// The sender's address and MAC are known as they are.
    REGBIT_LOOKUP_NEIGHBOR_RESULT = "reg9[2]";
    /// The sender's address is known, with whatever MAC.
    REGBIT_LOOKUP_NEIGHBOR_IP_RESULT = "reg9[3]";
    /// The destination was translated on this chassis.
    REGBIT_DST_NAT_IP_LOCAL = "reg9[4]";
    /// The DHCP relay takes the request.
    REGBIT_DHCP_RELAY_REQ_CHK = "reg9[7]";
    /// The DHCP relay takes the answer.
    REGBIT_DHCP_RELAY_RESP_CHK = "reg9[8]";
    /// The next hop is an IPv4 address, else an IPv6 one.
    REGBIT_NEXTHOP_IS_IPV4 = "reg9[9]";
    /// The connection came by a route with symmetric replies, so that its next hop is stored.
    REGBIT_NEEDS_ECMP_STATEFUL_COMMIT = "reg9[10]";
    /// The MAC of the port by which the packet came in.
    REG_INPORT_ETH_ADDR = "xreg0[0..47]";
    /// The group of equal routes; 0: none.
    REG_ECMP_GROUP_ID = "reg8[0..15]";
    /// The route that was chosen in the group.
    REG_ECMP_MEMBER_ID = "reg8[16..31]";
    /// Next hop, IPv4.
    REG_NEXT_HOP_IPV4 = "reg0";
    /// Next hop, IPv6.
    REG_NEXT_HOP_IPV6 = "xxreg0";
    /// The router's own address towards the next hop, IPv4.
    REG_SRC_IPV4 = "reg5";
    /// The same, IPv6.
    REG_SRC_IPV6 = "xxreg1";
    /// The destination of a DHCP answer before the relay changes it.
    REG_DHCP_RELAY_DIP_IPV4 = "reg2";
    /// The chain of policies that is looked at.
    REG_POLICY_CHAIN_ID = "reg9[16..31]";
    /// The route table of the port by which the packet came in.
    REG_ROUTE_TABLE_ID = "reg7";
    /// Conntrack's state, kept past a table that changes it.
    REG_CT_STATE = "reg4[0..7]";
    /// Of it: tracked.
    REGBIT_CT_STATE_TRK = "reg4[5]";
    /// Of it: in the reply direction.
    REGBIT_CT_STATE_RPL = "reg4[3]";
    /// Of it: the destination is translated.
    REGBIT_CT_STATE_DNAT = "reg4[7]";
    /// Room for `ct_label`, to take the Ethernet address of the last hop out of it.
    REG_ECMP_ETH_FULL = "xxreg1";
    /// The Ethernet address of the last hop in it.
    REG_ECMP_ETH_SRC = "xxreg1[32..79]";
}
