"""Attention of steps whose rows follow drafts in flight, beside a backend that cannot do these.

How long such a row is only the device knows when the step is launched. A backend whose plan is made
on the host from the lengths has them from another, which reads lengths on the device::

    step N      t d d d       plain: its lengths are known
    step N+1    u e e         moving: laid out behind three drafts, of which two may be wrong
"""

from collections.abc import Sequence

import torch

from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.backend import AttentionBackend, Rehearsal
from pyengine.model.torch.device.device_step import DeviceStep

MOVED = "moved_"
"""Begins the variants of steps with moved rows."""


class AttentionOfMovedRows:
    """Two backends of the same layers, each of which is planned for the steps that it attends in.

    Attributes:
        name: That of the backend of most steps.
        captures: Yes.
        moves_rows: Yes.
    """

    captures = True
    moves_rows = True

    def __init__(self, plain: AttentionBackend, moving: AttentionBackend) -> None:
        """Of backends that graphs capture; ``moving`` moves rows."""
        self.name = plain.name
        self._plain = plain
        self._moving = moving
        self._planned = plain

    def variant(self, step: DeviceStep) -> str:
        """That of the backend that attends; both note what rows share."""
        plain, moving = self._plain.variant(step), self._moving.variant(step)
        return f"{MOVED}{moving}" if step.host.num_moved_rows else plain

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        """Plan the one that attends."""
        self._planned, own = self._of(variant)
        self._planned.plan(step, own, rows, tokens, captured=captured)

    def attend(
        self,
        step: DeviceStep,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        tokens: int,
        layer: LayerAttention,
        table: int = 0,
    ) -> None:
        """By the one that was planned."""
        self._planned.attend(step, queries, keys, values, out, tokens, layer, table)

    def rehearsals(self) -> Sequence[Rehearsal]:
        """The rehearsals of both backends."""
        moved = (
            each._replace(variant=f"{MOVED}{each.variant}") for each in self._moving.rehearsals()
        )
        return [*self._plain.rehearsals(), *moved]

    def forget(self, variant: str, tokens: int) -> None:
        """Tell the one whose graph it was."""
        backend, own = self._of(variant)
        backend.forget(own, tokens)

    def _of(self, variant: str) -> tuple[AttentionBackend, str]:
        """The backend of a variant, and what it calls it."""
        if variant.startswith(MOVED):
            return self._moving, variant.removeprefix(MOVED)
        return self._plain, variant
