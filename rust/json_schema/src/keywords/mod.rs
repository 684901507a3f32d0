//! Translates the keywords of a schema to expressions.
//!
//! Cost: the size of the schema, each place once for each dynamic scope it is reached in.

pub(crate) mod formats;
mod members;
mod unevaluated;
mod values;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::document::{Draft, Place, short};
use crate::expression::{ArrayRule, Atom, Expr, FALSE, Path, TRUE};
use crate::normalizer::Normalizer;
use crate::{Refusal, Unenforceable};

const MAX_POSITION: usize = 1_000;

/// Keywords whose expression comes after the others', in this order, since they multiply cases or follow from others.
const LATE: [&str; 13] = [
    "additionalProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "contains",
    "uniqueItems",
    "anyOf",
    "oneOf",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "not",
    "if",
];

pub(crate) type Object = Map<String, Value>;

impl<'a> Normalizer<'a> {
    /// The expression of the schema at `place`, reached in the dynamic scope `scope`.
    pub(crate) fn schema(&mut self, place: Place, scope: usize) -> Result<Expr, Refusal> {
        let scope = self.enter(scope, place);
        match self.document.places[place].value {
            Value::Bool(true) => Ok(TRUE),
            Value::Bool(false) => Ok(FALSE),
            Value::Object(object) if object.is_empty() => Ok(TRUE),
            Value::Object(_) => {
                if let Some(&known) = self.schema_numbers.get(&(place, scope)) {
                    return Ok(self.exprs.schema(known));
                }
                let number = self.schemas.len() as u32;
                self.schemas.push((place, scope, None));
                self.schema_numbers.insert((place, scope), number);
                Ok(self.exprs.schema(number))
            }
            _ => Err(Refusal::Invalid(format!("{} is no schema", self.here(place)))),
        }
    }

    pub(crate) fn here(&self, place: Place) -> String {
        format!("#{}", short(&self.document.places[place].pointer))
    }

    pub(crate) fn path(&mut self, place: Place, keyword: &str) -> Path {
        self.paths.push(format!("'{keyword}' at #{}", short(&self.document.places[place].pointer)));
        (self.paths.len() - 1) as Path
    }

    pub(crate) fn bad<T>(&self, place: Place, keyword: &str, expected: &str) -> Result<T, Refusal> {
        Err(Refusal::Invalid(format!("'{keyword}' at {} must be {expected}", self.here(place))))
    }

    /// The dynamic scope after entering the resource of `place`.
    pub(crate) fn enter(&mut self, scope: usize, place: Place) -> usize {
        if !self.document.has_dynamic {
            return 0;
        }
        let mut anchors: BTreeMap<String, Place> = self.scopes[scope].clone();
        let resource = &self.document.resources[self.document.places[place].resource];
        for (name, &place) in &resource.dynamic {
            anchors.entry(name.clone()).or_insert(place);
        }
        match self.scopes.iter().position(|known| *known == anchors) {
            Some(known) => known,
            None => {
                self.scopes.push(anchors);
                self.scopes.len() - 1
            }
        }
    }

    /// The schema at `steps` below `place`.
    pub(crate) fn sub(&mut self, place: Place, scope: usize, steps: &str) -> Result<Expr, Refusal> {
        match self.document.below(place, steps) {
            Some(below) => self.schema(below, scope),
            None => Err(Refusal::Invalid(format!(
                "#{}{} is no schema",
                short(&self.document.places[place].pointer),
                short(steps)
            ))),
        }
    }

    /// The conjunction of a schema's keywords.
    pub(crate) fn body(&mut self, number: u32) -> Result<Expr, Refusal> {
        let (place, scope, known) = self.schemas[number as usize];
        if let Some(known) = known {
            return Ok(known);
        }
        let Value::Object(object) = self.document.places[place].value else { return Ok(TRUE) };
        let parts: Vec<Expr> =
            self.parts_in(place, scope, object)?.into_iter().map(|(_, part)| part).collect();
        let body = self.exprs.and(&parts);
        self.schemas[number as usize].2 = Some(body);
        Ok(body)
    }

    /// The keywords of the schema at `place`, each with its expression.
    pub(crate) fn parts(&mut self, place: Place) -> Result<Vec<(String, Expr)>, Refusal> {
        match self.document.places[place].value {
            Value::Object(object) => self.parts_in(place, 0, object),
            _ => Ok(Vec::new()),
        }
    }

    fn parts_in(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
    ) -> Result<Vec<(String, Expr)>, Refusal> {
        if self.document.draft <= Draft::Seven && object.contains_key("$ref") {
            return Ok(vec![("$ref".to_owned(), self.reference(place, scope, "$ref", &object["$ref"])?)]);
        }
        // What is required comes early, for choices leave fewer cases then.
        let first = ["type", "const", "enum", "required"];
        let others = object.keys().map(String::as_str);
        let others = others.filter(|key| !first.contains(key) && !LATE.contains(key));
        let mut parts = Vec::new();
        for key in first.into_iter().chain(others).chain(LATE) {
            if let Some(value) = object.get(key) {
                parts.push((key.to_owned(), self.keyword(place, scope, object, key, value)?));
            }
        }
        parts.push(("unevaluated".to_owned(), self.unevaluated(place, scope, object)?));
        Ok(parts)
    }

    fn keyword(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
        key: &str,
        value: &Value,
    ) -> Result<Expr, Refusal> {
        self.step()?;
        match key {
            "type" => self.types(place, value),
            "const" if self.document.draft >= Draft::Six => {
                self.constants(place, key, std::slice::from_ref(value))
            }
            "enum" => match value.as_array() {
                Some(values) => self.constants(place, key, values),
                None => self.bad(place, key, "an array"),
            },
            "$ref" | "$dynamicRef" | "$recursiveRef" => self.reference(place, scope, key, value),
            "allOf" | "anyOf" | "oneOf" => {
                let parts = self.list(place, scope, key, value)?;
                Ok(match key {
                    "allOf" => self.exprs.and(&parts),
                    "anyOf" => self.exprs.or(&parts),
                    _ => self.exprs.one(&parts),
                })
            }
            "not" => {
                let inner = self.sub(place, scope, "/not")?;
                Ok(self.exprs.not(inner))
            }
            "if" if self.document.draft >= Draft::Seven => self.conditional(place, scope, object),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                self.of_number(place, object, key, value)
            }
            "minLength" | "maxLength" | "pattern" | "format" => self.of_text(place, key, value),
            "minItems" | "maxItems" | "uniqueItems" | "prefixItems" | "items" | "contains" => {
                self.of_array(place, scope, object, key, value)
            }
            _ => self.of_object(place, scope, object, key, value),
        }
    }

    fn list(&mut self, place: Place, scope: usize, key: &str, value: &Value) -> Result<Vec<Expr>, Refusal> {
        match value.as_array() {
            Some(items) if !items.is_empty() => {
                (0..items.len()).map(|at| self.sub(place, scope, &format!("/{key}/{at}"))).collect()
            }
            _ => self.bad(place, key, "an array of schemas"),
        }
    }

    /// The place that a reference means, with the scope to read it in.
    pub(crate) fn target(
        &mut self,
        place: Place,
        scope: usize,
        key: &str,
        value: &Value,
    ) -> Result<Place, Refusal> {
        let Some(reference) = value.as_str() else { return self.bad(place, key, "a reference") };
        if key == "$recursiveRef"
            && self.document.places.iter().any(|place| place.value.get("$recursiveAnchor").is_some())
        {
            return Err(Refusal::Unenforceable(format!(
                "'$recursiveRef' at {} cannot be enforced",
                self.here(place)
            )));
        }
        let target = self.document.lookup(place, reference)?;
        if key == "$dynamicRef"
            && let Some((_, anchor)) = reference.split_once('#')
        {
            let resource = &self.document.resources[self.document.places[target].resource];
            if resource.dynamic.get(anchor) == Some(&target)
                && let Some(&outermost) = self.scopes[scope].get(anchor)
            {
                return Ok(outermost);
            }
        }
        Ok(target)
    }

    fn reference(&mut self, place: Place, scope: usize, key: &str, value: &Value) -> Result<Expr, Refusal> {
        if key == "$recursiveRef" && self.document.draft != Draft::Nineteen
            || key == "$dynamicRef" && self.document.draft != Draft::Twenty
        {
            return Ok(TRUE);
        }
        match self.target(place, scope, key, value) {
            Err(refusal @ (Refusal::Elsewhere(_) | Refusal::Unenforceable(_)))
                if self.unenforceable == Unenforceable::Ignore =>
            {
                let path = self.path(place, key);
                if let (Refusal::Elsewhere(_), Some(reference)) = (refusal, value.as_str()) {
                    let whither = format!(" to {}, which is not part of this document,", short(reference));
                    self.paths[path as usize].push_str(&whither);
                }
                // Values of few types have no place to say so.
                self.warn(format!("{} is not enforced", self.name(path)));
                Ok(self.exprs.atom(Atom::Unknown(path)))
            }
            target => self.schema(target?, scope),
        }
    }

    fn conditional(&mut self, place: Place, scope: usize, object: &Object) -> Result<Expr, Refusal> {
        let condition = self.sub(place, scope, "/if")?;
        let mut branch = |key: &str| match object.get(key) {
            Some(_) => self.sub(place, scope, &format!("/{key}")),
            None => Ok(TRUE),
        };
        let (then, otherwise) = (branch("then")?, branch("else")?);
        if then == TRUE && otherwise == TRUE {
            return Ok(TRUE);
        }
        let unmet = self.exprs.not(condition);
        let first = self.exprs.and(&[condition, then]);
        let second = self.exprs.and(&[unmet, otherwise]);
        Ok(self.exprs.or(&[first, second]))
    }

    fn of_array(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
        key: &str,
        value: &Value,
    ) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        let atom = match key {
            "minItems" => ArrayRule::AtLeast(self.count(place, key, value)?),
            "maxItems" => ArrayRule::AtMost(self.count(place, key, value)?),
            "uniqueItems" => match value {
                Value::Bool(true) => ArrayRule::Unique,
                Value::Bool(false) => return Ok(TRUE),
                _ => return self.bad(place, key, "true or false"),
            },
            "contains" => {
                if self.document.draft < Draft::Six {
                    return Ok(TRUE);
                }
                let item = self.sub(place, scope, "/contains")?;
                let counted = self.document.draft >= Draft::Nineteen;
                let bound = |key: &str| match object.get(key) {
                    Some(value) if counted => self.count(place, key, value).map(Some),
                    _ => Ok(None),
                };
                ArrayRule::Count {
                    from: 0,
                    item,
                    min: bound("minContains")?.unwrap_or(1),
                    max: bound("maxContains")?,
                }
            }
            // `items` as an array is how older drafts write `prefixItems`.
            "prefixItems" | "items" if value.is_array() => {
                if key == "prefixItems" && self.document.draft < Draft::Twenty {
                    return Ok(TRUE);
                }
                return self.positions(place, scope, object, key, value);
            }
            "items" => {
                let first = match object.get("prefixItems") {
                    Some(Value::Array(items)) if self.document.draft >= Draft::Twenty => items.len(),
                    _ => 0,
                };
                let rest = self.sub(place, scope, "/items")?;
                ArrayRule::From(first, rest)
            }
            _ => return self.bad(place, key, "an array of schemas"),
        };
        Ok(self.exprs.atom(Atom::Array(atom, path)))
    }

    /// A schema for each of the first items.
    fn positions(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
        key: &str,
        value: &Value,
    ) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        let items = self.list(place, scope, key, value)?;
        if items.len() > MAX_POSITION {
            return Err(Refusal::TooLarge(format!("'{key}' at {} has too many items", self.here(place))));
        }
        let mut parts = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            parts.push(self.exprs.atom(Atom::Array(ArrayRule::Item(at, item), path)));
        }
        if key == "items" && object.contains_key("additionalItems") {
            let rest = self.sub(place, scope, "/additionalItems")?;
            parts.push(self.exprs.atom(Atom::Array(ArrayRule::From(parts.len(), rest), path)));
        }
        Ok(self.exprs.and(&parts))
    }
}
