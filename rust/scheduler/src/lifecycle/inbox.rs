//! `drain`: reads the scheduler's mailbox. O(bytes + log waiting) a message.

use super::Lifecycle;
use crate::step::Steps;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, Message, tag};
use pyengine_telemetry::Stage;

/// Messages of one call, so that a flood cannot keep the step from running.
const MAX_MESSAGES: usize = 4096;
/// And their bytes, once passed.
const MAX_BYTES: usize = 1 << 20;

impl Lifecycle {
    /// Handles the messages that `receive` reads (it fills the buffer, or returns false if there is none). Returns
    /// the raw messages that are not for the planner: other tags, malformed ones, and a key that is already there.
    ///
    /// Messages are read also while the detokenizer's ring is full: it may be waiting to send to this mailbox.
    pub fn drain(
        &mut self,
        kv: &mut KvAllocator,
        steps: &mut Steps,
        mut receive: impl FnMut(&mut Vec<u8>) -> Result<bool>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut others = Vec::new();
        let mut message = std::mem::take(&mut self.message);
        let (mut taken, mut bytes) = (0, 0);
        let received = loop {
            match receive(&mut message) {
                Ok(true) if self.take(kv, steps, &message)? => {}
                Ok(true) => others.push(message.clone()),
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            taken += 1;
            bytes += message.len();
            if taken == MAX_MESSAGES || bytes >= MAX_BYTES {
                break Ok(());
            }
        };
        self.message = message;
        // Also without a `GrammarsReady`: the ring may have had no room for it.
        self.collect_prepared(kv, steps);
        self.expire(kv, steps);
        self.flush(Stage::Drain)?;
        match received {
            // Messages read before the mailbox closed count; the next call raises that it is closed.
            Err(Error::MailboxClosed) if taken > 0 => Ok(others),
            other => other.map(|()| others),
        }
    }

    /// Handles one message; false if it is not for the planner.
    fn take(&mut self, kv: &mut KvAllocator, steps: &mut Steps, bytes: &[u8]) -> Result<bool> {
        if !matches!(
            tag(bytes),
            Ok("submit" | "abort" | "abort_frontend" | "stop_matched" | "grammars_ready")
        ) {
            return Ok(false);
        }
        match Message::decode(bytes) {
            Ok(Message::Submit(body)) if self.requests.find(body.key).is_none() => {
                self.submit(kv, steps, *body)?;
                Ok(true)
            }
            Ok(Message::Abort(key)) => {
                if let Some(id) = self.requests.find(key) {
                    self.finish(kv, steps, id, FinishReason::Abort);
                }
                Ok(true)
            }
            Ok(Message::AbortFrontend(below)) => {
                self.abort_frontend(kv, steps, below);
                Ok(true)
            }
            Ok(Message::StopMatched(key)) => {
                // The detokenizer has ended the stream itself.
                if let Some(id) = self.requests.find(key) {
                    self.end(kv, steps, id, FinishReason::Stop);
                }
                Ok(true)
            }
            // The message has woken the scheduler, which collects what was prepared with every call.
            Ok(Message::GrammarsReady(())) => Ok(true),
            _ => Ok(false),
        }
    }
}
