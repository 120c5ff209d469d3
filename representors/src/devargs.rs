//! Devices as DPDK names them (`options:dpdk-devargs`): `0000:03:00.0,representor=vf[1],dv_flow_en=1`, and which network device of the
//! kernel they are.

use crate::inventory::Inventory;
use crate::select::{Missing, Owner, Wanted, Which};
use crate::{DeviceName, Function};
use std::fmt;

/// A device of DPDK's, and what its driver is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devargs {
    /// The text.
    text: String,
    /// Which of the device's functions is represented; none: the device itself.
    wanted: Option<Wanted>,
}

/// Why a text names no single device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Several representors.
    #[error("representor={0} is of several functions: a port has one, give each its own port")]
    Several(String),
    /// No representor.
    #[error("representor={0} is no function: say representor=[1], vf1, pf0vf1 or sf1")]
    Function(String),
    /// Two of them.
    #[error("representor is given twice: a port has one, give each its own port")]
    Twice,
}

/// Why a network device is none of DPDK's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOfDpdk {
    /// There is none of that name.
    #[error("there is no network device {0}")]
    NoLink(String),
    /// It has no hardware.
    #[error("network device {0} is of no PCI device: take type system")]
    Software(String),
    /// Its hardware is not on a bus that DPDK has drivers for.
    #[error("network device {link} is {function} of {device}, which is no PCI device: take type system")]
    OtherBus {
        /// The network device.
        link: String,
        /// What it represents.
        function: Function,
        /// Of which device.
        device: DeviceName,
    },
}

/// The parts of a text between commas that stand in no brackets.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// A number, or a list with one number, at the beginning of a text.
fn one<'a>(text: &'a str, whole: &str) -> Result<(u32, &'a str), Malformed> {
    let bad = || Malformed::Function(whole.into());
    let (inside, rest) = match text.strip_prefix('[') {
        Some(t) => t.split_once(']').ok_or_else(bad)?,
        None => text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())),
    };
    let mut all = Vec::new();
    for part in inside.split(',') {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        let number = |t: &str| t.parse::<u32>().ok().filter(|_| t.bytes().all(|b| b.is_ascii_digit()));
        all.push((number(a).ok_or_else(bad)?, number(b).ok_or_else(bad)?));
    }
    match all.as_slice() {
        [(a, b)] if a == b => Ok((*a, rest)),
        _ => Err(Malformed::Several(whole.into())),
    }
}

/// `[c<n>][pf<n>][vf<n>|sf<n>]` or a number alone, each number also as a list in brackets (DPDK, "Poll Mode Driver: device arguments").
fn function(owner: &str, text: &str) -> Result<Wanted, Malformed> {
    let mut rest = text;
    let mut number = |word: &str| -> Result<Option<u32>, Malformed> {
        let Some(t) = rest.strip_prefix(word) else { return Ok(None) };
        let (n, more) = one(t, text)?;
        rest = more;
        Ok(Some(n))
    };
    let (controller, pf) = (number("c")?, number("pf")?);
    let which = match (number("vf")?, number("sf")?) {
        (Some(vf), None) => Which::Vf(vf),
        (None, Some(sf)) => Which::Sf(sf),
        (None, None) if pf.is_some() => Which::Pf,
        (None, None) if controller.is_none() => Which::Vf(number("")?.unwrap_or_default()),
        _ => return Err(Malformed::Function(text.into())),
    };
    if !rest.is_empty() {
        return Err(Malformed::Function(text.into()));
    }
    Ok(Wanted { owner: Owner::Pci(address(owner)), pf, controller, which })
}

/// A PCI address with its domain.
fn address(name: &str) -> String {
    match name.matches(':').count() {
        1 => format!("0000:{name}"),
        _ => name.to_string(),
    }
}

impl Devargs {
    /// Reads a text.
    ///
    /// # Errors
    /// Where it names several representors, or none that can be.
    pub fn parse(text: &str) -> Result<Devargs, Malformed> {
        let mut given = parts(text).filter_map(|p| p.strip_prefix("representor="));
        let wanted = given.next().map(|f| function(parts(text).next().unwrap_or_default(), f)).transpose()?;
        match given.next() {
            Some(_) => Err(Malformed::Twice),
            None => Ok(Devargs { text: text.into(), wanted }),
        }
    }

    /// The device's name, and the arguments for its driver.
    pub fn name_and_arguments(&self) -> (&str, &str) {
        self.text.split_once(',').unwrap_or((&self.text, ""))
    }

    /// The address of a PCI device.
    pub fn pci(&self) -> Option<String> {
        let (name, _) = self.name_and_arguments();
        (name.contains(':') && !name.contains('=')).then(|| address(name))
    }

    /// The value of an argument.
    pub fn argument(&self, key: &str) -> Option<&str> {
        parts(&self.text).skip(1).find_map(|p| p.strip_prefix(key)?.strip_prefix('='))
    }

    /// The function whose representor is asked for; none: the device itself is.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// Whether both name the same device, in whatever words. (A VF without its PF is that of the PF which has the address.)
    pub fn is_same_device(&self, other: &Devargs) -> bool {
        let key = |d: &Devargs| {
            let (name, _) = d.name_and_arguments();
            let own = address(name).rsplit_once('.').and_then(|(_, f)| f.parse().ok()).unwrap_or(0);
            let function = |w: &Wanted| (w.controller.unwrap_or(0), w.pf.unwrap_or(own), w.which);
            (d.pci().unwrap_or_else(|| name.to_string()), d.wanted.as_ref().map(function))
        };
        self.text == other.text || self.pci().is_some() && key(self) == key(other)
    }
}

impl fmt::Display for Devargs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Inventory {
    /// The device of DPDK's that a network device is: the card itself, or one of its representors.
    ///
    /// # Errors
    /// Where it is none.
    pub fn devargs(&self, link: &str) -> Result<Devargs, NotOfDpdk> {
        let found = self.links().find(|l| l.name == link).ok_or_else(|| NotOfDpdk::NoLink(link.into()))?;
        let represented = self.representors().find(|r| r.link.is_some_and(|l| l.ifindex == found.ifindex));
        let Some(r) = represented else {
            let pci = found.parent.as_ref().filter(|d| d.bus == "pci");
            let pci = pci.ok_or_else(|| NotOfDpdk::Software(link.into()))?;
            return Ok(Devargs { text: pci.name.clone(), wanted: None });
        };
        if r.device.bus != "pci" {
            return Err(NotOfDpdk::OtherBus { link: link.into(), function: r.function, device: r.device.clone() });
        }
        let pci = &r.device.name;
        let own = pci.rsplit_once('.').and_then(|(_, f)| f.parse::<u32>().ok()).unwrap_or(0);
        let (which, wanted) = match r.function {
            Function::Physical { .. } => return Ok(Devargs { text: pci.clone(), wanted: None }),
            // As all drivers understand it.
            Function::Vf { controller: 0, pf, vf } if pf == own => (format!("[{vf}]"), Which::Vf(vf)),
            Function::Sf { controller: 0, pf, sf } if pf == own => (format!("sf{sf}"), Which::Sf(sf)),
            Function::Vf { vf, .. } => (r.function.to_string(), Which::Vf(vf)),
            Function::Sf { sf, .. } => (r.function.to_string(), Which::Sf(sf)),
            Function::Pf { .. } => (r.function.to_string(), Which::Pf),
        };
        let (controller, pf) = r.function.owner().unzip();
        let wanted = Wanted { owner: Owner::Pci(pci.clone()), pf, controller, which: wanted };
        Ok(Devargs { text: format!("{pci},representor={which}"), wanted: Some(wanted) })
    }

    /// Whether a device could be opened, as far as the kernel knows its card: one that has another driver it does not know.
    ///
    /// # Errors
    /// The card is in legacy mode, or has no such function.
    pub fn check(&self, devargs: &Devargs) -> Result<(), Missing> {
        match devargs.wanted().map_or(Ok(""), |w| self.find(w)) {
            Err(e @ (Missing::Legacy { .. } | Missing::NoFunction { .. })) => Err(e),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "devargs_tests.rs"]
mod tests;
