//! Settles cases of arrays: `contains` and `uniqueItems` become cases of single items where that is exact.
//!
//! A count (`contains`) is exact if behind some position all items are known to be like it or none is, or if the array
//! is short. Cost: the number of cases, which is bounded.

use std::rc::Rc;

use serde_json::{Value, json};

use crate::Refusal;
use crate::expression::{Expr, FALSE, KINDS, Path};
use crate::normal_form::case::{ArrayCase, Case, Count, add};
use crate::normalizer::Normalizer;

/// Arrays up to this long are expanded item by item.
const MAX_ITEMS: u64 = 12;
/// Where any item of a long array may match, those that count come among the first of them: the most for which the cases are few.
const WINDOWS: [usize; 3] = [8, 5, 3];
const MAX_CASES: usize = 200;
/// Values that the compiler of the result can tell apart.
const MAX_DISTINCT: usize = 64;

/// Whether an item matches the counted schema.
#[derive(Clone, Copy, PartialEq)]
enum Like {
    Never,
    Maybe,
    Always,
}

impl Normalizer<'_> {
    pub(crate) fn settle_array(&mut self, mut case: ArrayCase) -> Result<Vec<ArrayCase>, Refusal> {
        self.spend(1 + case.prefix.len())?;
        if let Some(max) = case.max {
            case.prefix.truncate(usize::try_from(max).unwrap_or(usize::MAX));
        }
        for at in 0..case.prefix.len() {
            if self.is_empty(case.prefix[at])? {
                case.max = Some(at as u64);
                case.prefix.truncate(at);
                break;
            }
        }
        let count = case.prefix.len() as u64;
        if case.max.is_none_or(|max| max > count) && self.is_empty(case.rest)? {
            case.max = Some(count);
        }
        if case.max == Some(count) {
            case.rest = FALSE;
        }
        if case.max.is_some_and(|max| case.min > max) {
            return Ok(Vec::new());
        }
        if let Some(count) = case.counts.pop() {
            return self.settle_count(case, count);
        }
        if let Some(path) = case.unique.take() {
            return self.settle_unique(case, path);
        }
        while case.prefix.last() == Some(&case.rest) {
            case.prefix.pop();
        }
        Ok(vec![case])
    }

    fn like(&mut self, item: Expr, like: Expr) -> Result<Like, Refusal> {
        let both = self.exprs.and(&[item, like]);
        Ok(if self.is_empty(both)? {
            Like::Never
        } else if self.is_within(item, like)? {
            Like::Always
        } else {
            Like::Maybe
        })
    }

    fn settle_count(&mut self, mut case: ArrayCase, count: Count) -> Result<Vec<ArrayCase>, Refusal> {
        if count.max.is_some_and(|max| max < count.min) {
            return Ok(Vec::new());
        }
        if count.min == 0 && count.max.is_none() {
            return self.settle_array(case);
        }
        if count.max == Some(0) {
            let other = self.exprs.not(count.item);
            case.unfold(count.from);
            for item in &mut case.prefix[count.from..] {
                *item = self.exprs.and(&[*item, other]);
            }
            case.rest = self.exprs.and(&[case.rest, other]);
            return self.settle_array(case);
        }
        case.unfold(count.from);
        if let Some(max) = case.max.filter(|&max| max <= MAX_ITEMS) {
            case.unfold(max as usize);
            case.rest = FALSE;
        }
        let mut likes = vec![Like::Never; count.from];
        for at in count.from..case.prefix.len() {
            likes.push(self.like(case.prefix[at], count.item)?);
        }
        let rest = self.like(case.rest, count.item)?;
        let settled = rest != Like::Maybe && !likes.contains(&Like::Maybe);
        let mut out = Vec::new();
        if settled {
            out.extend(by_length(case, &count, &likes, rest));
        } else if rest != Like::Maybe && self.choose(&case, &count, &likes, rest, 0, 0, &mut out) {
            // `out` has the cases.
        } else if !self.choose_early(&case, &count, &likes, rest, &mut out) {
            add(&mut case.open, count.path);
            out = vec![case];
        }
        let mut all = Vec::new();
        for case in out {
            all.extend(self.settle_array(case)?);
        }
        Ok(all)
    }

    /// The same where any item may match, however long the array is: the matches come among the first ones. That leaves
    /// out arrays, but all only if none is left.
    fn choose_early(
        &mut self,
        case: &ArrayCase,
        count: &Count,
        likes: &[Like],
        rest: Like,
        out: &mut Vec<ArrayCase>,
    ) -> bool {
        if rest != Like::Maybe {
            return false;
        }
        let other = self.exprs.not(count.item);
        WINDOWS.into_iter().filter(|window| *window as u64 >= count.min).any(|window| {
            let (mut case, mut likes) = (case.clone(), likes.to_vec());
            case.unfold(likes.len() + window);
            likes.resize(case.prefix.len(), rest);
            if count.max.is_some() {
                case.rest = self.exprs.and(&[case.rest, other]);
            }
            add(&mut case.narrowed, count.path);
            out.clear();
            self.choose(&case, count, &likes, Like::Never, 0, 0, out)
        })
    }

    /// Splits by which item is the next match, from `start` on with `hits` before it; false if there are too many cases.
    /// `rest` says whether the items behind match: never or always.
    #[allow(clippy::too_many_arguments)]
    fn choose(
        &mut self,
        case: &ArrayCase,
        count: &Count,
        likes: &[Like],
        rest: Like,
        start: usize,
        hits: u64,
        out: &mut Vec<ArrayCase>,
    ) -> bool {
        if hits >= count.min && count.max.is_none() {
            out.push(case.clone());
            return out.len() <= MAX_CASES;
        }
        let other = self.exprs.not(count.item);
        let mut before = case.clone();
        for at in start..likes.len() {
            if likes[at] == Like::Never {
                continue;
            }
            if count.max.is_none_or(|max| hits < max) {
                let mut with = before.clone();
                with.prefix[at] = self.exprs.and(&[with.prefix[at], count.item]);
                with.min = with.min.max(at as u64 + 1);
                if with.max.is_none_or(|max| with.min <= max)
                    && !self.choose(&with, count, likes, rest, at + 1, hits + 1, out)
                {
                    return false;
                }
            }
            before.prefix[at] = self.exprs.and(&[before.prefix[at], other]);
        }
        if rest == Like::Always {
            // The items behind match, each of them.
            let known = likes.len() as u64;
            before.min = before.min.max(match count.min.saturating_sub(hits) {
                0 => 0,
                missing => known.saturating_add(missing),
            });
            let most = count.max.map(|max| known.saturating_add(max - hits));
            before.max = [before.max, most].into_iter().flatten().min();
            out.extend(Some(before).filter(|case| case.max.is_none_or(|max| case.min <= max)));
        } else if hits >= count.min {
            out.push(before);
        }
        out.len() <= MAX_CASES
    }

    fn settle_unique(&mut self, mut case: ArrayCase, path: Path) -> Result<Vec<ArrayCase>, Refusal> {
        if case.max.is_some_and(|max| max <= 1) {
            return self.settle_array(case);
        }
        if let Some(max) = case.max.filter(|&max| max <= MAX_ITEMS) {
            let mut unfolded = case.clone();
            unfolded.unfold(max as usize);
            if self.are_apart(&unfolded.prefix)? {
                return self.settle_array(unfolded);
            }
        }
        match self.permutations(&case, path)? {
            Some(cases) => Ok(cases),
            None => {
                if !self.settle_distinct(&mut case, path)? {
                    add(&mut case.open, path);
                }
                self.settle_array(case)
            }
        }
    }

    /// Leaves it to the compiler of the result that all items differ; false if it cannot see to that.
    fn settle_distinct(&mut self, case: &mut ArrayCase, path: Path) -> Result<bool, Refusal> {
        if !self.compiler.distinct {
            return Ok(false);
        }
        let listed = if case.prefix.is_empty() { self.few_values(case.rest, MAX_DISTINCT)? } else { None };
        let Some(values) = listed else { return self.settle_remembered(case, path) };
        let count = values.len() as u64;
        case.max = Some(case.max.map_or(count, |max| max.min(count)));
        case.rest = self.any_of_values(&values, path)?;
        case.distinct = true;
        Ok(true)
    }

    fn are_apart(&mut self, items: &[Expr]) -> Result<bool, Refusal> {
        for a in 0..items.len() {
            for b in 0..a {
                let both = self.exprs.and(&[items[a], items[b]]);
                if !self.is_empty(both)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// All arrays of different items, if the items are few.
    fn permutations(&mut self, case: &ArrayCase, path: Path) -> Result<Option<Vec<ArrayCase>>, Refusal> {
        let mut values = Vec::new();
        for &item in case.prefix.iter().chain([&case.rest]) {
            match self.few_values(item, MAX_ITEMS as usize)? {
                Some(found) => values.push(found),
                None => return Ok(None),
            }
        }
        let mut out = Vec::new();
        let mut todo = vec![Vec::<Value>::new()];
        while let Some(items) = todo.pop() {
            self.step()?;
            let here = &values[items.len().min(case.prefix.len())];
            if case.max.is_none_or(|max| (items.len() as u64) < max) {
                for value in here.iter().rev() {
                    if !items.contains(value) {
                        todo.push(items.iter().chain([value]).cloned().collect());
                    }
                }
            }
            if items.len() as u64 >= case.min {
                out.push(items);
            }
            if out.len() + todo.len() > MAX_CASES {
                return Ok(None);
            }
        }
        let mut cases = Vec::new();
        for items in out {
            let mut prefix = Vec::new();
            for item in &items {
                prefix.push(self.any_of_values(std::slice::from_ref(item), path)?);
            }
            cases.push(ArrayCase {
                min: items.len() as u64,
                max: Some(items.len() as u64),
                prefix,
                rest: FALSE,
                counts: Vec::new(),
                unique: None,
                open: case.open.clone(),
                distinct: false,
                shortened: None,
                narrowed: case.narrowed.clone(),
            });
        }
        Ok(Some(cases))
    }

    /// The same as [`Self::few_values`], remembered.
    pub(crate) fn known_values(&mut self, expr: Expr) -> Result<Option<Rc<Vec<Value>>>, Refusal> {
        if let Some(known) = self.values.get(&expr) {
            return Ok(known.clone());
        }
        let values = self.few_values(expr, MAX_ITEMS as usize)?.map(Rc::new);
        self.values.insert(expr, values.clone());
        Ok(values)
    }

    /// All values that an expression allows, if they are at most `most` and neither arrays nor objects.
    pub(crate) fn few_values(&mut self, expr: Expr, most: usize) -> Result<Option<Vec<Value>>, Refusal> {
        if expr == FALSE {
            return Ok(Some(Vec::new()));
        }
        let mut out = Vec::new();
        for kind in KINDS {
            let Some(cases) = self.cases(expr, kind)? else { return Ok(None) };
            for case in cases.iter() {
                match case {
                    Case::Null => out.push(Value::Null),
                    Case::Boolean { no, yes } => {
                        out.extend(no.then_some(json!(false)));
                        out.extend(yes.then_some(json!(true)));
                    }
                    Case::Number(case) if case.open.is_empty() => {
                        let Some(among) = case.listed(most) else { return Ok(None) };
                        for number in among {
                            let Some(number) = number.to_value() else { return Ok(None) };
                            out.push(number);
                        }
                    }
                    Case::Text(case) if case.open.is_empty() => {
                        let Some(among) = &case.among else { return Ok(None) };
                        out.extend(among.iter().map(|text| json!(&**text)));
                    }
                    _ => return Ok(None),
                }
            }
            if out.len() > most {
                return Ok(None);
            }
        }
        // Cases may overlap.
        let mut apart = Vec::new();
        for value in out {
            if !apart.contains(&value) {
                apart.push(value);
            }
        }
        Ok(Some(apart))
    }
}

/// The lengths that give the right count, where it is known of each item whether it matches.
fn by_length(mut case: ArrayCase, count: &Count, likes: &[Like], rest: Like) -> Option<ArrayCase> {
    let known = likes.len() as u64;
    let hits = |length: u64| {
        let first = likes.iter().take(length as usize).filter(|&&like| like == Like::Always).count() as u64;
        first + if rest == Like::Always { length.saturating_sub(known) } else { 0 }
    };
    if hits(known) >= count.min {
        let least = (0..=known).find(|&length| hits(length) >= count.min)?;
        case.min = case.min.max(least);
    } else if rest == Like::Always {
        case.min = case.min.max(known.checked_add(count.min - hits(known))?);
    } else {
        return None;
    }
    if let Some(max) = count.max {
        let most = if hits(known) > max {
            (0..=known).rev().find(|&length| hits(length) <= max)
        } else if rest == Like::Always {
            known.checked_add(max - hits(known))
        } else {
            None
        };
        if let Some(most) = most {
            case.max = Some(case.max.map_or(most, |max| max.min(most)));
        }
    }
    case.max.is_none_or(|max| case.min <= max).then_some(case)
}
