//! Writes the states of an expression as a schema in normal form.
//!
//! A state that is used more than once becomes a definition, so that recursion ends and sharing stays. Cost: the
//! states times their children, and the patterns that are written.

mod objects;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::Refusal;
use crate::Unenforceable;
use crate::expression::{Expr, KINDS, Path, TRUE};
use crate::language::{ANY, Node};
use crate::normal_form::case::{ArrayCase, Case, NumberCase, TextCase};
use crate::normal_form::states::States;
use crate::normal_form::values::MAX_COUNTED;
use crate::normalizer::Normalizer;
use crate::number::Decimal;

/// Bytes that the patterns of numbers of a schema may have: those of multiples are long to write, not to match.
const NUMBER_PATTERNS: usize = 250_000;

struct Writer<'w, 'a> {
    normalizer: &'w mut Normalizer<'a>,
    states: States,
    names: HashMap<Expr, String>,
    defs: Map<String, Value>,
    depth: usize,
    /// Bytes that patterns of numbers may still have.
    left: usize,
}

impl Normalizer<'_> {
    /// The schema of an expression.
    pub(crate) fn write(&mut self, root: Expr) -> Result<Value, Refusal> {
        let states = States::new(self, root)?;
        if !states.productive.contains(&root) {
            return Err(Refusal::AllowsNothing(self.without_value()?));
        }
        let (names, defs) = (HashMap::new(), Map::new());
        let mut writer = Writer { normalizer: self, states, names, defs, depth: 0, left: NUMBER_PATTERNS };
        let mut value = writer.state(root)?;
        if !writer.defs.is_empty() {
            let defs = std::mem::take(&mut writer.defs);
            value.insert("$defs".to_owned(), Value::Object(defs));
        }
        Ok(Value::Object(value))
    }
}

impl Writer<'_, '_> {
    /// A child: its schema, or a reference to its definition.
    fn child(&mut self, expr: Expr) -> Result<Value, Refusal> {
        if expr == TRUE {
            return Ok(json!({}));
        }
        if !self.states.productive.contains(&expr) {
            return Ok(Value::Bool(false));
        }
        let compiler = self.normalizer.compiler;
        let plain = self.states.cases[&expr].iter().all(|case| match case {
            Case::Array(_) | Case::Object(_) => false,
            Case::Number(case) => !case.needs_text(compiler),
            _ => true,
        });
        if plain || self.states.uses.get(&expr).copied().unwrap_or(0) < 2 {
            return Ok(Value::Object(self.state(expr)?));
        }
        let name = match self.names.get(&expr) {
            Some(name) => name.clone(),
            None => {
                let name = format!("s{}", self.names.len());
                self.names.insert(expr, name.clone());
                self.defs.insert(name.clone(), Value::Null);
                let value = self.state(expr)?;
                self.defs.insert(name.clone(), Value::Object(value));
                name
            }
        };
        Ok(json!({ "$ref": format!("#/$defs/{name}") }))
    }

    fn state(&mut self, expr: Expr) -> Result<Map<String, Value>, Refusal> {
        self.normalizer.step()?;
        if expr == TRUE {
            return Ok(Map::new());
        }
        let cases: Vec<Case> =
            self.states.cases[&expr].iter().filter(|case| self.states.has_value(case)).cloned().collect();
        if KINDS
            .iter()
            .all(|&kind| cases.contains(&Case::all(kind)) || cases.iter().any(|case| is_all(case, kind)))
        {
            return Ok(Map::new());
        }
        self.depth += 1;
        let deepest = self.normalizer.limits.result_depth;
        if self.depth > deepest {
            return Err(Refusal::TooLarge(format!("the schema at # is nested more than {deepest} deep")));
        }
        let mut options: Vec<Map<String, Value>> = Vec::new();
        let mut spelled = Vec::new();
        for case in &cases {
            match case {
                Case::Null => options.push(object(json!({"type": "null"}))),
                Case::Boolean { no: true, yes: true } => options.push(object(json!({"type": "boolean"}))),
                Case::Boolean { yes, .. } => spelled.push(json!(yes)),
                Case::Number(case) => match &case.among {
                    Some(among) => self.numbers(case, among, &mut spelled, &mut options)?,
                    None => {
                        let option = self.number(case)?;
                        options.push(option);
                    }
                },
                Case::Text(case) => match &case.among {
                    Some(among) => {
                        self.report(&case.open)?;
                        spelled.extend(among.iter().map(|text| json!(&**text)));
                    }
                    None => {
                        let option = self.text(case)?;
                        options.push(option);
                    }
                },
                Case::Array(case) => {
                    let option = self.array(case)?;
                    options.push(option);
                }
                Case::Object(case) => {
                    let option = self.object(case)?;
                    options.push(option);
                }
            }
        }
        self.depth -= 1;
        if !spelled.is_empty() {
            options.push(object(json!({ "enum": spelled })));
        }
        if options.len() == 1 {
            return Ok(options.pop().unwrap_or_default());
        }
        Ok(object(json!({ "anyOf": options })))
    }

    /// Refuses the keywords in `open`, or warns that they are not enforced.
    fn report(&mut self, open: &[Path]) -> Result<(), Refusal> {
        for &path in open {
            let name = self.normalizer.name(path).to_owned();
            match self.normalizer.unenforceable {
                Unenforceable::Refuse => {
                    return Err(Refusal::Unenforceable(format!("{name} cannot be enforced")));
                }
                Unenforceable::Ignore => self.normalizer.warn(format!("{name} is not enforced")),
            }
        }
        Ok(())
    }

    /// Numbers one by one; whole ones that a double rounds by their text.
    fn numbers(
        &mut self,
        case: &NumberCase,
        among: &[Decimal],
        spelled: &mut Vec<Value>,
        options: &mut Vec<Map<String, Value>>,
    ) -> Result<(), Refusal> {
        self.report(&case.open)?;
        let (mut exact, mut wide) = (Vec::new(), Vec::new());
        for number in among {
            match number.to_value() {
                Some(value) if number.is_exact_bound() => exact.push(value),
                Some(value) if number.is_whole() && self.normalizer.compiler.texts => {
                    wide.push(object(json!({"type": "number", "pattern": format!("^{value}$")})));
                }
                _ => {
                    // Without it any number is allowed.
                    self.report(&[case.among_path])?;
                    options.push(object(json!({"type": "number"})));
                    return Ok(());
                }
            }
        }
        spelled.extend(exact);
        options.extend(wide);
        Ok(())
    }

    fn number(&mut self, case: &NumberCase) -> Result<Map<String, Value>, Refusal> {
        self.report(&case.open)?;
        if case.needs_text(self.normalizer.compiler) {
            let langs = &mut self.normalizer.langs;
            let text = case.text(langs).and_then(|lang| langs.pattern_within(lang, self.left));
            if let Some(pattern) = text {
                self.left = self.left.saturating_sub(pattern.len());
                return Ok(object(json!({"type": "number", "pattern": pattern})));
            }
            self.report(&case.beyond_keywords())?;
        }
        let whole = matches!(case.whole, Some((true, _)));
        let mut out = object(json!({ "type": if whole { "integer" } else { "number" } }));
        for (bound, included, left_out) in
            [(case.min, "minimum", "exclusiveMinimum"), (case.max, "maximum", "exclusiveMaximum")]
        {
            if let Some((bound, out_itself, _)) =
                bound.filter(|bound| case.can_write(*bound, included == "minimum"))
                && let Some(value) = bound.to_value()
            {
                out.insert(if out_itself { left_out } else { included }.to_owned(), value);
            }
        }
        if let Some((of, _)) = case.multiple
            && of.is_exact_divisor()
            && let Some(value) = of.to_value()
        {
            out.insert("multipleOf".to_owned(), value);
        }
        Ok(out)
    }

    fn text(&mut self, case: &TextCase) -> Result<Map<String, Value>, Refusal> {
        self.report(&case.open)?;
        let mut first = object(json!({"type": "string"}));
        if case.min > 0 {
            first.insert("minLength".to_owned(), json!(case.min));
        }
        if let Some(max) = case.max {
            first.insert("maxLength".to_owned(), json!(max));
        }
        let parts = match self.normalizer.langs.node(case.lang) {
            _ if case.lang == ANY => Vec::new(),
            Node::And(parts) => parts.to_vec(),
            _ => vec![case.lang],
        };
        let mut more: Vec<Value> = Vec::new();
        for part in parts {
            match self.normalizer.langs.pattern(part) {
                Some(pattern) if !first.contains_key("pattern") => {
                    first.insert("pattern".to_owned(), json!(pattern));
                }
                Some(pattern) => more.push(json!({"type": "string", "pattern": pattern})),
                None => self.report(&[case.lang_path])?,
            }
        }
        if more.is_empty() {
            return Ok(first);
        }
        more.insert(0, Value::Object(first));
        Ok(object(json!({ "allOf": more })))
    }

    fn array(&mut self, case: &ArrayCase) -> Result<Map<String, Value>, Refusal> {
        self.report(&case.open)?;
        for path in &case.narrowed {
            let name = self.normalizer.name(*path).to_owned();
            self.normalizer.warn(format!("{name} is fulfilled by the first items of an array"));
        }
        if let Some(path) = case.shortened {
            let name = self.normalizer.name(path).to_owned();
            self.normalizer.warn(format!("{name}: arrays have at most {MAX_COUNTED} items"));
        }
        let mut out = object(json!({"type": "array"}));
        let mut max = case.max;
        let mut prefix = Vec::new();
        for (at, &item) in case.prefix.iter().enumerate() {
            if !self.states.productive.contains(&item) {
                max = Some(max.map_or(at as u64, |max| max.min(at as u64)));
                break;
            }
            prefix.push(self.child(item)?);
        }
        let count = prefix.len() as u64;
        let no_more = max.is_some_and(|max| max <= count) || !self.states.productive.contains(&case.rest);
        if !prefix.is_empty() {
            out.insert("prefixItems".to_owned(), Value::Array(prefix));
        }
        if no_more {
            out.insert("items".to_owned(), Value::Bool(false));
            max = Some(max.map_or(count, |max| max.min(count)));
        } else if case.rest != TRUE {
            let rest = self.child(case.rest)?;
            out.insert("items".to_owned(), rest);
        }
        if case.distinct {
            out.insert("uniqueItems".to_owned(), Value::Bool(true));
        }
        if case.min > 0 {
            out.insert("minItems".to_owned(), json!(case.min));
        }
        if let Some(max) = max {
            out.insert("maxItems".to_owned(), json!(max));
        }
        Ok(out)
    }
}

/// Whether a case allows all values of its type.
fn is_all(case: &Case, kind: crate::expression::Kind) -> bool {
    let mut case = case.clone();
    if let Case::Object(object) = &mut case {
        if !matches!(object.others[..], [(ANY, TRUE)]) || !object.properties.is_empty() {
            return false;
        }
        object.others.clear();
        object.names.clear();
        object.bound_path = 0;
    }
    case == Case::all(kind)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
