"""What FlashInfer's wrappers share: the model's layout, workspaces, and where plans lie.

FlashInfer divides a step's work among the processors on the CPU, in ``plan``, and copies the
result to the device from pinned memory of its own: asynchronously, so a plan waits until the
device has taken what the one before by the same wrapper wrote. What it is given lies in pinned
memory too, since a copy from other memory may wait for all that is queued.
"""

from typing import Any, NamedTuple

import torch

from pyengine.model.torch.attention.flashinfer.library import Library
from pyengine.model.torch.attention.flashinfer.workspace import workspace_bytes
from pyengine.model.torch.attention.spec import AttentionSpec


class Scores(NamedTuple):
    """A kind of layers: those that a plan serves.

    Attributes:
        scale: See :class:`pyengine.model.architectures.parts.LayerAttention`.
        window: The same.
        soft_cap: The same.
        table: The page table of their caches.
    """

    scale: float
    window: int | None
    soft_cap: float | None
    table: int


class Memory:
    """The workspaces and the model's layout, which all wrappers share."""

    def __init__(self, spec: AttentionSpec, device: torch.device, library: Library) -> None:
        self.spec = spec
        self.device = device
        self.library = library
        self.q_dtype, self.kv_dtype = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype)
        size = workspace_bytes(spec)
        self.workspace = torch.zeros(size, dtype=torch.uint8, device=device)
        # Seven numbers for each tile of 64 tokens or more and head, where the GPU is one of Hopper.
        tiles = spec.max_tokens // 64 + spec.max_rows + 2
        each = 2**20 + 32 * spec.num_heads * tiles
        # Doubled for each kind of layers beside the first, see plan_memory.
        plans = [torch.zeros(each, dtype=torch.uint8, device=device) for _ in range(2)]
        self._plans = [plans]
        self.memory_bytes = size + 2 * each

    def ints(self, count: int) -> torch.Tensor:
        """Zeros, int32 [count], on the device."""
        return torch.zeros(count, dtype=torch.int32, device=self.device)

    def pinned(self, count: int) -> torch.Tensor:
        """Zeros, int32 [count], on the host, pinned where the device is a GPU."""
        return torch.zeros(count, dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def plan_memory(self, kind: int, place: int) -> torch.Tensor:
        """Where a plan lies on the device until the step is over.

        Args:
            kind: Number of the kind of layers that it is for.
            place: 0, or 1 for the second segment of a step.
        """
        while len(self._plans) <= kind:
            self._plans.append([torch.zeros_like(each) for each in self._plans[0]])
        return self._plans[kind][place]

    def arguments(self, scores: Scores) -> dict[str, Any]:
        """The arguments of every plan for layers of a kind."""
        spec = self.spec
        return {
            "num_qo_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "page_size": spec.block_size,
            "sm_scale": scores.scale,
            # Keys beside its own that a query sees; -1 is all.
            "window_left": -1 if scores.window is None else scores.window - 1,
            "logits_soft_cap": scores.soft_cap,
            "q_data_type": self.q_dtype,
            "kv_data_type": self.kv_dtype,
            "o_data_type": self.q_dtype,
            "non_blocking": True,
        }
