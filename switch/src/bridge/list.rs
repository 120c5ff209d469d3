//! The bridges of a switch.

use super::Bridge;
use crate::ids::BridgeId;

/// The bridges of a switch, by number.
#[derive(Debug, Default)]
pub(crate) struct Bridges(Vec<Bridge>);

impl Bridges {
    /// Adds a bridge, with the next number.
    pub(crate) fn add(&mut self, bridge: Bridge) -> BridgeId {
        self.0.push(bridge);
        BridgeId(self.0.len() - 1)
    }

    #[inline]
    pub(crate) fn get(&self, id: BridgeId) -> Option<&Bridge> {
        self.0.get(id.index())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: BridgeId) -> Option<&mut Bridge> {
        self.0.get_mut(id.index())
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Bridge> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Bridge> {
        self.0.iter_mut()
    }

    /// The bridges with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (BridgeId, &Bridge)> {
        self.0.iter().enumerate().map(|(i, b)| (BridgeId(i), b))
    }

    /// The bridges with their numbers, to be changed.
    pub(crate) fn numbered_mut(&mut self) -> impl Iterator<Item = (BridgeId, &mut Bridge)> {
        self.0.iter_mut().enumerate().map(|(i, b)| (BridgeId(i), b))
    }
}

impl<'a> IntoIterator for &'a mut Bridges {
    type Item = &'a mut Bridge;
    type IntoIter = std::slice::IterMut<'a, Bridge>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
