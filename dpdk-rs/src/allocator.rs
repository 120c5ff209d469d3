//! Memory for the process: large pieces are the kernel's pages, small ones the C library's.

use std::alloc::{GlobalAlloc, Layout, System};

/// From so many bytes on, a piece is mapped for itself.
const LARGE: usize = 1 << 22;

/// Gives large pieces as pages that are not there before somebody writes to them, and grows them where they are or by moving pages,
/// never bytes. The tables of a switch are reserved in one piece and used bit by bit: the C library would touch all of it where it is
/// told to fill what it gives (`MALLOC_PERTURB_`), and copy all of it to make it larger.
#[derive(Debug)]
pub struct Allocator;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= 4096
}

// SAFETY: each piece is given back as it was taken, as its size says which kind it is; `realloc` keeps the kinds apart.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            // SAFETY: the caller's promises are the same.
            return unsafe { System.alloc(layout) };
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: new pages, where the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), protection, flags, -1, 0) };
        if at == libc::MAP_FAILED { std::ptr::null_mut() } else { at.cast() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            // SAFETY: as above; new pages are zero.
            return unsafe { self.alloc(layout) };
        }
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: mapped by `alloc` with this size.
            unsafe { libc::munmap(at.cast(), layout.size()) };
            return;
        }
        // SAFETY: taken from there with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size fits the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(new)) {
            (true, true) => {
                // SAFETY: mapped by `alloc` with this size; nobody else has the pages.
                let moved = unsafe { libc::mremap(at.cast(), layout.size(), size, libc::MREMAP_MAYMOVE) };
                if moved == libc::MAP_FAILED { std::ptr::null_mut() } else { moved.cast() }
            }
            // SAFETY: taken from there with this layout.
            (false, false) => unsafe { System.realloc(at, layout, size) },
            _ => {
                // SAFETY: the new piece is another one, with room for what is copied; the old one is given back as it was taken.
                unsafe {
                    let place = self.alloc(new);
                    if !place.is_null() {
                        std::ptr::copy_nonoverlapping(at, place, layout.size().min(size));
                        self.dealloc(at, layout);
                    }
                    place
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        text.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or_default() * 4096
    }

    #[test]
    fn pieces_grow_and_shrink_with_what_is_in_them() {
        let of = |n| Layout::from_size_align(n, 64).unwrap_or(Layout::new::<u64>());
        // SAFETY: each piece is used within its size and given back with the layout that it has by then.
        unsafe {
            let mut at = Allocator.alloc(of(1000));
            (0..1000).for_each(|i| at.add(i).write(i as u8));
            let sizes = [1000, LARGE - 64, LARGE, 5 * LARGE + 4096, 2 * LARGE, LARGE - 64, 1000];
            for pair in sizes.windows(2) {
                at = Allocator.realloc(at, of(pair[0]), pair[1]);
                assert!(!at.is_null() && (at as usize).is_multiple_of(64), "{pair:?}");
                assert!((0..1000).all(|i| at.add(i).read() == i as u8), "{pair:?}");
            }
            Allocator.dealloc(at, of(1000));
            let before = resident();
            let at = Allocator.alloc(of(1 << 30));
            at.add(1 << 29).write(7);
            assert!(resident() < before + (1 << 26), "a gigabyte of which a byte is used");
            Allocator.dealloc(at, of(1 << 30));
            let zero = Allocator.alloc_zeroed(of(LARGE));
            assert!((0..LARGE).step_by(4096).all(|i| zero.add(i).read() == 0));
            Allocator.dealloc(zero, of(LARGE));
        }
    }
}
