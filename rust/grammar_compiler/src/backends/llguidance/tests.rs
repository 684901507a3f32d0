//! llguidance at its limits: long forced texts, a failure while looking ahead, large rows.

use super::*;
use crate::backends::tests::allowed;
use crate::context::tests::small;

pub(in super::super) fn from_schema(tokens: &Arc<Tokens>, schema: serde_json::Value) -> Llguidance {
    let compiled = Llguidance::compile(tokens, Lowered::Json(schema), Vec::new());
    compiled.unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

/// A grammar of one long text.
fn long(tokens: &Arc<Tokens>, length: usize) -> (Llguidance, String) {
    let text: String = (0..length).map(|at| char::from(b'a' + (at * at / 7 % 26) as u8)).collect();
    (from_schema(tokens, serde_json::json!({ "const": text })), text)
}

#[test]
fn a_long_text_is_forced_no_further_than_asked() {
    let tokens = small(&["ab", "the"]);
    let (grammar, text) = long(&tokens, 60_000);
    let mut state = grammar.state();
    let states = |state: &mut State| state.parser.lexer_states();
    for at in 0..12 {
        let before = states(&mut state);
        let mut drafted = Vec::new();
        state.forced_tokens(6, &mut drafted);
        assert_eq!(drafted.len(), 6);
        let spelled: Vec<u8> = drafted.iter().flat_map(|token| tokens.text_bytes(*token).to_vec()).collect();
        assert!(format!("\"{text}\"").as_bytes()[at..].starts_with(&spelled));
        assert!(states(&mut state) - before <= 100, "as many as the bytes that were looked at");
        assert!(allowed(&mut state, &tokens).contains(&drafted[0]));
        assert!(state.advance(tokens.byte_token(spelled[0]).unwrap()));
    }
    assert_eq!(state.failure(), None);
}

#[test]
fn states_of_a_long_answer_are_kept_for_the_next() {
    let tokens = small(&[]);
    let pattern = r"^(?:[^ ]+ +){0,2999}[^ ]+$";
    let grammar = from_schema(&tokens, serde_json::json!({"type": "string", "pattern": pattern}));
    let ids: Vec<u32> = format!("\"{}z\"", "ab ".repeat(1_500))
        .bytes()
        .map(|byte| tokens.byte_token(byte).unwrap())
        .collect();
    let write = || {
        let mut state = grammar.state();
        let before = state.parser.lexer_states();
        ids.iter().for_each(|id| {
            assert!(allowed(&mut state, &tokens).contains(id));
            assert!(state.advance(*id));
        });
        (before, state.parser.lexer_states())
    };
    let (first, second) = (write(), write());
    assert!(grammar.memory() > 16 << 20, "{}", grammar.memory());
    assert!(first.1 > first.0 + 1_000, "{first:?}");
    assert_eq!(second, (first.1, first.1), "the next answer makes none");
}

#[test]
fn looking_ahead_may_fail_and_the_answer_goes_on() {
    let tokens = small(&[]);
    let (grammar, text) = long(&tokens, 100);
    let mut state = grammar.state();
    let ids: Vec<u32> = format!("\"{text}\"").bytes().map(|byte| tokens.byte_token(byte).unwrap()).collect();
    assert!(ids[..5].iter().all(|id| state.advance(*id)));
    // It leaves the automaton's lock poisoned, and the answer moves to another.
    let gone = state.ahead(|parser| {
        parser.poison();
        Ok(())
    });
    assert_eq!((gone, state.failure()), (None, None));
    let mut drafted = Vec::new();
    state.forced_tokens(6, &mut drafted);
    assert!(drafted.is_empty(), "it is not tried again");
    for id in &ids[5..] {
        assert_eq!(allowed(&mut state, &tokens), [*id]);
        assert!(state.advance(*id));
    }
    assert!(state.is_terminated() && state.failure().is_none());
}

#[test]
fn an_answer_is_parsed_again_a_few_times_however_long_it_is() {
    let (mut moved, mut parsed) = (0, 0);
    for taken in 1..1_000_000 {
        if may_move(taken, moved) {
            (moved, parsed) = (taken, parsed + taken);
        }
    }
    assert_eq!(moved, MOVED_WITHIN);
    assert!(parsed <= 2 * MOVED_WITHIN);
}

#[test]
fn a_row_is_bounded_by_the_size_of_its_grammar() {
    assert_eq!((max_items(10), max_items(2_000), max_items(1 << 20)), (2_005, 3_000, 8_000));
    let tokens = small(&[]);
    let lowered = Lowered::Lark("start: s\ns: s \"b\" | \"a\"".into());
    let grammar = Llguidance::compile(&tokens, lowered, Vec::new());
    let grammar = grammar.unwrap_or_else(|refusal| panic!("{}", refusal.message));
    let mut state = grammar.state();
    assert!(state.advance(tokens.byte_token(b'a').unwrap()));
    assert!((0..3_000).all(|_| state.advance(tokens.byte_token(b'b').unwrap())), "rows do not grow here");
}

#[test]
fn two_thousand_optional_keys_are_within_the_limits() {
    let tokens = small(&["key", "\": "]);
    let keys: serde_json::Map<_, _> =
        (0..2000).map(|at| (format!("key{at}"), serde_json::json!({"type": "integer"}))).collect();
    let grammar = from_schema(
        &tokens,
        serde_json::json!({"type": "object", "properties": keys, "additionalProperties": false}),
    );
    let mut state = grammar.state();
    for byte in br#"{"key0": 1, "key7": 22, "key1234": 3, "key1999": 4}"# {
        let id = tokens.byte_token(*byte).unwrap();
        assert!(allowed(&mut state, &tokens).contains(&id), "{:?}", state.failure());
        assert!(state.advance(id), "{:?}", state.failure());
    }
    assert_eq!(state.failure(), None);
}

fn person(tokens: &Arc<Tokens>) -> Llguidance {
    let schema = serde_json::json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "kind"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "kind": {"enum": ["cat", "dog"]}}});
    let mut schema = json_schema_normal_form::normalize(&schema, &Default::default()).unwrap().schema;
    schema["x-guidance"] =
        serde_json::json!({"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false});
    from_schema(tokens, schema)
}

fn text(tokens: &Tokens, ids: &[u32]) -> String {
    String::from_utf8(ids.iter().flat_map(|id| tokens.text_bytes(*id).to_vec()).collect()).unwrap()
}

#[test]
fn forced_tokens_are_the_only_text() {
    let tokens = small(&["{\"", "name", "\": \"", "\": ", "\", \"", "age"]);
    let mut state = person(&tokens).state();
    let mut follow = |typed: &str| {
        let mut ids = Vec::new();
        tokens.tokenize(typed.as_bytes(), &mut ids);
        assert!(ids.iter().all(|id| state.advance(*id)), "{typed}");
        let mut forced = Vec::new();
        state.forced_tokens(64, &mut forced);
        assert!(forced.iter().all(|id| state.advance(*id)));
        state.roll_back(forced.len());
        text(&tokens, &forced)
    };
    // The last quotation mark is left out: a longer token may begin with it.
    assert_eq!(follow(""), "{\"name\": ");
    assert_eq!(follow("{\"name\": \"Ann\""), ", \"age\": ");
}

#[test]
fn special_tokens_in_a_text_are_forced() {
    let tokens = small(&["user"]);
    let lowered = Lowered::Lark("start: <[2]> \"user\\n\" <[3]> \"!\"".into());
    let grammar = Llguidance::compile(&tokens, lowered, Vec::new());
    let mut state = grammar.unwrap_or_else(|refusal| panic!("{}", refusal.message)).state();
    let mut forced = Vec::new();
    state.forced_tokens(64, &mut forced);
    assert_eq!((forced[0], forced[forced.len() - 2]), (2, 3));
    assert_eq!(text(&tokens, &forced), "user\n!");
    assert!(forced.iter().all(|id| state.advance(*id)) && state.is_terminated());
}

#[test]
fn completions_are_the_shortest() {
    let tokens = small(&["{\"", "\":", "abc"]);
    let object = |properties: serde_json::Value, required: &[&str]| {
        serde_json::json!({"type": "object",
        "properties": properties, "required": required, "additionalProperties": false})
    };
    let string = serde_json::json!({"type": "string", "minLength": 300});
    let many = serde_json::json!({"type": "array", "items": {"type": "integer"}, "minItems": 400});
    let cases = [
        (object(serde_json::json!({"a": {"type": "integer"}, "b": {}}), &["a"]), "", r#"{"a":0}"#.len()),
        (object(serde_json::json!({"a": {"type": "integer"}, "b": {}}), &["a"]), r#"{"a":1,"b":[[{"#, 4),
        (serde_json::json!({"anyOf": [string, {"enum": ["abc", "ab"]}]}), "", 4),
        (string.clone(), "\"xx", 299),
        (many, "[1", 2 * 399 + 1),
        // The shorter key leads to the longer answer.
        (
            serde_json::json!({"anyOf": [
                object(serde_json::json!({"a": string}), &["a"]),
                object(serde_json::json!({"long": {"const": 1}}), &["long"]),
            ]}),
            "{\"",
            "long\":1}".len(),
        ),
        (serde_json::json!({"type": "string", "format": "date"}), "\"2", 10),
    ];
    for (schema, begun, bytes) in cases {
        let mut state = from_schema(&tokens, schema.clone()).state();
        assert!(begun.bytes().all(|byte| state.advance(tokens.byte_token(byte).unwrap())), "{schema}");
        let closing = state.closing_tokens(usize::MAX).unwrap();
        assert!(state.closes_within(bytes) && !state.closes_within(0), "{schema}");
        for limit in 0..=closing.len() {
            let fits = state.closing_tokens(limit);
            assert!(fits.as_ref().is_none_or(|tokens| tokens.len() <= limit), "{schema}");
            assert!(fits.is_some() || !state.closes_within(limit), "{schema} within {limit}");
        }
        let spelled: Vec<u8> = closing.iter().flat_map(|token| tokens.text_bytes(*token).to_vec()).collect();
        assert_eq!(spelled.len(), bytes, "{schema}: {}", String::from_utf8_lossy(&spelled));
        assert!(closing.iter().all(|token| state.advance(*token)), "{schema}");
        assert!(allowed(&mut state, &tokens).contains(&tokens.end_tokens()[0]), "{schema}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

    /// Tokens drawn from the masks and completed at any time are valid JSON.
    #[test]
    fn random_answers_are_closed(picks in proptest::collection::vec(proptest::prelude::any::<proptest::sample::Index>(), 0..40)) {
        let tokens = small(&["{\"", "name", "\": \"", "\": ", "\", \"", "age", "cat"]);
        let (mut state, mut ids, mut masks) = (person(&tokens).state(), Vec::new(), Vec::new());
        for pick in picks {
            let mask = allowed(&mut state, &tokens);
            let id = *pick.get(&mask);
            masks.push(mask);
            proptest::prop_assert!(state.advance(id));
            ids.push(id);
            if state.is_terminated() {
                break;
            }
        }
        if !state.is_terminated() {
            let closing = state.closing_tokens(200).expect("a short completion");
            proptest::prop_assert!(closing.iter().all(|id| state.advance(*id)));
            proptest::prop_assert!(state.advance(tokens.end_tokens()[0]));
            state.roll_back(closing.len() + 1);
            let bytes: Vec<u8> = ids.iter().chain(&closing).flat_map(|id| tokens.text_bytes(*id).to_vec()).collect();
            let answer: serde_json::Value = serde_json::from_str(&String::from_utf8_lossy(&bytes)).unwrap();
            proptest::prop_assert!(answer.as_object().is_some_and(|answer| answer.len() == 3));
        }
        for mask in masks.iter().rev() {
            state.roll_back(1);
            proptest::prop_assert_eq!(&allowed(&mut state, &tokens), mask);
        }
    }
}
