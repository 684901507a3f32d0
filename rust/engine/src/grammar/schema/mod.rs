//! JSON Schema, brought to the part of it that the grammar's compiler (llguidance) keeps exactly.
//!
//! ```text
//!   document ──► keywords ──► expressions ──► shapes ──────────► emit ──► schema
//!   places,      what each    boolean,        per type, empty    one definition
//!   names        one says     hash-consed     ones left out      a state
//! ```
//!
//! A schema is a boolean expression over what single keywords say, its children expressions again: an alternating tree
//! automaton. [`prepare`] walks it into a plain one, state by state: each state is a union of shapes of one type,
//! each shape a conjunction. `not`, `if`, `oneOf`, `dependent*`, `unevaluated*` and the like dissolve on the way where
//! that is exact. What is left and has no exact form is refused by name, never approximated in silence.
//!
//! What the result cannot say, whatever the schema:
//! * keys come in the order of the schema (`properties` first, as they are met), then other names; every name once is
//!   not enforced for names that the schema does not know (an object that repeats one still has valid values under
//!   both, and no count of properties relies on it);
//! * numbers in a range are written without an exponent, whole numbers without a point;
//! * in strings only control characters, the quotation mark and the backslash are escaped, and a character class that
//!   lacks one of the latter two loses U+0000;
//! * `format` is enforced where the compiler knows it (see [`prepare`]), and is an annotation elsewhere.

mod arrays;
mod automaton;
mod document;
mod emit;
mod expression;
mod keywords;
mod language;
mod members;
mod narrow;
mod normal_form;
mod number;
mod objects;
mod pattern;
mod regex;
mod scalars;
mod search;
mod shape;
mod states;
mod unevaluated;
mod uri;
mod values;
mod work;

use serde_json::Value;

use super::Refusal;

/// What becomes of a keyword that cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unenforceable {
    /// The schema is refused.
    #[default]
    Refuse,
    /// The keyword is left out, which allows more, and a warning says so.
    Ignore,
}

/// A schema that the grammar's compiler keeps exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Always an object.
    pub schema: Value,
    /// What is not enforced, each with its keyword and path.
    pub warnings: Vec<String>,
}

/// Brings a schema of JSON Schema 2020-12 (or an older draft that `$schema` names) to what the grammar's compiler keeps
/// exactly.
///
/// References are resolved inside of the document only. `format` is an annotation in 2020-12; those the compiler has a
/// language for (`date-time`, `time`, `date`, `duration`, `email`, `hostname`, `ipv4`, `ipv6`, `uuid`, `uri`) narrow
/// the strings nevertheless, others give a warning.
///
/// Bounded in time and memory by budgets of steps, cases and states, for which a schema is refused too; `stop` is asked
/// every few hundred steps, and true from it ends the preparation as refused.
///
/// # Errors
///
/// The schema is invalid, allows no value, needs too much work, or asks for something that cannot be enforced; the
/// message names keyword and path.
pub fn prepare(
    schema: Value,
    unenforceable: Unenforceable,
    stop: &dyn Fn() -> bool,
) -> Result<Prepared, Refusal> {
    let document = document::Document::new(&schema)?;
    let mut work = work::Work::new(document, stop);
    let root = work.schema(0, 0)?;
    let schema = work.write(root, unenforceable)?;
    Ok(Prepared { schema, warnings: std::mem::take(&mut work.warnings) })
}

#[cfg(test)]
mod tests;
