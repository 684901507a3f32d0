//! JSON as Python's `json.dumps` writes it. O(length of the text), and fuel for every byte.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use crate::numbers::{self, BigInteger};

/// Deeper values are refused, before they take the stack.
const MAX_DEPTH: usize = 500;
const MAX_INDENT: i64 = 100;
/// Bytes for one fuel: writing JSON takes longer than copying bytes.
const BYTES_PER_FUEL: usize = 8;

/// How JSON is written.
pub(crate) struct Layout {
    ensure_ascii: bool,
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort_keys: bool,
}

impl Layout {
    /// Takes the arguments of `json.dumps`.
    pub(crate) fn new(
        ensure_ascii: bool,
        indent: &Value,
        separators: &Value,
        sort_keys: bool,
    ) -> Result<Self, Error> {
        let indent = match (indent.as_str(), indent.as_i64()) {
            _ if is_absent(indent) => None,
            (Some(text), _) if text.len() as i64 <= MAX_INDENT => Some(text.to_owned()),
            (None, Some(columns)) if columns <= MAX_INDENT => Some(" ".repeat(columns.max(0) as usize)),
            _ => return Err(invalid(format!("tojson indents by at most {MAX_INDENT} characters"))),
        };
        let (between_items, after_key) = if is_absent(separators) {
            (if indent.is_some() { "," } else { ", " }.into(), ": ".into())
        } else {
            let texts: Vec<Value> = separators.try_iter()?.collect();
            match &texts[..] {
                [items, keys] if items.as_str().is_some() && keys.as_str().is_some() => {
                    (items.to_string(), keys.to_string())
                }
                _ => return Err(invalid("tojson takes two texts as separators".into())),
            }
        };
        Ok(Self { ensure_ascii, indent, between_items, after_key, sort_keys })
    }
}

/// Writes a value.
///
/// # Errors
///
/// A part of it has no JSON, it is too deep, or the fuel runs out.
pub(crate) fn dump(state: &State, value: &Value, layout: &Layout) -> Result<String, Error> {
    let mut writer = Writer { state, layout, text: String::new(), charged: 0 };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    layout: &'a Layout,
    text: String,
    charged: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.charge()?;
        if depth > MAX_DEPTH {
            return Err(invalid("the value is too deep for JSON".into()));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            _ if value.downcast_object_ref::<BigInteger>().is_some() => {
                self.text.push_str(&value.to_string())
            }
            kind => return Err(invalid(format!("a value of kind '{kind}' has no JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match numbers::float(value) {
            Some(float) if float.is_nan() => self.text.push_str("NaN"),
            Some(float) if float.is_infinite() => {
                self.text.push_str(if float < 0.0 { "-Infinity" } else { "Infinity" });
            }
            Some(float) => self.text.push_str(&numbers::repr(float)),
            None => self.text.push_str(&value.to_string()),
        }
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut is_empty = true;
        for item in value.try_iter()? {
            self.begin_item(is_empty, depth);
            is_empty = false;
            self.value(&item, depth + 1)?;
        }
        self.end(is_empty, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.layout.sort_keys {
            keys.sort();
        }
        self.text.push('{');
        for (number, key) in keys.iter().enumerate() {
            self.begin_item(number == 0, depth);
            self.key(key)?;
            let after_key = &self.layout.after_key;
            self.text.push_str(after_key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(keys.is_empty(), depth, '}');
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.text.push('"');
                self.value(key, 0)?;
                self.text.push('"');
            }
            kind => return Err(invalid(format!("a key of kind '{kind}' has no JSON"))),
        }
        Ok(())
    }

    fn begin_item(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            self.text.push_str(&self.layout.between_items);
        }
        self.new_line(depth + 1);
    }

    fn end(&mut self, is_empty: bool, depth: usize, bracket: char) {
        if !is_empty {
            self.new_line(depth);
        }
        self.text.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.layout.indent {
            self.text.push('\n');
            for _ in 0..depth {
                self.text.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        let mut plain = 0;
        for (at, character) in text.char_indices() {
            let escaped = match character {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                ' '..='~' => continue,
                _ if character >= ' ' && !self.layout.ensure_ascii => continue,
                _ => "",
            };
            self.text.push_str(&text[plain..at]);
            self.text.push_str(escaped);
            if escaped.is_empty() {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(self.text, "\\u{unit:04x}"); // a String takes everything
                }
            }
            plain = at + character.len_utf8();
        }
        self.text.push_str(&text[plain..]);
        self.text.push('"');
    }

    /// Pays for a value, and for what was written since the last one.
    fn charge(&mut self) -> Result<(), Error> {
        let bytes = self.text.len() - self.charged;
        self.charged = self.text.len();
        self.state.consume_fuel((1 + bytes / BYTES_PER_FUEL) as u64)
    }
}

fn is_absent(value: &Value) -> bool {
    value.is_none() || value.is_undefined()
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
