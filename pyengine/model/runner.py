"""The interface behind which every device stands. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pyengine._core import StepLayout
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.batch import StepBuffers
from pyengine.model.cache_groups import CacheGroup, slots_of, state_pages
from pyengine.model.cache_layers import (
    CacheLayer,
    Keys,
    Latent,
    divided,
    keys_of,
    shares,
    state_floats,
    unit_of,
)
from pyengine.model.dtypes import ITEM_BYTES
from pyengine.telemetry.experts import ExpertLoad

_LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model as the engine needs to know it.

    Attributes:
        name: What it is served as.
        folder: Where its tokenizer is.
        architecture: As its config.json names it.
        vocab_size: Rows of logits; the tokenizer may have fewer.
        max_context: Most tokens of a sequence: the least of what the model, the configuration
            and the KV cache hold.
        eos_token_ids: Tokens that end a sequence.
        hidden_size: Width of the residual stream.
        num_heads: Query heads; 0 where no layer attends.
        dtype: The type of weights and computation: ``float32``, ``bfloat16`` or ``float16``.
        block_size: Tokens in a KV block.
        block_bytes: Bytes of one KV page: keys and values of one block, of as many layers as
            ``cache_groups`` put into one (all of them where no layer has a window), and those of
            the draft model too; see :meth:`page_bytes`.
        layers: For each layer, what it keeps of a sequence.
        cache_groups: The layers by what they keep and for how long, and their page tables.
        attention_sinks: Whether attention has sinks.
        short_context: Sequences of more tokens than this have other rotary angles than shorter ones
            (LongRoPE). The table of angles has this many for the short ones first, then
            those of the long ones; a step's ``positions`` are rows of it. None: all have the same.
        max_draft: Most drafts of a row, which states keep beside them; 0 where nothing drafts.
        num_parameters: The number of parameters of the model; 0 where there are no weights.
        kv_cache_dtype: The KV cache's type: as ``dtype``, or ``float8_e4m3``; empty: ``dtype``.
    """

    name: str
    folder: Path
    architecture: str
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    hidden_size: int
    num_heads: int
    dtype: str
    block_size: int
    block_bytes: int
    layers: tuple[CacheLayer, ...] = ()
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup("full", ((),)),)
    attention_sinks: bool = False
    short_context: int | None = None
    max_draft: int = 0
    num_parameters: int = 0
    kv_cache_dtype: str = ""

    @property
    def attention_layers(self) -> dict[int, Keys]:
        """The layers that attend to keys and values, by their number."""
        kept = {at: keys_of(layer) for at, layer in enumerate(self.layers)}
        return {at: keys for at, keys in kept.items() if keys is not None}

    @property
    def latent_layers(self) -> dict[int, Latent]:
        """The layers that attend to latents, by their number."""
        return {at: layer for at, layer in enumerate(self.layers) if isinstance(layer, Latent)}

    @property
    def state_pages(self) -> int:
        """Pages of a sequence's state; 0 where no layer has one."""
        return state_pages(self.cache_groups)

    def state_bytes(self, ranks: int = 1) -> int:
        """Bytes of a sequence's state in all layers, on one of ``ranks`` ranks."""
        return 4 * state_floats(shares(self.layers, ranks), self.max_draft)

    def page_bytes(self, ranks: int = 1) -> int:
        """Bytes of a page on one of ``ranks`` ranks, without a draft model's.

        Where layers have states, which lie in the same memory, pages are whole cache lines; where
        no layer keeps anything of tokens, a page is a state.
        """
        slots = slots_of(self.cache_groups) * self.block_size
        item = ITEM_BYTES[self.kv_cache_dtype or self.dtype]
        page = slots * unit_of(self.layers) * item // divided(self.layers, ranks)
        state = self.state_bytes(ranks)
        return -(-page // _LINE) * _LINE or state if state else page

    def with_states(self, ranks: int = 1) -> "ModelInfo":
        """The same with the group of the layers' states and the bytes of a page."""
        page, state = self.page_bytes(ranks), self.state_bytes(ranks)
        groups = self.cache_groups
        if state:
            groups = (*groups, CacheGroup("state", (), -(-state // page)))
        return replace(self, cache_groups=groups, block_bytes=page * ranks)


class StepHandle(Protocol):
    """A step in flight."""

    @property
    def start_ns(self) -> int:
        """``time.monotonic_ns()`` at which the device began it; known when it is over."""

    @property
    def end_ns(self) -> int:
        """And ended it. The intervals of a runner's steps do not overlap."""

    @property
    def waited_ns(self) -> tuple[int, int]:
        """From when to when in between it waited for masks or penalties; equal if it did not."""

    def sample(self) -> None:
        """Choose the tokens, now that masks and penalties are in the buffers. Once, before
        ``wait``.

        Does not wait: the device goes on from its forward pass to the sampler. If it raises, the
        step is over, and its set is free again.
        """

    def wait(self) -> StepBuffers:
        """The step's buffers with its results; blocks without the GIL until they are there.

        They are valid until the same set of buffers is launched again. Once per step, in the order
        of the launches.

        Raises:
            Exception: Whatever made the step fail.
        """


class ModelRunner(Protocol):
    """A model on a device. One thread at a time, but for ``close``, which may be any's."""

    @property
    def info(self) -> ModelInfo:
        """Dimensions and data types of the model."""

    @property
    def device(self) -> str:
        """The device in words: its kind (``2 x cpu`` of several ranks), a comma, the rest."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Other facts settled at the start, by name, for the summary."""

    @property
    def overlap(self) -> int:
        """Steps that may be in flight beside the one being committed: 0 where launch computes."""

    @property
    def num_blocks(self) -> int:
        """KV blocks."""

    @property
    def layout(self) -> StepLayout:
        """Layout of the step buffers, for the planner."""

    def buffers(self) -> StepBuffers:
        """The free set of buffers to plan into; ``overlap + 1`` sets take turns.

        Raises:
            RuntimeError: All are in flight.
        """

    def launch(self, buffers: StepBuffers) -> StepHandle:
        """Start the forward pass of ``buffers`` (the set that :meth:`buffers` returned last).

        Steps run in the order of their launches. In each layer the keys and values of all tokens
        of the step are stored before any row attends: a row may read pages that others write.

        If it raises, the step was not begun, or is over, and its set is free again.
        """

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot, for the rows of steps that are launched from now
        on; no row of a step in flight has that slot. Returns the bytes that it takes.

        Raises:
            AdapterError: It does not fit the model, or the device takes none.
        """

    def expert_load(self) -> list[ExpertLoad]:
        """The load of each layer with experts, if there are any, at some moment since the call
        before this one.

        Does not wait for steps in flight.

        Raises:
            Exception: The device failed.
        """

    def close(self) -> None:
        """Give weights, cache and threads back. Idempotent."""


def kind_of(device: str) -> str:
    """The kind of device that ``device`` describes: ``2 x cpu, float32, torch`` is ``cpu``."""
    return device.split(",")[0].split()[-1]
