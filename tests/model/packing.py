"""Packs numbers as AWQ, GPTQ, block FP8 and FBGEMM do, and says what they mean: an oracle.

Plain loops over what the formats' papers and tools say; nothing of the readers is used.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(numbers: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Numbers [rows, n] in int32 [rows, n * bits / 32]: number order[i] in the i-th bits."""
    per_word = 32 // bits
    order = order or tuple(range(per_word))
    out = np.zeros((numbers.shape[0], numbers.shape[1] // per_word), np.uint32)
    for place, index in enumerate(order):
        out |= numbers[:, index::per_word].astype(np.uint32) << np.uint32(bits * place)
    return out.view(np.int32)


def drawn(
    rng: np.random.Generator, outputs: int, inputs: int, group: int, bits: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Values [out, in], zeros and scales [out, groups] at random."""
    top, groups = 1 << bits, inputs // group
    return (
        rng.integers(0, top, (outputs, inputs)),
        rng.integers(1, top, (outputs, groups)),
        rng.uniform(0.005, 0.02, (outputs, groups)).astype(np.float16),
    )


def meant(values: NDArray[Any], zeros: NDArray[Any], scales: NDArray[Any], order: Any) -> Any:
    """(value - zero) * scale in float32, the group of each input being ``order``'s."""
    numbers = (values - zeros[:, order]).astype(np.float32)
    return numbers * scales.astype(np.float32)[:, order]


def awq(rng: np.random.Generator, outputs: int, inputs: int, group: int) -> tuple[Any, Any]:
    """Tensors of a layer by name, and its weights."""
    values, zeros, scales = drawn(rng, outputs, inputs, group, 4)
    tensors = {
        "qweight": words(values.T, 4, AWQ_ORDER),
        "qzeros": words(zeros.T, 4, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, meant(values, zeros, scales, np.arange(inputs) // group)


def gptq(
    rng: np.random.Generator,
    outputs: int,
    inputs: int,
    group: int,
    *,
    bits: int = 4,
    version: int = 1,
    symmetric: bool = False,
    desc_act: bool = False,
) -> tuple[Any, Any]:
    """Tensors of a layer by name, and its weights."""
    values, zeros, scales = drawn(rng, outputs, inputs, group, bits)
    if symmetric:
        zeros[:] = 1 << bits - 1
    order = np.arange(inputs) // group
    if desc_act:
        rng.shuffle(order)
    stored = zeros - 1 if version == 1 else zeros
    tensors = {
        "qweight": np.ascontiguousarray(words(values, bits).T),
        "qzeros": words(stored.T, bits),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": order.astype(np.int32),
    }
    return tensors, meant(values, zeros, scales, order)


def block_fp8(rng: np.random.Generator, outputs: int, inputs: int, side: int) -> tuple[Any, Any]:
    """Tensors of a layer by name, and its weights."""
    values = rng.standard_normal((outputs, inputs)).astype(ml_dtypes.float8_e4m3fn)
    shape = -(-outputs // side), -(-inputs // side)
    scales = rng.uniform(0.1, 0.4, shape).astype(np.float32)
    weights = values.astype(np.float32)
    for row in range(outputs):
        for column in range(inputs):
            weights[row, column] *= scales[row // side, column // side]
    return {"weight": values, "weight_scale_inv": scales}, weights


def fbgemm_fp8(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Any, Any]:
    """Tensors of a layer by name, and its weights."""
    values = rng.standard_normal((outputs, inputs)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.uniform(0.02, 0.08, (outputs, 1)).astype(np.float32)
    return {"weight": values, "weight_scale": scales}, values.astype(np.float32) * scales
