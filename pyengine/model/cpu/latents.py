"""Attention over latents on the CPU: the Rust kernel, over the pages of the model's pool."""

from typing import Any

import numpy as np

from pyengine._core import CpuTensor
from pyengine.errors import ModelLoadError
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.latent_parts import LatentHeads
from pyengine.model.cache_groups import places
from pyengine.model.cpu.attention import CpuStepTensors
from pyengine.model.cpu.executor import Executor
from pyengine.model.cpu.pool import Pool
from pyengine.model.dtypes import cpu_tensor
from pyengine.model.runner import ModelInfo

MULTIPLE = 8
"""Numbers of a latent that the kernel takes at once."""


class CpuLatents:
    """See :class:`pyengine.model.architectures.latent_parts.Latents`."""

    def __init__(
        self, executor: Executor, info: ModelInfo, pool: Pool, dtype: np.dtype[Any]
    ) -> None:
        self._executor = executor
        self._pool = pool
        self._dtype = dtype
        self._tables = {at: table for at, (table, _) in places(info.cache_groups).items()}

    def attention(self, layer: int, heads: LatentHeads) -> "CpuLatentAttention":
        """The attention of a layer.

        Raises:
            ModelLoadError: Latents of this width are not supported.
        """
        check_latents(heads)
        latents = cpu_tensor(self._pool.latents[layer])
        norm = cpu_tensor(np.array(heads.norm, self._dtype))
        return CpuLatentAttention(self._executor, heads, self._tables[layer], latents, norm)


class CpuLatentAttention:
    """Causal attention of one layer over latents."""

    def __init__(
        self,
        executor: Executor,
        heads: LatentHeads,
        table: int,
        latents: CpuTensor,
        norm: CpuTensor,
    ) -> None:
        self._executor = executor
        self._heads = heads
        self._table = table
        self._latents = latents
        self._norm = norm
        self._angles = cpu_tensor(heads.angles)
        self._temperatures = None if heads.temperatures is None else cpu_tensor(heads.temperatures)

    def __call__(
        self,
        step: CpuStepTensors,
        absorbed: Buffer,
        queries: Buffer,
        column: int,
        latents: Buffer,
        out: Buffer,
        tokens: int,
    ) -> None:
        """Store latents, attend."""
        heads = self._heads
        rotating = queries.tensor[:, column : column + heads.heads * heads.rotated]
        self._executor.program.attend_latents(
            step.attention[self._table],
            absorbed.kernel,
            cpu_tensor(rotating),
            latents.kernel,
            self._norm,
            heads.epsilon,
            self._angles,
            self._latents,
            out.kernel,
            heads.heads,
            heads.scale,
            temperatures=self._temperatures,
        )


def check_latents(heads: LatentHeads) -> None:
    """Check that attention can do latents of this width.

    Raises:
        ModelLoadError: It cannot; says what must hold.
    """
    if heads.rank % MULTIPLE or heads.rotated % 2:
        raise ModelLoadError(
            f"latents of {heads.rank} numbers with {heads.rotated} rotated ones are not supported: "
            f"'kv_lora_rank' must be a multiple of {MULTIPLE} and 'qk_rope_head_dim' even"
        )
