//! The JSON-Schema-Test-Suite (draft 2020-12): accepted schemas are kept exactly, the others refused by name.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;

#[derive(Default, Debug)]
struct Counts {
    accepted: usize,
    refused: usize,
    instances: usize,
    by_format: usize,
    wrong: Vec<String>,
    refusals: Vec<String>,
}

fn run(folder: &Path) -> BTreeMap<String, Counts> {
    let bench = Bench::new();
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let groups: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let counts: &mut Counts = all.entry(name.clone()).or_default();
        for group in groups.as_array().unwrap() {
            let what = group["description"].as_str().unwrap();
            let matcher = match normalized(&group["schema"]) {
                Err(refusal) => Err(refusal.to_string()),
                Ok(normal) => bench.compile(&normal.schema).map_err(|error| format!("COMPILER {error}")),
            };
            let matcher = match matcher {
                Ok(matcher) => matcher,
                Err(message) => {
                    counts.refused += 1;
                    counts.refusals.push(format!("{name}: {what}: {message}"));
                    continue;
                }
            };
            counts.accepted += 1;
            for test in group["tests"].as_array().unwrap() {
                counts.instances += 1;
                let valid = test["valid"].as_bool().unwrap();
                if can_write(&matcher, &test["data"]) == valid {
                    continue;
                }
                // The formats that are enforced narrow what the suite takes as an annotation.
                if valid && name == "format" && group["schema"]["format"].is_string() {
                    counts.by_format += 1;
                    continue;
                }
                counts
                    .wrong
                    .push(format!("{name}: {what}: {} valid={valid} {}", test["description"], test["data"]));
            }
        }
    }
    all
}

#[test]
fn nothing_is_wrong() {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut folders = above.map(|folder| folder.join("tests/data/json-schema-test-suite"));
    let folder = folders.find(|folder| folder.is_dir()).expect("the suite is part of the repository");
    let all = run(&folder);
    let mut wrong = Vec::new();
    let (mut accepted, mut refused, mut instances, mut by_format) = (0, 0, 0, 0);
    for (name, counts) in &all {
        eprintln!(
            "{name:24} accepted {:3} refused {:3} wrong {:3}",
            counts.accepted,
            counts.refused,
            counts.wrong.len()
        );
        wrong.extend(&counts.wrong);
        accepted += counts.accepted;
        refused += counts.refused;
        instances += counts.instances;
        by_format += counts.by_format;
        for refusal in &counts.refusals {
            eprintln!("    {refusal}");
        }
    }
    eprintln!("accepted {accepted}, refused {refused}, instances {instances}, by format {by_format}");
    assert!(wrong.is_empty(), "{} wrong:\n{wrong:#?}", wrong.len());
}
