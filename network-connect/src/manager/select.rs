//! Which networks selectors name.

use crate::resource::connect::Selection;
use crate::resource::network::{Attachment, Origin, PRIMARY_LABEL};
use crate::resource::{Network, Resources, Spec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a resource selects.
#[derive(Clone, Debug, Default)]
pub struct Selected {
    /// The networks that can be connected, by number.
    pub networks: BTreeMap<u32, Arc<Network>>,
    /// Why other networks are not, though they are meant.
    pub unsupported: Vec<String>,
    /// Why other networks are passed over.
    pub skipped: Vec<String>,
}

/// Finds the networks.
pub fn select(spec: &Spec, r: &Resources) -> Selected {
    let mut out = Selected::default();
    for selection in &spec.selections {
        match selection {
            Selection::Cluster(selector) => {
                let of_cluster = r.attachments().filter(|a| a.origin == Origin::Cluster);
                of_cluster.filter(|a| selector.selects(&a.labels)).for_each(|a| out.add(a, true));
            }
            Selection::Namespaces(selector) => {
                for (name, labels) in r.namespaces() {
                    if !labels.contains_key(PRIMARY_LABEL) || !selector.selects(labels) {
                        continue;
                    }
                    let mut primary = r.attachments().filter(|a| a.network.primary && a.namespaces.has(name, labels));
                    primary.next().into_iter().for_each(|a| out.add(a, false));
                }
            }
        }
    }
    out.unsupported.sort();
    out.unsupported.dedup();
    out.skipped.sort();
    out.skipped.dedup();
    out
}

impl Selected {
    fn add(&mut self, a: &Attachment, by_label: bool) {
        let network = &a.network;
        if network.layer.is_none() {
            self.skipped.push(format!("network {} is neither of layer 2 nor of layer 3", network.name));
        } else if by_label && !network.primary {
            self.skipped.push(format!("network {} is not its pods' primary network", network.name));
        } else if let Some(transport) = &network.transport {
            self.unsupported.push(format!("network {}: transport {transport} cannot be connected", network.name));
        } else if network.subnets.is_empty() {
            self.unsupported.push(format!("network {} has no subnets", network.name));
        } else {
            self.networks.insert(network.id, network.clone());
        }
    }
}
