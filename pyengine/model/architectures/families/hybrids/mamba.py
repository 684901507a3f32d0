"""Mamba (Gu and Dao, 2023), Falcon Mamba (TII, "Falcon Mamba", 2024), and Jamba (AI21, "Jamba: A
Hybrid Transformer-Mamba Language Model", 2024), where some layers attend and some have experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.hybrids.mamba2 import all_mix
from pyengine.model.architectures.mixers.selective_scan import SelectiveScan
from pyengine.model.architectures.reading import (
    common,
    count,
    keys_beside,
    layer_count,
    number,
    renamed,
    require,
)
from pyengine.model.architectures.traits import Mixture, Names, Traits


def mamba(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mamba."""
    return all_mix(config, _mixer(config, config.get("intermediate_size")))


def falcon_mamba(config: Mapping[str, Any]) -> Traits:
    """The traits of a Falcon Mamba."""
    mixer = _mixer(config, config.get("intermediate_size"))
    epsilon = number(config, "mixer_rms_eps", 1e-6)
    return all_mix(config, replace(mixer, norms="plain", epsilon=epsilon))


def jamba_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Jamba's config.json by Mamba's names."""
    return renamed(
        config,
        expand="mamba_expand",
        state_size="mamba_d_state",
        conv_kernel="mamba_d_conv",
        use_bias="mamba_proj_bias",
        use_conv_bias="mamba_conv_bias",
        time_step_rank="mamba_dt_rank",
    )


def jamba(config: Mapping[str, Any]) -> Traits:
    """The traits of a Jamba."""
    require(config, "hidden_act", "silu", "swish")
    layers, experts = range(layer_count(config)), count(config, "num_experts")
    mixer = replace(
        _mixer(config),
        name="mamba.",
        norms="weighed",
        epsilon=number(config, "rms_norm_eps", 1e-6),
    )
    mixers = tuple(None if at in _every(config, "attn") else mixer for at in layers)
    return Traits(
        names=Names(
            norm="model.final_layernorm", mlp="feed_forward.", before_mlp="pre_ff_layernorm"
        ),
        layers=keys_beside(config, mixers),
        mixers=mixers,
        rotary=(None,) * len(mixers),
        mixture=None
        if experts == 1
        else Mixture(
            count=experts,
            inner=count(config, "intermediate_size"),
            routing=Routing(count(config, "num_experts_per_tok")),
            dense=frozenset(layers) - frozenset(_every(config, "expert")),
            mlp="feed_forward.",
            router="router",
        ),
        **common(config),
    )


def _mixer(config: Mapping[str, Any], channels: int | None = None) -> SelectiveScan:
    """The mixer; ``channels``: None where ``expand`` says."""
    hidden, rank = count(config, "hidden_size"), config.get("time_step_rank", "auto")
    return SelectiveScan(
        channels=channels or int(number(config, "expand", 2) * hidden),
        size=count(config, "state_size"),
        rank=-(-hidden // 16) if rank == "auto" else count(config, "time_step_rank"),
        kernel=count(config, "conv_kernel"),
        bias=bool(config.get("use_bias")),
        convolution_bias=bool(config.get("use_conv_bias", True)),
    )


def _every(config: Mapping[str, Any], kind: str) -> range:
    first = int(number(config, f"{kind}_layer_offset", 0))
    return range(first, layer_count(config), count(config, f"{kind}_layer_period"))
