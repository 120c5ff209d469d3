//! Packets in DPDK's memory.

use crate::{Eal, Error, ffi};
use packet::{Headers, checksum, ipproto};
use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Memory for packets, shared by clones. It is never given back: its packets do not hold it, so that each may outlive every handle.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: NonNull<ffi::rte_mempool>,
}

/// What packets need as well: once there is a pool, it stays for good.
static KEPT: OnceLock<Eal> = OnceLock::new();

// SAFETY: DPDK's mempools are multi-producer, multi-consumer, and this one stays where it is as long as the process; the pointer
// is only handed to functions that several threads may call at once.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

fn last_error() -> String {
    // SAFETY: reads a thread-local number; its text is a C string, static or the thread's own, and copied before the next call.
    unsafe { CStr::from_ptr(ffi::rte_strerror(ffi::isthmus_errno())) }.to_string_lossy().into_owned()
}

impl Pool {
    /// A pool of `packets` packets of up to `room` bytes each (without headroom).
    ///
    /// # Errors
    /// [`Error::Pool`] where there is not enough memory, [`Error::Text`].
    pub fn new(eal: &Eal, name: &str, packets: u32, room: u16) -> Result<Pool, Error> {
        let c_name = CString::new(name).map_err(|_| Error::Text(name.to_string()))?;
        let room = room.saturating_add(ffi::RTE_PKTMBUF_HEADROOM as u16);
        const CACHE: u32 = 256;
        let cache = CACHE.min(packets / 2);
        // SAFETY: the environment is initialised (`eal` says so) and the name is a C string, which DPDK copies.
        let pool = unsafe { ffi::rte_pktmbuf_pool_create(c_name.as_ptr(), packets, cache, 0, room, -1) };
        match NonNull::new(pool) {
            Some(pool) => {
                KEPT.get_or_init(|| eal.clone());
                Ok(Pool(Arc::new(Inner { pool })))
            }
            None => Err(Error::Pool { name: name.to_string(), reason: last_error() }),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::rte_mempool {
        self.0.pool.as_ptr()
    }

    /// Packets that are free.
    pub fn available(&self) -> u32 {
        // SAFETY: pools are never freed; the count reads numbers that other threads may change.
        unsafe { ffi::rte_mempool_avail_count(self.as_ptr()) }
    }

    /// An empty packet; none where the pool is exhausted.
    pub fn allocate(&self) -> Option<Mbuf> {
        // SAFETY: pools are never freed, and several threads may take packets of one at once.
        let raw = unsafe { ffi::isthmus_alloc(self.as_ptr()) };
        NonNull::new(raw).map(|raw| Mbuf { raw })
    }

    /// A packet with these bytes; none where the pool is exhausted or they do not fit.
    pub fn packet(&self, bytes: &[u8]) -> Option<Mbuf> {
        let mut m = self.allocate()?;
        m.append(bytes.len())?.copy_from_slice(bytes);
        Some(m)
    }
}

/// Some device that was opened writes checksums of UDP.
pub(crate) static BY_DEVICES: AtomicBool = AtomicBool::new(false);

/// What a device says of the transport checksum, and what it is asked for.
const RX_L4: u64 = (ffi::RTE_MBUF_F_RX_L4_CKSUM_GOOD | ffi::RTE_MBUF_F_RX_L4_CKSUM_BAD) as u64;
const TX_UDP: u64 = ffi::RTE_MBUF_F_TX_UDP_CKSUM;
const TX_FAMILY: u64 = ffi::RTE_MBUF_F_TX_IPV4 | ffi::RTE_MBUF_F_TX_IPV6;

/// An owned packet of one segment, in the memory of a pool, which is there for good.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf {
    raw: NonNull<ffi::rte_mbuf>,
}

// SAFETY: an mbuf is plain memory with a single owner; freeing it from another thread is what mempools are for.
unsafe impl Send for Mbuf {}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the only owner, so it is freed once; its pool is there for good.
        unsafe { ffi::isthmus_free(self.raw.as_ptr()) };
    }
}

impl Mbuf {
    /// Takes over a packet from DPDK.
    ///
    /// # Safety
    /// `raw` is a valid mbuf of one segment that nobody else owns.
    pub(crate) unsafe fn from_raw(raw: NonNull<ffi::rte_mbuf>) -> Mbuf {
        Mbuf { raw }
    }

    pub(crate) fn into_raw(self) -> *mut ffi::rte_mbuf {
        let raw = self.raw.as_ptr();
        std::mem::forget(self);
        raw
    }

    #[inline]
    fn header(&self) -> &ffi::rte_mbuf {
        // SAFETY: the mbuf is valid as long as it is owned, and changed by nobody while self is borrowed.
        unsafe { self.raw.as_ref() }
    }

    #[inline]
    fn layout(&self) -> (*mut u8, usize) {
        let m = self.header();
        // SAFETY: the data offset lies within the buffer, and so does the end of the data: DPDK and `place` see to it, and nobody else
        // changes them.
        (unsafe { m.buf_addr.cast::<u8>().add(usize::from(m.data_off)) }, usize::from(m.data_len))
    }

    /// The packet's bytes.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let (at, len) = self.layout();
        // SAFETY: `len` bytes from `at` lie within the buffer (`layout`), which nobody else has, and are borrowed with self. Memory of
        // pools comes from the kernel, zeroed, so that bytes that nobody has written are numbers too.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// The packet's bytes, to change.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let (at, len) = self.layout();
        // SAFETY: as in `data`, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    /// The packet's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.layout().1
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets where the packet's bytes are: from `off` of the buffer, so many of them. False, with nothing done, where the
    /// buffer does not have them.
    #[inline]
    fn place(&mut self, off: usize, len: usize) -> bool {
        // SAFETY: the mbuf is valid and this is its only owner, whose exclusive borrow this is.
        let m = unsafe { self.raw.as_mut() };
        let (Ok(off), Ok(len)) = (u16::try_from(off), u16::try_from(len)) else { return false };
        if off.checked_add(len).is_none_or(|end| end > m.buf_len) {
            return false;
        }
        // A packet of one segment is as long as its segment.
        (m.data_off, m.data_len, m.pkt_len) = (off, len, u32::from(len));
        true
    }

    /// Adds bytes in front, with unspecified content; false, with nothing done, where there is no room.
    #[inline]
    pub fn grow_front(&mut self, n: usize) -> bool {
        // SAFETY: the mbuf is valid and this is its only owner, whose exclusive borrow this is.
        let m = unsafe { self.raw.as_mut() };
        let Ok(n) = u16::try_from(n) else { return false };
        // The end stays where it is, within the buffer.
        let (Some(off), Some(len)) = (m.data_off.checked_sub(n), m.data_len.checked_add(n)) else { return false };
        // A packet of one segment is as long as its segment.
        (m.data_off, m.data_len, m.pkt_len) = (off, len, len.into());
        true
    }

    /// Adds bytes at the end, with unspecified content; none where there is no room.
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let (off, old) = (usize::from(self.header().data_off), self.len());
        self.place(off, old.checked_add(n)?).then(|| self.data_mut().get_mut(old..))?
    }

    /// Takes bytes off the front; false, with nothing done, where there are not so many.
    #[inline]
    pub fn take_front(&mut self, n: usize) -> bool {
        // SAFETY: the mbuf is valid and this is its only owner, whose exclusive borrow this is.
        let m = unsafe { self.raw.as_mut() };
        let Ok(n) = u16::try_from(n) else { return false };
        let Some(len) = m.data_len.checked_sub(n) else { return false };
        // Not past the end, which stays where it is, within the buffer.
        (m.data_off, m.data_len, m.pkt_len) = (m.data_off + n, len, len.into());
        true
    }

    /// Takes bytes off the end; false, with nothing done, where there are not so many.
    #[inline]
    pub fn take_back(&mut self, n: usize) -> bool {
        let off = usize::from(self.header().data_off);
        self.len().checked_sub(n).is_some_and(|len| self.place(off, len))
    }

    /// Whether the device found the transport checksum of the packet as received right.
    #[inline]
    pub fn checksum_good(&self) -> bool {
        self.header().ol_flags & RX_L4 == u64::from(ffi::RTE_MBUF_F_RX_L4_CKSUM_GOOD)
    }

    /// What the device said of checksums is not of this packet any more: it was put into a tunnel, or taken out.
    #[inline]
    pub fn forget_checksums(&mut self) {
        // SAFETY: the mbuf is valid and this is its only owner, whose exclusive borrow this is.
        unsafe { self.raw.as_mut() }.ol_flags &= !RX_L4;
    }

    /// Leaves what the last `rest` bytes add to the checksum of the UDP packet that the last `udp` bytes are to
    /// [`crate::Port::transmit`], which leaves all of it to the device where that does it. Headers may change until then, and the
    /// checksum with them. False, with nothing done, while no device does: it is the sender's to write then.
    #[inline]
    pub fn leave_checksum(&mut self, udp: usize, rest: usize) -> bool {
        if !BY_DEVICES.load(Relaxed) {
            return false;
        }
        // SAFETY: the mbuf is valid and this is its only owner, whose exclusive borrow this is.
        let m = unsafe { self.raw.as_mut() };
        // Unused until the device is told of headers' lengths.
        m.__bindgen_anon_3.tx_offload = (udp as u64) << 32 | (rest as u64 & u64::from(u32::MAX));
        m.ol_flags |= TX_UDP;
        true
    }

    /// Whether a checksum was left, and is to be written.
    #[inline]
    pub fn owes_checksum(&self) -> bool {
        self.header().ol_flags & (TX_UDP | TX_FAMILY) == TX_UDP
    }

    /// Writes a checksum that was left.
    #[inline]
    pub fn settle(&mut self) {
        if self.owes_checksum() {
            self.finish(false);
        }
    }

    /// Makes a checksum that was left ready for the device, or writes it.
    #[inline]
    pub(crate) fn finish(&mut self, by_device: bool) {
        if self.owes_checksum() {
            self.finish_udp(by_device);
        }
    }

    fn finish_udp(&mut self, by_device: bool) {
        // SAFETY: the mbuf is valid and this is its only owner, whose exclusive borrow this is.
        let m = unsafe { self.raw.as_mut() };
        m.ol_flags &= !TX_UDP;
        // SAFETY: any bits are a number.
        let left = unsafe { std::mem::take(&mut m.__bindgen_anon_3.tx_offload) };
        let (udp, rest) = ((left >> 32) as usize, left as u32 as usize);
        if !by_device && checksum::add_udp(self.data_mut(), udp, rest) {
            return;
        }
        let Some(h) = Headers::parse(self.data()) else { return };
        let Some(l4) = h.l4.filter(|_| h.proto == ipproto::UDP && !h.fragment) else { return };
        // Both lengths have few bits in an mbuf.
        let lengths =
            (u16::try_from(h.l3).ok().filter(|n| *n < 128), u16::try_from(l4 - h.l3).ok().filter(|n| *n < 512));
        let (true, (Some(l2), Some(l3))) = (by_device, lengths) else { return checksum::set_l4(self.data_mut(), &h) };
        checksum::set_pseudo(self.data_mut(), &h);
        let family = if h.is_ipv4() { ffi::RTE_MBUF_F_TX_IPV4 } else { ffi::RTE_MBUF_F_TX_IPV6 };
        // SAFETY: the mbuf is valid and owned here; it writes flags and two numbers, whose bits the lengths fit into (above).
        unsafe { ffi::isthmus_leave_udp(self.raw.as_ptr(), family, l2, l3) };
    }

    /// A copy in a pool's memory; none where it is exhausted, or the packet does not fit into its buffers.
    pub fn copy(&self, pool: &Pool) -> Option<Mbuf> {
        // SAFETY: the packet is valid and of one segment, and only read; the pool is there for good.
        let raw = unsafe { ffi::isthmus_copy(self.raw.as_ptr(), pool.as_ptr()) };
        NonNull::new(raw).map(|raw| Mbuf { raw })
    }
}
