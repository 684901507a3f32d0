"""The step buffers as a torch device sees them."""

from typing import Any

import numpy as np
import torch

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.step_fields import SAMPLING_ROW, StepFields

# torch has no arithmetic on unsigned words; the bits are the same.
_SIGNED = {"uint32": "int32"}


class DeviceStep(StepFields[torch.Tensor]):
    """A tensor for each field of a step, by its name.

    All are views of one block of device memory, so that a step comes by one copy. ``sampling`` is
    int32 [rows, words], as :mod:`pyengine.kernels.sampling.rules` reads it; ``mask`` is int32 of
    the same bits. There is one for all steps, which a device works on in their order: the copy of a
    step comes behind the last kernel of the step before. On the CPU the block is the host's own::

        host     header | token_ids | ... | page_indices ... | penalties ... | mask ... | results
        device   └────────── take() ────────────────┘ used     └┘ used  take_late() ┘  give_back()

    Attributes:
        host: The host's side of the step in flight.
        memory: uint8 [layout.nbytes] on the device.
    """

    def __init__(
        self,
        layout: StepLayout,
        device: torch.device,
        host: StepBuffers,
        *,
        shared: bool | None = None,
    ) -> None:
        """A step in ``host``'s memory, or in fresh zeroed memory; shared on the CPU by default."""
        self.host = host
        self._shared = device.type == "cpu" if shared is None else shared
        if self._shared:
            self.memory = torch.from_numpy(host.memory)
        else:
            self.memory = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
        self.make_views(layout, self._view)
        self.sampling = self.sampling.view(-1, SAMPLING_ROW.itemsize // 4)
        self._layout = layout

    def _view(self, dtype: Any, start: int, end: int) -> torch.Tensor:
        # Rows of rules are read by words.
        kind = "int32" if np.dtype(dtype).names else _SIGNED.get(dtype, dtype)
        return self.memory[start:end].view(getattr(torch, kind))

    def take(self, host: StepBuffers, memory: torch.Tensor, pages: int) -> None:
        """Queue the copy of a step: all but its masks and penalties, in one piece.

        Args:
            host: The step.
            memory: uint8 [layout.nbytes], ``host``'s memory; pinned, if the device is a GPU.
            pages: How many of its page indices count.

        Raises:
            ValueError: Memory is shared, but not this one.
        """
        self.host = host
        if not self._shared:
            self._copy(memory, self._layout.planned_ranges(host.memory, pages - host.num_pages))
        elif memory.data_ptr() != self.memory.data_ptr():
            raise ValueError("where memory is shared, a step is where it was planned")

    def take_late(self, memory: torch.Tensor, rows: int) -> None:
        """Queue the copy of the step's masks and penalties, which are filled by now.

        Args:
            memory: As at :meth:`take`.
            rows: Logits rows of the step, or of its graph's bucket: those that are added get no
                penalties.
        """
        host = self.host
        if penalties := host.num_penalties:
            host.penalty_start[host.num_logits + 1 : rows + 1] = penalties
        if not self._shared:
            self._copy(memory, self._layout.late_ranges(host.memory))

    def give_back(self, memory: torch.Tensor) -> None:
        """Queue the copy of the step's results to ``memory``, which is as at :meth:`take`."""
        if not self._shared:
            for start, end in self._layout.result_ranges(self.host.memory):
                memory[start:end].copy_(self.memory[start:end], non_blocking=True)

    def _copy(self, memory: torch.Tensor, ranges: list[tuple[int, int]]) -> None:
        for start, end in ranges:
            self.memory[start:end].copy_(memory[start:end], non_blocking=True)
