"""The kernels on a GPU against their references: shapes of Llama-3-8B, all types, in graphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pyengine._core import step_numbers  # noqa: E402
from pyengine.kernels import feed  # noqa: E402
from pyengine.kernels.layers import activation, head_norm, norm, quantize, rope  # noqa: E402
from pyengine.kernels.sampling import penalties, top_logprobs  # noqa: E402
from pyengine.kernels.sampling import sample as sampling  # noqa: E402
from tests.kernels.backends import backend  # noqa: E402
from tests.kernels.pairs import DTYPES, assert_close, both  # noqa: E402
from tests.model.draws import on_cpu, random_logits, random_step  # noqa: E402

pytestmark = pytest.mark.gpu

WIDTH, INTERMEDIATE, VOCABULARY = 4096, 14_336, 128_256
HEADS, KV_HEADS, DIM, BLOCK_SIZE, CONTEXT = 32, 8, 128, 16, 8192
ROWS = [1, 7, 256, 8192]
FLOAT8 = torch.float8_e4m3fn
# See tests/kernels: two roundings, of which each may fall to the other side; or one.
TWO = {torch.float32: 16, torch.bfloat16: 2, torch.float16: 2}
ONE = {torch.float32: 4, torch.bfloat16: 1, torch.float16: 1, FLOAT8: 1}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def normal(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def integers(low: int, high: int, count: int, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(low, high, (count,), generator=generator, device="cuda").int()


@dtypes
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [576, WIDTH, 8192, 65_536])
def test_norm(width: int, rows: int, dtype: Any) -> None:
    rows = min(rows, 2**24 // width)
    tensors = [normal(rows, width, dtype=dtype, seed=seed) for seed in range(2)]
    given = (*tensors, normal(width, dtype=dtype, seed=2), 1e-5, torch.zeros_like(tensors[0]))
    ours, theirs = both(norm.add_rms_norm, norm.add_rms_norm_reference, *given)
    assert_close(ours[0], theirs[0], 0)
    assert_close(ours[4], theirs[4], TWO[dtype])


@dtypes
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dim", [64, 96, DIM, 256])
def test_head_norm(dim: int, rows: int, dtype: Any) -> None:
    weights = [normal(dim, dtype=dtype, seed=seed) for seed in range(2)]
    given = normal(rows, (HEADS + 2 * KV_HEADS) * dim, dtype=dtype), *weights, HEADS, 1e-6
    ours, theirs = both(head_norm.head_rms_norm, head_norm.head_rms_norm_reference, *given)
    assert_close(ours[0], theirs[0], TWO[dtype])


@dtypes
@pytest.mark.parametrize("rows", ROWS)
def test_activation(rows: int, dtype: Any) -> None:
    given = normal(rows, 2 * INTERMEDIATE, dtype=dtype) * 4, normal(rows, INTERMEDIATE, dtype=dtype)
    ours, theirs = both(activation.gated, activation.gated_reference, *given)
    assert_close(ours[1], theirs[1], TWO[dtype], 2.0**-24)


@dtypes
@pytest.mark.parametrize("cache", [*DTYPES, FLOAT8], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_rope(rows: int, cache: Any, dtype: Any) -> None:
    num_blocks = rows // BLOCK_SIZE + 3
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device="cuda")[:rows].int()
    slots[::5] = -1
    turns = torch.outer(torch.arange(CONTEXT), 0.86 ** torch.arange(DIM // 2)).cuda()
    pages = normal(num_blocks, BLOCK_SIZE, KV_HEADS, DIM).to(cache)
    given = (
        normal(rows, (HEADS + 2 * KV_HEADS) * DIM, dtype=dtype),
        torch.cat((turns.cos(), turns.sin()), dim=1).float(),
        integers(0, CONTEXT, rows),
        slots, pages, pages.clone(), HEADS,
    )  # fmt: skip
    ours, theirs = both(rope.rope_append, rope.rope_append_reference, *given)
    assert_close(ours[0], theirs[0], ONE[dtype], 2e-6)
    assert_close(ours[4], theirs[4], ONE[cache], 2.0**-9 if cache == FLOAT8 else 2e-6)
    assert_close(ours[5], theirs[5], 0)


def test_a_cache_of_more_than_two_thousand_million_numbers() -> None:
    num_blocks = 2**31 // (BLOCK_SIZE * KV_HEADS * DIM) + 2
    keys, values = (
        torch.zeros(num_blocks, BLOCK_SIZE, KV_HEADS, DIM, dtype=FLOAT8, device="cuda")
        for _ in range(2)
    )
    qkv = torch.ones(1, (HEADS + 2 * KV_HEADS) * DIM, device="cuda")
    angles = torch.cat((torch.ones(1, DIM // 2), torch.zeros(1, DIM // 2)), dim=1).cuda()
    last = torch.tensor([num_blocks * BLOCK_SIZE - 1], dtype=torch.int32, device="cuda")
    rope.rope_append(qkv, angles, integers(0, 1, 1), last, keys, values, HEADS)
    for cache in (keys, values):
        assert (cache[-1, -1].float() == 1).all()
        assert cache.view(torch.uint8).count_nonzero() == KV_HEADS * DIM


@pytest.mark.parametrize("rows", [1, 3, 64, 2048])
@pytest.mark.parametrize("shape", [(6144, WIDTH), (WIDTH, INTERMEDIATE)])
def test_products_of_8_bits(shape: tuple[int, int], rows: int) -> None:
    """Against the product of the numbers that are meant; where the library has it by rows."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no product of 8 bits with a scale for each row")
    outputs, inputs = shape
    x = normal(rows, inputs, dtype=torch.bfloat16)
    weight = normal(outputs, inputs, seed=1).to(FLOAT8)
    of_outputs = normal(1, outputs, seed=2).abs() / 64 + 0.01
    quantized, scales = torch.empty_like(x, dtype=FLOAT8), torch.zeros(rows, 1, device="cuda")
    quantize.quantize_rows(x, quantized, scales)
    out = torch.empty(rows, outputs, dtype=torch.bfloat16, device="cuda")
    torch._scaled_mm(
        quantized, weight.t(), scale_a=scales, scale_b=of_outputs, out_dtype=out.dtype, out=out,
        use_fast_accum=True,
    )  # fmt: skip
    meant = (quantized.float() * scales) @ (weight.float() * of_outputs.T).T
    torch.testing.assert_close(out.float(), meant, rtol=2e-2, atol=2e-2 * meant.std().item())


@dtypes
@pytest.mark.parametrize("rows", [1, 64])
def test_penalty_and_restore(rows: int, dtype: Any) -> None:
    each = 9000
    logits = normal(rows, VOCABULARY, dtype=dtype)
    start = torch.arange(rows + 1, device="cuda").int() * each
    token = torch.cat([torch.randperm(VOCABULARY, device="cuda")[:each] for _ in range(rows)])
    factor, add = normal(rows * each).abs() + 0.5, normal(rows * each, seed=1)
    given = (logits, start, token.int(), factor, add, 0, torch.zeros_like(add))
    ours, theirs = both(penalties.apply_penalties, penalties.apply_penalties_reference, *given)
    assert_close(ours[0], theirs[0], 0)
    assert not torch.equal(ours[0], logits)
    penalties.restore(ours[0], start, given[2], ours[6])
    assert torch.equal(ours[0], logits)


@dtypes
@pytest.mark.parametrize("vocabulary", [1, 1000, 32_000, VOCABULARY, 262_144])
def test_top_logprobs(vocabulary: int, dtype: Any) -> None:
    rows, wanted = 17, 20
    logits = (normal(rows, vocabulary) * 3).to(dtype)
    outputs = (
        torch.zeros(rows, wanted, dtype=torch.int32, device="cuda"),
        torch.zeros(rows, wanted, device="cuda"),
        torch.zeros(rows, device="cuda"),
    )
    given = (logits, integers(0, vocabulary, rows), *outputs)
    ours, theirs = both(top_logprobs.top_logprobs, top_logprobs.top_logprobs_reference, *given)
    assert torch.equal(ours[2], theirs[2])
    for place in (3, 4):
        torch.testing.assert_close(ours[place], theirs[place], rtol=1e-5, atol=1e-5)


@dtypes
@pytest.mark.parametrize("rows", [1, 9, 90])
@pytest.mark.parametrize("vocabulary", [1100, 32_000, VOCABULARY])
def test_programs_that_share_rows_give_the_tokens_of_rust(
    vocabulary: int, rows: int, dtype: Any
) -> None:
    random = np.random.default_rng(vocabulary + rows)
    step = random_step(random, rows, vocabulary)
    logits = random_logits(random, len(step.arrays()["logit_row"]), vocabulary)
    rounded = torch.from_numpy(logits).to(dtype).float().numpy()
    assert sampling.parts_of(len(logits), vocabulary) > 1
    tokens = backend(False, dtype)(step, rounded)[0]
    assert (tokens == on_cpu(step, rounded)[0]).all()


def launches() -> dict[str, tuple[Callable[[], None], list[Any]]]:
    """Each kernel on tensors of its own: a call, and what it writes."""
    residual, branch, out = (normal(9, WIDTH, seed=seed) for seed in range(3))
    gain = normal(WIDTH, seed=3)
    gate_up, gated = normal(9, 2 * INTERMEDIATE), normal(9, INTERMEDIATE)
    qkv = normal(9, (HEADS + 2 * KV_HEADS) * DIM)
    heads = qkv.clone()
    angles, positions = normal(100, DIM), integers(0, 100, 9)
    keys, values = (normal(4, BLOCK_SIZE, KV_HEADS, DIM, seed=seed) for seed in range(2))
    slots = torch.arange(9, device="cuda").int() * 5 - 1
    header = torch.zeros(len(step_numbers()), dtype=torch.int64, device="cuda")
    header[step_numbers()["num_feeds"]] = 3
    ids, place = integers(0, 9, 9), torch.randperm(9, device="cuda").int()
    last = ids + 20
    logits, chosen = normal(3, VOCABULARY), integers(0, VOCABULARY, 3)
    tokens, logprobs, of_chosen = integers(0, 1, 15).view(3, 5), normal(3, 5), normal(3)
    start = torch.tensor([0, 1, 2, 3], dtype=torch.int32, device="cuda")
    penalized, factor = logits.clone(), normal(3).abs() + 1
    return {
        "norm": (lambda: norm.add_rms_norm(residual, branch, gain, 1e-5, out), [residual, out]),
        "head_norm": (
            lambda: head_norm.head_rms_norm(heads, gain[:DIM], gain[:DIM], HEADS, 1e-5),
            [heads],
        ),
        "activation": (lambda: activation.gated(gate_up, gated), [gated]),
        "rope": (
            lambda: rope.rope_append(qkv, angles, positions, slots, keys, values, HEADS),
            [qkv, keys, values],
        ),
        "feed": (lambda: feed.feed(header, ids, place, place, last), [ids]),
        "penalty": (
            lambda: penalties.apply_penalties(penalized, start, chosen, factor, factor),
            [penalized],
        ),
        "top_logprobs": (
            lambda: top_logprobs.top_logprobs(logits, chosen, tokens, logprobs, of_chosen),
            [tokens, logprobs, of_chosen],
        ),
    }


KERNELS = (
    "norm",
    "head_norm",
    "activation",
    "rope",
    "feed",
    "penalty",
    "top_logprobs",
)


@pytest.mark.parametrize("name", KERNELS)
def test_in_a_graph_and_without_waiting(name: str) -> None:
    assert_captured(*launches()[name])


def assert_captured(launch: Callable[[], None], written: list[Any]) -> None:
    """That ``launch`` can be captured, waits for nothing, and writes the same when replayed."""
    # Compiled by a first call, of which nothing stays.
    before = [tensor.clone() for tensor in written]
    launch()
    expected = [tensor.clone() for tensor in written]
    assert any(not torch.equal(a, b) for a, b in zip(before, expected, strict=True))
    for tensor, old in zip(written, before, strict=True):
        tensor.copy_(old)
    mode = torch.cuda.get_sync_debug_mode()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    graph.replay()
    for tensor, after in zip(written, expected, strict=True):
        assert torch.equal(tensor, after)
