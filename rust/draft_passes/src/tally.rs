//! What is written of a pass, and its entries for samples and feeds.

use pyengine_scheduler::step::buffers::StepBuffers;

/// A row that gets drafts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The row's number in the step, its sampling row, and the index of its first token.
    pub row: usize,
    pub sampling: usize,
    pub first_token: usize,
    /// Position of that token.
    pub first: usize,
    /// The position that is computed next; none before the first pass.
    pub next: Option<usize>,
    /// Tokens of the sequence that are known now, and once all drafts are chosen.
    pub known: usize,
    pub last: usize,
    /// Only the device knows the last of the `known` tokens.
    pub fed: bool,
    /// Until it has caught up, some of its pages are spare ones.
    pub spare: bool,
}

/// How much of a pass is written, and how many tokens it has room for.
#[derive(Default)]
pub(super) struct Tally {
    pub left: usize,
    // A row has more tokens than the pass had room for.
    pub cut_short: bool,
    // A row has the spare pages.
    pub spare: bool,
    pub rows: usize,
    pub tokens: usize,
    pub sampled: usize,
    pub greedy: usize,
    pub pages: usize,
    pub feeds: usize,
    pub longest_query: usize,
    pub longest_kv: usize,
}

/// The device copies the last token of `sequence` into the pass.
pub(super) fn feed(pass: &mut StepBuffers<'_>, tally: &mut Tally, token: usize, sequence: i32) {
    pass.token_ids[token] = 0;
    pass.feed_token[tally.feeds] = token as i32;
    pass.feed_sequence[tally.feeds] = sequence;
    tally.feeds += 1;
}

/// The row's last token in the pass is followed by a draft, chosen as the model would choose there.
pub(super) fn fill_sample(step: &StepBuffers<'_>, pass: &mut StepBuffers<'_>, tally: &mut Tally, row: &Row) {
    let (at, from) = (tally.sampled, row.sampling);
    pass.sample_rows[at] = tally.rows as i32;
    pass.sample_sequence[at] = step.sample_sequence[from];
    pass.sampling[at] = step.sampling[from];
    pass.sample_position[at] = row.known as i64;
    pass.device_drafts[at] = 0;
    pass.logit_row[at] = at as i32;
    pass.logit_token[at] = tally.tokens as i32 - 1;
    pass.mask_row[at] = -1;
    tally.sampled += 1;
    tally.greedy += usize::from(step.sampling[from].temperature == 0.0);
    pass.logit_start[tally.sampled] = tally.sampled as i32;
}
