"""The scales of a checkpoint for a KV cache of 8-bit floats: of a layer's keys and of its values.

::

    model.layers.0.self_attn.  k_scale               v_scale                compressed-tensors
                               attn.k_scale          attn.v_scale           vLLM's own name
                               k_proj.k_scale        v_proj.v_scale         ModelOpt
                               k_proj.output_scale   v_proj.output_scale    Quark
                               kv_scale for both                            AutoFP8

A stored number is multiplied by its scale. Of a cache of another type none is read: what it stores
is exact. A ``q_scale``, for queries of 8 bits, is not used: queries keep the model's type.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyengine.errors import ModelLoadError
from pyengine.model.weights.sharding import Weights

SCHEME: Mapping[str, tuple[Any, ...]] = {
    "num_bits": (8,),
    "type": ("float",),
    "strategy": ("tensor",),
    "symmetric": (True,),
    "dynamic": (False,),
}
"""What a 'kv_cache_scheme' may ask for; what it leaves out is the first."""


class CacheScales(NamedTuple):
    """Scales of a layer's cache; see :class:`pyengine.model.architectures.parts.LayerAttention`.

    Attributes:
        keys: The scale of its keys.
        values: The scale of its values.
    """

    keys: float = 1.0
    values: float = 1.0


def cache_scales(weights: Weights, config: Mapping[str, Any], attention: str) -> CacheScales:
    """The scales of a layer, 1 where the checkpoint has none.

    Args:
        weights: The checkpoint's.
        config: Its config.json.
        attention: What the names of attention begin with in the layer whose cache it is.

    Raises:
        ModelLoadError: config.json asks for another scheme, or for scales that are not there, or
            they are several.
    """
    scheme = (config.get("quantization_config") or {}).get("kv_cache_scheme") or {}
    for name, allowed in SCHEME.items():
        if scheme.get(name) not in (*allowed, None):
            raise ModelLoadError(
                f"config.json: 'kv_cache_scheme' with {name!r} of {scheme[name]!r} is not "
                f"supported, {allowed[0]!r} is; take another 'kv_cache_dtype'"
            )
    found = [
        weights.scale([f"{attention}{name}" for name in (*_names(letter), "kv_scale")])
        for letter in "kv"
    ]
    if scheme and None in found:
        raise ModelLoadError(
            f"config.json has a 'kv_cache_scheme', but the weights lack '{attention}k_scale' or "
            "its 'v_scale'; take another 'kv_cache_dtype'"
        )
    keys, values = (1.0 if scale is None else scale for scale in found)
    return CacheScales(keys, values)


def _names(letter: str) -> tuple[str, ...]:
    scale = f"{letter}_scale"
    return scale, f"attn.{scale}", f"{letter}_proj.{scale}", f"{letter}_proj.output_scale"
