#![doc = include_str!("../README.md")]
//!
//! ## How it works
//!
//! ```text
//!   document ──► keywords ──► expressions ──► cases ─────────────► emit ──► schema
//!   places,      what each    boolean,        one for each type    one definition
//!   names        one says     hash-consed     and combination      a state
//! ```
//!
//! A schema is a boolean expression over what single keywords say, whose children are expressions again: an alternating
//! tree automaton. It is turned into a plain one, state by state: a state is a union of cases, and a case is a
//! conjunction of constraints on values of one type. `not`, `if`, `oneOf`, `dependent*`, `unevaluated*` and the like
//! dissolve on the way where that is exact; what has no exact form stays in its case by name, and is refused or left
//! out when the case is written.

mod document;
mod emit;
mod expression;
mod keywords;
mod language;
mod normal_form;
mod normalizer;
mod number;
mod options;
mod refusal;
mod without_value;

use serde_json::Value;

pub use options::{Compiler, Limits, Options, Unenforceable};
pub use refusal::Refusal;

/// A schema in normal form.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalized {
    /// The schema; always an object, with the keywords that the [crate's documentation](crate#the-normal-form) lists.
    pub schema: Value,
    /// What is not enforced, each with its keyword and JSON pointer.
    pub warnings: Vec<String>,
}

/// Rewrites a schema of JSON Schema 2020-12 (or of the older draft that its `$schema` names) in
/// [normal form](crate#the-normal-form).
///
/// # Errors
///
/// The schema is invalid, allows no value, asks for something that cannot be enforced, or takes more work than its
/// limits allow; the message names keyword and JSON pointer.
pub fn normalize(schema: &Value, options: &Options<'_>) -> Result<Normalized, Refusal> {
    let document = document::Document::new(schema, options.limits, options.unenforceable)?;
    let mut normalizer = normalizer::Normalizer::new(document, options);
    normalizer.warnings.append(&mut normalizer.document.warnings);
    let Some(place) = normalizer.document.below(0, options.part) else {
        return Err(Refusal::Invalid(format!("#{} is no schema", options.part)));
    };
    let root = normalizer.schema(place, 0)?;
    let schema = normalizer.write(root)?;
    Ok(Normalized { schema, warnings: std::mem::take(&mut normalizer.warnings) })
}

/// The JSON pointers of the schemas directly below the one at `part` that say what a valid value or its parts may be: not
/// those of `not` and of conditions.
#[must_use]
pub fn parts(schema: &Value, part: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(Value::Object(object)) = schema.pointer(part) {
        document::children(object, &mut |steps, _| {
            if !["/not", "/if", "/contains", "/contentSchema"].contains(&&*steps) {
                found.push(format!("{part}{steps}"));
            }
        });
    }
    found
}
