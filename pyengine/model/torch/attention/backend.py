"""The interface of attention on torch devices: the cache, what is planned before a step, the call.

A layer's keys and values are [blocks, block_size, kv heads, head_dim] each.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.device.device_step import DeviceStep


class Rehearsal(NamedTuple):
    """A kind of step.

    Attributes:
        variant: What :meth:`AttentionBackend.variant` may say of it.
        rows: Its rows.
        tokens: Their query tokens, as many as rows or more.
    """

    variant: str
    rows: int
    tokens: int


class AttentionBackend(Protocol):
    """Causal attention over a paged cache. One thread at a time.

    Attributes:
        name: What it is called in configurations.
        captures: Whether :meth:`attend` may be captured in a CUDA graph.
    """

    name: str
    captures: bool

    def variant(self, step: DeviceStep) -> str:
        """The kind of plan that the step needs, such as ``decode``; graphs are kept for each."""

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        """Prepare for ``step``: before every forward pass and every replay, outside of the graph.

        Reads ``step.host`` only: nothing is copied from the device.

        Args:
            step: The step, planned but perhaps not yet on the device.
            variant: What :meth:`variant` said.
            rows: Rows of the step, or of its graph's bucket.
            tokens: Its tokens, the bucket's where it is padded.
            captured: Whether :meth:`attend` is captured, or replayed, in a graph of this size.
        """

    def attend(
        self,
        step: DeviceStep,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        tokens: int,
        layer: LayerAttention,
        table: int = 0,
    ) -> None:
        """Attend with the step's queries to what its rows have in the cache of one layer.

        Args:
            step: Planned; its keys and values are stored already.
            queries: [tokens, heads, head_dim]; a token's are in one piece, tokens may be apart.
            keys: [blocks, block_size, kv heads, head_dim].
            values: The same.
            out: [tokens, heads, head_dim], in one piece.
            tokens: Tokens of the step, or of its graph's bucket.
            layer: Scale, window, soft cap and sinks of the layer.
            table: The page table that its cache is in.
        """

    def rehearsals(self) -> Sequence[Rehearsal]:
        """Steps that between them take every kernel that a step or a graph may take.

        Computed at the start, so that no request waits for a compiler.
        """

    def forget(self, variant: str, tokens: int) -> None:
        """The graph of this variant and size is given up: so may be what was planned into.

        Some step of it may still be in flight.
        """
