"""The computation of :mod:`pyengine.kernels.attention.paged` in torch, row by row."""

import torch

from pyengine.kernels.attention.paged import Pages
from pyengine.model.torch.attention.torch import gathered


def attention_reference(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: Pages,
    out: torch.Tensor,
    *,
    rows: int,
    one_query: bool,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    positions: torch.Tensor | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """As :func:`pyengine.kernels.attention.paged.attention`; in float32.

    It reads the rows on the host, which waits for the device.
    """
    heads, head_dim = queries.shape[1:]
    block_size, kv_heads = keys.shape[1:3]
    starts = pages.query_start[: rows + 1].tolist()
    if one_query:
        starts = list(range(rows + 1))
    page_starts = pages.page_indptr[: rows + 1].tolist()
    for row, length in enumerate(pages.kv_length[:rows].tolist()):
        here = slice(starts[row], starts[row + 1])
        count = here.stop - here.start
        if count == 0:
            continue
        used = page_starts[row] + -(-length // block_size)
        indices = pages.page_indices[page_starts[row] : used].long()
        # [kv heads, 1, keys, head_dim], beside queries of [kv heads, group, queries, head_dim]
        k = gathered(keys, indices).float().flatten(0, 1)[:length].transpose(0, 1).unsqueeze(1)
        v = gathered(values, indices).float().flatten(0, 1)[:length].transpose(0, 1).unsqueeze(1)
        q = queries[here].float().view(count, kv_heads, heads // kv_heads, head_dim)
        scores = q.permute(1, 2, 0, 3) @ k.transpose(2, 3) * scale
        if soft_cap is not None:
            scores = soft_cap * (scores / soft_cap).tanh()
        position = torch.arange(length - count, length, device=scores.device)
        key = torch.arange(length, device=scores.device)
        hidden = key > position[:, None]
        if window is not None:
            hidden |= key <= position[:, None] - window
        if chunk is not None and positions is not None:
            hidden |= key < position[:, None] - positions[here, None] % chunk
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            own = sinks.float().view(kv_heads, heads // kv_heads, 1, 1)
            scores = torch.cat((scores, own.expand(*scores.shape[:3], 1)), dim=-1)
        weights = scores.softmax(dim=-1)[..., :length]
        # Pages behind a window may hold anything: their values do not count, whatever they are.
        v = v.masked_fill(hidden.all(dim=0)[:, None], 0.0)
        out[here] = (weights @ v).permute(2, 0, 1, 3).reshape(count, heads, head_dim).to(out.dtype)
