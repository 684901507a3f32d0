//! Why a schema was refused.

/// Why a schema was refused. Each message names the keyword and its JSON pointer where there is one, and is short
/// enough to be shown to the sender of the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The schema is not valid, or refers to a schema that the document lacks.
    #[error("{0}")]
    Invalid(String),
    /// A reference to another document; [`Unenforceable::Ignore`](crate::Unenforceable::Ignore) leaves it out.
    #[error("{0}")]
    Elsewhere(String),
    /// No value is valid against the schema; where it goes wrong.
    #[error("the schema allows no value: {0}")]
    AllowsNothing(String),
    /// A keyword has no exact form; [`Unenforceable::Ignore`](crate::Unenforceable::Ignore) leaves most of these out.
    #[error("{0}")]
    Unenforceable(String),
    /// The schema is beyond one of the [limits](crate::Limits).
    #[error("{0}")]
    TooLarge(String),
    /// [`Options::cancelled`](crate::Options::cancelled) said so.
    #[error("preparing the schema was cancelled")]
    Cancelled,
}
