"""Quantized weights stay so on the CPU: in layers of several kinds, in tables, in heads."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from pyengine._core import CpuKernels, CpuTensor
from pyengine.model.cpu.executor import run_once
from pyengine.model.cpu.layers import CpuParts, workspace
from pyengine.model.cpu.linear import pack
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.weights.float8 import Float8
from pyengine.model.weights.matrix import Dense, Matrix, Packed
from pyengine.model.weights.quantization.at_load import quantized
from pyengine.settings.config import EngineConfig
from tests.model.llamas import Loop, make_llama, make_runner, prompts

INPUTS = 64
FILE = "model.safetensors"
FLOATS = np.dtype(np.float32)


def numbers(rows: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, INPUTS), np.float32)


def with_offsets(rows: int, seed: int, *, minimums: bool) -> Packed:
    """As AWQ has them, and GGUF's Q4_1."""
    random, groups = np.random.default_rng(seed), (rows, INPUTS // 32)
    return Packed(
        random.integers(0, 256, (rows, INPUTS // 2), np.uint8),
        random.uniform(0.01, 0.1, groups).astype(np.float32),
        None if minimums else random.integers(0, 16, groups, np.uint8),
        random.uniform(-1, 1, groups).astype(np.float32) if minimums else None,
        4,
        32,
    )


def mixed() -> Matrix:
    """Queries, keys and values of all kinds, as a file may mix them."""
    float8 = Float8(
        numbers(20, 5).astype(ml_dtypes.float8_e4m3fn), np.ones((1, 1), np.float32), (20, INPUTS)
    )
    return Matrix(
        (
            quantized(numbers(70, 1), 8, 32),
            quantized(numbers(9, 2), 8, 32),
            quantized(numbers(64, 3), 4, 32),
            Dense(numbers(33, 4).astype(ml_dtypes.bfloat16)),
            float8,
            with_offsets(40, 6, minimums=False),
            with_offsets(41, 7, minimums=True),
        )
    )


def test_a_layer_of_all_kinds_computes_what_they_mean() -> None:
    matrix, bias = mixed(), np.random.default_rng(8).standard_normal(277).astype(np.float32)
    packed = pack(matrix, bias, FLOATS)
    x, out = numbers(5, 9), np.zeros((5, 277), np.float32)
    with run_once(CpuKernels(2), 5) as program:
        program.linear(packed, CpuTensor(x), CpuTensor(out))
    meant = matrix.dequantized(FLOATS)
    # Activations are rounded to steps of 1 / 127 of the largest.
    bound = np.abs(meant).sum(1) * np.abs(x).max() * 0.5001 / 127 + 1e-3
    assert (np.abs(out - bias - x @ meant.T) <= bound).all()
    # Floats are not rounded.
    assert np.allclose((out - bias)[:, 143:196], (x @ meant.T)[:, 143:196], atol=1e-4)
    # Parts that are alike are one: a panel of 64 outputs and one of 15, not two and one.
    assert packed.nbytes < 6 * 64 * INPUTS * 4


def test_a_table_of_all_kinds_looks_up_what_they_mean() -> None:
    matrix, parts = mixed(), CpuParts(CpuKernels(1), FLOATS, 8, 8, 1)
    table, out = parts.table(matrix), workspace(8, INPUTS, FLOATS)
    index = np.array([0, 69, 78, 80, 144, 180, 200, 276], np.int32)
    with parts.executor.recording() as program:
        table(CpuTensor(index), out, 8)
    program.run(8)
    assert np.allclose(out.tensor, matrix.dequantized(FLOATS)[index], atol=1e-6)
    # Where there are no zeros, or nothing to be subtracted from them, not a bit differs.
    assert np.array_equal(out.tensor[:6], matrix.dequantized(FLOATS)[index[:6]])
    with parts.executor.recording() as program:
        table(CpuTensor(np.array([277], np.int32)), out, 1)
    with pytest.raises(ValueError, match="no row 277 in the table"):
        program.run(1)


def test_a_head_has_the_weights_of_its_table() -> None:
    matrix, parts = mixed(), CpuParts(CpuKernels(1), FLOATS, 8, 8, 1)
    info: Any = None
    parts.table(matrix)
    held = parts.weight_bytes
    head, out = parts.head(matrix, info), workspace(1, 277, FLOATS)
    assert parts.weight_bytes == held
    with parts.executor.recording() as program:
        head(workspace(1, INPUTS, FLOATS), out, 1)
    program.run(1)
    parts.head(mixed(), info)
    assert parts.weight_bytes == 2 * held


@pytest.mark.parametrize(("quantization", "most"), [("int8", 1.2 / 4), ("int4", 0.8 / 4)])
def test_a_quantized_model_holds_less(quantization: str, most: float, tmp_path: Path) -> None:
    # Layers are whole panels.
    make_llama(tmp_path, hidden_size=256, intermediate_size=512, num_attention_heads=8)

    def held(**settings: Any) -> int:
        config = EngineConfig(
            model=str(tmp_path), dtype="float32", device="cpu", num_blocks=8, **settings
        )
        runner = CpuRunner.from_config(config)
        model = runner._model
        assert model is not None
        assert f"{model.weight_bytes / 2**20:,.1f} MiB" == runner.notes["weights"]
        return model.weight_bytes

    assert held(quantization=quantization) < most * held()


def test_bfloat16_weights_stay_so_in_a_float32_model(tmp_path: Path) -> None:
    make_llama(tmp_path, dtype="bfloat16", hidden_size=64, num_attention_heads=4)
    wide = tmp_path / "wide"
    shutil.copytree(tmp_path, wide)
    tensors = load_file(wide / FILE)
    save_file({name: each.astype(np.float32) for name, each in tensors.items()}, wide / FILE)
    narrow, whole = make_runner(tmp_path), make_runner(wide)
    assert narrow.info.dtype == whole.info.dtype == "float32"
    asked = prompts(3, longest=20)
    assert Loop(narrow).generate(asked, 6) == Loop(whole).generate(asked, 6)
    models = [runner._model for runner in (narrow, whole) if runner._model is not None]
    held, logits = zip(
        *((each.weight_bytes, each.logits_rows.tensor) for each in models), strict=True
    )
    assert held[0] == pytest.approx(held[1] / 2, rel=0.02)
    assert np.array_equal(*logits)
