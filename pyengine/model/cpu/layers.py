"""The parts of models on the CPU: the Rust kernels."""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuExperts, CpuKernels, CpuLinear, CpuTensor
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import LOGITS_BYTES, Activation, LayerAttention, check_heads
from pyengine.model.architectures.state_parts import GateFunction
from pyengine.model.cpu.adapters import CpuAdapterSlots
from pyengine.model.cpu.attention import Attention
from pyengine.model.cpu.executor import Executor
from pyengine.model.cpu.experts import make_experts
from pyengine.model.cpu.latents import CpuLatents
from pyengine.model.cpu.linear import pack
from pyengine.model.cpu.norms import (
    CpuGatedNorm,
    CpuRotation,
    HeadRmsNorm,
    LayerNorm,
    NoNorm,
    RmsNorm,
)
from pyengine.model.cpu.pool import Pool
from pyengine.model.cpu.states import CpuStateOps
from pyengine.model.dtypes import cpu_tensor
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.matrix import Matrix


def workspace(rows: int, width: int, dtype: np.dtype[Any]) -> Buffer:
    """A buffer [rows, width] of zeros."""
    array = np.zeros((rows, width), dtype)
    return Buffer(array, cpu_tensor(array))


class CpuParts:
    """The parts of a model on the CPU. One thread at a time.

    Attributes:
        dtype: The type of buffers, cache, and weights that are not quantized.
        max_tokens: Most tokens in a step.
        max_sampled: Most rows whose logits are wanted in a step.
        logits_bytes: See :class:`pyengine.model.architectures.parts.Parts`.
        num_blocks: KV blocks.
        weight_bytes: The bytes of the linear layers and tables made, as they lie in memory.
        expert_layers: The experts of each layer that has some, by its number.
        executor: Takes the calls of the parts.
        adapters: The adapters of the model; None where it has none.
    """

    ranks = 1
    expert_parallel = False

    def __init__(
        self,
        kernels: CpuKernels,
        dtype: np.dtype[Any],
        max_tokens: int,
        max_sampled: int,
        num_blocks: int,
        adapters: CpuAdapterSlots | None = None,
    ) -> None:
        self.adapters = adapters
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.max_sampled = max_sampled
        self.logits_bytes = LOGITS_BYTES
        self.num_blocks = num_blocks
        self.weight_bytes = 0
        # A head finds its table's weights here; they go once the model is made.
        self._tables: WeakKeyDictionary[Matrix, CpuLinear] = WeakKeyDictionary()
        self.expert_layers: dict[int, CpuExperts] = {}
        self.executor = Executor(kernels)
        self._pool: Pool | None = None

    def buffer(self, rows: int, width: int) -> Buffer:
        """Zeros [rows, width]."""
        return workspace(rows, width, self.dtype)

    def table(self, weight: Matrix) -> "Table":
        """By a Rust kernel, from weights that a head may multiply by too."""
        packed = self._tables[weight] = self._pack(weight)
        return Table(self.executor, packed)

    def shared_table(self, weight: Matrix, rows: int) -> "Table":
        """As :meth:`table`, as there is one rank."""
        return self.table(weight)

    def linear(
        self, weight: Matrix, bias: NDArray[Any] | None = None, *, reduce: bool = False
    ) -> "Linear | AdaptedLinear":
        """By a Rust kernel, in integers where the weights are."""
        linear = Linear(self.executor, self._pack(weight, bias))
        number = None if self.adapters is None else self.adapters.layer(weight)
        if self.adapters is None or number is None:
            return linear
        return AdaptedLinear(self.executor, linear, self.adapters, number)

    def linear_by_head(self, weights: Sequence[Matrix]) -> "LinearByHead":
        """By a Rust kernel, a head at a time on each thread."""
        packed = CpuLinear.stacked([self._pack(weight) for weight in weights])
        return LinearByHead(self.executor, packed, len(weights))

    def head(self, weight: Matrix, info: ModelInfo, bias: NDArray[Any] | None = None) -> "Linear":
        """The whole vocabulary."""
        shared = self._tables.get(weight) if bias is None else None
        return Linear(self.executor, shared or self._pack(weight, bias))

    def _pack(self, weight: Matrix, bias: NDArray[Any] | None = None) -> CpuLinear:
        packed = pack(weight, bias, self.dtype)
        self.weight_bytes += packed.nbytes
        return packed

    def norm(self, weight: NDArray[Any], epsilon: float) -> RmsNorm:
        """By a Rust kernel."""
        return RmsNorm(self.executor, self.vector(weight), epsilon)

    def layer_norm(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, epsilon: float
    ) -> LayerNorm:
        """By a Rust kernel."""
        return LayerNorm(
            self.executor, self.vector(weight), None if bias is None else self.vector(bias), epsilon
        )

    def no_norm(self) -> NoNorm:
        """By a Rust kernel."""
        return NoNorm(self.executor)

    def head_norm(
        self,
        query_weight: NDArray[Any],
        key_weight: NDArray[Any],
        epsilon: float,
        heads: int,
        *,
        whole: bool = False,
        values: bool = False,
    ) -> HeadRmsNorm:
        """By a Rust kernel, which normalizes in pieces of the weights' length."""
        query, key = self.vector(query_weight), self.vector(key_weight)
        value = np.ones_like(key) if values else None
        width = len(query) if whole else heads * len(query)
        return HeadRmsNorm(self.executor, (query, key, value), epsilon, width)

    def rotation(self, angles: NDArray[np.float32], heads: int) -> CpuRotation:
        """By a Rust kernel."""
        return CpuRotation(self.executor, angles, heads)

    def experts(
        self,
        layer: int,
        routing: Routing,
        weights: ExpertWeights,
        activation: Activation,
    ) -> "CpuExpertLayer":
        """By a Rust kernel, which reads the experts that some row chose."""
        experts = make_experts(routing, weights, activation, self._pack)
        self.expert_layers[layer] = experts
        return CpuExpertLayer(self.executor, experts)

    def vector(self, values: NDArray[Any]) -> NDArray[Any]:
        """A copy of ``values`` in the parts' data type."""
        return np.array(values, self.dtype)

    def attention(self, info: ModelInfo, layers: Mapping[int, LayerAttention]) -> Attention:
        """By a Rust kernel, over a cache of the parts' data type."""
        check_heads(info, 8)
        return Attention(self.executor, info, layers, self.pool(info))

    def pool(self, info: ModelInfo) -> Pool:
        """The memory of keys, values and states of the model that the parts are for."""
        if self._pool is None:
            self._pool = Pool(info, self.num_blocks, self.dtype)
        return self._pool

    def latents(self, info: ModelInfo) -> CpuLatents:
        """By a Rust kernel, over latents of the parts' data type in the pool."""
        return CpuLatents(self.executor, info, self.pool(info), self.dtype)

    def states(self, info: ModelInfo) -> CpuStateOps:
        """By Rust kernels, over the slots of the pool."""
        return CpuStateOps(self.executor, info)

    def gated_norm(
        self,
        weight: NDArray[Any],
        epsilon: float,
        group: int,
        *,
        gate_first: bool,
        function: GateFunction = "silu",
    ) -> CpuGatedNorm:
        """By a Rust kernel."""
        vector = self.vector(weight)
        return CpuGatedNorm(self.executor, vector, epsilon, group, function, gate_first=gate_first)

    def gather(
        self, source: Buffer, index: CpuTensor, out: Buffer, rows: int, first: int = 0
    ) -> None:
        """``out[i] = source[index[first + i]]``."""
        self.executor.program.gather(source.kernel, index, out.kernel)

    def gated(self, activation: Activation, gate_up: Buffer, out: Buffer, rows: int) -> None:
        """activation(gate) * up."""
        kind, limit = activation.kind, activation.limit
        self.executor.program.gated(kind, gate_up.kernel, out.kernel, limit)

    def activate(self, activation: Activation, x: Buffer, out: Buffer, rows: int) -> None:
        """activation(x)."""
        self.executor.program.activate(activation.kind, x.kernel, out.kernel, activation.weights)

    def scale(self, x: Buffer, factor: float, rows: int) -> None:
        """Multiply in place."""
        self.executor.program.scale(x.kernel, factor)

    def soft_cap(self, x: Buffer, cap: float, rows: int) -> None:
        """Cap * tanh(x / cap), in place."""
        self.executor.program.soft_cap(x.kernel, cap)

    def multiply(self, x: Buffer, by: Buffer, column: int, rows: int) -> None:
        """Multiply by columns, in place."""
        self.executor.program.multiply(x.kernel, by.kernel, column)

    def gate(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """Multiply by sigmoids, in place."""
        self.executor.program.gate(x.kernel, gates.kernel)


class Table:
    """Rows to look up."""

    def __init__(self, executor: Executor, packed: CpuLinear) -> None:
        self._executor = executor
        self._packed = packed

    def __call__(self, index: CpuTensor, out: Buffer, rows: int) -> None:
        """``out[i]`` becomes row ``index[i]``."""
        self._executor.program.gather_weights(self._packed, index, out.kernel)


class Linear:
    """x W^T + b. A row's results do not depend on what other rows there are."""

    def __init__(self, executor: Executor, packed: CpuLinear) -> None:
        self._executor = executor
        self._packed = packed

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        self._executor.program.linear(self._packed, x.kernel, out.kernel)


class LinearByHead:
    """x W^T of each head. A row's results do not depend on what other rows there are."""

    def __init__(self, executor: Executor, packed: CpuLinear, heads: int) -> None:
        self._executor = executor
        self._packed = packed
        self._heads = heads

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """The first columns of ``x`` -> ``out`` [rows, heads * out]."""
        columns = cpu_tensor(x.tensor[:, : self._heads * self._packed.inputs])
        self._executor.program.linear_by_head(self._packed, columns, out.kernel, self._heads)


class AdaptedLinear:
    """A linear layer that adapters change."""

    def __init__(
        self, executor: Executor, linear: Linear, adapters: CpuAdapterSlots, number: int
    ) -> None:
        """``number`` is the layer's among ``adapters``."""
        self._executor = executor
        self._linear = linear
        self._adapters = adapters
        self._number = number

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]; the rows are the step's tokens."""
        self._linear(x, out, rows)
        self._adapters.record(self._executor.program, self._number, x, out)


class CpuExpertLayer:
    """A mixture of experts."""

    def __init__(self, executor: Executor, experts: CpuExperts) -> None:
        self._executor = executor
        self._experts = experts

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden]."""
        self._executor.program.experts(self._experts, logits.kernel, x.kernel, out.kernel)
