//! Makes one case of those that differ in one property only, so that independent choices do not multiply.
//!
//! ```text
//!  (a: 1, b: 1) (a: 1, b: 2) (a: 2, b: 1) (a: 2, b: 2)  ──a──►  (a: 1 or 2, b: 1) (a: 1 or 2, b: 2)
//!                                                       ──b──►  (a: 1 or 2, b: 1 or 2)
//! ```
//!
//! Exact: a value is in one of two such cases if all else is as both say, and the property is as one of them says. Where
//! one of them does not require it, nor does the union. Cases that are evidently empty are left out.
//! O(cases times the square of their properties).

use std::collections::HashMap;
use std::rc::Rc;

use crate::Refusal;
use crate::expression::FALSE;
use crate::normal_form::case::{Case, ObjectCase};
use crate::normalizer::Normalizer;

/// Fewer cases are left as they are: a schema that is written with few is to be read with them.
pub(crate) const MERGED_ABOVE: usize = 64;
/// Objects with more properties are not compared.
const MAX_PROPERTIES: usize = 256;

impl Normalizer<'_> {
    /// The same values in fewer cases.
    pub(crate) fn merge(&mut self, cases: Vec<Case>) -> Result<Vec<Case>, Refusal> {
        self.merged = true;
        let mut objects = Vec::new();
        let mut out = Vec::new();
        for case in cases {
            match case {
                Case::Object(case) if self.lacks_value(&case)? => {}
                Case::Object(case) if case.properties.len() <= MAX_PROPERTIES => objects.push(case),
                other => out.push(other),
            }
        }
        let mut names: Vec<(u32, Rc<str>)> = Vec::new();
        if let Some(first) = objects.first() {
            names.extend(first.properties.iter().map(|(name, property)| (property.order, name.clone())));
        }
        names.sort_unstable();
        for (_, name) in names {
            objects = self.merge_by(objects, &name)?;
        }
        out.extend(objects.into_iter().map(Case::Object));
        Ok(out)
    }

    /// Whether a required property has no value, as one that two conditions both want to be their own.
    fn lacks_value(&mut self, case: &ObjectCase) -> Result<bool, Refusal> {
        for property in case.properties.values().filter(|property| property.required) {
            self.step()?;
            if self.is_empty(property.value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes one case of those that differ in the property `name` only; they keep the place of the first.
    fn merge_by(&mut self, cases: Vec<ObjectCase>, name: &Rc<str>) -> Result<Vec<ObjectCase>, Refusal> {
        let mut places: HashMap<ObjectCase, usize> = HashMap::new();
        let mut out: Vec<ObjectCase> = Vec::new();
        for case in cases {
            self.spend(1 + case.properties.len() / 8)?;
            let mut key = case.clone();
            let Some(property) = key.properties.get_mut(name) else {
                out.push(case);
                continue;
            };
            let (value, required) = (property.value, property.required);
            (property.value, property.required) = (FALSE, false);
            match places.get(&key) {
                Some(&at) => {
                    let known = out[at].properties.get_mut(name).expect("the keys are equal");
                    known.value = self.exprs.or(&[known.value, value]);
                    known.required &= required;
                }
                None => {
                    places.insert(key, out.len());
                    out.push(case);
                }
            }
        }
        Ok(out)
    }
}
