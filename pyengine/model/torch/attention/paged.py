"""What a layer does to the KV cache on a torch device before a backend attends."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.pool import TorchPool
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.ops import TorchOps


class PagedAttention:
    """Rotation, the cache, and the backend over it."""

    def __init__(
        self,
        backend: AttentionBackend,
        ops: TorchOps,
        device: torch.device,
        pool: TorchPool,
        layers: Mapping[int, LayerAttention],
    ) -> None:
        """Attention of ``layers`` over ``pool``, whose memory may be exchanged."""
        self._backend = backend
        self._ops = ops
        self._pool = pool
        tables = {id(layer.angles): layer.angles for layer in layers.values()}
        angles = {at: torch.from_numpy(table).to(device) for at, table in tables.items()}
        self._angles = {at: angles[id(layer.angles)] for at, layer in layers.items()}
        self._temperatures = {
            at: None
            if layer.temperatures is None
            else torch.from_numpy(layer.temperatures).to(device)
            for at, layer in layers.items()
        }
        self._layers = {
            at: layer
            if layer.sinks is None
            else replace(layer, sinks=torch.tensor(layer.sinks, dtype=torch.float32, device=device))
            for at, layer in layers.items()
        }

    def __call__(self, layer: int, step: DeviceStep, qkv: Buffer, out: Buffer, tokens: int) -> None:
        """Rotate queries and keys, store keys and values, attend."""
        pool, table = self._pool, self._pool.tables[layer]
        keys, values = pool.layer(layer)
        heads, dim = pool.num_heads, pool.layers[layer].head_dim
        fused, positions, how = qkv.tensor[:tokens], step.positions[:tokens], self._layers[layer]
        if pool.layers[layer].reads is None:
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
