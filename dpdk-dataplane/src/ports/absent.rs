//! What is in the place of a device that is gone: its port keeps number, flows and limits, and its link is down.

use dpdk_rs::Software;

/// A device that receives nothing and drops what it is to send.
#[derive(Debug)]
pub struct Absent;

impl Software for Absent {
    fn ready(&self) -> bool {
        false
    }

    fn receive(&self) -> Option<Vec<u8>> {
        None
    }

    fn send(&self, _: &[u8]) {}

    fn up(&self) -> bool {
        false
    }
}
