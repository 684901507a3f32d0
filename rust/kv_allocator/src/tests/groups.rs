//! Holdings in random groups of layers of every kind: what a sequence sees is what was computed for its tokens, in every
//! page table and in its state, and everything that no sequence holds can be had.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use crate::{Counts, Group, Holding, Kind, KvAllocator, PageId, SlotId};

const BLOCK: usize = 2;

/// A sequence that computes its tokens in chunks, as the planner has it do.
struct Sequence {
    tokens: Vec<u32>,
    computed: usize,
    held: Holding,
}

#[derive(Debug, Clone)]
enum Step {
    Admit(Vec<u32>),
    /// Computes a chunk, and the tree learns of it. A snapshot is taken, with this chance, if the chunk ends a block.
    Compute(usize, usize, Option<u8>),
    /// More tokens.
    Extend(usize, Vec<u32>),
    /// Takes what others have computed meanwhile.
    GoOn(usize),
    /// The last block was of wrong drafts.
    Cut(usize),
    Release(usize),
    /// The snapshots that steps copy are let go of.
    Settle,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tokens = |most| prop::collection::vec(0..2u32, 1..=most);
    let step = prop_oneof![
        4 => tokens(24).prop_map(Step::Admit),
        8 => (any::<usize>(), 1..8usize, prop_oneof![Just(None), (0..3u8).prop_map(Some)])
            .prop_map(|(which, count, chances)| Step::Compute(which, count, chances)),
        2 => (any::<usize>(), tokens(6)).prop_map(|(which, tokens)| Step::Extend(which, tokens)),
        2 => any::<usize>().prop_map(Step::GoOn),
        1 => any::<usize>().prop_map(Step::Cut),
        2 => any::<usize>().prop_map(Step::Release),
        2 => Just(Step::Settle),
    ];
    prop::collection::vec(prop_oneof![60 => step, 1 => Just(Step::Reset)], 1..80)
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let window = (1..16usize, 1..4usize).prop_map(|(tokens, tables)| Group::window(tokens, tables));
    let other = prop_oneof![
        4 => window,
        1 => (1..4usize).prop_map(Group::latent),
        1 => (1..4usize).prop_map(Group::full),
    ];
    let first = (0..3usize, any::<bool>())
        .prop_map(|(tables, latent)| if latent { Group::latent(tables) } else { Group::full(tables) });
    let state = (1..9usize).prop_map(Group::state);
    (first, prop::collection::vec(other, 0..3), prop::option::of(state))
        .prop_map(|(first, others, state)| std::iter::once(first).chain(others).chain(state).collect())
        .prop_filter("nothing to keep", |groups: &Vec<Group>| groups.len() > 1 || groups[0].tables > 0)
}

/// Pages of a block in all groups, and of a state.
fn pages_of(groups: &[Group]) -> (usize, usize) {
    let state = |group: &Group| match group.kind {
        Kind::State(pages) => pages,
        _ => 0,
    };
    (groups.iter().map(|group| group.tables).sum(), groups.iter().map(state).sum())
}

/// The allocator, the pages as a device has them, and the sequences.
struct World {
    kv: KvAllocator,
    /// By page and offset: the tokens up to there.
    cells: HashMap<(PageId, usize), Vec<u32>>,
    /// By slot: the tokens that the state has seen.
    states: HashMap<SlotId, Vec<u32>>,
    /// Snapshots that steps copy, not let go of yet.
    copied: Vec<SlotId>,
    /// The tokens before each border that the tree has learnt of, and of each snapshot.
    known: BTreeSet<Vec<u32>>,
    snapshots: BTreeSet<Vec<u32>>,
    sequences: Vec<Sequence>,
}

impl World {
    fn new(pages: usize, groups: &[Group]) -> Self {
        let kv = KvAllocator::with_groups(pages, BLOCK, true, groups).unwrap();
        let (known, snapshots) = (BTreeSet::new(), BTreeSet::new());
        let (states, copied) = (HashMap::new(), Vec::new());
        Self { kv, cells: HashMap::new(), states, copied, known, snapshots, sequences: Vec::new() }
    }

    fn pick(&mut self, which: usize) -> Option<Sequence> {
        let count = self.sequences.len();
        (count > 0).then(|| self.sequences.swap_remove(which % count))
    }

    /// By table, its group's number.
    fn tables(&self) -> Vec<usize> {
        let groups = self.kv.groups().iter().enumerate();
        groups.flat_map(|(group, of)| vec![group; of.tables]).collect()
    }

    /// Admits and returns how many blocks were found; the tokens must fit.
    fn admit(&mut self, tokens: Vec<u32>) -> usize {
        let mut held = Holding::default();
        let most = (tokens.len() - 1) / BLOCK;
        let peeked = self.kv.peek_prefix(0, &tokens, most);
        let found = self.kv.begin(&mut held, 0, &tokens, most);
        assert_eq!(found, peeked);
        let mut sequence = Sequence { tokens, computed: found * BLOCK, held };
        self.read(&sequence);
        let blocks = sequence.tokens.len().div_ceil(BLOCK);
        let demand = self.kv.demand(&sequence.held, sequence.tokens.len());
        if demand > self.kv.available() || self.kv.extend(&mut sequence.held, blocks, 0).is_err() {
            self.kv.let_go(&mut sequence.held);
        } else {
            self.sequences.push(sequence);
        }
        found
    }

    /// A query at the next token finds what was computed, in every table.
    fn read(&self, sequence: &Sequence) {
        for (table, group) in self.tables().into_iter().enumerate() {
            let window = self.kv.groups()[group].kind.window();
            let first = window.map_or(0, |window| (sequence.computed + 1).saturating_sub(window));
            for at in first..sequence.computed {
                let page = self.kv.page(sequence.held.blocks()[at / BLOCK], table);
                let cell = self.cells.get(&(page, at % BLOCK));
                assert_eq!(
                    cell.map(Vec::as_slice),
                    Some(&sequence.tokens[..=at]),
                    "table {table}, token {at}"
                );
            }
        }
    }

    /// How many blocks a prompt finds if nothing was ever evicted.
    fn expected(&self, tokens: &[u32]) -> usize {
        let prefix = |blocks: usize| &tokens[..blocks * BLOCK];
        let known =
            (1..=(tokens.len() - 1) / BLOCK).take_while(|&blocks| self.known.contains(prefix(blocks)));
        let usable = |blocks: &usize| self.kv.state_pages() == 0 || self.snapshots.contains(prefix(*blocks));
        known.filter(usable).last().unwrap_or(0)
    }

    /// The sequence's state becomes that of its tokens before `computed`, as it has to be already.
    fn restore(&mut self, sequence: &mut Sequence) {
        let Some(own) = sequence.held.state() else { return assert_eq!(self.kv.state_pages(), 0) };
        if let Some(snapshot) = sequence.held.take_restore() {
            let state = self.states[&snapshot].clone();
            self.states.insert(own, state);
            self.copied.push(snapshot);
        } else if sequence.computed == 0 {
            self.states.insert(own, Vec::new());
        }
        assert_eq!(self.states[&own], sequence.tokens[..sequence.computed]);
    }

    fn take_snapshot(&mut self, sequence: &Sequence, chances: u8) {
        let tokens = &sequence.tokens[..sequence.computed];
        if self.kv.has_states()
            && tokens.len().is_multiple_of(BLOCK)
            && let Some(slot) = self.kv.snapshot(0, tokens, chances)
        {
            self.states.insert(slot, tokens.to_vec());
            self.snapshots.insert(tokens.to_vec());
            self.copied.push(slot);
        }
    }

    fn settle(&mut self) {
        std::mem::take(&mut self.copied).into_iter().for_each(|slot| self.kv.release_snapshot(slot));
    }

    fn compute(&mut self, sequence: &mut Sequence, count: usize, chances: Option<u8>) {
        let end = (sequence.computed + count).min(sequence.tokens.len());
        self.kv.slide(&mut sequence.held, sequence.computed);
        let covered = self.kv.extend_windows(&mut sequence.held, end.div_ceil(BLOCK));
        let end = end.min(covered * BLOCK);
        self.read(sequence);
        self.restore(sequence);
        for at in sequence.computed..end {
            for table in 0..self.tables().len() {
                let page = self.kv.page(sequence.held.blocks()[at / BLOCK], table);
                self.cells.insert((page, at % BLOCK), sequence.tokens[..=at].to_vec());
            }
        }
        sequence.computed = sequence.computed.max(end);
        let computed = &sequence.tokens[..sequence.computed];
        if let Some(own) = sequence.held.state() {
            self.states.insert(own, computed.to_vec());
        }
        self.kv.insert(0, computed, sequence.held.blocks());
        self.known.extend((1..=computed.len() / BLOCK).map(|blocks| computed[..blocks * BLOCK].to_vec()));
        if let Some(chances) = chances {
            self.take_snapshot(sequence, chances);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Admit(tokens) => _ = self.admit(tokens),
            Step::Compute(which, count, chances) => {
                let Some(mut sequence) = self.pick(which) else { return };
                self.compute(&mut sequence, count, chances);
                self.sequences.push(sequence);
            }
            Step::Extend(which, tokens) => {
                let Some(mut sequence) = self.pick(which) else { return };
                let blocks = (sequence.tokens.len() + tokens.len()).div_ceil(BLOCK);
                if self.kv.extend(&mut sequence.held, blocks, 0).is_ok() {
                    sequence.tokens.extend(tokens);
                }
                self.sequences.push(sequence);
            }
            Step::GoOn(which) => {
                let Some(mut sequence) = self.pick(which) else { return };
                let first = sequence.computed / BLOCK;
                let most = (sequence.tokens.len() - 1) / BLOCK;
                let Sequence { tokens, held, .. } = &mut sequence;
                let count = self.kv.go_on(held, 0, tokens, first, most, &mut Vec::new());
                if count > 0 {
                    sequence.computed = (first + count) * BLOCK;
                }
                self.read(&sequence);
                self.sequences.push(sequence);
            }
            Step::Cut(which) => {
                let Some(mut sequence) = self.pick(which) else { return };
                let kept = sequence.computed.div_ceil(BLOCK).max(1);
                self.kv.cut(&mut sequence.held, kept);
                sequence.tokens.truncate(kept * BLOCK);
                sequence.computed = sequence.computed.min(sequence.tokens.len());
                self.sequences.push(sequence);
            }
            Step::Release(which) => {
                let Some(mut sequence) = self.pick(which) else { return };
                self.kv.let_go(&mut sequence.held);
            }
            Step::Settle => self.settle(),
            Step::Reset => _ = self.kv.reset_prefix_cache(),
        }
    }

    fn check(&self) {
        self.kv.check().unwrap();
        let Counts { free, cached, held } = self.kv.counts();
        assert_eq!(free + cached + held, self.kv.num_pages());
        let mut pages: Vec<PageId> = Vec::new();
        for sequence in &self.sequences {
            for (table, group) in self.tables().into_iter().enumerate() {
                let covered = if group == 0 { sequence.held.blocks().len() } else { sequence.held.covered() };
                let blocks = sequence.held.blocks().get(sequence.held.first(group)..covered);
                pages.extend(blocks.unwrap_or_default().iter().map(|&block| self.kv.page(block, table)));
            }
        }
        pages.sort_unstable();
        pages.dedup();
        assert!(pages.len() <= held);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_seen_was_computed(
        groups in groups(),
        blocks in 2..24usize,
        states in 1..6usize,
        steps in steps(),
    ) {
        let (tables, state) = pages_of(&groups);
        let mut world = World::new(blocks * tables + states * state, &groups);
        for step in steps {
            world.step(step);
            world.check();
        }
        while let Some(mut sequence) = world.pick(0) {
            world.kv.let_go(&mut sequence.held);
            world.check();
        }
        world.settle();
        world.check();
        // All that is cached can be had by one sequence.
        let most = world.kv.capacity().min(64);
        world.admit((0..most as u32).collect());
        let mut sequence = world.sequences.pop().expect("there is room for one");
        while sequence.computed < most {
            let before = sequence.computed;
            world.compute(&mut sequence, 3, None);
            world.settle();
            assert!(sequence.computed > before);
            world.check();
        }
        world.kv.let_go(&mut sequence.held);
        world.settle();
        world.kv.reset_prefix_cache();
        prop_assert_eq!(world.kv.counts(), Counts { free: world.kv.num_pages(), cached: 0, held: 0 });
        world.check();
    }

    #[test]
    fn with_room_for_all_a_prefix_is_found_up_to_the_last_snapshot(groups in groups(), steps in steps()) {
        let mut world = World::new(40_000, &groups);
        for step in steps {
            match step {
                Step::Admit(tokens) => {
                    let expected = world.expected(&tokens);
                    prop_assert_eq!(world.admit(tokens), expected);
                }
                Step::Reset => {} // what windows have left behind is all that it finds of some blocks
                step => world.step(step),
            }
        }
    }
}

/// A page of one layer: 5 of 6 layers see 1,024 tokens.
const FIVE_TO_ONE: [Group; 2] = [Group::FULL, Group::window(1024, 5)];

/// Pages that a sequence holds when it decodes behind `tokens`, and those of all layers.
fn pages_held(tokens: usize, chunk: usize) -> (usize, usize) {
    let mut kv = KvAllocator::with_groups(6 * 1024, 16, true, &FIVE_TO_ONE).unwrap();
    let mut held = Holding::default();
    let text: Vec<u32> = (0..tokens as u32).collect();
    kv.begin(&mut held, 0, &text, 0);
    kv.extend(&mut held, tokens.div_ceil(16), 0).unwrap();
    for start in (0..tokens).step_by(chunk) {
        kv.slide(&mut held, start);
        let end = (start + chunk).min(tokens);
        assert_eq!(kv.extend_windows(&mut held, end.div_ceil(16)), end.div_ceil(16));
        kv.insert(0, &text[..end], held.blocks());
    }
    kv.slide(&mut held, tokens);
    (kv.counts().held, 6 * tokens.div_ceil(16))
}

#[test]
fn a_long_sequence_holds_a_window_of_most_layers() {
    let (held, all) = pages_held(8192, 512);
    assert!(held * 100 <= all * 30, "{held} of {all} pages");
    let (held, all) = pages_held(128, 512);
    assert_eq!(held, all);
}

#[test]
fn a_window_that_was_evicted_comes_back_with_the_next_that_computes_it() {
    let groups = [Group::FULL, Group::window(4, 1)];
    let mut world = World::new(64, &groups);
    let tokens: Vec<u32> = (0..12).collect();
    let run = |world: &mut World, tokens: &[u32]| {
        let found = world.admit(tokens.to_vec());
        let mut sequence = world.sequences.pop().unwrap();
        while sequence.computed < tokens.len() {
            world.compute(&mut sequence, 4, None);
        }
        world.kv.let_go(&mut sequence.held);
        found
    };
    assert_eq!(run(&mut world, &tokens), 0);
    assert_eq!(run(&mut world, &tokens), 5);
    // All windows of the tree go; the blocks stay.
    let mut window = Vec::new();
    for block in 0..world.kv.pool.num_blocks() as u32 {
        if world.kv.pool.place(block) != super::NOWHERE && world.kv.pool.has(block, 1) {
            window.push(block);
        }
    }
    window.into_iter().for_each(|block| world.kv.pool.evict(block, 1));
    world.check();
    assert_eq!(run(&mut world, &tokens), 0);
    world.check();
    assert_eq!(run(&mut world, &tokens), 5);
}
