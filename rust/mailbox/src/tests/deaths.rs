//! Writers and readers that are killed: no side waits for them forever, and no message of a living writer is lost.

use super::*;

/// Runs `work` in a forked child and returns its process id. The child may only use memory and descriptors
/// that it has: another thread may have held any lock at the fork.
fn fork(work: impl FnOnce()) -> libc::pid_t {
    process::own_id(); // Registers its fork handler, under a lock.
    // SAFETY: the child runs `work`, which keeps to the above, and never returns into the test harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        work();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    child
}

fn die() {
    // SAFETY: kills the calling process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn reap(child: libc::pid_t) {
    // SAFETY: waits for a child of ours, wants no status.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

#[test]
fn a_dead_writers_record_is_skipped() {
    type Look = fn(&Mailbox);
    let ways: [Look; 4] = [
        |mailbox| assert!(mailbox.wait(None, Duration::ZERO).unwrap()),
        |mailbox| while !mailbox.wait(Some(Duration::ZERO), Duration::ZERO).unwrap() {},
        |mailbox| while mailbox.drain_with(0, |_| ()).unwrap() == 0 && mailbox.arm().unwrap() {},
        |mailbox| {
            // No writer is left: the descriptor has to become readable by itself.
            while mailbox.drain_with(0, |_| ()).unwrap() == 0 && mailbox.arm().unwrap() {
                assert!(poll(mailbox.descriptor().unwrap(), 30_000));
            }
        },
    ];
    for look in ways {
        let mailbox = Mailbox::new(1).unwrap();
        mailbox.send(b"before").unwrap();
        let child = fork(|| {
            let _ = mailbox.shared.ring.reserve(100);
            die();
        });
        reap(child);
        mailbox.send(b"after").unwrap();
        assert_eq!(received(&mailbox).unwrap().unwrap(), b"before");
        look(&mailbox);
        assert_eq!(received(&mailbox).unwrap().unwrap(), b"after");
        assert_eq!((received(&mailbox), mailbox.used()), (Ok(None), 0));
    }
}

#[test]
fn a_living_writers_record_is_waited_for_until_it_dies() {
    let mailbox = Mailbox::new(1).unwrap();
    let child = fork(|| {
        let _ = mailbox.shared.ring.reserve(100);
        loop {
            // SAFETY: sleeps until a signal comes.
            unsafe { libc::pause() };
        }
    });
    while mailbox.used() == 0 {
        thread::yield_now();
    }
    mailbox.send(b"after").unwrap();
    for _ in 0..3 {
        assert!(!mailbox.wait(Some(2 * WRITER_CHECK), Duration::ZERO).unwrap());
        assert_eq!(received(&mailbox), Ok(None));
    }
    // SAFETY: kills a child of ours.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(mailbox.wait(None, Duration::ZERO).unwrap());
    assert_eq!(received(&mailbox).unwrap().unwrap(), b"after");
    reap(child);
}

#[test]
fn a_message_whose_writer_died_before_the_wake_up_is_found() {
    let mailbox = Mailbox::new(1).unwrap();
    for armed in [false, true] {
        assert!(mailbox.arm().unwrap());
        let child = fork(|| {
            let ring = &mailbox.shared.ring;
            let _ = ring.reserve(1).map(|place| ring.publish(place, b"x"));
            die();
        });
        reap(child);
        assert!(!is_signalled(&mailbox));
        if armed {
            assert!(poll(mailbox.descriptor().unwrap(), 30_000));
        }
        assert!(mailbox.wait(None, Duration::ZERO).unwrap());
        assert_eq!(received(&mailbox).unwrap().unwrap(), b"x");
    }
}

#[test]
fn a_full_mailbox_whose_reader_died_is_closed_to_writers_until_another_reads() {
    let mailbox = Mailbox::new(1).unwrap();
    assert!(mailbox.reader_alive());
    mailbox.send(b"for the child").unwrap();
    let child = fork(|| {
        let _ = mailbox.receive_with(|_| ());
        die();
    });
    reap(child);
    assert_eq!((mailbox.used(), mailbox.reader_alive()), (0, false));
    let error = loop {
        if let Err(error) = mailbox.send(b"x") {
            break error;
        }
    };
    assert_eq!((error, mailbox.is_closed()), (Error::MailboxClosed, false));
    assert_eq!(received(&mailbox).unwrap().unwrap(), b"x");
    assert!(mailbox.reader_alive());
    mailbox.send(b"x").unwrap();
}
