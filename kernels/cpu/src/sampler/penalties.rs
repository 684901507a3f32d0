//! Penalties of single logits, before any rule: penalties, biases, tokens that must not come.
//!
//! Logit `l` of an penalized token becomes `(l > 0 ? l / factor : l * factor) + add`, rounded to the logits' type.
//! The logits are saved as they were, so that the model's own can be restored. O(penalties).

use crate::element::Element;
use crate::step::BadStep;

/// The penalties of a step. Slices may be longer than the step needs.
#[derive(Debug, Clone, Copy)]
pub struct Penalties<'a> {
    /// `start[l]..start[l + 1]` are the penalties of logits row `l`.
    pub start: &'a [i32],
    /// By penalty, as the two that follow: the token, none twice in a row.
    pub token: &'a [i32],
    /// Divides a positive logit, multiplies another.
    pub factor: &'a [f32],
    /// Is added after that.
    pub add: &'a [f32],
}

impl Penalties<'_> {
    /// Checks everything that penalized the logits rows `first..end` indexes with.
    ///
    /// # Errors
    /// Names what is out of its range.
    pub fn check(&self, first: usize, end: usize, vocabulary: usize) -> Result<(), BadStep> {
        let fail = |what: &str| Err(BadStep(what.into()));
        if self.start.len() <= end {
            return fail("more logits rows than penalty_start has");
        }
        let starts = &self.start[first..=end];
        if starts[0] < 0 || starts.windows(2).any(|pair| pair[0] > pair[1]) {
            return fail("penalty_start descends");
        }
        let (from, to) = (starts[0] as usize, starts[end - first] as usize);
        if to > self.token.len().min(self.factor.len()).min(self.add.len()) {
            return fail("more penalties than the buffers have");
        }
        if self.token[from..to].iter().any(|&token| token < 0 || token as usize >= vocabulary) {
            return fail("a penalty for a token outside the vocabulary");
        }
        Ok(())
    }

    fn row(&self, row: usize) -> std::ops::Range<usize> {
        self.start[row] as usize..self.start[row + 1] as usize
    }

    /// Applies the penalties to the logits rows from `first` on, \[rows, vocabulary\], in place; what was there goes into
    /// `before`, by penalty.
    ///
    /// # Panics
    /// [`Self::check`] finds a fault, or `before` is shorter than the penalties.
    pub fn apply<T: Element>(&self, logits: &mut [T], vocabulary: usize, first: usize, before: &mut [f32]) {
        for (row, logits) in logits.chunks_exact_mut(vocabulary).enumerate() {
            for at in self.row(first + row) {
                let logit = &mut logits[self.token[at] as usize];
                before[at] = logit.to_f32();
                *logit = T::from_f32(penalized(before[at], self.factor[at], self.add[at]));
            }
        }
    }

    /// Undoes [`Self::apply`].
    ///
    /// # Panics
    /// As there.
    pub fn restore<T: Element>(&self, logits: &mut [T], vocabulary: usize, first: usize, before: &[f32]) {
        for (row, logits) in logits.chunks_exact_mut(vocabulary).enumerate() {
            for at in self.row(first + row) {
                logits[self.token[at] as usize] = T::from_f32(before[at]);
            }
        }
    }
}

/// A logit after its penalty.
pub fn penalized(logit: f32, factor: f32, add: f32) -> f32 {
    let scaled = match factor == 1.0 {
        true => logit,
        false if logit > 0.0 => logit / factor,
        false => logit * factor,
    };
    scaled + add
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    const EDITS: Penalties<'static> = Penalties {
        start: &[0, 2, 2, 5],
        token: &[0, 2, 1, 0, 2, 9],
        factor: &[2.0, 1.0, 2.0, 1.0, 4.0, 1.0],
        add: &[0.0, -1.5, 0.25, f32::NEG_INFINITY, 0.0, 0.0],
    };

    #[test]
    fn logits_are_penalized_in_their_rows_and_had_back() {
        let raw = [3.0f32, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, -1.0, f32::NEG_INFINITY];
        let wanted = [1.5, 1.0, 0.5, 3.0, 1.0, 2.0, f32::NEG_INFINITY, -1.75, f32::NEG_INFINITY];
        EDITS.check(0, 3, 3).unwrap();
        let mut before = [0.0; 6];
        let mut logits = raw;
        EDITS.apply(&mut logits, 3, 0, &mut before);
        assert_eq!(logits, wanted);
        EDITS.restore(&mut logits, 3, 0, &before);
        assert_eq!(logits, raw);
        let mut part = raw.map(bf16::from_f32);
        EDITS.apply(&mut part[6..], 3, 2, &mut before);
        assert_eq!(part.map(f32::from)[6..], wanted[6..]);
        EDITS.restore(&mut part[6..], 3, 2, &before);
        assert_eq!(part, raw.map(bf16::from_f32));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let bad = [
            ("more logits", Penalties { start: &[0, 2, 2], ..EDITS }, 3),
            ("descends", Penalties { start: &[-1, 2, 2, 5], ..EDITS }, 3),
            ("descends", Penalties { start: &[0, 2, 1, 5], ..EDITS }, 3),
            ("more penalties", Penalties { add: &[0.0; 4], ..EDITS }, 3),
            ("a token", EDITS, 2),
            ("a token", Penalties { token: &[0, 2, 1, -1, 2], ..EDITS }, 3),
        ];
        for (name, penalties, vocabulary) in bad {
            assert!(penalties.check(0, 3, vocabulary).unwrap_err().0.contains(name), "{name}");
        }
    }

    #[test]
    fn a_negative_logit_is_multiplied() {
        assert_eq!(penalized(-2.0, 1.25, 0.5), -2.0);
        assert_eq!(penalized(2.5, 1.25, 0.0), 2.0);
        assert_eq!(penalized(0.0, 1.25, 0.0), 0.0);
        assert_eq!(penalized(5.0, 1.25, f32::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
