//! Network devices of the kernel, through AF_PACKET (packet(7)). DPDK's own driver joins a fanout group even for one queue, with
//! `PACKET_FANOUT_FLAG_DEFRAG`: the kernel then puts IPv4 fragments together, to packets that no device sends on.

use crate::tap::{checked, request, watcher};
use crate::{Mbuf, Memory, port::BURST};
use packet::Mac;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where frames wait: bytes of a frame with its header, bytes of a block, and how many frames there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Bytes of a frame's place, its header among them: a multiple of 16.
    pub frame: usize,
    /// Bytes of a block: whole frames, and whole pages.
    pub block: usize,
    /// Frames.
    pub frames: usize,
}

/// Bytes of an Ethernet header before its type.
const ADDRESSES: usize = 12;

/// What one frame's header says (`struct tpacket2_hdr` of linux/if_packet.h).
#[repr(C)]
struct Header {
    status: AtomicU32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    sec: u32,
    nsec: u32,
    tci: u16,
    tpid: u16,
    padding: [u8; 4],
}

/// Bits of `status` (linux/if_packet.h).
const KERNEL: u32 = 0;
const USER: u32 = 1;
const SUM_NOT_READY: u32 = 1 << 3;
const VLAN_VALID: u32 = 1 << 4;
const TPID_VALID: u32 = 1 << 6;
/// `PACKET_IGNORE_OUTGOING`: what this host sends by the device is not received from it.
const IGNORE_OUTGOING: libc::c_int = 23;

/// An open socket on a device.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    map: Map,
    ring: Ring,
    /// The frame that comes next. Who receives has it alone (`Port::receive`).
    next: Mutex<usize>,
    memory: Memory,
    watched: u64,
    /// Packets and bytes received and sent, those that could not be sent, and those for which the ring had no room.
    pub(crate) counters: [AtomicU64; 6],
    /// The priority of what it sends.
    priority: AtomicU32,
}

/// The ring's memory.
#[derive(Debug)]
struct Map {
    at: *mut u8,
    len: usize,
}

// SAFETY: memory of the process, until it is dropped; who reads and writes it and when is said by each frame's `status`.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody else has it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> Result<()> {
    let (at, n) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: reads as many bytes of a plain structure as it has.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, n) }).map(drop)
}

impl Socket {
    /// Opens a device that is there, and takes all that comes by it.
    pub(crate) fn open(memory: &Memory, name: &str, ring: Ring) -> Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: makes a socket, which receives nothing before it is bound.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: it was made above and is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut r = request(name)?;
        // SAFETY: reads and writes a request that is there during the call.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut r) })?;
        // SAFETY: the kernel has written the index.
        let index = unsafe { r.ifr_ifru.ifru_ifindex };
        set(&fd, libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        // Kernels before 4.20 do not know it; they hand over what the host itself sends as well.
        let _ = set(&fd, libc::SOL_PACKET, IGNORE_OUTGOING, &1i32);
        let asked = libc::tpacket_req {
            tp_block_size: ring.block as u32,
            tp_block_nr: (ring.frames * ring.frame / ring.block) as u32,
            tp_frame_size: ring.frame as u32,
            tp_frame_nr: ring.frames as u32,
        };
        set(&fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &asked)?;
        let len = ring.frames * ring.frame;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: maps the ring that the socket has by now, where the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let map = Map { at: at.cast(), len };
        // SAFETY: plain numbers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let n = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: reads an address that is there during the call.
        checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), n) })?;
        // SAFETY: plain numbers, for which zero is a value.
        let mut promiscuous: libc::packet_mreq = unsafe { std::mem::zeroed() };
        promiscuous.mr_ifindex = index;
        promiscuous.mr_type = libc::PACKET_MR_PROMISC as u16;
        set(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        let watched = watcher()?.watch_once(&fd)?;
        let counters = Default::default();
        let (next, priority) = (Mutex::new(0), AtomicU32::new(0));
        Ok(Socket { fd, map, ring, next, memory: memory.clone(), watched, counters, priority })
    }

    fn header(&self, n: usize) -> Option<&Header> {
        let at = n.checked_mul(self.ring.frame).filter(|at| at + size_of::<Header>() <= self.map.len)?;
        // SAFETY: a frame's header is at its beginning, within the map, and aligned, as frames are multiples of 16 bytes. The kernel
        // writes it only while `status` says that the frame is its own.
        Some(unsafe { &*self.map.at.add(at).cast::<Header>() })
    }

    /// There is something to receive.
    pub(crate) fn ready(&self) -> bool {
        let next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.header(next).is_some_and(|h| h.status.load(Ordering::Acquire) & USER != 0)
    }

    /// Has the thread that waits for devices tell of the next packet.
    pub(crate) fn arm(&self) {
        if let Ok(w) = watcher() {
            w.arm(&self.fd, self.watched);
        }
    }

    /// Receives up to [`BURST`] packets. Gives how many were lost, as they did not fit into the ring, or there was no memory.
    pub(crate) fn receive(&self, mut each: impl FnMut(Mbuf)) -> usize {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lost = 0;
        for _ in 0..BURST {
            let Some(h) = self.header(*next) else { break };
            let status = h.status.load(Ordering::Acquire);
            if status & USER == 0 {
                break;
            }
            match self.packet(*next, h, status) {
                Some(m) => {
                    let [packets, bytes, ..] = &self.counters;
                    packets.fetch_add(1, Ordering::Relaxed);
                    bytes.fetch_add(m.len() as u64, Ordering::Relaxed);
                    each(m);
                }
                None => lost += 1,
            }
            h.status.store(KERNEL, Ordering::Release);
            *next = (*next + 1) % self.ring.frames;
        }
        lost
    }

    /// A frame of the ring as a packet, with the tag that the kernel has taken out of it.
    fn packet(&self, n: usize, h: &Header, status: u32) -> Option<Mbuf> {
        let (len, start) = (h.snaplen as usize, usize::from(h.mac));
        if h.snaplen != h.len || start + len > self.ring.frame {
            return None;
        }
        // SAFETY: within the frame, which is this side's until `status` says otherwise.
        let data = unsafe { std::slice::from_raw_parts(self.map.at.add(n * self.ring.frame + start), len) };
        let tag = (status & VLAN_VALID != 0).then(|| {
            let tpid = if status & TPID_VALID != 0 { h.tpid } else { packet::ethertype::VLAN };
            [tpid.to_be_bytes(), h.tci.to_be_bytes()].concat()
        });
        let tag = tag.as_deref().unwrap_or_default();
        let whole = len + tag.len();
        let mut m = self.memory.of(whole)?.allocate()?;
        let room = m.append(whole)?;
        let (head, rest) = data.split_at_checked(ADDRESSES)?;
        room.get_mut(..ADDRESSES)?.copy_from_slice(head);
        room.get_mut(ADDRESSES..ADDRESSES + tag.len())?.copy_from_slice(tag);
        room.get_mut(ADDRESSES + tag.len()..)?.copy_from_slice(rest);
        if status & SUM_NOT_READY != 0 {
            // It never was on a wire: its sender has left the checksum to a device (packet(7), TP_STATUS_CSUMNOTREADY).
            write_checksum(m.data_mut());
        }
        Some(m)
    }

    /// Sets the priority of what is sent from now on.
    pub(crate) fn set_priority(&self, priority: u32) {
        if self.priority.swap(priority, Ordering::Relaxed) != priority {
            // Without CAP_NET_ADMIN the kernel refuses it: packets go as those of no class do.
            let _ = set(&self.fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority.cast_signed());
        }
    }

    /// Sends packets, and gives how many of them are gone: sent, or not to be sent at all.
    pub(crate) fn send(&self, packets: &[Mbuf]) -> usize {
        let (mut done, mut told) = (0, false);
        while let Some(rest) = packets.get(done..).filter(|r| !r.is_empty()) {
            let chunk = rest.get(..BURST).unwrap_or(rest);
            let n = self.send_some(chunk);
            done += n;
            if n < chunk.len() {
                // One that the device does not take holds up no other; where its queue is full, all have to wait.
                if !refused() {
                    break;
                }
                // That the device went down is told once, also when it is up again: this packet was not tried.
                if went_down() && !std::mem::replace(&mut told, true) {
                    continue;
                }
                self.counters[4].fetch_add(1, Ordering::Relaxed);
                done += 1;
            }
        }
        done
    }

    fn send_some(&self, chunk: &[Mbuf]) -> usize {
        // SAFETY: plain numbers and pointers, for which zero is a value.
        let (mut parts, mut list): ([libc::iovec; BURST], [libc::mmsghdr; BURST]) = unsafe { std::mem::zeroed() };
        for ((part, message), m) in parts.iter_mut().zip(list.iter_mut()).zip(chunk) {
            *part = libc::iovec { iov_base: m.data().as_ptr().cast_mut().cast(), iov_len: m.len() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: reads the first of these messages, as many as there are packets, each of one part that lies in a packet.
        let n =
            unsafe { libc::sendmmsg(self.fd.as_raw_fd(), list.as_mut_ptr(), chunk.len() as u32, libc::MSG_DONTWAIT) };
        let n = usize::try_from(n).unwrap_or(0);
        let [_, _, sent, bytes, ..] = &self.counters;
        sent.fetch_add(n as u64, Ordering::Relaxed);
        bytes.fetch_add(chunk.iter().take(n).map(|m| m.len() as u64).sum(), Ordering::Relaxed);
        n
    }

    /// Counts the packets for which the ring had no room since this was asked.
    pub(crate) fn missed(&self) -> u64 {
        // SAFETY: plain numbers, for which zero is a value.
        let mut s: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut n = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: writes at most as many bytes of a plain structure as it has.
        let code = unsafe { libc::getsockopt(self.fd.as_raw_fd(), level, name, (&raw mut s).cast(), &raw mut n) };
        let new = if code < 0 { 0 } else { u64::from(s.tp_drops) };
        self.counters[5].fetch_add(new, Ordering::Relaxed) + new
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Ok(w) = watcher() {
            w.forget(self.watched);
        }
    }
}

/// Whether the call that just failed says that the device went down.
fn went_down() -> bool {
    Error::last_os_error().raw_os_error() == Some(libc::ENETDOWN)
}

/// Whether it failed for its first packet's sake.
fn refused() -> bool {
    !matches!(Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR))
}

/// Writes the checksum of a frame's TCP or UDP packet.
fn write_checksum(frame: &mut [u8]) {
    if let Some(h) = packet::Headers::parse(frame) {
        packet::checksum::set_l4(frame, &h);
    }
}

/// The address of a device that is there.
pub(crate) fn address(name: &str) -> Result<Mac> {
    // SAFETY: makes a socket.
    let socket = checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: it was made above and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut r = request(name)?;
    // SAFETY: reads and writes a request that is there during the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut r) })?;
    // SAFETY: the kernel has written the address.
    let data = unsafe { r.ifr_ifru.ifru_hwaddr.sa_data };
    let mut mac = [0; 6];
    mac.iter_mut().zip(data).for_each(|(b, c)| *b = c as u8);
    Ok(Mac(mac))
}
