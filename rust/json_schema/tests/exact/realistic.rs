//! Schemas as programs write them: all accepted, and kept.

use super::*;

/// A schema with instances that it allows and others that it forbids.
struct Case {
    name: &'static str,
    schema: Value,
    valid: Vec<Value>,
    invalid: Vec<Value>,
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "pydantic, nested models",
            schema: json!({
                "$defs": {
                    "Address": {
                        "properties": {
                            "street": {"title": "Street", "type": "string"},
                            "city": {"title": "City", "type": "string"},
                            "zip": {"anyOf": [{"pattern": "^\\d{5}(-\\d{4})?$", "type": "string"}, {"type": "null"}], "default": null}
                        },
                        "required": ["street", "city"], "title": "Address", "type": "object"
                    },
                    "Role": {"enum": ["admin", "user", "guest"], "title": "Role", "type": "string"}
                },
                "properties": {
                    "id": {"exclusiveMinimum": 0, "title": "Id", "type": "integer"},
                    "name": {"maxLength": 20, "minLength": 1, "title": "Name", "type": "string"},
                    "role": {"$ref": "#/$defs/Role", "default": "user"},
                    "addresses": {"items": {"$ref": "#/$defs/Address"}, "title": "Addresses", "type": "array"},
                    "tags": {"default": [], "items": {"type": "string"}, "maxItems": 3, "title": "Tags", "type": "array"},
                    "score": {"anyOf": [{"maximum": 1, "minimum": 0, "type": "number"}, {"type": "null"}], "default": null},
                    "extra": {"additionalProperties": {"type": "integer"}, "title": "Extra", "type": "object"}
                },
                "required": ["id", "name", "addresses"], "title": "User", "type": "object"
            }),
            valid: vec![
                json!({"id": 1, "name": "x", "addresses": []}),
                json!({"id": 12, "name": "Zoë", "role": "admin", "addresses": [{"street": "a", "city": "b", "zip": "12345-6789"}], "tags": ["x"], "score": 0.25, "extra": {"k": 1}}),
                json!({"id": 1, "name": "x", "addresses": [{"street": "a", "city": "b", "zip": null}], "more": true}),
            ],
            invalid: vec![
                json!({"id": 0, "name": "x", "addresses": []}),
                json!({"id": 1, "name": "", "addresses": []}),
                json!({"id": 1, "name": "x"}),
                json!({"id": 1, "name": "x", "role": "root", "addresses": []}),
                json!({"id": 1, "name": "x", "addresses": [{"street": "a", "city": "b", "zip": "1"}]}),
                json!({"id": 1, "name": "x", "addresses": [], "score": 1.5}),
                json!({"id": 1, "name": "x", "addresses": [], "extra": {"k": "v"}}),
            ],
        },
        Case {
            name: "OpenAI strict mode",
            schema: json!({
                "type": "object",
                "properties": {
                    "steps": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
                            "required": ["explanation", "output"], "additionalProperties": false
                        }
                    },
                    "unit": {"type": ["string", "null"], "enum": ["C", "F", null]},
                    "final_answer": {"type": "string"}
                },
                "required": ["steps", "unit", "final_answer"], "additionalProperties": false
            }),
            valid: vec![
                json!({"steps": [], "unit": null, "final_answer": ""}),
                json!({"steps": [{"explanation": "\n\"", "output": "\\"}], "unit": "C", "final_answer": "é"}),
            ],
            invalid: vec![
                json!({"steps": [], "unit": "K", "final_answer": ""}),
                json!({"steps": [], "unit": null, "final_answer": "", "x": 1}),
                json!({"steps": [{"explanation": ""}], "unit": null, "final_answer": ""}),
            ],
        },
        Case {
            name: "a union with a discriminator (OpenAPI)",
            schema: json!({
                "oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
                "discriminator": {"propertyName": "kind"},
                "components": {"schemas": {
                    "Pet": {"type": "object", "required": ["kind", "name"], "properties": {
                        "kind": {"type": "string"}, "name": {"type": "string"}}},
                    "Cat": {"allOf": [{"$ref": "#/components/schemas/Pet"}, {"type": "object", "properties": {
                        "kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 0, "maximum": 9}}}]},
                    "Dog": {"allOf": [{"$ref": "#/components/schemas/Pet"}, {"type": "object", "properties": {
                        "kind": {"const": "dog"}, "bark": {"type": "boolean"}}, "required": ["bark"]}]}
                }}
            }),
            valid: vec![
                json!({"kind": "cat", "name": "a", "lives": 9}),
                json!({"kind": "dog", "name": "b", "bark": true, "lives": "many"}),
            ],
            invalid: vec![
                json!({"kind": "cat", "name": "a", "lives": 10}),
                json!({"kind": "dog", "name": "b"}),
                json!({"kind": "cow", "name": "b"}),
            ],
        },
        Case {
            name: "a recursive tree",
            schema: json!({
                "$defs": {"Node": {
                    "type": "object", "additionalProperties": false, "required": ["value"],
                    "properties": {
                        "value": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                        "parent": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
                    }
                }},
                "$ref": "#/$defs/Node"
            }),
            valid: vec![
                json!({"value": 1}),
                json!({"value": "x", "children": [{"value": -2.5, "children": []}], "parent": {"value": 0, "parent": null}}),
            ],
            invalid: vec![json!({"value": 1, "children": [{}]}), json!({"value": null}), json!([])],
        },
        Case {
            name: "formats",
            schema: json!({
                "type": "object", "additionalProperties": false, "required": ["at", "id"],
                "properties": {
                    "at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"},
                    "mail": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
                    "day": {"type": "string", "format": "date"}, "n": {"type": "integer", "format": "int32"},
                    "link": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 83}
                }
            }),
            valid: vec![
                json!({"at": "2024-02-29T12:00:00Z", "id": "123e4567-e89b-12d3-a456-426614174000"}),
                json!({"at": "2024-02-29T12:00:00+01:00", "id": "123e4567-e89b-12d3-a456-426614174000", "mail": "a@b.co", "day": "2024-01-31", "n": 7, "link": "https://example.com/a?b#c"}),
            ],
            invalid: vec![
                json!({"at": "yesterday", "id": "123e4567-e89b-12d3-a456-426614174000"}),
                json!({"at": "2024-02-29T12:00:00Z", "id": "1"}),
                json!({"at": "2024-02-29T12:00:00Z", "id": "123e4567-e89b-12d3-a456-426614174000", "link": ""}),
            ],
        },
        Case {
            name: "a function's arguments with a condition",
            schema: json!({
                "type": "object",
                "properties": {
                    "method": {"type": "string", "enum": ["card", "transfer"]},
                    "amount": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
                    "card": {"type": "string", "pattern": "^[0-9]{4}( ?[0-9]{4}){3}$"},
                    "iban": {"type": "string", "minLength": 15, "maxLength": 34}
                },
                "required": ["method", "amount"],
                "additionalProperties": false,
                "if": {"properties": {"method": {"const": "card"}}, "required": ["method"]},
                "then": {"required": ["card"]},
                "else": {"required": ["iban"]}
            }),
            valid: vec![
                json!({"method": "card", "amount": 1.25, "card": "1234 5678 1234 5678"}),
                json!({"method": "transfer", "amount": 100, "iban": "DE00123456781234567890"}),
            ],
            invalid: vec![
                json!({"method": "card", "amount": 1.25}),
                json!({"method": "card", "amount": 1.255, "card": "1234567812345678"}),
                json!({"method": "transfer", "amount": 1, "card": "1234567812345678"}),
            ],
        },
        Case {
            name: "a map and a choice of keys",
            schema: json!({
                "type": "object",
                "properties": {
                    "labels": {"type": "object", "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"}, "additionalProperties": {"type": "string"}},
                    "who": {"type": "object", "properties": {"mail": {"type": "string"}, "phone": {"type": "string"}},
                        "anyOf": [{"required": ["mail"]}, {"required": ["phone"]}], "additionalProperties": false},
                    "pair": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}], "items": false, "minItems": 2},
                    "flags": {"type": "array", "items": {"enum": ["r", "w", "x"]}, "uniqueItems": true}
                },
                "minProperties": 1,
                "unevaluatedProperties": false
            }),
            valid: vec![
                json!({"labels": {"a_1": "x"}}),
                json!({"who": {"phone": "1"}, "pair": [1, "a"], "flags": ["x", "r"]}),
            ],
            invalid: vec![
                json!({}),
                json!({"labels": {"A": "x"}}),
                json!({"who": {}}),
                json!({"pair": [1]}),
                json!({"flags": ["r", "r"]}),
                json!({"other": 1}),
            ],
        },
        Case {
            name: "the dialect of OpenAPI 3.1",
            schema: json!({"$schema": "https://spec.openapis.org/oas/3.1/dialect/base", "type": "integer"}),
            valid: vec![json!(1)],
            invalid: vec![json!("a")],
        },
        Case {
            name: "draft 7, as zod writes it",
            schema: json!({
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"point": {"type": "array", "items": [{"type": "number"}, {"type": "number"}], "minItems": 2, "maxItems": 2}},
                "type": "object",
                "properties": {
                    "shape": {"anyOf": [
                        {"type": "object", "properties": {"type": {"type": "string", "const": "circle"}, "at": {"$ref": "#/definitions/point"}, "r": {"type": "number", "exclusiveMinimum": 0}}, "required": ["type", "at", "r"], "additionalProperties": false},
                        {"type": "object", "properties": {"type": {"type": "string", "const": "line"}, "points": {"type": "array", "items": {"$ref": "#/definitions/point"}, "minItems": 2}}, "required": ["type", "points"], "additionalProperties": false}
                    ]},
                    "note": {"type": "string", "$comment": "free"}
                },
                "required": ["shape"], "additionalProperties": false
            }),
            valid: vec![
                json!({"shape": {"type": "circle", "at": [0, -1.5], "r": 0.5}}),
                json!({"shape": {"type": "line", "points": [[0, 0], [1, 1]]}, "note": "x"}),
            ],
            invalid: vec![
                json!({"shape": {"type": "circle", "at": [0], "r": 1}}),
                json!({"shape": {"type": "line", "points": [[0, 0]]}}),
                json!({"shape": {"type": "circle", "at": [0, 0], "r": 0}}),
            ],
        },
    ]
}

#[test]
fn all_are_accepted_and_kept() {
    let bench = Bench::new();
    for case in cases() {
        let normal = normalized(&case.schema).unwrap_or_else(|refusal| panic!("{}: {refusal}", case.name));
        let matcher = bench
            .compile(&normal.schema)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", case.name, normal.schema));
        for instance in &case.valid {
            // Already in the order of the schema.
            assert!(
                Bench::accepts(&matcher, &dumps(instance)),
                "{}: {instance} as {}",
                case.name,
                normal.schema
            );
        }
        for instance in &case.invalid {
            assert!(!can_write(&matcher, instance), "{}: {instance} as {}", case.name, normal.schema);
        }
    }
}

#[test]
fn a_known_name_is_known_however_it_is_written() {
    let schema = json!({"properties": {"foo": {"type": "integer"}}});
    let matcher = Bench::new().compile(&normalized(&schema).unwrap().schema).unwrap();
    assert!(Bench::accepts(&matcher, r#"{"foo": 1, "bar": "x"}"#));
    assert!(!Bench::accepts(&matcher, r#"{"\u0066oo": "x"}"#));
    assert!(!Bench::accepts(&matcher, r#"{"foo": 1, "foo": "x"}"#));
}

#[test]
fn a_class_lets_no_quotation_mark_through() {
    for pattern in ["^[^\"]*$", "^[^\\\\]*$", "^[^a\"]+$", "^([^\"]|b)*$"] {
        let schema = json!({"type": "string", "pattern": pattern});
        let matcher = Bench::new().compile(&normalized(&schema).unwrap().schema).unwrap();
        for text in ["b", "\n", "\u{1}", "é"] {
            assert!(Bench::accepts(&matcher, &json!(text).to_string()), "{pattern} {text:?}");
        }
        let forbidden = if pattern.contains('"') { "\"" } else { "\\" };
        assert!(!Bench::accepts(&matcher, &json!(forbidden).to_string()), "{pattern}");
    }
}

#[test]
fn what_cannot_be_enforced_is_named_and_can_be_left_out() {
    let schema = json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}});
    let refusal = normalized(&schema).unwrap_err();
    assert_eq!(refusal.to_string(), "'uniqueItems' at #/properties/tags cannot be enforced");
    let ignored = without_unenforceable(&schema).unwrap();
    assert_eq!(ignored.warnings, ["'uniqueItems' at #/properties/tags is not enforced"]);
    let matcher = Bench::new().compile(&ignored.schema).unwrap();
    assert!(Bench::accepts(&matcher, r#"{"tags": ["a", "a"]}"#));
    for (schema, message) in [
        (json!({"not": {"type": "integer"}}), "'type' at #/not cannot be enforced"),
        (
            json!({"items": {"$ref": "other.json"}}),
            "'$ref' at #/items: other.json is not part of this document",
        ),
        (json!({"allOf": [{"$ref": "#"}]}), "the schema at # refers to itself without end"),
        (
            json!({"properties": {"a/b": {"type": "text"}}}),
            "'type' at #/properties/a~1b must be the name of a type or an array of such",
        ),
        (json!({"pattern": "(a)\\1"}), "'pattern' at # cannot be enforced"),
        (json!({"enum": []}), "the schema allows no value: 'enum' at # leaves none"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{}, {"allOf": [false]}]}}}),
            "the schema allows no value: `false` at #/$defs/a/allOf/1/allOf/0",
        ),
        (
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            "the schema allows no value: 'maxLength' at # leaves none beside the other keywords",
        ),
        (
            json!({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}),
            "the schema allows no value: no value of that at # ever ends",
        ),
        (json!({"type": "string", "pattern": "(?i)a"}), "'pattern' at # cannot be enforced"),
        (json!(3), "# is no schema"),
    ] {
        assert_eq!(normalized(&schema).unwrap_err().to_string(), message, "{schema}");
    }
    let format = normalized(&json!({"type": "string", "format": "iri"})).unwrap();
    assert_eq!(format.warnings, ["'format' at #: 'iri' is not enforced"]);
}

#[test]
fn keys_come_in_the_order_of_the_schema() {
    let schema = json!({
        "required": ["z", "b"],
        "allOf": [{"properties": {"m": {}}}],
        "properties": {"b": {}, "a": {}},
        "additionalProperties": true
    });
    let matcher = Bench::new().compile(&normalized(&schema).unwrap().schema).unwrap();
    assert!(Bench::accepts(&matcher, r#"{"m": 1, "b": 1, "a": 1, "z": 1, "other": 1}"#));
    assert!(!Bench::accepts(&matcher, r#"{"z": 1, "b": 1}"#));
}

#[test]
fn names_that_nothing_refers_to_may_repeat() {
    let copy =
        json!({"$id": "/x", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"a": copy, "b": copy}});
    let matcher = Bench::new().compile(&normalized(&schema).unwrap().schema).unwrap();
    assert!(Bench::accepts(&matcher, r#"{"a": {"n": 1}, "b": {"n": 2}}"#));
    assert!(!Bench::accepts(&matcher, r#"{"a": {"n": 1}, "b": {"n": "2"}}"#));
}
