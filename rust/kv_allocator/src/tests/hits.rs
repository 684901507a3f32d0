//! How much of its prompts a model with windows finds, beside one without of the same bytes, on the same traces.

use crate::{Group, Holding, KvAllocator};

const BLOCK: usize = 16;
const CHUNK: usize = 128;
const FULL: [Group; 1] = [Group::full(6)];
const TOGETHER: usize = 4;
const REQUESTS: usize = 300;

/// Five layers of a window to one that sees all.
fn windows(window: usize) -> [Group; 2] {
    [Group::FULL, Group::window(window, 5)]
}

/// Numbers that are the same on every machine (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Some more often than others.
    fn skewed(&mut self, end: usize) -> usize {
        self.below(end).min(self.below(end))
    }

    fn up_to(&mut self, most: usize) -> Vec<u32> {
        let count = 1 + self.below(most);
        self.tokens(count)
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.next() as u32).collect()
    }
}

/// A prompt and its answer, and how many of these tokens are the prompt's.
type Request = (Vec<u32>, usize);

/// Prompts that begin with one of some, and go on for up to `own` tokens.
fn shared(seed: u64, own: usize, answer: usize) -> Vec<Request> {
    let mut draw = Draw(seed);
    let heads: Vec<_> = (0..24).map(|_| draw.tokens(512)).collect();
    let one = |_| {
        let prompt = [heads[draw.skewed(24)].clone(), draw.up_to(own)].concat();
        (with(&prompt, draw.up_to(answer)), prompt.len())
    };
    (0..REQUESTS).map(one).collect()
}

/// Conversations that go on turn by turn.
fn chats(seed: u64, question: usize, answer: usize) -> Vec<Request> {
    let mut draw = Draw(seed);
    let system = draw.tokens(200);
    let mut chats = vec![system.clone(); 16];
    let one = |_| {
        let which = draw.skewed(16);
        if chats[which].len() > 1500 {
            chats[which].clone_from(&system);
        }
        let prompt = with(&chats[which], draw.up_to(question));
        chats[which] = with(&prompt, draw.up_to(answer));
        (chats[which].clone(), prompt.len())
    };
    (0..REQUESTS).map(one).collect()
}

/// A system prompt, behind it one of some documents, behind that a question.
fn documents(seed: u64) -> Vec<Request> {
    let mut draw = Draw(seed);
    let systems: Vec<_> = (0..3).map(|_| draw.tokens(300)).collect();
    let documents: Vec<_> = (0..20).map(|_| draw.tokens(700)).collect();
    let one = |_| {
        let head = with(&systems[draw.below(3)], documents[draw.skewed(20)].clone());
        let prompt = with(&head, draw.up_to(100));
        (with(&prompt, draw.up_to(100)), prompt.len())
    };
    (0..REQUESTS).map(one).collect()
}

fn with(tokens: &[u32], more: Vec<u32>) -> Vec<u32> {
    [tokens.to_vec(), more].concat()
}

struct Sequence<'a> {
    tokens: &'a [u32],
    prompt: usize,
    computed: usize,
    held: Holding,
}

/// The share of the prompts' tokens that are found where some requests run together, in `pages` pages.
fn found(groups: &[Group], pages: usize, requests: &[Request]) -> f64 {
    let mut kv = KvAllocator::with_groups(pages, BLOCK, true, groups).unwrap();
    let (mut hits, mut asked) = (0, 0);
    let mut waiting = requests.iter();
    let mut running: Vec<Sequence> = Vec::new();
    loop {
        while running.len() < TOGETHER
            && let Some((tokens, prompt)) = waiting.next()
        {
            let mut held = Holding::default();
            let blocks = kv.begin(&mut held, 0, tokens, (prompt - 1) / BLOCK);
            hits += blocks * BLOCK;
            asked += prompt;
            running.push(Sequence { tokens, prompt: *prompt, computed: blocks * BLOCK, held });
        }
        if running.is_empty() {
            kv.check().unwrap();
            return hits as f64 / asked as f64;
        }
        for sequence in &mut running {
            let left = sequence.prompt.saturating_sub(sequence.computed);
            let end = sequence.computed + left.clamp(1, CHUNK);
            kv.slide(&mut sequence.held, sequence.computed);
            let blocks = end.div_ceil(BLOCK);
            kv.extend(&mut sequence.held, blocks, blocks).unwrap();
            kv.insert(0, &sequence.tokens[..end], sequence.held.blocks());
            sequence.computed = end;
        }
        for mut done in running.extract_if(.., |sequence| sequence.computed == sequence.tokens.len()) {
            kv.let_go(&mut done.held);
        }
    }
}

/// The least and the mean of what windows find in some traces, as a share of what full attention finds.
fn shares(blocks: usize) -> (f64, f64) {
    let mut made = Vec::new();
    let traces = [
        ("shared, short tails", shared(0, 32, 16)),
        ("shared, long tails", shared(0, 600, 16)),
        ("shared, long answers", shared(0, 32, 400)),
        ("chats", chats(0, 60, 120)),
        ("chats, long turns", chats(0, 300, 300)),
        ("documents", documents(0)),
    ];
    for (name, trace) in traces {
        let full = found(&FULL, 6 * blocks, &trace);
        for window in [48, 500] {
            let share = found(&windows(window), 6 * blocks, &trace) / full;
            println!(
                "{blocks} blocks, window {window:3}, {name:20}: {full:.3} of full, {share:.3} times that"
            );
            made.push(share);
        }
    }
    (made.iter().copied().fold(f64::INFINITY, f64::min), made.iter().sum::<f64>() / made.len() as f64)
}

#[test]
fn windows_find_as_much_as_full_attention() {
    let (least, mean) = shares(700);
    assert!(least > 0.99 && mean > 1.0, "{least}, {mean}");
}

/// Full attention keeps the prompts of those that run, whatever their age; here they have two thirds of the pages.
#[test]
fn windows_find_nearly_as_much_where_requests_have_most_pages() {
    let (least, mean) = shares(450);
    assert!(least > 0.95 && mean > 1.0, "{least}, {mean}");
}
