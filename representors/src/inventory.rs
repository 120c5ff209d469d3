//! What there is, kept as events come.

use crate::select::Index;
use crate::{DeviceName, Function};
use packet::Mac;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Ethernet addresses as text.
mod address {
    use packet::Mac;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(mac: &Option<Mac>, s: S) -> Result<S::Ok, S::Error> {
        mac.map(|m| m.to_string()).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Mac>, D::Error> {
        let text: Option<String> = Option::deserialize(d)?;
        text.map(|t| t.parse().map_err(D::Error::custom)).transpose()
    }
}

/// How a card's embedded switch is set (devlink-dev(8), `eswitch mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The card forwards by addresses; there are no representors.
    Legacy,
    /// The host decides how the card forwards: each function has a representor.
    Switchdev,
}

/// A card, or a part of it that its driver has as a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: DeviceName,
    /// Its embedded switch; none where it has none.
    #[serde(default)]
    pub mode: Option<Mode>,
}

/// A port of an embedded switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The device that has it.
    pub device: DeviceName,
    /// Its number there.
    pub index: u32,
    /// What it leads to.
    pub function: Function,
    /// The network device that represents it; none while there is none.
    #[serde(default)]
    pub ifindex: Option<u32>,
    /// The address of the function behind it, where the driver says it.
    #[serde(default, with = "address")]
    pub address: Option<Mac>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number.
    pub ifindex: u32,
    /// Its name now.
    pub name: String,
    /// Its address.
    #[serde(default, with = "address")]
    pub address: Option<Mac>,
    /// The address that it was made with.
    #[serde(default, with = "address")]
    pub permanent: Option<Mac>,
    /// Which port of the embedded switch it is (`phys_port_name`).
    #[serde(default)]
    pub port_name: Option<String>,
    /// Whose switch's port it is.
    #[serde(default)]
    pub switch_id: Option<String>,
    /// The device behind it.
    #[serde(default)]
    pub parent: Option<DeviceName>,
}

/// All that there is at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Cards.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Ports.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Network devices.
    #[serde(default)]
    pub links: Vec<Link>,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device is there, or another.
    Device(Device),
    /// It is gone, with its ports.
    DeviceGone(DeviceName),
    /// A port is there, or another.
    Port(Port),
    /// A port is gone.
    PortGone(DeviceName, u32),
    /// A network device is there, or another.
    Link(Link),
    /// It is gone.
    LinkGone(u32),
    /// Events were lost.
    Overflow,
    /// All that there is.
    Dump(Snapshot),
}

/// The representor of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representor<'a> {
    /// Whose it is.
    pub device: &'a DeviceName,
    /// The function.
    pub function: Function,
    /// The network device; none while there is none.
    pub link: Option<&'a Link>,
    /// The function's address, where the driver says it.
    pub address: Option<Mac>,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    devices: BTreeMap<DeviceName, Option<Mode>>,
    ports: BTreeMap<(DeviceName, u32), Port>,
    links: BTreeMap<u32, Link>,
    /// It is to be read anew: something was lost, or there is something that cannot be.
    stale: bool,
    /// It was read once.
    known: bool,
    version: u64,
    index: OnceLock<Index>,
}

impl Inventory {
    /// Takes over an event. Whether anything is different now.
    pub fn apply(&mut self, event: Event) -> bool {
        let changed = match event {
            Event::Device(d) => self.devices.insert(d.name, d.mode) != Some(d.mode),
            Event::DeviceGone(name) => {
                let before = self.ports.len();
                self.ports.retain(|(d, _), _| *d != name);
                self.devices.remove(&name).is_some() || self.ports.len() != before
            }
            Event::Port(p) => {
                // A port of a device that nobody told of: its telling was lost.
                self.stale |= self.known && !self.devices.contains_key(&p.device);
                let key = (p.device.clone(), p.index);
                self.ports.get(&key) != Some(&p) && {
                    self.ports.insert(key, p);
                    true
                }
            }
            Event::PortGone(device, index) => self.ports.remove(&(device, index)).is_some(),
            Event::Link(l) => {
                self.links.get(&l.ifindex) != Some(&l) && {
                    self.links.insert(l.ifindex, l);
                    true
                }
            }
            Event::LinkGone(ifindex) => self.links.remove(&ifindex).is_some(),
            Event::Overflow => {
                self.stale = true;
                false
            }
            Event::Dump(s) => {
                let new = Inventory::from(s);
                let differs = (&self.devices, &self.ports, &self.links) != (&new.devices, &new.ports, &new.links);
                let first = !self.known;
                *self = Inventory { version: self.version, ..new };
                differs || first
            }
        };
        if changed {
            self.version += 1;
            self.index.take();
        }
        changed
    }

    /// What is looked up.
    pub(crate) fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(self))
    }

    /// Whether it has to be read anew.
    pub fn is_stale(&self) -> bool {
        self.stale || !self.known
    }

    /// Whether it was read.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Another number each time that something changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The devices and how their embedded switches are set.
    pub fn devices(&self) -> impl Iterator<Item = (&DeviceName, Option<Mode>)> {
        self.devices.iter().map(|(d, m)| (d, *m))
    }

    /// A network device.
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// The network devices.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// The ports that devlink knows.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.values()
    }

    /// The ports of all embedded switches. Those of drivers that devlink knows no ports of come from the names of network devices.
    pub fn representors(&self) -> impl Iterator<Item = Representor<'_>> {
        let ports = self.ports.values().map(|p| Representor {
            device: &p.device,
            function: p.function,
            link: p.ifindex.and_then(|i| self.links.get(&i)),
            address: p.address,
        });
        let known: std::collections::BTreeSet<u32> = self.ports.values().filter_map(|p| p.ifindex).collect();
        let with_ports: std::collections::BTreeSet<&DeviceName> = self.ports.keys().map(|(d, _)| d).collect();
        let named = self.links.values().filter_map(move |l| {
            let device = l.parent.as_ref().filter(|d| !known.contains(&l.ifindex) && !with_ports.contains(d))?;
            l.switch_id.as_ref()?;
            let function = Function::from_name(l.port_name.as_deref()?)?;
            Some(Representor { device, function, link: Some(l), address: None })
        });
        ports.chain(named)
    }

    /// All that there is.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            devices: self.devices.iter().map(|(n, m)| Device { name: n.clone(), mode: *m }).collect(),
            ports: self.ports.values().cloned().collect(),
            links: self.links.values().cloned().collect(),
        }
    }
}

impl From<Snapshot> for Inventory {
    fn from(s: Snapshot) -> Inventory {
        Inventory {
            devices: s.devices.into_iter().map(|d| (d.name, d.mode)).collect(),
            ports: s.ports.into_iter().map(|p| ((p.device.clone(), p.index), p)).collect(),
            links: s.links.into_iter().map(|l| (l.ifindex, l)).collect(),
            stale: false,
            known: true,
            version: 0,
            index: OnceLock::new(),
        }
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
