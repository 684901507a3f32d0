//! Schemas in normal form that llguidance's own compiler of JSON Schemas cannot write: objects whose keys come in any
//! order, arrays of different items, and numbers whose text has a pattern.
//!
//! Objects and arrays become [`Members`]. What needs none of that stays a schema, and llguidance compiles it. O(schema).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::lowering::description::Whitespace;
use crate::lowering::lark::{Writer, literal, regex};
use crate::lowering::members::{BITS, Members, Rules, all};
use crate::lowering::pattern::whole;
use crate::lowering::special::{ANY_NAME, is_special_itself, is_text_of_number};
use crate::lowering::strings::Strings;
use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

type Object = Map<String, Value>;

/// A key as it is written in one way only: what may stand for itself does.
const KEY: &str = r#"/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt]|\\u00(0[0-7be]|1[0-9a-f]|7f))*"/"#;

/// The rules of one schema.
pub(crate) struct Schemas<'a> {
    writer: &'a mut Writer,
    definitions: Object,
    /// The rules of definitions, by name.
    rules: BTreeMap<String, String>,
    /// Definitions that llguidance cannot compile itself.
    special: Vec<String>,
    strings: Strings,
    any_order: bool,
    options: Value,
    white: Option<&'static str>,
    comma: &'static str,
    colon: &'static str,
}

/// Writes the rules of a schema in normal form; gives an expression for it. None if llguidance compiles all of it.
/// `options` go to llguidance with each part that it compiles.
///
/// # Errors
/// An object has too many keys for any order.
pub(crate) fn write(
    writer: &mut Writer,
    schema: &Value,
    any_order: bool,
    whitespace: Whitespace,
    options: &Value,
) -> Result<Option<String>, Refusal> {
    let definitions = schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    let (white, comma, colon) = match whitespace {
        Whitespace::SingleLine => (None, ", ", ": "),
        Whitespace::Compact => (None, ",", ":"),
        Whitespace::Flexible => (Some(r"[ \t\r\n]{0,32}"), ",", ":"),
    };
    let mut schemas = Schemas {
        writer,
        definitions,
        rules: BTreeMap::new(),
        special: Vec::new(),
        strings: Strings::default(),
        any_order,
        options: options.clone(),
        white,
        comma,
        colon,
    };
    schemas.find_special();
    if !schemas.is_special(schema) {
        return Ok(None);
    }
    let mut root = schema.as_object().cloned().unwrap_or_default();
    root.remove("$defs");
    schemas.expression(&Value::Object(root)).map(Some)
}

impl Schemas<'_> {
    /// Definitions that name special ones are special too.
    fn find_special(&mut self) {
        loop {
            let known = self.special.len();
            let found: Vec<String> = self
                .definitions
                .iter()
                .filter(|(name, value)| !self.special.contains(name) && self.is_special(value))
                .map(|(name, _)| name.clone())
                .collect();
            self.special.extend(found);
            if self.special.len() == known {
                return;
            }
        }
    }

    /// Whether some part of a schema is written here.
    fn is_special(&self, schema: &Value) -> bool {
        let Some(schema) = schema.as_object() else { return false };
        let own = is_special_itself(schema)
            || self.any_order
                && schema.get("properties").and_then(Value::as_object).is_some_and(|keys| !keys.is_empty())
            || target(schema).is_some_and(|name| self.special.iter().any(|known| known == name));
        own || schema.iter().any(|(key, value)| match (key.as_str(), value) {
            ("$defs" | "enum" | "const" | "required", _) => false,
            ("properties" | "patternProperties", Value::Object(parts)) => {
                parts.values().any(|part| self.is_special(part))
            }
            (_, Value::Array(parts)) => parts.iter().any(|part| self.is_special(part)),
            (_, part) => self.is_special(part),
        })
    }

    fn expression(&mut self, schema: &Value) -> Result<String, Refusal> {
        let object = match schema.as_object() {
            Some(object) if self.is_special(schema) => object,
            _ => return self.leaf(schema),
        };
        if let Some(name) = target(object) {
            return self.definition(name);
        }
        if let Some(options) = object.get("anyOf").and_then(Value::as_array) {
            return self.any_of(options);
        }
        if is_text_of_number(object) {
            let number = whole(object.get("pattern").and_then(Value::as_str).unwrap_or_default())?;
            return self.writer.define("T", &regex(&number.to_string()));
        }
        match object.get("type").and_then(Value::as_str) {
            Some("array") if object.contains_key("uniqueItems") => {
                let values = object.get("items").and_then(values_of).filter(|values| values.len() <= BITS);
                match values {
                    Some(values) if !object.contains_key("prefixItems") => self.distinct(object, &values),
                    _ => self.array(object),
                }
            }
            Some("array") => self.array(object),
            Some("string") => self.strings.write(self.writer, object),
            Some("object") => self.object(object),
            _ => Err(refusal("the schema's normal form has a part without a type")),
        }
    }

    fn definition(&mut self, name: &str) -> Result<String, Refusal> {
        if let Some(rule) = self.rules.get(name) {
            return Ok(rule.clone());
        }
        let rule = self.writer.reserve()?;
        self.rules.insert(name.to_owned(), rule.clone());
        let value = self.definitions.get(name).cloned().unwrap_or_default();
        let body = self.expression(&value)?;
        self.writer.write(&rule, &body);
        Ok(rule)
    }

    fn any_of(&mut self, options: &[Value]) -> Result<String, Refusal> {
        let (special, plain): (Vec<_>, Vec<_>) = options.iter().partition(|option| self.is_special(option));
        let mut rules = Vec::new();
        if !plain.is_empty() {
            rules.push(self.leaf(&json!({ "anyOf": plain }))?);
        }
        for option in special {
            rules.push(self.expression(option)?);
        }
        self.writer.define("r", &rules.join(" | "))
    }

    /// What llguidance compiles, with the definitions that it needs.
    fn leaf(&mut self, schema: &Value) -> Result<String, Refusal> {
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        let mut needed = Object::new();
        let mut todo = vec![Value::Object(schema.clone())];
        while let Some(value) = todo.pop() {
            if let Some(name) = value.as_object().and_then(target)
                && !needed.contains_key(name)
                && let Some(definition) = self.definitions.get(name)
            {
                needed.insert(name.to_owned(), definition.clone());
                todo.push(definition.clone());
            }
            match value {
                Value::Array(parts) => todo.extend(parts),
                Value::Object(parts) => todo.extend(parts.into_iter().map(|(_, part)| part)),
                _ => {}
            }
        }
        if !needed.is_empty() {
            schema.insert("$defs".to_owned(), Value::Object(needed));
        }
        schema.insert("x-guidance".to_owned(), self.options.clone());
        self.writer.define("r", &format!("%json {}", Value::Object(schema)))
    }

    /// A terminal of a text with white space around it where any may come.
    fn mark(&mut self, before: bool, text: &str, after: bool) -> Result<String, Refusal> {
        let text = literal(text);
        let Some(white) = self.white else { return Ok(text) };
        let white = format!("/{white}/");
        let parts = [before.then_some(white.as_str()), Some(text.as_str()), after.then_some(white.as_str())];
        self.writer.define("T", &parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }

    fn array(&mut self, array: &Object) -> Result<String, Refusal> {
        let count = |key: &str| array.get(key).and_then(Value::as_u64);
        let (min, max) = (count("minItems").unwrap_or(0), count("maxItems"));
        let (open, comma, close) =
            (self.mark(false, "[", true)?, self.mark(true, self.comma, true)?, self.mark(true, "]", false)?);
        let prefix = array.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default();
        let rest = array.get("items").cloned().unwrap_or(json!({}));
        let (first, unique) = (prefix.len() as u64, array.contains_key("uniqueItems"));
        // The rest after each number of items, the last first.
        let mut tail = close.clone();
        if rest != json!(false) && max.is_none_or(|max| max > first) {
            let mut item = self.expression(&rest)?;
            if unique {
                item = self.writer.different_item(&item)?;
            }
            let (alone, behind) =
                listed(&item, &comma, &close, min.saturating_sub(first), max.map(|max| max - first));
            tail = if first == 0 { alone } else { behind };
        }
        for (at, item) in prefix.iter().enumerate().rev() {
            let mut item = self.expression(item)?;
            if unique {
                item = self.writer.different_item(&item)?;
            }
            let between = if at == 0 { "" } else { comma.as_str() };
            let rest = self.writer.define("r", &tail)?;
            let ends = if min <= at as u64 { format!("{close} | ") } else { String::new() };
            tail = format!("{ends}{between} {item} {rest}");
        }
        let tail = self.writer.define("r", &tail)?;
        self.writer.define("r", &format!("{open} {tail}"))
    }

    /// An array of different items from a list of values: a rule whose parameter has those that have come.
    fn distinct(&mut self, array: &Object, values: &[Value]) -> Result<String, Refusal> {
        let count = |key: &str| array.get(key).and_then(Value::as_u64);
        let bits = format!("[0:{}]", values.len());
        let room = count("maxItems").filter(|max| (*max as usize) < values.len());
        let enough = count("minItems").map(|min| format!("bit_count_ge({bits}, {min})")).unwrap_or_default();
        let (open, comma, close) =
            (self.mark(false, "[", true)?, self.mark(true, self.comma, true)?, self.mark(true, "]", false)?);
        let mut items = Members::new(self.writer)?;
        for (bit, value) in values.iter().enumerate() {
            let value = self.leaf(&json!({ "enum": [value] }))?;
            let open = match room {
                Some(max) => format!("and(bit_clear({bit}), bit_count_lt({bits}, {max}))"),
                None => format!("bit_clear({bit})"),
            };
            items.add(&value, &format!("set_bit({bit})"), &open);
        }
        let items = items.write(self.writer, &comma, &close, &enough);
        self.writer.define("r", &format!("{open} {items}"))
    }

    /// An object.
    fn object(&mut self, object: &Object) -> Result<String, Refusal> {
        let count = |key: &str| object.get(key).and_then(Value::as_u64);
        let properties = object.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        let keys: Vec<(&String, &Value)> =
            properties.iter().filter(|(_, value)| **value != json!(false)).collect();
        let required = object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let required: BTreeSet<&str> = required.iter().filter_map(Value::as_str).collect();
        let required: Vec<usize> =
            (0..keys.len()).filter(|at| required.contains(keys[*at].0.as_str())).collect();
        let least = count("minProperties").unwrap_or(0).saturating_sub(required.len() as u64);
        let most = count("maxProperties").map(|most| most.saturating_sub(required.len() as u64));
        let others = if most == Some(0) { Vec::new() } else { self.others(object)? };
        if self.any_order && !keys.is_empty() && keys.len() + usize::from(least > 0) <= BITS {
            self.any_order(&keys, &required, &others, least > 0)
        } else {
            self.in_order(&keys, &required, &others, least, most)
        }
    }

    /// An object whose keys come in any order: a rule whose parameter has those that have come, and whether one of the
    /// others has, where one must.
    fn any_order(
        &mut self,
        keys: &[(&String, &Value)],
        required: &[usize],
        others: &[String],
        other: bool,
    ) -> Result<String, Refusal> {
        let (open, comma, close) =
            (self.mark(false, "{", true)?, self.mark(true, self.comma, true)?, self.mark(true, "}", false)?);
        let mut members = Members::new(self.writer)?;
        for (at, (name, value)) in keys.iter().enumerate() {
            let member = self.member(name, value)?;
            members.add(&member, &format!("set_bit({at})"), &format!("bit_clear({at})"));
        }
        let known = keys.len();
        for one in others {
            members.add(one, &if other { format!("set_bit({known})") } else { "_".to_owned() }, "");
        }
        let must = required.iter().copied().chain(other.then_some(known));
        let ended = all(must.map(|at| format!("bit_set({at})")));
        let members = members.write(self.writer, &comma, &close, &ended);
        self.writer.define("r", &format!("{open} {members}"))
    }

    /// An object whose keys come in the schema's order, and behind them at least `least` others and at most `most`: two rules
    /// for each key, one where it is the first.
    fn in_order(
        &mut self,
        keys: &[(&String, &Value)],
        required: &[usize],
        others: &[String],
        least: u64,
        most: Option<u64>,
    ) -> Result<String, Refusal> {
        let (open, comma, close) =
            (self.mark(false, "{", true)?, self.mark(true, self.comma, true)?, self.mark(true, "}", false)?);
        let (mut first, mut more) = (close.clone(), close.clone());
        if !others.is_empty() {
            let other = self.writer.define("r", &others.join(" | "))?;
            let (alone, behind) = listed(&other, &comma, &close, least, most);
            (first, more) = (self.writer.define("r", &alone)?, self.writer.define("r", &behind)?);
        }
        for (at, (name, value)) in keys.iter().enumerate().rev() {
            let member = format!("{} {more}", self.member(name, value)?);
            let passed = |next: &str| match required.binary_search(&at) {
                Ok(_) => String::new(),
                Err(_) => format!(" | {next}"),
            };
            let (before, behind) = (passed(&first), passed(&more));
            first = self.writer.define("r", &format!("{member}{before}"))?;
            more = self.writer.define("r", &format!("{comma} {member}{behind}"))?;
        }
        self.writer.define("r", &format!("{open} {first}"))
    }

    /// A key and its value. The colon is a lexeme of its own: in another case of the schema the same key may be one of the
    /// others.
    fn member(&mut self, name: &str, value: &Value) -> Result<String, Refusal> {
        let colon = self.mark(true, self.colon, true)?;
        let key = literal(&Value::String(name.to_owned()).to_string());
        Ok(format!("{key} {colon} {}", self.expression(value)?))
    }

    /// The members besides known ones: their names and values.
    fn others(&mut self, object: &Object) -> Result<Vec<String>, Refusal> {
        let mut out = Vec::new();
        let colon = self.mark(true, self.colon, true)?;
        let patterns =
            object.get("patternProperties").and_then(Value::as_object).cloned().unwrap_or_default();
        let mut others: Vec<(String, Value)> = patterns.into_iter().collect();
        match object.get("additionalProperties") {
            Some(Value::Bool(false)) => {}
            value => others.push((ANY_NAME.to_owned(), value.cloned().unwrap_or(json!({})))),
        }
        for (pattern, value) in others {
            let name = if let Some(names) = object.get("propertyNames") {
                // There are no others then, and these leave out the known ones.
                self.leaf(names)?
            } else if pattern == ANY_NAME {
                let known = object.get("properties").and_then(Value::as_object).into_iter().flatten();
                let known: Vec<_> =
                    known.map(|(name, _)| literal(&Value::String(name.clone()).to_string())).collect();
                let but =
                    if known.is_empty() { String::new() } else { format!(" & ~({})", known.join(" | ")) };
                self.writer.define("T", &format!("{KEY}{but}"))?
            } else {
                self.leaf(&json!({"type": "string", "pattern": pattern}))?
            };
            let value = self.expression(&value)?;
            out.push(format!("{name} {colon} {value}"));
        }
        Ok(out)
    }
}

/// From `min` to `max` items with `comma` between them and `end` behind: where none has come, and behind another one.
fn listed(item: &str, comma: &str, end: &str, min: u64, max: Option<u64>) -> (String, String) {
    let more = |done: u64| {
        let least = min.saturating_sub(done);
        match max.map(|max| max - done) {
            Some(0) => String::new(),
            Some(most) => format!("({comma} {item}){{{least},{most}}}"),
            None => format!("({comma} {item}){{{least},}}"),
        }
    };
    let optional = if min == 0 { "?" } else { "" };
    (format!("({item} {}){optional} {end}", more(1)), format!("{} {end}", more(0)))
}

/// All values of a schema in normal form, where it lists them.
fn values_of(schema: &Value) -> Option<Vec<Value>> {
    match schema.get("type").and_then(Value::as_str) {
        Some("null") => return Some(vec![Value::Null]),
        Some("boolean") => return Some(vec![json!(false), json!(true)]),
        Some(_) => return None,
        None => {}
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(values.clone());
    }
    let options = schema.get("anyOf").and_then(Value::as_array)?;
    let values: Vec<_> = options.iter().map(values_of).collect::<Option<_>>()?;
    Some(values.into_iter().flatten().collect())
}

/// The name of the definition that a schema refers to.
fn target(schema: &Object) -> Option<&str> {
    schema.get("$ref").and_then(Value::as_str)?.strip_prefix("#/$defs/")
}
