//! Requests with a grammar: their grammars are compiled, bring masks into steps, and follow the tokens. Requests that
//! allow some tokens only bring a mask that stays the same.
//!
//! ```text
//!   ask ──► compiling ──verdict──► start: the grammar stands behind what was generated before a restart
//!                                    │
//!   write: the row gets mask rows ◄──┤      fill_masks: for each of a row's logits
//!   on_token: advance, close, end ◄──┘        fill, then advance by the draft after it
//! ```
//!
//! A row's masks depend on every token before it, so they are filled after the commit of the step before, while the
//! device already runs the step itself; the sampler waits for them. Rows in the same state of their grammar have one
//! mask. Those whose mask is not known are shared out among threads.

use super::grammar_answer::{Answer, Look};
use super::masks::{self, Distinct};
use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, NewToken, RowFeature};
use super::thread_pool::ThreadPool;
use crate::queue::requests::Taken;
use crate::queue::submit::token_ids;
use crate::step::StepRecord;
use crate::step::buffers::{StepBuffers, StepLayout, header};
use crate::step::fill::SampledRow;
use crate::step::sequence_table::{RequestId, SequenceTable};
use pyengine_base::error::{Error, Result};
use pyengine_grammar::refusal;
use pyengine_grammar::{Compiled, Compiler, Verdict};
use pyengine_messages::{Extension, FinishReason, RequestKey, Submit};
use pyengine_telemetry::Histogram;
use serde::{Deserialize, Serialize};

/// Asks for an answer that follows a grammar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrammarExtension {
    /// The grammar as its compiler reads it: JSON.
    #[serde(with = "serde_bytes")]
    pub description: Vec<u8>,
    /// Bring the answer to an end of its grammar within `max_tokens`.
    pub close: bool,
}

impl Extension for GrammarExtension {
    const TAG: &'static str = "grammar";
}

/// Names the only tokens that the answer may have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllowedTokensExtension {
    /// Token ids as u32 little-endian.
    #[serde(with = "serde_bytes")]
    pub tokens: Vec<u8>,
}

impl Extension for AllowedTokensExtension {
    const TAG: &'static str = "allowed_tokens";
}

/// A row whose masks are to be filled: one for each of its logits.
#[derive(Debug, Clone, Copy)]
struct MaskRow {
    slot: u32,
    generation: u32,
    first_logit: usize,
    drafts: usize,
}

/// The grammars of all requests.
#[derive(Default)]
pub(crate) struct Grammars {
    compiler: Option<Box<dyn Compiler>>,
    threads: Option<ThreadPool>,
    /// Tokens that end an answer under a grammar.
    end_tokens: Vec<u32>,
    requests: PerRequest<Answer>,
    /// How many requests wait for their grammar.
    compiling: usize,
    /// Rows of the step that was planned last, in the order of their masks; their drafts, one row's after the other's.
    rows: Vec<MaskRow>,
    drafts: Vec<u32>,
    /// How many logits have masks.
    masked: usize,
    distinct: Distinct,
}

impl Grammars {
    /// Takes requests with grammars from now on. `end_tokens` are those that end an answer under a grammar.
    pub fn set_compiler(&mut self, compiler: Box<dyn Compiler>, end_tokens: Vec<u32>) -> Result<()> {
        self.threads = Some(masks::threads()?);
        self.compiler = Some(compiler);
        self.end_tokens = end_tokens;
        Ok(())
    }

    /// How many requests wait for their grammar.
    pub fn compiling(&self) -> usize {
        self.compiling
    }

    /// Whether this request does.
    pub fn is_compiling(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some_and(|answer| answer.compiling)
    }

    /// Whether the request's answer follows a grammar.
    pub fn constrains(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some_and(Answer::is_constrained)
    }

    /// Asks for the grammar of a request that has one; at once if it is known, else [`collect`](Self::collect) has it
    /// later.
    pub fn ask(&mut self, id: RequestId) -> Option<Verdict> {
        let Some(compiler) = &mut self.compiler else {
            return Some(Err(refusal("this engine takes no grammars")));
        };
        let answer = self.requests.get_mut(id)?;
        answer.compiling = true;
        self.compiling += 1;
        let description = answer.description.take().unwrap_or_default();
        compiler.ask(answer.key, answer.tenant, &description)
    }

    /// The verdicts that have come since the last call.
    pub fn collect(&mut self) -> Vec<(RequestKey, Verdict)> {
        let mut verdicts = Vec::new();
        if let Some(compiler) = &mut self.compiler {
            compiler.collect(&mut verdicts);
        }
        verdicts
    }

    /// A request has its grammar, with `generated` tokens from before a restart and `left` that may come. Returns how the
    /// request ends at once, if it does.
    pub fn start(
        &mut self,
        id: RequestId,
        compiled: &dyn Compiled,
        generated: &[u32],
        left: u32,
    ) -> Option<FinishReason> {
        let answer = self.requests.get_mut(id)?;
        answer.compiling = false;
        self.compiling -= 1;
        answer.start(compiled, generated, left, self.end_tokens.first().copied())
    }

    /// The only token that may come next, if that is known without work.
    pub fn certain(&mut self, id: RequestId) -> Option<u32> {
        self.requests.get_mut(id)?.certain()
    }

    /// Appends the tokens that a request's grammar forces, at most `limit`. False where the answer is being closed, so
    /// that drafts are of no use.
    pub fn forced_tokens(&mut self, id: RequestId, limit: usize, out: &mut Vec<u32>) -> bool {
        let Some(answer) = self.requests.get_mut(id) else { return true };
        if answer.only().is_some() {
            return false;
        }
        if let Some(grammar) = answer.grammar.as_mut().filter(|_| limit > 0) {
            grammar.forced_tokens(limit, out);
        }
        true
    }

    /// Fills the masks of the step that was planned last into its buffers, each once, and the index of each logit's;
    /// returns how many masks. `InvalidArgument` unless the step before is `committed`.
    pub fn fill_masks(
        &mut self,
        table: &SequenceTable,
        layout: &StepLayout,
        out: &mut StepBuffers<'_>,
        committed: bool,
    ) -> Result<usize> {
        if self.rows.is_empty() {
            return Ok(0);
        }
        if !committed {
            return Err(Error::InvalidArgument("the step before is not committed yet".into()));
        }
        let (mut jobs, mut rest) = (Vec::new(), &self.drafts[..]);
        for row in self.rows.drain(..) {
            let (drafts, others) = rest.split_at(row.drafts);
            rest = others;
            match look(table, &mut self.requests, &row, drafts) {
                Look::Known(allowed) => {
                    let mask = self.distinct.index(allowed);
                    out.mask_row[row.first_logit..=row.first_logit + row.drafts].fill(mask);
                }
                Look::Job(job) => jobs.push(job),
                // Whatever is sampled is dropped.
                Look::Dropped => out.mask_row[row.first_logit..=row.first_logit + row.drafts].fill(-1),
            }
        }
        for job in masks::find(jobs, self.threads.as_ref()) {
            for (at, allowed) in (job.first_logit..).zip(job.allowed) {
                out.mask_row[at] = self.distinct.index(allowed);
            }
            if let Some(answer) = self.requests.get_mut(job.request) {
                answer.grammar = Some(job.grammar);
                answer.spent_ns += job.spent_ns;
                answer.complaint = job.complaint;
            }
        }
        let masks = self.distinct.len();
        self.distinct.write(out.mask, layout.mask_words(), &self.end_tokens, self.threads.as_ref());
        self.distinct.clear();
        out.header[header::NUM_MASKS] = masks as i64;
        Ok(masks)
    }

    /// Why a request's grammar can be followed no further, said once.
    pub fn complaint(&mut self, id: RequestId) -> Option<String> {
        self.requests.get_mut(id)?.complaint.take()
    }

    /// Counts of the compiler by name, and how long compilations took.
    pub fn stats(&self) -> (Vec<(&'static str, u64)>, Option<Histogram>) {
        match &self.compiler {
            Some(compiler) => (compiler.metrics(), compiler.compile_times()),
            None => (Vec::new(), None),
        }
    }
}

impl RowFeature for Grammars {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32]) -> Result<()> {
        let grammar: Option<GrammarExtension> = submit.extensions.get()?;
        let allowed: Option<AllowedTokensExtension> = submit.extensions.get()?;
        if grammar.is_some() || allowed.is_some() {
            let allowed = allowed.map(|allowed| token_ids(&allowed.tokens));
            self.requests.insert(id, Answer::new(submit, grammar, allowed));
        }
        Ok(())
    }

    fn limit_drafts(&mut self, id: RequestId, drafts: &[u32], limits: &mut DraftLimits) {
        let Some(answer) = self.requests.get_mut(id) else { return };
        // The device's model knows no masks.
        limits.device = false;
        let Some(grammar) = answer.grammar.as_mut() else { return };
        // A draft that the grammar forbids is wrong for certain.
        let allowed = drafts.iter().take_while(|draft| grammar.advance(**draft)).count();
        grammar.roll_back(allowed);
        limits.host = limits.host.min(allowed);
    }

    fn begin_step(&mut self) {
        self.rows.clear();
        self.drafts.clear();
        self.masked = 0;
    }

    fn write(&mut self, row: &SampledRow, out: &mut StepBuffers<'_>) {
        if self.requests.get(row.request).is_none() {
            return;
        }
        let drafts = row.drafts as usize;
        let first_logit = row.first_logit;
        self.rows.push(MaskRow { slot: row.slot, generation: row.generation, first_logit, drafts });
        let tokens = &out.token_ids[row.first_draft..row.first_draft + drafts];
        self.drafts.extend(tokens.iter().map(|token| *token as u32));
        self.masked += drafts + 1;
    }

    fn end_step(&mut self, header: &mut [i64], _record: &mut StepRecord) {
        header[header::NUM_MASKED_LOGITS] = self.masked as i64;
        header[header::NUM_MASKS] = 0;
    }

    fn on_token(&mut self, token: &NewToken) -> Taken {
        match self.requests.get_mut(token.request) {
            Some(answer) => answer.on_token(token, &self.end_tokens),
            None => Taken::Goes,
        }
    }

    fn leave(&mut self, id: RequestId) {
        let Some(answer) = self.requests.remove(id) else { return };
        if answer.compiling {
            self.compiling -= 1;
            if let Some(compiler) = &mut self.compiler {
                compiler.cancel(answer.key);
            }
        }
    }
}

fn look<'a>(
    table: &SequenceTable,
    requests: &mut PerRequest<Answer>,
    row: &MaskRow,
    drafts: &'a [u32],
) -> Look<'a> {
    let at = row.slot as usize;
    if !table.is_current(row.slot, row.generation) || table.progress[at].settled > 0 {
        return Look::Dropped;
    }
    let request = table.request[at];
    let Some(answer) = requests.get_mut(request) else { return Look::Dropped };
    answer.look(request, table.progress[at].known, row.first_logit, drafts)
}
