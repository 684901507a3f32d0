//! The rows of a step: what may be drafted for each, and how much of it is.
//!
//! ```text
//!  row: host's segments, device's most ─► acceptance ─► Offers: what each token gains ─► lengths
//!                           └─ of the draft model only where it is current, or catching up pays
//! ```
//!
//! O(rows · drafts), no allocation.

use super::Speculator;
use super::control::Batch;
use super::draft::Segments;
use super::offers::{Length, offer};
use super::source::Source;

/// Tokens that the draft model may catch up with in one step, unless one sequence alone has more: the first number, or
/// the second for each row if that is more.
const CAUGHT_UP: (usize, usize) = (128, 8);

/// Tokens that a sequence may lack without being looked at: the one that came, and the last of its drafts.
const CURRENT: usize = 2;

/// The drafts that a decoding row may have.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The slot of its sequence.
    pub slot: u32,
    /// The tokens that the host proposed for the row.
    pub segments: Segments,
    /// Most tokens that the device's draft model may draft for it, after forced ones; 0: it cannot.
    pub device: usize,
    /// Tokens of the sequence that the draft model has not computed yet.
    pub lacks: usize,
    /// Most tokens that are yet to come.
    pub left: usize,
}

impl Speculator {
    /// Decides how many draft tokens each row of a step gets: `lengths` in the order of `rows`. All rows that decode
    /// belong in it, those without drafts too. Beside the `prompt_tokens` of the step a draft token costs at least what one
    /// of the prompt does.
    pub fn plan_lengths(&mut self, rows: &[Row], prompt_tokens: usize, lengths: &mut Vec<Length>) {
        lengths.clear();
        self.offer(rows);
        let batch = Batch { rows: rows.len(), prompt_tokens };
        if !self.config.adaptive {
            if self.is_late(rows) {
                self.offer_current(rows, |_, _| true);
            }
            self.offers.everything(lengths);
        } else if rows.is_empty() || !self.control.allows(batch) {
            lengths.resize(rows.len(), Length::default());
        } else {
            // The worth of drafts does not depend on the sequences that must be caught up with now.
            let mut decision = self.control.expect(&self.offers, batch);
            if self.is_late(rows) {
                let pays = decision.iterations > 0;
                let behind =
                    self.offer_current(rows, |speculator, row| speculator.pays_to_catch_up(rows.len(), row));
                decision = self.control.best(&self.offers, batch);
                if behind == 0 {
                    self.control.refuse_catch_up();
                } else if pays && decision.tokens == 0 {
                    // Drafts for a few of many rows are not worth a pass; but with it these become current, and so all.
                    decision = self.control.one_pass(&self.offers);
                }
            }
            self.control.assign(&self.offers, batch, decision, lengths);
        }
        let planned: usize = lengths.iter().map(|length| usize::from(length.host + length.device)).sum();
        self.stats.mean_length += 0.1 * (planned as f32 / rows.len().max(1) as f32 - self.stats.mean_length);
    }

    /// The drafts that each row may have, whatever the draft model lacks.
    fn offer(&mut self, rows: &[Row]) {
        self.offers.clear();
        let on_device = self.config.sources.has(Source::DraftModel);
        rows.iter().for_each(|row| self.offer_row(row, if on_device { row.device } else { 0 }));
    }

    fn offer_row(&mut self, row: &Row, device: usize) {
        let personal = &self.sequences[row.slot as usize].personal;
        let most = self.config.max_draft;
        offer(&mut self.offers, &self.acceptance, personal, &row.segments, device.min(most), most);
    }

    /// Whether the draft model would have to catch up with a row.
    fn is_late(&self, rows: &[Row]) -> bool {
        self.config.sources.has(Source::DraftModel)
            && rows.iter().any(|row| row.device > 0 && row.lacks > CURRENT)
    }

    fn pays_to_catch_up(&self, rows: usize, row: &Row) -> bool {
        let here = self.sequences[row.slot as usize].output().len() as f32;
        // One that is longer than most goes on for long.
        let remaining =
            if here > self.answer { 0.5 * here } else { (self.answer - here).max(0.25 * self.answer) };
        let remaining = remaining.min(row.left as f32);
        self.control.pays_to_catch_up(rows, row.lacks, remaining)
    }

    /// Drafts that rows may have now: not by the draft model where it would have to catch up with too much, or where that
    /// does not pay. Returns how much it would catch up with.
    fn offer_current(&mut self, rows: &[Row], pays: impl Fn(&Self, &Row) -> bool) -> usize {
        self.offers.clear();
        let (mut behind, most) = (0, CAUGHT_UP.0.max(CAUGHT_UP.1 * rows.len()));
        for row in rows {
            let late = row.device > 0 && row.lacks > CURRENT;
            let fits = !late || ((behind == 0 || behind + row.lacks <= most) && pays(self, row));
            behind += if late && fits { row.lacks } else { 0 };
            self.offer_row(row, if fits { row.device } else { 0 });
        }
        behind
    }
}
