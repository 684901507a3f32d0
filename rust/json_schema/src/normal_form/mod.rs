//! An expression as cases: its disjunctive normal form for one type of value, without the empty ones.
//!
//! ```text
//!  apply   and   one part after the other narrows all cases
//!          or    each part narrows a copy of them
//!          not   the same with the opposites
//! ```
//!
//! Exponential in the worst case, and so bounded by the [budgets](crate::normalizer); each expression is expanded once.

mod arrays;
pub(crate) mod case;
pub(crate) mod count;
mod merge;
mod narrow;
mod objects;
mod scalars;
pub(crate) mod states;
pub(crate) mod values;

use std::collections::HashSet;
use std::rc::Rc;

use crate::document::short;
use crate::expression::{Atom, Expr, ExprNode, KINDS, Kind, Path};
use crate::language::{ANY_CHAR, Lang, NEVER};
use crate::normal_form::case::Case;
use crate::normal_form::merge::MERGED_ABOVE;
use crate::normal_form::narrow::narrow;
use crate::normalizer::{Known, MAX_AHEAD, Normalizer};
use crate::{Refusal, Unenforceable};

/// How deep schemas may be nested in place (`allOf`, `$ref`).
const MAX_IN_PLACE: usize = 120;
/// How many cases are kept of a schema with too many.
const FEW: usize = 16;

impl Normalizer<'_> {
    /// The cases of one type that an expression allows, without those known to be empty. None if they are being
    /// computed further up the stack.
    pub(crate) fn cases(&mut self, expr: Expr, kind: Kind) -> Result<Option<Rc<Vec<Case>>>, Refusal> {
        match self.known.get(&(expr, kind)) {
            Some(Known::Open) => return Ok(None),
            Some(Known::Cases(cases)) => return Ok(Some(cases.clone())),
            None => {}
        }
        self.known.insert((expr, kind), Known::Open);
        let settled = self.settled(expr, kind);
        if settled.is_err() {
            self.known.remove(&(expr, kind));
        }
        let mut settled = settled?;
        let mut seen = HashSet::new();
        settled.retain(|case| seen.insert(case.clone()));
        let cases = Rc::new(settled);
        self.known.insert((expr, kind), Known::Cases(cases.clone()));
        Ok(Some(cases))
    }

    /// The cases, each settled. Where they are too many and some may be left out, only a few choices are kept.
    fn settled(&mut self, expr: Expr, kind: Kind) -> Result<Vec<Case>, Refusal> {
        let most = std::mem::replace(&mut self.most, self.limits.cases);
        let (merged, lenient) = (std::mem::take(&mut self.merged), std::mem::take(&mut self.lenient));
        let (open, ahead) = (self.open.clone(), self.ahead);
        let mut settled = self.settled_within(expr, kind);
        if settled.is_err()
            && std::mem::take(&mut self.multiplied)
            && self.unenforceable == Unenforceable::Ignore
        {
            (self.most, self.lenient) = (FEW, true);
            (self.open, self.ahead) = (open, ahead);
            settled = self.settled_within(expr, kind);
        }
        (self.most, self.merged, self.lenient) = (most, merged, lenient);
        settled
    }

    fn settled_within(&mut self, expr: Expr, kind: Kind) -> Result<Vec<Case>, Refusal> {
        let mut raw = self.apply(vec![Case::all(kind)], expr, true, kind)?;
        if self.merged {
            raw = self.merge(raw)?;
        }
        let mut settled = Vec::new();
        for case in raw {
            settled.extend(self.settle(case)?);
            self.check_count(settled.len())?;
        }
        Ok(settled)
    }

    /// Whether it is known that nothing of a type is allowed.
    fn has_none(&mut self, expr: Expr, kind: Kind) -> Result<bool, Refusal> {
        Ok(self.cases(expr, kind)?.is_some_and(|cases| cases.is_empty()))
    }

    /// Whether it is known that a child may hold nothing at all.
    pub(crate) fn is_empty(&mut self, expr: Expr) -> Result<bool, Refusal> {
        match self.exprs.node(expr) {
            ExprNode::False => return Ok(true),
            ExprNode::True => return Ok(false),
            _ => {}
        }
        if self.ahead >= MAX_AHEAD {
            return Ok(false);
        }
        self.ahead += 1;
        let open = std::mem::take(&mut self.open);
        let mut empty = true;
        for kind in KINDS {
            if !self.has_none(expr, kind)? {
                empty = false;
                break;
            }
        }
        self.open = open;
        self.ahead -= 1;
        Ok(empty)
    }

    /// Whether all that `small` allows is known to be allowed by `large`.
    pub(crate) fn is_within(&mut self, small: Expr, large: Expr) -> Result<bool, Refusal> {
        let outside = self.exprs.not(large);
        let both = self.exprs.and(&[small, outside]);
        self.is_empty(both)
    }

    /// Narrows `cases` by an expression, or by its negation.
    fn apply(
        &mut self,
        cases: Vec<Case>,
        expr: Expr,
        wanted: bool,
        kind: Kind,
    ) -> Result<Vec<Case>, Refusal> {
        if cases.is_empty() {
            return Ok(cases);
        }
        self.spend(cases.len())?;
        match self.exprs.node(expr) {
            ExprNode::False | ExprNode::True => {
                let holds = self.exprs.node(expr) == ExprNode::True;
                Ok(if holds == wanted { cases } else { Vec::new() })
            }
            ExprNode::Not(inner) => self.apply(cases, inner, !wanted, kind),
            ExprNode::And(parts) if wanted => self.apply_all(cases, &parts, wanted, kind),
            ExprNode::Or(parts) if !wanted => self.apply_all(cases, &parts, wanted, kind),
            ExprNode::And(parts) | ExprNode::Or(parts) => {
                self.or_open(cases, |this, cases| this.apply_any(&cases, &parts, wanted, kind))
            }
            ExprNode::One(parts) => {
                self.or_open(cases, |this, cases| this.one_of(cases, &parts, wanted, kind))
            }
            ExprNode::Schema(number) => {
                let place = self.schemas[number as usize].0;
                let at = short(&self.document.places[place].pointer);
                if !self.open.insert((number, kind)) {
                    return Err(Refusal::Invalid(format!(
                        "the schema at #{at} refers to itself without end"
                    )));
                }
                if self.open.len() > MAX_IN_PLACE {
                    return Err(Refusal::TooLarge(format!("the schema at #{at} is nested too deeply")));
                }
                self.last = place;
                let body = self.body(number)?;
                let out = self.apply(cases, body, wanted, kind)?;
                self.open.remove(&(number, kind));
                Ok(out)
            }
            ExprNode::Atom(atom) => {
                if let Atom::Kinds(kinds) = *atom {
                    let holds = kinds >> kind as u8 & 1 == 1;
                    return Ok(if holds == wanted { cases } else { Vec::new() });
                }
                if let Atom::Unknown(path) = *atom {
                    let mut cases = cases;
                    cases.iter_mut().for_each(|case| case.leave_open(path));
                    return Ok(cases);
                }
                if kind_of(&atom) != kind {
                    return Ok(if wanted { cases } else { Vec::new() });
                }
                let mut out = Vec::new();
                for case in cases {
                    narrow(self, case, &atom, wanted, &mut out);
                }
                Ok(out)
            }
        }
    }

    /// Narrows the cases by a choice; where that multiplies out to too many and may be left out, they stay as they are, and
    /// say so.
    fn or_open(
        &mut self,
        cases: Vec<Case>,
        choose: impl FnOnce(&mut Self, Vec<Case>) -> Result<Vec<Case>, Refusal>,
    ) -> Result<Vec<Case>, Refusal> {
        if !self.lenient {
            return choose(self, cases);
        }
        let (mut before, open, ahead) = (cases.clone(), self.open.clone(), self.ahead);
        match choose(self, cases) {
            Err(Refusal::TooLarge(_)) if std::mem::take(&mut self.multiplied) => {
                let at = short(&self.document.places[self.last].pointer);
                let cases = self.limits.cases;
                self.paths
                    .push(format!("a choice at #{at}, which multiplies out to more than {cases} cases,"));
                let path = (self.paths.len() - 1) as Path;
                before.iter_mut().for_each(|case| case.leave_open(path));
                (self.open, self.ahead) = (open, ahead);
                Ok(before)
            }
            result => result,
        }
    }

    /// The cases that any of `parts` leaves, without duplicates.
    fn apply_any(
        &mut self,
        cases: &[Case],
        parts: &[Expr],
        wanted: bool,
        kind: Kind,
    ) -> Result<Vec<Case>, Refusal> {
        let (mut out, mut merged) = (Vec::new(), MERGED_ABOVE);
        for &part in parts {
            if self.leaves_nothing(part, wanted, kind) {
                continue;
            }
            self.spend(cases.iter().map(Case::weight).sum())?;
            out.extend(self.apply(cases.to_vec(), part, wanted, kind)?);
            if out.len() > merged {
                out = self.merge(out)?;
                merged = MERGED_ABOVE.max(2 * out.len());
            }
            self.check_count(out.len())?;
        }
        if out.len() > 1 {
            self.spend(out.len())?;
            let mut seen = HashSet::new();
            out.retain(|case| seen.insert(case.clone()));
        }
        Ok(out)
    }

    /// Whether a part obviously leaves no case.
    fn leaves_nothing(&self, expr: Expr, wanted: bool, kind: Kind) -> bool {
        match self.exprs.node(expr) {
            ExprNode::Atom(atom) => match *atom {
                Atom::Kinds(kinds) => (kinds >> kind as u8 & 1 == 1) != wanted,
                Atom::Unknown(_) => false,
                _ => !wanted && kind_of(&atom) != kind,
            },
            _ => false,
        }
    }

    /// Narrows the cases by all of `parts`, one after the other.
    fn apply_all(
        &mut self,
        mut cases: Vec<Case>,
        parts: &[Expr],
        wanted: bool,
        kind: Kind,
    ) -> Result<Vec<Case>, Refusal> {
        for &part in parts {
            cases = self.apply(cases, part, wanted, kind)?;
        }
        Ok(cases)
    }

    /// Exactly one of `parts`, or not exactly one. A negation is only needed where two can hold together.
    fn one_of(
        &mut self,
        cases: Vec<Case>,
        parts: &[Expr],
        wanted: bool,
        kind: Kind,
    ) -> Result<Vec<Case>, Refusal> {
        let (mut live, mut full) = (Vec::new(), 0);
        for &part in parts {
            let known = self.cases(part, kind)?;
            if known.as_ref().is_none_or(|cases| !cases.is_empty()) {
                full += usize::from(known.as_ref().is_some_and(|cases| cases.contains(&Case::all(kind))));
                live.push((part, known));
            }
        }
        // Two parts allow everything, so no value is allowed by exactly one.
        if full > 1 {
            return Ok(if wanted { Vec::new() } else { cases });
        }
        let mut out = Vec::new();
        let mut clashes = vec![Vec::new(); live.len()];
        for a in 0..live.len() {
            for b in 0..a {
                self.step()?;
                if let (Some(first), Some(second)) = (&live[a].1, &live[b].1)
                    && self.differ(first, second)?
                {
                    continue;
                }
                let both = self.exprs.and(&[live[a].0, live[b].0]);
                if !self.has_none(both, kind)? {
                    clashes[a].push(live[b].0);
                    clashes[b].push(live[a].0);
                    if !wanted {
                        out.extend(self.apply(cases.clone(), both, true, kind)?);
                        self.check_count(out.len())?;
                    }
                }
            }
        }
        let live: Vec<Expr> = live.into_iter().map(|(part, _)| part).collect();
        if !wanted {
            out.extend(self.apply_all(cases, &live, false, kind)?);
            return Ok(out);
        }
        for (&part, clashes) in live.iter().zip(&clashes) {
            let with = self.apply(cases.clone(), part, true, kind)?;
            out.extend(self.apply_all(with, clashes, false, kind)?);
            self.check_count(out.len())?;
        }
        Ok(out)
    }

    /// Whether a required property has different values in each pair of cases, as in a union with a discriminator; a
    /// cheap test for disjointness.
    fn differ(&mut self, first: &[Case], second: &[Case]) -> Result<bool, Refusal> {
        for a in first {
            for b in second {
                let (Case::Object(a), Case::Object(b)) = (a, b) else { return Ok(false) };
                if a.properties.len() > 64 {
                    return Ok(false);
                }
                let mut apart = false;
                for (name, property) in &a.properties {
                    let Some(other) = b.properties.get(name) else { continue };
                    if !property.required && !other.required {
                        continue;
                    }
                    let values = (self.known_values(property.value)?, self.known_values(other.value)?);
                    if let (Some(a), Some(b)) = values
                        && !a.iter().any(|value| b.contains(value))
                    {
                        apart = true;
                        break;
                    }
                }
                if !apart {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The language of the strings that an expression allows, if it is known. `named` is called with each string that
    /// is listed.
    pub(crate) fn texts(
        &mut self,
        expr: Expr,
        named: &mut dyn FnMut(Rc<str>),
    ) -> Result<Option<Lang>, Refusal> {
        let Some(cases) = self.cases(expr, Kind::Text)? else { return Ok(None) };
        let mut all = vec![NEVER];
        for case in cases.iter() {
            let Case::Text(case) = case else { continue };
            if !case.open.is_empty() {
                return Ok(None);
            }
            if let Some(among) = &case.among {
                let texts: Vec<&str> = among.iter().map(|text| &**text).collect();
                let Some(lang) = self.finite(&texts) else { return Ok(None) };
                all.push(lang);
                among.iter().for_each(|text| named(text.clone()));
                continue;
            }
            let bounds = (u32::try_from(case.min), case.max.map(u32::try_from).transpose());
            let (Ok(min), Ok(max)) = bounds else { return Ok(None) };
            let length = self.langs.repeat(ANY_CHAR, min, max);
            all.push(self.langs.and(vec![case.lang, length]));
        }
        Ok(Some(self.langs.or(all)))
    }
}

fn kind_of(atom: &Atom) -> Kind {
    match atom {
        Atom::Kinds(_) | Atom::Unknown(_) => Kind::Null,
        Atom::Boolean(_) => Kind::Boolean,
        Atom::Number(..) => Kind::Number,
        Atom::Text(..) => Kind::Text,
        Atom::Array(..) => Kind::Array,
        Atom::Object(..) => Kind::Object,
    }
}
