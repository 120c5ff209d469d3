//! Flows, groups and meters from text.

use super::parse_actions::parse_actions;
use super::value::{parse_int, parse_u8, parse_u16, parse_u32, parse_u64, parse_value};
use super::{ParseError, Result};
use crate::field::FieldId;
use crate::flow_match::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_RARP, Match};
use crate::ids::TableId;
use crate::mods::{Bucket, FlowFlags, FlowMod, Group, GroupType, MeterBand, MeterConfig};
use std::str::FromStr;

/// Splits at commas that are not within parentheses or brackets.
pub(crate) fn split_top(s: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (i, c) in s.bytes().enumerate() {
        match c {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b',' if depth == 0 => {
                out.push(s[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(s[start..].trim());
    out.retain(|x| !x.is_empty());
    out
}

fn shorthand(name: &str) -> Option<(u128, Option<u128>)> {
    Some(match name {
        "ip" => (ETH_IPV4, None),
        "icmp" => (ETH_IPV4, Some(1)),
        "tcp" => (ETH_IPV4, Some(6)),
        "udp" => (ETH_IPV4, Some(17)),
        "sctp" => (ETH_IPV4, Some(132)),
        "ipv6" => (ETH_IPV6, None),
        "icmp6" => (ETH_IPV6, Some(58)),
        "tcp6" => (ETH_IPV6, Some(6)),
        "udp6" => (ETH_IPV6, Some(17)),
        "sctp6" => (ETH_IPV6, Some(132)),
        "mpls" => (0x8847, None),
        "mplsm" => (0x8848, None),
        "arp" => (ETH_ARP, None),
        "rarp" => (ETH_RARP, None),
        _ => return None,
    })
}

/// Adds one item of a match; false if it is not a match item.
fn match_item(m: &mut Match, key: &str, value: Option<&str>) -> Result<bool> {
    let Some(value) = value else {
        let Some((et, proto)) = shorthand(key) else {
            let option = FieldId::by_name(key).filter(|f| f.presence().is_some());
            option.into_iter().for_each(|f| m.require(f));
            return Ok(option.is_some());
        };
        m.set(FieldId::EthType, et);
        if let Some(p) = proto {
            m.set(FieldId::IpProto, p);
        }
        return Ok(true);
    };
    match key {
        "dl_vlan" => {
            let v = parse_int(value)?;
            if v == 0xffff {
                m.set(FieldId::VlanTci, 0);
            } else {
                m.set(FieldId::VlanVid, (v & 0xfff) | 0x1000);
            }
            return Ok(true);
        }
        "tp_src" | "tp_dst" => {
            let id = if key == "tp_src" { FieldId::TcpSrc } else { FieldId::TcpDst };
            let (v, mask) = parse_value(id, value)?;
            m.set_masked(id, v, mask.unwrap_or(id.full_mask()));
            return Ok(true);
        }
        _ => {}
    }
    let Some(id) = FieldId::by_name(key) else { return Ok(false) };
    let (v, mask) = parse_value(id, value).map_err(|e| ParseError(format!("{key}: {e}")))?;
    let mask = mask.unwrap_or(id.full_mask());
    if id == FieldId::NwTos {
        m.set_masked(id, v, 0xfc);
    } else if id == FieldId::CtState {
        m.set_masked(id, v, mask & 0xff);
    } else {
        m.set_masked(id, v, mask);
    }
    Ok(true)
}

/// The items of a match, between commas and spaces that are not within parentheses (`packet_type=(1,0x800)`).
fn items(s: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut depth = 0;
    let between = move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth <= 0 && matches!(c, ',' | ' ' | '\t')
    };
    s.split(between).filter(|x| !x.is_empty()).map(|x| match x.split_once('=') {
        Some((k, v)) => (k, Some(v)),
        None => (x, None),
    })
}

/// Parses a match such as `ip,reg14=0x1,nw_dst=10.0.0.0/24`.
///
/// # Errors
/// Names the item that is not understood.
pub fn parse_match(s: &str) -> Result<Match> {
    let mut m = Match::new();
    for (k, v) in items(s) {
        if !match_item(&mut m, k, v)? {
            return Err(ParseError::new(format!("unknown match \"{k}\"; see ovs-fields(7) for the names")));
        }
    }
    m.leave_out_ethernet();
    Ok(m)
}

impl FromStr for Match {
    type Err = ParseError;

    fn from_str(s: &str) -> Result<Match> {
        parse_match(s)
    }
}

/// Parses a flow as `ovs-ofctl dump-flows` prints it or `add-flow` takes it; statistics are skipped.
///
/// # Errors
/// Names the part that is not understood.
pub fn parse_flow(line: &str) -> Result<FlowMod> {
    let mut f = FlowMod::default();
    let (head, acts) = match line.split_once("actions=") {
        Some((h, a)) => (h, Some(a)),
        None => (line, None),
    };
    for (k, v) in items(head) {
        match (k, v) {
            ("cookie", Some(v)) => match v.split_once('/') {
                Some((c, m)) => {
                    f.cookie = parse_u64(c)?;
                    f.cookie_mask = if m == "-1" { u64::MAX } else { parse_u64(m)? };
                }
                None => f.cookie = parse_u64(v)?,
            },
            ("table", Some(v)) => f.table = v.parse().map_err(ParseError)?,
            ("priority", Some(v)) => f.priority = parse_u16(v)?,
            ("idle_timeout", Some(v)) => f.idle_timeout = parse_u16(v)?,
            ("hard_timeout", Some(v)) => f.hard_timeout = parse_u16(v)?,
            ("importance", Some(v)) => f.importance = parse_u16(v)?,
            ("out_port", Some(v)) => f.out_port = v.parse().map_err(ParseError)?,
            ("out_group", Some(v)) => f.out_group = v.parse().map_err(ParseError)?,
            ("send_flow_rem", None) => f.flags.0 |= FlowFlags::SEND_FLOW_REM,
            ("check_overlap", None) => f.flags.0 |= FlowFlags::CHECK_OVERLAP,
            ("reset_counts", None) => f.flags.0 |= FlowFlags::RESET_COUNTS,
            ("no_packet_counts", None) => f.flags.0 |= FlowFlags::NO_PACKET_COUNTS,
            ("no_byte_counts", None) => f.flags.0 |= FlowFlags::NO_BYTE_COUNTS,
            ("duration" | "n_packets" | "n_bytes" | "idle_age" | "hard_age", Some(_)) => {}
            _ => {
                if !match_item(&mut f.matches, k, v)? {
                    return Err(ParseError::new(format!("unknown match \"{k}\" in flow \"{}\"", line.trim())));
                }
            }
        }
    }
    f.matches.leave_out_ethernet();
    if let Some(a) = acts {
        f.actions = parse_actions(a)?;
        // `mod_tp_src` and `mod_tp_dst` leave it to the match which transport's ports they set.
        if a.contains("mod_tp_") {
            crate::wire::of10::name_ports(&mut f);
        }
    }
    Ok(f)
}

fn selection_fields(g: &mut Group, list: &str) -> Result<()> {
    for item in split_top(list) {
        let (name, mask) = match item.split_once('=') {
            Some((n, m)) => (n, Some(m)),
            None => (item, None),
        };
        let id = FieldId::by_name(name)
            .ok_or_else(|| ParseError::new(format!("unknown field \"{name}\" in group {}", g.id)))?;
        let mask = match mask {
            Some(m) => parse_value(id, m)?.0,
            None => id.full_mask(),
        };
        g.selection.fields.push((id, mask));
    }
    Ok(())
}

fn bucket_item(b: &mut Bucket, k: &str, v: &str) -> Result<bool> {
    match k {
        "bucket_id" => b.id = parse_u32(v)?,
        "weight" => b.weight = parse_u16(v)?,
        "watch_port" => b.watch_port = v.parse().map_err(ParseError)?,
        "watch_group" => b.watch_group = v.parse().map_err(ParseError)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn parse_bucket(text: &str, index: u32, group_type: GroupType) -> Result<Bucket> {
    let weight = u16::from(group_type == GroupType::Select);
    let mut b = Bucket::new(index, weight, Vec::new());
    let mut actions: Vec<&str> = Vec::new();
    for item in split_top(text) {
        if actions.is_empty() {
            if let Some((k, v)) = item.split_once(':')
                && bucket_item(&mut b, k, v)?
            {
                continue;
            }
            actions.push(item.strip_prefix("actions=").or_else(|| item.strip_prefix("action=")).unwrap_or(item));
        } else {
            actions.push(item);
        }
    }
    b.actions = parse_actions(&actions.join(","))?;
    Ok(b)
}

/// Parses a group as `ovs-ofctl dump-groups` prints it or `add-group` takes it.
///
/// # Errors
/// Names the part that is not understood.
pub fn parse_group(line: &str) -> Result<Group> {
    let mut g = Group::default();
    let line = line.trim();
    let mut parts = line.split("bucket=");
    let head = parts.next().unwrap_or_default();
    for item in split_top(head) {
        if let Some(list) = item.strip_prefix("fields(").and_then(|x| x.strip_suffix(')')) {
            selection_fields(&mut g, list)?;
            continue;
        }
        let (k, v) = item
            .split_once('=')
            .ok_or_else(|| ParseError::new(format!("\"{item}\" in a group: expected name=value")))?;
        match k {
            "group_id" => g.id = v.parse().map_err(ParseError)?,
            "type" => {
                g.group_type = [GroupType::All, GroupType::Select, GroupType::Indirect, GroupType::FastFailover]
                    .into_iter()
                    .find(|t| t.name() == v || (v == "fast_failover" && *t == GroupType::FastFailover))
                    .ok_or_else(|| ParseError::new(format!("group type \"{v}\": use all, select, indirect or ff")))?;
            }
            "selection_method" => g.selection.name = v.to_string(),
            "selection_method_param" => g.selection.param = parse_u64(v)?,
            "fields" => selection_fields(&mut g, v)?,
            _ => return Err(ParseError::new(format!("unknown \"{k}\" in group {}", g.id))),
        }
    }
    for (i, b) in parts.enumerate() {
        let bucket = parse_bucket(b, i as u32, g.group_type)?;
        g.buckets.push(bucket);
    }
    Ok(g)
}

/// Parses a meter, as dumped (spaces and newlines) or as `add-meter` takes it (commas).
///
/// # Errors
/// Names the part that is not understood.
pub fn parse_meter(text: &str) -> Result<MeterConfig> {
    let mut m = MeterConfig::default();
    for item in text.split([' ', ',', '\n', '\t']).filter(|x| !x.is_empty()) {
        let item = item.strip_prefix("bands=").or_else(|| item.strip_prefix("band=")).unwrap_or(item);
        let (k, v) = match item.split_once('=') {
            Some((k, v)) => (k, v),
            None => (item, ""),
        };
        let last = m.bands.last_mut();
        match (k, last) {
            ("", _) => {}
            ("meter", _) => m.id = v.parse().map_err(ParseError)?,
            ("kbps", _) => m.flags |= MeterConfig::KBPS,
            ("pktps", _) => m.flags |= MeterConfig::PKTPS,
            ("burst", _) => m.flags |= MeterConfig::BURST,
            ("stats", _) => m.flags |= MeterConfig::STATS,
            ("type", _) => {
                let band_type = match v {
                    "drop" => 1,
                    "dscp_remark" => 2,
                    _ => return Err(ParseError::new(format!("meter band type \"{v}\": use drop"))),
                };
                m.bands.push(MeterBand { band_type, rate: 0, burst: 0, prec_level: 0 });
            }
            ("rate", Some(b)) => b.rate = parse_u32(v)?,
            ("burst_size", Some(b)) => b.burst = parse_u32(v)?,
            ("prec_level", Some(b)) => b.prec_level = parse_u8(v)?,
            _ => return Err(ParseError::new(format!("unknown \"{item}\" in meter {}", m.id))),
        }
    }
    Ok(m)
}

/// Parses a filter for dumps and deletions: like a flow, but the table defaults to all.
///
/// # Errors
/// As [`parse_flow`].
pub fn parse_filter(line: &str) -> Result<FlowMod> {
    let mut f = parse_flow(line)?;
    if !line.contains("table=") {
        f.table = TableId::ALL;
    }
    Ok(f)
}
