//! The network cards of a machine as their drivers' embedded switches show them: physical ports, physical functions (PF), virtual
//! functions (VF), subfunctions (SF), and the network devices that represent them on this machine's side (devlink-port(7)).
//!
//! ```text
//!   kernel ─┐
//!   file   ─┼─ Event ──► Inventory ──► find(Function of a PF) ──► the representor's network device, or why there is none
//!   script ─┘
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`inventory`] | what there is, kept as events come; no I/O |
//! | [`select`] | which function is asked for, and its representor |
//! | [`devargs`] | devices as DPDK names them |
//! | [`netlink`] | messages of devlink and rtnetlink; no I/O |
//! | [`kernel`] | follows the kernel |
//! | [`smart_nic`] | addresses of PFs that devlink does not know |
//! | [`recorded`] | an inventory in a file |

pub mod devargs;
pub mod inventory;
pub mod kernel;
pub mod netlink;
pub mod recorded;
pub mod select;
pub mod smart_nic;

pub use inventory::{Event, Inventory, Snapshot};
pub use select::{Owner, Wanted, Which};

use serde::{Deserialize, Serialize};
use std::fmt;
use tokio::sync::watch;

/// A device of a bus, as devlink names it: `pci/0000:03:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceName {
    /// The bus: `pci`, `auxiliary`, `netdevsim`.
    pub bus: String,
    /// The device on it; of `pci` its address.
    pub name: String,
}

impl DeviceName {
    /// Whether people call it so: with or without its bus.
    fn is_called(&self, text: &str) -> bool {
        let own = text.strip_prefix(&*self.bus).and_then(|t| t.strip_prefix('/')).unwrap_or(text);
        own == self.name
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bus, self.name)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = String;

    fn try_from(text: String) -> Result<DeviceName, String> {
        let (bus, name) = text.split_once('/').ok_or_else(|| format!("{text:?} is no device: BUS/NAME is"))?;
        Ok(DeviceName { bus: bus.into(), name: name.into() })
    }
}

impl From<DeviceName> for String {
    fn from(d: DeviceName) -> String {
        d.to_string()
    }
}

/// What a port of the embedded switch leads to. Functions of another host have a controller's number above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// The wire.
    Physical {
        /// Which port.
        port: u32,
    },
    /// A physical function.
    Pf {
        /// Of which host.
        #[serde(default)]
        controller: u32,
        /// Its number.
        pf: u32,
    },
    /// A virtual function.
    Vf {
        /// Of which host.
        #[serde(default)]
        controller: u32,
        /// Of which physical function.
        pf: u32,
        /// Its number.
        vf: u32,
    },
    /// A subfunction.
    Sf {
        /// Of which host.
        #[serde(default)]
        controller: u32,
        /// Of which physical function.
        pf: u32,
        /// Its number.
        sf: u32,
    },
}

impl Function {
    /// The number of the host whose function it is, and that of its PF; none for the wire.
    pub fn owner(&self) -> Option<(u32, u32)> {
        match *self {
            Function::Physical { .. } => None,
            Function::Pf { controller, pf }
            | Function::Vf { controller, pf, .. }
            | Function::Sf { controller, pf, .. } => Some((controller, pf)),
        }
    }

    /// Reads a network device's `phys_port_name`: `p0`, `pf0`, `pf0vf3`, `c1pf0sf88`; a card's or a split port's part is passed over.
    pub fn from_name(name: &str) -> Option<Function> {
        let digits = |text: &str| -> Option<(u32, usize)> {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            Some((text.get(..end)?.parse().ok()?, end))
        };
        let number = |text: &mut &str, word: &str| -> Option<u32> {
            let rest = text.strip_prefix(word)?;
            let (n, end) = digits(rest)?;
            *text = rest.get(end..)?;
            Some(n)
        };
        let mut rest = name;
        let controller = number(&mut rest, "c").unwrap_or(0);
        if let Some(pf) = number(&mut rest, "pf") {
            let vf = number(&mut rest, "vf");
            let sf = if vf.is_none() { number(&mut rest, "sf") } else { None };
            return rest.is_empty().then_some(match (vf, sf) {
                (Some(vf), _) => Function::Vf { controller, pf, vf },
                (_, Some(sf)) => Function::Sf { controller, pf, sf },
                _ => Function::Pf { controller, pf },
            });
        }
        let mut rest = name;
        number(&mut rest, "l");
        let port = number(&mut rest, "p")?;
        number(&mut rest, "s");
        rest.is_empty().then_some(Function::Physical { port })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((controller, _)) = self.owner().filter(|(c, _)| *c != 0) {
            write!(f, "c{controller}")?;
        }
        match self {
            Function::Physical { port } => write!(f, "p{port}"),
            Function::Pf { pf, .. } => write!(f, "pf{pf}"),
            Function::Vf { pf, vf, .. } => write!(f, "pf{pf}vf{vf}"),
            Function::Sf { pf, sf, .. } => write!(f, "pf{pf}sf{sf}"),
        }
    }
}

/// Where the inventory comes from. It gives another number each time that something changed.
pub type Follow = watch::Receiver<std::sync::Arc<Inventory>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports() {
        let all = [
            ("p0", Some(Function::Physical { port: 0 })),
            ("l1p2s3", Some(Function::Physical { port: 2 })),
            ("pf1", Some(Function::Pf { controller: 0, pf: 1 })),
            ("c1pf0", Some(Function::Pf { controller: 1, pf: 0 })),
            ("pf0vf12", Some(Function::Vf { controller: 0, pf: 0, vf: 12 })),
            ("c2pf1vf3", Some(Function::Vf { controller: 2, pf: 1, vf: 3 })),
            ("pf0sf88", Some(Function::Sf { controller: 0, pf: 0, sf: 88 })),
            ("pf0vf", None),
            ("pf0vf1x", None),
            ("eth0", None),
            ("", None),
            ("pf99999999999", None),
        ];
        for (text, want) in all {
            assert_eq!(Function::from_name(text), want, "{text}");
        }
        for (text, f) in
            all.iter().filter(|(text, _)| !text.starts_with('l')).filter_map(|(t, f)| Some((t, f.as_ref()?)))
        {
            assert_eq!(f.to_string(), **text);
        }
    }
}
