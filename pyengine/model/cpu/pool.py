"""The memory of the KV cache on the CPU: pages of keys and values, or of latents, and slots of
states.
"""

import math
import mmap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.cache_groups import places, slots_of
from pyengine.model.cache_layers import slots_by_layer, unit_of
from pyengine.model.runner import ModelInfo


def cache_array(*shape: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros for a KV cache: taken from the system as they are written, in huge pages if it can.

    A cache is read in scattered blocks, and with small pages most blocks would miss the TLB.
    """
    # Python shares a mapping with its children unless told otherwise, and shared pages stay small.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses: the cache is slower then, and as good.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


Cache = tuple[NDArray[Any], NDArray[Any]]
"""Keys [pages, kv heads, head_dim, block_size], values [pages, kv heads, block_size, head_dim]."""


class Pool:
    """The pages of a model; memory is taken from the system as they are used.

    Each slot of a page has an array of its own for keys and one for values. Where layers take
    several slots, all slots are in one array of each, and a layer's cache is a view of it with room
    between blocks::

        page   | layer 0 | layer 1 |      or, under another page table,      |      layer 5      |

    With states there is one array of bytes, pages one behind another, and a state is in
    neighbouring pages::

        page   | keys: layer 0 | layer 1 | values: layer 0 | layer 1 |       and 3 pages of a state:
               |      layer 0's convolution, recurrent state, drafts | layer 2's ...               |

    A latent is key and value in one, and has a layer's whole slot: an array of its own, or where
    there are states a view of the one array.

    Attributes:
        caches: The keys and values of each layer that has some.
        latents: The latents of each layer that has some, [pages, block_size, width].
        states: float32 [slots, floats of a slot]; no slots where no layer has a state.
    """

    def __init__(self, info: ModelInfo, pages: int, dtype: np.dtype[Any]) -> None:
        """Memory for ``pages`` pages of keys and values of ``dtype``."""
        self._info = info
        self.states: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.caches: dict[int, Cache] = {}
        self.latents: dict[int, NDArray[Any]] = {}
        if info.latent_layers and info.attention_layers:
            raise ModelLoadError(
                f"{info.name} has layers with latents and others with keys and values, which are "
                "not supported in one model"
            )
        if info.state_pages:
            self._beside_states(pages, dtype)
        elif info.latent_layers:
            width = unit_of(info.layers) * info.block_size
            slots = [cache_array(pages, width, dtype=dtype) for _ in range(self._page_slots)]
            self.latents = {
                layer: self._latents(layer, slots[at]) for layer, at in self._slots.items()
            }
        else:
            self.caches = self._apart(pages, dtype)

    def _apart(self, pages: int, dtype: np.dtype[Any]) -> dict[int, Cache]:
        info = self._info
        unit, slots = self._unit, self._page_slots
        alone = all(count <= 1 for count in slots_by_layer(info.layers))
        widths = [unit] * slots if alone else [unit * slots]
        arrays = [
            (cache_array(pages, width, dtype=dtype), cache_array(pages, width, dtype=dtype))
            for width in widths
        ]
        return {
            layer: self._cache(layer, arrays[slot if alone else 0], 0 if alone else slot * unit)
            for layer, slot in self._slots.items()
        }

    def _beside_states(self, pages: int, dtype: np.dtype[Any]) -> None:
        info, page = self._info, self._info.page_bytes()
        memory = cache_array(pages, page, dtype=np.dtype(np.uint8))
        slots = pages // info.state_pages
        flat = memory.reshape(-1)[: slots * info.state_pages * page]
        self.states = flat.view(np.float32).reshape(slots, -1)
        numbers = memory.view(dtype)  # [pages, numbers of a page]
        half = self._unit * self._page_slots
        for layer, slot in self._slots.items():
            if layer in info.latent_layers:
                self.latents[layer] = self._latents(layer, numbers[:, 2 * slot * self._unit :])
            else:
                pair = numbers, numbers[:, half:]
                self.caches[layer] = self._cache(layer, pair, slot * self._unit)

    @property
    def _unit(self) -> int:
        """Numbers of a block's keys in one slot of a page, and of its values."""
        return unit_of(self._info.layers) // 2 * self._info.block_size

    @property
    def _page_slots(self) -> int:
        """Slots of a page."""
        return slots_of(self._info.cache_groups)

    @property
    def _slots(self) -> Mapping[int, int]:
        return {layer: slot for layer, (_, slot) in places(self._info.cache_groups).items()}

    def _latents(self, layer: int, slots: NDArray[Any]) -> NDArray[Any]:
        """A layer's view of [pages, numbers], which begins with each page's first number."""
        width, block = self._info.latent_layers[layer].width, self._info.block_size
        return slots[:, : block * width].reshape(len(slots), block, width)

    def _cache(self, layer: int, arrays: Cache, first: int) -> Cache:
        """A layer's views of [pages, numbers], which begin at number ``first`` of each page."""
        heads, block = self._info.attention_layers[layer], self._info.block_size
        keys, values = (each[:, first : first + heads.size * block] for each in arrays)
        kv, dim = heads.kv_heads, heads.head_dim
        return (
            keys.reshape(len(keys), kv, dim, block),
            values.reshape(len(values), kv, block, dim),
        )
