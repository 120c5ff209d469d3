//! The state of a paused packet, as bytes that the controller hands back.

use crate::classifier::{Frames, Origin};
use crate::ids::BridgeId;
use openflow_rs::action::Action;
use openflow_rs::wire::{decode_actions, encode_actions};
use openflow_rs::{TableId, Version};

/// A decoded continuation.
pub(crate) struct Continuation {
    pub(crate) bridge: BridgeId,
    pub(crate) stack: Vec<(u128, u32)>,
    pub(crate) action_set: Vec<Action>,
    pub(crate) frames: Frames,
    /// A bit for each of the bridge's mirrors that has its copy.
    pub(crate) mirrored: u32,
}

const FORMAT: u8 = 2;
/// The property that all of it is in. Open vSwitch's are 0x8000 to 0x8008; who reads a continuation only to print it,
/// as `ovs-ofctl monitor` does, steps over others.
const PROPERTY: u16 = 0xff00;

fn put_actions(o: &mut Vec<u8>, list: &[Action]) {
    let mut b = Vec::new();
    for a in list {
        // Instructions have no encoding as actions: equal actions take their places.
        match a {
            Action::GotoTable(t) => encode_actions(&mut b, &[Action::resubmit(*t)], Version::Of15),
            Action::WriteMetadata { value, mask } => {
                let set = Action::set_masked(openflow_rs::FieldId::Metadata, (*value).into(), (*mask).into());
                encode_actions(&mut b, &[set], Version::Of15);
            }
            a => encode_actions(&mut b, std::slice::from_ref(a), Version::Of15),
        }
    }
    o.extend_from_slice(&(b.len() as u32).to_be_bytes());
    o.extend_from_slice(&b);
}

pub(crate) fn encode(
    bridge: BridgeId,
    stack: &[(u128, u32)],
    action_set: &[Action],
    frames: &Frames,
    mirrored: u32,
) -> Vec<u8> {
    // The property's type, and its length, without padding.
    let mut o = [PROPERTY.to_be_bytes(), [0; 2]].concat();
    o.push(FORMAT);
    o.extend_from_slice(&(bridge.index() as u32).to_be_bytes());
    o.extend_from_slice(&mirrored.to_be_bytes());
    o.extend_from_slice(&(stack.len() as u16).to_be_bytes());
    for (v, n) in stack {
        o.extend_from_slice(&v.to_be_bytes());
        o.push(*n as u8);
    }
    put_actions(&mut o, action_set);
    o.extend_from_slice(&(frames.len() as u16).to_be_bytes());
    for (table, cookie, list) in frames {
        o.push(table.0);
        o.extend_from_slice(&cookie.cookie.to_be_bytes());
        put_actions(&mut o, list);
    }
    // What is longer fits into no message.
    let len = u16::try_from(o.len()).unwrap_or(u16::MAX);
    if let Some(at) = o.get_mut(2..4) {
        at.copy_from_slice(&len.to_be_bytes());
    }
    o.resize(o.len().next_multiple_of(8), 0);
    o
}

fn take<'a>(b: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, rest) = b.split_at_checked(n)?;
    *b = rest;
    Some(head)
}

fn num(b: &mut &[u8], n: usize) -> Option<u128> {
    Some(take(b, n)?.iter().fold(0, |v, x| v << 8 | u128::from(*x)))
}

fn actions(b: &mut &[u8]) -> Option<Vec<Action>> {
    let n = num(b, 4)? as usize;
    decode_actions(take(b, n)?, Version::Of15).ok()
}

/// Decodes a continuation; `None` if it is malformed.
pub(crate) fn decode(mut b: &[u8]) -> Option<Continuation> {
    let b = &mut b;
    if num(b, 2)? != u128::from(PROPERTY) {
        return None;
    }
    let len = num(b, 2)? as usize;
    let mut body = take(b, len.checked_sub(4)?)?;
    let b = &mut body;
    if num(b, 1)? != u128::from(FORMAT) {
        return None;
    }
    let bridge = BridgeId(num(b, 4)? as usize);
    let mirrored = num(b, 4)? as u32;
    let n = num(b, 2)?;
    let stack = (0..n).map(|_| Some((num(b, 16)?, num(b, 1)? as u32))).collect::<Option<Vec<_>>>()?;
    let action_set = actions(b)?;
    let n = num(b, 2)?;
    let frames = (0..n)
        .map(|_| Some((TableId(num(b, 1)? as u8), Origin::with(num(b, 8)? as u64), actions(b)?)))
        .collect::<Option<Vec<_>>>()?;
    Some(Continuation { bridge, stack, action_set, frames, mirrored })
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::PortNo;

    /// A continuation is a whole number of properties (OpenFlow 1.5 section 7.1.1), of a type that Open vSwitch does
    /// not use, and comes back as it was; cut short it is refused.
    #[test]
    fn continuations_are_properties() {
        let list = vec![Action::output(PortNo(7)), Action::GotoTable(TableId(9))];
        let two = vec![(TableId(3), Origin::with(0x77), list.clone()), (TableId(4), Origin::with(0), Vec::new())];
        for frames in [Vec::new(), two] {
            let bytes = encode(BridgeId(1), &[(5, 12), (u128::MAX, 128)], &list[..1], &frames, 6);
            assert_eq!(bytes.len() % 8, 0);
            let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            assert!(number(0) > 0x8008 && number(0) < 0xfffe, "{:#x}", number(0));
            assert_eq!(usize::from(number(2)).next_multiple_of(8), bytes.len());
            let c = decode(&bytes).expect("whole");
            assert_eq!((c.bridge, c.mirrored, c.stack), (BridgeId(1), 6, vec![(5, 12), (u128::MAX, 128)]));
            assert_eq!((c.action_set.len(), c.frames.len()), (1, frames.len()));
            for n in 0..usize::from(number(2)) {
                assert!(decode(&bytes[..n]).is_none(), "{n} bytes");
            }
        }
    }
}
