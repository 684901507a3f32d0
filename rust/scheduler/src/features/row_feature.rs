//! What the step asks of a feature, and what it tells it.

use crate::queue::requests::Taken;
use crate::step::StepRecord;
use crate::step::buffers::StepBuffers;
use crate::step::fill::SampledRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_messages::Submit;

/// A token that was sampled for a request.
pub(crate) struct NewToken {
    pub request: RequestId,
    pub token: u32,
    /// Tokens that the request has generated, with this one.
    pub generated: u32,
    /// Tokens that it may still generate.
    pub left: u32,
    /// Tokens that the same row brought before it.
    pub nth: usize,
}

/// How many of a row's proposed drafts may be sent, and whether the device may draft for it instead.
pub(crate) struct DraftLimits {
    pub host: usize,
    pub device: bool,
}

/// A feature of requests, called by the step at fixed points.
pub(super) trait RowFeature {
    /// Takes the feature's part of a submission. `tokens` are its prompt and what it generated before a restart.
    /// `InvalidArgument` for what no frontend would send.
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32]) -> Result<()>;

    /// Lowers the limits for a row with these drafts.
    fn limit_drafts(&mut self, _id: RequestId, _drafts: &[u32], _limits: &mut DraftLimits) {}

    /// The rows of a step are written from now on.
    fn begin_step(&mut self) {}

    /// Writes the feature's fields of a row that samples.
    fn write(&mut self, row: &SampledRow, out: &mut StepBuffers<'_>);

    /// Every row is written: the feature's numbers go into the header, and what `commit` needs of them into the record.
    fn end_step(&mut self, header: &mut [i64], record: &mut StepRecord);

    /// Takes a sampled token in.
    fn on_token(&mut self, _token: &NewToken) -> Taken {
        Taken::Goes
    }

    /// Whether the request's tokens are to be sampled even where only one may come.
    fn wants_samples(&self, _id: RequestId) -> bool {
        false
    }

    /// The request has ended, or never began.
    fn leave(&mut self, id: RequestId);
}
