"""The interface behind which every device stands. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.cache_groups import CacheGroup
from pyengine.model.layer_heads import LayerHeads
from pyengine.telemetry.experts import ExpertLoad


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
        num_layers: Transformer layers.
        hidden_size: Width of the residual stream.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Elements of a head.
        dtype: Of weights and computation: ``float32``, ``bfloat16`` or ``float16``.
        block_size: Tokens in a KV block.
        block_bytes: Bytes of one KV page: keys and values of one block, of as many layers as
            ``cache_groups`` put into one (all of them where no layer has a window), and those of
            the draft model too.
        windows: For each layer, the tokens that a query sees, its own counted in; None is all
            before it. Empty where there are no layers.
        chunks: For each layer, the positions of a chunk that a query does not see beyond; None is
            no chunks. Empty where no layer has them. Such a layer has a window of as many tokens.
        layer_heads: The key and value heads of each layer, where they differ; else empty.
        cache_groups: The layers by how long their keys and values are kept, and their page tables.
        attention_sinks: Whether attention has sinks.
        short_context: Sequences of more tokens have other rotary angles than those of up to so many
            (LongRoPE). The table of angles has first those of the short ones, so many, then
            those of the long ones; a step's ``positions`` are rows of it. None: all have the same.
        num_parameters: Of the model; 0 where there are no weights.
        kv_cache_dtype: Of the KV cache: as ``dtype``, or ``float8_e4m3``; empty is as ``dtype``.
    """

    name: str
    folder: Path
    architecture: str
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    block_bytes: int
    windows: tuple[int | None, ...] = ()
    chunks: tuple[int | None, ...] = ()
    layer_heads: tuple[LayerHeads, ...] = ()
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup(None, ((),)),)
    attention_sinks: bool = False
    short_context: int | None = None
    num_parameters: int = 0
    kv_cache_dtype: str = ""

    @property
    def heads(self) -> tuple[LayerHeads, ...]:
        """The key and value heads of each layer."""
        return self.layer_heads or (LayerHeads(self.num_kv_heads, self.head_dim),) * self.num_layers


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
    def moves_rows(self) -> bool:
        """Whether rows may follow drafts of the step before that are not verified yet: a step's
        ``assumed_drafts`` are honoured.
        """

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
