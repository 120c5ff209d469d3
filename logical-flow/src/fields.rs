//! The field values of one match.

use crate::field::Field;
use crate::normal::Masked;
use smallvec::SmallVec;

/// Field values that a packet must have, each field once, in the order of the fields. Most matches have a handful, so they lie
/// side by side: a conjunction over an address set clones and compares its common part for each member.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fields(SmallVec<[(Field, Masked); 8]>);

impl Fields {
    fn place(&self, field: Field) -> Result<usize, usize> {
        self.0.binary_search_by_key(&field, |(f, _)| *f)
    }

    /// The value and the mask of a field.
    pub fn get(&self, field: Field) -> Option<Masked> {
        let at = self.place(field).ok()?;
        self.0.get(at).map(|(_, m)| *m)
    }

    /// Sets a field, in place of what was said of it.
    pub fn insert(&mut self, field: Field, value: Masked) {
        // Nearly always they come in their order.
        if self.0.last().is_none_or(|(last, _)| *last < field) {
            return self.0.push((field, value));
        }
        match self.place(field) {
            Ok(at) => {
                if let Some(slot) = self.0.get_mut(at) {
                    slot.1 = value;
                }
            }
            Err(at) => self.0.insert(at, (field, value)),
        }
    }

    /// These, and another one in place of what was said of its field.
    pub(crate) fn with(&self, field: Field, value: Masked) -> Fields {
        let mut both = Fields(SmallVec::from_slice(&self.0));
        both.insert(field, value);
        both
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, (Field, Masked)> {
        self.0.iter()
    }
}

impl FromIterator<(Field, Masked)> for Fields {
    /// Of a field that is named twice, the last value stands.
    fn from_iter<I: IntoIterator<Item = (Field, Masked)>>(all: I) -> Fields {
        let mut out = Fields::default();
        all.into_iter().for_each(|(f, m)| out.insert(f, m));
        out
    }
}

impl IntoIterator for Fields {
    type Item = (Field, Masked);
    type IntoIter = smallvec::IntoIter<[(Field, Masked); 8]>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Fields {
    type Item = &'a (Field, Masked);
    type IntoIter = std::slice::Iter<'a, (Field, Masked)>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
