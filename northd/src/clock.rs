//! How long units of each kind take, where that is asked for.

use crate::model::Unit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

macro_rules! kinds {
    ($($name:literal = $($variant:ident)|+;)*) => {
        /// The kinds of units that are measured. Those that do what an engine node of ovn-northd does have its name.
        pub const KINDS: &[&str] = &[$($name),*];

        /// The name of a unit's kind.
        fn name(unit: &Unit) -> &'static str {
            match unit { $($(Unit::$variant { .. })|+ => $name,)* }
        }
    };
}

kinds! {
    "global_config" = Global;
    "datapath" = Datapath | Router | OnlyGateway | RouterRows | RowsOf | Switch | SwitchReach;
    "datapath_keys" = DatapathKeys;
    "logical_router_port" = Lrp;
    "logical_switch_port" = Lsp;
    "port_keys" = PortKeys | PortKey | UsedKey;
    "lr_nat" = NatList | Nat | RouterNats | NatRepeats | NatAnswers | NatShares | NatDistributed;
    "lb_data" = Lb | LbAddresses | LbGroup | LbKinds | DatapathLbs | RouterVips | RouterLbs | LbUsers | LbUse;
    "ls_stateful" = SwitchState;
    "ipam" = Ipam;
    "port_group" = PortGroup | PortGroupsBySwitch;
    "queue_ids" = QueueIds;
    "ha_chassis_groups" = SwitchChassis | HaReferences;
    "bfd" = RouterBfd | BfdPorts | BfdPort;
    "lflow_switch" = SwitchBase | LspFlows | RequestList | Requests;
    "lflow_acl" = AclFlows;
    "lflow_lb" = SwitchLbFlows | LbInSwitches | RouterLbFlows | LbInRouters;
    "lflow_router" = RouterBase | LrpFlows;
    "lflow_nat" = NatFlow | NatFlows;
    "lflow_route" = RouteList | RouteTables | Route | RouteGroups | RouteShares | RouteFlow | RouteFlows
        | LearnedList | LearnedRoute | LearnedFlow;
    "lflow_policy" = PolicyFlows;
    "multicast_group" = SwitchGroups;
    "sync_to_sb_pb" = LspBinding | LrpBinding;
    "sync_to_sb_lb" = LbRow;
    "sync_to_sb_addr_set" = AddressSet | PortGroupRows;
    "static_mac_binding" = StaticMac;
    "sync_to_sb" = Copy;
    "advertised_route_sync" = AdvertisedRoutes | AdvertisedMacs;
    "network_function" = NetworkFunction | NetworkFunctionGroup;
    "stale_rows" = Watch;
    "checks" = SwitchCheck | RouterCheck | MatchCheck;
}

#[derive(Default)]
struct Kind {
    on: AtomicBool,
    ran: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The processor time of units since [`Clock::clear`], by their kind. Nothing is measured unless somebody asks for it.
pub struct Clock {
    any: AtomicBool,
    kinds: Vec<Kind>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { any: AtomicBool::new(false), kinds: KINDS.iter().map(|_| Kind::default()).collect() }
    }
}

impl Clock {
    fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.get(KINDS.iter().position(|k| *k == name)?)
    }

    /// Measures units of a kind from now on, or no longer.
    pub fn set(&self, kind: &str, on: bool) {
        if let Some(k) = self.kind(kind) {
            k.on.store(on, Ordering::Relaxed);
        }
        self.any.store(self.kinds.iter().any(|k| k.on.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Resets all measurements.
    pub fn clear(&self) {
        for k in &self.kinds {
            k.ran.store(0, Ordering::Relaxed);
            k.nanoseconds.store(0, Ordering::Relaxed);
        }
    }

    /// The kinds that are measured, how many of their units ran, and how long these took together.
    pub fn measured(&self) -> impl Iterator<Item = (&'static str, u64, Duration)> {
        KINDS.iter().zip(&self.kinds).filter(|(_, k)| k.on.load(Ordering::Relaxed)).map(|(name, k)| {
            let took = Duration::from_nanos(k.nanoseconds.load(Ordering::Relaxed));
            (*name, k.ran.load(Ordering::Relaxed), took)
        })
    }

    /// Runs a unit and measures it, where its kind is measured.
    pub(crate) fn run(&self, unit: &Unit, run: impl FnOnce()) {
        let kind = if self.any.load(Ordering::Relaxed) { self.kind(name(unit)) } else { None };
        match kind.filter(|k| k.on.load(Ordering::Relaxed)) {
            Some(kind) => {
                let start = Instant::now();
                run();
                kind.ran.fetch_add(1, Ordering::Relaxed);
                kind.nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            None => run(),
        }
    }
}
