//! Shapes of arrays, settled: `contains` and `uniqueItems` become cases of items one by one where that is exact.
//!
//! A count (`contains`) is exact if behind some position all items are known to be like it or none is, or if the array
//! is short. Cost: the number of cases, which is bounded.

use std::rc::Rc;

use serde_json::{Value, json};

use super::expression::{Expr, FALSE, KINDS, Path};
use super::shape::{ArrayShape, Count, Shape, add};
use super::work::Work;
use crate::grammar::Refusal;

/// Arrays up to this long are looked at item by item.
const MOST_ITEMS: u64 = 12;
const MOST_CASES: usize = 200;

/// Whether an item is like the one that is counted.
#[derive(Clone, Copy, PartialEq)]
enum Like {
    Never,
    Maybe,
    Always,
}

impl Work<'_> {
    pub(super) fn settle_array(&mut self, mut shape: ArrayShape) -> Result<Vec<ArrayShape>, Refusal> {
        self.pay(1 + shape.prefix.len())?;
        if let Some(max) = shape.max {
            shape.prefix.truncate(usize::try_from(max).unwrap_or(usize::MAX));
        }
        for at in 0..shape.prefix.len() {
            if self.is_empty(shape.prefix[at])? {
                shape.max = Some(at as u64);
                shape.prefix.truncate(at);
                break;
            }
        }
        let count = shape.prefix.len() as u64;
        if shape.max.is_none_or(|max| max > count) && self.is_empty(shape.rest)? {
            shape.max = Some(count);
        }
        if shape.max == Some(count) {
            shape.rest = FALSE;
        }
        if shape.max.is_some_and(|max| shape.min > max) {
            return Ok(Vec::new());
        }
        if let Some(count) = shape.counts.pop() {
            return self.settle_count(shape, count);
        }
        if let Some(path) = shape.unique.take() {
            return self.settle_unique(shape, path);
        }
        while shape.prefix.last() == Some(&shape.rest) {
            shape.prefix.pop();
        }
        Ok(vec![shape])
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

    fn settle_count(&mut self, mut shape: ArrayShape, count: Count) -> Result<Vec<ArrayShape>, Refusal> {
        if count.max.is_some_and(|max| max < count.min) {
            return Ok(Vec::new());
        }
        if count.max == Some(0) {
            let other = self.exprs.not(count.item);
            shape.unfold(count.from);
            for item in &mut shape.prefix[count.from..] {
                *item = self.exprs.and(&[*item, other]);
            }
            shape.rest = self.exprs.and(&[shape.rest, other]);
            return self.settle_array(shape);
        }
        shape.unfold(count.from);
        if let Some(max) = shape.max.filter(|&max| max <= MOST_ITEMS) {
            shape.unfold(max as usize);
            shape.rest = FALSE;
        }
        let mut likes = vec![Like::Never; count.from];
        for at in count.from..shape.prefix.len() {
            likes.push(self.like(shape.prefix[at], count.item)?);
        }
        let rest = self.like(shape.rest, count.item)?;
        let settled = rest != Like::Maybe && !likes.contains(&Like::Maybe);
        let mut out = Vec::new();
        if settled {
            out.extend(by_length(shape, &count, &likes, rest));
        } else if rest == Like::Never && self.choose(&shape, &count, &likes, 0, 0, &mut out) {
            // `out` has the cases.
        } else {
            add(&mut shape.open, count.path);
            out = vec![shape];
        }
        let mut all = Vec::new();
        for shape in out {
            all.extend(self.settle_array(shape)?);
        }
        Ok(all)
    }

    /// The cases of which item is the next that is like the counted one, from `start` on with `hits` before it; false
    /// if they are too many.
    fn choose(
        &mut self,
        shape: &ArrayShape,
        count: &Count,
        likes: &[Like],
        start: usize,
        hits: u64,
        out: &mut Vec<ArrayShape>,
    ) -> bool {
        if hits >= count.min && count.max.is_none() {
            out.push(shape.clone());
            return out.len() <= MOST_CASES;
        }
        let other = self.exprs.not(count.item);
        let mut before = shape.clone();
        for at in start..likes.len() {
            if likes[at] == Like::Never {
                continue;
            }
            if count.max.is_none_or(|max| hits < max) {
                let mut with = before.clone();
                with.prefix[at] = self.exprs.and(&[with.prefix[at], count.item]);
                with.min = with.min.max(at as u64 + 1);
                if with.max.is_none_or(|max| with.min <= max)
                    && !self.choose(&with, count, likes, at + 1, hits + 1, out)
                {
                    return false;
                }
            }
            before.prefix[at] = self.exprs.and(&[before.prefix[at], other]);
        }
        if hits >= count.min {
            out.push(before);
        }
        out.len() <= MOST_CASES
    }

    fn settle_unique(&mut self, mut shape: ArrayShape, path: Path) -> Result<Vec<ArrayShape>, Refusal> {
        if shape.max.is_some_and(|max| max <= 1) {
            return self.settle_array(shape);
        }
        if let Some(max) = shape.max.filter(|&max| max <= MOST_ITEMS) {
            shape.unfold(max as usize);
            if self.are_apart(&shape.prefix)? {
                return self.settle_array(shape);
            }
        }
        match self.permutations(&shape, path)? {
            Some(cases) => Ok(cases),
            None => {
                add(&mut shape.open, path);
                self.settle_array(shape)
            }
        }
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
    fn permutations(&mut self, shape: &ArrayShape, path: Path) -> Result<Option<Vec<ArrayShape>>, Refusal> {
        let mut values = Vec::new();
        for &item in shape.prefix.iter().chain([&shape.rest]) {
            match self.few_values(item)? {
                Some(found) => values.push(found),
                None => return Ok(None),
            }
        }
        let mut out = Vec::new();
        let mut todo = vec![Vec::<Value>::new()];
        while let Some(items) = todo.pop() {
            self.step()?;
            let here = &values[items.len().min(shape.prefix.len())];
            if shape.max.is_none_or(|max| (items.len() as u64) < max) {
                for value in here.iter().rev() {
                    if !items.contains(value) {
                        todo.push(items.iter().chain([value]).cloned().collect());
                    }
                }
            }
            if items.len() as u64 >= shape.min {
                out.push(items);
            }
            if out.len() + todo.len() > MOST_CASES {
                return Ok(None);
            }
        }
        let mut shapes = Vec::new();
        for items in out {
            let mut prefix = Vec::new();
            for item in &items {
                prefix.push(self.any_of_values(std::slice::from_ref(item), path)?);
            }
            shapes.push(ArrayShape {
                min: items.len() as u64,
                max: Some(items.len() as u64),
                prefix,
                rest: FALSE,
                counts: Vec::new(),
                unique: None,
                open: shape.open.clone(),
            });
        }
        Ok(Some(shapes))
    }

    /// The same as [`Self::few_values`], remembered.
    pub(super) fn known_values(&mut self, expr: Expr) -> Result<Option<Rc<Vec<Value>>>, Refusal> {
        if let Some(known) = self.values.get(&expr) {
            return Ok(known.clone());
        }
        let values = self.few_values(expr)?.map(Rc::new);
        self.values.insert(expr, values.clone());
        Ok(values)
    }

    /// All values that an expression allows, if they are few and neither arrays nor objects.
    fn few_values(&mut self, expr: Expr) -> Result<Option<Vec<Value>>, Refusal> {
        if expr == FALSE {
            return Ok(Some(Vec::new()));
        }
        let mut out = Vec::new();
        for kind in KINDS {
            let Some(shapes) = self.shapes(expr, kind)? else { return Ok(None) };
            for shape in shapes.iter() {
                match shape {
                    Shape::Null => out.push(Value::Null),
                    Shape::Boolean { no, yes } => {
                        out.extend(no.then_some(json!(false)));
                        out.extend(yes.then_some(json!(true)));
                    }
                    Shape::Number(shape) if shape.open.is_empty() => {
                        let Some(among) = &shape.among else { return Ok(None) };
                        for number in among {
                            let Some(number) = number.to_value() else { return Ok(None) };
                            out.push(number);
                        }
                    }
                    Shape::Text(shape) if shape.open.is_empty() && shape.formats.is_empty() => {
                        let Some(among) = &shape.among else { return Ok(None) };
                        out.extend(among.iter().map(|text| json!(&**text)));
                    }
                    _ => return Ok(None),
                }
            }
            if out.len() > MOST_ITEMS as usize {
                return Ok(None);
            }
        }
        // Shapes may overlap.
        let mut apart = Vec::new();
        for value in out {
            if !apart.contains(&value) {
                apart.push(value);
            }
        }
        Ok(Some(apart))
    }
}

/// The lengths that give the right count, where each item's likeness is known.
fn by_length(mut shape: ArrayShape, count: &Count, likes: &[Like], rest: Like) -> Option<ArrayShape> {
    let known = likes.len() as u64;
    let hits = |length: u64| {
        let first = likes.iter().take(length as usize).filter(|&&like| like == Like::Always).count() as u64;
        first + if rest == Like::Always { length.saturating_sub(known) } else { 0 }
    };
    if hits(known) >= count.min {
        let least = (0..=known).find(|&length| hits(length) >= count.min)?;
        shape.min = shape.min.max(least);
    } else if rest == Like::Always {
        shape.min = shape.min.max(known.checked_add(count.min - hits(known))?);
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
            shape.max = Some(shape.max.map_or(most, |max| max.min(most)));
        }
    }
    shape.max.is_none_or(|max| shape.min <= max).then_some(shape)
}
