//! The states that a schema's expression leads to, and which of them have a value at all.
//!
//! A state may be left over that only an infinite value would satisfy (`{"required": ["a"], "properties": {"a":
//! {"$ref": "#"}}}`); the others are found by a fixed point. Cost: the states times their children, and for the fixed
//! point that times the length of the longest way down.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::document::refuse;
use super::expression::{Expr, FALSE, KINDS, TRUE};
use super::shape::Shape;
use super::work::Work;
use crate::grammar::Refusal;

const MOST_STATES: usize = 20_000;

/// All states that can be reached.
pub(super) struct States {
    pub shapes: HashMap<Expr, Rc<Vec<Shape>>>,
    /// Those with a value.
    pub productive: HashSet<Expr>,
    /// How often each is a child.
    pub uses: HashMap<Expr, usize>,
}

fn children(shape: &Shape) -> Vec<Expr> {
    match shape {
        Shape::Array(shape) => shape.prefix.iter().copied().chain([shape.rest]).collect(),
        Shape::Object(shape) => {
            let values = shape.properties.values().map(|property| property.value);
            values.chain(shape.others.iter().map(|&(_, value)| value)).collect()
        }
        _ => Vec::new(),
    }
}

impl States {
    /// The states below `root`.
    pub(super) fn new(work: &mut Work<'_>, root: Expr) -> Result<Self, Refusal> {
        let mut this =
            States { shapes: HashMap::new(), productive: HashSet::from([TRUE]), uses: HashMap::new() };
        this.explore(work, root)?;
        this.find_productive(work)?;
        this.count_uses(root);
        Ok(this)
    }

    fn explore(&mut self, work: &mut Work<'_>, root: Expr) -> Result<(), Refusal> {
        let mut todo = vec![root];
        while let Some(expr) = todo.pop() {
            if expr == TRUE || expr == FALSE || self.shapes.contains_key(&expr) {
                continue;
            }
            let mut all = Vec::new();
            for kind in KINDS {
                // Nothing is being found out here, so the answer is there.
                if let Some(shapes) = work.shapes(expr, kind)? {
                    all.extend(shapes.iter().cloned());
                }
            }
            for shape in &all {
                work.step()?;
                todo.extend(children(shape));
            }
            self.shapes.insert(expr, Rc::new(all));
            if self.shapes.len() > MOST_STATES {
                return refuse(format!("the schema has more than {MOST_STATES} different parts"));
            }
        }
        Ok(())
    }

    fn find_productive(&mut self, work: &mut Work<'_>) -> Result<(), Refusal> {
        let mut left: Vec<Expr> = self.shapes.keys().copied().collect();
        loop {
            let before = left.len();
            work.pay(before)?;
            let mut still = Vec::new();
            for expr in left {
                let shapes = self.shapes[&expr].clone();
                if shapes.iter().any(|shape| self.has_value(shape)) {
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

    /// Whether a shape has a finite value.
    pub(super) fn has_value(&self, shape: &Shape) -> bool {
        let has = |expr: &Expr| self.productive.contains(expr);
        match shape {
            Shape::Array(shape) => {
                let first = shape.prefix.len().min(shape.min as usize);
                shape.prefix[..first].iter().all(has) && (shape.min as usize <= first || has(&shape.rest))
            }
            Shape::Object(shape) => {
                let required = shape.properties.values().filter(|property| property.required);
                let (mut count, mut all) = (0, true);
                for property in required {
                    count += 1;
                    all &= has(&property.value);
                }
                all && (shape.min <= count || shape.others.iter().any(|(_, value)| has(value)))
            }
            _ => true,
        }
    }

    fn count_uses(&mut self, root: Expr) {
        *self.uses.entry(root).or_default() += 1;
        let mut seen = HashSet::from([root]);
        let mut todo = vec![root];
        while let Some(expr) = todo.pop() {
            let Some(shapes) = self.shapes.get(&expr) else { continue };
            let below: Vec<Expr> =
                shapes.iter().filter(|shape| self.has_value(shape)).flat_map(children).collect();
            for child in below {
                *self.uses.entry(child).or_default() += 1;
                if self.productive.contains(&child) && seen.insert(child) {
                    todo.push(child);
                }
            }
        }
    }
}
