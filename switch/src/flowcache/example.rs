//! An example of the packets of a template: with it the walk can be made once more, to tell of it
//! ([`crate::trace::sections`]).

use crate::classifier::hash;
use crate::ids::BridgeId;
use openflow_rs::{FieldId as F, FlowKey, TableId};

/// Bytes of a packet that are kept: its headers, and those of a packet in it.
const HEADERS: usize = 256;
/// Most passes through connection tracking that are kept.
const PASSES: usize = 32;

/// A packet, and how it went on behind each `ct`.
#[derive(Debug, Default)]
pub(crate) struct Example {
    /// Its first bytes, and how many there were.
    frame: Vec<u8>,
    len: usize,
    pub(crate) behind: Vec<Behind>,
    /// Those of these that the walk is behind, the innermost last; none: it is not kept.
    open: Vec<Option<usize>>,
}

/// How a packet went on behind a `ct`.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Behind which other one that was, by its place.
    pub(crate) within: Option<usize>,
    pub(crate) at: (BridgeId, TableId),
    /// With the connection's fields, and translated.
    pub(crate) key: FlowKey,
}

/// What tells recirculations apart: where the packet goes on, with which registers, after which kind of interruption.
pub(crate) fn identity(kind: u64, (bridge, table): (BridgeId, TableId), key: &FlowKey) -> u64 {
    let place = kind << 56 | (bridge.index() as u64) << 8 | u64::from(table.0);
    let registers = [F::Reg0.word()..=F::Reg15.word(), F::Reg16.word()..=F::Reg31.word()];
    let words = [F::Metadata.word(), F::InPort.word()].into_iter().chain(registers.into_iter().flatten());
    hash(std::iter::once(place).chain(words.map(|w| key.0.get(w).copied().unwrap_or(0))))
}

impl Example {
    /// Begins with a packet.
    pub(super) fn begin(&mut self, frame: &[u8]) {
        self.frame.extend_from_slice(frame.get(..HEADERS).unwrap_or(frame));
        self.len = frame.len();
    }

    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.frame.clear();
        self.behind.clear();
        self.open.clear();
    }

    /// The packet goes on behind a `ct`.
    pub(super) fn goes_on(&mut self, at: (BridgeId, TableId), key: &FlowKey) {
        let within = self.open.last().copied().flatten();
        let kept = self.behind.len() < PASSES;
        self.open.push(kept.then_some(self.behind.len()));
        if kept {
            self.behind.push(Behind { within, at, key: key.clone() });
        }
    }

    /// It has come back.
    pub(super) fn came_back(&mut self) {
        self.open.pop();
    }

    /// The packet, with zeros behind its headers.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut p = self.frame.clone();
        p.resize(self.len, 0);
        p
    }
}
