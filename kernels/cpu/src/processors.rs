//! Keeps a pool's helpers off the processor of its caller.
//!
//! The system wakes a thread where it ran last, or where its waker runs; on a busy machine that may be the caller's
//! own processor, and a helper there waits for the very thread that it is to help. Nothing else is bound: the caller
//! runs where the system puts it, and helpers on all other processors that the process may use.

use std::thread::JoinHandle;

/// The processors of a pool. Does nothing on other systems than Linux.
#[derive(Debug)]
pub struct Processors {
    #[cfg(target_os = "linux")]
    inner: linux::Processors,
}

impl Processors {
    /// The processors that this thread may use now.
    pub fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            inner: linux::Processors::new(),
        }
    }

    /// Lets `helpers` run everywhere but on the processor of this thread. One system call a helper when the thread
    /// has moved; none else.
    pub fn leave_mine_to_me(&self, helpers: &[JoinHandle<()>]) {
        #[cfg(target_os = "linux")]
        self.inner.leave_mine_to_me(helpers);
        #[cfg(not(target_os = "linux"))]
        let _ = helpers;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::thread::JoinHandle;

    #[derive(Debug)]
    pub struct Processors {
        allowed: libc::cpu_set_t,
        /// Where the caller was last; -1: nowhere yet.
        callers: AtomicI32,
    }

    impl Processors {
        pub fn new() -> Self {
            // SAFETY: a set is plain bits, and 0 means this thread.
            let allowed = unsafe {
                let mut allowed: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
                allowed
            };
            Self { allowed, callers: AtomicI32::new(-1) }
        }

        pub fn leave_mine_to_me(&self, helpers: &[JoinHandle<()>]) {
            // SAFETY: it only asks.
            let here = unsafe { libc::sched_getcpu() };
            if here < 0 || self.callers.swap(here, Ordering::Relaxed) == here {
                return;
            }
            let mut others = self.allowed;
            // SAFETY: the processor's number is one of the system's; a set has room for 1,024, and the threads live.
            unsafe {
                if here as usize >= 8 * size_of_val(&others) {
                    return;
                }
                libc::CPU_CLR(here as usize, &mut others);
                if libc::CPU_COUNT(&others) == 0 {
                    return;
                }
                for helper in helpers {
                    // Where it is refused, helpers stay where they are, which costs only time.
                    libc::pthread_setaffinity_np(helper.as_pthread_t(), size_of_val(&others), &others);
                }
            }
        }
    }
}
