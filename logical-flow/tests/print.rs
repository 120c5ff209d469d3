//! Trees print as text that parses to the same trees, and texts print back with any layout.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use logical_flow::action::{self, *};
use logical_flow::constant::{Format, Integer};
use logical_flow::expr::{self, Bits, Comparison, Constant, Constants, Expr, Operand, Relation};
use logical_flow::field::ones;
use logical_flow::{symbol, written};
use proptest::prelude::*;
use proptest::sample::select;

fn operand(names: &'static [&'static str]) -> impl Strategy<Value = Operand> {
    (select(names), any::<(u8, u8, u8)>()).prop_map(|(name, (how, a, b))| {
        let symbol = symbol::lookup(name).unwrap();
        let whole = Operand { symbol, offset: 0, width: symbol.width, bits: Bits::All };
        if symbol.width == 0 || how % 3 == 0 {
            return whole;
        }
        let (a, b) = (a % symbol.width, b % symbol.width);
        match how % 3 {
            1 => Operand { offset: a, width: 1, bits: Bits::One, ..whole },
            _ => Operand { offset: a.min(b), width: a.max(b) - a.min(b) + 1, bits: Bits::Range, ..whole },
        }
    })
}

const ORDINAL: &[&str] = &["reg0", "xreg1", "xxreg0", "ip4.src", "ip6.dst", "eth.src", "tcp.dst", "ct_label", "flags"];
const WRITABLE: &[&str] = &["reg0", "xreg1", "xxreg0", "ip4.src", "ip6.dst", "eth.src", "tcp.dst", "flags"];
const BOOLEAN: &[&str] = &["ct.est", "ip.first_frag", "eth.bcast", "flags.loopback"];
const PORTS: &[&str] = &["inport", "outport"];

fn field(name: &'static str) -> Operand {
    let symbol = symbol::lookup(name).unwrap();
    Operand { symbol, offset: 0, width: symbol.width, bits: Bits::All }
}

/// A constant that fits a field of this width.
fn integer(width: u8) -> impl Strategy<Value = Integer> {
    let formats: Vec<Format> =
        [(Format::Decimal, 0), (Format::Hex, 0), (Format::Ipv4, 32), (Format::Ethernet, 48), (Format::Ipv6, 128)]
            .into_iter()
            .filter(|(_, w)| *w <= width)
            .map(|(f, _)| f)
            .collect();
    (select(formats), any::<u128>(), any::<u128>(), 0u8..5).prop_map(move |(format, v, m, how)| {
        let bits = match format {
            Format::Ipv4 => 32,
            Format::Ethernet => 48,
            Format::Decimal => width.min(64),
            _ => width,
        };
        let (v, m) = (v & ones(bits), m & ones(bits));
        let length = (m % (u128::from(bits) + 1)) as u8;
        let prefix = ones(bits) & !ones(bits - length);
        let (mask, is_prefix) = match (how, format) {
            (0, Format::Ipv4 | Format::Ipv6) => (Some(prefix), true),
            (1, _) => (Some(m), false),
            _ => (None, false),
        };
        let keep = mask.unwrap_or(u128::MAX);
        // What does not fit because of its mask is left unmasked.
        let i = Integer { value: v & keep, mask, format, prefix: is_prefix, outside: v & !keep };
        if i.value | i.outside == 0 && mask.is_some() && format == Format::Decimal {
            Integer::plain(0, format)
        } else {
            i
        }
    })
}

/// Text that needs escapes now and then.
fn name() -> impl Strategy<Value = String> {
    "[ -~\n\té]{0,8}"
}

fn id() -> impl Strategy<Value = String> {
    "[a-z_][a-z0-9_.]{0,6}"
}

fn comparison() -> impl Strategy<Value = Comparison> {
    let equality = select(vec![Relation::Eq, Relation::Ne]);
    let any_relation = select(vec![Relation::Eq, Relation::Ne, Relation::Lt, Relation::Le, Relation::Gt, Relation::Ge]);
    let numbers = (operand(ORDINAL), any_relation, any::<bool>()).prop_flat_map(|(operand, relation, mirrored)| {
        let width = operand.symbol.width;
        let order = !matches!(relation, Relation::Eq | Relation::Ne);
        let constant = prop_oneof![
            4 => integer(width).prop_map(Constant::Integer),
            1 => id().prop_map(Constant::AddressSet),
            1 => id().prop_map(Constant::Template),
        ];
        let plain = integer(width).prop_map(|i| Integer { mask: None, prefix: false, outside: 0, ..i });
        let constants = if order {
            plain.prop_map(|i| Constants { list: vec![Constant::Integer(i)], braces: false }).boxed()
        } else {
            prop_oneof![
                constant.clone().prop_map(|k| Constants { list: vec![k], braces: false }),
                prop::collection::vec(constant, 1..4).prop_map(|list| Constants { list, braces: true }),
            ]
            .boxed()
        };
        (Just(operand), Just(relation), constants, Just(mirrored))
    });
    let port = prop_oneof![name().prop_map(Constant::String), id().prop_map(Constant::PortGroup)];
    let ports = (operand(PORTS), prop::collection::vec(port, 1..3), any::<bool>()).prop_map(|(o, list, m)| {
        let constants = Constants { braces: list.len() != 1, list };
        (o, Relation::Eq, constants, m)
    });
    let flags = (operand(BOOLEAN), equality, 0u128..2).prop_map(|(o, r, v)| {
        let list = vec![Constant::Integer(Integer::plain(v, Format::Decimal))];
        (o, r, Constants { list, braces: false }, false)
    });
    prop_oneof![4 => numbers, 1 => ports, 1 => flags].prop_map(|(operand, relation, constants, mirrored)| Comparison {
        operand,
        relation,
        constants,
        mirrored,
    })
}

fn range() -> impl Strategy<Value = Expr> {
    (operand(ORDINAL), any::<(bool, bool, bool)>()).prop_flat_map(|(o, (up, a, b))| {
        let strict = move |s: bool| match (up, s) {
            (true, true) => Relation::Lt,
            (true, false) => Relation::Le,
            (false, true) => Relation::Gt,
            (false, false) => Relation::Ge,
        };
        let width = o.symbol.width;
        let number = move || {
            integer(width).prop_map(|i| Constants {
                list: vec![Constant::Integer(Integer { mask: None, prefix: false, outside: 0, ..i })],
                braces: false,
            })
        };
        (number(), number()).prop_map(move |(low, high)| {
            let one = |relation, constants, mirrored| Comparison { operand: o.clone(), relation, constants, mirrored };
            Expr::Range(Box::new((one(strict(a).mirrored(), low, true), one(strict(b), high, false))))
        })
    })
}

fn expression() -> impl Strategy<Value = Expr> {
    let atom = prop_oneof![
        any::<bool>().prop_map(Expr::Literal),
        operand(BOOLEAN).prop_map(Expr::Field),
        name().prop_map(Expr::Resident),
        id().prop_map(Expr::Template),
    ];
    let leaf = prop_oneof![
        2 => atom.clone(),
        1 => atom.prop_map(|e| Expr::Not(Box::new(e))),
        4 => comparison().prop_map(Expr::Compare),
        1 => range(),
    ];
    // Nominal names may not be negated: ports are among the comparisons, so only what has none is.
    leaf.prop_recursive(4, 24, 4, |inner| {
        let list = prop::collection::vec(inner, 2..4);
        (list, any::<bool>()).prop_map(|(l, and)| {
            let inside = |e: Expr| match e {
                e @ (Expr::And(_) | Expr::Or(_)) => Expr::Parentheses(Box::new(e)),
                e => e,
            };
            let l: Vec<Expr> = l.into_iter().map(inside).collect();
            if and { Expr::And(l) } else { Expr::Or(l) }
        })
    })
}

fn address() -> impl Strategy<Value = std::net::IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|v| v.to_be_bytes().into()),
        any::<u128>().prop_map(|v| std::net::IpAddr::from(v.to_be_bytes())),
    ]
}

fn target() -> impl Strategy<Value = Option<Target>> {
    let ports = prop::option::of((1u16..65535, 0u16..1000).prop_map(|(lo, n)| (lo, lo.saturating_add(n))));
    prop::option::of((address(), ports).prop_map(|(ip, ports)| Target { ip, ports }))
}

fn balance() -> impl Strategy<Value = Action> {
    let flag = prop::option::of(select(vec![BalanceFlag::SkipSnat, BalanceFlag::ForceSnat]));
    (0u8..3, prop::option::of(0usize..4), prop::option::of(name()), flag, any::<bool>()).prop_flat_map(
        |(kind, n, hash_fields, flag, parentheses)| {
            let local = kind == 2;
            let backend = (name(), address(), prop::option::of(any::<u16>()), any::<bool>()).prop_map(
                move |(port_name, ip, port, brackets)| Backend {
                    port_name: local.then_some(port_name),
                    ip,
                    brackets: ip.is_ipv6() && (brackets || port.is_some()),
                    port,
                },
            );
            let backends = match n {
                None => Just(None).boxed(),
                Some(3) => id().prop_map(|s| Some(Backends::Template(s))).boxed(),
                Some(n) => prop::collection::vec(backend, n).prop_map(|l| Some(Backends::List(l))).boxed(),
            };
            backends.prop_map(move |backends| {
                let given = backends.is_some();
                Action::CtLb(Box::new(Balance {
                    mark: kind > 0,
                    local,
                    backends,
                    hash_fields: hash_fields.clone().filter(|_| given),
                    flag: flag.filter(|_| given),
                    parentheses: parentheses && !given,
                }))
            })
        },
    )
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        integer(128).prop_map(Value::Integer),
        name().prop_map(Value::String),
        "[a-z]{4}x".prop_map(Value::Word),
        id().prop_map(Value::Variable),
        id().prop_map(Value::Template),
        operand(WRITABLE).prop_map(Value::Field),
    ]
}

fn verdict() -> impl Strategy<Value = String> {
    select(vec!["allow", "drop", "reject", "pass"]).prop_map(str::to_string)
}

fn call() -> impl Strategy<Value = Call> {
    let plain = |function, result, arguments| Call { function, result, arguments, parentheses: true };
    let option = ("[a-z]{3}x", prop::collection::vec(value(), 1..3), any::<bool>())
        .prop_map(|(n, v, set)| if set || v.len() > 1 { Argument::Set(n, v) } else { Argument::Named(n, v) });
    let given = Argument::Named("offerip".into(), vec![Value::Integer(Integer::plain(7, Format::Ipv4))]);
    let options = prop::collection::vec(option, 0..4).boxed();
    let dhcp = options.clone().prop_map(move |mut l| {
        l.insert(0, given.clone());
        plain(Function::PutDhcpOpts, Some(field("flags.loopback")), l)
    });
    let sample = options.prop_map(move |l| plain(Function::Sample, None, l));
    let weighted = (any::<u16>(), prop::option::of(1u16..)).prop_map(|(id, w)| Argument::Weighted(id, w));
    let select = (prop::collection::vec(weighted, 2..4), prop::option::of(name())).prop_map(move |(mut l, hash)| {
        l.extend(hash.map(|h| Argument::Named("hash_fields".into(), vec![Value::String(h)])));
        plain(Function::Select, Some(field("tcp.dst")), l)
    });
    let look_up = Just(plain(
        Function::LookupArp,
        Some(field("flags.loopback")),
        vec![Argument::Field(field("inport")), Argument::Field(field("reg0")), Argument::Field(field("eth.src"))],
    ));
    let ports = prop::collection::vec(name().prop_map(Value::String), 1..4).prop_map(move |ports| {
        let live = Argument::Named("liveness".into(), vec![Value::Word("true".into())]);
        plain(Function::FwdGroup, None, vec![live, Argument::Named("childports".into(), ports)])
    });
    let log = (name(), verdict()).prop_map(move |(name, verdict)| {
        let l = [("name", Value::String(name)), ("verdict", Value::Word(verdict))];
        plain(Function::Log, None, l.into_iter().map(|(n, v)| Argument::Named(n.into(), vec![v])).collect())
    });
    let bare =
        any::<bool>().prop_map(move |parentheses| Call { parentheses, ..plain(Function::MacCacheUse, None, vec![]) });
    prop_oneof![dhcp, sample, select, look_up, ports, log, bare]
}

fn one_action() -> impl Strategy<Value = Action> {
    let zone = || select(vec![Zone::Dnat, Zone::Snat]);
    let pipeline = prop::option::of(select(vec![Pipeline::Ingress, Pipeline::Egress]));
    let next = (pipeline, prop::option::of(any::<u8>()), 0u8..3).prop_map(|(pipeline, table, form)| Action::Next {
        form: match form {
            0 if table.is_some() => NextForm::Positional,
            1 if table.is_some() && pipeline.is_some() => NextForm::TableFirst,
            _ => NextForm::Named,
        },
        pipeline: pipeline.filter(|_| form != 0 || table.is_none()),
        table,
    });
    let load = operand(WRITABLE).prop_flat_map(|o| {
        let width = o.symbol.width;
        (Just(o), integer(width)).prop_map(|(o, i)| Action::Load(o, i))
    });
    let commit = integer(32).prop_map(|i| Action::Load(field("ct_mark"), i));
    prop_oneof![
        select(vec![Action::Output, Action::DecTtl, Action::CtSnatToVip, Action::CtClear]),
        next,
        load,
        (operand(WRITABLE), id()).prop_map(|(o, s)| Action::LoadTemplate(o, s)),
        (operand(PORTS), name()).prop_map(|(o, s)| Action::LoadPort(o, s)),
        operand(WRITABLE).prop_map(|o| Action::Move(o.clone(), o)),
        operand(WRITABLE).prop_map(|o| Action::Exchange(o.clone(), o)),
        operand(WRITABLE).prop_map(Action::Push),
        operand(WRITABLE).prop_map(Action::Pop),
        prop::option::of(zone()).prop_map(Action::CtNext),
        prop::option::of(zone()).prop_map(Action::CtCommitNat),
        zone().prop_map(Action::CtCommitToZone),
        prop::option::of(prop::collection::vec(commit, 0..3)).prop_map(Action::CtCommit),
        (target(), any::<bool>()).prop_map(|(target, common)| Action::CtDnat { target, common }),
        (target(), any::<bool>()).prop_map(|(target, common)| Action::CtSnat { target, common }),
        balance(),
        call().prop_map(Action::Call),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let one = one_action().prop_recursive(3, 16, 4, |inner| {
        let list = prop::collection::vec(inner, 0..4);
        let made = select(vec![Made::Arp, Made::Icmp4Error, Made::TcpReset, Made::Reject, Made::NdNs]);
        (list, prop::option::of(made)).prop_map(|(l, made)| match made {
            Some(m) => Action::Make(m, if l.is_empty() { vec![Action::Drop] } else { l }),
            None => Action::Clone(l),
        })
    });
    prop_oneof![8 => prop::collection::vec(one, 0..5), 1 => Just(vec![Action::Drop])]
}

/// A text with other spaces between its tokens, and comments.
fn laid_out(text: &str, seeds: &[u8]) -> String {
    let mut c = logical_flow::lexer::Cursor::new(text);
    let mut out = String::new();
    let mut seeds = seeds.iter().copied().cycle();
    let mut gap = move |needed: bool| match seeds.next().unwrap_or(0) % 6 {
        0 if !needed => "",
        1 => "  ",
        2 => "\n\t",
        3 => " /* , */ ",
        4 => " // ;\n",
        _ => " ",
    };
    out.push_str(gap(false));
    while !c.at_end() {
        out.push_str(c.source());
        c.take();
        out.push_str(gap(true));
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn expressions_print_and_parse_back(e in expression(), seeds in prop::collection::vec(any::<u8>(), 1..20)) {
        let text = e.to_string();
        prop_assert_eq!(expr::parse(&text).map_err(|e| format!("{text}: {e}")), Ok(e.clone()));
        let text = laid_out(&text, &seeds);
        let w = written::expression(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(w.to_string(), text);
        prop_assert_eq!(w.tree, e);
    }

    #[test]
    fn actions_print_and_parse_back(list in actions(), seeds in prop::collection::vec(any::<u8>(), 1..20)) {
        let tree = Actions { list, prerequisites: Vec::new() };
        let text = tree.to_string();
        let parsed = action::parse(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(&parsed.list, &tree.list);
        let text = laid_out(&text, &seeds);
        let w = written::actions(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(w.to_string(), text);
        prop_assert_eq!(w.tree, parsed);
    }
}

#[test]
fn layout_and_spelling_are_kept() {
    for text in [
        "ip4.src=={10.0.0.1 10.0.0.2,}",
        " eth.src == AA:bb:cc:dd:ee:FF ",
        "ip6.src == fe80:0:0::1/64 || ip6.src == 2001:DB8::0001",
        "reg0 == 0X0a && (reg1[3..7] == 1) ",
        "(ip4.src == 42.42.42.42 && ^CONDITION)",
        "0 < reg0 && !(inport != \"a\\u0041\") && ip.first_frag != 0",
        "ip4 == 0x1 && ^vip == reg1 && {^a, ^b} != ip4.dst",
        "!reg0 || 1<=tcp.src <=  5",
        "ip4[0..0]&&ip.proto[0..7] == 6",
    ] {
        match written::expression(text) {
            Ok(w) => assert_eq!(w.to_string(), text),
            Err(e) => panic!("{text}: {e}"),
        }
    }
    for text in [
        "ct_lb_mark(backends=^vip_backends);next ;",
        "clone {drop ;}; // end",
        "reg0[0] = put_dhcp_opts(offerip = 1.2.3.4 router={1.1.1.1 ,2.2.2.2,}, );",
        "ct_snat(10.0.0.1, 1 - 65535); ct_dnat(fe80:0::1,80);",
        "next( table = 3,pipeline=egress); next(7); next(pipeline=ingress);",
        "sample(probability=65535,collector_set=1,obs_domain=2,obs_point=ct_label[96..127]);",
        "",
        "  ",
        "/* nothing */",
    ] {
        let w = written::actions(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(w.to_string(), text);
    }
    // Text that has northd's layout is what the tree alone prints.
    let text = "reg0 = 0; ct_lb_mark(backends=10.0.0.1:80,[fd00::1]:80; skip_snat); next(pipeline=ingress, table=3);";
    assert_eq!(action::parse(text).unwrap().to_string(), text);
    let text = "ip4.src == {1.1.1.1, 2.2.2.0/24} && !ct.est";
    assert_eq!(expr::parse(text).unwrap().to_string(), text);
}
