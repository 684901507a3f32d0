//! The Detokenizer actor: bytes of tokens, UTF-8 assembly, stop strings, deltas.

pub mod actor;
mod decoder;
mod outbox;
mod requests;
pub mod stop_matcher;
mod stop_share;
pub mod stream;
pub mod utf8;
pub mod vocabulary;
mod wire;

pub use actor::Detokenizer;
pub use stop_matcher::StopStrings;
pub use stream::{StopMatch, Stream};
pub use vocabulary::Vocabulary;
