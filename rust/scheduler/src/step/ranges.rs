//! Which bytes of a step's buffer count: what a device copies, and what ranks send each other.

use std::ops::Range;

use super::buffers::StepHeader;
use super::fields::{ALIGNMENT, Phase};
use super::layout::StepLayout;
use pyengine_base::error::Result;

impl StepLayout {
    /// Bytes of a planned step that count, as disjoint ranges in ascending order; `padding` pages count beside its own.
    /// O(fields).
    pub fn planned_ranges(&self, bytes: &mut [u8], padding: usize) -> Result<Vec<Range<usize>>> {
        let header = &self.header(bytes)?;
        let mut end = 0;
        self.each_field(header, |field| {
            if field.phase == Phase::Planned {
                end = field.used_bytes().end + padding * field.row_bytes;
            }
        });
        Ok(self.ranges(header, Phase::Listed, Vec::from_iter(Some(0..end))))
    }

    /// Bytes of a step that are written late and count, without its header.
    pub fn late_ranges(&self, bytes: &mut [u8]) -> Result<Vec<Range<usize>>> {
        let header = &self.header(bytes)?;
        let mut ranges = Vec::new();
        self.each_field(header, |field| {
            // Planned as -1, and written anew with the masks.
            if field.name == "mask_row" && header.num_masks > 0 {
                ranges.push(field.offset..field.offset + header.num_logits as usize * field.row_bytes);
            }
        });
        Ok(self.ranges(header, Phase::Late, ranges))
    }

    /// Bytes of a step's results that count.
    pub fn result_ranges(&self, bytes: &mut [u8]) -> Result<Vec<Range<usize>>> {
        Ok(self.ranges(&self.header(bytes)?, Phase::Results, Vec::new()))
    }

    /// Adds what counts of the fields of a phase to `ranges`; those that nearly touch become one.
    fn ranges(&self, header: &StepHeader, phase: Phase, mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
        self.each_field(header, |field| {
            let used = field.used_bytes();
            match ranges.last_mut() {
                _ if field.phase != phase || used.is_empty() => {}
                Some(last) if used.start - last.end < ALIGNMENT => last.end = used.end,
                _ => ranges.push(used),
            }
        });
        ranges
    }

    fn header(&self, bytes: &mut [u8]) -> Result<StepHeader> {
        Ok(*self.view(bytes)?.header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(nbytes: usize) -> Vec<u64> {
        vec![0; nbytes.div_ceil(8)]
    }

    fn bytes(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: every byte of a u64 is a u8.
        unsafe { words.align_to_mut::<u8>() }.1
    }

    #[test]
    fn ranges_hold_what_counts_in_a_step() {
        let layout = StepLayout::new(8, 4, 6, 1, 33).unwrap().with_hidden_size(16);
        let mut words = aligned(layout.nbytes());
        let raw = bytes(&mut words);
        let at = |name| layout.fields().into_iter().find(|field| field.name == name).unwrap().offset;
        let view = layout.view(raw).unwrap();
        (view.header.num_pages, view.header.num_logits) = (3, 2);
        let pages = at("page_indices");
        assert_eq!(layout.planned_ranges(raw, 0).unwrap(), Vec::from_iter(Some(0..pages + 12)));
        assert_eq!(layout.planned_ranges(raw, 2).unwrap(), Vec::from_iter(Some(0..pages + 20)));
        assert_eq!(layout.late_ranges(raw).unwrap(), []);
        let sampled = at("sampled_counts")..at("sampled_tokens") + 8;
        assert_eq!(
            layout.result_ranges(raw).unwrap(),
            std::slice::from_ref(&sampled),
            "they lie side by side"
        );
        let view = layout.view(raw).unwrap();
        (view.header.num_pooled_rows, view.header.num_pooled_tokens) = (1, 5);
        view.header.num_masks = 1;
        let pooled = at("pooled")..at("pooled") + 64;
        assert_eq!(layout.result_ranges(raw).unwrap(), [sampled, pooled]);
        let starts = at("pool_start");
        let planned = 0..starts + 8;
        assert_eq!(layout.planned_ranges(raw, 0).unwrap(), [planned], "gaps of padding are filled");
        let (rows, mask) = (at("mask_row"), at("mask"));
        assert_eq!(layout.late_ranges(raw).unwrap(), [rows..rows + 8, mask..mask + 8]);
        raw.fill(0);
        let mut view = layout.view(raw).unwrap();
        view.header.num_pooled_rows = 1;
        layout.forget_results(&mut view);
        assert!(view.pooled[..16].iter().all(|number| number.is_nan()));
        assert!(view.pooled[16..].iter().chain(&*view.prompt_logprobs).all(|number| *number == 0.0));
    }
}
