//! To be replaced by the reduction of JSON Schemas: hands every schema through.

use serde_json::Value;

use super::Refusal;

/// What is done with a keyword that cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unenforceable {
    /// The schema is refused.
    #[default]
    Refuse,
    /// The keyword is dropped, with a warning.
    Ignore,
}

/// A schema that llguidance enforces as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The reduced schema.
    pub schema: Value,
    /// What was dropped.
    pub warnings: Vec<String>,
}

/// Reduces a schema to what can be enforced.
///
/// # Errors
/// What cannot be enforced, by name and path.
pub fn prepare(schema: Value, _unenforceable: Unenforceable) -> Result<Prepared, Refusal> {
    Ok(Prepared { schema, warnings: Vec::new() })
}
