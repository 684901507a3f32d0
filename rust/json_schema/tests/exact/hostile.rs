//! Schemas that are made to cost: an answer comes in bounded time, without a stack overflow.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn nested(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({"type": "string"}), |inner, _| wrap(inner))
}

fn hostile() -> Vec<(&'static str, Value)> {
    let many = |count: usize, make: &dyn Fn(usize) -> Value| (0..count).map(make).collect::<Vec<_>>();
    let chain: serde_json::Map<String, Value> = (0..5_000)
        .map(|at| {
            (
                format!("d{at}"),
                json!({"properties": {"x": {"$ref": format!("#/$defs/d{}", (at + 1) % 5_000)}}}),
            )
        })
        .collect();
    let in_place: serde_json::Map<String, Value> =
        (0..5_000).map(|at| (format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)}))).collect();
    let wide: serde_json::Map<String, Value> = (0..20_000)
        .map(|at| (format!("property number {at}"), json!({"type": "integer", "minimum": at})))
        .collect();
    vec![
        ("nested properties", nested(110, |inner| json!({"properties": {"a": inner}}))),
        ("nested too deeply", nested(400, |inner| json!({"properties": {"a": inner}}))),
        ("nested in place", nested(110, |inner| json!({"allOf": [inner]}))),
        ("nested not", nested(110, |inner| json!({"not": {"allOf": [inner, {"minLength": 1}]}}))),
        (
            "nested oneOf",
            nested(60, |inner| json!({"oneOf": [inner, {"maxLength": 3}, {"items": {"type": "null"}}]})),
        ),
        ("a long way of definitions", json!({"$defs": chain, "$ref": "#/$defs/d0"})),
        ("a long way in place", json!({"$defs": in_place, "$ref": "#/$defs/d0"})),
        ("wide", json!({"properties": wide.clone(), "required": ["property number 7"]})),
        ("wide and negated", json!({"not": {"properties": wide}})),
        ("a large enum", json!({"enum": many(100_000, &|at| json!(format!("value {at}")))})),
        (
            "not a large enum",
            json!({"type": "string", "not": {"enum": many(20_000, &|at| json!(format!("value {at}")))}}),
        ),
        ("a large enum of objects", json!({"enum": many(5_000, &|at| json!({"a": at, "b": [at]}))})),
        (
            "many anyOf",
            json!({"allOf": many(30, &|at| json!({"anyOf": [{"required": [format!("a{at}")]}, {"required": [format!("b{at}")]}]}))}),
        ),
        (
            "many oneOf",
            json!({"oneOf": many(400, &|at| json!({"properties": {"k": {"const": at}}, "required": ["k"]}))}),
        ),
        (
            "oneOf that meet",
            json!({"oneOf": many(40, &|at| json!({"properties": {format!("k{at}"): {"type": "string"}}}))}),
        ),
        (
            "patterns that meet",
            json!({"patternProperties": many(60, &|at| json!(format!("a.{{{at}}}b"))).into_iter().map(|key| (key.as_str().unwrap().to_owned(), json!({"minimum": key.as_str().unwrap().len()}))).collect::<serde_json::Map<_, _>>()}),
        ),
        ("a pattern with many states", json!({"not": {"pattern": "^.*a.{25}$"}, "type": "string"})),
        ("a long pattern", json!({"pattern": "a?".repeat(4_000)})),
        ("a pattern of groups", json!({"pattern": format!("{}a{}", "(".repeat(5_000), ")".repeat(5_000))})),
        ("a pattern of anchors", json!({"pattern": "(^|a)".repeat(2_000)})),
        (
            "large counts",
            json!({"minItems": 1u64 << 52, "maxLength": 1u64 << 52, "minProperties": 1u64 << 52}),
        ),
        (
            "a long name",
            json!({"properties": {"x".repeat(1 << 20): {"type": "null"}}, "additionalProperties": {"type": "string"}}),
        ),
        ("many unique items", json!({"items": {"enum": many(12, &|at| json!(at))}, "uniqueItems": true})),
        (
            "many contained",
            json!({"maxItems": 12, "contains": {"minimum": 3}, "minContains": 6, "maxContains": 7}),
        ),
        (
            "dependent",
            json!({"dependentRequired": many(40, &|at| json!([format!("b{at}")])).into_iter().enumerate().map(|(at, value)| (format!("a{at}"), value)).collect::<serde_json::Map<_, _>>()}),
        ),
        (
            "unevaluated",
            json!({"anyOf": many(40, &|at| json!({"properties": {format!("a{at}"): true}})), "unevaluatedProperties": false}),
        ),
        (
            "recursion in all places",
            json!({"properties": {"a": {"$ref": "#"}}, "items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}, "propertyNames": {"not": {"const": "b"}}, "oneOf": [{"required": ["a"]}, {"items": {"not": {"$ref": "#"}}}]}),
        ),
        (
            "a large exponent",
            json!({"minimum": 1e300, "maximum": -1e-300, "multipleOf": 1e-300, "enum": [1e308]}),
        ),
    ]
}

/// As much as a thread of Rust has by default.
const STACK: usize = 2 << 20;

#[test]
fn an_answer_comes_in_time() {
    for (name, schema) in hostile() {
        // A debug build is many times slower than a release.
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let start = Instant::now();
            let answer = normalized(&schema);
            let ignored = without_unenforceable(&schema);
            (start.elapsed(), answer, ignored)
        });
        let (took, answer, ignored) = thread.unwrap().join().unwrap();
        let said = |answer: &Result<Normalized, Refusal>| match answer {
            Ok(normal) => format!("{} bytes", normal.schema.to_string().len()),
            Err(refusal) => {
                let message = refusal.to_string();
                assert!(message.len() < 1_000, "{name}");
                message.clone()
            }
        };
        eprintln!("{took:>12?} {name}: {} | {}", said(&answer), said(&ignored));
        assert!(took < Duration::from_secs(60), "{name} took {took:?}");
    }
}

#[test]
fn it_stops_when_told_to() {
    let (_, schema) = hostile().swap_remove(7);
    let refusal = normalize(&schema, &Options { cancelled: &|| true, ..Options::default() }).unwrap_err();
    assert_eq!(refusal, Refusal::Cancelled);
}

/// Choices that have nothing to do with each other are one case of each property's alternatives.
#[test]
fn independent_choices_do_not_multiply() {
    let choice = |at: usize| {
        json!({"anyOf": [
            {"properties": {format!("p{at}"): {"const": at}}},
            {"properties": {format!("p{at}"): {"const": "none"}}, "required": [format!("p{at}")]},
        ]})
    };
    let schema = json!({"type": "object", "allOf": (0..40).map(choice).collect::<Vec<_>>()});
    let normal = normalized(&schema).unwrap();
    let matcher = Bench::new().compile(&normal.schema).unwrap();
    let oracle = jsonschema::validator_for(&schema).unwrap();
    for instance in [
        json!({}),
        json!({"p3": 3, "p17": "none", "p39": 39}),
        json!({"p3": 4}),
        json!({"p0": 0, "p1": 1, "p2": "other"}),
    ] {
        assert_eq!(can_write(&matcher, &instance), oracle.is_valid(&instance), "{instance}");
    }
}

/// What multiplies out is left out where that is allowed: every valid value can be written, and a warning says so.
#[test]
fn what_multiplies_out_can_be_left_out() {
    let choice = |at: usize| {
        json!({"anyOf": [
            {"required": [format!("a{at}")], "properties": {"all": {"minimum": at}}},
            {"required": [format!("b{at}")], "properties": {"all": {"maximum": -(at as i64)}}},
        ]})
    };
    let mut parts: Vec<Value> = (0..30).map(choice).collect();
    parts.push(json!({"properties": {"x": {"type": "null"}}}));
    let schema = json!({"type": "object", "allOf": parts});
    assert!(matches!(normalized(&schema), Err(Refusal::TooLarge(_))));
    let normal = without_unenforceable(&schema).unwrap();
    assert!(
        normal.warnings.iter().any(|warning| warning.contains("multiplies out")),
        "{:?}",
        normal.warnings
    );
    let matcher = Bench::new().compile(&normal.schema).unwrap();
    let all: serde_json::Map<String, Value> = (0..30).map(|at| (format!("a{at}"), json!(1))).collect();
    assert!(can_write(&matcher, &Value::Object(all)));
    assert!(!can_write(&matcher, &json!({"x": 1})));
}

/// An alternative that speaks of one property: its values, whether it must be there, or that it must not.
fn alternative() -> impl Strategy<Value = Value> {
    let name = (0..8usize).prop_map(|at| format!("p{at}"));
    (name, 0..4u8, 0..3u8).prop_map(|(name, how, value)| match how {
        0 => json!({"properties": {name: {"const": value}}}),
        1 => json!({"properties": {&name: {"const": value}}, "required": [name]}),
        2 => json!({"properties": {name: false}}),
        _ => json!({"required": [name]}),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10) })]

    /// Whatever is merged: the same values as a validator says; and where choices are left out, no valid one is lost.
    #[test]
    fn merged_cases_allow_the_same(
        choices in prop::collection::vec(prop::collection::vec(alternative(), 2..4), 6..12),
        instances in prop::collection::vec(prop::collection::btree_map(0..8usize, 0..3u8, 0..8), 30),
    ) {
        let parts: Vec<Value> = choices.into_iter().map(|options| json!({"anyOf": options})).collect();
        let properties: serde_json::Map<String, Value> = (0..8).map(|at| (format!("p{at}"), json!({"maximum": 2}))).collect();
        let schema = json!({"type": "object", "properties": properties, "additionalProperties": false, "allOf": parts});
        let oracle = jsonschema::validator_for(&schema).unwrap();
        let bench = Bench::new();
        for (normal, exact) in [(normalized(&schema), true), (without_unenforceable(&schema), false)] {
            let Ok(normal) = normal else { continue };
            let exact = exact || normal.warnings.is_empty();
            let Ok(matcher) = bench.compile(&normal.schema) else { continue };
            for instance in &instances {
                let members = instance.iter().map(|(at, value)| (format!("p{at}"), json!(value))).collect();
                let instance = Value::Object(members);
                let (valid, taken) = (oracle.is_valid(&instance), Bench::accepts(&matcher, &dumps(&instance)));
                prop_assert!(taken == valid || taken && !exact, "{schema} {instance}");
            }
        }
    }
}
