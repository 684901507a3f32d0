"""The paged KV cache on a torch device, and what a layer does to it before a backend attends."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pyengine.model.architectures.parts import Buffer, LayerAttention
from pyengine.model.cache_groups import places, slots_of
from pyengine.model.layer_heads import unit_of
from pyengine.model.runner import ModelInfo
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.ops import TorchOps

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""


class PagedCache:
    """Where each layer's keys and values are.

    Each slot of a page has an array [pages, block_size, kv heads, head_dim] of its own. Where
    layers differ in their heads, all slots are in one array [pages, numbers], and a layer's cache
    is a view of it.

    Attributes:
        num_heads: Query heads of this rank.
        heads: The key and value heads of each layer, over all ranks.
        tables: The page table of each layer.
    """

    def __init__(self, info: ModelInfo, ranks: int) -> None:
        """That of one rank."""
        self.num_heads = info.num_heads // ranks
        self.heads = info.heads
        self._ranks = ranks
        self._block = info.block_size
        self._slots = slots_of(info.cache_groups)
        self._unit = unit_of(info.heads) * info.block_size // ranks
        self._alike = len({(heads.kv_heads, heads.head_dim) for heads in info.heads}) == 1
        found = places(info.cache_groups)
        sources = [
            layer if heads.reads is None else heads.reads for layer, heads in enumerate(info.heads)
        ]
        self.tables = [found[source][0] for source in sources]
        self._first = [found[source][1] for source in sources]

    def arrays(self, pages: int, dtype: torch.dtype, device: torch.device) -> list[Pair]:
        """Memory for so many pages."""
        heads = self.heads[0]
        shape: tuple[int, ...] = (self._block, heads.kv_heads // self._ranks, heads.head_dim)
        count = self._slots
        if not self._alike:
            shape, count = (self._slots * self._unit,), 1

        def zeros() -> torch.Tensor:
            return torch.zeros(pages, *shape, dtype=dtype, device=device)

        return [(zeros(), zeros()) for _ in range(count)]

    def layer(self, layer: int, arrays: Sequence[Pair]) -> Pair:
        """The keys and values that a layer attends to, [pages, block_size, kv heads, head_dim]."""
        first = self._first[layer]
        if self._alike:
            return arrays[first]
        heads = self.heads[layer]
        shape = self._block, heads.kv_heads // self._ranks, heads.head_dim
        start, size = first * self._unit, shape[0] * shape[1] * shape[2]
        keys, values = (each[:, start : start + size] for each in arrays[0])
        return keys.view(len(keys), *shape), values.view(len(values), *shape)


class PagedAttention:
    """Rotation, the cache, and the backend over it."""

    def __init__(
        self,
        backend: AttentionBackend,
        ops: TorchOps,
        device: torch.device,
        cache: PagedCache,
        arrays: list[Pair],
        layers: Sequence[LayerAttention],
    ) -> None:
        """Attention of ``layers``; ``arrays`` are those of ``cache``, and may be exchanged."""
        self._backend = backend
        self._ops = ops
        self._cache = cache
        self._arrays = arrays
        tables = {id(layer.angles): layer.angles for layer in layers}
        angles = {at: torch.from_numpy(table).to(device) for at, table in tables.items()}
        self._angles = [angles[id(layer.angles)] for layer in layers]
        self._temperatures = [
            None if layer.temperatures is None else torch.from_numpy(layer.temperatures).to(device)
            for layer in layers
        ]
        self._layers = [
            layer
            if layer.sinks is None
            else replace(layer, sinks=torch.tensor(layer.sinks, dtype=torch.float32, device=device))
            for layer in layers
        ]

    def __call__(self, layer: int, step: DeviceStep, qkv: Buffer, out: Buffer, tokens: int) -> None:
        """Rotate queries and keys, store keys and values, attend."""
        cache, table = self._cache, self._cache.tables[layer]
        keys, values = cache.layer(layer, self._arrays)
        heads, dim = cache.num_heads, cache.heads[layer].head_dim
        fused, positions, how = qkv.tensor[:tokens], step.positions[:tokens], self._layers[layer]
        if cache.heads[layer].reads is None:
            slots = step.page_tables[table].slot_mapping[:tokens]
            scales = how.key_scale, how.value_scale
            angles = self._angles[layer]
            self._ops.rope_append(fused, angles, positions, slots, keys, values, heads, *scales)
        else:
            rotate(fused.view(tokens, heads, dim), self._angles[layer][positions.long()])
        queries = fused[:, : heads * dim].view(tokens, heads, dim)
        temperatures = self._temperatures[layer]
        if temperatures is not None:
            queries.mul_(temperatures[positions.long()][:, None, None])
        attended = out.tensor[:tokens].view(tokens, heads, dim)
        self._backend.attend(step, queries, keys, values, attended, tokens, how, table)


def rotate(heads: torch.Tensor, angles: torch.Tensor) -> None:
    """Rotate ``heads`` [tokens, heads, head_dim] in place, by ``angles`` [tokens, head_dim]."""
    half = heads.shape[2] // 2
    cosines, sines = angles[:, None, :half], angles[:, None, half:]
    low, high = heads[..., :half].float(), heads[..., half:].float()
    heads.copy_(torch.cat((low * cosines - high * sines, high * cosines + low * sines), dim=2))
