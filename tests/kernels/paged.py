"""Steps over a paged cache for the tests of attention: random rows, lengths and page tables."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pyengine.kernels.attention.paged import Pages
from pyengine.kernels.attention.tiling import Heads
from tests.attention_reference import attention_reference
from tests.kernels.backends import DEVICE


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=DEVICE)


@dataclass
class PagedCase:
    """A step and the cache that it attends to."""

    heads: Heads
    lengths: list[int]
    counts: list[int]
    queries: torch.Tensor  # [tokens, heads, dim], within a wider buffer
    keys: torch.Tensor  # [blocks, block_size, kv heads, dim]
    values: torch.Tensor
    pages: Pages

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def scale(self) -> float:
        return float(self.heads.dim**-0.5)

    @property
    def positions(self) -> torch.Tensor:
        """Of the queries, int32 [tokens], where pages begin with a sequence's first token."""
        rows = zip(self.lengths, self.counts, strict=True)
        return int32([at for length, count in rows for at in range(length - count, length)])

    @property
    def one_query(self) -> bool:
        return all(count == 1 for count in self.counts)

    def reference(self, **mask: Any) -> torch.Tensor:
        """What the reference gives; NaN for tokens of no row."""
        out = torch.full(self.queries.shape, float("nan"), device=DEVICE).to(self.heads.dtype)
        attention_reference(
            self.queries, self.keys, self.values, self.pages, out,
            rows=self.rows, one_query=self.one_query, scale=self.scale, **mask,
        )  # fmt: skip
        return out


def paged_case(
    heads: Heads,
    lengths: list[int],
    counts: list[int],
    *,
    block_size: int = 16,
    shared_pages: int = 0,
    seed: int = 0,
) -> PagedCase:
    """Rows of ``lengths`` keys, the last ``counts`` of which have queries.

    All rows begin with the same ``shared_pages``; other pages are their own, anywhere. Pages that
    no row has are NaN.
    """
    random = np.random.default_rng(seed)
    needed = [-(-length // block_size) for length in lengths]
    blocks = sum(needed) + 3
    free = random.permutation(blocks).tolist()
    shared = [free.pop() for _ in range(shared_pages)]
    table = [[*shared, *[free.pop() for _ in range(n - shared_pages)]] for n in needed]
    generator = torch.Generator(DEVICE).manual_seed(seed)
    caches = []
    for _ in range(2):
        shape = (blocks, block_size, heads.kv, heads.dim)
        cache = torch.randn(shape, generator=generator, device=DEVICE).to(heads.kv_dtype)
        cache[free] = torch.full((), float("nan"), device=DEVICE).to(heads.kv_dtype)
        caches.append(cache)
    wide = torch.randn(
        sum(counts), (heads.query + 2 * heads.kv) * heads.dim, generator=generator, device=DEVICE
    ).to(heads.dtype)
    queries = wide[:, : heads.query * heads.dim].unflatten(1, (heads.query, heads.dim))
    pages = Pages(
        query_start=int32([0, *np.cumsum(counts)]),
        kv_length=int32(lengths),
        page_indptr=int32([0, *np.cumsum([len(row) for row in table])]),
        page_indices=int32([page for row in table for page in row]),
    )
    return PagedCase(heads, lengths, counts, queries, caches[0], caches[1], pages)
