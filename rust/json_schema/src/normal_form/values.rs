//! How many values a schema has that are neither arrays nor objects, for arrays of different items.
//!
//! Cost: for patterns the states of their languages, and the values that are counted.

use crate::Refusal;
use crate::expression::{Expr, KINDS, Path};
use crate::keywords::DAY;
use crate::language::{ANY, ANY_CHAR, search};
use crate::normal_form::case::{ArrayCase, Case, NumberCase, TextCase};
use crate::normalizer::Normalizer;
use crate::number::Decimal;

/// So many strings of a pattern are counted.
pub(crate) const MAX_COUNTED: usize = 4_096;

/// How many values there are.
#[derive(Clone, Copy)]
enum Count {
    Just(u64),
    /// At least [`MAX_COUNTED`], perhaps no more.
    Several,
    /// More than an array has room for.
    Many,
}

impl Normalizer<'_> {
    /// Leaves it to the compiler of the result to remember the items; false if it could not, or an array might begin an item
    /// when no value is left.
    pub(crate) fn settle_remembered(&mut self, case: &mut ArrayCase, path: Path) -> Result<bool, Refusal> {
        match self.count_values(case.rest)? {
            None => return Ok(false),
            Some(Count::Many) => {}
            Some(Count::Just(count)) => case.max = Some(case.max.map_or(count, |max| max.min(count))),
            Some(Count::Several) => {
                let most = MAX_COUNTED as u64;
                if case.max.is_none_or(|max| max > most) {
                    (case.max, case.shortened) = (Some(most), Some(path));
                }
            }
        }
        case.distinct = true;
        Ok(true)
    }

    /// None where that is not known, or some values are arrays or objects.
    fn count_values(&mut self, expr: Expr) -> Result<Option<Count>, Refusal> {
        let mut sum = Count::Just(0);
        for kind in KINDS {
            let Some(cases) = self.cases(expr, kind)? else { return Ok(None) };
            let mut counts = Vec::new();
            for case in cases.iter() {
                let count = match case {
                    Case::Null => Some(Count::Just(1)),
                    Case::Boolean { no, yes } => Some(Count::Just(u64::from(*no) + u64::from(*yes))),
                    Case::Number(case) => Some(case.count()),
                    Case::Text(case) => self.count_texts(case),
                    Case::Array(_) | Case::Object(_) => None,
                };
                let Some(count) = count else { return Ok(None) };
                counts.push(count);
            }
            let is_many = |count: &Count| matches!(count, Count::Many);
            sum = match (sum, &counts[..]) {
                (sum, []) => sum,
                (Count::Many, _) => Count::Many,
                (_, counts) if counts.iter().any(is_many) => Count::Many,
                (Count::Just(a), [Count::Just(b)]) => Count::Just(a.saturating_add(*b)),
                (_, counts) if counts.iter().any(|count| matches!(count, Count::Several)) => Count::Several,
                // Of several cases some values may be the same.
                (_, [_, _, ..]) => return Ok(None),
                _ => Count::Several,
            };
        }
        Ok(Some(sum))
    }

    fn count_texts(&mut self, case: &TextCase) -> Option<Count> {
        if !case.formats.is_empty() {
            let day = search::language(&mut self.langs, DAY);
            let free = case.lang == ANY || Some(case.lang) == day;
            return (free && case.among.is_none() && case.min == 0 && case.max.is_none())
                .then_some(Count::Many);
        }
        if let Some(among) = &case.among {
            return Some(Count::Just(among.len() as u64));
        }
        if case.lang == ANY && case.max.is_none() {
            return Some(Count::Many);
        }
        let bounds = (u32::try_from(case.min), case.max.map(u32::try_from).transpose());
        let (Ok(min), Ok(max)) = bounds else { return None };
        let length = self.langs.repeat(ANY_CHAR, min, max);
        let lang = self.langs.and(vec![case.lang, length]);
        match self.langs.strings(lang, MAX_COUNTED) {
            Some(strings) => Some(Count::Just(strings.len() as u64)),
            None if case.max.is_none() && !self.langs.is_finite(case.lang) => Some(Count::Many),
            None => Some(Count::Several),
        }
    }
}

impl NumberCase {
    fn count(&self) -> Count {
        if let Some(among) = &self.among {
            return Count::Just(among.len() as u64);
        }
        let of = match (self.multiple, self.whole) {
            (Some((of, _)), _) => Some(of),
            (None, Some((true, _))) => Decimal::whole(1),
            _ => None,
        };
        match (of, self.min, self.max) {
            (Some(of), Some(min), Some(max)) => {
                let (first, last) = Decimal::multiples((min.0, min.1), (max.0, max.1), of);
                u64::try_from((last - first).saturating_add(1)).map_or(Count::Many, Count::Just)
            }
            _ => Count::Many,
        }
    }
}
