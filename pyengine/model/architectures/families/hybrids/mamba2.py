"""Models with layers of one block: Mamba2 (Dao and Gu, 2024), and Nemotron-H (NVIDIA,
"Nemotron-H: A Family of Accurate and Efficient Hybrid Mamba-Transformer Models", 2025), whose
layers are Mamba-2, attention or feed-forward, in Nemotron 3 (NVIDIA, 2025) with experts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.hybrids.bamba import refuse_step_limits
from pyengine.model.architectures.families.latents.deepseek import sigmoid_routing
from pyengine.model.architectures.mixers.mixer import Mixer
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
    stated,
)
from pyengine.model.architectures.traits import (
    ExpertLatents,
    ExpertNames,
    Mixture,
    Names,
    Traits,
)
from pyengine.model.cache_layers import Nothing

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
    before_mlp="norm",
)


def mamba2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Mamba2's config.json with what it leaves out."""
    # It has no positions, and so no limit but what was tried.
    return {"max_position_embeddings": 1 << 20, **stated(config)}


def mamba2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mamba2.

    Raises:
        ModelLoadError: Its heads do not fit.
    """
    mixer = _own_mixer(config, "num_heads", "head_dim", "use_bias")
    inner = int(number(config, "expand", 2) * count(config, "hidden_size"))
    if mixer.heads * mixer.head_dim != inner:
        raise ModelLoadError(
            f"config.json: {mixer.heads} heads of {mixer.head_dim} elements are not 'expand' times "
            f"'hidden_size', {inner}"
        )
    return all_mix(config, mixer)


def all_mix(config: Mapping[str, Any], mixer: Mixer) -> Traits:
    """The traits of a model all of whose layers are the ``mixer`` alone."""
    require(config, "hidden_act", "silu", "swish")
    layers = layer_count(config)
    lone: list[Literal["mixes", "feeds"]] = ["mixes"] * layers
    return Traits(
        names=ONE_BLOCK,
        layers=(mixer.keeps,) * layers,
        mixers=(mixer,) * layers,
        lone=tuple(lone),
        **_one_block(config),
    )


def nemotron_h_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Nemotron-H's config.json in the usual names."""
    usual = stated(config)
    for own, name in (("mamba_n_groups", "n_groups"), ("mamba_d_conv", "conv_kernel")):
        usual[name] = usual.get(own, usual[name])
    kinds = usual.get("layers_block_type") or usual.get("layer_types")
    kinds = kinds or usual.get("hybrid_override_pattern") or ["mamba", "moe", "attention", "mlp"]
    kinds = [PATTERN.get(kind, kind) for kind in kinds]
    return {**usual, "layer_types": kinds, "num_hidden_layers": len(kinds)}


def nemotron_h(config: Mapping[str, Any]) -> Traits:
    """The traits of a Nemotron-H or a Nemotron 3, whose experts have no gates."""
    mixer = _own_mixer(config, "mamba_num_heads", "mamba_head_dim", "use_bias")
    kinds = layers_of_kinds(config, "full_attention", "linear_attention", "mlp", "moe")
    mixers = tuple(mixer if kind == "linear_attention" else None for kind in kinds)
    keeps = zip(keys_beside(config, mixers), kinds, strict=True)
    bias = bool(config.get("attention_bias"))
    feeds = ("mlp", "moe")
    lone: list[Literal["mixes", "feeds"]] = [
        "feeds" if kind in feeds else "mixes" for kind in kinds
    ]
    return Traits(
        names=ONE_BLOCK,
        layers=tuple(Nothing() if kind in feeds else layer for layer, kind in keeps),
        mixture=_nemotron_experts(config, kinds) if "moe" in kinds else None,
        mixers=mixers,
        lone=tuple(lone),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        rotary=(None,) * len(kinds),
        **_one_block(config) | {"activation": activation(config.get("mlp_hidden_act") or "relu2")},
    )


def _nemotron_experts(config: Mapping[str, Any], kinds: Sequence[str]) -> Mixture:
    latent = config.get("moe_latent_size")
    if latent is not None:
        require(config, "mlp_bias", False, None)
    return Mixture(
        count=count(config, "n_routed_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=sigmoid_routing(config),
        dense=frozenset(layer for layer, kind in enumerate(kinds) if kind != "moe"),
        mlp="mixer.",
        names=ExpertNames(("experts.{}.up_proj.weight",), gated=False),
        stacked=ExpertNames(("experts.up_proj[{}]",), "experts.down_proj[{}]", gated=False),
        bias="gate.e_score_correction_bias",
        shared="shared_experts",
        shared_inner=count(config, "moe_shared_expert_intermediate_size"),
        latents=None
        if latent is None
        else ExpertLatents(count(config, "moe_latent_size"), "fc1_latent_proj", "fc2_latent_proj"),
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
