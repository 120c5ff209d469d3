//! Flow tables that several benches use.

/// Tables that a packet of OVN's pipelines passes between its actions.
fn chain(from: u8, to: u8) -> impl Iterator<Item = String> {
    (from..to).flat_map(|t| {
        [
            format!("table={t},priority=0,metadata=0x3 actions=resubmit(,{})", t + 1),
            format!("table={t},priority=100,metadata=0x3,reg15=0x77,ip actions=drop"),
        ]
    })
}

/// SNAT as OVN's gateway router does it: un-SNAT, DNAT and SNAT zones, two dozen tables.
pub fn snat() -> Vec<String> {
    let mut v: Vec<String> = [
        "table=0,in_port=1 actions=set_field:0x3->metadata,set_field:0x1->reg14,resubmit(,8)",
        "table=0,in_port=2 actions=set_field:0x3->metadata,set_field:0x2->reg14,resubmit(,8)",
        "table=14,ip,reg14=0x1,metadata=0x3 actions=ct(table=15,zone=11)",
        "table=14,ip,reg14=0x2,metadata=0x3 actions=ct(table=15,zone=12,nat)",
        "table=22,ip,reg14=0x1,metadata=0x3 actions=dec_ttl,set_field:02:00:00:00:00:0c->eth_dst,set_field:02:00:00:00:00:0d->eth_src,set_field:0x2->reg15,ct(table=23,zone=13)",
        "table=22,ip,reg14=0x2,metadata=0x3 actions=dec_ttl,set_field:02:00:00:00:00:0a->eth_dst,set_field:02:00:00:00:00:01->eth_src,set_field:0x1->reg15,ct(table=23,zone=11)",
        "table=30,ip,reg15=0x2,metadata=0x3 actions=ct(commit,table=31,zone=12,nat(src=172.16.0.1))",
        "table=30,ip,reg15=0x1,metadata=0x3 actions=ct(table=31,zone=13)",
        "table=36,reg15=0x1 actions=output:1",
        "table=36,reg15=0x2 actions=output:2",
    ]
    .map(String::from)
    .to_vec();
    for (a, b) in [(8, 14), (15, 22), (23, 30), (31, 36)] {
        v.extend(chain(a, b));
    }
    v
}
