//! The places of a document's schemas and their names: `$id`, `$anchor`, `$dynamicAnchor`, JSON pointers.
//!
//! One walk over the places where a schema may stand; `enum`, `const`, `default` and unknown keywords are not entered,
//! so that an `$id` in them names nothing. Cost: the size of the document.

mod uri;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::{Limits, Refusal, Unenforceable};

/// A place in the document.
pub(crate) type Place = usize;

/// Which keywords mean what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Draft {
    Four,
    Six,
    Seven,
    Nineteen,
    Twenty,
}

pub(crate) struct PlaceInfo<'a> {
    pub value: &'a Value,
    /// From the root of the document, without the leading `#`.
    pub pointer: String,
    pub resource: usize,
}

/// What an `$id` names.
pub(crate) struct Resource {
    pub uri: String,
    pub root: Place,
    pub anchors: HashMap<String, Place>,
    pub dynamic: HashMap<String, Place>,
}

pub(crate) struct Document<'a> {
    pub places: Vec<PlaceInfo<'a>>,
    pub resources: Vec<Resource>,
    pub draft: Draft,
    /// Whether any `$dynamicRef` may depend on where it is reached from.
    pub has_dynamic: bool,
    /// What is not enforced of the document as a whole.
    pub warnings: Vec<String>,
    limits: Limits,
    by_pointer: HashMap<String, Place>,
    by_uri: HashMap<String, usize>,
    /// Names that several schemas have: generators copy them, and only a reference to one is a mistake.
    ambiguous: HashSet<String>,
}

const ONE: [&str; 12] = [
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];
const MANY: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// One step of a JSON pointer, escaped.
pub(crate) fn step(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn draft_of(uri: &str) -> Option<Draft> {
    let uri = uri.trim_end_matches('#').trim_start_matches("https://").trim_start_matches("http://");
    Some(match uri {
        "json-schema.org/draft-04/schema" => Draft::Four,
        "json-schema.org/draft-06/schema" => Draft::Six,
        "json-schema.org/draft-07/schema" => Draft::Seven,
        "json-schema.org/draft/2019-09/schema" => Draft::Nineteen,
        "json-schema.org/draft/2020-12/schema" | "json-schema.org/schema" => Draft::Twenty,
        // OpenAPI 3.1 names its own dialect, whose validation is that of 2020-12.
        "spec.openapis.org/oas/3.1/dialect/base" => Draft::Twenty,
        _ => return None,
    })
}

impl<'a> Document<'a> {
    /// Reads a schema; a dialect that is not known is read as 2020-12 if it may be ignored.
    pub(crate) fn new(
        root: &'a Value,
        limits: Limits,
        unenforceable: Unenforceable,
    ) -> Result<Self, Refusal> {
        let mut warnings = Vec::new();
        let draft = match root.get("$schema") {
            None => Draft::Twenty,
            Some(uri) => match (uri.as_str().and_then(draft_of), unenforceable) {
                (Some(draft), _) => draft,
                (None, Unenforceable::Ignore) if uri.is_string() => {
                    let uri = short(&uri.to_string());
                    warnings
                        .push(format!("'$schema' at #: the dialect {uri} is not known; 2020-12 is enforced"));
                    Draft::Twenty
                }
                (None, _) => {
                    let uri = short(&uri.to_string());
                    return Err(Refusal::Invalid(format!("'$schema' at #: the dialect {uri} is not known")));
                }
            },
        };
        let mut this = Document {
            places: Vec::new(),
            resources: Vec::new(),
            draft,
            has_dynamic: false,
            warnings,
            limits,
            by_pointer: HashMap::new(),
            by_uri: HashMap::new(),
            ambiguous: HashSet::new(),
        };
        let base = "json-schema:///".to_owned();
        this.resources.push(Resource {
            uri: base.clone(),
            root: 0,
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
        });
        this.by_uri.insert(base, 0);
        this.walk(root, String::new(), 0)?;
        Ok(this)
    }

    /// Adds the schema at `pointer` and all below it.
    fn walk(&mut self, value: &'a Value, pointer: String, resource: usize) -> Result<Place, Refusal> {
        let first = self.places.len();
        let mut names = 0;
        let mut todo = vec![(value, pointer, resource, 0)];
        while let Some((value, pointer, mut resource, depth)) = todo.pop() {
            if self.by_pointer.contains_key(&pointer) {
                continue;
            }
            names += pointer.len();
            if self.places.len() >= self.limits.schemas || names > self.limits.pointer_bytes {
                return Err(Refusal::TooLarge(format!(
                    "the schema at # is too large: it has more than {} parts, or their names are too long",
                    self.limits.schemas
                )));
            }
            if depth > self.limits.depth {
                return Err(Refusal::TooLarge(format!(
                    "the schema at #{} is nested too deeply",
                    short(&pointer)
                )));
            }
            let place = self.places.len();
            if let Some(object) = value.as_object() {
                resource = self.name(object, place, resource);
            }
            self.by_pointer.insert(pointer.clone(), place);
            if let Some(object) = value.as_object() {
                let mut below = Vec::new();
                children(object, &mut |steps, child| below.push((steps, child)));
                for (steps, child) in below.into_iter().rev() {
                    todo.push((child, format!("{pointer}{steps}"), resource, depth + 1));
                }
            }
            self.places.push(PlaceInfo { value, pointer, resource });
        }
        Ok(first)
    }

    /// Adds the names of a schema; returns the resource that it belongs to.
    fn name(&mut self, object: &Map<String, Value>, place: Place, resource: usize) -> usize {
        let mut resource = resource;
        let key = if self.draft == Draft::Four { "id" } else { "$id" };
        // Before 2019-09 a `$ref` hides all that stands beside it.
        let hidden = self.draft <= Draft::Seven && object.contains_key("$ref");
        if let Some(id) = object.get(key).and_then(Value::as_str).filter(|_| !hidden) {
            let (id, fragment) = id.split_once('#').unwrap_or((id, ""));
            if !id.is_empty() {
                let uri = uri::resolve(&self.resources[resource].uri, id);
                if place == 0 {
                    self.by_uri.insert(uri.clone(), 0);
                    self.resources[0].uri = uri;
                } else {
                    resource = self.resources.len();
                    if self.by_uri.insert(uri.clone(), resource).is_some() {
                        self.ambiguous.insert(uri.clone());
                    }
                    self.resources.push(Resource {
                        uri,
                        root: place,
                        anchors: HashMap::new(),
                        dynamic: HashMap::new(),
                    });
                }
            }
            if !fragment.is_empty() && self.draft <= Draft::Seven {
                self.resources[resource].anchors.insert(fragment.to_owned(), place);
            }
        }
        for (key, dynamic) in [("$anchor", false), ("$dynamicAnchor", true)] {
            if let Some(anchor) = object.get(key).and_then(Value::as_str) {
                self.resources[resource].anchors.insert(anchor.to_owned(), place);
                if dynamic {
                    self.resources[resource].dynamic.insert(anchor.to_owned(), place);
                }
            }
        }
        self.has_dynamic |= object.contains_key("$dynamicRef");
        resource
    }

    /// The place below `parent` after `steps` (escaped, each with its slash).
    pub(crate) fn below(&self, parent: Place, steps: &str) -> Option<Place> {
        self.by_pointer.get(&format!("{}{steps}", self.places[parent].pointer)).copied()
    }

    /// The schema that a reference at `from` refers to.
    pub(crate) fn lookup(&mut self, from: Place, reference: &str) -> Result<Place, Refusal> {
        let base = &self.resources[self.places[from].resource].uri;
        let whole = uri::resolve(base, reference);
        let (uri, fragment) = whole.split_once('#').unwrap_or((&whole, ""));
        let here = format!("'$ref' at #{}", short(&self.places[from].pointer));
        let resource = match self.by_uri.get(uri) {
            // It stays in its resource, whatever the name of that.
            _ if reference.starts_with('#') => self.places[from].resource,
            Some(_) if self.ambiguous.contains(uri) => {
                return Err(Refusal::Invalid(format!("{here}: {} names two schemas", short(reference))));
            }
            Some(&resource) => resource,
            None => {
                let reference = short(reference);
                return Err(Refusal::Elsewhere(format!("{here}: {reference} is not part of this document")));
            }
        };
        let root = self.resources[resource].root;
        let Some(fragment) = uri::percent_decoded(fragment) else {
            return Err(Refusal::Invalid(format!("{here}: {} is not a reference", short(reference))));
        };
        if fragment.is_empty() {
            return Ok(root);
        }
        let missing = format!("{here}: {} names no schema", short(reference));
        if !fragment.starts_with('/') {
            return match self.resources[resource].anchors.get(&fragment) {
                Some(&place) => Ok(place),
                None => Err(Refusal::Invalid(missing)),
            };
        }
        if let Some(place) = self.below(root, &fragment) {
            return Ok(place);
        }
        let Some(value) = self.places[root].value.pointer(&fragment) else {
            return Err(Refusal::Invalid(missing));
        };
        let pointer = format!("{}{fragment}", self.places[root].pointer);
        // The target is where no schema is expected: it belongs to the nearest enclosing resource.
        let mut around = fragment.as_str();
        let mut resource = resource;
        while let Some((shorter, _)) = around.rsplit_once('/') {
            around = shorter;
            if let Some(place) = self.below(root, around) {
                resource = self.places[place].resource;
                break;
            }
        }
        self.walk(value, pointer, resource)
    }
}

/// Calls `found` with each schema directly below and the steps to it.
pub(crate) fn children<'a>(object: &'a Map<String, Value>, found: &mut dyn FnMut(String, &'a Value)) {
    for (key, value) in object {
        let key = key.as_str();
        match value {
            Value::Object(_) | Value::Bool(_) if ONE.contains(&key) => found(format!("/{key}"), value),
            Value::Array(items) if MANY.contains(&key) => {
                for (at, item) in items.iter().enumerate() {
                    found(format!("/{key}/{at}"), item);
                }
            }
            Value::Object(map) if NAMED.contains(&key) => {
                for (name, item) in map {
                    if item.is_object() || item.is_boolean() {
                        found(format!("/{key}/{}", step(name)), item);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The text, cut to a length that an error may quote.
pub(crate) fn short(text: &str) -> String {
    if text.chars().count() <= 300 {
        return text.to_owned();
    }
    text.chars().take(300).chain("...".chars()).collect()
}
