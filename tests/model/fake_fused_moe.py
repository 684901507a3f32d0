"""FlashInfer's fused experts as version 0.7.2 has them, on the CPU.

The parameters of the real calls, as far as they are used, and what they check are written down here
as facts; the names of every call are noted, and a test on a GPU binds them to the installed
library's.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

from pyengine.model.torch.layers.fused_experts import FusedLibrary


class ActivationType(IntEnum):
    Swiglu = 3
    SwigluBias = 5
    GegluTanh = 8


def workspace_bytes(rows: int, hidden: int, inner: int, chosen: int) -> int:
    return 4 * rows * chosen * (hidden + 3 * inner)


class FusedMoe:
    """The calls, and what they were asked.

    Attributes:
        bound: The function's name, and those of what it was called with.
        rows: Of each call.
        ranks: Each rank that called, and of how many.
        workspaces: The addresses of what each number of rows at most was given.
    """

    def __init__(self) -> None:
        self.bound: set[tuple[str, tuple[str, ...]]] = set()
        self.rows: list[int] = []
        self.ranks: set[tuple[int, int]] = set()
        self.workspaces: dict[int, set[int]] = {}

    def library(self) -> FusedLibrary:
        return FusedLibrary(
            self._noting("cutlass_fused_moe", self.cutlass_fused_moe),
            self._noting("cutlass_fused_moe_workspace_size", self.cutlass_fused_moe_workspace_size),
            ActivationType,
        )

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**given: Any) -> Any:
            self.bound.add((name, tuple(sorted(given))))
            return call(**given)

        return noted

    def cutlass_fused_moe_workspace_size(
        self,
        max_num_tokens: int,
        hidden_size: int,
        intermediate_size: int,
        num_experts_total: int,
        top_k: int,
        *,
        x_dtype: torch.dtype,
        weight_dtype: torch.dtype,
        output_dtype: torch.dtype,
        activation_type: ActivationType,
        ep_size: int,
        ep_rank: int,
        use_fused_finalize: bool,
        device: torch.device,
    ) -> int:
        assert x_dtype == weight_dtype == output_dtype
        assert num_experts_total % ep_size == 0
        assert 0 <= ep_rank < ep_size
        assert not use_fused_finalize
        return workspace_bytes(max_num_tokens, hidden_size, intermediate_size, top_k)

    def cutlass_fused_moe(
        self,
        input: torch.Tensor,  # noqa: A002 - the library's name
        token_selected_experts: torch.Tensor,
        token_final_scales: torch.Tensor,
        fc1_expert_weights: torch.Tensor,
        fc2_expert_weights: torch.Tensor,
        output_dtype: torch.dtype,
        quant_scales: list[torch.Tensor],
        fc1_expert_biases: torch.Tensor | None,
        fc2_expert_biases: torch.Tensor | None,
        ep_size: int,
        ep_rank: int,
        output: torch.Tensor,
        tune_max_num_tokens: int,
        activation_type: ActivationType,
        use_fused_finalize: bool,
        workspace_buffer: torch.Tensor,
        swiglu_alpha: torch.Tensor | None = None,
        swiglu_beta: torch.Tensor | None = None,
        swiglu_limit: torch.Tensor | None = None,
    ) -> None:
        experts, hidden, inner = fc2_expert_weights.shape
        rows, chosen = token_selected_experts.shape
        tensors = (input, fc1_expert_weights, fc2_expert_weights, output)
        assert {each.dtype for each in tensors} == {output_dtype}
        assert all(each.is_contiguous() for each in tensors)
        assert hidden % 8 == inner % 8 == 0
        assert fc1_expert_weights.shape == (experts, 2 * inner, hidden)
        assert input.shape == output.shape == (rows, hidden)
        assert token_selected_experts.dtype == torch.int32
        assert token_final_scales.dtype == torch.float32
        assert token_final_scales.shape == (rows, chosen)
        assert quant_scales == []
        assert not use_fused_finalize
        assert rows <= tune_max_num_tokens
        assert workspace_buffer.dtype == torch.uint8
        assert workspace_buffer.numel() >= workspace_bytes(rows, hidden, inner, chosen)
        first = ep_rank * experts
        assert token_selected_experts.min() >= 0
        assert token_selected_experts.max() < ep_size * experts
        if fc1_expert_biases is None or fc2_expert_biases is None:
            assert fc1_expert_biases is fc2_expert_biases
        else:
            assert fc1_expert_biases.shape == (experts, 2 * inner)
            assert fc2_expert_biases.shape == (experts, hidden)
            assert {fc1_expert_biases.dtype, fc2_expert_biases.dtype} == {output_dtype}
        clamped = (swiglu_alpha, swiglu_beta, swiglu_limit)
        for each in clamped:
            assert (each is not None) == (activation_type == ActivationType.SwigluBias)
            assert each is None or (each.shape, each.dtype) == ((experts,), torch.float32)
        self.rows.append(rows)
        self.ranks.add((ep_rank, ep_size))
        addresses = self.workspaces.setdefault(tune_max_num_tokens, set())
        addresses.add(workspace_buffer.data_ptr())
        workspace_buffer.random_()
        sums = torch.zeros(rows, hidden)
        for number in range(experts):
            row, choice = (token_selected_experts == first + number).nonzero(as_tuple=True)
            linear = torch.nn.functional.linear
            bias = None if fc1_expert_biases is None else fc1_expert_biases[number]
            ups, gates = linear(input[row], fc1_expert_weights[number], bias).float().chunk(2, 1)
            of_expert = [None if each is None else float(each[number]) for each in clamped]
            between = activated(activation_type, gates, ups, *of_expert).to(output_dtype)
            bias = None if fc2_expert_biases is None else fc2_expert_biases[number]
            results = linear(between, fc2_expert_weights[number], bias).float()
            sums.index_add_(0, row, results * token_final_scales[row, choice][:, None])
        output.copy_(sums)


def activated(
    kind: ActivationType,
    gates: torch.Tensor,
    ups: torch.Tensor,
    alpha: float | None,
    beta: float | None,
    limit: float | None,
) -> torch.Tensor:
    """As the adaptors of the library's kernels."""
    if kind == ActivationType.GegluTanh:
        return torch.nn.functional.gelu(gates, approximate="tanh") * ups
    if kind == ActivationType.Swiglu:
        return torch.nn.functional.silu(gates) * ups
    assert alpha is not None
    assert beta is not None
    assert limit is not None
    gates, ups = gates.clamp(max=limit), ups.clamp(-limit, limit)
    return gates * torch.sigmoid(gates * alpha) * (ups + beta)
