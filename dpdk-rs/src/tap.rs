//! Taps of the kernel: network devices whose other side is this process (the kernel's `Documentation/networking/tuntap.rst`). DPDK's own
//! driver for them takes no frame above 1,526 bytes.

use crate::{Mbuf, Memory, memory::ORDINARY, port::BURST};
use packet::Mac;
use std::collections::HashMap;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The longest frame that the kernel hands over.
const LONGEST: usize = 65_536;

/// An open tap.
#[derive(Debug)]
pub(crate) struct Tap {
    fd: OwnedFd,
    /// There may be something to read.
    ready: Arc<AtomicBool>,
    watched: u64,
    memory: Memory,
    /// Where the end of a frame comes to lie that is longer than an ordinary buffer.
    spill: Mutex<Box<[u8]>>,
    /// Packets and bytes received and sent, and those that could not be sent.
    pub(crate) counters: [AtomicU64; 5],
}

/// Gives the result of a call that tells by -1 that it failed.
pub(crate) fn checked(code: libc::c_int) -> Result<libc::c_int> {
    if code < 0 { Err(Error::last_os_error()) } else { Ok(code) }
}

/// A request that names a network device.
pub(crate) fn request(name: &str) -> Result<libc::ifreq> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut r: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= r.ifr_name.len() || name.contains('\0') {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    r.ifr_name.iter_mut().zip(name.bytes()).for_each(|(c, b)| *c = b as libc::c_char);
    Ok(r)
}

impl Tap {
    /// Opens a tap, a new one, which is down, or one that stayed, and gives it this address, if one is wanted. It stays when
    /// the process ends.
    pub(crate) fn open(memory: &Memory, name: &str, mac: Option<Mac>) -> Result<Tap> {
        let mut r = request(name)?;
        // SAFETY: opens a file by a C string.
        let fd = checked(unsafe {
            libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC)
        })?;
        // SAFETY: the descriptor was opened above and is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut attach = |flags: libc::c_int| {
            r.ifr_ifru.ifru_flags = flags as libc::c_short;
            // SAFETY: reads and writes a request that is there during the call.
            checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut r) })
        };
        let plain = libc::IFF_TAP | libc::IFF_NO_PI;
        match attach(plain | libc::IFF_MULTI_QUEUE) {
            // It is there already, with one queue (`ip tuntap add`).
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => attach(plain),
            done => done,
        }?;
        if let Some(mac) = mac {
            set_address(name, mac)?;
        }
        // One that could not be made as it is to be goes with its descriptor.
        // SAFETY: takes a number.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST as _, 1) })?;
        let ready = Arc::new(AtomicBool::new(true));
        let watched = watcher()?.watch(&fd, &ready)?;
        let spill = Mutex::new(vec![0; LONGEST].into_boxed_slice());
        Ok(Tap { fd, ready, watched, memory: memory.clone(), spill, counters: Default::default() })
    }

    /// There may be something to read.
    pub(crate) fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Reads up to [`BURST`] packets. Gives how many were lost, as there was no memory for their length.
    #[inline]
    pub(crate) fn receive(&self, each: impl FnMut(Mbuf)) -> usize {
        if self.ready.load(Ordering::Relaxed) { self.read_all(each) } else { 0 }
    }

    fn read_all(&self, mut each: impl FnMut(Mbuf)) -> usize {
        // What comes from here on sets it again.
        self.ready.swap(false, Ordering::Acquire);
        let mut spill = self.spill.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lost = 0;
        for _ in 0..BURST {
            let Some(mut m) = self.memory.ordinary().allocate() else { break };
            let Some(room) = m.append(ORDINARY) else { break };
            let parts = [
                libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
                libc::iovec { iov_base: spill.as_mut_ptr().cast(), iov_len: spill.len() },
            ];
            // SAFETY: both parts are memory of these lengths, borrowed exclusively until the call has ended.
            let n = unsafe { libc::readv(self.fd.as_raw_fd(), parts.as_ptr(), 2) };
            let Ok(n) = usize::try_from(n) else { return lost };
            let [packets, bytes, ..] = &self.counters;
            packets.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(n as u64, Ordering::Relaxed);
            if n > ORDINARY {
                match self.joined(&m, spill.get(..n - ORDINARY)) {
                    Some(long) => m = long,
                    None => {
                        lost += 1;
                        continue;
                    }
                }
            } else {
                m.take_back(ORDINARY - n);
            }
            each(m);
        }
        // There may be more than was read.
        self.ready.store(true, Ordering::Relaxed);
        lost
    }

    #[cold]
    fn joined(&self, first: &Mbuf, rest: Option<&[u8]>) -> Option<Mbuf> {
        let rest = rest?;
        let mut m = self.memory.of(first.len() + rest.len())?.allocate()?;
        let (a, b) = m.append(first.len() + rest.len())?.split_at_mut(first.len());
        a.copy_from_slice(first.data());
        b.copy_from_slice(rest);
        Some(m)
    }

    /// Sends a packet; one that the kernel does not take is counted.
    pub(crate) fn send(&self, m: &Mbuf) {
        let data = m.data();
        // SAFETY: reads as many bytes as there are.
        let n = unsafe { libc::write(self.fd.as_raw_fd(), data.as_ptr().cast(), data.len()) };
        let [_, _, packets, bytes, errors] = &self.counters;
        if n < 0 {
            errors.fetch_add(1, Ordering::Relaxed);
        } else {
            packets.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Ok(w) = watcher() {
            w.forget(self.watched);
        }
    }
}

/// Sets a device's address. One that is up goes down meanwhile, so that the kernel gives it the link-local address that
/// belongs to the new one.
fn set_address(name: &str, mac: Mac) -> Result<()> {
    // SAFETY: makes a socket.
    let socket = checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor was made above and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let ask = |number: libc::Ioctl, r: &mut libc::ifreq| {
        // SAFETY: all of these requests read and write an ifreq, which is there during the call.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(r)) })
    };
    let mut r = request(name)?;
    ask(libc::SIOCGIFHWADDR as _, &mut r)?;
    // SAFETY: the kernel has written the address.
    let place = unsafe { &mut r.ifr_ifru.ifru_hwaddr.sa_data };
    if place.iter().zip(*mac).all(|(c, b)| *c == b as libc::c_char) {
        return Ok(());
    }
    place.iter_mut().zip(*mac).for_each(|(c, b)| *c = b as libc::c_char);
    let mut state = request(name)?;
    ask(libc::SIOCGIFFLAGS as _, &mut state)?;
    // SAFETY: the kernel has written the flags.
    let flags = unsafe { state.ifr_ifru.ifru_flags };
    let bit = libc::IFF_UP as libc::c_short;
    let mut set = |flags: libc::c_short| {
        state.ifr_ifru.ifru_flags = flags;
        ask(libc::SIOCSIFFLAGS as _, &mut state)
    };
    if flags & bit == 0 {
        return ask(libc::SIOCSIFHWADDR as _, &mut r).map(drop);
    }
    set(flags & !bit)?;
    let done = ask(libc::SIOCSIFHWADDR as _, &mut r);
    set(flags)?;
    done.map(drop)
}

/// Has a thread be unparked whenever a tap, or a device that was armed ([`crate::Port::arm`]), has something to read. The first to ask
/// is the one.
///
/// # Errors
/// The kernel's: there is nothing to wait with.
pub fn wake(thread: std::thread::Thread) -> Result<()> {
    let _ = watcher()?.waker.set(thread);
    Ok(())
}

/// Wakes the thread that asked for it ([`wake`]): a device of this process has something to receive.
pub fn wake_now() {
    if let Some(t) = watcher().ok().and_then(|w| w.waker.get()) {
        t.unpark();
    }
}

/// A thread that notes which taps have something to read, so that those who poll them need no call of the kernel.
#[derive(Debug)]
pub(crate) struct Watcher {
    epoll: OwnedFd,
    taps: Mutex<(u64, HashMap<u64, Arc<AtomicBool>>)>,
    /// Who is woken when something can be read.
    waker: OnceLock<std::thread::Thread>,
}

pub(crate) fn watcher() -> Result<&'static Watcher> {
    static WATCHER: OnceLock<std::result::Result<Watcher, i32>> = OnceLock::new();
    static RUNNING: OnceLock<()> = OnceLock::new();
    let made = WATCHER.get_or_init(|| Watcher::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)));
    let w = made.as_ref().map_err(|e| Error::from_raw_os_error(*e))?;
    if RUNNING.get().is_none() && RUNNING.set(()).is_ok() {
        std::thread::Builder::new().name("taps".into()).spawn(move || w.run())?;
    }
    Ok(w)
}

impl Watcher {
    fn new() -> Result<Watcher> {
        // SAFETY: makes a descriptor.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: it was made above and is nobody else's.
        Ok(Watcher { epoll: unsafe { OwnedFd::from_raw_fd(fd) }, taps: Mutex::default(), waker: OnceLock::new() })
    }

    fn taps(&self) -> std::sync::MutexGuard<'_, (u64, HashMap<u64, Arc<AtomicBool>>)> {
        self.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, fd: &OwnedFd, ready: &Arc<AtomicBool>) -> Result<u64> {
        let mut taps = self.taps();
        taps.0 += 1;
        let n = taps.0;
        taps.1.insert(n, ready.clone());
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: n };
        // SAFETY: both descriptors are open, the event is there during the call.
        let code =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
        if code < 0 {
            taps.1.remove(&n);
        }
        checked(code).map(|_| n)
    }

    /// Takes a descriptor into the list, of which it is told only once each time that it is armed.
    pub(crate) fn watch_once(&self, fd: &OwnedFd) -> Result<u64> {
        let n = {
            let mut taps = self.taps();
            taps.0 += 1;
            taps.0
        };
        let mut event = libc::epoll_event { events: libc::EPOLLONESHOT as u32, u64: n };
        // SAFETY: as in `watch`.
        checked(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })
            .map(|_| n)
    }

    /// The next time that it can be read, who waits is woken.
    pub(crate) fn arm(&self, fd: &OwnedFd, n: u64) {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32, u64: n };
        // SAFETY: as in `watch`. One that is closed meanwhile is of no interest.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_MOD, fd.as_raw_fd(), &raw mut event) };
    }

    /// Closing a descriptor takes it from the kernel's list.
    pub(crate) fn forget(&self, n: u64) {
        self.taps().1.remove(&n);
    }

    fn run(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            // SAFETY: there is room for as many events as are said.
            let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, -1) };
            let taps = self.taps();
            for e in events.iter().take(usize::try_from(n).unwrap_or(0)) {
                if let Some(ready) = taps.1.get(&{ e.u64 }) {
                    ready.store(true, Ordering::Release);
                }
            }
            drop(taps);
            if let Some(t) = self.waker.get() {
                t.unpark();
            }
        }
    }
}
