//! The state of one normalization, and its budgets.
//!
//! Every loop that may multiply [spends](Normalizer::spend) steps. Their number is bounded, and every 512 steps the
//! caller's cancellation is checked. O(1) a step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::document::{Document, Place, short};
use crate::expression::{Expr, Expressions, Kind, Path};
use crate::keywords::formats::Formats;
use crate::language::Languages;
use crate::normal_form::case::Case;
use crate::normal_form::count::Count;
use crate::{Compiler, Limits, Options, Refusal, Unenforceable};

/// How deep the emptiness of children is computed; deeper ones count as not empty.
pub(crate) const MAX_AHEAD: usize = 24;

/// The cases of an expression.
pub(crate) enum Known {
    /// The cases are being computed.
    Open,
    Cases(Rc<Vec<Case>>),
}

pub(crate) struct Normalizer<'a> {
    pub document: Document<'a>,
    pub langs: Languages,
    pub formats: Formats,
    pub exprs: Expressions,
    pub paths: Vec<String>,
    pub warnings: Vec<String>,
    /// A needed question about a language exceeded the budget of derivatives.
    pub spent: bool,
    /// A choice has multiplied out to too many cases.
    pub multiplied: bool,
    /// How many cases the expression that is being computed may have.
    pub most: usize,
    /// Choices that multiply out to too many cases are left out of the expression that is being computed.
    pub lenient: bool,
    /// Cases of that expression were merged.
    pub merged: bool,
    pub unenforceable: Unenforceable,
    pub compiler: Compiler,
    pub schemas: Vec<(Place, usize, Option<Expr>)>,
    pub schema_numbers: HashMap<(Place, usize), u32>,
    /// Dynamic scopes: the outermost place of each dynamic anchor.
    pub scopes: Vec<BTreeMap<String, Place>>,
    pub known: HashMap<(Expr, Kind), Known>,
    /// All values of an expression, where they are few.
    pub values: HashMap<Expr, Option<Rc<Vec<serde_json::Value>>>>,
    /// How many values an expression has.
    pub counts: HashMap<Expr, Count>,
    /// The schemas whose in-place parts are being expanded.
    pub open: HashSet<(u32, Kind)>,
    /// How deep the emptiness of children is being computed.
    pub ahead: usize,
    steps: u64,
    /// The schema that was expanded last, for messages.
    pub last: Place,
    pub limits: Limits,
    cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Normalizer<'a> {
    pub(crate) fn new(document: Document<'a>, options: &Options<'a>) -> Self {
        Normalizer {
            document,
            langs: Languages::new(options.limits.derivatives),
            formats: Formats::default(),
            exprs: Expressions::new(),
            paths: vec![String::new()],
            warnings: Vec::new(),
            spent: false,
            multiplied: false,
            most: options.limits.cases,
            lenient: false,
            merged: false,
            unenforceable: options.unenforceable,
            compiler: options.compiler,
            schemas: Vec::new(),
            schema_numbers: HashMap::new(),
            scopes: vec![BTreeMap::new()],
            known: HashMap::new(),
            values: HashMap::new(),
            counts: HashMap::new(),
            open: HashSet::new(),
            ahead: 0,
            steps: 0,
            last: 0,
            limits: options.limits,
            cancelled: options.cancelled,
        }
    }

    pub(crate) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) && self.warnings.len() < 100 {
            self.warnings.push(warning);
        }
    }

    /// One step of work.
    pub(crate) fn step(&mut self) -> Result<(), Refusal> {
        self.spend(1)
    }

    /// `steps` steps of work.
    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), Refusal> {
        let before = self.steps;
        self.steps += steps as u64;
        let at = || short(&self.document.places[self.last].pointer);
        if before / 512 != self.steps / 512 {
            if (self.cancelled)() {
                return Err(Refusal::Cancelled);
            }
            if self.steps > self.limits.steps
                || self.langs.size() + self.exprs.size() > self.limits.expressions
            {
                return Err(Refusal::TooLarge(format!("the schema takes too much work, at #{}", at())));
            }
        }
        if self.spent {
            return Err(Refusal::TooLarge(format!(
                "the patterns of the schema take too much work, at #{}",
                at()
            )));
        }
        Ok(())
    }

    /// Refuses a schema that multiplies out to too many cases.
    pub(crate) fn check_count(&mut self, count: usize) -> Result<(), Refusal> {
        if count <= self.most {
            return Ok(());
        }
        self.multiplied = true;
        let at = short(&self.document.places[self.last].pointer);
        Err(Refusal::TooLarge(format!(
            "the schema at #{at} multiplies out to more than {} cases",
            self.limits.cases
        )))
    }

    /// The name of a path.
    pub(crate) fn name(&self, path: Path) -> &str {
        &self.paths[path as usize]
    }
}
