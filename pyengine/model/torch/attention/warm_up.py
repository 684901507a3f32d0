"""The kernels of a backend made ready before the first request, which would otherwise wait.

Triton compiles a kernel for each shape of its tiles, FlashInfer's are compiled or fetched at their
first plan: seconds to minutes the first time on a machine, afterwards from the disk.
"""

import logging
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from pyengine._core import StepLayout
from pyengine.errors import ConfigError
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.selection import Capabilities, choose, fault, make_backend
from pyengine.model.torch.attention.spec import AttentionShape
from pyengine.model.torch.device_step import DeviceStep

logger = logging.getLogger("pyengine")


class Ready(NamedTuple):
    """A backend that works.

    Attributes:
        backend: Its kernels are there.
        why: It is this one, in a line.
        machine: What the machine has, as it is known by now.
    """

    backend: AttentionBackend
    why: str
    machine: Capabilities


def ready(
    shape: AttentionShape, device: torch.device, machine: Capabilities, asked: str = "auto"
) -> Ready:
    """The backend ``asked`` for, or the first that can do it and then does.

    What compiles its kernels on the machine finds many ways to fail there; where nobody asked for
    it by name it is passed over then, and the next one is taken.

    Raises:
        ConfigError: See :func:`pyengine.model.torch.attention.selection.choose`; or the one asked
            for fails.
        Exception: Whatever the last one fails with.
    """
    while True:
        choice = choose(shape, machine, asked)
        try:
            backend = make_backend(choice.name, shape, device)
            warm_up(backend, shape, device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = f"it does not work here: {fault(error)}"
            if asked != "auto":
                raise ConfigError(f"attention {asked!r}: {why}", param="attention") from error
            if choice.name == "torch":
                raise
            logger.warning("attention %s does not work here", choice.name, exc_info=True)
            machine = replace(machine, faults={**machine.faults, choice.name: why})
        else:
            return Ready(backend, choice.why, machine)


def warm_up(backend: AttentionBackend, shape: AttentionShape, device: torch.device) -> None:
    """Attend in steps of every kind once, over a cache of one block, and wait for them.

    Args:
        backend: Made for ``shape`` on ``device``; nothing is in flight.
        shape: Heads, and the largest step.
        device: Of the model.
    """
    if shape.max_context < 2 * shape.block_size:
        return  # a page before every row's queries has no room
    layout = StepLayout(
        shape.max_tokens, shape.max_rows, shape.max_pages, max_draft=1, vocab_size=1
    )
    dtype, kv_dtype = getattr(torch, shape.dtype), getattr(torch, shape.kv_dtype)
    cache = (1, shape.block_size, shape.num_kv_heads, shape.head_dim)
    with torch.no_grad():
        host = StepBuffers(layout)
        step = DeviceStep(layout, device, host)
        keys, values = (torch.zeros(cache, device=device).to(kv_dtype) for _ in range(2))
        queries, out = (
            torch.zeros(
                shape.max_tokens, shape.num_heads, shape.head_dim, dtype=dtype, device=device
            )
            for _ in range(2)
        )
        for counts in _steps(shape):
            _fill(host, counts, shape)
            rows, tokens = len(counts), sum(counts)
            step.memory.copy_(torch.from_numpy(host.memory))
            kind = backend.variant(step)
            kinds = [kind]
            if rows > 1 and kind in ("decode", "ragged"):
                kinds.append(f"{kind}_cascade")  # all rows begin with the only page there is
            for variant in kinds:
                backend.plan(step, variant, rows, tokens, captured=False)
                backend.attend(step, queries, keys, values, out, tokens)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _steps(shape: AttentionShape) -> list[list[int]]:
    """Query tokens by row: few and many rows that decode, that verify drafts, and prompts."""
    rows, tokens = shape.max_rows, shape.max_tokens
    most = min(tokens, shape.max_context - shape.block_size)
    steps = [
        *([1] * count for count in (1, min(2, rows), min(rows, tokens))),
        [min(4, most)],
        [min(4, most)] * min(rows, 4, tokens // 4),
        [min(64, most)],
        [most],
    ]
    return [counts for counts in steps if sum(counts) > 0]


def _fill(host: StepBuffers, counts: list[int], shape: AttentionShape) -> None:
    """A step of rows with ``counts`` queries behind one full page: page 0, like all others."""
    rows = len(counts)
    lengths = np.array(counts, np.int32) + shape.block_size
    pages = -(-lengths // shape.block_size)
    host.num_rows = host.num_sampled = rows
    host.num_tokens, host.num_pages, host.num_feeds = sum(counts), int(pages.sum()), 0
    host.max_query_length, host.max_kv_length = max(counts), int(lengths.max())
    host.query_start[1 : rows + 1] = np.cumsum(counts)
    host.kv_length[:rows] = lengths
    host.page_indptr[1 : rows + 1] = np.cumsum(pages)
