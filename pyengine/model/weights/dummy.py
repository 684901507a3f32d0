"""Weights that are made up on the device: for measuring a model's speed without its files.

Every tensor has the noise of its own name, so that a model is the same at every start and divided
among any number of ranks. Norms are 1, biases 0, all else is normal with the deviation that the
model is initialised with: nothing overflows, and its answers are meaningless.
"""

from types import TracebackType
from typing import Self
from zlib import crc32

import torch

from pyengine.model.weights.sharding import RankWeights, Slices


class DummyWeights(RankWeights):
    """Weights of any shape by any name. One thread at a time."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        rank: int = 0,
        ranks: int = 1,
        *,
        deviation: float = 0.02,
    ) -> None:
        """Weights of this standard deviation; on the device ``meta`` of none, and no memory."""
        super().__init__(device, dtype, rank, ranks)
        self._deviation = deviation

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is held."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """There is everything."""

    def wait(self) -> None:
        """Everything is there when it is asked for."""

    def fill(self, out: torch.Tensor, name: str, shape: tuple[int, ...], part: Slices) -> None:
        """See :class:`RankWeights`."""
        if out.is_meta:
            return
        if len(shape) == 1:
            out.fill_(0.0 if name.endswith("bias") else 1.0)
            return
        noise = torch.Generator(self.device).manual_seed(crc32(name.encode()))
        # The whole, of which a rank keeps its part: so all ranks have parts of the same.
        whole = (
            out if out.shape == shape else torch.empty(shape, dtype=out.dtype, device=out.device)
        )
        whole.normal_(0.0, self._deviation, generator=noise)
        if whole is not out:
            out.copy_(whole[part])
