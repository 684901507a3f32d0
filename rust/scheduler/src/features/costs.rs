//! What requests cost: their share of the device's time and of the threads' for all, and the cache that they held.
//!
//! ```text
//!   step        ├──── 8 ms ────┤   of 64 tokens, 4 of them a row's: the row's request is charged 0.5 ms,
//!   cache      ─── since its step before ───┤   and for the bytes of its tokens until this step was over
//! ```
//!
//! A row is charged with its tokens, drafts among them, so that the shares of a step add up to its time. A row whose
//! request has ended meanwhile is charged to no request. What the scheduler, the detokenizer and the frontends do from one
//! commit to the next is divided by the rows of the step; before the first that is charged, it is the mean of the steps so
//! far. O(1) a row that wants it.

use std::ops::Range;

use super::per_request::PerRequest;
use super::row_feature::{Registration, RowFeature, Terms, Who};
use crate::outbox::Outbox;
use crate::step::buffers::StepBuffers;
use crate::step::rows::StepRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_messages::{Extension, ExtensionKind, Submit};
use pyengine_telemetry::{Stage, Timeline};
use serde::{Deserialize, Serialize};

/// Asks what the request costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostExtension {
    /// Bytes of the cache that a token takes.
    pub token_bytes: u64,
}

impl Extension for CostExtension {
    const TAG: &'static str = "cost";
}

/// Gives back what the request has cost so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostExtra {
    /// Its share of the device's time.
    pub device_ns: u64,
    /// Bytes of the cache, by how many microseconds it held them.
    pub cache_byte_us: u64,
    /// Rows that it had.
    pub steps: u64,
    /// Its share of the threads' time, by stage.
    pub stage_ns: Vec<u64>,
}

impl Extension for CostExtra {
    const TAG: &'static str = "cost";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<CostExtension>()],
    gives: &[ExtensionKind::of::<CostExtra>()],
    make: |_, _| Box::new(Costs::default()),
};

struct Account {
    token_bytes: u64,
    /// When its last step was over; 0 before its first.
    until_ns: i64,
    /// Tokens in the cache once the rows in flight are computed, the latest step's last.
    held: u64,
    cost: CostExtra,
}

/// The requests that want to know, and the sums of all that did.
#[derive(Default)]
pub struct Costs {
    requests: PerRequest<Account>,
    device_ns: u64,
    cache_byte_us: u64,
    timeline: Option<Timeline>,
    /// The step that was charged last, what had been spent then, and the share of each of its rows.
    step: i64,
    spent: Stages,
    share: Stages,
}

type Stages = [u64; Stage::ALL.len()];

impl Costs {
    /// Charges requests with what is spent from now on, as the scheduler's timeline tells it.
    pub fn watch(&mut self, timeline: Timeline) {
        self.spent = timeline.spent();
        self.timeline = Some(timeline);
    }

    /// Finds the share of each row of a step.
    fn divide(&mut self, step: i64, rows: i64) {
        let spent = self.timeline.as_ref().map_or(self.spent, Timeline::spent);
        let parts = ((step - self.step) * rows).max(1) as u64;
        self.share = std::array::from_fn(|stage| (spent[stage] - self.spent[stage]) / parts);
        (self.step, self.spent) = (step, spent);
    }
}

impl RowFeature for Costs {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], _terms: &mut Terms) -> Result<bool> {
        let Some(CostExtension { token_bytes }) = submit.extensions.get()? else { return Ok(false) };
        let cost =
            CostExtra { device_ns: 0, cache_byte_us: 0, steps: 0, stage_ns: vec![0; Stage::ALL.len()] };
        self.requests.insert(id, Account { token_bytes, until_ns: 0, held: 0, cost });
        Ok(true)
    }

    /// The row's tokens among the step's, by which it is charged.
    fn write(&mut self, row: &StepRow<'_>, _out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        self.requests.get_mut(row.request)?.held = u64::from(row.start) + row.tokens.len() as u64;
        Some(row.tokens.clone())
    }

    fn take(&mut self, who: Who, results: &StepBuffers<'_>, own: Range<usize>, outbox: &mut Outbox) {
        if results.header.step_id != self.step {
            self.divide(results.header.step_id, results.header.num_rows);
        }
        let Some(account) = self.requests.get_mut(who.id) else { return };
        let &[begun, forwarded, sampling, ended] = &*results.device_times else { return };
        let worked = (forwarded - begun).max(0) + (ended - sampling).max(0);
        let share = own.len() as f64 / (results.header.num_tokens as f64).max(1.0);
        let device_ns = (worked as f64 * share).round() as u64;
        let since = if account.until_ns == 0 { begun } else { account.until_ns };
        account.until_ns = ended;
        let held = account.held * account.token_bytes * ((ended - since).max(0) as u64 / 1000);
        account.cost.device_ns += device_ns;
        account.cost.cache_byte_us += held;
        account.cost.steps += 1;
        account.cost.stage_ns.iter_mut().zip(self.share).for_each(|(sum, share)| *sum += share);
        self.device_ns += device_ns;
        self.cache_byte_us += held;
        outbox.extra(who.key, &account.cost);
    }

    /// What it held goes back to the queue; it is charged again from its next step on.
    fn begin_again(&mut self, id: RequestId) {
        self.requests.get_mut(id).into_iter().for_each(|account| account.until_ns = 0);
    }

    fn stats(&self, out: &mut Vec<(String, u64)>) {
        out.push(("cost_device_ns".into(), self.device_ns));
        out.push(("cost_cache_byte_us".into(), self.cache_byte_us));
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
