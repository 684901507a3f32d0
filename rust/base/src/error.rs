//! The core's error type, and the messages of panics.

use std::any::Any;

/// An error of the core. `python/` maps each variant to a Python exception.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A message was offered to a ring that has no room for it now. The sender keeps it.
    #[error("mailbox is full: {needed} bytes are needed, {free} are free")]
    MailboxFull {
        /// Bytes that the message takes in the ring.
        needed: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// A message that no ring of this capacity can ever hold.
    #[error("message of {length} bytes is larger than the mailbox takes ({limit} bytes)")]
    MessageTooLarge {
        /// Length of the message.
        length: usize,
        /// The longest message that the ring takes.
        limit: usize,
    },
    /// The other side has closed the mailbox, or died.
    #[error("mailbox is closed")]
    MailboxClosed,
    /// Bytes that do not decode to the expected message.
    #[error("malformed message: {0}")]
    MalformedMessage(String),
    /// The cache has no room for the blocks asked for.
    #[error("out of KV blocks: {needed} are needed, {available} are free or cached")]
    OutOfBlocks {
        /// Blocks asked for.
        needed: usize,
        /// Blocks that are free or can be evicted.
        available: usize,
    },
    /// A tokenizer that the detokenizer cannot read.
    #[error("unsupported tokenizer: {0}")]
    UnsupportedTokenizer(String),
    /// An argument out of its range.
    #[error("{0}")]
    InvalidArgument(String),
    /// An invariant does not hold: a bug in the core.
    #[error("broken invariant: {0}")]
    Invariant(String),
    /// The operating system refused.
    #[error("{0}")]
    System(String),
}

/// The message of a panic that was caught.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The core's result.
pub type Result<T> = std::result::Result<T, Error>;
