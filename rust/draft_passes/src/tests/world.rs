//! Sequences with their blocks, steps with drafts, and the passes between them.

use std::collections::BTreeMap;

use super::device::{compute, said};
use super::{BLOCK, BLOCKS, ROWS, VOCABULARY};
use crate::*;
use pyengine_kv_allocator::Group;

/// A sequence: its tokens, blocks, and how many tokens the model has computed.
pub struct Sequence {
    slot: usize,
    tokens: Vec<i32>,
    blocks: Vec<usize>,
    computed: usize,
}

/// A sequence's row in a step: `computed..end`, then its drafts.
struct Granted {
    /// Which of the sequences.
    at: usize,
    computed: usize,
    end: usize,
    drafts: usize,
    /// The draft model fills them in.
    on_device: bool,
}

pub struct World {
    passes: DraftPasses,
    layouts: [StepLayout; 2],
    memory: [Vec<u64>; 2],
    cells: Vec<u64>,
    owners: BTreeMap<usize, usize>,
    pub sequences: Vec<Sequence>,
    pub passed: usize,
    pub computed: usize,
    /// The device feeds, by place of `last_token`; and the step that has not come back yet.
    pub fed: bool,
    last: BTreeMap<i32, i32>,
    behind: Option<(Vec<u64>, Vec<i32>, Vec<i32>)>,
    slots: usize,
    steps: i64,
}

/// Pages for a model without windows.
pub fn one_group(num_pages: usize) -> SharedPages<'static> {
    SharedPages { groups: &[Group::FULL], num_pages, block_size: BLOCK, spare_blocks: 0 }
}

pub fn bytes(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: every byte of a u64 is a u8.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

impl World {
    pub fn new(pass_tokens: usize) -> Self {
        let layouts = [200, pass_tokens].map(|tokens| StepLayout::new(tokens, ROWS, 200, 8, 64).unwrap());
        let memory = layouts.map(|layout| vec![0; layout.nbytes() / 8]);
        let [step, pass] = layouts;
        let passes = DraftPasses::new(step, pass, VOCABULARY as usize, &one_group(BLOCKS)).unwrap();
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
    pub fn enter(&mut self, length: usize, shares: bool, seed: u64) {
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

    pub fn leave(&mut self, at: usize) {
        for block in self.sequences.remove(at).blocks {
            let owners = self.owners.get_mut(&block).unwrap();
            *owners -= 1;
            if *owners == 0 {
                self.owners.remove(&block);
            }
        }
    }

    /// A step with the given number of tokens of each sequence, then drafts of the draft model or of the host.
    pub fn step(&mut self, grants: &[(usize, usize, bool)], right: usize) -> Result<()> {
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
            rows.push(Granted { at, computed, end, drafts, on_device });
        }
        // Steps without drafts are planned before the step before them has come back.
        let ahead = self.fed && rows.iter().all(|row| row.drafts == 0);
        self.fill(&rows, ahead);
        if !ahead {
            self.learn()?;
        }
        let mut chosen = Vec::new();
        let mut more = self.passes.begin(bytes(&mut self.memory[0]))?;
        if self.fed {
            more.then(|| self.pass_fed()).transpose()?;
            self.learn()?;
            self.commit(&rows, right);
            return Ok(());
        }
        let [step, pass] = &mut self.memory;
        let mut turns = 0;
        while more {
            more = self.passes.next(bytes(step), bytes(pass))?.is_some();
            turns += 1;
            chosen.clear();
            if more {
                compute(
                    &self.layouts[1].view(bytes(pass))?,
                    &mut self.cells,
                    &mut chosen,
                    &mut self.computed,
                );
                self.layouts[1].view(bytes(pass))?.sampled_tokens[..chosen.len()].copy_from_slice(&chosen);
                self.passed += 1;
            }
            assert!(turns < 500, "it ends");
        }
        self.commit(&rows, right);
        Ok(())
    }

    fn learn(&mut self) -> Result<()> {
        match self.behind.take() {
            Some((mut step, sampled, counts)) => {
                let results = self.layouts[0].view(bytes(&mut step))?;
                results.sampled_tokens[..sampled.len()].copy_from_slice(&sampled);
                results.sampled_counts[..counts.len()].copy_from_slice(&counts);
                self.passes.learn(bytes(&mut step))
            }
            None => Ok(()),
        }
    }

    /// The host lays out all passes, of which it sees nothing.
    fn pass_fed(&mut self) -> Result<()> {
        for sequence in &self.sequences {
            let slot = sequence.slot as i32;
            self.last.extend(sequence.tokens.last().map(|last| (slot, *last)));
        }
        let [step, pass] = &mut self.memory;
        let mut places = [0; ROWS];
        while self.passes.next_fed(bytes(step), bytes(pass), &mut places)?.is_some() {
            let view = self.layouts[1].view(bytes(pass))?;
            for at in 0..view.header.num_feeds as usize {
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

    fn fill(&mut self, rows: &[Granted], ahead: bool) {
        let step = self.layouts[0].view(bytes(&mut self.memory[0])).unwrap();
        let (mut tokens, mut pages, mut sampled, mut most) = (0, 0, 0, 0);
        let (mut feeds, mut logits) = (0, 0);
        step.page_indptr[0] = 0;
        step.query_start[0] = 0;
        for (row, &Granted { at, computed, end, drafts, on_device }) in rows.iter().enumerate() {
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
                step.sample_sequence[..step.header.num_sampled as usize].contains(&slot)
            });
            if ahead && pending && end == sequence.tokens.len() {
                step.token_ids[tokens - 1 - drafts] = 0;
                step.feed_token[feeds] = (tokens - 1 - drafts) as i32;
                step.feed_sequence[feeds] = slot;
                feeds += 1;
            }
            if end == sequence.tokens.len() {
                step.sample_rows[sampled] = row as i32;
                step.sample_sequence[sampled] = slot;
                step.sample_position[sampled] = end as i64;
                step.sampling[sampled].seed = 100 + slot as u64;
                step.sampling[sampled].temperature = if slot % 2 == 0 { 0.0 } else { 1.0 };
                step.logit_start[sampled] = logits;
                logits += 1 + drafts as i32;
                step.device_drafts[sampled] = if on_device { drafts as i32 } else { 0 };
                most = most.max(step.device_drafts[sampled]);
                sampled += 1;
            }
        }
        self.steps += 1;
        *step.header = StepHeader {
            num_rows: rows.len() as i64,
            num_tokens: tokens as i64,
            num_sampled: sampled as i64,
            num_feeds: feeds as i64,
            num_logits: i64::from(logits),
            max_device_drafts: i64::from(most),
            step_id: self.steps,
            ..StepHeader::ZERO
        };
    }

    /// The drafts are what the draft model says, and some of them are right.
    fn commit(&mut self, rows: &[Granted], right: usize) {
        let (mut sampled, mut counts) = (Vec::new(), Vec::new());
        let step = self.layouts[0].view(bytes(&mut self.memory[0])).unwrap();
        for (row, &Granted { at, end, drafts, on_device, .. }) in rows.iter().enumerate() {
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
            // Tokens sampled behind the last right draft are dropped.
            counts.push(taken as i32 + 1);
            sampled.extend_from_slice(&sequence.tokens[sequence.tokens.len() - taken - 1..]);
            sampled.extend(std::iter::repeat_n(-1, drafts - taken));
        }
        if self.fed {
            self.behind = Some((self.memory[0].clone(), sampled, counts));
        }
    }
}
