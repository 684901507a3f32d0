"""A backend for each kind of layers: which they get, and that each attends to its own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.spec import describe
from pyengine.model.torch.attention import cascade, warm_up
from pyengine.model.torch.attention.by_kind import AttentionByKind, joined, ready_by_kind
from pyengine.model.torch.attention.selection import Capabilities
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.attention.triton import TritonAttention
from pyengine.model.torch.start.loading import attention_specs
from pyengine.settings.config import EngineConfig
from tests.model.families import make_family
from tests.model.paged_steps import Step, fill, layer_of, layout_of, random_table, spec_of

pytest.importorskip("triton")
CPU, BLOCKS = torch.device("cpu"), 40
H200 = Capabilities("cuda", (9, 0), triton="3.6.0", flashinfer="0.7.2")
WINDOWS = spec_of(num_heads=16, num_kv_heads=8, head_dim=256, dtype="bfloat16", kv_dtype="bfloat16")
FULL = replace(WINDOWS, num_kv_heads=2, head_dim=512)


class Named:
    """A backend that is only asked what it is called and can do."""

    captures = True

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, *_: Any) -> Any:
        return TorchAttention() if name == "torch" else Named(name)

    monkeypatch.setattr(warm_up, "make_backend", make)
    monkeypatch.setattr(warm_up, "warm_up", lambda *_: None)


@pytest.mark.usefixtures("nothing_is_made")
def test_each_kind_gets_the_best_that_can_do_it() -> None:
    found = ready_by_kind((WINDOWS, FULL), CPU, H200)
    assert isinstance(found.backend, AttentionByKind)
    assert found.backend.name == "flashinfer and triton"
    first, second = found.why.split("; ", 1)
    assert first == "layers of 8 heads of 256: flashinfer 0.7.2"
    assert second.startswith("layers of 2 heads of 512: triton 3.6.0 (flashinfer: heads of 512")
    chunked = replace(WINDOWS, chunks=True)
    found = ready_by_kind((chunked, WINDOWS), CPU, H200)
    assert found.backend.name == "triton and flashinfer"
    assert "layers of 8 heads of 256, in chunks: triton" in found.why
    assert ready_by_kind((chunked, WINDOWS), CPU, H200, "triton").backend.name == "triton"
    assert ready_by_kind((WINDOWS,), CPU, H200).why == "flashinfer 0.7.2"


@pytest.mark.usefixtures("nothing_is_made")
def test_kind_that_only_torch_attends_leaves_all_to_torch() -> None:
    found = ready_by_kind((WINDOWS, replace(FULL, head_dim=768)), CPU, H200)
    assert isinstance(found.backend, TorchAttention)
    assert "heads of 768 elements are too large" in found.why


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama 4", [(2, 16, True), (2, 16, False)]),
        ("gemma 4, keys as values, experts", [(4, 16, False), (2, 32, False)]),
        ("gemma 3", [(2, 16, False)]),
    ],
)
def test_kinds_of_layers(name: str, kinds: list[tuple[int, int, bool]], tmp_path: Any) -> None:
    make_family(tmp_path, name)
    info = describe(EngineConfig(model=str(tmp_path))).info
    specs = attention_specs(info, StepLayout(8, 2, 8, vocab_size=131))
    assert [(spec.num_kv_heads, spec.head_dim, spec.chunks) for spec in specs] == kinds


@pytest.mark.parametrize(
    ("counts", "shared", "variant"),
    [([1, 1], 0, "decode"), ([2, 1], 0, "ragged"), ([1, 1], 2, "decode_cascade")],
)
def test_each_layer_is_attended_to_by_its_kind(
    counts: list[int], shared: int, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three kinds, one after the other in one step, as torch attends to them."""
    # A prefix pays for the kind with the larger heads alone.
    monkeypatch.setattr(cascade, "cascade_pays", lambda *_, token_bytes, **__: token_bytes > 256)
    specs = (spec_of(), spec_of(num_kv_heads=1, head_dim=80), spec_of(chunks=True))
    lengths = [14, 9]
    host = StepBuffers(layout_of(specs[0]))
    fill(host, lengths, counts, random_table(np.random.default_rng(5), lengths, 4, BLOCKS, shared))
    rows = zip(lengths, counts, strict=True)
    ends = [at for length, count in rows for at in range(length - count, length)]
    host.positions[: len(ends)] = ends
    step: Any = Step(host)
    step.positions = torch.from_numpy(host.positions)
    ours = joined(specs, [TritonAttention(spec, CPU, processors=2) for spec in specs])
    theirs = TorchAttention()
    assert ours.variant(step) == variant
    ours.plan(step, variant, 2, sum(counts), captured=True)
    theirs.plan(step, "ragged", 2, sum(counts), captured=False)
    for spec in specs:
        queries = torch.randn(sum(counts), 4, spec.head_dim)
        cache = torch.randn(2, BLOCKS, 4, spec.num_kv_heads, spec.head_dim)
        layer = layer_of(window=8, chunk=8) if spec.chunks else layer_of()
        got, right = (torch.zeros_like(queries) for _ in range(2))
        for backend, out in ((ours, got), (theirs, right)):
            backend.attend(step, queries, cache[0], cache[1], out, sum(counts), layer)
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)
    assert len(set(ours.rehearsals())) == len(ours.rehearsals()) > 0


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        (("ragged", "mixed"), "mixed"),
        (("prompts", "ragged_cascade"), "ragged_cascade"),
        (("decode", "decode"), "decode"),
    ],
)
def test_a_step_has_the_most_particular_variant(found: tuple[str, str], chosen: str) -> None:
    specs = (spec_of(), spec_of(chunks=True))
    backends = [TritonAttention(spec, CPU, processors=2) for spec in specs]
    for backend, variant in zip(backends, found, strict=True):
        backend.variant = lambda _, variant=variant: variant  # type: ignore[method-assign, misc]
    step: Any = None
    assert joined(specs, backends).variant(step) == chosen
