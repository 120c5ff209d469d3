//! Which function is asked for (`vif-plug:representor:…` of a logical port's options), and its representor.
//!
//! | option | |
//! |---|---|
//! | `pf-mac` | the PF by its Ethernet address, as ovn-vif has it |
//! | `pf-pci` | the PF by the address of its device |
//! | `pf-num` | of several PFs of a device, the one with this number |
//! | `controller` | the host whose PF it is, on cards that serve several |
//! | `vf-num`, `sf-num` | the function; without either, the PF itself |

use crate::inventory::{Inventory, Mode, Representor};
use crate::{DeviceName, Function};
use packet::Mac;
use std::fmt;

/// What names the PF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Its Ethernet address.
    Mac(Mac),
    /// Its device's address.
    Pci(String),
}

/// Which of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The PF itself.
    Pf,
    /// A virtual function.
    Vf(u32),
    /// A subfunction.
    Sf(u32),
}

/// A function that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose.
    pub owner: Owner,
    /// The number of the PF.
    pub pf: Option<u32>,
    /// The number of the host.
    pub controller: Option<u32>,
    /// Which.
    pub which: Which,
}

/// Why there is no representor to be had; each says what would mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The options do not say which function.
    #[error("{0}")]
    Options(String),
    /// Nothing is known of this machine's cards yet.
    #[error("this machine's network cards have not been read yet")]
    Unread,
    /// No PF is so.
    #[error("no PF of this machine has {owner}: there are {known}")]
    NoPf {
        /// What was asked for.
        owner: String,
        /// What there is.
        known: String,
    },
    /// Several are.
    #[error("{owner} is that of several PFs: say which by {mend}")]
    Ambiguous {
        /// What was asked for.
        owner: String,
        /// What would tell them apart.
        mend: &'static str,
    },
    /// The card forwards by itself.
    #[error("{device} is in legacy mode and has no representors: devlink dev eswitch set {device} mode switchdev")]
    Legacy {
        /// The card.
        device: DeviceName,
    },
    /// The PF has no such function.
    #[error("{device} has no {what}: {mend}")]
    NoFunction {
        /// The card.
        device: DeviceName,
        /// The function.
        what: String,
        /// What there is, or how to have it.
        mend: String,
    },
    /// It has no network device.
    #[error(
        "{function} of {device} has no network device: it is being made, or bound to another driver, or in another network namespace"
    )]
    NoLink {
        /// The card.
        device: DeviceName,
        /// The function.
        function: Function,
    },
}

impl Wanted {
    /// Reads the options of a port; `get` gives them by the part of their names behind `vif-plug:representor:`.
    ///
    /// # Errors
    /// Where they do not say which function is asked for.
    pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Wanted, Missing> {
        let bad = |key: &str, text: &str, is: &str| {
            Missing::Options(format!("options:vif-plug:representor:{key} {text:?} is no {is}"))
        };
        let number = |key: &str| match get(key) {
            None => Ok(None),
            Some(t) if t.bytes().all(|b| b.is_ascii_digit()) && !t.is_empty() => {
                t.parse().map(Some).map_err(|_| bad(key, t, "number of a function"))
            }
            Some(t) => Err(bad(key, t, "number: give the digits alone")),
        };
        let owner = match (get("pf-mac"), get("pf-pci")) {
            (Some(t), None) => {
                Owner::Mac(t.parse().map_err(|_| bad("pf-mac", t, "Ethernet address: say 00:53:00:00:00:42"))?)
            }
            (None, Some(t)) if !t.is_empty() => Owner::Pci(t.into()),
            (None, Some(t)) => return Err(bad("pf-pci", t, "device's address: say 0000:03:00.0")),
            (None, None) => {
                return Err(Missing::Options(
                    "it is not said which PF is meant: set options:vif-plug:representor:pf-mac or …:pf-pci".into(),
                ));
            }
            (Some(_), Some(_)) => {
                return Err(Missing::Options(
                    "options:vif-plug:representor:pf-mac and …:pf-pci are both given: take one of them out".into(),
                ));
            }
        };
        let which = match (number("vf-num")?, number("sf-num")?) {
            (Some(vf), None) => Which::Vf(vf),
            (None, Some(sf)) => Which::Sf(sf),
            (None, None) => Which::Pf,
            (Some(_), Some(_)) => {
                return Err(Missing::Options(
                    "options:vif-plug:representor:vf-num and …:sf-num are both given: take one of them out".into(),
                ));
            }
        };
        Ok(Wanted { owner, pf: number("pf-num")?, controller: number("controller")?, which })
    }
}

/// A PF: its device, the number of its host and its own; no numbers where the device is the PF and its ports say nothing of it.
type Pf<'a> = (&'a DeviceName, Option<(u32, u32)>);

/// The PFs, with their addresses.
fn pfs(inventory: &Inventory) -> Vec<(Pf<'_>, Option<Mac>)> {
    let all: Vec<Representor<'_>> = inventory.representors().collect();
    let mut out: Vec<(Pf<'_>, Option<Mac>)> = Vec::new();
    for r in all.iter().filter(|r| matches!(r.function, Function::Pf { .. })) {
        out.push(((r.device, r.function.owner()), r.address));
    }
    // On the host's side the PF has no port: it is behind the wire's, whose network device is the PF's own.
    for r in all.iter().filter(|r| matches!(r.function, Function::Physical { .. })) {
        let own = out.iter().any(|((d, _), mac)| *d == r.device && mac.is_some());
        if !own {
            out.push(((r.device, None), r.link.and_then(|l| l.permanent.or(l.address))));
        }
    }
    out
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Mac(m) => write!(f, "the address {m}"),
            Owner::Pci(p) => write!(f, "the device address {p}"),
        }
    }
}

impl Inventory {
    /// The network device that represents a function.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(&self, wanted: &Wanted) -> Result<&str, Missing> {
        if !self.is_known() {
            return Err(Missing::Unread);
        }
        let (device, owner) = self.pf(wanted)?;
        let fits = |f: &Function| {
            let number = match (f, wanted.which) {
                (Function::Vf { vf, .. }, Which::Vf(n)) => *vf == n,
                (Function::Sf { sf, .. }, Which::Sf(n)) => *sf == n,
                (Function::Pf { .. }, Which::Pf) => true,
                _ => false,
            };
            let (c, p) = f.owner().unwrap_or_default();
            number
                && owner.is_none_or(|o| o == (c, p))
                && wanted.pf.is_none_or(|n| n == p)
                && wanted.controller.is_none_or(|n| n == c)
        };
        let of_device: Vec<Representor<'_>> = self.representors().filter(|r| r.device == device).collect();
        let mut found = of_device.iter().filter(|r| fits(&r.function));
        let Some(r) = found.next() else { return Err(self.absent(device, wanted.which, &of_device)) };
        if found.next().is_some() {
            let mend = "options:vif-plug:representor:controller and …:pf-num";
            return Err(Missing::Ambiguous { owner: wanted.owner.to_string(), mend });
        }
        match r.link {
            Some(l) => Ok(&l.name),
            None => Err(Missing::NoLink { device: device.clone(), function: r.function }),
        }
    }

    /// The PF that is asked for.
    fn pf(&self, wanted: &Wanted) -> Result<Pf<'_>, Missing> {
        let all = pfs(self);
        let is = |((device, owner), mac): &(Pf<'_>, Option<Mac>)| {
            let named = match &wanted.owner {
                Owner::Mac(m) => *mac == Some(*m),
                Owner::Pci(p) => device.name == *p || device.to_string() == *p,
            };
            let right = |n: Option<u32>, has: Option<u32>| n.is_none() || has.is_none() || n == has;
            named && right(wanted.controller, owner.map(|o| o.0)) && right(wanted.pf, owner.map(|o| o.1))
        };
        let mut found: Vec<Pf<'_>> = all.iter().filter(|pf| is(pf)).map(|(pf, _)| *pf).collect();
        found.dedup();
        // Several ports of the wire are one device's.
        if let [first, rest @ ..] = found.as_slice()
            && rest.iter().all(|pf| pf.0 == first.0 && pf.1.is_none())
        {
            return Ok(*first);
        }
        // A card in legacy mode may have no ports at all.
        if let (Owner::Pci(p), []) = (&wanted.owner, found.as_slice())
            && let Some((device, mode)) = self.devices().find(|(d, _)| d.name == *p || d.to_string() == *p)
        {
            return match mode {
                Some(Mode::Legacy) => Err(Missing::Legacy { device: device.clone() }),
                _ => Ok((device, None)),
            };
        }
        let owner = wanted.owner.to_string();
        if !found.is_empty() {
            let mend = "options:vif-plug:representor:controller and …:pf-num";
            return Err(Missing::Ambiguous { owner, mend });
        }
        let known: Vec<String> = all
            .iter()
            .map(|((d, o), mac)| {
                let number = o.map(|(c, p)| format!(" {}", Function::Pf { controller: c, pf: p })).unwrap_or_default();
                let mac = mac.map(|m| format!(" with {m}")).unwrap_or_default();
                format!("{d}{number}{mac}")
            })
            .collect();
        let known = if known.is_empty() { "none with ports of an embedded switch".into() } else { known.join(", ") };
        Err(Missing::NoPf { owner, known })
    }

    /// Why a device has no such function.
    fn absent(&self, device: &DeviceName, which: Which, there: &[Representor<'_>]) -> Missing {
        if self.devices().any(|(d, mode)| d == device && mode == Some(Mode::Legacy)) {
            return Missing::Legacy { device: device.clone() };
        }
        let count = |is: fn(&Function) -> bool| there.iter().filter(|r| is(&r.function)).count();
        let (what, mend) = match which {
            Which::Pf => {
                ("representor of a PF".to_string(), "a host's own PF has none; give vf-num or sf-num".to_string())
            }
            Which::Vf(n) => {
                let has = count(|f| matches!(f, Function::Vf { .. }));
                (format!("VF {n}"), format!("it has {has}; more come by sriov_numvfs of the PF"))
            }
            Which::Sf(n) => {
                let has = count(|f| matches!(f, Function::Sf { .. }));
                (format!("SF {n}"), format!("it has {has}; devlink port add {device} flavour pcisf pfnum 0 sfnum {n}"))
            }
        };
        Missing::NoFunction { device: device.clone(), what, mend }
    }
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
