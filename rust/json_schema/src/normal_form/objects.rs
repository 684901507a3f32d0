//! Settles cases of objects: the names that may come besides the known ones, and the cases that counting needs.
//!
//! The grammar writes the known properties in their order and then others, whose names it tells apart only by
//! languages that do not meet. So the languages that the schema names are cut into such pieces; counting properties
//! (`minProperties`, `maxProperties`) is cut into cases of which of the optional ones are there. Cost: the number of pieces
//! and cases, both bounded.

use std::rc::Rc;

use crate::Refusal;
use crate::expression::{Expr, FALSE, Path, TRUE};
use crate::language::{ANY, Lang};
use crate::normal_form::case::{ObjectCase, add};
use crate::normalizer::Normalizer;

const MAX_PIECES: usize = 24;
const MAX_CASES: usize = 200;
const MAX_STATES: usize = 400;
/// A language with at most this many names is listed.
const MAX_NAMES: usize = 64;

impl Normalizer<'_> {
    pub(crate) fn settle_object(&mut self, mut case: ObjectCase) -> Result<Vec<ObjectCase>, Refusal> {
        self.spend(1 + case.properties.len())?;
        let values: Vec<Expr> = case.properties.values().map(|property| property.value).collect();
        for (value, property) in values.into_iter().zip(case.properties.values_mut()) {
            if value != FALSE && self.is_empty(value)? {
                property.value = FALSE;
            }
            if property.required && property.value == FALSE {
                return Ok(Vec::new());
            }
        }
        while self.pieces(&mut case)? {}
        if let Some((names, value, path)) = case.some.pop() {
            return self.settle_some(case, names, value, path);
        }
        self.settle_counts(case)
    }

    /// The language of all names but the known ones.
    pub(crate) fn beside(&mut self, case: &ObjectCase) -> Option<Lang> {
        let names: Vec<&str> = case.properties.keys().map(|name| &**name).collect();
        let known = self.finite(&names)?;
        Some(self.langs.not(known))
    }

    /// Cuts the other names into pieces. True if some of them have become known ones.
    fn pieces(&mut self, case: &mut ObjectCase) -> Result<bool, Refusal> {
        let mut pieces = vec![(ANY, TRUE)];
        case.others.clear();
        let Some(beside) = self.beside(case) else {
            // A known name is too long for an automaton.
            let named = case.properties.iter().find(|(name, _)| self.finite(&[name]).is_none());
            let path = named.map_or(case.bound_path, |(_, property)| property.named.0);
            add(&mut case.open, path);
            case.others = pieces;
            return Ok(false);
        };
        for &(lang, value, path) in &case.names.clone() {
            if value == TRUE {
                continue;
            }
            let mut next: Vec<(Lang, Expr)> = Vec::new();
            let other = self.langs.not(lang);
            for (piece, old) in pieces {
                let joined = self.exprs.and(&[old, value]);
                for (side, value) in [(lang, joined), (other, old)] {
                    let part = self.langs.and(vec![piece, side]);
                    if value == FALSE || self.is_nothing(part, beside) || self.is_empty(value)? {
                        continue;
                    }
                    // Pieces with the same values are one.
                    match next.iter_mut().find(|(_, known)| *known == value) {
                        Some((known, _)) => *known = self.langs.or(vec![*known, part]),
                        None => next.push((part, value)),
                    }
                }
            }
            pieces = next;
            if pieces.len() > MAX_PIECES {
                add(&mut case.open, path);
                pieces = vec![(ANY, TRUE)];
                break;
            }
        }
        // The last keyword that speaks of names leaves so few of them.
        let path = case.names.last().map_or(case.bound_path, |&(_, _, path)| path);
        for &(piece, value) in &pieces {
            let both = self.langs.and(vec![piece, beside]);
            if self.is_nothing(piece, beside) || !self.langs.is_finite(both) {
                continue;
            }
            if let Some(names) = self.langs.strings(both, MAX_NAMES) {
                for name in names {
                    let name: Rc<str> = name.into();
                    case.property(self, &name, true, path).value = value;
                }
                return Ok(true);
            }
        }
        pieces.retain(|&(piece, _)| !self.is_nothing(piece, beside));
        case.others = pieces;
        Ok(false)
    }

    fn is_nothing(&mut self, piece: Lang, beside: Lang) -> bool {
        let both = self.langs.and(vec![piece, beside]);
        self.langs.is_empty(both, MAX_STATES) == Some(true)
    }

    /// Some property has a name in `names` and is `value`.
    fn settle_some(
        &mut self,
        case: ObjectCase,
        names: Lang,
        value: Expr,
        path: Path,
    ) -> Result<Vec<ObjectCase>, Refusal> {
        let mut cases = Vec::new();
        for (name, property) in &case.properties {
            if property.value == FALSE {
                continue;
            }
            match self.langs.matches(names, name) {
                Some(true) => {}
                Some(false) => continue,
                None => self.spent = true,
            }
            let joined = self.exprs.and(&[property.value, value]);
            if self.is_empty(joined)? {
                continue;
            }
            if property.required && self.is_within(property.value, value)? {
                return self.settle_object(case);
            }
            let mut case = case.clone();
            let known = case.properties.get_mut(name).unwrap();
            (known.value, known.required) = (joined, true);
            cases.push(case);
        }
        let Some(beside) = self.beside(&case) else { return Ok(vec![case]) };
        let (mut some, mut all) = (false, true);
        let outside = self.langs.not(names);
        for &(piece, held) in &case.others {
            let inside = self.langs.and(vec![piece, names]);
            let both = self.exprs.and(&[held, value]);
            if self.is_nothing(inside, beside) || self.is_empty(both)? {
                all = false;
                continue;
            }
            some = true;
            let rest = self.langs.and(vec![piece, outside]);
            all &= self.is_nothing(rest, beside) && self.is_within(held, value)?;
        }
        if some {
            let mut case = case.clone();
            if all {
                case.others_min = 1;
            } else {
                add(&mut case.open, path);
            }
            case.bound_path = path;
            cases.push(case);
        }
        let mut out = Vec::new();
        for case in cases {
            out.extend(self.settle_object(case)?);
        }
        Ok(out)
    }

    fn settle_counts(&mut self, mut case: ObjectCase) -> Result<Vec<ObjectCase>, Refusal> {
        let required = case.properties.values().filter(|property| property.required).count() as u64;
        let mut optional: Vec<(u32, Rc<str>)> = case
            .properties
            .iter()
            .filter(|(_, property)| !property.required && property.value != FALSE)
            .map(|(name, property)| (property.order, name.clone()))
            .collect();
        optional.sort_unstable();
        let optional: Vec<Rc<str>> = optional.into_iter().map(|(_, name)| name).collect();
        let most = required + optional.len() as u64;
        let beside = !case.others.is_empty();
        if case.max.is_some_and(|max| max < required) || !beside && (case.min > most || case.others_min > 0) {
            return Ok(Vec::new());
        }
        let counting = Counting {
            required,
            min: case.min.max(if case.others_min > 0 { required + case.others_min } else { 0 }),
            max: case.max,
            others_min: case.others_min,
            beside,
            optional,
        };
        let path = case.bound_path;
        let mut out = Vec::new();
        if counting.choose(self, &case, 0, 0, &mut out)? {
            return Ok(out);
        }
        (case.min, case.max, case.others_min) = (0, None, 0);
        add(&mut case.open, path);
        Ok(vec![case])
    }
}

/// What is asked of the number of properties.
struct Counting {
    required: u64,
    min: u64,
    max: Option<u64>,
    others_min: u64,
    beside: bool,
    optional: Vec<Rc<str>>,
}

impl Counting {
    /// The cases of which optional property is the next that is there, from `start` on with `chosen` before it; false
    /// if they are too many.
    fn choose(
        &self,
        normalizer: &mut Normalizer<'_>,
        case: &ObjectCase,
        start: usize,
        chosen: u64,
        out: &mut Vec<ObjectCase>,
    ) -> Result<bool, Refusal> {
        let here = self.required + chosen;
        let left = (self.optional.len() - start) as u64;
        let enough = here >= self.min && self.others_min == 0;
        let never_too_many = self.max.is_none_or(|max| !self.beside && here + left <= max);
        if enough && never_too_many {
            let mut free = case.clone();
            (free.min, free.max) = (0, None);
            out.push(free);
            return Ok(out.len() <= MAX_CASES);
        }
        normalizer.spend(case.properties.len())?;
        if !self.beside && self.others_min == 0 && here + left == self.min {
            let mut all = case.clone();
            for name in &self.optional[start..] {
                all.properties.get_mut(name).unwrap().required = true;
            }
            (all.min, all.max) = (0, None);
            out.push(all);
            return Ok(out.len() <= MAX_CASES);
        }
        if left > MAX_CASES as u64 && self.max != Some(here) {
            // Each of them is the next one in a case of its own.
            return Ok(false);
        }
        let mut before = case.clone();
        for (at, name) in self.optional.iter().enumerate().skip(start) {
            if self.max.is_none_or(|max| here < max) {
                normalizer.spend(case.properties.len())?;
                let mut with = before.clone();
                with.properties.get_mut(name).unwrap().required = true;
                if !self.choose(normalizer, &with, at + 1, chosen + 1, out)? {
                    return Ok(false);
                }
            }
            before.properties.get_mut(name).unwrap().value = FALSE;
        }
        // None of the optional ones is left: the rest are names beside them.
        let missing = self.min.saturating_sub(here).max(self.others_min);
        let room = self.max.map(|max| max - here);
        if room.is_some_and(|room| room < missing) || missing > 0 && !self.beside {
            return Ok(true);
        }
        (before.min, before.max) = (here + missing, self.max);
        if missing == 0 && room.is_none() || !self.beside {
            (before.min, before.max) = (0, None);
        }
        if room == Some(0) {
            before.others.clear();
            (before.min, before.max) = (0, None);
        }
        let among_known = normalizer.compiler.any_order.is_some() && here > 0;
        if missing > 1 || among_known && before.max.is_some() {
            // The same name twice would be counted twice, and others that come between known ones are not counted.
            add(&mut before.open, before.bound_path);
        }
        out.push(before);
        Ok(out.len() <= MAX_CASES)
    }
}
