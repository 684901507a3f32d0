"""FlashInfer's fused experts on a GPU: against the grouped products, in a graph, without waits."""

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pyengine.model.architectures.experts import Routing  # noqa: E402
from pyengine.model.architectures.parts import SILU, Activation  # noqa: E402
from pyengine.model.torch.attention.selection import (  # noqa: E402
    detect,
    flashinfer_refusal,
    gpu_refusal,
)
from pyengine.model.torch.device.ops import KERNELS  # noqa: E402
from pyengine.model.torch.layers.expert_tensors import ExpertTensors  # noqa: E402
from pyengine.model.torch.layers.fused_experts import FusedExperts, load_fused_library  # noqa: E402
from pyengine.model.torch.layers.fused_selection import (  # noqa: E402
    TOLERANCE,
    ups_first,
)
from pyengine.model.torch.layers.grouped_experts import GroupedExperts, dense_layers  # noqa: E402
from tests.model.test_fused_experts import all_calls  # noqa: E402

# The module of the kernels is compiled once for a machine, in minutes.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]
CUDA = torch.device("cuda", 0)
EXPERTS, CHOSEN, HIDDEN, INNER, MOST = 16, 4, 1024, 768, 512
ACTIVATIONS = {
    "silu": (SILU, False),
    "gelu": (Activation("gelu_tanh"), False),
    "gpt-oss": (Activation("clamped_swiglu", 7.0), True),
}


def usable() -> None:
    """A start wants them compiled; this test compiles them, if it can."""
    machine = detect(CUDA)
    if why := gpu_refusal(machine, (9, 0)) or flashinfer_refusal(machine):
        pytest.skip(why)


def noise(*shape: int, size: float = 1.0, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device="cuda") * size).bfloat16()


def weights(biased: bool, first: int = 0) -> ExpertTensors:
    """Of a rank with half of the experts, or with all."""
    here = EXPERTS // 2 if first else EXPERTS
    return ExpertTensors(
        EXPERTS,
        first,
        noise(here, 2 * INNER, HIDDEN, size=HIDDEN**-0.5),
        noise(here, HIDDEN, INNER, size=INNER**-0.5, seed=1),
        noise(here, 2 * INNER, seed=2) if biased else None,
        noise(here, HIDDEN, seed=3) if biased else None,
    )


def both(tensors: ExpertTensors, activation: Activation) -> tuple[FusedExperts, GroupedExperts]:
    def workspace(nbytes: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8, device=CUDA)

    library = load_fused_library()
    fused = FusedExperts(library, ups_first(tensors), activation, CHOSEN, MOST, workspace)
    layers = dense_layers(KERNELS, tensors)
    return fused, GroupedExperts(KERNELS, CUDA, Routing(CHOSEN), activation, layers)


def given(rows: int, seed: int = 4) -> tuple[Any, Any, Any]:
    scores = noise(rows, EXPERTS, seed=seed).float().softmax(1)
    shares, numbers = scores.topk(CHOSEN, dim=1)
    return noise(rows, HIDDEN, seed=seed + 1), numbers.int(), shares.contiguous()


def assert_near(got: Any, wanted: Any) -> None:
    got, wanted = got.float(), wanted.float()
    assert (got - wanted).norm() <= TOLERANCE * wanted.norm()


@pytest.mark.parametrize("first", [0, EXPERTS // 2], ids=["alone", "second rank"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 7, 64, MOST])
def test_they_compute_what_grouped_products_do(rows: int, kind: str, first: int) -> None:
    usable()
    activation, biased = ACTIVATIONS[kind]
    fused, grouped = both(weights(biased, first), activation)
    x, numbers, shares = given(rows)
    got, again, wanted = (torch.full_like(x, float("nan")) for _ in range(3))
    fused(x, numbers, shares, got)
    fused(x, numbers, shares, again)
    grouped(x, numbers, shares, wanted)
    assert_near(got, wanted)
    assert torch.equal(got, again)


def test_a_graph_has_them_without_a_wait_for_the_device() -> None:
    usable()
    fused, grouped = both(weights(False), SILU)
    held = given(64)
    out, wanted = torch.empty_like(held[0]), torch.empty_like(held[0])
    fused(*held, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused(*held, out)
    for seed in (10, 20):
        for target, source in zip(held, given(64, seed), strict=True):
            target.copy_(source)
        graph.replay()
        grouped(*held, wanted)
        assert_near(out, wanted)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        fused(*held, out)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(find_spec("flashinfer") is None, reason="flashinfer is not installed")
def test_the_library_takes_the_calls_that_are_made(tmp_path: Path) -> None:
    from flashinfer import fused_moe

    for name, arguments in all_calls(tmp_path):
        inspect.signature(getattr(fused_moe, name)).bind(**dict.fromkeys(arguments))
    library = load_fused_library()
    kinds = {name: int(library.activations[name]) for name in ("Swiglu", "SwigluBias", "GegluTanh")}
    assert kinds == {"Swiglu": 3, "SwigluBias": 5, "GegluTanh": 8}
