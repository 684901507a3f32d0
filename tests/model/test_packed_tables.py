"""Quantized tables, and heads that have their weights, as a GPU has them, by references."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyengine.model.torch.layers import parts as layers
from pyengine.model.torch.layers.tables import PackedTable, is_packed_table
from pyengine.model.weights.float8 import Float8
from pyengine.model.weights.matrix import Dense, Matrix, Packed
from pyengine.model.weights.microscaled import Microscaled
from tests.model.llamas import make_llama, prompts
from tests.model.quantized import has_products
from tests.model.test_block_linear import blocks
from tests.model.test_expert_layers import microscaled
from tests.model.test_float8_linear import CPU, ROWS, buffer, parts
from tests.model.test_torch_model import logits_after
from tests.model.test_weight_only_linear import packed
from tests.model.torch_steps import GreedyRunner

TABLES: dict[str, Packed | Float8 | Microscaled] = {
    "4 bits": packed(48, 4, 32),
    "AWQ": packed(48, 4, 64, "zeros"),
    "GGUF": packed(48, 4, 32, "minimums"),
    "8 bits": packed(48, 8, 32),
    "MXFP4": microscaled(40),
    "FP8 in blocks": blocks(300, (128, 128)),
    "FP8 by output": blocks(48, (1, 320)),
}


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables stay as files have them, as on a GPU."""
    has_products(monkeypatch)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("kind", TABLES)
def test_rows_are_those_of_a_dense_table_and_a_head_has_its_weights(kind: str) -> None:
    weight, made = Matrix((TABLES[kind],)), parts()
    outputs, inputs = weight.shape
    table = made.table(weight)
    held = made.transfer.nbytes
    head = made.linear(weight)
    assert isinstance(table, PackedTable)
    # The head takes no memory, and the table less than one of bytes and its scales.
    assert made.transfer.nbytes == held < 1.3 * outputs * inputs
    made.loaded()
    meant = torch.from_numpy(
        weight.dequantized(np.dtype(ml_dtypes.bfloat16)).astype(np.float32)
    ).bfloat16()
    index = torch.tensor([outputs - 1, 0, 7, 7, 3, 1, 2, 4], dtype=torch.int32)
    out = torch.full((8, inputs), float("nan"), dtype=torch.bfloat16)
    table(index, buffer(out), ROWS)
    assert out[:ROWS].equal(meant[index[:ROWS]])
    assert out[ROWS:].isnan().all()
    x = torch.randn(8, inputs, generator=torch.Generator().manual_seed(0)).bfloat16()
    logits = torch.zeros(8, outputs, dtype=torch.bfloat16)
    head(buffer(x), buffer(logits), ROWS)
    expected = (x.float() @ meant.float().T).bfloat16()
    torch.testing.assert_close(logits[:ROWS], expected[:ROWS])


def test_only_what_the_device_looks_up_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda"), torch.bfloat16
    capability = [(8, 9)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    tables = {kind: Matrix((table,)) for kind, table in TABLES.items()}
    assert all(is_packed_table(table, gpu, bf16) for table in tables.values())
    one = tables["AWQ"]
    refused: list[tuple[Any, ...]] = [
        (one, CPU, bf16),
        (one, gpu, torch.float32),
        (Matrix((*one.parts, *one.parts)), gpu, bf16),
        (Matrix((Dense(np.zeros((48, 192), np.float32)),)), gpu, bf16),
        (Matrix((packed(16, 8, 48),)), gpu, bf16),
    ]
    for given in refused:
        assert not is_packed_table(*given)
    capability[0] = (8, 6)
    assert not is_packed_table(tables["FP8 in blocks"], gpu, bf16)
    assert is_packed_table(one, gpu, bf16)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_says_what_its_dense_twin_says(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    make_llama(tmp_path, hidden_size=64, num_attention_heads=4, tie_word_embeddings=tied)
    with monkeypatch.context() as as_dense:
        as_dense.setattr(layers, "is_packed", lambda *_: False)
        dense = GreedyRunner(tmp_path, quantization="int8")
    request.getfixturevalue("stored")
    ours = GreedyRunner(tmp_path, quantization="int8")
    for prompt in prompts(3, longest=20):
        got, expected = (logits_after(runner, prompt, 1000) for runner in (ours, dense))
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    # No matrix is dense: a byte a weight, and a scale for each 32 of them.
    assert ours.model.weight_bytes < 0.3 * dense.model.weight_bytes
