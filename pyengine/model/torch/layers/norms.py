"""Norms of models on torch devices, and the rotation before them."""

import torch

from pyengine.distributed.group import Group
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Step
from pyengine.model.architectures.state_parts import GateFunction
from pyengine.model.torch.attention.paged import rotate
from pyengine.model.torch.device.ops import TorchOps


class TorchNorm:
    """Root mean square normalization, with the residual addition before it."""

    def __init__(self, ops: TorchOps, weight: torch.Tensor, epsilon: float) -> None:
        self._ops = ops
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        self._ops.add_rms_norm(
            residual.tensor[:rows],
            None if branch is None else branch.tensor[:rows],
            self._weight,
            self._epsilon,
            out.tensor[:rows],
        )


class TorchLayerNorm:
    """Layer normalization, with the residual addition before it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float) -> None:
        self._weight = weight
        self._bias = bias
        self._epsilon = epsilon

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        total = residual.tensor[:rows]
        if branch is not None:
            total.add_(branch.tensor[:rows])
        normal = torch.nn.functional.layer_norm(
            total, self._weight.shape, self._weight, self._bias, self._epsilon
        )
        out.tensor[:rows] = normal


class TorchNoNorm:
    """The residual addition alone."""

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and copy the sum to ``out``."""
        total = residual.tensor[:rows]
        if branch is not None:
            total.add_(branch.tensor[:rows])
        out.tensor[:rows] = total


class TorchRotation:
    """Rotation of queries and keys before they are normalized."""

    def __init__(self, angles: torch.Tensor, heads: int) -> None:
        """Rotates by ``angles`` [positions, head_dim], a number of heads of each row."""
        self._angles = angles
        self._heads = heads

    def __call__(self, step: Step, qkv: Buffer, rows: int) -> None:
        """Rotate in place."""
        dim = self._angles.shape[1]
        heads = qkv.tensor[:rows, : self._heads * dim].unflatten(1, (self._heads, dim))
        rotate(heads, self._angles[step.positions[:rows].long()])


class TorchHeadNorm:
    """Root mean square normalization of each query and key head of this rank, or values too."""

    def __init__(
        self,
        ops: TorchOps,
        query_weight: torch.Tensor,
        key_weight: torch.Tensor,
        epsilon: float,
        num_heads: int,
        *,
        values: bool,
    ) -> None:
        self._ops = ops
        self._query_weight = query_weight
        self._key_weight = key_weight
        self._epsilon = epsilon
        self._num_heads = num_heads
        self._values = values

    def __call__(self, qkv: Buffer, rows: int) -> None:
        """Normalize in place."""
        self._ops.head_rms_norm(
            qkv.tensor[:rows], self._query_weight, self._key_weight, self._num_heads, self._epsilon
        )
        if self._values:
            dim = len(self._query_weight)
            kv = (qkv.tensor.shape[1] // dim - self._num_heads) // 2
            values = qkv.tensor[:rows, (self._num_heads + kv) * dim :].unflatten(1, (kv, dim))
            mean = values.float().square().mean(dim=2, keepdim=True)
            values.copy_(values.float() * (mean + self._epsilon).rsqrt())


class WholeNorm:
    """Root mean square normalization of a row's queries as one, and of its keys, over all ranks."""

    def __init__(
        self,
        group: Group,
        query_weight: torch.Tensor,
        key_weight: torch.Tensor,
        epsilon: float,
    ) -> None:
        self._group = group
        self._weights = (query_weight, key_weight)
        self._epsilon = epsilon

    def __call__(self, qkv: Buffer, rows: int) -> None:
        """Normalize in place."""
        query, key = (len(weight) for weight in self._weights)
        parts = qkv.tensor[:rows, : query + key].split((query, key), dim=1)
        squares = torch.stack([part.float().square().sum(1) for part in parts])  # [2, rows]
        self._group.all_reduce(squares)
        for part, weight, total in zip(parts, self._weights, squares, strict=True):
            mean = total / (len(weight) * self._group.size)
            factor = (mean + self._epsilon).rsqrt()[:, None]
            normal = (part.float() * factor).to(part.dtype).float()
            part.copy_(normal * weight.float())


class TorchGatedNorm:
    """See :class:`pyengine.model.architectures.state_parts.GatedNorm`."""

    def __init__(
        self,
        weight: torch.Tensor,
        epsilon: float,
        group: int,
        function: GateFunction,
        *,
        gate_first: bool,
    ) -> None:
        """A norm over groups of ``group`` neighbours; ``weight`` is [width]."""
        self._weight = weight
        self._epsilon = epsilon
        self._group = group
        self._function = torch.sigmoid if function == "sigmoid" else torch.nn.functional.silu
        self._gate_first = gate_first

    def __call__(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """Change ``x`` [rows, width] in place."""
        numbers = x.tensor[:rows].float()
        factors = self._function(gates.tensor[:rows].float())
        if self._gate_first:
            numbers = numbers * factors
        groups = numbers.unflatten(1, (-1, self._group))
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self._epsilon)
        # Rounded before the weight, as transformers does.
        normed = (groups * scale).flatten(1).to(x.tensor.dtype) * self._weight
        x.tensor[:rows] = normed if self._gate_first else normed * factors
