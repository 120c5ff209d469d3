//! The environment abstraction layer: one a process.

use crate::error::reason;
use crate::{Error, ffi};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The arguments, so that what looks for leaks finds them.
static ARGUMENTS: AtomicPtr<*mut libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// The initialised environment. Cloning shares it; the last one to go cleans up, which is nobody once there is a pool.
#[derive(Clone, Debug)]
pub struct Eal(#[allow(dead_code, reason = "kept for its drop")] Arc<Guard>);

#[derive(Debug)]
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: the environment is initialised (only `Eal::init` makes a guard) and nothing that needs it is left: ports and
        // registered threads hold an `Eal` each, and pools, whose packets hold nothing, keep one for good.
        unsafe { ffi::rte_eal_cleanup() };
    }
}

impl Eal {
    /// Initialises DPDK with its own arguments (`--no-huge`, `-m`, `-a`, …; the program's name is put in front).
    /// The calling thread becomes DPDK's main thread.
    ///
    /// # Errors
    /// [`Error::Twice`], [`Error::Text`], [`Error::Eal`].
    pub fn init(arguments: &[String]) -> Result<Eal, Error> {
        let mut owned = vec![c"isthmus".to_owned()];
        for a in arguments {
            owned.push(CString::new(a.as_str()).map_err(|_| Error::Text(a.clone()))?);
        }
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(Error::Twice);
        }
        // DPDK keeps and permutes the pointers; the strings live as long as the process.
        let mut argv: Vec<*mut libc::c_char> = owned.into_iter().map(CString::into_raw).collect();
        let count = argv.len() as i32;
        argv.push(std::ptr::null_mut());
        // DPDK takes some out of its own part.
        argv.extend_from_within(..);
        let argv = Box::leak(argv.into_boxed_slice());
        ARGUMENTS.store(argv.as_mut_ptr(), Ordering::Release);
        // SAFETY: `argv` begins with `count` valid C strings and a null, none of which is freed; init is called once.
        let code = unsafe { ffi::rte_eal_init(count, argv.as_mut_ptr()) };
        if code < 0 {
            // SAFETY: reads a thread-local number.
            let errno = unsafe { ffi::isthmus_errno() };
            return Err(Error::Eal(reason(errno)));
        }
        crate::events::listen();
        Ok(Eal(Arc::new(Guard)))
    }

    /// Gives the calling thread a place among DPDK's, and with it a cache of free packets, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Eal`]: no place is left, or DPDK runs in several processes.
    pub fn register_thread(&self) -> Result<Registered, Error> {
        // SAFETY: the environment is initialised.
        let code = unsafe { ffi::rte_thread_register() };
        if code < 0 {
            // SAFETY: reads a thread-local number.
            let errno = unsafe { ffi::isthmus_errno() };
            return Err(Error::Eal(reason(errno)));
        }
        Ok(Registered { _here: std::marker::PhantomData, _eal: self.clone() })
    }
}

/// A thread's place among DPDK's. It cannot leave the thread.
#[derive(Debug)]
pub struct Registered {
    _here: std::marker::PhantomData<*const ()>,
    _eal: Eal,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: this thread was registered, as the value never left it.
        unsafe { ffi::rte_thread_unregister() };
    }
}
