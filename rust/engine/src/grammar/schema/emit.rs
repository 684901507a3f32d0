//! Writes the states of an expression as a schema in the part of the language that the grammar's compiler keeps exactly.
//!
//! One definition for each state that is met more than once, so that recursion ends and sharing stays. Cost: the
//! states times their children, and the patterns that are written.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::Unenforceable;
use super::document::refuse;
use super::expression::{Expr, KINDS, Path, TRUE};
use super::language::{ANY, Node};
use super::shape::{ArrayShape, NumberShape, ObjectShape, Shape, TextShape};
use super::states::States;
use super::work::Work;
use crate::grammar::Refusal;

/// How deep states may stand in each other: the grammar's compiler follows them by recursion.
const MOST_DEPTH: usize = 100;

/// Every name. Written so, masks within a name are found fast; an empty pattern means the same and takes ten times as long.
const ANY_NAME: &str = "^(?s:.*)$";

struct Writer<'w, 'a> {
    work: &'w mut Work<'a>,
    states: States,
    names: HashMap<Expr, String>,
    defs: Map<String, Value>,
    unenforceable: Unenforceable,
    depth: usize,
}

impl Work<'_> {
    /// The schema that an expression says.
    pub(super) fn write(&mut self, root: Expr, unenforceable: Unenforceable) -> Result<Value, Refusal> {
        let states = States::new(self, root)?;
        if !states.productive.contains(&root) {
            return refuse("the schema at # allows no value".to_owned());
        }
        let mut writer =
            Writer { work: self, states, names: HashMap::new(), defs: Map::new(), unenforceable, depth: 0 };
        let mut value = writer.state(root)?;
        if !writer.defs.is_empty() {
            let defs = std::mem::take(&mut writer.defs);
            value.insert("$defs".to_owned(), Value::Object(defs));
        }
        Ok(Value::Object(value))
    }
}

impl Writer<'_, '_> {
    /// A child: itself, or where it is defined.
    fn child(&mut self, expr: Expr) -> Result<Value, Refusal> {
        if expr == TRUE {
            return Ok(json!({}));
        }
        if !self.states.productive.contains(&expr) {
            return Ok(Value::Bool(false));
        }
        let plain = self.states.shapes[&expr]
            .iter()
            .all(|shape| !matches!(shape, Shape::Array(_) | Shape::Object(_)));
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
        self.work.step()?;
        if expr == TRUE {
            return Ok(Map::new());
        }
        let shapes: Vec<Shape> =
            self.states.shapes[&expr].iter().filter(|shape| self.states.has_value(shape)).cloned().collect();
        if KINDS
            .iter()
            .all(|&kind| shapes.contains(&Shape::all(kind)) || shapes.iter().any(|shape| is_all(shape, kind)))
        {
            return Ok(Map::new());
        }
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return refuse(format!("the schema is nested more than {MOST_DEPTH} deep"));
        }
        let mut options: Vec<Map<String, Value>> = Vec::new();
        let mut spelled = Vec::new();
        for shape in &shapes {
            match shape {
                Shape::Null => options.push(object(json!({"type": "null"}))),
                Shape::Boolean { no: true, yes: true } => options.push(object(json!({"type": "boolean"}))),
                Shape::Boolean { yes, .. } => spelled.push(json!(yes)),
                Shape::Number(shape) => match self.number(shape)? {
                    Ok(values) => spelled.extend(values),
                    Err(option) => options.push(option),
                },
                Shape::Text(shape) => match &shape.among {
                    Some(among) if shape.formats.is_empty() => {
                        self.report(&shape.open)?;
                        spelled.extend(among.iter().map(|text| json!(&**text)));
                    }
                    _ => {
                        let option = self.text(shape)?;
                        options.push(option);
                    }
                },
                Shape::Array(shape) => {
                    let option = self.array(shape)?;
                    options.push(option);
                }
                Shape::Object(shape) => {
                    let option = self.object(shape)?;
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

    /// Refuses what is open, or takes note that it is not enforced.
    fn report(&mut self, open: &[Path]) -> Result<(), Refusal> {
        for &path in open {
            let name = self.work.name(path).to_owned();
            match self.unenforceable {
                Unenforceable::Refuse => return refuse(format!("{name} cannot be enforced")),
                Unenforceable::Ignore => self.work.warn(format!("{name} is not enforced")),
            }
        }
        Ok(())
    }

    fn number(&mut self, shape: &NumberShape) -> Result<Result<Vec<Value>, Map<String, Value>>, Refusal> {
        self.report(&shape.open)?;
        if let Some(among) = &shape.among {
            let values =
                among.iter().filter(|number| number.is_exact_bound()).filter_map(|number| number.to_value());
            let values: Vec<Value> = values.collect();
            if values.len() == among.len() {
                return Ok(Ok(values));
            }
            return refuse("a number in 'enum' or 'const' has more digits than can be enforced".to_owned());
        }
        let whole = matches!(shape.whole, Some((true, _)));
        let mut out = object(json!({ "type": if whole { "integer" } else { "number" } }));
        for (bound, included, left_out) in
            [(shape.min, "minimum", "exclusiveMinimum"), (shape.max, "maximum", "exclusiveMaximum")]
        {
            if let Some((bound, out_itself, _)) = bound
                && bound.is_exact_bound()
                && let Some(value) = bound.to_value()
            {
                out.insert(if out_itself { left_out } else { included }.to_owned(), value);
            }
        }
        if let Some((of, _)) = shape.multiple
            && of.is_exact_divisor()
            && let Some(value) = of.to_value()
        {
            out.insert("multipleOf".to_owned(), value);
        }
        Ok(Err(out))
    }

    fn text(&mut self, shape: &TextShape) -> Result<Map<String, Value>, Refusal> {
        self.report(&shape.open)?;
        let mut first = object(json!({"type": "string"}));
        if let Some(among) = &shape.among {
            first = object(json!({ "enum": among.iter().map(|text| &**text).collect::<Vec<_>>() }));
        }
        if shape.min > 0 {
            first.insert("minLength".to_owned(), json!(shape.min));
        }
        if let Some(max) = shape.max {
            first.insert("maxLength".to_owned(), json!(max));
        }
        let parts = match self.work.langs.node(shape.lang) {
            _ if shape.lang == ANY => Vec::new(),
            Node::And(parts) => parts.to_vec(),
            _ => vec![shape.lang],
        };
        let mut more: Vec<Value> = Vec::new();
        for part in parts {
            match self.work.langs.pattern(part) {
                Some(pattern) if !first.contains_key("pattern") => {
                    first.insert("pattern".to_owned(), json!(pattern));
                }
                Some(pattern) => more.push(json!({"type": "string", "pattern": pattern})),
                None => self.report(&[shape.lang_path])?,
            }
        }
        for format in &shape.formats {
            more.push(json!({"type": "string", "format": &**format}));
        }
        if more.len() == 1 && first.len() == 1 && shape.among.is_none() {
            return Ok(object(more.pop().unwrap_or_default()));
        }
        if more.is_empty() {
            return Ok(first);
        }
        more.insert(0, Value::Object(first));
        Ok(object(json!({ "allOf": more })))
    }

    fn array(&mut self, shape: &ArrayShape) -> Result<Map<String, Value>, Refusal> {
        self.report(&shape.open)?;
        let mut out = object(json!({"type": "array"}));
        let mut max = shape.max;
        let mut prefix = Vec::new();
        for (at, &item) in shape.prefix.iter().enumerate() {
            if !self.states.productive.contains(&item) {
                max = Some(max.map_or(at as u64, |max| max.min(at as u64)));
                break;
            }
            prefix.push(self.child(item)?);
        }
        let count = prefix.len() as u64;
        let no_more = max.is_some_and(|max| max <= count) || !self.states.productive.contains(&shape.rest);
        if !prefix.is_empty() {
            out.insert("prefixItems".to_owned(), Value::Array(prefix));
        }
        if no_more {
            out.insert("items".to_owned(), Value::Bool(false));
            max = Some(max.map_or(count, |max| max.min(count)));
        } else if shape.rest != TRUE {
            let rest = self.child(shape.rest)?;
            out.insert("items".to_owned(), rest);
        }
        if shape.min > 0 {
            out.insert("minItems".to_owned(), json!(shape.min));
        }
        if let Some(max) = max {
            out.insert("maxItems".to_owned(), json!(max));
        }
        Ok(out)
    }

    fn object(&mut self, shape: &ObjectShape) -> Result<Map<String, Value>, Refusal> {
        self.report(&shape.open)?;
        let others: Vec<_> = shape
            .others
            .iter()
            .copied()
            .filter(|(_, value)| self.states.productive.contains(value))
            .collect();
        let mut known: Vec<_> = shape.properties.iter().collect();
        known.sort_by_key(|(name, property)| (property.order, (*name).clone()));
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for (name, property) in known {
            let there = self.states.productive.contains(&property.value);
            if there || !others.is_empty() {
                let value = self.child(property.value)?;
                properties.insert(name.to_string(), value);
            }
            if property.required {
                required.push(json!(&**name));
            }
        }
        let mut out = object(json!({"type": "object"}));
        if properties.is_empty() && matches!(others[..], [(ANY, _)]) {
            if others[0].1 != TRUE {
                let value = self.child(others[0].1)?;
                out.insert("additionalProperties".to_owned(), value);
            }
        } else {
            if !properties.is_empty() {
                out.insert("properties".to_owned(), Value::Object(properties));
            }
            let mut patterns = Map::new();
            for (names, value) in others {
                let pattern = self.other_names(shape, names, value)?;
                let value = self.child(value)?;
                patterns.insert(pattern, value);
            }
            if !patterns.is_empty() {
                out.insert("patternProperties".to_owned(), Value::Object(patterns));
            }
            out.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        let count = required.len() as u64;
        if !required.is_empty() {
            out.insert("required".to_owned(), Value::Array(required));
        }
        if shape.min > count {
            out.insert("minProperties".to_owned(), json!(shape.min));
        }
        if let Some(max) = shape.max {
            out.insert("maxProperties".to_owned(), json!(max));
        }
        Ok(out)
    }

    /// A pattern for names beside the known ones. The compiler takes the known ones out of it by itself, but first
    /// asks of them what it asks of the names of the pattern; so they are taken out here where that asks something.
    ///
    /// Its own `additionalProperties` would do the same, but lets a known name through that is written with `\u`.
    fn other_names(&mut self, shape: &ObjectShape, names: u32, value: Expr) -> Result<String, Refusal> {
        let langs = &mut self.work.langs;
        let apart =
            value == TRUE || shape.properties.keys().all(|name| langs.matches(names, name) == Some(false));
        if apart {
            if names == ANY {
                return Ok(ANY_NAME.to_owned());
            }
            if let Some(pattern) = langs.pattern(names) {
                return Ok(pattern);
            }
        }
        if let Some(beside) = self.work.beside(shape) {
            let both = self.work.langs.and(vec![names, beside]);
            if let Some(pattern) = self.work.langs.pattern(both) {
                return Ok(pattern);
            }
        }
        let path = shape.names.last().map_or(shape.bound_path, |&(_, _, path)| path);
        self.report(&[path])?;
        Ok(ANY_NAME.to_owned())
    }
}

/// Whether a shape is the whole of its type, however it came about.
fn is_all(shape: &Shape, kind: super::expression::Kind) -> bool {
    let mut shape = shape.clone();
    if let Shape::Object(object) = &mut shape {
        if !matches!(object.others[..], [(ANY, TRUE)]) || !object.properties.is_empty() {
            return false;
        }
        object.others.clear();
        object.names.clear();
        object.bound_path = 0;
    }
    shape == Shape::all(kind)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
