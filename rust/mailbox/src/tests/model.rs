//! Alone, a mailbox is a bounded queue of bytes.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Receive,
    Drain(usize),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..200usize).prop_map(Step::Send),
        6 => (0..2200usize).prop_map(Step::Send),
        16 => Just(Step::Receive),
        2 => (0..8usize).prop_map(Step::Drain),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #[test]
    fn it_is_a_bounded_queue(steps in prop::collection::vec(step(), 1..400)) {
        let mailbox = Mailbox::new(4096).unwrap();
        let room = mailbox.capacity();
        let size = |message: &Vec<u8>| message.len().div_ceil(64).max(1) * 64;
        let (mut model, mut closed) = (VecDeque::<Vec<u8>>::new(), false);
        for (number, step) in steps.into_iter().enumerate() {
            let used: usize = model.iter().map(size).sum();
            match step {
                Step::Send(length) => {
                    let message: Vec<u8> = (0..length).map(|byte| (byte * 31 + number) as u8).collect();
                    let free = room - used;
                    let expected = if length > room / 2 {
                        Err(Error::MessageTooLarge { length, limit: room / 2 })
                    } else if closed {
                        Err(Error::MailboxClosed)
                    } else if size(&message) > free {
                        Err(Error::MailboxFull { needed: size(&message), free })
                    } else {
                        Ok(())
                    };
                    prop_assert_eq!(mailbox.send(&message), expected.clone());
                    if expected.is_ok() {
                        model.push_back(message);
                    }
                }
                Step::Receive => {
                    let expected = match model.pop_front() {
                        None if closed => Err(Error::MailboxClosed),
                        message => Ok(message),
                    };
                    prop_assert_eq!(received(&mailbox), expected);
                }
                Step::Drain(limit) => {
                    let mut drained = Vec::new();
                    let result = mailbox.drain_with(limit, |bytes| drained.push(bytes.to_vec()));
                    let expected: Vec<_> = model.drain(..limit.min(model.len())).collect();
                    if closed && expected.is_empty() && limit > 0 {
                        prop_assert_eq!(result, Err(Error::MailboxClosed));
                    } else {
                        prop_assert_eq!(result, Ok(expected.len()));
                    }
                    prop_assert_eq!(drained, expected);
                }
                Step::Close => {
                    mailbox.close();
                    closed = true;
                }
            }
            prop_assert_eq!(mailbox.used(), model.iter().map(size).sum::<usize>());
            prop_assert_eq!(mailbox.is_closed(), closed);
        }
    }
}
