"""Models with Mamba-2: Bamba (IBM, Princeton, CMU, UIUC, 2024), whose layers are Mamba-2 but for a
few that attend, and Granite 4 H (IBM, 2025), which has Granite's multipliers and experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.llama_like.granite import granite_hybrid
from pyengine.model.architectures.mixers.state_space import StateSpace
from pyengine.model.architectures.reading import (
    common,
    count,
    keys_beside,
    layer_count,
    layers_of_kinds,
    number,
    require,
)
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters


def bamba_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Bamba's config.json with the kinds of its layers."""
    attend = config.get("attn_layer_indices") or ()
    kinds = [
        "full_attention" if layer in attend else "linear_attention"
        for layer in range(layer_count(config))
    ]
    return {**config, "layer_types": kinds, "partial_rotary_factor": 0.5}


def granite_hybrid_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Granite 4's config.json in the usual names."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if not isinstance(kinds, list):
        kinds = ["mamba"] * layer_count(config)
    names = {"attention": "full_attention", "mamba": "linear_attention"}
    return {**config, "layer_types": [names.get(kind, kind) for kind in kinds]}


def bamba(config: Mapping[str, Any]) -> Traits:
    """The traits of a Bamba."""
    mixers = _mixers(config, mixer_of(config))
    bias = bool(config.get("attention_bias"))
    return Traits(
        names=Names(
            norm="model.final_layernorm", mlp="feed_forward.", before_mlp="pre_ff_layernorm"
        ),
        layers=keys_beside(config, mixers),
        mixers=mixers,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        rotary=(rotary_parameters(config),) * len(mixers),
        **common(config, epsilon=1e-5),
    )


def granite_h(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite 4, dense or with experts, with Mamba-2 or without."""
    traits = granite_hybrid(config)
    mixers = _mixers(config, mixer_of(config))
    if not any(mixers):
        return traits
    return replace(traits, layers=keys_beside(config, mixers), mixers=mixers)


def mixer_of(config: Mapping[str, Any]) -> StateSpace:
    """The mixer that the settings of Bamba say, which begin with ``mamba_``.

    Raises:
        ModelLoadError: They are not supported, or do not fit.
    """
    require(config, "hidden_act", "silu", "swish")
    refuse_step_limits(config)
    heads, inner = count(config, "mamba_n_heads"), count(config, "mamba_expand")
    inner *= count(config, "hidden_size")
    dim = config.get("mamba_d_head")
    dim = inner // heads if dim == "auto" else count(config, "mamba_d_head")
    if dim * heads != inner:
        raise ModelLoadError(
            f"config.json: {heads} heads of {dim} elements ('mamba_d_head') are not "
            f"'mamba_expand' times 'hidden_size', {inner}"
        )
    return StateSpace(
        heads=heads,
        head_dim=dim,
        groups=count(config, "mamba_n_groups"),
        size=count(config, "mamba_d_state"),
        kernel=count(config, "mamba_d_conv"),
        epsilon=number(config, "rms_norm_eps", 1e-5),
        bias=bool(config.get("mamba_proj_bias")),
        convolution_bias=bool(config.get("mamba_conv_bias", True)),
    )


def refuse_step_limits(config: Mapping[str, Any]) -> None:
    """Check that the steps of Mamba-2 have no limits.

    Raises:
        ModelLoadError: They have.
    """
    # transformers writes infinity as an object.
    endless = (float("inf"), {"__float__": "Infinity"}, "Infinity")
    limit = config.get("time_step_limit")
    if limit is not None and not (len(limit) == 2 and limit[0] == 0 and limit[1] in endless):
        raise ModelLoadError(f"config.json: 'time_step_limit' of {limit!r} is not supported")


def _mixers(config: Mapping[str, Any], mixer: StateSpace) -> tuple[StateSpace | None, ...]:
    kinds = layers_of_kinds(config, "full_attention", "linear_attention")
    return tuple(mixer if kind == "linear_attention" else None for kind in kinds)
