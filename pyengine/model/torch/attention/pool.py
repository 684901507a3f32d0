"""The memory of the KV cache on a torch device: pages of keys and values or latents, and slots of
states.
"""

from collections.abc import Sequence

import torch

from pyengine.errors import ModelLoadError
from pyengine.model.cache_groups import places, slots_of
from pyengine.model.cache_layers import divided, unit_of
from pyengine.model.runner import ModelInfo

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values; of latents, the whole page and nothing."""


class TorchPool:
    """Where each layer's keys and values, or its states, are.

    Each slot of a page has an array [pages, block_size, kv heads, head_dim] of its own. Where
    layers differ in their heads, all slots are in one array [pages, numbers], and a layer's cache
    is a view of it. With states there is one array of bytes [pages, bytes of a page]: see
    :class:`pyengine.model.cpu.pool.Pool`.

    Attributes:
        num_heads: Query heads of this rank.
        layers: The keys and values of each layer that attends to some, over all ranks.
        tables: The page table of each layer that has one.
        caches: Keys and values of each slot of a page, or of whole pages.
        states: float32 [slots, floats of a slot]; no slots where no layer has a state.
    """

    def __init__(
        self, info: ModelInfo, ranks: int, pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Memory of one rank for ``pages`` pages of keys and values of ``dtype``."""
        self.num_heads = info.num_heads // ranks
        self.layers = layers = info.attention_layers
        self._info = info
        self._ranks = ranks
        self._dtype = dtype
        self._device = device
        self._slots = slots_of(info.cache_groups)
        of_ranks = divided(info.layers, ranks)
        self._unit = unit_of(info.layers) // 2 * info.block_size // of_ranks
        if info.latent_layers and layers:
            raise ModelLoadError(
                f"{info.name} has layers with latents and others with keys and values, which are "
                "not supported in one model"
            )
        self._alike = len({(keys.kv_heads, keys.head_dim) for keys in layers.values()}) == 1
        found = places(info.cache_groups)
        sources = {at: at if keys.reads is None else keys.reads for at, keys in layers.items()}
        sources |= {at: at for at in info.latent_layers}
        self.tables = {at: found[source][0] for at, source in sources.items()}
        self._first = {at: found[source][1] for at, source in sources.items()}
        self.caches: list[Pair] = []
        self.states = torch.zeros(0, 0)
        self.resize(pages)

    def resize(self, pages: int) -> None:
        """Replace the memory by that of ``pages`` pages, all zeros."""
        # The old one goes first, and back to the device: there may be no room for both, and torch
        # would keep what it was, in pieces that are of no use for larger ones.
        self.caches.clear()
        self.states = torch.zeros(0, 0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self.caches += self._beside_states(pages) if self._info.state_pages else self._apart(pages)

    def _apart(self, pages: int) -> Sequence[Pair]:
        if self._info.latent_layers:
            return [(self._zeros(pages, 2 * self._half), self._zeros(pages, 0))]
        if not self._alike:
            return [(self._zeros(pages, self._half), self._zeros(pages, self._half))]
        shape = pages, *self._shape(next(iter(self.layers)))
        return [(self._zeros(*shape), self._zeros(*shape)) for _ in range(self._slots)]

    def _beside_states(self, pages: int) -> Sequence[Pair]:
        page, of_state = self._info.page_bytes(self._ranks), self._info.state_pages
        memory = torch.zeros(pages, page, dtype=torch.uint8, device=self._device)
        slots = pages // of_state
        flat = memory.view(-1)[: slots * of_state * page]
        self.states = flat.view(torch.float32).view(slots, -1)
        numbers, half = memory.view(self._dtype), self._half
        if self._info.latent_layers:
            return [(numbers[:, : 2 * half], numbers[:, :0])]
        return [(numbers[:, :half], numbers[:, half : 2 * half])]

    @property
    def _half(self) -> int:
        """Numbers of keys in a page, and of values."""
        return self._slots * self._unit

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=self._dtype, device=self._device)

    def _shape(self, layer: int) -> tuple[int, int, int]:
        """Of a layer's keys in a page: [block_size, kv heads of this rank, head_dim]."""
        keys = self.layers[layer]
        return self._info.block_size, keys.kv_heads // self._ranks, keys.head_dim

    def layer(self, layer: int) -> Pair:
        """The keys and values that a layer attends to, [pages, block_size, kv heads, head_dim]."""
        first = self._first[layer]
        if self._alike and not self._info.state_pages:
            return self.caches[first]
        shape = self._shape(layer)
        start, size = first * self._unit, shape[0] * shape[1] * shape[2]
        keys, values = (each[:, start : start + size] for each in self.caches[0])
        return keys.view(len(keys), *shape), values.view(len(values), *shape)

    def latent_layer(self, layer: int) -> torch.Tensor:
        """The latents that a layer attends to, [pages, block_size, width]."""
        pages, _ = self.caches[0]
        width, block = self._info.latent_layers[layer].width, self._info.block_size
        first = 2 * self._first[layer] * self._unit
        return pages[:, first : first + block * width].view(len(pages), block, width)
