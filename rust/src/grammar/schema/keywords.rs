//! What each keyword of a schema means, as an expression.
//!
//! Cost: the size of the schema, each place once for each dynamic scope it is reached in.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::document::{Draft, Place, refuse, short, step};
use super::expression::{Atom, Expr, FALSE, Kind, OfArray, OfNumber, OfObject, OfText, Path, TRUE};
use super::language::{Lang, NEVER};
use super::number::Decimal;
use super::regex;
use super::work::Work;
use crate::grammar::Refusal;

/// Longer names and strings are not put into automata.
const MOST_NAME: usize = 512;
const MOST_POSITION: usize = 1_000;

/// Formats that the grammar's compiler has a language for.
pub(super) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords whose expression comes after the others', in this order, since they multiply cases or follow from others.
const LATE: [&str; 14] = [
    "required",
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

pub(super) type Object = Map<String, Value>;

impl<'a> Work<'a> {
    /// The expression of the schema at `place`, reached in the dynamic scope `scope`.
    pub(super) fn schema(&mut self, place: Place, scope: usize) -> Result<Expr, Refusal> {
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
            _ => refuse(format!("{} is no schema", self.here(place))),
        }
    }

    fn here(&self, place: Place) -> String {
        format!("#{}", short(&self.document.places[place].pointer))
    }

    pub(super) fn path(&mut self, place: Place, keyword: &str) -> Path {
        self.paths.push(format!("'{keyword}' at #{}", short(&self.document.places[place].pointer)));
        (self.paths.len() - 1) as Path
    }

    fn bad<T>(&self, place: Place, keyword: &str, expected: &str) -> Result<T, Refusal> {
        refuse(format!("'{keyword}' at {} must be {expected}", self.here(place)))
    }

    /// The dynamic scope after entering the resource of `place`.
    pub(super) fn enter(&mut self, scope: usize, place: Place) -> usize {
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
    pub(super) fn sub(&mut self, place: Place, scope: usize, steps: &str) -> Result<Expr, Refusal> {
        match self.document.below(place, steps) {
            Some(below) => self.schema(below, scope),
            None => refuse(format!(
                "#{}{} is no schema",
                short(&self.document.places[place].pointer),
                short(steps)
            )),
        }
    }

    /// What a schema says: its keywords together.
    pub(super) fn body(&mut self, number: u32) -> Result<Expr, Refusal> {
        let (place, scope, known) = self.schemas[number as usize];
        if let Some(known) = known {
            return Ok(known);
        }
        let Value::Object(object) = self.document.places[place].value else { return Ok(TRUE) };
        let mut parts = Vec::new();
        if self.document.draft <= Draft::Seven && object.contains_key("$ref") {
            parts.push(self.reference(place, scope, "$ref", &object["$ref"])?);
        } else {
            for key in ["type", "const", "enum"] {
                if let Some(value) = object.get(key) {
                    parts.push(self.keyword(place, scope, object, key, value)?);
                }
            }
            for (key, value) in object {
                if !matches!(key.as_str(), "type" | "const" | "enum") && !LATE.contains(&key.as_str()) {
                    parts.push(self.keyword(place, scope, object, key, value)?);
                }
            }
            for key in LATE {
                if let Some(value) = object.get(key) {
                    parts.push(self.keyword(place, scope, object, key, value)?);
                }
            }
            parts.push(self.unevaluated(place, scope, object)?);
        }
        let body = self.exprs.and(&parts);
        self.schemas[number as usize].2 = Some(body);
        Ok(body)
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

    fn types(&mut self, place: Place, value: &Value) -> Result<Expr, Refusal> {
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
                    let whole = self.exprs.atom(Atom::Number(OfNumber::Whole, path));
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

    fn constants(&mut self, place: Place, key: &str, values: &[Value]) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        self.any_of_values(values, path)
    }

    /// Exactly these values.
    pub(super) fn any_of_values(&mut self, values: &[Value], path: Path) -> Result<Expr, Refusal> {
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
            (!numbers.is_empty()).then(|| OfNumber::Among(numbers.into())),
            unknown.then_some(OfNumber::Unknown),
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
            let this = self.exprs.atom(Atom::Text(OfText::Among(texts.into()), path));
            parts.push(self.exprs.and(&[kind, this]));
        }
        Ok(self.exprs.or(&parts))
    }

    fn constant_array(&mut self, items: &[Value], path: Path) -> Result<Expr, Refusal> {
        let mut parts = vec![self.exprs.kinds(&[Kind::Array])];
        let count = items.len() as u64;
        parts.push(self.exprs.atom(Atom::Array(OfArray::AtLeast(count), path)));
        parts.push(self.exprs.atom(Atom::Array(OfArray::AtMost(count), path)));
        for (at, item) in items.iter().enumerate() {
            let item = self.any_of_values(std::slice::from_ref(item), path)?;
            parts.push(self.exprs.atom(Atom::Array(OfArray::Item(at, item), path)));
        }
        Ok(self.exprs.and(&parts))
    }

    fn constant_object(&mut self, members: &Object, path: Path) -> Result<Expr, Refusal> {
        let mut parts = vec![self.exprs.kinds(&[Kind::Object])];
        for (name, member) in members {
            let member = self.any_of_values(std::slice::from_ref(member), path)?;
            let name: Rc<str> = name.as_str().into();
            parts.push(self.exprs.atom(Atom::Object(OfObject::Property(name.clone(), member), path)));
            parts.push(self.exprs.atom(Atom::Object(OfObject::Requires(name), path)));
        }
        let names: Vec<&str> = members.keys().map(String::as_str).collect();
        let others = match self.finite(&names) {
            Some(names) => {
                let others = self.langs.not(names);
                OfObject::Names(others, FALSE)
            }
            None => OfObject::Unknown,
        };
        parts.push(self.exprs.atom(Atom::Object(others, path)));
        Ok(self.exprs.and(&parts))
    }

    /// The language of these names; none if one is too long.
    pub(super) fn finite(&mut self, names: &[&str]) -> Option<Lang> {
        if names.iter().any(|name| name.len() > MOST_NAME) {
            return None;
        }
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        Some(self.langs.finite(&sorted))
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
    pub(super) fn target(
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
            return refuse(format!("'$recursiveRef' at {} cannot be enforced", self.here(place)));
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
        let target = self.target(place, scope, key, value)?;
        self.schema(target, scope)
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

    fn of_number(
        &mut self,
        place: Place,
        object: &Object,
        key: &str,
        value: &Value,
    ) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        let exclusive =
            |key: &str| self.document.draft == Draft::Four && object.get(key) == Some(&Value::Bool(true));
        if self.document.draft == Draft::Four && key.starts_with("exclusive") && value.is_boolean() {
            return Ok(TRUE);
        }
        let Value::Number(number) = value else { return self.bad(place, key, "a number") };
        let Some(number) = Decimal::from_number(number) else {
            return Ok(self.exprs.atom(Atom::Number(OfNumber::Unknown, path)));
        };
        let atom = match key {
            "minimum" => OfNumber::Min(number, exclusive("exclusiveMinimum")),
            "maximum" => OfNumber::Max(number, exclusive("exclusiveMaximum")),
            "exclusiveMinimum" => OfNumber::Min(number, true),
            "exclusiveMaximum" => OfNumber::Max(number, true),
            _ if number.is_positive() => OfNumber::Multiple(number),
            _ => return self.bad(place, key, "a number above zero"),
        };
        Ok(self.exprs.atom(Atom::Number(atom, path)))
    }

    /// A count: also one that is written as `2.0`.
    pub(super) fn count(&self, place: Place, key: &str, value: &Value) -> Result<u64, Refusal> {
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

    fn of_text(&mut self, place: Place, key: &str, value: &Value) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        let atom = match key {
            "minLength" => OfText::AtLeast(self.count(place, key, value)?),
            "maxLength" => OfText::AtMost(self.count(place, key, value)?),
            _ => {
                let Some(text) = value.as_str() else { return self.bad(place, key, "a string") };
                if key == "pattern" {
                    match regex::language(&mut self.langs, text) {
                        Some(lang) => OfText::In(lang),
                        None => OfText::Unknown,
                    }
                } else if FORMATS.contains(&text) {
                    OfText::Format(text.into())
                } else {
                    self.warn(format!("'format' at {}: '{}' is not enforced", self.here(place), short(text)));
                    return Ok(TRUE);
                }
            }
        };
        Ok(self.exprs.atom(Atom::Text(atom, path)))
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
            "minItems" => OfArray::AtLeast(self.count(place, key, value)?),
            "maxItems" => OfArray::AtMost(self.count(place, key, value)?),
            "uniqueItems" => match value {
                Value::Bool(true) => OfArray::Unique,
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
                OfArray::Count {
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
                let items = self.list(place, scope, key, value)?;
                if items.len() > MOST_POSITION {
                    return refuse(format!("'{key}' at {} has too many items", self.here(place)));
                }
                let mut parts = Vec::new();
                for (at, item) in items.into_iter().enumerate() {
                    parts.push(self.exprs.atom(Atom::Array(OfArray::Item(at, item), path)));
                }
                if key == "items" && object.contains_key("additionalItems") {
                    let rest = self.sub(place, scope, "/additionalItems")?;
                    parts.push(self.exprs.atom(Atom::Array(OfArray::From(parts.len(), rest), path)));
                }
                return Ok(self.exprs.and(&parts));
            }
            "items" => {
                let first = match object.get("prefixItems") {
                    Some(Value::Array(items)) if self.document.draft >= Draft::Twenty => items.len(),
                    _ => 0,
                };
                let rest = self.sub(place, scope, "/items")?;
                OfArray::From(first, rest)
            }
            _ => return self.bad(place, key, "an array of schemas"),
        };
        Ok(self.exprs.atom(Atom::Array(atom, path)))
    }

    fn of_object(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
        key: &str,
        value: &Value,
    ) -> Result<Expr, Refusal> {
        let path = self.path(place, key);
        let mut parts = Vec::new();
        match key {
            "minProperties" => parts.push(OfObject::AtLeast(self.count(place, key, value)?)),
            "maxProperties" => parts.push(OfObject::AtMost(self.count(place, key, value)?)),
            "required" => {
                if self.document.draft == Draft::Four && value.is_boolean() {
                    return Ok(TRUE);
                }
                parts.extend(self.names(place, key, value)?.into_iter().map(OfObject::Requires));
            }
            "properties" => {
                let Some(properties) = value.as_object() else { return self.bad(place, key, "an object") };
                for name in properties.keys() {
                    let inner = self.sub(place, scope, &format!("/properties/{}", step(name)))?;
                    parts.push(OfObject::Property(name.as_str().into(), inner));
                }
            }
            "patternProperties" => {
                let Some(patterns) = value.as_object() else { return self.bad(place, key, "an object") };
                for pattern in patterns.keys() {
                    let inner = self.sub(place, scope, &format!("/patternProperties/{}", step(pattern)))?;
                    parts.push(match regex::language(&mut self.langs, pattern) {
                        Some(names) => OfObject::Names(names, inner),
                        None => OfObject::Unknown,
                    });
                }
            }
            "additionalProperties" => {
                let inner = self.sub(place, scope, "/additionalProperties")?;
                parts.push(match self.evaluated_names(object) {
                    Some(named) => {
                        let others = self.langs.not(named);
                        OfObject::Names(others, inner)
                    }
                    None => OfObject::Unknown,
                });
            }
            "propertyNames" if self.document.draft >= Draft::Six => {
                return self.property_names(place, scope, path);
            }
            "dependentRequired" | "dependentSchemas" | "dependencies" => {
                return self.dependent(place, scope, key, value);
            }
            _ => return Ok(TRUE),
        }
        let parts: Vec<Expr> =
            parts.into_iter().map(|atom| self.exprs.atom(Atom::Object(atom, path))).collect();
        Ok(self.exprs.and(&parts))
    }

    /// The names that `properties` and `patternProperties` speak of.
    pub(super) fn evaluated_names(&mut self, object: &Object) -> Option<Lang> {
        let empty = Map::new();
        let maps = ["properties", "patternProperties"].map(|key| object.get(key).and_then(Value::as_object));
        let names: Vec<&str> = maps[0].unwrap_or(&empty).keys().map(String::as_str).collect();
        let mut parts = vec![self.finite(&names)?];
        for pattern in maps[1].unwrap_or(&empty).keys() {
            parts.push(regex::language(&mut self.langs, pattern)?);
        }
        Some(self.langs.or(parts))
    }

    fn names(&self, place: Place, key: &str, value: &Value) -> Result<Vec<Rc<str>>, Refusal> {
        let names =
            value.as_array().map(|names| names.iter().map(|name| name.as_str().map(Into::into)).collect());
        match names.flatten() {
            Some(names) => Ok(names),
            None => self.bad(place, key, "an array of names"),
        }
    }

    fn property_names(&mut self, place: Place, scope: usize, path: Path) -> Result<Expr, Refusal> {
        let inner = self.sub(place, scope, "/propertyNames")?;
        let mut parts = Vec::new();
        let allowed = self.texts(inner, &mut |name| {
            // Named ones are written in the order in which the schema names them.
            parts.push(OfObject::Property(name, TRUE));
        })?;
        parts.push(match allowed {
            Some(NEVER) => OfObject::AtMost(0),
            Some(allowed) => {
                let others = self.langs.not(allowed);
                OfObject::Names(others, FALSE)
            }
            None => OfObject::Unknown,
        });
        let parts: Vec<Expr> =
            parts.into_iter().map(|atom| self.exprs.atom(Atom::Object(atom, path))).collect();
        Ok(self.exprs.and(&parts))
    }

    fn dependent(&mut self, place: Place, scope: usize, key: &str, value: &Value) -> Result<Expr, Refusal> {
        let old = self.document.draft <= Draft::Seven;
        if old != (key == "dependencies") {
            return Ok(TRUE);
        }
        let path = self.path(place, key);
        let Some(map) = value.as_object() else { return self.bad(place, key, "an object") };
        let mut parts = Vec::new();
        for (name, value) in map {
            let then = if value.is_array() && key != "dependentSchemas" {
                let names = self.names(place, key, value)?;
                let names: Vec<Expr> = names
                    .into_iter()
                    .map(|name| self.exprs.atom(Atom::Object(OfObject::Requires(name), path)))
                    .collect();
                self.exprs.and(&names)
            } else if key == "dependentRequired" {
                return self.bad(place, key, "an object of arrays of names");
            } else {
                self.sub(place, scope, &format!("/{key}/{}", step(name)))?
            };
            let present = self.exprs.atom(Atom::Object(OfObject::Requires(name.as_str().into()), path));
            let absent = self.exprs.not(present);
            let kind = self.exprs.kinds(&[Kind::Object]);
            let other = self.exprs.not(kind);
            let then = self.exprs.and(&[kind, present, then]);
            parts.push(self.exprs.or(&[other, absent, then]));
        }
        Ok(self.exprs.and(&parts))
    }
}
