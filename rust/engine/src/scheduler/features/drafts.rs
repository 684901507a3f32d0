//! Drafts in the steps: who gets how many, and what became of them.
//!
//! ```text
//!   plan     decodes, prefills, admissions ──► drafts from what the step has left: tokens, pages, logits, blocks
//!   commit   how many were right ──► the proposers;  what the step took ──► their control
//! ```
//!
//! Drafts never take anything from tokens that are certain: no sequence is preempted for them, and no prompt is cut
//! shorter. Sequences whose tokens are still in flight cannot be drafted for, so while drafts pay, a step is planned
//! only when the one before is committed; whether they still pay then is measured with that in it.
//! The draft model is asked in steps without prompts only: those are the steps whose time is judged.
//! O(decodes + drafts), and what the grammars take to look at their rows' drafts.

use crate::kv_allocator::KvAllocator;
use crate::scheduler::features::drafting::Drafting;
use crate::scheduler::planner::{Grant, Planner, RowRecord, StepRecord};
use crate::scheduler::step::plan::Room;
use crate::scheduler::step::sequence_table::RequestId;
use crate::speculate::{Length, POSITIONS, Row, Segments, Source, SpeculationConfig, StepOutcome};

/// Tokens of prompts and answers that are indexed in a step, where that was put off.
const TENDED: usize = 256;

impl Planner {
    /// Lets rows have drafts, as `config` says, up to the layout's bound of logits.
    pub fn set_speculation(&mut self, config: SpeculationConfig) {
        self.drafting = Some(Box::new(Drafting::new(config, self.config.max_sequences)));
    }

    /// Whether the next step should have drafts.
    pub(in crate::scheduler) fn drafts_now(&self) -> bool {
        self.drafting.as_ref().is_some_and(|drafting| {
            // Prompts are looked for only where it depends on them.
            let measured = || drafting.since_ns.is_some() && !self.has_prefills();
            drafting.speculator.active() && drafting.speculator.wants_drafts(measured())
        })
    }

    /// A sequence has got its place in the table.
    pub(in crate::scheduler) fn open_drafting(&mut self, id: RequestId, slot: u32) {
        if let Some(drafting) = &mut self.drafting {
            let request = self.requests.get(id);
            drafting.computed[slot as usize] = 0;
            drafting.speculator.open(
                slot,
                request.history,
                &self.table.tokens[slot as usize],
                request.prompt_length as usize,
                request.prediction.clone(),
            );
        }
    }

    /// A sequence has left the table; `remember` says that its answer may help others of its tenant.
    pub(in crate::scheduler) fn close_drafting(&mut self, slot: u32, remember: bool) {
        if let Some(drafting) = &mut self.drafting {
            drafting.speculator.close(slot, remember);
            drafting.since_ns = None;
        }
    }

    /// Drops the recent answers of a history; those under way join it when they end.
    pub(in crate::scheduler) fn forget_answers(&mut self, history: u64) {
        if let Some(drafting) = &mut self.drafting {
            drafting.speculator.forget(history);
        }
    }

    /// Gives the decodes drafts from what the step has left.
    pub(in crate::scheduler) fn grant_drafts(&mut self, kv: &mut KvAllocator, room: &mut Room) {
        self.drafts.clear();
        self.caught_up = 0;
        let Some(mut drafting) = self.drafting.take() else { return };
        if !self.decodes.is_empty() {
            room.logits -= self.decodes.len() + self.prefills.len();
            self.propose(&mut drafting, self.prefills.is_empty());
            let prefill = self.prefills.iter().map(|grant| grant.count as usize).sum();
            let Drafting { speculator, rows, lengths, .. } = &mut *drafting;
            speculator.plan_lengths(rows, prefill, lengths);
            for at in 0..self.decodes.len() {
                let (row, length, first) = (drafting.rows[at], drafting.lengths[at], drafting.firsts[at]);
                let grant = self.draft_grant(kv, room, self.decodes[at], row.segments, length, first);
                self.decodes[at] = grant;
                if grant.on_device && grant.drafts > 0 {
                    let known = self.table.progress[grant.slot as usize].known;
                    let computed = &mut drafting.computed[grant.slot as usize];
                    self.caught_up += (known - 1).saturating_sub(*computed) as usize;
                    *computed = known;
                }
            }
        }
        self.drafting = Some(drafting);
    }

    /// Collects what may be drafted for each decode; `on_device` says whether the draft model may be asked.
    fn propose(&mut self, drafting: &mut Drafting, on_device: bool) {
        drafting.rows.clear();
        drafting.firsts.clear();
        for grant in &self.decodes {
            let slot = grant.slot;
            let progress = &self.table.progress[slot as usize];
            let request = self.requests.get_mut(self.table.request[slot as usize]);
            // The last token of the answer needs no draft after it.
            let limit = drafting.max_draft.min((progress.limit - progress.known - 1) as usize);
            let closes = request.closing_token().is_some();
            let first = self.drafts.len();
            let mut segments = Segments::default();
            drafting.ahead.clear();
            if limit > 0 && !closes {
                if let Some(grammar) = request.grammar.as_mut().filter(|_| drafting.forced) {
                    grammar.forced_tokens(limit, &mut drafting.ahead);
                }
                segments = drafting.speculator.propose(slot, &drafting.ahead, limit, &mut self.drafts);
            }
            let lacks = (progress.known - 1).saturating_sub(drafting.computed[slot as usize]) as usize;
            let left = (progress.limit - progress.known) as usize;
            let mut device = if on_device { limit } else { 0 };
            if request.penalties.is_some() {
                // They go by the drafts too, which the host does not see on the device.
                device = 0;
            }
            if let Some(grammar) = &mut request.grammar {
                // A draft that the grammar forbids is wrong for certain. The device's model knows no grammar.
                let drafts = &self.drafts[first..];
                let allowed = drafts.iter().take_while(|draft| grammar.advance(**draft)).count();
                grammar.roll_back(allowed);
                segments.truncate(allowed);
                device = 0;
            }
            self.drafts.truncate(first + segments.total());
            drafting.firsts.push(first);
            drafting.rows.push(Row { slot, segments, device, lacks, left });
        }
    }

    /// `grant` with as many of its drafts as there is room for.
    fn draft_grant(
        &mut self,
        kv: &mut KvAllocator,
        room: &mut Room,
        grant: Grant,
        mut segments: Segments,
        length: Length,
        first: usize,
    ) -> Grant {
        let on_device = length.device > 0;
        segments.truncate(length.host.into());
        debug_assert!(
            !on_device || segments.total() == 0,
            "a row's drafts are all of the host or of the device"
        );
        let planned = self.table.progress[grant.slot as usize].planned as usize;
        let wanted = if on_device { usize::from(length.device) } else { segments.total() };
        let held = (planned + 1).div_ceil(self.block_size);
        let reach = ((held + room.pages) * self.block_size).saturating_sub(planned + 1);
        let mut count = wanted.min(room.tokens).min(room.logits).min(reach);
        count = self.seat_drafts(grant.slot, count, room);
        let needed = (planned + 1 + count).div_ceil(self.block_size);
        let blocks = &mut self.table.blocks[grant.slot as usize];
        if needed > blocks.len() && kv.allocate(needed - blocks.len(), blocks).is_err() {
            count = count.min(blocks.len() * self.block_size - planned - 1);
        }
        room.tokens -= count;
        room.logits -= count;
        room.pages -= (planned + 1 + count).div_ceil(self.block_size) - held;
        match on_device {
            true => segments.push_device(count),
            false => segments.truncate(count),
        }
        let (count, first) = (count as u32, first as u32);
        Grant { count: 1 + count, drafts: count, first_draft: first, on_device, segments, ..grant }
    }

    /// Takes note of how many drafts of a row were right: all but the last of its `sampled` tokens equal theirs. Where
    /// only the first `taken` were wanted, those behind are neither right nor wrong.
    pub(in crate::scheduler) fn judge_drafts(&mut self, row: &RowRecord, taken: usize, sampled: usize) {
        if row.drafts == 0 {
            return;
        }
        let accepted = taken.min(sampled.saturating_sub(1)) as u32;
        let judged = if taken < sampled { accepted } else { row.drafts };
        let request = self.requests.get_mut(self.table.request[row.slot as usize]);
        request.accepted_drafts += accepted;
        request.rejected_drafts += judged - accepted;
        if let Some(drafting) = &mut self.drafting {
            if row.segments.iter().any(|segment| segment.source == Source::DraftModel) {
                // The last draft was chosen, and not computed.
                drafting.computed[row.slot as usize] += accepted.min(row.drafts - 1);
            }
            let mut segments = row.segments;
            segments.truncate(judged as usize);
            drafting.speculator.judged(row.slot, &segments, accepted as usize);
        }
    }

    /// Tells the control what a step took, which had `accepted` right drafts and with which some requests `ended`.
    ///
    /// The time is that from commit to commit: taking in the tokens of the one and drafting for the other is in it.
    /// Where prompts are computed, or somebody ended before it, it says nothing of drafts: to clear up, to answer
    /// and to take in the next request costs as much as many a step.
    pub(in crate::scheduler) fn observe_step(&mut self, record: &StepRecord, accepted: usize, ended: usize) {
        let now_ns = self.now_ns;
        let Some(drafting) = &mut self.drafting else { return };
        let decodes = record.prefills == 0;
        let begun = drafting.since_ns.filter(|_| decodes);
        drafting.since_ns = (decodes && ended == 0).then_some(now_ns);
        drafting.speculator.observe(&StepOutcome {
            rows: record.rows.len(),
            drafted: record.num_logits - record.num_sampled,
            accepted,
            device_iterations: record.device_drafts,
            caught_up: record.caught_up,
            speculative: record.speculative,
            duration_ns: begun.map_or(0, |begun| now_ns.saturating_sub(begun)),
        });
        drafting.speculator.tend(TENDED);
    }

    /// Nothing can be planned for a while: the next step's time does not begin with the last one's commit.
    pub(in crate::scheduler) fn hold_up_drafting(&mut self) {
        if let Some(drafting) = &mut self.drafting {
            drafting.since_ns = None;
        }
    }

    /// Counts of drafts by name, and what holds now: `drafted_<source>` and `accepted_<source>`, the same with
    /// `_<position>`, tokens and bytes of the history, whether drafts pay.
    pub fn speculation_stats(&self) -> Vec<(String, u64)> {
        let Some(drafting) = &self.drafting else { return Vec::new() };
        let stats = drafting.speculator.stats();
        let mut figures = vec![
            ("speculation_active".to_owned(), u64::from(stats.active)),
            ("speculation_history_tokens".to_owned(), stats.history_tokens as u64),
            ("speculation_history_bytes".to_owned(), stats.history_bytes as u64),
        ];
        for source in Source::ALL {
            let (name, at) = (source.name(), source as usize);
            figures.push((format!("drafted_{name}"), stats.proposed[at]));
            figures.push((format!("accepted_{name}"), stats.accepted[at]));
            for position in 0..POSITIONS {
                let (drafted, accepted) = stats.by_position[at][position];
                if drafted > 0 {
                    figures.push((format!("drafted_{name}_{position}"), drafted));
                    figures.push((format!("accepted_{name}_{position}"), accepted));
                }
            }
        }
        figures
    }
}
