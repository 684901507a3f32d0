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
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.selection import Capabilities, fault, make_backend, select
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.queue import probe

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
    spec: AttentionSpec, device: torch.device, machine: Capabilities, asked: str = "auto"
) -> Ready:
    """The backend ``asked`` for, or the first that can do it and then does.

    Kernels that are compiled on the machine may fail there. A backend that fails is passed over for
    the next one, unless it was asked for by name.

    Raises:
        ConfigError: See :func:`pyengine.model.torch.attention.selection.select`; or the one asked
            for fails; or one left the device in a state in which no other can be tried.
        Exception: Whatever the last one fails with.
    """
    while True:
        selected = select(spec, machine, asked)
        try:
            backend = make_backend(selected.name, spec, device)
            warm_up(backend, spec, device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = f"it does not work here: {fault(error)}"
            try:
                probe(device)
            except Exception as dead:
                raise ConfigError(
                    f"attention {selected.name!r}: {why}. The GPU fails every call of this process "
                    "since; set 'attention' to another backend",
                    param="attention",
                ) from dead
            if asked != "auto":
                raise ConfigError(f"attention {asked!r}: {why}", param="attention") from error
            if selected.name == "torch":
                raise
            logger.warning("attention %s does not work here", selected.name, exc_info=True)
            machine = replace(machine, faults={**machine.faults, selected.name: why})
        else:
            return Ready(backend, selected.why, machine)


def warm_up(backend: AttentionBackend, spec: AttentionSpec, device: torch.device) -> None:
    """Attend in steps of every kind once, over a cache of one block, and wait for them.

    Args:
        backend: Made for ``spec`` on ``device``; nothing is in flight.
        spec: Heads, and the largest step.
        device: The device of the model.
    """
    if spec.max_context < 2 * spec.block_size:
        return  # a page before every row's queries has no room
    layout = StepLayout(spec.max_tokens, spec.max_rows, spec.max_pages, max_draft=1, vocab_size=1)
    dtype, kv_dtype = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype)
    cache = (1, spec.block_size, spec.num_kv_heads, spec.head_dim)
    with torch.no_grad():
        host = StepBuffers(layout)
        step = DeviceStep(layout, device, host)
        keys, values = (torch.zeros(cache, device=device).to(kv_dtype) for _ in range(2))
        queries, out = (
            torch.zeros(spec.max_tokens, spec.num_heads, spec.head_dim, dtype=dtype, device=device)
            for _ in range(2)
        )
        layer = LayerAttention(angles=np.zeros((0, 0), np.float32), scale=spec.head_dim**-0.5)
        for counts in _steps(spec):
            _fill(host, counts, spec)
            rows, tokens = len(counts), sum(counts)
            step.memory.copy_(torch.from_numpy(host.memory))
            kind = backend.variant(step)
            kinds = [kind]
            if rows > 1 and kind in ("decode", "ragged"):
                kinds.append(f"{kind}_cascade")  # all rows begin with the only page there is
            for variant in kinds:
                backend.plan(step, variant, rows, tokens, captured=False)
                backend.attend(step, queries, keys, values, out, tokens, layer)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _steps(spec: AttentionSpec) -> list[list[int]]:
    """Query tokens by row: few and many rows that decode, that verify drafts, and prompts."""
    rows, tokens = spec.max_rows, spec.max_tokens
    most = min(tokens, spec.max_context - spec.block_size)
    steps = [
        *([1] * count for count in (1, min(2, rows), min(rows, tokens))),
        [min(4, most)],
        [min(4, most)] * min(rows, 4, tokens // 4),
        [min(64, most)],
        [most],
    ]
    return [counts for counts in steps if sum(counts) > 0]


def _fill(host: StepBuffers, counts: list[int], spec: AttentionSpec) -> None:
    """A step of rows with ``counts`` queries behind one full page: page 0, like all others."""
    rows = len(counts)
    lengths = np.array(counts, np.int32) + spec.block_size
    pages = -(-lengths // spec.block_size)
    host.num_rows = host.num_sampled = rows
    host.num_tokens, host.num_pages, host.num_feeds = sum(counts), int(pages.sum()), 0
    host.max_query_length, host.max_kv_length = max(counts), int(lengths.max())
    host.query_start[1 : rows + 1] = np.cumsum(counts)
    host.kv_length[:rows] = lengths
    host.page_indptr[1 : rows + 1] = np.cumsum(pages)
