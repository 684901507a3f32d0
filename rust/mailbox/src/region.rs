//! The memory of a ring: one anonymous file, mapped so that the bytes go round by themselves.
//!
//! ```text
//!  file     │ Header │ slots: one u64 per granule │ data: `capacity` bytes │
//!  mapping  │ Header │ slots                      │ data                   │ data, again │
//! ```
//!
//! The data is mapped twice in a row: a message that runs over the end of the first copy goes on at the
//! start of the second, which is the same memory. So every message is one slice and nothing is ever padded.
//! The file comes from `memfd_create`: it has no name, and the kernel frees it with its last descriptor and
//! mapping, however the processes ended. It is sealed at its size, so that no peer can truncate it under
//! the others. Making one is O(1): pages are zero, which is a valid empty ring, and come when first touched.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pyengine_base::error::{Error, Result};
use pyengine_base::shared_memory::{self, last_error, page_size};

/// Bytes in which the data is handed out: a cache line, so that two writers never share one.
pub(super) const GRANULE: usize = 64;
/// The largest ring. Positions are counted in 32 bits of granules, lengths in 31 bits of bytes.
const MAX_CAPACITY: usize = 1 << 30;
/// "pyengmb" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"pyengmb\x01");

/// A value on cache lines of its own (two, since lines are fetched in pairs).
#[repr(C, align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// The state that all sides share beside slots and data. All zero is an empty, open ring, but for the first two fields.
#[repr(C)]
pub(super) struct Header {
    magic: AtomicU64,
    capacity: AtomicU64,
    /// 1 once the ring was closed.
    pub(super) closed: AtomicU32,
    /// Where the next record goes; see [`super::ring::Cursor`].
    pub(super) tail: Padded<AtomicU64>,
    /// The record that is read next.
    pub(super) head: Padded<AtomicU64>,
    /// 1 while the reader sleeps or is about to, until a writer wakes it.
    pub(super) armed: Padded<AtomicU32>,
    /// The reader's process id times two, plus one while it receives; 0 before the first.
    pub(super) reader: Padded<AtomicU64>,
}

/// A mapped ring. Unmapped when dropped.
pub(super) struct Region {
    base: NonNull<u8>,
    mapped: usize,
    slots_at: usize,
    data_at: usize,
    capacity: usize,
    memory: File,
}

// SAFETY: the mapping belongs to this value until it is dropped and may be used from any thread: header and
// slots are atomics, and the protocol of `ring` says which side may touch which data bytes when.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A new region whose data is `capacity` bytes, rounded up to a power of two of at least a page.
    pub(super) fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            let problem = format!("capacity must be from 1 to {MAX_CAPACITY} bytes, not {capacity}");
            return Err(Error::InvalidArgument(problem));
        }
        let capacity = capacity.next_power_of_two().max(page_size());
        let memory = shared_memory::create(c"pyengine-mailbox", file_size(capacity))?;
        let region = Self::map(memory, capacity)?;
        region.header().capacity.store(capacity as u64, Ordering::Relaxed);
        region.header().magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// Maps a region that exists. The descriptor is duplicated; the caller keeps its own.
    pub(super) fn attach(memory: BorrowedFd<'_>) -> Result<Self> {
        let refused = || Error::InvalidArgument("the descriptor is not the memory of a mailbox".into());
        let (memory, size) = shared_memory::open(memory)?.ok_or_else(refused)?;
        // The size fixes the capacity; the header must agree.
        let mut capacity = page_size();
        while capacity <= MAX_CAPACITY && file_size(capacity) < size {
            capacity *= 2;
        }
        if capacity > MAX_CAPACITY || file_size(capacity) != size {
            return Err(refused());
        }
        let region = Self::map(memory, capacity)?;
        let magic = region.header().magic.load(Ordering::Acquire);
        if magic != MAGIC || region.header().capacity.load(Ordering::Relaxed) != capacity as u64 {
            return Err(refused());
        }
        Ok(region)
    }

    fn map(memory: File, capacity: usize) -> Result<Self> {
        let slots_at = align_to_page(size_of::<Header>());
        let data_at = file_size(capacity) - capacity;
        let mapped = data_at + 2 * capacity;
        // Reserve the addresses first, so that both mappings of the file land side by side in them.
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        let base = NonNull::new(base.cast::<u8>()).expect("mmap does not return the null page");
        // From here on, dropping `region` undoes everything.
        let region = Self { base, mapped, slots_at, data_at, capacity, memory };
        region.place(0, data_at + capacity, 0)?;
        region.place(data_at + capacity, capacity, data_at)?;
        Ok(region)
    }

    /// Maps `length` bytes of the file from `offset` on at `at` bytes into the reserved addresses.
    fn place(&self, at: usize, length: usize, offset: usize) -> Result<()> {
        assert!(at + length <= self.mapped);
        // SAFETY: MAP_FIXED replaces only addresses that `map` reserved for this region.
        let placed = unsafe {
            libc::mmap(
                self.base.as_ptr().add(at).cast(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.memory.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if placed == libc::MAP_FAILED { Err(last_error("mmap")) } else { Ok(()) }
    }

    /// The shared counters.
    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a page-aligned header, made only of atomics, and lives as long as self.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// The slot of record number `index`.
    pub(super) fn slot(&self, index: u32) -> &AtomicU64 {
        let slot = index as usize & (self.granules() - 1);
        // SAFETY: there are `granules()` slots, a power of two, from `slots_at` on, aligned and never unmapped
        // before self.
        unsafe { self.base.add(self.slots_at).cast::<AtomicU64>().add(slot).as_ref() }
    }

    /// The first of the `length` bytes at granule `position`. They are one run, thanks to the second mapping.
    pub(super) fn data(&self, position: u32, length: usize) -> *mut u8 {
        assert!(length <= self.capacity);
        let offset = (position as usize * GRANULE) & (self.capacity - 1);
        // SAFETY: offset < capacity and length <= capacity, so the run ends within the two copies of the data.
        unsafe { self.base.as_ptr().add(self.data_at + offset) }
    }

    /// Bytes of data.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Granules of data, which is also the number of slots.
    pub(super) fn granules(&self) -> usize {
        self.capacity / GRANULE
    }

    /// The descriptor that another process attaches by.
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` reserved; every reference into it borrowed self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Size of the file behind a ring of `capacity` bytes.
fn file_size(capacity: usize) -> usize {
    let slots = capacity / GRANULE * size_of::<AtomicU64>();
    align_to_page(size_of::<Header>()) + align_to_page(slots) + capacity
}

fn align_to_page(size: usize) -> usize {
    size.next_multiple_of(page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_goes_round_by_itself() {
        let region = Region::new(1).unwrap();
        let capacity = region.capacity();
        let last = (region.granules() - 1) as u32;
        // SAFETY: 2 * GRANULE bytes from the last granule on lie within the two copies; no other code has them.
        unsafe { std::ptr::write_bytes(region.data(last, 2 * GRANULE), 7, 2 * GRANULE) };
        let peer = Region::attach(region.memory()).unwrap();
        assert_eq!(peer.capacity(), capacity);
        for position in [last, 0] {
            // SAFETY: one granule at a valid position, written above and not written any more.
            let bytes = unsafe { std::slice::from_raw_parts(peer.data(position, GRANULE), GRANULE) };
            assert_eq!(bytes, [7; GRANULE]);
        }
    }

    #[test]
    fn sizes_and_descriptors_are_checked() {
        assert!(matches!(Region::new(0), Err(Error::InvalidArgument(_))));
        assert!(matches!(Region::new(MAX_CAPACITY + 1), Err(Error::InvalidArgument(_))));
        assert_eq!(Region::new(5000).unwrap().capacity(), 5000usize.next_power_of_two().max(page_size()));
        let other = File::open("/dev/null").unwrap();
        assert!(matches!(Region::attach(other.as_fd()), Err(Error::InvalidArgument(_))));
        assert!(Region::new(1 << 20).unwrap().memory.set_len(0).is_err());
    }
}
