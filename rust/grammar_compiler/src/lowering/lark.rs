//! Lark as llguidance reads it, written rule by rule.
//!
//! llguidance splits text into lexemes, longest first, and never backtracks. So regular neighbours are joined into one
//! lexeme, within which every split of the text is followed; and the lexeme of a free text includes the beginning of each
//! part that may follow it, over which it would run on otherwise. Where an unbounded regex is followed by JSON or a
//! grammar of the caller, the longest match is taken: that may allow less, never more.
//!
//! ```text
//!  free text, then  a  or  b {json}    ──►   r1: r2 | r3       each way to go on is a rule
//!                                            r2: T4            T4: free text and a, one lexeme
//!                                            r3: T5 r6         T5: free text and b;  r6: %json {json}
//! ```
//!
//! A repetition after a free text returns to its beginning: the same terminals before it and the same nodes after it.
//! That is one recursive rule, however often it is reached.
//!
//! O(nodes), but for a free text before many alternatives.

mod nodes;

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use crate::lowering::description::whole;
use crate::lowering::members::{Members, Rules, all};
pub(crate) use nodes::{Lexeme, Node};
use nodes::{expand, flat, regular};
use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// What the rules of items are called that must differ in their array.
pub(crate) const DIFFERENT_ITEM: &str = "a different item";

/// How many rules and terminals a description may become.
const MAX_RULES: usize = 20_000;
/// How deep the parts that follow a free text are expanded.
const MAX_EXPANSION: usize = 48;

/// Lark as it is being written.
#[derive(Default)]
pub(crate) struct Writer {
    source: String,
    count: usize,
    /// The rules of JSON and of callers' grammars: a tool that may be called first and again is compiled once.
    opaque: HashMap<String, String>,
    /// The rules of what follows a free text.
    reached: HashMap<Reached, String>,
    /// Parts of endless repetitions, taken apart by [`Writer::looped`].
    loops: HashMap<Rc<Node>, Option<(Node, Rc<Node>)>>,
}

/// The terminals that end with free text, the node after them, and the nodes after that.
type Reached = (Vec<Node>, Node, Vec<Node>);

impl Writer {
    /// Writes the whole grammar, whose answer is `root`.
    pub(crate) fn finish(mut self, root: Node) -> Result<String, Refusal> {
        let start = self.sequence(vec![root], 0)?;
        Ok(format!("start: {start}\n{}", self.source))
    }

    /// Writes `prefix` and a number, a colon and the body; gives the name.
    pub(crate) fn define(&mut self, prefix: &str, body: &str) -> Result<String, Refusal> {
        let name = self.name(prefix)?;
        self.write(&name, body);
        Ok(name)
    }

    fn name(&mut self, prefix: &str) -> Result<String, Refusal> {
        self.count += 1;
        if self.count > MAX_RULES {
            return Err(whole(format!("it needs more than {MAX_RULES} rules; write less of them")));
        }
        Ok(format!("{prefix}{}", self.count))
    }

    /// A rule of its own for the items of an array that must differ.
    pub(crate) fn different_item(&mut self, item: &str) -> Result<String, Refusal> {
        let name = self.reserve()?;
        self.write(&format!("{name}[capture=\"{DIFFERENT_ITEM}\"]"), item);
        Ok(name)
    }

    pub(crate) fn terminal(&mut self, body: &str, lexeme: Lexeme) -> Result<Node, Refusal> {
        Ok(Node::Regular { name: self.define("T", body)?, lexeme })
    }

    /// One of several, as one terminal if all of it is regular.
    pub(crate) fn any_of(&mut self, options: Vec<Node>) -> Result<Node, Refusal> {
        match regular(&options) {
            Some((names, lexemes)) => {
                let lexeme = lexemes.into_iter().reduce(Lexeme::or).unwrap_or_default();
                self.terminal(&names.join(" | "), lexeme)
            }
            None => Ok(Node::AnyOf(options)),
        }
    }

    /// A sequence, as one terminal if all of it is regular.
    pub(crate) fn joined(&mut self, parts: Vec<Node>) -> Result<Node, Refusal> {
        match regular(&parts) {
            Some((names, lexemes)) => {
                let lexeme = lexemes.into_iter().fold(Lexeme::closed(true), Lexeme::then);
                let body = if names.is_empty() { "\"\"".to_owned() } else { names.join(" ") };
                self.terminal(&body, lexeme)
            }
            None => Ok(Node::Sequence(parts)),
        }
    }

    pub(crate) fn repeated(
        &mut self,
        part: Node,
        min: u32,
        max: Option<u32>,
        separator: Option<Node>,
    ) -> Result<Node, Refusal> {
        if max == Some(0) {
            return self.terminal("\"\"", Lexeme::closed(true));
        }
        // An optional part is no terminal: the next part may begin alike, and the longest match would win.
        if (min, max) != (0, Some(1))
            && let Node::Regular { name, lexeme } = &part
        {
            let lexeme = Lexeme { empty: lexeme.empty || min == 0, fixed: false, ..*lexeme };
            match &separator {
                None => return self.terminal(&counted(name, None, min, max), lexeme),
                Some(Node::Regular { name: between, .. }) => {
                    return self.terminal(&counted(name, Some(between), min, max), lexeme);
                }
                Some(_) => {}
            }
        }
        Ok(Node::Repeat { part: Rc::new(part), min, max, separator: separator.map(Box::new) })
    }

    /// Writes the rules of one part after the other; gives an expression for it.
    pub(crate) fn sequence(&mut self, nodes: Vec<Node>, depth: usize) -> Result<String, Refusal> {
        if depth > MAX_EXPANSION {
            return Err(refusal("the parts that may follow a free text begin in too many ways"));
        }
        let mut nodes = flat(nodes).into_iter();
        let (mut body, mut run): (Vec<String>, Vec<Node>) = (Vec::new(), Vec::new());
        while let Some(node) = nodes.next() {
            let open = regular(&run).is_some_and(|(_, lexemes)| {
                lexemes.into_iter().fold(Lexeme::closed(true), Lexeme::then).open
            });
            match node {
                Node::Regular { .. } => run.push(node),
                Node::Token(token) => {
                    self.flush(&mut run, &mut body)?;
                    body.push(format!("<[{token}]>"));
                }
                node if open => {
                    let rest = nodes.collect();
                    body.push(self.after_free_text(run, node, rest, depth)?);
                    return Ok(body.join(" "));
                }
                node => {
                    self.flush(&mut run, &mut body)?;
                    body.push(self.expression(node, depth)?);
                }
            }
        }
        self.flush(&mut run, &mut body)?;
        Ok(if body.is_empty() { "\"\"".to_owned() } else { body.join(" ") })
    }

    /// Writes the rule of a free text and what follows it, unless it is written already; gives its expression.
    ///
    /// The free text takes the beginning of what follows into its lexeme, each way it may begin.
    fn after_free_text(
        &mut self,
        mut run: Vec<Node>,
        mut node: Node,
        rest: Vec<Node>,
        depth: usize,
    ) -> Result<String, Refusal> {
        if let Node::Repeat { part, min: 0, max: None, separator: None } = &node
            && let Some((alone, part)) = self.looped(part)?
        {
            run.push(alone);
            node = Node::Repeat { part, min: 0, max: None, separator: None };
        }
        // Fixed texts before the free text are written before the rule, which then is the same after all of them.
        let ahead = run
            .iter()
            .take_while(|node| matches!(node, Node::Regular { lexeme, .. } if lexeme.fixed))
            .count();
        let mut body = Vec::new();
        self.flush(&mut run.drain(..ahead).collect(), &mut body)?;
        let reached = (run, node, rest);
        if let Some(name) = self.reached.get(&reached) {
            body.push(name.clone());
            return Ok(body.join(" "));
        }
        let name = self.reserve()?;
        body.push(name.clone());
        self.reached.insert(reached.clone(), name.clone());
        let (run, node, rest) = reached;
        let mut ways = Vec::new();
        for way in expand(node)? {
            let way = run.iter().cloned().chain(way).chain(rest.iter().cloned()).collect();
            let way = self.sequence(way, depth + 1)?;
            ways.push(self.define("r", &way)?);
        }
        self.write(&name, &ways.join(" | "));
        Ok(body.join(" "))
    }

    /// Takes `(a t | b t)*` apart to `(a t)* (b t (a t)*)*`, where `a` and `t` are terminals and `b` is not: the first
    /// repetition, which is a terminal, and the part of the second. None if there is nothing to take apart.
    fn looped(&mut self, part: &Rc<Node>) -> Result<Option<(Node, Rc<Node>)>, Refusal> {
        if let Some(found) = self.loops.get(part) {
            return Ok(found.clone());
        }
        let mut parts = flat(vec![(**part).clone()]);
        let mut made = None;
        if let Some(Node::AnyOf(options)) = parts.first()
            && regular(&parts[1..]).is_some()
        {
            let (alone, others): (Vec<_>, Vec<_>) =
                options.clone().into_iter().partition(|option| matches!(option, Node::Regular { .. }));
            if !alone.is_empty() && !others.is_empty() {
                let once = self.any_of(alone)?;
                parts[0] = once;
                let once = self.joined(parts.clone())?;
                let alone = self.repeated(once, 0, None, None)?;
                parts[0] = Node::AnyOf(others);
                parts.push(alone.clone());
                made = Some((alone, Rc::new(Node::Sequence(parts))));
            }
        }
        self.loops.insert(Rc::clone(part), made.clone());
        Ok(made)
    }

    /// Ends a run of terminals: they become one.
    fn flush(&mut self, run: &mut Vec<Node>, body: &mut Vec<String>) -> Result<(), Refusal> {
        if !run.is_empty()
            && let Node::Regular { name, .. } =
                if run.len() == 1 { run.remove(0) } else { self.joined(std::mem::take(run))? }
        {
            body.push(name);
        }
        Ok(())
    }

    fn expression(&mut self, node: Node, depth: usize) -> Result<String, Refusal> {
        match node {
            Node::Regular { name, .. } => Ok(name),
            Node::Token(token) => Ok(format!("<[{token}]>")),
            Node::Opaque(expression) => match self.opaque.get(&expression) {
                Some(name) => Ok(name.clone()),
                None => {
                    let name = self.define("r", &expression)?;
                    self.opaque.insert(expression, name.clone());
                    Ok(name)
                }
            },
            Node::Sequence(parts) => self.sequence(parts, depth + 1),
            Node::AnyOf(options) => {
                let mut names = Vec::new();
                for option in options {
                    names.push(self.rule(option, depth)?);
                }
                self.define("r", &names.join(" | "))
            }
            Node::Repeat { part, min, max, separator } => {
                let part = self.rule((*part).clone(), depth)?;
                let separator = separator.map(|separator| self.rule(*separator, depth)).transpose()?;
                self.define("r", &counted(&part, separator.as_deref(), min, max))
            }
            Node::AnyOrder { parts, separator } => {
                let mut members = Members::new(self)?;
                let must = (0..parts.len()).filter(|at| parts[*at].1).map(|at| format!("bit_set({at})"));
                let ended = all(must);
                for (at, (part, _)) in parts.into_iter().enumerate() {
                    let part = self.rule(part, depth)?;
                    members.add(&part, &format!("set_bit({at})"), &format!("bit_clear({at})"));
                }
                let separator = separator.map(|separator| self.rule(*separator, depth)).transpose()?;
                Ok(members.write(self, separator.as_deref().unwrap_or_default(), "\"\"", &ended))
            }
        }
    }

    /// A rule of one node.
    fn rule(&mut self, node: Node, depth: usize) -> Result<String, Refusal> {
        let body = self.sequence(vec![node], depth + 1)?;
        self.define("r", &body)
    }
}

impl Rules for Writer {
    fn reserve(&mut self) -> Result<String, Refusal> {
        self.name("r")
    }

    fn write(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.source, "{name}: {body}");
    }
}

/// `part` repeated, with `between` in between.
fn counted(part: &str, between: Option<&str>, min: u32, max: Option<u32>) -> String {
    let times = |what: &str, min: u32, max: Option<u32>| match (min, max) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("{what}*"),
        (0, Some(1)) => format!("{what}?"),
        (min, None) => format!("{what}{{{min},}}"),
        (min, Some(max)) => format!("{what}{{{min},{max}}}"),
    };
    match between {
        None => times(part, min, max),
        Some(between) => {
            let more = times(&format!("({between} {part})"), min.saturating_sub(1), max.map(|max| max - 1));
            if min == 0 { format!("({part} {more})?") } else { format!("{part} {more}") }
        }
    }
}

/// A text as Lark spells it.
pub(crate) fn literal(text: &str) -> String {
    serde_json::to_string(text).expect("text is JSON").replace('\u{7f}', "\\u007f")
}

/// A regex as Lark spells it.
pub(crate) fn regex(pattern: &str) -> String {
    if pattern.is_empty() {
        "\"\"".to_owned()
    } else {
        format!("/{}/", llguidance::regex_to_lark(pattern, ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_comes_at_several_places_is_one_rule() {
        let mut writer = Writer::default();
        let json = Node::Opaque("%json {}".to_owned());
        let more = writer.repeated(json.clone(), 0, None, None).unwrap();
        let source = writer.finish(Node::Sequence(vec![json, more])).unwrap();
        assert_eq!(source.matches("%json").count(), 1, "{source}");
    }
}
