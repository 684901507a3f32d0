"""The planner through Python: buffers, mailboxes, errors, and requests run to their end.

What the planner decides is held to a model of the device in rust/scheduler/src/simulation.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from pyengine._core import NO_SLOT, KvAllocator, Mailbox, MailboxClosed, Planner, StepLayout
from pyengine.messages import RequestKey, Submit, encode_abort, encode_submit
from pyengine.model.batch import StepBuffers
from pyengine.sampling import SamplingParams, pack_sampling

VOCABULARY = 50
BLOCK = 4


def submit(number: int, prompt: Sequence[int], **changes: Any) -> Submit:
    fields: dict[str, Any] = {
        "key": RequestKey(0, number),
        "tokens": np.asarray(prompt, dtype="<u4").tobytes(),
        "prompt_length": len(prompt),
        "max_tokens": 10,
        "sampling": pack_sampling(SamplingParams(temperature=0.0), number),
        "stop_token_ids": (0,),
        "skip_special_tokens": True,
        "arrival_ns": number,
    }
    return Submit(**(fields | changes))


def next_token(prefix: Sequence[int] | NDArray[Any]) -> int:
    """What the fake model says after ``prefix``; depends on all of it and on its length."""
    state = 17
    for token in prefix:
        state = (state * 31 + int(token) + 1) % 1_000_003
    return (state + len(prefix)) % VOCABULARY


def reference(prompt: Sequence[int], max_tokens: int, stop: Collection[int] = (0,)) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


@dataclass
class Stream:
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    notice: str | None = None
    cached: int = 0


class Engine:
    """A planner between two mailboxes, and a device that keeps tokens where a real one keeps KV."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        depth: int = 1,
        mailbox: int = 1 << 16,
        state_pages: int = 0,
        **limits: Any,
    ) -> None:
        states = [("state", 0, state_pages)] if state_pages else []
        self.allocator = KvAllocator(num_blocks, BLOCK, True, [("full", 1, 0), *states])
        self.layout = StepLayout(64, 8, 64, vocab_size=50, states=state_pages > 0)
        self.inbox = Mailbox(1 << 16)
        self.outbox = Mailbox(mailbox)
        self.planner = Planner(
            self.allocator,
            self.layout,
            self.outbox,
            **{
                "max_sequences": 8,
                "max_tokens_per_step": 64,
                "max_context": 200,
                "max_waiting": 100,
            }
            | limits,
        )
        # One for each step in flight, and one to plan into.
        self.spare = deque(StepBuffers(self.layout) for _ in range(3))
        self.depth = depth
        self.cells = np.full(num_blocks * BLOCK, -1)
        self.last_token = np.full(8, -1, dtype=np.int32)
        self.flights: deque[StepBuffers] = deque()
        self.streams: dict[int, Stream] = {}

    def execute(self) -> None:
        """Run the step in the buffer; its tokens wait in ``flights``."""
        step = self.spare.popleft()
        rows = step.num_rows
        step.feed(self.last_token)
        prefixes = []
        for row in range(rows):
            tokens = slice(step.query_start[row], step.query_start[row + 1])
            self.cells[step.slot_mapping[tokens]] = step.token_ids[tokens]
            pages = step.page_indices[step.page_indptr[row] : step.page_indptr[row + 1]]
            cells = (pages[:, None] * BLOCK + np.arange(BLOCK)).ravel()[: step.kv_length[row]]
            prefixes.append(self.cells[cells])
        sampled = step.num_sampled
        step.tokens[:] = [next_token(prefixes[row]) for row in step.sample_rows[:sampled]]
        step.counts[:] = 1
        self.last_token[step.sample_sequence[:sampled]] = step.tokens
        self.flights.append(step)

    @property
    def buffer(self) -> NDArray[np.uint8]:
        """The memory to plan into."""
        return self.spare[0].memory

    def commit(self) -> None:
        """Hand over the results of the oldest step in flight."""
        step = self.flights.popleft()
        self.spare.append(step)
        self.planner.commit(step.memory)

    def step(self) -> None:
        others = self.planner.drain(self.inbox)
        assert others == []
        rows = self.planner.plan(self.buffer)
        if rows:
            self.execute()
        if self.flights and (not rows or len(self.flights) > self.depth):
            self.commit()
        self.planner.send()
        self.planner.check()
        self.read()

    def read(self) -> None:
        for message in self.outbox.drain():
            tag, body = msgspec.msgpack.decode(message)
            if tag == "open_stream":
                self.streams[body[0][1]] = Stream()
                continue
            if tag == "notice":
                self.streams[body[0][1]].notice = body[1]
                continue
            assert tag == "tokens_out"
            for (_, number), tokens, finish, _, counts, *_ in body:
                stream = self.streams[number]
                assert stream.finish is None
                stream.tokens += tokens
                stream.finish = finish
                if counts:
                    stream.cached = counts[0]

    def run(self) -> dict[int, Stream]:
        for _ in range(10_000):
            if not self.planner.has_work and not self.inbox.used:
                break
            self.step()
        assert not self.planner.has_work
        self.read()
        free, cached, held = self.allocator.counts()
        assert held == 0
        assert free + cached == self.allocator.num_blocks
        self.allocator.check()
        return self.streams


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    shared = random.integers(1, VOCABULARY, 12).tolist()
    lengths = random.integers(1, 40, count)
    return [
        shared[: int(n) // 2] + random.integers(1, VOCABULARY, int(n)).tolist() for n in lengths
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(
    "limits", [{}, {"num_blocks": 18}, {"prefill_chunk": 5}, {"num_blocks": 28, "state_pages": 5}]
)
def test_every_request_gets_its_tokens(depth: int, limits: dict[str, int]) -> None:
    engine = Engine(depth=depth, **limits)
    asked = prompts(30)
    for number, prompt in enumerate(asked):
        engine.inbox.send(encode_submit(submit(number, prompt, max_tokens=20)))
    streams = engine.run()
    for number, prompt in enumerate(asked):
        assert streams[number].tokens == reference(prompt, 20)
    reasons = {stream.finish for stream in streams.values()}
    assert reasons == {"stop", "length"}
    assert engine.planner.stats()["finished_stop"] > 0


def numbers_of(step: StepBuffers) -> list[int]:
    """The numbers of a step, without the zeros behind them."""
    numbers: list[int] = np.trim_zeros(step.header, "b").tolist()
    return numbers


def test_a_step_is_written_as_the_layout_says() -> None:
    engine = Engine()
    asked = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    engine.inbox.send(
        encode_submit(submit(3, range(1, 7), sampling=pack_sampling(asked, 2**64 - 1)))
    )
    engine.planner.drain(engine.inbox)
    v = engine.spare[0]
    assert engine.planner.plan(engine.buffer) == 1
    assert numbers_of(v) == [1, 6, 1, 2, 0, 6, 6, 1, 0, 1]
    assert v.token_ids[:6].tolist() == [1, 2, 3, 4, 5, 6]
    assert v.positions[:6].tolist() == [0, 1, 2, 3, 4, 5]
    pages = v.page_indices[:2]
    assert v.slot_mapping[:6].tolist() == [pages[p // BLOCK] * BLOCK + p % BLOCK for p in range(6)]
    assert v.query_start[:2].tolist() == [0, 6]
    assert v.page_indptr[:2].tolist() == [0, 2]
    assert v.kv_length[0] == 6
    assert v.sample_rows[0] == 0
    assert v.sample_sequence[0] == v.row_sequence[0]
    row = v.sampling[0]
    rules = [row[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")]
    assert rules == [np.float32(0.5), 7, np.float32(0.9), np.float32(0.1), 2**64 - 1]
    assert v.sample_position[0] == 6
    assert (v.logit_start[:2].tolist(), v.logit_row[0]) == ([0, 1], 0)
    assert (v.logit_token[0], v.mask_row[0]) == (5, -1)
    # The next step is planned before the token is known: the device fills it in.
    assert engine.planner.plan(engine.buffer) == 1
    assert numbers_of(v) == [1, 1, 1, 2, 1, 1, 7, 2, 0, 1, 0, 0, 1]
    assert (v.feed_token[0], v.feed_sequence[0]) == (0, v.row_sequence[0])
    assert engine.planner.stats()["in_flight"] == 2


def test_a_step_says_where_states_are() -> None:
    engine = Engine(state_pages=3)
    engine.inbox.send(encode_submit(submit(1, range(1, 15), max_tokens=1)))
    engine.planner.drain(engine.inbox)
    v = engine.spare[0]
    assert engine.planner.plan(engine.buffer) == 1
    own, snapshot = v.state_slot[0], v.snapshot_slot[0]
    assert (v.state_source[0], v.state_accepted[0], v.state_drafts[0]) == (NO_SLOT, 0, 0)
    assert (v.snapshot_tokens[0], len({own, snapshot, NO_SLOT})) == (14 // BLOCK * BLOCK, 3)
    engine.execute()
    engine.commit()
    engine.inbox.send(encode_submit(submit(2, range(1, 17), max_tokens=1)))
    engine.planner.drain(engine.inbox)
    v = engine.spare[0]
    assert engine.planner.plan(engine.buffer) == 1
    assert (v.state_source[0], v.num_tokens) == (snapshot, 16 - 14 // BLOCK * BLOCK)
    assert v.state_slot[0] not in (snapshot, NO_SLOT)


def test_states_are_asked_of_the_allocator_and_the_layout_alike() -> None:
    with_states = KvAllocator(64, 4, True, [("full", 1, 0), ("state", 0, 3)])
    for allocator, states, interval, error in (
        (with_states, False, 0, "only the KV cache has states"),
        (KvAllocator(64, 4), True, 0, "only the step layout has states"),
        (with_states, True, 6, "snapshot_interval is 6"),
    ):
        layout = StepLayout(64, 8, 64, vocab_size=50, states=states)
        with pytest.raises(ValueError, match=error):
            Planner(
                allocator,
                layout,
                Mailbox(1 << 16),
                max_sequences=8,
                max_tokens_per_step=64,
                max_context=200,
                max_waiting=100,
                snapshot_interval=interval,
            )


def test_fields_are_aligned_and_disjoint() -> None:
    layout = StepLayout(37, 5, 11, vocab_size=50)
    end = 0
    for name, (dtype, offset, length) in layout.fields().items():
        assert offset % 64 == 0, name
        assert offset >= end, name
        end = offset + length * np.dtype(dtype).itemsize
    assert end <= layout.nbytes < end + 64


def test_an_abort_frees_everything_at_once() -> None:
    engine = Engine()
    engine.inbox.send(encode_submit(submit(1, range(1, 20), max_tokens=100)))
    engine.step()
    engine.step()
    engine.inbox.send(encode_abort(RequestKey(0, 1)))
    engine.inbox.send(encode_abort(RequestKey(0, 99)))
    engine.planner.drain(engine.inbox)
    assert engine.allocator.counts()[2] == 0
    assert engine.run()[1].finish == "abort"


def test_a_stop_string_ends_a_request_silently() -> None:
    engine = Engine()
    engine.inbox.send(encode_submit(submit(1, range(1, 20), max_tokens=100)))
    engine.step()
    engine.inbox.send(msgspec.msgpack.encode(("stop_matched", (0, 1))))
    assert engine.run()[1].finish is None
    assert engine.planner.stats()["finished_stop"] == 1


def test_cached_tokens_are_told() -> None:
    engine = Engine()
    for number in (1, 2):
        engine.inbox.send(encode_submit(submit(number, range(1, 30))))
        engine.run()
    assert (engine.streams[1].cached, engine.streams[2].cached) == (0, 28)
    assert engine.streams[1].tokens == engine.streams[2].tokens
    stats = engine.planner.stats()
    assert (stats["prompt_tokens"], stats["cached_tokens"]) == (58, 28)


def test_generated_tokens_come_back_as_they_were() -> None:
    whole = reference(range(1, 9), 10)
    engine = Engine()
    for known in range(len(whole) + 1):
        tokens = [*range(1, 9), *whole[:known]]
        engine.inbox.send(encode_submit(submit(known, tokens, prompt_length=8)))
    for known, stream in engine.run().items():
        assert stream.tokens == whole[known:]


def test_foreign_messages_come_back_raw() -> None:
    engine = Engine()
    body = encode_submit(submit(1, [1, 2]))
    foreign = [msgspec.msgpack.encode(("evict", 3)), b"", b"\x92\xa6submit\xc0", body]
    engine.inbox.send(body)
    for message in foreign:
        engine.inbox.send(message)
    assert engine.planner.drain(engine.inbox) == foreign
    engine.run()


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": b""},
        {"prompt_length": 0},
        {"prompt_length": 9},
        {"tokens": b"\xff" * 8},
        {"tokens": b"123"},
    ],
)
def test_a_submit_that_makes_no_sense_ends_with_an_error(changes: dict[str, Any]) -> None:
    engine = Engine()
    engine.inbox.send(encode_submit(msgspec.structs.replace(submit(1, [1, 2]), **changes)))
    assert engine.run()[1].finish == "error"


def test_a_full_mailbox_holds_the_engine_back_and_loses_nothing() -> None:
    engine = Engine(mailbox=4096, max_tokens_per_step=64)
    asked = prompts(60, seed=1)
    for number, prompt in enumerate(asked):
        engine.inbox.send(encode_submit(submit(number, prompt, stop=("x" * 200,))))
    engine.planner.drain(engine.inbox)
    assert engine.planner.stats()["outbox"] > 0
    assert engine.planner.plan(engine.buffer) == 0
    streams = engine.run()
    assert [streams[n].tokens for n in range(60)] == [reference(prompt, 10) for prompt in asked]


def test_a_failed_step_ends_its_requests() -> None:
    engine = Engine(max_sequences=1)
    for number in (1, 2):
        engine.inbox.send(encode_submit(submit(number, range(1, 9))))
    engine.planner.drain(engine.inbox)
    assert engine.planner.plan(engine.buffer) == 1
    assert engine.planner.fail_step("the device failed") == 1
    streams = engine.run()
    assert (streams[1].finish, streams[1].tokens) == ("error", [])
    assert streams[1].notice == "the device failed"
    assert streams[2].tokens == reference(range(1, 9), 10)


def test_abort_all_ends_everything() -> None:
    engine = Engine(max_sequences=2)
    for number in range(5):
        engine.inbox.send(encode_submit(submit(number, range(1, 9))))
    engine.planner.drain(engine.inbox)
    engine.planner.plan(engine.buffer)
    assert engine.planner.abort_all() == 5
    assert {stream.finish for stream in engine.run().values()} == {"error"}
    with pytest.raises(ValueError, match="no step"):
        engine.planner.commit(engine.buffer)


def test_buffers_that_do_not_fit_are_refused() -> None:
    engine = Engine()
    engine.inbox.send(encode_submit(submit(1, [1, 2])))
    engine.planner.drain(engine.inbox)
    with pytest.raises(ValueError, match="bytes"):
        engine.planner.plan(np.zeros(8, dtype=np.uint8))
    with pytest.raises(BufferError):
        engine.planner.plan(bytes(engine.layout.nbytes))
    with pytest.raises(ValueError, match="no step"):
        engine.planner.commit(engine.buffer)
    assert engine.planner.plan(engine.buffer) == 1
    with pytest.raises(ValueError, match="bytes"):
        engine.planner.commit(np.zeros(8, dtype=np.uint8))
    with pytest.raises(ValueError, match="has no -1 tokens"):
        engine.planner.commit(engine.buffer)
    engine.spare[0].counts[:] = 2
    with pytest.raises(ValueError, match="0 drafts"):
        engine.planner.commit(engine.buffer)
    engine.spare[0].step_id += 1
    with pytest.raises(ValueError, match="number 1, not 2"):
        engine.planner.commit(engine.buffer)
    engine.spare[0].step_id -= 1
    engine.execute()
    assert engine.run()[1].tokens == reference([1, 2], 10)


@pytest.mark.parametrize(
    "limits",
    [{"max_sequences": 0}, {"max_tokens_per_step": 65}, {"max_context": 0}, {"max_waiting": 0}],
)
def test_limits_out_of_range_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Engine(**limits)


def test_closed_mailboxes_are_told() -> None:
    engine = Engine()
    engine.inbox.send(encode_submit(submit(1, [1, 2])))
    engine.inbox.close()
    assert engine.planner.drain(engine.inbox) == []
    with pytest.raises(MailboxClosed):
        engine.planner.drain(engine.inbox)
    engine.planner.plan(engine.buffer)
    engine.execute()
    engine.outbox.close()
    engine.commit()
    with pytest.raises(MailboxClosed):
        engine.planner.send()
    engine.planner.check()


def test_a_deadline_is_on_pythons_clock() -> None:
    engine = Engine()
    engine.inbox.send(encode_submit(submit(1, [1, 2], deadline_ns=1)))
    assert engine.run()[1].finish == "timeout"
