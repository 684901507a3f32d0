"""Gemma 4 (Gemma Team, 2026), its text part: layers with a window and layers without differ in
their heads and positions; some have no projection of values, some no keys and values of their own;
and small models look inputs of each layer up beside hidden states.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.norms_behind.gemma import NORMS_ON_BOTH_SIDES
from pyengine.model.architectures.reading import (
    activation,
    common,
    count,
    layer_count,
    layer_types,
)
from pyengine.model.architectures.traits import Beside, ExpertNames, LayerInputs, Mixture, Traits
from pyengine.model.cache_layers import Keys
from pyengine.model.positions import rotary_by_kind

ROTARY = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
}
"""Where config.json has none."""


def gemma4(config: Mapping[str, Any]) -> Traits:
    """The traits of a Gemma 4.

    Raises:
        ModelLoadError: Its layers do not fit.
    """
    kinds = layer_types(config, 6)
    kinds[-1] = "full_attention"
    layers = _layers(config, kinds)
    config = {"rope_parameters": ROTARY} | {k: v for k, v in config.items() if v is not None}
    inner = count(config, "intermediate_size")
    wide = 2 if config.get("use_double_wide_mlp") else 1
    bias = bool(config.get("attention_bias"))
    full = frozenset(at for at, kind in enumerate(kinds) if kind == "full_attention")
    shared = common(config, tied=True)
    shared["activation"] = activation(config.get("hidden_activation") or "gelu_pytorch_tanh")
    return Traits(
        names=replace(NORMS_ON_BOTH_SIDES, layer_scale="layer_scalar"),
        qk_norm="head",
        v_norm=True,
        qkv_bias=bias,
        out_bias=bias,
        layers=layers,
        keys_are_values=full if config.get("attention_k_eq_v") else frozenset(),
        rotary=tuple(_rotary(config, kind) for kind in kinds),
        attention_scale=1.0,
        inner=tuple(inner * (1 if layer.reads is None else wide) for layer in layers),
        mixture=_mixture(config) if config.get("enable_moe_block") else None,
        inputs=_inputs(config),
        embedding_scale=float(count(config, "hidden_size")) ** 0.5,
        logits_cap=config.get("final_logit_softcapping"),
        **shared,
    )


def gemma4_unified(config: Mapping[str, Any]) -> Traits:
    """The traits of a Gemma 4 whose layers get no inputs of their own, and that has no experts."""
    return gemma4({**config, "hidden_size_per_layer_input": 0, "enable_moe_block": False})


def _rotary(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    rotary = rotary_by_kind(config, kind)
    # A part of a head is rotated by the proportional kind alone.
    return rotary | ({"partial_rotary_factor": 1.0} if rotary["rope_type"] == "default" else {})


def _layers(config: Mapping[str, Any], kinds: list[str]) -> tuple[Keys, ...]:
    """The keys and values of each layer: their heads differ.

    transformers writes those that differ by layer (``per_layer_config``), published files by kind.
    """
    by_layer = config.get("per_layer_config")
    own_layers = layer_count(config) - (config.get("num_kv_shared_layers") or 0)
    general = count(config, "num_key_value_heads"), count(config, "head_dim")
    window = count(config, "sliding_window")
    found = []
    for at, kind in enumerate(kinds):
        kv_heads, dim = general
        if isinstance(by_layer, Mapping):
            own = by_layer.get(str(at)) or {}
            kv_heads, dim = own.get("num_key_value_heads", kv_heads), own.get("head_dim", dim)
        elif kind == "full_attention":
            dim = config.get("global_head_dim") or 512
            if config.get("attention_k_eq_v"):
                kv_heads = config.get("num_global_key_value_heads") or kv_heads
        reads = None
        if at >= own_layers:
            before = [each for each in range(own_layers) if kinds[each] == kind]
            if not before:
                raise ModelLoadError(
                    f"config.json: none of the first {own_layers} layers is of {kind!r}, whose "
                    "keys and values later ones share"
                )
            reads = before[-1]
        found.append(Keys(kv_heads, dim, None if kind == "full_attention" else window, reads))
    return tuple(found)


def _inputs(config: Mapping[str, Any]) -> LayerInputs | None:
    width = config.get("hidden_size_per_layer_input", 256)
    if not width:
        return None
    vocab = config.get("vocab_size_per_layer_input") or config["vocab_size"]
    if vocab < config["vocab_size"]:
        raise ModelLoadError(
            f"config.json: 'vocab_size_per_layer_input' of {vocab} is less than 'vocab_size' of "
            f"{config['vocab_size']}, and so not supported"
        )
    return LayerInputs(width=width, vocab=vocab)


def _mixture(config: Mapping[str, Any]) -> Mixture:
    return Mixture(
        count=count(config, "num_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=Routing(count(config, "top_k_experts"), normalized=True),
        mlp="",
        router="router.proj",
        names=ExpertNames(gate_up=("experts.gate_up_proj[{}]",), down="experts.down_proj[{}]"),
        scales="router.per_expert_scale",
        beside=Beside(
            before="pre_feedforward_layernorm_2",
            after="post_feedforward_layernorm_2",
            router_scale="router.scale",
            dense_after="post_feedforward_layernorm_1",
        ),
    )
