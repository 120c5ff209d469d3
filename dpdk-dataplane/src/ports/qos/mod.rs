//! Quality of service: [`policer`] drops what exceeds a rate, [`shaper`] has it wait in queues.

pub mod policer;
pub mod shaper;
