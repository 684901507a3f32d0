"""Apertus (Swiss AI Initiative, "Apertus: Democratizing Open and Compliant LLMs for Global Language
Environments", 2025): a Llama without gates, whose heads are normalized and whose activation, xIELU,
has weights in each layer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.llama_like.llama import llama
from pyengine.model.architectures.parts import Activation
from pyengine.model.architectures.reading import require
from pyengine.model.architectures.traits import Names, Traits

NAMES = Names(
    gate_up=("up_proj",),
    before_attention="attention_layernorm",
    before_mlp="feedforward_layernorm",
)


def apertus(config: Mapping[str, Any]) -> Traits:
    """The traits of an Apertus."""
    require(config, "hidden_act", "xielu")
    return replace(
        llama({**config, "hidden_act": None, "mlp_bias": False}),
        names=NAMES,
        gated=False,
        qk_norm="head",
        activation=Activation("xielu"),
    )
