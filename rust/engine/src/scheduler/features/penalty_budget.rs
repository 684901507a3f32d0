//! Penalties in the steps: whose have a place, and when they are written.
//!
//! ```text
//!   plan         rows with penalties ──► seats, by the most that each may have; who finds none waits
//!   fill_penalties   the step before is committed ──► penalties of every row that was seated
//! ```
//!
//! Penalties go by all tokens before, so they are filled after the commit of the step before, like masks. A step takes as
//! many rows with penalties as have a place in its buffers; who found none has the first turn in the next.
//! Seats cost O(running) a step, filling what the rows' [penalties](super::penalties) cost; a step without any costs nothing.

use crate::error::{Error, Result};
use crate::scheduler::features::penalties::PenaltyFields;
use crate::scheduler::planner::Planner;
use crate::scheduler::step::buffers::header::NUM_EDITS;
use crate::scheduler::step::plan::Room;
use crate::scheduler::step::sequence_table::Progress;
use crate::telemetry::Stage;

impl Planner {
    /// Chooses which decodes have a place for their penalties in the step: the others wait, and have the first turn in the
    /// next. O(running), and nothing where no request has penalties.
    pub(in crate::scheduler) fn grant_penalties(&mut self, room: &mut Room) {
        if self.penalized == 0 {
            return;
        }
        let split = self.running.partition_point(|runner| runner.order < self.penalty_turn);
        let mut waits = None;
        for at in (split..self.running.len()).chain(0..split) {
            let runner = self.running[at];
            let slot = runner.slot as usize;
            let progress = self.table.progress[slot];
            let Some(penalties) = &self.requests.get(self.table.request[slot]).penalties else { continue };
            if progress.remaining() != 1 {
                continue;
            }
            let needed = penalties.bound(progress.pending as usize);
            self.table.seated[slot] = needed <= room.penalties;
            if self.table.seated[slot] {
                room.penalties -= needed;
            } else {
                waits = waits.or(Some(runner.order));
            }
        }
        self.penalty_turn = waits.unwrap_or((i32::MIN, 0));
    }

    /// Whether a sequence that decodes has penalties and no place for them in this step.
    pub(in crate::scheduler) fn lacks_penalty_budget(&self, slot: u32) -> bool {
        self.penalized > 0
            && !self.table.seated[slot as usize]
            && self.requests.get(self.table.request[slot as usize]).penalties.is_some()
    }

    /// Takes the place of the penalties of a prefill that would sample in this step; false if there is none.
    pub(in crate::scheduler) fn seat_prefill(&self, slot: u32, progress: &Progress, room: &mut Room) -> bool {
        if self.penalized == 0 {
            return true;
        }
        let Some(penalties) = &self.requests.get(self.table.request[slot as usize]).penalties else {
            return true;
        };
        let needed = penalties.bound(progress.pending as usize);
        let fits = needed <= room.penalties;
        room.penalties -= if fits { needed } else { 0 };
        fits
    }

    /// How many of `count` drafts of a decode have a place for the penalties of what is sampled behind them; takes it.
    pub(in crate::scheduler) fn seat_drafts(&self, slot: u32, count: usize, room: &mut Room) -> usize {
        if self.penalized == 0 {
            return count;
        }
        let Some(penalties) = &self.requests.get(self.table.request[slot as usize]).penalties else {
            return count;
        };
        let fitting = (1..=count).take_while(|ahead| {
            let left = room.penalties.checked_sub(penalties.bound(*ahead));
            room.penalties = left.unwrap_or(room.penalties);
            left.is_some()
        });
        fitting.count()
    }

    /// Fills the penalties of the step that was planned last into `bytes`, its buffers; returns how many.
    ///
    /// To be called when every step before it is committed, and before the device samples.
    pub fn fill_penalties(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let out = self.layout.view(bytes)?;
        let Some(record) = self.in_flight.back_mut() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        let records = std::mem::take(&mut record.penalties);
        let logits = record.num_logits;
        if records.is_empty() {
            return Ok(0);
        }
        if self.in_flight.len() > 1 {
            return Err(Error::InvalidArgument("the step before is not committed yet".into()));
        }
        let mut fields = PenaltyFields {
            token: out.penalty_token,
            factor: out.penalty_factor,
            add: out.penalty_add,
            end: 0,
        };
        let (mut drafts, mut next, mut filled) = (Vec::new(), 0, Ok(()));
        for record in &records {
            let first = record.first as usize;
            let behind = first + record.drafts as usize + 1;
            out.penalty_start[next..behind].fill(fields.end as i32);
            next = behind;
            // A sequence that has ended meanwhile has none: whatever is sampled is dropped.
            if !self.table.is_current(record.slot, record.generation) {
                continue;
            }
            let token = out.logit_token[first] as usize + 1;
            drafts.clear();
            drafts.extend(
                out.token_ids[token..token + record.drafts as usize].iter().map(|token| *token as u32),
            );
            let known = &self.table.tokens[record.slot as usize];
            let request = self.requests.get_mut(self.table.request[record.slot as usize]);
            if let Some(penalties) = &mut request.penalties {
                let starts = &mut out.penalty_start[first..behind];
                filled = filled.and(penalties.fill(known, &drafts, starts, &mut fields));
            }
        }
        out.penalty_start[next..=logits].fill(fields.end as i32);
        out.header[NUM_EDITS] = fields.end as i64;
        let end = fields.end;
        if let Some(record) = self.in_flight.back_mut() {
            record.penalties = records;
            record.penalties.clear();
        }
        self.timeline.end_span(Stage::BufferFill);
        filled.map(|()| end)
    }
}
