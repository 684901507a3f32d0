//! A planned step made as long as a CUDA graph that is to compute it.
//!
//! ```text
//!   every row brings one token           some bring more
//!   rows    a b c + +                    rows    a   b + +
//!   tokens  a b c + +                    tokens  a a b + + + +
//! ```
//!
//! Padding changes no result: a token whose keys and values are not stored, in a row of its own that looks at the
//! first slot of page 0 and has no state, or in no row; a logits row that is never read. The header keeps the step's own
//! numbers. O(what is added).

use crate::step::buffers::{NO_SLOT, StepBuffers};
use crate::step::layout::StepLayout;
use pyengine_base::error::{Error, Result};

impl StepLayout {
    /// Pads the step in `bytes` to these rows, tokens and logits, each at least the step's own. Rows that are
    /// added have a token each where every row of the step has one and as many tokens as rows are wanted; otherwise
    /// they have none.
    pub fn pad(&self, bytes: &mut [u8], rows: usize, tokens: usize, logits: usize) -> Result<()> {
        let step = self.view(bytes)?;
        let header = &*step.header;
        let [has_rows, has_tokens, has_logits, pages] =
            [header.num_rows, header.num_tokens, header.num_logits, header.num_pages]
                .map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let bounds = [
            ("rows", has_rows, rows, self.max_rows()),
            ("tokens", has_tokens, tokens, self.max_tokens()),
            ("logits", has_logits, logits, self.max_logits()),
        ];
        for (name, has, wanted, most) in bounds {
            if !(has..=most).contains(&wanted) {
                return Err(Error::InvalidArgument(format!(
                    "a step with {has} {name} cannot be padded to {wanted}; the layout holds {most}"
                )));
            }
        }
        let decodes = has_rows == has_tokens && rows == tokens;
        let added = if decodes { rows - has_rows } else { 0 };
        if pages.saturating_add(added) > self.max_pages() * self.tables() {
            return Err(Error::InvalidArgument(format!(
                "a step with {pages} pages has no room for {added} more"
            )));
        }
        self.fill(step, (has_rows, has_tokens, has_logits), (rows, tokens, logits), pages, decodes);
        Ok(())
    }
}

impl StepLayout {
    fn fill(
        &self,
        step: StepBuffers<'_>,
        (has_rows, has_tokens, has_logits): (usize, usize, usize),
        (rows, tokens, logits): (usize, usize, usize),
        pages: usize,
        decodes: bool,
    ) {
        step.token_ids[has_tokens..tokens].fill(0);
        step.positions[has_tokens..tokens].fill(0);
        let added = if decodes { rows - has_rows } else { 0 };
        step.page_indices[pages..pages + added].fill(0);
        for table in 0..self.tables() {
            // Behind the last table's pages are zeros; behind another's, the next one's, which are as good.
            let indptr = &mut step.page_indptr[table * (self.max_rows() + 1)..];
            for row in has_rows..rows {
                indptr[row + 1] = indptr[row] + i32::from(decodes);
            }
            step.kv_length[table * self.max_rows()..][has_rows..rows].fill(i32::from(decodes));
            step.slot_mapping[table * self.max_tokens()..][has_tokens..tokens].fill(-1);
        }
        for row in has_rows..rows {
            step.query_start[row + 1] = step.query_start[row] + i32::from(decodes);
            step.row_sequence[row] = 0;
        }
        if self.states() {
            let slots = [step.state_slot, step.state_source, step.snapshot_slot];
            slots.into_iter().for_each(|slots| slots[has_rows..rows].fill(NO_SLOT));
            let counts = [step.state_accepted, step.state_drafts, step.snapshot_tokens];
            counts.into_iter().for_each(|counts| counts[has_rows..rows].fill(0));
        }
        step.logit_row[has_logits..logits].fill(0);
        step.logit_token[has_logits..logits].fill(0);
        step.mask_row[has_logits..logits].fill(-1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::buffers::StepHeader;
    use proptest::prelude::*;

    fn layout() -> StepLayout {
        StepLayout::new(64, 12, 60, 3, 40).unwrap().with_states(true)
    }

    fn bytes(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: every byte of a u64 is a u8.
        unsafe { words.align_to_mut::<u8>() }.1
    }

    /// A step whose rows have these tokens and pages, each sampling behind its last token; everything that it does
    /// not use is rubbish.
    fn planned(layout: &StepLayout, rows: &[(usize, usize)]) -> Vec<u64> {
        let mut words = vec![0xdead_beef_dead_beef; layout.nbytes() / 8];
        let step = layout.view(bytes(&mut words)).unwrap();
        let (mut tokens, mut pages) = (0, 0);
        (step.query_start[0], step.page_indptr[0], step.logit_start[0]) = (0, 0, 0);
        for (row, (count, held)) in rows.iter().enumerate() {
            for token in tokens..tokens + count {
                step.token_ids[token] = 100 + token as i32;
                step.positions[token] = 200 + token as i32;
                step.slot_mapping[token] = 300 + token as i32;
            }
            step.page_indices[pages..pages + held].fill(7);
            (tokens, pages) = (tokens + count, pages + held);
            step.query_start[row + 1] = tokens as i32;
            step.page_indptr[row + 1] = pages as i32;
            step.kv_length[row] = 40 + row as i32;
            step.row_sequence[row] = row as i32;
            (step.state_slot[row], step.state_source[row]) = (row as i32, row as i32);
            step.logit_start[row + 1] = row as i32 + 1;
            step.logit_row[row] = row as i32;
            step.logit_token[row] = tokens as i32 - 1;
            step.mask_row[row] = row as i32;
        }
        *step.header = StepHeader {
            num_rows: rows.len() as i64,
            num_tokens: tokens as i64,
            num_sampled: rows.len() as i64,
            num_pages: pages as i64,
            num_logits: rows.len() as i64,
            ..StepHeader::ZERO
        };
        words
    }

    proptest! {
        #[test]
        fn what_is_added_changes_nothing(
            rows in prop::collection::vec((1_usize..5, 1_usize..4), 1..12),
            extra in (0_usize..12, 0_usize..30, 0_usize..30),
            even in any::<bool>(),
        ) {
            let layout = layout();
            let rows: Vec<_> = rows.into_iter().map(|(t, p)| (if even { 1 } else { t }, p)).collect();
            let before = planned(&layout, &rows);
            let mut after = before.clone();
            let has_tokens: usize = rows.iter().map(|row| row.0).sum();
            let has_pages: usize = rows.iter().map(|row| row.1).sum();
            let wanted_rows = (rows.len() + extra.0).min(layout.max_rows());
            let wanted = match even {
                true => wanted_rows,
                false => (has_tokens + extra.1).min(layout.max_tokens()),
            };
            let logits = (rows.len() + extra.2).min(layout.max_logits());
            layout.pad(bytes(&mut after), wanted_rows, wanted, logits).unwrap();

            let mut original = before;
            let (old, new) =
                (layout.view(bytes(&mut original)).unwrap(), layout.view(bytes(&mut after)).unwrap());
            // The step's own entries are unchanged.
            prop_assert_eq!(&old.header, &new.header);
            prop_assert_eq!(&old.token_ids[..has_tokens], &new.token_ids[..has_tokens]);
            prop_assert_eq!(&old.positions[..has_tokens], &new.positions[..has_tokens]);
            prop_assert_eq!(&old.slot_mapping[..has_tokens], &new.slot_mapping[..has_tokens]);
            prop_assert_eq!(&old.query_start[..=rows.len()], &new.query_start[..=rows.len()]);
            prop_assert_eq!(&old.page_indptr[..=rows.len()], &new.page_indptr[..=rows.len()]);
            prop_assert_eq!(&old.kv_length[..rows.len()], &new.kv_length[..rows.len()]);
            prop_assert_eq!(&old.state_slot[..rows.len()], &new.state_slot[..rows.len()]);
            prop_assert_eq!(&old.state_source[..rows.len()], &new.state_source[..rows.len()]);
            prop_assert_eq!(&old.page_indices[..has_pages], &new.page_indices[..has_pages]);
            prop_assert_eq!(&old.logit_start[..=rows.len()], &new.logit_start[..=rows.len()]);
            prop_assert_eq!(&old.logit_token[..rows.len()], &new.logit_token[..rows.len()]);
            prop_assert_eq!(&old.mask_row[..rows.len()], &new.mask_row[..rows.len()]);
            // And what was added stores nothing and reads what there is.
            prop_assert!(new.token_ids[has_tokens..wanted].iter().all(|id| *id == 0));
            prop_assert!(new.positions[has_tokens..wanted].iter().all(|place| *place == 0));
            prop_assert!(new.slot_mapping[has_tokens..wanted].iter().all(|slot| *slot == -1));
            let decodes = rows.len() == has_tokens && wanted == wanted_rows;
            for row in rows.len()..wanted_rows {
                let count = new.query_start[row + 1] - new.query_start[row];
                prop_assert_eq!(count, i32::from(decodes));
                prop_assert_eq!(new.kv_length[row], count);
                for slots in [&new.state_slot, &new.state_source, &new.snapshot_slot] {
                    prop_assert_eq!(slots[row], NO_SLOT);
                }
                for counts in [&new.state_accepted, &new.state_drafts, &new.snapshot_tokens] {
                    prop_assert_eq!(counts[row], 0);
                }
                let (page, end) = (new.page_indptr[row] as usize, new.page_indptr[row + 1] as usize);
                prop_assert_eq!(end - page, count as usize);
                prop_assert!(new.page_indices[page..end].iter().all(|page| *page == 0));
            }
            for logit in rows.len()..logits {
                prop_assert_eq!((new.logit_row[logit], new.logit_token[logit], new.mask_row[logit]), (0, 0, -1));
            }
        }
    }

    #[test]
    fn no_step_is_made_shorter_or_longer_than_the_layout() {
        let layout = layout();
        let mut words = planned(&layout, &[(1, 2), (1, 2), (1, 2)]);
        for (rows, tokens, logits) in [(2, 3, 3), (3, 2, 3), (3, 3, 2), (13, 13, 3), (3, 65, 3), (3, 3, 99)] {
            assert!(layout.pad(bytes(&mut words), rows, tokens, logits).is_err(), "{rows} {tokens} {logits}");
        }
        assert!(layout.pad(bytes(&mut words), 3, 3, 3).is_ok());
        assert_eq!(words, planned(&layout, &[(1, 2), (1, 2), (1, 2)]));
        let mut full = planned(&layout, &[(1, 30), (1, 30)]);
        assert!(layout.pad(bytes(&mut full), 3, 3, 2).is_err());
        assert!(layout.pad(bytes(&mut full), 3, 4, 2).is_ok());
    }
}
