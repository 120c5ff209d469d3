#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::{Event, Snapshot};

/// Two cards of a host, in switchdev and in legacy mode; the card of a DPU, which serves its own host; one that devlink knows no ports of.
const MACHINE: &str = r#"{
  "devices": [{"name": "pci/0000:03:00.0", "mode": "switchdev"}, {"name": "pci/0000:04:00.0", "mode": "legacy"},
              {"name": "pci/0000:05:00.0", "mode": "switchdev"}],
  "ports": [
    {"device": "pci/0000:03:00.0", "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 2},
    {"device": "pci/0000:03:00.0", "index": 1, "function": {"vf": {"pf": 0, "vf": 0}}, "ifindex": 3},
    {"device": "pci/0000:03:00.0", "index": 2, "function": {"vf": {"pf": 0, "vf": 1}}},
    {"device": "pci/0000:03:00.0", "index": 3, "function": {"sf": {"pf": 0, "sf": 88}}, "ifindex": 4},
    {"device": "pci/0000:04:00.0", "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 5},
    {"device": "pci/0000:05:00.0", "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 6},
    {"device": "pci/0000:05:00.0", "index": 1, "function": {"pf": {"controller": 1, "pf": 0}}, "ifindex": 7, "address": "00:53:00:00:00:07"},
    {"device": "pci/0000:05:00.0", "index": 2, "function": {"pf": {"controller": 2, "pf": 0}}, "ifindex": 8, "address": "00:53:00:00:00:08"},
    {"device": "pci/0000:05:00.0", "index": 3, "function": {"vf": {"controller": 1, "pf": 0, "vf": 0}}, "ifindex": 9},
    {"device": "pci/0000:05:00.0", "index": 4, "function": {"vf": {"controller": 2, "pf": 0, "vf": 0}}, "ifindex": 10}
  ],
  "links": [
    {"ifindex": 2, "name": "p0", "address": "02:00:00:00:00:02", "permanent": "00:53:00:00:00:02"},
    {"ifindex": 3, "name": "pf0vf0"}, {"ifindex": 4, "name": "pf0sf88"},
    {"ifindex": 5, "name": "p1", "address": "00:53:00:00:00:05"},
    {"ifindex": 6, "name": "p2", "address": "00:53:00:00:00:06"},
    {"ifindex": 7, "name": "c1pf0hpf"}, {"ifindex": 8, "name": "c2pf0hpf"}, {"ifindex": 9, "name": "c1vf0"}, {"ifindex": 10, "name": "c2vf0"},
    {"ifindex": 11, "name": "enp6s0", "port_name": "p0", "switch_id": "ab", "parent": "pci/0000:06:00.0", "address": "00:53:00:00:00:11"},
    {"ifindex": 12, "name": "enp6s0_0", "port_name": "pf0vf0", "switch_id": "ab", "parent": "pci/0000:06:00.0"}
  ]
}"#;

fn machine() -> Inventory {
    let mut i = Inventory::default();
    i.apply(Event::Dump(serde_json::from_str::<Snapshot>(MACHINE).unwrap()));
    i
}

fn find(options: &[(&str, &str)]) -> Result<String, String> {
    let get = |key: &str| options.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let w = Wanted::parse(get).map_err(|e| e.to_string())?;
    machine().find(&w).map(str::to_string).map_err(|e| e.to_string())
}

#[test]
fn functions_of_a_host_and_of_a_dpu() {
    let cases: [(&[(&str, &str)], &str); 9] = [
        (&[("pf-mac", "00:53:00:00:00:02"), ("vf-num", "0")], "pf0vf0"),
        (&[("pf-mac", "00:53:00:00:00:02"), ("sf-num", "88")], "pf0sf88"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "0")], "pf0vf0"),
        (&[("pf-pci", "pci/0000:03:00.0"), ("vf-num", "0"), ("pf-num", "0")], "pf0vf0"),
        (&[("pf-mac", "00:53:00:00:00:07"), ("vf-num", "0")], "c1vf0"),
        (&[("pf-mac", "00:53:00:00:00:08"), ("vf-num", "0")], "c2vf0"),
        (&[("pf-mac", "00:53:00:00:00:07")], "c1pf0hpf"),
        (&[("pf-pci", "0000:05:00.0"), ("controller", "2"), ("vf-num", "0")], "c2vf0"),
        (&[("pf-mac", "00:53:00:00:00:11"), ("vf-num", "0")], "enp6s0_0"),
    ];
    for (options, name) in cases {
        assert_eq!(find(options), Ok(name.to_string()), "{options:?}");
    }
}

#[test]
fn what_is_wrong_and_what_mends_it() {
    let cases: [(&[(&str, &str)], &str); 13] = [
        (&[], "pf-mac or …:pf-pci"),
        (&[("pf-mac", "x")], "\"x\" is no Ethernet address"),
        (&[("pf-mac", "00:53:00:00:00:02"), ("pf-pci", "y")], "take one of them out"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "abc")], "vf-num \"abc\" is no number"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "3x")], "vf-num \"3x\" is no number"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "")], "vf-num \"\" is no number"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "99999999999")], "no number of a function"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "1"), ("sf-num", "1")], "take one of them out"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "7")], "has no VF 7: it has 2"),
        (&[("pf-pci", "0000:03:00.0"), ("vf-num", "1")], "pf0vf1 of pci/0000:03:00.0 has no network device"),
        (&[("pf-pci", "0000:04:00.0"), ("vf-num", "0")], "devlink dev eswitch set pci/0000:04:00.0 mode switchdev"),
        (&[("pf-mac", "00:53:00:00:00:99"), ("vf-num", "0")], "pci/0000:03:00.0 with 00:53:00:00:00:02"),
        (
            &[("pf-pci", "0000:05:00.0"), ("vf-num", "0")],
            "several PFs: say which by options:vif-plug:representor:controller",
        ),
    ];
    for (options, text) in cases {
        let e = find(options).unwrap_err();
        assert!(e.contains(text), "{options:?}: {e}");
    }
    let none = Wanted { owner: Owner::Pci("x".into()), pf: None, controller: None, which: Which::Pf };
    assert_eq!(Inventory::default().find(&none), Err(Missing::Unread));
}

proptest::proptest! {
    /// Whatever the options of a port hold: a number is what its digits say, everything else is refused by its name.
    #[test]
    fn any_text(values in proptest::collection::vec(proptest::option::of("[0-9]{1,12}|.{0,12}|[0-9a-f]{2}(:[0-9a-f]{2}){5}"), 6)) {
        let keys = ["pf-mac", "pf-pci", "controller", "pf-num", "vf-num", "sf-num"];
        let get = |key: &str| keys.iter().position(|k| *k == key).and_then(|n| values[n].as_deref());
        let digits = |key: &str| get(key).map(|t| t.parse::<u32>().ok().filter(|_| t.bytes().all(|b| b.is_ascii_digit())));
        match Wanted::parse(get) {
            Ok(w) => {
                let (vf, sf) = match w.which {
                    Which::Vf(n) => (Some(n), None),
                    Which::Sf(n) => (None, Some(n)),
                    Which::Pf => (None, None),
                };
                for (key, read) in [("controller", w.controller), ("pf-num", w.pf), ("vf-num", vf), ("sf-num", sf)] {
                    proptest::prop_assert_eq!(digits(key), read.map(Some), "{}", key);
                }
                // No text makes a card that is not there.
                proptest::prop_assert!(machine().find(&w).is_err() || get("pf-mac").or(get("pf-pci")).is_some());
            }
            Err(Missing::Options(why)) => proptest::prop_assert!(why.contains("vif-plug:representor:"), "{}", why),
            Err(e) => proptest::prop_assert!(false, "{}", e),
        }
    }
}
