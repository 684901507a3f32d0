//! Requests whose logits are changed by code outside the engine before it samples.
//!
//! ```text
//!   fill      the step's rows of such requests are noted
//!   fill_late for each row the tokens that came since it was asked last
//!   take      these, and who has left
//! ```
//!
//! The code sees a request's tokens, so such rows wait for the step before, as those with penalties do. They have no
//! drafts: behind a draft the tokens are not known. O(new tokens) a row.

use std::ops::Range;

use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, LateStep, Registration, RowFeature, Terms};
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::rows::{SampledRow, StepRow};
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_messages::{Extension, ExtensionKind, RequestKey, Submit};
use pyengine_telemetry::Stage;
use serde::{Deserialize, Serialize};

/// Asks for logits processors of the operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogitsProcessorsExtension {
    /// The arguments of each, by its name: JSON.
    #[serde(with = "serde_bytes")]
    pub arguments: Vec<u8>,
}

impl Extension for LogitsProcessorsExtension {
    const TAG: &'static str = "logits_processors";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<LogitsProcessorsExtension>()],
    gives: &[],
    make: |_, _| Box::new(Processors::default()),
};

/// A request with logits processors of the operator.
struct Processed {
    key: RequestKey,
    /// What it asks of that code, JSON; empty once it was told.
    asked: Vec<u8>,
    prompt_length: u32,
    /// How many of its tokens were told.
    told: usize,
}

/// A row whose logits are to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessedRow {
    /// Its request.
    pub key: RequestKey,
    /// Its logits.
    pub logit: usize,
    /// Length of the request's prompt.
    pub prompt_length: u32,
    /// What the request asks for, JSON: the first time.
    pub asked: Option<Vec<u8>>,
    /// Its tokens since the last time, from the prompt on.
    pub tokens: Vec<u32>,
}

/// The requests whose logits are changed outside.
#[derive(Default)]
pub struct Processors {
    requests: PerRequest<Processed>,
    /// Of the step that was planned last: request, slot, its generation, logits.
    rows: Vec<(RequestId, u32, u32, usize)>,
    told: Vec<ProcessedRow>,
    left: Vec<RequestKey>,
}

impl Processors {
    /// The rows of the step that was planned last whose sequences still run, and the requests with such rows that have
    /// left since the last call. To be called once the planner has filled what comes late.
    pub fn take(&mut self) -> (Vec<ProcessedRow>, Vec<RequestKey>) {
        (std::mem::take(&mut self.told), std::mem::take(&mut self.left))
    }
}

impl RowFeature for Processors {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], _terms: &mut Terms) -> Result<bool> {
        let Some(LogitsProcessorsExtension { arguments }) = submit.extensions.get()? else {
            return Ok(false);
        };
        let (key, prompt_length) = (submit.key, submit.prompt_length);
        self.requests.insert(id, Processed { key, asked: arguments, prompt_length, told: 0 });
        Ok(true)
    }

    fn limit_drafts(&mut self, _id: RequestId, _drafts: &[u32], limits: &mut DraftLimits) {
        (limits.host, limits.device) = (0, false);
    }

    fn begin_step(&mut self) {
        self.rows.clear();
        self.told.clear();
    }

    fn write(&mut self, row: &StepRow<'_>, _out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let SampledRow { first_logit, .. } = row.sampling?;
        self.rows.push((row.request, row.slot, row.generation, first_logit));
        None
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_processed_rows = self.rows.len() as i64;
    }

    fn fill_late(&mut self, step: &LateStep<'_>, _out: &mut StepBuffers<'_>) -> Result<Option<Stage>> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        step.check_committed()?;
        let table = step.table;
        let rows = self.rows.drain(..).filter(|row| table.is_current(row.1, row.2));
        let told = rows.filter_map(|(id, slot, _, logit)| {
            let request = self.requests.get_mut(id)?;
            let known = &table.tokens[slot as usize];
            let tokens = known[request.told.min(known.len())..].to_vec();
            let first = std::mem::replace(&mut request.told, known.len()) == 0;
            let asked = first.then(|| std::mem::take(&mut request.asked));
            Some(ProcessedRow {
                key: request.key,
                logit,
                prompt_length: request.prompt_length,
                asked,
                tokens,
            })
        });
        self.told.extend(told);
        Ok(None)
    }

    /// A processor may forbid the token, and is called for each.
    fn wants_samples(&self, _id: RequestId) -> bool {
        true
    }

    fn leave(&mut self, id: RequestId) {
        if let Some(request) = self.requests.remove(id)
            && request.told > 0
        {
            self.left.push(request.key);
        }
    }
}
