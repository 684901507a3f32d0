//! Many threads at once: every message arrives once, whole and in its writer's order, and no wake-up is lost.

use super::*;

/// Longer than any sleep here should be.
const FOREVER: Option<Duration> = Some(Duration::from_secs(60));

fn without_tick(capacity: usize) -> Mailbox {
    Mailbox::with(Region::new(capacity).unwrap(), Wake::without_tick())
}

/// Many writers, one reader: everything arrives, once, whole and in each writer's order.
fn stress(capacity: usize, writers: u64, count: u64, spin: Duration) {
    let mailbox = without_tick(capacity);
    let longest = mailbox.max_message() as u64;
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                let mut refused = 0u64;
                for number in 0..count {
                    let length = 16 + (number.wrapping_mul(0x9E37_79B9) ^ writer) % (longest - 16).min(700);
                    let mut message = vec![(number ^ writer) as u8; length as usize];
                    message[..8].copy_from_slice(&writer.to_le_bytes());
                    message[8..16].copy_from_slice(&number.to_le_bytes());
                    while let Err(error) = mailbox.send(&message) {
                        assert!(matches!(error, Error::MailboxFull { .. }));
                        refused += 1;
                        thread::yield_now();
                    }
                }
                refused
            })
        })
        .collect();
    let mut next = vec![0u64; writers as usize];
    let mut left = writers * count;
    while left > 0 {
        assert!(mailbox.wait(FOREVER, spin).unwrap(), "a wake-up was lost");
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let taken = mailbox.drain_with(16, |message| {
            let (writer, number) = (word(&message[..8]), word(&message[8..16]));
            assert_eq!(number, next[writer as usize]);
            assert!(message[16..].iter().all(|&byte| byte == (number ^ writer) as u8));
            next[writer as usize] += 1;
        });
        left -= taken.unwrap() as u64;
    }
    let refused: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!((received(&mailbox), mailbox.used()), (Ok(None), 0));
    assert!(refused > 0 || capacity > 4096, "a small ring must have been full at times");
}

#[test]
fn no_wake_up_is_lost() {
    let (there, back) = (without_tick(1), without_tick(1));
    let rounds = 20_000;
    let echo = {
        let (there, back) = (there.clone(), back.clone());
        thread::spawn(move || {
            for _ in 0..rounds {
                assert!(there.wait(FOREVER, Duration::ZERO).unwrap(), "a wake-up was lost");
                there.receive_with(|message| back.send(message).unwrap()).unwrap();
            }
        })
    };
    for _ in 0..rounds {
        there.send(b"ping").unwrap();
        assert!(back.wait(FOREVER, Duration::ZERO).unwrap(), "a wake-up was lost");
        assert_eq!(back.receive_with(|message| message == b"ping"), Ok(Some(true)));
    }
    echo.join().unwrap();
}

#[test]
fn many_writers_with_backpressure() {
    stress(1, 8, 4000, Duration::ZERO);
}

#[test]
fn many_writers_and_a_spinning_reader() {
    stress(1 << 20, 4, 10_000, Duration::from_micros(50));
}

#[test]
fn every_send_that_succeeds_before_the_close_is_delivered() {
    for _ in 0..200 {
        let mailbox = Mailbox::new(1 << 16).unwrap();
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let mailbox = mailbox.clone();
                thread::spawn(move || {
                    let mut sent = 0u64;
                    loop {
                        match mailbox.send(b"message") {
                            Ok(()) => sent += 1,
                            Err(Error::MailboxFull { .. }) => thread::yield_now(),
                            Err(error) => return (sent, error),
                        }
                    }
                })
            })
            .collect();
        let mut read = 0;
        while read < 50 {
            read += mailbox.drain_with(20, |_| ()).unwrap() as u64;
        }
        mailbox.close();
        loop {
            mailbox.wait(None, Duration::ZERO).unwrap();
            match mailbox.drain_with(20, |_| ()) {
                Ok(more) => read += more as u64,
                Err(error) => break assert_eq!(error, Error::MailboxClosed),
            }
        }
        let sent: u64 = writers
            .into_iter()
            .map(|writer| {
                let (sent, error) = writer.join().unwrap();
                assert_eq!(error, Error::MailboxClosed);
                sent
            })
            .sum();
        assert_eq!(read, sent);
    }
}
