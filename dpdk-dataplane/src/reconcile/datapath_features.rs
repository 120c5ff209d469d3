//! What the datapath can do, in the words of Open vSwitch: for `dpif/show-dp-features`, the log, and
//! `Datapath:capabilities`.

/// Features of `dpif/show-dp-features` and their values, in the order of Open vSwitch.
pub(crate) const FEATURES: &[(&str, &str)] = &[
    ("Masked set action", "Yes"),
    ("Tunnel push pop", "Yes"),
    ("Ufid", "No"),
    ("Truncate action", "Yes"),
    ("Clone action", "Yes"),
    ("Sample nesting", "10"),
    ("Conntrack eventmask", "No"),
    ("Conntrack clear", "Yes"),
    ("Max dp_hash algorithm", "1"),
    ("Check pkt length action", "Yes"),
    ("Conntrack timeout policy", "Yes"),
    ("Explicit Drop action", "Yes"),
    ("Optimized Balance TCP mode", "No"),
    ("Conntrack all-zero IP SNAT", "Yes"),
    ("MPLS Label add", "Yes"),
    ("Max VLAN headers", ""),
    ("Max MPLS depth", "3"),
    ("Recirc", "Yes"),
    ("CT state", "Yes"),
    ("CT zone", "Yes"),
    ("CT mark", "Yes"),
    ("CT label", "Yes"),
    ("CT state NAT", "Yes"),
    ("CT orig tuple", "Yes"),
    ("CT orig tuple for IPv6", "Yes"),
    ("IPv6 ND Extension", "No"),
];

/// `Datapath:capabilities`.
pub(super) const CAPABILITIES: &[(&str, &str)] = &[
    ("check_pkt_len", "true"),
    ("ct_clear", "true"),
    ("ct_eventmask", "false"),
    ("ct_orig_tuple", "true"),
    ("ct_orig_tuple6", "true"),
    ("ct_state", "true"),
    ("ct_state_nat", "true"),
    ("ct_timeout", "true"),
    ("ct_zone", "true"),
    ("ct_mark", "true"),
    ("ct_label", "true"),
    ("ct_zero_snat", "true"),
    ("ct_flush", "true"),
    ("max_hash_alg", "1"),
    ("max_vlan_headers", "2"),
    ("nd_ext", "false"),
    ("recirc", "true"),
    ("sample_nesting", "10"),
    ("trunc", "true"),
    ("ufid", "true"),
];

/// The lines that Open vSwitch logs when it gets its first bridge and has probed its datapath.
pub(super) fn probed(tags: usize) -> Vec<String> {
    let mut lines = vec![format!("VLAN header stack length probed as {tags}")];
    let words = [
        ("Truncate action", "truncate action"),
        ("Clone action", "clone action"),
        ("Conntrack clear", "ct_clear action"),
        ("Check pkt length action", "check_pkt_len action"),
        ("Conntrack timeout policy", "timeout policy in conntrack action"),
        ("Explicit Drop action", "explicit drop action"),
        ("Conntrack all-zero IP SNAT", "CT zero SNAT"),
    ];
    for (name, word) in words {
        let here = FEATURES.contains(&(name, "Yes"));
        lines.push(format!("Datapath {} {word}", if here { "supports" } else { "does not support" }));
    }
    lines
}
