//! Bounds and divisors of numbers, through the compiler's regular expressions, against exact reckoning.

use json_schema_normal_form::Compiler;
use proptest::prelude::*;

use super::*;

/// Thousandths, few of which need all three places.
fn thousandths() -> impl Strategy<Value = i64> {
    prop_oneof![
        (-40..40i64).prop_map(|n| n * 1_000),
        (-300..300i64).prop_map(|n| n * 100),
        -2_500..2_500i64,
        -30_000_000..30_000_000i64,
        prop::sample::select(vec![0, 999, 1_000, 9_990_000, 10_000_000, 99_999_000, 1_000_000_000_000]),
    ]
}

fn number(thousandths: i64) -> Value {
    match thousandths % 1_000 {
        0 => json!(thousandths / 1_000),
        _ => serde_json::from_str(&format!("{thousandths}e-3")).unwrap(),
    }
}

/// Whether the number can be written, with zeros at its end if need be.
fn writable(matcher: &Matcher, thousandths: i64) -> bool {
    let text = dumps(&number(thousandths));
    let dot = if text.contains('.') { "" } else { "." };
    [text.clone(), format!("{text}{dot}0"), format!("{text}{dot}00")]
        .iter()
        .any(|text| Bench::accepts(matcher, text))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn ranges_are_exact(
        low in prop::option::of((thousandths(), any::<bool>())),
        high in prop::option::of((thousandths(), any::<bool>())),
        whole in any::<bool>(),
        of in prop::option::weighted(0.3, prop::sample::select(vec![250i64, 500, 10, 1_000, 1_500, 3_000, 7_000, 100_000])),
        except in prop::collection::vec(thousandths(), 0..2),
        tried in prop::collection::vec(thousandths(), 8),
    ) {
        let mut schema = json!({"type": if whole { "integer" } else { "number" }});
        for (bound, keys) in [(low, ["minimum", "exclusiveMinimum"]), (high, ["maximum", "exclusiveMaximum"])] {
            if let Some((bound, left_out)) = bound {
                schema[keys[usize::from(left_out)]] = number(bound);
            }
        }
        if let Some(of) = of {
            schema["multipleOf"] = number(of);
        }
        if !except.is_empty() {
            schema["not"] = json!({"enum": except.iter().map(|&n| number(n)).collect::<Vec<_>>()});
        }
        let valid = |n: i64| {
            low.is_none_or(|(low, out)| n > low || n == low && !out)
                && high.is_none_or(|(high, out)| n < high || n == high && !out)
                && (!whole || n % 1_000 == 0)
                && of.is_none_or(|of| n % of == 0)
                && !except.contains(&n)
        };
        let mut near: Vec<i64> = tried;
        for at in low.iter().chain(&high).map(|&(at, _)| at).chain(except.iter().copied()) {
            near.extend([at, at - 1, at + 1, at - 1_000, at + 1_000, at + 250, -at]);
        }
        let normal = match normalized(&schema) {
            Ok(normal) => normal,
            Err(refusal) => {
                // Where the compiler would go wrong.
                if ["'exclusiveM", "'enum' at #/not"].iter().any(|name| refusal.to_string().starts_with(name)) {
                    return Ok(());
                }
                let said = refusal.to_string();
                prop_assert!(said.starts_with("the schema allows no value: "), "{}: {}", schema, said);
                prop_assert!(!near.iter().any(|&n| valid(n)), "{}", schema);
                return Ok(());
            }
        };
        let matcher = match Bench::new().compile(&normal.schema) {
            Ok(matcher) => matcher,
            Err(error) => return Err(TestCaseError::fail(format!("{schema} as {}: {error}", normal.schema))),
        };
        for n in near {
            prop_assert_eq!(writable(&matcher, n), valid(n), "{} {} as {}", schema, number(n), normal.schema);
        }
    }
}

#[test]
fn bounds_of_64_bits_are_exact() {
    let bench = Bench::new();
    let most = i64::MAX;
    let cases: [(Value, Vec<i64>, Vec<i64>); 5] = [
        (json!({"minimum": 0, "maximum": most}), vec![0, most, most - 1], vec![-1]),
        (json!({"maximum": most}), vec![most, -5], vec![]),
        (
            json!({"minimum": -1_000_000_000_000_000_000i64, "maximum": 1_000_000_000_000_000_000i64}),
            vec![1_000_000_000_000_000_000, -1_000_000_000_000_000_000],
            vec![1_000_000_000_000_000_001i64, -1_000_000_000_000_000_001],
        ),
        (
            json!({"minimum": -1_000_000_000_000_000_000i64}),
            vec![0, most],
            vec![-1_000_000_000_000_000_001i64],
        ),
        (
            json!({"minimum": 1_000_000_000_000_000_000i64, "maximum": most}),
            vec![most],
            vec![999_999_999_999_999_999i64],
        ),
    ];
    for (mut schema, yes, no) in cases {
        schema["type"] = json!("integer");
        let matcher = bench.compile(&normalized(&schema).unwrap().schema).unwrap();
        for value in yes {
            assert!(Bench::accepts(&matcher, &value.to_string()), "{schema} takes {value}");
        }
        for value in no {
            assert!(!Bench::accepts(&matcher, &value.to_string()), "{schema} takes no {value}");
        }
        let beyond = schema["maximum"] == most;
        assert!(!beyond || !Bench::accepts(&matcher, "9223372036854775808"), "{schema}");
    }
    for mut schema in
        [json!({"minimum": i64::MIN}), json!({"maximum": u64::MAX}), json!({"maximum": most - 1})]
    {
        schema["type"] = json!("integer");
        assert!(
            normalized(&schema).unwrap_err().to_string().contains("imum' at # cannot be enforced"),
            "{schema}"
        );
    }
}

#[test]
fn bounds_that_a_double_rounds_are_moved_inward() {
    let compiler = Compiler { texts: true, ..Compiler::default() };
    let options = Options { compiler, ..Options::default() };
    for (bound, written) in [
        (json!({"minimum": 0.300_000_000_000_000_04}), json!({"minimum": 0.300_000_000_000_02})),
        (json!({"exclusiveMinimum": 5e-324}), json!({"minimum": 0.000_000_000_000_02})),
        (json!({"maximum": 123.000_000_000_000_01}), json!({"maximum": 122.999_999_999_99})),
    ] {
        let mut schema = json!({"type": "number"});
        schema.as_object_mut().unwrap().extend(bound.as_object().unwrap().clone());
        let normal = normalize(&schema, &options).unwrap();
        let (key, value) = written.as_object().unwrap().iter().next().unwrap();
        assert_eq!(normal.schema.get(key), Some(value), "{bound}");
        assert_eq!(normal.warnings.len(), 1);
        // What is not a bound further inward has no exact form.
        let not = normalize(&json!({"type": "number", "not": bound}), &options);
        assert!(matches!(not, Err(Refusal::Unenforceable(_))), "{bound}");
    }
    for double in [f64::from(f32::MAX), f64::MAX] {
        let schema = json!({"type": "number", "minimum": -double, "maximum": double});
        let normal = normalize(&schema, &options).unwrap();
        assert!(normal.schema.get("pattern").is_some());
        let beyond = normalize(&json!({"type": "number", "minimum": double}), &options);
        assert!(matches!(beyond, Err(Refusal::Unenforceable(_))));
    }
}
