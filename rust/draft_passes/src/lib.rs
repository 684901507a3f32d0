//! The passes of a draft model within one step.
//!
//! ```text
//!  step     a a a D D │ b │ c D       D: places that the draft model fills; b drafts nothing
//!  pass 1   x x a a a │ c             what its cache lacks (x), then what is known: logits at the last of each
//!  pass 2   D                         the draft that pass 1 chose ─► the next one
//! ```
//!
//! The draft model's keys and values lie in the same blocks as the model's, so that prefix hits, preemption and
//! wrong drafts need nothing of their own; [`cache`] tracks on the host which cells are computed, and [`pages`] in which
//! pages they are where the model has windows. They are computed only for sequences that get drafts: a step without such
//! drafts records its tokens, and the next pass for a sequence catches up on what the cache lacks (the prompt, tokens that
//! came meanwhile, the last draft if all were right).
//!
//! Where the host sees a pass's tokens ([`next`](DraftPasses::next)), it writes them into the next pass. Where it does
//! not, all passes are laid out in advance ([`next_fed`](DraftPasses::next_fed)): the device copies a pass's tokens into
//! the next pass by *feed entries* and into the step by places, and the host [learns](DraftPasses::learn) the step's
//! tokens when they come back.
//!
//! ```text
//!  pass 1 ──► last token of each sequence ──► places of the step, feed entries of pass 2 ──► last token ...
//! ```
//!
//! Wrong or missing cells of that cache only cause drafts to be rejected. O(tokens + pages) a pass; no
//! allocation in steady state.

mod cache;
mod pages;
mod tally;

use std::ops::Range;

use cache::DraftCache;
pub use pages::SharedPages;
use pages::{DraftPages, PassRow};
use pyengine_base::error::{Error, Result};
use pyengine_scheduler::step::buffers::{StepBuffers, StepHeader};
use pyengine_scheduler::step::layout::StepLayout;
use tally::{Row, Tally, feed, fill_sample};

impl Row {
    /// Whether it is under way with spare pages.
    fn has_spare_pages(&self) -> bool {
        self.spare && self.next.is_some_and(|next| next < self.first)
    }
}

/// Lays out the passes of a draft model.
pub struct DraftPasses {
    step: StepLayout,
    pass: StepLayout,
    vocab_size: i32,
    cache: DraftCache,
    pages: DraftPages,
    rows: Vec<Row>,
    /// Those of the pass that is laid out.
    laid_out: Vec<PassRow>,
    /// Which of `rows` choose a token in the pass that is under way.
    sampling: Vec<usize>,
}

impl DraftPasses {
    /// Passes of layout `pass` for steps of layout `step`. One of the two models lacks tokens from `vocab_size` on: they are
    /// neither read nor drafted.
    pub fn new(
        step: StepLayout,
        pass: StepLayout,
        vocab_size: usize,
        shared: &SharedPages<'_>,
    ) -> Result<Self> {
        let invalid = |message: &str| Err(Error::InvalidArgument(message.into()));
        if pass.max_rows() < step.max_rows() || pass.max_pages() < step.max_pages() {
            return invalid("the passes of a step have as many rows and pages as the step");
        }
        if pass.max_tokens() < pass.max_rows() {
            return invalid("a pass has a token for every row");
        }
        let cache = DraftCache::new(shared.num_pages, shared.block_size)?;
        let pages = DraftPages::new(shared)?;
        if [step.tables(), pass.tables()] != [pages.tables(); 2] {
            return invalid("a step and its passes have the page tables of the cache's groups");
        }
        Ok(Self {
            step,
            pass,
            vocab_size: i32::try_from(vocab_size).unwrap_or(i32::MAX),
            cache,
            pages,
            rows: Vec::with_capacity(step.max_rows()),
            laid_out: Vec::with_capacity(step.max_rows()),
            sampling: Vec::with_capacity(step.max_rows()),
        })
    }

    /// Begins a step and records its tokens. Returns whether any row gets drafts: then call [`next`](Self::next) until
    /// it returns `None`.
    pub fn begin(&mut self, step: &mut [u8]) -> Result<bool> {
        let step = self.step.view(step)?;
        let (rows, sampled) = (count(step.header.num_rows)?, count(step.header.num_sampled)?);
        let mut feeds = step.feed_token[..count(step.header.num_feeds)?].iter().peekable();
        self.cache.note(&step, rows);
        self.pages.note(&self.step, &step);
        self.rows.clear();
        self.sampling.clear();
        if step.header.max_device_drafts == 0 {
            return Ok(false);
        }
        for sampling in 0..sampled {
            let drafts = step.device_drafts[sampling].max(0) as usize;
            if drafts == 0 {
                continue;
            }
            let row = step.sample_rows[sampling] as usize;
            let first_token = step.query_start[row] as usize;
            let known = step.sample_position[sampling] as usize;
            if known + drafts != step.kv_length[row] as usize {
                return Err(Error::InvalidArgument("a row's drafts are not its last tokens".into()));
            }
            let last = known + drafts;
            // `positions` say where angles are, which is another place for some sequences.
            let first = last - (step.query_start[row + 1] as usize - first_token);
            let places = first_token + known - first..first_token + last - first;
            let newest = places.start as i32 - 1;
            while feeds.next_if(|token| **token < newest).is_some() {}
            let fed = feeds.peek() == Some(&&newest);
            self.cache.await_drafts(&step, &step.slot_mapping[places]);
            let (next, spare) = (None, false);
            self.rows.push(Row { row, sampling, first_token, first, next, known, last, fed, spare });
        }
        Ok(!self.rows.is_empty())
    }

    /// Records the tokens that a step sampled, as the planner gets them: `sampled` has a token for each of its logits,
    /// `counts` for each sampling row how many of them hold. Call it where the device feeds steps and passes, before the
    /// step after the next begins.
    pub fn learn(&mut self, step: &mut [u8]) -> Result<()> {
        let step = self.step.view(step)?;
        let rows = count(step.header.num_sampled)?;
        self.cache.learn(&step, rows);
        Ok(())
    }

    /// Lays out the next pass of the step that was begun, in `pass`; returns how many tokens it has and how many it
    /// samples, `None` if there is none, and all drafts are in `step`.
    ///
    /// The results in `pass` are those of the pass before.
    pub fn next(&mut self, step: &mut [u8], pass: &mut [u8]) -> Result<Option<(usize, usize)>> {
        let mut step = self.step.view(step)?;
        self.take(&mut step, self.pass.view(pass)?.sampled_tokens)?;
        self.lay_out_pass(&step, pass)
    }

    /// The same on a device that feeds the tokens of one pass to the next, and to the step: `places` gets, of each
    /// sampling row of the pass, the place among the step's tokens that its choice is to be copied to; the pass's
    /// `sample_sequence` names the sequence.
    pub fn next_fed(
        &mut self,
        step: &mut [u8],
        pass: &mut [u8],
        places: &mut [i64],
    ) -> Result<Option<(usize, usize)>> {
        let step = self.step.view(step)?;
        for at in self.sampling.drain(..) {
            self.rows[at].known += 1;
            self.rows[at].fed = true;
        }
        self.rows.retain(|row| row.known < row.last);
        let laid_out = self.lay_out_pass(&step, pass)?;
        if places.len() < self.sampling.len() {
            return Err(Error::InvalidArgument("a pass has a place for each sampling row".into()));
        }
        for (place, &at) in places.iter_mut().zip(&self.sampling) {
            let row = &self.rows[at];
            *place = (row.first_token + row.known - row.first) as i64;
        }
        Ok(laid_out)
    }

    fn lay_out_pass(&mut self, step: &StepBuffers<'_>, pass: &mut [u8]) -> Result<Option<(usize, usize)>> {
        let mut pass = self.pass.view(pass)?;
        if self.rows.is_empty() {
            return Ok(None);
        }
        let spare = self.rows.iter().any(Row::has_spare_pages);
        let mut tally = Tally { left: self.pass.max_tokens(), spare, ..Tally::default() };
        self.laid_out.clear();
        (pass.query_start[0], pass.page_indptr[0], pass.logit_start[0]) = (0, 0, 0);
        for at in 0..self.rows.len() {
            self.lay_out(step, &mut pass, &mut tally, at);
        }
        tally.pages = self.pages.fill(&self.pass, step, &mut pass, &self.laid_out, tally.pages);
        let Tally { rows, tokens, sampled, greedy, pages, feeds, longest_query, longest_kv, .. } = tally;
        *pass.header = StepHeader {
            num_rows: rows as i64,
            num_tokens: tokens as i64,
            num_sampled: sampled as i64,
            num_pages: pages as i64,
            num_feeds: feeds as i64,
            max_query_length: longest_query as i64,
            max_kv_length: longest_kv as i64,
            step_id: step.header.step_id,
            num_greedy: greedy as i64,
            num_logits: sampled as i64,
            num_decode_rows: rows as i64,
            ..StepHeader::ZERO
        };
        Ok(Some((tokens, sampled)))
    }

    /// Takes the drafts that the last pass chose.
    fn take(&mut self, step: &mut StepBuffers<'_>, chosen: &[i32]) -> Result<()> {
        if chosen.len() < self.sampling.len() {
            return Err(Error::InvalidArgument("a pass chooses a token for each sampling row".into()));
        }
        for (&at, &token) in self.sampling.iter().zip(chosen) {
            let token = self.vocab_token(token);
            let row = &mut self.rows[at];
            let place = row.first_token + row.known - row.first;
            step.token_ids[place] = token;
            self.cache.set_token(step.slot_mapping[place] as usize, token);
            row.known += 1;
        }
        if !self.sampling.is_empty() {
            self.sampling.clear();
            self.rows.retain(|row| row.known < row.last);
        }
        Ok(())
    }

    fn vocab_token(&self, token: i32) -> i32 {
        if (0..self.vocab_size).contains(&token) { token } else { 0 }
    }

    /// Adds a row to the pass: what its sequence has and the cache lacks, as far as there is room.
    fn lay_out(&mut self, step: &StepBuffers<'_>, pass: &mut StepBuffers<'_>, tally: &mut Tally, at: usize) {
        // Every row that comes after has room for a token.
        let room = tally.left - (self.rows.len() - at - 1).min(tally.left);
        if room == 0 {
            return;
        }
        let row = self.rows[at];
        if row.next.is_none() && tally.cut_short {
            // It may share blocks with the row that goes on in the next pass.
            return;
        }
        let pages = &step.page_indices[step.page_indptr[row.row] as usize..];
        // Cells of shared blocks that earlier rows of this pass compute are written before this row attends to them.
        let begin = row.next.or_else(|| self.first_position(pages, at, tally));
        let Some(begin) = begin else { return };
        let spare = self.rows[at].spare && begin < row.first;
        let room = if spare { room.min(self.pages.spare_tokens()) } else { room };
        tally.spare |= spare;
        let end = row.known.min(begin + room);
        let tokens = tally.tokens..tally.tokens + (end - begin);
        self.fill_tokens(step, pass, &row, tokens.start, begin..end);
        self.laid_out.push(PassRow { row: row.row, positions: begin..end });
        let sequence = step.sample_sequence[row.sampling];
        if row.fed && end == row.known {
            feed(pass, tally, tokens.end - 1, sequence);
        }
        let held = end.div_ceil(self.cache.block_size());
        pass.page_indices[tally.pages..tally.pages + held].copy_from_slice(&pages[..held]);
        pass.kv_length[tally.rows] = end as i32;
        pass.row_sequence[tally.rows] = step.row_sequence[row.row];
        tally.pages += held;
        tally.left -= tokens.len();
        tally.longest_query = tally.longest_query.max(tokens.len());
        tally.longest_kv = tally.longest_kv.max(end);
        tally.tokens = tokens.end;
        if end == row.known {
            fill_sample(step, pass, tally, &row);
            self.sampling.push(at);
        } else {
            tally.cut_short = true;
        }
        tally.rows += 1;
        pass.query_start[tally.rows] = tally.tokens as i32;
        pass.page_indptr[tally.rows] = tally.pages as i32;
        self.rows[at].next = Some(end);
    }

    /// Where the first pass of a row begins; `None` while the spare pages that it needs are another row's.
    fn first_position(&mut self, pages: &[i32], at: usize, tally: &Tally) -> Option<usize> {
        let row = &mut self.rows[at];
        let hole = self.cache.first_hole(pages, row.first);
        if hole == row.first {
            // The sequence holds all that its next token sees.
            return Some(hole);
        }
        let begin = self.pages.begin(pages, hole);
        row.spare = self.pages.lacks(pages, begin..row.first);
        (!row.spare || !tally.spare).then_some(begin)
    }

    /// Writes the tokens of a row into the pass, from its token `first` on.
    fn fill_tokens(
        &mut self,
        step: &StepBuffers<'_>,
        pass: &mut StepBuffers<'_>,
        row: &Row,
        first: usize,
        positions: Range<usize>,
    ) {
        let pages = &step.page_indices[step.page_indptr[row.row] as usize..];
        for (token, position) in (first..).zip(positions) {
            let cell = self.cache.cell(pages, position);
            let known = match position.checked_sub(row.first) {
                Some(after) => step.token_ids[row.first_token + after],
                None => self.cache.token(cell),
            };
            pass.token_ids[token] = self.vocab_token(known);
            pass.positions[token] = position as i32;
            pass.slot_mapping[token] = cell as i32;
            self.cache.compute(cell);
        }
    }
}

fn count(number: i64) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::InvalidArgument("a negative count".into()))
}

#[cfg(test)]
mod tests;
