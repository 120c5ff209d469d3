//! The cluster manager's half: which networks a resource selects, whether they can be connected, and what each gets.
//!
//! ```text
//!   resources ──► select ──► validate ──► against other resources ──► router key, subnets ──► annotations, Accepted, events
//! ```
//!
//! [`decide`] is a function of the resources alone. What was given out stands in their annotations, so that a restart, or
//! another cluster manager, goes on from there.

pub mod allocate;
mod select;
mod validate;

use crate::address::Subnet;
use crate::resource::connect::{ROUTER_KEY, SUBNETS};
use crate::resource::{ClusterNetworkConnect, Condition, Layer, Owner, Resources};
use allocate::{Held, allocate};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use select::Selected;

/// The type of the condition that the cluster manager sets.
pub const ACCEPTED: &str = "Accepted";
/// What the types of the conditions that zones set begin with.
pub const READY: &str = "Ready-In-Zone-";

/// Keys of connect routers: above those that networks have by their number.
const ROUTER_KEYS: std::ops::RangeInclusive<u32> = 16_711_683 + 4096..=(1 << 24) - 1;

/// What the cluster has besides its resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where services have their addresses.
    pub services: Vec<Subnet>,
    /// The addresses that gateways masquerade with.
    pub masquerade: Vec<Subnet>,
}

/// Why a resource is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A field is wrong.
    InvalidSpec,
    /// Links' addresses are used for something else.
    ConnectSubnetConflict,
    /// Another resource with a network in common links with the same addresses.
    ConnectSubnetOverlap,
    /// Not every network has got a part of the subnets.
    ConnectSubnetExhausted,
    /// No key is left for the router.
    RouterKeysExhausted,
    /// Two networks have addresses in common.
    OverlappingNetworkSubnets,
    /// IP families differ.
    IpFamilyMismatch,
    /// There is nothing to connect with.
    InsufficientNetworks,
    /// A network is of a kind that cannot be connected.
    UnsupportedNetworkType,
}

impl Reason {
    /// The word in the condition.
    pub fn word(self) -> &'static str {
        match self {
            Reason::InvalidSpec => "InvalidSpec",
            Reason::ConnectSubnetConflict => "ConnectSubnetConflict",
            Reason::ConnectSubnetOverlap => "ConnectSubnetOverlap",
            Reason::ConnectSubnetExhausted => "ConnectSubnetExhausted",
            Reason::RouterKeysExhausted => "RouterKeysExhausted",
            Reason::OverlappingNetworkSubnets => "OverlappingNetworkSubnets",
            Reason::IpFamilyMismatch => "IPFamilyMismatch",
            Reason::InsufficientNetworks => "InsufficientNetworks",
            Reason::UnsupportedNetworkType => "UnsupportedNetworkType",
        }
    }
}

/// Why, for people.
pub type Refusal = (Reason, String);

/// What is decided of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The annotation with subnets; none: it stays as it is.
    pub subnets: Option<String>,
    /// The annotation with the router's key; none: it stays as it is.
    pub router_key: Option<String>,
    /// The condition `Accepted`, without its time.
    pub accepted: Condition,
    /// `status.status`.
    pub word: &'static str,
    /// What people should know besides, for events: a word and a sentence.
    pub notes: Vec<(&'static str, String)>,
}

/// A resource on its way.
struct Case<'a> {
    name: &'a Arc<str>,
    connect: &'a ClusterNetworkConnect,
    selected: Selected,
    held: Held,
    notes: Vec<(&'static str, String)>,
    /// It must not be plumbed at all.
    refused: Option<Refusal>,
}

impl Case<'_> {
    fn new<'a>(name: &'a Arc<str>, connect: &'a ClusterNetworkConnect, r: &Resources, s: &Settings) -> Case<'a> {
        let (held, problems) = allocate::read(connect.meta.annotations.get(SUBNETS));
        let notes = problems.into_iter().map(|p| ("AnnotationInvalid", p)).collect();
        let mut case = Case { name, connect, selected: Selected::default(), held, notes, refused: None };
        match &connect.spec {
            Ok(spec) => {
                case.selected = select::select(spec, r);
                case.refused = validate::alone(spec, &case.selected.networks, s).err();
            }
            Err(e) => case.refused = Some((Reason::InvalidSpec, e.to_string())),
        }
        case.notes.extend(case.selected.skipped.iter().map(|text| ("NetworkSkipped", text.clone())));
        case
    }

    fn router_key(&self) -> Option<u32> {
        self.connect.meta.annotations.get(ROUTER_KEY)?.parse().ok()
    }
}

/// Decides of every `ClusterNetworkConnect`.
pub fn decide(r: &Resources, settings: &Settings) -> BTreeMap<Arc<str>, Decision> {
    let mut cases: Vec<Case<'_>> = r.connects().map(|(name, c)| Case::new(name, c, r, settings)).collect();
    // Who has been connected stays so, and the older goes first.
    cases.sort_by(|a, b| {
        let order = |c: &Case<'_>| (c.held.is_empty(), c.connect.meta.creation_timestamp.clone(), c.name.clone());
        order(a).cmp(&order(b))
    });
    for i in 0..cases.len() {
        let (before, rest) = cases.split_at_mut(i);
        if let [case, ..] = rest
            && case.refused.is_none()
        {
            case.refused = before.iter().find_map(|other| against(case, other));
        }
    }
    let mut keys: BTreeSet<u32> = r.attachments().flat_map(|a| a.keys.iter().copied()).collect();
    let zones: BTreeSet<String> =
        r.nodes().map(|(name, n)| n.zone.clone().unwrap_or_else(|| name.to_string())).collect();
    cases.iter_mut().map(|case| (case.name.clone(), finish(case, &mut keys, &zones))).collect()
}

/// Whether a resource cannot be plumbed beside one that goes first.
fn against(case: &Case<'_>, other: &Case<'_>) -> Option<Refusal> {
    let (Ok(ours), Ok(theirs), None) = (&case.connect.spec, &other.connect.spec, &other.refused) else { return None };
    let shared: Vec<&str> = case
        .selected
        .networks
        .iter()
        .filter(|(id, _)| other.selected.networks.contains_key(id))
        .map(|(_, n)| &*n.name)
        .collect();
    let overlap = ours.ranges.iter().find_map(|a| {
        let b = theirs.ranges.iter().find(|b| a.cidr.overlaps(b.cidr))?;
        Some((a.cidr, b.cidr))
    });
    let ((a, b), false) = (overlap?, shared.is_empty()) else { return None };
    let text = format!(
        "spec.connectSubnets: {a} overlaps with {b} of ClusterNetworkConnect {}, which selects {} too",
        other.name,
        list(&shared)
    );
    Some((Reason::ConnectSubnetOverlap, text))
}

/// Names, the first few.
fn list(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(3).map(|n| format!("network {n}")).collect();
    match names.len() {
        n if n > 3 => format!("{} and {} more", shown.join(", "), n - 3),
        _ => shown.join(" and "),
    }
}

fn finish(case: &mut Case<'_>, keys: &mut BTreeSet<u32>, zones: &BTreeSet<String>) -> Decision {
    let mut notes = std::mem::take(&mut case.notes);
    let held_key = case.router_key();
    let present = case.connect.meta.annotations.get(SUBNETS);
    let (Ok(spec), None) = (&case.connect.spec, &case.refused) else {
        // Its plumbing goes with the subnets.
        keys.extend(held_key);
        let subnets = present.filter(|text| !matches!(text.as_str(), "" | "{}")).map(|_| "{}".to_string());
        let refusal = case.refused.clone();
        return decision(case, refusal, subnets, None, notes, zones);
    };
    let key = router_key(case, held_key, keys, &mut notes);
    let wanted: BTreeSet<Owner> = case.selected.networks.values().filter_map(|n| n.owner()).collect();
    let out = allocate(spec, &wanted, &case.held);
    notes.extend(out.dropped.iter().map(|text| ("AnnotationInvalid", text.clone())));
    let subnets = allocate::text(&out.held);
    let changed = match present {
        Some(text) => out.held != case.held || !notes.is_empty() && *text != subnets,
        None => true,
    };
    let refusal = if key.is_none() {
        Some((Reason::RouterKeysExhausted, format!("no key of {ROUTER_KEYS:?} is free for the connect router")))
    } else if let Some((owner, range)) = out.exhausted.first() {
        let name = case.selected.networks.get(&owner.id).map(|n| n.name.to_string()).unwrap_or_default();
        let block = if owner.layer == Layer::Two { "pair of addresses" } else { "block" };
        let count = out.exhausted.len();
        let text = format!("spec.connectSubnets: {range} has no {block} left for network {name} ({count} go without)");
        Some((Reason::ConnectSubnetExhausted, text))
    } else if let Some(text) = case.selected.unsupported.first() {
        Some((Reason::UnsupportedNetworkType, text.clone()))
    } else if wanted.len() < 2 {
        let text = format!("{} network is selected, and two are needed", wanted.len());
        Some((Reason::InsufficientNetworks, text))
    } else {
        None
    };
    let key = key.filter(|key| Some(*key) != held_key).map(|key| key.to_string());
    decision(case, refusal, changed.then_some(subnets), key, notes, zones)
}

/// The router's key: what it has, where that may be, or the lowest that is free.
fn router_key(
    case: &Case<'_>,
    held: Option<u32>,
    keys: &mut BTreeSet<u32>,
    notes: &mut Vec<(&'static str, String)>,
) -> Option<u32> {
    let fits = |key: &u32| ROUTER_KEYS.contains(key) && !keys.contains(key);
    let key = held.filter(fits).or_else(|| ROUTER_KEYS.into_iter().find(|key| !keys.contains(key)))?;
    if let Some(text) = case.connect.meta.annotations.get(ROUTER_KEY)
        && held != Some(key)
    {
        let why = format!("{text:?} cannot be the router's key (another has it, or it is not in {ROUTER_KEYS:?})");
        notes.push(("AnnotationInvalid", format!("metadata.annotations[{ROUTER_KEY}]: {why}; it gets {key}")));
    }
    keys.insert(key);
    Some(key)
}

fn decision(
    case: &Case<'_>,
    refusal: Option<Refusal>,
    subnets: Option<String>,
    router_key: Option<String>,
    notes: Vec<(&'static str, String)>,
    zones: &BTreeSet<String>,
) -> Decision {
    let accepted = match refusal {
        None => Condition {
            kind: ACCEPTED.into(),
            status: "True".into(),
            reason: "ResourceAllocationSucceeded".into(),
            message: "All validation checks passed successfully".into(),
            ..Condition::default()
        },
        Some((reason, message)) => Condition {
            kind: ACCEPTED.into(),
            status: "False".into(),
            reason: reason.word().into(),
            message,
            ..Condition::default()
        },
    };
    let failed = |c: &Condition| {
        let zone = c.kind.strip_prefix(READY);
        zone.is_some_and(|zone| zones.is_empty() || zones.contains(zone)) && c.status != "True"
    };
    let success = accepted.status == "True" && !case.connect.conditions.iter().any(failed);
    Decision { subnets, router_key, accepted, word: if success { "Success" } else { "Failure" }, notes }
}
