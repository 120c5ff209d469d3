//! Packets that wait for a service: a few of each port, and one of each port in turn, so that a port that floods delays itself alone.

use daemon::Counter;
use openflow_rs::message::PacketIn;
use ovn_schema::{DatapathKey, PortKey};
use std::collections::{HashMap, VecDeque};

/// Packets that were dropped because too many of their port waited.
pub static DROPPED: Counter = Counter::new("pinctrl_drop_full_queue");

/// Packets of one port that wait at most, and ports of which some wait.
pub(super) const OF_ONE: usize = 64;
const PORTS: usize = 4096;

/// Where a packet came in: the keys of datapath and port.
type Port = (DatapathKey, PortKey);

/// The packets.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: HashMap<Port, VecDeque<PacketIn>>,
    /// The ports with packets, the next one first.
    turns: VecDeque<Port>,
}

impl Queue {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// How many wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// Puts a packet behind those of its port, or drops it.
    pub fn push(&mut self, p: PacketIn) {
        let port = super::place(&p);
        let known = self.waiting.len();
        match self.waiting.get_mut(&port) {
            Some(list) if list.len() < OF_ONE => list.push_back(p),
            None if known < PORTS => {
                self.waiting.insert(port, VecDeque::from([p]));
                self.turns.push_back(port);
            }
            _ => DROPPED.inc(),
        }
    }

    /// The next packet.
    pub fn pop(&mut self) -> Option<PacketIn> {
        let port = self.turns.pop_front()?;
        let list = self.waiting.get_mut(&port)?;
        let p = list.pop_front();
        if list.is_empty() {
            self.waiting.remove(&port);
        } else {
            self.turns.push_back(port);
        }
        p
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::of;

    fn packet(port: u32, n: u8) -> PacketIn {
        let mut p = PacketIn { packet: vec![n], ..PacketIn::default() };
        p.metadata.set(of::DATAPATH, 1);
        p.metadata.set(of::INPORT, port.into());
        p
    }

    #[test]
    fn a_port_that_floods_delays_itself_alone() {
        let mut q = Queue::default();
        for n in 0..=u8::MAX {
            q.push(packet(1, n));
        }
        q.push(packet(2, 0));
        q.push(packet(2, 1));
        let order: Vec<u32> = std::iter::from_fn(|| q.pop()).map(|p| p.metadata.get(of::INPORT).0 as u32).collect();
        assert_eq!(order[..4], [1, 2, 1, 2]);
        assert_eq!(order.len(), OF_ONE + 2);
        assert!(q.is_empty() && q.waiting.is_empty());
    }

    #[test]
    fn packets_of_a_port_keep_their_order() {
        let mut q = Queue::default();
        (0..10).for_each(|n| q.push(packet(3, n)));
        let order: Vec<u8> = std::iter::from_fn(|| q.pop()).map(|p| p.packet[0]).collect();
        assert_eq!(order, (0..10).collect::<Vec<u8>>());
    }
}
