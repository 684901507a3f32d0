"""Quantized weights on a GPU: products against references, models against their dense twins."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from pyengine.kernels.layers.block_product import block_product, block_product_reference
from pyengine.kernels.layers.grouped_block import grouped_block, grouped_block_reference
from pyengine.kernels.layers.grouped_packed import grouped_packed, grouped_packed_reference
from pyengine.kernels.layers.packed_product import packed_product, packed_product_reference
from pyengine.kernels.layers.packed_rows import packed_rows, packed_rows_reference
from pyengine.kernels.layers.quantize import FLOAT8, quantize_groups, quantize_groups_reference
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.gpu import start_on_gpu
from pyengine.settings.config import EngineConfig
from tests.gpu.test_kernels import assert_captured, normal
from tests.gpu.test_runner import step_logits
from tests.kernels.pairs import assert_close, both
from tests.kernels.test_packed_product import drawn
from tests.model.llamas import make_model, prompts
from tests.model.quantized import make_twins
from tests.model.test_quantized_folders import FORMATS

SHAPES = [(6144, 4096), (4096, 14_336), (576, 7168)]
ROWS = [1, 16, 17, 64, 65, 2048]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_8_bits_in_blocks(shape: tuple[int, int], rows: int) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no products of 8-bit floats")
    outputs, inputs = shape
    steps = inputs // 128
    x, small = normal(rows, inputs, dtype=torch.bfloat16), torch.empty(0)
    made = []
    for quantize in (quantize_groups, quantize_groups_reference):
        small = torch.empty_like(x, dtype=FLOAT8)
        x_scales = torch.zeros(steps, rows, device="cuda")
        quantize(x, small, x_scales, 128)
        made.append((small.float(), x_scales))
    assert torch.equal(made[0][1], made[1][1])
    assert (made[0][0] != made[1][0]).float().mean() < 0.001
    weight = normal(outputs, inputs, seed=1).to(FLOAT8)
    scales = normal(steps, outputs, seed=2).abs() / 64 + 0.01
    out = torch.zeros(rows, outputs, dtype=torch.bfloat16, device="cuda")
    given = small, made[1][1], weight, scales, normal(outputs, dtype=out.dtype), 128, out
    ours, theirs = both(block_product, block_product_reference, *given)
    # Tensor cores keep 14 bits of a step's sum.
    assert_close(ours[-1], theirs[-1], 2, 2e-3 * float(theirs[-1].float().std()))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("bits", "group", "kind"),
    [(4, 32, "symmetric"), (4, 128, "zeros"), (4, 32, "minimums"), (8, 32, "symmetric"),
     (8, 4096, "zeros")],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_integers(
    dtype: torch.dtype, bits: int, group: int, kind: str, shape: tuple[int, int], rows: int
) -> None:
    outputs, inputs = shape
    group = group if inputs % group == 0 else inputs
    weight = drawn(rows, bits, group, outputs, inputs, kind, torch.float16)
    x, bias = normal(rows, inputs, dtype=dtype), normal(outputs, dtype=dtype, seed=1)
    given = x, weight, bias, torch.zeros(rows, outputs, dtype=dtype, device="cuda")
    ours, theirs = both(packed_product, packed_product_reference, *given)
    assert_close(ours[-1], theirs[-1], 2, 2e-4 * float(theirs[-1].float().std()))


@pytest.mark.parametrize("rows", [4, 64, 4096])
@pytest.mark.parametrize(
    ("bits", "group", "kind", "shape"),
    [
        (4, 32, "powers", (32, 5760, 2880)),
        (4, 128, "zeros", (128, 1536, 2048)),
        (8, 32, "symmetric", (128, 1536, 2048)),
        (8, 128, "floats", (32, 4096, 7168)),
    ],
    ids=["MXFP4", "AWQ", "8 bits", "FP8 in blocks"],
)
def test_products_of_experts(
    bits: int, group: int, kind: str, shape: tuple[int, int, int], rows: int
) -> None:
    """Of uneven shares; rows of another rank's experts, which come last, stay as they were."""
    if kind == "floats" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no floats of 8 bits")
    experts, outputs, inputs = shape
    weight = drawn(rows, bits, group, outputs, inputs, kind, torch.float16, (experts,))
    x, bias = (normal(count, size, dtype=torch.bfloat16, seed=count)
               for count, size in ((rows, inputs), (experts, outputs)))  # fmt: skip
    chosen = torch.randint(0, experts + 1, (rows,), device="cuda").square() // experts
    ends = (chosen[:, None] <= torch.arange(experts, device="cuda")).sum(0).int()
    out = torch.full((rows, outputs), 7.0, dtype=torch.bfloat16, device="cuda")
    given = x, weight, bias, ends, out
    ours, theirs = both(grouped_packed, grouped_packed_reference, *given)
    assert_close(ours[-1], theirs[-1], 2, 2e-4 * float(theirs[-1].float().std()))
    assert_captured(lambda: grouped_packed(*given), [out])


@pytest.mark.parametrize("rows", [4, 64, 4096])
@pytest.mark.parametrize("step", [32, 128])
def test_products_of_experts_with_rows_of_8_bits(step: int, rows: int) -> None:
    """Of uneven shares; rows of another rank's experts, which come last, stay as they were."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no products of 8-bit floats")
    experts, outputs, inputs = 128, 1536, 2048
    weight = drawn(rows, 8, step, outputs, inputs, "floats", torch.float32, (experts,))
    x = normal(rows, inputs).to(FLOAT8)
    x_scales = normal(inputs // step, rows, seed=1).abs()
    chosen = torch.randint(0, experts + 1, (rows,), device="cuda").square() // experts
    ends = (chosen[:, None] <= torch.arange(experts, device="cuda")).sum(0).int()
    out = torch.full((rows, outputs), 7.0, dtype=torch.bfloat16, device="cuda")
    given = x, x_scales, weight, normal(experts, outputs, dtype=out.dtype, seed=2), ends, out
    ours, theirs = both(grouped_block, grouped_block_reference, *given)
    # Tensor cores keep 14 bits of a step's sum.
    assert_close(ours[-1], theirs[-1], 2, 2e-3 * float(theirs[-1].float().std()))
    assert_captured(lambda: grouped_block(*given), [out])


@pytest.mark.parametrize("rows", [1, 64, 2048])
@pytest.mark.parametrize(
    ("bits", "group", "kind"),
    [(4, 32, "symmetric"), (4, 128, "zeros"), (4, 32, "minimums"), (8, 32, "symmetric"),
     (8, 128, "floats")],
)  # fmt: skip
def test_rows_of_tables(bits: int, group: int, kind: str, rows: int) -> None:
    if kind == "floats" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no floats of 8 bits")
    weight = drawn(rows, bits, group, 128_256, 1024, kind, torch.float16)
    index = torch.randint(0, 128_256, (rows,), dtype=torch.int32, device="cuda")
    out = torch.zeros(rows, 1024, dtype=torch.bfloat16, device="cuda")
    ours, theirs = both(packed_rows, packed_rows_reference, weight, index, out)
    assert_close(ours[-1], theirs[-1], 0)
    assert_captured(lambda: packed_rows(weight, index, out), [out])


@pytest.mark.parametrize("rows", [3, 64, 512])
def test_in_a_graph_and_without_waiting(rows: int) -> None:
    x, out = normal(rows, 512, dtype=torch.bfloat16), normal(rows, 96, dtype=torch.bfloat16)
    small, x_scales = x.to(FLOAT8), torch.zeros(4, rows, device="cuda")
    weight, scales = normal(96, 512, seed=1).to(FLOAT8), normal(4, 96, seed=2).abs()
    packed = drawn(rows, 4, 64, 96, 512, "zeros", torch.float16)
    assert_captured(lambda: packed_product(x, packed, None, out), [out])
    if torch.cuda.get_device_capability() >= (8, 9):
        assert_captured(lambda: quantize_groups(x, small, x_scales, 128), [x_scales])
        blocks = small, x_scales, weight, scales, None, 128, out
        assert_captured(lambda: block_product(*blocks), [out])


# Sizes of which every product is the device's own.
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("fp8 in blocks", 0.7),
        ("float-quantized, channels", 0.7),
        ("awq", 0.6),
        ("gptq, 8 bits", 0.8),
    ],
)
def test_a_model_says_what_its_dense_twin_says(kind: str, most: float, tmp_path: Path) -> None:
    """``most``: of the bytes of the dense twin's weights, embedding and head, which stay, too."""
    make_model(tmp_path / "model", LlamaConfig, **SIZES)
    folders = make_twins(tmp_path / "model", *FORMATS[kind])
    runners: list[TorchRunner] = [
        start_on_gpu(EngineConfig(model=str(folder), device="cuda", num_blocks=96))
        for folder in folders
    ]
    for prompt in prompts(3, longest=20):
        for chunk in (5, 1000):
            ours, twin = (step_logits(runner, prompt, chunk) for runner in runners)
            assert torch.cosine_similarity(ours, twin, dim=0) > 0.95
    packed, dense = (runner._open_model().weight_bytes for runner in runners)  # type: ignore[attr-defined]
    assert packed < most * dense
    for runner in runners:
        runner.close()
