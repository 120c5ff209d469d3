//! EVPN: what switches advertise goes into the kernel's devices, and what a routing daemon put there becomes flows.

use super::Controller;
use crate::evpn::fabric::{self, Keys, LocalIps, Own};
use crate::evpn::kernel::{Kernel, Tables};
use crate::evpn::wish::{Wish, distinct, wanted};
use crate::input::settings::{Settings, bridge};
use crate::rows::plumbing;
use crate::run::request::Shown;
use ovn_schema::Uuid;
use std::collections::BTreeSet;
use std::sync::Arc;

/// EVPN's part of the controller's state.
#[derive(Default)]
pub(super) struct Evpn {
    /// None while EVPN extends no switch.
    kernel: Option<Kernel>,
    /// What the kernel's devices are to hold, as that was said last.
    wish: Wish,
    /// The keys of VTEPs.
    keys: Keys,
    /// What was said in the log and still holds.
    said: BTreeSet<String>,
    /// How often the kernel's devices held something else.
    version: u64,
}

impl Evpn {
    /// Waits until the kernel's devices hold something else.
    pub(super) async fn changed(&mut self) {
        match &mut self.kernel {
            Some(k) => k.changed().await,
            None => std::future::pending().await,
        }
        self.version += 1;
    }

    /// Takes away what was put into the kernel.
    pub(super) async fn clean_up(&mut self) {
        if let Some(k) = self.kernel.take() {
            k.clean_up().await;
        }
    }

    fn tables(&self) -> Arc<Tables> {
        self.kernel.as_ref().map(Kernel::tables).unwrap_or_default()
    }

    fn say(&mut self, problems: Vec<String>) {
        for text in problems.iter().filter(|t| !self.said.contains(*t)) {
            tracing::warn!(target: "neighbor_exchange", kind = daemon::kind(text), "{text}");
        }
        self.said = problems.into_iter().collect();
    }
}

impl Controller {
    /// Says to the kernel's side what its devices are to hold now, and takes over what they hold of others. Whether that is known: it
    /// is not while they were never read.
    pub(super) fn exchange_neighbours(&mut self, s: &Settings) -> bool {
        let state = Some((self.presence.versions.evpn, self.local_updates, self.evpn.version));
        if self.in_line.fabric == state {
            return true;
        }
        let (switches, mut problems) = distinct(&self.presence.evpn);
        let wish = wanted(&switches, &self.presence.evpn_macs, &self.presence.evpn_neighbours);
        let evpn = &mut self.evpn;
        match &evpn.kernel {
            Some(k) if evpn.wish != wish => k.wish(wish.clone()),
            None if !wish.is_empty() => match Kernel::start(wish.clone()) {
                Ok(k) => evpn.kernel = Some(k),
                Err(e) => {
                    // The next look tries again.
                    evpn.say(vec![format!("no netlink socket for EVPN: {e}")]);
                    return true;
                }
            },
            _ => {}
        }
        evpn.wish = wish;
        let tables = evpn.tables();
        if evpn.kernel.is_some() && !tables.read {
            return false;
        }
        let own = if switches.is_empty() { Own::default() } else { self.own(s, &mut problems) };
        let (fabric, more) = crate::evpn::Fabric::of(&switches, &tables, &own, &mut self.evpn.keys);
        problems.extend(more);
        self.evpn.say(problems);
        let reads = self.input.set_fabric(fabric);
        self.reads.extend(reads);
        self.in_line.fabric = state;
        true
    }

    /// This chassis' addresses and tunnels for EVPN.
    fn own(&self, s: &Settings, problems: &mut Vec<String>) -> Own {
        let text = s.other.get("ovn-evpn-local-ip").map_or("", |t| &**t);
        let (ips, wrong) = LocalIps::parse(text);
        problems.extend(wrong);
        let br = bridge(&self.ovs.db, &s.bridge);
        let tunnels = br.map(|(_, br)| plumbing::evpn_tunnels(&self.ovs.db, br)).unwrap_or_default();
        Own { ips, tunnels }
    }

    /// What `ovn-appctl evpn/…` shows.
    pub(super) fn show_evpn(&self, what: Shown) -> String {
        let fabric = &self.input.local.fabric;
        let key = |dp: Uuid| self.input.sb.datapath_binding.get(&dp).map(|d| d.key()).unwrap_or_default();
        match what {
            Shown::Remotes => {
                let switches = self.presence.evpn.iter().map(|(id, s)| (*id, s)).collect();
                fabric::list_remotes(&switches, &self.evpn.tables())
            }
            Shown::Vteps => fabric.list_vteps(key),
            Shown::Floods => fabric.list_floods(),
            Shown::Macs => fabric.list_macs(key),
            Shown::Neighbours => fabric.list_neighbours(key),
        }
    }
}
