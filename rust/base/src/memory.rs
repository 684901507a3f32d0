//! The memory that a thread holds, so that work which takes too much can be ended, and what is held can be told.
//!
//! The module's allocator is the system's; beside it each thread counts the bytes that it has asked for less those that it
//! has given back. O(1) an allocation, without atomics. Memory that another thread gives back is counted there.

use std::cell::Cell;

use crate::shared_memory::page_size;

/// How many arenas the threads share.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 4;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static START: Cell<isize> = const { Cell::new(0) };
}

/// Begins to measure the work of this thread.
pub fn measure() {
    let held = HELD.get();
    START.set(held);
    PEAK.set(held);
}

/// Bytes that this thread has taken since [`measure`] less those given back.
pub fn held() -> usize {
    usize::try_from(HELD.get() - START.get()).unwrap_or(0)
}

/// The most that this thread held since [`measure`].
pub fn peak() -> usize {
    usize::try_from(PEAK.get() - START.get()).unwrap_or(0)
}

/// Lets the threads of this process share a few of the allocator's arenas. With an arena for each thread, little of what
/// short-lived threads free can be given back: something that lives on is on nearly every page.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time by any thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Gives free memory of all threads back to the system, as far as the allocator can, and tells about how many bytes that
/// were. Takes milliseconds, in which other threads may wait for memory.
pub fn give_back() -> usize {
    let before = resident();
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
    before.saturating_sub(resident())
}

/// The bytes of this process that are in memory; zero where the system does not tell.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * page_size()
}

mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};

    use super::{HELD, PEAK};

    /// The system's allocator, with a count for each thread.
    struct Counting;

    fn count(bytes: isize) {
        let held = HELD.get() + bytes;
        HELD.set(held);
        if held > PEAK.get() {
            PEAK.set(held);
        }
    }

    // SAFETY: every call goes to the system's allocator as it came; counting allocates nothing and has no destructor. No
    // layout is larger than isize.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size() as isize);
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            count(layout.size() as isize);
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc_zeroed(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            count(-(layout.size() as isize));
            // SAFETY: the caller's promise is passed on.
            unsafe { System.dealloc(memory, layout) }
        }

        unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            count(size as isize - layout.size() as isize);
            // SAFETY: the caller's promise is passed on.
            unsafe { System.realloc(memory, layout, size) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_tells_what_is_in_memory() {
        assert!(resident() > 1 << 20, "this program alone has more");
    }

    #[test]
    fn a_thread_counts_what_it_holds() {
        measure();
        let kept = vec![0u8; 1 << 20];
        drop(vec![1u8; 3 << 20]);
        assert!((1 << 20..2 << 20).contains(&held()), "{}", held());
        assert!((4 << 20..5 << 20).contains(&peak()), "{}", peak());
        std::thread::spawn(move || drop(kept)).join().unwrap();
        assert!(held() >= 1 << 20, "the other thread has counted it");
        measure();
        assert!(peak() < 1 << 10);
    }
}
