//! Marks: each row that samples gives back the mark of its request.

use std::ops::Range;

use super::per_request::PerRequest;
use super::row_feature::{Registration, RowFeature, Terms, Who};
use crate::outbox::Outbox;
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::rows::StepRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_messages::{Extension, ExtensionKind, Submit};
use serde::{Deserialize, Serialize};

/// Asks for marks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MarksExtension {
    /// The mark.
    pub mark: u32,
}

impl Extension for MarksExtension {
    const TAG: &'static str = "marks";
}

/// Gives a mark back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MarkExtra {
    /// The mark.
    pub mark: i32,
}

impl Extension for MarkExtra {
    const TAG: &'static str = "mark";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<MarksExtension>()],
    gives: &[ExtensionKind::of::<MarkExtra>()],
    make: |_, _| Box::new(Marks::default()),
};

/// The marks of all requests.
#[derive(Default)]
struct Marks {
    requests: PerRequest<u32>,
    rows: usize,
}

impl RowFeature for Marks {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], _terms: &mut Terms) -> Result<bool> {
        let Some(MarksExtension { mark }) = submit.extensions.get()? else { return Ok(false) };
        self.requests.insert(id, mark);
        Ok(true)
    }

    fn begin_step(&mut self) {
        self.rows = 0;
    }

    fn write(&mut self, row: &StepRow<'_>, out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let mark = *self.requests.get(row.request).filter(|_| row.sampling.is_some())?;
        out.mark[self.rows] = mark as i32;
        self.rows += 1;
        Some(self.rows - 1..self.rows)
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_marked_rows = self.rows as i64;
    }

    fn take(&mut self, who: Who, results: &StepBuffers<'_>, own: Range<usize>, outbox: &mut Outbox) {
        outbox.extra(who.key, &MarkExtra { mark: results.marked[own.start] });
    }

    fn leave(&mut self, id: RequestId) {
        self.requests.remove(id);
    }
}
