//! The states that a schema's expression reaches, and which of them have a value.
//!
//! Some states could be satisfied by an infinite value only (`{"required": ["a"], "properties": {"a":
//! {"$ref": "#"}}}`); the others are found by a fixed point. Cost: the states times their children, and for the fixed
//! point that times the length of the longest way down.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::Refusal;
use crate::expression::{Expr, FALSE, KINDS, TRUE};
use crate::normal_form::case::Case;
use crate::normalizer::Normalizer;

/// All states that can be reached.
pub(crate) struct States {
    pub cases: HashMap<Expr, Rc<Vec<Case>>>,
    /// Expressions with a value.
    pub productive: HashSet<Expr>,
    /// How often each is a child.
    pub uses: HashMap<Expr, usize>,
}

fn children(case: &Case) -> Vec<Expr> {
    match case {
        Case::Array(case) => case.prefix.iter().copied().chain([case.rest]).collect(),
        Case::Object(case) => {
            let values = case.properties.values().map(|property| property.value);
            values.chain(case.others.iter().map(|&(_, value)| value)).collect()
        }
        _ => Vec::new(),
    }
}

impl States {
    /// The states below `root`.
    pub(crate) fn new(normalizer: &mut Normalizer<'_>, root: Expr) -> Result<Self, Refusal> {
        let mut this =
            States { cases: HashMap::new(), productive: HashSet::from([TRUE]), uses: HashMap::new() };
        this.explore(normalizer, root)?;
        this.find_productive(normalizer)?;
        this.count_uses(root);
        Ok(this)
    }

    fn explore(&mut self, normalizer: &mut Normalizer<'_>, root: Expr) -> Result<(), Refusal> {
        let mut todo = vec![root];
        while let Some(expr) = todo.pop() {
            if expr == TRUE || expr == FALSE || self.cases.contains_key(&expr) {
                continue;
            }
            let mut all = Vec::new();
            for kind in KINDS {
                // No cases are being computed here, so this is never None.
                if let Some(cases) = normalizer.cases(expr, kind)? {
                    all.extend(cases.iter().cloned());
                }
            }
            for case in &all {
                normalizer.step()?;
                todo.extend(children(case));
            }
            self.cases.insert(expr, Rc::new(all));
            let most = normalizer.limits.states;
            if self.cases.len() > most {
                return Err(Refusal::TooLarge(format!(
                    "the schema at # has more than {most} different parts"
                )));
            }
        }
        Ok(())
    }

    fn find_productive(&mut self, normalizer: &mut Normalizer<'_>) -> Result<(), Refusal> {
        let mut left: Vec<Expr> = self.cases.keys().copied().collect();
        loop {
            let before = left.len();
            normalizer.spend(before)?;
            let mut still = Vec::new();
            for expr in left {
                let cases = self.cases[&expr].clone();
                if cases.iter().any(|case| self.has_value(case)) {
                    self.productive.insert(expr);
                } else {
                    still.push(expr);
                }
            }
            left = still;
            if left.len() == before {
                return Ok(());
            }
        }
    }

    /// Whether a case has a finite value.
    pub(crate) fn has_value(&self, case: &Case) -> bool {
        let has = |expr: &Expr| self.productive.contains(expr);
        match case {
            Case::Array(case) => {
                let first = case.prefix.len().min(case.min as usize);
                case.prefix[..first].iter().all(has) && (case.min as usize <= first || has(&case.rest))
            }
            Case::Object(case) => {
                let known = || case.properties.values();
                let there = known().filter(|property| has(&property.value)).count() as u64;
                known().all(|property| !property.required || has(&property.value))
                    && (case.min <= there || case.others.iter().any(|(_, value)| has(value)))
            }
            _ => true,
        }
    }

    fn count_uses(&mut self, root: Expr) {
        *self.uses.entry(root).or_default() += 1;
        let mut seen = HashSet::from([root]);
        let mut todo = vec![root];
        while let Some(expr) = todo.pop() {
            let Some(cases) = self.cases.get(&expr) else { continue };
            let below: Vec<Expr> =
                cases.iter().filter(|case| self.has_value(case)).flat_map(children).collect();
            for child in below {
                *self.uses.entry(child).or_default() += 1;
                if self.productive.contains(&child) && seen.insert(child) {
                    todo.push(child);
                }
            }
        }
    }
}
