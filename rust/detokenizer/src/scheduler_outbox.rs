//! The outbox of the scheduler: messages wait here while its mailbox is full, in their order.

use std::collections::VecDeque;

use pyengine_base::error::{Error, Result};
use pyengine_mailbox::Mailbox;
use pyengine_messages::Message;

/// The way to the scheduler: small messages, few of them.
pub(super) struct SchedulerOutbox {
    mailbox: Mailbox,
    waiting: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
}

impl SchedulerOutbox {
    pub fn new(mailbox: Mailbox) -> Self {
        Self { mailbox, waiting: VecDeque::new(), buffer: Vec::new() }
    }

    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends `message` after those that wait. To a scheduler that has ended nothing is sent: it has no requests.
    pub fn send(&mut self, message: &Message) -> Result<()> {
        self.buffer.clear();
        message.encode_into(&mut self.buffer)?;
        self.flush()?;
        if self.waiting.is_empty() {
            match self.mailbox.send(&self.buffer) {
                Err(Error::MailboxFull { .. }) => {}
                Ok(()) | Err(Error::MailboxClosed) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.waiting.push_back(self.buffer.clone());
        Ok(())
    }

    /// Tries once more what waits.
    pub fn flush(&mut self) -> Result<()> {
        while let Some(message) = self.waiting.front() {
            match self.mailbox.send(message) {
                Ok(()) | Err(Error::MailboxClosed) => self.waiting.pop_front(),
                Err(Error::MailboxFull { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pyengine_messages::RequestKey;

    #[test]
    fn a_full_scheduler_gets_all_in_order() {
        let mailbox = Mailbox::new(4096).unwrap();
        let mut outbox = SchedulerOutbox::new(mailbox.clone());
        for request in 0..500 {
            outbox.send(&Message::Abort(RequestKey { frontend: 0, request })).unwrap();
        }
        assert!(outbox.is_waiting());
        let (mut bytes, mut next) = (Vec::new(), 0);
        while next < 500 {
            while mailbox.receive(&mut bytes).unwrap() {
                let key = RequestKey { frontend: 0, request: next };
                assert_eq!(Message::decode(&bytes).unwrap(), Message::Abort(key));
                next += 1;
            }
            outbox.flush().unwrap();
        }
        assert!(!outbox.is_waiting());
    }
}
