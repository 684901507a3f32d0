"""The CPU's kernels of layers with a state, against transformers' functions in torch."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.models.bailing_hybrid import modeling_bailing_hybrid as bailing
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2 import modeling_mamba2 as mamba
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from pyengine._core import CpuKernels, CpuProgram, CpuStates, CpuTensor, step_numbers
from pyengine.model.cpu.executor import run_once

NO_SLOT = -1
SLOTS = 3
MAX_DRAFT = 2
TOKENS = 37

Numbers = NDArray[np.float32]


@dataclass
class Row:
    """A row of a step: from ``source`` to slot 0."""

    tokens: int
    source: int = NO_SLOT
    slot: int = 0
    accepted: int = 0
    drafts: int = 0
    snapshot: int = NO_SLOT
    snapshot_tokens: int = 0


def states_of(pool: Numbers, rows: list[Row]) -> CpuStates:
    header = np.zeros(len(step_numbers()), np.int64)
    header[step_numbers()["num_rows"]] = len(rows)
    header[step_numbers()["num_tokens"]] = sum(row.tokens for row in rows)
    starts = np.cumsum([0, *(row.tokens for row in rows)], dtype=np.int32)

    def field(name: str) -> NDArray[np.int32]:
        return np.array([getattr(row, name) for row in rows], np.int32)

    return CpuStates(
        header, starts, field("slot"), field("source"), field("accepted"), field("drafts"),
        field("snapshot"), field("snapshot_tokens"), pool, MAX_DRAFT,
    )  # fmt: skip


class Columns:
    """Random numbers as columns of one buffer, as a linear layer writes them."""

    def __init__(self, *widths: int) -> None:
        generator = np.random.default_rng(sum(widths))
        buffer = generator.standard_normal((TOKENS, sum(widths) + 3), np.float32)
        ends = np.cumsum([0, *widths])
        self.arrays = [buffer[:, a:b] for a, b in pairwise(ends)]

    def tensors(self, first: int, end: int) -> list[CpuTensor]:
        return [CpuTensor(array[first:end]) for array in self.arrays]

    def torch(self) -> list[torch.Tensor]:
        return [torch.from_numpy(array.copy()) for array in self.arrays]


Record = Callable[[CpuProgram, CpuStates, tuple[int, int], list[CpuTensor], CpuTensor], None]


def outputs(
    record: Record, inputs: Columns, width: int, floats: tuple[int, int], threads: int = 2
) -> Numbers:
    """All tokens in one row; in rows with drafts and from a snapshot the same bits come.

    Args:
        record: Records the kernel.
        inputs: Of all tokens.
        width: Of the outputs.
        floats: Of the state, and of a draft.
        threads: Of the kernels.
    """
    state, draft = floats
    kernels = CpuKernels(threads)

    def run(pool: Numbers, row: Row, first: int) -> Numbers:
        out = np.full((row.tokens, width), np.nan, np.float32)
        with run_once(kernels, row.tokens) as program:
            given = inputs.tensors(first, first + row.tokens)
            record(program, states_of(pool, [row]), (0, state), given, CpuTensor(out))
        return out

    whole = np.full((SLOTS, state + MAX_DRAFT * draft), np.nan, np.float32)
    out = run(whole, Row(TOKENS), 0)
    assert np.isfinite(out).all()
    cut = np.full_like(whole, np.nan)
    cut_rows = [
        (0, Row(12, drafts=2, snapshot=1, snapshot_tokens=4)),
        (11, Row(5, source=0, accepted=1)),
        (4, Row(8, source=1)),
        (12, Row(TOKENS - 12, source=0)),
    ]
    for first, row in cut_rows:
        part = run(cut, row, first)
        np.testing.assert_array_equal(part, out[first : first + row.tokens])
    np.testing.assert_array_equal(cut[0, :state], whole[0, :state])
    return out


def close(ours: Numbers, theirs: torch.Tensor) -> None:
    expected = theirs.detach().numpy().reshape(ours.shape)
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_convolution_is_transformers(bias: bool) -> None:
    channels, kernel = 70, 4
    columns = Columns(channels)
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((channels, kernel), np.float32)
    biases = generator.standard_normal(channels, np.float32) if bias else None

    def record(program: CpuProgram, states: CpuStates, place: Any, given: Any, out: Any) -> None:
        given_bias = None if biases is None else CpuTensor(biases)
        [x] = given
        program.convolve(states, place, x, CpuTensor(weight), given_bias, out, silu=bias)

    expected = qwen.causal_conv1d_fn(
        columns.torch()[0].T[None],
        torch.from_numpy(weight),
        None if biases is None else torch.from_numpy(biases),
        activation="silu" if bias else None,
    )
    ours = outputs(record, columns, channels, ((kernel - 1) * channels, channels))
    close(ours, expected[0].T.contiguous())


def delta_rule(shape: tuple[int, int, int, int], decays: int, **how: Any) -> Any:
    """Records a delta rule, and returns what it was given and its outputs."""
    heads, key_heads, key_dim, value_dim = shape
    keys = key_heads * key_dim
    given = Columns(keys, keys, heads * value_dim, heads * decays, heads)
    generator = np.random.default_rng(2)
    rates = np.exp(generator.standard_normal(heads, np.float32))
    bias = generator.standard_normal(heads * decays, np.float32)

    def record(program: CpuProgram, states: CpuStates, place: Any, given: Any, out: Any) -> None:
        query, key, value, gate, beta = given
        program.delta_rule(
            states, place, query, key, value, gate, beta, CpuTensor(rates), CpuTensor(bias), out,
            key_heads=key_heads, scale=key_dim**-0.5, **how,
        )  # fmt: skip

    floats = heads * key_dim * value_dim, heads * (key_dim + value_dim + decays + 1)
    out = outputs(record, given, heads * value_dim, floats)
    tensors = [
        each.view(1, TOKENS, count, -1)
        for each, count in zip(
            given.torch(), (key_heads, key_heads, heads, heads, heads), strict=True
        )
    ]
    return tensors, torch.from_numpy(rates), torch.from_numpy(bias), out


@pytest.mark.parametrize("strength", [1.0, 2.0])
def test_delta_rule_with_a_decay_for_each_head_is_transformers(strength: float) -> None:
    (query, key, value, gate, beta), rates, bias, ours = delta_rule(
        (4, 2, 16, 24), 1, strength=strength
    )
    decay = -rates * torch.nn.functional.softplus(gate[..., 0] + bias)
    weight = strength * beta[..., 0].sigmoid()
    expected, _ = qwen.torch_recurrent_gated_delta_rule(
        query, key, value, decay, weight, use_qk_l2norm_in_kernel=True
    )
    close(ours, expected)


@pytest.mark.parametrize("bound", [None, -5.0])
def test_delta_rule_with_a_decay_for_each_channel_is_transformers(bound: float | None) -> None:
    heads, dim = 3, 16
    (query, key, value, gate, beta), rates, bias, ours = delta_rule(
        (heads, heads, dim, dim), dim, bound=bound
    )
    config: Any = type("Config", (), {
        "linear_head_dim": dim, "linear_num_heads": heads, "hidden_size": heads * dim,
        "kda_safe_gate": bound is not None, "kda_lower_bound": bound,
    })  # fmt: skip
    forget = bailing.BailingHybridForgetGate(config).requires_grad_(False)
    forget.A_log.copy_(rates.log())
    forget.dt_bias.copy_(bias)
    forget.f_proj.weight.copy_(torch.eye(heads * dim))
    decay = forget(gate.flatten(2))
    expected, _ = kimi.recurrent_kimi_delta_attention(
        query, key, value, decay, beta[..., 0].sigmoid(), None, False, use_qk_l2norm_in_kernel=True
    )
    close(ours, expected)


def test_decaying_sum_with_steps_is_the_state_space_of_transformers() -> None:
    heads, groups, key_dim, value_dim = 4, 2, 16, 8
    keys, limits = groups * key_dim, (0.3, 1.7)
    given = Columns(keys, keys, heads * value_dim, heads)
    generator = np.random.default_rng(2)
    rates, bias, skip = (generator.uniform(0.1, 2, heads).astype(np.float32) for _ in range(3))

    def record(program: CpuProgram, states: CpuStates, place: Any, given: Any, out: Any) -> None:
        query, key, value, steps = given
        program.decay_sum(
            states, place, query, key, value, steps, CpuTensor(rates), CpuTensor(bias),
            CpuTensor(skip), out, key_heads=groups, limits=limits,
        )  # fmt: skip

    floats = heads * key_dim * value_dim, heads * (key_dim + value_dim + 2)
    ours = outputs(record, given, heads * value_dim, floats)
    query, key, value, steps = given.torch()
    expected = mamba.mamba2_chunk_scan(
        value.view(1, TOKENS, heads, value_dim),
        steps[None],
        -torch.from_numpy(rates),
        key.view(1, TOKENS, groups, key_dim),
        query.view(1, TOKENS, groups, key_dim),
        16,
        D=torch.from_numpy(skip),
        dt_bias=torch.from_numpy(bias),
        dt_softplus=True,
        dt_limit=limits,
    )
    close(ours, expected)


def test_decaying_sum_without_steps_is_lightning_attention() -> None:
    heads, dim = 3, 8
    given = Columns(*[heads * dim] * 3)
    slopes = np.array([0.8, 0.4, 0.1], np.float32)

    def record(program: CpuProgram, states: CpuStates, place: Any, given: Any, out: Any) -> None:
        query, key, value = given
        program.decay_sum(
            states, place, query, key, value, None, CpuTensor(slopes), None, None, out,
            key_heads=heads,
        )  # fmt: skip

    ours = outputs(record, given, heads * dim, (heads * dim * dim, heads * (2 * dim + 2)))
    query, key, value = (each.view(TOKENS, heads, dim) for each in given.torch())
    scores = torch.einsum("thd,shd->hts", query, key)
    apart = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    decay = torch.exp(-torch.from_numpy(slopes)[:, None, None] * apart).tril()
    close(ours, torch.einsum("hts,shd->thd", scores * decay, value))


@pytest.mark.parametrize(
    ("norm", "group", "function", "gate_first"),
    [
        (qwen.Qwen3NextRMSNormGated(8, 1e-5), 8, "silu", False),
        (kimi.KimiLinearRMSNormGated(8, 1e-5), 8, "sigmoid", False),
        (mamba.MambaRMSNormGated(48, 16, 1e-5), 16, "silu", True),
    ],
)
def test_gated_norm_is_transformers(norm: Any, group: int, function: str, gate_first: bool) -> None:
    x, gates = Columns(48).arrays[0].copy(), Columns(48, 5).arrays[0]
    weight = np.random.default_rng(4).standard_normal(len(norm.weight), np.float32)
    norm.requires_grad_(False).weight.copy_(torch.from_numpy(weight))
    width = (-1, len(weight))
    expected = norm(
        torch.from_numpy(x.copy()).view(width), torch.from_numpy(gates.copy()).view(width)
    )
    with run_once(CpuKernels(2), TOKENS) as program:
        program.gated_norm(
            CpuTensor(x), CpuTensor(gates), CpuTensor(weight), 1e-5,
            group=group, function=function, gate_first=gate_first,
        )  # fmt: skip
    close(x, expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(1), Row(1)], "two rows write one slot"),
        ([Row(1), Row(1, slot=1, source=0)], "another row writes"),
        ([Row(1, slot=1, source=0, accepted=1)], "another slot"),
        ([Row(1, drafts=2)], "more drafts"),
        ([Row(2, drafts=1, snapshot=1, snapshot_tokens=2)], "than are certain"),
        ([Row(1, slot=SLOTS)], "outside of the pool"),
    ],
)
def test_step_that_is_malformed_is_refused(rows: list[Row], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convolve(rows, (0, 6), 12)


@pytest.mark.parametrize("place", [(0, 5), (2, 8), (7, 0)])
def test_place_that_a_slot_does_not_have_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not lie apart"):
        convolve([Row(1)], place, 11)


def convolve(rows: list[Row], place: tuple[int, int], floats: int) -> None:
    """Two channels over four tokens: the state has 6 numbers, and a draft 2."""
    tokens = sum(row.tokens for row in rows)
    x, out = np.zeros((tokens, 2), np.float32), np.zeros((tokens, 2), np.float32)
    states = states_of(np.zeros((SLOTS, floats), np.float32), rows)
    weight = CpuTensor(np.zeros((2, 4), np.float32))
    with run_once(CpuKernels(1), tokens) as program:
        program.convolve(states, place, CpuTensor(x), weight, None, CpuTensor(out), silu=False)
