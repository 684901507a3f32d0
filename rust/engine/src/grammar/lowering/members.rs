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

use crate::grammar::Refusal;
use crate::grammar::lowering::lark::Writer;

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
    pub(crate) fn new(writer: &mut Writer) -> Result<Self, Refusal> {
        Ok(Self { first: writer.reserve()?, more: writer.reserve()?, ways: Vec::new() })
    }

    /// One that may come where the parameter fulfils `open`, if that is not empty; `next` is the parameter behind it.
    pub(crate) fn add(&mut self, member: &str, next: &str, open: &str) {
        self.ways.push(format!("{member} {}::{next}{}", self.more, on(open)));
    }

    /// Writes the rules, with `separator` between two members and `end` behind the last, which may come where the parameter
    /// fulfils `ended`, if that is not empty; gives an expression for all of it.
    pub(crate) fn write(self, writer: &mut Writer, separator: &str, end: &str, ended: &str) -> String {
        self.write_both(writer, separator, end, ended).0
    }

    /// The same with an expression for what comes behind another member, too.
    pub(crate) fn write_both(
        self,
        writer: &mut Writer,
        separator: &str,
        end: &str,
        ended: &str,
    ) -> (String, String) {
        for (rule, before) in [(&self.first, ""), (&self.more, separator)] {
            let members = self.ways.iter().map(|member| format!("{before} {member}"));
            let ways: Vec<String> = [format!("{end}{}", on(ended))].into_iter().chain(members).collect();
            writer.write(&format!("{rule}::_"), &ways.join(" | "));
        }
        (format!("{}::0", self.first), format!("{}::0", self.more))
    }
}

/// The bits of an object's parameter: one for each key, and those that count others.
#[derive(Clone, Copy)]
pub(crate) struct Bits {
    keys: usize,
    pub(crate) end: usize,
    counts: bool,
    any_order: bool,
}

impl Bits {
    /// With room to count up to `counted`.
    pub(crate) fn new(keys: usize, counted: u64, any_order: bool) -> Self {
        let width = (u64::BITS - counted.leading_zeros()) as usize;
        // In the schema's order one bit says that others have begun.
        Self { keys, end: keys + width.max(usize::from(!any_order)), counts: width > 0, any_order }
    }

    /// Whether a key may come.
    pub(crate) fn open(self, at: usize) -> String {
        match self.any_order {
            true => format!("bit_clear({at})"),
            false => format!("is_zeros([{at}:{}])", self.end),
        }
    }

    pub(crate) fn counter(self) -> String {
        format!("[{}:{}]", self.keys, self.end)
    }

    /// The parameter behind one of the others.
    pub(crate) fn counted(self) -> String {
        match (self.counts, self.any_order) {
            (true, _) => format!("incr({})", self.counter()),
            (false, true) => "_".to_owned(),
            (false, false) => format!("set_bit({})", self.keys),
        }
    }
}

fn on(condition: &str) -> String {
    if condition.is_empty() { String::new() } else { format!(" %if {condition}") }
}

/// All of some conditions; empty if there is none.
pub(crate) fn all(conditions: impl Iterator<Item = String>) -> String {
    conditions.reduce(|all, one| format!("and({one}, {all})")).unwrap_or_default()
}
