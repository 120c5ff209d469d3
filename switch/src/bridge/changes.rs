//! Changes of flow tables that the flow cache has not seen yet.

use crate::classifier::Rule;
use openflow_rs::{Match, TableId};
use std::collections::HashMap;
use std::sync::Arc;

/// A change of a table: the rule that went, the rule that came.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) old: Option<Arc<Rule>>,
    pub(crate) new: Option<Arc<Rule>>,
}

/// The net effect of many changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Removed rules (by address in memory), with the equal rule that replaced each, if one did.
    pub(crate) gone: HashMap<usize, Option<Arc<Rule>>>,
    /// Rules added (true) or removed (false), by table.
    pub(crate) rules: HashMap<TableId, Vec<(Arc<Rule>, bool)>>,
    /// Keeps removed rules alive, so that their addresses stay unique.
    _old: Vec<Arc<Rule>>,
}

impl Changes {
    /// Sums changes up: a rule added and removed again, or removed and added again, is no change.
    pub(crate) fn sum(list: Vec<Change>) -> Changes {
        let mut sum = Changes::default();
        type End<'a> = Option<&'a Arc<Rule>>;
        let mut ends: HashMap<(TableId, u16, &Match), (End<'_>, End<'_>)> = HashMap::new();
        for c in &list {
            let Some(r) = c.old.as_ref().or(c.new.as_ref()) else { continue };
            let key = (r.table, r.priority, &r.matches);
            ends.entry(key).and_modify(|e| e.1 = c.new.as_ref()).or_insert((c.old.as_ref(), c.new.as_ref()));
        }
        for (old, new) in ends.into_values() {
            let same = match (old, new) {
                (Some(a), Some(b)) => a.actions == b.actions,
                (None, None) => continue,
                _ => false,
            };
            if let Some(o) = old {
                sum.gone.insert(place(o), new.filter(|_| same).cloned());
                sum._old.push(o.clone());
            }
            if !same {
                for (r, came) in [(old, false), (new, true)] {
                    if let Some(r) = r {
                        sum.rules.entry(r.table).or_default().push((r.clone(), came));
                    }
                }
            }
        }
        sum
    }
}

/// The identity of a rule: its address in memory.
pub(crate) fn place(r: &Arc<Rule>) -> usize {
    Arc::as_ptr(r) as usize
}
