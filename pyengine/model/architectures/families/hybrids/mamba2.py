"""Models with Mamba-2: Bamba (IBM, Princeton, CMU, UIUC, 2024), whose layers are Mamba-2 but for a
few that attend, and Granite 4 H (IBM, 2025), which has Granite's multipliers and experts.

Mamba2 itself (Dao and Gu, 2024) and Nemotron-H (NVIDIA, "Nemotron-H: A Family of Accurate and
Efficient Hybrid Mamba-Transformer Models", 2025) have layers of one block: Nemotron-H's are
Mamba-2, attention or feed-forward.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.llama_like.granite import granite_hybrid
from pyengine.model.architectures.mixers.state_space import StateSpace
from pyengine.model.architectures.reading import (
    activation,
    common,
    count,
    keys_beside,
    layer_count,
    layers_of_kinds,
    number,
    require,
    with_defaults,
)
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.cache_layers import Nothing
from pyengine.model.positions import rotary_parameters

MAMBA_DEFAULTS: dict[str, Any] = {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
"""Of the configurations of Bamba and Granite 4."""


PATTERN = {
    "M": "linear_attention",
    "*": "full_attention",
    "-": "mlp",
    "E": "moe",
    "mamba": "linear_attention",
    "attention": "full_attention",
}
"""Names of layers' kinds in files of Nemotron-H, and letters in the pattern of older ones."""

ONE_BLOCK = Names(
    embedding="backbone.embeddings",
    layer="backbone.layers.{}.",
    norm="backbone.norm_f",
    attention="mixer.",
    mlp="mixer.",
    gate_up=("up_proj",),
    before_attention="norm",
)


def bamba_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Bamba's config.json with what it leaves out."""
    usual = with_defaults(
        config,
        **MAMBA_DEFAULTS,
        vocab_size=128_000,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=262_144,
        rms_norm_eps=1e-5,
    )
    attend = usual.get("attn_layer_indices", ())
    kinds = [
        "full_attention" if layer in attend else "linear_attention"
        for layer in range(layer_count(usual))
    ]
    return {**usual, "layer_types": kinds, "partial_rotary_factor": 0.5}


def granite_hybrid_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Granite 4's config.json in the usual names, with what it leaves out."""
    usual = with_defaults(
        config, **MAMBA_DEFAULTS, shared_intermediate_size=1024, num_local_experts=8
    )
    kinds = usual.get("layer_types") or usual.get("layers_block_type")
    if not isinstance(kinds, list):
        kinds = ["mamba"] * layer_count(usual)
    names = {"attention": "full_attention", "mamba": "linear_attention"}
    return {**usual, "layer_types": [names.get(kind, kind) for kind in kinds]}


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


def mamba2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Mamba2's config.json with what it leaves out."""
    return with_defaults(
        config,
        num_heads=128,
        head_dim=64,
        vocab_size=32_768,
        hidden_size=4096,
        state_size=128,
        num_hidden_layers=64,
        expand=2,
        conv_kernel=4,
        n_groups=8,
        # It has no positions, and so no limit but what was tried.
        max_position_embeddings=1 << 20,
    )


def mamba2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mamba2.

    Raises:
        ModelLoadError: Its heads do not fit.
    """
    mixer = _own_mixer(config, "num_heads", "head_dim", "use_bias")
    inner, layers = int(number(config, "expand", 2) * count(config, "hidden_size")), _depth(config)
    if mixer.heads * mixer.head_dim != inner:
        raise ModelLoadError(
            f"config.json: {mixer.heads} heads of {mixer.head_dim} elements are not 'expand' times "
            f"'hidden_size', {inner}"
        )
    lone: list[Literal["mixes", "feeds"]] = ["mixes"] * layers
    return Traits(
        names=ONE_BLOCK,
        layers=(mixer.keeps,) * layers,
        mixers=(mixer,) * layers,
        lone=tuple(lone),
        **_one_block(config),
    )


def nemotron_h_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Nemotron-H's config.json with what it leaves out."""
    usual = with_defaults(
        config,
        vocab_size=131_072,
        hidden_size=4096,
        intermediate_size=21_504,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        ssm_state_size=128,
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        conv_kernel=4,
        mlp_hidden_act="relu2",
    )
    for own, name in (("mamba_n_groups", "n_groups"), ("mamba_d_conv", "conv_kernel")):
        usual[name] = usual.get(own, usual[name])
    kinds = usual.get("layers_block_type") or usual.get("layer_types")
    kinds = kinds or usual.get("hybrid_override_pattern") or ["mamba", "moe", "attention", "mlp"]
    kinds = [PATTERN.get(kind, kind) for kind in kinds]
    return {**usual, "layer_types": kinds, "num_hidden_layers": len(kinds)}


def nemotron_h(config: Mapping[str, Any]) -> Traits:
    """The traits of a Nemotron-H without experts: its experts have no gates, and are refused."""
    mixer = _own_mixer(config, "mamba_num_heads", "mamba_head_dim", "use_bias")
    kinds = layers_of_kinds(config, "full_attention", "linear_attention", "mlp")
    mixers = tuple(mixer if kind == "linear_attention" else None for kind in kinds)
    keeps = zip(keys_beside(config, mixers), kinds, strict=True)
    bias = bool(config.get("attention_bias"))
    lone: list[Literal["mixes", "feeds"]] = [
        "feeds" if kind == "mlp" else "mixes" for kind in kinds
    ]
    return Traits(
        names=ONE_BLOCK,
        layers=tuple(Nothing() if kind == "mlp" else layer for layer, kind in keeps),
        mixers=mixers,
        lone=tuple(lone),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        rotary=(None,) * len(kinds),
        **_one_block(config) | {"activation": activation(config.get("mlp_hidden_act") or "relu2")},
    )


def _own_mixer(config: Mapping[str, Any], heads: str, dim: str, bias: str) -> StateSpace:
    """The mixer of Mamba2 and Nemotron-H, by the names that each has."""
    require(config, "mamba_hidden_act", "silu", "swish")
    refuse_step_limits(config)
    size = "state_size" if "state_size" in config else "ssm_state_size"
    return StateSpace(
        heads=count(config, heads),
        head_dim=count(config, dim),
        groups=count(config, "n_groups"),
        size=count(config, size),
        kernel=count(config, "conv_kernel"),
        epsilon=number(config, "layer_norm_epsilon", 1e-5),
        name="mixer.",
        bias=bool(config.get(bias)),
        convolution_bias=bool(config.get("use_conv_bias", True)),
    )


def _one_block(config: Mapping[str, Any]) -> dict[str, Any]:
    return common(config) | {"epsilon": number(config, "layer_norm_epsilon", 1e-5)}


def _depth(config: Mapping[str, Any]) -> int:
    require(config, "hidden_act", "silu", "swish")
    return layer_count(config)
