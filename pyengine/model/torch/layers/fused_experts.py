"""Experts by FlashInfer's fused mixture: one call sorts rows by expert, multiplies, activates,
multiplies again and adds up what a row's experts made of it.

The kernels are CUTLASS's grouped products of TensorRT-LLM. Their layout is that of checkpoints, but
for one thing: the ups lie before the gates.

::

    gate_up   [experts here, 2 * inner, hidden]     rows 0 .. inner           ups
                                                    rows inner .. 2 * inner   gates
    down      [experts here, hidden, inner]

Experts have their numbers among those of all ranks: the call leaves out those of others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pyengine.kernels.layers.activation import SLOPE
from pyengine.model.architectures.parts import Activation
from pyengine.model.torch.attention.flashinfer.toolchain import find_ninja
from pyengine.model.torch.layers.expert_tensors import ExpertTensors

ACTIVATIONS = {"silu": "Swiglu", "gelu_tanh": "GegluTanh", "clamped_swiglu": "SwigluBias"}
"""The library's names of the activations that it has."""


@dataclass(frozen=True)
class FusedLibrary:
    """The parts of ``flashinfer.fused_moe`` that are used.

    Attributes:
        fused_moe: ``cutlass_fused_moe``.
        workspace_bytes: ``cutlass_fused_moe_workspace_size``.
        activations: ``ActivationType``, by name.
    """

    fused_moe: Callable[..., Any]
    workspace_bytes: Callable[..., int]
    activations: Any


def load_fused_library() -> FusedLibrary:
    """The installed one."""
    from flashinfer import fused_moe

    find_ninja()
    return FusedLibrary(
        fused_moe.cutlass_fused_moe,
        fused_moe.cutlass_fused_moe_workspace_size,
        fused_moe.ActivationType,
    )


class FusedExperts:
    """The experts of a layer. Queues its kernels on the current stream; can be captured.

    The order of sums is the same in each call: the faster way to add up, within the last product,
    has none.
    """

    def __init__(
        self,
        library: FusedLibrary,
        tensors: ExpertTensors,
        activation: Activation,
        chosen: int,
        max_tokens: int,
        workspace: Callable[[int], torch.Tensor],
    ) -> None:
        """Of ``tensors`` whose ups come first.

        Args:
            library: FlashInfer's.
            tensors: The weights of this rank; ranks that divide experts have as many each.
            activation: Of the gates, one of :data:`ACTIVATIONS`.
            chosen: Experts of a token.
            max_tokens: Most rows of a call.
            workspace: Memory of so many bytes, uint8 on the device, which other layers may share:
                no two of them run at once.
        """
        experts, hidden, inner = tensors.down.shape
        gate_up_bias, down_bias = tensors.gate_up_bias, tensors.down_bias
        if gate_up_bias is not None or down_bias is not None:
            # The library takes both or none.
            if gate_up_bias is None:
                gate_up_bias = tensors.down.new_zeros(experts, 2 * inner)
            if down_bias is None:
                down_bias = tensors.down.new_zeros(experts, hidden)
        kind = library.activations[ACTIVATIONS[activation.kind]]
        ranks = {"ep_size": tensors.count // experts, "ep_rank": tensors.first // experts}
        common: dict[str, Any] = {"activation_type": kind, "use_fused_finalize": False} | ranks
        dtype = tensors.down.dtype
        types = dict.fromkeys(("x_dtype", "weight_dtype", "output_dtype"), dtype)
        nbytes = library.workspace_bytes(
            max_num_tokens=max_tokens,
            hidden_size=hidden,
            intermediate_size=inner,
            num_experts_total=tensors.count,
            top_k=chosen,
            device=tensors.down.device,
            **types,
            **common,
        )
        if activation.limit is not None:
            numbers = {"alpha": SLOPE, "beta": 1.0, "limit": activation.limit}
            for name, number in numbers.items():
                of_experts = torch.full((experts,), number, device=tensors.down.device)
                common[f"swiglu_{name}"] = of_experts
        self._call = partial(
            library.fused_moe,
            fc1_expert_weights=tensors.gate_up,
            fc2_expert_weights=tensors.down,
            fc1_expert_biases=gate_up_bias,
            fc2_expert_biases=down_bias,
            output_dtype=dtype,
            quant_scales=[],
            workspace_buffer=workspace(nbytes),
            tune_max_num_tokens=max_tokens,
            **common,
        )

    def __call__(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        """See :class:`pyengine.model.torch.layers.experts.ExpertProducts`."""
        self._call(input=x, token_selected_experts=experts, token_final_scales=weights, output=out)
