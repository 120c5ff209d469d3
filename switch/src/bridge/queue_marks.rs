//! Differentiated services of queues (ovs-vswitchd.conf.db(5), Queue `dscp`): what packets of a queue are marked with
//! when they leave.

use crate::bridge::Bridge;
use openflow_rs::PortNo;
use std::collections::HashMap;

/// The DSCP of packets that leave a port by a queue.
pub type QueueMarks = HashMap<(PortNo, u16), u8>;

impl Bridge {
    /// Sets them. Cached flows become stale if they are others.
    pub fn set_queue_marks(&mut self, marks: QueueMarks) {
        if self.queue_marks != marks {
            self.queue_marks = marks;
            self.epoch += 1;
        }
    }

    /// What packets of queues are marked with.
    pub fn queue_marks(&self) -> &QueueMarks {
        &self.queue_marks
    }
}
