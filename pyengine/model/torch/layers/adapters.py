"""Adapters on a torch device, in plain torch: the rows of each adapter by themselves.

A GPU takes none yet: rows are picked on the host, which a CUDA graph cannot replay.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.distributed.group import Group
from pyengine.errors import AdapterError
from pyengine.model.adapters.layers import AdaptedLayers, LayerDelta
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Linear
from pyengine.model.batch import StepBuffers


class TorchDelta:
    """What an adapter adds to a layer's outputs."""

    def __init__(self, delta: LayerDelta) -> None:
        self._shrink = _tensor(delta.shrink)
        self._expansions = [
            (_tensor(each.weight), each.first_rank, each.first_output, each.scale)
            for each in delta.expansions
        ]
        tensors = [self._shrink, *(weight for weight, *_ in self._expansions)]
        self.nbytes = sum(tensor.nbytes for tensor in tensors)

    def add(self, x: torch.Tensor, out: torch.Tensor, group: Group | None) -> None:
        """Add to ``out`` [rows, outputs] what becomes of ``x`` [rows, inputs].

        ``group`` sums what its ranks make of their shares of the inputs.
        """
        shrunk = x.float() @ self._shrink.t()
        if group is not None:
            group.all_reduce(shrunk)
        for weight, rank, output, scale in self._expansions:
            own = shrunk[:, rank : rank + weight.shape[1]] * scale
            out[:, output : output + len(weight)] += own @ weight.t()


class TorchAdapterSlots:
    """The adapters of a model on the CPU by torch. One thread at a time.

    Attributes:
        step: The step whose forward pass is computed.
    """

    def __init__(self, group: Group) -> None:
        """No adapter is there; ``group`` shares the model."""
        self.step: StepBuffers | None = None
        self._group = group
        self._layers = AdaptedLayers()
        self._slots: dict[int, dict[int, TorchDelta]] = {}

    def adapted(self, linear: Linear, weight: Any, *, reduce: bool) -> Linear:
        """Returns the layer of this weight with what adapters add; ``reduce`` as of its parts."""
        number = self._layers.add(weight)
        group = self._group if reduce and self._group.size > 1 else None
        return linear if number is None else _Adapted(self, linear, number, group)

    def set(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot; returns the bytes that it takes.

        Raises:
            AdapterError: It does not fit the model.
        """
        deltas = (
            {}
            if adapter is None
            else {delta.layer: TorchDelta(delta) for delta in self._layers.fit(adapter)}
        )
        self._slots[slot] = deltas
        return sum(delta.nbytes for delta in deltas.values())

    def add(self, number: int, x: torch.Tensor, out: torch.Tensor, group: Group | None) -> None:
        """Add to the outputs of a layer what the adapters of the step's rows make of its inputs."""
        step = self.step
        rows = 0 if step is None else step.num_adapted_rows
        if step is None or not rows:
            return
        tokens: dict[int, list[int]] = defaultdict(list)
        of_rows = zip(
            step.adapter_slot[:rows].tolist(),
            step.adapter_first[:rows].tolist(),
            step.adapter_count[:rows].tolist(),
            strict=True,
        )
        for slot, first, count in of_rows:
            tokens[slot] += range(first, first + count)
        for slot, own in sorted(tokens.items()):
            if (delta := self._slots[slot].get(number)) is not None:
                added = out[own].float()
                delta.add(x[own], added, group)
                out[own] = added.to(out.dtype)


class NoAdapterSlots:
    """In the place of adapters on a device that takes none.

    Attributes:
        step: As of the others; not read.
    """

    def __init__(self, device: torch.device) -> None:
        self.step: StepBuffers | None = None
        self._device = device

    def adapted(self, linear: Linear, weight: Any, *, reduce: bool) -> Linear:
        """Returns the layer as it is."""
        return linear

    def set(self, slot: int, adapter: AdapterFile | None) -> int:
        """Refuse it.

        Raises:
            AdapterError: Always.
        """
        raise AdapterError(
            f"adapters are not supported on {self._device.type} yet: give 'device' cpu"
        )


class _Adapted:
    """A linear layer that adapters change."""

    def __init__(
        self, slots: TorchAdapterSlots, linear: Linear, number: int, group: Group | None
    ) -> None:
        self._slots = slots
        self._linear = linear
        self._number = number
        self._group = group

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]; the rows are the step's tokens."""
        self._linear(x, out, rows)
        self._slots.add(self._number, x.tensor, out.tensor, self._group)


def _tensor(weight: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(weight, np.float32))
