"""Norms of models on the CPU, and the rotation before them, by Rust kernels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Step
from pyengine.model.architectures.state_parts import GateFunction
from pyengine.model.cpu.executor import Executor
from pyengine.model.dtypes import cpu_tensor


class RmsNorm:
    """Root mean square normalization, with the residual addition before it."""

    def __init__(self, executor: Executor, weight: NDArray[Any], epsilon: float) -> None:
        self._executor = executor
        self._weight = cpu_tensor(weight)
        self._epsilon = epsilon

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        before = None if branch is None else branch.kernel
        self._executor.program.add_rms_norm(
            residual.kernel, before, self._weight, self._epsilon, out.kernel
        )


class LayerNorm:
    """Layer normalization, with the residual addition before it."""

    def __init__(
        self,
        executor: Executor,
        weight: NDArray[Any],
        bias: NDArray[Any] | None,
        epsilon: float,
    ) -> None:
        self._executor = executor
        self._weight = cpu_tensor(weight)
        self._bias = None if bias is None else cpu_tensor(bias)
        self._epsilon = epsilon

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        self._executor.program.add_layer_norm(
            residual.kernel,
            None if branch is None else branch.kernel,
            self._weight,
            self._bias,
            self._epsilon,
            out.kernel,
        )


class CpuGatedNorm:
    """Root mean square normalization of neighbours, with a gate before or behind it."""

    def __init__(
        self,
        executor: Executor,
        weight: NDArray[Any],
        epsilon: float,
        group: int,
        function: GateFunction,
        *,
        gate_first: bool,
    ) -> None:
        self._executor = executor
        self._weight = cpu_tensor(weight)
        self._epsilon = epsilon
        self._group = group
        self._function = function
        self._gate_first = gate_first

    def __call__(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """Change ``x`` [rows, width] in place, by ``gates`` of the same shape."""
        self._executor.program.gated_norm(
            x.kernel,
            gates.kernel,
            self._weight,
            self._epsilon,
            group=self._group,
            function=self._function,
            gate_first=self._gate_first,
        )


class NoNorm:
    """The residual addition alone."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and copy the sum to ``out``."""
        before = None if branch is None else branch.kernel
        self._executor.program.add(residual.kernel, before, out.kernel)


class CpuRotation:
    """Rotation of queries and keys before they are normalized."""

    def __init__(self, executor: Executor, angles: NDArray[np.float32], heads: int) -> None:
        self._executor = executor
        self._angles = cpu_tensor(angles)
        self._heads = heads

    def __call__(self, step: Step, qkv: Buffer, rows: int) -> None:
        """Rotate in place."""
        self._executor.program.rotate(qkv.kernel, step.positions, self._angles, self._heads)


class HeadRmsNorm:
    """Root mean square normalization of queries and keys, in pieces of the weights' length."""

    def __init__(
        self,
        executor: Executor,
        weights: tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None],
        epsilon: float,
        query_width: int,
    ) -> None:
        """The weights are those of queries, keys and values; None: values stay."""
        self._executor = executor
        query, key, value = weights
        self._query_weight = cpu_tensor(query)
        self._key_weight = cpu_tensor(key)
        self._value_weight = None if value is None else cpu_tensor(value)
        self._epsilon = epsilon
        self._query_width = query_width

    def __call__(self, qkv: Buffer, rows: int) -> None:
        """Normalize in place."""
        self._executor.program.head_rms_norm(
            qkv.kernel,
            self._query_weight,
            self._key_weight,
            self._query_width,
            self._epsilon,
            self._value_weight,
        )
