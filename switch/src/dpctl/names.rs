//! Names of ports in place of their numbers (`--names` of ovs-vswitchd(8) and ovs-dpctl(8)).

use crate::bridge::Bridge;
use openflow_rs::PortNo;

/// What stands before a port's number in OpenFlow's text.
const BEFORE: [&str; 3] = ["in_port=", "output:", "port="];
/// What in the datapath's actions has ports, or actions, in its brackets.
const HOLDERS: [&str; 10] =
    ["clone", "tnl_push", "tnl_port", "out_port", "tnl_pop", "check_pkt_len", "gt", "le", "sample", "actions"];

/// A name as OpenFlow's text has it: in quotes unless it is a plain word.
fn quoted(name: &str) -> String {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = first && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if plain { name.into() } else { format!("{name:?}") }
}

/// A flow, or actions, with the names of a bridge's ports.
pub(crate) fn of_bridge(text: &str, bridge: &Bridge) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((at, word)) = BEFORE.iter().filter_map(|w| Some((rest.find(w)?, *w))).min() {
        let (before, from) = rest.split_at(at);
        let behind = from.get(word.len()..).unwrap_or_default();
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = behind.split_at(digits);
        let whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_') && !tail.starts_with(['.', '[']);
        let port = number.parse().ok().filter(|_| whole).and_then(|n| bridge.ports.get(&PortNo(n)));
        out += before;
        out += word;
        out += &port.map_or_else(|| number.to_string(), |p| quoted(&p.name));
        rest = tail;
    }
    out + rest
}

/// Actions of the datapath with the names that its ports have.
pub fn of_datapath(actions: &str, name: impl Fn(u32) -> Option<String>) -> String {
    // The words before the brackets that are open: numbers within others are no ports.
    let (mut open, mut out) = (Vec::new(), String::with_capacity(actions.len()));
    for part in actions.split_inclusive(['(', ')', ',']) {
        let (word, end) = part.split_at(part.trim_end_matches(['(', ')', ',']).len());
        let port = || open.iter().all(|w| HOLDERS.contains(w)).then(|| word.parse().ok().and_then(&name)).flatten();
        match if end == "(" { None } else { port() } {
            Some(name) => out += &name,
            None => out += word,
        }
        out += end;
        match end {
            "(" => open.push(word),
            ")" => drop(open.pop()),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{of_bridge, of_datapath};
    use crate::bridge::{Bridge, Port, PortKind};
    use crate::ids::DeviceId;
    use openflow_rs::PortNo;

    #[test]
    fn ports_have_names() {
        let mut b = Bridge::new("br0", 1);
        for (no, name) in [(1, "p1"), (12, "vm 3")] {
            b.ports.insert(PortNo(no), Port::new(PortNo(no), name, PortKind::Device(DeviceId(no.into()))));
        }
        for (text, wanted) in [
            ("ip,in_port=1,nw_src=1.1.1.1", "ip,in_port=p1,nw_src=1.1.1.1"),
            ("clone(output:12,set_field:1->reg1),output:1", "clone(output:\"vm 3\",set_field:1->reg1),output:p1"),
            (
                "output(port=1,max_len=100),output:7,output:NXM_NX_REG1[]",
                "output(port=p1,max_len=100),output:7,output:NXM_NX_REG1[]",
            ),
            ("sample(probability=1,sampling_port=1)", "sample(probability=1,sampling_port=1)"),
        ] {
            assert_eq!(of_bridge(text, &b), wanted);
        }
        let name = |n| match n {
            1 => Some("p1".into()),
            6081 => Some("genev_sys_6081".into()),
            _ => None,
        };
        for (text, wanted) in [
            ("set(ipv4(ttl=2)),1,ct(commit,zone=1),9", "set(ipv4(ttl=2)),p1,ct(commit,zone=1),9"),
            (
                "clone(tnl_push(tnl_port(6081),header(size=50,type=5,geneve(vni=1)),out_port(1)),1),meter(1)",
                "clone(tnl_push(tnl_port(genev_sys_6081),header(size=50,type=5,geneve(vni=1)),out_port(p1)),p1),meter(1)",
            ),
            ("check_pkt_len(size=1,gt(drop),le(1))", "check_pkt_len(size=1,gt(drop),le(p1))"),
        ] {
            assert_eq!(of_datapath(text, name), wanted);
        }
    }
}
