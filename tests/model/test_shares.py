"""Each rank reads its share, and all shares are the whole, for each source of weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.spec import ModelSpec, describe
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.weights.loader import open_weights
from pyengine.model.weights.matrix import Dense, Matrix
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


def opened(spec: ModelSpec, ranks: int) -> list[RankWeights]:
    return [open_weights(spec, rank=rank, ranks=ranks) for rank in range(ranks)]


def numbers(matrix: Matrix) -> NDArray[Any]:
    return matrix.dequantized(np.dtype(np.float32))


def test_outputs_are_divided_by_rows_and_inputs_by_columns(spec: ModelSpec) -> None:
    (alone,) = opened(spec, 1)
    q, k = numbers(alone.table(Q, HIDDEN, HIDDEN)), numbers(alone.table(K, 16, HIDDEN))
    o = numbers(alone.inputs(O, HIDDEN, HIDDEN))
    fused = numbers(alone.outputs({Q: HIDDEN, K: 16}, HIDDEN))
    assert np.array_equal(fused, np.concatenate((q, k)))
    assert fused.std() > 0.01
    got = []
    for rank, weights in enumerate(opened(spec, 2)):
        assert np.array_equal(numbers(weights.table(Q, HIDDEN, HIDDEN)), q)
        part = numbers(weights.outputs({Q: HIDDEN, K: 16}, HIDDEN))
        got.append(numbers(weights.inputs(O, HIDDEN, HIDDEN)))
        weights.table(K, 16, HIDDEN)
        assert np.array_equal(part[:24], q[rank * 24 : rank * 24 + 24])
        assert np.array_equal(part[24:], k[rank * 8 : rank * 8 + 8])
        assert weights.num_parameters == alone.num_parameters
    assert np.array_equal(np.concatenate(got, 1), o)


def test_last_rank_repeats_a_row_where_ranks_do_not_divide(spec: ModelSpec) -> None:
    (alone,) = opened(spec, 1)
    table = numbers(alone.table(EMBEDDING, VOCABULARY, HIDDEN))
    firsts = (0, 33, 66, 98)
    for first, weights in zip(firsts, opened(spec, 4), strict=True):
        mine = weights.outputs({EMBEDDING: VOCABULARY}, HIDDEN)
        assert len(mine.parts) == 1
        assert np.array_equal(numbers(mine), table[first : first + 33])


def test_vectors_are_divided_as_outputs_are(tmp_path: Path) -> None:
    make_llama(tmp_path, attention_bias=True)
    spec = describe(EngineConfig(model=str(tmp_path)))
    names = {Q.replace("weight", "bias"): HIDDEN, K.replace("weight", "bias"): 16}
    (alone,) = opened(spec, 1)
    query, key = (alone.vector(name, size) for name, size in names.items())
    assert query.any()
    for rank, weights in enumerate(opened(spec, 2)):
        part = weights.vectors(names)
        assert np.array_equal(part[:24], query[rank * 24 : rank * 24 + 24])
        assert np.array_equal(part[24:], key[rank * 8 : rank * 8 + 8])
    head = {Q.replace("weight", "bias"): HIDDEN}
    last = opened(spec, 5)[4].vectors(head)
    assert np.array_equal(last, query[38:])


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    make_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path)))
    (alone,) = opened(spec, 1)
    rows = numbers(alone.table(K, 16, HIDDEN))
    shares = [numbers(weights.outputs({K: 16}, HIDDEN)) for weights in opened(spec, 20)]
    assert [len(share) for share in shares] == [1] * 20
    assert np.array_equal(np.concatenate(shares[:16]), rows)
    assert all(np.array_equal(share, rows[15:]) for share in shares[16:])


def test_only_a_share_is_read(tmp_path: Path) -> None:
    make_llama(tmp_path)
    spec, read = describe(EngineConfig(model=str(tmp_path))), []
    with open_weights(
        spec, rank=1, ranks=4, progress=lambda done, total: read.append(done)
    ) as weights:
        rows = weights.outputs({Q: HIDDEN}, HIDDEN)
        assert read == [HIDDEN * HIDDEN]  # bytes: four, over four ranks
        weights.inputs(O, HIDDEN, HIDDEN)
        assert read == [HIDDEN * HIDDEN, 2 * HIDDEN * HIDDEN]
    (part,) = rows.parts
    assert isinstance(part, Dense)
    assert not part.values.flags.owndata  # a view of the file, of which nothing else is read


def test_a_reader_that_fails_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path)))

    def fails(self: torch.Tensor, *arguments: object) -> None:
        raise RuntimeError("the device is full")

    transfer = Transfer(torch.device("cpu"), torch.float32)
    with open_weights(spec) as weights:
        matrix = weights.table(Q, HIDDEN, HIDDEN)
        assert np.array_equal(transfer.matrix(matrix).shape, (HIDDEN, HIDDEN))
        transfer.wait()
        monkeypatch.setattr(torch.Tensor, "copy_", fails)
        transfer.matrix(matrix)
        with pytest.raises(RuntimeError, match="full"):
            transfer.wait()


def test_missing_tensor_is_named_at_once(tmp_path: Path) -> None:
    make_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path)))
    with open_weights(spec) as weights:
        with pytest.raises(ModelLoadError, match="lack 'odd'"):
            weights.vector("odd", 3)
        with pytest.raises(ModelLoadError, match="has shape"):
            weights.inputs(Q, HIDDEN, HIDDEN + 1)
