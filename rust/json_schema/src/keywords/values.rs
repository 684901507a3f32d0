//! Keywords that speak of values themselves: `type`, `const`, `enum`, and those of numbers and strings.
//!
//! Cost: the size of the values.

use std::rc::Rc;

use serde_json::{Number, Value};

use crate::Refusal;
use crate::document::{Place, short};
use crate::expression::{ArrayRule, Atom, Expr, FALSE, Kind, NumberRule, ObjectRule, Path, TRUE, TextRule};
use crate::keywords::Object;
use crate::language::Lang;
use crate::language::search;
use crate::normalizer::Normalizer;
use crate::number::Decimal;

/// Longer names and strings are not put into automata.
const MAX_NAME: usize = 512;

impl Normalizer<'_> {
    pub(crate) fn types(&mut self, place: Place, value: &Value) -> Result<Expr, Refusal> {
        let names = match value {
            Value::String(_) => std::slice::from_ref(value),
            Value::Array(names) => names.as_slice(),
            _ => return self.bad(place, "type", "the name of a type or an array of such"),
        };
        let mut kinds = Vec::new();
        let mut parts = Vec::new();
        for name in names {
            kinds.push(match name.as_str() {
                Some("null") => Kind::Null,
                Some("boolean") => Kind::Boolean,
                Some("number") => Kind::Number,
                Some("string") => Kind::Text,
                Some("array") => Kind::Array,
                Some("object") => Kind::Object,
                Some("integer") => {
                    let path = self.path(place, "type");
                    let whole = self.exprs.atom(Atom::Number(NumberRule::Whole, path));
                    let number = self.exprs.kinds(&[Kind::Number]);
                    parts.push(self.exprs.and(&[number, whole]));
                    continue;
                }
                _ => return self.bad(place, "type", "the name of a type or an array of such"),
            });
        }
        parts.push(self.exprs.kinds(&kinds));
        Ok(self.exprs.or(&parts))
    }

    pub(crate) fn constants(&mut self, place: Place, key: &str, values: &[Value]) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        self.any_of_values(values, path)
    }

    /// Exactly these values.
    pub(crate) fn any_of_values(&mut self, values: &[Value], path: Path) -> Result<Expr, Refusal> {
        let (mut numbers, mut texts, mut parts) = (Vec::new(), Vec::<Rc<str>>::new(), Vec::new());
        let mut unknown = false;
        for value in values {
            self.step()?;
            match value {
                Value::Null => parts.push(self.exprs.kinds(&[Kind::Null])),
                Value::Bool(value) => {
                    let kind = self.exprs.kinds(&[Kind::Boolean]);
                    let this = self.exprs.atom(Atom::Boolean(*value));
                    parts.push(self.exprs.and(&[kind, this]));
                }
                Value::Number(number) => match Decimal::from_number(number) {
                    Some(number) => numbers.push(number),
                    None => unknown = true,
                },
                Value::String(text) => texts.push(text.as_str().into()),
                Value::Array(items) => parts.push(self.constant_array(items, path)?),
                Value::Object(members) => parts.push(self.constant_object(members, path)?),
            }
        }
        for atom in [
            (!numbers.is_empty()).then(|| NumberRule::Among(numbers.into())),
            unknown.then_some(NumberRule::Unknown),
        ]
        .into_iter()
        .flatten()
        {
            let kind = self.exprs.kinds(&[Kind::Number]);
            let this = self.exprs.atom(Atom::Number(atom, path));
            parts.push(self.exprs.and(&[kind, this]));
        }
        if !texts.is_empty() {
            let mut seen = std::collections::HashSet::new();
            texts.retain(|text| seen.insert(text.clone()));
            let kind = self.exprs.kinds(&[Kind::Text]);
            let this = self.exprs.atom(Atom::Text(TextRule::Among(texts.into()), path));
            parts.push(self.exprs.and(&[kind, this]));
        }
        Ok(self.exprs.or(&parts))
    }

    fn constant_array(&mut self, items: &[Value], path: Path) -> Result<Expr, Refusal> {
        let mut parts = vec![self.exprs.kinds(&[Kind::Array])];
        let count = items.len() as u64;
        parts.push(self.exprs.atom(Atom::Array(ArrayRule::AtLeast(count), path)));
        parts.push(self.exprs.atom(Atom::Array(ArrayRule::AtMost(count), path)));
        for (at, item) in items.iter().enumerate() {
            let item = self.any_of_values(std::slice::from_ref(item), path)?;
            parts.push(self.exprs.atom(Atom::Array(ArrayRule::Item(at, item), path)));
        }
        Ok(self.exprs.and(&parts))
    }

    fn constant_object(&mut self, members: &Object, path: Path) -> Result<Expr, Refusal> {
        let mut parts = vec![self.exprs.kinds(&[Kind::Object])];
        for (name, member) in members {
            let member = self.any_of_values(std::slice::from_ref(member), path)?;
            let name: Rc<str> = name.as_str().into();
            parts.push(self.exprs.atom(Atom::Object(ObjectRule::Property(name.clone(), member), path)));
            parts.push(self.exprs.atom(Atom::Object(ObjectRule::Requires(name), path)));
        }
        let names: Vec<&str> = members.keys().map(String::as_str).collect();
        let others = match self.finite(&names) {
            Some(names) => {
                let others = self.langs.not(names);
                ObjectRule::Names(others, FALSE)
            }
            None => ObjectRule::Unknown,
        };
        parts.push(self.exprs.atom(Atom::Object(others, path)));
        Ok(self.exprs.and(&parts))
    }

    /// The language of these names; none if one is too long.
    pub(crate) fn finite(&mut self, names: &[&str]) -> Option<Lang> {
        if names.iter().any(|name| name.len() > MAX_NAME) {
            return None;
        }
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        Some(self.langs.finite(&sorted))
    }

    pub(crate) fn of_number(
        &mut self,
        place: Place,
        object: &Object,
        key: &str,
        value: &Value,
    ) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        // As draft 4 says it, and with it OpenAPI 3.0, whose schemas name no draft. Later ones have no such booleans.
        let exclusive = |key: &str| object.get(key) == Some(&Value::Bool(true));
        if key.starts_with("exclusive") && value.is_boolean() {
            return Ok(TRUE);
        }
        let Value::Number(number) = value else { return self.bad(place, key, "a number") };
        if let Some((inward, at_least)) = self.narrowed(key, number) {
            let rule = if at_least { NumberRule::Min(inward, false) } else { NumberRule::Max(inward, false) };
            let word = if at_least { "least" } else { "most" };
            let said = inward.to_value().unwrap_or_default();
            self.warn(format!("'{key}' at {}: numbers are at {word} {said}", self.here(place)));
            let parts = [rule, NumberRule::Narrowed].map(|rule| self.exprs.atom(Atom::Number(rule, path)));
            return Ok(self.exprs.and(&parts));
        }
        let Some(number) = Decimal::from_number(number) else {
            return Ok(self.exprs.atom(Atom::Number(NumberRule::Unknown, path)));
        };
        let atom = match key {
            "minimum" => NumberRule::Min(number, exclusive("exclusiveMinimum")),
            "maximum" => NumberRule::Max(number, exclusive("exclusiveMaximum")),
            "exclusiveMinimum" => NumberRule::Min(number, true),
            "exclusiveMaximum" => NumberRule::Max(number, true),
            _ if number.is_positive() => NumberRule::Multiple(number),
            _ => return self.bad(place, key, "a number above zero"),
        };
        Ok(self.exprs.atom(Atom::Number(atom, path)))
    }

    /// The bound that is enforced in place of one that has no exact form, and whether numbers are at least that.
    fn narrowed(&self, key: &str, number: &Number) -> Option<(Decimal, bool)> {
        let at_least = match key {
            "minimum" | "exclusiveMinimum" => true,
            "maximum" | "exclusiveMaximum" => false,
            _ => return None,
        };
        let exact = |number: Decimal| number.is_whole() || number.is_exact_bound();
        if !self.compiler.texts || Decimal::from_number(number).is_some_and(exact) {
            return None;
        }
        Decimal::inward(number, at_least).map(|inward| (inward, at_least))
    }

    /// A count: also one that is written as `2.0`.
    pub(crate) fn count(&self, place: Place, key: &str, value: &Value) -> Result<u64, Refusal> {
        let number = match value {
            Value::Number(number) => Decimal::from_number(number),
            _ => None,
        };
        match number
            .filter(|number| number.is_whole())
            .and_then(|number| number.to_value())
            .and_then(|n| n.as_u64())
        {
            Some(count) => Ok(count),
            None => self.bad(place, key, "a count"),
        }
    }

    pub(crate) fn of_text(&mut self, place: Place, key: &str, value: &Value) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        let atom = match key {
            "minLength" => TextRule::AtLeast(self.count(place, key, value)?),
            "maxLength" => TextRule::AtMost(self.count(place, key, value)?),
            _ => {
                let Some(text) = value.as_str() else { return self.bad(place, key, "a string") };
                if key == "pattern" {
                    match search::language(&mut self.langs, text) {
                        Some(lang) => TextRule::In(lang),
                        None => TextRule::Unknown,
                    }
                } else if let Some(lang) = self.formats.language(&mut self.langs, text) {
                    TextRule::In(lang)
                } else {
                    self.warn(format!("'format' at {}: '{}' is not enforced", self.here(place), short(text)));
                    return Ok(TRUE);
                }
            }
        };
        Ok(self.exprs.atom(Atom::Text(atom, path)))
    }
}
