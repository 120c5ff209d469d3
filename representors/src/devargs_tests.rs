#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::Event;

fn read(text: &str) -> Result<Devargs, Malformed> {
    Devargs::parse(text)
}

fn function_of(text: &str) -> (Option<u32>, Option<u32>, Which) {
    let w = read(&format!("0000:03:00.0,representor={text},dv_flow_en=1")).unwrap().wanted.unwrap();
    assert_eq!(w.owner, Owner::Pci("0000:03:00.0".into()));
    (w.controller, w.pf, w.which)
}

#[test]
fn one_representor_in_all_of_dpdks_words() {
    for text in ["1", "[1]", "vf1", "vf[1]", "[1-1]"] {
        assert_eq!(function_of(text), (None, None, Which::Vf(1)), "{text}");
    }
    assert_eq!(function_of("pf0vf1"), (None, Some(0), Which::Vf(1)));
    assert_eq!(function_of("pf[1]vf[12]"), (None, Some(1), Which::Vf(12)));
    assert_eq!(function_of("c1pf0sf88"), (Some(1), Some(0), Which::Sf(88)));
    assert_eq!(function_of("sf[3]"), (None, None, Which::Sf(3)));
    assert_eq!(function_of("pf1"), (None, Some(1), Which::Pf));
    assert_eq!(read("03:00.0,representor=1").unwrap().pci().unwrap(), "0000:03:00.0");
    assert_eq!(read("net_null0,no-rx=1").unwrap().pci(), None);
    assert_eq!(read("class=eth,mac=00:53:00:00:00:01").unwrap().pci(), None);
    assert_eq!(read("net_tap0,iface=t,mac=fixed").unwrap().argument("iface"), Some("t"));
}

#[test]
fn what_is_no_single_representor() {
    for text in ["[0,1]", "[0-3]", "vf[0-1]", "pf[0-1]vf0", "sf[1,2]"] {
        let e = read(&format!("0000:03:00.0,representor={text}")).unwrap_err();
        assert_eq!(e, Malformed::Several(text.into()));
    }
    for text in ["", "[", "[]", "vf", "vfx", "1x", "[-1]", "+1", "pf0vf1sf2", "c1", "c1vf", "vf99999999999", "é"] {
        let e = read(&format!("0000:03:00.0,representor={text}")).unwrap_err();
        assert!(matches!(e, Malformed::Function(_)), "{text}: {e}");
    }
    assert_eq!(read("0000:03:00.0,representor=1,representor=2"), Err(Malformed::Twice));
}

#[test]
fn the_same_device_by_other_words() {
    let same = |a: &str, b: &str| read(a).unwrap().is_same_device(&read(b).unwrap());
    assert!(same("0000:03:00.0,representor=[1]", "03:00.0,representor=pf0vf1,dv_flow_en=1"));
    assert!(same("0000:03:00.1,representor=1", "0000:03:00.1,representor=c0pf1vf1"));
    assert!(same("0000:03:00.0", "0000:03:00.0,dv_flow_en=1"));
    assert!(!same("0000:03:00.0", "0000:03:00.0,representor=0"));
    assert!(!same("0000:03:00.0,representor=vf1", "0000:03:00.0,representor=sf1"));
    assert!(!same("0000:03:00.0,representor=vf1", "0000:03:00.1,representor=vf1"));
}

#[test]
fn the_device_of_a_network_device() {
    let card = r#"{
      "devices": [{"name": "pci/0000:03:00.0", "mode": "switchdev"}, {"name": "pci/0000:04:00.0", "mode": "legacy"},
                  {"name": "netdevsim/netdevsim1", "mode": "switchdev"}],
      "ports": [
        {"device": "pci/0000:03:00.0", "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 2},
        {"device": "pci/0000:03:00.0", "index": 1, "function": {"vf": {"pf": 0, "vf": 3}}, "ifindex": 3},
        {"device": "pci/0000:03:00.0", "index": 2, "function": {"sf": {"pf": 0, "sf": 88}}, "ifindex": 4},
        {"device": "pci/0000:03:00.0", "index": 3, "function": {"vf": {"controller": 1, "pf": 0, "vf": 0}}, "ifindex": 5},
        {"device": "netdevsim/netdevsim1", "index": 1, "function": {"vf": {"pf": 0, "vf": 0}}, "ifindex": 6}
      ],
      "links": [{"ifindex": 2, "name": "p0"}, {"ifindex": 3, "name": "vf3"}, {"ifindex": 4, "name": "sf88"},
                {"ifindex": 5, "name": "host"}, {"ifindex": 6, "name": "sim"}, {"ifindex": 7, "name": "dummy"},
                {"ifindex": 8, "name": "plain", "parent": "pci/0000:05:00.0"}]
    }"#;
    let mut all = Inventory::default();
    all.apply(Event::Dump(serde_json::from_str(card).unwrap()));
    for (link, text) in [
        ("p0", "0000:03:00.0"),
        ("vf3", "0000:03:00.0,representor=[3]"),
        ("sf88", "0000:03:00.0,representor=sf88"),
        ("host", "0000:03:00.0,representor=c1pf0vf0"),
        ("plain", "0000:05:00.0"),
    ] {
        let found = all.devargs(link).unwrap();
        assert_eq!(found.to_string(), text);
        assert!(found.is_same_device(&read(text).unwrap()), "{text}");
        assert_eq!(all.check(&found), Ok(()));
    }
    for (link, why) in
        [("none", "no network device"), ("dummy", "no PCI device"), ("sim", "pf0vf0 of netdevsim/netdevsim1")]
    {
        let e = all.devargs(link).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
    }
    let check = |text: &str| all.check(&read(text).unwrap()).map_err(|e| e.to_string());
    assert!(check("0000:03:00.0,representor=77").unwrap_err().contains("no VF 77"));
    assert!(check("0000:04:00.0,representor=0").unwrap_err().contains("legacy mode"));
    // Of a card that another driver has the kernel knows nothing.
    assert_eq!(check("0000:06:00.0,representor=0"), Ok(()));
}

proptest::proptest! {
    /// Whatever a row holds is read or refused, and what is read names one function.
    #[test]
    fn any_text(text in "[0-9a-f:.,]{0,14}(,representor=[cpvsf0-9,\\[\\]-]{0,12}){0,2}[^\u{0}]{0,6}") {
        if let Ok(d) = read(&text) {
            proptest::prop_assert_eq!(d.to_string(), text);
            proptest::prop_assert!(d.is_same_device(&d));
        }
    }

    /// The same of text that is nothing like a device; what it asks for is refused by a card that it is not of.
    #[test]
    fn any_text_at_all(device in ".{0,20}", function in ".{0,20}", more in "(,.{0,10})?") {
        for text in [format!("{device}{more}"), format!("{device},representor={function}{more}")] {
            let Ok(d) = read(&text) else { continue };
            proptest::prop_assert_eq!(d.to_string(), text);
            proptest::prop_assert!(d.is_same_device(&d));
            let (name, arguments) = d.name_and_arguments();
            proptest::prop_assert!(name.len() + arguments.len() <= device.len() + function.len() + more.len() + 14);
            let _ = (d.pci(), d.argument("representor"), Inventory::default().check(&d));
        }
    }
}
