//! Where a schema that allows no value goes wrong: the first keyword that leaves none beside those before it.
//!
//! O(depth * keywords) questions of emptiness, whose answers are mostly known by then.

use serde_json::Value;

use crate::Refusal;
use crate::document::Place;
use crate::normalizer::Normalizer;

/// How deep it is looked for.
const DEEPEST: usize = 32;

impl Normalizer<'_> {
    /// The keyword and its place, for a schema that allows nothing.
    pub(crate) fn without_value(&mut self) -> Result<String, Refusal> {
        let mut place: Place = 0;
        for _ in 0..DEEPEST {
            let here = self.here(place);
            let Value::Object(object) = self.document.places[place].value else {
                return Ok(format!("`false` at {here}"));
            };
            let Some((key, alone)) = self.emptied_by(place)? else {
                return Ok(format!("no value of that at {here} ever ends"));
            };
            if !alone {
                return Ok(format!("'{key}' at {here} leaves none beside the other keywords"));
            }
            match self.culprit_within(place, &key, &object[&key])? {
                Some(below) => place = below,
                None => return Ok(format!("'{key}' at {here} leaves none")),
            }
        }
        Ok(format!("that at {} does not", self.here(place)))
    }

    /// The first keyword of a schema that leaves nothing, and whether it alone does.
    fn emptied_by(&mut self, place: Place) -> Result<Option<(String, bool)>, Refusal> {
        let mut parts = Vec::new();
        for (key, part) in self.parts(place)? {
            let alone = self.is_empty(part)?;
            parts.push(part);
            let all = self.exprs.and(&parts);
            if alone || self.is_empty(all)? {
                return Ok(Some((key, alone)));
            }
        }
        Ok(None)
    }

    /// The schema below a keyword that alone allows nothing, where there is one.
    fn culprit_within(&mut self, place: Place, key: &str, value: &Value) -> Result<Option<Place>, Refusal> {
        match (key, value) {
            ("$ref", _) => self.target(place, 0, key, value).map(Some),
            ("allOf", Value::Array(items)) => {
                for at in 0..items.len() {
                    if let Some(below) = self.document.below(place, &format!("/allOf/{at}")) {
                        let schema = self.schema(below, 0)?;
                        if self.is_empty(schema)? {
                            return Ok(Some(below));
                        }
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}
