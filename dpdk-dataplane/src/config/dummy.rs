//! Dummy devices: network devices of this process alone, for test beds (`--enable-dummy`).

use super::get;
use ovn_schema::{Map, Str, ovs};

/// Which interfaces are dummies (`--enable-dummy`), beside those that their rows call so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DummyMode {
    /// None: type `dummy` is unknown.
    #[default]
    Off,
    /// Those of types `dummy` and `dummy-pmd`, and internal ports of bridges whose datapath is `dummy`.
    On,
    /// Interfaces of type `system`, and bridges of that datapath, as well: without a type they are of that one.
    System,
    /// All but patch ports and tunnels.
    Override,
}

impl std::str::FromStr for DummyMode {
    type Err = String;

    fn from_str(text: &str) -> Result<DummyMode, String> {
        match text {
            "" => Ok(DummyMode::On),
            "system" => Ok(DummyMode::System),
            "override" => Ok(DummyMode::Override),
            _ => Err(format!("{text}: expected system or override")),
        }
    }
}

impl DummyMode {
    /// Whether the machine's own devices are out of reach, so that the kernel's routes lead nowhere.
    pub fn replaces_the_machine(self) -> bool {
        matches!(self, DummyMode::System | DummyMode::Override)
    }

    /// Whether there are dummy devices at all.
    pub fn is_on(self) -> bool {
        self != DummyMode::Off
    }

    /// The datapath's type and name; none: it is no dummy's.
    pub fn datapath(self) -> Option<&'static str> {
        match self {
            DummyMode::Off => None,
            DummyMode::On | DummyMode::Override => Some("dummy@ovs-dummy"),
            DummyMode::System => Some("system@ovs-system"),
        }
    }

    /// Whether an interface of this type is a dummy.
    pub(super) fn covers(self, kind: &str) -> bool {
        match kind {
            "dummy" | "dummy-pmd" => self.is_on(),
            "" | "system" => matches!(self, DummyMode::System | DummyMode::Override),
            "internal" | "patch" | "geneve" | "vxlan" | "gre" | "ip6gre" | "erspan" | "ip6erspan" | "gtpu" | "srv6" => {
                false
            }
            _ => self == DummyMode::Override,
        }
    }

    /// Whether internal ports of a bridge of this datapath are dummies.
    pub(super) fn covers_datapath(self, datapath: &str) -> bool {
        match datapath {
            "dummy" => self.is_on(),
            "" | "system" => matches!(self, DummyMode::System | DummyMode::Override),
            _ => self == DummyMode::Override,
        }
    }
}

/// Options of a dummy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DummyOptions {
    /// The file to which received frames are appended (`rxq_pcap`, or `pcap` for both directions).
    pub received: Option<String>,
    /// The file to which sent frames are appended (`tx_pcap`).
    pub sent: Option<String>,
    /// The other end of its wire: a connection method that is connected to (`stream`), or listened on (`pstream`).
    pub wire: Option<String>,
    /// `ifindex`.
    pub ifindex: Option<u32>,
    /// Its type is `dummy-pmd`: only the name differs.
    pub pmd: bool,
}

pub(super) fn options(i: &ovs::Interface) -> DummyOptions {
    let option = |key: &str| get(&i.options, key).filter(|v| !v.is_empty()).map(String::from);
    let both = option("pcap");
    let wires = [option("stream"), option("pstream")];
    let wire = match wires {
        [Some(_), Some(_)] => None,
        [stream, listening] => stream.or(listening),
    };
    DummyOptions {
        received: both.clone().or_else(|| option("rxq_pcap")),
        sent: both.or_else(|| option("tx_pcap")),
        wire,
        ifindex: option("ifindex").and_then(|n| n.parse().ok()),
        pmd: &*i.r#type == "dummy-pmd",
    }
}

/// Why a part of the options has no effect.
pub(super) fn without_effect(options: &Map<Str, Str>) -> Option<String> {
    let (stream, listening) = (get(options, "stream")?, get(options, "pstream")?);
    Some(format!("Open failed: both {listening} and {stream} are configured"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_say_which_devices_are_dummies() {
        let types = ["dummy", "", "system", "tap", "dpdk", "geneve", "patch"];
        let covered = |m: DummyMode| types.map(|t| m.covers(t));
        assert_eq!(covered(DummyMode::Off), [false; 7]);
        assert_eq!(covered(DummyMode::On), [true, false, false, false, false, false, false]);
        assert_eq!(covered(DummyMode::System), [true, true, true, false, false, false, false]);
        assert_eq!(covered(DummyMode::Override), [true, true, true, true, true, false, false]);
        let datapaths = |m: DummyMode| ["dummy", "", "netdev"].map(|d| m.covers_datapath(d));
        assert_eq!(datapaths(DummyMode::Off), [false; 3]);
        assert_eq!(datapaths(DummyMode::On), [true, false, false]);
        assert_eq!(datapaths(DummyMode::System), [true, true, false]);
        assert_eq!(datapaths(DummyMode::Override), [true; 3]);
        assert_eq!("system".parse(), Ok(DummyMode::System));
        assert!("yes".parse::<DummyMode>().is_err());
    }
}
