//! Normalised matches select exactly the packets that the expression does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use logical_flow::constant::{Integer, integer};
use logical_flow::expr::{Comparison, Constant, Environment, Expr, Operand, Relation, parse};
use logical_flow::field::{Field, ones};
use logical_flow::normal::{Boolean, Match, any_holds, matches};
use logical_flow::symbol::Kind;
use proptest::prelude::*;

fn constants(texts: &[&str]) -> Vec<Integer> {
    texts.iter().filter_map(|t| integer(t)).collect()
}

struct Chassis;

impl Environment for Chassis {
    fn port(&self, name: &str) -> Option<u32> {
        name.strip_prefix('p')?.parse().ok()
    }
    fn is_chassis_resident(&self, port: &str) -> bool {
        port == "p1"
    }
    fn address_set(&self, name: &str) -> Option<Vec<Integer>> {
        match name {
            "as" => Some(constants(&["10.0.0.0/30", "10.0.0.9", "not an address"])),
            "bs" => Some(constants(&["10.0.0.1", "10.0.0.3", "10.0.0.2/31", "2001:db8::1"])),
            "one" => Some(constants(&["10.0.0.4"])),
            _ => None,
        }
    }
    fn port_group(&self, name: &str) -> Option<Vec<u32>> {
        (name == "pg").then(|| ["p1", "p2", "elsewhere"].into_iter().filter_map(|p| self.port(p)).collect())
    }
}

/// Comparisons over few bits, so that random packets often satisfy them.
fn comparison() -> impl Strategy<Value = String> {
    let rel = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    prop_oneof![
        (rel.clone(), 0u32..8).prop_map(|(r, v)| format!("(reg0[0..2] {r} {v})")),
        (rel.clone(), 0u32..4).prop_map(|(r, v)| format!("(tcp.dst[0..1] {r} {v})")),
        (rel, 0u32..4).prop_map(|(r, v)| format!("({v} {r} xxreg0[96..97])")),
        prop::collection::vec(0u32..4, 1..4).prop_map(|v| format!("(ip4.src == {{{}}})", join(&v, "10.0.0."))),
        prop::collection::vec(0u32..4, 1..4).prop_map(|v| format!("(ip4.dst != {{{}}})", join(&v, "10.0.0."))),
        prop::collection::vec(0u32..4, 1..4).prop_map(|v| format!("(udp.src == {{{}}})", join(&v, ""))),
        Just("(ip4.src == $as)".to_string()),
        Just("(inport == @pg)".to_string()),
        Just("(!(ip4.dst == $as))".to_string()),
        Just("is_chassis_resident(\"p1\")".to_string()),
        Just("is_chassis_resident(\"p2\")".to_string()),
        Just("ct.est".to_string()),
        Just("!ct.est".to_string()),
        Just("ip".to_string()),
        Just("tcp".to_string()),
        Just("(inport == \"p2\")".to_string()),
        (0u32..4, 0u32..8).prop_map(|(v, m)| format!("(reg0 != {:#x}/{m:#x})", v & m).replace("0x0/", "0/")),
        (0u32..4, 0u32..8).prop_map(|(a, b)| format!("({a} <= reg0 < {b})")),
        (0u32..4, 0u32..8).prop_map(|(a, b)| format!("(!({b} > tcp.dst >= {a}))")),
        prop::collection::vec(0u32..8, 1..4).prop_map(|v| format!("(!({{{}}} == reg0[0..2]))", join(&v, ""))),
        Just("!reg0".to_string()),
        Just("reg0[1]".to_string()),
        Just("ip.first_frag == 0".to_string()),
        Just("!eth.bcast".to_string()),
    ]
}

fn join(v: &[u32], prefix: &str) -> String {
    v.iter().map(|x| format!("{prefix}{x}")).collect::<Vec<_>>().join(", ")
}

fn expression() -> impl Strategy<Value = String> {
    comparison().prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|l| format!("({})", l.join(" && "))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|l| format!("({})", l.join(" || "))),
            // Nominal names may not stand under `!`.
            inner.prop_filter_map("nominal", |e| Some(format!("(!({e}))")).filter(|t| parse(t).is_ok())),
        ]
    })
}

fn packet() -> impl Strategy<Value = [u64; 8]> {
    (
        0u64..8,
        0u64..4,
        0u64..5,
        0u64..5,
        0u64..4,
        prop::sample::select(vec![0x800u64, 0x86dd, 0x806]),
        prop::sample::select(vec![6u64, 17, 1]),
        0u64..3,
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| [a, b, c, d, e, f, g, h])
}

fn value(p: &[u64; 8], f: Field) -> u128 {
    let reg0 = p[0] as u128;
    match f {
        Field::Reg(0) => reg0,
        Field::XxReg(0) => reg0 << 96,
        Field::TcpDst => p[1] as u128,
        Field::Ip4Src => 0x0a00_0000 | p[2] as u128,
        Field::Ip4Dst => 0x0a00_0000 | p[3] as u128,
        Field::UdpSrc => p[4] as u128,
        Field::EthType => p[5] as u128,
        Field::IpProto => p[6] as u128,
        Field::Reg(14) => p[7] as u128,
        Field::CtState => (if p[7] == 2 { 0x22 } else { 0x21 }) & ones(32),
        _ => 0,
    }
}

/// The direct evaluator: numbers are compared as numbers, and `!` goes down to the comparisons, as what a field implies
/// holds for its negation too.
fn holds(e: &Expr, packet: &dyn Fn(Field) -> u128, negate: bool) -> bool {
    match e {
        Expr::Literal(b) => *b != negate,
        Expr::Not(e) => holds(e, packet, !negate),
        Expr::Parentheses(e) => holds(e, packet, negate),
        Expr::And(l) if negate => l.iter().any(|e| holds(e, packet, true)),
        Expr::Or(l) if negate => l.iter().all(|e| holds(e, packet, true)),
        Expr::And(l) => l.iter().all(|e| holds(e, packet, false)),
        Expr::Or(l) => l.iter().any(|e| holds(e, packet, false)),
        Expr::Resident(port) => Chassis.is_chassis_resident(port) != negate,
        Expr::Field(o) => match o.symbol.kind {
            Kind::Predicate(text) => holds(&parse(text).unwrap(), packet, negate),
            _ => implied(o, packet) && (number(o, packet) != 0) != negate,
        },
        Expr::Compare(c) if matches!(c.operand.symbol.kind, Kind::Predicate(_)) => {
            let (Kind::Predicate(text), [Constant::Integer(i)]) = (c.operand.symbol.kind, c.constants.list.as_slice())
            else {
                panic!("{e}")
            };
            let positive = (i.value == 1) == (c.relation == Relation::Eq);
            holds(&parse(text).unwrap(), packet, positive == negate)
        }
        Expr::Compare(c) => compares(c, packet) != negate && implied(&c.operand, packet),
        Expr::Range(r) => (compares(&r.0, packet) && compares(&r.1, packet)) != negate && implied(&r.0.operand, packet),
        Expr::Template(name) => panic!("^{name}"),
    }
}

fn implied(o: &Operand, packet: &dyn Fn(Field) -> u128) -> bool {
    o.symbol.prerequisite.is_empty() || holds(&parse(o.symbol.prerequisite).unwrap(), packet, false)
}

fn number(o: &Operand, packet: &dyn Fn(Field) -> u128) -> u128 {
    let (field, offset) = o.field().unwrap();
    let width = if o.width == 0 { 32 } else { o.width };
    packet(field) >> offset & ones(width)
}

fn compares(c: &Comparison, packet: &dyn Fn(Field) -> u128) -> bool {
    let v = number(&c.operand, packet);
    let mut wanted: Vec<(Option<u128>, u128)> = Vec::new();
    for k in &c.constants.list {
        let plain = |n: u32| (Some(u128::from(n)), u128::MAX);
        match k {
            Constant::Integer(i) => wanted.push((Some(i.value), i.mask.unwrap_or(u128::MAX))),
            Constant::AddressSet(name) => {
                let members = Chassis.address_set(name).unwrap();
                wanted.extend(members.iter().map(|i| (Some(i.value), i.mask.unwrap_or(u128::MAX))));
            }
            // A port that is not there is no number.
            Constant::String(p) => wanted.push(Chassis.port(p).map_or((None, 0), plain)),
            Constant::PortGroup(g) => {
                let ports = Chassis.port_group(g).unwrap();
                wanted.extend(ports.into_iter().map(plain));
            }
            Constant::Template(name) => panic!("^{name}"),
        }
    }
    let one = |(k, mask): &(Option<u128>, u128)| {
        let Some(k) = *k else { return c.relation == Relation::Ne };
        match c.relation {
            Relation::Eq => v & mask == k,
            Relation::Ne => v & mask != k,
            Relation::Lt => v < k,
            Relation::Le => v <= k,
            Relation::Gt => v > k,
            Relation::Ge => v >= k,
        }
    };
    if c.relation == Relation::Ne { wanted.iter().all(one) } else { wanted.iter().any(one) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn normalised_matches_select_the_same_packets(text in expression(), packets in prop::collection::vec(packet(), 40)) {
        let tree = parse(&text).unwrap();
        let e: Boolean = tree.evaluate(&Chassis).unwrap();
        let m = matches(&e);
        for p in &packets {
            let get = |f: Field| value(p, f);
            let direct = holds(&tree, &get, false);
            prop_assert_eq!(direct, e.holds(&get), "{} on {:?}\n{:?}", text, p, e);
            prop_assert_eq!(direct, any_holds(&m, &get), "{} on {:?}\n{:?}", text, p, m);
        }
    }

    #[test]
    fn random_text_never_panics(text in "[ -~]{0,60}") {
        let _ = logical_flow::expr::parse(&text);
        let _ = logical_flow::action::parse(&text);
    }
}

/// Comparisons with address sets, which an expression demands.
fn of_sets() -> impl Strategy<Value = String> {
    let of = |field: &'static str, sets: Vec<&'static str>| {
        prop::sample::select(sets).prop_map(move |set| format!("{field} == {set}"))
    };
    let source = of("ip4.src", vec!["$as", "{$bs}", "{$as, $bs, 10.0.0.7}", "{$one, $bs}", "$one"]);
    let destination = of("ip4.dst", vec!["$bs", "{$as, $one}", "({10.0.0.1, $bs})"]).prop_map(|t| match t.find('(') {
        Some(_) => format!("({})", t.replace(['(', ')'], "")),
        None => t,
    });
    prop_oneof![
        source.clone(),
        destination.clone(),
        (source, destination).prop_map(|(a, b)| format!("{a} && ({b} && reg0[0..2] != 7)")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Made apart from the rest and put together again, the matches of address sets' members are those of the whole, whatever
    /// parts the sets are cut into.
    #[test]
    fn matches_of_members_are_those_of_the_whole(
        rest in expression(),
        sets in of_sets(),
        cut in 0usize..4,
        packets in prop::collection::vec(packet(), 40),
    ) {
        let text = format!("{rest} && {sets}");
        let tree = parse(&text).unwrap();
        let many = |set: &str| set != "one";
        let Some(apart) = logical_flow::sets::apart(&tree, &[], &Chassis, &many).unwrap() else { return Ok(()) };
        let mut all = apart.common;
        for slot in &apart.slots {
            for set in &slot.sets {
                let members = Chassis.address_set(set).unwrap();
                let (front, back) = members.split_at(cut.min(members.len()));
                all.extend(slot.matches(front).into_iter().chain(slot.matches(back)));
            }
        }
        let whole = matches(&tree.evaluate(&Chassis).unwrap());
        for p in &packets {
            let get = |f: Field| value(p, f);
            prop_assert_eq!(any_holds(&whole, &get), any_holds(&all, &get), "{} on {:?}\n{:?}\n{:?}", text, p, whole, all);
        }
        // Conjunctions may be numbered otherwise, and a member of two sets comes twice.
        let plain = |m: &Match| match m {
            Match::Clause(f, list) => {
                let mut list: Vec<_> = list.iter().map(|(_, k, n)| (*k, *n)).collect();
                list.sort_unstable();
                (f.clone(), list)
            }
            Match::Plain(f) => (f.clone(), Vec::new()),
            Match::Conjunction(f, _) => (f.clone(), vec![(u8::MAX, u8::MAX)]),
        };
        let sorted = |list: &[Match]| {
            let mut out: Vec<_> = list.iter().map(plain).collect();
            out.sort_unstable();
            out
        };
        let (whole, mut all) = (sorted(&whole), sorted(&all));
        all.dedup_by(|a, b| a == b && !whole.contains(&(a.0.clone(), vec![(u8::MAX, u8::MAX)])));
        let mut once = whole.clone();
        once.dedup_by(|a, b| a == b && !whole.contains(&(a.0.clone(), vec![(u8::MAX, u8::MAX)])));
        prop_assert_eq!(once, all, "{}", text);
    }
}

/// What each member adds, and what all have in common.
#[test]
fn a_member_is_a_match_or_a_clause() {
    let of = |text: &str| {
        let apart = logical_flow::sets::apart(&parse(text).unwrap(), &[], &Chassis, &|set| set != "one").unwrap();
        apart.map(|a| (a.common.len(), a.slots.iter().map(|s| s.matches(&constants(&["10.0.0.5"])).len()).collect()))
    };
    let none: Option<(usize, Vec<usize>)> = None;
    assert_eq!(of("ip4.src == $as"), Some((0, vec![1])));
    assert_eq!(of("ip4.src == $as && ip4.dst == $bs"), Some((1, vec![1, 1])), "the conjunction itself");
    assert_eq!(of("tcp && (ip4.src == {$as, 10.0.0.7}) && tcp.dst == {1, 2, 3}"), Some((5, vec![1])));
    assert_eq!(of("ip4.src == $as && 0"), Some((0, vec![])), "no packet");
    assert_eq!(of("ip4.src == $one"), none, "one member is no list");
    assert_eq!(of("ip4.src == $as || ip4.dst == $as"), none, "neither is demanded");
    assert_eq!(of("ip4.src == $as && ip4.src == 10.0.0.0/8"), none, "something else of the field");
    assert_eq!(of("ip4.src == $as && ip4.src == $bs"), none);
    assert_eq!(of("ip4.src != $as"), none);
    assert_eq!(of("ip4.src == {$as, 0.0.0.0/0}"), none, "any address");
}

/// Two lists make as many matches as they have members, and one more; one list makes as many as it has.
#[test]
fn members_of_an_address_set_keep_matches_of_their_own() {
    let count = |text: &str| matches(&parse(text).unwrap().evaluate(&Sets).unwrap()).len();
    assert_eq!(count("ip4.src == $nested"), 3);
    assert_eq!(count("ip4.src == {10.0.0.0/24, 10.0.0.1, 10.0.0.2}"), 1);
}

struct Sets;

impl Environment for Sets {
    fn port(&self, _: &str) -> Option<u32> {
        None
    }
    fn is_chassis_resident(&self, _: &str) -> bool {
        false
    }
    fn address_set(&self, name: &str) -> Option<Vec<Integer>> {
        (name == "nested").then(|| constants(&["10.0.0.0/24", "10.0.0.1", "10.0.0.2"]))
    }
    fn port_group(&self, _: &str) -> Option<Vec<u32>> {
        None
    }
}

/// What is none of several values: as many prefixes as the values' bits, at most, and each address is in one of them if it is none of
/// the values. Tests of single bits would multiply.
#[test]
fn none_of_several_values_are_a_few_prefixes() {
    let values: Vec<String> = (0..40u32).map(|n| format!("10.{}.{}.{}", n % 3, n * 7 % 256, n * 31 % 256)).collect();
    let text = format!("ip4.src != {{{}}}", values.join(", "));
    let list = matches(&parse(&text).unwrap().evaluate(&Chassis).unwrap());
    assert!(list.len() <= 40 * 32, "{}", list.len());
    let source = |m: &Match| match m {
        Match::Plain(f) => f.get(Field::Ip4Src).unwrap(),
        m => panic!("{m:?}"),
    };
    let ranges: Vec<(u128, u128)> = list.iter().map(source).collect();
    assert!(ranges.iter().all(|(_, mask)| (!mask & ones(32)).wrapping_add(1).is_power_of_two()), "prefixes");
    let within = |address: u32| ranges.iter().filter(|(v, m)| u128::from(address) & m == *v).count();
    for v in &values {
        let address = u32::from(v.parse::<std::net::Ipv4Addr>().unwrap());
        assert_eq!((within(address), within(address ^ 0x8000_0000)), (0, 1), "{v}");
        let beside = address ^ 1;
        let is_value = values.contains(&std::net::Ipv4Addr::from(beside).to_string());
        assert_eq!(within(beside), usize::from(!is_value), "beside {v}");
    }
}

#[test]
fn conjunctions_make_fewer_matches() {
    let count = |text: &str| {
        let e: Boolean = parse(text).unwrap().evaluate(&Chassis).unwrap();
        let list = matches(&e);
        let clauses = list.iter().filter(|m| !matches!(m, logical_flow::normal::Match::Plain(_))).count();
        (list.len(), clauses)
    };
    let set = |n: usize, prefix: &str| format!("{{{}}}", join(&(1..=n as u32).collect::<Vec<_>>(), prefix));
    let (a, b, c) = (set(10, "10.0.0."), set(10, "10.1.0."), set(10, ""));
    assert_eq!(count(&format!("ip4.src == {a} && ip4.dst == {b}")), (21, 21), "of 100 pairs");
    assert_eq!(count(&format!("ip4.src == {a} && ip4.dst == {b} && tcp.dst == {c}")), (31, 31), "of 1,000");
    assert_eq!(count(&format!("ip4.src == {a}")), (10, 0));
    // OVN does not count what is saved: two lists are a conjunction, however short.
    let (a, b) = (set(2, "10.0.0."), set(2, ""));
    assert_eq!(count(&format!("ip4.src == {a} && tcp.dst == {b}")), (5, 5));
    assert_eq!(count(&format!("ip4.src == {a}")), (2, 0));
    // Names count as what they hold: four addresses are one prefix, a port elsewhere is none.
    assert_eq!(count(&format!("ip4.src == $as && tcp.dst == {c}")), (13, 13));
    assert_eq!(count("inport == @pg"), (2, 0));
}

#[test]
fn errors_say_place_and_expectation() {
    let e = |s: &str| logical_flow::expr::parse(s).unwrap_err().to_string();
    assert_eq!(e("ip4.src == foo"), "Syntax error at `foo' expecting constant. (at character 11)");
    assert_eq!(e("ip4 && tcp || udp"), "&& and || must be parenthesized when used together. (at character 11)");
    assert!(e("tcp.dst == 70000").contains("17-bit constant is not compatible with 16-bit field tcp.dst."));
    assert_eq!(e("inport=p1"), "Syntax error at `=' expecting relational operator. (at character 6)");
}
