//! In steady state a step allocates nothing: 64 sequences decode, one step ahead, through a real mailbox.

use pyengine_base::memory;
use pyengine_kernels_cpu::sampler::SamplingRow;
use pyengine_kv_allocator::KvAllocator;
use pyengine_mailbox::Mailbox;
use pyengine_messages::{Message, RequestKey, Submit};
use pyengine_scheduler::{Planner, PlannerConfig, StepLayout};
use pyengine_telemetry::{Recorder, Track};

const SEQUENCES: usize = 64;

fn submit(request: u64) -> Vec<u8> {
    let tokens = (0..40).flat_map(|at| (request as u32 * 1000 + at).to_le_bytes()).collect();
    let sampling = SamplingRow { top_p: 0.9, seed: request, ..SamplingRow::NEUTRAL };
    let message = Message::Submit(Box::new(Submit {
        key: RequestKey { frontend: 0, request },
        tokens,
        prompt_length: 40,
        max_tokens: 2000,
        sampling,
        stop_token_ids: vec![1, 2],
        skip_special_tokens: true,
        tenant: request % 3,
        arrival_ns: request,
        deadline_ns: u64::MAX,
        ..Submit::default()
    }));
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes).unwrap();
    bytes
}

struct Engine {
    kv: KvAllocator,
    planner: Planner,
    inbox: Mailbox,
    detokenizer: Mailbox,
    layout: StepLayout,
    /// One is planned into while the other's step is in flight.
    buffers: [Vec<u64>; 2],
    received: Vec<u8>,
}

impl Engine {
    fn new() -> Self {
        let kv = KvAllocator::new(64 * 200, 16, true).unwrap();
        let layout = StepLayout::new(4096, SEQUENCES, 64 * 200, 8, 151_936).unwrap();
        let detokenizer = Mailbox::new(1 << 16).unwrap();
        let config = PlannerConfig {
            max_sequences: SEQUENCES,
            max_tokens_per_step: 4096,
            max_context: 4096,
            max_waiting: 64,
            prefill_chunk: 0,
            prefill_beside_decodes: 0,
            short_context: 0,
            snapshot_interval: 0,
        };
        let to = detokenizer.clone();
        let limit = to.max_message();
        let sink = Box::new(move |message: &[u8]| to.send(message));
        let timeline = Recorder::new(1 << 10).unwrap().timeline(Track::Scheduler);
        let planner = Planner::new(config, layout, &kv, sink, limit, timeline).unwrap();
        let inbox = Mailbox::new(1 << 16).unwrap();
        let buffers = [(); 2].map(|()| vec![0; layout.nbytes() / 8]);
        Self { kv, planner, inbox, detokenizer, layout, buffers, received: Vec::new() }
    }

    fn plan(&mut self) -> usize {
        let inbox = &self.inbox;
        let others = self.planner.drain(&mut self.kv, |message| inbox.receive(message), 0).unwrap();
        assert!(others.is_empty());
        // SAFETY: every byte of a u64 is a u8.
        let bytes = unsafe { self.buffers[0].align_to_mut::<u8>() }.1;
        let rows = self.planner.plan(&mut self.kv, bytes, 0).unwrap();
        self.buffers.swap(0, 1);
        rows
    }

    fn commit(&mut self) {
        // SAFETY: every byte of a u64 is a u8.
        let bytes = unsafe { self.buffers[0].align_to_mut::<u8>() }.1;
        let results = self.layout.view(bytes).unwrap();
        results.sampled_tokens[..SEQUENCES].fill(7);
        results.sampled_counts[..SEQUENCES].fill(1);
        assert_eq!(self.planner.commit(&mut self.kv, bytes, &[], 1).unwrap(), 0);
        while self.detokenizer.receive(&mut self.received).unwrap() {}
    }
}

#[test]
fn decode_steps_allocate_nothing() {
    memory::measure();
    let mut engine = Engine::new();
    (0..SEQUENCES as u64).for_each(|request| engine.inbox.send(&submit(request)).unwrap());
    assert_eq!(engine.plan(), SEQUENCES);
    for _ in 0..4 {
        assert_eq!(engine.plan(), SEQUENCES);
        engine.commit();
    }
    let blocks = engine.kv.counts().held;
    assert!(memory::peak() > 0, "the counter counts");
    for step in 0..500 {
        memory::measure();
        assert_eq!(engine.plan(), SEQUENCES);
        engine.commit();
        assert_eq!(memory::peak(), 0, "step {step} takes memory");
    }
    assert!(engine.kv.counts().held > blocks + 30 * SEQUENCES, "the block tables grew meanwhile");
}
