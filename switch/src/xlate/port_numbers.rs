//! Numbers of the datapath's ports, as `dpif/show` and flows name them: a device has one, and so has each kind of tunnel
//! that is not told by a UDP port. Each keeps its number for as long as it is there (Open vSwitch's `choose_port`).

use std::collections::{BTreeMap, BTreeSet};

/// The numbers that are in use.
#[derive(Debug, Default)]
pub struct PortNumbers {
    devices: BTreeSet<u32>,
    tunnels: BTreeMap<&'static str, u32>,
}

impl PortNumbers {
    fn is_free(&self, n: u32) -> bool {
        !self.devices.contains(&n) && self.tunnels.values().all(|t| *t != n)
    }

    /// Takes a number for a device: the wanted one if it is free, else the first free one from 1 on.
    pub fn take(&mut self, wanted: Option<u32>) -> u32 {
        let free = |n: &u32| self.is_free(*n);
        let n = wanted.filter(free).or_else(|| (1..u32::MAX).find(free)).unwrap_or(u32::MAX);
        self.devices.insert(n);
        n
    }

    /// Gives a device's number back.
    pub fn give(&mut self, n: u32) {
        self.devices.remove(&n);
    }

    /// Has numbers for the common ports of these kinds of tunnels, and for no others. New ones get what `wanted` says,
    /// if it is free, else the first number that no device has, those of `others` among them.
    pub(super) fn keep_tunnels(
        &mut self,
        names: &BTreeSet<&'static str>,
        wanted: impl Fn(&str) -> Option<u32>,
        others: impl Fn(u32) -> bool,
    ) {
        self.tunnels.retain(|name, _| names.contains(name));
        for name in names {
            if !self.tunnels.contains_key(name) {
                let free = |n: &u32| self.is_free(*n) && !others(*n);
                let n = wanted(name).filter(free).or_else(|| (1..u32::MAX).find(free)).unwrap_or(u32::MAX);
                self.tunnels.insert(name, n);
            }
        }
    }

    /// The number of the common port of a kind of tunnels.
    pub(super) fn tunnel(&self, name: &str) -> Option<u32> {
        self.tunnels.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(p: &mut PortNumbers, names: &[&'static str]) {
        p.keep_tunnels(&names.iter().copied().collect(), |_| None, |_| false);
    }

    #[test]
    fn numbers_stay_while_other_ports_come_and_go() {
        let mut p = PortNumbers::default();
        assert_eq!((p.take(None), p.take(Some(7)), p.take(Some(7))), (1, 7, 2));
        keep(&mut p, &["gre_sys"]);
        assert_eq!((p.tunnel("gre_sys"), p.take(None)), (Some(3), 4));
        p.give(1);
        keep(&mut p, &["gre_sys", "erspan_sys"]);
        assert_eq!((p.tunnel("gre_sys"), p.tunnel("erspan_sys")), (Some(3), Some(1)));
        keep(&mut p, &["erspan_sys"]);
        assert_eq!((p.tunnel("gre_sys"), p.take(None)), (None, 3));
    }
}
