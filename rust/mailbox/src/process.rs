//! Process ids, and whether the process behind one still runs.
//!
//! A killed process that its parent has not waited for (a zombie) still has its id, so `kill(pid, 0)` does not
//! tell. A pidfd does: it becomes readable when the last thread of the process has ended, which also means that
//! no store of it is still to come. Ids are compared, so all sides of a ring must see the same process
//! namespace. One's own is a load; to ask after another takes three system calls.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static OWN: AtomicU32 = AtomicU32::new(0);

/// This process's id, without a system call. Right after a fork, too.
pub(super) fn own_id() -> u32 {
    match OWN.load(Ordering::Relaxed) {
        0 => find_own_id(),
        id => id,
    }
}

#[cold]
fn find_own_id() -> u32 {
    extern "C" fn forget() {
        OWN.store(0, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler only stores to an atomic, which is allowed in a forked child.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forget));
    });
    let id = std::process::id();
    OWN.store(id, Ordering::Relaxed);
    id
}

/// Whether process `id` still runs. True where that cannot be found out.
pub(super) fn is_alive(id: u32) -> bool {
    if id == own_id() {
        return true;
    }
    let no_such_process = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    // SAFETY: a system call on plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id as libc::pid_t, 0) };
    if fd < 0 {
        // A kernel without pidfds, or too many open files: signal 0 is not sent, only checked.
        // SAFETY: a system call on plain numbers.
        return !no_such_process()
            && (unsafe { libc::kill(id as libc::pid_t, 0) } == 0 || !no_such_process());
    }
    // SAFETY: the call returned a new descriptor, which no other code has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd; a zero timeout does not block.
    (unsafe { libc::poll(&mut poll, 1, 0) }) != 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert!(is_alive(child.id()) && is_alive(own_id()));
        child.kill().unwrap();
        // SAFETY: all zero is a valid siginfo, and the call writes at most one. WNOWAIT leaves the zombie.
        let ended = unsafe {
            let mut info = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        assert_eq!(ended, 0);
        assert!(!is_alive(child.id()), "killed, though not waited for yet");
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }
}
