//! Datapath actions in the format of ovs-dpctl(8).

use crate::conntrack::Zone;
use crate::extract::{CONTEXT, mac_text};
use crate::xlate::encap;
use crate::xlate::mpls::{self, pushed};
use openflow_rs::action::{CtAction, ETH_NSH, is_mpls};
use openflow_rs::{FieldId as F, FlowKey};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn v4(v: u128) -> String {
    Ipv4Addr::from(v as u32).to_string()
}

fn v6(v: u128) -> String {
    Ipv6Addr::from(v).to_string()
}

fn number(v: u128) -> String {
    v.to_string()
}

type Part = (F, &'static str, fn(u128) -> String);

const ETH: &[Part] = &[(F::EthSrc, "src", mac_text), (F::EthDst, "dst", mac_text)];
const IPV4: &[Part] =
    &[(F::IpSrc, "src", v4), (F::IpDst, "dst", v4), (F::NwTos, "tos", tos), (F::IpTtl, "ttl", number)];
const IPV6: &[Part] = &[
    (F::Ipv6Src, "src", v6),
    (F::Ipv6Dst, "dst", v6),
    (F::Ipv6Label, "label", number),
    (F::NwTos, "tclass", tos),
    (F::IpTtl, "hlimit", number),
];
const ARP: &[Part] = &[
    (F::ArpSpa, "sip", v4),
    (F::ArpTpa, "tip", v4),
    (F::ArpOp, "op", number),
    (F::ArpSha, "sha", mac_text),
    (F::ArpTha, "tha", mac_text),
];
const ICMP: &[Part] = &[(F::IcmpType, "type", number), (F::IcmpCode, "code", number)];
const ND: &[Part] = &[(F::NdTarget, "target", v6), (F::NdSll, "sll", mac_text), (F::NdTll, "tll", mac_text)];
const PORTS: &[Part] = &[(F::TcpSrc, "src", number), (F::TcpDst, "dst", number)];

fn tos(v: u128) -> String {
    format!("{}/0xfc", hexadecimal(v & 0xfc))
}

/// As C's `%#x` has it.
pub(crate) fn hexadecimal(v: u128) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

/// The same where the bits of congestion change, too, or alone.
fn tos_change(is: u128, wanted: u128) -> String {
    let mask = [0xfc, 0x3].into_iter().filter(|m| (is ^ wanted) & m != 0).sum::<u128>();
    let value = hexadecimal(wanted & mask);
    if mask == 0xff { value } else { format!("{value}/{mask:#x}") }
}

/// The actions that turn one packet into another.
pub(crate) fn changes(is: &FlowKey, wanted: &FlowKey, out: &mut Vec<String>) {
    let kind = wanted.get(F::EthType);
    let proto = wanted.get(F::IpProto);
    let mut lists: Vec<(&str, &[Part])> = vec![("eth", ETH)];
    match kind {
        0x800 => lists.push(("ipv4", IPV4)),
        0x86dd => lists.push(("ipv6", IPV6)),
        0x806 | 0x8035 => lists.push(("arp", ARP)),
        _ => {}
    }
    if matches!(kind, 0x800 | 0x86dd) {
        match (kind, proto) {
            (_, 6) => lists.push(("tcp", PORTS)),
            (_, 17) => lists.push(("udp", PORTS)),
            (_, 132) => lists.push(("sctp", PORTS)),
            (0x800, 1) => lists.push(("icmp", ICMP)),
            (0x86dd, 58) => {
                lists.push(("icmpv6", ICMP));
                if matches!(wanted.get(F::Icmpv6Type), 135 | 136) {
                    lists.push(("nd", ND));
                }
            }
            _ => {}
        }
    }
    // What is pushed is told as it leaves.
    let eth = [F::EthSrc, F::EthDst].iter().any(|f| is.get(*f) != wanted.get(*f));
    if eth && out.pop_if(|last| *last == encap::pushed_eth(is)).is_some() {
        out.push(encap::pushed_eth(wanted));
        lists.remove(0);
    }
    if kind == ETH_NSH.into() {
        nsh(is, wanted, out);
    }
    for (name, parts) in lists {
        let changed: Vec<String> = parts
            .iter()
            .filter(|(f, _, _)| is.get(*f) != wanted.get(*f))
            .map(|(f, n, text)| match (is.get(*f), wanted.get(*f)) {
                (was, new) if *f == F::NwTos && (was ^ new) & 3 != 0 => format!("{n}={}", tos_change(was, new)),
                (_, new) => format!("{n}={}", text(new)),
            })
            .collect();
        if !changed.is_empty() {
            out.push(format!("set({name}({}))", changed.join(",")));
        }
    }
    if let (true, old, new) = (is_mpls(kind as u16), is.get(F::MplsLse), wanted.get(F::MplsLse))
        && old != new
    {
        let added = out.pop_if(|last| *last == encap::added_label(old, kind as u16)).is_some();
        let pushed = out.pop_if(|last| *last == pushed(old, kind as u16));
        out.push(match pushed {
            _ if added => encap::added_label(new, kind as u16),
            Some(_) => mpls::pushed(new, kind as u16),
            None => format!("set(mpls({}))", mpls::entry_text(new)),
        });
    }
    // Equal inner tags stay.
    let (have, want): (Vec<_>, Vec<_>) = (crate::extract::tags(is).collect(), crate::extract::tags(wanted).collect());
    let same = have.iter().rev().zip(want.iter().rev()).take_while(|(a, b)| a == b).count();
    out.extend(have.iter().skip(same).map(|_| "pop_vlan".to_string()));
    for (tpid, tci) in want.iter().rev().skip(same) {
        let kind = if *tpid == 0x8100 { String::new() } else { format!("tpid={tpid:#06x},") };
        out.push(format!("push_vlan({kind}vid={},pcp={})", tci & 0xfff, tci >> 13));
    }
    if is.get(F::PktMark) != wanted.get(F::PktMark) {
        out.push(format!("set(skb_mark({:#x}))", wanted.get(F::PktMark)));
    }
}

/// Actions of which the last is not done with a copy, as nothing follows that.
pub(crate) fn without_last_copy(mut list: Vec<String>) -> Vec<String> {
    if let Some(last) = list.last_mut()
        && let Some(inside) = last.strip_prefix("clone(").and_then(|l| l.strip_suffix(')'))
    {
        *last = inside.into();
    }
    list
}

/// The changes of a network service header.
fn nsh(is: &FlowKey, wanted: &FlowKey, out: &mut Vec<String>) {
    let (old, new) = (encap::nsh_text(is), encap::nsh_text(wanted));
    if old == new {
        return;
    }
    // What is pushed is told as it leaves.
    if let Some(last) = out.last_mut().filter(|last| last.starts_with("push_nsh(") && last.contains(&old)) {
        *last = last.replace(&old, &new);
        return;
    }
    let [flags, ttl, si, spi] = [F::NshFlags, F::NshTtl, F::NshSi, F::NshSpi].map(|f| wanted.get(f));
    let mut text = format!("flags={flags},ttl={ttl},spi={spi:#x},si={si}");
    for (i, f) in CONTEXT.into_iter().enumerate().filter(|(_, f)| is.get(*f) != wanted.get(*f)) {
        text.push_str(&format!(",c{}={:#x}", i + 1, wanted.get(f)));
    }
    out.push(format!("set(nsh({text}))"));
}

/// `ct(…)`, given what its `exec` sets.
pub(crate) fn ct(c: &CtAction, zone: Zone, mark: u128, label: u128) -> String {
    let mut parts = Vec::new();
    if c.commit {
        parts.push(if c.force { "force_commit".into() } else { String::from("commit") });
    }
    if zone != Zone::DEFAULT {
        parts.push(format!("zone={zone}"));
    }
    if let Some(m) = written(c, F::CtMark) {
        parts.push(format!("mark={:#x}/{m:#x}", mark & m));
    }
    if let Some(m) = written(c, F::CtLabel) {
        let mask = if m == u128::MAX { String::new() } else { format!("/{m:#x}") };
        parts.push(format!("label={:#x}{mask}", label & m));
    }
    if let Some(n) = &c.nat {
        let kind = if n.src { "src" } else { "dst" };
        let one = |a: IpAddr, port: bool| match a {
            IpAddr::V6(a) if port => format!("[{a}]"),
            a => a.to_string(),
        };
        let ports = n.range.port.map(|(lo, hi)| if lo == hi { format!(":{lo}") } else { format!(":{lo}-{hi}") });
        let range = n.range.addr.map(|(lo, hi)| {
            let many = if lo == hi { String::new() } else { format!("-{}", one(hi, ports.is_some())) };
            format!("={}{many}", one(lo, ports.is_some()))
        });
        parts.push(match (n.src || n.dst, range) {
            (false, _) => "nat".into(),
            (true, r) => format!("nat({kind}{}{})", r.unwrap_or_default(), ports.unwrap_or_default()),
        });
    }
    if parts.is_empty() { "ct".into() } else { format!("ct({})", parts.join(",")) }
}

/// The bits of a field that `exec` writes.
fn written(c: &CtAction, f: F) -> Option<u128> {
    use openflow_rs::action::Action as A;
    use openflow_rs::ones;
    let of = |a: &A| match a {
        A::SetField { field, mask, .. } if *field == f => mask.unwrap_or(f.full_mask()),
        A::Load { dst, .. } | A::Move { dst, .. } if dst.field == f => ones(dst.n_bits) << dst.ofs,
        _ => 0,
    };
    let mask = c.exec.iter().fold(0, |m, a| m | of(a));
    (mask != 0).then_some(mask)
}
