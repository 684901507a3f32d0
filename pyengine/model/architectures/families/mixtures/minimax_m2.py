"""MiniMax-M2 (MiniMax, 2025): experts chosen by sigmoids, a token's queries normalized as one."""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.mixtures.mixtral import EXPERT_NAMES
from pyengine.model.architectures.reading import common, count, layer_count
from pyengine.model.architectures.traits import Mixture, Traits
from pyengine.model.positions import rotary_parameters


def minimax_m2(config: Mapping[str, Any]) -> Traits:
    """The traits of a MiniMax-M2."""
    rotary = rotary_parameters(config)
    dim = config.get("rotary_dim")
    if dim and rotary["partial_rotary_factor"] == 1:
        rotary["partial_rotary_factor"] = dim / count(config, "head_dim")
    mixture = Mixture(
        count=count(config, "num_local_experts"),
        inner=count(config, "intermediate_size"),
        routing=Routing(count(config, "num_experts_per_tok"), sigmoid=True, normalized=True),
        mlp="block_sparse_moe.",
        names=EXPERT_NAMES,
        bias="e_score_correction_bias",
    )
    return Traits(
        qk_norm="all" if config.get("use_qk_norm", True) else None,
        rotary=(rotary,) * layer_count(config),
        mixture=mixture,
        **common(config),
    )
