//! Lowers a description to the input of llguidance: a JSON Schema, or Lark.
//!
//! ```text
//!  sequence
//!  ├ free_text until <tool>        T3: text without <tool>
//!  └ repeat                   ──►  T4: T3 "<tool>"
//!    └ sequence                    start: T3 | T4 r1 ...
//!      ├ text <tool>
//!      ├ json_schema               r1: %json {...} ...
//!      └ text </tool>
//! ```
//!
//! Each part becomes a [node](Node), and [`lark`] writes nodes as rules. O(description), besides schemas and the output.

pub(crate) mod description;
pub(crate) mod ebnf;
mod json;
pub(crate) mod lark;
pub(crate) mod limits;
mod members;
pub(crate) mod pattern;
mod special;
mod strings;
mod unchanged;

use json_schema_normal_form::{Compiler, Limits, Options, Refusal as Refused, normalize};
use serde_json::{Value, json};

use crate::cancellation::CancelToken;
use crate::context::Tokens;
use crate::lowering::description::{Description, KeyOrder, Whitespace};
use crate::lowering::lark::{Lexeme, Node, Writer, literal, regex};
use crate::lowering::limits::{MAX_OPTIONAL, MAX_PROPERTIES, check_lark, check_schema};
use crate::lowering::members::BITS;
use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// The input of llguidance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Lowered {
    /// A JSON Schema with its separators.
    Json(Value),
    /// A grammar.
    Lark(String),
}

/// Lowers a description; `warnings` get the keywords that are not enforced.
///
/// # Errors
/// The part that cannot be enforced.
pub(crate) fn lower(
    description: Description,
    tokens: &Tokens,
    cancel: &CancelToken,
    warnings: &mut Vec<String>,
) -> Result<Lowered, Refusal> {
    match description {
        Description::Lark { source } => {
            check_lark(&source)?;
            Ok(Lowered::Lark(source))
        }
        Description::JsonSchema { .. } | Description::JsonObject { .. } | Description::JsonValue { .. } => {
            let mut writer = Writer::default();
            Ok(match json_schema(description, &mut writer, cancel, warnings)? {
                Json::Schema(schema) => Lowered::Json(schema),
                Json::Rules(rule) => Lowered::Lark(writer.finish(Node::Opaque(rule))?),
            })
        }
        description => {
            let mut lowering = Lowering { tokens, cancel, warnings, writer: Writer::default() };
            let root = lowering.node(description)?;
            Ok(Lowered::Lark(lowering.writer.finish(root)?))
        }
    }
}

/// The state of lowering one description.
struct Lowering<'a> {
    tokens: &'a Tokens,
    cancel: &'a CancelToken,
    warnings: &'a mut Vec<String>,
    writer: Writer,
}

impl Lowering<'_> {
    fn node(&mut self, description: Description) -> Result<Node, Refusal> {
        match description {
            Description::Text { text } => self.text(&text),
            Description::Regex { pattern } => {
                let hir = pattern::whole(&pattern)?;
                let empty = hir.properties().minimum_len() == Some(0);
                self.writer.terminal(&regex(&hir.to_string()), Lexeme::closed(empty))
            }
            Description::Choice { choices } => {
                let body: Vec<_> = choices.iter().map(|choice| literal(choice)).collect();
                let empty = choices.iter().any(String::is_empty);
                self.writer.terminal(&body.join(" | "), Lexeme::closed(empty))
            }
            Description::FreeText { until } => self.free_text(&until),
            Description::Lark { source } => {
                check_lark(&source)?;
                Ok(Node::Opaque(format!("%lark {{\n{source}\n}}")))
            }
            Description::Ebnf { source } => ebnf::lower(&mut self.writer, &source),
            json @ (Description::JsonSchema { .. }
            | Description::JsonObject { .. }
            | Description::JsonValue { .. }) => {
                Ok(Node::Opaque(match json_schema(json, &mut self.writer, self.cancel, self.warnings)? {
                    Json::Schema(schema) => format!("%json {schema}"),
                    Json::Rules(rule) => rule,
                }))
            }
            Description::Sequence { parts } => {
                let parts = parts.into_iter().map(|part| self.node(part)).collect::<Result<Vec<_>, _>>()?;
                self.writer.joined(parts)
            }
            Description::AnyOf { options } => {
                let options =
                    options.into_iter().map(|option| self.node(option)).collect::<Result<Vec<_>, _>>()?;
                self.writer.any_of(options)
            }
            Description::Optional { part } => {
                let part = self.node(*part)?;
                self.writer.repeated(part, 0, Some(1), None)
            }
            Description::Repeat { part, min, max, separator } => {
                let part = self.node(*part)?;
                let separator = separator.map(|separator| self.node(*separator)).transpose()?;
                self.writer.repeated(part, min, max, separator)
            }
            Description::AnyOrder { required, optional, separator } => {
                let separator = separator.map(|separator| self.node(*separator)).transpose()?;
                let mut parts = Vec::new();
                for (part, is_required) in required
                    .into_iter()
                    .map(|part| (part, true))
                    .chain(optional.into_iter().map(|part| (part, false)))
                {
                    parts.push((self.node(part)?, is_required));
                }
                Ok(Node::AnyOrder { parts, separator: separator.map(Box::new) })
            }
        }
    }

    fn text(&mut self, text: &str) -> Result<Node, Refusal> {
        let mut parts = Vec::new();
        let mut at = 0;
        for (range, token) in self.tokens.find_special(text) {
            if at < range.start {
                parts.push(self.writer.terminal(&literal(&text[at..range.start]), Lexeme::fixed())?);
            }
            parts.push(Node::Token(token));
            at = range.end;
        }
        if at < text.len() {
            parts.push(self.writer.terminal(&literal(&text[at..]), Lexeme::fixed())?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    fn free_text(&mut self, until: &[String]) -> Result<Node, Refusal> {
        const ANY: &str = r"/(?s:.*)/";
        if until.is_empty() {
            return self.writer.terminal(ANY, Lexeme::free());
        }
        let until: Vec<_> = until.iter().map(|text| literal(text)).collect();
        let occurs = self.writer.define("T", &format!("{ANY} ( {} ) {ANY}", until.join(" | ")))?;
        self.writer.terminal(&format!("{ANY} & ~{occurs}"), Lexeme::free())
    }
}

/// How llguidance is to write JSON.
fn written(whitespace: Whitespace) -> Value {
    let mut options = match whitespace {
        Whitespace::SingleLine => {
            json!({"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false})
        }
        Whitespace::Compact => json!({"whitespace_flexible": false}),
        Whitespace::Flexible => json!({"whitespace_pattern": r"[ \t\r\n]{1,32}"}),
    };
    // A string may be written with escapes wherever JSON has them.
    options["json_allow_general_unicode_escapes"] = Value::Bool(true);
    options
}

/// A whole schema without the normal form; None of anything else, and where llguidance alone would not be exact.
pub(crate) fn as_it_came(description: &Description) -> Option<Lowered> {
    let Description::JsonSchema { schema, whitespace, key_order: KeyOrder::Schema, part, .. } = description
    else {
        return None;
    };
    let mut schema = unchanged::unchanged(schema).filter(|schema| part.is_empty() && schema.is_object())?;
    schema["x-guidance"] = written(*whitespace);
    check_schema(&schema).ok().map(|()| Lowered::Json(schema))
}

/// What is said about a schema that may have a name.
fn named(name: &Option<String>, said: String) -> String {
    match name {
        Some(name) => format!("{name}: {said}"),
        None => said,
    }
}

/// A JSON description for llguidance.
enum Json {
    /// A schema that it compiles whole.
    Schema(Value),
    /// An expression of rules that are written.
    Rules(String),
}

/// The schema of a JSON description, in normal form and with its white space; or its rules.
fn json_schema(
    description: Description,
    writer: &mut Writer,
    cancel: &CancelToken,
    warnings: &mut Vec<String>,
) -> Result<Json, Refusal> {
    let (schema, whitespace, name, any_order) = match description {
        Description::JsonSchema { schema, whitespace, unenforceable, name, key_order, part } => {
            let any_order = key_order == KeyOrder::Any;
            let compiler = Compiler {
                texts: true,
                distinct: true,
                names: true,
                any_order: any_order.then_some(BITS),
                names_apart: any_order,
            };
            let limits = Limits { properties: MAX_PROPERTIES, optional: MAX_OPTIONAL, ..Limits::default() };
            let cancelled = &|| cancel.check().is_err();
            let options = Options { unenforceable, compiler, limits, part: &part, cancelled };
            let normalized = |options: &Options<'_>| {
                let normal = normalize(&schema, options);
                normal.map(|mut normal| {
                    strings::mark(&mut normal.schema);
                    normal
                })
            };
            let mut normal = normalized(&options);
            if !any_order && normal.as_ref().is_ok_and(|normal| special::writes_patterns(&normal.schema)) {
                let compiler = Compiler { names_apart: true, ..compiler };
                normal = normalized(&Options { compiler, ..options });
            }
            cancel.check()?;
            let normal = normal.map_err(|refused| Refusal {
                too_much: matches!(refused, Refused::TooLarge(_) | Refused::Unenforceable(_)),
                ..refusal(named(&name, refused.to_string()))
            })?;
            check_schema(&normal.schema)
                .map_err(|refused| Refusal { message: named(&name, refused.message), ..refused })?;
            warnings.extend(normal.warnings.into_iter().map(|warning| named(&name, warning)));
            (normal.schema, whitespace, name, any_order)
        }
        Description::JsonObject { whitespace } => (json!({"type": "object"}), whitespace, None, false),
        Description::JsonValue { whitespace } => (json!({}), whitespace, None, false),
        _ => unreachable!("only JSON is given here"),
    };
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => return Err(refusal("#: no value is valid against the schema `false`")),
        _ => return Err(refusal("#: a JSON Schema is an object or a boolean")),
    };
    let options = written(whitespace);
    let rule = json::write(writer, &Value::Object(schema.clone()), any_order, whitespace, &options);
    let rule = rule.map_err(|refused| Refusal { message: named(&name, refused.message), ..refused })?;
    if let Some(rule) = rule {
        return Ok(Json::Rules(rule));
    }
    schema.insert("x-guidance".to_owned(), options);
    Ok(Json::Schema(Value::Object(schema)))
}
