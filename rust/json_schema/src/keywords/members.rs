//! Keywords that speak of the members of objects.
//!
//! Cost: the names and patterns that they list.

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::Refusal;
use crate::document::{Draft, Place, step};
use crate::expression::{Atom, Expr, FALSE, Kind, ObjectRule, Path, TRUE};
use crate::keywords::Object;
use crate::language::search;
use crate::language::{Lang, NEVER};
use crate::normalizer::Normalizer;

impl Normalizer<'_> {
    pub(crate) fn of_object(
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
            "minProperties" => parts.push(ObjectRule::AtLeast(self.count(place, key, value)?)),
            "maxProperties" => parts.push(ObjectRule::AtMost(self.count(place, key, value)?)),
            "required" => {
                if self.document.draft == Draft::Four && value.is_boolean() {
                    return Ok(TRUE);
                }
                parts.extend(self.names(place, key, value)?.into_iter().map(ObjectRule::Requires));
            }
            "properties" => {
                let Some(properties) = value.as_object() else { return self.bad(place, key, "an object") };
                for name in properties.keys() {
                    let inner = self.sub(place, scope, &format!("/properties/{}", step(name)))?;
                    parts.push(ObjectRule::Property(name.as_str().into(), inner));
                }
            }
            "patternProperties" => {
                let Some(patterns) = value.as_object() else { return self.bad(place, key, "an object") };
                for pattern in patterns.keys() {
                    let inner = self.sub(place, scope, &format!("/patternProperties/{}", step(pattern)))?;
                    parts.push(match search::language(&mut self.langs, pattern) {
                        Some(names) => ObjectRule::Names(names, inner),
                        None => ObjectRule::Unknown,
                    });
                }
            }
            "additionalProperties" => {
                let inner = self.sub(place, scope, "/additionalProperties")?;
                parts.push(match self.evaluated_names(object) {
                    Some(named) => {
                        let others = self.langs.not(named);
                        ObjectRule::Names(others, inner)
                    }
                    None => ObjectRule::Unknown,
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
    pub(crate) fn evaluated_names(&mut self, object: &Object) -> Option<Lang> {
        let empty = Map::new();
        let maps = ["properties", "patternProperties"].map(|key| object.get(key).and_then(Value::as_object));
        let names: Vec<&str> = maps[0].unwrap_or(&empty).keys().map(String::as_str).collect();
        let mut parts = vec![self.finite(&names)?];
        for pattern in maps[1].unwrap_or(&empty).keys() {
            parts.push(search::language(&mut self.langs, pattern)?);
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
            parts.push(ObjectRule::Property(name, TRUE));
        })?;
        parts.push(match allowed {
            Some(NEVER) => ObjectRule::AtMost(0),
            Some(allowed) => {
                let others = self.langs.not(allowed);
                ObjectRule::Names(others, FALSE)
            }
            None => ObjectRule::Unknown,
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
                    .map(|name| self.exprs.atom(Atom::Object(ObjectRule::Requires(name), path)))
                    .collect();
                self.exprs.and(&names)
            } else if key == "dependentRequired" {
                return self.bad(place, key, "an object of arrays of names");
            } else {
                self.sub(place, scope, &format!("/{key}/{}", step(name)))?
            };
            let present = self.exprs.atom(Atom::Object(ObjectRule::Requires(name.as_str().into()), path));
            let absent = self.exprs.not(present);
            let kind = self.exprs.kinds(&[Kind::Object]);
            let other = self.exprs.not(kind);
            let then = self.exprs.and(&[kind, present, then]);
            parts.push(self.exprs.or(&[other, absent, then]));
        }
        Ok(self.exprs.and(&parts))
    }
}
