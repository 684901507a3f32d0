//! Predictions: what the answer is expected to repeat, as a source of drafts.

use std::sync::Arc;

use super::per_request::PerRequest;
use super::row_feature::{Registration, RowFeature, Terms};
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_messages::{Extension, ExtensionKind, Submit, token_ids};
use serde::{Deserialize, Serialize};

/// Predicts the answer in parts: a source of drafts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionExtension {
    /// The predicted answer, token ids as u32 little-endian.
    #[serde(with = "serde_bytes")]
    pub tokens: Vec<u8>,
}

impl Extension for PredictionExtension {
    const TAG: &'static str = "prediction";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<PredictionExtension>()],
    gives: &[],
    make: |_, _| Box::new(Predictions::default()),
};

/// The predictions of all requests.
#[derive(Default)]
struct Predictions {
    requests: PerRequest<Arc<[u32]>>,
}

impl RowFeature for Predictions {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], _terms: &mut Terms) -> Result<bool> {
        let Some(PredictionExtension { tokens }) = submit.extensions.get()? else { return Ok(false) };
        self.requests.insert(id, token_ids(&tokens));
        Ok(true)
    }

    fn prediction(&self, id: RequestId) -> Option<Arc<[u32]>> {
        self.requests.get(id).cloned()
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
