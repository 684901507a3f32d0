//! The planner held to a model of the device, under random work.
//!
//! The model keeps, for each slot of the KV cache, a chain hash of the token prefix whose KV was written there.
//! A step computes what a real one would: it reads nothing but the buffers, takes fed tokens from `last_token`,
//! writes each token's chain into its slot, and then *reads the row's pages*: they must hold exactly the row's
//! own prefix, token by token, written under the row's own salt. The next token is a hash of that prefix, of the
//! seed and of the position, so that any wrong page, position or feed changes the output, and the output that
//! each request must have can be computed without any scheduler.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::kv_allocator::KvAllocator;
use crate::messages::{FinishReason, Message, RequestKey, SamplingRules, Submit};
use crate::telemetry::Timeline;

const VOCABULARY: u64 = 24;
const STOP_TOKEN: u32 = 0;

fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Chain hash of a prefix, from that of the prefix before its last token.
fn extend(chain: u64, token: u32) -> u64 {
    mix(chain, u64::from(token) + 1)
}

fn choose(chain: u64, seed: u64, position: u64) -> u32 {
    (mix(mix(chain, seed), position) % VOCABULARY) as u32
}

fn rules(seed: u64) -> SamplingRules {
    let temperature = (seed % 2) as f32;
    SamplingRules { temperature, top_k: seed as u32 + 1, top_p: 0.5, min_p: 0.25, seed }
}

/// What a request is, and the tokens it would have if nothing ever ended it.
#[derive(Clone)]
struct Expected {
    submit: Submit,
    tokens: Vec<u32>,
}

impl Expected {
    fn new(submit: Submit, prompt: &[u32], resumed: usize, context: usize) -> Self {
        let mut tokens = prompt.to_vec();
        let mut chain = tokens.iter().fold(0, |chain, token| extend(chain, *token));
        for position in prompt.len()..prompt.len() + submit.max_tokens as usize + 8 {
            let token = choose(chain, submit.sampling.seed, position as u64);
            tokens.push(token);
            chain = extend(chain, token);
        }
        let mut expected = Self { submit, tokens };
        // A request that is submitted again had not ended.
        let known = (prompt.len() + resumed).min(expected.end(context).0.max(prompt.len()));
        let words = expected.tokens[..known].iter().flat_map(|token| token.to_le_bytes());
        expected.submit.tokens = words.collect();
        expected
    }

    /// The length at which the request ends by itself, and why.
    fn end(&self, context: usize) -> (usize, FinishReason) {
        let prompt = self.submit.prompt_length as usize;
        let limit = (prompt + self.submit.max_tokens as usize).min(context);
        for length in prompt + 1..=limit {
            let stops = self.submit.stop_token_ids.contains(&self.tokens[length - 1]);
            if stops && length - prompt >= self.submit.min_tokens as usize {
                return (length, FinishReason::Stop);
            }
        }
        (limit, FinishReason::Length)
    }
}

/// The device: KV cache and `last_token`, and the results of steps not fetched yet.
struct Device {
    block_size: usize,
    cells: Vec<Option<(u64, u64)>>,
    last_token: Vec<u32>,
    results: VecDeque<Vec<i32>>,
}

impl Device {
    /// Runs a step. `owner` tells which request is behind an index of the sequence table.
    fn run(&mut self, mut step: StepBuffers<'_>, owner: impl Fn(u32) -> Expected) {
        let rows = step.header[0] as usize;
        let [tokens, sampled, pages, feeds] = [1, 2, 3, 4].map(|at| step.header[at] as usize);
        assert_eq!(step.query_start[rows] as usize, tokens);
        assert_eq!(step.page_indptr[rows] as usize, pages);
        for feed in 0..feeds {
            let token = self.last_token[step.feed_sequence[feed] as usize];
            step.token_ids[step.feed_token[feed] as usize] = token as i32;
        }
        let fed = step.feed_sequence[..feeds].to_vec();
        let (mut longest_query, mut longest_kv, mut prefills) = (0, 0, false);
        let mut chains = Vec::new();
        for row in 0..rows {
            let sequence = step.row_sequence[row] as u32;
            let expected = owner(sequence);
            let salt = expected.submit.cache_salt;
            let tokens = step.query_start[row] as usize..step.query_start[row + 1] as usize;
            let length = step.kv_length[row] as usize;
            let pages =
                &step.page_indices[step.page_indptr[row] as usize..step.page_indptr[row + 1] as usize];
            assert_eq!(pages.len(), length.div_ceil(self.block_size), "pages cover the row's KV");
            assert!(!tokens.is_empty());
            prefills |= tokens.len() > 1;
            assert!(!prefills || !fed.contains(&step.row_sequence[row]), "decodes come first");
            longest_query = longest_query.max(tokens.len());
            longest_kv = longest_kv.max(length);
            let cell = |position: usize| {
                pages[position / self.block_size] as usize * self.block_size + position % self.block_size
            };
            let start = length - tokens.len();
            let mut chain = expected.tokens[..start].iter().fold(0, |chain, token| extend(chain, *token));
            for (at, position) in tokens.zip(start..length) {
                let token = step.token_ids[at] as u32;
                assert_eq!(token, expected.tokens[position], "token at position {position}");
                assert_eq!(step.positions[at] as usize, position);
                assert_eq!(step.slot_mapping[at] as usize, cell(position));
                chain = extend(chain, token);
                self.cells[cell(position)] = Some((chain, salt));
            }
            let mut prefix = 0;
            for position in 0..length {
                prefix = extend(prefix, expected.tokens[position]);
                assert_eq!(self.cells[cell(position)], Some((prefix, salt)), "KV at position {position}");
            }
            chains.push(chain);
        }
        assert_eq!((step.header[5] as usize, step.header[6] as usize), (longest_query, longest_kv));
        let mut result = Vec::new();
        for at in 0..sampled {
            let row = step.sample_rows[at] as usize;
            assert_eq!(step.sample_sequence[at], step.row_sequence[row]);
            let expected = owner(step.row_sequence[row] as u32);
            let wanted = expected.submit.sampling;
            let got = (step.temperature[at], step.top_k[at] as u32, step.top_p[at], step.min_p[at]);
            assert_eq!(got, (wanted.temperature, wanted.top_k, wanted.top_p, wanted.min_p));
            assert_eq!(step.sample_position[at], i64::from(step.kv_length[row]));
            let token = choose(chains[row], step.seed[at], step.sample_position[at] as u64);
            self.last_token[step.sample_sequence[at] as usize] = token;
            result.push(token as i32);
        }
        let greedy = step.temperature[..sampled].iter().filter(|temperature| **temperature == 0.0).count();
        assert_eq!(step.header[8] as usize, greedy);
        self.results.push_back(result);
    }
}

/// What the detokenizer's mailbox got for one request.
#[derive(Default, Debug)]
struct Stream {
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
}

/// How a world is made.
#[derive(Debug, Clone)]
struct Setup {
    block_size: usize,
    num_blocks: usize,
    prefix_cache: bool,
    max_sequences: usize,
    max_tokens: usize,
    max_rows: usize,
    max_pages: usize,
    max_context: usize,
    max_waiting: usize,
    prefill_chunk: usize,
    depth: usize,
}

struct World {
    setup: Setup,
    kv: KvAllocator,
    planner: Planner,
    device: Device,
    words: Vec<u64>,
    ring: Arc<Mutex<(VecDeque<Vec<u8>>, usize)>>,
    inbox: VecDeque<Vec<u8>>,
    expected: HashMap<RequestKey, Expected>,
    streams: HashMap<RequestKey, Stream>,
    // Ended from outside: the output is any prefix of what it would have been.
    cut: HashMap<RequestKey, FinishReason>,
    now_ns: u64,
    next: u64,
}

impl World {
    fn new(setup: &Setup) -> Self {
        let kv = KvAllocator::new(setup.num_blocks, setup.block_size, setup.prefix_cache).unwrap();
        let layout = StepLayout::new(setup.max_tokens, setup.max_rows, setup.max_pages).unwrap();
        let ring = Arc::new(Mutex::new((VecDeque::new(), usize::MAX)));
        let outlet_ring = Arc::clone(&ring);
        let outlet: Outlet = Box::new(move |bytes| {
            let mut ring = outlet_ring.lock().unwrap();
            if ring.0.len() >= ring.1 {
                return Err(Error::MailboxFull { needed: bytes.len(), free: 0 });
            }
            ring.0.push_back(bytes.to_vec());
            Ok(())
        });
        let config = PlannerConfig {
            max_sequences: setup.max_sequences,
            max_tokens_per_step: setup.max_tokens,
            max_context: setup.max_context,
            max_waiting: setup.max_waiting,
            prefill_chunk: setup.prefill_chunk,
        };
        let planner = Planner::new(config, layout, &kv, outlet, 1 << 16, Timeline::silent()).unwrap();
        let device = Device {
            block_size: setup.block_size,
            cells: vec![None; setup.num_blocks * setup.block_size],
            last_token: vec![u32::MAX; setup.max_sequences],
            results: VecDeque::new(),
        };
        Self {
            setup: setup.clone(),
            kv,
            planner,
            device,
            words: vec![0; layout.nbytes() / 8],
            ring,
            inbox: VecDeque::new(),
            expected: HashMap::new(),
            streams: HashMap::new(),
            cut: HashMap::new(),
            now_ns: 1,
            next: 0,
        }
    }

    fn post(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes).unwrap();
        self.inbox.push_back(bytes);
    }

    fn submit(&mut self, prompt: &[u32], resumed: usize, change: impl FnOnce(&mut Submit)) -> RequestKey {
        self.next += 1;
        let key = RequestKey { frontend: 0, request: self.next };
        let mut submit = Submit {
            key,
            tokens: Vec::new(),
            prompt_length: prompt.len() as u32,
            max_tokens: 8,
            min_tokens: 0,
            sampling: rules(self.next % 3),
            stop_token_ids: vec![STOP_TOKEN],
            stop: Vec::new(),
            include_stop: false,
            skip_special_tokens: true,
            priority: 0,
            tenant: 0,
            cache_salt: 0,
            arrival_ns: self.now_ns,
            deadline_ns: 0,
        };
        change(&mut submit);
        let resumed = resumed.min(submit.max_tokens as usize);
        let expected = Expected::new(submit, prompt, resumed, self.context());
        self.post(&Message::Submit(expected.submit.clone()));
        self.expected.insert(key, expected);
        key
    }

    fn drain(&mut self) {
        let inbox = &mut self.inbox;
        let receive = |message: &mut Vec<u8>| {
            Ok(inbox.pop_front().is_some_and(|bytes| {
                *message = bytes;
                true
            }))
        };
        let others = self.planner.drain(&mut self.kv, receive, self.now_ns).unwrap();
        assert!(others.is_empty());
        self.check();
    }

    fn check(&self) {
        self.planner.check().unwrap();
        self.kv.check().unwrap();
    }

    fn plan(&mut self) -> usize {
        // SAFETY: every byte of a u64 is a u8.
        let bytes = unsafe { self.words.align_to_mut::<u8>() }.1;
        let rows = self.planner.plan(&mut self.kv, bytes, self.now_ns).unwrap();
        if rows > 0 {
            let view = self.planner.layout.view(bytes).unwrap();
            assert_eq!(view.header[0] as usize, rows);
            let (planner, expected) = (&self.planner, &self.expected);
            let owner = |slot: u32| {
                let request = planner.requests.get(planner.table.request[slot as usize]);
                expected[&request.key].clone()
            };
            self.device.run(view, owner);
        }
        self.check();
        rows
    }

    fn commit(&mut self) -> bool {
        let Some(result) = self.device.results.pop_front() else { return false };
        self.planner.commit(&mut self.kv, &result).unwrap();
        self.check();
        true
    }

    /// Reads what the detokenizer got.
    fn read(&mut self) {
        let messages: Vec<_> = self.ring.lock().unwrap().0.drain(..).collect();
        for bytes in messages {
            match Message::decode(&bytes).unwrap() {
                Message::OpenStream(open) => {
                    let tokens =
                        open.generated.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                    let stream = Stream { tokens: tokens.collect(), finish: None };
                    assert!(self.streams.insert(open.key, stream).is_none(), "announced twice");
                }
                Message::TokensOut(rows) => {
                    for row in rows {
                        let stream = self.streams.get_mut(&row.key).expect("announced before its tokens");
                        assert_eq!(stream.finish, None, "{:?} after its end", row.key);
                        assert!(row.cached_tokens <= self.expected[&row.key].submit.prompt_length);
                        stream.tokens.extend(row.tokens);
                        stream.finish = row.finish;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn running(&self) -> bool {
        self.planner.has_work() || !self.inbox.is_empty()
    }

    /// Lets everything come to its end. Work must get done: `patience` steps are far more than are needed.
    fn finish(&mut self) {
        let mut patience = 200_000;
        self.ring.lock().unwrap().1 = usize::MAX;
        while self.running() {
            self.drain();
            let rows = self.plan();
            if self.device.results.len() > self.setup.depth || rows == 0 {
                self.commit();
            }
            self.read();
            patience -= 1;
            assert!(patience > 0, "livelock: {:?}", self.planner.stats());
        }
        self.verify();
    }

    /// Every request had the output that it must have, and every block is free or cached.
    fn verify(&mut self) {
        self.read();
        let context = self.context();
        for (key, expected) in &self.expected {
            let stream = &self.streams[key];
            let prompt = expected.submit.prompt_length as usize;
            let reference = &expected.tokens[prompt..];
            assert_eq!(stream.tokens, reference[..stream.tokens.len()], "{key:?}");
            let (length, reason) = expected.end(context);
            let longest = length.saturating_sub(prompt).max(expected.submit.tokens.len() / 4 - prompt);
            assert!(stream.tokens.len() <= longest, "{key:?} overshot");
            if prompt > self.setup.max_context.min(self.capacity()) {
                assert_eq!(stream.finish, Some(FinishReason::Error), "{key:?}");
            } else if matches!(stream.finish, Some(FinishReason::Stop | FinishReason::Length)) {
                assert_eq!((stream.tokens.len(), stream.finish), (longest, Some(reason)), "{key:?}");
            } else if stream.finish == Some(FinishReason::Overloaded) {
                assert_eq!(stream.tokens.len() * 4, expected.submit.tokens.len() - prompt * 4);
            } else {
                // The detokenizer that reports a stop string is told nothing more.
                let cut = self.cut.get(key).copied();
                let silent = cut == Some(FinishReason::Stop) && stream.finish.is_none();
                assert!(silent || stream.finish == cut, "{key:?} {stream:?} {cut:?}");
            }
        }
        let counts = self.kv.counts();
        assert_eq!(counts.held, 0);
        assert_eq!(counts.free + counts.cached, self.setup.num_blocks);
        assert!(!self.planner.has_work());
        let stats: HashMap<_, _> = self.planner.stats().into_iter().collect();
        let finished: u64 =
            stats.iter().filter(|(name, _)| name.starts_with("finished")).map(|(_, n)| n).sum();
        assert_eq!(finished as usize, self.expected.len());
    }

    /// Tokens that a sequence can have at most.
    fn context(&self) -> usize {
        self.setup.max_context.min(self.capacity() + 1)
    }

    fn capacity(&self) -> usize {
        self.setup.num_blocks.min(self.setup.max_pages) * self.setup.block_size
    }

    fn stat(&self, name: &str) -> u64 {
        self.planner.stats().into_iter().find(|(key, _)| *key == name).unwrap().1
    }
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Event {
    Submit {
        family: u64,
        length: usize,
        max: u32,
        min: u32,
        resumed: usize,
        class: i32,
        tenant: u64,
        salt: u64,
    },
    Deadline {
        after_ns: u64,
    },
    Abort(prop::sample::Index),
    Stop(prop::sample::Index),
    Step,
    Commit,
    Ring(usize),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let submit = (0..3u64, 1..40usize, 1..24u32, 0..6u32, 0..6usize, -1..2i32, 0..3u64, 0..2u64);
    let submit = submit.prop_map(|(family, length, max, min, resumed, class, tenant, salt)| {
        let resumed = resumed.saturating_sub(3);
        Event::Submit { family, length, max, min, resumed, class, tenant, salt }
    });
    prop_oneof![
        6 => submit,
        1 => (1..50u64).prop_map(|after_ns| Event::Deadline { after_ns }),
        1 => any::<prop::sample::Index>().prop_map(Event::Abort),
        1 => any::<prop::sample::Index>().prop_map(Event::Stop),
        12 => Just(Event::Step),
        6 => Just(Event::Commit),
        1 => (0..3usize).prop_map(Event::Ring),
        1 => (1..40u64).prop_map(Event::Wait),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let sizes = (1..6usize, 1..28usize, any::<bool>(), 1..6usize, 1..24usize);
    let bounds = (1..7usize, 1..40usize, 4..64usize, 1..8usize, 0..6usize, 0..3usize);
    (sizes, bounds).prop_map(|(sizes, bounds)| {
        let (block_size, num_blocks, prefix_cache, max_sequences, max_tokens) = sizes;
        let (max_rows, max_pages, max_context, max_waiting, prefill_chunk, depth) = bounds;
        Setup {
            block_size,
            num_blocks,
            prefix_cache,
            max_sequences,
            max_tokens,
            max_rows,
            max_pages,
            max_context,
            max_waiting,
            prefill_chunk,
            depth,
        }
    })
}

fn roomy() -> Setup {
    Setup {
        block_size: 4,
        num_blocks: 64,
        prefix_cache: true,
        max_sequences: 4,
        max_tokens: 32,
        max_rows: 4,
        max_pages: 64,
        max_context: 200,
        max_waiting: 64,
        prefill_chunk: 0,
        depth: 1,
    }
}

/// Prompts of one family begin alike.
fn prompt(family: u64, length: usize) -> Vec<u32> {
    let shared = length * 3 / 4;
    let token = |at: usize| {
        let own = if at < shared { family } else { family + 7 * length as u64 };
        (mix(own, at as u64) % VOCABULARY) as u32
    };
    (0..length).map(token).collect()
}

fn happen(world: &mut World, event: &Event) {
    match *event {
        Event::Submit { family, length, max, min, resumed, class, tenant, salt } => {
            world.submit(&prompt(family, length), resumed, |submit| {
                submit.max_tokens = max;
                submit.min_tokens = min;
                submit.priority = class;
                submit.tenant = tenant;
                submit.cache_salt = salt;
            });
        }
        Event::Deadline { after_ns } => {
            let deadline_ns = world.now_ns + after_ns;
            let key = world.submit(&prompt(1, 9), 0, |submit| {
                submit.max_tokens = 40;
                submit.deadline_ns = deadline_ns;
            });
            world.cut.insert(key, FinishReason::Timeout);
        }
        Event::Abort(ref index) | Event::Stop(ref index) => {
            let mut keys: Vec<_> = world.expected.keys().copied().collect();
            keys.sort_unstable();
            if keys.is_empty() {
                return;
            }
            let key = *index.get(&keys);
            if world.cut.contains_key(&key) {
                return;
            }
            let stop = matches!(event, Event::Stop(_));
            let reason = if stop { FinishReason::Stop } else { FinishReason::Abort };
            world.cut.insert(key, reason);
            world.post(&if stop { Message::StopMatched(key) } else { Message::Abort(key) });
        }
        Event::Step => {
            world.drain();
            while world.device.results.len() > world.setup.depth {
                world.commit();
            }
            if world.plan() == 0 {
                world.commit();
            }
        }
        Event::Commit => {
            world.commit();
        }
        Event::Ring(room) => {
            world.read();
            world.ring.lock().unwrap().1 = if room == 2 { usize::MAX } else { room };
        }
        Event::Wait(ns) => world.now_ns += ns,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_its_tokens(setup in setup(), events in prop::collection::vec(event(), 1..120)) {
        let mut world = World::new(&setup);
        for event in &events {
            happen(&mut world, event);
        }
        world.finish();
    }
}

/// Runs steps until `done`; each is drained, planned and, one behind, committed.
fn steps(world: &mut World, most: usize, mut done: impl FnMut(&World) -> bool) {
    for _ in 0..most {
        if done(world) {
            return;
        }
        happen(world, &Event::Step);
        world.read();
    }
    panic!("not done after {most} steps: {:?}", world.planner.stats());
}

fn finished(key: RequestKey) -> impl Fn(&World) -> bool {
    move |world| world.streams.get(&key).is_some_and(|stream| stream.finish.is_some())
}

#[test]
fn one_sequence_at_a_time_is_enough() {
    for depth in 0..3 {
        for prefix_cache in [false, true] {
            let mut world = World::new(&Setup { num_blocks: 5, depth, prefix_cache, ..roomy() });
            for family in 0..12 {
                // 12 + 9 tokens take 5 blocks of 4 and one token that needs no KV: the whole cache.
                world.submit(&prompt(family, 12), 0, |submit| {
                    submit.max_tokens = 9;
                    submit.stop_token_ids.clear();
                });
            }
            world.finish();
            assert_eq!(world.stat("finished_length"), 12);
        }
    }
}

#[test]
fn a_preempted_request_goes_on_where_it_was() {
    let mut world = World::new(&Setup { num_blocks: 40, max_context: 150, ..roomy() });
    for family in 0..4 {
        world.submit(&prompt(family, 4), 0, |submit| {
            submit.max_tokens = 100;
            submit.stop_token_ids.clear();
        });
    }
    world.finish();
    assert!(world.stat("preemptions") > 0);
    assert_eq!(world.stat("finished_length"), 4);
    assert_eq!(world.stat("completion_tokens"), 400);
}

#[test]
fn the_worst_class_is_preempted_first() {
    let mut world = World::new(&Setup { num_blocks: 60, max_sequences: 3, ..roomy() });
    let classes = [1, 0, 0];
    let keys = classes.map(|class| {
        world.submit(&prompt(class as u64, 4), 0, |submit| {
            submit.max_tokens = 100;
            submit.priority = class;
            submit.stop_token_ids.clear();
        })
    });
    steps(&mut world, 400, |world| world.stat("preemptions") > 0);
    let id = world.planner.requests.find(keys[0]).unwrap();
    assert_eq!(world.planner.requests.get(id).slot, None);
    assert!(world.planner.requests.get(id).ticket.resumed);
    world.finish();
}

#[test]
fn a_full_cache_does_not_thrash() {
    let mut world = World::new(&Setup { num_blocks: 64, max_sequences: 16, max_rows: 16, ..roomy() });
    for family in 0..40 {
        world.submit(&prompt(family, 16), 0, |submit| {
            submit.max_tokens = 60;
            submit.stop_token_ids.clear();
        });
    }
    world.finish();
    // A sequence that is let in grows by 60 tokens at most, for which admission keeps blocks.
    assert_eq!(world.stat("preemptions"), 0);
}

#[test]
fn a_long_prompt_does_not_hold_up_decodes() {
    let mut world = World::new(&Setup { max_tokens: 8, depth: 0, ..roomy() });
    let decode = world.submit(&prompt(0, 4), 0, |submit| {
        submit.max_tokens = 12;
        submit.stop_token_ids.clear();
    });
    steps(&mut world, 3, |world| world.streams.get(&decode).is_some_and(|stream| !stream.tokens.is_empty()));
    let long = world.submit(&prompt(1, 100), 0, |_| {});
    steps(&mut world, 13, finished(decode));
    assert!(world.streams[&long].tokens.is_empty());
    world.finish();
}

#[test]
fn chunks_are_capped_and_the_rest_of_the_budget_is_shared() {
    let mut world = World::new(&Setup { max_tokens: 20, prefill_chunk: 8, ..roomy() });
    (0..3).for_each(|family| drop(world.submit(&prompt(family, 30), 0, |_| {})));
    world.drain();
    world.plan();
    let counts: Vec<_> = world.planner.prefills.iter().map(|grant| grant.count).collect();
    assert_eq!(counts, [8, 8, 4]);
    world.finish();
}

#[test]
fn a_prefix_is_computed_once_per_salt() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    let body = prompt(0, 33);
    for (salt, hits) in [(0, 0), (0, 32), (1, 32), (1, 64)] {
        let key = world.submit(&body, 0, |submit| submit.cache_salt = salt);
        steps(&mut world, 50, finished(key));
        assert_eq!(world.stat("prefix_hits"), hits);
    }
    world.finish();
}

#[test]
fn the_whole_prompt_is_never_taken_from_the_cache() {
    let mut world = World::new(&roomy());
    for _ in 0..2 {
        let key = world.submit(&prompt(0, 32), 0, |_| {});
        steps(&mut world, 50, finished(key));
    }
    assert_eq!(world.stat("prefix_hits"), 28);
    world.finish();
}

#[test]
fn predictable_ends_are_not_overshot() {
    let mut world = World::new(&Setup { depth: 2, ..roomy() });
    world.submit(&prompt(0, 5), 0, |submit| {
        submit.max_tokens = 3;
        submit.stop_token_ids.clear();
    });
    world.drain();
    assert_eq!((0..5).map(|_| world.plan()).collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
    world.finish();
    assert_eq!(world.stat("finished_length"), 1);
}

#[test]
fn a_queue_that_is_full_says_so_at_once() {
    let mut world = World::new(&Setup { max_waiting: 2, ..roomy() });
    let keys: Vec<_> = (0..3).map(|family| world.submit(&prompt(family, 5), 0, |_| {})).collect();
    world.drain();
    world.read();
    assert_eq!(world.streams[&keys[2]].finish, Some(FinishReason::Overloaded));
    assert_eq!(world.stat("waiting"), 2);
    world.finish();
}

#[test]
fn deadlines_end_what_waits_and_what_runs() {
    let mut world = World::new(&Setup { max_sequences: 1, depth: 1, ..roomy() });
    let keys = [0, 1].map(|family| {
        world.submit(&prompt(family, 5), 0, |submit| {
            submit.max_tokens = 100;
            submit.deadline_ns = 50;
            submit.stop_token_ids.clear();
        })
    });
    (0..3).for_each(|_| happen(&mut world, &Event::Step));
    world.now_ns = 50;
    keys.iter().for_each(|key| drop(world.cut.insert(*key, FinishReason::Timeout)));
    world.finish();
    assert_eq!(world.stat("finished_timeout"), 2);
    assert!(!world.streams[&keys[0]].tokens.is_empty() && world.streams[&keys[1]].tokens.is_empty());
}

#[test]
fn prompts_that_cannot_fit_are_errors_and_answers_that_cannot_are_cut() {
    let mut world = World::new(&Setup { num_blocks: 5, max_context: 19, ..roomy() });
    let keys = [19, 20, 18]
        .map(|length| world.submit(&prompt(0, length), 0, |submit| submit.stop_token_ids.clear()));
    world.finish();
    let ends = keys.map(|key| (world.streams[&key].finish.unwrap(), world.streams[&key].tokens.len()));
    assert_eq!(ends, [(FinishReason::Length, 0), (FinishReason::Error, 0), (FinishReason::Length, 1)]);
}

#[test]
fn what_was_generated_before_a_restart_counts() {
    let mut world = World::new(&roomy());
    let body = prompt(0, 5);
    let whole = Expected::new(world_submit(&mut World::new(&roomy()), &body), &body, 0, 200);
    let stop = whole.tokens[7];
    let cases = [(8, 8, vec![], 8), (8, 3, vec![], 8), (8, 3, vec![stop], 3), (8, 1, vec![stop], 3)];
    for (max_tokens, resumed, stop_token_ids, length) in cases {
        let key = world.submit(&body, resumed, |submit| {
            submit.max_tokens = max_tokens;
            submit.stop_token_ids = stop_token_ids;
            submit.sampling = whole.submit.sampling;
        });
        steps(&mut world, 30, finished(key));
        assert_eq!(world.streams[&key].tokens.len(), length);
    }
    world.finish();
}

fn world_submit(world: &mut World, body: &[u32]) -> Submit {
    let key = world.submit(body, 0, |_| {});
    world.expected[&key].submit.clone()
}

#[test]
fn a_failed_step_ends_its_requests_and_no_others() {
    let mut world = World::new(&Setup { depth: 2, max_sequences: 2, ..roomy() });
    let keys: Vec<_> = (0..4).map(|family| world.submit(&prompt(family, 6), 0, |_| {})).collect();
    world.drain();
    assert_eq!((world.plan(), world.plan()), (2, 2));
    world.device.results.pop_front();
    assert_eq!(world.planner.fail_step(&mut world.kv).unwrap(), 2);
    keys[..2].iter().for_each(|key| drop(world.cut.insert(*key, FinishReason::Error)));
    world.finish();
    assert_eq!(world.stat("finished_error"), 2);
}

#[test]
fn abort_all_leaves_nothing() {
    let mut world = World::new(&Setup { depth: 2, max_sequences: 2, ..roomy() });
    let keys: Vec<_> = (0..4).map(|family| world.submit(&prompt(family, 6), 0, |_| {})).collect();
    world.drain();
    world.plan();
    assert_eq!(world.planner.abort_all(&mut world.kv).unwrap(), 4);
    keys.iter().for_each(|key| drop(world.cut.insert(*key, FinishReason::Error)));
    assert!(world.planner.commit(&mut world.kv, &[]).is_err());
    world.verify();
}

#[test]
fn a_sampler_that_finds_no_token_ends_the_request() {
    let mut world = World::new(&Setup { depth: 0, ..roomy() });
    let key = world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    world.plan();
    world.device.results[0][0] = -1;
    world.cut.insert(key, FinishReason::Error);
    world.finish();
    assert_eq!(world.stat("finished_error"), 1);
}

#[test]
fn a_full_ring_stops_planning_and_loses_nothing() {
    let mut world = World::new(&roomy());
    world.ring.lock().unwrap().1 = 0;
    world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    assert_eq!((world.plan(), world.stat("outbox")), (0, 1));
    assert!(world.planner.has_work());
    world.ring.lock().unwrap().1 = 1;
    assert_eq!(world.plan(), 1);
    world.commit();
    assert_eq!((world.plan(), world.stat("outbox")), (0, 1));
    world.finish();
}

#[test]
fn what_is_not_for_the_planner_comes_back() {
    let mut world = World::new(&roomy());
    world.submit(&prompt(0, 6), 0, |_| {});
    let again = world.inbox[0].clone();
    let mut foreign = vec![again.clone(), b"\x92\xa5other\x01".to_vec(), b"garbage".to_vec()];
    let mut messages: VecDeque<_> = std::iter::once(again).chain(foreign.iter().cloned()).collect();
    let receive = |message: &mut Vec<u8>| {
        let next = messages.pop_front();
        Ok(next.is_some_and(|bytes| {
            *message = bytes;
            true
        }))
    };
    let others = world.planner.drain(&mut world.kv, receive, 1).unwrap();
    assert_eq!(others.len(), 3);
    assert!(foreign.drain(..).eq(others));
}

#[test]
fn a_mailbox_that_closes_is_reported_after_what_it_held() {
    let mut world = World::new(&roomy());
    let mut messages = VecDeque::from([b"\x92\xa5other\x01".to_vec()]);
    let mut receive = |message: &mut Vec<u8>| match messages.pop_front() {
        Some(bytes) => {
            *message = bytes;
            Ok(true)
        }
        None => Err(Error::MailboxClosed),
    };
    assert_eq!(world.planner.drain(&mut world.kv, &mut receive, 1).unwrap().len(), 1);
    assert_eq!(world.planner.drain(&mut world.kv, &mut receive, 1), Err(Error::MailboxClosed));
}

#[test]
fn tokens_of_another_count_are_refused_and_nothing_is_lost() {
    let mut world = World::new(&roomy());
    world.submit(&prompt(0, 6), 0, |_| {});
    world.drain();
    world.plan();
    assert!(world.planner.commit(&mut world.kv, &[1, 2]).is_err());
    world.finish();
}
