"""What does plain torch take for the same shape on the same machine?

* ``transformers``: ``generate`` with its static cache, as it comes, without compiling.
* ``torch, CUDA graph``: our own plain model (``plain_llama.py``), its step captured as it is.
* ``torch.compile``: the same, compiled with ``mode="reduce-overhead"``, one sequence, as gpt-fast
  does it. Compiling is reported apart from steps; it comes last, because it may take minutes.

Weights are random, greedy tokens, a cache as long as the context and the tokens that follow.
"""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benches.gpu.engines import Model, engine_config
from benches.gpu.floors import Shape
from benches.gpu.part import Bench, Part
from benches.gpu.plain_llama import made, rope_angles
from pyengine.model.spec import describe

CONTEXT = 512
TOKENS = 64
# Least time that is left for compiling to begin.
COMPILE_S = 45.0


@dataclass(frozen=True)
class Row:
    """One peer and batch.

    Attributes:
        peer: Which.
        sequences: Decoded at once.
        context: Tokens before those that are timed.
        token_s: From one token of a sequence to its next.
        tokens_per_s: Of all sequences.
        floor_s: Of a step, as of ours.
        over_floor: Of the time per token.
        prepare_s: What compiling, or capturing, took.
        note: Why figures are missing.
    """

    peer: str
    sequences: int
    context: int
    token_s: float | None = None
    tokens_per_s: float | None = None
    floor_s: float | None = None
    over_floor: float | None = None
    prepare_s: float | None = None
    note: str | None = None


def run(bench: Bench) -> Generator[Row]:
    """Cheap ones first."""
    model = Model.of(describe(engine_config(bench)))
    batches = (1, 2) if bench.tiny else (1, 8, 32)
    context = 16 if bench.tiny else CONTEXT
    dtype = torch.bfloat16 if bench.cuda else torch.float32

    def row(peer: str, sequences: int, timed: Callable[[], tuple[float, float | None]]) -> Row:
        bench.say(f"{peer}, {sequences} sequences")
        try:
            token, prepare = timed()
        except Exception as error:  # noqa: BLE001 - a peer that fails costs the others nothing
            return Row(peer, sequences, context, note=f"{type(error).__name__}: {error}"[:200])
        floor = bench.floor(lambda c: model.step_s(c, sequences, 1, context + TOKENS / 2))
        return Row(
            peer,
            sequences,
            context,
            token_s=token,
            tokens_per_s=sequences / token,
            floor_s=floor,
            over_floor=None if floor is None else token / floor,
            prepare_s=prepare,
        )

    peer = Transformers(bench, model.shape, dtype)
    for sequences in batches:
        yield row("transformers", sequences, lambda: (peer.token_s(sequences, context), None))  # noqa: B023
    peer.free()
    for sequences in batches:
        yield row(
            "torch, CUDA graph" if bench.cuda else "torch",
            sequences,
            lambda: Plain(bench, model.shape, dtype, sequences, context).captured(),  # noqa: B023
        )
    if not bench.cuda:
        yield Row("torch.compile", 1, context, note="only on a GPU")
    elif bench.left_s < COMPILE_S:
        yield Row("torch.compile", 1, context, note=f"{bench.left_s:.0f} s left are too few")
    else:
        plain = partial(Plain, bench, model.shape, dtype, 1, context)
        yield row("torch.compile", 1, lambda: plain().compiled())


class Transformers:
    """transformers' Llama with random weights."""

    def __init__(self, bench: Bench, shape: Shape, dtype: torch.dtype) -> None:
        self.bench = bench
        self.shape = shape
        self.dtype = dtype
        self.model: Any = None

    def token_s(self, sequences: int, context: int) -> float:
        """Seconds a token: of many tokens, less those of one, which prefills too."""
        few, many = (1, 3) if self.bench.tiny else (1, 1 + TOKENS)
        ids = torch.randint(5, 1000, (sequences, context), device=self.bench.device)
        self._generate(ids, many)
        return (self._generate(ids, many) - self._generate(ids, few)) / (many - few)

    def _generate(self, ids: Tensor, count: int) -> float:
        begin = time.perf_counter()
        self._loaded().generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
            pad_token_id=0,
        )
        self.bench.clock.synchronize()
        return time.perf_counter() - begin

    def _loaded(self) -> Any:
        if self.model is None:
            from transformers import LlamaConfig, LlamaForCausalLM

            shape = self.shape
            config = LlamaConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.hidden,
                intermediate_size=shape.intermediate,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                max_position_embeddings=8192,
                tie_word_embeddings=shape.tied,
                eos_token_id=None,
            )
            before = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
            try:
                with self.bench.device:
                    model: Any = LlamaForCausalLM(config)
                self.model = model.eval().requires_grad_(False)
            finally:
                torch.set_default_dtype(before)
        return self.model

    def free(self) -> None:
        """Give the weights back."""
        self.model = None
        if self.bench.cuda:
            torch.cuda.empty_cache()


class Plain:
    """Our own plain model, with a cache for a number of sequences."""

    def __init__(
        self, bench: Bench, shape: Shape, dtype: torch.dtype, sequences: int, context: int
    ) -> None:
        self.bench = bench
        length = context + TOKENS
        self.tokens = 3 if bench.tiny else TOKENS - 8
        self.context = context
        self.model = made(shape, sequences, length, bench.device, dtype)
        self.angles = rope_angles(shape, length, bench.device)
        self.places = torch.arange(length, device=bench.device)
        self.ids = torch.full((sequences,), 7, device=bench.device)
        self.position = torch.tensor([context], device=bench.device)

    def step(self, model: Callable[..., Tensor]) -> None:
        """One token of each sequence, fed back."""
        chosen = model(self.ids, self.position, self.angles, self.places)
        self.ids.copy_(chosen)
        self.position.add_(1)

    def captured(self) -> tuple[float, float | None]:
        """Seconds a token, of a CUDA graph of the step; and what capturing took."""
        begin = time.perf_counter()
        if not self.bench.cuda:
            return self._timed(lambda: self.step(self.model)), None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(self.model)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(self.model)
        self.bench.clock.synchronize()
        return self._timed(graph.replay), time.perf_counter() - begin

    def compiled(self) -> tuple[float, float | None]:
        """Seconds a token of the compiled step, and what compiling took."""
        begin = time.perf_counter()
        model = torch.compile(self.model, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):  # compiles, warms up, captures
            self.step(model)
        self.bench.clock.synchronize()
        prepare = time.perf_counter() - begin
        return self._timed(lambda: self.step(model)), prepare

    def _timed(self, step: Callable[[], object]) -> float:
        self.position.fill_(self.context)
        step()
        self.bench.clock.synchronize()
        begin = time.perf_counter()
        for _ in range(self.tokens):
            step()
        self.bench.clock.synchronize()
        return (time.perf_counter() - begin) / self.tokens


PART = Part("baselines", "What does plain torch take for the same shape?", 88.0, Row, run)
