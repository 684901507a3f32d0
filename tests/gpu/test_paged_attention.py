"""Attention backends on a GPU: Llama-3-8B's heads, any context, graphs, and no synchronization."""

import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pyengine.kernels.attention.paged import Pages  # noqa: E402
from pyengine.model.batch import StepBuffers  # noqa: E402
from pyengine.model.torch.attention.selection import (  # noqa: E402
    NAMES,
    detect,
    make_backend,
    refusal,
)
from pyengine.model.torch.attention.spec import AttentionSpec  # noqa: E402
from tests.attention_reference import attention_reference  # noqa: E402
from tests.model.flashinfer_bench import all_calls  # noqa: E402
from tests.model.paged_steps import FIELDS, Step, fill, layer_of, layout_of, pad, random_table  # noqa: E402

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
BLOCKS, SIZE = 9000, 16
CONTEXTS = [1, 15, 16, 17, 128, 129, 1000, 4096, 8192]
TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 2e-3}


def llama(dtype: str = "bfloat16", kv_dtype: str | None = None, **more: Any) -> AttentionSpec:
    given: dict[str, Any] = {
        "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": dtype,
        "kv_dtype": kv_dtype or dtype, "block_size": SIZE, "max_rows": 64, "max_tokens": 2048,
        "max_pages": 64 * 513, "max_context": 8208,
    }  # fmt: skip
    return AttentionSpec(**(given | more))


SHAPES = [
    llama(),
    llama("float16"),
    llama("float32"),
    llama("bfloat16", "float8_e4m3fn"),
    llama(num_heads=4, num_kv_heads=1),
    llama(num_heads=28, num_kv_heads=4),
    llama(num_heads=8, num_kv_heads=8, head_dim=64),
    llama(num_heads=8, num_kv_heads=2, head_dim=80),
    llama(num_heads=8, num_kv_heads=2, head_dim=256),
]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """The reference's float32 is float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


class Bench:
    """A backend on the GPU, one layer's cache, and steps."""

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        if (reason := refusal(name, spec, detect(CUDA))) is not None:
            pytest.skip(f"{name}: {reason}")
        self.spec = spec
        self.backend = make_backend(name, spec, CUDA)
        self.step: Any = Step(StepBuffers(layout_of(spec)), CUDA)
        generator = torch.Generator(CUDA).manual_seed(0)
        cache = (BLOCKS, SIZE, spec.num_kv_heads, spec.head_dim)
        self.dtype, kv_dtype = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype)
        self.keys, self.values = (
            torch.randn(cache, generator=generator, device=CUDA).to(kv_dtype) for _ in range(2)
        )
        self.random = np.random.default_rng(0)
        self.queries = self.buffer(2 * spec.num_kv_heads)
        self.queries.normal_(generator=generator)
        self.out = self.buffer(0)

    def buffer(self, more: int) -> Any:
        """[tokens, heads, head_dim], of tokens that have ``more`` heads beside these."""
        spec = self.spec
        wide = torch.zeros(
            spec.max_tokens, spec.num_heads + more, spec.head_dim, device=CUDA, dtype=self.dtype
        )
        return wide[:, : spec.num_heads]

    def fill(self, lengths: list[int], counts: list[int], shared: int = 0) -> None:
        self.lengths, self.counts = lengths, counts
        table = random_table(self.random, lengths, SIZE, BLOCKS, shared)
        fill(self.step.host, lengths, counts, table)

    def plan(self, variant: str, rows: int, tokens: int, captured: bool) -> None:
        pad(self.step.host, rows, tokens)
        self.step.take()
        self.backend.plan(self.step, variant, rows, tokens, captured=captured)

    def attend(self, tokens: int, **how: Any) -> None:
        self.backend.attend(
            self.step,
            self.queries[:tokens],
            self.keys,
            self.values,
            self.out[:tokens],
            tokens,
            layer_of(scale=self.spec.head_dim**-0.5, **how),
        )

    def check(self, **mask: Any) -> None:
        limit = TOLERANCE[self.spec.dtype]
        got, right = self.results(**mask)
        torch.testing.assert_close(got, right, rtol=limit, atol=limit)

    def results(self, **mask: Any) -> tuple[Any, Any]:
        """Of the step's tokens, and the reference's."""
        tokens = sum(self.counts)
        right = torch.zeros_like(self.out[:tokens])
        arrays = {name: torch.from_numpy(getattr(self.step.host, name)).to(CUDA) for name in FIELDS}
        attention_reference(
            self.queries[:tokens], self.keys, self.values, Pages(**arrays), right,
            rows=len(self.lengths), one_query=False, scale=self.spec.head_dim**-0.5, **mask,
        )  # fmt: skip
        return self.out[:tokens].float(), right.float()


def name_of(value: Any) -> str:
    if not isinstance(value, AttentionSpec):
        return str(value)
    heads = f"{value.num_heads}/{value.num_kv_heads}x{value.head_dim}"
    return f"{heads}-{value.dtype}-{value.kv_dtype}"


@pytest.mark.parametrize("spec", SHAPES, ids=name_of)
@pytest.mark.parametrize("name", NAMES)
def test_backends_are_the_reference(name: str, spec: AttentionSpec) -> None:
    bench = Bench(name, spec)
    for lengths, counts in (
        (CONTEXTS, [1] * len(CONTEXTS)),
        ([8192], [1]),
        (list(range(1, 65)), [1] * 64),
        (CONTEXTS, [min(5, length) for length in CONTEXTS]),
        ([1000, 300, 4096, 17], [600, 1, 33, 17]),
        ([1999], [1999]),
    ):
        bench.fill(lengths, counts)
        variant = bench.backend.variant(bench.step)
        bench.plan(variant, len(lengths), sum(counts), captured=False)
        bench.attend(sum(counts))
        bench.check()


@pytest.mark.parametrize("counts", [1, 4])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_shared_prefix(kv_dtype: str, counts: int) -> None:
    bench = Bench("triton", llama("bfloat16", kv_dtype))
    bench.fill([4096 + 7 * row + 9 for row in range(32)], [counts] * 32, shared=256)
    variant = bench.backend.variant(bench.step)
    assert variant.endswith("_cascade")
    bench.plan(variant, 32, 32 * counts, captured=False)
    bench.attend(32 * counts)
    bench.check()


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("variant", ["decode", "ragged", "decode_cascade", "ragged_cascade"])
@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_graphs_serve_steps_that_differ(name: str, variant: str, kv_dtype: str) -> None:
    if name == "flashinfer" and variant.endswith("_cascade"):
        pytest.skip("only Triton's kernel attends to a shared prefix once")
    bench = Bench(name, llama("bfloat16", kv_dtype))
    random = np.random.default_rng(1)
    shared = 256 if variant.endswith("_cascade") else 0
    rows = 16
    steps = []
    for _ in range(6):
        used = int(random.integers(12, rows + 1))
        counts = [1] * used
        if variant.startswith("ragged"):
            used = int(random.integers(2, 5)) if not shared else 8
            counts = [2] * used
        steps.append(([shared * SIZE + int(random.integers(2, 3000)) for _ in counts], counts))
    replay(bench, variant, (rows, rows), steps, shared)


def replay(
    bench: Bench,
    variant: str,
    size: tuple[int, int],
    steps: list[tuple[list[int], list[int]]],
    shared: int = 0,
    **how: Any,
) -> None:
    """Compute steps of lengths and counts in one graph, for so many rows and tokens."""
    graph = None
    for lengths, counts in steps:
        bench.fill(lengths, counts, shared)
        if shared:
            assert bench.backend.variant(bench.step).endswith("_cascade")
        bench.plan(variant, *size, captured=True)
        bench.out.fill_(float("nan"))
        if graph is None:
            bench.attend(size[1], **how)
            bench.check(**how)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                bench.attend(size[1], **how)
        graph.replay()
        bench.check(**how)


@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_steps_do_not_wait_for_the_device(name: str) -> None:
    bench = Bench(name, llama())
    shared = [1000] * 8, [1] * 8
    ragged = [1000] * 8, [3] * 8
    for given in (shared, ragged):  # compiles, and allocates
        bench.fill(*given)
        bench.plan(bench.backend.variant(bench.step), 8, sum(given[1]), captured=True)
        bench.attend(sum(given[1]))
    torch.cuda.synchronize()
    for given in (shared, ragged):
        bench.fill(*given)
        pad(bench.step.host, 8, sum(given[1]))
        bench.step.take()
        variant = bench.backend.variant(bench.step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            bench.backend.plan(bench.step, variant, 8, sum(given[1]), captured=True)
            bench.attend(sum(given[1]))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        bench.check()


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("counts", [[1] * 9, [1, 1, 300], [5, 3, 1]], ids=str)
def test_plans_behind_the_first_are_made_by_the_planner_itself(
    counts: list[int], group: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench("flashinfer", llama(num_heads=8 * group))
    for more in (100, 37, 2000):
        bench.fill([count + more for count in counts], counts)
        bench.plan(bench.backend.variant(bench.step), len(counts), sum(counts), captured=False)
        bench.attend(sum(counts))
        bench.check()
    assert caplog.records == []


@pytest.mark.skipif(find_spec("flashinfer") is None, reason="flashinfer is not installed")
def test_the_library_takes_the_calls_that_are_made() -> None:
    import flashinfer

    calls = all_calls().bound
    assert len(calls) > 8
    for wrapper, method, names in calls:
        theirs = getattr(flashinfer, wrapper)
        # Some pass their keywords on to what has their names.
        implementation = getattr(theirs, f"_{method}_impl", getattr(theirs, method))
        for function in (getattr(theirs, method), implementation):
            inspect.signature(function).bind(None, **dict.fromkeys(names))
