"""A vocabulary in shares: ranks look up and compute what one does, of tables of every kind."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyengine.distributed.group import Group, TorchGroup
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.layers import parts as layers
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.torch.layers.vocabulary import SharedTable
from pyengine.model.weights.matrix import Dense, Matrix, Part
from pyengine.model.weights.sharding import rows_of_rank
from tests.distributed.test_parallel_model import logits
from tests.distributed.thread_ranks import CPU, together
from tests.model.families import make_family
from tests.model.llamas import make_llama
from tests.model.quantized import has_products
from tests.model.test_float8_linear import buffer
from tests.model.test_packed_tables import TABLES
from tests.model.torch_steps import GreedyRunner

RANKS = 3
DENSE = Dense(np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32))
WHOLE: dict[str, Part] = {"dense": DENSE, **TABLES}


@pytest.mark.parametrize("kind", WHOLE)
def test_rows_are_those_of_the_whole_table(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, of any of its rows, also where ranks do not divide them."""
    has_products(monkeypatch)
    whole = WHOLE[kind]
    rows, width = whole.shape
    meant = torch.from_numpy(
        whole.dequantized().astype(ml_dtypes.bfloat16).astype(np.float32)
    ).bfloat16()
    index = torch.arange(rows, dtype=torch.int32).roll(rows // 2)
    index = torch.cat((index, index[:7], torch.zeros(5, dtype=torch.int32)))
    bytes_each = []

    def looked_up(group: TorchGroup) -> torch.Tensor:
        made = TorchParts(
            CPU, torch.bfloat16, torch.bfloat16, TorchAttention(), 512, 8, 1, group=group
        )
        mine = Matrix((whole.rows(rows_of_rank(rows, group.rank, group.size)),))
        table = made.shared_table(mine, rows)
        assert isinstance(table, SharedTable)
        bytes_each.append(made.transfer.nbytes / (width * -(-rows // group.size)))
        made.loaded()
        out = torch.full((len(index), width), float("nan"), dtype=torch.bfloat16)
        table(index, buffer(out), rows + 7)
        return out

    for out in together(RANKS, looked_up):
        assert out[: rows + 7].equal(meant[index[: rows + 7]])
        assert out[rows + 7 :].isnan().all()
    # Shares are stored as the file's rows are, that of the last rank too.
    assert bytes_each == [2] * RANKS if kind == "dense" else max(bytes_each) < 1.3


def weight_bytes(folder: Path, group: Group | None, **config: Any) -> int:
    return GreedyRunner(folder, group=group, **config).model.weight_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_a_rank_has_its_share_of_every_matrix(tied: bool, tmp_path: Path) -> None:
    make_llama(tmp_path, vocab_size=132, tie_word_embeddings=tied)
    alone = weight_bytes(tmp_path, None)
    first, second = together(2, lambda group: weight_bytes(tmp_path, group))
    norms = 4 * 48 * (2 * 3 + 1)
    assert first == second == (alone - norms) // 2 + norms


@pytest.mark.parametrize("tied", [True, False])
def test_packed_tables_and_heads_stay_so_in_shares(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a vocabulary of 131, of which both ranks have the 66th token."""
    make_llama(
        tmp_path,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        tie_word_embeddings=tied,
    )
    has_products(monkeypatch)
    made: list[Any] = []
    monkeypatch.setattr(layers, "TorchTable", made.append)
    alone = logits(tmp_path, None, quantization="int8")
    first, second = together(2, lambda group: logits(tmp_path, group, quantization="int8"))
    assert torch.equal(first, second)
    assert (first - alone).abs().max() < 1e-3 * alone.std()
    assert not made  # no table is dense
    whole = weight_bytes(tmp_path, None, quantization="int8")
    share = together(2, lambda group: weight_bytes(tmp_path, group, quantization="int8"))
    assert max(share) < 0.53 * whole


def test_a_table_of_inputs_is_in_shares_too(tmp_path: Path) -> None:
    make_family(tmp_path, "gemma 4")
    alone = logits(tmp_path, None)
    first, second = together(2, lambda group: logits(tmp_path, group))
    assert torch.equal(first, second)
    assert (first - alone).abs().max() < 1e-3 * alone.std()
    # The embeddings' table and that of inputs, which has 8 numbers a layer for each of 2,600.
    saved = (
        weight_bytes(tmp_path, None) - together(2, lambda group: weight_bytes(tmp_path, group))[0]
    )
    assert saved > 4 * 1300 * 6 * 8
