"""Mixtures of experts on torch's CPU device: the Rust kernel of the CPU runner.

A row reads only the experts that it chose, and quantized weights stay so.
"""

from typing import Any

import torch
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuLinear
from pyengine.distributed.group import Group
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import Activation
from pyengine.model.cpu.executor import run_once
from pyengine.model.cpu.experts import make_experts
from pyengine.model.cpu.linear import pack
from pyengine.model.torch.layers.linear.packed import DTYPES, shared
from pyengine.model.weights.matrix import Matrix


class PackedExperts:
    """The experts of a layer: this rank's share of each, or its own."""

    def __init__(
        self,
        kernels: CpuKernels,
        group: Group,
        routing: Routing,
        weights: ExpertWeights,
        activation: Activation,
        dtype: torch.dtype,
    ) -> None:
        """Copy the weights."""

        def packed(weight: Matrix, bias: NDArray[Any] | None) -> CpuLinear:
            return pack(weight, bias, DTYPES[dtype])

        self._experts = make_experts(routing, weights.added_by(group.rank), activation, packed)
        self._kernels = kernels
        self._group = group

    @property
    def routed(self) -> torch.Tensor:
        """int64 [all experts], tokens that were sent to each so far."""
        return torch.tensor(self._experts.routed)

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden], the sum over all ranks."""
        router, given, to = (shared(buffer.tensor) for buffer in (logits, x, out))
        with run_once(self._kernels, rows) as program:
            program.experts(self._experts, router, given, to)
        self._group.all_reduce(out.tensor[:rows])
