//! What DPDK tells of devices by itself: that one goes, or that its driver recovers it from an error.
//!
//! ```text
//!             RECOVERING              RECOVERY_FAILED
//!   Working ──────────────► Recovering ──────────────► Failed
//!      ▲                        │
//!      └────────────────────────┘ RECOVERY_SUCCESS           any ── INTR_RMV, or the bus wants the device back ──► Removed
//! ```
//!
//! DPDK calls from a thread of its own; what it said is kept here for whoever asks ([`crate::Port::health`]).

use crate::ffi;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing was told.
    Working,
    /// Its driver recovers it from an error. It must not be asked for anything meanwhile.
    Recovering,
    /// Its driver could not recover it: it has to be closed, and can be opened anew.
    Failed,
    /// It goes, or is gone: it has to be closed, or its bus waits for that.
    Removed,
}

impl Health {
    fn from_number(n: u8) -> Health {
        match n {
            0 => Health::Working,
            1 => Health::Recovering,
            2 => Health::Failed,
            _ => Health::Removed,
        }
    }

    /// How a device is after an event of its driver.
    fn after(self, event: ffi::rte_eth_event_type) -> Health {
        match (self, event) {
            (_, ffi::rte_eth_event_type_RTE_ETH_EVENT_INTR_RMV) | (Health::Removed, _) => Health::Removed,
            (_, ffi::rte_eth_event_type_RTE_ETH_EVENT_ERR_RECOVERING) => Health::Recovering,
            (_, ffi::rte_eth_event_type_RTE_ETH_EVENT_RECOVERY_SUCCESS) => Health::Working,
            (_, ffi::rte_eth_event_type_RTE_ETH_EVENT_RECOVERY_FAILED) => Health::Failed,
            (h, _) => h,
        }
    }
}

/// The events of drivers that are followed.
const EVENTS: [ffi::rte_eth_event_type; 4] = [
    ffi::rte_eth_event_type_RTE_ETH_EVENT_INTR_RMV,
    ffi::rte_eth_event_type_RTE_ETH_EVENT_ERR_RECOVERING,
    ffi::rte_eth_event_type_RTE_ETH_EVENT_RECOVERY_SUCCESS,
    ffi::rte_eth_event_type_RTE_ETH_EVENT_RECOVERY_FAILED,
];

/// By DPDK's number of a port, how its device is.
static STATES: [AtomicU8; ffi::RTE_MAX_ETHPORTS as usize] =
    [const { AtomicU8::new(0) }; ffi::RTE_MAX_ETHPORTS as usize];

/// The devices, by their names on their buses, that these want back.
static LEAVING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn leaving() -> MutexGuard<'static, BTreeSet<String>> {
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(port: u16, event: ffi::rte_eth_event_type) {
    if let Some(s) = STATES.get(usize::from(port)) {
        let next = |n| Some(Health::from_number(n).after(event) as u8);
        let _ = s.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

/// Called by DPDK for an event of a port's driver.
unsafe extern "C" fn of_driver(
    port: u16,
    event: ffi::rte_eth_event_type,
    _: *mut libc::c_void,
    _: *mut libc::c_void,
) -> i32 {
    note(port, event);
    0
}

/// Called by DPDK for an event of a bus.
unsafe extern "C" fn of_bus(name: *const libc::c_char, event: ffi::rte_dev_event_type, _: *mut libc::c_void) {
    if event == ffi::rte_dev_event_type_RTE_DEV_EVENT_REMOVE && !name.is_null() {
        // SAFETY: DPDK gives a device's name, which is there during the call.
        let name = unsafe { CStr::from_ptr(name) };
        leaving().insert(name.to_string_lossy().into_owned());
    }
}

/// Has DPDK tell. Needs an initialised environment.
pub(crate) fn listen() {
    for event in EVENTS {
        // SAFETY: the environment is initialised (the caller's promise); the function is there for good and takes no argument of ours.
        unsafe {
            ffi::rte_eth_dev_callback_register(ffi::ISTHMUS_ALL_PORTS, event, Some(of_driver), std::ptr::null_mut());
        }
    }
    // SAFETY: as above; null stands for all devices.
    unsafe { ffi::rte_dev_event_callback_register(std::ptr::null(), Some(of_bus), std::ptr::null_mut()) };
}

/// How the device of a port is that has this name on its bus. PCI addresses may come without their domain.
pub(crate) fn health(port: u16, name: &str) -> Health {
    let leaves = {
        let all = leaving();
        !all.is_empty() && (all.contains(name) || all.contains(&format!("0000:{name}")))
    };
    if leaves {
        return Health::Removed;
    }
    STATES.get(usize::from(port)).map_or(Health::Working, |s| Health::from_number(s.load(Ordering::Acquire)))
}

/// Forgets what was told of a device: it is opened.
pub(crate) fn forget(port: u16, name: &str) {
    if let Some(s) = STATES.get(usize::from(port)) {
        s.store(0, Ordering::Release);
    }
    let mut all = leaving();
    all.remove(name);
    all.remove(&format!("0000:{name}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_takes_every_event() {
        use Health::{Failed, Recovering, Removed, Working};
        // In the order of `EVENTS`.
        let table = [
            (Working, [Removed, Recovering, Working, Failed]),
            (Recovering, [Removed, Recovering, Working, Failed]),
            (Failed, [Removed, Recovering, Working, Failed]),
            (Removed, [Removed; 4]),
        ];
        for (state, after) in table {
            assert_eq!(EVENTS.map(|e| state.after(e)), after, "{state:?}");
            assert_eq!(Health::from_number(state as u8), state);
        }
    }

    #[test]
    fn what_was_told_is_kept_until_the_device_is_opened() {
        let (port, name) = (31, "0000:7f:00.0");
        assert_eq!(health(port, name), Health::Working);
        note(port, ffi::rte_eth_event_type_RTE_ETH_EVENT_ERR_RECOVERING);
        assert_eq!(health(port, name), Health::Recovering);
        // SAFETY: a C string, as DPDK gives it.
        unsafe { of_bus(c"0000:7f:00.0".as_ptr(), ffi::rte_dev_event_type_RTE_DEV_EVENT_REMOVE, std::ptr::null_mut()) };
        assert_eq!(
            [name, "7f:00.0", "0000:7f:00.1"].map(|n| health(30, n)),
            [Health::Removed, Health::Removed, Health::Working]
        );
        forget(port, name);
        assert_eq!(health(port, name), Health::Working);
    }
}
