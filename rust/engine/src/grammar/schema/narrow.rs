//! What is left of a shape by one keyword after another.
//!
//! The opposite of a keyword narrows a shape too, or splits it in cases. O(log of the properties) a keyword, beside the
//! languages and expressions that it makes.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::expression::{Atom, FALSE, OfArray, OfNumber, OfObject, OfText, Path, TRUE};
use super::shape::{ArrayShape, Count, NumberShape, ObjectShape, Property, Shape, TextShape, add};
use super::work::Work;

/// Properties that only a keyword other than `properties` names come after the others.
const LATE: u32 = 1 << 30;

/// What is left of a shape by what a keyword says, or by its opposite.
pub(super) fn narrow(work: &mut Work<'_>, shape: Shape, atom: &Atom, wanted: bool, out: &mut Vec<Shape>) {
    match (shape, atom) {
        (Shape::Boolean { no, yes }, Atom::Boolean(value)) => {
            let (no, yes) = (no && *value != wanted, yes && *value == wanted);
            if no || yes {
                out.push(Shape::Boolean { no, yes });
            }
        }
        (Shape::Number(mut shape), Atom::Number(atom, path)) => {
            if shape.narrow(atom, wanted, *path) {
                out.push(Shape::Number(shape));
            }
        }
        (Shape::Text(mut shape), Atom::Text(atom, path)) => {
            if shape.narrow(work, atom, wanted, *path) {
                out.push(Shape::Text(shape));
            }
        }
        (Shape::Array(mut shape), Atom::Array(atom, path)) => {
            out.extend(shape.narrow(work, atom, wanted, *path).into_iter().map(Shape::Array));
        }
        (Shape::Object(mut shape), Atom::Object(atom, path)) => {
            if shape.narrow(work, atom, wanted, *path) {
                out.push(Shape::Object(shape));
            }
        }
        (shape, _) => out.push(shape),
    }
}

fn smaller(bound: &mut Option<u64>, other: u64) {
    *bound = Some(bound.map_or(other, |bound| bound.min(other)));
}

impl NumberShape {
    /// False if nothing is left.
    fn narrow(&mut self, atom: &OfNumber, wanted: bool, path: Path) -> bool {
        match (atom, wanted) {
            (OfNumber::Whole, _) => match self.whole {
                Some((whole, _)) => return whole == wanted,
                None => self.whole = Some((wanted, path)),
            },
            (&OfNumber::Min(bound, left_out), true) => self.above((bound, left_out, path)),
            (&OfNumber::Min(bound, left_out), false) => self.below((bound, !left_out, path)),
            (&OfNumber::Max(bound, left_out), true) => self.below((bound, left_out, path)),
            (&OfNumber::Max(bound, left_out), false) => self.above((bound, !left_out, path)),
            (&OfNumber::Multiple(of), true) => {
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
            (&OfNumber::Multiple(of), false) => self.no_multiple.push((of, path)),
            (OfNumber::Among(numbers), true) => match &mut self.among {
                Some(among) => among.retain(|number| numbers.contains(number)),
                None => {
                    self.among = Some(numbers.iter().copied().collect::<BTreeSet<_>>().into_iter().collect())
                }
            },
            (OfNumber::Among(numbers), false) => {
                self.except.extend(numbers.iter().copied());
                self.except_path = path;
            }
            (OfNumber::Unknown, _) => add(&mut self.open, path),
        }
        self.among.as_ref().is_none_or(|among| !among.is_empty())
    }
}

impl TextShape {
    fn narrow(&mut self, work: &mut Work<'_>, atom: &OfText, wanted: bool, path: Path) -> bool {
        match (atom, wanted) {
            (&OfText::In(lang), _) => {
                let lang = if wanted { lang } else { work.langs.not(lang) };
                self.lang = work.langs.and(vec![self.lang, lang]);
                self.lang_path = path;
            }
            (&OfText::AtLeast(count), true) => self.min = self.min.max(count),
            (&OfText::AtMost(count), true) => smaller(&mut self.max, count),
            (&OfText::AtLeast(count), false) => match count.checked_sub(1) {
                Some(count) => smaller(&mut self.max, count),
                None => return false,
            },
            (&OfText::AtMost(count), false) => self.min = self.min.max(count.saturating_add(1)),
            (OfText::Among(texts), true) => {
                let known: std::collections::HashSet<&Rc<str>> = texts.iter().collect();
                match &mut self.among {
                    Some(among) => among.retain(|text| known.contains(text)),
                    None => self.among = Some(texts.to_vec()),
                }
            }
            (OfText::Among(texts), false) => {
                let known: std::collections::HashSet<&Rc<str>> = texts.iter().collect();
                if let Some(among) = &mut self.among {
                    among.retain(|text| !known.contains(text));
                } else {
                    let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
                    match work.finite(&texts) {
                        Some(lang) => return self.narrow(work, &OfText::In(lang), false, path),
                        None => add(&mut self.open, path),
                    }
                }
            }
            (OfText::Format(name), true) => {
                self.formats.insert(name.clone());
            }
            (OfText::Format(_), false) | (OfText::Unknown, _) => add(&mut self.open, path),
        }
        self.among.as_ref().is_none_or(|among| !among.is_empty())
            && self.max.is_none_or(|max| self.min <= max)
    }
}

impl ArrayShape {
    fn narrow(&mut self, work: &mut Work<'_>, atom: &OfArray, wanted: bool, path: Path) -> Vec<ArrayShape> {
        let mut this = self.clone();
        match (atom, wanted) {
            (&OfArray::AtLeast(count), true) => this.min = this.min.max(count),
            (&OfArray::AtMost(count), true) => smaller(&mut this.max, count),
            (&OfArray::AtLeast(0), false) => return Vec::new(),
            (&OfArray::AtLeast(count), false) => smaller(&mut this.max, count - 1),
            (&OfArray::AtMost(count), false) => this.min = this.min.max(count.saturating_add(1)),
            (&OfArray::Item(at, item), _) => {
                let item = if wanted { item } else { work.exprs.not(item) };
                this.unfold(at + 1);
                this.prefix[at] = work.exprs.and(&[this.prefix[at], item]);
                if !wanted {
                    this.min = this.min.max(at as u64 + 1);
                }
            }
            (&OfArray::From(usize::MAX, _), true) => {}
            (&OfArray::From(usize::MAX, _), false) => return Vec::new(),
            (&OfArray::From(from, item), true) => {
                this.unfold(from);
                for known in &mut this.prefix[from..] {
                    *known = work.exprs.and(&[*known, item]);
                }
                this.rest = work.exprs.and(&[this.rest, item]);
            }
            (&OfArray::From(from, item), false) => {
                let item = work.exprs.not(item);
                this.counts.push(Count { from, item, min: 1, max: None, path });
            }
            (&OfArray::Count { from, item, min, max }, true) => {
                this.counts.push(Count { from, item, min, max, path })
            }
            (&OfArray::Count { from, item, min, max }, false) => {
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
            (OfArray::Unique, true) => this.unique = Some(path),
            (OfArray::Unique, false) | (OfArray::Unknown, _) => add(&mut this.open, path),
        }
        if this.max.is_some_and(|max| this.min > max) { Vec::new() } else { vec![this] }
    }
}

impl ObjectShape {
    /// The property of that name, brought in with all that is already said of it.
    pub(super) fn property(&mut self, work: &mut Work<'_>, name: &Rc<str>, late: bool) -> &mut Property {
        let next = self.properties.len() as u32;
        if !self.properties.contains_key(name) {
            let mut value = TRUE;
            for &(lang, expr, _) in &self.names {
                match work.langs.matches(lang, name) {
                    Some(true) => value = work.exprs.and(&[value, expr]),
                    Some(false) => {}
                    None => work.spent = true,
                }
            }
            self.properties.insert(name.clone(), Property { order: LATE + next, value, required: false });
        }
        let property = self.properties.get_mut(name).unwrap();
        if !late && property.order >= LATE {
            property.order = next;
        }
        property
    }

    fn narrow(&mut self, work: &mut Work<'_>, atom: &OfObject, wanted: bool, path: Path) -> bool {
        match (atom, wanted) {
            (OfObject::Requires(name), true) => {
                let property = self.property(work, name, true);
                property.required = true;
                return property.value != FALSE;
            }
            (OfObject::Requires(name), false) => {
                let property = self.property(work, name, true);
                property.value = FALSE;
                return !property.required;
            }
            (OfObject::Property(name, value), _) => {
                let value = if wanted { *value } else { work.exprs.not(*value) };
                let old = self.property(work, name, !wanted).value;
                let joined = work.exprs.and(&[old, value]);
                let property = self.property(work, name, !wanted);
                property.value = joined;
                property.required |= !wanted;
                return joined != FALSE || !property.required;
            }
            (&OfObject::Names(lang, value), true) => {
                for (name, property) in &mut self.properties {
                    match work.langs.matches(lang, name) {
                        Some(true) => property.value = work.exprs.and(&[property.value, value]),
                        Some(false) => {}
                        None => work.spent = true,
                    }
                }
                self.names.push((lang, value, path));
                return self
                    .properties
                    .values()
                    .all(|property| !property.required || property.value != FALSE);
            }
            (&OfObject::Names(lang, value), false) => {
                let value = work.exprs.not(value);
                self.some.push((lang, value, path));
            }
            (&OfObject::AtLeast(count), true) => (self.min, self.bound_path) = (self.min.max(count), path),
            (&OfObject::AtMost(count), true) => {
                smaller(&mut self.max, count);
                self.bound_path = path;
            }
            (&OfObject::AtLeast(0), false) => return false,
            (&OfObject::AtLeast(count), false) => {
                smaller(&mut self.max, count - 1);
                self.bound_path = path;
            }
            (&OfObject::AtMost(count), false) => {
                (self.min, self.bound_path) = (self.min.max(count.saturating_add(1)), path);
            }
            (OfObject::Unknown, _) => add(&mut self.open, path),
        }
        self.max.is_none_or(|max| self.min <= max)
    }
}
