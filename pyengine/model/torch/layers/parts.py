"""The parts of models on torch devices, one rank's of several perhaps.

All memory is taken when the parts are made, and stays where it is: a forward pass can be captured
in a CUDA graph, if its attention can.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine._core import CpuKernels
from pyengine.distributed.group import Alone, Group
from pyengine.errors import ModelLoadError
from pyengine.kernels.layers.activation import activated
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import Activation, LayerAttention, Linear, check_heads
from pyengine.model.architectures.state_parts import GateFunction
from pyengine.model.runner import ModelInfo
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.paged import PagedAttention
from pyengine.model.torch.attention.pool import TorchPool
from pyengine.model.torch.device.memory import logits_bytes
from pyengine.model.torch.device.ops import TorchOps, torch_ops
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.adapters import NoAdapterSlots, TorchAdapterSlots
from pyengine.model.torch.layers.experts.grouped import GroupedExperts
from pyengine.model.torch.layers.experts.layers import load_layers
from pyengine.model.torch.layers.experts.mixture import ExpertProducts, TorchExperts
from pyengine.model.torch.layers.experts.packed import PackedExperts
from pyengine.model.torch.layers.latents import TorchLatents
from pyengine.model.torch.layers.linear.block import BlockLinear, is_blocks
from pyengine.model.torch.layers.linear.float8 import Float8Linear, is_float8
from pyengine.model.torch.layers.linear.packed import DTYPES, PackedLinear, is_packed
from pyengine.model.torch.layers.linear.weight_only import WeightOnlyLinear
from pyengine.model.torch.layers.norms import (
    TorchGatedNorm,
    TorchHeadNorm,
    TorchLayerNorm,
    TorchNoNorm,
    TorchNorm,
    TorchRotation,
    WholeNorm,
)
from pyengine.model.torch.layers.packed_weights import Share, shares, stay_packed
from pyengine.model.torch.layers.states import TorchStates
from pyengine.model.torch.layers.tables import PackedTable, TorchTable, is_packed_table
from pyengine.model.torch.layers.vocabulary import GatheredHead, SharedTable
from pyengine.model.weights.matrix import Matrix


class TorchParts:
    """The parts of a model on a torch device. One thread at a time.

    Attributes:
        device: Where all of it is.
        dtype: The type of weights and buffers.
        kv_dtype: The type of the KV cache.
        backend: Attends.
        max_tokens: Most tokens in a step.
        max_sampled: Most rows whose logits are wanted in a step.
        logits_bytes: See :class:`pyengine.model.architectures.parts.Parts`.
        num_blocks: KV blocks.
        group: The ranks that share the model.
        ranks: How many they are.
        expert_parallel: Whether each of them has whole experts, not a share of each.
        cpu_kernels: Whether experts on a CPU are the Rust kernel's; if not, they are computed as
            on a GPU.
        live: int64 [1] on the device, the tokens of a step, without those that fill up a graph's.
        ops: Norms, rotation, activation.
        expert_layers: The experts of each layer that has some, by its number.
        transfer: Brings weights to the device; they are there once it was waited for.
        adapters: The adapters of the model.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        backend: AttentionBackend,
        max_tokens: int,
        max_sampled: int,
        num_blocks: int,
        group: Group | None = None,
        *,
        expert_parallel: bool = False,
        cpu_kernels: bool = True,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.backend = backend
        self.max_tokens = max_tokens
        self.max_sampled = max_sampled
        self.logits_bytes = logits_bytes(device)
        self.num_blocks = num_blocks
        self.group: Group = group or Alone()
        self.ranks = self.group.size
        self.expert_parallel = expert_parallel
        self.cpu_kernels = cpu_kernels
        self.ops: TorchOps = torch_ops(device)
        self.live = torch.zeros(1, dtype=torch.int64, device=device)
        self._pool: TorchPool | None = None
        self.expert_layers: dict[int, TorchExperts | PackedExperts] = {}
        self.transfer = Transfer(device, dtype)
        takes = device.type == "cpu"
        self.adapters = TorchAdapterSlots(self.group) if takes else NoAdapterSlots(device)
        # A head may have the weights of a table.
        self._tables: dict[Matrix, torch.Tensor] = {}
        self._packed_tables: dict[Matrix, list[Share]] = {}
        self._angles: dict[int, tuple[NDArray[np.float32], torch.Tensor]] = {}

    def loaded(self) -> None:
        """Wait for the weights.

        Raises:
            Exception: Weights could not be read.
        """
        self._tables.clear()
        self._packed_tables.clear()
        self.transfer.wait()

    def buffer(self, rows: int, width: int) -> Buffer:
        """Zeros [rows, width]."""
        tensor = torch.zeros(rows, width, dtype=self.dtype, device=self.device)
        return Buffer(tensor, tensor)

    def table(self, weight: Matrix) -> TorchTable | PackedTable:
        """By torch; quantized weights stay so where the device can look them up."""
        if is_packed_table(weight, self.device, self.dtype):
            packed = self._packed_tables[weight] = shares([weight], self.transfer)
            return PackedTable(self.ops, packed)
        table = self._tables[weight] = self.transfer.matrix(weight)
        return TorchTable(table)

    def shared_table(self, weight: Matrix, rows: int) -> TorchTable | PackedTable | SharedTable:
        """As :meth:`table`; ranks add up what each has found."""
        table = self.table(weight)
        return table if self.ranks == 1 else SharedTable(self.group, table, rows)

    def linear(
        self, weight: Matrix, bias: NDArray[Any] | None = None, *, reduce: bool = False
    ) -> Linear:
        """By torch's library.

        Quantized weights stay so where the device has a product for them; others become dense ones
        of the parts' data type. The weights of a table are not copied again.
        """
        return self.adapters.adapted(self._linear(weight, bias, reduce), weight, reduce=reduce)

    def _linear(self, weight: Matrix, bias: NDArray[Any] | None, reduce: bool) -> Linear:
        reduce = reduce and self.ranks > 1
        packed, tensor = self._packed_tables.get(weight), self._tables.get(weight)
        if packed is not None:
            return WeightOnlyLinear(self, packed, bias, reduce=reduce)
        if is_packed(weight, self.device, self.dtype):
            return PackedLinear(self.kernels, self.group, weight, bias, self.dtype, reduce=reduce)
        if is_float8(weight, self.device, self.dtype):
            return Float8Linear(self, weight, bias, reduce=reduce)
        if is_blocks(weight, self.device, self.dtype):
            return BlockLinear(self, weight, bias, reduce=reduce)
        if tensor is None and stay_packed([weight], self.device, self.dtype):
            return WeightOnlyLinear(self, shares([weight], self.transfer), bias, reduce=reduce)
        if tensor is None:
            tensor = self.transfer.matrix(weight)
        vector = None if bias is None else self.transfer.vector(bias)
        return TorchLinear(self, tensor, vector, reduce=reduce)

    @cached_property
    def kernels(self) -> CpuKernels:
        """The Rust kernels, on as many threads as torch has."""
        return CpuKernels(torch.get_num_threads())

    def linear_by_head(self, weights: Sequence[Matrix]) -> "TorchLinearByHead":
        """By torch's library, in floats."""
        return TorchLinearByHead(self.transfer.matrices(weights))

    def head(self, weight: Matrix, info: ModelInfo, bias: NDArray[Any] | None = None) -> Linear:
        """Gathers the shares of all ranks."""
        linear = self._linear(weight, bias, reduce=False)
        return linear if self.ranks == 1 else GatheredHead(self, self.group, linear, info)

    def norm(self, weight: NDArray[Any], epsilon: float) -> TorchNorm:
        """By the device's kernel."""
        return TorchNorm(self.ops, self.transfer.vector(weight), epsilon)

    def layer_norm(
        self, weight: NDArray[Any], bias: NDArray[Any] | None, epsilon: float
    ) -> TorchLayerNorm:
        """By torch's kernel."""
        vector = None if bias is None else self.transfer.vector(bias)
        return TorchLayerNorm(self.transfer.vector(weight), vector, epsilon)

    def no_norm(self) -> TorchNoNorm:
        """By torch's kernel."""
        return TorchNoNorm()

    def head_norm(
        self,
        query_weight: NDArray[Any],
        key_weight: NDArray[Any],
        epsilon: float,
        heads: int,
        *,
        whole: bool = False,
        values: bool = False,
    ) -> TorchHeadNorm | WholeNorm:
        """By the device's kernel; of all heads as one, and of values, by torch's."""
        query, key = self.transfer.vector(query_weight), self.transfer.vector(key_weight)
        if whole:
            return WholeNorm(self.group, query, key, epsilon)
        return TorchHeadNorm(self.ops, query, key, epsilon, heads, values=values)

    def rotation(self, angles: NDArray[np.float32], heads: int) -> TorchRotation:
        """By torch's kernels."""
        if id(angles) not in self._angles:
            # The array is kept, for its id is its name.
            self._angles[id(angles)] = angles, torch.from_numpy(angles).to(self.device)
        return TorchRotation(self._angles[id(angles)][1], heads)

    def experts(
        self,
        layer: int,
        routing: Routing,
        weights: ExpertWeights,
        activation: Activation,
    ) -> TorchExperts | PackedExperts:
        """By the Rust kernel on a CPU; elsewhere by grouped products, which read quantized weights
        as they are stored.
        """
        made: TorchExperts | PackedExperts
        if self.cpu_kernels and self.device.type == "cpu" and self.dtype in DTYPES:
            made = PackedExperts(self.kernels, self.group, routing, weights, activation, self.dtype)
        else:
            products = self._products(routing, weights.added_by(self.group.rank), activation)
            made = TorchExperts(
                self.group, self.ops, routing, weights, products, self.transfer, self.live
            )
        self.expert_layers[layer] = made
        return made

    def _products(
        self, routing: Routing, weights: ExpertWeights, activation: Activation
    ) -> ExpertProducts:
        layers = load_layers(self.ops, weights, self.transfer, self.device, self.dtype)
        return GroupedExperts(self.ops, self.device, routing, activation, layers)

    def attention(self, info: ModelInfo, layers: Mapping[int, LayerAttention]) -> PagedAttention:
        """By the backend, over a cache of this rank's heads."""
        check_heads(info, 8)
        return PagedAttention(self.backend, self.ops, self.device, self.pool(info), layers)

    def pool(self, info: ModelInfo) -> TorchPool:
        """The memory of keys, values and states of the model that the parts are for."""
        if self._pool is None:
            self._pool = TorchPool(info, self.ranks, self.num_blocks, self.kv_dtype, self.device)
        return self._pool

    def states(self, info: ModelInfo) -> TorchStates:
        """In plain torch, token by token."""
        self._refuse_on_gpu(info, "a state")
        return TorchStates(info, self.ranks, self.pool(info), self.device)

    def latents(self, info: ModelInfo) -> TorchLatents:
        """In plain torch, row by row."""
        self._refuse_on_gpu(info, "latents")
        return TorchLatents(self.pool(info), self.device)

    def _refuse_on_gpu(self, info: ModelInfo, what: str) -> None:
        if self.device.type == "cuda":
            raise ModelLoadError(
                f"{info.name} has layers with {what}, which a GPU does not compute yet: give "
                "'device' cpu",
                param="device",
            )

    def gated_norm(
        self,
        weight: NDArray[Any],
        epsilon: float,
        group: int,
        *,
        gate_first: bool,
        function: GateFunction = "silu",
    ) -> TorchGatedNorm:
        """In plain torch."""
        vector = self.transfer.vector(weight)
        return TorchGatedNorm(vector, epsilon, group, function, gate_first=gate_first)

    def gather(
        self, source: Buffer, index: torch.Tensor, out: Buffer, rows: int, first: int = 0
    ) -> None:
        """``out[i] = source[index[first + i]]``."""
        torch.index_select(source.tensor, 0, index[first : first + rows], out=out.tensor[:rows])

    def gated(self, activation: Activation, gate_up: Buffer, out: Buffer, rows: int) -> None:
        """activation(gate) * up."""
        kind, limit = activation.kind, activation.limit
        self.ops.gated(gate_up.tensor[:rows], out.tensor[:rows], kind, limit)

    def activate(self, activation: Activation, x: Buffer, out: Buffer, rows: int) -> None:
        """activation(x)."""
        out.tensor[:rows] = activated(x.tensor[:rows], activation.kind, activation.weights)

    def scale(self, x: Buffer, factor: float, rows: int) -> None:
        """Multiply in place."""
        x.tensor[:rows].mul_(factor)

    def soft_cap(self, x: Buffer, cap: float, rows: int) -> None:
        """Cap * tanh(x / cap), in place."""
        numbers = x.tensor[:rows]
        numbers.copy_((numbers.float() / cap).tanh_() * cap)

    def multiply(self, x: Buffer, by: Buffer, column: int, rows: int) -> None:
        """Multiply by columns, in place."""
        width = x.tensor.shape[1]
        x.tensor[:rows].mul_(by.tensor[:rows, column : column + width])

    def gate(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """Multiply by sigmoids, in place."""
        factors = gates.tensor[:rows].sigmoid()
        x.tensor[:rows].unflatten(1, (factors.shape[1], -1)).mul_(factors[:, :, None])


class TorchLinear:
    """x W^T + b."""

    def __init__(
        self,
        parts: TorchParts,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        reduce: bool,
    ) -> None:
        self._parts = parts
        self._weight = weight
        self._bias = bias if not reduce or parts.group.rank == 0 else None
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        given, result = x.tensor[:rows], out.tensor[:rows]
        if self._bias is None:
            torch.mm(given, self._weight.t(), out=result)
        else:
            torch.addmm(self._bias, given, self._weight.t(), out=result)
        if self._reduce:
            self._parts.group.all_reduce(out.tensor[:rows])


class TorchLinearByHead:
    """x W^T of each head."""

    def __init__(self, weights: torch.Tensor) -> None:
        """``weights`` are [heads, out, in]."""
        self._weights = weights

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """The first columns of ``x`` -> ``out`` [rows, heads * out]."""
        heads, outputs, inputs = self._weights.shape
        given = x.tensor[:rows, : heads * inputs].unflatten(1, (heads, inputs)).transpose(0, 1)
        product = torch.bmm(given, self._weights.transpose(1, 2))  # [heads, rows, out]
        out.tensor[:rows] = product.transpose(0, 1).reshape(rows, heads * outputs)
