//! The passes of a draft model within one step.
//!
//! ```text
//!  step     a a a D D │ b │ c D       D: places that the draft model fills; b drafts nothing
//!  pass 1   x x a a a │ c             what its cache lacks (x), then what is known: logits at the last of each
//!  pass 2   D                         the draft that pass 1 chose ─► the next one
//! ```
//!
//! The draft model's keys and values lie in the same blocks as the model's, so that prefix hits, preemption and
//! wrong drafts need nothing of their own here. What is kept is, of each cell of the cache, its token, and of each
//! block, how many of its first cells hold the draft model's keys and values too. They are computed when a sequence
//! is drafted for: steps without such drafts cost one note of their tokens, and a sequence that was not drafted for
//! (its prompt, tokens that came meanwhile, the last draft if all were right) is caught up with in its next pass.
//!
//! Where the host sees what a pass chose ([`next`](DraftPasses::next)), the next one gets it as its token. Where it
//! does not, all passes are laid out in advance ([`next_fed`](DraftPasses::next_fed)): a pass takes what the one before
//! chose by *feed entries*, the step by places to copy it to, and what the step's tokens were is
//! [learned](DraftPasses::learn) when they come back.
//!
//! ```text
//!  pass 1 ──► last token of each sequence ──► places of the step, feed entries of pass 2 ──► last token ...
//! ```
//!
//! Whatever is wrong or missing in that cache costs only drafts that are refused. O(tokens + pages) a pass; no
//! allocation in steady state.

use super::buffers::{StepBuffers, StepLayout};
use crate::error::{Error, Result};

/// A row that is drafted for.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Its row in the step, its sampling row, and the first of its tokens.
    row: usize,
    sampling: usize,
    first_token: usize,
    /// Position of that token.
    first: usize,
    /// The position that is computed next; none before the first pass.
    next: Option<usize>,
    /// Tokens of the sequence that are there, and that are there in the end: all drafts chosen.
    known: usize,
    last: usize,
    /// Only the device knows the last of those that are there.
    fed: bool,
}

/// Lays out the passes of a draft model.
pub struct DraftPasses {
    step: StepLayout,
    pass: StepLayout,
    block_size: usize,
    vocab_size: i32,
    /// By cell of the cache; negative where only the device knows: by the step that wrote it.
    tokens: Vec<i32>,
    /// By block: so many cells from its first hold what the draft model computes.
    filled: Vec<u32>,
    rows: Vec<Row>,
    /// Which of `rows` choose a token in the pass that is under way.
    sampling: Vec<usize>,
    /// By slot: the cell whose token the host does not know yet.
    unknown: Vec<Option<(u32, i32)>>,
}

impl DraftPasses {
    /// Passes laid out by `pass` for steps of layout `step`. Tokens from `vocab_size` on are none of the draft
    /// model's or none of the model's: they are neither read nor drafted.
    pub fn new(
        step: StepLayout,
        pass: StepLayout,
        num_blocks: usize,
        block_size: usize,
        vocab_size: usize,
    ) -> Result<Self> {
        let invalid = |message: &str| Err(Error::InvalidArgument(message.into()));
        if pass.max_rows() < step.max_rows() || pass.max_pages() < step.max_pages() {
            return invalid("the passes of a step have as many rows and pages as the step");
        }
        if pass.max_tokens() < pass.max_rows() {
            return invalid("a pass has a token for every row");
        }
        if block_size == 0
            || num_blocks.checked_mul(block_size).is_none_or(|cells| cells >= i32::MAX as usize)
        {
            return invalid("the cache must have from 1 to 2**31 cells");
        }
        Ok(Self {
            step,
            pass,
            block_size,
            vocab_size: i32::try_from(vocab_size).unwrap_or(i32::MAX),
            tokens: vec![0; num_blocks * block_size],
            filled: vec![0; num_blocks],
            rows: Vec::with_capacity(step.max_rows()),
            sampling: Vec::with_capacity(step.max_rows()),
            unknown: Vec::new(),
        })
    }

    /// Begins a step: takes note of its tokens. Whether any row is to be drafted for: then [`next`](Self::next) is
    /// called until there is nothing more to compute.
    pub fn begin(&mut self, step: &mut [u8]) -> Result<bool> {
        let step = self.step.view(step)?;
        let (tokens, sampled) = (count(&step, 1)?, count(&step, 2)?);
        self.note(&step, tokens);
        self.rows.clear();
        self.sampling.clear();
        if step.header[11] == 0 {
            return Ok(false);
        }
        for sampling in 0..sampled {
            let drafts = step.device_drafts[sampling].max(0) as usize;
            if drafts == 0 {
                continue;
            }
            let row = step.sample_rows[sampling] as usize;
            let first_token = step.query_start[row] as usize;
            let known = step.sample_position[sampling] as usize;
            if known + drafts != step.kv_length[row] as usize {
                return Err(Error::InvalidArgument("a row's drafts are not its last tokens".into()));
            }
            let first = step.positions[first_token] as usize;
            let last = known + drafts;
            let places = first_token + known - first..first_token + last - first;
            for &cell in &step.slot_mapping[places] {
                self.tokens[cell as usize] = mark(&step);
            }
            self.rows.push(Row { row, sampling, first_token, first, next: None, known, last, fed: false });
        }
        Ok(!self.rows.is_empty())
    }

    /// Every cell that the step writes holds its token, and nothing of the draft model any more.
    fn note(&mut self, step: &StepBuffers<'_>, tokens: usize) {
        for (&cell, &token) in step.slot_mapping[..tokens].iter().zip(&*step.token_ids) {
            let cell = cell as usize;
            self.tokens[cell] = token;
            let filled = &mut self.filled[cell / self.block_size];
            *filled = (*filled).min((cell % self.block_size) as u32);
        }
        let feeds = step.header[4].max(0) as usize;
        for (&token, &slot) in step.feed_token[..feeds].iter().zip(&*step.feed_sequence) {
            let slot = slot as usize;
            if self.unknown.len() <= slot {
                self.unknown.resize(slot + 1, None);
            }
            let cell = step.slot_mapping[token as usize] as u32;
            self.tokens[cell as usize] = mark(step);
            self.unknown[slot] = Some((cell, mark(step)));
        }
    }

    /// What a step chose, as the planner is told it: `sampled` a token for each of its logits, `counts` for each
    /// sampling row how many of them count. To be called where the device feeds steps and passes, before the step
    /// after the next begins.
    pub fn learn(&mut self, step: &mut [u8], sampled: &[i32], counts: &[i32]) -> Result<()> {
        let step = self.step.view(step)?;
        let rows = count(&step, 2)?;
        if counts.len() < rows || sampled.len() < count(&step, 9)? {
            return Err(Error::InvalidArgument("a step chooses a token for each of its logits".into()));
        }
        for (at, &counted) in counts[..rows].iter().enumerate() {
            let drafts = step.device_drafts[at].max(0) as usize;
            let tokens = &sampled[step.logit_start[at] as usize..][..counted.max(0) as usize];
            let Some((&last, right)) = tokens.split_last() else { continue };
            let end = step.query_start[step.sample_rows[at] as usize + 1] as usize;
            for (&token, &cell) in right.iter().zip(&step.slot_mapping[end - drafts..end]) {
                self.tell(cell as usize, mark(&step), token);
            }
            let unknown = self.unknown.get_mut(step.sample_sequence[at] as usize).and_then(Option::take);
            if let Some((cell, mark)) = unknown {
                self.tell(cell as usize, mark, last);
            }
        }
        Ok(())
    }

    /// What a cell holds is told, unless others have got it meanwhile.
    fn tell(&mut self, cell: usize, mark: i32, token: i32) {
        if self.tokens[cell] == mark {
            self.tokens[cell] = token;
        }
    }

    /// Lays out the next pass of the step that was begun, in `pass`, and tells how many tokens it has and how many it
    /// samples; `None` if there is none, and all drafts are in `step`.
    ///
    /// `chosen` begins with the tokens of the pass before, one for each of its sampling rows.
    pub fn next(
        &mut self,
        step: &mut [u8],
        pass: &mut [u8],
        chosen: &[i32],
    ) -> Result<Option<(usize, usize)>> {
        let mut step = self.step.view(step)?;
        self.take(&mut step, chosen)?;
        self.lay_out_pass(&step, pass)
    }

    /// The same on a device that feeds the tokens of one pass to the next, and to the step: `places` gets, of each
    /// sampling row of the pass, the place among the step's tokens that what it chooses is to be copied to. Whose it is
    /// says the pass's `sample_sequence`.
    pub fn next_fed(
        &mut self,
        step: &mut [u8],
        pass: &mut [u8],
        places: &mut [i64],
    ) -> Result<Option<(usize, usize)>> {
        let step = self.step.view(step)?;
        for at in self.sampling.drain(..) {
            self.rows[at].known += 1;
            self.rows[at].fed = true;
        }
        self.rows.retain(|row| row.known < row.last);
        let laid_out = self.lay_out_pass(&step, pass)?;
        if places.len() < self.sampling.len() {
            return Err(Error::InvalidArgument("a pass has a place for each sampling row".into()));
        }
        for (place, &at) in places.iter_mut().zip(&self.sampling) {
            let row = &self.rows[at];
            *place = (row.first_token + row.known - row.first) as i64;
        }
        Ok(laid_out)
    }

    fn lay_out_pass(&mut self, step: &StepBuffers<'_>, pass: &mut [u8]) -> Result<Option<(usize, usize)>> {
        let mut pass = self.pass.view(pass)?;
        if self.rows.is_empty() {
            return Ok(None);
        }
        let mut tally = Tally { left: self.pass.max_tokens(), ..Tally::default() };
        (pass.query_start[0], pass.page_indptr[0], pass.logit_start[0]) = (0, 0, 0);
        for at in 0..self.rows.len() {
            self.lay_out(step, &mut pass, &mut tally, at);
        }
        let Tally { rows, tokens, sampled, pages, feeds, longest_query, longest_kv, .. } = tally;
        let step_id = step.header[7] as usize;
        pass.header.fill(0);
        let values =
            [rows, tokens, sampled, pages, feeds, longest_query, longest_kv, step_id, 0, sampled, 0, 0, rows];
        pass.header.iter_mut().zip(values).for_each(|(field, value)| *field = value as i64);
        Ok(Some((tokens, sampled)))
    }

    /// Takes the drafts that the last pass chose.
    fn take(&mut self, step: &mut StepBuffers<'_>, chosen: &[i32]) -> Result<()> {
        if chosen.len() < self.sampling.len() {
            return Err(Error::InvalidArgument("a pass chooses a token for each sampling row".into()));
        }
        for (&at, &token) in self.sampling.iter().zip(chosen) {
            let token = self.vocab_token(token);
            let row = &mut self.rows[at];
            let place = row.first_token + row.known - row.first;
            step.token_ids[place] = token;
            self.tokens[step.slot_mapping[place] as usize] = token;
            row.known += 1;
        }
        if !self.sampling.is_empty() {
            self.sampling.clear();
            self.rows.retain(|row| row.known < row.last);
        }
        Ok(())
    }

    fn vocab_token(&self, token: i32) -> i32 {
        if (0..self.vocab_size).contains(&token) { token } else { 0 }
    }

    /// Adds a row to the pass: what its sequence has and the cache lacks, as far as there is room.
    fn lay_out(&mut self, step: &StepBuffers<'_>, pass: &mut StepBuffers<'_>, tally: &mut Tally, at: usize) {
        // Every row that comes after has room for a token.
        let room = tally.left - (self.rows.len() - at - 1).min(tally.left);
        if room == 0 {
            return;
        }
        let row = self.rows[at];
        if row.next.is_none() && tally.cut_short {
            // It may share blocks with the row that goes on in the next pass.
            return;
        }
        let pages = &step.page_indices[step.page_indptr[row.row] as usize..];
        // What rows before this one compute of shared blocks in this pass is there when this one attends to it.
        let begin = row.next.unwrap_or_else(|| self.first_hole(pages, row.first));
        let end = row.known.min(begin + room);
        let tokens = tally.tokens..tally.tokens + (end - begin);
        for (token, position) in tokens.clone().zip(begin..end) {
            let block = pages[position / self.block_size] as usize;
            let offset = position % self.block_size;
            let cell = block * self.block_size + offset;
            let known = match position.checked_sub(row.first) {
                Some(after) => step.token_ids[row.first_token + after],
                None => self.tokens[cell],
            };
            pass.token_ids[token] = self.vocab_token(known);
            pass.positions[token] = position as i32;
            pass.slot_mapping[token] = cell as i32;
            self.filled[block] = offset as u32 + 1;
        }
        if row.fed && end == row.known {
            pass.token_ids[tokens.end - 1] = 0;
            pass.feed_token[tally.feeds] = (tokens.end - 1) as i32;
            pass.feed_sequence[tally.feeds] = step.sample_sequence[row.sampling];
            tally.feeds += 1;
        }
        let held = end.div_ceil(self.block_size);
        pass.page_indices[tally.pages..tally.pages + held].copy_from_slice(&pages[..held]);
        pass.kv_length[tally.rows] = end as i32;
        pass.row_sequence[tally.rows] = step.row_sequence[row.row];
        tally.pages += held;
        tally.left -= tokens.len();
        tally.longest_query = tally.longest_query.max(tokens.len());
        tally.longest_kv = tally.longest_kv.max(end);
        tally.tokens = tokens.end;
        if end == row.known {
            fill_sample(step, pass, tally, &row);
            self.sampling.push(at);
        } else {
            tally.cut_short = true;
        }
        tally.rows += 1;
        pass.query_start[tally.rows] = tally.tokens as i32;
        pass.page_indptr[tally.rows] = tally.pages as i32;
        self.rows[at].next = Some(end);
    }

    /// The first position below `first` whose keys and values the draft model lacks, or `first`.
    fn first_hole(&self, pages: &[i32], first: usize) -> usize {
        for (page, start) in (0..first).step_by(self.block_size).enumerate() {
            let filled = start + self.filled[pages[page] as usize] as usize;
            if filled < first.min(start + self.block_size) {
                return filled;
            }
        }
        first
    }
}

/// How much of a pass is written, and how many tokens it has room for.
#[derive(Default)]
struct Tally {
    left: usize,
    // A row has more tokens than the pass had room for.
    cut_short: bool,
    rows: usize,
    tokens: usize,
    sampled: usize,
    pages: usize,
    feeds: usize,
    longest_query: usize,
    longest_kv: usize,
}

/// Of cells whose tokens only the device knows.
fn mark(step: &StepBuffers<'_>) -> i32 {
    -1 - (step.header[7] & 0x3fff_ffff) as i32
}

fn count(step: &StepBuffers<'_>, field: usize) -> Result<usize> {
    usize::try_from(step.header[field]).map_err(|_| Error::InvalidArgument("a negative count".into()))
}

/// The row's last token in the pass is followed by a draft, chosen as the model would choose there.
fn fill_sample(step: &StepBuffers<'_>, pass: &mut StepBuffers<'_>, tally: &mut Tally, row: &Row) {
    let (at, from) = (tally.sampled, row.sampling);
    pass.sample_rows[at] = tally.rows as i32;
    pass.sample_sequence[at] = step.sample_sequence[from];
    pass.temperature[at] = step.temperature[from];
    pass.top_k[at] = step.top_k[from];
    pass.top_p[at] = step.top_p[from];
    pass.min_p[at] = step.min_p[from];
    pass.seed[at] = step.seed[from];
    pass.sample_position[at] = row.known as i64;
    pass.device_drafts[at] = 0;
    pass.logit_row[at] = at as i32;
    pass.logit_token[at] = tally.tokens as i32 - 1;
    pass.mask_row[at] = -1;
    tally.sampled += 1;
    pass.logit_start[tally.sampled] = tally.sampled as i32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCK: usize = 4;
    const BLOCKS: usize = 64;
    const ROWS: usize = 4;
    const VOCABULARY: u64 = 50;

    /// What a cell holds of a sequence that begins with `tokens`: depends on all of them.
    fn state(tokens: &[i32]) -> u64 {
        tokens.iter().fold(7, |state, token| {
            (state ^ *token as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) + 1
        })
    }

    /// What the draft model says after them.
    fn said(tokens: &[i32]) -> i32 {
        (state(tokens) % VOCABULARY) as i32
    }

    /// A sequence: its tokens, blocks, and how many tokens the model has computed.
    struct Sequence {
        slot: usize,
        tokens: Vec<i32>,
        blocks: Vec<usize>,
        computed: usize,
    }

    struct World {
        passes: DraftPasses,
        layouts: [StepLayout; 2],
        memory: [Vec<u64>; 2],
        cells: Vec<u64>,
        owners: BTreeMap<usize, usize>,
        sequences: Vec<Sequence>,
        passed: usize,
        computed: usize,
        /// The device feeds, by slot; and the step that has not come back yet.
        fed: bool,
        last: BTreeMap<i32, i32>,
        behind: Option<(Vec<u64>, Vec<i32>, Vec<i32>)>,
        slots: usize,
        steps: i64,
    }

    fn bytes(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: every byte of a u64 is a u8.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
    }

    impl World {
        fn new(pass_tokens: usize) -> Self {
            let layouts = [200, pass_tokens].map(|tokens| StepLayout::new(tokens, ROWS, 200, 8, 64).unwrap());
            let memory = layouts.map(|layout| vec![0; layout.nbytes() / 8]);
            let [step, pass] = layouts;
            let passes = DraftPasses::new(step, pass, BLOCKS, BLOCK, VOCABULARY as usize).unwrap();
            let (cells, owners) = (vec![0; BLOCKS * BLOCK], BTreeMap::new());
            Self {
                passes,
                layouts,
                memory,
                cells,
                owners,
                sequences: Vec::new(),
                passed: 0,
                computed: 0,
                fed: false,
                last: BTreeMap::new(),
                behind: None,
                slots: 0,
                steps: 0,
            }
        }

        fn allocate(&mut self) -> Option<usize> {
            let free = (0..BLOCKS).find(|block| !self.owners.contains_key(block))?;
            self.owners.insert(free, 1);
            Some(free)
        }

        /// A sequence of `length` tokens, the first of which it may share with the last one that began.
        fn enter(&mut self, length: usize, shares: bool, seed: u64) {
            let mut tokens: Vec<i32> =
                (0..length as u64).map(|at| (seed.wrapping_mul(31 + at) % VOCABULARY) as i32).collect();
            let mut blocks = Vec::new();
            if let Some(other) = self.sequences.last().filter(|_| shares) {
                let shared = (other.computed / BLOCK).min((length - 1) / BLOCK);
                tokens[..shared * BLOCK].copy_from_slice(&other.tokens[..shared * BLOCK]);
                blocks.extend_from_slice(&other.blocks[..shared]);
            }
            blocks.iter().for_each(|block| *self.owners.get_mut(block).unwrap() += 1);
            let computed = blocks.len() * BLOCK;
            self.slots += 1;
            self.sequences.push(Sequence { slot: self.slots, tokens, blocks, computed });
        }

        fn leave(&mut self, at: usize) {
            for block in self.sequences.remove(at).blocks {
                let owners = self.owners.get_mut(&block).unwrap();
                *owners -= 1;
                if *owners == 0 {
                    self.owners.remove(&block);
                }
            }
        }

        /// A step: of each sequence so many tokens, then drafts, of the draft model or of the host.
        fn step(&mut self, grants: &[(usize, usize, bool)], right: usize) -> Result<()> {
            let mut rows = Vec::new();
            for at in 0..self.sequences.len().min(ROWS) {
                let (count, drafts, on_device) = grants[at % grants.len()];
                let known = self.sequences[at].tokens.len();
                let computed = self.sequences[at].computed;
                let end = known.min(computed + count);
                let drafts = if end == known && known - computed <= 2 { drafts } else { 0 };
                while self.sequences[at].blocks.len() * BLOCK < end + drafts {
                    let Some(block) = self.allocate() else { return Ok(()) };
                    self.sequences[at].blocks.push(block);
                }
                rows.push((at, computed, end, drafts, on_device));
            }
            // Steps without drafts are planned before the step before them has come back.
            let ahead = self.fed && rows.iter().all(|row| row.3 == 0);
            self.fill(&rows, ahead);
            if !ahead {
                self.learn()?;
            }
            let mut chosen = Vec::new();
            let mut more = self.passes.begin(bytes(&mut self.memory[0]))?;
            if ahead {
                self.learn()?;
            }
            if self.fed {
                more.then(|| self.pass_fed()).transpose()?;
                self.commit(&rows, right);
                return Ok(());
            }
            let [step, pass] = &mut self.memory;
            let mut turns = 0;
            while more {
                more = self.passes.next(bytes(step), bytes(pass), &chosen)?.is_some();
                turns += 1;
                chosen.clear();
                if more {
                    compute(
                        &self.layouts[1].view(bytes(pass))?,
                        &mut self.cells,
                        &mut chosen,
                        &mut self.computed,
                    );
                    self.passed += 1;
                }
                assert!(turns < 500, "it ends");
            }
            self.commit(&rows, right);
            Ok(())
        }

        fn learn(&mut self) -> Result<()> {
            match self.behind.take() {
                Some((mut step, sampled, counts)) => self.passes.learn(bytes(&mut step), &sampled, &counts),
                None => Ok(()),
            }
        }

        /// The host lays out all passes, of which it sees nothing.
        fn pass_fed(&mut self) -> Result<()> {
            let [step, pass] = &mut self.memory;
            let mut places = [0; ROWS];
            while self.passes.next_fed(bytes(step), bytes(pass), &mut places)?.is_some() {
                let view = self.layouts[1].view(bytes(pass))?;
                for at in 0..view.header[4] as usize {
                    let token = &mut view.token_ids[view.feed_token[at] as usize];
                    assert_eq!(*token, 0);
                    *token = self.last[&view.feed_sequence[at]];
                }
                let mut chosen = Vec::new();
                compute(&view, &mut self.cells, &mut chosen, &mut self.computed);
                let step = self.layouts[0].view(bytes(step))?;
                for (at, &token) in chosen.iter().enumerate() {
                    step.token_ids[places[at] as usize] = token;
                    self.last.insert(view.sample_sequence[at], token);
                }
                self.passed += 1;
            }
            Ok(())
        }

        fn fill(&mut self, rows: &[(usize, usize, usize, usize, bool)], ahead: bool) {
            let step = self.layouts[0].view(bytes(&mut self.memory[0])).unwrap();
            let (mut tokens, mut pages, mut sampled, mut most) = (0, 0, 0, 0);
            let (mut feeds, mut logits) = (0, 0);
            step.page_indptr[0] = 0;
            step.query_start[0] = 0;
            for (row, &(at, computed, end, drafts, on_device)) in rows.iter().enumerate() {
                let sequence = &self.sequences[at];
                for position in computed..end + drafts {
                    let host = if on_device { 0 } else { 3 };
                    step.token_ids[tokens] = *sequence.tokens.get(position).unwrap_or(&host);
                    step.positions[tokens] = position as i32;
                    let cell = sequence.blocks[position / BLOCK] * BLOCK + position % BLOCK;
                    step.slot_mapping[tokens] = cell as i32;
                    tokens += 1;
                }
                for block in &sequence.blocks[..(end + drafts).div_ceil(BLOCK)] {
                    step.page_indices[pages] = *block as i32;
                    pages += 1;
                }
                step.query_start[row + 1] = tokens as i32;
                step.page_indptr[row + 1] = pages as i32;
                step.kv_length[row] = (end + drafts) as i32;
                let slot = sequence.slot as i32;
                step.row_sequence[row] = slot;
                // The step before has sampled the last token that there is.
                let pending = self.behind.as_mut().is_some_and(|(step, ..)| {
                    let step = self.layouts[0].view(bytes(step)).unwrap();
                    step.sample_sequence[..step.header[2] as usize].contains(&slot)
                });
                if ahead && pending && end == sequence.tokens.len() {
                    step.token_ids[tokens - 1] = 0;
                    step.feed_token[feeds] = tokens as i32 - 1;
                    step.feed_sequence[feeds] = slot;
                    feeds += 1;
                }
                if end == sequence.tokens.len() {
                    step.sample_rows[sampled] = row as i32;
                    step.sample_sequence[sampled] = slot;
                    step.sample_position[sampled] = end as i64;
                    step.seed[sampled] = 100 + slot as u64;
                    step.logit_start[sampled] = logits;
                    logits += 1 + drafts as i32;
                    step.device_drafts[sampled] = if on_device { drafts as i32 } else { 0 };
                    most = most.max(step.device_drafts[sampled]);
                    sampled += 1;
                }
            }
            step.header.fill(0);
            (step.header[0], step.header[1]) = (rows.len() as i64, tokens as i64);
            (step.header[2], step.header[11]) = (sampled as i64, i64::from(most));
            (step.header[4], step.header[9]) = (feeds as i64, i64::from(logits));
            self.steps += 1;
            step.header[7] = self.steps;
        }

        /// The drafts are what the draft model says, and some of them are right.
        fn commit(&mut self, rows: &[(usize, usize, usize, usize, bool)], right: usize) {
            let (mut sampled, mut counts) = (Vec::new(), Vec::new());
            let step = self.layouts[0].view(bytes(&mut self.memory[0])).unwrap();
            for (row, &(at, _, end, drafts, on_device)) in rows.iter().enumerate() {
                let sequence = &mut self.sequences[at];
                sequence.computed = end;
                if end < sequence.tokens.len() {
                    continue;
                }
                let last = step.query_start[row + 1] as usize;
                let drafted = &step.token_ids[last - drafts..last];
                let mut text = sequence.tokens.clone();
                for &draft in drafted.iter().filter(|_| on_device) {
                    assert_eq!(draft, said(&text), "drafts are chosen one after the other");
                    text.push(draft);
                }
                let taken = right.min(drafts);
                sequence.tokens.extend_from_slice(&drafted[..taken]);
                sequence.computed += taken;
                sequence.tokens.push((said(&sequence.tokens) + 1) % VOCABULARY as i32);
                // What is sampled behind the last that holds is nobody's.
                counts.push(taken as i32 + 1);
                sampled.extend_from_slice(&sequence.tokens[sequence.tokens.len() - taken - 1..]);
                sampled.extend(std::iter::repeat_n(-1, drafts - taken));
            }
            if self.fed {
                self.behind = Some((self.memory[0].clone(), sampled, counts));
            }
        }
    }

    /// The draft model: every cell that a token attends to must hold what belongs there.
    fn compute(pass: &StepBuffers<'_>, cells: &mut [u64], chosen: &mut Vec<i32>, computed: &mut usize) {
        let rows = pass.header[0] as usize;
        *computed += pass.header[1] as usize;
        let mut written = std::collections::BTreeSet::new();
        for row in 0..rows {
            let pages =
                &pass.page_indices[pass.page_indptr[row] as usize..pass.page_indptr[row + 1] as usize];
            let cell = |position: usize| pages[position / BLOCK] as usize * BLOCK + position % BLOCK;
            for token in pass.query_start[row] as usize..pass.query_start[row + 1] as usize {
                let position = pass.positions[token] as usize;
                let before = if position == 0 { state(&[]) } else { cells[cell(position - 1)] };
                assert_eq!(pass.slot_mapping[token] as usize, cell(position));
                assert!(written.insert(cell(position)), "no cell is written twice in a pass");
                let id = pass.token_ids[token] as u64;
                cells[cell(position)] = (before ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) + 1;
            }
        }
        for at in 0..pass.header[2] as usize {
            let row = pass.sample_rows[at] as usize;
            let last = pass.positions[pass.logit_token[at] as usize] as usize;
            assert_eq!(pass.logit_token[at] + 1, pass.query_start[row + 1]);
            assert_eq!((last + 1) as i64, pass.sample_position[at]);
            assert_eq!(last + 1, pass.kv_length[row] as usize);
            assert_eq!(pass.seed[at], 100 + pass.sample_sequence[at] as u64);
            let page = pass.page_indices[pass.page_indptr[row] as usize + last / BLOCK] as usize;
            chosen.push((cells[page * BLOCK + last % BLOCK] % VOCABULARY) as i32);
        }
    }

    #[test]
    fn a_sequence_that_goes_on_takes_a_token_a_pass() {
        let mut world = World::new(200);
        world.enter(10, false, 3);
        world.step(&[(10, 0, true)], 0).unwrap();
        assert_eq!(world.passed, 0, "who does not draft costs nothing");
        world.step(&[(1, 3, true)], 1).unwrap();
        assert_eq!(
            (world.passed, world.computed),
            (3, 11 + 2),
            "the prompt and the token after it, two drafts"
        );
        world.step(&[(1, 3, true)], 3).unwrap();
        assert_eq!((world.passed, world.computed), (6, 13 + 3));
        world.step(&[(1, 3, true)], 0).unwrap();
        assert_eq!(
            (world.passed, world.computed),
            (9, 16 + 4),
            "the last draft was right and is caught up with"
        );
        world.step(&[(1, 2, false)], 0).unwrap();
        world.step(&[(1, 0, false)], 0).unwrap();
        world.step(&[(1, 1, true)], 0).unwrap();
        assert_eq!((world.passed, world.computed), (10, 20 + 3), "and with those it was not asked for");
    }

    #[test]
    fn what_the_device_feeds_is_learned_when_it_comes_back() {
        let mut world = World::new(200);
        world.fed = true;
        world.enter(10, false, 3);
        (0..4).for_each(|_| world.step(&[(10, 0, true)], 0).unwrap());
        world.step(&[(1, 3, true)], 1).unwrap();
        assert_eq!((world.passed, world.computed), (3, 14 + 2), "three tokens were fed before");
        world.step(&[(1, 3, true)], 3).unwrap();
        world.step(&[(1, 0, true)], 0).unwrap();
        world.step(&[(1, 2, true)], 2).unwrap();
        assert_eq!((world.passed, world.computed), (8, 16 + 3 + 4), "with the last draft, and the token fed");
    }

    #[test]
    fn a_shared_prompt_is_computed_once() {
        let mut world = World::new(200);
        world.enter(17, false, 3);
        world.step(&[(17, 0, true)], 0).unwrap();
        world.enter(17, true, 3);
        world.step(&[(9, 1, true)], 0).unwrap();
        assert_eq!((world.passed, world.computed), (1, 18 + 1));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let layout = |tokens, rows| StepLayout::new(tokens, rows, 8, 0, 64).unwrap();
        let new = |pass, blocks| DraftPasses::new(layout(16, 4), pass, blocks, 4, 64);
        assert!(new(layout(16, 4), 8).is_ok());
        assert!(new(layout(16, 3), 8).is_err());
        assert!(new(layout(3, 4), 8).is_err());
        assert!(new(layout(16, 4), usize::MAX / 2).is_err());
    }

    proptest! {
        #[test]
        fn every_draft_is_what_the_model_says_after_its_sequence(
            pass_tokens in prop::sample::select(vec![ROWS, 7, 16, 200]),
            turns in prop::collection::vec(
                (0u8..10, 1usize..40, any::<bool>(), any::<u64>(),
                 prop::collection::vec((1usize..12, 0usize..5, any::<bool>()), 1..5), 0usize..5),
                1..60,
            ),
            fed in any::<bool>(),
        ) {
            let mut world = World::new(pass_tokens);
            world.fed = fed;
            for (kind, length, shares, seed, grants, right) in turns {
                if kind < 3 && world.sequences.len() < ROWS {
                    world.enter(length, shares, seed);
                } else if kind == 3 && !world.sequences.is_empty() {
                    world.leave(seed as usize % world.sequences.len());
                }
                world.step(&grants, right).unwrap();
            }
        }
    }
}
