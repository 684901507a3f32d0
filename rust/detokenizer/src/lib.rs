//! The Detokenizer actor: bytes of tokens, UTF-8 assembly, stop strings, deltas. O(bytes of the new tokens) a step.
//!
//! ```text
//!  actor          requests              stream            vocabulary, decoder   bytes of a token
//!  the thread ──► what a message ──►    one sequence ──►  utf8                  whole characters
//!                 does                                    stop_matcher          stop strings
//!                  └─► outboxes, wire: answers, batched and kept while a ring is full
//! ```

mod actor;
mod decoder;
mod frontend_outbox;
mod requests;
mod scheduler_outbox;
mod stop_matcher;
mod stop_share;
mod stream;
mod utf8;
mod vocabulary;

pub use actor::Detokenizer;
pub use stop_matcher::StopStrings;
pub use stream::{StopMatch, Stream};
pub use vocabulary::Vocabulary;
