//! Lists in order, each element once: what sets and maps are kept as. All take one look at each element, and fewer at what two
//! large lists have in common at both ends.

use std::cmp::Ordering;

/// What is in the first list alone, in both, in the second alone: goes through both in order.
fn walk<T>(a: &[T], b: &[T], order: impl Fn(&T, &T) -> Ordering, mut each: impl FnMut(Option<&T>, Option<&T>)) {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => order(x, y),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        match next {
            Ordering::Less => each(a.next(), None),
            Ordering::Greater => each(None, b.next()),
            Ordering::Equal => each(a.next(), b.next()),
        }
    }
}

/// Two lists without what they have in common at the beginning and at the end.
fn apart<'a, T: PartialEq>(a: &'a [T], b: &'a [T]) -> (&'a [T], &'a [T]) {
    let start = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.get(start..).unwrap_or_default(), b.get(start..).unwrap_or_default());
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    (a.get(..a.len() - end).unwrap_or_default(), b.get(..b.len() - end).unwrap_or_default())
}

/// The elements of the first list that the second lacks.
pub(crate) fn minus<T: Ord + Clone>(a: &[T], b: &[T]) -> Vec<T> {
    let mut out = Vec::new();
    if b.len() < 8 {
        out.reserve(a.len());
        out.extend(a.iter().filter(|x| !b.contains(x)).cloned());
        return out;
    }
    walk(a, b, Ord::cmp, |x, y| {
        if y.is_none() {
            out.extend(x.cloned());
        }
    });
    out
}

/// What two lists do not have in common: of the first one, of the second one.
pub(crate) fn exclusive<T: Ord + Clone>(a: &[T], b: &[T]) -> (Vec<T>, Vec<T>) {
    let (a, b) = apart(a, b);
    (minus(a, b), minus(b, a))
}

/// The elements of both lists; `both` chooses where they have an element of the same place in the order.
pub(crate) fn merge<T: Clone>(
    a: &[T],
    b: &[T],
    order: impl Fn(&T, &T) -> Ordering,
    both: impl Fn(&T, &T) -> Option<T>,
) -> Vec<T> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    walk(a, b, order, |x, y| match (x, y) {
        (Some(x), Some(y)) => out.extend(both(x, y)),
        (x, y) => out.extend(x.or(y).cloned()),
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All as sets do it, for all pairs of lists of up to five numbers, and of longer ones.
    #[test]
    fn as_sets_do_it() {
        let small = |bits: u32| (0..5).filter(|i| bits & 1 << i != 0).collect::<Vec<u32>>();
        let long = |n: u32, d: u32| (0..n).filter(|i| i % d != 1).collect::<Vec<u32>>();
        let mut lists: Vec<Vec<u32>> = (0..32).map(small).collect();
        lists.extend([long(40, 7), long(50, 2), long(45, 40)]);
        for a in &lists {
            for b in &lists {
                let (x, y): (BTreeSet<u32>, BTreeSet<u32>) = (a.iter().copied().collect(), b.iter().copied().collect());
                let difference = |x: &BTreeSet<u32>, y| x.difference(y).copied().collect::<Vec<u32>>();
                assert_eq!(minus(a, b), difference(&x, &y));
                assert_eq!(exclusive(a, b), (difference(&x, &y), difference(&y, &x)));
                let union = merge(a, b, Ord::cmp, |x, _| Some(*x));
                assert_eq!(union, x.union(&y).copied().collect::<Vec<u32>>());
                let toggled = merge(a, b, Ord::cmp, |_, _| None);
                assert_eq!(toggled, x.symmetric_difference(&y).copied().collect::<Vec<u32>>());
            }
        }
    }
}
