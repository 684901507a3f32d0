"""Paged attention in plain torch: row by row over gathered blocks. The reference, on any device."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from pyengine.kernels.attention_reference import gathered
from pyengine.model.torch.device_step import DeviceStep


class TorchAttention:
    """Attention of each row by itself, of any lengths and head counts; an fp8 cache is upcast.

    Attributes:
        name: ``torch``.
        captures: No: how many rows there are and how long they are is known to Python alone.
    """

    name = "torch"
    captures = False

    def __init__(self) -> None:
        # By row: first token, end, tokens in the cache, its pages.
        self._rows: list[tuple[int, int, int, torch.Tensor]] = []

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
        starts, pages = host.query_start.tolist(), host.page_indptr.tolist()
        lengths = host.kv_length.tolist()
        self._rows = [
            (starts[row], starts[row + 1], lengths[row], step.page_indices[slice(*pages[row:][:2])])
            for row in range(host.num_rows)
        ]

    def attend(
        self,
        step: DeviceStep,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        tokens: int,
    ) -> None:
        """Softmax(Q K^T / sqrt(head_dim)) V of each row, over the tokens up to each query's own."""
        for first, end, length, pages in self._rows:
            query = queries[first:end].transpose(0, 1)  # [heads, queries, head_dim]
            key, value = (
                gathered(cache, pages).flatten(0, 1)[:length].to(queries.dtype).transpose(0, 1)
                for cache in (keys, values)
            )  # [kv heads, length, head_dim]
            allowed = None
            if end - first > 1:
                every = torch.ones(end - first, length, dtype=torch.bool, device=queries.device)
                allowed = every.tril(length - (end - first))
            out[first:end] = scaled_dot_product_attention(
                query[None], key[None], value[None], attn_mask=allowed, enable_gqa=True
            )[0].transpose(0, 1)

    def forget(self, variant: str, tokens: int) -> None:
        """Nothing is kept for a graph."""
