//! Random schemas and instances: what the grammar takes is what an independent validator calls valid.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Number};

use super::*;

const NAMES: [&str; 4] = ["a", "b", "ab", "c"];
const PATTERNS: [&str; 8] = ["^a", "b$", "^[ab]+$", "^a?b*$", "c", "^(a|bc)*$", "[^a]", "^(?!a)"];

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-3..6i64).prop_map(|n| json!(n)),
        prop_oneof![Just(0.5), Just(-1.5), Just(2.25), Just(0.1), Just(10.75)].prop_map(|n| json!(n)),
    ]
}

fn text() -> impl Strategy<Value = Value> {
    "[abc]{0,3}".prop_map(|text| json!(text))
}

/// Any small value.
fn value(depth: u32) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![Just(json!(null)), any::<bool>().prop_map(|b| json!(b)), number(), text()];
    if depth == 0 {
        return leaf.boxed();
    }
    prop_oneof![
        2 => leaf,
        2 => prop::collection::vec(value(depth - 1), 0..4).prop_map(Value::Array),
        3 => prop::collection::vec((prop::sample::select(&NAMES[..]), value(depth - 1)), 0..4)
            .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
    ]
    .boxed()
}

fn names() -> impl Strategy<Value = Value> {
    prop::sample::subsequence(NAMES.to_vec(), 0..3).prop_map(|names| json!(names))
}

fn map(inner: BoxedStrategy<Value>, keys: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop::collection::vec((prop::sample::select(keys), inner), 0..3)
        .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// `inner` are schemas for the same value, `child` such for values within it, which may refer to the root.
fn keyword(
    inner: BoxedStrategy<Value>,
    child: BoxedStrategy<Value>,
) -> BoxedStrategy<Vec<(&'static str, Value)>> {
    let one = |key: &'static str, value: BoxedStrategy<Value>| {
        value.prop_map(move |value| vec![(key, value)]).boxed()
    };
    let count = (0..4u64).prop_map(|n| json!(n)).boxed();
    let types =
        prop::sample::select(vec!["null", "boolean", "integer", "number", "string", "array", "object"]);
    let list = prop::collection::vec(inner.clone(), 1..4).prop_map(Value::Array).boxed();
    let items = prop::collection::vec(child.clone(), 1..4).prop_map(Value::Array).boxed();
    let mut all = vec![
        one("type", types.clone().prop_map(|name| json!(name)).boxed()),
        one("type", prop::collection::hash_set(types, 1..4).prop_map(|names| json!(names)).boxed()),
        one("const", value(1)),
        one("enum", prop::collection::vec(value(1), 1..4).prop_map(Value::Array).boxed()),
        one("multipleOf", prop::sample::select(vec![json!(2), json!(3), json!(0.5), json!(1)]).boxed()),
        one("pattern", prop::sample::select(&PATTERNS[..]).prop_map(|pattern| json!(pattern)).boxed()),
        one("uniqueItems", any::<bool>().prop_map(|unique| json!(unique)).boxed()),
        one("properties", map(child.clone(), &NAMES).boxed()),
        one("patternProperties", map(child.clone(), &PATTERNS).boxed()),
        one("required", names().boxed()),
        one("dependentRequired", map(names().boxed(), &NAMES).boxed()),
        one("dependentSchemas", map(inner.clone(), &NAMES).boxed()),
        one("prefixItems", items),
        (inner.clone(), inner.clone(), inner.clone())
            .prop_map(|(a, b, c)| vec![("if", a), ("then", b), ("else", c)])
            .boxed(),
        (child.clone(), 0..3u64, 0..3u64)
            .prop_map(|(item, min, max)| {
                vec![
                    ("contains", item),
                    ("minContains", json!(min)),
                    ("maxContains", json!(max)),
                    ("maxItems", json!(3)),
                ]
            })
            .boxed(),
    ];
    all.extend(["allOf", "anyOf", "oneOf"].map(|key| one(key, list.clone())));
    all.extend(
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].map(|key| one(key, number().boxed())),
    );
    let counts = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
    all.extend(counts.map(|key| one(key, count.clone())));
    all.push(one("not", inner.clone()));
    all.push(one("propertyNames", inner));
    let single = ["items", "contains", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"];
    all.extend(single.map(|key| one(key, child.clone())));
    prop::strategy::Union::new(all).boxed()
}

/// A schema; what it refers to in place is `refers`.
fn schema(depth: u32, refers: Option<&'static str>) -> BoxedStrategy<Value> {
    let mut leaves = vec![Just(json!(true)), Just(json!(false))];
    leaves.extend(refers.map(|refers| Just(json!({ "$ref": refers }))));
    let leaf = prop::strategy::Union::new(leaves).boxed();
    let (inner, child) = match depth.checked_sub(1) {
        None => (leaf.clone(), leaf.clone()),
        Some(depth) => (schema(depth, refers), schema(depth, refers)),
    };
    let child =
        prop_oneof![5 => child, 1 => Just(json!({"$ref": "#"})), 1 => Just(json!({"$ref": "#/$defs/x"}))];
    let object = prop::collection::vec(keyword(inner, child.boxed()), 0..4).prop_map(|keywords| {
        Value::Object(
            keywords.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>(),
        )
    });
    prop_oneof![1 => leaf, 12 => object].boxed()
}

fn document() -> impl Strategy<Value = Value> {
    (schema(2, Some("#/$defs/x")), schema(1, None)).prop_map(|(root, x)| match root {
        Value::Object(mut root) => {
            root.insert("$defs".to_owned(), json!({ "x": x }));
            Value::Object(root)
        }
        other => other,
    })
}

/// Values that stand in a schema, which instances are made near to.
fn spelled(schema: &Value, out: &mut Vec<Value>) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match key.as_str() {
                    "const" => out.push(value.clone()),
                    "enum" => out.extend(value.as_array().into_iter().flatten().cloned()),
                    _ => spelled(value, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| spelled(item, out)),
        Value::Number(number) => out.push(Value::Number(Number::clone(number))),
        _ => {}
    }
}

#[test]
fn an_independent_validator_agrees() {
    let bench = Bench::new();
    let cases = std::env::var("SCHEMA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let seed = std::env::var("SCHEMA_SEED").ok().and_then(|seed| seed.parse::<u8>().ok()).unwrap_or(7);
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let accepted = std::cell::Cell::new(0);
    let reasons = std::cell::RefCell::new(std::collections::BTreeMap::<String, usize>::new());
    let result = runner.run(&(document(), prop::collection::vec(value(2), 12)), |(schema, mut instances)| {
        // The validator does not see what an `unevaluated` keyword evaluates for another one around it, nor what a
        // `contains` in an `else` does.
        let text = schema.to_string();
        if text.matches("\"unevaluated").count() > 1
            || text.contains("unevaluatedItems") && text.contains("contains")
        {
            return Ok(());
        }
        let note =
            |reason: &str| *reasons.borrow_mut().entry(reason.chars().take(60).collect()).or_default() += 1;
        let answer = normalized(&schema);
        // Last, for it keeps megabytes of each schema for ever.
        let Ok(oracle) = jsonschema::options().with_draft(jsonschema::Draft::Draft202012).build(&schema)
        else {
            return Ok(());
        };
        let normal = match answer {
            Ok(normal) => normal,
            Err(refusal) => {
                note(refusal.to_string().split(" at ").next().unwrap());
                if refusal.to_string().starts_with("the schema allows no value") {
                    for instance in &instances {
                        prop_assert!(
                            !oracle.is_valid(instance),
                            "{schema} is said to allow no value, but {instance}"
                        );
                    }
                }
                return Ok(());
            }
        };
        let matcher = match bench.compile(&normal.schema) {
            Ok(matcher) => matcher,
            Err(error) => {
                note(&format!("COMPILER {error}"));
                return Ok(());
            }
        };
        accepted.set(accepted.get() + 1);
        spelled(&schema, &mut instances);
        for instance in &instances {
            let valid = oracle.is_valid(instance);
            prop_assert_eq!(
                can_write(&matcher, instance),
                valid,
                "{} {} as {}",
                schema,
                instance,
                normal.schema
            );
        }
        Ok(())
    });
    eprintln!("accepted {} of {cases}: {:#?}", accepted.get(), reasons.borrow());
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(accepted.get() > cases / 3, "only {} of {cases} were accepted", accepted.get());
}
