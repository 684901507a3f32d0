"""The experts of a layer, those of Qwen3-30B-A3B: rows that are sent to all of them in turn.

The floor is that of the weights of the experts that rows reach.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from benches.gpu.cases import Case
from benches.gpu.layer_cases import works
from benches.gpu.part import Bench
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.parts import SILU
from pyengine.model.torch.device.ops import KERNELS, REFERENCES
from pyengine.model.torch.layers.experts.grouped import (
    GroupedExperts,
    GroupedLayers,
    GroupedLinear,
    has_grouped_mm,
)
from pyengine.model.torch.layers.experts.mixture import ExpertProducts


class Mixture(NamedTuple):
    """The size of a layer's experts."""

    experts: int
    chosen: int
    hidden: int
    inner: int


QWEN3_30B = Mixture(experts=128, chosen=8, hidden=2048, inner=768)
TINY = Mixture(experts=4, chosen=2, hidden=64, inner=32)
ROWS = (1, 64, 256, 2048)


def expert_cases(bench: Bench) -> Iterator[Case]:
    """By grouped products: torch's where it has them, or else Triton's."""
    by_torch = not bench.cuda or has_grouped_mm(bench.device, torch.bfloat16)

    def made(gate_up: torch.Tensor, down: torch.Tensor, chosen: int) -> ExpertProducts:
        ops = KERNELS if bench.cuda else REFERENCES
        first, second = (GroupedLinear(ops, each, None, by_torch) for each in (gate_up, down))
        layers = GroupedLayers(len(down), 0, len(down), first, second)
        return GroupedExperts(ops, bench.device, Routing(chosen), SILU, layers)

    yield from cases(bench, "torch" if by_torch else "triton", made)


def cases(
    bench: Bench, by: str, make: Callable[[torch.Tensor, torch.Tensor, int], ExpertProducts]
) -> Iterator[Case]:
    """One of each number of rows."""
    mixture = TINY if bench.tiny else QWEN3_30B
    experts, chosen, hidden, inner = mixture
    for rows in (1, 3) if bench.tiny else ROWS:

        def buffers(rows: int = rows) -> tuple[Any, ...]:
            gate_up, down = weights(bench, mixture)
            like: dict[str, Any] = {"device": bench.device}
            numbers = torch.arange(rows * chosen, dtype=torch.int32, **like) % experts
            shares = torch.full((rows, chosen), 1 / chosen, **like)
            x = torch.randn(rows, hidden, **like).to(down.dtype)
            made = make(gate_up, down, chosen)
            return made, x, numbers.view(rows, chosen), shares, torch.empty_like(x)

        matrices = 3 * hidden * inner
        item = torch.bfloat16.itemsize if bench.cuda else torch.float32.itemsize
        read = min(experts, rows * chosen) * matrices * item
        yield Case(
            "experts",
            f"{rows} rows, {chosen} of {experts}",
            works(bench, {by: call}, buffers, read),
            read=read + 2 * rows * hidden * item,
            flops=2 * rows * chosen * matrices,
        )


def call(products: ExpertProducts, *given: torch.Tensor) -> None:
    """Rows through their experts."""
    products(*given)


def weights(bench: Bench, mixture: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all experts: gates before ups, and the results'."""
    experts, _, hidden, inner = mixture
    dtype = torch.bfloat16 if bench.cuda else torch.float32
    like: dict[str, Any] = {"dtype": dtype, "device": bench.device}
    gate_up = torch.randn(experts, 2 * inner, hidden, **like).mul_(hidden**-0.5)
    down = torch.randn(experts, hidden, inner, **like).mul_(inner**-0.5)
    return gate_up, down
