//! Requests with a grammar: their grammars are compiled, bring masks into steps, and follow the tokens. Requests that
//! allow some tokens only bring a mask that stays the same; those with a thinking budget have a grammar for it.
//!
//! ```text
//!   prepare ──► compiling ──verdict──► start: the grammar stands behind what was generated before a restart
//!                                        │
//!   write: the row gets mask rows ◄──────┤  fill_late: for each of a row's logits
//!   on_token: advance, close, end ◄──────┘    fill, then advance by the draft after it
//! ```
//!
//! A row's masks depend on every token before it, so they are filled after the commit of the step before, while the
//! device already runs the step itself; the sampler waits for them. Rows in the same state of their grammar have one
//! mask. Those whose mask is not known are shared out among threads.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::grammar_answer::{Answer, Look};
use super::masks::{self, Distinct};
use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, LateStep, NewToken, Registration, RowFeature, Start, Terms};
use super::thinking_budget::{Anything, ThinkingBudget, ThinkingBudgetExtension};
use super::thread_pool::ThreadPool;
use crate::queue::requests::Taken;
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::rows::{SampledRow, StepRow};
use crate::step::sequence_table::{RequestId, SequenceTable};
use pyengine_base::error::Result;
use pyengine_grammar::Compiler;
use pyengine_grammar::masks::Mask;
use pyengine_grammar::refusal;
use pyengine_messages::{Extension, ExtensionKind, FinishReason, RequestKey, Submit, token_ids};
use pyengine_telemetry::{Histogram, Stage};
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

pub(super) const FEATURE: Registration = Registration {
    takes: &[
        ExtensionKind::of::<GrammarExtension>(),
        ExtensionKind::of::<AllowedTokensExtension>(),
        ExtensionKind::of::<ThinkingBudgetExtension>(),
    ],
    gives: &[],
    make: |_, layout| Box::new(Grammars::new(Anything::mask_of(layout.vocab_size()))),
};

/// The longest notice, in bytes.
const MAX_NOTICE: usize = 4096;

/// A row whose masks are to be filled: one for each of its logits.
#[derive(Debug, Clone, Copy)]
struct MaskRow {
    slot: u32,
    generation: u32,
    first_logit: usize,
    drafts: usize,
}

/// Most tokens that a device's model drafts in a row, at least.
const MOST_DRAFTS: u32 = 64;

/// The grammars of all requests.
pub struct Grammars {
    /// Allows the whole vocabulary.
    anything: Arc<Mask>,
    compiler: Option<Box<dyn Compiler>>,
    threads: Option<ThreadPool>,
    /// Tokens that end an answer under a grammar.
    end_tokens: Vec<u32>,
    requests: PerRequest<Answer>,
    /// The requests that wait for their grammar.
    compiling: FxHashMap<RequestKey, RequestId>,
    /// Rows of the step that was planned last, in the order of their masks; their drafts, one row's after the other's.
    rows: Vec<MaskRow>,
    drafts: Vec<u32>,
    /// How many logits have masks.
    masked: usize,
    distinct: Distinct,
}

impl Grammars {
    fn new(anything: Arc<Mask>) -> Self {
        Self {
            anything,
            compiler: None,
            threads: None,
            end_tokens: Vec::new(),
            requests: PerRequest::default(),
            compiling: FxHashMap::default(),
            rows: Vec::new(),
            drafts: Vec::new(),
            masked: 0,
            distinct: Distinct::default(),
        }
    }

    /// Whether the request's answer has a grammar.
    pub fn constrains(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some_and(|answer| answer.constrained)
    }

    /// Takes requests with grammars from now on. `end_tokens` are those that end an answer under a grammar.
    pub fn set_compiler(&mut self, compiler: Box<dyn Compiler>, end_tokens: Vec<u32>) -> Result<()> {
        self.threads = Some(masks::threads()?);
        self.compiler = Some(compiler);
        self.end_tokens = end_tokens;
        Ok(())
    }
}

impl RowFeature for Grammars {
    fn begin(&mut self, id: RequestId, submit: &Submit, tokens: &[u32], terms: &mut Terms) -> Result<bool> {
        let grammar: Option<GrammarExtension> = submit.extensions.get()?;
        let allowed: Option<AllowedTokensExtension> = submit.extensions.get()?;
        let budget: Option<ThinkingBudgetExtension> = submit.extensions.get()?;
        if grammar.is_none() && allowed.is_none() && budget.is_none() {
            return Ok(false);
        }
        let budget = budget.as_ref().map(ThinkingBudget::new).transpose()?;
        let prepares = grammar.is_some();
        terms.prepares |= prepares;
        let allowed = allowed.map(|allowed| token_ids(&allowed.tokens));
        let (description, close) = grammar.map(|grammar| (grammar.description, grammar.close)).unzip();
        let mut answer = Answer::new(submit, description, close.unwrap_or(false), allowed, budget);
        if !prepares {
            answer
                .start_free(&self.anything, tokens.get(submit.prompt_length as usize..).unwrap_or_default());
        }
        self.requests.insert(id, answer);
        Ok(true)
    }

    /// Asks for the grammar; true if it is known.
    fn prepare(&mut self, id: RequestId) -> bool {
        let Some(answer) = self.requests.get_mut(id) else { return true };
        // Allowed tokens alone have nothing to compile.
        let Some(description) = answer.description.take() else { return true };
        answer.verdict = match &mut self.compiler {
            None => Some(Err(refusal("this engine takes no grammars"))),
            Some(compiler) => compiler.ask(answer.key, answer.tenant, &description),
        };
        if answer.verdict.is_none() {
            self.compiling.insert(answer.key, id);
        }
        answer.verdict.is_some()
    }

    /// The requests whose grammars were compiled meanwhile.
    fn prepared(&mut self, ids: &mut Vec<RequestId>) {
        let mut verdicts = Vec::new();
        if let Some(compiler) = self.compiler.as_mut().filter(|_| !self.compiling.is_empty()) {
            compiler.collect(&mut verdicts);
        }
        for (key, verdict) in verdicts {
            if let Some(id) = self.compiling.remove(&key)
                && let Some(answer) = self.requests.get_mut(id)
            {
                answer.verdict = Some(verdict);
                ids.push(id);
            }
        }
    }

    /// The grammar goes through what was generated before a restart.
    fn start(&mut self, id: RequestId, generated: &[u32], left: u32) -> Start {
        let Some(answer) = self.requests.get_mut(id) else { return Start::default() };
        let compiled = match answer.verdict.take() {
            None => return Start::default(),
            Some(Ok(compiled)) => compiled,
            Some(Err(refusal)) => {
                let end = if refusal.busy { FinishReason::Overloaded } else { FinishReason::Refused };
                return Start { notices: vec![shortened(refusal.message)], end: Some(end) };
            }
        };
        let warnings = compiled.warnings();
        let mut notices = Vec::new();
        if !warnings.is_empty() {
            notices.push(shortened(warnings.join("\n")));
        }
        let end = answer.start(compiled.as_ref(), generated, left, self.end_tokens.first().copied());
        let forbidden = || "the grammar forbids what was generated before a restart".to_owned();
        if end.is_some() {
            let cause = (end == Some(FinishReason::Error)).then(forbidden);
            notices.extend(answer.complaint.take().or(cause));
        }
        Start { notices, end }
    }

    /// The tokens that the grammar forces. Of no use are drafts where the answer is being closed.
    fn forced_tokens(&mut self, id: RequestId, limit: usize, out: &mut Vec<u32>) -> bool {
        let Some(answer) = self.requests.get_mut(id) else { return true };
        if answer.only().is_some() {
            return false;
        }
        if let Some(grammar) = answer.grammar.as_mut().filter(|_| limit > 0) {
            grammar.forced_tokens(limit, out);
        }
        true
    }

    fn limit_drafts(&mut self, id: RequestId, drafts: &[u32], limits: &mut DraftLimits) {
        let Some(answer) = self.requests.get_mut(id) else { return };
        if answer.is_unbound(MOST_DRAFTS.max(drafts.len() as u32)) {
            return;
        }
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

    fn write(&mut self, row: &StepRow<'_>, out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let SampledRow { first_logit, first_draft, drafts } = row.sampling?;
        let ahead = row.start as usize + row.tokens.len() - row.known.len();
        if self.requests.get(row.request).is_some_and(|answer| answer.is_unbound(ahead as u32)) {
            return None;
        }
        self.rows.push(MaskRow { slot: row.slot, generation: row.generation, first_logit, drafts });
        let tokens = &out.token_ids[first_draft..first_draft + drafts];
        self.drafts.extend(tokens.iter().map(|token| *token as u32));
        self.masked += drafts + 1;
        None
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_masked_logits = self.masked as i64;
        header.num_masks = 0;
    }

    /// Fills the masks, each once, and the index of each logit's.
    fn fill_late(&mut self, step: &LateStep<'_>, out: &mut StepBuffers<'_>) -> Result<Option<Stage>> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        step.check_committed()?;
        let (mut jobs, mut rest) = (Vec::new(), &self.drafts[..]);
        for row in self.rows.drain(..) {
            let (drafts, others) = rest.split_at(row.drafts);
            rest = others;
            match look(step.table, &mut self.requests, &row, drafts) {
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
        let words = step.layout.mask_words();
        self.distinct.write(out.mask, words, &self.end_tokens, self.threads.as_ref());
        self.distinct.clear();
        out.header.num_masks = masks as i64;
        Ok((masks > 0).then_some(Stage::Grammar))
    }

    fn on_token(&mut self, token: &NewToken) -> Taken {
        match self.requests.get_mut(token.request) {
            Some(answer) => answer.on_token(token, &self.end_tokens),
            None => Taken::Goes,
        }
    }

    fn leaves_none(&mut self, id: RequestId) -> bool {
        self.requests.get_mut(id).is_some_and(Answer::leaves_none)
    }

    /// The only token that may come, if that is known without work.
    fn certain(&mut self, id: RequestId) -> Option<u32> {
        self.requests.get_mut(id)?.certain()
    }

    fn complaint(&mut self, id: RequestId) -> Option<String> {
        self.requests.get_mut(id)?.complaint.take()
    }

    fn leave(&mut self, id: RequestId) {
        let Some(answer) = self.requests.remove(id) else { return };
        if self.compiling.remove(&answer.key).is_some()
            && let Some(compiler) = &mut self.compiler
        {
            compiler.cancel(answer.key);
        }
    }

    fn stats(&self, out: &mut Vec<(String, u64)>) {
        let metrics = self.compiler.iter().flat_map(|compiler| compiler.metrics());
        out.extend(metrics.map(|(name, count)| (name.to_owned(), count)));
    }

    fn histograms(&self, out: &mut Vec<(&'static str, Histogram)>) {
        let times = self.compiler.as_ref().and_then(|compiler| compiler.compile_times());
        out.extend(times.map(|times| ("grammar_compile_ns", times)));
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_NOTICE {
        let end = (0..=MAX_NOTICE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
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
