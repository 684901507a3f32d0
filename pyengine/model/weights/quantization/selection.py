"""Selects a folder's scheme by the 'quantization_config' of its config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.weights.quantization.awq import Awq
from pyengine.model.weights.quantization.compressed_tensors import CompressedTensors
from pyengine.model.weights.quantization.fbgemm_fp8 import FbgemmFp8
from pyengine.model.weights.quantization.fp8 import BlockFp8
from pyengine.model.weights.quantization.gptq import Gptq
from pyengine.model.weights.quantization.mxfp4 import Mxfp4
from pyengine.model.weights.quantization.scheme import QuantizationScheme

METHODS: dict[str, Callable[[Mapping[str, Any]], QuantizationScheme]] = {
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": FbgemmFp8,
    "fp8": BlockFp8,
    "gptq": Gptq,
    "mxfp4": Mxfp4,
}


def find_scheme(config: Mapping[str, Any]) -> QuantizationScheme | None:
    """The scheme of a model's config.json; None where nothing is quantized.

    Raises:
        ModelLoadError: The format, or something about it, is not supported; says what.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"config.json: 'quantization_config' is no object: {given!r}")
    method = str(given.get("quant_method") or "unknown")
    make = METHODS.get(method)
    if make is None:
        known = ", ".join(sorted(METHODS))
        raise ModelLoadError(
            f"weights quantized by {method!r} are not supported; there are: {known}"
        )
    return make(given)
