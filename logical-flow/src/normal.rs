//! Normalisation: from comparisons joined by `&&` and `||` to sets of matches, as flow tables want them.
//!
//! An expression becomes a disjunction of conjunctions in which each field has a list of alternatives.
//! A conjunction whose fields have one alternative each is one match; with one list, a match per alternative;
//! with several lists, a *conjunctive match* (ovs-fields(7), "Conjunctive Match Fields"), whose number of flows is the
//! sum of the lists' lengths, and one, instead of their product. As in OVN 26.03 that is so however short the lists are: for
//! two of two alternatives each, five flows stand in place of four.

use crate::field::{Field, ones};
use crate::fields::Fields;
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// `field & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Compare {
    /// The field.
    pub field: Field,
    /// The bits looked for; none outside the mask.
    pub value: u128,
    /// The bits looked at.
    pub mask: u128,
}

/// Comparisons joined by "and" and "or".
#[derive(Clone, Debug, PartialEq)]
pub enum Boolean {
    /// One comparison.
    Compare(Compare),
    /// All of them; of none, true.
    And(Vec<Boolean>),
    /// One of them; of none, false.
    Or(Vec<Boolean>),
    /// One of them; each keeps a match of its own, also where another one includes it. So a member of an address set that comes
    /// or goes changes its own flows alone.
    Any(Vec<Boolean>),
    /// What a predicate or a prerequisite comes to.
    Known(Arc<Known>),
}

/// An expression that many others have in them, with its products.
#[derive(Debug, PartialEq)]
pub struct Known {
    meaning: Boolean,
    products: Products,
}

impl Boolean {
    /// True or false.
    pub fn literal(b: bool) -> Boolean {
        if b { Boolean::And(Vec::new()) } else { Boolean::Or(Vec::new()) }
    }

    /// The same, normalised once for all expressions that it is in.
    pub(crate) fn known(self) -> Boolean {
        let products = normalize(&self);
        Boolean::Known(Arc::new(Known { meaning: self, products }))
    }

    /// Whether a packet with these field values satisfies it: the slow, obvious reference.
    pub fn holds(&self, packet: &dyn Fn(Field) -> u128) -> bool {
        match self {
            Boolean::Compare(c) => packet(c.field) & c.mask == c.value,
            Boolean::And(l) => l.iter().all(|b| b.holds(packet)),
            Boolean::Or(l) | Boolean::Any(l) => l.iter().any(|b| b.holds(packet)),
            Boolean::Known(k) => k.meaning.holds(packet),
        }
    }
}

/// A value and a mask.
pub type Masked = (u128, u128);

/// One flow's match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// The packet has all of these.
    Plain(Fields),
    /// The packet has these and satisfies clause `k` of `n` (from 0) of conjunctions, each given by its number
    /// within the expression (from 1).
    Clause(Fields, Clauses),
    /// The packet has these and satisfies all clauses of this conjunction.
    Conjunction(Fields, u32),
}

/// What a field may be; nearly always one value.
type Alternatives = SmallVec<[Masked; 1]>;

/// A conjunction: each field's alternatives. Fields are the narrow ones: overlays of registers are split. There are a few, which
/// lie side by side in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Product(Vec<(Field, Alternatives)>);

impl Product {
    fn of(field: Field, alternatives: Alternatives) -> Product {
        Product(vec![(field, alternatives)])
    }

    fn place(&self, field: Field) -> Result<usize, usize> {
        self.0.binary_search_by_key(&field, |(f, _)| *f)
    }

    /// What is said of a field.
    pub(crate) fn get(&self, field: Field) -> Option<&Alternatives> {
        let at = self.place(field).ok()?;
        self.0.get(at).map(|(_, l)| l)
    }

    /// Sets what is said of a field of which nothing is.
    fn insert(&mut self, field: Field, alternatives: Alternatives) {
        let (Ok(at) | Err(at)) = self.place(field);
        self.0.insert(at, (field, alternatives));
    }

    /// Adds to what a field may be.
    fn extend(&mut self, field: Field, alternatives: &[Masked]) {
        match self.place(field).map(|at| self.0.get_mut(at)) {
            Ok(Some((_, have))) => have.extend_from_slice(alternatives),
            _ => self.insert(field, alternatives.into()),
        }
    }

    /// Demands that a field is one of these besides: the alternatives that agree. False where none do.
    fn restrict(&mut self, field: Field, alternatives: &[Masked]) -> bool {
        let Ok(Some((_, have))) = self.place(field).map(|at| self.0.get_mut(at)) else {
            self.insert(field, alternatives.into());
            return true;
        };
        if let ([x], [y]) = (&mut have[..], alternatives) {
            return agree(*x, *y).map(|both| *x = both).is_some();
        }
        let pairs = have.iter().flat_map(|x| alternatives.iter().map(move |y| (*x, *y)));
        let mut both: Alternatives = pairs.filter_map(|(x, y)| agree(x, y)).collect();
        crush(&mut both);
        *have = both;
        !have.is_empty()
    }

    /// Demands what another one does besides. False where nothing agrees.
    fn restrict_all(&mut self, other: &Product) -> bool {
        other.0.iter().all(|(f, l)| self.restrict(*f, l))
    }

    /// The rest, without a field.
    fn without(&self, field: Field) -> Product {
        Product(self.0.iter().filter(|(f, _)| *f != field).cloned().collect())
    }
}

/// How many fields most conjunctions have at most.
const FIELDS: usize = 8;

/// Products, of which there is nearly always one.
type Products = SmallVec<[Product; 1]>;

/// Clause `k` of `n` (from 0) of the conjunction with a number (from 1): number, `k`, `n`.
pub type Clause = (u32, u8, u8);

/// The clauses of one match, of which there is nearly always one.
pub type Clauses = SmallVec<[Clause; 1]>;

/// A product's fields: those with one value, and the lists of the others, in the order of the fields' names in the
/// language, in which clauses are numbered.
pub(crate) struct Lists<'p> {
    pub(crate) base: Fields,
    pub(crate) lists: Vec<(Field, &'static str, &'p [Masked])>,
}

impl Lists<'_> {
    pub(crate) fn of(p: &Product) -> Lists<'_> {
        let name = |f: Field| crate::symbol::name_of(f);
        let (mut base, mut lists) = (Fields::default(), Vec::new());
        for (f, l) in &p.0 {
            match l.as_slice() {
                [] => {}
                [one] => base.insert(*f, *one),
                several => lists.push((*f, name(*f), several)),
            }
        }
        lists.sort_unstable_by_key(|(_, name, _)| *name);
        Lists { base, lists }
    }
}

/// The matches of an expression, without duplicates.
pub fn matches(e: &Boolean) -> Vec<Match> {
    let (mut plain, mut clauses, mut conjunctions) = (Vec::new(), Vec::new(), Vec::new());
    for p in normalize(e) {
        let Lists { base, lists } = Lists::of(&p);
        match lists.as_slice() {
            [] => plain.push(base),
            [(field, _, list)] => plain.extend(list.iter().map(|m| base.with(*field, *m))),
            _ => {
                let number = conjunctions.len() as u32 + 1;
                clauses.reserve(lists.iter().map(|(_, _, list)| list.len()).sum());
                for (k, (field, _, list)) in (0u8..).zip(&lists) {
                    for m in *list {
                        clauses.push((base.with(*field, *m), (number, k, lists.len() as u8)));
                    }
                }
                conjunctions.push(base);
            }
        }
    }
    assemble(plain, clauses, conjunctions)
}

/// Matches of all kinds, each once; conjunctions are numbered as they come.
pub(crate) fn assemble(
    mut plain: Vec<Fields>,
    mut clauses: Vec<(Fields, Clause)>,
    conjunctions: Vec<Fields>,
) -> Vec<Match> {
    plain.sort_unstable();
    plain.dedup();
    // Clauses of one match go together, in the order of the conjunctions. No two of one conjunction have the same match.
    if clauses.windows(2).any(|w| matches!(w, [(_, (a, ..)), (_, (b, ..))] if a != b)) {
        clauses.sort_unstable();
    }
    // A clause whose match is also a plain one is subsumed: the plain flow decides already.
    let mut out: Vec<Match> = Vec::with_capacity(clauses.len() + conjunctions.len() + plain.len());
    for (fields, clause) in clauses {
        match out.last_mut() {
            Some(Match::Clause(same, list)) if *same == fields => list.push(clause),
            _ if plain.binary_search(&fields).is_err() => out.push(Match::Clause(fields, smallvec![clause])),
            _ => {}
        }
    }
    out.extend((1..).zip(conjunctions).map(|(number, base)| Match::Conjunction(base, number)));
    out.extend(plain.into_iter().map(Match::Plain));
    out
}

/// Most products that an expression may come to; past it the expression is refused as too large by giving up the rest.
const MAX_PRODUCTS: usize = 65_536;

pub(crate) fn normalize(e: &Boolean) -> Products {
    match e {
        Boolean::Compare(c) => smallvec![compare(c)],
        Boolean::Known(k) => k.products.clone(),
        Boolean::Or(list) | Boolean::Any(list) => {
            let each = |b: &Boolean| matches!(b, Boolean::Any(_));
            let keep = each(e) || list.iter().any(each);
            let mut out = Products::new();
            // What each field may be of which alone something is said.
            let mut single = Product::default();
            for b in list {
                // Alternatives of one field go together, so that they can be a clause.
                if let Some((f, m)) = alternative(b) {
                    single.extend(f, &[m]);
                    continue;
                }
                for p in normalize(b) {
                    match p.0.as_slice() {
                        [] => return smallvec![p],
                        [(f, l)] if !f.must_crossproduct() => single.extend(*f, l),
                        _ => out.push(p),
                    }
                }
            }
            for (f, mut l) in single.0 {
                if keep {
                    l.sort();
                    l.dedup();
                } else {
                    crush(&mut l);
                }
                out.push(Product::of(f, l));
            }
            out.sort();
            out.dedup();
            gathered(out, keep)
        }
        Boolean::And(list) => {
            let (mut one, mut several) = (Product(Vec::with_capacity(FIELDS)), Vec::new());
            if !demand(list, &mut one, &mut several) {
                return Products::new();
            }
            let mut out: Products = smallvec![one];
            // The narrow ones first, so that contradictions show early.
            several.sort_by_key(|f| f.len());
            for f in several {
                if let [one] = &mut out[..] {
                    let mut fitting = f.iter().filter(|p| !contradict(one, p));
                    if let (Some(only), None) = (fitting.next(), fitting.next()) {
                        if !one.restrict_all(only) {
                            return Products::new();
                        }
                        continue;
                    }
                }
                let mut next = Products::new();
                for a in &out {
                    next.extend(f.iter().filter_map(|b| join(a, b)));
                    if next.len() > MAX_PRODUCTS {
                        break;
                    }
                }
                next.sort();
                next.dedup();
                out = next;
            }
            out
        }
    }
}

/// Demands each of these of `one`, but for those that come to several products. False where they contradict each other.
fn demand<'e>(list: &'e [Boolean], one: &mut Product, several: &mut Vec<Cow<'e, [Product]>>) -> bool {
    list.iter().all(|b| {
        let products = match b {
            Boolean::And(list) => return demand(list, one, several),
            Boolean::Known(k) => Cow::Borrowed(&*k.products),
            Boolean::Compare(c) => return narrow(c).all(|(f, m)| one.restrict(f, &[m])),
            Boolean::Or(_) | Boolean::Any(_) => Cow::Owned(normalize(b).into_vec()),
        };
        match &*products {
            [] => return false,
            [only] => return one.restrict_all(only),
            _ => several.push(products),
        }
        true
    })
}

/// Products that differ in the alternatives of one field only, as one product each.
fn gathered(list: Products, keep: bool) -> Products {
    if list.len() < 2 {
        return list;
    }
    let without = |p: &Product, f: Field| (f, p.without(f));
    let open = |p: &Product| p.0.iter().map(|(f, _)| *f).filter(|f| !f.must_crossproduct()).collect::<Vec<_>>();
    let mut sizes: BTreeMap<(Field, Product), usize> = BTreeMap::new();
    for p in &list {
        for f in open(p) {
            *sizes.entry(without(p, f)).or_default() += 1;
        }
    }
    let mut out = Products::new();
    let mut groups: BTreeMap<(Field, Product), Alternatives> = BTreeMap::new();
    for p in list {
        // Where a product could go into several groups, the largest has it.
        let best = open(&p).into_iter().map(|f| without(&p, f)).max_by_key(|k| sizes.get(k).copied().unwrap_or(0));
        match best.filter(|k| sizes.get(k).is_some_and(|n| *n > 1)) {
            Some(key) => {
                let alternatives = p.get(key.0).cloned().unwrap_or_default();
                groups.entry(key).or_default().extend(alternatives);
            }
            None => out.push(p),
        }
    }
    for ((f, mut p), mut l) in groups {
        if keep {
            l.sort();
            l.dedup();
        } else {
            crush(&mut l);
        }
        p.insert(f, l);
        out.push(p);
    }
    out.sort();
    out.dedup();
    out
}

/// A comparison of a field whose alternatives go together, as one of these.
fn alternative(b: &Boolean) -> Option<(Field, Masked)> {
    match b {
        Boolean::Compare(Compare { field: Field::XReg(_) | Field::XxReg(_), .. }) => None,
        Boolean::Compare(c) if c.mask != 0 && !c.field.must_crossproduct() => Some((c.field, (c.value, c.mask))),
        _ => None,
    }
}

/// Both: for fields of both, the alternatives that agree. None where nothing agrees.
fn join(a: &Product, b: &Product) -> Option<Product> {
    if contradict(a, b) {
        return None;
    }
    let mut both = a.clone();
    both.restrict_all(b).then_some(both)
}

/// Whether two contradict each other in a field that is one value in each, as most of those do that contradict each other: of
/// the EtherType or of the protocol.
fn contradict(a: &Product, b: &Product) -> bool {
    b.0.iter().any(|(f, l)| match (l.as_slice(), a.get(*f).map(|l| &**l)) {
        ([y], Some([x])) => agree(*x, *y).is_none(),
        _ => false,
    })
}

fn agree(a: Masked, b: Masked) -> Option<Masked> {
    let common = a.1 & b.1;
    (a.0 & common == b.0 & common).then_some((a.0 | b.0, a.1 | b.1))
}

/// Sorts alternatives and drops those that another one includes.
fn crush(l: &mut Alternatives) {
    if l.len() < 2 {
        return;
    }
    l.sort();
    l.dedup();
    // Of those that look at the same bits none includes another.
    if l.first().is_none_or(|(_, mask)| l.iter().all(|(_, m)| m == mask)) {
        return;
    }
    // A wider alternative has fewer mask bits; group by mask so that each check is a look-up.
    let mut by_mask: BTreeMap<u128, FxHashSet<u128>> = BTreeMap::new();
    for (v, m) in l.iter() {
        by_mask.entry(*m).or_default().insert(*v);
    }
    l.retain(|&mut (v, m)| {
        !by_mask.iter().any(|(wide, values)| *wide != m && wide & m == *wide && values.contains(&(v & wide)))
    });
}

/// A comparison as a product.
fn compare(c: &Compare) -> Product {
    Product(narrow(c).map(|(f, m)| (f, smallvec![m])).collect())
}

/// A comparison as ones of narrow fields: register overlays are split into 32-bit registers. Of one that looks at no bits nothing
/// is left.
fn narrow(c: &Compare) -> impl Iterator<Item = (Field, Masked)> {
    let c = *c;
    let (first, count) = match c.field {
        Field::XReg(n) => (n * 2, 2u8),
        Field::XxReg(n) => (n * 4, 4),
        _ => (0, 1),
    };
    let part = move |k| {
        if count == 1 {
            return (c.field, (c.value, c.mask));
        }
        let shift = 32 * (count - 1 - k);
        (Field::Reg(first + k), (c.value >> shift & ones(32), c.mask >> shift & ones(32)))
    };
    (0..count).map(part).filter(|(_, (_, mask))| *mask != 0)
}

/// Whether a packet satisfies one of the matches: conjunctions are taken as the flow table would.
pub fn any_holds(list: &[Match], packet: &dyn Fn(Field) -> u128) -> bool {
    let has = |f: &Fields| f.iter().all(|(f, (v, m))| packet(*f) & m == *v);
    let mut satisfied: BTreeMap<u32, std::collections::BTreeSet<u8>> = BTreeMap::new();
    let mut wanted: BTreeMap<u32, u8> = BTreeMap::new();
    for m in list {
        if let Match::Clause(f, clauses) = m {
            for (id, k, n) in clauses {
                wanted.insert(*id, *n);
                if has(f) {
                    satisfied.entry(*id).or_default().insert(*k);
                }
            }
        }
    }
    list.iter().any(|m| match m {
        Match::Plain(f) => has(f),
        Match::Clause(..) => false,
        Match::Conjunction(f, id) => {
            has(f) && satisfied.get(id).map(std::collections::BTreeSet::len) == wanted.get(id).map(|n| usize::from(*n))
        }
    })
}
