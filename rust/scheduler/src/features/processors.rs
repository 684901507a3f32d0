//! Requests whose logits are changed by code outside the engine before it samples.
//!
//! ```text
//!   fill      the step's rows of such requests are noted
//!   processed, once every step before is committed:
//!             for each row the tokens that came since it was asked last, and who has left
//! ```
//!
//! The code sees a request's tokens, so such rows wait for the step before, as those with penalties do. They have no
//! drafts: behind a draft the tokens are not known. O(new tokens) a row.

use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, RowFeature};
use crate::step::StepRecord;
use crate::step::buffers::{StepBuffers, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::{RequestId, SequenceTable};
use pyengine_base::error::Result;
use pyengine_messages::{Extension, RequestKey, Submit};
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
pub(crate) struct Processors {
    requests: PerRequest<Processed>,
    /// Of the step that was planned last: request, slot, its generation, logits.
    rows: Vec<(RequestId, u32, u32, usize)>,
    left: Vec<RequestKey>,
}

impl Processors {
    /// The rows of the step that was planned last whose sequences still run, and the requests that have left.
    pub fn processed(&mut self, table: &SequenceTable) -> (Vec<ProcessedRow>, Vec<RequestKey>) {
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
        (told.collect(), std::mem::take(&mut self.left))
    }
}

impl RowFeature for Processors {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32]) -> Result<()> {
        if let Some(LogitsProcessorsExtension { arguments: asked }) = submit.extensions.get()? {
            let (key, prompt_length) = (submit.key, submit.prompt_length);
            self.requests.insert(id, Processed { key, asked, prompt_length, told: 0 });
        }
        Ok(())
    }

    fn limit_drafts(&mut self, id: RequestId, _drafts: &[u32], limits: &mut DraftLimits) {
        if self.requests.get(id).is_some() {
            (limits.host, limits.device) = (0, false);
        }
    }

    fn begin_step(&mut self) {
        self.rows.clear();
    }

    fn write(&mut self, row: &SampledRow, _out: &mut StepBuffers<'_>) {
        if !self.requests.is_empty() && self.requests.get(row.request).is_some() {
            self.rows.push((row.request, row.slot, row.generation, row.first_logit));
        }
    }

    fn end_step(&mut self, header: &mut [i64], _record: &mut StepRecord) {
        header[header::NUM_PROCESSED_ROWS] = self.rows.len() as i64;
    }

    /// A processor may forbid the token, and is called for each.
    fn wants_samples(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some()
    }

    fn leave(&mut self, id: RequestId) {
        if let Some(request) = self.requests.remove(id)
            && request.told > 0
        {
            self.left.push(request.key);
        }
    }
}
