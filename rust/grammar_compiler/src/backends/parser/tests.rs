//! Masks beside those of llguidance's own parser, token by token.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::backends::llguidance::Llguidance;
use crate::backends::tests::allowed;
use crate::cancellation::CancelToken;
use crate::context::Tokens;
use crate::context::limits;
use crate::context::tests::small;
use crate::lowering::description::Description;
use crate::lowering::{Lowered, lower};
use pyengine_grammar::Compiled;

/// llguidance's parser, as the reference.
struct Reference {
    parser: TokenParser,
    tokens: Arc<Tokens>,
    over: bool,
}

impl Reference {
    fn new(tokens: &Arc<Tokens>, lowered: &Lowered) -> anyhow::Result<Self> {
        let grammar = match lowered {
            Lowered::Json(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Lowered::Lark(source) => TopLevelGrammar::from_lark(source.clone()),
        };
        let able = InferenceCapabilities::default();
        let factory =
            ParserFactory::new(&tokens.environment(), able.clone(), &SlicedBiasComputer::json_slices())?;
        let (init, logger) = (GrammarInit::Serialized(grammar), Logger::new(0, 0));
        let mut parser = factory.create_parser_from_init_ext(init, logger, able, limits())?;
        parser.start_without_prompt();
        let over = parser.check_stop()?;
        Ok(Self { parser, tokens: tokens.clone(), over })
    }

    /// None where llguidance panics, as it does over some nested grammars.
    fn allowed(&mut self) -> Option<Vec<u32>> {
        let size = self.tokens.vocab_size() as u32;
        let ends = self.tokens.end_tokens();
        let mut mask: Vec<u32> = match self.over {
            true => vec![size],
            false => {
                catch_unwind(AssertUnwindSafe(|| self.parser.compute_mask().unwrap())).ok()?.iter().collect()
            }
        };
        if mask.last() == Some(&size) {
            mask.pop();
            mask.extend(ends);
            mask.sort_unstable();
            mask.dedup();
        }
        Some(mask)
    }

    fn advance(&mut self, token: u32) {
        assert_eq!(self.parser.consume_token(token).unwrap(), 0);
        self.over = self.parser.check_stop().unwrap();
    }
}

fn lowered(tokens: &Tokens, description: &Value) -> Lowered {
    let description = Description::parse(description.to_string().as_bytes()).unwrap();
    lower(description, tokens, &CancelToken::default(), &mut Vec::new())
        .unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

/// A vocabulary with tokens that cross lexemes in many ways.
fn vocabulary() -> Arc<Tokens> {
    small(&[
        "{\"",
        "\": ",
        "\": \"",
        "\", \"",
        "\"}",
        "\"},",
        "}, {\"",
        "]}",
        "\"]",
        "\"}]}",
        ", ",
        ": ",
        "true",
        "false",
        "null",
        " nul",
        "the",
        " cat",
        "name",
        "a\"",
        "abc",
        "\\n",
        "\\u00",
        "\\\"",
        "12",
        "345",
        "0.",
        "1e",
        "-1",
        "1,",
        "1}",
        "5, \"",
        "0]",
        "\u{e9}",
        "\u{4e2d}\u{6587}",
        "\"\u{e9}",
        "  ",
        " \n",
        "\n\n",
        "\t",
        "(",
        "((",
        "))",
        "ab",
        "ba",
        "aaaaaaaaaaaa",
        "the quick brown fox jumps over the lazy dog",
        "<to",
        "ol>",
        "xyz",
        "2024-",
        "-0",
        "T1",
        ":00",
        "/a",
        "x\", \"y",
        "[[",
        "]]",
        "[{\"",
        "}]",
        "},",
        "}}",
        "key1",
        "key1\": ",
        "tail\"",
    ])
}

fn object(properties: Value, required: &[&str], more: bool) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": more})
}

fn descriptions() -> Vec<Value> {
    let schema = |schema: Value, whitespace: &str| json!({"kind": "json_schema", "schema": schema, "whitespace": whitespace});
    let short = json!({"type": "string", "minLength": 1, "maxLength": 12});
    let record = object(
        json!({"a": {"type": "integer", "minimum": 1, "maximum": 999}, "name": short, "when": {"type": "string", "format": "date"},
            "kind": {"enum": ["open", "in progress", "the", "cat"]}, "amount": {"type": "number", "minimum": 0},
            "tags": {"type": "array", "items": short, "minItems": 1, "maxItems": 4}, "ok": {"type": "boolean"},
            "notes": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
        &["a", "name", "kind"],
        false,
    );
    let tree = json!({"$defs": {"t": object(json!({"value": {"type": "number"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/t"}}}), &["value"], true)}, "$ref": "#/$defs/t"});
    let json = |inner: Value| schema(inner, "compact");
    let text = |text: &str| json!({"kind": "text", "text": text});
    let sequence = |parts: Vec<Value>| json!({"kind": "sequence", "parts": parts});
    let call = sequence(vec![text("<tool>\n"), schema(record.clone(), "single_line"), text("\n</tool>")]);
    let lark = |source: &str| json!({"kind": "lark", "source": source});
    vec![
        schema(json!({"type": "array", "items": record, "minItems": 3}), "single_line"),
        schema(record.clone(), "flexible"),
        schema(tree.clone(), "compact"),
        schema(tree, "flexible"),
        json!({"kind": "json_object"}),
        json!({"kind": "json_value", "whitespace": "flexible"}),
        json(object(json!({}), &[], true)),
        json(
            json!({"type": "object", "patternProperties": {"^[a-c]+$": {"type": "integer"}}, "additionalProperties": short}),
        ),
        json(object(
            (0..12)
                .map(|at| (format!("key{at}"), json!({"type": ["integer", "null"]})))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            &["key3"],
            false,
        )),
        json(
            json!({"oneOf": [object(json!({"kind": {"const": "a"}, "x": {"type": "number"}}), &["kind", "x"], false),
            object(json!({"kind": {"const": "ab"}, "y": short}), &["kind"], false)]}),
        ),
        json(json!({"type": "string", "pattern": "^(ab|ba)*x?[0-9]{2,5}$"})),
        json(
            json!({"type": "array", "prefixItems": [short, {"type": "integer", "multipleOf": 3}], "items": {"type": "boolean"}, "maxItems": 5}),
        ),
        json(
            json!({"type": "object", "properties": {"a": short, "b": short, "c": short}, "minProperties": 2, "additionalProperties": false}),
        ),
        sequence(vec![json!({"kind": "free_text", "until": ["<tool>"]}), call.clone()]),
        sequence(vec![
            json!({"kind": "free_text", "until": ["[call]"]}),
            json!({"kind": "repeat", "part": sequence(vec![text("[call]"), schema(record, "flexible"), text("[/call]")]),
                "separator": text("\n")}),
        ]),
        json!({"kind": "any_of", "options": [call, {"kind": "choice", "choices": ["yes", "ye", "the cat"]}, {"kind": "json_value"}]}),
        lark("start: \"(\" start \")\" | \"a\" | start start"),
        lark("start: s\ns: s \"b\" | \"a\" s? | NUMBER \",\" s\nNUMBER: /[0-9]+/\n%ignore /[ \\t]/"),
        lark("%llguidance {\"ignore_once\": true}\nstart: \"a\" start | \"abc\" | \"12\"\n%ignore /[ \\n]/"),
        lark(
            "start: \"a\" inner* \"xyz\"\ninner: %json {\"type\": \"array\", \"items\": {\"type\": \"integer\"}}\n%ignore / /",
        ),
        lark(
            "start: \"a\" inner \"b\" inner\ninner: %json {\"type\": [\"integer\", \"object\"], \"x-guidance\": {\"whitespace_pattern\": \"[ ]\"}}",
        ),
        lark("start: (\"ab\" | <[2]> \"the\" | <[2-3]>)* \"xyz\" <[3]>?"),
        lark(
            "start: \"[\" %lark {\nstart: WORD (\",\" WORD)*\nWORD: /[a-z]+/\n%ignore /\\n/\n} \"]\" /\\d{2,4}/\n%ignore /[ \\t]+/",
        ),
        lark("start: lazy \"!\" tail\nlazy[lazy]: /[a-z ]*x/\ntail[suffix=\"ab\"]: /[^b]*/"),
        lark("start: key{5}\nkey: /[a-z]/ | \"key1\" \": \" /[0-9]+/ \", \""),
        lark(
            "start: perm::0x0\nperm::_: \"\" %if is_ones([0:3])\n  | \"a\" perm::set_bit(0) %if bit_clear(0)\n  | \"b\" perm::set_bit(1) %if bit_clear(1)\n  | \"12\" perm::set_bit(2) %if bit_clear(2)",
        ),
    ]
}

/// Walks through a grammar, choosing by `picks`; both parsers allow the same all the way.
fn walk(
    tokens: &Arc<Tokens>,
    compiled: &Llguidance,
    mut reference: Reference,
    picks: &[Index],
) -> Result<(), TestCaseError> {
    let (mut state, mut masks, mut taken) = (compiled.start(), Vec::new(), Vec::new());
    for pick in picks {
        let mask = allowed(&mut *state, tokens);
        let Some(expected) = reference.allowed() else { break };
        prop_assert_eq!(&mask, &expected, "after {:?}", spelled(tokens, &taken));
        prop_assert_eq!(state.is_terminated(), reference.over);
        let may =
            mask.iter().copied().filter(|token| !tokens.end_tokens().contains(token)).collect::<Vec<_>>();
        masks.push(mask);
        if may.is_empty() {
            break;
        }
        // Short tokens are the most, but long ones cross the lexemes.
        let long: Vec<u32> =
            may.iter().copied().filter(|token| tokens.text_bytes(*token).len() != 1).collect();
        let among = if pick.index(4) > 0 && !long.is_empty() { &long } else { &may };
        let token = *pick.get(among);
        prop_assert!(state.advance(token));
        reference.advance(token);
        taken.push(token);
    }
    // A second request finds the masks of the first, also where drafts are taken back.
    let mut again = compiled.start();
    for (token, mask) in taken.iter().zip(&masks) {
        prop_assert_eq!(&allowed(&mut *again, tokens), mask);
        prop_assert!(again.advance(*token));
    }
    for mask in masks[..taken.len()].iter().rev() {
        again.roll_back(1);
        prop_assert_eq!(&allowed(&mut *again, tokens), mask);
    }
    Ok(())
}

fn spelled(tokens: &Tokens, ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| match tokens.special_name(*id) {
        Some(name) => name.as_bytes(),
        None => tokens.text_bytes(*id),
    });
    String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn masks_are_those_of_llguidance(
        description in select(descriptions()), picks in prop::collection::vec(any::<Index>(), 1..60),
        prepared in any::<bool>()
    ) {
        static TOKENS: std::sync::OnceLock<Arc<Tokens>> = std::sync::OnceLock::new();
        let tokens = TOKENS.get_or_init(vocabulary);
        let lowered = lowered(tokens, &description);
        let compiled = Llguidance::compile(tokens, lowered.clone(), Vec::new());
        let reference = Reference::new(tokens, &lowered);
        match (compiled, reference) {
            (Ok(compiled), Ok(reference)) => {
                if prepared {
                    compiled.warm(&|| false);
                }
                walk(tokens, &compiled, reference, &picks)?;
            }
            (Err(_), Err(_)) => {}
            (compiled, reference) => prop_assert!(
                false, "{description}: {:?}, {:?}", compiled.err(), reference.err().map(|error| error.to_string())
            ),
        }
    }
}

#[test]
fn likely_texts_find_their_masks_prepared() {
    let tokens = vocabulary();
    let schema =
        object(json!({"name": {"type": "string"}, "key1": {"type": "integer"}}), &["name", "key1"], false);
    let lowered = lowered(&tokens, &json!({"kind": "json_schema", "schema": schema}));
    let text = r#"{"name": "the cat", "key1": 345}"#;
    let ids = tokens.trie().greedy_tokenize(text.as_bytes());
    for prepared in [false, true] {
        let compiled = Llguidance::compile(&tokens, lowered.clone(), Vec::new()).unwrap();
        if prepared {
            compiled.warm(&|| false);
        }
        let mut state = compiled.start();
        let known = ids.iter().filter(|id| {
            let known = state.known_mask().is_some();
            assert!(state.advance(**id));
            known
        });
        // Compiling makes the first mask, and finds that within `name`.
        assert_eq!(known.count(), if prepared { ids.len() } else { 2 });
    }
    let compiled = Llguidance::compile(&tokens, lowered, Vec::new()).unwrap();
    compiled.warm(&|| true);
    let mut state = compiled.start();
    assert!(ids[..2].iter().all(|id| state.advance(*id)) && state.known_mask().is_none());
}

#[test]
fn masks_within_literals_are_there_once_compiled() {
    let tokens = vocabulary();
    let schema = json!({"const": "the cat is the one that is there"});
    let lowered = lowered(&tokens, &json!({"kind": "json_schema", "schema": schema}));
    let mut state = Llguidance::compile(&tokens, lowered, Vec::new()).unwrap().start();
    for id in tokens.trie().greedy_tokenize(br#""the cat is the one that is"#) {
        assert!(state.known_mask().is_some_and(|mask| mask.has(id)));
        assert!(state.advance(id));
    }
}

#[test]
fn states_of_texts_that_must_come_are_there_once_compiled() {
    let tokens = vocabulary();
    let schema = object(
        json!({"name": {"type": "string"}, "key1": {"type": "boolean"}, "key2": {"type": "integer"}}),
        &["name", "key1", "key2"],
        false,
    );
    let lowered = lowered(&tokens, &json!({"kind": "json_schema", "schema": schema}));
    let compiled = Llguidance::compile(&tokens, lowered, Vec::new()).unwrap();
    let mut parser = compiled.parser();
    let made = |parser: &super::Parser| (parser.lexer_states(), parser.rows());
    let before = made(&parser);
    for byte in br#"{"name": "", "key1": false, "key2": 0}"# {
        assert!(parser.take_byte(*byte).unwrap());
        assert_eq!(made(&parser), before, "{:?}", char::from(*byte));
    }
    assert!(parser.is_over());
}

#[test]
fn all_descriptions_compile() {
    let tokens = vocabulary();
    for description in descriptions() {
        let compiled = Llguidance::compile(&tokens, lowered(&tokens, &description), Vec::new());
        assert!(compiled.is_ok(), "{description}: {}", compiled.err().unwrap().message);
    }
}
