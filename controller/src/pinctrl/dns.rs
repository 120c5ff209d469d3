//! Names that the southbound table DNS has (ovn-sb(5), action `dns_lookup`; RFC 1035).

use super::Snapshot;
use super::dhcp::set_result;
use crate::encode::of;
use daemon::Counter;
use openflow_rs::message::PacketIn;
use ovn_schema::sb;
use packet::build::with_payload;
use packet::dns::kind::{A, AAAA, ANY, PTR};
use packet::dns::{Question, Useless, question, response};
use packet::{Headers, ipproto};
use std::net::IpAddr;

/// Seconds for which an answer may be kept.
const TTL: u32 = 3600;

static QUERIES: Counter = Counter::new("dns_query_total");
static OF_A: Counter = Counter::new("dns_query_type_a");
static OF_AAAA: Counter = Counter::new("dns_query_type_aaaa");
static OF_PTR: Counter = Counter::new("dns_query_type_ptr");
static OF_ANY: Counter = Counter::new("dns_query_type_any");
static OF_OTHER: Counter = Counter::new("dns_query_type_other");
static HITS: Counter = Counter::new("dns_cache_hit");
static MISSES: Counter = Counter::new("dns_cache_miss");
static TRUNCATED: Counter = Counter::new("dns_error_truncated");
static RESPONSES: Counter = Counter::new("dns_skipped_not_request");
static NO_QUESTION: Counter = Counter::new("dns_error_no_query");
static MALFORMED: Counter = Counter::new("dns_error_parse_failure");
static REFUSALS: Counter = Counter::new("dns_unsupported_ovn_owned");
static ANSWERS: Counter = Counter::new("dns_response_sent");

/// What `coverage/show` shows of DNS.
pub(super) static COUNTERS: [&Counter; 14] = [
    &QUERIES,
    &OF_A,
    &OF_AAAA,
    &OF_PTR,
    &OF_ANY,
    &OF_OTHER,
    &HITS,
    &MISSES,
    &TRUNCATED,
    &RESPONSES,
    &NO_QUESTION,
    &MALFORMED,
    &REFUSALS,
    &ANSWERS,
];

/// Counts a message that is no question that can be looked up, by why it is none.
fn count(why: Useless) {
    match why {
        Useless::Truncated => TRUNCATED.inc(),
        Useless::Response => RESPONSES.inc(),
        Useless::NoQuestion => NO_QUESTION.inc(),
        Useless::Malformed => MALFORMED.inc(),
    }
}

/// Type and data of the answers; none where no row is about the name.
fn answers(rows: &[&sb::Dns], q: &Question<'_>) -> Option<Vec<(u16, Vec<u8>)>> {
    let row = rows.iter().find_map(|r| {
        let record = r.records.iter().find(|(name, _)| name.eq_ignore_ascii_case(&q.name));
        record.map(|(_, value)| (value, ovn_schema::options::flag(&r.options, "ovn-owned")))
    });
    let (value, owned) = row?;
    let mut out = Vec::new();
    if q.kind == PTR {
        out.push((PTR, packet::dns::name(value)));
    }
    for ip in value.split_whitespace().filter_map(|w| w.parse::<IpAddr>().ok()) {
        match ip {
            IpAddr::V4(a) if matches!(q.kind, A | ANY) => out.push((A, a.octets().to_vec())),
            IpAddr::V6(a) if matches!(q.kind, AAAA | ANY) => out.push((AAAA, a.octets().to_vec())),
            _ => {}
        }
    }
    // Of a name that is OVN's own nobody else knows more; other questions go on.
    (owned && matches!(q.kind, A | AAAA) || !out.is_empty()).then_some(out)
}

/// The packet with a response in its place and the result bit set; none where the table says nothing of the name.
pub(super) fn reply(p: &PacketIn, data: &[u8], known: &Snapshot) -> Option<PacketIn> {
    let h = Headers::parse(&p.packet)?;
    if h.proto != ipproto::UDP {
        return None;
    }
    let rows: Vec<&sb::Dns> = known.dns(of::datapath_in(&p.metadata)).collect();
    let message = p.packet.get(h.payload..h.l3_end)?;
    QUERIES.inc();
    let q = match question(message) {
        Ok(q) => q,
        Err(why) => {
            count(why);
            return None;
        }
    };
    match q.kind {
        A => OF_A.inc(),
        AAAA => OF_AAAA.inc(),
        PTR => OF_PTR.inc(),
        ANY => OF_ANY.inc(),
        _ => OF_OTHER.inc(),
    }
    if !matches!(q.kind, A | AAAA | PTR | ANY) {
        return None;
    }
    if rows.iter().any(|r| r.records.keys().any(|name| name.eq_ignore_ascii_case(&q.name))) {
        HITS.inc();
    } else {
        MISSES.inc();
    }
    let list = answers(&rows, &q)?;
    if list.is_empty() {
        REFUSALS.inc();
    }
    let m = response(message, &q, &list, TTL);
    let mut out = p.clone();
    out.packet = with_payload(&p.packet, &h, &m)?;
    set_result(&mut out.metadata, data.get(..8)?)?;
    ANSWERS.inc();
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::{Input, Local};
    use crate::units::presence::Presence;
    use openflow_rs::FieldId;
    use ovn_schema::{Map, Set, Uuid};
    use packet::build;
    use std::net::Ipv6Addr;
    use std::sync::Arc;

    fn known() -> Snapshot {
        let mut db = sb::Database::default();
        let dp = Uuid::new_v4();
        db.datapath_binding.insert(dp, Arc::new(sb::DatapathBinding { tunnel_key: 5, ..Default::default() }));
        let records = [("vm1.ovn.org", "10.0.0.4 aef0::4"), ("4.0.0.10.in-addr.arpa", "vm1.ovn.org")];
        let records: Map<_, _> = records.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let dns = sb::Dns { datapaths: Set::from([dp]), records, ..Default::default() };
        db.dns.insert(Uuid::new_v4(), Arc::new(dns));
        let (mut input, mut here) = (Input::new(db, Local::default()), Presence::default());
        here.settle(&mut input, &[]);
        here.snapshot()
    }

    fn query(name: &str, kind: u16) -> PacketIn {
        let mut m = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for l in name.split('.') {
            m.push(l.len() as u8);
            m.extend(l.bytes());
        }
        m.push(0);
        m.extend(kind.to_be_bytes());
        m.extend([0, 1]);
        let packet = build::udp(
            packet::Mac([1; 6]),
            packet::Mac([2; 6]),
            (IpAddr::from([10, 0, 0, 9]), 4000),
            (IpAddr::from([8, 8, 8, 8]), 53),
            64,
            &m,
        );
        let mut p = PacketIn { packet: packet.unwrap(), ..PacketIn::default() };
        p.metadata.set(of::DATAPATH, 5);
        p
    }

    fn ask(name: &str, kind: u16) -> Option<Vec<u8>> {
        let mut data = crate::encode::of::field_header(FieldId::XxReg0).to_vec();
        data.extend(4u32.to_be_bytes());
        let o = reply(&query(name, kind), &data, &known())?;
        let h = Headers::parse(&o.packet).unwrap();
        assert!(packet::checksum::l4_ok(&o.packet, &h));
        assert_eq!(o.metadata.get(FieldId::XxReg0).0, 1 << 4);
        Some(o.packet[h.payload..h.l3_end].to_vec())
    }

    #[test]
    fn names_are_answered_and_others_go_on() {
        let r = ask("VM1.ovn.org", A).unwrap();
        assert_eq!(r[..8], [7, 7, 0x81, 0, 0, 1, 0, 1]);
        assert_eq!(r[r.len() - 4..], [10, 0, 0, 4]);
        let r = ask("vm1.ovn.org", AAAA).unwrap();
        assert_eq!(r[r.len() - 16..], "aef0::4".parse::<Ipv6Addr>().unwrap().octets());
        let r = ask("4.0.0.10.in-addr.arpa", PTR).unwrap();
        assert_eq!(r[r.len() - 13..], *b"\x03vm1\x03ovn\x03org\x00");
        assert!(ask("vm2.ovn.org", A).is_none());
        assert!(ask("vm1.ovn.org", 15).is_none(), "no mail exchanger is known");
        let whole = query("vm1.ovn.org", A);
        for cut in 0..whole.packet.len() {
            let p = PacketIn { packet: whole.packet[..cut].to_vec(), ..whole.clone() };
            let _ = reply(&p, &[0; 8], &known());
        }
    }
}
