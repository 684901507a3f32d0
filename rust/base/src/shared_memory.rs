//! Anonymous files that processes share by inherited descriptors.
//!
//! The file comes from `memfd_create`: it has no name, and the kernel frees it with its last descriptor and mapping,
//! however the processes ended. It is sealed at its size, so that no peer can truncate it under the others.
//! Making one is O(1): pages are zero and come when first touched.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// A new file of `size` zero bytes. `name` is what /proc shows.
pub fn create(name: &CStr, size: usize) -> Result<File> {
    // SAFETY: the name is a C string; the call touches no other memory.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(last_error("memfd_create"));
    }
    // SAFETY: `fd` is new and owned by nothing else.
    let memory = unsafe { File::from_raw_fd(fd) };
    memory.set_len(size as u64).map_err(|error| system("ftruncate", &error))?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a plain fcntl on a descriptor that we own.
    if unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(last_error("fcntl(F_ADD_SEALS)"));
    }
    Ok(memory)
}

/// A duplicate of a descriptor that was inherited, and the size of its file; None if that is not one of [`create`].
pub fn open(memory: BorrowedFd<'_>) -> Result<Option<(File, usize)>> {
    let memory = File::from(memory.try_clone_to_owned().map_err(|error| system("dup", &error))?);
    let size = memory.metadata().map_err(|error| system("fstat", &error))?.len();
    // SAFETY: a plain fcntl on a descriptor that we own. It fails on all but sealable memory files.
    let seals = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Ok(None);
    }
    Ok(Some((memory, size as usize)))
}

/// A whole file, mapped once for reading and writing. Unmapped when dropped.
pub struct Mapping {
    base: NonNull<u8>,
    size: usize,
    memory: File,
}

// SAFETY: the mapping belongs to this value until it is dropped and may be used from any thread; its users must share
// its contents accordingly.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `size` bytes of `memory`, which must have them and be sealed against shrinking.
    pub fn new(memory: File, size: usize) -> Result<Self> {
        // SAFETY: a shared mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        let base = NonNull::new(base.cast::<u8>()).expect("mmap does not return the null page");
        Ok(Self { base, size, memory })
    }

    /// The first byte; page-aligned.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The descriptor that another process opens it by.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; every reference into it borrowed self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// Bytes of a page of memory.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The operating system's last error in `call`.
pub fn last_error(call: &str) -> Error {
    system(call, &io::Error::last_os_error())
}

/// An operating-system error of `call`.
pub fn system(call: &str, error: &io::Error) -> Error {
    Error::System(format!("{call}: {error}"))
}
