"""Each rank reads its share, and all shares are the whole, for each source of weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pyengine.errors import ModelLoadError
from pyengine.model.spec import ModelSpec, describe
from pyengine.model.weights.loader import open_weights
from pyengine.model.weights.sharding import RankWeights
from pyengine.settings.config import EngineConfig
from tests.model.llamas import make_llama

HIDDEN, VOCABULARY = 48, 131
Q, K = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
O, EMBEDDING = "model.layers.1.self_attn.o_proj.weight", "model.embed_tokens.weight"  # noqa: E741


@pytest.fixture(params=["auto", "dummy"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSpec:
    make_llama(tmp_path, shard="20KB")
    return describe(EngineConfig(model=str(tmp_path), load_format=request.param))


@contextmanager
def opened(spec: ModelSpec, ranks: int, readers: int = 3) -> Iterator[list[RankWeights]]:
    weights = [open_weights(spec, rank=r, ranks=ranks, readers=readers) for r in range(ranks)]
    try:
        yield [each.__enter__() for each in weights]
    finally:
        for each in weights:
            each.__exit__(None, None, None)


@pytest.mark.parametrize("readers", [0, 3])
def test_outputs_are_divided_by_rows_and_inputs_by_columns(spec: ModelSpec, readers: int) -> None:
    with opened(spec, 1) as (alone,):
        q, k = alone.whole(Q, HIDDEN, HIDDEN), alone.whole(K, 16, HIDDEN)
        o = alone.inputs(O, HIDDEN, HIDDEN)
        fused = alone.outputs({Q: HIDDEN, K: 16}, HIDDEN)
        alone.wait()
        assert torch.equal(fused, torch.cat((q, k)))
        assert fused.std() > 0.01
        counted = alone.num_parameters
    with opened(spec, 2, readers) as both:
        got = []
        for rank, weights in enumerate(both):
            assert torch.equal(weights.whole(Q, HIDDEN, HIDDEN), q) or readers
            part = weights.outputs({Q: HIDDEN, K: 16}, HIDDEN)
            columns = weights.inputs(O, HIDDEN, HIDDEN)
            weights.whole(K, 16, HIDDEN)
            weights.wait()
            assert torch.equal(part[:24], q[rank * 24 : rank * 24 + 24])
            assert torch.equal(part[24:], k[rank * 8 : rank * 8 + 8])
            got.append(columns)
            assert weights.num_parameters == counted
        assert torch.equal(torch.cat(got, 1), o)


def test_what_ranks_do_not_divide_is_filled_up(spec: ModelSpec) -> None:
    with opened(spec, 1) as (alone,):
        table = alone.whole(EMBEDDING, VOCABULARY, HIDDEN)
        alone.wait()
        assert alone.rows_of(table) is table
    with opened(spec, 4) as four:
        shares = [weights.outputs({EMBEDDING: VOCABULARY}, HIDDEN) for weights in four]
        tied = [weights.rows_of(weights.whole(EMBEDDING, VOCABULARY, HIDDEN)) for weights in four]
        for weights in four:
            weights.wait()
    for parts in (shares, tied):
        whole = torch.cat(parts)
        assert whole.shape == (132, HIDDEN)
        assert torch.equal(whole[:VOCABULARY], table)
        assert not whole[VOCABULARY:].any()


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    make_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path)))
    with opened(spec, 7) as seven:
        shares = [weights.outputs({K: 16}, HIDDEN) for weights in seven]
    assert [share.any().item() for share in shares] == [True] * 6 + [False]


def test_only_a_share_is_read(tmp_path: Path) -> None:
    make_llama(tmp_path)
    spec, read = describe(EngineConfig(model=str(tmp_path))), []
    with open_weights(
        spec, rank=1, ranks=4, readers=2, progress=lambda done, total: read.append(done)
    ) as weights:
        weights.outputs({Q: HIDDEN}, HIDDEN)
        weights.inputs(O, HIDDEN, HIDDEN)
        weights.wait()
        assert read == [HIDDEN * HIDDEN, 2 * HIDDEN * HIDDEN]  # bytes: four, over four ranks


def test_a_reader_that_fails_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path)))

    def fails(self: torch.Tensor, *arguments: object) -> None:
        raise RuntimeError("the device is full")

    def load() -> None:
        with open_weights(spec, readers=2) as weights:
            weights.whole(Q, HIDDEN, HIDDEN)

    monkeypatch.setattr(torch.Tensor, "copy_", fails)
    with pytest.raises(RuntimeError, match="full"):
        load()


def test_what_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    make_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path)))
    with open_weights(spec) as weights:
        with pytest.raises(ModelLoadError, match="lack 'odd'"):
            weights.whole("odd", 3)
        with pytest.raises(ModelLoadError, match="has shape"):
            weights.inputs(Q, HIDDEN, HIDDEN + 1)
