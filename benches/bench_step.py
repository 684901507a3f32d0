"""Price of a step's scheduling: plan and commit, beside a plain-Python scheduler of the same rules.

Sequences that decode, one step ahead of what is committed, each with a prompt of 500 tokens, stop
tokens and sampling parameters. The clock runs over the calls of plan and commit alone; sampled
tokens are made up, and the detokenizer's mailbox is drained between the steps. Figures are medians
over steps, in microseconds; the peer does the same work with lists, dicts and numpy slices.
What a prompt of 2,048 tokens costs the prefix tree is taken from ``bench_kv_allocator``.

    python benches/bench_step.py [--json PATH]      (- is standard output)
"""

import argparse
import sys
from collections import deque
from statistics import median, quantiles
from time import perf_counter_ns

import msgspec
import numpy as np
from numpy.typing import NDArray

from benches import bench_kv_allocator
from benches.figures import json_option, write_json
from pyengine._core import KvAllocator, Mailbox, Planner, StepLayout
from pyengine.messages import RequestKey, Submit, encode_submit
from pyengine.model.batch import StepBuffers
from pyengine.model.step_fields import SAMPLING_ROW
from pyengine.sampling import SamplingParams, pack_sampling

SEQUENCES = (16, 64, 256, 1024)
BLOCK = 16
PROMPT = 500
STEPS = 300
PEER_STEPS = 60
BUDGET = 8192
CONTEXT = 4096
PAGES_EACH = (PROMPT + STEPS + 200) // BLOCK

Views = dict[str, NDArray[np.generic]]


def submit(number: int) -> Submit:
    tokens = np.arange(PROMPT, dtype="<u4") + number * PROMPT
    return Submit(
        key=RequestKey(0, number),
        tokens=tokens.tobytes(),
        prompt_length=PROMPT,
        max_tokens=CONTEXT - PROMPT,
        sampling=pack_sampling(SamplingParams(temperature=0.8, top_p=0.95), number),
        skip_special_tokens=True,
        stop_token_ids=(1, 2),
        stop=("\n\n",),
        tenant=number % 4,
        arrival_ns=number,
    )


class Row:
    """A sequence of the peer."""

    def __init__(self, request: Submit, index: int) -> None:
        self.request = request
        self.index = index
        self.tokens = np.frombuffer(request.tokens, "<u4").tolist()
        self.blocks: list[int] = []
        self.planned = 0
        self.pending = 0
        self.rules = np.frombuffer(request.sampling, SAMPLING_ROW)[0]
        self.limit = min(request.prompt_length + request.max_tokens, CONTEXT)


class PlainScheduler:
    """The peer: decodes first, then prefills in chunks, then admission, into the same buffers."""

    def __init__(self, num_blocks: int, views: Views, max_sequences: int) -> None:
        self.free = list(range(num_blocks))
        self.views = views
        self.indices = list(range(max_sequences))
        self.waiting: deque[Submit] = deque()
        self.running: list[Row] = []
        self.flights: deque[list[tuple[Row, bool]]] = deque()
        self.encoder = msgspec.msgpack.Encoder()
        self.out: list[object] = []
        self.sent = b""

    def plan(self, _buffers: memoryview) -> int:
        """Choose the rows of a step and write them to the views."""
        budget = BUDGET
        chosen: list[tuple[Row, int]] = []
        decodes: list[Row] = []
        prefills: list[Row] = []
        for row in self.running:
            total = len(row.tokens) + row.pending
            if total < row.limit and row.planned < total:
                (decodes if total - row.planned == 1 else prefills).append(row)
        for row in decodes:
            budget -= 1
            while len(row.blocks) * BLOCK < row.planned + 1:
                row.blocks.append(self.free.pop())
            chosen.append((row, 1))
        while self.waiting and self.indices and len(self.free) * BLOCK > 2 * PROMPT:
            row = Row(self.waiting.popleft(), self.indices.pop())
            row.blocks = [self.free.pop() for _ in range(-(-len(row.tokens) // BLOCK))]
            self.running.append(row)
            prefills.append(row)
        for row in prefills:
            count = min(budget, len(row.tokens) - row.planned)
            if count > 0:
                budget -= count
                chosen.append((row, count))
        if not chosen:
            return 0
        self.flights.append(self.fill(chosen))
        return len(chosen)

    def fill(self, chosen: list[tuple[Row, int]]) -> list[tuple[Row, bool]]:
        """Write the rows, and say which of them sample."""
        views = self.views
        flight = []
        at = page_at = sampled = feeds = longest = 0
        views["query_start"][0] = views["page_indptr"][0] = 0
        for number, (row, count) in enumerate(chosen):
            start, end = row.planned, row.planned + count
            known = row.tokens[start:end]
            if len(known) < count:
                views["feed_token"][feeds] = at + count - 1
                views["feed_sequence"][feeds] = row.index
                feeds += 1
                known = [*known, 0]
            blocks = row.blocks
            slots = [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)]
            views["token_ids"][at : at + count] = known
            views["positions"][at : at + count] = range(start, end)
            views["slot_mapping"][at : at + count] = slots
            pages = -(-end // BLOCK)
            views["page_indices"][page_at : page_at + pages] = blocks[:pages]
            at += count
            page_at += pages
            longest = max(longest, end)
            views["query_start"][number + 1] = at
            views["page_indptr"][number + 1] = page_at
            views["kv_length"][number] = end
            views["row_sequence"][number] = row.index
            samples = end == len(row.tokens) + row.pending
            row.planned = end
            if samples:
                views["sample_rows"][sampled] = number
                views["sample_sequence"][sampled] = row.index
                views["sampling"][sampled] = row.rules
                views["sample_position"][sampled] = end
                sampled += 1
                row.pending += 1
            flight.append((row, samples))
        counts = [len(chosen), at, sampled, page_at, feeds, chosen[-1][1], longest]
        views["header"][: len(counts)] = counts
        return flight

    def commit(self, _buffers: memoryview) -> int:
        """Append the tokens and test for ends."""
        tokens = iter(self.views["sampled_tokens"][: len(self.running)].tolist())
        out: list[object] = []
        ended = 0
        for row, samples in self.flights.popleft():
            if not samples:
                continue
            token = next(tokens)
            row.tokens.append(token)
            row.pending -= 1
            finish = None
            if token in row.request.stop_token_ids:
                finish = "stop"
            elif len(row.tokens) >= row.limit:
                finish = "length"
            key = row.request.key
            out.append(((key.frontend, key.request), [token], finish, None, 0))
            if finish:
                self.running.remove(row)
                self.free.extend(row.blocks)
                self.indices.append(row.index)
                ended += 1
        self.out = out
        return ended

    def send(self) -> None:
        """Encode the message."""
        self.sent = self.encoder.encode(("tokens_out", self.out))


def drive(
    scheduler: "Planner | PlainScheduler",
    buffers: list[StepBuffers],
    outbox: Mailbox,
    sequences: int,
    steps: int,
) -> list[int]:
    """Nanoseconds of plan, commit and send in each of ``steps`` steps in which all decode."""
    flights: deque[StepBuffers] = deque()
    times: list[int] = []
    while len(times) < steps:
        step = buffers[0]
        buffers.reverse()
        start = perf_counter_ns()
        scheduler.plan(step.memory.data)
        planned = perf_counter_ns() - start
        step.sampled_tokens[:], step.sampled_counts[:] = 7, 1
        decoding = step.num_tokens == sequences == step.num_feeds
        flights.append(step)
        if len(flights) < 2:
            continue
        results = flights.popleft().memory.data
        start = perf_counter_ns()
        scheduler.commit(results)
        scheduler.send()
        total = planned + perf_counter_ns() - start
        outbox.drain()
        if decoding:
            times.append(total)
    return times


def measure(sequences: int, *, plain: bool) -> list[int]:
    """Time steps of ``sequences`` sequences, by the planner or by its peer."""
    num_blocks = sequences * PAGES_EACH
    layout = StepLayout(BUDGET, sequences, num_blocks, vocab_size=151_936)
    buffers = [StepBuffers(layout), StepBuffers(layout)]
    outbox = Mailbox(1 << 20)
    if plain:
        peer = PlainScheduler(num_blocks, vars(buffers[0]), sequences)
        peer.waiting.extend(submit(number) for number in range(sequences))
        return drive(peer, 2 * buffers[:1], outbox, sequences, PEER_STEPS)
    planner = Planner(
        KvAllocator(num_blocks, BLOCK),
        layout,
        outbox,
        max_sequences=sequences,
        max_tokens_per_step=BUDGET,
        max_context=CONTEXT,
        max_waiting=sequences,
    )
    inbox = Mailbox(1 << 20)
    for number in range(sequences):
        inbox.send(encode_submit(submit(number)))
        planner.drain(inbox)
        outbox.drain()
    return drive(planner, buffers, outbox, sequences, STEPS)


def main() -> None:
    """Measure, print a table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    json_option(parser)
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    lines = ["sequences   plan+commit µs   p99 µs   plain Python µs   ratio"]
    for sequences in SEQUENCES:
        times = measure(sequences, plain=False)
        step, late = median(times) / 1000, quantiles(times, n=100)[98] / 1000
        peer = median(measure(sequences, plain=True)) / 1000
        figures[f"step_us_{sequences}"] = round(step, 2)
        figures[f"step_us_{sequences}_p99"] = round(late, 2)
        figures[f"plain_python_step_us_{sequences}"] = round(peer, 1)
        figures[f"ratio_{sequences}"] = round(peer / step, 1)
        lines.append(
            f"{sequences:9}   {step:14.1f}   {late:6.1f}   {peer:15.1f}   {peer / step:5.1f}x"
        )
    prefixes = bench_kv_allocator.bench()  # the worst of its trees of 10, 1,000 and 10,000 prompts
    for name in ("prefix_match_us_2048", "prefix_insert_us_2048"):
        figures[name] = round(float(prefixes[name]), 2)
        lines.append(f"{name}: {figures[name]} µs")
    free = write_json(figures, arguments.json)
    print("\n".join(lines), file=sys.stdout if free else sys.stderr)


if __name__ == "__main__":
    main()
