"""Experts are chosen alike by torch and by the Rust kernel, whatever the router."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pyengine._core import CpuExperts, CpuKernels, CpuLinear
from pyengine.kernels.layers.router import route_reference
from pyengine.model.architectures.experts import Routing
from pyengine.model.cpu.executor import run_once
from pyengine.model.dtypes import cpu_tensor

EXPERTS, HIDDEN, ROWS = 8, 16, 40

ROUTINGS = [
    Routing(2),
    Routing(3, normalized=True, scale=2.5),
    Routing(2, sigmoid=True, normalized=True),
    Routing(3, sigmoid=True, scale=0.5, groups=4, chosen_groups=2),
    Routing(3, scale=2.0, groups=4, chosen_groups=2, group_best=1),
]


def dense(weight: NDArray[Any]) -> CpuLinear:
    return CpuLinear.dense(cpu_tensor(np.ascontiguousarray(weight, np.float32)))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_rows_go_where_torch_sends_them(routing: Routing, biased: bool) -> None:
    draws = np.random.default_rng(routing.chosen)
    logits = draws.normal(size=(ROWS, EXPERTS)).astype(np.float32)
    bias = draws.normal(size=EXPERTS).astype(np.float32) if biased else None
    # Expert e answers with e + 1 in place e, and 0 elsewhere: its weight can be read off.
    gate_up = [dense(np.eye(2, HIDDEN, 0) * 0 + 1.0 / HIDDEN) for _ in range(EXPERTS)]
    down = [dense(np.eye(HIDDEN, 1, -expert)) for expert in range(EXPERTS)]
    experts = CpuExperts(
        gate_up,
        down,
        "relu2",
        chosen=routing.chosen,
        sigmoid=routing.sigmoid,
        normalized=routing.normalized,
        scale=routing.scale,
        bias=None if bias is None else [float(number) for number in bias],
        groups=routing.groups,
        chosen_groups=routing.chosen_groups,
        group_best=routing.group_best,
    )
    x, out = np.ones((ROWS, HIDDEN), np.float32), np.zeros((ROWS, HIDDEN), np.float32)
    with run_once(CpuKernels(2), ROWS) as program:
        program.experts(experts, cpu_tensor(logits), cpu_tensor(x), cpu_tensor(out))
    chosen = torch.empty(ROWS, routing.chosen, dtype=torch.int32)
    weights, routed = torch.empty(chosen.shape), torch.zeros(EXPERTS, dtype=torch.int64)
    route_reference(
        torch.from_numpy(logits),
        chosen,
        weights,
        routed,
        torch.tensor([ROWS]),
        sigmoid=routing.sigmoid,
        normalized=routing.normalized,
        scale=routing.scale,
        groups=routing.groups,
        chosen_groups=routing.chosen_groups,
        group_best=routing.group_best,
        bias=None if bias is None else torch.from_numpy(bias),
    )
    assert experts.routed == routed.tolist()
    expected = torch.zeros(ROWS, HIDDEN).scatter_(1, chosen.long(), weights)
    torch.testing.assert_close(torch.from_numpy(out), expected, rtol=1e-5, atol=1e-6)


def test_experts_that_do_not_fit_are_refused() -> None:
    wide, narrow = dense(np.zeros((4, HIDDEN))), dense(np.zeros((HIDDEN, 2)))
    with pytest.raises(ValueError, match="a gate_up"):
        CpuExperts([wide], [dense(np.zeros((HIDDEN, 3)))], "silu", chosen=1)
    with pytest.raises(ValueError, match="3 of 1 experts in 1 groups"):
        CpuExperts([wide], [narrow], "silu", chosen=3)
    with pytest.raises(ValueError, match="1 experts from 2 on are not among 2"):
        CpuExperts([wide], [narrow], "silu", chosen=1, first=2, count=2)
    with pytest.raises(ValueError, match="a bias has 1 numbers, not 2"):
        CpuExperts([wide], [narrow], "silu", chosen=1, bias=[0.0, 1.0])
