//! Writes objects: their properties in order, and the names of the others as patterns.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use crate::emit::{Writer, object};
use crate::expression::{Expr, Path, TRUE};
use crate::language::{ANY, Lang};
use crate::normal_form::case::{ObjectCase, Property, TextCase};
use crate::{Refusal, Unenforceable};

/// Matches every name. llguidance computes masks for this pattern ten times as fast as for an empty one.
const ANY_NAME: &str = "^(?s:.*)$";

impl Writer<'_, '_> {
    pub(super) fn object(&mut self, case: &ObjectCase) -> Result<Map<String, Value>, Refusal> {
        self.report(&case.open)?;
        let others: Vec<_> =
            case.others.iter().copied().filter(|(_, value)| self.states.productive.contains(value)).collect();
        let mut known: Vec<_> = case.properties.iter().collect();
        known.sort_by_key(|(name, property)| (property.order, (*name).clone()));
        self.check_properties(case, &known)?;
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
            let alone = others.len() == 1;
            let mut additional = Value::Bool(false);
            for (names, value) in others {
                let pattern = self.other_names(case, names, value)?;
                let written = self.child(value)?;
                match pattern {
                    Some(pattern) => {
                        patterns.insert(pattern, written);
                    }
                    None if alone && self.normalizer.compiler.names => {
                        out.insert("propertyNames".to_owned(), Value::Object(self.names(case, names)?));
                        additional = written;
                    }
                    None => {
                        self.report(&[names_path(case)])?;
                        patterns.insert(ANY_NAME.to_owned(), written);
                    }
                }
            }
            if !patterns.is_empty() {
                out.insert("patternProperties".to_owned(), Value::Object(patterns));
            }
            out.insert("additionalProperties".to_owned(), additional);
        }
        let count = required.len() as u64;
        if !required.is_empty() {
            out.insert("required".to_owned(), Value::Array(required));
        }
        if case.min > count {
            out.insert("minProperties".to_owned(), json!(case.min));
        }
        if let Some(max) = case.max {
            out.insert("maxProperties".to_owned(), json!(max));
        }
        Ok(out)
    }

    /// Refuses more properties than the compiler of the result takes.
    fn check_properties(
        &mut self,
        case: &ObjectCase,
        known: &[(&Rc<str>, &Property)],
    ) -> Result<(), Refusal> {
        let most = self.normalizer.limits.properties;
        if let Some((_, property)) = known.get(most) {
            let (path, count) = (self.normalizer.name(property.named.0), known.len());
            return Err(Refusal::TooLarge(format!("{path}: an object has {count}; the limit is {most}")));
        }
        let may_come =
            |(_, property): &&(&Rc<str>, &Property)| self.states.productive.contains(&property.value);
        let known: Vec<_> = known.iter().filter(may_come).collect();
        if let Some(most) = self.normalizer.compiler.any_order {
            let required = known.iter().filter(|(_, property)| property.required).count() as u64;
            let most = most - usize::from(case.min > required);
            if let Some((_, property)) = known.get(most) {
                let (path, count) = (self.normalizer.name(property.named.0), known.len());
                let said = format!("{path}: an object has {count}; in any key order the limit is {most}");
                match self.normalizer.unenforceable {
                    Unenforceable::Refuse => return Err(Refusal::TooLarge(said)),
                    Unenforceable::Ignore => {
                        self.normalizer.warn(format!("{said}; its keys come in the order of the schema"));
                    }
                }
            }
        }
        let most = self.normalizer.limits.optional;
        let mut run = 0;
        for (_, property) in known {
            run = if property.required { 0 } else { run + 1 };
            if run > most {
                let path = self.normalizer.name(property.named.0);
                return Err(Refusal::TooLarge(format!(
                    "{path}: an object has more than {most} optional ones without a required one between them"
                )));
            }
        }
        Ok(())
    }

    /// A pattern for the other names; none if it gets too long. llguidance excludes the known names from a pattern itself, but also applies the
    /// pattern's schema to them; so they are excluded here unless that schema allows everything.
    ///
    /// llguidance's `additionalProperties` would do, but accepts a known name that is written with `\u` escapes.
    fn other_names(
        &mut self,
        case: &ObjectCase,
        names: Lang,
        value: Expr,
    ) -> Result<Option<String>, Refusal> {
        let itself = !self.normalizer.compiler.names_apart;
        if !itself && names == ANY {
            return Ok(Some(ANY_NAME.to_owned()));
        }
        let langs = &mut self.normalizer.langs;
        let apart = itself && value == TRUE
            || case.properties.keys().all(|name| langs.matches(names, name) == Some(false));
        if apart {
            if names == ANY {
                return Ok(Some(ANY_NAME.to_owned()));
            }
            if let Some(pattern) = langs.pattern(names) {
                return Ok(Some(pattern));
            }
        }
        if let Some(beside) = self.normalizer.beside(case) {
            let both = self.normalizer.langs.and(vec![names, beside]);
            if let Some(pattern) = self.normalizer.langs.pattern(both) {
                return Ok(Some(pattern));
            }
        }
        Ok(None)
    }

    /// The other names as strings, without the known ones.
    fn names(&mut self, case: &ObjectCase, names: Lang) -> Result<Map<String, Value>, Refusal> {
        let langs = &mut self.normalizer.langs;
        let apart = case.properties.keys().all(|name| langs.matches(names, name) == Some(false));
        let lang = match self.normalizer.beside(case).filter(|_| !apart) {
            Some(beside) => self.normalizer.langs.and(vec![names, beside]),
            None => names,
        };
        let text =
            TextCase { lang, lang_path: names_path(case), min: 0, max: None, among: None, open: Vec::new() };
        self.text(&text)
    }
}

/// The last keyword that speaks of names.
fn names_path(case: &ObjectCase) -> Path {
    case.names.last().map_or(case.bound_path, |&(_, _, path)| path)
}
