"""Adapters on the CPU: packed for the Rust kernels, added behind the linear layers of a step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuAdapter, CpuAdapters, CpuLinear, CpuProgram
from pyengine.model.adapters.layers import AdaptedLayers, LayerDelta
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.batch import StepBuffers
from pyengine.model.dtypes import FLOATS, cpu_tensor
from pyengine.model.weights.matrix import Matrix


class CpuAdapterSlots:
    """The adapters of a model on the CPU. One thread at a time."""

    def __init__(self, step: StepBuffers) -> None:
        """No adapter is there; ``step`` says which rows have which."""
        self._layers = AdaptedLayers()
        self._kernel = CpuAdapters(
            step.header, step.adapter_slot, step.adapter_first, step.adapter_count
        )

    def layer(self, weight: Matrix) -> int | None:
        """The number of the linear layer that has this weight; None: adapters cannot reach it."""
        return self._layers.add(weight)

    def record(self, program: CpuProgram, layer: int, x: Buffer, out: Buffer) -> None:
        """Add to the outputs of a layer what the adapters of the step's rows make of its inputs."""
        program.adapt(self._kernel, layer, x.kernel, out.kernel)

    def set(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot; returns the bytes that it takes.

        Raises:
            AdapterError: It does not fit the model.
        """
        packed = None
        if adapter is not None:
            packed = CpuAdapter([_packed(delta) for delta in self._layers.fit(adapter)])
        self._kernel.set(slot, packed)
        return 0 if packed is None else packed.nbytes


def _packed(
    delta: LayerDelta,
) -> tuple[int, CpuLinear, list[tuple[CpuLinear, int, int, float]]]:
    expands = [
        (_linear(each.weight), each.first_rank, each.first_output, each.scale)
        for each in delta.expansions
    ]
    return delta.layer, _linear(delta.shrink), expands


def _linear(weight: NDArray[Any]) -> CpuLinear:
    # Kernels widen bfloat16 as they multiply; float16 they do not know.
    dtype = weight.dtype if weight.dtype == FLOATS["bfloat16"] else np.dtype(np.float32)
    return CpuLinear.dense(cpu_tensor(np.ascontiguousarray(weight, dtype)))
