//! Settles cases of numbers and strings: a case that is left has a value, as far as that can be decided.
//!
//! Cost: the values that a case spells out, and for strings the states of their language.

use crate::expression::Path;
use crate::language::{Lang, Languages, NEVER, numbers, search};
use crate::normal_form::case::{Bound, Case, NumberCase, TextCase, add};
use crate::normalizer::Normalizer;
use crate::number::Decimal;
use crate::{Compiler, Refusal};

/// Multiples in a range that are spelled out.
const MAX_SPELLED: i128 = 64;
const MAX_PIECES: usize = 32;
/// A pattern has a state for each remainder.
const MAX_DIVISOR: i128 = 300;
const MAX_STATES: usize = 300;

impl Normalizer<'_> {
    /// What is left of a case once everything that can be decided about it is.
    pub(crate) fn settle(&mut self, case: Case) -> Result<Vec<Case>, Refusal> {
        self.step()?;
        Ok(match case {
            Case::Number(case) => {
                let mut cases = settle_number(case, self.compiler);
                cases.retain(|case| !case.needs_text(self.compiler) || self.has_number(case));
                cases.into_iter().map(Case::Number).collect()
            }
            Case::Text(case) => self.settle_text(case).into_iter().map(Case::Text).collect(),
            Case::Array(case) => self.settle_array(case)?.into_iter().map(Case::Array).collect(),
            Case::Object(case) => self.settle_object(case)?.into_iter().map(Case::Object).collect(),
            other => vec![other],
        })
    }

    /// Whether a case whose numbers are told by their text is not known to have none.
    fn has_number(&mut self, case: &NumberCase) -> bool {
        let text = case.text(&mut self.langs);
        text.is_some_and(|text| self.langs.is_empty(text, MAX_STATES) != Some(true))
    }

    fn settle_text(&mut self, mut case: TextCase) -> Option<TextCase> {
        if case.max == Some(0) && case.among.is_none() {
            case.among = Some(vec!["".into()]);
        }
        let Some(among) = case.among.take() else {
            case.lang = self.langs.without_idle(case.lang, MAX_STATES);
            let empty = case.lang == NEVER
                || !self.langs.is_plain(case.lang)
                    && self.langs.is_empty(case.lang, MAX_STATES) == Some(true);
            return (!empty).then_some(case);
        };
        let mut left = Vec::new();
        for text in among {
            let length = text.chars().count() as u64;
            if length < case.min || case.max.is_some_and(|max| length > max) {
                continue;
            }
            match self.langs.matches(case.lang, &text) {
                Some(true) => left.push(text),
                Some(false) => {}
                None => self.spent = true,
            }
        }
        if left.is_empty() {
            return None;
        }
        (case.lang, case.min, case.max) = (crate::language::ANY, 0, None);
        case.among = Some(left);
        Some(case)
    }
}

impl NumberCase {
    /// Whether a bound of the case can be written without rounding.
    pub(crate) fn can_write(&self, (bound, ..): Bound, at_least: bool) -> bool {
        let both = self.min.is_some() && self.max.is_some();
        let whole = matches!(self.whole, Some((true, _))) && self.multiple.is_none();
        bound.is_exact_bound() || whole && bound.is_exact_whole_bound(at_least, both)
    }

    /// Whether the numbers are those whose text matches [a pattern](Self::text), and no keywords say it.
    pub(crate) fn needs_text(&self, compiler: Compiler) -> bool {
        let exact =
            |bound: Option<Bound>, at_least| bound.is_none_or(|bound| self.can_write(bound, at_least));
        let said = !matches!(self.whole, Some((false, _)))
            && self.no_multiple.is_empty()
            && self.multiple.is_none_or(|(of, _)| of.is_exact_divisor())
            && exact(self.min, true)
            && exact(self.max, false);
        compiler.texts && !said && self.has_text()
    }

    /// What the keywords of the normal form do not say.
    pub(crate) fn beyond_keywords(&self) -> Vec<Path> {
        let paths = [
            self.whole.and_then(|(whole, path)| (!whole).then_some(path)),
            self.min.and_then(|bound| (!self.can_write(bound, true)).then_some(bound.2)),
            self.max.and_then(|bound| (!self.can_write(bound, false)).then_some(bound.2)),
            self.multiple.and_then(|(of, path)| (!of.is_exact_divisor()).then_some(path)),
            self.no_multiple.first().map(|&(_, path)| path),
        ];
        paths.into_iter().flatten().collect()
    }

    /// Whether all that is asked of the numbers can be said of their text.
    fn has_text(&self) -> bool {
        let whole = |bound: Option<Bound>| bound.is_none_or(|(bound, ..)| bound.is_whole());
        let counted = |of: Decimal| {
            matches!(self.whole, Some((true, _))) && of.as_whole().is_some_and(has_few_remainders)
        };
        whole(self.min)
            && whole(self.max)
            && self.except.is_empty()
            && self.multiple.is_none_or(|(of, _)| counted(of))
            && self.no_multiple.iter().all(|&(of, _)| counted(of))
    }

    /// The texts of the numbers; none if there are none.
    pub(crate) fn text(&self, langs: &mut Languages) -> Option<Lang> {
        let bound = |bound: Option<Bound>, inward: i128| {
            bound.and_then(|(bound, out, _)| Some((bound.as_whole()?, if out { inward } else { 0 })))
        };
        let (min, max) = (bound(self.min, 1), bound(self.max, -1));
        let whole = || numbers::whole(min.map(|(at, out)| at + out), max.map(|(at, out)| at + out));
        let others = || numbers::fractions(min.map(|(at, _)| at), max.map(|(at, _)| at));
        let ways = match self.whole {
            Some((true, _)) => vec![whole()],
            Some((false, _)) => vec![others()],
            None => vec![whole(), others()],
        };
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        let mut parts = vec![search::language(langs, &format!("^(?:{})$", ways.join("|")))?];
        for (of, wanted) in self
            .multiple
            .iter()
            .map(|&(of, _)| (of, true))
            .chain(self.no_multiple.iter().map(|&(of, _)| (of, false)))
        {
            let multiples = langs.multiples(u32::try_from(of.as_whole()?).ok()?);
            parts.push(if wanted { multiples } else { langs.not(multiples) });
        }
        (!ways.is_empty()).then(|| langs.and(parts))
    }

    /// All its values, if they are whole numbers and at most `most`.
    pub(crate) fn listed(&self, most: usize) -> Option<Vec<Decimal>> {
        if let Some(among) = &self.among {
            return Some(among.clone());
        }
        let (min, max) = (self.min?, self.max?);
        if !matches!(self.whole, Some((true, _))) {
            return None;
        }
        let (first, last) = Decimal::multiples((min.0, min.1), (max.0, max.1), Decimal::whole(1)?);
        if last.checked_sub(first)? >= most as i128 {
            return None;
        }
        Some((first..=last).filter_map(Decimal::whole).filter(|&number| self.holds(number)).collect())
    }

    fn holds(&self, number: Decimal) -> bool {
        self.min.is_none_or(|(min, out, _)| number > min || number == min && !out)
            && self.max.is_none_or(|(max, out, _)| number < max || number == max && !out)
            && self.whole.is_none_or(|(whole, _)| number.is_whole() == whole)
            && self.multiple.is_none_or(|(of, _)| number.is_multiple(of))
            && !self.no_multiple.iter().any(|&(of, _)| number.is_multiple(of))
            && !self.except.contains(&number)
    }

    /// The bound that the compiler would let through: one that is left out itself, is whole, and is nearer to zero
    /// than the other one, which has the same whole part. It takes the part behind the point for optional then.
    fn ends_at_a_whole(&self) -> Option<Path> {
        let (min, max) = (self.min?, self.max?);
        let zero = Decimal::whole(0)?;
        if matches!(self.whole, Some((true, _))) {
            return None;
        }
        let low = min.1 && min.0.is_whole() && min.0 >= zero && max.0 < min.0.step(1);
        let high = max.1 && max.0.is_whole() && max.0 <= zero && min.0 > max.0.step(-1);
        low.then_some(min.2).or(high.then_some(max.2))
    }

    /// What is below zero and what is not, of a bounded range of multiples that have a part behind the point. The
    /// compiler makes these halves itself, takes no zeros at the end below zero, and wants them at the end of a
    /// multiple; cut here, the lower half ends at a multiple.
    fn halves(&self) -> Option<(NumberCase, NumberCase)> {
        let zero = Decimal::whole(0)?;
        let (of, path) = self.multiple?;
        let bounded = self.min.is_some() || self.max.is_some();
        let on_both_sides =
            self.min.is_none_or(|(min, _, _)| min < zero) && self.max.is_none_or(|(max, _, _)| max >= zero);
        if of.is_whole() || !bounded || !on_both_sides {
            return None;
        }
        let (mut low, mut high) = (self.clone(), self.clone());
        low.below((zero, true, path));
        high.above((zero, false, path));
        Some((low, high))
    }

    /// The same, spelled out.
    fn spelled(&self, numbers: impl IntoIterator<Item = Decimal>, path: Path) -> Option<NumberCase> {
        let among: Vec<Decimal> = numbers.into_iter().filter(|&number| self.holds(number)).collect();
        (!among.is_empty()).then(|| NumberCase {
            among: Some(among),
            among_path: path,
            open: self.open.clone(),
            ..Default::default()
        })
    }
}

/// Whether a pattern tells the multiples of a number; its tens are zeros at their end.
fn has_few_remainders(of: i128) -> bool {
    let mut rest = of;
    while rest % 10 == 0 {
        rest /= 10;
    }
    rest <= MAX_DIVISOR && of <= i128::from(u32::MAX)
}

fn settle_number(mut case: NumberCase, compiler: Compiler) -> Vec<NumberCase> {
    if let Some(among) = case.among.take() {
        return case.spelled(among, case.among_path).into_iter().collect();
    }
    let one = Decimal::whole(1).unwrap();
    if !settle_whole(&mut case, one) {
        return Vec::new();
    }
    if case.whole.is_none()
        && compiler.texts
        && let Some(&(_, path)) = case.no_multiple.first()
    {
        let half = |whole| NumberCase { whole: Some((whole, path)), ..case.clone() };
        return [half(true), half(false)]
            .into_iter()
            .flat_map(|half| settle_number(half, compiler))
            .collect();
    }
    if let Some((true, path)) = case.whole {
        match case.multiple.map_or(Some(one), |(of, _)| of.common_multiple(one)) {
            Some(of) => case.multiple = Some((of, case.multiple.map_or(path, |(_, path)| path))),
            None => add(&mut case.open, path),
        }
        case.min = case
            .min
            .map(|(min, out, path)| (if out { min.floor().step(1) } else { min.ceil() }, false, path));
        case.max = case
            .max
            .map(|(max, out, path)| (if out { max.ceil().step(-1) } else { max.floor() }, false, path));
    }
    if let Some((of, _)) = case.multiple {
        snap(&mut case, of);
    }
    if let Some((of, _)) = case.multiple
        && case.no_multiple.iter().any(|&(other, _)| of.is_multiple(other))
    {
        return Vec::new();
    }
    if let Some(settled) = settle_range(&mut case, one) {
        return settled;
    }
    if let Some((of, _)) = case.multiple
        && of == one
    {
        case.multiple = None;
    }
    if let Some((low, high)) = case.halves() {
        return [low, high].into_iter().flat_map(|half| settle_number(half, compiler)).collect();
    }
    pieces(case, compiler)
}

/// Settles whether the numbers are whole; false if none is left.
fn settle_whole(case: &mut NumberCase, one: Decimal) -> bool {
    if let Some((of, path)) = case.multiple
        && of.is_whole()
    {
        if matches!(case.whole, Some((false, _))) {
            return false;
        }
        case.whole = Some((true, path));
    }
    if let Some(&(_, path)) = case.no_multiple.iter().find(|(of, _)| *of == one) {
        if matches!(case.whole, Some((true, _))) {
            return false;
        }
        case.whole = Some((false, path));
    }
    if matches!(case.whole, Some((false, _))) {
        case.no_multiple.retain(|(of, _)| !of.is_whole());
    }
    true
}

/// Settles a range of two bounds: its cases if it has few numbers or none, which are spelled out.
fn settle_range(case: &mut NumberCase, one: Decimal) -> Option<Vec<NumberCase>> {
    let (min, max) = (case.min?, case.max?);
    if min.0 > max.0 || min.0 == max.0 && (min.1 || max.1) {
        return Some(Vec::new());
    }
    if min.0 == max.0 {
        return Some(case.clone().spelled([min.0], min.2).into_iter().collect());
    }
    if let Some((of, path)) = case.multiple {
        let (first, last) = Decimal::multiples((min.0, min.1), (max.0, max.1), of);
        // Ranges of whole numbers have a short form; multiples of other numbers would be tested with rounding.
        if last < first || of != one && last - first < MAX_SPELLED || last == first {
            let numbers = (first..=last).filter_map(|count| of.times(count));
            return Some(case.clone().spelled(numbers, path).into_iter().collect());
        }
    }
    let (first, last) = Decimal::multiples((min.0, min.1), (max.0, max.1), one);
    if let Some((false, path)) = case.whole
        && last - first < MAX_SPELLED
    {
        case.whole = None;
        case.except.extend((first..=last).filter_map(Decimal::whole));
        case.except_path = path;
    }
    None
}

/// Moves bounds to multiples of the divisor. The compiler takes a number in one form only at a bound away from zero, and
/// may want zeros at the end of a multiple; so such a bound goes out to the next multiple, which is left out itself.
fn snap(case: &mut NumberCase, of: Decimal) {
    let Some(zero) = Decimal::whole(0) else { return };
    for (bound, up) in [(&mut case.min, true), (&mut case.max, false)] {
        let Some((at, out, path)) = *bound else { continue };
        let (first, last) = Decimal::multiples((at, out), (at, out), of);
        let count = if up { first } else { last };
        let Some(mut multiple) = of.times(count) else { continue };
        let outward = !of.is_whole() && if up { multiple < zero } else { multiple > zero };
        if outward {
            match of.times(if up { count - 1 } else { count + 1 }) {
                Some(next) => multiple = next,
                None => continue,
            }
        }
        *bound = Some((multiple, outward, path));
    }
}

/// The range without the numbers that are taken out of it.
fn pieces(mut case: NumberCase, compiler: Compiler) -> Vec<NumberCase> {
    let except = std::mem::take(&mut case.except);
    let path = std::mem::take(&mut case.except_path);
    let except: Vec<Decimal> = except.into_iter().filter(|&number| case.holds(number)).collect();
    if !case.needs_text(compiler) {
        for path in case.beyond_keywords() {
            add(&mut case.open, path);
        }
    }
    if except.len() > MAX_PIECES || except.iter().any(|number| !number.is_exact_bound()) {
        add(&mut case.open, path);
        return vec![case];
    }
    let whole = matches!(case.whole, Some((true, _)));
    let mut out: Vec<NumberCase> = Vec::new();
    let mut rest = case;
    for number in except {
        let mut low = rest.clone();
        if whole {
            low.below((number.step(-1), false, path));
            rest.above((number.step(1), false, path));
        } else {
            low.below((number, true, path));
            rest.above((number, true, path));
        }
        out.push(low);
    }
    out.push(rest);
    if out.len() > 1 && out[0].multiple.is_some_and(|(of, _)| !of.is_whole()) {
        // Their new ends have to be multiples too.
        return out.into_iter().flat_map(|piece| settle_number(piece, compiler)).collect();
    }
    out.retain(|piece| match (piece.min, piece.max) {
        (Some(min), Some(max)) => min.0 < max.0 || min.0 == max.0 && !min.1 && !max.1,
        _ => true,
    });
    for piece in &mut out {
        if let Some(path) = piece.ends_at_a_whole() {
            add(&mut piece.open, path);
        }
    }
    for piece in &mut out {
        if let (Some(min), Some(max)) = (piece.min, piece.max)
            && min.0 == max.0
        {
            *piece = NumberCase {
                among: Some(vec![min.0]),
                among_path: min.2,
                open: piece.open.clone(),
                ..Default::default()
            };
        }
    }
    out
}
