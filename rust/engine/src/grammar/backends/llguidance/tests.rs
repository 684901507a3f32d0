//! Where llguidance meets its limits: long forced texts, a failure while looking ahead, large rows.

use super::*;
use crate::grammar::backends::tests::allowed;
use crate::grammar::context::tests::small;

pub(in super::super) fn from_schema(tokens: &Arc<Tokens>, schema: serde_json::Value) -> Llguidance {
    let compiled = Llguidance::compile(tokens, Lowered::Json(schema), &[], Vec::new());
    compiled.unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

impl Llguidance {
    pub(in super::super) fn parser(&self) -> TokenParser {
        self.shared.base.lock().unwrap().deep_clone()
    }

    pub(in super::super) fn closing_within(&self, mut budget: Budget) -> Option<Vec<u32>> {
        self.state().completion(&mut budget)
    }
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
    let states = |state: &mut State| state.parser().parser.lexer_stats().num_states;
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
fn looking_ahead_may_fail_and_the_answer_goes_on() {
    let tokens = small(&[]);
    let (grammar, text) = long(&tokens, 100);
    let mut state = grammar.state();
    let ids: Vec<u32> = format!("\"{text}\"").bytes().map(|byte| tokens.byte_token(byte).unwrap()).collect();
    assert!(ids[..5].iter().all(|id| state.advance(*id)));
    // It leaves the lock on the lexer poisoned.
    let gone = state.ahead(|parser| {
        parser.parser.with_recognizer(|_| panic!("as llguidance might"));
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
fn a_row_is_bounded_by_the_size_of_its_grammar() {
    assert_eq!((most_items(10), most_items(2_000), most_items(1 << 20)), (2_005, 3_000, 8_000));
    let tokens = small(&[]);
    let lowered = Lowered::Lark("start: s\ns: s \"b\" | \"a\"".into());
    let grammar = Llguidance::compile(&tokens, lowered, &[], Vec::new());
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
