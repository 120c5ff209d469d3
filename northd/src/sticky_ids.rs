//! Numbers that a router's flows already have in the southbound database: those of ECMP groups and their members, of
//! route tables and of policy chains.
//!
//! Any numbers do, but other ones would rewrite flows that mean the same. So those that are there are kept, as tunnel
//! keys are; what is new gets the lowest free one. A unit that runs again sees what was last put out.

use crate::model::{Key, Value};
use crate::registers::*;
use crate::stage::Stage;
use const_format::formatcp;
use incremental::Changes;
use ovn_schema::{Str, Uuid, sb};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

const STAGES: [Stage; 5] =
    [Stage::LrInIpRoutingPre, Stage::LrInIpRouting, Stage::LrInIpRoutingEcmp, Stage::LrInPolicy, Stage::LrInPolicyEcmp];

/// Match → priority and actions of the flows with it.
type ByMatch = BTreeMap<Str, BTreeSet<(i64, Str)>>;

/// The flows that have numbers, by router and stage.
#[derive(Debug, Default)]
pub struct StickyIds {
    flows: HashMap<(Uuid, Stage), ByMatch>,
    /// How many matches there are in all.
    matches: usize,
}

fn datapaths(values: &[Value]) -> BTreeSet<Uuid> {
    values.iter().filter_map(Value::datapaths).flat_map(|d| d.all()).copied().collect()
}

/// A flow with a number that was put out (`now`) or taken back.
#[derive(Debug)]
pub struct Note {
    datapath: Uuid,
    stage: Stage,
    matches: Str,
    priority: i64,
    actions: Str,
    now: bool,
}

/// The flows with numbers among what changed: first those that went.
pub fn notes(changes: &Changes<'_, Key, Value>) -> Vec<Note> {
    let mut notes = Vec::new();
    let is_numbered = |key: &Key| match key {
        Key::Flow(f) => STAGES.contains(&f.stage) && numbered(&f.matches, &f.actions),
        _ => false,
    };
    for c in changes.of(is_numbered) {
        let Key::Flow(flow) = c.key else { continue };
        for (values, now) in [(&c.before, false), (&c.after, true)] {
            notes.extend(datapaths(values).into_iter().map(|datapath| Note {
                datapath,
                stage: flow.stage,
                matches: flow.matches.clone(),
                priority: flow.priority.into(),
                actions: flow.actions.clone(),
                now,
            }));
        }
    }
    notes
}

/// The decimal number that follows a prefix in a text.
fn number_after(text: &str, prefix: &str) -> Option<u16> {
    let rest = &text[text.find(prefix)? + prefix.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    digits.parse().ok()
}

/// The decimal number that follows a prefix at a text's start, and what is joined to both.
fn number_then<'t>(text: &'t str, prefix: &str) -> Option<(u16, &'t str)> {
    let (number, rest) = text.strip_prefix(prefix)?.split_once(" && ")?;
    Some((number.parse().ok()?, rest))
}

/// The numbers of policies with one priority and match.
#[derive(Debug, Default)]
pub struct Policy {
    /// The chains that these policies are in, but for the main one.
    pub chains: BTreeSet<u16>,
    /// The chain that one of them jumps to.
    pub jump: Option<u16>,
}

impl StickyIds {
    /// The numbers of these flows of the southbound database.
    pub fn load(db: &sb::Database) -> StickyIds {
        let mut numbers = StickyIds::default();
        for row in db.logical_flow.values() {
            let Some(stage) = row.external_ids.get("stage-name").and_then(|n| Stage::from_name(n)) else { continue };
            if !STAGES.contains(&stage) || !numbered(&row.r#match, &row.actions) {
                continue;
            }
            let group = row.logical_dp_group.and_then(|g| db.logical_dp_group.get(&g));
            let members = group.into_iter().flat_map(|g| &g.datapaths).chain(&row.logical_datapath);
            for datapath in members.filter_map(|d| db.datapath_binding.get(d)?.nb_uuid) {
                numbers.add(datapath, stage, &row.r#match, row.priority, &row.actions);
            }
        }
        numbers
    }

    fn add(&mut self, datapath: Uuid, stage: Stage, matches: &str, priority: i64, actions: &str) {
        let of_stage = self.flows.entry((datapath, stage)).or_default();
        let all = of_stage.entry(matches.into()).or_default();
        self.matches += usize::from(all.is_empty());
        all.insert((priority, actions.into()));
    }

    /// Takes over what [`notes`] gave.
    pub fn note(&mut self, notes: Vec<Note>) {
        for n in notes {
            if n.now {
                self.add(n.datapath, n.stage, &n.matches, n.priority, &n.actions);
            } else {
                self.remove(n);
            }
        }
    }

    /// Takes a flow out, and the match and the router when it was the last with them.
    fn remove(&mut self, n: Note) {
        let place = (n.datapath, n.stage);
        let Some(of_stage) = self.flows.get_mut(&place) else { return };
        if let Some(all) = of_stage.get_mut(&n.matches) {
            all.remove(&(n.priority, n.actions));
            if all.is_empty() {
                of_stage.remove(&n.matches);
                self.matches -= 1;
            }
        }
        if of_stage.is_empty() {
            self.flows.remove(&place);
        }
    }

    /// The number of matches that have flows with numbers.
    pub fn len(&self) -> usize {
        self.matches
    }

    /// Whether no flow has a number.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The match, the priority and the actions of each flow.
    fn of(&self, router: Uuid, stage: Stage) -> impl Iterator<Item = (&Str, i64, &Str)> {
        let all = self.flows.get(&(router, stage)).into_iter().flatten();
        all.flat_map(|(m, all)| all.iter().map(move |(p, a)| (m, *p, a)))
    }

    /// The group that a flow chooses a member of.
    pub fn group(&self, router: Uuid, stage: Stage, matches: &str) -> Option<u16> {
        let all = self.flows.get(&(router, stage))?.get(matches)?;
        all.iter().find_map(|(_, a)| number_after(a, formatcp!("{REG_ECMP_GROUP_ID} = ")).filter(|n| *n != 0))
    }

    /// The member of a group that has these actions.
    pub fn member(&self, router: Uuid, stage: Stage, group: u16, actions: &str) -> Option<u16> {
        let prefix = format!("{REG_ECMP_GROUP_ID} == {group} && {REG_ECMP_MEMBER_ID} == ");
        let from = self.flows.get(&(router, stage))?.range::<str, _>((Bound::Included(&*prefix), Bound::Unbounded));
        let mut members = from.take_while(|(m, _)| m.starts_with(&prefix));
        let (matches, _) = members.find(|(_, all)| all.iter().any(|(_, a)| &**a == actions))?;
        number_after(matches, &prefix)
    }

    /// The route table of a port.
    pub fn table_of_port(&self, router: Uuid, inport: &str) -> Option<u16> {
        let all = self.flows.get(&(router, Stage::LrInIpRoutingPre))?.get(&*format!("inport == {inport}"))?;
        all.iter().find_map(|(_, a)| number_after(a, formatcp!("{REG_ROUTE_TABLE_ID} = ")))
    }

    /// The route tables that have a route with a match, by the match. All are gone through once: whoever has thousands of
    /// routes asks once.
    pub fn tables_by_route(&self, router: Uuid) -> HashMap<&str, BTreeSet<u16>> {
        let mut by_match: HashMap<&str, BTreeSet<u16>> = HashMap::new();
        for (m, ..) in self.of(router, Stage::LrInIpRouting) {
            if let Some((table, rest)) = number_then(m, formatcp!("{REG_ROUTE_TABLE_ID} == ")).filter(|(t, _)| *t != 0)
            {
                by_match.entry(rest).or_default().insert(table);
            }
        }
        by_match
    }

    /// What is known of each policy, by priority and match. All are gone through once.
    pub fn policies(&self, router: Uuid) -> HashMap<(i64, &str), Policy> {
        let mut all: HashMap<(i64, &str), Policy> = HashMap::new();
        for (m, priority, actions) in self.of(router, Stage::LrInPolicy) {
            let Some((chain, rest)) = number_then(m, formatcp!("{REG_POLICY_CHAIN_ID} == ")) else { continue };
            let Some(matches) = rest.strip_prefix('(').and_then(|m| m.strip_suffix(')')) else { continue };
            let policy = all.entry((priority, matches)).or_default();
            policy.chains.extend(Some(chain).filter(|c| *c != 0));
            policy.jump = policy.jump.or_else(|| number_after(actions, formatcp!("{REG_POLICY_CHAIN_ID}=")));
        }
        all
    }
}

fn numbered(matches: &str, actions: &str) -> bool {
    [
        formatcp!("{REG_ROUTE_TABLE_ID} == "),
        formatcp!("{REG_ECMP_GROUP_ID} == "),
        formatcp!("{REG_POLICY_CHAIN_ID} == "),
    ]
    .iter()
    .any(|p| matches.starts_with(p))
        || actions.starts_with(formatcp!("{REG_ROUTE_TABLE_ID} = "))
        || number_after(actions, formatcp!("{REG_ECMP_GROUP_ID} = ")).is_some_and(|n| n != 0)
}

/// Gives numbers from 1 up: to each the one that it prefers, if nobody before prefers the same, then the lowest free.
pub fn assign<K: Ord + Clone>(wishes: Vec<(K, Option<u16>)>) -> BTreeMap<K, u16> {
    assign_members(wishes.into_iter().map(|(key, wish)| (key, wish.filter(|n| *n > 0))).collect())
}

/// The same for members of a group. ovn-northd numbers them from 0 when it has taken one out of the group, so that 0 is kept.
pub fn assign_members<K: Ord + Clone>(wishes: Vec<(K, Option<u16>)>) -> BTreeMap<K, u16> {
    let mut given: BTreeMap<K, u16> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (key, wish) in &wishes {
        if let Some(n) = wish.filter(|n| used.insert(*n)) {
            given.insert(key.clone(), n);
        }
    }
    let mut next = 1;
    for (key, _) in wishes {
        if given.contains_key(&key) {
            continue;
        }
        while !used.insert(next) {
            next += 1;
        }
        given.insert(key, next);
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_then_lowest() {
        let given = assign(vec![('a', Some(2)), ('b', None), ('c', Some(2)), ('d', Some(5)), ('e', None)]);
        assert_eq!(given, [('a', 2), ('b', 1), ('c', 3), ('d', 5), ('e', 4)].into());
        let wishes = vec![('a', Some(0)), ('b', None), ('c', Some(1))];
        assert_eq!(assign_members(wishes.clone()), [('a', 0), ('b', 2), ('c', 1)].into());
        assert_eq!(assign(wishes), [('a', 2), ('b', 3), ('c', 1)].into());
    }

    #[test]
    fn numbers_in_texts() {
        assert_eq!(number_after("ip.ttl--; reg8[0..15] = 12; next;", "reg8[0..15] = "), Some(12));
        assert_eq!(number_after("reg8[0..15] = x", "reg8[0..15] = "), None);
        assert!(numbered("ip", "reg8[0..15] = 1; reg8[16..31] = select(1, 2);"));
        assert!(!numbered("ip4.dst == 1.0.0.0/8", "ip.ttl--; reg8[0..15] = 0; next;"));
    }
}
