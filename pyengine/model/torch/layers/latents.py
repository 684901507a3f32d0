"""Attention over latents in plain torch, row by row: the reference of the CPU's kernel.

Rows are told on the host: on a GPU each would wait for the step, so that such models are refused
there.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.latent_parts import LatentHeads
from pyengine.model.torch.attention.paged import rotate
from pyengine.model.torch.attention.pool import TorchPool
from pyengine.model.torch.device.device_step import DeviceStep


class TorchLatents:
    """See :class:`pyengine.model.architectures.latent_parts.Latents`."""

    def __init__(self, pool: TorchPool, device: torch.device) -> None:
        self._pool = pool
        self._device = device

    def attention(self, layer: int, heads: LatentHeads) -> "TorchLatentAttention":
        """In plain torch."""
        return TorchLatentAttention(self._pool, layer, heads, self._device)


class TorchLatentAttention:
    """Causal attention of one layer over latents."""

    def __init__(
        self, pool: TorchPool, layer: int, heads: LatentHeads, device: torch.device
    ) -> None:
        self._pool = pool
        self._layer = layer
        self._heads = heads
        self._norm = torch.from_numpy(heads.norm.astype("float32")).to(device)
        self._angles = torch.from_numpy(heads.angles).to(device)
        factors = heads.temperatures
        self._temperatures = None if factors is None else torch.from_numpy(factors).to(device)

    def __call__(
        self,
        step: DeviceStep,
        absorbed: Buffer,
        queries: Buffer,
        column: int,
        latents: Buffer,
        out: Buffer,
        tokens: int,
    ) -> None:
        """Store latents, attend."""
        how, positions = self._heads, step.positions[:tokens].long()
        angles, table = self._angles[positions], step.page_tables[self._pool.tables[self._layer]]
        cache = self._pool.latent_layer(self._layer)
        stored = self._stored(latents.tensor[:tokens], angles)
        _, block, width = cache.shape
        slots = table.slot_mapping[:tokens].long()
        cache[slots // block, slots % block] = stored.to(cache.dtype)
        turned = queries.tensor[:tokens, column : column + how.heads * how.rotated]
        turned = turned.reshape(tokens, how.heads, how.rotated).float()
        rotate(turned, angles)
        query = torch.cat((absorbed.tensor[:tokens].view(tokens, how.heads, -1), turned), dim=2)
        query = query * how.scale  # [tokens, heads, rank + rotated]
        if self._temperatures is not None:
            query = query * self._temperatures[positions][:, None, None]
        for row, first, end in rows_of(step):
            found = cache[
                step.page_indices[slice(*table.page_indptr[row : row + 2].tolist())].long()
            ]
            keys = found.reshape(-1, width)[: int(table.kv_length[row])].float()  # [keys, width]
            scores = query[first:end].float() @ keys.T  # [queries, heads, keys]
            seen = torch.ones(end - first, len(keys), dtype=torch.bool, device=keys.device)
            hidden = ~seen.tril(len(keys) - (end - first))
            weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(dim=-1)
            attended = weights @ keys[:, : how.rank]
            out.tensor[first:end] = attended.reshape(end - first, -1).to(out.tensor.dtype)

    def _stored(self, rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """What the cache has of tokens: the normalized latent, and the rotated key."""
        how = self._heads
        latent, key = rows[:, : how.rank].float(), rows[:, how.rank :].float()
        mean = latent.square().mean(dim=1, keepdim=True)
        normed = (latent * (mean + how.epsilon).rsqrt()).to(rows.dtype) * self._norm
        turned = key[:, None].clone()
        rotate(turned, angles)
        return torch.cat((normed, turned[:, 0]), dim=1)


def rows_of(step: DeviceStep) -> Iterator[tuple[int, int, int]]:
    """The number of each row of a step, its first token and its end."""
    starts = step.query_start[: step.host.num_rows + 1].tolist()
    for row, (first, end) in enumerate(pairwise(starts)):
        if end > first:
            yield row, first, end
