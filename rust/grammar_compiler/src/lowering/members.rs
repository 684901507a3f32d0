//! Members that come once each: rules whose parameter has a bit for each that has come.
//!
//! ```text
//!  {a, b}     r1::0                                 the first rule, behind an opening brace
//!             r1: end            if a and b have come
//!               | a r2::bit 0    if a has not
//!             r2: end            if a and b have come
//!               | "," a r2::bit 0  if a has not
//! ```
//!
//! O(members); the parser's rows are made as answers reach them, one for each set.

use pyengine_grammar::Refusal;

/// Where rules are written.
pub(crate) trait Rules {
    /// The name of a rule that is written later.
    fn reserve(&mut self) -> Result<String, Refusal>;

    /// Writes the rule of a reserved name.
    fn write(&mut self, name: &str, body: &str);
}

/// A parameter's bits.
pub(crate) const BITS: usize = 64;

/// The rules of some members, as they are gathered.
pub(crate) struct Members {
    first: String,
    more: String,
    ways: Vec<String>,
}

impl Members {
    /// None so far.
    pub(crate) fn new(writer: &mut impl Rules) -> Result<Self, Refusal> {
        Ok(Self { first: writer.reserve()?, more: writer.reserve()?, ways: Vec::new() })
    }

    /// One that may come where the parameter fulfils `open`, if that is not empty; `next` is the parameter behind it.
    pub(crate) fn add(&mut self, member: &str, next: &str, open: &str) {
        self.ways.push(format!("{member} {}::{next}{}", self.more, on(open)));
    }

    /// Writes the rules, with `separator` between two members and `end` behind the last, which may come where the parameter
    /// fulfils `ended`, if that is not empty; gives an expression for all of it.
    pub(crate) fn write(self, writer: &mut impl Rules, separator: &str, end: &str, ended: &str) -> String {
        for (rule, before) in [(&self.first, ""), (&self.more, separator)] {
            let members = self.ways.iter().map(|member| format!("{before} {member}"));
            let ways: Vec<String> = [format!("{end}{}", on(ended))].into_iter().chain(members).collect();
            writer.write(&format!("{rule}::_"), &ways.join(" | "));
        }
        format!("{}::0", self.first)
    }
}

fn on(condition: &str) -> String {
    if condition.is_empty() { String::new() } else { format!(" %if {condition}") }
}

/// All of some conditions; empty if there is none.
pub(crate) fn all(conditions: impl Iterator<Item = String>) -> String {
    conditions.reduce(|all, one| format!("and({one}, {all})")).unwrap_or_default()
}
