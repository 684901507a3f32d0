"""The parts of models on the CPU: the Rust kernels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuExperts, CpuKernels, CpuLinear, CpuProgram, CpuStep, CpuTensor
from pyengine.model.architectures.parts import (
    Activation,
    Buffer,
    LayerAttention,
    Routing,
    check_heads,
)
from pyengine.model.cache_groups import places
from pyengine.model.cpu.attention import make_cache
from pyengine.model.cpu.linear import pack
from pyengine.model.dtypes import cpu_tensor
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.matrix import Matrix


def workspace(rows: int, width: int, dtype: np.dtype[Any]) -> Buffer:
    """A buffer [rows, width] of zeros."""
    array = np.zeros((rows, width), dtype)
    return Buffer(array, cpu_tensor(array))


@dataclass
class CpuStepTensors:
    """A step as the kernels see it: views of one set of step buffers.

    Attributes:
        token_ids: int32 [T].
        logit_token: int32 [L].
        attention: What attention reads, by page table.
    """

    token_ids: CpuTensor
    logit_token: CpuTensor
    attention: list[CpuStep]


class CpuParts:
    """The parts of a model on the CPU. One thread at a time.

    Attributes:
        kernels: The Rust kernels and their threads.
        dtype: Of buffers, cache, and weights that are not quantized.
        max_tokens: Most tokens in a step.
        max_sampled: Most rows whose logits are wanted in a step.
        num_blocks: KV blocks.
        weight_bytes: Of the linear layers and tables made, as they lie in memory.
        executor: Takes the calls of the parts: the kernels, which compute at once, or a program,
            which records them.
    """

    ranks = 1

    def __init__(
        self,
        kernels: CpuKernels,
        dtype: np.dtype[Any],
        max_tokens: int,
        max_sampled: int,
        num_blocks: int,
    ) -> None:
        self.kernels = kernels
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.max_sampled = max_sampled
        self.num_blocks = num_blocks
        self.weight_bytes = 0
        # A head finds its table's weights here; they go once the model is made.
        self._tables: WeakKeyDictionary[Matrix, CpuLinear] = WeakKeyDictionary()
        self.executor: CpuKernels | CpuProgram = kernels

    @contextmanager
    def recording(self) -> Iterator[CpuProgram]:
        """A context: a new program records the calls of the parts made inside."""
        program = CpuProgram(self.kernels)
        self.executor = program
        try:
            yield program
        finally:
            self.executor = self.kernels

    def buffer(self, rows: int, width: int) -> Buffer:
        """Zeros [rows, width]."""
        return workspace(rows, width, self.dtype)

    def table(self, weight: Matrix) -> "Table":
        """By a Rust kernel, from weights that a head may multiply by too."""
        packed = self._tables[weight] = self._pack(weight)
        return Table(self, packed)

    def linear(
        self, weight: Matrix, bias: NDArray[Any] | None = None, *, reduce: bool = False
    ) -> "Linear":
        """By a Rust kernel, in integers where the weights are."""
        return Linear(self, self._pack(weight, bias))

    def head(self, weight: Matrix, info: ModelInfo) -> "Linear":
        """The whole vocabulary."""
        return Linear(self, self._tables.get(weight) or self._pack(weight))

    def _pack(self, weight: Matrix, bias: NDArray[Any] | None = None) -> CpuLinear:
        packed = pack(weight, bias, self.dtype)
        self.weight_bytes += packed.nbytes
        return packed

    def norm(self, weight: NDArray[Any], epsilon: float) -> "RmsNorm":
        """By a Rust kernel."""
        return RmsNorm(self, self.vector(weight), epsilon)

    def layer_norm(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, epsilon: float
    ) -> "LayerNorm":
        """By a Rust kernel."""
        return LayerNorm(
            self, self.vector(weight), None if bias is None else self.vector(bias), epsilon
        )

    def no_norm(self) -> "NoNorm":
        """By a Rust kernel."""
        return NoNorm(self)

    def head_norm(
        self,
        query_weight: NDArray[Any],
        key_weight: NDArray[Any],
        epsilon: float,
        info: ModelInfo,
        *,
        whole: bool = False,
    ) -> "HeadRmsNorm":
        """By a Rust kernel, which normalizes in pieces of the weights' length."""
        query, key = self.vector(query_weight), self.vector(key_weight)
        return HeadRmsNorm(self, query, key, epsilon, info.num_heads * info.head_dim)

    def experts(
        self,
        routing: Routing,
        gate_up: Sequence[Matrix],
        down: Sequence[Matrix],
        activation: Activation,
        bias: NDArray[Any] | None = None,
    ) -> "CpuExpertLayer":
        """By a Rust kernel, which reads the experts that some row chose."""
        return CpuExpertLayer(
            self,
            CpuExperts(
                [self._pack(matrix) for matrix in gate_up],
                [self._pack(matrix) for matrix in down],
                activation.kind,
                limit=activation.limit,
                bias=None if bias is None else [float(number) for number in bias],
                chosen=routing.chosen,
                sigmoid=routing.sigmoid,
                normalized=routing.normalized,
                scale=routing.scale,
                groups=routing.groups,
                chosen_groups=routing.chosen_groups,
            ),
        )

    def vector(self, values: NDArray[Any]) -> NDArray[Any]:
        """A copy of ``values`` in the parts' data type."""
        return np.array(values, self.dtype)

    def attention(self, info: ModelInfo, layers: Sequence[LayerAttention]) -> "Attention":
        """By a Rust kernel, over a cache of the parts' data type."""
        check_heads(info, 8)
        return Attention(self, info, layers)

    def gather(
        self, source: Buffer, index: CpuTensor, out: Buffer, rows: int, first: int = 0
    ) -> None:
        """``out[i] = source[index[first + i]]``."""
        self.executor.gather(source.kernel, index, out.kernel, rows, first)

    def gated(self, activation: Activation, gate_up: Buffer, out: Buffer, rows: int) -> None:
        """activation(gate) * up."""
        kind, limit = activation.kind, activation.limit
        self.executor.gated(kind, gate_up.kernel, out.kernel, rows, limit)

    def activate(self, activation: Activation, x: Buffer, out: Buffer, rows: int) -> None:
        """activation(x)."""
        self.executor.activate(activation.kind, x.kernel, out.kernel, rows)

    def scale(self, x: Buffer, factor: float, rows: int) -> None:
        """Multiply in place."""
        self.executor.scale(x.kernel, factor, rows)

    def soft_cap(self, x: Buffer, cap: float, rows: int) -> None:
        """Cap * tanh(x / cap), in place."""
        self.executor.soft_cap(x.kernel, cap, rows)


class Table:
    """Rows to look up."""

    def __init__(self, parts: CpuParts, packed: CpuLinear) -> None:
        self._parts = parts
        self._packed = packed

    def __call__(self, index: CpuTensor, out: Buffer, rows: int) -> None:
        """``out[i]`` becomes row ``index[i]``."""
        self._parts.executor.gather_weights(self._packed, index, out.kernel, rows)


class Linear:
    """x W^T + b. A row's results do not depend on what other rows there are."""

    def __init__(self, parts: CpuParts, packed: CpuLinear) -> None:
        self._parts = parts
        self._packed = packed

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        self._parts.executor.linear(self._packed, x.kernel, out.kernel, rows)


class CpuExpertLayer:
    """A mixture of experts."""

    def __init__(self, parts: CpuParts, experts: CpuExperts) -> None:
        self._parts = parts
        self._experts = experts

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden]."""
        self._parts.executor.experts(self._experts, logits.kernel, x.kernel, out.kernel, rows)


class RmsNorm:
    """Root mean square normalization, with the residual addition before it."""

    def __init__(self, parts: CpuParts, weight: NDArray[Any], epsilon: float) -> None:
        self._parts = parts
        self._weight = cpu_tensor(weight)
        self._epsilon = epsilon

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        before = None if branch is None else branch.kernel
        self._parts.executor.add_rms_norm(
            residual.kernel, before, self._weight, self._epsilon, out.kernel, rows
        )


class LayerNorm:
    """Layer normalization, with the residual addition before it."""

    def __init__(
        self,
        parts: CpuParts,
        weight: NDArray[Any],
        bias: NDArray[Any] | None,
        epsilon: float,
    ) -> None:
        self._parts = parts
        self._weight = cpu_tensor(weight)
        self._bias = None if bias is None else cpu_tensor(bias)
        self._epsilon = epsilon

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        self._parts.executor.add_layer_norm(
            residual.kernel,
            None if branch is None else branch.kernel,
            self._weight,
            self._bias,
            self._epsilon,
            out.kernel,
            rows,
        )


class NoNorm:
    """The residual addition alone."""

    def __init__(self, parts: CpuParts) -> None:
        self._parts = parts

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and copy the sum to ``out``."""
        before = None if branch is None else branch.kernel
        self._parts.executor.add(residual.kernel, before, out.kernel, rows)


class HeadRmsNorm:
    """Root mean square normalization of queries and keys, in pieces of the weights' length."""

    def __init__(
        self,
        parts: CpuParts,
        query_weight: NDArray[Any],
        key_weight: NDArray[Any],
        epsilon: float,
        query_width: int,
    ) -> None:
        self._parts = parts
        self._query_weight = cpu_tensor(query_weight)
        self._key_weight = cpu_tensor(key_weight)
        self._epsilon = epsilon
        self._query_width = query_width

    def __call__(self, qkv: Buffer, rows: int) -> None:
        """Normalize in place."""
        self._parts.executor.head_rms_norm(
            qkv.kernel, self._query_weight, self._key_weight, self._query_width, self._epsilon, rows
        )


class Attention:
    """Causal attention over a paged cache."""

    def __init__(self, parts: CpuParts, info: ModelInfo, layers: Sequence[LayerAttention]) -> None:
        self._parts = parts
        self._num_heads = info.num_heads
        self._caches = [
            (cpu_tensor(keys), cpu_tensor(values))
            for keys, values in make_cache(info, parts.num_blocks, parts.dtype)
        ]
        self._places = places(info.cache_groups)
        self._layers = list(layers)
        self._angles = [cpu_tensor(layer.angles) for layer in layers]
        self._sinks = [
            None if layer.sinks is None else cpu_tensor(np.array(layer.sinks, np.float32))
            for layer in layers
        ]

    def __call__(
        self, layer: int, step: CpuStepTensors, qkv: Buffer, out: Buffer, tokens: int
    ) -> None:
        """Rotate queries and keys, store keys and values, attend."""
        table, slot = self._places[layer]
        keys, values = self._caches[slot]
        how = self._layers[layer]
        self._parts.executor.attend(
            step.attention[table],
            qkv.kernel,
            self._angles[layer],
            keys,
            values,
            out.kernel,
            self._num_heads,
            how.scale,
            window=how.window,
            soft_cap=how.soft_cap,
            sinks=self._sinks[layer],
        )
