//! Every kind of refusal: what it says, with keyword and path, and what is left of it where that may be left out.

use json_schema_normal_form::{Compiler, Limits, parts};

use super::*;

fn under(schema: Value) -> Value {
    json!({"type": "object", "properties": {"a": schema}, "required": ["a"]})
}

/// Schemas of which one part cannot be enforced, what is said of it, and what where that may be left out.
fn unenforceable() -> Vec<(Value, &'static str, &'static str)> {
    let open = |name: &str| format!("{name} cannot be enforced");
    let at_a = |keyword: &str| open(&format!("'{keyword}' at #/properties/a")).leak() as &str;
    let left_out = |keyword: &str| format!("'{keyword}' at #/properties/a is not enforced").leak() as &str;
    let long = "x".repeat(600);
    let keyword = |keyword: &'static str, schema: Value| (under(schema), at_a(keyword), left_out(keyword));
    vec![
        keyword("uniqueItems", json!({"type": "array", "uniqueItems": true})),
        keyword("pattern", json!({"type": "string", "pattern": r"(a)\1"})),
        keyword("enum", json!({"type": "number", "enum": [0.123_456_789_012_345_68, 1]})),
        keyword("enum", json!({"enum": [1e300]})),
        keyword("const", json!({"const": 9_007_199_254_740_993_i64})),
        keyword("minimum", json!({"type": "number", "minimum": 1e30})),
        keyword("multipleOf", json!({"type": "number", "multipleOf": 0.000_000_000_1})),
        keyword("patternProperties", json!({"type": "object", "patternProperties": {r"(a)\1": {}}})),
        keyword("minProperties", json!({"type": "object", "minProperties": 2})),
        keyword("propertyNames", json!({"type": "object", "propertyNames": {"pattern": r"(a)\1"}})),
        (
            under(json!({"type": "object", "properties": {long: {"type": "null"}}})),
            at_a("properties"),
            left_out("properties"),
        ),
        (
            under(json!({"not": {"pattern": r"(a)\1"}})),
            "'pattern' at #/properties/a/not cannot be enforced",
            "'pattern' at #/properties/a/not is not enforced",
        ),
        (
            under(json!({"type": "number", "not": {"type": "integer"}})),
            "'type' at #/properties/a/not cannot be enforced",
            "'type' at #/properties/a/not is not enforced",
        ),
        (
            under(json!({"$ref": "https://example.com/x"})),
            "'$ref' at #/properties/a: https://example.com/x is not part of this document",
            "'$ref' at #/properties/a to https://example.com/x, which is not part of this document, is not enforced",
        ),
        (
            json!({"$schema": "https://example.com/x"}),
            "'$schema' at #: the dialect \"https://example.com/x\" is not known",
            "'$schema' at #: the dialect \"https://example.com/x\" is not known; 2020-12 is enforced",
        ),
    ]
}

/// Schemas that mean nothing.
fn invalid() -> Vec<(Value, &'static str)> {
    let bad = |keyword: &str, value: Value, what: &str| {
        (
            under(json!({keyword: value})),
            format!("'{keyword}' at #/properties/a must be {what}").leak() as &str,
        )
    };
    vec![
        bad("type", json!("text"), "the name of a type or an array of such"),
        bad("type", json!(1), "the name of a type or an array of such"),
        bad("enum", json!({}), "an array"),
        bad("anyOf", json!([]), "an array of schemas"),
        bad("prefixItems", json!(1), "an array of schemas"),
        bad("$ref", json!(1), "a reference"),
        bad("minimum", json!("1"), "a number"),
        bad("multipleOf", json!(0), "a number above zero"),
        bad("minItems", json!(-1), "a count"),
        bad("uniqueItems", json!(1), "true or false"),
        bad("pattern", json!(1), "a string"),
        bad("required", json!([1]), "an array of names"),
        bad("properties", json!([]), "an object"),
        bad("patternProperties", json!([]), "an object"),
        bad("dependentRequired", json!([]), "an object"),
        bad("dependentRequired", json!({"b": 1}), "an object of arrays of names"),
        (under(json!({"not": 1})), "#/properties/a/not is no schema"),
        (json!(1), "# is no schema"),
        (under(json!({"$ref": "#/x"})), "'$ref' at #/properties/a: #/x names no schema"),
        (under(json!({"$ref": "#x"})), "'$ref' at #/properties/a: #x names no schema"),
        (under(json!({"$ref": "#%zz"})), "'$ref' at #/properties/a: #%zz is not a reference"),
        (
            under(json!({"anyOf": [{"$id": "/x"}, {"$id": "/x"}, {"$ref": "/x"}]})),
            "'$ref' at #/properties/a/anyOf/2: /x names two schemas",
        ),
        (
            under(json!({"$ref": "#/properties/a"})),
            "the schema at #/properties/a refers to itself without end",
        ),
        (
            json!({"type": "string", "maxLength": 0, "minLength": 1}),
            "the schema allows no value: 'minLength' at # leaves none beside the other keywords",
        ),
    ]
}

/// Schemas beyond a limit, the limits, and what is said.
fn too_large() -> Vec<(Value, Limits, &'static str)> {
    let (few, names) = (Limits::default(), ["a", "b", "c", "d"]);
    let properties = |required: &[&str]| {
        let all: serde_json::Map<_, _> = names.iter().map(|name| (name.to_string(), json!({}))).collect();
        under(json!({"type": "object", "properties": all, "required": required}))
    };
    let pairs: Vec<Value> = (0..4)
        .map(|at| json!({"anyOf": [{"required": [format!("a{at}")]}, {"required": [format!("b{at}")]}]}))
        .collect();
    vec![
        (
            properties(&[]),
            Limits { properties: 3, ..few },
            "'properties' at #/properties/a: an object has 4; the limit is 3",
        ),
        (
            properties(&["a"]),
            Limits { optional: 2, ..few },
            "'properties' at #/properties/a: an object has more than 2 optional ones without a required one between \
             them",
        ),
        (
            properties(&[]),
            Limits { schemas: 3, ..few },
            "the schema at # is too large: it has more than 3 parts, or their names are too long",
        ),
        (
            under(under(json!({}))),
            Limits { depth: 1, ..few },
            "the schema at #/properties/a/properties/a is nested too deeply",
        ),
        (
            under(under(under(json!({"type": "null"})))),
            Limits { result_depth: 2, ..few },
            "the schema at # is nested more than 2 deep",
        ),
        (
            under(json!({"type": "array", "items": {"type": "null"}})),
            Limits { states: 2, ..few },
            "the schema at # has more than 2 different parts",
        ),
        (
            json!({"type": "object", "allOf": pairs}),
            Limits { cases: 2, ..few },
            "the schema at #/allOf/1/anyOf/1 multiplies out to more than 2 cases",
        ),
        (
            json!({"enum": (0..2_000).collect::<Vec<_>>()}),
            Limits { steps: 1, ..few },
            "the schema takes too much work, at #",
        ),
        (
            under(json!({"type": "string", "enum": ["aaaa"], "pattern": "^(a|b)+$"})),
            Limits { derivatives: 1, ..few },
            "the patterns of the schema take too much work, at #/properties/a",
        ),
    ]
}

#[test]
fn what_cannot_be_enforced_is_named_and_may_be_left_out() {
    for (schema, said, warning) in unenforceable() {
        assert_eq!(normalized(&schema).unwrap_err().to_string(), said, "{schema}");
        let normal = without_unenforceable(&schema).unwrap_or_else(|refusal| panic!("{schema}: {refusal}"));
        assert_eq!(normal.warnings, [warning], "{schema}");
        Bench::new().compile(&normal.schema).unwrap();
    }
}

#[test]
fn what_means_nothing_is_named() {
    for (schema, said) in invalid() {
        assert_eq!(normalized(&schema).unwrap_err().to_string(), said, "{schema}");
        assert_eq!(without_unenforceable(&schema).unwrap_err().to_string(), said, "{schema}");
    }
}

#[test]
fn what_is_too_large_is_named() {
    for (schema, limits, said) in too_large() {
        let refusal = normalize(&schema, &Options { limits, ..Options::default() }).unwrap_err();
        assert_eq!(refusal.to_string(), said, "{schema}");
    }
    let many: serde_json::Map<_, _> = (0..66).map(|at| (format!("k{at}"), json!({}))).collect();
    let compiler = Compiler { any_order: Some(64), ..Compiler::default() };
    let options = Options { compiler, ..Options::default() };
    let said =
        normalize(&under(json!({"properties": many, "type": "object"})), &options).unwrap_err().to_string();
    assert_eq!(said, "'properties' at #/properties/a: an object has 66; in any key order the limit is 64");
    let options = Options { unenforceable: Unenforceable::Ignore, ..options };
    let many: serde_json::Map<_, _> = (0..66).map(|at| (format!("k{at}"), json!({}))).collect();
    let normal = normalize(&under(json!({"properties": many, "type": "object"})), &options).unwrap();
    assert_eq!(normal.warnings, [format!("{said}; its keys come in the order of the schema")]);
}

#[test]
fn a_part_is_rewritten_alone() {
    let schema = json!({
        "$defs": {"a/b": {"type": "null"}},
        "properties": {"x": {"items": {"$ref": "#/$defs/a~1b"}, "type": "array", "not": {"maxItems": 1}}}
    });
    assert_eq!(parts(&schema, ""), ["/$defs/a~1b", "/properties/x"]);
    assert_eq!(parts(&schema, "/properties/x"), ["/properties/x/items"]);
    let part = |part| normalize(&schema, &Options { part, ..Options::default() });
    assert_eq!(part("/properties/x/items").unwrap().schema, json!({"type": "null"}));
    assert_eq!(part("/properties/y").unwrap_err().to_string(), "#/properties/y is no schema");
}
