//! A mailbox case by case. Beside it: `model` against a simple queue, `threads` under load, `deaths` of either side.

mod deaths;
mod model;
mod threads;

use std::os::fd::AsRawFd;
use std::thread;

use super::*;

fn received(mailbox: &Mailbox) -> Result<Option<Vec<u8>>> {
    mailbox.receive_with(<[u8]>::to_vec)
}

fn poll(fd: BorrowedFd<'_>, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 }
}

/// Whether the eventfd is readable. (The descriptor may be, by its timer.)
fn is_signalled(mailbox: &Mailbox) -> bool {
    poll(mailbox.descriptors().1, 0)
}

#[test]
fn messages_of_all_lengths_go_through() {
    let mailbox = Mailbox::new(1 << 14).unwrap();
    let mut message = vec![1];
    assert!(!mailbox.receive(&mut message).unwrap());
    assert_eq!(message, [1]);
    for length in [0, 1, 63, 64, 65, 4000, mailbox.max_message()] {
        mailbox.send(&vec![length as u8; length]).unwrap();
        assert_eq!(mailbox.used(), length.div_ceil(64).max(1) * 64);
        assert!(mailbox.receive(&mut message).unwrap());
        assert_eq!((message.len(), mailbox.used()), (length, 0));
        assert!(message.iter().all(|&byte| byte == length as u8));
    }
    let limit = mailbox.max_message();
    let error = Error::MessageTooLarge { length: limit + 1, limit };
    assert_eq!(mailbox.send(&vec![0; limit + 1]), Err(error));
}

#[test]
fn drain_takes_no_more_than_its_limit() {
    let mailbox = Mailbox::new(1).unwrap();
    for byte in 0..5 {
        mailbox.send(&[byte]).unwrap();
    }
    let mut all = Vec::new();
    assert_eq!(mailbox.drain_with(3, |bytes| all.extend_from_slice(bytes)), Ok(3));
    mailbox.close();
    assert_eq!(mailbox.drain_with(0, |_| unreachable!()), Ok(0));
    assert_eq!(mailbox.drain_with(9, |bytes| all.extend_from_slice(bytes)), Ok(2));
    assert_eq!(mailbox.drain_with(9, |_| unreachable!()), Err(Error::MailboxClosed));
    assert_eq!(all, [0, 1, 2, 3, 4]);
}

#[test]
fn arming_makes_the_descriptor_readable_once() {
    let mailbox = Mailbox::new(1).unwrap();
    mailbox.send(b"a").unwrap();
    assert!(!mailbox.arm().unwrap() && !is_signalled(&mailbox));
    received(&mailbox).unwrap();
    for _ in 0..3 {
        assert!(mailbox.arm().unwrap() && !is_signalled(&mailbox));
        mailbox.clone().send(b"b").unwrap();
        assert!(is_signalled(&mailbox) && !mailbox.arm().unwrap());
        received(&mailbox).unwrap();
    }
    assert!(mailbox.arm().unwrap());
    mailbox.close();
    assert!(is_signalled(&mailbox) && !mailbox.arm().unwrap());
}

#[test]
fn a_busy_reader_costs_no_system_call() {
    let mailbox = Mailbox::new(1).unwrap();
    assert!(!mailbox.wait(Some(Duration::ZERO), Duration::ZERO).unwrap());
    mailbox.send(b"a").unwrap();
    assert!(mailbox.wait(None, Duration::ZERO).unwrap());
    assert!(!mailbox.arm().unwrap());
    mailbox.send(b"b").unwrap();
    assert!(!is_signalled(&mailbox));
}

#[test]
fn wait_ends_with_a_message_a_close_or_in_time() {
    for spin in [Duration::ZERO, Duration::from_millis(1)] {
        let mailbox = Mailbox::new(1).unwrap();
        let sleeper = mailbox.clone();
        let (waiting, awaited) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || {
            waiting.send(()).unwrap();
            let first = sleeper.wait(None, spin).unwrap();
            received(&sleeper).unwrap();
            waiting.send(()).unwrap();
            (first, sleeper.wait(None, spin).unwrap(), received(&sleeper))
        });
        awaited.recv().unwrap();
        mailbox.send(b"a").unwrap();
        awaited.recv().unwrap();
        mailbox.close();
        assert_eq!(reader.join().unwrap(), (true, false, Err(Error::MailboxClosed)));
    }
    let mailbox = Mailbox::new(1).unwrap();
    assert!(!mailbox.wait(Some(Duration::from_millis(1)), Duration::ZERO).unwrap());
    assert!(!mailbox.wait(Some(Duration::from_millis(1)), Duration::MAX).unwrap());
}

#[test]
fn an_event_loop_that_looks_at_each_tick_sleeps_in_between() {
    let mailbox = Mailbox::new(1).unwrap();
    for _ in 0..3 {
        // Arming ends the tick before. (Another may have begun meanwhile, if we were held up.)
        let asleep = |_| mailbox.arm().unwrap() && !poll(mailbox.descriptor().unwrap(), 0);
        assert!((0..100).any(asleep));
        assert!(poll(mailbox.descriptor().unwrap(), 30_000));
        assert!(!is_signalled(&mailbox));
    }
}

#[test]
fn an_attached_mailbox_is_the_same_one() {
    let mailbox = Mailbox::new(1).unwrap();
    let (memory, event) = mailbox.descriptors();
    let peer = Mailbox::attach(memory, event).unwrap();
    assert!(mailbox.arm().unwrap());
    peer.send(b"x").unwrap();
    assert!(is_signalled(&mailbox));
    peer.close();
    assert_eq!(received(&mailbox).unwrap().unwrap(), b"x");
    assert_eq!(received(&mailbox), Err(Error::MailboxClosed));
    assert!(matches!(Mailbox::attach(memory, memory), Err(Error::InvalidArgument(_))));
}
