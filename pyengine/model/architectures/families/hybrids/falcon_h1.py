"""Falcon-H1 (TII, "Falcon-H1: A Family of Hybrid-Head Language Models", 2025): in each layer
attention and Mamba-2 read the same, and what they give is added. Constants multiply most of what is
computed, so that models of all widths are trained alike.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.hybrids.bamba import refuse_step_limits
from pyengine.model.architectures.mixers.state_space import Multipliers, StateSpace
from pyengine.model.architectures.reading import (
    common,
    count,
    keys_of_layers,
    layer_count,
    number,
    refuse,
    require,
)
from pyengine.model.architectures.traits import AttentionBeside, Names, Traits
from pyengine.model.cache_layers import Both


def falcon_h1_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Falcon-H1's config.json with what it leaves out."""
    inner = config.get("mamba_d_ssm", 1024)
    if inner is None:
        inner = count(config, "mamba_expand") * count(config, "hidden_size")
    # Null is none.
    bias = bool(config.get("mamba_conv_bias", True))
    return {**config, "mamba_d_ssm": inner, "mamba_conv_bias": bias}


def falcon_h1(config: Mapping[str, Any]) -> Traits:
    """The traits of a Falcon-H1.

    Raises:
        ModelLoadError: It has biases where no published model has them, or sizes do not fit.
    """
    # Multipliers would have to leave them out.
    refuse(config, "attention_bias", "mamba_proj_bias", "projectors_bias", "mlp_bias")
    mixer, layers = _mixer(config), layer_count(config)
    keys = keys_of_layers(config, [None] * layers)
    given, (gate, feed) = number(config, "attention_in_multiplier", 1.0), _factors(config, "mlp", 2)
    # What multiplies the input of queries, keys and values may as well multiply scores and output.
    scores = number(config, "key_multiplier", 1.0) * given**2
    return Traits(
        names=Names(
            norm="model.final_layernorm", mlp="feed_forward.", before_mlp="pre_ff_layernorm"
        ),
        layers=tuple(Both(each, mixer.keeps) for each in keys),
        mixers=(mixer,) * layers,
        attention_beside=AttentionBeside(
            attended=given * number(config, "attention_out_multiplier", 1.0),
            mixed=number(config, "ssm_out_multiplier", 1.0),
        ),
        attention_scale=scores * keys[0].head_dim ** -0.5,
        gate_scale=gate,
        feed_scale=feed,
        embedding_scale=number(config, "embedding_multiplier", 1.0),
        logits_scale=number(config, "lm_head_multiplier", 1.0),
        **common(config, epsilon=1e-5),
    )


def _mixer(config: Mapping[str, Any]) -> StateSpace:
    require(config, "hidden_act", "silu", "swish")
    refuse_step_limits(config)
    heads, inner = count(config, "mamba_n_heads"), count(config, "mamba_d_ssm")
    dim = config.get("mamba_d_head")
    dim = inner // heads if dim == "auto" else count(config, "mamba_d_head")
    if dim * heads != inner:
        raise ModelLoadError(
            f"config.json: {heads} heads of {dim} elements ('mamba_d_head') are not "
            f"'mamba_d_ssm', {inner}"
        )
    given = number(config, "ssm_in_multiplier", 1.0)
    norm: Literal["before", "behind"] | None = None
    if config.get("mamba_rms_norm"):
        norm = "behind" if config.get("mamba_norm_before_gate", True) else "before"
    return StateSpace(
        heads=heads,
        head_dim=dim,
        groups=count(config, "mamba_n_groups"),
        size=count(config, "mamba_d_state"),
        kernel=count(config, "mamba_d_conv"),
        epsilon=number(config, "rms_norm_eps", 1e-5),
        convolution_bias=bool(config["mamba_conv_bias"]),
        norm=norm,
        multipliers=Multipliers(*(given * each for each in _factors(config, "ssm", 5))),
    )


def _factors(config: Mapping[str, Any], name: str, many: int) -> list[float]:
    """The ``many`` numbers of a list of multipliers.

    Raises:
        ModelLoadError: They are other than that, or 0.
    """
    given = config.get(f"{name}_multipliers") or [1.0] * many
    if (
        not isinstance(given, list)
        or len(given) != many
        or not all(isinstance(each, int | float) and each for each in given)
    ):
        raise ModelLoadError(
            f"config.json: '{name}_multipliers' of {given!r} are not {many} numbers but 0"
        )
    return [float(each) for each in given]
