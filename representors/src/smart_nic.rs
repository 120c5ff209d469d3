//! The addresses of a host's PFs where a DPU's driver does not tell devlink: older drivers of mlx5 have them in files beside the network
//! device of the wire, `smart_nic/pf/config`. The PF behind port 1 of the wire is PF 1.

use crate::Function;
use crate::inventory::{Event, Inventory, Port};
use packet::Mac;
use std::path::Path;

/// Where the kernel describes its network devices.
pub const SYSFS: &str = "/sys/class/net";

/// What such files say of PFs whose addresses nobody knows. The files are below `sysfs`.
pub fn addresses(inventory: &Inventory, sysfs: &Path) -> Vec<Event> {
    let ports: Vec<&Port> = inventory.ports().collect();
    let unknown = ports.iter().filter(|p| p.address.is_none());
    unknown
        .filter_map(|p| {
            let Function::Pf { pf, .. } = p.function else { return None };
            let wire = |w: &&&Port| w.device == p.device && w.function == Function::Physical { port: pf };
            let link = inventory.link(ports.iter().find(wire)?.ifindex?)?;
            let text = std::fs::read_to_string(sysfs.join(&link.name).join("smart_nic/pf/config")).ok()?;
            Some(Event::Port(Port { address: Some(address(&text)?), ..(*p).clone() }))
        })
        .collect()
}

/// The address in such a file, of lines `KEY : VALUE`; one of zeros is none.
fn address(text: &str) -> Option<Mac> {
    let mut lines = text.lines().filter_map(|l| l.split_once(':'));
    let (_, value) = lines.find(|(key, _)| key.trim() == "MAC")?;
    value.trim().parse().ok().filter(|m| *m != Mac([0; 6]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{Snapshot, Wanted};

    /// A DPU of two wires, each with a host's PF and a VF of that; devlink knows the address of the second PF alone.
    const CARD: &str = r#"{
      "devices": [{"name": "pci/0000:03:00.0", "mode": "switchdev"}],
      "ports": [
        {"device": "pci/0000:03:00.0", "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 2},
        {"device": "pci/0000:03:00.0", "index": 1, "function": {"physical": {"port": 1}}, "ifindex": 3},
        {"device": "pci/0000:03:00.0", "index": 2, "function": {"pf": {"controller": 1, "pf": 0}}, "ifindex": 4},
        {"device": "pci/0000:03:00.0", "index": 3, "function": {"pf": {"controller": 1, "pf": 1}}, "ifindex": 5, "address": "00:53:00:00:00:43"},
        {"device": "pci/0000:03:00.0", "index": 4, "function": {"vf": {"controller": 1, "pf": 0, "vf": 0}}, "ifindex": 6}],
      "links": [{"ifindex": 2, "name": "p0", "address": "00:53:00:00:00:01"}, {"ifindex": 3, "name": "p1"},
        {"ifindex": 4, "name": "pf0hpf"}, {"ifindex": 5, "name": "pf1hpf"}, {"ifindex": 6, "name": "pf0vf0"}]}"#;

    fn card() -> Inventory {
        let mut i = Inventory::default();
        i.apply(Event::Dump(serde_json::from_str::<Snapshot>(CARD).unwrap()));
        i
    }

    fn find(i: &Inventory, mac: &str, vf: Option<&str>) -> Option<String> {
        let get = |key: &str| match key {
            "pf-mac" => Some(mac),
            "vf-num" => vf,
            _ => None,
        };
        i.find(&Wanted::parse(get).unwrap()).ok().map(str::to_string)
    }

    #[test]
    fn a_pf_has_the_address_of_the_file_beside_its_wire() {
        let dir = tempfile::tempdir().unwrap();
        let write = |wire: &str, text: &str| {
            let at = dir.path().join(wire).join("smart_nic/pf");
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("config"), text).unwrap();
        };
        let mut i = card();
        assert_eq!(addresses(&i, dir.path()), [], "no file");
        write("p0", "MAC        : 00:53:00:00:00:42\nMaxTxRate  : 0\nState      : Follow\n\n");
        write("p1", "MAC        : 00:53:00:00:00:99\n");
        assert_eq!(find(&i, "00:53:00:00:00:42", Some("0")), None, "before");
        let told = addresses(&i, dir.path());
        assert_eq!(told.len(), 1, "what devlink says counts: {told:?}");
        told.into_iter().for_each(|e| assert!(i.apply(e)));
        assert_eq!(find(&i, "00:53:00:00:00:42", Some("0")).as_deref(), Some("pf0vf0"));
        assert_eq!(find(&i, "00:53:00:00:00:42", None).as_deref(), Some("pf0hpf"));
        assert_eq!(find(&i, "00:53:00:00:00:43", None).as_deref(), Some("pf1hpf"));
        assert_eq!(addresses(&i, dir.path()), [], "nothing is unknown any more");
    }

    #[test]
    fn what_is_no_address() {
        for text in
            ["", "MAC", "MAC :", "MAC : x", "MAC : 00:00:00:00:00:00", "State : MAC\n", "XMAC : 00:53:00:00:00:42"]
        {
            assert_eq!(address(text), None, "{text:?}");
        }
        assert_eq!(address("A : B\nMAC: 00:53:00:00:00:42"), Some(Mac([0, 0x53, 0, 0, 0, 0x42])));
    }
}
