//! The whole way: a schema in normal form is compiled by llguidance, and the grammar takes instances byte by byte.

mod formats;
mod hostile;
mod numbers;
mod random;
mod realistic;
mod refusals;
mod suite;

use json_schema_normal_form::{Normalized, Options, Refusal, Unenforceable, normalize};
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value, json};

/// Compiles schemas for a vocabulary of single bytes.
struct Bench {
    factory: ParserFactory,
}

impl Bench {
    fn new() -> Self {
        let env = ApproximateTokEnv::single_byte_env();
        let mut factory = ParserFactory::new(&env, Default::default(), &[]).unwrap();
        factory.quiet();
        Bench { factory }
    }

    /// A matcher for an schema in normal form, with the separators of Python's `json.dumps`.
    fn compile(&self, schema: &Value) -> Result<Matcher, String> {
        let mut schema = schema.clone();
        let options = JsonCompileOptions {
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            whitespace_flexible: false,
            json_allow_general_unicode_escapes: true,
            ..Default::default()
        };
        options.apply_to(&mut schema);
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema));
        let parser =
            self.factory.create_parser_from_init(grammar, 0, 0).map_err(|error| format!("{error:#}"))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(matcher),
        }
    }

    /// Whether `text` is a whole answer.
    fn accepts(matcher: &Matcher, text: &str) -> bool {
        let mut matcher = matcher.deep_clone();
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        matcher.try_consume_tokens(&tokens).is_ok_and(|taken| taken == tokens.len())
            && matcher.is_accepting().unwrap_or(false)
    }
}

fn normalized(schema: &Value) -> Result<Normalized, Refusal> {
    normalize(schema, &Options::default())
}

/// The normal form without what cannot be enforced.
fn without_unenforceable(schema: &Value) -> Result<Normalized, Refusal> {
    normalize(schema, &Options { unenforceable: Unenforceable::Ignore, ..Options::default() })
}

/// `value` as Python's `json.dumps` writes it (with `ensure_ascii=False`), numbers in plain form: whole ones without a
/// point, others without an exponent.
fn dumps(value: &Value) -> String {
    match value {
        Value::Number(number) => plain(&number.to_string()),
        Value::Array(items) => format!("[{}]", items.iter().map(dumps).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| format!("{}: {}", json!(name), dumps(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn plain(text: &str) -> String {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{part}");
    let point = whole.len() as i64 + exponent.trim_start_matches('+').parse::<i64>().unwrap();
    let (whole, part) = if point <= 0 {
        ("0".to_owned(), format!("{}{digits}", "0".repeat(-point as usize)))
    } else if point as usize >= digits.len() {
        (format!("{digits}{}", "0".repeat(point as usize - digits.len())), String::new())
    } else {
        (digits[..point as usize].to_owned(), digits[point as usize..].to_owned())
    };
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    match part.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        part => format!("{sign}{whole}.{part}"),
    }
}

/// The same value with the keys of its objects in other orders, up to `limit` of them.
fn orders(value: &Value, limit: usize) -> Vec<Value> {
    let mut out = match value {
        Value::Array(items) => {
            let mut all = vec![Vec::new()];
            for item in items {
                all = cross(&all, &orders(item, limit), limit, |list, item| {
                    let mut list = list.clone();
                    list.push(item.clone());
                    list
                });
            }
            all.into_iter().map(Value::Array).collect()
        }
        Value::Object(members) => {
            let names: Vec<&String> = members.keys().collect();
            let mut all = Vec::new();
            for order in permutations(names.len(), limit) {
                let mut some = vec![serde_json::Map::new()];
                for at in order {
                    some = cross(&some, &orders(&members[names[at]], limit), limit, |map, value| {
                        let mut map = map.clone();
                        map.insert(names[at].clone(), value.clone());
                        map
                    });
                }
                all.extend(some.into_iter().map(Value::Object));
            }
            all
        }
        other => vec![other.clone()],
    };
    out.truncate(limit);
    out
}

fn cross<A, B>(all: &[A], each: &[B], limit: usize, join: impl Fn(&A, &B) -> A) -> Vec<A> {
    all.iter().flat_map(|a| each.iter().map(move |b| (a, b))).take(limit).map(|(a, b)| join(a, b)).collect()
}

fn permutations(count: usize, limit: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for next in 0..count {
        all = all
            .iter()
            .flat_map(|order| {
                (0..=order.len()).rev().map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, next);
                    order
                })
            })
            .take(limit)
            .collect();
    }
    all
}

/// Whether `value` can be written in some order of its keys.
fn can_write(matcher: &Matcher, value: &Value) -> bool {
    orders(value, 800).iter().any(|value| Bench::accepts(matcher, &dumps(value)))
}
