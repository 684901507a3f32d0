//! Adds the constraint of a keyword, or its negation, to a case.
//!
//! A negation may split a case in several. O(log of the properties) a keyword, beside the
//! languages and expressions that it makes.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::expression::{ArrayRule, Atom, FALSE, NumberRule, ObjectRule, Path, TRUE, TextRule};
use crate::normal_form::case::{
    ArrayCase, Case, Count, Named, NumberCase, ObjectCase, Property, TextCase, add,
};
use crate::normalizer::Normalizer;

/// Properties that only other keywords than `properties` name come last.
const LATE: u32 = 1 << 30;

/// Appends the cases that a keyword, or its negation, leaves of a case.
pub(crate) fn narrow(
    normalizer: &mut Normalizer<'_>,
    case: Case,
    atom: &Atom,
    wanted: bool,
    out: &mut Vec<Case>,
) {
    match (case, atom) {
        (Case::Boolean { no, yes }, Atom::Boolean(value)) => {
            let (no, yes) = (no && *value != wanted, yes && *value == wanted);
            if no || yes {
                out.push(Case::Boolean { no, yes });
            }
        }
        (Case::Number(mut case), Atom::Number(atom, path)) => {
            if case.narrow(atom, wanted, *path) {
                out.push(Case::Number(case));
            }
        }
        (Case::Text(mut case), Atom::Text(atom, path)) => {
            if case.narrow(normalizer, atom, wanted, *path) {
                out.push(Case::Text(case));
            }
        }
        (Case::Array(mut case), Atom::Array(atom, path)) => {
            out.extend(case.narrow(normalizer, atom, wanted, *path).into_iter().map(Case::Array));
        }
        (Case::Object(mut case), Atom::Object(atom, path)) => {
            if case.narrow(normalizer, atom, wanted, *path) {
                out.push(Case::Object(case));
            }
        }
        (case, _) => out.push(case),
    }
}

fn smaller(bound: &mut Option<u64>, other: u64) {
    *bound = Some(bound.map_or(other, |bound| bound.min(other)));
}

impl NumberCase {
    /// False if no value is left.
    fn narrow(&mut self, atom: &NumberRule, wanted: bool, path: Path) -> bool {
        match (atom, wanted) {
            (NumberRule::Whole, _) => match self.whole {
                Some((whole, _)) => return whole == wanted,
                None => self.whole = Some((wanted, path)),
            },
            (&NumberRule::Min(bound, left_out), true) => self.above((bound, left_out, path)),
            (&NumberRule::Min(bound, left_out), false) => self.below((bound, !left_out, path)),
            (&NumberRule::Max(bound, left_out), true) => self.below((bound, left_out, path)),
            (&NumberRule::Max(bound, left_out), false) => self.above((bound, !left_out, path)),
            (&NumberRule::Multiple(of), true) => {
                self.multiple = match self.multiple {
                    None => Some((of, path)),
                    Some((old, old_path)) => match old.common_multiple(of) {
                        Some(both) => Some((both, path)),
                        None => {
                            add(&mut self.open, path);
                            Some((old, old_path))
                        }
                    },
                }
            }
            (&NumberRule::Multiple(of), false) => self.no_multiple.push((of, path)),
            (NumberRule::Among(numbers), true) => match &mut self.among {
                Some(among) => among.retain(|number| numbers.contains(number)),
                None => {
                    self.among = Some(numbers.iter().copied().collect::<BTreeSet<_>>().into_iter().collect());
                    self.among_path = path;
                }
            },
            (NumberRule::Among(numbers), false) => {
                self.except.extend(numbers.iter().copied());
                self.except_path = path;
            }
            (NumberRule::Narrowed, true) => {}
            (NumberRule::Narrowed, false) | (NumberRule::Unknown, _) => add(&mut self.open, path),
        }
        self.among.as_ref().is_none_or(|among| !among.is_empty())
    }
}

impl TextCase {
    fn narrow(&mut self, normalizer: &mut Normalizer<'_>, atom: &TextRule, wanted: bool, path: Path) -> bool {
        match (atom, wanted) {
            (&TextRule::In(lang), _) => {
                let lang = if wanted { lang } else { normalizer.langs.not(lang) };
                self.lang = normalizer.langs.and(vec![self.lang, lang]);
                self.lang_path = path;
            }
            (&TextRule::AtLeast(count), true) => self.min = self.min.max(count),
            (&TextRule::AtMost(count), true) => smaller(&mut self.max, count),
            (&TextRule::AtLeast(count), false) => match count.checked_sub(1) {
                Some(count) => smaller(&mut self.max, count),
                None => return false,
            },
            (&TextRule::AtMost(count), false) => self.min = self.min.max(count.saturating_add(1)),
            (TextRule::Among(texts), true) => {
                let known: std::collections::HashSet<&Rc<str>> = texts.iter().collect();
                match &mut self.among {
                    Some(among) => among.retain(|text| known.contains(text)),
                    None => self.among = Some(texts.to_vec()),
                }
            }
            (TextRule::Among(texts), false) => {
                let known: std::collections::HashSet<&Rc<str>> = texts.iter().collect();
                if let Some(among) = &mut self.among {
                    among.retain(|text| !known.contains(text));
                } else {
                    let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
                    match normalizer.finite(&texts) {
                        Some(lang) => return self.narrow(normalizer, &TextRule::In(lang), false, path),
                        None => add(&mut self.open, path),
                    }
                }
            }
            (TextRule::Unknown, _) => add(&mut self.open, path),
        }
        self.among.as_ref().is_none_or(|among| !among.is_empty())
            && self.max.is_none_or(|max| self.min <= max)
    }
}

impl ArrayCase {
    fn narrow(
        &mut self,
        normalizer: &mut Normalizer<'_>,
        atom: &ArrayRule,
        wanted: bool,
        path: Path,
    ) -> Vec<ArrayCase> {
        let mut this = self.clone();
        match (atom, wanted) {
            (&ArrayRule::AtLeast(count), true) => this.min = this.min.max(count),
            (&ArrayRule::AtMost(count), true) => smaller(&mut this.max, count),
            (&ArrayRule::AtLeast(0), false) => return Vec::new(),
            (&ArrayRule::AtLeast(count), false) => smaller(&mut this.max, count - 1),
            (&ArrayRule::AtMost(count), false) => this.min = this.min.max(count.saturating_add(1)),
            (&ArrayRule::Item(at, item), _) => {
                let item = if wanted { item } else { normalizer.exprs.not(item) };
                this.unfold(at + 1);
                this.prefix[at] = normalizer.exprs.and(&[this.prefix[at], item]);
                if !wanted {
                    this.min = this.min.max(at as u64 + 1);
                }
            }
            (&ArrayRule::From(usize::MAX, _), true) => {}
            (&ArrayRule::From(usize::MAX, _), false) => return Vec::new(),
            (&ArrayRule::From(from, item), true) => {
                this.unfold(from);
                for known in &mut this.prefix[from..] {
                    *known = normalizer.exprs.and(&[*known, item]);
                }
                this.rest = normalizer.exprs.and(&[this.rest, item]);
            }
            (&ArrayRule::From(from, item), false) => {
                let item = normalizer.exprs.not(item);
                this.counts.push(Count { from, item, min: 1, max: None, path });
            }
            (&ArrayRule::Count { from, item, min, max }, true) => {
                this.counts.push(Count { from, item, min, max, path })
            }
            (&ArrayRule::Count { from, item, min, max }, false) => {
                let count = |min, max| Count { from, item, min, max, path };
                let mut more = this.clone();
                let mut out = Vec::new();
                if min > 0 {
                    this.counts.push(count(0, Some(min - 1)));
                    out.push(this);
                }
                if let Some(max) = max {
                    more.counts.push(count(max + 1, None));
                    out.push(more);
                }
                return out;
            }
            (ArrayRule::Unique, true) => this.unique = Some(path),
            (ArrayRule::Unique, false) | (ArrayRule::Unknown, _) => add(&mut this.open, path),
        }
        if this.max.is_some_and(|max| this.min > max) { Vec::new() } else { vec![this] }
    }
}

impl ObjectCase {
    /// The property of that name; a new one gets the schemas of all languages that its name is in.
    pub(crate) fn property(
        &mut self,
        normalizer: &mut Normalizer<'_>,
        name: &Rc<str>,
        late: bool,
        path: Path,
    ) -> &mut Property {
        let next = self.properties.len() as u32;
        if !self.properties.contains_key(name) {
            let mut value = TRUE;
            for &(lang, expr, _) in &self.names {
                match normalizer.langs.matches(lang, name) {
                    Some(true) => value = normalizer.exprs.and(&[value, expr]),
                    Some(false) => {}
                    None => normalizer.spent = true,
                }
            }
            self.properties.insert(
                name.clone(),
                Property { order: LATE + next, value, required: false, named: Named(path) },
            );
        }
        let property = self.properties.get_mut(name).unwrap();
        if !late && property.order >= LATE {
            property.order = self.ordered;
            self.ordered += 1;
        }
        property
    }

    fn narrow(
        &mut self,
        normalizer: &mut Normalizer<'_>,
        atom: &ObjectRule,
        wanted: bool,
        path: Path,
    ) -> bool {
        match (atom, wanted) {
            (ObjectRule::Requires(name), true) => {
                let property = self.property(normalizer, name, true, path);
                property.required = true;
                return property.value != FALSE;
            }
            (ObjectRule::Requires(name), false) => {
                let property = self.property(normalizer, name, true, path);
                property.value = FALSE;
                return !property.required;
            }
            (ObjectRule::Property(name, value), _) => {
                let value = if wanted { *value } else { normalizer.exprs.not(*value) };
                let old = self.property(normalizer, name, !wanted, path).value;
                let joined = normalizer.exprs.and(&[old, value]);
                let property = self.property(normalizer, name, !wanted, path);
                property.value = joined;
                property.required |= !wanted;
                return joined != FALSE || !property.required;
            }
            (&ObjectRule::Names(lang, value), true) => {
                for (name, property) in &mut self.properties {
                    match normalizer.langs.matches(lang, name) {
                        Some(true) => property.value = normalizer.exprs.and(&[property.value, value]),
                        Some(false) => {}
                        None => normalizer.spent = true,
                    }
                }
                self.names.push((lang, value, path));
                return self
                    .properties
                    .values()
                    .all(|property| !property.required || property.value != FALSE);
            }
            (&ObjectRule::Names(lang, value), false) => {
                let value = normalizer.exprs.not(value);
                self.some.push((lang, value, path));
            }
            (&ObjectRule::AtLeast(count), true) => (self.min, self.bound_path) = (self.min.max(count), path),
            (&ObjectRule::AtMost(count), true) => {
                smaller(&mut self.max, count);
                self.bound_path = path;
            }
            (&ObjectRule::AtLeast(0), false) => return false,
            (&ObjectRule::AtLeast(count), false) => {
                smaller(&mut self.max, count - 1);
                self.bound_path = path;
            }
            (&ObjectRule::AtMost(count), false) => {
                (self.min, self.bound_path) = (self.min.max(count.saturating_add(1)), path);
            }
            (ObjectRule::Unknown, _) => add(&mut self.open, path),
        }
        self.max.is_none_or(|max| self.min <= max)
    }
}
