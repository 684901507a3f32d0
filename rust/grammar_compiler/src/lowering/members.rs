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

/// Most keys of an object whose number of keys is bounded: finding its shortest text takes the cube.
pub(crate) const COUNTED_KEYS: usize = 64;

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
        self.write_both(writer, separator, end, ended).0
    }

    /// The same with an expression for what comes behind another member, too.
    pub(crate) fn write_both(
        self,
        writer: &mut impl Rules,
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

/// How many of an object's keys come, which are all known.
pub(crate) struct KeyCount {
    pub(crate) keys: usize,
    /// The required ones; in any order these are the first.
    pub(crate) required: Vec<usize>,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
}

impl KeyCount {
    /// Any order: what must hold of the keys that have come for the one with this number.
    pub(crate) fn room(&self, at: usize) -> Option<String> {
        let required = self.required.len();
        let max = self.max.filter(|_| at >= required)?;
        // Room is left for the required ones.
        Some(format!("bit_count_lt([{required}:{}], {})", self.keys, max - required as u64))
    }

    /// Any order: what must hold at the end.
    pub(crate) fn enough(&self) -> Option<String> {
        (self.min > self.required.len() as u64)
            .then(|| format!("bit_count_ge([0:{}], {})", self.keys, self.min))
    }

    /// The schema's order: writes the rules, of which each key has one. Its parameter counts those that have come.
    ///
    /// ```text
    ///  r1::_: "," key 1 r2::count + 1   if there is room for the required ones behind it, too
    ///       | r2::count                 if those behind it are enough
    /// ```
    pub(crate) fn write(
        &self,
        writer: &mut impl Rules,
        members: &[String],
        separator: &str,
        end: &str,
    ) -> Result<String, Refusal> {
        let width = usize::BITS - self.keys.leading_zeros();
        let (mut first, mut more) = (writer.reserve()?, writer.reserve()?);
        // A rule with a parameter has to ask for it, be it for nothing.
        let enough = format!("ge([0:{width}], {})", self.min);
        for rule in [&first, &more] {
            writer.write(&format!("{rule}::_"), &format!("{end}{}", on(&enough)));
        }
        for (at, member) in members.iter().enumerate().rev() {
            let behind = self.required.iter().filter(|one| **one > at).count() as u64;
            let is_required = self.required.contains(&at);
            let room =
                self.max.filter(|_| !is_required).map(|max| format!("lt([0:{width}], {})", max - behind));
            let missing = self.min.saturating_sub((self.keys - at - 1) as u64);
            let passed = if missing > 0 { format!("ge([0:{width}], {missing})") } else { String::new() };
            let (next_first, next_more) = (first, more);
            (first, more) = (writer.reserve()?, writer.reserve()?);
            for (rule, before, next) in [(&first, "", &next_first), (&more, separator, &next_more)] {
                let mut body = format!(
                    "{before} {member} {next_more}::incr([0:{width}]){}",
                    on(&all(room.clone().into_iter()))
                );
                if !is_required {
                    body += &format!(" | {next}::_{}", on(&passed));
                }
                writer.write(&format!("{rule}::_"), &body);
            }
        }
        Ok(format!("{first}::0"))
    }
}

fn on(condition: &str) -> String {
    if condition.is_empty() { String::new() } else { format!(" %if {condition}") }
}

/// All of some conditions; empty if there is none.
pub(crate) fn all(conditions: impl Iterator<Item = String>) -> String {
    conditions.reduce(|all, one| format!("and({one}, {all})")).unwrap_or_default()
}
