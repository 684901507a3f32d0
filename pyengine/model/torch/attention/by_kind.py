"""Attention of models whose layers differ in their heads, or of which some attend in chunks: a
backend for each kind of layers, the best that can do that kind.

::

    Gemma 4    windows    8 heads of 256    flashinfer          Llama 4    chunks    triton
               full       2 heads of 512    triton                         full      flashinfer

Where one kind is left to plain torch, which no graph can capture, so are all: kernels of another
backend would gain little beside it.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch

from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.backend import AttentionBackend, Rehearsal
from pyengine.model.torch.attention.selection import Capabilities
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.attention.variants import OF_PROMPTS
from pyengine.model.torch.attention.warm_up import Ready, ready
from pyengine.model.torch.device.device_step import DeviceStep


class Kind(NamedTuple):
    """What a layer's backend is found by.

    Attributes:
        kv_heads: Key and value heads of this rank.
        head_dim: Elements of a head.
        chunks: Whether its queries see their own chunk alone.
    """

    kv_heads: int
    head_dim: int
    chunks: bool


class AttentionByKind:
    """A backend for each kind of layers, planned together: they attend to the same steps.

    Attributes:
        name: The names of all.
        captures: Yes.
    """

    captures = True

    def __init__(self, backends: Sequence[tuple[AttentionSpec, AttentionBackend]]) -> None:
        """Joins backends that were made for these specs, all of which captures take."""
        self._backends = {
            Kind(spec.num_kv_heads, spec.head_dim, spec.chunks): backend
            for spec, backend in backends
        }
        self._all = tuple(self._backends.values())
        self.name = " and ".join(dict.fromkeys(backend.name for backend in self._all))

    def variant(self, step: DeviceStep) -> str:
        """The most particular of the backends' variants.

        A shared prefix is attended to once where that pays for one kind of layers, and tiles
        are as for prompts where one backend needs that. All backends are asked, and note what rows
        share.
        """
        variants = [backend.variant(step) for backend in self._all]
        cascades = (each for each in variants if each.endswith("_cascade"))
        prompts = (each for each in variants if each in OF_PROMPTS)
        return next(chain(cascades, prompts, variants))

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        """Plan all."""
        for backend in self._all:
            backend.plan(step, variant, rows, tokens, captured=captured)

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
        """By the backend of the layer's kind."""
        backend = self._backends[Kind(keys.shape[2], keys.shape[3], layer.chunk is not None)]
        backend.attend(step, queries, keys, values, out, tokens, layer, table)

    def rehearsals(self) -> Sequence[Rehearsal]:
        """The rehearsals of all backends, without repetitions."""
        return list(dict.fromkeys(step for backend in self._all for step in backend.rehearsals()))

    def forget(self, variant: str, tokens: int) -> None:
        """Tell all."""
        for backend in self._all:
            backend.forget(variant, tokens)


def joined(
    specs: Sequence[AttentionSpec], backends: Sequence[AttentionBackend]
) -> AttentionBackend:
    """The backend of a model whose kinds of layers have these: the only one, or torch's if it is
    among them. Where no layer attends, torch's, which plans nothing.
    """
    if not backends:
        return TorchAttention()
    slow = [backend for backend in backends if isinstance(backend, TorchAttention)]
    if slow or len(backends) == 1:
        return (slow or backends)[0]
    return AttentionByKind(tuple(zip(specs, backends, strict=True)))


def ready_by_kind(
    specs: Sequence[AttentionSpec],
    device: torch.device,
    machine: Capabilities,
    asked: str = "auto",
) -> Ready:
    """As :func:`pyengine.model.torch.attention.warm_up.ready`, for each kind of layers."""
    found: list[Ready] = []
    for spec in specs:
        found.append(ready(spec, device, machine, asked))
        machine = found[-1].machine  # what fails is not tried again
    backend = joined(specs, [each.backend for each in found])
    if len(specs) == 1 or not isinstance(backend, AttentionByKind):
        why = next(each.why for each in found if each.backend is backend)
    else:
        why = "; ".join(
            f"{_words(spec)}: {each.why}" for spec, each in zip(specs, found, strict=True)
        )
    return Ready(backend, why, machine)


def _words(spec: AttentionSpec) -> str:
    heads = f"layers of {spec.num_kv_heads} heads of {spec.head_dim}"
    return f"{heads}, in chunks" if spec.chunks else heads
