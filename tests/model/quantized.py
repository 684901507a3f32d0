"""Quantized twins of random models: a folder in a format, and a dense one of the same numbers."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pyengine.model.dtypes import bits
from pyengine.model.torch.layers import packed_weights, parts
from tests.folders import edit_json

Pack = Callable[[np.random.Generator, int, int], tuple[dict[str, Any], NDArray[np.float32]]]
"""Tensors of a layer of so many outputs and inputs, and the weights that they mean."""


def as_torch(array: NDArray[Any] | torch.Tensor) -> torch.Tensor:
    """``array`` with its type, those of ml_dtypes too."""
    if isinstance(array, torch.Tensor):
        return array
    tensor = torch.from_numpy(np.ascontiguousarray(bits(array)))
    if array.dtype == ml_dtypes.float8_e4m3fn:
        return tensor.view(torch.float8_e4m3fn)
    return tensor.view(torch.bfloat16) if array.dtype == ml_dtypes.bfloat16 else tensor


def has_products(patches: pytest.MonkeyPatch) -> None:
    """Let the CPU keep quantized weights as a GPU does, multiplied by the kernels' references."""
    patches.setattr(packed_weights, "has_products", lambda *_, **__: True)
    patches.setattr(parts, "is_packed", lambda *_: False)


def is_linear(name: str) -> bool:
    """Whether a tensor is one of those that formats quantize."""
    return name.endswith("_proj.weight")


def make_twins(folder: Path, config: dict[str, Any], pack: Pack) -> tuple[Path, Path]:
    """From the model in ``folder``: one that ``pack`` quantized, and the dense one it means."""
    rng = np.random.default_rng(3)
    dense, packed = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not is_linear(name):
            dense[name] = packed[name] = tensor
            continue
        outputs, inputs = tensor.shape
        tensors, weights = pack(rng, outputs, inputs)
        dense[name] = torch.from_numpy(weights)
        layer = name.removesuffix("weight")
        packed |= {layer + key: as_torch(value) for key, value in tensors.items()}
    places = folder.parent / "packed", folder.parent / "dense"
    for place, tensors in zip(places, (packed, dense), strict=True):
        shutil.copytree(folder, place)
        save_file(tensors, place / "model.safetensors")
    edit_json(places[0] / "config.json", quantization_config=config)
    return places
