//! Blocks of `connectSubnets` for networks: a function of what is selected and of what the annotation says already.
//!
//! A layer 3 network has a whole block of `networkPrefix`, in which each node has a point-to-point pair. Layer 2 networks
//! need one pair each and share blocks. What a network has it keeps; what nobody has is free.

use crate::address::{Family, Subnet};
use crate::resource::connect::{Range, SUBNETS, Spec};
use crate::resource::{Layer, Owner};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a network has: at most one subnet of each family, IPv4 first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subnets(Vec<Subnet>);

impl Subnets {
    /// Each subnet.
    pub fn iter(&self) -> impl Iterator<Item = Subnet> {
        self.0.iter().copied()
    }

    /// That of a family.
    pub fn of(&self, family: Family) -> Option<Subnet> {
        self.iter().find(|s| s.family() == family)
    }
}

/// Networks with what they have.
pub type Held = BTreeMap<Owner, Subnets>;

#[derive(Serialize, Deserialize, Default)]
struct Entry {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ipv4: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ipv6: String,
}

/// Reads the annotation, and says what of it cannot be used.
pub fn read(annotation: Option<&String>) -> (Held, Vec<String>) {
    let (mut held, mut problems) = (Held::new(), Vec::new());
    let Some(text) = annotation.filter(|t| !t.is_empty()) else { return (held, problems) };
    let entries: BTreeMap<String, Entry> = match serde_json::from_str(text) {
        Ok(entries) => entries,
        Err(e) => {
            problems.push(format!("metadata.annotations[{SUBNETS}]: {e}"));
            return (held, problems);
        }
    };
    for (owner, entry) in entries {
        let texts = [(Family::V4, &entry.ipv4), (Family::V6, &entry.ipv6)];
        let given = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let subnets: Result<Vec<Subnet>, String> = given
            .map(|(family, text)| match Subnet::strict(text) {
                Ok(subnet) if subnet.family() == family => Ok(subnet),
                Ok(subnet) => Err(format!("{subnet} is of the other IP family")),
                Err(e) => Err(e.to_string()),
            })
            .collect();
        match (owner.parse(), subnets) {
            (Ok(owner), Ok(subnets)) => drop(held.insert(owner, Subnets(subnets))),
            (Err(()), _) => problems.push(format!("metadata.annotations[{SUBNETS}]: {owner:?} names no network")),
            (_, Err(e)) => problems.push(format!("metadata.annotations[{SUBNETS}]: {owner}: {e}")),
        }
    }
    (held, problems)
}

/// The annotation's text.
pub fn text(held: &Held) -> String {
    let entry = |subnets: &Subnets| {
        let of = |family| subnets.of(family).map(|s| s.to_string()).unwrap_or_default();
        Entry { ipv4: of(Family::V4), ipv6: of(Family::V6) }
    };
    let entries: BTreeMap<String, Entry> = held.iter().map(|(owner, s)| (owner.to_string(), entry(s))).collect();
    serde_json::to_string(&entries).unwrap_or_default()
}

/// What comes out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// What each network has now.
    pub held: Held,
    /// Networks for which nothing is left, with the range that is used up.
    pub exhausted: Vec<(Owner, Subnet)>,
    /// What the annotation said and what does not hold.
    pub dropped: Vec<String>,
}

/// What is used of a range.
struct Used {
    range: Range,
    /// Blocks of layer 3 networks.
    blocks: BTreeSet<u128>,
    /// Blocks of layer 2 networks, with the pairs that are used there.
    shared: BTreeMap<u128, BTreeSet<u128>>,
}

impl Used {
    fn new(range: Range) -> Used {
        Used { range, blocks: BTreeSet::new(), shared: BTreeMap::new() }
    }

    fn pair_prefix(&self) -> u8 {
        Subnet::pair_prefix(self.range.cidr.family())
    }

    /// The block, and the pair in it, of a subnet that could be given out.
    fn place(&self, layer: Layer, subnet: Subnet) -> Option<(u128, u128)> {
        let wanted = if layer == Layer::Three { self.range.prefix } else { self.pair_prefix() };
        let parent = subnet.within(self.range.prefix);
        (subnet.prefix() == wanted).then_some(())?;
        Some((self.range.cidr.index_of(parent)?, parent.index_of(subnet)?))
    }

    fn take(&mut self, layer: Layer, (block, pair): (u128, u128)) {
        match layer {
            Layer::Three => self.blocks.insert(block),
            Layer::Two => self.shared.entry(block).or_default().insert(pair),
        };
    }

    fn is_free(&self, layer: Layer, (block, pair): (u128, u128)) -> bool {
        match layer {
            Layer::Three => !self.shared.contains_key(&block) && !self.blocks.contains(&block),
            Layer::Two => {
                !self.blocks.contains(&block) && self.shared.get(&block).is_none_or(|pairs| !pairs.contains(&pair))
            }
        }
    }

    /// The first place that is free.
    fn free(&self, layer: Layer) -> Option<(u128, u128)> {
        if layer == Layer::Two {
            let pairs = 1u128.checked_shl(u32::from(self.pair_prefix() - self.range.prefix)).unwrap_or(u128::MAX);
            let open = self.shared.iter().find(|(_, used)| (used.len() as u128) < pairs);
            if let Some((block, used)) = open {
                return (0..pairs).find(|pair| !used.contains(pair)).map(|pair| (*block, pair));
            }
        }
        let taken = |block: &u128| self.blocks.contains(block) || self.shared.contains_key(block);
        (0..self.range.cidr.blocks(self.range.prefix)).find(|block| !taken(block)).map(|block| (block, 0))
    }

    fn subnet(&self, layer: Layer, (block, pair): (u128, u128)) -> Option<Subnet> {
        let block = self.range.cidr.block(block, self.range.prefix)?;
        if layer == Layer::Three { Some(block) } else { block.block(pair, self.pair_prefix()) }
    }
}

/// Gives every wanted network what it has, or the first that is free.
pub fn allocate(spec: &Spec, wanted: &BTreeSet<Owner>, held: &Held) -> Allocation {
    let mut out = Allocation::default();
    let mut used: Vec<Used> = spec.ranges.iter().map(|r| Used::new(*r)).collect();
    for (owner, subnets) in held.iter().filter(|(owner, _)| wanted.contains(owner)) {
        let mut refuse = |why: String| {
            out.dropped.push(format!("metadata.annotations[{SUBNETS}]: {owner}: {why}; the network gets another"));
        };
        if subnets.0.len() != used.len() {
            refuse("its families are not those of spec.connectSubnets".into());
            continue;
        }
        let places: Option<Vec<_>> = used.iter().zip(subnets.iter()).map(|(u, s)| u.place(owner.layer, s)).collect();
        let Some(places) = places else {
            refuse(format!("{:?} is no block of spec.connectSubnets", subnets.0));
            continue;
        };
        if !used.iter().zip(&places).all(|(u, p)| u.is_free(owner.layer, *p)) {
            refuse(format!("{:?} is used by another network", subnets.0));
            continue;
        }
        for (u, place) in used.iter_mut().zip(&places) {
            u.take(owner.layer, *place);
        }
        out.held.insert(*owner, subnets.clone());
    }
    let missing: Vec<Owner> = wanted.iter().filter(|owner| !out.held.contains_key(owner)).copied().collect();
    for owner in missing {
        let places: Vec<_> = used.iter().map(|u| u.free(owner.layer)).collect();
        if let Some(full) = used.iter().zip(&places).find(|(_, place)| place.is_none()) {
            out.exhausted.push((owner, full.0.range.cidr));
            continue;
        }
        let mut subnets = Vec::new();
        for (u, place) in used.iter_mut().zip(places.into_iter().flatten()) {
            u.take(owner.layer, place);
            subnets.extend(u.subnet(owner.layer, place));
        }
        out.held.insert(owner, Subnets(subnets));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    pub fn spec(ranges: &[(&str, u8)]) -> Spec {
        let subnets: Vec<_> = ranges.iter().map(|(c, p)| json!({"cidr": c, "networkPrefix": p})).collect();
        let selector = json!([{"networkSelectionType": "ClusterUserDefinedNetworks",
            "clusterUserDefinedNetworkSelector": {"networkSelector": {}}}]);
        Spec::read(&json!({"networkSelectors": selector, "connectSubnets": subnets, "connectivity": ["PodNetwork"]}))
            .expect("valid")
    }

    fn owners(names: &[&str]) -> BTreeSet<Owner> {
        names.iter().filter_map(|n| n.parse().ok()).collect()
    }

    fn held(annotation: &str) -> Held {
        let (held, problems) = read(Some(&annotation.to_string()));
        assert_eq!(problems, Vec::<String>::new());
        held
    }

    #[test]
    fn layer_3_networks_have_blocks_and_layer_2_networks_share_one() {
        let out = allocate(
            &spec(&[("192.168.0.0/16", 24)]),
            &owners(&["layer3_1", "layer2_5", "layer2_6", "layer3_2"]),
            &Held::new(),
        );
        let expected = r#"{"layer2_5":{"ipv4":"192.168.0.0/31"},"layer2_6":{"ipv4":"192.168.0.2/31"},"layer3_1":{"ipv4":"192.168.1.0/24"},"layer3_2":{"ipv4":"192.168.2.0/24"}}"#;
        assert_eq!(text(&out.held), expected);
        assert_eq!(held(expected), out.held);
    }

    #[test]
    fn what_is_free_again_is_given_to_the_next() {
        let spec = spec(&[("10.0.0.0/22", 24), ("fd01::/118", 120)]);
        let three = allocate(&spec, &owners(&["layer3_1", "layer3_2", "layer2_3"]), &Held::new()).held;
        let less = allocate(&spec, &owners(&["layer3_1", "layer3_2"]), &three).held;
        assert_eq!(less.get(&"layer3_2".parse().unwrap()), three.get(&"layer3_2".parse().unwrap()));
        let more = allocate(&spec, &owners(&["layer3_1", "layer3_2", "layer3_4", "layer3_5", "layer3_6"]), &less);
        assert_eq!(more.held.len(), 4);
        assert_eq!(more.exhausted, [("layer3_6".parse().unwrap(), "10.0.0.0/22".parse().unwrap())]);
    }

    #[test]
    fn an_annotation_edited_by_hand_is_mended_and_named() {
        let spec = spec(&[("10.0.0.0/16", 24)]);
        let wanted = owners(&["layer3_1", "layer3_2", "layer3_3", "layer3_4"]);
        let held = held(
            r#"{"layer3_1":{"ipv4":"10.0.7.0/24"},"layer3_2":{"ipv4":"10.0.7.0/24"},"layer3_3":{"ipv4":"10.9.7.0/24"},"layer3_4":{"ipv4":"10.0.9.0/25"},"layer3_9":{"ipv4":"10.0.0.0/24"}}"#,
        );
        let out = allocate(&spec, &wanted, &held);
        assert_eq!(
            text(&out.held),
            r#"{"layer3_1":{"ipv4":"10.0.7.0/24"},"layer3_2":{"ipv4":"10.0.0.0/24"},"layer3_3":{"ipv4":"10.0.1.0/24"},"layer3_4":{"ipv4":"10.0.2.0/24"}}"#
        );
        assert_eq!(out.dropped.len(), 3);
        let (_, problems) = read(Some(&r#"{"layer3_1":{"ipv4":"x"},"layer9_1":{}}"#.to_string()));
        assert_eq!(problems.len(), 2);
        assert!(problems.iter().all(|p| p.contains("k8s.ovn.org/network-connect-subnet")), "{problems:?}");
        assert_eq!(read(Some(&"{".to_string())).1.len(), 1);
    }

    fn any_owner() -> impl Strategy<Value = Owner> {
        (any::<bool>(), 0u32..12).prop_map(|(two, id)| Owner { layer: if two { Layer::Two } else { Layer::Three }, id })
    }

    fn ranges() -> impl Strategy<Value = Spec> {
        prop_oneof![
            Just(vec![("10.0.0.0/21", 24)]),
            Just(vec![("10.0.0.0/28", 30)]),
            Just(vec![("fd01::/61", 64)]),
            Just(vec![("fd01::/60", 62), ("10.0.0.0/24", 27)]).prop_map(|mut r| {
                r[0] = ("fd01::/120", 123);
                r
            }),
        ]
        .prop_map(|r| spec(&r))
    }

    proptest! {
        /// Nothing overlaps, nobody's subnet changes while it stays, what is written reads back to the same, and a network
        /// goes without only where nothing is free.
        #[test]
        fn allocation_holds(spec in ranges(), steps in prop::collection::vec(prop::collection::btree_set(any_owner(), 0..9), 1..8)) {
            let mut now = Held::new();
            for wanted in steps {
                let out = allocate(&spec, &wanted, &now);
                prop_assert_eq!(&out.dropped, &Vec::<String>::new());
                let all: Vec<(Owner, Subnet)> = out.held.iter().flat_map(|(o, s)| s.iter().map(|s| (*o, s))).collect();
                for (i, (_, a)) in all.iter().enumerate() {
                    prop_assert!(spec.ranges.iter().any(|r| r.cidr.contains(*a)));
                    for (_, b) in &all[i + 1..] {
                        prop_assert!(!a.overlaps(*b), "{} {}", a, b);
                    }
                }
                for (owner, subnets) in &now {
                    if wanted.contains(owner) {
                        prop_assert_eq!(out.held.get(owner), Some(subnets));
                    }
                }
                prop_assert_eq!(out.held.len() + out.exhausted.len(), wanted.len());
                for (owner, _) in out.exhausted.iter().filter(|(o, _)| o.layer == Layer::Three) {
                    // As many blocks as there are have an owner.
                    let range = spec.ranges[0];
                    let blocks: BTreeSet<Subnet> =
                        out.held.values().filter_map(|s| s.of(range.cidr.family())).map(|s| s.within(range.prefix)).collect();
                    prop_assert_eq!(blocks.len() as u128, range.cidr.blocks(range.prefix), "{} goes without", owner);
                }
                let (again, problems) = read(Some(&text(&out.held)));
                prop_assert!(problems.is_empty());
                prop_assert_eq!(&allocate(&spec, &wanted, &again).held, &out.held);
                now = again;
            }
        }
    }
}
