//! Sequences that are cut into random steps: what tests of layers with states have in common.

use super::*;
use crate::threads::Threads;

/// Numbers that look random and are the same each time.
pub struct Numbers(pub u64);

impl Numbers {
    /// One below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// One between -1 and 1.
    pub fn float(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0
    }

    /// Some of them.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// A layer with a state. Its inputs follow from the number of a token.
pub trait Layer {
    /// Numbers of its state, of a draft and of a token's outputs.
    fn sizes(&self) -> (usize, usize, usize);
    /// Runs a step; the outputs are \[tokens, outputs\].
    fn run(
        &self,
        threads: &Threads,
        states: &States<'_>,
        pool: &Pool<'_>,
        place: Place,
        tokens: &[u64],
    ) -> Vec<f32>;
}

const MAX_DRAFT: usize = 4;
const SLOTS: usize = 9;
const POISON: u32 = 0x7fc0_1234;

/// The pool; what was never written holds poison.
struct Memory {
    numbers: Vec<f32>,
    place: Place,
    slot_size: usize,
    size: usize,
}

impl Memory {
    fn new(layer: &impl Layer) -> Self {
        let (size, draft, _) = layer.sizes();
        let place = Place { state: 3, drafts: size + 5 };
        let slot_size = place.drafts + MAX_DRAFT * draft + 2;
        assert!(place.fits(slot_size, size, draft, MAX_DRAFT));
        Self { numbers: vec![f32::from_bits(POISON); SLOTS * slot_size], place, slot_size, size }
    }

    fn state(&self, slot: usize) -> Vec<u32> {
        bits(&self.numbers[slot * self.slot_size + self.place.state..][..self.size])
    }

    fn poison_is_left_around_states(&self) {
        for slot in self.numbers.chunks(self.slot_size) {
            let Place { state, drafts } = self.place;
            let around = [0..state, state + self.size..drafts, self.slot_size - 2..self.slot_size];
            assert!(around.into_iter().flatten().all(|at| slot[at].to_bits() == POISON));
        }
    }

    fn run(&mut self, layer: &impl Layer, threads: &Threads, rows: &[(Row, Vec<u64>)]) -> Vec<f32> {
        let (mut query_start, mut fields) = (vec![0], [(); 6].map(|()| Vec::new()));
        let slot = |slot: Option<usize>| slot.map_or(NO_SLOT, |slot| slot as i32);
        for (row, tokens) in rows {
            query_start.push(query_start.last().unwrap() + tokens.len() as i32);
            let own = if row.slot == usize::MAX { NO_SLOT } else { row.slot as i32 };
            let numbers = [
                own,
                slot(row.source),
                row.accepted as i32,
                (tokens.len() - row.certain) as i32,
                slot(row.snapshot.map(|(slot, _)| slot)),
                row.snapshot.map_or(0, |(_, tokens)| tokens as i32),
            ];
            fields.iter_mut().zip(numbers).for_each(|(field, number)| field.push(number));
        }
        let [slot, source, accepted, drafts, snapshot_slot, snapshot_tokens] = &fields;
        let tokens: Vec<u64> = rows.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let states = States {
            num_rows: rows.len(),
            num_tokens: tokens.len(),
            query_start: &query_start,
            slot,
            source,
            accepted,
            drafts,
            snapshot_slot,
            snapshot_tokens,
            num_slots: SLOTS,
            slot_size: self.slot_size,
            max_draft: MAX_DRAFT,
        };
        assert_eq!(states.check(), Ok(()));
        layer.run(threads, &states, &Pool::new(&mut self.numbers, self.slot_size), self.place, &tokens)
    }
}

/// A row with all its tokens certain.
pub fn row(slot: usize, source: Option<usize>, certain: usize) -> Row {
    Row { tokens: 0..certain, certain, slot, source, accepted: 0, snapshot: None }
}

/// The outputs of tokens that are one row from zeros on, and the state behind them.
pub fn alone(layer: &impl Layer, tokens: &[u64]) -> (Vec<f32>, Vec<u32>) {
    let mut memory = Memory::new(layer);
    let rows = [(row(0, None, tokens.len()), tokens.to_vec())];
    let outputs = memory.run(layer, &Threads::new(1).unwrap(), &rows);
    (outputs, memory.state(0))
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// A sequence and where it is.
struct Sequence {
    tokens: Vec<u64>,
    /// Outputs of all tokens, and states behind 0, 1, ... of them.
    expected: (Vec<u32>, Vec<Vec<u32>>),
    slot: usize,
    /// Tokens that the state has taken in.
    taken: usize,
    /// Whether there is a state.
    started: bool,
    /// Pending drafts that are right.
    right: usize,
    snapshot: Option<(usize, usize)>,
}

/// Checks that a layer gives sequences the same bits, outputs and states, however their tokens are cut into rows, in
/// any company, drafted with any acceptance, through snapshots, and with any number of threads.
pub fn check_company(layer: &impl Layer, seed: u64) {
    let mut numbers = Numbers(seed);
    let pools = [Threads::new(1).unwrap(), Threads::new(3).unwrap()];
    let mut memory = Memory::new(layer);
    let mut free: Vec<usize> = (0..SLOTS).collect();
    let mut sequences: Vec<Sequence> = (0..1 + numbers.below(3) as u64)
        .map(|name| {
            let tokens: Vec<u64> =
                (0..1 + numbers.below(14) as u64).map(|at| seed ^ (name << 32 | at)).collect();
            let states = (0..=tokens.len()).map(|count| alone(layer, &tokens[..count]).1).collect();
            let expected = (bits(&alone(layer, &tokens).0), states);
            let slot = free.swap_remove(numbers.below(free.len()));
            Sequence { tokens, expected, slot, taken: 0, started: false, right: 0, snapshot: None }
        })
        .collect();
    let width = layer.sizes().2;
    while sequences.iter().any(|sequence| sequence.taken < sequence.tokens.len()) {
        let mut rows = Vec::new();
        let mut of = Vec::new();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            if sequence.taken < sequence.tokens.len() && numbers.below(4) > 0 {
                rows.push(next_row(sequence, &mut free, &mut numbers));
                of.push(index);
            }
        }
        if numbers.below(3) == 0 {
            // A row that is passed over.
            rows.push((row(usize::MAX, None, 1), vec![7]));
        }
        let outputs = bits(&memory.run(layer, &pools[numbers.below(2)], &rows));
        let mut outputs = outputs.chunks(width);
        for ((row, tokens), index) in rows.iter().zip(of) {
            let sequence = &mut sequences[index];
            let before = sequence.taken;
            sequence.taken += row.certain;
            sequence.started = true;
            let right = &sequence.tokens[before..];
            let same = tokens.iter().zip(right).take_while(|(token, right)| token == right).count();
            sequence.right = same - row.certain;
            let (expected, states) = &sequence.expected;
            let mine: Vec<u32> = outputs.by_ref().take(tokens.len()).flatten().copied().collect();
            assert_eq!(mine[..same * width], expected[before * width..][..same * width]);
            assert_eq!(memory.state(row.slot), states[sequence.taken]);
            if let Some((slot, tokens)) = row.snapshot {
                assert_eq!(memory.state(slot), states[before + tokens]);
                free.extend(sequence.snapshot.replace((slot, before + tokens)).map(|(slot, _)| slot));
            }
        }
        memory.poison_is_left_around_states();
    }
}

/// The next tokens of a sequence, which has taken in what it says then.
fn next_row(sequence: &mut Sequence, free: &mut Vec<usize>, numbers: &mut Numbers) -> (Row, Vec<u64>) {
    let (source, accepted) = match sequence.snapshot {
        Some((slot, taken)) if numbers.below(5) == 0 => {
            sequence.taken = taken;
            (Some(slot), 0)
        }
        _ if sequence.started => (Some(sequence.slot), numbers.below(sequence.right + 1)),
        _ => (None, 0),
    };
    sequence.taken += accepted;
    let left = &sequence.tokens[sequence.taken..];
    // None of them is left where all were drafted and accepted.
    let certain = if left.is_empty() { 0 } else { 1 + numbers.below(left.len().min(6)) };
    let drafts = numbers.below(MAX_DRAFT + 1);
    let right = numbers.below(drafts + 1).min(left.len() - certain);
    let mut tokens = left[..certain + right].to_vec();
    tokens.extend((right..drafts).map(|_| numbers.0));
    let snapshot = (numbers.below(3) == 0)
        .then(|| (free.swap_remove(numbers.below(free.len())), numbers.below(certain + 1)));
    let row = Row { tokens: 0..tokens.len(), certain, slot: sequence.slot, source, accepted, snapshot };
    (row, tokens)
}
