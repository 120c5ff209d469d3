//! The sections that a cached flow is told of by are of the same walk: together they send to the same devices, and meet the
//! same flows of OpenFlow.

use super::rig::Rig;
use switch::Met;

/// The devices that datapath actions send to, sorted; `None` where the actions tell of several lengths.
fn devices(actions: &str) -> Option<Vec<u32>> {
    if actions.contains("check_pkt_len(") {
        return None;
    }
    let (mut out, mut rest) = (Vec::new(), actions);
    while !rest.is_empty() {
        // What is within a clone is done as well; other words' arguments are no outputs.
        if let Some(inside) = rest.strip_prefix("clone(") {
            rest = inside;
            continue;
        }
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth < 0 || depth == 0 && c == ','
        });
        let (word, more) = rest.split_at(end.unwrap_or(rest.len()));
        out.extend(word.parse::<u32>().ok());
        rest = more.trim_start_matches([',', ')']);
    }
    out.sort_unstable();
    Some(out)
}

/// What was met, sorted.
fn met(list: Vec<Met>) -> Vec<String> {
    let mut all: Vec<String> = list.iter().map(|m| format!("{m:?}")).collect();
    all.sort();
    all
}

/// Whether all cached flows are told of so; an error says of which not.
pub fn agree(s: &mut Rig) -> Result<usize, String> {
    let flows: Vec<_> = s.cached_flows().filter(|f| f.is_whole_way()).collect();
    for f in &flows {
        let sections = s.sections(f);
        let told: Vec<String> = sections.iter().map(|p| format!("{}, actions:{}", p.packets, p.actions)).collect();
        let whole = s.tell_actions(f);
        let parts: Option<Vec<Vec<u32>>> = sections.iter().map(|p| devices(&p.actions)).collect();
        if let (Some(whole), Some(parts)) = (devices(&whole), parts) {
            let mut parts = parts.concat();
            parts.sort_unstable();
            if whole != parts {
                return Err(format!("{} sends to {whole:?}, its sections to {parts:?}: {told:#?}", f.packets));
            }
        }
        let parts: Vec<Met> = sections.iter().filter_map(|p| s.met_by(p)).flatten().collect();
        let (whole, parts) = (met(s.met_by(f).unwrap_or_default()), met(parts));
        if whole != parts {
            return Err(format!("{} meets {whole:#?}, its sections {parts:#?}: {told:#?}", f.packets));
        }
    }
    Ok(flows.len())
}

#[test]
fn devices_of_actions() {
    assert_eq!(devices("set(ipv4(ttl=2)),4,clone(ct(commit,zone=3),tnl_push(a(1),2),7),3"), Some(vec![3, 4, 7]));
    assert_eq!(devices("drop"), Some(Vec::new()));
    assert_eq!(devices("check_pkt_len(size=9,gt(1),le(2))"), None);
}
