//! What the kernel knows of the driver of a network device (`ETHTOOL_GDRVINFO`, the kernel's `include/uapi/linux/ethtool.h`).

use crate::tap::{checked, request};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The request, and its answer's words: a command, five texts of 32 bytes, 12 bytes that are reserved, five numbers.
const GDRVINFO: u32 = 3;
const WORDS: usize = 49;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// A driver of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Its version, or the kernel's.
    pub version: String,
    /// The version of the device's own program; empty where it has none.
    pub firmware: String,
}

/// The driver of a device of the process's network namespace.
///
/// # Errors
/// There is no such device, or its driver does not tell.
pub fn driver(device: &str) -> std::io::Result<Driver> {
    // SAFETY: takes numbers.
    let socket = checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor was made above and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut answer = [0_u32; WORDS];
    answer[0] = GDRVINFO;
    let mut r = request(device)?;
    r.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    // SAFETY: the request, and the memory of the answer's size that it points to, are there during the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut r) })?;
    let bytes: Vec<u8> = answer.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let text = |n: usize| {
        let field = bytes.get(4 + 32 * n..36 + 32 * n).unwrap_or_default();
        String::from_utf8_lossy(field.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
    };
    Ok(Driver { name: text(0), version: text(1), firmware: text(2) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn devices_that_are_not_there_have_no_driver() {
        assert!(super::driver("no-such-dev").is_err());
        assert!(super::driver("a name that is much too long").is_err());
    }
}
