//! Memory of zeros in huge pages, from which weights of any size take their part one behind the other.
//!
//! ```text
//!  slab   │ expert 0: values │ scales │ expert 1: values │ scales │ ...  │ untouched, so not there yet │
//!         └ a huge page ─────┴────────┴──── a huge page ─────────┴─ ...
//! ```
//!
//! A page becomes huge only if the system is told so before it is touched, and only as a whole: an allocator that
//! writes zeros comes too early, and one that serves each matrix by itself leaves those below 2 MiB, such as an
//! expert's, in small pages. A slab is given back when its last part is.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Pages of x86-64 and most of aarch64 that one entry of the TLB covers.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of a slab. What would take half of one or more has its own.
const SLAB: usize = 32 << 20;

/// Parts begin at lines of the cache.
const LINE: usize = 64;

/// Mapped pages.
#[derive(Debug)]
pub struct Slab {
    mapped: NonNull<u8>,
    /// Bytes of all pages, also before `start`.
    mapped_bytes: usize,
    /// At the border of a huge page.
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its pages, and nothing here reads or writes them.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// The slab of which parts are taken, and how much of it has been.
static OPEN: Mutex<(Weak<Slab>, usize)> = Mutex::new((Weak::new(), 0));

/// `bytes` bytes of zeros that nobody else has, at a line of the cache, for as long as their slab is kept. O(1).
///
/// Ends the process if there is no memory, as other allocations do.
pub fn zeros(bytes: usize) -> (NonNull<u8>, Arc<Slab>) {
    if bytes >= SLAB / 2 {
        let slab = Slab::new(bytes);
        return (slab.start, slab);
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let slab = open.0.upgrade().filter(|slab| slab.bytes - open.1 >= bytes).unwrap_or_else(|| {
        let slab = Slab::new(SLAB);
        *open = (Arc::downgrade(&slab), 0);
        slab
    });
    // SAFETY: the slab has this many bytes behind the taken ones.
    let start = unsafe { slab.start.add(open.1) };
    // A slab ends at a line, too.
    open.1 += bytes.next_multiple_of(LINE);
    (start, slab)
}

impl Slab {
    fn new(bytes: usize) -> Arc<Self> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let mapped_bytes = bytes + HUGE_PAGE;
        // SAFETY: new pages, wherever the system has room.
        let mapped = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let layout =
            || Layout::from_size_align(bytes, HUGE_PAGE).expect("fewer bytes than there are addresses");
        let mapped = match NonNull::new(mapped.cast::<u8>()) {
            Some(mapped) if mapped.as_ptr().cast() != libc::MAP_FAILED => mapped,
            _ => handle_alloc_error(layout()),
        };
        let before = mapped.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: less than the huge page more that was mapped.
        let start = unsafe { mapped.add(before) };
        #[cfg(target_os = "linux")]
        // SAFETY: these pages, untouched yet. A system without huge pages refuses, which costs only time.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Arc::new(Self { mapped, mapped_bytes, start, bytes })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and no part is left.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_zero_and_apart(sizes in prop::collection::vec(1usize..70_000, 1..60)) {
            let mut parts = Vec::new();
            for (number, &bytes) in (1u8..).zip(&sizes) {
                let (start, slab) = zeros(bytes);
                prop_assert_eq!(start.as_ptr() as usize % LINE, 0);
                // SAFETY: just taken.
                let part = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) };
                prop_assert!(part.iter().all(|&byte| byte == 0));
                part.fill(number);
                parts.push((number, part, slab));
            }
            for (number, part, _) in &parts {
                prop_assert!(part.iter().all(|byte| byte == number));
            }
        }
    }

    #[test]
    fn large_ones_have_their_own() {
        let (small, slab) = zeros(10);
        let (_, large) = zeros(SLAB / 2);
        assert!(!Arc::ptr_eq(&slab, &large));
        let weak = Arc::downgrade(&large);
        drop(large);
        assert!(weak.upgrade().is_none(), "given back");
        // SAFETY: the slab is kept.
        assert_eq!(unsafe { *small.as_ptr() }, 0);
    }
}
