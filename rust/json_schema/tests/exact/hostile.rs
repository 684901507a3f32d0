//! Schemas that are made to cost: an answer comes in bounded time, without a stack overflow.

use std::time::{Duration, Instant};

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
