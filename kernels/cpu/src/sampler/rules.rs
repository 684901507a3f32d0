//! The sampling fields of a step: borrowed views of the step buffers. Checking is O(rows).

use super::sampling_row::SamplingRow;
use crate::step::BadStep;

/// The rules of a step. Slices may be longer than the step needs.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// By sampling row: how its tokens are chosen.
    pub sampling: &'a [SamplingRow],
    /// By sampling row: position in its sequence of the row's first sampled token; the others follow.
    pub sample_position: &'a [i64],
    /// `logit_start[row]..logit_start[row + 1]` are the logits rows of a sampling row.
    pub logit_start: &'a [i32],
    /// By logits row, as the two that follow: the sampling row.
    pub logit_row: &'a [i32],
    /// The token of the step whose logits these are; the next one is the draft of what is sampled here,
    /// unless the logits row is the last of its sampling row.
    pub logit_token: &'a [i32],
    /// Row of `mask`, or -1 where every token is allowed.
    pub mask_row: &'a [i32],
    /// Bit `t % 32` of word `t / 32` of a row says whether token `t` is allowed.
    pub mask: &'a [u32],
    /// Words of a mask row.
    pub mask_words: usize,
}

impl<'a> Rules<'a> {
    /// Position of the token that `logits_row` chooses.
    #[inline]
    pub fn position(&self, logits_row: usize) -> u64 {
        let row = self.logit_row[logits_row] as usize;
        self.sample_position[row] as u64 + (logits_row - self.logit_start[row] as usize) as u64
    }

    /// The mask of `logits_row`, if it has one.
    #[inline]
    pub fn mask(&self, logits_row: usize) -> Option<&'a [u32]> {
        let row = usize::try_from(self.mask_row[logits_row]).ok()?;
        Some(&self.mask[row * self.mask_words..][..self.mask_words])
    }

    /// Checks everything that sampling the logits rows `first..end` indexes with.
    ///
    /// # Errors
    /// Names what is out of its range.
    pub fn check(&self, first: usize, end: usize, vocabulary: usize) -> Result<(), BadStep> {
        let fail = |what: &str| Err(BadStep(what.into()));
        if vocabulary == 0 || vocabulary > i32::MAX as usize {
            return fail("logits have no vocabulary");
        }
        if self.logit_row.len() < end || self.mask_row.len() < end {
            return fail("more logits rows than the buffers have");
        }
        let masks = self.mask.len().checked_div(self.mask_words).unwrap_or(0);
        for at in first..end {
            let row = self.logit_row[at];
            if row < 0 || row as usize >= self.sampling_rows() {
                return fail("a sampling row that does not exist");
            }
            let start = self.logit_start[row as usize];
            if start < 0 || start as usize > at {
                return fail("logit_start is after a logits row of its sampling row");
            }
            let mask = self.mask_row[at];
            if mask >= 0 && (mask as usize >= masks || self.mask_words != vocabulary.div_ceil(32)) {
                return fail("a mask row that does not exist, or has not one bit for each token");
            }
        }
        Ok(())
    }

    /// Checks what verifying the first `sampled` sampling rows indexes with, beside `tokens` tokens in the
    /// step and room for `out` sampled ones.
    ///
    /// # Errors
    /// Names what is out of its range.
    pub fn check_drafts(&self, sampled: usize, tokens: usize, out: usize) -> Result<(), BadStep> {
        let fail = |what: &str| Err(BadStep(what.into()));
        if self.logit_start.len() <= sampled {
            return fail("more sampling rows than the buffers have");
        }
        let starts = &self.logit_start[..=sampled];
        if starts[0] < 0 || starts.windows(2).any(|pair| pair[0] >= pair[1]) {
            return fail("a sampling row has no logits row");
        }
        if starts[sampled] as usize > out.min(self.logit_token.len()) {
            return fail("more logits rows than the buffers have");
        }
        let drafts = starts.windows(2).flat_map(|pair| pair[0] as usize..pair[1] as usize - 1);
        if drafts
            .into_iter()
            .any(|at| self.logit_token[at] < 0 || self.logit_token[at] as usize + 1 >= tokens)
        {
            return fail("a draft that is not among the tokens");
        }
        Ok(())
    }

    /// How many sampling rows every slice has.
    fn sampling_rows(&self) -> usize {
        let rows = self.sampling.len().min(self.sample_position.len());
        rows.min(self.logit_start.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Rules<'static> {
        Rules {
            sampling: &[SamplingRow::NEUTRAL; 2],
            sample_position: &[10, 20],
            logit_start: &[0, 2, 3],
            logit_row: &[0, 0, 1],
            logit_token: &[0, 1, 2],
            mask_row: &[-1, 1, 0],
            mask: &[3, 0, 1, 1],
            mask_words: 2,
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let rules = good();
        assert_eq!(rules.check(0, 3, 40), Ok(()));
        assert_eq!(rules.check_drafts(2, 3, 3), Ok(()));
        assert_eq!([0, 1, 2].map(|at| rules.position(at)), [10, 11, 20]);
        assert_eq!([0, 1, 2].map(|at| rules.mask(at)), [None, Some(&[1, 1][..]), Some(&[3, 0][..])]);
        let bad = [
            ("more logits", Rules { mask_row: &[-1], ..good() }),
            ("sampling row", Rules { logit_row: &[0, 2, 1], ..good() }),
            ("sampling row", Rules { logit_row: &[0, -1, 1], ..good() }),
            ("sampling row", Rules { sampling: &[SamplingRow::NEUTRAL], ..good() }),
            ("logit_start", Rules { logit_start: &[1, 2, 3], ..good() }),
            ("logit_start", Rules { logit_start: &[-1, 2, 3], ..good() }),
            ("mask row", Rules { mask_row: &[-1, 2, 0], ..good() }),
            ("mask row", Rules { mask_words: 4, ..good() }),
            ("mask row", Rules { mask_words: 0, ..good() }),
        ];
        for (name, rules) in bad {
            assert!(rules.check(0, 3, 40).unwrap_err().0.contains(name), "{name}");
        }
        assert!(rules.check(0, 3, 0).is_err());
        let bad = [
            ("more sampling", Rules { logit_start: &[0, 2], ..good() }),
            ("no logits", Rules { logit_start: &[0, 0, 3], ..good() }),
            ("more logits", Rules { logit_start: &[0, 2, 4], ..good() }),
            ("draft", Rules { logit_token: &[-1, 1, 2], ..good() }),
            ("draft", Rules { logit_token: &[2, 1, 2], ..good() }),
        ];
        for (name, rules) in bad {
            assert!(rules.check_drafts(2, 3, 3).unwrap_err().0.contains(name), "{name}");
        }
    }
}
