//! Features of tables (OpenFlow 1.5 section 7.3.5.18): what their flows can match and do, and requests to change that.

use super::Version;
use super::stats::put_table_name;
use crate::OfError;
use crate::field::{ALL_FIELDS, FieldId};
use crate::ids::TableId;
use crate::wire::{DecodeError, Put, Reader, Result, oxm};

/// Bytes before the properties.
const HEAD: usize = 64;
/// Instructions: metadata, write, apply and clear actions; since 1.5 meters are an action.
const INSTRUCTIONS: [u16; 4] = [2, 3, 4, 5];
const GOTO_TABLE: u16 = 1;
const METER: u16 = 6;
/// Actions of all versions: output, times to live of MPLS, tags and labels, queue, group, times to live, fields.
const ACTIONS: [u16; 12] = [0, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];
/// Those of 1.5: copying of fields, meters.
const ACTIONS_OF_15: [u16; 2] = [28, 29];

/// Kinds of properties. Each of the first has the same for packets that no flow matches, whose kind is one more.
mod kind {
    pub(super) const INSTRUCTIONS: u16 = 0;
    pub(super) const NEXT_TABLES: u16 = 2;
    pub(super) const WRITE_ACTIONS: u16 = 4;
    pub(super) const APPLY_ACTIONS: u16 = 6;
    pub(super) const MATCH: u16 = 8;
    pub(super) const WILDCARDS: u16 = 10;
    pub(super) const WRITE_SET_FIELD: u16 = 12;
    pub(super) const APPLY_SET_FIELD: u16 = 14;
}

/// What a request wants (OFPTFC_*): all tables to be these, or some of them.
pub const REPLACE: u8 = 0;
/// See [`REPLACE`].
pub const MODIFY: u8 = 1;

/// The features of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableFeatures {
    /// The table.
    pub table: TableId,
    /// What a request wants; 0 before 1.5.
    pub command: u8,
    /// Its name; empty if it has none.
    pub name: String,
    /// Bits of metadata that can be matched, and written.
    pub metadata: [u64; 2],
    /// The most flows.
    pub most: u32,
    /// Properties: kind and value.
    pub properties: Vec<(u16, Vec<u8>)>,
}

/// Identifiers of instructions or actions, each with its length.
fn identifiers(list: impl IntoIterator<Item = u16>) -> Vec<u8> {
    list.into_iter().flat_map(|n| [n.to_be_bytes(), 4u16.to_be_bytes()].concat()).collect()
}

fn fields(wanted: impl Fn(FieldId) -> bool, masked: impl Fn(FieldId) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    for f in ALL_FIELDS.iter().copied().filter(|f| !f.def().headers.is_empty() && wanted(*f)) {
        oxm::put_id(&mut out, f, masked(f));
    }
    out
}

impl TableFeatures {
    /// The properties of a table from which packets can go on to some others, given which fields can be written.
    pub fn properties(
        v: Version,
        next: impl Iterator<Item = TableId>,
        writable: impl Fn(FieldId) -> bool,
    ) -> Vec<(u16, Vec<u8>)> {
        let next: Vec<u8> = next.map(|t| t.0).collect();
        let newest = v >= Version::Of15;
        let meter = (!newest).then_some(METER);
        let goto = (!next.is_empty()).then_some(GOTO_TABLE);
        let instructions = identifiers(goto.into_iter().chain(INSTRUCTIONS).chain(meter));
        let actions = identifiers(ACTIONS.into_iter().chain(ACTIONS_OF_15.into_iter().filter(|_| newest)));
        let written = fields(&writable, |_| false);
        let both = [
            (kind::INSTRUCTIONS, instructions),
            (kind::NEXT_TABLES, next),
            (kind::WRITE_ACTIONS, actions.clone()),
            (kind::APPLY_ACTIONS, actions),
            (kind::WRITE_SET_FIELD, written.clone()),
            (kind::APPLY_SET_FIELD, written),
        ];
        let mut out: Vec<(u16, Vec<u8>)> =
            both.into_iter().flat_map(|(kind, value)| [(kind, value.clone()), (kind + 1, value)]).collect();
        out.push((kind::MATCH, fields(|_| true, |f| f.def().maskable)));
        out.push((kind::WILDCARDS, fields(|_| true, |_| false)));
        out.sort();
        out
    }

    /// Whether two tables have the same features, whatever they are called and in which order these are.
    pub fn agrees(&self, other: &TableFeatures) -> bool {
        let sorted = |t: &TableFeatures| {
            let items = |(kind, value): &(u16, Vec<u8>)| (*kind, items(*kind, value));
            let mut all: Vec<(u16, Vec<Vec<u8>>)> = t.properties.iter().map(items).collect();
            all.sort();
            all
        };
        (self.metadata, self.most) == (other.metadata, other.most) && sorted(self) == sorted(other)
    }

    pub(super) fn put(&self, o: &mut Vec<u8>, v: Version) {
        let start = o.len();
        o.p16(0);
        o.p8(self.table.0);
        o.p8(if v >= Version::Of15 { self.command } else { 0 });
        o.zeros(4);
        put_table_name(o, &self.name);
        self.metadata.iter().for_each(|bits| o.p64(*bits));
        o.zeros(4);
        o.p32(self.most);
        for (kind, value) in &self.properties {
            let at = o.len();
            o.p16(*kind);
            o.p16(4 + value.len() as u16);
            o.extend_from_slice(value);
            o.pad8(at);
        }
        o.patch_len(start, start);
    }

    /// Reads the tables of a request, or of an answer.
    ///
    /// # Errors
    /// OFPBPC_BAD_LEN, or that a value is none.
    pub fn pull_all(body: &[u8]) -> Result<Vec<TableFeatures>> {
        let bad = || OfError::PropertyBadLength.because("table features: bad length");
        let (mut rest, mut out) = (body, Vec::new());
        while !rest.is_empty() {
            let len = rest.first_chunk().map_or(0, |b| usize::from(u16::from_be_bytes(*b)));
            if len < HEAD || len > rest.len() {
                return Err(bad());
            }
            let (one, behind) = rest.split_at(len);
            rest = behind;
            out.push(TableFeatures::pull(one)?);
        }
        Ok(out)
    }

    fn pull(one: &[u8]) -> Result<TableFeatures> {
        let bad = || OfError::PropertyBadLength.because("table features: bad length");
        let mut r = Reader::new(one);
        r.skip(2)?;
        let (table, command) = (TableId(r.u8()?), r.u8()?);
        r.skip(4)?;
        let name = r.take(32)?.split(|b| *b == 0).next().map(|n| String::from_utf8_lossy(n).into_owned());
        let metadata = [r.u64()?, r.u64()?];
        r.skip(4)?;
        let most = r.u32()?;
        let mut properties = Vec::new();
        while !r.is_empty() {
            let (kind, len) = (r.u16()?, usize::from(r.u16()?));
            let value = r.take(len.checked_sub(4).ok_or_else(bad)?).map_err(|_| bad())?.to_vec();
            r.skip_pad(len.next_multiple_of(8) - len);
            properties.push((kind, value));
        }
        Ok(TableFeatures { table, command, name: name.unwrap_or_default(), metadata, most, properties })
    }
}

/// The items of a property, in order.
fn items(kind: u16, value: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut rest = value;
    while !rest.is_empty() {
        let experimenters = rest.starts_with(&[0xff, 0xff]);
        let len = match kind {
            kind::NEXT_TABLES | 3 => 1,
            _ if experimenters => 8,
            _ => 4,
        };
        let (one, behind) = rest.split_at(len.min(rest.len()));
        all.push(one.to_vec());
        rest = behind;
    }
    all.sort();
    all
}

/// An error for a request that wants what cannot be.
pub fn not_permitted(why: impl Into<String>) -> DecodeError {
    OfError::TableFeaturesNotPermitted.because(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_come_back_as_they_were() {
        for v in [Version::Of13, Version::Of14, Version::Of15] {
            let table = |table: u8, name: &str| TableFeatures {
                table: TableId(table),
                name: name.into(),
                metadata: [u64::MAX; 2],
                most: 1000,
                properties: TableFeatures::properties(v, (table + 1..254).map(TableId), |f| f != FieldId::EthType),
                ..TableFeatures::default()
            };
            let (mut bytes, tables) = (Vec::new(), [table(0, "main"), table(253, "")]);
            tables.iter().for_each(|t| t.put(&mut bytes, v));
            assert!(bytes.len().is_multiple_of(8));
            assert_eq!(TableFeatures::pull_all(&bytes).expect("features"), tables, "{v:?}");
            for cut in [1, 63, bytes.len() - 1] {
                assert!(TableFeatures::pull_all(&bytes[..cut]).is_err(), "{v:?} {cut}");
            }
            let mut other = tables[0].clone();
            other.name = "other".into();
            other.properties.reverse();
            assert!(tables[0].agrees(&other) && !tables[0].agrees(&tables[1]));
            // The last table has no way on.
            let goto =
                |t: &TableFeatures| t.properties.iter().find(|p| p.0 == 0).is_some_and(|p| p.1.starts_with(&[0, 1]));
            assert!(goto(&tables[0]) && !goto(&tables[1]));
        }
    }
}
