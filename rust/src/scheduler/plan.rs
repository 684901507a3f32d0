//! `plan`: choose the rows of the next step and write them.
//!
//! Rows are granted in three passes, each seeing what the one before left of the budget: decodes, prefills
//! under way, requests admitted now. Only decodes can lack a block (admission takes those of all known tokens),
//! and victims come from the end of the running order, where nothing was granted yet: no grant is taken back. A prefill
//! finds in the prefix tree what those before it compute (see `sharing`).
//!
//! O(running + admitted) and O(tokens + pages) of the step; no allocation in steady state.

use super::buffers::{StepBuffers, header};
use super::planner::{EditRecord, Grant, MaskRecord, Planner, RowRecord, Runner, StepRecord};
use super::policy;
use super::sequence_table::{Progress, RequestId};
use crate::error::Result;
use crate::kv_allocator::KvAllocator;
use crate::messages::SamplingRules;
use crate::telemetry::{Lane, Span, Stage};

/// What the step that is being planned has room for.
pub(super) struct Room {
    pub tokens: usize,
    pub pages: usize,
    pub logits: usize,
    pub edits: usize,
    // Nobody is admitted: a sequence was preempted or left out.
    closed: bool,
    now_ns: u64,
}

impl Planner {
    /// Plans a step and writes it into `bytes`; returns the number of rows. 0 when there is nothing to run now, or
    /// the detokenizer's ring is full: then no step is in flight for it.
    pub fn plan(&mut self, kv: &mut KvAllocator, bytes: &mut [u8], now_ns: u64) -> Result<usize> {
        let mut buffers = self.layout.view(bytes)?;
        self.now_ns = now_ns;
        self.expire(kv, now_ns);
        self.flush(Stage::Admit)?;
        let mut speculative = self.drafts_now();
        if speculative && !self.in_flight.is_empty() && self.has_prefills() {
            // Prompts go on beside the step in flight; drafts wait until there are none.
            speculative = false;
        }
        if self.outbox.held() > 0 {
            self.hold_up_drafting();
            return Ok(0);
        }
        // Drafts follow tokens that are known.
        if speculative && !self.in_flight.is_empty() {
            return Ok(0);
        }
        let pages = self.layout.max_pages();
        let (tokens, logits) = (self.config.max_tokens_per_step, self.layout.max_logits());
        let edits = self.layout.max_edits();
        let mut room = Room { tokens, pages, logits, edits, closed: false, now_ns };
        self.decodes.clear();
        self.prefills.clear();
        self.published.clear();
        self.seat_edits(&mut room);
        self.grant_decodes(kv, &mut room);
        self.timeline.lap(Stage::Allocate);
        self.grant_prefills(kv, &mut room);
        self.admit(kv, &mut room);
        self.timeline.lap(Stage::Admit);
        if self.decodes.is_empty() && self.prefills.is_empty() {
            return Ok(0);
        }
        if speculative {
            self.grant_drafts(kv, &mut room);
            self.timeline.lap(Stage::Draft);
        }
        let mut record = self.spare.pop().unwrap_or_default();
        self.counters.steps += 1;
        self.timeline.set_step(self.counters.steps);
        record.number = self.counters.steps;
        std::mem::swap(&mut record.published, &mut self.published);
        self.fill(&mut buffers, &mut record);
        let rows = record.rows.len();
        record.planned_ns = now_ns;
        record.prefills = self.prefills.len();
        record.speculative = speculative;
        record.caught_up = if speculative { self.caught_up } else { 0 };
        if self.in_flight.is_empty() {
            self.timeline.set_in_flight_since(now_ns);
        }
        self.in_flight.push_back(record);
        self.timeline.lap(Stage::BufferFill);
        Ok(rows)
    }

    /// Whether a prompt is under way, or waits and may be admitted: those that wait for others to end hold up nobody.
    pub(super) fn has_prefills(&self) -> bool {
        let under_way = |runner: &Runner| self.table.progress[runner.slot as usize].remaining() > 1;
        let admits = self.running.len() < self.concurrency && self.stuck.is_none();
        (admits && self.waiting.len() > 0) || self.running.iter().any(under_way)
    }

    fn grant_decodes(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        let mut next = 0;
        while let Some(&Runner { slot, .. }) = self.running.get(next) {
            next += 1;
            let progress = self.table.progress[slot as usize];
            if progress.remaining() != 1 || self.lacks_seat(slot) {
                continue;
            }
            let pages = (progress.planned as usize + 1).div_ceil(self.block_size);
            if pages > room.pages || room.tokens == 0 {
                room.closed = true;
            } else if self.extend(kv, slot, pages, room) {
                room.tokens -= 1;
                room.pages -= pages;
                self.decodes.push(Grant::new(slot, 1));
            }
        }
    }

    /// Gives a sequence `blocks` blocks, at the expense of the last in running order. False if that is itself.
    fn extend(&mut self, kv: &mut KvAllocator, slot: u32, blocks: usize, room: &mut Room) -> bool {
        loop {
            let held = &mut self.table.blocks[slot as usize];
            if held.len() >= blocks || kv.allocate(blocks - held.len(), held).is_ok() {
                return true;
            }
            let Some(&Runner { slot: victim, .. }) = self.running.last() else { return false };
            self.preempt(kv, victim);
            room.closed = true;
            if victim == slot {
                return false;
            }
        }
    }

    fn grant_prefills(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        for next in 0..self.running.len() {
            let slot = self.running[next].slot;
            if self.table.progress[slot as usize].remaining() > 1 && room.tokens > 0 {
                self.catch_up(kv, slot);
                self.grant_prefill(kv, slot, room);
            }
        }
    }

    /// Gives a prefill its share of the step, which may be none.
    fn grant_prefill(&mut self, kv: &mut KvAllocator, slot: u32, room: &mut Room) {
        let progress = self.table.progress[slot as usize];
        let reach = (room.pages * self.block_size).saturating_sub(progress.planned as usize);
        let wanted = policy::share(progress.remaining(), room.tokens, self.config.prefill_chunk);
        let mut count = wanted.min(reach);
        room.closed |= count < wanted;
        if count > 0 && count == progress.remaining() as usize && !self.seat_prefill(slot, &progress, room) {
            // It samples in a step that has a place for its edits.
            count -= 1;
        }
        if count > 0 {
            room.tokens -= count;
            room.pages -= (progress.planned as usize + count).div_ceil(self.block_size);
            self.publish(kv, slot, progress.planned as usize + count);
            self.prefills.push(Grant::new(slot, count as u32));
        }
    }

    fn admit(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        let mut growth = None;
        while self.running.len() < self.concurrency && room.tokens > 0 && room.pages > 0 && !room.closed {
            let Some(id) = self.waiting.head(&self.tenants) else { return };
            // What a running sequence takes, it was expected to take: only a gain makes another try worth it.
            if self.stuck.is_some_and(|(head, free, running)| {
                head == id && running == self.running.len() && kv.available() <= free
            }) {
                return;
            }
            let expected = growth.unwrap_or_else(|| self.expected_growth());
            let Some(slot) = self.try_admit(kv, id, expected, room.now_ns) else {
                self.stuck = Some((id, kv.available(), self.running.len()));
                return;
            };
            let progress = &self.table.progress[slot as usize];
            let held = self.table.blocks[slot as usize].len();
            growth = Some(expected + policy::growth(progress, held, self.block_size, self.horizon));
            self.grant_prefill(kv, slot, room);
        }
    }

    /// Blocks that the running sequences will want soon.
    fn expected_growth(&self) -> usize {
        let of = |runner: &Runner| {
            let slot = runner.slot as usize;
            let held = self.table.blocks[slot].len();
            policy::growth(&self.table.progress[slot], held, self.block_size, self.horizon)
        };
        self.running.iter().map(of).sum()
    }

    /// Moves the head of the queue into the table, if its blocks can be had beside the `expected` growth of others.
    fn try_admit(
        &mut self,
        kv: &mut KvAllocator,
        id: RequestId,
        expected: usize,
        now_ns: u64,
    ) -> Option<u32> {
        self.timeline.lap(Stage::Admit);
        let request = self.requests.get(id);
        let known = request.tokens.len();
        let slot = self.table.acquire()?;
        let at = slot as usize;
        let blocks = &mut self.table.blocks[at];
        // At least one token is left to compute, or there would be no logits to sample from.
        let cached = kv.match_prefix(request.salt, &request.tokens, (known - 1) / self.block_size, blocks);
        self.timeline.lap(Stage::Match);
        let needed = known.div_ceil(self.block_size) - cached;
        let computed = (cached * self.block_size) as u32;
        let limit = request.limit;
        let known = known as u32;
        let progress = Progress {
            known,
            planned: computed,
            committed: computed,
            limit,
            prefill: known,
            ..Progress::default()
        };
        let own = policy::growth(&progress, cached + needed, self.block_size, self.horizon);
        let alone = self.running.is_empty();
        blocks.reserve((limit as usize).div_ceil(self.block_size).saturating_sub(blocks.len()));
        if !policy::admits(needed, kv.available(), expected + own, alone)
            || kv.allocate(needed, blocks).is_err()
        {
            kv.release(blocks);
            blocks.clear();
            self.table.release(slot);
            return None;
        }
        self.timeline.lap(Stage::Allocate);
        self.table.progress[at] = progress;
        self.enter(id, slot, computed, now_ns);
        Some(slot)
    }

    fn enter(&mut self, id: RequestId, slot: u32, computed: u32, now_ns: u64) {
        let at = slot as usize;
        let request = self.requests.get_mut(id);
        self.waiting.remove(&request.ticket);
        request.slot = Some(slot);
        let known = request.tokens.len() as u32;
        let first = request.cached_tokens.is_none();
        let cached = *request.cached_tokens.get_or_insert(computed.min(request.prompt_length));
        self.serial += 1;
        let order = policy::running_order(request.ticket.class, self.serial);
        let mut tokens = std::mem::take(&mut request.tokens);
        tokens.reserve((request.limit - known) as usize);
        self.table.tokens[at] = tokens;
        self.table.sampling[at] = request.sampling;
        self.table.request[at] = id;
        self.table.tenant[at] = request.ticket.tenant;
        self.table.order[at] = order;
        self.table.borrowed_in[at] = if computed > 0 { self.step_ahead() } else { 0 };
        self.open_drafting(id, slot);
        self.editing += usize::from(self.requests.get(id).edits.is_some());
        let request = self.requests.get_mut(id);
        let position = self.running.partition_point(|runner| runner.order < order);
        self.running.insert(position, Runner { order, slot });
        self.counters.prefix_queries += u64::from(known);
        self.counters.prefix_hits += u64::from(computed);
        // What is computed again after a preemption is not the tenant's fault.
        if first {
            self.distributions.admitted(request, now_ns);
            let (stage, lane) = (Stage::QueueWait, Lane::Request);
            let start = request.ticket.arrival_ns.min(now_ns);
            let step = request.key.request;
            self.timeline.record(Span { stage, lane, start, end: now_ns, step });
            self.tenants.admit(request.ticket.tenant, known - computed);
            self.counters.prompt_tokens += u64::from(request.prompt_length);
            self.counters.cached_tokens += u64::from(cached);
        }
    }

    /// Writes the granted rows and takes note of them.
    fn fill(&mut self, out: &mut StepBuffers<'_>, record: &mut StepRecord) {
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
