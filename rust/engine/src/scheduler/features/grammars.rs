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

use std::sync::Arc;
use std::time::Instant;

use super::closing::Closing;
use super::masks::{self, Allowed, Distinct, Job, elapsed_ns};
use super::per_request::PerRequest;
use super::row_feature::{DraftLimits, NewToken, RowFeature};
use super::thread_pool::ThreadPool;
use crate::error::{Error, Result};
use crate::grammar::lowering::description::refusal;
use crate::grammar::masks::Mask;
use crate::grammar::{Compiled, Compiler, Grammar, Verdict};
use crate::messages::{FinishReason, RequestKey, Submit};
use crate::scheduler::queue::requests::Taken;
use crate::scheduler::queue::submit::token_ids;
use crate::scheduler::step::StepRecord;
use crate::scheduler::step::buffers::{StepBuffers, StepLayout, header};
use crate::scheduler::step::fill::SampledRow;
use crate::scheduler::step::sequence_table::{RequestId, SequenceTable};
use crate::telemetry::Histogram;

/// Time that a grammar may take at its beginning, when its automata are built, ...
const GRAMMAR_NS: u64 = 2_000_000_000;
/// ... and for each token besides: more, and every stream would be held up for one.
const GRAMMAR_NS_PER_TOKEN: u64 = 5_000_000;

/// The state of a request with masks.
struct Answer {
    key: RequestKey,
    tenant: u64,
    prompt_length: u32,
    min_tokens: u32,
    /// The tokens that it allows at all; none where those are all.
    allowed: Option<Arc<Mask>>,
    /// It has a grammar.
    constrained: bool,
    compiling: bool,
    /// How far the answer has come in it, at the last known token. None while it compiles or its masks are filled.
    grammar: Option<Box<dyn Grammar>>,
    /// Time that its masks and tokens have taken.
    spent_ns: u64,
    /// Why its grammar can be followed no further.
    complaint: Option<String>,
    /// Ends what the grammar has begun before the request's limit.
    closing: Option<Closing>,
    /// What may come next, where it was looked up after the last token.
    next: Option<Arc<Mask>>,
}

impl Answer {
    /// The mask of what comes next, if it takes no longer than a look-up.
    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        self.next.take().or_else(|| self.grammar.as_mut()?.known_mask())
    }

    /// The only token that may come next, where the answer is being closed.
    fn only(&self) -> Option<u32> {
        self.closing.as_ref().and_then(Closing::next)
    }

    fn is_over_time(&self, generated: u32) -> bool {
        self.spent_ns > GRAMMAR_NS + u64::from(generated) * GRAMMAR_NS_PER_TOKEN
    }

    /// Takes a sampled token in. A grammar that allows nothing else ends the request whatever `min_tokens` says.
    fn on_token(&mut self, new: &NewToken, end_tokens: &[u32]) -> Taken {
        // Tokens behind a draft were sampled without the mask that closes the answer.
        if new.nth > 0 && self.only().is_some_and(|only| only != new.token) {
            return Taken::GivenBack;
        }
        let Some(grammar) = &mut self.grammar else { return Taken::Goes };
        let begun = Instant::now();
        self.next = None;
        if self.complaint.is_none() && !grammar.advance(new.token) {
            // The sampler saw a mask that forbids it.
            self.complaint = Some("a token was chosen that the grammar forbids".into());
            return Taken::Ends(FinishReason::Error, None);
        }
        self.spent_ns += elapsed_ns(begun);
        if let Some(failure) = grammar.failure() {
            // Its masks allowed only the end, wherever that was: the answer may be cut off.
            self.complaint = Some(format!("the grammar cannot be followed: {failure}"));
        }
        let ended = grammar.is_terminated();
        if self.complaint.is_none() && self.is_over_time(new.generated) {
            self.complaint = Some("the grammar cannot be followed: it takes too much time".into());
        }
        if self.complaint.is_some() {
            return Taken::Ends(FinishReason::Refused, None);
        }
        if ended {
            let stop_token = end_tokens.contains(&new.token).then_some(new.token);
            return Taken::Ends(FinishReason::Stop, stop_token);
        }
        let end = end_tokens.first().copied();
        let fits = match (&mut self.closing, &mut self.grammar) {
            (Some(closing), Some(grammar)) => closing.advance(grammar.as_mut(), new.token, new.left, end),
            _ => true,
        };
        if fits { Taken::Goes } else { Taken::GivenBack }
    }
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
pub(in crate::scheduler) struct Grammars {
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

    /// Asks for the grammar of a request that has one; at once if it is known, else [`collect`](Self::collect) has it
    /// later.
    pub fn ask(&mut self, id: RequestId, description: &[u8]) -> Option<Verdict> {
        let Some(compiler) = &mut self.compiler else {
            return Some(Err(refusal("this engine takes no grammars")));
        };
        let answer = self.requests.get_mut(id)?;
        answer.compiling = true;
        self.compiling += 1;
        compiler.ask(answer.key, answer.tenant, description)
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
        let mut grammar = compiled.start();
        let sound = generated.iter().all(|token| grammar.advance(*token));
        let ended = grammar.is_terminated();
        if let Some(closing) = answer.closing.as_mut().filter(|_| sound && !ended && left > 0) {
            let end = self.end_tokens.first().copied();
            closing.look(grammar.as_mut(), left, end);
            if generated.is_empty() {
                answer.complaint = closing.complaint(grammar.as_mut(), left, end);
            }
            if answer.complaint.is_some() {
                return Some(FinishReason::Refused);
            }
        }
        answer.grammar = Some(grammar);
        match (sound, ended, left) {
            (false, ..) => Some(FinishReason::Error),
            (_, true, _) => Some(FinishReason::Stop),
            (.., 0) => Some(FinishReason::Length),
            _ => None,
        }
    }

    /// The only token that may come next, if that is known without work.
    pub fn certain(&mut self, id: RequestId) -> Option<u32> {
        // Of the tokens that a request allows it may be none.
        let answer = self.requests.get_mut(id).filter(|answer| answer.allowed.is_none())?;
        if answer.only().is_some() {
            return answer.only();
        }
        answer.next = answer.known_mask();
        answer.next.as_ref()?.single()
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
        let allowed: Vec<u32> = token_ids(&submit.allowed_tokens);
        if submit.grammar.is_some() || !allowed.is_empty() {
            self.requests.insert(
                id,
                Answer {
                    key: submit.key,
                    tenant: submit.tenant,
                    prompt_length: submit.prompt_length,
                    min_tokens: submit.min_tokens,
                    allowed: (!allowed.is_empty()).then(|| Arc::new(Mask::of(allowed))),
                    constrained: submit.grammar.is_some(),
                    compiling: false,
                    grammar: None,
                    spent_ns: 0,
                    complaint: None,
                    closing: submit.close_grammar.then(Closing::default),
                    next: None,
                },
            );
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
        // At most; how many there are is known when they are filled.
        header[header::NUM_MASKS] = self.masked as i64;
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

/// How the masks of a row are found.
enum Look<'a> {
    Known(Allowed),
    Job(Job<'a>),
    /// Its sequence has ended meanwhile, or its token is known.
    Dropped,
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
    if let Some(only) = answer.only() {
        // An answer that is being closed has no drafts.
        let mask = Arc::new(Mask::of(vec![only]));
        return Look::Known(Allowed::Tokens { mask, only: answer.allowed.clone(), held: false });
    }
    if !answer.constrained {
        let Some(mask) = answer.allowed.clone() else { return Look::Dropped };
        return Look::Known(Allowed::Tokens { mask, only: None, held: false });
    }
    let next = table.progress[at].known + 1 - answer.prompt_length;
    let held = answer.min_tokens.saturating_sub(next) as usize;
    if drafts.is_empty()
        && let Some(mask) = answer.known_mask()
    {
        return Look::Known(Allowed::Tokens { mask, only: answer.allowed.clone(), held: held > 0 });
    }
    let Some(grammar) = answer.grammar.take() else { return Look::Dropped };
    let (first_logit, allowed) = (row.first_logit, Vec::with_capacity(drafts.len() + 1));
    let only = answer.allowed.clone();
    Look::Job(Job {
        request,
        grammar,
        only,
        held,
        drafts,
        first_logit,
        allowed,
        spent_ns: 0,
        complaint: None,
    })
}
