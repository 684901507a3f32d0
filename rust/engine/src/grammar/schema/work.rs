//! The state of one preparation, and its budgets.
//!
//! Everything that may multiply [pays](Work::pay) by the step: their number is bounded, and every so many of them it is
//! asked whether to go on. O(1) a step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::document::{Document, Place, refuse, short};
use super::expression::{Expr, Expressions, Kind, Path};
use super::language::Languages;
use super::shape::Shape;
use crate::grammar::Refusal;

const MOST_STEPS: u64 = 3_000_000;
const MOST_DERIVATIVES: u64 = 2_000_000;
const MOST_SHAPES: usize = 1_000;
const MOST_SIZE: usize = 1_000_000;

/// The shapes of an expression, once they are known.
pub(super) enum Known {
    /// Asked for while it is being found out.
    Open,
    Shapes(Rc<Vec<Shape>>),
}

pub(super) struct Work<'a> {
    pub document: Document<'a>,
    pub langs: Languages,
    pub exprs: Expressions,
    pub paths: Vec<String>,
    pub warnings: Vec<String>,
    /// A question about a language was left open for want of budget where an answer is needed.
    pub spent: bool,
    pub schemas: Vec<(Place, usize, Option<Expr>)>,
    pub schema_numbers: HashMap<(Place, usize), u32>,
    /// Dynamic scopes: the outermost place of each dynamic anchor.
    pub scopes: Vec<BTreeMap<String, Place>>,
    pub known: HashMap<(Expr, Kind), Known>,
    /// All values of an expression, where they are few.
    pub values: HashMap<Expr, Option<Rc<Vec<serde_json::Value>>>>,
    /// The schemas whose in-place parts are being taken in.
    pub open: HashSet<(u32, Kind)>,
    /// How far children are being looked into.
    pub ahead: usize,
    steps: u64,
    /// The schema that was taken in last, for messages.
    pub last: Place,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Work<'a> {
    pub(super) fn new(document: Document<'a>, stop: &'a dyn Fn() -> bool) -> Self {
        Work {
            document,
            langs: Languages::new(MOST_DERIVATIVES),
            exprs: Expressions::new(),
            paths: vec![String::new()],
            warnings: Vec::new(),
            spent: false,
            schemas: Vec::new(),
            schema_numbers: HashMap::new(),
            scopes: vec![BTreeMap::new()],
            known: HashMap::new(),
            values: HashMap::new(),
            open: HashSet::new(),
            ahead: 0,
            steps: 0,
            last: 0,
            stop,
        }
    }

    pub(super) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) && self.warnings.len() < 100 {
            self.warnings.push(warning);
        }
    }

    /// One step of work.
    pub(super) fn step(&mut self) -> Result<(), Refusal> {
        self.pay(1)
    }

    /// Some steps of work.
    pub(super) fn pay(&mut self, steps: usize) -> Result<(), Refusal> {
        let before = self.steps;
        self.steps += steps as u64;
        let at = || short(&self.document.places[self.last].pointer);
        if before / 512 != self.steps / 512 {
            if (self.stop)() {
                return refuse("preparing the schema was cancelled".to_owned());
            }
            if self.steps > MOST_STEPS || self.langs.size() + self.exprs.size() > MOST_SIZE {
                return refuse(format!("the schema takes too much work, at #{}", at()));
            }
        }
        if self.spent {
            return refuse(format!("the patterns of the schema take too much work, at #{}", at()));
        }
        Ok(())
    }

    /// Refuses what multiplies out to too many cases.
    pub(super) fn check_count(&self, count: usize) -> Result<(), Refusal> {
        if count <= MOST_SHAPES {
            return Ok(());
        }
        let at = short(&self.document.places[self.last].pointer);
        refuse(format!("the schema at #{at} multiplies out to more than {MOST_SHAPES} cases"))
    }

    /// The name of a path.
    pub(super) fn name(&self, path: Path) -> &str {
        &self.paths[path as usize]
    }
}
