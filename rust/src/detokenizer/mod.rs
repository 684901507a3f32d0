//! The Detokenizer actor: bytes of tokens, UTF-8 assembly, stop strings, deltas.

mod decoder;
pub mod stop_matcher;
pub mod stream;
pub mod utf8;
pub mod vocabulary;

pub use stop_matcher::StopStrings;
pub use stream::{StopMatch, Stream};
pub use vocabulary::Vocabulary;
