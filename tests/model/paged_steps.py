"""Steps for attention backends: random rows on the host, and the device's side of them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine._core import StepLayout
from pyengine.kernels.attention.paged import Pages
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.batch import StepBuffers
from pyengine.model.step_fields import PageTable
from pyengine.model.torch.attention.spec import AttentionSpec
from tests.attention_reference import attention_reference

FIELDS = ("query_start", "kv_length", "page_indptr", "page_indices")


def layer_of(**how: Any) -> LayerAttention:
    """A layer of heads of 16 elements."""
    given: dict[str, Any] = {"angles": np.zeros((0, 0), np.float32), "scale": 0.25}
    return LayerAttention(**given | how)


def spec_of(**more: Any) -> AttentionSpec:
    given: dict[str, Any] = {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": "float32",
        "kv_dtype": "float32", "block_size": 4, "max_rows": 8, "max_tokens": 32, "max_pages": 64,
        "max_context": 64,
    }  # fmt: skip
    return AttentionSpec(**(given | more))


def layout_of(spec: AttentionSpec) -> StepLayout:
    return StepLayout(spec.max_tokens, spec.max_rows, spec.max_pages, max_draft=4, vocab_size=32)


def fill(
    host: StepBuffers,
    lengths: list[int],
    counts: list[int],
    table: list[list[int]],
) -> None:
    """Write a step of rows with ``lengths`` keys, the last ``counts`` of them with queries."""
    rows, tokens = len(lengths), sum(counts)
    host.num_rows = host.num_sampled = rows
    host.num_tokens, host.num_pages, host.num_feeds = tokens, sum(map(len, table)), 0
    host.max_query_length, host.max_kv_length = max(counts), max(lengths)
    ones = [count == 1 for count in counts]
    host.num_decode_rows = ones.index(False) if False in ones else rows
    host.query_start[: rows + 1] = [0, *np.cumsum(counts)]
    host.kv_length[:rows] = lengths
    host.page_indptr[: rows + 1] = [0, *np.cumsum([len(pages) for pages in table])]
    host.page_indices[: host.num_pages] = [page for pages in table for page in pages]


def random_table(
    random: np.random.Generator, lengths: list[int], block_size: int, blocks: int, shared: int = 0
) -> list[list[int]]:
    """Pages of rows that begin with the same ``shared`` pages."""
    free = random.permutation(blocks).tolist()
    common = [free.pop() for _ in range(shared)]
    return [
        [*common, *[free.pop() for _ in range(-(-length // block_size) - shared)]]
        for length in lengths
    ]


def pad(host: StepBuffers, rows: int, tokens: int) -> None:
    """As :meth:`StepLayout.pad` does."""
    has, used, pages = host.num_rows, host.num_tokens, host.num_pages
    decodes = has == used and rows == tokens
    more = np.arange(1, rows - has + 1) if decodes else np.zeros(rows - has, int)
    host.query_start[has + 1 : rows + 1] = used + more
    host.page_indptr[has + 1 : rows + 1] = pages + more
    host.page_indices[pages : pages + len(more)] = 0
    host.kv_length[has:rows] = int(decodes)


class Step:
    """A step whose device is behind: what is on it is as old as the last :meth:`take`."""

    query_start: torch.Tensor
    kv_length: torch.Tensor
    page_indptr: torch.Tensor
    page_indices: torch.Tensor

    def __init__(self, host: StepBuffers, device: torch.device | str = "cpu") -> None:
        self.host = host
        for name in FIELDS:
            setattr(self, name, torch.from_numpy(getattr(host, name)).clone().to(device))

    @property
    def page_tables(self) -> list[PageTable[torch.Tensor]]:
        return [PageTable(self.kv_length, self.kv_length, self.page_indptr)]

    def take(self) -> None:
        for name in FIELDS:
            getattr(self, name).copy_(torch.from_numpy(getattr(self.host, name)))


def expected(
    arrays: dict[str, NDArray[np.int32]],
    rows: int,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    **mask: Any,
) -> torch.Tensor:
    """What the reference gives, zeros for tokens of no row."""
    out = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
    attention_reference(
        queries, keys, values, Pages(**{name: torch.from_numpy(arrays[name]) for name in FIELDS}),
        out, rows=rows, one_query=False, scale=queries.shape[-1] ** -0.5 * key_scale, **mask,
    )  # fmt: skip
    return out * value_scale
