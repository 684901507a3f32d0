"""The step buffers as a torch device sees them."""

import numpy as np
import torch

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers

# torch has no arithmetic on unsigned words; the bits are the same.
_SIGNED = {"uint64": "int64", "uint32": "int32"}

_EDITS = ("penalty_token", "penalty_factor", "penalty_add")


class DeviceStep:
    """A tensor for each field of :class:`pyengine.model.batch.StepBuffers`, by its name.

    All are views of one block of device memory, so that a step comes by one copy; ``seed`` is
    int64, ``mask`` int32 of the same bits. There is one for all steps, which a device works on in
    their order: the copy of a step comes behind the last kernel of the step before. On the CPU the
    block is the host's own::

        host     header | token_ids | ... | page_indices ...... | penalties ... | mask .........
        device   └────────── take() ──────────────┘ used        └┘ used  take_late() ┘ used

    Attributes:
        host: The host's side of the step in flight.
        memory: uint8 [layout.nbytes] on the device.
    """

    header: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    kv_length: torch.Tensor
    page_indptr: torch.Tensor
    page_indices: torch.Tensor
    row_sequence: torch.Tensor
    sample_rows: torch.Tensor
    sample_sequence: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    sample_position: torch.Tensor
    device_drafts: torch.Tensor
    logit_start: torch.Tensor
    logit_row: torch.Tensor
    logit_token: torch.Tensor
    mask_row: torch.Tensor
    feed_token: torch.Tensor
    feed_sequence: torch.Tensor
    logprobs: torch.Tensor
    penalty_start: torch.Tensor
    penalty_token: torch.Tensor
    penalty_factor: torch.Tensor
    penalty_add: torch.Tensor
    mask: torch.Tensor

    def __init__(
        self,
        layout: StepLayout,
        device: torch.device,
        host: StepBuffers,
        *,
        shared: bool | None = None,
    ) -> None:
        """Of ``host``'s memory, or of fresh zeroed memory; unless said, shared on the CPU."""
        self.host = host
        self._shared = device.type == "cpu" if shared is None else shared
        if self._shared:
            self.memory = torch.from_numpy(host.memory)
        else:
            self.memory = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
        fields = layout.fields()
        for name, (dtype, offset, count) in fields.items():
            end = offset + count * np.dtype(dtype).itemsize
            kind = getattr(torch, _SIGNED.get(dtype, dtype))
            setattr(self, name, self.memory[offset:end].view(kind))
        self.mask = self.mask.view(-1, layout.mask_words)
        self._starts = {name: offset for name, (_, offset, _) in fields.items()}
        self._mask_bytes = 4 * layout.mask_words

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
            self._copy(memory, 0, self._starts["page_indices"] + 4 * pages)
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
        masks, penalties = host.num_masks, host.num_penalties
        if penalties:
            host.penalty_start[host.num_logits + 1 : rows + 1] = penalties
        if self._shared:
            return
        if penalties:
            lengths = {"penalty_start": rows + 1, **dict.fromkeys(_EDITS, penalties)}
            for name, length in lengths.items():
                self._copy(memory, self._starts[name], 4 * length)
        if masks:
            self._copy(memory, self._starts["mask"], masks * self._mask_bytes)

    def _copy(self, memory: torch.Tensor, start: int, nbytes: int) -> None:
        end = start + nbytes
        self.memory[start:end].copy_(memory[start:end], non_blocking=True)
