"""Paged attention in plain torch: row by row over gathered blocks. The reference, on any device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.backend import Rehearsal
from pyengine.model.torch.device.device_step import DeviceStep


def gathered(cache: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """``cache[pages]``; as bytes, if they are: torch does not index float8 on every device."""
    if cache.dtype.itemsize > 1:
        return cache[pages]
    return cache.view(torch.uint8)[pages].view(cache.dtype)


class TorchAttention:
    """Attention of each row by itself, of any lengths and head counts; an fp8 cache is upcast.

    Attributes:
        name: ``torch``.
        captures: No: how many rows there are and how long they are is known to Python alone.
    """

    name = "torch"
    captures = False

    def __init__(self) -> None:
        # By page table and row: first token, end, tokens in the cache, its pages, and the position
        # of the last token.
        self._rows: list[list[tuple[int, int, int, torch.Tensor, int]]] = []

    def variant(self, step: DeviceStep) -> str:
        """The only one."""
        return "ragged"

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        """Note where the step's rows are.

        Raises:
            ValueError: For a graph, which it cannot be part of.
        """
        if captured:
            raise ValueError("attention in torch cannot be captured in a graph")
        host = step.host
        starts = host.query_start.tolist()
        lasts = host.positions[np.maximum(host.query_start[1 : host.num_rows + 1] - 1, 0)].tolist()
        self._rows = []
        for table in host.page_tables:
            pages, lengths = table.page_indptr.tolist(), table.kv_length.tolist()
            self._rows.append(
                [
                    (
                        *starts[row:][:2],
                        lengths[row],
                        step.page_indices[slice(*pages[row:][:2])],
                        lasts[row],
                    )
                    for row in range(host.num_rows)
                ]
            )

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
        """Softmax(Q K^T * scale) V of each row, over the tokens that the layer's queries see."""
        for first, end, length, pages, last in self._rows[table]:
            query = queries[first:end].transpose(0, 1)  # [heads, queries, head_dim]
            key, value = (
                gathered(cache, pages).flatten(0, 1)[:length].to(queries.dtype).transpose(0, 1)
                for cache in (keys, values)
            )  # [kv heads, length, head_dim]
            allowed = _allowed(end - first, length, layer.window, queries.device)
            if layer.chunk is not None:
                allowed = _of_chunk(end - first, length, last, layer.chunk, queries.device)
            if layer.soft_cap is None and layer.sinks is None:
                attended = scaled_dot_product_attention(
                    query[None],
                    key[None],
                    value[None],
                    attn_mask=allowed,
                    scale=layer.scale * layer.key_scale,
                    enable_gqa=True,
                )[0]
            else:
                attended = _attend(query, key, value, allowed, layer)
            out[first:end] = attended.transpose(0, 1) * layer.value_scale

    def rehearsals(self) -> Sequence[Rehearsal]:
        """Nothing is compiled."""
        return ()

    def forget(self, variant: str, tokens: int) -> None:
        """Nothing is kept for a graph."""


def _allowed(
    queries: int, length: int, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """Which keys each of the last ``queries`` tokens sees, bool [queries, length]; None: all."""
    if queries == 1 and (window is None or window >= length):
        return None
    every = torch.ones(queries, length, dtype=torch.bool, device=device)
    last = length - queries
    return every.tril(last) if window is None else every.tril(last).triu(last + 1 - window)


def _of_chunk(
    queries: int, length: int, last: int, chunk: int, device: torch.device
) -> torch.Tensor:
    """Which keys of its own chunk each query sees, bool [queries, length].

    Position ``last`` is that of the last query and key.
    """
    keys = torch.arange(last + 1 - length, last + 1, device=device)[None, :]
    positions = torch.arange(last + 1 - queries, last + 1, device=device)[:, None]
    return (keys <= positions) & (keys >= positions // chunk * chunk)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    allowed: torch.Tensor | None,
    layer: LayerAttention,
) -> torch.Tensor:
    """Attention with what torch's own has not: soft caps and sinks. [heads, queries, head_dim]."""
    group = len(query) // len(key)
    key, value = (each.repeat_interleave(group, dim=0).float() for each in (key, value))
    scores = query.float() @ key.transpose(1, 2) * (layer.scale * layer.key_scale)
    if layer.soft_cap is not None:
        scores = layer.soft_cap * (scores / layer.soft_cap).tanh()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[1]]
    return (weights @ value).to(query.dtype)
