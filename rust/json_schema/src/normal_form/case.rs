//! A case of a schema: a conjunction of constraints on values of one type.
//!
//! A constraint without an exact form is kept by its keyword (`open`) until the case is written, and refused or dropped
//! there: as a case is a conjunction, dropping a constraint only allows more. [`narrow`](mod@crate::normal_form::narrow) adds
//! constraints. O(1), but for copies.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::expression::{Expr, Kind, Path, TRUE};
use crate::language::{ANY, Lang};
use crate::number::Decimal;

/// A bound of numbers: the bound, whether it is exclusive, and its keyword.
pub(crate) type Bound = (Decimal, bool, Path);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct NumberCase {
    pub whole: Option<(bool, Path)>,
    pub min: Option<Bound>,
    pub max: Option<Bound>,
    pub multiple: Option<(Decimal, Path)>,
    pub no_multiple: Vec<(Decimal, Path)>,
    pub among: Option<Vec<Decimal>>,
    /// The keyword that listed them, or whose bounds leave them.
    pub among_path: Path,
    pub except: BTreeSet<Decimal>,
    /// The last keyword that excluded some.
    pub except_path: Path,
    pub open: Vec<Path>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TextCase {
    pub lang: Lang,
    /// The last keyword that had a part in `lang`.
    pub lang_path: Path,
    pub min: u64,
    pub max: Option<u64>,
    pub among: Option<Vec<Rc<str>>>,
    pub open: Vec<Path>,
}

/// How many of the items from a position on are like `item`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Count {
    pub from: usize,
    pub item: Expr,
    pub min: u64,
    pub max: Option<u64>,
    pub path: Path,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ArrayCase {
    pub min: u64,
    pub max: Option<u64>,
    pub prefix: Vec<Expr>,
    pub rest: Expr,
    pub counts: Vec<Count>,
    pub unique: Option<Path>,
    /// All items differ, and the compiler of the result sees to it.
    pub distinct: bool,
    /// The keyword because of which it has fewer items than may differ.
    pub shortened: Option<Path>,
    pub open: Vec<Path>,
    /// Keywords that are fulfilled by the first items only.
    pub narrowed: Vec<Path>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Property {
    /// Its position among the properties.
    pub order: u32,
    pub value: Expr,
    pub required: bool,
    pub named: Named,
}

/// The keyword that named a property first: it is for messages, and tells no cases apart.
#[derive(Debug, Clone, Copy, Eq)]
pub(crate) struct Named(pub Path);

impl PartialEq for Named {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectCase {
    pub properties: BTreeMap<Rc<str>, Property>,
    /// How many of them `properties` has named.
    pub ordered: u32,
    /// Schemas for all names in a language; already applied to `properties`.
    pub names: Vec<(Lang, Expr, Path)>,
    /// At least one property has such a name and such a value.
    pub some: Vec<(Lang, Expr, Path)>,
    pub min: u64,
    pub max: Option<u64>,
    pub bound_path: Path,
    pub open: Vec<Path>,
    /// How many names besides `properties` are required.
    pub others_min: u64,
    /// Once settled: disjoint languages of further names, and their values.
    pub others: Vec<(Lang, Expr)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Case {
    Null,
    Boolean { no: bool, yes: bool },
    Number(NumberCase),
    Text(TextCase),
    Array(ArrayCase),
    Object(ObjectCase),
}

impl Case {
    /// Approximate cost of a copy.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Case::Object(case) => 1 + case.properties.len() / 8,
            Case::Array(case) => 1 + case.prefix.len() / 32,
            _ => 1,
        }
    }

    /// Says that a constraint by that name is not part of the case. The few values of the other types need none.
    pub(crate) fn leave_open(&mut self, path: Path) {
        match self {
            Case::Null | Case::Boolean { .. } => {}
            Case::Number(case) => add(&mut case.open, path),
            Case::Text(case) => add(&mut case.open, path),
            Case::Array(case) => add(&mut case.open, path),
            Case::Object(case) => add(&mut case.open, path),
        }
    }

    /// All values of a type.
    pub(crate) fn all(kind: Kind) -> Case {
        match kind {
            Kind::Null => Case::Null,
            Kind::Boolean => Case::Boolean { no: true, yes: true },
            Kind::Number => Case::Number(NumberCase::default()),
            Kind::Text => Case::Text(TextCase {
                lang: ANY,
                lang_path: 0,
                min: 0,
                max: None,
                among: None,
                open: Vec::new(),
            }),
            Kind::Array => Case::Array(ArrayCase {
                min: 0,
                max: None,
                prefix: Vec::new(),
                rest: TRUE,
                counts: Vec::new(),
                unique: None,
                open: Vec::new(),
                distinct: false,
                shortened: None,
                narrowed: Vec::new(),
            }),
            Kind::Object => Case::Object(ObjectCase {
                properties: BTreeMap::new(),
                ordered: 0,
                names: Vec::new(),
                some: Vec::new(),
                min: 0,
                max: None,
                bound_path: 0,
                open: Vec::new(),
                others_min: 0,
                others: Vec::new(),
            }),
        }
    }
}

pub(crate) fn add(open: &mut Vec<Path>, path: Path) {
    if !open.contains(&path) {
        open.push(path);
    }
}

impl NumberCase {
    pub(crate) fn above(&mut self, bound: Bound) {
        let tighter = self.min.is_none_or(|old| (bound.0, bound.1) > (old.0, old.1));
        if tighter {
            self.min = Some(bound);
        }
    }

    pub(crate) fn below(&mut self, bound: Bound) {
        let tighter = self.max.is_none_or(|old| bound.0 < old.0 || bound.0 == old.0 && bound.1);
        if tighter {
            self.max = Some(bound);
        }
    }
}

impl ArrayCase {
    /// Lists the first `count` items one by one.
    pub(crate) fn unfold(&mut self, count: usize) {
        while self.prefix.len() < count {
            self.prefix.push(self.rest);
        }
    }
}
