//! Random descriptions, most of them broken: each is refused or compiled in time, and no state panics.
//!
//! `PROPTEST_CASES` sets how many.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index as Pick, select};
use serde_json::{Value, json};

use crate::backends::tests::allowed;
use crate::compiler::compile_within;
use crate::context::GrammarContext;
use crate::context::tests::context;
use pyengine_grammar::Compiled;

/// More than any description of this size takes in a debug build on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const SOURCES: &[&str] = &[
    r#"{"kind":"json_schema","schema":{"type":"object","properties":{"a":{"type":"integer","minimum":-3},"b":{"enum":[1,"x",null]}},"required":["a"],"additionalProperties":false}}"#,
    r##"{"kind":"json_schema","schema":{"$defs":{"t":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"string","pattern":"^a+b$"}]},"maxItems":3}},"$ref":"#/$defs/t"},"whitespace":"flexible"}"##,
    r#"{"kind":"regex","pattern":"([a-z]+\\d{2,4}|x)*\\.[^\"]?"}"#,
    r#"{"kind":"choice","choices":["yes","no","maybe"]}"#,
    r#"{"kind":"lark","source":"start: \"a\" b* | /x+y/ \nb: \"(\" start \")\" | T\nT: /[0-9]+/ & ~/1.*/\n%ignore / /"}"#,
    r#"{"kind":"ebnf","source":"root ::= \"a\" b* | [x-z]+ \"y\"{2,3}\nb ::= \"(\" root \")\" | .\n"}"#,
    r#"{"kind":"sequence","parts":[{"kind":"free_text","until":["<tool>","ab"]},{"kind":"repeat","part":{"kind":"sequence","parts":[{"kind":"text","text":"<tool>"},{"kind":"json_object"}]},"max":3,"separator":{"kind":"text","text":"ab"}}]}"#,
    r#"{"kind":"any_of","options":[{"kind":"optional","part":{"kind":"json_value","whitespace":"compact"}},{"kind":"text","text":"a<tool>b"}]}"#,
];

fn shared() -> Arc<GrammarContext> {
    static CONTEXT: OnceLock<Arc<GrammarContext>> = OnceLock::new();
    CONTEXT.get_or_init(|| Arc::new(context(&["ab", "{\"", "\": ", "aa", "null"]))).clone()
}

fn source() -> impl Strategy<Value = String> {
    r#"[ab"'/<>\[\](){}|*+?.^$:=#%&~@_ \n\\0-9,é-]{0,40}"#
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({})),
        Just(json!(true)),
        select(vec!["string", "integer", "number", "boolean", "null", "array", "object", "x"])
            .prop_map(|kind| json!({"type": kind})),
        source().prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        (any::<i64>(), any::<f64>()).prop_map(|(low, high)| json!({"minimum": low, "maximum": high})),
        (any::<u8>(), any::<u8>())
            .prop_map(|(min, max)| json!({"type": "string", "minLength": min, "maxLength": max})),
        any::<i32>().prop_map(|factor| json!({"type": "number", "multipleOf": factor})),
        select(vec!["#", "#/$defs/a", "#/items", "x"]).prop_map(|target| json!({"$ref": target})),
        select(vec!["date", "uuid", "email", "ipv4", "?"]).prop_map(|format| json!({"format": format})),
        source().prop_map(|text| json!({"enum": [text, 1, null]})),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            (list(), select(vec!["anyOf", "allOf", "oneOf", "prefixItems"]))
                .prop_map(|(all, key)| json!({key: all})),
            (inner.clone(), any::<u8>(), any::<u8>()).prop_map(
                |(items, min, max)| json!({"type": "array", "items": items, "minItems": min, "maxItems": max})
            ),
            (inner.clone(), inner.clone(), source()).prop_map(|(a, b, pattern)| json!({
                "properties": {"a": a}, "patternProperties": {pattern: b}, "required": ["a", "b"]})),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| json!({"$defs": {"a": a}, "additionalProperties": b})),
            (inner.clone(), select(vec!["not", "if", "contains", "propertyNames"]))
                .prop_map(|(a, key)| json!({key: a})),
        ]
    })
}

fn description() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (schema(), select(vec!["refuse", "ignore"])).prop_map(
            |(schema, what)| json!({"kind": "json_schema", "schema": schema, "unenforceable": what})
        ),
        source().prop_map(|pattern| json!({"kind": "regex", "pattern": pattern})),
        source().prop_map(|source| json!({"kind": "lark", "source": format!("start: {source}")})),
        source().prop_map(|source| json!({"kind": "ebnf", "source": format!("root ::= {source}")})),
        source().prop_map(|text| json!({"kind": "text", "text": text})),
        prop::collection::vec(source(), 0..3).prop_map(|until| json!({"kind": "free_text", "until": until})),
        prop::collection::vec(source(), 0..4)
            .prop_map(|choices| json!({"kind": "choice", "choices": choices})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            list().prop_map(|parts| json!({"kind": "sequence", "parts": parts})),
            list().prop_map(|options| json!({"kind": "any_of", "options": options})),
            (inner.clone(), 0..3u32, prop::option::of(inner.clone())).prop_map(
                |(part, min, separator)| json!({"kind": "repeat", "part": part, "min": min, "separator": separator})
            ),
            (list(), list(), prop::option::of(inner.clone())).prop_map(|(required, optional, separator)| {
                json!({"kind": "any_order", "required": required, "optional": optional, "separator": separator})
            }),
        ]
    })
}

/// Compiles a description and walks through its grammar.
fn compile_and_walk(description: &[u8], picks: &[Pick]) -> Result<(), TestCaseError> {
    let context = shared();
    let compiled = match compile_within(&context, description, TIMEOUT) {
        Ok(compiled) => compiled,
        Err(refusal) => {
            prop_assert!(!refusal.message.is_empty() && !refusal.message.contains("longer than"));
            return Ok(());
        }
    };
    walk(&*compiled, picks)
}

fn walk(compiled: &dyn Compiled, picks: &[Pick]) -> Result<(), TestCaseError> {
    let tokens = shared().load().unwrap();
    let mut state = compiled.start();
    for pick in picks {
        let mask = allowed(&mut *state, &tokens);
        prop_assert!(!mask.is_empty() && mask.iter().all(|token| (*token as usize) < tokens.vocab_size()));
        let mut drafted = Vec::new();
        state.forced_tokens(30, &mut drafted);
        prop_assert!(drafted.len() <= 30);
        prop_assert_eq!(&allowed(&mut *state, &tokens), &mask, "forced tokens do not change the state");
        prop_assert!(drafted.iter().all(|token| state.advance(*token)));
        state.roll_back(drafted.len());
        if let Some(closing) = state.closing_tokens(20) {
            prop_assert!(closing.iter().all(|token| state.advance(*token)));
            let ended = !state.is_terminated() && state.advance(tokens.end_tokens()[0]);
            prop_assert!(state.is_terminated());
            state.roll_back(closing.len() + usize::from(ended));
        }
        let token = *pick.get(&mask);
        if !state.advance(token) {
            // Nothing comes after the end; anything else in the mask may come.
            prop_assert!(tokens.end_tokens().contains(&token) && state.is_terminated());
        } else if pick.index(5) == 0 {
            state.roll_back(1);
            prop_assert_eq!(&allowed(&mut *state, &tokens), &mask);
        }
    }
    Ok(())
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    prop::collection::vec(any::<Pick>(), 0..10)
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100), picks in picks()) {
        compile_and_walk(&bytes, &picks)?;
    }

    #[test]
    fn any_description(description in description(), picks in picks()) {
        compile_and_walk(description.to_string().as_bytes(), &picks)?;
    }

    #[test]
    fn any_slip(
        at in any::<Pick>(),
        slips in prop::collection::vec((any::<Pick>(), 0..4usize, source()), 0..4),
        picks in picks(),
    ) {
        let mut text: Vec<char> = at.get(SOURCES).chars().collect();
        for (at, length, insert) in slips {
            let at = at.index(text.len().max(1)).min(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, insert.chars().take(length));
        }
        compile_and_walk(text.into_iter().collect::<String>().as_bytes(), &picks)?;
    }
}

#[test]
fn the_sources_compile() {
    for source in SOURCES {
        let verdict = compile_within(&shared(), source.as_bytes(), TIMEOUT);
        assert!(verdict.is_ok(), "{source}: {}", verdict.err().unwrap().message);
    }
}
