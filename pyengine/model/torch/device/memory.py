"""The division of a GPU's memory.

::

    ├── others ──┼── weights ──┼─ workspace ─┼─ graphs ─┼────── KV cache ──────┼── free ──┤
    0            └──────────────── gpu_memory_fraction of all ───────────────►│       total

Weights and workspace are measured when the model is loaded and its largest step has been computed
once; graphs get their limit; the KV cache gets the rest, or the size that is set.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pyengine.errors import ConfigError
from pyengine.model.architectures.parts import LOGITS_BYTES
from pyengine.settings.modes import LARGE_GPU_BYTES

FRACTION = 0.9
GRAPH_MIB = 1024

# A slot of the cache is a positive int32.
_MOST_SLOTS = 2**31 - 1

MOST_BLOCKS = 1 << 22
"""Most blocks that a cache gets unasked: each takes some 80 bytes of the host too, and only a model
of no size has so small ones that more would find room."""


@dataclass(frozen=True)
class Measured:
    """A GPU's memory in bytes, as it was measured.

    Attributes:
        total: All that it has.
        others: Taken before the engine began.
        weights: The bytes of the models' weights.
        workspace: Everything else the engine took in its largest step: buffers, libraries, kernels.
    """

    total: int
    others: int
    weights: int
    workspace: int


@dataclass(frozen=True)
class Memory:
    """The division.

    Attributes:
        measured: What was found.
        graphs: Bytes for CUDA graphs.
        cache: Bytes of the KV cache.
        num_blocks: Its blocks.
    """

    measured: Measured
    graphs: int
    cache: int
    num_blocks: int

    @property
    def free(self) -> int:
        """Bytes that stay free."""
        found = self.measured
        return (
            found.total - found.others - found.weights - found.workspace - self.graphs - self.cache
        )

    def __str__(self) -> str:
        found = self.measured
        parts = {
            "weights": found.weights,
            "KV cache": self.cache,
            "graphs": self.graphs,
            "workspace": found.workspace,
            "others": found.others,
            "free": self.free,
        }
        shares = (f"{name} {gibibytes(size)}" for name, size in parts.items() if size)
        return f"{gibibytes(found.total)} GiB: {', '.join(shares)}"


def divide(
    measured: Measured,
    *,
    fraction: float | None,
    graphs: int,
    block_bytes: int,
    block_size: int,
    blocks: int | None = None,
) -> Memory:
    """Divide a GPU's memory.

    Args:
        measured: What was found.
        fraction: Share of all of it that may be taken, that of others counted in.
        graphs: Bytes for CUDA graphs.
        block_bytes: The bytes of one KV block.
        block_size: Tokens in one.
        blocks: How many blocks the cache is to have; None: as many as there is room for.

    Raises:
        ConfigError: There is no room; says how much was wanted by what, and what to change.
    """
    fraction = FRACTION if fraction is None else fraction
    allowed = int(measured.total * fraction)
    left = allowed - measured.others - measured.weights - measured.workspace - graphs
    wanted = max(1, blocks or 0) * block_bytes
    if left < wanted:
        what = "one block of the KV cache" if blocks is None else "the KV cache"
        raise ConfigError(
            f"the GPU has {gibibytes(measured.total)} GiB, of which 'gpu_memory_fraction' allows "
            f"{fraction:g}: {gibibytes(allowed)}. Weights take {gibibytes(measured.weights)}, "
            f"workspace {gibibytes(measured.workspace)}, graphs {gibibytes(graphs)}, others "
            f"{gibibytes(measured.others)}; {what} wants {gibibytes(wanted)}, and "
            f"{gibibytes(max(left, 0))} are left. {_advice(blocks, graphs)}",
            param="gpu_memory_fraction" if blocks is None else "kv_cache_mib",
        )
    if blocks is None:
        blocks = min(left // block_bytes, _MOST_SLOTS // block_size, MOST_BLOCKS)
    return Memory(measured, graphs, blocks * block_bytes, blocks)


@contextmanager
def stage(what: str, advice: str, param: str) -> Iterator[None]:
    """A part of the start; if the memory is out in it, that is said with what to change.

    Raises:
        ConfigError: Instead of torch's OutOfMemoryError.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory is not enough for {what}: {error}. {advice}", param=param
        ) from error


def logits_bytes(device: torch.device) -> int:
    """Most memory of the logits of one call on ``device``: on a large GPU those of a step of the
    ``server`` mode's sequences.
    """
    if device.type != "cuda":
        return LOGITS_BYTES
    large = torch.cuda.get_device_properties(device).total_memory > LARGE_GPU_BYTES
    return 8 * LOGITS_BYTES if large else LOGITS_BYTES


def gibibytes(size: int) -> str:
    """Bytes as a number of GiB for a person: three digits that count."""
    amount = size / 2**30
    return f"{amount:.1f}" if amount >= 10 else f"{amount:.2f}"


def _advice(blocks: int | None, graphs: int) -> str:
    settings = ["raise 'gpu_memory_fraction'", "lower 'max_tokens_per_step'"]
    if blocks is not None:
        settings.insert(0, "lower 'kv_cache_mib' or 'num_blocks'")
    if graphs:
        settings.append("lower 'graph_memory_mib'")
    return (
        f"{', '.join(settings).capitalize()}, set 'kv_cache_dtype' to float8_e4m3, or take a "
        "smaller model."
    )
