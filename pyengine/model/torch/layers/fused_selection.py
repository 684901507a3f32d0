"""Whether experts are computed by FlashInfer's fused kernels: by a rule, and once they were tried.

The kernels are of more than two hundred files: a start takes them where they come compiled, and
compiles none. They are loaded by the first call, which a small mixture makes before the weights are
there. What that computes is compared with what the grouped products compute.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from pyengine.errors import ConfigError
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import Activation
from pyengine.model.torch.attention.selection import (
    Capabilities,
    fault,
    flashinfer_refusal,
    gpu_refusal,
)
from pyengine.model.torch.device.ops import torch_ops
from pyengine.model.torch.device.queue import probe
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.expert_tensors import ExpertTensors, load_experts
from pyengine.model.torch.layers.fused_experts import (
    ACTIVATIONS,
    FusedExperts,
    FusedLibrary,
    load_fused_library,
)
from pyengine.model.torch.layers.grouped_experts import GroupedExperts, dense_layers

logger = logging.getLogger("pyengine")

DTYPES = (torch.bfloat16,)
"""Types of weights for which they are taken."""

ALIGNMENT = 8
"""Numbers in 16 bytes: what rows of the matrices must be multiples of."""

TOLERANCE = 0.03
"""Of the difference to the grouped products, by the size of the results. Each rounds to bfloat16
three times, by 2^-9 at most."""


@dataclass(frozen=True)
class Mixture:
    """What the choice depends on.

    Attributes:
        hidden: Inputs and outputs of an expert.
        inner: Between, in this rank's share.
        activation: Of the gates.
        biased: Whether linear layers have biases.
        divided: Whether ranks have whole experts, not a share of each.
        weighs_inputs: See :class:`pyengine.model.architectures.experts.Routing`.
        dtype: Of the weights.
        quantized: Whether the weights stay as they are stored.
    """

    hidden: int
    inner: int
    activation: Activation
    biased: bool
    divided: bool
    weighs_inputs: bool
    dtype: torch.dtype
    quantized: bool = False


def refusal(mixture: Mixture, machine: Capabilities) -> str | None:
    """Why fused experts cannot be used; None where they can be tried."""
    if mixture.quantized:
        return "they take dense weights, and these stay as they are stored"
    if mixture.dtype not in DTYPES:
        return f"they are not asked for {str(mixture.dtype).removeprefix('torch.')}"
    if mixture.activation.kind not in ACTIVATIONS:
        return f"they have no activation {mixture.activation.kind!r}"
    if mixture.weighs_inputs:
        return "they weigh what comes out of an expert, not what goes in"
    if mixture.hidden % ALIGNMENT or mixture.inner % ALIGNMENT:
        return f"{mixture.hidden} by {mixture.inner} numbers are not multiples of {ALIGNMENT}"
    if why := gpu_refusal(machine, (9, 0)):
        return why
    if why := flashinfer_refusal(machine) or machine.faults.get("flashinfer"):
        return why
    if not machine.compiled:
        return "they take too long to compile at a start; flashinfer-jit-cache has them compiled"
    return None


class FusedMixtures:
    """Makes fused experts where they can be had. One thread at a time, as a model is loaded.

    Attributes:
        why: By what the first model's experts are computed and why, in a line; None without any.
    """

    def __init__(
        self,
        machine: Capabilities,
        device: torch.device,
        load: Callable[[], FusedLibrary] = load_fused_library,
    ) -> None:
        """On ``device`` of this machine; ``load`` gives the library once it is wanted."""
        self.why: str | None = None
        self._machine = machine
        self._device = device
        self._load = load
        self._refusals: dict[Mixture, str | None] = {}
        self._workspaces: dict[int, torch.Tensor] = {}

    def experts(
        self,
        routing: Routing,
        weights: ExpertWeights,
        activation: Activation,
        transfer: Transfer,
        dtype: torch.dtype,
        max_tokens: int,
        *,
        quantized: bool,
    ) -> FusedExperts | None:
        """The experts of a layer, or None where they cannot be had, for reasons that are logged.

        Args:
            routing: How tokens are sent to experts.
            weights: Of this rank.
            activation: Of the gates.
            transfer: Brings weights to the device.
            dtype: Of the weights there.
            max_tokens: Most tokens of a step.
            quantized: The weights stay as they are stored.

        Raises:
            ConfigError: The try left the device in a state in which nothing else can be done.
        """
        hidden, inner = weights.down[0].shape
        biased = bool(weights.gate_up_bias or weights.down_bias)
        mixture = Mixture(
            hidden,
            inner,
            activation,
            biased,
            weights.divided,
            routing.weighs_inputs,
            dtype,
            quantized,
        )
        if mixture not in self._refusals:
            why = refusal(mixture, self._machine) or self._fails(mixture)
            self._refusals[mixture] = why
            if self.why is None:  # a draft model, which comes later, may have others
                fused = f"flashinfer {self._machine.flashinfer}, fused"
                self.why = fused if why is None else f"grouped products (fused: {why})"
        if self._refusals[mixture] is not None:
            return None
        tensors = load_experts(weights.ups_first(), transfer)
        return FusedExperts(
            self._library, tensors, activation, routing.chosen, max_tokens, self._workspace
        )

    @cached_property
    def _library(self) -> FusedLibrary:
        return self._load()

    def _workspace(self, nbytes: int) -> torch.Tensor:
        """Memory that all layers share: a model's are computed one after the other, on a queue."""
        if nbytes not in self._workspaces:
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            self._workspaces[nbytes] = memory
        return self._workspaces[nbytes]

    def _fails(self, mixture: Mixture) -> str | None:
        """Load the kernels, and compute a small mixture by them; why they are of no use."""
        try:
            with torch.inference_mode():
                difference = self._difference(mixture)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = f"they do not work here: {fault(error)}"
            try:
                probe(self._device)
            except Exception as dead:
                raise ConfigError(
                    f"FlashInfer's fused experts: {why}. The GPU fails every call of this process "
                    "since; uninstall flashinfer-python to do without them",
                    param="model",
                ) from dead
            logger.warning("FlashInfer's fused experts do not work here", exc_info=True)
            return why
        if difference <= TOLERANCE:
            return None
        why = f"they differ from the grouped products by {difference:.2g} of the results"
        logger.warning("FlashInfer's fused experts are not taken: %s", why)
        return why

    def _difference(self, mixture: Mixture) -> float:
        """That of three tokens through three experts, by the size of the results."""
        here, inner = 3, mixture.inner
        device: dict[str, Any] = {"device": self._device}
        generator = torch.Generator(self._device).manual_seed(0)

        def noise(*shape: int, size: float = 1.0) -> torch.Tensor:
            numbers = torch.randn(*shape, generator=generator, **device)
            return (numbers * size).to(mixture.dtype)

        # Of two ranks that divide experts this is the second.
        ranks = 2 if mixture.divided else 1
        tensors = ExpertTensors(
            count=ranks * here,
            first=(ranks - 1) * here,
            gate_up=noise(here, 2 * inner, mixture.hidden, size=mixture.hidden**-0.5),
            down=noise(here, mixture.hidden, inner, size=inner**-0.5),
            gate_up_bias=noise(here, 2 * inner) if mixture.biased else None,
            down_bias=noise(here, mixture.hidden) if mixture.biased else None,
        )
        experts = torch.tensor([[0, 4], [3, 5], [1, 2]], dtype=torch.int32, **device)
        experts %= tensors.count
        weights = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]], **device)
        rows, chosen = experts.shape
        activation = mixture.activation
        ops = torch_ops(self._device)
        layers = dense_layers(ops, tensors)
        grouped = GroupedExperts(ops, self._device, Routing(chosen), activation, layers)
        fused = FusedExperts(
            self._library, ups_first(tensors), activation, chosen, rows, self._workspace
        )
        x = noise(rows, mixture.hidden)
        got, wanted = torch.full_like(x, float("nan")), torch.empty_like(x)
        fused(x, experts, weights, got)
        grouped(x, experts, weights, wanted)
        wanted = wanted.float()
        return float((got.float() - wanted).norm() / wanted.norm())


def ups_first(tensors: ExpertTensors) -> ExpertTensors:
    """A copy of ``tensors`` with ups before gates."""
    inner, bias = tensors.down.shape[2], tensors.gate_up_bias
    return replace(
        tensors,
        gate_up=tensors.gate_up.roll(inner, 1),
        gate_up_bias=None if bias is None else bias.roll(inner, 1),
    )
