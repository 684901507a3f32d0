//! How many values a schema has, for arrays of different items.
//!
//! Cost: for patterns the states of their languages, for arrays and objects the values that are counted; each expression
//! is counted once.

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::Refusal;
use crate::expression::{Expr, FALSE, KINDS, Kind, Path, TRUE};
use crate::language::{ANY, ANY_CHAR};
use crate::normal_form::case::{ArrayCase, Case, NumberCase, ObjectCase, TextCase};
use crate::normal_form::count::Count;
use crate::normalizer::{MAX_AHEAD, Normalizer};
use crate::number::Decimal;

/// Values of an array or an object that are counted.
pub(crate) const MAX_COUNTED: usize = 4_096;
/// Values that are listed one by one, which tells cases apart that overlap, ...
const MAX_LISTED: u64 = 256;
/// ... in arrays and objects that are nested up to this many levels deep.
const LEVELS: usize = 3;
/// Strings that are so much longer than the shortest are not counted where there are too many ways to write them.
const COUNTED_LENGTHS: u64 = 20;
/// No array has room for this many items.
const MANY: u64 = 100_000;

/// How many values of an item have come before it, all of them different.
struct Taken {
    least: u64,
    most: u64,
}

impl Normalizer<'_> {
    /// Leaves it to the compiler of the result to remember the items; false if an array might begin an item when no value
    /// is left.
    pub(crate) fn settle_remembered(&mut self, case: &mut ArrayCase, path: Path) -> Result<bool, Refusal> {
        for (at, item) in case.prefix.clone().into_iter().enumerate() {
            let count = self.count_values(item)?;
            if count.least() > at as u64 {
                continue;
            }
            let taken = self.taken(&case.prefix[..at], item)?;
            if count.least() > taken.most {
                continue;
            }
            match count {
                Count::Just(count) if count <= taken.least => {
                    case.max = Some(case.max.map_or(at as u64, |max| max.min(at as u64)));
                    break;
                }
                _ => return Ok(false),
            }
        }
        let first = case.prefix.len() as u64;
        if case.max.is_none_or(|max| max > first) {
            let count = self.count_values(case.rest)?;
            let enough = |count: Count| case.max.is_some_and(|max| max <= count.least());
            match count {
                Count::Many => {}
                count if enough(count) => {}
                Count::Just(count) => {
                    let taken = self.taken(&case.prefix, case.rest)?;
                    if taken.least != taken.most {
                        return Ok(false);
                    }
                    let room = first + count.saturating_sub(taken.least);
                    case.max = Some(case.max.map_or(room, |max| max.min(room)));
                }
                count if count.least() >= MAX_COUNTED as u64 => {
                    (case.max, case.shortened) = (Some(MAX_COUNTED as u64), Some(path));
                }
                Count::AtLeast(_) => return Ok(false),
            }
        }
        case.distinct = true;
        Ok(true)
    }

    /// How many of the values of `item` the items before it have taken.
    fn taken(&mut self, before: &[Expr], item: Expr) -> Result<Taken, Refusal> {
        let mut taken = Taken { least: 0, most: 0 };
        for &other in before {
            self.step()?;
            let both = self.exprs.and(&[other, item]);
            if !self.is_empty(both)? {
                taken.most += 1;
                taken.least += u64::from(self.is_within(other, item)?);
            }
        }
        Ok(taken)
    }

    fn count_values(&mut self, expr: Expr) -> Result<Count, Refusal> {
        match expr {
            TRUE => return Ok(Count::Many),
            FALSE => return Ok(Count::Just(0)),
            _ => {}
        }
        if let Some(known) = self.counts.get(&expr) {
            return Ok(*known);
        }
        if self.ahead >= MAX_AHEAD {
            return Ok(Count::AtLeast(1));
        }
        // Values that hold such values have no end.
        self.counts.insert(expr, Count::Many);
        self.ahead += 1;
        let open = std::mem::take(&mut self.open);
        let count = self.sum_of_cases(expr);
        self.open = open;
        self.ahead -= 1;
        let count = match count {
            Ok(Count::Just(MANY..) | Count::AtLeast(MANY..)) => Ok(Count::Many),
            count => count,
        };
        match &count {
            Ok(count) => self.counts.insert(expr, *count),
            Err(_) => self.counts.remove(&expr),
        };
        count
    }

    fn sum_of_cases(&mut self, expr: Expr) -> Result<Count, Refusal> {
        let mut sum = Count::Just(0);
        for kind in KINDS {
            // Those that are being computed further up the stack hold such values.
            let Some(cases) = self.cases(expr, kind)? else { return Ok(Count::Many) };
            sum = sum.plus(self.count_cases(&cases)?);
        }
        if matches!(sum, Count::AtLeast(..MAX_LISTED))
            && let Some(values) = self.listed(expr, LEVELS)?
        {
            sum = Count::Just(values.len() as u64);
        }
        Ok(sum)
    }

    /// All values of an expression, if they are few; arrays and objects are nested at most `levels` deep.
    fn listed(&mut self, expr: Expr, levels: usize) -> Result<Option<Vec<Value>>, Refusal> {
        let most = MAX_LISTED as usize;
        let mut all = Vec::new();
        for kind in [Kind::Array, Kind::Object] {
            let Some(cases) = self.cases(expr, kind)? else { return Ok(None) };
            for case in cases.iter() {
                self.spend(case.weight())?;
                let found = match case {
                    _ if levels == 0 => None,
                    Case::Array(case) if case.open.is_empty() => self.listed_arrays(case, levels - 1)?,
                    Case::Object(case) if case.open.is_empty() => self.listed_objects(case, levels - 1)?,
                    _ => None,
                };
                let Some(found) = found else { return Ok(None) };
                all.extend(found);
            }
        }
        let compound = self.exprs.kinds(&[Kind::Array, Kind::Object]);
        let scalar = self.exprs.not(compound);
        let scalars = self.exprs.and(&[expr, scalar]);
        let Some(scalars) = self.few_values(scalars, most)? else { return Ok(None) };
        // Cases may overlap.
        let mut apart: Vec<Value> = Vec::new();
        for value in scalars.into_iter().chain(all) {
            if !apart.contains(&value) {
                apart.push(value);
            }
        }
        Ok((apart.len() <= most).then_some(apart))
    }

    fn listed_arrays(&mut self, case: &ArrayCase, levels: usize) -> Result<Option<Vec<Value>>, Refusal> {
        let Some(max) = case.max.filter(|max| *max <= MAX_LISTED) else { return Ok(None) };
        let (mut all, mut here) = (Vec::new(), vec![Vec::<Value>::new()]);
        for length in 0..=max as usize {
            if length as u64 >= case.min {
                all.extend(here.iter().cloned().map(Value::Array));
            }
            if length == max as usize || here.is_empty() {
                break;
            }
            let item = case.prefix.get(length).copied().unwrap_or(case.rest);
            let Some(items) = self.listed(item, levels)? else { return Ok(None) };
            self.spend(here.len() * items.len())?;
            let longer = here.iter().flat_map(|before| items.iter().map(move |item| (before, item)));
            let longer = longer.filter(|(before, item)| !case.distinct || !before.contains(item));
            here = longer.map(|(before, item)| before.iter().chain([item]).cloned().collect()).collect();
            if all.len() + here.len() > MAX_LISTED as usize {
                return Ok(None);
            }
        }
        Ok(Some(all))
    }

    fn listed_objects(&mut self, case: &ObjectCase, levels: usize) -> Result<Option<Vec<Value>>, Refusal> {
        if !case.others.is_empty() {
            return Ok(None);
        }
        let mut all = vec![Map::new()];
        for (name, property) in case.properties.iter().filter(|(_, property)| property.value != FALSE) {
            let Some(values) = self.listed(property.value, levels)? else { return Ok(None) };
            self.spend(all.len() * values.len())?;
            let without = if property.required { Vec::new() } else { all.clone() };
            let with = all.iter().flat_map(|before| values.iter().map(move |value| (before, value)));
            all = with
                .map(|(before, value)| {
                    let mut object = before.clone();
                    object.insert(name.to_string(), value.clone());
                    object
                })
                .chain(without)
                .collect();
            if all.len() > MAX_LISTED as usize {
                return Ok(None);
            }
        }
        Ok(Some(all.into_iter().map(Value::Object).collect()))
    }

    fn count_cases(&mut self, cases: &Rc<Vec<Case>>) -> Result<Count, Refusal> {
        let mut all: Option<Count> = None;
        for case in cases.iter() {
            self.step()?;
            let count = match case {
                Case::Null => Count::Just(1),
                Case::Boolean { no, yes } => Count::Just(u64::from(*no) + u64::from(*yes)),
                Case::Number(case) => self.count_numbers(case),
                Case::Text(case) => self.count_texts(case).unwrap_or(Count::AtLeast(1)),
                Case::Array(case) => self.count_arrays(case)?,
                Case::Object(case) => self.count_objects(case)?,
            };
            all = Some(all.map_or(count, |all| all.or(count)));
        }
        Ok(all.unwrap_or(Count::Just(0)))
    }

    fn count_arrays(&mut self, case: &ArrayCase) -> Result<Count, Refusal> {
        let Some(max) = case.max else { return Ok(Count::Many) };
        if case.distinct {
            return self.count_distinct(case, max);
        }
        let (mut sum, mut here) = (Count::Just(0), Count::Just(1));
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        for length in 0..=max {
            if length as u64 >= case.min {
                sum = sum.plus(here);
            }
            // There is at least one of each length.
            if length > MAX_COUNTED || sum.least().max(here.least()) >= MAX_COUNTED as u64 {
                return Ok(if sum == Count::Many {
                    sum
                } else {
                    Count::AtLeast(sum.least().max(here.least()))
                });
            }
            if length < max {
                let item = case.prefix.get(length).copied().unwrap_or(case.rest);
                here = here.times(self.count_values(item)?);
            }
        }
        Ok(sum)
    }

    /// Arrays of different items: each item leaves one value less to the next.
    fn count_distinct(&mut self, case: &ArrayCase, max: u64) -> Result<Count, Refusal> {
        let count = self.count_values(case.prefix.first().copied().unwrap_or(case.rest))?;
        if !case.prefix.is_empty() || count == Count::Many {
            // Of one item, where that is enough.
            let one = if max > 0 && case.min <= 1 { count.least() } else { 1 };
            return Ok(if one == u64::MAX { Count::Many } else { Count::AtLeast(one.max(1)) });
        }
        let (mut sum, mut here) = (0u64, 1u64);
        for length in 0..=max.min(count.least()) {
            if length >= case.min {
                sum = sum.saturating_add(here);
            }
            if sum.max(here) >= MANY {
                return Ok(Count::Many);
            }
            here = here.saturating_mul(count.least() - length);
        }
        Ok(if matches!(count, Count::Just(_)) { Count::Just(sum) } else { Count::AtLeast(sum) })
    }

    fn count_objects(&mut self, case: &ObjectCase) -> Result<Count, Refusal> {
        let required = case.properties.values().filter(|property| property.required).count() as u64;
        if !case.others.is_empty() && case.max.is_none_or(|max| max > required) {
            return Ok(Count::Many);
        }
        let mut all = Count::Just(1);
        for property in case.properties.values().filter(|property| property.value != FALSE) {
            let count = self.count_values(property.value)?;
            all = all.times(if property.required { count } else { count.plus(Count::Just(1)) });
        }
        Ok(all)
    }

    fn count_numbers(&mut self, case: &NumberCase) -> Count {
        if case.no_multiple.is_empty() || case.min.is_none() || case.max.is_none() {
            return case.count();
        }
        match case.text(&mut self.langs).and_then(|lang| self.langs.count(lang)) {
            Some(Some(count)) => Count::Just(count),
            Some(None) => Count::Many,
            None => Count::AtLeast(1),
        }
    }

    fn count_texts(&mut self, case: &TextCase) -> Option<Count> {
        if let Some(among) = &case.among {
            return Some(Count::Just(among.len() as u64));
        }
        if case.lang == ANY && case.max.is_none() {
            return Some(Count::Many);
        }
        let longest = [case.max, Some(case.min.saturating_add(COUNTED_LENGTHS))].into_iter().flatten().min();
        for max in [case.max, longest] {
            let bounds = (u32::try_from(case.min).ok()?, max.map(u32::try_from).transpose().ok()?);
            let length = self.langs.repeat(ANY_CHAR, bounds.0, bounds.1);
            let lang = self.langs.and(vec![case.lang, length]);
            match self.langs.count(lang) {
                Some(None) => return Some(Count::Many),
                Some(Some(count)) if max == case.max => return Some(Count::Just(count)),
                Some(Some(count)) => return Some(Count::AtLeast(count)),
                None => {}
            }
        }
        None
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
