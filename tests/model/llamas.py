"""Random small models, and a loop over a runner with the simplest of block tables."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from pyengine._core import NO_SLOT, StepLayout
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.spec import describe, in_one_page
from pyengine.model.step_fields import sampling_rows
from pyengine.settings.config import EngineConfig

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def make_llama(folder: Path, *, shard: str = "1GB", dtype: str = "float32", **changes: Any) -> Any:
    """Save a random Llama to ``folder`` and return transformers' own."""
    return make_model(folder, LlamaConfig, shard=shard, dtype=dtype, **changes)


def make_model(
    folder: Path, kind: Any, *, shard: str = "1GB", dtype: str = "float32", **changes: Any
) -> Any:
    """Save a random model of ``kind``, a configuration of transformers, and return its model."""
    torch.manual_seed(len(changes) + 17)
    config = kind(**(SMALL | changes))
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def make_runner(
    folder: Path,
    *,
    dtype: str = "float32",
    max_tokens: int = 512,
    max_rows: int = 16,
    num_blocks: int = 96,
    block_size: int = 16,
    threads: int = 2,
) -> CpuRunner:
    config = EngineConfig(
        model=str(folder),
        dtype=dtype,  # type: ignore[arg-type]
        num_blocks=num_blocks,
        block_size=block_size,
    )
    spec = describe(config)
    spec = replace(spec, info=in_one_page(spec.info))  # its loop knows one page table
    pages = -(-spec.info.max_context // block_size)
    layout = StepLayout(
        max_tokens,
        max_rows,
        max_rows * pages,
        vocab_size=spec.info.vocab_size,
        states=spec.info.state_pages > 0,
    )
    return CpuRunner(spec, layout, max_sequences=max_rows, threads=threads)


@dataclass
class Sequence:
    """A sequence: its tokens, how many of them are computed, and its blocks."""

    tokens: list[int]
    slot: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    rules: dict[str, float] = field(default_factory=dict)


class Loop:
    """Computed tokens chase total tokens, `chunk` at a time; what is sampled is appended."""

    def __init__(self, runner: Any, chunk: int = 10_000, seed: int = 0) -> None:
        self.runner = runner
        self.chunk = chunk
        # The first pages are the states of as many sequences as a step has rows.
        self.states = runner.info.state_pages
        sequences = len(runner.buffers().state_slot)
        self.free = list(range(self.states * sequences, runner.num_blocks))
        random.Random(seed).shuffle(self.free)

    def step(self, sequences: list[Sequence]) -> None:
        buffers = self.runner.buffers()
        block_size = self.runner.info.block_size
        tokens = pages = sampled = 0
        for row, sequence in enumerate(sequences):
            count = min(self.chunk, len(sequence.tokens) - sequence.computed)
            end = sequence.computed + count
            while len(sequence.blocks) * block_size < end:
                sequence.blocks.append(self.free.pop())
            positions = np.arange(sequence.computed, end)
            here = slice(tokens, tokens + count)
            blocks = np.array(sequence.blocks)
            buffers.token_ids[here] = sequence.tokens[sequence.computed : end]
            buffers.positions[here] = positions
            slots = blocks[positions // block_size] * block_size + positions % block_size
            buffers.slot_mapping[here] = slots
            buffers.query_start[row] = tokens
            buffers.kv_length[row] = end
            buffers.page_indptr[row] = pages
            buffers.page_indices[pages : pages + len(blocks)] = blocks
            buffers.row_sequence[row] = sequence.slot
            if self.states:
                buffers.state_slot[row] = sequence.slot
                buffers.state_source[row] = sequence.slot if sequence.computed else NO_SLOT
                buffers.state_accepted[row] = buffers.state_drafts[row] = 0
                buffers.snapshot_slot[row], buffers.snapshot_tokens[row] = NO_SLOT, 0
            tokens, pages = tokens + count, pages + len(blocks)
            if end == len(sequence.tokens):
                buffers.sample_rows[sampled] = row
                buffers.sample_sequence[sampled] = sequence.slot
                rules = {"temperature": 0.0, **sequence.rules}
                buffers.sampling[sampled : sampled + 1] = sampling_rows(1, **rules)
                buffers.sample_position[sampled] = end
                buffers.logit_start[sampled : sampled + 2] = sampled, sampled + 1
                buffers.logit_row[sampled] = sampled
                buffers.logit_token[sampled] = tokens - 1
                buffers.mask_row[sampled] = -1
                sampled += 1
            sequence.computed = end
        buffers.query_start[len(sequences)] = tokens
        buffers.page_indptr[len(sequences)] = pages
        buffers.num_rows, buffers.num_tokens, buffers.num_pages = len(sequences), tokens, pages
        buffers.num_sampled = buffers.num_logits = sampled
        buffers.num_feeds = buffers.num_masks = 0
        rows = [sequences[row] for row in buffers.sample_rows[:sampled]]
        handle = self.runner.launch(buffers)
        handle.sample()
        for sequence, token in zip(rows, handle.wait().tokens, strict=True):
            sequence.tokens.append(int(token))

    def generate(self, prompts: list[list[int]], count: int, **rules: float) -> list[list[int]]:
        """``count`` tokens after each prompt, all in flight together."""
        sequences = [Sequence(list(p), slot, rules=rules) for slot, p in enumerate(prompts)]
        ends = [len(prompt) + count for prompt in prompts]
        while True:
            left = [s for s, end in zip(sequences, ends, strict=True) if len(s.tokens) < end]
            if not left:
                break
            self.step(left)
        return [s.tokens[len(p) :] for s, p in zip(sequences, prompts, strict=True)]


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers generates greedily, whatever the end-of-sequence token."""
    tokens = list(prompt)
    with torch.inference_mode():
        cache = None
        pending = tokens
        for _ in range(count):
            out = model(torch.tensor([pending]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            pending = [int(out.logits[0, -1].argmax())]
            tokens += pending
    return tokens[len(prompt) :]


def assert_rows_read_what_their_step_writes(runner: Any, model: Any) -> None:
    """Two prompts that begin alike: one row computes what they share, the other reads its pages."""
    shared = (prompts(1)[0] * 90)[: 4 * runner.info.block_size]
    for order in (1, -1):
        loop = Loop(runner)
        first = Sequence([*shared, 7, 8], 0)
        first.blocks = [loop.free.pop() for _ in range(5)]
        second = Sequence([*shared, 9], 1, len(shared), first.blocks[:4])
        sequences = [first, second]
        for _ in range(6):
            loop.step(sequences[::order])
        for sequence, length in ((first, 2), (second, 1)):
            prompt = sequence.tokens[: len(shared) + length]
            assert sequence.tokens[len(prompt) :] == greedy(model, prompt, 6)


def prompts(count: int, vocabulary: int = 131, longest: int = 90) -> list[list[int]]:
    """Prompts of mixed length."""
    numbers = random.Random(5)
    return [
        [numbers.randrange(vocabulary) for _ in range(numbers.randint(1, longest))]
        for _ in range(count)
    ]
