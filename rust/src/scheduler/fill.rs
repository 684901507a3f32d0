//! Writing a step: the granted rows go into its buffers, and into its record.
//!
//! O(tokens + pages) of the step; no allocation in steady state.

use super::buffers::{StepBuffers, header};
use super::planner::{EditRecord, Grant, MaskRecord, Planner, RowRecord, StepRecord};
use crate::messages::SamplingRules;

impl Planner {
    /// Writes the granted rows and takes note of them.
    pub(super) fn fill(&mut self, out: &mut StepBuffers<'_>, record: &mut StepRecord) {
        let mut tally = Tally::default();
        out.query_start[0] = 0;
        out.page_indptr[0] = 0;
        for at in 0..self.decodes.len() {
            self.fill_row(out, record, &mut tally, self.decodes[at]);
        }
        for at in 0..self.prefills.len() {
            self.fill_row(out, record, &mut tally, self.prefills[at]);
        }
        record.num_sampled = tally.sampled;
        record.num_logits = tally.logits;
        record.device_drafts = tally.device_drafts;
        record.logprobs = tally.logprobs;
        out.logit_start[tally.sampled] = tally.logits as i32;
        out.header.fill(0);
        let step = self.counters.steps as usize;
        let Tally {
            tokens,
            sampled,
            pages,
            feeds,
            longest_query,
            longest_kv,
            greedy,
            logits,
            masks,
            device_drafts,
            edits,
            logprobs,
        } = tally;
        let (rows, decodes) = (record.rows.len(), self.decodes.len());
        let values = [
            (header::NUM_ROWS, rows),
            (header::NUM_TOKENS, tokens),
            (header::NUM_SAMPLED, sampled),
            (header::NUM_PAGES, pages),
            (header::NUM_FEEDS, feeds),
            (header::MAX_QUERY_LENGTH, longest_query),
            (header::MAX_KV_LENGTH, longest_kv),
            (header::STEP_ID, step),
            (header::NUM_GREEDY, greedy),
            (header::NUM_LOGITS, logits),
            (header::NUM_MASKS, masks),
            (header::MAX_DEVICE_DRAFTS, device_drafts),
            (header::NUM_DECODE_ROWS, decodes),
            (header::NUM_EDITS, edits),
            (header::MAX_LOGPROBS_AND_ONE, logprobs),
        ];
        values.iter().for_each(|&(field, value)| out.header[field] = value as i64);
    }

    fn fill_row(
        &mut self,
        out: &mut StepBuffers<'_>,
        record: &mut StepRecord,
        tally: &mut Tally,
        grant: Grant,
    ) {
        let Grant { slot, count, drafts, .. } = grant;
        let at = slot as usize;
        let row = record.rows.len();
        let progress = &mut self.table.progress[at];
        let blocks = &self.table.blocks[at];
        let (start, end) = (progress.planned as usize, (progress.planned + count) as usize);
        let tokens = tally.tokens..tally.tokens + count as usize;

        let first_draft = tokens.end - drafts as usize;
        let known = progress.known as usize;
        let known = &self.table.tokens[at][start.min(known)..(end - drafts as usize).min(known)];
        for (token_id, token) in out.token_ids[tokens.clone()].iter_mut().zip(known) {
            *token_id = *token as i32;
        }
        fill_drafts(&mut out.token_ids[first_draft..tokens.end], &self.drafts, grant);
        if end - drafts as usize > progress.known as usize {
            // Only the newest token can be unknown, and it is the one that `last_token` holds.
            out.token_ids[tokens.end - 1] = 0;
            out.feed_token[tally.feeds] = (tokens.end - 1) as i32;
            out.feed_sequence[tally.feeds] = slot as i32;
            tally.feeds += 1;
        }
        let places = out.positions[tokens.clone()].iter_mut().zip(&mut out.slot_mapping[tokens.clone()]);
        for ((place, cell), position) in places.zip(start..end) {
            *place = position as i32;
            *cell = (blocks[position / self.block_size] as usize * self.block_size
                + position % self.block_size) as i32;
        }
        let pages = end.div_ceil(self.block_size);
        let page_indices = &mut out.page_indices[tally.pages..tally.pages + pages];
        page_indices.iter_mut().zip(blocks).for_each(|(page, block)| *page = *block as i32);
        tally.tokens = tokens.end;
        tally.pages += pages;
        tally.longest_query = tally.longest_query.max(count as usize);
        tally.longest_kv = tally.longest_kv.max(end);
        out.query_start[row + 1] = tally.tokens as i32;
        out.page_indptr[row + 1] = tally.pages as i32;
        out.kv_length[row] = end as i32;
        out.row_sequence[row] = slot as i32;

        let samples = end - drafts as usize == progress.total() as usize;
        progress.planned = end as u32;
        progress.drafted = drafts;
        progress.pending += u32::from(samples);
        let generation = self.table.generation(slot);
        let publishes = row >= self.decodes.len() && start / self.block_size < end / self.block_size;
        record.rows.push(RowRecord {
            slot,
            generation,
            count,
            drafts,
            segments: grant.segments,
            samples,
            publishes,
        });
        if samples {
            let request = self.requests.get(self.table.request[at]);
            let constrained = request.grammar.is_some();
            if let Some(edits) = &request.edits {
                let first = tally.logits as u32;
                record.edits.push(EditRecord { slot, generation, first, drafts });
                // Nobody knows yet how many there are. A step without any must look otherwise.
                tally.edits = (tally.edits + edits.bound(drafts as usize)).max(1);
            }
            if constrained {
                record.masks.push(MaskRecord { slot, generation, drafts });
                let drafts = out.token_ids[first_draft..tokens.end].iter().map(|token| *token as u32);
                record.drafts.extend(drafts);
            }
            let logprobs = request.logprobs;
            out.logprobs[tally.sampled] = logprobs.map_or(-1, i32::from);
            tally.logprobs = tally.logprobs.max(logprobs.map_or(0, |count| usize::from(count) + 1));
            fill_logits(out, tally, drafts as usize, constrained);
            fill_sample(out, tally, row, slot, end - drafts as usize, &self.table.sampling[at]);
            if grant.on_device {
                out.device_drafts[tally.sampled - 1] = drafts as i32;
                tally.device_drafts = tally.device_drafts.max(drafts as usize);
            }
        }
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
    masks: usize,
    device_drafts: usize,
    edits: usize,
    // One more than the most that a row wants.
    logprobs: usize,
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
fn fill_logits(out: &mut StepBuffers<'_>, tally: &mut Tally, drafts: usize, constrained: bool) {
    out.logit_start[tally.sampled] = tally.logits as i32;
    for token in tally.tokens - 1 - drafts..tally.tokens {
        out.logit_row[tally.logits] = tally.sampled as i32;
        out.logit_token[tally.logits] = token as i32;
        out.mask_row[tally.logits] = if constrained { tally.masks as i32 } else { -1 };
        tally.logits += 1;
        tally.masks += usize::from(constrained);
    }
}

fn fill_sample(
    out: &mut StepBuffers<'_>,
    tally: &mut Tally,
    row: usize,
    slot: u32,
    position: usize,
    rules: &SamplingRules,
) {
    let at = tally.sampled;
    out.sample_rows[at] = row as i32;
    out.sample_sequence[at] = slot as i32;
    out.temperature[at] = rules.temperature;
    out.top_k[at] = rules.top_k.min(i32::MAX as u32) as i32;
    out.top_p[at] = rules.top_p;
    out.min_p[at] = rules.min_p;
    out.seed[at] = rules.seed;
    out.sample_position[at] = position as i64;
    out.device_drafts[at] = 0;
    tally.sampled += 1;
    tally.greedy += usize::from(rules.temperature == 0.0);
}
