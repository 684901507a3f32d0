//! Writing a step: the granted rows go into its buffers and its record.
//!
//! ```text
//!   row         decode   with drafts   chunk of a prompt   its last chunk
//!   token_ids     n         n d d           p p p               p p          n the newest token, known or fed
//!   logits        x         x x x                                 x
//! ```
//!
//! O(tokens + pages) of the step; no allocation in steady state.

use super::Steps;
use super::buffers::{StepBuffers, StepHeader};
use super::layout::StepLayout;
use super::rows::{Grant, RowRecord, SampledRow, StepRecord, StepRow};
use crate::features::Features;
use pyengine_kv_allocator::{KvAllocator, PageId};

impl Steps {
    /// Writes the granted rows into the step's buffers and its record.
    pub(crate) fn fill(
        &mut self,
        kv: &KvAllocator,
        layout: &StepLayout,
        out: &mut StepBuffers<'_>,
        record: &mut StepRecord,
        features: &mut Features,
    ) {
        let mut tally = Tally::default();
        out.query_start[0] = 0;
        out.page_indptr[0] = 0;
        features.begin_step();
        let drafts: usize = self.decodes.iter().map(|grant| grant.drafts as usize).sum();
        out.clear(self.decodes.len() + self.prefills.len() + drafts);
        for at in 0..self.decodes.len() {
            self.fill_row(kv, out, record, &mut tally, features, self.decodes[at]);
        }
        for at in 0..self.prefills.len() {
            self.fill_row(kv, out, record, &mut tally, features, self.prefills[at]);
        }
        if !kv.blocks_are_pages() {
            self.fill_tables(kv, layout, out, record, &mut tally);
        }
        record.num_sampled = tally.sampled;
        record.num_logits = tally.logits;
        out.logit_start[tally.sampled] = tally.logits as i32;
        *out.header = StepHeader {
            step_id: record.number as i64,
            num_rows: record.rows.len() as i64,
            num_decode_rows: self.decodes.len() as i64,
            ..tally.header()
        };
        features.end_step(out.header);
        record.drafts = self.proposer.end_step(tally.device_drafts);
        layout.forget_results(out);
    }

    /// Writes a row, and moves its sequence on to behind it.
    fn fill_row(
        &mut self,
        kv: &KvAllocator,
        out: &mut StepBuffers<'_>,
        record: &mut StepRecord,
        tally: &mut Tally,
        features: &mut Features,
        grant: Grant,
    ) {
        let Grant { slot, count, drafts, segments, .. } = grant;
        let row = record.rows.len();
        self.fill_tokens(out, tally, grant);
        self.fill_cache(kv, out, tally, row, grant);
        tally.tokens += count as usize;
        tally.longest_query = tally.longest_query.max(count as usize);
        out.query_start[row + 1] = tally.tokens as i32;
        out.row_sequence[row] = slot as i32;

        let progress = &mut self.table.progress[slot as usize];
        let (start, end) = (progress.planned, progress.planned + count);
        let completes = end - drafts == progress.reach();
        progress.planned = end;
        progress.drafted += drafts;
        progress.pending += u32::from(completes);
        let samples = completes && self.table.samples[slot as usize];
        let generation = self.table.generation(slot);
        let block_size = self.block_size as u32;
        let fills_up = row >= self.decodes.len() && start / block_size < end / block_size;
        record.rows.push(RowRecord {
            slot,
            generation,
            count,
            drafts,
            segments,
            completes,
            samples,
            publishes: fills_up || self.states.exist(),
        });
        let row_of_features = StepRow {
            slot,
            generation,
            request: self.table.request[slot as usize],
            tokens: tally.tokens - count as usize..tally.tokens,
            start,
            known: &self.table.tokens[slot as usize],
            completes,
            sampling: samples.then(|| self.fill_sampling(out, tally, row, grant)),
        };
        features.write(&row_of_features, row, out, &mut record.outputs);
    }

    /// The row's input: tokens that the host knows or else the one that the device feeds, then drafts.
    fn fill_tokens(&self, out: &mut StepBuffers<'_>, tally: &mut Tally, grant: Grant) {
        let at = grant.slot as usize;
        let progress = &self.table.progress[at];
        let (start, known) = (progress.planned as usize, progress.known as usize);
        let (count, drafts) = (grant.count as usize, grant.drafts as usize);
        let tokens = tally.tokens..tally.tokens + count;
        let (own, places) = out.token_ids[tokens.clone()].split_at_mut(count - drafts);
        let end = start + own.len();
        let values = &self.table.tokens[at][start.min(known)..end.min(known)];
        own.iter_mut().zip(values).for_each(|(token_id, token)| *token_id = *token as i32);
        fill_drafts(places, self.proposer.tokens(), grant);
        if end > known {
            // Only the newest token can be unknown, and it is the one that `last_token` holds.
            let newest = tokens.start + (count - drafts) - 1;
            out.token_ids[newest] = 0;
            out.feed_token[tally.feeds] = newest as i32;
            out.feed_sequence[tally.feeds] = grant.slot as i32;
            tally.feeds += 1;
        }
    }

    /// Where the row's tokens are in their sequence and in the KV cache, and the blocks that the row reads. Where
    /// these are not pages, [`fill_tables`](Self::fill_tables) fills all page tables.
    fn fill_cache(
        &self,
        kv: &KvAllocator,
        out: &mut StepBuffers<'_>,
        tally: &mut Tally,
        row: usize,
        grant: Grant,
    ) {
        let at = grant.slot as usize;
        let blocks = self.table.held[at].blocks();
        let start = self.table.progress[at].planned as usize;
        let end = start + grant.count as usize;
        let rotation = self.table.rotation[at] as usize;
        let tokens = tally.tokens..tally.tokens + grant.count as usize;
        let places = out.positions[tokens.clone()].iter_mut().zip(rotation + start..);
        places.for_each(|(place, position)| *place = position as i32);
        fill_slots(&mut out.slot_mapping[tokens], start, self.block_size, |block| blocks[block]);
        let pages = end.div_ceil(self.block_size);
        if kv.blocks_are_pages() {
            let page_indices = &mut out.page_indices[tally.pages..tally.pages + pages];
            page_indices.iter_mut().zip(blocks).for_each(|(page, block)| *page = *block as i32);
        }
        tally.pages += pages;
        tally.longest_kv = tally.longest_kv.max(end);
        out.page_indptr[row + 1] = tally.pages as i32;
        out.kv_length[row] = end as i32;
    }

    /// Every page table of every row, table after table. That of a window begins with the first page that the row sees:
    ///
    /// ```text
    ///   kv_length     rows of table 0 │ of table 1, less the tokens before its first page │ ...
    ///   page_indices  row 0, row 1, ..│ row 0, row 1, ...                                 │ ...
    /// ```
    fn fill_tables(
        &self,
        kv: &KvAllocator,
        layout: &StepLayout,
        out: &mut StepBuffers<'_>,
        record: &StepRecord,
        tally: &mut Tally,
    ) {
        tally.pages = 0;
        // Where no layer attends there is a table of no pages.
        out.page_indptr[..=record.rows.len()].fill(0);
        let groups = kv.groups().iter().enumerate();
        let tables = groups.flat_map(|(group, of)| std::iter::repeat_n(group, of.tables));
        for (table, group) in tables.enumerate() {
            let (rows, tokens) = (table * layout.max_rows(), table * layout.max_tokens());
            let indptr = table * (layout.max_rows() + 1);
            out.page_indptr[indptr] = tally.pages as i32;
            for (row, RowRecord { slot, .. }) in record.rows.iter().enumerate() {
                let held = &self.table.held[*slot as usize];
                let rotation = self.table.rotation[*slot as usize] as usize;
                let end = self.table.progress[*slot as usize].planned as usize;
                let first = held.first(group);
                let used = &held.blocks()[first..end.div_ceil(self.block_size)];
                let pages = &mut out.page_indices[tally.pages..tally.pages + used.len()];
                pages.iter_mut().zip(used).for_each(|(page, block)| *page = kv.page(*block, table) as i32);
                tally.pages += used.len();
                out.page_indptr[indptr + row + 1] = tally.pages as i32;
                out.kv_length[rows + row] = (end - first * self.block_size) as i32;
                let own = out.query_start[row] as usize..out.query_start[row + 1] as usize;
                let start = out.positions[own.start] as usize - rotation;
                let slots = &mut out.slot_mapping[tokens + own.start..tokens + own.end];
                fill_slots(slots, start, self.block_size, |block| kv.page(held.blocks()[block], table));
            }
        }
    }

    /// How a row samples: from which logits, and by which rules.
    fn fill_sampling(
        &self,
        out: &mut StepBuffers<'_>,
        tally: &mut Tally,
        row: usize,
        grant: Grant,
    ) -> SampledRow {
        let Grant { slot, on_device, .. } = grant;
        let (at, drafts) = (slot as usize, grant.drafts as usize);
        let sampling = SampledRow { first_logit: tally.logits, first_draft: tally.tokens - drafts, drafts };
        fill_logits(out, tally, drafts);
        let rules = self.table.sampling[at];
        let device_drafts = if on_device { drafts } else { 0 };
        out.device_drafts[tally.sampled] = device_drafts as i32;
        out.sampling[tally.sampled] = rules;
        out.sample_rows[tally.sampled] = row as i32;
        out.sample_sequence[tally.sampled] = slot as i32;
        out.sample_position[tally.sampled] = (self.table.progress[at].planned as usize - drafts) as i64;
        tally.sampled += 1;
        tally.greedy += usize::from(rules.temperature == 0.0);
        tally.device_drafts = tally.device_drafts.max(device_drafts);
        sampling
    }
}

/// How much of each field is written.
#[derive(Default)]
struct Tally {
    tokens: usize,
    sampled: usize,
    pages: usize,
    feeds: usize,
    longest_query: usize,
    longest_kv: usize,
    greedy: usize,
    logits: usize,
    device_drafts: usize,
}

impl Tally {
    /// The numbers of the step, by which its reader knows how much of each field counts; those of rows are left out.
    fn header(&self) -> StepHeader {
        StepHeader {
            num_tokens: self.tokens as i64,
            num_sampled: self.sampled as i64,
            num_pages: self.pages as i64,
            num_feeds: self.feeds as i64,
            max_query_length: self.longest_query as i64,
            max_kv_length: self.longest_kv as i64,
            num_greedy: self.greedy as i64,
            num_logits: self.logits as i64,
            max_device_drafts: self.device_drafts as i64,
            ..StepHeader::ZERO
        }
    }
}

/// Where the KV of tokens goes, from position `start` on; `page` names the page of each of their sequence's blocks.
fn fill_slots(mut slots: &mut [i32], start: usize, block_size: usize, page: impl Fn(usize) -> PageId) {
    let (mut block, mut offset) = (start / block_size, start % block_size);
    while !slots.is_empty() {
        let count = slots.len().min(block_size - offset);
        let (here, behind) = std::mem::take(&mut slots).split_at_mut(count);
        let first = page(block) as usize * block_size + offset;
        here.iter_mut().zip(first..).for_each(|(slot, cell)| *slot = cell as i32);
        (slots, block, offset) = (behind, block + 1, 0);
    }
}

/// The draft tokens of a row: the host's, or places that the device fills in.
fn fill_drafts(places: &mut [i32], drafts: &[u32], grant: Grant) {
    if grant.on_device {
        places.fill(0);
        return;
    }
    let drafts = &drafts[grant.first_draft as usize..];
    places.iter_mut().zip(drafts).for_each(|(place, draft)| *place = *draft as i32);
}

/// The logits of a sampling row whose tokens were just written: the last of them but for the drafts, and these.
fn fill_logits(out: &mut StepBuffers<'_>, tally: &mut Tally, drafts: usize) {
    out.logit_start[tally.sampled] = tally.logits as i32;
    for token in tally.tokens - 1 - drafts..tally.tokens {
        out.logit_row[tally.logits] = tally.sampled as i32;
        out.logit_token[tally.logits] = token as i32;
        tally.logits += 1;
    }
}
