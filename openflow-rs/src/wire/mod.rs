//! The wire form of matches, actions and table changes (OpenFlow 1.0 to 1.5, Nicira extensions).

mod actions;
mod encap;
pub(crate) mod flow;
pub(crate) mod group;
mod learn;
mod nicira;
pub(crate) mod of10;
mod of11;
pub mod oxm;

use crate::OfError;

pub use actions::{decode_actions, encode_actions};

/// Nicira's experimenter id.
pub const NX_VENDOR: u32 = 0x0000_2320;
/// The Open Networking Foundation's experimenter id.
pub const ONF_VENDOR: u32 = 0x4f4e_4600;
/// Netronome's experimenter id (selection methods of groups).
pub const NTR_VENDOR: u32 = 0x0000_154d;
/// The number that was taken for it at first; still accepted.
pub const NTR_OLD_VENDOR: u32 = 0x0000_1540;

/// Bytes that are not a valid message, or a message that the switch refuses; `error` goes into the error reply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{detail} (OpenFlow error type {}, code {})", .error.numbers().0, .error.numbers().1)]
pub struct DecodeError {
    /// The error by its name.
    pub error: OfError,
    /// What is wrong, for people.
    pub detail: String,
}

impl DecodeError {
    pub(crate) fn new(error: OfError, detail: impl Into<String>) -> Self {
        DecodeError { error, detail: detail.into() }
    }

    /// Type and code of the error message.
    pub fn numbers(&self) -> (u16, u16) {
        self.error.numbers()
    }

    /// OFPBRC_BAD_LEN.
    pub(crate) fn len(what: &str) -> Self {
        Self::new(OfError::RequestBadLength, format!("{what}: bad length"))
    }

    /// OFPBRC_BAD_TYPE.
    pub(crate) fn message_type(t: u8) -> Self {
        Self::new(OfError::RequestBadType, format!("message type {t} is not supported"))
    }

    /// OFPBAC_BAD_TYPE.
    pub(crate) fn action_type(t: u16) -> Self {
        Self::new(OfError::ActionBadType, format!("action type {t} is not supported"))
    }

    /// OFPBAC_BAD_VENDOR_TYPE.
    pub(crate) fn vendor_action(vendor: u32, subtype: u16) -> Self {
        Self::new(
            OfError::ActionBadExperimenterType,
            format!("action type {subtype} of experimenter {vendor:#x} is not supported"),
        )
    }

    /// OFPBAC_BAD_LEN.
    pub(crate) fn action_len(what: &str) -> Self {
        Self::new(OfError::ActionBadLength, format!("action {what}: bad length"))
    }

    /// OFPBAC_BAD_ARGUMENT.
    pub(crate) fn argument(detail: impl Into<String>) -> Self {
        Self::new(OfError::ActionBadArgument, detail)
    }

    /// OFPBMC_BAD_FIELD.
    pub(crate) fn field(header: u32) -> Self {
        Self::new(OfError::MatchBadField, format!("match field {header:#010x} is not supported"))
    }
}

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

/// Reads big-endian values and never past the end.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) buf: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(buf: &'a [u8]) -> Self {
        Reader { buf }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.buf.len() {
            return Err(DecodeError::len("message is truncated"));
        }
        let (a, b) = self.buf.split_at(n);
        self.buf = b;
        Ok(a)
    }

    pub(crate) fn skip(&mut self, n: usize) -> Result<()> {
        self.take(n).map(|_| ())
    }

    /// Skips up to `n` bytes, fewer at the end.
    pub(crate) fn skip_pad(&mut self, n: usize) {
        self.buf = self.buf.get(n..).unwrap_or_default();
    }

    /// A big-endian number of up to 16 bytes.
    pub(crate) fn uint(&mut self, n: usize) -> Result<u128> {
        if n > 16 {
            return Err(DecodeError::len("value above 16 bytes"));
        }
        Ok(self.take(n)?.iter().fold(0, |v, b| v << 8 | u128::from(*b)))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.uint(1).map(|v| v as u8)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.uint(2).map(|v| v as u16)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.uint(4).map(|v| v as u32)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.uint(8).map(|v| v as u64)
    }

    pub(crate) fn mac(&mut self) -> Result<packet::Mac> {
        self.uint(6).map(|v| packet::Mac::from_u64(v as u64))
    }

    pub(crate) fn u128(&mut self) -> Result<u128> {
        self.uint(16)
    }

    pub(crate) fn sub(&mut self, n: usize) -> Result<Reader<'a>> {
        self.take(n).map(Reader::new)
    }
}

/// Big-endian appends.
pub(crate) trait Put {
    fn p8(&mut self, v: u8);
    fn p16(&mut self, v: u16);
    fn p32(&mut self, v: u32);
    fn p64(&mut self, v: u64);
    fn p128(&mut self, v: u128);
    fn zeros(&mut self, n: usize);
    /// Low `n` bytes of a number.
    fn uint(&mut self, v: u128, n: usize);
    /// Zeros until the length since `start` is a multiple of 8.
    fn pad8(&mut self, start: usize);
    /// Stores the length since `start` at a place written before.
    fn patch_len(&mut self, at: usize, start: usize);
}

impl Put for Vec<u8> {
    fn p8(&mut self, v: u8) {
        self.push(v);
    }

    fn p16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn p32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn p64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn p128(&mut self, v: u128) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn zeros(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }

    fn uint(&mut self, v: u128, n: usize) {
        let b = v.to_be_bytes();
        self.extend_from_slice(&b[16 - n.min(16)..]);
    }

    fn pad8(&mut self, start: usize) {
        let n = (self.len() - start).next_multiple_of(8) - (self.len() - start);
        self.zeros(n);
    }

    fn patch_len(&mut self, at: usize, start: usize) {
        let v = (self.len() - start) as u16;
        if let Some(s) = self.get_mut(at..at + 2) {
            s.copy_from_slice(&v.to_be_bytes());
        }
    }
}
