"""Mixtral (Jiang et al., "Mixtral of Experts", 2024): a Mistral with experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.llama_like.mistral import mistral
from pyengine.model.architectures.reading import count, number
from pyengine.model.architectures.traits import ExpertNames, Mixture, Traits

EXPERT_NAMES = ExpertNames(
    gate_up=("experts.{}.w1.weight", "experts.{}.w3.weight"), down="experts.{}.w2.weight"
)


def mixtral(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mixtral."""
    mixture = Mixture(
        count=count(config, "num_local_experts"),
        inner=count(config, "intermediate_size"),
        routing=Routing(count(config, "num_experts_per_tok"), normalized=True),
        mlp="block_sparse_moe.",
        names=EXPERT_NAMES,
    )
    shared = mistral(config)
    return replace(shared, mixture=mixture, epsilon=number(config, "rms_norm_eps", 1e-5))
