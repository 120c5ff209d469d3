//! Errors.

/// What DPDK refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The environment could not be set up.
    #[error(
        "DPDK environment: {0}. Without hugepages pass --no-huge; with them mount hugetlbfs and reserve pages (vm.nr_hugepages)"
    )]
    Eal(String),
    /// A second environment in one process.
    #[error("the DPDK environment is initialised already")]
    Twice,
    /// A text with a zero byte in it.
    #[error("{0:?} holds a zero byte")]
    Text(String),
    /// Memory for packets could not be had.
    #[error("packet memory {name}: {reason}; give DPDK more memory (-m MEGABYTES)")]
    Pool {
        /// The pool.
        name: String,
        /// DPDK's reason.
        reason: String,
    },
    /// A device could not be attached, configured or started.
    #[error("device {device}: {step}: {reason}")]
    Device {
        /// The device's name or arguments.
        device: String,
        /// What was tried.
        step: &'static str,
        /// DPDK's reason.
        reason: String,
    },
}

/// The text of a negative return value.
pub(crate) fn reason(code: i32) -> String {
    match code.abs() {
        // What drivers give who have no number for what they do not like.
        1 => "its driver does not take it; DPDK's log says more".into(),
        libc::EFAULT => "neither a device of a bus nor a virtual one that DPDK has a driver for".into(),
        n => std::io::Error::from_raw_os_error(n).to_string(),
    }
}
