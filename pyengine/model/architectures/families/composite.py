"""Language models of any family behind an encoder of images or sounds: LLaVA, InternVL, Idefics 3,
SmolVLM, Voxtral. ``text_config`` says which family the text part is of.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.layer_norm.cohere import cohere, cohere2
from pyengine.model.architectures.families.llama_like.granite import granite
from pyengine.model.architectures.families.llama_like.llama import llama
from pyengine.model.architectures.families.llama_like.mistral import ministral3, mistral
from pyengine.model.architectures.families.llama_like.phi3 import phi3
from pyengine.model.architectures.families.llama_like.qwen2 import qwen2
from pyengine.model.architectures.families.llama_like.qwen3 import qwen3, qwen3_moe
from pyengine.model.architectures.families.llama_like.smollm3 import smollm3
from pyengine.model.architectures.families.mixtures.gpt_oss import gpt_oss
from pyengine.model.architectures.families.norms_behind.gemma import gemma, gemma2, gemma3
from pyengine.model.architectures.traits import Traits

FAMILIES: dict[str, Callable[[Mapping[str, Any]], Traits]] = {
    "cohere": cohere,
    "cohere2": cohere2,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gpt_oss": gpt_oss,
    "granite": granite,
    "llama": llama,
    "ministral3": ministral3,
    "mistral": mistral,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "smollm3": smollm3,
}
"""By ``model_type`` of the text part."""


def composite(config: Mapping[str, Any]) -> Traits:
    """The traits of the text part.

    Raises:
        ModelLoadError: It is of another family.
    """
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise ModelLoadError(
            f"config.json: a text part of 'model_type' {kind!r} is not supported; there are: "
            f"{', '.join(FAMILIES)}"
        )
    return family(config)
