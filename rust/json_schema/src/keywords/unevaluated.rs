//! `unevaluatedProperties` and `unevaluatedItems`, from the names and items that adjacent keywords evaluate.
//!
//! A subschema evaluates only if it holds. For each in-place subschema that may fail there are two options: it must hold
//! and its evaluations count, or it may fail and they do not. The more is evaluated, the less is constrained; so an
//! instance is valid exactly if some combination of options makes it valid, and the one in which all subschemas that hold
//! are counted is the weakest. Only `if` needs a negation. Cost: the number of combinations, which is bounded.

use serde_json::Value;

use crate::document::{Draft, Place, short, step};
use crate::expression::{ArrayRule, Atom, Expr, ObjectRule, TRUE};
use crate::keywords::Object;
use crate::language::{ANY, Lang, NEVER};
use crate::normalizer::Normalizer;
use crate::{Refusal, Unenforceable};

const MAX_OUTCOMES: usize = 128;
const MAX_DEPTH: usize = 60;

/// Names and items that are evaluated if `when` holds.
#[derive(Clone, PartialEq)]
struct Outcome {
    when: Expr,
    names: Lang,
    /// The items before this position.
    items: usize,
    /// The items that are like one of these.
    like: Vec<Expr>,
}

const NOTHING: Outcome = Outcome { when: TRUE, names: NEVER, items: 0, like: Vec::new() };

/// Which of the two keywords.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Names,
    Items,
}

impl Normalizer<'_> {
    /// What the two keywords say, if they are there.
    pub(crate) fn unevaluated(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
    ) -> Result<Expr, Refusal> {
        if self.document.draft < Draft::Nineteen {
            return Ok(TRUE);
        }
        let mut both = Vec::new();
        for (key, of) in [("unevaluatedProperties", Of::Names), ("unevaluatedItems", Of::Items)] {
            if !object.contains_key(key) {
                continue;
            }
            let inner = self.sub(place, scope, &format!("/{key}"))?;
            let path = self.path(place, key);
            let mut options = Vec::new();
            let outcomes = self.evaluated(place, scope, object, of, 0)?;
            if outcomes.is_none() {
                options.push(self.exprs.atom(match of {
                    Of::Names => Atom::Object(ObjectRule::Unknown, path),
                    Of::Items => Atom::Array(ArrayRule::Unknown, path),
                }));
            }
            for outcome in outcomes.unwrap_or_default() {
                let rest = match of {
                    Of::Names => {
                        let others = self.langs.not(outcome.names);
                        Atom::Object(ObjectRule::Names(others, inner), path)
                    }
                    Of::Items => {
                        let allowed: Vec<Expr> = outcome.like.iter().copied().chain([inner]).collect();
                        let allowed = self.exprs.or(&allowed);
                        Atom::Array(ArrayRule::From(outcome.items, allowed), path)
                    }
                };
                let rest = self.exprs.atom(rest);
                options.push(self.exprs.and(&[outcome.when, rest]));
            }
            both.push(self.exprs.or(&options));
        }
        Ok(self.exprs.and(&both))
    }

    /// What the schema at `place` evaluates if it holds; none where a pattern cannot be read.
    fn within(
        &mut self,
        place: Place,
        scope: usize,
        of: Of,
        depth: usize,
    ) -> Result<Option<Vec<Outcome>>, Refusal> {
        self.step()?;
        if depth > MAX_DEPTH {
            let place = short(&self.document.places[place].pointer);
            return Err(Refusal::TooLarge(format!(
                "the schema at #{place} refers to itself or is nested too deeply"
            )));
        }
        let Value::Object(object) = self.document.places[place].value else { return Ok(Some(vec![NOTHING])) };
        let key = if of == Of::Names { "unevaluatedProperties" } else { "unevaluatedItems" };
        if object.contains_key(key) {
            let mut all = NOTHING;
            (all.names, all.items) = (ANY, usize::MAX);
            return Ok(Some(vec![all]));
        }
        self.evaluated(place, scope, object, of, depth)
    }

    /// What the keywords of a schema evaluate, the two themselves left out.
    fn evaluated(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
        of: Of,
        depth: usize,
    ) -> Result<Option<Vec<Outcome>>, Refusal> {
        let mut own = NOTHING;
        match of {
            Of::Names if object.contains_key("additionalProperties") => own.names = ANY,
            Of::Names => match self.evaluated_names(object) {
                Some(names) => own.names = names,
                None => return Ok(None),
            },
            Of::Items => {
                let items = object.get("items");
                if let Some(Value::Array(items)) = object.get("prefixItems").or(items) {
                    own.items = items.len();
                }
                let rest =
                    if items.is_some_and(Value::is_array) { object.get("additionalItems") } else { items };
                if rest.is_some() {
                    own.items = usize::MAX;
                }
                if object.contains_key("contains") && self.document.draft == Draft::Twenty {
                    own.like.push(self.sub(place, scope, "/contains")?);
                }
            }
        }
        let mut all = vec![own];
        for (key, value) in object {
            for options in match self.options(place, scope, object, key, value, of, depth)? {
                Some(options) => options,
                None => return Ok(None),
            } {
                let mut next: Vec<Outcome> = Vec::new();
                for outcome in &all {
                    for option in &options {
                        self.step()?;
                        let mut like = outcome.like.clone();
                        like.extend(option.like.iter().filter(|item| !outcome.like.contains(item)));
                        let joined = Outcome {
                            when: self.exprs.and(&[outcome.when, option.when]),
                            names: self.langs.or(vec![outcome.names, option.names]),
                            items: outcome.items.max(option.items),
                            like,
                        };
                        if !next.contains(&joined) {
                            next.push(joined);
                        }
                    }
                }
                if next.len() > MAX_OUTCOMES {
                    let place = short(&self.document.places[place].pointer);
                    return Err(Refusal::TooLarge(format!(
                        "'{key}' at #{place} has too many cases beside an 'unevaluated' keyword"
                    )));
                }
                all = next;
            }
        }
        Ok(Some(all))
    }

    /// For each choice that a keyword leaves, what may be chosen.
    #[allow(clippy::too_many_arguments)]
    fn options(
        &mut self,
        place: Place,
        scope: usize,
        object: &Object,
        key: &str,
        value: &Value,
        of: Of,
        depth: usize,
    ) -> Result<Option<Vec<Vec<Outcome>>>, Refusal> {
        let mut out = Vec::new();
        match key {
            "$ref" | "$dynamicRef" => {
                let target = match self.target(place, scope, key, value) {
                    Err(Refusal::Elsewhere(_)) if self.unenforceable == Unenforceable::Ignore => {
                        return Ok(None);
                    }
                    target => target?,
                };
                let scope = self.enter(scope, target);
                let Some(outcomes) = self.within(target, scope, of, depth + 1)? else { return Ok(None) };
                out.push(outcomes);
            }
            "allOf" | "anyOf" | "oneOf" => {
                let count = value.as_array().map_or(0, Vec::len);
                let mut choices = Vec::new();
                for at in 0..count {
                    let steps = format!("/{key}/{at}");
                    let Some(outcomes) = self.at(place, scope, &steps, of, depth)? else { return Ok(None) };
                    match key {
                        "allOf" => out.push(outcomes),
                        "anyOf" => out.push(self.if_held(place, scope, &[(&steps, true)], outcomes)?),
                        _ => choices.extend(self.if_held(place, scope, &[(&steps, true)], outcomes)?),
                    }
                }
                out.push(choices);
            }
            "if" => {
                let Some(outcomes) = self.at(place, scope, "/if", of, depth)? else { return Ok(None) };
                let mut choices = self.if_held(place, scope, &[("/if", true)], outcomes.clone())?;
                for (key, held) in [("then", true), ("else", false)] {
                    if !object.contains_key(key) {
                        continue;
                    }
                    let Some(mut more) = self.at(place, scope, &format!("/{key}"), of, depth)? else {
                        return Ok(None);
                    };
                    if held {
                        let mut joined = Vec::new();
                        for a in &outcomes {
                            for b in &more {
                                joined.push(Outcome {
                                    when: self.exprs.and(&[a.when, b.when]),
                                    names: self.langs.or(vec![a.names, b.names]),
                                    items: a.items.max(b.items),
                                    like: a.like.iter().chain(&b.like).copied().collect(),
                                });
                            }
                        }
                        more = joined;
                    }
                    let conditions = [("/if", held), (&*format!("/{key}"), true)];
                    choices.extend(self.if_held(place, scope, &conditions, more)?);
                }
                out.push(choices);
            }
            "dependentSchemas" if of == Of::Names => {
                let path = self.path(place, key);
                for name in value.as_object().into_iter().flat_map(|map| map.keys()) {
                    let steps = format!("/{key}/{}", step(name));
                    let Some(outcomes) = self.at(place, scope, &steps, of, depth)? else { return Ok(None) };
                    let present = Atom::Object(ObjectRule::Requires(name.as_str().into()), path);
                    let present = self.exprs.atom(present);
                    let mut choices = self.if_held(place, scope, &[(&steps, true)], outcomes)?;
                    for choice in choices.iter_mut().skip(1) {
                        choice.when = self.exprs.and(&[present, choice.when]);
                    }
                    out.push(choices);
                }
            }
            _ => {}
        }
        out.retain(|choices| choices.iter().any(|choice| *choice != NOTHING));
        Ok(Some(out))
    }

    fn at(
        &mut self,
        place: Place,
        scope: usize,
        steps: &str,
        of: Of,
        depth: usize,
    ) -> Result<Option<Vec<Outcome>>, Refusal> {
        match self.document.below(place, steps) {
            Some(below) => {
                let scope = self.enter(scope, below);
                self.within(below, scope, of, depth + 1)
            }
            None => Ok(Some(vec![NOTHING])),
        }
    }

    /// The option not to count some subschemas, and those to count them.
    fn if_held(
        &mut self,
        place: Place,
        scope: usize,
        conditions: &[(&str, bool)],
        outcomes: Vec<Outcome>,
    ) -> Result<Vec<Outcome>, Refusal> {
        let mut out = vec![NOTHING];
        let mut held = Vec::new();
        for &(steps, wanted) in conditions {
            let inner = self.sub(place, scope, steps)?;
            held.push(if wanted { inner } else { self.exprs.not(inner) });
        }
        for mut outcome in outcomes {
            if outcome.names == NEVER && outcome.items == 0 && outcome.like.is_empty() {
                continue;
            }
            held.push(outcome.when);
            outcome.when = self.exprs.and(&held);
            held.pop();
            out.push(outcome);
        }
        Ok(out)
    }
}
