//! A draft model whose layers are in the pages of random cache groups: every cell that a token attends to must hold what
//! belongs there, whichever pages were given to other blocks before it was computed.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::device::{said, state};
use super::world::bytes;
use super::{BLOCK, ROWS, VOCABULARY};
use crate::*;
use pyengine_kv_allocator::{Group, Holding, KvAllocator};

struct Sequence {
    slot: usize,
    tokens: Vec<i32>,
    holding: Holding,
    computed: usize,
}

/// A row of a step: `computed..end` of a sequence, then its drafts.
struct Granted {
    at: usize,
    end: usize,
    drafts: usize,
}

struct World {
    kv: KvAllocator,
    windows: Vec<Option<usize>>,
    passes: DraftPasses,
    layouts: [StepLayout; 2],
    memory: [Vec<u64>; 2],
    /// What the draft model has in each cell, those of spare pages behind the pool's.
    cells: Vec<u64>,
    sequences: Vec<Sequence>,
    slots: usize,
    steps: i64,
    fed: bool,
    computed: usize,
    passed: usize,
    spared: usize,
}

fn words(tokens: &[i32]) -> Vec<u32> {
    tokens.iter().map(|token| *token as u32).collect()
}

impl World {
    fn new(groups: &[Group], num_pages: usize, prefix_cache: bool, pass_tokens: usize, extra: usize) -> Self {
        let tables = groups.iter().flat_map(|group| std::iter::repeat_n(group.kind.window(), group.tables));
        let windows: Vec<_> = tables.collect();
        let layouts = [400, pass_tokens].map(|tokens| {
            StepLayout::new(tokens, ROWS, 400, 8, 64).unwrap().with_tables(windows.len()).unwrap()
        });
        let widest = groups.iter().filter_map(|group| group.kind.window()).max().unwrap_or(0);
        let spare_blocks = (widest + extra).div_ceil(BLOCK) + 1;
        let shared = SharedPages { groups, num_pages, block_size: BLOCK, spare_blocks };
        let pages = num_pages + spare_blocks * (windows.len() - 1);
        Self {
            kv: KvAllocator::with_groups(num_pages, BLOCK, prefix_cache, groups).unwrap(),
            windows,
            passes: DraftPasses::new(layouts[0], layouts[1], VOCABULARY as usize, &shared).unwrap(),
            layouts,
            memory: layouts.map(|layout| vec![0; layout.nbytes() / 8]),
            cells: vec![0; pages * BLOCK],
            sequences: Vec::new(),
            slots: 0,
            steps: 0,
            fed: false,
            computed: 0,
            passed: 0,
            spared: 0,
        }
    }

    /// A sequence of `length` tokens, all of which it may have in common with the last one that began.
    fn enter(&mut self, length: usize, shared: usize, seed: u64) {
        let own = |at: usize| (seed.wrapping_mul(31 + at as u64) % VOCABULARY) as i32;
        let other = self.sequences.last().map_or(&[][..], |last| &last.tokens);
        let tokens: Vec<_> = (0..length)
            .map(|at| other.get(at).copied().filter(|_| at < shared).unwrap_or_else(|| own(at)))
            .collect();
        let mut holding = Holding::default();
        let found = self.kv.begin(&mut holding, 0, &words(&tokens), (length - 1) / BLOCK);
        self.slots += 1;
        self.sequences.push(Sequence { slot: self.slots, tokens, holding, computed: found * BLOCK });
    }

    fn leave(&mut self, at: usize) {
        let mut sequence = self.sequences.remove(at);
        self.kv.let_go(&mut sequence.holding);
    }

    /// A step with the given number of tokens and drafts of each sequence. A sequence without pages leaves.
    fn step(&mut self, grants: &[(usize, usize)], right: usize) {
        let mut rows: Vec<Granted> = Vec::new();
        let mut at = 0;
        while at < self.sequences.len().min(ROWS) {
            let (count, drafts) = grants[at % grants.len()];
            let Sequence { tokens, holding, computed, .. } = &mut self.sequences[at];
            let end = tokens.len().min(*computed + count);
            let drafts = if end == tokens.len() { drafts } else { 0 };
            self.kv.slide(holding, *computed);
            let blocks = (end + drafts).div_ceil(BLOCK);
            if self.kv.extend(holding, blocks.max(holding.blocks().len()), blocks).is_err() {
                self.leave(at);
                continue;
            }
            rows.push(Granted { at, end, drafts });
            at += 1;
        }
        if !rows.is_empty() {
            self.fill(&rows);
            self.draft(&rows);
            self.commit(&rows, right);
        }
        self.kv.check().unwrap();
    }

    fn fill(&mut self, rows: &[Granted]) {
        let layout = self.layouts[0];
        let step = layout.view(bytes(&mut self.memory[0])).unwrap();
        let (mut tokens, mut sampled, mut pages, mut logits) = (0, 0, 0, 0);
        step.query_start[0] = 0;
        for (row, &Granted { at, end, drafts }) in rows.iter().enumerate() {
            let sequence = &self.sequences[at];
            for position in sequence.computed..end + drafts {
                step.token_ids[tokens] = *sequence.tokens.get(position).unwrap_or(&0);
                step.positions[tokens] = position as i32;
                tokens += 1;
            }
            step.query_start[row + 1] = tokens as i32;
            step.row_sequence[row] = sequence.slot as i32;
            if end == sequence.tokens.len() {
                step.sample_rows[sampled] = row as i32;
                step.sample_sequence[sampled] = sequence.slot as i32;
                step.sample_position[sampled] = end as i64;
                step.device_drafts[sampled] = drafts as i32;
                step.logit_start[sampled] = logits;
                logits += 1 + drafts as i32;
                sampled += 1;
            }
        }
        for (table, &window) in self.windows.iter().enumerate() {
            let group = self.kv.groups().iter().position(|group| group.kind.window() == window).unwrap();
            step.page_indptr[table * (layout.max_rows() + 1)] = pages;
            for (row, &Granted { at, end, drafts }) in rows.iter().enumerate() {
                let holding = &self.sequences[at].holding;
                let (first, end) = (holding.first(group), end + drafts);
                for block in &holding.blocks()[first..end.div_ceil(BLOCK)] {
                    step.page_indices[pages as usize] = self.kv.page(*block, table) as i32;
                    pages += 1;
                }
                step.page_indptr[table * (layout.max_rows() + 1) + row + 1] = pages;
                step.kv_length[table * layout.max_rows() + row] = (end - first * BLOCK) as i32;
                for token in step.query_start[row] as usize..step.query_start[row + 1] as usize {
                    let position = step.positions[token] as usize;
                    let page = self.kv.page(holding.blocks()[position / BLOCK], table) as usize;
                    step.slot_mapping[table * layout.max_tokens() + token] =
                        (page * BLOCK + position % BLOCK) as i32;
                }
            }
        }
        self.steps += 1;
        let most = step.device_drafts[..sampled].iter().max().copied().unwrap_or(0);
        *step.header = StepHeader {
            num_rows: rows.len() as i64,
            num_tokens: tokens as i64,
            num_sampled: sampled as i64,
            num_logits: i64::from(logits),
            num_pages: i64::from(pages),
            max_device_drafts: i64::from(most),
            step_id: self.steps,
            ..StepHeader::ZERO
        };
    }

    /// Runs the passes of the step, on a device that shows their tokens or feeds them.
    fn draft(&mut self, rows: &[Granted]) {
        let mut texts: BTreeMap<i32, Vec<i32>> = rows
            .iter()
            .map(|row| (self.sequences[row.at].slot as i32, self.sequences[row.at].tokens.clone()))
            .collect();
        if !self.passes.begin(bytes(&mut self.memory[0])).unwrap() {
            return;
        }
        let mut places = [0; ROWS];
        for turns in 0.. {
            assert!(turns < 1000, "it ends");
            let [step, pass] = &mut self.memory;
            let (step, pass) = (bytes(step), bytes(pass));
            let laid_out = match self.fed {
                true => self.passes.next_fed(step, pass, &mut places),
                false => self.passes.next(step, pass),
            };
            if laid_out.unwrap().is_none() {
                return;
            }
            self.passed += 1;
            let chosen = self.compute(&mut texts);
            let pass = self.layouts[1].view(bytes(&mut self.memory[1])).unwrap();
            pass.sampled_tokens[..chosen.len()].copy_from_slice(&chosen);
            if self.fed {
                let step = self.layouts[0].view(bytes(&mut self.memory[0])).unwrap();
                for (place, token) in places.iter().zip(&chosen) {
                    step.token_ids[*place as usize] = *token;
                }
            }
        }
    }

    /// One pass: all its tokens are written, and then attended to. Returns what it chooses.
    fn compute(&mut self, texts: &mut BTreeMap<i32, Vec<i32>>) -> Vec<i32> {
        let layout = self.layouts[1];
        let pass = layout.view(bytes(&mut self.memory[1])).unwrap();
        let rows = pass.header.num_rows as usize;
        let pool = self.kv.num_pages() * BLOCK;
        for at in 0..pass.header.num_feeds as usize {
            let newest = texts[&pass.feed_sequence[at]].last().copied().unwrap();
            pass.token_ids[pass.feed_token[at] as usize] = newest;
        }
        let (mut read, mut pages) = (Vec::new(), 0);
        for (table, window) in self.windows.iter().enumerate() {
            let indptr = &pass.page_indptr[table * (layout.max_rows() + 1)..];
            assert_eq!(indptr[0], pages, "tables lie one behind the other");
            for row in 0..rows {
                let text = &texts[&pass.row_sequence[row]];
                let tokens = pass.query_start[row] as usize..pass.query_start[row + 1] as usize;
                let end = pass.positions[tokens.end - 1] as usize + 1;
                let before = end - pass.kv_length[table * layout.max_rows() + row] as usize;
                assert!(before.is_multiple_of(BLOCK));
                let own = &pass.page_indices[indptr[row] as usize..indptr[row + 1] as usize];
                assert_eq!(own.len(), (end - before).div_ceil(BLOCK));
                let cell =
                    |position: usize| own[(position - before) / BLOCK] as usize * BLOCK + position % BLOCK;
                for token in tokens {
                    let position = pass.positions[token] as usize;
                    assert_eq!(pass.token_ids[token], text[position], "the token at {position}");
                    let slot = pass.slot_mapping[table * layout.max_tokens() + token] as usize;
                    assert_eq!(slot, cell(position));
                    self.cells[slot] = state(&text[..=position]);
                    self.spared += usize::from(slot >= pool);
                    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                    read.extend((first..position).map(|at| (cell(at), state(&text[..=at]), table, at)));
                }
                pages = indptr[row + 1];
            }
        }
        assert_eq!(pass.header.num_pages, i64::from(pages));
        for (cell, expected, table, position) in read {
            assert_eq!(self.cells[cell], expected, "table {table} at position {position}");
        }
        self.computed += pass.header.num_tokens as usize;
        let mut chosen = Vec::new();
        for at in 0..pass.header.num_sampled as usize {
            let text = texts.get_mut(&pass.sample_sequence[at]).unwrap();
            assert_eq!(pass.sample_position[at] as usize, text.len());
            text.push(said(text));
            chosen.extend(text.last());
        }
        chosen
    }

    fn commit(&mut self, rows: &[Granted], right: usize) {
        let step = self.layouts[0].view(bytes(&mut self.memory[0])).unwrap();
        let (mut sampled, mut counts) = (Vec::new(), Vec::new());
        for (row, &Granted { at, end, drafts }) in rows.iter().enumerate() {
            let sequence = &mut self.sequences[at];
            sequence.computed = end;
            if end == sequence.tokens.len() {
                let last = step.query_start[row + 1] as usize;
                let taken = right.min(drafts);
                let mut text = sequence.tokens.clone();
                for draft in &step.token_ids[last - drafts..last] {
                    assert_eq!(*draft, said(&text), "drafts are chosen one after the other");
                    text.push(*draft);
                }
                sequence.tokens.extend_from_slice(&step.token_ids[last - drafts..last - drafts + taken]);
                sequence.computed += taken;
                sequence.tokens.push((said(&sequence.tokens) + 1) % VOCABULARY as i32);
                counts.push(taken as i32 + 1);
                sampled.extend_from_slice(&sequence.tokens[sequence.tokens.len() - taken - 1..]);
                sampled.extend(std::iter::repeat_n(-1, drafts - taken));
            }
            let computed = words(&sequence.tokens[..sequence.computed]);
            self.kv.insert(0, &computed, &sequence.holding.blocks()[..computed.len() / BLOCK]);
        }
        if self.fed {
            step.sampled_tokens[..sampled.len()].copy_from_slice(&sampled);
            step.sampled_counts[..counts.len()].copy_from_slice(&counts);
            self.passes.learn(bytes(&mut self.memory[0])).unwrap();
        }
    }
}

fn window(window: usize, tables: usize) -> Group {
    Group::window(window, tables)
}

#[test]
fn a_shared_prompt_is_computed_once_in_windows_too() {
    let mut world = World::new(&[Group::FULL, window(6, 2)], 300, true, 200, 20);
    world.enter(41, 0, 3);
    (0..5).for_each(|_| world.step(&[(9, 0)], 0));
    assert!(world.sequences[0].holding.first(1) > 5, "the window has left the prompt's blocks");
    world.step(&[(1, 1)], 0);
    assert_eq!((world.computed, world.spared), (42, 0), "the pages behind it are cached, and filled");
    world.enter(41, 40, 3);
    world.step(&[(1, 1)], 0);
    assert_eq!(world.sequences[1].computed, 41);
    assert_eq!((world.computed, world.spared), (42 + 1 + 1, 0));
}

#[test]
fn pages_that_are_gone_are_made_up_for_by_spare_ones() {
    // Nothing is cached, so what a window has left is free at once.
    let mut world = World::new(&[Group::FULL, window(6, 2)], 300, false, 200, 20);
    world.enter(41, 0, 3);
    world.enter(41, 0, 5);
    (0..5).for_each(|_| world.step(&[(9, 0)], 0));
    assert_eq!(world.passed, 0);
    world.step(&[(1, 1)], 0);
    assert_eq!(world.computed, 2 * 42);
    assert!(world.spared > 2 * 20, "of two tables");
    assert_eq!(world.passed, 4, "one row at a time, a window and twenty tokens of it in a pass");
    let spared = world.spared;
    world.step(&[(1, 3)], 3);
    assert_eq!((world.computed, world.spared), (2 * (42 + 3), spared), "then its pages are its own");
}

#[test]
fn a_row_goes_back_to_where_its_windows_are_whole() {
    let mut world = World::new(&[Group::FULL, window(6, 1)], 300, false, 200, 20);
    world.enter(11, 0, 3);
    world.step(&[(11, 0)], 0);
    world.step(&[(1, 1)], 0);
    assert_eq!(world.computed, 12);
    (0..20).for_each(|_| world.step(&[(1, 0)], 0));
    world.step(&[(1, 1)], 0);
    assert_eq!(world.computed, 12 + 33, "its first tokens too, as their pages are gone");
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let layout = |tables| StepLayout::new(16, 4, 8, 0, 64).unwrap().with_tables(tables).unwrap();
    let new = |groups: &[Group], tables, spare_blocks| {
        let shared = SharedPages { groups, num_pages: 40, block_size: BLOCK, spare_blocks };
        DraftPasses::new(layout(tables), layout(tables), 64, &shared).is_ok()
    };
    assert!(new(&[Group::FULL, window(6, 2)], 3, 4));
    assert!(!new(&[Group::FULL, window(6, 2)], 2, 4));
    assert!(!new(&[Group::FULL, window(6, 2)], 3, 2), "no room for a token beside the window");
    assert!(!new(&[Group::full(0), window(6, 2)], 2, 4));
}

proptest! {
    #[test]
    fn every_token_attends_to_what_belongs_there(
        tables in 1usize..3,
        windows in prop::collection::btree_map(1usize..30, 1usize..3, 0..3),
        blocks in 8usize..40,
        (prefix_cache, fed) in any::<(bool, bool)>(),
        pass_tokens in prop::sample::select(vec![ROWS, 7, 16, 200]),
        extra in 1usize..20,
        turns in prop::collection::vec(
            (0u8..10, 1usize..60, 0usize..60, any::<u64>(),
             prop::collection::vec((1usize..20, prop::sample::select(vec![0usize, 0, 1, 3])), 1..5), 0usize..4),
            1..60,
        ),
    ) {
        let full = Group::full(tables);
        let groups: Vec<_> =
            std::iter::once(full).chain(windows.into_iter().map(|(wide, tables)| window(wide, tables))).collect();
        let pages = blocks * groups.iter().map(|group| group.tables).sum::<usize>();
        let mut world = World::new(&groups, pages, prefix_cache, pass_tokens, extra);
        world.fed = fed;
        for (kind, length, shared, seed, grants, right) in turns {
            if kind < 3 && world.sequences.len() < ROWS {
                world.enter(length, shared, seed);
            } else if kind == 3 && !world.sequences.is_empty() {
                world.leave(seed as usize % world.sequences.len());
            }
            world.step(&grants, right);
        }
    }
}
